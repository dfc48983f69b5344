//! `remora reproduce`.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use clap::Subcommand;
use remora_study::bluefield::BlueField;
use remora_study::dfabric::DFabric;
use remora_study::minos;
use remora_study::modelled::ModelError;
use remora_study::rambda::Rambda;
use remora_study::reproduce::{
    self, Cache, Change, Paper, ReproduceError, ReproduceOptions, ReproduceProgress, Reproduction,
};
use remora_study::strom::Strom;

use crate::Failure;
use crate::output::{self, Json};
use crate::progress::{Display, stop_flag};
use crate::quantity::{self, up_to};

const EXAMPLES: &str = "\
Examples:
  remora reproduce strom                         all figures, what the text says, the trends
  remora reproduce strom --figure 7              one figure; 5 stands for 5a, 5b and 5c, 9 for 9 and 9f
  remora reproduce strom --csv out --report r.html
  remora reproduce strom --jobs 8 --no-cache
  remora reproduce strom --mutate                what the trends catch when a value is wrong by a factor of two
  remora reproduce strom --mutate=order          the same when queues are served out of turn";

const MINOS_EXAMPLES: &str = "\
Examples:
  remora reproduce minos                         figures 4 and 9 to 14, and what the text says
  remora reproduce minos --figure 12             one figure; 9 stands for 9a, 9b and 9c
  remora reproduce minos --csv out --report r.html
  remora reproduce minos --workers 5             five clients a node: what the FIFOs do under load
  remora reproduce minos --readings              what the text leaves open, and what hangs on it";

const BLUEFIELD_EXAMPLES: &str = "\
Examples:
  remora reproduce bluefield                     all figures, what the text says, the trends
  remora reproduce bluefield --figure 7          one figure
  remora reproduce bluefield --csv out --report r.html";

const RAMBDA_EXAMPLES: &str = "\
Examples:
  remora reproduce rambda                        all figures; table III is figure III
  remora reproduce rambda --figure 7             one figure; 13 stands for 13a and 13b
  remora reproduce rambda --csv out --report r.html";

const DFABRIC_EXAMPLES: &str = "\
Examples:
  remora reproduce dfabric                       all figures; table 4 is figure IV
  remora reproduce dfabric --figure 2            one figure; 9 stands for 9a to 9f, 10 for 10a and 10b
  remora reproduce dfabric --csv out --report r.html";

/// Which paper.
#[derive(Debug, Subcommand)]
pub enum Reproduce {
    /// StRoM (EuroSys 2020): figures 5 and 7 to 13
    #[command(after_help = EXAMPLES)]
    Strom(Common),
    /// MINOS: figures 4 and 9 to 14
    #[command(after_help = MINOS_EXAMPLES)]
    Minos(Minos),
    /// B-trees and sequencers on BlueField cards (ADMS 2022): figures 2 to 12
    #[command(after_help = BLUEFIELD_EXAMPLES)]
    Bluefield(Common),
    /// RAMBDA (HPCA 2023): figures 1, 5, 7 to 10, 12 and 13, and table III
    #[command(after_help = RAMBDA_EXAMPLES)]
    Rambda(Common),
    /// DFabric: figures 2 and 9 to 13, and table 4
    #[command(after_help = DFABRIC_EXAMPLES)]
    Dfabric(Common),
}

/// Which changes are tried.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Mutants {
    /// All kinds
    All,
    /// Each value halved and doubled
    Values,
    /// Each component for nothing
    Costs,
    /// Each component's queues served out of turn
    Order,
}

impl Mutants {
    fn changes(self) -> &'static [Change] {
        match self {
            Self::All => &Change::ALL,
            Self::Values => &[Change::Half, Change::Double],
            Self::Costs => &[Change::Free],
            Self::Order => &[Change::Order],
        }
    }
}

/// Options of every paper.
#[derive(Debug, clap::Args)]
pub struct Common {
    /// Only this figure, such as 7 or 12b
    #[arg(long, value_name = "N")]
    pub figure: Option<String>,
    /// Write a CSV file for each figure into this directory
    #[arg(long, value_name = "DIR", value_parser = output::directory())]
    pub csv: Option<PathBuf>,
    /// Figures for programs.
    #[command(flatten)]
    pub json: Json,
    /// Write an HTML page with plots
    #[arg(long, value_name = "FILE", value_parser = crate::output::file())]
    pub report: Option<PathBuf>,
    /// Threads [default: as many as there are cores]
    #[arg(long, value_name = "N", value_parser = up_to::<u16>(1..=256))]
    pub jobs: Option<u16>,
    /// Where results are kept, so that a run that was broken off goes on [default: the user's cache directory]
    #[arg(long, value_name = "DIR", conflicts_with = "no_cache", value_parser = crate::output::directory())]
    pub cache: Option<PathBuf>,
    /// Halve and double each value of the platform, drop the cost of each component, serve each one's queues out of turn: what
    /// the checks catch of that. Or one kind alone [default: all]
    #[arg(long, value_name = "KIND", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    #[arg(conflicts_with_all = ["csv", "report"])]
    pub mutate: Option<Mutants>,
    /// Run everything anew and keep nothing
    #[arg(long)]
    pub no_cache: bool,
    /// Seed of every random choice
    #[arg(long, value_name = "N", default_value = "42", value_parser = quantity::count)]
    pub seed: u64,
}

