//! The model beside what a paper's text says: its calibration rows, and the shapes that it describes.

use super::Figure;

/// A figure that the text gives as "around" or "up to" may be off by this part.
const NEAR: f64 = 0.1;

/// What a row's agreement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimKind {
    /// The row's own value stands in the platform: that the model has it shows only that it was copied rightly.
    WentIn,
    /// A value was fitted to the row, or derived from it, or it is arithmetic on values that went in: agreement is what was
    /// asked for. That it cannot be had within the ranges says something.
    Fitted,
    /// Nothing of the row went in: agreement is a finding.
    Independent,
}

impl ClaimKind {
    /// All, in the order of tables.
    pub const ALL: [Self; 3] = [Self::WentIn, Self::Fitted, Self::Independent];

    /// As files and tables spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::WentIn => "went-in",
            Self::Fitted => "fitted",
            Self::Independent => "independent",
        }
    }
}

/// How many rows of a kind there are, and what came of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Count {
    /// The kind.
    pub kind: ClaimKind,
    /// Rows with which the model agrees.
    pub agree: usize,
    /// Rows with which it does not.
    pub differ: usize,
    /// Rows of which it says nothing.
    pub silent: usize,
}

impl Count {
    /// Of each kind.
    pub fn of(claims: &[Claim]) -> Vec<Self> {
        let of = |kind| {
            let count = |agrees| claims.iter().filter(|c| c.kind == kind && c.agrees() == agrees).count();
            Self { kind, agree: count(Some(true)), differ: count(Some(false)), silent: count(None) }
        };
        ClaimKind::ALL.map(of).to_vec()
    }

    /// `fitted: 4 of 5 agree, 1 not run`.
    pub fn text(&self) -> String {
        let Self { kind, agree, differ, silent } = self;
        let rest = if *silent > 0 { format!(" ({silent} more: the model says nothing)") } else { String::new() };
        match agree + differ {
            0 => format!("{}: none judged{rest}", kind.name()),
            judged => format!("{}: {agree} of {judged} agree{rest}", kind.name()),
        }
    }
}

/// What the three kinds are, in a sentence.
pub(super) const KINDS: &str = "a row that went in says nothing; one that a value was fitted to or derived from agrees \
                                because it was asked to; an independent one is a finding";

/// A row of the paper and the model's figure.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Claim {
    /// The row's name.
    pub id: String,
    /// The section of the paper.
    pub section: String,
    /// What it is about.
    pub about: String,
    /// What is measured, in which unit.
    pub metric: String,
    /// The unit.
    pub unit: String,
    /// The least that the paper says.
    pub low: f64,
    /// The most.
    pub high: f64,
    /// What its agreement says.
    pub kind: ClaimKind,
    /// The model's figures (one, or as many as the row has).
    pub model: Vec<f64>,
    /// Why there is none.
    pub missing: &'static str,
    /// What a reader should know.
    pub remark: &'static str,
}

impl Claim {
    /// A row of a file of claims: name, section, what it is about, metric, least, most, unit, kind. The model's part is
    /// to be filled in.
    fn parse(row: &str) -> Option<Self> {
        let [id, section, about, metric, low, high, unit, kind] = row.split(',').collect::<Vec<_>>()[..] else {
            return None;
        };
        Some(Self {
            id: id.into(),
            section: section.into(),
            about: about.into(),
            metric: metric.into(),
            unit: unit.into(),
            low: low.parse().ok()?,
            high: high.parse().ok()?,
            kind: *ClaimKind::ALL.iter().find(|known| known.name() == kind)?,
            model: Vec::new(),
            missing: "its figure was not run",
            remark: "",
        })
    }

    /// All rows of a file, each filled in by `fill`.
    pub(crate) fn all(file: &str, mut fill: impl FnMut(&mut Self)) -> Vec<Self> {
        let mut claims: Vec<Self> = file.lines().skip(1).filter_map(Self::parse).collect();
        debug_assert_eq!(claims.len() + 1, file.lines().count(), "every row is one");
        claims.iter_mut().for_each(&mut fill);
        claims
    }

    /// Whether the model agrees; `None` where it says nothing.
    pub fn agrees(&self) -> Option<bool> {
        match self.model[..] {
            [] => None,
            [value] => Some(value >= self.low * (1.0 - NEAR) && value <= self.high * (1.0 + NEAR)),
            [low, high, ..] => Some(near(low, self.low) && near(high, self.high)),
        }
    }
}

fn near(value: f64, target: f64) -> bool {
    (value - target).abs() <= target.abs() * NEAR
}

/// Something that the text says about a shape.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Trend {
    /// The figures that it is about.
    pub figures: &'static str,
    /// Where the paper says so.
    pub section: &'static str,
    /// What must hold.
    pub what: &'static str,
    /// Whether it does.
    pub holds: bool,
    /// The figures that say so.
    pub evidence: String,
}

impl Trend {
    /// A trend that a figure is within a part of what a sum by hand gives.
    pub(crate) fn by_hand(
        (figures, section, what): (&'static str, &'static str, &'static str),
        (model, hand, part): (f64, f64, f64),
        unit: &str,
    ) -> Self {
        let digits = if hand < 10.0 { 2 } else { 1 };
        let evidence = format!("{model:.digits$} {unit}, by hand {hand:.digits$}");
        Self { figures, section, what, holds: (model / hand - 1.0).abs() < part, evidence }
    }
}

/// The values of lines by x.
pub(crate) struct Lines<'a>(pub &'a [Figure]);

impl Lines<'_> {
    pub(crate) fn get(&self, figure: &str, line: &str) -> Option<Vec<(f64, f64)>> {
        let figure = self.0.iter().find(|f| f.number == figure)?;
        let dots: Vec<_> = figure.line(line)?.dots.iter().map(|dot| (dot.x as f64, dot.y)).collect();
        (dots.len() > 1).then_some(dots)
    }

    pub(crate) fn at(&self, figure: &str, line: &str, x: u64) -> Option<f64> {
        self.get(figure, line)?.into_iter().find(|dot| dot.0 == x as f64).map(|dot| dot.1)
    }

    /// The first of the details of a point.
    pub(crate) fn detail(&self, figure: &str, line: &str, x: u64) -> Option<&str> {
        self.details(figure, line, x)?.first().map(String::as_str)
    }

    /// All of them.
    pub(crate) fn details(&self, figure: &str, line: &str, x: u64) -> Option<&[String]> {
        let figure = self.0.iter().find(|f| f.number == figure)?;
        let dot = figure.line(line)?.dots.iter().find(|dot| dot.x == x)?;
        Some(&dot.details)
    }
}
