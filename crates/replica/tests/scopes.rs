//! A PERSIST waits for all that a node knows of its scope, and a node forgets only what is durable there.

use remora_replica::ddp::{
    AckKind, Body, Config, Job, Message, Model, Op, Outcome, Refusal, Replica, ReplicaOutput, Request, View, Write,
};
use remora_replica::types::{NodeId, NodeSet, ScopeId, Timestamp, Value};

fn replica(id: u8, max_scopes: usize) -> Replica {
    let nodes = NodeSet::first(3);
    let mut replica = Replica::new(Config { max_scopes, ..Config::new(NodeId(id), nodes, Model::Scope) });
    replica.install(0, View::first(nodes));
    replica.set_lease(0, u64::MAX);
    replica
}

/// The jobs and answers that it put out.
fn put_out(replica: &mut Replica) -> (Vec<Job>, Vec<Outcome>) {
    let (mut jobs, mut answers) = (Vec::new(), Vec::new());
    for output in std::iter::from_fn(|| replica.poll()) {
        match output {
            ReplicaOutput::Job(job) => jobs.push(job),
            ReplicaOutput::Reply(reply) => answers.push(reply.outcome),
            _ => {}
        }
    }
    (jobs, answers)
}

fn hear(replica: &mut Replica, now: u64, from: u8, body: Body) -> Vec<Job> {
    let epoch = replica.view().epoch;
    replica.handle(now, NodeId(from), Message { epoch, body });
    put_out(replica).0
}

/// A write of the third node, each of its own record.
fn write(scope: ScopeId) -> Write {
    let ts = Timestamp { version: 2, node: NodeId(2) };
    let value = Some(Value::from(b"one".as_slice()));
    Write { key: scope, ts, value, rmw: false, scope: Some(scope), stamps: Vec::new() }
}

fn scoped(scope: ScopeId, op: Op) -> Request {
    Request { scope: Some(scope), ..Request::new(1, op) }
}

/// A client's write at this node that all have taken: what is left is to make it durable.
fn put(replica: &mut Replica, now: u64, scope: ScopeId) -> Vec<Job> {
    let op = Op::Put(scope, Value::from(b"one".as_slice()));
    replica.submit(now, Request { scope: Some(scope), ..Request::new(scope, op) });
    put_out(replica).0
}

#[test]
fn a_follower_waits_for_what_a_coordinator_that_began_anew_does_not_know() {
    let mut replica = replica(1, 1024);
    let scope = 5;
    let writing = hear(&mut replica, 0, 2, Body::Inv(vec![write(scope)]));
    assert!(matches!(writing[..], [Job::Persist(_)]), "{writing:?}");
    assert_eq!(hear(&mut replica, 0, 0, Body::Persist(scope, 1, Vec::new())), []);
    replica.done(0, writing[0].id());
    assert_eq!(put_out(&mut replica).0, [Job::PersistScope(scope)]);
}

#[test]
fn a_follower_forgets_no_scope_that_is_not_durable_however_many_there_are() {
    let mut replica = replica(1, 2);
    let jobs: Vec<_> = (1..=5).flat_map(|scope| hear(&mut replica, 0, 2, Body::Inv(vec![write(scope)]))).collect();
    assert_eq!(jobs.len(), 5);
    for (scope, job) in (1..=5).zip(jobs) {
        assert_eq!(hear(&mut replica, 0, 0, Body::Persist(scope, 1, Vec::new())), []);
        replica.done(0, job.id());
        assert_eq!(put_out(&mut replica).0, [Job::PersistScope(scope)]);
    }
}

/// The acknowledgements that it sends until it has put out all.
fn acks(replica: &mut Replica) -> Vec<(NodeSet, Body)> {
    let outputs: Vec<_> = std::iter::from_fn(|| replica.poll()).collect();
    let ack = |output| match output {
        ReplicaOutput::Send { to, message: Message { body: body @ Body::PersistAck(..), .. } } => Some((to, body)),
        _ => None,
    };
    outputs.into_iter().filter_map(ack).collect()
}

