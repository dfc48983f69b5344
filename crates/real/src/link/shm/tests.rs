use super::*;
use crate::link::testing::{collect, packets, readable};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::SendFlags;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Instant;

fn ip(c: u8, d: u8) -> IpAddr {
    Ipv4Addr::new(127, 2, c, d).into()
}

/// Two links that have joined up, the first having connected.
fn pair(c: u8) -> (ShmLink, ShmLink) {
    let (mut a, mut b) = (ShmLink::bind(ip(c, 1)).unwrap(), ShmLink::bind(ip(c, 2)).unwrap());
    assert!(a.connect(ip(c, 2)).unwrap());
    b.look();
    (a, b)
}

#[test]
fn packets_arrive_whole_both_ways() {
    let (mut a, mut b) = pair(0);
    for len in [16, 17, 96, 1000, 4200] {
        let (mut bytes, lens) = packets(&[len, len, 20]);
        assert_eq!(a.send(ip(0, 2), &mut bytes, &lens).unwrap(), 3);
        let got = collect(&mut b, 3);
        assert!(got.iter().all(|(from, _)| *from == ip(0, 1)));
        assert_eq!(got.into_iter().flat_map(|(_, packet)| packet).collect::<Vec<_>>(), bytes);
        assert_eq!(b.send(ip(0, 1), &mut bytes, &lens).unwrap(), 3);
        assert_eq!(collect(&mut a, 3)[0].0, ip(0, 2));
    }
    assert_eq!(a.stats().tx_bytes, b.stats().rx_bytes);
}

#[test]
fn two_threads_move_a_million_packets_in_order() {
    let (mut a, mut b) = pair(1);
    let count = 1_000_000u64;
    let sender = std::thread::spawn(move || {
        let mut next = 0u64;
        while next < count {
            let (mut bytes, mut lens) = ([0; 32 * 64], [0u16; 32]);
            let batch = 32.min(count - next) as usize;
            let mut at = 0;
            for (n, len) in (next..).zip(&mut lens[..batch]) {
                *len = 16 + (n % 49) as u16;
                bytes[at..at + 8].copy_from_slice(&n.to_le_bytes());
                at += usize::from(*len);
            }
            next += a.send(ip(1, 2), &mut bytes, &lens[..batch]).unwrap() as u64;
        }
        a
    });
    let mut next = 0u64;
    while next < count {
        b.recv(&mut |_, packet| {
            assert_eq!(packet[..8], next.to_le_bytes());
            assert_eq!(packet.len() as u64, 16 + next % 49);
            next += 1;
        })
        .unwrap();
    }
    sender.join().unwrap();
}

#[test]
fn a_new_peer_is_served_while_the_link_is_polled() {
    let (mut a, mut b) = (ShmLink::bind(ip(2, 1)).unwrap(), ShmLink::bind(ip(2, 2)).unwrap());
    let (mut bytes, lens) = packets(&[64]);
    assert!(a.connect(ip(2, 2)).unwrap() && a.connect(ip(2, 2)).unwrap());
    a.send(ip(2, 2), &mut bytes, &lens).unwrap();
    let mut polls = 0;
    while b.recv(&mut |_, _| {}).unwrap() == 0 {
        polls += 1;
        assert!(polls <= WORK_PER_LOOK);
    }
    // Both at once leaves two pairs of rings, and everything arrives.
    let (mut c, mut d) = (ShmLink::bind(ip(2, 3)).unwrap(), ShmLink::bind(ip(2, 4)).unwrap());
    assert!(c.connect(ip(2, 4)).unwrap() && d.connect(ip(2, 3)).unwrap());
    for _ in 0..2 {
        c.send(ip(2, 4), &mut bytes, &lens).unwrap();
        d.send(ip(2, 3), &mut bytes, &lens).unwrap();
        c.look();
        d.look();
    }
    assert_eq!((collect(&mut c, 2).len(), collect(&mut d, 2).len()), (2, 2));
}

