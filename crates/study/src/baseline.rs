//! A comparison beside earlier ones: what has changed, how sure that is, and whether it is for the worse.
//!
//! Each figure was measured in rounds. From those of the earlier runs and of this one comes an interval for the change
//! ([`stats::change`]); a figure is better or worse only if all of the interval lies beyond the tolerance. Rounds of one run
//! tell how far the machine wavers within a run, and nothing of how runs differ: several earlier runs do.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use remora_kernel::Placement;
use remora_lab::stats;
use remora_real::LinkKind;
use serde::{Deserialize, Serialize};

use crate::format::{rate, time};
use crate::measure::{Load, Row};
use crate::operations::Operation;
use crate::records::{InputError, read_text};
use crate::report::{FORMAT, Report};

/// Changes that a table has room for.
const SHOWN: usize = 20;

/// Earlier runs.
#[derive(Clone, Debug)]
pub struct Baseline {
    files: Vec<PathBuf>,
    reports: Vec<Report>,
    tolerance: f64,
}

/// What has changed since earlier runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Since {
    /// Where they were read from.
    pub files: Vec<String>,
    /// A change by less than this part is none.
    pub tolerance: f64,
    /// What else is not as it was, and may be the cause.
    pub remarks: Vec<String>,
    /// Each figure that both have.
    pub changes: Vec<Change>,
    /// Figures of this run that the earlier ones do not have.
    pub new: usize,
}

/// How a figure has changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// What was done.
    pub operation: Operation,
    /// List elements, or bytes of the value.
    pub parameter: Option<u64>,
    /// The way that packets took.
    pub link: LinkKind,
    /// Where the kernel ran.
    pub placement: Placement,
    /// Whether calls went by rings in memory.
    pub by_ring: bool,
    /// Which figure.
    pub figure: Figure,
    /// Its median over the rounds of the earlier runs: nanoseconds, or operations a second.
    pub before: f64,
    /// Its median over the rounds of this run.
    pub after: f64,
    /// The change: 0.1 is a tenth more.
    pub change: f64,
    /// The least that the change is with 95 % probability; none if there are too few rounds to say.
    pub low: Option<f64>,
    /// The most that it is.
    pub high: Option<f64>,
    /// What that means.
    pub verdict: Outcome,
}

/// A figure of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Figure {
    /// The median latency with one in flight; less is better.
    #[serde(rename = "p50_ns")]
    Latency,
    /// Operations a second with 64 in flight; more is better.
    #[serde(rename = "ops_per_s")]
    Rate,
}

/// What a change means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// For the worse, by more than the tolerance, as sure as the interval is.
    Worse,
    /// For the better, likewise.
    Better,
    /// Within the tolerance, likewise.
    Level,
    /// The interval holds more than one of these, or there is none.
    CannotTell,
}

impl Baseline {
    /// Reads earlier runs of `compare --json`. A change by less than `tolerance` (0.05 is 5 %) is none.
    ///
    /// # Errors
    /// A file that cannot be read or is none of a comparison's.
    pub fn load(files: &[PathBuf], tolerance: f64) -> Result<Self, InputError> {
        let reports = files.iter().map(|file| read(file)).collect::<Result<_, _>>()?;
        Ok(Self { files: files.to_vec(), reports, tolerance })
    }

    /// What has changed.
    ///
    /// # Errors
    /// The runs have no figure in common, and so nothing can be said.
    pub fn compare(&self, now: &Report) -> Result<Since, InputError> {
        let mut earlier: HashMap<_, Vec<f64>> = HashMap::new();
        for (key, rounds) in self.reports.iter().flat_map(figures) {
            earlier.entry(index(key)).or_default().extend(rounds);
        }
        let (mut changes, mut new) = (Vec::new(), 0);
        for (key, after) in figures(now) {
            match earlier.get(&index(key)) {
                Some(before) => changes.push(self.change(key, before, &after)),
                None => new += 1,
            }
        }
        if changes.is_empty() && new > 0 {
            let why = "it has no figure that this run has: give the same operations, links, places and parameters";
            return Err(self.unfit(why));
        }
        changes.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        let files = self.files.iter().map(|file| file.display().to_string()).collect();
        Ok(Since { files, tolerance: self.tolerance, remarks: self.remarks(now), changes, new })
    }

