//! The comparison: every operation in every placement over every link.

use std::time::{Duration, Instant};

use crate::auto::{self, AutoFigure, AutoRow};
use crate::calling::{Calls, Slice, run};
use crate::connection::Connection;
use crate::measure::{IN_FLIGHT, Keep, RingLoads, Row, Tally};
use crate::operations::Operation;
use crate::store::Store;
use crate::workload::Distribution;
use crate::{MeasuredRows, StudyError};
use remora_kernel::Placement;
use remora_real::LinkKind;

/// Parts that the time for each figure is cut into.
const SLICES: u32 = 4;
/// Warm-ups and questions to the node make a slice this much longer.
const OVERHEAD: f64 = 1.25;
/// Updates a second of the writer beside consistent GETs, unless one says otherwise.
pub const WRITER_RATE: u32 = 50_000;

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
    /// What to measure; all that is measured by itself if there is none.
    pub operations: Vec<Operation>,
    /// Where kernels run.
    pub placements: Vec<Placement>,
    /// Updates a second of the writer, over all objects; 0 is as fast as it can.
    pub writer_updates_per_s: u32,
    /// Whether calls to the NIC and the host are measured by rings in memory too, which targets have opened.
    pub rings: bool,
    /// Whether a client that chooses the place of each call is measured too.
    pub auto: bool,
    /// What is kept of each figure beyond it.
    pub keep: Keep,
}

impl Plan {
    /// Whether this place is measured by rings too.
    fn has_rings(&self, placement: Placement) -> bool {
        self.rings && matches!(placement, Placement::Nic | Placement::Host)
    }

    /// How long each slice of a figure is measured, if there is time.
    pub fn slice(&self) -> Duration {
        self.time / SLICES
    }
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
        /// Steps done.
        done: usize,
        /// Steps to do, all of about the same length.
        total: usize,
        /// What is next, in words.
        next: &'a str,
    },
    /// Something is done, and this part of the whole is over, from 0 to 1.
    Part {
        /// What, in words.
        what: &'a str,
        /// The part.
        part: f64,
    },
    /// Something is done, nobody knows for how long.
    Said(&'a str),
}

