//! `remora validate`.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use remora_kernel::Placement;
use remora_lab::probe::Probe;
use remora_model::platform::Platform;
use remora_real::Client;
use remora_study::compare::{Plan, WRITER_RATE, compare};
use remora_study::connection::Connection;
use remora_study::format::{rate, time};
use remora_study::machine::Machine;
use remora_study::measure::{Operation, Row};
use remora_study::probe::{Figure, platform_file};
use remora_study::records::Records;
use remora_study::store::Store;
use remora_study::validate::{Cell, Data, GOAL, LEFT_OUT, RULE, Validation, Winner, judge, page, predict};
use remora_study::workload::Distribution;

use crate::probe::{local_node, measure};
use crate::progress::{Display, stop_flag};
use crate::{Failure, print};

const EXAMPLES: &str = "\
Examples:
  remora validate                     probe, predict, measure, compare: 3 min
  remora validate --rounds 1 --seconds 0.03  a quick look
  remora validate --report v.html     also a page with plots
  remora validate --json v.json       also every round's probes, predictions and measurements for programs";

/// Options of `remora validate`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{RULE}\n\n{EXAMPLES}"))]
pub struct Validate {
    /// Rounds, each a probe, a prediction from it and a comparison. Fewer than 5 tell no placements apart
    #[arg(long, value_name = "N", default_value = "5", value_parser = crate::args::up_to(1..=100))]
    pub rounds: u32,
    /// Seconds for each figure of a comparison
    #[arg(long, value_name = "S", default_value = "0.04", value_parser = crate::args::seconds)]
    pub seconds: Duration,
    /// Records of the comparison
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = crate::args::up_to(1..=100_000_000))]
    pub records: u32,
    /// Seed of every random choice
    #[arg(long, value_name = "N", default_value = "42")]
    pub seed: u64,
    /// Also write all figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write an HTML page with plots of predicted over measured latency
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Bytes of each generated value.
const VALUE: usize = 64;

/// A round counts if a cache line went from core to core within this factor of the same time in the probe, before and
/// after the comparison: a virtual machine's cores are sometimes moved to where they are further apart.
const MOVED: f64 = 1.5;

/// Probes, predicts, measures, prints both.
pub fn run(args: &Validate) -> Result<(), Failure> {
    let display = Display::new(stop_flag());
    let records = Records::generate(args.records.into(), VALUE, args.seed);
    let plan = Plan {
        seed: args.seed,
        distribution: Distribution::Zipfian,
        time: args.seconds,
        placements: Placement::REAL.to_vec(),
        writer_updates_per_s: WRITER_RATE,
    };
    let machine = Machine::describe();
    let (_child, mut clients) = local_node()?;
    let rounds = rounds(args, &plan, &records, &mut clients, &display);
    display.clear();
    drop(clients);
    let rounds = rounds?;
    let states: Vec<[f64; 3]> = rounds.iter().map(|round| round.core_to_core).collect();
    let counted = rounds.iter().filter(|round| round.counts);
    let pairs: Vec<_> = counted.map(|round| (round.predicted.clone(), round.measured.clone())).collect();
    let validation = judge(&pairs);
    let text = table(&validation, &machine, pairs.len(), &states);
    if let Some(path) = &args.json {
        let all = serde_json::json!({
            "format": "remora-validate/2",
            "version": env!("CARGO_PKG_VERSION"),
            "machine": machine,
            "counted": pairs.len(),
            "rounds": rounds.iter().map(Round::json).collect::<Vec<_>>(),
            "rule": RULE,
            "validation": validation,
            "left_out": LEFT_OUT,
        });
        write(path, &format!("{all:#}\n"))?;
    }
    if let Some(path) = &args.report {
        write(path, &page(&validation, &machine, pairs.len()))?;
    }
    print(&text, &text);
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|e| Failure::Failed(format!("cannot write {}: {e}", path.display())))
}

struct Round {
    /// What the probe wrote.
    platform: String,
    predicted: Vec<Row>,
    measured: Vec<Row>,
    /// Round trip of a cache line in the probe, before and after the comparison.
    core_to_core: [f64; 3],
    /// Whether those were the same.
    counts: bool,
}

