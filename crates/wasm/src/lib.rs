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
//! Modules are compiled by a process of their own: see [`compiler`]. The feature `modules` (on by default) brings what
//! runs them. Without it they cannot be deployed, and say so: for programs that never run one.

pub mod abi;
pub mod compiler;
#[cfg(feature = "modules")]
mod inline;
#[cfg(feature = "modules")]
mod instance;
mod limits;
#[cfg(feature = "modules")]
mod module;
#[cfg(not(feature = "modules"))]
#[path = "without.rs"]
mod module;
#[cfg(feature = "modules")]
mod pool;
mod set;
#[cfg(feature = "modules")]
mod suspended;
#[cfg(feature = "modules")]
pub mod trace;

pub use limits::{Isolation, ModuleError, ModuleLimits, SLICE};
pub use module::{Engine, INLINE_FUEL, Module};
pub use set::{DeployedModule, FIRST_USER_OP, KernelSet, MAX_NAME, SetError, USER_OPS, host_runner};
