//! SIDR REQ and SIDR REP.

use super::BODY;
use crate::field::{array, be16, be32, be64, put};

/// Service id resolution request (section 12.11.1): which queue pair takes datagrams for a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SidrReq {
    /// The sender's name for the request.
    pub request_id: u32,
    /// Partition key.
    pub pkey: u16,
    /// What is asked for; 0x0000000001110000 | port in rdma_cm's UDP port space (annex A11).
    pub service_id: u64,
    /// For the consumers; rdma_cm puts a [`RdmaCmHeader`](super::RdmaCmHeader) in front.
    pub private_data: [u8; 216],
}

impl Default for SidrReq {
    fn default() -> Self {
        Self::parse(&[0; BODY])
    }
}

impl SidrReq {
    pub(super) fn parse(b: &[u8; BODY]) -> Self {
        Self { request_id: be32(b, 0), pkey: be16(b, 4), service_id: be64(b, 8), private_data: array(b, 16) }
    }

    /// Writes the body into zeros and returns the attribute.
    pub(super) fn emit(&self, out: &mut [u8; BODY]) -> u16 {
        put(out, 0, self.request_id.to_be_bytes());
        put(out, 4, self.pkey.to_be_bytes());
        put(out, 8, self.service_id.to_be_bytes());
        put(out, 16, self.private_data);
        0x17
    }
}

/// Service id resolution response (section 12.11.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SidrRep {
    /// From the request.
    pub request_id: u32,
    /// 0 valid, 1 service id not supported, 2 rejected by the service, 3 no queue pair, 4 redirected, 5 version not
    /// supported.
    pub status: u8,
    /// Bytes of `info` in use.
    pub info_len: u8,
    /// Queue pair of the service, 24 bits.
    pub qpn: u32,
    /// From the request.
    pub service_id: u64,
    /// Key of that queue pair.
    pub qkey: u32,
    /// Additional information, by status.
    pub info: [u8; 72],
    /// For the consumers.
    pub private_data: [u8; 136],
}

impl Default for SidrRep {
    fn default() -> Self {
        Self::parse(&[0; BODY])
    }
}

impl SidrRep {
    pub(super) fn parse(b: &[u8; BODY]) -> Self {
        Self {
            request_id: be32(b, 0),
            status: b[4],
            info_len: b[5],
            qpn: be32(b, 8) >> 8,
            service_id: be64(b, 12),
            qkey: be32(b, 20),
            info: array(b, 24),
            private_data: array(b, 96),
        }
    }

    /// Writes the body into zeros and returns the attribute.
    pub(super) fn emit(&self, out: &mut [u8; BODY]) -> u16 {
        put(out, 0, self.request_id.to_be_bytes());
        out[4] = self.status;
        out[5] = self.info_len;
        put(out, 8, (self.qpn << 8).to_be_bytes());
        put(out, 12, self.service_id.to_be_bytes());
        put(out, 20, self.qkey.to_be_bytes());
        put(out, 24, self.info);
        put(out, 96, self.private_data);
        0x18
    }
}
