//! The key-value store in the real world: callers at once, by every way, and one that is gone in the middle.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use remora_kernel::kv::{KvParams, KvRef, KvValue, hash, header, locate, pair, table_of, value_in};
use remora_kernel::{Placement, Status, op};
use remora_real::{Client, ClientConfig, LinkKind, Node, NodeConfig, RemoteRegion, RingConfig};
use remora_service::{CallKind, RESERVED_BLOCKS};
use remora_testing::eventually;

/// Log2 of the buckets: few, so that chains are long.
const LG_BUCKETS: u8 = 4;
const LEN: u64 = 8 << 20;
const KEYS: u32 = 40;

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 21, 1, last).into()
}

fn client(last: u8) -> Client {
    let config = ClientConfig { link: Some(LinkKind::Shm), ..ClientConfig::new(ip(1), ip(last)) };
    let mut client = Client::connect(config).expect("connection");
    for placement in [Placement::Nic, Placement::Host] {
        client.open_rings(placement, RingConfig::default()).expect("rings");
    }
    client
}

fn params(at: KvRef, key: u32, value: &[u8]) -> Vec<u8> {
    let (key, mut out) = (key.to_le_bytes(), Vec::new());
    KvParams::new(at, hash(&key, 3), &key, value).encode(&mut out);
    out
}

/// A value that says whose it is, of what key, and the how manieth of his.
fn value(key: u32, writer: u8, number: u32) -> Vec<u8> {
    let len = 9 + (key as usize * 7 + number as usize * 13) % 200;
    let mut out = [&key.to_le_bytes()[..], &[writer], &number.to_le_bytes()].concat();
    out.resize(len, writer ^ number as u8);
    out
}

/// Whether somebody wrote this.
fn is_whole(key: u32, found: &[u8]) -> bool {
    let number = found.get(5..9).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
    number.is_some_and(|number| found == value(key, found[4], number))
}

/// Makes calls of all kinds, some at once.
fn work(client: &mut Client, at: KvRef, writer: u8, calls: u32) {
    let mut asked: Vec<(u64, u32)> = Vec::new();
    let (mut next, mut ended) = (0u32, 0);
    while ended < calls {
        while next < calls && next < ended + 16 {
            let key = (next * 31 + u32::from(writer) * 17) % KEYS;
            let kind =
                [op::KV_PUT, op::KV_GET, op::KV_PUT, op::KV_UPDATE, op::KV_GET, op::KV_DELETE][next as usize % 6];
            let bytes = if matches!(kind, op::KV_PUT | op::KV_UPDATE) { value(key, writer, next) } else { Vec::new() };
            let params = params(at, key, &bytes);
            let submitted = match (next + u32::from(writer)) % 5 {
                0 => client.submit_by_ring(Placement::Nic, kind, &params, next),
                1 => client.submit_by_ring(Placement::Host, kind, &params, next),
                2 => client.submit(Placement::Host, kind, &params, next),
                3 if kind == op::KV_GET => client.submit(Placement::Client, kind, &params, next),
                _ => client.submit(Placement::Nic, kind, &params, next),
            };
            if submitted.is_err() {
                break;
            }
            asked.push((kind, key));
            next += 1;
        }
        let done = &mut |tag: u32, status, reply: &[u8]| {
            let (kind, key) = asked[tag as usize];
            match status {
                Status::Ok if kind == op::KV_GET => assert!(is_whole(key, reply), "key {key}: {reply:?}"),
                Status::Ok => {}
                // Many write few pairs: some give up, and say so.
                Status::NotFound | Status::Inconsistent => {}
                other => panic!("{kind} of key {key} by {writer}: {other:?}"),
            }
        };
        ended += client.poll(done).expect("connection") as u32;
    }
}

/// Asks until somebody else who writes the same pair, and waits for a core meanwhile, is done.
fn ask(client: &mut Client, placement: Placement, op: u64, params: &[u8]) -> (Status, Vec<u8>) {
    eventually("an answer", || {
        Some(client.call(placement, op, params).expect("call")).filter(|(status, _)| *status != Status::Inconsistent)
    })
}