    fn unfit(&self, why: &str) -> InputError {
        InputError::Unfit { path: self.files.first().cloned().unwrap_or_default(), why: why.into() }
    }

    fn change(&self, key: Key, before: &[f64], after: &[f64]) -> Change {
        let (operation, parameter, link, placement, by_ring, figure) = key;
        let [was, is] = [before, after].map(|rounds| stats::median(rounds.iter().copied()));
        let change = stats::change(before, after);
        let part = |ratio: f64| ratio - 1.0;
        let interval = change.map(|change| (part(change.interval.0), part(change.interval.1)));
        let (low, high) = interval.unzip();
        let verdict = interval.map_or(Outcome::CannotTell, |interval| judge(figure, interval, self.tolerance));
        let change = change.map_or(is / was - 1.0, |change| part(change.ratio));
        Change {
            operation,
            parameter,
            link,
            placement,
            by_ring,
            figure,
            before: was,
            after: is,
            change,
            low,
            high,
            verdict,
        }
    }

    /// What differs between the runs beside the figures.
    fn remarks(&self, now: &Report) -> Vec<String> {
        let mut remarks = Vec::new();
        for (file, then) in self.files.iter().zip(&self.reports) {
            let file = file.display();
            let (was, is) = (&then.machine, &now.machine);
            for (what, was, is) in [("processor", &was.cpu, &is.cpu), ("system", &was.kernel, &is.kernel)] {
                if was != is {
                    remarks.push(format!("{file} is of another {what}: {was}, now {is}"));
                }
            }
            if was.cores != is.cores {
                remarks.push(format!("{file} had {} cores, now there are {}", was.cores, is.cores));
            }
            if let Some((was, is)) = was.raw_udp_ns.zip(is.raw_udp_ns).filter(|(was, is)| (is / was).ln().abs() > 0.2) {
                let (was, is) = (time(was), time(is));
                remarks
                    .push(format!("the machine itself has changed since {file}: a raw datagram took {was}, now {is}"));
            }
            let set_up = |report: &Report| {
                let setup = &report.setup;
                (setup.records, setup.longest_value_bytes, setup.distribution.clone(), setup.writer_updates_per_s)
            };
            if set_up(then) != set_up(now) {
                remarks.push(format!(
                    "{file} is of other records, keys or updates: {}, now {}",
                    then.source(),
                    now.source()
                ));
            }
            if then.incomplete.is_some() {
                remarks.push(format!("{file} is not complete"));
            }
        }
        remarks
    }
}

impl Since {
    /// What is worse, in a line; `None` if nothing is.
    pub fn worse(&self) -> Option<String> {
        let worse = self.count(Outcome::Worse);
        let of = self.changes.len();
        (worse > 0).then(|| format!("{worse} of {of} figures are worse than in {}", self.files.join(", ")))
    }

    fn count(&self, verdict: Outcome) -> usize {
        self.changes.iter().filter(|change| change.verdict == verdict).count()
    }

    /// What has changed, the largest first, in lines of at most 80 columns.
    pub fn table(&self) -> String {
        let mut out = format!("\nSince {}\n", self.files.join(", "));
        for remark in &self.remarks {
            let _ = writeln!(out, "  ({remark})");
        }
        let told = |change: &&Change| matches!(change.verdict, Outcome::Worse | Outcome::Better);
        let count = self.changes.iter().filter(told).count();
        for change in self.changes.iter().filter(told).take(SHOWN) {
            let _ = writeln!(out, "  {}", change.line());
        }
        if count > SHOWN {
            let _ = writeln!(out, "  and {} more: see --json", count - SHOWN);
        }
        let [worse, better, level, open] =
            [Outcome::Worse, Outcome::Better, Outcome::Level, Outcome::CannotTell].map(|verdict| self.count(verdict));
        let percent = 100.0 * self.tolerance;
        let _ = writeln!(out, "  {worse} worse, {better} better, {level} level within {percent} %, {open} cannot tell");
        if self.new > 0 {
            let _ = writeln!(out, "  {} figures are new", self.new);
        }
        out
    }
}

