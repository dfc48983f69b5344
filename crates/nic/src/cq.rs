//! Completion queues and shared receive queues of an engine.

use remora_memory::Pd;

use crate::ctx::Srq;
use crate::nic::Nic;
use crate::post::{check_limit, push_recv};
use crate::queue::{Armed, CompletionQueue, RecvQueue};
use crate::types::*;

impl Nic {
    /// A completion queue for `capacity` completions.
    pub fn create_cq(&mut self, capacity: u32) -> Result<CqId, NicError> {
        check_capacity(capacity, 1)?;
        if count(&self.ctx.cqs) >= NicLimits::default().cq {
            return Err(NicError::Exhausted("completion queue"));
        }
        Ok(CqId(place(&mut self.ctx.cqs, Some(CompletionQueue::new(capacity)))))
    }

    /// Changes a completion queue's capacity, to no less than the completions that wait in it.
    pub fn resize_cq(&mut self, cq: CqId, capacity: u32) -> Result<(), NicError> {
        let queue = self.cq(cq)?;
        check_capacity(capacity, queue.ring.len() as u32)?;
        queue.ring.reserve((capacity as usize).saturating_sub(queue.ring.len()));
        queue.capacity = capacity as usize;
        Ok(())
    }

    /// Destroys a completion queue that no queue pair uses.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), NicError> {
        if self.cq(cq)?.users > 0 {
            return Err(NicError::InUse("completion queue"));
        }
        self.ctx.cqs[cq.0 as usize] = None;
        Ok(())
    }

    pub(crate) fn cq(&mut self, cq: CqId) -> Result<&mut CompletionQueue, NicError> {
        self.ctx.cqs.get_mut(cq.0 as usize).and_then(Option::as_mut).ok_or(NicError::NoSuch("completion queue"))
    }

    /// Takes the oldest completion.
    pub fn poll_cq(&mut self, cq: CqId) -> Option<WorkCompletion> {
        self.cq(cq).ok()?.ring.pop_front()
    }

    /// Completions waiting.
    pub fn cq_len(&self, cq: CqId) -> usize {
        self.ctx.cqs.get(cq.0 as usize).and_then(Option::as_ref).map_or(0, |queue| queue.ring.len())
    }

    /// Raises one [`Event::Completion`] at the next completion, or only at the next solicited or failed one.
    /// Completions already there raise none: poll once more after arming.
    pub fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), NicError> {
        let queue = self.cq(cq)?;
        queue.armed = match (queue.armed, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            _ => Armed::Solicited,
        };
        Ok(())
    }

    /// As [`arm_cq`](Self::arm_cq), unless such a completion is there already: then true, and the queue is not armed.
    pub fn arm_unless_there(&mut self, cq: CqId, solicited_only: bool) -> Result<bool, NicError> {
        let queue = self.cq(cq)?;
        if queue.has(solicited_only) {
            queue.armed = Armed::No;
            return Ok(true);
        }
        self.arm_cq(cq, solicited_only)?;
        Ok(false)
    }

    /// A shared receive queue.
    pub fn create_srq(&mut self, pd: Pd, capacity: u32, max_sge: u32) -> Result<SrqId, NicError> {
        let limits = self.limits();
        check_limit("receive scatter-gather elements", max_sge.into(), limits.sge.into())?;
        check_limit("receive work requests", capacity.into(), limits.qp_wr.into())?;
        if count(&self.ctx.srqs) >= limits.srq {
            return Err(NicError::Exhausted("shared receive queue"));
        }
        let srq = Srq { queue: RecvQueue::new(capacity, max_sge), pd, limit: 0, users: 0 };
        Ok(SrqId(place(&mut self.ctx.srqs, Some(srq))))
    }

    pub(crate) fn srq(&mut self, srq: SrqId) -> Result<&mut Srq, NicError> {
        self.ctx.srqs.get_mut(srq.0 as usize).and_then(Option::as_mut).ok_or(NicError::NoSuch("shared receive queue"))
    }

    /// Destroys a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), NicError> {
        if self.srq(srq)?.users > 0 {
            return Err(NicError::InUse("shared receive queue"));
        }
        self.ctx.srqs[srq.0 as usize] = None;
        Ok(())
    }

    /// Changes how many receives may be posted, to no less than the receives that wait and the limit, and the limit: one
    /// [`Event::SrqLimit`] is raised when fewer are left; 0 disarms. Both or, if one of them cannot be, neither.
    pub fn modify_srq(&mut self, srq: SrqId, capacity: Option<u32>, limit: Option<u32>) -> Result<(), NicError> {
        let limits = self.limits();
        let srq = self.srq(srq)?;
        let (most, least) = (capacity.unwrap_or(srq.queue.capacity()), limit.unwrap_or(srq.limit).max(srq.queue.len()));
        check_limit("receive work requests", most.into(), limits.qp_wr.into())?;
        if let Some(limit) = limit {
            check_limit("receives under which to tell", limit.into(), most.into())?;
        }
        if most < least {
            let (what, value) = ("the shared receive queue's capacity", most.into());
            return Err(NicError::Attribute { what, value, allowed: "it holds what is posted, and its limit" });
        }
        if capacity.is_some() {
            srq.queue.resize(most);
        }
        srq.limit = limit.unwrap_or(srq.limit);
        Ok(())
    }

    /// What a shared receive queue was created with, and its limit.
    pub fn srq_attr(&self, srq: SrqId) -> Result<SrqAttr, NicError> {
        let found = self.ctx.srqs.get(srq.0 as usize).and_then(Option::as_ref);
        let srq = found.ok_or(NicError::NoSuch("shared receive queue"))?;
        let (capacity, max_sge) = (srq.queue.capacity(), srq.queue.max_sge());
        Ok(SrqAttr { pd: srq.pd, capacity, max_sge, limit: srq.limit })
    }

    /// Posts a receive for whichever queue pair needs one first.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr_id: u64, sges: &[Sge]) -> Result<(), NicError> {
        push_recv(&mut self.srq(srq)?.queue, wr_id, sges)
    }
}

/// Puts `item` into the first free place.
fn place<T>(table: &mut Vec<Option<T>>, item: Option<T>) -> u32 {
    let index = table.iter().position(Option::is_none).unwrap_or_else(|| {
        table.push(None);
        table.len() - 1
    });
    table[index] = item;
    index as u32
}

fn count<T>(table: &[Option<T>]) -> u32 {
    table.iter().flatten().count() as u32
}

fn check_capacity(capacity: u32, least: u32) -> Result<(), NicError> {
    check_limit("completions", capacity.into(), NicLimits::default().cqe.into())?;
    if capacity < least.max(1) {
        let (what, value) = ("the completion queue's capacity", capacity.into());
        return Err(NicError::Attribute { what, value, allowed: "at least one, and as many as wait in it" });
    }
    Ok(())
}
