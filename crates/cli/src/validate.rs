//! `remora validate`.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use remora_model::platform::Platform;
use remora_real::Client;
use remora_real::probe::Probe;
use remora_study::compare::{Plan, Watch, compare};
use remora_study::format::{rate, time};
use remora_study::machine::Machine;
use remora_study::measure::{Placement, Row};
use remora_study::probe::platform_file;
use remora_study::records::Records;
use remora_study::store::Store;
use remora_study::target::Target;
use remora_study::validate::{Cell, Data, LEFT_OUT, Validation, judge, predict};
use remora_study::workload::Distribution;

use crate::probe::{local_node, measure};
use crate::progress::{Display, stop_flag};
use crate::{Failure, print};

const EXAMPLES: &str = "\
Examples:
  remora validate                     probe, predict, measure, compare: 2 min
  remora validate --rounds 1 --seconds 0.03  a quick look
  remora validate --json v.json       also all figures for programs";

/// The goal for the median error of latency.
const GOAL: f64 = 0.15;

/// Options of `remora validate`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Validate {
    /// Rounds, each a probe, a prediction from it and a comparison; medians over them count
    #[arg(long, value_name = "N", default_value = "3", value_parser = crate::args::up_to(1..=100))]
    pub rounds: u32,
    /// Seconds for each figure of a comparison
    #[arg(long, value_name = "S", default_value = "0.06", value_parser = crate::args::seconds)]
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
        placements: Placement::ALL.to_vec(),
        writer_updates_per_s: 50_000,
    };
    let machine = Machine::describe();
    let (_child, mut clients) = local_node()?;
    let rounds = rounds(args, &plan, &records, &mut clients, &display);
    display.clear();
    drop(clients);
    let rounds = rounds?;
    let states: Vec<(f64, f64)> = rounds.iter().map(|round| round.core_to_core).collect();
    let pairs: Vec<_> = rounds.into_iter().map(|round| (round.predicted, round.measured)).collect();
    let validation = judge(&pairs);
    let text = table(&validation, &machine, &states);
    if let Some(path) = &args.json {
        let all = serde_json::json!({
            "format": "remora-validate/1",
            "version": env!("CARGO_PKG_VERSION"),
            "machine": machine,
            "core_to_core_ns": states,
            "validation": validation,
            "left_out": LEFT_OUT,
        });
        let failed = |e| Failure::Failed(format!("cannot write {}: {e}", path.display()));
        std::fs::write(path, format!("{all:#}\n")).map_err(failed)?;
    }
    print(&text, &text);
    Ok(())
}

struct Round {
    predicted: Vec<Row>,
    measured: Vec<Row>,
    /// Round trip of a cache line before and after the comparison.
    core_to_core: (f64, f64),
}

fn rounds(
    args: &Validate,
    plan: &Plan,
    records: &Records,
    clients: &mut [Client],
    display: &Display,
) -> Result<Vec<Round>, Failure> {
    let last = clients.len() - 1;
    let store = Store::load(&mut clients[last], plan, records, None, display)?;
    let directory = std::env::temp_dir();
    let mut rounds = Vec::new();
    for _ in 0..args.rounds {
        let figures = measure(&directory, clients, display)?;
        let text = platform_file("probed", "this machine", &figures);
        let platform = Platform::parse("the probe's platform file", &text)?;
        let before = core_to_core();
        let mut targets: Vec<&mut dyn Target> = clients.iter_mut().map(|client| client as &mut dyn Target).collect();
        let links: Vec<_> = targets.iter().map(|target| target.link()).collect();
        // The prediction is made before there is anything to predict.
        let predicted = predict(&platform, &Data::new(records, plan), &links, &plan.placements);
        let predicted = predicted.ok_or_else(|| Failure::Failed("the probe gave no software NIC".into()))?;
        let measured = compare(&mut targets, plan, &store, display)?;
        rounds.push(Round { predicted, measured, core_to_core: (before, core_to_core()) });
        if display.stop() {
            return Err(Failure::Interrupted);
        }
    }
    Ok(rounds)
}

fn core_to_core() -> f64 {
    Probe { time: Duration::from_millis(60) }.cache_line_ns()
}

fn table(validation: &Validation, machine: &Machine, states: &[(f64, f64)]) -> String {
    let mut out = format!(
        "{:<16}{:>6} {:<5}{:<8}{:>11}{:>11}{:>8}{:>13}{:>11}{:>8}\n",
        "operation", "", "link", "place", "predicted", "measured", "error", "predicted/s", "measured/s", "error"
    );
    for cell in &validation.cells {
        let Cell { operation, parameter, link, placement, p50_ns, ops_per_s } = cell;
        let _ = writeln!(
            out,
            "{operation:<16}{:>6} {link:<5}{placement:<8}{:>11}{:>11}{:>7.0}%{:>13}{:>11}{:>7.0}%",
            parameter.map_or(String::new(), |n| n.to_string()),
            time(p50_ns.0),
            time(p50_ns.1),
            cell.latency_error() * 100.0,
            rate(ops_per_s.0),
            rate(ops_per_s.1),
            cell.rate_error() * 100.0
        );
    }
    let wrong: Vec<_> = validation.winners.iter().filter(|winner| !winner.is_right()).collect();
    let right = validation.winners.len() - wrong.len();
    let met = |met: bool| if met { "met" } else { "missed" };
    let median = validation.median_latency_error;
    let _ = writeln!(out, "\nlatency: median error {:.1} % (goal 15 %: {})", median * 100.0, met(median <= GOAL));
    let _ = writeln!(out, "rate with 64 in flight: median error {:.1} %", validation.median_rate_error * 100.0);
    let _ = writeln!(
        out,
        "winner named rightly in {right} of {} rows (goal all: {})",
        validation.winners.len(),
        met(wrong.is_empty())
    );
    for winner in wrong {
        let names: Vec<_> = winner.measured.iter().map(|placement| placement.name()).collect();
        let parameter = winner.parameter.map_or(String::new(), |n| format!(" {n}"));
        let _ = writeln!(
            out,
            "  {}{parameter} over {}: predicted {}, was {}",
            winner.operation,
            winner.link,
            winner.predicted,
            names.join(" and ")
        );
    }
    let states: Vec<_> = states.iter().map(|(before, after)| format!("{before:.0} and {after:.0}")).collect();
    let _ = writeln!(out, "\ncore to core before and after each comparison, ns: {}", states.join("; "));
    out.extend(machine.remark().map(|remark| remark + "\n"));
    out += "Left out:\n";
    for line in LEFT_OUT {
        let _ = writeln!(out, "  {line}");
    }
    out
}
