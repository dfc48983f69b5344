//! Rows that matched: gathered on their way to memory, or aggregated.

use std::collections::BTreeMap;

use super::params::{Column, ColumnType, Group};
use super::{MAX_GROUPS, TOO_MANY_GROUPS};
use crate::call::Status;

/// Bytes that are written at a time.
const GATHER: usize = 4096;

/// Rows that wait to be written together.
#[derive(Default)]
pub struct Gather {
    bytes: Vec<u8>,
    /// Bytes written before.
    written: u64,
}

impl Gather {
    /// Takes a row; true if there is enough to be written.
    pub fn push(&mut self, row: &[u8]) -> bool {
        self.bytes.extend_from_slice(row);
        self.bytes.len() >= GATHER
    }

    /// What is to be written, and how far behind the destination's start.
    pub fn take(&self) -> (u64, &[u8]) {
        (self.written, &self.bytes)
    }

    /// It is written.
    pub fn clear(&mut self) {
        self.written += self.bytes.len() as u64;
        self.bytes.clear();
    }
}

/// What is known of each group, by the order of its key.
#[derive(Default)]
pub struct Aggregates {
    /// Without a group column: the one group there is. Kept apart, as no key has to be looked for.
    all: Aggregate,
    groups: BTreeMap<u64, Aggregate>,
}

#[derive(Clone, Copy)]
struct Aggregate {
    count: u64,
    sum: i128,
    float_sum: f64,
    /// Ordered.
    min: u64,
    max: u64,
}

impl Default for Aggregate {
    fn default() -> Self {
        Aggregate { count: 0, sum: 0, float_sum: 0.0, min: u64::MAX, max: 0 }
    }
}

impl Aggregates {
    /// Adds a row.
    pub fn add(&mut self, row: &[u8], column: Column, group: Option<Column>) -> Result<(), Status> {
        let Some(group) = group else {
            self.all.add(row, column);
            return Ok(());
        };
        let key = group.ordered(row);
        if let Some(aggregate) = self.groups.get_mut(&key) {
            aggregate.add(row, column);
            return Ok(());
        }
        if self.groups.len() == MAX_GROUPS {
            return Err(TOO_MANY_GROUPS);
        }
        self.groups.entry(key).or_default().add(row, column);
        Ok(())
    }

    /// The groups in order.
    pub fn groups(&self, column: Column, group: Option<Column>) -> impl Iterator<Item = Group> {
        let all = (group.is_none() && self.all.count > 0).then_some((0, &self.all));
        let groups = self
            .groups
            .iter()
            .map(move |(&key, aggregate)| (group.map_or(0, |group| group.kind.bits_of(key)), aggregate));
        all.into_iter().chain(groups).map(move |(key, aggregate)| aggregate.result(key, column))
    }
}

impl Aggregate {
    #[inline]
    fn add(&mut self, row: &[u8], column: Column) {
        let bits = column.bits(row);
        let ordered = column.kind.to_ordered(bits);
        self.count += 1;
        self.min = self.min.min(ordered);
        self.max = self.max.max(ordered);
        match column.kind {
            ColumnType::F64 => self.float_sum += f64::from_bits(bits),
            ColumnType::I32 | ColumnType::I64 => self.sum += i128::from(bits as i64),
            ColumnType::U32 | ColumnType::U64 => self.sum += i128::from(bits),
        }
    }

    fn result(&self, key: u64, column: Column) -> Group {
        let is_float = column.kind == ColumnType::F64;
        Group {
            key,
            count: self.count,
            sum: if is_float { self.float_sum.to_bits().into() } else { self.sum },
            min: column.kind.bits_of(self.min),
            max: column.kind.bits_of(self.max),
        }
    }
}
