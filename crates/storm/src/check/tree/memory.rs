//! Memory whose accesses are done one piece at a time, whenever the search says so.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::hash::Hasher;
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

use remora_kernel::btree::{Directory, Head};
use remora_kernel::{Fault, Immediate, Memory};

use crate::search::Print;

/// Bytes of a node.
pub(super) const NODE: usize = 256;

/// A fault of the memory that is seeded, to see that the check finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeMutant {
    /// The tail that tells readers of a write comes behind it.
    TailLate,
    /// A compare-and-swap always swaps.
    Swaps,
    /// A leaf that has given its keys to the other part of an index does not say so.
    Both,
    /// A compare-and-swap that should swap only says so: a lock keeps nobody out.
    NoLock,
    /// The node recovers what a client has under way that is still there.
    Early,
    /// The seal of a client's log comes before what it seals.
    SealEarly,
}

impl TreeMutant {
    /// All, by name.
    pub const ALL: [(&'static str, TreeMutant); 6] = [
        ("tail-late", TreeMutant::TailLate),
        ("swaps", TreeMutant::Swaps),
        ("both", TreeMutant::Both),
        ("no-lock", TreeMutant::NoLock),
        ("early", TreeMutant::Early),
        ("seal-early", TreeMutant::SealEarly),
    ];
}

/// The tree's memory, which all tasks share.
#[derive(Default)]
pub(super) struct Shared {
    pub bytes: RefCell<Vec<u8>>,
    pub mutant: Option<TreeMutant>,
    /// Where logs begin in a tree.
    pub logs: usize,
    /// Bytes of a tree.
    pub tree: usize,
    /// What is told of each access, if somebody listens.
    pub told: RefCell<Option<Vec<String>>>,
}

/// The memory as one task reaches it.
pub(super) struct TaskMemory {
    pub shared: Rc<Shared>,
    pub task: usize,
    /// Whether its accesses never wait, as the node's.
    pub near: bool,
    /// Whether reads of nodes come in pieces, and writes one by one.
    pub fine: (bool, bool),
    /// Its next step writes its log, which nobody reads who is under way: it comes at once, or never.
    pub logs: Cell<bool>,
    /// Its next step is one that may change memory.
    pub changes: Cell<bool>,
    /// It recovers what this owner left, who is gone: nobody else changes what it looks at.
    pub recovers: Option<u16>,
    /// What the task has seen, and what it had seen when it began what it does.
    pub seen: Cell<Print>,
    pub began: Cell<Print>,
    /// The head of a node that the task waits for.
    pub waits: Cell<Option<usize>>,
}

impl TaskMemory {
    pub fn new(shared: &Rc<Shared>, task: usize, near: bool) -> Self {
        let fine = (false, false);
        Self {
            shared: shared.clone(),
            task,
            near,
            fine,
            logs: Cell::new(false),
            changes: Cell::new(false),
            recovers: None,
            seen: Cell::default(),
            began: Cell::default(),
            waits: Cell::new(None),
        }
    }

    /// Whether the task can go on.
    pub fn can_go(&self) -> bool {
        self.waits.get().is_none_or(|at| !self.is_locked(at))
    }

    /// The task begins an operation.
    pub fn begin(&self) {
        self.began.set(self.seen.get());
    }

    /// It has ended its operation: of all that it has seen only what came of it matters to what is to come.
    pub fn end(&self, outcome: &str) {
        let mut seen = self.began.get();
        seen.write(outcome.as_bytes());
        self.seen.set(seen);
    }

    /// Whether the border of an index lies there. Who moves it begins anew with a look at it: of what he saw before only moves
    /// that he has made matter to what is to come.
    fn is_border(&self, at: usize) -> bool {
        at == 2 * self.shared.tree + Directory::SPLIT as usize
    }

    /// It is gone: nothing comes of what it has seen.
    pub fn gone(&self) {
        self.begun_anew();
    }

    /// Nothing that it has seen in its operation matters any more.
    fn begun_anew(&self) {
        self.seen.set(self.began.get());
    }

    /// The task's next step, which may change memory.
    async fn step_to_change(&self) {
        self.changes.set(true);
        self.step(None).await;
        self.changes.set(false);
    }

    /// Whether who reads the node there would only read it again.
    fn is_locked(&self, at: usize) -> bool {
        Head(self.word(at)).is_locked()
    }

    fn word(&self, at: usize) -> u64 {
        let bytes = self.shared.bytes.borrow();
        bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
    }

    fn range(&self, key: u32, va: u64, len: usize) -> Result<Range<usize>, Fault> {
        let end = va.checked_add(len as u64).ok_or(Fault::Access)?;
        let inside = key == 1 && end <= self.shared.bytes.borrow().len() as u64;
        if inside { Ok(va as usize..end as usize) } else { Err(Fault::Access) }
    }

    /// Whether a log is there.
    fn is_log(&self, at: usize) -> bool {
        at % self.shared.tree.max(1) >= self.shared.logs
    }

