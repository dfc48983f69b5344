//! Modules as users write them, good and hostile, at a place that never waits and at one that always does.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use remora_kernel::{Call, Fault, HostMemory, Kernel, Limits, Memory, Status};
use remora_memory::{Access, Buffer, Pd, Region, Registry};
use remora_wasm::compiler::module_of_text;
use remora_wasm::{Isolation, KernelSet, ModuleLimits};

/// Memory that is never there at once, as at a client.
struct Far<'a>(&'a HostMemory);

async fn give_way() {
    let mut gave = false;
    std::future::poll_fn(|_| if std::mem::replace(&mut gave, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

impl Memory for Far<'_> {
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        give_way().await;
        self.0.read(key, va, out).await
    }
    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        give_way().await;
        self.0.write(key, va, data).await
    }
    async fn compare_swap(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        give_way().await;
        self.0.compare_swap(key, va, expect, new).await
    }
    async fn fetch_add(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        give_way().await;
        self.0.fetch_add(key, va, n).await
    }
    fn earn(&self, bytes: usize) {
        self.0.earn(bytes);
    }
    fn set_limits(&self, limits: Limits) {
        self.0.set_limits(limits);
    }
}

struct Place {
    kernels: KernelSet,
    memory: HostMemory,
    region: Arc<Region>,
    registry: Arc<Registry>,
    pd: Pd,
}

const SHORT: ModuleLimits =
    ModuleLimits { fuel: 10_000, memory: 1 << 20, access: Limits { steps: 100, bytes: 10_000 } };

/// A module's own limits replace these, be they higher or lower.
const LIMITS: Limits = Limits { steps: 10, bytes: 1 << 30 };

impl Place {
    fn new() -> Self {
        let registry = Arc::new(Registry::new([9; 32]));
        let pd = registry.alloc_pd();
        let buffer = Buffer::from_boxed(vec![0; 4096].into());
        let region = registry.register(pd, &buffer, 0, 4096, Some(0), Access::all()).unwrap();
        let memory = HostMemory::new(registry.clone(), pd, true, LIMITS);
        Place { kernels: KernelSet::default(), memory, region, registry, pd }
    }

    /// The memory of another call.
    fn fresh(&self) -> HostMemory {
        HostMemory::new(self.registry.clone(), self.pd, true, LIMITS)
    }

    fn deploy(&self, name: &str, body: &str, limits: ModuleLimits) -> u64 {
        let bytes = wat::parse_str(module(body)).unwrap();
        self.kernels.deploy(name, &bytes, limits, Isolation::Reused).unwrap().op
    }

    /// Runs a call with 64 bytes of room for the reply, near and far; both must end alike.
    fn call(&self, op: u64, params: &[u8]) -> (Status, Vec<u8>) {
        // Each has a memory of its own: after an access that is denied a call gets nothing any more.
        let near = self.run(&self.fresh(), op, params, &[]);
        assert_eq!(self.run(&Far(&self.fresh()), op, params, &[]), near, "near and far");
        near
    }

    fn run<M: Memory>(&self, memory: &M, op: u64, params: &[u8], payload: &[&[u8]]) -> (Status, Vec<u8>) {
        let mut call = Call::new(op, params, 64);
        let mut feed = (!payload.is_empty()).then(|| call.open_stream(8));
        let mut pieces = payload.iter().enumerate();
        let mut run = Box::pin(self.kernels.run(memory, &mut call));
        let mut cx = Context::from_waker(Waker::noop());
        let status = loop {
            if let Poll::Ready(status) = run.as_mut().poll(&mut cx) {
                break status;
            }
            if let Some(feed) = &mut feed
                && let Some((at, piece)) = pieces.next()
            {
                assert!(feed.push(piece, at + 1 == payload.len()));
            }
        };
        drop(run);
        (status, std::mem::take(&mut call.reply))
    }
}

/// A module with all imports, parameters at 1024, and a body.
fn module(body: &str) -> String {
    format!(
        r#"(module
          (import "remora" "read" (func $read (param i32 i64 i32 i32) (result i32)))
          (import "remora" "write" (func $write (param i32 i64 i32 i32) (result i32)))
          (import "remora" "compare_swap" (func $swap (param i32 i64 i64 i64 i32) (result i32)))
          (import "remora" "fetch_add" (func $add (param i32 i64 i64 i32) (result i32)))
          (import "remora" "reply" (func $reply (param i32 i32) (result i32)))
          (import "remora" "log" (func $log (param i32 i32) (result i32)))
          (memory (export "memory") 1)
          (global (export "params") i32 (i32.const 1024))
          {body})"#
    )
}

