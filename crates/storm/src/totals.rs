//! What many storms did together.

use crate::cluster::StormReport;
use crate::disk::DiskCounts;
use crate::engine::End;
use crate::events::Time;
use crate::nemesis::KINDS;
use crate::net::NetCounts;

/// Sums over storms.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Storms.
    pub storms: u64,
    /// Simulated time, ns.
    pub simulated: Time,
    /// Operations that clients called.
    pub operations: u64,
    /// Operations whose clients never learned the outcome.
    pub unknown: u64,
    /// Faults that took effect, by kind.
    pub faults: [u64; KINDS.len()],
    /// Times at which all memory was lost.
    pub blackouts: u64,
    /// The network's.
    pub net: NetCounts,
    /// The disks'.
    pub disk: DiskCounts,
    /// The engine's marks.
    pub marks: Vec<u64>,
    /// Histories of keys that were too hard to check.
    pub unchecked: u64,
}

impl Totals {
    /// Adds a storm.
    pub fn add(&mut self, report: &StormReport) {
        self.storms += 1;
        self.simulated += report.simulated;
        let records = &report.history.records;
        self.operations += records.len() as u64;
        self.unknown += records.iter().filter(|record| record.end == End::Unknown).count() as u64;
        self.blackouts += report.history.blackouts.len() as u64;
        self.unchecked += report.unchecked as u64;
        self.faults.iter_mut().zip(report.faults).for_each(|(sum, count)| *sum += count);
        self.marks.resize(report.marks.len(), 0);
        self.marks.iter_mut().zip(&report.marks).for_each(|(sum, count)| *sum += count);
        self.net.sent += report.net.sent;
        self.net.dropped += report.net.dropped;
        self.net.duplicated += report.net.duplicated;
        self.net.cut += report.net.cut;
        self.net.broken += report.net.broken;
        self.disk.add(report.disk);
    }
}
