//! How a connection's buffer is divided: half for each direction, a page of words before the ring's bytes.

/// Bytes of a connection's buffer.
pub const LINK_BYTES: usize = 1 << 20;
/// Bytes of a direction's half.
pub const HALF_BYTES: usize = LINK_BYTES / 2;
/// Bytes at the start of each half that both ends expect to be zero when they meet.
pub const WORDS_BYTES: usize = 4096;
/// Bytes that one direction can hold.
pub const RING_BYTES: usize = HALF_BYTES - WORDS_BYTES;
