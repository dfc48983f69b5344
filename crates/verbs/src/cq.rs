//! Completion queues.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use remora_nic::{CqId, WcOpcode, WcStatus, WorkCompletion};
use remora_real::DeviceGuard;

use crate::abi::*;
use crate::adapter::Adapter;
use crate::context::{COMP_VECTORS, Context};
use crate::events::{self, CompletionChannel, EventQueue, Object, channel_users, fail, refuse};
use crate::post::errno_of;

/// Service levels of datagrams: RoCE v2 behind an IPv4 or an IPv6 header.
const UDP_OVER_IPV4: u8 = 8 | 2;
const UDP_OVER_IPV6: u8 = 8 | 1;

/// A completion queue.
#[repr(C)]
pub struct Cq {
    pub ex: ibv_cq_ex,
    pub adapter: &'static Adapter,
    pub id: CqId,
    channel: Option<Arc<EventQueue<Object<Cq>>>>,
    /// An event was asked for: the NIC thread stays at its work.
    armed: AtomicBool,
    /// Events that the program has taken.
    pub comp_reported: AtomicU32,
    pub async_reported: AtomicU32,
    /// The completion that an extended poll is at.
    pub current: ibv_wc,
    /// When it was taken, in nanoseconds of the device's clock.
    pub polled_at: u64,
    /// Held by an extended poll.
    pub polling: parking_lot::RawMutex,
    pub single_threaded: bool,
}

impl Cq {
    /// # Safety
    ///
    /// A completion queue of ours that lives.
    #[inline]
    pub unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a Self {
        // SAFETY: as the caller promises.
        unsafe { &*cq.cast::<Self>() }
    }

    /// A completion for which an event was asked: tells the channel.
    pub fn completed(&self) {
        self.armed.store(false, Ordering::Relaxed);
        if let Some(channel) = &self.channel {
            CompletionChannel::push(channel, std::ptr::from_ref(self).cast_mut());
        }
    }

    /// Drives the engine, as the poller that found nothing.
    #[inline]
    pub fn progress(&self, guard: &mut DeviceGuard<'_>) {
        if self.armed.load(Ordering::Relaxed) {
            guard.progress_once();
        } else {
            guard.progress();
        }
    }

    /// Lets others have the core if nothing has happened for a while. Call it without the engine.
    #[inline]
    pub fn relax(&self, idle: u64) {
        self.adapter.manners.relax(idle, || self.adapter.device.now(), std::thread::yield_now);
    }
}

/// What a completion queue is made with.
pub struct Wish {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub vector: u32,
}

/// Makes one; `fill` adds the functions of an extended one.
///
/// # Safety
///
/// The context is open, and the channel null or one of ours.
pub unsafe fn create(context: *mut ibv_context, wish: &Wish, fill: impl FnOnce(&mut Cq)) -> *mut Cq {
    // SAFETY: as the caller promises.
    unsafe {
        let adapter = (*Context::of(context)).adapter;
        if wish.vector >= COMP_VECTORS as u32 || wish.cqe == 0 || wish.cqe > adapter.limits.cqe {
            return fail(libc::EINVAL);
        }
        let Some(mut guard) = adapter.lock() else { return fail(libc::ENODEV) };
        let id = match guard.nic().create_cq(wish.cqe) {
            Ok(id) => id,
            Err(error) => return fail(errno_of(error)),
        };
        // Numbers, null pointers, no functions.
        let mut ex: ibv_cq_ex = std::mem::zeroed();
        let base = &mut ex.base;
        (base.context, base.channel, base.cq_context) = (context, wish.channel, wish.cq_context);
        (base.handle, base.cqe) = (id.0, wish.cqe as c_int);
        (base.mutex, base.cond) = (libc::PTHREAD_MUTEX_INITIALIZER, libc::PTHREAD_COND_INITIALIZER);
        let channel = wish.channel.cast::<CompletionChannel>().as_ref().map(|channel| channel.queue.clone());
        if !wish.channel.is_null() {
            channel_users(wish.channel).fetch_add(1, Ordering::Relaxed);
        }
        let mut cq = Cq {
            ex,
            adapter,
            id,
            channel,
            armed: AtomicBool::new(false),
            comp_reported: AtomicU32::new(0),
            async_reported: AtomicU32::new(0),
            current: ibv_wc::default(),
            polled_at: 0,
            polling: parking_lot::lock_api::RawMutex::INIT,
            single_threaded: false,
        };
        fill(&mut cq);
        let cq = Box::into_raw(Box::new(cq));
        adapter.targets.add_cq(id, cq);
        (*Context::of(context)).add_user();
        cq
    }
}

