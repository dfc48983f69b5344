//! Ways through a platform with hardware NICs, one for each placement.
//!
//! A message takes the same way in all placements: the core's command, the NIC's data path, the wire, the other NIC's
//! data path. What differs is who reads memory, and over what. The stations are the components of the modelled world's
//! machines, and a way visits what the engine charges there: doorbells, fetches, acknowledgements, completions.

mod message;

use remora_model::component::coherent::CoherentParams;
use remora_model::component::ethernet::EthernetParams;
use remora_model::component::memory::MemoryParams;
use remora_model::component::nic::DataPathParams;
use remora_model::component::nic_cores::NicCoreParams;
use remora_model::component::nic_state::NicStateParams;
use remora_model::component::pcie::PcieParams;
use remora_model::platform::{AccelDevice, NicDevice, Platform, Sockets};
use remora_model::world::{MachineSpec, PairSpec};
use remora_wire::rpc::RpcHeader;
use remora_wire::{Aeth, Reth};

use message::Message;

use super::operation::{Access, Kind, Memory, Operation};
use super::path::{Merging, Path, Station, Until};
use super::world;
use remora_kernel::Placement;

/// Bytes of a line, and of a word of an atomic operation.
const LINE: f64 = 64.0;
const WORD: f64 = 8.0;
/// Bytes in front of the parameters of a call to the host: the header and the op-code.
const HOST_CALL: f64 = (RpcHeader::LEN + 8) as f64;
/// Bytes of a kernel's data and parameter buses (StRoM section 5.2).
const KERNEL_BUS: f64 = 64.0;
const PARAM_BUS: f64 = 32.0;

/// The way of an operation in a placement; `None` if the platform has no such place.
pub fn path(platform: &Platform, operation: &Operation, place: Placement) -> Option<Path> {
    let machines = Machines::new(platform, operation)?;
    let path = Path { merging: machines.merging, ..Path::default() };
    let mut way = Way { machines: &machines, operation, path };
    way.servers();
    match (place, platform.placements.nic, platform.placements.accel) {
        (Placement::Client, ..) => way.client(),
        (Placement::Host, ..) => way.host(),
        (Placement::Nic, Some(NicDevice::Pipeline), _) => way.pipeline(),
        (Placement::Nic, Some(NicDevice::Cores), _) => way.nic_cores()?,
        (Placement::Accelerator, _, Some(device)) => way.accel(device)?,
        (Placement::Nic, Some(NicDevice::Software) | None, _) | (Placement::Accelerator, _, None) => return None,
    }
    Some(way.path)
}

/// Which machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Node,
}

/// The machines of the modelled world, and the parameters of their components. The NICs of both are alike.
struct Machines {
    client: MachineSpec,
    node: MachineSpec,
    pcie: PcieParams,
    nic: DataPathParams,
    wire: EthernetParams,
    dram: MemoryParams,
    card: Option<NicCoreParams>,
    coherent: Option<CoherentParams>,
    /// The way to data in the node's other socket.
    far: Option<Sockets>,
    /// What a switch between them takes.
    switch: u64,
    /// Bytes of payload in a packet.
    mtu: f64,
    merging: Merging,
    /// Clients that the busiest of them stands for: their number, if all are alike.
    clients: f64,
    /// Bytes that a NIC reads if what it needs for a message is not there, and how often it is not: at a client, at the node.
    state: Option<(f64, [f64; 2])>,
}

impl Machines {
    fn new(platform: &Platform, operation: &Operation) -> Option<Self> {
        let clients = &operation.clients;
        let spec = world::spec(platform, operation, 0).ok()?;
        let (shares, switch) = (spec.shares(), spec.switched());
        let queue_pairs = f64::from(spec.clients) * f64::from(spec.queue_pairs);
        let PairSpec { client, node, mtu, .. } = spec;
        let state = platform.nic_state.as_ref().map(|state| {
            let [client, node] = world::served(clients).map(|served| NicStateParams::from(state).missing(served));
            (node.0, [client.1, node.1])
        });
        Some(Self {
            clients: 1.0 / shares.first().copied().unwrap_or(1.0),
            state,
            pcie: PcieParams::from(&node.nic.pcie),
            nic: DataPathParams::from(&node.nic.pipeline),
            wire: EthernetParams::from(&node.nic.ethernet),
            dram: MemoryParams::from(&node.dram),
            card: node.card.as_ref().map(|card| NicCoreParams::new(card, &node.core)),
            coherent: node.accel.as_ref().map(CoherentParams::from),
            far: node.far.clone(),
            switch: switch.map_or(0, |switch| switch.latency.0),
            mtu: f64::from(mtu),
            merging: Merging { ahead: ns(node.send_ahead().0), queue_pairs },
            client,
            node,
        })
    }
}

