//! Embedding tables for the kernel of [`remora_kernel::embed`]: rows of numbers, and behind them sums of rows that come
//! together ([`Memo`]). Who asks names items, and the table writes down which rows they are.

use remora_kernel::embed::{DIMS, Element, EmbedRequest, EmbedTable, MOST_ROWS, Reduction, f16_to_f32};

use crate::memo::{Memo, Rewriter};
use crate::{Arena, Place};

/// Bytes that are handed over at a time.
const PIECE: usize = 4 << 20;

/// What a table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingShape {
    /// Items: a row for each.
    pub items: u32,
    /// Numbers of a row: a multiple of 8 from 16 to 256.
    pub dim: u16,
    /// How they are kept.
    pub element: Element,
}

/// What is no table, or no request of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbeddingError {
    /// Rows of such a length are not reduced.
    #[error("rows of {0} numbers: a multiple of 8 from 16 to 256")]
    Dim(u16),
    /// More rows than there are numbers for.
    #[error("{0} rows, and the most is 4294967295")]
    Rows(u64),
    /// The memo is that of another table.
    #[error("a memo of {memo} items for a table of {items}")]
    Memo {
        /// Items of the memo.
        memo: u32,
        /// Items of the table.
        items: u32,
    },
    /// The memo has other sums than the table.
    #[error("a memo of {memo} sums for a table of {table}")]
    Sums {
        /// Sums of the memo.
        memo: u32,
        /// Sums of the table.
        table: u32,
    },
    /// There is no such item.
    #[error("item {item} of {items}")]
    Item {
        /// What was asked for.
        item: u32,
        /// What there is.
        items: u32,
    },
    /// A call reduces no more.
    #[error("{0} rows: the most is {MOST_ROWS}")]
    TooMany(usize),
    /// As many weights as items, or as many numbers of a vector as a row has.
    #[error("{found} numbers come with the items, and {wanted} should")]
    Numbers {
        /// What came.
        found: usize,
        /// What should have.
        wanted: usize,
    },
}

impl EmbeddingShape {
    /// The table with so many rows more, if there is one.
    fn table(&self, sums: u32) -> Result<EmbedTable, EmbeddingError> {
        let EmbeddingShape { items, dim, element } = *self;
        if !DIMS.contains(&dim) || !dim.is_multiple_of(8) {
            return Err(EmbeddingError::Dim(dim));
        }
        let rows = items.checked_add(sums).ok_or(EmbeddingError::Rows(u64::from(items) + u64::from(sums)))?;
        Ok(EmbedTable { base: 0, key: 0, rows, dim, element })
    }
}

/// The nearest number of 16 bits, of two the even one.
pub fn f32_to_f16(number: f32) -> u16 {
    let (bits, sign) = (number.to_bits() & 0x7fff_ffff, (number.to_bits() >> 16 & 0x8000) as u16);
    if bits > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    // From 65520 on the nearest is infinity.
    if bits >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    if bits < 0x3880_0000 {
        // Subnormal: adding a half puts its lowest bits, rounded, where they belong.
        return sign | (f32::from_bits(bits) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits()) as u16;
    }
    let rounded = bits - (112 << 23) + 0xfff + (bits >> 13 & 1);
    sign | (rounded >> 13) as u16
}

/// Appends a row's bytes.
pub fn encode_row(element: Element, numbers: &[f32], out: &mut Vec<u8>) {
    match element {
        Element::F32 => out.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
        Element::F16 => out.extend(numbers.iter().flat_map(|number| f32_to_f16(*number).to_le_bytes())),
        Element::I8 => {
            let scale = numbers.iter().fold(0f32, |most, number| most.max(number.abs())) / 127.0;
            out.extend_from_slice(&scale.to_le_bytes());
            out.extend_from_slice(&[0; Element::SCALE - 4]);
            let by = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            out.extend(numbers.iter().map(|number| (number * by).round() as i8 as u8));
        }
    }
}

