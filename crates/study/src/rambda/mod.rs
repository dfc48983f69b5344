//! RAMBDA's figures from the model: rings served by host cores, a NIC's cores and a coherent accelerator.

mod checks;
mod fit;
mod loads;
mod point;
mod study;

use remora_model::platform::Platform;

pub use point::{PointFigures, Run, Server, Setup};

use study::{RambdaSeries, Study};

use crate::reproduce::{
    self, Claim, Dot, Figure, FigureError, Fitted, OnPlatform, Paper, ReproduceError, SetupPoint, Trend, number,
};

/// Yuan et al., "RAMBDA: RDMA-driven Acceleration Framework", HPCA 2023.
#[derive(Clone, Copy, Debug)]
pub struct Rambda;

impl Paper for Rambda {
    const SYSTEM: &'static str = "RAMBDA";
    const ABOUT: &'static str = "Figures of Yuan et al., HPCA 2023, from modelled rings, cpoll and a coherent \
         accelerator on the hardware that the paper describes.";

    const DETAILS: &'static [&'static str] = &["busiest", "media writes"];

    type Series = RambdaSeries;
    type Metric = study::Metric;
    type Sets = study::Sets;
    type Outcome = PointFigures;
    type Work<'a> = SetupPoint<'a, Setup>;

    fn studies(&self, figure: Option<&str>) -> Result<Vec<Study>, FigureError> {
        study::studies(figure)
    }

    fn fitted(&self, seed: u64) -> Result<(Vec<Platform>, Vec<Fitted>), ReproduceError> {
        let (platform, fitted) = fit::rambda(seed)?;
        Ok((vec![platform], fitted))
    }

    fn work<'a>(
        &self,
        studies: &'a [Study],
        platforms: &'a [Platform],
        seed: u64,
    ) -> Result<Vec<SetupPoint<'a, Setup>>, ReproduceError> {
        SetupPoint::all(studies, platforms, seed, |study, series, x| series.setup(study.x.sets, x))
    }

    fn line(series: &RambdaSeries, _: usize) -> (String, &'static str) {
        (series.name.clone(), class(series.setup.server))
    }

    fn dot(study: &Study, series: &RambdaSeries, x: u64, outcome: &PointFigures) -> Dot {
        let y = series.metric.unwrap_or(study.y.metric).of(outcome);
        Dot { x, y, spread: (y, y), details: details(outcome) }
    }

    fn checks(&self, figures: &[Figure], platforms: &[Platform]) -> Result<(Vec<Claim>, Vec<Trend>), ReproduceError> {
        Ok((checks::claims(figures, reproduce::only(platforms)?), checks::trends(figures)))
    }
}

impl OnPlatform for Setup {
    const PAPER: &'static str = "rambda";
    type Outcome = PointFigures;

    fn run_on(&self, platform: &Platform, seed: u64) -> Result<PointFigures, ReproduceError> {
        Ok(self.run(platform, seed)?)
    }

    fn events(outcome: &PointFigures) -> u64 {
        outcome.events
    }
}

/// What was busiest, and what persistent media wrote for each byte.
fn details(outcome: &PointFigures) -> Vec<String> {
    let (name, busy) = &outcome.binding;
    let busiest = if name.is_empty() { "-".into() } else { format!("{name} ({:.0} % busy)", busy * 100.0) };
    let media = outcome.amplification.map_or("-".into(), |times| format!("{} x", number(times)));
    vec![busiest, media]
}

/// The page's colour of a line: its place.
fn class(server: Server) -> &'static str {
    match server {
        Server::Host => "host",
        Server::Card | Server::CardAlone => "nic",
        _ => "accel",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::{ReproduceOptions, Reproduction, csv, page, reproduce, table};

    fn run(figure: &str, jobs: usize) -> Reproduction {
        let options = ReproduceOptions { figure: Some(figure.into()), jobs, cache: None, seed: 42 };
        reproduce(&Rambda, &options, &mut |_| true).unwrap()
    }

    #[test]
    fn a_figure_is_the_same_from_any_number_of_threads() {
        let (first, second) = (run("7", 1), run("7", 3));
        assert_eq!(first.figures, second.figures);
        let csv = csv(&first.figures[0]);
        assert!(csv.starts_with("figure,series,x,x_unit,y,y_unit\n7,CPU 1,1,kind,"), "{csv}");
        assert_eq!(csv.lines().count(), 1 + 9 * 2);
        assert!(table(&first).contains("RB-066") && page(&first).contains("<svg"));
        assert!(first.trends.iter().all(|trend| trend.holds), "{:?}", first.trends);
        let fitted = first.claims.iter().find(|claim| claim.id == "RB-066").unwrap();
        assert_eq!(fitted.agrees(), Some(true), "{fitted:?}");
    }

    #[test]
    fn what_the_text_says_of_hints_cards_and_chains_comes_out() {
        for figure in ["1", "5", "12"] {
            let all = run(figure, 2);
            assert!(!all.trends.is_empty() && all.trends.iter().all(|trend| trend.holds), "{:?}", all.trends);
        }
        let all = run("5", 1);
        let past = all.claims.iter().find(|claim| claim.id == "RB-019").unwrap();
        assert_eq!(past.agrees(), Some(true), "{past:?}");
    }

    #[test]
    fn every_study_names_setups_that_exist() {
        let platform = Platform::load("rambda").unwrap();
        for study in study::studies(None).unwrap() {
            for series in &study.series {
                let setup = series.setup(study.x.sets, study.x.values[0]).unwrap();
                setup.run(&platform, 1).unwrap_or_else(|e| panic!("figure {}, {}: {e}", study.figure, series.name));
            }
        }
        let error = study::studies(Some("6")).unwrap_err().to_string();
        assert!(error.starts_with("there is no figure 6: choose one of 1, 5, 7"), "{error}");
    }
}
