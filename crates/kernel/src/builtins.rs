//! What a kernel is, and the kernels that every place has.

use crate::call::{Call, Status};
use crate::memory::Memory;
use crate::{checksum, compress, consistency, filter, get, hll, shuffle, traversal};

/// A small program over memory.
#[allow(async_fn_in_trait, reason = "whether a future is Send follows from the memory")]
pub trait Kernel {
    /// Runs `call`, whose op-code it knows or refuses with [`Status::UnknownOp`].
    async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status;
}

/// The built-in kernels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Builtins;

/// What a built-in kernel works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The node's memory.
    Memory,
    /// A payload stream.
    Stream,
    /// Either, as the parameters say.
    Either,
}

/// A built-in kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Builtin {
    /// Its op-code.
    pub op: u64,
    /// As reports spell it.
    pub name: &'static str,
    /// What it works on.
    pub input: Input,
}

/// The one table of built-in kernels: constant, op-code, name, input, and the function that runs it.
macro_rules! builtins {
    ($(
        $(#[$doc:meta])*
        $constant:ident = $op:literal, $name:literal, $input:ident: |$memory:ident, $call:ident| $run:expr;
    )*) => {
        /// Op-codes of the built-in kernels.
        pub mod op {
            use super::{BUILTINS as TABLE};

            $($(#[$doc])* pub const $constant: u64 = $op;)*

            /// All of them.
            pub const BUILTINS: [u64; TABLE.len()] = [$($op),*];
        }

        /// All built-in kernels, in the order of their op-codes.
        pub const BUILTINS: &[Builtin] = &[$(Builtin { op: $op, name: $name, input: Input::$input }),*];

        impl Kernel for Builtins {
            #[inline]
            async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status {
                let result = match call.op {
                    $(op::$constant => { let ($memory, $call) = (memory, call); $run.await })*
                    _ => Err(Status::UnknownOp),
                };
                result.err().unwrap_or(Status::Ok)
            }
        }
    };
}

builtins! {
    /// Follows a linked structure to a value.
    TRAVERSAL = 1, "traversal", Memory: |memory, call| traversal::run(memory, call);
    /// Looks a key up in a hash table.
    GET = 2, "get", Memory: |memory, call| get::run(memory, call);
    /// Reads an object until its checksum holds.
    CONSISTENCY = 3, "consistency", Memory: |memory, call| consistency::run(memory, call);
    /// Computes the checksum of a payload stream.
    CHECKSUM = 4, "checksum", Stream: |_memory, call| checksum::run(call);
    /// Counts the distinct values of a payload stream.
    HYPERLOGLOG = 5, "hyperloglog", Stream: |memory, call| hll::run(memory, call);
    /// Partitions a payload stream.
    SHUFFLE = 6, "shuffle", Stream: |memory, call| shuffle::run(memory, call);
    /// Filters and aggregates rows.
    FILTER = 7, "filter", Either: |memory, call| filter::run(memory, call);
    /// Compresses what memory holds.
    COMPRESS = 8, "compress", Memory: |memory, call| compress::compress(memory, call);
    /// Restores compressed blocks into memory.
    DECOMPRESS = 9, "decompress", Stream: |memory, call| compress::decompress(memory, call);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_codes_and_names_are_each_one_kernels() {
        for (at, kernel) in BUILTINS.iter().enumerate() {
            assert_eq!(kernel.op, op::BUILTINS[at]);
            let others = &BUILTINS[at + 1..];
            assert!(others.iter().all(|other| other.op > kernel.op && other.name != kernel.name), "{kernel:?}");
        }
    }
}
