//! One point of a figure: builds what it needs in a modelled pair, runs it, and says what came.

use remora_kernel::Placement;
use remora_kernel::{GetParams, Status, op};
use remora_lab::stats::Latencies;
use remora_lab::writer::fill_object;
use remora_memory::Region;
use remora_model::platform::{Platform, Stream, Tcp};
use remora_model::time::Ps;
use remora_model::world::{Pair, PairSpec, RawVerb, Writer};
use remora_store::{Place as At, checked, hash};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::streams;
use super::study::{Run, StromSeries, Study};
use super::transfers::{Transferred, Transfers};
use crate::calling::{Calls, Checked};
use crate::load::{self, Until};
use crate::modelled::{ModelError, Modelled, usage};
use crate::operations::{Lists, Objects};

/// Operations of a latency point.
const LATENCY_OPS: u64 = 200;
/// Operations of a point whose tries fail by chance: enough for a mean to one per cent.
const CHANCE_OPS: u64 = 4000;
/// Bytes that a throughput point moves, and messages at least and at most.
const STREAM_BYTES: u64 = 8 << 20;
const STREAM_OPS: (u64, u64) = (48, 6000);
/// Bytes under way in a throughput point, and messages at most.
const WINDOW_BYTES: u64 = 1 << 20;
const WINDOW: u64 = 96;
/// Lists and records that calls choose from.
const LISTS: u64 = 64;
const RECORDS: u64 = 256;

/// What a point came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcomes {
    /// The median, mean, 1st and 99th percentile of latency in nanoseconds.
    pub median_ns: f64,
    /// The mean.
    pub mean_ns: f64,
    /// The 1st percentile.
    pub p1_ns: f64,
    /// The 99th percentile.
    pub p99_ns: f64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// Bytes of payload of an operation.
    pub bytes: u64,
    /// What was busiest.
    pub binding: String,
    /// The part of its time that it was busy.
    pub binding_busy: f64,
    /// Joules an operation, if the platform gives power.
    pub joules_per_op: Option<f64>,
    /// Events that it took.
    pub events: u64,
}

/// What a platform gives to points, which run on threads of their own.
#[derive(Clone, Debug)]
pub struct Ground {
    pub(super) spec: PairSpec,
    tcp: Option<Tcp>,
    pub(super) stream: Option<Stream>,
    pub(super) seed: u64,
}

impl Ground {
    /// Of a platform.
    pub fn new(platform: &Platform, seed: u64) -> Result<Self, ModelError> {
        let (tcp, stream) = (platform.tcp.clone(), platform.stream.clone());
        Ok(Self { spec: PairSpec::new(platform, 0, seed)?, tcp, stream, seed })
    }
}

/// Runs the point of `series` at `x`.
pub fn run(ground: &Ground, series: &StromSeries, x: u64) -> Result<Outcomes, ModelError> {
    let seed = ground.seed;
    let placement = series.placement.unwrap_or(Placement::Nic);
    let new = || Modelled::new(&ground.spec, placement);
    match series.run {
        Run::PingPong => raw(&mut new()?, RawVerb::PingPong, x, 1, LATENCY_OPS, 0.5),
        Run::Read | Run::ReadObject => {
            let bytes = if series.run == Run::ReadObject { x + checked::CRC_BYTES as u64 } else { x };
            raw(&mut new()?, RawVerb::Read, bytes, 1, LATENCY_OPS, 1.0)
        }
        Run::WriteStream => stream(&mut new()?, RawVerb::Write, x),
        Run::ReadStream => stream(&mut new()?, RawVerb::Read, x),
        Run::List => list(&mut new()?, x, seed),
        Run::Get => get(&mut new()?, x, seed),
        Run::Object => object(&mut new()?, x, series.torn.map(|torn| torn as f64 / 100.0), seed),
        Run::TornObject => object(&mut new()?, series.bytes.unwrap_or(4096), Some(x as f64 / 100.0), seed),
        Run::WriteValues => streams::write_values(ground, x),
        Run::PartitionAndWrite => streams::partition_and_write(ground, x),
        Run::Shuffle => streams::shuffle(ground, x),
        Run::ShuffleRuns => streams::shuffle_runs(ground, x),
        Run::CountStreams => streams::count_streams(ground, placement, x),
        Run::CountResident => streams::count_resident(ground, placement, x),
        Run::CountWrites => streams::count_writes(ground, x),
        Run::TcpList => Ok(tcp(ground, x, 64)),
        Run::TcpGet => Ok(tcp(ground, 1, x)),
    }
}

