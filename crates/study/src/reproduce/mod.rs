//! A paper's figures from the model, for all papers: studies, points run on threads and kept, free parameters fitted,
//! the figures beside what the paper's text says, as tables, CSV and a page. [`crate::strom`] and [`crate::minos`] say
//! what is run.

mod cache;
mod checks;
mod fit;
mod page;
mod plot;
mod run;
mod show;
mod study;

use std::path::PathBuf;

use remora_model::platform::{Platform, PlatformError};

pub use cache::Cache;
pub(crate) use cache::values;
pub(crate) use checks::Lines;
pub use checks::{Claim, Trend};
pub use fit::Fitted;
pub(crate) use fit::{fit, fit_count};
pub use page::page;
pub(crate) use run::{Point, run_all};
pub use run::{ReproduceProgress, Sums};
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
    /// The user wants no more.
    #[error("interrupted")]
    Interrupted,
}

/// A figure and what came.
#[derive(Clone, Debug, PartialEq)]
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
}

/// A line of a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its colour on the page, which is a place's: `client`, `host` or `nic`.
    pub class: &'static str,
    /// Whether it is dashed there.
    pub dashed: bool,
    /// A point for each x.
    pub dots: Vec<Dot>,
}

/// A point of a line.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug)]
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
}

impl Figure {
    /// A study's, with lines to come.
    pub(crate) fn new<S, M, X>(study: &Study<S, M, X>, details: &'static [&'static str]) -> Self {
        Self {
            number: study.figure.clone(),
            title: study.title.clone(),
            note: study.note.clone(),
            spread: study.spread,
            x: (study.x.name.clone(), study.x.unit.clone()),
            y: (study.y.name.clone(), study.y.unit.clone()),
            details,
            lines: Vec::new(),
        }
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
