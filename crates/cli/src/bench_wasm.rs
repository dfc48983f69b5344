//! `remora bench wasm`: kernels as WebAssembly beside native ones, and what a hostile one costs its neighbours.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use remora_kernel::{Call, HostMemory, Limits, Placement, Runner, Status, op};
use remora_lab::stats::{Latencies, median};
use remora_memory::{Access, Buffer, Pd, Registry};
use remora_real::{Client, ClientConfig, LinkKind, at_free_loopback, at_local};
use remora_store::Place;
use remora_store::hash::{self, Image, Table};
use remora_study::format::{rate, time};
use remora_study::machine::Machine;
use remora_wasm::{Isolation, KernelSet, ModuleLimits};
use serde_json::{Value, json};

use crate::child::ChildNode;
use crate::progress::{Display, stop_flag};
use crate::{Failure, args, print};

/// Options of `remora bench wasm`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  remora bench wasm
  remora bench wasm --table 256M --rounds 5 --json wasm.json")]
pub struct BenchWasm {
    /// Size of the hash table
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = args::size)]
    pub table: u64,
    /// Rounds, of which the median counts
    #[arg(long, value_name = "N", default_value = "7", value_parser = args::up_to(1..=1000))]
    pub rounds: u32,
    /// How long each measurement of a round runs
    #[arg(long, value_name = "TIME", default_value = "0.1", value_parser = args::seconds)]
    pub seconds: Duration,
    /// Seed of the table
    #[arg(long, value_name = "N", default_value = "42")]
    pub seed: u64,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Bytes of a value.
const VALUE: usize = 64;
/// Calls at once in a runner, and over a link when the rate is measured.
const IN_FLIGHT: usize = 16;
/// Calls that the hostile client keeps under way.
const HOSTILE: usize = 4;
/// What WebAssembly may add to an empty call, in nanoseconds, and what a GET may take of the native one's time.
const OVERHEAD_NS: f64 = 60.0;
const RATIO: f64 = 1.3;

/// The native figure and the module's, in nanoseconds a call.
struct Pair {
    what: &'static str,
    native: f64,
    wasm: f64,
    goal: Option<Goal>,
}

#[derive(Clone, Copy)]
enum Goal {
    More(f64),
    Times(f64),
}

impl Pair {
    fn met(&self) -> Option<bool> {
        self.goal.map(|goal| match goal {
            Goal::More(ns) => self.wasm - self.native <= ns,
            Goal::Times(times) => self.wasm / self.native <= times,
        })
    }
}

/// A neighbour's GETs beside another client's calls.
struct Neighbour {
    place: Placement,
    beside: &'static str,
    p50: f64,
    p99: f64,
    p999: f64,
    /// Calls a second of the other client.
    others: f64,
    /// How those ended.
    status: Option<Status>,
}

/// Measures and prints.
pub fn run(args: &BenchWasm) -> Result<(), Failure> {
    let display = Display::new(stop_flag());
    display.part("calls in this process", 0.0);
    let mut pairs = in_process(args, &display)?;
    let node = at_free_loopback(Ok)?;
    let child = ChildNode::start(node)?;
    let connect = |local| Client::connect(ClientConfig { link: Some(LinkKind::Shm), ..ClientConfig::new(node, local) });
    let (mut good, mut other) = (at_local(node, connect)?, at_local(node, connect)?);
    let gets = Gets::load(&mut good, args)?;
    display.part("GETs over shared memory", 0.3);
    pairs.extend(over_shm(args, &mut good, &gets, &display)?);
    display.part("a neighbour's GETs", 0.5);
    let neighbours = neighbours(args, &mut good, &mut other, &gets, &display)?;
    display.clear();
    drop(child);
    let text = table(args, &pairs, &neighbours);
    print(&text, &text);
    crate::bench::write_json(args.json.as_deref(), to_json(args, &pairs, &neighbours))
}

/// The modules: what they are called, and their text.
const GET: &str = include_str!("../../../kernels/get.wat");
const EMPTY: &str = r#"(module (memory (export "memory") 1) (global (export "params") i32 (i32.const 1024))
  (func (export "run") (param i32) (result i32) (i32.const 0)))"#;
const HOSTILE_MODULES: [(&str, &str); 4] = [
    ("spins to its fuel's end", "(loop $l (br $l)) (i32.const 0)"),
    ("recurses", "(call $run (local.get 0))"),
    ("traps", "(unreachable)"),
    (
        "asks for foreign keys",
        "(loop $l (br_if $l (i32.ne (call $read (local.tee 0 (i32.add (local.get 0) (i32.const 1))) (i64.const 4096)
           (i32.const 0) (i32.const 64)) (i32.const -3)))) (i32.const 20)",
    ),
];

