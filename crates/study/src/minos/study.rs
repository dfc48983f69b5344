//! What a figure is made of: a file of `studies/minos/`.

use serde::{Deserialize, Serialize};

use super::point::{Outcome, Setup, Step};
use crate::reproduce::StudyError;

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

/// A figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// Its number: `9a`.
    pub figure: String,
    /// What it shows.
    pub title: String,
    /// What a reader must know.
    pub note: String,
    /// Whether values are shown as parts of each line's last.
    #[serde(default)]
    pub relative_to_last: bool,
    /// Along the x axis.
    pub x: XAxis,
    /// Along the y axis.
    pub y: YAxis,
    /// The lines.
    pub series: Vec<Series>,
}

/// What varies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XAxis {
    /// What it is.
    pub name: String,
    /// In which unit.
    pub unit: String,
    /// Which part of the setup.
    pub sets: Sets,
    /// The values.
    pub values: Vec<u64>,
}

/// Which part of a setup varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sets {
    /// Per cent of writes.
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

/// What is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct YAxis {
    /// What it is.
    pub name: String,
    /// In which unit.
    pub unit: String,
    /// Which figure of an outcome.
    pub metric: Metric,
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
pub struct Series {
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
    pub fn of(self, outcome: &Outcome) -> f64 {
        match self {
            Self::Write => outcome.write_ns / 1e3,
            Self::Communication => outcome.communication_ns / 1e3,
            Self::Read => outcome.read_ns / 1e3,
            Self::Login => outcome.login_ns / 1e3,
            Self::Rate => (outcome.writes_per_s + outcome.reads_per_s) / 1e6,
        }
    }
}

impl Study {
    /// The studies; `number` chooses those that begin with it: `9` has 9a, 9b and 9c.
    pub fn all(number: Option<&str>) -> Result<Vec<Self>, StudyError> {
        let parse = |text: &&str| toml::from_str(text).map_err(|e| StudyError(format!("a study of MINOS: {e}")));
        let all: Vec<Self> = MINOS.iter().map(parse).collect::<Result<_, _>>()?;
        let Some(number) = number else { return Ok(all) };
        let known = all.iter().map(|study| study.figure.clone()).collect::<Vec<_>>().join(", ");
        let is = |study: &Self| {
            study.figure == number || study.figure.trim_end_matches(|c: char| c.is_alphabetic()) == number
        };
        let chosen: Vec<Self> = all.into_iter().filter(is).collect();
        match chosen.is_empty() {
            true => Err(StudyError(format!("there is no figure {number}: choose one of {known}"))),
            false => Ok(chosen),
        }
    }

    /// What is run for a point.
    pub fn setup(&self, series: &Series, x: u64) -> Result<Setup, StudyError> {
        let mut setup = series.setup.clone();
        match self.x.sets {
            Sets::Writes => setup.writes = x,
            Sets::Nodes => setup.nodes = x,
            Sets::Records => setup.records = x,
            Sets::PersistNs => setup.persist_ns = x,
            Sets::Fifo => setup.fifo = x,
            Sets::Hit => setup.hit = x,
            Sets::Step => {
                let step = (x as usize).checked_sub(1).and_then(|x| Step::ALL.get(x));
                setup.deployment = *step.ok_or_else(|| StudyError(format!("the ablation has no step {x}")))?;
            }
        }
        Ok(setup)
    }
}
