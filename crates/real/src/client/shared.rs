//! A client that many threads share: one pair of rings for all of them.

use std::mem::take;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::Thread;

use remora_kernel::{Placement, Status};
use remora_service::{Combined, Combiner, MAX_CALLS};

use super::Client;
use crate::error::Error;
use crate::rings::RingConfig;

/// Answers to others that a thread waits for at most once it has its own. To hand the client over costs a sleep and a wake, as
/// much as several calls, while somebody waits.
const MORE: u32 = 64;
/// Turns without an answer after which it waits for no others: theirs may take long.
const IN_VAIN: u32 = 16;
/// Looks that a thread takes before it sleeps until it has its answer, or is to drive the client for the others.
const LOOKS: u32 = 100;

/// A client for many threads at once, each of which makes calls one by one: all go by one pair of rings (Flock, SOSP 2021).
///
/// Whoever finds nobody at work drives the client until he has his answer, and for some answers more if others wait, and posts
/// what all want meanwhile together; then another one does. So a node has one connection and one pair of rings for all threads, and one WRITE brings
/// the calls of many.
pub struct SharedClient {
    placement: Placement,
    /// Bytes of parameters that a call may have.
    most: usize,
    /// What threads want and nobody has seen yet.
    inbox: Mutex<Vec<Combined<Arc<Answer>>>>,
    core: Mutex<Core>,
    calls: AtomicU64,
    posts: AtomicU64,
}

/// What the one who drives has.
struct Core {
    client: Client,
    combiner: Combiner<Arc<Answer>>,
    /// The connection is gone.
    lost: bool,
}

/// Where a thread finds its answer.
struct Answer {
    thread: Thread,
    is_there: AtomicBool,
    what: Mutex<Option<(Status, Vec<u8>)>>,
}

impl Answer {
    fn give(&self, status: Status, reply: &[u8]) {
        *lock(&self.what) = Some((status, reply.to_vec()));
        self.is_there.store(true, Ordering::Release);
        self.thread.unpark();
    }

    fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Acquire)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedClient {
    /// Opens a pair of rings to a place for all who share the client. Nothing may be under way.
    pub fn new(mut client: Client, placement: Placement, config: RingConfig) -> Result<Self, Error> {
        client.open_rings(placement, config)?;
        let most = client.most_params(placement, true);
        let core = Mutex::new(Core { client, combiner: Combiner::new(MAX_CALLS as u32), lost: false });
        let [calls, posts] = [0; 2].map(AtomicU64::new);
        Ok(Self { placement, most, inbox: Mutex::default(), core, calls, posts })
    }

    /// Runs a call from start to end, beside those of other threads. If the connection is lost it ends with
    /// [`Status::LOST`]: whether it was carried out is not known.
    pub fn call(&self, op: u64, params: &[u8]) -> (Status, Vec<u8>) {
        let answer =
            Answer { thread: std::thread::current(), is_there: AtomicBool::new(false), what: Mutex::default() };
        let answer = Arc::new(answer);
        lock(&self.inbox).push(Combined { op, params: params.to_vec(), who: answer.clone() });
        let mut looks = 0;
        while !answer.is_there() {
            match self.core.try_lock() {
                Ok(core) => self.drive(core, &answer),
                Err(TryLockError::Poisoned(poisoned)) => self.drive(poisoned.into_inner(), &answer),
                Err(TryLockError::WouldBlock) if looks < LOOKS => {
                    looks += 1;
                    std::thread::yield_now();
                }
                // Whoever answers, or stops driving while somebody waits, wakes it.
                Err(TryLockError::WouldBlock) => std::thread::park(),
            }
        }
        lock(&answer.what).take().unwrap_or((Status::LOST, Vec::new()))
    }

    /// Bytes of parameters that a call has at most; one with more ends in [`Status::BadParams`].
    pub fn most_params(&self) -> usize {
        self.most
    }

    /// Calls that were made, and how often some of them were posted together.
    pub fn counts(&self) -> (u64, u64) {
        (self.calls.load(Ordering::Relaxed), self.posts.load(Ordering::Relaxed))
    }

    /// The client again, once nobody else has it.
    pub fn into_inner(self) -> Client {
        self.core.into_inner().unwrap_or_else(PoisonError::into_inner).client
    }

    /// Makes the calls of all until one's own is answered, and for some more while there are any, then has another go on.
    fn drive(&self, mut core: MutexGuard<'_, Core>, own: &Answer) {
        let (mut more, mut vain) = (0, 0);
        loop {
            let Core { client, combiner, lost } = &mut *core;
            combiner.waiting().extend(take(&mut *lock(&self.inbox)));
            if own.is_there() && (more >= MORE || vain >= IN_VAIN || combiner.is_idle()) {
                break;
            }
            let placement = self.placement;
            let posted = match *lost {
                true => 0,
                false => combiner.post(|op, params, tag| client.submit_by_ring(placement, op, params, tag)),
            };
            self.calls.fetch_add(posted as u64, Ordering::Relaxed);
            self.posts.fetch_add(u64::from(posted > 0), Ordering::Relaxed);
            vain += 1;
            let polled = client.poll(&mut |tag, status, reply| {
                if let Some(answer) = combiner.ended(tag) {
                    more += u32::from(own.is_there());
                    vain = 0;
                    answer.give(status, reply);
                }
            });
            if polled.is_err() {
                *lost = true;
                combiner.lose_all().for_each(|answer| answer.give(Status::LOST, &[]));
            }
        }
        let next = core.combiner.anyone().cloned();
        drop(core);
        // Who came meanwhile and found the client taken may sleep by now; who comes from here on finds it free.
        let next = next.or_else(|| lock(&self.inbox).first().map(|call| call.who.clone()));
        if let Some(next) = next {
            next.thread.unpark();
        }
    }
}

// Threads share it.
const _: () = {
    const fn is_sync<T: Send + Sync>() {}
    is_sync::<SharedClient>()
};
