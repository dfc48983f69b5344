//! A pair of StRoM's NICs, against sums by hand and against itself.

use remora_kernel::{Status, op};
use remora_memory::Region;
use remora_store::{Place, list};
use std::sync::Arc;

use super::*;
use crate::time::Ps;

fn pair(platform: &Platform, placement: Placement) -> Pair {
    Pair::new(&PairSpec::new(platform, 1 << 30, 7).unwrap().serving(placement)).unwrap()
}

/// A list of `len` elements on the node; returns what looks its last key up, and the value.
fn load_list(pair: &mut Pair, len: u64) -> (Vec<u8>, Vec<u8>) {
    let values: Vec<[u8; 64]> = (0..len).map(|n| [n as u8 + 1; 64]).collect();
    let (elements, store): (Arc<Region>, Arc<Region>) = (pair.alloc(64 * len).unwrap(), pair.alloc(64 * len).unwrap());
    let place = |region: &Region| Place { va: region.va(), key: region.key() };
    let records = (0..len).map(|n| (n + 100, &values[n as usize][..]));
    let (list, image) = list::build(records, 64, place(&elements), place(&store));
    elements.write(elements.va(), &image.elements).unwrap();
    store.write(store.va(), &image.values).unwrap();
    (list.traversal_params(100 + len - 1).encode().to_vec(), values[len as usize - 1].to_vec())
}

fn walk(platform: &Platform, placement: Placement, len: u64) -> Ps {
    let mut pair = pair(platform, placement);
    let (params, value) = load_list(&mut pair, len);
    pair.submit(placement, op::TRAVERSAL, &params, 1).unwrap();
    let mut latency = None;
    pair.poll(&mut |done| {
        assert_eq!((done.tag, done.status, done.reply), (1, Status::Ok, &value[..]));
        latency = Some(done.latency);
    })
    .unwrap();
    latency.unwrap()
}

#[test]
fn lists_are_walked_in_every_place() {
    for (name, placements) in [("strom-10g", 3), ("strom-100g", 3), ("rambda", 4), ("bluefield2", 3)] {
        let platform = Platform::load(name).unwrap();
        let all = Placement::of(&platform);
        assert_eq!(all.len(), placements);
        for placement in all {
            for len in [1, 8, 32] {
                println!("{name} {placement:?} {len}: {:?}", walk(&platform, placement, len));
            }
        }
    }
}

fn raw(pair: &mut Pair, verb: RawVerb, len: u32) -> Ps {
    let region = pair.alloc(1 << 20).unwrap();
    pair.submit_raw(verb, &region, len, 1).unwrap();
    let mut latency = None;
    assert!(pair.poll(&mut |done| latency = Some(done.latency)).unwrap());
    latency.unwrap()
}

#[test]
fn verbs() {
    for name in ["strom-10g", "strom-100g"] {
        let platform = Platform::load(name).unwrap();
        for len in [64, 1024, 4096] {
            for verb in [RawVerb::Read, RawVerb::Write, RawVerb::PingPong] {
                println!("{name} {verb:?} {len}: {:?}", raw(&mut pair(&platform, Placement::Nic), verb, len));
            }
        }
    }
}
