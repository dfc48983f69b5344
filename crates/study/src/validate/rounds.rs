//! Rounds of a validation: each probes this machine, predicts its comparison, and runs it.

use std::time::{Duration, Instant};

use remora_lab::probe::Probe;
use remora_model::platform::Platform;
use remora_real::Client;

use super::{Data, predict};
use crate::compare::{Plan, Progress, Watch, compare};
use crate::connection::Connection;
use crate::measure::Row;
use crate::probe::{self, Figure, platform_file};
use crate::records::Records;
use crate::store::Store;
use crate::{MeasuredRows, StudyError};

/// A round counts if a cache line went from core to core within this factor of the same time in the probe, before and
/// after the comparison: a virtual machine's cores are sometimes moved to where they are further apart.
pub const MOVED: f64 = 1.5;

/// A probe, what it predicted, and what was measured.
pub struct Round {
    /// What the probe wrote.
    pub platform: String,
    /// What it foretold.
    pub predicted: Vec<Row>,
    /// What came.
    pub measured: Vec<Row>,
    /// Round trip of a cache line in the probe, before and after the comparison.
    pub core_to_core: [f64; 3],
    /// Whether those were the same.
    pub counts: bool,
}

/// As many rounds as are asked for. What ends them early leaves those that are done; if there is none it is an error.
pub fn rounds(
    wanted: usize,
    plan: &Plan,
    records: &Records,
    clients: &mut [Client],
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
        match round(plan, records, &store, clients, watch) {
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
    plan: &Plan,
    records: &Records,
    store: &Store<'_>,
    clients: &mut [Client],
    watch: &dyn Watch,
) -> Result<Round, StudyError> {
    let figures = match probe::measure(&std::env::temp_dir(), clients, plan.slice(), watch) {
        (figures, None) => figures,
        (_, Some(error)) => return Err(error),
    };
    let text = platform_file("probed", "this machine", &figures);
    let platform =
        Platform::parse("the probe's platform file", &text).map_err(|e| StudyError::Failed(e.to_string()))?;
    let before = core_to_core();
    let mut targets: Vec<&mut dyn Connection> =
        clients.iter_mut().map(|client| client as &mut dyn Connection).collect();
    let links: Vec<_> = targets.iter().map(|target| target.link()).collect();
    // The prediction is made before there is anything to predict.
    let predicted = predict(&platform, &Data::new(records, plan), &store.operations(), &links, &plan.placements);
    let predicted = predicted.ok_or_else(|| StudyError::Failed("the probe gave no software NIC".into()))?;
    if predicted.is_empty() {
        return Err(StudyError::Failed("the probe says nothing of these operations: nothing is predicted".into()));
    }
    let measured = compare(&mut targets, plan, store, watch).whole()?;
    let core_to_core = [probed(&figures, "system.core_to_core"), before, core_to_core()];
    Ok(Round { platform: text, predicted, measured, core_to_core, counts: is_steady(&core_to_core) })
}

/// Whether the times of a cache line lie within [`MOVED`] of each other.
pub fn is_steady(core_to_core: &[f64; 3]) -> bool {
    let [low, high] = [f64::min, f64::max].map(|pick| core_to_core.iter().copied().reduce(pick).unwrap_or(0.0));
    high <= MOVED * low
}

fn probed(figures: &[Figure], path: &str) -> f64 {
    figures.iter().find(|figure| figure.path == path).map_or(f64::NAN, |figure| figure.value)
}

fn core_to_core() -> f64 {
    Probe { time: Duration::from_millis(60) }.cache_line_ns()
}
