//! The measurements behind `remora bench nic`: Remora's NIC against raw probes of the same paths in the same run.

mod compress;
mod cores;
mod pair;
mod rack;
mod rack_reduce;
mod rack_stock;
mod ring;
pub mod stream;
mod ucx;

use std::time::Duration;

pub use cores::{CoresPlan, cores};
pub use rack::{RackDeed, RackPlan, RackSpin, call as rack_call, rack, serve as rack_serve};
pub use rack_reduce::reduce as rack_reduce;
use remora_real::{Error, LinkKind};
pub use ring::{RingPlan, ring};
pub use ucx::{UcxRow, ucx};

use crate::MeasuredRows;
use crate::probe::Probe;
use crate::stats::median;
use pair::BenchPair;

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
    pub goal: Option<BenchGoal>,
}

/// What a row aims at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BenchGoal {
    /// The ratio at most.
    RatioAtMost(f64),
    /// The ratio at least.
    RatioAtLeast(f64),
    /// The figure at least.
    ValueAtLeast(f64),
}

impl BenchRow {
    fn new(what: impl Into<String>, unit: &'static str, peer: &str, figures: Figures, goal: Option<BenchGoal>) -> Self {
        let Figures { value, peer_value, ratio } = figures;
        Self { what: what.into(), value, unit, peer: peer.to_string(), peer_value, ratio, goal }
    }

    /// Whether both figures are there: of a time in which nothing was done there is no ratio.
    pub fn is_ratio(&self) -> bool {
        self.value > 0.0 && self.peer_value > 0.0 && self.ratio.is_finite()
    }

    /// Whether the goal is met; `None` without a goal, or without what it is about.
    pub fn met(&self) -> Option<bool> {
        match self.goal? {
            BenchGoal::RatioAtMost(limit) => self.is_ratio().then_some(self.ratio <= limit),
            BenchGoal::RatioAtLeast(limit) => self.is_ratio().then_some(self.ratio >= limit),
            BenchGoal::ValueAtLeast(limit) => Some(self.value >= limit),
        }
    }
}

/// Why a bench ended early.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// It could not go on.
    #[error(transparent)]
    Failed(#[from] Error),
    /// The user wants no more.
    #[error("interrupted")]
    Interrupted,
}

/// Hears what is measured next and how far along all is, from 0 to 1, and says whether to go on.
pub type BenchProgress<'a> = dyn FnMut(&str, f64) -> bool + 'a;

/// Says what is next.
fn next(progress: &mut BenchProgress<'_>, what: &str, part: f64) -> Result<(), BenchError> {
    if progress(what, part) { Ok(()) } else { Err(BenchError::Interrupted) }
}

