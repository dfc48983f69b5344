//! GETs of the records' table: of keys that it has, of keys that it does not have, and of the user's.

use remora_kernel::{Status, op};
use remora_store::hash::Table;
use remora_store::text;

use super::{Common, Loaded, Operation, Workload, difference};
use crate::StudyError;
use crate::calling::{Calls, Checked};
use crate::records::{Records, quote};
use crate::store::Loader;
use crate::trace::{Pick, Trace};
use crate::validate::Prediction;
use crate::where_::SoftwareTimes;

/// Look up keys that exist.
pub const GET_HIT: Operation =
    Operation(&Get { name: "get-hit", title: "Hash-table GET, key present", keys: Keys::Hits });

/// Look up keys that do not exist.
pub const GET_MISS: Operation =
    Operation(&Get { name: "get-miss", title: "Hash-table GET, key absent", keys: Keys::Misses });

/// Look up the keys of the user's trace.
pub const GET_TRACE: Operation =
    Operation(&Get { name: "get-trace", title: "Hash-table GET, keys of the trace", keys: Keys::Trace });

struct Get {
    name: &'static str,
    title: &'static str,
    keys: Keys,
}

/// Which keys are asked for.
#[derive(Clone, Copy, PartialEq)]
enum Keys {
    Hits,
    Misses,
    Trace,
}

impl Workload for Get {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self) -> &'static str {
        self.title
    }

    /// A trace takes the place of generated hits.
    fn is_measured(&self, trace: bool) -> bool {
        match self.keys {
            Keys::Hits => !trace,
            Keys::Misses => true,
            Keys::Trace => trace,
        }
    }

    /// The table is there already.
    fn load(&self, _: &mut Loader<'_>, _: &Records) -> Result<Box<dyn Loaded>, StudyError> {
        Ok(Box::new(self.keys))
    }

    fn predict(&self, prediction: &Prediction<'_>, _: f64) -> Option<(SoftwareTimes, f64)> {
        let data = prediction.data;
        let times = match self.keys {
            Keys::Misses => prediction.miss(data.records)?,
            Keys::Hits | Keys::Trace => prediction.get(data.records, data.record_bytes + 4.0)?,
        };
        Some((times, 0.0))
    }
}

impl Loaded for Keys {
    fn calls<'a>(&'a self, common: &'a Common<'_>, _: u64, _: u64) -> Option<Box<dyn Calls + 'a>> {
        let trace = match self {
            Self::Hits => &common.hits,
            Self::Misses => &common.misses,
            Self::Trace => common.trace.as_ref()?,
        };
        Some(Box::new(Gets::new(common.table, common.records, trace)))
    }
}

/// GETs of a trace's keys.
pub struct Gets<'a> {
    table: Table,
    records: &'a Records,
    trace: &'a Trace,
    at: usize,
}

impl<'a> Gets<'a> {
    /// From the trace's start. The table holds the records.
    pub fn new(table: Table, records: &'a Records, trace: &'a Trace) -> Self {
        Self { table, records, trace, at: 0 }
    }

    fn key(&self, at: u64) -> (&'a [u8], Option<&'a [u8]>) {
        match self.trace.pick(at as usize) {
            Pick::Record(record) => (self.records.key(record as usize), Some(self.records.value(record as usize))),
            Pick::Missing(number) => (self.trace.missing_key(number), None),
        }
    }
}

impl Calls for Gets<'_> {
    fn op(&self) -> u64 {
        op::GET
    }

    fn next(&mut self) -> u64 {
        self.at += 1;
        self.at as u64 - 1
    }

    fn params(&self, id: u64, params: &mut Vec<u8>) {
        params.extend_from_slice(&text::get_params(&self.table, self.key(id).0).encode());
    }

    fn check(&self, id: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        let (key, expected) = self.key(id);
        let found = match status {
            Status::Ok => text::value(reply, key),
            Status::NotFound => None,
            _ => return Err(format!("GET of key {} ended with {status:?}", quote(key))),
        };
        if found == expected {
            return Ok(Checked::RIGHT);
        }
        Err(match (found, expected) {
            (None, Some(_)) => format!("GET of key {} found nothing, though it was loaded", quote(key)),
            (Some(_), None) => format!("GET of key {} found a value, though it was never loaded", quote(key)),
            (found, expected) => {
                format!("GET of key {}: {}", quote(key), difference(found.unwrap_or(&[]), expected.unwrap_or(&[])))
            }
        })
    }
}
