//! The time by which something is answered under a lease is read after what came has been taken: a resident's, and the NIC's.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use remora_memory::{Access, Buffer};
use remora_nic::{QpInit, QpType, Route, RtrAttr, Time};
use remora_real::link::{Link, LinkStats};
use remora_real::{Device, LinkKind, Resident, Seat};
use remora_testing::eventually;
use remora_wire::packet::Packet;
use remora_wire::{Bth, Opcode, Psn, Reth};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 9, 0, 7));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 9, 0, 8));
const TURNS: u64 = 20;

/// When a link handed over its last packet.
type Taken = Arc<parking_lot::Mutex<Option<Instant>>>;

/// The op-codes of what a link has sent.
type Left = Arc<parking_lot::Mutex<Vec<u8>>>;

/// A link that hands over what `next` comes back with, for as long as which the machine stands still.
struct Way<F> {
    next: F,
    taken: Taken,
    left: Left,
}

impl<F: FnMut() -> Option<Vec<u8>> + Send + 'static> Link for Way<F> {
    fn kind(&self) -> LinkKind {
        LinkKind::Udp
    }

    fn max_mtu(&self) -> usize {
        1024
    }

    fn send(&mut self, _: IpAddr, bytes: &mut [u8], lens: &[u16]) -> std::io::Result<usize> {
        let starts = lens.iter().scan(0, |at, len| Some(std::mem::replace(at, *at + usize::from(*len))));
        self.left.lock().extend(starts.map(|start| bytes[start]));
        Ok(lens.len())
    }

    fn recv(&mut self, sink: &mut dyn FnMut(IpAddr, &[u8])) -> std::io::Result<usize> {
        let Some(packet) = (self.next)() else { return Ok(0) };
        sink(PEER, &packet);
        *self.taken.lock() = Some(Instant::now());
        Ok(1)
    }

    fn wait_fds(&self, _: &mut Vec<RawFd>) {}

    fn arm(&mut self) -> bool {
        false
    }

    fn disarm(&mut self) {}

    fn stats(&self) -> LinkStats {
        LinkStats::default()
    }
}

/// Counts turns, and those in which its time was older than what had been taken.
struct Watch {
    taken: Taken,
    turns: Arc<AtomicU64>,
    old: Arc<AtomicU64>,
}

impl Resident for Watch {
    fn progress(&mut self, seat: &mut Seat<'_>) -> usize {
        let read = Duration::from_nanos(seat.clock.now() - seat.now.time());
        if let Some(taken) = *self.taken.lock() {
            self.old.fetch_add(u64::from(read > taken.elapsed()), Ordering::Relaxed);
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
        1
    }

    fn next_timeout(&self) -> Time {
        0
    }
}

#[test]
fn a_pause_before_a_packet_is_taken_makes_no_time_old() {
    let (taken, turns, old): (Taken, Arc<AtomicU64>, Arc<AtomicU64>) = Default::default();
    let next = || {
        let end = Instant::now() + Duration::from_millis(1);
        while Instant::now() < end {}
        Some(vec![0; 60])
    };
    let way = Way { next, taken: taken.clone(), left: Left::default() };
    let device = Device::new(HERE, vec![Box::new(way)], None).expect("device");
    device.settle(Some(Box::new(Watch { taken, turns: turns.clone(), old: old.clone() })));
    // The NIC thread, and then a user who drives.
    for already in [0, TURNS] {
        if already > 0 {
            (0..TURNS).for_each(|_| assert!(device.lock().progress() > 0));
        }
        eventually("turns", || (turns.load(Ordering::Relaxed) >= already + TURNS).then_some(()));
        assert_eq!(old.load(Ordering::Relaxed), 0, "of {} turns", turns.load(Ordering::Relaxed));
    }
}

/// A packet that comes, and for how long the machine stands still before it is handed over.
type Come = Arc<parking_lot::Mutex<Option<(Vec<u8>, Duration)>>>;

#[test]
fn a_read_that_comes_while_the_node_stands_still_is_refused_when_the_lease_is_over() {
    const LEASE: Duration = Duration::from_millis(50);
    let (come, left, psn) = (Come::default(), Left::default(), Psn::new(5));
    let next = {
        let come = come.clone();
        move || {
            let (packet, still) = come.lock().take()?;
            std::thread::sleep(still);
            Some(packet)
        }
    };
    let way = Way { next, taken: Taken::default(), left: left.clone() };
    let device = Device::new(HERE, vec![Box::new(way)], None).expect("device");
    let (region, qp) = {
        let mut guard = device.lock();
        let nic = guard.nic();
        let (pd, cq) = (nic.registry().alloc_pd(), nic.create_cq(4).expect("queue"));
        let memory = Buffer::anonymous(4096).expect("memory");
        let region = nic.registry().register(pd, &memory, 0, 64, None, Access::REMOTE_READ).expect("region");
        let qp = nic.create_qp(QpInit::new(QpType::Rc, pd, cq, cq)).expect("queue pair");
        nic.to_init(qp, Access::REMOTE_READ, 0).expect("INIT");
        let route = Route { local: HERE, remote: PEER, link: 0 };
        let (path_mtu, max_dest_rd_atomic) = (1024, 4);
        let rtr = RtrAttr { route, dest_qp: 9, rq_psn: psn, path_mtu, max_dest_rd_atomic, min_rnr_timer: 1 };
        nic.to_rtr(qp, rtr).expect("RTR");
        (region, qp)
    };
    let read = |psn: Psn, still: Duration| {
        let reth = Reth { va: region.va(), rkey: region.key(), len: 64 };
        let bth = Bth { ack_req: true, ..Bth::new(Opcode::RcReadRequest, qp.0, psn) };
        let mut bytes = [0; 256];
        let length = Packet { reth: Some(reth), ..Packet::new(bth, &[]) }.emit(&mut bytes);
        let before = left.lock().len();
        *come.lock() = Some((bytes[..length].to_vec(), still));
        eventually("an answer", || {
            device.lock().progress();
            left.lock().get(before).copied()
        })
    };
    region.lease_until(u64::MAX);
    assert_eq!(read(psn, Duration::ZERO), Opcode::RcReadResponseOnly.as_u8());
    region.lease_until(device.now() + LEASE.as_nanos() as u64);
    // Within the lease when the turn began, and long after it when the READ was taken.
    assert_eq!(read(psn + 1, 2 * LEASE), Opcode::RcAck.as_u8());
}
