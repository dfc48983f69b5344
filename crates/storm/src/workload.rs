//! Clients: each has one request in flight, asks a node again or another one when it gets no answer, and gives up in the
//! end. Few keys, so that operations collide; every value written is unique, so that a read tells whom it saw.

use crate::engine::{Action, Body, Op, Request, Value, is_counter};
use crate::events::{MS, Time};
use crate::rng::{Purpose, Rng};

/// How many keys and clients there are, and how patient clients are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Clients.
    pub clients: u32,
    /// Keys.
    pub keys: u32,
    /// Mean pause between a client's requests, ns.
    pub pause: Time,
    /// How long a client waits before it asks another node, ns.
    pub patience: Time,
    /// How often it asks before it gives up.
    pub tries: u32,
    /// Writes among requests, in a million.
    pub writes: u32,
    /// Whether to end scopes with [PERSIST].
    pub scopes: bool,
}

impl Default for Workload {
    fn default() -> Self {
        Self { clients: 6, keys: 3, pause: 60 * MS, patience: 400 * MS, tries: 6, writes: 500_000, scopes: false }
    }
}

/// Numbers are spaced so widely that additions never make one written value look like another.
const SPACING: u64 = 1 << 20;

/// One client.
#[derive(Debug)]
pub struct Client {
    rng: Rng,
    index: u32,
    /// Sessions so far: a client that gave up comes back as a new one.
    sessions: u64,
    requests: u64,
    writes: u64,
    scope_number: u64,
    /// Requests in the current scope.
    in_scope: u32,
    /// The value it saw last of each key: what compare-and-swap expects.
    seen: Vec<Value>,
    /// The node it talks to.
    pub node: usize,
    /// Whether it may talk to no other: it reads a key at every node.
    stays: bool,
    /// Whether it has made its last request of the ordinary kind.
    pub made_last: bool,
    /// Counts its pauses.
    pub turn: u64,
    /// What is in flight.
    pub flight: Option<Flight>,
}

/// A request in flight.
#[derive(Debug)]
pub struct Flight {
    /// The request.
    pub request: Request,
    /// Its operations in the history.
    pub records: Vec<usize>,
    /// How often it was sent.
    pub tries: u32,
    /// Whether any node may have taken it: then it cannot count as refused.
    pub maybe_taken: bool,
}

impl Client {
    /// A client that has done nothing.
    pub fn new(seed: u64, index: u32, nodes: usize, keys: u32) -> Self {
        let mut rng = Rng::new(seed, Purpose::Client(index));
        let node = rng.below(nodes as u64) as usize;
        let seen = vec![None; keys as usize];
        Self {
            rng,
            index,
            sessions: 1,
            requests: 0,
            writes: 0,
            scope_number: 1,
            in_scope: 0,
            seen,
            node,
            stays: false,
            made_last: false,
            turn: 0,
            flight: None,
        }
    }

    /// The session's number, unique among all clients.
    pub fn session(&self) -> u64 {
        u64::from(self.index) << 32 | self.sessions
    }

    /// The client that a session belongs to.
    pub fn of_session(session: u64) -> usize {
        (session >> 32) as usize
    }

    fn scope(&self) -> u64 {
        u64::from(self.index) << 32 | self.scope_number
    }

    /// How long to wait before the next request.
    pub fn pause(&mut self, workload: &Workload) -> Time {
        // Now and then none: bursts make writes race.
        if self.rng.chance(300_000) { 0 } else { self.rng.between(0, workload.pause * 2) }
    }

    /// The next request, which is then in flight.
    pub fn next(&mut self, workload: &Workload) -> Request {
        self.requests += 1;
        self.in_scope += 1;
        let scope = self.scope();
        let body = if workload.scopes && self.in_scope > 5 {
            self.new_scope();
            Body::PersistScope
        } else {
            Body::Ops(self.operations(workload))
        };
        Request { client: self.session(), number: self.requests, attempt: 0, scope, body }
    }

    /// The client gives up and comes back as a new one, at another node.
    pub fn renew(&mut self, nodes: usize) {
        self.sessions += 1;
        self.requests = 0;
        self.move_on(nodes);
    }

    /// A read of `key` at `node` and nowhere else.
    pub fn last_read(&mut self, node: usize, key: u32) -> Request {
        (self.node, self.stays) = (node, true);
        self.requests += 1;
        let body = Body::Ops(vec![Op { key, action: Action::Get }]);
        Request { client: self.session(), number: self.requests, attempt: 0, scope: self.scope(), body }
    }

    /// Turns to another node. A scope lives at one coordinator, so it ends here, without [PERSIST].
    pub fn move_on(&mut self, nodes: usize) {
        if self.stays {
            return;
        }
        self.node = (self.node + self.rng.between(1, (nodes as u64 - 1).max(1)) as usize) % nodes;
        self.new_scope();
    }

    /// Remembers what it saw.
    pub fn saw(&mut self, key: u32, value: Value) {
        self.seen[key as usize] = value;
    }

    fn new_scope(&mut self) {
        self.scope_number += 1;
        self.in_scope = 0;
    }

    fn operations(&mut self, workload: &Workload) -> Vec<Op> {
        let batch = self.rng.chance(100_000);
        let count = if batch { self.rng.between(2, u64::from(workload.keys.clamp(2, 4))) } else { 1 };
        let first = self.rng.below(u64::from(workload.keys)) as u32;
        // A batch names each key once.
        (0..count.min(u64::from(workload.keys)) as u32)
            .map(|index| (first + index) % workload.keys)
            .map(|key| Op { key, action: self.action(workload, key) })
            .collect()
    }

    fn action(&mut self, workload: &Workload, key: u32) -> Action {
        if !self.rng.chance(workload.writes) {
            return Action::Get;
        }
        match self.rng.weighted(&[6, 1, 2, if is_counter(key) { 2 } else { 0 }]) {
            0 => Action::Put(self.unique()),
            1 => Action::Delete,
            2 => Action::CompareSwap { expected: self.seen[key as usize], new: self.unique() },
            _ => Action::FetchAdd(self.rng.between(1, 9)),
        }
    }

    fn unique(&mut self) -> u64 {
        self.writes += 1;
        (u64::from(self.index) << 24 | self.writes) * SPACING
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn requests_are_unique_and_cover_all_actions() {
        let workload = Workload { scopes: true, ..Workload::default() };
        let mut clients = [Client::new(1, 0, 5, 3), Client::new(1, 1, 5, 3)];
        let (mut values, mut kinds, mut batches, mut persists) = (HashSet::new(), HashSet::new(), 0, 0);
        for round in 0..2000 {
            let client = &mut clients[round % 2];
            let request = client.next(&workload);
            assert_eq!(Client::of_session(request.client), round % 2);
            let Body::Ops(ops) = request.body else {
                persists += 1;
                continue;
            };
            batches += usize::from(ops.len() > 1);
            assert_eq!(ops.iter().map(|op| op.key).collect::<HashSet<_>>().len(), ops.len());
            for op in ops {
                kinds.insert(std::mem::discriminant(&op.action));
                if let Action::Put(value) | Action::CompareSwap { new: value, .. } = op.action {
                    assert!(values.insert(value), "written twice");
                }
            }
        }
        assert!(kinds.len() == 5 && batches > 100 && persists > 200, "{} {batches} {persists}", kinds.len());
    }
}
