//! Seeded faults between a link and its device: for tests of what stands above.

use std::io;
use std::net::IpAddr;

use super::{Link, LinkStats, MAX_PACKET, forward};

/// How often packets suffer, as probabilities from 0 to 1 a packet received. The first that applies, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The packet is lost.
    pub drop: f64,
    /// One bit flips. The ICRC catches it and the packet is lost, unless the bit is one that the ICRC masks.
    pub damage: f64,
    /// The packet arrives twice.
    pub duplicate: f64,
    /// Up to four packets that were sent later overtake it.
    pub reorder: f64,
}

/// Packets held back for reordering at most; beyond these, packets pass in order.
const HELD: usize = 8;

/// BTH byte 4 (FECN, BECN and reserved bits) is the one part of a packet that the ICRC leaves out.
const UNCHECKED_BYTE: usize = 4;

/// A link whose received packets suffer [`Faults`], the same for the same seed and traffic.
pub struct Lossy<L> {
    inner: L,
    fate: Fate,
}

impl<L: Link> Lossy<L> {
    /// Wraps `inner`.
    pub fn new(inner: L, faults: Faults, seed: u64) -> Lossy<L> {
        let held = Vec::with_capacity(HELD);
        let spare = (0..HELD).map(|_| Vec::with_capacity(MAX_PACKET)).collect();
        Lossy { inner, fate: Fate { faults, random: seed, held, spare, delivered: 0, bad_icrc: 0, dropped: 0 } }
    }
}

struct Fate {
    faults: Faults,
    random: u64,
    held: Vec<Held>,
    spare: Vec<Vec<u8>>,
    delivered: usize,
    bad_icrc: u64,
    dropped: u64,
}

struct Held {
    from: IpAddr,
    packet: Vec<u8>,
    /// Packets that may still overtake this one.
    patience: u64,
}

impl Fate {
    fn decide(&mut self, from: IpAddr, packet: &[u8], sink: &mut dyn FnMut(IpAddr, &[u8])) {
        let roll = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        let Faults { drop, damage, duplicate, reorder } = self.faults;
        if roll < drop {
            self.dropped += 1;
        } else if roll < drop + damage {
            self.damage(from, packet, sink);
        } else if roll < drop + damage + duplicate {
            self.deliver(from, packet, sink);
            self.deliver(from, packet, sink);
        } else if roll < drop + damage + duplicate + reorder {
            self.hold(from, packet, sink);
            return;
        } else {
            self.deliver(from, packet, sink);
        }
        self.release(1, sink);
    }

    fn deliver(&mut self, from: IpAddr, packet: &[u8], sink: &mut dyn FnMut(IpAddr, &[u8])) {
        self.delivered += 1;
        sink(from, packet);
    }

    fn damage(&mut self, from: IpAddr, packet: &[u8], sink: &mut dyn FnMut(IpAddr, &[u8])) {
        let bit = self.next() as usize % (packet.len() * 8);
        if bit / 8 != UNCHECKED_BYTE {
            self.bad_icrc += 1;
            return;
        }
        let Some(mut copy) = self.spare.pop() else {
            return self.deliver(from, packet, sink);
        };
        copy.clear();
        copy.extend_from_slice(packet);
        copy[UNCHECKED_BYTE] ^= 1 << (bit % 8);
        self.deliver(from, &copy, sink);
        self.spare.push(copy);
    }

    fn hold(&mut self, from: IpAddr, packet: &[u8], sink: &mut dyn FnMut(IpAddr, &[u8])) {
        let Some(mut copy) = self.spare.pop() else {
            return self.deliver(from, packet, sink);
        };
        copy.clear();
        copy.extend_from_slice(packet);
        let patience = 1 + self.next() % 4;
        self.held.push(Held { from, packet: copy, patience });
    }

