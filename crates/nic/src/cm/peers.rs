//! Whether peers with connections still live.
//!
//! A host whose process dies closes its connections for it; a software NIC dies with its process. So a peer with
//! connections is asked, once a second, for a service that nobody has: every connection manager answers that, Linux's
//! too. One of Remora's answers with a number of its own, by which a process that took the place of another is noticed.

use std::collections::BTreeMap;

use super::message;
use super::*;

/// How often a peer is asked, nanoseconds.
const INTERVAL: u64 = 1_000_000_000;

struct Peer {
    heard_at: u64,
    instance: Option<u64>,
}

/// What is known of peers with connections.
#[derive(Default)]
pub(super) struct Peers {
    /// This process's number.
    instance: u64,
    peers: BTreeMap<IpAddr, Peer>,
    next_round: Option<u64>,
}

impl Peers {
    pub fn new(instance: u64) -> Self {
        Self { instance, ..Self::default() }
    }

    pub fn instance(&self) -> u64 {
        self.instance
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.next_round
    }

    pub fn heard(&mut self, now: u64, peer: IpAddr) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.heard_at = now;
        }
    }

    /// Whether another process than before gave this answer.
    pub fn is_another(&mut self, peer: IpAddr, instance: u64) -> bool {
        let Some(peer) = self.peers.get_mut(&peer) else { return false };
        peer.instance.replace(instance).is_some_and(|before| before != instance)
    }
}

impl Cm {
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
        let routes: BTreeMap<IpAddr, IpAddr> =
            self.table.standing().map(|(_, (local, remote))| (remote, local)).collect();
        self.peers.peers.retain(|remote, _| routes.contains_key(remote));
        self.peers.next_round = (!routes.is_empty()).then(|| now.saturating_add(INTERVAL));
        for (remote, local) in routes {
            let peer = self.peers.peers.entry(remote).or_insert(Peer { heard_at: now, instance: None });
            if now.saturating_sub(peer.heard_at) >= self.config.peer_timeout {
                self.lose_peer(now, remote);
            } else {
                self.push_reply(CmTransmit { to: remote, from: local }, message::ping());
            }
        }
    }

    /// Ends all connections with a peer that is no more.
    pub(super) fn lose_peer(&mut self, now: u64, peer: IpAddr) {
        let lost: Vec<ConnId> =
            self.table.standing().filter(|(_, (_, remote))| *remote == peer).map(|(id, _)| id).collect();
        for id in lost {
            self.enter_timewait(now, id, false);
            self.events.push_back(CmEvent::Disconnected { conn: id });
        }
    }
}