impl Round {
    fn json(&self) -> serde_json::Value {
        let Self { platform, predicted, measured, core_to_core, counts } = self;
        serde_json::json!({
            "counts": counts, "core_to_core_ns": core_to_core, "platform": platform, "predicted": predicted,
            "measured": measured,
        })
    }
}

/// As many rounds as are asked for, or until the user wants no more.
fn rounds(
    args: &Validate,
    plan: &Plan,
    records: &Records,
    clients: &mut [Client],
    display: &Display,
) -> Result<Vec<Round>, Failure> {
    let last = clients.len() - 1;
    let store = Store::load(&mut clients[last], plan, records, None, display)?;
    let (wanted, start) = (args.rounds as usize, Instant::now());
    let mut rounds: Vec<Round> = Vec::new();
    let counted = |rounds: &[Round]| rounds.iter().filter(|round| round.counts).count();
    // Those that do not count are run again, but not for ever.
    while counted(&rounds) < wanted && rounds.len() < 2 * wanted {
        let left = wanted - counted(&rounds);
        let each = start.elapsed().as_secs_f64() / rounds.len().max(1) as f64;
        let when = if rounds.is_empty() { String::new() } else { format!(", {:.0} s left", each * left as f64) };
        display.say(&format!("round {} of {wanted}{when}", wanted - left + 1));
        match round(plan, records, &store, clients, display) {
            Ok(round) => rounds.push(round),
            // What is done tells something.
            Err(Failure::Interrupted) if !rounds.is_empty() => break,
            Err(failure) => return Err(failure),
        }
    }
    // A machine that never stands still is measured as it is: without enough rounds nothing can be told apart.
    if counted(&rounds) < wanted {
        rounds.iter_mut().for_each(|round| round.counts = true);
    }
    Ok(rounds)
}

/// Probes, predicts, measures.
fn round(
    plan: &Plan,
    records: &Records,
    store: &Store<'_>,
    clients: &mut [Client],
    display: &Display,
) -> Result<Round, Failure> {
    let figures = measure(&std::env::temp_dir(), clients, plan.slice(), display)?;
    let text = platform_file("probed", "this machine", &figures);
    let platform = Platform::parse("the probe's platform file", &text)?;
    let before = core_to_core();
    let mut targets: Vec<&mut dyn Connection> =
        clients.iter_mut().map(|client| client as &mut dyn Connection).collect();
    let links: Vec<_> = targets.iter().map(|target| target.link()).collect();
    // The prediction is made before there is anything to predict.
    let predicted = predict(&platform, &Data::new(records, plan), &links, &plan.placements);
    let predicted = predicted.ok_or_else(|| Failure::Failed("the probe gave no software NIC".into()))?;
    let measured = compare(&mut targets, plan, store, display)?;
    let core_to_core = [probed(&figures, "system.core_to_core"), before, core_to_core()];
    Ok(Round { platform: text, predicted, measured, core_to_core, counts: is_steady(&core_to_core) })
}

fn is_steady(core_to_core: &[f64; 3]) -> bool {
    let [low, high] = [f64::min, f64::max].map(|pick| core_to_core.iter().copied().reduce(pick).unwrap_or(0.0));
    high <= MOVED * low
}

fn probed(figures: &[Figure], path: &str) -> f64 {
    figures.iter().find(|figure| figure.path == path).map_or(f64::NAN, |figure| figure.value)
}

fn core_to_core() -> f64 {
    Probe { time: Duration::from_millis(60) }.cache_line_ns()
}

