//! REJ.

use super::BODY;
use crate::field::{array, be16, be32, put};

/// Reject (section 12.6.7): no connection, or not this way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rej {
    /// The sender's name for the connection; 0 if it has none.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// Which message is rejected, 2 bits: 0 REQ, 1 REP, 2 none (a timeout).
    pub message_rejected: u8,
    /// Bytes of `ari` in use, 7 bits.
    pub info_len: u8,
    /// Why (section 12.6.7.2): 1 no queue pair, 3 no resources, 4 timeout, 8 invalid service id, 10 stale connection,
    /// 28 rejected by the consumer, and others.
    pub reason: u16,
    /// Additional reject information, by reason: what would have been accepted.
    pub ari: [u8; 72],
    /// For the consumers.
    pub private_data: [u8; 148],
}

impl Default for Rej {
    fn default() -> Self {
        Self {
            local_comm_id: 0,
            remote_comm_id: 0,
            message_rejected: 0,
            info_len: 0,
            reason: 0,
            ari: [0; 72],
            private_data: [0; 148],
        }
    }
}

impl Rej {
    pub(super) fn parse(b: &[u8; BODY]) -> Self {
        Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            message_rejected: b[8] >> 6,
            info_len: b[9] >> 1,
            reason: be16(b, 10),
            ari: array(b, 12),
            private_data: array(b, 84),
        }
    }

    /// Writes the body into zeros and returns the attribute.
    pub(super) fn emit(&self, out: &mut [u8; BODY]) -> u16 {
        put(out, 0, self.local_comm_id.to_be_bytes());
        put(out, 4, self.remote_comm_id.to_be_bytes());
        out[8] = self.message_rejected << 6;
        out[9] = self.info_len << 1;
        put(out, 10, self.reason.to_be_bytes());
        put(out, 12, self.ari);
        put(out, 84, self.private_data);
        0x12
    }
}