/// Hears of progress, and says whether to stop.
pub trait Watch {
    /// Something has moved on.
    fn progress(&self, progress: Progress<'_>);
    /// Whether to give up.
    fn stop(&self) -> bool;
}

/// Measures everything against a store that one of the targets loaded: of one operation, parameter and link all placements,
/// or none.
///
/// Each figure is measured in a few slices. Those of an operation take turns, so that a disturbance of the machine hits
/// all places and parameters alike.
pub fn compare(
    targets: &mut [&mut dyn Connection],
    plan: &Plan,
    store: &Store<'_>,
    watch: &dyn Watch,
) -> MeasuredRows<Row> {
    compare_auto(targets, plan, store, watch).0
}

/// As [`compare`], and what a client did that chooses places, if the plan has one.
pub fn compare_auto(
    targets: &mut [&mut dyn Connection],
    plan: &Plan,
    store: &Store<'_>,
    watch: &dyn Watch,
) -> (MeasuredRows<Row>, Vec<AutoRow>) {
    let mut chosen = Vec::new();
    let mut schedule = Schedule::new(plan, store.cells().len() * targets.len());
    let wanted = store.cells().len() * targets.len() * plan.placements.len();
    let compared = MeasuredRows::by(wanted, |rows| {
        for operation in store.operations() {
            let links: Vec<_> = targets.iter().map(|target| target.link()).collect();
            let mut figures = figures(store, operation, &links, plan);
            let mut autos = autos(store, operation, &links, plan);
            let measured = measure((&mut figures, &mut autos), targets, plan, store, (&mut schedule, watch));
            // Of places that were measured next to each other and of no others can one say which is quicker.
            let groups = figures.chunk_by(|a, b| (a.parameter, a.link) == (b.parameter, b.link));
            rows.extend(groups.filter(|group| group.iter().all(Figure::is_measured)).flatten().map(Figure::row));
            let whole = autos.iter().filter(|auto| auto.tallies.iter().all(|tally| tally.latencies.count() > 0));
            chosen.extend(whole.map(|auto| auto.row(rows)));
            measured?;
        }
        Ok(())
    });
    if compared.cut.is_none() {
        watch.progress(Progress::Measuring { done: schedule.steps, total: schedule.steps, next: "done" });
    }
    (compared, chosen)
}

/// Measures the figures of one operation.
fn measure(
    (figures, autos): (&mut [Figure<'_>], &mut [AutoFigure<'_>]),
    targets: &mut [&mut dyn Connection],
    plan: &Plan,
    store: &Store<'_>,
    (schedule, watch): (&mut Schedule, &dyn Watch),
) -> Result<(), StudyError> {
    for _ in 0..SLICES {
        // Figures of one parameter follow each other; over consistent reads of its size the writer runs.
        for figures in figures.chunk_by_mut(|a, b| a.parameter == b.parameter) {
            let writes = start_writer(targets, store, plan, &figures[0])?;
            for (target, figures) in targets.iter_mut().zip(figures.chunk_by_mut(|a, b| a.link == b.link)) {
                let time = schedule.next(&figures[0], watch);
                let cell = (figures[0].parameter, figures[0].link);
                for figure in figures {
                    figure.measure(*target, time, watch)?;
                }
                for auto in autos.iter_mut().filter(|auto| (auto.parameter, auto.link) == cell) {
                    measure_auto(auto, *target, time, watch)?;
                }
            }
            if let (true, Some(owner)) = (writes, owner(targets, store)) {
                owner.stop_writer()?;
            }
        }
    }
    Ok(())
}

/// The target whose memory the store is: the node lets nobody else start a writer on it.
fn owner<'a>(targets: &'a mut [&mut dyn Connection], store: &Store<'_>) -> Option<&'a mut dyn Connection> {
    targets.iter_mut().find(|target| target.link() == store.link).map(|target| &mut **target as &mut dyn Connection)
}

/// Starts the writer if the figure is one of changing objects. Returns whether it is.
fn start_writer(
    targets: &mut [&mut dyn Connection],
    store: &Store<'_>,
    plan: &Plan,
    figure: &Figure<'_>,
) -> Result<bool, StudyError> {
    let writer = store.writer(figure.operation, figure.parameter, plan.writer_updates_per_s);
    let Some(((region, config), owner)) = writer.zip(owner(targets, store)) else { return Ok(false) };
    owner.start_writer(region, &config)?;
    Ok(true)
}

/// An operation in one placement over one link, and what was measured of it so far.
struct Figure<'a> {
    operation: Operation,
    parameter: Option<u64>,
    link: LinkKind,
    placement: Placement,
    calls: Box<dyn Calls + 'a>,
    tallies: [Tally; 2],
    /// By rings in memory.
    by_ring: Option<[Tally; 2]>,
}

/// The figures of an operation: by parameter, then by link, then by placement.
fn figures<'a>(store: &'a Store<'_>, operation: Operation, links: &[LinkKind], plan: &Plan) -> Vec<Figure<'a>> {
    let mut figures = Vec::new();
    for (_, parameter) in store.cells().into_iter().filter(|&(o, _)| o == operation) {
        for &link in links {
            for &placement in &plan.placements {
                let Some(calls) = store.calls(operation, parameter, plan.seed) else { continue };
                let new = || IN_FLIGHT.map(|_| Tally::keeping(plan.keep));
                let by_ring = plan.has_rings(placement).then(new);
                let tallies = new();
                figures.push(Figure { operation, parameter, link, placement, calls, tallies, by_ring });
            }
        }
    }
    figures
}

/// Figures of an operation whose places are chosen, if there are to be any.
fn autos<'a>(store: &'a Store<'_>, operation: Operation, links: &[LinkKind], plan: &Plan) -> Vec<AutoFigure<'a>> {
    let mut autos = Vec::new();
    let cells = store.cells().into_iter().filter(|&(o, _)| o == operation && plan.auto);
    for (_, parameter) in cells {
        for &link in links {
            let Some(calls) = store.calls(operation, parameter, plan.seed) else { continue };
            let tallies = IN_FLIGHT.map(|_| Tally::keeping(Keep::default()));
            autos.push(AutoFigure { operation, parameter, link, calls, tallies, decided: Default::default() });
        }
    }
    autos
}

