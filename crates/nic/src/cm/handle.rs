//! What each MAD from a peer does.

use super::door::Entry;
use super::message::{self, Rejected};
use super::*;

use remora_wire::cm::{Drep, Dreq, Mra, Rej, Rep, Rtu};

/// What the pair of communication ids in a message stands for.
enum Named {
    /// A connection with the peer that the message comes from.
    Known(ConnId),
    /// No connection.
    Unknown,
    /// A connection with somebody else.
    Forged,
}

/// The port of a caller and its private data.
type Called = (u16, Vec<u8>);

/// Between which addresses a MAD travelled, and its transaction.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub now: u64,
    pub from: IpAddr,
    pub to: IpAddr,
    pub link: u8,
    pub tid: u64,
}

impl Origin {
    /// Where an answer goes.
    pub fn back(&self) -> CmTransmit {
        CmTransmit { to: self.from, from: self.to, link: self.link }
    }
}

impl Cm {
    /// Take a MAD that arrived on QP1 by `link`, whatever its bytes; `from` and `to` are those of its IP header.
    pub fn handle_mad(&mut self, now: u64, link: u8, from: IpAddr, to: IpAddr, mad: &[u8]) {
        let Ok(mad) = Mad::parse(mad) else {
            self.counters.malformed += 1;
            return;
        };
        let origin = Origin { now, from: from.to_canonical(), to: to.to_canonical(), link, tid: mad.transaction_id };
        self.grace.now = self.grace.now.max(now);
        match &mad.message {
            CmMessage::Req(req) => self.on_req(origin, req),
            CmMessage::Mra(mra) => self.on_mra(origin, mra),
            CmMessage::Rej(rej) => self.on_rej(origin, rej),
            CmMessage::Rep(rep) => self.on_rep(origin, rep),
            CmMessage::Rtu(rtu) => self.on_rtu(origin, rtu),
            CmMessage::Dreq(dreq) => self.on_dreq(origin, dreq),
            CmMessage::Drep(drep) => self.on_drep(origin, drep),
            CmMessage::SidrReq(req) => self.on_sidr_req(origin, req),
            CmMessage::SidrRep(rep) => self.on_sidr_rep(origin, rep),
            CmMessage::Lap(lap) => self.reply(origin, message::apr(origin.tid, lap)),
            CmMessage::Apr(_) => self.counters.unexpected += 1,
        }
    }

    pub(super) fn on_req(&mut self, origin: Origin, req: &Req) {
        let theirs = message::params_of_req(req);
        let known = self.table.by_remote_id(origin.from, req.local_comm_id);
        if let Some(id) = known
            && self.is_duplicate(origin.now, id, &theirs)
        {
            return self.on_duplicate_req(id);
        }
        if let Some(id) = known.or(self.table.by_remote_qpn(origin.from, theirs.qpn)) {
            // The peer restarted, or somebody says so. It may try again when the old connection has gone.
            self.challenge(origin.now, id);
            return self.refuse(origin, req, reason::STALE_CONNECTION);
        }
        match self.screen(origin, req, &theirs) {
            Ok((listener, called)) => match self.entry(origin, req) {
                Entry::Open { stranger } => {
                    let retries = self.config.max_retries.min(req.max_cm_retries);
                    let mut conn = Conn::passive(origin.back(), theirs, origin.tid, retries);
                    conn.stranger = stranger;
                    self.admit(origin, req, conn, listener, called);
                }
                Entry::Knock(cookie) => {
                    self.counters.refused += 1;
                    self.reply(origin, message::rej_with_cookie(origin.tid, req.local_comm_id, cookie));
                }
                Entry::Wait => self.counters.refused += 1,
            },
            Err(reason::INVALID_SERVICE_ID) if self.hold(origin, req) => {}
            Err(reason) => self.refuse(origin, req, reason),
        }
    }

    /// Asks a peer whether it knows an established connection, which ends if the peer says that it does not: see
    /// [`Self::on_drep`]. Not more often than a message is repeated.
    pub(super) fn challenge(&mut self, now: u64, id: ConnId) {
        let tid = self.rng.next_u64();
        let Some(conn) = self.table.get_mut(id).filter(|conn| conn.state == State::Established) else { return };
        let lately = |(_, at): (u64, u64)| now.saturating_sub(at) < self.config.response_timeout;
        if conn.challenge.is_some_and(lately) {
            return;
        }
        conn.challenge = Some((tid, now));
        let (route, bytes) = (conn.route, message::challenge(tid, id, conn));
        self.counters.challenges += 1;
        self.push_reply(route, bytes);
    }

