//! `remora check chain`.

use remora_storm::check::CheckReport;
use remora_storm::check::chain::{CHAIN_MUTANTS, ChainOptions, check_chain, check_chain_mutant};
use serde_json::{Value, json};

use crate::Failure;
use crate::check_search::{SearchArgs, figures, found, going, mutants, visited, whole};
use crate::output::Json;
use crate::progress::{Display, stop_flag};
use crate::quantity::up_to;

pub const EXAMPLES: &str = "\
Every interleaving of a few transactions with the engine itself: each reads two keys and writes both, or reads only. \
Messages come in any order; what is to be durable becomes so at any later time; nodes crash with any part of what was not \
flushed, the next entry of the log torn; views go on without them and take them back. Some order of the transactions must \
explain what all of them read, and what is there in the end. Memory bounds the search; one that a bound ends says so, and \
the command fails.

Examples:
  remora check chain                                       two transactions and a reader, no faults: seconds
  remora check chain --reads 0 --crashes 1                 two transactions, a crash, and a view without the node
  remora check chain --nodes 2 --crashes 1 --restarts 1    it starts again and catches up while service goes on
  remora check chain --reads 0 --blackouts 1               all crash at once, and recover from their rings
  remora check chain --reads 0 --looks 1 --crashes 1       a reader by one-sided READs of the head, too
  remora check chain --mutant all                          seeded faults, and the shortest way to each";

/// Options of `remora check chain`.
#[derive(Debug, clap::Args)]
pub struct CheckChain {
    /// Nodes
    #[arg(long, value_name = "N", default_value = "3", value_parser = up_to::<u8>(1..=5))]
    nodes: u8,
    /// Transactions that read two keys and write both
    #[arg(long, value_name = "N", default_value = "2", value_parser = up_to::<u8>(0..=4))]
    writes: u8,
    /// Transactions that only read both keys, at any member
    #[arg(long, value_name = "N", default_value = "1", value_parser = up_to::<u8>(0..=3))]
    reads: u8,
    /// Transactions that only read both keys, by one-sided READs of the head
    #[arg(long, value_name = "N", default_value = "0", value_parser = up_to::<u8>(0..=3))]
    looks: u8,
    /// Crashes of single nodes
    #[arg(long, value_name = "N", default_value = "0", value_parser = up_to::<u8>(0..=255))]
    crashes: u8,
    /// Crashed nodes that start again and catch up
    #[arg(long, value_name = "N", default_value = "0", value_parser = up_to::<u8>(0..=255))]
    restarts: u8,
    /// Nodes that are wrongly left out of a view
    #[arg(long, value_name = "N", default_value = "0", value_parser = up_to::<u8>(0..=255))]
    suspicions: u8,
    /// Crashes of all nodes at once
    #[arg(long, value_name = "N", default_value = "0", value_parser = up_to::<u8>(0..=255))]
    blackouts: u8,
    /// Seed this fault into the engine and show how it is found; `all` for each in turn, `list` for their names
    #[arg(long, value_name = "NAME", conflicts_with_all = ["json", "nodes", "writes", "reads", "looks", "crashes", "restarts", "suspicions", "blackouts", "max_states", "minutes", "memory", "shortest", "threads"])]
    mutant: Option<String>,
    /// How far it goes.
    #[command(flatten)]
    search: SearchArgs,
    /// Figures for programs.
    #[command(flatten)]
    json: Json,
}

/// Checks, and says what was visited.
pub fn run(args: &CheckChain) -> Result<(), Failure> {
    if let Some(name) = &args.mutant {
        return mutants(name, &CHAIN_MUTANTS, |mutant| mutant.name, check_chain_mutant);
    }
    let display = Display::new(stop_flag());
    let search = args.search.search();
    let report = check_chain(&options(args), search, going(&display, ""));
    display.clear();
    if let Some((reason, chart)) = &report.failure {
        return Err(found(reason.clone(), chart));
    }
    args.json.show(&table(args, &report), || json_row(args, &report))?;
    let unfinished = report.stopped.map(|_| "the chain");
    whole(display.stopped(), unfinished.as_slice())
}

fn options(args: &CheckChain) -> ChainOptions {
    let &CheckChain { nodes, writes, reads, looks, crashes, restarts, suspicions, blackouts, .. } = args;
    ChainOptions { nodes, writes, reads, looks, crashes, restarts, suspicions, blackouts, mutation: None }
}

fn table(args: &CheckChain, report: &CheckReport) -> String {
    let CheckChain { nodes, writes, reads, looks, crashes, restarts, suspicions, blackouts, .. } = args;
    format!(
        "{nodes} nodes, {writes} transactions that write, {reads} that read and {looks} by one-sided READs; crashes {crashes}, restarts {restarts}, \
         suspicions {suspicions}, blackouts {blackouts}\n{}",
        visited(report)
    )
}

fn json_row(args: &CheckChain, report: &CheckReport) -> Value {
    let asked = json!({
        "format": "remora-check-chain/1",
        "nodes": args.nodes, "writes": args.writes, "reads": args.reads, "looks": args.looks,
        "crashes": args.crashes, "restarts": args.restarts, "suspicions": args.suspicions, "blackouts": args.blackouts,
    });
    figures(asked, report)
}
