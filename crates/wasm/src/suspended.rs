//! Calls on a stack of their own, which wait at each access until the place that runs them has done it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use remora_kernel::{Call, Fault, Limits, Memory, Status};
use wasmtime::{Caller, InstancePre};

use crate::abi::{self, REPLY_TOO_LONG};
use crate::instance::{HasLimit, MemoryLimit, Running, ended, linker, slice};
use crate::limits::{Error, ModuleLimits, SLICE};
use crate::module::Engine;

/// Instances of one module, and how to make more.
pub(crate) struct SuspendedPool {
    engine: Engine,
    pre: InstancePre<State>,
    limits: ModuleLimits,
    keep: bool,
    spare: Mutex<Vec<Running<State>>>,
}

/// What the module's imports work on during a call.
struct State {
    limit: MemoryLimit,
    memory: Option<wasmtime::Memory>,
    left: Limits,
    slot: Arc<Mutex<Slot>>,
    reply: Vec<u8>,
    reply_limit: usize,
}

impl HasLimit for State {
    fn limit(&mut self) -> &mut MemoryLimit {
        &mut self.limit
    }

    fn set_memory(&mut self, memory: wasmtime::Memory) {
        self.memory = Some(memory);
    }
}

/// What a module that waits wants, and what it gets.
#[derive(Default)]
struct Slot {
    request: Option<Request>,
    answer: Option<Result<u64, Fault>>,
    /// Bytes on their way in or out.
    buffer: Vec<u8>,
    /// Fuel that was left when the module began to wait.
    fuel: u64,
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

impl SuspendedPool {
    pub fn new(engine: &Engine, module: &wasmtime::Module, limits: ModuleLimits, keep: bool) -> Result<Self, Error> {
        let mut linker = linker(engine.get());
        let defined = (|| -> wasmtime::Result<()> {
            linker.func_wrap_async(abi::IMPORT_MODULE, "read", |caller, params| Box::new(read(caller, params)))?;
            linker.func_wrap_async(abi::IMPORT_MODULE, "write", |caller, params| Box::new(write(caller, params)))?;
            linker.func_wrap_async(abi::IMPORT_MODULE, "compare_swap", |caller, params| {
                Box::new(compare_swap(caller, params))
            })?;
            linker.func_wrap_async(abi::IMPORT_MODULE, "fetch_add", |caller, params| {
                Box::new(fetch_add(caller, params))
            })?;
            linker.func_wrap_async(abi::IMPORT_MODULE, "next_chunk", |caller, params| {
                Box::new(next_chunk(caller, params))
            })?;
            linker.func_wrap(abi::IMPORT_MODULE, "reply", reply)?;
            Ok(())
        })();
        let pre = defined.and_then(|()| linker.instantiate_pre(module));
        let pre = pre.map_err(|error| Error::Runtime(format!("{error:#}")))?;
        Ok(SuspendedPool { engine: engine.clone(), pre, limits, keep, spare: Mutex::default() })
    }

    /// Makes an instance, to be used later. A start function that waits for memory is refused.
    pub fn try_out(&self) -> Result<(), Error> {
        let mut make = pin!(self.make());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        // As many turns as its fuel has slices.
        for _ in 0..=self.limits.fuel / SLICE + 1 {
            if let Poll::Ready(instance) = make.as_mut().poll(&mut cx) {
                self.put_back(instance?);
                return Ok(());
            }
        }
        Err(Error::Runtime("the module's start function waits for memory".into()))
    }

    /// Runs a call; whoever polls this does its accesses.
    pub async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut instance = match spare {
            Some(instance) => instance,
            None => match self.make().await {
                Ok(instance) => instance,
                Err(_) => return Status::Busy,
            },
        };
        if !instance.begin(&call.params, self.limits.fuel) {
            return Status::Trapped;
        }
        let state = instance.store.data_mut();
        state.left = self.limits.access;
        (state.reply, state.reply_limit) = (std::mem::take(&mut call.reply), call.reply_limit as usize);
        let slot = state.slot.clone();
        {
            let mut slot = lock(&slot);
            (slot.request, slot.answer) = (None, None);
        }

