//! What the operations run against: a hash table, lists and changing objects, in the node's memory.

use remora_real::RemoteRegion;
use remora_store::hash::Table;
use remora_store::{Arena, Place, text};

use crate::StudyError;
use crate::calling::Calls;
use crate::calls::{Gets, Lists, Objects};
use crate::compare::{Plan, Progress, Watch};
use crate::connection::Storage;
use crate::measure::Operation;
use crate::records::Records;
use crate::trace::Trace;
use remora_real::LinkKind;

/// Elements that a traversal visits, for a plot as in StRoM's figure 7.
pub const LIST_LENGTHS: [u64; 6] = [1, 2, 4, 8, 16, 32];
/// Value sizes in bytes, for plots as in its figures 8 and 9.
pub const VALUE_SIZES: [u64; 7] = [64, 128, 256, 512, 1024, 2048, 4096];
/// Lists that traversals choose from.
const LISTS: u64 = 2048;
/// Records of each value size, at most.
const SIZED_RECORDS: u64 = 4096;
/// Objects that the writer rewrites in turn.
pub(crate) const OBJECTS: u32 = 2;
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
    records: &'a Records,
    hits: Trace,
    misses: Trace,
    user_trace: Option<Trace>,
    table: Table,
    lists: Lists,
    sized: Vec<SizedTable>,
    objects: Vec<(Objects, RemoteRegion)>,
}

/// A table whose values all have one size.
struct SizedTable {
    bytes: u64,
    records: Records,
    trace: Trace,
    table: Table,
}

impl<'a> Store<'a> {
    /// Builds everything and writes it to the node through `target`, whose memory it stays.
    pub fn load(
        target: &mut dyn Storage,
        plan: &Plan,
        records: &'a Records,
        user_trace: Option<Trace>,
        watch: &dyn Watch,
    ) -> Result<Self, StudyError> {
        let link = target.link();
        let mut loader = Loader { target, watch, seed: plan.seed, done: 0, total: 0 };
        loader.total = expected_bytes(records);
        let table = loader.table(records)?;
        let index = records.index();
        let hits = match user_trace {
            None => generated(plan, records, plan.seed),
            Some(_) => Trace::default(),
        };
        let misses = Trace::misses(&index, MISSES, plan.seed);
        let lists = loader.lists()?;
        let mut sized = Vec::new();
        for bytes in VALUE_SIZES {
            let count = SIZED_RECORDS.min(records.len() as u64);
            let records = Records::generate(count, bytes as usize, plan.seed ^ bytes);
            let trace = generated(plan, &records, plan.seed ^ bytes);
            let table = loader.table(&records)?;
            sized.push(SizedTable { bytes, records, trace, table });
        }
        let objects = VALUE_SIZES.map(|bytes| loader.objects(bytes as u32));
        let objects = objects.into_iter().collect::<Result<_, StudyError>>()?;
        Ok(Self { link, records, hits, misses, user_trace, table, lists, sized, objects })
    }

    /// Operations and parameters, in the order of measuring.
    pub fn cells(&self) -> Vec<(Operation, Option<u64>)> {
        let get = if self.user_trace.is_some() { Operation::GetTrace } else { Operation::GetHit };
        let lists = LIST_LENGTHS.map(|length| (Operation::List, Some(length)));
        let by_size = VALUE_SIZES.map(|bytes| (Operation::GetSize, Some(bytes)));
        let consistent = VALUE_SIZES.map(|bytes| (Operation::ConsistentGet, Some(bytes)));
        let gets = [(get, None), (Operation::GetMiss, None)];
        lists.into_iter().chain(gets).chain(by_size).chain(consistent).collect()
    }

    pub(crate) fn operations(&self) -> Vec<Operation> {
        let mut operations: Vec<_> = self.cells().into_iter().map(|(operation, _)| operation).collect();
        operations.dedup();
        operations
    }

