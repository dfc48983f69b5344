//! The hardware of one machine, and what each thing that its software and its NIC do costs there.
//!
//! Everything shared is reserved in the order of asking: a request finds its own completion time at once.

use remora_kernel::op;

use super::MachineSpec;
use super::site::{Processor, Reach};
use crate::platform::Command;
use crate::resource::{Channel, Pool, Server, Usage};
use crate::time::Ps;

/// Bytes of a cache line.
const LINE: usize = 64;
/// A completion that the NIC writes, where its host polls for one.
const COMPLETION: usize = 64;

/// The hardware of one machine.
pub struct Hardware {
    spec: MachineSpec,
    cores: Server,
    /// Commands that a core stores: one thread's way through the I/O subsystem.
    card_cores: Server,
    accel: Server,
    /// Requests of the accelerator to memory, one after the other.
    accel_issue: Server,
    accel_link: Channel,
    /// Towards the device: data of DMA reads. Away from it: DMA writes.
    pcie_down: Channel,
    pcie_up: Channel,
    tags: Pool,
    tx: Server,
    rx: Server,
    messages: Server,
    kernel: Server,
    dram: Channel,
    misses: Pool,
    wire: Channel,
    /// Phase of the polling loop, as a part of 2^64.
    looks: u64,
    /// When the reservations that are counted began.
    since: Ps,
}

impl Hardware {
    /// Idle hardware.
    pub fn new(spec: &MachineSpec) -> Self {
        let nic = &spec.nic;
        let card = spec.card.as_ref();
        let accel = spec.accel.as_ref();
        Self {
            cores: Server::new(spec.core.cores as usize),
            card_cores: Server::new(card.map_or(1, |card| card.cores as usize)),
            accel: Server::new(1),
            accel_issue: Server::new(1),
            accel_link: Channel::new(accel.map_or(1e9, |accel| accel.bandwidth * accel.efficiency)),
            pcie_down: Channel::new(nic.pcie.bandwidth),
            pcie_up: Channel::new(nic.pcie.bandwidth),
            tags: Pool::new(nic.pcie.tags as usize),
            tx: Server::new(1),
            rx: Server::new(1),
            messages: Server::new(1),
            kernel: Server::new(1),
            dram: Channel::new(spec.dram.bandwidth),
            misses: Pool::new((spec.core.misses * spec.core.cores) as usize),
            wire: Channel::new(nic.ethernet.rate),
            looks: 0,
            since: Ps::ZERO,
            spec: spec.clone(),
        }
    }

    // Software.

    /// A core hands a command to the NIC: when the core is free again, and when the NIC sees the store.
    pub fn issue(&mut self, at: Ps) -> (Ps, Ps) {
        let (start, free) = self.cores.serve(at, Ps(self.spec.core.issue));
        (free, start + Ps(self.spec.nic.pcie.mmio_latency))
    }

    /// The NIC has seen the store of a command of `bytes` inline: when it has the command. The core's store brings it, or
    /// is a doorbell upon which the NIC fetches it.
    pub fn take_command(&mut self, now: Ps, bytes: usize) -> Ps {
        let pipeline = &self.spec.nic.pipeline;
        let (gap, wqe) = (Ps::cycles(1.0, pipeline.message_rate), pipeline.wqe as usize);
        let here = match pipeline.command {
            Command::Store => now,
            Command::Fetch => self.fetch(now, wqe + bytes).1,
        };
        self.messages.serve(here, gap).0
    }

    /// Something that software polls for is in memory at `landed`: when software has seen it. A completion of a NIC
    /// that fetches commands is an entry of a queue, written after the data.
    pub fn notice(&mut self, now: Ps, landed: Ps, completion: bool) -> Ps {
        let queued = completion && self.spec.nic.pipeline.command == Command::Fetch;
        let there = if queued { landed.max(self.store(now, COMPLETION)) } else { landed };
        // The look that sees it begins up to one interval later: a low-discrepancy sequence, the same in every run.
        self.looks = self.looks.wrapping_add(GOLDEN);
        let phase = ((u128::from(self.looks) * u128::from(self.spec.core.poll)) >> 64) as u64;
        self.cores.start(there, Ps(1)) + Ps(phase)
    }

    // Kernels.