#[test]
fn nobody_and_other_namespaces_are_not_peers() {
    let mut a = ShmLink::bind(ip(3, 1)).unwrap();
    assert!(!a.connect(ip(3, 2)).unwrap());
    let (mut bytes, lens) = packets(&[64]);
    assert_eq!(a.send(ip(3, 2), &mut bytes, &lens).unwrap_err().kind(), io::ErrorKind::NotConnected);
    assert_eq!(ShmLink::bind(ip(3, 1)).err().unwrap().kind(), io::ErrorKind::AddrInUse);
    crate::link::testing::in_namespace(|| {
        let mut elsewhere = ShmLink::bind(ip(3, 2)).unwrap();
        assert!(!elsewhere.connect(ip(3, 1)).unwrap());
    });
}

#[test]
fn another_user_is_not_a_peer() {
    let mut a = ShmLink::bind(ip(4, 1)).unwrap();
    let (mut bytes, lens) = packets(&[64]);
    std::thread::spawn(move || {
        let another = Uid::from_raw(rustix::process::geteuid().as_raw() ^ 65534);
        if let Err(e) = rustix::thread::set_thread_res_uid(another, another, another) {
            return remora_testing::skip(format!("cannot become another user ({e})"), "Run it as root");
        }
        let mut other = ShmLink::bind(ip(4, 2)).unwrap();
        assert!(!other.connect(ip(4, 1)).unwrap(), "refused by the one that connects");
        // One that does not ask is refused by the other end.
        let (socket, (_, file)) = (unix_socket().unwrap(), Buffer::shared(2 * RING_BYTES).unwrap());
        net::connect(&socket, &name_of(ip(4, 1)).unwrap()).unwrap();
        say_hello(&socket, &file, ip(4, 2)).unwrap();
        a.look();
        assert!(!a.has_peer(ip(4, 2)));
        assert!(a.send(ip(4, 2), &mut bytes, &lens).is_err());
    })
    .join()
    .unwrap();
}

#[test]
fn an_armed_link_wakes_for_packets_peers_and_their_end() {
    let (mut a, mut b) = pair(5);
    let (mut bytes, lens) = packets(&[64]);
    assert!(b.arm());
    assert!(!readable(&b));
    a.send(ip(5, 2), &mut bytes, &lens).unwrap();
    assert!(readable(&b));
    b.disarm();
    assert_eq!(collect(&mut b, 1).len(), 1);
    assert!(b.arm());
    assert!(!readable(&b), "the doorbell is heard");
    a.send(ip(5, 2), &mut bytes, &lens).unwrap();
    b.disarm();
    assert!(!b.arm(), "a packet waits");
    assert_eq!(collect(&mut b, 1).len(), 1);

    assert!(b.arm());
    let mut c = ShmLink::bind(ip(5, 3)).unwrap();
    assert!(c.connect(ip(5, 2)).unwrap());
    b.look();
    assert!(readable(&b), "whoever else receives leaves a new peer to who sleeps");
    b.disarm();
    c.send(ip(5, 2), &mut bytes, &lens).unwrap();
    drop(c);
    assert_eq!(collect(&mut b, 1)[0].0, ip(5, 3), "what a peer sent before its end arrives");
    assert!(b.has_peer(ip(5, 1)));
    drop(a);
    // Another test may just start child processes, each of which holds sockets until it has become another program: the
    // ends of `a` and `c` may be seen late and in any order.
    remora_testing::eventually("the peers' ends", || {
        assert_eq!(b.recv(&mut |_, _| {}).unwrap(), 0);
        (b.arm() && b.peers.is_empty()).then_some(())
    });
    assert!(!b.has_peer(ip(5, 1)));
}

