//! Programs that watch their memory instead of polling, and programs that post without polling, get their packets.

use std::net::{IpAddr, Ipv4Addr};

use remora_memory::Buffer;
use remora_nic::{Data, SendOp, SendWr, WcStatus};
use remora_real::link::udp::UdpLink;
use remora_testing::eventually;

#[path = "common/end.rs"]
mod end;

use end::End;

fn end_at(last: u8) -> End {
    let at = IpAddr::V4(Ipv4Addr::new(127, 10, 0, last));
    End::new(at, UdpLink::bind(at).expect("link"), Buffer::anonymous(4096).expect("memory"), None)
}

/// Writes `word` to the peer's memory and sends as a program does that posts and then goes on.
fn write(end: &End, peer: &End, at: u64, word: u64) {
    let op = SendOp::Write { va: peer.region.va() + at, rkey: peer.region.key() };
    let mut guard = end.device.lock();
    let bytes = word.to_le_bytes();
    guard.nic().post_send(end.qp, &SendWr::new(word, op, Data::Inline(&bytes))).expect("post");
    guard.transmit_from(end.qp);
}

/// Reads memory until `word` stands there.
fn watch(end: &End, at: u64, word: u64) {
    let mut bytes = [0; 8];
    eventually(format!("word {word}"), || {
        end.buffer.read(at as usize, &mut bytes).expect("in bounds");
        (bytes == word.to_le_bytes()).then_some(())
    });
}

/// Polls until the next completion, as `ibv_poll_cq` does.
fn complete(end: &End) -> u64 {
    eventually("a completion", || {
        let mut guard = end.device.lock();
        guard.progress();
        let wc = guard.nic().poll_cq(end.cq)?;
        assert_eq!(wc.status, WcStatus::Success);
        end.device.linger(guard);
        Some(wc.wr_id)
    })
}

#[test]
fn a_ping_pong_through_watched_memory_goes_on() {
    let (a, b) = (end_at(1), end_at(2));
    a.join(&b);
    b.join(&a);
    let rounds = 1..=300;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in rounds.clone() {
                watch(&b, 0, round);
                write(&b, &a, 0, round);
                assert_eq!(complete(&b), round);
            }
        });
        for round in rounds.clone() {
            write(&a, &b, 0, round);
            assert_eq!(complete(&a), round);
            watch(&a, 0, round);
        }
    });
}

#[test]
fn what_is_posted_and_never_polled_for_arrives() {
    let (a, b) = (end_at(3), end_at(4));
    a.join(&b);
    b.join(&a);
    // More than go at once, and not a number at which held ones would go along.
    (1..=45).for_each(|n| write(&a, &b, 8 * n, n));
    (1..=45).for_each(|n| watch(&b, 8 * n, n));
}
