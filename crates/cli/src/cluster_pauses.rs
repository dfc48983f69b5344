//! `remora cluster pauses`: SIGSTOP and SIGCONT under load, and a check of everything that clients saw.

use std::path::Path;

use remora_study::kills::{PauseReport, Pauses};
use serde_json::json;

use crate::Failure;
use crate::cluster_trouble::{Summary, TroubleArgs, load};
use crate::progress::Display;
use crate::quantity::up_to;

pub const EXAMPLES: &str = "\
While clients read and write, a node chosen at random is stopped with SIGSTOP, at any instant, and goes on with SIGCONT: \
after a moment, or after so long that the others have gone on without it. Meanwhile somebody reads at each node every \
10 ms, whether it answers or not; what a node was asked while it stood still it answers when it goes on. In the end \
every record is read at every node. All answers together must be linearizable: no read may see less than a write that \
had been answered before it was asked for. Nodes of a chain stand still in turn, while clients do transactions and READ the head's \
memory: all together must be strictly serializable.

Examples:
  remora cluster pauses                                  100 pauses, about a minute
  remora cluster pauses --pauses 1000 --json pauses.json
  remora cluster pauses --deployment host --link udp --seed 7
  remora cluster pauses --chain 64M --suspect 40         a chain; READs wait for so long as nodes stand still then";

/// Options of `remora cluster pauses`.
#[derive(Debug, clap::Args)]
pub struct PauseArgs {
    /// Pauses of one node
    #[arg(long, value_name = "N", default_value = "100", value_parser = up_to::<u32>(1..=100_000))]
    pauses: u32,
    #[command(flatten)]
    trouble: TroubleArgs,
}

/// Runs the command.
pub fn run(args: &PauseArgs) -> Result<(), Failure> {
    let work = |dir: &Path, settings, seed, watch: &Display| {
        let pauses = Pauses { pauses: args.pauses, clients: args.trouble.clients, seed };
        pauses.run(dir, settings, watch)
    };
    args.trouble.run("pauses", work, |report: &PauseReport| summary(report, args.pauses)).map(drop)
}

fn summary(report: &PauseReport, asked: u32) -> Summary<'_> {
    let PauseReport { left_out, short, read_late, seen } = report;
    Summary {
        done: left_out + short,
        asked,
        table: format!(
            "{left_out} pauses after which the others had gone on without the node, {short} shorter ones\n{}; {read_late} \
             reads asked of a node that stood still, and answered when it went on\n",
            load(seen)
        ),
        figures: json!({ "left_out": left_out, "short": short, "read_late": read_late }),
        seen,
    }
}