fn module(text: &str) -> Result<Vec<u8>, Failure> {
    wat::parse_str(text).map_err(|e| Failure::Failed(format!("a module of this benchmark: {e}")))
}

fn hostile(body: &str) -> Result<Vec<u8>, Failure> {
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
    fn new(args: &BenchWasm, mut place: impl FnMut(usize) -> Result<Place, Failure>) -> Result<(Self, Image), Failure> {
        let records = (args.table / (VALUE + 64 * 2 / 3) as u64).max(1);
        let failed =
            |e: hash::TableError| Failure::Failed(format!("cannot build a table of {} MB: {e}", args.table >> 20));
        let mut builder = hash::TableBuilder::new(args.seed);
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

    fn load(client: &mut Client, args: &BenchWasm) -> Result<Self, Failure> {
        let mut regions = Vec::new();
        let (gets, image) = Self::new(args, |len| {
            let region = client.alloc(len as u64)?;
            let place = Place { va: region.va, key: region.key };
            regions.push(region);
            Ok(place)
        })?;
        client.write(&regions[0], 0, &image.entries)?;
        client.write(&regions[1], 0, &image.values)?;
        Ok(gets)
    }

    /// The key that call number `i` asks for, and its parameters.
    fn params(&self, i: u64) -> (u64, [u8; 28]) {
        let record = (u128::from(hash::mix(!i)) * u128::from(self.records)) >> 64;
        let key = hash::mix(record as u64);
        (key, self.table.get_params(key).encode())
    }
}

/// A node's runner without a network: nanoseconds a call.
fn in_process(args: &BenchWasm, display: &Display) -> Result<Vec<Pair>, Failure> {
    let registry = std::sync::Arc::new(Registry::new([7; 32]));
    let pd = registry.alloc_pd();
    let mut regions = Vec::new();
    let no_memory = |e: &dyn std::fmt::Display| Failure::Failed(format!("no memory for the table: {e}"));
    let (gets, image) = Gets::new(args, |len| {
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
        entry.map(|entry| entry.op).map_err(|e| Failure::Failed(e.to_string()))
    };
    let (get, empty) = (deploy("get", GET)?, deploy("empty", EMPTY)?);
    let mut node = remora_wasm::host_runner(kernels, registry.clone(), true, IN_FLIGHT, Limits::default());
    let nothing = |call: Call, memory: Option<HostMemory>| async move { (call, Status::Ok, memory) };
    let mut native = remora_kernel::host_runner_of(nothing, registry, true, IN_FLIGHT, Limits::default());

    let (mut empties, mut found) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        let time = args.seconds;
        empties.push((calls(&mut *native, pd, 0, time, None)?, calls(&mut *node, pd, empty, time, None)?));
        found
            .push((calls(&mut *node, pd, op::GET, time, Some(&gets))?, calls(&mut *node, pd, get, time, Some(&gets))?));
        if display.stopped() {
            return Err(Failure::Interrupted);
        }
    }
    Ok(vec![
        pair("empty, in this process", empties, Some(Goal::More(OVERHEAD_NS))),
        pair("GET, in this process", found, None),
    ])
}

/// Nanoseconds a call of a runner, with [`IN_FLIGHT`] at once.
fn calls(runner: &mut dyn Runner, pd: Pd, op: u64, time: Duration, gets: Option<&Gets>) -> Result<f64, Failure> {
    let mut idle: Vec<Call> = (0..IN_FLIGHT).map(|_| Call::default()).collect();
    let (mut started, mut finished, mut wrong, begin) = (0u64, 0u64, None, Instant::now());
    let ended = loop {
        // The clock is read now and then.
        let last = started.is_multiple_of(4096) && begin.elapsed() >= time;
        while !last && let Some(mut call) = idle.pop() {
            call.recycle(op, VALUE as u32);
            call.pd = Some(pd);
            if let Some(gets) = gets {
                let (key, params) = gets.params(started);
                call.tag = key;
                call.params.extend_from_slice(&params);
            }
            if let Err(call) = runner.start(call) {
                idle.push(call);
                break;
            }
            started += 1;
            if started.is_multiple_of(4096) {
                break;
            }
        }
        finished += runner.poll(&mut |call, status| {
            if status != Status::Ok || (gets.is_some() && call.reply.get(..8) != Some(&call.tag.to_le_bytes()[..])) {
                wrong = Some(status);
            }
            idle.push(call);
        }) as u64;
        if last && finished == started {
            break begin.elapsed();
        }
    };
    match wrong {
        None => Ok(ended.as_nanos() as f64 / finished as f64),
        Some(status) => Err(Failure::Failed(format!("a call of op-code {op:#x} went wrong: {status:?}"))),
    }
}

/// GETs on the node's NIC: latency one at a time, and time a call with many under way.
fn over_shm(args: &BenchWasm, client: &mut Client, gets: &Gets, display: &Display) -> Result<Vec<Pair>, Failure> {
    let get = client.deploy_kernel("bench-get", &module(GET)?, short(), Isolation::Reused, false)?.op;
    let (mut alone, mut many) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        let mut one = |op| {
            one_at_a_time(client, None, Placement::Nic, op, gets, args.seconds)
                .map(|(times, _)| times.quantile(0.5) as f64)
        };
        alone.push((one(op::GET)?, one(get)?));
        many.push((at_once(client, op::GET, gets, args.seconds)?, at_once(client, get, gets, args.seconds)?));
        if display.stopped() {
            return Err(Failure::Interrupted);
        }
    }
    Ok(vec![
        pair("GET on the NIC over shm, p50", alone, Some(Goal::Times(RATIO))),
        pair("GET on the NIC over shm, 16 at once", many, Some(Goal::Times(RATIO))),
    ])
}

