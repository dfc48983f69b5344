//! A resident's time is read after what came has been taken.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use remora_nic::Time;
use remora_real::link::{Link, LinkStats};
use remora_real::{Device, LinkKind, Resident, Seat};
use remora_testing::eventually;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 9, 0, 7));
const TURNS: u64 = 20;

/// When a link handed over its last packet.
type Taken = Arc<parking_lot::Mutex<Option<Instant>>>;

/// Has always a packet, and the machine stands still before it hands it over.
struct Late(Taken);

impl Link for Late {
    fn kind(&self) -> LinkKind {
        LinkKind::Udp
    }

    fn max_mtu(&self) -> usize {
        4096
    }

    fn send(&mut self, _: IpAddr, _: &mut [u8], lens: &[u16]) -> std::io::Result<usize> {
        Ok(lens.len())
    }

    fn recv(&mut self, sink: &mut dyn FnMut(IpAddr, &[u8])) -> std::io::Result<usize> {
        let end = Instant::now() + Duration::from_millis(1);
        while Instant::now() < end {}
        sink(HERE, &[0; 60]);
        *self.0.lock() = Some(Instant::now());
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
    let device = Device::new(HERE, vec![Box::new(Late(taken.clone()))], None).expect("device");
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
