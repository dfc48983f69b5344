//! The C library's functions of signals, threads and forks: what a program says there this library is to know.

use std::ffi::{c_int, c_ulong};

use libc::{sigaction as Action, sighandler_t};

use crate::calls::{c_functions, plain};
use crate::{signals, start};

/// Of `sigset`.
const SIG_HOLD: sighandler_t = 2;

c_functions! {
    fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
        // SAFETY: as the program promises.
        unsafe { signals::set(signal, new, old) }
    }

    fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
        // SAFETY: as the program promises.
        unsafe { signals::set(signal, new, old) }
    }

    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        signals::set_handler(signal, handler, 0, true)
    }

    fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        signals::set_handler(signal, handler, 0, true)
    }

    fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        signals::set_handler(signal, handler, 0, true)
    }

    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        signals::set_handler(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER, false)
    }

    fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        signals::set_handler(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER, false)
    }

    fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t {
        if handler == SIG_HOLD {
            return plain!(sigset: fn(c_int, sighandler_t) -> sighandler_t, signal, handler);
        }
        let before = signals::set_handler(signal, handler, 0, false);
        if before == libc::SIG_ERR {
            return before;
        }
        // SAFETY: all zeros are a set.
        let (mut set, mut had): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
        // SAFETY: sets of our own.
        let was_held = unsafe {
            libc::sigaddset(&raw mut set, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, &raw mut had);
            libc::sigismember(&raw const had, signal) == 1
        };
        if was_held { SIG_HOLD } else { before }
    }

    fn siginterrupt(signal: c_int, is: c_int) -> c_int {
        signals::interrupts(signal, is != 0)
    }

    fn pthread_cancel(thread: c_ulong) -> c_int {
        signals::ends_threads();
        plain!(pthread_cancel: fn(c_ulong) -> c_int, thread)
    }

    fn _Fork() -> c_int {
        start::prepare();
        let child = remora_preload::next!(_Fork: fn() -> c_int,);
        match child {
            0 => start::child(),
            _ => start::parent(),
        }
        child
    }
}
