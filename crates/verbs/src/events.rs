//! From the engine's events to what programs wait on: completion channels and asynchronous events.
//!
//! Both are a descriptor that counts and a queue beside it. The descriptor is an eventfd whose every read takes one
//! event: it can be polled, and blocks or not as its owner sets it.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::{pthread_cond_t, pthread_mutex_t};
use parking_lot::Mutex;
use remora_nic::cm::CmEvent;
use remora_nic::{CqId, Event, Qpn, SrqId, WcStatus};
pub use remora_preload::{errno, set_errno};

use crate::abi::*;
use crate::cancel::Whole;
use crate::context::Context;
use crate::cq::Cq;
use crate::qp::{Qp, shown_state};
use crate::srq::Srq;

// Where programs wait, a thread that is cancelled unwinds through its callers here.
unsafe extern "C-unwind" {
    fn read(fd: c_int, to: *mut c_void, len: usize) -> isize;
    fn pthread_cond_wait(cond: *mut pthread_cond_t, mutex: *mut pthread_mutex_t) -> c_int;
}

/// A queue of events with a descriptor that is readable while there is one.
pub struct EventQueue<T> {
    /// Until the end.
    fd: Option<OwnedFd>,
    waiting: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub fn new() -> Result<Self, c_int> {
        // SAFETY: makes a new descriptor, which is ours.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(errno());
        }
        // SAFETY: as above.
        let fd = Some(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Self { fd, waiting: Mutex::new(VecDeque::with_capacity(64)) })
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    pub fn push(&self, event: T) {
        self.waiting.lock().push_back(event);
        // Not `write`, which is a way to the connection manager here (`ucma::file`). The counter does not overflow in
        // the life of a process.
        let _whole = Whole::new();
        // SAFETY: a descriptor of our own.
        unsafe { libc::eventfd_write(self.fd(), 1) };
    }

    /// Waits until there may be an event, unless the descriptor does not block; `Err` is an errno.
    pub fn wait(&self) -> Result<(), c_int> {
        let mut count = 0u64;
        // SAFETY: eight bytes of our own.
        if unsafe { read(self.fd(), (&raw mut count).cast(), 8) } == 8 { Ok(()) } else { Err(errno()) }
    }

    /// Takes the next event, after a [`wait`](Self::wait); none if it was taken back, for its object is gone. It is counted before
    /// anybody else can look for it in vain: who destroys its object either takes it back or finds it counted.
    pub fn take(&self, count: impl FnOnce(&T)) -> Option<T> {
        let mut waiting = self.waiting.lock();
        waiting.pop_front().inspect(count)
    }

    /// Waits for the next event, and [takes](Self::take) it.
    pub fn pop(&self, mut count: impl FnMut(&T)) -> Result<T, c_int> {
        loop {
            self.wait()?;
            if let Some(event) = self.take(&mut count) {
                return Ok(event);
            }
        }
    }

    /// Takes back the events for which `gone` is true.
    pub fn retract(&self, gone: impl Fn(&T) -> bool) -> Vec<T> {
        let mut waiting = self.waiting.lock();
        let (taken, left): (VecDeque<T>, VecDeque<T>) = waiting.drain(..).partition(gone);
        *waiting = left;
        for _ in &taken {
            let mut count = 0u64;
            let room = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
            // Without waiting, whatever the program made of the descriptor: a thread that sleeps in `pop` may take the count
            // first, finds the queue empty and goes on waiting. Where the kernel cannot (before 5.13), a count is left,
            // which whoever takes it finds nothing for.
            // A system call takes whole words. Offset -1 is where the descriptor stands.
            let (fd, vectors, stands, flags) = (c_long::from(self.fd()), 1 as c_long, -1 as c_long, libc::RWF_NOWAIT);
            // SAFETY: eight bytes of our own, behind one vector.
            unsafe {
                libc::syscall(libc::SYS_preadv2, fd, &raw const room, vectors, stands, stands, c_long::from(flags))
            };
        }
        taken.into()
    }
}

impl<T> Drop for EventQueue<T> {
    fn drop(&mut self) {
        let _whole = Whole::new();
        self.fd = None;
    }
}

/// A pointer to a program's object, which it keeps alive as long as it is in a table or queue here.
pub struct Object<T>(pub *mut T);

impl<T> Clone for Object<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Object<T> {}

