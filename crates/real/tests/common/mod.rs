//! What several tests of the real world use.

/// Some version of an object, with its checksum behind it, as the consistency kernel expects.
pub fn fill_object(index: u64, version: u64, out: &mut [u8]) {
    let (payload, checksum) = out.split_at_mut(out.len() - 8);
    for (n, byte) in payload.iter_mut().enumerate() {
        *byte = (index * 31 + version * 7 + n as u64) as u8;
    }
    checksum.copy_from_slice(&remora_kernel::crc64(payload).to_le_bytes());
}