/// The numbers of a row's bytes.
pub fn decode_row(element: Element, row: &[u8], out: &mut [f32]) {
    match element {
        Element::F32 => {
            for (number, bytes) in out.iter_mut().zip(row.as_chunks().0) {
                *number = f32::from_le_bytes(*bytes);
            }
        }
        Element::F16 => {
            for (number, bytes) in out.iter_mut().zip(row.as_chunks().0) {
                *number = f16_to_f32(u16::from_le_bytes(*bytes));
            }
        }
        Element::I8 => {
            let scale = row.first_chunk().map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
            for (number, byte) in out.iter_mut().zip(&row[Element::SCALE..]) {
                *number = f32::from(*byte as i8) * scale;
            }
        }
    }
}

/// A table, as who asks it knows it.
#[derive(Clone, Debug)]
pub struct Embedding {
    table: EmbedTable,
    items: u32,
    memo: Option<Memo>,
}

impl Embedding {
    /// Loads a table into memory that it allocates. `row` fills in an item's numbers; it is asked for some of them twice.
    pub fn load<A: Arena + ?Sized>(
        shape: &EmbeddingShape,
        memo: Option<Memo>,
        mut row: impl FnMut(u32, &mut [f32]),
        arena: &mut A,
    ) -> Result<Result<Self, EmbeddingError>, A::Error> {
        let made = shape.table(memo.as_ref().map_or(0, Memo::rows)).and_then(|table| match &memo {
            Some(memo) if memo.items() != shape.items => {
                Err(EmbeddingError::Memo { memo: memo.items(), items: shape.items })
            }
            _ => Ok(table),
        });
        let mut table = match made {
            Ok(table) => table,
            Err(error) => return Ok(Err(error)),
        };
        let Place { va, key } = arena.alloc(table.bytes().max(1))?;
        (table.base, table.key) = (va, key);
        let (mut piece, mut at) = (Vec::with_capacity(PIECE + 2048), va);
        let mut numbers = vec![0.0; shape.dim.into()];
        let mut push = |numbers: &[f32], piece: &mut Vec<u8>, arena: &mut A, end: bool| {
            if !end {
                encode_row(shape.element, numbers, piece);
            }
            if end || piece.len() >= PIECE {
                arena.write(Place { va: at, key }, piece)?;
                at += piece.len() as u64;
                piece.clear();
            }
            Ok(())
        };
        for item in 0..shape.items {
            row(item, &mut numbers);
            push(&numbers, &mut piece, arena, false)?;
        }
        if let Some(memo) = &memo {
            let (mut stored, mut part) = (Vec::new(), vec![0.0; shape.dim.into()]);
            for members in memo.sums() {
                numbers.fill(0.0);
                for item in members {
                    // What the item's row holds, rounded as it is there.
                    row(item, &mut part);
                    stored.clear();
                    encode_row(shape.element, &part, &mut stored);
                    decode_row(shape.element, &stored, &mut part);
                    numbers.iter_mut().zip(&part).for_each(|(sum, number)| *sum += number);
                }
                push(&numbers, &mut piece, arena, false)?;
            }
        }
        push(&[], &mut piece, arena, true)?;
        Ok(Ok(Self { table, items: shape.items, memo }))
    }

    /// A table that has been loaded, of so many items. The memo is made as it was there (one of the same items, sets and sums is the
    /// same), or is none: then no sums are used.
    pub fn open(table: EmbedTable, items: u32, memo: Option<Memo>) -> Result<Self, EmbeddingError> {
        let shape = EmbeddingShape { items, dim: table.dim, element: table.element };
        let rows = shape.table(memo.as_ref().map_or(0, Memo::rows))?.rows;
        match &memo {
            Some(memo) if memo.items() != items => Err(EmbeddingError::Memo { memo: memo.items(), items }),
            Some(_) if rows != table.rows => {
                Err(EmbeddingError::Sums { memo: rows - items, table: table.rows.saturating_sub(items) })
            }
            None if rows > table.rows => Err(EmbeddingError::Item { item: items, items: table.rows }),
            _ => Ok(Self { table, items, memo }),
        }
    }

