//! Clients: each has a few requests under way, which [`remora_replica::client`] asks for at one node and then at another.
//! Few keys, so that operations collide; every value written is unique, so that a read tells whom it saw.

use std::collections::BTreeMap;

use remora_replica::client::{ClientConfig, ReplicaClient, Ticket};

use crate::engine::{Action, Body, Op, Value, is_counter};
use crate::events::{MS, SECOND, Time};
use crate::rng::{Purpose, Rng};

/// How many keys and clients there are, and how patient clients are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Clients.
    pub clients: u32,
    /// Requests that a client has under way at most.
    pub window: u32,
    /// Keys.
    pub keys: u32,
    /// Mean pause between two requests, ns.
    pub pause: Time,
    /// How long a node may be silent before a client asks another one, ns.
    pub silence: Time,
    /// After how long a client gives a request up, ns.
    pub timeout: Time,
    /// Whether writes are sent again when nobody knows whether they were done.
    pub retry: bool,
    /// Writes among requests, in a million.
    pub writes: u32,
    /// Whether operations belong to scopes, and scopes end with `[PERSIST]`.
    pub scopes: bool,
    /// So many of a client's scopes in turn have the same number at the nodes.
    pub scopes_a_number: u64,
    /// At each node somebody reads at these intervals (ns), whether it answers or not: so there is always a request that
    /// was made while it stood still.
    pub watch: Option<Time>,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            clients: 6,
            window: 1,
            keys: 3,
            pause: 60 * MS,
            silence: 400 * MS,
            timeout: 5 * SECOND,
            retry: true,
            writes: 500_000,
            scopes: false,
            scopes_a_number: 1,
            watch: None,
        }
    }
}

impl Workload {
    /// Names under which clients make requests.
    pub fn names(&self) -> usize {
        (self.clients * self.window) as usize
    }
}

/// Numbers are spaced so widely that additions never make one written value look like another.
const SPACING: u64 = 1 << 20;

/// One client.
#[derive(Debug)]
pub struct Actor {
    rng: Rng,
    index: u32,
    writes: u64,
    scope_number: u64,
    /// Requests in the current scope.
    in_scope: u32,
    /// The value it saw last of each key: what compare-and-swap expects.
    seen: Vec<Value>,
    /// Its half of the protocol.
    pub requests: ReplicaClient,
    /// The only node that it knows of: it reads a key there and nowhere else.
    only: Option<usize>,
    /// Counts its connections, so that what was meant for an earlier one is told apart.
    pub line: u64,
    /// The node that it is connected with, and which of its lives that is.
    pub peer: Option<(usize, u64)>,
    /// When it is looked after next.
    pub armed: Option<Time>,
    /// Whether it has made its last requests of the ordinary kind.
    pub made_last: bool,
    /// What is under way.
    pub flights: BTreeMap<Ticket, Flight>,
    /// It reads at these intervals, whatever is under way.
    pub watches: Option<Time>,
}

/// A request under way.
#[derive(Debug)]
pub struct Flight {
    /// What was asked for.
    pub body: Body,
    /// The scope it belongs to, unique in the storm.
    pub scope: u64,
    /// Its operations in the history.
    pub records: Vec<usize>,
}

impl Actor {
    /// A client that has done nothing.
    pub fn new(seed: u64, index: u32, nodes: usize, workload: &Workload) -> Self {
        let mut rng = Rng::new(seed, Purpose::Client(index));
        let node = rng.below(nodes as u64) as usize;
        let seen = vec![None; workload.keys as usize];
        let config = ClientConfig {
            node,
            timeout: workload.timeout,
            retry: workload.retry,
            silence: workload.silence,
            ..ClientConfig::new(nodes, (u64::from(index) + 1) << 20)
        };
        Self {
            rng,
            index,
            writes: 0,
            scope_number: 1,
            in_scope: 0,
            seen,
            requests: ReplicaClient::new(config),
            only: None,
            line: 0,
            peer: None,
            armed: None,
            made_last: false,
            flights: BTreeMap::new(),
            watches: None,
        }
    }

    /// One that reads at `node` and nowhere else, and does not give up.
    pub fn reader(seed: u64, index: u32, node: usize, workload: &Workload) -> Self {
        let workload = Workload { timeout: Time::MAX, ..*workload };
        Self { only: Some(node), made_last: true, ..Self::new(seed, index, 1, &workload) }
    }

    /// One that reads at `node` and nowhere else, again and again, whether it is answered or not.
    pub fn watcher(seed: u64, index: u32, node: usize, workload: &Workload) -> Self {
        Self { only: Some(node), made_last: true, watches: workload.watch, ..Self::new(seed, index, 1, workload) }
    }

    /// What a watcher reads next.
    pub fn look(&mut self, workload: &Workload) -> Body {
        Body::get(self.rng.below(u64::from(workload.keys)) as u32)
    }

    /// The node that it means by a number.
    pub fn node(&self, number: usize) -> usize {
        self.only.unwrap_or(number)
    }

    /// The scope that its next request belongs to.
    pub fn scope(&self) -> u64 {
        u64::from(self.index) << 32 | self.scope_number
    }

    /// How long to wait before the next request.
    pub fn pause(&mut self, workload: &Workload) -> Time {
        // Now and then none: bursts make writes race.
        if self.rng.chance(300_000) { 0 } else { self.rng.between(0, workload.pause * 2) }
    }

    /// What to ask for next, and in which scope; nothing while a PERSIST is under way, or one is due that waits for
    /// the scope's other requests.
    pub fn next(&mut self, workload: &Workload) -> Option<(Body, u64)> {
        if self.flights.values().any(|flight| flight.body == Body::PersistScope) {
            return None;
        }
        let scope = self.scope();
        let body = if workload.scopes && self.in_scope > 5 {
            if !self.flights.is_empty() {
                return None;
            }
            self.new_scope();
            Body::PersistScope
        } else {
            self.in_scope += 1;
            Body::Ops(self.operations(workload))
        };
        Some((body, scope))
    }

    /// It turns to another node. A scope lives at one coordinator, so it ends here, without `[PERSIST]`.
    pub fn moves_on(&mut self) {
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
        let mut clients = [0, 1].map(|index| Actor::new(1, index, 5, &workload));
        let (mut values, mut kinds, mut batches, mut persists) = (HashSet::new(), HashSet::new(), 0, 0);
        for round in 0..2000 {
            let (body, scope) = clients[round % 2].next(&workload).unwrap();
            assert_eq!((scope >> 32) as usize, round % 2);
            let Body::Ops(ops) = body else {
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