/// Everything that one run gives.
#[derive(Debug)]
pub struct BenchReport {
    /// Time that a cache line takes from one core to the other and back, in nanoseconds, before and after the run:
    /// on a shared machine it jumps, and every other latency with it.
    pub core_to_core_ns: (f64, f64),
    /// The figures.
    pub measured: MeasuredRows<BenchRow, BenchError>,
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
/// How long one throughput measurement runs.
const TIME: Duration = Duration::from_millis(300);
/// How often Remora and its peer take turns.
const TURNS: usize = 3;

/// Remora's figure and its peer's, each the median of several rounds, and the median of the rounds' ratios.
#[derive(Clone, Copy)]
struct Figures {
    value: f64,
    peer_value: f64,
    ratio: f64,
}

/// Measures both in turn: what disturbs the machine for longer than a round disturbs both.
fn beside(
    mut value: impl FnMut() -> Result<f64, Error>,
    mut peer: impl FnMut() -> Result<f64, Error>,
) -> Result<Figures, Error> {
    let (mut values, mut peers, mut ratios) = ([0.0; TURNS], [0.0; TURNS], [0.0; TURNS]);
    for turn in 0..TURNS {
        peers[turn] = peer()?;
        values[turn] = value()?;
        ratios[turn] = values[turn] / peers[turn];
    }
    Ok(Figures { value: median(values), peer_value: median(peers), ratio: median(ratios) })
}

/// Rows over UDP, and over shared memory.
const ROWS: [usize; 2] = [4, 11];

/// Measures everything.
pub fn run(progress: &mut BenchProgress<'_>) -> BenchReport {
    let probe = Probe::default();
    progress("core to core", 0.0);
    let before = probe.cache_line_ns();
    let ucx = ucx(&mut || progress("ucx_perftest", 0.02));
    let measured = MeasuredRows::by(ROWS[0] + ROWS[1] + ucx.iter().map(rows_beside).sum::<usize>(), |rows| {
        udp(&probe, rows, progress)?;
        shm(&probe, rows, progress)?;
        compare_with_ucx(rows, &ucx);
        Ok(())
    });
    progress("core to core", 0.98);
    let after = probe.cache_line_ns();
    progress("done", 1.0);
    BenchReport { core_to_core_ns: (before, after), measured, ucx }
}

/// Bytes a second to GB/s, or a second to millions.
fn giga(rate: f64, bytes: usize) -> f64 {
    rate * bytes as f64 / 1e9
}

fn udp(probe: &Probe, rows: &mut Vec<BenchRow>, progress: &mut BenchProgress<'_>) -> Result<(), BenchError> {
    let bench = BenchPair::new(LinkKind::Udp)?;
    let raw = || probe.udp_ns(SMALL).map_err(|source| Error::System { what: "the raw UDP ping-pong", source });
    let stream = |datagram| {
        probe.udp_stream(datagram, LARGE).map_err(|source| Error::System { what: "the raw UDP stream", source })
    };
    let peer = "raw UDP ping-pong, busy polling";
    let goal = Some(BenchGoal::RatioAtMost(1.25));
    next(progress, "64 B WRITEs over UDP", 0.05)?;
    let figures = beside(|| bench.write_ping_pong(SMALL, ROUNDS), raw)?;
    rows.push(BenchRow::new("udp: 64 B WRITE ping-pong", "ns", peer, figures, goal));
    next(progress, "READs over UDP", 0.15)?;
    let figures = beside(|| bench.read_latency(SMALL, ROUNDS), raw)?;
    rows.push(BenchRow::new("udp: 64 B READ", "ns", peer, figures, goal));
    let large = || Ok(giga(bench.write_rate(LARGE, LARGE, TIME)?, LARGE));
    // A packet of the largest MTU: BTH, 4096 bytes of payload, ICRC.
    next(progress, "64 KB WRITEs over UDP", 0.25)?;
    let figures = beside(large, || Ok(stream(4096 + 16)?.bytes_per_s / 1e9))?;
    let peer = "raw GSO/GRO sender and receiver";
    rows.push(BenchRow::new("udp: 64 KB WRITEs", "GB/s", peer, figures, Some(BenchGoal::RatioAtLeast(0.7))));
    let small = || Ok(bench.write_rate(SMALL, 1 << 20, TIME)? / 1e6);
    next(progress, "many WRITEs over UDP", 0.35)?;
    let figures = beside(small, || Ok(stream(96)?.packets_per_s / 1e6))?;
    let peer = "raw GSO/GRO, 96 B datagrams";
    rows.push(BenchRow::new(
        "udp: 64 B WRITEs, 64 in flight",
        "M/s",
        peer,
        figures,
        Some(BenchGoal::ValueAtLeast(5.0)),
    ));
    Ok(())
}

fn shm(probe: &Probe, rows: &mut Vec<BenchRow>, progress: &mut BenchProgress<'_>) -> Result<(), BenchError> {
    let bench = BenchPair::new(LinkKind::Shm)?;
    let peer = "raw ring ping-pong of a 64 B line";
    let raw = || Ok(probe.ring_ns());
    next(progress, "64 B WRITEs over shared memory", 0.45)?;
    let figures = beside(|| bench.write_ping_pong(SMALL, ROUNDS), raw)?;
    rows.push(BenchRow::new("shm: 64 B WRITE ping-pong", "ns", peer, figures, Some(BenchGoal::RatioAtMost(2.5))));
    next(progress, "READs over shared memory", 0.55)?;
    let figures = beside(|| bench.read_latency(SMALL, ROUNDS), raw)?;
    rows.push(BenchRow::new("shm: 64 B READ", "ns", peer, figures, Some(BenchGoal::RatioAtMost(2.0))));
    // Remora's own memory moves once; that of a program, which no peer can map, by the ring.
    let other = BenchPair::with_a_programs_memory(LinkKind::Shm)?;
    let (writes, reads) = (BenchPair::write_rate, BenchPair::read_rate);
    type Rate = fn(&BenchPair, usize, usize, Duration) -> Result<f64, Error>;
    let rows_of: [(&str, &BenchPair, Rate, usize, f64); 8] = [
        ("shm: 64 KB WRITEs, one buffer", &bench, writes, LARGE, 0.5),
        ("shm: 64 KB WRITEs over 64 MB", &bench, writes, SPAN, 0.5),
        ("shm: 64 KB READs, one buffer", &bench, reads, LARGE, 0.5),
        ("shm: 64 KB READs over 64 MB", &bench, reads, SPAN, 0.5),
        ("shm: 64 KB WRITEs, one buffer, a program's", &other, writes, LARGE, 0.35),
        ("shm: 64 KB WRITEs over 64 MB, a program's", &other, writes, SPAN, 0.35),
        ("shm: 64 KB READs, one buffer, a program's", &other, reads, LARGE, 0.35),
        ("shm: 64 KB READs over 64 MB, a program's", &other, reads, SPAN, 0.35),
    ];
    for (at, (what, pair, rate, span, least)) in rows_of.into_iter().enumerate() {
        let peer = if span == LARGE { "memcpy of 64 KB in cache" } else { "memcpy over 64 MB" };
        let large = || Ok(giga(rate(pair, LARGE, span, TIME)?, LARGE));
        next(progress, what, 0.6 + 0.03 * at as f64)?;
        let figures = beside(large, || Ok(probe.memcpy_bytes_per_s(span) / 1e9))?;
        rows.push(BenchRow::new(what, "GB/s", peer, figures, Some(BenchGoal::RatioAtLeast(least))));
    }
    let small = || Ok(bench.write_rate(SMALL, 1 << 20, TIME)? / 1e6);
    next(progress, "many WRITEs over shared memory", 0.85)?;
    let figures = beside(small, || Ok(1e3 / probe.ring_ns()))?;
    let peer = "one line a raw ring round trip";
    rows.push(BenchRow::new(
        "shm: 64 B WRITEs, 64 in flight",
        "M/s",
        peer,
        figures,
        Some(BenchGoal::ValueAtLeast(20.0)),
    ));
    Ok(())
}

/// How many rows there are beside one of UCX: of a program's memory no latency.
fn rows_beside(ucx: &UcxRow) -> usize {
    if ucx.transport == "heap" { 1 } else { 2 }
}

/// Remora beside UCX: put latency is half a ping-pong, as `ucx_perftest` counts it.
fn compare_with_ucx(rows: &mut Vec<BenchRow>, ucx: &[UcxRow]) {
    let find = |rows: &[BenchRow], what: &str| rows.iter().find(|r| r.what == what).map(|r| r.value);
    let mut beside = Vec::new();
    let mut push = |what: &str, unit, peer, value: f64, peer_value: f64, goal| {
        let figures = Figures { value, peer_value, ratio: value / peer_value };
        beside.push(BenchRow::new(what, unit, peer, figures, Some(goal)));
    };
    for row in ucx {
        let (link, peer, moved): (_, _, &[&str]) = match row.transport {
            "tcp" => ("udp", "ucx put over tcp", &["udp: 64 KB WRITEs"]),
            "posix" => ("shm", "ucx put over shm", &["shm: 64 KB WRITEs, one buffer"]),
            "cma" => (
                "",
                "ucx put by cma, of mapped memory",
                &["shm: 64 KB WRITEs, one buffer", "shm: 64 KB WRITEs, one buffer, a program's"],
            ),
            _ => ("", "ucx put by cma, of a program's", &["shm: 64 KB WRITEs, one buffer, a program's"]),
        };
        if let Some(ns) = find(rows, &format!("{link}: 64 B WRITE ping-pong")) {
            let what = format!("{link}: 64 B WRITE, one way");
            push(&what, "ns", peer, ns / 2.0, row.latency_ns, BenchGoal::RatioAtMost(1.0));
        }
        for what in moved {
            if let Some(rate) = find(rows, what) {
                push(what, "GB/s", peer, rate, row.gb_per_s, BenchGoal::RatioAtLeast(1.0));
            }
        }
    }
    rows.append(&mut beside);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(what: &str, (value, peer_value): (f64, f64), goal: BenchGoal) -> BenchRow {
        let figures = Figures { value, peer_value, ratio: value / peer_value };
        BenchRow::new(what, "GB/s", "a peer", figures, Some(goal))
    }

    #[test]
    fn of_nothing_there_is_no_ratio_and_no_goal_is_met() {
        let of = |figures, goal| row("a figure", figures, goal).met();
        let (most, least) = (BenchGoal::RatioAtMost(2.0), BenchGoal::RatioAtLeast(2.0));
        assert_eq!([of((3.0, 2.0), most), of((3.0, 2.0), least)], [Some(true), Some(false)]);
        for nothing in [(3.0, 0.0), (0.0, 3.0), (0.0, 0.0), (3.0, f64::NAN)] {
            assert_eq!([of(nothing, most), of(nothing, least)], [None, None], "{nothing:?}");
        }
        assert_eq!(of((3.0, f64::NAN), BenchGoal::ValueAtLeast(2.0)), Some(true), "it needs no peer");
    }

    #[test]
    fn as_many_rows_stand_beside_ucx_as_are_announced() {
        let names = [
            "udp: 64 B WRITE ping-pong",
            "udp: 64 KB WRITEs",
            "shm: 64 B WRITE ping-pong",
            "shm: 64 KB WRITEs, one buffer",
            "shm: 64 KB WRITEs, one buffer, a program's",
        ];
        for transport in ["tcp", "posix", "cma", "heap"] {
            let ucx = UcxRow { transport, latency_ns: 1.0, gb_per_s: 1.0 };
            let mut rows: Vec<_> = names.map(|name| row(name, (1.0, 1.0), BenchGoal::RatioAtLeast(1.0))).into();
            compare_with_ucx(&mut rows, std::slice::from_ref(&ucx));
            assert_eq!(rows.len(), names.len() + rows_beside(&ucx), "{transport}");
        }
    }
}
