//! What differs from paper to paper, and what is done with each.

use remora_model::platform::Platform;

use super::mutate::try_mutants;
use super::{
    Change, FigureError, Fitted, Judged, Mutation, ReproduceError, ReproduceOptions, ReproduceProgress, Reproduction,
    provenance,
};

/// A paper whose figures come from the model.
pub trait Paper: Sized {
    /// The system's name.
    const SYSTEM: &'static str;
    /// What its figures come from, in a sentence.
    const ABOUT: &'static str;
    /// Claims that are points of a figure: which one, of which figure, at which x.
    const PRINTED: &'static [(&'static str, &'static str, u64)] = &[];

    /// A figure's study.
    type Study;

    /// Those of one figure, or of all.
    fn studies(&self, figure: Option<&str>) -> Result<Vec<Self::Study>, FigureError>;

    /// Its platforms, with free parameters fitted to the text.
    fn fitted(&self, seed: u64) -> Result<(Vec<Platform>, Vec<Fitted>), ReproduceError>;

    /// Runs studies on platforms, and judges what comes.
    fn judge(
        &self,
        studies: &[Self::Study],
        platforms: &[Platform],
        options: &ReproduceOptions,
        progress: &mut dyn FnMut(ReproduceProgress) -> bool,
    ) -> Result<Judged, ReproduceError>;

    /// The same as mutants run it, whose figures are held against each other's and not against the paper's.
    fn of_mutants(self) -> Self {
        self
    }

    /// What all rests on, in lines.
    fn provenance(&self, platforms: &[Platform]) -> Vec<String> {
        platforms.iter().map(provenance).collect()
    }
}

/// Reproduces a paper's figures. `progress` hears of every point; when it returns false the run ends.
pub fn reproduce<P: Paper>(
    paper: &P,
    options: &ReproduceOptions,
    progress: &mut dyn FnMut(ReproduceProgress) -> bool,
) -> Result<Reproduction, ReproduceError> {
    let (judged, platforms, fitted) = fit_and_judge(paper, options, progress)?;
    let Judged { figures, claims, trends, sums, incomplete } = judged;
    let figures = figures.into_iter().map(|figure| figure.with_printed(&claims, P::PRINTED)).collect();
    Ok(Reproduction {
        system: P::SYSTEM,
        about: P::ABOUT,
        figures,
        fitted,
        provenance: paper.provenance(&platforms),
        claims,
        trends,
        sums,
        seed: options.seed,
        incomplete,
    })
}

/// Fits, runs and judges.
pub(crate) fn fit_and_judge<P: Paper>(
    paper: &P,
    options: &ReproduceOptions,
    progress: &mut dyn FnMut(ReproduceProgress) -> bool,
) -> Result<(Judged, Vec<Platform>, Vec<Fitted>), ReproduceError> {
    let studies = paper.studies(options.figure.as_deref())?;
    let (platforms, fitted) = paper.fitted(options.seed)?;
    Ok((paper.judge(&studies, &platforms, options, progress)?, platforms, fitted))
}

/// Tries what a paper's checks catch of such changes to its platforms, after fitting. `progress` hears of every point; when it
/// says no, what was tried by then is given.
pub fn mutate<P: Paper>(
    paper: P,
    options: &ReproduceOptions,
    changes: &[Change],
    progress: &mut dyn FnMut(ReproduceProgress) -> bool,
) -> Result<Mutation, ReproduceError> {
    let studies = paper.studies(options.figure.as_deref())?;
    let (platforms, _) = paper.fitted(options.seed)?;
    let paper = paper.of_mutants();
    let judge = &mut |platforms: &[Platform], seed, progress: &mut dyn FnMut(ReproduceProgress) -> bool| {
        paper.judge(&studies, platforms, &ReproduceOptions { seed, ..options.clone() }, progress)
    };
    try_mutants(P::SYSTEM, (&platforms, changes), options.seed, judge, progress)
}

/// The platform of a paper that has one.
pub(crate) fn only(platforms: &[Platform]) -> Result<&Platform, ReproduceError> {
    platforms.first().ok_or(ReproduceError::Interrupted)
}
