//! The `remora` command.

mod args;
mod bench;
mod bench_minos;
mod bench_minos_show;
mod bench_model;
mod bench_stream;
mod bench_wasm;
mod capture;
mod check;
mod cluster;
mod cluster_kills;
mod compare;
mod compare_kernel;
mod compare_kernel_on;
mod exec;
mod kernel;
mod kernel_build;
mod kernel_params;
mod node;
mod platform;
mod probe;
mod progress;
mod reproduce;
mod storm;
mod validate;
mod where_;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Args, Bench, Command};

/// Why the command fails.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// Options that make no sense together, or files that are not what they should be.
    #[error("{0}")]
    Usage(String),
    /// It could not be done.
    #[error("{0}")]
    Failed(String),
    /// The user wants no more.
    #[error("interrupted")]
    Interrupted,
}

impl From<remora_study::StudyError> for Failure {
    fn from(error: remora_study::StudyError) -> Self {
        match error {
            remora_study::StudyError::Interrupted => Self::Interrupted,
            remora_study::StudyError::Usage(what) => Self::Usage(what),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<remora_real::Error> for Failure {
    fn from(error: remora_real::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            print(&error.render().ansi().to_string(), &error.render().to_string());
            return ExitCode::SUCCESS;
        }
        Err(error) => return end(Err(Failure::Usage(usage_line(&error.render().to_string())))),
    };
    end(match args.command.unwrap_or_default() {
        Command::Compare(args) => compare::run(&args),
        Command::Node(args) => node::run(&args),
        Command::Cluster(args) => cluster::run(&args),
        Command::Kernel { what } => kernel::run(&what),
        Command::Exec(args) => exec::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Where(args) => where_::run(&args),
        Command::Platform { what } => platform::run(&what),
        Command::Reproduce { what } => reproduce::run(&what),
        Command::Storm { what } => storm::run(&what),
        Command::Check { what } => check::run(&what),
        Command::Bench { what: Bench::Nic(args) } => bench::nic(&args),
        Command::Bench { what: Bench::Kernel(args) } => bench::kernel(&args),
        Command::Bench { what: Bench::Wasm(args) } => bench_wasm::run(&args),
        Command::Bench { what: Bench::Model(args) } => bench_model::run(&args),
        Command::Bench { what: Bench::Stream(args) } => bench_stream::run(&args),
        Command::Bench { what: Bench::Minos(args) } => bench_minos::run(&args),
    })
}

/// One line on stderr, and the exit status: 0, 1 for a failure, 2 for wrong usage, 130 as shells have it for SIGINT.
fn end(result: Result<(), Failure>) -> ExitCode {
    let Err(failure) = result else { return ExitCode::SUCCESS };
    let _ = writeln!(io::stderr(), "remora: {failure}");
    match failure {
        Failure::Failed(_) => ExitCode::from(1),
        Failure::Usage(_) => ExitCode::from(2),
        Failure::Interrupted => ExitCode::from(130),
    }
}

/// What clap says, in one line.
fn usage_line(message: &str) -> String {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let wanted = message.split("\n\nUsage:").next().unwrap_or(message);
    let wanted = wanted.split("\n\nFor more information").next().unwrap_or(wanted);
    let words: Vec<&str> = wanted.split_whitespace().collect();
    format!("{} (see `remora --help`)", words.join(" "))
}

/// To a terminal with colours, to anything else plain. A reader that has gone away is no failure.
fn print(coloured: &str, plain: &str) {
    let mut out = io::stdout().lock();
    let text = if io::IsTerminal::is_terminal(&out) { coloured } else { plain };
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_errors_are_one_line() {
        for line in [&["remora", "node"][..], &["remora", "--nonsense"], &["remora", "compare", "--seed", "x"]] {
            let message = usage_line(&Args::try_parse_from(line).unwrap_err().render().to_string());
            assert!(!message.contains('\n') && message.ends_with("(see `remora --help`)"), "{message}");
        }
        let message = usage_line(&Args::try_parse_from(["remora", "node"]).unwrap_err().render().to_string());
        assert!(message.contains("--listen <ADDR>"), "{message}");
    }
}
