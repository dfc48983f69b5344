//! Streams of bytes to another rack, by every NIC there is (DFabric, section 4.4).
//!
//! Each NIC is an address of this rack with one of the other: a device of its own, with a reliable connection. [`Streams`]
//! decides what goes by which NIC next and makes streams of what comes. A segment is one SEND; the bytes stay in the sender's
//! memory until it is known to have arrived, so that another NIC can send them again. A connection that breaks is made anew
//! by the rack that calls, for as long as the trunk lives.
//!
//! Both ends prove when they connect that they know the trunk's secret, and say which life of theirs it is: with another life
//! of the other end no stream goes on.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use remora_memory::{Access, Buffer, Region, Registry};
use remora_nic::cm::{CmEvent, ConnId, ListenerId, reason, service_id};
use remora_nic::{
    ConnectAttr, CqId, Data, Event, QpInit, QpType, Qpn, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use remora_rack::{
    Breach, CONTROL, FlowId, FlowPolicy, NicId, NicState, Refusal, Segment, StreamEvent, Streams, StreamsConfig,
};

use crate::device::{Device, DeviceGuard, entropy};
use crate::{Error, LinkKind, Sleeper, map_memory};

use greeting::{End, Greeting};
use memory::{HEADER, Layout, NOTES, Window, header, sge};

mod greeting;
mod memory;
#[cfg(test)]
mod tests;

/// The port of racks' trunks.
const PORT: u16 = 7_471;
/// Between two calls of a NIC that is not connected, and how long a call may take, nanoseconds.
const REDIAL: u64 = 50_000_000;
const DIAL: u64 = 3_000_000_000;
/// A NIC that has said nothing for so long says something, to find out whether there is still somebody, nanoseconds.
const QUIET: u64 = 500_000_000;
/// See [`TrunkConfig::away`].
const AWAY: Duration = Duration::from_secs(60);
/// For so long after something was [pushed](Trunk::push) the driver wakes in time to find out that a NIC is silent, nanoseconds.
const PUSHED: u64 = 1_000_000_000;
/// What there is to do at once is much from so much on; so long after the last of that, nanoseconds, whoever drives does it alone.
const MUCH: usize = 16;
const CALM: u64 = 10_000_000;
/// Completions that are taken from a NIC before the next has its turn.
const BATCH: usize = 64;

/// A message: a segment, or how far the other end may send records.
const SEGMENT: u32 = 1;
const LIMIT: u32 = 2;
/// In the number of a work request: it is a limit, not a segment.
const IS_LIMIT: u64 = 1 << 63;

/// Both ends of a trunk.
#[derive(Clone)]
pub struct TrunkConfig {
    /// Addresses of this rack, each with the one of the other rack that it talks to. In the same order at both ends.
    pub ways: Vec<(IpAddr, IpAddr)>,
    /// Whether this end calls; the other one waits for calls.
    pub calls: bool,
    /// The same at both ends.
    pub policy: FlowPolicy,
    /// What both ends know and nobody else.
    pub secret: [u8; 32],
    /// Streams at a time.
    pub most: usize,
    /// How long the other rack may be away, by all NICs, before its streams count as lost.
    pub away: Duration,
}

impl TrunkConfig {
    /// With these ways, and the policy that suits most.
    pub fn new(ways: Vec<(IpAddr, IpAddr)>, calls: bool, secret: &[u8]) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, secret);
        let mut secret = [0; 32];
        secret.copy_from_slice(digest.as_ref());
        Self { ways, calls, policy: FlowPolicy::default(), secret, most: 256, away: AWAY }
    }
}

struct Way {
    device: Device,
    local: IpAddr,
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
    /// When it was last given something to send.
    spoke: u64,
    carried: u64,
}

/// A connection, or a call.
struct Line {
    qp: Qpn,
    conn: ConnId,
    up: bool,
    since: u64,
}

