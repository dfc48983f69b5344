//! What a storm asks of an engine, and what its clients do.
//!
//! Engines take requests as [`remora_replica`]'s clients make them, and answer as its nodes do: the client half of every
//! storm is [`remora_replica::client`], which products ship with.

use std::fmt;

use remora_replica::ddp::{Reply, Request};

use crate::disk::DiskWrite;
use crate::events::Time;

/// What a record holds: a number, or nothing. Adapters turn numbers into values of many lengths and back.
pub type Value = Option<u64>;

/// One operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads the value.
    Get,
    /// Writes a value that no one else ever writes.
    Put(u64),
    /// Removes the record.
    Delete,
    /// Writes `new` if the value is `expected`; reads the value in any case.
    CompareSwap {
        /// The value to be replaced.
        expected: Value,
        /// The value to write; unique.
        new: u64,
    },
    /// Adds to the number (0 if there is none); reads the old value. Only for keys that [`is_counter`] names.
    FetchAdd(u64),
}

/// Whether the values of a key are plain numbers, and not of many lengths.
pub fn is_counter(key: u32) -> bool {
    key.is_multiple_of(2)
}

/// An operation and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Index of the record.
    pub key: u32,
    /// What to do.
    pub action: Action,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Operations on different keys. They are one request, not one transaction.
    Ops(Vec<Op>),
    /// Make the scope's writes durable.
    PersistScope,
}

impl Body {
    /// One read.
    pub fn get(key: u32) -> Self {
        Self::Ops(vec![Op { key, action: Action::Get }])
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nobody knows: the operation took effect, will, or never does.
    Unknown,
    /// It did not happen.
    Refused,
    /// Done, with the value found by operations that read.
    Done(Value),
}

/// What an engine wants done.
#[derive(Debug)]
pub enum EngineOutput<M> {
    /// A message for another node.
    Send {
        /// Receiver.
        to: usize,
        /// What to send.
        message: M,
    },
    /// Change the log file, sync it, and say so with [`Engine::persisted`].
    Write {
        /// Comes back when it is durable. Tokens are the engine's own.
        token: u64,
        /// The change.
        write: DiskWrite,
    },
    /// The answer to a request.
    Reply(Reply),
}

/// What a node starts with.
#[derive(Debug)]
pub struct Boot {
    /// Which node it is.
    pub node: usize,
    /// How many there are.
    pub nodes: usize,
    /// Now, by the node's own clock.
    pub now: Time,
    /// The log file as the disk gives it, empty on the first start.
    pub log: Vec<u8>,
    /// A seed for what the engine may choose at random.
    pub seed: u64,
    /// Starts of this node before, over all of the storm.
    pub starts: u64,
}

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Counts up.
    pub epoch: u64,
    /// Those who hold the state, as bits.
    pub members: u64,
    /// The node that tells is one of them, and has the state in memory.
    pub serves: bool,
    /// Nodes (bits) that would be the only member of a view which, as far as this node knows, may follow.
    pub alone: u64,
}

/// One node of a replicated store, as a pure state machine.
///
/// After each call that may change it, the storm polls until nothing comes.
pub trait Engine: Sized {
    /// What all nodes of a cluster share.
    type Config: Clone;
    /// What nodes send each other.
    type Message: Clone + fmt::Debug;
    /// Names of the rare branches that a long storm must reach.
    const MARKS: &'static [&'static str];

    /// Starts a node from what its disk holds.
    fn start(config: &Self::Config, boot: Boot) -> Self;
    /// A message has arrived.
    fn handle(&mut self, now: Time, from: usize, message: Self::Message);
    /// A client asks for something.
    fn submit(&mut self, now: Time, request: Request);
    /// A write is durable, and so are all before it.
    fn persisted(&mut self, now: Time, token: u64);
    /// The disk has room for so many bytes of log more; `None`: for any.
    fn set_room(&mut self, _now: Time, _room: Option<usize>) {}
    /// The time that [`Engine::next_timeout`] named has come.
    fn timeout(&mut self, now: Time);
    /// When to call [`Engine::timeout`], by the node's own clock.
    fn next_timeout(&self) -> Option<Time>;
    /// What the engine wants done next.
    fn poll(&mut self, now: Time) -> Option<EngineOutput<Self::Message>>;
    /// How often each of [`Engine::MARKS`] was reached since the start.
    fn marks(&self, counts: &mut [u64]);
    /// The latest view that the node knows. All of its members failing at once is what a persistency model makes
    /// promises about.
    fn view(&self) -> View;
    /// Its state in a few words, for the story of a storm that hangs.
    fn state(&self) -> String {
        format!("{:?}", self.view())
    }
    /// Whether the story of a failure on `key` should tell of `message`.
    fn concerns(message: &Self::Message, key: u32) -> bool;
    /// Appends the message's bytes, for [`crate::carriage::Carriage::Nic`]. Engines that never travel so have none.
    fn encode(_message: &Self::Message, _out: &mut Vec<u8>) {}
    /// Reads what [`Engine::encode`] writes.
    fn decode(_bytes: &[u8]) -> Option<Self::Message> {
        None
    }
    /// The message in a few words.
    fn describe(message: &Self::Message) -> String {
        format!("{message:?}")
    }
}
