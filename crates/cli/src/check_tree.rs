//! `remora check tree`.

use std::fmt::Write;
use std::time::Duration;

use remora_storm::check::Search;
use remora_storm::check::tree::{TREE_CASES, TreeOptions, check_tree};
use serde_json::json;

use crate::Failure;
use crate::check_search::{found, going, result, stopped, whole};
use crate::output::Json;
use crate::progress::{Display, stop_flag};
use crate::quantity::up_to;

pub const EXAMPLES: &str = "\
Every order of the accesses of a few operations on a B-tree, by clients and by the node: splits, merges, nodes that are \
used again. What each answers must be linearizable, and the tree whole in the end. A case that a bound ends says so, and \
the command fails.

Examples:
  remora check tree                       every case: some minutes
  remora check tree --crash --minutes 5   the first client goes away, at any access; the node recovers what it left";

/// Options of `remora check tree`.
#[derive(Debug, clap::Args)]
pub struct CheckTree {
    /// The first task is a client that may go away at any time
    #[arg(long)]
    crash: bool,
    /// The last task runs on the node instead of at a client
    #[arg(long)]
    near: bool,
    /// Reads of nodes come in pieces, and each write by itself: for small cases
    #[arg(long)]
    fine: bool,
    /// Only the case of this name
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
    /// Stop each case after this many minutes
    #[arg(long, value_name = "N", default_value = "10", value_parser = up_to::<u64>(1..=1_000_000))]
    minutes: u64,
    /// Figures for programs.
    #[command(flatten)]
    json: Json,
}

/// Checks case by case, and says what was visited.
pub fn run(args: &CheckTree) -> Result<(), Failure> {
    let chosen = |name: &str| args.case.as_ref().is_none_or(|wanted| wanted == name);
    let cases: Vec<_> = TREE_CASES.iter().filter(|case| chosen(case.name)).collect();
    if cases.is_empty() {
        let names: Vec<_> = TREE_CASES.iter().map(|case| case.name).collect();
        return Err(Failure::Usage(format!("there is no such case: use {}", names.join(", "))));
    }
    let display = Display::new(stop_flag());
    let (mut text, mut rows, mut unfinished) = (String::new(), Vec::new(), Vec::new());
    for case in cases {
        if display.stopped() {
            break;
        }
        let options = TreeOptions { case, crash: args.crash, fine: args.fine, near: args.near, mutant: None };
        let search = Search { time: Duration::from_secs(60 * args.minutes), threads: 2, ..Search::default() };
        let report = check_tree(&options, search, going(&display, &format!("{}: ", case.name)));
        if let Some((reason, chart)) = &report.failure {
            display.clear();
            return Err(found(format!("{}: {reason}", case.name), chart));
        }
        if !report.complete() {
            unfinished.push(case.name);
        }
        let result = result(stopped(&report));
        let (states, seconds) = (report.states, report.seconds);
        let _ = writeln!(text, "{:<12} {states:>10} states {seconds:>7.1} s  {result}\n  {}", case.name, case.about);
        rows.push(json!({
            "case": case.name, "distinct_states": states, "seconds": seconds, "complete": report.complete(),
            "stopped": stopped(&report),
        }));
    }
    display.clear();
    args.json.show(&text, || {
        json!({
            "format": "remora-check-tree/1", "crash": args.crash, "near": args.near, "fine": args.fine, "rows": rows,
        })
    })?;
    whole(display.stopped(), &unfinished)
}
