//! Ways through a platform with hardware NICs, one for each placement.
//!
//! A message takes the same way in all placements: the core's command, the NIC's data path, the wire, the other NIC's
//! data path. What differs is who reads memory, and over what. The stations are the components of the modelled world's
//! machines: what a visit takes follows from their parameters.

use remora_model::component::coherent::CoherentParams;
use remora_model::component::ethernet::EthernetParams;
use remora_model::component::memory::MemoryParams;
use remora_model::component::nic::DataPathParams;
use remora_model::component::nic_cores::NicCoreParams;
use remora_model::component::pcie::PcieParams;
use remora_model::platform::{AccelDevice, CommandPath, NicDevice, Platform};
use remora_model::world::MachineSpec;

use super::operation::{Access, Kind, Memory, Operation};
use super::path::{Path, Station};
use remora_kernel::Placement;

/// Bytes of the RETH that requests and of the AETH that replies have.
const RETH: f64 = 16.0;

/// The way of an operation in a placement; `None` if the platform has no such place.
pub fn path(platform: &Platform, operation: &Operation, place: Placement) -> Option<Path> {
    let machines = Machines::new(platform)?;
    let mut way = Way { machines: &machines, operation, path: Path::default() };
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
    /// What a switch between them takes.
    switch: u64,
}

