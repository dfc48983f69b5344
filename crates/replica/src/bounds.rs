//! The bounds and times that products ship with, in one place: the cluster runs with them, and storms draw among them
//! and smaller ones.

use crate::Time;

/// Longest value that a cluster takes, in bytes.
pub const MAX_VALUE: usize = 1 << 20;

/// Bounds and times of a cluster and its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Clients whose last request a record remembers: [`crate::ddp::Config::stamps`].
    pub stamps: usize,
    /// Scopes that may be open at once: [`crate::ddp::Config::max_scopes`].
    pub max_scopes: usize,
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

impl Bounds {
    /// What the real cluster and its clients have.
    pub const SHIPPED: Self = Self {
        stamps: 32,
        max_scopes: 1024,
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