        let mut fuel = self.limits.fuel;
        let mut input = Input::default();
        let result = {
            let mut running = pin!(instance.run.call_async(&mut instance.store, call.params.len() as i32));
            loop {
                if let Poll::Ready(result) = poll_once(running.as_mut()).await {
                    break result;
                }
                let (request, left) = {
                    let mut slot = lock(&slot);
                    (slot.request.take(), slot.fuel)
                };
                match request {
                    Some(request) => {
                        memory.compute(fuel.saturating_sub(left)).await;
                        fuel = left;
                        serve(memory, call, &mut input, &slot, request).await;
                    }
                    None => give_way().await,
                }
            }
        };
        memory.compute(fuel.saturating_sub(instance.store.get_fuel().unwrap_or(0))).await;
        let (status, again) = ended(result);
        call.reply = std::mem::take(&mut instance.store.data_mut().reply);
        if again && self.keep {
            self.put_back(instance);
        }
        status
    }

    fn put_back(&self, instance: Running<State>) {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(instance);
    }

    async fn make(&self) -> Result<Running<State>, Error> {
        let state = State {
            limit: MemoryLimit(self.limits.memory),
            memory: None,
            left: self.limits.access,
            slot: Arc::default(),
            reply: Vec::new(),
            reply_limit: 0,
        };
        let make = async |store: &mut wasmtime::Store<State>| self.pre.instantiate_async(store).await;
        Running::new(self.engine.get(), state, self.limits, Some(SLICE), make).await
    }
}

/// The part of a chunk that the module has not taken.
#[derive(Default)]
struct Input {
    bytes: Vec<u8>,
    at: usize,
}

/// Does what the module waits for.
async fn serve<M: Memory>(memory: &M, call: &mut Call, input: &mut Input, slot: &Mutex<Slot>, request: Request) {
    // Out of the lock: an access may take its time.
    let mut buffer = std::mem::take(&mut lock(slot).buffer);
    let answer = match request {
        Request::Read { key, va } => memory.read(key, va, &mut buffer).await.map(|()| 0),
        Request::Write { key, va } => memory.write(key, va, &buffer).await.map(|()| 0),
        Request::CompareSwap { key, va, expect, new } => memory.compare_swap(key, va, expect, new).await,
        Request::FetchAdd { key, va, n } => memory.fetch_add(key, va, n).await,
        Request::NextChunk => take_chunk(memory, call, input, &mut buffer).await,
    };
    let mut slot = lock(slot);
    (slot.buffer, slot.answer) = (buffer, Some(answer));
}

