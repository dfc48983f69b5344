//! The NIC pool (sections 4.2 and 4.4): one flow goes out by every NIC there is.
//!
//! A flow is cut into segments. Each goes into one of the flow's subflows, a virtual queue; many of these map to one NIC.
//! A subflow stays on its NIC, so that what it brings is in order, until nothing of it is under way or the NIC fails.
//! Which NIC takes the next segment is a [`Mapping`]: a value, so that they can be compared.
//!
//! Every segment that is handed out ends: [`NicPool::done`], when it is in the peer's memory, or [`NicPool::failed`] with
//! all others of its NIC, when nobody knows. A NIC of which nothing is heard for long, though it has segments, counts as
//! silent: others send the same again, and it gets no more until it is heard of. What arrives twice the receiver drops.

use std::collections::BTreeMap;

use crate::ranges::Ranges;

/// A physical NIC by its number in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NicId(pub u16);

/// A connection to another rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

/// How segments come to NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mapping {
    /// Segments to subflows in turn, subflows to NICs by a hash: what ECMP does with connections.
    Static,
    /// To the NIC that has the least to send.
    Depth,
    /// To the NIC that would have sent it first, at its measured rate; one that would take too long gets none.
    Rate,
}

impl Mapping {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Static, Self::Depth, Self::Rate];

    /// As it is spelled.
    pub fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Depth => "depth",
            Self::Rate => "rate",
        }
    }
}

/// How flows use the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowPolicy {
    /// Which NIC is next.
    pub mapping: Mapping,
    /// Subflows of a flow.
    pub subflows: u16,
    /// Bytes of a segment.
    pub segment: u32,
    /// Bytes that a NIC has under way at most.
    pub depth: u64,
    /// Segments that a NIC's queue has room for.
    pub entries: u32,
    /// Bytes that a receiver holds at most. Several segments.
    pub window: u64,
    /// So long, in nanoseconds, may a NIC with segments say nothing.
    pub patience: u64,
    /// A seeded fault.
    pub mutation: Option<FlowMutation>,
}

impl Default for FlowPolicy {
    fn default() -> Self {
        Self {
            mapping: Mapping::Rate,
            subflows: 16,
            segment: 32 << 10,
            depth: 512 << 10,
            entries: 64,
            window: 4 << 20,
            patience: 20_000_000,
            mutation: None,
        }
    }
}

/// Faults that can be seeded, to see whether checks find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowMutation {
    /// What a failed NIC had is not sent again.
    Forgets,
    /// Bytes count as arrived when they are handed to a NIC.
    EarlyDone,
    /// The sender goes on beyond the receiver's limit.
    NoLimit,
    /// A NIC that failed is not used again when it is back.
    StaysDown,
    /// A failed NIC is used as if nothing had happened.
    UsesDown,
    /// The receiver keeps what comes twice.
    TakesTwice,
    /// The receiver does not wait for what is missing.
    SkipsGaps,
}

/// A part of a flow on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Whose.
    pub flow: FlowId,
    /// In which of its virtual queues.
    pub subflow: u16,
    /// By which NIC.
    pub nic: NicId,
    /// What it is called when it is done; no other one ever is.
    pub tag: u64,
    /// Its place in the flow.
    pub offset: u64,
    /// Its bytes.
    pub len: u32,
}

impl Segment {
    fn range(&self) -> std::ops::Range<u64> {
        self.offset..self.offset + u64::from(self.len)
    }
}

/// How a NIC is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NicState {
    /// It sends.
    Up,
    /// It has segments, and nothing has been heard of it for long.
    Silent,
    /// It failed.
    Down,
}

/// A rate is measured over so long at least, in nanoseconds.
const SAMPLE: u64 = 1_000_000;
/// The rate of a NIC that has sent nothing for so long is forgotten.
const FORGET: u64 = 100_000_000;
/// A second in nanoseconds.
const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Debug, Hash)]
struct Nic {
    state: NicState,
    /// Bytes under way, and segments.
    queued: u64,
    entries: u32,
    /// Bytes a second; 0 if it is not known.
    rate: u64,
    /// Of what is being measured: since when, and how many bytes are done.
    since: u64,
    bytes: u64,
    /// When it was heard of, or began to have something.
    heard: u64,
}

impl Nic {
    fn new(now: u64) -> Self {
        Self { state: NicState::Up, queued: 0, entries: 0, rate: 0, since: now, bytes: 0, heard: now }
    }

