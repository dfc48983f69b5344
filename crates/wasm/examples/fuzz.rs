//! Random modules with random arguments: nothing crashes, and no access goes where the caller may not.
//!
//! ```text
//! cargo run --release -p remora-wasm --example fuzz -- --seconds 600 [--seed N]
//! ```
//!
//! Each module has a seed, which is printed if it fails: `--seed N --modules 1` tries that one again.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use arbitrary::Unstructured;
use remora_kernel::{Call, Fault, HostMemory, Immediate, Kernel, Limits, Memory};
use remora_memory::{Access, Buffer, Pd, Region, Registry};
use remora_wasm::{Isolation, KernelSet, ModuleLimits};
use wasm_smith::Module;

/// Bytes of each region.
const LEN: usize = 4096;
/// What regions hold that nobody may write.
const UNTOUCHED: u8 = 0xa5;
/// Room for replies.
const REPLY: u32 = 256;

/// What a generated module imports and exports.
const SHAPE: &str = r#"(module
  (import "remora" "read" (func (param i32 i64 i32 i32) (result i32)))
  (import "remora" "write" (func (param i32 i64 i32 i32) (result i32)))
  (import "remora" "compare_swap" (func (param i32 i64 i64 i64 i32) (result i32)))
  (import "remora" "fetch_add" (func (param i32 i64 i64 i32) (result i32)))
  (import "remora" "next_chunk" (func (param i32 i32) (result i32)))
  (import "remora" "reply" (func (param i32 i32) (result i32)))
  (import "remora" "params" (func (param i32 i32 i32) (result i32)))
  (import "remora" "log" (func (param i32 i32) (result i32)))
  (memory (export "memory") 2 16)
  (func (export "body") (param i32) (result i32) unreachable))"#;

/// Instead of the imports: the same with arguments that often make sense. Keys are picked from a table at 512.
const SENSIBLE: [&str; 8] = [
    "(func (param i32 i64 i32 i32) (result i32) KEY VA (i32.and (local.get 2) (i32.const 0xffff))
       (i32.and (local.get 3) (i32.const 0x1ff)) call 0)",
    "(func (param i32 i64 i32 i32) (result i32) KEY VA (i32.and (local.get 2) (i32.const 0xffff))
       (i32.and (local.get 3) (i32.const 0x1ff)) call 1)",
    "(func (param i32 i64 i64 i64 i32) (result i32) KEY VA (local.get 2) (local.get 3)
       (i32.and (local.get 4) (i32.const 0xffff)) call 2)",
    "(func (param i32 i64 i64 i32) (result i32) KEY VA (local.get 2)
       (i32.and (local.get 3) (i32.const 0xffff)) call 3)",
    "(func (param i32 i32) (result i32) (i32.and (local.get 0) (i32.const 0xffff))
       (i32.and (local.get 1) (i32.const 0xff)) call 4)",
    "(func (param i32 i32) (result i32) (i32.and (local.get 0) (i32.const 0xffff))
       (i32.and (local.get 1) (i32.const 0x1f)) call 5)",
    "(func (param i32 i32 i32) (result i32) (i32.and (local.get 0) (i32.const 0x1fff))
       (i32.and (local.get 1) (i32.const 0xffff)) (i32.and (local.get 2) (i32.const 0x1fff)) call 6)",
    "(func (param i32 i32) (result i32) (i32.and (local.get 0) (i32.const 0xffff))
       (i32.and (local.get 1) (i32.const 0xff)) call 7)",
];
const KEY: &str = "(i32.load offset=512 (i32.and (local.get 0) (i32.const 28)))";
const VA: &str = "(i64.and (local.get 1) (i64.const 0x13f8))";

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// The memory of a place, and all that was done with it.
struct Watched<'a> {
    memory: &'a HostMemory,
    /// What the caller holds: keys and rights.
    held: &'a [(u32, Access)],
    /// Whether accesses can be done at once.
    near: bool,
    granted: &'a Cell<u64>,
    denied: &'a Cell<u64>,
}

impl Watched<'_> {
    fn check<T>(&self, key: u32, va: u64, len: usize, need: Access, result: Result<T, Fault>) -> Result<T, Fault> {
        if result.is_err() {
            self.denied.set(self.denied.get() + 1);
            return result;
        }
        self.granted.set(self.granted.get() + 1);
        let held = self.held.iter().any(|&(held, rights)| held == key && rights.contains(need));
        let inside = va.checked_add(len as u64).is_some_and(|end| end <= LEN as u64);
        // As with verbs, an access to nothing may be anywhere.
        assert!(len == 0 || held && inside, "{need:?} of {len} bytes at {va:#x} under key {key:#x}");
        result
    }
}

