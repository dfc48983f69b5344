//! Signals of the program's, and threads that are ended, amid this library's work.
//!
//! A handler may call whatever it could call over TCP, and jump out of what it has interrupted. So none runs while this
//! library is at work, which holds locks then: a signal that comes meanwhile is put aside, and sent again when the work
//! is done. Only where a call waits handlers run at once, and there a thread may be ended too: nothing is held then that is
//! not let go when its frames are left.
//!
//! For that the program's handlers stand behind one of this library's, which it never sees.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use libc::{SA_NODEFER, SA_RESETHAND, SA_RESTART, SA_SIGINFO, sigaction as Action, sighandler_t, siginfo_t};
use remora_preload::{errno, next, set_errno};

use crate::spin::Spin;
use crate::sys;

/// Signals that the kernel has, and one.
const SIGNALS: usize = 65;
/// What a thread does to itself: it cannot go on before its handler has run.
const FAULTS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
/// The C library's own, which are no program's business.
const INTERNAL: [c_int; 2] = [32, 33];

/// A handler ran after which calls go on that may.
const GOES_ON: u8 = 1;
/// One after which they end.
const ENDS: u8 = 2;

/// What is known of a thread.
struct Thread {
    /// Functions of this library that it is in, one within the other; 0 while it waits.
    depth: Cell<u32>,
    /// A signal was put aside; all others are kept from it.
    aside: Cell<bool>,
    signal: Cell<c_int>,
    mask: Cell<u64>,
    info: UnsafeCell<MaybeUninit<siginfo_t>>,
    /// What handlers ran since it began to wait.
    ran: Cell<u8>,
    /// Where on its stack it waits; 0 if it does not.
    waits_at: Cell<usize>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            depth: Cell::new(0),
            aside: Cell::new(false),
            signal: Cell::new(0),
            mask: Cell::new(0),
            info: UnsafeCell::new(MaybeUninit::uninit()),
            ran: Cell::new(0),
            waits_at: Cell::new(0),
        }
    };
}

/// This thread's. It ends only with the thread.
#[inline]
fn own() -> *const Thread {
    THREAD.with(std::ptr::from_ref)
}

/// A function of this library is at work.
pub struct Section(*const Thread);

impl Section {
    /// Begins.
    #[inline]
    pub fn enter() -> Self {
        let section = Self(own());
        let thread = section.thread();
        thread.depth.set(thread.depth.get() + 1);
        compiler_fence(Ordering::SeqCst);
        section
    }

    #[inline]
    fn thread(&self) -> &Thread {
        // SAFETY: this thread's, which stays as long as it runs.
        unsafe { &*self.0 }
    }
}

impl Drop for Section {
    #[inline]
    fn drop(&mut self) {
        let thread = self.thread();
        compiler_fence(Ordering::SeqCst);
        let depth = thread.depth.get() - 1;
        thread.depth.set(depth);
        compiler_fence(Ordering::SeqCst);
        if depth == 0 && thread.aside.get() {
            send_again(thread);
        }
    }
}

/// Work begins that ends elsewhere, by [`end`].
pub fn begin() {
    std::mem::forget(Section::enter());
}

/// It ends.
pub fn end() {
    drop(Section(own()));
}

/// A call waits, or does what is the C library's: handlers run.
struct Window {
    thread: *const Thread,
    depth: u32,
    waits_at: usize,
}

impl Window {
    #[inline]
    fn open() -> Self {
        // SAFETY: this thread's, which stays as long as it runs.
        let thread = unsafe { &*own() };
        let window = Self { thread, depth: thread.depth.get(), waits_at: thread.waits_at.get() };
        thread.ran.set(0);
        thread.waits_at.set(std::ptr::from_ref(&window).addr());
        compiler_fence(Ordering::SeqCst);
        thread.depth.set(0);
        compiler_fence(Ordering::SeqCst);
        if thread.aside.get() {
            send_again(thread);
        }
        window
    }

    #[inline]
    fn ran(&self) -> u8 {
        // SAFETY: as above.
        unsafe { &*self.thread }.ran.get()
    }
}

impl Drop for Window {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as above.
        let thread = unsafe { &*self.thread };
        compiler_fence(Ordering::SeqCst);
        thread.depth.set(self.depth);
        compiler_fence(Ordering::SeqCst);
        thread.waits_at.set(self.waits_at);
    }
}

/// Does what is the C library's: its own functions are what ends a thread.
#[inline]
pub fn apart<R>(act: impl FnOnce() -> R) -> R {
    let _window = Window::open();
    act()
}

