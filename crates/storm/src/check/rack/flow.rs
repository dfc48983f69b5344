//! A flow, the NICs that carry it, and its receiver.

use std::collections::VecDeque;

use remora_rack::{FlowId, FlowPolicy, NicId, NicPool, Resequencer, Segment};

use super::{FlowOptions, Told};
use crate::search::{Space, Steps};

const FLOW: FlowId = FlowId(0);

/// A flow of a few bytes.
pub(super) struct Flow(pub FlowOptions);

#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// A NIC takes the next segment.
    Poll,
    /// The first segment that a NIC has arrives.
    Arrive(u8),
    /// The sender hears of the first that arrived by it.
    Hear(u8),
    /// One that a NIC had when it failed arrives.
    ArriveLate(u8),
    Take,
    /// The sender hears of the receiver's limit.
    Allow,
    Fail(u8),
    Restore(u8),
    /// Time passes until some NIC counts as silent.
    Wait,
}

#[derive(Clone, Hash, Default)]
struct Wire {
    /// Handed to the NIC.
    under_way: VecDeque<Segment>,
    /// Arrived, and the sender does not know.
    arrived: VecDeque<Segment>,
    down: bool,
}

#[derive(Clone, Hash)]
pub(super) struct State {
    pool: NicPool,
    stream: Resequencer,
    wires: Vec<Wire>,
    /// What failed NICs had.
    late: Vec<Segment>,
    /// Bytes that the receiver has kept, a bit each, and how many of them were taken.
    kept: u64,
    taken: u8,
    /// The limit that the sender knows of.
    told: u64,
    now: u64,
    failures: u8,
    silences: u8,
    fault: Option<&'static str>,
}

impl State {
    fn arrive(&mut self, segment: Segment) {
        // The sender's memory is used for something else once all has arrived.
        let is_there = segment.offset >= self.pool.arrived(FLOW).unwrap_or(0);
        let (kept, mut wrong) = (&mut self.kept, None);
        let accepted = self.stream.accept(segment.offset, segment.len, |range| {
            for at in range {
                if *kept & 1 << at != 0 {
                    wrong = Some("a byte is kept twice");
                } else if !is_there {
                    wrong = Some("a byte comes from memory that was given away");
                }
                *kept |= 1 << at;
            }
        });
        if accepted.is_err() {
            wrong = Some("more comes than the window has room for");
        }
        self.fault = self.fault.or(wrong);
    }

    fn has_next(&self) -> bool {
        self.pool.clone().poll(self.now).is_some()
    }
}

impl Told for Flow {
    fn line(&self, before: &State, action: Action) -> String {
        let nic = |nic: u8| &before.wires[usize::from(nic)];
        let named =
            |segment: Option<&Segment>| segment.map_or_else(String::new, |segment| format!("byte {}", segment.offset));
        match action {
            Action::Poll => {
                let next = before.pool.clone().poll(before.now);
                format!("NIC {} takes {}", next.map_or(0, |segment| segment.nic.0), named(next.as_ref()))
            }
            Action::Arrive(n) => format!("{} arrives by NIC {n}", named(nic(n).under_way.front())),
            Action::Hear(n) => {
                format!("the sender hears that {} has arrived by NIC {n}", named(nic(n).arrived.front()))
            }
            Action::ArriveLate(n) => format!("{} arrives late", named(before.late.get(usize::from(n)))),
            Action::Take => "the receiver takes a byte".into(),
            Action::Allow => format!("the sender hears of the limit {}", before.stream.limit()),
            Action::Fail(n) => format!("NIC {n} FAILS"),
            Action::Restore(n) => format!("NIC {n} is back"),
            Action::Wait => "time passes, and who has said nothing counts as silent".into(),
        }
    }

