//! Kernels that users bring, at a running node.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};

use remora_kernel::{Limits, Placement, Status};
use remora_real::{Client, ClientConfig, DeployToken, Deployers, Error, Node, NodeConfig, RingConfig};
use remora_ring::RingShape;
use remora_wasm::{Isolation, ModuleLimits};

fn config(host: u8) -> NodeConfig {
    let ip = IpAddr::V4(Ipv4Addr::new(127, 14, host, 1));
    NodeConfig { memory_limit: 64 << 20, ..NodeConfig::new(ip) }
}

fn client(node: &Node, last: u8) -> Client {
    client_with(node, last, None)
}

fn client_with(node: &Node, last: u8, deploy_token: Option<DeployToken>) -> Client {
    let IpAddr::V4(v4) = node.address() else { unreachable!("nodes here are IPv4") };
    let [a, b, c, _] = v4.octets();
    let local = IpAddr::V4(Ipv4Addr::new(a, b, c, last));
    Client::connect(ClientConfig { deploy_token, ..ClientConfig::new(node.address(), local) }).expect("connection")
}

/// Parameters: key u32, 4 zeros, address u64; replies with the word there plus a constant.
fn plus(n: u32) -> Vec<u8> {
    let text = format!(
        r#"(module
          (import "remora" "read" (func $read (param i32 i64 i32 i32) (result i32)))
          (import "remora" "reply" (func $reply (param i32 i32) (result i32)))
          (memory (export "memory") 1)
          (global (export "params") i32 (i32.const 1024))
          (func (export "run") (param i32) (result i32)
            (if (call $read (i32.load (i32.const 1024)) (i64.load (i32.const 1032)) (i32.const 0) (i32.const 8))
              (then (return (i32.const 20))))
            (i64.store (i32.const 0) (i64.add (i64.load (i32.const 0)) (i64.const {n})))
            (call $reply (i32.const 0) (i32.const 8))))"#
    );
    wat::parse_str(text).expect("wat")
}

const SPIN: &str = r#"(module
  (memory (export "memory") 1)
  (global (export "params") i32 (i32.const 1024))
  (func (export "run") (param i32) (result i32) (loop $l (br $l)) (i32.const 0)))"#;

const PLACEMENTS: [Placement; 3] = [Placement::Client, Placement::Nic, Placement::Host];

fn word(client: &mut Client, placement: Placement, op: u64, params: &[u8]) -> (Status, u64) {
    let (status, reply) = client.call(placement, op, params).expect("call");
    (status, reply.try_into().map_or(0, u64::from_le_bytes))
}

fn word_by_ring(client: &mut Client, placement: Placement, op: u64, params: &[u8]) -> (Status, u64) {
    client.submit_by_ring(placement, op, params, 7).expect("room");
    let mut ended = None;
    while ended.is_none() {
        let done =
            &mut |_, status, reply: &[u8]| ended = Some((status, reply.try_into().map_or(0, u64::from_le_bytes)));
        client.poll(done).expect("connection");
    }
    ended.expect("an end")
}

