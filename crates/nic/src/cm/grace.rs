//! REQs for services whose listener has just gone, and may come back: those of peers, and our own.

use std::collections::{BTreeMap, VecDeque};

use super::handle::Origin;
use super::*;

/// REQs that may wait; a peer's next repetition makes up for one that finds no room.
const MAX_WAITING: usize = 64;
/// Services that are remembered.
const MAX_GONE: usize = 1024;

/// Between two calls of a service that nobody listens for, nanoseconds.
pub(super) const CALL_INTERVAL: u64 = 20_000_000;

/// What waits, and for what.
#[derive(Default)]
pub(super) struct Grace {
    /// The latest time that anybody told.
    pub now: u64,
    /// When each service lost its listener.
    gone: BTreeMap<u64, u64>,
    /// In the order that they arrived in.
    waiting: VecDeque<(Origin, Req)>,
}

impl Grace {
    /// A service has no listener any more.
    pub fn lost(&mut self, service_id: u64) {
        if self.gone.len() >= MAX_GONE {
            self.gone.clear();
        }
        self.gone.insert(service_id, self.now);
    }
}

impl Cm {
    /// Whether a service has just lost its listener.
    pub(super) fn is_lately_gone(&self, now: u64, service_id: u64) -> bool {
        let gone = self.grace.gone.get(&service_id);
        gone.is_some_and(|gone| now.saturating_sub(*gone) < self.config.listen_grace)
    }

    /// Keeps a REQ if its service may come back. False if it is to be refused.
    pub(super) fn hold(&mut self, origin: Origin, req: &Req) -> bool {
        if !self.is_lately_gone(origin.now, req.service_id) {
            return false;
        }
        let known = |(held, waiting): &(Origin, Req)| {
            (held.from, waiting.local_comm_id, waiting.service_id) == (origin.from, req.local_comm_id, req.service_id)
        };
        if self.grace.waiting.len() < MAX_WAITING && !self.grace.waiting.iter().any(known) {
            self.grace.waiting.push_back((origin, *req));
        }
        true
    }

    /// A service has a listener: takes the REQs that wait for it.
    pub(super) fn release(&mut self, service_id: u64) {
        self.grace.gone.remove(&service_id);
        for (origin, req) in std::mem::take(&mut self.grace.waiting) {
            match req.service_id == service_id {
                true => self.on_req(origin, &req),
                false => self.grace.waiting.push_back((origin, req)),
            }
        }
    }

    /// Sends a refused REQ again in a moment. It costs no retry, as the peer is there.
    pub(super) fn call_again(&mut self, now: u64, id: ConnId) {
        if let Some(conn) = self.table.get_mut(id) {
            conn.retries = conn.retries.saturating_add(1);
            self.table.arm(id, Some(now.saturating_add(CALL_INTERVAL)));
        }
    }

    /// When the next REQ has waited long enough.
    #[inline]
    pub(super) fn grace_deadline(&self) -> Option<u64> {
        let (origin, _) = self.grace.waiting.front()?;
        Some(origin.now.saturating_add(self.config.listen_grace))
    }

    /// Refuses the REQs that waited in vain.
    pub(super) fn expire_grace(&mut self, now: u64) {
        while self.grace_deadline().is_some_and(|deadline| deadline <= now) {
            if let Some((origin, req)) = self.grace.waiting.pop_front() {
                self.grace.gone.remove(&req.service_id);
                self.refuse(origin, &req, reason::INVALID_SERVICE_ID);
            }
        }
    }
}
