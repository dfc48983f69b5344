//! A lock that can be held across a fork, and how long to look before sleeping.

use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use remora_rack::Patience;

use crate::{signals, sys};

/// A value behind a lock. What is done under it is short.
pub struct Spin<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only who has the lock reaches the value.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    pub const fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        self.hold();
        Guard(self)
    }

    /// Locks until [`Spin::release`]: before a fork.
    pub fn hold(&self) {
        let mut tries = 0;
        while self.locked.swap(true, Ordering::Acquire) {
            tries += 1;
            if tries > 64 { sys::give_way() } else { std::hint::spin_loop() }
        }
    }

    /// The value, for who holds the lock.
    ///
    /// # Safety
    ///
    /// The caller has called [`Spin::hold`].
    pub unsafe fn held(&self) -> &T {
        // SAFETY: as the caller promises.
        unsafe { &*self.value.get() }
    }

    /// After it, in both processes.
    pub fn release(&self) {
        self.locked.store(false, Ordering::Release);
    }
}

/// The lock, held.
pub struct Guard<'a, T>(&'a Spin<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard has the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Looks between looks at the clock.
const LOOKS: u32 = 32;
/// Looks without a pause of who has sent something since he looked last, and waits for an answer: it comes within these, and a
/// pause takes as long as half its way. Who only receives would hold up the sender by them, whose line it is.
const EAGER: u32 = 256;
/// From then on the core is offered to others between looks, nanoseconds. Soon: what is looked for may be waiting for this
/// very core, and where nobody does the offer takes less than it takes a line to come from another core twice.
const POLITE: u64 = 1_000;
/// Who offered the core and has it back so much later has others beside him, who keep what he looks for from coming as well:
/// sleeping is quicker, nanoseconds.
const LENT: u64 = 20_000;

thread_local! {
    /// How long this thread looks.
    static PATIENCE: Cell<Patience> = const { Cell::new(Patience::NEW) };
    /// Whether it has sent something since.
    static ASKED: Cell<bool> = const { Cell::new(false) };
}

/// This thread has sent something, to which there may be an answer.
#[inline]
pub fn asked() {
    ASKED.set(true);
}

/// How long to look for what is about to come, in nanoseconds: `REMORA_RACK_SPIN`, microseconds.
fn budget() -> u64 {
    static BUDGET: OnceLock<u64> = OnceLock::new();
    *BUDGET.get_or_init(|| {
        let text = std::env::var("REMORA_RACK_SPIN").ok();
        text.and_then(|text| text.parse::<u64>().ok()).map_or(50, |us| us.min(1_000_000)) * 1000
    })
}

/// Looks for a while whether something has come. Who looks in vain again and again looks ever shorter.
pub fn look(mut come: impl FnMut() -> bool) -> bool {
    let mut patience = PATIENCE.get();
    let budget = patience.of(budget());
    if budget == 0 {
        return come();
    }
    for _ in 0..if ASKED.replace(false) { EAGER } else { 0 } {
        if come() {
            PATIENCE.set(Patience::NEW);
            return true;
        }
    }
    let start = sys::now();
    loop {
        for _ in 0..LOOKS {
            if come() {
                PATIENCE.set(Patience::NEW);
                return true;
            }
            std::hint::spin_loop();
        }
        if signals::is_called_for() {
            // It ends the wait, or is to run in it.
            return false;
        }
        let mut passed = sys::now() - start;
        if (POLITE..budget).contains(&passed) {
            sys::give_way();
            if come() {
                PATIENCE.set(Patience::NEW);
                return true;
            }
            let lent = sys::now() - start - passed;
            passed = if lent > LENT { budget } else { passed };
        }
        if passed >= budget {
            patience.in_vain();
            PATIENCE.set(patience);
            return false;
        }
    }
}
