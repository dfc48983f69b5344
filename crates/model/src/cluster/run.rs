//! A core takes a task: the engine is called, and what it tells of is given its time.

use remora_replica::ddp::{AckKind, Body, Job, Message, Outcome, ReplicaOutput, Step, StepKind, Where};
use remora_replica::types::{Key, NodeId, NodeSet, Timestamp};

use super::links::Span;
use super::{Event, JobId, ModelCluster, Place, Readings, Task, WorkerAsk};
use crate::component::pcie::Way;
use crate::time::Ps;

/// What a message says, so that the same one to another receiver is known.
type Saying = (std::mem::Discriminant<Body>, Key, Timestamp, Option<AckKind>);

/// One task on one core.
struct Run {
    node: u8,
    on: Where,
    /// The thread that it belongs to, here and at other nodes.
    thread: u8,
    /// How far the core is.
    at: Ps,
    /// The record that it is about.
    key: Key,
    /// The worker whose request it is.
    worker: Option<u16>,
    /// Whether a record is looked for.
    finds: bool,
    /// Communication of the message that it is about, or of its write so far.
    communication: Ps,
    /// What of this run was sending.
    sent: Ps,
    /// The last message sent, when its sending began, and where a broadcast engine has it and when.
    sending: Option<(Saying, Ps, Span)>,
    /// When the record began to go into the FIFOs.
    enqueued: Option<Ps>,
    /// The record's bytes.
    bytes: usize,
    /// When what went to the other side of PCIe is there.
    crossed: Option<Ps>,
    /// What the NIC does first with what went there.
    unpack: Ps,
    /// The local write or persist that this core goes on with, and what it takes.
    goes_on: Option<(JobId, Ps)>,
}

impl ModelCluster {
    /// A core takes a task.
    pub(super) fn execute(&mut self, now: Ps, place: Place, task: u32) {
        let Some(task) = self.take(task) else { return };
        let Place { node, on, thread } = place;
        let mut run = Run {
            node,
            on,
            thread,
            at: now,
            key: 0,
            worker: None,
            finds: false,
            communication: Ps::ZERO,
            sent: Ps::ZERO,
            sending: None,
            enqueued: None,
            bytes: 0,
            crossed: None,
            unpack: Ps::ZERO,
            goes_on: None,
        };
        self.begin(&mut run, task);
        while let Some(output) = self.nodes[usize::from(node)].replica.poll() {
            match output {
                ReplicaOutput::Step(step) => self.step(&mut run, step),
                ReplicaOutput::Send { to, message } => match run.enqueued {
                    // What is said of a record that goes into the vFIFO is said when it is there.
                    Some(begun) => {
                        let say = Task::Say { to, message, communication: run.communication };
                        self.ready(begun + self.spec.costs.share(self.spec.costs.vfifo, run.bytes), place, say);
                    }
                    None => self.send(&mut run, to, &message),
                },
                ReplicaOutput::Job(job) => self.job(&mut run, job),
                ReplicaOutput::Reply(reply) => self.reply(&mut run, reply.tag as u16, &reply.outcome),
            }
        }
        if let (Where::Nic, Some(at)) = (on, run.crossed) {
            // An acknowledgement that was handed up and answers nobody.
            let host = Place { on: Where::Host, ..place };
            self.ready(at, host, Task::Notice { work: Ps(self.spec.costs.host_dispatch) });
        }
        let time = run.goes_on.map_or(Ps::ZERO, |(_, time)| time);
        self.processor(place).busy += run.at + time - now;
        match run.goes_on {
            Some((job, time)) => {
                let task = self.keep(Task::Done { job, unpack: Ps::ZERO });
                self.queue.push(run.at + time, Event::GoOn(place, task));
            }
            None => self.queue.push(run.at, Event::Free(place)),
        }
    }

    /// Tells the engine.
    fn begin(&mut self, run: &mut Run, task: Task) {
        let (now, number) = (run.at.0 / 1000, usize::from(run.node));
        match task {
            Task::Request(worker) => {
                let Some(request) = self.request(run.node, worker) else { return };
                let Some(pending) = &mut self.nodes[number].workers[usize::from(worker)] else { return };
                pending.writes = !matches!(pending.ask, WorkerAsk::Read(_));
                if let WorkerAsk::Read(key) | WorkerAsk::Write(key) = pending.ask {
                    (run.key, run.finds) = (key, true);
                }
                run.worker = Some(worker);
                self.nodes[number].replica.submit(now, request);
            }
            Task::Message { from, message, communication, arrived } => {
                (run.key, _, run.finds) = about(&message.body);
                let waited = if self.spec.readings.waits_communicate { run.at - arrived } else { Ps::ZERO };
                run.communication = communication + waited;
                self.hear(run, from, message);
            }
            Task::Say { to, message, communication } => {
                run.communication = communication;
                self.send(run, to, &message);
            }
            Task::Done { job, unpack } => {
                run.at += unpack;
                let node = &mut self.nodes[number];
                if let JobId::Persist(key, ts) | JobId::Apply(key, ts) | JobId::Cross(key, ts) = job {
                    run.key = key;
                    run.communication = node.communication.get(&(key, ts)).copied().unwrap_or_default();
                }
                node.replica.done(now, job);
            }
            Task::Answer { worker, work, communication } => {
                run.at += work;
                self.answer(run.node, worker, run.at, communication);
            }
            Task::Notice { work } => run.at += work,
        }
    }

