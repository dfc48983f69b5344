//! The kernels of a place: the built-in ones, and modules that come and go while calls run.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use remora_kernel::{Builtins, Call, HostMemory, Kernel, Limits, Memory, Runner, Status};
use remora_memory::Registry;

use crate::limits::{Isolation, ModuleError, ModuleLimits};
use crate::module::{Engine, Module, Spare};

/// Op-codes from here on are for modules; lower ones are the built-in kernels'.
pub const FIRST_USER_OP: u64 = 0x100;
/// Op-codes that modules can have.
pub const USER_OPS: std::ops::Range<u64> = FIRST_USER_OP..FIRST_USER_OP + MAX_MODULES as u64;

/// One deployed module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeployedModule {
    /// Its op-code.
    pub op: u64,
    /// Its name.
    pub name: String,
    /// How often the name was deployed, this time included.
    pub version: u32,
    /// Bytes of the binary module.
    pub bytes: usize,
    /// What a call may use up.
    pub limits: ModuleLimits,
    /// What becomes of its memory between calls.
    pub isolation: Isolation,
}

/// Why a module was not deployed or removed.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// The bytes are no kernel.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// As many are deployed as there may be.
    #[error("{0} kernels are deployed, and there may be no more: remove one")]
    Full(usize),
    /// Not a name.
    #[error("a kernel's name has 1 to 63 letters, digits, '-', '_' and '.', unlike {0:?}")]
    Name(String),
    /// There is no such kernel.
    #[error("no kernel is named {0:?}")]
    Unknown(String),
}

/// Modules that may be deployed at once.
const MAX_MODULES: usize = 64;
/// Bytes of a module's name, at most.
pub const MAX_NAME: usize = 63;

/// The kernels of a place; at first the built-in ones alone. Clones are the same set.
///
/// A module is replaced between two calls: calls that run go on with the old one, and no call finds neither.
#[derive(Clone, Default)]
pub struct KernelSet(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// By op-code.
    modules: RwLock<BTreeMap<u64, (DeployedModule, Arc<Module>)>>,
    /// Counts the changes of `modules`.
    version: AtomicU64,
}

impl KernelSet {
    /// Compiles a module and makes it what its name stands for; the op-code of a name stays.
    pub fn deploy(
        &self,
        name: &str,
        bytes: &[u8],
        limits: ModuleLimits,
        isolation: Isolation,
    ) -> Result<DeployedModule, SetError> {
        self.deploy_at(None, name, bytes, limits, isolation)
    }

    /// Like [`deploy`](Self::deploy); a name that is new gets the op-code `wish`, if that is free.
    pub fn deploy_at(
        &self,
        wish: Option<u64>,
        name: &str,
        bytes: &[u8],
        limits: ModuleLimits,
        isolation: Isolation,
    ) -> Result<DeployedModule, SetError> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(good) {
            return Err(SetError::Name(name.chars().take(80).collect()));
        }
        // Compiled before the lock is taken: calls go on meanwhile.
        let module = Arc::new(Module::new(&Engine::shared()?, bytes, limits, isolation)?);
        let mut modules = self.0.modules.write().unwrap_or_else(PoisonError::into_inner);
        let old = modules.values().find(|(entry, _)| entry.name == name).map(|(entry, _)| (entry.op, entry.version));
        let (op, version) = match old {
            Some((op, version)) => (op, version + 1),
            None if modules.len() == MAX_MODULES => return Err(SetError::Full(MAX_MODULES)),
            None => {
                let wish = wish.filter(|op| USER_OPS.contains(op));
                let free = wish.into_iter().chain(USER_OPS).find(|op| !modules.contains_key(op));
                (free.unwrap_or(FIRST_USER_OP), 1)
            }
        };
        let entry = DeployedModule { op, name: name.into(), version, bytes: bytes.len(), limits, isolation };
        modules.insert(op, (entry.clone(), module));
        self.0.version.fetch_add(1, Ordering::Release);
        Ok(entry)
    }

    /// Takes a module away; returns its op-code. Calls that run go on.
    pub fn remove(&self, name: &str) -> Result<u64, SetError> {
        let mut modules = self.0.modules.write().unwrap_or_else(PoisonError::into_inner);
        let op = modules.iter().find(|(_, (entry, _))| entry.name == name).map(|(&op, _)| op);
        let op = op.ok_or_else(|| SetError::Unknown(name.chars().take(80).collect()))?;
        modules.remove(&op);
        self.0.version.fetch_add(1, Ordering::Release);
        Ok(op)
    }

    /// What is deployed, by op-code.
    pub fn list(&self) -> Vec<DeployedModule> {
        let modules = self.0.modules.read().unwrap_or_else(PoisonError::into_inner);
        modules.values().map(|(entry, _)| entry.clone()).collect()
    }

    fn find(&self, op: u64) -> Option<Arc<Module>> {
        let modules = self.0.modules.read().unwrap_or_else(PoisonError::into_inner);
        modules.get(&op).map(|(_, module)| module.clone())
    }
}

