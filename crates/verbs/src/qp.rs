//! Queue pairs: creation, attributes, destruction.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use remora_nic::{NicError, QpAttr, QpInit, QpMask, QpState, QpType, Qpn};
use remora_real::DeviceGuard;
use remora_wire::Psn;

use crate::abi::*;
use crate::adapter::Adapter;
use crate::ah::{attr_of, vector_of};
use crate::context::{Context, Domain};
use crate::cq::Cq;
use crate::events::{self, fail, refuse};
use crate::memory::{access_of, flags_of_access};
use crate::port::{address_of, mtu_code};
use crate::post::errno_of;
use crate::qp_ex::{self, Building};
use crate::srq::Srq;

/// A queue pair.
#[repr(C)]
pub struct Qp {
    pub ex: ibv_qp_ex,
    pub adapter: &'static Adapter,
    pub qpn: Qpn,
    pub events_reported: AtomicU32,
    /// Inline data of a work request on its way to the engine; whoever holds the engine has it.
    pub inline: UnsafeCell<Box<[u8]>>,
    /// Work requests of the extended interface that are not complete.
    pub building: UnsafeCell<Option<Box<Building>>>,
    cap: ibv_qp_cap,
    sq_sig_all: bool,
}

impl Qp {
    /// # Safety
    ///
    /// A queue pair of ours that lives.
    #[inline]
    pub unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a Self {
        // SAFETY: as the caller promises.
        unsafe { &*qp.cast::<Self>() }
    }

    #[inline]
    pub fn is_datagram(&self) -> bool {
        self.ex.base.qp_type == IBV_QPT_UD
    }
}

/// `ibv_create_qp`. The attributes say afterwards what the queue pair has.
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller passes a domain of ours and filled attributes, their pointers of ours.
    unsafe { create(pd, &mut *init, None) }
}

/// `ibv_create_qp_ex`.
pub unsafe extern "C" fn create_qp_ex(_context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: the caller passes filled attributes, their pointers of ours.
    unsafe {
        let ex = &mut *init;
        let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
        let flags = ex.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && ex.create_flags != 0;
        if ex.comp_mask & !known != 0 || flags {
            return fail(libc::EOPNOTSUPP);
        }
        if ex.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || ex.pd.is_null() {
            return fail(libc::EINVAL);
        }
        let ops = (ex.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then_some(ex.send_ops_flags);
        // Both kinds of attributes begin alike.
        create(ex.pd, &mut *init.cast::<ibv_qp_init_attr>(), ops)
    }
}

/// # Safety
///
/// The domain and the attributes' pointers are ours, or null.
unsafe fn create(pd: *mut ibv_pd, init: &mut ibv_qp_init_attr, ops: Option<u64>) -> *mut ibv_qp {
    let kind = match init.qp_type {
        IBV_QPT_RC => QpType::Rc,
        IBV_QPT_UC => QpType::Uc,
        IBV_QPT_UD => QpType::Ud,
        IBV_QPT_RAW_PACKET | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV | IBV_QPT_DRIVER => return fail(libc::EOPNOTSUPP),
        _ => return fail(libc::EINVAL),
    };
    if ops.is_some_and(|ops| ops & !qp_ex::operations(kind) != 0) {
        return fail(libc::EOPNOTSUPP);
    }
    if pd.is_null() || init.send_cq.is_null() || init.recv_cq.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: as the caller promises.
    unsafe {
        let domain = Domain::of(pd);
        let adapter = domain.adapter;
        let srq = init.srq.cast::<Srq>().as_ref();
        let cap = &mut init.cap;
        // A queue without elements would take no work request at all, also none without data.
        (cap.max_send_sge, cap.max_recv_sge) = (cap.max_send_sge.max(1), cap.max_recv_sge.max(1));
        // As in rdma_rxe and others: where the elements of a send stand there is room for as much data. Programs rely
        // on it.
        cap.max_inline_data = cap.max_inline_data.max(cap.max_send_sge.saturating_mul(16));
        if srq.is_some() {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        let wish = QpInit {
            srq: srq.map(|srq| srq.id),
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline: cap.max_inline_data,
            max_rpc: 0,
            sq_sig_all: init.sq_sig_all != 0,
            ..QpInit::new(kind, domain.pd, Cq::of(init.send_cq).id, Cq::of(init.recv_cq).id)
        };
        let Some(mut guard) = adapter.lock() else { return fail(libc::ENODEV) };
        let qpn = match guard.nic().create_qp(wish) {
            Ok(qpn) => qpn,
            Err(error) => return fail(errno_of(error)),
        };
        domain.add_user();
        let building = ops.map(|_| Box::new(Building::new(cap)));
        // Numbers, null pointers, no functions.
        let mut ex: ibv_qp_ex = std::mem::zeroed();
        let base = &mut ex.base;
        (base.context, base.qp_context, base.pd) = (domain.base.context, init.qp_context, pd);
        (base.send_cq, base.recv_cq, base.srq) = (init.send_cq, init.recv_cq, init.srq);
        (base.handle, base.qp_num, base.state, base.qp_type) = (qpn.0, qpn.0, IBV_QPS_RESET, init.qp_type);
        (base.mutex, base.cond) = (libc::PTHREAD_MUTEX_INITIALIZER, libc::PTHREAD_COND_INITIALIZER);
        if ops.is_some() {
            qp_ex::fill(&mut ex);
        }
        let qp = Box::into_raw(Box::new(Qp {
            ex,
            adapter,
            qpn,
            events_reported: AtomicU32::new(0),
            inline: UnsafeCell::new(vec![0; cap.max_inline_data as usize].into()),
            building: UnsafeCell::new(building),
            cap: *cap,
            sq_sig_all: init.sq_sig_all != 0,
        }));
        adapter.targets.add_qp(qpn, qp);
        qp.cast()
    }
}

/// `ibv_qp_to_qp_ex`: null for a queue pair that was not made for it.
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the caller passes a queue pair of ours.
    unsafe { if (*Qp::of(qp).building.get()).is_some() { qp.cast() } else { std::ptr::null_mut() } }
}

/// `ibv_destroy_qp`. It waits until every event that was taken is acknowledged.
pub unsafe extern "C-unwind" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller passes a queue pair of ours and never uses it again if this succeeds.
    unsafe {
        let pair = Qp::of(qp);
        if let Some(mut guard) = pair.adapter.lock() {
            // What was received is acknowledged, as by a NIC that does so at once.
            guard.settle();
            if let Err(error) = guard.nic().destroy_qp(pair.qpn) {
                return refuse(errno_of(error));
            }
            pair.adapter.targets.remove_qp(pair.qpn);
        }
        (*Context::of((*qp).context)).asynchronous.retract(|event| event.is_about(pair));
        let done = [(&raw const (*qp).events_completed, &pair.events_reported)];
        events::wait_acknowledged(&raw mut (*qp).mutex, &raw mut (*qp).cond, &done);
        Domain::of((*qp).pd).remove_user();
        drop(Box::from_raw(qp.cast::<Qp>()));
    }
    0
}

