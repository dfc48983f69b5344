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
