//! Several connections through one switch port with a queue that ends, in virtual time: how much of the port they use, how
//! evenly, and what the switch has to drop.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::common::{A, B, Setup, Side};
use remora_nic::*;

/// A port of 1 Gbit/s behind access links of 10 Gbit/s, each 10 us long.
const PORT: u64 = 8000;
const ACCESS: u64 = 800;
const LATENCY: u64 = 10_000;

/// Bytes of a message.
const LEN: usize = 65536;

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Write,
    Read,
}

/// The switch port: bytes of queue, and from how many on packets are marked.
#[derive(Clone, Copy, Debug)]
struct Port {
    room: u64,
    mark: Option<u64>,
}

/// One connection: A posts messages all the time.
struct Flow {
    sides: [Side; 2],
    /// Until when its access links are busy.
    busy: [u64; 2],
    posted: u64,
    done: u64,
}

/// When, a number, whose, from which side, whether through the port already, the packet.
type Flight = (u64, u64, usize, usize, bool, Vec<u8>);

struct Net {
    flows: Vec<Flow>,
    now: u64,
    port: Port,
    /// The side whose packets go through the port.
    from: usize,
    port_busy: u64,
    flights: BinaryHeap<Reverse<Flight>>,
    sequence: u64,
    dropped: u64,
    sent: u64,
    deepest: u64,
}

impl Net {
    fn new(flows: usize, what: What, port: Port) -> Self {
        let setup = Setup { mtu: 1024, ..Setup::default() };
        let setup = Setup { rts: RtsAttr { timeout: 14, ..setup.rts }, ..setup };
        let flows = (0..flows).map(|at| {
            let mut sides =
                [(A, 1), (B, 2)].map(|(ip, side)| Side::with(ip, &NicConfig::new([at as u8 * 2 + side; 32]), 1 << 20));
            let qps = [sides[0].qp, sides[1].qp];
            sides[0].bring_up(B, qps[1], (setup.psn_a, setup.psn_b), setup);
            sides[1].bring_up(A, qps[0], (setup.psn_b, setup.psn_a), setup);
            Flow { sides, busy: [0; 2], posted: 0, done: 0 }
        });
        let from = usize::from(what == What::Read);
        Self {
            flows: flows.collect(),
            now: 0,
            port,
            from,
            port_busy: 0,
            flights: BinaryHeap::new(),
            sequence: 0,
            dropped: 0,
            sent: 0,
            deepest: 0,
        }
    }

    fn fly(&mut self, at: u64, flow: usize, from: usize, through: bool, packet: Vec<u8>) {
        self.sequence += 1;
        self.flights.push(Reverse((at, self.sequence, flow, from, through, packet)));
    }

    /// A packet leaves its engine, by the access link.
    fn leave(&mut self, flow: usize, from: usize, packet: Vec<u8>) {
        let busy = &mut self.flows[flow].busy[from];
        *busy = self.now.max(*busy) + packet.len() as u64 * ACCESS / 1000;
        let at = *busy + LATENCY;
        self.fly(at, flow, from, from != self.from, packet);
    }

    /// A packet comes to the switch port.
    fn queue(&mut self, flow: usize, from: usize, mut packet: Vec<u8>) {
        let waiting = self.port_busy.saturating_sub(self.now) * 1000 / PORT;
        self.sent += 1;
        self.deepest = self.deepest.max(waiting);
        if waiting + packet.len() as u64 > self.port.room {
            self.dropped += 1;
            return;
        }
        if self.port.mark.is_some_and(|mark| waiting > mark) {
            // What a link does with a packet whose IP header says "congestion experienced".
            packet[4] |= 0x80;
        }
        self.port_busy = self.now.max(self.port_busy) + packet.len() as u64 * PORT / 1000;
        self.fly(self.port_busy + LATENCY, flow, from, true, packet);
    }

    fn transmit(&mut self) {
        for flow in 0..self.flows.len() {
            for from in 0..2 {
                loop {
                    let now = self.now;
                    let side = &mut self.flows[flow].sides[from];
                    if !side.nic.poll_transmit(now, &mut side.batch) {
                        break;
                    }
                    let packets: Vec<Vec<u8>> = side.batch.packets().map(<[u8]>::to_vec).collect();
                    packets.into_iter().for_each(|packet| self.leave(flow, from, packet));
                }
            }
        }
    }

    fn step(&mut self) {
        self.transmit();
        let arrival = self.flights.peek().map(|Reverse((at, ..))| *at);
        let sides = self.flows.iter().flat_map(|flow| &flow.sides);
        let timer = sides.filter_map(|side| side.nic.poll_timeout()).min();
        self.now = self.now.max(arrival.into_iter().chain(timer).min().expect("somebody waits for something"));
        while let Some(Reverse((at, ..))) = self.flights.peek()
            && *at <= self.now
            && let Some(Reverse((_, _, flow, from, through, packet))) = self.flights.pop()
        {
            if !through {
                self.queue(flow, from, packet);
                continue;
            }
            let (src, dst) = if from == 0 { (A, B) } else { (B, A) };
            self.flows[flow].sides[1 - from].nic.handle_packet(self.now, 0, src, dst, &packet);
        }
        for flow in &mut self.flows {
            for side in &mut flow.sides {
                side.nic.handle_timeout(self.now);
            }
        }
    }

