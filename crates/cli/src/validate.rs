//! `remora validate`.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use remora_kernel::Placement;
use remora_model::platform::Platform;
use remora_real::LinkKind;
use remora_study::MeasuredRows;
use remora_study::compare::{Plan, WRITER_RATE};
use remora_study::format::{rate, time, wrap};
use remora_study::machine::Machine;
use remora_study::nodes::NodeProcess;
use remora_study::operations::Operation;
use remora_study::records::Records;
use remora_study::validate::{
    Cell, Earlier, GOAL, LEFT_OUT, MOVED, RATE_GOAL, RULE, Round, System, SystemCell, Systems, TAIL_GOAL, Validation,
    Way, Winner, judge, median_error, page, put_together, rounds,
};
use remora_study::workload::Distribution;

use crate::compare::RECORD;
use crate::output::{self, Json};
use crate::progress::{Display, stop_flag};
use crate::quantity::{self, up_to};
use crate::{Failure, preload};

const EXAMPLES: &str = "\
Examples:
  remora validate                     probe, predict, measure, compare: 3 min
  remora validate --rounds 1 --seconds 0.03  a quick look
  remora validate --operations btree,sequencer  what else the probe says something of
  remora validate --rings --systems rack,store  also calls by rings, sockets of a rack and a replicated store
  remora validate --probe here.toml   does a probe of last week still predict? what has moved since?
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
    /// What to predict and measure, by the names that the table shows: btree is what a B-tree does; also sequencer [default:
    /// what needs no name]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = crate::args::operations)]
    pub operations: Vec<Vec<Operation>>,
    /// Predict from this earlier probe, a file of `remora probe --out`, and say what has moved since [default: from a probe of
    /// each round]
    #[arg(long, value_name = "FILE")]
    pub probe: Option<String>,
    /// Calls by rings in memory too
    #[arg(long)]
    pub rings: bool,
    /// What stands on the NIC: rack (sockets of unmodified programs), store (three replicas, one client)
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = system())]
    pub systems: Vec<System>,
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

/// A system, by its name.
fn system() -> impl TypedValueParser<Value = System> {
    let by_name = |name: String| System::ALL.into_iter().find(|system| system.name() == name).ok_or("no such system");
    PossibleValuesParser::new(System::ALL.map(System::name)).try_map(by_name)
}

/// Bytes of each generated value.
const VALUE: usize = 64;
/// A figure of a system takes this many times as long as one of the comparison: programs start for it.
const SYSTEM_TIMES: u32 = 10;

/// Probes, predicts, measures, prints both.
pub fn run(args: &Validate) -> Result<(), Failure> {
    let by = args.probe.as_deref().map(probed).transpose()?;
    quantity::in_memory("--records", u64::from(args.records) * (VALUE as u64 + RECORD))?;
    let display = Display::new(stop_flag());
    let records = Records::generate(args.records.into(), VALUE, args.seed);
    let plan = Plan {
        seed: args.seed,
        distribution: Distribution::Zipfian,
        time: args.seconds,
        operations: args.operations.iter().flatten().copied().collect(),
        placements: Placement::REAL.to_vec(),
        writer_updates_per_s: WRITER_RATE,
        rings: args.rings,
        auto: false,
        keep: Default::default(),
    };
    if args.systems.contains(&System::Rack) {
        preload::SOCKETS.find(None)?;
    }
    let systems = Systems {
        which: args.systems.clone(),
        remora: std::env::current_exe().map_err(|e| Failure::Failed(e.to_string()))?,
        time: args.seconds * SYSTEM_TIMES,
        seed: args.seed,
    };
    let machine = Machine::describe();
    let (node, mut clients) = NodeProcess::with_clients(&[LinkKind::Udp, LinkKind::Shm])?;
    let sources = (&systems, by.as_ref());
    let rounds = rounds(args.rounds as usize, &plan, &records, (&node, &mut clients), sources, &display);
    display.clear();
    drop(clients);
    let rounds = rounds?;
    let few = "fewer than 5 tell no placements apart";
    let incomplete = rounds.missing("rounds").map(|missing| format!("{missing}, and {few}"));
    let MeasuredRows { rows: rounds, cut, .. } = rounds;
    let counted = || rounds.iter().filter(|round| round.counts);
    let pairs: Vec<_> = counted().map(|round| (round.predicted.clone(), round.measured.clone())).collect();
    let systems = put_together(&counted().map(|round| &round.systems[..]).collect::<Vec<_>>());
    let validation = Validation { systems, ..judge(&pairs) };
    let probe = args.probe.as_deref().zip(by.as_ref()).map(|(file, then)| {
        let now: Vec<_> = rounds.iter().map(|round| &round.platform).collect();
        Earlier::new(file, then, &now, output::now_unix_s())
    });
    let told = probe.as_ref().map(|probe| probe.text(&machine.title()));
    let mut head = output::not_complete(incomplete.as_deref());
    if let Some(told) = &told {
        wrap(&mut head, 0, "", told);
        head.push('\n');
    }
    let text = head + &table(&validation, &machine, pairs.len(), &rounds);
    args.json.show(&text, || {
        serde_json::json!({
            "format": "remora-validate/3",
            "version": env!("REMORA_VERSION"),
            "machine": machine,
            "counted": pairs.len(),
            "probe": probe,
            "rounds": rounds.iter().map(round_json).collect::<Vec<_>>(),
            "rule": RULE,
            "validation": validation,
            "left_out": LEFT_OUT,
            "incomplete": incomplete,
        })
    })?;
    if let Some(path) = &args.report {
        output::write(path, page(&validation, &machine, pairs.len(), told.as_deref()).as_bytes())?;
    }
    cut.map_or(Ok(()), |error| Err(error.into()))
}

