//! The example kernels of this repository, as they are shipped, against plain loops.
#![allow(clippy::disallowed_methods, reason = "a test reads files")]

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use remora_kernel::{Call, HostMemory, Kernel, Limits, Status};
use remora_memory::{Access, Buffer, Region, Registry};
use remora_wasm::{Isolation, KernelSet, ModuleLimits};

struct Place {
    kernels: KernelSet,
    memory: HostMemory,
    region: Arc<Region>,
}

const LIMITS: ModuleLimits =
    ModuleLimits { fuel: 10_000_000, memory: 4 << 20, access: Limits { steps: 100_000, bytes: 1 << 30 } };

impl Place {
    fn new() -> Self {
        let registry = Arc::new(Registry::new([5; 32]));
        let pd = registry.alloc_pd();
        let buffer = Buffer::anonymous(1 << 20).unwrap();
        let region = registry.register(pd, &buffer, 0, 1 << 20, Some(0), Access::all()).unwrap();
        let memory = HostMemory::new(registry, pd, true, Limits { steps: u32::MAX, bytes: u64::MAX });
        Place { kernels: KernelSet::default(), memory, region }
    }

    /// Deploys `name` of the repository's kernels.
    fn deploy(&self, name: &str) -> u64 {
        let path = format!("{}/../../kernels/{name}", env!("CARGO_MANIFEST_DIR"));
        let mut bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        if name.ends_with(".wat") {
            bytes = wat::parse_bytes(&bytes).unwrap().into_owned();
        }
        let name = name.replace('.', "-");
        self.kernels.deploy(&name, &bytes, LIMITS, Isolation::Reused).unwrap_or_else(|e| panic!("{path}: {e}")).op
    }

    fn call(&self, op: u64, params: &[&[u8]]) -> (Status, Vec<u8>) {
        let mut call = Call::new(op, &params.concat(), 1 << 16);
        let mut run = Box::pin(self.kernels.run(&self.memory, &mut call));
        let status = loop {
            if let Poll::Ready(status) = run.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                break status;
            }
        };
        drop(run);
        (status, std::mem::take(&mut call.reply))
    }
}

fn words(reply: &[u8]) -> Vec<u64> {
    reply.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn top_k_finds_the_greatest() {
    let place = Place::new();
    let op = place.deploy("topk.wasm");
    let rows: Vec<(u64, u64)> = (0..1000).map(|id| (id, id * 7919 % 503)).collect();
    let bytes: Vec<u8> = rows.iter().flat_map(|row| [row.0.to_le_bytes(), row.1.to_le_bytes()].concat()).collect();
    place.region.write(64, &bytes).unwrap();
    let mut sorted = rows.clone();
    sorted.sort_by_key(|&(id, score)| (u64::MAX - score, id));
    let key = place.region.key().to_le_bytes();
    for k in [1u32, 10, 256] {
        let (status, reply) = place.call(op, &[&key, &k.to_le_bytes(), &64u64.to_le_bytes(), &1000u64.to_le_bytes()]);
        let expect: Vec<u64> = sorted[..k as usize].iter().flat_map(|row| [row.0, row.1]).collect();
        assert_eq!((status, words(&reply)), (Status::Ok, expect), "k = {k}");
    }
    let (status, reply) = place.call(op, &[&key, &9u32.to_le_bytes(), &64u64.to_le_bytes(), &3u64.to_le_bytes()]);
    assert_eq!((status, reply.len()), (Status::Ok, 48), "fewer rows than k");
    assert_eq!(place.call(op, &[&key, &[0; 20]]).0, Status::BadParams);
    let far = (1u64 << 20).to_le_bytes();
    assert_eq!(place.call(op, &[&key, &9u32.to_le_bytes(), &far, &3u64.to_le_bytes()]).0, Status::Other(16));
}

#[test]
fn a_bounded_counter_stops_at_its_bound() {
    let place = Place::new();
    let op = place.deploy("bounded.wasm");
    place.region.write(8, &10u64.to_le_bytes()).unwrap();
    let key = [place.region.key().to_le_bytes(), [0; 4]].concat();
    let take = |n: i64, bound: i64| {
        let (status, reply) = place.call(op, &[&key, &8u64.to_le_bytes(), &n.to_le_bytes(), &bound.to_le_bytes()]);
        (status, words(&reply))
    };
    assert_eq!(take(4, 0), (Status::Ok, vec![6]));
    assert_eq!(take(6, 1), (Status::Other(16), vec![]), "5 may be taken and no more");
    assert_eq!(take(5, 1), (Status::Ok, vec![1]));
    assert_eq!(take(1, 1), (Status::Other(16), vec![]));
    assert_eq!(take(-1, 0), (Status::BadParams, vec![]));
    assert_eq!(take(i64::MAX, i64::MIN), (Status::Ok, vec![(1 - i64::MAX) as u64]));
    assert_eq!(take(i64::MAX, i64::MIN), (Status::Other(16), vec![]), "it does not wrap");
}

#[test]
fn k_hops_reach_what_a_breadth_first_search_reaches() {
    let place = Place::new();
    let op = place.deploy("khop.wat");
    let vertices = 500u32;
    let edges_of = |v: u32| (1..=v % 5).map(move |i| (v * 31 + i * i * 77) % vertices);
    let (mut offsets, mut edges) = (vec![0u64], Vec::new());
    for v in 0..vertices {
        edges.extend(edges_of(v));
        offsets.push(edges.len() as u64);
    }
    let bytes: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
    place.region.write(0, &bytes).unwrap();
    let edge_bytes: Vec<u8> = edges.iter().flat_map(|edge: &u32| edge.to_le_bytes()).collect();
    place.region.write(8192, &edge_bytes).unwrap();
    let key = place.region.key().to_le_bytes();
    for (start, hops) in [(4u32, 0u32), (4, 1), (9, 3), (499, 20), (0, 5)] {
        let (mut reached, mut level) = (vec![start], vec![start]);
        for _ in 0..hops {
            let mut next = Vec::new();
            for v in level {
                for edge in edges_of(v) {
                    if !reached.contains(&edge) {
                        reached.push(edge);
                        next.push(edge);
                    }
                }
            }
            level = next;
        }
        let params: [&[u8]; 6] = [
            &key,
            &start.to_le_bytes(),
            &0u64.to_le_bytes(),
            &8192u64.to_le_bytes(),
            &vertices.to_le_bytes(),
            &hops.to_le_bytes(),
        ];
        let (status, reply) = place.call(op, &params);
        let found: Vec<u32> = reply.chunks(4).map(|v| u32::from_le_bytes(v.try_into().unwrap())).collect();
        assert_eq!((status, found), (Status::Ok, reached), "{hops} hops from {start}");
    }
}

#[test]
fn the_templates_add() {
    let place = Place::new();
    place.region.write(0, &[1u64, 2, 3, 40].map(u64::to_le_bytes).concat()).unwrap();
    let op = place.deploy("template.wat");
    let key = place.region.key().to_le_bytes();
    let (status, reply) = place.call(op, &[&key, &4u32.to_le_bytes(), &0u64.to_le_bytes()]);
    assert_eq!((status, words(&reply)), (Status::Ok, vec![46]));
}