/// `ibv_modify_qp`.
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller passes a queue pair of ours and filled attributes.
    unsafe {
        let (pair, attr) = (Qp::of(qp), &*attr);
        if let Err(code) = modify(pair, attr, mask) {
            return refuse(code);
        }
        if mask & IBV_QP_STATE != 0 {
            shown_state(qp).store(attr.qp_state, Ordering::Relaxed);
        }
    }
    0
}

/// The state that the queue pair shows: threads that deliver events look at it.
///
/// # Safety
///
/// A queue pair of ours, which lives as long as this is used.
pub unsafe fn shown_state<'a>(qp: *mut ibv_qp) -> &'a AtomicI32 {
    // SAFETY: the caller's promise; programs do not write the field.
    unsafe { AtomicI32::from_ptr(&raw mut (*qp).state) }
}

fn modify(pair: &Qp, attr: &ibv_qp_attr, mask: c_int) -> Result<(), c_int> {
    if mask & IBV_QP_RATE_LIMIT != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let mask = QpMask::from_bits(mask as u32).ok_or(libc::EINVAL)?;
    let has = |bit| mask.contains(bit);
    let state = |given, bit| if has(bit) { state_of(given).ok_or(libc::EINVAL) } else { Ok(QpState::Reset) };
    let access = if has(QpMask::ACCESS_FLAGS) { access_of(attr.qp_access_flags)? } else { QpAttr::default().access };
    // Before the engine is taken: finding a way to the peer takes it too.
    let av = if has(QpMask::AV) { Some(vector_of(pair.adapter, &attr.ah_attr)?) } else { None };
    let path_mtu = match attr.path_mtu {
        code @ 1..=5 => 128 << code,
        _ if has(QpMask::PATH_MTU) => return Err(libc::EINVAL),
        _ => 0,
    };
    let wish = QpAttr {
        state: state(attr.qp_state, QpMask::STATE)?,
        cur_state: state(attr.cur_qp_state, QpMask::CUR_STATE)?,
        notify_drained: attr.en_sqd_async_notify != 0,
        access,
        pkey_index: attr.pkey_index,
        port: attr.port_num,
        qkey: attr.qkey,
        av,
        path_mtu,
        timeout: attr.timeout,
        retry_count: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        rq_psn: Psn::new(attr.rq_psn),
        sq_psn: Psn::new(attr.sq_psn),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        dest_qp: attr.dest_qp_num,
        sq_draining: false,
    };
    let mut guard = pair.adapter.lock().ok_or(libc::ENODEV)?;
    // What was received is acknowledged, as by a NIC that does so at once: the queue pair may be about to end.
    guard.settle();
    guard.nic().modify_qp(pair.qpn, &wish, mask).map_err(errno_of)
}