/// The platform of an earlier probe.
pub fn probed(file: &str) -> Result<Platform, Failure> {
    let platform = Platform::load(file).map_err(|e| match std::path::Path::new(file).exists() {
        true => Failure::from(e),
        false => Failure::Usage(format!("there is no file {file}: `remora probe --out FILE` writes one")),
    })?;
    if platform.software.is_none() {
        let what =
            format!("{file} is no probe: its NIC is hardware. `remora probe --out FILE` writes one of this machine");
        return Err(Failure::Usage(what));
    }
    Ok(platform)
}

/// A round, for programs.
fn round_json(round: &Round) -> serde_json::Value {
    let Round { text, predicted, measured, systems, core_to_core, counts, .. } = round;
    serde_json::json!({
        "counts": counts, "core_to_core_ns": core_to_core, "platform": text, "predicted": predicted,
        "measured": measured, "systems": systems,
    })
}

fn table(validation: &Validation, machine: &Machine, count: usize, rounds: &[Round]) -> String {
    let mut out = format!(
        "{:<20}{:<5}{:<9}{:>10}{:>10}{:>6}{:>6}{:>8}{:>6}\n",
        "operation", "link", "place", "predicted", "measured", "error", "p99", "64/s", "error"
    );
    for cell in &validation.cells {
        let &Cell { operation, parameter, link, way, p50_ns, ops_per_s, .. } = cell;
        let operation = format!("{operation} {}", parameter.map_or(String::new(), |n| n.to_string()));
        let _ = writeln!(
            out,
            "{operation:<20}{link:<5}{way:<9}{:>10}{:>10}{:>6}{:>6}{:>8}{:>6}",
            time(p50_ns.0),
            time(p50_ns.1),
            percent(cell.latency_error()),
            cell.tail_error().map_or("-".into(), percent),
            rate(ops_per_s.1),
            percent(cell.rate_error())
        );
    }
    out += "\n";
    rereads(&mut out, validation);
    let met = |met: bool| if met { "met" } else { "missed" };
    for (what, error, goal) in [
        ("latency", validation.median_latency_error, GOAL),
        ("its 99th percentile", validation.median_tail_error, TAIL_GOAL),
        ("rate with 64 in flight", validation.median_rate_error, RATE_GOAL),
    ] {
        let verdict = if error.is_nan() { "none" } else { met(error <= goal) };
        let _ = writeln!(out, "{what}: median error {} (goal {:.0} %: {verdict})", median_error(error), goal * 100.0);
    }
    winners(&mut out, validation);
    systems(&mut out, &validation.systems);
    let _ = writeln!(out, "\n{count} of {} rounds count. {RULE}", rounds.len());
    let steady = rounds.iter().filter(|round| round.is_steady()).count();
    let exception = if steady < count { format!("; as only {steady} do, all count") } else { String::new() };
    let states: Vec<_> =
        rounds.iter().map(|round| round.core_to_core.map(|time| format!("{time:.0}")).join(" ")).collect();
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

/// What stands on the NIC, if that was asked for.
fn systems(out: &mut String, cells: &[SystemCell]) {
    if !cells.is_empty() {
        let _ = writeln!(out, "\n{:<35}{:>10}{:>10}{:>6}", "what stands on it", "predicted", "measured", "error");
    }
    for cell in cells {
        let ([predicted, measured, ..], error) = (cell.texts(), percent(cell.error()));
        let _ = writeln!(out, "{:<35}{predicted:>10}{measured:>10}{error:>6}", cell.what);
    }
}

/// A part, as a whole number of hundredths.
fn percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

/// How often objects that change were read again: a line for each link.
fn rereads(out: &mut String, validation: &Validation) {
    let changing: Vec<&Cell> = validation.cells.iter().filter(|cell| cell.operation.changes()).collect();
    for cells in changing.chunk_by(|a, b| (a.link, a.parameter) == (b.link, b.parameter)) {
        let measured: Vec<_> = cells.iter().map(|cell| format!("{:.2} at the {}", cell.rereads.1, cell.way)).collect();
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
         tells one place from all others, in {} of the {} in which it tells one to be slower; {} rows are level",
        if right == all { "met" } else { "missed" },
        count(|winner| winner.is_decided() && winner.is_right()),
        count(Winner::is_decided),
        count(|winner| winner.rules_out() && !winner.is_decided() && winner.is_right()),
        ruled_out - count(Winner::is_decided),
        all - ruled_out,
    );
    let _ = writeln!(out, "by medians alone, with 5 % to spare: in {} of {all}", count(Winner::is_right_by_medians));
    for winner in validation.winners.iter().filter(|winner| !winner.is_right() || !winner.is_right_by_medians()) {
        let names = |ways: &[Way]| ways.iter().map(Way::to_string).collect::<Vec<_>>().join(" or ");
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

#[cfg(test)]
mod tests {
    use remora_study::format::WIDTH;
    use remora_study::operations::OPERATIONS;

    use super::*;

    #[test]
    fn of_what_is_not_predicted_there_is_no_error() {
        let validation = judge(&[(Vec::new(), Vec::new())]);
        let table = table(&validation, &Machine::describe(), 1, &[]);
        assert!(
            table.contains("latency: median error of nothing (goal 10 %: none)") && !table.contains("NaN"),
            "{table}"
        );
        assert!(!page(&validation, &Machine::describe(), 1, None).contains("NaN"));
    }

    #[test]
    fn the_table_fits_with_the_longest_of_all() {
        let longest = OPERATIONS.into_iter().flat_map(Operation::cells);
        let cells = longest.map(|(operation, parameter)| Cell {
            operation,
            parameter,
            link: LinkKind::Udp,
            way: Way { placement: Placement::Host, by_ring: true },
            p50_ns: (123_400.0, 234_500.0),
            p50_range_ns: (1.0, 2.0),
            p99_ns: (9_990_000.0, 1_000_000.0),
            ops_per_s: (999_000.0, 123_400.0),
            rereads: (0.0, 0.0),
        });
        let systems = ["rack, one stream of 128 KB sends", "store, event host: writes"].map(|what| SystemCell {
            what: what.into(),
            unit: "ns",
            predicted: 123_400.0,
            measured: 10_000.0,
            range: (1.0, 2.0),
        });
        let validation = Validation { cells: cells.collect(), systems: systems.into(), ..Validation::default() };
        let table = table(&validation, &Machine::describe(), 1, &[]);
        let rows: Vec<&str> = table.lines().filter(|line| line.ends_with('%') || line.ends_with("error")).collect();
        assert_eq!(rows.len(), validation.cells.len() + validation.systems.len() + 2, "{table}");
        assert!(table.starts_with("operation") && table.contains(" link place "), "{table}");
        assert!(rows.iter().all(|row| row.chars().count() <= WIDTH), "{}", rows.join("\n"));
    }
}
