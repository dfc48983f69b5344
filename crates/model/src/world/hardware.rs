//! The hardware of one machine, made of components, and what each thing that its software and its NIC do costs there.
//!
//! Everything shared is reserved: a request finds its own completion time at once (see [`crate::resource`]).

use super::site::{Processor, Reach};
use super::{MachineSpec, Work};
use crate::component::cache::{Cache, CacheAccess, CacheParams, Lookup};
use crate::component::coherent::{Coherent, CoherentParams};
use crate::component::core::{CoreParams, Cores};
use crate::component::ethernet::{Ethernet, EthernetParams};
use crate::component::memory::{Memory, MemoryParams};
use crate::component::nic::{Nic, NicParams};
use crate::component::nic_cores::{NicCoreParams, NicCores};
use crate::component::pcie::{Pcie, PcieParams};
use crate::component::switch::{Forward, Port, SwitchParams, WhenFull};
use crate::platform::{self, Command};
use crate::resource::{Server, Usage};
use crate::time::Ps;

/// Bytes of a cache line.
const LINE: u64 = 64;
/// A completion that the NIC writes, where its host polls for one.
const COMPLETION: u64 = 64;
/// Bytes of BTH and ICRC.
const BTH_ICRC: u64 = 16;
/// Bytes of a kernel's data bus (StRoM section 5.2).
const KERNEL_BUS: u64 = 64;
/// Bytes of a kernel's parameter bus (StRoM section 5.2).
const PARAM_BUS: u64 = 32;
/// The golden ratio, as a part of 2^64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hardware of one machine.
pub struct Hardware {
    spec: MachineSpec,
    cores: Cores,
    cache: Cache,
    memory: Memory,
    pcie: Pcie,
    nic: Nic,
    wire: Ethernet,
    /// The switch's port towards the peer.
    port: Option<Port>,
    /// Kernels in the data path: their bus.
    kernels: Server,
    card: Option<NicCores>,
    accel: Option<Accelerator>,
    /// When the packet sent last was there to be sent: packets keep their order.
    sent: Ps,
    /// Phase of the polling loop, as a part of 2^64.
    looks: u64,
    /// When usage was last forgotten.
    since: Ps,
}

/// An accelerator beside the host.
struct Accelerator {
    params: platform::Accel,
    link: Coherent,
    /// What works through data.
    unit: Server,
}

impl Hardware {
    /// Idle hardware.
    pub fn new(spec: &MachineSpec) -> Self {
        let card = spec.card.as_ref().map(|card| NicCores::new(&NicCoreParams::new(card, &spec.core)));
        let accel = spec.accel.as_ref().map(|accel| Accelerator {
            link: Coherent::new(&CoherentParams::from(accel)),
            unit: Server::new(1),
            params: accel.clone(),
        });
        // The BTH and the ICRC count in what the wire is told.
        let mut ethernet = EthernetParams::from(&spec.nic.ethernet);
        ethernet.overhead_bytes = ethernet.overhead_bytes.saturating_sub(BTH_ICRC);
        // RoCE runs over networks that lose nothing: priority flow control.
        let port = |switch| Port::new(&SwitchParams::new(switch, &spec.nic.ethernet, WhenFull::Pause));
        Self {
            cores: Cores::new(&CoreParams::from(&spec.core)),
            cache: Cache::new(&CacheParams::from(&spec.cache)),
            memory: Memory::new(&MemoryParams::from(&spec.dram)),
            pcie: Pcie::new(&PcieParams::from(&spec.nic.pcie)),
            nic: Nic::new(&NicParams::from(&spec.nic.pipeline)),
            wire: Ethernet::new(&ethernet),
            port: spec.switch.as_ref().map(port),
            kernels: Server::new(1),
            card,
            accel,
            sent: Ps::ZERO,
            looks: 0,
            since: Ps::ZERO,
            spec: spec.clone(),
        }
    }

    /// Memory is registered: the NIC gets its translations (StRoM section 4.3), as many as it has room for.
    pub fn register(&mut self, va: u64, len: u64) {
        self.nic.translate(Ps::ZERO, va, len);
    }

    // Software.

