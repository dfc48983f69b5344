//! Memory that peers can reach: buffers, protection domains, regions, keys and 2 MB translation.
//!
//! A [`Buffer`] is a run of bytes that other threads, other processes and remote peers read and write at any time. A
//! [`Registry`] exposes parts of buffers as [`Region`]s, each in a protection domain ([`Pd`]), with rights ([`Access`])
//! and an unguessable key. A region's bytes lie in one run, or scattered, behind a table of 2 MB pages (StRoM, EuroSys
//! 2020, section 4.3). A memory window ([`WindowType`]) is a key of its own to a part of a region.
//!
//! ```
//! use remora_memory::{Access, Buffer, Registry};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let registry = Registry::new([7; 32]); // keys are drawn from this seed: a node takes one from the system
//! let pd = registry.alloc_pd();
//! let buffer = Buffer::anonymous(4096)?;
//! let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
//! let region = registry.register(pd, &buffer, 0, 4096, None, access)?;
//! region.write(region.va() + 8, b"hello")?;
//!
//! // What a peer's READ is held against: key, protection domain, bounds and rights.
//! let found = registry.lookup(region.key()).expect("registered above");
//! found.check(pd, region.va() + 8, 5, Access::REMOTE_READ)?;
//! let mut bytes = [0; 5];
//! found.read(region.va() + 8, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! assert!(found.check(pd, region.va(), 5, Access::REMOTE_WRITE).is_err());
//! assert!(found.check(pd, region.va() + 4092, 8, Access::REMOTE_READ).is_err());
//!
//! registry.deregister(region.key())?; // from here on nobody reaches it by its key
//! assert!(registry.lookup(region.key()).is_none());
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised about concurrent access
//!
//! Nothing here ever hands out `&[u8]` or `&mut [u8]` to such memory; bytes are copied in and out. Every access is made
//! of atomic accesses to whole, aligned 8-byte words: there are no data races, and no racing accesses of mixed size.
//!
//! - A copy runs in increasing address order. Each word is loaded with `Acquire` and stored with `Release`. So whoever
//!   sees (with an `Acquire` load, [`Buffer::load_u64`] or a `read`) a byte of a write, sees all bytes of that write at
//!   lower addresses when reading them *afterwards*. Polling on the last byte of a message is therefore enough.
//! - An aligned 8-byte word never tears: a reader sees it as it was before or after any one write, be that write a
//!   plain one, a [`Region::compare_swap`] or a [`Region::fetch_add`].
//! - Anything longer may tear, at word borders: a `read` that runs beside a `write` may return old and new words in any
//!   mix. Use a version, a checksum or a lock where that matters.
//! - A write that covers a word in part replaces just those bytes, atomically; bytes next to them are never disturbed,
//!   nor are concurrent writes to them lost.
//!
//! [`Buffer::take`] alone promises less: it is for bytes that nobody is to write any more, and loads them in whatever
//! pieces are quickest, in assembly. If somebody writes them all the same, any mix of old and new bytes comes out.
//!
//! So do [`Region::lift`] and [`Region::land`], between a region and memory shared with a peer, on that other side alone: the
//! region's words are whole, and stored in increasing order.
//!
//! [`Region::fetch`], from a [`View`] of what another process has lent, keeps the whole promise on both sides: words that are aligned
//! in both are loaded whole and stored whole.
//!
//! [`Words::rank`], [`Words::take`] and [`Words::add_rows`] too look at words in pieces as are quickest: who calls them finds out
//! afterwards whether they were written, or makes do with any mix.
//!
//! The promise covers everyone who goes through this crate. Plain stores of other programs to the same memory keep it
//! as far as their instructions do.

mod buffer;
mod copy;
mod loan;
mod lookahead;
mod region;
mod registry;
mod scatter;
mod window;
mod words;

pub use buffer::{Buffer, OutOfBounds, PageKind};
pub use copy::stream_fence;
pub use loan::{Lent, Loans, MAX_LOANS, Place, Reference, View};
pub use lookahead::Lookahead;
pub use region::{Access, AccessError, PAGE_BYTES, Region};
pub use registry::{DeregisterError, MAX_REGIONS, Pd, PdBusy, RegisterError, Registry, Translation};
pub use scatter::Scatter;
pub use window::{Binder, Binding, WindowError, WindowType};
pub use words::{Runs, Words, WordsMut};
