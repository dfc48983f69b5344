//! The measurements behind `remora bench nic`: Remora's NIC against raw probes of the same paths in the same run.

mod pair;
mod ucx;

use std::time::Duration;

pub use pair::{Bench, BenchLink};
pub use ucx::{UcxRow, ucx};

use crate::Error;
use crate::probe::Probe;

/// One figure beside its peer.
#[derive(Clone, Debug)]
pub struct BenchRow {
    /// What was measured.
    pub what: String,
    /// Remora's figure.
    pub value: f64,
    /// Its unit: "ns", "M/s" or "GB/s".
    pub unit: &'static str,
    /// What it is held against.
    pub peer: String,
    /// The peer's figure, in the same unit.
    pub peer_value: f64,
    /// `value / peer_value`.
    pub ratio: f64,
    /// What the figure or the ratio should be, if there is a goal.
    pub goal: Option<Goal>,
}

/// What a row aims at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The ratio at most.
    RatioAtMost(f64),
    /// The ratio at least.
    RatioAtLeast(f64),
    /// The figure at least.
    ValueAtLeast(f64),
}

impl BenchRow {
    fn new(what: impl Into<String>, (value, unit): (f64, &'static str), peer: (&str, f64), goal: Option<Goal>) -> Self {
        let (peer, peer_value) = (peer.0.to_string(), peer.1);
        Self { what: what.into(), value, unit, peer, peer_value, ratio: value / peer_value, goal }
    }

    /// Whether the goal is met; `None` without a goal.
    pub fn met(&self) -> Option<bool> {
        Some(match self.goal? {
            Goal::RatioAtMost(limit) => self.ratio <= limit,
            Goal::RatioAtLeast(limit) => self.ratio >= limit,
            Goal::ValueAtLeast(limit) => self.value >= limit,
        })
    }
}

/// Everything that one run gives.
#[derive(Clone, Debug)]
pub struct BenchReport {
    /// Time that a cache line takes from one core to the other and back, in nanoseconds, before and after the run:
    /// on a shared machine it jumps, and every other latency with it.
    pub core_to_core_ns: (f64, f64),
    /// The figures.
    pub rows: Vec<BenchRow>,
    /// `ucx_perftest`'s figures, if it is installed.
    pub ucx: Vec<UcxRow>,
}

/// Bytes of the small messages.
const SMALL: usize = 64;
/// Bytes of the large messages.
const LARGE: usize = 64 << 10;
/// Memory that the large messages go through, more than the caches hold.
const SPAN: usize = 64 << 20;
/// Round trips per latency figure.
const ROUNDS: usize = 20_000;

/// Measures everything. `progress` is told what is being measured, and how far along it is from 0 to 1.
pub fn run(progress: &mut dyn FnMut(&str, f64)) -> Result<BenchReport, Error> {
    let probe = Probe::default();
    let time = Duration::from_millis(500);
    let system = |what| move |source| Error::System { what, source };
    let mut rows = Vec::new();
    progress("core to core", 0.0);
    let before = probe.cache_line_ns();
    {
        let bench = Bench::new(BenchLink::Udp)?;
        progress("raw UDP ping-pong", 0.05);
        let raw = probe.udp_ns(SMALL).map_err(system("the raw UDP ping-pong"))?;
        progress("WRITE and READ over UDP", 0.1);
        let peer = ("raw UDP ping-pong, busy polling", raw);
        let goal = Some(Goal::RatioAtMost(1.3));
        rows.push(BenchRow::new(
            "udp: 64 B WRITE ping-pong",
            (bench.write_ping_pong(SMALL, ROUNDS)?, "ns"),
            peer,
            goal,
        ));
        rows.push(BenchRow::new("udp: 64 B READ", (bench.read_latency(SMALL, ROUNDS)?, "ns"), peer, goal));
        progress("throughput over UDP", 0.25);
        let packet = 4096 + 16;
        let raw = probe.udp_stream(packet, LARGE).map_err(system("the raw UDP stream"))?.bytes_per_s / 1e9;
        let large = bench.write_rate(LARGE, LARGE, time)? * LARGE as f64 / 1e9;
        let peer = ("raw GSO/GRO sender and receiver", raw);
        rows.push(BenchRow::new("udp: 64 KB WRITEs", (large, "GB/s"), peer, Some(Goal::RatioAtLeast(0.6))));
        let raw = probe.udp_stream(96, LARGE).map_err(system("the raw UDP stream"))?.packets_per_s / 1e6;
        let small = bench.write_rate(SMALL, 1 << 20, time)? / 1e6;
        let peer = ("raw GSO/GRO, 96 B datagrams", raw);
        rows.push(BenchRow::new("udp: 64 B WRITEs, 64 in flight", (small, "M/s"), peer, Some(Goal::ValueAtLeast(2.5))));
    }
    {
        let bench = Bench::new(BenchLink::Shm)?;
        progress("raw ring ping-pong", 0.5);
        let raw = probe.ring_ns();
        progress("WRITE and READ over shared memory", 0.55);
        let peer = ("raw ring ping-pong of a 64 B line", raw);
        let goal = Some(Goal::RatioAtMost(2.5));
        rows.push(BenchRow::new(
            "shm: 64 B WRITE ping-pong",
            (bench.write_ping_pong(SMALL, ROUNDS)?, "ns"),
            peer,
            goal,
        ));
        rows.push(BenchRow::new("shm: 64 B READ", (bench.read_latency(SMALL, ROUNDS)?, "ns"), peer, None));
        progress("throughput over shared memory", 0.65);
        let goal = Some(Goal::RatioAtLeast(0.5));
        for (what, peer, span) in [
            ("shm: 64 KB WRITEs, one buffer", "memcpy of 64 KB in cache", LARGE),
            ("shm: 64 KB WRITEs over 64 MB", "memcpy over 64 MB", SPAN),
        ] {
            let raw = probe.memcpy_bytes_per_s(span) / 1e9;
            let large = bench.write_rate(LARGE, span, time)? * LARGE as f64 / 1e9;
            rows.push(BenchRow::new(what, (large, "GB/s"), (peer, raw), goal));
        }
        let small = bench.write_rate(SMALL, 1 << 20, time)? / 1e6;
        let peer = ("one line a raw ring round trip", 1e3 / raw);
        rows.push(BenchRow::new(
            "shm: 64 B WRITEs, 64 in flight",
            (small, "M/s"),
            peer,
            Some(Goal::ValueAtLeast(12.0)),
        ));
    }
    progress("ucx_perftest", 0.85);
    let ucx = ucx();
    compare_with_ucx(&mut rows, &ucx);
    progress("core to core", 0.98);
    let after = probe.cache_line_ns();
    progress("done", 1.0);
    Ok(BenchReport { core_to_core_ns: (before, after), rows, ucx })
}

/// Remora beside UCX: put latency is half a ping-pong, as `ucx_perftest` counts it.
fn compare_with_ucx(rows: &mut Vec<BenchRow>, ucx: &[UcxRow]) {
    let find = |rows: &[BenchRow], what: &str| rows.iter().find(|r| r.what == what).map(|r| r.value);
    let mut beside = Vec::new();
    for row in ucx {
        let (link, peer) =
            if row.transport == "tcp" { ("udp", "ucx put over tcp") } else { ("shm", "ucx put over shm") };
        if let Some(ns) = find(rows, &format!("{link}: 64 B WRITE ping-pong")) {
            let what = format!("{link}: 64 B WRITE, one way");
            beside.push(BenchRow::new(what, (ns / 2.0, "ns"), (peer, row.latency_ns), Some(Goal::RatioAtMost(1.0))));
        }
        let what = if link == "udp" { "udp: 64 KB WRITEs" } else { "shm: 64 KB WRITEs, one buffer" };
        if let Some(rate) = find(rows, what) {
            beside.push(BenchRow::new(what, (rate, "GB/s"), (peer, row.gb_per_s), Some(Goal::RatioAtLeast(1.0))));
        }
    }
    rows.append(&mut beside);
}
