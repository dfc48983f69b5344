//! Programs of the system.

use std::path::PathBuf;

/// Where a program is installed, if it is.
pub fn installed(program: &str) -> Option<PathBuf> {
    // What Debian's packages install for daemons is not on every user's path.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories =
        std::env::split_paths(&path).chain(["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from));
    directories.map(|directory| directory.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_or_is_not() {
        assert!(installed("sh").is_some_and(|path| path.is_file()));
        assert!(installed("a-program-that-nobody-has").is_none());
    }
}