/// One end of the streams to another rack.
pub struct Trunk {
    config: TrunkConfig,
    ways: Vec<Way>,
    streams: Streams,
    windows: HashMap<FlowId, Window>,
    registry: Arc<Registry>,
    /// Headers, and buffers for what comes.
    memory: Buffer,
    region: Arc<Region>,
    limits: Limits,
    /// This life of this end, and the other end's as far as it is known.
    life: [u8; 8],
    peer: Option<[u8; 8]>,
    start: Instant,
    sleeper: TrunkSleeper,
    /// The other end has broken the protocol.
    broken: bool,
    /// When a NIC was connected last, and when something was pushed.
    met_at: u64,
    pushed_at: u64,
    /// When there was much to do, and whether NIC threads stay away, as there is not: they would only wake beside the driver.
    much_at: u64,
    kept: bool,
    /// What a device refused while somebody else pushed.
    refused: Option<Error>,
}

/// What the other end knows of how far it may send records.
#[derive(Default)]
struct Limits {
    told: u64,
    known: u64,
    at: u64,
    turn: usize,
}

/// Sleeps until a trunk may have something to do: for who holds a lock around the trunk and not around its sleep.
pub struct TrunkSleeper {
    ways: Vec<(Device, CqId)>,
    sleeper: Sleeper,
}

impl TrunkSleeper {
    fn new(ways: &[Way]) -> Self {
        Self { ways: ways.iter().map(|way| (way.device.clone(), way.cq)).collect(), sleeper: Sleeper::new() }
    }

    /// Sleeps until there may be something to do, or `timeout` has passed.
    pub fn sleep(&mut self, timeout: Duration) {
        Device::sleep_any(self.ways.iter().map(|(device, cq)| (device, *cq)), timeout, &mut self.sleeper);
    }

    /// Wakes who sleeps so, or is about to: a stream has bytes, or room.
    pub fn wake(&self) {
        if let Some((device, _)) = self.ways.first() {
            device.nudge();
        }
    }
}

