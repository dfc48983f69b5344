//! `remora validate`.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use remora_kernel::Placement;
use remora_real::LinkKind;
use remora_study::MeasuredRows;
use remora_study::compare::{Plan, WRITER_RATE};
use remora_study::format::{rate, time};
use remora_study::machine::Machine;
use remora_study::nodes::NodeProcess;
use remora_study::operations::Operation;
use remora_study::records::Records;
use remora_study::validate::{
    Cell, GOAL, LEFT_OUT, MOVED, RULE, Round, Validation, Winner, is_steady, judge, page, rounds,
};
use remora_study::workload::Distribution;

use crate::Failure;
use crate::output::{self, Json};
use crate::progress::{Display, stop_flag};
use crate::quantity::{self, up_to};

const EXAMPLES: &str = "\
Examples:
  remora validate                     probe, predict, measure, compare: 3 min
  remora validate --rounds 1 --seconds 0.03  a quick look
  remora validate --operations btree,sequencer  what else the probe says something of
  remora validate --report v.html     also a page with plots
  remora validate --json v.json       also every round's probes, predictions and measurements for programs";

/// Options of `remora validate`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{RULE}\n\n{EXAMPLES}"))]
pub struct Validate {
    /// Rounds, each a probe, a prediction from it and a comparison. Fewer than 5 tell no placements apart
    #[arg(long, value_name = "N", default_value = "5", value_parser = up_to::<u32>(1..=100))]
    pub rounds: u32,
    /// Seconds for each figure of a comparison
    #[arg(long, value_name = "S", default_value = "0.04", value_parser = quantity::seconds)]
    pub seconds: Duration,
    /// Records of the comparison
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = up_to::<u32>(1..=100_000_000))]
    pub records: u32,
    /// What to predict and measure, by the names that the table shows: btree is what a B-tree does, of whose writes nothing is
    /// predicted; also sequencer [default: what needs no name]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = crate::args::operations)]
    pub operations: Vec<Vec<Operation>>,
    /// Seed of every random choice
    #[arg(long, value_name = "N", default_value = "42", value_parser = quantity::count)]
    pub seed: u64,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
    /// Write an HTML page with plots of predicted over measured latency
    #[arg(long, value_name = "FILE", value_parser = crate::output::file())]
    pub report: Option<PathBuf>,
}

/// Bytes of each generated value.
const VALUE: usize = 64;

/// Probes, predicts, measures, prints both.
pub fn run(args: &Validate) -> Result<(), Failure> {
    let display = Display::new(stop_flag());
    let records = Records::generate(args.records.into(), VALUE, args.seed);
    let plan = Plan {
        seed: args.seed,
        distribution: Distribution::Zipfian,
        time: args.seconds,
        operations: args.operations.iter().flatten().copied().collect(),
        placements: Placement::REAL.to_vec(),
        writer_updates_per_s: WRITER_RATE,
        rings: false,
        auto: false,
        keep: Default::default(),
    };
    let machine = Machine::describe();
    let (_node, mut clients) = NodeProcess::with_clients(&[LinkKind::Udp, LinkKind::Shm])?;
    let rounds = rounds(args.rounds as usize, &plan, &records, &mut clients, &display);
    display.clear();
    drop(clients);
    let rounds = rounds?;
    let few = "fewer than 5 tell no placements apart";
    let incomplete = rounds.missing("rounds").map(|missing| format!("{missing}, and {few}"));
    let MeasuredRows { rows: rounds, cut, .. } = rounds;
    let states: Vec<[f64; 3]> = rounds.iter().map(|round| round.core_to_core).collect();
    let counted = rounds.iter().filter(|round| round.counts);
    let pairs: Vec<_> = counted.map(|round| (round.predicted.clone(), round.measured.clone())).collect();
    let validation = judge(&pairs);
    let head = output::not_complete(incomplete.as_deref());
    let text = head + &table(&validation, &machine, pairs.len(), &states);
    args.json.show(&text, || {
        serde_json::json!({
            "format": "remora-validate/2",
            "version": env!("REMORA_VERSION"),
            "machine": machine,
            "counted": pairs.len(),
            "rounds": rounds.iter().map(round_json).collect::<Vec<_>>(),
            "rule": RULE,
            "validation": validation,
            "left_out": LEFT_OUT,
            "incomplete": incomplete,
        })
    })?;
    if let Some(path) = &args.report {
        output::write(path, page(&validation, &machine, pairs.len()).as_bytes())?;
    }
    cut.map_or(Ok(()), |error| Err(error.into()))
}

/// A round, for programs.
fn round_json(round: &Round) -> serde_json::Value {
    let Round { platform, predicted, measured, core_to_core, counts } = round;
    serde_json::json!({
        "counts": counts, "core_to_core_ns": core_to_core, "platform": platform, "predicted": predicted,
        "measured": measured,
    })
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
    let changing: Vec<&Cell> = validation.cells.iter().filter(|cell| cell.operation.changes()).collect();
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