#[test]
fn peers_are_shared_out_among_the_engines_of_an_address() {
    let mut links: Vec<ShmLink> = ShmPort::bind(ip(13, 1), 2).unwrap().into_iter().map(ShmLink::at).collect();
    assert!(ShmPort::bind(ip(13, 1), 2).is_err());
    let call = |d: u8| {
        let mut peer = ShmLink::bind(ip(13, d)).unwrap();
        assert!(peer.connect(ip(13, 1)).unwrap());
        peer
    };
    let mut peers: Vec<(u8, ShmLink)> = (2..6).map(|d| (d, call(d))).collect();
    links.iter_mut().for_each(ShmLink::look);
    let (mut bytes, lens) = packets(&[64]);
    for (d, peer) in &mut peers {
        let (from, mut its) = (ip(13, *d), links.iter_mut().filter(|link| link.has_peer(ip(13, *d))));
        let (Some(link), None) = (its.next(), its.next()) else { panic!("{from} is one engine's") };
        peer.send(ip(13, 1), &mut bytes, &lens).unwrap();
        assert_eq!(collect(link, 1)[0].0, from);
        assert_eq!(link.send(from, &mut bytes, &lens).unwrap(), 1);
        assert_eq!(collect(peer, 1).len(), 1);
    }
    assert!(links.iter().all(|link| link.peers.len() == 2));
    // Who comes next has the place of those that left, and wakes the engine that sleeps there.
    let theirs: Vec<u8> = peers.iter().map(|(d, _)| *d).filter(|d| links[1].has_peer(ip(13, *d))).collect();
    peers.retain(|(d, _)| !theirs.contains(d));
    remora_testing::eventually("the ends", || {
        links[1].recv(&mut |_, _| {}).unwrap();
        (links[1].arm() && links[1].peers.is_empty()).then_some(())
    });
    assert!(!readable(&links[1]));
    let _one = call(theirs[0]);
    links[0].look();
    assert!(readable(&links[1]) && links[0].peers.len() == 2);
    links[1].disarm();
    links[1].look();
    assert!(links[1].has_peer(ip(13, theirs[0])) && links[1].arm() && !readable(&links[1]));
}

/// One thread sleeps on an armed link while another receives from it: whatever that one hears, the sleeper still
/// wakes for what comes later.
#[test]
fn a_doorbell_that_another_thread_hears_is_not_the_last() {
    let (mut a, mut b) = pair(8);
    let (mut bytes, lens) = packets(&[64]);
    assert!(b.arm());
    for _ in 0..3 {
        a.send(ip(8, 2), &mut bytes, &lens).unwrap();
        assert!(readable(&b));
        b.look();
        assert_eq!(collect(&mut b, 1).len(), 1);
        assert!(!readable(&b), "the doorbell is heard");
    }
    b.disarm();
    a.send(ip(8, 2), &mut bytes, &lens).unwrap();
    assert!(!readable(&b), "nobody sleeps");
}

/// A packet that comes while its receiver is about to sleep either keeps it awake or wakes it, however the two meet.
#[test]
fn no_wake_up_is_lost() {
    let (mut a, mut b) = pair(11);
    let (ready, count) = (std::sync::Barrier::new(2), 5_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut bytes, lens) = packets(&[64]);
            for n in 0..count {
                ready.wait();
                (0..n % 97).for_each(|_| std::hint::spin_loop());
                assert_eq!(a.send(ip(11, 2), &mut bytes, &lens).unwrap(), 1);
            }
        });
        for n in 0..count {
            ready.wait();
            (0..n % 89).for_each(|_| std::hint::spin_loop());
            if b.arm() {
                let deadline = Instant::now() + remora_testing::PATIENCE;
                while !readable(&b) {
                    assert!(Instant::now() < deadline, "it sleeps on, and packet {n} is there");
                }
                b.disarm();
            }
            assert_eq!(collect(&mut b, 1).len(), 1);
        }
    });
}

/// Who cannot have barriers made for it says so, and is woken all the same; a peer that lies about it harms itself.
#[test]
fn who_makes_no_barrier_is_woken_by_who_makes_his_own() {
    let (mut a, mut b) = pair(12);
    let (mut bytes, lens) = packets(&[64]);
    for says in [0, 1, u64::MAX] {
        b.peers[0].rx.say_barrier(says);
        assert!(b.arm());
        a.send(ip(12, 2), &mut bytes, &lens).unwrap();
        assert!(readable(&b));
        b.disarm();
        assert_eq!(collect(&mut b, 1).len(), 1);
    }
}

