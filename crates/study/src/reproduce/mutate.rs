//! Mutants of a paper's model: each value of its platforms halved and doubled, each component for nothing, each that has
//! queues serving them out of turn. What the checks catch of them says how far the checks can be trusted.

mod plan;

use std::fmt::Write;

use remora_model::platform::Platform;
use serde::Serialize;

use super::{Claim, ClaimKind, Figure, ReproduceError, ReproduceProgress, Sums, Trend};
use crate::modelled::ModelError;
use plan::{nearly, plans};

/// A figure that moves by more than this part is another figure; of a dot that moves by itself, by more than this and twice
/// that.
pub const MOVED: f64 = 0.1;
/// Runs that say how far dots move by themselves, and which trends hold by chance: with another seed each, and with times,
/// rates, bandwidths and ratios that are off by up to a hundredth.
const SEEDS: u64 = 2;
/// The part of the mutants that move a figure which trends are to catch.
pub const CAUGHT: f64 = 0.8;
/// What is done to the platforms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// A value is halved.
    Half,
    /// A value is doubled.
    Double,
    /// All times of a section are 0, and its rates a thousand times as high.
    Free,
    /// The queues of what a section describes are served out of turn (see [`remora_model::resource::Order`]).
    Order,
}

impl Change {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Half, Self::Double, Self::Free, Self::Order];

    /// What is done, in words.
    fn name(self) -> &'static str {
        match self {
            Self::Half => "x 0.5",
            Self::Double => "x 2",
            Self::Free => "for nothing",
            Self::Order => "out of turn",
        }
    }
}

/// What is run and judged for a platform's values.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The figures.
    pub figures: Vec<Figure>,
    /// The paper's calibration rows beside the model.
    pub claims: Vec<Claim>,
    /// What the paper's text says about shapes.
    pub trends: Vec<Trend>,
    /// What running it took.
    pub sums: Sums,
    /// What is missing, if the user wanted no more.
    pub incomplete: Option<String>,
}

/// A mutant, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mutant {
    /// The value's path, or the section.
    pub what: String,
    /// The platform, if it is not changed in all of the paper's.
    pub platform: Option<String>,
    /// What is done to it.
    pub change: Change,
    /// By which part the figure moves that moves most.
    pub moved: f64,
    /// Which one that is: figure, line and x.
    pub at: String,
    /// Trends that hold no more.
    pub trends: Vec<String>,
    /// Rows that agree no more, those that went in apart.
    pub rows: Vec<String>,
    /// Rows that went in and agree no more: they see the value itself.
    pub went_in: Vec<String>,
    /// Why the model does not run so, if it does not.
    pub refused: Option<String>,
}

impl Mutant {
    /// Whether it runs and moves a figure.
    pub fn matters(&self) -> bool {
        self.refused.is_none() && self.moved > MOVED
    }

    /// `host.pcie.read_latency x 2`.
    pub fn name(&self) -> String {
        let on = self.platform.as_ref().map_or(String::new(), |platform| format!(" on {platform}"));
        format!("{} {}{on}", self.what, self.change.name())
    }
}

/// All mutants of a paper.
#[derive(Clone, Debug, Serialize)]
pub struct Mutation {
    /// The system's name.
    pub system: &'static str,
    /// The mutants, in the order of the platform's file: values, then components for nothing, then queues out of turn.
    pub mutants: Vec<Mutant>,
    /// Trends that are judged.
    pub trends: usize,
    /// The seed.
    pub seed: u64,
    /// What is missing, if the user wanted no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// Names the shape of the JSON.
pub const MUTATION_FORMAT: &str = "remora-mutate/1";

impl Mutation {
    /// Mutants that move a figure.
    pub fn mattering(&self) -> impl Iterator<Item = &Mutant> {
        self.mutants.iter().filter(|mutant| mutant.matters())
    }

    /// The part of those that trends catch; 1 if there is none.
    pub fn caught(&self) -> f64 {
        let all = self.mattering().count();
        let caught = self.mattering().filter(|mutant| !mutant.trends.is_empty()).count();
        if all == 0 { 1.0 } else { caught as f64 / all as f64 }
    }

    /// For programs; `version` is the program's.
    pub fn to_json(&self, version: &str) -> serde_json::Value {
        let mut json = serde_json::to_value(self).unwrap_or_default();
        json["caught"] = self.caught().into();
        json["format"] = MUTATION_FORMAT.into();
        json["version"] = version.into();
        json
    }

