//! The operation as a kernel's call in the modelled world: the real NIC engine on the platform's hardware, and a kernel that
//! makes the operation's accesses in their order and computes what it says ([`OperationKernel`]).
//!
//! Which loads hit is decided by the state that the operation says it has, as the modelled machines' memory is real memory and
//! has a part of it. What there is no way to run is said by [`runs`].

use remora_kernel::Placement;
use remora_model::component::nic_state::Served;
use remora_model::platform::{Core, Platform};
use remora_model::world::{self, PairSpec, ProcessorKind};
use serde::Serialize;

use super::Goal;
use super::kernel::{OP, OperationCalls, OperationKernel};
use super::operation::{Clients, Load, Memory, Operation};
use crate::connection::Storage;
use crate::modelled::{ModelError, Modelled, Offered};

/// What the world gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorldRun {
    /// The placement.
    pub place: Placement,
    /// Median latency in nanoseconds.
    pub p50_ns: u64,
    /// The 99th percentile in nanoseconds, if there are a hundred.
    pub p99_ns: Option<u64>,
    /// The 99.9th percentile in nanoseconds, if there are a thousand.
    pub p999_ns: Option<u64>,
    /// Operations a second.
    pub ops_per_s: f64,
    /// What was busiest.
    pub binding: String,
    /// Joules of client and node for each operation, if the platform's power is known.
    pub joules_per_op: Option<f64>,
    /// Events that it took.
    pub events: u64,
    /// More operations came than the place serves: ever more wait, and latencies say how long one looked.
    pub fell_behind: bool,
}

impl WorldRun {
    /// What is to be as small as can be, of a run with the load of [`loaded`]; `None` if the platform does not say what that takes.
    pub fn cost(&self, goal: Goal) -> Option<f64> {
        match goal {
            Goal::Latency if self.fell_behind => Some(f64::INFINITY),
            Goal::Latency => Some(self.p50_ns as f64),
            Goal::Energy => self.joules_per_op,
            Goal::Rate => Some(1e9 / self.ops_per_s),
        }
    }
}

/// The most bytes that calls access at random.
const MOST_STATE: f64 = (1 << 20) as f64;
/// The most accesses of an operation, the most bytes of each, and of all: beyond, a few calls would take seconds.
const MOST_ACCESSES: f64 = 512.0;
const LONGEST: f64 = 65_536.0;
const MOST_BYTES: f64 = 4e6;
/// The longest reply, and the longest request that a host takes.
const LONGEST_REPLY: f64 = 61_440.0;
const LONGEST_REQUEST: f64 = 4_000.0;
/// Who holds an item from a read to a write is not kept from others by any lock: with so many on one item it does not matter.
const HELD: f64 = 0.01;
/// The most calls under way that a modelled client takes, and that a node takes of all.
const MOST_UNDER_WAY: u32 = 128;
const MOST_OF_ALL: u32 = 256;
/// Accesses that the kernels of a client have under way together at most.
const AT_ONCE: u32 = 384;

/// Whether it is an operation that the kernel can make.
fn is_runnable(operation: &Operation) -> bool {
    let Operation { accesses, request, reply, writes, memory, .. } = operation;
    let bytes: f64 = accesses.iter().map(|access| access.count * access.bytes).sum();
    *memory != Memory::Near
        && operation.count() <= MOST_ACCESSES
        && accesses.iter().all(|access| access.bytes <= LONGEST)
        && bytes <= MOST_BYTES
        && *reply <= LONGEST_REPLY
        && *request <= LONGEST_REQUEST
        && writes * operation.hottest() <= HELD
}

/// The operation under the load of which a goal speaks: its own, or as much as there may be.
pub fn loaded(operation: &Operation, goal: Goal) -> Operation {
    let mut loaded = operation.clone();
    if goal == Goal::Rate {
        loaded.load = Load::Closed(most(&operation.clients));
    }
    loaded
}

/// Whether the world runs the operation on the platform, with all of its load.
pub fn runs(platform: &Platform, operation: &Operation) -> bool {
    is_whole(operation) && is_runnable(operation) && platform.nic.is_some()
}

