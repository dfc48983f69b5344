//! What a client builds and writes to a region, the kernels find there.

use proptest::prelude::*;
use remora_kernel::{Call, Limits, Runner, Status, host_runner, op};
use remora_memory::{Access, Buffer, Pd, Registry};
use remora_store::{Arena, Place, checked, hash, list, text};
use std::convert::Infallible;
use std::sync::Arc;

/// A node with a runner, and the regions that a client allocates on it.
struct Node {
    registry: Arc<Registry>,
    pd: Pd,
    runner: Box<dyn Runner + Send>,
}

impl Node {
    fn new() -> Node {
        let registry = Arc::new(Registry::new([5; 32]));
        let pd = registry.alloc_pd();
        let runner = host_runner(registry.clone(), true, 4, Limits::default());
        Node { registry, pd, runner }
    }

    fn alloc(&self, len: usize) -> Place {
        let buffer = Buffer::from_boxed(vec![0; len].into());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = self.registry.register(self.pd, &buffer, 0, len, None, access).unwrap();
        Place { va: region.va(), key: region.key() }
    }

    fn write(&self, place: Place, data: &[u8]) {
        self.registry.lookup(place.key).unwrap().write(place.va, data).unwrap();
    }

    fn table(&mut self, layout: hash::Layout) -> hash::Table {
        layout.load(self).unwrap()
    }

    fn call(&mut self, op: u64, params: &[u8]) -> (Status, Vec<u8>) {
        let mut call = Call::new(op, params, 4096);
        call.pd = Some(self.pd);
        self.runner.start(call).unwrap();
        let mut result = None;
        while self.runner.in_flight() > 0 {
            self.runner.poll(&mut |mut call, status| result = Some((status, std::mem::take(&mut call.reply))));
        }
        result.unwrap()
    }
}

impl Arena for Node {
    type Error = Infallible;

    fn alloc(&mut self, len: u64) -> Result<Place, Infallible> {
        Ok(Node::alloc(self, len as usize))
    }

    fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Infallible> {
        Node::write(self, at, bytes);
        Ok(())
    }
}

#[test]
fn lists_of_every_length() {
    let mut node = Node::new();
    for len in [1, 2, 4, 8, 16, 32] {
        let values: Vec<[u8; 64]> = (0..len).map(|i| [i as u8; 64]).collect();
        let records: Vec<_> = (0..len).map(|i| (1000 + i, &values[i as usize][..])).collect();
        let list = list::List::load(&records, 64, &mut node).unwrap();
        for i in 0..len {
            let (status, reply) = node.call(op::TRAVERSAL, &list.traversal_params(1000 + i).encode());
            assert_eq!((status, &reply[..]), (Status::Ok, &values[i as usize][..]), "{i} of {len}");
        }
        assert_eq!(node.call(op::TRAVERSAL, &list.traversal_params(1).encode()).0, Status::NotFound);
    }
}

#[test]
fn list_image_is_figure_6() {
    let (elements, values) = (Place { va: 640, key: 1 }, Place { va: 6400, key: 2 });
    let (_, image) = list::build([(7, &b"ab"[..]), (8, &b"abcdef"[..])], 4, elements, values);
    let word = |at: usize| u64::from_le_bytes(image.elements[at..at + 8].try_into().unwrap());
    assert_eq!([word(0), word(8), word(16)], [7, 704, 6400]);
    assert_eq!([word(64), word(72), word(80)], [8, 0, 6404]);
    assert_eq!((image.elements.len(), &image.values[..]), (128, &b"ab\0\0abcd"[..]));
    let (_, empty) = list::build([], 4, elements, values);
    assert!(empty.elements.is_empty() && empty.values.is_empty());
}

#[test]
fn checked_objects() {
    let mut node = Node::new();
    let place = node.alloc(108);
    let mut object = [3; 108];
    let params = checked::params(place, 108, 3).encode();
    node.write(place, &object);
    assert_eq!(node.call(op::CONSISTENCY, &params).0, Status::Inconsistent);
    checked::seal(&mut object);
    node.write(place, &object);
    let (status, reply) = node.call(op::CONSISTENCY, &params);
    assert_eq!((status, checked::split_reply(&reply)), (Status::Ok, Some((&[3; 100][..], 1))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn number_keys_look_up_like_a_map(
        records in prop::collection::hash_map(any::<u64>(), prop::collection::vec(any::<u8>(), 0..200), 0..300),
        absent in prop::collection::vec(any::<u64>(), 20),
        seed: u64,
    ) {
        let mut node = Node::new();
        let mut builder = hash::TableBuilder::new(seed);
        for (&key, value) in &records {
            builder.insert(key, value).unwrap();
        }
        let table = node.table(builder.build().unwrap());
        for key in records.keys().chain(&absent).copied() {
            let (status, reply) = node.call(op::GET, &table.get_params(key).encode());
            match records.get(&key) {
                Some(value) => prop_assert_eq!((status, &reply), (Status::Ok, value)),
                None => prop_assert_eq!(status, Status::NotFound),
            }
        }
    }

    #[test]
    fn text_keys_look_up_like_a_map(
        records in prop::collection::btree_map("[a-e]{0,6}", "[ -~]{0,99}", 0..200),
        absent in prop::collection::vec("[a-e]{0,6}", 20),
        seed: u64,
    ) {
        let mut node = Node::new();
        let mut builder = text::RecordsBuilder::new(seed);
        for (key, value) in &records {
            builder.insert(key.as_bytes(), value.as_bytes()).unwrap();
        }
        let table = node.table(builder.build().unwrap());
        for key in records.keys().chain(&absent) {
            let (status, reply) = node.call(op::GET, &text::get_params(&table, key.as_bytes()).encode());
            match records.get(key) {
                Some(value) => {
                    prop_assert_eq!(status, Status::Ok);
                    prop_assert_eq!(text::value(&reply, key.as_bytes()), Some(value.as_bytes()));
                    prop_assert_eq!(text::value(&reply, b"another"), None);
                }
                None => prop_assert_eq!(status, Status::NotFound),
            }
        }
    }
}

#[test]
fn text_keys_twice_are_named() {
    let mut builder = text::RecordsBuilder::new(1);
    for key in ["apple", "pear", "apple"] {
        builder.insert(key.as_bytes(), b"1").unwrap();
    }
    let message = builder.build().err().unwrap().to_string();
    assert_eq!(message, "key \"apple\" occurs twice");
}
