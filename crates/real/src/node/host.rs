//! The host thread of a node: it takes connections, runs calls to the host, and looks after clients.

mod placed;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use parking_lot::Mutex;
use remora_kernel::{Call, Runner, Status};
use remora_memory::{Access, Buffer, Region};
use remora_nic::cm::{CmEvent, ConnId, QpParams, reason, service_id};
use remora_nic::{CqId, Data, Event, Qpn, SendWr, SrqId, Time, WcOpcode, WcStatus, WorkCompletion};
use remora_service::control::{PORT, op};
use remora_service::{
    Asker, CallTable, Clients, HostAsker, KvBlocks, MAX_REPLY, MAX_REQUEST, Placing, RingAsker, Rings, Sends, Two,
    WorkId,
};
use remora_wasm::KernelSet;

use super::NodeConfig;
use super::control::Answered;
use super::office::{Mail, Office};
use super::peers::{Peers, Way};
use super::rings::{self, NodeRings};
use super::watch::{HostFigures, NodeEvent, Told};
use crate::device::{Device, DeviceGuard};
use crate::kernels::{POOL, ROUNDS};
use crate::rings::RING_SENDS;
use crate::sys::prepare_to_wait;
use crate::{Error, map_memory};

/// Calls to the host that may wait; more wait in the network (RNR NAK).
const RECVS: usize = 1024;
/// Calls to the host that are taken in and whose answers the clients have not all of; one client has half at most.
pub(super) const CALLS: usize = 512;
/// Calls to the node itself that it answers in one turn: clients take turns, and so does the network.
const CONTROL: usize = 4;
/// How long the host thread polls without work before it leaves the engine to the NIC thread.
const SPIN: u64 = 500_000;
/// How often a sleeping host thread looks up.
const LOOK_UP: Duration = Duration::from_millis(100);
/// As long, where something waits to be posted.
const DUE: Duration = Duration::from_millis(1);
/// How often each client is probed. One that has not answered by the next time is disconnected: it is gone, or it
/// takes no replies and so holds buffers that others wait for.
const PROBE: u64 = 2_000_000_000;
/// How often figures are left for those who ask.
const FIGURES: u64 = 500_000_000;
/// Completions that there may be while up to [`RECVS`] clients are connected: of each receive and reply, and of a probe
/// for each client.
const CQ_ROOM: usize = 2 * RECVS + CALLS;
/// How long a stopping node waits for calls under way.
const DRAIN: u64 = 2_000_000_000;

/// The host thread's state.
pub(super) struct Host {
    /// Which engine's it is.
    engine: usize,
    device: Device,
    cq: CqId,
    /// Completions that fit into it.
    cq_room: usize,
    srq: SrqId,
    peers: Peers,
    ingress: HostIngress,
    calls: CallTable<Asker<HostAsker, RingAsker>>,
    /// Who has blocks of key-value stores: it knows of a client before any call of its can come.
    blocks: Arc<std::sync::Mutex<KvBlocks>>,
    kernels: Box<dyn Runner + Send>,
    /// Calls that the NIC has placed here, and that have ended and are not answered.
    placed: Vec<(Call, Status)>,
    office: Arc<Office>,
    /// Who has come and gone, for the office: nobody goes there who has an engine.
    notes: Vec<Note>,
    told: Told,
    figures: Arc<Mutex<HostFigures>>,
    figures_at: u64,
    /// The largest path MTU that it takes, whatever its links carry.
    mtu: Option<u32>,
    /// Of clients that have more than others.
    weights: HashMap<IpAddr, u32>,
    probe_at: u64,
    stop: Arc<AtomicBool>,
    stopping_since: Option<u64>,
}

/// What the office is to hear.
enum Note {
    /// A client has connected, that has this number.
    Came(Qpn, u32),
    /// A client is gone.
    Gone(Qpn),
    /// A client needs no region with this key any more.
    GiveBack(Qpn, u32),
}

/// Where calls to the host come from.
struct HostIngress {
    sends: Sends,
    rings: NodeRings,
    /// Whether SENDs or rings are asked first.
    turn: bool,
}

