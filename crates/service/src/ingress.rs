//! Where calls come from and answers go, as a [`CallTable`](crate::CallTable) sees it.

use remora_kernel::{Call, Status};

use crate::share::Shares;

/// Where calls come from, and where their answers go: RPC verbs, SENDs, or a ring in memory that both sides share.
pub trait Ingress {
    /// What has to be kept of a call until it is answered.
    type Asker;

    /// Whether calls wait.
    fn is_waiting(&self) -> bool;

    /// Takes the next call of a client that may start one, one client after the other. Writes op-code, parameters,
    /// reply limit, queue pair and protection domain to `call`, after [recycling](Call::recycle) it.
    fn poll(&mut self, shares: &Shares, call: &mut Call) -> Option<TakenCall<Self::Asker>>;

    /// Gives call `number` its answer, which is in `call`. Says whether the ingress is done with the number: if not, it
    /// names something of its own that is in use, and the driver [releases](crate::CallTable::release) it later.
    fn reply(&mut self, number: u32, asker: Self::Asker, status: Status, call: &mut Call) -> Release;
}

impl<I: Ingress> Ingress for &mut I {
    type Asker = I::Asker;

    #[inline]
    fn is_waiting(&self) -> bool {
        (**self).is_waiting()
    }

    #[inline]
    fn poll(&mut self, shares: &Shares, call: &mut Call) -> Option<TakenCall<Self::Asker>> {
        (**self).poll(shares, call)
    }

    #[inline]
    fn reply(&mut self, number: u32, asker: Self::Asker, status: Status, call: &mut Call) -> Release {
        (**self).reply(number, asker, status, call)
    }
}

/// A call that an ingress has taken.
#[derive(Debug)]
pub struct TakenCall<A> {
    /// The client's number among those of the ingress: a small one.
    pub client: u32,
    /// What the ingress calls the call's payload stream, if it has one.
    pub stream: Option<u64>,
    /// Whom to answer.
    pub asker: A,
}

/// When the number of a call that was answered is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Release {
    /// The next call may have it.
    Now,
    /// Not before the ingress is done with it.
    Later,
}
