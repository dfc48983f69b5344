//! What it takes to find memory that nobody has lent: key and address, both at random, and a connection for every few
//! tries.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use remora_kernel::{ConsistencyParams, Placement, Status, op};
use remora_real::{Client, ClientConfig, Error, LinkKind, Node, NodeConfig, RemoteRegion};
use remora_service::control;

const LENT: u64 = 1 << 30;

fn ip(host: u8, last: u8) -> IpAddr {
    Ipv4Addr::new(127, 14, host, last).into()
}

fn node(host: u8) -> Node {
    Node::start(NodeConfig { memory_limit: 4 * LENT, ..NodeConfig::new(ip(host, 1)) }).expect("node")
}

fn client(host: u8, last: u8) -> Client {
    let config = ClientConfig { link: Some(LinkKind::Udp), ..ClientConfig::new(ip(host, 1), ip(host, last)) };
    Client::connect(config).expect("connection")
}

fn read(client: &mut Client, placement: Placement, key: u32, address: u64) -> Result<Status, Error> {
    let params = ConsistencyParams { address, key, len: 64, max_tries: 1 }.encode();
    client.call(placement, op::CONSISTENCY, &params).map(|(status, _)| status)
}

/// Tries until the connection ends; how many that were.
fn until_cut_off(mut one: impl FnMut(u64) -> Result<Status, Error>) -> u64 {
    for tries in 0..1000 {
        match one(tries) {
            Ok(status) => assert_eq!(status, Status::AccessDenied),
            Err(Error::Lost { .. }) => return tries,
            Err(other) => panic!("{other}"),
        }
    }
    panic!("1,000 wrong keys cost nothing");
}

#[test]
fn wrong_keys_cost_the_connection_wherever_they_are_named() {
    let node = node(1);
    let mut owner = client(1, 2);
    let region = owner.alloc(4096).expect("memory");
    for (last, placement) in [(3, Placement::Nic), (4, Placement::Host)] {
        let mut client = client(1, last);
        assert!(matches!(read(&mut client, placement, region.key, region.va), Ok(Status::Ok | Status::Inconsistent)));
        // Each nearly right: the key of one bit, or the address just outside.
        let tries = until_cut_off(|n| match n % 2 {
            0 => read(&mut client, placement, region.key ^ 1 << (n % 32), region.va),
            _ => read(&mut client, placement, region.key, region.va + 4096 - 63 + n),
        });
        assert!(tries <= 16, "{placement:?}: {tries}");
    }
    // The node's own calls that name memory.
    let mut sketcher = client(1, 5);
    let registers = sketcher.alloc(4096).expect("memory");
    let wrong = RemoteRegion { va: region.va + 4096, ..region };
    let tries = until_cut_off(|_| match sketcher.attach_sketch(&wrong, &registers, 10) {
        Err(Error::Node { .. }) => Ok(Status::AccessDenied),
        Err(other) => Err(other),
        Ok(()) => Ok(Status::Ok),
    });
    assert!(tries <= 16, "{tries}");
    assert!(owner.write(&region, 0, &[1; 8]).is_ok(), "others notice nothing");
    node.shutdown();
}

/// The rate at which one client tries, and what it would take it to find any byte of what others have.
#[test]
fn a_first_hit_takes_over_a_century() {
    const SECOND: f64 = 1.0;
    const CENTURY: f64 = 100.0 * 365.25 * 86_400.0 * SECOND;
    let node = node(2);
    let mut owner = client(2, 2);
    let regions: Vec<_> = (0..64).map(|_| owner.alloc(LENT / 64).expect("memory")).collect();
    let lent: u64 = regions.iter().map(|region| region.len).sum();

    // It knows one region's key and address, as one that it was lent; the others' follow from it in no way.
    let (mut tries, mut connections, mut state) = (0u64, 0u64, regions[0].va ^ u64::from(regions[0].key));
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        let mut client = client(2, 3);
        connections += 1;
        loop {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (key, va) = ((state >> 32) as u32, state.rotate_left(17) >> 1);
            match read(&mut client, Placement::Nic, key, va) {
                Ok(status) => assert_eq!(status, Status::AccessDenied, "a hit"),
                Err(_) => break,
            }
            tries += 1;
        }
    }
    let rate = tries as f64 / start.elapsed().as_secs_f64();
    // A pair of key and address is right for as many of all pairs as bytes are lent.
    let pairs = 2f64.powi(32) * 2f64.powi(63);
    let measured = pairs / lent as f64 / rate;
    // As if a million clients were at it, or every packet of 100 Gbit/s were a try.
    let at_most = pairs / lent as f64 / 150e6;
    println!(
        "{tries} tries on {connections} connections, {rate:.0}/s, {} MB lent: {:.1e} centuries; at 150 M/s {:.1e}",
        lent >> 20,
        measured / CENTURY,
        at_most / CENTURY
    );
    assert!(at_most > CENTURY && measured > CENTURY);
    node.shutdown();
}

/// The addresses, on which the test above counts, are drawn anew for each region, wherever the memory lies.
#[test]
fn addresses_tell_nothing_of_each_other() {
    let node = node(3);
    let mut client = client(3, 2);
    let mut flips = [0u32; 63];
    let mut before = 0;
    for _ in 0..256 {
        let region = client.alloc(4096).expect("memory");
        for (bit, count) in flips.iter_mut().enumerate() {
            *count += ((region.va ^ before) >> bit & 1) as u32;
        }
        before = region.va;
        client.free(&region).expect("free");
    }
    // 51 bits above the page; 256 fair throws stay within 8 standard deviations.
    assert!(flips[12..].iter().all(|count| (64..192).contains(count)), "{flips:?}");
    assert!(control::u64_at(&before.to_le_bytes(), 0) < Some(1 << 63));
    node.shutdown();
}
