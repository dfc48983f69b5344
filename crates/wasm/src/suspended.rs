//! Calls on a stack of their own, which wait at each access until the place that runs them has done it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use remora_kernel::{Call, Fault, Memory, Status};
use wasmtime::Caller;

use crate::abi::{self, CHUNK, IMPORT_MODULE};
use crate::instance::{Place, Running, State, access_fuel, enter, log, params, slice};
use crate::limits::{Isolation, MAKE_FUEL, ModuleError, ModuleLimits, SLICE};
use crate::module::Engine;
use crate::pool::Pool;

/// A module whose calls wait.
pub(crate) struct Suspended(Pool<SharedSlot>);

/// Between a module that waits and whoever polls its call.
type SharedSlot = Arc<Mutex<Slot>>;

/// What a module that waits wants, and what it gets.
#[derive(Default)]
struct Slot {
    request: Option<Request>,
    answer: Option<Result<u64, Fault>>,
    /// Bytes on their way in or out: a piece of an access at a time, as copying holds up all others, too.
    buffer: Vec<u8>,
    /// Fuel that was left when it last gave way for what it had no need to wait for.
    gave_way: u64,
    /// Fuel that was left when the module began to wait, before it paid for the access and after.
    fuel: (u64, u64),
}

#[derive(Clone, Copy)]
enum Request {
    Read { key: u32, va: u64 },
    Write { key: u32, va: u64 },
    CompareSwap { key: u32, va: u64, expect: u64, new: u64 },
    FetchAdd { key: u32, va: u64, n: u64 },
    NextChunk,
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Place for SharedSlot {}

impl Suspended {
    pub fn new(
        engine: &Engine,
        module: &wasmtime::Module,
        limits: ModuleLimits,
        isolation: Isolation,
    ) -> Result<Self, ModuleError> {
        let pool = Pool::new(engine, module, limits, isolation, Some(SLICE), |linker| {
            linker.func_wrap_async(IMPORT_MODULE, "read", |caller, params| Box::new(read(caller, params)))?;
            linker.func_wrap_async(IMPORT_MODULE, "write", |caller, params| Box::new(write(caller, params)))?;
            linker.func_wrap_async(IMPORT_MODULE, "compare_swap", |caller, params| {
                Box::new(compare_swap(caller, params))
            })?;
            linker.func_wrap_async(IMPORT_MODULE, "fetch_add", |caller, params| Box::new(fetch_add(caller, params)))?;
            linker
                .func_wrap_async(IMPORT_MODULE, "next_chunk", |caller, params| Box::new(next_chunk(caller, params)))?;
            linker.func_wrap_async(IMPORT_MODULE, "params", |caller, params| Box::new(long_params(caller, params)))?;
            linker.func_wrap_async(IMPORT_MODULE, "reply", |caller, params| Box::new(long_reply(caller, params)))?;
            linker.func_wrap_async(IMPORT_MODULE, "log", |caller, params| Box::new(long_log(caller, params)))?;
            Ok(())
        });
        pool.map(Suspended)
    }

    /// Makes an instance, to be used later. A start function that waits for memory is refused.
    pub fn try_out(&self) -> Result<(), ModuleError> {
        let mut make = pin!(self.0.make());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        // As many turns as its fuel has slices.
        for _ in 0..=self.0.limits().fuel / SLICE + 1 {
            if let Poll::Ready(instance) = make.as_mut().poll(&mut cx) {
                self.0.put_back(instance?);
                return Ok(());
            }
        }
        Err(ModuleError::Runtime("the module's start function waits for memory".into()))
    }

    /// Makes an instance for a call, which pays for it: a start function may run for as long as the call itself.
    async fn make<M: Memory>(&self, memory: &M) -> Result<Box<Running<SharedSlot>>, Status> {
        memory.spend(MAKE_FUEL);
        let fuel = self.0.limits().fuel;
        let mut make = pin!(self.0.make());
        // As many turns as its fuel has slices. One that takes more waits for memory, which nobody gives it.
        for turns in 0..=fuel / SLICE + 1 {
            if let Poll::Ready(made) = poll_once(make.as_mut()).await {
                let instance = made.map_err(|_| Status::Busy)?;
                memory.spend(instance.used(fuel).saturating_sub(turns * SLICE));
                return Ok(instance);
            }
            memory.spend(SLICE);
            give_way().await;
        }
        Err(Status::Trapped)
    }