/// Whether the world runs all of the operation's load.
pub fn is_whole(operation: &Operation) -> bool {
    match operation.load {
        Load::Closed(under_way) => under_way <= most(&operation.clients),
        Load::Open(_) => true,
    }
}

/// The most calls under way: of one client, and of all.
pub(super) fn most(clients: &Clients) -> u32 {
    let busiest = clients.shares().first().copied().unwrap_or(1.0);
    ((f64::from(MOST_UNDER_WAY) / busiest) as u32).min(MOST_OF_ALL)
}

/// The machines: threads, clients and packets lost as the operation says.
pub(super) fn spec(platform: &Platform, operation: &Operation, seed: u64) -> Result<PairSpec, world::WorldError> {
    let Clients { machines, threads, skew, loss, .. } = operation.clients;
    let mut spec = PairSpec::new(platform, operation.state as u64, seed)?;
    let core = &platform.client;
    spec.client.core = Core { cores: u64::from(threads).clamp(1, core.cores), ..core.clone() };
    let [client, node] = served(&operation.clients);
    spec.client = spec.client.keeping(platform, client);
    spec.node = spec.node.keeping(platform, node);
    if operation.memory == Memory::Far {
        let none = || world::WorldError::Missing { platform: platform.name.clone(), what: "second socket" };
        spec.node.far = Some(platform.sockets.clone().ok_or_else(none)?);
    }
    // As many as calls of one client use at once; the others only take room.
    let all = match operation.load {
        Load::Closed(under_way) => under_way.min(most(&operation.clients)),
        Load::Open(_) => most(&operation.clients),
    };
    let busiest = operation.clients.shares().first().copied().unwrap_or(1.0);
    let under_way = (f64::from(all) * busiest).ceil().clamp(1.0, f64::from(MOST_UNDER_WAY));
    let queue_pairs = client.queue_pairs.min(under_way as u64) as u16;
    Ok(PairSpec { clients: machines as u16, client_skew: skew, queue_pairs, loss, ..spec })
}

/// What the NICs serve: a client's, the node's.
pub(super) fn served(clients: &Clients) -> [Served; 2] {
    let queue_pairs = clients.queue_pairs();
    let of_one = queue_pairs.div_ceil(u64::from(clients.machines.max(1)));
    [of_one, queue_pairs].map(|queue_pairs| Served { queue_pairs, regions: 1 })
}

/// Runs the operation in the modelled world; `None` if that cannot be, or the platform's NIC is software.
pub fn run(
    platform: &Platform,
    operation: &Operation,
    place: Placement,
    (count, seed): (u64, u64),
) -> Option<Result<WorldRun, ModelError>> {
    platform.nic.as_ref().filter(|_| is_runnable(operation))?;
    let slots = most(&operation.clients);
    let offered = match operation.load {
        Load::Closed(under_way) => Offered::InFlight(under_way.min(slots)),
        Load::Open(per_s) => Offered::Arriving { per_s, slots, seed },
    };
    Some(measure(platform, operation, place, (offered, count, seed)))
}

/// The machines for an operation in a place, and what it computes there in counted instructions.
fn machines(
    platform: &Platform,
    operation: &Operation,
    place: Placement,
    seed: u64,
) -> Result<(PairSpec, f64), world::WorldError> {
    let mut spec = spec(platform, operation, seed)?.disturbed(platform, seed);
    for machine in [&mut spec.client, &mut spec.node] {
        // An instruction is a cycle.
        (machine.work.core_instruction, machine.work.logic_instruction) = (Some(1.0), Some(1.0));
        machine.work.staged = true;
    }
    if operation.skew > 0.0 {
        // Popular items are there more often: of a cache the part that they fill stands for it.
        let part = |size: u64| (operation.hit_ratio(size as f64) * operation.state) as u64;
        spec.node.cache.size = part(spec.node.cache.size);
        if let Some(accel) = &mut spec.node.accel {
            accel.cache_size = part(accel.cache_size);
        }
    }
    let computes = match spec.node.processor(place) {
        ProcessorKind::HostCore | ProcessorKind::NicCore => operation.cycles,
        ProcessorKind::Pipeline => operation.pipeline_cycles,
        // Step by step, or as a data path where the operation says what that takes: what is faster.
        ProcessorKind::Accelerator => spec.node.accel.as_ref().map_or(0.0, |accel| {
            let serial = operation.cycles / spec.node.core.clock / accel.compute * accel.clock;
            serial.min(operation.pipeline_cycles)
        }),
    };
    Ok((spec, computes))
}

