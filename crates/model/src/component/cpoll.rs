//! Notification by coherence (RAMBDA, section III-B): who writes to a registered region makes the accelerator hear of it.
//!
//! The region is the rings themselves, or a buffer of pointers with one for each ring. In the first way the region lies in
//! the host's memory and its lines are pinned in the accelerator's cache: a write takes a line away, which is the signal,
//! and the accelerator fetches it again. Until then further writes to the line give no signal: those of all rings with a
//! pointer in it are one. In the second way the region lies in the accelerator's memory: each write passes the controller.

use std::collections::VecDeque;

use crate::time::Ps;

/// Bytes of a pointer.
pub const POINTER: u64 = 4;
const LINE: u64 = 64;

/// Where the region lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpollRegion {
    /// In the host's memory, pinned in the accelerator's cache.
    Pinned,
    /// In the accelerator's memory.
    Local,
}

/// A ring's part of the region: what came, and how much of it is known.
#[derive(Clone, Debug, Default)]
struct Watched {
    /// When each request of which the accelerator does not know was written, the oldest first.
    unknown: VecDeque<Ps>,
    /// Requests that came in all; the tail that the accelerator has tracked is this less those that are unknown.
    tail: u64,
}

/// A checker.
#[derive(Clone, Debug)]
pub struct CpollChecker {
    region: CpollRegion,
    /// Bytes between the entries of two rings.
    stride: u64,
    rings: Vec<Watched>,
    /// Lines, by number, that the accelerator does not hold.
    lost: Vec<bool>,
    /// Writes and signals so far.
    counts: (u64, u64),
}

impl CpollChecker {
    /// Watches a buffer of pointers to so many rings.
    pub fn pointers(region: CpollRegion, rings: usize) -> Self {
        Self::new(region, rings, POINTER)
    }

    /// Watches rings of so many bytes each.
    pub fn rings(region: CpollRegion, rings: usize, bytes: u64) -> Self {
        Self::new(region, rings, bytes)
    }

    fn new(region: CpollRegion, rings: usize, stride: u64) -> Self {
        let lines = (rings as u64 * stride.min(LINE)).div_ceil(LINE).max(1);
        let (rings, lost) = (vec![Watched::default(); rings], vec![false; lines as usize]);
        Self { region, stride, rings, lost, counts: (0, 0) }
    }

    /// Bytes of the region: all of it must fit where it is pinned.
    pub fn bytes(&self) -> u64 {
        self.rings.len() as u64 * self.stride
    }

    /// A request's write lands at `at`: whether that gives a signal.
    pub fn write(&mut self, at: Ps, ring: usize) -> bool {
        let line = self.line(ring);
        self.counts.0 += 1;
        self.rings[ring].tail += 1;
        self.rings[ring].unknown.push_back(at);
        let signal = match self.region {
            CpollRegion::Pinned => !std::mem::replace(&mut self.lost[line], true),
            CpollRegion::Local => true,
        };
        self.counts.1 += u64::from(signal);
        signal
    }

    /// The accelerator looks at the line of a ring's entry as it was at `at`: each ring of that line with new requests, and
    /// how many. The line is its own again; it is taken away once more if more has landed since, which the answer says.
    pub fn look(&mut self, at: Ps, ring: usize) -> (Vec<(usize, u64)>, bool) {
        let line = self.line(ring);
        let each = (LINE / self.stride.min(LINE)) as usize;
        let (mut found, mut more) = (Vec::new(), false);
        for ring in line * each..((line + 1) * each).min(self.rings.len()) {
            let known = self.rings[ring].unknown.partition_point(|&written| written <= at);
            self.rings[ring].unknown.drain(..known);
            found.extend((known > 0).then_some((ring, known as u64)));
            more |= !self.rings[ring].unknown.is_empty();
        }
        let again = more && self.region == CpollRegion::Pinned;
        self.lost[line] = again;
        self.counts.1 += u64::from(again);
        (found, again)
    }

    /// Requests that came by a ring.
    pub fn tail(&self, ring: usize) -> u64 {
        self.rings[ring].tail
    }

    /// Writes, and the signals that they gave.
    pub fn counts(&self) -> (u64, u64) {
        self.counts
    }

    /// The line of a ring's entry.
    fn line(&self, ring: usize) -> usize {
        (ring as u64 * self.stride.min(LINE) / LINE) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NS: Ps = Ps(1_000);

    #[test]
    fn signals_of_one_line_come_as_one_and_the_tail_says_how_many_requests_came() {
        let mut checker = CpollChecker::pointers(CpollRegion::Pinned, 16);
        assert!(checker.write(NS, 3));
        // The same ring again, and another whose pointer is in the same line.
        assert!(!checker.write(NS * 2, 3) && !checker.write(NS * 3, 5));
        assert_eq!(checker.look(NS * 10, 3), (vec![(3, 2), (5, 1)], false));
        assert!(checker.write(NS * 11, 3), "the line is the accelerator's again");
        assert_eq!((checker.counts(), checker.tail(3)), ((4, 2), 3));
    }

    #[test]
    fn what_lands_while_the_line_is_fetched_is_not_lost() {
        let mut checker = CpollChecker::pointers(CpollRegion::Pinned, 2);
        assert!(checker.write(NS, 0));
        assert!(!checker.write(NS * 8, 1));
        // The line was read at 5 ns: the second write came after that, and takes the line away again.
        assert_eq!(checker.look(NS * 5, 0), (vec![(0, 1)], true));
        assert_eq!(checker.look(NS * 9, 1), (vec![(1, 1)], false));
    }

    #[test]
    fn in_memory_of_its_own_each_write_is_heard() {
        let mut checker = CpollChecker::pointers(CpollRegion::Local, 16);
        assert!(checker.write(NS, 3) && checker.write(NS, 3) && checker.write(NS, 5));
        assert_eq!(checker.look(NS, 3), (vec![(3, 2), (5, 1)], false));
    }

    #[test]
    fn pointers_take_a_fraction_of_what_rings_take() {
        let rings = CpollChecker::rings(CpollRegion::Pinned, 64, 1 << 20);
        let pointers = CpollChecker::pointers(CpollRegion::Pinned, 64);
        assert_eq!((rings.bytes(), pointers.bytes()), (64 << 20, 256));
        // Rings that are watched whole have lines of their own.
        let mut rings = rings;
        assert!(rings.write(NS, 0) && rings.write(NS, 1));
    }
}
