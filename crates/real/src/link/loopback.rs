//! Packets between devices of one process, over bounded queues of recycled buffers.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::{Link, LinkKind, LinkStats, MAX_PACKET, check_lens};

/// Packets that wait for one link at most; its senders find it full then.
const CAPACITY: usize = 256;

/// A network inside the process: links join under an IP address and reach each other.
#[derive(Clone, Default)]
pub struct Hub {
    inboxes: Arc<Mutex<HashMap<IpAddr, Arc<Inbox>>>>,
}

impl Hub {
    /// An empty network.
    pub fn new() -> Hub {
        Hub::default()
    }

    /// A link with the address `ip`.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if another link has that address; what eventfd(2) says.
    pub fn join(&self, ip: IpAddr) -> io::Result<LoopbackLink> {
        let mut inboxes = self.inboxes.lock();
        if inboxes.contains_key(&ip) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, format!("{ip} has joined this hub already")));
        }
        let spare = (0..CAPACITY).map(|_| Packet { from: ip, bytes: Vec::with_capacity(MAX_PACKET) }).collect();
        let queues = Queues { ready: VecDeque::with_capacity(CAPACITY), spare, sleeping: false, open: true };
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let inbox = Arc::new(Inbox { queues: Mutex::new(queues), wake });
        inboxes.insert(ip, inbox.clone());
        Ok(LoopbackLink {
            hub: self.clone(),
            ip,
            inbox,
            peers: HashMap::new(),
            taken: Vec::with_capacity(CAPACITY),
            armed: false,
            stats: LinkStats::default(),
        })
    }
}

/// One end of a [`Hub`]. It leaves the hub when dropped.
pub struct LoopbackLink {
    hub: Hub,
    ip: IpAddr,
    inbox: Arc<Inbox>,
    /// Inboxes sent to before, so that the hub is asked once a peer.
    peers: HashMap<IpAddr, Arc<Inbox>>,
    /// Packets taken out of the inbox in one go, delivered without its lock.
    taken: Vec<Packet>,
    armed: bool,
    stats: LinkStats,
}

struct Inbox {
    queues: Mutex<Queues>,
    wake: OwnedFd,
}

struct Queues {
    ready: VecDeque<Packet>,
    spare: Vec<Packet>,
    sleeping: bool,
    /// Cleared when the link leaves; who still holds the inbox then asks the hub again.
    open: bool,
}

struct Packet {
    from: IpAddr,
    bytes: Vec<u8>,
}

impl LoopbackLink {
    fn peer(&mut self, ip: IpAddr) -> Option<Arc<Inbox>> {
        if let Some(inbox) = self.peers.get(&ip)
            && inbox.queues.lock().open
        {
            return Some(inbox.clone());
        }
        let inbox = self.hub.inboxes.lock().get(&ip)?.clone();
        self.peers.insert(ip, inbox.clone());
        Some(inbox)
    }
}

impl Link for LoopbackLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Loopback
    }

    fn max_mtu(&self) -> usize {
        4096
    }

    fn send(&mut self, to: IpAddr, bytes: &mut [u8], lens: &[u16]) -> io::Result<usize> {
        check_lens(bytes, lens)?;
        let Some(inbox) = self.peer(to) else {
            self.stats.dropped += lens.len() as u64;
            return Ok(lens.len());
        };
        let (mut taken, mut at) = (0, 0);
        let mut queues = inbox.queues.lock();
        for &len in lens {
            let Some(mut packet) = queues.spare.pop() else {
                break;
            };
            packet.from = self.ip;
            packet.bytes.clear();
            packet.bytes.extend_from_slice(&bytes[at..at + usize::from(len)]);
            queues.ready.push_back(packet);
            taken += 1;
            at += usize::from(len);
        }
        let wake = taken > 0 && std::mem::take(&mut queues.sleeping);
        drop(queues);
        if wake {
            self.stats.syscalls += 1;
            rustix::io::write(&inbox.wake, &1u64.to_ne_bytes())?;
        }
        self.stats.sent(to, taken, at);
        self.stats.full += u64::from(taken < lens.len());
        Ok(taken)
    }

    fn recv(&mut self, sink: &mut dyn FnMut(IpAddr, &[u8])) -> io::Result<usize> {
        self.taken.extend(self.inbox.queues.lock().ready.drain(..));
        let count = self.taken.len();
        if count == 0 {
            return Ok(0);
        }
        for packet in &self.taken {
            self.stats.received(packet.from, packet.bytes.len());
            sink(packet.from, &packet.bytes);
        }
        self.inbox.queues.lock().spare.append(&mut self.taken);
        Ok(count)
    }

    fn wait_fds(&self, out: &mut Vec<RawFd>) {
        out.push(self.inbox.wake.as_raw_fd());
    }

    fn arm(&mut self) -> bool {
        let mut queues = self.inbox.queues.lock();
        queues.sleeping = queues.ready.is_empty();
        self.armed = queues.sleeping;
        self.armed
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.inbox.queues.lock().sleeping = false;
            self.stats.syscalls += 1;
            // Nothing to read is the usual case: nobody woke us.
            let _ = rustix::io::read(&self.inbox.wake, &mut [0u8; 8]);
        }
    }

    fn stats(&self) -> LinkStats {
        self.stats
    }
}

