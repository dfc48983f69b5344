//! What stands on the NIC: sockets of a rack and the replicated store, predicted from a probe and measured beside it.
//!
//! No part of either is probed. A prediction puts together what the probe says of lines between cores, calls, the disk and
//! the scheduler; how far it is off says what these leave out.

use std::path::{Path, PathBuf};
use std::time::Duration;

use remora_cluster::Model;
use remora_kernel::Placement;
use remora_lab::bench::{RackDeed, RackPlan, RackSpin};
use remora_lab::stats::{median, range};
use remora_model::platform::{Platform, Software, on_curve};
use remora_real::LinkKind;
use serde::Serialize;

use crate::StudyError;
use crate::compare::Watch;
use crate::format;
use crate::peers::bench::StoreBench;
use crate::peers::redis::AppendOnly;
use crate::where_;
use crate::workload::THETA;
use crate::ycsb::YcsbWorkload;

/// A system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Connections of unmodified programs in a rack.
    Rack,
    /// The replicated store: three nodes on this machine.
    Store,
}

impl System {
    /// All.
    pub const ALL: [Self; 2] = [Self::Rack, Self::Store];

    /// As options spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rack => "rack",
            Self::Store => "store",
        }
    }
}

/// What is measured beside the comparison.
#[derive(Clone, Debug)]
pub struct Systems {
    /// Which.
    pub which: Vec<System>,
    /// The command that is `remora`, for the rack's programs.
    pub remora: PathBuf,
    /// How long each figure is measured.
    pub time: Duration,
    /// Seed of the store's requests.
    pub seed: u64,
}

/// A figure in a round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SystemMeasured {
    /// What.
    pub what: String,
    /// `ns`, or `B/s`.
    pub unit: &'static str,
    /// By the round's probe.
    pub predicted: f64,
    /// What came.
    pub measured: f64,
}

/// A figure: medians over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SystemCell {
    /// What.
    pub what: String,
    /// `ns`, or `B/s`.
    pub unit: &'static str,
    /// By the rounds' probes.
    pub predicted: f64,
    /// What came.
    pub measured: f64,
    /// The least and the largest of the rounds' measurements.
    pub range: (f64, f64),
}

impl SystemCell {
    /// How far the prediction lies from the measurement, as a part of it: positive if it is too high.
    pub fn error(&self) -> f64 {
        self.predicted / self.measured - 1.0
    }

    /// Prediction, measurement, least and largest, to be read.
    pub fn texts(&self) -> [String; 4] {
        let text = |value| match self.unit {
            "ns" => format::time(value),
            _ => format!("{} GB/s", format::digits(value / 1e9)),
        };
        [self.predicted, self.measured, self.range.0, self.range.1].map(text)
    }
}

/// Puts rounds together; what a round lacks is left out.
pub fn put_together(rounds: &[&[SystemMeasured]]) -> Vec<SystemCell> {
    let Some(first) = rounds.first() else { return Vec::new() };
    let cell = |like: &SystemMeasured| {
        let find = |round: &&[SystemMeasured]| round.iter().find(|one| one.what == like.what).cloned();
        let rows: Vec<SystemMeasured> = rounds.iter().map(find).collect::<Option<_>>()?;
        Some(SystemCell {
            what: like.what.clone(),
            unit: like.unit,
            predicted: median(rows.iter().map(|row| row.predicted)),
            measured: median(rows.iter().map(|row| row.measured)),
            range: range(rows.iter().map(|row| row.measured)),
        })
    };
    first.iter().filter_map(cell).collect()
}

/// Bytes of a value of the store, records, and their nodes.
const VALUE: u32 = 1000;
const RECORDS: u32 = 10_000;
const NODES: u64 = 3;
/// The link of the store's nodes and clients.
const LINK: LinkKind = LinkKind::Shm;

impl Systems {
    /// Predicts and measures one round.
    pub(super) fn measure(&self, platform: &Platform, watch: &dyn Watch) -> Result<Vec<SystemMeasured>, StudyError> {
        let mut all = Vec::new();
        let Some(software) = &platform.software else { return Ok(all) };
        if self.which.contains(&System::Rack) {
            let plan = RackPlan { remora: self.remora.clone(), time: self.time };
            for (what, unit, deed, spin, predicted) in sockets(software) {
                let figure = plan.figure(deed, Some(spin))?;
                let measured = if let RackDeed::OneWay(bytes) = deed { figure * bytes as f64 } else { figure };
                all.push(SystemMeasured { what: what.into(), unit, predicted, measured });
            }
        }
        if self.which.contains(&System::Store) {
            for place in [Placement::Host, Placement::Nic] {
                all.extend(self.store(platform, place, &std::env::temp_dir(), watch)?);
            }
        }
        Ok(all)
    }

    /// One client of a store whose protocol runs there.
    fn store(
        &self,
        platform: &Platform,
        place: Placement,
        directory: &Path,
        watch: &dyn Watch,
    ) -> Result<Vec<SystemMeasured>, StudyError> {
        let bench = StoreBench {
            models: vec![Model::Event, Model::Synch],
            deployments: vec![place],
            at: None,
            link: LINK,
            sealed: false,
            workloads: ["reads", "writes"].into_iter().filter_map(YcsbWorkload::named).collect(),
            skews: vec![THETA],
            clients: vec![1],
            arrivals_per_s: None,
            etcd: false,
            redis: false,
            append_only: AppendOnly::No,
            records: RECORDS,
            value_bytes: VALUE,
            time: self.time,
            seed: self.seed,
            directory: directory.into(),
        };
        let (measured, _) = bench.run(watch)?;
        let mut all = Vec::new();
        for row in measured.whole()? {
            let (reads, synch) = (row.workload.name == "reads", row.store.starts_with("synch"));
            let Some(predicted) = replicated(platform, place, reads, synch) else { continue };
            let side = if reads { row.outcome.reads } else { row.outcome.writes };
            let what = format!("store, {}: {}", row.store, row.workload.name);
            all.push(SystemMeasured { what, unit: "ns", predicted, measured: side.p50_ns as f64 });
        }
        Ok(all)
    }
}

