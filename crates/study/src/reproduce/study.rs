//! What a figure is made of: a file of `studies/`.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A figure: `S` is a line's run, `M` says which figure of an outcome is shown, `X` what varies along x where lines do
/// not say it themselves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    bound(deserialize = "S: DeserializeOwned, M: DeserializeOwned, X: DeserializeOwned + Default")
)]
pub struct Study<S, M, X = ()> {
    /// Its number: `5a`.
    pub figure: String,
    /// What it shows.
    pub title: String,
    /// What a reader must know.
    pub note: String,
    /// Whether the 1st and 99th percentiles are shown.
    #[serde(default)]
    pub spread: bool,
    /// Whether values are shown as parts of each line's last.
    #[serde(default)]
    pub relative_to_last: bool,
    /// Along the x axis.
    pub x: XAxis<X>,
    /// Along the y axis.
    pub y: YAxis<M>,
    /// The lines.
    pub series: Vec<S>,
}

/// What varies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "X: DeserializeOwned + Default"))]
pub struct XAxis<X> {
    /// What it is.
    pub name: String,
    /// In which unit.
    pub unit: String,
    /// Which part of a run.
    #[serde(default)]
    pub sets: X,
    /// The values.
    pub values: Vec<u64>,
}

/// What is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct YAxis<M> {
    /// What it is.
    pub name: String,
    /// In which unit.
    pub unit: String,
    /// Which figure of an outcome.
    pub metric: M,
}

/// Why a study cannot be run.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FigureError(pub String);

impl<S: DeserializeOwned, M: DeserializeOwned, X: DeserializeOwned + Default> Study<S, M, X> {
    /// The studies of `texts`; `number` chooses those that begin with it: `5` has 5a, 5b and 5c.
    pub fn choose(texts: &[&str], number: Option<&str>) -> Result<Vec<Self>, FigureError> {
        let parse = |text: &&str| {
            toml::from_str::<Self>(text).map_err(|e| FigureError(format!("a study is no TOML as it should be: {e}")))
        };
        let all: Vec<Self> = texts.iter().map(parse).collect::<Result<_, _>>()?;
        let Some(number) = number else { return Ok(all) };
        let known = all.iter().map(|study| study.figure.clone()).collect::<Vec<_>>().join(", ");
        let chosen: Vec<Self> = all.into_iter().filter(|study| study.is(number)).collect();
        match chosen.is_empty() {
            true => Err(FigureError(format!("there is no figure {number}: choose one of {known}"))),
            false => Ok(chosen),
        }
    }
}

impl<S, M, X> Study<S, M, X> {
    /// What is made of each point of these studies, line by line.
    pub(crate) fn points<'a, W, E>(
        all: &'a [Self],
        make: impl Fn(&'a Self, &'a S, u64) -> Result<W, E>,
    ) -> Result<Vec<W>, E> {
        let lines = all.iter().flat_map(|study| study.series.iter().map(move |series| (study, series)));
        let points = lines.flat_map(|(study, series)| study.x.values.iter().map(move |&x| (study, series, x)));
        points.map(|(study, series, x)| make(study, series, x)).collect()
    }

    /// It names none of the paper's platforms.
    pub(crate) fn no_platform(&self) -> FigureError {
        FigureError(format!("figure {} names no platform of the paper's", self.figure))
    }

    fn is(&self, number: &str) -> bool {
        self.figure == number || self.figure.trim_end_matches(|c: char| c.is_alphabetic()) == number
    }
}
