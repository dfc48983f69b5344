//! What the operations run against: their data, in the node's memory.

use remora_lab::writer::WriterConfig;
use remora_real::{LinkKind, RemoteRegion};
use remora_store::hash::Table;
use remora_store::{Arena, Place, text};

use crate::StudyError;
use crate::calling::Calls;
use crate::compare::{Plan, Progress, Watch};
use crate::connection::Storage;
use crate::operations::{Common, Loaded, OPERATIONS, Operation};
use crate::records::Records;
use crate::trace::Trace;
use crate::workload::Distribution;

/// Most GETs in a generated trace, which starts again at its end.
const TRACE: usize = 1 << 20;
/// Keys of a generated trace of misses.
const MISSES: usize = 1 << 14;
/// Bytes handed over at a time when loading.
const PIECE: usize = 4 << 20;

/// A store on the node: everything that the operations need.
pub struct Store<'a> {
    /// The link of the target whose memory it is.
    pub(crate) link: LinkKind,
    common: Common<'a>,
    loaded: Vec<(Operation, Box<dyn Loaded>)>,
}

impl<'a> Store<'a> {
    /// Builds everything and writes it to the node through `target`, whose memory it stays.
    pub fn load(
        target: &mut dyn Storage,
        plan: &Plan,
        records: &'a Records,
        trace: Option<Trace>,
        watch: &dyn Watch,
    ) -> Result<Self, StudyError> {
        let link = target.link();
        let measured = || {
            OPERATIONS.into_iter().filter(|operation| match plan.operations.is_empty() {
                true => operation.is_measured(trace.is_some()),
                false => plan.operations.contains(operation),
            })
        };
        let own: u64 = measured().map(|operation| operation.bytes(records)).sum();
        let total = table_bytes(records.len() as u64, records.mean_record() as u64) + own;
        let mut loader = Loader { target, watch, plan, done: 0, total };
        let table = loader.table(records)?;
        let hits = loader.hits(records, plan.seed);
        let misses = Trace::misses(&records.index(), MISSES, plan.seed);
        let mut loaded = Vec::new();
        for operation in measured() {
            loaded.push((operation, operation.load(&mut loader, records)?));
        }
        Ok(Self { link, common: Common { table, records, hits, misses, trace }, loaded })
    }

    /// Operations and parameters, in the order of measuring.
    pub fn cells(&self) -> Vec<(Operation, Option<u64>)> {
        self.operations().into_iter().flat_map(Operation::cells).collect()
    }

    /// What is loaded, in the order of measuring.
    pub fn operations(&self) -> Vec<Operation> {
        self.loaded.iter().map(|(operation, _)| *operation).collect()
    }

    fn loaded(&self, operation: Operation) -> Option<&dyn Loaded> {
        let found = self.loaded.iter().find(|(other, _)| *other == operation);
        found.map(|(_, loaded)| &**loaded)
    }

    /// The calls of an operation.
    pub(crate) fn calls(&self, operation: Operation, parameter: Option<u64>, seed: u64) -> Option<Box<dyn Calls + '_>> {
        self.loaded(operation)?.calls(&self.common, parameter.unwrap_or(0), seed)
    }

    /// What the node's writer rewrites while an operation is measured, if anything.
    pub(crate) fn writer(
        &self,
        operation: Operation,
        parameter: Option<u64>,
        updates_per_s: u32,
    ) -> Option<(&RemoteRegion, WriterConfig)> {
        self.loaded(operation)?.writer(parameter.unwrap_or(0), updates_per_s)
    }
}

/// About how many bytes a table of so many records takes.
pub(crate) fn table_bytes(count: u64, value: u64) -> u64 {
    count * (43 + (value + 27).next_multiple_of(64))
}

/// Lays data out on the node.
pub struct Loader<'a> {
    target: &'a mut dyn Storage,
    watch: &'a dyn Watch,
    plan: &'a Plan,
    done: u64,
    total: u64,
}

impl Loader<'_> {
    /// The seed of every random choice.
    pub fn seed(&self) -> u64 {
        self.plan.seed
    }

    /// How keys are drawn.
    pub fn distribution(&self) -> Distribution {
        self.plan.distribution
    }

    /// A trace of keys that records have, long enough to touch what the plan's distribution makes likely.
    pub fn hits(&self, records: &Records, seed: u64) -> Trace {
        Trace::hits(self.plan.distribution, records, (4 * records.len()).clamp(1 << 12, TRACE), seed)
    }

    /// A hash table of records.
    pub fn table(&mut self, records: &Records) -> Result<Table, StudyError> {
        let mut builder = text::RecordsBuilder::new(self.plan.seed);
        for (key, value) in records.iter() {
            builder.insert(key, value)?;
        }
        builder.build()?.load(self)
    }
}

impl Arena for Loader<'_> {
    type Error = StudyError;

    fn alloc(&mut self, len: u64) -> Result<Place, StudyError> {
        let RemoteRegion { va, key, .. } = self.target.alloc(len)?;
        Ok(Place { va, key })
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), StudyError> {
        let region = RemoteRegion { va: at.va, key: at.key, len: bytes.len() as u64 };
        for (n, piece) in bytes.chunks(PIECE).enumerate() {
            self.target.write(&region, (n * PIECE) as u64, piece)?;
            self.done += piece.len() as u64;
            self.total = self.total.max(self.done);
            self.watch.progress(Progress::Loading { done: self.done, total: self.total });
            if self.watch.stop() {
                return Err(StudyError::Interrupted);
            }
        }
        Ok(())
    }
}
