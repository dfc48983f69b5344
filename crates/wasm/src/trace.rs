//! A call that runs here, at once, and tells what it does: for `remora kernel run`.

use remora_kernel::{Call, Fault, HostMemory, Immediate, Memory, Status};
use wasmtime::{AsContext, Caller, Linker, Store, Trap, WasmBacktrace};

use crate::abi::{self, CHUNK, IMPORT_MODULE, PARAMS_LEN};
use crate::compiler;
use crate::instance::{self, Place, Running, State, enter};
use crate::limits::{ModuleError, ModuleLimits};
use crate::module::{Engine, check_exports, check_imports};

/// Steps that are told; a call that makes more only has them counted.
const STEPS: usize = 100_000;

/// A place in a module's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The function: its name if the module has names, else its number.
    pub function: String,
    /// Offset of the instruction in the binary module, as disassemblers show it.
    pub offset: u64,
    /// `file:line`, if the module has DWARF.
    pub line: Option<String>,
}

/// What a module asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To copy remote memory: key, address, bytes.
    Read(u32, u64, u32),
    /// To copy to remote memory: key, address, bytes.
    Write(u32, u64, u32),
    /// To replace a word: key, address, what it is to be now, what then.
    CompareSwap(u32, u64, u64, u64),
    /// To add to a word: key, address, number.
    FetchAdd(u32, u64, u64),
    /// Some of the payload: bytes at most.
    NextChunk(u32),
    /// To have a text shown.
    Log(String),
}

/// One thing that a module asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceStep {
    /// Fuel that the call had used before.
    pub fuel: u64,
    /// Where in the module.
    pub site: Option<Site>,
    /// What.
    pub asked: Asked,
    /// What the module was told: 0 or more, or a negative code of [`abi`].
    pub answer: i32,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub struct Traced {
    /// Its status.
    pub status: Status,
    /// Its reply.
    pub reply: Vec<u8>,
    /// Fuel that it used.
    pub fuel: u64,
    /// Accesses of remote memory.
    pub accesses: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// What it asked for, in order: the first of many.
    pub steps: Vec<TraceStep>,
    /// Steps that are left out.
    pub left_out: u64,
    /// What ended it, if that was not its own return: what happened, and where, the innermost function first.
    pub trap: Option<(String, Vec<Site>)>,
}

/// A module that is ready to be traced.
pub struct Tracer {
    engine: Engine,
    module: wasmtime::Module,
    bytes: Vec<u8>,
    limits: ModuleLimits,
    long_params: bool,
}

/// What serves the imports of a traced call.
#[derive(Default)]
struct Serving {
    memory: Option<HostMemory>,
    payload: Vec<u8>,
    taken: usize,
    all_fuel: u64,
    accesses: u64,
    moved: u64,
    denied: bool,
    steps: Vec<TraceStep>,
    left_out: u64,
}

impl Serving {
    fn tell(&mut self, left: u64, site: Option<Site>, asked: Asked, answer: i32) {
        match self.steps.len() < STEPS {
            true => self.steps.push(TraceStep { fuel: self.all_fuel.saturating_sub(left), site, asked, answer }),
            false => self.left_out += 1,
        }
    }
}

impl Place for Serving {
    fn log(&mut self, fuel: u64, text: &[u8]) {
        let text = String::from_utf8_lossy(text).into_owned();
        self.tell(fuel, None, Asked::Log(text), 0);
    }
}

impl Tracer {
    /// Has a binary module compiled.
    pub fn new(bytes: &[u8], limits: ModuleLimits) -> Result<Self, ModuleError> {
        limits.check()?;
        let engine = Engine::tracing()?;
        let module = engine.compile(bytes)?;
        let long_params = check_imports(&module)?.params;
        check_exports(&module, limits)?;
        Ok(Self { engine, module, bytes: bytes.into(), limits, long_params })
    }

