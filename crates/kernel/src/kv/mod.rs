//! A key-value store in registered memory: byte keys, and values of any bytes up to 1 MB (RAMBDA, HPCA 2023, section
//! IV-A, after MICA and KV-Direct).
//!
//! A bucket is a line of seven entries and the way to eight overflow buckets, of which bits of the hash choose one. An
//! entry has 16 bits of the key's hash and says where the pair lies, in a block of a slab. So a GET is two accesses, of
//! the bucket and of the pair; a PUT of a new key four: bucket, slab, pair, entry; one of a key that is there four too:
//! bucket, pair, lock, pair.
//!
//! A store grows without a stop: the module `grow` says how its buckets do. Slabs, and tables of buckets, come one behind the other;
//! where the region ends it [grows](crate::Memory::grow) if it may, and addresses and key stay what they are.
//!
//! Any number of readers go beside writers, and both run wherever calls run. Nobody locks to read: a pair ends with a
//! checksum of all of it, and who finds another reads again.
//!
//! - **A pair is changed** where it lies by who has swapped its checksum for [`LOCKED`]; what is written ends with the new
//!   one. Who takes it away locks it too, and then swaps its entry, unless that is another one by now; the block stays locked
//!   till another pair lies there. So nobody changes a pair that is no more.
//! - **A key is added** to a chain of one bucket by swapping the first entry that is 0. Entries that were used are never 0
//!   again, but [`TOMB`], so that all who add the same key swap the same entry, and one of them wins. Where none is 0 the
//!   chain is locked to reuse a tomb or to append buckets, and so is a chain of several buckets for whatever is added: who
//!   walks along it sees no moment of all of it.
//! - **A block** that is given back is reused at once: who still looks at it finds a wrong checksum or another key, and
//!   then looks whether the entry is what it was, and one that the other key has too: a pair may have gone elsewhere and
//!   come back meanwhile. A pair that its caller writes to a block gets its checksum with its entry.
//! - **A pair that gets shorter** by more than half goes to another block, so that what fits into a reply is never in one
//!   that does not.
//!
//! Writers run at the node alone, readers anywhere. A writer that has begun to hold something (a locked pair or chain, a
//! block without an entry) is not suspended there until it is done, and has limits of its own: neither its
//! caller's end nor its own, by whatever limit, leaves anything behind. Elsewhere [`NOT_HERE`] refuses it.
//!
//! Words are little-endian, as the atomics of the node's processor.

#[cfg(test)]
mod ended;
mod find;
mod grow;
#[cfg(test)]
mod growing;
mod item;
mod params;
mod slab;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use find::{Find, Rewrite};
pub use item::{LOCKED, LONGEST_KEY, LONGEST_VALUE, hash, item_len, pair};
pub use params::{KvParams, KvRef, KvValue, Table};
pub use slab::{CLASSES, class_bytes, class_of};
pub use table::{BRANCHES, BUCKET_BYTES, ENTRIES, HEADER_BYTES, TOMB, header, key_in, locate, table_of, value_in};
pub(crate) use table::{delete, get, put, release, reserve, update};

use crate::call::Status;

/// There is no room for the pair: what is freed of another length does not help.
pub const NO_ROOM: Status = Status::Other(24);
/// Who writes would leave a lock behind if it went away here: call the node's NIC or host.
pub const NOT_HERE: Status = Status::Other(25);
