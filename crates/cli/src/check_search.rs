//! What the checks have in common: how far one is, how it ended, and seeded faults.

use remora_storm::check::{Bound, CheckReport};

use crate::Failure;
use crate::output::print;
use crate::progress::Display;

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
