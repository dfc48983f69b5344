//! What such a world is made of, what came of it, and why there is none.

use std::collections::BTreeMap;

use remora_rack::BeyondWindow;

use super::{FabricSpec, RackStep};
use crate::time::Ps;

/// What joins the nodes.
#[derive(Clone, Debug, PartialEq)]
pub enum RackSystem {
    /// A NIC of its own for each node, and ToR switches: so many NICs, ideally bonded, as are the links between the racks.
    Baseline {
        /// NICs of a node.
        nics: u64,
    },
    /// Pools.
    Fabric(FabricSpec),
}

/// Two racks, and what their nodes do.
#[derive(Clone, Debug)]
pub struct RackWorldSpec {
    /// What joins them.
    pub system: RackSystem,
    /// Bytes a second of a NIC.
    pub nic_bytes_per_s: f64,
    /// Programs of the nodes: those of the first rack, then as many of the second.
    pub programs: Vec<Vec<RackStep>>,
    /// Whether programs copy what they receive.
    pub receive_copied: bool,
    /// Whether TCP has only little of a socket below itself.
    pub small_queues: bool,
    /// The span over which traffic is counted.
    pub slice: Ps,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RackFigures {
    /// When the last program was done.
    pub end: Ps,
    /// The times that programs noted.
    pub marks: Vec<Vec<Ps>>,
    /// The most that a program computed.
    pub computed: Ps,
    /// Bytes that programs received.
    pub delivered: u64,
    /// Packets that switches dropped.
    pub dropped: u64,
    /// Segments that were sent again, and timeouts.
    pub resent: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Bytes that came to nodes in each slice of time: from their own rack, and from the other.
    pub slices: Vec<(u64, u64)>,
    /// What was busiest, and how busy.
    pub binding: (String, f64),
    /// Of each kind of thing how busy the busiest was.
    pub busy: BTreeMap<&'static str, f64>,
    /// Events that it took.
    pub events: u64,
}

/// Why there is no such world, or why it does not go on.
#[derive(Debug, thiserror::Error)]
pub enum RackWorldError {
    /// The platform lacks something.
    #[error("platform {0} describes no {1}")]
    Lacks(String, &'static str),
    /// Two racks have as many nodes each.
    #[error("{0} programs are not those of two racks of the same size")]
    Uneven(usize),
    /// A program names a node that is not there, or itself.
    #[error("node {0} talks to node {1}, which is not another one of the racks")]
    NoSuchNode(usize, usize),
    /// Nothing goes on although programs are not done.
    #[error("{0} programs never end")]
    Stuck(usize),
    /// A packet held what belongs elsewhere.
    #[error("bytes {offset} and on of the stream from node {from} to node {to} are not what was sent")]
    Wrong {
        /// Who sent.
        from: usize,
        /// To whom.
        to: usize,
        /// Where.
        offset: u64,
    },
    /// A sender went beyond what its receiver allows.
    #[error(transparent)]
    Beyond(#[from] BeyondWindow),
    /// Not all that was sent was received.
    #[error("{sent} B were sent from node {from} to node {to}, and {received} B received")]
    Missing {
        /// Who sent.
        from: usize,
        /// To whom.
        to: usize,
        /// Bytes.
        sent: u64,
        /// Bytes.
        received: u64,
    },
}
