//! The messages of the connection manager, built and read.

use std::net::{IpAddr, Ipv6Addr};

use remora_wire::cm::{Apr, CmMessage, Drep, Dreq, Lap, Mad, Mra, RdmaCmHeader, Rej, Rep, Req, Rtu, SidrRep, SidrReq};

use super::table::Conn;
use super::{CmConfig, ConnId, ConnectCall, QpParams, REQ_PRIVATE_DATA, SIDR_REQ_PRIVATE_DATA, reason};

/// One MAD.
pub(super) type Bytes = [u8; 256];

const HEADER: usize = RdmaCmHeader::LEN;
const _: () = assert!(HEADER + REQ_PRIVATE_DATA == 92, "the two fill a REQ's private data");
const _: () = assert!(HEADER + SIDR_REQ_PRIVATE_DATA == 216, "the two fill a SIDR REQ's private data");

/// Which message a REJ answers.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Rejected {
    Req = 0,
    Rep = 1,
    Other = 2,
}

/// The REQ of an active connection. The constants are those of `rdma_cm` over RoCE v2.
pub(super) fn req(config: &CmConfig, (id, tid): (ConnId, u64), call: &ConnectCall<'_>, params: &QpParams) -> Bytes {
    let req = Req {
        local_comm_id: id.0,
        service_id: call.service_id,
        ca_guid: config.ca_guid,
        local_qpn: params.qpn,
        responder_resources: params.responder_resources,
        initiator_depth: params.initiator_depth,
        remote_cm_timeout: timeout_code(config.response_timeout),
        starting_psn: params.starting_psn,
        local_cm_timeout: timeout_code(config.response_timeout),
        retry_count: params.retry_count,
        pkey: 0xffff,
        path_mtu: params.path_mtu,
        rnr_retry_count: params.rnr_retry,
        max_cm_retries: config.max_retries,
        srq: params.srq,
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: gid(call.local),
        remote_gid: gid(call.remote),
        hop_limit: 64,
        local_ack_timeout: params.ack_timeout,
        private_data: addressed(call),
        ..Req::default()
    };
    encode(tid, CmMessage::Req(req))
}

/// The REP of a passive connection; its acknowledgement delay of n = 15 is `rdma_cm`'s.
pub(super) fn rep(config: &CmConfig, id: ConnId, conn: &Conn, params: &QpParams, user_data: &[u8]) -> Bytes {
    let rep = Rep {
        local_comm_id: id.0,
        remote_comm_id: conn.remote_id.unwrap_or(0),
        local_qpn: params.qpn,
        starting_psn: params.starting_psn,
        responder_resources: params.responder_resources,
        initiator_depth: params.initiator_depth,
        target_ack_delay: 15,
        rnr_retry_count: params.rnr_retry,
        srq: params.srq,
        ca_guid: config.ca_guid,
        private_data: padded(user_data),
        ..Rep::default()
    };
    encode(conn.transaction_id, CmMessage::Rep(rep))
}

pub(super) fn rtu(id: ConnId, conn: &Conn) -> Bytes {
    let rtu = Rtu { local_comm_id: id.0, remote_comm_id: conn.remote_id.unwrap_or(0), ..Rtu::default() };
    encode(conn.transaction_id, CmMessage::Rtu(rtu))
}

pub(super) fn mra(id: ConnId, conn: &Conn, delay: u64) -> Bytes {
    let mra = Mra {
        local_comm_id: id.0,
        remote_comm_id: conn.remote_id.unwrap_or(0),
        message_mraed: 0,
        service_timeout: timeout_code(delay),
        ..Mra::default()
    };
    encode(conn.transaction_id, CmMessage::Mra(mra))
}

/// The REJ of a known connection.
pub(super) fn rej(id: ConnId, conn: &Conn, rejected: Rejected, reason: u16, user_data: &[u8]) -> Bytes {
    let rej = Rej { private_data: padded(user_data), ..plain_rej(id.0, conn.remote_id.unwrap_or(0), rejected, reason) };
    encode(conn.transaction_id, CmMessage::Rej(rej))
}

