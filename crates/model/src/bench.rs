//! What the event core does a second, for `remora bench model`. The caller brings the clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::component::ethernet::{Ethernet, EthernetParams};
use crate::draw::{exponential, mixed};
use crate::event::WheelQueue;
use crate::resource::Order;
use crate::time::Ps;

/// The hold model of event queues: a number of events wait; each step takes the next and adds one that lies an
/// exponentially distributed time ahead. (Jones, Communications of the ACM 29(4), 1986.)
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// Events waiting.
    pub pending: usize,
    /// Steps that are measured, after twice as many as events wait.
    pub steps: u64,
    /// Seed of the times.
    pub seed: u64,
}

/// Mean time ahead: a microsecond.
const MEAN_PS: f64 = 1e6;
/// Times drawn in advance, so that drawing is not measured.
const TIMES: usize = 1 << 16;

impl Hold {
    /// Steps a second of the event queue, by a clock in nanoseconds.
    pub fn wheel(&self, clock: &mut dyn FnMut() -> u64) -> f64 {
        let (times, mut queue) = (self.times(), WheelQueue::with_capacity(self.pending + 1));
        for (number, ahead) in (0..self.pending as u64).zip(times.iter().cycle()) {
            queue.push(Ps(*ahead), [number; 2]);
        }
        let mut step = |ahead: u64| {
            if let Some((time, event)) = queue.pop() {
                queue.push(time + Ps(ahead), event);
            }
        };
        self.time(&times, clock, &mut step)
    }

    /// Steps a second of the standard library's binary heap, ordered by time and sequence.
    pub fn heap(&self, clock: &mut dyn FnMut() -> u64) -> f64 {
        let (times, mut heap) = (self.times(), BinaryHeap::with_capacity(self.pending + 1));
        for (number, ahead) in (0..self.pending as u64).zip(times.iter().cycle()) {
            heap.push(Reverse((*ahead, number, [number; 2])));
        }
        let mut sequence = self.pending as u64;
        let mut step = |ahead: u64| {
            if let Some(Reverse((time, _, event))) = heap.pop() {
                heap.push(Reverse((time + ahead, sequence, event)));
                sequence += 1;
            }
        };
        self.time(&times, clock, &mut step)
    }

    fn time(&self, times: &[u64], clock: &mut dyn FnMut() -> u64, step: &mut impl FnMut(u64)) -> f64 {
        let mut run = |steps: u64| (0..steps).zip(times.iter().cycle()).for_each(|(_, ahead)| step(*ahead));
        run(2 * self.pending as u64);
        let start = clock();
        run(self.steps);
        self.steps as f64 * 1e9 / (clock() - start).max(1) as f64
    }

    /// Exponentially distributed times in picoseconds.
    fn times(&self) -> Vec<u64> {
        let first = mixed(self.seed);
        (0..TIMES as u64).map(|n| exponential(first.wrapping_add(n), MEAN_PS) as u64).collect()
    }
}

/// Pairs of machines, each playing ping-pong over a link of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PingPong {
    /// Pairs.
    pub pairs: u32,
    /// Messages there and back that each pair exchanges.
    pub rounds: u32,
    /// Bytes of a message.
    pub bytes: u64,
    /// Bytes a second of a link, in each direction.
    pub bytes_per_s: f64,
    /// Latency of a link.
    pub latency: Ps,
}

/// A message arrives.
#[derive(Clone, Copy)]
struct Arrival {
    pair: u32,
    /// Messages of this pair before it.
    number: u32,
}

impl PingPong {
    /// Messages that are exchanged.
    pub fn messages(&self) -> u64 {
        2 * u64::from(self.pairs) * u64::from(self.rounds)
    }

    /// Exchanges all messages: messages a second by a clock in nanoseconds, and the modelled time at the end.
    pub fn run(&self, clock: &mut dyn FnMut() -> u64) -> (f64, Ps) {
        // The whole message is on the wire: 84 bytes, the least of a frame, are fewer than its own.
        let params = EthernetParams {
            rate_bytes_per_s: self.bytes_per_s,
            latency_ps: self.latency.0,
            overhead_bytes: 0,
            order: Order::InTurn,
        };
        let mut links = vec![[Ethernet::new(&params), Ethernet::new(&params)]; self.pairs as usize];
        let mut queue = WheelQueue::with_capacity(links.len());
        let start = clock();
        let mut send = |queue: &mut WheelQueue<Arrival>, pair: u32, number: u32| {
            let way = &mut links[pair as usize][number as usize % 2];
            queue.push(way.send(queue.now(), self.bytes).1, Arrival { pair, number });
        };
        if self.rounds > 0 {
            (0..self.pairs).for_each(|pair| send(&mut queue, pair, 0));
        }
        while let Some((_, Arrival { pair, number })) = queue.pop() {
            if number + 1 < 2 * self.rounds {
                send(&mut queue, pair, number + 1);
            }
        }
        (self.messages() as f64 * 1e9 / (clock() - start).max(1) as f64, queue.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that ticks a microsecond each time.
    fn ticks() -> impl FnMut() -> u64 {
        let mut now = 0;
        move || {
            now += 1000;
            now
        }
    }

    #[test]
    fn both_queues_hold_as_many_events_as_asked() {
        let hold = Hold { pending: 100, steps: 1000, seed: 1 };
        // 1000 steps between two ticks of the clock.
        assert_eq!((hold.wheel(&mut ticks()), hold.heap(&mut ticks())), (1e9, 1e9));
        let times = hold.times();
        let mean = times.iter().sum::<u64>() as f64 / times.len() as f64;
        assert!((mean / MEAN_PS - 1.0).abs() < 0.02, "{mean}");
    }

    #[test]
    fn ping_pong_ends_when_it_should() {
        // 1024 B at 8 GB/s: 128 ns, and 150 ns of latency; 2 x 10 of them one after the other.
        let play = PingPong { pairs: 3, rounds: 10, bytes: 1024, bytes_per_s: 8e9, latency: Ps::from_ns(150) };
        assert_eq!((play.messages(), play.run(&mut ticks()).1), (60, Ps::from_ns(20 * 278)));
    }
}