impl HostIngress {
    fn both(&mut self) -> Two<'_, &mut Sends, Rings> {
        Two { first: &mut self.sends, second: &mut self.rings.host, turn: &mut self.turn }
    }
}

impl Host {
    pub fn new(
        (engine, device): (usize, Device),
        (office, clients): (Arc<Office>, Arc<Mutex<Clients>>),
        blocks: Arc<std::sync::Mutex<KvBlocks>>,
        set: KernelSet,
        config: &NodeConfig,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        let (registry, pd) = office.look(|control| (control.ledger().registry().clone(), control.ledger().pd()));
        let memory = |len: usize| -> Result<(Buffer, Arc<Region>), Error> {
            let buffer = map_memory(len)?;
            let region = registry.register(pd, &buffer, 0, len, None, Access::LOCAL_WRITE)?;
            Ok((buffer, region))
        };
        let sends = Sends::new(memory(RECVS * MAX_REQUEST)?, memory(CALLS * MAX_REPLY)?);
        let ingress = HostIngress { sends, rings: NodeRings::new(), turn: false };
        let room = CALLS + if config.placing == Placing::Clients { 0 } else { POOL };
        let kernels = remora_wasm::host_runner(set, registry.clone(), true, room, config.limits);
        let (cq, srq);
        {
            let mut guard = device.lock();
            let nic = guard.nic();
            cq = nic.create_cq(CQ_ROOM as u32)?;
            srq = nic.create_srq(pd, RECVS as u32, 1)?;
            nic.listen(service_id(PORT))?;
        }
        let mut calls = CallTable::new(CALLS);
        calls.note_blocks(blocks.clone());
        calls.set_deadline(config.deadline.as_nanos() as u64);
        if config.count_calls {
            calls.count_calls();
        }
        let mut host = Self {
            engine,
            peers: Peers::new(clients, pd, cq, srq, config.placing),
            cq,
            cq_room: CQ_ROOM,
            srq,
            ingress,
            calls,
            blocks,
            kernels,
            placed: Vec::new(),
            office,
            notes: Vec::new(),
            told: Told(config.events.clone()),
            figures: Arc::default(),
            figures_at: 0,
            mtu: config.mtu,
            weights: config.weights.iter().copied().collect(),
            probe_at: 0,
            stop,
            stopping_since: None,
            device,
        };
        host.place_calls(config.placing);
        host.post(&mut host.device.clone().lock());
        Ok(host)
    }

    /// Where its figures are.
    pub fn figures(&self) -> Arc<Mutex<HostFigures>> {
        self.figures.clone()
    }

    /// Leaves its figures for those who ask, if anybody does.
    fn publish(&self) {
        let Some(calls) = self.calls.stats().cloned() else { return };
        let clients = self.peers.clients().into_iter();
        let (clients, lent) = self.office.look(|control| {
            let ledger = control.ledger();
            let lent_to = |(address, client, connections)| (address, connections, ledger.lent_to(client));
            (clients.map(lent_to).collect(), ledger.lent())
        });
        *self.figures.lock() = HostFigures { calls, clients, lent };
    }

    pub fn run(mut self) {
        prepare_to_wait();
        self.office.sit(self.engine);
        let mut busy_at = self.device.now();
        loop {
            let work = self.turn();
            let now = self.device.now();
            if now >= self.probe_at {
                self.probe_at = now + PROBE;
                self.probe();
            }
            if now >= self.figures_at {
                self.figures_at = now + FIGURES;
                self.publish();
            }
            if work > 0 {
                busy_at = now;
            } else {
                self.device.relax(now.saturating_sub(busy_at));
            }
            if self.stop.load(Ordering::Relaxed) {
                let since = *self.stopping_since.get_or_insert(now);
                if self.calls.under_way() + self.kernels.in_flight() + self.placed.len() == 0 || now - since > DRAIN {
                    return self.take_leave();
                }
            } else if now - busy_at > SPIN {
                let bell = self.ingress.rings.bell.clone();
                bell.listen();
                let called = self.device.lock().placer().is_some_and(|placer| placer.wants_host());
                if !called && !self.ingress.rings.host.signals().any() {
                    // What waits for room in a queue pair goes when the peer's acknowledgements come, which wake nobody.
                    let due = self.ingress.rings.host.wants_write();
                    self.device.wait(self.cq, if due { DUE } else { LOOK_UP });
                }
                bell.ignore();
                busy_at = self.device.now();
            }
        }
    }

