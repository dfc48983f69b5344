//! What the checks have in common: how far one is, how it ended, and seeded faults.

use std::time::Duration;

use remora_storm::check::{Bound, CheckReport, Search};
use serde_json::{Value, json};

use crate::Failure;
use crate::output::print;
use crate::progress::Display;
use crate::quantity::{count, up_to};

/// How far a search goes.
#[derive(Debug, clap::Args)]
pub struct SearchArgs {
    /// Stop after this many distinct states
    #[arg(long, value_name = "N", default_value = "100000000", value_parser = count)]
    pub max_states: u64,
    /// Stop after this many minutes
    #[arg(long, value_name = "N", value_parser = up_to::<u64>(1..=1_000_000))]
    minutes: Option<u64>,
    /// Stop at this much memory, in megabytes
    #[arg(long, value_name = "MB", default_value = "2000", value_parser = up_to::<u64>(1..=1 << 30))]
    memory: u64,
    /// Breadth first: shows the shortest way to a failure, and needs more memory
    #[arg(long)]
    shortest: bool,
    /// Threads
    #[arg(long, value_name = "N", default_value = "1", value_parser = up_to::<u8>(1..=64))]
    pub threads: u8,
}

impl SearchArgs {
    /// The same for the check.
    pub fn search(&self) -> Search {
        Search {
            limit: self.max_states,
            memory: self.memory << 20,
            time: self.minutes.map_or(Duration::MAX, |minutes| Duration::from_secs(60 * minutes)),
            threads: usize::from(self.threads),
            shortest: self.shortest,
        }
    }
}

/// What was visited, in columns.
pub fn visited(report: &CheckReport) -> String {
    let CheckReport { states, generated, depth, seconds, omission, .. } = report;
    let rate = *states as f64 / seconds.max(1e-9);
    let result = result(stopped(report));
    format!(
        "distinct states   generated  depth  states/s  seconds  omission\n\
         {states:>15} {generated:>11} {depth:>6} {rate:>9.0} {seconds:>8.1} {omission:>9.1e}\n  {result}\n"
    )
}

/// The same for programs, behind what was asked for: two objects become one.
pub fn figures(mut asked: Value, report: &CheckReport) -> Value {
    let found = json!({
        "distinct_states": report.states, "generated": report.generated, "depth": report.depth,
        "seconds": report.seconds, "memory_bytes": report.memory, "omission": report.omission,
        "complete": report.complete(), "stopped": stopped(report),
    });
    if let (Value::Object(asked), Value::Object(found)) = (&mut asked, found) {
        asked.extend(found);
    }
    asked
}

/// Says how far a search of this is, and ends it once the user wants no more: what it has found so far is shown all the same.
pub fn going<'a>(display: &'a Display, what: &'a str) -> impl FnMut(u64) -> bool + 'a {
    move |states| {
        display.say(&format!("{what}{states} distinct states"));
        !display.stopped()
    }
}

/// What ended a search before all was visited, in figures for programs.
pub fn stopped(report: &CheckReport) -> Option<&'static str> {
    report.stopped.map(|bound| match bound {
        Bound::States => "states",
        Bound::Memory => "memory",
        Bound::Time => "time",
        Bound::Asked => "interrupted",
    })
}

/// The same for people.
pub fn result(stopped: Option<&str>) -> String {
    match stopped {
        None => "holds in all states".into(),
        Some("interrupted") => "Not complete: holds so far, interrupted".into(),
        Some(bound) => format!("Not complete: holds so far, stopped by the bound on {bound}"),
    }
}

/// What was found, whose message chart goes to the screen.
pub fn found(reason: String, chart: &str) -> Failure {
    Failure::Failed(reason).and(print(&format!("{chart}\n")))
}

/// Fails if of some of what was checked not all states were visited.
pub fn whole(interrupted: bool, unfinished: &[&str]) -> Result<(), Failure> {
    match unfinished {
        _ if interrupted => Err(Failure::Interrupted),
        [] => Ok(()),
        some => {
            let some = some.join(", ");
            Err(Failure::Failed(format!("not all states of {some} were visited: raise the bound, or ask for less")))
        }
    }
}

/// Shows that the seeded fault of this name is found, or that all are; or what their names are.
pub fn mutants<M>(
    wanted: &str,
    all: &[M],
    name: impl Fn(&M) -> &'static str,
    check: impl Fn(&M) -> CheckReport,
) -> Result<(), Failure> {
    let names: Vec<_> = all.iter().map(&name).collect();
    if wanted == "list" {
        return print(&(names.join("\n") + "\n"));
    }
    let chosen: Vec<_> = all.iter().filter(|mutant| wanted == "all" || wanted == name(mutant)).collect();
    if chosen.is_empty() {
        return Err(Failure::Usage(format!("no seeded fault {wanted:?}: {}, or all", names.join(", "))));
    }
    for mutant in chosen {
        let (name, report) = (name(mutant), check(mutant));
        let Some((reason, chart)) = report.failure else {
            return Err(Failure::Failed(format!("{name} was not found in {} states", report.states)));
        };
        print(&format!("{name}: found after {} distinct states: {reason}\n{chart}\n\n", report.states))?;
    }
    Ok(())
}
