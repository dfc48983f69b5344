//! `remora pages DIR`: manual pages and completions, as packages have them.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::{Shell, generate_to};

use crate::Failure;
use crate::args::Args;
use crate::examples::fitting;
use crate::output::cannot_write;

/// Writes `remora.1` and a page for each command, and completions for bash, fish and zsh.
pub fn run(directory: &Path) -> Result<(), Failure> {
    let failed = |e| cannot_write(directory, &e);
    std::fs::create_dir_all(directory).map_err(failed)?;
    let mut command = fitting(Args::command());
    clap_mangen::generate_to(command.clone(), directory).map_err(failed)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        generate_to(shell, &mut command, "remora", directory).map_err(failed)?;
    }
    Ok(())
}
