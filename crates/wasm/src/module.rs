//! Compiled modules: what they may import, must export, and may use up.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use remora_kernel::{Call, Memory, Status};
use wasmtime::{Config, ExternType, InstanceAllocationStrategy, Mutability, PoolingAllocationConfig, ValType};

use crate::compiler::{self, Job, configure};
use crate::inline::Inline;
pub(crate) use crate::inline::Spare;
use crate::limits::{Isolation, ModuleError, ModuleLimits};
use crate::pool::SPARES;
use crate::suspended::Suspended;

/// Instances that there may be at once, of all modules. A node runs 512 calls at once, on its NIC and its host; 64
/// modules keep `SPARES` each and another one at either place; some are being deployed. A call that gets none ends with
/// `Busy`.
pub(crate) const INSTANCES: u32 = 512 + 64 * (SPARES as u32 + 2) + 64;
/// Bytes of memory of all instances: 512 calls with the default limit.
const MEMORY: usize = 2 << 30;
/// Bytes of an instance's memory that are cleared for the next one, and not given back to the system: quicker, as the next one
/// need not ask for them again.
const RESIDENT: usize = 64 << 10;
/// A module with more fuel than this is suspended now and then, so that it does not hold up others: about 5 us. One that
/// may have no more runs as a plain call where accesses never wait, which is much quicker.
pub const INLINE_FUEL: u64 = 10_000;

/// Runs modules; one for a process is enough.
#[derive(Clone)]
pub struct Engine {
    engine: wasmtime::Engine,
    /// What its modules are compiled for.
    job: Job,
    memory_left: Arc<AtomicUsize>,
}

impl Engine {
    /// An engine with room for as many calls as a node runs at once, and 2 GB of memory for all their instances.
    pub fn new() -> Result<Self, ModuleError> {
        let mut pool = PoolingAllocationConfig::default();
        pool.total_core_instances(INSTANCES)
            .total_memories(INSTANCES)
            .total_tables(INSTANCES)
            .total_stacks(INSTANCES)
            .max_memories_per_module(1)
            .max_tables_per_module(4)
            .max_memory_size(ModuleLimits::MAX.memory)
            .linear_memory_keep_resident(RESIDENT);
        let mut config = Config::new();
        configure(&mut config, Job::Module);
        config
            .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
            // A trap is a status: nobody reads the backtrace.
            .wasm_backtrace_max_frames(None)
            .max_wasm_stack(256 << 10)
            .async_stack_size(512 << 10);
        // The pool reserves addresses, not memory. Where those are rationed, each instance takes what it needs.
        let (engine, job) = match wasmtime::Engine::new(&config) {
            Ok(engine) => (Ok(engine), Job::Module),
            Err(_) => {
                configure(&mut config, Job::PlainModule);
                config.allocation_strategy(InstanceAllocationStrategy::OnDemand);
                (wasmtime::Engine::new(&config), Job::PlainModule)
            }
        };
        let engine = engine.map_err(|error| ModuleError::Runtime(format!("{error:#}")))?;
        Ok(Engine { engine, job, memory_left: Arc::new(AtomicUsize::new(MEMORY)) })
    }

    /// An engine for calls that are traced: it knows where in a module a trap happened.
    pub(crate) fn tracing() -> Result<Self, ModuleError> {
        let mut config = Config::new();
        configure(&mut config, Job::PlainModule);
        config.allocation_strategy(InstanceAllocationStrategy::OnDemand).max_wasm_stack(256 << 10);
        let engine = wasmtime::Engine::new(&config);
        let engine = engine.map_err(|error| ModuleError::Runtime(format!("{error:#}")))?;
        Ok(Engine { engine, job: Job::PlainModule, memory_left: Arc::new(AtomicUsize::new(MEMORY)) })
    }

    /// Has a binary module compiled.
    pub(crate) fn compile(&self, bytes: &[u8]) -> Result<wasmtime::Module, ModuleError> {
        let code = compiler::make(self.job, bytes)?;
        // SAFETY: the code comes from the compiler, which is as trusted as this program is, and not from who wrote the
        // module. Code for another version or other settings is refused.
        let module = unsafe { wasmtime::Module::deserialize(self.get(), &code) };
        module.map_err(|error| ModuleError::Compiler(format!("{error:#}")))
    }

    /// The engine of this process, made when it is first asked for.
    pub fn shared() -> Result<Self, ModuleError> {
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
        &self.engine
    }

    /// What is left of the memory of all instances.
    pub(crate) fn memory_left(&self) -> Arc<AtomicUsize> {
        self.memory_left.clone()
    }
}

