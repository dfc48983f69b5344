//! The connection manager: sets up and tears down RC connections with MADs on QP1.
//!
//! A pure state machine after IBTA volume 1 chapter 12, in the dialect of `rdma_cm` over RoCE v2:
//! service ids of the RDMA IP CM service and its 36-byte header in front of the REQ's private data
//! (annex A11). Time is an argument, in nanoseconds from any origin.
//!
//! Call order of a driver: [`Cm::handle_mad`] and [`Cm::handle_timeout`] take what happened;
//! [`Cm::poll_event`] is emptied next, so that the queue pair is ready to receive before the peer
//! hears that it is; then [`Cm::poll_transmit`] and [`Cm::poll_timeout`].
//!
//! ```text
//!            connect            ConnectRequest
//!   active  ReqSent            ReqReceived  passive
//!              | REP                | accept
//!              |                 RepSent
//!          RepReceived             |
//!              | ready (RTU)         |
//!              v                    v RTU or a first packet
//!          Established         Established
//!              | disconnect         | DREQ
//!           DreqSent                |
//!              | DREP               v
//!              +-----------> Timewait --> gone
//! ```
//!
//! Whoever can send to this side can forge where a message comes from, but sees nothing that is sent to the one whose
//! address he takes. So no message is believed that does not say what only the two ends know: random communication ids,
//! and the transaction id of the exchange that it belongs to. A connection that somebody else seems to call for ends when
//! its peer, asked, does not know it, and never because somebody said so.
//!
//! A DREQ is answered at once, or where the user is to have heard of it first ([`CmConfig::farewell`]) when he disconnects too.
//!
//! Every connection ends with one of [`CmEvent::Rejected`], [`CmEvent::Unreachable`] and
//! [`CmEvent::Disconnected`], unless the user ended it with [`Cm::reject`]. Nobody can know that
//! the last message arrived: if each REJ and each RTU is lost, the active side stays established
//! until its queue pair runs out of retries.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remora_wire::cm::{CmMessage, Mad, Req};

use door::Door;
use grace::Grace;
use message::{Bytes, Rejected};
use peers::Peers;
use sidr::Services;
use table::{Conn, State, Table};
pub use types::*;

mod door;
mod grace;
mod handle;
mod message;
mod peers;
mod sidr;
mod table;
#[cfg(test)]
mod tests;
mod types;

/// An answer that belongs to no connection.
struct Reply {
    route: CmTransmit,
    bytes: Bytes,
}

/// The connection manager of one channel adapter.
pub struct Cm {
    config: CmConfig,
    rng: ChaCha8Rng,
    listeners: BTreeMap<u64, ListenerId>,
    next_listener: u32,
    table: Table,
    /// Connections whose `bytes` are to be sent, each at most once.
    ready: VecDeque<ConnId>,
    replies: VecDeque<Reply>,
    services: Services,
    peers: Peers,
    door: Door,
    grace: Grace,
    /// The links that calls to peers go by; others go by link 0.
    links: BTreeMap<IpAddr, u8>,
    events: VecDeque<CmEvent>,
    counters: CmCounters,
}

/// Replies that may wait to be sent; the peer of one dropped asks again.
const MAX_REPLIES: usize = 256;

impl Cm {
    /// A connection manager; `seed` makes its communication ids, which should be hard to guess.
    pub fn new(seed: u64, config: CmConfig) -> Cm {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let drawn = rng.next_u64();
        let (peers, door) = (Peers::new(config.instance.unwrap_or(drawn)), Door::new(&mut rng));
        Cm {
            config: checked(config),
            rng,
            listeners: BTreeMap::new(),
            next_listener: 0,
            table: Table::default(),
            ready: VecDeque::new(),
            replies: VecDeque::new(),
            services: Services::default(),
            peers,
            door,
            grace: Grace::default(),
            links: BTreeMap::new(),
            events: VecDeque::new(),
            counters: CmCounters::default(),
        }
    }

    /// The limits and times.
    pub fn config(&self) -> &CmConfig {
        &self.config
    }

    /// Other limits and times, for what begins from now on.
    pub fn configure(&mut self, config: CmConfig) {
        self.config = checked(config);
    }

    /// What was not acted on so far.
    pub fn counters(&self) -> CmCounters {
        self.counters
    }