    /// Runs one call over `memory`, in an instance of its own. With `sites` each step says where in the module it was.
    pub fn run(&self, memory: HostMemory, call: &mut Call, payload: &[u8], sites: bool) -> Result<Traced, ModuleError> {
        let runtime = |error: wasmtime::Error| ModuleError::Runtime(format!("{error:#}"));
        let mut linker = Linker::new(self.engine.get());
        define(&mut linker, sites).map_err(runtime)?;
        let make = async |store: &mut Store<State<Serving>>| linker.instantiate(store, &self.module);
        let mut made = std::pin::pin!(Running::new(&self.engine, self.limits, None, make));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(instance) = made.as_mut().poll(&mut cx) else {
            return Err(ModuleError::Runtime("an instance that cannot wait did".into()));
        };
        let mut instance = instance?;
        memory.set_limits(self.limits.access);
        let all_fuel = self.limits.fuel;
        let serving = Serving { memory: Some(memory), payload: payload.into(), all_fuel, ..Serving::default() };
        instance.store.data_mut().place = serving;
        let is_long = call.params.len() > PARAMS_LEN;
        if is_long && !self.long_params || !instance.begin(call, all_fuel) {
            return Ok(self.ended(Status::BadParams, call, 0, Serving::default(), None));
        }
        let len = instance.params_len();
        let result = instance.run.call(&mut instance.store, len);
        let fuel = all_fuel.saturating_sub(instance.store.get_fuel().unwrap_or(0));
        let trap = match &result {
            Ok(0 | 1 | 3 | 16..=254) => None,
            Ok(other) => Some((format!("run returned {other}, which is no status: 0, 1, 3 or 16 to 254"), Vec::new())),
            Err(error) => Some((kind(error), error.downcast_ref().map(frames).unwrap_or_default())),
        };
        let (status, _) = instance.end(call, result);
        let serving = std::mem::take(&mut instance.store.data_mut().place);
        // What was denied ends a call so at a node too, whatever its kernel says.
        let status = if serving.denied { Status::AccessDenied } else { status };
        Ok(self.ended(status, call, fuel, serving, trap))
    }

    /// The outcome, with source lines where the module has them.
    fn ended(
        &self,
        status: Status,
        call: &Call,
        fuel: u64,
        serving: Serving,
        trap: Option<(String, Vec<Site>)>,
    ) -> Traced {
        let Serving { accesses, moved, steps, left_out, .. } = serving;
        let mut traced =
            Traced { status, reply: call.reply.clone(), fuel, accesses, bytes: moved, steps, left_out, trap };
        let sites = traced.steps.iter_mut().filter_map(|step| step.site.as_mut());
        let mut sites: Vec<&mut Site> = sites.chain(traced.trap.iter_mut().flat_map(|(_, sites)| sites)).collect();
        let mut offsets: Vec<u64> = sites.iter().map(|site| site.offset).collect();
        offsets.sort_unstable();
        offsets.dedup();
        // A module that says nothing of lines, or something that makes no sense, is traced without them.
        let has_lines = self.bytes.windows(11).any(|bytes| bytes == b".debug_line");
        if has_lines && let Ok(lines) = compiler::source_lines(&self.bytes, &offsets) {
            for site in &mut sites {
                let found = offsets.binary_search(&site.offset).ok();
                site.line = found.and_then(|at| lines.get(at).cloned().flatten());
            }
        }
        traced
    }
}

/// What ended a call, in words.
fn kind(error: &wasmtime::Error) -> String {
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => "out of fuel (--fuel)".into(),
        Some(Trap::MemoryOutOfBounds) => "an address outside of the module's own memory".into(),
        Some(Trap::StackOverflow) => "the stack is full: recursion without end?".into(),
        Some(trap) => trap.to_string(),
        None => format!("{error:#}"),
    }
}

fn frames(trace: &WasmBacktrace) -> Vec<Site> {
    let site = |frame: &wasmtime::FrameInfo| {
        let function = frame.func_name().map_or_else(|| format!("function {}", frame.func_index()), str::to_string);
        Site { function, offset: frame.module_offset().unwrap_or(0) as u64, line: None }
    };
    trace.frames().iter().map(site).collect()
}

