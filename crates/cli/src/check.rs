//! `remora check`.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use remora_replica::ddp::Model;
use remora_storm::check::{
    Bound, CheckReport, Failures, MUTANTS, Ops, Options, Orders, Search, Where, check, check_mutant,
};
use serde_json::json;

use crate::progress::{Display, stop_flag};
use crate::{Failure, print};

/// What to check.
#[derive(Debug, clap::Subcommand)]
pub enum CheckCommand {
    /// The replication engine, under each of its persistency models
    #[command(after_help = EXAMPLES)]
    Minos(CheckMinos),
}

const EXAMPLES: &str = "\
Every interleaving of the engine's messages, local writes, persists, faults and view changes for a few writes to one \
record. Memory bounds the search, at about 12 bytes for a distinct state. A search that a bound ends says so, and the \
command fails.

Examples:
  remora check minos                                      two writes, all models, no faults: seconds
  remora check minos --writes 3                           three writes, all models: seconds
  remora check minos --model synch --crashes 1 --restarts 1   a crash, a view without the node, and its return
  remora check minos --writes 3 --crashes 1 --memory 9000     three writes and a crash: long
  remora check minos --deployment o --fifo 1              the split between host and NIC, with FIFOs that fill up
  remora check minos --orders proof                       two writes in all orders: is the reduction sound? minutes
  remora check minos --mutant skip-ack                    a seeded fault, and the shortest way to see it";

/// Options of `remora check minos`.
#[derive(Debug, clap::Args)]
pub struct CheckMinos {
    /// When writes are durable: synch, strict, renf, event or scope [default: each in turn]
    #[arg(long, value_name = "MODEL")]
    model: Option<Model>,
    /// Where the engine runs: b is the host, w the host with local writes that take time, o is host and NIC
    #[arg(long, value_name = "PLACE", default_value = "b", value_parser = ["b", "w", "o"])]
    deployment: String,
    /// Entries of vFIFO and dFIFO each
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u16).range(1..=100))]
    fifo: u16,
    /// Nodes
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u8).range(2..=5))]
    nodes: u8,
    /// Writes
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u8).range(1..=6))]
    writes: u8,
    /// What is written: mixed (puts and additions in turn), puts, adds, or one-node (puts, all at one node)
    #[arg(long, value_name = "KIND", default_value = "mixed", value_parser = ["mixed", "puts", "adds", "one-node"])]
    ops: String,
    /// Messages that arrive twice
    #[arg(long, value_name = "N", default_value = "0")]
    duplicates: u8,
    /// Crashes of single nodes
    #[arg(long, alias = "crash", value_name = "N", default_value = "0")]
    crashes: u8,
    /// Crashed nodes that start again and catch up
    #[arg(long, value_name = "N", default_value = "0")]
    restarts: u8,
    /// Nodes that are wrongly left out of a view
    #[arg(long, value_name = "N", default_value = "0")]
    suspicions: u8,
    /// Crashes of all nodes at once
    #[arg(long, value_name = "N", default_value = "0")]
    blackouts: u8,
    /// Seed this fault into the engine and show how it is found; `all` for each in turn, `list` for their names
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
    /// Which orders of events: reduced leaves out those that make no difference, all does not, and proof visits all and
    /// looks in each state whether what the reduction leaves out makes no difference
    #[arg(long, value_name = "WHICH", default_value = "reduced", value_parser = ["reduced", "all", "proof"])]
    orders: String,
    /// Stop after this many distinct states
    #[arg(long, value_name = "N", default_value = "100000000")]
    max_states: u64,
    /// Stop after this many minutes
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Stop at this much memory, in megabytes
    #[arg(long, value_name = "MB", default_value = "2000")]
    memory: u64,
    /// Breadth first: shows the shortest way to a failure, and needs more memory
    #[arg(long)]
    shortest: bool,
    /// Threads
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Checks, and prints a row for each model.
pub fn run(what: &CheckCommand) -> Result<(), Failure> {
    let CheckCommand::Minos(args) = what;
    if let Some(name) = &args.mutant {
        return mutants(args, name);
    }
    let models = args.model.map_or(Model::ALL.to_vec(), |model| vec![model]);
    let stop = stop_flag();
    let display = Display::new(stop.clone());
    let search = Search {
        limit: args.max_states,
        memory: args.memory << 20,
        time: args.minutes.map_or(Duration::MAX, |minutes| Duration::from_secs(60 * minutes)),
        threads: usize::from(args.threads),
        shortest: args.shortest,
    };
    let mut rows = Vec::new();
    for model in models {
        display.say(&format!("{model}: checking, at most {} distinct states", args.max_states));
        let report = check(&options(args, model), search, |states| {
            display.say(&format!("{model}: {states} distinct states"));
            if stop.load(Ordering::Relaxed) {
                // The search has no end of its own for this; what it found so far is of no use.
                std::process::exit(130);
            }
        });
        display.clear();
        if let Some((reason, chart)) = &report.failure {
            print(&format!("{chart}\n"), &format!("{chart}\n"));
            return Err(Failure::Failed(format!("{model}: {reason}")));
        }
        rows.push((model, report));
    }
    let text = if args.json { json_rows(args, &rows) } else { table(args, &rows) };
    print(&text, &text);
    let stopped: Vec<String> = rows.iter().filter(|(_, r)| !r.complete()).map(|(model, _)| model.to_string()).collect();
    if stopped.is_empty() {
        return Ok(());
    }
    let models = stopped.join(", ");
    Err(Failure::Failed(format!("not all states of {models} were visited: raise the bound, or ask for less")))
}

