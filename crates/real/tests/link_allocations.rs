//! Links allocate nothing once traffic flows.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use remora_real::LinkKind;
use remora_real::link::loopback::Hub;
use remora_real::link::lossy::Faults;
use remora_real::link::pcap::PcapFile;
use remora_real::link::shm::ShmLink;
use remora_real::link::traced::Tracer;
use remora_real::link::udp::UdpLink;
use remora_real::link::{Layers, Link};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is the system allocator's own; counting touches no memory of its callers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter any more, and is none of ours.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn ip(c: u8, d: u8) -> IpAddr {
    Ipv4Addr::new(127, 4, c, d).into()
}

/// Allocations during a thousand batches from `a` to `b` at `to`, sleeps included, after a few to warm up.
fn allocations(a: &mut dyn Link, b: &mut dyn Link, to: IpAddr) -> u64 {
    // The first time that a thread waits for a lock it is given its place among those that do.
    let lock = parking_lot::Mutex::new(());
    parking_lot::Condvar::new().wait_for(&mut lock.lock(), std::time::Duration::from_millis(1));
    let (lens, mut fds) = ([96u16, 96, 96, 40, 4112], Vec::with_capacity(8));
    let mut bytes = [7; 96 * 3 + 40 + 4112];
    let mut before = 0;
    for round in 0..1010 {
        if round == 10 {
            before = ALLOCATIONS.get();
        }
        assert_eq!(a.send(to, &mut bytes, &lens).unwrap(), lens.len());
        let mut got = 0;
        while got < lens.len() {
            got += b.recv(&mut |_, _| {}).unwrap();
        }
        assert!(b.arm());
        fds.clear();
        b.wait_fds(&mut fds);
        b.disarm();
    }
    ALLOCATIONS.get() - before
}

#[test]
fn udp_allocates_nothing() {
    let (mut a, mut b) = (UdpLink::bind(ip(0, 1)).unwrap(), UdpLink::bind(ip(0, 2)).unwrap());
    assert_eq!(allocations(&mut a, &mut b, ip(0, 2)), 0);
}

#[test]
fn shared_memory_allocates_nothing() {
    let (mut a, mut b) = (ShmLink::bind(ip(1, 1)).unwrap(), ShmLink::bind(ip(1, 2)).unwrap());
    assert!(a.connect(ip(1, 2)).unwrap());
    assert_eq!(allocations(&mut a, &mut b, ip(1, 2)), 0);
}

#[test]
fn layers_allocate_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let pcap = PcapFile::create(&dir.path().join("link.pcap")).unwrap();
    let tracer: Tracer = Arc::new(|passed| assert!(passed.packet.len() >= 40));
    let faults = Faults::default();
    let layers = Layers { pcap: Some(pcap.clone()), tracer: Some(tracer), faults: Some((faults, 1)) };
    let (mut a, mut b) = (layers.bind(LinkKind::Udp, ip(3, 1)).unwrap(), layers.bind(LinkKind::Udp, ip(3, 2)).unwrap());
    assert_eq!(allocations(&mut a, &mut b, ip(3, 2)), 0);
    assert_eq!(pcap.finish().packets, 2 * 5 * 1010);
}

#[test]
fn loopback_allocates_nothing() {
    let hub = Hub::new();
    let (mut a, mut b) = (hub.join(ip(2, 1)).unwrap(), hub.join(ip(2, 2)).unwrap());
    assert_eq!(allocations(&mut a, &mut b, ip(2, 2)), 0);
}
