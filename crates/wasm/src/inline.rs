//! Calls that run to their end at once: the memory never makes them wait, and they are short.

use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use remora_kernel::{Call, Fault, Immediate, Limits, Status};
use wasmtime::{Caller, InstancePre, Memory};

use crate::abi::{self, REPLY_TOO_LONG};
use crate::instance::{HasLimit, MemoryLimit, Running, ended, linker, slice};
use crate::limits::{Error, ModuleLimits};
use crate::module::Engine;

/// Instances of one module, and how to make more.
pub(crate) struct InlinePool {
    engine: Engine,
    pre: InstancePre<State>,
    limits: ModuleLimits,
    keep: bool,
    spare: Mutex<Vec<Running<State>>>,
}

/// What the module's imports work on during a call.
struct State {
    limit: MemoryLimit,
    memory: Option<Memory>,
    left: Limits,
    /// The caller's memory; null between calls.
    remote: Remote,
    /// The reply, lent by the call.
    reply: Vec<u8>,
    reply_limit: usize,
}

/// A borrowed memory whose lifetime the store cannot name.
struct Remote(Option<*const (dyn Immediate + 'static)>);

// SAFETY: the pointer is only there during a call, and a call stays on its thread.
unsafe impl Send for Remote {}

impl HasLimit for State {
    fn limit(&mut self) -> &mut MemoryLimit {
        &mut self.limit
    }

    fn set_memory(&mut self, memory: Memory) {
        self.memory = Some(memory);
    }
}

impl InlinePool {
    pub fn new(engine: &Engine, module: &wasmtime::Module, limits: ModuleLimits, keep: bool) -> Result<Self, Error> {
        let mut linker = linker(engine.get());
        let defined = (|| -> wasmtime::Result<()> {
            linker.func_wrap(abi::IMPORT_MODULE, "read", read)?;
            linker.func_wrap(abi::IMPORT_MODULE, "write", write)?;
            linker.func_wrap(abi::IMPORT_MODULE, "compare_swap", compare_swap)?;
            linker.func_wrap(abi::IMPORT_MODULE, "fetch_add", fetch_add)?;
            linker.func_wrap(abi::IMPORT_MODULE, "reply", reply)?;
            Ok(())
        })();
        let pre = defined.and_then(|()| linker.instantiate_pre(module));
        let pre = pre.map_err(|error| Error::Runtime(format!("{error:#}")))?;
        Ok(InlinePool { engine: engine.clone(), pre, limits, keep, spare: Mutex::default() })
    }

    /// Makes an instance, to be used later.
    pub fn try_out(&self) -> Result<(), Error> {
        let instance = self.make()?;
        self.put_back(instance);
        Ok(())
    }

    /// Runs a call to its end.
    pub fn run(&self, remote: &dyn Immediate, call: &mut Call) -> Status {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(mut instance) = spare.or_else(|| self.make().ok()) else { return Status::Busy };
        if !instance.begin(&call.params, self.limits.fuel) {
            return Status::Trapped;
        }
        // SAFETY: only the lifetime changes. `lent` takes the pointer away before `remote` ends, however the call ends.
        let remote: *const (dyn Immediate + 'static) = unsafe { std::mem::transmute(std::ptr::from_ref(remote)) };
        let state = instance.store.data_mut();
        state.remote = Remote(Some(remote));
        state.left = self.limits.access;
        (state.reply, state.reply_limit) = (std::mem::take(&mut call.reply), call.reply_limit as usize);
        let lent = Lent(&mut instance);
        let (status, again) = ended(lent.0.run.call(&mut lent.0.store, call.params.len() as i32));
        drop(lent);
        call.reply = std::mem::take(&mut instance.store.data_mut().reply);
        if again && self.keep {
            self.put_back(instance);
        }
        status
    }

    fn put_back(&self, instance: Running<State>) {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(instance);
    }

    fn make(&self) -> Result<Running<State>, Error> {
        let state = State {
            limit: MemoryLimit(self.limits.memory),
            memory: None,
            left: self.limits.access,
            remote: Remote(None),
            reply: Vec::new(),
            reply_limit: 0,
        };
        let make = Running::new(self.engine.get(), state, self.limits, None, async |store| self.pre.instantiate(store));
        match pin!(make).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(instance) => instance,
            Poll::Pending => Err(Error::Runtime("an instance that cannot wait did".into())),
        }
    }
}

/// An instance that holds a borrowed memory: gives it back when dropped.
struct Lent<'a>(&'a mut Running<State>);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.store.data_mut().remote = Remote(None);
    }
}

impl State {
    /// The caller's memory, after paying for an access.
    #[inline]
    fn pay(&mut self, bytes: usize) -> Result<&dyn Immediate, Fault> {
        self.left.steps = self.left.steps.checked_sub(1).ok_or(Fault::StepLimit)?;
        self.left.bytes = self.left.bytes.checked_sub(bytes as u64).ok_or(Fault::ByteLimit)?;
        // SAFETY: the pointer is there during a call only, while what it points to is borrowed.
        self.remote.0.map(|remote| unsafe { &*remote }).ok_or(Fault::Lost)
    }
}

fn read(mut caller: Caller<'_, State>, key: i32, va: i64, ptr: i32, len: i32) -> wasmtime::Result<i32> {
    let memory = caller.data().memory;
    let (bytes, state) = slice(&mut caller, memory, ptr, len)?;
    Ok(outcome(state.pay(bytes.len()).and_then(|remote| remote.read_now(key as u32, va as u64, bytes))))
}

fn write(mut caller: Caller<'_, State>, key: i32, va: i64, ptr: i32, len: i32) -> wasmtime::Result<i32> {
    let memory = caller.data().memory;
    let (bytes, state) = slice(&mut caller, memory, ptr, len)?;
    Ok(outcome(state.pay(bytes.len()).and_then(|remote| remote.write_now(key as u32, va as u64, bytes))))
}

fn compare_swap(
    mut caller: Caller<'_, State>,
    key: i32,
    va: i64,
    expect: i64,
    new: i64,
    ptr: i32,
) -> wasmtime::Result<i32> {
    let memory = caller.data().memory;
    let (bytes, state) = slice(&mut caller, memory, ptr, 8)?;
    let swap = |remote: &dyn Immediate| remote.compare_swap_now(key as u32, va as u64, expect as u64, new as u64);
    Ok(outcome(state.pay(8).and_then(swap).map(|was| bytes.copy_from_slice(&was.to_le_bytes()))))
}

fn fetch_add(mut caller: Caller<'_, State>, key: i32, va: i64, n: i64, ptr: i32) -> wasmtime::Result<i32> {
    let memory = caller.data().memory;
    let (bytes, state) = slice(&mut caller, memory, ptr, 8)?;
    let add = |remote: &dyn Immediate| remote.fetch_add_now(key as u32, va as u64, n as u64);
    Ok(outcome(state.pay(8).and_then(add).map(|was| bytes.copy_from_slice(&was.to_le_bytes()))))
}

fn reply(mut caller: Caller<'_, State>, ptr: i32, len: i32) -> wasmtime::Result<i32> {
    let memory = caller.data().memory;
    let (bytes, state) = slice(&mut caller, memory, ptr, len)?;
    if bytes.len() > state.reply_limit.saturating_sub(state.reply.len()) {
        return Ok(REPLY_TOO_LONG);
    }
    state.reply.extend_from_slice(bytes);
    Ok(0)
}

#[inline]
fn outcome(result: Result<(), Fault>) -> i32 {
    result.map_or_else(abi::code, |()| 0)
}
