//! Copies of two words at a time. Processors with AVX access 16 aligned bytes as a whole (Intel SDM volume 3, 9.1.1;
//! AMD64 APM volume 2, 7.3.2), so that neither word tears, and in the order of the instructions, as single words.
//!
//! In assembly, as Rust's memory model has no such access.

use super::{BLOCK, WORD, by_way_of_private, load_words, store_words};
use std::arch::asm;
use std::arch::x86_64::{
    __m512, _mm256_loadu_si256, _mm256_stream_si256, _mm512_add_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_storeu_ps, _mm512_stream_si512,
};

/// Bytes from which on it pays.
pub const LEAST: usize = 512;
/// Bytes from which on lines pay.
pub const LEAST_LINES: usize = BLOCK;

/// Whether this processor accesses 16 aligned bytes as a whole.
#[inline(always)]
pub fn is_whole() -> bool {
    std::is_x86_feature_detected!("avx")
}

/// Bytes before the first 16 aligned ones, and then of whole blocks out of `len`.
fn parts(shared: *mut u8, len: usize) -> (usize, usize) {
    let first = shared.addr().wrapping_neg() % (2 * WORD);
    (first, (len - first) / BLOCK * BLOCK)
}

/// Copies whole blocks, `left` bytes, from `src`, which is aligned to 16.
///
/// # Safety
/// As for [`super::lift`]; [`is_whole`] is true, and there is a block at least.
#[inline(always)]
unsafe fn from_aligned(src: *mut u8, dst: *mut u8, left: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "2:",
            "movaps xmm0, [{src}]",
            "movaps xmm1, [{src} + 16]",
            "movaps xmm2, [{src} + 32]",
            "movaps xmm3, [{src} + 48]",
            "movups [{dst}], xmm0",
            "movups [{dst} + 16], xmm1",
            "movups [{dst} + 32], xmm2",
            "movups [{dst} + 48], xmm3",
            "add {src}, 64",
            "add {dst}, 64",
            "sub {left}, 64",
            "jnz 2b",
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            left = inout(reg) left => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack),
        );
    }
}

/// Copies whole blocks, `left` bytes, to `dst`, which is aligned to 16.
///
/// # Safety
/// As for [`super::land`]; [`is_whole`] is true, and there is a block at least.
#[inline(always)]
pub unsafe fn to_aligned(src: *const u8, dst: *mut u8, left: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "2:",
            "movups xmm0, [{src}]",
            "movups xmm1, [{src} + 16]",
            "movups xmm2, [{src} + 32]",
            "movups xmm3, [{src} + 48]",
            "movaps [{dst}], xmm0",
            "movaps [{dst} + 16], xmm1",
            "movaps [{dst} + 32], xmm2",
            "movaps [{dst} + 48], xmm3",
            "add {src}, 64",
            "add {dst}, 64",
            "sub {left}, 64",
            "jnz 2b",
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            left = inout(reg) left => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack),
        );
    }
}

/// Copies whole blocks, `left` bytes; both sides are aligned to 16.
///
/// # Safety
/// As for [`super::carry`]; [`is_whole`] is true, and there is a block at least.
#[inline(always)]
unsafe fn both_aligned(src: *mut u8, dst: *mut u8, left: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "2:",
            "movaps xmm0, [{src}]",
            "movaps xmm1, [{src} + 16]",
            "movaps xmm2, [{src} + 32]",
            "movaps xmm3, [{src} + 48]",
            "movaps [{dst}], xmm0",
            "movaps [{dst} + 16], xmm1",
            "movaps [{dst} + 32], xmm2",
            "movaps [{dst} + 48], xmm3",
            "add {src}, 64",
            "add {dst}, 64",
            "sub {left}, 64",
            "jnz 2b",
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            left = inout(reg) left => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack),
        );
    }
}

/// # Safety
/// As for [`super::load`], of at least [`LEAST`] bytes; [`is_whole`] is true.
#[inline(never)]
pub unsafe fn load(src: *mut u8, out: &mut [u8]) {
    let (first, blocks) = parts(src, out.len());
    let (head, rest) = out.split_at_mut(first);
    // SAFETY: the caller's promise; three parts of the range, the second of at least one block and aligned to 16.
    unsafe {
        load_words(src, head);
        from_aligned(src.wrapping_add(first), rest.as_mut_ptr(), blocks);
        load_words(src.wrapping_add(first + blocks), &mut out[first + blocks..]);
    }
}

