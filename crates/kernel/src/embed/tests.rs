//! Reductions against a plain reference, in memory of both kinds, and parameters that make no sense.

use super::*;
use crate::testing::{Counted, run_limited, run_on};
use crate::{Limits, host_runner, op};
use proptest::prelude::*;
use remora_memory::{Access, Buffer, Registry};
use std::sync::Arc;

const TABLE: u64 = 4096;

/// A row as bytes, and the numbers that they stand for. Small integers, of which sums are exact.
fn row(element: Element, dim: u16, seed: u32) -> (Vec<u8>, Vec<f32>) {
    let whole = |at: u32| (seed.wrapping_mul(31).wrapping_add(at.wrapping_mul(7)) % 15) as i8 - 7;
    let whole: Vec<i8> = (0..u32::from(dim)).map(whole).collect();
    let scale = [1.0f32, 2.0, 4.0][seed as usize % 3];
    let numbers = |scale: f32| whole.iter().map(|byte| f32::from(*byte) * scale).collect::<Vec<_>>();
    match element {
        Element::F32 => {
            let numbers = numbers(1.0);
            (numbers.iter().flat_map(|number| number.to_le_bytes()).collect(), numbers)
        }
        Element::F16 => {
            // Of small integers: an exponent, and what is left of the number.
            let half = |byte: i8| match byte.unsigned_abs() {
                0 => 0,
                size => {
                    let exponent = size.ilog2();
                    let fraction = (u32::from(size) << (10 - exponent)) & 1023;
                    (u32::from(byte < 0) << 15 | (exponent + 15) << 10 | fraction) as u16
                }
            };
            (whole.iter().flat_map(|byte| half(*byte).to_le_bytes()).collect(), numbers(1.0))
        }
        Element::I8 => {
            let mut bytes = scale.to_le_bytes().to_vec();
            bytes.resize(Element::SCALE, 0);
            bytes.extend(whole.iter().map(|byte| *byte as u8));
            (bytes, numbers(scale))
        }
    }
}

