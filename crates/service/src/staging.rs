//! A node's memory as a kernel at the client sees it: every access is a one-sided verb through a staging slot, and so a
//! network round trip.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use remora_kernel::{Fault, Memory};
use remora_memory::{Buffer, Region};
use remora_nic::{NicError, SendOp, Sge, WcStatus};

use crate::copies::Copies;

/// Bytes of one staging slot: the longest single verb.
pub const SLOT: usize = 64 << 10;

/// A verb over the front of a staging slot. Its work request id is [`WorkId::Staging`](crate::WorkId).
#[derive(Clone, Copy, Debug)]
pub struct StagedVerb {
    /// The slot.
    pub slot: u32,
    /// Which verb.
    pub op: SendOp,
    /// The slot's bytes.
    pub sge: Sge,
}

/// How a world carries the verbs of staging slots. It tells [`Staging::complete`] of each one's end.
pub trait Carriage {
    /// Posts a verb, now or when the world thinks right. After [`NicError::Full`] it is asked again at the kernel's next
    /// turn; after any other error the kernel sees [`Fault::Lost`].
    fn post(&self, verb: &StagedVerb) -> Result<(), NicError>;

    /// A kernel `op` works on so many bytes that it has read, where that takes modelled time.
    fn work(&self, op: u64, bytes: usize) {
        let _ = (op, bytes);
    }

    /// See [`Memory::compute`].
    fn compute(&self, instructions: u64) {
        let _ = instructions;
    }
}

/// Staging memory and the verbs under way through it.
///
/// Atomic only so that a client may move between threads: one thread at a time uses it.
pub struct Staging<C> {
    carriage: C,
    buffer: Buffer,
    region: Arc<Region>,
    slots: usize,
    /// A bit for each free slot.
    free: Vec<AtomicU64>,
    /// Of each slot: how its verbs ended, or [`UNDER_WAY`].
    ended: Vec<AtomicU8>,
    /// Of each slot: verbs that have not ended.
    pending: Vec<AtomicU8>,
    /// Somebody posts writes that keep together.
    posting: AtomicBool,
    /// What kernels keep from call to call.
    copies: Mutex<Copies>,
    posted: AtomicU64,
    /// The connection is gone: nothing posted now will ever complete.
    lost: AtomicBool,
}

/// How a slot's verb ended. A byte, since threads share it.
const UNDER_WAY: u8 = 0;
const DONE: u8 = 1;
const ACCESS: u8 = 2;
const MISALIGNED: u8 = 3;
const LOST: u8 = 4;

impl<C> Staging<C> {
    /// Over `buffer`, cut into slots of [`SLOT`] bytes; `region` is all of it.
    pub fn new(carriage: C, buffer: Buffer, region: Arc<Region>) -> Arc<Self> {
        let slots = buffer.len() / SLOT;
        let bits = |word: usize| u64::MAX.checked_shr(64 - (slots - word * 64).min(64) as u32).unwrap_or(0);
        let free = (0..slots.div_ceil(64)).map(|word| AtomicU64::new(bits(word))).collect();
        let ended = (0..slots).map(|_| AtomicU8::new(UNDER_WAY)).collect();
        let pending = (0..slots).map(|_| AtomicU8::new(0)).collect();
        let (posted, copies) = (AtomicU64::new(0), Mutex::default());
        let [posting, lost] = [false; 2].map(AtomicBool::new);
        Arc::new(Self { carriage, buffer, region, slots, free, ended, pending, posting, copies, posted, lost })
    }

    /// How its verbs are carried.
    pub fn carriage(&self) -> &C {
        &self.carriage
    }

    /// Verbs posted so far: each is one round trip.
    pub fn posted(&self) -> u64 {
        self.posted.load(Ordering::Relaxed)
    }

    /// Whether no verb is under way.
    pub fn is_idle(&self) -> bool {
        self.free.iter().map(|word| word.load(Ordering::Relaxed).count_ones() as usize).sum::<usize>() == self.slots
    }