/// The REJ of a side that gave up waiting. It carries the CA GUID, by which a peer whose id is not known here finds its
/// connection (12.6.7.2).
pub(super) fn rej_timeout(config: &CmConfig, id: ConnId, conn: &Conn, rejected: Rejected) -> Bytes {
    let mut rej = plain_rej(id.0, conn.remote_id.unwrap_or(0), rejected, reason::TIMEOUT);
    rej.info_len = 8;
    rej.ari[..8].copy_from_slice(&config.ca_guid.to_be_bytes());
    encode(conn.transaction_id, CmMessage::Rej(rej))
}

/// The REJ of a caller who has to show that he hears it: what he is to call again with.
pub(super) fn rej_with_cookie(transaction_id: u64, theirs: u32, cookie: u64) -> Bytes {
    let mut rej = plain_rej(0, theirs, Rejected::Req, reason::NO_RESOURCES);
    rej.info_len = 8;
    rej.ari[..8].copy_from_slice(&cookie.to_be_bytes());
    encode(transaction_id, CmMessage::Rej(rej))
}

/// The cookie in a REJ, if there is one.
pub(super) fn cookie_of(rej: &Rej) -> Option<u64> {
    let asks = rej.reason == reason::NO_RESOURCES && rej.message_rejected == Rejected::Req as u8 && rej.info_len == 8;
    rej.ari.first_chunk().filter(|_| asks).map(|bytes| u64::from_be_bytes(*bytes))
}

/// A message with another transaction id.
pub(super) fn set_transaction(bytes: &mut Bytes, transaction_id: u64) {
    bytes[8..16].copy_from_slice(&transaction_id.to_be_bytes());
}

/// The REJ that answers a message by its own communication ids, whether or not there is a connection.
pub(super) fn answer_rej(transaction_id: u64, ours: u32, theirs: u32, rejected: Rejected, reason: u16) -> Bytes {
    encode(transaction_id, CmMessage::Rej(plain_rej(ours, theirs, rejected, reason)))
}

fn plain_rej(ours: u32, theirs: u32, rejected: Rejected, reason: u16) -> Rej {
    Rej { local_comm_id: ours, remote_comm_id: theirs, message_rejected: rejected as u8, reason, ..Rej::default() }
}

pub(super) fn dreq(id: ConnId, conn: &Conn) -> Bytes {
    dreq_of(conn.closing_id, id, conn, conn.theirs.qpn)
}

/// The question whether the peer knows a connection: a DREQ for a queue pair that no connection has. A peer that knows
/// the two communication ids drops it, as it names another queue pair (12.10.4); one that does not answers with a DREP.
pub(super) fn challenge(transaction_id: u64, id: ConnId, conn: &Conn) -> Bytes {
    dreq_of(transaction_id, id, conn, 0)
}

fn dreq_of(transaction_id: u64, id: ConnId, conn: &Conn, remote_qpn: u32) -> Bytes {
    let remote_comm_id = conn.remote_id.unwrap_or(0);
    let dreq = Dreq { local_comm_id: id.0, remote_comm_id, remote_qpn, ..Dreq::default() };
    encode(transaction_id, CmMessage::Dreq(dreq))
}

/// The DREP to a DREQ; the ids are what this side and the peer call the connection.
pub(super) fn drep(transaction_id: u64, local_comm_id: u32, remote_comm_id: u32) -> Bytes {
    let drep = Drep { local_comm_id, remote_comm_id, ..Drep::default() };
    encode(transaction_id, CmMessage::Drep(drep))
}

/// The SIDR REQ of a call.
pub(super) fn sidr_req((id, tid): (ConnId, u64), call: &ConnectCall<'_>) -> Bytes {
    let (request_id, service_id) = (id.0, call.service_id);
    let req = SidrReq { request_id, pkey: 0xffff, service_id, private_data: addressed(call) };
    encode(tid, CmMessage::SidrReq(req))
}

