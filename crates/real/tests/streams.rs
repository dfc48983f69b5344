//! Kernels on payload streams and sketches of WRITEs, from a client through both NICs to a node's memory.

use std::net::{IpAddr, Ipv4Addr};

use remora_kernel::hll::{HllParams, Sketch};
use remora_kernel::shuffle::{OVERFLOW, Partition, ShuffleParams, hash};
use remora_kernel::{Status, op};
use remora_real::{Client, ClientConfig, LinkKind, Node, NodeConfig, RemoteRegion};

const LINKS: [LinkKind; 2] = [LinkKind::Shm, LinkKind::Udp];

fn address(host: u8, last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 15, host, last))
}

fn node(host: u8) -> Node {
    Node::start(NodeConfig { memory_limit: 64 << 20, ..NodeConfig::new(address(host, 1)) }).expect("node")
}

fn client(host: u8, last: u8, link: impl Into<Option<LinkKind>>) -> Client {
    Client::connect(ClientConfig { link: link.into(), ..ClientConfig::new(address(host, 1), address(host, last)) })
        .expect("connection")
}

fn bytes(values: impl Iterator<Item = u64>) -> Vec<u8> {
    values.flat_map(u64::to_le_bytes).collect()
}

fn read(client: &mut Client, region: &RemoteRegion, at: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    client.read(region, at, &mut out).expect("read");
    out
}

/// Partitions with room for `room` values each, eight bytes apart.
fn layout(region: &RemoteRegion, bits: u8, room: u32) -> Vec<Partition> {
    let stride = 8 * u64::from(room) + 8;
    (0..1 << bits).map(|i| Partition { va: region.va + i * stride, values: room }).collect()
}

#[test]
fn a_shuffled_stream_is_in_its_partitions() {
    let node = node(1);
    let values: Vec<u64> = (0..20_000).map(hash).collect();
    for (last, link) in [2, 3].into_iter().zip(LINKS) {
        let mut client = client(1, last, link);
        let region = client.alloc(1 << 20).expect("memory");
        for hashed in [false, true] {
            let to = layout(&region, 4, 2000);
            let params = ShuffleParams { bits: 4, hashed, key: region.key }.encode(&to);
            let (params, histogram) = params.split_at(8 + 5 * 12);
            let payload = [histogram, &bytes(values.iter().copied())].concat();
            let reply = client.call_stream(op::SHUFFLE, params, &payload).expect("call");
            assert_eq!(reply, (Status::Ok, 20_000u64.to_le_bytes().to_vec()), "{link:?}");
            let name = |value: u64| if hashed { hash(value) } else { value } % 16;
            for (at, partition) in to.iter().enumerate() {
                let expect = bytes(values.iter().copied().filter(|&value| name(value) == at as u64));
                assert_eq!(read(&mut client, &region, partition.va - region.va, expect.len()), expect);
            }
        }
    }
    node.shutdown();
}

#[test]
fn a_partition_that_overflows_is_an_error_and_nothing_outside_is_written() {
    let node = node(2);
    for (last, link) in [2, 3].into_iter().zip(LINKS) {
        let mut client = client(2, last, link);
        let region = client.alloc(1 << 20).expect("memory");
        client.write(&region, 0, &[0xAA; 1 << 20]).expect("filled");
        // Partition 1 overflows, in the middle of a stream of many packets and at its very end.
        for (room, values) in [(500u32, 20_000u64), (2501, 10_008)] {
            let to = layout(&region, 2, room);
            let params = ShuffleParams { bits: 2, hashed: false, key: region.key }.encode(&to);
            let payload = bytes((0..values).map(|i| if i < 4 * u64::from(room) { i } else { 4 * i + 1 }));
            let (status, reply) = client.call_stream(op::SHUFFLE, &params, &payload).expect("call");
            assert_eq!((status, &reply[..]), (OVERFLOW, &[][..]), "{link:?}");
            for partition in &to {
                let behind = partition.va + 8 * u64::from(room) - region.va;
                assert_eq!(read(&mut client, &region, behind, 8), [0xAA; 8], "between partitions");
            }
            let end = to[3].va + 8 * u64::from(room) - region.va;
            let rest = read(&mut client, &region, end, (1 << 20) - end as usize);
            assert!(rest.iter().all(|&byte| byte == 0xAA), "behind the last one");
        }
        // The connection lives, and the next call is served.
        assert_eq!(client.call_stream(op::CHECKSUM, &[], &[1; 100]).expect("call").0, Status::Ok);
    }
    node.shutdown();
}

