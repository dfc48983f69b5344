//! A paper's figures from the model, for all papers: studies, points run on threads and kept, free parameters fitted,
//! the figures beside what the paper's text says, as tables, CSV and a page. [`crate::strom`], [`crate::minos`],
//! [`crate::rambda`], [`crate::bluefield`] and [`crate::dfabric`] say what is run.

mod cache;
mod checks;
mod fit;
mod mutate;
mod page;
mod paper;
mod plot;
mod run;
mod setup;
mod show;
mod study;

use std::path::PathBuf;

use remora_model::platform::{Platform, PlatformError};
use remora_model::rack_world::RackWorldError;
use remora_model::ring_server::RingServerError;
use serde::Serialize;

pub use cache::Cache;
pub(crate) use cache::values;
pub(crate) use checks::Lines;
pub use checks::{Claim, ClaimKind, Count, Trend};
pub use fit::Fitted;
pub(crate) use fit::{fit, fit_count, fit_rising};
pub use mutate::{Change, Judged, Mutant, Mutation};
pub use page::page;
pub use paper::{Paper, StudyOf, mutate, reproduce};
pub(crate) use paper::{fit_and_judge, only};
pub use run::{Outcome, Point, ReproduceProgress, Sums};
pub(crate) use run::{Ran, run_all};
pub use setup::{OnPlatform, SetupPoint};
pub(crate) use show::number;
pub use show::{csv, table};
pub use study::{FigureError, Study, XAxis, YAxis};

use crate::minos::PointError;
use crate::modelled::ModelError;

/// What to reproduce, and how.
#[derive(Clone, Debug)]
pub struct ReproduceOptions {
    /// One figure, or all.
    pub figure: Option<String>,
    /// Threads.
    pub jobs: usize,
    /// Where results of earlier runs are, and these go.
    pub cache: Option<PathBuf>,
    /// Seeds every random choice.
    pub seed: u64,
}

/// Why figures cannot be reproduced.
#[derive(Debug, thiserror::Error)]
pub enum ReproduceError {
    /// A study is not what it should be.
    #[error(transparent)]
    Study(#[from] FigureError),
    /// A platform is not what it should be.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// The model cannot go on.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The modelled cluster cannot go on.
    #[error(transparent)]
    Point(#[from] PointError),
    /// The modelled server of rings cannot go on.
    #[error(transparent)]
    RingServer(#[from] RingServerError),
    /// The modelled racks cannot go on.
    #[error(transparent)]
    RackWorld(#[from] RackWorldError),
    /// The user wants no more.
    #[error("interrupted")]
    Interrupted,
}

/// A figure and what came.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Its number: `5a`.
    pub number: String,
    /// What it shows.
    pub title: String,
    /// What a reader must know.
    pub note: String,
    /// Whether the 1st and 99th percentiles are shown.
    pub spread: bool,
    /// Name and unit of the x axis.
    pub x: (String, String),
    /// Name and unit of the y axis.
    pub y: (String, String),
    /// What the details of its points are.
    pub details: &'static [&'static str],
    /// Its lines.
    pub lines: Vec<Line>,
    /// Points that the paper's text gives.
    pub printed: Vec<Printed>,
}

/// A point of a figure that stands in the paper's text: by such ones free parameters were fitted, or the model is judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Printed {
    /// The claim.
    pub id: String,
    /// Where.
    pub x: u64,
    /// The least that the paper says.
    pub low: f64,
    /// The most.
    pub high: f64,
    /// What it is, in words.
    pub about: String,
}

/// A line of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its colour on the page, which is a place's: `client`, `host` or `nic`.
    pub class: &'static str,
    /// A point for each x.
    pub dots: Vec<Dot>,
}

/// A point of a line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dot {
    /// Where.
    pub x: u64,
    /// What the figure shows.
    pub y: f64,
    /// The 1st and the 99th percentile, or the same again.
    pub spread: (f64, f64),
    /// What else is known of it.
    pub details: Vec<String>,
}

