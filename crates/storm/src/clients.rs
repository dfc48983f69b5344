//! What clients do in a running cluster: the carriage of [`remora_replica::client`], and the history of what it tells.
//!
//! A connection is a number on both sides. A node that ends forgets its connections, and says so when something comes on
//! one; what is lost on the way is silence.

use remora_replica::client::{Ended, Order, Split};
use remora_replica::ddp::{Outcome, Reply, Request};

use crate::cluster::{Cluster, Event};
use crate::engine::{Body, End, Engine};
use crate::events::{MS, Time};
use crate::history::Record;
use crate::values::{after, ends, request};
use crate::workload::{Actor, Flight};

/// Reads that a watcher has under way at most.
const WATCHED: usize = 20;

impl<E: Engine> Cluster<'_, E> {
    /// A pause ends: the next request.
    pub(crate) fn wake(&mut self, index: usize) {
        if let Some(every) = self.clients[index].watches {
            return self.look(index, every);
        }
        let client = &mut self.clients[index];
        // In the calm each client makes one more request, and then they share the last reads.
        if self.calm && client.made_last {
            return self.read_last();
        }
        let Some((body, scope)) = client.next(&self.plan.workload) else { return self.wake_after(index, 20 * MS) };
        client.made_last |= self.calm;
        self.ask(index, body, scope);
    }

    /// A watcher reads.
    fn look(&mut self, index: usize, every: Time) {
        if self.calm {
            return;
        }
        self.wake_after(index, every);
        let client = &mut self.clients[index];
        if client.flights.len() < WATCHED {
            let (body, scope) = (client.look(&self.plan.workload), client.scope());
            self.ask(index, body, scope);
        }
    }

    /// The next of the last reads, by a client that knows of one node alone.
    fn read_last(&mut self) {
        let Some((node, key)) = self.last_reads.pop() else { return };
        let index = self.clients.len();
        let reader = Actor::reader(self.plan.seed, index as u32, node, &self.plan.workload);
        let scope = reader.scope();
        self.clients.push(reader);
        self.ask(index, Body::get(key), scope);
    }

    fn ask(&mut self, index: usize, body: Body, scope: u64) {
        let scoped = self.plan.workload.scopes.then(|| scope / self.plan.workload.scopes_a_number);
        let client = &mut self.clients[index];
        let ticket = client.requests.submit(self.now, scoped, request(&body));
        let record = |op: &crate::engine::Op| Record {
            client: index as u64,
            number: ticket.0,
            key: op.key,
            action: op.action,
            scope,
            called: self.now,
            returned: 0,
            end: End::Unknown,
        };
        let records: Vec<Record> = match &body {
            Body::PersistScope => Vec::new(),
            Body::Ops(ops) => ops.iter().map(record).collect(),
        };
        let records = records.into_iter().map(|record| self.history.call(record)).collect();
        let flight = Flight { body, scope, records };
        self.story.call(self.now, index, ticket, &flight);
        client.flights.insert(ticket, flight);
        self.drive(index);
    }

    /// Does what the client's engine asks for, and takes note of when it wants to be looked after.
    pub(crate) fn drive(&mut self, index: usize) {
        let now = self.now;
        self.clients[index].requests.handle_timeout(now);
        while let Some(order) = self.clients[index].requests.poll_order(now) {
            let client = &mut self.clients[index];
            client.line += 1;
            client.peer = None;
            if let Order::Call(number) = order {
                client.moves_on();
                let (node, line) = (client.node(number), client.line);
                self.story.calls(now, index, node);
                if let Some(delay) = self.net.client_delay() {
                    self.queue.push(now + delay, Event::Call { node, client: index, line });
                }
            }
        }
        while let Some(request) = self.clients[index].requests.poll_transmit() {
            let request = request.clone();
            let Some((node, life)) = self.clients[index].peer else { continue };
            let line = self.clients[index].line;
            if let Some(delay) = self.net.client_delay() {
                self.queue.push(now + delay, Event::Request { node, life, client: index, line, request });
            }
        }
        while let Some(ended) = self.clients[index].requests.poll_ended() {
            self.ended(index, &ended);
        }
        let client = &mut self.clients[index];
        let due = client.requests.next_timeout();
        if due < Time::MAX && client.armed.is_none_or(|armed| due < armed) {
            client.armed = Some(due.max(now + 1));
            self.queue.push(due.max(now + 1), Event::ClientTimer { client: index });
        }
    }

    pub(crate) fn client_timer(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.armed == Some(self.now) {
            client.armed = None;
            self.drive(index);
        }
    }

    /// A call reaches a node. One that is down does not answer; its machine says that nobody is there.
    pub(crate) fn called(&mut self, node: usize, client: usize, line: u64) {
        let Some(delay) = self.net.client_delay() else { return };
        let place = &self.nodes[node];
        let peer = place.engine.is_some().then_some((node, place.life));
        self.queue.push(self.now + delay, Event::Line { client, line, peer });
    }

    /// What has become of a call or a connection reaches its client.
    pub(crate) fn line(&mut self, index: usize, line: u64, peer: Option<(usize, u64)>) {
        let client = &mut self.clients[index];
        if client.line != line {
            return;
        }
        client.peer = peer;
        match peer {
            Some(_) => client.requests.connected(self.now),
            None => client.requests.lost(self.now),
        }
        self.drive(index);
    }

    /// A request reaches a node, in the life that it was meant for or in another.
    pub(crate) fn asked(&mut self, node: usize, life: u64, client: usize, line: u64, request: Request) {
        let local = self.local(node);
        let place = &mut self.nodes[node];
        let Some(engine) = place.engine.as_mut().filter(|_| place.life == life) else {
            if let Some(delay) = self.net.client_delay() {
                self.queue.push(self.now + delay, Event::Line { client, line, peer: None });
            }
            return;
        };
        place.last_tag += 1;
        place.asked.insert(place.last_tag, (client, line, request.tag));
        engine.submit(local, Request { tag: place.last_tag, ..request });
        self.pump(node);
    }

    /// A node answers. What it was asked in an earlier life nobody waits for.
    pub(crate) fn answers(&mut self, node: usize, reply: Reply) {
        let Some((client, line, tag)) = self.nodes[node].asked.remove(&reply.tag) else { return };
        if let Some(delay) = self.net.client_delay() {
            let reply = Reply { tag, ..reply };
            self.queue.push(self.now + delay, Event::Reply { client, line, reply });
        }
    }

    pub(crate) fn reply(&mut self, index: usize, line: u64, reply: Reply) {
        let client = &mut self.clients[index];
        if client.line == line && client.peer.is_some() {
            client.requests.handle_reply(self.now, reply, Split::default());
            self.drive(index);
        }
    }

    fn ended(&mut self, index: usize, ended: &Ended) {
        let client = &mut self.clients[index];
        let Some(flight) = client.flights.remove(&ended.ticket) else { return };
        let ends = ends(&flight.body, &ended.outcome);
        self.story.ended(self.now, index, ended.ticket, &flight, &ended.outcome, &ends);
        if ended.outcome == Outcome::Persisted {
            self.history.persisted.insert(flight.scope);
        }
        for (&record, &end) in flight.records.iter().zip(&ends) {
            self.history.end(record, self.now, end);
            let Record { key, action, .. } = self.history.records[record];
            if let End::Done(found) = end {
                client.saw(key, after(action, found));
            }
        }
        if client.watches.is_some() {
            return;
        }
        let pause = if self.calm { 0 } else { client.pause(&self.plan.workload) };
        self.wake_after(index, pause);
    }

    /// One of a client's places makes a request after a pause.
    pub(crate) fn wake_after(&mut self, client: usize, pause: Time) {
        self.queue.push(self.now + pause, Event::Wake { client });
    }
}