    /// Connections in the table, those in time wait included.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Take REQs for a service, see [`service_id`].
    pub fn listen(&mut self, service_id: u64) -> Result<ListenerId, CmError> {
        if self.listeners.contains_key(&service_id) {
            return Err(CmError::ServiceInUse(service_id));
        }
        let id = ListenerId(self.next_listener);
        self.next_listener = self.next_listener.wrapping_add(1);
        self.listeners.insert(service_id, id);
        self.release(service_id);
        Ok(id)
    }

    /// Calls to a peer go by this link from now on. What a peer begins is answered where it came from.
    pub fn set_link(&mut self, peer: IpAddr, link: u8) {
        let peer = peer.to_canonical();
        match link {
            0 => drop(self.links.remove(&peer)),
            _ => drop(self.links.insert(peer, link)),
        }
    }

    fn route(&self, call: &ConnectCall<'_>) -> CmTransmit {
        CmTransmit { to: call.remote, from: call.local, link: self.links.get(&call.remote).copied().unwrap_or(0) }
    }

    /// Take no more REQs; those already reported can still be accepted.
    pub fn unlisten(&mut self, id: ListenerId) -> Result<(), CmError> {
        let service = self.listeners.iter().find(|(_, listener)| **listener == id).map(|(service, _)| *service);
        let service = service.ok_or(CmError::UnknownListener(id))?;
        self.listeners.remove(&service);
        self.grace.lost(service);
        Ok(())
    }

    /// Send a REQ.
    ///
    /// Ends in [`CmEvent::Established`], [`CmEvent::Rejected`] or [`CmEvent::Unreachable`].
    pub fn connect(
        &mut self,
        now: u64,
        local: IpAddr,
        remote: IpAddr,
        service_id: u64,
        params: QpParams,
        private_data: &[u8],
    ) -> Result<ConnId, CmError> {
        // An ephemeral port, as a socket would have; it only tells the peer's user who calls.
        let source_port = 32_768 + (self.rng.next_u32() % 28_232) as u16;
        let call = ConnectCall { local, remote, service_id, source_port, private_data };
        self.send_req(now, call, params, false)
    }

    /// Calls a peer, for a user who brings its queue pair up by itself: [`CmEvent::Response`] comes first, and
    /// [`CmEvent::Established`] after [`Cm::ready`]. Otherwise as [`Cm::connect`].
    pub fn call(&mut self, now: u64, call: ConnectCall<'_>, params: QpParams) -> Result<ConnId, CmError> {
        self.send_req(now, call, params, true)
    }

    fn send_req(&mut self, now: u64, call: ConnectCall<'_>, params: QpParams, hold: bool) -> Result<ConnId, CmError> {
        let call = check_call(call, REQ_PRIVATE_DATA)?;
        check_params(&params)?;
        if self.table.len() >= self.config.max_connections {
            return Err(CmError::TableFull(self.config.max_connections));
        }
        if self.table.by_local_qpn(params.qpn).is_some() {
            return Err(CmError::QpInUse(params.qpn));
        }
        let (id, tid) = (self.fresh_id(), self.rng.next_u64());
        let bytes = message::req(&self.config, (id, tid), &call, &params);
        let mut conn = Conn::active(self.route(&call), params, tid, self.config.max_retries);
        conn.hold = hold;
        conn.call_until = now.saturating_add(self.config.call_grace);
        self.table.insert(id, conn);
        self.table.set_local_qpn(id, params.qpn);
        self.send(id, bytes);
        self.table.arm(id, Some(now.saturating_add(self.config.response_timeout)));
        Ok(id)
    }

    /// Send an RTU: the queue pair of a [`CmEvent::Response`] is up. [`CmEvent::Established`] follows.
    pub fn ready(&mut self, now: u64, id: ConnId) -> Result<(), CmError> {
        let conn = self.table.get(id).ok_or(CmError::UnknownConn(id))?;
        if conn.state != State::RepReceived {
            return Err(CmError::WrongState(id));
        }
        let rtu = message::rtu(id, conn);
        self.send(id, rtu);
        self.set_established(now, id, Vec::new());
        Ok(())
    }

