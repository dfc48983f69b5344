//! One instance of a module: what inline and suspended ones have in common.

use remora_kernel::Status;
use wasmtime::{Caller, Instance, Linker, Memory, ResourceLimiter, Store, Trap, TypedFunc};

use crate::abi::PARAMS_LEN;
use crate::limits::{Error, ModuleLimits};

/// Holds a module's memory within its limit.
pub(crate) struct MemoryLimit(pub usize);

/// Elements of a table, all in all.
const TABLE_ELEMENTS: usize = 10_000;

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= self.0)
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ELEMENTS)
    }
}

/// What the state of a store tells of its instance.
pub(crate) trait HasLimit {
    fn limit(&mut self) -> &mut MemoryLimit;
    fn set_memory(&mut self, memory: Memory);
}

/// An instance that can be called.
pub(crate) struct Running<T: 'static> {
    pub store: Store<T>,
    pub run: TypedFunc<i32, i32>,
    memory: Memory,
    params: usize,
}

impl<T: HasLimit + Send> Running<T> {
    /// A new store and what can be called in it. A start function, if the module has one, has run.
    pub async fn new(
        engine: &wasmtime::Engine,
        state: T,
        limits: ModuleLimits,
        slice: Option<u64>,
        make: impl AsyncFnOnce(&mut Store<T>) -> wasmtime::Result<Instance>,
    ) -> Result<Self, Error> {
        let runtime = |error: wasmtime::Error| Error::Runtime(format!("{error:#}"));
        let mut store = Store::new(engine, state);
        store.limiter(|state| state.limit());
        store.set_fuel(limits.fuel).map_err(runtime)?;
        if slice.is_some() {
            store.fuel_async_yield_interval(slice).map_err(runtime)?;
        }
        let instance = make(&mut store).await.map_err(runtime)?;
        let memory = instance.get_memory(&mut store, "memory").ok_or(Error::Export("memory"))?;
        let params = instance.get_global(&mut store, "params").ok_or(Error::Export("params"))?;
        let params = params.get(&mut store).i32().unwrap_or_default() as u32 as usize;
        let room = memory.data_size(&store).saturating_sub(params);
        if room < PARAMS_LEN {
            return Err(Error::Limit(format!(
                "the module's params are at {params}, {room} bytes before its memory ends"
            )));
        }
        let run = instance.get_typed_func(&mut store, "run").map_err(|_| Error::Export("run(i32) -> i32"))?;
        store.data_mut().set_memory(memory);
        Ok(Running { store, run, memory, params })
    }

    /// Readies it for a call.
    pub fn begin(&mut self, params: &[u8], fuel: u64) -> bool {
        let room = self.memory.data_mut(&mut self.store).get_mut(self.params..self.params + params.len());
        let Some(room) = room else { return false };
        room.copy_from_slice(params);
        self.store.set_fuel(fuel).is_ok()
    }
}

/// How a call ended, and whether its instance can be called again.
pub(crate) fn ended(result: wasmtime::Result<i32>) -> (Status, bool) {
    match result {
        Ok(code @ (0 | 1 | 3 | 16..=254)) => (Status::from_code(code as u8), true),
        Ok(_) => (Status::Trapped, true),
        Err(error) => match error.downcast_ref::<Trap>() {
            Some(Trap::OutOfFuel) => (Status::StepLimit, false),
            _ => (Status::Trapped, false),
        },
    }
}

/// The module's memory from `ptr` on, or a trap.
#[inline]
pub(crate) fn slice<'a, T>(
    caller: &'a mut Caller<'_, T>,
    memory: Option<Memory>,
    ptr: i32,
    len: i32,
) -> wasmtime::Result<(&'a mut [u8], &'a mut T)> {
    let memory = memory.ok_or(Trap::MemoryOutOfBounds)?;
    let (data, state) = memory.data_and_store_mut(caller);
    let start = ptr as u32 as usize;
    let bytes = data.get_mut(start..start.saturating_add(len as u32 as usize)).ok_or(Trap::MemoryOutOfBounds)?;
    Ok((bytes, state))
}

/// A linker with nothing in it.
pub(crate) fn linker<T: 'static>(engine: &wasmtime::Engine) -> Linker<T> {
    Linker::new(engine)
}
