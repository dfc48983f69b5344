//! A node's CXL port: single lines that a core loads, so many at a time, and whole buffers that DMA moves (CXL.mem and
//! CXL.io, as DFabric has them in sections 2.3 and 4.6).

use crate::resource::{Channel, Order, Pool, Usage};
use crate::time::Ps;

/// What a port is like.
#[derive(Clone, Debug, PartialEq)]
pub struct CxlPortParams {
    /// A read of one line over one switch, there and back.
    pub read_ps: u64,
    /// Each switch beyond the first.
    pub hop_ps: u64,
    /// Switches beyond the first.
    pub hops: u64,
    /// Bytes a second in each direction.
    pub bandwidth_bytes_per_s: f64,
    /// Lines that loads have under way at most.
    pub outstanding: usize,
    /// How its queues are served.
    pub order: Order,
}

/// Bytes of a line.
const LINE: u64 = 64;

/// A port.
#[derive(Clone, Debug)]
pub struct CxlPort {
    /// Data towards the node, and away from it.
    inwards: Channel,
    outwards: Channel,
    /// Lines that loads bring: flits of CXL.mem and CXL.io take turns, so that a line waits for other lines and not for a
    /// buffer, whose bandwidth it takes.
    lines: Channel,
    loads: Pool,
    round_trip: Ps,
}

impl CxlPort {
    /// An idle port.
    pub fn new(params: &CxlPortParams) -> Self {
        let link = Channel::new(params.bandwidth_bytes_per_s).ordered(params.order);
        Self {
            round_trip: Ps(params.read_ps) + Ps(params.hop_ps) * params.hops,
            loads: Pool::new(params.outstanding).ordered(params.order),
            inwards: link.clone(),
            lines: link.clone(),
            outwards: link,
        }
    }

    /// A read of one line, alone.
    pub fn round_trip(&self) -> Ps {
        self.round_trip
    }

    /// A core loads bytes from beyond, line by line: when the first line and the last are here.
    pub fn load(&mut self, at: Ps, bytes: u64) -> (Ps, Ps) {
        let rest = self.round_trip - self.inwards.time(LINE);
        let (mut first, mut last) = (None, at);
        for _ in 0..bytes.max(1).div_ceil(LINE) {
            let begun = self.loads.acquire(at);
            let done = self.lines.serve(begun, LINE).1 + rest;
            self.inwards.serve(begun, LINE);
            self.loads.release(begun, done);
            first = first.or(Some(done));
            last = last.max(done);
        }
        (first.unwrap_or(last), last)
    }

    /// One request for bytes from beyond that are on their way at these times: when the first and the last are here.
    pub fn fetch(&mut self, there: (Ps, Ps), bytes: u64) -> (Ps, Ps) {
        let (first, last) = self.inwards.pass(there, bytes);
        (first + self.round_trip, last + self.round_trip)
    }

    /// Somebody beyond reads bytes of this node: when the first and the last have left its port. The latency is the
    /// reader's.
    pub fn give(&mut self, at: Ps, bytes: u64) -> (Ps, Ps) {
        self.outwards.serve(at, bytes)
    }

    /// A line written to the other side, which nobody waits for: when it is there.
    pub fn post(&self, at: Ps) -> Ps {
        at + Ps(self.round_trip.0 / 2)
    }

    /// How busy both directions were over `span`.
    pub fn usage(&self, span: Ps) -> [Usage; 2] {
        [self.inwards.usage("CXL port inwards", span), self.outwards.usage("CXL port outwards", span)]
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.inwards.reset();
        self.outwards.reset();
        self.lines.reset();
        self.loads.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The prototype's: 6.5 us, 1 Gb/s (512 ns a line).
    fn port(outstanding: usize) -> CxlPort {
        CxlPort::new(&CxlPortParams {
            read_ps: 6_500_000,
            hop_ps: 70_000,
            hops: 0,
            bandwidth_bytes_per_s: 125e6,
            outstanding,
            order: Order::InTurn,
        })
    }

    #[test]
    fn loads_are_bound_by_lines_under_way_and_then_by_the_link() {
        assert_eq!(port(3).load(Ps::ZERO, 64), (Ps(6_500_000), Ps(6_500_000)));
        // 64 lines, three at a time: the last is the first of its round, one line behind that of the round before.
        let (_, last) = port(3).load(Ps::ZERO, 4096);
        assert_eq!(last, Ps(22 * 6_500_000));
        // With 64 under way, 512 ns a line bind.
        assert_eq!(port(64).load(Ps::ZERO, 4096).1, Ps(6_500_000 + 63 * 512_000));
    }

    #[test]
    fn a_buffer_comes_at_the_rate_of_the_link() {
        let mut port = port(3);
        assert_eq!(port.fetch((Ps::ZERO, Ps::ZERO), 4096), (Ps(6_500_000), Ps(6_500_000 + 32_768_000)));
        // What is slower on the other side comes as slowly.
        let mut port = self::port(3);
        assert_eq!(port.fetch((Ps::ZERO, Ps(50_000_000)), 4096).1, Ps(56_500_000));
        assert_eq!(port.give(Ps::ZERO, 4096), (Ps::ZERO, Ps(32_768_000)));
        assert_eq!(port.post(Ps::ZERO), Ps(3_250_000));
    }

    #[test]
    fn a_line_waits_for_no_buffer_but_takes_of_its_bandwidth() {
        let mut port = port(3);
        port.fetch((Ps::ZERO, Ps::ZERO), 4096);
        assert_eq!(port.load(Ps::ZERO, 64).1, Ps(6_500_000));
        assert_eq!(port.fetch((Ps::ZERO, Ps::ZERO), 4096).1, Ps(6_500_000 + 2 * 32_768_000 + 512_000));
    }

    #[test]
    fn each_further_switch_takes_its_hop() {
        let params = CxlPortParams {
            read_ps: 250_000,
            hop_ps: 70_000,
            hops: 2,
            bandwidth_bytes_per_s: 1e9,
            outstanding: 64,
            order: Order::InTurn,
        };
        assert_eq!(CxlPort::new(&params).load(Ps::ZERO, 64).1, Ps(390_000));
    }
}