fn measure(
    platform: &Platform,
    operation: &Operation,
    place: Placement,
    (offered, count, seed): (Offered, u64, u64),
) -> Result<WorldRun, ModelError> {
    let (spec, computes) = machines(platform, operation, place, seed)?;
    let under_way = match offered {
        Offered::InFlight(under_way) => under_way,
        Offered::Arriving { .. } => MOST_UNDER_WAY,
    };
    let kernel = OperationKernel::new(operation, computes.round() as u64, (AT_ONCE / under_way.max(1)).max(1));
    let mut modelled = Modelled::with_kernel(&spec, place, (kernel.clone(), OP))?;
    let failed = |_| ModelError::World(world::WorldError::Missing { platform: platform.name.clone(), what: "memory" });
    let state = (operation.state.min(MOST_STATE) as u64).next_multiple_of(64);
    let longest = operation.accesses.iter().map(|access| access.bytes).fold(0.0, f64::max) as u64;
    let region = modelled.alloc(state + longest).map_err(failed)?;
    kernel.set_state(&region, state);
    let (params, reply) = (operation.request.ceil() as usize, operation.reply.ceil() as usize);
    let mut calls = OperationCalls { params, reply, next: seed };
    let measured = modelled.measure_load(&mut calls, offered, count, &|| false)?;
    Ok(WorldRun {
        place,
        p50_ns: measured.p50_ns,
        p99_ns: (measured.verified >= 100).then_some(measured.p99_ns),
        p999_ns: (measured.verified >= 1000).then_some(measured.p999_ns),
        ops_per_s: measured.ops_per_s,
        binding: measured.binding,
        joules_per_op: measured.joules_per_op,
        events: measured.events,
        fell_behind: measured.fell_behind,
    })
}

#[cfg(test)]
mod tests {
    use remora_model::platform::Dimension;

    use super::*;

    /// Four elements and a value of a line, as this many clients ask for them.
    fn list(clients: Clients, load: Load) -> Operation {
        let text = "title = \"x\"\nrequest = \"36 B\"\nreply = \"64 B\"\nstate = \"1 MiB\"\n\
                    [[access]]\ncount = 5\nsize = \"64 B\"\n";
        Operation { clients, load, ..Operation::parse("x.toml", text).unwrap() }
    }

    fn at(platform: &Platform, place: Placement, operation: &Operation, count: u64) -> WorldRun {
        run(platform, operation, place, (count, 1)).expect("it runs").unwrap()
    }

    #[test]
    fn more_queue_pairs_than_a_nic_has_room_for_cost_reads_over_pcie() {
        for (name, under_way) in [("rambda", 1), ("rambda", 16), ("bluefield2", 16), ("bluefield2", 64)] {
            let platform = Platform::load(name).unwrap();
            for place in world::placements(&platform) {
                let found = [64, 5_000, 5_600, 7_000, 100_000].map(|connections| {
                    let clients = Clients { connections: Some(connections), ..Clients::default() };
                    let operation = list(clients, Load::Closed(under_way));
                    let engine = at(&platform, place, &operation, 500 + 30 * u64::from(under_way));
                    let screen = super::super::rank(&platform, &operation, &super::super::WhereOptions::default());
                    let screen = screen.iter().find(|candidate| candidate.place == place).unwrap();
                    let off = [screen.p50_ns / engine.p50_ns as f64, screen.ops_per_s / engine.ops_per_s];
                    let what = format!("{name} {place}, {under_way} under way by {connections}");
                    assert!(off.iter().all(|off| (off - 1.0).abs() < 0.15), "{what}: {off:?} of {engine:?}");
                    (engine.p50_ns as f64, engine.ops_per_s)
                });
                assert_eq!(found[0], found[1], "2 MiB hold thousands");
                // Where a core is what limits them, misses only fill its queue.
                let grow = |pair: &[(f64, f64)]| pair[1].0 > 0.98 * pair[0].0 && pair[1].1 < 1.01 * pair[0].1;
                assert!(found.windows(2).all(grow), "{name} {place}, {under_way} under way: {found:?}");
                assert!(under_way == 64 || found[4].0 > 1.1 * found[0].0, "{name} {place}: {found:?}");
            }
        }
    }

