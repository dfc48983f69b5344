//! `remora cluster kills`: SIGKILL under load, and a check of everything that clients saw.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

use remora_lab::stats::{median, range};
use remora_study::kills::{KillReport, Kills, verdict};
use remora_study::nodes::ClusterSettings;
use serde_json::json;

use crate::cluster::{Shape, scratch};
use crate::progress::{Display, stop_flag};
use crate::{Failure, print};

pub const EXAMPLES: &str = "\
While clients read and write, a node chosen at random is killed with SIGKILL, started again after a moment, and \
waited for until it is a member; then the next one. After every tenth kill all nodes are killed at once. In the end \
every record is read at every node. All answers together must be linearizable, and nothing may be lost that the \
persistency model keeps (see docs/replication.md).

Examples:
  remora cluster kills                                      50 kills, about two minutes
  remora cluster kills --kills 5 --persistency event --nodes 5
  remora cluster kills --seed 7 --deployment host           the same victims and requests again";

/// Options of `remora cluster kills`.
#[derive(Debug, clap::Args)]
pub struct KillArgs {
    #[command(flatten)]
    shape: Shape,
    /// Kills of one node
    #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    kills: u32,
    /// Kills of all nodes at once come after so many kills of one
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..))]
    all_after: u32,
    /// Threads of clients, each with several requests under way
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u8).range(1..=64))]
    clients: u8,
    /// Seed of every random choice [default: a fresh one]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Fail if writes are answered again only after more than so many milliseconds
    #[arg(long, value_name = "MS", default_value = "1000")]
    within: u64,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &KillArgs) -> Result<(), Failure> {
    let display = Display::new(stop_flag());
    let seed = args.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 24);
    let dir = scratch()?;
    let settings = ClusterSettings::open(dir.path(), &args.shape.clone().into())?;
    let (model, deployment, nodes) = (settings.persistency, settings.deployment, settings.addresses.len());
    let head = format!("{nodes} nodes, {model}, {deployment} deployment; seed {seed}\n");
    print(&head, &head);
    let kills = Kills { kills: args.kills, all_after: args.all_after, clients: args.clients, seed };
    let report = kills.run(dir.path(), settings, &display);
    display.clear();
    let report = report?;
    let verdict = verdict(&report.checked);
    let (Ok(said) | Err(said)) = &verdict;
    let text = format!("{}{said}\n", table(&report));
    print(&text, &text);
    if let Some(path) = &args.json {
        write_json(path, seed, &model.to_string(), &report)?;
    }
    if let Err(finding) = &report.checked {
        for &index in finding.records.iter().take(20) {
            let line = format!("{:?}\n", report.history.records[index]);
            print(&line, &line);
        }
    }
    verdict.map_err(|why| Failure::Failed(format!("{why}; seed {seed}")))?;
    let slow = report.resumed.iter().filter(|t| t.as_millis() as u64 > args.within).count();
    if slow > 0 || report.resumed.len() < report.whole.len() {
        let within = args.within;
        return Err(Failure::Failed(format!("after {slow} kills no write was answered for {within} ms; seed {seed}")));
    }
    Ok(())
}

fn table(report: &KillReport) -> String {
    let mut text = format!(
        "{} kills of one node, {} of all; {} operations, {} writes answered, {} outcomes unknown\n",
        report.resumed.len(),
        report.resumed_after_all.len(),
        report.history.records.len(),
        report.answered,
        report.unknown
    );
    text += &spread("first write answered after the kill of one", &report.resumed);
    text += &spread("cluster whole again after it", &report.whole);
    text + &spread("first write answered after the kill of all", &report.resumed_after_all)
}

fn write_json(path: &Path, seed: u64, persistency: &str, report: &KillReport) -> Result<(), Failure> {
    let ms = |times: &[Duration]| times.iter().map(|t| t.as_secs_f64() * 1e3).collect::<Vec<_>>();
    let figures = json!({
        "seed": seed,
        "persistency": persistency,
        "operations": report.history.records.len(),
        "acknowledged_writes": report.answered,
        "unknown": report.unknown,
        "resumed_ms": ms(&report.resumed),
        "whole_ms": ms(&report.whole),
        "resumed_after_all_ms": ms(&report.resumed_after_all),
        "violations": u8::from(report.checked.is_err()),
        "too_hard": report.checked.as_ref().map_or(0, Vec::len),
    });
    let failed = |e| Failure::Failed(format!("writing {}: {e}", path.display()));
    std::fs::write(path, format!("{figures}\n")).map_err(failed)
}

fn spread(what: &str, times: &[Duration]) -> String {
    if times.is_empty() {
        return String::new();
    }
    let ms = || times.iter().map(|time| time.as_secs_f64() * 1e3);
    let (least, most) = range(ms());
    format!("  {what}: median {:.0} ms, {least:.0} to {most:.0} ms\n", median(ms()))
}