    /// Where kernels find it, sums behind the items' rows.
    pub fn table(&self) -> EmbedTable {
        self.table
    }

    /// Items that it has.
    pub fn items(&self) -> u32 {
        self.items
    }

    /// Sums that stand behind the items' rows, if there are some.
    pub fn memo(&self) -> Option<&Memo> {
        self.memo.as_ref()
    }

    /// Appends the parameters of a reduction of these items; an item may come several times. Sums and means take what is
    /// known of groups of them, which others cannot. `numbers` are weights, or a vector. Results differ by rounding with
    /// and without sums.
    pub fn params(
        &self,
        reduction: Reduction,
        items: &[u32],
        numbers: &[f32],
        rewriter: &mut Rewriter,
        out: &mut Vec<u8>,
    ) -> Result<(), EmbeddingError> {
        let wanted = match reduction {
            Reduction::Sum | Reduction::Mean | Reduction::Max => 0,
            Reduction::Weighted => items.len(),
            Reduction::InnerProduct => self.table.dim.into(),
        };
        if numbers.len() != wanted {
            return Err(EmbeddingError::Numbers { found: numbers.len(), wanted });
        }
        if let Some(&item) = items.iter().find(|item| **item >= self.items) {
            return Err(EmbeddingError::Item { item, items: self.items });
        }
        let rows = match (&self.memo, reduction) {
            (Some(memo), Reduction::Sum | Reduction::Mean) => memo.rewrite(items, rewriter),
            _ => items,
        };
        if rows.len() > MOST_ROWS {
            return Err(EmbeddingError::TooMany(rows.len()));
        }
        EmbedRequest { table: self.table, reduction, rows, numbers, items: items.len() as u32 }.encode(out);
        Ok(())
    }
}