    /// Send a REP: agree to a [`CmEvent::ConnectRequest`]. The queue pair must be in RTR and may receive from now on.
    ///
    /// `path_mtu` must be the requester's; the numbers of READs and atomics are cut to what the requester offered.
    pub fn accept(&mut self, now: u64, id: ConnId, mut params: QpParams, private_data: &[u8]) -> Result<(), CmError> {
        check_params(&params)?;
        check_private_data(private_data, REP_PRIVATE_DATA)?;
        let conn = self.table.get(id).ok_or(CmError::UnknownConn(id))?;
        if conn.state != State::ReqReceived {
            return Err(CmError::WrongState(id));
        }
        if params.path_mtu != conn.theirs.path_mtu {
            return Err(CmError::PathMtu { ours: params.path_mtu, theirs: conn.theirs.path_mtu });
        }
        if self.table.by_local_qpn(params.qpn).is_some() {
            return Err(CmError::QpInUse(params.qpn));
        }
        params.responder_resources = params.responder_resources.min(conn.theirs.initiator_depth);
        params.initiator_depth = params.initiator_depth.min(conn.theirs.responder_resources);
        let bytes = message::rep(&self.config, id, conn, &params, private_data);
        self.table.set_local_qpn(id, params.qpn);
        if let Some(conn) = self.table.get_mut(id) {
            conn.ours = params;
            conn.state = State::RepSent;
        }
        self.send(id, bytes);
        self.table.arm(id, Some(now.saturating_add(self.config.response_timeout)));
        Ok(())
    }

    /// Send a REJ: refuse a [`CmEvent::ConnectRequest`] or [`CmEvent::Response`]. No further event comes for it.
    pub fn reject(&mut self, now: u64, id: ConnId, reason: u16, private_data: &[u8]) -> Result<(), CmError> {
        check_private_data(private_data, REJ_PRIVATE_DATA)?;
        let conn = self.table.get(id).ok_or(CmError::UnknownConn(id))?;
        let rejected = match conn.state {
            State::ReqReceived => Rejected::Req,
            State::RepReceived => Rejected::Rep,
            _ => return Err(CmError::WrongState(id)),
        };
        let bytes = message::rej(id, conn, rejected, reason, private_data);
        self.send(id, bytes);
        self.enter_timewait(now, id, true);
        Ok(())
    }

    /// Send an MRA: tell the requester that the answer takes `delay` nanoseconds more, so that it does not give up.
    pub fn delay(&mut self, now: u64, id: ConnId, delay: u64) -> Result<(), CmError> {
        let conn = self.table.get(id).ok_or(CmError::UnknownConn(id))?;
        if conn.state != State::ReqReceived {
            return Err(CmError::WrongState(id));
        }
        let bytes = message::mra(id, conn, delay);
        self.send(id, bytes);
        self.table.arm(id, Some(now.saturating_add(delay).saturating_add(self.patience())));
        Ok(())
    }

    /// A packet arrived on this queue pair: the peer must have had the REP, so it does what the RTU would have done.
    ///
    /// Gives [`CmEvent::Established`] if the connection waited for the RTU, and does nothing otherwise.
    pub fn mark_established(&mut self, now: u64, qpn: u32) {
        if let Some(id) = self.table.by_local_qpn(qpn)
            && self.table.get(id).is_some_and(|conn| conn.state == State::RepSent)
        {
            self.set_established(now, id, Vec::new());
        }
    }

    /// The user has learnt by other ways that the peer had the REP. Gives [`CmEvent::Established`], or does nothing if
    /// the connection is established already.
    pub fn establish(&mut self, now: u64, id: ConnId) -> Result<(), CmError> {
        match self.table.get(id).ok_or(CmError::UnknownConn(id))?.state {
            State::RepSent => self.set_established(now, id, Vec::new()),
            State::Established => {}
            _ => return Err(CmError::WrongState(id)),
        }
        Ok(())
    }

    /// End a connection in whatever state it is; [`CmEvent::Disconnected`] follows.
    ///
    /// An established one sends a DREQ and waits for the DREP; an earlier one sends a REJ and ends at once.
    pub fn disconnect(&mut self, now: u64, id: ConnId) -> Result<(), CmError> {
        // The peer was faster, and waits for this.
        if self.pay(now, id) {
            return Ok(());
        }
        let conn = self.table.get(id).ok_or(CmError::UnknownConn(id))?;
        let bytes = match conn.state {
            State::Established => {
                self.send_dreq(now, id);
                return Ok(());
            }
            State::ReqSent => message::rej_timeout(&self.config, id, conn, Rejected::Req),
            State::ReqReceived => message::rej(id, conn, Rejected::Req, reason::CONSUMER, &[]),
            State::RepReceived => message::rej(id, conn, Rejected::Rep, reason::CONSUMER, &[]),
            State::RepSent => message::rej(id, conn, Rejected::Other, reason::CONSUMER, &[]),
            State::DreqSent | State::Timewait => return Err(CmError::WrongState(id)),
        };
        self.send(id, bytes);
        self.enter_timewait(now, id, true);
        self.events.push_back(CmEvent::Disconnected { conn: id });
        Ok(())
    }

