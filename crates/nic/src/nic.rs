//! The engine: tables of queue pairs and queues, packets in, packets out, timers.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use remora_memory::Registry;
use remora_wire::{Bth, ICRC_LEN, Psn, Service};

use crate::arrival::{Body, HEAD, Packet, is_moved_alone};
use crate::cm::CmConfig;
use crate::connect::{Management, QP1};
use crate::ctx::Ctx;
use crate::lane::Lane;
use crate::met::{Regions, let_go};
use crate::multicast::{Groups, MULTICAST_QP};
use crate::now::Now;
use crate::numbers::{MAX_QPS, QpTable};
use crate::post::{check_limit, push_recv};
use crate::qp::QueuePair;
use crate::queue::{RUN_BYTES, Room, TxBatch};
use crate::reorder::ReorderPool;
use crate::rpc::RpcTable;
use crate::tap::Taps;
use crate::timer::Timers;
use crate::types::*;

/// Sizes and identity of an engine.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Seeds packet and queue pair numbers. Take it from the system's entropy; a fixed one makes runs repeatable.
    pub seed: [u8; 32],
    /// Queue pairs that may live at once, at most 32,768.
    pub max_qp: u32,
    /// The largest path MTU, and that of datagrams, in bytes: what the links carry.
    pub port_mtu: u32,
    /// Packets of payload streams that may wait for their kernels, over all queue pairs; one alone has half.
    pub max_stream_chunks: usize,
    /// Bytes up to which packets of one stream that nobody has taken make a single piece; 0 leaves each on its own.
    pub stream_chunk_bytes: usize,
    /// Keep packets that come early, and send again only what was lost, with peers that do so too. Otherwise, and with other
    /// peers, a loss makes a requester go back N.
    pub selective_repeat: bool,
    /// Send and carry out what is plain, as most is, by a short way of its own. What comes of it is the same.
    pub plain: bool,
    /// Which of several engines at its address it is.
    pub lane: Lane,
    /// The connection manager's limits and times.
    pub cm: CmConfig,
}

impl NicConfig {
    /// 16,384 queue pairs, an MTU of 4096 B and 2,048 packets of payload streams.
    pub fn new(seed: [u8; 32]) -> Self {
        Self {
            seed,
            max_qp: 16_384,
            port_mtu: 4096,
            max_stream_chunks: 2048,
            stream_chunk_bytes: 0,
            selective_repeat: true,
            plain: true,
            lane: Lane::ONLY,
            cm: CmConfig::default(),
        }
    }
}

/// A RoCE v2 NIC as a pure state machine.
///
/// It reads no clock and owns no socket: the world passes the time and packets in and takes packets, completions and
/// events out. After any call that may have caused work, call [`Nic::poll_transmit`] until it returns false, arm a
/// timer for [`Nic::poll_timeout`], and take [`Nic::poll_event`], [`Nic::poll_rpc`] and [`Nic::poll_stream`].
pub struct Nic {
    pub(crate) qps: QpTable<Box<QueuePair>>,
    max_qp: u32,
    lane: Lane,
    /// How often one was made or destroyed, and the last to be destroyed.
    changes: u64,
    late: VecDeque<u32>,
    pub(crate) port_mtu: u32,
    pub(crate) ctx: Ctx,
    /// The members of multicast groups.
    pub(crate) groups: Groups,
    active: VecDeque<u32>,
    /// Those that have had their turn in the batch being filled, and have more; and those whose peer is not the batch's.
    served: VecDeque<u32>,
    passed: VecDeque<u32>,
    timers: Timers,
    rng: ChaCha12Rng,
    pub(crate) management: Management,
    /// The last time that the world told.
    pub(crate) now: Time,
}

impl std::fmt::Debug for Nic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nic").field("queue_pairs", &self.qps.len()).finish_non_exhaustive()
    }
}

/// Notes what a queue pair has to send, and its deadline.
#[inline]
fn note_work(qp: &mut QueuePair, active: &mut VecDeque<u32>, timers: &mut Timers) {
    if !qp.active && qp.has_work() {
        qp.active = true;
        active.push_back(qp.qpn.0);
    }
    timers.update(qp);
}

