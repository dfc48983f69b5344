//! MRA.

use super::BODY;
use crate::field::{array, be32, put};

/// Message receipt acknowledgement: the sender needs longer (section 12.6.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mra {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// Which message is acknowledged, 2 bits: 0 REQ, 1 REP, 2 other (LAP).
    pub message_mraed: u8,
    /// Time that the sender needs, 5 bits: 4.096 us x 2^n.
    pub service_timeout: u8,
    /// For the consumers.
    pub private_data: [u8; 222],
}

impl Default for Mra {
    fn default() -> Self {
        Self { local_comm_id: 0, remote_comm_id: 0, message_mraed: 0, service_timeout: 0, private_data: [0; 222] }
    }
}

impl Mra {
    pub(super) fn parse(b: &[u8; BODY]) -> Self {
        Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            message_mraed: b[8] >> 6,
            service_timeout: b[9] >> 3,
            private_data: array(b, 10),
        }
    }

    /// Writes the body into zeros and returns the attribute.
    pub(super) fn emit(&self, out: &mut [u8; BODY]) -> u16 {
        put(out, 0, self.local_comm_id.to_be_bytes());
        put(out, 4, self.remote_comm_id.to_be_bytes());
        out[8] = self.message_mraed << 6;
        out[9] = self.service_timeout << 3;
        put(out, 10, self.private_data);
        0x11
    }
}