    /// End every connection, as [`Cm::disconnect`] does, and send each DREQ again that is still unanswered: for a user
    /// who is about to go. The response timeout counts anew from now.
    pub fn disconnect_all(&mut self, now: u64) {
        for id in self.table.ids() {
            match self.table.get(id).map(|conn| conn.state) {
                Some(State::DreqSent) => self.send_dreq(now, id),
                // Refused in time wait, when the peer knows.
                _ => drop(self.disconnect(now, id)),
            }
        }
    }

    /// Whether a DREQ waits for its DREP.
    pub fn is_disconnecting(&self) -> bool {
        self.table.states().any(|state| state == State::DreqSent)
    }

    /// The next MAD to send, if any, written to `out`.
    pub fn poll_transmit(&mut self, out: &mut Bytes) -> Option<CmTransmit> {
        if let Some(reply) = self.replies.pop_front() {
            *out = reply.bytes;
            return Some(reply.route);
        }
        let id = self.ready.pop_front()?;
        let conn = self.table.get_mut(id).expect("a connection leaves the queue when it leaves the table");
        conn.queued = false;
        *out = *conn.bytes;
        Some(conn.route)
    }

    /// Whether [`Cm::poll_transmit`] has something to send.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        !self.replies.is_empty() || !self.ready.is_empty()
    }

    /// Whether there is one.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next event, if any.
    #[inline]
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    /// When to call [`Cm::handle_timeout`] next.
    #[inline]
    pub fn poll_timeout(&self) -> Option<u64> {
        let connections = [self.table.next_deadline(), self.grace_deadline()];
        let others = [self.services.next_deadline(), self.peers.next_deadline()];
        connections.into_iter().chain(others).flatten().min()
    }

    /// Let the timers run that are due at `now`.
    pub fn handle_timeout(&mut self, now: u64) {
        // Ends: each round uses up a retry or takes a connection a state further towards its removal.
        while let Some(id) = self.table.pop_due(now) {
            self.expire(now, id);
        }
        self.table.thaw(now);
        self.grace.now = self.grace.now.max(now);
        self.expire_grace(now);
        self.expire_services(now);
        self.ask_peers(now);
    }

    fn expire(&mut self, now: u64, id: ConnId) {
        if self.pay(now, id) {
            return;
        }
        let conn = self.table.get_mut(id).expect("a timer leaves with its connection");
        let bytes = match conn.state {
            State::ReqSent | State::RepSent | State::DreqSent if conn.retries > 0 => {
                conn.retries -= 1;
                // A stranger's address may be forged. In a flood it gets its answer again if it calls again.
                if !conn.stranger || self.table.half_open() <= self.config.max_half_open / 4 {
                    self.resend(id);
                }
                self.table.arm(id, Some(now.saturating_add(self.config.response_timeout)));
                return;
            }
            State::Timewait => {
                if self.config.timewait_events && !conn.rejected {
                    self.events.push_back(CmEvent::TimewaitExit { conn: id });
                }
                return self.remove(id);
            }
            State::Established => return,
            State::DreqSent => {
                self.enter_timewait(now, id, false);
                self.events.push_back(CmEvent::Disconnected { conn: id });
                return;
            }
            State::ReqSent => message::rej_timeout(&self.config, id, conn, Rejected::Req),
            State::ReqReceived => message::rej(id, conn, Rejected::Req, reason::CONSUMER, &[]),
            State::RepReceived => message::rej(id, conn, Rejected::Rep, reason::CONSUMER, &[]),
            State::RepSent => message::rej_timeout(&self.config, id, conn, Rejected::Other),
        };
        self.send(id, bytes);
        self.enter_timewait(now, id, true);
        self.events.push_back(CmEvent::Unreachable { conn: id });
    }

    fn set_established(&mut self, now: u64, id: ConnId, private_data: Vec<u8>) {
        self.table.arm(id, None);
        self.table.clear_half_open(id);
        if let Some(conn) = self.table.get_mut(id) {
            conn.state = State::Established;
            conn.established_at = now;
            let remote = conn.theirs;
            self.watch_peers(now);
            self.events.push_back(CmEvent::Established { conn: id, remote, private_data });
        }
    }

    fn send_dreq(&mut self, now: u64, id: ConnId) {
        let (retries, closing_id) = (self.config.max_retries, self.rng.next_u64());
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        conn.state = State::DreqSent;
        (conn.retries, conn.closing_id) = (retries, closing_id);
        let bytes = message::dreq(id, conn);
        self.send(id, bytes);
        self.table.arm(id, Some(now.saturating_add(self.config.response_timeout)));
    }

    /// The last word, in `bytes`, is kept for a while to be said again. `rejected`: that word is a REJ.
    fn enter_timewait(&mut self, now: u64, id: ConnId, rejected: bool) {
        self.table.clear_local_qpn(id);
        if let Some(conn) = self.table.get_mut(id) {
            conn.state = State::Timewait;
            conn.rejected = rejected;
        }
        self.table.arm(id, Some(now.saturating_add(self.config.timewait)));
    }

    /// The DREP goes when the user is done with the connection, or has had time for it.
    fn owe(&mut self, now: u64, id: ConnId, transaction_id: u64) {
        if let Some(conn) = self.table.get_mut(id) {
            conn.owed = Some(transaction_id);
        }
        self.table.arm(id, Some(now.saturating_add(self.config.farewell)));
    }

    /// Sends the DREP that is owed, if one is.
    fn pay(&mut self, now: u64, id: ConnId) -> bool {
        let Some(conn) = self.table.get_mut(id) else { return false };
        let Some(transaction_id) = conn.owed.take() else { return false };
        let drep = message::drep(transaction_id, id.0, conn.remote_id.unwrap_or(0));
        self.send(id, drep);
        self.table.arm(id, Some(now.saturating_add(self.config.timewait)));
        true
    }

    fn remove(&mut self, id: ConnId) {
        if self.table.remove(id).is_some_and(|conn| conn.queued) {
            self.ready.retain(|queued| *queued != id);
        }
    }

    /// Make `bytes` the connection's last word and send it.
    fn send(&mut self, id: ConnId, bytes: Bytes) {
        if let Some(conn) = self.table.get_mut(id) {
            *conn.bytes = bytes;
            conn.spoken = true;
            self.resend(id);
        }
    }

    /// Say the last word again, if there is one.
    fn resend(&mut self, id: ConnId) {
        if let Some(conn) = self.table.get_mut(id)
            && conn.spoken
            && !conn.queued
        {
            conn.queued = true;
            self.ready.push_back(id);
        }
    }

    /// Random and unused; 0 stands for "unknown" in a REJ.
    fn fresh_id(&mut self) -> ConnId {
        loop {
            let id = ConnId(self.config.ids.draw(&mut self.rng));
            if id.0 != 0 && self.table.get(id).is_none() && !self.services.contains(id) {
                return id;
            }
        }
    }

    /// How long a peer with this configuration goes on asking.
    fn patience(&self) -> u64 {
        self.config.response_timeout.saturating_mul(u64::from(self.config.max_retries) + 1)
    }
}

