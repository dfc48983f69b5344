//! What membership speaks of: ballots, notices, what is durable, times.

use crate::Time;
use crate::ddp::View;
use crate::types::{NodeId, NodeSet};

/// A proposal's number. No two proposals have the same: a node makes its ballots durable before it uses them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ballot {
    /// Counts up.
    pub round: u64,
    /// Who proposes.
    pub node: NodeId,
}

/// What a node says of itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Standing {
    /// Its log is empty. Whether that is so since it takes part for the first time the others know.
    New,
    /// It takes part for the first time, and waits for the others to say so too.
    Starting,
    /// It comes from a crash with its log whole.
    Joining,
    /// It comes from a crash, and its log is damaged, or gone.
    Damaged,
    /// It is a learner that has not everything yet.
    Learning,
    /// It is a learner that has everything.
    Ready,
    /// It takes part in the merge of logs after the crash of all.
    Merging,
    /// It is a member.
    Serving,
}

impl Standing {
    /// Has it lost its place in the view, if it had one?
    pub(super) fn crashed(self) -> bool {
        matches!(self, Self::New | Self::Joining | Self::Damaged)
    }

    /// Does it look for the cluster's state of things among the others?
    pub(super) fn asks(self) -> bool {
        matches!(self, Self::New | Self::Starting | Self::Damaged)
    }
}

/// What nodes say to each other about membership.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Notice {
    /// I live; I ask for a lease from the time of sending, by my clock.
    Beat(Time, u64, Standing, bool),
    /// The answer to the beat of that time.
    Grant(Time),
    /// Phase 1 for the epoch after that of the decided view, by someone who wants to leave these out.
    Prepare(View, Ballot, NodeSet),
    /// The answer for the epoch, with what was accepted before.
    Promise(u64, Ballot, Option<(Ballot, View)>),
    /// No: a higher one has been promised for the epoch.
    Reject(u64, Ballot),
    /// Phase 2.
    Accept(Ballot, View),
    /// The answer: this view was accepted under this ballot.
    Accepted(Ballot, View),
    /// The view has been decided.
    Decided(View),
    /// The answer to the beat of that time by a node that is new, starting or damaged: the newest epoch that is known, 0
    /// before the first, and what the answering node says of itself.
    Newest(Time, u64, Standing),
}

/// What must survive a crash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Durable {
    /// The newest decided view that is known; epoch 0 before the first.
    pub view: View,
    /// For the epoch after it, the highest ballot promised.
    pub promised: Ballot,
    /// For the epoch after it, what was accepted.
    pub accepted: Option<(Ballot, View)>,
}

/// What membership asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MemberOutput {
    /// Send this.
    Send(NodeId, Notice),
    /// Make this durable, then say [`Membership::persisted`](super::Membership::persisted) with the number.
    Persist(u64, Durable),
    /// Enter this view.
    Install(View),
    /// Reads may be served until then.
    Lease(Time),
    /// The log is not what it was, and is to say so from now on.
    Forgot,
}

/// Times (ns), and what the model allows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Timing {
    /// Between two beats, and before something is asked again.
    pub beat: Time,
    /// A lease's length.
    pub lease: Time,
    /// For how long an answered beat binds: the lease with an allowance for drift.
    pub term: Time,
    /// A node silent for this long is suspected.
    pub suspect: Time,
    /// After the crash of all, some of the last members' logs are enough after this long; otherwise all are needed.
    pub recover: Option<Time>,
}

/// Seeded faults of membership, by which checks show that they can fail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mutation {
    /// A proposer uses a ballot before it is durable.
    EarlyPrepare,
    /// A proposer uses a ballot that it had promised itself again.
    BallotAgain,
    /// A promise is sent before it is durable.
    EarlyPromise,
    /// An acceptance is counted before it is durable.
    EarlyAccepted,
    /// A promise does not tell what was accepted.
    ForgetsAccepted,
    /// A proposer keeps its own view whatever was accepted.
    KeepsOwn,
    /// Of what was accepted a proposer takes what it hears of last.
    TakesLast,
    /// An acceptor takes a ballot below the one that it has promised.
    AcceptsOld,
    /// One acceptance less than a majority decides.
    Minority,
    /// A view is entered before it is durable.
    EarlyInstall,
    /// An empty log counts as a first start.
    EmptyIsNew,
    /// What the others say of a former life counts in this one.
    OldAnswers,
    /// A node with a damaged log takes the next place it is given.
    DamagedEnters,
}
