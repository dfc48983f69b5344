//! The comparison: every operation in every placement over every link.

use std::time::{Duration, Instant};

use remora_real::{RemoteRegion, WriterConfig};
use remora_store::hash::Table;
use remora_store::{Place, text};

use crate::Error;
use crate::calls::{Gets, Lists, Objects};
use crate::measure::{IN_FLIGHT, Operation, Placement, Row, Tally};
use crate::records::Records;
use crate::run::{Calls, Slice, run};
use crate::target::Target;
use crate::trace::Trace;
use crate::workload::Distribution;

/// Elements that a traversal visits: those of StRoM's figure 7, and a list of one and of two.
pub const LIST_LENGTHS: [u64; 6] = [1, 2, 4, 8, 16, 32];
/// Value sizes in bytes: those of StRoM's figures 8 and 9.
pub const VALUE_SIZES: [u64; 7] = [64, 128, 256, 512, 1024, 2048, 4096];
/// Lists that traversals choose from.
const LISTS: u64 = 2048;
/// Records of each value size, at most.
const SIZED_RECORDS: u64 = 4096;
/// Objects that the writer rewrites in turn.
const OBJECTS: u32 = 2;
/// Most GETs in a generated trace, which starts again at its end.
const TRACE: usize = 1 << 20;
/// Keys of a generated trace of misses.
const MISSES: usize = 1 << 14;
/// Parts that the time for each figure is cut into.
const SLICES: u32 = 4;
/// Bytes handed over at a time when loading.
const PIECE: usize = 4 << 20;

/// What to compare.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of every random choice.
    pub seed: u64,
    /// How keys are drawn when there is no trace.
    pub distribution: Distribution,
    /// How long to measure each operation, parameter, placement, link and number in flight. On a machine that is too
    /// busy to keep to it, figures measured later get less, down to a quarter.
    pub time: Duration,
    /// Where kernels run.
    pub placements: Vec<Placement>,
    /// Updates a second of the writer, over all objects; 0 is as fast as it can.
    pub writer_updates_per_s: u32,
}

/// What the comparison is doing, for a progress bar.
pub enum Progress<'a> {
    /// Bytes are on their way to the node.
    Loading {
        /// Bytes written.
        done: u64,
        /// Bytes to write.
        total: u64,
    },
    /// Operations are being measured.
    Measuring {
        /// Operations, parameters and links done.
        done: usize,
        /// Operations, parameters and links to measure.
        total: usize,
        /// What is next, in words.
        next: &'a str,
    },
}

/// Hears of progress, and says whether to stop.
pub trait Watch {
    /// Something has moved on.
    fn progress(&self, progress: Progress<'_>);
    /// Whether to give up.
    fn stop(&self) -> bool;
}

/// A store on the node: everything that the operations need.
pub struct Store<'a> {
    records: &'a Records,
    hits: Trace,
    misses: Trace,
    user_trace: Option<Trace>,
    table: Table,
    lists: Lists,
    sized: Vec<Sized>,
    objects: Vec<(Objects, RemoteRegion)>,
}

/// A table whose values all have one size.
struct Sized {
    bytes: u64,
    records: Records,
    trace: Trace,
    table: Table,
}

impl<'a> Store<'a> {
    /// Builds everything and writes it to the node through `target`, whose memory it stays.
    pub fn load(
        target: &mut dyn Target,
        plan: &Plan,
        records: &'a Records,
        user_trace: Option<Trace>,
        watch: &dyn Watch,
    ) -> Result<Self, Error> {
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
            sized.push(Sized { bytes, records, trace, table });
        }
        let objects = VALUE_SIZES.map(|bytes| loader.objects(bytes as u32));
        let objects = objects.into_iter().collect::<Result<_, Error>>()?;
        Ok(Self { records, hits, misses, user_trace, table, lists, sized, objects })
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

    /// The calls of an operation.
    fn calls(&self, operation: Operation, parameter: Option<u64>, seed: u64) -> Option<Box<dyn Calls + '_>> {
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

