//! What each operation of the comparison is, and what the probe's figures say it takes.

use remora_model::platform::{Platform, on_curve};

use crate::compare::Plan;
use crate::measure::{Link, Load, Operation, Placement, Row};
use crate::records::Records;
use crate::store::{LIST_LENGTHS, VALUE_SIZES};
use crate::where_::{self, Access, Kind, Memory, Place};
use crate::workload::{Distribution, THETA};

/// The data that the comparison runs on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Data {
    /// Records of the large table.
    pub records: f64,
    /// Bytes of key and value, on average.
    pub record_bytes: f64,
    /// How keys are drawn.
    pub distribution: Distribution,
}

impl Data {
    /// Of the comparison's records and plan.
    pub fn new(records: &Records, plan: &Plan) -> Self {
        let (count, record_bytes) = (records.len() as f64, records.mean_record() as f64);
        Self { records: count, record_bytes, distribution: plan.distribution }
    }
}

/// Bytes of list elements and values, of the store's 2048 lists of 32.
const LIST_STATE: f64 = 2.0 * 2048.0 * 32.0 * 64.0;
/// Records of the tables with values of one size, at most.
const SIZED_RECORDS: f64 = 4096.0;
/// Length field and mean key of a record.
const KEY: f64 = 4.0 + 23.0;
/// Part of the keys that lie in an overflow entry.
const OVERFLOW: f64 = 1.0 / 30.0;
/// Bytes that the checksum adds to an object.
const CHECKSUM: f64 = 8.0;
/// Loads that the workload itself makes for a GET: where its record lies, its key, and the value to compare with.
const WORKLOAD_LOADS: f64 = 3.0;
/// Bytes that it keeps of a record beside key and value.
const SPAN: f64 = 32.0;
/// YCSB scrambles zipfian ranks of ten billion. This part of the draws has a rank beyond a million, and so falls on
/// all records alike: 1 - H(10^6) / H(10^10), with the harmonic numbers at 0.99.
const SPREAD_DRAWS: f64 = 0.42;

/// Predicts the rows of a comparison: of each only the median latency with 1 in flight and the rate with 64 are filled.
/// `None` if the platform's NIC is not software.
pub fn predict(platform: &Platform, data: &Data, links: &[Link], placements: &[Placement]) -> Option<Vec<Row>> {
    let mut rows = Vec::new();
    let lists = LIST_LENGTHS.map(|length| (Operation::List, Some(length)));
    let gets = [(Operation::GetHit, None), (Operation::GetMiss, None)];
    let sized = VALUE_SIZES.map(|bytes| (Operation::GetSize, Some(bytes)));
    let consistent = VALUE_SIZES.map(|bytes| (Operation::ConsistentGet, Some(bytes)));
    for (operation, parameter) in lists.into_iter().chain(gets).chain(sized).chain(consistent) {
        for &link in links {
            for &placement in placements {
                let times = times(platform, data, (operation, parameter.unwrap_or(0)), (placement, link))?;
                let in_flight_1 = Load { p50_ns: times.alone as u64, ops_per_s: 1e9 / times.alone, ..Load::default() };
                let in_flight_64 = Load { ops_per_s: 1e9 / times.each, ..Load::default() };
                rows.push(Row { operation, parameter, link, placement, in_flight_1, in_flight_64 });
            }
        }
    }
    Some(rows)
}

fn times(
    platform: &Platform,
    data: &Data,
    (operation, parameter): (Operation, u64),
    (placement, link): (Placement, Link),
) -> Option<where_::SoftwareTimes> {
    let place = match placement {
        Placement::Client => Place::Client,
        Placement::Nic => Place::Nic,
        Placement::Host => Place::Host,
    };
    let of = |operation: &where_::Operation| where_::times(platform, operation, place, link);
    let size = parameter as f64;
    match operation {
        Operation::List => of(&described((size + 1.0, 64.0), 64.0, LIST_STATE)),
        Operation::GetHit | Operation::GetTrace => {
            get(platform, data.distribution, data.records, data.record_bytes + 4.0, of)
        }
        Operation::GetSize => get(platform, data.distribution, data.records.min(SIZED_RECORDS), KEY + size, of),
        Operation::GetMiss => of(&described((1.0 + OVERFLOW, 64.0), 0.0, data.records * 43.0)),
        Operation::ConsistentGet => {
            let bytes = size + CHECKSUM;
            // One access: the object itself. It was just written, by another core.
            let mut object = described((1.0, bytes), bytes, 2.0 * bytes);
            let software = platform.software.as_ref()?;
            let clock = if place == Place::Client { platform.client.clock } else { platform.host.clock };
            object.cycles = bytes / software.system.crc64 * clock;
            let mut times = of(&object)?;
            let fetched = (bytes / 64.0).ceil().min(4.0) * software.system.core_to_core as f64 / 2000.0;
            times.alone += fetched;
            Some(times)
        }
    }
}

/// A GET of records of so many bytes with their keys: the mixture of a zipfian over them and of draws that fall on all
/// alike, and the loads that the workload makes in its own copy of them.
fn get(
    platform: &Platform,
    distribution: Distribution,
    records: f64,
    bytes: f64,
    of: impl Fn(&where_::Operation) -> Option<where_::SoftwareTimes>,
) -> Option<where_::SoftwareTimes> {
    let rounded = (bytes / 64.0).ceil() * 64.0;
    let item = 43.0 + rounded;
    let mut uniform = described((2.0 + OVERFLOW, 64.0), bytes, records * item);
    uniform.uneven = true;
    let mut zipfian = where_::Operation { skew: THETA, item, ..uniform.clone() };
    zipfian.item = item;
    let spread = if distribution == Distribution::Uniform { 1.0 } else { SPREAD_DRAWS };
    let (zipfian, uniform) = (of(&zipfian)?, of(&uniform)?);
    let own = {
        let curve = &platform.software.as_ref()?.curve;
        let load = |bytes: f64| (on_curve(curve, bytes, true) - on_curve(curve, 16384.0, true)).max(0.0) / 1000.0;
        // Popular records lie in the caches: half of the way, by the logarithm, to all of them.
        let all = records * (SPAN + bytes);
        WORKLOAD_LOADS * (spread * load(all) + (1.0 - spread) * load((all * 16384.0).sqrt()))
    };
    let mix = |zipfian: f64, uniform: f64| (1.0 - spread) * zipfian + spread * uniform + own;
    Some(where_::SoftwareTimes { alone: mix(zipfian.alone, uniform.alone), each: mix(zipfian.each, uniform.each) })
}

fn described((count, bytes): (f64, f64), reply: f64, state: f64) -> where_::Operation {
    where_::Operation {
        title: String::new(),
        accesses: vec![Access { count, bytes, kind: Kind::Read, dependent: true }],
        request: 36.0,
        reply,
        uneven: false,
        cycles: 0.0,
        pipeline_cycles: 0.0,
        state,
        item: 64.0,
        skew: 0.0,
        writes: 0.0,
        memory: Memory::Host,
        load: where_::Load::Closed(1),
    }
}
