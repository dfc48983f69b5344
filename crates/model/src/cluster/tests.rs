use remora_replica::ddp::Offload;

use super::*;
use crate::platform::Platform;

const NODES: u8 = 3;

fn spec(model: Model, deployment: Deployment, workers: u16) -> ClusterSpec {
    let costs = Costs::new(&Platform::load("minos").unwrap()).unwrap();
    ClusterSpec {
        costs,
        nodes: NODES,
        workers,
        model,
        deployment,
        host_broadcast: false,
        readings: Readings::default(),
    }
}

fn offload(fifos: u16) -> Deployment {
    Deployment::Offload(Offload { fifos: Some(fifos), ..Offload::FULL })
}

/// Requests of all workers of some nodes, each the same, and how they went.
struct Script {
    nodes: std::ops::Range<u8>,
    asks: Vec<WorkerAsk>,
    begun: std::collections::BTreeMap<(u8, u16), usize>,
    done: Vec<WorkerDone>,
}

impl Script {
    fn new(nodes: std::ops::Range<u8>, asks: &[WorkerAsk]) -> Self {
        Self { nodes, asks: asks.to_vec(), begun: Default::default(), done: Vec::new() }
    }
}

impl WorkerLoad for Script {
    fn next(&mut self, node: u8, worker: u16) -> Option<WorkerAsk> {
        let begun = self.begun.entry((node, worker)).or_default();
        let ask = self.asks.get(*begun).filter(|_| self.nodes.contains(&node));
        *begun += 1;
        ask.copied()
    }

    fn done(&mut self, _: u8, _: u16, done: &WorkerDone) {
        self.done.push(*done);
    }
}

fn run(spec: &ClusterSpec, script: &mut Script) -> ModelCluster {
    let mut cluster = ModelCluster::new(spec);
    cluster.run(script).unwrap();
    cluster
}

/// One write of an idle cluster, and its part of communication, in nanoseconds.
fn one_write(spec: &ClusterSpec) -> (f64, f64) {
    let mut script = Script::new(0..1, &[WorkerAsk::Write(7)]);
    run(spec, &mut script);
    (script.done[0].latency.as_ns(), script.done[0].communication.as_ns())
}

#[test]
fn a_synch_write_on_the_host_takes_what_a_hand_calculation_says() {
    let (latency, communication) = one_write(&spec(Model::Synch, Deployment::Baseline, 1));
    // The INV to the second follower leaves behind the first one's: 1 KB and 40 B take 170.24 ns over PCIe, which is
    // slower than the wire. Then PCIe, wire and PCIe; the last byte is never further behind.
    let inv = 200.0 + 2.0 * 1064.0 / 6.25 + 500.0 + 150.0 + 500.0;
    // An ACK is longest on the wire, 122 B. The VALs leave before the answer.
    let (ack, vals) = (100.0 + 500.0 + 122.0 / 7.0 + 150.0 + 500.0, 100.0 + 100.0);
    assert!((communication - (inv + ack + vals)).abs() < 0.1, "{communication} against {}", inv + ack + vals);
    // Dispatch, look-up, metadata, two locks, metadata under the second: both sides.
    let begin = 125.0 + 125.0 + 15.0 + 42.0 + 42.0 + 15.0;
    let follower = begin + 100.0 + 1295.0;
    // The last ACK taken, and the timestamps set.
    let computation = begin + follower + 125.0 + 15.0;
    assert!((latency - communication - computation).abs() < 0.1, "{latency} - {communication} against {computation}");
}

#[test]
fn a_persist_that_is_waited_for_takes_its_time() {
    for deployment in [Deployment::Baseline, Deployment::Offload(Offload::FULL)] {
        let of = |model| one_write(&spec(model, deployment, 1)).0;
        let (synch, strict, renf, event) = (of(Model::Synch), of(Model::Strict), of(Model::REnf), of(Model::Event));
        // The persist is in the way of the first two only.
        let (stronger, weaker) = (synch.min(strict), renf.max(event));
        assert!(stronger > weaker + 500.0, "{synch} {strict} {renf} {event}");
    }
}