    /// One round: send replies, drive the engine, take calls, run them. Returns how much there was to do.
    fn turn(&mut self) -> usize {
        let device = self.device.clone();
        let Mail { answered, released } = self.office.mail(self.engine).unwrap_or_default();
        answered.into_iter().for_each(|answered| self.answer(answered));
        let mut guard = device.lock();
        let now = guard.now();
        self.ingress.rings.host.begin_turn(now);
        let mut work = self.post(&mut guard);
        if !released.is_empty() {
            guard.forget_gone_regions();
        }
        self.end_rings(&mut guard, &released);
        work += self.answer_placed(&mut guard);
        guard.progress();
        self.take_placed(&mut guard);
        while let Some(wc) = guard.nic().poll_cq(self.cq) {
            work += 1;
            self.complete(&mut guard, wc);
        }
        for event in guard.take_events() {
            work += 1;
            self.handle_event(&mut guard, event);
        }
        drop(guard);
        self.report();
        if self.stopping_since.is_none() {
            self.start_calls(now);
        }
        self.run_kernels(now);
        // The first one may be gone when a node ends.
        if self.engine == 0 || self.stopping_since.is_some() {
            work += self.office.turn();
        }
        // A long message that is copied piece by piece.
        work += usize::from(self.ingress.rings.host.is_copying());
        work + self.kernels.in_flight() + self.placed.len()
    }

    /// Tells the office who has come and gone, and of what is not needed.
    fn report(&mut self) {
        if self.notes.is_empty() {
            return;
        }
        let Self { office, notes, .. } = self;
        office.with(|control| {
            for note in notes.drain(..) {
                match note {
                    Note::Came(qpn, client) => control.client_came(qpn, client),
                    Note::Gone(qpn) => control.client_gone(qpn),
                    Note::GiveBack(owner, key) => control.give_back(owner, key),
                }
            }
        });
    }

    /// Ends rings whose memory was given back, and connections of clients that lie in theirs.
    fn end_rings(&mut self, guard: &mut DeviceGuard<'_>, released: &[u32]) {
        for &key in released {
            if let Some((owner, other)) = self.ingress.rings.released(guard, key) {
                self.notes.push(Note::GiveBack(owner, other));
            }
        }
        while let Some(fault) = self.ingress.rings.host.poll_fault().or_else(|| guard.ring_fault()) {
            self.cut_off(guard, fault.qpn);
        }
    }

    /// Posts replies and receives. Returns how many replies.
    fn post(&mut self, guard: &mut DeviceGuard<'_>) -> usize {
        let mut sent = 0;
        while let Some(reply) = self.ingress.sends.next_send() {
            let sge = [reply.sge];
            let wr = SendWr::new(reply.number.into(), reply.op, Data::List(&sge)).solicited();
            if guard.nic().post_send(reply.qpn, &wr).is_err() {
                // The client is gone.
                self.calls.release(reply.number);
            }
            if reply.status == Status::AccessDenied {
                guard.nic().wrong_key(reply.qpn);
            }
            sent += 1;
        }
        sent += rings::post(&mut self.ingress.rings, guard.nic());
        while let Some(number) = self.ingress.rings.host.poll_released() {
            self.calls.release(number);
        }
        while let Some((id, sge)) = self.ingress.sends.next_recv() {
            // There is room: as many receives exist as the queue holds.
            let _ = guard.nic().post_srq_recv(self.srq, id, &[sge]);
        }
        sent
    }

    fn complete(&mut self, guard: &mut DeviceGuard<'_>, wc: WorkCompletion) {
        match (wc.opcode, wc.status) {
            (WcOpcode::Recv, WcStatus::Success) => {
                let client = self.calls.shares().client_of(wc.qpn);
                if self.ingress.sends.received(wc.wr_id, wc.qpn, client, wc.byte_len).is_err() {
                    self.cut_off(guard, wc.qpn);
                }
            }
            (WcOpcode::Recv | WcOpcode::RecvWriteImm, _) => self.ingress.sends.give_back(wc.wr_id),
            _ => match WorkId::decode(wc.wr_id) {
                WorkId::Call(number) => self.calls.release(number),
                _ => self.peers.answered(wc.qpn),
            },
        }
    }

