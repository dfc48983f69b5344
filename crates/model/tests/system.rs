//! Components together: clients read a node's memory over a switch, and the answer is known by hand.
//!
//! What must hold whatever a paper says: the same seed gives the same trace; a slower part moves latency by exactly what
//! it adds, and throughput only if it is what binds.

use remora_model::component::ethernet::{Ethernet, EthernetParams};
use remora_model::component::nic::{DataPath, DataPathParams};
use remora_model::component::pcie::{Pcie, PcieParams};
use remora_model::component::switch::{Forward, Port, SwitchParams, WhenFull};
use remora_model::event::{EventTrace, WheelQueue};
use remora_model::platform::CommandPath;
use remora_model::resource::{Order, Usage, binding};
use remora_model::time::Ps;

/// Bytes of a read beyond the wire's overhead: RETH. Of its response: AETH and 64 B of data.
const REQUEST: u64 = 16;
const RESPONSE: u64 = 4 + 64;
/// Bytes of BTH and ICRC, which the NIC's pipelines see too.
const HEADERS: u64 = 16;

#[derive(Clone)]
struct Params {
    link: EthernetParams,
    switch_ps: u64,
    nic: DataPathParams,
    pcie: PcieParams,
}

/// StRoM's NIC at 10 Gb/s (0.8 ns a byte, 6.4 ns a cycle) behind a switch.
fn strom() -> Params {
    Params {
        link: EthernetParams {
            rate_bytes_per_s: 1.25e9,
            latency_ps: 100_000,
            overhead_bytes: 82,
            order: Order::InTurn,
        },
        switch_ps: 300_000,
        nic: DataPathParams {
            command: CommandPath::Store,
            wqe_bytes: 32,
            inline_bytes: 0,
            message_rate_hz: 31.25e6,
            width_bytes: 8,
            clock_hz: 156.25e6,
            packet_cycles: 5.0,
            tx_cycles: 125.0,
            rx_cycles: 125.0,
            store_and_forward: 1,
            tlb_entries: 1024,
            page_bytes: 2 << 20,
            tlb_miss_ps: 1_500_000,
            order: Order::InTurn,
        },
        pcie: PcieParams {
            read_ps: 1_500_000,
            write_ps: 300_000,
            mmio_ps: 250_000,
            bandwidth_bytes_per_s: 8e9,
            tlp_overhead_bytes: 24,
            max_payload_bytes: 256,
            max_request_bytes: 512,
            tags: 64,
            order: Order::InTurn,
        },
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A client sends its next read.
    Issue(u16),
    /// The first bit of a read reaches the switch.
    Request(u16),
    /// A client has its data.
    Done(u16),
}

struct System {
    queue: WheelQueue<Event>,
    uplinks: Vec<Ethernet>,
    port: Port,
    nic: DataPath,
    pcie: Pcie,
    downlink: Ethernet,
    issued: Vec<Ps>,
    latencies: Vec<Ps>,
    /// Clients think for up to so many picoseconds.
    think: u64,
    random: u64,
}

impl System {
    fn new(params: &Params, clients: u16, think: u64, seed: u64) -> Self {
        let mut queue = WheelQueue::new();
        (0..clients).for_each(|client| queue.push(Ps::ZERO, Event::Issue(client)));
        Self {
            queue,
            uplinks: vec![Ethernet::new(&params.link); clients.into()],
            port: Port::new(&SwitchParams {
                latency_ps: params.switch_ps,
                rate_bytes_per_s: params.link.rate_bytes_per_s,
                buffer_bytes: 256 << 10,
                when_full: WhenFull::Pause,
                order: Order::InTurn,
            }),
            nic: DataPath::new(&params.nic),
            pcie: Pcie::new(&params.pcie),
            downlink: Ethernet::new(&params.link),
            issued: vec![Ps::ZERO; clients.into()],
            latencies: Vec::new(),
            think,
            random: seed,
        }
    }

    /// Runs until so many reads are done.
    fn run(&mut self, reads: usize, trace: &mut impl EventTrace<Event>) {
        while self.latencies.len() < reads {
            let Some((now, event)) = self.queue.pop_traced(trace) else { return };
            match event {
                Event::Issue(client) => {
                    self.issued[usize::from(client)] = now;
                    let (first, _) = self.uplinks[usize::from(client)].send(now, REQUEST);
                    self.queue.push(first, Event::Request(client));
                }
                Event::Request(client) => {
                    let done = self.serve(now);
                    self.queue.push(done, Event::Done(client));
                }
                Event::Done(client) => {
                    self.latencies.push(now - self.issued[usize::from(client)]);
                    self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let think = Ps(((self.random >> 33) * self.think) >> 31);
                    self.queue.push(now + think, Event::Issue(client));
                }
            }
        }
    }

    /// A request's whole way from the switch: when its response has arrived.
    fn serve(&mut self, at: Ps) -> Ps {
        let Forward::Sent(_, arrived) = self.port.forward((at, at), REQUEST + 82) else { return Ps::MAX };
        let (parsed, _) = self.nic.receive(arrived, REQUEST + HEADERS);
        let (_, data) = self.pcie.read(parsed, 64);
        let (out, _) = self.nic.send(data, RESPONSE + HEADERS);
        self.downlink.send(out, RESPONSE).1
    }

    fn usages(&self) -> Vec<Usage> {
        let span = self.queue.now();
        let mut all = vec![self.downlink.usage(span), self.port.usage(span)];
        all.extend(self.nic.usage(span));
        all.extend(self.pcie.usage(span));
        all
    }
}

/// The latency of one read with nothing else under way.
fn alone(params: &Params) -> Ps {
    let mut system = System::new(params, 1, 0, 0);
    system.run(1, &mut ());
    system.latencies[0]
}

/// Picoseconds from one read's end to the next with 64 clients, and what binds.
fn loaded(params: &Params) -> (f64, &'static str) {
    let mut system = System::new(params, 64, 0, 0);
    system.run(20_000, &mut ());
    let binding = binding(&system.usages()).map_or("", |usage| usage.name);
    (system.queue.now().0 as f64 / 20_000.0, binding)
}

#[test]
fn one_read_takes_the_sum_of_its_way() {
    // Link 100 ns; switch 300 ns and 98 B, 78.4 ns; receive 125 + 4 cycles, 825.6 ns; PCIe 1500 ns; send 125 + 11 cycles,
    // 870.4 ns; 150 B on the link, 120 ns, and its 100 ns.
    let sum = 100_000 + 300_000 + 78_400 + 825_600 + 1_500_000 + 870_400 + 120_000 + 100_000;
    assert_eq!(alone(&strom()), Ps(sum));
}

#[test]
fn a_slower_part_adds_what_it_takes_longer() {
    let (base, before) = (strom(), alone(&strom()));
    let added = |change: &dyn Fn(&mut Params)| {
        let mut slower = base.clone();
        change(&mut slower);
        alone(&slower) - before
    };
    assert_eq!(added(&|p| p.pcie.read_ps *= 2), Ps(1_500_000));
    assert_eq!(added(&|p| p.nic.clock_hz /= 2.0), Ps(825_600 + 870_400));
    assert_eq!(added(&|p| p.link.rate_bytes_per_s /= 2.0), Ps(78_400 + 120_000));
    assert_eq!(added(&|p| p.switch_ps *= 2), Ps(300_000));
    // Not at all: 64 B need neither more than one tag nor more than one TLP.
    assert_eq!(added(&|p| (p.pcie.tags, p.pcie.max_payload_bytes) = (1, 64)), Ps::ZERO);
}

#[test]
fn throughput_moves_with_what_binds_and_with_nothing_else() {
    // 64 reads under way; the response's 150 B on the link take longest: 120 ns each.
    let near = |(each, binding): (f64, &'static str), expect: f64, name: &str| {
        assert!((each / expect - 1.0).abs() < 0.01 && binding == name, "{each} ps each, bound by {binding}");
    };
    let mut params = strom();
    near(loaded(&params), 120_000.0, "wire");
    params.pcie.read_ps *= 2;
    near(loaded(&params), 120_000.0, "wire");
    params.link.rate_bytes_per_s /= 2.0;
    near(loaded(&params), 240_000.0, "wire");
    // At twice the link, the pipeline that sends binds at half the clock: 11 words of 12.8 ns.
    params.link.rate_bytes_per_s *= 4.0;
    params.nic.clock_hz /= 2.0;
    near(loaded(&params), 140_800.0, "NIC transmit");
    // With 4 tags and 3 us of PCIe: 750 ns each.
    params.pcie.tags = 4;
    near(loaded(&params), 750_000.0, "PCIe tags");
}

#[test]
fn same_seed_same_trace() {
    let trace = |seed| {
        let mut trace = Vec::new();
        System::new(&strom(), 16, 3_000_000, seed).run(5_000, &mut trace);
        trace
    };
    assert!(trace(7).len() >= 15_000);
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}
