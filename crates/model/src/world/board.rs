//! What all software and all processors of a machine share: cores, caches, memory, PCIe, the NICs' data paths; and what
//! each thing that software and a NIC do costs there.
//!
//! Everything shared is reserved: a request finds its own completion time at once (see [`crate::resource`]).

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::MachineSpec;
use super::site::Reach;
use crate::component::cache::{Cache, CacheAccess, CacheParams, Lookup};
use crate::component::core::{CoreParams, Cores};
use crate::component::ethernet::{Ethernet, EthernetParams};
use crate::component::hierarchy::Hierarchy;
use crate::component::memory::{MemoryChannels, MemoryParams};
use crate::component::memory_device::{MemoryDevice, device_of};
use crate::component::nic::{DataPath, DataPathParams};
use crate::component::nic_state::{NicState, Way as Going};
use crate::component::pcie::{Pcie, PcieParams, Way};
use crate::component::socket::SocketLink;
use crate::platform::CommandPath;
use crate::resource::{Server, Usage};
use crate::time::Ps;

/// Bytes of a cache line.
pub(super) const LINE: u64 = 64;
/// A completion that the NIC writes, where its host polls for one.
const COMPLETION: u64 = 64;
/// Bytes of the word of an atomic operation.
const WORD: u64 = 8;
/// Bytes of BTH and ICRC.
const BTH_ICRC: u64 = 16;
/// The golden ratio, as a part of 2^64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a machine's software and processors share.
pub struct Board {
    pub(super) spec: MachineSpec,
    pub(super) cores: Cores,
    cache: Cache,
    memory: MemoryChannels,
    /// PCIe slots that NICs are in.
    slots: Vec<Pcie>,
    nics: Vec<NicPath>,
    /// Memory devices, and the number of the machine's link at each, if it has one.
    devices: Vec<Option<Reached>>,
    /// The way to data in the other socket's memory, if they are there.
    far: Option<SocketLink>,
    /// When each line that cores change by atomic operations is free for the next.
    changed: HashMap<u64, Ps>,
    /// Phase of the polling loop, as a part of 2^64.
    looks: u64,
    threads: Option<Threads>,
}

/// Threads that wait for their loads, one on each core.
struct Threads {
    caches: Hierarchy,
    /// The one that runs, or ran last.
    current: usize,
    /// What all do for each message, one after the other.
    shared: Server,
}

/// Packets to a queue pair of a NIC.
pub type Flow = (u16, u32);

/// A NIC's hardware.
struct NicPath {
    slot: usize,
    path: DataPath,
    wire: Ethernet,
    /// When the packet sent last was there to be sent, of each flow: its packets keep their order.
    sent: HashMap<Flow, Ps>,
    /// When the wire has sent what waits for no word of an atomic operation.
    busy: Ps,
    /// When each word that an atomic operation has changed is in memory again.
    words: HashMap<u64, Ps>,
    /// What it keeps of queue pairs and regions, if that is more than it has room for.
    state: Option<NicState>,
}

fn disturbed(spec: &MachineSpec) -> Cores {
    let mut cores = Cores::new(&CoreParams::from(&spec.core));
    if let Some((jitter, seed)) = &spec.jitter {
        cores.disturb(jitter, *seed);
    }
    cores
}

impl Board {
    /// All of it idle.
    pub fn new(spec: &MachineSpec) -> Self {
        // The BTH and the ICRC count in what the wire is told.
        let mut ethernet = EthernetParams::from(&spec.nic.ethernet);
        ethernet.overhead_bytes = ethernet.overhead_bytes.saturating_sub(BTH_ICRC);
        let nic = |number| NicPath {
            slot: if spec.one_slot { 0 } else { number },
            path: DataPath::new(&DataPathParams::from(&spec.nic.pipeline)),
            wire: Ethernet::new(&ethernet),
            sent: HashMap::new(),
            busy: Ps::ZERO,
            words: HashMap::new(),
            state: spec.nic_state.as_ref().and_then(|(params, served)| NicState::new(params, *served)),
        };
        let slots = if spec.one_slot { 1 } else { spec.nics() };
        Self {
            cores: disturbed(spec),
            cache: Cache::new(&CacheParams::from(&spec.cache)),
            memory: MemoryChannels::new(&MemoryParams::from(&spec.dram)),
            slots: vec![Pcie::new(&PcieParams::from(&spec.nic.pcie)); slots],
            nics: (0..spec.nics()).map(nic).collect(),
            devices: Vec::new(),
            far: spec.far.as_ref().map(SocketLink::new),
            changed: HashMap::new(),
            looks: 0,
            threads: spec.threads.as_ref().map(|threads| Threads {
                caches: Hierarchy::new(threads),
                current: 0,
                shared: Server::new(1).ordered(spec.core.order),
            }),
            spec: spec.clone(),
        }
    }