/// `ibv_create_cq`.
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let wish = Wish { cqe: u32::try_from(cqe).unwrap_or(0), cq_context, channel, vector: vector as u32 };
    // SAFETY: the caller passes an open context and a channel of ours or null.
    unsafe { create(context, &wish, |_| ()).cast() }
}

/// `ibv_resize_cq`.
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the caller passes a completion queue of ours.
    unsafe {
        let queue = Cq::of(cq);
        let Some(mut guard) = queue.adapter.lock() else { return refuse(libc::ENODEV) };
        match guard.nic().resize_cq(queue.id, u32::try_from(cqe).unwrap_or(0)) {
            Ok(()) => (*cq).cqe = cqe,
            Err(error) => return refuse(errno_of(error)),
        }
    }
    0
}

/// `ibv_modify_cq`: moderation is taken and has no effect, as events cost little here.
pub unsafe extern "C" fn modify_cq(_cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the caller passes filled attributes.
    if unsafe { (*attr).attr_mask } & !IBV_CQ_ATTR_MODERATE != 0 { refuse(libc::EINVAL) } else { 0 }
}

/// `ibv_destroy_cq`. It waits until every event that was taken is acknowledged.
pub unsafe extern "C-unwind" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller passes a completion queue of ours and never uses it again if this succeeds.
    unsafe {
        let queue = Cq::of(cq);
        if let Some(mut guard) = queue.adapter.lock() {
            if let Err(error) = guard.nic().destroy_cq(queue.id) {
                return refuse(errno_of(error));
            }
            queue.adapter.targets.remove_cq(queue.id);
        }
        if let Some(channel) = &queue.channel {
            channel.retract(|object| std::ptr::eq(object.0.cast_const(), queue));
            channel_users((*cq).channel).fetch_sub(1, Ordering::Release);
        }
        (*Context::of((*cq).context)).asynchronous.retract(|event| event.is_about(queue));
        let done = [
            (&raw const (*cq).comp_events_completed, &queue.comp_reported),
            (&raw const (*cq).async_events_completed, &queue.async_reported),
        ];
        events::wait_acknowledged(&raw mut (*cq).mutex, &raw mut (*cq).cond, &done);
        let context = (*cq).context;
        drop(Box::from_raw(cq.cast::<Cq>()));
        Context::remove_user(context);
    }
    0
}

/// `ibv_req_notify_cq`. What is in the queue already raises an event at once, as with mlx5, which is armed behind the last
/// completion that was taken: UCX does not look once more after arming, and here whoever polls one queue fills the others.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller passes a completion queue of ours.
    let queue = unsafe { Cq::of(cq) };
    let Some(mut guard) = queue.adapter.lock() else { return libc::ENODEV };
    match guard.nic().arm_unless_there(queue.id, solicited_only != 0) {
        Ok(true) => queue.completed(),
        Ok(false) => queue.armed.store(true, Ordering::Relaxed),
        Err(_) => return libc::EINVAL,
    }
    drop(guard);
    // The program will wait, so that the NIC thread is to drive.
    queue.adapter.device.release();
    0
}

/// `ibv_poll_cq`. Whoever polls drives the engine.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller passes a completion queue of ours and room for that many completions.
    unsafe {
        let queue = Cq::of(cq);
        let Some(mut guard) = queue.adapter.lock() else { return -1 };
        let mut got = take(&mut guard, queue.id, wc, count);
        if got < count {
            queue.progress(&mut guard);
            got += take(&mut guard, queue.id, wc.add(got as usize), count - got);
        }
        if got == 0 {
            let idle = guard.idle();
            drop(guard);
            queue.relax(idle);
        } else if !queue.armed.load(Ordering::Relaxed) {
            let (guard, _whole) = guard.parts();
            queue.adapter.device.linger(guard);
        }
        got
    }
}

