//! Distributed data persistency: linearizable records with five persistency models (MINOS, sections III and V).
//!
//! A [`Replica`] is one node's share of the protocol: coordinator of the requests given to it, follower of everyone
//! else's. How to drive it:
//!
//! 1. [`Replica::submit`] a client's request, [`Replica::handle`] a peer's message, say when a [`Job`] is
//!    [`Replica::done`] and, at [`Replica::next_timeout`], that time has passed ([`Replica::timeout`]).
//! 2. After each, take [`Replica::poll`] until it is empty: messages to send, jobs to do, replies to clients.
//!
//! A job that asks to persist is done when its record is durable. The records that are durable are all that survives a
//! crash. Everything the paper calls a spin is a waiting list here.
//!
//! A world of three nodes whose network and logs take no time:
//!
//! ```
//! use remora_replica::ddp::{Config, Model, Op, Outcome, Replica, ReplicaOutput, Request, View};
//! use remora_replica::types::{NodeId, NodeSet};
//!
//! let nodes = NodeSet::first(3);
//! let mut replicas: Vec<_> = nodes.iter().map(|id| Replica::new(Config::new(id, nodes, Model::Synch))).collect();
//! for replica in &mut replicas {
//!     replica.install(0, View { epoch: 1, members: nodes, ..View::default() });
//!     replica.set_lease(0, 1_000_000); // until when it may serve reads, in ns
//! }
//!
//! // Node 0 is asked to write, and then node 2 to read. Whatever is to be done is done until nothing is left.
//! let mut ask = |node: u8, op: Op| {
//!     replicas[usize::from(node)].submit(1, Request::new(1, op));
//!     let mut answer = None;
//!     while let Some(at) = replicas.iter().position(Replica::has_output) {
//!         match replicas[at].poll() {
//!             Some(ReplicaOutput::Send { to, message }) => {
//!                 to.iter().for_each(|to| replicas[usize::from(to.0)].handle(1, NodeId(at as u8), message.clone()));
//!             }
//!             Some(ReplicaOutput::Job(job)) => replicas[at].done(1, job.id()), // a real world syncs its log first
//!             Some(ReplicaOutput::Reply(reply)) => answer = Some(reply.outcome),
//!             Some(ReplicaOutput::Step(_)) | None => {}
//!         }
//!     }
//!     answer
//! };
//! assert_eq!(ask(0, Op::Put(7, b"hello".as_slice().into())), Some(Outcome::Written));
//! assert_eq!(ask(2, Op::Get(7)), Some(Outcome::Value(Some(b"hello".as_slice().into()))));
//! ```

mod catch_up;
mod config;
mod coordinate;
mod follow;
mod indifferent;
mod message;
mod record;
mod records;
mod rename;
mod replica;
mod request;
mod scope;
mod view;

pub use config::{Config, Deployment, Model, ModelFacts, Mutation, Offload, Reached, View};
pub use indifferent::{Ahead, Asks};
pub use message::{AckKind, Body, Entry, Message, Write};
pub use record::Meta;
pub use rename::Names;
pub use replica::{Job, JobId, Marks, Replica, ReplicaOutput, Step, StepKind, Where};
pub use request::{Op, Outcome, Refusal, Reply, Request, Session, Stamp};
