//! A coherent link, UPI or CXL: a requester reads and writes single lines of memory behind it.

use crate::platform;
use crate::resource::{Channel, Order, Pipeline, Pool, Usage};
use crate::time::Ps;

/// What a coherent link and its requester are like.
#[derive(Clone, Debug, PartialEq)]
pub struct CoherentParams {
    /// A read of one line, alone: from its issue to its data.
    pub read_ps: u64,
    /// Bytes of data a second in each direction: what the protocol leaves of the link.
    pub bandwidth_bytes_per_s: f64,
    /// Between two requests that the requester issues.
    pub issue_ps: u64,
    /// Requests under way at most.
    pub in_flight: usize,
    /// How its queues are served.
    pub order: Order,
}

impl From<&platform::Accel> for CoherentParams {
    fn from(accel: &platform::Accel) -> Self {
        Self {
            read_ps: accel.read_latency,
            bandwidth_bytes_per_s: accel.bandwidth * accel.efficiency,
            issue_ps: Ps::cycles(accel.issue_cycles, accel.clock).0,
            in_flight: accel.in_flight as usize,
            order: accel.order,
        }
    }
}

/// Bytes of a line.
const LINE: u64 = 64;

/// A coherent link.
#[derive(Clone, Debug)]
pub struct Coherent {
    issue: Pipeline,
    in_flight: Pool,
    /// Data towards the requester, and away from it.
    inwards: Channel,
    outwards: Channel,
    /// The latency without the transfer of a line.
    rest: Ps,
}

impl Coherent {
    /// An idle link.
    pub fn new(params: &CoherentParams) -> Self {
        let link = Channel::new(params.bandwidth_bytes_per_s).ordered(params.order);
        Self {
            issue: Pipeline::new(Ps(params.issue_ps), Ps::ZERO).ordered(params.order),
            in_flight: Pool::new(params.in_flight).ordered(params.order),
            rest: Ps(params.read_ps) - link.time(LINE),
            inwards: link.clone(),
            outwards: link,
        }
    }

    /// Reads the lines of an access, one request each: when the first and the last are here.
    pub fn read(&mut self, at: Ps, address: u64, bytes: u64) -> (Ps, Ps) {
        let (mut first, mut last) = (None, at);
        for _ in 0..lines(address, bytes) {
            let begun = self.in_flight.acquire(at);
            let (issued, _) = self.issue.serve(begun, 1);
            let done = self.inwards.serve(issued, LINE).1 + self.rest;
            self.in_flight.release(begun, done);
            first = first.or(Some(done));
            last = last.max(done);
        }
        (first.unwrap_or(last), last)
    }

    /// Writes the lines of an access: when the link has taken the last.
    pub fn write(&mut self, at: Ps, address: u64, bytes: u64) -> Ps {
        let lines = lines(address, bytes);
        let (issued, last) = self.issue.serve(at, lines);
        last.max(self.outwards.serve(issued, lines * LINE).1)
    }

    /// How busy all parts were over `span`.
    pub fn usage(&self, span: Ps) -> [Usage; 4] {
        [
            self.issue.usage("requests to the coherent link", span),
            self.in_flight.usage("requests under way", span),
            self.inwards.usage("coherent link inwards", span),
            self.outwards.usage("coherent link outwards", span),
        ]
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.issue.reset();
        self.in_flight.reset();
        self.inwards.reset();
        self.outwards.reset();
    }
}

fn lines(address: u64, bytes: u64) -> u64 {
    address.saturating_add(bytes.max(1) - 1) / LINE - address / LINE + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RAMBDA's soft controller: a request each 3 cycles at 400 MHz, 350 ns, 16 GB/s (4 ns a line).
    fn upi() -> CoherentParams {
        CoherentParams {
            read_ps: 350_000,
            bandwidth_bytes_per_s: 16e9,
            issue_ps: 7_500,
            in_flight: 256,
            order: Order::InTurn,
        }
    }

    /// The time of 1000 reads of a line that are all asked for at once.
    fn thousand(params: &CoherentParams) -> Ps {
        let mut link = Coherent::new(params);
        (0..1000).map(|n| link.read(Ps::ZERO, n * 64, 64).1).max().unwrap_or_default()
    }

    #[test]
    fn one_read_takes_the_latency() {
        let mut link = Coherent::new(&upi());
        assert_eq!(link.read(Ps::ZERO, 0, 64), (Ps(350_000), Ps(350_000)));
        // 256 B from the middle of a line are five lines, issued 7.5 ns apart.
        let at = Ps(1_000_000);
        assert_eq!(link.read(at, 32, 256), (at + Ps(350_000), at + Ps(380_000)));
        assert_eq!(link.write(Ps(2_000_000), 0, 64), Ps(2_004_000));
    }

    #[test]
    fn issue_then_link_then_requests_under_way_bind() {
        // A request each 7.5 ns is 133 M lines a second or 8.5 GB/s, below the link's 16 GB/s.
        assert_eq!(thousand(&upi()), Ps(999 * 7_500 + 350_000));
        // With a request each cycle of 2.5 ns the link's 4 ns a line bind.
        assert_eq!(thousand(&CoherentParams { issue_ps: 2_500, ..upi() }), Ps(999 * 4_000 + 350_000));
        // With 20 under way, 50 rounds of 350 ns; the lines of each round are 7.5 ns apart.
        assert_eq!(thousand(&CoherentParams { in_flight: 20, ..upi() }), Ps(50 * 350_000 + 19 * 7_500));
    }

    #[test]
    fn halving_the_link_doubles_what_it_bounds() {
        let slow = CoherentParams { issue_ps: 2_500, bandwidth_bytes_per_s: 8e9, ..upi() };
        assert_eq!(thousand(&slow), Ps(999 * 8_000 + 350_000));
    }
}
