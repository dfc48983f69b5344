//! Two engines in virtual time, joined by a network that loses, doubles, reorders, delays and damages packets.
#![allow(dead_code)]

pub mod bare;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remora_memory::{Access, Buffer, Pd, Region, Registry};
use remora_nic::*;
use remora_wire::Psn;
use remora_wire::icrc::{IcrcFlow, IcrcVerdict};

pub const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// A and B over IPv6.
pub const V6: [IpAddr; 2] =
    [IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2))];

/// What the network does to packets: chances in 1000, and delays in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: u32,
    pub duplicate: u32,
    pub damage: u32,
    pub reorder: u32,
    pub latency: u64,
    pub jitter: u64,
    /// How long the wire takes for a byte, picoseconds; its queue has no end.
    pub per_byte: u64,
}

/// A network that loses nothing, a microsecond long.
pub const CLEAN: Faults =
    Faults { loss: 0, duplicate: 0, damage: 0, reorder: 0, latency: 1000, jitter: 0, per_byte: 0 };

/// One end: an engine with a region, queues and a queue pair.
pub struct Side {
    pub ip: IpAddr,
    pub nic: Nic,
    pub pd: Pd,
    pub buffer: Buffer,
    pub region: Arc<Region>,
    pub cq: CqId,
    pub qp: Qpn,
    pub done: Vec<WorkCompletion>,
    pub events: Vec<Event>,
    pub batch: TxBatch,
}

pub const REGION: usize = 1 << 20;

impl Side {
    pub fn new(ip: IpAddr, seed: u8) -> Self {
        Self::sized(ip, seed, REGION)
    }

    /// With `len` bytes of memory.
    pub fn sized(ip: IpAddr, seed: u8, len: usize) -> Self {
        Self::with(ip, &NicConfig::new([seed; 32]), len)
    }

    /// An engine with this configuration and `len` bytes of memory.
    pub fn with(ip: IpAddr, config: &NicConfig, len: usize) -> Self {
        let registry = Arc::new(Registry::new(config.seed));
        let mut nic = Nic::new(config, registry.clone());
        let pd = registry.alloc_pd();
        let buffer = Buffer::lendable(len).expect("memory");
        let access = Access::LOCAL_WRITE | ALL_REMOTE;
        let region = registry.register(pd, &buffer, 0, len, None, access).expect("region");
        let cq = nic.create_cq(4096).expect("completion queue");
        let qp = nic.create_qp(QpInit { max_send_wr: 256, max_recv_wr: 512, ..QpInit::new(QpType::Rc, pd, cq, cq) });
        let qp = qp.expect("queue pair");
        Self { ip, nic, pd, buffer, region, cq, qp, done: Vec::new(), events: Vec::new(), batch: TxBatch::new() }
    }

    /// Replaces the queue pair.
    pub fn renew(&mut self, init: QpInit) {
        self.nic.destroy_qp(self.qp).expect("live");
        self.qp = self.nic.create_qp(init).expect("queue pair");
    }

    /// An element of the local region.
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { va: self.region.va() + offset as u64, len: len as u32, lkey: self.region.key() }
    }

    pub fn va(&self, offset: usize) -> u64 {
        self.region.va() + offset as u64
    }

    pub fn key(&self) -> u32 {
        self.region.key()
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.buffer.read(offset, &mut out).expect("in bounds");
        out
    }

    pub fn send(&mut self, wr: &SendWr<'_>) {
        self.nic.post_send(self.qp, wr).expect("post_send");
    }

    pub fn recv(&mut self, wr_id: u64, offset: usize, len: usize) {
        let sge = self.sge(offset, len);
        self.nic.post_recv(self.qp, wr_id, &[sge]).expect("post_recv");
    }

    /// A region of its own within the side's memory.
    pub fn register(&self, offset: usize, len: usize, access: Access) -> Arc<Region> {
        self.nic.registry().register(self.pd, &self.buffer, offset, len, None, access).expect("region")
    }

    /// Takes the queue pair from RESET to RTS; `psns` are the first one to send and the first one to receive.
    pub fn bring_up(&mut self, remote: IpAddr, dest: Qpn, psns: (u32, u32), setup: Setup) {
        self.nic.to_init(self.qp, ALL_REMOTE, 0).expect("INIT");
        let rtr = RtrAttr {
            route: Route { local: self.ip, remote, link: 0 },
            dest_qp: dest.0,
            rq_psn: Psn::new(psns.1),
            path_mtu: setup.mtu,
            max_dest_rd_atomic: setup.rd_atomic,
            min_rnr_timer: 1,
        };
        self.nic.to_rtr(self.qp, rtr).expect("RTR");
        let rts = RtsAttr { sq_psn: Psn::new(psns.0), max_rd_atomic: setup.rd_atomic, ..setup.rts };
        self.nic.to_rts(self.qp, rts).expect("RTS");
    }

    /// Completions since the last call.
    pub fn take_done(&mut self) -> Vec<WorkCompletion> {
        self.collect();
        std::mem::take(&mut self.done)
    }

    /// Events since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.collect();
        std::mem::take(&mut self.events)
    }

    pub fn state(&self) -> QpState {
        self.nic.qp_state(self.qp).expect("a live queue pair")
    }

    pub fn collect(&mut self) {
        while let Some(wc) = self.nic.poll_cq(self.cq) {
            self.done.push(wc);
        }
        while let Some(event) = self.nic.poll_event() {
            self.events.push(event);
        }
    }

    pub fn statuses(&self) -> Vec<(u64, WcStatus)> {
        self.done.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }
}

