//! A B-tree: look-ups, scans, and writes among look-ups.

use std::cell::Cell;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remora_kernel::btree::{LOCKED, Put, Shape, TreeParams, TreeRef};
use remora_kernel::{Placement, Status, op};
use remora_store::btree;
use remora_store::hash::mix;

use super::{Common, Loaded, Operation, Parameters, Workload};
use crate::StudyError;
use crate::calling::{Calls, Checked};
use crate::records::Records;
use crate::store::Loader;
use crate::validate::Prediction;
use crate::where_::SoftwareTimes;
use crate::workload::{Distribution, Picker, below};

/// Look keys of a B-tree up.
pub const TREE_GET: Operation =
    Operation(&Tree { name: "tree-get", title: "B-tree look-up", does: Does::Get, parameters: None });

/// Read keys of a B-tree in order. Parameter: how many.
pub const TREE_SCAN: Operation = Operation(&Tree {
    name: "tree-scan",
    title: "B-tree scan",
    does: Does::Scan,
    parameters: Some(Parameters { unit: "keys", axis: "keys of a scan", values: &[10, 100] }),
});

/// Insert and delete keys of a B-tree, among look-ups. Parameter: percent of the calls that write.
pub const TREE_WRITE: Operation = Operation(&Tree {
    name: "tree-write",
    title: "B-tree inserts and deletes among look-ups",
    does: Does::Write,
    parameters: Some(Parameters { unit: "% writes", axis: "calls that write, in percent", values: &[0, 50, 100] }),
});

/// Bytes of a node.
const NODE_BYTES: usize = 512;
/// Part of a node that is filled at first, in percent.
const FILL: u8 = 80;
/// Keys that a stream of calls has inserted before it deletes them again.
const WINDOW: u64 = 4096;
/// Slots that inserts may take, beside as many again as the tree has.
const SPARE: u64 = 4096;
/// Owners with logs: one client at a time.
const OWNERS: u16 = 1;

struct Tree {
    name: &'static str,
    title: &'static str,
    does: Does,
    parameters: Option<Parameters>,
}

#[derive(Clone, Copy, PartialEq)]
enum Does {
    Get,
    Scan,
    Write,
}

/// A tree on the node. Key `i` of those loaded is `i << STEP`; those between are for inserts.
struct LoadedTree {
    does: Does,
    tree: TreeRef,
    keys: u64,
    distribution: Distribution,
    seed: u64,
    /// Streams of calls so far: each inserts keys of its own.
    streams: Cell<u64>,
}

/// Bits between two keys that are loaded.
const STEP: u32 = 32;

impl Workload for Tree {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self) -> &'static str {
        self.title
    }

    fn parameters(&self) -> Option<Parameters> {
        self.parameters
    }

    /// Only if it is asked for by name.
    fn is_measured(&self, _: bool) -> bool {
        false
    }

    fn bytes(&self, records: &Records) -> u64 {
        shape().slots(records.len()) * NODE_BYTES as u64
    }

    fn load(&self, loader: &mut Loader<'_>, records: &Records) -> Result<Box<dyn Loaded>, StudyError> {
        let (keys, seed) = (records.len() as u64, loader.seed());
        let pairs = (0..keys).map(|i| (i << STEP, value(i << STEP, seed)));
        let tree = btree::load(shape(), pairs, records.len(), SPARE, OWNERS, loader)?;
        let (does, distribution) = (self.does, loader.distribution());
        Ok(Box::new(LoadedTree { does, tree, keys, distribution, seed, streams: Cell::new(0) }))
    }

    /// A way down the tree, and for writes what the leaf takes.
    fn predict(&self, prediction: &Prediction<'_>, parameter: f64) -> Option<(SoftwareTimes, f64)> {
        let (scanned, writes) = match self.does {
            Does::Get => (0.0, 0.0),
            Does::Scan => (parameter, 0.0),
            Does::Write => (0.0, parameter),
        };
        let keys = prediction.data.records;
        let levels = shape().levels(keys as usize);
        let leaves = scanned * levels.first().copied().unwrap_or(1) as f64 / keys.max(1.0);
        let reply = 8.0 + 16.0 * scanned;
        let way = prediction.tree(&levels, NODE_BYTES as f64, SEARCH_CYCLES, (leaves, reply))?;
        Some((prediction.tree_writes(way, NODE_BYTES as f64, writes)?, 0.0))
    }
}

/// Cycles of a search among a node's keys: five comparisons, each half of a branch that goes the other way.
const SEARCH_CYCLES: f64 = 50.0;

fn shape() -> Shape {
    Shape { node_bytes: NODE_BYTES, fill: FILL }
}

/// What a key has for a value.
fn value(key: u64, seed: u64) -> u64 {
    mix(key ^ seed)
}

impl Loaded for LoadedTree {
    fn calls<'a>(&'a self, _: &'a Common<'_>, parameter: u64, seed: u64) -> Option<Box<dyn Calls + 'a>> {
        let stream = self.streams.get() + 1;
        self.streams.set(stream);
        let (writes, scan) = match self.does {
            Does::Get => (0, 0),
            Does::Scan => (0, parameter),
            Does::Write => (parameter, 0),
        };
        Some(Box::new(TreeCalls {
            loaded: self,
            stream,
            writes,
            scan,
            tree: self.tree,
            picker: Picker::new(self.distribution, self.keys, seed ^ stream),
            rng: ChaCha8Rng::seed_from_u64(seed ^ stream),
            inserted: 1,
            deleted: 1,
        }))
    }
}

