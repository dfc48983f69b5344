//! The Login functions of two microservices (section VIII-C): sequences of client-reads and client-writes.

use std::collections::BTreeMap;

use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;
use remora_model::cluster::{ClusterSpec, WorkerAsk, WorkerDone, WorkerLoad};

use super::point::{Login, PointFigures, node_seed};
use crate::workload::below;

/// Users that log in.
const USERS: u64 = 100_000;

/// Every worker logs in again and again. Social asks for one record and, when it is not there, looks the user up, which
/// is one more read, and sets it; Media asks for three.
pub(super) struct Logins {
    login: Login,
    hit: u64,
    rngs: Vec<ChaCha8Rng>,
    left: Vec<u64>,
    measured: u64,
    /// What each worker does yet, last first, and how long it has taken.
    under_way: BTreeMap<(u8, u16), (Vec<WorkerAsk>, u64, bool)>,
    count: u64,
    sum: u64,
}

impl Logins {
    pub(super) fn new(login: Login, hit: u64, spec: &ClusterSpec, requests: u64, seed: u64) -> Self {
        let rng = |node| ChaCha8Rng::seed_from_u64(node_seed(seed, node));
        Self {
            login,
            hit,
            rngs: (0..spec.nodes).map(rng).collect(),
            left: vec![requests + requests / 4; usize::from(spec.nodes)],
            measured: requests,
            under_way: BTreeMap::new(),
            count: 0,
            sum: 0,
        }
    }

    pub(super) fn outcome(&self) -> PointFigures {
        PointFigures { login_ns: self.sum as f64 / self.count.max(1) as f64 / 1e3, ..PointFigures::default() }
    }

    /// A user's Login, last request first.
    fn function(&mut self, node: u8) -> Vec<WorkerAsk> {
        let rng = &mut self.rngs[usize::from(node)];
        let user = below(rng, USERS);
        let found = below(rng, 100) < self.hit;
        match self.login {
            Login::Social if found => vec![WorkerAsk::Read(user)],
            Login::Social => vec![WorkerAsk::Write(user), WorkerAsk::Read(USERS + user), WorkerAsk::Read(user)],
            Login::Media => {
                vec![WorkerAsk::Read(2 * USERS + user), WorkerAsk::Read(USERS + user), WorkerAsk::Read(user)]
            }
        }
    }
}

impl WorkerLoad for Logins {
    fn next(&mut self, node: u8, worker: u16) -> Option<WorkerAsk> {
        if self.under_way.get(&(node, worker)).is_none_or(|(asks, ..)| asks.is_empty()) {
            let left = &mut self.left[usize::from(node)];
            *left = left.checked_sub(1)?;
            let counts = *left < self.measured;
            let asks = self.function(node);
            self.under_way.insert((node, worker), (asks, 0, counts));
        }
        self.under_way.get_mut(&(node, worker)).and_then(|(asks, ..)| asks.pop())
    }

    fn done(&mut self, node: u8, worker: u16, done: &WorkerDone) {
        let Some((asks, so_far, counts)) = self.under_way.get_mut(&(node, worker)) else { return };
        *so_far += done.latency.0;
        if asks.is_empty() && *counts {
            self.count += 1;
            self.sum += *so_far;
        }
    }
}