/// Copies a block. Whoever then looks at `out` by 16 bytes has not to wait until two stores of 8 are done.
///
/// # Safety
/// As for [`super::load_block`]; `src` is aligned to 16, and [`is_whole`] is true.
#[inline(always)]
pub unsafe fn load_block(src: *mut u8, out: &mut [u8; BLOCK]) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "movaps {a}, [{src}]",
            "movaps {b}, [{src} + 16]",
            "movaps {c}, [{src} + 32]",
            "movaps {d}, [{src} + 48]",
            "movups [{dst}], {a}",
            "movups [{dst} + 16], {b}",
            "movups [{dst} + 32], {c}",
            "movups [{dst} + 48], {d}",
            src = in(reg) src,
            dst = in(reg) out.as_mut_ptr(),
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Whether this processor moves a line at a time.
#[inline(always)]
pub fn has_lines() -> bool {
    std::is_x86_feature_detected!("avx512f")
}

/// Two lines at a time, aligned or not.
///
/// # Safety
/// As for [`super::take`] or [`super::put`], of at least [`LEAST_LINES`] bytes; [`has_lines`] is true.
#[inline(always)]
pub unsafe fn lines(src: *const u8, dst: *mut u8, len: usize) {
    if len > 2 * BLOCK {
        // SAFETY: the caller's promise.
        return unsafe { many_lines(src, dst, len) };
    }
    // SAFETY: the caller's promise. The second line may have bytes of the first once more. By registers that no code without
    // AVX-512 knows, so that nobody's upper halves are in the way, or are to be cleared.
    unsafe {
        asm!(
            "vmovdqu64 zmm16, [{src}]",
            "vmovdqu64 zmm17, [{src} + {last}]",
            "vmovdqu64 [{dst}], zmm16",
            "vmovdqu64 [{dst} + {last}], zmm17",
            src = in(reg) src,
            dst = in(reg) dst,
            last = in(reg) len - BLOCK,
            out("xmm16") _, out("xmm17") _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// As for [`lines`], of more than two.
#[inline(never)]
unsafe fn many_lines(src: *const u8, dst: *mut u8, len: usize) {
    // The last line may have bytes of the one before it once more.
    let last = len - BLOCK;
    // SAFETY: the caller's promise; all lines begin at `last` at most.
    unsafe {
        asm!(
            "2:",
            "vmovdqu64 zmm0, [{src} + {at}]",
            "vmovdqu64 zmm1, [{src} + {at} + 64]",
            "vmovdqu64 [{dst} + {at}], zmm0",
            "vmovdqu64 [{dst} + {at} + 64], zmm1",
            "add {at}, 128",
            "cmp {at}, {end}",
            "jb 2b",
            "vmovdqu64 zmm0, [{src} + {last} - 64]",
            "vmovdqu64 zmm1, [{src} + {last}]",
            "vmovdqu64 [{dst} + {last} - 64], zmm0",
            "vmovdqu64 [{dst} + {last}], zmm1",
            "vzeroupper",
            src = in(reg) src,
            dst = in(reg) dst,
            at = inout(reg) 0usize => _,
            end = in(reg) (len - 1) / 128 * 128,
            last = in(reg) last,
            out("xmm0") _, out("xmm1") _,
            options(nostack),
        );
    }
}

/// See [`super::add_rows`]. The sums stay in registers.
///
/// # Safety
/// As for [`super::add_rows`], of rows of `N` lines; [`has_lines`] is true.
#[target_feature(enable = "avx512f")]
pub unsafe fn add_rows<const N: usize>(src: *mut u8, rows: u32, sums: &mut [u8], which: &[[u8; 4]], next: &[[u8; 4]]) {
    let sums: &mut [[u8; BLOCK]; N] = match sums.as_chunks_mut::<BLOCK>().0.first_chunk_mut() {
        Some(sums) => sums,
        None => return,
    };
    // SAFETY: a line each.
    let mut lines: [__m512; N] = std::array::from_fn(|at| unsafe { _mm512_loadu_ps(sums[at].as_ptr().cast()) });
    let mut next = next.iter();
    for row in which {
        let place = |row: &[u8; 4]| src.wrapping_add(u32::from_le_bytes(*row) as usize * N * BLOCK);
        if let Some(row) = next.next() {
            super::prefetch_near(place(row), N);
        }
        if u32::from_le_bytes(*row) >= rows {
            continue;
        }
        for (at, sum) in lines.iter_mut().enumerate() {
            let line: __m512;
            // SAFETY: the line is of a row that there is. In assembly, as others may write it.
            unsafe {
                asm!(
                    "vmovups {line}, [{from}]",
                    line = out(zmm_reg) line,
                    from = in(reg) place(row).wrapping_add(at * BLOCK),
                    options(nostack, readonly, preserves_flags),
                );
            }
            *sum = _mm512_add_ps(*sum, line);
        }
    }
    for (sum, line) in sums.iter_mut().zip(lines) {
        // SAFETY: a line each.
        unsafe { _mm512_storeu_ps(sum.as_mut_ptr().cast(), line) };
    }
}

/// # Safety
/// As for [`super::store`], of at least [`LEAST`] bytes; [`is_whole`] is true.
#[inline(never)]
pub unsafe fn store(dst: *mut u8, data: &[u8]) {
    let (first, blocks) = parts(dst, data.len());
    let (head, rest) = data.split_at(first);
    // SAFETY: the caller's promise; three parts of the range, the second of at least one block and aligned to 16.
    unsafe {
        store_words(dst, head);
        to_aligned(rest.as_ptr(), dst.wrapping_add(first), blocks);
        store_words(dst.wrapping_add(first + blocks), &data[first + blocks..]);
    }
}

/// # Safety
/// As for [`super::lift`], of at least [`LEAST`] bytes; [`is_whole`] is true.
#[inline(never)]
pub unsafe fn lift(src: *mut u8, dst: *mut u8, len: usize) {
    let (first, blocks) = parts(src, len);
    let done = first + blocks;
    // SAFETY: the caller's promise; three parts of both ranges, the second of at least one block, aligned to 16 in `src`.
    unsafe {
        by_way_of_private(src, dst, first);
        from_aligned(src.wrapping_add(first), dst.wrapping_add(first), blocks);
        by_way_of_private(src.wrapping_add(done), dst.wrapping_add(done), len - done);
    }
}

/// # Safety
/// As for [`super::land`], of at least [`LEAST`] bytes; [`is_whole`] is true.
#[inline(never)]
pub unsafe fn land(src: *mut u8, dst: *mut u8, len: usize) {
    let (first, blocks) = parts(dst, len);
    let done = first + blocks;
    // SAFETY: the caller's promise; three parts of both ranges, the second of at least one block, aligned to 16 in `dst`.
    unsafe {
        by_way_of_private(src, dst, first);
        to_aligned(src.wrapping_add(first), dst.wrapping_add(first), blocks);
        by_way_of_private(src.wrapping_add(done), dst.wrapping_add(done), len - done);
    }
}

/// # Safety
/// As for [`super::carry`], of at least [`LEAST`] bytes that are congruent modulo 16; [`is_whole`] is true.
#[inline(never)]
pub unsafe fn carry(src: *mut u8, dst: *mut u8, len: usize) {
    let (first, blocks) = parts(src, len);
    let done = first + blocks;
    // SAFETY: the caller's promise; three parts of both ranges, the second of at least one block, aligned to 16 in both.
    unsafe {
        by_way_of_private(src, dst, first);
        both_aligned(src.wrapping_add(first), dst.wrapping_add(first), blocks);
        by_way_of_private(src.wrapping_add(done), dst.wrapping_add(done), len - done);
    }
}

/// A line at a time.
///
/// # Safety
/// As for [`super::stream`]; the processor has AVX-512F.
#[target_feature(enable = "avx512f")]
pub unsafe fn stream_512(dst: *mut u8, data: &[u8]) {
    for at in (0..data.len()).step_by(BLOCK) {
        // SAFETY: whole lines on both sides, as the caller promises.
        unsafe { _mm512_stream_si512(dst.add(at).cast(), _mm512_loadu_si512(data.as_ptr().add(at).cast())) };
    }
}

/// Half a line at a time.
///
/// # Safety
/// As for [`super::stream`]; the processor has AVX.
#[target_feature(enable = "avx")]
pub unsafe fn stream_256(dst: *mut u8, data: &[u8]) {
    for at in (0..data.len()).step_by(BLOCK / 2) {
        // SAFETY: whole lines on both sides, as the caller promises.
        unsafe { _mm256_stream_si256(dst.add(at).cast(), _mm256_loadu_si256(data.as_ptr().add(at).cast())) };
    }
}
