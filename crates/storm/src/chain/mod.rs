//! Storms over a chain of replicas: transactions under seeded faults, and whether their history is strictly serializable.
//!
//! Keys hold lists. A client reads some, and appends to them in a transaction that expects what it has read, so that each list
//! tells the order of its writers (Kingsbury and Alvaro, "Elle", VLDB 2020). [`elle`] looks for cycles; [`export`] writes
//! histories that Elle itself reads.

pub mod elle;
pub mod export;
mod kept;
pub mod lists;
mod looks;
mod memory;
#[cfg(test)]
mod tests;
mod world;

use remora_replica::chain::{ChainMarks, ChainMutation};

use crate::events::Time;
use crate::nemesis::KINDS;
use crate::net::NetCounts;
pub use world::run;

/// A part of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChainOp {
    /// A key, and the list that was there.
    Read(u64, Vec<u32>),
    /// A key, and what was put at its list's end; no other has this number.
    Append(u64, u32),
}

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChainEnd {
    /// It was done.
    Done,
    /// It was not done.
    Failed,
    /// Nobody knows; it may still be done.
    Unknown,
}

/// A transaction as its client saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainTxn {
    /// The client.
    pub client: usize,
    /// When it began, ns.
    pub called: Time,
    /// When it ended, ns.
    pub returned: Time,
    /// How.
    pub end: ChainEnd,
    /// Its parts. Lists only where it was done.
    pub ops: Vec<ChainOp>,
}

/// One storm: all that is needed to have it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainCase {
    /// The seed.
    pub seed: u64,
    /// Nodes.
    pub nodes: usize,
    /// A seeded fault of the engine.
    pub mutation: Option<ChainMutation>,
}

impl ChainCase {
    /// The command that runs it again.
    pub fn command(&self) -> String {
        format!("remora storm chain --storms 1 --seed {} --nodes {}", self.seed, self.nodes)
    }
}

/// Seeded faults that storms find, by their names on the command line.
pub const CHAIN_STORM_MUTANTS: [(&str, ChainMutation); 10] = [
    ("early-ack", ChainMutation::EarlyAck),
    ("early-answer", ChainMutation::EarlyAnswer),
    ("no-queue", ChainMutation::NoQueue),
    ("dirty-read", ChainMutation::DirtyRead),
    ("no-lease", ChainMutation::NoLease),
    ("forgets-sessions", ChainMutation::ForgetsSessions),
    ("keeps-early", ChainMutation::KeepsEarly),
    ("no-fence", ChainMutation::NoFence),
    ("early-window", ChainMutation::EarlyWindow),
    ("fills-disk", ChainMutation::FillsDisk),
];

/// How one-sided reads of a head's window end.
pub const LOOKS: [&str; 3] =
    ["read one-sided", "one-sided reads that met a write", "one-sided reads that were refused"];

/// Why a storm failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChainFailure {
    /// The history is not strictly serializable, or a log got more than its disk had room for.
    Wrong(String),
    /// What did not finish after the faults.
    Stuck(String),
    /// The engine panicked, or did what no engine may.
    Broken(String),
}

/// What happened in a storm.
#[derive(Debug)]
pub struct ChainStormReport {
    /// What clients saw, in the order of calls.
    pub history: Vec<ChainTxn>,
    /// Simulated time, ns.
    pub simulated: Time,
    /// Faults that took effect, by kind.
    pub faults: [u64; KINDS.len()],
    /// The network's.
    pub net: NetCounts,
    /// How often all memory was lost at once.
    pub blackouts: u64,
    /// Lines of memory that crashes tore off unflushed writes.
    pub lost_lines: u64,
    /// How often each of the engine's marks was reached.
    pub marks: [u64; ChainMarks::NAMES.len()],
    /// One-sided reads of a head's window, by how they ended: see [`LOOKS`].
    pub looks: [u64; LOOKS.len()],
    /// What failed, if anything did.
    pub failure: Option<ChainFailure>,
    /// What each node had come to, if something did.
    pub states: Vec<String>,
}
