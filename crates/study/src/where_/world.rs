//! The operation as a kernel call in the modelled world: the real NIC engine and the real traversal kernel, on the
//! platform's hardware, over real bytes.
//!
//! A dependent chain of reads is a list: its elements are the accesses but the last, which is the value, and the reply. That
//! stands for operations that read lines one after the other and then a record, all alike often, from the host's memory, and
//! compute nothing; others are simulated by their way only.

use remora_kernel::{Placement, Status, TraversalParams, op};
use remora_model::component::nic_state::Served;
use remora_model::platform::{Core, Platform};
use remora_model::world::{self, PairSpec};
use serde::Serialize;

use super::Goal;
use super::operation::{Clients, Kind, Load, Memory, Operation};
use crate::calling::Calls;
use crate::calling::Checked;
use crate::connection::Storage;
use crate::modelled::{ModelError, Modelled, Offered};
use crate::operations::Lists;
use remora_store::Place as Stored;

/// What the world gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorldRun {
    /// The placement.
    pub place: Placement,
    /// Median latency in nanoseconds.
    pub p50_ns: u64,
    /// The 99th percentile in nanoseconds.
    pub p99_ns: u64,
    /// The 99.9th percentile in nanoseconds, if there are as many.
    pub p999_ns: Option<u64>,
    /// Operations a second.
    pub ops_per_s: f64,
    /// What was busiest.
    pub binding: String,
    /// Joules of client and node for each operation, if the platform's power is known.
    pub joules_per_op: Option<f64>,
    /// Events that it took.
    pub events: u64,
}

impl WorldRun {
    /// What is to be as small as can be; `None` if the run does not say: a rate at saturation needs as many under way.
    pub fn cost(&self, goal: Goal) -> Option<f64> {
        match goal {
            Goal::Latency => Some(self.p50_ns as f64),
            Goal::Energy => self.joules_per_op,
            Goal::Rate => None,
        }
    }
}

/// Bytes of the traversal kernel's elements.
const LINE: f64 = 64.0;
/// The most elements that the lists have together. Modelled memory is real memory; which loads hit is decided by the
/// state that the operation says it has.
const MOST_ELEMENTS: u64 = 1 << 14;
/// The longest list and the longest value.
const LONGEST: u64 = 256;
const LONGEST_VALUE: f64 = 61_440.0;
/// The most calls under way that a modelled client takes, and that a node takes of all.
const MOST_UNDER_WAY: u32 = 128;
const MOST_OF_ALL: u32 = 256;

/// The elements before the value, and the value's bytes, if the operation is such a chain.
fn chain(operation: &Operation) -> Option<(u64, u32)> {
    let chained = operation.accesses.iter().all(|access| access.kind == Kind::Read && access.dependent);
    let (last, before) = operation.accesses.split_last()?;
    let Operation { cycles, pipeline_cycles, skew, writes, .. } = *operation;
    let plain = [cycles, pipeline_cycles, skew, writes].iter().all(|it| *it == 0.0) && operation.memory != Memory::Near;
    if !(chained && plain)
        || operation.reply != last.bytes
        || last.bytes > LONGEST_VALUE
        || before.iter().any(|access| access.bytes > LINE)
    {
        return None;
    }
    // The last group's accesses but one are elements too, if they are lines.
    let (count, elements) = (last.count.round(), before.iter().map(|access| access.count).sum::<f64>().round());
    if count < 1.0 || (count > 1.0 && last.bytes > LINE) {
        return None;
    }
    let elements = (elements + count - 1.0) as u64;
    (1..=LONGEST).contains(&elements).then_some((elements, last.bytes.max(8.0) as u32))
}

/// Whether the world runs the operation on the platform, with all of its load.
pub fn runs(platform: &Platform, operation: &Operation) -> bool {
    is_whole(operation) && chain(operation).is_some() && platform.nic.is_some()
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
    // As many as calls use at once; the others only take room.
    let under_way = match operation.load {
        Load::Closed(under_way) => under_way.min(MOST_UNDER_WAY),
        Load::Open(_) => MOST_UNDER_WAY,
    };
    let queue_pairs = client.queue_pairs.min(under_way.into()) as u16;
    Ok(PairSpec { clients: machines as u16, client_skew: skew, queue_pairs, loss, ..spec })
}

/// What the NICs serve: a client's, the node's.
pub(super) fn served(clients: &Clients) -> [Served; 2] {
    let queue_pairs = clients.queue_pairs();
    let of_one = queue_pairs.div_ceil(u64::from(clients.machines.max(1)));
    [of_one, queue_pairs].map(|queue_pairs| Served { queue_pairs, regions: 1 })
}

/// Runs the operation in the modelled world; `None` if it is no chain of reads, or its load none that calls make by
/// themselves, or the platform's NIC is software.
pub fn run(
    platform: &Platform,
    operation: &Operation,
    place: Placement,
    (count, seed): (u64, u64),
) -> Option<Result<WorldRun, ModelError>> {
    let (elements, value) = chain(operation)?;
    platform.nic.as_ref()?;
    let slots = most(&operation.clients);
    let offered = match operation.load {
        Load::Closed(under_way) => Offered::InFlight(under_way.min(slots)),
        Load::Open(per_s) => Offered::Arriving { per_s, slots, seed },
    };
    Some(measure(platform, operation, place, ((elements, value), offered, count, seed)))
}

