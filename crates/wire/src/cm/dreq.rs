//! DREQ.

use super::BODY;
use crate::field::{array, be32, put};

/// Request for disconnection (section 12.6.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// Queue pair of the receiver, 24 bits.
    pub remote_qpn: u32,
    /// For the consumers.
    pub private_data: [u8; 220],
}

impl Default for Dreq {
    fn default() -> Self {
        Self { local_comm_id: 0, remote_comm_id: 0, remote_qpn: 0, private_data: [0; 220] }
    }
}

impl Dreq {
    pub(super) fn parse(b: &[u8; BODY]) -> Self {
        Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            remote_qpn: be32(b, 8) >> 8,
            private_data: array(b, 12),
        }
    }

    /// Writes the body into zeros and returns the attribute.
    pub(super) fn emit(&self, out: &mut [u8; BODY]) -> u16 {
        put(out, 0, self.local_comm_id.to_be_bytes());
        put(out, 4, self.remote_comm_id.to_be_bytes());
        put(out, 8, (self.remote_qpn << 8).to_be_bytes());
        put(out, 12, self.private_data);
        0x15
    }
}
