//! `remora check membership`.

use std::time::Duration;

use remora_storm::check::membership::{MEMBER_MUTANTS, MemberOptions, check_member_mutant, check_membership};
use remora_storm::check::{CheckReport, Search};
use serde_json::{Value, json};

use crate::Failure;
use crate::check_search::{figures, found, going, mutants, visited, whole};
use crate::output::Json;
use crate::progress::{Display, stop_flag};
use crate::quantity::{count, up_to};

pub const EXAMPLES: &str = "\
Every interleaving of a few proposals with the engine itself: messages in any order, late, again and again or never; \
what is to be durable becomes so at any later time; nodes crash before and after each sync and start again. In every \
state one view is decided for each epoch, none that was decided is lost, nodes enter views in order, and no ballot is \
used for two. Memory bounds the search; one that a bound ends says so, and the command fails.

Examples:
  remora check membership                                two proposers, a crash: seconds
  remora check membership --proposals 3 --crashes 0      three proposals race
  remora check membership --blackouts 1                  all crash at once, and recover
  remora check membership --first-start --proposals 0 --wipes 1   a first start, and a disk that comes back empty
  remora check membership --mutant all                   seeded faults, and the shortest way to each";

/// Options of `remora check membership`.
#[derive(Debug, clap::Args)]
pub struct CheckMembership {
    /// Nodes
    #[arg(long, value_name = "N", default_value = "3", value_parser = up_to::<u8>(2..=5))]
    nodes: u8,
    /// Nodes that propose
    #[arg(long, value_name = "N", default_value = "2", value_parser = up_to::<u8>(1..=5))]
    proposers: u8,
    /// Proposals, all together; each is for another view
    #[arg(long, value_name = "N", default_value = "2", value_parser = up_to::<u8>(0..=6))]
    proposals: u8,
    /// Epochs that are decided, at most
    #[arg(long, value_name = "N", default_value = "1", value_parser = up_to::<u8>(1..=4))]
    epochs: u8,
    /// Crashes of single nodes
    #[arg(long, value_name = "N", default_value = "1", value_parser = up_to::<u8>(0..=255))]
    crashes: u8,
    /// Crashes of all nodes at once
    #[arg(long, value_name = "N", default_value = "0", value_parser = up_to::<u8>(0..=255))]
    blackouts: u8,
    /// Disks that come back empty, one at a time
    #[arg(long, value_name = "N", default_value = "0", value_parser = up_to::<u8>(0..=255))]
    wipes: u8,
    /// Begin with empty logs, instead of in a first view
    #[arg(long)]
    first_start: bool,
    /// Seed this fault into the engine and show how it is found; `all` for each in turn, `list` for their names
    #[arg(long, value_name = "NAME", conflicts_with_all = ["json", "nodes", "proposers", "proposals", "epochs", "crashes", "blackouts", "wipes", "first_start", "max_states", "minutes", "memory", "shortest"])]
    mutant: Option<String>,
    /// Stop after this many distinct states
    #[arg(long, value_name = "N", default_value = "100000000", value_parser = count)]
    max_states: u64,
    /// Stop after this many minutes
    #[arg(long, value_name = "N", value_parser = up_to::<u64>(1..=1_000_000))]
    minutes: Option<u64>,
    /// Stop at this much memory, in megabytes
    #[arg(long, value_name = "MB", default_value = "4000", value_parser = up_to::<u64>(1..=1 << 30))]
    memory: u64,
    /// Breadth first: shows the shortest way to a failure, and needs more memory
    #[arg(long)]
    shortest: bool,
    /// Figures for programs.
    #[command(flatten)]
    json: Json,
}

/// Checks, and says what was visited.
pub fn run(args: &CheckMembership) -> Result<(), Failure> {
    if let Some(name) = &args.mutant {
        return mutants(name, &MEMBER_MUTANTS, |mutant| mutant.name, check_member_mutant);
    }
    let display = Display::new(stop_flag());
    let search = Search {
        limit: args.max_states,
        memory: args.memory << 20,
        time: args.minutes.map_or(Duration::MAX, |minutes| Duration::from_secs(60 * minutes)),
        shortest: args.shortest,
        ..Search::default()
    };
    let report = check_membership(&options(args), search, going(&display, ""));
    display.clear();
    if let Some((reason, chart)) = &report.failure {
        return Err(found(reason.clone(), chart));
    }
    args.json.show(&table(args, &report), || json_row(args, &report))?;
    let unfinished = report.stopped.map(|_| "membership");
    whole(display.stopped(), unfinished.as_slice())
}

fn options(args: &CheckMembership) -> MemberOptions {
    let &CheckMembership { nodes, proposers, proposals, epochs, crashes, blackouts, wipes, first_start, .. } = args;
    MemberOptions { nodes, proposers, proposals, epochs, crashes, blackouts, wipes, first_start, mutation: None }
}

fn table(args: &CheckMembership, report: &CheckReport) -> String {
    let CheckMembership { nodes, proposers, proposals, epochs, crashes, blackouts, wipes, first_start, .. } = args;
    let from = if *first_start { "empty logs" } else { "a first view" };
    format!(
        "{nodes} nodes from {from}, {proposers} proposers, {proposals} proposals, {epochs} epochs; crashes {crashes}, \
         blackouts {blackouts}, wiped disks {wipes}\n{}",
        visited(report)
    )
}

fn json_row(args: &CheckMembership, report: &CheckReport) -> Value {
    let asked = json!({
        "format": "remora-check-membership/1",
        "nodes": args.nodes, "proposers": args.proposers, "proposals": args.proposals, "epochs": args.epochs,
        "crashes": args.crashes, "blackouts": args.blackouts, "wipes": args.wipes, "first_start": args.first_start,
    });
    figures(asked, report)
}
