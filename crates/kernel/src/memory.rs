//! What a kernel sees of memory, and how much of it one call may touch.

use remora_memory::{Scatter, Words, WordsMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes that a kernel reads at once, where it reads more: others run in between.
pub(crate) const PIECE: usize = 64 << 10;

/// Memory as one place reaches it. A key names a memory region, an address lies within it.
///
/// Rights are those that the caller of the kernel has by one-sided verbs.
#[allow(async_fn_in_trait, reason = "each world knows by itself whether its futures are Send")]
pub trait Memory {
    /// Copies bytes from `va` on into `out`.
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault>;

    /// Copies `data` to `va`.
    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault>;

    /// Copies `data` to `va`; nobody reads it soon. Others see it at the latest when the call ends.
    async fn write_streamed(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        self.write(key, va, data).await
    }

    /// Bytes that a [`write_streamed`](Self::write_streamed) should have at least, where the kernel can gather as many.
    fn streamed_run(&self) -> usize {
        128
    }

    /// A way to store words at these places of a region, given by address and room in words, if the place is a core
    /// that has one and the caller may write to all of them. What goes that way counts against no limit.
    fn scatter(&self, key: u32, places: &[(u64, u32)]) -> Option<Scatter> {
        _ = (key, places);
        None
    }

    /// Copies pieces to their addresses, one after the other: who sees one sees those before it. One round trip where the
    /// place is far.
    async fn write_in_order(&self, key: u32, pieces: &[(u64, &[u8])]) -> Result<(), Fault> {
        for &(va, data) in pieces {
            self.write(key, va, data).await?;
        }
        Ok(())
    }

    /// Asks for bytes that an [`Immediate`] access is about to touch, and lets other calls run while they come. Nothing
    /// where accesses wait by themselves.
    async fn touch(&self, key: u32, va: u64, len: usize) {
        _ = (key, va, len);
    }

    /// Brings a copy that [`keep`](Self::keep) kept of these bytes, if there is one. It may be old: for data that show by
    /// themselves whether they still hold.
    fn recall(&self, key: u32, va: u64, out: &mut [u8]) -> bool {
        _ = (key, va, out);
        false
    }

    /// Keeps a copy of bytes for later calls of the same caller, where the memory is far and there is room.
    fn keep(&self, key: u32, va: u64, bytes: &[u8]) {
        _ = (key, va, bytes);
    }

    /// Drops the copy of the bytes at `va`.
    fn forget(&self, key: u32, va: u64) {
        _ = (key, va);
    }

    /// Stores `new` if the word at `va`, a multiple of 8, is `expect`; returns what it was.
    async fn compare_swap(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault>;

    /// Adds `n` to the word at `va`, a multiple of 8, wrapping; returns what it was.
    async fn fetch_add(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault>;

    /// Raises the call's [`Limits`], as `bytes` of its payload came: what a stream may do grows with its length, by
    /// two bytes for each and an access for every 64.
    fn earn(&self, bytes: usize) {
        _ = bytes;
    }

    /// Whether a region that the call may write to reaches up to this address, once it has grown if it may. It does not
    /// where regions do not grow.
    fn grow(&self, key: u32, end: u64) -> bool {
        _ = (key, end);
        false
    }

    /// Replaces what is left of the call's [`Limits`]: for a kernel that has its own, before its first access. Nothing
    /// where calls have no limits.
    fn set_limits(&self, limits: Limits) {
        _ = limits;
    }

    /// Whether an access of so many bytes is within what is left of the call's [`Limits`]. For who makes room for it: it
    /// is the access that pays.
    fn afford(&self, bytes: usize) -> Result<(), Fault> {
        _ = bytes;
        Ok(())
    }

    /// Charges the place for computing so many instructions beside the accesses. Nothing where computing takes its own
    /// time.
    async fn compute(&self, instructions: u64) {
        _ = instructions;
    }

    /// Notes work beside the accesses, in half nanoseconds of a core or so, for a place whose clients share its turns: a
    /// poll that took long is paid for by its client. Nothing elsewhere.
    fn spend(&self, cost: u64) {
        _ = cost;
    }

    /// Whether a call goes on though its caller has gone away. It does not where the caller's own process runs it.
    fn outlives_caller(&self) -> bool {
        true
    }

    /// A view of this memory whose accesses never wait, if the place has one: for code that cannot be suspended.
    fn immediate(&self) -> Option<&dyn Immediate> {
        None
    }
}

/// Memory whose accesses are done when they return: [`Memory`] without waiting.
pub trait Immediate {
    /// See [`Memory::read`].
    fn read_now(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault>;

    /// See [`Memory::write`].
    fn write_now(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault>;

    /// See [`Memory::compare_swap`].
    fn compare_swap_now(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault>;

    /// Words to look at where they are, if all of them may be read, they are aligned, and the place has them so. Nothing is
    /// paid, and nothing is said of why there are none: an access says it.
    fn view_now(&self, key: u32, va: u64, len: u64) -> Option<Words<'_>> {
        _ = (key, va, len);
        None
    }

    /// As [`view_now`](Self::view_now), if they may all be written and swapped as well.
    fn view_mut_now(&self, key: u32, va: u64, len: u64) -> Option<WordsMut<'_>> {
        _ = (key, va, len);
        None
    }

    /// See [`Memory::fetch_add`].
    fn fetch_add_now(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault>;
}

/// Why an access of a kernel failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No such region, outside of it, or without the right.
    #[error("memory access denied")]
    Access,
    /// An atomic operation on an address that is not a multiple of 8.
    #[error("atomic operation on a misaligned address")]
    Misaligned,
    /// The call made as many accesses as it may.
    #[error("limit on steps reached")]
    StepLimit,
    /// The call moved as many bytes as it may.
    #[error("limit on bytes reached")]
    ByteLimit,
    /// The other side went away.
    #[error("connection lost")]
    Lost,
}

/// How much one call of a kernel may do, so that a cycle in the data ends in an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory accesses.
    pub steps: u32,
    /// Bytes read and written in all; an atomic operation counts as 8.
    pub bytes: u64,
}

impl Default for Limits {
    /// 4096 accesses and 16 MB.
    fn default() -> Self {
        Limits { steps: 4096, bytes: 16 << 20 }
    }
}

/// What is left of the limits of one call.
///
/// Atomic only so that a task may move between threads: one task uses it.
pub(crate) struct Budget {
    steps: AtomicU32,
    bytes: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limits: Limits) -> Self {
        Budget { steps: AtomicU32::new(limits.steps), bytes: AtomicU64::new(limits.bytes) }
    }

    /// See [`Memory::set_limits`].
    #[inline]
    pub(crate) fn set(&self, limits: Limits) {
        self.steps.store(limits.steps, Ordering::Relaxed);
        self.bytes.store(limits.bytes, Ordering::Relaxed);
    }

    /// Pays for one access.
    #[inline]
    pub(crate) fn spend(&self, bytes: usize) -> Result<(), Fault> {
        let (steps, left) = self.after(bytes)?;
        self.steps.store(steps, Ordering::Relaxed);
        self.bytes.store(left, Ordering::Relaxed);
        Ok(())
    }

    /// What one access more leaves; see [`Memory::afford`].
    #[inline]
    pub(crate) fn after(&self, bytes: usize) -> Result<(u32, u64), Fault> {
        let steps = self.steps.load(Ordering::Relaxed).checked_sub(1).ok_or(Fault::StepLimit)?;
        let left = self.bytes.load(Ordering::Relaxed).checked_sub(bytes as u64).ok_or(Fault::ByteLimit)?;
        Ok((steps, left))
    }

    /// Grows with the payload; see [`Memory::earn`].
    #[inline]
    pub(crate) fn earn(&self, bytes: usize) {
        let steps = u32::try_from(bytes / 64 + 1).unwrap_or(u32::MAX);
        self.steps.store(self.steps.load(Ordering::Relaxed).saturating_add(steps), Ordering::Relaxed);
        let left = self.bytes.load(Ordering::Relaxed);
        self.bytes.store(left.saturating_add(2 * bytes as u64), Ordering::Relaxed);
    }
}

/// Memory with the limits of one call.
pub struct Limited<'a, M> {
    memory: &'a M,
    budget: Budget,
}

impl<'a, M: Memory> Limited<'a, M> {
    /// `memory`, for one call.
    pub fn new(memory: &'a M, limits: Limits) -> Self {
        Limited { memory, budget: Budget::new(limits) }
    }
}

impl<M: Memory> Memory for Limited<'_, M> {
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.budget.spend(out.len())?;
        self.memory.read(key, va, out).await
    }

    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        self.budget.spend(data.len())?;
        self.memory.write(key, va, data).await
    }

    async fn write_streamed(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        self.budget.spend(data.len())?;
        self.memory.write_streamed(key, va, data).await
    }

    fn streamed_run(&self) -> usize {
        self.memory.streamed_run()
    }

    fn scatter(&self, key: u32, places: &[(u64, u32)]) -> Option<Scatter> {
        self.memory.scatter(key, places)
    }

    async fn write_in_order(&self, key: u32, pieces: &[(u64, &[u8])]) -> Result<(), Fault> {
        pieces.iter().try_for_each(|(_, data)| self.budget.spend(data.len()))?;
        self.memory.write_in_order(key, pieces).await
    }

    async fn touch(&self, key: u32, va: u64, len: usize) {
        self.memory.touch(key, va, len).await;
    }

    fn recall(&self, key: u32, va: u64, out: &mut [u8]) -> bool {
        self.memory.recall(key, va, out)
    }

    fn keep(&self, key: u32, va: u64, bytes: &[u8]) {
        self.memory.keep(key, va, bytes);
    }

    fn forget(&self, key: u32, va: u64) {
        self.memory.forget(key, va);
    }

    async fn compare_swap(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        self.budget.spend(8)?;
        self.memory.compare_swap(key, va, expect, new).await
    }

    async fn fetch_add(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        self.budget.spend(8)?;
        self.memory.fetch_add(key, va, n).await
    }

    fn earn(&self, bytes: usize) {
        self.budget.earn(bytes);
    }

    fn set_limits(&self, limits: Limits) {
        self.budget.set(limits);
    }

    fn grow(&self, key: u32, end: u64) -> bool {
        self.memory.grow(key, end)
    }

    fn afford(&self, bytes: usize) -> Result<(), Fault> {
        self.budget.after(bytes)?;
        self.memory.afford(bytes)
    }

    fn outlives_caller(&self) -> bool {
        self.memory.outlives_caller()
    }

    async fn compute(&self, instructions: u64) {
        self.memory.compute(instructions).await;
    }

    fn spend(&self, cost: u64) {
        self.memory.spend(cost);
    }
}