    /// A core hands over a command with `inline` bytes of payload in it: when the core is free again, and when the NIC
    /// sees the command or its doorbell.
    pub fn issue(&mut self, at: Ps, inline: usize) -> (Ps, Ps) {
        let (start, free) = self.cores.run(at, Ps(self.spec.core.issue));
        (free, self.nic.ring(start, 1, inline as u64, &mut self.pcie))
    }

    /// The NIC sees a command or its doorbell: when it begins with the command.
    pub fn take(&mut self, now: Ps, inline: usize) -> Ps {
        self.nic.take(now, 1, inline as u64, &mut self.pcie).0
    }

    /// What software polls for is in memory at `landed`: when software has seen it. The completion of a NIC that fetches
    /// commands is an entry of a queue, which it writes behind the data.
    pub fn notice(&mut self, now: Ps, landed: Ps, completion: bool) -> Ps {
        let queued = completion && self.spec.nic.pipeline.command == Command::Fetch;
        let there = if queued { landed.max(self.pcie.write(now, COMPLETION).1) } else { landed };
        // The look that sees it ends up to one interval later: a low-discrepancy sequence, the same in every run.
        self.looks = self.looks.wrapping_add(GOLDEN);
        let phase = ((u128::from(self.looks) * u128::from(self.spec.core.poll)) >> 64) as u64;
        self.cores.start(there) + Ps(phase)
    }

    // Kernels.

    /// A kernel's step begins: where its processor is when it is done with what no access costs.
    pub fn step(&mut self, processor: Processor, now: Ps) -> Ps {
        let pipeline = &self.spec.nic.pipeline;
        match (processor, &mut self.card, &self.accel) {
            (Processor::Card, Some(card), _) => card.run(now, Ps(self.spec.core.switch)).1,
            (Processor::Accel, _, Some(accel)) => now + Ps::cycles(accel.params.issue_cycles, accel.params.clock),
            (Processor::Pipeline, ..) => {
                let (start, _) = self.kernels.serve(now, Ps::cycles(1.0, pipeline.clock));
                start + Ps::cycles(pipeline.kernel_cycles, pipeline.clock)
            }
            _ => self.cores.turn(now, Ps::ZERO).1,
        }
    }

    /// A kernel works through `bytes` of data that have arrived. In the data path and on an accelerator they go through
    /// at the width of its bus in each cycle (StRoM sections 3.4 and 5.2); a core takes time where each byte counts.
    pub fn compute(&mut self, processor: Processor, at: Ps, op: u64, bytes: usize) -> Ps {
        let words = (bytes as u64).div_ceil(KERNEL_BUS) as f64;
        let work = self.spec.work.rate(op).map_or(Ps::ZERO, |rate| Ps::transfer(bytes as u64, rate));
        match (processor, &mut self.card, &mut self.accel) {
            (Processor::Pipeline, ..) => self.kernels.serve(at, Ps::cycles(words, self.spec.nic.pipeline.clock)).1,
            (Processor::Accel, _, Some(accel)) => accel.unit.serve(at, Ps::cycles(words, accel.params.clock)).1,
            _ if work == Ps::ZERO => at,
            (Processor::Card, Some(card), _) => card.run(at, work).1,
            _ => self.cores.run(at, work).1,
        }
    }

    /// A kernel computes: counted instructions one after the other, on a core or in logic.
    pub fn instructions(&mut self, processor: Processor, at: Ps, count: u64) -> Ps {
        let time = |cycles: Option<f64>, clock: f64| Ps::cycles(cycles.unwrap_or(0.0) * count as f64, clock);
        let Work { core_instruction, logic_instruction, .. } = self.spec.work;
        let on_core = time(core_instruction, self.spec.core.clock);
        match (processor, &mut self.card, &mut self.accel) {
            (Processor::Pipeline, ..) => {
                self.kernels.serve(at, time(logic_instruction, self.spec.nic.pipeline.clock)).1
            }
            (Processor::Accel, _, Some(accel)) => accel.unit.serve(at, time(logic_instruction, accel.params.clock)).1,
            (Processor::Card, Some(card), _) => card.run(at, on_core).1,
            _ => self.cores.run(at, on_core).1,
        }
    }

