//! A stream of bytes to another rack, by every NIC there is (DFabric, section 4.4).
//!
//! Each NIC is an address of this rack with one of the other: a device of its own, with a reliable connection. [`NicPool`]
//! says which NIC sends what next, [`Resequencer`] makes one stream of what comes. A segment is one SEND; the bytes stay in
//! the sender's memory until it is known to have arrived, so that another NIC can send them again. A connection that breaks
//! is made anew by the rack that calls, for as long as the trunk lives.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remora_memory::{Access, Buffer, Region, Registry};
use remora_nic::cm::{CmEvent, ConnId, ListenerId, reason, service_id};
use remora_nic::{
    ConnectAttr, CqId, Data, Event, QpInit, QpType, Qpn, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use remora_rack::{FlowId, FlowPolicy, NicId, NicPool, NicState, Resequencer, Segment};

use crate::device::{Device, DeviceGuard, entropy};
use crate::{Error, LinkKind, Sleeper, map_memory};

/// The port of racks' trunks.
const PORT: u16 = 7_471;
/// The only flow of a trunk.
const FLOW: FlowId = FlowId(0);
/// Bytes before a segment's: which message this is, its length, and its place in the stream.
const HEADER: usize = 16;
/// Messages that are no segments, under way by one NIC.
const NOTES: u32 = 16;
/// Between two calls of a NIC that is not connected, and how long a call may take, nanoseconds.
const REDIAL: u64 = 50_000_000;
const DIAL: u64 = 3_000_000_000;
/// Completions that are taken from a NIC before the next has its turn.
const BATCH: usize = 64;

/// A message: a segment, or how far the other end may send.
const SEGMENT: u32 = 1;
const LIMIT: u32 = 2;
/// In the number of a work request: it is a limit, not a segment.
const IS_LIMIT: u64 = 1 << 63;

/// Both ends of a trunk.
#[derive(Clone, Debug)]
pub struct TrunkConfig {
    /// Addresses of this rack, each with the one of the other rack that it talks to. In the same order at both ends.
    pub ways: Vec<(IpAddr, IpAddr)>,
    /// Whether this end calls; the other one waits for calls.
    pub calls: bool,
    /// The same at both ends.
    pub policy: FlowPolicy,
}

struct Way {
    device: Device,
    remote: IpAddr,
    mtu: u32,
    cq: CqId,
    listener: Option<ListenerId>,
    line: Option<Line>,
    dial_at: u64,
    /// Headers that no segment has.
    free: Vec<u32>,
    /// By a segment's tag, its header.
    headers: HashMap<u64, u32>,
    notes: u32,
    carried: u64,
}

/// A connection, or a call.
struct Line {
    qp: Qpn,
    conn: ConnId,
    up: bool,
    since: u64,
}

/// One end of a stream to another rack.
pub struct Trunk {
    config: TrunkConfig,
    ways: Vec<Way>,
    pool: NicPool,
    stream: Resequencer,
    memory: Buffer,
    region: Arc<Region>,
    received: Box<[u8]>,
    offered: u64,
    limits: Limits,
    start: Instant,
    sleeper: Sleeper,
}

/// What the other end knows of how far it may send.
struct Limits {
    told: u64,
    known: u64,
    at: u64,
    turn: usize,
}

/// How the memory of a trunk is divided: bytes to send, then for each way headers and buffers for what comes.
#[derive(Clone, Copy)]
struct Layout {
    window: usize,
    segment: usize,
    entries: usize,
}

impl Layout {
    fn new(policy: &FlowPolicy) -> Self {
        let (window, segment) = (policy.window as usize, policy.segment as usize);
        Self { window, segment, entries: policy.entries as usize }
    }

    fn receives(self) -> usize {
        self.entries + 2 * NOTES as usize
    }

    fn way(self, way: usize) -> usize {
        self.window + way * (self.entries * HEADER + self.receives() * (HEADER + self.segment))
    }

    fn header(self, way: usize, slot: u32) -> usize {
        self.way(way) + slot as usize * HEADER
    }

    fn receive(self, way: usize, slot: u64) -> usize {
        self.way(way) + self.entries * HEADER + slot as usize * (HEADER + self.segment)
    }
}

fn header(kind: u32, len: u32, place: u64) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4..8].copy_from_slice(&len.to_le_bytes());
    bytes[8..].copy_from_slice(&place.to_le_bytes());
    bytes
}

