//! What a client does that chooses the place of each call, beside the places themselves.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use remora_kernel::{Builtin, ConsistencyParams, Placement, op};
use remora_real::{Client, LinkKind};
use remora_service::{CallKind, Placer, PlacerCounts, Prior, Reason};
use serde::{Deserialize, Serialize};

use crate::StudyError;
use crate::calling::{Calling, Calls};
use crate::compare::Plan;
use crate::connection::{Caller, Connection, Storage};
use crate::format::{rate, time, wrap};
use crate::load::Until;
use crate::measure::{Load, Row};
use crate::operations::{CONSISTENT_GET, LIST, Operation};
use crate::store::Store;

/// What a client that chooses was measured to do with an operation, beside the best place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AutoRow {
    /// What was done.
    pub operation: Operation,
    /// List elements, or bytes of the value.
    pub parameter: Option<u64>,
    /// The way that packets took, or the platform.
    pub on: String,
    /// One operation after the other.
    pub in_flight_1: AutoLoad,
    /// Sixty-four at once.
    pub in_flight_64: AutoLoad,
}

/// An operation at chosen places.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AutoLoad {
    /// Operations done, each verified.
    pub verified: u64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// The median latency.
    pub p50_ns: u64,
    /// The 99th percentile of latency.
    pub p99_ns: u64,
    /// The place where most operations a second were done without choosing, of those where all its calls may run.
    pub best: Option<Placement>,
    /// Operations a second in parts of what were done there.
    pub of_best: f64,
    /// Calls at each place: client, nic, host, accel.
    pub calls: [u64; 4],
    /// The part of calls that ran elsewhere than at home, to learn.
    pub explored: f64,
    /// How often home moved.
    pub moves: u64,
    /// Why calls run where they run.
    pub reason: String,
}

impl AutoLoad {
    /// What was measured, and what was decided meanwhile.
    pub fn new(load: &Load, decided: &Decided) -> Self {
        let Load { verified, ops_per_s, p50_ns, p99_ns, .. } = *load;
        Self { verified, ops_per_s, p50_ns, p99_ns, ..decided.load() }
    }

    /// Beside what the places do by themselves.
    pub fn beside(mut self, places: impl Iterator<Item = (Placement, f64)>) -> Self {
        if let Some((place, most)) = places.max_by(|a, b| a.1.total_cmp(&b.1)) {
            (self.best, self.of_best) = (Some(place), self.ops_per_s / most.max(1e-9));
        }
        self
    }
}

/// What was decided during a measurement.
#[derive(Clone, Debug, Default)]
pub struct Decided {
    counts: PlacerCounts,
    reason: String,
}

impl Decided {
    /// Adds what was decided since `before` of calls of some kinds.
    pub fn add(&mut self, placer: &Placer, before: PlacerCounts, kinds: &[CallKind]) {
        let now = placer.counts();
        for (sum, (now, before)) in self.counts.calls.iter_mut().zip(now.calls.into_iter().zip(before.calls)) {
            *sum += now - before;
        }
        self.counts.explored += now.explored - before.explored;
        self.counts.moves += now.moves - before.moves;
        let reasons: Vec<_> = kinds.iter().filter_map(|kind| Some((kind.op, placer.reason(*kind)?))).collect();
        let named = |(op, reason): &(u64, Reason)| match Builtin::of(*op) {
            Some(kernel) if reasons.len() > 1 => format!("{}: {reason}", kernel.name),
            _ => reason.to_string(),
        };
        self.reason = reasons.iter().map(named).collect::<Vec<_>>().join("; ");
    }

    pub(crate) fn load(&self) -> AutoLoad {
        let PlacerCounts { calls, explored, moves } = self.counts;
        let explored = explored as f64 / calls.iter().sum::<u64>().max(1) as f64;
        AutoLoad { calls, explored, moves, reason: self.reason.clone(), ..AutoLoad::default() }
    }
}

