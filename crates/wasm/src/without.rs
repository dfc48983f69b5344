//! Modules without what runs them: there are none.

use remora_kernel::{Call, Memory, Status};

use crate::limits::{Isolation, ModuleError, ModuleLimits};

/// See the module with it.
pub const INLINE_FUEL: u64 = 10_000;

/// Runs modules, or would.
#[derive(Clone)]
pub struct Engine(());

impl Engine {
    /// Always an error here.
    pub fn shared() -> Result<Self, ModuleError> {
        Err(ModuleError::Runtime(
            "this program was built without it: see the feature \"modules\" of remora-wasm".into(),
        ))
    }
}

/// A place's own instance of a module: there is none.
#[derive(Default)]
pub(crate) struct Spare(());

/// A compiled kernel: there is none.
pub struct Module(std::convert::Infallible);

impl Module {
    /// Always an error here.
    pub fn new(_: &Engine, _: &[u8], _: ModuleLimits, _: Isolation) -> Result<Self, ModuleError> {
        Engine::shared().map(|_| unreachable!("there is no engine"))
    }

    /// Never called.
    pub(crate) async fn run_waiting<M: Memory>(&self, _: &M, _: &mut Call) -> Status {
        match self.0 {}
    }

    /// Never called.
    pub(crate) fn run_now<M: Memory>(&self, _: Option<&Spare>, _: &M, _: &mut Call) -> Option<Status> {
        match self.0 {}
    }
}