    fn sends(&mut self, len: u64, now: u64) {
        if self.queued == 0 {
            (self.since, self.bytes, self.heard) = (now, 0, now);
        }
        self.queued += len;
        self.entries += 1;
    }

    fn has_sent(&mut self, len: u64, now: u64) {
        self.queued = self.queued.saturating_sub(len);
        self.entries = self.entries.saturating_sub(1);
        self.bytes += len;
        (self.state, self.heard) = (NicState::Up, now);
        let elapsed = now.saturating_sub(self.since);
        if elapsed >= SAMPLE {
            let sample = (u128::from(self.bytes) * u128::from(SECOND) / u128::from(elapsed)) as u64;
            self.rate = if self.rate == 0 { sample.max(1) } else { (self.rate - self.rate / 4 + sample / 4).max(1) };
            (self.since, self.bytes) = (now, 0);
        }
    }

    /// Nanoseconds until so many bytes more are sent; 0 as long as nobody knows.
    fn time_for(&self, len: u64) -> u64 {
        let bytes = u128::from(self.queued + len);
        (bytes * u128::from(SECOND)).checked_div(u128::from(self.rate)).unwrap_or(0).try_into().unwrap_or(u64::MAX)
    }

    /// When it counts as silent if it says nothing: a slow one takes longer for a segment.
    fn deadline(&self, policy: &FlowPolicy) -> Option<u64> {
        let waits = self.state == NicState::Up && self.queued > 0;
        let segment = (2 * u64::from(policy.segment) * SECOND).checked_div(self.rate).unwrap_or(0);
        waits.then(|| self.heard.saturating_add(segment.clamp(policy.patience, policy.patience.saturating_mul(8))))
    }
}

#[derive(Clone, Debug, Hash)]
struct Subflow {
    nic: Option<NicId>,
    /// Segments under way.
    under_way: u32,
}

#[derive(Clone, Debug, Hash)]
struct Flow {
    /// Bytes that there are to send.
    offered: u64,
    /// How far the receiver allows.
    limit: u64,
    /// The first byte that was never sent.
    next: u64,
    arrived: Ranges,
    /// To be sent again: by their offset, how many bytes.
    again: BTreeMap<u64, u32>,
    subflows: Vec<Subflow>,
}

/// The NICs of a rack, and the flows that go out by them.
#[derive(Clone, Debug, Hash)]
pub struct NicPool {
    policy: FlowPolicy,
    nics: Vec<Nic>,
    flows: BTreeMap<FlowId, Flow>,
    /// By their tags.
    under_way: BTreeMap<u64, Segment>,
    next_tag: u64,
    /// The flow that has the next turn.
    turn: FlowId,
}

impl NicPool {
    /// Of so many NICs.
    pub fn new(policy: FlowPolicy, nics: u16, now: u64) -> Self {
        let nics = (0..nics).map(|_| Nic::new(now)).collect();
        let (flows, under_way) = (BTreeMap::new(), BTreeMap::new());
        Self { policy, nics, flows, under_way, next_tag: 0, turn: FlowId(0) }
    }

    /// A flow begins. False if there is one of that number.
    pub fn open(&mut self, flow: FlowId) -> bool {
        let subflows = vec![Subflow { nic: None, under_way: 0 }; usize::from(self.policy.subflows.max(1))];
        let new = Flow {
            offered: 0,
            limit: self.policy.window,
            next: 0,
            arrived: Ranges::default(),
            again: BTreeMap::new(),
            subflows,
        };
        let free = !self.flows.contains_key(&flow);
        if free {
            self.flows.insert(flow, new);
        }
        free
    }

    /// A flow ends, whatever is under way of it.
    pub fn close(&mut self, flow: FlowId) {
        self.flows.remove(&flow);
    }

    /// A flow has bytes up to this one. They stay where they are until [`NicPool::arrived`] has come beyond them.
    pub fn offer(&mut self, flow: FlowId, end: u64) {
        if let Some(flow) = self.flows.get_mut(&flow) {
            flow.offered = flow.offered.max(end);
        }
    }

    /// A receiver allows bytes up to this one.
    pub fn allow(&mut self, flow: FlowId, limit: u64) {
        if let Some(flow) = self.flows.get_mut(&flow) {
            flow.limit = flow.limit.max(limit);
        }
    }

    /// A flow ends with what its receiver allows now. Returns where that is.
    pub fn cut(&mut self, flow: FlowId) -> u64 {
        let Some(flow) = self.flows.get_mut(&flow) else { return 0 };
        flow.offered = flow.offered.min(flow.limit);
        flow.offered
    }