/// A figure of sockets to come: what, its unit, what is done, how threads wait, and the prediction.
type Socket = (&'static str, &'static str, RackDeed, RackSpin, f64);

/// The rack's sockets. A message is a line of data and a line that says how much there is: one more than a raw ring's each
/// way. Each end sends and receives once, and each of these calls finds its descriptor and takes a lock as the kernel does
/// for a call that does little. Who sleeps is woken by the kernel. A stream is copied into lines that the other core has
/// read; that one is ahead of its reads.
fn sockets(software: &Software) -> [Socket; 3] {
    let system = &software.system;
    let ns = |ps: u64| ps as f64 / 1000.0;
    let spinning = ns(system.ring_round_trip) + ns(system.core_to_core) + 4.0 * ns(system.syscall);
    let asleep = spinning + 2.0 * ns(system.wake);
    let stream = system.shared_write;
    let large = RackDeed::OneWay(128 << 10);
    [
        ("rack, 64 B round trip, spinning", "ns", RackDeed::RoundTrip, RackSpin::Always, spinning),
        ("rack, 64 B round trip, sleeping", "ns", RackDeed::RoundTrip, RackSpin::Never, asleep),
        ("rack, one stream of 128 KB sends", "B/s", large, RackSpin::AsItIs, stream),
    ]
}

/// A request of one client to the replicated store. A read is a call with a value. A write is one with a value there, and
/// another such call from its node to the followers; it is durable when the disk, which all nodes of this machine have, has
/// been flushed for its node and then for the followers.
///
/// With fewer cores than processes a message finds its receiver's core taken, and what two followers do is done one after
/// the other: four messages instead of two.
fn replicated(platform: &Platform, place: Placement, reads: bool, durable: bool) -> Option<f64> {
    let (costs, system) = (where_::costs(platform, place, LINK)?, &platform.software.as_ref()?.system);
    let ns = |ps: u64| ps as f64 / 1000.0;
    let crowded = platform.host.cores < NODES + 1;
    let message = on_curve(&costs.reply, f64::from(VALUE), false) / 2000.0
        + if crowded { ns(system.context_switch) } else { 0.0 };
    let messages = match (reads, crowded) {
        (true, _) => 2.0,
        (false, true) => 6.0,
        (false, false) => 4.0,
    };
    let flushes = if durable && !reads { 2.0 } else { 0.0 };
    Some(messages * message + flushes * ns(system.file_sync))
}

#[cfg(test)]
mod tests {
    use super::super::predict::tests::machine;
    use super::*;

    #[test]
    fn sums_are_what_a_hand_calculation_gives() {
        // All that the system takes is 100 ns here, bytes move at 10 GB/s, and a reply of 1000 B takes 5200 ns and the part of
        // the 1000 ns up to 4200 B.
        let (machine, near) = (machine(), |a: f64, b: f64| (a - b).abs() < 1e-6 * b);
        let [spinning, asleep, stream] = sockets(machine.software.as_ref().unwrap()).map(|socket| socket.4);
        assert!(near(spinning, 600.0) && near(asleep, 800.0) && near(stream, 10e9), "{spinning} {asleep} {stream}");
        let call = 5200.0 + (1000.0 - 64.0) / (4200.0 - 64.0) * 1000.0;
        let of = |machine: &Platform, reads, durable| replicated(machine, Placement::Host, reads, durable).unwrap();
        // Two cores and four processes: each message finds its receiver's core taken.
        assert!(near(of(&machine, true, false), call + 200.0));
        assert!(near(of(&machine, false, false), 3.0 * call + 600.0));
        assert!(near(of(&machine, false, true), 3.0 * call + 800.0));
        let wide = machine.with(&[("host.core.cores", 4.0)]).unwrap();
        assert!(near(of(&wide, true, true), call) && near(of(&wide, false, false), 2.0 * call));
    }

    #[test]
    fn cells_are_medians_of_what_all_rounds_have() {
        let one =
            |what: &str, predicted, measured| SystemMeasured { what: what.into(), unit: "ns", predicted, measured };
        let rounds = [
            vec![one("a", 10.0, 20.0), one("b", 1.0, 1.0)],
            vec![one("a", 12.0, 8.0)],
            vec![one("a", 11.0, 10.0), one("b", 1.0, 1.0)],
        ];
        let rounds: Vec<&[SystemMeasured]> = rounds.iter().map(Vec::as_slice).collect();
        let cells = put_together(&rounds);
        assert_eq!(cells.len(), 1, "b was not in all");
        assert_eq!((cells[0].predicted, cells[0].measured, cells[0].range), (11.0, 10.0, (8.0, 20.0)));
        assert!((cells[0].error() - 0.1).abs() < 1e-9);
        assert_eq!(put_together(&[]), []);
    }
}
