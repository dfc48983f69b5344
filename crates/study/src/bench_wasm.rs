//! Kernels as WebAssembly beside native ones, and what a hostile one costs its neighbours.

mod loops;

use std::borrow::Cow;
use std::cell::Cell;
use std::time::Duration;

use remora_kernel::{Call, HostMemory, Limits, Placement, Status, op};
use remora_lab::stats::{Latencies, median};
use remora_memory::{Access, Buffer, Registry};
use remora_real::{Client, ClientConfig, LinkKind, at_free_loopback, at_local};
use remora_store::Place;
use remora_store::hash::{self, Image, Table};
use remora_wasm::{Isolation, KernelSet, ModuleLimits};

use crate::calling::Calling;
use crate::compare::{Progress, Watch};
use crate::load::{self, Until};
use crate::nodes::NodeProcess;
use crate::{MeasuredRows, StudyError};
use loops::{Anything, Beside, GetCalls, Other};

/// Bytes of a value.
const VALUE: usize = 64;
/// Calls at once in a runner, and over a link when the rate is measured.
pub const IN_FLIGHT: u32 = 16;
/// Calls that the hostile client keeps under way.
pub const HOSTILE: u32 = 4;
/// What WebAssembly may add to an empty call, in nanoseconds, and what a GET may take of the native one's time: alone, and
/// among others, whose waits for memory are to overlap.
const OVERHEAD_NS: f64 = 60.0;
const RATIO: f64 = 1.3;
const RATIO_OF_MANY: f64 = 1.2;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct WasmBench {
    /// Bytes of the hash table.
    pub table: u64,
    /// Rounds, of which the median counts.
    pub rounds: u32,
    /// How long each measurement of a round runs.
    pub time: Duration,
    /// Seed of the table.
    pub seed: u64,
}

/// What came.
pub enum WasmRow {
    /// Calls of a native kernel and of a module.
    Pair(WasmPair),
    /// A client's GETs beside another client's calls.
    Neighbour(Neighbour),
}

/// How many rows there are: pairs, and neighbours in two places.
const ROWS: usize = 4 + 2 * (2 + HOSTILE_MODULES.len());

/// The native figure and the module's, in nanoseconds a call.
pub struct WasmPair {
    /// Which calls.
    pub what: &'static str,
    /// The native figure.
    pub native: f64,
    /// The module's.
    pub wasm: f64,
    /// How much longer the module may take.
    pub goal: Option<WasmGoal>,
}

/// How much longer a module may take.
#[derive(Clone, Copy)]
pub enum WasmGoal {
    /// So many nanoseconds.
    More(f64),
    /// So many times as long.
    Times(f64),
}

impl WasmPair {
    /// The medians of both.
    fn new(what: &'static str, rounds: Vec<(f64, f64)>, goal: Option<WasmGoal>) -> Self {
        let (native, wasm): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
        Self { what, native: median(native), wasm: median(wasm), goal }
    }

    /// Whether the goal is met, if there is one.
    pub fn met(&self) -> Option<bool> {
        self.goal.map(|goal| match goal {
            WasmGoal::More(ns) => self.wasm - self.native <= ns,
            WasmGoal::Times(times) => self.wasm / self.native <= times,
        })
    }
}

/// A neighbour's GETs beside another client's calls. Latencies in nanoseconds.
pub struct Neighbour {
    /// Where both run.
    pub place: Placement,
    /// What the other client calls.
    pub beside: &'static str,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// Calls a second of the other client.
    pub others: f64,
    /// How those ended.
    pub status: Option<Status>,
}

impl WasmBench {
    /// Measures everything.
    pub fn run(&self, watch: &dyn Watch) -> MeasuredRows<WasmRow> {
        MeasuredRows::by(ROWS, |rows| self.measure(rows, watch))
    }

    fn measure(&self, rows: &mut Vec<WasmRow>, watch: &dyn Watch) -> Result<(), StudyError> {
        let part = |what, part| watch.progress(Progress::Part { what, part });
        part("calls in this process", 0.0);
        rows.extend(in_process(self, watch)?.map(WasmRow::Pair));
        let node = at_free_loopback(Ok)?;
        let _child = NodeProcess::start(node)?;
        let connect =
            |local| Client::connect(ClientConfig { link: Some(LinkKind::Shm), ..ClientConfig::new(node, local) });
        let (mut good, mut other) = (at_local(node, connect)?, at_local(node, connect)?);
        let gets = Gets::load(&mut good, self)?;
        part("GETs over shared memory", 0.3);
        rows.extend(over_shm(self, &mut good, &gets, watch)?.map(WasmRow::Pair));
        part("a neighbour's GETs", 0.5);
        neighbours(self, (&mut good, &mut other), &gets, rows, watch)
    }
}

/// The modules: what they are called, and their text.
const GET: &str = include_str!("../../../kernels/get.wat");
const EMPTY: &str = r#"(module (memory (export "memory") 1) (global (export "params") i32 (i32.const 1024))
  (func (export "run") (param i32) (result i32) (i32.const 0)))"#;