    /// A peer's message.
    fn hear(&mut self, run: &mut Run, from: NodeId, message: Message) {
        let tracked = self.spec.model.facts().acks_persists();
        let last = |kind: AckKind| kind != AckKind::Consistency || !tracked;
        let node = &mut self.nodes[usize::from(run.node)];
        match &message.body {
            Body::Inv(writes) => writes.iter().for_each(|write| {
                node.communication.insert((write.key, write.ts), run.communication);
            }),
            Body::Val(key, ts, kind) if last(*kind) => {
                node.communication.remove(&(*key, *ts));
            }
            Body::Persist(..) | Body::PersistAck(..) | Body::PersistVal(..) => {
                let costs = self.spec.costs;
                run.at += Ps(costs.of(run.on, costs.host_dispatch, costs.nic_dispatch));
            }
            _ => {}
        }
        node.replica.handle(run.at.0 / 1000, from, message);
    }

    fn step(&mut self, run: &mut Run, step: Step) {
        let costs = self.spec.costs;
        let on = step.on;
        if on != run.on {
            // The NIC's share of what the host hands it; a reader's look at a lock is part of its answer.
            if let StepKind::Unpack(messages) = step.kind
                && !self.broadcasts()
            {
                run.unpack = Ps(costs.unpack * u64::from(messages));
            }
            return;
        }
        let meta = |own: u64, cluster: &mut Self| {
            let fetched = cluster.nodes[usize::from(run.node)].fetch(run.key, on);
            own + if fetched { cluster.spec.costs.coherence } else { 0 }
        };
        let time = match step.kind {
            StepKind::Dispatch => {
                let lookup = if run.finds { costs.of(on, costs.host_lookup, costs.nic_lookup) } else { 0 };
                lookup + costs.of(on, costs.host_dispatch, costs.nic_dispatch)
            }
            StepKind::ReadMeta | StepKind::WriteMeta => meta(costs.of(on, costs.host_meta, costs.nic_meta), self),
            StepKind::RdLock => meta(costs.of(on, costs.host_cas, costs.nic_cas), self),
            StepKind::WrLock => costs.of(on, costs.host_cas, costs.nic_cas),
            StepKind::EnqueueVolatile => {
                (run.enqueued, run.bytes) = (Some(run.at), step.bytes);
                self.nodes[usize::from(run.node)].in_vfifo += u64::from(!self.spec.readings.atomic_entries);
                0
            }
            StepKind::EnqueueDurable => {
                if self.spec.readings.atomic_entries {
                    let there = run.enqueued.unwrap_or(run.at) + costs.share(costs.dfifo, step.bytes);
                    self.queue.push(there, Event::InDurable { node: run.node });
                } else {
                    self.nodes[usize::from(run.node)].in_dfifo += 1;
                }
                0
            }
            StepKind::Pcie(messages) => return self.cross(run, messages, step.bytes),
            // What a local write takes is its job's time.
            StepKind::LocalWrite | StepKind::Unpack(_) => 0,
        };
        run.at += Ps(time);
    }

    /// So many messages to the other side of PCIe.
    fn cross(&mut self, run: &mut Run, messages: u8, bytes: usize) {
        let costs = self.spec.costs;
        let (send, way) = match run.on {
            Where::Host => (costs.send_inv, Way::Down),
            Where::Nic => (costs.send_ack, Way::Up),
        };
        let (begun, bytes, gap) = (run.at, costs.header + bytes as u64, costs.send_gap);
        for message in 0..messages {
            run.at += Ps(if message == 0 { send } else { gap });
            let (_, last) = self.links.pcie(run.node, way, (run.at, run.at), bytes);
            run.crossed = Some(last);
        }
        if let (Where::Host, Some(last)) = (run.on, run.crossed) {
            run.communication = last - begun;
        }
    }

    /// Does a broadcast engine send what goes to many?
    fn broadcasts(&self) -> bool {
        match self.nodes[0].replica.config().offload() {
            Some(offload) => offload.broadcast,
            None => self.spec.host_broadcast,
        }
    }

