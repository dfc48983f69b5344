//! What a place knows while one of its kernels runs: its time, and what an access of memory costs from there.
//!
//! A kernel is polled at the time when what it waited for is there. Its next access starts where the place's processor
//! is done with the step; the access finds its own completion time at once, by reservation, and asks to be woken then.
//! The bytes are copied when they arrive, so that what a reader sees of a writer's work is as old as it would be.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use remora_kernel::btree::NODE_BYTES;
use remora_kernel::{Fault, Memory, op};
use remora_memory::{Access, AccessError, Pd, Region, Registry};

use super::hardware::{Hardware, ProcessorId};
use super::writer::Writer;
use crate::time::Ps;

/// A place and its time.
pub struct Site {
    processor: ProcessorId,
    hardware: Rc<RefCell<Hardware>>,
    /// Where the kernel being polled is in time: never before the event that woke it.
    at: Cell<Ps>,
    /// The kernel being polled.
    task: Cell<u32>,
    /// Kernels to wake, and when.
    wakes: RefCell<Vec<(Ps, u32)>>,
    /// When the last bytes that nobody waits for were on their way.
    sent: Cell<Ps>,
    /// Who changes the memory meanwhile.
    writer: Rc<RefCell<Option<Writer>>>,
}

impl Site {
    /// A place of a machine.
    pub fn new(
        processor: ProcessorId,
        hardware: Rc<RefCell<Hardware>>,
        writer: Rc<RefCell<Option<Writer>>>,
    ) -> Rc<Self> {
        let (at, task, wakes) = (Cell::new(Ps::ZERO), Cell::new(0), RefCell::default());
        Rc::new(Self { processor, hardware, at, task, wakes, sent: Cell::new(Ps::ZERO), writer })
    }

    /// Kernel `task` goes on at `now`: its processor takes one step.
    pub fn enter(&self, now: Ps, task: u32) {
        self.task.set(task);
        let hardware = &mut *self.hardware.borrow_mut();
        let (processor, board) = hardware.processor(self.processor);
        self.at.set(processor.step(board, now));
    }

    /// The machine's hardware.
    pub fn hardware(&self) -> &RefCell<Hardware> {
        &self.hardware
    }

    /// Where the kernel being polled, or polled last, is in time.
    pub fn at(&self) -> Ps {
        self.at.get()
    }

    /// The kernel being polled, or polled last.
    pub fn task(&self) -> u32 {
        self.task.get()
    }

    /// The kernel works on `bytes` of data: what `op` does with them takes its time.
    pub fn compute(&self, op: u64, bytes: usize) {
        let hardware = &mut *self.hardware.borrow_mut();
        let (processor, board) = hardware.processor(self.processor);
        self.at.set(processor.compute(board, self.at.get(), op, bytes));
    }

    /// The kernel computes so many counted instructions.
    pub fn instructions(&self, count: u64) {
        let hardware = &mut *self.hardware.borrow_mut();
        let (processor, board) = hardware.processor(self.processor);
        self.at.set(processor.instructions(board, self.at.get(), count));
    }

    /// When the last bytes that a kernel sent without waiting for them were on their way.
    pub fn sent(&self) -> Ps {
        self.sent.get()
    }

    /// The kernels to wake since the last call.
    pub fn take_wakes(&self, into: &mut Vec<(Ps, u32)>) {
        into.append(&mut self.wakes.borrow_mut());
    }

    /// Lets the kernel sleep until `until`. It may wait for several accesses at once, and is woken for each.
    pub async fn sleep(&self, until: Ps) {
        let mut asleep = false;
        poll_fn(|_| {
            if asleep && self.at.get() >= until {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut asleep, true) {
                self.wakes.borrow_mut().push((until, self.task.get()));
            }
            Poll::Pending
        })
        .await;
    }

    fn disturb(&self, reading: bool) {
        if let Some(writer) = self.writer.borrow_mut().as_mut() {
            writer.catch_up(self.at.get(), reading);
        }
    }

    fn is_disturbed(&self) -> bool {
        self.writer.borrow().is_some()
    }
}

/// Registered memory of the site's machine, with the rights of a protection domain.
pub struct SiteMemory {
    site: Rc<Site>,
    registry: Arc<Registry>,
    pd: Pd,
    op: u64,
}

