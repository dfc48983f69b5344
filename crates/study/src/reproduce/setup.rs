//! Points of papers that have one platform, each of which is a setup that runs on it.

use std::sync::Arc;

use remora_model::platform::Platform;
use serde::Serialize;

use super::cache::values;
use super::paper::only;
use super::run::{Outcome, Point};
use super::{FigureError, ReproduceError, Study};

/// What runs on a platform.
pub trait OnPlatform: Serialize + Sync {
    /// The paper, for keys.
    const PAPER: &'static str;
    /// What it comes to.
    type Outcome: Outcome;

    /// Runs it.
    fn run_on(&self, platform: &Platform, seed: u64) -> Result<Self::Outcome, ReproduceError>;

    /// Events that it took.
    fn events(outcome: &Self::Outcome) -> u64;
}

/// A setup to run.
pub struct SetupPoint<'a, S> {
    setup: S,
    platform: &'a Platform,
    /// The platform's values.
    values: Arc<str>,
    seed: u64,
}

impl<'a, S: OnPlatform> SetupPoint<'a, S> {
    /// Those of studies, line by line, on the first of these platforms. `setup` says what a point is.
    pub(crate) fn all<L, M, X>(
        studies: &'a [Study<L, M, X>],
        platforms: &'a [Platform],
        seed: u64,
        setup: impl Fn(&Study<L, M, X>, &L, u64) -> Result<S, FigureError>,
    ) -> Result<Vec<Self>, ReproduceError> {
        let platform = only(platforms)?;
        let values: Arc<str> = values(platform).into();
        Study::points(studies, |study, series, x| {
            Ok(Self { setup: setup(study, series, x)?, platform, values: values.clone(), seed })
        })
    }
}

impl<S: OnPlatform> Point for SetupPoint<'_, S> {
    type Outcome = S::Outcome;

    fn key(&self) -> String {
        let setup = serde_json::to_string(&self.setup).unwrap_or_default();
        format!("{} {setup} seed={} {}", S::PAPER, self.seed, self.values)
    }

    fn run(&self) -> Result<S::Outcome, ReproduceError> {
        self.setup.run_on(self.platform, self.seed)
    }

    fn events(outcome: &S::Outcome) -> u64 {
        S::events(outcome)
    }
}
