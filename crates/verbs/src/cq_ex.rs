//! Extended completion queues: a poll steps through the completions and reads of each only the fields it wants.

use std::ffi::{c_int, c_uint};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::lock_api::RawMutex as _;

use crate::abi::*;
use crate::context::Domain;
use crate::cq::{self, Cq, Wish, convert};
use crate::events::fail;

const KNOWN_FIELDS: u64 =
    IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// `ibv_create_cq_ex`.
pub unsafe extern "C" fn create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    // SAFETY: the caller passes an open context and filled attributes, their pointers of ours or null.
    unsafe {
        let attr = &*attr;
        if attr.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
            return fail(libc::EINVAL);
        }
        let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
        let known_flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
        if flags & !known_flags != 0 || attr.wc_flags & !KNOWN_FIELDS != 0 {
            return fail(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0 && !attr.parent_domain.is_null() {
            let _ = Domain::of(attr.parent_domain);
        }
        let wish = Wish { cqe: attr.cqe, cq_context: attr.cq_context, channel: attr.channel, vector: attr.comp_vector };
        cq::create(context, &wish, |cq| {
            cq.single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
            fill(&mut cq.ex);
        })
        .cast()
    }
}

/// All functions for all queues: a field that was not asked for is there all the same.
fn fill(ex: &mut ibv_cq_ex) {
    ex.start_poll = Some(start_poll);
    ex.next_poll = Some(next_poll);
    ex.end_poll = Some(end_poll);
    ex.read_opcode = Some(read_opcode);
    ex.read_vendor_err = Some(read_vendor_err);
    ex.read_byte_len = Some(read_byte_len);
    ex.read_imm_data = Some(read_imm_data);
    ex.read_qp_num = Some(read_qp_num);
    ex.read_src_qp = Some(read_src_qp);
    ex.read_wc_flags = Some(read_wc_flags);
    ex.read_slid = Some(read_slid);
    ex.read_sl = Some(read_sl);
    ex.read_dlid_path_bits = Some(read_dlid_path_bits);
    ex.read_completion_ts = Some(read_completion_ts);
    ex.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// 0 with the first completion at hand, ENOENT if there is none, another errno if the poll makes no sense.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller passes an extended completion queue of ours, and attributes or null.
    unsafe {
        if attr.as_ref().is_some_and(|attr| attr.comp_mask != 0) {
            return libc::EINVAL;
        }
        let queue = cq.cast::<Cq>();
        if !(*queue).single_threaded {
            (*queue).polling.lock();
        }
        let (found, idle) = advance(queue, true);
        if found != 0 && !(*queue).single_threaded {
            (*queue).polling.unlock();
        }
        if found == libc::ENOENT {
            (*queue).relax(idle);
        }
        found
    }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller is between a start and an end of a poll of a queue of ours.
    unsafe { advance(cq.cast(), false).0 }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: as above.
    unsafe {
        let queue = cq.cast::<Cq>();
        if !(*queue).single_threaded {
            (*queue).polling.unlock();
        }
    }
}

/// Takes the next completion; with `drive` the engine is driven if there is none. Returns 0 or an errno, and how long polls
/// have found nothing to do.
///
/// # Safety
///
/// The queue is one of ours, and this thread's to poll.
unsafe fn advance(queue: *mut Cq, drive: bool) -> (c_int, u64) {
    // SAFETY: as the caller promises.
    unsafe {
        let queue = &mut *queue;
        let Some(mut guard) = queue.adapter.lock() else { return (libc::EIO, 0) };
        let mut found = guard.nic().poll_cq(queue.id);
        if found.is_none() && drive {
            queue.progress(&mut guard);
            found = guard.nic().poll_cq(queue.id);
        }
        let (now, idle) = (guard.now(), guard.idle());
        drop(guard);
        let Some(completion) = found else { return (libc::ENOENT, idle) };
        queue.current = convert(&completion);
        queue.polled_at = now;
        queue.ex.wr_id = queue.current.wr_id;
        queue.ex.status = queue.current.status;
        (0, idle)
    }
}

macro_rules! readers {
    ($($name:ident: $type:ty = $field:ident),* $(,)?) => { $(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the caller is between a start and an end of a poll of a queue of ours.
            unsafe { (*cq.cast::<Cq>()).current.$field.into() }
        }
    )* };
}

readers! {
    read_opcode: c_int = opcode,
    read_vendor_err: u32 = vendor_err,
    read_byte_len: u32 = byte_len,
    read_imm_data: u32 = imm_data,
    read_qp_num: u32 = qp_num,
    read_src_qp: u32 = src_qp,
    read_wc_flags: c_uint = wc_flags,
    read_slid: u32 = slid,
    read_sl: u8 = sl,
    read_dlid_path_bits: u8 = dlid_path_bits,
}

/// Nanoseconds of the device's clock, as of the poll that took the completion.
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: as above.
    unsafe { (*cq.cast::<Cq>()).polled_at }
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: as above.
    let queue = unsafe { &*cq.cast::<Cq>() };
    let age = queue.adapter.device.now().saturating_sub(queue.polled_at);
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    wall.saturating_sub(age)
}