    /// The way of a chunk of payload from the NIC's engine to the place of its kernel: when that has it.
    pub fn deliver(&mut self, processor: Processor, now: Ps, bytes: usize) -> Ps {
        match processor {
            Processor::Pipeline | Processor::Card => now,
            Processor::Accel => self.pcie.write(now, bytes as u64).1,
            Processor::Core => {
                let landed = self.store(now, bytes);
                self.notice(now, landed, false)
            }
        }
    }

    /// The way of a request from the NIC's engine (or, at a host, from the moment software saw it) to its kernel.
    pub fn dispatch(&mut self, processor: Processor, now: Ps, bytes: usize) -> Ps {
        let clock = self.spec.nic.pipeline.clock;
        match (processor, &mut self.card, &self.accel) {
            (Processor::Pipeline, ..) => now + Ps::cycles((bytes as u64).div_ceil(PARAM_BUS) as f64, clock),
            (Processor::Card, Some(card), _) => {
                let dispatch = self.spec.card.as_ref().map_or(0, |card| card.dispatch);
                card.cores.run(now, Ps(dispatch)).1
            }
            (Processor::Accel, _, Some(accel)) => self.pcie.write(now, bytes as u64).1 + Ps(accel.params.signal),
            _ => self.cores.run(now, Ps(self.spec.core.dispatch)).1,
        }
    }

    /// The way of a kernel's reply back to the NIC's engine.
    pub fn answer(&mut self, processor: Processor, at: Ps, bytes: usize) -> Ps {
        match (processor, &mut self.card, &self.accel) {
            (Processor::Pipeline, ..) => at,
            (Processor::Card, Some(card), _) => {
                let issue = self.spec.card.as_ref().map_or(0, |card| card.issue);
                card.cores.run(at, Ps(issue)).1
            }
            (Processor::Accel, _, Some(accel)) => {
                let wqe = self.spec.nic.pipeline.wqe + bytes as u64;
                self.pcie.read(at + Ps(accel.params.doorbell), wqe).1
            }
            _ => self.issue(at, 0).1,
        }
    }

    /// An access of a kernel: when the first and the last line are there.
    pub fn reach(&mut self, processor: Processor, at: Ps, va: u64, len: usize, kind: Reach) -> (Ps, Ps) {
        let bytes = len as u64;
        match (processor, &mut self.card, &mut self.accel) {
            (Processor::Pipeline, ..) => self.dma(at, va, bytes, kind),
            (Processor::Card, Some(card), _) => {
                let (_, first) = card.host_read(at);
                let rest = Ps::transfer(bytes.saturating_sub(LINE), self.spec.nic.pcie.bandwidth);
                (first, first + rest)
            }
            (Processor::Accel, _, Some(accel)) => match kind {
                Reach::Write | Reach::Stream => {
                    let taken = accel.link.write(at, va, bytes);
                    (taken, taken)
                }
                Reach::Read | Reach::Atomic => accel.link.read(at, va, bytes),
            },
            _ if kind == Reach::Stream => {
                // Past the caches: the core goes on while memory takes them.
                self.memory.write(at, va, bytes);
                (at, at)
            }
            _ => self.load(at, va, bytes, kind),
        }
    }

    /// Over PCIe, with the NIC's own translation of addresses.
    fn dma(&mut self, at: Ps, va: u64, bytes: u64, kind: Reach) -> (Ps, Ps) {
        let at = self.nic.translate(at, va, bytes);
        match kind {
            Reach::Read => self.pcie.read(at, bytes),
            Reach::Write | Reach::Stream => {
                let (taken, _) = self.pcie.write(at, bytes);
                (taken, taken)
            }
            Reach::Atomic => {
                let (_, here) = self.pcie.read(at, bytes);
                (here, self.pcie.write(here, bytes).1)
            }
        }
    }