/// Parameters: key u32, zeros, address u64.
fn at(key: u32, va: u64) -> Vec<u8> {
    [u64::from(key).to_le_bytes(), va.to_le_bytes()].concat()
}

const KEY_VA: &str = "(i32.load (i32.const 1024)) (i64.load (i32.const 1032))";

#[test]
fn modules_reach_remote_memory() {
    let place = Place::new();
    let op = place.deploy(
        "all",
        &format!(
            r#"(func (export "run") (param i32) (result i32)
              ;; adds 5 to the word, swaps it for 7 if it was 10, reads it back and replies with all three
              (drop (call $add {KEY_VA} (i64.const 5) (i32.const 0)))
              (drop (call $swap {KEY_VA} (i64.const 10) (i64.const 7) (i32.const 8)))
              (drop (call $read {KEY_VA} (i32.const 16) (i32.const 8)))
              (drop (call $reply (i32.const 0) (i32.const 24)))
              (i64.store (i32.const 0) (i64.const 5))
              (call $write {KEY_VA} (i32.const 0) (i32.const 8)))"#
        ),
        SHORT,
    );
    place.region.write(8, &5u64.to_le_bytes()).unwrap();
    let (status, reply) = place.call(op, &at(place.region.key(), 8));
    let words: Vec<u64> = reply.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    assert_eq!((status, words), (Status::Ok, vec![5, 10, 7]));
}