/// What should come out, computed in another way.
fn reference(reduction: Reduction, rows: &[&Vec<f32>], numbers: &[f32], items: u32, dim: u16) -> Vec<f32> {
    let column = |at: usize| rows.iter().map(move |row| row[at]);
    let columns = 0..usize::from(dim);
    match reduction {
        Reduction::Sum => columns.map(|at| column(at).sum()).collect(),
        Reduction::Mean => columns.map(|at| column(at).sum::<f32>() / items.max(1) as f32).collect(),
        Reduction::Max if rows.is_empty() => vec![0.0; dim.into()],
        Reduction::Max => columns.map(|at| column(at).fold(f32::NEG_INFINITY, f32::max)).collect(),
        Reduction::Weighted => columns.map(|at| column(at).zip(numbers).map(|(x, weight)| x * weight).sum()).collect(),
        Reduction::InnerProduct => rows.iter().map(|row| row.iter().zip(numbers).map(|(a, b)| a * b).sum()).collect(),
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Runs a call as a node does it.
fn on_host(bytes: &[u8], params: impl Fn(u64, u32) -> Vec<u8>, prefetching: bool) -> (Status, Vec<u8>) {
    let registry = Arc::new(Registry::new([3; 32]));
    let pd = registry.alloc_pd();
    let buffer = Buffer::from_boxed(bytes.into());
    let region = registry.register(pd, &buffer, 0, bytes.len(), None, Access::REMOTE_READ).unwrap();
    let mut runner = host_runner(registry, prefetching, 1, Limits::default());
    let mut call = Call::new(op::EMBED, &params(region.va(), region.key()), 1 << 16);
    call.pd = Some(pd);
    assert!(runner.start(call).is_ok());
    let mut outcome = None;
    while outcome.is_none() {
        runner.poll(&mut |mut call, status| outcome = Some((status, std::mem::take(&mut call.reply))));
    }
    outcome.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_reduction_is_the_reference_everywhere(
        dim in (2u16..=32).prop_map(|eighths| 8 * eighths),
        element in prop::sample::select(Element::ALL.to_vec()),
        reduction in prop::sample::select(Reduction::ALL.to_vec()),
        rows in 1u32..40,
        asked in prop::collection::vec(any::<u32>(), 0..150),
        items in 0u32..9,
    ) {
        let made: Vec<_> = (0..rows).map(|seed| row(element, dim, seed)).collect();
        let asked: Vec<u32> = asked.into_iter().map(|n| n % rows).collect();
        let numbers = match reduction {
            Reduction::Weighted => (0..asked.len()).map(|n| n as f32 % 5.0 - 2.0).collect(),
            Reduction::InnerProduct => (0..dim).map(|n| f32::from(n % 3) - 1.0).collect(),
            _ => Vec::new(),
        };
        let params = |base, key| {
            let table = EmbedTable { base, key, rows, dim, element };
            let mut out = Vec::new();
            EmbedRequest { table, reduction, rows: &asked, numbers: &numbers, items }.encode(&mut out);
            let decoded = EmbedParams::decode(&out).expect("parameters");
            assert_eq!((decoded.table, decoded.reduction, decoded.count()), (table, reduction, asked.len()));
            assert!((0..asked.len()).all(|at| decoded.row(at) == asked[at]));
            out
        };
        let chosen: Vec<&Vec<f32>> = asked.iter().map(|n| &made[*n as usize].1).collect();
        let divisor = if items == 0 { 1 } else { items };
        let expected = reference(reduction, &chosen, &numbers, divisor, dim);
        let bytes: Vec<u8> = made.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        let memory = Counted::new(TABLE as usize + bytes.len());
        memory.put(TABLE, &bytes);
        let (status, reply) = run_on(&memory, op::EMBED, &params(TABLE, 7));
        prop_assert_eq!((status, floats(&reply)), (Status::Ok, expected.clone()));
        prop_assert_eq!(memory.reads.get() as usize, asked.len());
        for prefetching in [false, true] {
            let near = on_host(&bytes, params, prefetching);
            prop_assert_eq!(&near, &(Status::Ok, reply.clone()), "to the last bit");
        }
    }

    #[test]
    fn any_bytes_are_parameters_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = EmbedParams::decode(&bytes);
        run_on(&Counted::new(8192), op::EMBED, &bytes);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let table = EmbedTable { base: TABLE, key: 7, rows: 8, dim: 64, element: Element::F32 };
    let sound = EmbedRequest { table, reduction: Reduction::Sum, rows: &[0, 7], numbers: &[], items: 2 };
    let memory = Counted::new(TABLE as usize + table.bytes() as usize);
    let status = |request: EmbedRequest<'_>| {
        let mut out = Vec::new();
        request.encode(&mut out);
        run_on(&memory, op::EMBED, &out).0
    };
    assert_eq!(status(sound), Status::Ok);
    for bad in [
        EmbedTable { base: TABLE + 4, ..table },
        EmbedTable { base: u64::MAX - 7, ..table },
        EmbedTable { rows: 7, ..table },
        EmbedTable { dim: 8, ..table },
        EmbedTable { dim: 20, ..table },
        EmbedTable { dim: 264, ..table },
    ] {
        assert_eq!(status(EmbedRequest { table: bad, ..sound }), Status::BadParams, "{bad:?}");
    }
    assert_eq!(status(EmbedRequest { numbers: &[1.0], ..sound }), Status::BadParams);
    assert_eq!(status(EmbedRequest { reduction: Reduction::Weighted, ..sound }), Status::BadParams);
    let many = vec![0; MOST_ROWS + 1];
    assert_eq!(status(EmbedRequest { rows: &many, ..sound }), Status::BadParams);
    assert_eq!(status(EmbedRequest { rows: &many[1..], ..sound }), Status::Ok);
    let outside = EmbedTable { rows: 9, ..table };
    assert_eq!(status(EmbedRequest { table: outside, rows: &[8], ..sound }), Status::AccessDenied);
    let elsewhere = EmbedTable { key: 0, ..table };
    assert_eq!(status(EmbedRequest { table: elsewhere, ..sound }), Status::AccessDenied);
    let mut out = Vec::new();
    sound.encode(&mut out);
    for byte in [18, 19] {
        let mut bad = out.clone();
        bad[byte] = 9;
        assert_eq!(run_on(&memory, op::EMBED, &bad).0, Status::BadParams);
    }
    out[31] = 1;
    assert_eq!(run_on(&memory, op::EMBED, &out).0, Status::BadParams);
    out[31] = 0;
    let limits = Limits { steps: 1, bytes: 1 << 20 };
    assert_eq!(run_limited(&memory, op::EMBED, &out, limits).0, Status::StepLimit);
}

#[test]
fn a_reply_without_room_is_refused_before_memory_is_touched() {
    let table = EmbedTable { base: TABLE, key: 7, rows: 8, dim: 64, element: Element::F32 };
    let request = EmbedRequest { table, reduction: Reduction::Sum, rows: &[1], numbers: &[], items: 1 };
    let mut params = Vec::new();
    request.encode(&mut params);
    let memory = Counted::new(8192);
    let mut call = Call::new(op::EMBED, &params, 255);
    let mut run = pin!(run(&memory, &mut call));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert_eq!(run.as_mut().poll(&mut cx), Poll::Ready(Err(Status::ReplyTooLong)));
    assert_eq!(memory.reads.get(), 0);
}

#[test]
fn a_failed_row_fails_the_call_and_a_table_outside_its_region_is_denied() {
    let bytes = vec![0; 64 * 256];
    let params = |rows: u32| {
        move |base, key| {
            let table = EmbedTable { base, key, rows, dim: 64, element: Element::F32 };
            let mut out = Vec::new();
            EmbedRequest { table, reduction: Reduction::Sum, rows: &[1], numbers: &[], items: 1 }.encode(&mut out);
            out
        }
    };
    assert_eq!(on_host(&bytes, params(64), true).0, Status::Ok);
    assert_eq!(on_host(&bytes, params(65), true).0, Status::AccessDenied);
}

/// What names no memory tells nothing of a key.
#[test]
fn a_table_without_rows_does_not_tell_a_right_key_from_a_wrong_one() {
    let ended = |of_table: fn(u64, u32) -> (u64, u32)| {
        let params = |base, key| {
            let (base, key) = of_table(base, key);
            let table = EmbedTable { base, key, rows: 0, dim: 64, element: Element::F32 };
            let mut out = Vec::new();
            EmbedRequest { table, reduction: Reduction::Sum, rows: &[], numbers: &[], items: 1 }.encode(&mut out);
            out
        };
        [false, true].map(|prefetching| on_host(&[0; 4096], params, prefetching))
    };
    let right = ended(|_, key| (1 << 20, key));
    assert_eq!(ended(|_, key| (1 << 20, key ^ 0x100)), right);
    assert_eq!(ended(|base, key| (base, key)), right);
}