    /// The calls of an operation.
    pub(crate) fn calls(&self, operation: Operation, parameter: Option<u64>, seed: u64) -> Option<Box<dyn Calls + '_>> {
        let parameter = parameter.unwrap_or(0);
        Some(match operation {
            Operation::List => Box::new(self.lists.walks(parameter, seed)),
            Operation::GetHit => Box::new(Gets::new(self.table, self.records, &self.hits)),
            Operation::GetMiss => Box::new(Gets::new(self.table, self.records, &self.misses)),
            Operation::GetTrace => Box::new(Gets::new(self.table, self.records, self.user_trace.as_ref()?)),
            Operation::GetSize => {
                let sized = self.sized.iter().find(|sized| sized.bytes == parameter)?;
                Box::new(Gets::new(sized.table, &sized.records, &sized.trace))
            }
            Operation::ConsistentGet => Box::new(self.changing(parameter)?.0.reads(seed)),
        })
    }

    pub(crate) fn changing(&self, bytes: u64) -> Option<&(Objects, RemoteRegion)> {
        self.objects.iter().find(|(objects, _)| u64::from(objects.payload) == bytes)
    }
}

/// A trace long enough to touch what its distribution makes likely.
fn generated(plan: &Plan, records: &Records, seed: u64) -> Trace {
    Trace::hits(plan.distribution, records, (4 * records.len()).clamp(1 << 12, TRACE), seed)
}

/// About how many bytes loading writes: for the progress bar only.
fn expected_bytes(records: &Records) -> u64 {
    let table = |count: u64, value: u64| count * (43 + (value + 27).next_multiple_of(64));
    let sized = SIZED_RECORDS.min(records.len() as u64);
    let by_size: u64 = VALUE_SIZES.iter().map(|&bytes| table(sized, bytes)).sum();
    let lists = 2 * Lists::bytes(LISTS, LIST_LENGTHS[LIST_LENGTHS.len() - 1]);
    table(records.len() as u64, records.mean_record() as u64) + by_size + lists
}

/// Writes images to the node.
struct Loader<'a> {
    target: &'a mut dyn Storage,
    watch: &'a dyn Watch,
    seed: u64,
    done: u64,
    total: u64,
}

impl Loader<'_> {
    fn table(&mut self, records: &Records) -> Result<Table, StudyError> {
        let mut builder = text::RecordsBuilder::new(self.seed);
        for (key, value) in records.iter() {
            builder.insert(key, value)?;
        }
        builder.build()?.load(self)
    }

    fn lists(&mut self) -> Result<Lists, StudyError> {
        let longest = LIST_LENGTHS.into_iter().max().unwrap_or(1);
        let bytes = Lists::bytes(LISTS, longest) as usize;
        let (elements, values) = (self.alloc(bytes)?, self.alloc(bytes)?);
        let lists = Lists::new(place(&elements), place(&values), LISTS, longest, self.seed);
        let (element_bytes, value_bytes) = lists.images();
        self.write(&elements, &element_bytes)?;
        self.write(&values, &value_bytes)?;
        Ok(lists)
    }

    fn objects(&mut self, payload: u32) -> Result<(Objects, RemoteRegion), StudyError> {
        let mut objects = Objects { place: Place { va: 0, key: 0 }, count: OBJECTS, payload };
        let region = self.alloc((objects.object_size() * OBJECTS) as usize)?;
        objects.place = place(&region);
        self.write(&region, &objects.image())?;
        Ok((objects, region))
    }

    fn alloc(&mut self, len: usize) -> Result<RemoteRegion, StudyError> {
        self.target.alloc(len as u64)
    }

    fn write(&mut self, region: &RemoteRegion, data: &[u8]) -> Result<(), StudyError> {
        for (n, piece) in data.chunks(PIECE).enumerate() {
            self.target.write(region, (n * PIECE) as u64, piece)?;
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

impl Arena for Loader<'_> {
    type Error = StudyError;

    fn alloc(&mut self, len: u64) -> Result<Place, StudyError> {
        Ok(place(&self.target.alloc(len)?))
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), StudyError> {
        Loader::write(self, &RemoteRegion { va: at.va, key: at.key, len: bytes.len() as u64 }, bytes)
    }
}

fn place(region: &RemoteRegion) -> Place {
    Place { va: region.va, key: region.key }
}