    /// Whether a REQ with a known communication id is the one that made the connection, sent or delivered again.
    ///
    /// Its fields cannot tell it from that of a peer which restarted and draws the same numbers; its age can: no packet
    /// outlives the time wait.
    fn is_duplicate(&self, now: u64, id: ConnId, theirs: &QpParams) -> bool {
        self.table.get(id).is_some_and(|conn| match conn.state {
            State::ReqReceived | State::RepSent => conn.theirs == *theirs,
            State::Established => {
                conn.theirs == *theirs && now.saturating_sub(conn.established_at) <= self.config.timewait
            }
            State::Timewait => conn.rejected,
            State::ReqSent | State::RepReceived | State::DreqSent => false,
        })
    }

    fn on_duplicate_req(&mut self, id: ConnId) {
        // An established passive connection last said REP, which its peer has had.
        if self.table.get(id).is_some_and(|conn| conn.state != State::Established) {
            self.resend(id);
        }
    }

    /// The listener of a REQ and what it says of its user, or the reason to refuse it.
    fn screen(&self, origin: Origin, req: &Req, theirs: &QpParams) -> Result<(ListenerId, Called), u16> {
        let listener = *self.listeners.get(&req.service_id).ok_or(reason::INVALID_SERVICE_ID)?;
        if req.transport_service != 0 {
            return Err(reason::INVALID_TRANSPORT);
        }
        if message::gid(origin.from) != req.local_gid || message::gid(origin.to) != req.remote_gid {
            return Err(reason::INVALID_GID);
        }
        let called = message::read_addressed(&req.private_data, origin.from, origin.to).ok_or(reason::UNSUPPORTED)?;
        if !(1..=self.config.max_path_mtu).contains(&theirs.path_mtu) {
            return Err(reason::INVALID_PATH_MTU);
        }
        if check_params(theirs).is_err() || req.local_comm_id == 0 {
            return Err(reason::UNSUPPORTED);
        }
        let full = self.table.len() >= self.config.max_connections
            // Each connection gives three events at most; more wait only if nobody polls.
            || self.events.len() >= 3 * self.config.max_connections;
        if full { Err(reason::NO_RESOURCES) } else { Ok((listener, called)) }
    }

    fn admit(
        &mut self,
        origin: Origin,
        req: &Req,
        conn: Conn,
        listener: ListenerId,
        (source_port, private_data): Called,
    ) {
        let (id, theirs) = (self.fresh_id(), conn.theirs);
        self.table.insert(id, conn);
        self.table.set_remote(id, req.local_comm_id, theirs.qpn);
        self.table.arm(id, Some(origin.now.saturating_add(self.patience())));
        self.events.push_back(CmEvent::ConnectRequest {
            conn: id,
            listener,
            remote: theirs,
            local_ip: origin.to,
            remote_ip: origin.from,
            link: origin.link,
            source_port,
            private_data,
        });
        if self.config.request_delay > 0 {
            let _ = self.delay(origin.now, id, self.config.request_delay);
        }
    }

    pub(super) fn refuse(&mut self, origin: Origin, req: &Req, reason: u16) {
        self.counters.refused += 1;
        self.reply(origin, message::answer_rej(origin.tid, 0, req.local_comm_id, Rejected::Req, reason));
    }

    fn on_rep(&mut self, origin: Origin, rep: &Rep) {
        let id = match self.setting_up(origin, rep.remote_comm_id, rep.local_comm_id) {
            Named::Known(id) => id,
            Named::Unknown => {
                // Without this the peer would repeat its REP until it gives up.
                let (ours, theirs) = (rep.remote_comm_id, rep.local_comm_id);
                let rej = message::answer_rej(origin.tid, ours, theirs, Rejected::Rep, reason::INVALID_COMM_ID);
                return self.reply(origin, rej);
            }
            Named::Forged => return self.counters.unexpected += 1,
        };
        let Some(conn) = self.table.get(id) else {
            return;
        };
        match conn.state {
            State::ReqSent => self.on_first_rep(origin, id, rep),
            // Only the active side is sent a REP: it last said RTU, or REJ.
            State::Established => self.resend(id),
            State::Timewait if conn.rejected => self.resend(id),
            State::RepReceived | State::Timewait | State::DreqSent => {}
            State::ReqReceived | State::RepSent => self.counters.unexpected += 1,
        }
    }