fn store(client: &mut Client) -> (RemoteRegion, KvRef) {
    let region = client.alloc(LEN).expect("memory");
    client.write(&region, 0, &header(LG_BUCKETS, LEN, 3).expect("room")).expect("write");
    (region, KvRef::new(region.va, region.key, LG_BUCKETS))
}

#[test]
fn callers_at_once_and_one_that_vanishes_leave_a_whole_store() {
    let _node = Node::start(NodeConfig { memory_limit: 256 << 20, ..NodeConfig::new(ip(1)) }).expect("node");
    let mut owner = client(2);
    let (_region, at) = store(&mut owner);
    std::thread::scope(|scope| {
        for writer in 3..6u8 {
            scope.spawn(move || work(&mut client(writer), at, writer, 600));
        }
        scope.spawn(move || {
            for last in 10..13 {
                let mut gone = client(last);
                for tag in 0..60 {
                    let params = params(at, tag % KEYS, &value(tag % KEYS, last, tag));
                    let placement = if tag % 2 == 0 { Placement::Nic } else { Placement::Host };
                    let _ = gone.submit_by_ring(placement, op::KV_PUT, &params, tag);
                }
                let _ = gone.poll(&mut |_, _, _| {});
                // As a process that is killed: nobody hears of it again.
                gone.device().stop();
                std::mem::forget(gone);
            }
        });
    });
    // All of it is still there to be written and read.
    for key in 0..KEYS {
        for placement in [Placement::Nic, Placement::Host] {
            let bytes = value(key, 99, key);
            let put = params(at, key, &bytes);
            assert_eq!(ask(&mut owner, placement, op::KV_PUT, &put).0, Status::Ok, "key {key}");
            for place in Placement::REAL {
                let (status, reply) = ask(&mut owner, place, op::KV_GET, &params(at, key, &[]));
                // What those who are gone had asked for may still be done.
                let is_right = reply == bytes || is_whole(key, &reply) && (10..13).contains(&reply[4]);
                assert!(status == Status::Ok && is_right, "key {key} at the {place}: {status:?} {reply:?}");
            }
        }
    }
}

/// A store of two buckets and 200 KB gets thousands of pairs: whoever reads meanwhile, by one-sided READs too, finds
/// all that were put before.
#[test]
fn a_store_grows_under_its_writers_and_readers() {
    const EACH: u32 = 4000;
    const SMALL: u64 = 200 << 10;
    let _node = Node::start(NodeConfig { memory_limit: 64 << 20, ..NodeConfig::new(ip(61)) }).expect("node");
    let connect = |last| {
        let mut client = Client::connect(ClientConfig::new(ip(61), ip(last))).expect("connection");
        for placement in [Placement::Nic, Placement::Host] {
            client.open_rings(placement, RingConfig::default()).expect("rings");
        }
        client
    };
    let mut owner = connect(62);
    let region = owner.alloc_growing(SMALL).expect("memory");
    owner.write(&region, 0, &header(1, SMALL, 3).expect("room")).expect("write");
    let at = KvRef::new(region.va, region.key, 1);
    let put: [AtomicU32; 2] = Default::default();
    std::thread::scope(|scope| {
        for (writer, put) in (0..).zip(&put) {
            scope.spawn(move || {
                let mut client = connect(63 + writer);
                for n in 0..EACH {
                    let key = n * 2 + u32::from(writer);
                    let place = [Placement::Nic, Placement::Host][n as usize % 2];
                    let params = params(at, key, &value(key, writer, n));
                    assert_eq!(ask(&mut client, place, op::KV_PUT, &params).0, Status::Ok, "{key}");
                    put.store(n + 1, Ordering::Release);
                }
            });
        }
        for (reader, put) in (0..).zip(&put) {
            scope.spawn(move || {
                let mut client = connect(65 + reader);
                for turn in 0.. {
                    let there = put.load(Ordering::Acquire);
                    // One of the latest, or of all.
                    let n = if turn % 2 == 0 {
                        there.wrapping_sub(1 + turn / 2 % 20)
                    } else {
                        turn.wrapping_mul(7919) % there.max(1)
                    };
                    if n < there {
                        let key = n * 2 + u32::from(reader);
                        let place = Placement::REAL[turn as usize % 3];
                        let (status, found) = ask(&mut client, place, op::KV_GET, &params(at, key, &[]));
                        assert_eq!((status, found), (Status::Ok, value(key, reader, n)), "key {key} at the {place}");
                    }
                    if there == EACH {
                        break;
                    }
                }
            });
        }
    });
    let mut first_bytes = [0; 16];
    owner.read(&region, 0, &mut first_bytes).expect("read");
    let grown = KvRef { table: table_of(&first_bytes).expect("a store"), ..at };
    assert!(grown.table.lg_buckets >= 7, "{grown:?}");
    for key in 0..2 * EACH {
        let wanted = (Status::Ok, value(key, (key % 2) as u8, key / 2));
        for at in [at, grown] {
            assert_eq!(ask(&mut owner, Placement::Nic, op::KV_GET, &params(at, key, &[])), wanted, "key {key}");
        }
    }
}

