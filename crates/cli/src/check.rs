//! `remora check`.

use std::fmt::Write as _;
use std::path::PathBuf;

use remora_replica::ddp::Model;
use remora_storm::check::{CheckReport, Failures, MUTANTS, Ops, Options, Orders, Where, check, check_mutant};
use remora_storm::shard::Shard;
use remora_study::format::folded;
use serde_json::{Value, json};

use crate::check_search::{SearchArgs, figures, found, going, mutants, result, whole};
use crate::output::{Json, print};
use crate::progress::{Display, stop_flag};
use crate::quantity::up_to;
use crate::shards::{self, Gathered, add, write_file};
use crate::{Failure, check_chain, check_membership, check_rack, check_tree};

/// What to check.
#[derive(Debug, clap::Subcommand)]
pub enum CheckCommand {
    /// The replication engine, under each of its persistency models
    #[command(after_help = EXAMPLES)]
    Minos(CheckMinos),
    /// How nodes agree on who takes part: views, ballots, first starts and lost disks
    #[command(after_help = check_membership::EXAMPLES)]
    Membership(check_membership::CheckMembership),
    /// The B-tree: every order of the accesses of a few operations, and clients that go away
    #[command(after_help = check_tree::EXAMPLES)]
    Tree(check_tree::CheckTree),
    /// The rack: buffers that nodes pass and die with, and a flow by NICs that fail
    #[command(after_help = check_rack::EXAMPLES)]
    Rack(check_rack::CheckRack),
    /// A chain of replicas: every order of a few transactions, with crashes, views and torn logs
    #[command(after_help = check_chain::EXAMPLES)]
    Chain(check_chain::CheckChain),
    /// Put the results of shards together, and say which are missing, failed or there twice
    #[command(after_help = "Example: remora check merge results/check-*.json")]
    Merge {
        /// The shards' files, as `--shard I/N --save FILE` wrote them
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
}

const EXAMPLES: &str = "\
Every interleaving of the engine's messages, local writes, persists, faults and view changes for a few writes to one \
record or two. Memory bounds the search, at 6 to 9 bytes for a distinct state: of each a print of 68 bits is kept. How likely it is \
that any state was omitted, as another has its print, stands in the result. A search that a bound ends says so, and the \
command fails.

Examples:
  remora check minos                                      two writes, all models, no faults: seconds
  remora check minos --writes 3                           three writes, all models: seconds
  remora check minos --model synch --crashes 1 --restarts 1   a crash, a view without the node, and its return
  remora check minos --writes 3 --crashes 1 --memory 9000     three writes and a crash: long
  remora check minos --model scope --records 2 --persists 2   two records, and a PERSIST at each of two nodes
  remora check minos --ops adds --again 1 --crashes 1     an addition that is sent again, at any node: done once
  remora check minos --deployment o --fifo 1              the split between host and NIC, with FIFOs that fill up
  remora check minos --orders proof                       two writes in all orders: is the reduction sound? minutes
  remora check minos --crashes 1 --restarts 1 --shard 0/4 --save 0.json   the first of four processes' part; see deploy/
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
    #[arg(long, value_name = "N", default_value = "5", value_parser = up_to::<u16>(1..=100))]
    fifo: u16,
    /// Nodes
    #[arg(long, value_name = "N", default_value = "3", value_parser = up_to::<u8>(2..=5))]
    nodes: u8,
    /// Writes
    #[arg(long, value_name = "N", default_value = "2", value_parser = up_to::<u8>(1..=6))]
    writes: u8,
    /// Records; writes go to each in turn
    #[arg(long, value_name = "N", default_value = "1", value_parser = up_to::<u8>(1..=2))]
    records: u8,
    /// PERSISTs in scope, each at the next node: the last after all writes, the one before after all but the last, and so on
    #[arg(long, value_name = "N", default_value = "1", value_parser = up_to::<u8>(1..=2))]
    persists: u8,
    /// What is written: mixed (puts and additions in turn), puts, adds, one-node (puts, all at one node), or swaps (the
    /// first removes what the others put, if it is there)
    #[arg(long, value_name = "KIND", default_value = "mixed", value_parser = ["mixed", "puts", "adds", "one-node", "swaps"])]
    ops: String,
    /// How often the first write is sent again, to any node at any time, as its client has heard no answer
    #[arg(long, value_name = "N", default_value = "0", value_parser = up_to::<u8>(0..=3))]
    again: u8,
    /// Messages that arrive twice
    #[arg(long, value_name = "N", default_value = "0", value_parser = up_to::<u8>(0..=255))]
    duplicates: u8,
    /// Crashes of single nodes
    #[arg(long, alias = "crash", value_name = "N", default_value = "0", value_parser = up_to::<u8>(0..=255))]
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
    #[arg(long, value_name = "NAME", conflicts_with_all = ["json", "save", "shard", "deployment", "fifo", "nodes", "writes", "records", "persists", "ops", "again", "duplicates", "crashes", "restarts", "suspicions", "blackouts", "orders", "all_names", "max_states", "minutes", "memory", "shortest"])]
    mutant: Option<String>,
    /// Which orders of events: reduced leaves out those that make no difference, all does not, and proof visits all and
    /// looks in each state whether what the reduction leaves out makes no difference
    #[arg(long, value_name = "WHICH", default_value = "reduced", value_parser = ["reduced", "all", "proof"])]
    orders: String,
    /// Count states that differ only in the names of nodes at which nobody asks each by itself
    #[arg(long)]
    all_names: bool,
    /// How far it goes.
    #[command(flatten)]
    search: SearchArgs,
    /// Figures for programs.
    #[command(flatten)]
    json: Json,
    /// Do one part of a run that is split among N processes, from 0/N to N-1/N: what the first fault is, and when, decides
    /// whose it is
    #[arg(long, value_name = "I/N", value_parser = clap::value_parser!(Shard))]
    shard: Option<Shard>,
    /// Also write the result as JSON, for `remora check merge`
    #[arg(long, value_name = "FILE", value_parser = crate::output::file())]
    save: Option<PathBuf>,
}

