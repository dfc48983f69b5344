//! StRoM's figures from the model.

mod checks;
mod fit;
mod point;
mod streams;
mod study;
mod transfers;

use std::sync::Arc;

use remora_model::platform::Platform;

pub use point::Outcomes;

use point::Ground;
use study::{StromSeries, Study};

use crate::reproduce::{self, Claim, Dot, Figure, FigureError, Fitted, Paper, Point, ReproduceError, Trend, number};

/// Sidler et al., "StRoM: Smart Remote Memory", EuroSys 2020.
#[derive(Clone, Copy, Debug)]
pub struct Strom;

impl Paper for Strom {
    const SYSTEM: &'static str = "StRoM";
    const ABOUT: &'static str = "Figures of Sidler et al., EuroSys 2020, from Remora's protocol engine and \
         kernels on the hardware that the paper describes.";
    const PRINTED: &'static [(&'static str, &'static str, u64)] = &[("ST-085", "13a", 8)];

    const DETAILS: &'static [&'static str] = &["busiest", "energy"];

    type Series = StromSeries;
    type Metric = study::Metric;
    type Sets = ();
    type Outcome = Outcomes;
    type Work<'a> = Work<'a>;

    fn studies(&self, figure: Option<&str>) -> Result<Vec<Study>, FigureError> {
        study::studies(figure)
    }

    fn fitted(&self, seed: u64) -> Result<(Vec<Platform>, Vec<Fitted>), ReproduceError> {
        fit::strom(seed)
    }

    fn work<'a>(
        &self,
        studies: &'a [Study],
        platforms: &'a [Platform],
        seed: u64,
    ) -> Result<Vec<Work<'a>>, ReproduceError> {
        let ground = |platform: &'a Platform| -> Result<_, ReproduceError> {
            let values: Arc<str> = reproduce::values(platform).into();
            Ok((&platform.name, values, Arc::new(Ground::new(platform, seed)?)))
        };
        let grounds = platforms.iter().map(ground).collect::<Result<Vec<_>, _>>()?;
        Study::points(studies, |study, series, x| {
            let known = grounds.iter().find(|(name, ..)| **name == series.platform);
            let (_, values, ground) = known.ok_or_else(|| study.no_platform())?;
            Ok(Work { series, values: values.clone(), ground: ground.clone(), x, seed })
        })
    }

    fn line(series: &StromSeries, number: usize) -> (String, &'static str) {
        (series.name.clone(), class(&series.name, number))
    }

    fn dot(study: &Study, _: &StromSeries, x: u64, outcome: &Outcomes) -> Dot {
        let (y, low, high) = point::shown(study, outcome);
        Dot { x, y, spread: (low, high), details: details(outcome) }
    }

    fn checks(&self, figures: &[Figure], platforms: &[Platform]) -> Result<(Vec<Claim>, Vec<Trend>), ReproduceError> {
        Ok((checks::claims(figures, platforms), checks::trends(figures)))
    }
}

/// One point to run.
pub struct Work<'a> {
    series: &'a StromSeries,
    /// The platform's values.
    values: Arc<str>,
    ground: Arc<Ground>,
    x: u64,
    seed: u64,
}

impl Point for Work<'_> {
    type Outcome = Outcomes;

    fn key(&self) -> String {
        let series = serde_json::to_string(self.series).unwrap_or_default();
        format!("strom {series} x={} seed={} {}", self.x, self.seed, self.values)
    }

    fn run(&self) -> Result<Outcomes, ReproduceError> {
        Ok(point::run(&self.ground, self.series, self.x)?)
    }

    fn events(outcome: &Outcomes) -> u64 {
        outcome.events
    }
}

/// What was busiest, and the energy of an operation.
fn details(outcome: &Outcomes) -> Vec<String> {
    let busiest = match outcome.binding.is_empty() {
        true => "-".into(),
        false => format!("{} ({:.0} % busy)", outcome.binding, outcome.binding_busy * 100.0),
    };
    let energy = outcome.joules_per_op.map_or("-".into(), |joules| format!("{} µJ", number(joules * 1e6)));
    vec![busiest, energy]
}

