//! The bounds and times that products ship with, in one place: the cluster runs with them, and storms draw among them
//! and smaller ones.

use crate::Time;

/// Longest value that a cluster takes, in bytes.
pub const MAX_VALUE: usize = 1 << 20;

/// [`crate::ddp::Config::backlog`] of the real cluster.
pub const BACKLOG: usize = 64 << 20;

/// Bounds and times of a cluster and its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Clients whose last request a record remembers: [`crate::ddp::Config::stamps`].
    pub stamps: usize,
    /// Scopes that may be open at once: [`crate::ddp::Config::max_scopes`].
    pub max_scopes: usize,
    /// Records that a scope may have written: [`crate::ddp::Config::scope_keys`].
    pub scope_keys: usize,
    /// Longest value, in bytes.
    pub max_value: usize,
    /// Operations of one batch.
    pub batch: usize,
    /// Longest frame of a client, in bytes: a few values, as in a compare-and-swap or a small batch. An answer's contents
    /// have half of it.
    pub client_frame: usize,
    /// Longest frame of another node, in bytes: what a batch makes of a client's frame. A batch's INVs have half of it.
    pub peer_frame: usize,
    /// Entries of vFIFO and dFIFO, where the protocol runs on the NIC: what may be on its way to memory and log at once.
    pub fifo: u16,
    /// How long (ns) writes gather before the log gets them, in a model that does not wait for that.
    pub write_back: Time,
    /// How long (ns) a node may take to answer a call.
    pub dial: Time,
    /// How long (ns) a node may leave all of a client's requests unanswered before the client asks another one.
    pub silence: Time,
    /// How long (ns) a client waits before the next call when all nodes have been called in vain.
    pub pause: Time,
}

/// Bytes that PERSIST takes for each record of its scope: the record's key, and the version's number and node.
pub(crate) const PERSIST_RECORD: usize = 8 + 8 + 1;
/// Times as many records as a node lets into a scope may be in it all the same: it lets others' in that it had not heard of,
/// and what it let in before it failed.
pub(crate) const SCOPE_OVER: usize = 3;
// A PERSIST is one frame. A longer one than others take would cost its sender the connection, again and again.
const _: () = assert!(SCOPE_OVER * Bounds::SHIPPED.scope_keys * PERSIST_RECORD + 64 <= Bounds::SHIPPED.peer_frame);

impl Bounds {
    /// What the real cluster and its clients have.
    pub const SHIPPED: Self = Self {
        stamps: 32,
        max_scopes: 1024,
        scope_keys: 1 << 20,
        max_value: MAX_VALUE,
        batch: 1024,
        client_frame: 4 * MAX_VALUE,
        peer_frame: 64 << 20,
        fifo: 16_384,
        write_back: 5_000_000,
        dial: 200_000_000,
        silence: 1_000_000_000,
        pause: 5_000_000,
    };
}
