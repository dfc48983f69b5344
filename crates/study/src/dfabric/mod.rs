//! DFabric's figures from the model: two racks whose nodes have NICs of their own behind ToR switches, or share memory and
//! NICs over CXL.

mod checks;
mod fit;
mod graph;
pub(crate) mod loads;
mod point;
mod study;

use remora_model::platform::Platform;

pub use point::{PointFigures, Run, Setup, System, Without};

use study::{DFabricSeries, Study};

use crate::reproduce::{
    self, Claim, Dot, Figure, FigureError, Fitted, OnPlatform, Paper, ReproduceError, SetupPoint, Trend,
};

/// "DFabric: CXL-Ethernet hybrid interconnects".
#[derive(Clone, Copy, Debug)]
pub struct DFabric;

impl Paper for DFabric {
    const SYSTEM: &'static str = "DFabric";
    const ABOUT: &'static str = "Figures of the DFabric paper from two modelled racks of the prototype that it \
         describes: CXL ports, DRAM caches, memory devices, NICs and kernels, with Remora's own NIC pool, \
         dispatcher and resequencer; beside them TCP over ToR switches.";

    const DETAILS: &'static [&'static str] = &["busiest", "drops"];

    type Series = DFabricSeries;
    type Metric = study::Metric;
    type Sets = study::Sets;
    type Outcome = PointFigures;
    type Work<'a> = SetupPoint<'a, Setup>;

    fn studies(&self, figure: Option<&str>) -> Result<Vec<Study>, FigureError> {
        study::studies(figure)
    }

    fn fitted(&self, seed: u64) -> Result<(Vec<Platform>, Vec<Fitted>), ReproduceError> {
        let (platform, fitted) = fit::dfabric(seed)?;
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

    fn line(series: &DFabricSeries, _: usize) -> (String, &'static str) {
        (series.name.clone(), class(series.setup.system))
    }

    fn dot(study: &Study, series: &DFabricSeries, x: u64, outcome: &PointFigures) -> Dot {
        let y = series.metric.unwrap_or(study.y.metric).of(outcome, x);
        Dot { x, y, spread: (y, y), details: details(outcome) }
    }

    fn checks(&self, figures: &[Figure], platforms: &[Platform]) -> Result<(Vec<Claim>, Vec<Trend>), ReproduceError> {
        Ok((checks::claims(figures, reproduce::only(platforms)?), checks::trends(figures)))
    }
}

impl OnPlatform for Setup {
    const PAPER: &'static str = "dfabric";
    type Outcome = PointFigures;

    fn run_on(&self, platform: &Platform, seed: u64) -> Result<PointFigures, ReproduceError> {
        Ok(self.run(platform, seed)?)
    }

    fn events(outcome: &PointFigures) -> u64 {
        outcome.events
    }
}

/// What was busiest, and what switches dropped.
fn details(outcome: &PointFigures) -> Vec<String> {
    let (name, busy) = &outcome.binding;
    let drops = match (outcome.dropped, outcome.timeouts) {
        (0, 0) => "-".into(),
        (dropped, timeouts) => format!("{dropped}, {timeouts} timeouts"),
    };
    vec![format!("{name} ({:.0} % busy)", busy * 100.0), drops]
}

/// The page's colour of a line: its place.
fn class(system: System) -> &'static str {
    match system {
        System::Tor => "host",
        System::Interconnect => "client",
        System::DFabric => "nic",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::{ReproduceOptions, Reproduction, csv, page, reproduce, table};

    fn run(figure: &str, jobs: usize) -> Reproduction {
        let options = ReproduceOptions { figure: Some(figure.into()), jobs, cache: None, seed: 42 };
        reproduce(&DFabric, &options, &mut |_| true).unwrap()
    }

    #[test]
    fn a_figure_is_the_same_from_any_number_of_threads() {
        let (first, second) = (run("2", 1), run("2", 3));
        assert_eq!(first.figures, second.figures);
        let csv = csv(&first.figures[0]);
        assert!(csv.starts_with("figure,series,x,x_unit,y,y_unit\n2,ToR,1,NICs,"), "{csv}");
        assert_eq!(csv.lines().count(), 1 + 6 * 6);
        assert!(table(&first).contains("DF-C2") && page(&first).contains("<svg"));
        assert!(first.trends.len() == 4 && first.trends.iter().all(|trend| trend.holds), "{:?}", first.trends);
    }

    #[test]
    fn what_the_text_says_of_subflows_references_and_mechanisms_comes_out() {
        for (figure, count) in [("10", 2), ("11", 4), ("12", 4), ("IV", 2)] {
            let all = run(figure, 2);
            assert!(all.trends.len() == count && all.trends.iter().all(|trend| trend.holds), "{:?}", all.trends);
        }
        let all = run("IV", 1);
        let fitted = all.claims.iter().find(|claim| claim.id == "DF-082").unwrap();
        assert_eq!(fitted.agrees(), Some(true), "{fitted:?}");
    }

    #[test]
    fn every_superstep_is_a_peak() {
        let all = run("13", 2);
        let peaks = all.claims.iter().find(|claim| claim.id == "DF-062").unwrap();
        assert_eq!(peaks.model, [12.0]);
    }

    #[test]
    fn every_study_names_setups_that_exist() {
        for study in study::studies(None).unwrap() {
            for series in &study.series {
                study.x.values.iter().for_each(|&x| _ = series.setup(study.x.sets, x).unwrap());
            }
        }
        let error = study::studies(Some("3")).unwrap_err().to_string();
        assert!(error.starts_with("there is no figure 3: choose one of 2, 9a, 9b"), "{error}");
    }
}