#[test]
fn a_writer_whose_place_is_chosen_is_never_refused() {
    let _node = Node::start(NodeConfig { memory_limit: 64 << 20, ..NodeConfig::new(ip(51)) }).expect("node");
    let mut client = Client::connect(ClientConfig::new(ip(51), ip(52))).expect("connection");
    let (_region, at) = store(&mut client);
    let put = |client: &mut Client, key: u32, bytes: &[u8], by_ring| {
        let (params, mut ended) = (params(at, key, bytes), None);
        let place = client.submit_auto(CallKind::of(op::KV_PUT, &params), &params, by_ring, 0).expect("room");
        while ended.is_none() {
            client.poll(&mut |_, status, _| ended = Some(status)).expect("connection");
        }
        (place, ended)
    };
    for n in 0..4000 {
        let (place, ended) = put(&mut client, n % KEYS, b"value", false);
        assert_eq!((ended, place == Placement::Client), (Some(Status::Ok), false), "call {n} at the {place}");
    }
    // What no message holds goes by rings, if there are any.
    let long = vec![1; 5000];
    assert_eq!(put(&mut client, 1, &long, true), (Placement::Host, Some(Status::BadParams)));
    client.open_rings(Placement::Host, RingConfig::default()).expect("rings");
    assert_eq!(put(&mut client, 1, &long, true), (Placement::Host, Some(Status::Ok)));
}

#[test]
fn blocks_that_a_client_reserved_are_free_when_it_is_gone() {
    let _node = Node::start(NodeConfig { memory_limit: 64 << 20, ..NodeConfig::new(ip(41)) }).expect("node");
    let connect = |last| Client::connect(ClientConfig::new(ip(41), ip(last))).expect("connection");
    let mut owner = connect(42);
    let (_region, at) = store(&mut owner);
    let mut params = Vec::new();
    KvParams { value_len: 500_000, ..KvParams::of_key(at, hash(b"long", 3), b"long") }.encode(&mut params);
    // As many as there is room for, by calls to both places.
    let reserve = |client: &mut Client| {
        let places = [Placement::Nic, Placement::Host].into_iter().cycle();
        places.take_while(|place| client.call(*place, op::KV_RESERVE, &params).expect("call").0 == Status::Ok).count()
    };
    let mut first = connect(43);
    let room = reserve(&mut first);
    assert!(room > 3, "{room}");
    assert_eq!(reserve(&mut owner), 0);
    drop(first);
    let mut again = 0;
    eventually("all of them are free again", || {
        again += reserve(&mut owner);
        (again == room).then_some(())
    });
}

