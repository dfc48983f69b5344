//! What all queue pairs of one engine share: regions, completion queues, shared receive queues, events, counts.

use std::collections::VecDeque;

use remora_memory::{Access, Binder, Pd, Place, Region};

use crate::arrival::Body;
use crate::met::{Last, Regions, is_met};
use crate::queue::{CompletionQueue, RecvQueue, Target};
use crate::reorder::ReorderPool;
use crate::rpc::RpcTable;
use crate::tap::Taps;
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

/// A datagram to a multicast group on its way to the members on this side.
pub(crate) struct Multicast {
    pub route: Route,
    /// The sending queue pair, which gets none.
    pub from: Qpn,
    pub packet: Vec<u8>,
}

/// What all queue pairs of one engine share.
pub(crate) struct Ctx {
    pub regions: Regions,
    pub cqs: Vec<Option<CompletionQueue>>,
    pub srqs: Vec<Option<Srq>>,
    pub events: VecDeque<Event>,
    /// Datagrams to multicast groups, of which members on this side get theirs.
    pub multicast: VecDeque<Multicast>,
    pub rpc: RpcTable,
    pub taps: Taps,
    /// Packets that come early are kept.
    pub selective: bool,
    /// What is plain is sent and carried out the short way.
    pub plain: bool,
    /// The world says when nothing comes any more: what peers do not wait for is acknowledged then.
    pub patient: bool,
    /// Queue pairs that owe an acknowledgement which their peers do not wait for.
    pub owing: Vec<u32>,
    pub reorder: ReorderPool,
    /// Where a packet is copied to whose payload is to be looked at, out of its sender's reach.
    pub private: Box<[u8]>,
    /// What the clock said when the last READ under a lease had been taken; `None` between the two.
    pub reading: Option<Time>,
    pub counters: Counters,
}

impl Ctx {
    /// False if the completion queue overran.
    #[inline]
    pub fn push_wc(&mut self, cq: CqId, wc: WorkCompletion, solicited: bool) -> bool {
        match self.cqs.get_mut(cq.0 as usize) {
            Some(Some(queue)) => queue.push(cq, wc, solicited, &mut self.events),
            _ => false,
        }
    }

    /// Bytes of a region of this side that a work request names: windows are for peers alone.
    #[inline]
    pub fn local<'a>(
        &self,
        last: &'a mut Last,
        (pd, key): (Pd, u32),
        (va, len): (u64, u64),
        need: Access,
    ) -> Option<&'a Region> {
        if !is_met(last, key) {
            *last = self.regions.find(key, None);
        }
        let region: &Region = last.as_deref().filter(|met| !met.is_window())?;
        region.check(pd, va, len, need).ok()?;
        Some(region)
    }

    /// The region or window that a peer names, if it allows the peer of this queue pair `need` for `len` bytes at `va`.
    #[inline]
    pub fn remote<'a>(
        &self,
        last: &'a mut Last,
        (by, key): (Binder, u32),
        (va, len): (u64, u64),
        need: Access,
    ) -> Option<&'a Region> {
        if !is_met(last, key) {
            *last = self.regions.find(key, Some(by.qp));
        }
        let region: &Region = last.as_deref()?;
        region.check(by.pd, va, len, need).ok()?;
        Some(region)
    }

    /// A READ of this region was taken: one under a lease is answered by a reading of the clock that is made from now on.
    #[inline]
    pub fn read_asked(&mut self, lease: Option<Time>) {
        if lease.is_some() {
            self.reading = None;
        }
    }

    /// Whether a READ of a region that is under this lease may be answered.
    #[inline]
    pub fn is_within(&self, lease: Option<Time>) -> bool {
        lease.is_none_or(|until| self.reading.is_some_and(|now| now < until))
    }

    /// Where `len` scattered local bytes, from `offset` of the list on, are, if that is in memory that may be lent; and key, range
    /// and rights are right. Of what does not lie in one place, as many whole packets of `mtu` bytes as do. With their length.
    pub fn locate<'a>(
        &self,
        last: &'a mut Last,
        pd: Pd,
        sges: &[Sge],
        offset: usize,
        (len, mtu): (usize, usize),
    ) -> Option<(Place<'a>, usize)> {
        let mut skip = offset;
        let sge = sges.iter().find(|sge| {
            let here = skip < sge.len as usize;
            skip -= if here { 0 } else { sge.len as usize };
            here
        })?;
        let here = sge.len as usize - skip;
        let len = if here >= len { len } else { here - here % mtu };
        let va = sge.va.checked_add(skip as u64).filter(|_| len > 0)?;
        Some((self.local(last, (pd, sge.lkey), (va, len as u64), Access::empty())?.place(va, len)?, len))
    }

    /// Nothing of these scattered local bytes is what peers were told any more.
    pub fn end_terms(&self, sges: &[Sge]) {
        for region in sges.iter().filter_map(|sge| self.regions.find(sge.lkey, None)) {
            region.end_term();
        }
    }

    /// Copies scattered local bytes, from `offset` of the list on, to `out`. `None` if a key, range or right is wrong.
    pub fn gather(&self, last: &mut Last, pd: Pd, sges: &[Sge], offset: usize, mut out: Target<'_>) -> Option<()> {
        // As most are: in one piece, which goes to private memory.
        if let ([sge], Target::Private(out)) = (sges, &mut out)
            && !out.is_empty()
            && let Some(va) = sge.va.checked_add(offset as u64)
            && (sge.len as usize).checked_sub(offset).is_some_and(|here| here >= out.len())
        {
            return self.local(last, (pd, sge.lkey), (va, out.len() as u64), Access::empty())?.read(va, out).ok();
        }
        let mut skip = offset;
        for sge in sges {
            if out.len() == 0 {
                break;
            }
            let len = sge.len as usize;
            if skip >= len {
                skip -= len;
                continue;
            }
            let n = (len - skip).min(out.len());
            let va = sge.va.checked_add(skip as u64)?;
            let region = self.local(last, (pd, sge.lkey), (va, n as u64), Access::empty())?;
            out = out.fill(region, va, n)?;
            skip = 0;
        }
        (out.len() == 0).then_some(())
    }

    /// Copies `data` to scattered local memory, from `offset` of the list on.
    pub fn scatter(
        &self,
        last: &mut Last,
        pd: Pd,
        sges: &[Sge],
        offset: usize,
        mut data: Body<'_>,
    ) -> Result<(), WcStatus> {
        let mut skip = offset;
        for sge in sges {
            if data.len() == 0 {
                break;
            }
            let len = sge.len as usize;
            if skip >= len {
                skip -= len;
                continue;
            }
            let n = (len - skip).min(data.len());
            let va = sge.va.checked_add(skip as u64).ok_or(WcStatus::LocalProtection)?;
            self.local(last, (pd, sge.lkey), (va, n as u64), Access::LOCAL_WRITE)
                .and_then(|region| data.land(region, va, n).ok())
                .ok_or(WcStatus::LocalProtection)?;
            data = data.skip(n);
            skip = 0;
        }
        if data.len() == 0 { Ok(()) } else { Err(WcStatus::LocalLength) }
    }
}
