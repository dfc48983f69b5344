//! `longjmp` out of a handler that has interrupted a call of this library's while it waited: its frames are left one by one, as
//! they are when a thread is ended, so that nothing stays counted or locked that nobody comes back to.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};

use remora_preload::next;

use crate::calls::c_names;
use crate::signals;

/// The C++ ABI's, of which only the size and place matter here.
#[repr(C, align(16))]
struct Exception([u64; 4]);

type Stop = unsafe extern "C-unwind" fn(c_int, c_int, u64, *mut Exception, *mut c_void, *mut c_void) -> c_int;

// Of the library that leaves frames, which this one needs anyway.
unsafe extern "C-unwind" {
    fn _Unwind_ForcedUnwind(exception: *mut Exception, stop: Stop, argument: *mut c_void) -> c_int;
    fn _Unwind_GetCFA(context: *mut c_void) -> usize;
}

const GO_ON: c_int = 0;
const END_OF_STACK: c_int = 16;

/// Where a jump goes.
#[derive(Clone, Copy)]
struct Target {
    environment: *mut c_void,
    value: c_int,
    stack: usize,
    /// What handlers may run on instead.
    other: (usize, usize),
}

thread_local! {
    /// Off the stack: what is left is used again meanwhile.
    static EXCEPTION: UnsafeCell<Exception> = const { UnsafeCell::new(Exception([0; 4])) };
    static TARGET: Cell<Option<Target>> = const { Cell::new(None) };
}

/// Where the stack is after a jump.
///
/// # Safety
///
/// `setjmp` has written there.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
unsafe fn stack_of(environment: *mut c_void) -> Option<usize> {
    const STACK: usize = 6;
    let guard: usize;
    // SAFETY: as the caller promises; what the C library hides the address with stands in the thread's own block.
    let hidden = unsafe {
        std::arch::asm!("mov {}, fs:[0x30]", out(reg) guard, options(nostack, readonly, pure));
        environment.cast::<usize>().add(STACK).read()
    };
    Some(hidden.rotate_right(17) ^ guard)
}

/// Elsewhere what is left stays counted.
///
/// # Safety
///
/// None is needed.
#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
unsafe fn stack_of(_environment: *mut c_void) -> Option<usize> {
    None
}

/// The stack that handlers run on, if this one does.
fn other_stack() -> (usize, usize) {
    // SAFETY: all zeros are a stack.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: a place of our own.
    let known = unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) } == 0;
    if !known || stack.ss_flags & libc::SS_ONSTACK == 0 {
        return (0, 0);
    }
    (stack.ss_sp.addr(), stack.ss_sp.addr() + stack.ss_size)
}

fn within(address: usize, (start, end): (usize, usize)) -> bool {
    (start..=end).contains(&address) && start < end
}

/// A program jumps. Comes back if nothing of this library's is left by that, or if it was.
///
/// # Safety
///
/// As of `longjmp`.
unsafe fn leave(environment: *mut c_void, value: c_int) {
    let Some(at) = signals::waits_at() else { return };
    // SAFETY: as the caller promises.
    let Some(stack) = (unsafe { stack_of(environment) }) else { return signals::left() };
    let other = other_stack();
    // Within the handler?
    if within(stack, other) || stack <= at {
        return;
    }
    TARGET.set(Some(Target { environment, value, stack, other }));
    // SAFETY: the exception is this thread's, and stays; frames are left that the program leaves.
    EXCEPTION.with(|exception| unsafe { _Unwind_ForcedUnwind(exception.get(), stop, std::ptr::null_mut()) });
    // They cannot be left so.
    signals::left();
}

unsafe extern "C-unwind" fn stop(
    _version: c_int,
    actions: c_int,
    _class: u64,
    _exception: *mut Exception,
    context: *mut c_void,
    _argument: *mut c_void,
) -> c_int {
    let Some(target) = TARGET.get() else { return GO_ON };
    // SAFETY: the unwinder's.
    let at = unsafe { _Unwind_GetCFA(context) };
    if actions & END_OF_STACK == 0 && (within(at, target.other) || at < target.stack) {
        return GO_ON;
    }
    TARGET.set(None);
    signals::left();
    next!(siglongjmp: fn(*mut c_void, c_int) -> c_int, target.environment, target.value)
}

c_names! {
    fn longjmp(environment: *mut c_void, value: c_int) -> () {
        // SAFETY: as the program promises.
        unsafe { leave(environment, value) };
        next!(longjmp: fn(*mut c_void, c_int) -> (), environment, value)
    }

    fn _longjmp(environment: *mut c_void, value: c_int) -> () {
        // SAFETY: as the program promises.
        unsafe { leave(environment, value) };
        next!(_longjmp: fn(*mut c_void, c_int) -> (), environment, value)
    }

    fn siglongjmp(environment: *mut c_void, value: c_int) -> () {
        // SAFETY: as the program promises.
        unsafe { leave(environment, value) };
        next!(siglongjmp: fn(*mut c_void, c_int) -> (), environment, value)
    }

    fn __longjmp_chk(environment: *mut c_void, value: c_int) -> () {
        // SAFETY: as the program promises.
        unsafe { leave(environment, value) };
        next!(__longjmp_chk: fn(*mut c_void, c_int) -> (), environment, value)
    }
}