impl Trunk {
    /// An end with these ways; its connections come up in [`Trunk::turn`].
    ///
    /// # Errors
    ///
    /// An address that is not this host's, or no memory.
    pub fn new(config: TrunkConfig) -> Result<Self, Error> {
        if config.ways.is_empty() || config.ways.len() > 64 {
            return Err(Error::Argument("a trunk has from 1 to 64 NICs".into()));
        }
        let policy = config.policy;
        let layout = Layout::new(&policy);
        let registry = Arc::new(Registry::new(entropy()?));
        let memory = map_memory(layout.way(config.ways.len()))?;
        let pd = registry.alloc_pd();
        let region = registry.register(pd, &memory, 0, memory.len(), None, Access::LOCAL_WRITE)?;
        let mut ways = Vec::new();
        for &(local, remote) in &config.ways {
            let at = |source| Error::Link { link: LinkKind::Udp, address: local, source };
            let link = LinkKind::Udp.bind(local).map_err(at)?;
            let mtu = link.max_mtu() as u32;
            let device = Device::with_registry(local, vec![link], registry.clone(), None)?;
            let mut guard = device.lock();
            let cq = guard.nic().create_cq(4 * (policy.entries + NOTES + layout.receives() as u32))?;
            let listener = if config.calls { None } else { Some(guard.nic().listen(service_id(PORT))?) };
            drop(guard);
            let free = (0..policy.entries).collect();
            let headers = HashMap::new();
            ways.push(Way {
                device,
                remote,
                mtu,
                cq,
                listener,
                line: None,
                dial_at: 0,
                free,
                headers,
                notes: 0,
                carried: 0,
            });
        }
        let mut pool = NicPool::new(policy, ways.len() as u16, 0);
        pool.open(FLOW);
        // None is connected.
        (0..ways.len()).for_each(|way| pool.failed(0, NicId(way as u16)));
        let stream = Resequencer::new(&policy);
        let limits = Limits { told: stream.limit(), known: stream.limit(), at: 0, turn: 0 };
        Ok(Self {
            ways,
            pool,
            stream,
            memory,
            region,
            received: vec![0; layout.window].into(),
            offered: 0,
            limits,
            start: Instant::now(),
            sleeper: Sleeper::new(),
            config,
        })
    }

    /// Takes bytes to send, as many as there is room for. Returns how many.
    pub fn write(&mut self, data: &[u8]) -> usize {
        let window = self.received.len();
        let under_way = (self.offered - self.arrived()) as usize;
        let len = data.len().min(window - under_way);
        let mut done = 0;
        while done < len {
            let at = (self.offered % window as u64) as usize;
            let piece = (len - done).min(window - at);
            let written = self.memory.write(at, &data[done..done + piece]);
            debug_assert!(written.is_ok(), "positions lie within the window");
            self.offered += piece as u64;
            done += piece;
        }
        self.pool.offer(FLOW, self.offered);
        len
    }

    /// Gives bytes that have come. Returns how many.
    pub fn read(&mut self, out: &mut [u8]) -> usize {
        let (ready, window) = (self.stream.ready(), self.received.len());
        let len = out.len().min((ready.end - ready.start) as usize);
        let mut done = 0;
        while done < len {
            let at = ((ready.start + done as u64) % window as u64) as usize;
            let piece = (len - done).min(window - at);
            out[done..done + piece].copy_from_slice(&self.received[at..at + piece]);
            done += piece;
        }
        self.stream.take(len as u64);
        len
    }

    /// Bytes that were written and are in the other rack's memory, without a gap.
    pub fn arrived(&self) -> u64 {
        self.pool.arrived(FLOW).unwrap_or(0)
    }

    /// NICs that are connected and not given up as silent.
    pub fn nics_up(&self) -> usize {
        (0..self.ways.len() as u16).filter(|nic| self.pool.state(NicId(*nic)) == Some(NicState::Up)).count()
    }