    fn next(&self, before: &State, action: Action) -> State {
        let mut state = before.clone();
        match action {
            Action::Poll => {
                if let Some(segment) = state.pool.poll(state.now) {
                    let wire = &mut state.wires[usize::from(segment.nic.0)];
                    if wire.down {
                        state.fault = state.fault.or(Some("a NIC that is down is given a segment"));
                    }
                    wire.under_way.push_back(segment);
                }
            }
            Action::Arrive(nic) => {
                if let Some(segment) = state.wires[usize::from(nic)].under_way.pop_front() {
                    state.arrive(segment);
                    state.wires[usize::from(nic)].arrived.push_back(segment);
                }
            }
            Action::Hear(nic) => {
                if let Some(segment) = state.wires[usize::from(nic)].arrived.pop_front() {
                    state.pool.done(state.now, segment.tag);
                }
            }
            Action::ArriveLate(index) => {
                let segment = state.late.remove(usize::from(index));
                state.arrive(segment);
            }
            Action::Take => {
                let ready = state.stream.ready();
                if state.kept & 1 << ready.start == 0 || ready.start != u64::from(state.taken) {
                    state.fault = state.fault.or(Some("a byte is taken that has not come"));
                }
                state.taken += 1;
                state.stream.take(1);
            }
            Action::Allow => {
                state.told = state.stream.limit();
                state.pool.allow(FLOW, state.told);
            }
            Action::Fail(nic) => {
                state.failures -= 1;
                let wire = std::mem::take(&mut state.wires[usize::from(nic)]);
                state.wires[usize::from(nic)].down = true;
                state.late.extend(wire.under_way);
                state.pool.failed(state.now, NicId(nic.into()));
            }
            Action::Restore(nic) => {
                state.wires[usize::from(nic)].down = false;
                state.pool.restored(state.now, NicId(nic.into()));
            }
            Action::Wait => {
                state.silences -= 1;
                state.now = state.pool.next_timeout().unwrap_or(state.now);
                state.pool.tick(state.now);
            }
        }
        state
    }

    fn fault(&self, state: &State) -> Option<String> {
        if let Some(fault) = state.fault {
            return Some(fault.into());
        }
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        let waits = |action: &Action| matches!(action, Action::Wait | Action::Fail(_) | Action::ArriveLate(_));
        let stuck = actions.iter().all(waits) && state.taken < self.0.segments;
        stuck.then(|| format!("nothing goes on, and {} of {} bytes were taken", state.taken, self.0.segments))
    }
}

impl Flow {
    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (n, wire) in (0..).zip(&state.wires) {
            if !wire.under_way.is_empty() {
                actions.push(Action::Arrive(n));
            }
            if !wire.arrived.is_empty() {
                actions.push(Action::Hear(n));
            }
            if wire.down {
                actions.push(Action::Restore(n));
            } else if state.failures > 0 {
                actions.push(Action::Fail(n));
            }
        }
        actions.extend((0..state.late.len() as u8).map(Action::ArriveLate));
        if !state.stream.ready().is_empty() {
            actions.push(Action::Take);
        }
        if state.stream.limit() > state.told {
            actions.push(Action::Allow);
        }
        if state.silences > 0 && state.pool.next_timeout().is_some() {
            actions.push(Action::Wait);
        }
        if state.has_next() {
            actions.push(Action::Poll);
        }
    }
}

impl Space for Flow {
    type State = State;
    type Action = Action;
    type Steps<'a> = &'a Self;

    fn first(&self) -> State {
        let FlowOptions { mapping, nics, segments, window, failures, silences, mutation } = self.0;
        let policy = FlowPolicy {
            mapping,
            subflows: nics.into(),
            segment: 1,
            depth: 2,
            window: window.into(),
            mutation,
            ..FlowPolicy::default()
        };
        let mut pool = NicPool::new(policy, nics.into(), 0);
        pool.open(FLOW);
        pool.offer(FLOW, segments.into());
        let stream = Resequencer::new(&policy);
        State {
            told: stream.limit(),
            pool,
            stream,
            wires: vec![Wire::default(); nics.into()],
            late: Vec::new(),
            kept: 0,
            taken: 0,
            now: 0,
            failures,
            silences,
            fault: None,
        }
    }

    fn steps(&self) -> &Self {
        self
    }
}

impl Steps for &Flow {
    type State = State;
    type Action = Action;

    fn advance(&mut self, last: &State, action: Action, next: &mut State) {
        *next = self.next(last, action);
    }

    fn look(&mut self, state: &mut State, actions: &mut Vec<Action>) -> bool {
        actions.clear();
        self.actions(state, actions);
        self.fault(state).is_none()
    }
}
