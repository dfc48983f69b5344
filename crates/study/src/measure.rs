//! What is measured: latencies, rates and costs of one operation in one placement over one link.

use std::time::Duration;

use remora_kernel::Placement;
use remora_lab::stats::Latencies;
use remora_real::LinkKind;
use serde::{Deserialize, Serialize};

use crate::operations::Operation;

/// Operations under way at once: one after the other for latency, many for throughput.
pub const IN_FLIGHT: [u32; 2] = [1, 64];

/// Samples below which a 99.9th percentile would be a guess.
const ENOUGH_FOR_P999: u64 = 1000;

/// One operation in one placement over one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was done.
    pub operation: Operation,
    /// List elements, or bytes of the value.
    pub parameter: Option<u64>,
    /// The way that packets took.
    pub link: LinkKind,
    /// Where the kernel ran.
    pub placement: Placement,
    /// One operation after the other.
    pub in_flight_1: Load,
    /// Sixty-four operations at once.
    pub in_flight_64: Load,
    /// The same by rings in memory instead of RPC verbs or SENDs, where that was measured too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_ring: Option<RingLoads>,
}

impl Row {
    /// What was measured by rings, as a row of its own, and what it is called: the place and the way.
    pub fn of_rings(&self) -> Option<(String, Row)> {
        let RingLoads { in_flight_1, in_flight_64 } = self.by_ring.clone()?;
        Some((format!("{} ring", self.placement), Row { in_flight_1, in_flight_64, by_ring: None, ..self.clone() }))
    }
}

/// An operation whose calls went by rings in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RingLoads {
    /// One operation after the other.
    pub in_flight_1: Load,
    /// Sixty-four operations at once.
    pub in_flight_64: Load,
}

/// An operation repeated with a number of them in flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Operations done. Each result was compared with what it had to be.
    pub verified: u64,
    /// Operations a second.
    pub ops_per_s: f64,
    /// The 1st percentile of latency.
    pub p1_ns: u64,
    /// The median latency.
    pub p50_ns: u64,
    /// The 99th percentile of latency.
    pub p99_ns: u64,
    /// The 99.9th percentile of latency; none below a thousand operations.
    pub p999_ns: Option<u64>,
    /// Requests that waited for the network.
    pub round_trips_per_op: f64,
    /// Bytes of IP packets, both ways, acknowledgements included.
    pub wire_bytes_per_op: f64,
    /// CPU time of the client process, polling included.
    pub client_cpu_ns_per_op: f64,
    /// CPU time of the node process, polling included.
    pub node_cpu_ns_per_op: f64,
    /// Reads of an object beyond the first because its checksum did not hold.
    pub rereads_per_op: f64,
    /// Calls made again because the object changed during every try that a kernel may make. Their latency counts from
    /// the first time.
    pub repeated_calls: u64,
    /// Request packets sent again because they or their answers were lost.
    pub retransmits: u64,
    /// The rounds that it was measured in, apart: what tells how far the figures vary.
    #[serde(default)]
    pub rounds: Vec<Round>,
    /// All latencies as HdrHistogram writes them (V2, compressed, in Base64), if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<String>,
    /// The latency of each operation in nanoseconds, as they ended, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_ns: Option<Vec<u64>>,
}

/// One of the rounds that a load was measured in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Operations a second.
    pub ops_per_s: f64,
    /// The median latency.
    pub p50_ns: u64,
}

/// What is kept of a load beyond its figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// The histogram of latencies.
    pub histogram: bool,
    /// The latency of each operation.
    pub samples: bool,
}

/// What a link has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that waited for the network.
    pub round_trips: u64,
    /// Bytes of IP packets, both ways.
    pub wire_bytes: u64,
    /// Request packets sent again.
    pub retransmits: u64,
}

impl Counts {
    /// What came since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            round_trips: self.round_trips.saturating_sub(before.round_trips),
            wire_bytes: self.wire_bytes.saturating_sub(before.wire_bytes),
            retransmits: self.retransmits.saturating_sub(before.retransmits),
        }
    }
}

/// Everything measured of one load, slice by slice.
#[derive(Default)]
pub struct Tally {
    /// How long each operation took.
    pub latencies: Latencies,
    /// How long it all took.
    pub elapsed: Duration,
    /// What the link carried.
    pub counts: Counts,
    /// CPU time of the client process in nanoseconds.
    pub client_cpu_ns: u64,
    /// CPU time of the node process in nanoseconds.
    pub node_cpu_ns: u64,
    /// Reads of objects beyond the first, in the calls that ended with a result.
    pub rereads: u64,
    /// Calls made again.
    pub repeated: u64,
    /// The latency of each operation, if they are kept.
    pub samples_ns: Option<Vec<u64>>,
    /// Whether the histogram is kept.
    pub keeps_histogram: bool,
    /// The slices apart.
    rounds: Vec<Round>,
}