#[test]
fn a_scope_that_goes_on_after_persist_is_waited_for_again() {
    let mut replica = replica(1, 1024);
    let scope = 5;
    let first = write(scope);
    let list = vec![(first.key, first.ts)];
    let writing = hear(&mut replica, 0, 2, Body::Inv(vec![first.clone()]));
    replica.done(0, writing[0].id());
    let noting = hear(&mut replica, 0, 2, Body::Persist(scope, 1, list));
    replica.done(0, noting[0].id());
    assert_eq!(acks(&mut replica), [(NodeSet::one(NodeId(2)), Body::PersistAck(scope, 1))]);
    // The next write and PERSIST come before the first one's VAL_P.
    let ts = Timestamp { version: 4, ..first.ts };
    let second = Write { ts, ..first };
    let list = vec![(second.key, ts)];
    let writing = hear(&mut replica, 0, 2, Body::Inv(vec![second]));
    assert_eq!(hear(&mut replica, 0, 2, Body::Persist(scope, 2, list.clone())), []);
    assert_eq!(hear(&mut replica, 0, 2, Body::PersistVal(scope, 1)), []);
    assert_eq!(replica.meta(scope).glb_durable_ts, Timestamp { version: 2, ..ts });
    // The first one again, late.
    assert_eq!(hear(&mut replica, 0, 2, Body::Persist(scope, 1, Vec::new())), []);
    replica.done(0, writing[0].id());
    let noting = put_out(&mut replica).0;
    assert_eq!(noting, [Job::PersistScope(scope)]);
    replica.done(0, noting[0].id());
    assert_eq!(acks(&mut replica), [(NodeSet::one(NodeId(2)), Body::PersistAck(scope, 2))]);
    replica.handle(0, NodeId(2), Message { epoch: 1, body: Body::PersistVal(scope, 2) });
    assert_eq!(replica.meta(scope).glb_durable_ts, ts);
}

#[test]
fn two_nodes_may_coordinate_the_persist_of_a_scope_at_once() {
    let mut replica = replica(1, 1024);
    let scope = 5;
    let (first, newer) = (write(scope), Timestamp { version: 4, node: NodeId(2) });
    let list = vec![(first.key, first.ts)];
    let writing = hear(&mut replica, 0, 2, Body::Inv(vec![first.clone()]));
    replica.done(0, writing[0].id());
    assert_eq!(hear(&mut replica, 0, 0, Body::Persist(scope, 1, list)), [Job::PersistScope(scope)]);
    // The other one knows of a newer write, which is not durable here.
    let writing = hear(&mut replica, 0, 2, Body::Inv(vec![Write { ts: newer, ..first }]));
    assert_eq!(hear(&mut replica, 0, 2, Body::Persist(scope, 1, vec![(scope, newer)])), []);
    replica.done(0, Job::PersistScope(scope).id());
    assert_eq!(acks(&mut replica), [(NodeSet::one(NodeId(0)), Body::PersistAck(scope, 1))]);
    replica.done(0, writing[0].id());
    replica.done(0, Job::PersistScope(scope).id());
    assert_eq!(acks(&mut replica), [(NodeSet::one(NodeId(2)), Body::PersistAck(scope, 1))]);
}

#[test]
fn a_persist_does_not_wait_for_writes_that_begin_after_it() {
    let mut replica = replica(0, 1024);
    let scope = 5;
    let put = |replica: &mut Replica, key: u64| {
        let op = Op::Put(key, Value::default());
        replica.submit(0, Request { scope: Some(scope), ..Request::new(key, op) });
    };
    put(&mut replica, 1);
    replica.submit(0, Request { scope: Some(scope), ..Request::new(9, Op::Persist) });
    put(&mut replica, 2);
    put_out(&mut replica);
    let ts = replica.meta(1).volatile_ts;
    let ack = |from| (NodeId(from), Message { epoch: 1, body: Body::Ack(1, ts, AckKind::Consistency) });
    for (from, ack) in [ack(1), ack(2)] {
        replica.handle(0, from, ack);
    }
    let asks = |output| match output {
        ReplicaOutput::Send { message: Message { body: Body::Persist(_, 1, writes), .. }, .. } => {
            Some(writes.contains(&(1, ts)))
        }
        _ => None,
    };
    assert_eq!(std::iter::from_fn(|| replica.poll()).find_map(asks), Some(true));
}