    /// A line for each kind of change.
    fn kinds(&self, out: &mut String) {
        let _ = writeln!(out, "{:<12}{:>8}{:>12}{:>8}{:>8}", "change", "tried", "do not run", "move", "caught");
        for change in Change::ALL {
            let of = |what: fn(&Mutant) -> bool| self.mutants.iter().filter(|m| m.change == change && what(m)).count();
            let (tried, refused) = (of(|_| true), of(|m| m.refused.is_some()));
            let (moves, caught) = (of(Mutant::matters), of(|m| m.matters() && !m.trends.is_empty()));
            if tried > 0 {
                let _ = writeln!(out, "{:<12}{tried:>8}{refused:>12}{moves:>8}{caught:>8}", change.name());
            }
        }
        out.push('\n');
    }

    /// Everything in columns.
    pub fn table(&self) -> String {
        let mut out = self.incomplete.as_ref().map_or_else(String::new, |why| format!("Not complete: {why}\n\n"));
        let refused = self.mutants.iter().filter(|mutant| mutant.refused.is_some()).count();
        let all = self.mattering().count();
        let _ = writeln!(
            out,
            "{}: {} mutants of the platform after fitting. {} do not run, {} move no figure by over {:.0} %, {all} do.\n",
            self.system,
            self.mutants.len(),
            refused,
            self.mutants.len() - refused - all,
            MOVED * 100.0
        );
        self.kinds(&mut out);
        let width = self.mattering().map(|mutant| mutant.name().len()).max().unwrap_or(0);
        let _ = writeln!(out, "{:width$} {:>9}  seen by", "mutant", "moves");
        for mutant in self.mattering() {
            let _ = writeln!(out, "{:width$} {:>9}  {}", mutant.name(), mutant.by(), mutant.seen());
        }
        let rows = self.mattering().filter(|m| m.trends.is_empty() && !m.rows.is_empty()).count();
        let went_in =
            self.mattering().filter(|m| m.trends.is_empty() && m.rows.is_empty() && !m.went_in.is_empty()).count();
        let caught = self.mattering().filter(|mutant| !mutant.trends.is_empty()).count();
        // The goal is for all kinds together.
        let whole = Change::ALL.iter().all(|change| self.mutants.iter().any(|mutant| mutant.change == *change));
        let verdict = match (&self.incomplete, whole, self.caught() >= CAUGHT) {
            (Some(_), ..) | (None, false, _) => "not shown by a part",
            (None, true, true) => "met",
            (None, true, false) => "MISSED",
        };
        let _ = writeln!(
            out,
            "\n{caught} of {all} ({:.0} %) are caught by one of {} trends (goal {:.0} %: {verdict}), {rows} more by a row \
             that was fitted or is independent, {went_in} more only by a row that says what went in.",
            self.caught() * 100.0,
            self.trends,
            CAUGHT * 100.0
        );
        let alive = self.mattering().filter(|m| m.trends.is_empty() && m.rows.is_empty() && m.went_in.is_empty());
        let alive: Vec<String> = alive.map(|m| format!("  {}: figure {} by {}", m.name(), m.at, m.by())).collect();
        if !alive.is_empty() {
            let _ = writeln!(out, "\nAlive:\n{}", alive.join("\n"));
        }
        let mut still: Vec<&str> = self.mutants.iter().map(|mutant| &*mutant.what).collect();
        still.retain(|what| self.mutants.iter().filter(|m| m.what == *what).all(|m| m.moved == 0.0));
        still.dedup();
        if !still.is_empty() {
            let _ = writeln!(out, "\nMove none of these figures at all: {}", still.join(", "));
        }
        out
    }
}

impl Mutant {
    /// By how much it moves a figure; from nothing to something is more than can be said.
    fn by(&self) -> String {
        if self.moved > 9.99 { ">999 %".into() } else { format!("{:.0} %", self.moved * 100.0) }
    }

