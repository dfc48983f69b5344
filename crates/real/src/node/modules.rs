//! A node's modules: compiled off the host thread, kept in a directory if asked, found again when the node starts.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use remora_memory::{Access, Pd, Registry};
use remora_wasm::{DeployedModule, Isolation, KernelSet, ModuleLimits};

use crate::Error;
use crate::module_calls::DeployParams;

/// Largest binary module, in bytes.
pub const MAX_MODULE: u32 = 4 << 20;

/// What the host thread knows of modules.
pub(crate) struct Modules<T> {
    kernels: KernelSet,
    /// Where modules are kept over a restart.
    dir: Option<PathBuf>,
    /// The module that is being compiled, and for whom.
    compiling: Option<(T, Receiver<Result<DeployedModule, String>>)>,
}

impl<T> Modules<T> {
    pub fn new(kernels: KernelSet, dir: Option<PathBuf>) -> Self {
        Modules { kernels, dir, compiling: None }
    }

    /// The kernels.
    pub fn kernels(&self) -> &KernelSet {
        &self.kernels
    }

    /// Starts to compile a module that lies in a client's region. Its outcome comes from [`poll`](Self::poll) with
    /// `client`; an error, and with it `client`, comes at once.
    pub fn deploy(&mut self, registry: &Registry, pd: Pd, deploy: DeployParams, client: T) -> Result<(), (T, String)> {
        if self.compiling.is_some() {
            return Err((client, "another module is being compiled: try again".into()));
        }
        let bytes = match fetch(registry, pd, &deploy) {
            Ok(bytes) => bytes,
            Err(why) => return Err((client, why)),
        };
        let dir = match (deploy.keep, &self.dir) {
            (false, _) => None,
            (true, Some(dir)) => Some(dir.clone()),
            (true, None) => {
                return Err((client, "the node keeps no kernels: start it with --kernels DIR".into()));
            }
        };
        let (kernels, (send, receive)) = (self.kernels.clone(), sync_channel(1));
        let compile = move || {
            let entry = kernels.deploy(&deploy.name, &bytes, deploy.limits, deploy.isolation);
            let kept = entry.map_err(|e| e.to_string()).and_then(|entry| {
                if let Some(dir) = dir {
                    keep(&dir, &entry, &bytes).map_err(|e| format!("keeping it in {}: {e}", dir.display()))?;
                }
                Ok(entry)
            });
            // The node may have stopped meanwhile.
            let _ = send.send(kept);
        };
        match std::thread::Builder::new().name("remora-compile".into()).spawn(compile) {
            Ok(_) => {
                self.compiling = Some((client, receive));
                Ok(())
            }
            Err(e) => Err((client, format!("starting a thread: {e}"))),
        }
    }

    /// The outcome of the module that was being compiled, once it is there.
    pub fn poll(&mut self) -> Option<(T, Result<DeployedModule, String>)> {
        let outcome = match self.compiling.as_ref()?.1.try_recv() {
            Ok(outcome) => outcome,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err("the compiler failed".into()),
        };
        self.compiling.take().map(|(client, _)| (client, outcome))
    }

    /// Whether a module is being compiled.
    pub fn is_busy(&self) -> bool {
        self.compiling.is_some()
    }

    /// Removes a module, also from the directory. Returns its op-code.
    pub fn remove(&mut self, name: &str) -> Result<u64, String> {
        let op = self.kernels.remove(name).map_err(|e| e.to_string())?;
        if let Some(dir) = &self.dir {
            for path in [module_path(dir, name), limits_path(dir, name)] {
                match std::fs::remove_file(&path) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                        return Err(format!("removed, but it will be back after a restart: {}: {e}", path.display()));
                    }
                    _ => {}
                }
            }
        }
        Ok(op)
    }
}

fn fetch(registry: &Registry, pd: Pd, deploy: &DeployParams) -> Result<Vec<u8>, String> {
    if deploy.len > MAX_MODULE {
        return Err(format!("a module of {} bytes: at most {MAX_MODULE}", deploy.len));
    }
    let region = registry.lookup(deploy.key).ok_or("no region has that key")?;
    let mut bytes = vec![0; deploy.len as usize];
    region
        .check(pd, deploy.va, deploy.len.into(), Access::REMOTE_READ)
        .and_then(|()| region.read(deploy.va, &mut bytes))
        .map_err(|e| e.to_string())?;
    Ok(bytes)
}