/// A compiled kernel and its instances.
pub struct Module {
    limits: ModuleLimits,
    /// It asks for what there is no room for.
    long_params: bool,
    inline: Option<Inline>,
    suspended: Suspended,
}

impl Module {
    /// Has a binary module compiled, and makes its first instance.
    pub fn new(engine: &Engine, bytes: &[u8], limits: ModuleLimits, isolation: Isolation) -> Result<Self, ModuleError> {
        limits.check()?;
        let module = engine.compile(bytes)?;
        let imports = check_imports(&module)?;
        check_exports(&module, limits)?;
        let suspended = Suspended::new(engine, &module, limits, isolation)?;
        // Instantiated once, so that a start function that fails is reported here and not at each call.
        let inline = if imports.next_chunk || limits.fuel > INLINE_FUEL {
            suspended.try_out()?;
            None
        } else {
            let inline = Inline::new(engine, &module, limits, isolation)?;
            inline.try_out()?;
            Some(inline)
        };
        Ok(Module { limits, long_params: imports.params, inline, suspended })
    }

    /// Runs one call to its end, if module and memory are such that it need not wait.
    #[inline]
    pub(crate) fn run_now<M: Memory>(&self, place: Option<&Spare>, memory: &M, call: &mut Call) -> Option<Status> {
        if call.params.len() > crate::abi::PARAMS_LEN && !self.long_params {
            return Some(Status::BadParams);
        }
        memory.set_limits(self.limits.access);
        Some(self.inline.as_ref()?.run(place, memory, memory.immediate()?, call))
    }

    /// Runs one call that may wait, after [`run_now`](Self::run_now) did not.
    pub(crate) async fn run_waiting<M: Memory>(&self, memory: &M, call: &mut Call) -> Status {
        self.suspended.run(memory, call).await
    }
}

/// The imports that there are: name, parameters, all with one result.
const IMPORTS: [(&str, &[Kind]); 8] = {
    use Kind::{I32, I64};
    [
        ("read", &[I32, I64, I32, I32]),
        ("write", &[I32, I64, I32, I32]),
        ("compare_swap", &[I32, I64, I64, I64, I32]),
        ("fetch_add", &[I32, I64, I64, I32]),
        ("params", &[I32, I32, I32]),
        ("next_chunk", &[I32, I32]),
        ("reply", &[I32, I32]),
        ("log", &[I32, I32]),
    ]
};

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    I32,
    I64,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::I32 => "i32",
            Kind::I64 => "i64",
        }
    }

    fn is(self, value: &ValType) -> bool {
        matches!((self, value), (Kind::I32, ValType::I32) | (Kind::I64, ValType::I64))
    }
}

/// Types as a signature has them.
fn listed(types: impl Iterator<Item = impl std::fmt::Display>) -> String {
    types.map(|kind| kind.to_string()).collect::<Vec<_>>().join(", ")
}

/// What a module imports that matters to who calls it.
#[derive(Default)]
pub(crate) struct Imports {
    /// It reads a payload.
    next_chunk: bool,
    /// It reads parameters that there is no room for.
    pub params: bool,
}

pub(crate) fn check_imports(module: &wasmtime::Module) -> Result<Imports, ModuleError> {
    let mut imports = Imports::default();
    for import in module.imports() {
        let fail = |detail: &str| {
            let (module, name) = (import.module().into(), import.name().into());
            Err(ModuleError::Import { module, name, detail: detail.into() })
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
            return fail(&format!(
                " as ({}) -> ({}), and it is ({}) -> (i32)",
                listed(found.params()),
                listed(found.results()),
                listed(params.iter().map(|kind| kind.name()))
            ));
        }
        imports.next_chunk |= *name == "next_chunk";
        imports.params |= *name == "params";
    }
    Ok(imports)
}

pub(crate) fn check_exports(module: &wasmtime::Module, limits: ModuleLimits) -> Result<(), ModuleError> {
    match module.get_export("memory") {
        Some(ExternType::Memory(memory)) if !memory.is_64() && !memory.is_shared() => {
            let needs = memory.minimum().saturating_mul(memory.page_size());
            if needs > limits.memory as u64 {
                return Err(ModuleError::Limit(format!(
                    "the module starts with {needs} bytes of memory and may have {}: raise its memory limit",
                    limits.memory
                )));
            }
        }
        _ => return Err(ModuleError::Export("memory")),
    }
    match module.get_export("params") {
        Some(ExternType::Global(global))
            if Kind::I32.is(global.content()) && global.mutability() == Mutability::Const => {}
        _ => {
            return Err(ModuleError::Export("params, a constant global i32: the address of 4096 bytes for parameters"));
        }
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
        _ => Err(ModuleError::Export("run(i32) -> i32")),
    }
}