/// A SIDR REQ for a service that nobody has: any connection manager answers it, with the same two numbers.
pub(super) fn ping((request_id, transaction_id): (u32, u64)) -> Bytes {
    encode(transaction_id, CmMessage::SidrReq(SidrReq { request_id, pkey: 0xffff, ..SidrReq::default() }))
}

/// The answer to a SIDR REQ of this id and service.
pub(super) fn sidr_rep(
    transaction_id: u64,
    (request_id, service_id): (u32, u64),
    (status, qpn, qkey): (u8, u32, u32),
    user_data: &[u8],
) -> Bytes {
    let private_data = padded(user_data);
    let rep = SidrRep { request_id, status, qpn, service_id, qkey, private_data, ..SidrRep::default() };
    encode(transaction_id, CmMessage::SidrRep(rep))
}

/// The answer to a LAP: there are no alternate paths here.
pub(super) fn apr(transaction_id: u64, lap: &Lap) -> Bytes {
    const NOT_SUPPORTED: u8 = 2;
    let (local_comm_id, remote_comm_id) = (lap.remote_comm_id, lap.local_comm_id);
    encode(
        transaction_id,
        CmMessage::Apr(Apr { local_comm_id, remote_comm_id, status: NOT_SUPPORTED, ..Apr::default() }),
    )
}

fn encode(transaction_id: u64, message: CmMessage) -> Bytes {
    let mut bytes = [0; 256];
    Mad { status: 0, transaction_id, message }.emit(&mut bytes);
    bytes
}

pub(super) fn params_of_req(req: &Req) -> QpParams {
    QpParams {
        qpn: req.local_qpn,
        starting_psn: req.starting_psn,
        path_mtu: req.path_mtu,
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        retry_count: req.retry_count,
        rnr_retry: req.rnr_retry_count,
        ack_timeout: req.local_ack_timeout,
        srq: req.srq,
    }
}

/// What a REP does not carry is as in the REQ, `ours`.
pub(super) fn params_of_rep(rep: &Rep, ours: &QpParams) -> QpParams {
    QpParams {
        qpn: rep.local_qpn,
        starting_psn: rep.starting_psn,
        responder_resources: rep.responder_resources,
        initiator_depth: rep.initiator_depth,
        rnr_retry: rep.rnr_retry_count,
        srq: rep.srq,
        ..*ours
    }
}

/// Private data: the RDMA CM header, then the user's, zero-padded.
fn addressed<const N: usize>(call: &ConnectCall<'_>) -> [u8; N] {
    let mut private_data = [0; N];
    let header = RdmaCmHeader { src_port: call.source_port, src: call.local, dst: call.remote };
    header.emit(&mut private_data);
    private_data[HEADER..][..call.private_data.len()].copy_from_slice(call.private_data);
    private_data
}

/// The port of the sender and the user's part of private data, if its RDMA CM header names the addresses that the
/// message travelled between.
pub(super) fn read_addressed(private_data: &[u8], from: IpAddr, to: IpAddr) -> Option<(u16, Vec<u8>)> {
    let header = RdmaCmHeader::parse(private_data).ok()?;
    ((header.src, header.dst) == (from, to)).then(|| (header.src_port, private_data[HEADER..].to_vec()))
}

/// The GID of an address: IPv6, or IPv4-mapped IPv6 (annex A17).
pub(super) fn gid(address: IpAddr) -> [u8; 16] {
    let v6: Ipv6Addr = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    v6.octets()
}

/// The smallest n, at most 31, with 4.096 us x 2^n not under `ns`.
pub(super) fn timeout_code(ns: u64) -> u8 {
    (0..31).find(|n| timeout_ns(*n) >= ns).unwrap_or(31)
}

/// 4.096 us x 2^n in nanoseconds, for a five-bit n.
pub(super) fn timeout_ns(code: u8) -> u64 {
    4096 << (code & 31)
}

fn padded<const N: usize>(data: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    padded[..data.len()].copy_from_slice(data);
    padded
}