/// Verbs without kernels, `in_flight` at a time.
fn raw(
    model: &mut Modelled,
    verb: RawVerb,
    bytes: u64,
    in_flight: u64,
    count: u64,
    scale: f64,
) -> Result<Outcomes, ModelError> {
    let region = model.pair().alloc(bytes)?;
    let pair = model.pair();
    let (mut latencies, mut sum) = (Latencies::new(), Ps::ZERO);
    let mut submit = |pair: &mut Pair, _, tag| pair.submit_raw(verb, &region, bytes as u32, tag);
    // A quarter as many again come before, unmeasured.
    let warm_up = (count / 4).max(in_flight);
    let transfers = Transfers::new(pair, Placement::Nic, &mut submit).after(warm_up);
    let Transferred { since, events, .. } =
        transfers.run(in_flight, Until::Begun(warm_up + count), &mut |latency| {
            latencies.record(load::duration(latency));
            sum += latency;
        })?;
    let span = (pair.now() - since).as_secs();
    let busiest = usage(pair).into_iter().max_by(|a, b| a.busy.total_cmp(&b.busy));
    Ok(Outcomes {
        median_ns: latencies.quantile(0.5) as f64 * scale,
        mean_ns: sum.as_ns() / latencies.count().max(1) as f64 * scale,
        p1_ns: latencies.quantile(0.01) as f64 * scale,
        p99_ns: latencies.quantile(0.99) as f64 * scale,
        ops_per_s: latencies.count() as f64 / span,
        bytes,
        binding: busiest.as_ref().map(|b| b.name.clone()).unwrap_or_default(),
        binding_busy: busiest.map_or(0.0, |b| b.busy),
        joules_per_op: pair.energy(0).map(|e| (e.client + e.node) / count as f64),
        events: pair.events() - events,
    })
}

fn stream(model: &mut Modelled, verb: RawVerb, bytes: u64) -> Result<Outcomes, ModelError> {
    let (in_flight, count) = window(bytes);
    raw(model, verb, bytes, in_flight, count, 1.0)
}

/// Messages under way, and in all, of a throughput point.
pub(super) fn window(bytes: u64) -> (u64, u64) {
    let in_flight = (WINDOW_BYTES / bytes).clamp(4, WINDOW);
    (in_flight, (STREAM_BYTES / bytes).clamp(STREAM_OPS.0, STREAM_OPS.1))
}

/// Calls of kernels, one at a time.
fn calls(model: &mut Modelled, calls: &mut dyn Calls, bytes: u64, count: u64) -> Result<Outcomes, ModelError> {
    let measured = model.measure(calls, 1, count, &|| false)?;
    Ok(Outcomes {
        median_ns: measured.p50_ns as f64,
        mean_ns: measured.mean_ns,
        p1_ns: measured.p1_ns as f64,
        p99_ns: measured.p99_ns as f64,
        ops_per_s: measured.ops_per_s,
        bytes,
        binding: measured.binding,
        binding_busy: measured.binding_busy,
        joules_per_op: measured.joules_per_op,
        events: measured.events,
    })
}

fn put(model: &mut Modelled, bytes: &[u8]) -> Result<(At, Arc<Region>), ModelError> {
    let region = model.pair().alloc(bytes.len() as u64)?;
    // In bounds: the region was made for them.
    let _ = region.write(region.va(), bytes);
    Ok((At { va: region.va(), key: region.key() }, region))
}

fn room(model: &mut Modelled, bytes: u64) -> Result<(At, Arc<Region>), ModelError> {
    let region = model.pair().alloc(bytes)?;
    Ok((At { va: region.va(), key: region.key() }, region))
}

