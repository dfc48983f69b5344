//! A cluster of processes that keeps replicated records, or a run of bytes for transactions in a chain: [`remora_replica`]'s
//! engines over the software NIC.
//!
//! A [`ClusterNode`] is one process' part: a device, reliable connections to the other nodes, one log. The protocol
//! runs on the NIC thread, or on a host thread that takes messages from the NIC ([`PLACEMENTS`]). A [`ClusterClient`] talks to
//! one node at a time, with any number of requests under way, and goes to another when that node fails.
//!
//! Only one who has the cluster's secret is let in as a node, and only one who has the clients' secret, which follows from
//! it, as a client. What they say to each other is sealed where it leaves the host, unless a configuration says otherwise.
//! Clients reach the service and nothing else, and all they send is checked before it is believed. No memory of a node is open to
//! them but a chain's data, where nothing is sealed: they READ it by a [`ChainReader`], as long as the head's lease lasts.

mod caller;
mod client;
mod direct;
mod hello;
mod journal;
mod logfile;
mod node;
mod pmem;
mod reader;
mod server;
mod service;
mod wire;

pub use client::{ChainClient, ClusterClient, ClusterClientConfig, ConnectedClient, Spoken};
pub use hello::{Guard, client_secret};
pub use logfile::{LogKind, NEW_LOG};
pub use node::{ClusterNode, ClusterNodeConfig};
pub use reader::{ChainReader, ReadEnd};
pub use remora_replica::bounds::MAX_VALUE;
pub use remora_replica::chain::{ChainOutcome, ChainRefusal, Extent, Transaction, Tuple};
pub use remora_replica::client::{Ended, Split, Ticket};
pub use remora_replica::ddp::{Model, Op, Outcome, Refusal};
pub use remora_replica::status::NodeStatus;
pub use remora_replica::types::{Key, ScopeId, Value};
pub use wire::{Secret, parse_secret};
#[doc(hidden)]
pub use wire::{fuzz, public_hello};

use std::net::IpAddr;

use remora_kernel::{Placement, UnknownPlacement};
use remora_nic::Nic;
use remora_real::link::{Layers, Link};
use remora_real::{Error, LinkKind, map_memory};
use remora_replica::stream::{Sizes, StreamError, Streams};

/// Where a node can run the protocol: on a host thread (MINOS-B), or on the NIC thread (MINOS-O).
pub const PLACEMENTS: [Placement; 2] = [Placement::Host, Placement::Nic];

/// The protocol cannot run there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// There is no such place.
    #[error("there is no placement {0:?}: use host or nic")]
    Unknown(String),
    /// Kernels run there, nodes of a cluster do not.
    #[error("a cluster's nodes do not run on {0}: use host or nic")]
    NotHere(Placement),
}

/// Reads where a node is to run the protocol, as options spell it.
pub fn placement(text: &str) -> Result<Placement, PlacementError> {
    check_placement(text.parse().map_err(|UnknownPlacement(text)| PlacementError::Unknown(text))?)
}

fn check_placement(placement: Placement) -> Result<Placement, PlacementError> {
    if PLACEMENTS.contains(&placement) { Ok(placement) } else { Err(PlacementError::NotHere(placement)) }
}

/// Connections that carry frames, with their buffers.
fn streams(nic: &mut Nic, sizes: Sizes) -> Result<Streams, Error> {
    let (receives, sends) = (map_memory(sizes.receive_bytes())?, map_memory(sizes.send_bytes())?);
    Streams::new(nic, sizes, receives, sends).map_err(no_room)
}

fn no_room(error: StreamError) -> Error {
    match error {
        StreamError::Nic(error) => error.into(),
        StreamError::Register(error) => error.into(),
    }
}

/// A device's only link.
fn link_at(local: IpAddr, kind: LinkKind, layers: &Layers) -> Result<Box<dyn Link>, Error> {
    if !matches!(kind, LinkKind::Shm | LinkKind::Udp) {
        return Err(Error::Argument("a cluster's nodes use the shm or the udp link".into()));
    }
    layers.bind(kind, local).map_err(Error::link(kind, local))
}