/// The page's colour of a line: by what it is, else by its place.
fn class(name: &str, number: usize) -> &'static str {
    match name {
        "READ" | "READ+SW" if number < 2 => ["client", "host"][number],
        "WRITE" if number == 2 => "client",
        "WRITE + HLL" => "host",
        _ if name.starts_with("StRoM") || name == "WRITE" => "nic",
        _ if name.starts_with("READ") => "client",
        _ => "host",
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::reproduce::{ReproduceOptions, Reproduction, csv, page, reproduce, table};

    fn run(jobs: usize, cache: Option<PathBuf>) -> Reproduction {
        let options = ReproduceOptions { figure: Some("7".into()), jobs, cache, seed: 42 };
        reproduce(&Strom, &options, &mut |_| true).unwrap()
    }

    #[test]
    fn a_figure_is_the_same_from_any_number_of_threads_and_from_the_cache() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Some(directory.path().to_path_buf());
        let (first, second, third) = (run(1, None), run(3, cache.clone()), run(2, cache));
        let csvs = |all: &Reproduction| all.figures.iter().map(csv).collect::<Vec<_>>();
        assert!(csvs(&first) == csvs(&second) && csvs(&first) == csvs(&third));
        assert_eq!((second.sums.points, second.sums.cached, third.sums.cached), (18, 0, 18));
        assert!(first.sums.events > 10_000 && third.sums.events == 0);
        // Three series of six lengths.
        assert_eq!(csvs(&first)[0].lines().count(), 1 + 18);
        assert!(csvs(&first)[0].starts_with("figure,series,x,x_unit,y,y_unit\n7,READ,1,elements,"));
        assert_eq!(first.trends.len(), 5);
        assert!(first.trends.iter().all(|trend| trend.holds), "{:?}", first.trends);
        let element = first.claims.iter().find(|claim| claim.id == "ST-047").unwrap();
        assert_eq!(element.agrees(), Some(true), "{element:?}");
        let elsewhere = first.claims.iter().find(|claim| claim.id == "ST-075").unwrap();
        assert_eq!(elsewhere.agrees(), None, "its figure was not run");
        for (text, least) in [(table(&first), 30), (page(&first), 60)] {
            assert!(text.lines().count() > least && text.contains("tx_depth"), "{text}");
        }
    }

    #[test]
    fn a_point_of_the_papers_text_is_drawn() {
        let options = ReproduceOptions { figure: Some("13a".into()), jobs: 2, cache: None, seed: 42 };
        let all = reproduce(&Strom, &options, &mut |_| true).unwrap();
        let [printed] = &all.figures[0].printed[..] else { panic!("one point: {:?}", all.figures[0].printed) };
        assert_eq!((printed.id.as_str(), printed.x, printed.low, printed.high), ("ST-085", 8, 25.0, 25.0));
        let page = page(&all);
        assert!(
            page.contains("class=\"printed\"") && page.contains("the paper: HyperLogLog by eight threads"),
            "{page}"
        );
    }

    #[test]
    fn it_stops_when_told_to() {
        let options = ReproduceOptions { figure: Some("5a".into()), jobs: 2, cache: None, seed: 1 };
        let result = reproduce(&Strom, &options, &mut |progress| progress.done < 3);
        // No line has all of its points.
        let cut = result.unwrap();
        assert!(cut.figures.is_empty() && cut.incomplete.is_some_and(|why| why.contains(" of ")));
        let options = ReproduceOptions { figure: Some("7".into()), jobs: 1, cache: None, seed: 1 };
        let cut = reproduce(&Strom, &options, &mut |progress| progress.done < 8).unwrap();
        assert!(
            cut.figures[0].lines.len() == 1
                && table(&cut).contains("interrupted")
                && page(&cut).contains("interrupted")
        );
        let result = reproduce(&Strom, &options, &mut |_| false);
        assert!(result.is_ok_and(|cut| cut.incomplete.is_some()));
        let options = ReproduceOptions { figure: Some("6".into()), ..options };
        let error = reproduce(&Strom, &options, &mut |_| true).unwrap_err().to_string();
        assert!(error.starts_with("there is no figure 6: choose one of 5a, 5b"), "{error}");
    }
}
