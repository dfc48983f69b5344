//! What a replica is told at its start, and who takes part.

use std::fmt;
use std::str::FromStr;

use super::message::AckKind;
use crate::Time;
use crate::bounds::{BACKLOG, Bounds};
use crate::patience::STUCK;
use crate::types::{NodeId, NodeSet};

/// When a write is durable, beside linearizable consistency (section II-A).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Model {
    /// A write returns when all replicas are updated and durable; it is read only then.
    Synch,
    /// As Synch for who writes; reads do not wait for durability.
    Strict,
    /// A write returns when all replicas are updated; it is read only when they are durable.
    REnf,
    /// Nothing waits for durability.
    Event,
    /// Durable when the scope's PERSIST returns.
    Scope,
}

/// How far a version must be at every replica.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reached {
    /// In volatile memory.
    Updated,
    /// In volatile memory, and durable.
    Durable,
}

/// What makes a persistency model: all that the protocol, its drivers and its studies ask about one (figures 2 and 3).
///
/// The oracles of storms and of exhaustive checking do not ask here. They state for themselves what each model promises,
/// so that a mistake in this table shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModelFacts {
    /// As options, reports and files spell it.
    pub name: &'static str,
    /// Its byte where nodes say which model they keep.
    pub byte: u8,
    /// What the answer to a write waits for.
    pub answer: Reached,
    /// What a read of a write waits for.
    pub read: Reached,
    /// A follower's acknowledgements, in their order.
    pub acks: &'static [AckKind],
    /// The coordinator's VALs, in their order.
    pub vals: &'static [AckKind],
    /// Writes belong to scopes, and PERSIST makes a scope's durable.
    pub scopes: bool,
}

impl ModelFacts {
    /// Is durability acknowledged of each write?
    pub const fn acks_persists(&self) -> bool {
        self.acks[self.acks.len() - 1].p()
    }

    /// Is it acknowledged by itself, after ACK_C?
    pub const fn acks_twice(&self) -> bool {
        self.acks.len() > 1
    }

    /// Does VAL_P follow VAL_C?
    pub const fn validates_twice(&self) -> bool {
        self.vals.len() > 1
    }

    /// Is a version complete, and its writer answered, before it may be read?
    pub const fn holds_reads(&self) -> bool {
        matches!((self.answer, self.read), (Reached::Updated, Reached::Durable))
    }

    /// The VAL that ends a write.
    pub(crate) const fn last_val(&self) -> AckKind {
        self.vals[self.vals.len() - 1]
    }
}

/// By [`Model`], in its order.
const FACTS: [ModelFacts; 5] = {
    use AckKind::{Both, Consistency, Persistency};
    use Reached::{Durable, Updated};
    let twice: &[AckKind] = &[Consistency, Persistency];
    let scopes = false;
    [
        ModelFacts { name: "synch", byte: 0, answer: Durable, read: Durable, acks: &[Both], vals: &[Both], scopes },
        ModelFacts { name: "strict", byte: 1, answer: Durable, read: Updated, acks: twice, vals: twice, scopes },
        ModelFacts { name: "renf", byte: 2, answer: Updated, read: Durable, acks: twice, vals: &[Both], scopes },
        ModelFacts {
            name: "event",
            byte: 3,
            answer: Updated,
            read: Updated,
            acks: &[Consistency],
            vals: &[Consistency],
            scopes,
        },
        ModelFacts {
            name: "scope",
            byte: 4,
            answer: Updated,
            read: Updated,
            acks: &[Consistency],
            vals: &[Consistency],
            scopes: true,
        },
    ]
};

impl Model {
    /// All five.
    pub const ALL: [Self; 5] = [Self::Synch, Self::Strict, Self::REnf, Self::Event, Self::Scope];

    /// Its line of the table.
    #[inline]
    pub const fn facts(self) -> &'static ModelFacts {
        &FACTS[self as usize]
    }

    /// The model with this byte.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.facts().byte == byte)
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts().name)
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|model| model.facts().name == text)
            .ok_or_else(|| format!("no persistency model {text:?}: synch, strict, renf, event or scope"))
    }
}

/// Where the protocol runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Deployment {
    /// MINOS-B: all on the host's workers.
    Baseline,
    /// MINOS-O: split between host and NIC (section V).
    Offload(Offload),
}

/// MINOS-O's optimisations, each by itself (section V-B, figure 12).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Offload {
    /// vFIFO and dFIFO in place of WRLock, with this many entries each; `None` keeps the WRLock.
    pub fifos: Option<u16>,
    /// One INV and one ACK over PCIe for a write, in place of one for each follower.
    pub batching: bool,
    /// The NIC sends a message to many as one.
    pub broadcast: bool,
}

impl Offload {
    /// All optimisations, with the paper's five FIFO entries (table III).
    pub const FULL: Self = Self { fifos: Some(5), batching: true, broadcast: true };
}