/// The numbers of a reply.
pub fn numbers(reply: &[u8]) -> impl Iterator<Item = f32> {
    reply.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

/// No list of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} of the request is no part of an item's number of at most 4294967295")]
pub struct NotItems {
    /// Where.
    pub at: usize,
}

/// Takes the items out of a request as people write it: decimal numbers with spaces or commas between them.
pub fn parse_items(text: &[u8], items: &mut Vec<u32>) -> Result<(), NotItems> {
    items.clear();
    let mut number: Option<u32> = None;
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                let next = number.unwrap_or(0).checked_mul(10).and_then(|ten| ten.checked_add(u32::from(byte - b'0')));
                number = Some(next.ok_or(NotItems { at })?);
            }
            b' ' | b',' | b'\t' | b'\r' | b'\n' => items.extend(number.take()),
            _ => return Err(NotItems { at }),
        }
    }
    items.extend(number);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use remora_kernel::{Call, Limits, Status, host_runner, op};
    use remora_memory::{Access, Buffer, Pd, Region, Registry};
    use std::convert::Infallible;
    use std::sync::Arc;

    /// Memory of this process, in one region.
    struct Own {
        registry: Arc<Registry>,
        pd: Pd,
        region: Option<Arc<Region>>,
    }

    impl Arena for Own {
        type Error = Infallible;

        fn alloc(&mut self, len: u64) -> Result<Place, Infallible> {
            let buffer = Buffer::from_boxed(vec![0; len as usize].into());
            let region = self.registry.register(self.pd, &buffer, 0, len as usize, None, Access::REMOTE_READ).unwrap();
            let place = Place { va: region.va(), key: region.key() };
            self.region = Some(region);
            Ok(place)
        }

        fn write(&mut self, at: Place, bytes: &[u8]) -> Result<(), Infallible> {
            self.region.as_ref().unwrap().write(at.va, bytes).unwrap();
            Ok(())
        }
    }

    impl Own {
        fn new() -> Self {
            let registry = Arc::new(Registry::new([3; 32]));
            Self { pd: registry.alloc_pd(), registry, region: None }
        }

        fn call(&self, params: &[u8]) -> Vec<f32> {
            let mut runner = host_runner(self.registry.clone(), true, 1, Limits::default());
            let mut call = Call::new(op::EMBED, params, 1 << 16);
            call.pd = Some(self.pd);
            assert!(runner.start(call).is_ok());
            let mut outcome = None;
            while outcome.is_none() {
                runner.poll(&mut |call, status| outcome = Some((status, numbers(&call.reply).collect())));
            }
            let (status, reply) = outcome.unwrap();
            assert_eq!(status, Status::Ok);
            reply
        }
    }

    fn load(shape: &EmbeddingShape, memo: Option<Memo>, row: impl FnMut(u32, &mut [f32])) -> (Own, Embedding) {
        let mut own = Own::new();
        let Ok(embedding) = Embedding::load(shape, memo, row, &mut own);
        (own, embedding.unwrap())
    }

    /// Small integers, whose sums are exact.
    fn whole(item: u32, numbers: &mut [f32]) {
        for (at, number) in (0u32..).zip(numbers) {
            *number = (item.wrapping_mul(37).wrapping_add(at * 11) % 31) as f32 - 15.0;
        }
    }

    #[test]
    fn every_f16_survives_and_the_nearest_is_taken() {
        for half in (0..=u16::MAX).filter(|half| half & 0x7fff <= 0x7c00) {
            assert_eq!(f32_to_f16(f16_to_f32(half)), half, "{half:#06x}");
        }
        assert_eq!(f32_to_f16(f32::NAN) & 0x7c00, 0x7c00);
        for (number, half) in [
            (65519.9, 0x7bff),
            (65520.0, 0x7c00),
            (-1e9, 0xfc00),
            (1.0 + 1.0 / 2048.0, 0x3c00),
            (1.0 + 3.0 / 2048.0, 0x3c02),
            (2f32.powi(-25), 0),
            (3.0 * 2f32.powi(-25), 2),
        ] {
            assert_eq!(f32_to_f16(number), half, "{number}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

        #[test]
        fn rows_are_kept_within_rounding(
            numbers in prop::collection::vec(-1000f32..1000.0, 16..64),
            element in prop::sample::select(Element::ALL.to_vec()),
        ) {
            let (mut row, mut back) = (Vec::new(), vec![0.0; numbers.len()]);
            encode_row(element, &numbers, &mut row);
            prop_assert_eq!(row.len(), element.row_bytes(numbers.len() as u16));
            decode_row(element, &row, &mut back);
            let most = numbers.iter().fold(0f32, |most, number| most.max(number.abs()));
            for (number, back) in numbers.iter().zip(back) {
                let error = match element {
                    Element::F32 => 0.0,
                    Element::F16 => number.abs() / 2048.0 + 1e-7,
                    Element::I8 => most / 127.0 * 0.501,
                };
                prop_assert!((number - back).abs() <= error, "{number} {back}");
            }
        }

        /// With sums and without, of integers, results are the same.
        #[test]
        fn sums_of_groups_change_nothing(
            requests in prop::collection::vec(prop::collection::vec(0u32..60, 0..40), 1..30),
            budget in 0u32..60,
            mean: bool,
        ) {
            let memo = Memo::of(60, requests.iter().map(Vec::as_slice), budget);
            prop_assert!(memo.rows() <= budget);
            let shape = EmbeddingShape { items: 60, dim: 16, element: Element::F32 };
            let (plain_memory, plain) = load(&shape, None, whole);
            let (memory, table) = load(&shape, Some(memo), whole);
            let reduction = if mean { Reduction::Mean } else { Reduction::Sum };
            let mut rewriter = Rewriter::default();
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for request in &requests {
                ours.clear();
                theirs.clear();
                table.params(reduction, request, &[], &mut rewriter, &mut ours).unwrap();
                plain.params(reduction, request, &[], &mut rewriter, &mut theirs).unwrap();
                prop_assert!(ours.len() <= theirs.len());
                prop_assert_eq!(memory.call(&ours), plain_memory.call(&theirs));
            }
        }

        #[test]
        fn any_text_is_items_or_refused(text in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = parse_items(&text, &mut Vec::new());
        }

        #[test]
        fn written_items_are_read_back(items in prop::collection::vec(any::<u32>(), 0..20)) {
            let text: String = items.iter().map(|item| format!("{item}, ")).collect();
            let mut back = vec![7];
            prop_assert_eq!(parse_items(text.as_bytes(), &mut back), Ok(()));
            prop_assert_eq!(back, items);
        }
    }

    #[test]
    fn sums_of_rounded_rows_are_within_rounding() {
        let requests: Vec<Vec<u32>> = (0..50).map(|n| (0..12).map(|at| (n % 4) * 12 + at).collect()).collect();
        let real = |item: u32, numbers: &mut [f32]| {
            for (at, number) in (0u32..).zip(numbers) {
                *number = ((item * 97 + at * 13) % 101) as f32 / 101.0 - 0.5;
            }
        };
        for element in Element::ALL {
            let shape = EmbeddingShape { items: 48, dim: 64, element };
            let memo = Memo::of(48, requests.iter().map(Vec::as_slice), 200);
            let (memory, table) = load(&shape, Some(memo), real);
            let (plain_memory, plain) = load(&shape, None, real);
            let (mut rewriter, mut ours, mut theirs) = (Rewriter::default(), Vec::new(), Vec::new());
            table.params(Reduction::Sum, &requests[0], &[], &mut rewriter, &mut ours).unwrap();
            plain.params(Reduction::Sum, &requests[0], &[], &mut rewriter, &mut theirs).unwrap();
            assert!(ours.len() < theirs.len() / 2 + 32, "groups are found: {} and {}", ours.len(), theirs.len());
            // A sum of up to 8 numbers of half at most, rounded once.
            let error = match element {
                Element::F32 => 1e-5,
                Element::F16 => 12.0 * 4.0 / 2048.0,
                Element::I8 => 12.0 * 4.0 / 127.0 * 0.5,
            };
            for (a, b) in memory.call(&ours).iter().zip(plain_memory.call(&theirs)) {
                assert!((a - b).abs() <= error, "{element:?}: {a} {b}");
            }
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let shape = EmbeddingShape { items: 60, dim: 16, element: Element::F32 };
        let (_, table) = load(&shape, None, whole);
        let ask = |reduction, items: &[u32], numbers: &[f32]| {
            table.params(reduction, items, numbers, &mut Rewriter::default(), &mut Vec::new())
        };
        assert_eq!(ask(Reduction::Sum, &[60], &[]), Err(EmbeddingError::Item { item: 60, items: 60 }));
        assert_eq!(ask(Reduction::Sum, &vec![0; MOST_ROWS + 1], &[]), Err(EmbeddingError::TooMany(MOST_ROWS + 1)));
        assert_eq!(ask(Reduction::Weighted, &[1, 2], &[]), Err(EmbeddingError::Numbers { found: 0, wanted: 2 }));
        assert_eq!(ask(Reduction::InnerProduct, &[1], &[0.0; 16]), Ok(()));
        assert_eq!(ask(Reduction::Max, &[], &[]), Ok(()));
        let mut own = Own::new();
        for dim in [8, 20, 264] {
            let Ok(made) = Embedding::load(&EmbeddingShape { dim, ..shape }, None, whole, &mut own);
            assert_eq!(made.err(), Some(EmbeddingError::Dim(dim)));
        }
        let Ok(made) = Embedding::load(&shape, Some(Memo::of(59, [], 5)), whole, &mut own);
        assert_eq!(made.err(), Some(EmbeddingError::Memo { memo: 59, items: 60 }));
        assert_eq!(parse_items(b"1 22x", &mut Vec::new()), Err(NotItems { at: 4 }));
        assert_eq!(parse_items(b"4294967296", &mut Vec::new()), Err(NotItems { at: 9 }));
    }
}