/// Checks, and prints a row for each model.
pub fn run(what: &CheckCommand) -> Result<(), Failure> {
    let args = match what {
        CheckCommand::Minos(args) => args,
        CheckCommand::Membership(args) => return check_membership::run(args),
        CheckCommand::Tree(args) => return check_tree::run(args),
        CheckCommand::Rack(args) => return check_rack::run(args),
        CheckCommand::Chain(args) => return check_chain::run(args),
        CheckCommand::Merge { files } => return merge(files),
    };
    if let Some(name) = &args.mutant {
        let check = |mutation| check_mutant(mutation, args.model, usize::from(args.search.threads));
        return mutants(name, &MUTANTS, |mutant| mutant.name, |mutant| check(mutant.mutation));
    }
    let display = Display::new(stop_flag());
    let (rows, failure) = models(args, &display);
    let saved = args.save.as_ref().map_or(Ok(()), |path| {
        let complete = rows.iter().all(|row| row["complete"] == true) && !display.stopped();
        let failure = failure.as_ref().map(|(_, reason)| reason.as_str());
        let shard = args.shard.unwrap_or(Shard::WHOLE);
        write_file(path, &shards::result("check", shard, parameters(args), failure, complete, json!({ "rows": rows })))
    });
    if let Some((chart, reason)) = failure {
        return Err(found(reason, &chart).and(saved));
    }
    args.json.show(&table(&parameters(args), &rows), || json!({ "format": "remora-check/1", "rows": rows }))?;
    saved?;
    whole(display.stopped(), &unfinished(&rows))
}

/// A row for each model, until one fails: then its message chart, and why.
fn models(args: &CheckMinos, display: &Display) -> (Vec<Value>, Option<(String, String)>) {
    let search = args.search.search();
    let mut rows = Vec::new();
    for model in args.model.map_or(Model::ALL.to_vec(), |model| vec![model]) {
        let options = options(args, model);
        if !options.is_shards() || display.stopped() {
            continue;
        }
        display.say(&format!("{model}: checking, at most {} distinct states", args.search.max_states));
        let report = check(&options, search, going(display, &format!("{model}: ")));
        display.clear();
        rows.push(row(model, &report));
        if let Some((reason, chart)) = report.failure {
            return (rows, Some((chart, format!("{model}: {reason}"))));
        }
    }
    (rows, None)
}

/// Models of which not all was visited.
fn unfinished(rows: &[Value]) -> Vec<&str> {
    rows.iter().filter(|row| row["complete"] != true).filter_map(|row| row["model"].as_str()).collect()
}

