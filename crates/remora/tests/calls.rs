//! Typed calls of every built-in kernel, alone and many at once, and what failures say.

use remora::filter::{Column, ColumnType, FilterOutput, FilterParams, RowPredicate, Source};
use remora::{
    Caller, Client, Error, Filter, Filtered, Get, LinkKind, ModuleLimits, Node, Partition, Placement, Shuffle, Status,
    TraversalParams, Traverse,
};
use remora_kernel::crc64;

/// What `Result` cannot be asked for otherwise.
fn failure<T>(result: remora::Result<T>) -> Error {
    result.err().expect("an error")
}

fn pair() -> (Node, Client) {
    let node = Node::local().expect("a node");
    let client = Client::connect(node.address()).expect("a connection");
    (node, client)
}

#[test]
fn look_ups_find_what_is_there_and_nothing_else() {
    let node = Node::local().expect("a node");
    for link in [LinkKind::Udp, LinkKind::Shm] {
        let mut client = Client::builder().link(link).connect(node.address()).expect("a connection");
        assert_eq!(client.link(), link);
        let table = client.load_table([("a", &b"1"[..]), ("b", b""), ("", b"empty")]).expect("a table");
        let list = client.load_list([(7, "seven"), (8, "8")]).expect("a list");
        let object = client.load_object(b"payload").expect("an object");
        // By RPC verbs and SENDs, then by rings, then as before.
        for (n, place) in (0..).zip([Placement::REAL; 3].concat()) {
            for place in [Placement::Nic, Placement::Host] {
                match n {
                    3 => client.open_rings(place).expect("rings"),
                    6 => client.close_rings(place).expect("closed"),
                    _ => {}
                }
            }
            let mut get = |key: &str| client.at(place).get(&table, key).expect("an answer");
            assert_eq!(get("a"), Some(b"1".to_vec()));
            assert_eq!(get("b"), Some(vec![]));
            assert_eq!(get(""), Some(b"empty".to_vec()));
            assert_eq!(get("c"), None);
            let mut find = |key| client.at(place).traverse(&list, key).expect("an answer");
            assert_eq!(find(8), Some(b"8\0\0\0\0".to_vec()), "filled up to the longest");
            assert_eq!(find(9), None);
            assert_eq!(client.at(place).read_consistent(&object).expect("an answer").payload, b"payload");
        }
    }
}

#[test]
fn streams_are_worked_on_by_the_nic() {
    let (_node, mut client) = pair();
    let values: Vec<u8> = (0..50_000u64).flat_map(|n| (n % 1000).to_le_bytes()).collect();
    let summed = client.at(Placement::Nic).checksum(&values).expect("a checksum");
    assert_eq!((summed.len, summed.crc), (values.len() as u64, crc64(&values)));
    let estimate = client.at(Placement::Nic).distinct(&values, 12).expect("an estimate");
    assert_eq!(estimate.values, 50_000);
    assert!((estimate.distinct - 1000.0).abs() < 50.0, "{}", estimate.distinct);
    let error = failure(client.at(Placement::Host).checksum(&values)).to_string();
    assert!(error.contains("call it at Placement::Nic"), "{error}");

    // More partitions than one packet has room for.
    for bits in [2, 9] {
        let count = 1u64 << bits;
        let room = 50_000 / count + 1000;
        let region = client.alloc(8 * room * count).expect("memory");
        let partition = |n| Partition { va: region.va + 8 * room * n, values: room as u32 };
        let partitions: Vec<_> = (0..count).map(partition).collect();
        let shuffle = Shuffle { region: &region, partitions: &partitions, hashed: false, values: &values };
        assert_eq!(client.at(Placement::Nic).shuffle(shuffle).expect("partitions"), 50_000);
        let mut first = [0; 8];
        client.read(&region, 8 * room * 3, &mut first).expect("a read");
        assert_eq!(u64::from_le_bytes(first), 3);
    }
}

