//! A client's connection: its device, its queue pair, and what has completed there.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use remora_memory::{Access, Buffer, Pd, Region, Registry};
use remora_nic::cm::{CmEvent, ConnId};
use remora_nic::{CqId, Data, Event, NicError, QpInit, QpType, Qpn, SendWr, WcOpcode, WcStatus, WorkCompletion};
use remora_service::control::Offer;
use remora_service::{Carriage, MAX_REQUEST, RECVS, SLOT, StagedVerb, Staging, WorkId};

use super::compressed::client_kernels;
use super::dial::dial;
use super::rings::ClientRings;
use super::{ClientConfig, ClientCounters};
use crate::device::Device;
use crate::link::LinkKind;
use crate::links::client_link;
use crate::{Error, map_memory};

/// How long to wait for a node to hear that a client leaves, in nanoseconds.
const GOODBYE: u64 = 20_000_000;
/// Verbs of kernels and bulk copies that may be under way at once.
pub(super) const SLOTS: usize = 256;

/// A connection to a node.
pub(super) struct Connection {
    pub device: Device,
    pub link: LinkKind,
    /// The path MTU.
    pub mtu: u32,
    pub offer: Offer,
    pub qp: Qpn,
    /// Verbs of kernels that run here, and of bulk copies.
    pub staging: Arc<Staging<Posting>>,
    node: IpAddr,
    cq: CqId,
    conn: ConnId,
    pd: Pd,
    /// Receives to post again.
    spent_recvs: usize,
    /// Payload streams that are being sent.
    streaming: u32,
    lost: Option<WcStatus>,
    /// When there was work last, and when it was looked for.
    busy_at: u64,
    pub drove_at: u64,
}

/// How staged verbs get to a queue pair: at once.
pub(super) struct Posting {
    device: Device,
    qp: Qpn,
}

impl Carriage for Posting {
    #[inline]
    fn post(&self, verb: &StagedVerb) -> Result<(), NicError> {
        let id = WorkId::Staging(verb.slot).encode();
        self.device.lock().nic().post_send(self.qp, &SendWr::new(id, verb.op, Data::List(&[verb.sge])))
    }
}

