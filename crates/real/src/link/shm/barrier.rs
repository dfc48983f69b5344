//! Who goes to sleep pays for it.
//!
//! A producer that has published packets looks whether the consumer sleeps; a consumer that has said that it sleeps looks whether
//! packets came. One of the two must see the other's word, which takes a barrier between the store and the look on both sides, and
//! a producer would pay for one with each message. So the consumer has the system make one in every process that has asked for
//! that (`membarrier`), which takes some microseconds, once a sleep. Where that cannot be had, both make their own.

use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

/// Whether consumers may leave this process's barriers to the system, and this process theirs.
///
/// To ask takes milliseconds. Nobody waits for who asks already: the child of a process that was forked meanwhile would do so
/// for ever, as that thread is none of its own. A child has what its parent has asked for.
pub(super) fn shared() -> bool {
    const UNKNOWN: u8 = 2;
    static SHARED: AtomicU8 = AtomicU8::new(UNKNOWN);
    match SHARED.load(Ordering::Relaxed) {
        UNKNOWN => {
            let shared = !cfg!(miri)
                && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
                && membarrier(MembarrierCommand::GlobalExpedited).is_ok();
            SHARED.store(shared.into(), Ordering::Relaxed);
            shared
        }
        known => known == 1,
    }
}

/// Between a producer's words and its look; `spared` if the consumer makes the barrier.
#[inline]
pub(super) fn after_publish(spared: bool) {
    match spared {
        true => compiler_fence(Ordering::SeqCst),
        false => fence(Ordering::SeqCst),
    }
}

/// Between a consumer's word that it sleeps and its look.
pub(super) fn before_sleep() {
    if shared() {
        // It has worked before.
        let _ = membarrier(MembarrierCommand::GlobalExpedited);
    }
    fence(Ordering::SeqCst);
}