// SAFETY: objects are shared between threads as the verbs interface has it.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Object<T> {}

/// An asynchronous event: what it is about, and its type.
#[derive(Clone, Copy)]
pub enum Async {
    Cq(Object<Cq>, c_int),
    Qp(Object<Qp>, c_int),
    Srq(Object<Srq>, c_int),
}

/// A handler of the connection manager's events, called with the engine locked.
type OnCm = Box<dyn FnMut(CmEvent) + Send>;

/// Which object of the program the engine's numbers stand for.
#[derive(Default)]
pub struct Targets {
    inner: Mutex<Inner>,
    cm: Mutex<Option<OnCm>>,
}

#[derive(Default)]
struct Inner {
    cqs: HashMap<u32, Object<Cq>>,
    qps: HashMap<u32, Object<Qp>>,
    srqs: HashMap<u32, Object<Srq>>,
}

impl Targets {
    pub fn add_cq(&self, id: CqId, cq: *mut Cq) {
        self.inner.lock().cqs.insert(id.0, Object(cq));
    }

    pub fn add_qp(&self, id: Qpn, qp: *mut Qp) {
        self.inner.lock().qps.insert(id.0, Object(qp));
    }

    pub fn add_srq(&self, id: SrqId, srq: *mut Srq) {
        self.inner.lock().srqs.insert(id.0, Object(srq));
    }

    pub fn remove_cq(&self, id: CqId) {
        self.inner.lock().cqs.remove(&id.0);
    }

    pub fn remove_qp(&self, id: Qpn) {
        self.inner.lock().qps.remove(&id.0);
    }

    pub fn remove_srq(&self, id: SrqId) {
        self.inner.lock().srqs.remove(&id.0);
    }

    /// From now on the connection manager's events go to `handler`, in the thread that drives the engine and with the
    /// engine locked: it notes them and wakes whoever takes them.
    pub fn on_cm(&self, handler: OnCm) {
        *self.cm.lock() = Some(handler);
    }

    /// Takes an event of the engine, or gives back one that nobody has asked for.
    pub fn deliver(&self, event: Event) -> Option<Event> {
        let event = match event {
            Event::Cm(event) => {
                return match &mut *self.cm.lock() {
                    Some(handler) => {
                        handler(event);
                        None
                    }
                    None => Some(Event::Cm(event)),
                };
            }
            other => other,
        };
        let inner = self.inner.lock();
        let cq = |id: CqId| inner.cqs.get(&id.0).copied();
        let qp = |id: Qpn| inner.qps.get(&id.0).copied();
        let srq = |id: SrqId| inner.srqs.get(&id.0).copied();
        let told = match event {
            Event::Completion(id) => {
                if let Some(cq) = cq(id) {
                    // SAFETY: objects leave the table before they are freed, and the table is locked.
                    unsafe { (*cq.0).completed() };
                }
                return None;
            }
            Event::CqOverrun(id) => cq(id).map(|cq| Async::Cq(cq, IBV_EVENT_CQ_ERR)),
            // Other reasons show in a completion, or were told as events of their own.
            Event::QpFatal(id, WcStatus::LocalQpOperation) => qp(id).map(|qp| Async::Qp(qp, IBV_EVENT_QP_FATAL)),
            Event::QpAccessError(id) => qp(id).map(|qp| Async::Qp(qp, IBV_EVENT_QP_ACCESS_ERR)),
            Event::QpRequestError(id) => qp(id).map(|qp| Async::Qp(qp, IBV_EVENT_QP_REQ_ERR)),
            Event::LastWqe(id) => qp(id).map(|qp| Async::Qp(qp, IBV_EVENT_QP_LAST_WQE_REACHED)),
            Event::SqDrained(id) => qp(id).map(|qp| Async::Qp(qp, IBV_EVENT_SQ_DRAINED)),
            // News for who waits in RTR for the peer to be there; one that is in RTS knows by other ways.
            Event::Established(id) => qp(id)
                // SAFETY: as above.
                .filter(|qp| unsafe { shown_state(qp.0.cast()) }.load(Ordering::Relaxed) == IBV_QPS_RTR)
                .map(|qp| Async::Qp(qp, IBV_EVENT_COMM_EST)),
            Event::SrqLimit(id) => srq(id).map(|srq| Async::Srq(srq, IBV_EVENT_SRQ_LIMIT_REACHED)),
            _ => None,
        };
        if let Some(told) = told {
            // SAFETY: as above; a context outlives its objects.
            unsafe { (*told.context()).asynchronous.push(told) };
        }
        None
    }
}