fn options(args: &CheckMinos, model: Model) -> Options {
    Options {
        model,
        deployment: match args.deployment.as_str() {
            "o" => Where::O(args.fifo),
            "w" => Where::Stepped,
            _ => Where::B,
        },
        nodes: args.nodes,
        writes: args.writes,
        ops: match args.ops.as_str() {
            "puts" => Ops::Puts,
            "adds" => Ops::Adds,
            "one-node" => Ops::OneNode,
            _ => Ops::Mixed,
        },
        failures: Failures {
            duplicates: args.duplicates,
            crashes: args.crashes,
            suspicions: args.suspicions,
            restarts: args.restarts,
            blackouts: args.blackouts,
        },
        mutation: None,
        orders: match args.orders.as_str() {
            "all" => Orders::All,
            "proof" => Orders::Proof,
            _ => Orders::Reduced,
        },
    }
}

fn table(args: &CheckMinos, rows: &[(Model, CheckReport)]) -> String {
    let CheckMinos { nodes, writes, ops, deployment, orders, duplicates, crashes, restarts, .. } = args;
    let CheckMinos { suspicions, blackouts, fifo, .. } = args;
    let fifo = if deployment == "o" { format!(", FIFOs of {fifo}") } else { String::new() };
    let mut text = format!(
        "{nodes} nodes, {writes} writes ({ops}), deployment {deployment}{fifo}, {orders} orders; duplicates {duplicates}, \
         crashes {crashes}, restarts {restarts}, suspicions {suspicions}, blackouts {blackouts}\n\
         model   distinct states   generated  depth  states/s  seconds  result\n"
    );
    for (model, report) in rows {
        let CheckReport { states, generated, depth, seconds, .. } = report;
        let rate = *states as f64 / seconds.max(1e-9);
        let bound = |bound| match bound {
            Bound::States => "states",
            Bound::Memory => "memory",
            Bound::Time => "time",
        };
        let result = report.stopped.map_or("holds in all states".to_string(), |stopped| {
            format!("NOT COMPLETE: holds so far, stopped by the bound on {}", bound(stopped))
        });
        let model = model.to_string();
        let _ =
            writeln!(text, "{model:<7} {states:>15} {generated:>11} {depth:>6} {rate:>9.0} {seconds:>8.1}  {result}");
    }
    text
}

fn json_rows(args: &CheckMinos, rows: &[(Model, CheckReport)]) -> String {
    let row = |(model, report): &(Model, CheckReport)| {
        let marks: serde_json::Map<_, _> = report.marks.iter().map(|(name, n)| (name.to_string(), json!(n))).collect();
        json!({
            "model": model.to_string(), "deployment": args.deployment, "fifo": args.fifo, "nodes": args.nodes,
            "writes": args.writes, "ops": args.ops, "orders": args.orders, "duplicates": args.duplicates,
            "crashes": args.crashes, "restarts": args.restarts, "suspicions": args.suspicions,
            "blackouts": args.blackouts, "distinct_states": report.states, "generated": report.generated,
            "depth": report.depth, "seconds": report.seconds, "memory_bytes": report.memory,
            "complete": report.complete(), "marks": marks,
        })
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    format!("{:#}\n", json!(rows))
}

/// Shows that seeded faults are found.
fn mutants(args: &CheckMinos, name: &str) -> Result<(), Failure> {
    let names = || MUTANTS.iter().map(|mutant| mutant.name).collect::<Vec<_>>();
    if name == "list" {
        let text = names().join("\n") + "\n";
        print(&text, &text);
        return Ok(());
    }
    let chosen: Vec<_> = MUTANTS.iter().filter(|mutant| name == "all" || name == mutant.name).collect();
    if chosen.is_empty() {
        return Err(Failure::Usage(format!("no seeded fault {name:?}: {}, or all", names().join(", "))));
    }
    for mutant in chosen {
        let report = check_mutant(mutant.mutation, args.model, usize::from(args.threads));
        let Some((reason, chart)) = report.failure else {
            return Err(Failure::Failed(format!("{} was not found in {} states", mutant.name, report.states)));
        };
        let text = format!("{}: found after {} distinct states: {reason}\n{chart}\n\n", mutant.name, report.states);
        print(&text, &text);
    }
    Ok(())
}