    /// The lowest free slot, which is the caller's until given to [`free_slot`](Self::free_slot).
    #[inline]
    pub fn take_slot(&self) -> Option<u32> {
        for (n, word) in (0..).zip(&self.free) {
            let bits = word.load(Ordering::Relaxed);
            if bits != 0 {
                let bit = bits.trailing_zeros();
                // Lost to another thread only if two use it at once; then the slot is theirs.
                let taken = word.fetch_and(!(1 << bit), Ordering::Acquire) & 1 << bit != 0;
                return taken.then_some(n * 64 + bit);
            }
        }
        None
    }

    /// Gives a slot back whose verb has ended, or was never posted.
    #[inline]
    pub fn free_slot(&self, slot: u32) {
        if let (Some(ended), Some(word)) = (self.ended.get(slot as usize), self.free.get(slot as usize / 64)) {
            ended.store(UNDER_WAY, Ordering::Relaxed);
            self.pending[slot as usize].store(0, Ordering::Relaxed);
            word.fetch_or(1 << (slot % 64), Ordering::Release);
        }
    }

    /// A slot's verb has completed. Of several the first that failed counts.
    #[inline]
    pub fn complete(&self, slot: u32, status: WcStatus) {
        if let (Some(ended), Some(pending)) = (self.ended.get(slot as usize), self.pending.get(slot as usize)) {
            let how = match status {
                WcStatus::Success => DONE,
                WcStatus::RemoteAccess => ACCESS,
                WcStatus::RemoteInvalidRequest => MISALIGNED,
                _ => LOST,
            };
            pending.store(pending.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
            if matches!(ended.load(Ordering::Relaxed), UNDER_WAY | DONE) {
                ended.store(how, Ordering::Release);
            }
        }
    }

    /// No completion will come any more.
    pub fn set_lost(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// How a slot's verbs ended, if all have.
    #[inline]
    pub fn outcome(&self, slot: u32) -> Option<Result<(), Fault>> {
        let ended = self.ended.get(slot as usize)?.load(Ordering::Acquire);
        let more = self.pending[slot as usize].load(Ordering::Relaxed) > 0;
        match if more { UNDER_WAY } else { ended } {
            UNDER_WAY if self.lost.load(Ordering::Relaxed) => Some(Err(Fault::Lost)),
            UNDER_WAY => None,
            DONE => Some(Ok(())),
            ACCESS => Some(Err(Fault::Access)),
            MISALIGNED => Some(Err(Fault::Misaligned)),
            _ => Some(Err(Fault::Lost)),
        }
    }

    /// Copies at most [`SLOT`] bytes into a slot.
    #[inline]
    pub fn fill(&self, slot: u32, data: &[u8]) {
        // A slot and its first SLOT bytes are always in bounds.
        let _ = self.buffer.write(slot as usize * SLOT, data);
    }

    /// Copies at most [`SLOT`] bytes out of a slot.
    #[inline]
    pub fn drain(&self, slot: u32, out: &mut [u8]) {
        let _ = self.buffer.read(slot as usize * SLOT, out);
    }
}

impl<C: Carriage> Staging<C> {
    /// Posts a verb over the first `len` bytes of a slot.
    #[inline]
    pub fn post(&self, slot: u32, op: SendOp, len: usize) -> Result<(), NicError> {
        self.post_at(slot, 0, op, len)?;
        self.posted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Posts a verb over bytes of a slot; its round trip is not counted.
    #[inline]
    fn post_at(&self, slot: u32, at: usize, op: SendOp, len: usize) -> Result<(), NicError> {
        let va = self.region.va() + u64::from(slot) * SLOT as u64 + at as u64;
        let sge = Sge { va, len: len as u32, lkey: self.region.key() };
        self.carriage.post(&StagedVerb { slot, op, sge })?;
        self.pending[slot as usize].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// WRITEs from one slot, which all fit in, behind each other: a reliable connection keeps their order, so that none
    /// waits for the one before. No others like these come between.
    async fn run_writes(&self, key: u32, pieces: &[(u64, &[u8])]) -> Result<(), Fault> {
        let slot = poll_fn(|cx| self.take_slot().map_or_else(|| give_way(cx), Poll::Ready)).await;
        poll_fn(|cx| match self.posting.swap(true, Ordering::Acquire) {
            true => give_way(cx),
            false => Poll::Ready(()),
        })
        .await;
        let (mut at, mut result) = (0, Ok(()));
        // Those that follow each other without a gap are one.
        for run in pieces.chunk_by(|(va, data), (next, _)| va.wrapping_add(data.len() as u64) == *next) {
            let (va, mut len) = (run[0].0, 0);
            for (_, data) in run {
                let _ = self.buffer.write(slot as usize * SLOT + at + len, data);
                len += data.len();
            }
            let op = SendOp::Write { va, rkey: key };
            let posted = poll_fn(|cx| match self.post_at(slot, at, op, len) {
                Err(NicError::Full) => give_way(cx),
                other => Poll::Ready(other),
            });
            result = result.and(posted.await.map_err(|_| Fault::Lost));
            at += len;
        }
        self.posting.store(false, Ordering::Release);
        if result.is_ok() {
            self.posted.fetch_add(1, Ordering::Relaxed);
            result = poll_fn(|_| self.outcome(slot).map_or(Poll::Pending, Poll::Ready)).await;
        }
        self.free_slot(slot);
        result
    }

    fn copies(&self) -> std::sync::MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One verb from start to end.
    async fn run(&self, op: SendOp, data: Option<&[u8]>, out: &mut [u8]) -> Result<(), Fault> {
        let len = data.map_or(out.len(), <[u8]>::len);
        let slot = poll_fn(|cx| self.take_slot().map_or_else(|| give_way(cx), Poll::Ready)).await;
        if let Some(data) = data {
            self.fill(slot, data);
        }
        let posted = poll_fn(|cx| match self.post(slot, op, len) {
            Err(NicError::Full) => give_way(cx),
            other => Poll::Ready(other),
        });
        let mut result = posted.await.map_err(|_| Fault::Lost);
        if result.is_ok() {
            result = poll_fn(|_| self.outcome(slot).map_or(Poll::Pending, Poll::Ready)).await;
        }
        if result.is_ok() {
            self.drain(slot, out);
        }
        self.free_slot(slot);
        result
    }
}

/// Waits for something that no completion tells of: the kernel wants another turn.
fn give_way<T>(cx: &mut Context<'_>) -> Poll<T> {
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// A handle to the node's memory, for one call of a kernel at the client.
pub struct RemoteMemory<C> {
    staging: Arc<Staging<C>>,
    op: u64,
}

impl<C> RemoteMemory<C> {
    /// For a call of the kernel `op`.
    #[inline]
    pub fn new(staging: Arc<Staging<C>>, op: u64) -> Self {
        Self { staging, op }
    }
}

impl<C: Carriage> Memory for RemoteMemory<C> {
    /// It ends with the process.
    fn outlives_caller(&self) -> bool {
        false
    }

    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        let len = out.len();
        for (n, piece) in out.chunks_mut(SLOT).enumerate() {
            let va = va.wrapping_add((n * SLOT) as u64);
            self.staging.run(SendOp::Read { va, rkey: key }, None, piece).await?;
        }
        self.staging.carriage.work(self.op, len);
        Ok(())
    }

    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        for (n, piece) in data.chunks(SLOT).enumerate() {
            let va = va.wrapping_add((n * SLOT) as u64);
            self.staging.run(SendOp::Write { va, rkey: key }, Some(piece), &mut []).await?;
        }
        Ok(())
    }

    async fn write_in_order(&self, key: u32, pieces: &[(u64, &[u8])]) -> Result<(), Fault> {
        if pieces.iter().map(|(_, data)| data.len()).sum::<usize>() <= SLOT && pieces.len() < usize::from(u8::MAX) {
            return match pieces {
                [] => Ok(()),
                _ => self.staging.run_writes(key, pieces).await,
            };
        }
        for &(va, data) in pieces {
            self.write(key, va, data).await?;
        }
        Ok(())
    }

    fn recall(&self, key: u32, va: u64, out: &mut [u8]) -> bool {
        self.staging.copies().recall(key, va, out)
    }

    fn keep(&self, key: u32, va: u64, bytes: &[u8]) {
        self.staging.copies().keep(key, va, bytes);
    }

    fn forget(&self, key: u32, va: u64) {
        self.staging.copies().forget(key, va);
    }

    async fn compute(&self, instructions: u64) {
        self.staging.carriage.compute(instructions);
    }

    async fn compare_swap(&self, key: u32, va: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        let mut old = [0; 8];
        self.staging.run(SendOp::CompareSwap { va, rkey: key, compare, swap }, None, &mut old).await?;
        Ok(u64::from_ne_bytes(old))
    }

    async fn fetch_add(&self, key: u32, va: u64, add: u64) -> Result<u64, Fault> {
        let mut old = [0; 8];
        self.staging.run(SendOp::FetchAdd { va, rkey: key, add }, None, &mut old).await?;
        Ok(u64::from_ne_bytes(old))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remora_memory::{Access, Registry};
    use std::collections::BTreeSet;
    use std::pin::pin;
    use std::sync::Mutex;
    use std::task::Waker;

    /// Notes what is to be posted; full after so many.
    struct Noted {
        verbs: Mutex<Vec<StagedVerb>>,
        room: usize,
    }

    impl Carriage for Noted {
        fn post(&self, verb: &StagedVerb) -> Result<(), NicError> {
            let mut verbs = self.verbs.lock().unwrap();
            if verbs.len() == self.room {
                return Err(NicError::Full);
            }
            verbs.push(*verb);
            Ok(())
        }
    }

    fn staging(slots: usize, room: usize) -> Arc<Staging<Noted>> {
        let registry = Registry::new([1; 32]);
        let buffer = Buffer::anonymous(slots * SLOT).unwrap();
        let region =
            registry.register(registry.alloc_pd(), &buffer, 0, buffer.len(), None, Access::LOCAL_WRITE).unwrap();
        Staging::new(Noted { verbs: Mutex::default(), room }, buffer, region)
    }

    fn send<T: Send>(value: T) -> T {
        value
    }

    #[test]
    fn slots_are_handed_out_once() {
        for slots in [1, 63, 64, 65, 512] {
            let staging = staging(slots, 0);
            let taken: BTreeSet<u32> = std::iter::from_fn(|| staging.take_slot()).collect();
            assert_eq!(taken, (0..slots as u32).collect());
            assert!(!staging.is_idle());
            taken.iter().rev().for_each(|&slot| staging.free_slot(slot));
            assert!(staging.is_idle());
            staging.free_slot(slots as u32 + 64);
            staging.complete(u32::MAX, WcStatus::Success);
            assert_eq!(staging.outcome(u32::MAX), None);
            assert_eq!(staging.take_slot(), Some(0));
        }
    }

    #[test]
    fn long_accesses_are_cut_and_faults_are_what_the_verbs_say() {
        let staging = staging(4, 8);
        let memory = RemoteMemory::new(staging.clone(), 1);
        let mut out = vec![0; SLOT + 5];
        let mut cx = Context::from_waker(Waker::noop());
        {
            let mut read = pin!(send(memory.read(9, 1 << 20, &mut out)));
            assert!(read.as_mut().poll(&mut cx).is_pending());
            staging.fill(0, &[7; SLOT]);
            staging.complete(0, WcStatus::Success);
            assert!(read.as_mut().poll(&mut cx).is_pending());
            staging.fill(0, &[8; 5]);
            staging.complete(0, WcStatus::Success);
            assert_eq!(read.as_mut().poll(&mut cx), Poll::Ready(Ok(())));
        }
        assert_eq!((out[SLOT - 1], &out[SLOT..]), (7, &[8; 5][..]));
        let verbs = std::mem::take(&mut *staging.carriage().verbs.lock().unwrap());
        let seen: Vec<_> = verbs.iter().map(|verb| (verb.slot, verb.op, verb.sge.len)).collect();
        let read = |va| SendOp::Read { va, rkey: 9 };
        assert_eq!(seen, [(0, read(1 << 20), SLOT as u32), (0, read((1 << 20) + SLOT as u64), 5)]);

        for (status, fault) in [
            (WcStatus::RemoteAccess, Fault::Access),
            (WcStatus::RemoteInvalidRequest, Fault::Misaligned),
            (WcStatus::RetryExceeded, Fault::Lost),
        ] {
            let mut add = pin!(memory.fetch_add(9, 8, 1));
            assert!(add.as_mut().poll(&mut cx).is_pending());
            staging.complete(0, status);
            assert_eq!(add.as_mut().poll(&mut cx), Poll::Ready(Err(fault)));
        }
        let mut write = pin!(memory.write(9, 8, &[1]));
        assert!(write.as_mut().poll(&mut cx).is_pending());
        staging.set_lost();
        assert_eq!(write.as_mut().poll(&mut cx), Poll::Ready(Err(Fault::Lost)));
        assert!(staging.is_idle());
        assert_eq!(staging.posted(), 6);
    }

    #[test]
    fn writes_in_order_leave_together_and_end_together() {
        let staging = staging(1, 2);
        let memory = RemoteMemory::new(staging.clone(), 1);
        let mut cx = Context::from_waker(Waker::noop());
        let pieces: [(u64, &[u8]); 3] = [(72, &[1; 8]), (16, &[2; 40]), (64, &[3; 8])];
        for failed in [None, Some(1)] {
            let before = staging.posted();
            let mut write = pin!(send(memory.write_in_order(9, &pieces)));
            assert!(write.as_mut().poll(&mut cx).is_pending(), "no room for the third");
            staging.complete(0, WcStatus::Success);
            let first = std::mem::take(&mut *staging.carriage().verbs.lock().unwrap());
            assert!(write.as_mut().poll(&mut cx).is_pending());
            let last = std::mem::take(&mut *staging.carriage().verbs.lock().unwrap());
            let seen: Vec<_> = first.iter().chain(&last).map(|verb| (verb.op, verb.sge.va, verb.sge.len)).collect();
            let front = seen[0].1;
            let write_to = |va| SendOp::Write { va, rkey: 9 };
            let expected = [(write_to(72), front, 8), (write_to(16), front + 8, 40), (write_to(64), front + 48, 8)];
            assert_eq!(seen, expected);
            let ends = [1, 2].map(|n| if failed == Some(n) { WcStatus::RemoteAccess } else { WcStatus::Success });
            staging.complete(0, ends[0]);
            assert!(write.as_mut().poll(&mut cx).is_pending(), "one is under way");
            staging.complete(0, ends[1]);
            let expected = if failed.is_some() { Err(Fault::Access) } else { Ok(()) };
            assert_eq!(write.as_mut().poll(&mut cx), Poll::Ready(expected));
            assert_eq!(staging.posted() - before, 1, "one round trip");
        }
    }

    #[test]
    fn an_access_waits_for_room_and_for_a_slot() {
        let staging = staging(1, 1);
        let memory = RemoteMemory::new(staging.clone(), 1);
        let mut cx = Context::from_waker(Waker::noop());
        let mut first = pin!(memory.write(9, 8, &[1]));
        let mut second = pin!(memory.write(9, 16, &[2]));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending(), "no slot");
        staging.complete(0, WcStatus::Success);
        assert_eq!(first.as_mut().poll(&mut cx), Poll::Ready(Ok(())));
        assert!(second.as_mut().poll(&mut cx).is_pending(), "no room");
        staging.carriage().verbs.lock().unwrap().clear();
        assert!(second.as_mut().poll(&mut cx).is_pending());
        staging.complete(0, WcStatus::Success);
        assert_eq!(second.as_mut().poll(&mut cx), Poll::Ready(Ok(())));
    }
}
