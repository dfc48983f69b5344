//! Requests to replicated records.

use super::{Exchange, ReplicaClient, Split, Ticket, Verdict};
use crate::Time;
use crate::bounds::Bounds;
use crate::ddp::{Op, Outcome, Refusal, Reply, Request, Session};
use crate::types::{ScopeId, Value};

/// A request to replicated records.
#[derive(Clone, Debug)]
pub struct StoreExchange {
    /// Of a batch, the operations that lack their last word.
    request: Request,
    /// Of a batch that was answered in part, each operation's last word; else empty.
    answered: Vec<Option<Outcome>>,
}

impl Exchange for StoreExchange {
    type Wish = (Option<ScopeId>, Op);
    type Request = Request;
    type Outcome = Outcome;
    const UNKNOWN: Outcome = Outcome::Unknown;
    const NOT_SERVING: Outcome = Outcome::Refused(Refusal::NotServing);

    fn refused((_, op): &Self::Wish) -> Option<Outcome> {
        is_too_long(op).then_some(Outcome::Refused(Refusal::TooLong))
    }

    fn writes((_, op): &Self::Wish) -> bool {
        !matches!(op, Op::Get(_) | Op::Persist)
    }

    fn new(tag: u64, session: Option<Session>, (scope, op): Self::Wish) -> Self {
        Self { request: Request { tag, session, scope, op }, answered: Vec::new() }
    }

    fn request(&self) -> &Request {
        &self.request
    }

    fn session(&mut self) -> Option<&mut Session> {
        self.request.session.as_mut()
    }

    fn only_reads(&self) -> bool {
        matches!(self.request.op, Op::Get(_))
    }

    fn judge(&self, outcome: &Outcome, maybe_taken: bool) -> Verdict {
        match outcome {
            Outcome::Refused(Refusal::NotServing) => Verdict::NotTaken(None),
            Outcome::Unknown => Verdict::MaybeTaken,
            _ if maybe_taken && refuses_for_now(outcome) => Verdict::MaybeTaken,
            Outcome::Batch(parts) if self.request.session.is_some() && parts.contains(&Outcome::Unknown) => {
                Verdict::MaybeTaken
            }
            _ => Verdict::Final,
        }
    }

    fn is_busy(outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Refused(refusal) => *refusal == Refusal::Busy,
            Outcome::Batch(outcomes) => {
                let all_busy = |outcome: &Outcome| !refuses_for_now(outcome) || Self::is_busy(outcome);
                !outcomes.contains(&Outcome::Unknown) && outcomes.iter().all(all_busy)
            }
            _ => false,
        }
    }

    fn keep(&mut self, outcome: &Outcome) {
        let (Op::Batch(ops), Outcome::Batch(outcomes)) = (&mut self.request.op, outcome) else { return };
        if self.answered.is_empty() {
            self.answered = vec![None; ops.len()];
        }
        let last = |outcome: &&Outcome| **outcome != Outcome::Unknown && !refuses_for_now(outcome);
        let slots = self.answered.iter_mut().filter(|slot| slot.is_none());
        slots.zip(outcomes).for_each(|(slot, outcome)| *slot = Some(outcome).filter(last).cloned());
        let mut outcomes = outcomes.iter();
        ops.retain(|_| outcomes.next().filter(last).is_none());
    }

    fn whole(self, outcome: Outcome) -> Outcome {
        if self.answered.is_empty() {
            return outcome;
        }
        let mut rest = match outcome {
            Outcome::Batch(outcomes) => outcomes,
            one => vec![one; self.answered.len()],
        }
        .into_iter();
        let whole = |slot: Option<Outcome>| slot.or_else(|| rest.next()).unwrap_or(Outcome::Unknown);
        Outcome::Batch(self.answered.into_iter().map(whole).collect())
    }
}

impl ReplicaClient {
    /// Starts a request; within a scope in the Scope model, where [`Op::Persist`] ends it.
    pub fn submit(&mut self, now: Time, scope: Option<ScopeId>, op: Op) -> Ticket {
        self.start(now, (scope, op))
    }

    /// An answer has come on the connection.
    pub fn handle_reply(&mut self, now: Time, Reply { tag, outcome }: Reply, split: Split) {
        self.answered(now, tag, outcome, split);
    }
}

/// Whether an outcome, or one of a batch's, is a refusal that says nothing of earlier attempts.
pub(super) fn refuses_for_now(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Refused(refusal) => matches!(refusal, Refusal::NotServing | Refusal::Busy | Refusal::Full),
        Outcome::Batch(outcomes) => outcomes.iter().any(refuses_for_now),
        _ => false,
    }
}

/// Whether nodes would refuse it for its length, or end the connection. Of a batch they refuse the parts that are too long.
fn is_too_long(op: &Op) -> bool {
    let new = match op {
        Op::Put(_, value) | Op::CompareSwap { new: Some(value), .. } => value.len(),
        _ => 0,
    };
    new > Bounds::SHIPPED.max_value || frame_bytes(op) > Bounds::SHIPPED.client_frame
}

/// Bytes that a request's frame has, at most.
fn frame_bytes(op: &Op) -> usize {
    /// Kind, key, lengths; of the frame also tag, session and scope.
    const HEAD: usize = 64;
    let content = |value: &Option<Value>| value.as_ref().map_or(0, |value| value.len());
    HEAD + match op {
        Op::Put(_, value) => value.len(),
        Op::CompareSwap { expected, new, .. } => content(expected) + content(new),
        Op::Batch(parts) => parts.iter().map(frame_bytes).sum(),
        Op::Get(_) | Op::Delete(_) | Op::FetchAdd(..) | Op::Persist => 0,
    }
}
