//! Programs that watch their memory instead of polling, and programs that post without polling, get their packets.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use remora_memory::{Access, Buffer, Region};
use remora_nic::*;
use remora_real::Device;
use remora_real::link::udp::UdpLink;
use remora_testing::eventually;
use remora_wire::Psn;

/// A device with one queue pair and a page of memory.
struct End {
    at: IpAddr,
    device: Device,
    qpn: Qpn,
    cq: CqId,
    buffer: Buffer,
    region: Arc<Region>,
}

impl End {
    fn new(last: u8) -> Self {
        let at = IpAddr::V4(Ipv4Addr::new(127, 10, 0, last));
        let device = Device::new(at, vec![Box::new(UdpLink::bind(at).expect("link"))], None).expect("device");
        let buffer = Buffer::anonymous(4096).expect("memory");
        let mut guard = device.lock();
        let nic = guard.nic();
        let pd = nic.registry().alloc_pd();
        let access = ALL_REMOTE | Access::LOCAL_WRITE;
        let region = nic.registry().register(pd, &buffer, 0, 4096, None, access).expect("region");
        let cq = nic.create_cq(256).expect("room");
        let qpn = nic.create_qp(QpInit::new(QpType::Rc, pd, cq, cq)).expect("room");
        nic.to_init(qpn, ALL_REMOTE, 0).expect("INIT");
        drop(guard);
        Self { at, device, qpn, cq, buffer, region }
    }

    fn connect(&self, peer: &Self) {
        let mut guard = self.device.lock();
        let route = guard.route(peer.at, 0);
        let (rq_psn, dest_qp) = (Psn::new(0), peer.qpn.0);
        let rtr = RtrAttr { route, dest_qp, rq_psn, path_mtu: 1024, max_dest_rd_atomic: 1, min_rnr_timer: 1 };
        guard.nic().to_rtr(self.qpn, rtr).expect("RTR");
        guard.nic().to_rts(self.qpn, RtsAttr::default()).expect("RTS");
    }

    /// Writes `word` to the peer's memory and sends as a program does that posts and then goes on.
    fn write(&self, peer: &Self, at: u64, word: u64) {
        let op = SendOp::Write { va: peer.region.va() + at, rkey: peer.region.key() };
        let mut guard = self.device.lock();
        let bytes = word.to_le_bytes();
        guard.nic().post_send(self.qpn, &SendWr::new(word, op, Data::Inline(&bytes))).expect("post");
        guard.transmit_from(self.qpn);
    }

    /// Reads memory until `word` stands there.
    fn watch(&self, at: u64, word: u64) {
        let mut bytes = [0; 8];
        eventually(format!("word {word}"), || {
            self.buffer.read(at as usize, &mut bytes).expect("in bounds");
            (bytes == word.to_le_bytes()).then_some(())
        });
    }

    /// Polls until the next completion, as `ibv_poll_cq` does.
    fn complete(&self) -> u64 {
        eventually("a completion", || {
            let mut guard = self.device.lock();
            guard.progress();
            let wc = guard.nic().poll_cq(self.cq)?;
            assert_eq!(wc.status, WcStatus::Success);
            self.device.linger(guard);
            Some(wc.wr_id)
        })
    }
}

#[test]
fn a_ping_pong_through_watched_memory_goes_on() {
    let (a, b) = (End::new(1), End::new(2));
    a.connect(&b);
    b.connect(&a);
    let rounds = 1..=300;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in rounds.clone() {
                b.watch(0, round);
                b.write(&a, 0, round);
                assert_eq!(b.complete(), round);
            }
        });
        for round in rounds.clone() {
            a.write(&b, 0, round);
            assert_eq!(a.complete(), round);
            a.watch(0, round);
        }
    });
}

#[test]
fn what_is_posted_and_never_polled_for_arrives() {
    let (a, b) = (End::new(3), End::new(4));
    a.connect(&b);
    b.connect(&a);
    // More than go at once, and not a number at which held ones would go along.
    (1..=45).for_each(|n| a.write(&b, 8 * n, n));
    (1..=45).for_each(|n| b.watch(8 * n, n));
}
