//! Guests of a node: clients that do one thing over and over, as much of it as they may, well-behaved or not.
//!
//! A guest has a device of its own and any number of connections, and talks to the node by verbs: it can do what no
//! well-behaved client does.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use remora_kernel::Status;
use remora_memory::{Access, Buffer, Region};
use remora_nic::cm::{CmEvent, ConnId, service_id};
use remora_nic::{
    ConnectAttr, CqId, Data, Event, QpInit, QpType, Qpn, SendOp, SendWr, Sge, Time, WcOpcode, WcStatus, WorkCompletion,
};
use remora_real::{Device, Error, LinkKind};
use remora_service::HostCall;
use remora_service::control::{PORT, op, u32_at};
use remora_wire::rpc::{RpcHeader, parse_reply_imm};

/// Bytes of a reply.
const REPLY: usize = 512;
/// Bytes of the payload that streams send, again and again.
const PAYLOAD: usize = 4 << 20;
/// Connections that are being made at a time.
const OPENING: usize = 4;

/// What a guest does.
#[derive(Clone, Debug)]
pub enum Deed {
    /// Calls a kernel on the NIC.
    Nic {
        /// Its op-code.
        op: u64,
        /// Its parameters.
        params: Vec<u8>,
    },
    /// Calls the host: a kernel, or the node itself.
    Host {
        /// Its op-code.
        op: u64,
        /// Its parameters.
        params: Vec<u8>,
    },
    /// Sends a payload stream to a kernel on the NIC.
    Stream {
        /// Its op-code.
        op: u64,
        /// Bytes of the stream.
        len: usize,
    },
    /// Announces a payload stream to a kernel on the NIC, and sends none.
    Promise {
        /// Its op-code.
        op: u64,
    },
    /// Allocates so many bytes and frees them.
    Borrow(u64),
    /// Allocates so many bytes, again and again, until it is refused; then leaves.
    Hoard(u64),
    /// Connects.
    Stay,
    /// Connects and leaves.
    Visit,
}

/// How much of it.
#[derive(Clone, Debug)]
pub struct GuestPlan {
    /// What.
    pub deed: Deed,
    /// Connections.
    pub connections: usize,
    /// Deeds under way by each, those that there may be. Streams: one.
    pub depth: usize,
    /// Whether it takes its replies.
    pub takes_replies: bool,
}

/// A guest of a node.
pub struct Guest {
    device: Device,
    node: IpAddr,
    cq: CqId,
    region: Arc<Region>,
    _buffer: Buffer,
    plan: GuestPlan,
    visits: HashMap<Qpn, Visit>,
    opening: usize,
    /// Deeds done since this was last [taken](Self::take_done): how they ended, and how long they took (ns).
    done: Vec<(Status, Time)>,
    /// Connections that the node refused or ended.
    refused: u64,
}

/// One of its connections.
struct Visit {
    conn: ConnId,
    up: bool,
    began: Time,
    /// By tag: when the deed began.
    slots: Vec<Option<Time>>,
    /// The first slot's place in memory.
    at: usize,
    /// The payload is still being sent.
    sending: bool,
    /// What was borrowed and is to be freed: tag and key.
    owed: Vec<(u32, u32)>,
    /// It has been refused, and leaves.
    leaves: bool,
}

impl Guest {
    /// A guest at `local` of the node at `node`, over a link of this kind.
    pub fn new(node: IpAddr, local: IpAddr, link: LinkKind, plan: GuestPlan) -> Result<Self, Error> {
        let at = |address| Error::link(link, address);
        let mut bound = link.bind(local).map_err(at(local))?;
        bound.reach(node).map_err(at(node))?;
        let device = Device::new(local, vec![bound], None)?;
        let len = PAYLOAD + (plan.connections + OPENING) * plan.depth * REPLY;
        let buffer = Buffer::anonymous(len).map_err(|source| Error::System { what: "mapping memory", source })?;
        let mut guard = device.lock();
        let nic = guard.nic();
        let pd = nic.registry().alloc_pd();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = nic.registry().register(pd, &buffer, 0, len, None, access)?;
        let cq = nic.create_cq((4 * (plan.connections + OPENING) * (plan.depth + 2)) as u32)?;
        drop(guard);
        let (visits, done) = (HashMap::new(), Vec::new());
        Ok(Self { device, node, cq, region, _buffer: buffer, plan, visits, opening: 0, done, refused: 0 })
    }