    /// A kernel's step begins: where its processor is when it is done with what no access costs.
    pub fn step(&mut self, processor: Processor, now: Ps) -> Ps {
        match processor {
            Processor::Core => self.cores.serve(now, Ps(self.spec.core.switch)).1,
            Processor::Pipeline => {
                let pipeline = &self.spec.nic.pipeline;
                let (start, _) = self.kernel.serve(now, Ps::cycles(1.0, pipeline.clock));
                start + Ps::cycles(pipeline.kernel_cycles, pipeline.clock)
            }
            Processor::CardCore => {
                let speed = self.spec.card.as_ref().map_or(1.0, |card| card.speed);
                self.card_cores.serve(now, Ps((self.spec.core.switch as f64 / speed) as u64)).1
            }
            Processor::Accel => {
                let accel = self.spec.accel.as_ref();
                now + accel.map_or(Ps::ZERO, |accel| Ps::cycles(accel.issue_cycles, accel.clock))
            }
        }
    }

    /// A kernel works through `bytes` of data that have arrived.
    pub fn compute(&mut self, processor: Processor, at: Ps, op: u64, bytes: usize) -> Ps {
        let pipeline = &self.spec.nic.pipeline;
        if processor == Processor::Pipeline {
            // Data go through the kernel at its bus width in each cycle (StRoM sections 3.4 and 5.2).
            let words = bytes.div_ceil(KERNEL_BUS) as f64;
            return self.kernel.serve(at, Ps::cycles(words, pipeline.clock)).1;
        }
        let Some(rate) = self.work_rate(op) else { return at };
        let work = |speed: f64| Ps((bytes as f64 / (rate * speed) * 1e12) as u64);
        match processor {
            Processor::CardCore => {
                let speed = self.spec.card.as_ref().map_or(1.0, |card| card.speed);
                self.card_cores.serve(at, work(speed)).1
            }
            Processor::Accel => {
                let words = bytes.div_ceil(LINE) as f64;
                let clock = self.spec.accel.as_ref().map_or(1e9, |accel| accel.clock);
                self.accel.serve(at, Ps::cycles(words, clock)).1
            }
            _ => self.cores.serve(at, work(1.0)).1,
        }
    }

    /// Bytes a second that a host core works through, for kernels that look at every byte.
    fn work_rate(&self, op: u64) -> Option<f64> {
        self.spec.crc.filter(|_| matches!(op, op::CONSISTENCY | op::CHECKSUM))
    }

    /// The way of a request from the NIC's engine (or, at a host, from the moment software saw it) to its kernel.
    pub fn dispatch(&mut self, processor: Processor, now: Ps, bytes: usize) -> Ps {
        match processor {
            Processor::Core => self.cores.serve(now, Ps(self.spec.core.dispatch)).1,
            // Parameters come over a bus of 32 B (StRoM section 5.2).
            Processor::Pipeline => now + Ps::cycles(bytes.div_ceil(PARAM_BUS) as f64, self.spec.nic.pipeline.clock),
            Processor::CardCore => {
                let dispatch = self.spec.card.as_ref().map_or(0, |card| card.dispatch);
                self.card_cores.serve(now, Ps(dispatch)).1
            }
            Processor::Accel => {
                let written = self.store(now, bytes);
                written + Ps(self.spec.accel.as_ref().map_or(0, |accel| accel.signal))
            }
        }
    }

    /// The way of a kernel's reply back to the NIC's engine.
    pub fn answer(&mut self, processor: Processor, at: Ps, bytes: usize) -> Ps {
        match processor {
            Processor::Core => self.issue(at).1,
            Processor::Pipeline => at,
            Processor::CardCore => {
                let issue = self.spec.card.as_ref().map_or(0, |card| card.issue);
                self.card_cores.serve(at, Ps(issue)).1
            }
            Processor::Accel => {
                let doorbell = Ps(self.spec.accel.as_ref().map_or(0, |accel| accel.doorbell));
                self.take_command(at, bytes) + doorbell
            }
        }
    }

