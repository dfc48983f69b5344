//! A request that is sent again is done once, whichever attempt at it comes through first.

use remora_replica::client::{ClientConfig, Order, ReplicaClient, Split};
use remora_replica::ddp::{
    Config, Deployment, Job, Model, Offload, Op, Outcome, Replica, ReplicaOutput, Reply, Request, Session, View,
};
use remora_replica::types::{NodeId, NodeSet, Value};

const KEY: u64 = 7;
const SECOND: u64 = 1_000_000_000;
const NODES: u8 = 3;

/// Replicas whose messages arrive at once, but for those to and from a node that is cut off, and whose jobs are done at
/// once, but for what crosses from a slow host to its NIC, or where there is no NIC is written to its memory.
struct Cluster {
    nodes: Vec<Replica>,
    cut: Option<NodeId>,
    slow: Option<NodeId>,
    /// Nothing becomes durable.
    slow_logs: bool,
    held: Vec<(NodeId, ReplicaOutput)>,
    replies: Vec<Reply>,
    tag: u64,
}

impl Cluster {
    fn new() -> Self {
        Self::of(|id| Config::new(id, NodeSet::first(NODES), Model::Synch))
    }

    /// Each on host and NIC.
    fn offloaded(offload: Offload) -> Self {
        let deployment = Deployment::Offload(offload);
        Self::of(|id| Config { deployment, stepped: true, ..Config::new(id, NodeSet::first(NODES), Model::Synch) })
    }

    fn of(config: impl Fn(NodeId) -> Config) -> Self {
        let nodes = NodeSet::first(NODES);
        let node = |id| {
            let mut replica = Replica::new(config(id));
            replica.install(0, View::first(nodes));
            replica.set_lease(0, u64::MAX);
            replica
        };
        let nodes = nodes.iter().map(node).collect();
        Self { nodes, cut: None, slow: None, slow_logs: false, held: Vec::new(), replies: Vec::new(), tag: 0 }
    }

    /// Gives client 1's request to a node. Its replies have the tag that comes back.
    fn ask(&mut self, node: u8, sequence: u64, attempt: u32, op: Op) -> u64 {
        self.submit(node, Session { client: 1, sequence, attempt }, op)
    }

    fn submit(&mut self, node: u8, session: Session, op: Op) -> u64 {
        self.tag += 1;
        let request = Request { session: Some(session), ..Request::new(self.tag, op) };
        self.nodes[usize::from(node)].submit(0, request);
        self.pump();
        self.tag
    }

    fn pump(&mut self) {
        while let Some(id) = (0..NODES).map(NodeId).find(|id| self.nodes[usize::from(id.0)].has_output()) {
            let Some(output) = self.nodes[usize::from(id.0)].poll() else { continue };
            self.take(id, output);
        }
    }

    fn take(&mut self, id: NodeId, output: ReplicaOutput) {
        match output {
            ReplicaOutput::Send { to, .. } if self.cut.is_some_and(|cut| cut == id || to.has(cut)) => {
                self.held.push((id, output));
            }
            ReplicaOutput::Send { to, message } => {
                to.iter().for_each(|to| self.nodes[usize::from(to.0)].handle(0, id, message.clone()));
            }
            ReplicaOutput::Job(Job::Cross(_)) if self.slow == Some(id) => self.held.push((id, output)),
            ReplicaOutput::Job(Job::Apply(_))
                if self.slow == Some(id) && self.nodes[0].config().offload().is_none() =>
            {
                self.held.push((id, output));
            }
            ReplicaOutput::Job(Job::Persist(_)) if self.slow_logs => self.held.push((id, output)),
            ReplicaOutput::Job(job) => {
                let stepped = self.nodes[0].config().stepped;
                assert!(stepped || matches!(job, Job::Persist(_)), "{job:?}");
                self.nodes[usize::from(id.0)].done(0, job.id());
            }
            ReplicaOutput::Reply(reply) => self.replies.push(reply),
            ReplicaOutput::Step(_) => {}
        }
    }

    /// No node is cut off or slow any more, and what was sent and crosses arrives.
    fn join(&mut self) {
        (self.cut, self.slow, self.slow_logs) = (None, None, false);
        for (id, output) in std::mem::take(&mut self.held) {
            self.take(id, output);
            self.pump();
        }
    }

    fn outcome(&self, tag: u64) -> Option<&Outcome> {
        self.replies.iter().find(|reply| reply.tag == tag).map(|reply| &reply.outcome)
    }

    /// What is held back on the way between nodes never arrives.
    fn lose(&mut self) {
        self.held.retain(|(_, output)| !matches!(output, ReplicaOutput::Send { .. }));
    }

