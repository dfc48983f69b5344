//! Remote memory as a kernel at the client sees it: every access is a one-sided verb through the modelled NIC.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use remora_kernel::{Fault, Memory};
use remora_memory::{Buffer, Region};
use remora_nic::{SendOp, Sge, WcStatus};

use super::site::Site;
use crate::time::Ps;

/// Bytes of a staging slot: the longest single verb.
pub const SLOT: usize = 64 << 10;
/// Staging slots.
pub const SLOTS: usize = 512;
/// Work request ids of staging slots have this bit.
pub const SLOT_ID: u64 = 1 << 32;

/// A verb that a kernel asks for.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// When.
    pub at: Ps,
    /// Its staging slot.
    pub slot: u32,
    /// Which verb.
    pub op: SendOp,
    /// Bytes.
    pub len: u32,
}

/// Staging memory, and the verbs under way through it.
pub struct Verbs {
    buffer: Buffer,
    region: Arc<Region>,
    free: RefCell<Vec<u32>>,
    /// Of each slot: the kernel that waits, and how the verb ended.
    slots: RefCell<Vec<(u32, Option<WcStatus>)>>,
    asks: RefCell<Vec<Ask>>,
    posted: Cell<u64>,
}

impl Verbs {
    /// Over staging memory of `SLOTS` slots.
    pub fn new(buffer: Buffer, region: Arc<Region>) -> Rc<Self> {
        Rc::new(Self {
            buffer,
            region,
            free: RefCell::new((0..SLOTS as u32).rev().collect()),
            slots: RefCell::new(vec![(0, None); SLOTS]),
            asks: RefCell::default(),
            posted: Cell::new(0),
        })
    }

    /// Verbs posted so far.
    pub fn posted(&self) -> u64 {
        self.posted.get()
    }

    /// Verbs to post since the last call.
    pub fn take_asks(&self, into: &mut Vec<Ask>) {
        self.posted.set(self.posted.get() + self.asks.borrow().len() as u64);
        into.append(&mut self.asks.borrow_mut());
    }

    /// The local bytes of a verb.
    pub fn sge(&self, ask: &Ask) -> Sge {
        let va = self.region.va() + u64::from(ask.slot) * SLOT as u64;
        Sge { va, len: ask.len, lkey: self.region.key() }
    }

    /// A verb has completed: the kernel to wake, if there is one.
    pub fn complete(&self, wr_id: u64, status: WcStatus) -> Option<u32> {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut((wr_id & (SLOT_ID - 1)) as usize)?;
        slot.1 = Some(status);
        Some(slot.0)
    }
}

/// The node's memory through verbs, for one call of a kernel at the client.
pub struct VerbMemory {
    verbs: Rc<Verbs>,
    site: Rc<Site>,
    op: u64,
}

impl VerbMemory {
    /// For a call of the kernel `op`.
    pub fn new(verbs: Rc<Verbs>, site: Rc<Site>, op: u64) -> Self {
        Self { verbs, site, op }
    }

    /// One verb from start to end.
    async fn run(&self, op: SendOp, data: Option<&[u8]>, out: &mut [u8]) -> Result<(), Fault> {
        let Self { verbs, site, .. } = self;
        let len = data.map_or(out.len(), <[u8]>::len);
        // More slots than kernels: there is one free.
        let slot = verbs.free.borrow_mut().pop().ok_or(Fault::Lost)?;
        let offset = slot as usize * SLOT;
        if let Some(data) = data {
            verbs.buffer.write(offset, data).map_err(|_| Fault::Lost)?;
        }
        verbs.slots.borrow_mut()[slot as usize] = (site.task(), None);
        verbs.asks.borrow_mut().push(Ask { at: site.at(), slot, op, len: len as u32 });
        let ended = |slot: u32| verbs.slots.borrow()[slot as usize].1;
        let status = poll_fn(|_| ended(slot).map_or(Poll::Pending, Poll::Ready)).await;
        let result = match status {
            WcStatus::Success => verbs.buffer.read(offset, out).map_err(|_| Fault::Lost),
            WcStatus::RemoteAccess => Err(Fault::Access),
            WcStatus::RemoteInvalidRequest => Err(Fault::Misaligned),
            _ => Err(Fault::Lost),
        };
        verbs.free.borrow_mut().push(slot);
        result
    }
}

impl Memory for VerbMemory {
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        let len = out.len();
        for (n, piece) in out.chunks_mut(SLOT).enumerate() {
            let va = va.wrapping_add((n * SLOT) as u64);
            self.run(SendOp::Read { va, rkey: key }, None, piece).await?;
        }
        self.site.compute(self.op, len);
        Ok(())
    }

    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        for (n, piece) in data.chunks(SLOT).enumerate() {
            let va = va.wrapping_add((n * SLOT) as u64);
            self.run(SendOp::Write { va, rkey: key }, Some(piece), &mut []).await?;
        }
        Ok(())
    }

    async fn compute(&self, instructions: u64) {
        self.site.instructions(instructions);
    }

    async fn compare_swap(&self, key: u32, va: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        let mut old = [0; 8];
        self.run(SendOp::CompareSwap { va, rkey: key, compare, swap }, None, &mut old).await?;
        Ok(u64::from_ne_bytes(old))
    }

    async fn fetch_add(&self, key: u32, va: u64, add: u64) -> Result<u64, Fault> {
        let mut old = [0; 8];
        self.run(SendOp::FetchAdd { va, rkey: key, add }, None, &mut old).await?;
        Ok(u64::from_ne_bytes(old))
    }
}
