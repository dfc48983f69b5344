//! Instances of one module, kept between calls.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use wasmtime::{InstancePre, Linker};

use crate::abi;
use crate::instance::{Running, State, reply};
use crate::limits::{Error, Isolation, ModuleLimits};
use crate::module::Engine;

/// Spare instances of a module: calls that run at once beyond these make and drop their own. With as many modules as
/// there may be, so many spare ones leave room for all calls that a node runs at once: see `INSTANCES`.
pub(crate) const SPARES: usize = 8;
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
    /// A spare instance that is taken and put back without a lock, if there is one: a place that runs calls one after
    /// the other needs no more.
    first: AtomicPtr<Running<P>>,
    /// The other ones.
    #[allow(clippy::vec_box, reason = "boxes go back and forth between here and the place of the first")]
    more: Mutex<Vec<Box<Running<P>>>>,
}

impl<P> Drop for Pool<P> {
    fn drop(&mut self) {
        self.take_first();
    }
}

impl<P> Pool<P> {
    #[inline]
    fn take_first(&self) -> Option<Box<Running<P>>> {
        let first = self.first.swap(ptr::null_mut(), Ordering::Acquire);
        // SAFETY: `put_back` made the pointer from a box, and whoever swaps it out is the only one to have it.
        (!first.is_null()).then(|| unsafe { Box::from_raw(first) })
    }
}

impl<P: Default + Send> Pool<P> {
    /// `define` defines the imports that depend on the place.
    pub fn new(
        engine: &Engine,
        module: &wasmtime::Module,
        limits: ModuleLimits,
        isolation: Isolation,
        slice: Option<u64>,
        define: impl FnOnce(&mut Linker<State<P>>) -> wasmtime::Result<()>,
    ) -> Result<Self, Error> {
        let mut linker = Linker::new(engine.get());
        let pre = define(&mut linker)
            .and_then(|()| linker.func_wrap(abi::IMPORT_MODULE, "reply", reply).map(drop))
            .and_then(|()| linker.instantiate_pre(module))
            .map_err(|error| Error::Runtime(format!("{error:#}")))?;
        let keep = isolation == Isolation::Reused;
        let (first, more) = (AtomicPtr::default(), Mutex::default());
        Ok(Pool { engine: engine.clone(), pre, limits, keep, slice, first, more })
    }

    /// What a call may use up.
    pub fn limits(&self) -> &ModuleLimits {
        &self.limits
    }

    /// A spare instance.
    #[inline]
    pub fn spare(&self) -> Option<Box<Running<P>>> {
        self.take_first().or_else(|| self.more().pop())
    }

    /// A new instance. It waits only where there is a slice.
    pub async fn make(&self) -> Result<Box<Running<P>>, Error> {
        let instance = Running::new(&self.engine, self.limits, self.slice, async |store| match self.slice {
            Some(_) => self.pre.instantiate_async(store).await,
            None => self.pre.instantiate(store),
        });
        instance.await.map(Box::new)
    }

    /// Takes an instance back after a call, unless each call has its own or there are enough.
    #[inline]
    pub fn put_back(&self, instance: Box<Running<P>>) {
        if !self.keep || instance.store.data().memory_used() > SPARE_MEMORY {
            return;
        }
        let instance = Box::into_raw(instance);
        if self.first.compare_exchange(ptr::null_mut(), instance, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: it was not put where others would find it.
            let instance = unsafe { Box::from_raw(instance) };
            let mut more = self.more();
            if more.len() < SPARES - 1 {
                more.push(instance);
            }
        }
    }

    #[cold]
    #[allow(clippy::vec_box, reason = "see the field")]
    fn more(&self) -> MutexGuard<'_, Vec<Box<Running<P>>>> {
        self.more.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