fn measure(
    platform: &Platform,
    operation: &Operation,
    place: Placement,
    ((elements, value), offered, count, seed): ((u64, u32), Offered, u64, u64),
) -> Result<WorldRun, ModelError> {
    let mut spec = spec(platform, operation, seed)?;
    spec.client = spec.client.disturbed(platform, seed);
    spec.node = spec.node.disturbed(platform, seed ^ 1);
    let mut modelled = Modelled::new(&spec, place)?;
    let wanted = (operation.state / LINE / elements as f64) as u64;
    let lists = wanted.clamp(64, (MOST_ELEMENTS / elements).max(64));
    let failed = |_| ModelError::World(world::WorldError::Missing { platform: platform.name.clone(), what: "memory" });
    let bytes = Lists::bytes(lists, elements);
    let (first, second) =
        (modelled.alloc(bytes).map_err(failed)?, modelled.alloc(bytes + u64::from(value)).map_err(failed)?);
    let stored = |region: &remora_real::RemoteRegion| Stored { va: region.va, key: region.key };
    let layout = Lists::new(stored(&first), stored(&second), lists, elements, seed);
    let (element_image, value_image) = layout.images();
    modelled.write(&first, 0, &element_image).map_err(failed)?;
    modelled.write(&second, 0, &value_image).map_err(failed)?;
    let mut chain = Chain { walks: Box::new(layout.walks(elements, seed)), value };
    let measured = modelled.measure_load(&mut chain, offered, count, &|| false)?;
    Ok(WorldRun {
        place,
        p50_ns: measured.p50_ns,
        p99_ns: measured.p99_ns,
        p999_ns: (measured.verified >= 1000).then_some(measured.p999_ns),
        ops_per_s: measured.ops_per_s,
        binding: measured.binding,
        joules_per_op: measured.joules_per_op,
        events: measured.events,
    })
}

/// Walks of the comparison's lists, with a value of another size.
struct Chain<'a> {
    walks: Box<dyn Calls + 'a>,
    value: u32,
}

impl Calls for Chain<'_> {
    fn op(&self) -> u64 {
        op::TRAVERSAL
    }

    fn next(&mut self) -> u64 {
        self.walks.next()
    }

    fn params(&self, id: u64, params: &mut Vec<u8>) {
        let start = params.len();
        self.walks.params(id, params);
        if let Ok(walk) = TraversalParams::decode(&params[start..]) {
            params.truncate(start);
            params.extend_from_slice(&TraversalParams { value_size: self.value, ..walk }.encode());
        }
    }

    /// The value's first line is what the list's image holds; what is longer runs on into the next one.
    fn check(&self, id: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        let line = LINE as usize;
        if reply.len() != self.value as usize {
            return Err(format!("{} bytes came instead of {} ({status:?})", reply.len(), self.value));
        }
        match reply.get(..line) {
            Some(first) => self.walks.check(id, status, first),
            None if status == Status::Ok => Ok(Checked::RIGHT),
            None => Err(format!("the walk ended with {status:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four elements and a value of a line, as this many clients ask for them.
    fn list(clients: Clients, load: Load) -> Operation {
        let text = "title = \"x\"\nrequest = \"36 B\"\nreply = \"64 B\"\nstate = \"1 MiB\"\n\
                    [[access]]\ncount = 5\nsize = \"64 B\"\n";
        Operation { clients, load, ..Operation::parse("x.toml", text).unwrap() }
    }

    fn at(platform: &Platform, place: Placement, operation: &Operation, count: u64) -> WorldRun {
        run(platform, operation, place, (count, 1)).expect("a chain of reads").unwrap()
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
        assert!(much.p99_ns > little.p99_ns && much.p50_ns > little.p50_ns, "{much:?} of {little:?}");
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
    fn chains_are_told_from_other_operations() {
        let parse = |reply: &str, text: &str| {
            let head = format!("title = \"x\"\nrequest = \"36 B\"\nreply = \"{reply}\"\nstate = \"1 MiB\"\n");
            Operation::parse("x.toml", &format!("{head}{text}")).unwrap()
        };
        let access = |count: &str, rest: &str| format!("[[access]]\ncount = {count}\n{rest}\n");
        let list = access("8", "size = \"64 B\"") + &access("1", "size = \"64 B\"");
        assert_eq!(chain(&parse("64 B", &list)), Some((8, 64)));
        let bucket = access("1.03", "size = \"64 B\"") + &access("1", "size = \"128 B\"");
        assert_eq!(chain(&parse("128 B", &bucket)), Some((1, 128)));
        assert_eq!(chain(&parse("64 B", &bucket)), None, "the walk replies with all of its value");
        assert_eq!(chain(&parse("64 B", &access("9", "size = \"64 B\""))), Some((8, 64)));
        assert_eq!(chain(&parse("512 B", &access("6", "size = \"512 B\""))), None, "nodes longer than a line");
        assert_eq!(chain(&parse("64 B", &access("9", "size = \"64 B\"\ndependent = false"))), None);
        assert_eq!(chain(&parse("8 B", &access("2", "size = \"8 B\"\nkind = \"atomic\""))), None);
        // What a walk of lists does not do: compute, ask for some items more often, read its own memory.
        for more in ["compute = \"9 cycles\"", "pipeline = \"9 cycles\"", "skew = 0.9", "memory = \"near\""] {
            assert_eq!(chain(&parse("64 B", &format!("{more}\n{list}"))), None, "{more}");
        }
    }
}