impl Change {
    /// `worse  list 8 shm nic p50  1.20 µs -> 2.40 µs  +100 % (+90 to +110)`.
    fn line(&self) -> String {
        let verdict = if self.verdict == Outcome::Worse { "worse " } else { "better" };
        let parameter = self.parameter.map(|n| format!(" {n}")).unwrap_or_default();
        let ring = if self.by_ring { " ring" } else { "" };
        let (name, show): (_, fn(f64) -> String) = match self.figure {
            Figure::Latency => ("p50", time),
            Figure::Rate => ("ops/s", rate),
        };
        let percent = |part: Option<f64>| part.map_or("?".into(), |part| format!("{:+.0}", 100.0 * part));
        let what = format!("{}{parameter} {} {}{ring} {name}", self.operation, self.link, self.placement);
        let [change, low, high] = [Some(self.change), self.low, self.high].map(percent);
        format!("{verdict} {what:<34} {:>8} {:>8} {change} % ({low} to {high})", show(self.before), show(self.after))
    }
}

/// How much there is to say of a change.
fn weight(change: &Change) -> f64 {
    let told = matches!(change.verdict, Outcome::Worse | Outcome::Better);
    let size = (1.0 + change.change).max(1e-9).ln().abs();
    // What is worse first.
    size + if told { 1e3 } else { 0.0 } + if change.verdict == Outcome::Worse { 1e3 } else { 0.0 }
}

/// What an interval of changes means for a figure.
fn judge(figure: Figure, (low, high): (f64, f64), tolerance: f64) -> Outcome {
    let (more, less) = match figure {
        Figure::Latency => (Outcome::Worse, Outcome::Better),
        Figure::Rate => (Outcome::Better, Outcome::Worse),
    };
    // As ratios, so that what is more by the tolerance and what is less by it are alike.
    let (most, least) = (tolerance, 1.0 / (1.0 + tolerance) - 1.0);
    match () {
        () if low > most => more,
        () if high < least => less,
        () if low >= least && high <= most => Outcome::Level,
        () => Outcome::CannotTell,
    }
}

type Key = (Operation, Option<u64>, LinkKind, Placement, bool, Figure);

/// What tells a figure from others in a map.
fn index((operation, parameter, link, placement, by_ring, figure): Key) -> impl Eq + std::hash::Hash {
    (operation.name(), parameter, link, placement, by_ring, figure)
}

/// Each figure of a report by its rounds.
fn figures(report: &Report) -> Vec<(Key, Vec<f64>)> {
    let mut figures = Vec::new();
    for row in &report.rows {
        let &Row { operation, parameter, link, placement, .. } = row;
        let mut both = |by_ring, one: &Load, many: &Load| {
            let key = |figure| (operation, parameter, link, placement, by_ring, figure);
            figures.push((key(Figure::Latency), one.rounds.iter().map(|round| round.p50_ns as f64).collect()));
            figures.push((key(Figure::Rate), many.rounds.iter().map(|round| round.ops_per_s).collect()));
        };
        both(false, &row.in_flight_1, &row.in_flight_64);
        if let Some(ring) = &row.by_ring {
            both(true, &ring.in_flight_1, &ring.in_flight_64);
        }
    }
    figures
}