#[test]
fn a_module_runs_in_every_place_and_is_replaced_and_removed() {
    let node = Node::start(config(1)).expect("node");
    let mut client = client(&node, 2);
    for placement in [Placement::Nic, Placement::Host] {
        client.open_rings(placement, RingConfig::default()).expect("rings");
    }
    let region = client.alloc(4096).expect("memory");
    client.write(&region, 8, &40u64.to_le_bytes()).expect("write");
    let params = [u64::from(region.key).to_le_bytes(), (region.va + 8).to_le_bytes()].concat();
    let outside = [u64::from(region.key).to_le_bytes(), (region.va + 4096).to_le_bytes()].concat();

    let limits = ModuleLimits { fuel: 10_000, ..ModuleLimits::default() };
    for (version, n) in [(1, 2), (2, 3)] {
        let entry = client.deploy_kernel("plus", &plus(n), limits, Isolation::Reused, false).expect("deployed");
        assert_eq!(entry.version, version);
        client
            .local_kernels()
            .deploy_at(Some(entry.op), "plus", &plus(n), limits, Isolation::Reused)
            .expect("here too");
        for placement in PLACEMENTS {
            assert_eq!(
                word(&mut client, placement, entry.op, &params),
                (Status::Ok, 40 + u64::from(n)),
                "{placement:?}"
            );
            if placement != Placement::Client {
                let by_ring = word_by_ring(&mut client, placement, entry.op, &params);
                assert_eq!(by_ring, (Status::Ok, 40 + u64::from(n)), "{placement:?}, by a ring");
                for denied in [word, word_by_ring].map(|call| call(&mut client, placement, entry.op, &outside).0) {
                    assert_eq!(denied, Status::AccessDenied, "{placement:?}, whatever the module makes of it");
                }
            }
        }
    }
    let listed = client.list_kernels().expect("list");
    assert_eq!((listed.len(), listed[0].name.as_str(), listed[0].version, listed[0].limits), (1, "plus", 2, limits));
    client.remove_kernel("plus").expect("removed");
    assert_eq!(word(&mut client, Placement::Nic, listed[0].op, &params).0, Status::UnknownOp);
    assert_eq!(word(&mut client, Placement::Host, listed[0].op, &params).0, Status::UnknownOp);
    assert_eq!(word_by_ring(&mut client, Placement::Nic, listed[0].op, &params).0, Status::UnknownOp);
    let Err(Error::Node { why, .. }) = client.remove_kernel("plus") else { panic!("it is gone") };
    assert!(why.contains("plus"), "{why}");
    let Err(Error::Node { why, .. }) = client.deploy_kernel("junk", b"no module", limits, Isolation::Reused, false)
    else {
        panic!("that is no module")
    };
    assert!(why.contains("WebAssembly"), "{why}");
    let Err(Error::Node { why, .. }) = client.deploy_kernel("plus", &plus(1), limits, Isolation::Reused, true) else {
        panic!("the node keeps nothing")
    };
    assert!(why.contains("--kernels"), "{why}");
    node.shutdown();
}

/// Parameters as for [`plus`]; reads the word 5000 times.
const OFTEN: &str = r#"(module
  (import "remora" "read" (func $read (param i32 i64 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (global (export "params") i32 (i32.const 1024))
  (func (export "run") (param i32) (result i32) (local $n i32)
    (loop $again
      (if (call $read (i32.load (i32.const 1024)) (i64.load (i32.const 1032)) (i32.const 0) (i32.const 8))
        (then (return (i32.const 20))))
      (br_if $again (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 5000))))
    (i32.const 0)))"#;

#[test]
fn a_module_takes_parameters_as_long_as_a_ring() {
    const LAST: &str = r#"(module
      (import "remora" "params" (func $params (param i32 i32 i32) (result i32)))
      (import "remora" "reply" (func $reply (param i32 i32) (result i32)))
      (memory (export "memory") 1)
      (global (export "params") i32 (i32.const 1024))
      (func (export "run") (param $len i32) (result i32)
        (drop (call $params (i32.sub (local.get $len) (i32.const 8)) (i32.const 0) (i32.const 8)))
        (call $reply (i32.const 0) (i32.const 8))))"#;
    let node = Node::start(config(12)).expect("node");
    let mut client = client(&node, 2);
    let module = wat::parse_str(LAST).expect("wat");
    let entry = client.deploy_kernel("last", &module, ModuleLimits::default(), Isolation::Reused, false);
    let op = entry.expect("deployed").op;
    let shape = RingShape::new(1024, 4096).expect("a shape");
    for placement in [Placement::Nic, Placement::Host] {
        client.open_rings(placement, RingConfig { shape, ..RingConfig::default() }).expect("rings");
        for len in [8, 5000, 200_000, 1 << 20] {
            let mut params = vec![1; len];
            params[len - 8..].copy_from_slice(&(len as u64).to_le_bytes());
            assert_eq!(word_by_ring(&mut client, placement, op, &params), (Status::Ok, len as u64), "{placement:?}");
        }
    }
}