fn state_of(state: c_int) -> Option<QpState> {
    Some(match state {
        IBV_QPS_RESET => QpState::Reset,
        IBV_QPS_INIT => QpState::Init,
        IBV_QPS_RTR => QpState::Rtr,
        IBV_QPS_RTS => QpState::Rts,
        IBV_QPS_SQD => QpState::Sqd,
        IBV_QPS_SQE => QpState::Sqe,
        IBV_QPS_ERR => QpState::Err,
        _ => return None,
    })
}

fn number_of(state: QpState) -> c_int {
    match state {
        QpState::Reset => IBV_QPS_RESET,
        QpState::Init => IBV_QPS_INIT,
        QpState::Rtr => IBV_QPS_RTR,
        QpState::Rts => IBV_QPS_RTS,
        QpState::Sqd => IBV_QPS_SQD,
        QpState::Sqe => IBV_QPS_SQE,
        QpState::Err => IBV_QPS_ERR,
    }
}

/// `ibv_query_qp`: all attributes, whatever the mask asks for. What the queue pair itself shows of its state is what the program
/// has set or asked for, as in rdma-core.
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller passes a queue pair of ours, and attributes of both kinds to fill in.
    unsafe {
        let pair = Qp::of(qp);
        let Some(mut guard) = pair.adapter.lock() else { return refuse(libc::ENODEV) };
        let found = match guard.nic().qp_attr(pair.qpn) {
            Ok(found) => found,
            Err(error) => return refuse(errno_of(error)),
        };
        drop(guard);
        *attr = ibv_qp_attr {
            qp_state: number_of(found.state),
            cur_qp_state: number_of(found.state),
            path_mtu: mtu_code(found.path_mtu),
            qkey: found.qkey,
            rq_psn: found.rq_psn.get(),
            sq_psn: found.sq_psn.get(),
            dest_qp_num: found.dest_qp,
            qp_access_flags: flags_of_access(found.access),
            cap: pair.cap,
            ah_attr: found.av.as_ref().map(attr_of).unwrap_or_default(),
            pkey_index: found.pkey_index,
            en_sqd_async_notify: found.notify_drained.into(),
            sq_draining: found.sq_draining.into(),
            max_rd_atomic: found.max_rd_atomic,
            max_dest_rd_atomic: found.max_dest_rd_atomic,
            min_rnr_timer: found.min_rnr_timer,
            port_num: found.port,
            timeout: found.timeout,
            retry_cnt: found.retry_count,
            rnr_retry: found.rnr_retry,
            ..ibv_qp_attr::default()
        };
        let base = &pair.ex.base;
        *init = ibv_qp_init_attr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: pair.cap,
            qp_type: base.qp_type,
            sq_sig_all: pair.sq_sig_all.into(),
        };
        if mask & IBV_QP_STATE != 0 {
            shown_state(qp).store(number_of(found.state), Ordering::Relaxed);
        }
    }
    0
}

/// `ibv_query_qp_data_in_order`: 0, as no order is promised that the verbs specification does not promise.
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_int, _flags: u32) -> c_int {
    0
}

/// `ibv_set_ece`: there are no enhancements to agree on.
pub unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller passes options.
    unsafe {
        if (*ece).comp_mask != 0 {
            return libc::EINVAL;
        }
        // None of them are taken. What rdma-core's own drivers say that have none.
        if (*ece).vendor_id != 0 { libc::EOPNOTSUPP } else { 0 }
    }
}

/// `ibv_query_ece`.
pub unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller passes options to fill in.
    unsafe { *ece = ibv_ece::default() };
    0
}

/// `ibv_attach_mcast`.
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: the caller passes a queue pair of ours and a GID.
    unsafe { member(Qp::of(qp), &*gid, |guard, qpn, group| guard.attach(qpn, group)) }
}

/// `ibv_detach_mcast`.
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: as above.
    unsafe { member(Qp::of(qp), &*gid, |guard, qpn, group| guard.detach(qpn, group)) }
}

fn member(
    pair: &Qp,
    gid: &ibv_gid,
    change: impl FnOnce(&mut DeviceGuard<'_>, Qpn, IpAddr) -> Result<(), NicError>,
) -> c_int {
    let Some(mut guard) = pair.adapter.lock() else { return refuse(libc::ENODEV) };
    change(&mut guard, pair.qpn, address_of(gid)).map_or_else(|error| refuse(errno_of(error)), |()| 0)
}