    fn handle_event(&mut self, guard: &mut DeviceGuard<'_>, event: Event) {
        match event {
            Event::Cm(CmEvent::ConnectRequest { conn, link, remote, .. }) if !self.carries(guard, link, remote) => {
                // The caller tries a smaller one: nobody need hear of it.
                let now = guard.now();
                let _ = guard.nic().reject(now, conn, reason::INVALID_PATH_MTU, b"its link carries smaller packets");
            }
            Event::Cm(CmEvent::ConnectRequest { conn, remote_ip, link, remote, .. }) => {
                let way = Way { link: guard.link_kind(link), mtu: 128 << remote.path_mtu };
                if let Err(e) = self.accept(guard, conn, remote_ip, way) {
                    self.told.tell(|| NodeEvent::Turned { client: remote_ip, why: e.to_string() });
                    // The reason goes to the peer as text, which its tools can show.
                    let now = guard.now();
                    let _ = guard.nic().reject(now, conn, reason::CONSUMER, clip(&e.to_string()));
                }
            }
            Event::Cm(CmEvent::Established { conn, .. }) => {
                if let Some(qpn) = self.peers.established(conn) {
                    self.cut_off(guard, qpn);
                } else if let Some((qpn, client, Way { link, mtu })) = self.peers.way(conn) {
                    self.told.tell(|| NodeEvent::Connected { client, qpn: qpn.0, link, mtu });
                }
            }
            Event::Cm(
                CmEvent::Disconnected { conn } | CmEvent::Unreachable { conn } | CmEvent::Rejected { conn, .. },
            ) => {
                if let Some(qpn) = self.peers.find(conn) {
                    self.forget(guard, qpn);
                }
            }
            Event::QpFatal(qpn, _) => {
                // The NAK that tells the client why goes first.
                guard.progress();
                self.cut_off(guard, qpn);
            }
            _ => {}
        }
    }

    /// Whether a caller's path MTU is one that the link it called by carries.
    fn carries(&self, guard: &mut DeviceGuard<'_>, link: u8, caller: QpParams) -> bool {
        let ours = guard.link(link).map_or(0, |link| link.max_mtu() as u32).min(self.mtu.unwrap_or(u32::MAX));
        128 << caller.path_mtu <= ours
    }

