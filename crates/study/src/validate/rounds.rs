//! Rounds of a validation: each probes this machine, predicts its comparison, and runs it.

use std::time::{Duration, Instant};

use remora_lab::probe::Probe;
use remora_lab::stats::median;
use remora_model::platform::Platform;
use remora_real::Client;

use super::{Data, SystemMeasured, Systems, predict};
use crate::compare::{Plan, Progress, Watch, compare};
use crate::connection::{Connection, open_rings};
use crate::measure::Row;
use crate::nodes::NodeProcess;
use crate::peers::cores::Spread;
use crate::probe::{self, Figure, platform_file};
use crate::records::Records;
use crate::store::Store;
use crate::{MeasuredRows, StudyError};

/// A round counts if a cache line went from core to core within this factor of the same time in the probe, before and
/// after the comparison: a virtual machine's cores are sometimes moved to where they are further apart.
pub const MOVED: f64 = 1.5;

/// A probe, what it predicted, and what was measured.
pub struct Round {
    /// What the probe said.
    pub platform: Platform,
    /// As a platform file.
    pub text: String,
    /// What it foretold.
    pub predicted: Vec<Row>,
    /// What came.
    pub measured: Vec<Row>,
    /// What stands on the NIC, if that was asked for.
    pub systems: Vec<SystemMeasured>,
    /// Round trip of a cache line in the probe, before and after the comparison.
    pub core_to_core: [f64; 3],
    /// Whether it counts.
    pub counts: bool,
}

/// As many rounds as are asked for, predicted from each one's own probe or from an earlier one. What ends them early leaves those that are done; if there is none it is an error.
pub fn rounds(
    wanted: usize,
    plan: &Plan,
    records: &Records,
    (node, clients): (&NodeProcess, &mut [Client]),
    (systems, earlier): (&Systems, Option<&Platform>),
    watch: &dyn Watch,
) -> Result<MeasuredRows<Round>, StudyError> {
    let last = clients.len() - 1;
    let store = Store::load(&mut clients[last], plan, records, None, watch)?;
    let start = Instant::now();
    let counted = |rounds: &[Round]| rounds.iter().filter(|round| round.counts).count();
    let mut rounds = MeasuredRows { rows: Vec::new(), wanted, cut: None };
    // Those that do not count are run again, but not for ever.
    while counted(&rounds.rows) < wanted && rounds.rows.len() < 2 * wanted && rounds.cut.is_none() {
        let left = wanted - counted(&rounds.rows);
        let each = start.elapsed().as_secs_f64() / rounds.rows.len().max(1) as f64;
        let when = if rounds.rows.is_empty() { String::new() } else { format!(", {:.0} s left", each * left as f64) };
        watch.progress(Progress::Said(&format!("round {} of {wanted}{when}", wanted - left + 1)));
        match round((plan, systems, earlier), records, &store, (node, clients), watch) {
            Ok(round) => rounds.rows.push(round),
            Err(error) => rounds.cut = Some(error),
        }
    }
    // A machine that never stands still is measured as it is: without enough rounds nothing can be told apart.
    if counted(&rounds.rows) < wanted {
        rounds.rows.iter_mut().for_each(|round| round.counts = true);
    }
    rounds.or_nothing()
}

/// Probes, predicts, measures.
fn round(
    (plan, systems, earlier): (&Plan, &Systems, Option<&Platform>),
    records: &Records,
    store: &Store<'_>,
    (node, clients): (&NodeProcess, &mut [Client]),
    watch: &dyn Watch,
) -> Result<Round, StudyError> {
    let figures = match probe::measure(&std::env::temp_dir(), (node, clients), plan.slice(), watch) {
        (figures, None) => figures,
        (_, Some(error)) => return Err(error),
    };
    let text = platform_file("probed", "this machine", None, &figures);
    let now = Platform::parse("the probe's platform file", &text).map_err(|e| StudyError::Failed(e.to_string()))?;
    let by = earlier.unwrap_or(&now);
    // The probe has had some of its own.
    if plan.rings {
        open_rings(clients)?;
    }
    let before = core_to_core();
    let mut targets: Vec<&mut dyn Connection> =
        clients.iter_mut().map(|client| client as &mut dyn Connection).collect();
    let links: Vec<_> = targets.iter().map(|target| target.link()).collect();
    // The prediction is made before there is anything to predict.
    let predicted = predict(by, &Data::new(records, plan), &store.operations(), &links, (&plan.placements, plan.rings));
    let mut predicted = predicted.ok_or_else(|| StudyError::Failed("the probe gave no software NIC".into()))?;
    if predicted.is_empty() {
        return Err(StudyError::Failed("the probe says nothing of these operations: nothing is predicted".into()));
    }
    // As in the probe.
    let spread = Spread::beside(node.id());
    for rows in predicted.chunk_by_mut(|a, b| (a.operation, a.parameter) == (b.operation, b.parameter)) {
        let own_ns = own_ns(store, &rows[0], plan.seed);
        rows.iter_mut().for_each(|row| add_own(row, own_ns));
    }
    let measured = compare(&mut targets, plan, store, watch).whole()?;
    drop(spread);
    let core_to_core = [probed(&figures, "system.core_to_core"), before, core_to_core()];
    let systems = systems.measure(by, watch)?;
    let mut round = Round { platform: now, text, predicted, measured, systems, core_to_core, counts: false };
    round.counts = round.is_steady();
    Ok(round)
}

impl Round {
    /// Whether the machine stood still: see [`MOVED`].
    pub fn is_steady(&self) -> bool {
        let times = self.core_to_core.iter().copied();
        let [low, high] = [f64::min, f64::max].map(|pick| times.clone().reduce(pick).unwrap_or(0.0));
        high <= MOVED * low
    }
}

/// What a client of the comparison does by itself for a call that the probe's calls do not: chooses what to ask for, and
/// writes it down. Nanoseconds, nothing sent.
fn own_ns(store: &Store<'_>, row: &Row, seed: u64) -> f64 {
    const CALLS: u32 = 256;
    const TURNS: usize = 16;
    let Some(mut calls) = store.calls(row.operation, row.parameter, seed) else { return 0.0 };
    let mut params = Vec::with_capacity(256);
    let turn = |_| {
        let start = Instant::now();
        for _ in 0..CALLS {
            let id = calls.next();
            params.clear();
            calls.params(id, &mut params);
        }
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    // The first finds nothing in the caches.
    median((0..=TURNS).map(turn).skip(1))
}

/// Adds a client's own work to the time between two calls of many.
fn add_own(row: &mut Row, own_ns: f64) {
    let rings = row.by_ring.as_mut().map(|rings| &mut rings.in_flight_64);
    for load in [Some(&mut row.in_flight_64), rings].into_iter().flatten() {
        load.ops_per_s = 1e9 / (1e9 / load.ops_per_s + own_ns);
    }
}

fn probed(figures: &[Figure], path: &str) -> f64 {
    figures.iter().find(|figure| figure.path == path).map_or(f64::NAN, |figure| figure.value)
}

fn core_to_core() -> f64 {
    Probe { time: Duration::from_millis(60) }.cache_line_ns()
}
