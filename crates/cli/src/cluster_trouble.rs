//! What `remora cluster kills` and `pauses` share: a scratch cluster in trouble under load, and what is told of it.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use remora_study::StudyError;
use remora_study::kills::Seen;
use remora_study::nodes::ClusterSettings;
use serde_json::{Value, json};

use crate::Failure;
use crate::cluster::{Shape, scratch};
use crate::output::{Json, not_complete};
use crate::progress::{Display, stop_flag};
use crate::quantity::{count, up_to};

/// Options of both.
#[derive(Debug, clap::Args)]
pub struct TroubleArgs {
    #[command(flatten)]
    shape: Shape,
    /// Threads of clients, each with several requests under way
    #[arg(long, value_name = "N", default_value = "4", value_parser = up_to::<u8>(1..=64))]
    pub clients: u8,
    /// Seed of every random choice [default: a fresh one]
    #[arg(long, value_name = "N", value_parser = count)]
    seed: Option<u64>,
    /// Figures for programs.
    #[command(flatten)]
    json: Json,
}

/// What is told of a run, beside what clients saw.
pub struct Summary<'a> {
    /// How often a node was troubled, of how often it was asked for.
    pub done: usize,
    pub asked: u32,
    pub table: String,
    /// An object.
    pub figures: Value,
    pub seen: &'a Seen,
}

impl TroubleArgs {
    /// Has `work` done, and tells what `summary` makes of it; `what` is plural. Returns the report and the seed.
    pub fn run<R>(
        &self,
        what: &str,
        work: impl FnOnce(&Path, ClusterSettings, u64, &Display) -> Result<R, StudyError>,
        summary: impl FnOnce(&R) -> Summary<'_>,
    ) -> Result<(R, u64), Failure> {
        let display = Display::new(stop_flag());
        let seed = self.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 24);
        let dir = scratch()?;
        let settings = ClusterSettings::open(dir.path(), &self.shape.clone().into())?;
        let (model, deployment, nodes) = (settings.kept(), settings.deployment, settings.addresses.len());
        let head = format!("{nodes} nodes, {model}, {deployment} deployment; seed {seed}\n");
        self.json.print(&head)?;
        let report = work(dir.path(), settings, seed, &display);
        display.clear();
        let report = report?;
        let Summary { done, asked, table, figures, seen } = summary(&report);
        let interrupted = display.stopped();
        let missing = interrupted.then(|| format!("interrupted; {done} of {asked} {what} were done"));
        let cut = not_complete(missing.as_deref());
        let verdict = seen.verdict();
        let (Ok(said) | Err(said)) = &verdict;
        self.json.show(&format!("{cut}{table}{said}\n"), || {
            let mut all = json!({
                "format": format!("remora-cluster-{what}/1"),
                "seed": seed,
                "persistency": model,
                "deployment": deployment.to_string(),
                "interrupted": interrupted,
                "incomplete": missing,
                "operations": seen.operations,
                "acknowledged_writes": seen.answered,
                "unknown": seen.unknown,
                "one_sided_reads": seen.one_sided,
                "violations": u8::from(seen.wrong.is_some()),
                "too_hard": seen.too_hard,
            });
            if let (Value::Object(all), Value::Object(figures)) = (&mut all, figures) {
                all.extend(figures);
            }
            all
        })?;
        for line in seen.wrong.iter().flat_map(|(_, lines)| lines) {
            self.json.print(&format!("{line}\n"))?;
        }
        verdict.map_err(|why| Failure::Failed(format!("{why}; seed {seed}")))?;
        if interrupted { Err(Failure::Interrupted) } else { Ok((report, seed)) }
    }
}

/// Operations and writes that clients saw, in words.
pub fn load(seen: &Seen) -> String {
    let (answered, unknown) = (seen.answered, seen.unknown);
    let one_sided = match seen.one_sided {
        0 => String::new(),
        count => format!(", {count} one-sided reads"),
    };
    format!("{} operations, {answered} writes answered, {unknown} outcomes unknown{one_sided}", seen.operations)
}