    /// The machine reaches the next memory device by this link of it, or does not reach it.
    pub fn attach(&mut self, device: Option<Reached>) {
        self.devices.push(device);
    }

    /// From now on the NICs send with this part of their links' rates.
    pub fn cap_links(&mut self, part: f64) {
        self.nics.iter_mut().for_each(|nic| nic.wire.cap(part));
    }

    /// Memory is registered: the NICs get its translations (StRoM section 4.3), as many as they have room for.
    pub fn register(&mut self, va: u64, len: u64) {
        for nic in &mut self.nics {
            nic.path.translate(Ps::ZERO, va, len);
        }
    }

    // Software. Threads that wait for their loads are each on a core of their own: who runs has it.

    /// The thread of this number runs from now on.
    pub fn set_thread(&mut self, number: usize) {
        if let Some(threads) = &mut self.threads {
            threads.current = number;
        }
    }

    /// A core turns to a kernel's next step: when that begins.
    pub fn turn(&mut self, now: Ps) -> Ps {
        match self.threads {
            Some(_) => now,
            None => self.cores.turn(now, Ps::ZERO).1,
        }
    }

    /// A core works for a time: when it is done.
    pub fn run(&mut self, at: Ps, work: Ps) -> Ps {
        match (self.threads.is_some(), work) {
            (_, Ps::ZERO) => at,
            (true, work) => at + work,
            (false, work) => self.cores.run(at, work).1,
        }
    }

    /// A core takes a message that it has seen, as far as its kernel's first step.
    pub fn dispatch(&mut self, at: Ps) -> Ps {
        let (dispatch, shared) = (Ps(self.spec.core.dispatch), self.spec.shared);
        match &mut self.threads {
            Some(threads) if shared > Ps::ZERO => threads.shared.serve(at, shared).1 + dispatch,
            Some(_) => at + dispatch,
            None => self.cores.run(at, dispatch).1,
        }
    }

    /// A thread has had a call for so long.
    pub fn was_busy(&mut self, from: Ps, to: Ps) {
        self.cores.run(from, to - from);
    }

    /// Lines that one of the threads accesses before anything is measured: caches are then as they are after a while.
    pub fn warm(&mut self, thread: usize, va: u64, bytes: u64) {
        if let Some(threads) = &mut self.threads {
            threads.caches.warm(thread, va, bytes);
        }
    }

    /// A core hands a NIC a command with `inline` bytes of payload in it: when the core is free again, and when the NIC
    /// sees the command or its doorbell.
    pub fn issue(&mut self, nic: usize, at: Ps, inline: usize) -> (Ps, Ps) {
        let issue = Ps(self.spec.core.issue);
        let (start, free) = match self.threads {
            Some(_) => (at, at + issue),
            None => self.cores.run(at, issue),
        };
        let nic = &self.nics[nic];
        (free, nic.path.ring(start, 1, inline as u64, &mut self.slots[nic.slot]))
    }

    /// A NIC sees a command or its doorbell: when it begins with the command.
    pub fn take(&mut self, nic: usize, now: Ps, inline: usize, qp: u32) -> Ps {
        let nic = &mut self.nics[nic];
        let here = nic.path.take(now, 1, inline as u64, &mut self.slots[nic.slot]).0;
        nic.known((qp, Going::Out), here, &mut self.slots)
    }

