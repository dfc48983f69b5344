//! Kernels that users bring: core WebAssembly modules, bounded in time and memory, that run wherever kernels run.
//!
//! A module imports what it needs of the functions in [`abi`] and exports its entry; it reaches no memory but its own
//! and, through those functions, what its caller could reach by verbs. Where accesses never wait (a node's NIC and
//! host) and the module is short enough, it runs as a plain call; elsewhere it runs on a stack of its own, which is
//! suspended at each access and after every [`SLICE`] instructions.
//!
//! ```text
//!  call --> KernelSet --> Module --> spare instance --> run(params) --> read, write, ... --> status, reply
//!              |                        (reset or kept between calls: Isolation)
//!              +--> built-in kernels
//! ```
//!
//! The feature `jit` (on by default) brings the compiler. Without it modules cannot be deployed, and say so: for
//! programs that never run one, and should not carry a compiler.

pub mod abi;
#[cfg(feature = "jit")]
mod inline;
#[cfg(feature = "jit")]
mod instance;
mod limits;
#[cfg(feature = "jit")]
mod module;
#[cfg(not(feature = "jit"))]
#[path = "without.rs"]
mod module;
#[cfg(feature = "jit")]
mod pool;
mod set;
#[cfg(feature = "jit")]
mod suspended;
#[cfg_attr(not(feature = "jit"), allow(dead_code, reason = "without modules nothing is spent"))]
mod turns;

pub use limits::{Isolation, ModuleError, ModuleLimits, SLICE};
pub use module::{Engine, Module};
pub use set::{DeployedModule, FIRST_USER_OP, KernelSet, SetError, USER_OPS, host_runner};