    #[test]
    fn data_of_the_other_socket_cost_whoever_reads_them_a_hop_an_access() {
        let platform = Platform::load("rambda").unwrap();
        let hop = platform.sockets.as_ref().unwrap().hop as f64 / 1e3;
        for place in world::placements(&platform) {
            let of = |memory| {
                // Too much for any cache.
                let operation =
                    Operation { memory, state: (1u64 << 40) as f64, ..list(Clients::default(), Load::Closed(1)) };
                let engine = at(&platform, place, &operation, 1_000).p50_ns as f64;
                let screen = super::super::rank(&platform, &operation, &super::super::WhereOptions::default());
                let screen = screen.iter().find(|candidate| candidate.place == place).unwrap().p50_ns;
                assert!((screen / engine - 1.0).abs() < 0.05, "{place}: {screen} of {engine}");
                engine
            };
            let more = of(Memory::Far) - of(Memory::Host);
            // Five accesses, each with the link's transfer of its lines; the client's pool looks at 40 ns' grain.
            assert!((more / (5.0 * hop) - 1.0).abs() < 0.2, "{place}: {more} ns of 5 hops of {hop}");
        }
        assert_eq!(super::super::missing(&platform, &list(Clients::default(), Load::Closed(1)), Goal::Latency), None);
        let alone = Platform::load("strom-10g").unwrap();
        let far = Operation { memory: Memory::Far, ..list(Clients::default(), Load::Closed(1)) };
        assert!(super::super::missing(&alone, &far, Goal::Latency).is_some_and(|why| why.contains("[host.sockets]")));
        let error = run(&alone, &far, Placement::Client, (1, 1)).unwrap().unwrap_err().to_string();
        assert!(error.contains("second socket"), "{error}");
    }

    #[test]
    fn a_client_has_as_many_queue_pairs_as_its_own_calls_use() {
        let platform = Platform::load("rambda").unwrap();
        let pairs = |machines, skew, load| {
            let clients = Clients { machines, threads: 8, skew, connections: Some(1_000_000), ..Clients::default() };
            spec(&platform, &list(clients, load), 1).unwrap().queue_pairs
        };
        assert_eq!([1, 2, 64, 1024].map(|machines| pairs(machines, 0.0, Load::Closed(128))), [128, 64, 2, 1]);
        assert_eq!([1, 2, 64, 1024].map(|machines| pairs(machines, 0.0, Load::Open(1e6))), [128, 128, 4, 1]);
        // Of unequal ones the busiest has most of them all.
        assert!(pairs(64, 3.0, Load::Closed(128)) > 64);
    }

    #[test]
    fn many_clients_ask_for_more_than_one_and_less_if_one_has_most_of_it() {
        let platform = Platform::load("rambda").unwrap();
        let rate = |machines, skew| {
            let clients = Clients { machines, skew, ..Clients::default() };
            at(&platform, Placement::Client, &list(clients, Load::Closed(120)), 3_000).ops_per_s
        };
        let (one, eight, skewed) = (rate(1, 0.0), rate(8, 0.0), rate(8, 2.5));
        assert!(eight > 1.3 * one && skewed < eight, "{one} of one, {eight} of eight, {skewed} of unequal ones");
    }

