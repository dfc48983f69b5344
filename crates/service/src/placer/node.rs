//! A node's own choice between its NIC and its host, for calls whose callers leave it to the node.
//!
//! Such a call comes to the NIC. A client learns from its own calls alone, and each client for itself; the node hears of all,
//! so that what one client's calls show serves all others, those with a few calls among them, and what is tried to learn is
//! tried once. The controller is that of clients, fed with what a call takes from its arrival at the NIC to its answer: waiting
//! and the way to the host and back are in it.
//!
//! ```text
//!  NIC:  CallTable::take -> NodePlacer::place -> its runner ------------------------> ended -> CallTable::finish
//!                               \-> poll_host -> the host's runner -> back to the NIC ->-/
//! ```

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::str::FromStr;

use remora_kernel::{Call, Placement, Status};

use super::{CallKind, Choice, Placer, Ticket, Time, is_result};

/// Where a node runs calls whose callers leave it to somebody else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placing {
    /// Where their clients choose: the node leaves it to each of them.
    #[default]
    Clients,
    /// At its NIC or its host, by what calls of all clients take.
    Auto,
    /// At its NIC.
    Nic,
    /// At its host.
    Host,
}

/// A word that is no [`Placing`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of clients, auto, nic and host")]
pub struct PlacingError(String);

impl FromStr for Placing {
    type Err = PlacingError;

    fn from_str(word: &str) -> Result<Self, PlacingError> {
        match word {
            "clients" => Ok(Self::Clients),
            "auto" => Ok(Self::Auto),
            "nic" => Ok(Self::Nic),
            "host" => Ok(Self::Host),
            _ => Err(PlacingError(word.into())),
        }
    }
}

impl Placing {
    /// Who places calls then, with a seed that spreads which of them are timed; none if clients do.
    pub fn placer(self, seed: u64) -> Option<NodePlacer> {
        let pinned = match self {
            Self::Clients => return None,
            Self::Auto => None,
            Self::Nic => Some(Placement::Nic),
            Self::Host => Some(Placement::Host),
        };
        let mut placer = Placer::new(&[Placement::Nic, Placement::Host], seed);
        placer.pin(pinned);
        Some(NodePlacer {
            placer,
            placed: Vec::new(),
            under_way: 0,
            at_host: 0,
            for_host: VecDeque::new(),
            overdue: Vec::new(),
        })
    }
}

/// Places a node's calls, and holds those that the host is to run until it takes them. See the [module](self).
#[derive(Debug)]
pub struct NodePlacer {
    placer: Placer,
    /// By number of a call under way, which is its tag: where it runs, and the ticket of one that is timed.
    placed: Vec<Option<(Placement, Option<Ticket>)>>,
    under_way: usize,
    at_host: usize,
    for_host: VecDeque<Call>,
    overdue: Vec<u64>,
}

impl NodePlacer {
    /// Places a call that has arrived. Returns it if the NIC is to run it: any, if its caller does not leave the choice. The
    /// time of its arrival is asked for if it is needed.
    #[inline]
    pub fn place(&mut self, call: Call, came: impl FnOnce() -> Time) -> Option<Call> {
        if !call.anywhere {
            return Some(call);
        }
        let Choice { placement, ticket } =
            self.placer.choose(CallKind::of(call.op, &call.params), self.under_way, came);
        let number = call.tag as usize;
        if number >= self.placed.len() {
            self.placed.resize(number + 1, None);
        }
        self.placed[number] = Some((placement, ticket));
        self.under_way += 1;
        if placement != Placement::Host {
            return Some(call);
        }
        self.at_host += 1;
        self.for_host.push_back(call);
        None
    }

    /// A call with this tag has ended, wherever it ran: before its tag is another's. The time is asked for if it is needed.
    #[inline]
    pub fn ended(&mut self, tag: u64, status: Status, now: impl FnOnce() -> Time) {
        let Some((placement, ticket)) = self.placed.get_mut(tag as usize).and_then(Option::take) else { return };
        self.under_way -= 1;
        if placement == Placement::Host {
            self.at_host -= 1;
            self.overdue.retain(|&other| other != tag);
        }
        if let Some(ticket) = ticket {
            self.placer.ended(ticket, now(), is_result(status));
        }
    }

    /// The next call that the host is to run.
    pub fn poll_host(&mut self) -> Option<Call> {
        self.for_host.pop_front()
    }

    /// Whether calls wait for the host to take them.
    pub fn wants_host(&self) -> bool {
        !self.for_host.is_empty()
    }

    /// Calls at the host that have not ended.
    pub fn at_host(&self) -> usize {
        self.at_host
    }

    /// A call takes longer than it may. True if it is at the host, which is to drop it: see
    /// [`poll_overdue`](Self::poll_overdue).
    pub fn end_at_host(&mut self, tag: u64) -> bool {
        let there = matches!(self.placed.get(tag as usize), Some(Some((Placement::Host, _))));
        if there && !self.overdue.contains(&tag) {
            self.overdue.push(tag);
        }
        there
    }

    /// The tag of a call that the host is to drop, if it still runs there.
    pub fn poll_overdue(&mut self) -> Option<u64> {
        self.overdue.pop()
    }

    /// What decides: for its counts and reasons.
    pub fn placer(&mut self) -> &mut Placer {
        &mut self.placer
    }
}
