//! LAP and APR.

use super::BODY;
use crate::field::{array, be32, put};

/// Load alternate path (section 12.8.1), as far as one that loads none must read it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lap {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
}

impl Lap {
    pub(super) fn parse(b: &[u8; BODY]) -> Self {
        Self { local_comm_id: be32(b, 0), remote_comm_id: be32(b, 4) }
    }

    /// Writes the body into zeros and returns the attribute.
    pub(super) fn emit(&self, out: &mut [u8; BODY]) -> u16 {
        put(out, 0, self.local_comm_id.to_be_bytes());
        put(out, 4, self.remote_comm_id.to_be_bytes());
        0x19
    }
}

/// Alternate path response (section 12.8.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Apr {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// Bytes of `info` in use.
    pub info_len: u8,
    /// 0 loaded, 1 invalid communication id, 2 alternate paths not supported, and others.
    pub status: u8,
    /// Additional information, by status.
    pub info: [u8; 72],
    /// For the consumers.
    pub private_data: [u8; 148],
}

impl Default for Apr {
    fn default() -> Self {
        Self::parse(&[0; BODY])
    }
}

impl Apr {
    pub(super) fn parse(b: &[u8; BODY]) -> Self {
        Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            info_len: b[8],
            status: b[9],
            info: array(b, 12),
            private_data: array(b, 84),
        }
    }

    /// Writes the body into zeros and returns the attribute.
    pub(super) fn emit(&self, out: &mut [u8; BODY]) -> u16 {
        put(out, 0, self.local_comm_id.to_be_bytes());
        put(out, 4, self.remote_comm_id.to_be_bytes());
        out[8] = self.info_len;
        out[9] = self.status;
        put(out, 12, self.info);
        put(out, 84, self.private_data);
        0x1a
    }
}
