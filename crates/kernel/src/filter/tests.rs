use super::*;
use crate::testing::{Counted, run_stream};
use crate::{Limits, op};
use proptest::prelude::*;

const VALUE: Column = Column { offset: 4, kind: ColumnType::I32 };
const KIND: Column = Column { offset: 0, kind: ColumnType::U32 };
const ROW: u16 = 12;

/// Rows of a kind, a value, and four bytes of padding.
fn table(rows: &[(u32, i32)]) -> Vec<u8> {
    let row = |&(kind, value): &(u32, i32)| [kind.to_le_bytes(), value.to_le_bytes(), [0xaa; 4]].concat();
    rows.iter().flat_map(row).collect()
}

fn bits(value: i32) -> u64 {
    i64::from(value) as u64
}

fn matches(predicate: RowPredicate, value: i32) -> bool {
    let value = i64::from(value);
    match predicate {
        RowPredicate::All => true,
        RowPredicate::Equal(a) => value == a as i64,
        RowPredicate::Less(a) => value < a as i64,
        RowPredicate::Greater(a) => value > a as i64,
        RowPredicate::Between(a, b) => (a as i64..=b as i64).contains(&value),
    }
}

fn predicates() -> impl Strategy<Value = RowPredicate> {
    let operand = || prop_oneof![Just(i32::MIN), Just(i32::MAX), -5..5i32].prop_map(bits);
    prop_oneof![
        Just(RowPredicate::All),
        operand().prop_map(RowPredicate::Equal),
        operand().prop_map(RowPredicate::Less),
        operand().prop_map(RowPredicate::Greater),
        (operand(), operand()).prop_map(|(a, b)| RowPredicate::Between(a, b)),
    ]
}

fn run(memory: &Counted, params: FilterParams, payload: &[u8], piece: usize) -> (Status, Vec<u8>) {
    run_stream(memory, op::FILTER, &params.encode(), payload, piece, Limits::default())
}

proptest! {
    #[test]
    fn rows_are_filtered_alike_from_memory_and_payload(
        rows in proptest::collection::vec((0u32..3, -6..6i32), 0..900),
        predicate in predicates(), piece in 1usize..5000,
    ) {
        let bytes = table(&rows);
        let memory = Counted::new(64 << 10);
        memory.put(24, &bytes);
        let wanted: Vec<(u32, i32)> = rows.iter().filter(|row| matches(predicate, row.1)).copied().collect();
        let wanted = table(&wanted);

        let source = Source::Memory { key: 1, va: 24, rows: rows.len() as u64 };
        let params = FilterParams { row_len: ROW, column: VALUE, predicate, source, output: FilterOutput::Reply };
        prop_assert_eq!(run(&memory, params, &[], 1), (Status::Ok, wanted.clone()));

        let output = FilterOutput::Memory { key: 1, va: 20_000, len: wanted.len() as u64 };
        let params = FilterParams { source: Source::Payload, output, ..params };
        let counts = [wanted.len() as u64 / u64::from(ROW), rows.len() as u64].map(u64::to_le_bytes).concat();
        prop_assert_eq!(run(&memory, params, &bytes, piece), (Status::Ok, counts));
        prop_assert_eq!(memory.get(20_000, wanted.len()), &wanted[..]);
        prop_assert_eq!(memory.get(20_000 + wanted.len() as u64, 64), [0; 64]);
    }

    #[test]
    fn groups_are_what_a_loop_finds(
        rows in proptest::collection::vec((0u32..5, any::<i32>()), 0..300), predicate in predicates(), grouped: bool,
    ) {
        let group = grouped.then_some(KIND);
        let output = FilterOutput::Aggregate { column: VALUE, group };
        let params = FilterParams { row_len: ROW, column: VALUE, predicate, source: Source::Payload, output };
        let (status, reply) = run(&Counted::new(0), params, &table(&rows), 777);
        prop_assert_eq!(status, Status::Ok);
        let mut found: Vec<Group> = Vec::new();
        for key in 0..5 {
            let of = |row: &&(u32, i32)| matches(predicate, row.1) && (if grouped { row.0 == key } else { key == 0 });
            let values: Vec<i64> = rows.iter().filter(of).map(|row| row.1.into()).collect();
            if let (Some(&min), Some(&max)) = (values.iter().min(), values.iter().max()) {
                let (sum, count) = (values.iter().map(|&v| i128::from(v)).sum(), values.len() as u64);
                found.push(Group { key: key.into(), count, sum, min: min as u64, max: max as u64 });
            }
        }
        prop_assert_eq!(Group::decode_all(&reply).collect::<Vec<_>>(), found);
    }

    #[test]
    fn order_is_kept(a: u64, b: u64) {
        for kind in [ColumnType::U64, ColumnType::I64, ColumnType::F64] {
            let order = match kind {
                ColumnType::I64 => (a as i64).cmp(&(b as i64)),
                ColumnType::F64 => f64::from_bits(a).total_cmp(&f64::from_bits(b)),
                _ => a.cmp(&b),
            };
            prop_assert_eq!(kind.to_ordered(a).cmp(&kind.to_ordered(b)), order);
            prop_assert_eq!(kind.bits_of(kind.to_ordered(a)), a);
        }
    }

    #[test]
    fn any_parameters_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), FilterParams::LEN)) {
        if let Ok(params) = FilterParams::decode(&bytes) {
            prop_assert_eq!(FilterParams::decode(&params.encode()), Ok(params));
        }
    }
}