/// Seeded faults of the protocol, by which checks show that they can fail. `None` everywhere else.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mutation {
    /// The coordinator needs no acknowledgement of the last node.
    SkipAck,
    /// VALs leave with the INVs.
    EarlyVal,
    /// glb_volatileTS and glb_durableTS are set, not raised.
    NoMaximum,
    /// Any VAL releases the RDLock.
    UnlockByNonOwner,
    /// The follower acknowledges durability before it has it.
    AckBeforePersist,
    /// An obsolete write is acknowledged without ConsistencySpin.
    NoConsistencySpin,
    /// The obsolete check before the local write is left out.
    NoObsolete,
    /// A read-modify-write is acknowledged by who has seen a newer one.
    AcceptStaleRmw,
    /// Nobody replays the writes of a dead coordinator.
    NoReplay,
    /// Reads are served without a lease.
    NoLease,
    /// PERSIST is answered without waiting for the scope's writes.
    EmptyScope,
    /// A waiting reader is not woken when the RDLock is released.
    LostWakeup,
    /// A read-modify-write that crosses to the NIC does not look again whether the record is as it was.
    StaleRead,
    /// A write leaves with its own mark alone.
    LostMarks,
    /// A node keeps marks of a version that another superseded whose maker had not seen it.
    KeptMarks,
    /// What was acknowledged in one view counts in the next.
    OldAcks,
    /// In a new view a coordinator counts itself for a write though it has a newer one.
    CountsItself,
    /// A request sent again is done anew though its mark is there.
    DoneAnew,
    /// A request sent again that comes to nothing leaves no mark.
    UnmarkedFailure,
    /// What a mark says is answered before it is durable.
    EarlyRepeat,
}

/// One replica's configuration. All members of a cluster need the same but for `id`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// This node.
    pub id: NodeId,
    /// All nodes there are.
    pub nodes: NodeSet,
    /// When writes are durable.
    pub model: Model,
    /// Where the protocol runs.
    pub deployment: Deployment,
    /// After this long (ns) without an answer a message is sent again.
    pub retry: Time,
    /// A peer that was silent for this long (ns) is suspected to have failed.
    pub suspect: Time,
    /// A read lease's length (ns); below `suspect`.
    pub lease: Time,
    /// After so long (ns) in which its log has not become durable, a node lets the others go on without it.
    pub stuck: Time,
    /// How far two nodes' clocks may drift apart, in parts per million.
    pub drift_ppm: u32,
    /// Do local writes (and vFIFO drains) appear as jobs? Otherwise they happen at once.
    pub stepped: bool,
    /// Do steps appear among the outputs, for a world that charges for them?
    pub steps: bool,
    /// Longest value (bytes) that is taken.
    pub max_value: usize,
    /// Clients whose last request a record remembers. A request that is sent again is done once, unless this many other
    /// clients have written the record in between.
    pub stamps: usize,
    /// Scopes that may be open at once. For one more a node forgets some that wrote longest ago, of those that are durable
    /// there; it refuses PERSIST of what it has forgotten.
    pub max_scopes: usize,
    /// Records that a scope may have written since its last PERSIST, which lists them. A write of one more is refused.
    pub scope_keys: usize,
    /// In event, where nobody waits for the log: it gets the newest version of each record written for so long (ns), in
    /// place of every version at once, which is 0. What was answered is in no log for as much longer.
    pub write_back: Time,
    /// Bytes that may wait for the log where the answer to a write does not: with more no write is taken until it has some.
    pub backlog: usize,
    /// Records that go into a shorter log at a time, 1 or more: each takes about a microsecond.
    pub gathers: usize,
    /// A seeded fault; for checks only.
    pub mutation: Option<Mutation>,
}

impl Config {
    /// A cluster of `nodes` in the host deployment, with times for a local network.
    pub fn new(id: NodeId, nodes: NodeSet, model: Model) -> Self {
        Self {
            id,
            nodes,
            model,
            deployment: Deployment::Baseline,
            retry: 20_000_000,
            suspect: 200_000_000,
            lease: 100_000_000,
            stuck: STUCK,
            drift_ppm: 1000,
            stepped: false,
            steps: false,
            max_value: 64 << 20,
            stamps: Bounds::SHIPPED.stamps,
            max_scopes: Bounds::SHIPPED.max_scopes,
            scope_keys: Bounds::SHIPPED.scope_keys,
            write_back: 0,
            backlog: BACKLOG,
            gathers: 64,
            mutation: None,
        }
    }

    /// Do versions of records that are written again soon spare the log?
    pub(crate) fn writes_back(&self) -> bool {
        let facts = self.model.facts();
        // Where nobody waits for the log, not even PERSIST.
        self.write_back > 0 && !facts.acks_persists() && !facts.scopes
    }

    /// Has it this seeded fault?
    pub(crate) fn mutant(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// The NIC's part of the deployment, if there is one.
    pub fn offload(&self) -> Option<Offload> {
        match self.deployment {
            Deployment::Baseline => None,
            Deployment::Offload(offload) => Some(offload),
        }
    }

    /// Entries of vFIFO and dFIFO, if the deployment has them.
    pub(crate) fn fifo(&self) -> Option<usize> {
        self.offload().and_then(|offload| offload.fifos).map(usize::from)
    }
}

/// Who takes part in an epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct View {
    /// Counts up from 1.
    pub epoch: u64,
    /// Serve requests, and acknowledge writes.
    pub members: NodeSet,
    /// Acknowledge writes while they catch up, and serve nothing yet.
    pub learners: NodeSet,
    /// All members come from a crash: they merge their logs before they serve.
    pub recovery: bool,
}

impl View {
    /// The first view: everyone.
    pub const fn first(nodes: NodeSet) -> Self {
        Self { epoch: 1, members: nodes, learners: NodeSet::EMPTY, recovery: false }
    }

    /// Whoever must acknowledge a write.
    pub const fn all(&self) -> NodeSet {
        self.members.or(self.learners)
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {} {}", self.epoch, self.members)?;
        if !self.learners.is_empty() {
            write!(f, " learning {}", self.learners)?;
        }
        if self.recovery { f.write_str(" recovering") } else { Ok(()) }
    }
}