// The C library's.
unsafe extern "C-unwind" {
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
}

const AT_ONCE: c_int = 1;

/// Waits by a call of the kernel's that takes nothing with it if the thread is ended in it. A negative errno: EINTR if a
/// handler has run, unless the call may go on (`again`) and the program wants it so.
pub fn waiting(again: bool, call: impl FnOnce() -> isize) -> isize {
    let window = Window::open();
    let ended = |ran: u8| if again { ran & ENDS != 0 } else { ran != 0 };
    // It came while this library looked: as if it had waited already.
    if ended(window.ran()) {
        return -(libc::EINTR as isize);
    }
    let mut before = 0;
    // SAFETY: the kernel's call alone is between these, and frames may be left from there.
    unsafe { pthread_setcanceltype(AT_ONCE, &raw mut before) };
    let result = call();
    // SAFETY: as it was.
    unsafe { pthread_setcanceltype(before, &raw mut before) };
    match result == -(libc::EINTR as isize) && again && window.ran() == GOES_ON {
        true => 0,
        false => result,
    }
}

/// Whether a thread was ever to be ended in this process.
static ENDS_THREADS: AtomicBool = AtomicBool::new(false);

/// Ends this thread here if it is to be: before a call that may find all that it wants without waiting.
#[inline]
pub fn may_end() {
    if ENDS_THREADS.load(Ordering::Relaxed) {
        // SAFETY: frames may be left from here.
        unsafe { pthread_testcancel() };
    }
}

/// Threads are ended in this process.
pub fn ends_threads() {
    ENDS_THREADS.store(true, Ordering::Relaxed);
}

/// Whether a handler is to run as soon as it can.
#[inline]
pub fn is_called_for() -> bool {
    // SAFETY: this thread's.
    unsafe { &*own() }.aside.get()
}

/// Where this thread waits in this library, if it does: a handler has interrupted it.
pub fn waits_at() -> Option<usize> {
    // SAFETY: this thread's.
    let at = unsafe { &*own() }.waits_at.get();
    (at != 0).then_some(at)
}

/// What this thread was in is left for good.
pub fn left() {
    // SAFETY: this thread's.
    let thread = unsafe { &*own() };
    thread.depth.set(0);
    thread.waits_at.set(0);
}

/// Sends the signal that was put aside to this thread again, whose handler may run now.
#[cold]
fn send_again(thread: &Thread) {
    let before = errno();
    let signal = thread.signal.get();
    // SAFETY: written when it was put aside.
    let mut info = unsafe { (*thread.info.get()).assume_init() };
    let mask = thread.mask.get();
    thread.aside.set(false);
    if sys::is_sealed() {
        // It may not send any more, but was sealed amid this.
        sys::call!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0usize, size_of::<u64>());
        run(thread, signal, &raw mut info, std::ptr::null_mut());
        return set_errno(before);
    }
    let (process, id) = (sys::process_id(), sys::call!(SYS_gettid) as c_int);
    if sys::call!(SYS_rt_tgsigqueueinfo, process, id, signal, &raw mut info) < 0 {
        sys::call!(SYS_tgkill, process, id, signal);
    }
    // It comes with this.
    sys::call!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0usize, size_of::<u64>());
    set_errno(before);
}

/// What the program does at a signal.
struct Own {
    handler: AtomicUsize,
    flags: AtomicI32,
}

static OWN: [Own; SIGNALS] = [const { Own { handler: AtomicUsize::new(0), flags: AtomicI32::new(0) } }; SIGNALS];
/// One thread at a time says what it does.
static SAYING: Spin<()> = Spin::new(());
/// Signals after which calls end that could go on, for who says only a handler.
static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// What stands before all handlers.
extern "C-unwind" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: this thread's.
    let thread = unsafe { &*own() };
    // SAFETY: the kernel's, to a handler that has asked for it.
    let is_fault = FAULTS.contains(&signal) && unsafe { (*info).si_code } > 0;
    if thread.depth.get() > 0 && !is_fault && !thread.aside.get() && !sys::is_sealed() {
        // SAFETY: as above; the kernel writes as many bytes of a mask as it has signals.
        unsafe {
            (*thread.info.get()).write(*info);
            let mask = (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
            thread.mask.set(*mask);
            *mask = FAULTS.iter().chain(&INTERNAL).fold(u64::MAX, |mask, signal| mask & !bit(*signal));
        }
        thread.signal.set(signal);
        thread.aside.set(true);
        return;
    }
    run(thread, signal, info, context);
}