impl Async {
    /// # Safety
    ///
    /// The object lives.
    unsafe fn context(&self) -> *mut Context {
        // SAFETY: every object begins with a pointer to its context.
        unsafe {
            Context::of(match self {
                Self::Cq(cq, _) => (*cq.0).ex.base.context,
                Self::Qp(qp, _) => (*qp.0).ex.base.context,
                Self::Srq(srq, _) => (*srq.0).base.context,
            })
        }
    }

    /// Notes that it was told.
    ///
    /// # Safety
    ///
    /// The object lives.
    unsafe fn count(&self) {
        // SAFETY: as the caller promises.
        let told = unsafe {
            match self {
                Self::Cq(cq, _) => &(*cq.0).async_reported,
                Self::Qp(qp, _) => &(*qp.0).events_reported,
                Self::Srq(srq, _) => &(*srq.0).events_reported,
            }
        };
        told.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it is about the object at this address.
    pub fn is_about<T>(&self, object: *const T) -> bool {
        let about: *const c_void = match self {
            Self::Cq(cq, _) => cq.0.cast_const().cast(),
            Self::Qp(qp, _) => qp.0.cast_const().cast(),
            Self::Srq(srq, _) => srq.0.cast_const().cast(),
        };
        about == object.cast()
    }
}

/// `ibv_get_async_event`.
pub unsafe extern "C-unwind" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    // SAFETY: the caller passes a context of ours and an event to fill in.
    unsafe {
        let told = match (*Context::of(context)).asynchronous.pop(|told| told.count()) {
            Ok(told) => told,
            Err(code) => {
                set_errno(code);
                return -1;
            }
        };
        let (element, event_type): (*mut c_void, c_int) = match told {
            Async::Cq(cq, kind) => (cq.0.cast(), kind),
            Async::Qp(qp, kind) => (qp.0.cast(), kind),
            Async::Srq(srq, kind) => (srq.0.cast(), kind),
        };
        *event = ibv_async_event { element, event_type };
    }
    0
}

/// `ibv_ack_async_event`.
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller passes an event that it got from us, whose object cannot be destroyed before this.
    unsafe {
        let element = (*event).element;
        match (*event).event_type {
            IBV_EVENT_CQ_ERR => {
                let cq = &mut *element.cast::<ibv_cq>();
                acknowledge(&raw mut cq.mutex, &raw mut cq.cond, &raw mut cq.async_events_completed, 1);
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                let srq = &mut *element.cast::<ibv_srq>();
                acknowledge(&raw mut srq.mutex, &raw mut srq.cond, &raw mut srq.events_completed, 1);
            }
            IBV_EVENT_QP_FATAL..=7 | IBV_EVENT_QP_LAST_WQE_REACHED => {
                let qp = &mut *element.cast::<ibv_qp>();
                acknowledge(&raw mut qp.mutex, &raw mut qp.cond, &raw mut qp.events_completed, 1);
            }
            _ => {}
        }
    }
}

/// `ibv_create_comp_channel`.
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    match EventQueue::new() {
        Ok(queue) => {
            let base = ibv_comp_channel { context, fd: queue.fd(), refcnt: 0 };
            Box::into_raw(Box::new(CompletionChannel { base, queue: Arc::new(queue) })).cast()
        }
        Err(code) => fail(code),
    }
}

/// A completion channel.
#[repr(C)]
pub struct CompletionChannel {
    pub base: ibv_comp_channel,
    /// Completion queues with an event that nobody has taken.
    pub queue: Arc<EventQueue<Object<Cq>>>,
}

impl CompletionChannel {
    /// Notes an event of a completion queue.
    pub fn push(queue: &EventQueue<Object<Cq>>, cq: *mut Cq) {
        queue.push(Object(cq));
    }
}

/// The completion queues that a channel has: threads make and destroy them at the same time.
///
/// # Safety
/// The channel is one of ours, and lives as long as this is used.
pub unsafe fn channel_users<'a>(channel: *mut ibv_comp_channel) -> &'a AtomicI32 {
    // SAFETY: the caller's promise; programs do not write the field.
    unsafe { AtomicI32::from_ptr(&raw mut (*channel).refcnt) }
}

