//! What a figure is made of: a file of `studies/minos/`.

use serde::{Deserialize, Serialize};

use super::point::{AblationStep, PointFigures, Setup};
use crate::reproduce::{self, FigureError};

/// The figures in the paper's order.
const MINOS: [&str; 12] = [
    include_str!("../../../../studies/minos/fig4.toml"),
    include_str!("../../../../studies/minos/fig9a.toml"),
    include_str!("../../../../studies/minos/fig9b.toml"),
    include_str!("../../../../studies/minos/fig9c.toml"),
    include_str!("../../../../studies/minos/fig10a.toml"),
    include_str!("../../../../studies/minos/fig10b.toml"),
    include_str!("../../../../studies/minos/fig11a.toml"),
    include_str!("../../../../studies/minos/fig11b.toml"),
    include_str!("../../../../studies/minos/fig12.toml"),
    include_str!("../../../../studies/minos/fig13.toml"),
    include_str!("../../../../studies/minos/fig14a.toml"),
    include_str!("../../../../studies/minos/fig14b.toml"),
];

/// A figure of MINOS.
pub type Study = reproduce::Study<MinosSeries, Metric, Sets>;

/// Which part of a setup varies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sets {
    /// Per cent of writes.
    #[default]
    Writes,
    /// Nodes.
    Nodes,
    /// Records.
    Records,
    /// Time of a persist.
    PersistNs,
    /// Entries of the FIFOs.
    Fifo,
    /// The hit rate.
    Hit,
    /// The step of the ablation, 1 to 6.
    Step,
}

/// A figure of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Mean latency of a write in microseconds.
    Write,
    /// Its communication.
    Communication,
    /// Mean latency of a read.
    Read,
    /// Mean latency of a Login.
    Login,
    /// Millions of operations a second.
    Rate,
}

/// A line of a figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MinosSeries {
    /// Its name.
    pub name: String,
    /// What it shows, where that is not what the figure says.
    #[serde(default)]
    pub metric: Option<Metric>,
    /// What is run.
    pub setup: Setup,
}

impl Metric {
    /// Of an outcome.
    pub fn of(self, outcome: &PointFigures) -> f64 {
        match self {
            Self::Write => outcome.write_ns / 1e3,
            Self::Communication => outcome.communication_ns / 1e3,
            Self::Read => outcome.read_ns / 1e3,
            Self::Login => outcome.login_ns / 1e3,
            Self::Rate => (outcome.writes_per_s + outcome.reads_per_s) / 1e6,
        }
    }
}

/// The studies of MINOS's figures, or one.
pub fn studies(number: Option<&str>) -> Result<Vec<Study>, FigureError> {
    Study::choose(&MINOS, number)
}

impl MinosSeries {
    /// What is run for a point of its line.
    pub fn setup(&self, sets: Sets, x: u64) -> Result<Setup, FigureError> {
        let mut setup = self.setup.clone();
        match sets {
            Sets::Writes => setup.writes = x,
            Sets::Nodes => setup.nodes = x,
            Sets::Records => setup.records = x,
            Sets::PersistNs => setup.persist_ns = x,
            Sets::Fifo => setup.fifo = x,
            Sets::Hit => setup.hit = x,
            Sets::Step => {
                let step = (x as usize).checked_sub(1).and_then(|x| AblationStep::ALL.get(x));
                setup.deployment = *step.ok_or_else(|| FigureError(format!("the ablation has no step {x}")))?;
            }
        }
        Ok(setup)
    }
}
