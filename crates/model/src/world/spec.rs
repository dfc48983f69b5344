//! What a machine is made of, and a pair of them.

use remora_kernel::{Placement, op};

use super::{ProcessorKind, SwitchSpec, WorldError};
use crate::component::cache::CacheParams;
use crate::component::hierarchy::HierarchyParams;
use crate::component::jitter::JitterParams;
use crate::component::memory::MemoryParams;
use crate::component::nic_state::{NicStateParams, Served};
use crate::component::switch::WhenFull;
use crate::platform::{
    Accel, Cache, CardMachine, Core, Dram, HardwareNic, NicCores, NicDevice, Platform, Power, PrivateCaches, Sockets,
    Switch,
};
use crate::time::Ps;

/// The hardware of one machine.
#[derive(Clone, Debug)]
pub struct MachineSpec {
    /// Its cores that work.
    pub core: Core,
    /// Cores of its processor, those that have nothing to do included.
    pub package: u64,
    /// Its last-level cache.
    pub cache: Cache,
    /// Its memory.
    pub dram: Dram,
    /// Its NIC.
    pub nic: HardwareNic,
    /// How many of these it has, alike; at least one.
    pub nics: u16,
    /// Whether they share one PCIe slot, as the ports of one card.
    pub one_slot: bool,
    /// Cores on its NIC.
    pub card: Option<NicCores>,
    /// From the NIC's data path to one of these that polls, and back from its command: as far as the platform says.
    pub card_way: [Ps; 2],
    /// Its accelerator.
    pub accel: Option<Accel>,
    /// What one of its cores does with bytes, and what an instruction of a user's kernel takes.
    pub work: Work,
    /// Bytes that its kernels' data are spread over, evenly: the part that fits is in the last-level cache. 0: what is
    /// there follows from the accesses themselves.
    pub state: u64,
    /// The way to the data, if they lie in the memory of a socket that neither its cores nor its devices belong to.
    pub far: Option<Sockets>,
    /// Its power.
    pub power: Option<Power>,
    /// What its NICs keep of queue pairs and regions, and how many of these they serve.
    pub nic_state: Option<(NicStateParams, Served)>,
    /// What takes its cores away now and then, and the seed of when.
    pub jitter: Option<(JitterParams, u64)>,
    /// For threads that wait for their loads, and take calls one after the other, instead of one run queue of kernels:
    /// one on each core of this hierarchy.
    pub threads: Option<HierarchyParams>,
    /// What all its threads do for each message, one after the other.
    pub shared: Ps,
    /// Bytes that a kernel beside its memory gathers before it writes them somewhere.
    pub gathered: usize,
}

/// Bytes that a partition of StRoM's shuffling kernel gathers (section 6.4).
const GATHERED: usize = 128;

impl MachineSpec {
    /// A platform's node, for data of `state` bytes.
    pub fn node(platform: &Platform, state: u64) -> Result<Self, WorldError> {
        let cards = platform.placements.nic == Some(NicDevice::Cores);
        let card_way = platform.card.as_ref().map_or([0; 2], |card| {
            [card.pcie.write_latency + card.machine.poll / 2, card.pcie.mmio_latency + card.pcie.read_latency]
        });
        Ok(Self {
            core: platform.host.clone(),
            package: platform.host.cores,
            cache: platform.cache.clone(),
            dram: platform.dram.clone(),
            nic: platform.nic.clone().ok_or_else(|| missing(platform, "hardware NIC"))?,
            nics: 1,
            one_slot: false,
            card: platform.nic_cores.clone().filter(|_| cards),
            card_way: card_way.map(Ps),
            accel: platform.accel.clone(),
            work: Work::of(platform),
            state,
            far: None,
            power: platform.power.clone(),
            nic_state: None,
            jitter: None,
            threads: None,
            shared: Ps::ZERO,
            gathered: GATHERED,
        })
    }

    /// A platform's node with so many threads that wait for their loads.
    pub fn threads(platform: &Platform, threads: u64) -> Result<Self, WorldError> {
        let node = Self::node(platform, 0)?;
        let caches = platform.private.as_ref().ok_or_else(|| missing(platform, "private caches of the host"))?;
        Ok(node.with_threads(caches, threads))
    }

