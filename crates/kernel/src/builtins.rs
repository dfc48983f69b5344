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

/// Op-codes of the built-in kernels.
pub mod op {
    /// Follows a linked structure to a value.
    pub const TRAVERSAL: u64 = 1;
    /// Looks a key up in a hash table.
    pub const GET: u64 = 2;
    /// Reads an object until its checksum holds.
    pub const CONSISTENCY: u64 = 3;
    /// Computes the checksum of a payload stream.
    pub const CHECKSUM: u64 = 4;
    /// Filters and aggregates rows.
    pub const FILTER: u64 = 7;
    /// Compresses what memory holds.
    pub const COMPRESS: u64 = 8;
    /// Restores compressed blocks into memory.
    pub const DECOMPRESS: u64 = 9;
    /// Partitions a payload stream.
    pub const SHUFFLE: u64 = 6;
    /// Counts the distinct values of a payload stream.
    pub const HYPERLOGLOG: u64 = 5;
    /// All of them.
    pub const BUILTINS: [u64; 9] =
        [TRAVERSAL, GET, CONSISTENCY, CHECKSUM, HYPERLOGLOG, SHUFFLE, FILTER, COMPRESS, DECOMPRESS];
}

/// The built-in kernels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Builtins;

impl Kernel for Builtins {
    #[inline]
    async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status {
        let result = match call.op {
            op::TRAVERSAL => traversal::run(memory, call).await,
            op::GET => get::run(memory, call).await,
            op::CONSISTENCY => consistency::run(memory, call).await,
            op::CHECKSUM => checksum::run(call).await,
            op::FILTER => filter::run(memory, call).await,
            op::COMPRESS => compress::compress(memory, call).await,
            op::DECOMPRESS => compress::decompress(memory, call).await,
            op::SHUFFLE => shuffle::run(memory, call).await,
            op::HYPERLOGLOG => hll::run(memory, call).await,
            _ => Err(Status::UnknownOp),
        };
        result.err().unwrap_or(Status::Ok)
    }
}