impl Memory for Watched<'_> {
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        let result = self.memory.read(key, va, out).await;
        self.check(key, va, out.len(), Access::REMOTE_READ, result)
    }
    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        let result = self.memory.write(key, va, data).await;
        self.check(key, va, data.len(), Access::REMOTE_WRITE, result)
    }
    async fn compare_swap(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        let result = self.memory.compare_swap(key, va, expect, new).await;
        self.check(key, va, 8, Access::REMOTE_ATOMIC, result)
    }
    async fn fetch_add(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        let result = self.memory.fetch_add(key, va, n).await;
        self.check(key, va, 8, Access::REMOTE_ATOMIC, result)
    }
    fn earn(&self, bytes: usize) {
        self.memory.earn(bytes);
    }
    fn set_limits(&self, limits: Limits) {
        self.memory.set_limits(limits);
    }
    fn immediate(&self) -> Option<&dyn Immediate> {
        self.near.then_some(self)
    }
}

impl Immediate for Watched<'_> {
    fn read_now(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        let result = self.memory.read_now(key, va, out);
        self.check(key, va, out.len(), Access::REMOTE_READ, result)
    }
    fn write_now(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        let result = self.memory.write_now(key, va, data);
        self.check(key, va, data.len(), Access::REMOTE_WRITE, result)
    }
    fn compare_swap_now(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        let result = self.memory.compare_swap_now(key, va, expect, new);
        self.check(key, va, 8, Access::REMOTE_ATOMIC, result)
    }
    fn fetch_add_now(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        let result = self.memory.fetch_add_now(key, va, n);
        self.check(key, va, 8, Access::REMOTE_ATOMIC, result)
    }
}

/// A caller's memory, and memory that is none of its.
struct World {
    registry: Arc<Registry>,
    pd: Pd,
    held: Vec<(u32, Access)>,
    /// Regions that no call may change, and a key that leads nowhere.
    others: Vec<Arc<Region>>,
    wrong: u32,
    kernels: KernelSet,
    granted: Cell<u64>,
    denied: Cell<u64>,
    /// How modules and calls ended.
    counts: BTreeMap<String, u64>,
}

impl World {
    fn new() -> Self {
        let registry = Arc::new(Registry::new([1; 32]));
        let (pd, foreign) = (registry.alloc_pd(), registry.alloc_pd());
        let region = |pd, access| {
            let buffer = Buffer::from_boxed(vec![UNTOUCHED; LEN].into());
            registry.register(pd, &buffer, 0, LEN, Some(0), access).expect("a region")
        };
        let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let rights = [Access::all(), Access::REMOTE_READ, write, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC];
        let own = rights.map(|access| region(pd, access));
        let (local, other) = (region(pd, Access::LOCAL_WRITE), region(foreign, Access::all()));
        World {
            held: own.iter().map(|region| (region.key(), region.access())).collect(),
            others: vec![own[1].clone(), local, other],
            wrong: own.iter().fold(1, |key, region| key ^ region.key()),
            registry,
            pd,
            kernels: KernelSet::default(),
            granted: Cell::new(0),
            denied: Cell::new(0),
            counts: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += 1;
    }

    /// One module: made, deployed, called a few times near and far.
    fn module(&mut self, seed: u64) {
        let mut random = Random(seed);
        let Some(bytes) = self.generate(&mut random) else { return self.count("not generated") };
        let fuel = [5_000, 40_000][random.below(2) as usize];
        let access = Limits { steps: random.below(1000) as u32, bytes: random.below(1 << 16) };
        let limits = ModuleLimits { fuel, memory: 1 << 20, access };
        let isolation = [Isolation::Reused, Isolation::Fresh][random.below(2) as usize];
        let op = match self.kernels.deploy("random", &bytes, limits, isolation) {
            Ok(entry) => entry.op,
            Err(error) => {
                let why = error.to_string();
                return self.count(format!("refused: {}", why.rsplit(": ").next().unwrap_or_default()));
            }
        };
        self.count("deployed");
        for _ in 0..4 {
            let len = if random.below(8) == 0 { 5000 } else { 64 };
            let params = {
                let len = random.below(len) as usize;
                random.bytes(len)
            };
            let payload = {
                let len = random.below(300) as usize;
                random.bytes(len)
            };
            let near = random.below(2) == 0;
            let status = self.call(op, &params, &payload, near);
            self.count(format!("call: {status}"));
        }
        for region in &self.others {
            let mut bytes = vec![0; LEN];
            region.read(0, &mut bytes).expect("its own bytes");
            assert!(bytes.iter().all(|&byte| byte == UNTOUCHED), "a region was written that may not be");
        }
    }

    fn call(&self, op: u64, params: &[u8], payload: &[u8], near: bool) -> String {
        // Of its own: after an access that is denied a call gets nothing any more.
        let memory = HostMemory::new(self.registry.clone(), self.pd, true, Limits::default());
        let watched = Watched { memory: &memory, held: &self.held, near, granted: &self.granted, denied: &self.denied };
        let mut call = Call::new(op, params, REPLY);
        let mut feed = call.open_stream(64);
        let mut pieces = payload.chunks(50).peekable();
        if pieces.peek().is_none() {
            assert!(feed.push(&[], true));
        }
        let mut run = Box::pin(self.kernels.run(&watched, &mut call));
        let status = loop {
            if let Poll::Ready(status) = run.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                break status;
            }
            if let Some(&piece) = pieces.peek()
                && feed.push(piece, pieces.len() == 1)
            {
                pieces.next();
            }
        };
        drop(run);
        assert!(call.reply.len() <= REPLY as usize && call.params == params);
        match status {
            remora_kernel::Status::Other(_) => "of its own".into(),
            status => format!("{status:?}"),
        }
    }

