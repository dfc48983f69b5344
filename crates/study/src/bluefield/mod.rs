//! The figures of "A DBMS-centric evaluation of BlueField DPUs" from the model: remote B-trees and sequencers on the host
//! of a storage node and on the cores of its card.

mod checks;
mod point;
mod study;

use std::sync::Arc;

use remora_model::platform::Platform;

use point::{Ground, Outcome};
use study::{At, Setup, Study};

use crate::reproduce::{
    self, Dot, Figure, FigureError, Fitted, Judged, Line, Mutation, Point, Ran, ReproduceError, ReproduceOptions,
    ReproduceProgress, Reproduction, run_all,
};

/// Reproduces the figures. `progress` hears of every point; when it returns false the run ends.
pub fn reproduce(
    options: &ReproduceOptions,
    progress: &mut dyn FnMut(ReproduceProgress) -> bool,
) -> Result<Reproduction, ReproduceError> {
    let studies = study::studies(options.figure.as_deref())?;
    let (platforms, fitted) = platforms()?;
    let Judged { figures, claims, trends, sums, incomplete } = judge(&studies, &platforms, options, progress)?;
    let figures = figures.into_iter().map(|figure| figure.with_printed(&claims, &PRINTED)).collect();
    Ok(Reproduction {
        system: "BlueField",
        about: "Figures of Thostrup et al., ADMS 2022, from Remora's protocol engine, B-tree and sequencer on the hardware \
                that the paper describes.",
        claims,
        trends,
        figures,
        fitted,
        provenance: platforms.iter().map(reproduce::provenance).collect(),
        sums,
        incomplete,
        seed: options.seed,
    })
}

/// Tries what the checks catch of changes to the platforms' values, after fitting.
pub fn mutate(
    options: &ReproduceOptions,
    progress: &mut dyn FnMut(ReproduceProgress) -> bool,
) -> Result<Mutation, ReproduceError> {
    let studies = study::studies(options.figure.as_deref())?;
    let (platforms, _) = platforms()?;
    let judge = &mut |platforms: &[Platform], progress: &mut dyn FnMut(ReproduceProgress) -> bool| {
        judge(&studies, platforms, options, progress)
    };
    reproduce::mutate("BlueField", &platforms, options.seed, judge, progress)
}

/// The paper's platforms with their free parameters fitted.
fn platforms() -> Result<(Vec<Platform>, Vec<Fitted>), ReproduceError> {
    Ok((vec![Platform::load("bluefield1")?, Platform::load("bluefield2")?], Vec::new()))
}

/// Claims that are points of a figure: which one, of which figure, at which x.
const PRINTED: [(&str, &str, u64); 0] = [];

/// Runs the studies on these platforms, and judges what comes.
fn judge(
    studies: &[Study],
    platforms: &[Platform],
    options: &ReproduceOptions,
    progress: &mut dyn FnMut(ReproduceProgress) -> bool,
) -> Result<Judged, ReproduceError> {
    let ground = |platform: &Platform| -> Result<_, ReproduceError> {
        Ok((platform.name.clone(), reproduce::values(platform), Arc::new(Ground::new(platform, options.seed)?)))
    };
    let grounds = platforms.iter().map(ground).collect::<Result<Vec<_>, _>>()?;
    let mut work = Vec::new();
    for study in studies {
        for series in &study.series {
            let known = grounds.iter().find(|(name, ..)| *name == series.setup.platform);
            let unknown = || FigureError(format!("figure {} names no platform of the paper's", study.figure));
            let (_, values, ground) = known.ok_or_else(unknown)?;
            let point = |&x| Work { setup: series.setup(study.x.sets, x), values, ground, seed: options.seed };
            work.extend(study.x.values.iter().map(point));
        }
    }
    let Ran { outcomes, sums, incomplete } = run_all(&work, options, progress)?;
    let mut outcomes = outcomes.into_iter();
    let figures = studies.iter().map(|study| figure(study, &mut outcomes).whole(study.x.values.len()));
    let figures: Vec<Figure> = figures.collect::<Vec<_>>().into_iter().flatten().collect();
    let (claims, trends) = (checks::claims(&figures, platforms), checks::trends(&figures));
    Ok(Judged { figures, claims, trends, sums, incomplete })
}

/// One point to run.
struct Work<'a> {
    setup: Setup,
    /// The platform's values.
    values: &'a str,
    ground: &'a Ground,
    seed: u64,
}

impl Point for Work<'_> {
    type Outcome = Outcome;

    fn key(&self) -> String {
        let setup = serde_json::to_string(&self.setup).unwrap_or_default();
        format!("bluefield {setup} seed={} {}", self.seed, self.values)
    }

    fn run(&self) -> Result<Outcome, ReproduceError> {
        Ok(point::run(self.ground, &self.setup)?)
    }

    fn events(outcome: &Outcome) -> u64 {
        outcome.events
    }
}

fn figure(study: &Study, outcomes: &mut impl Iterator<Item = Option<Outcome>>) -> Figure {
    let mut figure = Figure::new(study, &["what binds"]);
    for series in &study.series {
        let dots = study.x.values.iter().zip(outcomes.by_ref()).filter_map(|(&x, outcome)| {
            let outcome = outcome?;
            let y = study.y.metric.of(&outcome);
            Some(Dot { x, y, spread: (y, y), details: vec![outcome.detail] })
        });
        let dots = dots.collect();
        figure.lines.push(Line { name: series.name.clone(), class: class(&series.setup), dots });
    }
    figure
}

/// The page's colour of a line.
fn class(setup: &Setup) -> &'static str {
    match setup.place {
        At::Card if setup.platform == "bluefield1" => "client",
        At::Card => "nic",
        At::Host => "host",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::{csv, page, table};

    fn run(figure: &str, jobs: usize) -> Reproduction {
        let options = ReproduceOptions { figure: Some(figure.into()), jobs, cache: None, seed: 42 };
        reproduce(&options, &mut |_| true).unwrap()
    }

    #[test]
    fn memory_is_the_same_from_any_number_of_threads_and_its_trends_hold() {
        let (first, second) = (run("8", 1), run("8", 3));
        let bits = |all: &Reproduction| all.figures.iter().map(csv).collect::<String>();
        assert_eq!(bits(&first), bits(&second));
        assert!(first.trends.len() == 2 && first.trends.iter().all(|trend| trend.holds), "{:?}", first.trends);
        for (text, least) in [(table(&first), 20), (page(&first), 60)] {
            assert!(text.lines().count() > least && text.contains("AD-056"), "{text}");
        }
    }
}
