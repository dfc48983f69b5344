//! Answers and acknowledgements come soon, whatever else a device has to do, and timers run from when they are set.

use std::net::{IpAddr, Ipv4Addr};

use remora_kernel::{Call, Status, runner};
use remora_memory::Buffer;
use remora_nic::{Qpn, RtsAttr, WcStatus};
use remora_real::Kernels;
use remora_real::link::Link;
use remora_real::link::shm::ShmLink;
use remora_wire::rpc::RpcHeader;

#[path = "common/end.rs"]
mod end;

use end::End;

/// The op-code of a kernel that answers at once.
const NOTHING: u64 = 0x900;

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 9, 41, last).into()
}

/// Ends of which the first is reached by the others.
fn ends<const N: usize>(first: u8) -> [End; N] {
    let mut links = [(); N].map(|()| None);
    for (at, link) in links.iter_mut().enumerate() {
        let mut made = ShmLink::bind(ip(first + at as u8)).unwrap();
        assert!(at == 0 || made.reach(ip(first)).unwrap());
        *link = Some(made);
    }
    let mut at = first;
    links.map(|link| {
        let kernels = Kernels::new(runner(|call: Call| async { (call, Status::Ok) }, 8), vec![NOTHING]);
        let end = End::new(ip(at), link.unwrap(), Buffer::anonymous(4096).unwrap(), Some(kernels));
        end.device.keep(true);
        at += 1;
        end
    })
}

/// A queue pair of a client to one of the server's.
fn connect(server: &End, client: &End, attr: RtsAttr) -> Qpn {
    let (here, there) = (client.queue_pair(), server.queue_pair());
    client.join_as(here, server, there, attr);
    server.join_as(there, client, here, attr);
    here
}

fn turn(ends: &[&End]) {
    ends.iter().for_each(|end| _ = end.device.lock().progress());
}

/// Completions since this was last asked.
fn completed(end: &End) -> usize {
    let mut guard = end.device.lock();
    std::iter::from_fn(|| guard.nic().poll_cq(end.cq)).inspect(|wc| assert_eq!(wc.status, WcStatus::Success)).count()
}

#[test]
fn writes_complete_though_others_keep_their_peer_busy() {
    let [server, quiet, busy] = ends(1);
    // Nothing is sent again: what does not come by an acknowledgement does not come.
    let once = RtsAttr { timeout: 0, ..RtsAttr::default() };
    let [from_quiet, from_busy] = [&quiet, &busy].map(|client| connect(&server, client, once));
    // The first tells both that the other acknowledges by itself, once the server has looked for new peers.
    quiet.write_to(from_quiet, &server, true);
    assert!((0..100_000).any(|_| {
        turn(&[&server, &quiet]);
        completed(&quiet) == 1
    }));
    // Of the second eight none is asked about: they leave while the first eight are under way.
    for _ in 0..2 {
        (0..8).for_each(|_| quiet.write_to(from_quiet, &server, true));
        turn(&[&quiet, &server, &server]);
    }
    let mut done = 0;
    for _ in 0..1000 {
        busy.write_to(from_busy, &server, false);
        turn(&[&busy, &server, &quiet]);
        done += completed(&quiet);
    }
    assert_eq!(done, 16);
}

#[test]
fn who_polls_seldom_waits_as_long_for_an_acknowledgement_as_others() {
    let [server, client] = ends(4);
    // 67 ms.
    let qp = connect(&server, &client, RtsAttr { timeout: 14, ..RtsAttr::default() });
    for _ in 0..3 {
        turn(&[&client]);
        std::thread::sleep(std::time::Duration::from_millis(100));
        client.write_to(qp, &server, true);
        client.device.lock().transmit();
        // Long enough for it to look at the clock, and far too short for a timer.
        (0..40).for_each(|_| turn(&[&client]));
        assert_eq!(client.device.lock().nic().counters().retransmits, 0);
        assert!((0..100_000).any(|_| {
            turn(&[&client, &server]);
            completed(&client) == 1
        }));
    }
}

#[test]
fn what_a_kernel_answers_leaves_in_the_turn_that_ran_it() {
    let [server, client] = ends(7);
    let qp = connect(&server, &client, RtsAttr::default());
    let reply = client.region.va() + 1024;
    let header = RpcHeader { reply_va: reply, reply_rkey: client.region.key(), reply_capacity: 64, tag: 5, flags: 0 };
    let answered = |turns: &dyn Fn()| {
        let mut guard = client.device.lock();
        guard.nic().post_recv(qp, 2, &[]).unwrap();
        guard.nic().post_rpc(qp, 1, NOTHING, &header, &[]).unwrap();
        guard.progress();
        drop(guard);
        turns();
        turn(&[&client]);
        let mut guard = client.device.lock();
        std::iter::from_fn(|| guard.nic().poll_cq(client.cq)).any(|wc| wc.imm.is_some())
    };
    // The server has to look for new peers first.
    assert!(answered(&|| (0..10_000).for_each(|_| turn(&[&server]))));
    assert!(answered(&|| turn(&[&server])));
}