    /// Delivers the held packets that `overtakers` more packets have exhausted.
    fn release(&mut self, overtakers: u64, sink: &mut dyn FnMut(IpAddr, &[u8])) {
        let mut at = 0;
        while at < self.held.len() {
            self.held[at].patience = self.held[at].patience.saturating_sub(overtakers);
            if self.held[at].patience > 0 {
                at += 1;
                continue;
            }
            let held = self.held.remove(at);
            self.deliver(held.from, &held.packet, sink);
            self.spare.push(held.packet);
        }
    }

    /// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl<L: Link> Link for Lossy<L> {
    forward!(self => self.inner; kind max_mtu reach send look_ahead admit join leave recv_groups wait_fds disarm);

    /// When nothing comes, nothing can overtake any more: what was held back is delivered.
    fn recv(&mut self, sink: &mut dyn FnMut(IpAddr, &[u8])) -> io::Result<usize> {
        let fate = &mut self.fate;
        let before = fate.delivered;
        if self.inner.recv(&mut |from, packet| fate.decide(from, packet, sink))? == 0 {
            fate.release(u64::MAX, sink);
        }
        Ok(fate.delivered - before)
    }

    fn arm(&mut self) -> bool {
        self.fate.held.is_empty() && self.inner.arm()
    }

    /// The inner link's, with the faults among the packets dropped and the ICRC errors.
    fn stats(&self) -> LinkStats {
        let mut stats = self.inner.stats();
        stats.bad_icrc += self.fate.bad_icrc;
        stats.dropped += self.fate.dropped;
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::loopback::Hub;
    use crate::link::testing::{ip, packets};

    /// Sends `count` numbered packets through `faults` and returns the numbers in the order they came out.
    fn through(faults: Faults, seed: u64, count: u32) -> (Vec<u32>, LinkStats) {
        let hub = Hub::new();
        let mut a = hub.join(ip(1)).unwrap();
        let mut b = Lossy::new(hub.join(ip(2)).unwrap(), faults, seed);
        let mut got = Vec::new();
        for number in 0..count {
            let (mut bytes, lens) = packets(&[64]);
            bytes[8..12].copy_from_slice(&number.to_be_bytes());
            a.send(ip(2), &mut bytes, &lens).unwrap();
            let mut sink = |_, packet: &[u8]| got.push(u32::from_be_bytes(packet[8..12].try_into().unwrap()));
            // One packet a call, so that only the last call, which finds none, releases all.
            b.recv(&mut sink).unwrap();
        }
        b.recv(&mut |_, packet: &[u8]| got.push(u32::from_be_bytes(packet[8..12].try_into().unwrap()))).unwrap();
        assert!(b.arm(), "nothing is held back for ever");
        (got, b.stats())
    }

    #[test]
    fn without_faults_it_is_transparent() {
        let (got, stats) = through(Faults::default(), 1, 500);
        assert_eq!(got, (0..500).collect::<Vec<_>>());
        assert_eq!((stats.dropped, stats.bad_icrc), (0, 0));
    }

    #[test]
    fn each_fault_shows_and_the_seed_decides() {
        let (got, stats) = through(Faults { drop: 0.5, ..Faults::default() }, 2, 1000);
        assert!((400..600).contains(&stats.dropped));
        assert_eq!(got.len() as u64, 1000 - stats.dropped);

        let (got, stats) = through(Faults { damage: 0.5, ..Faults::default() }, 3, 1000);
        assert!((400..600).contains(&stats.bad_icrc));
        assert_eq!(got.len() as u64, 1000 - stats.bad_icrc);

        let (got, _) = through(Faults { duplicate: 0.5, ..Faults::default() }, 4, 1000);
        assert!((1400..1600).contains(&got.len()));

        let faults = Faults { reorder: 0.2, ..Faults::default() };
        let (mut got, _) = through(faults, 5, 1000);
        assert_eq!(got, through(faults, 5, 1000).0, "the same seed gives the same faults");
        assert!(!got.is_sorted());
        got.sort_unstable();
        assert_eq!(got, (0..1000).collect::<Vec<_>>(), "reordering neither loses nor repeats");
    }
}
