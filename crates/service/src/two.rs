//! Two ways that calls come by, of one place: a client's share is that of both together.

use remora_kernel::{Call, Status};

use crate::ingress::{Ingress, Release, TakenCall};
use crate::share::Shares;

/// Two ingresses as one.
pub struct Two<'a, A, B> {
    /// One.
    pub first: A,
    /// The other.
    pub second: &'a mut B,
    /// Which one is asked first the next time: they take turns.
    pub turn: &'a mut bool,
}

/// Whom a call answers that came by one of two ways.
#[derive(Debug)]
pub enum Asker<A, B> {
    /// By the first.
    First(A),
    /// By the second.
    Second(B),
}

impl<A: Ingress, B: Ingress> Two<'_, A, B> {
    fn poll_first(&mut self, shares: &Shares, call: &mut Call) -> Option<TakenCall<Asker<A::Asker, B::Asker>>> {
        let TakenCall { client, stream, asker } = self.first.poll(shares, call)?;
        Some(TakenCall { client, stream, asker: Asker::First(asker) })
    }

    fn poll_second(&mut self, shares: &Shares, call: &mut Call) -> Option<TakenCall<Asker<A::Asker, B::Asker>>> {
        let TakenCall { client, stream, asker } = self.second.poll(shares, call)?;
        Some(TakenCall { client, stream, asker: Asker::Second(asker) })
    }
}

impl<A: Ingress, B: Ingress> Ingress for Two<'_, A, B> {
    type Asker = Asker<A::Asker, B::Asker>;

    #[inline]
    fn is_waiting(&self) -> bool {
        self.first.is_waiting() || self.second.is_waiting()
    }

    #[inline]
    fn poll(&mut self, shares: &Shares, call: &mut Call) -> Option<TakenCall<Self::Asker>> {
        *self.turn = !*self.turn;
        match (self.first.is_waiting(), self.second.is_waiting()) {
            (true, false) => self.poll_first(shares, call),
            (false, true) => self.poll_second(shares, call),
            (false, false) => None,
            _ if *self.turn => self.poll_first(shares, call).or_else(|| self.poll_second(shares, call)),
            _ => self.poll_second(shares, call).or_else(|| self.poll_first(shares, call)),
        }
    }

    #[inline]
    fn reply(&mut self, number: u32, asker: Self::Asker, status: Status, call: &mut Call) -> Release {
        match asker {
            Asker::First(asker) => self.first.reply(number, asker, status, call),
            Asker::Second(asker) => self.second.reply(number, asker, status, call),
        }
    }
}
