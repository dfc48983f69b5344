//! Fixed-size views of slices; 24-bit fields.

use crate::ParseError;

/// The first `N` bytes, or the error that `header` is cut short.
#[inline(always)]
pub(crate) fn front<'a, const N: usize>(header: &'static str, bytes: &'a [u8]) -> Result<&'a [u8; N], ParseError> {
    bytes.first_chunk().ok_or(ParseError::Truncated { header, need: N, got: bytes.len() })
}

/// The first `N` bytes to write to. Panics as indexing does.
#[inline(always)]
pub(crate) fn front_mut<const N: usize>(out: &mut [u8]) -> &mut [u8; N] {
    let got = out.len();
    match out.first_chunk_mut() {
        Some(front) => front,
        None => panic!("the header takes {N} bytes and the buffer has {got}"),
    }
}

/// `N` bytes from `at`, which the caller knows to be inside.
#[inline(always)]
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

#[inline(always)]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

/// The low 24 bits of the big-endian word at `at`.
#[inline(always)]
pub(crate) fn low24(bytes: &[u8], at: usize) -> u32 {
    be32(bytes, at) & 0xff_ffff
}

#[inline(always)]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

#[inline(always)]
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// Writes `value` at `at`.
#[inline(always)]
pub(crate) fn put<const N: usize>(out: &mut [u8], at: usize, value: [u8; N]) {
    out[at..at + N].copy_from_slice(&value);
}
