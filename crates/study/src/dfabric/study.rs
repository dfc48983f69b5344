//! What a figure is made of: a file of `studies/dfabric/`.

use serde::{Deserialize, Serialize};

use super::point::{PointFigures, Setup, Without};
use crate::reproduce::{self, FigureError};

/// The figures in the paper's order, its fourth table at the end.
const DFABRIC: [&str; 13] = [
    include_str!("../../../../studies/dfabric/fig2.toml"),
    include_str!("../../../../studies/dfabric/fig9a.toml"),
    include_str!("../../../../studies/dfabric/fig9b.toml"),
    include_str!("../../../../studies/dfabric/fig9c.toml"),
    include_str!("../../../../studies/dfabric/fig9d.toml"),
    include_str!("../../../../studies/dfabric/fig9e.toml"),
    include_str!("../../../../studies/dfabric/fig9f.toml"),
    include_str!("../../../../studies/dfabric/fig10a.toml"),
    include_str!("../../../../studies/dfabric/fig10b.toml"),
    include_str!("../../../../studies/dfabric/fig11.toml"),
    include_str!("../../../../studies/dfabric/fig12.toml"),
    include_str!("../../../../studies/dfabric/fig13.toml"),
    include_str!("../../../../studies/dfabric/table4.toml"),
];

/// A figure of DFabric.
pub type Study = reproduce::Study<DFabricSeries, Metric, Sets>;

/// Which part of a setup varies along x.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sets {
    /// The interconnect's bandwidth over a NIC's.
    #[default]
    Theta,
    /// NICs of a node, or of a pool.
    Nics,
    /// NICs added to a pool.
    Added,
    /// Bytes of a message.
    Bytes,
    /// The mechanism that is off, as table 4 numbers them, and then none.
    Without,
    /// Nothing: slices of time of one run.
    Slice,
}

/// What a figure shows of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Time without computing, in milliseconds.
    Communication,
    /// What programs received, in Mb/s.
    Throughput,
    /// Mean round trip in microseconds.
    RoundTrip,
    /// Thousands of requests a second.
    Requests,
    /// Mb/s within racks in a slice of time.
    WithinRacks,
    /// Mb/s between racks in a slice of time.
    BetweenRacks,
    /// Mb/s between racks in the slices of the run's last quarter, but for the one that it ends in.
    AtTheEnd,
}

/// A line of a figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DFabricSeries {
    /// Its name.
    pub name: String,
    /// What it shows, where that is not what the figure says.
    #[serde(default)]
    pub metric: Option<Metric>,
    /// What is run.
    pub setup: Setup,
}

impl Metric {
    /// Of what came; `x` is the number of a slice, from 1 on.
    pub fn of(self, figures: &PointFigures, x: u64) -> f64 {
        let slice = || (x as usize).checked_sub(1).and_then(|at| figures.slices.get(at)).copied().unwrap_or_default();
        match self {
            Self::Communication => figures.communication * 1e3,
            Self::Throughput => figures.delivered as f64 * 8.0 / figures.seconds.max(1e-12) / 1e6,
            Self::RoundTrip => figures.round_trip_us,
            Self::Requests => figures.requests as f64 / figures.seconds.max(1e-12) / 1e3,
            Self::WithinRacks => slice().0,
            Self::BetweenRacks => slice().1,
            Self::AtTheEnd => {
                let whole = figures.slices.len().saturating_sub(1);
                let last = &figures.slices[whole - whole.div_ceil(4)..whole];
                last.iter().map(|slice| slice.1).sum::<f64>() / last.len().max(1) as f64
            }
        }
    }
}

impl DFabricSeries {
    /// What is run for a point of its line.
    pub fn setup(&self, sets: Sets, x: u64) -> Result<Setup, FigureError> {
        let mut setup = self.setup.clone();
        match sets {
            Sets::Theta => setup.theta = x,
            Sets::Nics => setup.nics = x,
            Sets::Added => setup.added = x,
            Sets::Bytes => setup.bytes = x,
            Sets::Slice => {}
            Sets::Without => {
                let all = Without::ALL.len() as u64;
                match x {
                    1.. if x <= all => setup.without.push(Without::ALL[x as usize - 1]),
                    _ if x == all + 1 => {}
                    _ => return Err(FigureError(format!("{} has no mechanism {x}", self.name))),
                }
            }
        }
        Ok(setup)
    }
}

/// The studies of DFabric's figures, or one.
pub fn studies(number: Option<&str>) -> Result<Vec<Study>, FigureError> {
    Study::choose(&DFABRIC, number)
}
