//! Memory that two devices on one host lend each other: what is written, sent and read moves once, and keeps its promises.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use remora_memory::Buffer;
use remora_nic::{Data, SendOp, SendWr, Sge, WcStatus, WorkCompletion};
use remora_real::link::Link;
use remora_real::link::shm::ShmLink;
use remora_testing::eventually;

#[path = "common/end.rs"]
mod end;

use end::End;

const LEN: usize = 1 << 20;
const LARGE: usize = 64 << 10;

fn ip(c: u8, d: u8) -> IpAddr {
    Ipv4Addr::new(127, 9, c, d).into()
}

fn pair(c: u8, memory: fn() -> Buffer) -> (End, End) {
    let (mut a, b) = (ShmLink::bind(ip(c, 1)).unwrap(), ShmLink::bind(ip(c, 2)).unwrap());
    assert!(a.reach(ip(c, 2)).unwrap());
    let (a, b) = (End::new(ip(c, 1), a, memory(), None), End::new(ip(c, 2), b, memory(), None));
    a.join(&b);
    b.join(&a);
    (a, b)
}

/// Drives both ends until `end` has completed something.
fn complete(end: &End, peer: &End) -> WorkCompletion {
    eventually("a completion", || {
        peer.device.lock().progress();
        let mut guard = end.device.lock();
        guard.progress();
        guard.nic().poll_cq(end.cq)
    })
}

fn operate(end: &End, peer: &End, op: SendOp, list: &[Sge]) {
    end.device.lock().nic().post_send(end.qp, &SendWr::new(1, op, Data::List(list))).unwrap();
    assert_eq!(complete(end, peer).status, WcStatus::Success);
}

/// Goes on until packets of `end` refer to their payload.
fn acquaint(a: &End, b: &End) {
    let write = SendOp::Write { va: b.region.va(), rkey: b.region.key() };
    let read = SendOp::Read { va: b.region.va(), rkey: b.region.key() };
    for (op, lender) in [(write, a), (read, b)] {
        eventually("a loan", || {
            operate(a, b, op, &[a.sge(0, LARGE)]);
            (lender.referred() > 0).then_some(())
        });
    }
}

fn lendable() -> Buffer {
    Buffer::lendable(LEN).unwrap()
}

#[test]
fn what_is_written_sent_and_read_is_copied_once() {
    let (a, b) = pair(0, lendable);
    acquaint(&a, &b);
    let noise: Vec<u8> = (0..LEN as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for (from, to, len) in [(0, 0, LARGE), (8, 16, 3 * LARGE), (3, 13, LARGE + 5), (4096, 1, 4097)] {
        a.buffer.write(0, &noise).unwrap();
        b.buffer.fill(0, LEN, 0).unwrap();
        let remote = b.region.va() + to as u64;
        let before = (a.referred(), b.referred());
        operate(&a, &b, SendOp::Write { va: remote, rkey: b.region.key() }, &[a.sge(from, len)]);
        assert!(b.bytes(to, len) == noise[from..from + len] && b.bytes(to + len, 8) == [0; 8]);
        b.buffer.fill(0, LEN, 0).unwrap();
        b.device.lock().nic().post_recv(b.qp, 2, &[b.sge(to, len)]).unwrap();
        operate(&a, &b, SendOp::Send, &[a.sge(from, len)]);
        assert_eq!(complete(&b, &a).byte_len as usize, len);
        assert!(b.bytes(to, len) == noise[from..from + len]);
        a.buffer.fill(0, LEN, 0).unwrap();
        operate(&a, &b, SendOp::Read { va: remote, rkey: b.region.key() }, &[a.sge(from, len)]);
        assert!(a.bytes(from, len) == noise[from..from + len] && a.bytes(from + len, 8) == [0; 8]);
        // Each refers to so much.
        let packets = (len / LARGE).max(1) as u64;
        assert!(a.referred() >= before.0 + 2 * packets && b.referred() >= before.1 + packets);
    }
}

#[test]
fn memory_of_a_programs_own_goes_by_the_ring() {
    let (a, b) = pair(1, || Buffer::anonymous(LEN).unwrap());
    for round in 1..50u8 {
        a.buffer.fill(0, LARGE, round).unwrap();
        operate(&a, &b, SendOp::Write { va: b.region.va(), rkey: b.region.key() }, &[a.sge(0, LARGE)]);
        assert_eq!(b.bytes(0, LARGE), vec![round; LARGE]);
    }
    assert_eq!((a.referred(), b.referred()), (0, 0));
}

/// Bytes of the buffers of the test below, and of no other in this process.
const ODD: usize = LEN + 37 * 4096;

/// Read-only mappings of such buffers in this process, of which both ends are.
fn views() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let lines = maps.lines().filter(|line| line.contains("r--s") && line.contains("memfd:remora-lent"));
    let sizes = lines.filter_map(|line| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        Some(usize::from_str_radix(end, 16).ok()? - usize::from_str_radix(start, 16).ok()?)
    });
    sizes.filter(|size| *size == ODD + 4096).count()
}