/// The class of calls of a cell: structures of different cells are different to a client, though some share memory.
pub fn class(operation: Operation, parameter: Option<u64>) -> u64 {
    let name = operation.name().bytes().fold(0u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    name.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ parameter.unwrap_or(0)
}

/// The kinds of an operation's calls.
pub(crate) fn kinds(calls: &dyn Calls, class: u64) -> Vec<CallKind> {
    calls.ops().into_iter().map(|op| CallKind { op, class }).collect()
}

/// Operations of a store of whose calls some may not run at the client.
pub fn on_the_node(store: &Store<'_>) -> Vec<Operation> {
    let stays = |&(operation, parameter): &(Operation, Option<u64>)| {
        store.calls(operation, parameter, 0).is_some_and(|calls| !calls.may_run(Placement::Client))
    };
    let mut operations: Vec<_> = store.cells().into_iter().filter(stays).map(|(operation, _)| operation).collect();
    operations.dedup();
    operations
}

/// Tells a client that chooses what a prediction says of the store's calls: it begins there, instead of at the NIC.
pub fn set_priors(target: &mut dyn Connection, store: &Store<'_>, predicted: &[Row]) {
    let link = target.link();
    for row in predicted.iter().filter(|row| row.link == link) {
        let (operation, parameter) = (row.operation, row.parameter);
        let Some(calls) = store.calls(operation, parameter, 0) else { continue };
        let prior = Prior { alone: row.in_flight_1.p50_ns as f64, each: 1e9 / row.in_flight_64.ops_per_s };
        if let Some(placer) = target.placer() {
            let kinds = kinds(&*calls, class(operation, parameter));
            kinds.into_iter().for_each(|kind| placer.set_prior(kind, row.placement, prior));
        }
    }
}

/// A trace that changes under way, at each place and at chosen ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AutoTrace {
    /// The way that packets took, or the platform.
    pub on: String,
    /// Calls under way at once.
    pub in_flight: u32,
    /// What each stretch of it does.
    pub stretches: Vec<String>,
    /// The places, modelled also `node`, where the node chooses, and last `auto`.
    pub rows: Vec<TraceRow>,
    /// Why calls ran where they ran at the end of each stretch.
    pub reasons: Vec<String>,
    /// The part of calls that ran elsewhere than at home, to learn.
    pub explored: f64,
    /// How often a home moved.
    pub moves: u64,
    /// Operations done in parts of those at the best single place.
    pub of_best: f64,
}

/// A trace at one place, or at chosen ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceRow {
    /// `client`, `nic`, `host`, `accel`, `node` or `auto`.
    pub place: String,
    /// Operations a second of each stretch.
    pub ops_per_s: Vec<f64>,
    /// Operations a second of a whole trace whose stretches make as many calls each.
    pub total_per_s: f64,
}

/// One stretch of a trace.
struct Stretch {
    name: &'static str,
    operation: Operation,
    parameter: u64,
    /// What else goes on.
    beside: Option<Beside>,
}

/// What changes without the calls that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// A writer changes the values that are read.
    Writer,
    /// Another client keeps the node's host busy.
    Neighbour,
    /// Links have a fiftieth of their rates.
    CappedLink,
}

/// Lists get longer and shorter, the host gets a busy neighbour, and values that are read get a writer.
const TRACE: [Stretch; 7] = [
    Stretch { name: "lists of 1", operation: LIST, parameter: 1, beside: None },
    Stretch { name: "lists of 32", operation: LIST, parameter: 32, beside: None },
    Stretch {
        name: "a neighbour keeps the host busy",
        operation: LIST,
        parameter: 32,
        beside: Some(Beside::Neighbour),
    },
    Stretch { name: "values of 4 KB", operation: CONSISTENT_GET, parameter: 4096, beside: None },
    Stretch { name: "a writer changes them", operation: CONSISTENT_GET, parameter: 4096, beside: Some(Beside::Writer) },
    Stretch {
        name: "the links are capped to a fiftieth",
        operation: CONSISTENT_GET,
        parameter: 4096,
        beside: Some(Beside::CappedLink),
    },
    Stretch { name: "lists of 1 again", operation: LIST, parameter: 1, beside: None },
];
/// What is left of links that are capped.
const CAP: f64 = 0.02;
/// Calls under way in a trace.
const IN_FLIGHT: u32 = 16;
/// A stretch lasts as long as so many measurements of a figure.
pub const STRETCH: u32 = 4;

