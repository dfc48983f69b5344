//! GETs by the size of the value.

use remora_store::hash::Table;

use super::get::Gets;
use super::{Common, Loaded, Operation, Parameters, VALUE_SIZES, Workload};
use crate::StudyError;
use crate::calling::Calls;
use crate::records::Records;
use crate::report::Report;
use crate::store::{Loader, table_bytes};
use crate::trace::Trace;
use crate::validate::Prediction;
use crate::where_::SoftwareTimes;

/// Look up keys that exist. Parameter: bytes of the value.
pub const GET_SIZE: Operation = Operation(&GetSize);

/// Records of each value size, at most.
const RECORDS: u64 = 4096;
/// Length field and mean key of a record.
const KEY: f64 = 4.0 + 23.0;

struct GetSize;

/// Tables whose values all have one size.
struct Tables(Vec<SizedTable>);

struct SizedTable {
    bytes: u64,
    records: Records,
    trace: Trace,
    table: Table,
}

impl Workload for GetSize {
    fn name(&self) -> &'static str {
        "get-size"
    }

    fn title(&self) -> &'static str {
        "Hash-table GET by value size"
    }

    fn parameters(&self) -> Option<Parameters> {
        Some(Parameters { unit: "bytes", axis: "value size in bytes", values: &VALUE_SIZES })
    }

    fn caption(&self, _: &Report) -> String {
        "Median latency of a GET of generated records, by the size of the value, as in figure 8 of StRoM (EuroSys 2020)."
            .into()
    }

    fn bytes(&self, records: &Records) -> u64 {
        let count = RECORDS.min(records.len() as u64);
        VALUE_SIZES.iter().map(|&bytes| table_bytes(count, bytes)).sum()
    }

    fn load(&self, loader: &mut Loader<'_>, records: &Records) -> Result<Box<dyn Loaded>, StudyError> {
        let count = RECORDS.min(records.len() as u64);
        let mut tables = Vec::new();
        for bytes in VALUE_SIZES {
            let seed = loader.seed() ^ bytes;
            let records = Records::generate(count, bytes as usize, seed);
            let trace = loader.hits(&records, seed);
            let table = loader.table(&records)?;
            tables.push(SizedTable { bytes, records, trace, table });
        }
        Ok(Box::new(Tables(tables)))
    }

    fn predict(&self, prediction: &Prediction<'_>, bytes: f64) -> Option<(SoftwareTimes, f64)> {
        Some((prediction.get(prediction.data.records.min(RECORDS as f64), KEY + bytes)?, 0.0))
    }
}

impl Loaded for Tables {
    fn calls<'a>(&'a self, _: &'a Common<'_>, bytes: u64, _: u64) -> Option<Box<dyn Calls + 'a>> {
        let sized = self.0.iter().find(|sized| sized.bytes == bytes)?;
        Some(Box::new(Gets::new(sized.table, &sized.records, &sized.trace)))
    }
}