    /// The cores on a platform's NIC as a machine of their own, with so many threads that wait for their loads. Its NIC is
    /// that of the node: who wants both to share a link puts it at their peer.
    pub fn card(platform: &Platform, threads: u64) -> Result<Self, WorldError> {
        let node = Self::node(platform, 0)?;
        let (Some(cores), Some(card)) = (&platform.nic_cores, &platform.card) else {
            return Err(missing(platform, "cores on the NIC that are a machine of their own"));
        };
        let CardMachine { clock, poll, shared } = card.machine;
        let core = Core {
            cores: cores.cores,
            clock,
            misses: cores.misses,
            poll,
            dispatch: cores.dispatch,
            issue: cores.issue,
            switch: 0,
            complete: 0,
            order: cores.order,
        };
        let machine = Self {
            package: core.cores,
            core,
            cache: Cache { size: cores.cache_size, latency: cores.cache_latency, ways: 16 },
            dram: Dram { latency: cores.dram_latency, bandwidth: cores.dram_bandwidth, order: cores.order },
            nic: HardwareNic { pcie: card.pcie.clone(), ..node.nic.clone() },
            card: None,
            accel: None,
            shared: Ps(shared),
            ..node
        };
        Ok(machine.with_threads(&card.private, threads))
    }

    fn with_threads(mut self, caches: &PrivateCaches, threads: u64) -> Self {
        let (last, memory) = (CacheParams::from(&self.cache), MemoryParams::from(&self.dram));
        self.core.cores = threads;
        self.threads = Some(HierarchyParams::new(caches, &self.core, last, memory));
        self
    }

    /// A platform's client: the node's machine without what runs kernels beside its cores. One thread is the client, as in
    /// the real world.
    pub fn client(platform: &Platform, state: u64) -> Result<Self, WorldError> {
        let core = Core { cores: 1, ..platform.client.clone() };
        let package = platform.client.cores;
        Ok(Self { core, package, card: None, accel: None, ..Self::node(platform, state)? })
    }

    /// Its NICs serve so many queue pairs and regions, as far as the platform says what that takes.
    pub fn keeping(mut self, platform: &Platform, served: Served) -> Self {
        self.nic_state = platform.nic_state.as_ref().map(|state| (NicStateParams::from(state), served));
        self
    }

    /// Interrupts and the scheduler take its cores away, as far as the platform says how often.
    pub fn disturbed(mut self, platform: &Platform, seed: u64) -> Self {
        self.jitter = platform.jitter.as_ref().map(|jitter| (JitterParams::from(jitter), seed));
        self
    }

    /// Which processor runs the kernels of a placement here.
    pub fn processor(&self, placement: Placement) -> ProcessorKind {
        match placement {
            Placement::Client | Placement::Host => ProcessorKind::HostCore,
            Placement::Nic if self.card.is_some() => ProcessorKind::NicCore,
            Placement::Nic => ProcessorKind::Pipeline,
            Placement::Accelerator => ProcessorKind::Accelerator,
        }
    }

    /// Cycles that a counted instruction of a user's kernel takes in a placement; as an error, the section of the platform
    /// file that does not say so.
    pub fn instruction(&self, placement: Placement) -> Result<f64, &'static str> {
        match self.processor(placement) {
            ProcessorKind::HostCore | ProcessorKind::NicCore => self.work.core_instruction.ok_or("module.core"),
            ProcessorKind::Pipeline | ProcessorKind::Accelerator => self.work.logic_instruction.ok_or("module.logic"),
        }
    }

    /// How long a NIC's wire is busy with what it has sent when it sends no more for now.
    pub fn send_ahead(&self) -> Ps {
        // Twice what a DMA read takes, and more, keeps the wire busy.
        Ps(2 * self.nic.pcie.read_latency) + Ps::from_us(2)
    }

    /// How many NICs it has.
    pub(super) fn nics(&self) -> usize {
        usize::from(self.nics.max(1))
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
    /// A data path computes in stages: while it does, the next call has its turn. Else it has one unit, which a call holds.
    pub staged: bool,
}