    /// By a core: as many lines at once as it has misses for.
    fn load(&mut self, at: Ps, va: u64, bytes: u64, kind: Reach) -> (Ps, Ps) {
        let access = if kind == Reach::Read { CacheAccess::Load } else { CacheAccess::Store };
        let (mut first, mut last) = (None, at);
        for line in self.cache.lines(va, bytes) {
            let found = match self.spec.state {
                0 => self.cache.access(line, access),
                state => Lookup { hit: self.is_resident(line, state), written_back: None },
            };
            let here = match found.hit {
                true => at + self.cache.hit_time(),
                false => self.cores.miss(at, |start| self.memory.read(start, line * LINE, LINE).1),
            };
            if let Some(old) = found.written_back {
                self.memory.write(here, old * LINE, LINE);
            }
            first = first.or(Some(here));
            last = last.max(here);
        }
        (first.unwrap_or(last), last)
    }

    /// Whether a line is in the part of the state that fits in the cache: lines are spread over it evenly.
    fn is_resident(&self, line: u64, state: u64) -> bool {
        let place = (line.wrapping_mul(GOLDEN) >> 11) as f64 / (1u64 << 53) as f64;
        place * (state as f64) < self.spec.cache.size as f64
    }

    /// A DMA write of a packet's payload: when a core can see all of it.
    pub fn store(&mut self, at: Ps, bytes: usize) -> Ps {
        self.pcie.write(at, bytes as u64).1
    }

    // The data path.

    /// When the NIC should next build packets, if it has enough on its way already.
    pub fn transmit_later(&self, now: Ps) -> Option<Ps> {
        // Twice what a DMA read takes, and more, keeps the wire busy.
        let ahead = Ps(2 * self.spec.nic.pcie.read_latency) + Ps::from_us(2);
        let end = self.wire.free();
        (end > now + ahead).then(|| end - ahead)
    }

    /// The NIC sends a packet of `len` bytes, of which it must fetch some first: when its last bit has arrived.
    pub fn send(&mut self, now: Ps, len: usize, fetched: usize) -> Ps {
        let here = if fetched > 0 { self.pcie.read(now, fetched as u64).1 } else { now };
        self.sent = self.sent.max(here);
        let (out, _) = self.nic.send(self.sent, len as u64);
        let (first, last) = self.wire.send(out, len as u64);
        match self.port.as_mut().map(|port| port.forward(first, self.wire.on_wire(len as u64))) {
            Some(Forward::Sent(last)) => last,
            // A port that holds senders back drops nothing.
            Some(Forward::Dropped) | None => last,
        }
    }

    /// The last bit of a packet is here: when the engine has it. The pipeline works on words as they come, so what is
    /// left then is its depth and, where it holds packets until they are whole, another passage of all words.
    pub fn receive(&mut self, now: Ps, len: usize) -> Ps {
        self.nic.receive(now, len as u64).0
    }

    // What it came to.

    /// When usage was last forgotten.
    pub fn since(&self) -> Ps {
        self.since
    }

    /// Bytes sent on the wire since usage was last forgotten.
    pub fn wire_bytes(&self) -> u64 {
        self.wire.bytes()
    }

    /// Forgets how busy everything was.
    pub fn reset(&mut self, now: Ps) {
        self.since = now;
        self.cores.reset();
        self.cache.reset();
        self.memory.reset();
        self.pcie.reset();
        self.nic.reset();
        self.wire.reset();
        self.port.iter_mut().for_each(Port::reset);
        self.kernels.reset();
        self.card.iter_mut().for_each(NicCores::reset);
        if let Some(accel) = &mut self.accel {
            accel.link.reset();
            accel.unit.reset();
        }
    }

    /// How busy each shared thing was since usage was last forgotten.
    pub fn usage(&self, now: Ps) -> Vec<Usage> {
        let span = now - self.since;
        let mut all = Vec::with_capacity(20);
        all.extend(self.cores.usage(span));
        all.push(self.memory.usage("memory", span));
        all.extend(self.pcie.usage(span));
        all.extend(self.nic.usage(span));
        all.push(self.wire.usage(span));
        all.extend(self.port.iter().map(|port| port.usage(span)));
        all.push(self.kernels.usage("NIC kernels", span));
        all.extend(self.card.iter().flat_map(|card| card.usage(span)));
        if let Some(accel) = &self.accel {
            all.extend(accel.link.usage(span));
            all.push(accel.unit.usage("accelerator", span));
        }
        all.retain(|usage| usage.served > 0);
        all
    }
}
