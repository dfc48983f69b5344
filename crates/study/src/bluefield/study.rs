//! What a figure is made of: a file of `studies/bluefield/`.

use serde::{Deserialize, Serialize};

use super::point::Outcome;
use crate::reproduce::{self, FigureError};

/// The figures in the paper's order.
const BLUEFIELD: [&str; 1] = [include_str!("../../../../studies/bluefield/fig8.toml")];

/// A figure of the paper.
pub type Study = reproduce::Study<BluefieldSeries, Metric, Sets>;

/// Which part of a setup varies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sets {
    /// KiB of the block.
    #[default]
    BlockKib,
}

/// A figure of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Mean latency in nanoseconds.
    LatencyNs,
}

impl Metric {
    /// Of an outcome.
    pub fn of(self, outcome: &Outcome) -> f64 {
        match self {
            Self::LatencyNs => outcome.mean_ns,
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

/// A point's setup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// On which platform.
    pub platform: String,
    /// What is run.
    pub run: Run,
    /// Where.
    pub place: At,
    /// KiB of the block.
    #[serde(default)]
    pub block_kib: u64,
    /// KiB of a page; 0: as the platform says.
    #[serde(default)]
    pub page_kib: u64,
}

impl BluefieldSeries {
    /// What is run for a point of its line.
    pub fn setup(&self, sets: Sets, x: u64) -> Setup {
        let mut setup = self.setup.clone();
        match sets {
            Sets::BlockKib => setup.block_kib = x,
        }
        setup
    }
}

/// The studies, or one.
pub fn studies(number: Option<&str>) -> Result<Vec<Study>, FigureError> {
    Study::choose(&BLUEFIELD, number)
}