fn checked(mut config: CmConfig) -> CmConfig {
    config.max_retries = config.max_retries.min(15);
    config
}

/// The call between addresses in their canonical form.
fn check_call(call: ConnectCall<'_>, max_private_data: usize) -> Result<ConnectCall<'_>, CmError> {
    let (local, remote) = (call.local.to_canonical(), call.remote.to_canonical());
    if local.is_ipv4() != remote.is_ipv4() {
        return Err(CmError::IpVersion(local, remote));
    }
    check_private_data(call.private_data, max_private_data)?;
    Ok(ConnectCall { local, remote, ..call })
}

fn check_params(params: &QpParams) -> Result<(), CmError> {
    let checks = [
        ((2..0xff_ffff).contains(&params.qpn), "qpn"),
        ((1..=5).contains(&params.path_mtu), "path_mtu"),
        (params.retry_count <= 7, "retry_count"),
        (params.rnr_retry <= 7, "rnr_retry"),
        (params.ack_timeout <= 31, "ack_timeout"),
    ];
    match checks.iter().find(|(good, _)| !good) {
        Some((_, field)) => Err(CmError::Params(field)),
        None => Ok(()),
    }
}

fn check_private_data(data: &[u8], max: usize) -> Result<(), CmError> {
    if data.len() > max { Err(CmError::PrivateData { len: data.len(), max }) } else { Ok(()) }
}
