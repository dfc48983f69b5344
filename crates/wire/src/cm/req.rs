//! REQ.

use super::BODY;
use crate::Psn;
use crate::field::{array, be16, be32, be64, put};

/// Request for communication (section 12.6.5): the active side's queue pair and the path to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Req {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// What is asked for; 0x0000000001060000 | port in rdma_cm's TCP port space (annex A11).
    pub service_id: u64,
    /// Names the sender's channel adapter.
    pub ca_guid: u64,
    /// Key of the sender's queue pair; datagrams only.
    pub local_qkey: u32,
    /// Queue pair of the sender, 24 bits.
    pub local_qpn: u32,
    /// READs and atomics that the sender can answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender will ask for at a time.
    pub initiator_depth: u8,
    /// Time that the receiver has to answer, 5 bits: 4.096 us x 2^n.
    pub remote_cm_timeout: u8,
    /// Service, 2 bits: 0 RC, 1 UC, 2 RD, 3 by `extended_transport`.
    pub transport_service: u8,
    /// End-to-end flow control by credits.
    pub flow_control: bool,
    /// PSN of the sender's first packet.
    pub starting_psn: Psn,
    /// Time that the sender needs to answer a REP, 5 bits: 4.096 us x 2^n.
    pub local_cm_timeout: u8,
    /// Retries that the receiver should make on timeouts and sequence errors, 3 bits.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU, 4 bits: 1 to 5 for 256 to 4096 bytes.
    pub path_mtu: u8,
    /// The sender has a reliable datagram channel.
    pub rdc_exists: bool,
    /// Retries that the receiver should make on RNR NAKs, 3 bits; 7 is without end.
    pub rnr_retry_count: u8,
    /// How often the sender repeats messages of connection management, 4 bits.
    pub max_cm_retries: u8,
    /// The sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// Extended transport, 3 bits; 1 is XRC.
    pub extended_transport: u8,
    /// The sender's local identifier; 0xffff over Ethernet.
    pub local_lid: u16,
    /// The receiver's local identifier; 0xffff over Ethernet.
    pub remote_lid: u16,
    /// The sender's global identifier: IPv6, or IPv4 mapped into it.
    pub local_gid: [u8; 16],
    /// The receiver's global identifier.
    pub remote_gid: [u8; 16],
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Packet rate, 6 bits.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Both ends are on one subnet.
    pub subnet_local: bool,
    /// Time to wait for an acknowledgement on this path, 5 bits: 4.096 us x 2^n.
    pub local_ack_timeout: u8,
    /// The alternate path, in the same form as the 44 bytes from `local_lid` on; zero if there is none.
    pub alternate_path: [u8; 44],
    /// For the consumers; rdma_cm puts a [`RdmaCmHeader`](super::RdmaCmHeader) in front.
    pub private_data: [u8; 92],
}

impl Default for Req {
    fn default() -> Self {
        Self::parse(&[0; BODY])
    }
}

impl Req {
    pub(super) fn parse(b: &[u8; BODY]) -> Self {
        Self {
            local_comm_id: be32(b, 0),
            service_id: be64(b, 8),
            ca_guid: be64(b, 16),
            local_qkey: be32(b, 28),
            local_qpn: be32(b, 32) >> 8,
            responder_resources: b[35],
            initiator_depth: b[39],
            remote_cm_timeout: b[43] >> 3,
            transport_service: b[43] >> 1 & 3,
            flow_control: b[43] & 1 != 0,
            starting_psn: Psn::new(be32(b, 44) >> 8),
            local_cm_timeout: b[47] >> 3,
            retry_count: b[47] & 7,
            pkey: be16(b, 48),
            path_mtu: b[50] >> 4,
            rdc_exists: b[50] & 8 != 0,
            rnr_retry_count: b[50] & 7,
            max_cm_retries: b[51] >> 4,
            srq: b[51] & 8 != 0,
            extended_transport: b[51] & 7,
            local_lid: be16(b, 52),
            remote_lid: be16(b, 54),
            local_gid: array(b, 56),
            remote_gid: array(b, 72),
            flow_label: be32(b, 88) >> 12,
            packet_rate: b[91] & 0x3f,
            traffic_class: b[92],
            hop_limit: b[93],
            service_level: b[94] >> 4,
            subnet_local: b[94] & 8 != 0,
            local_ack_timeout: b[95] >> 3,
            alternate_path: array(b, 96),
            private_data: array(b, 140),
        }
    }

    /// Writes the body into zeros and returns the attribute.
    pub(super) fn emit(&self, out: &mut [u8; BODY]) -> u16 {
        put(out, 0, self.local_comm_id.to_be_bytes());
        put(out, 8, self.service_id.to_be_bytes());
        put(out, 16, self.ca_guid.to_be_bytes());
        put(out, 28, self.local_qkey.to_be_bytes());
        put(out, 32, (self.local_qpn << 8 | u32::from(self.responder_resources)).to_be_bytes());
        out[39] = self.initiator_depth;
        out[43] = self.remote_cm_timeout << 3 | (self.transport_service & 3) << 1 | u8::from(self.flow_control);
        put(out, 44, (self.starting_psn.get() << 8).to_be_bytes());
        out[47] = self.local_cm_timeout << 3 | self.retry_count & 7;
        put(out, 48, self.pkey.to_be_bytes());
        out[50] = self.path_mtu << 4 | u8::from(self.rdc_exists) << 3 | self.rnr_retry_count & 7;
        out[51] = self.max_cm_retries << 4 | u8::from(self.srq) << 3 | self.extended_transport & 7;
        put(out, 52, self.local_lid.to_be_bytes());
        put(out, 54, self.remote_lid.to_be_bytes());
        put(out, 56, self.local_gid);
        put(out, 72, self.remote_gid);
        put(out, 88, (self.flow_label << 12 | u32::from(self.packet_rate & 0x3f)).to_be_bytes());
        out[92] = self.traffic_class;
        out[93] = self.hop_limit;
        out[94] = self.service_level << 4 | u8::from(self.subnet_local) << 3;
        out[95] = self.local_ack_timeout << 3;
        put(out, 96, self.alternate_path);
        put(out, 140, self.private_data);
        0x10
    }
}