/// Calls on a tree.
struct TreeCalls<'a> {
    loaded: &'a LoadedTree,
    /// Its own bits in keys that it inserts.
    stream: u64,
    /// Percent of the calls that write.
    writes: u64,
    /// Keys of a scan; 0 for none.
    scan: u64,
    tree: TreeRef,
    picker: Picker,
    rng: ChaCha8Rng,
    /// Inserts and deletes begun.
    inserted: u64,
    deleted: u64,
}

/// A call is a number: what it does in the highest bits, then which record or which of the stream's own keys.
const WHAT: u32 = 62;
const GET: u64 = 0;
const INSERT: u64 = 1;
const DELETE: u64 = 2;

impl TreeCalls<'_> {
    /// The key of a call.
    fn key(&self, id: u64) -> u64 {
        let number = id & ((1 << WHAT) - 1);
        match id >> WHAT {
            GET => number << STEP,
            // Anywhere in the tree, each once: a stream's keys differ in what lies below a loaded one.
            _ => {
                let place = ((u128::from(mix(number ^ self.stream << 40)) * u128::from(self.loaded.keys)) >> 64) as u64;
                place << STEP | (self.stream << 24 & 0xff00_0000) | (number % (1 << 24)).max(1)
            }
        }
    }
}

impl Calls for TreeCalls<'_> {
    fn op(&self) -> u64 {
        if self.scan > 0 { op::TREE_SCAN } else { op::TREE_GET }
    }

    fn op_of(&self, id: u64) -> u64 {
        match id >> WHAT {
            GET => self.op(),
            INSERT => op::TREE_PUT,
            _ => op::TREE_DELETE,
        }
    }

    fn ops(&self) -> Vec<u64> {
        let [reads, writes] = [&[self.op()][..], &[op::TREE_PUT, op::TREE_DELETE]];
        match self.writes {
            0 => reads.into(),
            1..100 => [reads, writes].concat(),
            _ => writes.into(),
        }
    }

    /// A client that writes by itself has a log; who runs on the node needs none.
    fn place(&mut self, placement: Placement) {
        self.tree.owner = u16::from(placement == Placement::Client);
    }

    fn next(&mut self) -> u64 {
        if below(&mut self.rng, 100) >= self.writes {
            return self.picker.pick();
        }
        // A key is deleted long after its insert has ended.
        if self.inserted - self.deleted > WINDOW && self.rng.next_u32().is_multiple_of(2) {
            self.deleted += 1;
            return (DELETE << WHAT) | (self.deleted - 1);
        }
        self.inserted += 1;
        (INSERT << WHAT) | (self.inserted - 1)
    }

    fn params(&self, id: u64, params: &mut Vec<u8>) {
        let key = self.key(id);
        let new = match id >> WHAT {
            GET => self.scan,
            _ => value(key, self.loaded.seed),
        };
        let how = if id >> WHAT == INSERT { Put::Insert } else { Put::Upsert };
        params.extend_from_slice(&TreeParams { how, ..TreeParams::new(self.tree, key, new) }.encode());
    }

    /// A look-up finds its value, an insert nothing that was there, a delete what was inserted; a scan brings keys in
    /// order, each with its value, and none that was loaded is missing.
    fn check(&self, id: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        let key = self.key(id);
        let what = ["look-up", "insert", "delete"][(id >> WHAT) as usize % 3];
        if status == LOCKED {
            return Ok(Checked::GaveUp);
        }
        if status != Status::Ok {
            return Err(format!("{what} of key {key:#x} ended with {status:?}"));
        }
        let mut words = reply.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        if self.scan > 0 {
            let (mut next, mut last, mut count) = (key, None, 0);
            while let (Some(found), Some(held)) = (words.next(), words.next()) {
                if held != value(found, self.loaded.seed) {
                    return Err(format!("scan from {key:#x}: key {found:#x} has the value {held:#x}"));
                }
                // Between two that were loaded there may be others.
                if last.is_some_and(|last| found <= last) || found < key || found > next {
                    return Err(format!(
                        "scan from {key:#x}: after {count} keys {found:#x} came, and {next:#x} did not"
                    ));
                }
                (next, last) = (((found >> STEP) + 1) << STEP, Some(found));
                count += 1;
            }
            let expected = self.scan.min(self.loaded.keys - (key >> STEP));
            return if count == self.scan || next >> STEP == self.loaded.keys {
                Ok(Checked::RIGHT)
            } else {
                Err(format!("scan from {key:#x}: {count} keys of {expected}"))
            };
        }
        let expected = (id >> WHAT != INSERT).then(|| value(key, self.loaded.seed));
        if words.next() == expected {
            Ok(Checked::RIGHT)
        } else {
            Err(format!("{what} of key {key:#x} brought {reply:02x?}"))
        }
    }
}