    /// Does what there is to do, without waiting.
    pub fn poll(&mut self) -> Result<(), Error> {
        let device = self.device.clone();
        let mut guard = device.lock();
        guard.progress();
        for _ in 0..64 {
            let Some(wc) = guard.nic().poll_cq(self.cq) else { break };
            self.complete(guard.nic(), wc);
        }
        let now = guard.now();
        for event in guard.take_events() {
            self.handle(guard.nic(), now, event);
        }
        let mut gone = Vec::new();
        for (&qpn, visit) in self.visits.iter_mut().filter(|(_, visit)| visit.up) {
            if visit.leaves {
                let _ = guard.nic().disconnect(now, visit.conn);
                gone.push(qpn);
            } else if !deeds(&self.plan, &self.region, guard.nic(), (now, qpn), visit) {
                gone.push(qpn);
            }
        }
        gone.into_iter().for_each(|qpn| self.forget(guard.nic(), qpn));
        while self.visits.len() < self.plan.connections && self.opening < OPENING {
            let route = guard.route(self.node, 0);
            self.open(guard.nic(), now, route)?;
        }
        Ok(())
    }

    /// Deeds done since this was last called: how each ended, and how long it took (ns).
    pub fn take_done(&mut self) -> Vec<(Status, Time)> {
        std::mem::take(&mut self.done)
    }

    /// Connections that stand.
    pub fn connections(&self) -> usize {
        self.visits.values().filter(|visit| visit.up).count()
    }

    /// Deeds under way.
    pub fn under_way(&self) -> usize {
        self.visits.values().flat_map(|visit| &visit.slots).flatten().count()
    }

    /// Connections that the node refused or ended.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn open(&mut self, nic: &mut remora_nic::Nic, now: Time, route: remora_nic::Route) -> Result<(), Error> {
        let depth = self.plan.depth as u32;
        let init = QpInit {
            max_send_wr: 2 * depth + 2,
            max_recv_wr: depth + 1,
            max_inline: 256,
            max_rpc: 0,
            ..QpInit::new(QpType::Rc, self.region.pd(), self.cq, self.cq)
        };
        let qp = nic.create_qp(init)?;
        nic.to_init(qp, Access::REMOTE_WRITE, 0)?;
        let receives = if self.plan.takes_replies { depth } else { 0 };
        for _ in 0..receives {
            nic.post_recv(qp, 0, &[])?;
        }
        let conn = nic.connect(now, qp, route, service_id(PORT), ConnectAttr::default(), &[])?;
        let bytes = self.plan.depth * REPLY;
        let used: Vec<usize> = self.visits.values().map(|visit| visit.at).collect();
        let at = (0..).map(|n| PAYLOAD + n * bytes).find(|at| !used.contains(at)).unwrap_or(PAYLOAD);
        let slots = vec![None; self.plan.depth];
        let visit = Visit { conn, up: false, began: now, slots, at, sending: false, owed: Vec::new(), leaves: false };
        self.visits.insert(qp, visit);
        self.opening += 1;
        Ok(())
    }

    fn handle(&mut self, nic: &mut remora_nic::Nic, now: Time, event: Event) {
        let Event::Cm(
            CmEvent::Established { conn, .. }
            | CmEvent::Rejected { conn, .. }
            | CmEvent::Unreachable { conn }
            | CmEvent::Disconnected { conn },
        ) = event
        else {
            return;
        };
        let Some((&qpn, visit)) = self.visits.iter_mut().find(|(_, visit)| visit.conn == conn) else { return };
        if !matches!(event, Event::Cm(CmEvent::Established { .. })) {
            self.refused += 1;
            return self.forget(nic, qpn);
        }
        visit.up = true;
        self.opening -= 1;
        if matches!(self.plan.deed, Deed::Visit) {
            self.done.push((Status::Ok, now - visit.began));
            visit.leaves = true;
        }
    }

    /// A connection is over.
    fn forget(&mut self, nic: &mut remora_nic::Nic, qpn: Qpn) {
        if let Some(visit) = self.visits.remove(&qpn) {
            self.opening -= usize::from(!visit.up);
            let _ = nic.destroy_qp(qpn);
        }
    }

    fn complete(&mut self, nic: &mut remora_nic::Nic, wc: WorkCompletion) {
        let now = self.device.now();
        let Some(visit) = self.visits.get_mut(&wc.qpn) else { return };
        if wc.status != WcStatus::Success {
            // Who only promises says nothing more, not even that it leaves.
            if visit.up && !matches!(self.plan.deed, Deed::Promise { .. }) {
                self.refused += 1;
                let _ = nic.disconnect(now, visit.conn);
                self.forget(nic, wc.qpn);
            }
            return;
        }
        if wc.opcode == WcOpcode::Rpc {
            visit.sending = false;
        }
        let (WcOpcode::RecvWriteImm, Some(imm)) = (wc.opcode, wc.imm) else { return };
        let _ = nic.post_recv(wc.qpn, 0, &[]);
        let (tag, code) = parse_reply_imm(imm);
        let status = Status::from_code(code);
        let Some(began) = visit.slots.get_mut(tag as usize).and_then(Option::take) else { return };
        let mut reply = [0; 12];
        let _ = self.region.read(self.region.va() + (visit.at + tag as usize * REPLY) as u64, &mut reply);
        let freed = visit.owed.iter().position(|&(other, _)| other == tag | OWED).map(|at| visit.owed.swap_remove(at));
        match (&self.plan.deed, freed) {
            (Deed::Borrow(_), None) if status == Status::Ok => {
                // Half done: the memory goes back first.
                visit.slots[tag as usize] = Some(began);
                return visit.owed.push((tag, u32_at(&reply, 8).unwrap_or(0)));
            }
            (Deed::Hoard(_), _) if status != Status::Ok => visit.leaves = true,
            _ => {}
        }
        self.done.push((status, now - began));
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let device = self.device.clone();
        let mut guard = device.lock();
        let now = guard.now();
        for visit in self.visits.values() {
            let _ = guard.nic().disconnect(now, visit.conn);
        }
        // The node hears of most of them so, and finds the others gone when it probes them.
        for _ in 0..100 {
            guard.progress();
        }
        drop(guard);
        self.device.stop();
    }
}