#[test]
fn a_read_waits_for_the_lock_and_else_for_nobody() {
    let mut script = Script::new(0..1, &[WorkerAsk::Read(1), WorkerAsk::Write(1), WorkerAsk::Read(1)]);
    run(&spec(Model::REnf, Deployment::Baseline, 1), &mut script);
    let latency = |n: usize| script.done[n].latency.as_ns();
    // Dispatch, lookup, metadata; 90 ns of DRAM and 1 KB at 28 GB/s.
    assert!((latency(0) - (125.0 + 125.0 + 15.0 + 90.0 + 36.6)).abs() < 1.0, "{}", latency(0));
    assert!(latency(2) > latency(0) + 1000.0, "REnf: the write is read when it is durable everywhere: {}", latency(2));
}

#[test]
fn everything_ends_under_load_in_every_model_and_deployment_and_twice_alike() {
    let asks: Vec<WorkerAsk> =
        (0..40).map(|n| if n % 2 == 0 { WorkerAsk::Write(n % 3) } else { WorkerAsk::Read(n % 3) }).collect();
    for model in Model::ALL {
        for deployment in [Deployment::Baseline, offload(1), offload(5)] {
            let asks = match model {
                Model::Scope => asks.iter().copied().chain([WorkerAsk::Persist]).collect(),
                _ => asks.clone(),
            };
            let once = || {
                let mut script = Script::new(0..NODES, &asks);
                let cluster = run(&spec(model, deployment, 4), &mut script);
                let metas: Vec<_> = (0..NODES).map(|node| cluster.replica(node).unwrap().meta(0)).collect();
                assert!(metas.iter().all(|meta| meta.rd_lock.is_none() && meta.volatile_ts == metas[0].volatile_ts));
                for node in 0..NODES {
                    let replica = cluster.replica(node).unwrap();
                    assert_eq!((replica.marks().fifo_full, replica.marks().resends), (0, 0));
                }
                (cluster.events(), script.done.iter().map(|done| (done.at, done.latency)).collect::<Vec<_>>())
            };
            let (first, second) = (once(), once());
            assert_eq!(first.1.len(), asks.len() * 4 * usize::from(NODES), "{model} {deployment:?}");
            assert_eq!(first, second, "{model} {deployment:?}");
        }
    }
}

#[test]
fn short_fifos_make_writes_wait() {
    let asks: Vec<WorkerAsk> = (0..50).map(WorkerAsk::Write).collect();
    let mean = |entries| {
        let mut script = Script::new(0..NODES, &asks);
        run(&spec(Model::Synch, offload(entries), 3), &mut script);
        script.done.iter().map(|done| done.latency.as_ns()).sum::<f64>() / script.done.len() as f64
    };
    let (one, three, many) = (mean(1), mean(3), mean(100));
    assert!(one > three && three >= many, "{one} {three} {many}");
}

#[test]
fn a_thread_that_spins_leaves_its_peers_messages_to_another_and_all_end_even_if_all_spin() {
    let asks: Vec<WorkerAsk> = (0..40).map(WorkerAsk::Write).collect();
    let latencies = |deployment, (writers, workers), spin_on_acks| {
        let readings = Readings { spin_on_acks, ..Readings::default() };
        let mut script = Script::new(0..writers, &asks);
        run(&ClusterSpec { readings, ..spec(Model::Synch, deployment, workers) }, &mut script);
        assert_eq!(script.done.len(), 40 * usize::from(workers) * usize::from(writers));
        script.done.iter().map(|done| done.latency.as_ns()).collect::<Vec<_>>()
    };
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    // While one node writes nobody's messages come to a thread that spins.
    assert_eq!(latencies(Deployment::Baseline, (1, 1), true), latencies(Deployment::Baseline, (1, 1), false));
    let [spins, usual] = [true, false].map(|spins| latencies(Deployment::Baseline, (NODES, 2), spins));
    assert!((mean(&spins) / mean(&usual) - 1.0).abs() > 0.005, "{} and {}", mean(&spins), mean(&usual));
    latencies(Deployment::Baseline, (NODES, 5), true);
    // What MINOS-O's peers send is for the NIC.
    assert_eq!(latencies(offload(5), (NODES, 2), true), latencies(offload(5), (NODES, 2), false));
}
