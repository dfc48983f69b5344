//! The `remora` command.

mod args;
mod bench;
mod bench_btree;
mod bench_chain;
mod bench_cores;
mod bench_dlrm;
mod bench_forge;
mod bench_kv;
mod bench_minos;
mod bench_minos_show;
mod bench_model;
mod bench_neighbours;
mod bench_partition;
mod bench_rack;
mod bench_ring;
mod bench_stream;
mod bench_wasm;
mod capture;
mod check;
mod check_chain;
mod check_membership;
mod check_rack;
mod check_search;
mod check_tree;
mod cluster;
mod cluster_kills;
mod cluster_pauses;
mod cluster_transact;
mod cluster_trouble;
mod compare;
mod compare_kernel;
mod compare_kernel_on;
mod examples;
mod exec;
mod kernel;
mod kernel_build;
mod kernel_params;
mod kernel_run;
mod metrics;
mod node;
mod output;
#[cfg(feature = "pages")]
mod pages;
mod platform;
mod preload;
mod probe;
mod progress;
mod ps;
mod quantity;
mod rack;
mod reproduce;
mod shards;
mod storm;
mod storm_chain;
mod storm_rack;
mod top;
mod validate;
mod where_;
mod where_rack;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use args::{Args, Bench, Command};

/// Why the command fails.
#[derive(Clone, Debug, thiserror::Error)]
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
    /// The user wants no more, before there was anything for this file.
    #[error("interrupted before there were figures: {} was not written", .0.display())]
    Unwritten(PathBuf),
}

impl Failure {
    /// What came before there were figures for a file: whoever has an older one there should know.
    fn without(self, file: &Path) -> Self {
        match self {
            Self::Interrupted => Self::Unwritten(file.into()),
            Self::Failed(why) => Self::Failed(format!("{why}; {} was not written", file.display())),
            other => other,
        }
    }