/// Marks a tag whose memory is being freed.
const OWED: u32 = 1 << 31;

/// Begins what a connection may begin now. False if the connection is broken.
fn deeds(
    plan: &GuestPlan,
    region: &Region,
    nic: &mut remora_nic::Nic,
    (now, qpn): (Time, Qpn),
    visit: &mut Visit,
) -> bool {
    let header = |tag: u32| RpcHeader {
        reply_va: region.va() + (visit.at + tag as usize * REPLY) as u64,
        reply_rkey: region.key(),
        reply_capacity: REPLY as u32,
        tag,
        flags: 0,
    };
    let host = |nic: &mut remora_nic::Nic, tag: u32, op: u64, params: &[u8]| {
        let mut message = Vec::with_capacity(HostCall::FRONT + params.len());
        let fits = HostCall { header: header(tag), op, params }.encode(&mut message).is_ok();
        let wr = SendWr::new(u64::MAX, SendOp::Send, Data::Inline(&message)).solicited().unsignaled();
        fits && nic.post_send(qpn, &wr).is_ok()
    };
    for (tag, key) in visit.owed.iter_mut().filter(|(tag, _)| tag & OWED == 0) {
        if host(nic, *tag, op::FREE, &key.to_le_bytes()) {
            *tag |= OWED;
        }
    }
    let mut begun = Vec::new();
    for (tag, _) in (0..).zip(&visit.slots).filter(|(_, slot)| slot.is_none()) {
        let posted = match &plan.deed {
            Deed::Stay | Deed::Visit => return true,
            Deed::Stream { .. } if visit.sending => false,
            Deed::Nic { op, params } => nic.post_rpc(qpn, u64::MAX, *op, &header(tag), params).is_ok(),
            Deed::Host { op, params } => host(nic, tag, *op, params),
            Deed::Promise { op } => {
                // The parameters go; the payload cannot be gathered, for its key is wrong, and this end of the connection
                // falls silent.
                let nowhere = Sge { va: 0, len: PAYLOAD as u32, lkey: region.key() ^ 1 };
                nic.post_rpc_write(qpn, u64::MAX, *op, &header(tag), &[], &[nowhere]).is_ok()
            }
            Deed::Borrow(len) | Deed::Hoard(len) => host(nic, tag, op::ALLOC, &len.to_le_bytes()),
            Deed::Stream { op, len } => {
                let sge = Sge { va: region.va(), len: *len.min(&PAYLOAD) as u32, lkey: region.key() };
                nic.post_rpc_write(qpn, u64::MAX, *op, &header(tag), &[], &[sge]).is_ok()
            }
        };
        if !posted {
            break;
        }
        begun.push(tag);
        if matches!(plan.deed, Deed::Stream { .. }) {
            visit.sending = true;
            break;
        }
    }
    begun.into_iter().for_each(|tag: u32| visit.slots[tag as usize] = Some(now));
    true
}