#[test]
fn floats_are_summed_and_ordered() {
    let column = Column { offset: 0, kind: ColumnType::F64 };
    let output = FilterOutput::Aggregate { column, group: None };
    let predicate = RowPredicate::Less(2.0f64.to_bits());
    let params = FilterParams { row_len: 8, column, predicate, source: Source::Payload, output };
    let rows: Vec<u8> = [1.5, -3.0, 2.0, 0.25].into_iter().flat_map(f64::to_le_bytes).collect();
    let (status, reply) = run(&Counted::new(0), params, &rows, 5);
    let group = Group::decode_all(&reply).next().unwrap();
    assert_eq!((status, group.count), (Status::Ok, 3));
    let float = f64::from_bits;
    assert_eq!((float(group.sum as u64), float(group.min), float(group.max)), (-1.25, -3.0, 1.5));
}

#[test]
fn what_does_not_fit_ends_in_a_status() {
    let memory = Counted::new(4096);
    let output = FilterOutput::Memory { key: 1, va: 0, len: 23 };
    let params =
        FilterParams { row_len: ROW, column: VALUE, predicate: RowPredicate::All, source: Source::Payload, output };
    assert_eq!(run(&memory, params, &table(&[(0, 0); 2]), 100).0, DESTINATION_FULL);
    assert_eq!(memory.get(0, 64), [0; 64]);
    assert_eq!(run(&memory, params, &[0; 13], 100).0, Status::BadParams, "half a row");
    let rows: Vec<(u32, i32)> = (0..1025).map(|kind| (kind, 0)).collect();
    let output = FilterOutput::Aggregate { column: VALUE, group: Some(KIND) };
    let grouped = FilterParams { output, ..params };
    assert_eq!(run(&memory, grouped, &table(&rows[..1024]), 4096).0, Status::Ok);
    assert_eq!(run(&memory, grouped, &table(&rows), 4096).0, TOO_MANY_GROUPS);
    let outside = FilterParams { column: Column { offset: 9, ..VALUE }, ..params };
    assert_eq!(run(&memory, outside, &[], 1).0, Status::BadParams);
    assert_eq!(run(&memory, FilterParams { row_len: 0, ..params }, &[], 1).0, Status::BadParams);
    let far = Source::Memory { key: 1, va: 4090, rows: 1 };
    assert_eq!(run(&memory, FilterParams { source: far, ..params }, &[], 1).0, Status::AccessDenied);
}