/// Destroyed queue pairs whose numbers are remembered.
const LATE: usize = 32;

impl Nic {
    /// An engine over the regions of `registry`.
    pub fn new(config: &NicConfig, registry: Arc<Registry>) -> Self {
        let mut rng = ChaCha12Rng::from_seed(config.seed);
        let management = Management::new(rng.next_u64(), Psn::new(rng.next_u32()), config.cm.clone());
        Self {
            qps: QpTable::default(),
            max_qp: config.max_qp.min(MAX_QPS),
            lane: config.lane,
            changes: 0,
            late: VecDeque::with_capacity(LATE),
            port_mtu: config.port_mtu,
            ctx: Ctx {
                regions: Regions::new(registry),
                cqs: Vec::new(),
                srqs: Vec::new(),
                events: VecDeque::with_capacity(64),
                multicast: VecDeque::new(),
                rpc: RpcTable::new(config.max_stream_chunks, config.stream_chunk_bytes),
                taps: Taps::default(),
                selective: config.selective_repeat,
                plain: config.plain,
                patient: false,
                owing: Vec::new(),
                reorder: ReorderPool::new(TxBatch::PACKET_BYTES),
                reading: Some(0),
                private: vec![0; RUN_BYTES.max(TxBatch::PACKET_BYTES)].into(),
                counters: Counters::default(),
            },
            groups: Groups::default(),
            active: VecDeque::new(),
            served: VecDeque::new(),
            passed: VecDeque::new(),
            timers: Timers::default(),
            rng,
            management,
            now: 0,
        }
    }

    // Getters.

    /// The regions that queue pairs of this engine reach.
    pub fn registry(&self) -> &Arc<Registry> {
        self.ctx.regions.registry()
    }

    /// Lets go of regions that are registered no longer: what the engine knows of them would keep their memory mapped.
    pub fn forget_gone_regions(&mut self) {
        self.ctx.regions.forget_gone();
        for qp in self.qps.entries_mut() {
            [&mut qp.local_region, &mut qp.remote_region].into_iter().for_each(let_go);
        }
    }

    /// Counts since the engine was made.
    pub fn counters(&self) -> Counters {
        self.ctx.counters
    }

    /// Live queue pairs.
    pub fn qp_count(&self) -> u32 {
        self.qps.len() as u32
    }

    /// How many of each there may be, and of what size.
    pub fn limits(&self) -> NicLimits {
        NicLimits { qp: self.max_qp, port_mtu: self.port_mtu, ..NicLimits::default() }
    }

    /// The state of a queue pair.
    pub fn qp_state(&self, qpn: Qpn) -> Result<QpState, NicError> {
        Ok(self.qp(qpn)?.state)
    }

    /// What a queue pair was created with.
    pub fn qp_init(&self, qpn: Qpn) -> Result<QpInit, NicError> {
        Ok(self.qp(qpn)?.init)
    }

    /// The next PSNs of a queue pair: to be sent first, and to be received.
    pub fn qp_psns(&self, qpn: Qpn) -> Result<(Psn, Psn), NicError> {
        let qp = self.qp(qpn)?;
        Ok((qp.req.next_psn(), qp.resp.expected_psn()))
    }

    /// Sends posted on a queue pair and not complete, kernels' replies included.
    pub fn sends_outstanding(&self, qpn: Qpn) -> Result<u64, NicError> {
        let qp = self.qp(qpn)?;
        Ok(qp.sq.tail - qp.sq.head)
    }

    /// A PSN to start with, unknown to anyone outside.
    pub fn random_psn(&mut self) -> Psn {
        Psn::new(self.rng.next_u32())
    }

    pub(crate) fn qp(&self, qpn: Qpn) -> Result<&QueuePair, NicError> {
        self.qps.get(qpn.0).map(|qp| &**qp).ok_or(NicError::NoSuch("queue pair"))
    }