    fn on_first_rep(&mut self, origin: Origin, id: ConnId, rep: &Rep) {
        let Some(conn) = self.table.get(id) else {
            return;
        };
        let theirs = message::params_of_rep(rep, &conn.ours);
        let stale = self
            .table
            .by_remote_id(origin.from, rep.local_comm_id)
            .or(self.table.by_remote_qpn(origin.from, theirs.qpn));
        let refusal = if let Some(old) = stale {
            self.challenge(origin.now, old);
            Some(reason::STALE_CONNECTION)
        } else if check_params(&theirs).is_err() || rep.local_comm_id == 0 {
            Some(reason::UNSUPPORTED)
        } else if theirs.initiator_depth > conn.ours.responder_resources {
            Some(reason::RESPONDER_RESOURCES)
        } else {
            None
        };
        if let Some(reason) = refusal {
            let rej = message::answer_rej(origin.tid, id.0, rep.local_comm_id, Rejected::Rep, reason);
            self.send(id, rej);
            self.enter_timewait(origin.now, id, true);
            self.events.push_back(CmEvent::Rejected { conn: id, reason, private_data: Vec::new() });
            return;
        }
        self.table.set_remote(id, rep.local_comm_id, theirs.qpn);
        if let Some(conn) = self.table.get_mut(id) {
            conn.theirs = theirs;
            conn.transaction_id = origin.tid;
            if conn.hold {
                conn.state = State::RepReceived;
                let private_data = rep.private_data.to_vec();
                self.events.push_back(CmEvent::Response { conn: id, remote: theirs, private_data });
                return self.table.arm(id, Some(origin.now.saturating_add(self.patience())));
            }
            let rtu = message::rtu(id, conn);
            self.send(id, rtu);
        }
        self.set_established(origin.now, id, rep.private_data.to_vec());
    }

    fn on_rtu(&mut self, origin: Origin, rtu: &Rtu) {
        let Named::Known(id) = self.setting_up(origin, rtu.remote_comm_id, rtu.local_comm_id) else {
            return self.counters.unexpected += 1;
        };
        let Some(conn) = self.table.get(id) else {
            return;
        };
        match conn.state {
            State::RepSent => self.set_established(origin.now, id, rtu.private_data.to_vec()),
            // The peer holds established what was given up here, so the REJ was lost.
            State::Timewait if conn.rejected => self.resend(id),
            State::Established | State::DreqSent | State::Timewait => {}
            State::ReqSent | State::ReqReceived | State::RepReceived => self.counters.unexpected += 1,
        }
    }

    fn on_mra(&mut self, origin: Origin, mra: &Mra) {
        let Named::Known(id) = self.setting_up(origin, mra.remote_comm_id, mra.local_comm_id) else {
            return self.counters.unexpected += 1;
        };
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        match conn.state {
            // An MRA costs a retry, so that a peer cannot hold a connection for ever.
            State::ReqSent | State::RepSent if conn.retries > 0 => {
                conn.retries -= 1;
                let delay = message::timeout_ns(mra.service_timeout).min(self.config.max_delay);
                let deadline = origin.now.saturating_add(delay).saturating_add(self.config.response_timeout);
                self.table.arm(id, Some(deadline));
            }
            _ => self.counters.unexpected += 1,
        }
    }

    fn on_rej(&mut self, origin: Origin, rej: &Rej) {
        // A requester that gave up may not know this side's id; its own is enough (12.6.7).
        let id = match self.setting_up(origin, rej.remote_comm_id, rej.local_comm_id) {
            Named::Known(id) => Some(id),
            _ if rej.reason == reason::TIMEOUT => self.table.by_remote_id(origin.from, rej.local_comm_id),
            _ => None,
        };
        let id = id.filter(|id| self.table.get(*id).is_some_and(|conn| is_of(conn, origin)));
        let found = id.and_then(|id| self.table.get(id).map(|conn| (id, conn.state, conn.call_until)));
        let Some((id, state, call_until)) = found else {
            return self.counters.unexpected += 1;
        };
        match state {
            State::ReqSent if self.knock(origin, id, rej) => {}
            State::ReqSent if rej.reason == reason::INVALID_SERVICE_ID && origin.now < call_until => {
                self.call_again(origin.now, id);
            }
            State::ReqSent | State::ReqReceived | State::RepReceived | State::RepSent => {
                let private_data = rej.private_data.to_vec();
                self.events.push_back(CmEvent::Rejected { conn: id, reason: rej.reason, private_data });
                let stranger = self.table.get(id).is_some_and(|conn| conn.stranger);
                self.remove(id);
                if stranger {
                    self.table.cool(origin.now.saturating_add(self.config.timewait), origin.from);
                }
            }
            // A late answer to a repeated REQ is no news here.
            State::Established if rej.message_rejected == Rejected::Req as u8 => self.counters.unexpected += 1,
            State::Established | State::DreqSent => {
                self.enter_timewait(origin.now, id, false);
                self.events.push_back(CmEvent::Disconnected { conn: id });
            }
            State::Timewait => {}
        }
    }

