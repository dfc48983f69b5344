//! What the tests share: a peer that says any message by its name, and names for what is sent and reported.

use super::*;
use remora_wire::Psn;
use remora_wire::cm::{Drep, Dreq, Mra, Rej, Rep, Rtu};

mod capture;
mod network;
mod operations;
mod script;
mod services;

const MS: u64 = 1_000_000;
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 3));
const PORT: u16 = 7471;
const OUR_QPN: u32 = 0x11;
const THEIR_QPN: u32 = 0x22;
/// What the scripted peer calls the connection.
const THEIRS: u32 = 0x7777;

/// Answers within 100 ms, two retries, one second of time wait.
fn config() -> CmConfig {
    CmConfig {
        response_timeout: 100 * MS,
        max_retries: 2,
        timewait: 1000 * MS,
        max_delay: 5000 * MS,
        max_connections: 8,
        max_half_open: 4,
        ..CmConfig::default()
    }
}

fn params(qpn: u32) -> QpParams {
    QpParams {
        qpn,
        starting_psn: Psn::new(qpn * 1000),
        path_mtu: 3,
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry: 7,
        ack_timeout: 14,
        srq: false,
    }
}

fn emit(message: CmMessage) -> Bytes {
    let mut bytes = [0; 256];
    Mad { status: 0, transaction_id: 9, message }.emit(&mut bytes);
    bytes
}

/// What a peer hears of the transaction ids of this side, and answers with. Its own is 9.
#[derive(Default)]
struct Ear {
    /// By what this side calls the connection or request.
    asked: BTreeMap<u32, u64>,
    closing: BTreeMap<u32, u64>,
}

impl Ear {
    fn hear(&mut self, sent: &Bytes) {
        let Ok(Mad { transaction_id, message, .. }) = Mad::parse(sent) else { panic!("what is sent parses") };
        match message {
            CmMessage::Req(req) => drop(self.asked.insert(req.local_comm_id, transaction_id)),
            CmMessage::SidrReq(req) => drop(self.asked.insert(req.request_id, transaction_id)),
            CmMessage::Dreq(dreq) => drop(self.closing.insert(dreq.local_comm_id, transaction_id)),
            _ => {}
        }
    }

    /// The message as the peer says it, with the transaction id of what it answers.
    fn answer(&self, mut bytes: Bytes) -> Bytes {
        let Ok(Mad { message, .. }) = Mad::parse(&bytes) else { panic!("what the peer says parses") };
        let answered = match message {
            CmMessage::Rep(rep) => self.asked.get(&rep.remote_comm_id),
            CmMessage::Rej(rej) => self.asked.get(&rej.remote_comm_id),
            CmMessage::Rtu(rtu) => self.asked.get(&rtu.remote_comm_id),
            CmMessage::Mra(mra) => self.asked.get(&mra.remote_comm_id),
            CmMessage::SidrRep(rep) => self.asked.get(&rep.request_id),
            CmMessage::Drep(drep) => self.closing.get(&drep.remote_comm_id),
            _ => None,
        };
        message::set_transaction(&mut bytes, answered.copied().unwrap_or(9));
        bytes
    }
}

fn call_from(local: IpAddr, remote: IpAddr) -> ConnectCall<'static> {
    ConnectCall { local, remote, service_id: service_id(PORT), source_port: 40_000, private_data: b"hi" }
}

/// The peer's REQ, changed by `edit`.
fn req_with(edit: impl Fn(&mut Req)) -> Bytes {
    let bytes = message::req(&config(), (ConnId(THEIRS), 9), &call_from(PEER, HERE), &params(THEIR_QPN));
    let Ok(Mad { message: CmMessage::Req(mut req), .. }) = Mad::parse(&bytes) else { panic!("a REQ parses as a REQ") };
    edit(&mut req);
    emit(CmMessage::Req(req))
}

fn rep_with(ours: u32, edit: impl Fn(&mut Rep)) -> Bytes {
    let mut rep = Rep {
        local_comm_id: THEIRS,
        remote_comm_id: ours,
        local_qpn: THEIR_QPN,
        starting_psn: Psn::new(5),
        responder_resources: 4,
        initiator_depth: 4,
        rnr_retry_count: 7,
        ..Rep::default()
    };
    edit(&mut rep);
    emit(CmMessage::Rep(rep))
}

fn rej(local_comm_id: u32, remote_comm_id: u32, message_rejected: u8, reason: u16) -> Bytes {
    emit(CmMessage::Rej(Rej { local_comm_id, remote_comm_id, message_rejected, reason, ..Rej::default() }))
}

fn dreq(local_comm_id: u32, remote_comm_id: u32, remote_qpn: u32) -> Bytes {
    emit(CmMessage::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn, ..Dreq::default() }))
}

