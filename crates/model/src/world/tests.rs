//! Pairs of modelled machines against sums by hand, and against themselves.

use std::sync::Arc;

use remora_kernel::{Call, Kernel, Memory, Status, crc64, op};
use remora_memory::Region;
use remora_store::{Place, list};

use super::*;
use crate::component::nic_state::Served;
use crate::time::Ps;

/// A platform whose software sees at once what has landed, so that sums come out to the picosecond.
fn platform(name: &str, values: &[(&str, f64)]) -> Platform {
    let platform = Platform::load(name).unwrap().with(&[("client.core.poll", 0.0), ("host.core.poll", 0.0)]).unwrap();
    platform.with(values).unwrap()
}

fn pair(platform: &Platform, placement: Placement) -> Pair {
    Pair::new(&PairSpec::new(platform, 0, 7).unwrap().serving(placement)).unwrap()
}

/// A list on the node; returns what looks its last key up, and the value.
fn load_list(pair: &mut Pair, len: u64) -> (Vec<u8>, Vec<u8>) {
    let values: Vec<[u8; 64]> = (0..len).map(|n| [n as u8 + 1; 64]).collect();
    let (elements, store): (Arc<Region>, Arc<Region>) = (pair.alloc(64 * len).unwrap(), pair.alloc(64 * len).unwrap());
    let place = |region: &Region| Place { va: region.va(), key: region.key() };
    let records = (0..len).map(|n| (n + 100, &values[n as usize][..]));
    let (list, image) = list::build(records, 64, place(&elements), place(&store));
    elements.write(elements.va(), &image.elements).unwrap();
    store.write(store.va(), &image.values).unwrap();
    (list.traversal_params(100 + len - 1).encode().to_vec(), values[len as usize - 1].to_vec())
}

/// The latency of one walk over a list.
fn walk(platform: &Platform, placement: Placement, len: u64) -> Ps {
    let mut pair = pair(platform, placement);
    let (params, value) = load_list(&mut pair, len);
    pair.submit(placement, op::TRAVERSAL, &params, 1).unwrap();
    let mut latency = None;
    let went_on = pair.poll(&mut |done| {
        assert_eq!((done.tag, done.status, done.reply), (1, Status::Ok, &value[..]));
        latency = Some(done.latency);
    });
    assert!(went_on.unwrap());
    latency.unwrap()
}

/// The latency of one verb.
fn verb(platform: &Platform, verb: RawVerb, len: u32) -> Ps {
    let mut pair = pair(platform, Placement::Nic);
    let region = pair.alloc(len.into()).unwrap();
    pair.submit_raw(verb, &region, len, 1).unwrap();
    let mut latency = None;
    assert!(pair.poll(&mut |done| latency = Some(done.latency)).unwrap());
    latency.unwrap()
}

/// Bytes a second of a stream of WRITEs of 64 KB.
fn stream(platform: &Platform) -> (f64, String) {
    let mut pair = pair(platform, Placement::Nic);
    let region = pair.alloc(1 << 16).unwrap();
    let (mut begun, mut ended) = (0, 0u32);
    while ended < 60 {
        while begun < 60 && begun - ended < 8 {
            pair.submit_raw(RawVerb::Write, &region, 1 << 16, 0).unwrap();
            begun += 1;
        }
        assert!(pair.poll(&mut |_| ended += 1).unwrap());
    }
    let usage = pair.usage()[0].clone();
    let binding = crate::resource::binding(&usage).unwrap();
    (60.0 * f64::from(1 << 16) / pair.now().as_secs(), format!("{} {:.1}", binding.name, binding.busy))
}

