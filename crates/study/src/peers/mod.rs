//! Replicated stores beside each other: Remora's cluster, etcd and Redis under one load.
//!
//! A [`PeerStore`] takes requests of which many can be under way. [`drive::Loaded::drive`] keeps a fixed number of them under way,
//! checks every answer, and tells what came out. [`etcd`] and [`redis`] start stores of three nodes on this machine and
//! end them; [`disk`] tells what one durable append takes without any store.

pub mod bench;
pub mod chain;
pub mod cluster;
pub mod cores;
pub mod disk;
pub mod drive;
pub mod etcd;
mod grpc;
pub(crate) mod process;
mod proto;
pub mod redis;
pub(crate) mod resp;
mod value;

use std::path::PathBuf;
use std::time::Duration;

pub use remora_lab::installed;

/// A request about a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// Read it; the answer may be no older than what had been answered before.
    Get(u64),
    /// Write it.
    Put(u64, &'a [u8]),
    /// Read these and write those, all at once: what is read is as it was before.
    Transact(&'a [u64], &'a [(u64, Vec<u8>)]),
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The value that was read; `None` if there is no such record.
    Value(Option<&'a [u8]>),
    /// It is written, as durably as the store promises.
    Written,
    /// So is all that a transaction writes; and the values that it read.
    Transacted(&'a [Option<&'a [u8]>]),
    /// The node lost its place in the cluster meanwhile: it may be done or not, or may still be.
    Unknown,
}

/// How long a request was at the node that answered it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtNode {
    /// From when it reached the node until it left again, in nanoseconds.
    pub total_ns: u64,
    /// The part of it in which messages about it were under way between nodes.
    pub communication_ns: u64,
}

/// Hears of each request that has ended: its client, the answer, and how long it was at its node, if that tells.
pub type Done<'a> = &'a mut dyn FnMut(usize, Answer<'_>, Option<AtNode>);

/// A store, reached over as many connections as it does best with.
pub trait PeerStore {
    /// Sends a request for the client `slot`, which has none under way.
    fn submit(&mut self, slot: usize, ask: Ask<'_>) -> Result<(), PeerError>;

    /// Waits for a short while, until requests have ended, and reports each.
    fn wait(&mut self, done: Done<'_>) -> Result<(), PeerError>;
}

/// Why a store cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// A program could not be started.
    #[error("cannot start {program}: {error}")]
    Start {
        /// Its path.
        program: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// A store did not come up.
    #[error("{what} does not serve after {} s: {log}", after.as_secs())]
    NotUp {
        /// Which.
        what: &'static str,
        /// How long was waited.
        after: Duration,
        /// The end of what it said.
        log: String,
    },
    /// The way to a store failed.
    #[error("{what}: {error}")]
    Connection {
        /// Which store.
        what: &'static str,
        /// What the system says.
        error: std::io::Error,
    },
    /// What came is not of the protocol, or says that something failed.
    #[error("{what}: {why}")]
    Answer {
        /// Which store.
        what: &'static str,
        /// What it says.
        why: String,
    },
    /// A value that cannot be, or a read of what had been overwritten before it began.
    #[error("record {record} was read wrongly: {why}")]
    Wrong {
        /// Which.
        record: u64,
        /// What is wrong.
        why: String,
    },
    /// Requests under way bring no answer.
    #[error("no answer for {} s", after.as_secs())]
    Stuck {
        /// How long was waited.
        after: Duration,
    },
    /// A file cannot be written.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The user wants no more.
    #[error("interrupted")]
    Interrupted,
}

/// A key as the stores with keys of bytes have it: the record's number, most significant byte first.
fn key(record: u64) -> [u8; 8] {
    record.to_be_bytes()
}
