//! Libraries that programs are run with: where they lie for each C library, and how they get before it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::exec::program::CLibrary;

/// A library.
pub struct Library {
    /// What it is called in errors.
    what: &'static str,
    /// Its name as it is installed, and as it is built.
    names: [&'static str; 2],
    /// The command carries it, if it was built so.
    #[cfg_attr(not(feature = "library"), expect(dead_code, reason = "of commands that carry libraries"))]
    carried: bool,
}

/// Of `remora exec`.
pub const VERBS: Library = Library { what: "verbs", names: ["libibverbs.so.1", "libibverbs.so"], carried: true };
/// Of `remora rack exec`.
pub const SOCKETS: Library =
    Library { what: "sockets", names: ["libremora_sockets.so", "libremora_sockets.so"], carried: false };

impl Library {
    /// Where the one for programs of a C library lies; if that is not known they are taken for glibc's. It is beside this
    /// executable as cargo builds it, or installed in `../lib/remora`; that for musl in a directory of its own there.
    pub fn find(&self, of: Option<CLibrary>) -> Result<PathBuf, Failure> {
        let exe =
            env::current_exe().map_err(|e| Failure::Failed(format!("where this command lies is unknown: {e}")))?;
        let dir = exe.parent().unwrap_or(Path::new("/"));
        let is_musl = of == Some(CLibrary::Musl);
        let installed = dir.join("../lib/remora");
        let places = match is_musl {
            true => vec![installed.join("musl"), dir.join("musl")],
            false => vec![installed, dir.into(), dir.join("deps")],
        };
        let found = places.iter().flat_map(|place| self.names.map(|name| place.join(name))).find(|path| path.is_file());
        let found = found.and_then(|path| path.canonicalize().ok());
        #[cfg(feature = "library")]
        let found = match found {
            Some(path) => Some(path),
            None if self.carried && !is_musl => Some(unpacked()?),
            None => None,
        };
        let Some(path) = found else {
            if is_musl {
                let why = format!(
                    "the program's C library is musl, and there is no {} library for it in {}; `ci/musl` builds that of `remora exec`",
                    self.what,
                    dir.join("musl").display()
                );
                return Err(Failure::Failed(why));
            }
            let why = format!(
                "the {} library is neither beside {} nor in ../lib/remora: in a checkout build it with \
                 `cargo build --release`; `cargo install --path crates/cli --features library` installs a command that has it",
                self.what,
                exe.display()
            );
            return Err(Failure::Failed(why));
        };
        if path.as_os_str().as_bytes().iter().any(|byte| b" :;".contains(byte)) {
            let why =
                format!("the dynamic linker cannot load {}: its path has a blank, colon or semicolon", path.display());
            return Err(Failure::Failed(why));
        }
        Ok(path)
    }
}

/// The library that the command carries, as a file of this user's: programs load it from there.
#[cfg(feature = "library")]
fn unpacked() -> Result<PathBuf, Failure> {
    const LIBRARY: &[u8] = include_bytes!(env!("REMORA_LIBRARY"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    let dir = cache
        .ok_or_else(|| Failure::Failed("neither XDG_CACHE_HOME nor HOME says where to put the verbs library".into()))?;
    let dir = dir.join("remora");
    let path = dir.join(VERBS.names[0]);
    let failed = |e| crate::output::cannot_write(&path, &e);
    if std::fs::read(&path).is_ok_and(|there| there == LIBRARY) {
        return Ok(path);
    }
    // Whole or not at all, and never under the feet of a program that has the one of an older version.
    std::fs::create_dir_all(&dir).map_err(failed)?;
    let mut file = tempfile::NamedTempFile::new_in(&dir).map_err(failed)?;
    std::io::Write::write_all(&mut file, LIBRARY).map_err(failed)?;
    file.persist(&path).map_err(|e| failed(e.error))?;
    Ok(path)
}

/// `first`, and behind it what was there before.
pub fn list(first: &OsStr, rest: Option<OsString>) -> OsString {
    let mut list = first.to_owned();
    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_what_was_there() {
        assert_eq!(list(OsStr::new("a"), None), "a");
        assert_eq!(list(OsStr::new("a"), Some("b:c".into())), "a:b:c");
    }
}