#[test]
fn every_place_of_every_platform_answers_rightly() {
    for (name, placements) in
        [("strom-10g", 3), ("strom-100g", 3), ("rambda", 4), ("bluefield1", 3), ("bluefield2", 3), ("dfabric", 3)]
    {
        let platform = platform(name, &[]);
        let all = super::placements(&platform);
        assert_eq!(all.len(), placements, "{name}");
        for placement in all {
            let times = [1, 4, 16].map(|len| walk(&platform, placement, len));
            assert!(times[0] < times[1] && times[1] < times[2], "{name} {placement:?}: {times:?}");
        }
    }
}

#[test]
fn a_read_is_the_sum_of_its_parts() {
    // StRoM at 10 Gbit/s. A command of 32 B comes in one TLP of 56 B: 300 ns for the 8 B of a doorbell, and 24 B more
    // at 7.87 GB/s, 3.0 ns. The request has 12 + 16 + 4 = 32 B, 4 words; its response 12 + 4 + 64 + 4 = 84 B, 11 words.
    // Cycles of 6.4 ns: 4 x 125 of depth, and each side holds each packet until it is whole: 2 x (4 + 11).
    // On the wire 32 + 66 and 84 + 66 B at 0.8 ns a byte, 520 ns each way. The DMA read takes 1500 ns, the write 400 ns.
    let cycles = (4.0 * 125.0 + 2.0 * 15.0) * 6.4;
    let by_hand = 300.0 + 24.0 / 7.87 + cycles + (98.0 + 150.0) * 0.8 + 2.0 * 520.0 + 1500.0 + 400.0;
    let model = verb(&platform("strom-10g", &[]), RawVerb::Read, 64).as_ns();
    assert!((model - by_hand).abs() < 0.1, "{model} ns, by hand {by_hand} ns");
}

#[test]
fn slower_hardware_costs_what_it_should() {
    let base = platform("strom-10g", &[]);
    let with = |path: &str, factor: f64| {
        let value = base.params.get(path).unwrap().value;
        base.with(&[(path, value * factor)]).unwrap()
    };
    let cost = |slow: &Platform, run: &dyn Fn(&Platform) -> Ps| (run(slow) - run(&base)).as_ns();
    let near = |ns: f64, by_hand: f64| assert!((ns - by_hand).abs() < 0.1, "{ns} ns, by hand {by_hand} ns");

    // A PCIe round trip of 1.5 us more: once for a verb, once for each element and the value.
    let pcie = with("host.pcie.read_latency", 2.0);
    near(cost(&pcie, &|p| verb(p, RawVerb::Read, 64)), 1500.0);
    near(cost(&pcie, &|p| verb(p, RawVerb::Write, 64)), 1500.0);
    near(cost(&pcie, &|p| walk(p, Placement::Client, 8)), 9.0 * 1500.0);
    near(cost(&pcie, &|p| walk(p, Placement::Nic, 8)), 9.0 * 1500.0);
    // Half the clock: the 530 cycles of a READ twice as long.
    let clock = with("nic.pipeline.clock", 0.5);
    near(cost(&clock, &|p| verb(p, RawVerb::Read, 64)), 530.0 * 6.4);
    // Half the link: 98 B and 150 B for 0.8 ns a byte more.
    let link = with("ethernet.rate", 0.5);
    near(cost(&link, &|p| verb(p, RawVerb::Read, 64)), 248.0 * 0.8);
    let (fast, slow) = (stream(&base), stream(&link));
    assert!((fast.0 / slow.0 - 2.0).abs() < 0.02, "{fast:?} {slow:?}");
    assert_eq!((&*fast.1, &*slow.1), ("wire 1.0", "wire 1.0"));
    // Memory twice as slow: each of 8 elements and the value is a miss of the host's core.
    let dram = with("host.dram.latency", 2.0);
    near(cost(&dram, &|p| walk(p, Placement::Host, 8)), 9.0 * 80.0);
    near(cost(&dram, &|p| walk(p, Placement::Nic, 8)), 0.0);
}