    fn accept(&mut self, guard: &mut DeviceGuard<'_>, conn: ConnId, address: IpAddr, way: Way) -> Result<(), Error> {
        if self.stopping_since.is_some() {
            return Err(Error::Argument("the node is stopping".into()));
        }
        // A queue that is full loses completions, and with them the receives and replies that they are of.
        // A probe each, and WRITEs of rings, which complete if they fail.
        while CQ_ROOM - RECVS + self.peers.len() * (1 + RING_SENDS as usize) >= self.cq_room {
            self.cq_room *= 2;
            guard.nic().resize_cq(self.cq, self.cq_room as u32)?;
        }
        let now = guard.now();
        let (qpn, client) = self.peers.accept(guard.nic(), now, (conn, address, way))?;
        // A number may have been another client's.
        let weight = self.weights.get(&address).copied().unwrap_or(1);
        guard.assign(qpn, client, weight);
        self.calls.assign(qpn, client);
        self.ingress.rings.host.set_weight(client, weight);
        self.kernels.set_weight(client, weight);
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).came(qpn);
        self.notes.push(Note::Came(qpn, client));
        Ok(())
    }

    /// Ends a connection that has failed, or whose client does not behave.
    fn cut_off(&mut self, guard: &mut DeviceGuard<'_>, qpn: Qpn) {
        let now = guard.now();
        if self.peers.disconnect(guard.nic(), now, qpn) {
            self.forget(guard, qpn);
        }
    }

    /// A client is gone: its memory goes too.
    fn forget(&mut self, guard: &mut DeviceGuard<'_>, qpn: Qpn) {
        let address = self.peers.address(qpn);
        let stood = self.peers.stands(qpn);
        let Some(client) = self.peers.remove(qpn) else { return };
        if let Some(client) = address.filter(|_| stood) {
            self.told.tell(|| NodeEvent::Gone { client, qpn: qpn.0 });
        }
        self.ingress.rings.forget(guard, qpn);
        // Its completions in the queue only give slots and numbers back.
        let _ = guard.nic().to_error(qpn);
        while let Some(wc) = guard.nic().poll_cq(self.cq) {
            self.complete(guard, wc);
        }
        self.ingress.sends.forget(qpn, client);
        let _ = guard.nic().destroy_qp(qpn);
        // Before its number is anybody else's.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).gone(qpn);
        self.notes.push(Note::Gone(qpn));
    }

    fn probe(&mut self) {
        let device = self.device.clone();
        let mut guard = device.lock();
        for qpn in self.peers.silent() {
            self.cut_off(&mut guard, qpn);
        }
        self.peers.probe(guard.nic());
        drop(guard);
        self.report();
    }

    /// Starts waiting calls as long as there is room, and not too many to the node itself.
    fn start_calls(&mut self, now: Time) {
        let mut control = 0;
        while control < CONTROL
            && let Some(mut call) = self.calls.take(now, &mut self.ingress.both())
        {
            if call.op >= op::FIRST {
                control += 1;
                // By rings they might be longer, and hold up the others.
                call.reply_limit = call.reply_limit.min(MAX_REPLY as u32);
                let long = call.params.len() > MAX_REQUEST;
                // A client that is gone hears no answer.
                let address = self.peers.address(Qpn(call.qpn)).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
                let answered = match call.op {
                    op::FIRST..=op::LAST if long => {
                        let why = format!("calls to the node itself have {MAX_REQUEST} bytes of parameters at most");
                        Some(Answered { call, outcome: Err(why) })
                    }
                    op::RING_OPEN => Some(self.open_rings(call)),
                    op::PLACE => Some(self.explain(call)),
                    _ => self.office.with(|control| control.call(address, call)),
                };
                if let Some(answered) = answered {
                    self.answer(answered);
                }
            } else if let Err(call) = self.kernels.start(call) {
                self.calls.finish(&mut self.ingress.both(), call, Status::Busy);
            }
        }
    }

    fn open_rings(&mut self, mut call: Call) -> Answered {
        let client = self.calls.shares().client_of(Qpn(call.qpn));
        let Self { ingress, office, device, .. } = self;
        let opened = office.with(|control| ingress.rings.open(device, control.ledger_mut(), client, &mut call));
        Answered { call, outcome: opened.map(|()| Status::Ok) }
    }

    fn answer(&mut self, Answered { call, outcome }: Answered) {
        match outcome {
            Ok(status) => self.calls.finish(&mut self.ingress.both(), call, status),
            Err(why) => self.calls.refuse(&mut self.ingress.both(), call, &why),
        }
    }

    fn run_kernels(&mut self, now: Time) {
        let Self { kernels, placed, calls, ingress, .. } = self;
        if kernels.in_flight() == 0 {
            return;
        }
        // A look-up ends within one turn, so that its reply leaves with the acknowledgement of its request.
        for _ in 0..ROUNDS {
            kernels.poll(&mut |call: Call, status| match placed::placed(call) {
                Ok(call) => placed.push((call, status)),
                Err(call) => calls.finish(&mut ingress.both(), call, status),
            });
            if kernels.in_flight() == 0 || kernels.is_spent() {
                break;
            }
        }
        calls.end_overdue(now, &mut ingress.both(), |tag| kernels.cancel(tag));
    }

    /// The node ends: clients are told.
    fn take_leave(&mut self) {
        self.office.leave();
        let end = self.device.now() + 50_000_000;
        let mut guard = self.device.lock();
        let now = guard.now();
        let mut left = self.peers.disconnect_all(guard.nic(), now);
        while left > 0 && guard.now() < end {
            guard.progress();
            let events = guard.take_events();
            left -= events.iter().filter(|e| matches!(e, Event::Cm(CmEvent::Disconnected { .. }))).count().min(left);
        }
    }
}

/// What of an explanation fits into a rejection.
fn clip(text: &str) -> &[u8] {
    &text.as_bytes()[..text.len().min(140)]
}
