//! Connections between two racks: each a stream of bytes both ways, all over the same pool of NICs (section 4.4).
//!
//! Each is a flow of the [`NicPool`] and a [`Resequencer`]. Flow 0 carries [`Record`]s: who wants a connection, how far a
//! sender may go, where a stream ends. It arrives whole and in order as any other, so nothing that is said there is said
//! twice. Bytes are the owner's: a window for each direction of each stream, in which a byte lies at its place modulo the
//! window.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;

use crate::nics::{FlowId, FlowPolicy, NicId, NicPool, NicState, Segment};
use crate::records::{NoRecord, Record, Refusal};
use crate::resequencer::{BeyondWindow, Resequencer};

/// The flow that carries records.
pub const CONTROL: FlowId = FlowId(0);
/// Bytes of records that wait for room, at most: who asks for more than it hears of is no rack.
const WAITING: usize = 1 << 20;

/// Bits of where numbers begin: there is no end to them.
const FIRST: u64 = (1 << 62) - 1;
/// NICs that a peer may have, and so segments under way, each of which may be a gap before others.
const NICS: usize = 64;

/// How streams are set up. The same at both ends, but for `calls`.
#[derive(Clone, Copy, Debug)]
pub struct StreamsConfig {
    /// How they use the NICs.
    pub policy: FlowPolicy,
    /// NICs.
    pub nics: u16,
    /// One end of two: both give numbers to streams, one even ones.
    pub calls: bool,
    /// Streams at a time.
    pub most: usize,
    /// Where the numbers of this end's streams begin: in each life elsewhere, so that what the other end's owner still does with
    /// streams of the life before concerns none of this one.
    pub first: u64,
}

/// What happened to streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// The other rack wants a connection: to be answered by [`Streams::answer`].
    Asked {
        /// Its number.
        flow: FlowId,
        /// To whom.
        to: SocketAddr,
        /// Who asks.
        from: SocketAddr,
    },
    /// What the other rack says to [`Streams::open`].
    Answered {
        /// Its number.
        flow: FlowId,
        /// Why not, if not: then it is gone.
        answer: Result<(), Refusal>,
    },
    /// There may be more to read, or its end, or room to write.
    Changed(FlowId),
    /// The other rack has given it up. To be closed, when what came before has been read.
    Reset(FlowId),
    /// Nothing needs its windows any more. The last that is heard of it.
    Gone(FlowId),
}

