//! An operation as a kernel: its accesses in their order, and what it computes, for the modelled world to run with the real
//! NIC engine wherever a kernel may run.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;
use remora_kernel::{Call, Fault, Kernel, Limits, Memory, Status};
use remora_real::RemoteRegion;

use super::operation::{Access, Kind, Operation};
use super::simulate::uniform;
use crate::calling::{Calls, Checked};
use crate::workload::below;

/// Its op-code.
pub(super) const OP: u64 = 77;
/// Bytes of a line.
const LINE: u64 = 64;

/// The accesses of an operation, over a region of lines.
#[derive(Clone)]
pub(super) struct OperationKernel {
    accesses: Rc<[Access]>,
    /// What it computes, in counted instructions of its place.
    instructions: u64,
    /// Independent accesses that it has under way.
    at_once: u32,
    /// The part of calls that write again what they accessed last.
    writes: f64,
    reply: usize,
    /// How often the most popular item is asked for. It is the region's first.
    hottest: f64,
    /// Where the state is, once there is memory for it.
    state: Rc<Cell<Option<(u32, u64, u64)>>>,
}

impl OperationKernel {
    /// Computes so many instructions, and has at most so many independent accesses under way.
    pub fn new(operation: &Operation, instructions: u64, at_once: u32) -> Self {
        Self {
            accesses: operation.accesses.as_slice().into(),
            instructions,
            at_once,
            writes: operation.writes,
            reply: operation.reply.ceil() as usize,
            hottest: operation.hottest(),
            state: Rc::default(),
        }
    }

    /// Its state lies in this region, and `len` bytes of it are accessed at random.
    pub fn set_state(&self, region: &RemoteRegion, len: u64) {
        self.state.set(Some((region.key, region.va, len)));
    }

    /// Where an access goes to.
    fn place(&self, kind: Kind, rng: &mut ChaCha8Rng) -> u64 {
        let (_, va, len) = self.state.get().unwrap_or_default();
        match kind {
            Kind::Atomic | Kind::Write if uniform(rng) < self.hottest => va,
            _ => va + below(rng, (len / LINE).max(1)) * LINE,
        }
    }

    async fn access<M: Memory>(&self, memory: &M, access: &Access, at: u64) -> Result<(), Fault> {
        let Some((key, ..)) = self.state.get() else { return Err(Fault::Access) };
        let bytes = access.bytes.ceil() as usize;
        match access.kind {
            Kind::Read => memory.read(key, at, &mut vec![0; bytes]).await,
            Kind::Write => memory.write(key, at, &vec![7; bytes]).await,
            Kind::Atomic => memory.fetch_add(key, at, 1).await.map(drop),
        }
    }

    async fn accesses<M: Memory>(&self, memory: &M, rng: &mut ChaCha8Rng) -> Result<(), Fault> {
        for access in &*self.accesses {
            // A fraction says how often there is one more.
            let whole = access.count.floor();
            let count = whole as u64 + u64::from(uniform(rng) < access.count - whole);
            if access.dependent {
                for _ in 0..count {
                    self.access(memory, access, self.place(access.kind, rng)).await?;
                }
                continue;
            }
            let each = |_| self.access(memory, access, self.place(access.kind, rng));
            all((0..count).map(each), self.at_once as usize).await?;
        }
        match self.accesses.last() {
            Some(last) if uniform(rng) < self.writes => {
                let write = Access { kind: Kind::Write, ..*last };
                self.access(memory, &write, self.place(Kind::Write, rng)).await
            }
            _ => Ok(()),
        }
    }
}

impl Kernel for OperationKernel {
    async fn run<M: Memory>(&self, memory: &M, call: &mut Call) -> Status {
        // As many accesses as an operation may have, of any size.
        memory.set_limits(Limits { steps: u32::MAX, bytes: u64::MAX });
        let seed = call.params.iter().take(8).rev().fold(0, |seed, &byte| seed << 8 | u64::from(byte));
        if let Err(fault) = self.accesses(memory, &mut ChaCha8Rng::seed_from_u64(seed)).await {
            return fault.into();
        }
        if self.instructions > 0 {
            memory.compute(self.instructions).await;
        }
        call.reply.resize(self.reply, 7);
        Status::Ok
    }
}

/// Waits for all of these, of which so many are under way.
async fn all<F>(mut futures: impl Iterator<Item = F>, at_once: usize) -> Result<(), Fault>
where
    F: Future<Output = Result<(), Fault>>,
{
    let mut left: Vec<Pin<Box<F>>> = Vec::new();
    let mut result = Ok(());
    poll_fn(|cx| {
        let mut poll = |future: &mut Pin<Box<F>>| match future.as_mut().poll(cx) {
            Poll::Ready(done) => {
                result = result.and(done);
                false
            }
            Poll::Pending => true,
        };
        left.retain_mut(&mut poll);
        while left.len() < at_once
            && let Some(future) = futures.next()
        {
            let mut future = Box::pin(future);
            if poll(&mut future) {
                left.push(future);
            }
        }
        if left.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    result
}

/// Calls of the kernel, with so many bytes of parameters.
pub(super) struct OperationCalls {
    pub params: usize,
    pub reply: usize,
    pub next: u64,
}

impl Calls for OperationCalls {
    fn op(&self) -> u64 {
        OP
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn params(&self, id: u64, params: &mut Vec<u8>) {
        let start = params.len();
        params.resize(start + self.params, 0);
        params[start..].iter_mut().zip(id.to_le_bytes()).for_each(|(to, from)| *to = from);
    }

    fn check(&self, _: u64, status: Status, reply: &[u8]) -> Result<Checked, String> {
        match status == Status::Ok && reply.len() == self.reply && reply.iter().all(|byte| *byte == 7) {
            true => Ok(Checked::RIGHT),
            false => Err(format!("{} bytes came instead of {} ({status:?})", reply.len(), self.reply)),
        }
    }
}