/// One slice with each number in flight, at chosen places.
fn measure_auto(
    figure: &mut AutoFigure<'_>,
    target: &mut dyn Connection,
    time: Duration,
    watch: &dyn Watch,
) -> Result<(), StudyError> {
    let class = auto::class(figure.operation, figure.parameter);
    let kinds = auto::kinds(&*figure.calls, class);
    for ((tally, decided), in_flight) in figure.tallies.iter_mut().zip(&mut figure.decided).zip(IN_FLIGHT) {
        let before = target.placer().map(|placer| placer.counts()).unwrap_or_default();
        let slice = Slice { placement: Placement::Nic, by_ring: false, auto: Some(class), in_flight, time };
        run(target, &mut *figure.calls, slice, tally, &|| watch.stop())?;
        if let Some(placer) = target.placer() {
            decided.add(placer, before, &kinds);
        }
    }
    Ok(())
}

impl Figure<'_> {
    /// One slice with each number in flight.
    fn measure(&mut self, target: &mut dyn Connection, time: Duration, watch: &dyn Watch) -> Result<(), StudyError> {
        let ways = [(false, Some(&mut self.tallies)), (true, self.by_ring.as_mut())];
        for (by_ring, tallies) in ways {
            for (tally, in_flight) in tallies.into_iter().flatten().zip(IN_FLIGHT) {
                let slice = Slice { placement: self.placement, by_ring, auto: None, in_flight, time };
                run(target, &mut *self.calls, slice, tally, &|| watch.stop())?;
            }
        }
        Ok(())
    }

    /// Whether there are figures of it.
    fn is_measured(&self) -> bool {
        self.tallies.iter().chain(self.by_ring.iter().flatten()).all(|tally| tally.latencies.count() > 0)
    }

    fn row(&self) -> Row {
        let &Self { operation, parameter, link, placement, tallies: [ref one, ref many], ref by_ring, .. } = self;
        let by_ring =
            by_ring.as_ref().map(|[one, many]| RingLoads { in_flight_1: one.load(), in_flight_64: many.load() });
        Row { operation, parameter, link, placement, in_flight_1: one.load(), in_flight_64: many.load(), by_ring }
    }

    /// What is measured, in words.
    fn name(&self) -> String {
        let Self { operation, link, .. } = self;
        match self.parameter.zip(operation.unit()) {
            Some((n, unit)) => format!("{operation} of {n} {unit} over {link}"),
            None => format!("{operation} over {link}"),
        }
    }
}

/// Keeps a comparison to the time that its plan promises. A step is one slice of an operation and parameter over a
/// link, in all placements.
struct Schedule {
    start: Instant,
    total: Duration,
    slice: Duration,
    steps: usize,
    done: usize,
    /// Slices in a step.
    runs: u32,
}

impl Schedule {
    fn new(plan: &Plan, groups: usize) -> Self {
        let (steps, slice) = (groups * SLICES as usize, plan.slice());
        let rings = plan.placements.iter().filter(|&&placement| plan.has_rings(placement)).count();
        let runs = ((plan.placements.len() + rings + usize::from(plan.auto)) * IN_FLIGHT.len()) as u32;
        let total = (slice * runs * steps as u32).mul_f64(OVERHEAD);
        Self { start: Instant::now(), total, slice, steps, done: 0, runs }
    }

    /// How long each slice of the next step is: less than planned if the time left would not do.
    fn next(&mut self, figure: &Figure<'_>, watch: &dyn Watch) -> Duration {
        watch.progress(Progress::Measuring { done: self.done, total: self.steps, next: &figure.name() });
        let time = self.time(self.steps - self.done, self.start.elapsed());
        self.done += 1;
        time
    }

