//! Nodes that stand still, between two turns or in the midst of one.
//!
//! A turn takes what has come, reads the clock, works, and sends. A storm's event is a turn of a node, at one moment;
//! so a pause in the midst of one is made here: what was taken before it is worked on when it ends, by the clock as it
//! was read before. A seeded fault turns the halves around, as an engine's world may by mistake.

use crate::cluster::{Cluster, Event, Mutant};
use crate::engine::Engine;
use crate::events::Time;

/// A node's pauses.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    /// It stands still until then.
    pub until: Time,
    /// It will stand still until then, from the next input on.
    pub next: Option<Time>,
    /// It has read its clock in the turn that a pause cuts in two.
    read: Option<Time>,
    /// It works by this reading.
    old: Option<Time>,
    /// What its clock read when it stopped, if the clock stops too.
    stopped: Option<Time>,
}

/// What waits for a node to move again.
pub(crate) type Held<M> = Vec<Event<M>>;

impl<E: Engine> Cluster<'_, E> {
    /// What a node reads on its clock.
    pub(crate) fn local(&self, node: usize) -> Time {
        let place = &self.nodes[node];
        place.pauses.old.unwrap_or_else(|| place.clock.local(self.now))
    }

    /// A node stands still from now on.
    pub(crate) fn pause(&mut self, node: usize, until: Time) {
        let stops = self.plan.mutant == Some(Mutant::ClockSleeps);
        let place = &mut self.nodes[node];
        place.pauses.until = until.max(place.pauses.until);
        if stops && place.pauses.stopped.is_none() {
            place.pauses.stopped = Some(place.clock.local(self.now));
        }
    }

    /// A node will stand still in the midst of its next turn.
    pub(crate) fn pause_in_turn(&mut self, node: usize, until: Time) {
        self.nodes[node].pauses.next = Some(until);
    }

    /// Something comes to a node: does it wait, since the node stands still? If the node is to stop in this turn, it has
    /// taken it then.
    pub(crate) fn waits(&mut self, node: usize) -> bool {
        if self.nodes[node].pauses.until > self.now {
            return true;
        }
        let up = self.nodes[node].engine.is_some();
        let Some(until) = self.nodes[node].pauses.next.take().filter(|&until| up && until > self.now) else {
            return false;
        };
        self.nodes[node].pauses.read = Some(self.nodes[node].clock.local(self.now));
        self.pause(node, until);
        true
    }

    /// A node moves again, if no other pause holds it.
    pub(crate) fn resume(&mut self, node: usize) {
        let now = self.now;
        let place = &mut self.nodes[node];
        if place.pauses.next.is_some_and(|until| until <= now) {
            place.pauses.next = None;
        }
        if place.pauses.until > now {
            return;
        }
        let held = std::mem::take(&mut place.held);
        if let Some(stopped) = place.pauses.stopped.take() {
            place.clock.go_on(now, stopped);
        }
        let read = place.pauses.read.take();
        let in_turn = match (read, self.plan.mutant) {
            (None, _) => 0,
            // All that has come meanwhile is taken after the clock was read.
            (Some(_), Some(Mutant::ClockFirst)) => held.len(),
            (Some(_), _) => 1,
        };
        let life = self.nodes[node].life;
        for (index, event) in held.into_iter().enumerate() {
            if index < in_turn && self.nodes[node].life == life {
                self.nodes[node].pauses.old = read;
                self.step(event);
                self.nodes[node].pauses.old = None;
            } else {
                self.queue.push(self.now, event);
            }
        }
        self.arm(node);
        self.station_turn(node);
    }
}