#[test]
fn a_persist_waits_for_no_read_modify_write_that_may_not_happen() {
    let mut replica = replica(1, 1024);
    let (scope, first) = (5, write(5));
    let writing = hear(&mut replica, 0, 2, Body::Inv(vec![first.clone()]));
    replica.done(0, writing[0].id());
    hear(&mut replica, 0, 2, Body::Val(first.key, first.ts, AckKind::Consistency));
    let swap = Op::CompareSwap { key: first.key, expected: first.value, new: Some(Value::default()) };
    replica.submit(0, Request { scope: Some(scope), ..Request::new(1, swap) });
    assert!(matches!(put_out(&mut replica).0[..], [Job::Persist(_)]));
    // Not acknowledged, nor durable.
    assert!(replica.meta(first.key).volatile_ts > first.ts);
    assert_eq!(hear(&mut replica, 0, 0, Body::Persist(scope, 1, Vec::new())), [Job::PersistScope(scope)]);
}

#[test]
fn scopes_that_clients_left_make_room_when_they_are_durable() {
    let mut replica = replica(0, 2);
    // The second scope writes last.
    let mut jobs = put(&mut replica, 1, 1);
    jobs.extend(put(&mut replica, 3, 2));
    assert_eq!(jobs.len(), 2);
    // None is durable: no room for a third.
    replica.submit(4, Request { scope: Some(3), ..Request::new(3, Op::Put(3, Value::default())) });
    assert_eq!(put_out(&mut replica), (Vec::new(), vec![Outcome::Refused(Refusal::Busy)]));
    for job in &jobs {
        replica.done(5, job.id());
    }
    assert_eq!(put(&mut replica, 6, 3).len(), 1);
    // The oldest has made room, and nothing is promised for it.
    replica.submit(7, Request { scope: Some(1), ..Request::new(4, Op::Persist) });
    assert_eq!(put_out(&mut replica).1, [Outcome::Refused(Refusal::UnknownScope)]);
    replica.submit(8, Request { scope: Some(2), ..Request::new(5, Op::Persist) });
    assert_eq!(put_out(&mut replica).1, []);
}

/// PERSIST lists a scope's records, in one frame.
#[test]
fn a_scope_writes_no_more_records_than_a_persist_lists() {
    let start = || {
        let nodes = NodeSet::first(3);
        let mut replica = Replica::new(Config { scope_keys: 3, ..Config::new(NodeId(0), nodes, Model::Scope) });
        replica.install(0, View::first(nodes));
        replica.set_lease(0, u64::MAX);
        replica
    };
    let mut replica = start();
    let put = |replica: &mut Replica, scope: ScopeId, key: u64| {
        replica.submit(0, scoped(scope, Op::Put(key, Value::default())));
        put_out(replica).1
    };
    // One by way of another node.
    hear(&mut replica, 0, 2, Body::Inv(vec![Write { scope: Some(5), ..write(1) }]));
    assert_eq!((put(&mut replica, 5, 2), put(&mut replica, 5, 3)), (Vec::new(), Vec::new()));
    assert_eq!(put(&mut replica, 5, 4), [Outcome::Refused(Refusal::Busy)]);
    // What it has written before, and what others write.
    assert_eq!((put(&mut replica, 5, 2), put(&mut replica, 6, 4)), (Vec::new(), Vec::new()));
    let others =
        |keys: std::ops::Range<u64>| Body::Inv(keys.map(|key| Write { scope: Some(5), ..write(key) }).collect());
    assert_eq!(hear(&mut replica, 0, 2, others(10..16)).len(), 6);
    // All that was let in is listed, once it is complete.
    for (key, version) in [(2, 2), (2, 4), (3, 2)] {
        let ts = Timestamp { version, node: NodeId(0) };
        (1..3).for_each(|from| drop(hear(&mut replica, 0, from, Body::Ack(key, ts, AckKind::Consistency))));
    }
    replica.submit(0, scoped(5, Op::Persist));
    let listed = std::iter::from_fn(|| replica.poll()).find_map(|output| match output {
        ReplicaOutput::Send { message: Message { body: Body::Persist(5, _, writes), .. }, .. } => Some(writes.len()),
        _ => None,
    });
    assert_eq!(listed, Some(9));
    // Too many to be listed have come by way of others that did not know of each other: nothing is promised.
    let mut replica = start();
    hear(&mut replica, 0, 2, others(10..20));
    for _ in 0..2 {
        replica.submit(0, scoped(5, Op::Persist));
        assert_eq!(put_out(&mut replica).1, [Outcome::Refused(Refusal::TooLong)]);
    }
}
