//! What a comparison found: as JSON, as a table for the terminal and as an HTML page.

mod html;
mod kernel;
pub(crate) mod plot;
mod table;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use html::html;
pub(crate) use html::{STYLE, download, escape, scroll, tiles, with_names};
pub use kernel::{KernelBar, KernelPage};
pub use table::table;

use crate::auto::{AutoRow, AutoTrace};
use crate::baseline::Since;
use crate::format::count;
use crate::machine::Machine;
use crate::measure::Row;
use crate::on::OnPlatform;
use crate::operations::{GET_TRACE, Operation};
use crate::verdict::{Verdict, judge_all};
use remora_kernel::Placement;
use remora_real::LinkKind;

/// Names the shape of the JSON. A change that a reader could trip over gets a new number.
pub const FORMAT: &str = "remora-compare/1";

/// Everything that a comparison found, and what it takes to do it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: String,
    /// Remora's version.
    pub version: String,
    /// The command line.
    pub command: String,
    /// When it ended, in seconds since 1970 (UTC).
    pub ended_unix_s: u64,
    /// What was set up.
    pub setup: Setup,
    /// Where it ran.
    pub machine: Machine,
    /// What was measured.
    pub rows: Vec<Row>,
    /// Who wins, and why.
    pub verdicts: Vec<Verdict>,
    /// What ended it early, and what is missing; `None` if nothing did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// What has changed since earlier runs, if there were any to compare with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Since>,
    /// What a client did that chooses the place of each call, if that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub auto: Vec<AutoRow>,
    /// A trace that changes under way, at each place and at chosen ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub auto_traces: Vec<AutoTrace>,
    /// These operations on modelled hardware, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled: Option<OnPlatform>,
}

/// What a comparison was set up with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The node's address.
    pub node: String,
    /// Whether the node is a child process on the same machine.
    pub node_is_child: bool,
    /// Path MTU in bytes, by the link's name.
    #[serde(default)]
    pub path_mtu: BTreeMap<String, u32>,
    /// Seed of every random choice.
    pub seed: u64,
    /// Records in the hash table.
    pub records: u64,
    /// The file that they came from; `None` if they were generated.
    pub load: Option<String>,
    /// Bytes of the longest value.
    pub longest_value_bytes: u64,
    /// How keys were drawn: `zipfian` or `uniform`.
    pub distribution: String,
    /// The file with the trace, if any.
    pub trace: Option<String>,
    /// GETs in that trace.
    pub trace_gets: u64,
    /// GETs in that trace of keys that the store does not have: they must find nothing.
    pub trace_expected_misses: u64,
    /// Seconds that building and loading took.
    pub load_s: f64,
    /// Seconds that measuring took.
    pub measure_s: f64,
    /// Seconds for each operation, placement, link and number in flight.
    pub cell_s: f64,
    /// Updates a second asked of the writer, over all objects; 0 is as fast as it can.
    pub writer_updates_per_s: u32,
}