impl Machines {
    fn new(platform: &Platform) -> Option<Self> {
        let (mut client, node) = (MachineSpec::client(platform, 0).ok()?, MachineSpec::node(platform, 0).ok()?);
        // All cores of the client, not the one of a comparison.
        client.core = platform.client.clone();
        Some(Self {
            pcie: PcieParams::from(&node.nic.pcie),
            nic: DataPathParams::from(&node.nic.pipeline),
            wire: EthernetParams::from(&node.nic.ethernet),
            dram: MemoryParams::from(&node.dram),
            card: node.card.as_ref().map(|card| NicCoreParams::new(card, &node.core)),
            coherent: node.accel.as_ref().map(CoherentParams::from),
            switch: platform.switch.as_ref().map_or(0, |switch| switch.latency),
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
        let Machines { client, node, pcie, card, coherent, .. } = self.machines;
        let mut set = |station: Station, servers: f64| self.path.servers[station as usize] = servers;
        set(Station::ClientCores, client.core.cores as f64);
        set(Station::HostCores, node.core.cores as f64);
        set(Station::PcieTags, pcie.tags as f64);
        if let Some(card) = card {
            set(Station::NicCores, card.cores.cores as f64);
        }
        if let Some(coherent) = coherent {
            set(Station::AccelInFlight, coherent.in_flight as f64);
        }
    }

    /// One-sided verbs: every dependent access is a round trip.
    fn client(&mut self) {
        for access in &self.operation.accesses {
            self.rounds(access, |way, access| way.one_sided(access));
        }
        if self.operation.writes > 0.0
            && let Some(last) = self.operation.accesses.last().copied()
        {
            let from = self.path.visits.len();
            let write = Access { count: 1.0, kind: Kind::Write, ..last };
            self.one_sided(&write);
            // Seen by everybody once the answer is there: the item is held for the whole round trip.
            let (held, hot) = (self.round_trip(last.bytes), self.operation.hottest());
            self.path.hold("the most popular item", Station::HotItem, held * hot, 0.0);
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
        let bytes = if access.kind == Kind::Atomic { 8.0 } else { access.bytes };
        let (out, back) = if access.kind == Kind::Write { (bytes, 0.0) } else { (0.0, bytes) };
        self.command(true, out);
        self.message(true, out);
        match access.kind {
            Kind::Read => self.dma_read(bytes),
            Kind::Write => self.dma_write(bytes),
            Kind::Atomic => self.atomic(|way| {
                way.dma_read(8.0);
                way.dma_write(8.0);
            }),
        }
        self.message(false, back);
        self.arrive(back);
    }

    /// An atomic of the most popular item holds it.
    fn atomic(&mut self, access: impl Fn(&mut Self)) {
        let from = self.path.visits.len();
        access(self);
        let held: f64 = self.path.visits[from..].iter().map(|visit| visit.service + visit.after).sum();
        let hot = held * self.operation.hottest();
        self.path.hold("the most popular item", Station::HotItem, hot, 0.0);
    }

    /// On the NIC's data path: each access is a DMA read over PCIe.
    fn pipeline(&mut self) {
        self.call();
        self.message(true, self.operation.request);
        let clock = self.machines.nic.clock_hz;
        let step = self.machines.node.nic.pipeline.kernel_cycles / clock * 1e9;
        for access in &self.operation.accesses {
            self.rounds(access, |way, access| {
                way.path.wait("kernel", step);
                way.device_access(access);
            });
        }
        self.write_back(|way, bytes| way.dma_write(bytes));
        let cycles = self.operation.pipeline_cycles / clock * 1e9;
        self.path.wait("compute", cycles);
        self.message(false, self.operation.reply);
        self.arrive(self.operation.reply);
    }

    fn device_access(&mut self, access: &Access) {
        match access.kind {
            Kind::Read => self.dma_read(access.bytes),
            Kind::Write => self.dma_write(access.bytes),
            Kind::Atomic => self.atomic(|way| {
                way.dma_read(8.0);
                way.dma_write(8.0);
            }),
        }
    }

    /// Operations that also write hold the item from its read to the write: about one more access of the place.
    fn write_back(&mut self, write: impl Fn(&mut Self, f64)) {
        let Some(last) = self.operation.accesses.last().filter(|_| self.operation.writes > 0.0) else { return };
        let from = self.path.visits.len();
        write(self, last.bytes);
        let held: f64 = self.path.visits[from..].iter().map(|visit| visit.service + visit.after).sum();
        let hot = held * self.operation.hottest();
        self.path.hold("the most popular item", Station::HotItem, hot, 0.0);
        self.path.sometimes(from, self.operation.writes);
    }

    /// On cores of the NIC, with the state in host memory or in their own.
    fn nic_cores(&mut self) -> Option<()> {
        let (card, cores) = (self.machines.card.as_ref()?, self.machines.node.card.as_ref()?);
        let near = self.operation.memory == Memory::Near && self.operation.state <= cores.dram_size as f64;
        self.call();
        self.message(true, self.operation.request);
        // Into the card's own memory, where a core polls.
        self.path.wait("polling", ns(card.cache.hit_ps));
        self.path.hold("dispatch", Station::NicCores, ns(cores.dispatch), 0.0);
        let hit = self.operation.hit_ratio(card.cache.size_bytes as f64);
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
                    // The core only starts the read; the answer comes after the rest of the round trip.
                    let (all, held) = (ns(card.host_read_ps), ns(card.host_pipelined_ps));
                    way.path.hold("host memory from the NIC", Station::NicCores, held, (all - held).max(0.0));
                    way.pcie_bytes(Station::PcieReads, bytes);
                }
            });
        }
        self.write_back(|way, bytes| {
            if near {
                way.path.hold("memory of the NIC", Station::NicCores, ns(card.cache.hit_ps), 0.0);
            } else {
                way.path.hold(
                    "host memory from the NIC",
                    Station::NicCores,
                    ns(card.host_pipelined_ps),
                    ns(card.host_read_ps),
                );
                way.pcie_bytes(Station::PcieWrites, bytes);
            }
        });
        let compute = self.operation.cycles / self.machines.node.core.clock * 1e9 / card.speed;
        self.path.hold("compute", Station::NicCores, compute, 0.0);
        self.path.hold("command", Station::NicCores, ns(cores.issue), 0.0);
        self.message(false, self.operation.reply);
        self.arrive(self.operation.reply);
        Some(())
    }

    /// On the node's cores: the request is written to memory, where a core polls.
    fn host(&mut self) {
        let Machines { node: MachineSpec { core: host, cache, .. }, dram, .. } = self.machines;
        self.command(true, self.operation.request);
        self.message(true, self.operation.request);
        self.dma_write(self.operation.request);
        self.path.wait("polling", ns(host.poll));
        self.path.hold("dispatch", Station::HostCores, ns(host.dispatch), 0.0);
        let hit = self.operation.hit_ratio(cache.size as f64);
        let saved = ns(dram.latency_ps.saturating_sub(cache.latency));
        for access in &self.operation.accesses {
            self.rounds(access, |way, access| {
                // With others under way the pool turns to them: the core is held for a turn and its share of a miss.
                let turn = ns(host.switch) + (ns(dram.latency_ps) - hit * saved) / host.misses as f64;
                let lines = (access.bytes / 64.0).ceil();
                let rest = (ns(dram.latency_ps) - turn).max(0.0);
                way.path.load("memory", Station::HostCores, turn, rest, (hit, saved.min(rest)));
                let streamed = (lines - 1.0) * 64.0 / dram.bandwidth_bytes_per_s * 1e9;
                way.path.hold(
                    "memory",
                    Station::HostDram,
                    64.0 * lines * (1.0 - hit) / dram.bandwidth_bytes_per_s * 1e9,
                    0.0,
                );
                way.path.hold("memory", Station::HostCores, streamed, 0.0);
            });
            if access.kind == Kind::Atomic {
                let hot = self.operation.hottest() * (ns(cache.latency) + ns(dram.latency_ps));
                self.path.hold("the most popular item", Station::HotItem, hot * access.count, 0.0);
            }
        }
        self.write_back(|way, _| way.path.hold("memory", Station::HostCores, ns(cache.latency), 0.0));
        self.path.hold("compute", Station::HostCores, self.operation.cycles / host.clock * 1e9, 0.0);
        self.command(false, self.operation.reply);
        self.message(false, self.operation.reply);
        self.arrive(self.operation.reply);
    }

    /// On an accelerator: the request is written to memory, and the coherent link tells the accelerator.
    fn accel(&mut self, device: AccelDevice) -> Option<()> {
        let (accel, coherent) = (self.machines.node.accel.as_ref()?, self.machines.coherent.as_ref()?);
        self.command(true, self.operation.request);
        self.message(true, self.operation.request);
        self.dma_write(self.operation.request);
        self.path.wait("signal", ns(accel.signal));
        let hit = self.operation.hit_ratio(accel.cache_size as f64);
        let saved = ns(coherent.read_ps.saturating_sub(accel.cache_latency));
        let issue = accel.issue_cycles / accel.clock * 1e9;
        for access in &self.operation.accesses {
            self.rounds(access, |way, access| {
                let lines = (access.bytes / 64.0).ceil();
                way.path.hold("coherent access", Station::AccelIssue, issue * lines, 0.0);
                way.path.hold(
                    "coherent access",
                    Station::AccelLink,
                    64.0 * lines * (1.0 - hit) / coherent.bandwidth_bytes_per_s * 1e9,
                    0.0,
                );
                way.path.load("coherent access", Station::AccelInFlight, ns(coherent.read_ps), 0.0, (hit, saved));
                if device == AccelDevice::Coherent {
                    way.path.hold(
                        "coherent access",
                        Station::HostDram,
                        64.0 * lines * (1.0 - hit) / way.machines.dram.bandwidth_bytes_per_s * 1e9,
                        0.0,
                    );
                }
            });
        }
        self.write_back(|way, _| way.path.hold("coherent access", Station::AccelIssue, issue, ns(accel.cache_latency)));
        // Step by step, or as a data path where the operation says what that takes: what is faster.
        let serial = self.operation.cycles / self.machines.node.core.clock * 1e9 / accel.compute;
        let compute = serial.min(self.operation.pipeline_cycles / accel.clock * 1e9);
        self.path.hold("compute", Station::AccelLogic, compute, 0.0);
        self.path.wait("doorbell", ns(accel.doorbell));
        self.fetch(false, self.operation.reply);
        self.message(false, self.operation.reply);
        self.arrive(self.operation.reply);
        Some(())
    }

    /// A core hands its NIC a call of the other NIC: the command has the parameters in it.
    fn call(&mut self) {
        let core = &self.machines.client.core;
        self.path.hold("command", Station::ClientCores, ns(core.issue), ns(self.machines.pcie.mmio_ps));
        self.fetch(true, 0.0);
    }

    /// A core hands a message of so many bytes to its NIC.
    fn command(&mut self, client: bool, bytes: f64) {
        let (station, core) = match client {
            true => (Station::ClientCores, &self.machines.client.core),
            false => (Station::HostCores, &self.machines.node.core),
        };
        self.path.hold("command", station, ns(core.issue), ns(self.machines.pcie.mmio_ps));
        self.fetch(client, bytes);
    }

    /// What the NIC must fetch before it can send: the command, unless it came with the store, and payload that the
    /// command does not hold.
    fn fetch(&mut self, client: bool, bytes: f64) {
        let nic = &self.machines.nic;
        if nic.command == CommandPath::Fetch {
            self.host_read(client, "command fetch", nic.wqe_bytes as f64);
        }
        if bytes > nic.inline_bytes as f64 {
            self.host_read(client, "payload fetch", bytes);
        }
    }

    fn host_read(&mut self, client: bool, what: &'static str, bytes: f64) {
        if client {
            let pcie = &self.machines.pcie;
            let streamed = (bytes - 64.0).max(0.0) / pcie.bandwidth_bytes_per_s * 1e9;
            self.path.hold(what, Station::ClientPcie, streamed, ns(pcie.read_ps));
        } else {
            self.dma_read_as(what, bytes);
        }
    }

    /// A message with so many bytes of payload from NIC to NIC.
    fn message(&mut self, out: bool, bytes: f64) {
        let Machines { nic, wire: link, node, switch, .. } = self.machines;
        let mtu = node.nic.ethernet.mtu as f64;
        let (from, wire, to) = match out {
            true => (Station::ClientNicOut, Station::WireOut, Station::NodeNicIn),
            false => (Station::NodeNicOut, Station::WireBack, Station::ClientNicIn),
        };
        let packets = (bytes / mtu).ceil().max(1.0);
        let on_wire = bytes + packets * link.overhead_bytes as f64 + RETH;
        let clock = 1e9 / nic.clock_hz;
        // What the data path is held for: each packet's least distance, its words, and the limit of messages.
        let words = nic.words(on_wire) * clock;
        let held = (packets * nic.packet_cycles * clock).max(words).max(1e9 / nic.message_rate_hz);
        let first = bytes.min(mtu) + link.overhead_bytes as f64;
        let stored = nic.held(first) * clock;
        // The words stream on while they come in: they are waited for on the wire only.
        self.path.hold("NIC", from, held, (nic.tx_cycles * clock + stored - held).max(0.0));
        let after = ns(link.latency_ps) + ns(*switch);
        self.path.hold("wire", wire, on_wire / link.rate_bytes_per_s * 1e9, after);
        self.path.hold("NIC", to, held, (nic.rx_cycles * clock + stored - held).max(0.0));
    }

    /// The answer lands in the client's memory, where its core polls.
    fn arrive(&mut self, bytes: f64) {
        let pcie = &self.machines.pcie;
        let moved = bytes / pcie.bandwidth_bytes_per_s * 1e9;
        self.path.hold("arrival", Station::ClientPcie, moved, ns(pcie.write_ps));
        self.path.hold("polling", Station::ClientCores, ns(self.machines.client.core.poll) / 2.0, 0.0);
    }

    fn dma_read(&mut self, bytes: f64) {
        self.dma_read_as("PCIe read", bytes);
    }

    fn dma_read_as(&mut self, what: &'static str, bytes: f64) {
        let pcie = &self.machines.pcie;
        // Its requests go out together: each holds a tag for the round trip, which is waited for once.
        self.path.tags(what, ns(pcie.read_ps), pcie.requests(bytes));
        self.pcie_bytes(Station::PcieReads, bytes);
    }

    fn dma_write(&mut self, bytes: f64) {
        self.pcie_bytes(Station::PcieWrites, bytes);
        self.path.wait("PCIe write", ns(self.machines.pcie.write_ps));
    }

    /// Bytes with the headers of their TLPs.
    fn pcie_bytes(&mut self, station: Station, bytes: f64) {
        let pcie = &self.machines.pcie;
        let what = if station == Station::PcieWrites { "PCIe write" } else { "PCIe read" };
        self.path.hold(what, station, pcie.on_bus(bytes) / pcie.bandwidth_bytes_per_s * 1e9, 0.0);
    }

    /// A READ of so many bytes, all of it, from command to polled answer.
    fn round_trip(&self, bytes: f64) -> f64 {
        let mut way = Way { path: Path::default(), ..*self };
        way.one_sided(&Access { count: 1.0, bytes, kind: Kind::Read, dependent: true });
        way.path.alone()
    }
}