#[test]
fn a_value_of_a_megabyte_goes_by_one_sided_verbs() {
    let _node = Node::start(NodeConfig { memory_limit: 64 << 20, ..NodeConfig::new(ip(31)) }).expect("node");
    let config = ClientConfig { timeout: Duration::from_secs(20), ..ClientConfig::new(ip(31), ip(32)) };
    let mut client = Client::connect(config).expect("connection");
    let (region, at) = store(&mut client);
    let (key, long) = (b"long".as_slice(), vec![7; 1 << 20]);
    let of_key = KvParams { value_len: long.len() as u32, ..KvParams::of_key(at, hash(key, 3), key) };
    let mut reserve = Vec::new();
    of_key.encode(&mut reserve);
    let (status, block) = client.call(Placement::Nic, op::KV_RESERVE, &reserve).expect("call");
    assert_eq!(status, Status::Ok);
    let block = u64::from_le_bytes(block.try_into().expect("an offset"));
    let (bytes, sum) = pair(key, &long);
    client.write(&region, block, &bytes).expect("write");
    let mut put = Vec::new();
    KvParams { value: remora_kernel::kv::KvValue::Block(block, sum), ..of_key }.encode(&mut put);
    assert_eq!(client.call(Placement::Nic, op::KV_PUT, &put).expect("call").0, Status::Ok);
    let (status, _) = client.call(Placement::Host, op::KV_GET, &reserve).expect("call");
    assert_eq!(status, Status::ReplyTooLong);
    let mut bucket = [0; 64];
    let (first, depth) = locate(at, of_key.hash, None).1.expect("a bucket");
    client.read(&region, first, &mut bucket).expect("read");
    let (blocks, _) = locate(at, of_key.hash, Some((&bucket, depth)));
    let mut bytes = vec![0; blocks[0].1 as usize];
    client.read(&region, blocks[0].0, &mut bytes).expect("read");
    assert!(bytes[value_in(&bytes, key).expect("the pair")] == long);
}

/// By whatever way he calls, and however often.
#[test]
fn who_has_as_many_blocks_as_he_may_is_refused_the_next_and_served_all_else() {
    let here = Ipv4Addr::new(127, 21, 9, 1).into();
    let _node = Node::start(NodeConfig { memory_limit: 256 << 20, ..NodeConfig::new(here) }).expect("node");
    let config = ClientConfig::new(here, Ipv4Addr::new(127, 21, 9, 2).into());
    let mut client = Client::connect(ClientConfig { link: Some(LinkKind::Shm), ..config }).expect("connection");
    let (_, at) = store(&mut client);
    let key = 7u32.to_le_bytes();
    let block = |value| {
        let mut out = Vec::new();
        KvParams { value_len: 40, value, ..KvParams::of_key(at, hash(&key, 3), &key) }.encode(&mut out);
        out
    };
    let reserve = block(KvValue::Bytes(&[]));
    let mut blocks = Vec::new();
    for n in 0..RESERVED_BLOCKS {
        let placement = [Placement::Nic, Placement::Host][n % 2];
        let (status, reply) = client.call(placement, op::KV_RESERVE, &reserve).expect("call");
        assert_eq!(status, Status::Ok, "{n}");
        blocks.push(u64::from_le_bytes(reply.try_into().expect("a block")));
    }
    // As many refused in a row as there are turns, and one behind them that is not.
    let mut tags = 0..200;
    let mut refused = 0;
    while refused < 199 {
        while let Some(tag) = tags.next() {
            let (op, params) =
                if tag == 199 { (op::KV_GET, params(at, 7, &[])) } else { (op::KV_RESERVE, reserve.clone()) };
            if client.submit([Placement::Nic, Placement::Host][tag % 2], op, &params, tag as u32).is_err() {
                tags = tag..200;
                break;
            }
        }
        client
            .poll(&mut |tag: u32, status, _: &[u8]| {
                assert_eq!(status, if tag == 199 { Status::NotFound } else { Status::Busy });
                refused += u32::from(tag != 199);
            })
            .expect("connection");
    }
    let release = block(KvValue::Block(blocks[9], 0));
    assert_eq!(client.call(Placement::Nic, op::KV_RELEASE, &release).expect("call").0, Status::Ok);
    for status in [Status::Ok, Status::Busy] {
        assert_eq!(client.call(Placement::Host, op::KV_RESERVE, &reserve).expect("call").0, status);
    }
}
