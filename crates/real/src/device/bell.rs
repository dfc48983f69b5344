//! A bell for a thread that sleeps until something lands in memory that it looks after.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;

use parking_lot::Mutex;

/// Wakes a thread that has said that it sleeps.
#[derive(Default)]
pub(crate) struct Bell {
    asleep: AtomicBool,
    sleeper: Mutex<Option<Thread>>,
}

impl Bell {
    /// This thread is about to park. It looks once more whether there is something to do before it does.
    pub fn listen(&self) {
        *self.sleeper.lock() = Some(std::thread::current());
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// It is awake.
    pub fn ignore(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// There is something to do, which was noted before.
    #[inline]
    pub fn ring(&self) {
        if self.asleep.load(Ordering::SeqCst)
            && let Some(sleeper) = &*self.sleeper.lock()
        {
            sleeper.unpark();
        }
    }
}
