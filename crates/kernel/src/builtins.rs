//! What a kernel is, and the kernels that every place has.

use crate::call::{Call, Status};
use crate::memory::Memory;
use crate::placement::Placement;
use crate::{
    btree, checksum, compress, consistency, embed, filter, get, hll, kv, sequencer, shuffle, steps, traversal,
};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

/// A small program over memory.
#[allow(async_fn_in_trait, reason = "whether a future is Send follows from the memory")]
pub trait Kernel {
    /// Runs `call`, whose op-code it knows or refuses with [`Status::UnknownOp`].
    async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status;
}

/// The built-in kernels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Builtins;

/// A future whose code stays out of the code that awaits it: kernels of a few accesses would pay for large ones beside
/// them.
async fn apart<F: Future>(future: F) -> F::Output {
    #[inline(never)]
    fn poll<F: Future>(future: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<F::Output> {
        future.poll(cx)
    }
    let mut future = pin!(future);
    poll_fn(|cx| poll(future.as_mut(), cx)).await
}

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

/// Where a kernel may run if its caller leaves the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// Anywhere.
    All,
    /// On the node: at a client, which may go away in the middle of it, it is refused, but to an owner of a tree.
    Node,
}

impl Places {
    /// Of the kernel with this op-code: all, if it is not a built-in one.
    pub fn of(op: u64) -> Self {
        Builtin::of(op).map_or(Self::All, |kernel| kernel.places)
    }

    /// Whether this is one of them.
    pub fn has(self, place: Placement) -> bool {
        self == Self::All || place != Placement::Client
    }
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
    /// Where it may run.
    pub places: Places,
}

impl Builtin {
    /// The one with this op-code.
    pub fn of(op: u64) -> Option<&'static Self> {
        BUILTINS.iter().find(|kernel| kernel.op == op)
    }
}

/// The one table of built-in kernels: constant, op-code, name, input, places, and the function that runs it.
macro_rules! builtins {
    ($(
        $(#[$doc:meta])*
        $constant:ident = $op:literal, $name:literal, $input:ident, $places:ident: |$memory:ident, $call:ident| $run:expr;
    )*) => {
        /// Op-codes of the built-in kernels.
        pub mod op {
            use super::{BUILTINS as TABLE};

            $($(#[$doc])* pub const $constant: u64 = $op;)*

            /// All of them.
            pub const BUILTINS: [u64; TABLE.len()] = [$($op),*];
        }

        /// All built-in kernels, in the order of their op-codes.
        pub const BUILTINS: &[Builtin] =
            &[$(Builtin { op: $op, name: $name, input: Input::$input, places: Places::$places }),*];

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
    TRAVERSAL = 1, "traversal", Memory, All: |memory, call| steps::run::<traversal::Traversal, _>(memory, call);
    /// Looks a key up in a hash table.
    GET = 2, "get", Memory, All: |memory, call| steps::run::<get::Get, _>(memory, call);
    /// Reads an object until its checksum holds.
    CONSISTENCY = 3, "consistency", Memory, All: |memory, call| consistency::run(memory, call);
    /// Computes the checksum of a payload stream.
    CHECKSUM = 4, "checksum", Stream, All: |memory, call| apart(checksum::run(memory, call));
    /// Counts the distinct values of a payload stream.
    HYPERLOGLOG = 5, "hyperloglog", Stream, All: |memory, call| apart(hll::run(memory, call));
    /// Partitions a payload stream.
    SHUFFLE = 6, "shuffle", Stream, All: |memory, call| apart(shuffle::run(memory, call));
    /// Filters and aggregates rows.
    FILTER = 7, "filter", Either, All: |memory, call| apart(filter::run(memory, call));
    /// Compresses what memory holds.
    COMPRESS = 8, "compress", Memory, All: |memory, call| apart(compress::compress(memory, call));
    /// Restores compressed blocks into memory.
    DECOMPRESS = 9, "decompress", Stream, All: |memory, call| apart(compress::decompress(memory, call));
    /// Looks a key up in a B-tree.
    TREE_GET = 16, "tree-get", Memory, All: |memory, call| apart(btree::get(memory, call));
    /// Writes a key of a B-tree.
    TREE_PUT = 17, "tree-put", Memory, Node: |memory, call| apart(btree::put(memory, call));
    /// Takes a key out of a B-tree.
    TREE_DELETE = 18, "tree-delete", Memory, Node: |memory, call| apart(btree::delete(memory, call));
    /// Reads keys of a B-tree in order.
    TREE_SCAN = 19, "tree-scan", Memory, All: |memory, call| apart(btree::scan(memory, call));
    /// Ends what a client left half done in a B-tree that is gone.
    TREE_RECOVER = 20, "tree-recover", Memory, All: |memory, call| apart(btree::recover(memory, call));
    /// Gives numbers out that nobody else gets.
    SEQUENCER = 21, "sequencer", Memory, All: |memory, call| sequencer::run(memory, call);
    /// Looks a key of bytes up in a key-value store.
    KV_GET = 24, "kv-get", Memory, All: |memory, call| kv::get(memory, call);
    /// Writes a pair of a key-value store.
    KV_PUT = 25, "kv-put", Memory, Node: |memory, call| apart(kv::put(memory, call));
    /// Writes the value of a key that a key-value store has.
    KV_UPDATE = 26, "kv-update", Memory, Node: |memory, call| apart(kv::update(memory, call));
    /// Takes a pair out of a key-value store.
    KV_DELETE = 27, "kv-delete", Memory, Node: |memory, call| apart(kv::delete(memory, call));
    /// Takes a block of a key-value store for a long pair.
    KV_RESERVE = 28, "kv-reserve", Memory, Node: |memory, call| apart(kv::reserve(memory, call));
    /// Gives a block of a key-value store back that was reserved and is not put.
    KV_RELEASE = 29, "kv-release", Memory, Node: |memory, call| apart(kv::release(memory, call));
    /// Makes one row of many of an embedding table.
    EMBED = 32, "embed", Memory, All: |memory, call| apart(embed::run(memory, call));
    /// Moves the border between the two parts of an index.
    TREE_MOVE = 33, "tree-move", Memory, Node: |memory, call| apart(btree::move_split(memory, call));
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
