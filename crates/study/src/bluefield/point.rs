//! One point of a figure: builds what it needs, runs it, and says what came.

mod clients;
mod made;
mod memory;
mod sequencer;
mod trees;

pub(super) use made::shape;

use remora_model::component::switch::WhenFull;
use remora_model::platform::Platform;
use remora_model::time::Ps;
use remora_model::world::{FabricSpec, MachineSpec, NetworkSpec, SwitchSpec};
use serde::{Deserialize, Serialize};

use super::study::{At, Run, Setup};
use crate::modelled::ModelError;
use clients::World;

/// Messages of a point of latency.
const MESSAGES: u64 = 100;
/// Bytes that may wait at a port of the switch in the card.
const BUFFER: u64 = 1 << 20;

/// What a point came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Mean latency in nanoseconds.
    pub mean_ns: f64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// What was busiest.
    pub detail: String,
    /// Events that it took.
    pub events: u64,
}

/// What a platform gives to points, which run on threads of their own.
#[derive(Clone, Debug)]
pub struct Ground {
    fabric: FabricSpec,
    seed: u64,
}

impl Ground {
    /// Of a platform: the compute node, and host and card of the storage node. Host and card share the compute node's link
    /// as they share their own: it is as fast. The switch in the card takes no time (section 3).
    pub fn new(platform: &Platform, seed: u64) -> Result<Self, ModelError> {
        let order = platform.nic.as_ref().map_or_else(Default::default, |nic| nic.ethernet.order);
        let switch = SwitchSpec { latency: Ps::ZERO, buffer: BUFFER, when_full: WhenFull::Pause, order, mark: 0 };
        let mut fabric = FabricSpec::new(platform, (1, 0), NetworkSpec::star(switch, 3), (0, seed))?;
        for client in &mut fabric.machines {
            client.core.cores = platform.client.cores;
        }
        fabric.machines.push(MachineSpec::threads(platform, platform.host.cores)?);
        let cores = platform.nic_cores.as_ref().map_or(1, |cores| cores.cores);
        fabric.machines.push(MachineSpec::card(platform, cores)?);
        Ok(Self { fabric, seed })
    }

    /// A machine of the storage node.
    fn machine(&self, at: At) -> &MachineSpec {
        &self.fabric.machines[usize::from(at.machine())]
    }

    /// All machines, those of the storage node with so many threads each; 0: as many as they have cores.
    fn fabric(&self, threads: u64) -> FabricSpec {
        let mut fabric = self.fabric.clone();
        for machine in &mut fabric.machines {
            if let Some(hierarchy) = &mut machine.threads
                && threads > 0
            {
                (hierarchy.cores, machine.core.cores) = (threads as usize, threads);
            }
        }
        fabric
    }
}

/// Runs a point.
pub fn run(ground: &Ground, setup: &Setup) -> Result<Outcome, ModelError> {
    match setup.run {
        Run::Memory => Ok(memory::run(ground, setup)),
        Run::SendLatency => {
            let at = setup.place.unwrap_or(At::Host);
            World::new(ground, setup)?.send_latency(at, (setup.bytes, setup.inline), MESSAGES)
        }
        Run::EmptyCalls => trees::nothing(ground, setup),
        Run::TreeCalls | Run::LocalTree | Run::TreeReads => trees::run(ground, setup),
        Run::SequencerVerbs | Run::SequencerCalls => sequencer::run(ground, setup),
    }
}