struct Way<'a> {
    machines: &'a Machines,
    operation: &'a Operation,
    path: Path,
}

/// Picoseconds to nanoseconds.
fn ns(picoseconds: u64) -> f64 {
    picoseconds as f64 / 1000.0
}

impl Way<'_> {
    fn servers(&mut self) {
        let Machines { client, node, pcie, card, coherent, clients, .. } = self.machines;
        let mut set = |station: Station, servers: f64| self.path.servers[station as usize] = servers;
        // Each client has what it has for itself.
        for own in [
            Station::ClientPcieUp,
            Station::ClientPcieDown,
            Station::ClientCommands,
            Station::ClientNicOut,
            Station::ClientNicIn,
        ] {
            set(own, *clients);
        }
        set(Station::ClientCores, client.core.cores as f64 * clients);
        set(Station::ClientTags, pcie.tags as f64 * clients);
        set(Station::HostCores, node.core.cores as f64);
        set(Station::HostMisses, (node.core.cores * node.core.misses) as f64);
        set(Station::PcieTags, pcie.tags as f64);
        if let Some(card) = card {
            set(Station::NicCores, card.cores.cores as f64);
        }
        if let Some(coherent) = coherent {
            set(Station::AccelInFlight, coherent.in_flight as f64);
        }
    }

    // Placements.

    /// One-sided verbs: every dependent access is a round trip, between which the client's core takes a turn.
    fn client(&mut self) {
        self.turn(Side::Client);
        for access in &self.operation.accesses {
            let from = self.path.visits.len();
            self.rounds(access, |way, access| {
                way.one_sided(access);
                way.turn(Side::Client);
            });
            self.path.overlaps(from);
        }
        if self.operation.writes > 0.0
            && let Some(last) = self.operation.accesses.last().copied()
        {
            let from = self.path.visits.len();
            let write = Access { count: 1.0, kind: Kind::Write, ..last };
            // Seen by everybody once the answer is there: the item is held for the whole round trip.
            let held = self.round_trip(last.bytes);
            self.one_sided(&write);
            self.turn(Side::Client);
            self.item(from, held);
            self.path.sometimes(from, self.operation.writes);
        }
        let cycles = self.operation.cycles / self.machines.client.core.clock * 1e9;
        self.path.hold("compute", Station::ClientCores, cycles, 0.0);
    }

    /// Walks dependent accesses one by one; of independent ones the first is waited for, and the rest follow in its
    /// wake: they take service, not latency.
    fn rounds(&mut self, access: &Access, mut once: impl FnMut(&mut Self, &Access)) {
        let mut left = access.count;
        let mut first = true;
        while left > 0.0 {
            let from = self.path.visits.len();
            once(self, access);
            if left < 1.0 {
                self.path.sometimes(from, left);
            }
            if !first && !access.dependent {
                for visit in &mut self.path.visits[from..] {
                    visit.in_wake();
                }
            }
            first = false;
            left -= 1.0;
        }
    }

    fn one_sided(&mut self, access: &Access) {
        let bytes = if access.kind == Kind::Atomic { WORD } else { access.bytes };
        self.issue(Side::Client, 0.0);
        let (request, answer) = match access.kind {
            Kind::Read => (0.0, Some(bytes)),
            Kind::Write => (bytes, None),
            Kind::Atomic => (0.0, None),
        };
        self.message(Side::Client, Message { bytes: request, header: Reth::LEN, fetched: request > 0.0 });
        match access.kind {
            Kind::Read => {}
            Kind::Write => self.landing(Side::Node, request),
            // Who asks has the old value before the new one is written, and the word is held until then.
            Kind::Atomic => {
                let (from, (on_bus, after)) = (self.path.visits.len(), self.dma_write_time(WORD));
                self.dma_read(Side::Node, "PCIe read", WORD);
                let held = self.path.time(from) + on_bus + after;
                self.path.aside("PCIe write", Station::PcieWrites, on_bus);
                self.item(from, held);
            }
        }
        let answer = Message { bytes: answer.unwrap_or(0.0), header: Aeth::LEN, fetched: answer.is_some() };
        if access.kind == Kind::Read {
            self.far(bytes);
        }
        self.message(Side::Node, answer);
        let landing = if access.kind == Kind::Atomic { WORD } else { answer.bytes };
        self.landing(Side::Client, landing);
        self.notice(Side::Client, "polling");
    }

    /// What data in the other socket take beyond those in one's own, and a line of them of the link, in nanoseconds.
    fn hop(&self) -> (f64, f64) {
        self.machines.far.as_ref().map_or((0.0, 0.0), |far| (ns(far.hop), LINE / far.bandwidth * 1e9))
    }

    /// A device waits for bytes that lie in the other socket.
    fn far(&mut self, bytes: f64) {
        let (hop, across) = self.hop();
        self.path.hold("other socket", Station::Sockets, bytes / LINE * across, hop);
    }

    /// What came since `from` holds the most popular item, if it is of that, for so long. Who finds it free waits for nothing.
    fn item(&mut self, from: usize, held: f64) {
        let before = self.path.visits.len();
        self.path.pass("the most popular item", Station::HotItem, held, 0.0);
        self.path.sometimes(before, self.operation.hottest());
        let added = self.path.visits.len() - before;
        self.path.visits[from..].rotate_right(added);
    }

    /// On the NIC's data path: each access is a DMA read over PCIe.
    fn pipeline(&mut self) {
        self.call();
        let cycle = 1e9 / self.machines.nic.clock_hz;
        self.path.wait("kernel", (self.operation.request / PARAM_BUS).ceil() * cycle);
        let access_cycles = self.machines.node.nic.pipeline.kernel_cycles;
        let step = |way: &mut Self| way.path.pass("kernel", Station::NicKernels, cycle, access_cycles * cycle);
        step(self);
        for access in &self.operation.accesses {
            self.rounds(access, |way, access| {
                way.device_access(access);
                if access.kind == Kind::Read {
                    let words = (access.bytes / KERNEL_BUS).ceil();
                    way.path.hold("kernel", Station::NicKernels, words * cycle, 0.0);
                }
                step(way);
            });
        }
        self.write_back(|way, bytes| way.dma_write(bytes));
        self.path.wait("compute", self.operation.pipeline_cycles * cycle);
        self.reply(false);
    }

    fn device_access(&mut self, access: &Access) {
        match access.kind {
            Kind::Read => {
                self.far(access.bytes);
                self.dma_read(Side::Node, "PCIe read", access.bytes);
            }
            Kind::Write => self.dma_write(access.bytes),
            Kind::Atomic => {
                let from = self.path.visits.len();
                self.dma_read(Side::Node, "PCIe read", WORD);
                self.dma_write(WORD);
                self.item(from, self.path.time(from));
            }
        }
    }

    /// Operations that also write hold the item from its read to the write: about one more access of the place.
    fn write_back(&mut self, write: impl Fn(&mut Self, f64)) {
        let Some(last) = self.operation.accesses.last().filter(|_| self.operation.writes > 0.0) else { return };
        let from = self.path.visits.len();
        write(self, last.bytes);
        self.item(from, self.path.time(from));
        self.path.sometimes(from, self.operation.writes);
    }

    /// On cores of the NIC, with the state in host memory or in their own.
    fn nic_cores(&mut self) -> Option<()> {
        let (card, cores) = (self.machines.card.as_ref()?, self.machines.node.card.as_ref()?);
        let near = self.operation.memory == Memory::Near && self.operation.state <= cores.dram_size as f64;
        let [there, back] = self.machines.node.card_way.map(|way| ns(way.0));
        self.call();
        self.path.wait("card", there);
        self.path.hold("dispatch", Station::NicCores, ns(cores.dispatch), 0.0);
        let hit = self.operation.hit_ratio(card.cache.size_bytes as f64);
        let turn = ns(card.cores.switch_ps);
        self.path.hold("kernel", Station::NicCores, turn, 0.0);
        for access in &self.operation.accesses {
            self.rounds(access, |way, access| {
                let bytes = access.bytes;
                if near {
                    let (miss, saved) =
                        (ns(card.memory.latency_ps), ns(card.memory.latency_ps.saturating_sub(card.cache.hit_ps)));
                    let held = if access.dependent {
                        miss - hit * saved
                    } else {
                        (miss - hit * saved) / card.cores.misses as f64
                    };
                    way.path.hold("memory of the NIC", Station::NicCores, held, 0.0);
                    way.path.hold(
                        "memory of the NIC",
                        Station::NicDram,
                        bytes * (1.0 - hit) / card.memory.bandwidth_bytes_per_s * 1e9,
                        0.0,
                    );
                } else {
                    way.host_access(card, bytes, Station::PcieReads);
                }
                way.path.hold("kernel", Station::NicCores, turn, 0.0);
            });
        }
        self.write_back(|way, bytes| {
            if near {
                way.path.hold("memory of the NIC", Station::NicCores, ns(card.cache.hit_ps), 0.0);
            } else {
                way.host_access(card, bytes, Station::PcieWrites);
            }
        });
        let compute = self.operation.cycles / self.machines.node.core.clock * 1e9 / card.speed;
        self.path.hold("compute", Station::NicCores, compute, 0.0);
        self.path.hold("command", Station::NicCores, ns(cores.issue), 0.0);
        self.path.wait("card", back);
        self.reply(false);
        Some(())
    }

    /// A core of the NIC accesses host memory: it is held while it starts the access, and the answer comes after the rest
    /// of the round trip.
    fn host_access(&mut self, card: &NicCoreParams, bytes: f64, way: Station) {
        let (all, held) = (ns(card.host_read_ps), ns(card.host_pipelined_ps));
        let (what, line) = ("host memory from the NIC", self.on_bus(LINE));
        self.far(bytes);
        self.path.hold(what, Station::NicCores, held, (all - held - line).max(0.0));
        self.path.hold(what, way, self.on_bus(bytes), 0.0);
    }

    /// On the node's cores: the request is written to memory, where a core polls.
    fn host(&mut self) {
        let Machines { node: MachineSpec { core: host, cache, .. }, dram, .. } = self.machines;
        let bytes = self.operation.request + HOST_CALL;
        let fetched = self.issue(Side::Client, bytes);
        self.message(Side::Client, Message { bytes, header: 0, fetched });
        self.acknowledge(Side::Node);
        self.landing(Side::Node, bytes);
        self.notice(Side::Node, "polling");
        self.path.hold("dispatch", Station::HostCores, ns(host.dispatch), 0.0);
        let hit = self.operation.hit_ratio(cache.size as f64);
        let (hop, across) = self.hop();
        let (miss, saved) = (ns(dram.latency_ps) + hop, ns(dram.latency_ps.saturating_sub(cache.latency)) + hop);
        let line = LINE / dram.bandwidth_bytes_per_s * 1e9;
        self.turn(Side::Node);
        for access in &self.operation.accesses {
            self.rounds(access, |way, access| {
                // All lines are asked for at once, as far as the core has misses: the access has it as short as a hit if all of
                // them do. A line of the last-level cache takes a miss, too, for a shorter time.
                let lines = (access.bytes / LINE).ceil().max(1.0);
                let all = hit.powf(lines);
                let missed = lines * (1.0 - hit);
                let each = miss - hit * saved;
                way.path.load("memory", Station::HostMisses, miss, 0.0, (all, saved));
                if let Some(visit) = way.path.visits.last_mut() {
                    visit.servers = (lines * each / (miss - all * saved).max(1e-9)).max(1.0);
                }
                let streamed = (missed - 1.0).max(0.0) * line.max(across);
                let rounds = (lines / host.misses.max(1) as f64 - 1.0).max(0.0) * each;
                // What is written comes first and goes back.
                let moved = if access.kind == Kind::Write { 2.0 * missed } else { missed };
                way.path.pass("memory", Station::HostDram, moved * line, streamed.max(rounds));
                way.path.pass("memory", Station::Sockets, missed * across, 0.0);
                way.turn(Side::Node);
            });
            if access.kind == Kind::Atomic {
                // The line goes from core to core.
                let held = ns(cache.latency) + ns(dram.latency_ps);
                self.item(self.path.visits.len(), held * access.count);
            }
        }
        self.write_back(|way, _| way.path.hold("memory", Station::HostCores, ns(cache.latency), 0.0));
        self.path.hold("compute", Station::HostCores, self.operation.cycles / host.clock * 1e9, 0.0);
        let fetched = self.issue(Side::Node, self.operation.reply);
        self.reply(fetched);
        // Of several clients it takes no more calls than leave each its share of room: they wait for it, not in its NIC, where
        // one acknowledgement would go for several.
        if self.operation.clients.machines > 1 {
            let merged = self.path.visits.iter_mut().filter(|visit| visit.waits == Until::Merged);
            merged.for_each(|visit| visit.waits = Until::Nothing);
        }
    }

    /// On an accelerator: the request is written to memory, and the coherent link tells the accelerator.
    fn accel(&mut self, device: AccelDevice) -> Option<()> {
        let (accel, coherent) = (self.machines.node.accel.as_ref()?, self.machines.coherent.as_ref()?);
        self.call();
        self.dma_write(self.operation.request);
        self.path.wait("signal", ns(accel.signal));
        let hit = self.operation.hit_ratio(accel.cache_size as f64);
        let (read, cached) = (ns(coherent.read_ps), ns(accel.cache_latency));
        let cycle = 1e9 / accel.clock;
        let (step, issue) = (accel.issue_cycles * cycle, ns(coherent.issue_ps));
        let line = LINE / coherent.bandwidth_bytes_per_s * 1e9;
        self.path.wait("kernel", step);
        for access in &self.operation.accesses {
            self.rounds(access, |way, access| {
                let what = "coherent access";
                let lines = (access.bytes / LINE).ceil().max(1.0);
                let all = hit.powf(lines);
                let missed = lines * (1.0 - hit);
                let follow = (missed - 1.0).max(0.0) * issue.max(line);
                let (hop, across) = way.hop();
                way.path.load("other socket", Station::Sockets, missed * across, hop, (all, hop));
                way.path.load(what, Station::AccelInFlight, read, 0.0, (all, (read - cached).max(0.0)));
                if let Some(visit) = way.path.visits.last_mut() {
                    visit.servers = (missed / (1.0 - all).max(1e-9)).max(1.0);
                }
                way.path.pass(what, Station::AccelIssue, issue * missed, follow);
                way.path.pass(what, Station::AccelLink, line * missed, 0.0);
                if device == AccelDevice::Coherent {
                    let dram = LINE / way.machines.dram.bandwidth_bytes_per_s * 1e9;
                    way.path.pass(what, Station::HostDram, dram * missed, 0.0);
                }
                way.path.hold("logic", Station::AccelLogic, lines * cycle, step);
            });
        }
        self.write_back(|way, _| way.path.hold("coherent access", Station::AccelIssue, issue, cached));
        // Step by step, or as a data path where the operation says what that takes: what is faster.
        let serial = self.operation.cycles / self.machines.node.core.clock * 1e9 / accel.compute;
        let compute = serial.min(self.operation.pipeline_cycles * cycle);
        self.path.hold("compute", Station::AccelLogic, compute, 0.0);
        self.path.wait("doorbell", ns(accel.doorbell));
        self.dma_read(Side::Node, "command fetch", self.machines.nic.wqe_bytes as f64 + self.operation.reply);
        self.reply(false);
        Some(())
    }
}
