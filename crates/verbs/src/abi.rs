//! Layouts of libibverbs as rdma-core 44 has them (`infiniband/verbs.h`), field by field.
//!
//! Names are the header's, so that the two can be read side by side; `tests/layout.rs` compares sizes and offsets with
//! what a C compiler makes of the header.

#![allow(non_camel_case_types, missing_docs)]

mod consts;
mod device;
#[cfg(test)]
mod layout;
mod objects;
mod work;

pub use consts::*;
pub use device::*;
pub use objects::*;
pub use work::*;