#[test]
fn writes_past_a_sketch_are_written_and_counted() {
    let node = node(3);
    for (last, link) in [2, 3].into_iter().zip(LINKS) {
        let mut client = client(3, last, link);
        let data = client.alloc(1 << 20).expect("memory");
        let registers = client.alloc(1 << 12).expect("memory");
        let values = bytes((0..100_000).map(|i| hash(i % 60_000)));
        client.attach_sketch(&data, &registers, 12).expect("attached");
        client.write(&data, 8, &values).expect("written");
        assert!(read(&mut client, &data, 8, values.len()) == values, "written as ever");

        let mut sketch = Sketch::new(12).expect("precision");
        sketch.insert_all(&values);
        let seen = read(&mut client, &registers, 0, 1 << 12);
        assert_eq!(&seen[..], sketch.registers(), "{link:?}: the very registers of all values");
        let estimate = client.estimate(&registers, 12).expect("estimate");
        assert!((estimate / 60_000.0 - 1.0).abs() < 4.0 * 1.04 / 64.0, "{estimate}");

        // Another sketch is merged into the registers, and WRITEs go on being counted.
        let mut other = Sketch::new(12).expect("precision");
        (0..1000).for_each(|i| other.insert(hash(1_000_000 + i)));
        let kept = Some((registers.key, registers.va));
        let merge = HllParams { lg_k: 12, want_image: false, payload_is_image: true, registers: kept };
        let merged = client.call_stream(op::HYPERLOGLOG, &merge.encode(), &other.to_image()).expect("call");
        assert_eq!(merged.0, Status::Ok);
        sketch.merge(&other);
        let more = bytes((0..5000).map(|i| hash(2_000_000 + i)));
        client.write(&data, 0, &more).expect("written");
        sketch.insert_all(&more);
        assert_eq!(&read(&mut client, &registers, 0, 1 << 12)[..], sketch.registers());

        client.detach_sketch(&data).expect("detached");
        client.write(&data, 0, &bytes((0..5000).map(|i| hash(3_000_000 + i)))).expect("written");
        assert_eq!(&read(&mut client, &registers, 0, 1 << 12)[..], sketch.registers(), "no more");
        assert!(client.detach_sketch(&data).is_err());
    }
    node.shutdown();
}

#[test]
fn a_sketch_needs_keys_and_ends_with_its_regions() {
    let node = node(4);
    let mut client = client(4, 2, LinkKind::Shm);
    let data = client.alloc(4096).expect("memory");
    let registers = client.alloc(4096).expect("memory");
    let foreign = RemoteRegion { key: data.key ^ 0x100, ..data };
    assert!(client.attach_sketch(&foreign, &registers, 12).is_err());
    assert!(client.attach_sketch(&data, &RemoteRegion { key: data.key ^ 0x100, ..registers }, 12).is_err());
    assert!(client.attach_sketch(&data, &registers, 13).is_err(), "more registers than the region has room for");
    assert!(client.attach_sketch(&data, &registers, 3).is_err());
    client.attach_sketch(&data, &registers, 10).expect("attached");
    client.attach_sketch(&data, &registers, 12).expect("in place of the first");

    let mut other = self::client(4, 3, LinkKind::Shm);
    assert!(other.attach_sketch(&data, &registers, 12).is_err(), "somebody else's");
    client.free(&registers).expect("freed");
    assert!(client.detach_sketch(&data).is_err(), "the sketch went with its registers");
    let registers = other.alloc(4096).expect("memory");
    other.attach_sketch(&data, &registers, 12).expect("free again");
    client.write(&data, 0, &bytes(1..513)).expect("written");
    let estimate = other.estimate(&registers, 12).expect("estimate");
    assert!((estimate / 512.0 - 1.0).abs() < 0.1, "{estimate}");
    node.shutdown();
}

#[test]
fn what_travels_compressed_is_restored_and_costs_fewer_bytes() {
    let node = node(5);
    for (last, link) in [2, 3].into_iter().zip(LINKS) {
        let mut client = client(5, last, link);
        let region = client.alloc(4 << 20).expect("memory");
        let text: Vec<u8> = (0..400_000u32).flat_map(|i| format!("row {} ", i % 1000).into_bytes()).collect();
        let noise = bytes((0..50_000).map(hash));
        for data in [&text[..3_000_000], &noise, b"short", b""] {
            let before = client.counters().wire_bytes;
            client.write_compressed(&region, 24, data).expect("written");
            let cost = client.counters().wire_bytes - before;
            assert!(read(&mut client, &region, 24, data.len()) == data, "{link:?}: {} bytes", data.len());
            if data.len() == 3_000_000 {
                assert!(cost < 1_500_000, "{link:?}: {cost} bytes for 3 MB of text");
            }
        }
        assert!(client.write_compressed(&region, 4 << 20, b"x").is_err(), "beyond the end");
        let gone = RemoteRegion { key: region.key ^ 0x100, ..region };
        assert!(client.write_compressed(&gone, 0, &text).is_err(), "the kernel is refused");
        client.write_compressed(&region, 0, &text[..100]).expect("and the connection lives");
    }
    node.shutdown();
}
