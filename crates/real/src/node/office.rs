//! What a node has one of, whatever its engines: its own calls, and the account of its memory.
//!
//! Each engine has a host thread. Those of all engines come here with the node's own calls, when clients come and go, and
//! for rings' memory; calls of kernels and packets never do. What goes on here by itself (memory on its way back, modules
//! that are compiled, what clients left half done) the first host thread sees to. Whoever is in here may take engines;
//! nobody who has an engine may come in.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;

use parking_lot::{Mutex, MutexGuard};
use remora_nic::{Lane, Qpn};

use super::control::{Answered, Control};

/// Steps in which memory goes back to the system in one turn, each of up to 0.1 ms.
const RECLAIM: usize = 2;

/// The node's own affairs.
pub(super) struct Office {
    control: Mutex<Control>,
    /// Somebody was here since the first host thread looked, or there is more to do.
    stirred: AtomicBool,
    desks: Vec<Desk>,
    /// Host threads that are still here.
    present: AtomicUsize,
}

/// What waits for the host thread of an engine.
#[derive(Default)]
struct Desk {
    has_mail: AtomicBool,
    mail: Mutex<Mail>,
    /// Whom to wake.
    thread: Mutex<Option<Thread>>,
}

#[derive(Default)]
pub(super) struct Mail {
    /// Calls of this engine's clients that were answered.
    pub answered: Vec<Answered>,
    /// The keys of regions that are gone, for who has something in them.
    pub released: Vec<u32>,
}

impl Office {
    /// One for so many engines.
    pub fn new(control: Control, engines: usize) -> Self {
        let desks = (0..engines).map(|_| Desk::default()).collect();
        let present = AtomicUsize::new(engines);
        Self { control: Mutex::new(control), stirred: AtomicBool::new(true), desks, present }
    }

    /// This thread is the host thread of this engine.
    pub fn sit(&self, engine: usize) {
        *self.desks[engine].thread.lock() = Some(std::thread::current());
    }

    /// A host thread ends; with the last one, so does what goes on by itself.
    pub fn leave(&self) {
        if self.present.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.control.lock().stop();
        }
    }

    /// Does something here.
    pub fn with<R>(&self, what: impl FnOnce(&mut Control) -> R) -> R {
        let result = what(&mut self.control.lock());
        if !self.stirred.swap(true, Ordering::AcqRel) {
            self.desks[0].wake();
        }
        result
    }

    /// Looks at something here.
    pub fn look<R>(&self, at: impl FnOnce(&Control) -> R) -> R {
        at(&self.control.lock())
    }

    /// What waits for an engine's host thread, if anything does.
    pub fn mail(&self, engine: usize) -> Option<Mail> {
        self.desks[engine].take()
    }

    /// A turn of what goes on by itself, for the first host thread. Returns how much there was to do.
    pub fn turn(&self) -> usize {
        if !self.stirred.load(Ordering::Acquire) {
            return 0;
        }
        self.stirred.store(false, Ordering::Release);
        let mut control = self.control.lock();
        let mut answered: Vec<Answered> = control.poll().into_iter().collect();
        let (mut work, recovers) = (0, control.recover());
        while work < RECLAIM
            && let Some(waited) = control.reclaim()
        {
            work += 1;
            answered.extend(waited);
        }
        let released = control.take_released();
        work += usize::from(control.is_busy() || recovers) + answered.len() + released.len();
        // Whoever waits to come in is next.
        MutexGuard::unlock_fair(control);
        if work > 0 {
            self.stirred.store(true, Ordering::Release);
        }
        if !released.is_empty() {
            // They look up often enough to hear of it.
            self.desks.iter().for_each(|desk| desk.put(|mail| mail.released.extend(&released)));
        }
        for answered in answered {
            let engine = Lane::whose(Qpn(answered.call.qpn), self.desks.len() as u16);
            let desk = &self.desks[usize::from(engine)];
            desk.put(|mail| mail.answered.push(answered));
            desk.wake();
        }
        work
    }
}

impl Desk {
    fn take(&self) -> Option<Mail> {
        // Nobody else's line is written by who looks in vain.
        (self.has_mail.load(Ordering::Acquire) && self.has_mail.swap(false, Ordering::AcqRel))
            .then(|| std::mem::take(&mut *self.mail.lock()))
    }

    fn put(&self, what: impl FnOnce(&mut Mail)) {
        what(&mut self.mail.lock());
        self.has_mail.store(true, Ordering::Release);
    }

    fn wake(&self) {
        if let Some(thread) = &*self.thread.lock() {
            thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn no_mail_is_lost_and_who_sleeps_is_woken_for_it() {
        const COUNT: u32 = if cfg!(miri) { 20 } else { 20_000 };
        let desk = Desk::default();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                *desk.thread.lock() = Some(std::thread::current());
                let mut got = 0;
                while got < COUNT {
                    for key in desk.take().unwrap_or_default().released {
                        assert_eq!(key, got, "in their order");
                        got += 1;
                    }
                    if !desk.has_mail.load(Ordering::Acquire) && got < COUNT {
                        std::thread::park_timeout(Duration::from_secs(20));
                    }
                }
            });
            remora_testing::eventually("the reader", || desk.thread.lock().is_some().then_some(()));
            for key in 0..COUNT {
                desk.put(|mail| mail.released.push(key));
                desk.wake();
            }
            reader.join().expect("all came");
        });
    }
}