    fn send(&mut self, run: &mut Run, to: NodeSet, message: &Message) {
        let costs = self.spec.costs;
        let (key, ts, inv) = about(&message.body);
        let bytes = costs.header + payload(&message.body);
        let (send, gap, engine_gap) =
            (if inv { costs.send_inv } else { costs.send_ack }, costs.send_gap, costs.broadcast_gap);
        let broadcasts = self.broadcasts();
        let kind = match message.body {
            Body::Ack(_, _, kind) | Body::Val(_, _, kind) => Some(kind),
            _ => None,
        };
        let saying = (std::mem::discriminant(&message.body), key, ts, kind);
        let before = self.nodes[usize::from(run.node)].communication.get(&(key, ts)).copied().unwrap_or_default();
        for peer in to.iter() {
            let again = run.sending.filter(|(said, ..)| *said == saying);
            let (begun, (first, last)) = match again {
                Some((_, begun, (first, last))) if broadcasts => {
                    (begun, (first + Ps(engine_gap), last + Ps(engine_gap)))
                }
                again => {
                    let begun = again.map_or(run.at, |(_, begun, _)| begun);
                    let time = Ps(if again.is_some() { gap } else { send });
                    run.at += time;
                    run.sent += time;
                    (begun, self.leave(run, bytes))
                }
            };
            run.sending = Some((saying, begun, (first, last)));
            let (_, arrives) = self.travel(run.node, peer.0, (first, last), bytes);
            let communication = before + (arrives - begun);
            let message = Message { epoch: message.epoch, body: message.body.clone() };
            let task = Task::Message { from: NodeId(run.node), message, communication, arrived: arrives };
            self.ready(arrives, Place { node: peer.0, on: self.engine(), thread: run.thread }, task);
        }
        if let Body::Val(_, _, kind) = message.body
            && (kind != AckKind::Consistency || !self.spec.model.facts().acks_persists())
        {
            self.nodes[usize::from(run.node)].communication.remove(&(key, ts));
        }
    }

    /// Where messages are taken.
    fn engine(&self) -> Where {
        if self.nodes[0].replica.config().offload().is_some() { Where::Nic } else { Where::Host }
    }

    /// From the core that sends to the NIC's port.
    fn leave(&mut self, run: &Run, bytes: u64) -> Span {
        match run.on {
            Where::Host => self.links.pcie(run.node, Way::Down, (run.at, run.at), bytes),
            Where::Nic => (run.at, run.at),
        }
    }

    /// From one NIC's port to the core that takes it at another.
    fn travel(&mut self, from: u8, to: u8, at: Span, bytes: u64) -> Span {
        let there = self.links.wire(from, to, at, bytes);
        match self.engine() {
            Where::Host => self.links.pcie(to, Way::Up, there, bytes),
            Where::Nic => there,
        }
    }

    fn job(&mut self, run: &mut Run, job: Job) {
        let (id, at, on) = (job.id(), run.at, self.engine());
        let place = Place { node: run.node, on, thread: run.thread };
        let offload = self.nodes[0].replica.config().offload();
        let fifos = offload.is_some_and(|offload| offload.fifos.is_some());
        let costs = self.spec.costs;
        let (node, record) = (run.node, costs.header + costs.record);
        let (persist, write, dfifo) = (costs.persist, Ps(costs.cache_write), costs.dfifo);
        let done = match &job {
            Job::Apply(_) if offload.is_none() && run.goes_on.is_none() => {
                run.goes_on = Some((id, write));
                return;
            }
            Job::Apply(_) if offload.is_none() => at + write,
            Job::Apply(content) if fifos => {
                let there = run.enqueued.unwrap_or(at) + costs.share(costs.vfifo, content.bytes());
                return self.queue.push(there, Event::Leaves(place, id));
            }
            Job::Apply(_) => self.links.pcie(node, Way::Up, (at, at), record).1 + write,
            Job::Cross(content) => {
                let node = &mut self.nodes[usize::from(node)];
                node.communication.insert((content.key, content.ts), run.communication);
                run.crossed.take().unwrap_or(at)
            }
            Job::Persist(_) | Job::PersistScope(_) => {
                let bytes = if let Job::Persist(content) = &job { content.bytes() } else { 0 };
                let time = costs.share(persist, bytes);
                let state = &mut self.nodes[usize::from(node)];
                if fifos {
                    // Both FIFOs are written at the same time.
                    state.persisted(Where::Nic, run.enqueued.unwrap_or(at), costs.share(dfifo, bytes)).max(at)
                } else if on == Where::Nic {
                    let there = self.links.pcie(node, Way::Up, (at, at), record).1;
                    state.persisted(Where::Host, there, time)
                } else if run.goes_on.is_none() && !self.spec.readings.persist_aside {
                    run.goes_on = Some((id, state.persisted(Where::Host, at, time) - at));
                    return;
                } else {
                    state.persisted(Where::Host, at, time)
                }
            }
            Job::Drain(..) => {
                let there = match self.spec.readings.durable_apart {
                    true => self.links.drain(node, 1, (at, at), record).1,
                    false => self.links.pcie(node, Way::Up, (at, at), record).1,
                };
                self.queue.push(there - Ps(costs.pcie_latency), Event::LeftDurable { node });
                let time = costs.share(persist, costs.record as usize);
                let logged = self.nodes[usize::from(node)].persisted(Where::Host, there, time);
                return self.queue.push(logged, Event::Drained { node, job: id });
            }
        };
        let unpack = if matches!(job, Job::Cross(_)) { std::mem::take(&mut run.unpack) } else { Ps::ZERO };
        self.ready(done, place, Task::Done { job: id, unpack });
    }

