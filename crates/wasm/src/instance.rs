//! One instance of a module: what inline and suspended ones have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use remora_kernel::{Call, Status};
use wasmtime::{Caller, Instance, Linker, Memory, ResourceLimiter, Store, Trap, TypedFunc};

use crate::abi::{CHUNK, IMPORT_MODULE, PARAMS_LEN, REPLY_TOO_LONG};
use crate::limits::{ModuleError, ModuleLimits};
use crate::module::Engine;

/// What a module's imports work on. `P` is how its accesses reach the caller's memory.
pub(crate) struct State<P> {
    limit: MemoryLimit,
    memory: Option<Memory>,
    /// Parameters and reply, lent by the call.
    params: Vec<u8>,
    reply: Vec<u8>,
    reply_limit: usize,
    pub place: P,
}

impl<P> State<P> {
    /// Bytes of the module's memory.
    #[inline]
    pub fn memory_used(&self) -> usize {
        self.limit.used
    }

    /// Bytes by which the reply may grow.
    pub fn reply_room(&self) -> usize {
        self.reply_limit.saturating_sub(self.reply.len())
    }

    /// Appends to the reply, if there is room.
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.reply_room();
        if fits {
            self.reply.extend_from_slice(bytes);
        }
        fits
    }
}

/// Holds a module's memory within its limit, and that of all modules together within the engine's.
struct MemoryLimit {
    limit: usize,
    used: usize,
    left_of_all: Arc<AtomicUsize>,
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        self.left_of_all.fetch_add(self.used, Ordering::Relaxed);
    }
}

/// Elements of a table, all in all.
const TABLE_ELEMENTS: usize = 10_000;

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(self.used);
        let take = |left: usize| left.checked_sub(more);
        let fits =
            desired <= self.limit && self.left_of_all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        self.used += if fits { more } else { 0 };
        Ok(fits)
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ELEMENTS)
    }
}

/// An instance that can be called.
pub(crate) struct Running<P: 'static> {
    pub store: Store<State<P>>,
    pub run: TypedFunc<i32, i32>,
    memory: Memory,
    params: usize,
}

impl<P: Default + Send> Running<P> {
    /// A new store and what can be called in it. A start function, if the module has one, has run. With a `slice`,
    /// calls give way after so much fuel.
    pub async fn new(
        engine: &Engine,
        limits: ModuleLimits,
        slice: Option<u64>,
        make: impl AsyncFnOnce(&mut Store<State<P>>) -> wasmtime::Result<Instance>,
    ) -> Result<Self, ModuleError> {
        let runtime = |error: wasmtime::Error| ModuleError::Runtime(format!("{error:#}"));
        let limit = MemoryLimit { limit: limits.memory, used: 0, left_of_all: engine.memory_left() };
        let state =
            State { limit, memory: None, params: Vec::new(), reply: Vec::new(), reply_limit: 0, place: P::default() };
        let mut store = Store::new(engine.get(), state);
        store.limiter(|state| &mut state.limit);
        store.set_fuel(limits.fuel).map_err(runtime)?;
        if slice.is_some() {
            store.fuel_async_yield_interval(slice).map_err(runtime)?;
        }
        let instance = make(&mut store).await.map_err(runtime)?;
        let memory = instance.get_memory(&mut store, "memory").ok_or(ModuleError::Export("memory"))?;
        let params = instance.get_global(&mut store, "params").ok_or(ModuleError::Export("params"))?;
        let params = params.get(&mut store).i32().unwrap_or_default() as u32 as usize;
        let room = memory.data_size(&store).saturating_sub(params);
        if room < PARAMS_LEN {
            return Err(ModuleError::Limit(format!(
                "the module's params are at {params}, {room} bytes before its memory ends"
            )));
        }
        let run = instance.get_typed_func(&mut store, "run").map_err(|_| ModuleError::Export("run(i32) -> i32"))?;
        store.data_mut().memory = Some(memory);
        Ok(Running { store, run, memory, params })
    }

    /// Readies it for a call, whose parameters and reply it takes until the call [ends](Self::end).
    #[inline]
    pub fn begin(&mut self, call: &mut Call, fuel: u64) -> bool {
        let (data, state) = self.memory.data_and_store_mut(&mut self.store);
        let first = &call.params[..call.params.len().min(PARAMS_LEN)];
        let Some(room) = data.get_mut(self.params..self.params + first.len()) else { return false };
        room.copy_from_slice(first);
        (state.params, state.reply) = (std::mem::take(&mut call.params), std::mem::take(&mut call.reply));
        state.reply_limit = call.reply_limit as usize;
        self.store.set_fuel(fuel).is_ok()
    }

    /// What `run` is told: how long the parameters are.
    #[inline]
    pub fn params_len(&self) -> i32 {
        self.store.data().params.len() as i32
    }