/// Another client's calls: kernel, how many ended, and how the last one did.
struct Other<'a> {
    client: &'a mut Client,
    place: Placement,
    op: u64,
    params: [u8; 28],
    under_way: usize,
    ended: u64,
    status: Option<Status>,
}

impl Other<'_> {
    /// Keeps [`HOSTILE`] calls under way.
    fn turn(&mut self) -> Result<(), Failure> {
        while self.op != 0
            && self.under_way < HOSTILE
            && self.client.submit(self.place, self.op, &self.params, 0).is_ok()
        {
            self.under_way += 1;
        }
        let Self { client, under_way, ended, status, .. } = self;
        client.poll(&mut |_, how, _| {
            (*under_way, *ended, *status) = (*under_way - 1, *ended + 1, Some(how));
        })?;
        Ok(())
    }
}

/// Latencies of GETs one after the other, and the calls a second of the other client.
fn one_at_a_time(
    client: &mut Client,
    mut other: Option<&mut Other>,
    place: Placement,
    op: u64,
    gets: &Gets,
    time: Duration,
) -> Result<(Latencies, f64), Failure> {
    let (mut times, begin) = (Latencies::new(), Instant::now());
    while begin.elapsed() < time || times.count() < 16 {
        let (key, params) = gets.params(times.count());
        let (start, mut right) = (Instant::now(), None);
        client.submit(place, op, &params, 0).map_err(|_| Failure::Failed("no room for a call".into()))?;
        while right.is_none() {
            client.poll(&mut |_, status, reply| {
                right = Some(status == Status::Ok && reply.get(..8) == Some(&key.to_le_bytes()[..]));
            })?;
            if let Some(other) = &mut other {
                other.turn()?;
            }
        }
        times.record(start.elapsed());
        if right != Some(true) {
            return Err(Failure::Failed(format!("a GET of op-code {op:#x} brought a wrong value")));
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let others = other.map_or(0.0, |other| std::mem::take(&mut other.ended) as f64 / seconds);
    Ok((times, others))
}

/// Nanoseconds a GET with [`IN_FLIGHT`] under way.
fn at_once(client: &mut Client, op: u64, gets: &Gets, time: Duration) -> Result<f64, Failure> {
    let (mut sent, mut done, begin) = (0u64, 0u64, Instant::now());
    loop {
        let running = begin.elapsed() < time;
        while running
            && sent - done < IN_FLIGHT as u64
            && client.submit(Placement::Nic, op, &gets.params(sent).1, 0).is_ok()
        {
            sent += 1;
        }
        client.poll(&mut |_, _, _| done += 1)?;
        if !running && done == sent {
            return Ok(begin.elapsed().as_nanos() as f64 / done as f64);
        }
    }
}

/// A neighbour's GETs alone, beside harmless calls and beside hostile ones.
fn neighbours(
    args: &BenchWasm,
    good: &mut Client,
    bad: &mut Client,
    gets: &Gets,
    display: &Display,
) -> Result<Vec<Neighbour>, Failure> {
    let mut others = vec![("nobody", 0), ("native GETs", op::GET)];
    for (name, body) in HOSTILE_MODULES {
        let deployed = format!("bench-{}", others.len());
        let entry = bad.deploy_kernel(&deployed, &hostile(body)?, ModuleLimits::default(), Isolation::Reused, false)?;
        others.push((name, entry.op));
    }
    let mut rows = Vec::new();
    for place in [Placement::Nic, Placement::Host] {
        for &(beside, op) in &others {
            let (_, params) = gets.params(1);
            let mut other = Other { client: bad, place, op, params, under_way: 0, ended: 0, status: None };
            // All rounds together: the tail is what matters.
            let time = args.seconds * args.rounds;
            let (times, rate) = one_at_a_time(good, Some(&mut other), place, op::GET, gets, time)?;
            let status = other.status;
            other.op = 0;
            while other.under_way > 0 {
                other.turn()?;
            }
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|part| times.quantile(part) as f64);
            rows.push(Neighbour { place, beside, p50, p99, p999, others: rate, status });
            display.part("a neighbour's GETs", 0.5 + rows.len() as f64 / (4 * others.len()) as f64);
            if display.stopped() {
                return Err(Failure::Interrupted);
            }
        }
    }
    Ok(rows)
}

/// The medians of both.
fn pair(what: &'static str, rounds: Vec<(f64, f64)>, goal: Option<Goal>) -> Pair {
    let (native, wasm): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
    Pair { what, native: median(native), wasm: median(wasm), goal }
}

fn table(args: &BenchWasm, pairs: &[Pair], neighbours: &[Neighbour]) -> String {
    let mut out = format!(
        "Time of a call, {IN_FLIGHT} at once if not said otherwise, table of {} KB, median of {}\n",
        args.table >> 10,
        args.rounds
    );
    // Writing to a string does not fail.
    let _ = writeln!(out, "{:<36} {:>9} {:>12} {:>8} {:>7}  goal", "", "native", "WebAssembly", "more", "times");
    for pair in pairs {
        let goal = match (pair.goal, pair.met()) {
            (Some(goal), Some(met)) => {
                let what = match goal {
                    Goal::More(ns) => format!("{} more", time(ns)),
                    Goal::Times(times) => format!("{times} x"),
                };
                format!("at most {what}: {}", if met { "met" } else { "missed" })
            }
            _ => String::new(),
        };
        let (native, wasm) = (time(pair.native), time(pair.wasm));
        let (more, times) = (pair.wasm - pair.native, pair.wasm / pair.native);
        let line = format!("{:<36} {native:>9} {wasm:>12} {more:>5.0} ns {times:>7.2}  {goal}", pair.what);
        let _ = writeln!(out, "{}", line.trim_end());
    }
    let _ = writeln!(
        out,
        "\nA neighbour's native GETs, one at a time over shm, beside a client with {HOSTILE} calls of a kernel"
    );
    let _ = writeln!(
        out,
        "{:<6} {:<26} {:>9} {:>9} {:>9} {:>12}  ends with",
        "place", "that", "p50", "p99", "p99.9", "calls/s"
    );
    for row in neighbours {
        let [p50, p99, p999] = [row.p50, row.p99, row.p999].map(time);
        let status = row.status.map_or(String::new(), |status| format!("{status:?}"));
        let line = format!(
            "{:<6} {:<26} {p50:>9} {p99:>9} {p999:>9} {:>12}  {status}",
            row.place.name(),
            row.beside,
            rate(row.others)
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

fn to_json(args: &BenchWasm, pairs: &[Pair], neighbours: &[Neighbour]) -> Value {
    let pair =
        |pair: &Pair| json!({ "what": pair.what, "native_ns": pair.native, "wasm_ns": pair.wasm, "met": pair.met() });
    let neighbour = |row: &Neighbour| {
        json!({
            "place": row.place.name(), "beside": row.beside, "p50_ns": row.p50, "p99_ns": row.p99, "p999_ns": row.p999,
            "other_calls_per_s": row.others, "other_status": row.status.map(|status| format!("{status:?}")),
        })
    };
    json!({
        "format": "remora-bench-wasm/1",
        "version": env!("CARGO_PKG_VERSION"),
        "machine": Machine::describe(),
        "table_bytes": args.table,
        "rounds": args.rounds,
        "pairs": pairs.iter().map(pair).collect::<Vec<_>>(),
        "neighbours": neighbours.iter().map(neighbour).collect::<Vec<_>>(),
    })
}
