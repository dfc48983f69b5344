//! Calls on a tree that is split by range between host and card, and on nothing.

use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;
use remora_kernel::btree::{LOCKED, Put, TreeParams, TreeRef};
use remora_kernel::{Status, op};

use super::clients::{CARD, HOST, How, World};
use super::made::{MadeTree, NOTHING, pair};
use super::{Ground, Outcome};
use crate::bluefield::study::{At, Run, Setup};
use crate::calling::{Calls, Checked};
use crate::modelled::ModelError;
use crate::workload::below;

/// A search that warms caches brings about so many lines of the last level.
const LINES_A_SEARCH: u64 = 3;
/// A small tree is in the caches when one pair in so many has been looked up.
const SEARCHES_OF_A_PAIR: u64 = 4;

/// Look-ups and updates of keys, uniform over all.
struct TreeCalls {
    /// The tree of the card's keys, which come first, and that of the host's.
    trees: [Option<TreeRef>; 2],
    /// Keys of the card, and of both.
    split: u64,
    keys: u64,
    /// Updates in per cent.
    writes: u64,
    seed: u64,
    rng: ChaCha8Rng,
}

/// The bit of a call that is an update; below it stands which pair.
const UPDATE: u64 = 1 << 63;

impl TreeCalls {
    fn tree(&self, id: u64) -> Option<TreeRef> {
        self.trees[usize::from(id & !UPDATE >= self.split)]
    }
}

impl Calls for TreeCalls {
    fn op(&self) -> u64 {
        op::TREE_GET
    }

    fn op_of(&self, id: u64) -> u64 {
        if id & UPDATE == 0 { op::TREE_GET } else { op::TREE_PUT }
    }

    fn next(&mut self) -> u64 {
        let number = below(&mut self.rng, self.keys);
        if below(&mut self.rng, 100) < self.writes { number | UPDATE } else { number }
    }

    fn params(&self, id: u64, params: &mut Vec<u8>) {
        let Some(tree) = self.tree(id) else { return };
        let (key, value) = pair(id & !UPDATE, self.seed);
        let (value, how) = if id & UPDATE == 0 { (0, Put::Upsert) } else { (value, Put::Update) };
        params.extend_from_slice(&TreeParams { how, ..TreeParams::new(tree, key, value) }.encode());
    }

    /// Updates write the value that the key has: each call brings it.
    fn check(&self, id: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        let (key, value) = pair(id & !UPDATE, self.seed);
        match status {
            LOCKED => Ok(Checked::GaveUp),
            Status::Ok if reply == value.to_le_bytes() => Ok(Checked::RIGHT),
            status => Err(format!("key {key:#x} ended with {status:?} and {reply:02x?} instead of {value:#x}")),
        }
    }
}

/// A tree by calls, by the threads themselves, or by one-sided READs.
pub(super) fn run(ground: &Ground, setup: &Setup) -> Result<Outcome, ModelError> {
    let mut world = World::new(ground, setup)?;
    let keys = setup.keys.max(100);
    let share = match setup.place {
        Some(At::Card) => 100,
        Some(At::Host) => 0,
        None => setup.share.min(100),
    };
    let split = keys * share / 100;
    let mut trees = [None; 2];
    for (tree, (machine, range)) in trees.iter_mut().zip([(CARD, 0..split), (HOST, split..keys)]) {
        if range.is_empty() {
            continue;
        }
        let pairs = (range.start, range.end - range.start);
        let made = MadeTree::new(&mut world.fabric, machine, pairs, (setup.node_bytes, ground.seed))?;
        if setup.run != Run::TreeReads {
            warm((ground, setup), &mut world, machine, &made, pairs.1);
        }
        *tree = Some(made.at);
        world.trees.borrow_mut().push(made);
    }
    let rng = ChaCha8Rng::seed_from_u64(ground.seed);
    let mut calls = TreeCalls { trees, split, keys, writes: setup.writes, seed: ground.seed, rng };
    let how = match setup.run {
        Run::LocalTree => How::There,
        Run::TreeReads => How::Verbs,
        _ => How::Call,
    };
    let machine = move |id: u64| if id & !UPDATE < split { CARD } else { HOST };
    world.measure((&mut calls, how), &machine, (setup.ahead, setup.operations))
}

/// Lets threads search the tree until the last level holds what it will.
fn warm((ground, setup): (&Ground, &Setup), world: &mut World, machine: u16, tree: &MadeTree, pairs: u64) {
    let spec = ground.fabric(setup.threads);
    let Some(threads) = &spec.machines[usize::from(machine)].threads else { return };
    let mut rng = ChaCha8Rng::seed_from_u64(ground.seed ^ 1);
    let searches = (threads.last.size_bytes / 64 / LINES_A_SEARCH).min(pairs / SEARCHES_OF_A_PAIR);
    for search in 0..searches {
        let thread = search as usize % threads.cores;
        for slot in tree.plan.path(below(&mut rng, pairs)) {
            world.fabric.warm(machine, thread, tree.va(slot), tree.at.node_bytes.into());
        }
    }
}

/// Calls that do nothing.
struct Nothing;

impl Calls for Nothing {
    fn op(&self) -> u64 {
        NOTHING
    }

    fn next(&mut self) -> u64 {
        0
    }

    /// As many bytes as a look-up has.
    fn params(&self, _: u64, params: &mut Vec<u8>) {
        params.resize(TreeParams::LEN, 0);
    }

    fn check(&self, _: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        match (status, reply) {
            (Status::Ok, []) => Ok(Checked::RIGHT),
            _ => Err(format!("an empty call ended with {status:?} and {} bytes", reply.len())),
        }
    }
}

/// Calls of a kernel that does nothing.
pub(super) fn nothing(ground: &Ground, setup: &Setup) -> Result<Outcome, ModelError> {
    let machine = setup.place.unwrap_or(At::Card).machine();
    World::new(ground, setup)?.measure((&mut Nothing, How::Call), &|_| machine, (setup.ahead, setup.operations))
}
