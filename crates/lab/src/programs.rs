//! Programs of the system.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where a program is installed, if it is.
pub fn installed(program: &str) -> Option<PathBuf> {
    // What Debian's packages install for daemons is not on every user's path.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories =
        std::env::split_paths(&path).chain(["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from));
    directories.map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// What a shell does that becomes a program: beside it another one stays, which waits for the end of its input.
const BOUND: &str = r#"exec 3<&0; (read -r end <&3; kill -KILL $$) >/dev/null 2>&1 & exec "$0" "$@" </dev/null 3<&-"#;

/// A command for a program that is killed when this process is gone, whatever ends that: its input, which the program does not get, is
/// to stay this process's. Ctrl-C is for this process alone, which ends it in order.
pub fn bound(program: &Path) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", BOUND]).arg(program).stdin(Stdio::piped()).process_group(0);
    command
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_bound_program_is_what_it_was_and_ends_with_its_input() {
        let shell = installed("sh").expect("a shell is everywhere");
        let mut command = bound(&shell);
        command.args(["-c", "echo \"$$ $1\"; cat; echo over; exec sleep 600", "sh", "a b"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut said = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
        assert_eq!(said.next(), Some(format!("{} a b", child.id())), "it is the child itself");
        assert_eq!(said.next().as_deref(), Some("over"), "it has no input");
        assert!(matches!(child.try_wait(), Ok(None)));
        drop(child.stdin.take());
        assert_eq!(child.wait().expect("its end").signal(), Some(9));
        assert_eq!(said.next(), None, "and nobody has its output any more");
    }

    #[test]
    fn a_program_is_found_or_is_not() {
        assert!(installed("sh").is_some_and(|path| path.is_file()));
        assert!(installed("a-program-that-nobody-has").is_none());
    }
}