impl Report {
    /// A report on `rows`, judged.
    pub fn new(command: String, ended_unix_s: u64, setup: Setup, machine: Machine, rows: Vec<Row>) -> Self {
        let verdicts = judge_all(&rows);
        let version = env!("CARGO_PKG_VERSION").into();
        Self {
            format: FORMAT.into(),
            version,
            command,
            ended_unix_s,
            setup,
            machine,
            rows,
            verdicts,
            incomplete: None,
            since: None,
            auto: Vec::new(),
            auto_traces: Vec::new(),
            modelled: None,
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> serde_json::Value {
        // What a report is made of has names for all fields, and so does not fail; a NaN becomes null.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// The operations measured, in order.
    fn operations(&self) -> Vec<Operation> {
        unique(self.rows.iter().map(|row| row.operation))
    }

    /// The links measured, in order.
    fn links(&self) -> Vec<LinkKind> {
        unique(self.rows.iter().map(|row| row.link))
    }

    /// The placements measured, in order.
    fn placements(&self) -> Vec<Placement> {
        Placement::REAL.into_iter().filter(|&p| self.rows.iter().any(|row| row.placement == p)).collect()
    }

    /// What became of consistent reads that found no quiet moment.
    pub(crate) fn repeated_note(&self) -> Option<String> {
        let repeated: u64 =
            self.rows.iter().map(|r| r.in_flight_1.repeated_calls + r.in_flight_64.repeated_calls).sum();
        (repeated > 0).then(|| {
            format!("{} reads gave up because the value changed at every try, and were made again.", count(repeated))
        })
    }

    /// What wire bytes leave out, if it shows.
    pub(crate) fn lent_note(&self) -> Option<String> {
        let is_short = |row: &Row| {
            let bytes = row.parameter.filter(|_| row.operation.unit() == Some("bytes")).unwrap_or(0);
            row.link == LinkKind::Shm && row.in_flight_1.wire_bytes_per_op < bytes as f64
        };
        self.rows.iter().any(is_short).then(|| {
            "Over shm long payload goes by reference, from one process's memory to the other's: wire bytes leave it out."
                .into()
        })
    }

    /// Operations done in all.
    fn verified(&self) -> u64 {
        let rings = self.rows.iter().filter_map(Row::of_rings).map(|(_, row)| row);
        self.rows.iter().cloned().chain(rings).map(|row| row.in_flight_1.verified + row.in_flight_64.verified).sum()
    }

    /// What became of the user's trace.
    fn trace_note(&self) -> Option<String> {
        let Setup { trace, trace_gets, trace_expected_misses, .. } = &self.setup;
        let file = trace.as_ref()?;
        let rows = self.rows.iter().filter(|row| row.operation == GET_TRACE);
        let least = rows.map(|row| row.in_flight_1.verified + row.in_flight_64.verified).min();
        let Some(least) = least else { return Some(format!("{file}: not replayed, as get-trace was not measured")) };
        let (gets, misses) = (count(*trace_gets), count(*trace_expected_misses));
        let part = match least {
            least if least >= *trace_gets => "replayed whole in every place".to_string(),
            least => format!("of which the slowest place got to {}", count(least)),
        };
        Some(format!("{file}: {gets} GETs, {misses} of keys that are not in the store and were not found; {part}"))
    }

    /// What the verdicts depend on beside the operation, as a sentence.
    fn depends(&self) -> String {
        let mtu: Vec<String> = self.setup.path_mtu.iter().map(|(link, mtu)| format!("{mtu} over {link}")).collect();
        let mtu = if mtu.is_empty() { String::new() } else { format!(", packets (path MTU {})", mtu.join(", ")) };
        format!("Who wins depends on the link{mtu}, the machine and what else runs on it: compare within one report.")
    }

    /// Where the records came from, as a sentence part.
    pub(crate) fn source(&self) -> String {
        let Setup { records, load, longest_value_bytes, .. } = &self.setup;
        let count = count(*records);
        match load {
            Some(file) => format!("{count} records of {file}"),
            None => format!("{count} records of {longest_value_bytes} bytes"),
        }
    }
}

fn unique<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::measure::Load;
    use crate::operations::{CONSISTENT_GET, GET_HIT, GET_MISS, GET_SIZE, LIST};

    /// A report with figures that could be real ones.
    pub fn sample() -> Report {
        let mut rows = Vec::new();
        let lists = [1, 2, 4, 8, 16, 32].map(|n| (LIST, Some(n), n as f64 + 1.0, 64.0));
        let gets = [(GET_HIT, None, 2.06, 84.0), (GET_MISS, None, 1.1, 0.0)];
        let sizes = [64, 128, 256, 512, 1024, 2048, 4096];
        let by_size = sizes.map(|n| (GET_SIZE, Some(n), 2.0, n as f64));
        let consistent = sizes.map(|n| (CONSISTENT_GET, Some(n), 1.02, n as f64 + 12.0));
        let cells = lists.into_iter().chain(gets).chain(by_size).chain(consistent);
        for (operation, parameter, trips, bytes) in cells {
            for (link, trip_ns) in [(LinkKind::Udp, 5_200.0), (LinkKind::Shm, 560.0)] {
                for placement in Placement::REAL {
                    let (trips, call) = match placement {
                        Placement::Client => (trips, 0.0),
                        Placement::Nic => (1.0, 350.0 + 60.0 * trips),
                        Placement::Host | Placement::Accelerator => (1.0, 1_150.0 + 60.0 * trips),
                    };
                    rows.push(row(operation, parameter, link, placement, trips, trips * trip_ns + call + bytes * 0.4));
                }
            }
        }
        let machine = Machine {
            cpu: "Some CPU @ 2.60 GHz".into(),
            cores: 2,
            memory_bytes: 24 << 30,
            kernel: "Linux 6.18.0".into(),
            huge_pages: "madvise".into(),
            load_average: 0.2,
            core_to_core_before_ns: 131.0,
            core_to_core_after_ns: 127.0,
            raw_udp_ns: Some(4_800.0),
        };
        let setup = Setup {
            node: "127.0.0.2".into(),
            node_is_child: true,
            seed: 42,
            records: 1_000_000,
            longest_value_bytes: 64,
            distribution: "zipfian".into(),
            load_s: 2.4,
            measure_s: 41.0,
            cell_s: 0.15,
            writer_updates_per_s: 100_000,
            ..Setup::default()
        };
        Report::new("remora compare --seed 42".into(), 1_795_262_400, setup, machine, rows)
    }

    fn row(
        operation: Operation,
        parameter: Option<u64>,
        link: LinkKind,
        placement: Placement,
        trips: f64,
        ns: f64,
    ) -> Row {
        let load = Load {
            verified: 21_000,
            ops_per_s: 1e9 / ns,
            p1_ns: (ns * 0.93) as u64,
            p50_ns: ns as u64,
            p99_ns: (ns * 1.6) as u64,
            p999_ns: Some((ns * 3.1) as u64),
            round_trips_per_op: trips,
            wire_bytes_per_op: trips * 212.0,
            client_cpu_ns_per_op: ns,
            node_cpu_ns_per_op: ns * 0.8,
            rereads_per_op: if operation == CONSISTENT_GET { 0.02 } else { 0.0 },
            repeated_calls: 0,
            retransmits: 0,
            ..Load::default()
        };
        let many = Load { ops_per_s: 11.0 * load.ops_per_s, p50_ns: (ns * 5.8) as u64, ..load.clone() };
        let many = Load { client_cpu_ns_per_op: ns / 11.0, node_cpu_ns_per_op: ns / 12.0, ..many };
        Row { operation, parameter, link, placement, in_flight_1: load, in_flight_64: many, by_ring: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_everything_and_its_names() {
        let report = testing::sample();
        let json = report.to_json();
        let back: Report = serde_json::from_value(json.clone()).unwrap();
        assert!(back.setup == report.setup && back.machine == report.machine && back.verdicts == report.verdicts);
        let key = |row: &Row| (row.operation, row.parameter, row.link, row.placement, row.in_flight_64.p50_ns);
        assert!(back.rows.iter().map(key).eq(report.rows.iter().map(key)));
        assert_eq!(json["format"], "remora-compare/1");
        assert_eq!(json["setup"]["seed"], 42);
        let row = &json["rows"][0];
        assert_eq!((&row["operation"], &row["parameter"]), (&"list".into(), &1.into()));
        assert_eq!((&row["link"], &row["placement"]), (&"udp".into(), &"client".into()));
        let load: Vec<&str> = row["in_flight_1"].as_object().unwrap().keys().map(String::as_str).collect();
        for name in ["p50_ns", "p99_ns", "p999_ns", "ops_per_s", "wire_bytes_per_op", "client_cpu_ns_per_op"] {
            assert!(load.contains(&name), "{name} is missing in {load:?}");
        }
        assert_eq!(report.verdicts.len(), 2 * (6 + 2 + 7 + 7));
    }
}