    /// Runs a call; whoever polls this does its accesses.
    pub async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status {
        let mut instance = match self.0.spare() {
            Some(instance) => instance,
            None => match self.make(memory).await {
                Ok(instance) => instance,
                Err(status) => return status,
            },
        };
        let mut fuel = self.0.limits().fuel;
        if !instance.begin(call, fuel) {
            return Status::Trapped;
        }
        let slot = instance.store.data().place.clone();
        {
            let mut slot = lock(&slot);
            (slot.request, slot.answer, slot.gave_way) = (None, None, fuel);
        }
        let result = {
            let len = instance.params_len();
            let mut running = pin!(instance.run.call_async(&mut instance.store, len));
            loop {
                if let Poll::Ready(result) = poll_once(running.as_mut()).await {
                    break result;
                }
                let (request, (left, after)) = {
                    let mut slot = lock(&slot);
                    (slot.request.take(), slot.fuel)
                };
                match request {
                    Some(request) => {
                        memory.spend(fuel.saturating_sub(after));
                        memory.compute(fuel.saturating_sub(left)).await;
                        fuel = after;
                        serve(memory, call, &slot, request).await;
                    }
                    None => {
                        memory.spend(SLICE);
                        give_way().await;
                    }
                }
            }
        };
        memory.compute(instance.used(fuel)).await;
        let (status, again) = instance.end(call, result);
        if again {
            let mut slot = lock(&slot);
            slot.buffer.clear();
            slot.buffer.shrink_to(CHUNK as usize);
            self.0.put_back(instance);
        }
        status
    }
}

/// Does what the module waits for.
async fn serve<M: Memory>(memory: &M, call: &mut Call, slot: &Mutex<Slot>, request: Request) {
    // Out of the lock: an access may take its time.
    let mut buffer = std::mem::take(&mut lock(slot).buffer);
    let answer = match request {
        Request::Read { key, va } => memory.read(key, va, &mut buffer).await.map(|()| 0),
        Request::Write { key, va } => memory.write(key, va, &buffer).await.map(|()| 0),
        Request::CompareSwap { key, va, expect, new } => memory.compare_swap(key, va, expect, new).await,
        Request::FetchAdd { key, va, n } => memory.fetch_add(key, va, n).await,
        Request::NextChunk => call.stream().next_up_to(buffer.len()).await.map(|chunk| {
            let chunk = chunk.unwrap_or_default();
            memory.earn(chunk.len());
            buffer[..chunk.len()].copy_from_slice(chunk);
            chunk.len() as u64
        }),
    };
    // Others run between two pieces of a long access.
    if buffer.len() == CHUNK as usize && matches!(request, Request::Read { .. } | Request::Write { .. }) {
        give_way().await;
    }
    let mut slot = lock(slot);
    (slot.buffer, slot.answer) = (buffer, Some(answer));
}

/// The pieces of an access of so many bytes, each an access of its own: where it begins, and its length. An empty access is
/// one, too.
fn pieces(len: i32) -> impl Iterator<Item = (u32, i32)> {
    let len = len as u32;
    let begins = (0..len.div_ceil(CHUNK).max(1)).map(|n| n * CHUNK);
    begins.map(move |at| (at, (len - at).min(CHUNK) as i32))
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Lets others run once.
async fn give_way() {
    let mut gave = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut gave, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

type AsyncCaller<'a> = Caller<'a, State<SharedSlot>>;

/// Waits until whoever polls the call has served the request, for which so much fuel was paid. Bytes go and come in the
/// slot's buffer.
async fn ask(caller: &mut AsyncCaller<'_>, request: Request, paid: u64) -> Result<u64, Fault> {
    let left = caller.get_fuel().unwrap_or(0);
    let slot = caller.data().place.clone();
    {
        let mut slot = lock(&slot);
        (slot.request, slot.answer) = (Some(request), None);
        slot.fuel = (left + paid, left);
    }
    poll_fn(|_| lock(&slot).answer.take().map_or(Poll::Pending, Poll::Ready)).await
}

async fn read(mut caller: AsyncCaller<'_>, (key, va, ptr, len): (i32, i64, i32, i32)) -> wasmtime::Result<i32> {
    let mut paid = access_fuel(enter(&mut caller, ptr, len)?.0.len());
    for (at, len) in pieces(len) {
        lock(&caller.data().place).buffer.resize(len as usize, 0);
        let request = Request::Read { key: key as u32, va: (va as u64).wrapping_add(at.into()) };
        if let Err(fault) = ask(&mut caller, request, std::mem::take(&mut paid)).await {
            return Ok(abi::code(fault));
        }
        let (bytes, state) = slice(&mut caller, ptr.wrapping_add(at as i32), len)?;
        bytes.copy_from_slice(&lock(&state.place).buffer);
    }
    Ok(0)
}

async fn write(mut caller: AsyncCaller<'_>, (key, va, ptr, len): (i32, i64, i32, i32)) -> wasmtime::Result<i32> {
    let mut paid = access_fuel(enter(&mut caller, ptr, len)?.0.len());
    for (at, len) in pieces(len) {
        let (bytes, state) = slice(&mut caller, ptr.wrapping_add(at as i32), len)?;
        {
            let buffer = &mut lock(&state.place).buffer;
            buffer.clear();
            buffer.extend_from_slice(bytes);
        }
        let request = Request::Write { key: key as u32, va: (va as u64).wrapping_add(at.into()) };
        if let Err(fault) = ask(&mut caller, request, std::mem::take(&mut paid)).await {
            return Ok(abi::code(fault));
        }
    }
    Ok(0)
}

async fn compare_swap(
    caller: AsyncCaller<'_>,
    (key, va, expect, new, ptr): (i32, i64, i64, i64, i32),
) -> wasmtime::Result<i32> {
    let (key, va) = (key as u32, va as u64);
    atomic(caller, Request::CompareSwap { key, va, expect: expect as u64, new: new as u64 }, ptr).await
}

async fn fetch_add(caller: AsyncCaller<'_>, (key, va, n, ptr): (i32, i64, i64, i32)) -> wasmtime::Result<i32> {
    atomic(caller, Request::FetchAdd { key: key as u32, va: va as u64, n: n as u64 }, ptr).await
}

async fn atomic(mut caller: AsyncCaller<'_>, request: Request, ptr: i32) -> wasmtime::Result<i32> {
    enter(&mut caller, ptr, 8)?;
    match ask(&mut caller, request, access_fuel(8)).await {
        Ok(was) => {
            slice(&mut caller, ptr, 8)?.0.copy_from_slice(&was.to_le_bytes());
            Ok(0)
        }
        Err(fault) => Ok(abi::code(fault)),
    }
}

async fn next_chunk(mut caller: AsyncCaller<'_>, (ptr, len): (i32, i32)) -> wasmtime::Result<i32> {
    let len = (len as u32).min(CHUNK) as i32;
    let room = enter(&mut caller, ptr, len)?.0.len();
    lock(&caller.data().place).buffer.resize(room, 0);
    match ask(&mut caller, Request::NextChunk, access_fuel(room)).await {
        Ok(len) => {
            let (bytes, state) = slice(&mut caller, ptr, len as i32)?;
            bytes.copy_from_slice(&lock(&state.place).buffer[..len as usize]);
            Ok(len as i32)
        }
        Err(fault) => Ok(abi::code(fault)),
    }
}

/// Lets others run once if a slice of fuel has gone since the last time. What pays by itself begins a new slice, so that a
/// module which asks for that alone would never give way.
async fn breathe(caller: &AsyncCaller<'_>) {
    let left = caller.get_fuel().unwrap_or(0);
    let is_due = {
        let mut slot = lock(&caller.data().place);
        let is_due = slot.gave_way.saturating_sub(left) >= SLICE;
        slot.gave_way = if is_due { left } else { slot.gave_way };
        is_due
    };
    if is_due {
        give_way().await;
    }
}

async fn long_params(mut caller: AsyncCaller<'_>, (at, ptr, len): (i32, i32, i32)) -> wasmtime::Result<i32> {
    let brought = params(&mut caller, at, ptr, len);
    breathe(&caller).await;
    brought
}

async fn long_reply(mut caller: AsyncCaller<'_>, (ptr, len): (i32, i32)) -> wasmtime::Result<i32> {
    let (bytes, state) = enter(&mut caller, ptr, len)?;
    if bytes.len() > state.reply_room() {
        return Ok(abi::REPLY_TOO_LONG);
    }
    for (at, len) in pieces(len) {
        let (bytes, state) = slice(&mut caller, ptr.wrapping_add(at as i32), len)?;
        if !state.append(bytes) {
            return Ok(abi::REPLY_TOO_LONG);
        }
        match len as u32 {
            CHUNK => give_way().await,
            _ => breathe(&caller).await,
        }
    }
    Ok(0)
}

async fn long_log(mut caller: AsyncCaller<'_>, (ptr, len): (i32, i32)) -> wasmtime::Result<i32> {
    let logged = log(&mut caller, ptr, len);
    breathe(&caller).await;
    logged
}