    /// Bytes that each NIC has brought over, in the order of the ways.
    pub fn carried(&self) -> Vec<u64> {
        self.ways.iter().map(|way| way.carried).collect()
    }

    /// Does what there is to do; if there is nothing, sleeps until there is or `timeout` has passed.
    ///
    /// # Errors
    ///
    /// What a device refuses, or a peer that breaks the protocol.
    pub fn turn(&mut self, timeout: Duration) -> Result<(), Error> {
        let mut work = 0;
        for way in 0..self.ways.len() {
            work += self.drive(way)?;
        }
        let now = self.now();
        self.pool.tick(now);
        work += self.send()?;
        self.tell_limit(now)?;
        if work == 0 {
            let soon = self.pool.next_timeout().map_or(timeout, |at| Duration::from_nanos(at.saturating_sub(now)));
            let ways = self.ways.iter().map(|way| (&way.device, way.cq));
            Device::sleep_any(ways, timeout.min(soon).min(Duration::from_nanos(REDIAL)), &mut self.sleeper);
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// One NIC's turn. Returns how much there was to do.
    fn drive(&mut self, index: usize) -> Result<usize, Error> {
        let device = self.ways[index].device.clone();
        let mut guard = device.lock();
        let mut work = guard.progress();
        for _ in 0..BATCH {
            let Some(wc) = guard.nic().poll_cq(self.ways[index].cq) else { break };
            self.complete(&mut guard, index, &wc)?;
            work += 1;
        }
        for event in guard.take_events() {
            self.event(&mut guard, index, event)?;
            work += 1;
        }
        let (now, way) = (self.now(), &self.ways[index]);
        let late = way.line.as_ref().is_some_and(|line| !line.up && now > line.since + DIAL);
        if late {
            self.lose(&mut guard, index);
        }
        if self.config.calls && self.ways[index].line.is_none() && now >= self.ways[index].dial_at {
            self.dial(&mut guard, index)?;
        }
        Ok(work)
    }

    /// A queue pair with its receives posted.
    fn queue_pair(&self, guard: &mut DeviceGuard<'_>, index: usize) -> Result<Qpn, Error> {
        let (way, layout) = (&self.ways[index], Layout::new(&self.config.policy));
        let receives = layout.receives() as u32;
        let init = QpInit {
            max_send_wr: self.config.policy.entries + NOTES,
            max_recv_wr: receives,
            max_send_sge: 3,
            max_recv_sge: 1,
            max_rpc: 0,
            ..QpInit::new(QpType::Rc, self.region.pd(), way.cq, way.cq)
        };
        let qp = guard.nic().create_qp(init)?;
        guard.nic().to_init(qp, Access::empty(), 0)?;
        for slot in 0..receives.into() {
            guard.nic().post_recv(qp, slot, &self.sge(layout.receive(index, slot), HEADER + layout.segment))?;
        }
        Ok(qp)
    }

    fn sge(&self, at: usize, len: usize) -> [Sge; 1] {
        [Sge { va: self.region.va() + at as u64, len: len as u32, lkey: self.region.key() }]
    }

    fn attr(&self, index: usize) -> ConnectAttr {
        // 67 ms, seven times. Others take over long before, when it counts as silent.
        let path_mtu = self.ways[index].mtu;
        ConnectAttr { path_mtu, retry_count: 7, rnr_retry: 7, ack_timeout: 14, ..ConnectAttr::default() }
    }

    fn dial(&mut self, guard: &mut DeviceGuard<'_>, index: usize) -> Result<(), Error> {
        let qp = self.queue_pair(guard, index)?;
        let (now, route, attr) = (guard.now(), guard.route(self.ways[index].remote, 0), self.attr(index));
        match guard.nic().connect(now, qp, route, service_id(PORT), attr, &[]) {
            Ok(conn) => self.ways[index].line = Some(Line { qp, conn, up: false, since: self.now() }),
            Err(_) => {
                let _ = guard.nic().destroy_qp(qp);
                self.ways[index].dial_at = self.now() + REDIAL;
            }
        }
        Ok(())
    }

    fn event(&mut self, guard: &mut DeviceGuard<'_>, index: usize, event: Event) -> Result<(), Error> {
        let line = self.ways[index].line.as_ref();
        let is_line = |conn: ConnId| line.is_some_and(|line| line.conn == conn);
        match event {
            Event::Cm(CmEvent::ConnectRequest { conn, listener, remote_ip, .. }) => {
                let now = guard.now();
                if self.ways[index].listener != Some(listener) || remote_ip != self.ways[index].remote {
                    let _ = guard.nic().reject(now, conn, reason::CONSUMER, b"no trunk with that address");
                    return Ok(());
                }
                // The caller has given up what there was.
                self.lose(guard, index);
                let (qp, attr) = (self.queue_pair(guard, index)?, self.attr(index));
                match guard.nic().accept(now, conn, qp, attr, &[]) {
                    Ok(()) => self.ways[index].line = Some(Line { qp, conn, up: false, since: self.now() }),
                    Err(_) => drop(guard.nic().destroy_qp(qp)),
                }
            }
            Event::Cm(CmEvent::Established { conn, .. }) if is_line(conn) => {
                let now = self.now();
                if let Some(line) = &mut self.ways[index].line {
                    line.up = true;
                }
                self.pool.restored(now, NicId(index as u16));
            }
            Event::Cm(
                CmEvent::Disconnected { conn } | CmEvent::Unreachable { conn } | CmEvent::Rejected { conn, .. },
            ) if is_line(conn) => self.lose(guard, index),
            Event::QpFatal(qp, _) if line.is_some_and(|line| line.qp == qp) => self.lose(guard, index),
            _ => {}
        }
        Ok(())
    }

    /// A connection is no more: what it had under way others send again.
    fn lose(&mut self, guard: &mut DeviceGuard<'_>, index: usize) {
        let (now, entries) = (self.now(), self.config.policy.entries);
        let way = &mut self.ways[index];
        let Some(line) = way.line.take() else { return };
        let at = guard.now();
        let _ = guard.nic().disconnect(at, line.conn);
        let _ = guard.nic().destroy_qp(line.qp);
        way.headers.clear();
        (way.free, way.notes, way.dial_at) = ((0..entries).collect(), 0, now + REDIAL);
        self.pool.failed(now, NicId(index as u16));
        // A limit may have been lost with it.
        self.limits.at = 0;
    }

    fn complete(&mut self, guard: &mut DeviceGuard<'_>, index: usize, wc: &WorkCompletion) -> Result<(), Error> {
        let now = self.now();
        let way = &mut self.ways[index];
        // What comes of a queue pair that was given up says nothing.
        if way.line.as_ref().is_none_or(|line| line.qp != wc.qpn) {
            return Ok(());
        }
        if wc.status != WcStatus::Success {
            self.lose(guard, index);
            return Ok(());
        }
        match wc.opcode {
            WcOpcode::Recv => {
                self.hear(index, wc)?;
                let layout = Layout::new(&self.config.policy);
                let sge = self.sge(layout.receive(index, wc.wr_id), HEADER + layout.segment);
                guard.nic().post_recv(wc.qpn, wc.wr_id, &sge)?;
            }
            _ if wc.wr_id & IS_LIMIT != 0 => {
                way.notes -= 1;
                self.limits.known = self.limits.known.max(wc.wr_id & !IS_LIMIT);
            }
            _ => {
                way.free.extend(way.headers.remove(&wc.wr_id));
                let before = self.pool.queued(NicId(index as u16));
                self.pool.done(now, wc.wr_id);
                way.carried += before - self.pool.queued(NicId(index as u16));
            }
        }
        Ok(())
    }

    /// A message has come.
    fn hear(&mut self, index: usize, wc: &WorkCompletion) -> Result<(), Error> {
        let wrong = || Error::Argument("the other rack sent what no trunk sends".into());
        let at = Layout::new(&self.config.policy).receive(index, wc.wr_id);
        let mut head = [0; HEADER];
        self.memory.read(at, &mut head).map_err(|_| wrong())?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let place = u64::from(word(8)) | u64::from(word(12)) << 32;
        match (word(0), word(4)) {
            (LIMIT, 0) => self.pool.allow(FLOW, place),
            (SEGMENT, len) if len as usize + HEADER == wc.byte_len as usize => {
                let (memory, received) = (&self.memory, &mut self.received);
                let window = received.len();
                let accepted = self.stream.accept(place, len, |fresh| {
                    let mut from = fresh.start;
                    while from < fresh.end {
                        let to = (from % window as u64) as usize;
                        let piece = ((fresh.end - from) as usize).min(window - to);
                        let source = at + HEADER + (from - place) as usize;
                        let taken = memory.take(source, &mut received[to..to + piece]);
                        debug_assert!(taken.is_ok(), "a message lies in its buffer");
                        from += piece as u64;
                    }
                });
                accepted.map_err(|_| wrong())?;
            }
            _ => return Err(wrong()),
        }
        Ok(())
    }

    /// NICs take what there is to send. Returns how much that was.
    fn send(&mut self) -> Result<usize, Error> {
        let mut used = 0u64;
        let mut sent = 0;
        while let Some(segment) = self.pool.poll(self.now()) {
            used |= 1 << segment.nic.0;
            self.post(&segment)?;
            sent += 1;
        }
        for index in (0..self.ways.len()).filter(|index| used & 1 << index != 0) {
            self.ways[index].device.lock().transmit();
        }
        Ok(sent)
    }

    fn post(&mut self, segment: &Segment) -> Result<(), Error> {
        let (index, layout) = (usize::from(segment.nic.0), Layout::new(&self.config.policy));
        let (at, len) = ((segment.offset % layout.window as u64) as usize, segment.len as usize);
        let first = len.min(layout.window - at);
        let Some(slot) = self.ways[index].free.pop() else {
            return Err(Error::Argument("a NIC was given more than its queue holds".into()));
        };
        let head = layout.header(index, slot);
        let written = self.memory.write(head, &header(SEGMENT, segment.len, segment.offset));
        debug_assert!(written.is_ok(), "headers lie in the memory");
        let mut parts = vec![self.sge(head, HEADER)[0], self.sge(at, first)[0]];
        if first < len {
            parts.push(self.sge(0, len - first)[0]);
        }
        let way = &mut self.ways[index];
        way.headers.insert(segment.tag, slot);
        let Some(line) = &way.line else { return Ok(()) };
        let wr = SendWr::new(segment.tag, SendOp::Send, Data::List(&parts));
        way.device.lock().nic().post_send(line.qp, &wr)?;
        Ok(())
    }

    /// Tells the other end how far it may send, if that is much further than it was told, or it may not have heard.
    fn tell_limit(&mut self, now: u64) -> Result<(), Error> {
        let (limit, policy) = (self.stream.limit(), self.config.policy);
        let further = limit >= self.limits.told + policy.window / 4;
        let unheard = self.limits.known < self.limits.told && now >= self.limits.at + policy.patience;
        if !further && !unheard {
            return Ok(());
        }
        let count = self.ways.len();
        let open = |way: &Way| way.notes < NOTES && way.line.as_ref().is_some_and(|line| line.up);
        let next = (0..count)
            .map(|n| (self.limits.turn + n) % count)
            .find(|index| open(&self.ways[*index]) && self.pool.state(NicId(*index as u16)) == Some(NicState::Up));
        let Some(index) = next else { return Ok(()) };
        let way = &mut self.ways[index];
        let Some(line) = &way.line else { return Ok(()) };
        let bytes = header(LIMIT, 0, limit);
        let mut guard = way.device.lock();
        guard.nic().post_send(line.qp, &SendWr::new(IS_LIMIT | limit, SendOp::Send, Data::Inline(&bytes)))?;
        guard.transmit();
        way.notes += 1;
        self.limits = Limits { told: limit, at: now, turn: index + 1, ..self.limits };
        Ok(())
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        for index in 0..self.ways.len() {
            let device = self.ways[index].device.clone();
            let mut guard = device.lock();
            self.lose(&mut guard, index);
            // So the other end mostly hears of it; if not, its connection breaks.
            guard.progress();
            drop(guard);
            device.stop();
        }
    }
}