    /// A module with parameters at 1024, whose entry makes a few accesses that make sense, mostly, and goes on at
    /// random.
    fn generate(&self, random: &mut Random) -> Option<Vec<u8>> {
        let config = wasm_smith::Config {
            module_shape: Some(wat::parse_str(SHAPE).expect("the shape is a module")),
            max_funcs: 8,
            max_instructions: 200,
            max_memories: 1,
            max_tables: 2,
            memory64_enabled: false,
            threads_enabled: false,
            reference_types_enabled: false,
            exceptions_enabled: false,
            gc_enabled: false,
            relaxed_simd_enabled: false,
            custom_page_sizes_enabled: false,
            wide_arithmetic_enabled: false,
            allow_start_export: random.below(4) == 0,
            disallow_traps: random.below(4) != 0,
            ..wasm_smith::Config::default()
        };
        let bytes = random.bytes(4096);
        let module = Module::new(config, &mut Unstructured::new(&bytes)).ok()?;
        let text = wasmprinter::print_bytes(module.to_bytes()).ok()?;
        let body = text.trim_end().strip_suffix(')')?;
        let mut body = body.to_string();
        let functions = body.matches("(func (;").count();
        if random.below(2) == 0 {
            for import in 0..SENSIBLE.len() {
                body = body.replace(&format!("call {import}\n"), &format!("call {}\n", functions + import));
            }
        }
        let wrappers = SENSIBLE.concat().replace("KEY", KEY).replace("VA", VA);
        let keys = self.held.iter().map(|&(key, _)| key).chain(self.others.iter().map(|region| region.key()));
        let keys: String = keys.chain([self.wrong]).flat_map(u32::to_le_bytes).map(|b| format!("\\{b:02x}")).collect();
        let run = run(random, functions, &body)?;
        let tail = format!(
            r#"(global (export "params") i32 (i32.const 1024)) (data (i32.const 512) "{keys}") {wrappers} {run}"#
        );
        wat::parse_str(format!("{body}{tail})")).ok()
    }
}

/// An entry that calls the sensible imports with random arguments, and then the random function.
fn run(random: &mut Random, functions: usize, module: &str) -> Option<String> {
    let (_, body) = module.split_once(r#"(export "body" (func "#)?;
    let body: usize = body.split(')').next()?.parse().ok()?;
    let mut text = String::from(r#"(func (export "run") (param i32) (result i32) "#);
    for _ in 0..random.below(12) {
        let import = random.below(SENSIBLE.len() as u64) as usize;
        const PARAMETERS: [&str; 8] = [
            "i32 i64 i32 i32",
            "i32 i64 i32 i32",
            "i32 i64 i64 i64 i32",
            "i32 i64 i64 i32",
            "i32 i32",
            "i32 i32",
            "i32 i32 i32",
            "i32 i32",
        ];
        for parameter in PARAMETERS[import].split(' ') {
            let value = random.next();
            text += &match parameter {
                "i32" => format!("i32.const {} ", value as i32),
                _ => format!("i64.const {} ", value as i64),
            };
        }
        text += &format!("call {} drop ", functions + import);
    }
    Some(text + &format!("local.get 0 call {body})"))
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (mut seed, mut time, mut modules) = (1, Duration::from_secs(10), u64::MAX);
    while let Some(flag) = args.next() {
        let value = args.next().and_then(|value| value.parse::<u64>().ok());
        match (flag.as_str(), value) {
            ("--seed", Some(value)) => seed = value,
            ("--seconds", Some(value)) => time = Duration::from_secs(value),
            ("--modules", Some(value)) => modules = value,
            _ => {
                eprintln!("usage: fuzz [--seconds N] [--seed N] [--modules N]");
                std::process::exit(2);
            }
        }
    }
    let (world, end) = try_modules(seed, modules, time);
    println!("modules {} to {}: {} accesses granted, {} denied", seed, end, world.granted.get(), world.denied.get());
    for (what, count) in &world.counts {
        println!("{count:>10}  {what}");
    }
}

/// Tries the modules with seeds from this one on. Returns what happened, and the seed of the one that comes next.
fn try_modules(first: u64, modules: u64, time: Duration) -> (World, u64) {
    let (mut world, begin, mut seed) = (World::new(), Instant::now(), first);
    while seed - first < modules && begin.elapsed() < time {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.module(seed)));
        if let Err(panic) = done {
            eprintln!("the module with seed {seed} failed: try --seed {seed} --modules 1");
            std::panic::resume_unwind(panic);
        }
        seed += 1;
        if (seed - first).is_multiple_of(1000) {
            eprintln!("{} modules, next seed {seed}, {} s", seed - first, begin.elapsed().as_secs());
        }
    }
    (world, seed)
}

#[test]
fn random_modules_harm_nobody() {
    let (world, _) = try_modules(1, 40, Duration::MAX);
    assert!(world.counts["deployed"] > 30, "{:?}", world.counts);
    assert!(world.granted.get() > 0 && world.denied.get() > 0);
}
