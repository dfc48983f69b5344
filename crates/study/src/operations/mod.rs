//! The operations that a comparison measures.
//!
//! A workload is a file that implements [`Workload`], and a line in [`OPERATIONS`]: it says what it is called and measured
//! with, lays its data out on a node, makes calls and checks their replies, and tells what probes say that it takes.

mod consistent;
mod embed;
mod get;
mod list;
mod sequencer;
mod sized;
mod tree;
mod tree_bytes;

use std::fmt;
use std::ops::Deref;

use remora_lab::writer::WriterConfig;
use remora_real::RemoteRegion;
use remora_store::hash::Table;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) use consistent::OBJECTS;
pub use consistent::{CONSISTENT_GET, Objects};
pub use embed::EMBED;
pub use get::{GET_HIT, GET_MISS, GET_TRACE};
pub use list::{LIST, Lists, Walks};
pub(crate) use sequencer::Numbers;
pub use sequencer::SEQUENCER;
pub use sized::GET_SIZE;
pub use tree::{TREE_GET, TREE_SCAN, TREE_WRITE};
pub use tree_bytes::TREE_BYTES;

use crate::StudyError;
use crate::calling::Calls;
use crate::records::Records;
use crate::report::Report;
use crate::store::Loader;
use crate::trace::Trace;
use crate::validate::Prediction;
use crate::where_::SoftwareTimes;

/// All operations, in the order of measuring and of reports.
pub const OPERATIONS: [Operation; 12] = [
    LIST,
    GET_HIT,
    GET_TRACE,
    GET_MISS,
    GET_SIZE,
    CONSISTENT_GET,
    TREE_GET,
    TREE_SCAN,
    TREE_WRITE,
    TREE_BYTES,
    SEQUENCER,
    EMBED,
];

/// Names of several operations at once.
pub const GROUPS: [(&str, &[Operation]); 1] = [("btree", &[TREE_GET, TREE_SCAN, TREE_WRITE, TREE_BYTES])];

/// Value sizes in bytes, for plots as in StRoM's figures 8 and 9.
pub(crate) const VALUE_SIZES: [u64; 7] = [64, 128, 256, 512, 1024, 2048, 4096];

/// What a comparison does.
pub trait Workload: Sync {
    /// As reports and files spell it.
    fn name(&self) -> &'static str;

    /// A heading.
    fn title(&self) -> &'static str;

    /// What varies, if anything does.
    fn parameters(&self) -> Option<Parameters> {
        None
    }

    /// Whether it is measured unless operations are named, if the user has brought a trace or has not.
    fn is_measured(&self, _trace: bool) -> bool {
        true
    }

    /// Whether its data change meanwhile, so that reads are made again now and then.
    fn changes(&self) -> bool {
        false
    }

    /// What a reader must know of the plot over its parameter.
    fn caption(&self, _report: &Report) -> String {
        String::new()
    }

    /// About how many bytes loading writes: for the progress bar only.
    fn bytes(&self, _records: &Records) -> u64 {
        0
    }

    /// Lays its own data out on the node.
    fn load(&self, loader: &mut Loader<'_>, records: &Records) -> Result<Box<dyn Loaded>, StudyError>;

    /// What a call takes by the probe's figures, and how often an object is read again; `None` if the platform lacks some.
    fn predict(&self, prediction: &Prediction<'_>, parameter: f64) -> Option<(SoftwareTimes, f64)>;
}

/// What a workload's parameter is.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// What it counts.
    pub unit: &'static str,
    /// The label of its axis.
    pub axis: &'static str,
    /// The values that are measured.
    pub values: &'static [u64],
}

/// A workload's data on a node.
pub trait Loaded {
    /// Calls, and checks of their replies; `None` if there are none with this parameter.
    fn calls<'a>(&'a self, common: &'a Common<'_>, parameter: u64, seed: u64) -> Option<Box<dyn Calls + 'a>>;

    /// What the node's writer rewrites meanwhile, if anything.
    fn writer(&self, _parameter: u64, _updates_per_s: u32) -> Option<(&RemoteRegion, WriterConfig)> {
        None
    }
}

/// What several workloads share: the records in their table, and keys to ask for.
pub struct Common<'a> {
    /// The table that holds the records.
    pub table: Table,
    /// Its records.
    pub records: &'a Records,
    /// Keys that it has.
    pub hits: Trace,
    /// Keys that it does not have.
    pub misses: Trace,
    /// The user's.
    pub trace: Option<Trace>,
}

/// A workload of [`OPERATIONS`].
#[derive(Clone, Copy)]
pub struct Operation(&'static dyn Workload);

impl Operation {
    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        OPERATIONS.into_iter().find(|operation| operation.name() == name)
    }

    /// Those of this name, of one or of a group.
    pub fn all_named(name: &str) -> Option<Vec<Self>> {
        let group = GROUPS.into_iter().find(|(group, _)| *group == name).map(|(_, all)| all.to_vec());
        group.or_else(|| Self::named(name).map(|one| vec![one]))
    }

    /// What the parameter counts; `None` for operations without one.
    pub fn unit(self) -> Option<&'static str> {
        self.parameters().map(|parameters| parameters.unit)
    }

    /// Itself with each of its parameters.
    pub fn cells(self) -> Vec<(Self, Option<u64>)> {
        match self.parameters() {
            Some(parameters) => parameters.values.iter().map(|&value| (self, Some(value))).collect(),
            None => vec![(self, None)],
        }
    }
}

impl Deref for Operation {
    type Target = dyn Workload;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl PartialEq for Operation {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Operation {}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Operation {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Operation {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        Self::named(&name).ok_or_else(|| D::Error::custom(format!("there is no operation {name:?}")))
    }
}

/// Where two values part.
fn difference(found: &[u8], expected: &[u8]) -> String {
    match found.iter().zip(expected).position(|(a, b)| a != b) {
        Some(at) => format!("byte {at} of the value is {:#04x} instead of {:#04x}", found[at], expected[at]),
        None => format!("{} bytes came instead of {}", found.len(), expected.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_names_of_their_own_and_are_found_by_them() {
        for operation in OPERATIONS {
            assert_eq!(Operation::named(operation.name()), Some(operation));
            let json = serde_json::to_string(&operation).unwrap();
            assert_eq!(json, format!("{:?}", operation.name()));
            assert_eq!(serde_json::from_str::<Operation>(&json).unwrap(), operation);
            assert_eq!(operation.cells().len(), operation.parameters().map_or(1, |all| all.values.len()));
        }
        let names: std::collections::BTreeSet<_> = OPERATIONS.iter().map(|operation| operation.name()).collect();
        assert_eq!(names.len(), OPERATIONS.len());
        assert!(serde_json::from_str::<Operation>("\"put\"").is_err());
    }
}
