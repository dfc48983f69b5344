//! `remora cluster kills`: SIGKILL under load, and a check of everything that clients saw.

use std::path::Path;
use std::time::Duration;

use remora_lab::stats::{median, range};
use remora_study::kills::{KillReport, Kills};
use serde_json::json;

use crate::Failure;
use crate::cluster_trouble::{Summary, TroubleArgs, load};
use crate::progress::Display;
use crate::quantity::up_to;

pub const EXAMPLES: &str = "\
While clients read and write, a node chosen at random is killed with SIGKILL, started again after a moment, and \
waited for until it is a member; then the next one. After every tenth kill all nodes are killed at once. In the end \
every record is read at every node. All answers together must be linearizable, and nothing may be lost that the \
persistency model keeps (see docs/replication.md). Nodes of a chain are killed in turn, while clients read and append to \
several lists at once: all transactions together must be strictly serializable.

Examples:
  remora cluster kills                                      50 kills, about two minutes
  remora cluster kills --kills 5 --persistency event --nodes 5
  remora cluster kills --chain 64M --kills 12               a chain: each node four times
  remora cluster kills --seed 7 --deployment host           the same victims and requests again";

/// Options of `remora cluster kills`.
#[derive(Debug, clap::Args)]
pub struct KillArgs {
    /// Kills of one node
    #[arg(long, value_name = "N", default_value = "50", value_parser = up_to::<u32>(1..=100_000))]
    kills: u32,
    /// Kills of all nodes at once come after so many kills of one
    #[arg(long, value_name = "N", default_value = "10", value_parser = up_to::<u32>(1..=1_000_000_000))]
    all_after: u32,
    /// Fail if writes are answered again only after more than so many milliseconds
    #[arg(long, value_name = "MS", default_value = "1000")]
    within: u64,
    #[command(flatten)]
    trouble: TroubleArgs,
}

/// Runs the command.
pub fn run(args: &KillArgs) -> Result<(), Failure> {
    let work = |dir: &Path, settings, seed, watch: &Display| {
        let kills = Kills { kills: args.kills, all_after: args.all_after, clients: args.trouble.clients, seed };
        kills.run(dir, settings, watch)
    };
    let (report, seed) = args.trouble.run("kills", work, |report: &KillReport| summary(report, args.kills))?;
    let in_time = report.resumed.iter().filter(|t| t.as_millis() as u64 <= args.within).count();
    let slow = report.whole.len() - in_time;
    if slow > 0 {
        let within = args.within;
        return Err(Failure::Failed(format!("after {slow} kills no write was answered for {within} ms; seed {seed}")));
    }
    Ok(())
}

fn summary(report: &KillReport, asked: u32) -> Summary<'_> {
    let KillReport { resumed, whole, resumed_after_all, seen } = report;
    let mut table = format!("{} kills of one node, {} of all; {}\n", whole.len(), resumed_after_all.len(), load(seen));
    table += &spread("first write answered after the kill of one", resumed);
    table += &spread("cluster whole again after it", whole);
    table += &spread("first write answered after the kill of all", resumed_after_all);
    let ms = |times: &[Duration]| times.iter().map(|t| t.as_secs_f64() * 1e3).collect::<Vec<_>>();
    let figures = json!({
        "resumed_ms": ms(resumed),
        "whole_ms": ms(whole),
        "resumed_after_all_ms": ms(resumed_after_all),
    });
    Summary { done: whole.len(), asked, table, figures, seen }
}

fn spread(what: &str, times: &[Duration]) -> String {
    if times.is_empty() {
        return String::new();
    }
    let ms = || times.iter().map(|time| time.as_secs_f64() * 1e3);
    let (least, most) = range(ms());
    format!("  {what}: median {:.0} ms, {least:.0} to {most:.0} ms\n", median(ms()))
}
