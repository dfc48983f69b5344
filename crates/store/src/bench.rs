//! How many GETs a second one core reaches, by the number in flight.

use crate::hash::{self, Table, mix};
use crate::{Place, hash::Image};
use remora_kernel::{Call, ENTRY_BYTES, GetParams, Limits, Status, TableEntry, host_runner, op};
use remora_memory::{Access, Buffer, PageKind, Pd, Region, Registry};
use std::io;
use std::sync::Arc;

/// Bytes of a value.
pub const VALUE_BYTES: usize = 64;
/// How the benchmark's GETs are made, one way after the other.
pub const WAYS: [Way; 8] = {
    use Way::{ByHand, Calls, Plain};
    [Plain, ByHand, Calls(1), Calls(8), Calls(16), Calls(24), Calls(32), Calls(512)]
};
/// GETs that [`Way::ByHand`] has under way.
pub const BY_HAND: usize = 24;

/// How GETs are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By a plain loop, one GET after the other.
    Plain,
    /// [`BY_HAND`] at once by a loop that knows nothing else: what the machine gives, with each read checked.
    ByHand,
    /// As a node serves them: so many calls in flight.
    Calls(usize),
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain => f.write_str("plain loop"),
            Self::ByHand => write!(f, "{BY_HAND} by hand"),
            Self::Calls(in_flight) => write!(f, "{in_flight}"),
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GetRow {
    /// How.
    pub way: Way,
    /// GETs a second.
    pub ops_per_s: f64,
    /// Nanoseconds for one GET.
    pub ns_per_op: f64,
}

/// A hash table in this process, whose record with number i has the key `mix(i)` and a value that
/// begins with that key.
pub struct GetBench {
    registry: Arc<Registry>,
    pd: Pd,
    entries: Arc<Region>,
    values: Arc<Region>,
    table: Table,
    records: u64,
    page_kind: PageKind,
}

impl GetBench {
    /// A table of about `bytes` bytes, entries and values together.
    pub fn new(bytes: u64, seed: u64) -> io::Result<GetBench> {
        let records = (bytes / (VALUE_BYTES + ENTRY_BYTES * 2 / 3) as u64).max(1);
        let mut builder = hash::TableBuilder::new(seed);
        let mut value = [0; VALUE_BYTES];
        for i in 0..records {
            value[..8].copy_from_slice(&mix(i).to_le_bytes());
            builder.insert(mix(i), &value).map_err(io::Error::other)?;
        }
        let layout = builder.build().map_err(io::Error::other)?;

        let registry = Arc::new(Registry::new([0; 32]));
        let pd = registry.alloc_pd();
        let region = |len| {
            let buffer = Buffer::anonymous(len)?;
            let region = registry.register(pd, &buffer, 0, len, None, Access::REMOTE_READ);
            Ok::<_, io::Error>((region.map_err(io::Error::other)?, buffer.page_kind()))
        };
        let (entries, _) = region(layout.entries_bytes())?;
        let (values, page_kind) = region(layout.values_bytes())?;
        let place = |region: &Region| Place { va: region.va(), key: region.key() };
        let (table, Image { entries: e, values: v }) = layout.place(place(&entries), place(&values));
        entries.write(entries.va(), &e).map_err(io::Error::other)?;
        values.write(values.va(), &v).map_err(io::Error::other)?;
        Ok(GetBench { registry, pd, entries, values, table, records, page_kind })
    }

    /// The pages under the table.
    pub fn page_kind(&self) -> PageKind {
        self.page_kind
    }

    /// Measures `gets` GETs of random keys in each of [`WAYS`]. `now` tells the time in nanoseconds.
    ///
    /// # Panics
    /// If a GET does not bring the right value.
    pub fn run(&self, gets: u64, now: impl Fn() -> u64) -> Vec<GetRow> {
        WAYS.iter().map(|&way| self.measure(way, gets, &now)).collect()
    }

    /// Measures `gets` GETs of random keys, made in this way. `now` tells the time in nanoseconds.
    ///
    /// # Panics
    /// If a GET does not bring the right value.
    pub fn measure(&self, way: Way, gets: u64, now: impl Fn() -> u64) -> GetRow {
        let start = now();
        match way {
            Way::Plain => self.plain_loop(gets),
            Way::ByHand => self.by_hand(gets),
            Way::Calls(in_flight) => self.pooled(gets, in_flight),
        }
        let ns_per_op = now().saturating_sub(start).max(1) as f64 / gets as f64;
        GetRow { way, ops_per_s: 1e9 / ns_per_op, ns_per_op }
    }

    /// Key of the record that GET number `i` asks for.
    #[inline]
    fn key(&self, i: u64) -> u64 {
        let record = (u128::from(mix(!i)) * u128::from(self.records)) >> 64;
        mix(record as u64)
    }

