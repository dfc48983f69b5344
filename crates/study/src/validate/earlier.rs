//! An earlier probe that predicts: how old it is, and which of its figures have moved earlier.

use remora_lab::stats::median;
use remora_model::platform::Platform;
use serde::Serialize;

use super::GOAL;
use crate::format::{digits, span, unix_s};

/// Figures that have moved most, of which a text tells.
const TOLD: usize = 5;

/// An earlier probe beside those of now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Earlier {
    /// The file that it stands in.
    pub file: String,
    /// What it says that it is of.
    pub title: String,
    /// When it was made, in UTC, if it says so.
    pub probed: Option<String>,
    /// How long ago that is, in seconds.
    pub age_s: Option<u64>,
    /// Figures that it and the probes of now have.
    pub figures: usize,
    /// Those that have moved, the farthest first; those that were or are nothing last: of the differences that they are that says
    /// little.
    pub moved: Vec<Moved>,
}

/// A figure that has moved: it is off by over a tenth, and what its rounds gave then and now does not overlap.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moved {
    /// Its path in the file.
    pub path: String,
    /// Its unit.
    pub unit: String,
    /// What it was.
    pub then: f64,
    /// The median of the probes of now.
    pub now: f64,
}

impl Moved {
    /// The larger over the smaller.
    fn factor(&self) -> f64 {
        let (low, high) = (self.then.min(self.now), self.then.max(self.now));
        if high == low { 1.0 } else { high / low }
    }
}

impl Earlier {
    /// Holds a file's probe against those of now; `now_unix_s` is the time, in seconds since 1970.
    pub fn new(file: &str, then: &Platform, now: &[&Platform], now_unix_s: u64) -> Self {
        let (mut figures, mut moved) = (0, Vec::new());
        for before in then.params.iter() {
            let after: Vec<_> = now.iter().filter_map(|platform| platform.params.get(&before.path)).collect();
            if after.is_empty() {
                continue;
            }
            figures += 1;
            let low = after.iter().map(|param| param.range.0).fold(f64::INFINITY, f64::min);
            let high = after.iter().map(|param| param.range.1).fold(0.0, f64::max);
            let value = median(after.iter().map(|param| param.value));
            let (path, unit) = (before.path.clone(), before.unit.clone());
            let one = Moved { path, unit, then: before.in_unit(before.value), now: before.in_unit(value) };
            if (low > before.range.1 || high < before.range.0) && one.factor() > 1.0 + GOAL {
                moved.push(one);
            }
        }
        let nothing = |one: &Moved| one.factor().is_infinite();
        moved.sort_by(|a, b| nothing(a).cmp(&nothing(b)).then(b.factor().total_cmp(&a.factor())));
        let age_s = then.probed.as_deref().and_then(unix_s).map(|probed| now_unix_s.saturating_sub(probed));
        Self { file: file.into(), title: then.title.clone(), probed: then.probed.clone(), age_s, figures, moved }
    }

    /// In words; `machine` is what a probe of now would call itself.
    pub fn text(&self, machine: &str) -> String {
        let age = match (&self.probed, self.age_s) {
            (Some(probed), Some(age)) => format!("probed {probed} UTC, {} ago", span(age)),
            (Some(probed), None) => format!("probed {probed}"),
            (None, _) => "which does not say when it was probed".into(),
        };
        let mut out = format!("Predicted from {}, {age}.", self.file);
        if self.title != machine {
            out += &format!(" It is of another machine or system: {}; this one is {machine}.", self.title);
        }
        let (all, count) = (self.figures, self.moved.len());
        out += &format!(" Against probes of now {count} of {all} figures have moved by over {:.0} %", GOAL * 100.0);
        let told = |one: &Moved| format!("{} from {} to {} {}", one.path, digits(one.then), digits(one.now), one.unit);
        let told: Vec<String> = self.moved.iter().take(TOLD).map(told).collect();
        let more = if count > TOLD { format!(", and {} more", count - TOLD) } else { String::new() };
        let colon = if count > 0 { ": " } else { "" };
        out + colon + &told.join(", ") + &more + "."
    }
}

#[cfg(test)]
mod tests {
    use super::super::{machine_with, round_machine};
    use super::*;

    /// A machine whose file says when it was probed.
    fn then() -> Platform {
        Platform { probed: Some("2026-11-21 12:00".into()), ..round_machine() }
    }

    #[test]
    fn figures_that_moved_are_told_the_farthest_first() {
        let now =
            [("host.dram.latency", 202.0), ("system.wake", 25.0), ("system.syscall", 105.0), ("system.file_sync", 0.0)];
        let now = machine_with(&now);
        let then = Platform { title: "mine".into(), ..then() };
        let earlier = Earlier::new("here.toml", &then, &[&now], 1_795_262_400 + 7 * 86_400);
        let moved: Vec<_> = earlier.moved.iter().map(|one| (one.path.as_str(), one.then, one.now)).collect();
        assert_eq!(
            moved,
            [("system.wake", 100.0, 25.0), ("host.dram.latency", 101.0, 202.0), ("system.file_sync", 100.0, 0.0)]
        );
        assert_eq!((earlier.age_s, earlier.figures), (Some(604_800), then.params.iter().count()));
        let text = earlier.text("mine");
        assert!(
            text.starts_with("Predicted from here.toml, probed 2026-11-21 12:00 UTC, 7 days ago. Against"),
            "{text}"
        );
        assert!(text.contains("system.wake from 100 to 25.0 ns, host.dram.latency from 101 to 202 ns, "), "{text}");
        assert!(earlier.text("yours").contains("another machine or system: mine; this one is yours."));
    }

    #[test]
    fn what_lies_within_the_rounds_of_then_or_now_has_not_moved() {
        // Of three probes of now one gave what was probed then.
        let [up, down] = [150.0, 100.0].map(|wake| machine_with(&[("system.wake", wake)]));
        let earlier = Earlier::new("here.toml", &round_machine(), &[&up, &down, &up], 0);
        assert_eq!((earlier.moved.len(), earlier.age_s), (0, None));
        let text = earlier.text(&earlier.title);
        assert!(
            text.contains("does not say when") && text.contains(" 0 of ") && text.ends_with("over 10 %."),
            "{text}"
        );
    }

    #[test]
    fn figures_that_only_one_probe_has_are_left_out() {
        let earlier = Earlier::new("here.toml", &then(), &[], 0);
        assert_eq!((earlier.figures, earlier.moved.len()), (0, 0));
    }
}
