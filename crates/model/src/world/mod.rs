//! The modelled world: the protocol engine of `remora-nic` and the kernels of `remora-kernel`, in modelled time.
//!
//! A [`Machine`] is an engine with the [`Hardware`] around it; a [`Pair`] joins a client and a node, and takes the calls
//! that the real world's client takes. Every packet is built, sent, received and answered by the code that runs for
//! real, over real bytes, and every kernel is polled for real: the model only says when. A packet's way:
//!
//! ```text
//! core --store--> NIC [--fetch command--> ] engine --fetch payload--> tx pipeline --> wire
//!     [--> switch port] --> rx pipeline --> engine
//!                                           kernel <--- DMA ---> memory
//! ```
//!
//! What the model leaves out: the bytes of acknowledgements of PCIe, row buffers of DRAM, contention between a NIC's
//! own data structures, and everything that a real run suffers from its operating system.

mod bus;
mod energy;
mod hardware;
mod machine;
mod pair;
mod site;
mod tasks;
mod verbs;
mod writer;

pub use bus::{Bus, Event, Packet, TraceEntry};
pub use energy::Energy;
pub use hardware::Hardware;
pub use machine::{Command, Machine};
pub use pair::{Counts, Done, Full, MAX_CALLS, MAX_REPLY, Pair, RawVerb};
pub use site::{Processor, Reach, Site, SiteMemory};
pub use tasks::{Tasks, Turn, tasks};
pub use writer::{Fill, Writer};

use remora_kernel::{Placement, op};
use remora_nic::{NicError, WcStatus};

use crate::platform::{Accel, Cache, Core, Dram, Nic, NicCores, NicDevice, Placements, Platform, Power, Switch};

/// Why a world cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The platform has no such thing.
    #[error("platform {platform} has no {what}: choose another placement or platform")]
    Missing {
        /// Its name.
        platform: String,
        /// What is missing.
        what: &'static str,
    },
    /// Memory for the modelled machines.
    #[error("no memory for the modelled machines: {0}")]
    Memory(#[from] std::io::Error),
    /// The engine refused something.
    #[error("the modelled NIC refuses: {0}")]
    Nic(#[from] NicError),
    /// The engine's registry refused a region.
    #[error("the modelled NIC refuses a region: {0}")]
    Region(#[from] remora_memory::RegisterError),
    /// A verb failed.
    #[error("a modelled verb ended with {0:?}")]
    Verb(WcStatus),
}

/// The hardware of one machine.
#[derive(Clone, Debug)]
pub struct MachineSpec {
    /// Its cores.
    pub core: Core,
    /// Its last-level cache.
    pub cache: Cache,
    /// Its memory.
    pub dram: Dram,
    /// Its NIC.
    pub nic: Nic,
    /// Cores on its NIC.
    pub card: Option<NicCores>,
    /// Its accelerator.
    pub accel: Option<Accel>,
    /// The switch that its packets pass on their way, if there is one.
    pub switch: Option<Switch>,
    /// What one of its cores does with bytes, and what an instruction of a user's kernel takes.
    pub work: Work,
    /// Bytes that its kernels' data are spread over, evenly: the part that fits is in the last-level cache. 0: what is
    /// there follows from the accesses themselves.
    pub state: u64,
    /// Its power.
    pub power: Option<Power>,
}

impl MachineSpec {
    /// Who runs kernels on the NIC.
    pub fn nic_processor(&self) -> Processor {
        if self.card.is_some() { Processor::Card } else { Processor::Pipeline }
    }
}

/// Bytes a second of one core with the data of some kernels, and cycles of an instruction. What is not known takes no time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// CRC-64.
    pub crc64: Option<f64>,
    /// Partitioning values of 8 bytes.
    pub partition: Option<f64>,
    /// Sketching values of 8 bytes.
    pub hyperloglog: Option<f64>,
    /// Cycles of a core for a counted instruction.
    pub core_instruction: Option<f64>,
    /// Cycles of logic, in a NIC's data path or on an accelerator, for a counted instruction.
    pub logic_instruction: Option<f64>,
}

impl Work {
    fn of(platform: &Platform) -> Self {
        Self {
            crc64: platform.checksum.as_ref().map(|checksum| checksum.crc64),
            partition: platform.stream.as_ref().map(|stream| stream.partition),
            hyperloglog: platform.stream.as_ref().map(|stream| stream.hyperloglog),
            core_instruction: platform.module_core.as_ref().map(|module| module.instruction),
            logic_instruction: platform.module_logic.as_ref().map(|module| module.instruction),
        }
    }

    /// Bytes a second of a core with the data of kernel `op`.
    fn rate(&self, op: u64) -> Option<f64> {
        match op {
            op::CONSISTENCY | op::CHECKSUM => self.crc64,
            op::SHUFFLE => self.partition,
            op::HYPERLOGLOG => self.hyperloglog,
            _ => None,
        }
    }
}

/// A client, a node and how they are used.
#[derive(Clone, Debug)]
pub struct PairSpec {
    /// The client's machine.
    pub client: MachineSpec,
    /// The node.
    pub node: MachineSpec,
    /// Bytes of payload in a packet.
    pub mtu: u32,
    /// Seeds keys and numbers.
    pub seed: u64,
    /// Who serves RPC verbs: the NIC, the accelerator, or the host for which the NIC does not (StRoM section 5.1).
    pub rpc_place: Placement,
}

impl PairSpec {
    /// A pair of a platform's hardware, for data of `state` bytes ([`MachineSpec::state`]). One thread is the client, as in
    /// the real world.
    pub fn new(platform: &Platform, state: u64, seed: u64) -> Result<Self, WorldError> {
        let missing = |what| WorldError::Missing { platform: platform.name.clone(), what };
        let nic = platform.nic.clone().ok_or_else(|| missing("hardware NIC"))?;
        let mtu = [4096, 2048, 1408, 1024, 512, 256].into_iter().find(|&mtu| mtu <= nic.ethernet.mtu);
        let mtu = mtu.ok_or_else(|| missing("Ethernet MTU of at least 256 B"))? as u32;
        let cards = platform.placements.nic == Some(NicDevice::Cores);
        let node = MachineSpec {
            core: platform.host.clone(),
            cache: platform.cache.clone(),
            dram: platform.dram.clone(),
            nic,
            card: platform.nic_cores.clone().filter(|_| cards),
            accel: platform.accel.clone(),
            switch: platform.switch.clone(),
            work: Work::of(platform),
            state,
            power: platform.power.clone(),
        };
        let core = Core { cores: 1, ..platform.client.clone() };
        let client = MachineSpec { core, card: None, accel: None, ..node.clone() };
        Ok(Self { client, node, mtu, seed, rpc_place: Placement::Nic })
    }

    /// For calls in `placement`: the RPC verb leads to the accelerator if that is the place, to the NIC otherwise.
    pub fn serving(mut self, placement: Placement) -> Self {
        self.rpc_place = if placement == Placement::Accelerator { Placement::Accelerator } else { Placement::Nic };
        self
    }
}

/// The placements that a platform has, in the order of reports.
pub fn placements(platform: &Platform) -> Vec<Placement> {
    let Placements { client, nic, host, accel } = platform.placements;
    let there = |placement: &Placement| match placement {
        Placement::Client => client,
        Placement::Nic => nic.is_some(),
        Placement::Host => host,
        Placement::Accelerator => accel.is_some(),
    };
    Placement::ALL.into_iter().filter(there).collect()
}

#[cfg(test)]
mod tests;