fn list(model: &mut Modelled, length: u64, seed: u64) -> Result<Outcomes, ModelError> {
    let bytes = Lists::bytes(LISTS, length);
    let ((elements, first), (values, second)) = (room(model, bytes)?, room(model, bytes)?);
    let lists = Lists::new(elements, values, LISTS, length, seed);
    let images = lists.images();
    let _ = (first.write(first.va(), &images.0), second.write(second.va(), &images.1));
    calls(model, &mut lists.walks(length, seed), 64, LATENCY_OPS)
}

/// GETs of keys that lie in their first entry, with values of one size.
struct DirectGets {
    table: hash::Table,
    bytes: usize,
    at: u64,
}

impl DirectGets {
    fn value(key: u64, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|n| hash::mix((key << 16) ^ (n as u64 / 8)).to_le_bytes()[n % 8]).collect()
    }
}

impl Calls for DirectGets {
    fn op(&self) -> u64 {
        op::GET
    }

    fn next(&mut self) -> u64 {
        self.at += 1;
        self.at % RECORDS
    }

    fn params(&self, key: u64, params: &mut Vec<u8>) {
        params.extend_from_slice(&GetParams::encode(&self.table.get_params(key)));
    }

    fn check(&self, key: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        match status == Status::Ok && reply == Self::value(key, self.bytes) {
            true => Ok(Checked::RIGHT),
            false => Err(format!("GET of key {key} ended with {status:?} and {} bytes", reply.len())),
        }
    }
}

fn get(model: &mut Modelled, bytes: u64, seed: u64) -> Result<Outcomes, ModelError> {
    let mut builder = hash::TableBuilder::new(seed);
    for key in 0..RECORDS {
        // Only the builder of a table of billions refuses.
        let _ = builder.insert(key, &DirectGets::value(key, bytes as usize));
    }
    let Ok(layout) = builder.build() else { return Err(ModelError::Still(0)) };
    let (entries, first) = room(model, layout.entries_bytes() as u64)?;
    let (values, second) = room(model, layout.values_bytes() as u64)?;
    let (table, image) = layout.place(entries, values);
    let _ = (first.write(first.va(), &image.entries), second.write(second.va(), &image.values));
    calls(model, &mut DirectGets { table, bytes: bytes as usize, at: 0 }, bytes, LATENCY_OPS)
}

/// The consistency kernel on one object; `torn` is the chance that a look finds it half-written.
fn object(model: &mut Modelled, payload: u64, torn: Option<f64>, seed: u64) -> Result<Outcomes, ModelError> {
    let mut objects = Objects { place: At { va: 0, key: 0 }, count: 1, payload: payload as u32 };
    let (place, region) = put(model, &objects.image())?;
    objects.place = place;
    if let Some(torn) = torn {
        let size = objects.object_size() as usize;
        model.pair().set_writer(Some(Writer::chance(region, size, fill_object, torn, seed)));
    }
    let count = if torn.is_some() { CHANCE_OPS } else { LATENCY_OPS };
    calls(model, &mut objects.reads(seed), payload, count)
}

/// The baseline over TCP: a sum of the platform's figures.
fn tcp(ground: &Ground, elements: u64, bytes: u64) -> Outcomes {
    let Some(tcp) = &ground.tcp else { return Outcomes::default() };
    let walk = Ps(ground.spec.node.dram.latency) * elements;
    let time = Ps(tcp.rpc) + walk + Ps::transfer(bytes.saturating_sub(tcp.free), tcp.stream);
    let ns = time.as_ns();
    Outcomes { median_ns: ns, mean_ns: ns, p1_ns: ns, p99_ns: ns, bytes, ..Outcomes::default() }
}

/// What a figure shows of an outcome: the value, and the 1st and 99th percentile where it is a latency.
pub fn shown(study: &Study, outcome: &Outcomes) -> (f64, f64, f64) {
    use super::study::Metric::*;
    let same = |value: f64| (value, value, value);
    match study.y.metric {
        Median => (outcome.median_ns / 1e3, outcome.p1_ns / 1e3, outcome.p99_ns / 1e3),
        Mean => same(outcome.mean_ns / 1e3),
        Throughput => same(outcome.ops_per_s * outcome.bytes as f64 * 8.0 / 1e9),
        Rate => same(outcome.ops_per_s / 1e6),
        Time => same(outcome.mean_ns / 1e6),
    }
}
