//! Modules that outlive their node: one file each, a WebAssembly module whose last section says how it is deployed.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use remora_wasm::{DeployedModule, Isolation, KernelSet, ModuleLimits};
use tempfile::NamedTempFile;

use crate::module_calls::{LIMITS_LEN, decode_limits, encode_limits};

/// What begins the last section: a custom section (0) with its length and that of its name.
const SECTION: &[u8; 16] = b"\0\x33\x0dremora.deploy";
/// Bytes of the section: what begins it, the op-code, the limits.
const SECTION_LEN: usize = SECTION.len() + 8 + LIMITS_LEN;

fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.wasm"))
}

/// Finds out whether modules can be kept.
pub(super) fn prepare(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    NamedTempFile::new_in(dir).map(drop)
}

/// Keeps a module, as a whole or not at all. A name has no character that means something in a path. Of one that is no longer
/// the newest of its name nothing is kept: while it was made, another may have come, or it may have been removed. `turn` is
/// taken by whoever changes the directory.
pub(super) fn keep(
    dir: &Path,
    entry: &DeployedModule,
    module: &[u8],
    turn: &Mutex<()>,
    is_newest: impl FnOnce() -> bool,
) -> io::Result<()> {
    let mut new = NamedTempFile::new_in(dir)?;
    new.write_all(&with_section(entry, module))?;
    new.as_file().sync_all()?;
    {
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_newest() {
            return Ok(());
        }
        new.persist(path(dir, &entry.name))?;
    }
    std::fs::File::open(dir)?.sync_all()
}

/// Keeps a module no longer.
pub(super) fn forget(dir: &Path, name: &str) -> Result<(), String> {
    let path = path(dir, name);
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(format!("removed, but it will be back after a restart: {}: {e}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Deploys what was kept, and modules that somebody put there. Returns a line for each that was left out, and why: one
/// bad file keeps no node from starting.
pub(crate) fn restore(kernels: &KernelSet, dir: &Path) -> Vec<String> {
    let listing = match std::fs::read_dir(dir) {
        Ok(listing) => listing,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(e) => return vec![format!("{}: {e}", dir.display())],
    };
    let mut files: Vec<PathBuf> = listing.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "wasm"));
    files.sort();
    let deploy = |file: &PathBuf| {
        let bytes = read(file)?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let (module, (op, limits, isolation)) = parts(&bytes);
        kernels.deploy_at(op, &name, module, limits, isolation).map(drop).map_err(|e| e.to_string())
    };
    files.iter().filter_map(|file| deploy(file).err().map(|why| format!("{}: {why}", file.display()))).collect()
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let most = (super::modules::MAX_MODULE as usize + SECTION_LEN) as u64;
    match std::fs::metadata(file) {
        // A pipe would be waited for, and a device has no end.
        Ok(found) if !found.is_file() => Err("it is no file".into()),
        Ok(found) if found.len() > most => Err(format!("{} bytes: at most {most}", found.len())),
        Ok(_) => std::fs::read(file).map_err(|e| e.to_string()),
        Err(e) => Err(e.to_string()),
    }
}

fn with_section(entry: &DeployedModule, module: &[u8]) -> Vec<u8> {
    let mut bytes = [module, SECTION, &entry.op.to_le_bytes()].concat();
    encode_limits(&mut bytes, &entry.limits, entry.isolation);
    bytes
}

/// A module without the last section, and what that says; the defaults if there is none.
fn parts(bytes: &[u8]) -> (&[u8], (Option<u64>, ModuleLimits, Isolation)) {
    let section = bytes.len().checked_sub(SECTION_LEN).and_then(|at| {
        let (module, section) = bytes.split_at(at);
        let (op, limits) = section.strip_prefix(SECTION)?.split_first_chunk()?;
        let (limits, isolation) = decode_limits(limits)?;
        Some((module, (Some(u64::from_le_bytes(*op)), limits, isolation)))
    });
    section.unwrap_or((bytes, (None, ModuleLimits::default(), Isolation::Reused)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &[u8] = b"\0asm\x01\0\0\0";

    fn entry(name: &str) -> DeployedModule {
        let limits = ModuleLimits { fuel: 77, ..ModuleLimits::default() };
        DeployedModule {
            op: 0x105,
            name: name.into(),
            version: 1,
            bytes: EMPTY.len(),
            limits,
            isolation: Isolation::Fresh,
        }
    }

    #[test]
    fn what_is_kept_is_a_module_and_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let entry = entry("a.b");
        prepare(&dir.path().join("deeper")).unwrap();
        prepare(dir.path()).unwrap();
        keep(dir.path(), &entry, EMPTY, &Mutex::default(), || true).unwrap();
        assert!(prepare(&dir.path().join("a.b.wasm")).is_err(), "no directory");
        let bytes = std::fs::read(dir.path().join("a.b.wasm")).unwrap();
        assert_eq!(usize::from(SECTION[1]), bytes.len() - EMPTY.len() - 2, "the section's length");
        assert_eq!(usize::from(SECTION[2]), SECTION.len() - 3, "its name's");
        assert_eq!(parts(&bytes), (EMPTY, (Some(0x105), entry.limits, Isolation::Fresh)));
        assert_eq!(parts(EMPTY), (EMPTY, (None, ModuleLimits::default(), Isolation::Reused)));
        forget(dir.path(), "a.b").unwrap();
        forget(dir.path(), "a.b").unwrap();
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["deeper"]);
    }

    #[test]
    fn what_is_no_longer_the_newest_is_not_kept() {
        let (dir, turn) = (tempfile::tempdir().unwrap(), Mutex::default());
        let of = |fuel| DeployedModule { limits: ModuleLimits { fuel, ..ModuleLimits::default() }, ..entry("k") };
        keep(dir.path(), &of(2), EMPTY, &turn, || true).unwrap();
        keep(dir.path(), &of(1), EMPTY, &turn, || false).unwrap();
        let bytes = std::fs::read(dir.path().join("k.wasm")).unwrap();
        assert_eq!(parts(&bytes).1.1.fuel, 2, "the one that came later stays");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "and nothing is left of the other");
    }

    #[test]
    fn bad_files_are_left_out_and_named() {
        let dir = tempfile::tempdir().unwrap();
        keep(dir.path(), &entry("empty"), EMPTY, &Mutex::default(), || true).unwrap();
        std::fs::write(dir.path().join("half.new"), b"written when the power went").unwrap();
        std::fs::write(dir.path().join("text.wasm"), b"no module").unwrap();
        std::fs::create_dir(dir.path().join("folder.wasm")).unwrap();
        let pipe = dir.path().join("pipe.wasm");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let left_out = restore(&KernelSet::default(), dir.path());
        assert_eq!(left_out.len(), 4, "{left_out:?}");
        for (line, name) in left_out.iter().zip(["empty.wasm", "folder.wasm", "pipe.wasm", "text.wasm"]) {
            assert!(line.contains(name), "{line}");
        }
        assert!(restore(&KernelSet::default(), &dir.path().join("none")).is_empty());
    }
}
