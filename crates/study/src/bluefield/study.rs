//! What a figure is made of: a file of `studies/bluefield/`.

use serde::{Deserialize, Serialize};

use super::point::Outcome;
use crate::reproduce::{self, FigureError};

/// The figures in the paper's order.
const BLUEFIELD: [&str; 11] = [
    include_str!("../../../../studies/bluefield/fig2.toml"),
    include_str!("../../../../studies/bluefield/fig3.toml"),
    include_str!("../../../../studies/bluefield/fig4.toml"),
    include_str!("../../../../studies/bluefield/fig5.toml"),
    include_str!("../../../../studies/bluefield/fig6.toml"),
    include_str!("../../../../studies/bluefield/fig7.toml"),
    include_str!("../../../../studies/bluefield/fig8.toml"),
    include_str!("../../../../studies/bluefield/fig9.toml"),
    include_str!("../../../../studies/bluefield/fig10.toml"),
    include_str!("../../../../studies/bluefield/fig11.toml"),
    include_str!("../../../../studies/bluefield/fig12.toml"),
];

/// A figure of the paper.
pub type Study = reproduce::Study<BluefieldSeries, Metric, Sets>;

/// Which part of a setup varies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sets {
    /// KiB of the block.
    #[default]
    BlockKib,
    /// Millions of keys.
    MillionKeys,
    /// Threads of the storage node's machine.
    Threads,
    /// Threads of the compute node.
    Clients,
    /// Per cent of the keys that the card has.
    Share,
    /// Bytes of a node.
    NodeBytes,
    /// Bytes of a message.
    Bytes,
}

/// A figure of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Mean latency in nanoseconds.
    LatencyNs,
    /// Mean latency in microseconds.
    LatencyUs,
    /// Millions of operations a second.
    Rate,
}

impl Metric {
    /// Of an outcome.
    pub fn of(self, outcome: &Outcome) -> f64 {
        match self {
            Self::LatencyNs => outcome.mean_ns,
            Self::LatencyUs => outcome.mean_ns / 1e3,
            Self::Rate => outcome.ops_per_s / 1e6,
        }
    }
}

/// A line of a figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BluefieldSeries {
    /// Its name.
    pub name: String,
    /// What is run.
    pub setup: Setup,
}

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Run {
    /// Random reads of a block of memory by one thread.
    Memory,
    /// Messages there and back, half of the time.
    SendLatency,
    /// Calls that do nothing.
    EmptyCalls,
    /// Calls on a B-tree.
    TreeCalls,
    /// Operations on a B-tree by threads of the machine that has it.
    LocalTree,
    /// Look-ups of a B-tree by one-sided READs, a node each.
    TreeReads,
    /// Numbers of a sequencer by one-sided atomic operations.
    SequencerVerbs,
    /// Numbers of a sequencer by calls.
    SequencerCalls,
}

/// Which of the storage node's machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum At {
    /// The host.
    Host,
    /// The cores on the card.
    Card,
}

/// A point's setup. What is not given is as in the paper's section 4.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Setup {
    /// On which platform.
    pub platform: String,
    /// What is run.
    pub run: Run,
    /// Where; not given: keys are split between host and card.
    pub place: Option<At>,
    /// KiB of the block.
    pub block_kib: u64,
    /// KiB of a page; 0: as the platform says.
    pub page_kib: u64,
    /// Keys.
    pub keys: u64,
    /// Bytes of a node.
    pub node_bytes: u64,
    /// Per cent of the operations that are updates.
    pub writes: u64,
    /// Per cent of the keys that the card has, the lowest ones.
    pub share: u64,
    /// Threads of each of the storage node's machines.
    pub threads: u64,
    /// Threads of the compute node.
    pub clients: u64,
    /// Operations that each of these has under way.
    pub ahead: u64,
    /// Bytes of a message.
    pub bytes: u64,
    /// Whether commands hold messages that fit in.
    pub inline: bool,
    /// Operations that are measured.
    pub operations: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            platform: "bluefield2".into(),
            run: Run::TreeCalls,
            place: None,
            block_kib: 0,
            page_kib: 0,
            keys: 1_000_000,
            node_bytes: 512,
            writes: 0,
            share: 0,
            threads: 8,
            clients: 16,
            ahead: 8,
            bytes: 0,
            inline: false,
            operations: 8_000,
        }
    }
}

impl BluefieldSeries {
    /// What is run for a point of its line.
    pub fn setup(&self, sets: Sets, x: u64) -> Setup {
        let mut setup = self.setup.clone();
        match sets {
            Sets::BlockKib => setup.block_kib = x,
            Sets::MillionKeys => setup.keys = x * 1_000_000,
            Sets::Threads => setup.threads = x,
            Sets::Clients => setup.clients = x,
            Sets::Share => setup.share = x,
            Sets::NodeBytes => setup.node_bytes = x,
            Sets::Bytes => setup.bytes = x,
        }
        setup
    }
}

/// The studies, or one.
pub fn studies(number: Option<&str>) -> Result<Vec<Study>, FigureError> {
    Study::choose(&BLUEFIELD, number)
}
