//! Remote memory as a kernel at the client sees it: every access is a one-sided verb and a network round trip.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use remora_kernel::{Fault, Memory};
use remora_memory::{Access, Buffer, Pd, Region};
use remora_nic::{Data, NicError, Qpn, SendOp, SendWr, Sge, WcStatus};

use crate::device::Device;
use crate::{Error, map_memory};

/// Bytes of one staging slot: the longest single verb that is posted.
pub(crate) const SLOT: usize = 64 << 10;

/// Verbs that may be outstanding at once.
pub(crate) const SLOTS: usize = 256;

/// Work request ids of staging slots have this bit.
pub(crate) const SLOT_ID: u64 = 1 << 32;

/// Staging memory and the verbs under way through it.
pub(crate) struct Verbs {
    device: Device,
    qp: Qpn,
    buffer: Buffer,
    region: Arc<Region>,
    free: RefCell<Vec<u32>>,
    /// Each slot's verb: under way, or how it ended.
    done: RefCell<Vec<Option<WcStatus>>>,
    /// Verbs posted.
    posted: Cell<u64>,
    /// The connection is gone: nothing posted now will ever complete.
    lost: Cell<bool>,
}

impl Verbs {
    pub fn new(device: &Device, pd: Pd, qp: Qpn) -> Result<Self, Error> {
        let buffer = map_memory(SLOTS * SLOT)?;
        let registry = device.lock().nic().registry().clone();
        let region = registry.register(pd, &buffer, 0, SLOTS * SLOT, None, Access::LOCAL_WRITE)?;
        Ok(Self {
            device: device.clone(),
            qp,
            buffer,
            region,
            free: RefCell::new((0..SLOTS as u32).rev().collect()),
            done: RefCell::new(vec![None; SLOTS]),
            posted: Cell::new(0),
            lost: Cell::new(false),
        })
    }

    /// Verbs posted so far: each is one round trip.
    pub fn posted(&self) -> u64 {
        self.posted.get()
    }

    pub fn all_free(&self) -> bool {
        self.free.borrow().len() == SLOTS
    }

    pub fn take_slot(&self) -> Option<u32> {
        self.free.borrow_mut().pop()
    }

    pub fn free_slot(&self, slot: u32) {
        self.done.borrow_mut()[slot as usize] = None;
        self.free.borrow_mut().push(slot);
    }

    /// A completion with a staging slot's id.
    pub fn complete(&self, wr_id: u64, status: WcStatus) {
        let slot = (wr_id & (SLOT_ID - 1)) as usize;
        if let Some(done) = self.done.borrow_mut().get_mut(slot) {
            *done = Some(status);
        }
    }

    /// No completion will come any more.
    pub fn set_lost(&self) {
        self.lost.set(true);
    }

    /// How the slot's verb ended, if it has.
    pub fn status(&self, slot: u32) -> Option<WcStatus> {
        match self.done.borrow()[slot as usize] {
            None if self.lost.get() => Some(WcStatus::Flushed),
            status => status,
        }
    }

    /// Posts a verb over the first `len` bytes of a slot.
    pub fn post(&self, slot: u32, op: SendOp, len: usize) -> Result<(), NicError> {
        let va = self.region.va() + u64::from(slot) * SLOT as u64;
        let sge = [Sge { va, len: len as u32, lkey: self.region.key() }];
        let wr = SendWr::new(SLOT_ID | u64::from(slot), op, Data::List(&sge));
        self.device.lock().nic().post_send(self.qp, &wr)?;
        self.posted.set(self.posted.get() + 1);
        Ok(())
    }

    /// Copies bytes into a slot.
    pub fn fill(&self, slot: u32, data: &[u8]) {
        // A slot and its first SLOT bytes are always in bounds.
        let _ = self.buffer.write(slot as usize * SLOT, data);
    }

    /// Copies bytes out of a slot.
    pub fn drain(&self, slot: u32, out: &mut [u8]) {
        let _ = self.buffer.read(slot as usize * SLOT, out);
    }

    /// One verb from start to end.
    async fn run(&self, op: SendOp, data: Option<&[u8]>, out: &mut [u8]) -> Result<(), Fault> {
        let len = data.map_or(out.len(), <[u8]>::len);
        let slot = poll_fn(|_| self.take_slot().map_or(Poll::Pending, Poll::Ready)).await;
        if let Some(data) = data {
            self.fill(slot, data);
        }
        let posted = poll_fn(|_| match self.post(slot, op, len) {
            Err(NicError::Full) => Poll::Pending,
            other => Poll::Ready(other),
        });
        let mut result = posted.await.map_err(|_| Fault::Lost);
        if result.is_ok() {
            let status = poll_fn(|_| self.status(slot).map_or(Poll::Pending, Poll::Ready)).await;
            result = match status {
                WcStatus::Success => Ok(()),
                WcStatus::RemoteAccess => Err(Fault::Access),
                WcStatus::RemoteInvalidRequest => Err(Fault::Misaligned),
                _ => Err(Fault::Lost),
            };
        }
        if result.is_ok() {
            self.drain(slot, out);
        }
        self.free_slot(slot);
        result
    }
}

/// A handle to the node's memory.
#[derive(Clone)]
pub(crate) struct RemoteMemory(pub Rc<Verbs>);

impl Memory for RemoteMemory {
    async fn read(&self, key: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        for (n, piece) in out.chunks_mut(SLOT).enumerate() {
            let va = va.wrapping_add((n * SLOT) as u64);
            self.0.run(SendOp::Read { va, rkey: key }, None, piece).await?;
        }
        Ok(())
    }

    async fn write(&self, key: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        for (n, piece) in data.chunks(SLOT).enumerate() {
            let va = va.wrapping_add((n * SLOT) as u64);
            self.0.run(SendOp::Write { va, rkey: key }, Some(piece), &mut []).await?;
        }
        Ok(())
    }

    async fn compare_swap(&self, key: u32, va: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        let mut old = [0; 8];
        self.0.run(SendOp::CompareSwap { va, rkey: key, compare, swap }, None, &mut old).await?;
        Ok(u64::from_ne_bytes(old))
    }

    async fn fetch_add(&self, key: u32, va: u64, add: u64) -> Result<u64, Fault> {
        let mut old = [0; 8];
        self.0.run(SendOp::FetchAdd { va, rkey: key, add }, None, &mut old).await?;
        Ok(u64::from_ne_bytes(old))
    }
}