    fn changing(&self, bytes: u64) -> Option<&(Objects, RemoteRegion)> {
        self.objects.iter().find(|(objects, _)| u64::from(objects.payload) == bytes)
    }
}

/// A trace long enough to touch what its distribution makes likely.
fn generated(plan: &Plan, records: &Records, seed: u64) -> Trace {
    Trace::hits(plan.distribution, records, (4 * records.len()).clamp(1 << 12, TRACE), seed)
}

/// Measures everything against a store that is loaded.
pub fn compare(
    targets: &mut [&mut dyn Target],
    plan: &Plan,
    store: &Store<'_>,
    watch: &dyn Watch,
) -> Result<Vec<Row>, Error> {
    let cells = store.cells();
    let links = targets.len();
    let total = cells.len() * links;
    let schedule = Schedule::new(plan, total);
    let mut rows = Vec::new();
    for (n, (operation, parameter)) in cells.into_iter().enumerate() {
        let changing = (operation == Operation::ConsistentGet).then(|| store.changing(parameter?)).flatten();
        if let (Some((objects, region)), [first, ..]) = (changing, &mut *targets) {
            let (object_size, count) = (objects.object_size(), objects.count);
            let config = WriterConfig { object_size, objects: count, updates_per_s: plan.writer_updates_per_s };
            first.start_writer(region, &config)?;
        }
        for (m, target) in targets.iter_mut().enumerate() {
            let of = parameter.zip(operation.unit()).map_or(String::new(), |(n, unit)| format!(" of {n} {unit}"));
            let next = format!("{operation}{of} over {}", target.link());
            let done = n * links + m;
            watch.progress(Progress::Measuring { done, total, next: &next });
            let time = schedule.time(total - done);
            rows.extend(group(*target, store, (plan, time), (operation, parameter), watch)?);
        }
        if let (Some(_), [first, ..]) = (changing, &mut *targets) {
            first.stop_writer()?;
        }
    }
    watch.progress(Progress::Measuring { done: total, total, next: "done" });
    Ok(rows)
}

/// Keeps a comparison to the time that its plan promises.
struct Schedule {
    start: Instant,
    time: Duration,
    /// Figures that a group measures.
    figures: u32,
    total: Duration,
}

impl Schedule {
    fn new(plan: &Plan, groups: usize) -> Self {
        let figures = (plan.placements.len() * IN_FLIGHT.len()) as u32;
        let total = Self::with_overhead(plan.time * figures * groups as u32);
        Self { start: Instant::now(), time: plan.time, figures, total }
    }

    /// Warm-ups and questions to the node come on top of what is measured.
    fn with_overhead(time: Duration) -> Duration {
        time * 5 / 4
    }

    /// How long to measure each figure of the next group, when so many groups are left.
    fn time(&self, groups: usize) -> Duration {
        let left = self.total.saturating_sub(self.start.elapsed());
        let all = Self::with_overhead(Duration::from_secs(1)).as_secs_f64() * f64::from(self.figures) * groups as f64;
        left.div_f64(all.max(1.0)).clamp(self.time / 4, self.time)
    }
}

/// Measures one operation over one link in all placements. They take turns in short slices, so that what disturbs the
/// machine for a moment disturbs all of them.
fn group(
    target: &mut dyn Target,
    store: &Store<'_>,
    (plan, time): (&Plan, Duration),
    (operation, parameter): (Operation, Option<u64>),
    watch: &dyn Watch,
) -> Result<Vec<Row>, Error> {
    let (link, time) = (target.link(), time / SLICES);
    let places = plan.placements.iter();
    let calls = places.filter_map(|&place| Some((place, store.calls(operation, parameter, plan.seed)?)));
    let mut places: Vec<_> = calls.map(|(place, calls)| (place, calls, [(); 2].map(|()| Tally::default()))).collect();
    for _ in 0..SLICES {
        for (placement, calls, tallies) in &mut places {
            for (tally, in_flight) in tallies.iter_mut().zip(IN_FLIGHT) {
                let slice = Slice { placement: *placement, in_flight, time };
                run(target, &mut **calls, slice, tally, &|| watch.stop())?;
            }
        }
    }
    let row = |(placement, _, [one, many]): (Placement, _, [Tally; 2])| {
        let (in_flight_1, in_flight_64) = (one.load(), many.load());
        Row { operation, parameter, link, placement, in_flight_1, in_flight_64 }
    };
    Ok(places.into_iter().map(row).collect())
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
    target: &'a mut dyn Target,
    watch: &'a dyn Watch,
    seed: u64,
    done: u64,
    total: u64,
}