    /// What one would write by hand: read the entry, find the key, read the value.
    fn plain_loop(&self, gets: u64) {
        for i in 0..gets {
            let key = self.key(i);
            let mut reply = [0; VALUE_BYTES];
            let found = self.plain_get(&self.table.get_params(key), &mut reply);
            assert!(found && reply[..8] == key.to_le_bytes(), "wrong value for key {key:#x}");
        }
    }

    #[inline]
    fn plain_get(&self, params: &GetParams, reply: &mut [u8]) -> bool {
        let mut index = params.index;
        loop {
            let at = params.entries + u64::from(index) * ENTRY_BYTES as u64;
            let mut bytes = [0; ENTRY_BYTES];
            if self.entries.read(at, &mut bytes).is_err() {
                return false;
            }
            let entry = TableEntry::decode(&bytes);
            let found = entry.buckets.iter().find(|b| b.key == params.key && b.value != 0);
            if let Some(bucket) = found {
                return self.values.read(bucket.value, reply).is_ok();
            }
            if entry.next == 0 {
                return false;
            }
            index = entry.next;
        }
    }

    /// What one would write by hand of several GETs: all of them go a read further, and each asks for its next one.
    fn by_hand(&self, gets: u64) {
        let entry = |params: &GetParams| params.entries + u64::from(params.index) * ENTRY_BYTES as u64;
        let ask = |region: &Region, va, len| {
            let asked = region.ask((self.pd, Access::REMOTE_READ), va, len, len);
            assert!(asked.is_ok(), "no such memory at {va:#x}");
        };
        let mut found = [0; BY_HAND];
        let mut line = [0; ENTRY_BYTES];
        for start in (0..gets).step_by(BY_HAND) {
            let count = (gets - start).min(BY_HAND as u64) as usize;
            let mut all: [_; BY_HAND] = std::array::from_fn(|n| self.table.get_params(self.key(start + n as u64)));
            all[..count].iter().for_each(|params| ask(&self.entries, entry(params), ENTRY_BYTES));
            found[..count].fill(0);
            let mut left = count;
            while left > 0 {
                for (params, found) in all[..count].iter_mut().zip(&mut found).filter(|(_, found)| **found == 0) {
                    let read = self.entries.read(entry(params), &mut line);
                    let TableEntry { buckets, next } = TableEntry::decode(&line);
                    if let Some(bucket) = buckets.iter().find(|b| b.key == params.key && b.value != 0) {
                        (*found, left) = (bucket.value, left - 1);
                        ask(&self.values, bucket.value, VALUE_BYTES);
                    } else {
                        assert!(read.is_ok() && next != 0, "no value for key {:#x}", params.key);
                        params.index = next;
                        ask(&self.entries, entry(params), ENTRY_BYTES);
                    }
                }
            }
            for (params, &found) in all[..count].iter().zip(&found) {
                let mut reply = [0; VALUE_BYTES];
                let read = self.values.read(found, &mut reply);
                assert!(read.is_ok() && reply[..8] == params.key.to_le_bytes(), "wrong value for {:#x}", params.key);
            }
        }
    }

    /// As a node serves it: calls of the GET kernel, in a runner.
    fn pooled(&self, gets: u64, in_flight: usize) {
        let mut runner = host_runner(self.registry.clone(), true, in_flight, Limits::default());
        let mut calls: Vec<Call> = (0..in_flight).map(|_| Call::default()).collect();
        let (mut started, mut finished) = (0, 0);
        while finished < gets {
            while started < gets
                && let Some(mut call) = calls.pop()
            {
                let key = self.key(started);
                call.recycle(op::GET, VALUE_BYTES as u32);
                (call.pd, call.tag) = (Some(self.pd), key);
                call.params.extend_from_slice(&self.table.get_params(key).encode());
                let accepted = runner.start(call);
                assert!(accepted.is_ok(), "a runner has room for as many calls as its capacity");
                started += 1;
            }
            finished += runner.poll(&mut |call, status| {
                let right = status == Status::Ok && call.reply[..8] == call.tag.to_le_bytes();
                assert!(right, "{status:?} for key {:#x}", call.tag);
                calls.push(call);
            }) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_measured_and_every_value_right() {
        let bench = GetBench::new(1 << 16, 1).unwrap();
        let clock = std::cell::Cell::new(0);
        let rows = bench.run(1000, || {
            clock.set(clock.get() + 5000);
            clock.get()
        });
        assert_eq!(rows.iter().map(|row| row.way).collect::<Vec<_>>(), WAYS);
        assert!(rows.iter().all(|row| row.ns_per_op == 5.0 && row.ops_per_s == 2e8));
    }
}
