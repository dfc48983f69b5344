//! Figures of the modelled world to the last digit, beside those that were written down: `figures.txt`.
//!
//! A change that is meant to move none of them moves none here. One that is meant to is made known by the difference
//! that `REMORA_FIGURES=write cargo test -p remora-model --test figures` leaves in that file.

use std::fmt::Write;
use std::sync::Arc;

use remora_kernel::hll::{HllParams, Sketch};
use remora_kernel::shuffle::{Partition, ShuffleParams};
use remora_kernel::{Call, Kernel, Memory, Placement, Status, op};
use remora_memory::Region;
use remora_model::platform::Platform;
use remora_model::world::{self, Pair, PairSpec, RawVerb};
use remora_store::{Place, list};

/// FNV-1a: a digest that every run and machine agrees on.
struct Digest(u64);

impl Digest {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// A closed loop of `count` operations: the first and the last latency, the end, events, bytes on the wire, and a digest
/// of all times, replies, packets and of how busy everything was.
fn figures(pair: &mut Pair, (in_flight, count): (u32, u32), submit: &mut dyn FnMut(&mut Pair)) -> String {
    let start = pair.now();
    let (events, before) = (pair.events(), pair.counts());
    let (mut digest, mut latencies, mut begun) = (Digest::new(), Vec::new(), 0);
    pair.reset_usage();
    pair.trace();
    while latencies.len() < count as usize {
        while begun < count && begun - (latencies.len() as u32) < in_flight {
            submit(pair);
            begun += 1;
        }
        let went_on = pair.poll(&mut |done| {
            latencies.push(done.latency);
            digest.add(&[done.status.code()]);
            digest.add(&done.latency.0.to_le_bytes());
            digest.add(done.reply);
        });
        assert!(went_on.unwrap(), "it stands still");
    }
    for entry in pair.trace() {
        digest.add(&entry.time.0.to_le_bytes());
        digest.add(&entry.bytes);
    }
    for usage in pair.usage().iter().flatten() {
        digest.add(usage.name.as_bytes());
        digest.add(&usage.busy.to_bits().to_le_bytes());
        digest.add(&[usage.waited.0, usage.longest.0, usage.served].map(u64::to_le_bytes).concat());
    }
    let joules = pair.energy(0).map_or(0.0, |energy| energy.client + energy.node);
    digest.add(&joules.to_bits().to_le_bytes());
    let counts = pair.counts();
    format!(
        "{} {} {} {} {} {} {:016x}",
        latencies[0].0,
        latencies[latencies.len() - 1].0,
        (pair.now() - start).0,
        pair.events() - events,
        counts.wire_bytes,
        counts.round_trips - before.round_trips,
        digest.0
    )
}

/// All platforms that a pair can be made of, and one with a switch.
fn platforms() -> Vec<Platform> {
    let mut all: Vec<_> = Platform::built_in().map(|name| Platform::load(name).unwrap()).collect();
    let value = |value: u32, unit: &str| {
        format!(
            "{{ value = {value}, unit = \"{unit}\", status = \"estimate\", range = [{value}, {value}], source = \"test\" }}"
        )
    };
    let switch = format!("\n[switch]\nlatency = {}\nbuffer = {}\n", value(300, "ns"), value(9000, "B"));
    let text = include_str!("../../../platforms/strom-100g.toml").to_string() + &switch;
    let mut switched = Platform::parse("switched", &text).unwrap();
    switched.name = "switched".into();
    all.push(switched);
    all
}

/// As `figures.txt` spells it.
fn name(placement: Placement) -> &'static str {
    match placement {
        Placement::Client => "client",
        Placement::Nic => "nic",
        Placement::Host => "host",
        Placement::Accelerator => "accel",
    }
}

/// Every kind of access that a kernel has, and counted instructions.
#[derive(Clone)]
struct Mixed;

impl Kernel for Mixed {
    async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status {
        let number = |at: usize| u64::from_le_bytes(call.params[at..at + 8].try_into().unwrap());
        let (key, va) = (number(0) as u32, number(8));
        let mut bytes = vec![0; 1500];
        if memory.read(key, va, &mut bytes).await.is_err() {
            return Status::AccessDenied;
        }
        memory.compute(1000).await;
        let done = (
            memory.write(key, va + 8192, &bytes[..300]).await,
            memory.write_streamed(key, va + 4096, &bytes).await,
            memory.fetch_add(key, va + 2048, 3).await,
            memory.compare_swap(key, va + 2056, 0, 7).await,
        );
        match done {
            (Ok(()), Ok(()), Ok(old), Ok(_)) => {
                call.reply.extend_from_slice(&old.to_le_bytes());
                Status::Ok
            }
            _ => Status::AccessDenied,
        }
    }
}

const MIXED: u64 = 0x100;

/// A list on the node; the parameters that look its last key up.
fn load_list(pair: &mut Pair, len: u64) -> Vec<u8> {
    let values: Vec<[u8; 64]> = (0..len).map(|n| [n as u8 + 1; 64]).collect();
    let (elements, store): (Arc<Region>, Arc<Region>) = (pair.alloc(64 * len).unwrap(), pair.alloc(64 * len).unwrap());
    let place = |region: &Region| Place { va: region.va(), key: region.key() };
    let records = (0..len).map(|n| (n + 100, &values[n as usize][..]));
    let (list, image) = list::build(records, 64, place(&elements), place(&store));
    elements.write(elements.va(), &image.elements).unwrap();
    store.write(store.va(), &image.values).unwrap();
    list.traversal_params(100 + len - 1).encode().to_vec()
}