    /// Posts messages of 64 KB, eight at a time and connection, until `end`. The connections whose turn has not come at
    /// `starts` wait.
    fn run(&mut self, what: What, starts: &[u64], end: u64) {
        while self.now < end {
            for (flow, &start) in self.flows.iter_mut().zip(starts) {
                let [a, b] = &mut flow.sides;
                for wc in a.take_done() {
                    assert_eq!(wc.status, WcStatus::Success);
                    flow.done += 1;
                }
                while start <= self.now && flow.posted < flow.done + 8 {
                    flow.posted += 1;
                    let (sge, va, rkey) = ([a.sge(0, LEN)], b.va(0), b.key());
                    let op = match what {
                        What::Write => SendOp::Write { va, rkey },
                        What::Read => SendOp::Read { va, rkey },
                    };
                    a.send(&SendWr::new(flow.posted, op, Data::List(&sge)));
                }
            }
            self.step();
        }
    }
}

/// What became of 0.3 seconds, after 0.2 in which all started.
struct Outcome {
    /// Of the port's bits, those that messages had.
    used: f64,
    /// The messages of the fewest and of the most, over those of the average.
    least: f64,
    most: f64,
    /// Of the packets that came to the port, those dropped.
    dropped: f64,
    /// The most bytes that waited.
    deepest: u64,
}

fn outcome(what: What, flows: usize, port: Port) -> Outcome {
    const TIME: u64 = 300_000_000;
    let mut net = Net::new(flows, what, port);
    let starts: Vec<u64> = (0..flows as u64).map(|at| at * 1_000_000).collect();
    net.run(what, &starts, 200_000_000);
    let before: Vec<u64> = net.flows.iter().map(|flow| flow.done).collect();
    (net.dropped, net.sent, net.deepest) = (0, 0, 0);
    net.run(what, &starts, 200_000_000 + TIME);
    let done: Vec<f64> = net.flows.iter().zip(&before).map(|(flow, before)| (flow.done - before) as f64).collect();
    let sum: f64 = done.iter().sum();
    let average = sum / flows as f64;
    let outcome = Outcome {
        used: sum * LEN as f64 * PORT as f64 / 1000.0 / TIME as f64,
        least: done.iter().copied().fold(f64::MAX, f64::min) / average,
        most: done.iter().copied().fold(0.0, f64::max) / average,
        dropped: net.dropped as f64 / net.sent as f64,
        deepest: net.deepest,
    };
    let Outcome { used, least, most, dropped, deepest } = outcome;
    println!(
        "{flows:2} connections, {what:?}, {port:?}: {used:.3} of the port, {least:.2} to {most:.2} of the average each, \
         {dropped:.3} dropped, {deepest} B waited at most"
    );
    outcome
}

#[test]
fn a_switch_that_marks_has_a_short_queue_and_shares_its_port_evenly() {
    for what in [What::Write, What::Read] {
        for flows in [1, 2, 16] {
            let outcome = outcome(what, flows, Port { room: 256 << 10, mark: Some(32 << 10) });
            assert!(outcome.used > 0.95 && outcome.least > 0.9 && outcome.most < 1.1);
            assert!(outcome.dropped == 0.0 && outcome.deepest < 64 << 10);
        }
    }
}

#[test]
fn sixteen_to_one_do_not_collapse_where_nothing_is_marked() {
    for what in [What::Write, What::Read] {
        for room in [256 << 10, 64 << 10] {
            for flows in [1, 2, 16] {
                let outcome = outcome(what, flows, Port { room, mark: None });
                let (least, most) = if flows > 2 { (0.5, 1.6) } else { (0.9, 1.1) };
                assert!(outcome.used > 0.8 && outcome.least > least && outcome.most < most);
            }
        }
    }
}

#[test]
fn a_rate_goes_when_congestion_does() {
    let mut net = Net::new(2, What::Write, Port { room: 256 << 10, mark: Some(32 << 10) });
    net.run(What::Write, &[0, 0], 50_000_000);
    assert!(net.flows[0].sides[0].nic.counters().cnps > 0);
    // The other one ends, and the port is one connection's again.
    let before = net.flows[0].done;
    net.run(What::Write, &[0, u64::MAX], 150_000_000);
    let used = (net.flows[0].done - before) as f64 * LEN as f64 * PORT as f64 / 1000.0 / 100_000_000.0;
    assert!(used > 0.85, "{used:.3} of the port");
}