fn module_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.wasm"))
}

fn limits_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.limits"))
}

/// Writes the module and then, as a whole or not at all, what is known of it. A name has no character that means
/// something in a path.
fn keep(dir: &Path, entry: &DeployedModule, bytes: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    for (path, contents) in
        [(module_path(dir, &entry.name), bytes), (limits_path(dir, &entry.name), limits_text(entry).as_bytes())]
    {
        let new = path.with_extension("new");
        std::fs::write(&new, contents)?;
        std::fs::File::open(&new)?.sync_all()?;
        std::fs::rename(&new, &path)?;
    }
    std::fs::File::open(dir)?.sync_all()
}

fn limits_text(entry: &DeployedModule) -> String {
    let ModuleLimits { fuel, memory, access } = entry.limits;
    let fresh = entry.isolation == Isolation::Fresh;
    format!(
        "op {}\nfuel {fuel}\nmemory {memory}\nsteps {}\nbytes {}\nfresh {}\n",
        entry.op,
        access.steps,
        access.bytes,
        u8::from(fresh)
    )
}

/// Deploys what an earlier run of the node kept.
pub(crate) fn restore(kernels: &KernelSet, dir: &Path) -> Result<Vec<DeployedModule>, Error> {
    let fail = |path: &Path, why: String| Error::Argument(format!("{}: {why}", path.display()));
    let listing = match std::fs::read_dir(dir) {
        Ok(listing) => listing,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(fail(dir, e.to_string())),
    };
    let mut names: Vec<PathBuf> = listing.filter_map(|entry| Some(entry.ok()?.path())).collect();
    names.retain(|path| path.extension().is_some_and(|extension| extension == "limits"));
    names.sort();
    let mut entries = Vec::new();
    for path in names {
        let text = std::fs::read_to_string(&path).map_err(|e| fail(&path, e.to_string()))?;
        let (op, limits, isolation) =
            parse_limits(&text).ok_or_else(|| fail(&path, "not written by a node: remove it".into()))?;
        let module = path.with_extension("wasm");
        let bytes = std::fs::read(&module).map_err(|e| fail(&module, e.to_string()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let entry = kernels.deploy_at(Some(op), &name, &bytes, limits, isolation);
        entries.push(entry.map_err(|e| fail(&module, e.to_string()))?);
    }
    Ok(entries)
}

fn parse_limits(text: &str) -> Option<(u64, ModuleLimits, Isolation)> {
    let number =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok());
    let mut limits = ModuleLimits { fuel: number("fuel")?, ..ModuleLimits::default() };
    limits.memory = usize::try_from(number("memory")?).ok()?;
    limits.access.steps = u32::try_from(number("steps")?).ok()?;
    limits.access.bytes = number("bytes")?;
    let isolation = if number("fresh")? == 0 { Isolation::Reused } else { Isolation::Fresh };
    Some((number("op")?, limits, isolation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let wasm = b"\0asm\x01\0\0\0";
        let entry = DeployedModule {
            op: 0x105,
            name: "a.b".into(),
            version: 1,
            bytes: wasm.len(),
            limits: ModuleLimits { fuel: 77, ..ModuleLimits::default() },
            isolation: Isolation::Fresh,
        };
        keep(dir.path(), &entry, wasm).unwrap();
        let text = std::fs::read_to_string(dir.path().join("a.b.limits")).unwrap();
        assert_eq!(parse_limits(&text), Some((0x105, entry.limits, Isolation::Fresh)));
        assert_eq!(std::fs::read(dir.path().join("a.b.wasm")).unwrap(), wasm);
        // An empty module is no kernel: the error names the file.
        let error = restore(&KernelSet::default(), dir.path()).unwrap_err().to_string();
        assert!(error.contains("a.b.wasm"), "{error}");
        assert!(restore(&KernelSet::default(), &dir.path().join("none")).unwrap().is_empty());
        assert_eq!(parse_limits("fuel 3\n"), None);
    }
}
