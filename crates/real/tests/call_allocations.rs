//! Once warm, calls and verbs allocate nothing, neither at the client nor at the node. Alone in its process: it counts
//! what all of the process's threads allocate.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};

use common::fill_object;
use remora_kernel::{ConsistencyParams, Placement, Status, op};
use remora_real::{Client, ClientConfig, LinkKind, Node, NodeConfig, RingConfig};
use remora_service::CallKind;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: everything is the system allocator's own; counting touches no memory of its callers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // The process's first thread is the runner of tests, which has a life of its own.
        if rustix::thread::gettid() != rustix::process::getpid() {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
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

/// Calls in flight at once: more than one, and enough to make every pool grow that would.
const IN_FLIGHT: u32 = 32;

/// What the network had to do again, at both ends: a connection that waits too long for a packet, where others have the cores,
/// keeps books of what is lost from then on.
fn again(node: &Node, client: &Client) -> [u64; 4] {
    let nic = node.figures().nic;
    [nic.timeouts, nic.retransmits, nic.sequence_naks, client.counters().retransmits]
}

/// Allocations while `work` is done in which nothing was sent again.
fn of_undisturbed(node: &Node, client: &mut Client, mut work: impl FnMut(&mut Client)) -> u64 {
    for _ in 0..20 {
        let had = again(node, client);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        work(client);
        let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
        if again(node, client) == had {
            return allocated;
        }
    }
    panic!("packets are late without end");
}

/// Allocations during a thousand calls, after as many to warm up twice over.
fn of_calls(
    node: &Node,
    client: &mut Client,
    (placement, ring): (Option<Placement>, bool),
    params: &[u8],
    expected: &[u8],
) -> u64 {
    let thousand = |client: &mut Client, under_way: u32| {
        let (mut next, mut ended) = (0, 0);
        while ended < 1000 {
            while next < 1000 && next < ended + under_way {
                match placement {
                    Some(placement) => {
                        let submit = if ring { Client::submit_by_ring } else { Client::submit };
                        submit(client, placement, op::CONSISTENCY, params, next).expect("room");
                    }
                    None => {
                        let kind = CallKind::of(op::CONSISTENCY, params);
                        client.submit_auto(kind, params, ring, next).expect("room");
                    }
                }
                next += 1;
            }
            let check = &mut |_, status, reply: &[u8]| assert!(status == Status::Ok && reply == expected);
            ended += client.poll(check).expect("connection") as u32;
        }
    };
    // While it warms up more are under way than ever after: whether the node has had as many at once is not left to chance.
    (0..2).for_each(|_| thousand(client, 4 * IN_FLIGHT));
    of_undisturbed(node, client, |client| thousand(client, IN_FLIGHT))
}

#[test]
fn calls_and_reads_allocate_nothing_once_warm() {
    let ip = |last| IpAddr::V4(Ipv4Addr::new(127, 12, 0, last));
    for (last, link) in [(2, LinkKind::Shm), (3, LinkKind::Udp)] {
        // A node of its own: one that still sees to a client that went would allocate for that.
        let node = Node::start(NodeConfig::new(ip(1))).expect("node");
        let mut client = Client::connect(ClientConfig { link: Some(link), ..ClientConfig::new(ip(1), ip(last)) })
            .expect("connection");
        let region = client.alloc(1 << 20).expect("memory");
        let mut object = vec![0; 256];
        fill_object(1, 1, &mut object);
        client.write(&region, 0, &object).expect("write");
        let params = ConsistencyParams { address: region.va, key: region.key, len: 256, max_tries: 1 }.encode();
        let (_, reply) = client.call(Placement::Host, op::CONSISTENCY, &params).expect("call");
        assert_eq!(reply[..248], object[..248]);
        for placement in [Placement::Client, Placement::Nic, Placement::Host].map(Some).into_iter().chain([None]) {
            assert_eq!(
                of_calls(&node, &mut client, (placement, false), &params, &reply),
                0,
                "{placement:?} over {link:?}"
            );
        }
        for placement in [Placement::Nic, Placement::Host] {
            client.open_rings(placement, RingConfig::default()).expect("rings");
            assert_eq!(
                of_calls(&node, &mut client, (Some(placement), true), &params, &reply),
                0,
                "ring, {placement:?}, {link:?}"
            );
        }
        let mut out = vec![0; 300_000];
        let mut read = |client: &mut Client| (0..10).for_each(|_| client.read(&region, 8, &mut out).expect("read"));
        read(&mut client);
        assert_eq!(of_undisturbed(&node, &mut client, read), 0, "READs over {link:?}");
        drop(client);
        node.shutdown();
    }
}