impl Loader<'_> {
    fn table(&mut self, records: &Records) -> Result<Table, Error> {
        let mut builder = text::Builder::new(self.seed);
        for (key, value) in records.iter() {
            builder.insert(key, value)?;
        }
        let layout = builder.build()?;
        let (entries, values) = (self.alloc(layout.entries_bytes())?, self.alloc(layout.values_bytes())?);
        let (table, image) = layout.place(place(&entries), place(&values));
        self.write(&entries, &image.entries)?;
        self.write(&values, &image.values)?;
        Ok(table)
    }

    fn lists(&mut self) -> Result<Lists, Error> {
        let longest = LIST_LENGTHS.into_iter().max().unwrap_or(1);
        let bytes = Lists::bytes(LISTS, longest) as usize;
        let (elements, values) = (self.alloc(bytes)?, self.alloc(bytes)?);
        let lists = Lists::new(place(&elements), place(&values), LISTS, longest, self.seed);
        let (element_bytes, value_bytes) = lists.images();
        self.write(&elements, &element_bytes)?;
        self.write(&values, &value_bytes)?;
        Ok(lists)
    }

    fn objects(&mut self, payload: u32) -> Result<(Objects, RemoteRegion), Error> {
        let mut objects = Objects { place: Place { va: 0, key: 0 }, count: OBJECTS, payload };
        let region = self.alloc((objects.object_size() * OBJECTS) as usize)?;
        objects.place = place(&region);
        self.write(&region, &objects.image())?;
        Ok((objects, region))
    }

    fn alloc(&mut self, len: usize) -> Result<RemoteRegion, Error> {
        Ok(self.target.alloc(len as u64)?)
    }

    fn write(&mut self, region: &RemoteRegion, data: &[u8]) -> Result<(), Error> {
        for (n, piece) in data.chunks(PIECE).enumerate() {
            self.target.write(region, (n * PIECE) as u64, piece)?;
            self.done += piece.len() as u64;
            self.total = self.total.max(self.done);
            self.watch.progress(Progress::Loading { done: self.done, total: self.total });
            if self.watch.stop() {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }
}

fn place(region: &RemoteRegion) -> Place {
    Place { va: region.va, key: region.key }
}

/// How long it takes to do something, in seconds.
pub fn timed<T>(what: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = what();
    (result, start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::{Fault, Local};
    use remora_kernel::Status;
    use std::cell::{Cell, RefCell};

    #[derive(Default)]
    struct Heard {
        loaded: Cell<(u64, u64)>,
        measured: RefCell<Vec<String>>,
        stop_at: Option<usize>,
    }

    impl Watch for Heard {
        fn progress(&self, progress: Progress<'_>) {
            match progress {
                Progress::Loading { done, total } => self.loaded.set((done, total)),
                Progress::Measuring { next, .. } => self.measured.borrow_mut().push(next.into()),
            }
        }

        fn stop(&self) -> bool {
            self.stop_at.is_some_and(|at| self.measured.borrow().len() >= at)
        }
    }

    fn plan() -> Plan {
        Plan {
            seed: 1,
            distribution: Distribution::Zipfian,
            time: Duration::from_micros(400),
            placements: Placement::ALL.to_vec(),
            writer_updates_per_s: 1000,
        }
    }

    fn measure(trace: Option<Trace>, heard: &Heard) -> Result<Vec<Row>, Error> {
        let records = Records::generate(500, 64, 1);
        let (mut target, plan) = (Local::new(), plan());
        let store = Store::load(&mut target, &plan, &records, trace, heard)?;
        compare(&mut [&mut target], &plan, &store, heard)
    }

    #[test]
    fn every_operation_is_measured_in_every_place_and_verified() {
        let heard = Heard::default();
        let rows = measure(None, &heard).unwrap();
        assert_eq!(rows.len(), (6 + 2 + 7 + 7) * 3);
        for row in &rows {
            let (one, many) = (&row.in_flight_1, &row.in_flight_64);
            assert!(one.verified >= 4 && many.verified >= 4 * 64, "{row:?}");
            assert!(one.p1_ns <= one.p50_ns && one.p50_ns <= one.p99_ns, "{row:?}");
            let trips = if row.placement == Placement::Client { 2.0 } else { 1.0 };
            assert_eq!((one.round_trips_per_op, one.wire_bytes_per_op), (trips, trips * 100.0));
        }
        let (done, total) = heard.loaded.get();
        assert_eq!(done, total);
        let measured = heard.measured.borrow();
        assert_eq!((measured.len(), &*measured[0]), (22 + 1, "list of 1 elements over shm"));
    }

    #[test]
    fn a_trace_replaces_the_generated_hits() {
        let records = Records::generate(500, 64, 1);
        let trace = Trace::misses(&records.index(), 10, 9);
        let rows = measure(Some(trace), &Heard::default()).unwrap();
        let of = |operation| rows.iter().filter(|row| row.operation == operation).count();
        assert_eq!((of(Operation::GetTrace), of(Operation::GetHit), of(Operation::GetMiss)), (3, 0, 3));
    }

    #[test]
    fn wrong_results_end_the_comparison() {
        let records = Records::generate(500, 64, 1);
        let mut target = Local::new();
        let store = Store::load(&mut target, &plan(), &records, None, &Heard::default()).unwrap();
        for (operation, parameter, fault, expected) in [
            (Operation::List, Some(8), Fault::Byte(3), "walking 8 elements of list"),
            (Operation::GetHit, None, Fault::Status(Status::NotFound), "found nothing, though it was loaded"),
            (Operation::GetHit, None, Fault::Byte(60), "of the value is 0x"),
            (Operation::GetHit, None, Fault::Byte(5), "found nothing"),
            (Operation::GetMiss, None, Fault::Status(Status::Inconsistent), "ended with Inconsistent"),
            (Operation::ConsistentGet, Some(256), Fault::Byte(100), "byte 100 of the value"),
            (Operation::ConsistentGet, Some(64), Fault::Status(Status::Inconsistent), "ended with Inconsistent"),
        ] {
            target.fault = fault;
            let group = group(&mut target, &store, (&plan(), plan().time), (operation, parameter), &Heard::default());
            let message = group.unwrap_err().to_string();
            assert!(
                message.starts_with("wrong result over shm at the client: ") && message.contains(expected),
                "{message}"
            );
        }
    }

    #[test]
    fn it_stops_when_told_to() {
        let heard = Heard { stop_at: Some(3), ..Heard::default() };
        assert!(matches!(measure(None, &heard), Err(Error::Interrupted)));
        assert_eq!(heard.measured.borrow().len(), 3);
    }

    #[test]
    fn a_late_comparison_measures_less() {
        let plan = Plan { time: Duration::from_millis(100), ..plan() };
        let schedule = Schedule::new(&plan, 10);
        assert!(schedule.time(10) > Duration::from_millis(99));
        assert_eq!(schedule.time(1), plan.time, "no more than planned, though there is time");
        assert!(schedule.time(20) < Duration::from_millis(51), "twice as much to do as planned");
        assert_eq!(schedule.time(1000), plan.time / 4);
    }
}
