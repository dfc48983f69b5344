//! What clients do in a running cluster.

use crate::cluster::{Cluster, Event, Failure};
use crate::engine::{Action, Body, End, Engine, Op, Outcome, Request, Value};
use crate::events::{MS, Time};
use crate::history::Record;
use crate::workload::{Client, Flight};

impl<E: Engine> Cluster<'_, E> {
    /// A client's pause ends: the next request.
    pub(crate) fn wake(&mut self, index: usize, turn: u64) {
        let client = &mut self.clients[index];
        if client.turn != turn {
            return;
        }
        if client.flight.is_some() {
            return self.send(index);
        }
        // In the calm each client makes one more request, and then they share the last reads.
        let request = if !self.calm || !std::mem::replace(&mut client.made_last, true) {
            client.next(&self.plan.workload)
        } else {
            let Some((node, key)) = self.last_reads.pop() else { return };
            client.last_read(node, key)
        };
        let records = match &request.body {
            Body::PersistScope => Vec::new(),
            Body::Ops(ops) => ops.iter().map(|op| self.history.call(record(&request, op, self.now))).collect(),
        };
        self.story.call(self.now, index, self.clients[index].node, &request);
        self.clients[index].flight = Some(Flight { request, records, tries: 0, maybe_taken: false });
        self.send(index);
    }

    /// Sends the request in flight to the client's node.
    fn send(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let Some(flight) = &mut client.flight else { return };
        flight.tries += 1;
        let (session, number, tries) = (flight.request.client, flight.request.number, flight.tries);
        if let Some(delay) = self.net.client_delay() {
            let request = Request { attempt: tries - 1, ..flight.request.clone() };
            self.queue.push(self.now + delay, Event::Request { node: client.node, request });
        }
        let patience = self.now + self.plan.workload.patience;
        self.queue.push(patience, Event::Impatient { client: index, session, number, tries });
    }

    pub(crate) fn impatient(&mut self, index: usize, session: u64, number: u64, tries: u32) {
        let Some(flight) = &self.clients[index].flight else { return };
        if (flight.request.client, flight.request.number, flight.tries) != (session, number, tries) {
            return;
        }
        self.maybe_taken(index);
    }

    /// A try may have been taken, or may yet be.
    fn maybe_taken(&mut self, index: usize) {
        if let Some(flight) = &mut self.clients[index].flight {
            flight.maybe_taken = true;
        }
        self.try_again(index);
    }

    pub(crate) fn reply(&mut self, session: u64, number: u64, attempt: u32, outcome: Outcome) {
        let index = Client::of_session(session);
        let waits = |flight: &Flight| {
            (flight.request.client, flight.request.number, flight.tries) == (session, number, attempt + 1)
        };
        let Some(flight) = self.clients[index].flight.as_ref().filter(|flight| waits(flight)) else { return };
        match outcome {
            // Of a scope that the node does not know, no other knows more: its writes would have to be made again.
            Outcome::Refused if flight.request.body == Body::PersistScope => self.give_up(index),
            Outcome::Refused => self.try_again(index),
            Outcome::Unknown => self.maybe_taken(index),
            Outcome::Done(ends) if ends.len() == flight.records.len() => self.done(index, &ends),
            Outcome::Done(ends) => {
                let text = format!("{} results for {:?}", ends.len(), flight.request.body);
                self.failure = Some(Failure::Broken(text));
            }
        }
    }

    fn done(&mut self, index: usize, ends: &[End]) {
        let client = &mut self.clients[index];
        let Some(flight) = client.flight.take() else { return };
        self.story.reply(self.now, index, &flight.request, ends);
        if flight.request.body == Body::PersistScope {
            self.history.persisted.insert(flight.request.scope);
        }
        for (&record, &end) in flight.records.iter().zip(ends) {
            // An earlier try may still do what this one refused.
            let end = if end == End::Refused && flight.maybe_taken { End::Unknown } else { end };
            self.history.end(record, self.now, end);
            let Record { key, action, .. } = self.history.records[record];
            if let End::Done(found) = end {
                client.saw(key, after(action, found));
            }
        }
        self.pause(index);
    }

    /// A try came to nothing: the next node, or the end of this session. In the calm clients never give up.
    fn try_again(&mut self, index: usize) {
        let nodes = self.plan.nodes;
        let client = &mut self.clients[index];
        let Some(flight) = &client.flight else { return };
        if flight.tries < self.plan.workload.tries || self.calm {
            client.move_on(nodes);
            return self.wake_after(index, 20 * MS);
        }
        self.give_up(index);
    }

    /// The request ends without an answer, and the session with it.
    fn give_up(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let Some(flight) = client.flight.take() else { return };
        let end = if flight.maybe_taken { End::Unknown } else { End::Refused };
        self.story.gave_up(self.now, index, &flight.request, end);
        for &record in &flight.records {
            self.history.end(record, self.now, end);
        }
        client.renew(self.plan.nodes);
        self.pause(index);
    }

    fn pause(&mut self, index: usize) {
        let pause = if self.calm { 0 } else { self.clients[index].pause(&self.plan.workload) };
        self.wake_after(index, pause);
    }

    /// Begins a pause, in place of an earlier one.
    pub(crate) fn wake_after(&mut self, client: usize, pause: Time) {
        self.clients[client].turn += 1;
        let turn = self.clients[client].turn;
        self.queue.push(self.now + pause, Event::Wake { client, turn });
    }
}

fn record(request: &Request, op: &Op, now: u64) -> Record {
    let Request { client, number, scope, .. } = *request;
    let Op { key, action } = *op;
    Record { client, number, key, action, scope, called: now, returned: 0, end: End::Unknown }
}

/// The value that an operation leaves behind, as its client knows it.
fn after(action: Action, found: Value) -> Value {
    match action {
        Action::Get => found,
        Action::Put(value) => Some(value),
        Action::Delete => None,
        Action::CompareSwap { expected, new } => {
            if found == expected {
                Some(new)
            } else {
                found
            }
        }
        Action::FetchAdd(delta) => Some(found.unwrap_or(0).wrapping_add(delta)),
    }
}