/// # Safety
///
/// There is room for `count` completions.
#[inline]
unsafe fn take(guard: &mut DeviceGuard<'_>, id: CqId, wc: *mut ibv_wc, count: c_int) -> c_int {
    let mut got = 0;
    while got < count {
        let Some(completion) = guard.nic().poll_cq(id) else { break };
        // SAFETY: as the caller promises.
        unsafe { *wc.add(got as usize) = convert(&completion) };
        got += 1;
    }
    got
}

/// A completion as programs see it.
#[inline]
pub fn convert(wc: &WorkCompletion) -> ibv_wc {
    let (imm_data, flag) = match (wc.imm, wc.invalidated) {
        (Some(imm), _) => (imm.to_be(), IBV_WC_WITH_IMM),
        (None, Some(key)) => (key, IBV_WC_WITH_INV),
        (None, None) => (0, 0),
    };
    // As ConnectX NICs have it and UCX reads it: of a datagram the service level tells the header in front of it.
    let (grh, sl) = match wc.src.map(|src| src.to_canonical()) {
        Some(std::net::IpAddr::V4(_)) => (IBV_WC_GRH, UDP_OVER_IPV4),
        Some(std::net::IpAddr::V6(_)) => (IBV_WC_GRH, UDP_OVER_IPV6),
        None => (0, 0),
    };
    ibv_wc {
        wr_id: wc.wr_id,
        status: status_of(wc.status),
        opcode: opcode_of(wc.opcode),
        // There is no vendor with a list of errors: the status again tells an error from none.
        vendor_err: status_of(wc.status) as u32,
        byte_len: wc.byte_len,
        imm_data,
        qp_num: wc.qpn.0,
        src_qp: wc.src_qp,
        wc_flags: flag | grh,
        sl,
        ..ibv_wc::default()
    }
}

fn status_of(status: WcStatus) -> c_int {
    match status {
        WcStatus::Success => IBV_WC_SUCCESS,
        WcStatus::LocalLength => IBV_WC_LOC_LEN_ERR,
        WcStatus::LocalQpOperation => IBV_WC_LOC_QP_OP_ERR,
        WcStatus::LocalProtection => IBV_WC_LOC_PROT_ERR,
        WcStatus::Flushed => IBV_WC_WR_FLUSH_ERR,
        WcStatus::MwBind => IBV_WC_MW_BIND_ERR,
        WcStatus::RemoteInvalidRequest => IBV_WC_REM_INV_REQ_ERR,
        WcStatus::RemoteAccess => IBV_WC_REM_ACCESS_ERR,
        WcStatus::RemoteOperation => IBV_WC_REM_OP_ERR,
        WcStatus::RetryExceeded => IBV_WC_RETRY_EXC_ERR,
        WcStatus::RnrRetryExceeded => IBV_WC_RNR_RETRY_EXC_ERR,
        WcStatus::BadResponse => IBV_WC_BAD_RESP_ERR,
    }
}

fn opcode_of(opcode: WcOpcode) -> c_int {
    match opcode {
        WcOpcode::Send => IBV_WC_SEND,
        WcOpcode::Write => IBV_WC_RDMA_WRITE,
        WcOpcode::Read => IBV_WC_RDMA_READ,
        WcOpcode::CompareSwap => IBV_WC_COMP_SWAP,
        WcOpcode::FetchAdd => IBV_WC_FETCH_ADD,
        WcOpcode::LocalInvalidate => IBV_WC_LOCAL_INV,
        WcOpcode::Bind => IBV_WC_BIND_MW,
        WcOpcode::Rpc | WcOpcode::LocalRpc => IBV_WC_DRIVER1,
        WcOpcode::Recv => IBV_WC_RECV,
        WcOpcode::RecvWriteImm => IBV_WC_RECV_RDMA_WITH_IMM,
    }
}