    /// Runs `f` on a queue pair; whatever it made ready to send or set as a deadline is noted.
    pub(crate) fn with_qp<R>(
        &mut self,
        qpn: Qpn,
        f: impl FnOnce(&mut QueuePair, &mut Ctx) -> R,
    ) -> Result<R, NicError> {
        let qp = self.qps.get_mut(qpn.0).ok_or(NicError::NoSuch("queue pair"))?;
        let result = f(qp, &mut self.ctx);
        note_work(qp, &mut self.active, &mut self.timers);
        Ok(result)
    }

    /// Notes what a queue pair has to send.
    pub(crate) fn note(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            note_work(qp, &mut self.active, &mut self.timers);
        }
    }

    /// How often queue pairs were made and destroyed.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// How many messages of connection management were looked at, and how many were not because too many came.
    pub fn messages(&self) -> (u64, u64) {
        self.management.intake()
    }

    /// The numbers of the queue pairs that live, and of those that were destroyed last: a peer that has not heard of it
    /// may send to several at once.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.qps.numbers().chain(self.late.iter().copied())
    }

    // Queue pairs.

    /// A queue pair in state RESET.
    pub fn create_qp(&mut self, init: QpInit) -> Result<Qpn, NicError> {
        let limits = self.limits();
        check_limit("receive scatter-gather elements", init.max_recv_sge.into(), limits.sge.into())?;
        check_limit("send scatter-gather elements", init.max_send_sge.into(), limits.sge.into())?;
        check_limit("send work requests", init.max_send_wr.into(), limits.qp_wr.into())?;
        check_limit("receive work requests", init.max_recv_wr.into(), limits.qp_wr.into())?;
        check_limit("kernel calls", init.max_rpc.into(), limits.qp_wr.into())?;
        check_limit("inline bytes", init.max_inline.into(), limits.inline.into())?;
        if self.qp_count() >= self.max_qp {
            return Err(NicError::Exhausted("queue pair"));
        }
        self.cq(init.send_cq)?;
        self.cq(init.recv_cq)?;
        if let Some(srq) = init.srq {
            self.srq(srq)?.users += 1;
        }
        self.cq(init.send_cq)?.users += 1;
        self.cq(init.recv_cq)?.users += 1;
        let qpn = Qpn(self.qps.draw(self.lane, &mut self.rng));
        self.qps.insert(qpn.0, Box::new(QueuePair::new(qpn, init, self.port_mtu)));
        self.changes += 1;
        self.ctx.owing.reserve(self.qps.len());
        self.ctx.rpc.open(qpn.0, init.max_rpc);
        Ok(qpn)
    }

    /// Destroys a queue pair that is in no multicast group. Requests still posted vanish without completions, and completions that
    /// nobody has taken vanish too: who frees what they stand for is not to meet them.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), NicError> {
        let (init, has_windows) = (self.qp(qpn)?.init, self.qp(qpn)?.has_windows);
        if self.is_attached(qpn) {
            return Err(NicError::InUse("queue pair"));
        }
        if has_windows {
            self.ctx.regions.registry().unbind_windows(qpn.0);
        }
        while self.ctx.rpc.drop_waiting(qpn.0).is_some() {}
        self.ctx.rpc.close(qpn.0);
        self.with_qp(qpn, |qp, ctx| {
            qp.forget_early(ctx);
            qp.take_all_back(ctx);
        })?;
        self.qps.remove(qpn.0);
        self.changes += 1;
        if self.late.len() == LATE {
            self.late.pop_front();
        }
        self.late.push_back(qpn.0);
        for cq in [init.send_cq, init.recv_cq] {
            let cq = self.cq(cq)?;
            cq.forget(qpn);
            cq.users -= 1;
        }
        if let Some(srq) = init.srq {
            self.srq(srq)?.users -= 1;
        }
        Ok(())
    }

    // Posting.

    /// Posts a send. In ERR and SQE it completes as flushed.
    #[inline]
    pub fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), NicError> {
        let qp = self.qps.get_mut(qpn.0).ok_or(NicError::NoSuch("queue pair"))?;
        let posted = qp.post_send(&mut self.ctx, wr);
        note_work(qp, &mut self.active, &mut self.timers);
        posted
    }

    /// Posts all of these sends, or none if one of them is refused or there is not room for all.
    pub fn post_sends<'a>(&mut self, qpn: Qpn, wrs: impl Iterator<Item = SendWr<'a>> + Clone) -> Result<(), NicError> {
        let qp = self.qps.get_mut(qpn.0).ok_or(NicError::NoSuch("queue pair"))?;
        let mut count = 0;
        for wr in wrs.clone() {
            qp.check_post(&wr)?;
            count += 1;
        }
        if count > qp.sq.max_user - qp.sq.user {
            return Err(NicError::Full);
        }
        let posted = { wrs }.try_for_each(|wr| qp.post_send(&mut self.ctx, &wr));
        note_work(qp, &mut self.active, &mut self.timers);
        posted
    }

    /// Posts a receive. In ERR it completes as flushed.
    pub fn post_recv(&mut self, qpn: Qpn, wr_id: u64, sges: &[Sge]) -> Result<(), NicError> {
        self.with_qp(qpn, |qp, ctx| {
            if qp.init.srq.is_some() {
                return Err(NicError::Unsupported("the queue pair takes its receives from a shared receive queue"));
            }
            if qp.state == QpState::Reset {
                return Err(NicError::State(qp.state));
            }
            push_recv(&mut qp.rq, wr_id, sges)?;
            if qp.state == QpState::Err {
                qp.flush(ctx);
            }
            Ok(())
        })?
    }

    // Packets and time.

    /// A packet from `src` that arrived at `dst` by `link`: BTH to ICRC. The link has checked the ICRC, or has none.
    pub fn handle_packet(&mut self, now: Time, link: u8, src: IpAddr, dst: IpAddr, packet: &[u8]) {
        if self.handle_plain(now, link, (src, dst), packet).is_none() {
            self.handle_body(now, link, (src, dst), packet.into());
        }
    }

    #[inline]
    fn handle_body(&mut self, now: Time, link: u8, (src, dst): (IpAddr, IpAddr), packet: Body<'_>) {
        self.now = now;
        self.ctx.counters.rx_packets += 1;
        self.ctx.counters.rx_bytes += packet.len() as u64;
        if self.dispatch(now, link, src, dst, packet).is_none() {
            self.ctx.counters.dropped += 1;
        }
    }

    /// As [`handle_packet`](Self::handle_packet), of a packet that may stand in memory which its sender can write. Payload
    /// that goes to a region goes there at once; of all else there is a private copy first.
    #[inline]
    pub fn handle(&mut self, now: Time, link: u8, (src, dst): (IpAddr, IpAddr), packet: Packet<'_>) {
        match packet {
            Packet::Private(bytes) => self.handle_packet(now, link, src, dst, bytes),
            other => self.handle_in_place(now, link, (src, dst), other),
        }
    }

    fn handle_in_place(&mut self, now: Time, link: u8, (src, dst): (IpAddr, IpAddr), packet: Packet<'_>) {
        let (buffer, offset, len) = match packet {
            Packet::Private(bytes) => return self.handle_packet(now, link, src, dst, bytes),
            Packet::Referred { headers, view, reference } => {
                let op = Bth::parse(headers).map(|bth| bth.opcode);
                // Nobody refers to what is looked at.
                if op.is_ok_and(|op| is_moved_alone(op) && op.header_len() <= headers.len()) {
                    self.handle_body(now, link, (src, dst), Body::referred(headers, view, reference));
                }
                return;
            }
            Packet::Shared { buffer, offset, len } => (buffer, offset, len),
        };
        let mut head = [0; HEAD];
        let head = &mut head[..HEAD.min(len)];
        if buffer.take(offset, head).is_err() {
            return;
        }
        let op = Bth::parse(head).map(|bth| bth.opcode);
        if op.is_ok_and(is_moved_alone) {
            return self.handle_body(now, link, (src, dst), Body::shared(head, buffer, offset, len));
        }
        let mut private = std::mem::take(&mut self.ctx.private);
        if let Some(bytes) = private.get_mut(..len)
            && buffer.take(offset, bytes).is_ok()
        {
            self.handle_packet(now, link, src, dst, bytes);
        }
        self.ctx.private = private;
    }

    /// `None` if nobody wants the packet.
    #[inline]
    fn dispatch(&mut self, now: Time, link: u8, src: IpAddr, dst: IpAddr, packet: Body<'_>) -> Option<()> {
        let bth = Bth::parse(packet.headers()).ok()?;
        let end = packet.len().checked_sub(ICRC_LEN + usize::from(bth.pad))?;
        let rest = packet.first(end)?.skip(Bth::LEN);
        let op = bth.opcode;
        // Extension headers are complete; parsers below can rely on it.
        if op.header_len() > end || bth.version != 0 || bth.pkey & 0x7fff != 0x7fff {
            return None;
        }
        if op.service() == Service::Cnp {
            self.ctx.counters.cnps += 1;
            let rest = rest.private()?;
            let from = Some(Route { local: dst, remote: src, link });
            let handle = |qp: &mut QueuePair, _: &mut Ctx| {
                qp.init.kind == QpType::Rc && qp.route == from && qp.handle_notification(now, &bth, rest)
            };
            return self.with_qp(Qpn(bth.dest_qp), handle).is_ok_and(|taken| taken).then_some(());
        }
        if bth.dest_qp == QP1 {
            let taken = self.management.handle(now, link, (src, dst), &bth, rest.private()?);
            self.pump_cm();
            return taken.then_some(());
        }
        if bth.dest_qp == MULTICAST_QP {
            return self.deliver_multicast(&bth, rest.private()?, (src, dst), None).then_some(());
        }
        let qpn = Qpn(bth.dest_qp);
        let wanted = self.with_qp(qpn, |qp, ctx| {
            if !qp.receives() {
                return false;
            }
            let from_peer = qp.route.as_ref().is_some_and(|route| route.is(link, src, dst));
            match (qp.init.kind, op.service()) {
                (QpType::Ud, Service::Ud) => {
                    let taken = qp.handle_datagram(ctx, &bth, rest.headers(), src, dst);
                    if taken {
                        ctx.counters.received(link);
                    }
                    return taken;
                }
                (QpType::Rc, Service::Rc | Service::Rpc) if from_peer => qp.handle_reliable(ctx, now, &bth, &rest),
                (QpType::Uc, Service::Uc) if from_peer => {
                    if op.is_last() || op.is_only() {
                        ctx.counters.received(link);
                    }
                    qp.handle_unreliable(ctx, &bth, rest.headers());
                }
                _ => return false,
            }
            true
        });
        matches!(wanted, Ok(true)).then_some(())
    }

    /// Whether READs of regions under a lease ([`remora_memory::Region::lease_until`]) came since [`Nic::clock_reads`]. Until that is
    /// called again they are refused.
    #[inline]
    pub fn awaits_clock(&self) -> bool {
        self.ctx.reading.is_none()
    }

    /// What the clock says now that packets have been taken. READs that came before are answered if the lease of what they
    /// read has not run out by then: as a caller's, they see what is there at some time between when they came and this, or later.
    pub fn clock_reads(&mut self, now: &Now) {
        self.ctx.reading = Some(now.time());
    }

    /// Fills `batch` with packets for one destination. False if there was nothing to send.
    /// The last four bytes of each are zero, for the link to put the ICRC in.
    pub fn poll_transmit(&mut self, now: Time, batch: &mut TxBatch) -> bool {
        batch.clear();
        self.fill(now, batch)
    }

    /// Where the next packets go, if it pays to have [`Nic::poll_transmit_into`] put them together: they have much payload.
    #[inline]
    pub fn next_long(&self) -> Option<Route> {
        let qp = self.qps.get(*self.active.front()?)?;
        let long = qp.has_long() && !self.management.cm.wants_transmit();
        qp.route.filter(|_| long)
    }

    /// As [`Nic::poll_transmit`], for one destination, with the packets put together in `room`: their bytes are there, not in
    /// the batch. Pads and the last four bytes of each are whatever stood there before. False if nothing was to be sent there,
    /// or if there is not room for a packet of [`TxBatch::PACKET_BYTES`].
    pub fn poll_transmit_into(&mut self, now: Time, route: Route, room: Room, batch: &mut TxBatch) -> bool {
        batch.settle(route, room);
        if batch.is_full() {
            return false;
        }
        self.fill(now, batch)
    }

    fn fill(&mut self, now: Time, batch: &mut TxBatch) -> bool {
        // The connection manager and queue pairs take turns: answers to a flood of calls hold up nobody's packets.
        let queue_pairs_first = std::mem::take(&mut self.management.spoke) && !self.active.is_empty();
        if !queue_pairs_first && batch.route().is_none() && self.management.emit(batch) {
            return true;
        }
        for _ in 0..self.active.len() {
            if batch.is_full() {
                break;
            }
            let Some(qpn) = self.active.pop_front() else { break };
            let Some(qp) = self.qps.get_mut(qpn) else { continue };
            let before = batch.len();
            qp.emit(&mut self.ctx, now, batch);
            qp.active = qp.has_work();
            if qp.active {
                let queue = if batch.len() > before { &mut self.served } else { &mut self.passed };
                queue.push_back(qpn);
            }
            self.timers.update(qp);
        }
        // Who had a turn goes behind all, and who had none keeps the place before all: else a peer that always has more, by one
        // queue pair or by many, would have the first turn of each batch.
        if !self.passed.is_empty() {
            self.passed.append(&mut self.active);
            std::mem::swap(&mut self.passed, &mut self.active);
        }
        self.active.append(&mut self.served);
        self.loop_multicast();
        !batch.is_empty() || queue_pairs_first && batch.route().is_none() && self.management.emit(batch)
    }

    /// When [`Nic::handle_timeout`] has something to do.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Time> {
        match (self.timers.next(), self.management.cm.poll_timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Runs the timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((entry, qpn)) = self.timers.pop(now) {
            let _ = self.with_qp(Qpn(qpn), |qp, ctx| {
                if qp.timer_entry == Some(entry) {
                    qp.timer_entry = None;
                }
                qp.release(now);
                if qp.deadline.is_some_and(|deadline| deadline <= now) {
                    qp.handle_qp_timeout(ctx, now);
                }
            });
        }
        let Self { timers, qps, .. } = self;
        timers.prune(2 * qps.len() + 64, |time, qpn| qps.get(qpn).is_some_and(|qp| qp.timer_entry == Some(time)));
        self.management.cm.hear(now, |qpn| self.qps.get(qpn).map_or(0, |qp| qp.reached()));
        self.management.cm.handle_timeout(now);
        self.pump_cm();
    }

    /// Whether [`Nic::poll_event`] may have one.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.ctx.events.is_empty() || self.management.cm.has_events()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.pump_cm();
        let event = self.ctx.events.pop_front()?;
        if let Event::Established(qpn) = event {
            self.management.cm.mark_established(self.now, qpn.0);
        }
        Some(event)
    }

    /// Whether a packet waits to be sent.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        !self.active.is_empty() || self.management.cm.wants_transmit()
    }

    /// From now on the world calls [`Nic::acknowledge`] when nothing comes: peers that are told so do not have each message
    /// acknowledged at once.
    pub fn set_patient(&mut self) {
        self.ctx.patient = true;
    }

    /// Whether peers are owed acknowledgements that they do not wait for.
    #[inline]
    pub fn owes(&self) -> bool {
        !self.ctx.owing.is_empty()
    }

    /// Acknowledges what peers do not wait for: to be called when nothing comes any more, and before a sleep.
    pub fn acknowledge(&mut self) {
        while let Some(qpn) = self.ctx.owing.pop() {
            let _ = self.with_qp(Qpn(qpn), |qp, _| qp.pay());
        }
    }

    /// Whether a kernel call waits.
    #[inline]
    pub fn wants_rpc(&self) -> bool {
        self.ctx.rpc.waiting()
    }
}