/// Who says where the calls of a trace run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chooser {
    /// Nobody: all at one place.
    Place(Placement),
    /// The client.
    Client,
    /// The client between itself and the node, and the node between its NIC and its host.
    Node,
}

impl Chooser {
    fn name(self) -> &'static str {
        match self {
            Self::Place(place) => place.name(),
            Self::Client => "auto",
            Self::Node => "node",
        }
    }
}

/// What a trace is run on.
pub trait Traced: Caller + Storage {
    /// Serves calls from now on where somebody says, among these places. False if it cannot.
    fn serve(&mut self, who: Chooser, places: &[Placement]) -> Result<bool, Self::Error>;

    /// Gives links this part of their rates, 1 for all of it, if it can.
    fn cap_links(&mut self, _part: f64) -> bool {
        false
    }
}

/// A node serves calls at all places at once, and is asked to choose, or not, when it starts.
impl Traced for dyn Connection + '_ {
    fn serve(&mut self, who: Chooser, _: &[Placement]) -> Result<bool, StudyError> {
        Ok(who != Chooser::Node)
    }
}

/// Another client, that keeps a node's host busy while it is told to.
pub struct Neighbour {
    busy: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Calls that the neighbour has under way, and bytes that each has the host read again and again.
const NEIGHBOUR_CALLS: u32 = 32;
const NEIGHBOUR_BYTES: u32 = 4096;
const NEIGHBOUR_TRIES: u32 = 16;

impl Neighbour {
    /// A neighbour with a connection of its own. It rests at first.
    pub fn start(mut client: Client) -> Result<Self, StudyError> {
        let region = client.alloc(NEIGHBOUR_BYTES.into())?;
        // No checksum is right there, so that the host tries as often as it is to.
        client.write(&region, 0, &[7; NEIGHBOUR_BYTES as usize])?;
        let at =
            ConsistencyParams { address: region.va, key: region.key, len: NEIGHBOUR_BYTES, max_tries: NEIGHBOUR_TRIES };
        let [busy, over] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (is_busy, is_over) = (busy.clone(), over.clone());
        let work = move || {
            let mut free: Vec<u32> = (0..NEIGHBOUR_CALLS).collect();
            while !is_over.load(Ordering::Relaxed) {
                if !is_busy.load(Ordering::Relaxed) && free.len() == NEIGHBOUR_CALLS as usize {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                while is_busy.load(Ordering::Relaxed)
                    && let Some(tag) = free.pop()
                {
                    if client.submit(Placement::Host, op::CONSISTENCY, &at.encode(), tag).is_err() {
                        return free.push(tag);
                    }
                }
                // A node that is gone has nobody to disturb.
                if client.poll(&mut |tag, _, _| free.push(tag)).is_err() {
                    return;
                }
            }
        };
        Ok(Self { busy, over, thread: Some(std::thread::spawn(work)) })
    }

    fn set(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Times that each place has its turn in a stretch, so that what disturbs the machine for longer disturbs all alike.
const TURNS: u32 = 4;

/// Runs the trace at every place and at chosen ones by turns, `each` stretch for so long; `None` if the plan lacks its
/// operations. Without a neighbour there is no stretch with one, and none with capped links where they cannot be.
pub fn trace<T: Traced + ?Sized, E: From<T::Error> + From<StudyError>>(
    target: &mut T,
    on: String,
    (places, each): (&[Placement], Duration),
    plan: &Plan,
    store: &Store<'_>,
    neighbour: Option<&Neighbour>,
    stop: &dyn Fn() -> bool,
) -> Result<Option<AutoTrace>, E> {
    let calls = |stretch: &Stretch| store.calls(stretch.operation, Some(stretch.parameter), plan.seed);
    if TRACE.iter().any(|stretch| calls(stretch).is_none()) {
        return Ok(None);
    }
    let by_node = target.serve(Chooser::Node, places)?.then_some(Chooser::Node);
    let all: Vec<Chooser> =
        places.iter().copied().map(Chooser::Place).chain(by_node).chain([Chooser::Client]).collect();
    let (mut rates, mut names) = (vec![Vec::new(); all.len()], Vec::new());
    let (mut reasons, mut decided) = (Vec::new(), Decided::default());
    let caps = target.cap_links(1.0);
    let can = |stretch: &&Stretch| match stretch.beside {
        Some(Beside::Neighbour) => neighbour.is_some(),
        Some(Beside::CappedLink) => caps,
        Some(Beside::Writer) | None => true,
    };
    for stretch in TRACE.iter().filter(can) {
        names.push(stretch.name.into());
        let mut runs = vec![(0, 0.0); all.len()];
        let mut streams: Vec<_> = all.iter().filter_map(|_| calls(stretch)).collect();
        for _ in 0..TURNS {
            // No faster than in the comparison: reads that meet a faster one may never end.
            let changing = || store.writer(stretch.operation, Some(stretch.parameter), plan.writer_updates_per_s);
            let writer = (stretch.beside == Some(Beside::Writer)).then(changing).flatten();
            if let Some((region, config)) = writer {
                target.start_writer(region, &config)?;
            }
            let set_busy = |busy| neighbour.iter().for_each(|neighbour| neighbour.set(busy));
            set_busy(stretch.beside == Some(Beside::Neighbour));
            target.cap_links(if stretch.beside == Some(Beside::CappedLink) { CAP } else { 1.0 });
            for ((&who, calls), run) in all.iter().zip(&mut streams).zip(&mut runs) {
                target.serve(who, places)?;
                let before = target.placer().map(|placer| placer.counts()).unwrap_or_default();
                // Calls are alike by kernel alone: that something changes is not told.
                let kind = CallKind { op: calls.op(), class: u64::MAX };
                let mut tally = |_, _, _| {};
                let (place, class) = match who {
                    Chooser::Place(place) => (place, None),
                    Chooser::Client | Chooser::Node => (Placement::Nic, Some(kind.class)),
                };
                let calling = Calling::new(&mut *target, &mut **calls, place).auto(class);
                let ran = calling.run(IN_FLIGHT, Until::time(each / TURNS), &mut tally, stop)?;
                *run = (run.0 + ran.ended, run.1 + ran.elapsed.as_secs());
                if let (Chooser::Client, Some(placer)) = (who, target.placer()) {
                    decided.add(placer, before, &[kind]);
                }
            }
            set_busy(false);
            target.cap_links(1.0);
            if writer.is_some() {
                target.stop_writer()?;
            }
        }
        reasons.push(decided.reason.clone());
        for (rates, (ended, seconds)) in rates.iter_mut().zip(runs) {
            rates.push(ended as f64 / seconds.max(1e-9));
        }
    }
    let row = |(who, ops_per_s): (&Chooser, Vec<f64>)| {
        let total_per_s = ops_per_s.len() as f64 / ops_per_s.iter().map(|rate| 1.0 / rate).sum::<f64>();
        TraceRow { place: who.name().into(), ops_per_s, total_per_s }
    };
    let rows: Vec<TraceRow> = all.iter().zip(rates).map(row).collect();
    let most = |rows: &[TraceRow]| rows.iter().map(|row| row.total_per_s).fold(0.0, f64::max);
    let auto = rows.last().map_or(0.0, |row| row.total_per_s);
    let of_best = auto / most(&rows[..places.len()]).max(1e-9);
    let AutoLoad { explored, moves, .. } = decided.load();
    Ok(Some(AutoTrace { on, in_flight: IN_FLIGHT, stretches: names, rows, reasons, explored, moves, of_best }))
}

/// The calls of a cell at chosen places, slice by slice.
pub(crate) struct AutoFigure<'a> {
    pub operation: Operation,
    pub parameter: Option<u64>,
    pub link: LinkKind,
    pub calls: Box<dyn Calls + 'a>,
    pub tallies: [crate::measure::Tally; 2],
    pub decided: [Decided; 2],
}

impl AutoFigure<'_> {
    /// Beside the rows of the same cell and link.
    pub fn row(&self, rows: &[Row]) -> AutoRow {
        let cell = (self.operation, self.parameter, self.link);
        let alike = |row: &&Row| (row.operation, row.parameter, row.link) == cell && self.calls.may_run(row.placement);
        let of = |n: usize, rate: fn(&Row) -> f64| {
            let load = AutoLoad::new(&self.tallies[n].load(), &self.decided[n]);
            load.beside(rows.iter().filter(alike).map(|row| (row.placement, rate(row))))
        };
        AutoRow {
            operation: self.operation,
            parameter: self.parameter,
            on: self.link.to_string(),
            in_flight_1: of(0, |row| row.in_flight_1.ops_per_s),
            in_flight_64: of(1, |row| row.in_flight_64.ops_per_s),
        }
    }
}

/// A table of what a client that chooses did, and why.
pub fn table(rows: &[AutoRow], traces: &[AutoTrace]) -> String {
    let mut out = String::new();
    if rows.is_empty() && traces.is_empty() {
        return out;
    }
    out += "\nPlaces chosen for each call (auto), beside the best single place\n";
    let _ = writeln!(out, "{:<24} {:>3} {:>8} {:>8} {:>15} {:>7}", "", "in", "p50", "ops/s", "of best", "explored");
    for row in rows {
        let name = match row.parameter.zip(row.operation.unit()) {
            Some((n, _)) => format!("{} {n} {}", row.operation, row.on),
            None => format!("{} {}", row.operation, row.on),
        };
        for (name, in_flight, load) in [(&*name, 1, &row.in_flight_1), ("", 64, &row.in_flight_64)] {
            let best = load.best.map_or(String::new(), |best| format!("{:.2} of {best}", load.of_best));
            let _ = writeln!(
                out,
                "{name:<24} {in_flight:>3} {:>8} {:>8} {best:>15} {:>6.1} %",
                time(load.p50_ns as f64),
                rate(load.ops_per_s),
                load.explored * 100.0
            );
            wrap(&mut out, 4, "", &load.reason);
        }
    }
    for trace in traces {
        let title =
            format!("\nA trace that changes, {} in flight, {}: operations a second\n", trace.in_flight, trace.on);
        out += &title;
        for row in &trace.rows {
            let rates: String = row.ops_per_s.iter().map(|&ops| format!(" {:>9}", rate(ops))).collect();
            let _ = writeln!(out, "  {:<7}{rates}   all {:>8}", row.place, rate(row.total_per_s));
        }
        wrap(&mut out, 2, "", &format!("Stretches: {}.", trace.stretches.join(", ")));
        for (stretch, reason) in trace.stretches.iter().zip(&trace.reasons) {
            wrap(&mut out, 2, "", &format!("{stretch}: {reason}"));
        }
        let sum = format!(
            "auto does {:.2} of what the best single place does, with {:.1} % of calls explored and {} moves.",
            trace.of_best,
            trace.explored * 100.0,
            trace.moves
        );
        wrap(&mut out, 2, "", &sum);
    }
    out
}
