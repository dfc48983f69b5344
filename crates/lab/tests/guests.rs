//! Guests that take all they may of a node hold up no other.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use remora_kernel::{Status, op};
use remora_lab::guest::{Deed, Guest, GuestPlan};
use remora_real::{LinkKind, Node, NodeConfig};
use remora_service::control;
use remora_testing::eventually;

const CONNECTIONS: usize = 16;

fn address(host: u8, last: u8) -> IpAddr {
    Ipv4Addr::new(127, 19, host, last).into()
}

fn node(host: u8) -> Node {
    let config = NodeConfig {
        memory_limit: 64 << 20,
        connections: CONNECTIONS as u32,
        deadline: Duration::from_millis(500),
        ..NodeConfig::new(address(host, 1))
    };
    Node::start(config).expect("node")
}

fn guest(host: u8, last: u8, plan: GuestPlan) -> Guest {
    Guest::new(address(host, 1), address(host, last), LinkKind::Udp, plan).expect("guest")
}

fn plan(deed: Deed, connections: usize, depth: usize) -> GuestPlan {
    GuestPlan { deed, connections, depth, takes_replies: true }
}

/// A neighbour's deeds of every kind end, while another guest has all that it may.
fn is_served(host: u8, other: &mut Guest) {
    let host_call = Deed::Host { op: op::GET, params: vec![0; 4] };
    let deeds = [
        (Deed::Nic { op: op::GET, params: vec![0; 4] }, Status::BadParams),
        (host_call, Status::BadParams),
        (Deed::Stream { op: op::CHECKSUM, len: 100_000 }, Status::Ok),
        (Deed::Borrow(4096), Status::Ok),
        (Deed::Visit, Status::Ok),
    ];
    for (last, (deed, status)) in (100..).zip(deeds) {
        let mut neighbour = guest(host, last, plan(deed.clone(), 1, 1));
        let mut done = Vec::new();
        eventually(format!("{deed:?}"), || {
            neighbour.poll().expect("poll");
            other.poll().expect("poll");
            done.extend(neighbour.take_done());
            (done.len() >= 20).then_some(())
        });
        assert!(done.iter().all(|&(ended, _)| ended == status), "{deed:?}");
    }
}

fn until(what: &str, guest: &mut Guest, mut there: impl FnMut(&mut Guest) -> bool) {
    eventually(what, || {
        guest.poll().expect("poll");
        there(guest).then_some(())
    });
}

#[test]
fn payload_that_never_comes_holds_up_nobody() {
    let node = node(1);
    let mut other = guest(1, 2, plan(Deed::Promise { op: op::CHECKSUM }, CONNECTIONS, 1));
    until("promises", &mut other, |other| other.under_way() == CONNECTIONS);
    is_served(1, &mut other);
    node.shutdown();
}

#[test]
fn replies_that_nobody_takes_hold_up_nobody_and_end_their_connections() {
    let node = node(2);
    let deed = Deed::Host { op: control::op::CPU, params: vec![] };
    let mut other = guest(2, 2, GuestPlan { takes_replies: false, ..plan(deed, 4, 64) });
    until("calls", &mut other, |other| other.under_way() == 256);
    is_served(2, &mut other);
    until("the node takes leave of it", &mut other, |other| other.refused() > 0);
    node.shutdown();
}

#[test]
fn memory_of_which_a_client_takes_all_it_may_is_there_for_others_and_comes_back() {
    let node = node(3);
    let mut other = guest(3, 2, plan(Deed::Hoard(4096), 1, 64));
    until("refusal", &mut other, |other| other.take_done().iter().any(|&(status, _)| status != Status::Ok));
    is_served(3, &mut other);
    // It comes and goes with thousands of regions each time; what it left is given back all the same.
    drop(other);
    let mut neighbour = guest(3, 3, plan(Deed::Borrow(30 << 20), 1, 1));
    until("nearly half of the node's memory", &mut neighbour, |neighbour| {
        neighbour.take_done().iter().any(|&(status, _)| status == Status::Ok)
    });
    node.shutdown();
}

#[test]
fn an_address_has_so_many_connections_and_no_more() {
    let node = node(4);
    let mut other = guest(4, 2, plan(Deed::Stay, CONNECTIONS + 8, 1));
    until("refusals", &mut other, |other| other.refused() > 20 && other.connections() == CONNECTIONS);
    is_served(4, &mut other);
    assert_eq!(other.connections(), CONNECTIONS);
    node.shutdown();
}