    /// A record begins to leave the vFIFO for the host's cache.
    pub(super) fn leaves(&mut self, now: Ps, place: Place, job: JobId) {
        let costs = self.spec.costs;
        let record = costs.header + costs.record;
        let Readings { atomic_entries, volatile_apart, .. } = self.spec.readings;
        self.nodes[usize::from(place.node)].in_vfifo += u64::from(atomic_entries);
        let there = match volatile_apart {
            true => self.links.drain(place.node, 0, (now, now), record).1,
            false => self.links.pcie(place.node, Way::Up, (now, now), record).1,
        };
        self.queue.push(there - Ps(costs.pcie_latency), Event::LeftVolatile { node: place.node });
        self.ready(there + Ps(costs.cache_write), place, Task::Done { job, unpack: Ps::ZERO });
    }

    /// A worker's answer.
    fn reply(&mut self, run: &mut Run, worker: u16, outcome: &Outcome) {
        if let Outcome::Refused(refusal) = outcome {
            self.failure = Some(*refusal);
            return;
        }
        let node = run.node;
        let Some(pending) = self.nodes[usize::from(node)].workers[usize::from(worker)] else { return };
        let costs = self.spec.costs;
        let (read, dispatch, coherence) = (Ps(costs.record_read), Ps(costs.host_dispatch), Ps(costs.coherence));
        if let WorkerAsk::Read(_) = pending.ask {
            if run.worker == Some(worker) {
                run.at += read;
                return self.answer(node, worker, run.at, Ps::ZERO);
            }
            // It has waited for the lock, and sees that it is free.
            let seen = if run.on == Where::Nic { coherence } else { Ps::ZERO };
            let task = Task::Answer { worker, work: read, communication: Ps::ZERO };
            let host = Place { node, on: Where::Host, thread: self.thread(node, worker) };
            return self.ready(run.at + seen, host, task);
        }
        let before = run.communication + run.sent;
        if run.on == Where::Host {
            return self.answer(node, worker, run.at, before);
        }
        let (begun, header, send) = (run.at, costs.header, Ps(costs.send_ack));
        let arrives = run.crossed.take().unwrap_or_else(|| {
            run.at += send;
            self.links.pcie(node, Way::Up, (run.at, run.at), header).1
        });
        let communication = before + (arrives - begun);
        let host = Place { node, on: Where::Host, thread: self.thread(node, worker) };
        self.ready(arrives, host, Task::Answer { worker, work: dispatch, communication });
    }

    fn answer(&mut self, node: u8, worker: u16, at: Ps, communication: Ps) {
        if let Some(pending) = &mut self.nodes[usize::from(node)].workers[usize::from(worker)] {
            pending.communication = communication;
            self.queue.push(at, Event::Answered { node, worker });
        }
    }
}

/// Of which write a message speaks, and whether it carries it.
fn about(body: &Body) -> (Key, Timestamp, bool) {
    match body {
        Body::Inv(writes) => writes.first().map_or((0, Timestamp::ZERO, true), |write| (write.key, write.ts, true)),
        Body::Ack(key, ts, _) | Body::Val(key, ts, _) => (*key, *ts, false),
        Body::Refuse(key, ts) | Body::Busy(key, ts) => (*key, *ts, false),
        Body::Persist(scope, ..) | Body::PersistAck(scope, _) | Body::PersistVal(scope, _) => {
            (*scope, Timestamp::ZERO, false)
        }
        Body::State(..) | Body::StateAck(_) | Body::Merged(_) => (0, Timestamp::ZERO, false),
    }
}

/// Bytes of a message beside its header.
fn payload(body: &Body) -> u64 {
    match body {
        Body::Inv(writes) => writes.iter().map(|write| write.bytes() as u64).sum(),
        // Key and timestamp of each.
        Body::Persist(_, _, writes) => 17 * writes.len() as u64,
        _ => 0,
    }
}