    fn on_dreq(&mut self, origin: Origin, dreq: &Dreq) {
        let drep = message::drep(origin.tid, dreq.remote_comm_id, dreq.local_comm_id);
        let id = match self.named(origin, dreq.remote_comm_id, dreq.local_comm_id) {
            Named::Known(id) => id,
            Named::Unknown => return self.reply(origin, drep),
            Named::Forged => return self.counters.unexpected += 1,
        };
        let Some(conn) = self.table.get(id) else {
            return;
        };
        match conn.state {
            State::Established | State::RepSent | State::DreqSent => {
                if dreq.remote_qpn != conn.ours.qpn {
                    return self.counters.unexpected += 1;
                }
                let waits = self.config.farewell > 0 && conn.state != State::DreqSent;
                self.enter_timewait(origin.now, id, false);
                if waits {
                    self.owe(origin.now, id, origin.tid);
                } else {
                    self.send(id, drep);
                }
                self.events.push_back(CmEvent::Disconnected { conn: id });
            }
            State::Timewait => match self.table.get_mut(id).and_then(|conn| conn.owed.as_mut()) {
                Some(owed) => *owed = origin.tid,
                None => self.reply(origin, drep),
            },
            State::ReqSent | State::ReqReceived | State::RepReceived => self.counters.unexpected += 1,
        }
    }

    fn on_drep(&mut self, origin: Origin, drep: &Drep) {
        let Named::Known(id) = self.named(origin, drep.remote_comm_id, drep.local_comm_id) else {
            return self.counters.unexpected += 1;
        };
        let Some(conn) = self.table.get(id) else { return };
        let over = match conn.state {
            State::DreqSent => conn.closing_id == origin.tid,
            // The peer, asked, does not know the connection.
            State::Established => conn.challenge.is_some_and(|(tid, _)| tid == origin.tid),
            State::Timewait => return,
            _ => false,
        };
        if !over {
            self.counters.unexpected += 1;
            return;
        }
        self.enter_timewait(origin.now, id, false);
        self.events.push_back(CmEvent::Disconnected { conn: id });
    }

    /// Which connection a message is about; `ours` and `theirs` are its two communication ids.
    ///
    /// Before the REP the peer's id is not known, and a refusal of the REQ carries none.
    fn named(&self, origin: Origin, ours: u32, theirs: u32) -> Named {
        let Some(conn) = self.table.get(ConnId(ours)) else {
            return Named::Unknown;
        };
        match conn.remote_id {
            Some(id) if id != theirs => Named::Forged,
            _ if conn.route == origin.back() => Named::Known(ConnId(ours)),
            _ => Named::Forged,
        }
    }

    /// The same of a message that belongs to the exchange that the REQ began.
    fn setting_up(&self, origin: Origin, ours: u32, theirs: u32) -> Named {
        match self.named(origin, ours, theirs) {
            Named::Known(id) if !self.table.get(id).is_some_and(|conn| is_of(conn, origin)) => Named::Forged,
            named => named,
        }
    }

    pub(super) fn reply(&mut self, origin: Origin, bytes: Bytes) {
        self.push_reply(origin.back(), bytes);
    }

    /// A message that is not kept to be said again.
    pub(super) fn push_reply(&mut self, route: CmTransmit, bytes: Bytes) {
        if self.replies.len() >= MAX_REPLIES {
            self.counters.dropped += 1;
            return;
        }
        self.replies.push_back(Reply { route, bytes });
    }
}

/// Whether a message came from the connection's peer by its link, with the transaction id of the REQ.
fn is_of(conn: &Conn, origin: Origin) -> bool {
    conn.route == origin.back() && conn.is_setting_up(origin.tid)
}