fn values(count: u64) -> Vec<u8> {
    (0..count).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

/// Calls in every placement, one at a time and 16 at once.
fn calls(platform: &Platform, out: &mut String) {
    for placement in world::placements(platform) {
        let place = name(placement);
        // A state that does not fit in the cache is the host's concern alone.
        let states: &[u64] = if placement == Placement::Host { &[0, 1 << 30] } else { &[0] };
        for &state in states {
            let spec = PairSpec::new(platform, state, 7).unwrap().serving(placement);
            let mut pair = Pair::new(&spec).unwrap();
            for len in [1, 12] {
                let params = load_list(&mut pair, len);
                for load in [(1, 3), (16, 40)] {
                    let mut submit = |pair: &mut Pair| pair.submit(placement, op::TRAVERSAL, &params, 0).unwrap();
                    let came = figures(&mut pair, load, &mut submit);
                    let _ = writeln!(out, "{} {place} state {state} list {len} x{}: {came}", platform.name, load.0);
                }
            }
            let mut pair = Pair::with_kernels(&spec, Mixed, &[MIXED]).unwrap();
            let region = pair.alloc(16384).unwrap();
            let params = [u64::from(region.key()), region.va()].map(u64::to_le_bytes).concat();
            for load in [(1, 3), (16, 40)] {
                let mut submit = |pair: &mut Pair| pair.submit(placement, MIXED, &params, 0).unwrap();
                let came = figures(&mut pair, load, &mut submit);
                let _ = writeln!(out, "{} {place} state {state} mixed x{}: {came}", platform.name, load.0);
            }
        }
    }
}

/// Kernels that read payload streams, wherever the NIC lets them run, with and without a sketch in the way of WRITEs.
fn streams(platform: &Platform, out: &mut String) {
    let mut places = world::placements(platform);
    places.retain(|place| *place != Placement::Client);
    for placement in places {
        let place = name(placement);
        let spec = PairSpec { rpc_place: placement, ..PairSpec::new(platform, 0, 7).unwrap() };
        let mut pair = Pair::new(&spec).unwrap();
        let count = 6000;
        let to = pair.alloc(8 * 8 * 1024).unwrap();
        let partition = |n: u64| Partition { va: to.va() + n * 8192, values: 1024 };
        let shuffle = ShuffleParams { bits: 3, hashed: true, key: to.key() };
        let shuffle = shuffle.encode(&(0..8).map(partition).collect::<Vec<_>>());
        let hll = HllParams { lg_k: 12, want_image: false, payload_is_image: false, registers: None }.encode();
        let from = pair.client_memory(8 * count).unwrap();
        from.write(from.va(), &values(count)).unwrap();
        for (kernel, op, params) in [
            ("checksum", op::CHECKSUM, vec![]),
            ("shuffle", op::SHUFFLE, shuffle),
            ("hll", op::HYPERLOGLOG, hll.to_vec()),
        ] {
            for load in [(1, 2), (4, 6)] {
                let bytes = 8 * count as u32;
                let mut submit =
                    |pair: &mut Pair| pair.submit_stream(op, &params, (&from, from.va(), bytes), 0).unwrap();
                let came = figures(&mut pair, load, &mut submit);
                let _ = writeln!(out, "{} {place} {kernel} x{}: {came}", platform.name, load.0);
            }
        }
    }
}

fn verbs(platform: &Platform, out: &mut String) {
    for (verb, len, load) in [
        (RawVerb::Read, 64, (1, 4)),
        (RawVerb::Read, 64, (32, 100)),
        (RawVerb::Read, 60_000, (4, 8)),
        (RawVerb::Write, 64, (1, 4)),
        (RawVerb::Write, 64, (32, 100)),
        (RawVerb::Write, 60_000, (4, 8)),
        (RawVerb::PingPong, 64, (1, 4)),
        (RawVerb::PingPong, 4096, (1, 4)),
    ] {
        let mut pair = Pair::new(&PairSpec::new(platform, 0, 7).unwrap()).unwrap();
        let region = pair.alloc(len.into()).unwrap();
        let mut submit = |pair: &mut Pair| pair.submit_raw(verb, &region, len, 0).unwrap();
        let came = figures(&mut pair, load, &mut submit);
        let _ = writeln!(out, "{} {verb:?} {len} x{}: {came}", platform.name, load.0);
    }
    let mut pair = Pair::new(&PairSpec::new(platform, 0, 7).unwrap()).unwrap();
    pair.set_tap(Sketch::new(12).ok());
    let (from, to) = (pair.client_memory(40_000).unwrap(), pair.alloc(40_000).unwrap());
    from.write(from.va(), &values(5000)).unwrap();
    let mut submit = |pair: &mut Pair| pair.submit_write((&from, from.va(), 40_000), (&to, to.va()), 0).unwrap();
    let came = figures(&mut pair, (2, 6), &mut submit);
    let estimate = pair.tap().map_or(0.0, Sketch::estimate);
    let _ = writeln!(out, "{} tapped 40000 x2: {came} {estimate}", platform.name);
}

#[test]
fn every_figure_is_what_it_was() {
    let mut out = String::new();
    for platform in platforms() {
        calls(&platform, &mut out);
        streams(&platform, &mut out);
        verbs(&platform, &mut out);
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/figures.txt");
    if std::env::var("REMORA_FIGURES").is_ok_and(|how| how == "write") {
        std::fs::write(file, &out).unwrap();
    }
    let written = std::fs::read_to_string(file).unwrap();
    for (now, then) in out.lines().zip(written.lines()) {
        assert_eq!(now, then, "first and last latency, end, events, wire bytes, round trips, digest");
    }
    assert_eq!(out.lines().count(), written.lines().count());
}