    /// An access of a kernel: when the first and the last byte are there.
    pub fn reach(&mut self, processor: Processor, at: Ps, va: u64, len: usize, kind: Reach) -> (Ps, Ps) {
        match processor {
            Processor::Core => self.load(at, va, len),
            Processor::Pipeline => match kind {
                Reach::Read => self.fetch(at, len),
                Reach::Write => {
                    let accepted = self.pcie_up.serve(at, self.bus_bytes(len)).1;
                    (accepted, accepted)
                }
                Reach::Atomic => {
                    let (_, here) = self.fetch(at, len);
                    (here, self.store(here, len))
                }
            },
            Processor::CardCore => {
                let Some(card) = &self.spec.card else { return (at, at) };
                let (single, each) = (Ps(card.host_read), Ps(card.host_pipelined));
                let (_, issued) = self.card_cores.serve(at, each);
                let rest = Ps(single.0.saturating_sub(each.0));
                let moved = self.pcie_down.serve(at, self.bus_bytes(len)).1;
                let first = issued + rest;
                (first, first.max(moved))
            }
            Processor::Accel => {
                let Some(accel) = &self.spec.accel else { return (at, at) };
                let (latency, gap) = (Ps(accel.read_latency), Ps::cycles(accel.issue_cycles, accel.clock));
                let lines = len.div_ceil(LINE).max(1);
                let (first, _) = self.accel_issue.serve(at, Ps(gap.0 * lines as u64));
                let last = first + Ps(gap.0 * (lines as u64 - 1));
                let moved = self.accel_link.serve(first, (lines * LINE) as u64).1;
                (first + latency, (last + latency).max(moved + latency))
            }
        }
    }

    /// A core loads `len` bytes that lie in memory: as many lines at once as it has misses for.
    fn load(&mut self, at: Ps, va: u64, len: usize) -> (Ps, Ps) {
        let (hit, miss) = (Ps(self.spec.cache.latency), Ps(self.spec.dram.latency));
        let (mut first, mut last) = (None, at);
        let lines = va / LINE as u64..=(va + len.max(1) as u64 - 1) / LINE as u64;
        for line in lines {
            let here = if self.is_cached(line) {
                at + hit
            } else {
                let begun = self.misses.acquire(at);
                let here = (begun + miss).max(self.dram.serve(begun, LINE as u64).1);
                self.misses.release(begun, here);
                here
            };
            first = first.or(Some(here));
            last = last.max(here);
        }
        (first.unwrap_or(last), last)
    }

    /// Whether a line of the state is in the last-level cache: the part of lines that fits is, spread evenly.
    fn is_cached(&self, line: u64) -> bool {
        let share = self.spec.cache.size as f64 / self.spec.state.max(1) as f64;
        // The top bits of a multiplicative hash are uniform.
        let place = (line.wrapping_mul(GOLDEN) >> 11) as f64 / (1u64 << 53) as f64;
        place < share
    }

    // The bus.

    /// Bytes that a transfer takes on the bus: each packet of it has a header.
    fn bus_bytes(&self, len: usize) -> u64 {
        let pcie = &self.spec.nic.pcie;
        let packets = len.div_ceil(pcie.max_payload as usize).max(1) as u64;
        len as u64 + packets * pcie.tlp_overhead
    }

    /// A DMA read: when the first and the last byte are at the NIC. Each request for a part takes a tag.
    pub fn fetch(&mut self, at: Ps, len: usize) -> (Ps, Ps) {
        let pcie = &self.spec.nic.pcie;
        let (most, overhead) = (pcie.max_request as usize, pcie.tlp_overhead);
        // The round trip of a read of 64 B has its own transfer in it.
        let own = Ps::transfer(self.bus_bytes(LINE), pcie.bandwidth);
        let latency = Ps(pcie.read_latency) - own;
        let (mut first, mut last, mut left) = (None, at, len.max(1));
        while left > 0 {
            let part = left.min(most);
            left -= part;
            let bytes = self.bus_bytes(part);
            self.pcie_up.serve(at, overhead);
            let begun = self.tags.acquire(at);
            let moved = self.pcie_down.serve(begun + latency, bytes).1;
            self.tags.release(begun, moved);
            first = first.or(Some(moved));
            last = last.max(moved);
        }
        (first.unwrap_or(last), last)
    }

    /// A DMA write: when a core can see all of it.
    pub fn store(&mut self, at: Ps, len: usize) -> Ps {
        let pcie = &self.spec.nic.pcie;
        let own = Ps::transfer(self.bus_bytes(LINE), pcie.bandwidth);
        let latency = Ps(pcie.write_latency) - own;
        let bytes = self.bus_bytes(len);
        self.pcie_up.serve(at, bytes).1 + latency
    }

    // The data path.

