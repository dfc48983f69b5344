//! Threads that are cancelled.
//!
//! The system's calls are places where a thread may end, and a driver's calls, but for those that wait, are none. So what is
//! begun here comes to its end, and no lock stays behind. Where a program waits, its thread ends and unwinds through its callers.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use remora_preload::next;

use crate::adapter::{self, Adapter};

/// The program has cancelled a thread, or is about to.
static CANCELS: AtomicBool = AtomicBool::new(false);

/// While this lives its thread is not cancelled.
pub struct Whole(Option<c_int>);

impl Whole {
    #[inline]
    pub fn new() -> Self {
        let mut before = 0;
        // SAFETY: a number of our own; nothing of the thread changes but whether it can be cancelled.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
        Self(Some(before))
    }

    /// For who has taken the engine: most programs cancel nobody, and who does waits for the engine first.
    #[inline]
    pub fn if_need_be() -> Self {
        if CANCELS.load(Ordering::Relaxed) { Self::new() } else { Self(None) }
    }
}

impl Drop for Whole {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // SAFETY: as it was before.
            unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
        }
    }
}

const CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `pthread_cancel`.
///
/// # Safety
///
/// As for the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pthread_cancel(thread: libc::pthread_t) -> c_int {
    CANCELS.store(true, Ordering::Relaxed);
    // Who has the engine now may not know of it, and everybody after this does.
    drop(adapter::current().and_then(Adapter::lock));
    next!(pthread_cancel: fn(libc::pthread_t) -> c_int, thread)
}