#[test]
fn a_modules_limits_replace_those_of_its_place() {
    let node = Node::start(config(5)).expect("node");
    let mut client = client(&node, 2);
    let region = client.alloc(8).expect("memory");
    let params = [u64::from(region.key).to_le_bytes(), region.va.to_le_bytes()].concat();
    let often = wat::parse_str(OFTEN).expect("wat");
    for (steps, status) in [(5000, Status::Ok), (4999, Status::Other(20))] {
        let access = Limits { steps, ..Limits::default() };
        let limits = ModuleLimits { access, ..ModuleLimits::default() };
        let op = client.deploy_kernel("often", &often, limits, Isolation::Reused, false).expect("deployed").op;
        client.local_kernels().deploy_at(Some(op), "often", &often, limits, Isolation::Reused).expect("here too");
        for placement in PLACEMENTS {
            assert_eq!(client.call(placement, op, &params).expect("call").0, status, "{placement:?}, {steps} accesses");
        }
    }
    let fuel = ModuleLimits { fuel: 2_000_000_000, ..ModuleLimits::default() };
    let Err(Error::Node { why, .. }) = client.deploy_kernel("often", &often, fuel, Isolation::Reused, false) else {
        panic!("that is above the ceiling")
    };
    assert!(why.contains("1000000000 fuel (--fuel), not 2000000000"), "{why}");
    node.shutdown();
}

#[test]
fn replacing_a_module_drops_no_call() {
    let node = Node::start(config(2)).expect("node");
    let limits = ModuleLimits { fuel: 10_000, ..ModuleLimits::default() };
    let mut deployer = client(&node, 2);
    let region = deployer.alloc(4096).expect("memory");
    let params = [u64::from(region.key).to_le_bytes(), region.va.to_le_bytes()].concat();
    let op = deployer.deploy_kernel("plus", &plus(1), limits, Isolation::Reused, false).expect("deployed").op;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let (mut client, mut last) = (client(&node, 3), 1);
            loop {
                let last_turn = done.load(Ordering::Relaxed);
                for placement in [Placement::Nic, Placement::Host] {
                    let (status, answer) = word(&mut client, placement, op, &params);
                    assert_eq!(status, Status::Ok);
                    assert!(answer >= last, "an older version answers after a newer one");
                    last = answer;
                }
                if last_turn {
                    return last;
                }
            }
        });
        for n in 2..8 {
            deployer.deploy_kernel("plus", &plus(n), limits, Isolation::Reused, false).expect("replaced");
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(caller.join().expect("no call failed"), 7, "the newest answers");
    });
    node.shutdown();
}

/// A node where one has just stopped. Another test may just start a compiler, whose process holds all sockets of this one until
/// it has become another program.
fn started_again(config: &NodeConfig) -> Node {
    remora_testing::eventually("the address is free again", || match Node::start(config.clone()) {
        Err(Error::Link { source, .. }) if source.kind() == std::io::ErrorKind::AddrInUse => None,
        node => Some(node.expect("node again")),
    })
}

#[test]
fn kept_modules_are_there_after_a_restart() {
    let dir = tempfile::tempdir().expect("directory");
    let config = NodeConfig { kernels: Some(dir.path().into()), ..config(3) };
    let limits = ModuleLimits { fuel: 7_000, ..ModuleLimits::default() };
    let node = Node::start(config.clone()).expect("node");
    let mut first = client(&node, 2);
    first.deploy_kernel("gone", &plus(1), limits, Isolation::Reused, false).expect("deployed");
    let kept = first.deploy_kernel("kept", &plus(2), limits, Isolation::Fresh, true).expect("deployed");
    drop(first);
    node.shutdown();

    let node = started_again(&config);
    let mut second = client(&node, 3);
    let listed = second.list_kernels().expect("list");
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].name, listed[0].op, listed[0].limits), (&kept.name, kept.op, limits));
    assert_eq!(listed[0].isolation, Isolation::Fresh);
    let region = second.alloc(8).expect("memory");
    let params = [u64::from(region.key).to_le_bytes(), region.va.to_le_bytes()].concat();
    assert_eq!(word(&mut second, Placement::Nic, kept.op, &params), (Status::Ok, 2));
    second.remove_kernel("kept").expect("removed");
    assert_eq!(std::fs::read_dir(dir.path()).expect("directory").count(), 0, "from the directory too");
    node.shutdown();
}

