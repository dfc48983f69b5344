//! Rings of requests and responses in memory, written by one-sided WRITEs alone (RAMBDA, HPCA 2023, section III).
//!
//! Everything here is an engine: it has no clock, socket or thread. A pair of rings joins a client and a server: the
//! request ring lies in the server's memory, the response ring in the client's. Either side is a [`RingEnd`]: it puts
//! messages into a [`Sender`] and takes them from a [`Receiver`]. What is to be written to the peer's memory comes out of
//! [`RingEnd::poll_write`], and the world carries it, by a WRITE or by plain stores.
//!
//! ```text
//!  RingEnd::push --> a copy of the peer's ring --- WRITE: frames, pointer word ---> the ring --> RingEnd::poll
//!       ^                                                                                            |
//!       +---------------- credit: how far the peer has read, in each frame or pointer word ----------+
//! ```
//!
//! - A message is a frame of whole entries ([`RingShape`]): a word with its length and a credit, its bytes, and a mark in
//!   the last byte, which lands last. Who reads a frame resets its entries to 0, so that no part of it is taken for a part
//!   of the next. A message may go round the end of the ring, and be as long as the ring is.
//! - A side sends as long as its peer has room, and knows that from the credits that messages bring. So a message takes
//!   one network trip, and none is for credits alone unless the peer would be stuck without.
//! - Frames that are pushed one after the other leave as one WRITE.
//! - Nobody polls a thousand rings: the landing of a WRITE is a signal ([`Signals`]), or that of the *pointer word*
//!   behind the ring, which says how far the ring is filled. Signals may come together and in any order. The
//!   [`RingScheduler`] says whose request is next.
//!
//! What the peer writes is checked before it is believed: see [`RingError`].

mod end;
mod frame;
mod receiver;
mod scheduler;
mod sender;
mod shape;
mod shared;
mod signals;

pub use end::{Notify, RingEnd, RingWrite};
pub use receiver::Receiver;
pub use scheduler::RingScheduler;
pub use sender::{PushError, Sender};
pub use shape::{RingShape, ShapeError};
pub use shared::SharedEnd;
pub use signals::Signals;

/// What a peer wrote that no peer writes that keeps to the rules. End the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// A frame's length is more than the ring's.
    #[error("the frame at entry {entry} of the ring has {len} bytes, and no frame has more than {most}")]
    Length {
        /// Where it begins.
        entry: u32,
        /// What it says.
        len: u32,
        /// What it may say.
        most: u32,
    },
    /// A message is shorter than any that there is.
    #[error("a message of {len} bytes, and none has fewer than {least}")]
    Short {
        /// Its length.
        len: u32,
        /// What it should have at least.
        least: u32,
    },
    /// The peer makes no room for what is to be sent to it.
    #[error("the ring of answers is full, and {answers} more have waited too long for room")]
    Unread {
        /// How many.
        answers: usize,
    },
    /// The last byte of a frame is neither 0 nor the mark.
    #[error("the frame at entry {entry} of the ring ends with {found:#04x} instead of a mark")]
    Mark {
        /// Where it begins.
        entry: u32,
        /// What stands there.
        found: u8,
    },
    /// The peer has read what was never sent.
    #[error("the peer says that it has read up to {credit}, of a ring that was filled from {head} to {tail}")]
    Credit {
        /// What it says, modulo 2^32.
        credit: u32,
        /// What it said before.
        head: u64,
        /// How far its ring was filled.
        tail: u64,
    },
    /// The pointer is further on than the ring is long.
    #[error("the pointer is at {tail}, and the ring of {entries} entries was read up to {head}")]
    Pointer {
        /// What it says, modulo 2^32.
        tail: u32,
        /// How far the ring was read.
        head: u64,
        /// How long it is.
        entries: u32,
    },
}
