//! What all queue pairs of one engine share: regions, completion queues, shared receive queues, events, counts.

use std::collections::VecDeque;
use std::sync::Arc;

use remora_memory::{Access, Pd, Region, Registry};

use crate::queue::{CompletionQueue, RecvQueue};
use crate::rpc::RpcTable;
use crate::types::*;

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub queue: RecvQueue,
    pub pd: Pd,
    /// Raise an event below this many receives; 0 is disarmed.
    pub limit: u32,
    pub users: u32,
}

/// What all queue pairs of one engine share.
pub(crate) struct Ctx {
    pub registry: Arc<Registry>,
    pub cqs: Vec<Option<CompletionQueue>>,
    pub srqs: Vec<Option<Srq>>,
    pub events: VecDeque<Event>,
    pub rpc: RpcTable,
    pub counters: Counters,
}

impl Ctx {
    /// False if the completion queue overran.
    pub fn push_wc(&mut self, cq: CqId, wc: WorkCompletion, solicited: bool) -> bool {
        match self.cqs.get_mut(cq.0 as usize) {
            Some(Some(queue)) => queue.push(cq, wc, solicited, &mut self.events),
            _ => false,
        }
    }

    /// The region with this key, through a one-entry cache.
    pub fn region<'a>(&self, cache: &'a mut Option<Arc<Region>>, key: u32) -> Option<&'a Region> {
        let hit = cache.as_ref().is_some_and(|r| r.key() == key && r.is_valid());
        if !hit {
            *cache = self.registry.lookup(key);
        }
        cache.as_deref()
    }

    /// The region with this key if it allows `need` for `len` bytes at `va` in `pd`.
    pub fn checked<'a>(
        &self,
        cache: &'a mut Option<Arc<Region>>,
        (pd, key): (Pd, u32),
        (va, len): (u64, u64),
        need: Access,
    ) -> Option<&'a Region> {
        let region = self.region(cache, key)?;
        region.check(pd, va, len, need).ok()?;
        Some(region)
    }

    /// Takes a key away because the peer asked so. False if the key is not of this protection domain.
    pub fn invalidate(&self, pd: Pd, rkey: u32) -> bool {
        self.registry.lookup(rkey).is_some_and(|r| r.pd() == pd) && self.registry.deregister(rkey).is_ok()
    }

    /// Copies scattered local bytes, from `offset` of the list on, into `out`. `None` if a key, range or right is wrong.
    pub fn gather(
        &self,
        cache: &mut Option<Arc<Region>>,
        pd: Pd,
        sges: &[Sge],
        offset: usize,
        mut out: &mut [u8],
    ) -> Option<()> {
        let mut skip = offset;
        for sge in sges {
            if out.is_empty() {
                break;
            }
            let len = sge.len as usize;
            if skip >= len {
                skip -= len;
                continue;
            }
            let n = (len - skip).min(out.len());
            let va = sge.va.checked_add(skip as u64)?;
            let (head, tail) = out.split_at_mut(n);
            let region = self.checked(cache, (pd, sge.lkey), (va, n as u64), Access::empty())?;
            region.read(va, head).ok()?;
            out = tail;
            skip = 0;
        }
        out.is_empty().then_some(())
    }

    /// Copies `data` to scattered local memory, from `offset` of the list on.
    pub fn scatter(
        &self,
        cache: &mut Option<Arc<Region>>,
        pd: Pd,
        sges: &[Sge],
        offset: usize,
        mut data: &[u8],
    ) -> Result<(), WcStatus> {
        let mut skip = offset;
        for sge in sges {
            if data.is_empty() {
                break;
            }
            let len = sge.len as usize;
            if skip >= len {
                skip -= len;
                continue;
            }
            let n = (len - skip).min(data.len());
            let va = sge.va.checked_add(skip as u64).ok_or(WcStatus::LocalProtection)?;
            let (head, tail) = data.split_at(n);
            self.checked(cache, (pd, sge.lkey), (va, n as u64), Access::LOCAL_WRITE)
                .and_then(|region| region.write(va, head).ok())
                .ok_or(WcStatus::LocalProtection)?;
            data = tail;
            skip = 0;
        }
        if data.is_empty() { Ok(()) } else { Err(WcStatus::LocalLength) }
    }
}
