//! One end of a connection: a device with memory and a queue pair, driven by the test.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::net::IpAddr;
use std::sync::Arc;

use remora_memory::{Access, Buffer, Region, Registry};
use remora_nic::{ALL_REMOTE, CqId, Data, QpInit, QpType, Qpn, Route, RtrAttr, RtsAttr, SendOp, SendWr, Sge};
use remora_real::link::Link;
use remora_real::{Device, Kernels};

pub struct End {
    pub device: Device,
    pub cq: CqId,
    pub qp: Qpn,
    pub buffer: Buffer,
    pub region: Arc<Region>,
}

impl End {
    /// An end at `ip`, by this link, whose peers may do anything to `buffer`.
    pub fn new(ip: IpAddr, link: impl Link + 'static, buffer: Buffer, kernels: Option<Kernels>) -> Self {
        let registry = Arc::new(Registry::new([9; 32]));
        let device = Device::with_registry(ip, vec![Box::new(link)], registry, kernels).unwrap();
        let mut guard = device.lock();
        let nic = guard.nic();
        let pd = nic.registry().alloc_pd();
        let access = Access::LOCAL_WRITE | ALL_REMOTE;
        let region = nic.registry().register(pd, &buffer, 0, buffer.len(), None, access).unwrap();
        let cq = nic.create_cq(256).unwrap();
        drop(guard);
        let mut end = Self { device, cq, qp: Qpn(0), buffer, region };
        end.qp = end.queue_pair();
        end
    }

    /// One more queue pair.
    pub fn queue_pair(&self) -> Qpn {
        let mut guard = self.device.lock();
        let init = QpInit::new(QpType::Rc, self.region.pd(), self.cq, self.cq);
        let init = QpInit { max_send_wr: 128, max_recv_wr: 128, ..init };
        let qp = guard.nic().create_qp(init).unwrap();
        guard.nic().to_init(qp, ALL_REMOTE, 0).unwrap();
        qp
    }

    /// Its queue pair leads to the peer's.
    pub fn join(&self, peer: &Self) {
        self.join_as(self.qp, peer, peer.qp, RtsAttr { max_rd_atomic: 16, ..RtsAttr::default() });
    }

    /// A queue pair of its own leads to one of a peer's; `attr` is for its requests.
    pub fn join_as(&self, qp: Qpn, peer: &Self, theirs: Qpn, attr: RtsAttr) {
        let mut guard = self.device.lock();
        let psn = remora_wire::Psn::new(1);
        let route = Route { local: self.device.local(), remote: peer.device.local(), link: 0 };
        let (max_dest_rd_atomic, min_rnr_timer) = (16, 1);
        let rtr = RtrAttr { route, dest_qp: theirs.0, rq_psn: psn, path_mtu: 4096, max_dest_rd_atomic, min_rnr_timer };
        guard.nic().to_rtr(qp, rtr).unwrap();
        guard.nic().to_rts(qp, RtsAttr { sq_psn: psn, ..attr }).unwrap();
    }

    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { va: self.region.va() + offset as u64, len: len as u32, lkey: self.region.key() }
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.buffer.read(offset, &mut out).unwrap();
        out
    }

    /// Packets that it has sent that referred to their payload.
    pub fn referred(&self) -> u64 {
        self.device.lock().nic().counters().tx_referred
    }

    /// Posts a WRITE of 64 bytes to the begin of a peer's memory.
    pub fn write_to(&self, qp: Qpn, peer: &Self, signaled: bool) {
        let list = [self.sge(0, 64)];
        let op = SendOp::Write { va: peer.region.va(), rkey: peer.region.key() };
        let wr = SendWr::new(0, op, Data::List(&list));
        let wr = if signaled { wr } else { wr.unsignaled() };
        self.device.lock().nic().post_send(qp, &wr).unwrap();
    }
}
