//! What a figure is made of: a file of `studies/rambda/`.

use serde::{Deserialize, Serialize};

use super::point::{PointFigures, Setup};
use crate::reproduce::{self, FigureError};

/// The figures in the paper's order, its third table at the end.
const RAMBDA: [&str; 10] = [
    include_str!("../../../../studies/rambda/fig1.toml"),
    include_str!("../../../../studies/rambda/fig5.toml"),
    include_str!("../../../../studies/rambda/fig7.toml"),
    include_str!("../../../../studies/rambda/fig8.toml"),
    include_str!("../../../../studies/rambda/fig9.toml"),
    include_str!("../../../../studies/rambda/fig10.toml"),
    include_str!("../../../../studies/rambda/fig12.toml"),
    include_str!("../../../../studies/rambda/fig13a.toml"),
    include_str!("../../../../studies/rambda/fig13b.toml"),
    include_str!("../../../../studies/rambda/table3.toml"),
];

/// A figure of RAMBDA.
pub type Study = reproduce::Study<RambdaSeries, Metric, Sets>;

/// Which part of a setup varies along x.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sets {
    /// Per cent of the accesses that go to the host's memory.
    #[default]
    HostShare,
    /// 1: packets without the hint; 2: with it.
    Hint,
    /// 1: DRAM; 2: persistent memory.
    Memory,
    /// Of the store: 1 GETs of uniform keys, 2 of zipfian ones, 3 and 4 the same with half PUTs.
    Keys,
    /// Requests taken at once.
    Batch,
    /// 1: one write of 64 B; 2: four reads and two writes of 64 B; 3 and 4 the same of 1 KB.
    Transaction,
    /// Mean items of a query.
    Items,
    /// Threads.
    Threads,
}

/// What a figure shows of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Millions of operations a second.
    Rate,
    /// Mean latency in microseconds.
    Mean,
    /// The 99th percentile in microseconds.
    Tail,
    /// Bytes read from memory, in GB a second.
    MemoryReads,
    /// Bytes written to memory, in GB a second.
    MemoryWrites,
    /// Thousands of operations a second for each Watt.
    Efficiency,
}

/// A line of a figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RambdaSeries {
    /// As the paper calls it.
    pub name: String,
    /// What it shows, where that is not what the figure says.
    #[serde(default)]
    pub metric: Option<Metric>,
    /// What is run.
    pub setup: Setup,
}

impl Metric {
    /// Of what came.
    pub fn of(self, figures: &PointFigures) -> f64 {
        match self {
            Self::Rate => figures.per_s / 1e6,
            Self::Mean => figures.mean_ns / 1e3,
            Self::Tail => figures.p99_ns / 1e3,
            Self::MemoryReads => figures.memory_bytes_per_s.0 / 1e9,
            Self::MemoryWrites => figures.memory_bytes_per_s.1 / 1e9,
            Self::Efficiency => figures.per_s / 1e3 / figures.watts.max(1e-9),
        }
    }
}

impl RambdaSeries {
    /// What is run for a point of its line.
    pub fn setup(&self, sets: Sets, x: u64) -> Result<Setup, FigureError> {
        let mut setup = self.setup.clone();
        let choice = |most: u64| match x {
            1.. if x <= most => Ok(x - 1),
            _ => Err(FigureError(format!("{} has no setup {x}", self.name))),
        };
        match sets {
            Sets::HostShare => setup.host_share = x.min(100),
            Sets::Hint => setup.hint = choice(2)? == 1,
            Sets::Memory => setup.persistent = choice(2)? == 1,
            Sets::Keys => {
                (setup.zipfian, setup.puts) = [(false, 0), (true, 0), (false, 50), (true, 50)][choice(4)? as usize]
            }
            Sets::Batch => setup.batch = x,
            Sets::Transaction => {
                let of = [(0, 1, 64), (4, 2, 64), (0, 1, 1024), (4, 2, 1024)][choice(4)? as usize];
                (setup.reads, setup.writes, setup.bytes) = of;
            }
            Sets::Items => setup.items = x,
            Sets::Threads => setup.threads = x,
        }
        Ok(setup)
    }
}

/// The studies of RAMBDA's figures, or one.
pub fn studies(number: Option<&str>) -> Result<Vec<Study>, FigureError> {
    Study::choose(&RAMBDA, number)
}