#[test]
fn rows_are_filtered_and_summed() {
    let (_node, mut client) = pair();
    let rows: Vec<u8> = (0..100u64).flat_map(|n| [n.to_le_bytes(), (n % 4).to_le_bytes()].concat()).collect();
    let region = client.alloc(rows.len() as u64).expect("memory");
    client.write(&region, 0, &rows).expect("a write");
    let column = |offset| Column { offset, kind: ColumnType::U64 };
    let params = FilterParams {
        row_len: 16,
        column: column(0),
        predicate: RowPredicate::Less(10),
        source: Source::Memory { key: region.key, va: region.va, rows: 100 },
        output: FilterOutput::Reply,
    };
    for place in Placement::REAL {
        assert_eq!(client.at(place).filter(params).expect("rows"), Filtered::Rows(rows[..160].to_vec()));
        let output = FilterOutput::Aggregate { column: column(0), group: Some(column(8)) };
        let summed = client.at(place).filter(FilterParams { output, ..params }).expect("groups");
        let Filtered::Groups(groups) = summed else { panic!("{summed:?}") };
        let sums: Vec<_> = groups.iter().map(|group| (group.key, group.count, group.sum)).collect();
        assert_eq!(sums, [(0, 3, 12), (1, 3, 15), (2, 2, 8), (3, 2, 10)]);
    }
    let params = FilterParams { source: Source::Payload, ..params };
    let filtered = client.at(Placement::Nic).call(Filter { params, rows: Some(&rows) }).expect("rows");
    assert_eq!(filtered, Filtered::Rows(rows[..160].to_vec()));
}

#[test]
fn many_calls_are_under_way_and_some_are_given_up() {
    let (node, mut client) = pair();
    let table = client.load_table((0..2000u32).map(|n| (n.to_le_bytes(), n.to_le_bytes()))).expect("a table");
    let keys: Vec<[u8; 4]> = (0..2000u32).map(u32::to_le_bytes).collect();
    for place in Placement::REAL {
        let calls: Vec<_> = keys.iter().map(|key| client.at(place).submit(Get::new(&table, key))).collect();
        for (n, (call, key)) in calls.into_iter().zip(&keys).enumerate() {
            // A call that nobody waits for goes on, and nobody minds.
            if n % 3 > 0 {
                assert_eq!(client.wait(call).expect("a value").as_deref(), Some(&key[..]));
            }
        }
        let mut other = Client::connect(node.address()).expect("a connection");
        let call = client.at(place).submit(Get::new(&table, &keys[0]));
        assert!(failure(other.wait(call)).to_string().contains("another client"));
        // What needs the client alone waits until the others have ended.
        client.alloc(8).expect("memory");
        assert_eq!(client.in_flight(), 0);
    }
}

#[test]
fn kernels_of_ones_own_run_everywhere_and_can_be_replaced() {
    const ADD: &str = r#"(module
        (import "remora" "reply" (func $reply (param i32 i32) (result i32)))
        (memory (export "memory") 1)
        (global (export "params") i32 (i32.const 0))
        (func (export "run") (param i32) (result i32)
          (if (i64.eqz (i64.load (i32.const 0))) (then (return (i32.const 1))))
          (i64.store (i32.const 8) (i64.add (i64.load (i32.const 0)) (i64.const STEP)))
          (call $reply (i32.const 8) (i32.const 8))))"#;
    let (node, mut client) = pair();
    let mut other = Client::connect(node.address()).expect("a connection");
    let limits = ModuleLimits::default();
    for step in ["1", "2"] {
        let text = ADD.replace("STEP", step);
        let add = client.deploy::<u64, Option<u64>>("add", text, limits).expect("deployed");
        for place in Placement::REAL {
            let sum = client.at(place).call(add.with(&40)).expect("a sum");
            assert_eq!(sum, Some(40 + step.parse::<u64>().unwrap()), "{place}");
            assert_eq!(client.at(place).call(add.with(&0)).expect("an answer"), None);
        }
        let found = other.kernel::<u64, u64>("add").expect("the others' kernel");
        assert_eq!(found.module().version, add.module().version);
        assert_eq!(other.at(Placement::Nic).call(found.with(&40)).expect("a sum"), 40 + step.parse::<u64>().unwrap());
        assert!(matches!(
            failure(other.at(Placement::Nic).call(found.with(&0))),
            Error::Kernel { status: Status::NotFound, .. }
        ));
        let wrong = other.kernel::<u64, u32>("add").expect("the others' kernel");
        let error = failure(other.at(Placement::Nic).call(wrong.with(&1)));
        assert!(matches!(error, Error::Reply { len: 8, .. }), "{error}");
    }
    assert!(failure(client.deploy::<(), ()>("bad", "(module", limits)).to_string().contains("kernel bad"));
    client.remove_kernel("add").expect("removed");
    assert!(client.kernels().expect("a list").is_empty());
    assert!(failure(client.kernel::<u64, u64>("add")).to_string().contains("deploy it"));
}

