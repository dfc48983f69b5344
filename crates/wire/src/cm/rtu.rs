//! RTU.

use super::BODY;
use crate::field::{array, be32, put};

/// Ready to use: the active side has seen the REP (section 12.6.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rtu {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// For the consumers.
    pub private_data: [u8; 224],
}

impl Default for Rtu {
    fn default() -> Self {
        Self { local_comm_id: 0, remote_comm_id: 0, private_data: [0; 224] }
    }
}

impl Rtu {
    pub(super) fn parse(b: &[u8; BODY]) -> Self {
        Self { local_comm_id: be32(b, 0), remote_comm_id: be32(b, 4), private_data: array(b, 8) }
    }

    /// Writes the body into zeros and returns the attribute.
    pub(super) fn emit(&self, out: &mut [u8; BODY]) -> u16 {
        put(out, 0, self.local_comm_id.to_be_bytes());
        put(out, 4, self.remote_comm_id.to_be_bytes());
        put(out, 8, self.private_data);
        0x14
    }
}
