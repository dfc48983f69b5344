//! Nodes that pass buffers, and what they believe to hold.

use remora_rack::{Coalescing, Descriptor, Device, FabricAddress, LARGEST_BUFFER, Location, NodeId, Rack, Rights};

use super::{BufferOptions, Told};
use crate::search::{Space, Steps};

const NEAR: Location = Location(0);

/// The nodes of a rack.
pub(super) struct Buffers(pub BufferOptions);

#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Alloc(NodeId),
    /// Who passes the first buffer that it holds, to whom.
    Post(NodeId, NodeId),
    /// Frees the first that it holds.
    Free(NodeId),
    Poll,
    Receive(NodeId),
    Die(NodeId),
}

/// A buffer that was passed: it is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Passed {
    at: FabricAddress,
    from: NodeId,
    to: NodeId,
    /// It is in the receiver's queue.
    moved: bool,
}

#[derive(Clone, Hash)]
pub(super) struct State {
    rack: Rack,
    held: Vec<(FabricAddress, NodeId)>,
    passed: Vec<Passed>,
    alive: Vec<NodeId>,
    allocations: u8,
    deaths: u8,
    fault: Option<&'static str>,
}

impl State {
    fn first_of(&self, node: NodeId) -> Option<usize> {
        self.held.iter().position(|(_, holder)| *holder == node)
    }
}

impl Told for Buffers {
    fn line(&self, _: &State, action: Action) -> String {
        match action {
            Action::Alloc(NodeId(node)) => format!("{node} asks for a buffer"),
            Action::Post(NodeId(from), NodeId(to)) => format!("{from} -> {to}  passes one"),
            Action::Free(NodeId(node)) => format!("{node} frees one"),
            Action::Poll => "the dispatcher moves what waits".into(),
            Action::Receive(NodeId(node)) => format!("{node} receives"),
            Action::Die(NodeId(node)) => format!("{node} DIES"),
        }
    }

    fn next(&self, before: &State, action: Action) -> State {
        let mut state = before.clone();
        let wrong = |state: &mut State, what| state.fault = state.fault.or(Some(what));
        match action {
            Action::Alloc(node) => {
                state.allocations -= 1;
                if let Ok(at) = state.rack.alloc(node, LARGEST_BUFFER, NEAR) {
                    let taken = state.held.iter().any(|(other, _)| *other == at);
                    if taken || state.passed.iter().any(|passed| passed.at == at) {
                        wrong(&mut state, "a buffer is handed out twice");
                    }
                    state.held.push((at, node));
                }
            }
            Action::Post(from, to) => {
                let Some(index) = state.first_of(from) else { return state };
                let at = state.held[index].0;
                let descriptor = Descriptor { source: from, destination: to, reference: at, length: 1 };
                if state.rack.post(0, descriptor).is_ok() {
                    state.held.remove(index);
                    state.passed.push(Passed { at, from, to, moved: false });
                }
            }
            Action::Free(node) => {
                let Some(index) = state.first_of(node) else { return state };
                let (at, _) = state.held.remove(index);
                if state.rack.free(node, at).is_err() {
                    wrong(&mut state, "a holder cannot free its buffer");
                }
            }
            Action::Poll => {
                state.rack.poll(0, usize::MAX);
                state.passed.iter_mut().for_each(|passed| passed.moved = true);
            }
            Action::Receive(node) => {
                let Some(got) = state.rack.receive(node) else {
                    wrong(&mut state, "a buffer that was passed does not come");
                    return state;
                };
                match state.passed.iter().position(|passed| passed.at == got.reference && passed.to == node) {
                    Some(index) => {
                        state.passed.remove(index);
                        state.held.push((got.reference, node));
                    }
                    None => wrong(&mut state, "a buffer comes that was not passed"),
                }
            }
            Action::Die(node) => {
                state.deaths -= 1;
                state.rack.node_died(node);
                state.alive.retain(|other| *other != node);
                state.held.retain(|(_, holder)| *holder != node);
                // What the dispatcher had moved comes all the same.
                state.passed.retain(|passed| passed.to != node && (passed.from != node || passed.moved));
            }
        }
        // Who is told how often makes no other state.
        while state.rack.poll_notice(0).is_some() {}
        state
    }

    fn fault(&self, state: &State) -> Option<String> {
        if let Some(fault) = state.fault {
            return Some(fault.into());
        }
        let reached =
            |(at, node): &(FabricAddress, NodeId)| state.rack.check(*node, *at, LARGEST_BUFFER, Rights::Write).is_ok();
        if !state.held.iter().all(reached) {
            return Some("a buffer is not reached by its holder".into());
        }
        // Whose memory it is sees it all the time.
        let passed = state.passed.iter().map(|passed| (passed.at, passed.to));
        for (at, holder) in state.held.iter().copied().chain(passed) {
            let may = |node: NodeId| node == holder || state.rack.pool().owns(node, at.section());
            let reaches = |node: NodeId| state.rack.check(node, at, 1, Rights::Read).is_ok();
            if state.alive.iter().any(|&node| reaches(node) && !may(node)) {
                return Some("who has passed a buffer on reaches it still".into());
            }
        }
        let known = state.held.len() + state.passed.len();
        if state.rack.in_use() != known {
            return Some(format!("{} buffers are in use, and {known} are held", state.rack.in_use()));
        }
        let mut after = state.rack.clone();
        state.alive.iter().for_each(|node| after.node_died(*node));
        let free = after.pool().free_sections();
        (free != usize::from(self.0.buffers))
            .then(|| format!("of {} buffers {free} come back in the end", self.0.buffers))
    }
}

impl Space for Buffers {
    type State = State;
    type Action = Action;
    type Steps<'a> = &'a Self;

    fn first(&self) -> State {
        let BufferOptions { nodes, buffers, allocations, deaths, mutation } = self.0;
        let device = Device { location: NEAR, sections: buffers.into() };
        // A buffer is a section, so that one that comes back is soon handed out again.
        let rack = Rack::new(&[device], 0, Coalescing { count: 1, delay: 0 });
        let mut rack = rack.unwrap_or_else(|_| unreachable!("a few sections")).mutated(mutation);
        let alive: Vec<NodeId> = (1..=nodes.into()).map(NodeId).collect();
        for node in &alive {
            let joined = rack.join(*node, 1, buffers.into(), NEAR);
            debug_assert!(joined.is_ok(), "each joins once");
        }
        State { rack, held: Vec::new(), passed: Vec::new(), alive, allocations, deaths, fault: None }
    }

    fn steps(&self) -> &Self {
        self
    }
}

impl Steps for &Buffers {
    type State = State;
    type Action = Action;

    fn advance(&mut self, last: &State, action: Action, next: &mut State) {
        *next = self.next(last, action);
    }

    fn look(&mut self, state: &mut State, actions: &mut Vec<Action>) -> bool {
        actions.clear();
        for &node in &state.alive {
            if state.allocations > 0 {
                actions.push(Action::Alloc(node));
            }
            if state.first_of(node).is_some() {
                actions.push(Action::Free(node));
                actions.extend(state.alive.iter().map(|to| Action::Post(node, *to)));
            }
            if state.passed.iter().any(|passed| passed.moved && passed.to == node) {
                actions.push(Action::Receive(node));
            }
            if state.deaths > 0 {
                actions.push(Action::Die(node));
            }
        }
        if state.passed.iter().any(|passed| !passed.moved) {
            actions.push(Action::Poll);
        }
        self.fault(state).is_none()
    }
}