    /// How much of a flow has arrived without a gap.
    pub fn arrived(&self, flow: FlowId) -> Option<u64> {
        self.flows.get(&flow).map(|flow| flow.arrived.whole())
    }

    /// How a NIC is.
    pub fn state(&self, nic: NicId) -> Option<NicState> {
        self.nics.get(usize::from(nic.0)).map(|nic| nic.state)
    }

    /// Bytes a second that a NIC was measured to send; none if nobody knows.
    pub fn rate(&self, nic: NicId) -> Option<u64> {
        self.nics.get(usize::from(nic.0)).map(|nic| nic.rate).filter(|rate| *rate > 0)
    }

    /// Bytes that a NIC has under way.
    pub fn queued(&self, nic: NicId) -> u64 {
        self.nics.get(usize::from(nic.0)).map_or(0, |nic| nic.queued)
    }

    /// The next segment that a NIC is to send, of the flows in turn.
    pub fn poll(&mut self, now: u64) -> Option<Segment> {
        let flows: Vec<FlowId> =
            self.flows.range(self.turn..).chain(self.flows.range(..self.turn)).map(|(id, _)| *id).collect();
        flows.into_iter().find_map(|flow| self.poll_flow(flow, now))
    }

    fn poll_flow(&mut self, id: FlowId, now: u64) -> Option<Segment> {
        let flow = self.flows.get(&id)?;
        let again = flow.again.first_key_value().map(|(offset, len)| (*offset, *len));
        let unlimited = self.policy.mutation == Some(FlowMutation::NoLimit);
        let end = if unlimited { flow.offered } else { flow.offered.min(flow.limit) };
        let fresh = (flow.next < end).then(|| (flow.next, (end - flow.next).min(self.policy.segment.into()) as u32));
        let (offset, len) = again.or(fresh)?;
        let (subflow, nic) = self.place(id, flow, offset, len.into())?;
        let tag = self.next_tag;
        self.next_tag += 1;
        let segment = Segment { flow: id, subflow, nic, tag, offset, len };
        self.nics[usize::from(nic.0)].sends(len.into(), now);
        self.under_way.insert(tag, segment);
        let early = self.policy.mutation == Some(FlowMutation::EarlyDone);
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.again.remove(&offset);
            flow.next = flow.next.max(segment.range().end);
            let subflow = &mut flow.subflows[usize::from(subflow)];
            (subflow.nic, subflow.under_way) = (Some(nic), subflow.under_way + 1);
            if early {
                flow.arrived.add(segment.range(), |_| ());
            }
        }
        self.turn = FlowId(id.0.wrapping_add(1));
        Some(segment)
    }

    /// Which subflow takes a segment, and which NIC.
    fn place(&self, id: FlowId, flow: &Flow, offset: u64, len: u64) -> Option<(u16, NicId)> {
        let count = self.nics.len() as u64;
        if self.policy.mapping == Mapping::Static {
            let subflow = (offset / u64::from(self.policy.segment.max(1))) % flow.subflows.len() as u64;
            let hash = id.0.wrapping_add(subflow);
            // The next one that is up, if its own is not.
            let nic = (0..count).map(|n| NicId(((hash + n) % count) as u16)).find(|nic| self.is_up(*nic))?;
            return self.has_room(nic, len).then_some((subflow as u16, nic));
        }
        let mut nics: Vec<NicId> = (0..count as u16).map(NicId).filter(|nic| self.is_up(*nic)).collect();
        let by_rate = self.policy.mapping == Mapping::Rate;
        nics.sort_by_key(|nic| {
            let at = &self.nics[usize::from(nic.0)];
            (if by_rate { at.time_for(len) } else { 0 }, at.queued, *nic)
        });
        let share = flow.subflows.len() / nics.len().max(1);
        // The first may take it however long that lasts: otherwise nobody might.
        let in_time = |(rank, nic): &(usize, NicId)| *rank == 0 || !by_rate || self.is_in_time(*nic, len);
        let mut fit = nics.into_iter().enumerate().filter(in_time).filter(|(_, nic)| self.has_room(*nic, len));
        fit.find_map(|(_, nic)| subflow_on(flow, nic, share).map(|subflow| (subflow, nic)))
    }

    fn is_up(&self, nic: NicId) -> bool {
        let state = self.nics[usize::from(nic.0)].state;
        state == NicState::Up || state == NicState::Down && self.policy.mutation == Some(FlowMutation::UsesDown)
    }

    fn has_room(&self, nic: NicId, len: u64) -> bool {
        let nic = &self.nics[usize::from(nic.0)];
        nic.entries == 0 || nic.queued + len <= self.policy.depth && nic.entries < self.policy.entries
    }

    /// Whether the others do not come to the end of the receiver's window while this one sends so many bytes.
    fn is_in_time(&self, nic: NicId, len: u64) -> bool {
        let all: u64 = self.nics.iter().filter(|nic| nic.state == NicState::Up).map(|nic| nic.rate).sum();
        let window = u128::from(self.policy.window) * u128::from(SECOND) / 2;
        let horizon = window.checked_div(u128::from(all)).unwrap_or(u128::MAX);
        u128::from(self.nics[usize::from(nic.0)].time_for(len)) <= horizon
    }

    /// Whether any NIC has something of a flow.
    pub fn has_under_way(&self, flow: FlowId) -> bool {
        self.under_way.values().any(|segment| segment.flow == flow)
    }

    /// Whose a segment is that is under way.
    pub fn flow_of(&self, tag: u64) -> Option<FlowId> {
        self.under_way.get(&tag).map(|segment| segment.flow)
    }

    /// A segment is in the peer's memory.
    pub fn done(&mut self, now: u64, tag: u64) {
        let Some(segment) = self.under_way.remove(&tag) else { return };
        self.nics[usize::from(segment.nic.0)].has_sent(segment.len.into(), now);
        let Some(flow) = self.flows.get_mut(&segment.flow) else { return };
        flow.arrived.add(segment.range(), |_| ());
        flow.again.remove(&segment.offset);
        let subflow = &mut flow.subflows[usize::from(segment.subflow)];
        if subflow.nic == Some(segment.nic) {
            subflow.under_way = subflow.under_way.saturating_sub(1);
        }
    }

    /// A NIC has failed: of what it had under way nobody knows what arrived. It is drained.
    pub fn failed(&mut self, now: u64, nic: NicId) {
        let Some(failed) = self.nics.get_mut(usize::from(nic.0)) else { return };
        *failed = Nic { state: NicState::Down, ..Nic::new(now) };
        let lost: Vec<Segment> =
            self.under_way.extract_if(.., |_, segment| segment.nic == nic).map(|(_, lost)| lost).collect();
        for segment in lost {
            self.send_again(&segment);
        }
        self.leave(nic);
    }

    /// A NIC that had failed sends again.
    pub fn restored(&mut self, now: u64, nic: NicId) {
        if self.policy.mutation == Some(FlowMutation::StaysDown) {
            return;
        }
        if let Some(down) = self.nics.get_mut(usize::from(nic.0)).filter(|nic| nic.state == NicState::Down) {
            *down = Nic::new(now);
        }
    }

    /// What time brings: NICs that say nothing count as silent, and rates grow old.
    pub fn tick(&mut self, now: u64) {
        for index in 0..self.nics.len() {
            let nic = &mut self.nics[index];
            if nic.state == NicState::Up && nic.queued == 0 && now.saturating_sub(nic.heard) >= FORGET {
                nic.rate = 0;
            }
            if nic.deadline(&self.policy).is_some_and(|deadline| now >= deadline) {
                nic.state = NicState::Silent;
                let nic = NicId(index as u16);
                let waiting: Vec<Segment> =
                    self.under_way.values().filter(|segment| segment.nic == nic).copied().collect();
                for segment in waiting {
                    self.send_again(&segment);
                }
                self.leave(nic);
            }
        }
    }

    /// When [`NicPool::tick`] has something to do at the latest.
    pub fn next_timeout(&self) -> Option<u64> {
        self.nics.iter().filter_map(|nic| nic.deadline(&self.policy)).min()
    }

    /// Others are to send a segment too, unless it has arrived or another one does so already.
    fn send_again(&mut self, segment: &Segment) {
        let other = |other: &Segment| {
            (other.flow, other.offset) == (segment.flow, segment.offset)
                && other.nic != segment.nic
                && self.nics[usize::from(other.nic.0)].state == NicState::Up
        };
        if self.policy.mutation == Some(FlowMutation::Forgets) || self.under_way.values().any(other) {
            return;
        }
        if let Some(flow) = self.flows.get_mut(&segment.flow).filter(|flow| !flow.arrived.has(&segment.range())) {
            flow.again.insert(segment.offset, segment.len);
        }
    }

    /// Subflows leave a NIC.
    fn leave(&mut self, nic: NicId) {
        let subflows = self.flows.values_mut().flat_map(|flow| &mut flow.subflows);
        subflows
            .filter(|subflow| subflow.nic == Some(nic))
            .for_each(|subflow| *subflow = Subflow { nic: None, under_way: 0 });
    }
}

