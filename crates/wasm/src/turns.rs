//! How much modules compute between two turns of whoever drives them: packets and short kernels do not wait for long
//! ones.

use std::future::poll_fn;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::Poll;

use crate::limits::SLICE;

/// Fuel that making an instance is worth, and dropping the one before, which mostly trapped: about 20 us.
const MAKE_FUEL: u64 = 50_000;

/// A place's allowance: so much fuel for each turn, given to calls in the order in which they ask for it. Who takes
/// more than is left makes all wait until it is paid back.
///
/// Atomic only so that a runner may move between threads: one thread uses it.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    left: AtomicI64,
    /// Calls that have asked, and those of them that have got it.
    asked: AtomicU64,
    granted: AtomicU64,
}

impl Turns {
    /// An allowance that is never used up: for a call that holds nobody up.
    pub fn endless() -> Self {
        Turns { left: AtomicI64::new(i64::MAX), ..Turns::default() }
    }

    /// Begins a turn.
    #[inline]
    pub fn renew(&self) {
        let left = self.left.load(Ordering::Relaxed).saturating_add(SLICE as i64);
        self.left.store(left.min(SLICE as i64), Ordering::Relaxed);
    }

    /// Waits for a share.
    #[inline]
    pub async fn share(&self) {
        let ticket = self.asked.load(Ordering::Relaxed);
        self.asked.store(ticket + 1, Ordering::Relaxed);
        poll_fn(|cx| {
            if self.left.load(Ordering::Relaxed) > 0 && self.granted.load(Ordering::Relaxed) == ticket {
                self.granted.store(ticket + 1, Ordering::Relaxed);
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Takes from what is left.
    #[inline]
    pub fn spend(&self, fuel: u64) {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub_unsigned(fuel), Ordering::Relaxed);
    }

    /// Takes what a new instance is worth.
    pub fn spend_instance(&self) {
        self.spend(MAKE_FUEL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::task::{Context, Waker};

    fn ready(share: Pin<&mut impl Future<Output = ()>>) -> bool {
        share.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn shares_go_in_order_and_debts_are_paid() {
        let turns = Turns::default();
        let (mut first, mut second) = (pin!(turns.share()), pin!(turns.share()));
        assert!(!ready(first.as_mut()) && !ready(second.as_mut()), "no turn has begun");
        turns.renew();
        assert!(!ready(second.as_mut()), "the first has asked before");
        assert!(ready(first.as_mut()));
        turns.spend(3 * SLICE);
        assert!(!ready(second.as_mut()));
        turns.renew();
        turns.renew();
        assert!(!ready(second.as_mut()), "what was taken is paid back first");
        turns.renew();
        assert!(ready(second.as_mut()));
    }
}