#[test]
fn a_switch_takes_its_latency_each_way() {
    let text = include_str!("../../../../platforms/strom-10g.toml");
    let switched = |nanoseconds: u32, buffer: u32| {
        let value = |value: u32, unit: &str| {
            let rest = format!("status = \"estimate\", range = [{value}, {value}], source = \"test\"");
            format!("{{ value = {value}, unit = \"{unit}\", {rest} }}")
        };
        let switch = format!("\n[switch]\nlatency = {}\nbuffer = {}\n", value(nanoseconds, "ns"), value(buffer, "B"));
        let polls = [("client.core.poll", 0.0), ("host.core.poll", 0.0)];
        Platform::parse("switched", &(text.to_string() + &switch)).unwrap().with(&polls).unwrap()
    };
    let direct = platform("strom-10g", &[]);
    for nanoseconds in [300, 600] {
        let switched = switched(nanoseconds, 65536);
        let added = |run: &dyn Fn(&Platform) -> Ps| (run(&switched) - run(&direct)).as_ns();
        let near = |ns: f64, trips: u32| assert_eq!(ns, f64::from(2 * trips * nanoseconds), "{trips} round trips");
        near(added(&|p| verb(p, RawVerb::Read, 64)), 1);
        near(added(&|p| verb(p, RawVerb::Write, 60_000)), 1);
        near(added(&|p| walk(p, Placement::Client, 8)), 9);
        near(added(&|p| walk(p, Placement::Nic, 8)), 1);
    }
    // A port without room for a frame holds its sender back, and loses nothing.
    let (little, much) = (switched(300, 64), switched(300, 65536));
    assert_eq!(verb(&little, RawVerb::Write, 60_000), verb(&much, RawVerb::Write, 60_000));
}

#[test]
fn an_element_costs_its_place_an_access() {
    // A PCIe read of 64 B, 10 cycles of the kernel for its step and one for a word of data.
    let strom = platform("strom-10g", &[]);
    let each = (walk(&strom, Placement::Nic, 17) - walk(&strom, Placement::Nic, 1)).as_ns() / 16.0;
    assert!((each - (1500.0 + 11.0 * 6.4)).abs() < 0.1, "{each} ns");
    // Over UPI twice: a read of 350 ns and 3 cycles of 2.5 ns for the step, one for the data.
    let rambda = platform("rambda", &[]);
    let each = (walk(&rambda, Placement::Accelerator, 17) - walk(&rambda, Placement::Accelerator, 1)).as_ns() / 16.0;
    assert!((each - (350.0 + 4.0 * 2.5)).abs() < 0.1, "{each} ns");
}

#[test]
fn payload_streams_reach_their_kernel() {
    let payload: Vec<u8> = (0..20_000u32).map(|n| ((n * n) >> 3) as u8).collect();
    for name in ["strom-100g", "bluefield2"] {
        let mut pair = pair(&platform(name, &[]), Placement::Nic);
        let memory = pair.client_memory(20_000).unwrap();
        memory.write(memory.va(), &payload).unwrap();
        pair.submit_stream(op::CHECKSUM, &[], (&memory, memory.va(), 20_000), 5).unwrap();
        let mut reply = None;
        assert!(pair.poll(&mut |done| reply = Some((done.status, done.reply.to_vec()))).unwrap());
        let expected = [20_000u64.to_le_bytes(), crc64(&payload).to_le_bytes()].concat();
        assert_eq!(reply, Some((Status::Ok, expected)), "{name}");
    }
}

/// Runs 200 walks with 16 of them under way, and keeps the trace.
fn traced(name: &str, placement: Placement, seed: u64) -> Vec<TraceEntry> {
    let spec = PairSpec::new(&Platform::load(name).unwrap(), 0, seed).unwrap().serving(placement);
    let mut pair = Pair::new(&spec).unwrap();
    let (params, _) = load_list(&mut pair, 6);
    pair.trace();
    let (mut begun, mut ended) = (0, 0);
    while ended < 200 {
        while begun < 200 && begun - ended < 16 {
            pair.submit(placement, op::TRAVERSAL, &params, 0).unwrap();
            begun += 1;
        }
        assert!(pair.poll(&mut |_| ended += 1).unwrap());
    }
    pair.trace()
}

