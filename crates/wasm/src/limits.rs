//! What a module may use up, and why bytes are no kernel.

use remora_kernel::Limits;

/// Why bytes are no kernel.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// Not WebAssembly, or not valid, or of a feature that kernels do not have.
    #[error("not a WebAssembly module that kernels can be made of: {0}")]
    Invalid(String),
    /// An import that there is not.
    #[error(
        "imports {}.{}{detail}: kernels import read, write, compare_swap, fetch_add, params, next_chunk, reply and log from \"remora\"",
        .module.escape_debug(), .name.escape_debug()
    )]
    Import {
        /// Module name.
        module: String,
        /// Function name.
        name: String,
        /// What is wrong with it, if the name is known.
        detail: String,
    },
    /// An export that is not there or of another type.
    #[error("has no export {0}")]
    Export(&'static str),
    /// A limit that makes no sense.
    #[error("{0}")]
    Limit(String),
    /// Not WebAssembly text.
    #[error("{0}")]
    Text(String),
    /// Compiling it takes more than there is for one module.
    #[error("compiling it takes more than {0}: make it smaller, or its functions")]
    Costly(String),
    /// The compiler did not run.
    #[error("the compiler of kernels: {0}")]
    Compiler(String),
    /// The runtime could not be set up.
    #[error("the WebAssembly runtime: {0}")]
    Runtime(String),
}

/// What one call of a module may use up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleLimits {
    /// WebAssembly instructions, about.
    pub fuel: u64,
    /// Bytes of the module's own memory.
    pub memory: usize,
    /// Accesses of remote memory, and bytes moved by them.
    pub access: Limits,
}

impl Default for ModuleLimits {
    /// A million instructions, 4 MB, and [`Limits::default`].
    fn default() -> Self {
        ModuleLimits { fuel: 1_000_000, memory: 4 << 20, access: Limits::default() }
    }
}

impl ModuleLimits {
    /// The ceilings: what may be asked for at most.
    pub const MAX: ModuleLimits =
        ModuleLimits { fuel: 1_000_000_000, memory: 64 << 20, access: Limits { steps: 1_000_000, bytes: 1 << 30 } };

    /// Refuses what is above a ceiling.
    pub fn check(&self) -> Result<(), ModuleError> {
        let max = Self::MAX;
        for (name, value, ceiling) in [
            ("fuel (--fuel)", self.fuel, max.fuel),
            ("bytes of its own memory (--module-memory)", self.memory as u64, max.memory as u64),
            ("accesses (--accesses)", self.access.steps.into(), max.access.steps.into()),
            ("bytes of traffic (--traffic)", self.access.bytes, max.access.bytes),
        ] {
            if value > ceiling {
                return Err(ModuleError::Limit(format!("a kernel may have at most {ceiling} {name}, not {value}")));
            }
        }
        Ok(())
    }
}

/// What becomes of a module's own memory between calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// It stays: calls are faster, and what one leaves the next one finds.
    #[default]
    Reused,
    /// Each call starts with the memory that the module describes, and sees nothing of another call.
    Fresh,
}

/// Instructions after which a call gives way to others: as many as a turn of its place is for.
pub const SLICE: u64 = remora_kernel::TURN;
/// Fuel that making an instance is worth, and dropping the one before, which mostly trapped: about 20 us.
#[cfg_attr(not(feature = "modules"), allow(dead_code, reason = "without modules none is made"))]
pub(crate) const MAKE_FUEL: u64 = 50_000;