    /// The task's next step; the one after a lock is gone, if it is `waiting` for that.
    async fn step(&self, waiting: Option<usize>) {
        let mut first = true;
        poll_fn(|_| {
            if std::mem::take(&mut first) {
                return Poll::Pending;
            }
            self.waits.set(waiting.filter(|at| self.is_locked(*at)));
            if self.waits.get().is_some() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    fn saw(&self, bytes: &[u8]) {
        let bytes = if self.recovers.is_some() { &[] } else { bytes };
        let mut seen = self.seen.get();
        seen.write_u8(bytes.len() as u8);
        seen.write(bytes);
        self.seen.set(seen);
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        if let Some(told) = &mut *self.shared.told.borrow_mut() {
            told.push(format!("task {}: {}", self.task, what()));
        }
    }

    fn load(&self, range: Range<usize>, out: &mut [u8]) {
        out.copy_from_slice(&self.shared.bytes.borrow()[range.clone()]);
        self.saw(out);
        self.tell(|| {
            format!("reads {} to {} of slot {}", range.start % NODE, range.start % NODE + out.len(), range.start / NODE)
        });
    }

    fn store(&self, range: Range<usize>, data: &[u8]) {
        self.tell(|| {
            format!(
                "writes {} to {} of slot {}",
                range.start % NODE,
                range.start % NODE + data.len(),
                range.start / NODE
            )
        });
        self.shared.bytes.borrow_mut()[range].copy_from_slice(data);
        // Even if nothing has changed the task is further now.
        self.saw(&[]);
    }

    fn swap(&self, at: usize, expect: u64, new: u64) -> u64 {
        let old = self.word(at);
        let swaps = old == expect || self.shared.mutant == Some(TreeMutant::Swaps);
        self.tell(|| format!("{} the head of slot {}", if swaps { "swaps" } else { "fails to swap" }, at / NODE));
        if swaps && self.shared.mutant != Some(TreeMutant::NoLock) {
            self.shared.bytes.borrow_mut()[at..at + 8].copy_from_slice(&new.to_le_bytes());
        }
        if swaps && self.is_border(at) {
            let mut began = self.began.get();
            began.write_u64(new);
            self.began.set(began);
        }
        let old = if self.shared.mutant == Some(TreeMutant::Swaps) { expect } else { old };
        self.saw(&old.to_le_bytes());
        old
    }
}

/// The byte that says that a leaf is away, if it is among those that are written from `start` on.
fn away(start: usize, data: &mut [u8]) -> Option<&mut u8> {
    let from = start % NODE;
    if from <= 30 { data.get_mut(31 - from) } else { None }
}

/// Where the pieces end in which a read of so many bytes comes.
fn ends(len: usize, fine: bool) -> Vec<usize> {
    match len {
        NODE if fine => vec![8, NODE / 2, NODE - 8, NODE],
        9.. if fine => vec![8, len],
        _ => vec![len],
    }
}

impl Memory for TaskMemory {
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        let range = self.range(key, va, out.len())?;
        let node = out.len() == NODE;
        let mut start = 0;
        for end in ends(out.len(), self.fine.0) {
            self.step((node && start == 0).then_some(range.start)).await;
            if self.is_border(range.start) {
                self.begun_anew();
            }
            self.load(range.start + start..range.start + end, &mut out[start..end]);
            start = end;
        }
        Ok(())
    }

    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        let range = self.range(key, va, data.len())?;
        self.step_to_change().await;
        self.store(range, data);
        Ok(())
    }

    async fn write_in_order(&self, key: u32, pieces: &[(u64, &[u8])]) -> Result<(), Fault> {
        let mut pieces = pieces.to_vec();
        if self.shared.mutant == Some(TreeMutant::TailLate) {
            // Of all others the order stays.
            pieces.sort_by_key(|(va, _)| va % NODE as u64 == NODE as u64 - 8);
        }
        if self.shared.mutant == Some(TreeMutant::SealEarly) {
            pieces.sort_by_key(|(va, data)| !(self.is_log(*va as usize) && data.len() == 8));
        }
        for (at, (va, data)) in pieces.into_iter().enumerate() {
            let range = self.range(key, va, data.len())?;
            if at == 0 || self.fine.1 {
                self.logs.set(self.is_log(range.start));
                self.step_to_change().await;
                self.logs.set(false);
            }
            let mut data = data.to_vec();
            if self.shared.mutant == Some(TreeMutant::Both)
                && let Some(away) = away(range.start, &mut data)
            {
                *away = 0;
            }
            self.store(range, &data);
        }
        Ok(())
    }

    async fn touch(&self, key: u32, va: u64, len: usize) {
        // What is not locked by who is gone is nothing to who recovers that, whenever he looks.
        if let (Some(owner), Ok(range)) = (self.recovers, self.range(key, va, 8)) {
            let head = Head(self.word(range.start));
            if !head.is_locked() || head.owner() != owner {
                return;
            }
        }
        if self.near && self.range(key, va, len).is_ok() {
            self.step((len == NODE).then_some(va as usize)).await;
        }
    }

    async fn compare_swap(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        let range = self.range(key, va, 8)?;
        self.step_to_change().await;
        Ok(self.swap(range.start, expect, new))
    }

    async fn fetch_add(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        let range = self.range(key, va, 8)?;
        self.step_to_change().await;
        let old = self.word(range.start);
        self.saw(&old.to_le_bytes());
        self.store(range, &old.wrapping_add(n).to_le_bytes());
        Ok(old)
    }

    fn immediate(&self) -> Option<&dyn Immediate> {
        self.near.then_some(self)
    }
}

impl Immediate for TaskMemory {
    fn read_now(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.load(self.range(key, va, out.len())?, out);
        Ok(())
    }

    fn write_now(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        self.store(self.range(key, va, data.len())?, data);
        Ok(())
    }

    fn compare_swap_now(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        Ok(self.swap(self.range(key, va, 8)?.start, expect, new))
    }

    fn fetch_add_now(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        let range = self.range(key, va, 8)?;
        let old = self.word(range.start);
        self.saw(&old.to_le_bytes());
        self.store(range, &old.wrapping_add(n).to_le_bytes());
        Ok(old)
    }
}