impl Tally {
    /// Nothing yet; what is kept in the end.
    pub fn keeping(keep: Keep) -> Self {
        Self { samples_ns: keep.samples.then(Vec::new), keeps_histogram: keep.histogram, ..Self::default() }
    }

    /// Adds a slice: how long its operations took, and what it cost.
    pub fn add(
        &mut self,
        latencies: &Latencies,
        elapsed: Duration,
        counts: Counts,
        client_cpu_ns: u64,
        node_cpu_ns: u64,
    ) {
        let ops_per_s = latencies.count() as f64 / elapsed.as_secs_f64().max(1e-9);
        self.rounds.push(Round { ops_per_s, p50_ns: latencies.quantile(0.5) });
        self.latencies.add(latencies);
        self.elapsed += elapsed;
        self.counts.round_trips += counts.round_trips;
        self.counts.wire_bytes += counts.wire_bytes;
        self.counts.retransmits += counts.retransmits;
        self.client_cpu_ns += client_cpu_ns;
        self.node_cpu_ns += node_cpu_ns;
    }

    /// The sum.
    pub fn load(&self) -> Load {
        let Self { latencies, counts, .. } = self;
        let verified = latencies.count();
        let per_op = |total: u64| total as f64 / verified.max(1) as f64;
        Load {
            verified,
            ops_per_s: verified as f64 / self.elapsed.as_secs_f64().max(1e-9),
            p1_ns: latencies.quantile(0.01),
            p50_ns: latencies.quantile(0.5),
            p99_ns: latencies.quantile(0.99),
            p999_ns: (verified >= ENOUGH_FOR_P999).then(|| latencies.quantile(0.999)),
            round_trips_per_op: per_op(counts.round_trips),
            wire_bytes_per_op: per_op(counts.wire_bytes),
            client_cpu_ns_per_op: per_op(self.client_cpu_ns),
            node_cpu_ns_per_op: per_op(self.node_cpu_ns),
            rereads_per_op: per_op(self.rereads),
            repeated_calls: self.repeated,
            retransmits: counts.retransmits,
            rounds: self.rounds.clone(),
            histogram: self.keeps_histogram.then(|| latencies.encoded()),
            samples_ns: self.samples_ns.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_sums_up_what_was_measured() {
        let mut tally = Tally { rereads: 100, ..Tally::keeping(Keep { histogram: true, samples: false }) };
        let latencies = |us: std::ops::RangeInclusive<u64>| {
            let mut latencies = Latencies::new();
            us.for_each(|us| latencies.record(Duration::from_micros(us)));
            latencies
        };
        let at = |round_trips, wire_bytes, retransmits| Counts { round_trips, wire_bytes, retransmits };
        tally.add(
            &latencies(1..=500),
            Duration::from_secs(1),
            at(8_010, 100_100, 2).since(at(10, 100, 1)),
            1_000_000,
            4_000_000,
        );
        tally.add(
            &latencies(501..=2000),
            Duration::from_secs(3),
            at(10_000, 300_000, 2).since(Counts::default()),
            1_000_000,
            2_000_000,
        );
        let load = tally.load();
        assert_eq!(load.rounds.iter().map(|round| round.ops_per_s).collect::<Vec<_>>(), [500.0, 500.0]);
        assert!(load.rounds[0].p50_ns < load.rounds[1].p50_ns && load.histogram.is_some() && load.samples_ns.is_none());
        assert_eq!((load.verified, load.ops_per_s, load.retransmits), (2000, 500.0, 3));
        assert_eq!((load.round_trips_per_op, load.wire_bytes_per_op), (9.0, 200.0));
        assert_eq!((load.client_cpu_ns_per_op, load.node_cpu_ns_per_op), (1000.0, 3000.0));
        assert_eq!(load.rereads_per_op, 0.05);
        let quantiles = [(load.p1_ns, 20), (load.p50_ns, 1000), (load.p99_ns, 1980), (load.p999_ns.unwrap(), 1998)];
        for (quantile, us) in quantiles {
            let exact = us as f64 * 1000.0;
            assert!((quantile as f64 / exact - 1.0).abs() < 0.001, "{quantile} ns instead of {us} us");
        }
    }

    #[test]
    fn few_samples_have_no_tail_and_none_no_division() {
        assert_eq!(Tally::default().load(), Load::default());
        let mut tally = Tally::default();
        (0..999).for_each(|_| tally.latencies.record(Duration::from_secs(3600)));
        let load = tally.load();
        assert_eq!(load.p999_ns, None);
        assert!((load.p50_ns as f64 / 60e9 - 1.0).abs() < 0.01, "longer than a minute counts as a minute");
    }
}