    #[test]
    fn lost_packets_are_sent_again_and_only_the_tail_sees_them() {
        let platform = Platform::load("rambda").unwrap();
        let with = |loss| {
            let clients = Clients { loss, ..Clients::default() };
            at(&platform, Placement::Nic, &list(clients, Load::Closed(1)), 2_000)
        };
        let (whole, lossy) = (with(0.0), with(0.002));
        assert!((lossy.p50_ns as f64 / whole.p50_ns as f64 - 1.0).abs() < 0.05, "{lossy:?} of {whole:?}");
        assert!(lossy.p999_ns.unwrap() > 3 * whole.p999_ns.unwrap(), "{lossy:?} of {whole:?}");
    }

    #[test]
    fn what_comes_at_a_rate_waits_where_it_is_near_what_is_served() {
        let platform = Platform::load("rambda").unwrap();
        let alone = at(&platform, Placement::Nic, &list(Clients::default(), Load::Closed(1)), 1_000);
        let most = at(&platform, Placement::Nic, &list(Clients::default(), Load::Closed(120)), 4_000).ops_per_s;
        let at_part = |part| {
            let operation = list(Clients::default(), Load::Open(part * most));
            at(&platform, Placement::Nic, &operation, 4_000)
        };
        let (little, much) = (at_part(0.1), at_part(0.95));
        assert!((little.ops_per_s / (0.1 * most) - 1.0).abs() < 0.05, "{little:?} of {most}");
        assert!((little.p50_ns as f64 / alone.p50_ns as f64 - 1.0).abs() < 0.05, "{little:?} of {alone:?}");
        // Of fewer than a hundred the slowest says nothing of one in a hundred.
        let few = at(&platform, Placement::Nic, &list(Clients::default(), Load::Closed(1)), 99);
        assert_eq!((few.p99_ns, alone.p99_ns.is_some()), (None, true));
        assert!(much.p99_ns > little.p99_ns && much.p50_ns > little.p50_ns, "{much:?} of {little:?}");
    }

    #[test]
    fn what_comes_faster_than_it_is_served_waits_for_ever_and_that_is_said() {
        let platform = Platform::load("rambda").unwrap();
        for place in world::placements(&platform) {
            let most = at(&platform, place, &list(Clients::default(), Load::Closed(120)), 4_000).ops_per_s;
            let waits = |part, count| {
                let run = at(&platform, place, &list(Clients::default(), Load::Open(part * most)), count);
                (run.fell_behind, run.cost(Goal::Latency))
            };
            for count in [500, 4_000] {
                let (fell_behind, cost) = waits(0.85, count);
                assert!(!fell_behind && cost.is_some_and(f64::is_finite), "{place}, {count} calls");
                assert_eq!(waits(1.5, count), (true, Some(f64::INFINITY)), "{place}, {count} calls");
            }
        }
        // Of a packet in a hundred lost, the screen knows nothing.
        let clients = Clients { loss: 0.01, ..Clients::default() };
        let operation = list(clients, Load::Open(4e5));
        let options = super::super::WhereOptions { points: 4, flips: 0, ..Default::default() };
        let answer = super::super::decide(&platform, &operation, &options).unwrap();
        let behind = |place| answer.world.iter().any(|run| run.place == place && run.fell_behind);
        assert!(behind(Placement::Client), "{answer:?}");
        assert!(answer.line.contains("carr"), "{}", answer.line);
    }

    #[test]
    fn hardware_at_half_the_pace_takes_twice_as_long_and_does_half_as_much() {
        for name in ["strom-10g", "rambda", "bluefield2"] {
            let platform = Platform::load(name).unwrap();
            let slower: Vec<(&str, f64)> = platform
                .params
                .iter()
                .filter_map(|param| match param.dimension {
                    Dimension::Time => Some((&*param.path, 2.0 * param.value)),
                    Dimension::Bandwidth | Dimension::Rate => Some((&*param.path, param.value / 2.0)),
                    _ => None,
                })
                .collect();
            let slow = platform.with(&slower).unwrap();
            for place in world::placements(&platform) {
                for under_way in [1, 16, 64] {
                    let operation = list(Clients::default(), Load::Closed(under_way));
                    let [fast, slow] = [&platform, &slow].map(|platform| at(platform, place, &operation, 1_000));
                    let times = [slow.p50_ns as f64 / fast.p50_ns as f64, fast.ops_per_s / slow.ops_per_s];
                    let what = format!("{name} {place}, {under_way} under way: {times:?}");
                    // How far ahead a NIC sends has a part that does not follow: acknowledgements of many merge a little otherwise.
                    assert!(times.iter().all(|times| (times - 2.0).abs() < 0.08), "{what}");
                }
            }
        }
    }