#[test]
fn a_hostile_module_costs_its_caller_a_status_and_others_nothing() {
    // Fuel ends them here, however slow the machine is.
    let config = NodeConfig { deadline: std::time::Duration::from_secs(600), ..config(4) };
    let node = Node::start(config).expect("node");
    let mut hostile = client(&node, 2);
    let spin = wat::parse_str(SPIN).expect("wat");
    let limits = ModuleLimits { fuel: 3_000_000, ..ModuleLimits::default() };
    let op = hostile.deploy_kernel("spin", &spin, limits, Isolation::Reused, false).expect("deployed").op;
    let mut good = client(&node, 3);
    let plus =
        good.deploy_kernel("plus", &plus(1), ModuleLimits::default(), Isolation::Reused, false).expect("deployed").op;
    let region = good.alloc(8).expect("memory");
    let params = [u64::from(region.key).to_le_bytes(), region.va.to_le_bytes()].concat();
    for placement in [Placement::Nic, Placement::Host] {
        for tag in 0..8 {
            hostile.submit(placement, op, &[], tag).expect("room");
        }
        for _ in 0..20 {
            assert_eq!(word(&mut good, placement, plus, &params), (Status::Ok, 1));
        }
        let mut ended = 0;
        while ended < 8 {
            hostile
                .poll(&mut |_, status, _| {
                    assert_eq!(status, Status::StepLimit);
                    ended += 1;
                })
                .expect("the connection lives");
        }
    }
    node.shutdown();
}

/// Nested loops through which many locals live: small, and compiled in minutes.
fn bomb(locals: usize, depth: usize) -> Vec<u8> {
    let mut text = String::from(
        r#"(module (memory (export "memory") 1) (global (export "params") i32 (i32.const 1024))
          (func (export "run") (param i32) (result i32) (local"#,
    );
    text += &" i32".repeat(locals);
    text += ")";
    text += &"loop\n".repeat(depth);
    for local in 1..=locals {
        text += &format!("local.get {local} local.get 0 i32.add local.set {local}\n");
    }
    for level in 0..depth {
        text += &format!("local.get {} br_if 0 end\n", 1 + level % locals);
    }
    text += "local.get 1\n";
    for local in 2..=locals {
        text += &format!("local.get {local} i32.add\n");
    }
    text += "))";
    wat::parse_str(text).expect("wat")
}

#[test]
fn a_module_that_takes_for_ever_to_compile_is_refused_and_holds_nobody_up() {
    let node = Node::start(config(7)).expect("node");
    let (mut hostile, mut good) = (client(&node, 2), client(&node, 3));
    let limits = ModuleLimits::default();
    let bomb = bomb(5000, 200);
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| hostile.deploy_kernel("bomb", &bomb, limits, Isolation::Reused, false));
        let mut deployed = 0;
        while !refused.is_finished() {
            good.deploy_kernel("plus", &plus(1), limits, Isolation::Reused, false).expect("deployed meanwhile");
            deployed += 1;
        }
        assert!(deployed > 0, "it was refused before anything else was compiled");
        let Err(Error::Node { why, .. }) = refused.join().expect("no panic") else { panic!("a bomb was deployed") };
        assert!(why.contains("compiling it takes more than"), "{why}");
    });
    node.shutdown();
}

