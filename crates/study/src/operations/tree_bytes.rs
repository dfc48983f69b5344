//! Look-ups in B-trees whose keys are bytes, by the length of the keys.

use remora_kernel::btree::{ByteParams, LOCKED, Shape, TreeRef, key_bytes};
use remora_kernel::{Status, op};
use remora_store::bench_tree::byte_key;
use remora_store::btree;
use remora_store::hash::mix;

use super::{Common, Loaded, Operation, Parameters, Workload};
use crate::StudyError;
use crate::calling::{Calls, Checked};
use crate::records::Records;
use crate::store::Loader;
use crate::validate::Prediction;
use crate::where_::SoftwareTimes;
use crate::workload::{Distribution, Picker};

/// Look keys that are bytes up. Parameter: bytes of a key.
pub const TREE_BYTES: Operation = Operation(&TreeBytes);

/// Lengths of keys; the longest wants nodes of 2 KB.
const KEY_LENGTHS: [u64; 3] = [16, 64, 256];
/// Bytes of a node.
const NODE_BYTES: usize = 2048;
const _: () = assert!(key_bytes(NODE_BYTES) == 256);
/// Part of a node that is filled, in percent.
const FILL: u8 = 80;

struct TreeBytes;

/// A tree for each length. Key `i` stands for the number `i`.
struct Trees {
    trees: Vec<(u64, TreeRef)>,
    keys: u64,
    distribution: Distribution,
    seed: u64,
}

impl Workload for TreeBytes {
    fn name(&self) -> &'static str {
        "tree-bytes"
    }

    fn title(&self) -> &'static str {
        "B-tree look-up of byte keys"
    }

    fn parameters(&self) -> Option<Parameters> {
        Some(Parameters { unit: "B keys", axis: "bytes of a key", values: &KEY_LENGTHS })
    }

    /// Only if it is asked for by name.
    fn is_measured(&self, _: bool) -> bool {
        false
    }

    fn bytes(&self, records: &Records) -> u64 {
        let pair = |len: u64| (16 + len) * 100 / u64::from(FILL);
        KEY_LENGTHS.into_iter().map(|len| records.len() as u64 * pair(len)).sum()
    }

    fn load(&self, loader: &mut Loader<'_>, records: &Records) -> Result<Box<dyn Loaded>, StudyError> {
        let (keys, seed, distribution) = (records.len() as u64, loader.seed(), loader.distribution());
        let mut trees = Vec::new();
        for len in KEY_LENGTHS {
            let pairs = (0..keys).map(|number| (key(number, len), mix(number ^ seed)));
            let tree = btree::load_bytes(Shape { node_bytes: NODE_BYTES, fill: FILL }, pairs, 0, 0, loader)?;
            trees.push((len, tree));
        }
        Ok(Box::new(Trees { trees, keys, distribution, seed }))
    }

    /// No probe tells what a call of this takes.
    fn predict(&self, _: &Prediction<'_>, _: f64) -> Option<(SoftwareTimes, f64)> {
        None
    }
}

fn key(number: u64, len: u64) -> Vec<u8> {
    let mut key = vec![0; len as usize];
    byte_key(number, &mut key);
    key
}

impl Loaded for Trees {
    fn calls<'a>(&'a self, _: &'a Common<'_>, len: u64, seed: u64) -> Option<Box<dyn Calls + 'a>> {
        let (_, tree) = *self.trees.iter().find(|(other, _)| *other == len)?;
        let picker = Picker::new(self.distribution, self.keys, seed);
        Some(Box::new(LookUps { tree, len, seed: self.seed, picker }))
    }
}

/// Look-ups, by the number of the key.
struct LookUps {
    tree: TreeRef,
    len: u64,
    seed: u64,
    picker: Picker,
}

impl Calls for LookUps {
    fn op(&self) -> u64 {
        op::TREE_GET
    }

    fn next(&mut self) -> u64 {
        self.picker.pick()
    }

    fn params(&self, id: u64, params: &mut Vec<u8>) {
        ByteParams::new(self.tree, &key(id, self.len), 0).encode(params);
    }

    fn check(&self, id: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        match status {
            LOCKED => Ok(Checked::GaveUp),
            Status::Ok if reply == mix(id ^ self.seed).to_le_bytes() => Ok(Checked::RIGHT),
            status => Err(format!("look-up of key {id} of {} bytes ended with {status:?}: {reply:02x?}", self.len)),
        }
    }
}