    /// What software polls for is in memory at `landed`: when software has seen it. The completion of a NIC that fetches
    /// commands is an entry of a queue, which it writes behind the data.
    pub fn notice(&mut self, nic: usize, now: Ps, landed: Ps, completion: bool) -> Ps {
        let queued = completion && self.spec.nic.pipeline.command == CommandPath::Fetch;
        let there = if queued { landed.max(self.pcie(nic).write(now, COMPLETION).1) } else { landed };
        // The look that sees it ends up to one interval later: a low-discrepancy sequence, the same in every run.
        self.looks = self.looks.wrapping_add(GOLDEN);
        let phase = ((u128::from(self.looks) * u128::from(self.spec.core.poll)) >> 64) as u64;
        let seen = self.cores.start(there) + Ps(phase);
        match self.spec.core.complete {
            0 => seen,
            complete if completion => self.cores.run(seen, Ps(complete)).1,
            _ => seen,
        }
    }

    /// What a core takes for what the kernel `op` does with bytes of data.
    pub fn work(&self, op: u64, bytes: usize) -> Ps {
        self.spec.work.rate(op).map_or(Ps::ZERO, |rate| Ps::transfer(bytes as u64, rate))
    }

    /// What a core takes for counted instructions.
    pub fn core_instructions(&self, count: u64) -> Ps {
        Ps::cycles(self.spec.work.core_instruction.unwrap_or(0.0) * count as f64, self.spec.core.clock)
    }

    /// What logic of this clock takes for counted instructions.
    pub fn logic_instructions(&self, count: u64, clock: f64) -> Ps {
        Ps::cycles(self.spec.work.logic_instruction.unwrap_or(0.0) * count as f64, clock)
    }

    /// Bytes that a kernel gathers before it writes them.
    pub fn gathered(&self) -> usize {
        self.spec.gathered
    }

    // Memory.

    fn pcie(&mut self, nic: usize) -> &mut Pcie {
        &mut self.slots[self.nics[nic].slot]
    }

    /// By a core: as many lines at once as it has misses for.
    pub fn load(&mut self, at: Ps, va: u64, bytes: u64, kind: Reach) -> (Ps, Ps) {
        let reads = matches!(kind, Reach::Read | Reach::Search);
        let access = if reads { CacheAccess::Load } else { CacheAccess::Store };
        if let Some(Threads { caches, current, .. }) = &mut self.threads {
            return match kind {
                Reach::Search => {
                    let done = caches.search(*current, at, va, bytes);
                    (done, done)
                }
                _ => caches.access_all(*current, at, va, bytes, access),
            };
        }
        if kind == Reach::Atomic {
            let done = self.change_line(at, va);
            return (done, done);
        }
        self.load_lines(at, va, bytes, access)
    }

    /// A core changes a word: its line is that core's alone until it is done. Who waits for it gets it from another core, which
    /// takes about as long as from memory.
    fn change_line(&mut self, at: Ps, va: u64) -> Ps {
        let line = va / LINE;
        let free = self.changed.get(&line).copied().unwrap_or(Ps::ZERO);
        let (_, mut done) = self.load_lines(at.max(free), va, WORD, CacheAccess::Store);
        if free > at && self.spec.core.cores > 1 {
            done = done.max(free + Ps(self.spec.dram.latency));
        }
        self.changed.insert(line, done);
        done
    }

    fn load_lines(&mut self, at: Ps, va: u64, bytes: u64, access: CacheAccess) -> (Ps, Ps) {
        let (mut first, mut last) = (None, at);
        for line in self.cache.lines(va, bytes) {
            let found = match self.spec.state {
                0 => self.cache.access(line, access),
                state => {
                    let hit = is_resident(line, state, self.spec.cache.size);
                    // In the long run a line that is changed there leaves for each that comes to be changed.
                    let changes = !hit && access == CacheAccess::Store;
                    Lookup { hit, written_back: changes.then_some(line) }
                }
            };
            let Self { cores, cache, memory, devices, far, .. } = self;
            // A line of the last-level cache, too, takes a miss of the core's own.
            let here = cores.miss(at, |start| match (found.hit, reached(devices, line * LINE), &mut *far) {
                (true, ..) => start + cache.hit_time(),
                (false, Some((device, link)), _) => device.borrow_mut().read(*link, start, line * LINE, LINE).1,
                (false, None, Some(far)) => far.read(memory.read(start, line * LINE, LINE), LINE).1,
                (false, None, None) => memory.read(start, line * LINE, LINE).1,
            });
            if let Some(old) = found.written_back {
                self.write_memory(here, old * LINE, LINE);
            }
            first = first.or(Some(here));
            last = last.max(here);
        }
        (first.unwrap_or(last), last)
    }