    /// When the NIC should next build packets, if it has enough on its way already.
    pub fn transmit_later(&self, now: Ps) -> Option<Ps> {
        // Twice what a DMA read takes keeps the wire busy.
        let ahead = Ps(2 * self.spec.nic.pcie.read_latency + 2_000_000);
        let end = self.wire.end();
        (end > now + ahead).then(|| end - ahead)
    }

    /// The NIC sends a packet of `len` bytes, of which it must fetch some first: when its last bit has arrived.
    pub fn send(&mut self, now: Ps, len: usize, fetched: usize) -> Ps {
        let here = if fetched > 0 { self.fetch(now, fetched).1 } else { now };
        let (out, _) = self.pass(here, len, true);
        let ethernet = &self.spec.nic.ethernet;
        // BTH and ICRC count in both the packet and the overhead.
        let frame = len + (ethernet.overhead as usize).saturating_sub(BTH_ICRC);
        self.wire.serve(out, frame as u64).1 + Ps(ethernet.latency)
    }

    /// The last bit of a packet is here: when the engine has it.
    pub fn receive(&mut self, now: Ps, len: usize) -> Ps {
        self.pass(now, len, false).0
    }

    /// A packet's way through a pipeline: when its first word is out, or its last if it is held until it is whole.
    fn pass(&mut self, at: Ps, len: usize, sending: bool) -> (Ps, Ps) {
        let pipeline = &self.spec.nic.pipeline;
        let words = (len as f64 / pipeline.width as f64).ceil();
        let busy = Ps::cycles(words.max(pipeline.packet_cycles), pipeline.clock);
        let depth = if sending { pipeline.tx_depth } else { pipeline.rx_depth };
        let held = Ps::cycles(words * pipeline.store_and_forward as f64, pipeline.clock);
        let latency = Ps::cycles(depth, pipeline.clock) + held;
        let server = if sending { &mut self.tx } else { &mut self.rx };
        // Packets keep their order: one that needs no fetch does not pass one that does.
        let (start, end) = server.serve(at.max(server.end()), busy);
        (start + latency, end + latency)
    }

    // What it came to.

    /// When usage was last forgotten.
    pub fn since(&self) -> Ps {
        self.since
    }

    /// Bytes sent on the wire.
    pub fn wire_bytes(&self) -> u64 {
        self.wire.bytes()
    }

    /// Forgets how busy everything was.
    pub fn reset(&mut self, now: Ps) {
        self.since = now;
        for server in [
            &mut self.cores,
            &mut self.card_cores,
            &mut self.accel,
            &mut self.accel_issue,
            &mut self.tx,
            &mut self.rx,
            &mut self.messages,
            &mut self.kernel,
        ] {
            server.reset();
        }
        for channel in [&mut self.pcie_down, &mut self.pcie_up, &mut self.dram, &mut self.wire, &mut self.accel_link] {
            channel.reset();
        }
        self.tags.reset();
        self.misses.reset();
    }

    /// How busy each shared thing was since the last reset, as a part of its time.
    pub fn usage(&self, now: Ps) -> Vec<Usage> {
        let span = now - self.since;
        let servers = [
            ("host cores", &self.cores),
            ("card cores", &self.card_cores),
            ("accelerator", &self.accel),
            ("accelerator requests", &self.accel_issue),
            ("NIC transmit", &self.tx),
            ("NIC receive", &self.rx),
            ("NIC commands", &self.messages),
            ("NIC kernels", &self.kernel),
        ];
        let pools = [("PCIe tags", &self.tags), ("core misses", &self.misses)];
        let channels = [
            ("PCIe to NIC", &self.pcie_down),
            ("PCIe to host", &self.pcie_up),
            ("DRAM", &self.dram),
            ("wire", &self.wire),
            ("coherent link", &self.accel_link),
        ];
        let servers = servers.into_iter().map(|(name, server)| server.usage(name, span));
        let pools = pools.into_iter().map(|(name, pool)| pool.usage(name, span));
        let channels = channels.into_iter().map(|(name, channel)| channel.usage(name, span));
        servers.chain(pools).chain(channels).collect()
    }
}

/// The golden ratio, as a part of 2^64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bytes of a kernel's data bus (StRoM section 5.2).
const KERNEL_BUS: usize = 64;
/// Bytes of a kernel's parameter bus (StRoM section 5.2).
const PARAM_BUS: usize = 32;
/// Bytes of BTH and ICRC.
const BTH_ICRC: usize = 16;
