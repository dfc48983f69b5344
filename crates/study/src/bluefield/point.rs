//! One point of a figure: builds what it needs, runs it, and says what came.

mod memory;

use remora_model::platform::Platform;
use remora_model::world::MachineSpec;
use serde::{Deserialize, Serialize};

use super::study::{At, Run, Setup};
use crate::modelled::ModelError;

/// What a point came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Mean latency in nanoseconds.
    pub mean_ns: f64,
    /// What else there is to say.
    pub detail: String,
    /// Events that it took.
    pub events: u64,
}

/// What a platform gives to points, which run on threads of their own.
#[derive(Clone, Debug)]
pub struct Ground {
    host: MachineSpec,
    card: MachineSpec,
    seed: u64,
}

impl Ground {
    /// Of a platform.
    pub fn new(platform: &Platform, seed: u64) -> Result<Self, ModelError> {
        let host = MachineSpec::threads(platform, platform.host.cores)?;
        let card = MachineSpec::card(platform, platform.nic_cores.as_ref().map_or(1, |cores| cores.cores))?;
        Ok(Self { host, card, seed })
    }

    /// A machine of the storage node.
    fn machine(&self, at: At) -> &MachineSpec {
        match at {
            At::Host => &self.host,
            At::Card => &self.card,
        }
    }
}

/// Runs a point.
pub fn run(ground: &Ground, setup: &Setup) -> Result<Outcome, ModelError> {
    match setup.run {
        Run::Memory => Ok(memory::run(ground, setup)),
    }
}