fn mra(remote_comm_id: u32, service_timeout: u8) -> Bytes {
    emit(CmMessage::Mra(Mra { local_comm_id: THEIRS, remote_comm_id, service_timeout, ..Mra::default() }))
}

/// The peer's message of a name; `ours` is what this side calls the connection.
fn peer_says(name: &str, ours: u32) -> Bytes {
    let (local_comm_id, remote_comm_id, private_data) = (THEIRS, ours, [0; 224]);
    match name {
        "REQ" => req_with(|_| ()),
        "REQ, new id" => req_with(|req| req.local_comm_id = 0x8888),
        "REQ, new qpn" => req_with(|req| req.local_qpn = 0x99),
        "REQ, new id and qpn" => req_with(|req| (req.local_comm_id, req.local_qpn) = (0x8888, 0x99)),
        "REP" => rep_with(ours, |_| ()),
        "REP, new id" => rep_with(ours, |rep| rep.local_comm_id = 0x8888),
        "REP, greedy" => rep_with(ours, |rep| rep.initiator_depth = 5),
        "REP, qpn 0" => rep_with(ours, |rep| rep.local_qpn = 0),
        "REP to nobody" => rep_with(ours ^ 1, |_| ()),
        "RTU" => emit(CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, private_data })),
        "DREQ" => dreq(THEIRS, ours, OUR_QPN),
        "DREQ, wrong id" => dreq(0x8888, ours, OUR_QPN),
        "DREQ, wrong qpn" => dreq(THEIRS, ours, 0x99),
        "DREQ to nobody" => dreq(THEIRS, ours ^ 1, OUR_QPN),
        "DREP" => emit(CmMessage::Drep(Drep { local_comm_id, remote_comm_id, private_data })),
        "MRA 1 s" => mra(ours, 18),
        "MRA 2 h" => mra(ours, 31),
        "REJ 28" => rej(THEIRS, ours, 0, reason::CONSUMER),
        "REJ 8, no id" => rej(0, ours, 0, reason::INVALID_SERVICE_ID),
        "REJ 4 of REQ, no id" => rej(THEIRS, 0, 0, reason::TIMEOUT),
        "REJ 4" => rej(THEIRS, ours, 2, reason::TIMEOUT),
        "SIDR REQ" => message::sidr_req((ConnId(ours ^ 5), 9), &call_from(PEER, HERE)),
        "SIDR REP" => message::sidr_rep(9, (ours, service_id(PORT)), (0, 0x22, 0x33), b""),
        "SIDR REP, no service" => message::sidr_rep(9, (0, 0), (1, 0, 0), &ours.to_be_bytes()),
        "REJ 6 of REP" => rej(THEIRS, ours, 1, reason::INVALID_COMM_ID),
        _ => panic!("no message called {name}"),
    }
}

fn name_of(bytes: &[u8]) -> String {
    match Mad::parse(bytes).expect("what is sent parses").message {
        CmMessage::Req(_) => "REQ".into(),
        CmMessage::Mra(_) => "MRA".into(),
        CmMessage::Rej(rej) => format!("REJ {}", rej.reason),
        CmMessage::Rep(_) => "REP".into(),
        CmMessage::Rtu(_) => "RTU".into(),
        CmMessage::Dreq(_) => "DREQ".into(),
        CmMessage::Drep(_) => "DREP".into(),
        CmMessage::SidrReq(_) => "SIDR REQ".into(),
        CmMessage::SidrRep(rep) => format!("SIDR REP {}", rep.status),
        CmMessage::Lap(_) => "LAP".into(),
        CmMessage::Apr(_) => "APR".into(),
    }
}

/// The connection and the kind of an event.
fn kind_of(event: &CmEvent) -> (ConnId, &'static str) {
    match event {
        CmEvent::ConnectRequest { conn, .. } => (*conn, "ConnectRequest"),
        CmEvent::Established { conn, .. } => (*conn, "Established"),
        CmEvent::Rejected { conn, .. } => (*conn, "Rejected"),
        CmEvent::Unreachable { conn } => (*conn, "Unreachable"),
        CmEvent::Disconnected { conn } => (*conn, "Disconnected"),
        CmEvent::Response { conn, .. } => (*conn, "Response"),
        CmEvent::TimewaitExit { conn } => (*conn, "TimewaitExit"),
        CmEvent::ServiceRequest { conn, .. } => (*conn, "ServiceRequest"),
        CmEvent::ServiceResolved { conn, .. } => (*conn, "ServiceResolved"),
    }
}

fn name_of_event(event: &CmEvent) -> String {
    match event {
        CmEvent::Rejected { reason, .. } => format!("Rejected {reason}"),
        other => kind_of(other).1.into(),
    }
}
