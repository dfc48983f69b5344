//! In event the log may get just the newest version of what was written for a while.

use remora_replica::ddp::{Config, Job, JobId, Model, Op, Replica, ReplicaOutput, Request, View};
use remora_replica::types::{Key, NodeId, NodeSet, Value};

const GATHER: u64 = 5_000;

fn replica() -> Replica {
    let config = Config { write_back: GATHER, ..Config::new(NodeId(0), NodeSet::first(1), Model::Event) };
    let mut replica = Replica::new(config);
    replica.install(0, View::first(NodeSet::first(1)));
    replica.set_lease(0, u64::MAX);
    replica
}

fn put(replica: &mut Replica, now: u64, key: Key, text: &str) {
    let op = Op::Put(key, Value::from(text.as_bytes()));
    replica.submit(now, Request { tag: now, session: None, scope: None, op });
}

/// The replies since it was last asked, and what is to be made durable.
fn take(replica: &mut Replica) -> (usize, Vec<(JobId, String)>) {
    let (mut replies, mut jobs) = (0, Vec::new());
    while let Some(output) = replica.poll() {
        match output {
            ReplicaOutput::Reply(_) => replies += 1,
            ReplicaOutput::Job(job) => {
                let Job::Persist(write) = &job else { panic!("{job:?}") };
                let text = String::from_utf8(write.value.as_ref().unwrap().to_vec()).unwrap();
                jobs.push((job.id(), text));
            }
            other => panic!("{other:?}"),
        }
    }
    (replies, jobs)
}

#[test]
fn the_log_gets_the_newest_version_of_each_record_and_nothing_is_forgotten() {
    let mut replica = replica();
    for (now, key, text) in [(10, 1, "a"), (11, 2, "b"), (12, 1, "c"), (13, 1, "d")] {
        put(&mut replica, now, key, text);
    }
    assert_eq!(take(&mut replica), (4, Vec::new()));
    assert_eq!(replica.next_timeout(), Some(10 + GATHER));
    replica.timeout(10 + GATHER);
    let (_, jobs) = take(&mut replica);
    assert_eq!(jobs.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(), ["d", "b"]);
    // A version that comes before the log has the one under way goes there too.
    put(&mut replica, 10_000, 1, "e");
    jobs.iter().for_each(|(id, _)| replica.done(10_001, *id));
    assert_eq!(take(&mut replica), (1, Vec::new()));
    replica.timeout(10_000 + GATHER);
    let (_, jobs) = take(&mut replica);
    assert_eq!(jobs.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(), ["e"]);
    jobs.iter().for_each(|(id, _)| replica.done(20_000, *id));
    replica.timeout(20_001);
    assert_eq!((take(&mut replica), replica.next_timeout()), ((0, Vec::new()), None));
}

#[test]
fn of_a_record_one_version_at_a_time_waits_for_the_log() {
    let mut replica = replica();
    put(&mut replica, 0, 1, "a");
    replica.timeout(GATHER);
    let (_, first) = take(&mut replica);
    assert_eq!(first.len(), 1);
    // The disk stands still.
    let mut now = GATHER;
    for text in ["b", "c", "d"] {
        put(&mut replica, now, 1, text);
        now += 2 * GATHER;
        replica.timeout(now);
        assert_eq!(take(&mut replica), (1, Vec::new()));
    }
    replica.done(now, first[0].0);
    assert_eq!(replica.next_timeout(), Some(now + GATHER));
    replica.timeout(now + GATHER);
    let (_, jobs) = take(&mut replica);
    assert_eq!(jobs.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(), ["d"]);
}