    /// Who sees it: the first trend, and how many more there are.
    fn seen(&self) -> String {
        let more = |n: usize| if n > 1 { format!(" and {} more", n - 1) } else { String::new() };
        match (&self.trends[..], &self.rows[..], &self.went_in[..]) {
            ([first, ..], ..) => format!("{first}{}", more(self.trends.len())),
            ([], [first, ..], _) => format!("row {first}{}", more(self.rows.len())),
            ([], [], [first, ..]) => format!("row {first}, which says what went in"),
            ([], [], []) => "nobody".into(),
        }
    }
}

/// What runs and judges a paper on platforms with a seed.
pub(super) type Judge<'a> =
    dyn FnMut(&[Platform], u64, &mut dyn FnMut(ReproduceProgress) -> bool) -> Result<Judged, ReproduceError> + 'a;

/// Tries all mutants of these platforms that are of such `changes`. `progress` hears of every point; when it says no, what
/// was tried by then is given.
pub(super) fn try_mutants(
    system: &'static str,
    (platforms, changes): (&[Platform], &[Change]),
    seed: u64,
    judge: &mut Judge<'_>,
    progress: &mut dyn FnMut(ReproduceProgress) -> bool,
) -> Result<Mutation, ReproduceError> {
    let plans = plans(platforms, changes)?;
    let (mut turn, mut before) = (0, (0, 0.0));
    let mut last = before;
    let turns = plans.len() + 1 + SEEDS as usize;
    let mut hear = |turn: usize, before: (u64, f64), last: &mut (u64, f64), p: ReproduceProgress| {
        *last = (before.0 + p.events, before.1 + p.seconds);
        progress(ReproduceProgress {
            done: turn * p.total + p.done,
            total: turns * p.total,
            events: last.0,
            seconds: last.1,
        })
    };
    let mut base = judge(platforms, seed, &mut |p| hear(turn, before, &mut last, p))?;
    let mut noise = vec![0f64; dots(&base, &base).count()];
    for other in 1..=SEEDS {
        (turn, before) = (turn + 1, last);
        let near: Vec<Platform> = platforms.iter().map(|platform| nearly(platform, other)).collect::<Result<_, _>>()?;
        let again = judge(&near, seed + other, &mut |p| hear(turn, before, &mut last, p))?;
        noise.iter_mut().zip(dots(&base, &again)).for_each(|(noise, dot)| *noise = noise.max(dot.moved()));
        let held = |trend: &Trend| again.trends.iter().any(|t| t.what == trend.what && t.holds == trend.holds);
        base.trends.retain(held);
        if again.incomplete.is_some() {
            return Err(ReproduceError::Interrupted);
        }
    }
    if base.incomplete.is_some() {
        return Err(ReproduceError::Interrupted);
    }
    let mut all = Mutation { system, mutants: Vec::new(), trends: base.trends.len(), seed, incomplete: None };
    for plan in plans {
        (turn, before) = (turn + 1, last);
        let mut mutant = plan.mutant.clone();
        let came = plan
            .platforms(platforms)
            .and_then(|changed| judge(&changed, seed, &mut |p| hear(turn, before, &mut last, p)));
        match came {
            Ok(judged) if judged.incomplete.is_none() => compare(&mut mutant, (&base, &noise), &judged),
            Ok(_) | Err(ReproduceError::Interrupted | ReproduceError::Model(ModelError::Interrupted)) => {
                let what = format!("interrupted; {} of {} mutants were tried", all.mutants.len(), turns - 1);
                all.incomplete = Some(what);
                return Ok(all);
            }
            Err(e) => mutant.refused = Some(e.to_string()),
        }
        all.mutants.push(mutant);
    }
    Ok(all)
}

/// A dot of a figure in two runs.
struct TwoDots<'a> {
    figure: &'a Figure,
    line: &'a str,
    x: u64,
    before: f64,
    now: f64,
}

impl TwoDots<'_> {
    /// By which part it moves.
    fn moved(&self) -> f64 {
        let Self { before, now, .. } = *self;
        match now / before {
            _ if now == before => 0.0,
            // A factor down counts as the same factor up: to a half is as far as to twice.
            factor if factor > 0.0 && factor < 1.0 => 1.0 / factor - 1.0,
            factor if factor.is_finite() => (factor - 1.0).abs(),
            _ => f64::MAX,
        }
    }
}