impl Trunk {
    /// An end with these ways; its connections come up as it is driven.
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
        let seed = entropy()?;
        let life = std::array::from_fn(|index| seed[index]);
        let first = u64::from_le_bytes(std::array::from_fn(|index| seed[8 + index]));
        let registry = Arc::new(Registry::new(entropy()?));
        let memory = map_memory(layout.way(config.ways.len()))?;
        let pd = registry.alloc_pd();
        let region = registry.register(pd, &memory, 0, memory.len(), None, Access::LOCAL_WRITE)?;
        let mut ways = Vec::new();
        for &(local, remote) in &config.ways {
            let link = LinkKind::Udp.bind(local).map_err(Error::link(LinkKind::Udp, local))?;
            let mtu = link.max_mtu() as u32;
            let device = Device::with_registry(local, vec![link], registry.clone(), None)?;
            let mut guard = device.lock();
            let cq = guard.nic().create_cq(4 * (policy.entries + NOTES + layout.receives() as u32))?;
            let listener = if config.calls { None } else { Some(guard.nic().listen(service_id(PORT))?) };
            drop(guard);
            ways.push(Way {
                device,
                local,
                remote,
                mtu,
                cq,
                listener,
                line: None,
                dial_at: 0,
                free: (0..policy.entries).collect(),
                headers: HashMap::new(),
                notes: 0,
                spoke: 0,
                carried: 0,
            });
        }
        let nics = ways.len() as u16;
        let streams = Streams::new(StreamsConfig { policy, nics, calls: config.calls, most: config.most, first }, 0);
        let windows = HashMap::from([(CONTROL, Window::new(&registry, &region, policy.window as usize)?)]);
        let limit = streams.control_limit();
        Ok(Self {
            sleeper: TrunkSleeper::new(&ways),
            ways,
            streams,
            windows,
            registry,
            memory,
            region,
            limits: Limits { told: limit, known: limit, ..Limits::default() },
            life,
            peer: None,
            start: Instant::now(),
            broken: false,
            met_at: 0,
            pushed_at: 0,
            much_at: 0,
            kept: false,
            refused: None,
            config,
        })
    }

    /// Asks the other rack for a connection to `to`, for a program at `from`. None if there are too many, or no memory.
    pub fn open(&mut self, to: SocketAddr, from: SocketAddr) -> Option<FlowId> {
        let window = self.window().ok()?;
        let flow = self.streams.open(to, from)?;
        self.windows.insert(flow, window);
        Some(flow)
    }

    fn window(&self) -> Result<Window, Error> {
        Window::new(&self.registry, &self.region, self.config.policy.window as usize)
    }

    /// Answers [`StreamEvent::Asked`].
    pub fn answer(&mut self, flow: FlowId, answer: Result<(), Refusal>) {
        let window = if answer.is_ok() { self.window().ok() } else { None };
        let answer = if window.is_some() { answer } else { answer.and(Err(Refusal::TooMany)) };
        self.windows.extend(window.map(|window| (flow, window)));
        self.streams.answer(flow, answer);
    }

    /// Takes bytes to send, as many as there is room for. Returns how many.
    pub fn write(&mut self, flow: FlowId, data: &[u8]) -> usize {
        let Some(window) = self.windows.get(&flow) else { return 0 };
        let room = self.streams.room(flow);
        let len = data.len().min((room.end - room.start) as usize);
        window.put(room.start, &data[..len]);
        self.streams.wrote(flow, len as u64);
        len
    }

    /// No more will be written to a stream.
    pub fn end(&mut self, flow: FlowId) {
        self.streams.end(flow);
    }

    /// Gives bytes that have come. Returns how many.
    pub fn read(&mut self, flow: FlowId, out: &mut [u8]) -> usize {
        let Some(window) = self.windows.get(&flow) else { return 0 };
        let ready = self.streams.ready(flow);
        let len = out.len().min((ready.end - ready.start) as usize);
        window.get(ready.start, &mut out[..len]);
        self.streams.took(flow, len as u64);
        len
    }

    /// As [`read`](Self::read), of `most` bytes at most, where they lie: `to` says how many it takes of each run. Returns how many are
    /// left that have come.
    pub fn pass(&mut self, flow: FlowId, most: usize, mut to: impl FnMut(&[u8]) -> usize) -> usize {
        let Some(window) = self.windows.get(&flow) else { return 0 };
        let ready = self.streams.ready(flow);
        let all = (ready.end - ready.start) as usize;
        let mut taken = 0;
        for (place, len) in window.parts(ready.start, all.min(most)) {
            let took = to(&window.into[place..place + len]).min(len);
            taken += took;
            if took < len {
                break;
            }
        }
        self.streams.took(flow, taken as u64);
        all - taken
    }

    /// Has what was written leave, as far as it may, beside whoever drives this, who is told of what a device refuses.
    pub fn push(&mut self) {
        self.pushed_at = self.now();
        while let Some(segment) = self.streams.poll_segment(self.now()) {
            // With nothing left behind, whoever sleeps as the driver sleeps on.
            let posted = self.post(&segment).map(|device| device.into_iter().for_each(|mut device| device.transmit()));
            if let Err(error) = posted {
                self.refused = Some(error);
            }
        }
    }

    /// Whether all has been read that ever comes.
    pub fn is_finished(&self, flow: FlowId) -> bool {
        self.streams.is_finished(flow)
    }

    /// Whether this rack has closed a stream, or the other one has given it up and all that came before was read.
    pub fn is_lost(&self, flow: FlowId) -> bool {
        self.streams.is_lost(flow)
    }

    /// Whether the other rack hears nothing more of a stream.
    pub fn is_deaf(&self, flow: FlowId) -> bool {
        self.streams.is_deaf(flow)
    }

    /// Lets a stream go. If it was not ended, or not read to its end, the other rack hears that it was given up.
    pub fn close(&mut self, flow: FlowId) {
        self.streams.close(flow);
    }

    /// What has happened since. [`StreamEvent::Gone`] stays here: it is about the windows.
    pub fn poll_event(&mut self) -> Option<StreamEvent> {
        loop {
            match self.streams.poll_event()? {
                StreamEvent::Gone(flow) => drop(self.windows.remove(&flow)),
                event => return Some(event),
            }
        }
    }

    /// Bytes that were written to a stream and are in the other rack's memory, without a gap.
    pub fn arrived(&self, flow: FlowId) -> u64 {
        self.streams.arrived_of(flow)
    }

    /// NICs that are connected and not given up as silent.
    pub fn nics_up(&self) -> usize {
        (0..self.ways.len() as u16).filter(|nic| self.streams.nic_state(NicId(*nic)) == Some(NicState::Up)).count()
    }

    /// NICs that are connected, silent ones too.
    pub fn nics_connected(&self) -> usize {
        self.ways.iter().filter(|way| way.line.as_ref().is_some_and(|line| line.up)).count()
    }

    /// Bytes that each NIC has brought over, in the order of the ways.
    pub fn carried(&self) -> Vec<u64> {
        self.ways.iter().map(|way| way.carried).collect()
    }

    /// For who sleeps without holding the trunk, and for who wakes them.
    pub fn sleeper(&self) -> TrunkSleeper {
        TrunkSleeper::new(&self.ways)
    }

    /// Does what there is to do; if there is nothing, sleeps until there is or `timeout` has passed.
    ///
    /// # Errors
    ///
    /// What a device refuses.
    pub fn turn(&mut self, timeout: Duration) -> Result<(), Error> {
        if self.drive()? == 0 {
            let pause = self.pause(timeout);
            self.sleeper.sleep(pause);
        }
        Ok(())
    }

    /// Does what there is to do. Returns how much that was.
    ///
    /// # Errors
    ///
    /// What a device refuses.
    pub fn drive(&mut self) -> Result<usize, Error> {
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        let mut work = 0;
        for way in 0..self.ways.len() {
            work += self.drive_way(way)?;
        }
        if std::mem::take(&mut self.broken) {
            self.breach();
        }
        let now = self.now();
        if work >= MUCH {
            self.much_at = now;
        }
        let kept = now - self.much_at > CALM;
        if std::mem::replace(&mut self.kept, kept) != kept {
            self.ways.iter().for_each(|way| way.device.keep(kept));
        }
        if self.nics_connected() > 0 {
            self.met_at = now;
        } else if self.streams.count() > 0 && u128::from(now - self.met_at) > self.config.away.as_nanos() {
            self.met_at = now;
            self.breach();
        }
        self.streams.tick(now);
        if let Some(window) = self.windows.get(&CONTROL) {
            while let Some((at, bytes)) = self.streams.poll_control() {
                window.put(at, &bytes);
            }
        }
        work += self.send()?;
        self.tell_limit(now)?;
        Ok(work)
    }

    /// How long there is nothing to do that no packet brings, `timeout` at most.
    pub fn pause(&self, timeout: Duration) -> Duration {
        let now = self.now();
        let soon = self.streams.next_timeout().map_or(timeout, |at| Duration::from_nanos(at.saturating_sub(now)));
        let most = if now - self.pushed_at < PUSHED { REDIAL.min(self.config.policy.patience) } else { REDIAL };
        timeout.min(soon).min(Duration::from_nanos(most))
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// The other end has said which life of it this is. With another than before no stream goes on. `but` is the way by which
    /// it was said.
    fn meet(&mut self, life: [u8; 8], but: usize) {
        if self.peer.replace(life).is_none_or(|before| before == life) {
            return;
        }
        for index in (0..self.ways.len()).filter(|index| *index != but) {
            self.give_up(index);
        }
        self.restart();
    }

    /// No stream goes on.
    fn restart(&mut self) {
        let now = self.now();
        self.streams.restart(now);
        let limit = self.streams.control_limit();
        self.limits = Limits { told: limit, known: limit, ..Limits::default() };
        // What was said before concerns nobody.
        self.broken = false;
    }

    /// The other end breaks the protocol, or has been away for too long: nothing that it said is worth anything. It is called anew.
    fn breach(&mut self) {
        (0..self.ways.len()).for_each(|index| self.give_up(index));
        self.peer = None;
        self.restart();
        if let Ok(seed) = entropy() {
            // For the other end this is another life.
            self.life = std::array::from_fn(|index| seed[index]);
        }
    }

    fn give_up(&mut self, index: usize) {
        let device = self.ways[index].device.clone();
        self.lose(&mut device.lock(), index);
    }

    /// One NIC's turn. Returns how much there was to do.
    fn drive_way(&mut self, index: usize) -> Result<usize, Error> {
        let device = self.ways[index].device.clone();
        let mut guard = device.lock();
        let mut work = guard.progress();
        // What comes before the other end's proof was looked at waits for it.
        let proven = self.ways[index].line.as_ref().is_none_or(|line| self.is_proven(line));
        for _ in 0..if proven { BATCH } else { 0 } {
            let Some(wc) = guard.nic().poll_cq(self.ways[index].cq) else { break };
            self.complete(&mut guard, index, &wc)?;
            work += 1;
        }
        let events = guard.take_events();
        drop(guard);
        for event in events {
            self.event(index, event)?;
            work += 1;
        }
        let mut guard = device.lock();
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

    /// Whether the other end of a connection has proved that it knows the secret: who is called does so when he calls.
    fn is_proven(&self, line: &Line) -> bool {
        line.up || !self.config.calls
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
        [sge(&self.region, at, len)]
    }

    fn greeting<'a>(&'a self, index: usize, end: End, heard: &'a [u8]) -> Greeting<'a> {
        let way = &self.ways[index];
        let way = if self.config.calls { (way.local, way.remote) } else { (way.remote, way.local) };
        Greeting { secret: &self.config.secret, end, way, heard }
    }

    fn attr(&self, index: usize) -> ConnectAttr {
        // 67 ms, seven times. Others take over long before, when it counts as silent.
        let path_mtu = self.ways[index].mtu;
        ConnectAttr { path_mtu, retry_count: 7, rnr_retry: 7, ack_timeout: 14, ..ConnectAttr::default() }
    }

    fn dial(&mut self, guard: &mut DeviceGuard<'_>, index: usize) -> Result<(), Error> {
        let qp = self.queue_pair(guard, index)?;
        let (now, route, attr) = (guard.now(), guard.route(self.ways[index].remote, 0), self.attr(index));
        let said = self.greeting(index, End::Caller, &[]).say(self.life);
        match guard.nic().connect(now, qp, route, service_id(PORT), attr, &said) {
            Ok(conn) => self.ways[index].line = Some(Line { qp, conn, up: false, since: self.now() }),
            Err(_) => {
                let _ = guard.nic().destroy_qp(qp);
                self.ways[index].dial_at = self.now() + REDIAL;
            }
        }
        Ok(())
    }

    fn event(&mut self, index: usize, event: Event) -> Result<(), Error> {
        let line = self.ways[index].line.as_ref();
        let is_line = |conn: ConnId| line.is_some_and(|line| line.conn == conn);
        match event {
            Event::Cm(CmEvent::ConnectRequest { conn, listener, remote_ip, private_data, .. }) => {
                let ours = self.ways[index].listener == Some(listener) && remote_ip == self.ways[index].remote;
                self.called(index, conn, if ours { &private_data } else { &[] })?;
            }
            Event::Cm(CmEvent::Established { conn, private_data, .. }) if is_line(conn) => {
                if self.config.calls {
                    let heard = self.greeting(index, End::Caller, &[]).say(self.life);
                    match self.greeting(index, End::Answerer, &heard).hear(&private_data) {
                        Some(life) => self.meet(life, index),
                        None => {
                            self.give_up(index);
                            return Ok(());
                        }
                    }
                }
                let now = self.now();
                if let Some(line) = &mut self.ways[index].line {
                    line.up = true;
                }
                self.streams.restored(now, NicId(index as u16));
            }
            Event::Cm(
                CmEvent::Disconnected { conn } | CmEvent::Unreachable { conn } | CmEvent::Rejected { conn, .. },
            ) if is_line(conn) => self.give_up(index),
            Event::QpFatal(qp, _) if line.is_some_and(|line| line.qp == qp) => self.give_up(index),
            _ => {}
        }
        Ok(())
    }

    /// The other end calls by a way, and says this.
    fn called(&mut self, index: usize, conn: ConnId, said: &[u8]) -> Result<(), Error> {
        let device = self.ways[index].device.clone();
        let Some(life) = self.greeting(index, End::Caller, &[]).hear(said) else {
            let mut guard = device.lock();
            let now = guard.now();
            let _ = guard.nic().reject(now, conn, reason::CONSUMER, b"no trunk with that address and secret");
            return Ok(());
        };
        // The caller has given up what there was.
        self.give_up(index);
        self.meet(life, index);
        let mut guard = device.lock();
        let (now, qp, attr) = (guard.now(), self.queue_pair(&mut guard, index)?, self.attr(index));
        let heard = self.greeting(index, End::Caller, &[]).say(life);
        let said = self.greeting(index, End::Answerer, &heard).say(self.life);
        match guard.nic().accept(now, conn, qp, attr, &said) {
            Ok(()) => self.ways[index].line = Some(Line { qp, conn, up: false, since: self.now() }),
            Err(_) => drop(guard.nic().destroy_qp(qp)),
        }
        Ok(())
    }

    /// A connection is no more: what it had under way others send again.
    fn lose(&mut self, guard: &mut DeviceGuard<'_>, index: usize) {
        // What has come is acknowledged, and not sent again.
        while let Some(wc) = guard.nic().poll_cq(self.ways[index].cq) {
            let line = self.ways[index].line.as_ref();
            let came = wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv;
            if came && line.is_some_and(|line| line.qp == wc.qpn && self.is_proven(line)) {
                self.broken |= self.hear(index, &wc).is_err();
            }
        }
        let (now, entries) = (self.now(), self.config.policy.entries);
        let way = &mut self.ways[index];
        let Some(line) = way.line.take() else { return };
        let at = guard.now();
        let _ = guard.nic().disconnect(at, line.conn);
        let _ = guard.nic().destroy_qp(line.qp);
        way.headers.clear();
        (way.free, way.notes, way.dial_at) = ((0..entries).collect(), 0, now + REDIAL);
        self.streams.failed(now, NicId(index as u16));
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
                self.broken |= self.hear(index, wc).is_err();
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
                let before = self.streams.queued(NicId(index as u16));
                self.streams.done(now, wc.wr_id);
                way.carried += before - self.streams.queued(NicId(index as u16));
            }
        }
        Ok(())
    }

    /// A message has come.
    fn hear(&mut self, index: usize, wc: &WorkCompletion) -> Result<(), Breach> {
        let at = Layout::new(&self.config.policy).receive(index, wc.wr_id);
        let mut head = [0; HEADER];
        self.memory.read(at, &mut head).map_err(|_| Breach::Order)?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let (flow, place) = (FlowId(long(8)), long(16));
        match (word(0), word(4)) {
            (LIMIT, 0) => self.streams.allow_control(place),
            (SEGMENT, len) if len as usize + HEADER == wc.byte_len as usize => {
                let memory = &self.memory;
                // Without a window there is no such stream any more: then nothing of it is fresh.
                let window = self.windows.get_mut(&flow);
                let mut window = window.map(|window| &mut window.into);
                self.streams.accept(flow, place, len, |fresh| {
                    let Some(into) = &mut window else { return };
                    let size = into.len();
                    let mut from = fresh.start;
                    while from < fresh.end {
                        let to = (from % size as u64) as usize;
                        let piece = ((fresh.end - from) as usize).min(size - to);
                        let source = at + HEADER + (from - place) as usize;
                        let taken = memory.take(source, &mut into[to..to + piece]);
                        debug_assert!(taken.is_ok(), "a message lies in its buffer");
                        from += piece as u64;
                    }
                })?;
                if flow == CONTROL {
                    self.hear_records()?;
                }
            }
            _ => return Err(Breach::Order),
        }
        Ok(())
    }

    fn hear_records(&mut self) -> Result<(), Breach> {
        let ready = self.streams.control_ready();
        let Some(window) = self.windows.get(&CONTROL) else { return Ok(()) };
        let mut records = vec![0; (ready.end - ready.start) as usize];
        window.get(ready.start, &mut records);
        self.streams.hear(&records)
    }

    /// NICs take what there is to send. Returns how much that was.
    fn send(&mut self) -> Result<usize, Error> {
        let mut used = 0u64;
        let mut sent = 0;
        while let Some(segment) = self.streams.poll_segment(self.now()) {
            used |= 1 << segment.nic.0;
            self.post(&segment)?;
            sent += 1;
        }
        for index in (0..self.ways.len()).filter(|index| used & 1 << index != 0) {
            self.ways[index].device.lock().transmit();
        }
        Ok(sent)
    }

    /// Posts a segment, unless it is of no use any more. Returns its NIC, which has yet to transmit it.
    fn post(&mut self, segment: &Segment) -> Result<Option<DeviceGuard<'_>>, Error> {
        let (index, layout) = (usize::from(segment.nic.0), Layout::new(&self.config.policy));
        let Some(window) = self.windows.get(&segment.flow) else { return Ok(None) };
        let Some(slot) = self.ways[index].free.pop() else {
            return Err(Error::Argument("a NIC was given more than its queue holds".into()));
        };
        let head = layout.header(index, slot);
        let written = self.memory.write(head, &header(SEGMENT, segment.len, segment.flow, segment.offset));
        debug_assert!(written.is_ok(), "headers lie in the memory");
        let mut parts = [sge(&self.region, head, HEADER); 3];
        let mut count = 1;
        for (place, len) in window.parts(segment.offset, segment.len as usize) {
            parts[count] = sge(&window.region, place, len);
            count += 1;
        }
        let way = &mut self.ways[index];
        way.headers.insert(segment.tag, slot);
        way.spoke = self.start.elapsed().as_nanos() as u64;
        let Some(line) = &way.line else { return Ok(None) };
        let wr = SendWr::new(segment.tag, SendOp::Send, Data::List(&parts[..count]));
        let mut device = way.device.lock();
        device.nic().post_send(line.qp, &wr)?;
        Ok(Some(device))
    }

    /// Tells the other end how far it may send, if that is much further than it was told, or it may not have heard; and by
    /// every NIC now and then, as a connection breaks only when something is sent.
    fn tell_limit(&mut self, now: u64) -> Result<(), Error> {
        for index in 0..self.ways.len() {
            if now > self.ways[index].spoke + QUIET {
                self.note(index, now)?;
            }
        }
        let (limit, policy) = (self.streams.control_limit(), self.config.policy);
        let further = limit >= self.limits.told + policy.window / 4;
        let unheard = self.limits.known < self.limits.told && now >= self.limits.at + policy.patience;
        if !further && !unheard {
            return Ok(());
        }
        let count = self.ways.len();
        let next = (0..count).map(|n| (self.limits.turn + n) % count).find(|index| {
            self.streams.nic_state(NicId(*index as u16)) == Some(NicState::Up) && self.ways[*index].notes < NOTES
        });
        let Some(index) = next else { return Ok(()) };
        if self.note(index, now)? {
            self.limits = Limits { told: limit, at: now, turn: index + 1, ..self.limits };
        }
        Ok(())
    }

    /// Tells the limit by a NIC. False if that cannot be done now.
    fn note(&mut self, index: usize, now: u64) -> Result<bool, Error> {
        let limit = self.streams.control_limit();
        let way = &mut self.ways[index];
        let line = way.line.as_ref().filter(|line| line.up && way.notes < NOTES);
        let Some(line) = line else { return Ok(false) };
        let bytes = header(LIMIT, 0, CONTROL, limit);
        let mut guard = way.device.lock();
        guard.nic().post_send(line.qp, &SendWr::new(IS_LIMIT | limit, SendOp::Send, Data::Inline(&bytes)))?;
        guard.transmit();
        drop(guard);
        (way.notes, way.spoke) = (way.notes + 1, now);
        Ok(true)
    }
}

impl Trunk {
    /// Ends all connections. Nothing comes or goes any more.
    pub fn hang_up(&mut self) {
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

impl Drop for Trunk {
    fn drop(&mut self) {
        self.hang_up();
    }
}