/// `ibv_destroy_comp_channel`.
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller passes a channel of ours and never uses it again if this succeeds.
    unsafe {
        if channel_users(channel).load(Ordering::Acquire) > 0 {
            return refuse(libc::EBUSY);
        }
        drop(Box::from_raw(channel.cast::<CompletionChannel>()));
    }
    0
}

/// `ibv_get_cq_event`.
pub unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller passes a channel of ours and two places to write to; the queue's objects live.
    unsafe {
        // Somebody who waits does not poll: the NIC thread drives from now on.
        if let Some(adapter) = crate::adapter::current() {
            adapter.device.release();
        }
        let count = |cq: &Object<Cq>| _ = (*cq.0).comp_reported.fetch_add(1, Ordering::Relaxed);
        match (*channel.cast::<CompletionChannel>()).queue.pop(count) {
            Ok(found) => {
                *cq = found.0.cast();
                *cq_context = (*found.0).ex.base.cq_context;
                0
            }
            Err(code) => {
                set_errno(code);
                -1
            }
        }
    }
}

/// `ibv_ack_cq_events`.
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    // SAFETY: the caller passes a completion queue of ours.
    unsafe {
        acknowledge(&raw mut (*cq).mutex, &raw mut (*cq).cond, &raw mut (*cq).comp_events_completed, events);
    }
}

/// # Safety
///
/// The three belong to one object that lives.
unsafe fn acknowledge(mutex: *mut pthread_mutex_t, cond: *mut pthread_cond_t, count: *mut u32, more: u32) {
    // SAFETY: as the caller promises.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        *count = (*count).wrapping_add(more);
        libc::pthread_cond_signal(cond);
        libc::pthread_mutex_unlock(mutex);
    }
}

/// Waits until the program has acknowledged every event that it took.
///
/// # Safety
///
/// Mutex, condition and count belong to one object that lives.
pub unsafe fn wait_acknowledged(
    mutex: *mut pthread_mutex_t,
    cond: *mut pthread_cond_t,
    counts: &[(*const u32, &AtomicU32)],
) {
    // SAFETY: as the caller promises.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        while counts.iter().any(|(done, reported)| **done != reported.load(Ordering::Relaxed)) {
            pthread_cond_wait(cond, mutex);
        }
        libc::pthread_mutex_unlock(mutex);
    }
}

/// What a function that returns an errno returns on failure: a driver's calls leave it in errno too, where programs look.
pub fn refuse(code: c_int) -> c_int {
    set_errno(code);
    code
}

/// What a function that returns an object returns on failure.
pub fn fail<T>(code: c_int) -> *mut T {
    set_errno(code);
    null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(queue: &EventQueue<u32>) -> bool {
        let mut poll = libc::pollfd { fd: queue.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd of our own.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    #[test]
    fn what_is_taken_back_is_told_to_nobody() {
        let queue = EventQueue::new().unwrap();
        (1..4).for_each(|event| queue.push(event));
        assert_eq!(queue.retract(|event| *event != 2), [1, 3]);
        assert_eq!((queue.pop(|_| ()), is_readable(&queue)), (Ok(2), false));
        assert!(queue.retract(|_| true).is_empty());
    }

    /// One thread takes events while another takes some back: neither waits for what the other has, none is told twice, and who
    /// has looked for one knows whether it was told.
    #[test]
    fn taking_back_waits_for_nobody_who_takes() {
        let queue = EventQueue::new().unwrap();
        let counted = AtomicU32::new(0);
        let (told, back) = std::thread::scope(|scope| {
            let taker = scope.spawn(|| {
                let count = |event: &u32| _ = counted.fetch_add(u32::from(*event != 0), Ordering::Relaxed);
                let next = || queue.pop(count).ok().filter(|event| *event != 0);
                std::iter::from_fn(next).count()
            });
            let mut back = 0;
            for event in 1..=50_000 {
                queue.push(event);
                back += queue.retract(|_| true).len();
                assert_eq!(counted.load(Ordering::Relaxed) as usize + back, event as usize);
            }
            queue.push(0);
            (taker.join().unwrap(), back)
        });
        assert_eq!(told + back, 50_000);
    }
}