    fn time(&self, steps_left: usize, elapsed: Duration) -> Duration {
        let left = self.total.saturating_sub(elapsed);
        let slices = f64::from(self.runs) * steps_left as f64;
        left.div_f64((slices * OVERHEAD).max(1.0)).clamp(self.slice / 4, self.slice)
    }
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
    use crate::local::{Local, LocalFault};
    use crate::operations::{CONSISTENT_GET, GET_HIT, GET_MISS, GET_TRACE, LIST};
    use crate::records::Records;
    use crate::trace::Trace;
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
                Progress::Part { .. } | Progress::Said(_) => {}
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
            operations: Vec::new(),
            placements: Placement::REAL.to_vec(),
            writer_updates_per_s: 1000,
            rings: true,
            auto: true,
            keep: Keep::default(),
        }
    }

    fn compared(trace: Option<Trace>, heard: &Heard) -> MeasuredRows<Row> {
        let records = Records::generate(500, 64, 1);
        let (mut target, plan) = (Local::new(), plan());
        let store = Store::load(&mut target, &plan, &records, trace, heard).unwrap();
        compare(&mut [&mut target], &plan, &store, heard)
    }

    #[test]
    fn every_operation_is_measured_in_every_place_and_verified() {
        let heard = Heard::default();
        let rows = compared(None, &heard).whole().unwrap();
        assert_eq!(rows.len(), (6 + 2 + 7 + 7) * 3);
        for row in &rows {
            let (one, many) = (&row.in_flight_1, &row.in_flight_64);
            assert!(one.verified >= 4 && many.verified >= 4 * 64, "{row:?}");
            assert_eq!(row.by_ring.is_some(), row.placement != Placement::Client, "{row:?}");
            if let Some(ring) = &row.by_ring {
                assert!(ring.in_flight_1.verified >= 4 && ring.in_flight_64.verified >= 4 * 64, "{row:?}");
            }
            assert!(one.p1_ns <= one.p50_ns && one.p50_ns <= one.p99_ns, "{row:?}");
            let trips = if row.placement == Placement::Client { 2.0 } else { 1.0 };
            assert_eq!((one.round_trips_per_op, one.wire_bytes_per_op), (trips, trips * 100.0));
        }
        let (done, total) = heard.loaded.get();
        assert_eq!(done, total);
        let measured = heard.measured.borrow();
        assert_eq!((measured.len(), &*measured[0]), (22 * SLICES as usize + 1, "list of 1 elements over shm"));
    }

    #[test]
    fn a_tree_and_a_sequencer_are_measured_if_they_are_named() {
        let records = Records::generate(3000, 64, 1);
        let operations = ["btree", "sequencer"].into_iter().filter_map(Operation::all_named).flatten().collect();
        let plan = Plan { operations, ..plan() };
        let mut target = Local::new();
        let store = Store::load(&mut target, &plan, &records, None, &Heard::default()).unwrap();
        let rows = compare(&mut [&mut target], &plan, &store, &Heard::default()).whole().unwrap();
        assert_eq!(rows.len(), (1 + 2 + 3 + 3 + 3) * 3);
        assert!(rows.iter().all(|row| row.in_flight_64.verified >= 4 * 64), "{rows:?}");
        for (name, parameter, fault, expected) in [
            ("tree-get", None, LocalFault::Byte(3), "look-up of key"),
            ("tree-get", None, LocalFault::Status(Status::NotFound), "ended with NotFound"),
            ("tree-scan", Some(10), LocalFault::Byte(80), "scan from"),
            ("tree-scan", Some(10), LocalFault::Byte(9), "has the value"),
            ("tree-write", Some(100), LocalFault::Status(Status::Trapped), "insert of key"),
            ("tree-bytes", Some(64), LocalFault::Byte(3), "look-up of key"),
            ("sequencer", Some(1), LocalFault::Status(Status::Busy), "ended with Busy"),
        ] {
            target.fault = fault;
            let operation = Operation::named(name).unwrap();
            let mut figures = figures(&store, operation, &[LinkKind::Shm], &plan);
            let figure = figures.iter_mut().find(|figure| figure.parameter == parameter).unwrap();
            let result = figure.measure(&mut target, plan.time, &Heard::default());
            let message = result.unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_trace_replaces_the_generated_hits() {
        let records = Records::generate(500, 64, 1);
        let trace = Trace::misses(&records.index(), 10, 9);
        let rows = compared(Some(trace), &Heard::default()).whole().unwrap();
        let of = |operation| rows.iter().filter(|row| row.operation == operation).count();
        assert_eq!((of(GET_TRACE), of(GET_HIT), of(GET_MISS)), (3, 0, 3));
    }

    #[test]
    fn wrong_results_end_the_comparison() {
        let records = Records::generate(500, 64, 1);
        let mut target = Local::new();
        let store = Store::load(&mut target, &plan(), &records, None, &Heard::default()).unwrap();
        for (operation, parameter, fault, expected) in [
            (LIST, Some(8), LocalFault::Byte(3), "walking 8 elements of list"),
            (GET_HIT, None, LocalFault::Status(Status::NotFound), "found nothing, though it was loaded"),
            (GET_HIT, None, LocalFault::Byte(60), "of the value is 0x"),
            (GET_HIT, None, LocalFault::Byte(5), "found nothing"),
            (GET_MISS, None, LocalFault::Status(Status::Inconsistent), "ended with Inconsistent"),
            (CONSISTENT_GET, Some(256), LocalFault::Byte(100), "byte 100 of the value"),
            (CONSISTENT_GET, Some(64), LocalFault::Status(Status::Trapped), "ended with Trapped"),
        ] {
            target.fault = fault;
            let mut figures = figures(&store, operation, &[LinkKind::Shm], &plan());
            let figure = figures.iter_mut().find(|figure| figure.parameter == parameter).unwrap();
            let result = figure.measure(&mut target, plan().time, &Heard::default());
            let message = result.unwrap_err().to_string();
            assert!(
                message.starts_with("wrong result over shm at the client: ") && message.contains(expected),
                "{message}"
            );
        }
    }

    #[test]
    fn a_read_that_gave_up_is_made_again() {
        let records = Records::generate(10, 64, 1);
        let mut target = Local::new();
        let store = Store::load(&mut target, &plan(), &records, None, &Heard::default()).unwrap();
        for status in [Status::Inconsistent, Status::StepLimit, Status::ByteLimit] {
            target.fault = LocalFault::Sometimes(status);
            let mut figures = figures(&store, CONSISTENT_GET, &[LinkKind::Shm], &plan());
            figures[0].measure(&mut target, plan().time, &Heard::default()).unwrap();
            let row = figures[0].row();
            for load in [row.in_flight_1, row.in_flight_64] {
                assert!(load.verified > 0 && load.repeated_calls.abs_diff(load.verified) <= 64, "{load:?}");
            }
        }
    }

    #[test]
    fn it_stops_when_told_to_and_has_what_it_measured() {
        let heard = Heard { stop_at: Some(3), ..Heard::default() };
        let compared = compared(None, &heard);
        assert!(matches!(compared.cut, Some(StudyError::Interrupted)));
        assert_eq!(heard.measured.borrow().len(), 3);
        // Lists of one element and of two, in three places; of those of four not all were measured.
        assert_eq!((compared.rows.len(), compared.wanted), (2 * 3, 22 * 3));
        assert!(compared.whole().is_err());
    }

    #[test]
    fn a_late_comparison_measures_less() {
        let plan = Plan { time: Duration::from_millis(100), ..plan() };
        let schedule = Schedule::new(&plan, 10);
        let time = |steps_left| schedule.time(steps_left, Duration::ZERO);
        assert_eq!(time(40), plan.time / 4, "4 slices for each of 10 groups");
        assert_eq!(time(1), plan.time / 4, "no more than planned, though there is time");
        assert_eq!(time(80), plan.time / 8, "twice as much to do as planned");
        assert_eq!(time(4000), plan.time / 16);
        assert_eq!(schedule.time(40, schedule.total / 2), plan.time / 8, "half the time is gone");
    }
}