    /// What was found, and that it could not be written as well, if so: it is told all the same.
    fn and(self, written: Result<(), Self>) -> Self {
        match (self, written) {
            (found, Ok(())) => found,
            (Self::Failed(what), Err(why)) => Self::Failed(format!("{what}; {why}")),
            (_, Err(why)) => why,
        }
    }
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

impl From<remora_lab::bench::BenchError> for Failure {
    fn from(error: remora_lab::bench::BenchError) -> Self {
        remora_study::StudyError::from(error).into()
    }
}

impl From<remora_real::Error> for Failure {
    fn from(error: remora_real::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The arguments, as far as they are text: for what is said of them.
fn words() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

fn main() -> ExitCode {
    let matches = examples::fitting(Args::command()).try_get_matches();
    let (args, figures) = match matches.and_then(|matches| Ok((Args::from_arg_matches(&matches)?, matches))) {
        Ok((args, matches)) => {
            let idle = matches.subcommand_matches("compare").map_or(Ok(()), compare::refuse_idle);
            if let Err(failure) = idle.and_then(|()| a_file_each(&matches)) {
                return end(Err(failure));
            }
            (args, figures(&matches))
        }
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            let text = error.render();
            return end(output::print_help(&text.ansi().to_string(), &text.to_string()));
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let words = words();
            let (command, line) = command_of(&words);
            let next: Vec<&str> = command.get_subcommands().map(|next| next.get_name()).collect();
            let why = format!("a subcommand is missing: {} (see `{line} --help`)", next.join(", "));
            return end(Err(Failure::Usage(why)));
        }
        Err(error) => {
            let words = words();
            return end(Err(Failure::Usage(usage_line(&error.render().to_string(), &help_for(&words)))));
        }
    };
    progress::set_loudness(args.quiet, args.verbose);
    let result = match args.command.unwrap_or_default() {
        #[cfg(feature = "pages")]
        Command::Pages { directory } => pages::run(&directory),
        Command::Compare(args) => compare::run(&args),
        Command::Node(args) => node::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Cluster(args) => cluster::run(&args),
        Command::Kernel { what } => kernel::run(&what),
        Command::Exec(args) => exec::run(&args),
        Command::Rack(args) => rack::run(&args),
        Command::Ps(args) => ps::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Where(args) => where_::run(&args),
        Command::Platform { what } => platform::run(&what),
        Command::Reproduce { what } => reproduce::run(&what),
        Command::Storm { what } => storm::run(&what),
        Command::Check { what } => check::run(&what),
        Command::Bench { what: Bench::Nic(args) } => bench::nic(&args),
        Command::Bench { what: Bench::Btree(args) } => bench_btree::run(&args),
        Command::Bench { what: Bench::Kernel(args) } => bench::kernel(&args),
        Command::Bench { what: Bench::Wasm(args) } => bench_wasm::run(&args),
        Command::Bench { what: Bench::Model(args) } => bench_model::run(&args),
        Command::Bench { what: Bench::Neighbours(args) } => bench_neighbours::run(&args),
        Command::Bench { what: Bench::Partition(args) } => bench_partition::run(&args),
        Command::Bench { what: Bench::Kv(args) } => bench_kv::run(&args),
        Command::Bench { what: Bench::Dlrm(args) } => bench_dlrm::run(&args),
        Command::Bench { what: Bench::Ring(args) } => bench_ring::run(&args),
        Command::Bench { what: Bench::Cores(args) } => bench_cores::run(&args),
        Command::Bench { what: Bench::Rack(args) } => bench_rack::run(&args),
        Command::Bench { what: Bench::Stream(args) } => bench_stream::run(&args),
        Command::Bench { what: Bench::Forge(args) } => bench_forge::run(&args),
        Command::Bench { what: Bench::Minos(args) } => bench_minos::run(&args),
        Command::Bench { what: Bench::Chain(args) } => bench_chain::run(&args),
    };
    end(result.map_err(|failure| match figures {
        Some(file) if !output::figures_were_there() => failure.without(&file),
        _ => failure,
    }))
}

/// The file for figures that a command was given, not standard output.
fn figures(matches: &ArgMatches) -> Option<PathBuf> {
    match matches.subcommand() {
        Some((_, next)) => figures(next),
        None => matches.try_get_one("json").ok().flatten().filter(|&file| file != "-").cloned(),
    }
}

/// Fails if two flags name one file, of which the second would take the first one's place.
fn a_file_each(matches: &ArgMatches) -> Result<(), Failure> {
    if let Some((_, next)) = matches.subcommand() {
        return a_file_each(next);
    }
    let no_page = matches.try_get_one("no_html").ok().flatten() == Some(&true);
    let mut files: Vec<(&str, &PathBuf)> = Vec::new();
    for flag in ["json", "html", "csv", "report", "out", "export", "save", "pcap"] {
        let file = matches.try_get_one::<PathBuf>(flag).ok().flatten();
        let Some(file) = file.filter(|file| !(file.starts_with("/dev") || flag == "html" && no_page)) else {
            continue;
        };
        if let Some((other, _)) = files.iter().find(|(_, other)| *other == file) {
            let file = if file == Path::new("-") { "standard output".into() } else { file.display().to_string() };
            return Err(Failure::Usage(format!("--{other} and --{flag} both go to {file}: give one another file")));
        }
        files.push((flag, file));
    }
    Ok(())
}

/// One line on stderr, and the exit status: 0, 1 for a failure, 2 for wrong usage, 130 as shells have it for SIGINT.
fn end(result: Result<(), Failure>) -> ExitCode {
    let Err(failure) = result else { return ExitCode::SUCCESS };
    let _ = writeln!(io::stderr(), "remora: {failure}");
    match failure {
        Failure::Failed(_) => ExitCode::from(1),
        Failure::Usage(_) => ExitCode::from(2),
        Failure::Interrupted | Failure::Unwritten(_) => ExitCode::from(130),
    }
}

/// The command that these words of a command line are about, and how it is called.
fn command_of(words: &[String]) -> (clap::Command, String) {
    let (mut command, mut line) = (Args::command(), String::from("remora"));
    for word in words.iter().filter(|word| !word.starts_with('-')) {
        let Some(next) = command.find_subcommand(word) else { break };
        line += &format!(" {}", next.get_name());
        command = next.clone();
    }
    (command, line)
}

/// The command that explains it.
fn help_for(words: &[String]) -> String {
    command_of(words).1 + " --help"
}

/// What clap says, in one line; `help` is where there is more.
fn usage_line(message: &str, help: &str) -> String {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let wanted = message.split("\n\nUsage:").next().unwrap_or(message);
    let wanted = wanted.split("\n\nFor more information").next().unwrap_or(wanted);
    let one_line = |part: &str| part.split_whitespace().collect::<Vec<_>>().join(" ");
    let parts: Vec<String> = wanted.split("\n\n").map(one_line).filter(|part| !part.is_empty()).collect();
    format!("{} (see `{help}`)", parts.join("; "))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn what_was_found_is_told_beside_what_could_not_be_written() {
        let failed = |why: &str| Failure::Failed(why.into());
        assert_eq!(failed("seed 7").and(Ok(())).to_string(), "seed 7");
        assert_eq!(failed("seed 7").and(Err(failed("disk full"))).to_string(), "seed 7; disk full");
        assert_eq!(Failure::Interrupted.and(Err(failed("disk full"))).to_string(), "disk full");
    }

    #[test]
    fn usage_errors_are_one_line() {
        let said = |words: &[&str]| {
            let error = Args::try_parse_from([&["remora"], words].concat()).unwrap_err();
            let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
            usage_line(&error.render().to_string(), &help_for(&words))
        };
        for (line, help, part) in [
            (&["node"][..], "remora node --help", "--listen <ADDR>"),
            (&["--nonsense"], "remora --help", "'--nonsense' found"),
            (&["compare", "--seed", "x"], "remora compare --help", "20000, 2e4 or 20k"),
            (&["kernel", "call"], "remora kernel call --help", "<NAME>"),
            (&["compare", "--recods", "5"], "remora compare --help", "found; tip: a similar argument"),
        ] {
            let message = said(line);
            assert!(!message.contains('\n') && message.ends_with(&format!("(see `{help}`)")), "{message}");
            assert!(message.contains(part), "{message}");
        }
    }
}
