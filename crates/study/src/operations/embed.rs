//! Embedding reduction: rows of a table, added up.

use std::cell::RefCell;

use remora_kernel::embed::{Element, EmbedRequest, Reduction};
use remora_kernel::{Status, op};
use remora_store::embedding::{Embedding, EmbeddingShape, numbers};
use remora_store::hash::mix;

use super::{Common, Loaded, Operation, Parameters, Workload};
use crate::StudyError;
use crate::calling::{Calls, Checked};
use crate::records::Records;
use crate::store::Loader;
use crate::validate::Prediction;
use crate::where_::SoftwareTimes;

/// Add up rows of an embedding table. Parameter: how many.
pub const EMBED: Operation = Operation(&Embed);

/// The table: 64 MB.
const SHAPE: EmbeddingShape = EmbeddingShape { items: 1 << 18, dim: 64, element: Element::F32 };

struct Embed;

impl Workload for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn title(&self) -> &'static str {
        "Embedding reduction"
    }

    fn parameters(&self) -> Option<Parameters> {
        Some(Parameters { unit: "rows", axis: "rows of 256 bytes added up", values: &[8, 32, 128] })
    }

    /// Only if it is asked for by name.
    fn is_measured(&self, _: bool) -> bool {
        false
    }

    fn bytes(&self, _: &Records) -> u64 {
        u64::from(SHAPE.items) * SHAPE.element.row_bytes(SHAPE.dim) as u64
    }

    fn load(&self, loader: &mut Loader<'_>, _: &Records) -> Result<Box<dyn Loaded>, StudyError> {
        let table = Embedding::load(&SHAPE, None, |item, out| out.fill(number(item)), loader)?;
        Ok(Box::new(Table(table.map_err(|e| StudyError::Failed(e.to_string()))?)))
    }

    /// No probe tells what rows take that come at once.
    fn predict(&self, _: &Prediction<'_>, _: f64) -> Option<(SoftwareTimes, f64)> {
        None
    }
}

/// What all columns of an item's row hold: a small integer, of which sums are exact.
fn number(item: u32) -> f32 {
    (mix(item.into()) % 31) as f32 - 15.0
}

/// A table on the node.
struct Table(Embedding);

impl Loaded for Table {
    fn calls<'a>(&'a self, _: &'a Common<'_>, rows: u64, seed: u64) -> Option<Box<dyn Calls + 'a>> {
        Some(Box::new(Sums { table: &self.0, rows: rows.max(1), seed, next: 0, items: RefCell::default() }))
    }
}

/// Calls that add up rows.
struct Sums<'a> {
    table: &'a Embedding,
    rows: u64,
    seed: u64,
    next: u64,
    items: RefCell<Vec<u32>>,
}

impl Sums<'_> {
    fn items(&self, id: u64) -> impl Iterator<Item = u32> {
        let first = mix(self.seed ^ mix(id));
        (0..self.rows).map(move |n| (mix(first ^ n) % u64::from(SHAPE.items)) as u32)
    }
}

impl Calls for Sums<'_> {
    fn op(&self) -> u64 {
        op::EMBED
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn params(&self, id: u64, params: &mut Vec<u8>) {
        let rows = &mut *self.items.borrow_mut();
        rows.clear();
        rows.extend(self.items(id));
        let (table, items) = (self.table.table(), self.rows as u32);
        EmbedRequest { table, reduction: Reduction::Sum, rows, numbers: &[], items }.encode(params);
    }

    fn check(&self, id: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        if status != Status::Ok {
            return Err(format!("adding up {} rows ended with {status:?}", self.rows));
        }
        let expected: f32 = self.items(id).map(number).sum();
        let right =
            reply.len() == 4 * usize::from(SHAPE.dim) && numbers(reply).all(|sum| sum.to_bits() == expected.to_bits());
        match right {
            true => Ok(Checked::RIGHT),
            false => Err(format!("{} rows add up to {expected}, and {:?} came", self.rows, numbers(reply).next())),
        }
    }
}
