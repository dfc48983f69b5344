//! The table of connections, its indices and its timers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use super::message::Bytes;
use super::{CmTransmit, ConnId, QpParams};

/// Where a connection stands; the picture is at the top of the parent module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    ReqSent,
    ReqReceived,
    /// The user has the REP and brings its queue pair up.
    RepReceived,
    RepSent,
    Established,
    DreqSent,
    Timewait,
}

/// One connection.
pub(super) struct Conn {
    pub state: State,
    /// The two ends, and the link that all of its messages come and go by.
    pub route: CmTransmit,
    /// The peer's communication id, once known. Set by [`Table::set_remote`].
    pub remote_id: Option<u32>,
    /// A peer who has not shown that he hears what is sent to his address.
    pub stranger: bool,
    /// That of the REQ, and so of all that follows until it stands.
    pub transaction_id: u64,
    /// What the REQ was said again with, because the peer asked for that.
    pub cookie: Option<u64>,
    /// The transaction id of the DREQ.
    pub closing_id: u64,
    /// That of the question whether the peer knows the connection, and when it was asked.
    pub challenge: Option<(u64, u64)>,
    /// The process at the other end, by its own account.
    pub instance: Option<u64>,
    /// How far its queue pair had come when it was last looked at.
    pub progress: Option<u64>,
    /// On the passive side, those of the requester until `accept`.
    pub ours: QpParams,
    /// On the active side, the own ones until the REP.
    pub theirs: QpParams,
    /// Retries left in this state.
    pub retries: u8,
    pub established_at: u64,
    /// Until when the user's REQ is repeated although nobody listens.
    pub call_until: u64,
    /// The user wants to see the REP before the RTU is sent.
    pub hold: bool,
    /// In time wait: the last word was a REJ.
    pub rejected: bool,
    /// In time wait: the transaction id of the DREQ whose answer waits for the user to be done.
    pub owed: Option<u64>,
    /// The last message sent, to be repeated on a timeout and when the peer repeats its own.
    pub bytes: Box<Bytes>,
    /// `bytes` holds a message.
    pub spoken: bool,
    /// `bytes` waits to be sent.
    pub queued: bool,
    half_open: bool,
    local_qpn: Option<u32>,
    remote_qpn: Option<u32>,
    deadline: Option<u64>,
}

impl Conn {
    /// A connection that sends a REQ.
    pub fn active(route: CmTransmit, params: QpParams, tid: u64, retries: u8) -> Conn {
        Conn {
            state: State::ReqSent,
            route,
            remote_id: None,
            stranger: false,
            transaction_id: tid,
            cookie: None,
            closing_id: 0,
            challenge: None,
            instance: None,
            progress: None,
            ours: params,
            theirs: params,
            retries,
            established_at: 0,
            call_until: 0,
            hold: false,
            rejected: false,
            owed: None,
            bytes: Box::new([0; 256]),
            spoken: false,
            queued: false,
            half_open: false,
            local_qpn: None,
            remote_qpn: None,
            deadline: None,
        }
    }

    /// A connection that received a REQ.
    pub fn passive(route: CmTransmit, theirs: QpParams, tid: u64, retries: u8) -> Conn {
        Conn { state: State::ReqReceived, half_open: true, ..Conn::active(route, theirs, tid, retries) }
    }

    /// Whether an answer to the REQ, or what follows it, has the transaction id that only the two ends know.
    pub fn is_setting_up(&self, tid: u64) -> bool {
        tid == self.transaction_id || self.cookie == Some(tid)
    }
}

/// Connections by local communication id, by what peers call them, by queue pair and by deadline.
///
/// Ordered maps, because a peer chooses some of the keys.
#[derive(Default)]
pub(super) struct Table {
    conns: BTreeMap<ConnId, Conn>,
    by_remote_id: BTreeMap<(IpAddr, u32), ConnId>,
    by_remote_qpn: BTreeMap<(IpAddr, u32), ConnId>,
    by_local_qpn: BTreeMap<u32, ConnId>,
    timers: BTreeSet<(u64, ConnId)>,
    half_open: usize,
    half_open_of: BTreeMap<IpAddr, usize>,
    /// Places of connections that are gone and count for a while yet: until when, and whose.
    cooling: VecDeque<(u64, IpAddr)>,
}

impl Table {
    pub fn len(&self) -> usize {
        self.conns.len()
    }

    /// Passive connections that were never established.
    pub fn half_open(&self) -> usize {
        self.half_open
    }

    /// Of these, the ones with this peer.
    pub fn half_open_of(&self, remote: IpAddr) -> usize {
        self.half_open_of.get(&remote).copied().unwrap_or(0)
    }

