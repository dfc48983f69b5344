//! Packets that came before their turn, kept until it comes.
//!
//! A packet ahead of its turn shows that one before it was lost or overtaken. Kept, it need not be sent again. What is
//! kept is carried out in the order of PSNs like all else, so that nothing that holds without loss holds less with it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use remora_wire::{Bth, Psn};

/// Request PSNs that may be unacknowledged, and among which packets are kept that come early. At an MTU of 4096 B this is
/// 1 MB in flight, which a default-sized socket buffer of a modern Linux can hold; the kernel's own software NIC allows 128.
pub(crate) const WINDOW: u32 = 256;

/// Packets that all queue pairs of an engine may keep together: 8 MB at an MTU of 4096 B. The share of a peer, which is an
/// address however many queue pairs it has, is as much as is left to all others.
const ALL: usize = 2048;

/// Room for packets, made as it is needed and used again.
#[derive(Debug, Default)]
pub(crate) struct ReorderPool {
    free: Vec<Box<[u8]>>,
    /// Given out to each peer's queue pairs, and to all.
    shares: BTreeMap<IpAddr, usize>,
    used: usize,
    /// The largest packet's bytes.
    size: usize,
}

impl ReorderPool {
    /// For packets of at most `size` bytes.
    pub fn new(size: usize) -> Self {
        Self { free: Vec::new(), shares: BTreeMap::new(), used: 0, size }
    }

    /// Room for one packet of a peer's.
    fn take(&mut self, peer: IpAddr) -> Option<Box<[u8]>> {
        let share = self.shares.get(&peer).copied().unwrap_or(0);
        if share >= ALL - self.used {
            return None;
        }
        self.shares.insert(peer, share + 1);
        self.used += 1;
        Some(self.free.pop().unwrap_or_else(|| vec![0; self.size].into()))
    }

    /// Takes a packet's room back.
    pub fn give(&mut self, Kept { peer, room, .. }: Kept) {
        if let Some(share) = self.shares.get_mut(&peer) {
            *share -= 1;
            if *share == 0 {
                self.shares.remove(&peer);
            }
        }
        self.used -= 1;
        self.free.push(room);
    }
}

/// A packet that was kept.
#[derive(Debug)]
pub(crate) struct Kept {
    pub bth: Bth,
    peer: IpAddr,
    len: usize,
    room: Box<[u8]>,
}

impl Kept {
    /// What followed the BTH, without pad and ICRC.
    pub fn rest(&self) -> &[u8] {
        &self.room[..self.len]
    }
}

/// What one half of a queue pair keeps, by PSN.
#[derive(Debug, Default)]
pub(crate) struct ReorderBuffer {
    /// `WINDOW` places, none before the first packet is kept.
    places: Box<[Option<Kept>]>,
    count: usize,
}

impl ReorderBuffer {
    /// Whether nothing is kept.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Keeps a peer's packet whose turn comes within the window. False if there is no room. Of two with one PSN that
    /// differ, one is forged, and neither is kept.
    pub fn keep(&mut self, pool: &mut ReorderPool, peer: IpAddr, bth: &Bth, rest: &[u8]) -> bool {
        if self.places.is_empty() {
            self.places = (0..WINDOW).map(|_| None).collect();
        }
        if let Some(kept) = self.places[place(bth.psn)].as_ref().filter(|kept| kept.bth.psn == bth.psn) {
            if kept.bth.opcode == bth.opcode && kept.rest() == rest {
                return true;
            }
            self.forget(pool, bth.psn, 1);
            return true;
        }
        self.forget(pool, bth.psn, 1);
        if rest.len() > pool.size {
            return false;
        }
        let Some(mut room) = pool.take(peer) else { return false };
        room[..rest.len()].copy_from_slice(rest);
        self.places[place(bth.psn)] = Some(Kept { bth: *bth, peer, len: rest.len(), room });
        self.count += 1;
        true
    }

    /// Whether the packet with this PSN is kept.
    pub fn has(&self, psn: Psn) -> bool {
        self.count > 0 && self.places[place(psn)].as_ref().is_some_and(|kept| kept.bth.psn == psn)
    }