#[test]
fn errors_say_what_to_do() {
    let (node, mut client) = pair();
    let region = client.alloc(64).expect("memory");
    assert!(failure(client.write(&region, 60, &[0; 8])).to_string().contains("of a region of 64 bytes"));
    assert!(failure(client.fetch_add(&region, 4, 1)).to_string().contains("multiple of 8"));
    // An element that is followed by itself.
    client.write(&region, 8, &region.va.to_le_bytes()).expect("a write");
    let endless = Traverse(TraversalParams::list(region.va, 7, 8, region.key, region.key));
    for place in [Placement::Nic, Placement::Host] {
        let error = failure(client.at(place).call(endless));
        assert!(matches!(error, Error::Kernel { status: Status::StepLimit, .. }), "{error}");
        assert!(error.to_string().contains("look for a cycle"), "{error}");
        assert!(error.to_string().contains(place.name()), "{error}");
    }
    let foreign = Traverse(TraversalParams::list(region.va, 7, 8, region.key ^ 1, region.key));
    let error = failure(client.at(Placement::Nic).call(foreign)).to_string();
    assert!(error.contains("AccessDenied") && error.contains("still allocated"), "{error}");
    let error = failure(client.at(Placement::Accelerator).call(endless)).to_string();
    assert!(error.contains("in the modelled world"), "{error}");

    // The node goes: calls under way and later ones end, and say where.
    let pending = client.at(Placement::Host).submit(endless);
    node.shutdown();
    let ended = client.wait(pending);
    assert!(matches!(ended, Err(Error::Lost { .. } | Error::Kernel { .. })), "{ended:?}");
    for place in Placement::REAL {
        let error = failure(client.at(place).call(endless));
        assert!(matches!(error, Error::Lost { .. }), "{error}");
    }
    assert!(matches!(failure(client.alloc(8)), Error::Lost { .. }));
}

#[test]
fn nobody_at_an_address_is_told_within_seconds() {
    let start = std::time::Instant::now();
    let timeout = std::time::Duration::from_millis(100);
    let error = failure(Client::builder().connect_timeout(timeout).connect("127.0.0.250")).to_string();
    assert!(start.elapsed() >= timeout);
    assert!(error.contains("remora node --listen 127.0.0.250"), "{error}");
}

/// One program for a client of any world.
fn any_world<K: Caller>(caller: K, place: Placement, call: Traverse) -> K::Outcome<Traverse> {
    caller.call_at(place, call)
}

#[test]
fn programs_can_be_generic_over_the_world() {
    let (_node, mut client) = pair();
    let list = client.load_list([(1, "one")]).expect("a list");
    let found = any_world(&mut client, Placement::Nic, Traverse::new(&list, 1));
    assert_eq!(found.expect("an answer"), Some(b"one".to_vec()));
    let platform = remora::model::Platform::load("rambda").expect("a platform");
    let mut modelled = remora::model::ModelledClient::new(&platform).expect("a model");
    let list = modelled.load_list([(1, "one")]).expect("a list");
    for place in Placement::ALL {
        let found = any_world(&mut modelled, place, Traverse::new(&list, 1)).expect("an answer");
        assert_eq!(found.reply, Some(b"one".to_vec()));
        assert!(found.latency.as_nanos() > 500, "{place}: {:?}", found.latency);
    }
}
