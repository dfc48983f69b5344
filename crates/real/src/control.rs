//! What clients and nodes say to each other beside the verbs: how a call to the host looks, and the node's own calls.
//!
//! A call to the host is a SEND: an [`RpcHeader`], the op-code (8 bytes, little-endian), the parameters. The answer is
//! a WRITE with immediate, as from a kernel on the NIC. Numbers in parameters and answers are little-endian.

use remora_wire::rpc::RpcHeader;

/// The node's port in `rdma_cm`'s TCP port space.
pub const PORT: u16 = 7411;

/// Longest call to the host, and longest parameters, in bytes.
pub const MAX_REQUEST: usize = 4096;

/// Bytes in front of the parameters of a call to the host.
pub const HOST_HEADER: usize = RpcHeader::LEN + 8;

/// The node's own calls. Kernels' op-codes are below all of these.
pub mod op {
    /// Registers memory: length u64 -> address u64, key u32.
    pub const ALLOC: u64 = 0x1001;
    /// Gives it back: key u32.
    pub const FREE: u64 = 0x1002;
    /// CPU time that the node process has used: -> nanoseconds u64.
    pub const CPU: u64 = 0x1003;
    /// Starts a thread that rewrites checked objects: see [`super::WriterConfig`].
    pub const WRITER_START: u64 = 0x1004;
    /// Stops it: -> updates made u64.
    pub const WRITER_STOP: u64 = 0x1005;
}

/// A thread on the node that keeps rewriting checked objects (payload, then its CRC64) in place, in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterConfig {
    /// Bytes of one object with its checksum.
    pub object_size: u32,
    /// Objects, one after the other from the region's start.
    pub objects: u32,
    /// Updates a second, over all objects; 0 is as fast as it can.
    pub updates_per_s: u32,
}

/// Parameters of [`op::WRITER_START`].
pub(crate) fn encode_writer(key: u32, va: u64, config: &WriterConfig) -> [u8; 24] {
    let mut out = [0; 24];
    out[..4].copy_from_slice(&key.to_le_bytes());
    out[4..12].copy_from_slice(&va.to_le_bytes());
    out[12..16].copy_from_slice(&config.object_size.to_le_bytes());
    out[16..20].copy_from_slice(&config.objects.to_le_bytes());
    out[20..24].copy_from_slice(&config.updates_per_s.to_le_bytes());
    out
}

/// Key, address and settings of [`op::WRITER_START`]; `None` if they are cut short.
pub(crate) fn decode_writer(params: &[u8]) -> Option<(u32, u64, WriterConfig)> {
    let config = WriterConfig {
        object_size: u32_at(params, 12)?,
        objects: u32_at(params, 16)?,
        updates_per_s: u32_at(params, 20)?,
    };
    Some((u32_at(params, 0)?, u64_at(params, 4)?, config))
}

/// The little-endian number at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The little-endian number at `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