impl Work {
    fn of(platform: &Platform) -> Self {
        Self {
            crc64: platform.checksum.as_ref().map(|checksum| checksum.crc64),
            partition: platform.stream.as_ref().map(|stream| stream.partition),
            hyperloglog: platform.stream.as_ref().map(|stream| stream.hyperloglog),
            core_instruction: platform.module_core.as_ref().map(|module| module.instruction),
            logic_instruction: platform.module_logic.as_ref().map(|module| module.instruction),
            staged: false,
        }
    }

    /// Bytes a second of a core with the data of kernel `op`.
    pub(super) fn rate(&self, op: u64) -> Option<f64> {
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
    /// Machines of clients, alike, with a connection each; calls take turns.
    pub clients: u16,
    /// The exponent of the zipfian by which clients have more or fewer of the calls; 0 is all alike.
    pub client_skew: f64,
    /// Queue pairs of each, which its commands take in turn.
    pub queue_pairs: u16,
    /// The part of packets that are lost on their way.
    pub loss: f64,
    /// The switch between them, if there is one.
    pub switch: Option<Switch>,
    /// Bytes of payload in a packet.
    pub mtu: u32,
    /// Seeds keys and numbers.
    pub seed: u64,
    /// Who serves RPC verbs: the NIC, the accelerator, or the host for which the NIC does not (StRoM section 5.1).
    pub rpc_place: Placement,
}

/// The part of each of so many clients of all that they ask for, if they have more and less by a zipfian of this exponent.
pub fn shares(clients: u16, skew: f64) -> Vec<f64> {
    let weights: Vec<f64> = (1..=clients.max(1)).map(|rank| f64::from(rank).powf(-skew)).collect();
    let all: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / all).collect()
}

impl PairSpec {
    /// A pair of a platform's hardware, for data of `state` bytes ([`MachineSpec::state`]).
    pub fn new(platform: &Platform, state: u64, seed: u64) -> Result<Self, WorldError> {
        let (client, node) = (MachineSpec::client(platform, state)?, MachineSpec::node(platform, state)?);
        let mtu = path_mtu(platform, &node)?;
        let (switch, rpc_place) = (platform.switch.clone(), Placement::Nic);
        let (clients, client_skew, queue_pairs, loss) = (1, 0.0, 1, 0.0);
        Ok(Self { client, node, clients, client_skew, queue_pairs, loss, switch, mtu, seed, rpc_place })
    }

    /// Interrupts and the scheduler take cores away at both ends, as far as the platform says how often.
    pub fn disturbed(mut self, platform: &Platform, seed: u64) -> Self {
        self.client = self.client.disturbed(platform, seed);
        self.node = self.node.disturbed(platform, seed ^ 1);
        self
    }

    /// The part of the calls of each client, the largest first.
    pub fn shares(&self) -> Vec<f64> {
        shares(self.clients, self.client_skew)
    }

    /// The switch that they are at: the platform's, or a usual one if there are several clients, which no cable joins.
    pub fn switched(&self) -> Option<SwitchSpec> {
        // RoCE runs over networks that lose nothing: priority flow control.
        let own = self.switch.as_ref().map(|switch| SwitchSpec {
            latency: Ps(switch.latency),
            buffer: switch.buffer,
            when_full: WhenFull::Pause,
            order: switch.order,
            mark: switch.mark,
        });
        own.or((self.clients > 1).then(SwitchSpec::usual))
    }

    /// For calls in `placement`: the RPC verb leads to the accelerator if that is the place, to the NIC otherwise.
    pub fn serving(mut self, placement: Placement) -> Self {
        self.rpc_place = if placement == Placement::Accelerator { Placement::Accelerator } else { Placement::Nic };
        self
    }
}

/// Bytes of payload in a packet between machines of a platform.
pub(super) fn path_mtu(platform: &Platform, machine: &MachineSpec) -> Result<u32, WorldError> {
    let mtu = [4096, 2048, 1408, 1024, 512, 256].into_iter().find(|&mtu| mtu <= machine.nic.ethernet.mtu);
    Ok(mtu.ok_or_else(|| missing(platform, "Ethernet MTU of at least 256 B"))? as u32)
}

fn missing(platform: &Platform, what: &'static str) -> WorldError {
    WorldError::Missing { platform: platform.name.clone(), what }
}