#[test]
fn only_who_may_deploys_and_removes() {
    let token = |text: &[u8]| DeployToken::new(text).expect("a token");
    let start = |host, deployers| Node::start(NodeConfig { deployers, ..config(host) }).expect("node");
    let deploy = |client: &mut Client| {
        let deployed = client.deploy_kernel("plus", &plus(1), ModuleLimits::default(), Isolation::Reused, false);
        deployed.and_then(|_| client.remove_kernel("plus")).map_err(|e| e.to_string())
    };

    let node = start(8, Deployers::Addresses(vec![[127, 14, 8, 99].into()]));
    let refused = deploy(&mut client(&node, 2)).expect_err("another address");
    assert!(refused.contains("only clients at 127.14.8.99") && refused.contains("127.14.8.2"), "{refused}");
    node.shutdown();

    let node = start(10, Deployers::Token(token(b"a token of 24 bytes here")));
    // Each at an address of its own: see `started_again`.
    for (last, other) in [(2, None), (3, Some(token(b"another one, of 27 bytes...")))] {
        let refused = deploy(&mut client_with(&node, last, other)).expect_err("no token, or another");
        assert!(refused.contains("--token"), "{refused}");
    }
    deploy(&mut client_with(&node, 4, Some(token(b"a token of 24 bytes here\n")))).expect("the node's token");
    node.shutdown();
}

/// Reads nothing of its payload.
const DEAF: &str = r#"(module
  (import "remora" "next_chunk" (func (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (global (export "params") i32 (i32.const 1024))
  (func (export "run") (param i32) (result i32) (loop $l (br $l)) (i32.const 0)))"#;

#[test]
fn calls_that_spin_hold_up_no_neighbour_and_end_when_their_time_is_over() {
    let config = NodeConfig { deadline: std::time::Duration::from_secs(2), ..config(9) };
    let node = Node::start(config).expect("node");
    let (mut good, mut bad, mut deaf) = (client(&node, 2), client(&node, 3), client(&node, 4));
    let limits = ModuleLimits { fuel: ModuleLimits::MAX.fuel, ..ModuleLimits::default() };
    let mut deploy = |name: &str, text: &str| {
        let bytes = wat::parse_str(text).expect("wat");
        good.deploy_kernel(name, &bytes, limits, Isolation::Reused, false).expect("deployed").op
    };
    let (spin, unread) = (deploy("spin", SPIN), deploy("deaf", DEAF));
    let streaming = std::thread::spawn(move || deaf.call_stream(unread, &[], &vec![1; 8 << 20]).expect("call").0);
    for placement in [Placement::Nic, Placement::Host] {
        for tag in 0..256 {
            bad.submit(placement, spin, &[], tag).expect("room");
        }
        let mut ended = Vec::new();
        for round in 0.. {
            bad.poll(&mut |_, status, _| ended.push(status)).expect("poll");
            if round < 50 {
                let status = good.call(placement, remora_kernel::op::GET, &[0; 4]).expect("call").0;
                assert_eq!(status, Status::BadParams);
                let status = good.call_stream(remora_kernel::op::CHECKSUM, &[], &[1; 50_000]).expect("call").0;
                assert_eq!(status, Status::Ok);
            } else if ended.len() == 256 {
                break;
            }
        }
        assert!(ended.iter().all(|&status| status == Status::Overdue), "{placement}: {ended:?}");
    }
    assert_eq!(streaming.join().expect("thread"), Status::Overdue);
    node.shutdown();
}

#[test]
fn a_module_is_one_for_all_engines_of_a_node() {
    let node = Node::start(NodeConfig { engines: 2, ..config(9) }).expect("node");
    let mut both = [client(&node, 2), client(&node, 3)];
    // Either deploys, both call and the other one removes.
    for n in [0, 1] {
        let region = both[n].alloc(8).expect("memory");
        both[n].write(&region, 0, &40u64.to_le_bytes()).expect("write");
        let limits = ModuleLimits::default();
        let op = both[n].deploy_kernel("plus", &plus(2), limits, Isolation::default(), false).expect("deployed").op;
        let params = [&u64::from(region.key).to_le_bytes()[..], &region.va.to_le_bytes()].concat();
        for client in &mut both {
            for placement in [Placement::Nic, Placement::Host] {
                assert_eq!(word(client, placement, op, &params), (Status::Ok, 42), "{placement}");
            }
        }
        both[1 - n].remove_kernel("plus").expect("removed");
        assert_eq!(both[n].call(Placement::Nic, op, &params).expect("call").0, Status::UnknownOp);
    }
}