    /// Nothing is left, in any index.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let names = self.by_remote_id.len() + self.by_remote_qpn.len() + self.by_local_qpn.len();
        let half_open = self.half_open + self.half_open_of.len();
        self.conns.is_empty() && names == 0 && self.timers.is_empty() && half_open == 0
    }

    pub fn get(&self, id: ConnId) -> Option<&Conn> {
        self.conns.get(&id)
    }

    pub fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(&id)
    }

    /// All connections.
    pub fn ids(&self) -> Vec<ConnId> {
        self.conns.keys().copied().collect()
    }

    /// Where they stand.
    pub fn states(&self) -> impl Iterator<Item = State> {
        self.conns.values().map(|conn| conn.state)
    }

    /// The connections that stand or are being closed, and their ends.
    pub fn standing(&self) -> impl Iterator<Item = (ConnId, CmTransmit)> {
        let stands = |conn: &Conn| matches!(conn.state, State::Established | State::DreqSent);
        self.conns.iter().filter(move |(_, conn)| stands(conn)).map(|(id, conn)| (*id, conn.route))
    }

    /// Those that can be used, with their queue pairs.
    pub fn standing_mut(&mut self) -> impl Iterator<Item = (u32, &mut Conn)> {
        let stands = |conn: &Conn| matches!(conn.state, State::Established | State::DreqSent);
        self.conns.values_mut().filter(move |conn| stands(conn)).filter_map(|conn| Some((conn.local_qpn?, conn)))
    }

    pub fn by_remote_id(&self, remote: IpAddr, comm_id: u32) -> Option<ConnId> {
        self.by_remote_id.get(&(remote, comm_id)).copied()
    }

    pub fn by_remote_qpn(&self, remote: IpAddr, qpn: u32) -> Option<ConnId> {
        self.by_remote_qpn.get(&(remote, qpn)).copied()
    }

    /// The connection, not in time wait, that a local queue pair is in.
    pub fn by_local_qpn(&self, qpn: u32) -> Option<ConnId> {
        self.by_local_qpn.get(&qpn).copied()
    }

    pub fn insert(&mut self, id: ConnId, conn: Conn) {
        if conn.half_open {
            self.take_place(conn.route.to);
        }
        let old = self.conns.insert(id, conn);
        debug_assert!(old.is_none(), "communication ids are unused when drawn");
    }

    pub fn remove(&mut self, id: ConnId) -> Option<Conn> {
        self.arm(id, None);
        self.clear_local_qpn(id);
        self.clear_half_open(id);
        let conn = self.conns.remove(&id)?;
        if let Some(comm_id) = conn.remote_id {
            self.by_remote_id.remove(&(conn.route.to, comm_id));
        }
        if let Some(qpn) = conn.remote_qpn {
            self.by_remote_qpn.remove(&(conn.route.to, qpn));
        }
        Some(conn)
    }

    /// Remember what the peer calls the connection; the caller has seen that neither name is taken.
    pub fn set_remote(&mut self, id: ConnId, comm_id: u32, qpn: u32) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.remote_id = Some(comm_id);
        conn.remote_qpn = Some(qpn);
        let by_id = self.by_remote_id.insert((conn.route.to, comm_id), id);
        let by_qpn = self.by_remote_qpn.insert((conn.route.to, qpn), id);
        debug_assert!(by_id.is_none() && by_qpn.is_none(), "one connection for each name");
    }

    pub fn set_local_qpn(&mut self, id: ConnId, qpn: u32) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.local_qpn = Some(qpn);
        self.by_local_qpn.insert(qpn, id);
    }

    /// The queue pair is free for another connection.
    pub fn clear_local_qpn(&mut self, id: ConnId) {
        if let Some(qpn) = self.conns.get_mut(&id).and_then(|conn| conn.local_qpn.take()) {
            self.by_local_qpn.remove(&qpn);
        }
    }

    pub fn clear_half_open(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if std::mem::take(&mut conn.half_open) {
            let remote = conn.route.to;
            self.free_place(remote);
        }
    }

    fn take_place(&mut self, remote: IpAddr) {
        self.half_open += 1;
        *self.half_open_of.entry(remote).or_default() += 1;
    }

    fn free_place(&mut self, remote: IpAddr) {
        self.half_open -= 1;
        let of = self.half_open_of.entry(remote).or_default();
        *of = of.saturating_sub(1);
        if *of == 0 {
            self.half_open_of.remove(&remote);
        }
    }

    /// A stranger's half-open connection is gone, and its place is not free before `until`: how fast a peer refuses what
    /// others forge in its name does not say how many of their calls are taken.
    pub fn cool(&mut self, until: u64, remote: IpAddr) {
        self.take_place(remote);
        self.cooling.push_back((until, remote));
    }

    /// Frees the places whose time is up.
    pub fn thaw(&mut self, now: u64) {
        while let Some((_, remote)) = self.cooling.pop_front_if(|(until, _)| *until <= now) {
            self.free_place(remote);
        }
    }

    /// Set or clear the connection's only timer.
    pub fn arm(&mut self, id: ConnId, deadline: Option<u64>) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        if let Some(old) = std::mem::replace(&mut conn.deadline, deadline) {
            self.timers.remove(&(old, id));
        }
        if let Some(new) = deadline {
            self.timers.insert((new, id));
        }
    }

    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        let timer = self.timers.first().map(|(deadline, _)| *deadline);
        timer.into_iter().chain(self.cooling.front().map(|(until, _)| *until)).min()
    }

    /// Take the earliest timer if it is due.
    pub fn pop_due(&mut self, now: u64) -> Option<ConnId> {
        let (_, id) = *self.timers.first().filter(|(deadline, _)| *deadline <= now)?;
        self.arm(id, None);
        Some(id)
    }
}
