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
        /// Both have a connection of the kernel's, which is to go on as this one.
        goes_on: bool,
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

    /// Asks the other rack for a connection, or that one of the kernel's goes on here. None if there are too many.
    pub fn open(&mut self, to: SocketAddr, from: SocketAddr, goes_on: bool) -> Option<FlowId> {
        if self.streams.len() >= self.config.most {
            return None;
        }
        let flow = FlowId(self.next);
        self.next += 2;
        self.begin(flow, State::Asking);
        self.say(Record::Open { flow, to, from, goes_on });
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

    /// Whether the other end has said where its bytes end.
    pub fn has_end(&self, flow: FlowId) -> bool {
        self.streams.get(&flow).is_none_or(|stream| stream.ends_at.is_some())
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
            Record::Open { flow, to, from, goes_on } => {
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
                self.events.push_back(StreamEvent::Asked { flow, to, from, goes_on });
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
mod tests;