    /// Takes the packet with this PSN out. Its room goes back to the pool after use.
    pub fn take(&mut self, psn: Psn) -> Option<Kept> {
        if !self.has(psn) {
            return None;
        }
        self.count -= 1;
        self.places[place(psn)].take()
    }

    /// Forgets the packets in the places of `psns` PSNs from `psn` on: their turn has passed.
    pub fn forget(&mut self, pool: &mut ReorderPool, psn: Psn, psns: u32) {
        for ahead in 0..psns.min(WINDOW) {
            if self.count == 0 {
                return;
            }
            if let Some(kept) = self.places[place(psn + ahead)].take() {
                self.count -= 1;
                pool.give(kept);
            }
        }
    }

    /// Forgets all.
    pub fn clear(&mut self, pool: &mut ReorderPool) {
        self.forget(pool, Psn::new(0), WINDOW);
    }

    /// Which of the `WINDOW` PSNs from `psn` on are kept: bit 0 of byte 0 is `psn`.
    pub fn bitmap(&self, psn: Psn) -> [u8; WINDOW as usize / 8] {
        let mut map = [0; WINDOW as usize / 8];
        for ahead in (0..WINDOW).filter(|&ahead| self.has(psn + ahead)) {
            map[ahead as usize / 8] |= 1 << (ahead % 8);
        }
        map
    }
}

fn place(psn: Psn) -> usize {
    (psn.get() % WINDOW) as usize
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use remora_wire::Opcode;

    const PEERS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];

    fn packet(psn: u32) -> Bth {
        Bth::new(Opcode::RcSendOnly, 1, Psn::new(psn))
    }

    #[test]
    fn packets_come_out_as_they_went_in_and_of_two_that_differ_none_does() {
        let (mut pool, mut buffer) = (ReorderPool::new(64), ReorderBuffer::default());
        assert!(
            buffer.keep(&mut pool, PEERS[0], &packet(0xff_ffff), b"last")
                && buffer.keep(&mut pool, PEERS[0], &packet(1), b"one")
        );
        assert!(
            buffer.keep(&mut pool, PEERS[0], &packet(2), b"two")
                && buffer.keep(&mut pool, PEERS[0], &packet(2), b"TWO")
        );
        assert!(buffer.keep(&mut pool, PEERS[0], &packet(1), b"one") && !buffer.has(Psn::new(2)));
        assert_eq!(buffer.bitmap(Psn::new(0xff_fffe))[..2], [0b1010, 0]);
        assert!(buffer.take(Psn::new(0)).is_none() && buffer.take(Psn::new(257)).is_none());
        let kept = buffer.take(Psn::new(1)).unwrap();
        assert_eq!((kept.bth, kept.rest()), (packet(1), &b"one"[..]));
        pool.give(kept);
        buffer.forget(&mut pool, Psn::new(0xff_ff00), WINDOW);
        assert!(buffer.is_empty() && pool.used == 0 && pool.free.len() == 3);
    }

    #[test]
    fn a_peer_with_many_queue_pairs_leaves_half_to_others_and_all_is_given_back() {
        let mut pool = ReorderPool::new(8);
        let buffers = || -> Vec<ReorderBuffer> { (0..20).map(|_| ReorderBuffer::default()).collect() };
        let fill = |pool: &mut ReorderPool, peer, buffers: &mut [ReorderBuffer]| {
            let keep = |buffer: &mut ReorderBuffer| {
                (0..WINDOW).filter(|&psn| buffer.keep(pool, peer, &packet(psn), b"x")).count()
            };
            buffers.iter_mut().map(keep).sum::<usize>()
        };
        let (mut greedy, mut other) = (buffers(), buffers());
        assert_eq!(fill(&mut pool, PEERS[0], &mut greedy), ALL / 2);
        assert_eq!(fill(&mut pool, PEERS[1], &mut other[..1]), WINDOW as usize, "as alone");
        assert_eq!(fill(&mut pool, PEERS[1], &mut other), ALL / 4, "half of what is left");
        assert!(!other[19].keep(&mut pool, PEERS[1], &packet(255), &[0; 9]), "longer than any packet");
        greedy.iter_mut().chain(&mut other).for_each(|buffer| buffer.clear(&mut pool));
        assert!(pool.used == 0 && pool.shares.is_empty());
    }
}