    #[test]
    fn interrupts_make_the_tail_and_not_the_median() {
        let rambda = Platform::load("rambda").unwrap();
        let operation = list(Clients::default(), Load::Closed(1));
        let with = |every_us: f64| {
            let platform = rambda.with(&[("host.jitter.interrupt_every", every_us * 1e6)]).unwrap();
            at(&platform, Placement::Client, &operation, 2_000)
        };
        let (seldom, often) = (with(1e6), with(300.0));
        assert!((often.p50_ns as f64 / seldom.p50_ns as f64 - 1.0).abs() < 0.02, "{often:?} of {seldom:?}");
        assert!(often.p999_ns.unwrap() > seldom.p999_ns.unwrap() + 3_000, "{often:?} of {seldom:?}");
    }

    #[test]
    fn what_cannot_be_run_is_told_from_what_can() {
        let parse = |head: &str, text: &str| {
            let head = format!("title = \"x\"\nrequest = \"36 B\"\nstate = \"1 MiB\"\n{head}\n");
            Operation::parse("x.toml", &format!("{head}[[access]]\n{text}\n")).unwrap()
        };
        let reply = "reply = \"64 B\"";
        for text in [
            "count = 8\nsize = \"64 B\"",
            "count = 80\nsize = \"4 KiB\"\ndependent = false",
            "count = 1\nsize = \"8 B\"\nkind = \"atomic\"",
        ] {
            for more in ["", "compute = \"9 cycles\"", "skew = 0.9", "writes = 0.1"] {
                assert!(is_runnable(&parse(&format!("{reply}\n{more}"), text)), "{more} {text}");
            }
        }
        for (head, text) in [
            ("memory = \"near\"", "count = 1\nsize = \"64 B\""),
            ("skew = 2.0\nwrites = 0.5", "count = 1\nsize = \"64 B\""),
            ("", "count = 600\nsize = \"64 B\""),
            ("", "count = 2\nsize = \"128 KiB\""),
            ("", "count = 100\nsize = \"64 KiB\""),
        ] {
            assert!(!is_runnable(&parse(&format!("{reply}\n{head}"), text)), "{head} {text}");
        }
        assert!(!is_runnable(&parse("reply = \"1 MiB\"", "count = 1\nsize = \"64 B\"")));
    }

    /// What an operation has beside a chain of reads costs what it costs by the screen, which shares nothing with the engine but the
    /// platform's values.
    #[test]
    fn all_kinds_of_operations_cost_what_the_screen_says() {
        let template = |name: &str| Operation::load(std::path::Path::new(name)).unwrap();
        for name in ["strom-10g", "rambda", "bluefield2"] {
            let platform = Platform::load(name).unwrap();
            for template in ["btree", "counter", "embedding", "get", "scan"].map(template) {
                for load in [Load::Closed(1), template.load] {
                    let operation = Operation { load, ..template.clone() };
                    let ranking = super::super::rank(&platform, &operation, &super::super::WhereOptions::default());
                    for place in world::placements(&platform) {
                        let screen = ranking.iter().find(|candidate| candidate.place == place).unwrap();
                        let engine = at(&platform, place, &operation, 600);
                        let off =
                            [screen.p50_ns / engine.p50_ns as f64 - 1.0, screen.ops_per_s / engine.ops_per_s - 1.0];
                        let what = format!("{name} {place} {}, {load:?}: {off:.2?}", operation.title);
                        println!("{what}");
                        // Rows and blocks at once fill queues in bursts, which the screen does not know.
                        let most = if operation.accesses.iter().all(|access| access.dependent) { 0.12 } else { 0.2 };
                        assert!(off.iter().all(|off| off.abs() < most), "{what} of {engine:?}");
                    }
                }
            }
        }
    }
}
