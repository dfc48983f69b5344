//! Ways through a platform with hardware NICs, one for each placement.
//!
//! A message takes the same way in all placements: the core's command, the NIC's data path, the wire, the other NIC's
//! data path. What differs is who reads memory, and over what.

use remora_model::platform::{AccelDevice, CommandPath, Nic, NicDevice, Platform};

use super::operation::{Access, Kind, Memory, Operation};
use super::path::{Path, Station};
use remora_kernel::Placement;

/// Bytes of the RETH that requests and of the AETH that replies have.
const RETH: f64 = 16.0;

/// The way of an operation in a placement; `None` if the platform has no such place.
pub fn path(platform: &Platform, operation: &Operation, place: Placement) -> Option<Path> {
    let nic = platform.nic.as_ref()?;
    let mut way = Way { platform, nic, operation, path: Path::default() };
    way.servers();
    match (place, platform.placements.nic, platform.placements.accel) {
        (Placement::Client, ..) => way.client(),
        (Placement::Host, ..) => way.host(),
        (Placement::Nic, Some(NicDevice::Pipeline), _) => way.pipeline(),
        (Placement::Nic, Some(NicDevice::Cores), _) => way.nic_cores()?,
        (Placement::Accelerator, _, Some(device)) => way.accel(device)?,
        _ => return None,
    }
    Some(way.path)
}

struct Way<'a> {
    platform: &'a Platform,
    nic: &'a Nic,
    operation: &'a Operation,
    path: Path,
}

/// Picoseconds to nanoseconds.
fn ns(picoseconds: u64) -> f64 {
    picoseconds as f64 / 1000.0
}