/// What the other rack did that no rack does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// It sent more than there is room for.
    #[error(transparent)]
    Beyond(#[from] BeyondWindow),
    /// Between what it sent there are more gaps than segments may be under way: each would have to be remembered.
    #[error("the other rack leaves more gaps in a stream than it may have segments under way")]
    Gaps,
    /// It said what no rack says.
    #[error(transparent)]
    Record(#[from] NoRecord),
    /// It speaks of a stream that it may not speak of, or asks faster than it listens.
    #[error("the other rack breaks the order in which streams begin and end")]
    Order,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// It was asked for here, and there is no answer yet.
    Asking,
    /// The other rack asked, and was not answered.
    Asked,
    Open,
}

#[derive(Clone, Debug)]
struct Stream {
    state: State,
    offered: u64,
    ended: bool,
    into: Resequencer,
    /// How far the other end was told that it may go.
    told: u64,
    /// Where the other end's bytes end.
    ends_at: Option<u64>,
    /// The other end gave it up, and no more comes than this.
    reset: Option<u64>,
    /// The owner has closed it.
    closed: bool,
}

impl Stream {
    /// Whether nothing that its owner does with it concerns the other end any more.
    fn is_deaf(&self) -> bool {
        self.closed || self.reset.is_some()
    }
}

/// The streams between this rack and another.
#[derive(Clone, Debug)]
pub struct Streams {
    config: StreamsConfig,
    pool: NicPool,
    control: Resequencer,
    /// Records: what waits for room, what was put into the window, and what came and is not whole.
    waiting: VecDeque<u8>,
    offered: u64,
    heard: Vec<u8>,
    streams: BTreeMap<FlowId, Stream>,
    /// Closed, but NICs may still read their bytes.
    leaving: BTreeSet<FlowId>,
    next: u64,
    /// The greatest number that the other end has given.
    greatest: u64,
    changed: BTreeSet<FlowId>,
    events: VecDeque<StreamEvent>,
}

impl Streams {
    /// None yet.
    pub fn new(config: StreamsConfig, now: u64) -> Self {
        let mut pool = NicPool::new(config.policy, config.nics, now);
        pool.open(CONTROL);
        (0..config.nics).for_each(|nic| pool.failed(now, NicId(nic)));
        Self {
            pool,
            control: Resequencer::new(&config.policy),
            waiting: VecDeque::new(),
            offered: 0,
            heard: Vec::new(),
            streams: BTreeMap::new(),
            leaving: BTreeSet::new(),
            next: (config.first & FIRST) * 2 + if config.calls { 2 } else { 1 },
            greatest: 0,
            changed: BTreeSet::new(),
            events: VecDeque::new(),
            config,
        }
    }

    /// The other end has begun anew and knows of nothing: all streams are lost. NICs are down until they are
    /// [`Streams::restored`].
    pub fn restart(&mut self, now: u64) {
        let fresh = Self::new(self.config, now);
        let old = std::mem::replace(self, fresh);
        // Numbers go on, so that what the owner still says of old streams concerns no new one.
        (self.next, self.events) = (old.next, old.events);
        self.events.extend(old.leaving.into_iter().map(StreamEvent::Gone));
        for (flow, mut stream) in old.streams {
            let event = match stream.state {
                State::Asking => StreamEvent::Answered { flow, answer: Err(Refusal::TimedOut) },
                _ => StreamEvent::Reset(flow),
            };
            match (stream.closed, &stream.state) {
                (true, _) => self.events.push_back(StreamEvent::Gone(flow)),
                (false, State::Asking) => self.events.extend([event, StreamEvent::Gone(flow)]),
                (false, _) => {
                    stream.reset = Some(stream.into.ready().end);
                    self.streams.insert(flow, stream);
                    self.events.push_back(event);
                }
            }
        }
    }

    /// Asks the other rack for a connection. None if there are too many.
    pub fn open(&mut self, to: SocketAddr, from: SocketAddr) -> Option<FlowId> {
        if self.streams.len() >= self.config.most {
            return None;
        }
        let flow = FlowId(self.next);
        self.next += 2;
        self.begin(flow, State::Asking);
        self.say(Record::Open { flow, to, from });
        Some(flow)
    }

    fn begin(&mut self, flow: FlowId, state: State) {
        self.pool.open(flow);
        let into = Resequencer::new(&self.config.policy);
        let told = into.limit();
        let stream = Stream { state, offered: 0, ended: false, into, told, ends_at: None, reset: None, closed: false };
        self.streams.insert(flow, stream);
    }

    /// Answers [`StreamEvent::Asked`]. After a refusal it is gone.
    pub fn answer(&mut self, flow: FlowId, answer: Result<(), Refusal>) {
        let Some(stream) = self.streams.get_mut(&flow).filter(|stream| stream.state == State::Asked) else { return };
        stream.state = State::Open;
        if stream.reset.is_none() {
            self.say(Record::Answer { flow, answer });
        }
        if answer.is_err() {
            self.leave(flow);
        }
    }

    /// Places of bytes that may be written now, and are then [`wrote`](Streams::wrote). None before the answer: a segment could
    /// arrive before what it belongs to was heard of.
    pub fn room(&self, flow: FlowId) -> Range<u64> {
        match self.streams.get(&flow) {
            Some(stream) if stream.state == State::Open && !stream.ended && !stream.is_deaf() => {
                stream.offered..self.pool.arrived(flow).unwrap_or(stream.offered) + self.config.policy.window
            }
            _ => 0..0,
        }
    }

    /// So many bytes more are in the window.
    pub fn wrote(&mut self, flow: FlowId, len: u64) {
        if let Some(stream) = self.streams.get_mut(&flow) {
            stream.offered += len;
            self.pool.offer(flow, stream.offered);
        }
    }

    /// No more will be written.
    pub fn end(&mut self, flow: FlowId) {
        let Some(stream) = self.streams.get_mut(&flow).filter(|stream| !stream.ended && !stream.is_deaf()) else {
            return;
        };
        stream.ended = true;
        let at = stream.offered;
        self.say(Record::End { flow, at });
    }

    /// Places of bytes that may be read now, and are then [`took`](Streams::took).
    pub fn ready(&self, flow: FlowId) -> Range<u64> {
        self.streams.get(&flow).filter(|stream| !stream.closed).map_or(0..0, |stream| stream.into.ready())
    }

    /// Whether all has been read that there ever will be.
    pub fn is_finished(&self, flow: FlowId) -> bool {
        self.streams.get(&flow).is_none_or(|stream| stream.ends_at == Some(stream.into.ready().start))
    }

    /// Whether its owner has closed it, or the other end has given it up and all has been read that came before.
    pub fn is_lost(&self, flow: FlowId) -> bool {
        let over = |stream: &Stream| stream.reset.is_some_and(|at| stream.into.ready().start >= at);
        self.streams.get(&flow).is_none_or(|stream| stream.closed || over(stream))
    }

    /// Whether the other end hears nothing more of it.
    pub fn is_deaf(&self, flow: FlowId) -> bool {
        self.streams.get(&flow).is_none_or(Stream::is_deaf)
    }

    /// So many bytes were read.
    pub fn took(&mut self, flow: FlowId, len: u64) {
        let Some(stream) = self.streams.get_mut(&flow) else { return };
        stream.into.take(len);
        let limit = stream.into.limit();
        let needed = stream.ends_at.is_none_or(|end| end > stream.told);
        if limit >= stream.told + self.config.policy.window / 4 && needed && !stream.is_deaf() {
            stream.told = limit;
            self.say(Record::Limit { flow, limit });
        }
    }

    /// The owner has done with it: what was written goes on its way. If it was not ended, or not all that comes was read, it is given
    /// up: of what was written only that goes for which there is room.
    pub fn close(&mut self, flow: FlowId) {
        let finished = self.is_finished(flow);
        let Some(stream) = self.streams.get_mut(&flow).filter(|stream| !stream.closed) else { return };
        stream.closed = true;
        if stream.reset.is_some() {
            return self.leave(flow);
        }
        if !finished || !stream.ended {
            stream.offered = self.pool.cut(flow);
            let at = stream.offered;
            self.say(Record::Reset { flow, at });
        }
        self.arrived(flow);
    }

    /// A closed stream whose last byte has arrived leaves.
    fn arrived(&mut self, flow: FlowId) {
        let stream = self.streams.get(&flow).filter(|stream| stream.closed);
        if stream.is_some_and(|stream| self.pool.arrived(flow) == Some(stream.offered)) {
            self.leave(flow);
        }
    }

    fn leave(&mut self, flow: FlowId) {
        self.streams.remove(&flow);
        self.changed.remove(&flow);
        self.pool.close(flow);
        self.leaving.insert(flow);
        self.let_go();
    }

    /// Streams of which no NIC has anything any more are gone.
    fn let_go(&mut self) {
        while let Some(flow) = self.leaving.iter().find(|flow| !self.pool.has_under_way(**flow)).copied() {
            self.leaving.remove(&flow);
            self.events.push_back(StreamEvent::Gone(flow));
        }
    }

    fn say(&mut self, record: Record) {
        let mut bytes = Vec::new();
        record.emit(&mut bytes);
        self.waiting.extend(bytes);
    }

    /// Bytes of records, and the place in the window of [`CONTROL`] where they are to be put at once.
    pub fn poll_control(&mut self) -> Option<(u64, Vec<u8>)> {
        let room = self.pool.arrived(CONTROL)? + self.config.policy.window - self.offered;
        let len = (self.waiting.len() as u64).min(room) as usize;
        if len == 0 {
            return None;
        }
        let at = self.offered;
        self.offered += len as u64;
        self.pool.offer(CONTROL, self.offered);
        Some((at, self.waiting.drain(..len).collect()))
    }

    /// How far the other end may go in [`CONTROL`].
    pub fn control_limit(&self) -> u64 {
        self.control.limit()
    }

    /// How far this end may go there.
    pub fn allow_control(&mut self, limit: u64) {
        self.pool.allow(CONTROL, limit);
    }

    /// Bytes have come by a NIC. `fresh` is told of those that are to be kept: in the window of a stream, or of [`CONTROL`],
    /// of which [`Streams::control_ready`] are then to be [heard](Streams::hear).
    ///
    /// # Errors
    ///
    /// [`Breach`].
    pub fn accept(&mut self, flow: FlowId, offset: u64, len: u32, fresh: impl FnMut(Range<u64>)) -> Result<(), Breach> {
        let most = NICS * self.config.policy.entries as usize;
        if flow == CONTROL {
            self.control.accept(offset, len, fresh)?;
            return if self.control.gaps() > most { Err(Breach::Gaps) } else { Ok(()) };
        }
        // Of one that was given up here, something may still be under way.
        let Some(stream) = self.streams.get_mut(&flow) else { return Ok(()) };
        let ends = [stream.ends_at, stream.reset];
        if ends.into_iter().flatten().any(|end| offset.saturating_add(len.into()) > end) {
            return Err(Breach::Order);
        }
        stream.into.accept(offset, len, fresh)?;
        self.changed.insert(flow);
        if stream.into.gaps() > most { Err(Breach::Gaps) } else { Ok(()) }
    }

    /// Places in the window of [`CONTROL`] of records that have come.
    pub fn control_ready(&self) -> Range<u64> {
        self.control.ready()
    }

    /// Hears these records, the first of [`Streams::control_ready`].
    ///
    /// # Errors
    ///
    /// [`Breach`].
    pub fn hear(&mut self, bytes: &[u8]) -> Result<(), Breach> {
        self.control.take(bytes.len() as u64);
        self.heard.extend(bytes);
        let heard = std::mem::take(&mut self.heard);
        let mut rest = &heard[..];
        while let Some((record, len)) = Record::parse(rest)? {
            self.hear_record(record)?;
            rest = &rest[len..];
        }
        self.heard = rest.to_vec();
        if self.waiting.len() > WAITING { Err(Breach::Order) } else { Ok(()) }
    }

    fn hear_record(&mut self, record: Record) -> Result<(), Breach> {
        match record {
            Record::Open { flow, to, from } => {
                // In a life of its own it may come to numbers that streams still have which its last one left behind.
                let taken = self.streams.contains_key(&flow) || self.leaving.contains(&flow);
                if flow.0 <= self.greatest || taken || (flow.0 % 2 == 0) == self.config.calls {
                    return Err(Breach::Order);
                }
                self.greatest = flow.0;
                if self.streams.len() >= self.config.most {
                    self.say(Record::Answer { flow, answer: Err(Refusal::TooMany) });
                    return Ok(());
                }
                self.begin(flow, State::Asked);
                self.events.push_back(StreamEvent::Asked { flow, to, from });
            }
            Record::Answer { flow, answer } => {
                // It may have been given up here.
                let Some(stream) = self.streams.get_mut(&flow) else { return Ok(()) };
                if stream.state != State::Asking {
                    return Err(Breach::Order);
                }
                stream.state = State::Open;
                self.events.push_back(StreamEvent::Answered { flow, answer });
                if answer.is_err() {
                    self.leave(flow);
                }
            }
            Record::Limit { flow, limit } => {
                self.pool.allow(flow, limit);
            }
            Record::End { flow, at } => {
                let Some(stream) = self.streams.get_mut(&flow) else { return Ok(()) };
                if stream.ends_at.is_some() || stream.into.last() > at {
                    return Err(Breach::Order);
                }
                stream.ends_at = Some(at);
                self.changed.insert(flow);
            }
            Record::Reset { flow, at } => {
                let Some(stream) = self.streams.get_mut(&flow).filter(|stream| stream.reset.is_none()) else {
                    return Ok(());
                };
                if stream.into.last() > at {
                    return Err(Breach::Order);
                }
                stream.reset = Some(at);
                if stream.closed {
                    self.leave(flow);
                } else if stream.state == State::Asking {
                    self.events.push_back(StreamEvent::Answered { flow, answer: Err(Refusal::Refused) });
                    self.leave(flow);
                } else {
                    self.events.push_back(StreamEvent::Reset(flow));
                }
            }
        }
        Ok(())
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<StreamEvent> {
        self.events.pop_front().or_else(|| self.changed.pop_first().map(StreamEvent::Changed))
    }

    /// The next segment that a NIC is to send.
    pub fn poll_segment(&mut self, now: u64) -> Option<Segment> {
        self.pool.poll(now)
    }

    /// A segment is in the other rack's memory, or a duplicate of it.
    pub fn done(&mut self, now: u64, tag: u64) {
        let Some(flow) = self.pool.flow_of(tag) else { return };
        self.pool.done(now, tag);
        if self.streams.contains_key(&flow) {
            self.changed.insert(flow);
            self.arrived(flow);
        }
        self.let_go();
    }

    /// A NIC has failed; it sends nothing any more.
    pub fn failed(&mut self, now: u64, nic: NicId) {
        self.pool.failed(now, nic);
        self.let_go();
    }

    /// A NIC sends again.
    pub fn restored(&mut self, now: u64, nic: NicId) {
        self.pool.restored(now, nic);
    }

    /// What time brings.
    pub fn tick(&mut self, now: u64) {
        self.pool.tick(now);
    }

    /// When [`Streams::tick`] has something to do at the latest.
    pub fn next_timeout(&self) -> Option<u64> {
        self.pool.next_timeout()
    }

    /// How a NIC is.
    pub fn nic_state(&self, nic: NicId) -> Option<NicState> {
        self.pool.state(nic)
    }

    /// Bytes that a NIC has under way.
    pub fn queued(&self, nic: NicId) -> u64 {
        self.pool.queued(nic)
    }

    /// How much of a stream has arrived at the other end.
    pub fn arrived_of(&self, flow: FlowId) -> u64 {
        self.pool.arrived(flow).unwrap_or(0)
    }

    /// Streams that there are.
    pub fn count(&self) -> usize {
        self.streams.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: u64 = 256;
    const NICS: u16 = 3;

    /// Hears a record, wherever the last one ended.
    fn hear(owner: &mut Owner, record: Record) -> Result<(), Breach> {
        let mut bytes = Vec::new();
        record.emit(&mut bytes);
        owner.streams.control.accept(owner.streams.control.ready().end, bytes.len() as u32, |_| ()).unwrap();
        owner.streams.hear(&bytes)
    }

    fn policy() -> FlowPolicy {
        FlowPolicy { window: WINDOW, segment: 40, depth: 120, entries: 4, subflows: 6, ..FlowPolicy::default() }
    }

    fn byte(flow: FlowId, side: usize, at: u64) -> u8 {
        (flow.0.wrapping_mul(31) + side as u64 * 7 + at.wrapping_mul(13) + at / 256) as u8
    }

    struct Owner {
        streams: Streams,
        /// What is in the windows, by stream: to send, and what came.
        out: BTreeMap<FlowId, Vec<u8>>,
        into: BTreeMap<FlowId, Vec<u8>>,
        under_way: Vec<Segment>,
        begun: BTreeSet<FlowId>,
        gone: BTreeSet<FlowId>,
        read: BTreeMap<FlowId, u64>,
    }

    impl Owner {
        fn new(calls: bool) -> Self {
            let config = StreamsConfig { policy: policy(), nics: NICS, calls, most: 4, first: 0 };
            let mut streams = Streams::new(config, 0);
            (0..NICS).for_each(|nic| streams.restored(0, NicId(nic)));
            let window = || BTreeMap::from([(CONTROL, vec![0; WINDOW as usize])]);
            let (begun, gone) = (BTreeSet::new(), BTreeSet::new());
            Self { streams, out: window(), into: window(), under_way: vec![], begun, gone, read: BTreeMap::new() }
        }

        fn windows(&mut self, flow: FlowId) {
            self.begun.insert(flow);
            self.out.insert(flow, vec![0; WINDOW as usize]);
            self.into.insert(flow, vec![0; WINDOW as usize]);
        }

        fn events(&mut self, refuse: bool) {
            while let Some(event) = self.streams.poll_event() {
                match event {
                    StreamEvent::Asked { flow, .. } => {
                        self.windows(flow);
                        self.streams.answer(flow, if refuse { Err(Refusal::Refused) } else { Ok(()) });
                    }
                    StreamEvent::Reset(flow) => self.streams.close(flow),
                    StreamEvent::Gone(flow) => assert!(self.gone.insert(flow), "{flow:?} is gone twice"),
                    StreamEvent::Answered { .. } | StreamEvent::Changed(_) => {}
                }
            }
        }

        fn send(&mut self, now: u64) {
            while let Some((at, bytes)) = self.streams.poll_control() {
                let window = self.out.get_mut(&CONTROL).unwrap();
                (at..).zip(bytes).for_each(|(at, byte)| window[(at % WINDOW) as usize] = byte);
            }
            while let Some(segment) = self.streams.poll_segment(now) {
                self.under_way.push(segment);
            }
        }

        fn write(&mut self, side: usize, flow: FlowId, most: u64) {
            let room = self.streams.room(flow);
            let end = room.end.min(room.start + most);
            for at in room.start..end {
                self.out.get_mut(&flow).unwrap()[(at % WINDOW) as usize] = byte(flow, side, at);
            }
            self.streams.wrote(flow, end - room.start);
        }

        fn read(&mut self, side: usize, flow: FlowId, most: u64) {
            let ready = self.streams.ready(flow);
            let end = ready.end.min(ready.start + most);
            for at in ready.start..end {
                assert_eq!(self.into[&flow][(at % WINDOW) as usize], byte(flow, 1 - side, at), "{flow:?} at {at}");
            }
            self.streams.took(flow, end - ready.start);
            self.read.insert(flow, end);
        }
    }

    /// One segment arrives, and its sender hears of it if `heard`.
    fn deliver(owners: &mut [Owner; 2], from: usize, index: usize, now: u64, heard: bool) {
        if owners[from].under_way.is_empty() {
            return;
        }
        let index = index % owners[from].under_way.len();
        let segment = owners[from].under_way[index];
        let bytes: Vec<u8> = (segment.offset..segment.offset + u64::from(segment.len))
            .map(|at| owners[from].out[&segment.flow][(at % WINDOW) as usize])
            .collect();
        let to = &mut owners[1 - from];
        let window = to.into.entry(segment.flow).or_insert_with(|| vec![0; WINDOW as usize]);
        let fresh = |range: Range<u64>| {
            for at in range {
                window[(at % WINDOW) as usize] = bytes[(at - segment.offset) as usize];
            }
        };
        to.streams.accept(segment.flow, segment.offset, segment.len, fresh).unwrap();
        let ready = to.streams.control_ready();
        let records: Vec<u8> = ready.map(|at| to.into[&CONTROL][(at % WINDOW) as usize]).collect();
        to.streams.hear(&records).unwrap();
        let limit = to.streams.control_limit();
        owners[from].streams.allow_control(limit);
        if heard {
            owners[from].under_way.remove(index);
            owners[from].streams.done(now, segment.tag);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]
        /// Whatever comes in what order by which NIC: every byte is right, and in the end nothing is left.
        #[test]
        fn streams_bring_what_was_written(
            steps in prop::collection::vec((0..12u8, 0..2usize, any::<u16>(), 1..200u64), 1..400),
        ) {
            let mut owners = [Owner::new(true), Owner::new(false)];
            let address = SocketAddr::from(([10, 0, 0, 1], 80));
            let mut now = 0;
            for (what, side, index, len) in steps {
                now += 1000;
                let flows: Vec<FlowId> = owners[side].streams.streams.keys().copied().collect();
                let flow = flows.get(usize::from(index) % flows.len().max(1)).copied();
                match (what, flow) {
                    (0, _) => if let Some(flow) = owners[side].streams.open(address, address) {
                        owners[side].windows(flow);
                    },
                    (1..=3, Some(flow)) => owners[side].write(side, flow, len),
                    (4..=5, Some(flow)) => owners[side].read(side, flow, len),
                    (6, Some(flow)) if len < 60 => owners[side].streams.end(flow),
                    (7, Some(flow)) if len < 20 => owners[side].streams.close(flow),
                    (8, _) if len < 30 => {
                        let nic = NicId(index % NICS);
                        // Of what it had under way, some arrived without its sender's hearing of it.
                        if index % 2 == 0 {
                            deliver(&mut owners, side, usize::from(index), now, false);
                        }
                        owners[side].under_way.retain(|segment| segment.nic != nic);
                        owners[side].streams.failed(now, nic);
                        owners[side].streams.restored(now, nic);
                    }
                    _ => deliver(&mut owners, side, usize::from(index), now, true),
                }
                owners.iter_mut().for_each(|owner| owner.events(index % 8 == 0));
                owners.iter_mut().for_each(|owner| owner.send(now));
            }
            // All end what they have, and read to the end.
            for round in 0..20_000usize {
                now += 1000;
                for side in 0..2 {
                    let flows: Vec<FlowId> = owners[side].streams.streams.keys().copied().collect();
                    for flow in flows {
                        owners[side].streams.end(flow);
                        owners[side].read(side, flow, WINDOW);
                        if owners[side].streams.is_finished(flow) {
                            owners[side].streams.close(flow);
                        }
                    }
                    deliver(&mut owners, side, round, now, true);
                    owners[side].events(false);
                    owners[side].send(now);
                }
                if owners.iter().all(|owner| owner.streams.count() == 0 && owner.under_way.is_empty()) {
                    break;
                }
            }
            for owner in &mut owners {
                owner.events(false);
                prop_assert_eq!(owner.streams.count(), 0);
                prop_assert_eq!(&owner.begun, &owner.gone, "windows that are needed no more");
            }
        }
    }

    #[test]
    fn who_breaks_the_order_is_found_out() {
        let mut owner = Owner::new(true);
        let address = SocketAddr::from(([10, 0, 0, 1], 80));
        let open = |flow| Record::Open { flow: FlowId(flow), to: address, from: address };
        assert_eq!(hear(&mut owner, open(2)), Err(Breach::Order), "a number of this end's");
        assert_eq!(hear(&mut owner, open(3)), Ok(()));
        assert_eq!(hear(&mut owner, open(3)), Err(Breach::Order), "twice");
        assert_eq!(hear(&mut owner, Record::End { flow: FlowId(3), at: 10 }), Ok(()));
        assert_eq!(owner.streams.accept(FlowId(3), 5, 6, |_| ()), Err(Breach::Order), "beyond the end");
        assert_eq!(hear(&mut owner, Record::End { flow: FlowId(3), at: 11 }), Err(Breach::Order), "another end");
        assert!(matches!(owner.streams.accept(CONTROL, 0, 1 << 20, |_| ()), Err(Breach::Beyond(_))));
        for flow in [5, 7, 9, 11, 13] {
            assert_eq!(hear(&mut owner, open(flow)), Ok(()));
        }
        assert_eq!(owner.streams.count(), 4, "no more than there may be");
        assert_eq!(hear(&mut owner, Record::Reset { flow: FlowId(99), at: 0 }), Ok(()), "one that is gone");
    }

    #[test]
    fn another_that_begins_anew_loses_all_streams() {
        let mut owner = Owner::new(true);
        let address = SocketAddr::from(([10, 0, 0, 1], 80));
        let flow = owner.streams.open(address, address).unwrap();
        owner.streams.restart(1);
        let events: Vec<StreamEvent> = std::iter::from_fn(|| owner.streams.poll_event()).collect();
        let answer = Err(Refusal::TimedOut);
        assert_eq!(events, [StreamEvent::Answered { flow, answer }, StreamEvent::Gone(flow)]);
        assert!(owner.streams.open(address, address).unwrap().0 > flow.0, "numbers are not used twice");
        // Nor are those that its owner may still speak of used by the other end.
        let record = |flow| Record::Open { flow: FlowId(flow), to: address, from: address };
        assert_eq!(hear(&mut owner, record(3)), Ok(()));
        owner.streams.answer(FlowId(3), Ok(()));
        owner.streams.restart(2);
        assert_eq!(hear(&mut owner, record(3)), Err(Breach::Order));
        let first = |first| Streams::new(StreamsConfig { first, ..owner.streams.config }, 0).next;
        assert_eq!((first(0), first(7), first(u64::MAX)), (2, 16, (1 << 63)));
    }

    /// As with TCP: what a program sent before it gave up is read before that is told of.
    #[test]
    fn who_gives_up_is_read_to_the_place_where_he_did() {
        let mut owners = [Owner::new(true), Owner::new(false)];
        let address = SocketAddr::from(([10, 0, 0, 1], 80));
        let flow = owners[0].streams.open(address, address).unwrap();
        owners[0].windows(flow);
        let settle = |owners: &mut [Owner; 2]| {
            for round in 0..200 {
                owners.iter_mut().for_each(|owner| {
                    while let Some(event) = owner.streams.poll_event() {
                        if let StreamEvent::Asked { flow, .. } = event {
                            owner.windows(flow);
                            owner.streams.answer(flow, Ok(()));
                        }
                    }
                    owner.send(round);
                });
                // What was said last comes first.
                for side in 0..2 {
                    let last = owners[side].under_way.len().saturating_sub(1);
                    deliver(owners, side, last, round, true);
                }
            }
        };
        settle(&mut owners);
        owners[0].write(0, flow, WINDOW);
        settle(&mut owners);
        owners[1].read(1, flow, 100);
        settle(&mut owners);
        // Of what the reader has no room for nothing is heard.
        owners[0].write(0, flow, 150);
        owners[0].streams.close(flow);
        settle(&mut owners);
        assert!(!owners[1].streams.is_lost(flow));
        assert!(owners[1].streams.room(flow).is_empty(), "he reads nothing any more");
        owners[1].read(1, flow, WINDOW);
        assert_eq!(owners[1].read[&flow], WINDOW + 100);
        assert!(owners[1].streams.is_lost(flow));
        owners[1].streams.close(flow);
        settle(&mut owners);
        assert_eq!(owners.map(|owner| owner.streams.count()), [0, 0]);
    }

    /// Each gap would have to be remembered, and a window has room for many of one byte.
    #[test]
    fn who_leaves_more_gaps_than_can_be_under_way_is_found_out() {
        let policy = FlowPolicy { window: 1 << 20, ..policy() };
        let config = StreamsConfig { policy, nics: NICS, calls: true, most: 4, first: 0 };
        let address = SocketAddr::from(([10, 0, 0, 1], 80));
        let most = super::NICS as u64 * u64::from(policy.entries);
        for flow in [CONTROL, FlowId(3)] {
            let mut owner = Owner { streams: Streams::new(config, 0), ..Owner::new(true) };
            hear(&mut owner, Record::Open { flow: FlowId(3), to: address, from: address }).unwrap();
            let begin = if flow == CONTROL { owner.streams.control_ready().end } else { 0 };
            let mut came = (1..).map(|n| owner.streams.accept(flow, begin + 2 * n, 1, |_| ()));
            assert_eq!(came.position(|came| came == Err(Breach::Gaps)), Some(most as usize), "{flow:?}");
        }
    }
}