#[test]
fn forged_hellos_and_broken_rings_cost_only_the_peer() {
    let mut node = ShmLink::bind(ip(6, 1)).unwrap();
    let connect = || {
        let socket = unix_socket().unwrap();
        net::connect(&socket, &name_of(ip(6, 1)).unwrap()).unwrap();
        socket
    };
    let silent = connect();
    let garbage = connect();
    net::send(&garbage, &[7; 200], SendFlags::empty()).unwrap();
    let unsealed = connect();
    let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 2 * RING_BYTES as u64).unwrap();
    say_hello(&unsealed, &file, ip(6, 2)).unwrap();
    let short = connect();
    say_hello(&short, &Buffer::shared(4096).unwrap().1, ip(6, 3)).unwrap();
    node.look();
    assert_eq!((node.strangers.len(), node.peers.len(), node.stats().malformed), (1, 0, 3));
    drop(silent);
    // Another test may just start a child process, which holds the socket until it has become another program.
    remora_testing::eventually("the stranger's end", || {
        node.look();
        node.strangers.is_empty().then_some(())
    });

    let (scribbler, (shared, file)) = (connect(), Buffer::shared(2 * RING_BYTES).unwrap());
    say_hello(&scribbler, &file, ip(6, 4)).unwrap();
    node.look();
    assert!(node.has_peer(ip(6, 4)));
    shared.fill(0, 2 * RING_BYTES, 0x5a).unwrap();
    let (mut bytes, lens) = packets(&[64]);
    node.send(ip(6, 4), &mut bytes, &lens).unwrap();
    assert_eq!(node.recv(&mut |_, _| panic!("nothing was sent")).unwrap(), 0);
    assert!(node.peers.is_empty());
    for _ in 0..2 * MAX_STRANGERS {
        connect();
    }
    node.look();
    node.look();
    assert!(node.strangers.len() <= MAX_STRANGERS);
}

/// A peer that connects by itself, and does with its end what it likes.
fn liar(node: IpAddr, itself: IpAddr) -> (OwnedFd, Producer) {
    let (socket, (shared, file)) = (unix_socket().unwrap(), Buffer::shared(2 * RING_BYTES).unwrap());
    net::connect(&socket, &name_of(node).unwrap()).unwrap();
    say_hello(&socket, &file, itself).unwrap();
    (socket, Producer::new(shared, 0))
}

/// Puts a record that refers to bytes into a ring.
fn refer(tx: &mut Producer, reference: Reference, headers: &[u8]) {
    let room = tx.lend().unwrap();
    let record = [&reference.to_bytes()[..], headers].concat();
    room.buffer.write(room.start + Room::GAP, &record).unwrap();
    tx.push_lent(&[record.len() as u16], 1);
    tx.publish();
}