type Flight = Reverse<(u64, u64, usize, Vec<u8>)>;

/// Two sides and what is under way between them.
pub struct Pair {
    pub a: Side,
    pub b: Side,
    pub now: u64,
    pub faults: Faults,
    /// Packets from A, or from B, vanish.
    pub cut: [bool; 2],
    /// Until when the wire is busy with packets of A, or of B.
    busy: [u64; 2],
    pub rng: ChaCha8Rng,
    flights: BinaryHeap<Flight>,
    sequence: u64,
    /// Every packet that was sent: who, when, what.
    pub log: Vec<(u64, usize, Vec<u8>)>,
    pub logging: bool,
}

/// How the two queue pairs are brought up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub kind: QpType,
    pub mtu: u32,
    pub psn_a: u32,
    pub psn_b: u32,
    pub rts: RtsAttr,
    pub rd_atomic: u8,
}

impl Default for Setup {
    fn default() -> Self {
        let rts = RtsAttr { timeout: 8, ..RtsAttr::default() };
        Self { kind: QpType::Rc, mtu: 1024, psn_a: 100, psn_b: 0xff_fff0, rts, rd_atomic: 16 }
    }
}

impl Pair {
    pub fn unconnected(seed: u64, faults: Faults) -> Self {
        Self::unconnected_at([A, B], seed, faults)
    }

    pub fn unconnected_at([a, b]: [IpAddr; 2], seed: u64, faults: Faults) -> Self {
        Self {
            a: Side::new(a, 1),
            b: Side::new(b, 2),
            now: 0,
            faults,
            cut: [false; 2],
            busy: [0; 2],
            rng: ChaCha8Rng::seed_from_u64(seed),
            flights: BinaryHeap::new(),
            sequence: 0,
            log: Vec::new(),
            logging: false,
        }
    }

    /// With `len` bytes of memory at each side.
    pub fn sized(len: usize, seed: u64, faults: Faults, setup: Setup) -> Self {
        let mut pair = Self::unconnected(seed, faults);
        (pair.a, pair.b) = (Side::sized(A, 1, len), Side::sized(B, 2, len));
        pair.connect(setup);
        pair
    }

    /// Both sides send again what was lost, or one of them knows only to go back N, or neither knows better.
    pub fn recovering(selective: [bool; 2], len: usize, seed: u64, faults: Faults, setup: Setup) -> Self {
        let mut pair = Self::unconnected(seed, faults);
        let config = |at: usize| NicConfig { selective_repeat: selective[at], ..NicConfig::new([at as u8 + 1; 32]) };
        (pair.a, pair.b) = (Side::with(A, &config(0), len), Side::with(B, &config(1), len));
        pair.connect(setup);
        pair
    }

    pub fn new(seed: u64, faults: Faults, setup: Setup) -> Self {
        let mut pair = Self::unconnected(seed, faults);
        pair.connect(setup);
        pair
    }

    pub fn connect(&mut self, setup: Setup) {
        for side in [&mut self.a, &mut self.b] {
            let init = side.nic.qp_init(side.qp).expect("live");
            if init.kind != setup.kind {
                side.renew(QpInit { kind: setup.kind, ..init });
            }
        }
        let (qa, qb, a, b) = (self.a.qp, self.b.qp, self.a.ip, self.b.ip);
        let ends = [(&mut self.a, b, qb, setup.psn_a, setup.psn_b), (&mut self.b, a, qa, setup.psn_b, setup.psn_a)];
        for (side, remote, dest, sq, rq) in ends {
            side.bring_up(remote, dest, (sq, rq), setup);
        }
    }

    fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.rng.next_u32() % 1000 < per_mille
    }

    /// Puts a packet of side `from` on the wire.
    pub fn inject(&mut self, from: usize, packet: Vec<u8>) {
        if self.logging {
            self.log.push((self.now, from, packet.clone()));
        }
        let sent = self.now.max(self.busy[from]) + packet.len() as u64 * self.faults.per_byte / 1000;
        self.busy[from] = sent;
        if self.cut[from] || self.chance(self.faults.loss) {
            return;
        }
        let copies = if self.chance(self.faults.duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let mut packet = packet.clone();
            if self.chance(self.faults.damage) {
                let bit = self.rng.next_u32() as usize % (packet.len() * 8);
                packet[bit / 8] ^= 1 << (bit % 8);
            }
            let mut delay = self.faults.latency;
            if self.faults.jitter > 0 {
                delay += u64::from(self.rng.next_u32()) % self.faults.jitter;
            }
            if self.chance(self.faults.reorder) {
                delay += 10 * self.faults.latency.max(1000);
            }
            self.sequence += 1;
            self.flights.push(Reverse((sent + delay, self.sequence, from, packet)));
        }
    }

    /// Sends everything that waits on both sides.
    pub fn transmit(&mut self) {
        for from in 0..2 {
            let flow = self.flow(from);
            loop {
                let side = if from == 0 { &mut self.a } else { &mut self.b };
                if !side.nic.poll_transmit(self.now, &mut side.batch) {
                    break;
                }
                let mut packets: Vec<Vec<u8>> = side.batch.packets().map(<[u8]>::to_vec).collect();
                for packet in &mut packets {
                    flow.fill(0, packet);
                }
                packets.into_iter().for_each(|p| self.inject(from, p));
            }
        }
    }

    fn deliver(&mut self, from: usize, packet: &[u8]) {
        // A link drops what the ICRC refutes.
        if self.flow(from).verify(0, packet) != IcrcVerdict::Good {
            return;
        }
        let (src, dst) = self.ends(from);
        let side = if from == 0 { &mut self.b } else { &mut self.a };
        side.nic.handle_packet(self.now, 0, src, dst, packet);
    }

    /// One step: send, then go to the next arrival or timer. False if nothing is left to happen.
    pub fn step(&mut self) -> bool {
        self.transmit();
        self.a.collect();
        self.b.collect();
        let arrival = self.flights.peek().map(|Reverse((t, ..))| *t);
        let timer = [self.a.nic.poll_timeout(), self.b.nic.poll_timeout()].into_iter().flatten().min();
        let Some(next) = arrival.into_iter().chain(timer).min() else { return false };
        self.now = self.now.max(next);
        while let Some(Reverse((t, ..))) = self.flights.peek() {
            if *t > self.now {
                break;
            }
            let Some(Reverse((_, _, from, packet))) = self.flights.pop() else { break };
            self.deliver(from, &packet);
        }
        self.a.nic.handle_timeout(self.now);
        self.b.nic.handle_timeout(self.now);
        self.a.collect();
        self.b.collect();
        true
    }

    /// Lets everything arrive that is sent, and timers rest.
    pub fn settle(&mut self) {
        loop {
            self.transmit();
            self.a.collect();
            self.b.collect();
            let Some(Reverse((at, _, from, packet))) = self.flights.pop() else { return };
            self.now = self.now.max(at);
            self.deliver(from, &packet);
        }
    }

    /// Runs until nothing is left to happen; at most `steps` steps.
    pub fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            if !self.step() {
                return;
            }
        }
        panic!("still busy after {steps} steps at {} ns", self.now);
    }

    /// Runs for `ns` of virtual time.
    pub fn run_for(&mut self, ns: u64) {
        let end = self.now + ns;
        while self.now < end && self.step() {}
    }

    /// Who a packet of this side is from, and for.
    fn ends(&self, from: usize) -> (IpAddr, IpAddr) {
        if from == 0 { (self.a.ip, self.b.ip) } else { (self.b.ip, self.a.ip) }
    }

    fn flow(&self, from: usize) -> IcrcFlow {
        match self.ends(from) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => IcrcFlow::v4(src, dst, 4791, 4791),
            (IpAddr::V6(src), IpAddr::V6(dst)) => IcrcFlow::v6(src, dst, 4791, 4791),
            _ => unreachable!("both are of one family"),
        }
    }
}