/// Fills the buffer from its front; returns how many bytes there are.
async fn take_chunk<M: Memory>(
    memory: &M,
    call: &mut Call,
    input: &mut Input,
    buffer: &mut [u8],
) -> Result<u64, Fault> {
    if input.at == input.bytes.len() {
        (input.at, _) = (0, input.bytes.clear());
        if let Some(chunk) = call.stream().next_chunk().await? {
            memory.earn(chunk.len());
            input.bytes.extend_from_slice(chunk);
        }
    }
    let len = buffer.len().min(input.bytes.len() - input.at);
    buffer[..len].copy_from_slice(&input.bytes[input.at..input.at + len]);
    input.at += len;
    Ok(len as u64)
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

/// Waits until whoever polls the call has served the request. Bytes go and come in the slot's buffer.
async fn ask(caller: &mut Caller<'_, State>, request: Request, fill: impl FnOnce(&mut Vec<u8>)) -> Result<u64, Fault> {
    let fuel = caller.get_fuel().unwrap_or(0);
    let slot = caller.data().slot.clone();
    {
        let mut slot = lock(&slot);
        slot.buffer.clear();
        fill(&mut slot.buffer);
        (slot.request, slot.answer, slot.fuel) = (Some(request), None, fuel);
    }
    poll_fn(|_| lock(&slot).answer.take().map_or(Poll::Pending, Poll::Ready)).await
}

impl State {
    fn pay(&mut self, bytes: usize) -> Result<(), Fault> {
        self.left.steps = self.left.steps.checked_sub(1).ok_or(Fault::StepLimit)?;
        self.left.bytes = self.left.bytes.checked_sub(bytes as u64).ok_or(Fault::ByteLimit)?;
        Ok(())
    }
}

async fn read(mut caller: Caller<'_, State>, (key, va, ptr, len): (i32, i64, i32, i32)) -> wasmtime::Result<i32> {
    let memory = caller.data().memory;
    let (bytes, state) = slice(&mut caller, memory, ptr, len)?;
    let len_bytes = bytes.len();
    if let Err(fault) = state.pay(len_bytes) {
        return Ok(abi::code(fault));
    }
    let request = Request::Read { key: key as u32, va: va as u64 };
    match ask(&mut caller, request, |buffer| buffer.resize(len_bytes, 0)).await {
        Ok(_) => {
            let (bytes, state) = slice(&mut caller, memory, ptr, len)?;
            bytes.copy_from_slice(&lock(&state.slot).buffer);
            Ok(0)
        }
        Err(fault) => Ok(abi::code(fault)),
    }
}

async fn write(mut caller: Caller<'_, State>, (key, va, ptr, len): (i32, i64, i32, i32)) -> wasmtime::Result<i32> {
    let memory = caller.data().memory;
    let (bytes, state) = slice(&mut caller, memory, ptr, len)?;
    if let Err(fault) = state.pay(bytes.len()) {
        return Ok(abi::code(fault));
    }
    let data = bytes.to_vec();
    let request = Request::Write { key: key as u32, va: va as u64 };
    Ok(ask(&mut caller, request, |buffer| buffer.extend_from_slice(&data)).await.map_or_else(abi::code, |_| 0))
}

async fn compare_swap(
    caller: Caller<'_, State>,
    (key, va, expect, new, ptr): (i32, i64, i64, i64, i32),
) -> wasmtime::Result<i32> {
    let (key, va) = (key as u32, va as u64);
    atomic(caller, Request::CompareSwap { key, va, expect: expect as u64, new: new as u64 }, ptr).await
}

async fn fetch_add(caller: Caller<'_, State>, (key, va, n, ptr): (i32, i64, i64, i32)) -> wasmtime::Result<i32> {
    atomic(caller, Request::FetchAdd { key: key as u32, va: va as u64, n: n as u64 }, ptr).await
}

async fn atomic(mut caller: Caller<'_, State>, request: Request, ptr: i32) -> wasmtime::Result<i32> {
    let memory = caller.data().memory;
    let (_, state) = slice(&mut caller, memory, ptr, 8)?;
    if let Err(fault) = state.pay(8) {
        return Ok(abi::code(fault));
    }
    match ask(&mut caller, request, |_| ()).await {
        Ok(was) => {
            slice(&mut caller, memory, ptr, 8)?.0.copy_from_slice(&was.to_le_bytes());
            Ok(0)
        }
        Err(fault) => Ok(abi::code(fault)),
    }
}

/// At most this much of a payload goes into a module at a time.
const CHUNK: usize = 64 << 10;

async fn next_chunk(mut caller: Caller<'_, State>, (ptr, len): (i32, i32)) -> wasmtime::Result<i32> {
    let memory = caller.data().memory;
    let room = slice(&mut caller, memory, ptr, len)?.0.len().min(CHUNK);
    match ask(&mut caller, Request::NextChunk, |buffer| buffer.resize(room, 0)).await {
        Ok(len) => {
            let (bytes, state) = slice(&mut caller, memory, ptr, len as i32)?;
            bytes.copy_from_slice(&lock(&state.slot).buffer[..len as usize]);
            // As for every kernel: a payload pays for what is done with it.
            state.left.steps = state.left.steps.saturating_add(len as u32 / 64 + 1);
            state.left.bytes = state.left.bytes.saturating_add(2 * len);
            Ok(len as i32)
        }
        Err(fault) => Ok(abi::code(fault)),
    }
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
