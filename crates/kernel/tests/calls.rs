//! Built-in kernels with parameters of any kind: the call ends, and nothing changes but what its caller may write.

#[path = "common/calls.rs"]
mod calls;

use calls::{ADDRESSES, NAMES};
use proptest::prelude::*;
use proptest::sample::select;
use remora_kernel::op;

/// The fields of an op-code's parameters: a an address, k a region's key, n w h b numbers of 8, 4, 2 and 1 bytes, 0 a
/// zero byte, 2 a two or three of two bytes, s the bytes of a tree's node, d numbers of a row.
fn fields(op: u64) -> &'static str {
    match op {
        op::TRAVERSAL => "ankkwhbbbbbb",
        op::GET => "anwkk",
        op::CONSISTENCY => "akww",
        op::HYPERLOGLOG => "bb00ka",
        op::FILTER => "hhbbbbnnkhbbankh00an",
        op::COMPRESS | op::DECOMPRESS => "kan",
        op::SHUFFLE => "bb00kawaw",
        op::TREE_GET | op::TREE_PUT | op::TREE_DELETE | op::TREE_SCAN | op::TREE_RECOVER => "akwshbbhnn",
        op::TREE_MOVE => "akwn",
        op::SEQUENCER => "akw",
        op::KV_GET | op::KV_PUT | op::KV_UPDATE | op::KV_DELETE | op::KV_RESERVE | op::KV_RELEASE => "awkbb00w0000nn",
        op::EMBED => "akwdbb200w0000www",
        _ => "",
    }
}

/// An address in one of the regions or near it.
fn address() -> impl Strategy<Value = u64> {
    (prop_oneof![6 => Just(ADDRESSES[0]), 1 => Just(ADDRESSES[1]), 1 => Just(ADDRESSES[2])], -1i64..0x90)
        .prop_map(|(base, lines)| base.wrapping_add_signed(64 * lines))
}

fn name() -> impl Strategy<Value = [u8; 4]> {
    prop_oneof![8 => Just(NAMES[0]), 1 => Just(NAMES[1]), 1 => Just(NAMES[2])]
}

/// One field, as bytes.
fn field(kind: char) -> BoxedStrategy<Vec<u8>> {
    let number = |len: usize| {
        prop_oneof![4 => 0u64..4, 3 => 4u64..20, 2 => 0u64..70, 1 => 0..u64::MAX]
            .prop_map(move |number| number.to_le_bytes()[..len].to_vec())
            .boxed()
    };
    match kind {
        'a' => address().prop_map(|va| va.to_le_bytes().to_vec()).boxed(),
        'k' => name().prop_map(|name| name.to_vec()).boxed(),
        's' => select(vec![256u16, 256, 512, 4096, 300]).prop_map(|bytes| bytes.to_le_bytes().to_vec()).boxed(),
        'd' => select(vec![16u16, 24, 64, 64, 256, 17]).prop_map(|dim| dim.to_le_bytes().to_vec()).boxed(),
        '2' => select(vec![vec![2u8, 0], vec![3, 0]]).boxed(),
        'n' => number(8),
        'w' => number(4),
        'h' => number(2),
        'b' => number(1),
        _ => Just(vec![0]).boxed(),
    }
}

/// A payload, and what memory holds: numbers and addresses, as elements and entries have them, rarely a part of one.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![4 => 0u64..70, 1 => any::<u64>(), 1 => address()];
    (proptest::collection::vec(word, 0..300), select(vec![0usize, 0, 0, 3])).prop_map(|(words, cut)| {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(bytes.len().saturating_sub(cut));
        bytes
    })
}

/// Bytes for [`calls::drive`].
fn call() -> impl Strategy<Value = Vec<u8>> {
    (0..op::BUILTINS.len())
        .prop_flat_map(|which| {
            let params = fields(op::BUILTINS[which]).chars().map(field).collect::<Vec<_>>();
            (Just(which), any::<u8>(), params, payload())
        })
        .prop_map(|(which, piece, params, payload)| {
            let params = params.concat();
            [&[which as u8, piece, params.len() as u8][..], &params, &payload].concat()
        })
}

/// A shuffle that makes sense, with room for all of its values or for some.
fn shuffle() -> impl Strategy<Value = Vec<u8>> {
    (0u8..5, 0u8..2, name(), 0u32..200, 0u64..64, any::<u8>(), payload()).prop_map(
        |(bits, hashed, name, room, line, piece, payload)| {
            let mut params = vec![bits, hashed, 0, 0];
            params.extend(name);
            for partition in 0..1u64 << bits {
                params.extend((ADDRESSES[0] + 64 * line + partition * 8 * u64::from(room)).to_le_bytes());
                params.extend(room.to_le_bytes());
            }
            let which = op::BUILTINS.iter().position(|op| *op == op::SHUFFLE).expect("built in") as u8;
            [&[which, piece, params.len() as u8][..], &params, &payload].concat()
        },
    )
}

proptest! {
    // Failures are printed as bytes; a file beside an integration test has no place.
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_call_ends_and_stays_in_its_region(bytes in call()) {
        calls::drive(&bytes);
    }

    #[test]
    fn any_shuffle_ends_and_stays_in_its_region(bytes in shuffle()) {
        calls::drive(&bytes);
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test is not the engine")]
fn the_fuzzers_seeds_end_and_stay_in_their_region() {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/kernel_calls");
    for seed in std::fs::read_dir(seeds).expect("seeds") {
        calls::drive(&std::fs::read(seed.expect("a seed").path()).expect("bytes"));
    }
}