    /// A node is gone, and the others go on without it.
    fn crash(&mut self, gone: u8) {
        self.cut = Some(NodeId(gone));
        let members = NodeSet::first(NODES).without(NodeId(gone));
        for id in members.iter() {
            self.nodes[usize::from(id.0)].install(0, View { epoch: 2, members, ..View::default() });
        }
        self.pump();
        self.lose();
    }

    fn value(&mut self) -> Option<Value> {
        self.read(2)
    }

    fn read(&mut self, node: u8) -> Option<Value> {
        let tag = self.submit(node, Session { client: 9, sequence: self.tag, attempt: 0 }, Op::Get(KEY));
        match self.outcome(tag) {
            Some(Outcome::Value(value)) => value.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Another client's write.
    fn put(&mut self, node: u8, text: &str) {
        let session = Session { client: 2, sequence: self.tag, attempt: 0 };
        let tag = self.submit(node, session, Op::Put(KEY, value(text)));
        assert_eq!(self.outcome(tag), Some(&Outcome::Written));
    }
}

fn value(text: &str) -> Value {
    text.as_bytes().into()
}

fn swap(expected: &str, new: &str) -> Op {
    Op::CompareSwap { key: KEY, expected: Some(value(expected)), new: Some(value(new)) }
}

#[test]
fn a_swap_that_failed_when_sent_again_is_not_done_later() {
    let mut cluster = Cluster::new();
    cluster.put(0, "a");
    // The first attempt waits behind a write whose acknowledgements do not come.
    cluster.cut = Some(NodeId(0));
    cluster.submit(0, Session { client: 3, sequence: 1, attempt: 0 }, Op::Put(KEY, value("c")));
    let first = cluster.ask(0, 1, 0, swap("b", "x"));
    let second = cluster.ask(1, 1, 1, swap("b", "x"));
    assert_eq!((cluster.outcome(first), cluster.outcome(second)), (None, None));
    cluster.join();
    assert!(matches!(cluster.outcome(second), Some(Outcome::NotSwapped(_))), "{:?}", cluster.outcome(second));
    // Now it would succeed, if it were let.
    cluster.put(1, "b");
    let late = cluster.ask(2, 1, 0, swap("b", "x"));
    assert_eq!(cluster.outcome(late), Some(&Outcome::Unknown), "a later attempt came before");
    assert_eq!(cluster.value(), Some(value("b")));
    // A later attempt may.
    let third = cluster.ask(0, 1, 2, swap("b", "x"));
    assert_eq!(cluster.outcome(third), Some(&Outcome::Swapped));
    assert_eq!(cluster.value(), Some(value("x")));
    let fourth = cluster.ask(1, 1, 3, swap("b", "x"));
    assert_eq!(cluster.outcome(fourth), Some(&Outcome::Swapped), "it was done before");
}

#[test]
fn a_first_attempt_that_comes_late_does_not_undo_what_followed() {
    let mut cluster = Cluster::new();
    let second = cluster.ask(1, 1, 1, Op::Put(KEY, value("a")));
    assert_eq!(cluster.outcome(second), Some(&Outcome::Written));
    cluster.put(0, "b");
    let late = cluster.ask(2, 1, 0, Op::Put(KEY, value("a")));
    assert_eq!(cluster.outcome(late), Some(&Outcome::Written));
    assert_eq!(cluster.value(), Some(value("b")));
    // Nor does one of a request that the client has long left behind.
    cluster.ask(0, 2, 0, Op::Put(KEY, value("c")));
    let older = cluster.ask(1, 1, 0, Op::Delete(KEY));
    assert_eq!(cluster.outcome(older), Some(&Outcome::Unknown));
    assert_eq!(cluster.value(), Some(value("c")));
}

#[test]
fn additions_are_done_once_and_what_cannot_be_added_to_is_refused_for_good() {
    let mut cluster = Cluster::new();
    for attempt in 0..3 {
        let tag = cluster.ask(attempt as u8, 1, attempt, Op::FetchAdd(KEY, 5));
        assert_eq!(cluster.outcome(tag), Some(&Outcome::Added(0)), "attempt {attempt}");
    }
    assert_eq!(cluster.value(), Some(5u64.to_le_bytes().as_slice().into()));
    cluster.put(0, "no number");
    let second = cluster.ask(1, 2, 1, Op::FetchAdd(KEY, 5));
    assert!(matches!(cluster.outcome(second), Some(Outcome::Refused(_))));
    let tag = cluster.submit(2, Session { client: 2, sequence: 99, attempt: 0 }, Op::Delete(KEY));
    assert_eq!(cluster.outcome(tag), Some(&Outcome::Written));
    let late = cluster.ask(0, 2, 0, Op::FetchAdd(KEY, 5));
    assert_eq!(cluster.outcome(late), Some(&Outcome::Unknown));
    assert_eq!(cluster.value(), None);
}

#[test]
fn a_first_attempt_that_fails_costs_no_write() {
    let mut cluster = Cluster::new();
    cluster.put(0, "a");
    let before = cluster.nodes[1].meta(KEY).volatile_ts;
    let tag = cluster.ask(0, 1, 0, swap("b", "c"));
    assert_eq!(cluster.outcome(tag), Some(&Outcome::NotSwapped(Some(value("a")))));
    assert_eq!(cluster.nodes[1].meta(KEY).volatile_ts, before);
}

/// With FIFOs at the NIC, and with the WRLock there.
fn offloads() -> [Offload; 2] {
    [Offload::FULL, Offload { fifos: None, ..Offload::FULL }]
}

#[test]
fn an_addition_that_crosses_to_the_nic_finds_what_came_meanwhile() {
    for offload in offloads() {
        let mut cluster = Cluster::offloaded(offload);
        cluster.slow = Some(NodeId(1));
        let second = cluster.submit(1, Session { client: 2, sequence: 1, attempt: 0 }, Op::FetchAdd(KEY, 2));
        let first = cluster.ask(0, 1, 0, Op::FetchAdd(KEY, 1));
        assert_eq!((cluster.outcome(first), cluster.outcome(second)), (Some(&Outcome::Added(0)), None));
        cluster.join();
        assert_eq!(cluster.outcome(second), Some(&Outcome::Added(1)));
        assert_eq!(cluster.value(), Some(3_u64.to_le_bytes().as_slice().into()));
    }
}

#[test]
fn a_put_that_crosses_to_the_nic_does_not_take_marks_away() {
    for offload in offloads() {
        let mut cluster = Cluster::offloaded(offload);
        cluster.slow = Some(NodeId(1));
        let hundred = Value::from(100_u64.to_le_bytes().as_slice());
        let put = cluster.submit(1, Session { client: 2, sequence: 1, attempt: 0 }, Op::Put(KEY, hundred));
        let first = cluster.ask(0, 1, 1, Op::FetchAdd(KEY, 1));
        cluster.join();
        assert_eq!(cluster.outcome(put), Some(&Outcome::Written));
        let found = cluster.outcome(first).cloned();
        assert_eq!(cluster.ask(2, 1, 2, Op::FetchAdd(KEY, 1)), 3);
        assert_eq!(cluster.outcome(3).cloned(), found, "done once");
        assert_eq!(found, Some(Outcome::Added(100)));
        assert_eq!(cluster.value(), Some(101_u64.to_le_bytes().as_slice().into()));
    }
}

/// In strict a write may be read before it is durable, and so may its mark.
#[test]
fn what_was_done_before_is_answered_when_it_is_durable() {
    let mut cluster = Cluster::of(|id| Config::new(id, NodeSet::first(NODES), Model::Strict));
    for (sequence, op) in [(1, Op::Put(KEY, value("a"))), (2, swap("a", "b")), (3, Op::Delete(KEY))] {
        cluster.slow_logs = true;
        let first = cluster.ask(0, sequence, 0, op.clone());
        let read = cluster.value();
        let again = [0, 1].map(|node| cluster.ask(node, sequence, 1 + u32::from(node), op.clone()));
        assert_eq!(
            [first, again[0], again[1]].map(|tag| cluster.outcome(tag)),
            [None; 3],
            "a crash of all would undo it"
        );
        cluster.join();
        let done = if sequence == 2 { Outcome::Swapped } else { Outcome::Written };
        assert_eq!([first, again[0], again[1]].map(|tag| cluster.outcome(tag)), [Some(&done); 3]);
        assert_eq!(cluster.value(), read);
    }
}

/// A follower replays the write of a coordinator that is not heard of, and which still writes it to its own memory.
#[test]
fn a_replay_of_what_is_being_written_does_not_hold_its_record_up() {
    for model in Model::ALL {
        let mut cluster = Cluster::of(|id| Config { stepped: true, ..Config::new(id, NodeSet::first(NODES), model) });
        cluster.slow = Some(NodeId(0));
        let put = cluster.ask(0, 1, 0, Op::Put(KEY, value("a")));
        for turn in 1..20 {
            let now = turn * cluster.nodes[1].config().retry;
            cluster.nodes[1].timeout(now);
            cluster.pump();
        }
        assert!(cluster.nodes[1].marks().replays > 0, "{model}");
        cluster.join();
        cluster.nodes.iter_mut().for_each(|node| node.timeout(SECOND));
        cluster.pump();
        assert_eq!(cluster.outcome(put), Some(&Outcome::Written), "{model}");
        cluster.put(1, "b");
    }
}

/// The marks of a batch's swaps take room as writes do: if each attempt left all of them anew, the last found none.
#[test]
fn a_batch_whose_swaps_come_to_nothing_ends_where_there_is_room_for_one_write() {
    let mut cluster = Cluster::offloaded(Offload { fifos: Some(1), ..Offload::FULL });
    let config = ClientConfig { retry: true, ..ClientConfig::new(usize::from(NODES), 0) };
    let (mut client, mut now) = (ReplicaClient::new(config.clone()), 0);
    let swaps = (0..4).map(|key| Op::CompareSwap { key, expected: Some(value("a")), new: Some(value("b")) });
    client.submit(now, None, Op::Batch(swaps.collect()));
    let mut lost = true;
    for _ in 0..20 {
        client.handle_timeout(now);
        while let Some(order) = client.poll_order(now) {
            if let Order::Call(_) = order {
                client.connected(now);
            }
        }
        let Some(request) = client.poll_transmit().cloned() else {
            now += config.pause;
            continue;
        };
        // Of the first attempt nothing is heard, so that all others leave marks.
        if std::mem::take(&mut lost) {
            client.lost(now);
            continue;
        }
        cluster.tag += 1;
        let tag = cluster.tag;
        cluster.nodes[client.node()].submit(0, Request { tag, ..request });
        cluster.pump();
        let outcome = cluster.outcome(tag).cloned().expect("answered at once");
        client.handle_reply(now, Reply { tag: request.tag, outcome }, Split::default());
        if let Some(ended) = client.poll_ended() {
            return assert_eq!(ended.outcome, Outcome::Batch(vec![Outcome::NotSwapped(None); 4]));
        }
    }
    panic!("it goes on for ever");
}

/// The first attempt comes to one other node alone, is superseded there by a write that does not know it, and its node
/// fails.
#[test]
fn a_mark_is_at_all_nodes_or_at_none() {
    for model in Model::ALL {
        let mut cluster = Cluster::of(|id| Config::new(id, NodeSet::first(NODES), model));
        cluster.cut = Some(NodeId(2));
        cluster.ask(0, 1, 0, Op::Put(KEY, value("a")));
        cluster.lose();
        cluster.cut = Some(NodeId(0));
        let newer = cluster.submit(2, Session { client: 2, sequence: 1, attempt: 0 }, Op::Put(KEY, value("b")));
        cluster.crash(0);
        assert_eq!(cluster.outcome(newer), Some(&Outcome::Written), "{model}");
        // The second attempt is made at who never had it, and is on its way when the client asks who had.
        cluster.cut = Some(NodeId(2));
        cluster.ask(2, 1, 1, Op::Put(KEY, value("a")));
        let last = cluster.ask(1, 1, 2, Op::Put(KEY, value("a")));
        let answered = cluster.outcome(last).is_some().then(|| cluster.read(1));
        cluster.join();
        assert_eq!(cluster.outcome(last), Some(&Outcome::Written), "{model}");
        assert_eq!(cluster.read(1), Some(value("a")), "{model}");
        assert!(answered.is_none_or(|read| read == Some(value("a"))), "{model}: done again after its answer");
    }
}

/// Of two additions that found the same, one's node fails when the other's has yet to write its own to its memory, and
/// has the acknowledgement of all but that one.
#[test]
fn what_was_acknowledged_in_one_view_does_not_count_in_the_next() {
    for model in Model::ALL {
        let mut cluster = Cluster::of(|id| Config { stepped: true, ..Config::new(id, NodeSet::first(NODES), model) });
        (cluster.cut, cluster.slow) = (Some(NodeId(2)), Some(NodeId(1)));
        let first = cluster.ask(1, 1, 0, Op::FetchAdd(KEY, 1));
        cluster.lose();
        cluster.cut = None;
        let other = Session { client: 2, sequence: 1, attempt: 0 };
        cluster.submit(2, other, Op::FetchAdd(KEY, 1));
        cluster.crash(2);
        cluster.join();
        let second = cluster.submit(0, Session { attempt: 1, ..other }, Op::FetchAdd(KEY, 1));
        let found = [first, second].map(|tag| cluster.outcome(tag).cloned());
        assert!(
            found.contains(&Some(Outcome::Added(0))) && found.contains(&Some(Outcome::Added(1))),
            "{model}: {found:?}"
        );
        assert_eq!(cluster.read(0), Some(2_u64.to_le_bytes().as_slice().into()), "{model}");
    }
}