fn table(validation: &Validation, machine: &Machine, rounds: usize, states: &[[f64; 3]]) -> String {
    let mut out = format!(
        "{:<16}{:>6} {:<5}{:<8}{:>11}{:>11}{:>22}{:>8}{:>13}{:>11}{:>8}\n",
        "operation",
        "",
        "link",
        "place",
        "predicted",
        "measured",
        "rounds",
        "error",
        "predicted/s",
        "measured/s",
        "error"
    );
    for cell in &validation.cells {
        let &Cell { operation, parameter, link, placement, p50_ns, p50_range_ns: (low, high), ops_per_s, .. } = cell;
        let _ = writeln!(
            out,
            "{operation:<16}{:>6} {link:<5}{placement:<8}{:>11}{:>11}{:>22}{:>7.0}%{:>13}{:>11}{:>7.0}%",
            parameter.map_or(String::new(), |n| n.to_string()),
            time(p50_ns.0),
            time(p50_ns.1),
            format!("{} to {}", time(low), time(high)),
            cell.latency_error() * 100.0,
            rate(ops_per_s.0),
            rate(ops_per_s.1),
            cell.rate_error() * 100.0
        );
    }
    out += "\n";
    rereads(&mut out, validation);
    let met = |met: bool| if met { "met" } else { "missed" };
    let median = validation.median_latency_error;
    let _ = writeln!(out, "latency: median error {:.1} % (goal 15 %: {})", median * 100.0, met(median <= GOAL));
    let _ = writeln!(out, "rate with 64 in flight: median error {:.1} %", validation.median_rate_error * 100.0);
    winners(&mut out, validation);
    let _ = writeln!(out, "\n{rounds} of {} rounds count. {RULE}", states.len());
    let steady = states.iter().filter(|state| is_steady(state)).count();
    let exception = if steady < rounds { format!("; as only {steady} do, all count") } else { String::new() };
    let states: Vec<_> =
        states.iter().map(|[probe, before, after]| format!("{probe:.0} {before:.0} {after:.0}")).collect();
    let _ = writeln!(
        out,
        "Core to core in each probe, before and after its comparison, ns: {}. A round counts if they lie within \
         a factor of {MOVED}{exception}.",
        states.join(", ")
    );
    out.extend(machine.remark().map(|remark| remark + "\n"));
    out += "Left out:\n";
    for line in LEFT_OUT {
        let _ = writeln!(out, "  {line}");
    }
    out
}

/// How often objects that change were read again: a line for each link.
fn rereads(out: &mut String, validation: &Validation) {
    let changing: Vec<&Cell> =
        validation.cells.iter().filter(|cell| cell.operation == Operation::ConsistentGet).collect();
    for cells in changing.chunk_by(|a, b| (a.link, a.parameter) == (b.link, b.parameter)) {
        let measured: Vec<_> =
            cells.iter().map(|cell| format!("{:.2} at the {}", cell.rereads.1, cell.placement)).collect();
        let (link, bytes, predicted) = (cells[0].link, cells[0].parameter.unwrap_or(0), cells[0].rereads.0);
        // Shorter objects are half-written for too short a time to be caught so.
        if predicted >= 0.005 {
            let measured = measured.join(", ");
            let _ = writeln!(out, "{bytes} B over {link}: {predicted:.2} reads made again predicted, {measured}");
        }
    }
}

fn winners(out: &mut String, validation: &Validation) {
    let count = |told: fn(&Winner) -> bool| validation.winners.iter().filter(|winner| told(winner)).count();
    let (all, right, ruled_out) = (validation.winners.len(), count(Winner::is_right), count(Winner::rules_out));
    let _ = writeln!(
        out,
        "winner named rightly in {right} of {all} rows (goal all: {}): in {} of the {} rows in which the measurement \
         tells one placement from both others, in {} of the {} in which it tells one to be slower; {} rows are level",
        if right == all { "met" } else { "missed" },
        count(|winner| winner.is_decided() && winner.is_right()),
        count(Winner::is_decided),
        count(|winner| winner.rules_out() && !winner.is_decided() && winner.is_right()),
        ruled_out - count(Winner::is_decided),
        all - ruled_out,
    );
    let _ = writeln!(out, "by medians alone, with 5 % to spare: in {} of {all}", count(Winner::is_right_by_medians));
    for winner in validation.winners.iter().filter(|winner| !winner.is_right() || !winner.is_right_by_medians()) {
        let names = |places: &[Placement]| places.iter().map(|place| place.name()).collect::<Vec<_>>().join(" or ");
        let parameter = winner.parameter.map_or(String::new(), |n| format!(" {n}"));
        let _ = writeln!(
            out,
            "  {}{parameter} over {}: predicted {}, was {}; by medians {}",
            winner.operation,
            winner.link,
            winner.predicted,
            names(&winner.measured),
            names(&winner.by_medians)
        );
    }
}