impl Connection {
    /// Connects to a node with a path MTU of `most` at most. Returns also memory of `reply_bytes` that the node may write
    /// to.
    pub fn open(config: &ClientConfig, most: u32, reply_bytes: usize) -> Result<(Self, (Buffer, Arc<Region>)), Error> {
        if config.local == config.node {
            return Err(Error::SameAddress(config.node));
        }
        let (link, numbers) = client_link(config)?;
        let (kind, mtu) = (link.kind(), most.min(link.max_mtu() as u32));
        let registry = Arc::new(Registry::new(crate::entropy()?));
        let kernels = client_kernels(&registry);
        let device = Device::in_lane(config.local, vec![link], registry.clone(), Some(kernels), numbers)?;
        let (cq, qp, pd);
        {
            let mut guard = device.lock();
            let nic = guard.nic();
            pd = nic.registry().alloc_pd();
            cq = nic.create_cq(4096)?;
            let init = QpInit {
                max_send_wr: 512,
                max_recv_wr: RECVS as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: MAX_REQUEST as u32,
                max_rpc: 0,
                ..QpInit::new(QpType::Rc, pd, cq, cq)
            };
            qp = nic.create_qp(init)?;
            // The node may write replies, and nothing else.
            nic.to_init(qp, Access::REMOTE_WRITE, 0)?;
        }
        let memory = |len: usize, access| -> Result<_, Error> {
            let buffer = map_memory(len)?;
            let region = registry.register(pd, &buffer, 0, len, None, access)?;
            Ok((buffer, region))
        };
        let replies = memory(reply_bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let (buffer, region) = memory(SLOTS * SLOT, Access::LOCAL_WRITE)?;
        let staging = Staging::new(Posting { device: device.clone(), qp }, buffer, region);
        let (conn, mtu, offer) = dial(&device, qp, config.node, mtu, config.timeout)?;
        let connection = Self {
            device,
            link: kind,
            mtu,
            offer,
            qp,
            staging,
            node: config.node,
            cq,
            conn,
            pd,
            spent_recvs: RECVS,
            streaming: 0,
            lost: None,
            busy_at: 0,
            drove_at: 0,
        };
        Ok((connection, replies))
    }

    /// Posts what rings have to write, moves packets, posts receives again, notes verbs that completed. Replies that have
    /// landed go to `replies`; those in rings are there.
    pub fn drive(&mut self, replies: &mut Vec<WorkCompletion>, rings: &mut [ClientRings]) -> Result<(), Error> {
        let mut guard = self.device.lock();
        rings.iter_mut().for_each(|rings| rings.post(guard.nic(), self.qp));
        for _ in 0..self.spent_recvs {
            // There is room; a queue pair in the error state completes it at once.
            let _ = guard.nic().post_recv(self.qp, 0, &[]);
        }
        self.spent_recvs = 0;
        let work = guard.progress();
        while let Some(wc) = guard.nic().poll_cq(self.cq) {
            if wc.status != WcStatus::Success && self.lost.is_none_or(|s| s == WcStatus::Flushed) {
                self.lost = Some(wc.status);
            }
            match WorkId::decode(wc.wr_id) {
                WorkId::Staging(slot) => self.staging.complete(slot, wc.status),
                WorkId::Stream(_) => self.streaming = self.streaming.saturating_sub(1),
                _ if wc.opcode == WcOpcode::RecvWriteImm && wc.status == WcStatus::Success => {
                    self.spent_recvs += 1;
                    replies.push(wc);
                }
                _ => {}
            }
        }
        drop(guard);
        self.drove_at = self.device.now();
        match work {
            0 => self.device.relax(self.drove_at.saturating_sub(self.busy_at)),
            _ => self.busy_at = self.drove_at,
        }
        self.alive().inspect_err(|_| self.staging.set_lost())
    }

    /// Sleeps until there is something to drive for, or `timeout` has passed.
    pub fn wait(&self, timeout: Duration) {
        self.device.wait(self.cq, timeout);
    }

    /// An error once the connection is lost.
    pub fn alive(&self) -> Result<(), Error> {
        match self.lost {
            None => Ok(()),
            Some(status) => Err(Error::Lost { address: self.node, status }),
        }
    }

    /// Takes memory back that its queue pair used, at once.
    pub fn take_back(&self, key: u32) {
        let mut guard = self.device.lock();
        let nic = guard.nic();
        let _ = nic.registry().deregister(key);
        nic.forget_gone_regions();
    }

    /// The protection domain of its queue pair.
    pub fn pd(&self) -> Pd {
        self.pd
    }

    /// Notes that a payload stream was posted.
    pub fn begin_stream(&mut self) {
        self.streaming += 1;
    }

    /// Whether a payload stream is still being sent.
    pub fn is_streaming(&self) -> bool {
        self.streaming > 0
    }

    /// Counts since the connection was made, but for round trips of calls.
    pub fn counters(&self) -> ClientCounters {
        let mut guard = self.device.lock();
        let retransmits = guard.nic().counters().retransmits;
        let stats = guard.link_stats();
        ClientCounters {
            tx_packets: stats.iter().map(|(_, s)| s.tx_packets).sum(),
            rx_packets: stats.iter().map(|(_, s)| s.rx_packets).sum(),
            wire_bytes: stats.iter().map(|(_, s)| s.tx_bytes + s.rx_bytes).sum(),
            round_trips: self.staging.posted(),
            retransmits,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Tell the node, and give the message a moment to get out; a node that is gone notices nothing anyway.
        {
            let mut guard = self.device.lock();
            let now = guard.now();
            let _ = guard.nic().disconnect(now, self.conn);
        }
        let start = self.device.now();
        while self.device.now() < start + GOODBYE {
            let mut guard = self.device.lock();
            guard.progress();
            if guard.take_events().iter().any(|e| matches!(e, Event::Cm(CmEvent::Disconnected { .. }))) {
                break;
            }
            drop(guard);
            self.device.relax(self.device.now().saturating_sub(start));
        }
        self.device.stop();
    }
}