    /// What it has used of so much fuel.
    #[inline]
    pub fn used(&self, fuel: u64) -> u64 {
        fuel.saturating_sub(self.store.get_fuel().unwrap_or(0))
    }

    /// Gives parameters and reply back. Returns how the call ended, and whether the instance can be called again.
    #[inline]
    pub fn end(&mut self, call: &mut Call, result: wasmtime::Result<i32>) -> (Status, bool) {
        let state = self.store.data_mut();
        (call.params, call.reply) = (std::mem::take(&mut state.params), std::mem::take(&mut state.reply));
        match result {
            Ok(code @ (0 | 1 | 3 | 16..=254)) => (Status::from_code(code as u8), true),
            Ok(_) => (Status::Trapped, true),
            Err(error) => match error.downcast_ref::<Trap>() {
                Some(Trap::OutOfFuel) => (Status::StepLimit, false),
                _ => (Status::Trapped, false),
            },
        }
    }
}

/// Fuel that an access costs beside its instructions, about as long as it takes: who calls often, or moves much, gives
/// way as often as who computes.
pub(crate) const fn access_fuel(bytes: usize) -> u64 {
    32 + bytes as u64 / 8
}

/// Pays for an access and returns the module's memory from `ptr` on, or a trap.
#[inline]
pub(crate) fn enter<'a, P>(
    caller: &'a mut Caller<'_, State<P>>,
    ptr: i32,
    len: i32,
) -> wasmtime::Result<(&'a mut [u8], &'a mut State<P>)> {
    let bytes = slice(caller, ptr, len)?.0.len();
    let left = caller.get_fuel()?.checked_sub(access_fuel(bytes)).ok_or(Trap::OutOfFuel)?;
    caller.set_fuel(left)?;
    slice(caller, ptr, len)
}

/// The module's memory from `ptr` on, or a trap.
#[inline]
pub(crate) fn slice<'a, P>(
    caller: &'a mut Caller<'_, State<P>>,
    ptr: i32,
    len: i32,
) -> wasmtime::Result<(&'a mut [u8], &'a mut State<P>)> {
    let memory = caller.data().memory.ok_or(Trap::MemoryOutOfBounds)?;
    let (data, state) = memory.data_and_store_mut(caller);
    let start = ptr as u32 as usize;
    let bytes = data.get_mut(start..start.saturating_add(len as u32 as usize)).ok_or(Trap::MemoryOutOfBounds)?;
    Ok((bytes, state))
}

/// Who serves a module's imports, as far as they differ beside accesses.
pub(crate) trait Place {
    /// Takes a text that the module logs, with the fuel that it has left. Only a traced call has somewhere to put it.
    fn log(&mut self, fuel: u64, text: &[u8]) {
        _ = (fuel, text);
    }
}

/// The import `log`. It costs as much everywhere, so that a call that is traced does what it does elsewhere.
pub(crate) fn log<P: Place>(caller: &mut Caller<'_, State<P>>, ptr: i32, len: i32) -> wasmtime::Result<i32> {
    let fuel = caller.get_fuel()?;
    let (bytes, state) = enter(caller, ptr, len)?;
    state.place.log(fuel, bytes);
    Ok(0)
}

/// The import `params`.
pub(crate) fn params<P>(caller: &mut Caller<'_, State<P>>, at: i32, ptr: i32, len: i32) -> wasmtime::Result<i32> {
    let (bytes, state) = enter(caller, ptr, (len as u32).min(CHUNK) as i32)?;
    let rest = state.params.get(at as u32 as usize..).unwrap_or_default();
    let n = rest.len().min(bytes.len());
    bytes[..n].copy_from_slice(&rest[..n]);
    Ok(n as i32)
}

/// Defines the imports that need nothing of the place, for calls that never wait.
pub(crate) fn define<P: Place + 'static>(linker: &mut Linker<State<P>>) -> wasmtime::Result<()> {
    type Asks<'a, P> = Caller<'a, State<P>>;
    linker.func_wrap(IMPORT_MODULE, "params", |mut caller: Asks<'_, P>, at: i32, ptr: i32, len: i32| {
        params(&mut caller, at, ptr, len)
    })?;
    linker.func_wrap(IMPORT_MODULE, "reply", |mut caller: Asks<'_, P>, ptr: i32, len: i32| {
        let (bytes, state) = enter(&mut caller, ptr, len)?;
        wasmtime::Result::Ok(if state.append(bytes) { 0 } else { REPLY_TOO_LONG })
    })?;
    linker.func_wrap(IMPORT_MODULE, "log", |mut caller: Asks<'_, P>, ptr: i32, len: i32| log(&mut caller, ptr, len))?;
    Ok(())
}
