//! Every value of a platform drives something: with another value, something that is modelled comes out otherwise.

use remora_model::platform::{Dimension, Param, Platform, SourceStatus};
use remora_study::dfabric;
use remora_study::minos::{AblationStep, Setup};
use remora_study::where_::{self, Load, Memory, Operation, TEMPLATES, WhereOptions};

/// The screen of several operations: what moves here needs no simulation.
fn screened(platform: &Platform) -> String {
    let mut all = String::new();
    for (name, text) in TEMPLATES {
        let operation = Operation::parse(name, text).unwrap();
        for memory in [Memory::Host, Memory::Near, Memory::Far] {
            for load in [Load::Closed(1), Load::Closed(16), Load::Closed(256)] {
                let operation = Operation { memory, load, ..operation.clone() };
                all += &serde_json::to_string(&where_::rank(platform, &operation, &WhereOptions::default())).unwrap();
            }
        }
    }
    all
}

/// The replicated cluster, where the platform has one.
fn replicated(platform: &Platform) -> String {
    let mut all = String::new();
    for deployment in [AblationStep::B, AblationStep::BBroadcast, AblationStep::CombinedBatching, AblationStep::O] {
        let setup = Setup { deployment, writes: 80, records: 50, ..Setup::default() };
        all += &setup.run(platform, 30, 1).map_or_else(|e| e.to_string(), |came| format!("{came:?}"));
    }
    all
}

/// Two racks, where the platform has them: with NICs behind ToR switches and with pools, everything and single mechanisms on.
fn racked(platform: &Platform) -> String {
    let mut all = String::new();
    let of = |run, system| dfabric::Setup { run, system, theta: 4, bytes: 200_000, ..dfabric::Setup::default() };
    let ours = || of(dfabric::Run::AllToAll, dfabric::System::DFabric);
    let one_way = || of(dfabric::Run::PingPong, dfabric::System::DFabric);
    let setups = [
        of(dfabric::Run::AllToAll, dfabric::System::Tor),
        of(dfabric::Run::AllReduce, dfabric::System::DFabric),
        ours(),
        dfabric::Setup { without: vec![dfabric::Without::LargeQueues], ..one_way() },
        dfabric::Setup { without: vec![dfabric::Without::Depth], commercial: true, device_mbps: 200, ..ours() },
    ];
    for setup in setups {
        all += &setup.run(platform, 1).map_or_else(|e| e.to_string(), |came| format!("{came:?}"));
    }
    all
}

/// Values that neither the screen nor the cluster sees, and who does: tests of their own show each of these at work.
const ELSEWHERE: &[(&str, &str)] = &[
    ("host.cache.ways", "loads at real addresses: model's component::cache"),
    ("client.core.switch", "kernels at the client with others under way: compare --on"),
    (
        "nic.pipeline.message_rate",
        "many commands at once, where the client's cores are fast enough: model's component::nic",
    ),
    ("nic.pipeline.packet_cycles", "short packets back to back: model's component::nic"),
    ("nic.pipeline.tlb_entries", "more memory than it has entries for: model's component::nic"),
    ("nic.pipeline.page", "the same"),
    ("nic.pipeline.tlb_miss", "the same"),
    ("nic.pipeline.wqe", "a command of a NIC whose core stores it: model's world::tests"),
    ("switch.buffer", "many senders to one port: model's component::switch"),
    ("checksum.crc64", "the consistent GET: figure 9"),
    ("stream.partition", "figure 11"),
    ("stream.hyperloglog", "figure 13a"),
    ("stream.pair", "figure 13a"),
    ("module.", "users' kernels: compare-kernel --on"),
    ("tcp.", "figures 7 and 8"),
    ("host.private.", "threads that wait for their loads: model's component::hierarchy, reproduce bluefield"),
    ("nic.cores.private.", "the same"),
    ("nic.cores.machine.", "a card that is a machine: reproduce bluefield"),
    ("nic.cores.pcie.", "the same"),
    ("accel.controller.", "rings of requests: model's ring_server, reproduce rambda"),
    ("accel.ddr.", "the same"),
    ("accel.hbm.", "the same"),
    ("accel.cxl.", "the same"),
    ("nvm.", "the same"),
    ("ring_server.", "the same"),
    ("rack.cache_ways", "headers and payloads of many packets at once: model's component::dram_cache"),
    ("rack.min_rto", "many senders to one port: reproduce dfabric, figure 9e"),
    ("rack.window", "streams longer than it: the same"),
    ("rack.edges", "PageRank: reproduce dfabric, figure 9a"),
    ("rack.device_bandwidth", "streams that fill it: reproduce dfabric, figure 12"),
    ("host.jitter.", "tails: model's component::jitter, the runs of where"),
    ("nic.state.", "more queue pairs than a NIC has room for: where --connections"),
    ("accel.compute", "work that is serial and longer than its pipelined form"),
];

/// Counts and sizes stay whole.
fn settled(param: &Param, value: f64) -> f64 {
    if matches!(param.dimension, Dimension::Count | Dimension::Size) { value.round().max(1.0) } else { value }
}

#[test]
fn every_value_of_a_platform_drives_something() {
    let mut idle = Vec::new();
    for name in Platform::built_in() {
        let platform = Platform::load(name).unwrap();
        let (screen, cluster, racks) = (screened(&platform), replicated(&platform), racked(&platform));
        let elsewhere = |param: &&Param| ELSEWHERE.iter().any(|(path, _)| param.path.starts_with(path));
        let measured = |param: &&Param| param.status == SourceStatus::Measured;
        for param in platform.params.iter().filter(|param| !measured(param) && !elsewhere(param)) {
            // Nothing has no half: it becomes something.
            let factors = if param.value == 0.0 { [64.0, 4096.0] } else { [param.value * 0.5, param.value * 2.0] };
            let changed = factors.map(|value| platform.with(&[(&param.path, settled(param, value))]));
            let moves = changed
                .iter()
                .flatten()
                .any(|other| screened(other) != screen || replicated(other) != cluster || racked(other) != racks);
            if !moves {
                idle.push(format!("{name} {}", param.path));
            }
        }
    }
    assert!(idle.is_empty(), "{} values drive nothing:\n{}", idle.len(), idle.join("\n"));
}
