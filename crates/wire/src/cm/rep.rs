//! REP.

use super::BODY;
use crate::Psn;
use crate::field::{array, be32, be64, put};

/// Reply to a request for communication (section 12.6.8): the passive side agrees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rep {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// Key of the sender's queue pair; datagrams only.
    pub local_qkey: u32,
    /// Queue pair of the sender, 24 bits.
    pub local_qpn: u32,
    /// PSN of the sender's first packet.
    pub starting_psn: Psn,
    /// READs and atomics that the sender can answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender will ask for at a time.
    pub initiator_depth: u8,
    /// Longest time that the sender takes to acknowledge, 5 bits: 4.096 us x 2^n.
    pub target_ack_delay: u8,
    /// Whether the alternate path was accepted, 2 bits: 0 yes, 1 not supported, 2 rejected.
    pub failover_accepted: u8,
    /// End-to-end flow control by credits.
    pub flow_control: bool,
    /// Retries that the receiver should make on RNR NAKs, 3 bits; 7 is without end.
    pub rnr_retry_count: u8,
    /// The sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// Names the sender's channel adapter.
    pub ca_guid: u64,
    /// For the consumers.
    pub private_data: [u8; 196],
}

impl Default for Rep {
    fn default() -> Self {
        Self::parse(&[0; BODY])
    }
}

impl Rep {
    pub(super) fn parse(b: &[u8; BODY]) -> Self {
        Self {
            local_comm_id: be32(b, 0),
            remote_comm_id: be32(b, 4),
            local_qkey: be32(b, 8),
            local_qpn: be32(b, 12) >> 8,
            starting_psn: Psn::new(be32(b, 20) >> 8),
            responder_resources: b[24],
            initiator_depth: b[25],
            target_ack_delay: b[26] >> 3,
            failover_accepted: b[26] >> 1 & 3,
            flow_control: b[26] & 1 != 0,
            rnr_retry_count: b[27] >> 5,
            srq: b[27] & 0x10 != 0,
            ca_guid: be64(b, 28),
            private_data: array(b, 36),
        }
    }

    /// Writes the body into zeros and returns the attribute.
    pub(super) fn emit(&self, out: &mut [u8; BODY]) -> u16 {
        put(out, 0, self.local_comm_id.to_be_bytes());
        put(out, 4, self.remote_comm_id.to_be_bytes());
        put(out, 8, self.local_qkey.to_be_bytes());
        put(out, 12, (self.local_qpn << 8).to_be_bytes());
        put(out, 20, (self.starting_psn.get() << 8).to_be_bytes());
        out[24] = self.responder_resources;
        out[25] = self.initiator_depth;
        out[26] = self.target_ack_delay << 3 | (self.failover_accepted & 3) << 1 | u8::from(self.flow_control);
        out[27] = self.rnr_retry_count << 5 | u8::from(self.srq) << 4;
        put(out, 28, self.ca_guid.to_be_bytes());
        put(out, 36, self.private_data);
        0x13
    }
}
