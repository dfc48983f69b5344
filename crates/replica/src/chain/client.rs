//! Requests to a chain, as its clients make them and send them again.

use super::types::{ChainOutcome, ChainRefusal, ChainRequest, Transaction};
use crate::bounds::Bounds;
use crate::client::{Exchange, ServiceClient, Verdict};
use crate::ddp::Session;

/// A client of a chain. It asks any member, and goes to the head with what writes.
pub type ChainClient = ServiceClient<ChainExchange>;

/// A transaction under way.
#[derive(Clone, Debug)]
pub struct ChainExchange(ChainRequest);

impl Exchange for ChainExchange {
    type Wish = Transaction;
    type Request = ChainRequest;
    type Outcome = ChainOutcome;
    const UNKNOWN: ChainOutcome = ChainOutcome::Unknown;
    const NOT_SERVING: ChainOutcome = ChainOutcome::Refused(ChainRefusal::NotServing);

    fn refused(wish: &Transaction) -> Option<ChainOutcome> {
        /// Tag, session, and how many parts of each kind; place and length of a part.
        const HEAD: usize = 64;
        const PART: usize = 12;
        let parts = wish.extents().count() * PART;
        let bytes: usize = wish.expects.iter().chain(&wish.writes).map(|tuple| tuple.data.len()).sum();
        let long = HEAD + parts + bytes > Bounds::SHIPPED.client_frame;
        let read: usize = wish.reads.iter().map(|extent| extent.length as usize).sum();
        let invalid = long || read > Bounds::SHIPPED.client_frame / 2;
        invalid.then_some(ChainOutcome::Refused(ChainRefusal::Invalid))
    }

    fn writes(wish: &Transaction) -> bool {
        !wish.writes.is_empty()
    }

    fn new(tag: u64, session: Option<Session>, transaction: Transaction) -> Self {
        Self(ChainRequest { tag, session, transaction })
    }

    fn request(&self) -> &ChainRequest {
        &self.0
    }

    fn session(&mut self) -> Option<&mut Session> {
        self.0.session.as_mut()
    }

    fn only_reads(&self) -> bool {
        self.0.transaction.writes.is_empty()
    }

    fn judge(&self, outcome: &ChainOutcome, maybe_taken: bool) -> Verdict {
        match outcome {
            ChainOutcome::Refused(ChainRefusal::NotServing) => Verdict::NotTaken(None),
            ChainOutcome::Refused(ChainRefusal::NotHead(head)) => Verdict::NotTaken(Some(head.0.into())),
            ChainOutcome::Refused(ChainRefusal::Busy | ChainRefusal::Full) if maybe_taken => Verdict::MaybeTaken,
            ChainOutcome::Unknown => Verdict::MaybeTaken,
            _ => Verdict::Final,
        }
    }

    fn is_busy(outcome: &ChainOutcome) -> bool {
        *outcome == ChainOutcome::Refused(ChainRefusal::Busy)
    }
}