impl Kernel for KernelSet {
    async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status {
        if call.op < FIRST_USER_OP {
            return Builtins.run(memory, call).await;
        }
        match self.find(call.op) {
            Some(module) => run(&module, None, memory, call).await,
            None => Status::UnknownOp,
        }
    }
}

#[inline]
async fn run<M: Memory>(module: &Module, place: Option<&Spare>, memory: &M, call: &mut Call) -> Status {
    match module.run_now(place, memory, call) {
        Some(status) => status,
        // On the heap: calls that wait are few, and their futures would make those of all others large.
        None => Box::pin(module.run_waiting(memory, call)).await,
    }
}

/// What one place knows of the set's modules, so that a call takes no lock.
struct View {
    set: KernelSet,
    version: u64,
    /// By op-code, from the first.
    modules: Vec<Option<Local>>,
}

/// A module at a place.
struct Here {
    module: Arc<Module>,
    spare: Spare,
}

/// A handle to a place's module, counted without atomics: a call takes one, and those take longer than much of the
/// rest.
#[derive(Clone)]
struct Local(Rc<Here>);

// SAFETY: all handles to one module are in the runner whose `View` made the first, which moves between threads as a
// whole and which one thread uses at a time.
unsafe impl Send for Local {}

impl View {
    fn new(set: KernelSet) -> Self {
        let mut view = View { set, version: 0, modules: Vec::new() };
        view.refresh();
        view
    }

    #[inline]
    fn find(&mut self, op: u64) -> Option<Local> {
        if self.set.0.version.load(Ordering::Acquire) != self.version {
            self.refresh();
        }
        self.modules.get(op.checked_sub(FIRST_USER_OP)? as usize)?.clone()
    }

    #[cold]
    fn refresh(&mut self) {
        let modules = self.set.0.modules.read().unwrap_or_else(PoisonError::into_inner);
        self.version = self.set.0.version.load(Ordering::Acquire);
        let here = |module: &Arc<Module>| Local(Rc::new(Here { module: module.clone(), spare: Spare::default() }));
        self.modules = USER_OPS.map(|op| modules.get(&op).map(|(_, module)| here(module))).collect();
    }
}

/// A runner of the set's kernels over registered memory, each call within its own protection domain, as
/// [`remora_kernel::host_runner`] is one of the built-in kernels.
pub fn host_runner(
    kernels: KernelSet,
    registry: Arc<Registry>,
    prefetching: bool,
    capacity: usize,
    limits: Limits,
) -> Box<dyn Runner + Send> {
    let mut view = View::new(kernels);
    let task = move |mut call: Call, memory: Option<HostMemory>| {
        let module = (call.op >= FIRST_USER_OP).then(|| view.find(call.op));
        async move {
            let status = match (&memory, &module) {
                (None, _) => Status::AccessDenied,
                (Some(memory), None) => Builtins.run(memory, &mut call).await,
                (Some(memory), Some(Some(Local(here)))) => {
                    run(&here.module, Some(&here.spare), memory, &mut call).await
                }
                (Some(_), Some(None)) => Status::UnknownOp,
            };
            (call, status, memory)
        }
    };
    remora_kernel::host_runner_of(task, registry, prefetching, capacity, limits)
}
