//! Many queue pairs, and many operations: nothing leaks, nothing slows to a stop.

use std::collections::HashSet;
use std::sync::Arc;

use crate::common::{A, B, Faults, Pair, Setup};
use remora_memory::{Access, Buffer, Registry};
use remora_nic::*;
use remora_wire::Psn;

const QUEUE_PAIRS: usize = 16_000;

/// An engine with a page of memory and one completion queue.
struct End {
    nic: Nic,
    qps: Vec<Qpn>,
    cq: CqId,
    buffer: Buffer,
    region: Arc<remora_memory::Region>,
}

impl End {
    fn new(seed: u8) -> Self {
        let registry = Arc::new(Registry::new([seed; 32]));
        let mut nic = Nic::new(&NicConfig::new([seed; 32]), registry.clone());
        let pd = registry.alloc_pd();
        let buffer = Buffer::anonymous(8 * QUEUE_PAIRS).expect("memory");
        let access = ALL_REMOTE | Access::LOCAL_WRITE;
        let region = registry.register(pd, &buffer, 0, 8 * QUEUE_PAIRS, None, access).expect("region");
        let cq = nic.create_cq(2 * QUEUE_PAIRS as u32).expect("completion queue");
        let init = QpInit {
            max_send_wr: 2,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            max_rpc: 1,
            ..QpInit::new(QpType::Rc, pd, cq, cq)
        };
        let qps = (0..QUEUE_PAIRS).map(|_| nic.create_qp(init).expect("room for 16,000")).collect();
        Self { nic, qps, cq, buffer, region }
    }

    fn connect(&mut self, (local, remote): (std::net::IpAddr, std::net::IpAddr), peers: &[Qpn]) {
        for (qp, peer) in self.qps.iter().zip(peers) {
            self.nic.to_init(*qp, ALL_REMOTE, 0).expect("INIT");
            let attr = RtrAttr {
                route: Route { local, remote, link: 0 },
                dest_qp: peer.0,
                rq_psn: Psn::new(0),
                path_mtu: 1024,
                max_dest_rd_atomic: 1,
                min_rnr_timer: 1,
            };
            self.nic.to_rtr(*qp, attr).expect("RTR");
            self.nic.to_rts(*qp, RtsAttr { max_rd_atomic: 1, ..RtsAttr::default() }).expect("RTS");
        }
    }

    /// Hands everything that waits to the other end.
    fn flush(&mut self, from: std::net::IpAddr, to: std::net::IpAddr, other: &mut End, batch: &mut TxBatch) {
        while self.nic.poll_transmit(0, batch) {
            for packet in batch.packets() {
                other.nic.handle_packet(0, 0, from, to, packet);
            }
        }
    }

    fn completions(&mut self) -> Vec<WorkCompletion> {
        std::iter::from_fn(|| self.nic.poll_cq(self.cq)).collect()
    }
}

#[test]
fn sixteen_thousand_queue_pairs_each_do_their_work() {
    let (mut a, mut b) = (End::new(1), End::new(2));
    assert_eq!(a.nic.qp_count(), QUEUE_PAIRS as u32);
    assert_eq!(a.qps.iter().collect::<HashSet<_>>().len(), QUEUE_PAIRS, "numbers are unique");
    let (of_a, of_b) = (a.qps.clone(), b.qps.clone());
    a.connect((A, B), &of_b);
    b.connect((B, A), &of_a);
    for (n, qp) in of_a.iter().enumerate() {
        a.buffer.store_u64(8 * n, n as u64 + 1).expect("aligned");
        let at = |base: u64| base + 8 * n as u64;
        let list = [Sge { va: at(a.region.va()), len: 8, lkey: a.region.key() }];
        let (va, rkey) = (at(b.region.va()), b.region.key());
        a.nic.post_send(*qp, &SendWr::new(n as u64, SendOp::Write { va, rkey }, Data::List(&list))).expect("posted");
        let add = SendOp::FetchAdd { va, rkey, add: 1 };
        a.nic.post_send(*qp, &SendWr::new(n as u64, add, Data::List(&list))).expect("posted");
    }
    let mut batch = TxBatch::new();
    a.flush(A, B, &mut b, &mut batch);
    b.flush(B, A, &mut a, &mut batch);
    let done = a.completions();
    assert_eq!(done.len(), 2 * QUEUE_PAIRS);
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success && of_a[wc.wr_id as usize] == wc.qpn));
    for n in 0..QUEUE_PAIRS {
        assert_eq!(b.buffer.load_u64(8 * n), Ok(n as u64 + 2));
    }
    // No timer has anything to do, though every queue pair had one.
    a.nic.handle_timeout(u64::MAX >> 1);
    assert!(!a.nic.wants_transmit());
    assert_eq!(a.nic.counters().timeouts, 0);
    for qp in of_a {
        a.nic.destroy_qp(qp).expect("live");
    }
    assert_eq!((a.nic.qp_count(), a.nic.destroy_cq(a.cq)), (0, Ok(())));
}