const HOSTILE_MODULES: [(&str, &str); 3] = [
    ("spins to its fuel's end", "(loop $l (br $l)) (i32.const 0)"),
    ("recurses", "(call $run (local.get 0))"),
    ("traps", "(unreachable)"),
];

/// The module of a text of this crate's.
pub(crate) fn module(text: &str) -> Result<Vec<u8>, StudyError> {
    let module = remora_wasm::compiler::module_of_text(text.as_bytes()).map(Cow::into_owned);
    module.map_err(|e| StudyError::Failed(format!("a module of this benchmark: {e}")))
}

fn hostile(body: &str) -> Result<Vec<u8>, StudyError> {
    module(&format!(
        r#"(module (import "remora" "read" (func $read (param i32 i64 i32 i32) (result i32)))
          (memory (export "memory") 1) (global (export "params") i32 (i32.const 1024))
          (func $run (export "run") (param i32) (result i32) {body}))"#
    ))
}

/// Short enough to run without being suspended.
fn short() -> ModuleLimits {
    ModuleLimits { fuel: 5_000, ..ModuleLimits::default() }
}

/// A hash table in somebody's memory.
struct Gets {
    table: Table,
    records: u64,
}

impl Gets {
    /// Builds a table and puts its two parts where `put` finds room for them.
    fn new(
        bench: &WasmBench,
        mut place: impl FnMut(usize) -> Result<Place, StudyError>,
    ) -> Result<(Self, Image), StudyError> {
        let records = (bench.table / (VALUE + 64 * 2 / 3) as u64).max(1);
        let failed =
            |e: hash::TableError| StudyError::Failed(format!("cannot build a table of {} MB: {e}", bench.table >> 20));
        let mut builder = hash::TableBuilder::new(bench.seed);
        for i in 0..records {
            let mut value = [0; VALUE];
            value[..8].copy_from_slice(&hash::mix(i).to_le_bytes());
            builder.insert(hash::mix(i), &value).map_err(failed)?;
        }
        let layout = builder.build().map_err(failed)?;
        let (entries, values) = (place(layout.entries_bytes())?, place(layout.values_bytes())?);
        let (table, image) = layout.place(entries, values);
        Ok((Gets { table, records }, image))
    }

    fn load(client: &mut Client, bench: &WasmBench) -> Result<Self, StudyError> {
        let mut regions = Vec::new();
        let (gets, image) = Self::new(bench, |len| {
            let region = client.alloc(len as u64)?;
            let place = Place { va: region.va, key: region.key };
            regions.push(region);
            Ok(place)
        })?;
        client.write(&regions[0], 0, &image.entries)?;
        client.write(&regions[1], 0, &image.values)?;
        Ok(gets)
    }

    /// The key that call number `i` asks for.
    fn key(&self, i: u64) -> u64 {
        let record = (u128::from(hash::mix(!i)) * u128::from(self.records)) >> 64;
        hash::mix(record as u64)
    }

    /// It, and the call's parameters.
    fn params(&self, i: u64) -> (u64, [u8; 28]) {
        let key = self.key(i);
        (key, self.table.get_params(key).encode())
    }
}

/// A node's runner without a network: nanoseconds a call.
fn in_process(bench: &WasmBench, watch: &dyn Watch) -> Result<[WasmPair; 2], StudyError> {
    let registry = std::sync::Arc::new(Registry::new([7; 32]));
    let pd = registry.alloc_pd();
    let mut regions = Vec::new();
    let no_memory = |e: &dyn std::fmt::Display| StudyError::Failed(format!("no memory for the table: {e}"));
    let (gets, image) = Gets::new(bench, |len| {
        let buffer = Buffer::anonymous(len).map_err(|e| no_memory(&e))?;
        let region = registry.register(pd, &buffer, 0, len, None, Access::REMOTE_READ).map_err(|e| no_memory(&e))?;
        let place = Place { va: region.va(), key: region.key() };
        regions.push(region);
        Ok(place)
    })?;
    for (region, bytes) in regions.iter().zip([&image.entries, &image.values]) {
        region.write(region.va(), bytes).map_err(|e| no_memory(&e))?;
    }
    let kernels = KernelSet::default();
    let deploy = |name: &str, text: &str| {
        let entry = kernels.deploy(name, &module(text)?, short(), Isolation::Reused);
        entry.map(|entry| entry.op).map_err(|e| StudyError::Failed(e.to_string()))
    };
    let (get, empty) = (deploy("get", GET)?, deploy("empty", EMPTY)?);
    let mut node = remora_wasm::host_runner(kernels, registry.clone(), true, IN_FLIGHT as usize, Limits::default());
    let nothing = |call: Call, memory: Option<HostMemory>| async move { (call, Status::Ok, memory) };
    let mut native = remora_kernel::host_runner_of(nothing, registry, true, IN_FLIGHT as usize, Limits::default());

    let (mut empties, mut found) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        let time = bench.time;
        let by_itself = loops::run(&mut *native, (pd, 0), time, None, watch)?;
        let mut of = |op, gets| loops::run(&mut *node, (pd, op), time, gets, watch);
        empties.push((by_itself, of(empty, None)?));
        found.push((of(op::GET, Some(&gets))?, of(get, Some(&gets))?));
        if watch.stop() {
            return Err(StudyError::Interrupted);
        }
    }
    Ok([
        WasmPair::new("empty, in this process", empties, Some(WasmGoal::More(OVERHEAD_NS))),
        WasmPair::new("GET, in this process", found, None),
    ])
}