#[test]
fn hostile_modules_end_with_a_status_and_others_notice_nothing() {
    let place = Place::new();
    let good = place.deploy(
        "good",
        r#"(func (export "run") (param i32) (result i32) (call $reply (i32.const 1024) (local.get 0)))"#,
        SHORT,
    );
    let hostile: [(&str, &str, Status); 9] = [
        ("spins", r#"(loop $l (br $l)) (i32.const 0)"#, Status::StepLimit),
        ("recurses", r#"(call $run (i32.const 0))"#, Status::StepLimit),
        ("traps", r#"(unreachable)"#, Status::Trapped),
        ("divides", r#"(i32.div_s (i32.const 1) (i32.const 0))"#, Status::Trapped),
        ("reads outside", r#"(i32.load (i32.const -8))"#, Status::Trapped),
        (
            "lies about a pointer",
            r#"(call $read (i32.const 1) (i64.const 0) (i32.const 65535) (i32.const 2))"#,
            Status::Trapped,
        ),
        ("lies about a length", r#"(call $reply (i32.const 16) (i32.const -1))"#, Status::Trapped),
        ("returns nonsense", r#"(i32.const 77777)"#, Status::Trapped),
        ("grows", r#"(i32.eq (memory.grow (i32.const 100)) (i32.const -1)) (i32.sub (i32.const 1))"#, Status::Ok),
    ];
    for (name, body, expect) in hostile {
        let run = format!(r#"(func $run (export "run") (param i32) (result i32) {body})"#);
        let op = place.deploy("hostile", &run, SHORT);
        for _ in 0..3 {
            assert_eq!(place.call(op, &[1]).0, expect, "a kernel that {name}");
            assert_eq!(place.call(good, b"well"), (Status::Ok, b"well".to_vec()));
        }
    }
    // With fuel for more than a slice it is suspended, and ends just so.
    let spin = r#"(func (export "run") (param i32) (result i32) (loop $l (br $l)) (i32.const 0))"#;
    let op = place.deploy("long", spin, ModuleLimits { fuel: 1_000_000, ..SHORT });
    assert_eq!(place.call(op, &[]).0, Status::StepLimit);
    // And its stack ends before its fuel.
    let recurse = r#"(func $run (export "run") (param i32) (result i32) (call $run (i32.const 0)))"#;
    let op = place.deploy("long", recurse, ModuleLimits { fuel: 1_000_000, ..SHORT });
    assert_eq!(place.call(op, &[]).0, Status::Trapped);
}

#[test]
fn a_module_reaches_what_its_caller_could_by_verbs() {
    let place = Place::new();
    let read = format!(
        r#"(func (export "run") (param i32) (result i32)
          (i32.store (i32.const 0) (call $read {KEY_VA} (i32.const 8) (i32.const 16)))
          (call $reply (i32.const 0) (i32.const 4)))"#
    );
    let op = place.deploy("read", &read, SHORT);
    let code = |key, va| i32::from_le_bytes(place.call(op, &at(key, va)).1.try_into().unwrap());
    let key = place.region.key();
    assert_eq!((code(key, 0), code(key, 4080)), (0, 0));
    assert_eq!((code(key, 4081), code(key, u64::MAX), code(key ^ 1, 0)), (-1, -1, -1));
    let other = place.registry.alloc_pd();
    let buffer = Buffer::from_boxed(vec![0; 64].into());
    let foreign = place.registry.register(other, &buffer, 0, 64, Some(0), Access::all()).unwrap();
    let local = place.registry.register(place.pd, &buffer, 0, 64, Some(0), Access::LOCAL_WRITE).unwrap();
    assert_eq!((code(foreign.key(), 0), code(local.key(), 0)), (-1, -1));

    let greedy = format!(
        r#"(func (export "run") (param i32) (result i32) (local i32)
          (loop $l (br_if $l (i32.eqz (local.tee 1 (call $read {KEY_VA} (i32.const 8) (i32.const 8))))))
          (i32.store (i32.const 0) (local.get 1))
          (call $reply (i32.const 0) (i32.const 4)))"#
    );
    let op = place.deploy("greedy", &greedy, SHORT);
    assert_eq!(place.call(op, &at(key, 0)), (Status::Ok, (-3i32).to_le_bytes().to_vec()), "100 accesses and no more");
    let limits = ModuleLimits { access: Limits { steps: 1000, bytes: 80 }, ..SHORT };
    let op = place.deploy("greedy", &greedy, limits);
    assert_eq!(place.call(op, &at(key, 0)), (Status::Ok, (-4i32).to_le_bytes().to_vec()), "80 bytes and no more");
}

#[test]
fn payloads_come_in_pieces() {
    let place = Place::new();
    let sum = r#"(module
      (import "remora" "next_chunk" (func $next (param i32 i32) (result i32)))
      (import "remora" "reply" (func $reply (param i32 i32) (result i32)))
      (memory (export "memory") 1)
      (global (export "params") i32 (i32.const 1024))
      (func (export "run") (param i32) (result i32) (local $len i32) (local $at i32) (local $sum i64)
        (loop $chunk
          (local.set $len (call $next (i32.const 64) (i32.const 5)))
          (if (i32.gt_s (local.get $len) (i32.const 0)) (then
            (local.set $at (i32.const 0))
            (loop $byte
              (local.set $sum (i64.add (local.get $sum) (i64.load8_u (i32.add (local.get $at) (i32.const 64)))))
              (br_if $byte (i32.lt_s (local.tee $at (i32.add (local.get $at) (i32.const 1))) (local.get $len))))
            (br $chunk))))
        (i64.store (i32.const 0) (local.get $sum))
        (call $reply (i32.const 0) (i32.const 8))))"#;
    let op = place.kernels.deploy("sum", &wat::parse_str(sum).unwrap(), SHORT, Isolation::Reused).unwrap().op;
    let payload: [&[u8]; 3] = [&[1, 2, 3, 4, 5, 6, 7], &[8], &[9, 10]];
    let sum = (Status::Ok, 55u64.to_le_bytes().to_vec());
    assert_eq!(place.run(&place.memory, op, &[], &payload), sum);
    assert_eq!(place.run(&Far(&place.memory), op, &[], &payload), sum);
    assert_eq!(place.run(&place.memory, op, &[], &[]), (Status::Ok, vec![0; 8]));
}

#[test]
fn memory_stays_between_calls_only_if_it_may() {
    let place = Place::new();
    let count = module(
        r#"(func (export "run") (param i32) (result i32)
          (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
          (call $reply (i32.const 0) (i32.const 4)))"#,
    );
    let bytes = wat::parse_str(count).unwrap();
    for (isolation, expect) in [(Isolation::Reused, [1, 2, 3]), (Isolation::Fresh, [1, 1, 1])] {
        let op = place.kernels.deploy(&format!("{isolation:?}"), &bytes, SHORT, isolation).unwrap().op;
        let seen = [(); 3].map(|()| place.run(&place.memory, op, &[], &[]).1[0]);
        assert_eq!(seen, expect, "{isolation:?}");
    }
}

#[test]
fn deploying_replaces_and_removing_removes() {
    let place = Place::new();
    let answer = |n: u32| format!(r#"(func (export "run") (param i32) (result i32) (i32.const {n}))"#);
    let op = place.deploy("k", &answer(20), SHORT);
    assert_eq!(place.call(op, &[]).0, Status::Other(20));
    assert_eq!(place.deploy("k", &answer(21), SHORT), op, "the op-code stays");
    assert_eq!(place.call(op, &[]).0, Status::Other(21));
    let list = place.kernels.list();
    assert_eq!((list.len(), list[0].name.as_str(), list[0].version), (1, "k", 2));
    assert_eq!(place.kernels.remove("k").unwrap(), op);
    assert_eq!(place.call(op, &[]).0, Status::UnknownOp);
    assert!(place.kernels.remove("k").is_err());
    let bytes = wat::parse_str(module(&answer(0))).unwrap();
    assert!(place.kernels.deploy("../k", &bytes, SHORT, Isolation::Reused).is_err());
}

#[test]
fn what_is_no_kernel_is_refused_with_a_reason() {
    let place = Place::new();
    let refuse = |text: &str| {
        let bytes = wat::parse_str(text).unwrap();
        place.kernels.deploy("k", &bytes, SHORT, Isolation::Reused).unwrap_err().to_string()
    };
    assert!(place.kernels.deploy("k", b"\0asm junk", SHORT, Isolation::Reused).is_err());
    assert!(refuse("(module)").contains("no export memory"));
    assert!(refuse(r#"(module (memory (export "memory") 1))"#).contains("params"));
    assert!(refuse(&module("")).contains("run"));
    assert!(refuse(&module(r#"(func (export "run") (result i32) (i32.const 0))"#)).contains("run"));
    let run = r#"(func (export "run") (param i32) (result i32) (i32.const 0))"#;
    assert!(refuse(&module(run).replace("1024", "65000")).contains("params are at"));
    assert!(refuse(&module(run).replace("1)", "17)")).contains("memory limit"));
    assert!(refuse(&module(run).replace(r#""read""#, r#""open""#)).contains("remora.open"));
    let said = refuse(&module(run).replace("$read (param i32 i64", "$read (param i64 i64"));
    assert!(
        said.contains("remora.read as (i64, i64, i32, i32) -> (i32), and it is (i32, i64, i32, i32) -> (i32)"),
        "{said}"
    );
    for (limits, what) in [
        (ModuleLimits { fuel: 1_000_000_001, ..SHORT }, "at most 1000000000 fuel (--fuel), not 1000000001"),
        (ModuleLimits { memory: (64 << 20) + 1, ..SHORT }, "--module-memory"),
        (ModuleLimits { access: Limits { steps: 1_000_001, bytes: 1 }, ..SHORT }, "--accesses"),
        (ModuleLimits { access: Limits { steps: 1, bytes: 1 << 40 }, ..SHORT }, "--traffic"),
    ] {
        let bytes = wat::parse_str(module(run)).unwrap();
        let error = place.kernels.deploy("k", &bytes, limits, Isolation::Reused).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    let start = "(func $s (loop $l (br $l))) (start $s)";
    assert!(refuse(&module(&format!("{run} {start}"))).contains("fuel"));
}

/// More is said of it than a pipe holds.
#[test]
fn a_module_with_long_names_is_refused_as_any_other() {
    let name = "n".repeat(90_000);
    let run = |name: &str| format!(r#"(func (export "{name}") (param i32) (result i32) (i32.const 0))"#);
    let text = module(&[run(&format!("{name}1")), run(&format!("{name}2"))].concat());
    let mut twice = wat::parse_str(text).unwrap();
    let last = twice.iter().rposition(|&byte| byte == b'2').unwrap();
    twice[last] = b'1';
    let said = Place::new().kernels.deploy("k", &twice, SHORT, Isolation::Reused).unwrap_err().to_string();
    assert!(said.contains("duplicate export name") && said.len() < 3000, "{said}");
    let unknown = module_of_text(format!("(module (func (call ${name})))").as_bytes()).unwrap_err().to_string();
    assert!(unknown.contains("unknown func") && unknown.len() < 3000, "{unknown}");
}

/// Parameters: none. Spins until its fuel is used up.
const SPIN: &str = r#"(func (export "run") (param i32) (result i32) (loop $l (br $l)) (i32.const 0))"#;

#[test]
fn many_calls_at_once_leave_room_for_others() {
    let place = Place::new();
    let limits = ModuleLimits { fuel: 20_000, ..SHORT };
    let kernels = place.kernels.clone();
    let mut runner = remora_wasm::host_runner(kernels, place.registry.clone(), true, 256, Limits::default());
    for round in 0..5 {
        let op = place.deploy(&format!("many-{round}"), SPIN, limits);
        for _ in 0..256 {
            let mut call = Call::new(op, &[], 8);
            call.pd = Some(place.pd);
            runner.start(call).unwrap();
        }
        while runner.in_flight() > 0 {
            runner.poll(&mut |_, status| assert_eq!(status, Status::StepLimit, "none is turned away"));
        }
    }
}

#[test]
fn long_calls_share_turns_with_short_ones() {
    let place = Place::new();
    let long = place.deploy("long", SPIN, ModuleLimits { fuel: 400_000, ..SHORT });
    let short = place.deploy("short", r#"(func (export "run") (param i32) (result i32) (i32.const 0))"#, SHORT);
    let mut runner =
        remora_wasm::host_runner(place.kernels.clone(), place.registry.clone(), true, 64, Limits::default());
    let start = |runner: &mut Box<dyn remora_kernel::Runner + Send>, op| {
        let mut call = Call::new(op, &[], 8);
        (call.pd, call.tag) = (Some(place.pd), op);
        runner.start(call).unwrap();
    };
    for _ in 0..32 {
        start(&mut runner, long);
    }
    // Past the time when instances are made.
    for _ in 0..1000 {
        runner.poll(&mut |_, _| ());
    }
    let running = runner.in_flight();
    assert!(running > 16, "{running} long calls still run");
    start(&mut runner, short);
    let (mut polls, mut done) = (0, false);
    while !done {
        polls += 1;
        runner.poll(&mut |call, _| done |= call.tag == short);
    }
    assert!(polls <= 64, "{polls} turns: the short call waited for more than one share of each of the others");
}

#[test]
fn a_start_function_is_paid_for() {
    const CALLS: usize = 16;
    // As many rounds of six instructions as a call has fuel for half of.
    const START: &str = r#"(func (export "run") (param i32) (result i32) (i32.const 0))
        (func $s (local $n i32) (loop $l
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $l (i32.lt_u (local.get $n) (i32.const 25000)))))
        (start $s)"#;
    let place = Place::new();
    let limits = ModuleLimits { fuel: 400_000, ..SHORT };
    let bytes = wat::parse_str(module(START)).unwrap();
    let op = place.kernels.deploy("starts", &bytes, limits, Isolation::Fresh).unwrap().op;
    let mut runner =
        remora_wasm::host_runner(place.kernels.clone(), place.registry.clone(), true, CALLS, Limits::default());
    for _ in 0..CALLS {
        let mut call = Call::new(op, &[], 8);
        call.pd = Some(place.pd);
        runner.start(call).unwrap();
    }
    let mut turns = 0;
    while runner.in_flight() > 0 {
        turns += 1;
        runner.poll(&mut |_, status| assert_eq!(status, Status::Ok));
    }
    let alone = 25_000 * 6 / remora_kernel::TURN as usize;
    assert!(turns > CALLS * alone / 2, "{turns} turns for {CALLS} calls of which each takes {alone} by itself");
}

/// What pays by itself must not put off the moment when others have their turn.
#[test]
fn who_only_logs_or_replies_gives_way_as_who_computes() {
    let place = Place::new();
    let asks = ["$log", "$reply"].map(|ask| format!("(drop (call {ask} (i32.const 0) (i32.const 0)))"));
    let long = ModuleLimits { fuel: 1_000_000, ..SHORT };
    let polls = ["", &asks[0], &asks[1]].map(|ask| {
        let spin = format!("(func (export \"run\") (param i32) (result i32) (loop $l {ask} (br $l)) (unreachable))");
        let mut call = Call::new(place.deploy("spin", &spin, long), &[], 64);
        let memory = place.fresh();
        let mut run = Box::pin(place.kernels.run(&memory, &mut call));
        let mut polls = 1;
        while run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            polls += 1;
        }
        polls
    });
    assert!(polls.iter().all(|&asking| asking > polls[0] / 2), "{polls:?} turns");
}

/// A module with the import `params`.
fn long_module(body: &str) -> String {
    let import = r#"(module
          (import "remora" "params" (func $params (param i32 i32 i32) (result i32)))"#;
    module(body).replacen("(module", import, 1)
}

#[test]
fn long_parameters_come_in_pieces_to_who_asks_for_them() {
    /// Adds up all bytes, a piece of 5000 after the other, beside those that are there, and says how many pieces there were.
    const SUM: &str = r#"(func (export "run") (param $len i32) (result i32)
        (local $at i32) (local $n i32) (local $i i32) (local $sum i64) (local $pieces i32)
        (loop $more
          (local.set $n (call $params (local.get $at) (i32.const 8192) (i32.const 5000)))
          (local.set $i (i32.const 0))
          (loop $add
            (if (i32.lt_u (local.get $i) (local.get $n)) (then
              (local.set $sum (i64.add (local.get $sum)
                (i64.extend_i32_u (i32.load8_u (i32.add (i32.const 8192) (local.get $i))))))
              (local.set $i (i32.add (local.get $i) (i32.const 1)))
              (br $add))))
          (local.set $at (i32.add (local.get $at) (local.get $n)))
          (local.set $pieces (i32.add (local.get $pieces) (i32.const 1)))
          (br_if $more (i32.lt_u (local.get $at) (local.get $len))))
        (i64.store (i32.const 0) (local.get $sum))
        (i64.store (i32.const 8) (i64.extend_i32_u (local.get $pieces)))
        (i64.store (i32.const 16) (i64.load (i32.const 1024)))
        (i64.store (i32.const 24) (i64.extend_i32_u (call $params (local.get $len) (i32.const 8192) (i32.const 1))))
        (drop (call $reply (i32.const 0) (i32.const 32)))
        (i32.const 0))"#;
    let place = Place::new();
    let deploy = |name, text: &str, fuel| {
        let bytes = wat::parse_str(text).unwrap();
        place.kernels.deploy(name, &bytes, ModuleLimits { fuel, ..SHORT }, Isolation::Reused).unwrap().op
    };
    let long = deploy("long", &long_module(SUM), 100_000_000);
    for len in [1, 4096, 4097, 100_003] {
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8 + 1).collect();
        let sum: u64 = bytes.iter().map(|&byte| u64::from(byte)).sum();
        let mut first = [0; 8];
        bytes.iter().zip(&mut first).for_each(|(byte, out)| *out = *byte);
        let (status, reply) = place.call(long, &bytes);
        assert_eq!(status, Status::Ok, "{len}");
        let words: Vec<u64> = reply.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let first = if len < 8 { words[2] } else { u64::from_le_bytes(first) };
        assert_eq!(words, [sum, (len as u64).div_ceil(5000), first, 0], "{len}");
    }
    // What a piece costs is paid for, where calls wait and where they do not.
    let short = deploy("short", &long_module(SUM), 10_000);
    assert_eq!(place.call(short, &[1; 100]).0, Status::Ok);
    assert_eq!(place.call(short, &[1; 5000]).0, Status::StepLimit);
    let far = deploy(
        "far",
        &long_module(SUM).replace("(i32.const 8192) (i32.const 5000)", "(i32.const 65000) (i32.const 5000)"),
        100_000_000,
    );
    assert_eq!(place.call(far, &[1; 5000]).0, Status::Trapped, "a place outside of its memory");
    // Who does not ask has room for so many.
    let old = deploy("old", &module(r#"(func (export "run") (param i32) (result i32) (i32.const 0))"#), 10_000);
    assert_eq!([4096, 4097].map(|len| place.call(old, &vec![0; len]).0), [Status::Ok, Status::BadParams]);
}

/// Memory that never makes a call wait, and notes its accesses: where the bytes of each lay, and how many they were.
struct Noting<'a>(&'a HostMemory, RefCell<Vec<(usize, usize)>>);

impl Noting<'_> {
    fn note(&self, bytes: &[u8]) {
        self.1.borrow_mut().push((bytes.as_ptr().addr(), bytes.len()));
    }
}

impl Memory for Noting<'_> {
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.note(out);
        self.0.read(key, va, out).await
    }
    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        self.note(data);
        self.0.write(key, va, data).await
    }
    async fn compare_swap(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        self.0.compare_swap(key, va, expect, new).await
    }
    async fn fetch_add(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        self.0.fetch_add(key, va, n).await
    }
    fn set_limits(&self, limits: Limits) {
        self.0.set_limits(limits);
    }
}

#[test]
fn a_large_access_holds_up_nobody_for_longer_than_a_piece_of_it() {
    const PIECE: usize = 64 << 10;
    const LEN: usize = 1_000_001;
    let place = Place::new();
    // Brings some bytes, and writes some elsewhere.
    let copy = format!(
        r#"(func (export "run") (param i32) (result i32)
          (if (call $read {KEY_VA} (i32.const 2048) (i32.load (i32.const 1040))) (then (return (i32.const 20))))
          (call $write (i32.load (i32.const 1024)) (i64.load (i32.const 1048)) (i32.const 2048) (i32.load (i32.const 1044))))"#
    );
    let bytes = wat::parse_str(module(&copy).replace(r#""memory") 1)"#, r#""memory") 16)"#)).unwrap();
    let op = place.kernels.deploy("copies", &bytes, ModuleLimits::default(), Isolation::Reused).unwrap().op;
    let buffer = Buffer::from_boxed(vec![0; 2 * LEN].into());
    let region = place.registry.register(place.pd, &buffer, 0, 2 * LEN, Some(0), Access::all()).unwrap();
    let data: Vec<u8> = (0..LEN).map(|n| (n % 251) as u8).collect();
    region.write(0, &data).unwrap();
    let run = |read: usize, write: usize| {
        let sizes = [(read as u32).to_le_bytes(), (write as u32).to_le_bytes()].concat();
        let mut call = Call::new(op, &[&at(region.key(), 0)[..], &sizes, &(LEN as u64).to_le_bytes()].concat(), 64);
        let (memory, mut polls, mut before) = (place.fresh(), 0, 0);
        let noting = Noting(&memory, RefCell::default());
        let mut run = Box::pin(place.kernels.run(&noting, &mut call));
        let status = loop {
            let polled = run.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let moved: usize = noting.1.borrow().iter().map(|(_, len)| len).sum();
            assert!(moved - before <= PIECE, "{} bytes by one poll", moved - before);
            (polls, before) = (polls + 1, moved);
            if let Poll::Ready(status) = polled {
                break status;
            }
        };
        drop(run);
        (status, polls, noting.1.into_inner())
    };
    let (status, polls, accesses) = run(LEN, LEN);
    assert_eq!((status, accesses.len()), (Status::Ok, 2 * LEN.div_ceil(PIECE)));
    assert!(polls >= accesses.len() - 2, "{polls}");
    // What is on its way lies in one place, a piece at a time.
    for accesses in accesses.chunks(accesses.len() / 2) {
        let begin = accesses.iter().map(|(at, _)| *at).min().unwrap_or(0);
        let end = accesses.iter().map(|(at, len)| at + len).max().unwrap_or(0);
        assert!(end - begin <= PIECE, "{} bytes at once", end - begin);
    }
    let mut copied = vec![0; LEN];
    region.read(LEN as u64, &mut copied).unwrap();
    assert!(copied == data);
    // What the module has no memory for is not begun.
    let (status, _, accesses) = run(8, 16 * 65_536);
    assert_eq!((status, accesses.len()), (Status::Trapped, 1));
    for (bytes, accesses) in [(0, 2), (PIECE, 2), (PIECE + 1, 4)] {
        let (status, _, noted) = run(bytes, bytes);
        assert_eq!((status, noted.len()), (Status::Ok, accesses), "{bytes} bytes");
    }
}