#[test]
fn numbers_of_destroyed_queue_pairs_are_not_used_again_soon() {
    let registry = Arc::new(Registry::new([1; 32]));
    let mut nic = Nic::new(&NicConfig { max_qp: 4, ..NicConfig::new([1; 32]) }, registry.clone());
    let (pd, cq) = (registry.alloc_pd(), nic.create_cq(16).expect("completion queue"));
    let init = QpInit::new(QpType::Rc, pd, cq, cq);
    let kept: Vec<_> = (0..3).map(|_| nic.create_qp(init).expect("room")).collect();
    let mut seen: HashSet<_> = kept.into_iter().collect();
    for _ in 0..255 {
        let qp = nic.create_qp(init).expect("room");
        assert!(qp.0 > 1 && qp.0 < 1 << 24 && seen.insert(qp), "{qp:?} again");
        assert_eq!(nic.create_qp(init), Err(NicError::Exhausted("queue pair")));
        nic.destroy_qp(qp).expect("live");
        assert_eq!(nic.qp_state(qp), Err(NicError::NoSuch("queue pair")));
    }
}

/// Each slot is used over 200 times, and then all are free.
#[test]
fn no_queue_slot_leaks() {
    let operations = 60_000;
    let mut p = Pair::new(1, Faults { latency: 1000, loss: 1, ..Faults::default() }, Setup::default());
    let (list, rkey) = ([p.a.sge(0, 8)], p.b.key());
    let (mut done, mut received, mut posted, mut state) = (0, 0, 0, 1u64);
    while done < operations {
        while posted < operations && posted < done + 250 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let va = p.b.va(8 * (posted as usize % 100));
            let op = match state >> 62 {
                0 => SendOp::Write { va, rkey },
                1 => SendOp::Read { va, rkey },
                2 => SendOp::FetchAdd { va, rkey, add: 1 },
                _ => {
                    p.b.recv(0, 4096, 8);
                    SendOp::Send
                }
            };
            p.a.send(&SendWr::new(posted, op, Data::List(&list)));
            posted += 1;
        }
        assert!(p.step() || p.a.nic.wants_transmit() || !p.a.done.is_empty(), "stuck after {done}");
        for wc in p.a.take_done() {
            assert_eq!((wc.wr_id, wc.status), (done, WcStatus::Success));
            done += 1;
        }
        received += p.b.take_done().len();
    }
    p.run(1000);
    received += p.b.take_done().len();
    assert!(received as u64 > operations / 5);
    assert_eq!(p.a.nic.sends_outstanding(p.a.qp), Ok(0));
    // Every slot of both queues is there to be used.
    p.cut = [true; 2];
    for id in 0..256 {
        p.a.send(&SendWr::new(id, SendOp::Send, Data::List(&list)));
    }
    assert_eq!(p.a.nic.post_send(p.a.qp, &SendWr::new(0, SendOp::Send, Data::List(&list))), Err(NicError::Full));
    for id in 0..512 {
        p.b.recv(id, 0, 8);
    }
    assert_eq!(p.b.nic.post_recv(p.b.qp, 0, &[]), Err(NicError::Full));
}