/// GETs on the node's NIC: latency one at a time, and time a call with many under way.
fn over_shm(
    bench: &WasmBench,
    client: &mut Client,
    gets: &Gets,
    watch: &dyn Watch,
) -> Result<[WasmPair; 2], StudyError> {
    let get = client.deploy_kernel("bench-get", &module(GET)?, short(), Isolation::Reused, false)?.op;
    let (mut alone, mut many) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        let mut one = |op| {
            let (times, _) = one_at_a_time(client, None, Placement::Nic, (op, gets), bench.time, watch)?;
            Ok::<_, StudyError>(times.quantile(0.5) as f64)
        };
        alone.push((one(op::GET)?, one(get)?));
        let mut many_of = |op| at_once(client, (op, gets), bench.time, watch);
        many.push((many_of(op::GET)?, many_of(get)?));
        if watch.stop() {
            return Err(StudyError::Interrupted);
        }
    }
    Ok([
        WasmPair::new("GET on the NIC over shm, p50", alone, Some(WasmGoal::Times(RATIO))),
        WasmPair::new("GET on the NIC over shm, 16 at once", many, Some(WasmGoal::Times(RATIO_OF_MANY))),
    ])
}

/// Latencies of GETs one after the other, and how long they took in all.
fn one_at_a_time(
    client: &mut Client,
    other: Option<&mut Other<'_>>,
    place: Placement,
    (op, gets): (u64, &Gets),
    time: Duration,
    watch: &dyn Watch,
) -> Result<(Latencies, Duration), StudyError> {
    let mut latencies = Latencies::new();
    let mut tally = |_, since, at| latencies.record(load::duration(at - since));
    let (mut caller, mut calls) = (Beside { client, other }, GetCalls::new(op, gets));
    let calling = Calling::new(&mut caller, &mut calls, place);
    let ran = calling.run(1, Until::time(time), &mut tally, &|| watch.stop())?;
    Ok((latencies, load::duration(ran.elapsed)))
}

/// Nanoseconds a GET with [`IN_FLIGHT`] under way.
fn at_once(
    client: &mut Client,
    (op, gets): (u64, &Gets),
    time: Duration,
    watch: &dyn Watch,
) -> Result<f64, StudyError> {
    let mut calls = GetCalls::new(op, gets);
    let calling = Calling::new(client, &mut calls, Placement::Nic).untimed();
    let ran = calling.run(IN_FLIGHT, Until::time(time), &mut |_, _, _| {}, &|| watch.stop())?;
    Ok(ran.elapsed.as_ns() / ran.ended as f64)
}

/// A neighbour's GETs alone, beside harmless calls and beside hostile ones.
fn neighbours(
    bench: &WasmBench,
    (good, bad): (&mut Client, &mut Client),
    gets: &Gets,
    rows: &mut Vec<WasmRow>,
    watch: &dyn Watch,
) -> Result<(), StudyError> {
    let mut others = vec![("nobody", None), ("native GETs", Some(op::GET))];
    for (name, body) in HOSTILE_MODULES {
        let deployed = format!("bench-{}", others.len());
        let entry = bad.deploy_kernel(&deployed, &hostile(body)?, ModuleLimits::default(), Isolation::Reused, false)?;
        others.push((name, Some(entry.op)));
    }
    let before = rows.len();
    for place in [Placement::Nic, Placement::Host] {
        for &(beside, op) in &others {
            let status = Cell::new(None);
            let mut calls = Anything { op: op.unwrap_or(0), params: gets.params(1).1, status: &status };
            let mut other = op.map(|_| Other::new(bad, &mut calls, place));
            // All rounds together: the tail is what matters.
            let time = bench.time * bench.rounds;
            let (times, took) = one_at_a_time(good, other.as_mut(), place, (op::GET, gets), time, watch)?;
            let (ended, status) = (other.as_ref().map_or(0, |other| other.ended), status.get());
            if let Some(other) = &mut other {
                other.finish()?;
            }
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|part| times.quantile(part) as f64);
            let others_per_s = ended as f64 / took.as_secs_f64();
            rows.push(WasmRow::Neighbour(Neighbour { place, beside, p50, p99, p999, others: others_per_s, status }));
            let part = 0.5 + (rows.len() - before) as f64 / (4 * others.len()) as f64;
            watch.progress(Progress::Part { what: "a neighbour's GETs", part });
            if watch.stop() && rows.len() < ROWS {
                return Err(StudyError::Interrupted);
            }
        }
    }
    Ok(())
}