/// Options of `remora reproduce minos`.
#[derive(Debug, clap::Args)]
pub struct Minos {
    /// As for every paper
    #[command(flatten)]
    pub common: Common,
    /// Measured requests of each node; the paper has 100000
    #[arg(long, value_name = "N", default_value = "1000", value_parser = up_to::<u64>(1..=1_000_000))]
    pub requests: u64,
    /// Clients of each node, with one request under way each [default: what fits the paper's text best]
    #[arg(long, value_name = "N", value_parser = up_to::<u16>(1..=1024))]
    pub workers: Option<u16>,
    /// What the text leaves open: each other reading of it alone, and all together, over all figures in one table
    #[arg(long, conflicts_with_all = ["csv", "report", "mutate"])]
    pub readings: bool,
}

/// Runs it.
pub fn run(what: &Reproduce) -> Result<(), Failure> {
    match what {
        Reproduce::Strom(common) => run_paper(Strom, common),
        Reproduce::Rambda(common) => run_paper(Rambda, common),
        Reproduce::Dfabric(common) => run_paper(DFabric, common),
        Reproduce::Bluefield(common) => run_paper(BlueField::default(), common),
        Reproduce::Minos(args) => {
            let Minos { common, requests, workers, readings } = args;
            let paper = minos::Minos { requests: *requests, workers: *workers, readings: minos::Chosen::default() };
            if !readings {
                return run_paper(paper, common);
            }
            let all = shown(common, |options, progress| minos::readings(&paper, options, progress))?;
            common.json.show(&all.table(), || all.to_json(env!("REMORA_VERSION")))?;
            ended(&all.incomplete)
        }
    }
}

/// A paper's figures, or its mutants.
fn run_paper(paper: impl Paper, args: &Common) -> Result<(), Failure> {
    if let Some(kinds) = args.mutate {
        let changes = kinds.changes();
        let all = shown(args, |options, progress| reproduce::mutate(paper, options, changes, progress))?;
        args.json.show(&all.table(), || all.to_json(env!("REMORA_VERSION")))?;
        return ended(&all.incomplete);
    }
    let all = shown(args, |options, progress| reproduce::reproduce(&paper, options, progress))?;
    publish(&all, args)?;
    ended(&all.incomplete)
}

/// What was cut short has shown what it had.
fn ended(incomplete: &Option<String>) -> Result<(), Failure> {
    match incomplete {
        Some(_) => Err(Failure::Interrupted),
        None => Ok(()),
    }
}

/// Runs with progress on display, until the user wants no more.
fn shown<T>(
    args: &Common,
    run: impl FnOnce(&ReproduceOptions, &mut dyn FnMut(ReproduceProgress) -> bool) -> Result<T, ReproduceError>,
) -> Result<T, Failure> {
    let (stop, cores) = (stop_flag(), std::thread::available_parallelism().map_or(1, usize::from));
    let display = Display::new(stop.clone());
    let cache = args.cache.clone().or_else(Cache::default_directory).filter(|_| !args.no_cache);
    let jobs = args.jobs.map_or(cores, usize::from);
    let options = ReproduceOptions { figure: args.figure.clone(), jobs, cache, seed: args.seed };
    let result = run(&options, &mut |progress| {
        display.part(&line(&progress), progress.done as f64 / progress.total.max(1) as f64);
        !stop.load(Ordering::Relaxed)
    });
    display.clear();
    result.map_err(failure)
}

/// `31 of 96 points, 4.1 M events/s`.
fn line(progress: &ReproduceProgress) -> String {
    let ReproduceProgress { done, total, events, seconds } = *progress;
    let rate = events as f64 / seconds.max(1e-9) / 1e6;
    format!("{done} of {total} points, {rate:.1} M events/s")
}

pub(crate) fn failure(error: ReproduceError) -> Failure {
    match error {
        ReproduceError::Interrupted | ReproduceError::Model(ModelError::Interrupted) => Failure::Interrupted,
        ReproduceError::Study(e) => Failure::Usage(e.to_string()),
        other => Failure::Failed(other.to_string()),
    }
}

/// Prints the table, then writes the files that are asked for: figures with their CSV, and a page.
fn publish(all: &Reproduction, args: &Common) -> Result<(), Failure> {
    args.json.show(&reproduce::table(all), || all.to_json(env!("REMORA_VERSION")))?;
    if let Some(directory) = &args.csv {
        let failed = |e| Failure::Failed(format!("cannot write to {}: {e}", directory.display()));
        std::fs::create_dir_all(directory).map_err(failed)?;
        for figure in &all.figures {
            output::write(&directory.join(format!("fig{}.csv", figure.number)), reproduce::csv(figure).as_bytes())?;
        }
        args.json.print(&format!("CSV: {} files in {}\n", all.figures.len(), directory.display()))?;
    }
    if let Some(path) = &args.report {
        output::write(path, reproduce::page(all).as_bytes())?;
        args.json.print(&format!("Page with plots: {}\n", path.display()))?;
    }
    Ok(())
}
