//! `remora check rack`.

use std::fmt::Write;

use remora_rack::Mapping;
use remora_storm::check::rack::{
    BufferOptions, FlowOptions, RACK_MUTANTS, check_buffers, check_flow, check_rack_mutant,
};
use remora_storm::check::{CheckReport, Search};
use serde_json::json;

use crate::Failure;
use crate::check_search::{SearchArgs, found, going, mutants, result, stopped, whole};
use crate::output::Json;
use crate::progress::{Display, stop_flag};
use crate::quantity::up_to;

pub const EXAMPLES: &str = "\
Every interleaving of the rack's engine. Buffers are passed from node to node while nodes die: none is lost, or handed out \
twice. A flow goes by several NICs, under each policy, while these fail, come back or say nothing: each byte arrives \
once, in order, within the window, and nothing stands still. A search that a bound ends says so, and the command fails.

Examples:
  remora check rack                          buffers, and a flow under each policy: a minute
  remora check rack --nics 3 --failures 2    more NICs, and two failures: long
  remora check rack --mutant all             seeded faults, and the shortest way to each";

/// Options of `remora check rack`.
#[derive(Debug, clap::Args)]
pub struct CheckRack {
    /// Nodes that pass buffers
    #[arg(long, value_name = "N", default_value = "3", value_parser = up_to::<u8>(1..=5))]
    nodes: u8,
    /// Buffers that there are
    #[arg(long, value_name = "N", default_value = "2", value_parser = up_to::<u8>(1..=5))]
    buffers: u8,
    /// How often a node asks for one
    #[arg(long, value_name = "N", default_value = "3", value_parser = up_to::<u8>(1..=10))]
    allocations: u8,
    /// Nodes that die
    #[arg(long, value_name = "N", default_value = "2", value_parser = up_to::<u8>(0..=5))]
    deaths: u8,
    /// NICs that a flow goes by
    #[arg(long, value_name = "N", default_value = "2", value_parser = up_to::<u8>(1..=4))]
    nics: u8,
    /// Segments of the flow
    #[arg(long, value_name = "N", default_value = "4", value_parser = up_to::<u8>(1..=32))]
    segments: u8,
    /// Segments that the receiver has room for
    #[arg(long, value_name = "N", default_value = "2", value_parser = up_to::<u8>(1..=32))]
    window: u8,
    /// How often a NIC fails; each comes back at any later time
    #[arg(long, value_name = "N", default_value = "1", value_parser = up_to::<u8>(0..=5))]
    failures: u8,
    /// How often NICs that have something are given up as silent
    #[arg(long, value_name = "N", default_value = "1", value_parser = up_to::<u8>(0..=5))]
    silences: u8,
    /// Seed this fault into the engine and show how it is found; `all` for each in turn, `list` for their names
    #[arg(long, value_name = "NAME", conflicts_with_all = ["json", "nodes", "buffers", "allocations", "deaths", "nics", "segments", "window", "failures", "silences", "max_states", "minutes", "memory", "shortest", "threads"])]
    mutant: Option<String>,
    /// How far to search, each part by itself.
    #[command(flatten)]
    search: SearchArgs,
    /// Figures for programs.
    #[command(flatten)]
    json: Json,
}

/// What is checked.
#[derive(Clone, Copy)]
enum Part {
    Buffers,
    Flow(Mapping),
}

/// The parts, one after the other.
const PARTS: [Part; 4] =
    [Part::Buffers, Part::Flow(Mapping::Static), Part::Flow(Mapping::Depth), Part::Flow(Mapping::Rate)];

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Buffers => "buffers",
            Self::Flow(Mapping::Static) => "flow, static",
            Self::Flow(Mapping::Depth) => "flow, depth",
            Self::Flow(Mapping::Rate) => "flow, rate",
        }
    }

    fn check(self, args: &CheckRack, search: Search, progress: impl FnMut(u64) -> bool) -> CheckReport {
        let &CheckRack { nodes, buffers, allocations, deaths, nics, segments, window, failures, silences, .. } = args;
        match self {
            Self::Buffers => {
                check_buffers(BufferOptions { nodes, buffers, allocations, deaths, mutation: None }, search, progress)
            }
            Self::Flow(mapping) => {
                let options = FlowOptions { mapping, nics, segments, window, failures, silences, mutation: None };
                check_flow(options, search, progress)
            }
        }
    }
}

/// Checks part by part, and says what was visited.
pub fn run(args: &CheckRack) -> Result<(), Failure> {
    if let Some(name) = &args.mutant {
        return mutants(name, &RACK_MUTANTS, |mutant| mutant.name, check_rack_mutant);
    }
    let display = Display::new(stop_flag());
    let (mut text, mut rows, mut unfinished) = (String::new(), Vec::new(), Vec::new());
    for part in PARTS {
        if display.stopped() {
            break;
        }
        let name = part.name();
        let report = part.check(args, args.search.search(), going(&display, &format!("{name}: ")));
        if let Some((reason, chart)) = &report.failure {
            display.clear();
            return Err(found(format!("{name}: {reason}"), chart));
        }
        if !report.complete() {
            unfinished.push(name);
        }
        let (states, seconds) = (report.states, report.seconds);
        let _ = writeln!(text, "{name:<12} {states:>10} states {seconds:>7.1} s  {}", result(stopped(&report)));
        rows.push(json!({
            "part": name, "distinct_states": states, "generated": report.generated, "seconds": seconds,
            "omission": report.omission, "complete": report.complete(), "stopped": stopped(&report),
        }));
    }
    display.clear();
    args.json.show(&text, || {
        json!({
            "format": "remora-check-rack/1", "nodes": args.nodes, "buffers": args.buffers,
            "allocations": args.allocations, "deaths": args.deaths, "nics": args.nics, "segments": args.segments,
            "window": args.window, "failures": args.failures, "silences": args.silences, "rows": rows,
        })
    })?;
    whole(display.stopped(), &unfinished)
}