/// Puts the results of shards together: a row for each model.
fn merge(files: &[PathBuf]) -> Result<(), Failure> {
    let gathered = Gathered::read("check", files);
    let mut rows: Vec<Value> = Vec::new();
    for row in gathered.figures.iter().filter_map(|figures| figures["rows"].as_array()).flatten() {
        match rows.iter_mut().find(|sum| sum["model"] == row["model"]) {
            Some(sum) => add_row(sum, row),
            None => rows.push(row.clone()),
        }
    }
    if !rows.is_empty() {
        print(&folded(&table(&gathered.parameters, &rows)))?;
    }
    gathered.verdict()?;
    whole(false, &unfinished(&rows))
}

/// Adds what another shard found. States that both visited count twice.
fn add_row(sum: &mut Value, row: &Value) {
    let number = |row: &Value, name: &str| row[name].as_u64().unwrap_or(0);
    let part = |row: &Value, name: &str| row[name].as_f64().unwrap_or(0.0);
    for name in ["distinct_states", "generated"] {
        sum[name] = json!(number(sum, name) + number(row, name));
    }
    for name in ["depth", "memory_bytes"] {
        sum[name] = json!(number(sum, name).max(number(row, name)));
    }
    sum["seconds"] = json!(part(sum, "seconds") + part(row, "seconds"));
    sum["omission"] = json!(1.0 - (1.0 - part(sum, "omission")) * (1.0 - part(row, "omission")));
    sum["complete"] = json!(sum["complete"] == true && row["complete"] == true);
    if let Some(bound) = row["stopped"].as_str() {
        sum["stopped"] = json!(bound);
    }
    add(&mut sum["marks"], &row["marks"]);
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
        records: args.records,
        persists: args.persists,
        ops: match args.ops.as_str() {
            "puts" => Ops::Puts,
            "adds" => Ops::Adds,
            "one-node" => Ops::OneNode,
            "swaps" => Ops::Swaps,
            _ => Ops::Mixed,
        },
        again: args.again,
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
        shard: args.shard.unwrap_or(Shard::WHOLE),
        alike: !args.all_names,
    }
}

/// What all shards of a run have in common.
fn parameters(args: &CheckMinos) -> Value {
    json!({
        "model": args.model.map(|model| model.to_string()), "deployment": args.deployment, "fifo": args.fifo,
        "nodes": args.nodes, "writes": args.writes, "records": args.records, "persists": args.persists, "ops": args.ops, "again": args.again, "orders": args.orders, "duplicates": args.duplicates,
        "crashes": args.crashes, "restarts": args.restarts, "suspicions": args.suspicions, "blackouts": args.blackouts,
    })
}

fn table(parameters: &Value, rows: &[Value]) -> String {
    let text = |name: &str| parameters[name].as_str().unwrap_or_default();
    let of = |name: &str| &parameters[name];
    let fifo = if text("deployment") == "o" { format!(", FIFOs of {}", of("fifo")) } else { String::new() };
    let again = match of("again").as_u64() {
        Some(times @ 1..) => format!(", the first sent again {times} times"),
        _ => String::new(),
    };
    let mut out = format!(
        "{} nodes, {} writes ({}) to {} records{again}, {} PERSISTs, deployment {}{fifo}, {} orders; duplicates {}, crashes {}, restarts {}, suspicions {}, \
         blackouts {}\n\
         model   distinct states   generated  depth  states/s  seconds  omission\n",
        of("nodes"),
        of("writes"),
        text("ops"),
        of("records"),
        of("persists"),
        text("deployment"),
        text("orders"),
        of("duplicates"),
        of("crashes"),
        of("restarts"),
        of("suspicions"),
        of("blackouts"),
    );
    for row in rows {
        let number = |name: &str| row[name].as_u64().unwrap_or(0);
        let part = |name: &str| row[name].as_f64().unwrap_or(0.0);
        let _ = writeln!(
            out,
            "{:<7} {:>15} {:>11} {:>6} {:>9.0} {:>8.1} {:>9.1e}\n  {}",
            row["model"].as_str().unwrap_or_default(),
            number("distinct_states"),
            number("generated"),
            number("depth"),
            number("distinct_states") as f64 / part("seconds").max(1e-9),
            part("seconds"),
            part("omission"),
            result(row["stopped"].as_str()),
        );
    }
    out
}

/// What was found of a model.
fn row(model: Model, report: &CheckReport) -> Value {
    let marks: serde_json::Map<_, _> = report.marks.iter().map(|(name, n)| (name.to_string(), json!(n))).collect();
    figures(json!({ "model": model.to_string(), "marks": marks }), report)
}
