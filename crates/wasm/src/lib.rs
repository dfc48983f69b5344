//! Kernels that users bring: core WebAssembly modules, bounded in time and memory, that run wherever kernels run.
//!
//! A module imports what it needs of the functions in [`abi`] and exports its entry; it reaches no memory but its own
//! and, through those functions, what its caller could reach by verbs. Where accesses never wait (a node's NIC and host)
//! and the module is short enough, it runs as a plain call; elsewhere it runs on a stack of its own, which is suspended
//! at each access and after every [`SLICE`] instructions.
//!
//! ```text
//!  call --> KernelSet --> Module --> spare instance --> run(params) --> read, write, ... --> status, reply
//!              |                        (reset or kept between calls: Isolation)
//!              +--> built-in kernels
//! ```

pub mod abi;
mod inline;
mod instance;
mod module;
mod set;
mod suspended;

pub use module::{Engine, Error, Isolation, Module, ModuleLimits};
pub use set::{Entry, FIRST_USER_OP, KernelSet, SetError, host_runner};
pub use suspended::SLICE;