/// Runs the program's handler.
fn run(thread: &Thread, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let own = &OWN[signal as usize];
    let (handler, flags) = (own.handler.load(Ordering::Acquire), own.flags.load(Ordering::Relaxed));
    if flags & SA_RESETHAND != 0 {
        // SAFETY: all zeros are the default.
        let default: Action = unsafe { std::mem::zeroed() };
        next!(sigaction: fn(c_int, *const Action, *mut Action) -> c_int, signal, &raw const default, std::ptr::null_mut());
    }
    let before = thread.ran.get();
    // SAFETY: the program's, of one of the two types: the shorter one looks at the first argument alone.
    let handler: unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
        unsafe { std::mem::transmute(handler) };
    // SAFETY: what the kernel has passed.
    unsafe { handler(signal, info, context) };
    thread.ran.set(before | if flags & SA_RESTART != 0 { GOES_ON } else { ENDS });
}

/// `sigaction`.
///
/// # Safety
///
/// Each is null, or one.
pub unsafe fn set(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    let plain = |new, old| next!(sigaction: fn(c_int, *const Action, *mut Action) -> c_int, signal, new, old);
    let Some(own) = OWN.get(signal.max(0) as usize) else { return plain(new, old) };
    let ours = (handle as *const ()).addr();
    let _one_at_a_time = SAYING.lock();
    let known = (own.handler.load(Ordering::Relaxed), own.flags.load(Ordering::Relaxed));
    // SAFETY: as the caller promises.
    let mut said = (!new.is_null()).then(|| unsafe { new.read() });
    if let Some(said) = &mut said {
        let is_handler = !matches!(said.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        // What was found out past this library stays what it is.
        if is_handler && said.sa_sigaction != ours {
            own.flags.store(said.sa_flags, Ordering::Relaxed);
            own.handler.store(said.sa_sigaction, Ordering::Release);
        }
        if is_handler {
            said.sa_sigaction = ours;
            said.sa_flags = said.sa_flags & !SA_RESETHAND | SA_SIGINFO;
        }
    }
    // SAFETY: all zeros are one.
    let mut before: Action = unsafe { std::mem::zeroed() };
    let done = plain(said.as_ref().map_or(std::ptr::null(), std::ptr::from_ref), &raw mut before);
    if done < 0 {
        own.flags.store(known.1, Ordering::Relaxed);
        own.handler.store(known.0, Ordering::Release);
        return done;
    }
    if before.sa_sigaction == ours {
        before.sa_sigaction = known.0;
        // What else there is the kernel knows.
        before.sa_flags = before.sa_flags & !SA_SIGINFO | known.1 & (SA_SIGINFO | SA_RESETHAND);
    }
    if !old.is_null() {
        // SAFETY: as the caller promises.
        unsafe { old.write(before) };
    }
    done
}

/// `signal`, in one of its meanings: with these flags, and `restarts` unless the program wants no such calls to go on. What
/// stood there before, or `SIG_ERR`.
pub fn set_handler(signal: c_int, handler: sighandler_t, flags: c_int, restarts: bool) -> sighandler_t {
    if !(1..SIGNALS as c_int).contains(&signal) || handler == libc::SIG_ERR {
        set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: all zeros are one.
    let (mut new, mut old): (Action, Action) = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    let goes_on = restarts && INTERRUPTS.load(Ordering::Relaxed) & bit(signal) == 0;
    new.sa_flags = flags | if goes_on { SA_RESTART } else { 0 };
    if flags & SA_NODEFER == 0 {
        // SAFETY: a set of our own.
        unsafe { libc::sigaddset(&raw mut new.sa_mask, signal) };
    }
    // SAFETY: both are ours.
    match unsafe { set(signal, &raw const new, &raw mut old) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

/// `siginterrupt`.
pub fn interrupts(signal: c_int, is: bool) -> c_int {
    // SAFETY: all zeros are one.
    let mut action: Action = unsafe { std::mem::zeroed() };
    // SAFETY: ours.
    if unsafe { set(signal, std::ptr::null(), &raw mut action) } < 0 {
        return -1;
    }
    match is {
        true => INTERRUPTS.fetch_or(bit(signal), Ordering::Relaxed),
        false => INTERRUPTS.fetch_and(!bit(signal), Ordering::Relaxed),
    };
    action.sa_flags = action.sa_flags & !SA_RESTART | if is { 0 } else { SA_RESTART };
    // SAFETY: ours.
    unsafe { set(signal, &raw const action, std::ptr::null_mut()) }
}

/// Before a fork.
pub fn hold() {
    SAYING.hold();
}

/// After it, in both.
pub fn release() {
    SAYING.release();
}
