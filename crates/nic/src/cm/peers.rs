//! Whether peers with connections still live.
//!
//! A host whose process dies closes its connections for it; a software NIC dies with its process. So a peer with
//! connections is asked, once a second, for a service that nobody has: every connection manager answers that, Linux's
//! too, with the random numbers of the question, which tell the answer from one that nobody asked for. One of Remora's
//! answers with a number of its own besides, by which a process that took the place of another is noticed. It is asked
//! then whether it knows the connections, and those end that it does not.

use std::collections::BTreeMap;

use super::handle::Origin;
use super::message;
use super::*;

/// How often a peer is asked, nanoseconds.
const INTERVAL: u64 = 1_000_000_000;
/// How often one is asked that owes an answer: in a flood of forged packets most get lost.
const AGAIN: u64 = 100_000_000;

/// A peer by the way to it: its address and the link.
type Way = (IpAddr, u8);

struct Peer {
    heard_at: u64,
    ask_at: u64,
    /// What the question that it has not answered says: request id and transaction id.
    asked: Option<(u32, u64)>,
}

/// What is known of peers with connections.
#[derive(Default)]
pub(super) struct Peers {
    /// This process's number.
    instance: u64,
    peers: BTreeMap<Way, Peer>,
    next_round: Option<u64>,
}

impl Peers {
    pub fn new(instance: u64) -> Self {
        Self { instance, ..Self::default() }
    }

    pub fn instance(&self) -> u64 {
        self.instance
    }

    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        self.next_round
    }

    /// Whether a peer gave an answer that it owed.
    fn answered(&mut self, origin: Origin, request_id: u32) -> bool {
        let Some(peer) = self.peers.get_mut(&(origin.from, origin.link)) else { return false };
        let owed = peer.asked == Some((request_id, origin.tid));
        if owed {
            *peer = Peer { heard_at: origin.now, ask_at: origin.now.saturating_add(INTERVAL), asked: None };
        }
        owed
    }
}

impl Cm {
    /// What goes on at queue pairs shows that their peers live, as no stranger's packets can: in a flood these are heard
    /// when answers are lost. `progress` is how far a queue pair has come, in any measure; it is asked for when peers are
    /// about to be.
    pub fn hear(&mut self, now: u64, progress: impl Fn(u32) -> u64) {
        if self.peers.next_round.is_none_or(|round| round > now) {
            return;
        }
        for (qpn, conn) in self.table.standing_mut() {
            let reached = progress(qpn);
            if conn.progress.replace(reached).is_some_and(|before| before != reached)
                && let Some(peer) = self.peers.peers.get_mut(&(conn.route.to, conn.route.link))
            {
                peer.heard_at = now;
            }
        }
    }

    /// There is a connection that may have to be watched.
    pub(super) fn watch_peers(&mut self, now: u64) {
        if self.config.peer_timeout > 0 && self.peers.next_round.is_none() {
            self.peers.next_round = Some(now.saturating_add(INTERVAL));
        }
    }

    /// Asks each peer with connections for a sign of life, and ends those of peers that have long given none.
    pub(super) fn ask_peers(&mut self, now: u64) {
        if self.peers.next_round.is_none_or(|round| round > now) {
            return;
        }
        let routes: BTreeMap<Way, CmTransmit> =
            self.table.standing().map(|(_, route)| ((route.to, route.link), route)).collect();
        self.peers.peers.retain(|way, _| routes.contains_key(way));
        let (watched, mut next) = (!routes.is_empty(), now.saturating_add(INTERVAL));
        for (way, route) in routes {
            let peer = self.peers.peers.entry(way).or_insert(Peer { heard_at: now, ask_at: now, asked: None });
            if now.saturating_sub(peer.heard_at) >= self.config.peer_timeout {
                self.lose_peer(now, way);
                continue;
            }
            let question = (peer.ask_at <= now).then(|| {
                peer.ask_at = now.saturating_add(AGAIN);
                *peer.asked.get_or_insert_with(|| (self.config.ids.draw(&mut self.rng), self.rng.next_u64()))
            });
            next = next.min(peer.ask_at);
            if let Some(numbers) = question {
                self.push_reply(route, message::ping(numbers));
            }
        }
        self.peers.next_round = watched.then_some(next);
    }

    /// A peer says that it lives, and which process it is.
    pub(super) fn on_sign_of_life(&mut self, origin: Origin, request_id: u32, instance: u64) {
        if !self.peers.answered(origin, request_id) {
            self.counters.unexpected += 1;
            return;
        }
        let with_it: Vec<ConnId> =
            self.table.standing().filter(|(_, route)| *route == origin.back()).map(|(id, _)| id).collect();
        for id in with_it {
            let Some(conn) = self.table.get_mut(id) else { continue };
            if *conn.instance.get_or_insert(instance) != instance {
                self.challenge(origin.now, id);
            }
        }
    }

    /// Ends all connections with a peer that is no more.
    fn lose_peer(&mut self, now: u64, (peer, link): Way) {
        let lost: Vec<ConnId> = self
            .table
            .standing()
            .filter(|(_, route)| (route.to, route.link) == (peer, link))
            .map(|(id, _)| id)
            .collect();
        for id in lost {
            self.enter_timewait(now, id, false);
            self.events.push_back(CmEvent::Disconnected { conn: id });
        }
    }
}