/// The subflow that takes the next segment for a NIC: the least busy that is on it; one more, of which nothing is under way,
/// as long as it has less than its share of them.
fn subflow_on(flow: &Flow, nic: NicId, share: usize) -> Option<u16> {
    let subflows = || (0..).zip(&flow.subflows);
    let here = || subflows().filter(|(_, subflow)| subflow.nic == Some(nic));
    let least = here().min_by_key(|(_, subflow)| subflow.under_way);
    let idle = || subflows().filter(|(_, subflow)| subflow.under_way == 0).min_by_key(|(_, subflow)| subflow.nic);
    let found = match least {
        Some((_, busy)) if busy.under_way > 0 && here().count() < share => idle().or(least),
        Some(_) => least,
        None => idle(),
    };
    found.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resequencer::Resequencer;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const FLOW: FlowId = FlowId(7);

    fn policy(mapping: Mapping) -> FlowPolicy {
        FlowPolicy { mapping, subflows: 3, segment: 10, depth: 40, window: 100, ..FlowPolicy::default() }
    }

    fn pool(mapping: Mapping, nics: u16) -> NicPool {
        let mut pool = NicPool::new(policy(mapping), nics, 0);
        assert!(pool.open(FLOW) && !pool.open(FLOW));
        pool
    }

    fn sent(pool: &mut NicPool, now: u64) -> Vec<Segment> {
        std::iter::from_fn(|| pool.poll(now)).collect()
    }

    #[test]
    fn segments_spread_over_all_nics_and_stop_at_the_limit() {
        for mapping in Mapping::ALL {
            let mut pool = pool(mapping, 3);
            pool.offer(FLOW, 1000);
            let segments = sent(&mut pool, 0);
            assert_eq!(segments.len(), 10, "{mapping:?}: as the window allows");
            for nic in 0..3 {
                let of: Vec<_> = segments.iter().filter(|segment| segment.nic == NicId(nic)).collect();
                assert!((3..=4).contains(&of.len()), "{mapping:?}: {segments:?}");
                assert!(of.iter().all(|segment| segment.subflow == of[0].subflow), "a subflow stays");
            }
            pool.allow(FLOW, 105);
            segments.iter().for_each(|segment| pool.done(1, segment.tag));
            assert_eq!(pool.arrived(FLOW), Some(100));
            let last = sent(&mut pool, 1);
            assert_eq!((last.len(), last[0].offset, last[0].len), (1, 100, 5));
        }
    }

    #[test]
    fn what_a_failed_nic_had_goes_by_others_and_it_comes_back() {
        for mapping in Mapping::ALL {
            let mut pool = pool(mapping, 2);
            pool.offer(FLOW, 40);
            let segments = sent(&mut pool, 0);
            pool.failed(1, NicId(0));
            let again = sent(&mut pool, 1);
            let lost = |segment: &&Segment| segment.nic == NicId(0);
            assert_eq!(again.len(), segments.iter().filter(lost).count());
            assert!(again.iter().all(|segment| segment.nic == NicId(1)) && pool.queued(NicId(0)) == 0);
            segments.iter().chain(&again).for_each(|segment| pool.done(2, segment.tag));
            assert_eq!(pool.arrived(FLOW), Some(40));
            pool.restored(3, NicId(0));
            pool.offer(FLOW, 100);
            assert!(sent(&mut pool, 3).iter().any(|segment| segment.nic == NicId(0)), "{mapping:?}");
        }
    }

    #[test]
    fn a_silent_nic_is_drained_until_it_is_heard_of() {
        let mut pool = pool(Mapping::Depth, 2);
        pool.offer(FLOW, 20);
        let [one, two] = sent(&mut pool, 0)[..] else { panic!("two segments") };
        pool.done(1, one.tag);
        let deadline = pool.next_timeout().expect("one has something");
        pool.tick(deadline);
        assert_eq!(pool.state(two.nic), Some(NicState::Silent));
        let [again] = sent(&mut pool, deadline)[..] else { panic!("the same by the other") };
        assert_eq!((again.offset, again.nic), (two.offset, one.nic));
        pool.done(deadline + 1, two.tag);
        assert_eq!((pool.state(two.nic), pool.arrived(FLOW)), (Some(NicState::Up), Some(20)));
        pool.failed(deadline + 2, again.nic);
        assert_eq!(pool.poll(deadline + 2), None, "it has arrived");
    }

    #[test]
    fn a_slow_nic_gets_what_it_can_send_and_is_tried_again_later() {
        let mut pool = pool(Mapping::Rate, 2);
        pool.offer(FLOW, 1000);
        let segments = sent(&mut pool, 0);
        // One sends a byte a millisecond, the other ten thousand times as much.
        for segment in &segments {
            let fast = segment.nic == NicId(1);
            if fast {
                pool.done(1_000_000, segment.tag)
            }
        }
        for segment in segments.iter().filter(|segment| segment.nic == NicId(0)) {
            pool.done(10_000_000, segment.tag);
        }
        let rates = [0, 1].map(|nic| pool.rate(NicId(nic)).expect("measured"));
        assert!(rates[1] > 8 * rates[0], "{rates:?}");
        pool.allow(FLOW, 1000);
        let fast = sent(&mut pool, 10_000_000).iter().filter(|segment| segment.nic == NicId(1)).count();
        assert!(fast >= 3, "{fast}");
        pool.tick(10_000_000 + FORGET);
        assert_eq!(pool.rate(NicId(0)), None);
    }

    #[test]
    fn flows_have_turns() {
        let mut pool = NicPool::new(policy(Mapping::Depth), 1, 0);
        for flow in [1, 2] {
            assert!(pool.open(FlowId(flow)));
            pool.offer(FlowId(flow), 100);
        }
        let flows: Vec<u64> = sent(&mut pool, 0).iter().map(|segment| segment.flow.0).collect();
        assert_eq!(flows, [1, 2, 1, 2]);
        pool.close(FlowId(1));
        pool.failed(0, NicId(0));
        pool.restored(0, NicId(0));
        assert!(sent(&mut pool, 0).iter().all(|segment| segment.flow == FlowId(2)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        /// Whatever NICs do: each byte arrives once, in order, within the window; and all of them once NICs work.
        #[test]
        fn each_byte_arrives_once(
            mapping in prop::sample::select(&Mapping::ALL[..]),
            steps in prop::collection::vec((0..8u8, 0..3u16, 0..60u64), 1..200),
        ) {
            let mut pool = pool(mapping, 3);
            let mut stream = Resequencer::new(&policy(mapping));
            let mut wires: [VecDeque<Segment>; 3] = Default::default();
            let mut completions: Vec<u64> = Vec::new();
            let (mut now, mut offered, mut held, mut taken) = (0, 0, vec![false; 100_000], 0u64);
            let mut arrive = |stream: &mut Resequencer, segment: Segment| {
                let result = stream.accept(segment.offset, segment.len, |range| {
                    range.for_each(|at| assert!(!std::mem::replace(&mut held[at as usize], true), "twice"));
                });
                assert_eq!(result, Ok(()));
            };
            for (what, nic, amount) in steps {
                now += amount * 1_000_000;
                let wire = &mut wires[usize::from(nic)];
                match what {
                    0 => { offered += amount; pool.offer(FLOW, offered); }
                    1 | 2 => if let Some(segment) = pool.poll(now) { wires[usize::from(segment.nic.0)].push_back(segment) },
                    3 => if let Some(segment) = wire.pop_front() { arrive(&mut stream, segment); completions.push(segment.tag) },
                    4 => completions.drain(..).for_each(|tag| pool.done(now, tag)),
                    5 => { wire.clear(); pool.failed(now, NicId(nic)) }
                    6 => { pool.restored(now, NicId(nic)); pool.tick(now) }
                    _ => { stream.take(amount); taken = taken.max(stream.ready().start); pool.allow(FLOW, stream.limit()) }
                }
            }
            (0..3).for_each(|nic| pool.restored(now, NicId(nic)));
            for _ in 0..10_000 {
                completions.drain(..).for_each(|tag| pool.done(now, tag));
                stream.take(u64::MAX);
                pool.allow(FLOW, stream.limit());
                now += 1_000_000;
                pool.tick(now);
                while let Some(segment) = pool.poll(now) { wires[usize::from(segment.nic.0)].push_back(segment) }
                for wire in &mut wires {
                    if let Some(segment) = wire.pop_front() { arrive(&mut stream, segment); completions.push(segment.tag) }
                }
                if pool.arrived(FLOW) == Some(offered) { break }
            }
            stream.take(u64::MAX);
            prop_assert_eq!((pool.arrived(FLOW), stream.ready()), (Some(offered), offered..offered));
        }
    }
}
