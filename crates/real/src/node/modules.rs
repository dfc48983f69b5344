//! A node's modules: compiled off the host thread, kept in a directory if asked.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use remora_memory::{Access, Pd, Registry};
use remora_wasm::{DeployedModule, KernelSet};

use super::kept;
use crate::module_calls::DeployParams;
use crate::sys::start_thread;

/// Largest binary module, in bytes.
pub const MAX_MODULE: u32 = 4 << 20;
/// Modules that are compiled at once, for as many clients.
const COMPILING: usize = 4;

/// What the host thread knows of modules.
pub(crate) struct Modules<T> {
    kernels: KernelSet,
    /// Where modules are kept over a restart.
    dir: Option<PathBuf>,
    /// Taken by who changes it.
    turn: Arc<Mutex<()>>,
    /// The modules that are being compiled, and for whom.
    compiling: Vec<(T, Receiver<Result<DeployedModule, String>>)>,
}

impl<T> Modules<T> {
    pub fn new(kernels: KernelSet, dir: Option<PathBuf>) -> Self {
        Modules { kernels, dir, turn: Arc::default(), compiling: Vec::new() }
    }

    /// The kernels.
    pub fn kernels(&self) -> &KernelSet {
        &self.kernels
    }

    /// Starts to compile a module that was [fetched](fetch). Its outcome comes from [`poll`](Self::poll) with `client`; an
    /// error, and with it `client`, comes at once. `same` says whether two are the same client: each has one compiled at a
    /// time.
    pub fn deploy(
        &mut self,
        deploy: DeployParams,
        bytes: Vec<u8>,
        client: T,
        same: impl Fn(&T, &T) -> bool,
    ) -> Result<(), (T, String)> {
        if self.compiling.iter().any(|(other, _)| same(other, &client)) {
            return Err((client, "another module of this client is being compiled: try again".into()));
        }
        if self.compiling.len() == COMPILING {
            return Err((client, "modules of other clients are being compiled: try again".into()));
        }
        let dir = match (deploy.keep, &self.dir) {
            (false, _) => None,
            (true, Some(dir)) => Some(dir.clone()),
            (true, None) => {
                return Err((client, "the node keeps no kernels: start it with --kernels DIR".into()));
            }
        };
        let (kernels, turn, (send, receive)) = (self.kernels.clone(), self.turn.clone(), sync_channel(1));
        let compile = move || {
            // What cannot be kept is not to take the place of what runs.
            let room = dir.as_ref().map_or(Ok(()), |dir| kept::prepare(dir).map_err(|e| cannot_keep(dir, &e)));
            let deployed = || kernels.deploy(&deploy.name, &bytes, deploy.limits, deploy.isolation);
            let kept = room.and_then(|()| deployed().map_err(|e| e.to_string())).and_then(|entry| {
                if let Some(dir) = dir {
                    let is_newest = || kernels.list().contains(&entry);
                    kept::keep(&dir, &entry, &bytes, &turn, is_newest).map_err(|e| cannot_keep(&dir, &e))?;
                }
                Ok(entry)
            });
            // The node may have stopped meanwhile.
            let _ = send.send(kept);
        };
        match start_thread("remora-compile", compile) {
            Ok(_) => {
                self.compiling.push((client, receive));
                Ok(())
            }
            Err(e) => Err((client, format!("starting a thread: {e}"))),
        }
    }

    /// The outcome of a module that was being compiled, once it is there.
    pub fn poll(&mut self) -> Option<(T, Result<DeployedModule, String>)> {
        for index in 0..self.compiling.len() {
            let outcome = match self.compiling[index].1.try_recv() {
                Ok(outcome) => outcome,
                Err(TryRecvError::Empty) => continue,
                Err(TryRecvError::Disconnected) => Err("the compiler failed".into()),
            };
            return Some((self.compiling.swap_remove(index).0, outcome));
        }
        None
    }

    /// Whether a module is being compiled.
    pub fn is_busy(&self) -> bool {
        !self.compiling.is_empty()
    }

    /// Removes a module, also from the directory. Returns its op-code.
    pub fn remove(&mut self, name: &str) -> Result<u64, String> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let op = self.kernels.remove(name).map_err(|e| e.to_string())?;
        if let Some(dir) = &self.dir {
            kept::forget(dir, name)?;
        }
        Ok(op)
    }
}

fn cannot_keep(dir: &Path, why: &io::Error) -> String {
    format!("keeping it in {}: {why}", dir.display())
}

/// The module in a client's region.
pub(super) fn fetch(registry: &Registry, pd: Pd, deploy: &DeployParams) -> Result<Vec<u8>, String> {
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