impl SiteMemory {
    /// For one call of the kernel `op`.
    pub fn new(site: Rc<Site>, registry: Arc<Registry>, pd: Pd, op: u64) -> Self {
        Self { site, registry, pd, op }
    }

    fn region(&self, key: u32, va: u64, len: usize, need: Access) -> Result<Arc<Region>, Fault> {
        let region = self.registry.lookup(key).ok_or(Fault::Access)?;
        region.check(self.pd, va, len as u64, need).map_err(fault)?;
        Ok(region)
    }

    /// When the first and the last byte of an access are here.
    fn reach(&self, va: u64, len: usize, kind: Reach) -> (Ps, Ps) {
        let hardware = &mut *self.site.hardware.borrow_mut();
        let (processor, board) = hardware.processor(self.site.processor);
        let at = self.site.at.get();
        let reached = processor.reach(board, at, va, len as u64, kind);
        self.site.at.set(processor.issued(at));
        reached
    }

    async fn atomic(&self, key: u32, va: u64, f: impl Fn(&Region) -> Result<u64, AccessError>) -> Result<u64, Fault> {
        let region = self.region(key, va, 8, Access::REMOTE_ATOMIC)?;
        let (_, done) = self.reach(va, 8, Reach::Atomic);
        self.site.sleep(done).await;
        f(&region).map_err(fault)
    }
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Brings bytes here.
    Read,
    /// Brings a sorted node here, of which a thread that waits for its loads looks at some lines only, one after the other.
    Search,
    /// Sends bytes there; done when they are on their way.
    Write,
    /// Sends whole lines there that nobody reads soon; done when they are on their way.
    Stream,
    /// Brings a word here and sends it back changed.
    Atomic,
}

/// Bytes that arrive together while somebody changes the memory: a read of more may see it half changed.
const PIECE: usize = 512;

impl Memory for SiteMemory {
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        let region = self.region(key, va, out.len(), Access::REMOTE_READ)?;
        let searches = matches!(self.op, op::TREE_GET | op::TREE_PUT | op::TREE_DELETE) && out.len() >= NODE_BYTES[0];
        let (first, last) = self.reach(va, out.len(), if searches { Reach::Search } else { Reach::Read });
        if self.site.is_disturbed() && out.len() > PIECE {
            let pieces = out.len().div_ceil(PIECE) as u64;
            for (n, piece) in (0u64..).zip(out.chunks_mut(PIECE)) {
                self.site.sleep(first + Ps((last - first).0 * n / (pieces - 1))).await;
                self.site.disturb(n == 0);
                region.read(va + n * PIECE as u64, piece).map_err(fault)?;
            }
        } else {
            self.site.sleep(last).await;
            self.site.disturb(true);
            region.read(va, out).map_err(fault)?;
        }
        self.site.compute(self.op, out.len());
        Ok(())
    }

    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        let region = self.region(key, va, data.len(), Access::REMOTE_WRITE)?;
        let (_, done) = self.reach(va, data.len(), Reach::Write);
        self.site.sleep(done).await;
        region.write(va, data).map_err(fault)
    }

    async fn write_streamed(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        let region = self.region(key, va, data.len(), Access::REMOTE_WRITE)?;
        // The kernel goes on at once, from where the bytes were on their way: it holds no more of them than these.
        let (_, sent) = self.reach(va, data.len(), Reach::Stream);
        self.site.at.set(sent);
        self.site.sent.set(sent);
        region.write(va, data).map_err(fault)
    }

    fn streamed_run(&self) -> usize {
        self.site.hardware.borrow_mut().processor(self.site.processor).1.gathered()
    }

    async fn compute(&self, instructions: u64) {
        self.site.instructions(instructions);
    }

    async fn compare_swap(&self, key: u32, va: u64, expect: u64, new: u64) -> Result<u64, Fault> {
        self.atomic(key, va, |region| region.compare_swap(va, expect, new)).await
    }

    async fn fetch_add(&self, key: u32, va: u64, n: u64) -> Result<u64, Fault> {
        self.atomic(key, va, |region| region.fetch_add(va, n)).await
    }
}

fn fault(error: AccessError) -> Fault {
    match error {
        AccessError::Misaligned => Fault::Misaligned,
        _ => Fault::Access,
    }
}