#[test]
fn what_a_nic_has_no_room_for_delays_messages_and_puts_none_before_another_of_its_queue_pair() {
    for name in ["rambda", "bluefield2"] {
        let platform = Platform::load(name).unwrap();
        for placement in placements(&platform) {
            let mut last = Ps::ZERO;
            for queue_pairs in [10, 7_000, 100_000] {
                let served = Served { queue_pairs, regions: 1 };
                let mut spec = PairSpec::new(&platform, 0, 7).unwrap().serving(placement);
                spec.client = spec.client.keeping(&platform, served);
                spec.node = spec.node.keeping(&platform, served);
                for (ours, under_way) in [(1, 16), (1, 64), (16, 64)] {
                    let spec = PairSpec { queue_pairs: ours, ..spec.clone() };
                    let mut pair = Pair::new(&spec).unwrap();
                    let (params, _) = load_list(&mut pair, 2);
                    let (mut begun, mut ended) = (0, 0);
                    while ended < 1_000 {
                        while begun < 1_000 && begun - ended < under_way {
                            pair.submit(placement, op::TRAVERSAL, &params, 0).unwrap();
                            begun += 1;
                        }
                        assert!(pair.poll(&mut |_| ended += 1).unwrap());
                    }
                    let what = format!("{name} {placement}, {under_way} under way by {ours} of {queue_pairs}");
                    assert_eq!(pair.counts().retransmits, 0, "{what}");
                    if under_way == 16 {
                        assert!(pair.now() > last, "{what}: {:?} after {last:?}", pair.now());
                        last = pair.now();
                    }
                }
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    for (name, placement) in [
        ("strom-10g", Placement::Client),
        ("strom-10g", Placement::Nic),
        ("strom-10g", Placement::Host),
        ("rambda", Placement::Accelerator),
        ("bluefield2", Placement::Nic),
    ] {
        let (first, second) = (traced(name, placement, 3), traced(name, placement, 3));
        assert!(first == second, "{name} {placement:?}");
        assert!(first.len() > 2000 && first.iter().any(|entry| !entry.bytes.is_empty()));
        assert!(first != traced(name, placement, 4), "other keys: {name} {placement:?}");
    }
}

#[test]
fn a_lookup_that_fails_says_so_in_every_place() {
    let platform = platform("rambda", &[]);
    for placement in placements(&platform) {
        let mut pair = pair(&platform, placement);
        let (mut params, _) = load_list(&mut pair, 3);
        params[8..16].copy_from_slice(&9999u64.to_le_bytes());
        for (op, expected) in [(op::TRAVERSAL, Status::NotFound), (op::GET, Status::BadParams)] {
            pair.submit(placement, op, &params, 0).unwrap();
            let mut status = None;
            assert!(pair.poll(&mut |done| status = Some((done.status, done.reply.len()))).unwrap());
            assert_eq!(status, Some((expected, 0)), "{placement:?}");
        }
    }
}

/// Reads so many bytes from where its parameters say.
#[derive(Clone)]
struct ReadAll(usize);

impl Kernel for ReadAll {
    async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status {
        let number = |at: usize| u64::from_le_bytes(call.params[at..at + 8].try_into().unwrap());
        memory
            .read(number(0) as u32, number(8), &mut vec![0; self.0])
            .await
            .map_or(Status::AccessDenied, |()| Status::Ok)
    }
}

#[test]
fn a_core_reads_no_faster_than_its_misses_let_it_however_many_others_there_are() {
    // RAMBDA's 20 cores have 12 misses each. From memory, 85 ns a line, 16 KiB are 22 rounds of 12 lines; from the last-level
    // cache, 20 ns, as many.
    let read = |state: u64, bytes: usize| {
        let spec = PairSpec::new(&platform("rambda", &[]), state, 7).unwrap();
        let mut pair = Pair::with_kernels(&spec, ReadAll(bytes), &[0x100]).unwrap();
        let region = pair.alloc(1 << 14).unwrap();
        let params = [u64::from(region.key()), region.va()].map(u64::to_le_bytes).concat();
        pair.submit(Placement::Host, 0x100, &params, 0).unwrap();
        let mut latency = None;
        assert!(pair.poll(&mut |done| latency = Some((done.status, done.latency))).unwrap());
        assert_eq!(latency.unwrap().0, Status::Ok);
        latency.unwrap().1.as_ns()
    };
    for (state, each) in [(1 << 44, 85.0), (1, 20.0)] {
        let more = read(state, 1 << 14) - read(state, 64);
        let by_hand = (256.0 / 12.0 - 1.0) * each;
        assert!((more / by_hand - 1.0).abs() < 0.06, "{more} ns, by hand {by_hand} ns");
    }
}

/// Writes so many bytes to where its parameters say.
#[derive(Clone)]
struct WriteAll(usize);

impl Kernel for WriteAll {
    async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status {
        let number = |at: usize| u64::from_le_bytes(call.params[at..at + 8].try_into().unwrap());
        memory.write(number(0) as u32, number(8), &vec![1; self.0]).await.map_or(Status::AccessDenied, |()| Status::Ok)
    }
}

#[test]
fn what_a_core_changes_beyond_its_caches_memory_brings_and_takes_back() {
    // 100 calls write 16 KB each: all lines come from memory, of 35 GB/s, and go back.
    let spec = PairSpec::new(&platform("strom-10g", &[]), 1 << 44, 7).unwrap();
    let mut pair = Pair::with_kernels(&spec, WriteAll(1 << 14), &[0x100]).unwrap();
    let region = pair.alloc(1 << 14).unwrap();
    let params = [u64::from(region.key()), region.va()].map(u64::to_le_bytes).concat();
    for _ in 0..100 {
        pair.submit(Placement::Host, 0x100, &params, 0).unwrap();
        assert!(pair.poll(&mut |done| assert_eq!(done.status, Status::Ok)).unwrap());
    }
    let span = pair.now().as_secs();
    let memory = pair.usage()[1].iter().find(|usage| usage.name == "memory").unwrap().busy * span * 35e9;
    let moved = 100.0 * f64::from(1 << 14);
    assert!((memory / (2.0 * moved) - 1.0).abs() < 0.01, "{memory} B for {moved} written");
}

#[test]
fn a_call_to_cores_on_a_card_takes_the_cards_own_way_there_and_back() {
    // A posted write and half a look, then a doorbell and the fetch of the command: as for the same cores as a machine.
    let bluefield = platform("bluefield2", &[]);
    let way = |path: &str| bluefield.params.get(path).unwrap().value / 1e3;
    let pcie = |name: &str| way(&format!("nic.cores.pcie.{name}_latency"));
    let by_hand = pcie("write") + way("nic.cores.machine.poll") / 2.0 + pcie("mmio") + pcie("read");
    let none = ["write", "mmio", "read"].map(|name| format!("nic.cores.pcie.{name}_latency"));
    let none: Vec<(&str, f64)> =
        none.iter().map(|path| (&**path, 0.0)).chain([("nic.cores.machine.poll", 0.0)]).collect();
    let near = bluefield.with(&none).unwrap();
    let more = (walk(&bluefield, Placement::Nic, 4) - walk(&near, Placement::Nic, 4)).as_ns();
    assert!((more - by_hand).abs() < 0.1, "{more} ns, by hand {by_hand} ns");
    let host = [&bluefield, &near].map(|platform| walk(platform, Placement::Host, 4));
    assert_eq!(host[0], host[1]);
}