    /// Memory takes bytes that nobody waits for.
    pub fn write_memory(&mut self, at: Ps, va: u64, bytes: u64) {
        match (reached(&self.devices, va), &mut self.far) {
            (Some((device, link)), _) => _ = device.borrow_mut().write(*link, at, va, bytes),
            (None, Some(far)) => _ = self.memory.write(far.write(at, bytes), va, bytes),
            (None, None) => _ = self.memory.write(at, va, bytes),
        }
    }

    /// What a device that accesses memory waits for before its own way to the host: nothing, if the memory is its
    /// socket's; the way from there to the other socket and back, or to the memory device that has it.
    pub fn beyond(&mut self, at: Ps, va: u64, bytes: u64) -> Ps {
        match reached(&self.devices, va) {
            Some((device, link)) => device.borrow_mut().read(*link, at, va, bytes).1,
            None => self.far(at, bytes),
        }
    }

    /// The way of data to the other socket and back, if they are there.
    fn far(&mut self, at: Ps, bytes: u64) -> Ps {
        self.far.as_mut().map_or(at, |far| far.read((at, at), bytes).1)
    }

    /// A NIC's own access over PCIe, with its own translation of addresses.
    pub fn dma(&mut self, nic: usize, at: Ps, va: u64, bytes: u64, kind: Reach) -> (Ps, Ps) {
        let at = self.nics[nic].path.translate(at, va, bytes);
        match kind {
            Reach::Read | Reach::Search => {
                let at = self.beyond(at, va, bytes);
                self.pcie(nic).read(at, bytes)
            }
            Reach::Write | Reach::Stream => {
                let (taken, there) = self.pcie(nic).write(at, bytes);
                if reached(&self.devices, va).is_some() {
                    self.write_memory(there, va, bytes);
                }
                (taken, taken)
            }
            Reach::Atomic => {
                let at = self.beyond(at, va, bytes);
                self.change(nic, at, va)
            }
        }
    }

    /// A NIC's atomic operation on a word, for a peer: when it has the old value.
    pub fn atomic(&mut self, nic: usize, now: Ps, va: u64) -> Ps {
        self.change(nic, now, va).0
    }

    /// A NIC changes a word, for a peer or a kernel of its own: when it has the old value, and when the new one is in memory.
    /// It reads and writes the word over PCIe, and no other operation on the same word comes between (Kalia et al., ATC 2016).
    fn change(&mut self, nic: usize, now: Ps, va: u64) -> (Ps, Ps) {
        let begun = self.nics[nic].words.get(&va).map_or(now, |free| now.max(*free));
        let (_, here) = self.pcie(nic).read(begun, WORD);
        let (_, there) = self.pcie(nic).write(here, WORD);
        self.nics[nic].words.insert(va, there);
        (here, there)
    }

    /// Data that a core on a NIC's card asked for come over PCIe, the first line of them not before `there`: when that and
    /// the last byte are there.
    pub fn carried(&mut self, nic: usize, way: Way, there: Ps, bytes: u64) -> (Ps, Ps) {
        let pcie = self.pcie(nic);
        let line = pcie.line();
        pcie.carry(way, there - line, bytes)
    }

    /// A DMA write of a packet's payload: when a core can see all of it.
    pub fn store(&mut self, nic: usize, at: Ps, bytes: usize) -> Ps {
        self.pcie(nic).write(at, bytes as u64).1
    }

    /// A DMA read of so many bytes of commands and payload: when all are there.
    pub fn fetch(&mut self, nic: usize, at: Ps, bytes: u64) -> Ps {
        self.pcie(nic).read(at, bytes).1
    }

    // The data path.

    /// When a NIC should next build packets, if it has enough on its way already.
    pub fn transmit_later(&self, nic: usize, now: Ps) -> Option<Ps> {
        let ahead = self.spec.send_ahead();
        let end = self.nics[nic].busy;
        (end > now + ahead).then(|| end - ahead)
    }

