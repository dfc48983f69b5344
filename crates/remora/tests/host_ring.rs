//! Rings between two processes: this test program, and itself once more.

use std::process::{Child, Command, Stdio};

use remora::{HostRing, RingShape};
use remora_testing::eventually;

/// The name of the ring, for a child.
const NAME: &str = "REMORA_HOST_RING";

fn child(ring: &HostRing) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "a_child_answers", "--nocapture"]).stdout(Stdio::null());
    command.env(NAME, ring.name()).spawn().expect("a child")
}

fn send(ring: &mut HostRing, message: &[u8]) {
    while !ring.send(message).expect("a ring") {
        std::thread::yield_now();
    }
}

/// What children run; nothing in the parent: every message comes back with its bytes turned, and "end" ends it.
#[test]
fn a_child_answers() {
    let Ok(name) = std::env::var(NAME) else { return };
    let (mut ring, mut message) = (HostRing::open(&name).expect("the ring"), Vec::new());
    while message != b"end" {
        match ring.receive(&mut message).expect("a ring") {
            true => {
                message.iter_mut().for_each(|byte| *byte = !*byte);
                send(&mut ring, &message);
                message.iter_mut().for_each(|byte| *byte = !*byte);
            }
            false => std::thread::yield_now(),
        }
    }
}

#[test]
fn messages_of_any_length_up_to_the_rings_go_to_another_process_and_back() {
    let mut ring = HostRing::create(RingShape::new(1024, 512).expect("a shape")).expect("a ring");
    let longest = ring.longest();
    assert!(longest > 500 << 10, "{longest}");
    let mut child = child(&ring);
    let message = |n: usize, len: usize| (0..len).map(|at| (at * 7 + n) as u8).collect::<Vec<u8>>();
    let lengths = [1, 100, longest, 7, 70_000, 64, 513, 200_000, longest, 3];
    let mut found = Vec::new();
    for n in 0..200 {
        let sent = message(n, lengths[n % lengths.len()]);
        send(&mut ring, &sent);
        eventually("its answer", || ring.receive(&mut found).expect("a ring").then_some(()));
        assert!(found.len() == sent.len() && found.iter().zip(&sent).all(|(a, b)| *a == !*b), "message {n}");
    }
    // Many at once.
    let (mut asked, mut answered) = (0, 0);
    while answered < 20_000 {
        while asked < 20_000 && ring.send(&message(asked, 1 + asked % 300)).expect("a ring") {
            asked += 1;
        }
        while ring.receive(&mut found).expect("a ring") {
            assert!(found.iter().zip(message(answered, 1 + answered % 300)).all(|(a, b)| *a == !b), "{answered}");
            assert_eq!(found.len(), 1 + answered % 300);
            answered += 1;
        }
        std::thread::yield_now();
    }
    let refused = ring.send(&vec![0; longest + 1]).expect_err("it is too long").to_string();
    assert!(refused.contains(&longest.to_string()), "{refused}");
    let third = HostRing::open(ring.name()).expect_err("a third end").to_string();
    assert!(third.contains("both of its ends"), "{third}");
    send(&mut ring, b"end");
    assert!(child.wait().expect("a child").success());
}

#[test]
fn a_child_that_is_killed_is_one_that_does_not_read() {
    let mut ring = HostRing::create(RingShape::default()).expect("a ring");
    let mut child = child(&ring);
    let mut found = Vec::new();
    send(&mut ring, b"first");
    eventually("its answer", || ring.receive(&mut found).expect("a ring").then_some(()));
    for _ in 0..500 {
        let _ = ring.send(&[9; 90]).expect("a ring");
    }
    child.kill().expect("a child");
    child.wait().expect("a child");
    while ring.receive(&mut found).expect("a ring") {
        assert_eq!(found, [!9; 90]);
    }
    let more = (0..10_000).take_while(|_| ring.send(&[9; 90]).expect("a ring")).count();
    assert!(more <= 1024, "{more}");
}

#[test]
fn what_is_no_name_is_refused() {
    for name in ["", "1-2-3", "a-b-c-d-e", "1-2-3-5-64", "4000000000-1-1-64-64", "1-2-3-64-64"] {
        let refused = HostRing::open(name).expect_err(name).to_string();
        assert!(refused.contains(name) || refused.contains("5 entries of 64 bytes"), "{name}: {refused}");
    }
}