/// All dots of all figures, in order. A line over slices of time counts by when it had a tenth of all that it carries, two
/// tenths, and so on: else whatever moves its first peak would move them all.
fn dots<'a>(base: &'a Judged, now: &'a Judged) -> impl Iterator<Item = TwoDots<'a>> {
    let lines = base.figures.iter().zip(&now.figures).flat_map(|(figure, other)| {
        figure.lines.iter().zip(&other.lines).map(move |(line, changed)| (figure, line, changed))
    });
    lines.flat_map(|(figure, line, changed)| {
        let pairs: Vec<(u64, f64, f64)> = if figure.x.1 == SLICES {
            let [before, now] =
                [line, changed].map(|line| tenths(&line.dots.iter().map(|dot| dot.y).collect::<Vec<_>>()));
            (1..).zip(before.into_iter().zip(now)).map(|(tenth, (before, now))| (tenth, before, now)).collect()
        } else {
            line.dots.iter().zip(&changed.dots).map(|(dot, moved)| (dot.x, dot.y, moved.y)).collect()
        };
        pairs.into_iter().map(|(x, before, now)| TwoDots { figure, line: &line.name, x, before, now })
    })
}

/// The unit of an x axis that is slices of time.
const SLICES: &str = "slices";

/// In which slice, the first being 0 to 1, the first tenth of all was there, the second, to the last; and the sum.
fn tenths(slices: &[f64]) -> Vec<f64> {
    let sum: f64 = slices.iter().sum();
    let mut when = Vec::new();
    for tenth in 1..=10 {
        let (wanted, mut there) = (sum * f64::from(tenth) / 10.0 * (1.0 - 1e-9), 0.0);
        let at = slices.iter().position(|slice| {
            there += slice;
            there >= wanted
        });
        let at = at.unwrap_or(slices.len().saturating_sub(1));
        let within = slices.get(at).filter(|slice| **slice > 0.0).map_or(0.0, |slice| 1.0 - (there - wanted) / slice);
        when.push(at as f64 + within);
    }
    when.push(sum);
    when
}

/// What moved, beyond what moves by itself, and who saw it.
fn compare(mutant: &mut Mutant, (base, noise): (&Judged, &[f64]), now: &Judged) {
    for (dot, noise) in dots(base, now).zip(noise) {
        let by = (dot.moved() - 2.0 * noise).max(0.0);
        if by > mutant.moved {
            mutant.moved = by;
            mutant.at = format!("{}, {}, {} {}", dot.figure.number, dot.line, dot.x, dot.figure.x.1);
        }
    }
    for (trend, held) in now.trends.iter().filter(|trend| !trend.holds).filter_map(|trend| {
        let before = base.trends.iter().find(|known| known.what == trend.what && known.figures == trend.figures)?;
        Some((trend, before.holds))
    }) {
        if held {
            mutant.trends.push(format!("{}: {}", trend.figures, trend.what));
        }
    }
    // A trend that can be judged no more holds no more.
    let gone =
        |trend: &&Trend| trend.holds && !now.trends.iter().any(|t| t.what == trend.what && t.figures == trend.figures);
    mutant.trends.extend(base.trends.iter().filter(gone).map(|trend| format!("{}: {}", trend.figures, trend.what)));
    for (claim, other) in base.claims.iter().zip(&now.claims) {
        if claim.agrees() == Some(true) && other.agrees() == Some(false) {
            match claim.kind {
                ClaimKind::WentIn => mutant.went_in.push(claim.id.clone()),
                ClaimKind::Fitted | ClaimKind::Independent => mutant.rows.push(claim.id.clone()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_count_by_when_what_they_carry_was_there() {
        let near = |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
        let even = tenths(&[1.0; 10]);
        assert!(near(&even, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 10.0]), "{even:?}");
        // Two peaks: half of all in the second slice, the rest in the fifth.
        let peaks = tenths(&[0.0, 10.0, 0.0, 0.0, 10.0, 0.0]);
        assert!(near(&peaks, &[1.2, 1.4, 1.6, 1.8, 2.0, 4.2, 4.4, 4.6, 4.8, 5.0, 20.0]), "{peaks:?}");
        // The second peak half a slice later: nothing has become something, and no more than a tenth has moved.
        let later = tenths(&[0.0, 10.0, 0.0, 0.0, 5.0, 5.0]);
        assert!(later.iter().zip(&peaks).all(|(later, before)| (later / before - 1.0).abs() < 0.21), "{later:?}");
        assert!(near(&tenths(&[0.0; 3])[10..], &[0.0]));
    }
}
