//! A PERSIST waits for all that a node knows of its scope.

use remora_replica::ddp::{Body, Config, Job, Message, Model, Output, Replica, View, Write};
use remora_replica::types::{NodeId, NodeSet, ScopeId, Timestamp, Value};

fn jobs(replica: &mut Replica) -> Vec<Job> {
    let outputs = std::iter::from_fn(|| replica.poll());
    outputs.filter_map(|output| if let Output::Job(job) = output { Some(job) } else { None }).collect()
}

#[test]
fn a_follower_waits_for_what_a_coordinator_that_began_anew_does_not_know() {
    let nodes = NodeSet::first(3);
    let mut replica = Replica::new(Config::new(NodeId(1), nodes, Model::Scope));
    replica.install(0, View::first(nodes));
    replica.set_lease(0, u64::MAX);
    let scope: ScopeId = 5;
    let (key, ts) = (7, Timestamp { version: 2, node: NodeId(2) });
    let value = Some(Value::from(b"one".as_slice()));
    let write = Write { key, ts, value, rmw: false, scope: Some(scope), stamps: Vec::new() };
    let message = |body| Message { epoch: replica.view().epoch, body };
    let (inv, persist) = (message(Body::Inv(vec![write])), message(Body::Persist(scope, Vec::new())));
    replica.handle(0, NodeId(2), inv);
    let writing = jobs(&mut replica);
    assert!(matches!(writing[..], [Job::Persist(_)]), "{writing:?}");
    replica.handle(0, NodeId(0), persist);
    assert_eq!(jobs(&mut replica), []);
    replica.done(0, writing[0].id());
    assert_eq!(jobs(&mut replica), [Job::PersistScope(scope)]);
}