#[test]
fn memory_is_given_back_when_it_is_deregistered() {
    let (a, b) = pair(2, || Buffer::lendable(ODD).unwrap());
    assert_eq!(views(), 0);
    acquaint(&a, &b);
    assert_eq!(views(), 2);
    for (end, left) in [(&b, 1), (&a, 0)] {
        end.device.lock().nic().registry().deregister(end.region.key()).unwrap();
        eventually("the loan's end", || {
            a.device.lock().progress();
            b.device.lock().progress();
            (views() == left).then_some(())
        });
    }
}

/// The promises of `remora_memory`, from one process' region to another's: no aligned word tears, and who sees the last byte of a
/// WRITE sees all of it.
#[test]
fn words_are_whole_and_the_last_byte_is_last() {
    let (a, b) = pair(3, lendable);
    acquaint(&a, &b);
    let rounds = 300u64;
    let (stop, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Words of the second half change all the time.
        scope.spawn(|| {
            let mut value = 0u8;
            while !stop.load(Ordering::Relaxed) {
                value = value.wrapping_add(1);
                for at in (LEN / 2..LEN / 2 + LARGE).step_by(8) {
                    a.buffer.store_u64(at, u64::from_ne_bytes([value; 8])).unwrap();
                }
                std::thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                b.device.lock().progress();
                std::thread::yield_now();
            }
        });
        let reader = scope.spawn(|| {
            let mut wrong = 0;
            for round in 1..=rounds {
                let mut last = [!round as u8];
                while last[0] != round as u8 {
                    b.buffer.read(LARGE - 1, &mut last).unwrap();
                    std::thread::yield_now();
                }
                wrong += u32::from(b.bytes(0, LARGE) != vec![round as u8; LARGE]);
                seen.store(round, Ordering::Release);
                for at in (LEN / 2..LEN / 2 + LARGE).step_by(8) {
                    let bytes = b.buffer.load_u64(at).unwrap().to_ne_bytes();
                    wrong += u32::from(bytes != [bytes[0]; 8]);
                }
            }
            wrong
        });
        for round in 1..=rounds {
            a.buffer.fill(0, LARGE, round as u8).unwrap();
            for at in [0, LEN / 2] {
                let op = SendOp::Write { va: b.region.va() + at as u64, rkey: b.region.key() };
                a.device.lock().nic().post_send(a.qp, &SendWr::new(1, op, Data::List(&[a.sge(at, LARGE)]))).unwrap();
            }
            let mut done = 0;
            while done < 2 || seen.load(Ordering::Acquire) < round {
                let mut guard = a.device.lock();
                guard.progress();
                if let Some(wc) = guard.nic().poll_cq(a.cq) {
                    assert_eq!(wc.status, WcStatus::Success);
                    done += 1;
                }
                drop(guard);
                std::thread::yield_now();
            }
        }
        let wrong = reader.join().unwrap();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(wrong, 0);
    });
    assert!(a.referred() >= 2 * (rounds - 1));
}

/// What a peer sent before its end arrives; nothing else happens to who had its memory.
#[test]
fn a_peer_that_goes_away_harms_nobody() {
    let (a, b) = pair(4, lendable);
    acquaint(&a, &b);
    a.buffer.fill(0, LARGE, 7).unwrap();
    let op = SendOp::Write { va: b.region.va(), rkey: b.region.key() };
    a.device.stop();
    {
        // The other end does not look meanwhile.
        let held = b.device.lock();
        let mut guard = a.device.lock();
        guard.nic().post_send(a.qp, &SendWr::new(1, op, Data::List(&[a.sge(0, LARGE)]))).unwrap();
        guard.transmit();
        drop((guard, held));
    }
    drop(a);
    eventually("the last packets", || {
        b.device.lock().progress();
        let bytes = b.bytes(0, LARGE);
        (bytes == vec![7; LARGE] || bytes[LARGE - 1] == 0).then_some(())
    });
    for _ in 0..10_000 {
        b.device.lock().progress();
    }
}
