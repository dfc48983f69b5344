//! Examples in help: command lines, and beside or below each what it does.

use clap::Command;

/// Columns of a terminal that nobody has made wider.
const COLUMNS: usize = 80;
/// What stands before the text below a command line, and before the rest of one that is too long.
const FURTHER: &str = "      ";

/// A command, and all below it, whose examples fit a terminal.
pub fn fitting(command: Command) -> Command {
    let help = command.get_after_help().map(|help| laid_out(&help.to_string()));
    let long = command.get_after_long_help().map(|help| laid_out(&help.to_string()));
    let command = command.mut_subcommands(fitting);
    let command = help.into_iter().fold(command, Command::after_help);
    long.into_iter().fold(command, Command::after_long_help)
}

/// Of lines that belong together, where one is too long, all texts stand below their command lines.
fn laid_out(help: &str) -> String {
    let lines: Vec<&str> = help.lines().collect();
    let is_example = |line: &str| line.starts_with("  ");
    let mut out = Vec::new();
    for block in lines.chunk_by(|a, b| is_example(a) && is_example(b)) {
        if !is_example(block[0]) || block.iter().all(|line| line.chars().count() <= COLUMNS) {
            out.extend(block.iter().map(|line| line.to_string()));
            continue;
        }
        for line in block {
            // The rest of what stands above.
            if line.starts_with(FURTHER) {
                out.extend(cut(&format!("{FURTHER}{}", line.trim()), ""));
                continue;
            }
            let (command, text) = parts(line);
            out.extend(cut(&format!("  {command}"), " \\"));
            out.extend(text.iter().flat_map(|text| cut(&format!("{FURTHER}{text}"), "")));
        }
    }
    out.join("\n")
}

/// The command line and the text behind it: what parts them is more than one space.
fn parts(line: &str) -> (&str, Option<&str>) {
    match line.trim_start().split_once("  ") {
        Some((command, text)) => (command, Some(text.trim_start())),
        None => (line.trim(), None),
    }
}

/// The lines of one that is too long; each but the last ends with `mark`.
fn cut(line: &str, mark: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut rest = line.to_string();
    while rest.chars().count() > COLUMNS {
        let room: usize = rest.chars().take(COLUMNS - mark.len()).map(char::len_utf8).sum();
        // A command line is best cut before an option.
        let ends =
            [" -", " "].map(|end| rest[..room].trim_end().rfind(end).filter(|at| !rest[..*at].trim().is_empty()));
        let Some(at) = ends[usize::from(mark.is_empty())].or(ends[1]) else { break };
        out.push(format!("{}{mark}", &rest[..at]));
        rest = format!("{FURTHER}{}", &rest[at + 1..]);
    }
    out.push(rest);
    out
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::args::Args;

    /// All commands that users see, by their words.
    fn all(command: &Command, words: &str, out: &mut Vec<(String, Command)>) {
        let words = format!("{words} {}", command.get_name()).trim().to_string();
        let seen = command.get_subcommands().filter(|next| !next.is_hide_set() && next.get_name() != "help");
        seen.for_each(|next| all(next, &words, out));
        out.push((words, command.clone()));
    }

    /// Whether `remora` takes a line of a shell, but for files and addresses that are not there.
    fn is_taken(line: &str) -> Result<(), String> {
        let line = line.split(['>', '#']).next().unwrap_or_default().replace("&&", ";");
        for part in line.split([';', '|']).map(|part| part.trim().trim_end_matches('&')) {
            let Err(error) = Args::try_parse_from(part.split_whitespace()) else { continue };
            if part.starts_with("remora ") && !error.to_string().contains("No such file") {
                return Err(format!("{part}: {error}"));
            }
        }
        Ok(())
    }

    #[test]
    fn every_command_has_examples_that_it_takes_and_a_terminal_holds() {
        let mut commands = Vec::new();
        all(&Args::command(), "", &mut commands);
        assert!(commands.len() > 50, "{commands:?}");
        for (words, command) in commands {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(command.has_subcommands() || help.contains(&words), "{words} has no example");
            for line in help.lines().filter(|line| line.trim_start().starts_with("remora ")) {
                is_taken(parts(line).0).unwrap_or_else(|why| panic!("help of {words}: {why}"));
            }
            let long = laid_out(&help)
                .lines()
                .find(|line| line.starts_with("  ") && line.chars().count() > COLUMNS)
                .map(String::from);
            assert_eq!(long, None, "{words}");
        }
    }

    #[test]
    fn command_lines_in_documents_are_taken() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (mut places, mut lines) = (vec![root.join("README.md"), root.join("docs"), root.join("deploy")], 0);
        while let Some(place) = places.pop() {
            if place.is_dir() {
                places.extend(std::fs::read_dir(&place).expect("a folder").flatten().map(|entry| entry.path()));
                continue;
            }
            let text = std::fs::read_to_string(&place).unwrap_or_default().replace("\\\n", " ");
            for block in text.split("```sh\n").skip(1) {
                let block = block.split("```").next().unwrap_or_default();
                for line in block.lines() {
                    lines += 1;
                    is_taken(line).unwrap_or_else(|why| panic!("{}: {why}", place.display()));
                }
            }
        }
        assert!(lines > 50, "{lines}");
    }

    #[test]
    fn lines_that_are_too_long_go_on_below() {
        let help = "Examples:\n  remora a   short\n  remora b     what does not fit beside a command line of this length, as it is of too many words";
        let laid = "Examples:\n  remora a\n      short\n  remora b\n      what does not fit beside a command line of this length, as it is of too\n      many words";
        assert_eq!(laid_out(help), laid);
        let line = format!("  remora{}", " --option".repeat(10));
        let cut = laid_out(&line);
        assert_eq!(cut.lines().map(|line| line.ends_with('\\')).collect::<Vec<_>>(), [true, false], "{cut}");
        assert_eq!(laid_out("  remora a   short\n\n  b"), "  remora a   short\n\n  b");
    }
}