impl Drop for LoopbackLink {
    fn drop(&mut self) {
        self.hub.inboxes.lock().remove(&self.ip);
        self.inbox.queues.lock().open = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::testing::{collect, ip, packets, readable};

    #[test]
    fn packets_arrive_whole_in_order_and_from_the_sender() {
        let hub = Hub::new();
        let (mut a, mut b) = (hub.join(ip(1)).unwrap(), hub.join(ip(2)).unwrap());
        let (mut bytes, lens) = packets(&[16, 100, 4200]);
        assert_eq!(a.send(ip(2), &mut bytes, &lens).unwrap(), 3);
        let got = collect(&mut b, 3);
        assert!(got.iter().all(|(from, _)| *from == ip(1)));
        assert_eq!(got.into_iter().flat_map(|(_, packet)| packet).collect::<Vec<_>>(), bytes);
        assert_eq!((a.stats().tx_packets, b.stats().rx_packets), (3, 3));
        assert_eq!(a.stats().tx_bytes, 16 + 100 + 4200 + 3 * 28);
    }

    #[test]
    fn a_full_inbox_takes_no_more_until_it_is_read() {
        let hub = Hub::new();
        let (mut a, mut b) = (hub.join(ip(1)).unwrap(), hub.join(ip(2)).unwrap());
        let (mut bytes, lens) = packets(&[64; CAPACITY + 1]);
        assert_eq!(a.send(ip(2), &mut bytes, &lens).unwrap(), CAPACITY);
        assert_eq!(a.send(ip(2), &mut bytes, &lens).unwrap(), 0);
        assert_eq!(collect(&mut b, CAPACITY).len(), CAPACITY);
        assert_eq!(a.send(ip(2), &mut bytes, &lens[..1]).unwrap(), 1);
        assert_eq!(a.stats().full, 2);
    }

    #[test]
    fn an_absent_peer_loses_packets_and_a_returning_one_gets_them() {
        let hub = Hub::new();
        let mut a = hub.join(ip(1)).unwrap();
        let (mut bytes, lens) = packets(&[64]);
        assert_eq!(a.send(ip(2), &mut bytes, &lens).unwrap(), 1);
        assert_eq!(a.stats().dropped, 1);
        for _ in 0..2 {
            let mut b = hub.join(ip(2)).unwrap();
            a.send(ip(2), &mut bytes, &lens).unwrap();
            assert_eq!(collect(&mut b, 1).len(), 1);
        }
        assert!(hub.join(ip(1)).is_err(), "the address is taken");
    }

    #[test]
    fn an_armed_link_wakes_when_a_packet_comes() {
        let hub = Hub::new();
        let (mut a, mut b) = (hub.join(ip(1)).unwrap(), hub.join(ip(2)).unwrap());
        let (mut bytes, lens) = packets(&[64]);
        assert!(b.arm());
        assert!(!readable(&b));
        a.send(ip(2), &mut bytes, &lens).unwrap();
        assert!(readable(&b));
        b.disarm();
        assert!(!readable(&b));
        assert!(!b.arm(), "a packet waits");
        assert_eq!(collect(&mut b, 1).len(), 1);
        assert!(b.arm());
    }
}