fn define(linker: &mut Linker<State<Serving>>, sites: bool) -> wasmtime::Result<()> {
    type Asks<'a> = Caller<'a, State<Serving>>;
    let site = move |caller: &Asks<'_>| {
        sites.then(|| frames(&WasmBacktrace::force_capture(caller.as_context())).into_iter().next()).flatten()
    };
    linker.func_wrap(IMPORT_MODULE, "read", move |mut caller: Asks<'_>, key: i32, va: i64, ptr: i32, len: i32| {
        let asked = Asked::Read(key as u32, va as u64, len as u32);
        access(&mut caller, site, asked, (ptr, len), |memory, bytes| memory.read_now(key as u32, va as u64, bytes))
    })?;
    linker.func_wrap(IMPORT_MODULE, "write", move |mut caller: Asks<'_>, key: i32, va: i64, ptr: i32, len: i32| {
        let asked = Asked::Write(key as u32, va as u64, len as u32);
        access(&mut caller, site, asked, (ptr, len), |memory, bytes| memory.write_now(key as u32, va as u64, bytes))
    })?;
    linker.func_wrap(
        IMPORT_MODULE,
        "compare_swap",
        move |mut caller: Asks<'_>, key: i32, va: i64, expect: i64, new: i64, ptr: i32| {
            let asked = Asked::CompareSwap(key as u32, va as u64, expect as u64, new as u64);
            access(&mut caller, site, asked, (ptr, 8), |memory, bytes| {
                let was = memory.compare_swap_now(key as u32, va as u64, expect as u64, new as u64)?;
                bytes.copy_from_slice(&was.to_le_bytes());
                Ok(())
            })
        },
    )?;
    linker.func_wrap(
        IMPORT_MODULE,
        "fetch_add",
        move |mut caller: Asks<'_>, key: i32, va: i64, n: i64, ptr: i32| {
            let asked = Asked::FetchAdd(key as u32, va as u64, n as u64);
            access(&mut caller, site, asked, (ptr, 8), |memory, bytes| {
                let was = memory.fetch_add_now(key as u32, va as u64, n as u64)?;
                bytes.copy_from_slice(&was.to_le_bytes());
                Ok(())
            })
        },
    )?;
    linker.func_wrap(IMPORT_MODULE, "next_chunk", move |mut caller: Asks<'_>, ptr: i32, len: i32| {
        let (site, left) = (site(&caller), caller.get_fuel()?);
        let len = (len as u32).min(CHUNK);
        let (bytes, state) = enter(&mut caller, ptr, len as i32)?;
        let serving = &mut state.place;
        let rest = &serving.payload[serving.taken..];
        let n = rest.len().min(bytes.len());
        bytes[..n].copy_from_slice(&rest[..n]);
        serving.taken += n;
        if let Some(memory) = &serving.memory {
            memory.earn(n);
        }
        serving.tell(left, site, Asked::NextChunk(len), n as i32);
        Ok(n as i32)
    })?;
    instance::define(linker)
}

/// One access: paid for, made, told.
fn access(
    caller: &mut Caller<'_, State<Serving>>,
    site: impl Fn(&Caller<'_, State<Serving>>) -> Option<Site>,
    asked: Asked,
    (ptr, len): (i32, i32),
    make: impl FnOnce(&HostMemory, &mut [u8]) -> Result<(), Fault>,
) -> wasmtime::Result<i32> {
    let (site, left) = (site(caller), caller.get_fuel()?);
    let (bytes, state) = enter(caller, ptr, len)?;
    let serving = &mut state.place;
    let moved = bytes.len() as u64;
    let made = serving.memory.as_ref().map_or(Err(Fault::Lost), |memory| make(memory, bytes));
    serving.denied |= made == Err(Fault::Access);
    let answer = made.map_or_else(abi::code, |()| 0);
    serving.accesses += 1;
    serving.moved += moved;
    serving.tell(left, site, asked, answer);
    Ok(answer)
}