/// All figures of a paper, and how they compare with it.
#[derive(Clone, Debug, Serialize)]
pub struct Reproduction {
    /// The system's name.
    pub system: &'static str,
    /// What the figures come from, in a sentence.
    pub about: &'static str,
    /// The figures.
    pub figures: Vec<Figure>,
    /// Free parameters and what they were fitted to.
    pub fitted: Vec<Fitted>,
    /// What all rests on, in lines: each platform, and what is run.
    pub provenance: Vec<String>,
    /// The paper's calibration rows beside the model.
    pub claims: Vec<Claim>,
    /// What the paper's text says about shapes.
    pub trends: Vec<Trend>,
    /// What running it took.
    pub sums: Sums,
    /// The seed.
    pub seed: u64,
    /// What is missing, if the user wanted no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// Names the shape of the JSON.
pub const FORMAT: &str = "remora-reproduce/2";

impl Reproduction {
    /// Figures, claims and trends for programs; `version` is the program's.
    pub fn to_json(&self, version: &str) -> serde_json::Value {
        let mut json = serde_json::to_value(self).unwrap_or_default();
        for (claim, value) in self.claims.iter().zip(json["claims"].as_array_mut().into_iter().flatten()) {
            value["agrees"] = claim.agrees().into();
        }
        json["counts"] = serde_json::to_value(Count::of(&self.claims)).unwrap_or_default();
        json["format"] = FORMAT.into();
        json["version"] = version.into();
        json
    }
}

impl Figure {
    /// A study's, with lines to come.
    fn new<S, M, X>(study: &Study<S, M, X>, details: &'static [&'static str]) -> Self {
        Self {
            number: study.figure.clone(),
            title: study.title.clone(),
            note: study.note.clone(),
            spread: study.spread,
            x: (study.x.name.clone(), study.x.unit.clone()),
            y: (study.y.name.clone(), study.y.unit.clone()),
            details,
            lines: Vec::new(),
            printed: Vec::new(),
        }
    }

    /// Those of a paper's studies whose points came to `outcomes`, line by line. Lines that lack a point are left out, and
    /// figures without any line.
    fn all<P: Paper>(studies: &[StudyOf<P>], outcomes: Vec<Option<P::Outcome>>) -> Vec<Self> {
        let (mut figures, mut outcomes) = (Vec::new(), outcomes.into_iter());
        for study in studies {
            let mut figure = Self::new(study, P::DETAILS);
            for (number, series) in study.series.iter().enumerate() {
                let came: Vec<_> = outcomes.by_ref().take(study.x.values.len()).collect();
                let points = study.x.values.iter().zip(&came);
                let dots: Option<Vec<_>> =
                    points.map(|(&x, outcome)| Some(P::dot(study, series, x, outcome.as_ref()?))).collect();
                let Some(mut dots) = dots else { continue };
                if study.relative_to_last
                    && let Some(last) = dots.last().map(|dot| dot.y)
                {
                    dots.iter_mut().for_each(|dot| (dot.y, dot.spread) = (dot.y / last, (dot.y / last, dot.y / last)));
                }
                let (name, class) = P::line(series, number);
                figure.lines.push(Line { name, class, dots });
            }
            figures.extend((!figure.lines.is_empty()).then_some(figure));
        }
        figures
    }

    /// With the points that these claims say of it, at the places along x that are given by name.
    pub(crate) fn with_printed(mut self, claims: &[Claim], places: &[(&str, &str, u64)]) -> Self {
        let of_this = places.iter().filter(|(_, figure, _)| *figure == self.number);
        self.printed = of_this
            .filter_map(|&(id, _, x)| {
                let claim = claims.iter().find(|claim| claim.id == id && claim.unit == self.y.1)?;
                let about = format!("{} ({})", claim.about, claim.section);
                Some(Printed { id: id.into(), x, low: claim.low, high: claim.high, about })
            })
            .collect();
        self
    }

    /// Its line of this name.
    pub fn line(&self, name: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.name == name)
    }
}

/// What a platform rests on, in a line.
pub(crate) fn provenance(platform: &Platform) -> String {
    format!("{}: {}", platform.name, platform.params.shares_text())
}