#[test]
fn payload_of_lent_memory_is_read_where_it_is_until_the_loan_is_over() {
    let mut node = ShmLink::bind(ip(9, 1)).unwrap();
    let (socket, mut tx) = liar(ip(9, 1), ip(9, 2));
    node.look();
    let lent = Buffer::lendable(9000).unwrap();
    lent.fill(0, 9000, 5).unwrap();
    lent.fill(4000, 5000, 6).unwrap();
    say_loan(&socket, 3, 9000, lent.file().unwrap()).unwrap();
    assert_eq!(tx.loan(3), LOAN_NONE);
    node.look();
    assert_eq!(tx.loan(3), LOAN_MAPPED);
    let term = View::map(lent.file().unwrap(), 9000).unwrap().term();
    let good = Reference { slot: 3, len: 102, term, offset: 3950 };
    refer(&mut tx, good, &[1; 28]);
    let (_, packet) = collect(&mut node, 1).remove(0);
    // Headers, payload, pad and ICRC.
    assert_eq!(packet.len(), 28 + 104 + 4);
    assert_eq!(packet[..130], [&[1; 28][..], &[5; 50], &[6; 52]].concat());
    // What no honest peer refers to, and what an honest one has taken back.
    let bad = [
        Reference { slot: 4, ..good },
        Reference { slot: u32::MAX, ..good },
        Reference { offset: 8900, ..good },
        Reference { offset: u64::MAX - 50, ..good },
        Reference { len: u32::MAX, ..good },
        Reference { len: 4300, ..good },
        Reference { term: term + 1, ..good },
    ];
    for reference in bad {
        refer(&mut tx, reference, &[1; 28]);
    }
    refer(&mut tx, good, &[2; 20]);
    let got = collect(&mut node, 1);
    assert!(got.len() == 1 && got[0].1[..20] == [2; 20], "only the last one");
    say_over(&socket, 3).unwrap();
    node.look();
    assert_eq!(tx.loan(3), LOAN_NONE);
    refer(&mut tx, good, &[3; 20]);
    assert_eq!(node.recv(&mut |_, _| panic!("the loan is over")).unwrap(), 1);
    assert!(node.has_peer(ip(9, 2)), "it may have been on its way");
}

#[test]
fn loans_that_could_harm_are_refused_and_nonsense_ends_the_peer() {
    let mut node = ShmLink::bind(ip(10, 1)).unwrap();
    let (socket, tx) = liar(ip(10, 1), ip(10, 2));
    let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 1 << 20).unwrap();
    let lent = Buffer::lendable(9000).unwrap();
    use std::os::fd::AsFd;
    say_loan(&socket, 0, 8192, file.as_fd()).unwrap();
    say_loan(&socket, 1, 1 << 30, lent.file().unwrap()).unwrap();
    say_loan(&socket, 2, usize::MAX, lent.file().unwrap()).unwrap();
    say_loan(&socket, 5, 0, lent.file().unwrap()).unwrap();
    say_loan(&socket, 63, 9000, lent.file().unwrap()).unwrap();
    node.look();
    assert_eq!([0, 1, 2, 5, 63, 7].map(|slot| tx.loan(slot)), [2, 2, 2, 2, 1, 0]);
    assert!(node.has_peer(ip(10, 2)));
    for (at, message) in [&[2u8, 64, 0, 0, 0, 0, 0, 0, 0, 0][..], &[3, 64], &[9], &[1, 1]].into_iter().enumerate() {
        let peer = ip(10, 3 + at as u8);
        let (socket, _tx) = liar(ip(10, 1), peer);
        node.look();
        assert!(node.has_peer(peer));
        net::send(&socket, message, SendFlags::empty()).unwrap();
        node.look();
        assert!(!node.has_peer(peer), "{message:?}");
    }
}

/// The other process of the test below, which runs it.
#[test]
#[ignore = "run by between_processes"]
fn child() {
    let mut link = ShmLink::bind(ip(7, 2)).unwrap();
    assert!(link.connect(ip(7, 1)).unwrap());
    let (from, mut packet) = collect(&mut link, 1).remove(0);
    let len = packet.len() as u16;
    link.send(from, &mut packet, &[len]).unwrap();
    std::thread::park();
}

#[test]
fn between_processes() {
    let mut link = ShmLink::bind(ip(7, 1)).unwrap();
    let (_crate, test) = concat!(module_path!(), "::child").split_once("::").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", test])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + remora_testing::PATIENCE;
    while !link.has_peer(ip(7, 2)) {
        link.look();
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "the child never connected");
    }
    let (mut bytes, lens) = packets(&[64, 4200]);
    link.send(ip(7, 2), &mut bytes, &lens[..1]).unwrap();
    assert_eq!(collect(&mut link, 1), [(ip(7, 2), bytes[..64].to_vec())]);
    child.kill().unwrap();
    child.wait().unwrap();
    link.look();
    link.recv(&mut |_, _| {}).unwrap();
    assert!(!link.has_peer(ip(7, 2)));
}