fn read(file: &Path) -> Result<Report, InputError> {
    let unfit = |why: String| InputError::Unfit { path: file.into(), why };
    let text = read_text(file).map_err(|source| InputError::Read { path: file.into(), source })?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| unfit(format!("it is no JSON: {e}")))?;
    let format = value["format"].as_str().unwrap_or("none");
    if format != FORMAT {
        return Err(unfit(format!("its format is {format}: `remora compare --json FILE` writes {FORMAT}")));
    }
    let report: Report = serde_json::from_value(value).map_err(|e| unfit(e.to_string()))?;
    if figures(&report).iter().all(|(_, rounds)| rounds.is_empty()) {
        return Err(unfit("it has no rounds, which tell how far figures vary: run it again with this version".into()));
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Round;
    use crate::report::testing::sample;

    /// A report whose figures are so many times those of the sample, with rounds that waver by 1 %.
    fn report(times: f64) -> Report {
        let mut report = sample();
        for row in &mut report.rows {
            for load in [&mut row.in_flight_1, &mut row.in_flight_64] {
                let (p50, ops) = (load.p50_ns as f64 * times, load.ops_per_s / times);
                let waver = [0.99, 1.0, 1.0, 1.01];
                load.rounds =
                    waver.map(|part| Round { ops_per_s: ops * part, p50_ns: (1e3 * p50 * part) as u64 }).to_vec();
            }
        }
        report
    }

    fn baseline() -> (tempfile::TempDir, Baseline) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.json");
        std::fs::write(&file, report(1.0).to_json().to_string()).unwrap();
        let baseline = Baseline::load(&[file], 0.05).unwrap();
        (directory, baseline)
    }

    #[test]
    fn what_is_slower_is_worse_and_what_is_as_it_was_is_level() {
        let (_directory, baseline) = baseline();
        let rows = sample().rows.len();
        for (times, verdict) in [(1.5, Outcome::Worse), (1.0, Outcome::Level), (0.5, Outcome::Better)] {
            let since = baseline.compare(&report(times)).unwrap();
            assert_eq!((since.changes.len(), since.count(verdict)), (2 * rows, 2 * rows), "{:?}", since.changes[0]);
            assert_eq!(since.worse().is_some(), verdict == Outcome::Worse);
            assert!(since.table().lines().all(|line| line.chars().count() <= 84), "{}", since.table());
            let again: Since = serde_json::from_value(serde_json::to_value(&since).unwrap()).unwrap();
            assert_eq!(again, since);
        }
        // Too few rounds to say anything.
        let mut few = report(3.0);
        for row in &mut few.rows {
            row.in_flight_1.rounds.truncate(1);
            row.in_flight_64.rounds.truncate(1);
        }
        let since = baseline.compare(&few).unwrap();
        assert_eq!((since.count(Outcome::CannotTell), since.worse()), (2 * rows, None));
    }

    #[test]
    fn what_else_differs_is_told() {
        let (_directory, baseline) = baseline();
        let mut now = report(1.0);
        now.machine.cpu = "another".into();
        now.setup.records += 1;
        let remarks = baseline.compare(&now).unwrap().remarks.join("; ");
        assert!(remarks.contains("another processor") && remarks.contains("other records"), "{remarks}");
        now.rows.iter_mut().for_each(|row| row.parameter = Some(12_345));
        assert!(baseline.compare(&now).unwrap_err().to_string().contains("has no figure that this run has"));
    }

    #[test]
    fn files_that_are_no_baseline_say_why() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("b.json");
        for (text, part) in [
            ("{", "no JSON"),
            ("{\"format\": \"remora-where/1\"}", "its format is remora-where/1"),
            ("{\"format\": \"remora-compare/1\"}", "missing field"),
            (&sample().to_json().to_string(), "no rounds"),
        ] {
            std::fs::write(&file, text).unwrap();
            let why = Baseline::load(std::slice::from_ref(&file), 0.05).unwrap_err().to_string();
            assert!(why.contains(part) && why.contains("b.json"), "{why}");
        }
        assert!(Baseline::load(&["/nowhere".into()], 0.05).is_err());
    }
}
