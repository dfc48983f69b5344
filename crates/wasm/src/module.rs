//! Compiled modules: what they may import, must export, and may use up.

use std::sync::OnceLock;

use remora_kernel::{Call, Memory, Status};
use wasmtime::{
    Config, ExternType, InstanceAllocationStrategy, Mutability, OptLevel, PoolingAllocationConfig, ValType,
};

use crate::inline::InlinePool;
use crate::limits::{Error, Isolation, ModuleLimits};
use crate::suspended::SuspendedPool;

/// The most memory that a module may have.
const MAX_MEMORY: usize = 64 << 20;
/// Instances that there may be at once, of all modules: each call that is suspended has one.
const INSTANCES: u32 = 1024;
/// A module with more fuel than this is suspended now and then, so that it does not hold up others: about 20 us.
pub(crate) const INLINE_FUEL: u64 = 50_000;

/// Compiles modules; one for a process is enough.
#[derive(Clone)]
pub struct Engine(wasmtime::Engine);

impl Engine {
    /// An engine with room for 1024 instances.
    pub fn new() -> Result<Self, Error> {
        let mut pool = PoolingAllocationConfig::default();
        pool.total_core_instances(INSTANCES)
            .total_memories(INSTANCES)
            .total_tables(INSTANCES)
            .total_stacks(INSTANCES)
            .max_memories_per_module(1)
            .max_tables_per_module(4)
            .max_memory_size(MAX_MEMORY);
        let mut config = Config::new();
        config
            .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
            .consume_fuel(true)
            .cranelift_opt_level(OptLevel::Speed)
            // A trap is a status: nobody reads the backtrace.
            .wasm_backtrace_max_frames(None)
            .max_wasm_stack(256 << 10)
            .async_stack_size(512 << 10)
            .memory_reservation(MAX_MEMORY as u64)
            .wasm_relaxed_simd(false)
            .wasm_multi_memory(false);
        wasmtime::Engine::new(&config).map(Engine).map_err(|error| Error::Runtime(format!("{error:#}")))
    }

    /// The engine of this process, made when it is first asked for.
    pub fn shared() -> Result<Self, Error> {
        static SHARED: OnceLock<Engine> = OnceLock::new();
        match SHARED.get() {
            Some(engine) => Ok(engine.clone()),
            None => {
                let engine = Engine::new()?;
                Ok(SHARED.get_or_init(|| engine).clone())
            }
        }
    }

    pub(crate) fn get(&self) -> &wasmtime::Engine {
        &self.0
    }
}

/// A compiled kernel and its instances.
pub struct Module {
    limits: ModuleLimits,
    inline: Option<InlinePool>,
    suspended: SuspendedPool,
}

impl Module {
    /// Compiles a binary module.
    pub fn new(engine: &Engine, bytes: &[u8], limits: ModuleLimits, isolation: Isolation) -> Result<Self, Error> {
        if limits.memory > MAX_MEMORY {
            return Err(Error::Limit(format!("a module may have {MAX_MEMORY} bytes of memory, not {}", limits.memory)));
        }
        let invalid = |error: wasmtime::Error| Error::Invalid(format!("{error:#}"));
        let module = wasmtime::Module::from_binary(engine.get(), bytes).map_err(invalid)?;
        let streams = check_imports(&module)?;
        check_exports(&module, limits)?;
        let keep = isolation == Isolation::Reused;
        let suspended = SuspendedPool::new(engine, &module, limits, keep)?;
        // Instantiated once, so that a start function that fails is reported here and not at each call.
        let inline = if streams || limits.fuel > INLINE_FUEL {
            suspended.try_out()?;
            None
        } else {
            let pool = InlinePool::new(engine, &module, limits, keep)?;
            pool.try_out()?;
            Some(pool)
        };
        Ok(Module { limits, inline, suspended })
    }

    /// What a call may use up.
    pub fn limits(&self) -> ModuleLimits {
        self.limits
    }

    /// Whether calls run without being suspended where memory never makes them wait.
    pub fn is_inline(&self) -> bool {
        self.inline.is_some()
    }

    /// Runs one call.
    pub async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status {
        match self.run_now(memory, call) {
            Some(status) => status,
            None => self.suspended.run(memory, call).await,
        }
    }

    /// Runs one call to its end, if module and memory are such that it need not wait.
    #[inline]
    pub(crate) fn run_now<M: Memory>(&self, memory: &M, call: &mut Call) -> Option<Status> {
        if call.params.len() > crate::abi::PARAMS_LEN {
            return Some(Status::BadParams);
        }
        Some(self.inline.as_ref()?.run(memory.immediate()?, call))
    }
}

/// The imports that there are: name, parameters, all with one result.
const IMPORTS: [(&str, &[Kind]); 6] = {
    use Kind::{I32, I64};
    [
        ("read", &[I32, I64, I32, I32]),
        ("write", &[I32, I64, I32, I32]),
        ("compare_swap", &[I32, I64, I64, I64, I32]),
        ("fetch_add", &[I32, I64, I64, I32]),
        ("next_chunk", &[I32, I32]),
        ("reply", &[I32, I32]),
    ]
};

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    I32,
    I64,
}

impl Kind {
    fn is(self, value: &ValType) -> bool {
        matches!((self, value), (Kind::I32, ValType::I32) | (Kind::I64, ValType::I64))
    }
}

/// Returns whether the module reads a payload.
fn check_imports(module: &wasmtime::Module) -> Result<bool, Error> {
    let mut streams = false;
    for import in module.imports() {
        let fail = |detail: &str| {
            let (module, name) = (import.module().into(), import.name().into());
            Err(Error::Import { module, name, detail: detail.into() })
        };
        let known =
            IMPORTS.iter().find(|(name, _)| import.module() == crate::abi::IMPORT_MODULE && *name == import.name());
        let Some((name, params)) = known else { return fail("") };
        let ExternType::Func(found) = import.ty() else { return fail(", which is a function") };
        let same = found.params().len() == params.len()
            && found.params().zip(*params).all(|(found, want)| want.is(&found))
            && found.results().len() == 1
            && found.results().all(|result| Kind::I32.is(&result));
        if !same {
            return fail(" with other parameters than it has");
        }
        streams |= *name == "next_chunk";
    }
    Ok(streams)
}

fn check_exports(module: &wasmtime::Module, limits: ModuleLimits) -> Result<(), Error> {
    match module.get_export("memory") {
        Some(ExternType::Memory(memory)) if !memory.is_64() && !memory.is_shared() => {
            let needs = memory.minimum().saturating_mul(memory.page_size());
            if needs > limits.memory as u64 {
                return Err(Error::Limit(format!(
                    "the module starts with {needs} bytes of memory and may have {}: raise its memory limit",
                    limits.memory
                )));
            }
        }
        _ => return Err(Error::Export("memory")),
    }
    match module.get_export("params") {
        Some(ExternType::Global(global))
            if Kind::I32.is(global.content()) && global.mutability() == Mutability::Const => {}
        _ => return Err(Error::Export("params, a constant global i32: the address of 4096 bytes for parameters")),
    }
    match module.get_export("run") {
        Some(ExternType::Func(run))
            if run.params().len() == 1
                && run.params().all(|param| Kind::I32.is(&param))
                && run.results().len() == 1
                && run.results().all(|result| Kind::I32.is(&result)) =>
        {
            Ok(())
        }
        _ => Err(Error::Export("run(i32) -> i32")),
    }
}
