//! Instances of one module, kept between calls.

use std::sync::{Mutex, MutexGuard, PoisonError};

use wasmtime::{InstancePre, Linker};

use crate::instance::{Place, Running, State};
use crate::limits::{Isolation, ModuleError, ModuleLimits};
use crate::module::Engine;

/// Spare instances of a module: calls that run at once beyond these make and drop their own. With as many modules as
/// there may be, so many spare ones leave room for all calls that a node runs at once: see `INSTANCES`.
pub(crate) const SPARES: usize = 6;
/// Bytes of memory that a spare instance may have.
const SPARE_MEMORY: usize = 4 << 20;

/// Spare instances of one module, and how to make more.
pub(crate) struct Pool<P: 'static> {
    engine: Engine,
    pre: InstancePre<State<P>>,
    limits: ModuleLimits,
    keep: bool,
    /// Fuel after which a call gives way; `None` if it never does.
    slice: Option<u64>,
    #[allow(clippy::vec_box, reason = "boxes go back and forth between here and the calls")]
    spares: Mutex<Vec<Box<Running<P>>>>,
}

impl<P: Default + Send + Place> Pool<P> {
    /// `define` defines the imports.
    pub fn new(
        engine: &Engine,
        module: &wasmtime::Module,
        limits: ModuleLimits,
        isolation: Isolation,
        slice: Option<u64>,
        define: impl FnOnce(&mut Linker<State<P>>) -> wasmtime::Result<()>,
    ) -> Result<Self, ModuleError> {
        let mut linker = Linker::new(engine.get());
        let pre = define(&mut linker)
            .and_then(|()| linker.instantiate_pre(module))
            .map_err(|error| ModuleError::Runtime(format!("{error:#}")))?;
        let keep = isolation == Isolation::Reused;
        Ok(Pool { engine: engine.clone(), pre, limits, keep, slice, spares: Mutex::default() })
    }

    /// What a call may use up.
    pub fn limits(&self) -> &ModuleLimits {
        &self.limits
    }

    /// A spare instance.
    pub fn spare(&self) -> Option<Box<Running<P>>> {
        self.spares().pop()
    }

    /// A new instance. It waits only where there is a slice.
    pub async fn make(&self) -> Result<Box<Running<P>>, ModuleError> {
        let instance = Running::new(&self.engine, self.limits, self.slice, async |store| match self.slice {
            Some(_) => self.pre.instantiate_async(store).await,
            None => self.pre.instantiate(store),
        });
        instance.await.map(Box::new)
    }

    /// Whether an instance may be called again: not if each call has its own, or it has grown large.
    #[inline]
    pub fn keeps(&self, instance: &Running<P>) -> bool {
        self.keep && instance.store.data().memory_used() <= SPARE_MEMORY
    }

    /// Takes an instance back after a call, if it may be called again and there are not enough.
    pub fn put_back(&self, instance: Box<Running<P>>) {
        let mut spares = self.spares();
        if self.keeps(&instance) && spares.len() < SPARES {
            spares.push(instance);
        }
    }

    #[allow(clippy::vec_box, reason = "see the field")]
    fn spares(&self) -> MutexGuard<'_, Vec<Box<Running<P>>>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
