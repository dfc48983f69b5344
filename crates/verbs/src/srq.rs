//! Shared receive queues.

use std::ffi::c_int;
use std::sync::atomic::AtomicU32;

use remora_nic::SrqId;

use crate::abi::*;
use crate::adapter::Adapter;
use crate::context::{Context, Domain};
use crate::events::{self, fail, refuse};
use crate::post::{errno_of, recv_list};

/// A shared receive queue.
#[repr(C)]
pub struct Srq {
    pub base: ibv_srq,
    pub adapter: &'static Adapter,
    pub id: SrqId,
    pub events_reported: AtomicU32,
}

impl Srq {
    /// # Safety
    ///
    /// A shared receive queue of ours that lives.
    #[inline]
    pub unsafe fn of<'a>(srq: *mut ibv_srq) -> &'a Self {
        // SAFETY: as the caller promises.
        unsafe { &*srq.cast::<Self>() }
    }
}

/// `ibv_create_srq`. The attributes say afterwards what the queue has.
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the caller passes a domain of ours and filled attributes.
    unsafe { create(pd, (*init).srq_context, &mut (*init).attr) }
}

/// # Safety
///
/// The domain is one of ours.
unsafe fn create(pd: *mut ibv_pd, srq_context: *mut std::ffi::c_void, attr: &mut ibv_srq_attr) -> *mut ibv_srq {
    // SAFETY: as the caller promises.
    unsafe {
        let domain = Domain::of(pd);
        let adapter = domain.adapter;
        if attr.max_wr == 0 || attr.max_wr > adapter.limits.qp_wr || attr.max_sge > adapter.limits.sge {
            return fail(libc::EINVAL);
        }
        let Some(mut guard) = adapter.lock() else { return fail(libc::ENODEV) };
        attr.max_sge = attr.max_sge.max(1);
        let id = match guard.nic().create_srq(domain.pd, attr.max_wr, attr.max_sge) {
            Ok(id) => id,
            Err(error) => return fail(errno_of(error)),
        };
        attr.srq_limit = 0;
        domain.add_user();
        let base = ibv_srq {
            context: domain.base.context,
            srq_context,
            pd,
            handle: id.0,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        let srq = Box::into_raw(Box::new(Srq { base, adapter, id, events_reported: AtomicU32::new(0) }));
        adapter.targets.add_srq(id, srq);
        srq.cast()
    }
}

/// `ibv_create_srq_ex`: the header sends here what is not basic, and that is all refused.
pub unsafe extern "C" fn create_srq_ex(_context: *mut ibv_context, init: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
    // SAFETY: the caller passes filled attributes.
    unsafe {
        let init = &mut *init;
        let basic = init.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || init.srq_type == IBV_SRQT_BASIC;
        if !basic {
            return fail(libc::EOPNOTSUPP);
        }
        if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || init.pd.is_null() {
            return fail(libc::EINVAL);
        }
        create(init.pd, init.srq_context, &mut init.attr)
    }
}

/// `ibv_modify_srq`.
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    // SAFETY: the caller passes a queue of ours and filled attributes.
    unsafe {
        let (queue, attr) = (Srq::of(srq), &*attr);
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return refuse(libc::EINVAL);
        }
        let Some(mut guard) = queue.adapter.lock() else { return refuse(libc::ENODEV) };
        let capacity = (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
        match guard.nic().modify_srq(queue.id, capacity, limit) {
            Ok(()) => 0,
            Err(_) => refuse(libc::EINVAL),
        }
    }
}

/// `ibv_query_srq`.
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the caller passes a queue of ours and attributes to fill in.
    unsafe {
        let queue = Srq::of(srq);
        let Some(mut guard) = queue.adapter.lock() else { return refuse(libc::ENODEV) };
        match guard.nic().srq_attr(queue.id) {
            Ok(found) => {
                *attr = ibv_srq_attr { max_wr: found.capacity, max_sge: found.max_sge, srq_limit: found.limit };
                0
            }
            Err(error) => refuse(errno_of(error)),
        }
    }
}

/// `ibv_get_srq_num`, which is of use with XRC alone.
pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the caller passes a queue of ours and a place for the number.
    unsafe { *number = Srq::of(srq).id.0 };
    0
}

/// `ibv_destroy_srq`.
pub unsafe extern "C-unwind" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the caller passes a queue of ours and never uses it again if this succeeds.
    unsafe {
        let queue = Srq::of(srq);
        if let Some(mut guard) = queue.adapter.lock() {
            if let Err(error) = guard.nic().destroy_srq(queue.id) {
                return refuse(errno_of(error));
            }
            queue.adapter.targets.remove_srq(queue.id);
        }
        (*Context::of((*srq).context)).asynchronous.retract(|event| event.is_about(queue));
        let done = [(&raw const (*srq).events_completed, &queue.events_reported)];
        events::wait_acknowledged(&raw mut (*srq).mutex, &raw mut (*srq).cond, &done);
        Domain::of((*srq).pd).remove_user();
        drop(Box::from_raw(srq.cast::<Srq>()));
    }
    0
}

/// `ibv_post_srq_recv`.
pub unsafe extern "C" fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the caller passes a queue of ours, a list of work requests and a place for the one that fails.
    unsafe {
        let queue = Srq::of(srq);
        let guard = queue.adapter.lock();
        recv_list(guard, wr, bad, |nic, wr_id, sges| nic.post_srq_recv(queue.id, wr_id, sges))
    }
}
