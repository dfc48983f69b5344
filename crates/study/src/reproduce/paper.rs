//! What differs from paper to paper, and what is done with each.

use remora_model::platform::Platform;

use super::mutate::try_mutants;
use super::{
    Change, Claim, Dot, Figure, FigureError, Fitted, Judged, Mutation, Outcome, Point, Ran, ReproduceError,
    ReproduceOptions, ReproduceProgress, Reproduction, Study, Trend, provenance, run_all,
};

/// A paper whose figures come from the model.
pub trait Paper: Sized {
    /// The system's name.
    const SYSTEM: &'static str;
    /// What its figures come from, in a sentence.
    const ABOUT: &'static str;
    /// Claims that are points of a figure: which one, of which figure, at which x.
    const PRINTED: &'static [(&'static str, &'static str, u64)] = &[];

    /// What its points have beside what they show.
    const DETAILS: &'static [&'static str];

    /// A line of a figure, what of an outcome a figure shows, and what varies along x.
    type Series;
    /// See [`Self::Series`].
    type Metric;
    /// See [`Self::Series`].
    type Sets;
    /// What a point comes to.
    type Outcome: Outcome;
    /// A point to run.
    type Work<'a>: Point<Outcome = Self::Outcome>;

    /// The studies of one figure, or of all.
    fn studies(&self, figure: Option<&str>) -> Result<Vec<StudyOf<Self>>, FigureError>;

    /// Its platforms, with free parameters fitted to the text.
    fn fitted(&self, seed: u64) -> Result<(Vec<Platform>, Vec<Fitted>), ReproduceError>;

    /// The points of studies on platforms, line by line.
    fn work<'a>(
        &self,
        studies: &'a [StudyOf<Self>],
        platforms: &'a [Platform],
        seed: u64,
    ) -> Result<Vec<Self::Work<'a>>, ReproduceError>;

    /// The name of a line, the so-manieth of its figure, and its colour on the page.
    fn line(series: &Self::Series, number: usize) -> (String, &'static str);

    /// What a point shows.
    fn dot(study: &StudyOf<Self>, series: &Self::Series, x: u64, outcome: &Self::Outcome) -> Dot;

    /// What the paper's text says, beside these figures: its calibration rows, and the shapes.
    fn checks(&self, figures: &[Figure], platforms: &[Platform]) -> Result<(Vec<Claim>, Vec<Trend>), ReproduceError>;

    /// The same as mutants run it, whose figures are held against each other's and not against the paper's.
    fn of_mutants(self) -> Self {
        self
    }

    /// What all rests on, in lines.
    fn provenance(&self, platforms: &[Platform]) -> Vec<String> {
        platforms.iter().map(provenance).collect()
    }
}

/// A paper's study of a figure.
pub type StudyOf<P> = Study<<P as Paper>::Series, <P as Paper>::Metric, <P as Paper>::Sets>;

/// Runs studies on platforms, and judges what comes.
fn judge<P: Paper>(
    paper: &P,
    (studies, platforms): (&[StudyOf<P>], &[Platform]),
    options: &ReproduceOptions,
    progress: &mut dyn FnMut(ReproduceProgress) -> bool,
) -> Result<Judged, ReproduceError> {
    let work = paper.work(studies, platforms, options.seed)?;
    let Ran { outcomes, sums, incomplete } = run_all(&work, options, progress)?;
    let figures = Figure::all::<P>(studies, outcomes);
    let (claims, trends) = paper.checks(&figures, platforms)?;
    Ok(Judged { figures, claims, trends, sums, incomplete })
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
    Ok((judge(paper, (&studies, &platforms), options, progress)?, platforms, fitted))
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
    let judged = &mut |platforms: &[Platform], seed, progress: &mut dyn FnMut(ReproduceProgress) -> bool| {
        judge(&paper, (&studies, platforms), &ReproduceOptions { seed, ..options.clone() }, progress)
    };
    try_mutants(P::SYSTEM, (&platforms, changes), options.seed, judged, progress)
}

/// The platform of a paper that has one.
pub(crate) fn only(platforms: &[Platform]) -> Result<&Platform, ReproduceError> {
    platforms.first().ok_or(ReproduceError::Interrupted)
}