impl Way<'_> {
    fn servers(&mut self) {
        let (platform, pcie) = (self.platform, &self.nic.pcie);
        let mut set = |station: Station, servers: f64| self.path.servers[station as usize] = servers;
        set(Station::ClientCores, platform.client.cores as f64);
        set(Station::HostCores, platform.host.cores as f64);
        set(Station::PcieTags, pcie.tags as f64);
        if let Some(cores) = &platform.nic_cores {
            set(Station::NicCores, cores.cores as f64);
        }
        if let Some(accel) = &platform.accel {
            set(Station::AccelInFlight, accel.in_flight as f64);
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
        let cycles = self.operation.cycles / self.platform.client.clock * 1e9;
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
        self.command(true, self.operation.request);
        self.message(true, self.operation.request);
        let pipeline = &self.nic.pipeline;
        let step = pipeline.kernel_cycles / pipeline.clock * 1e9;
        for access in &self.operation.accesses {
            self.rounds(access, |way, access| {
                way.path.wait("kernel", step);
                way.device_access(access);
            });
        }
        self.write_back(|way, bytes| way.dma_write(bytes));
        let cycles = self.operation.pipeline_cycles / pipeline.clock * 1e9;
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
        let cores = self.platform.nic_cores.as_ref()?;
        let near = self.operation.memory == Memory::Near && self.operation.state <= cores.dram_size as f64;
        self.command(true, self.operation.request);
        self.message(true, self.operation.request);
        // Into the card's own memory, where a core polls.
        self.path.wait("polling", ns(cores.cache_latency));
        self.path.hold("dispatch", Station::NicCores, ns(cores.dispatch), 0.0);
        let hit = self.operation.hit_ratio(cores.cache_size as f64);
        for access in &self.operation.accesses {
            self.rounds(access, |way, access| {
                let bytes = access.bytes;
                if near {
                    let (miss, saved) =
                        (ns(cores.dram_latency), ns(cores.dram_latency - cores.dram_latency.min(cores.cache_latency)));
                    let held =
                        if access.dependent { miss - hit * saved } else { (miss - hit * saved) / cores.misses as f64 };
                    way.path.hold("memory of the NIC", Station::NicCores, held, 0.0);
                    way.path.hold(
                        "memory of the NIC",
                        Station::NicDram,
                        bytes * (1.0 - hit) / cores.dram_bandwidth * 1e9,
                        0.0,
                    );
                } else {
                    // The core only starts the read; the answer comes after the rest of the round trip.
                    let (all, held) = (ns(cores.host_read), ns(cores.host_pipelined));
                    way.path.hold("host memory from the NIC", Station::NicCores, held, (all - held).max(0.0));
                    way.pcie_bytes(Station::PcieReads, bytes);
                }
            });
        }
        self.write_back(|way, bytes| {
            if near {
                way.path.hold("memory of the NIC", Station::NicCores, ns(cores.cache_latency), 0.0);
            } else {
                way.path.hold(
                    "host memory from the NIC",
                    Station::NicCores,
                    ns(cores.host_pipelined),
                    ns(cores.host_read),
                );
                way.pcie_bytes(Station::PcieWrites, bytes);
            }
        });
        let compute = self.operation.cycles / self.platform.host.clock * 1e9 / cores.speed;
        self.path.hold("compute", Station::NicCores, compute, 0.0);
        self.path.hold("command", Station::NicCores, ns(cores.issue), 0.0);
        self.message(false, self.operation.reply);
        self.arrive(self.operation.reply);
        Some(())
    }

    /// On the node's cores: the request is written to memory, where a core polls.
    fn host(&mut self) {
        let (host, cache, dram) = (&self.platform.host, &self.platform.cache, &self.platform.dram);
        self.command(true, self.operation.request);
        self.message(true, self.operation.request);
        self.dma_write(self.operation.request);
        self.path.wait("polling", ns(host.poll));
        self.path.hold("dispatch", Station::HostCores, ns(host.dispatch), 0.0);
        let hit = self.operation.hit_ratio(cache.size as f64);
        let saved = ns(dram.latency.saturating_sub(cache.latency));
        for access in &self.operation.accesses {
            self.rounds(access, |way, access| {
                // With others under way the pool turns to them: the core is held for a turn and its share of a miss.
                let turn = ns(host.switch) + (ns(dram.latency) - hit * saved) / host.misses as f64;
                let lines = (access.bytes / 64.0).ceil();
                let rest = (ns(dram.latency) - turn).max(0.0);
                way.path.load("memory", Station::HostCores, turn, rest, (hit, saved.min(rest)));
                let streamed = (lines - 1.0) * 64.0 / dram.bandwidth * 1e9;
                way.path.hold("memory", Station::HostDram, 64.0 * lines * (1.0 - hit) / dram.bandwidth * 1e9, 0.0);
                way.path.hold("memory", Station::HostCores, streamed, 0.0);
            });
            if access.kind == Kind::Atomic {
                let hot = self.operation.hottest() * (ns(cache.latency) + ns(dram.latency));
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
        let accel = self.platform.accel.as_ref()?;
        self.command(true, self.operation.request);
        self.message(true, self.operation.request);
        self.dma_write(self.operation.request);
        self.path.wait("signal", ns(accel.signal));
        let hit = self.operation.hit_ratio(accel.cache_size as f64);
        let saved = ns(accel.read_latency.saturating_sub(accel.cache_latency));
        let issue = accel.issue_cycles / accel.clock * 1e9;
        for access in &self.operation.accesses {
            self.rounds(access, |way, access| {
                let lines = (access.bytes / 64.0).ceil();
                way.path.hold("coherent access", Station::AccelIssue, issue * lines, 0.0);
                way.path.hold(
                    "coherent access",
                    Station::AccelLink,
                    64.0 * lines * (1.0 - hit) / (accel.bandwidth * accel.efficiency) * 1e9,
                    0.0,
                );
                way.path.load("coherent access", Station::AccelInFlight, ns(accel.read_latency), 0.0, (hit, saved));
                if device == AccelDevice::Coherent {
                    way.path.hold(
                        "coherent access",
                        Station::HostDram,
                        64.0 * lines * (1.0 - hit) / way.platform.dram.bandwidth * 1e9,
                        0.0,
                    );
                }
            });
        }
        self.write_back(|way, _| way.path.hold("coherent access", Station::AccelIssue, issue, ns(accel.cache_latency)));
        // Step by step, or as a data path where the operation says what that takes: what is faster.
        let serial = self.operation.cycles / self.platform.host.clock * 1e9 / accel.compute;
        let compute = serial.min(self.operation.pipeline_cycles / accel.clock * 1e9);
        self.path.hold("compute", Station::AccelLogic, compute, 0.0);
        self.path.wait("doorbell", ns(accel.doorbell));
        self.fetch(false, self.operation.reply);
        self.message(false, self.operation.reply);
        self.arrive(self.operation.reply);
        Some(())
    }

    /// A core hands a message of so many bytes to its NIC.
    fn command(&mut self, client: bool, bytes: f64) {
        let (station, core) = match client {
            true => (Station::ClientCores, &self.platform.client),
            false => (Station::HostCores, &self.platform.host),
        };
        self.path.hold("command", station, ns(core.issue), ns(self.nic.pcie.mmio_latency));
        self.fetch(client, bytes);
    }

    /// What the NIC must fetch before it can send: the command, unless it came with the store, and payload that the
    /// command does not hold.
    fn fetch(&mut self, client: bool, bytes: f64) {
        let pipeline = &self.nic.pipeline;
        if pipeline.command == CommandPath::Fetch {
            self.host_read(client, "command fetch", pipeline.wqe as f64);
        }
        if bytes > pipeline.inline as f64 {
            self.host_read(client, "payload fetch", bytes);
        }
    }

    fn host_read(&mut self, client: bool, what: &'static str, bytes: f64) {
        if client {
            let pcie = &self.nic.pcie;
            let streamed = (bytes - 64.0).max(0.0) / pcie.bandwidth * 1e9;
            self.path.hold(what, Station::ClientPcie, streamed, ns(pcie.read_latency));
        } else {
            self.dma_read_as(what, bytes);
        }
    }

    /// A message with so many bytes of payload from NIC to NIC.
    fn message(&mut self, out: bool, bytes: f64) {
        let Nic { pipeline, ethernet, .. } = self.nic;
        let (from, wire, to) = match out {
            true => (Station::ClientNicOut, Station::WireOut, Station::NodeNicIn),
            false => (Station::NodeNicOut, Station::WireBack, Station::ClientNicIn),
        };
        let packets = (bytes / ethernet.mtu as f64).ceil().max(1.0);
        let on_wire = bytes + packets * ethernet.overhead as f64 + RETH;
        let clock = 1e9 / pipeline.clock;
        // What the data path is held for: each packet's least distance, its words, and the limit of messages.
        let words = (on_wire / pipeline.width as f64).ceil() * clock;
        let held = (packets * pipeline.packet_cycles * clock).max(words).max(1e9 / pipeline.message_rate);
        let first = bytes.min(ethernet.mtu as f64) + ethernet.overhead as f64;
        let stored = pipeline.store_and_forward as f64 * (first / pipeline.width as f64).ceil() * clock;
        // The words stream on while they come in: they are waited for on the wire only.
        self.path.hold("NIC", from, held, (pipeline.tx_depth * clock + stored - held).max(0.0));
        let switch = self.platform.switch.as_ref().map_or(0.0, |switch| ns(switch.latency));
        self.path.hold("wire", wire, on_wire / ethernet.rate * 1e9, ns(ethernet.latency) + switch);
        self.path.hold("NIC", to, held, (pipeline.rx_depth * clock + stored - held).max(0.0));
    }

    /// The answer lands in the client's memory, where its core polls.
    fn arrive(&mut self, bytes: f64) {
        let pcie = &self.nic.pcie;
        self.path.hold("arrival", Station::ClientPcie, bytes / pcie.bandwidth * 1e9, ns(pcie.write_latency));
        self.path.hold("polling", Station::ClientCores, ns(self.platform.client.poll) / 2.0, 0.0);
    }

    fn dma_read(&mut self, bytes: f64) {
        self.dma_read_as("PCIe read", bytes);
    }

    fn dma_read_as(&mut self, what: &'static str, bytes: f64) {
        let pcie = &self.nic.pcie;
        let requests = (bytes / pcie.max_request as f64).ceil().max(1.0);
        // Its requests go out together: each holds a tag for the round trip, which is waited for once.
        let latency = ns(pcie.read_latency);
        self.path.tags(what, latency, requests);
        self.pcie_bytes(Station::PcieReads, bytes);
    }

    fn dma_write(&mut self, bytes: f64) {
        self.pcie_bytes(Station::PcieWrites, bytes);
        self.path.wait("PCIe write", ns(self.nic.pcie.write_latency));
    }

    /// Bytes with the headers of their TLPs.
    fn pcie_bytes(&mut self, station: Station, bytes: f64) {
        let pcie = &self.nic.pcie;
        let what = if station == Station::PcieWrites { "PCIe write" } else { "PCIe read" };
        let tlps = (bytes / pcie.max_payload as f64).ceil().max(1.0);
        self.path.hold(what, station, (bytes + tlps * pcie.tlp_overhead as f64) / pcie.bandwidth * 1e9, 0.0);
    }

    /// A READ of so many bytes, all of it, from command to polled answer.
    fn round_trip(&self, bytes: f64) -> f64 {
        let mut way = Way { path: Path::default(), ..*self };
        way.one_sided(&Access { count: 1.0, bytes, kind: Kind::Read, dependent: true });
        way.path.alone()
    }
}
