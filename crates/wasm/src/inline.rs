//! Calls that run to their end at once: the memory never makes them wait, and they are short.

use std::cell::Cell;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use remora_kernel::{Call, Fault, Immediate, Memory, Status};
use wasmtime::Caller;

use crate::abi::{self, IMPORT_MODULE};
use crate::instance::{self, Place, Running, State, enter};
use crate::limits::{Isolation, MAKE_FUEL, ModuleError, ModuleLimits};
use crate::module::Engine;
use crate::pool::Pool;

/// A module whose calls do not wait.
pub(crate) struct Inline(Pool<Remote>);

/// The instance that a place calls again and again: it runs one call at a time, and so takes no lock.
#[derive(Default)]
pub(crate) struct Spare(Cell<Option<Box<Running<Remote>>>>);

// SAFETY: it is a part of a runner, which one thread uses at a time. `Sync` only so that tasks may hold a reference.
unsafe impl Sync for Spare {}

/// The caller's memory, borrowed for a call: a lifetime that the store cannot name. Empty between calls.
#[derive(Default)]
struct Remote(Option<*const (dyn Immediate + 'static)>);

// SAFETY: the pointer is only there during a call, and a call stays on its thread.
unsafe impl Send for Remote {}

impl Place for Remote {}

impl Inline {
    pub fn new(
        engine: &Engine,
        module: &wasmtime::Module,
        limits: ModuleLimits,
        isolation: Isolation,
    ) -> Result<Self, ModuleError> {
        let pool = Pool::new(engine, module, limits, isolation, None, |linker| {
            linker.func_wrap(IMPORT_MODULE, "read", read)?;
            linker.func_wrap(IMPORT_MODULE, "write", write)?;
            linker.func_wrap(IMPORT_MODULE, "compare_swap", compare_swap)?;
            linker.func_wrap(IMPORT_MODULE, "fetch_add", fetch_add)?;
            instance::define(linker)
        });
        pool.map(Inline)
    }

    /// Makes an instance, to be used later.
    pub fn try_out(&self) -> Result<(), ModuleError> {
        self.0.put_back(self.make()?);
        Ok(())
    }

    /// Runs a call to its end, by the place's own instance if the caller is a place that has one.
    #[inline]
    pub fn run<M: Memory>(&self, place: Option<&Spare>, memory: &M, remote: &dyn Immediate, call: &mut Call) -> Status {
        let spare = place.and_then(|place| place.0.take());
        let Some(mut instance) = spare.or_else(|| self.another(memory)) else { return Status::Busy };
        let fuel = self.0.limits().fuel;
        if !instance.begin(call, fuel) {
            return Status::Trapped;
        }
        // SAFETY: only the lifetime changes. `lent` takes the pointer away before `remote` ends, however the call ends.
        let remote: *const (dyn Immediate + 'static) = unsafe { std::mem::transmute(std::ptr::from_ref(remote)) };
        instance.store.data_mut().place = Remote(Some(remote));
        let lent = Lent(&mut instance);
        let len = lent.0.params_len();
        let result = lent.0.run.call(&mut lent.0.store, len);
        drop(lent);
        memory.spend(instance.used(fuel));
        let (status, again) = instance.end(call, result);
        match place {
            Some(place) if again && self.0.keeps(&instance) => place.0.set(Some(instance)),
            None if again => self.0.put_back(instance),
            _ => {}
        }
        status
    }

    #[cold]
    fn another<M: Memory>(&self, memory: &M) -> Option<Box<Running<Remote>>> {
        self.0.spare().or_else(|| {
            memory.spend(MAKE_FUEL);
            let instance = self.make().ok()?;
            // Of a start function.
            memory.spend(instance.used(self.0.limits().fuel));
            Some(instance)
        })
    }

    fn make(&self) -> Result<Box<Running<Remote>>, ModuleError> {
        match pin!(self.0.make()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(instance) => instance,
            Poll::Pending => Err(ModuleError::Runtime("an instance that cannot wait did".into())),
        }
    }
}

/// An instance that holds a borrowed memory: gives it back when dropped.
struct Lent<'a>(&'a mut Running<Remote>);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.store.data_mut().place = Remote(None);
    }
}

impl State<Remote> {
    #[inline]
    fn remote(&self) -> Result<&dyn Immediate, Fault> {
        // SAFETY: the pointer is there during a call only, while what it points to is borrowed.
        self.place.0.map(|remote| unsafe { &*remote }).ok_or(Fault::Lost)
    }
}

fn read(mut caller: Caller<'_, State<Remote>>, key: i32, va: i64, ptr: i32, len: i32) -> wasmtime::Result<i32> {
    let (bytes, state) = enter(&mut caller, ptr, len)?;
    Ok(outcome(state.remote().and_then(|remote| remote.read_now(key as u32, va as u64, bytes))))
}

fn write(mut caller: Caller<'_, State<Remote>>, key: i32, va: i64, ptr: i32, len: i32) -> wasmtime::Result<i32> {
    let (bytes, state) = enter(&mut caller, ptr, len)?;
    Ok(outcome(state.remote().and_then(|remote| remote.write_now(key as u32, va as u64, bytes))))
}

fn compare_swap(
    mut caller: Caller<'_, State<Remote>>,
    key: i32,
    va: i64,
    expect: i64,
    new: i64,
    ptr: i32,
) -> wasmtime::Result<i32> {
    let (bytes, state) = enter(&mut caller, ptr, 8)?;
    let swap = |remote: &dyn Immediate| remote.compare_swap_now(key as u32, va as u64, expect as u64, new as u64);
    Ok(outcome(state.remote().and_then(swap).map(|was| bytes.copy_from_slice(&was.to_le_bytes()))))
}

fn fetch_add(mut caller: Caller<'_, State<Remote>>, key: i32, va: i64, n: i64, ptr: i32) -> wasmtime::Result<i32> {
    let (bytes, state) = enter(&mut caller, ptr, 8)?;
    let add = |remote: &dyn Immediate| remote.fetch_add_now(key as u32, va as u64, n as u64);
    Ok(outcome(state.remote().and_then(add).map(|was| bytes.copy_from_slice(&was.to_le_bytes()))))
}

#[inline]
fn outcome(result: Result<(), Fault>) -> i32 {
    result.map_or_else(abi::code, |()| 0)
}