    /// A NIC sends a packet of `len` bytes, which are there at `here`: when its first and its last bit are at the other
    /// end of the cable.
    pub fn send_when(&mut self, nic: usize, flow: Flow, here: Ps, len: usize) -> (Ps, Ps) {
        let nic = &mut self.nics[nic];
        let sent = nic.sent.entry(flow).or_default();
        *sent = here.max(*sent);
        let (out, _) = nic.path.send(*sent, len as u64);
        nic.wire.send(out, len as u64)
    }

    /// A NIC sends a packet of `len` bytes, of which it must fetch some first, which may be of the data that a peer reads:
    /// when its first and its last bit are at the other end of the cable.
    pub fn send(&mut self, nic: usize, flow: Flow, now: Ps, len: usize, (fetched, data): (usize, bool)) -> (Ps, Ps) {
        let there = if data { self.far(now, fetched as u64) } else { now };
        let here = if fetched > 0 { self.fetch(nic, there, fetched as u64) } else { now };
        let sent = self.send_when(nic, flow, here, len);
        self.nics[nic].busy = sent.1 - Ps(self.spec.nic.ethernet.latency);
        sent
    }

    /// Bytes that a packet of `len` bytes takes on a cable.
    pub fn on_wire(&self, nic: usize, len: usize) -> u64 {
        self.nics[nic].wire.on_wire(len as u64)
    }

    /// The last bit of a packet is here: when the engine has it. The pipeline works on words as they come, so what is
    /// left then is its depth and, where it holds packets until they are whole, another passage of all words.
    pub fn receive(&mut self, nic: usize, now: Ps, len: usize, qp: u32) -> Ps {
        let nic = &mut self.nics[nic];
        let taken = nic.path.receive(now, len as u64).0;
        nic.known((qp, Going::In), taken, &mut self.slots)
    }

    // What it came to.

    /// Bytes sent on the wires since usage was last forgotten.
    pub fn wire_bytes(&self) -> u64 {
        self.nics.iter().map(|nic| nic.wire.bytes()).sum()
    }

    /// How busy each shared thing was over `span`.
    pub fn usage(&self, span: Ps, all: &mut Vec<Usage>) {
        all.extend(self.cores.usage(span));
        match &self.threads {
            Some(threads) => {
                all.push(threads.caches.usage(span));
                all.push(threads.shared.usage("what threads share", span));
            }
            None => all.push(self.memory.usage("memory", span)),
        }
        all.extend(self.far.iter().flat_map(|far| far.usage(span)));
        for slot in &self.slots {
            all.extend(slot.usage(span));
        }
        for nic in &self.nics {
            all.extend(nic.path.usage(span));
            all.push(nic.wire.usage(span));
        }
    }

    /// Forgets how busy everything was.
    pub fn reset(&mut self) {
        self.cores.reset();
        self.cache.reset();
        self.memory.reset();
        self.far.iter_mut().for_each(SocketLink::reset);
        self.slots.iter_mut().for_each(Pcie::reset);
        if let Some(threads) = &mut self.threads {
            threads.caches.reset();
            threads.shared.reset();
        }
        for nic in &mut self.nics {
            nic.path.reset();
            nic.wire.reset();
        }
    }
}

impl NicPath {
    /// The NIC looks up what it keeps of a message's queue pair and region: when it has that.
    fn known(&mut self, message: (u32, Going), at: Ps, slots: &mut [Pcie]) -> Ps {
        match &mut self.state {
            Some(state) => state.look_up(message, at, &mut slots[self.slot]),
            None => at,
        }
    }
}

/// Whether a line is in the part of the state that fits in a cache: lines are spread over it evenly.
pub(super) fn is_resident(line: u64, state: u64, cache: u64) -> bool {
    let place = (line.wrapping_mul(GOLDEN) >> 11) as f64 / (1u64 << 53) as f64;
    place * (state as f64) < cache as f64
}

/// A memory device, and a machine's link to it.
type Reached = (Rc<RefCell<MemoryDevice>>, usize);

/// The memory device that has an address, if the machine reaches it.
#[inline]
fn reached(devices: &[Option<Reached>], va: u64) -> Option<&Reached> {
    devices.get(device_of(va)?)?.as_ref()
}
