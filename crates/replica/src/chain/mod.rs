//! Replicated transactions: a chain of replicas, each with a redo log as a ring in persistent memory (RAMBDA, section IV-B).
//!
//! Data is one run of bytes. A transaction reads some ranges of it, may expect contents of others, and writes tuples of
//! (data, length, offset). The head of the chain takes transactions that write. Its table of keys ([`Table`]) has those
//! that touch the same keys wait for each other, in the order of arrival; what is ready becomes an *entry*, which goes
//! down the chain into the ring of each replica ([`layout`]), to the next one without waiting for its being durable. The last
//! one acknowledges what is durable there; the acknowledgement goes back along the chain, with each replica's own, to the head.
//! That commits the entry: it applies it to its data and says so down the chain, where each does the same. Members
//! answer transactions that only read by themselves. Keys with an entry under way wait for it, so that it makes no
//! difference which member is asked. Who only reads can do so by one-sided READ of the head's memory, too ([`WindowRead`]).
//!
//! Who is in the chain a view says ([`crate::member`]): members by number, then learners. When a view begins, members tell
//! its head what their rings hold; the longest log is everybody's, since what was committed is in all of them. A learner is
//! the end of the chain at once, and pulls the data piece by piece while service goes on. It becomes a member in the next view.
//!
//! [`Chain`] is one replica; [`ChainNode`] is one with its membership; [`LoggedChain`] is one whose persistent memory is a log.

mod catch_up;
mod client;
mod codec;
mod layout;
mod logged;
mod node;
mod replica;
mod serve;
mod sessions;
mod table;
#[cfg(test)]
mod tests;
mod types;
mod view;
mod window;

pub use client::{ChainClient, ChainExchange};
pub use layout::{Layout, scan};
pub use logged::{LoggedChain, LoggedOutput};
pub use node::{ChainNode, ChainNodeOutput, ChainPacket};
pub use replica::{Chain, ChainOutput};
pub use table::Table;
pub use types::{
    ChainConfig, ChainMarks, ChainMessage, ChainMutation, ChainOutcome, ChainRefusal, ChainReply, ChainRequest, Entry,
    Extent, Transaction, Tuple,
};
pub use window::{Lines, WindowEnd, WindowRead};
