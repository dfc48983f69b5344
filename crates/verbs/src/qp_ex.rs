//! The extended way to post: `ibv_wr_start`, one call a work request and its data, `ibv_wr_complete`.
//!
//! Work requests gather here until they are complete, and then go to the engine all together or, if one is wrong or
//! there is no room, none of them.

use std::ffi::{c_int, c_uint, c_void};

use parking_lot::lock_api::RawMutex as _;
use remora_nic::{Data, QpType, SendOp, SendWr, Sge, UdDest};

use crate::abi::*;
use crate::memory::binding_of;
use crate::post::{MAX_SGE, dest_of, errno_of, flags_of, gather};
use crate::qp::Qp;

/// Work requests between start and complete. All storage is allocated with the queue pair.
pub struct Building {
    /// Held between start and complete.
    lock: parking_lot::RawMutex,
    items: Vec<Item>,
    sges: Vec<Sge>,
    inline: Box<[u8]>,
    /// Bytes of `inline` in use.
    filled: usize,
    max_sge: usize,
    max_inline: usize,
    max_items: usize,
    /// Why the work requests cannot be posted.
    error: c_int,
}

struct Item {
    wr_id: u64,
    flags: c_uint,
    op: SendOp,
    source: Source,
    dest: Option<UdDest>,
}

/// Where an item's data lie in the storage.
enum Source {
    List(usize, usize),
    Inline(usize, usize),
}

/// The operations that a service has.
pub fn operations(kind: QpType) -> u64 {
    let send = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let write = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    match kind {
        QpType::Rc => SEND_OPS,
        QpType::Uc => send | write | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW,
        QpType::Ud => send,
    }
}

impl Building {
    pub fn new(cap: &ibv_qp_cap) -> Self {
        let (max_sge, max_inline) = (cap.max_send_sge as usize, cap.max_inline_data as usize);
        let max_items = cap.max_send_wr as usize;
        Self {
            lock: parking_lot::RawMutex::INIT,
            items: Vec::with_capacity(max_items),
            sges: Vec::with_capacity(max_items * max_sge),
            inline: vec![0; max_items * max_inline].into(),
            filled: 0,
            max_sge,
            max_inline,
            max_items,
            error: 0,
        }
    }

    fn clear(&mut self) {
        self.items.clear();
        self.sges.clear();
        (self.filled, self.error) = (0, 0);
    }

    /// The first thing that is wrong is what is told.
    fn fail(&mut self, code: c_int) {
        if self.error == 0 {
            self.error = code;
        }
    }

    fn push(&mut self, wr_id: u64, flags: c_uint, op: Result<SendOp, c_int>) {
        match op {
            Ok(_) if self.items.len() == self.max_items => self.fail(libc::ENOMEM),
            Ok(op) => self.items.push(Item { wr_id, flags, op, source: Source::List(0, 0), dest: None }),
            Err(code) => self.fail(code),
        }
    }

    /// The work request that was begun last, if nothing was wrong yet.
    fn last(&mut self) -> Option<&mut Item> {
        if self.error == 0 { self.items.last_mut() } else { None }
    }

    fn list(&mut self, list: impl ExactSizeIterator<Item = Sge>) {
        let (at, count, most) = (self.sges.len(), list.len(), self.max_sge.min(MAX_SGE));
        match self.last() {
            Some(item) if count <= most => {
                item.source = Source::List(at, count);
                self.sges.extend(list);
            }
            _ => self.fail(libc::EINVAL),
        }
    }

    /// The work requests, in their order.
    fn requests(&self) -> impl Iterator<Item = SendWr<'_>> + Clone {
        self.items.iter().map(|item| {
            let data = match item.source {
                Source::List(at, count) => Data::List(&self.sges[at..at + count]),
                Source::Inline(at, len) => Data::Inline(&self.inline[at..at + len]),
            };
            SendWr { dest: item.dest, ..flags_of(SendWr::new(item.wr_id, item.op, data), item.flags) }
        })
    }

    /// # Safety
    ///
    /// The pieces are there.
    unsafe fn inline(&mut self, pieces: impl Iterator<Item = (*const u8, usize)>) {
        let at = self.filled;
        let end = (at + self.max_inline).min(self.inline.len());
        // SAFETY: as the caller promises; the storage belongs to the queue pair, which this thread has locked.
        let gathered = unsafe { gather(&mut self.inline[at..end], pieces) }.map(|bytes| bytes.len());
        match (gathered, self.last()) {
            (Ok(len), Some(item)) => {
                item.source = Source::Inline(at, len);
                self.filled += len;
            }
            _ => self.fail(libc::EINVAL),
        }
    }
}

/// Puts the functions into the queue pair.
pub fn fill(ex: &mut ibv_qp_ex) {
    ex.wr_start = Some(wr_start);
    ex.wr_complete = Some(wr_complete);
    ex.wr_abort = Some(wr_abort);
    ex.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    ex.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    ex.wr_bind_mw = Some(wr_bind_mw);
    ex.wr_local_inv = Some(wr_local_inv);
    ex.wr_rdma_read = Some(wr_rdma_read);
    ex.wr_rdma_write = Some(wr_rdma_write);
    ex.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    ex.wr_send = Some(wr_send);
    ex.wr_send_imm = Some(wr_send_imm);
    ex.wr_send_inv = Some(wr_send_inv);
    ex.wr_send_tso = Some(wr_send_tso);
    ex.wr_set_ud_addr = Some(wr_set_ud_addr);
    ex.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    ex.wr_set_inline_data = Some(wr_set_inline_data);
    ex.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    ex.wr_set_sge = Some(wr_set_sge);
    ex.wr_set_sge_list = Some(wr_set_sge_list);
    ex.wr_atomic_write = Some(wr_atomic_write);
}

/// # Safety
///
/// An extended queue pair of ours, which this thread has started to build on.
#[inline]
unsafe fn building<'a>(qp: *mut ibv_qp_ex) -> &'a mut Building {
    // SAFETY: as the caller promises. Functions are filled in only where there is storage.
    unsafe { (*(*qp.cast::<Qp>()).building.get()).as_mut().unwrap_unchecked() }
}

/// # Safety
///
/// As for [`building`].
#[inline]
unsafe fn push(qp: *mut ibv_qp_ex, op: Result<SendOp, c_int>) {
    // SAFETY: as the caller promises.
    unsafe { building(qp).push((*qp).wr_id, (*qp).wr_flags, op) }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller passes an extended queue pair of ours; the lock needs no exclusive reference.
    unsafe {
        let storage: *mut Building = building(qp);
        (*storage).lock.lock();
        (*storage).clear();
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller has started.
    unsafe { building(qp).lock.unlock() };
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller has started.
    unsafe {
        let storage = building(qp);
        let result = if storage.error != 0 { storage.error } else { post(&*qp.cast::<Qp>(), storage) };
        storage.lock.unlock();
        result
    }
}

/// Posts them all, or none.
fn post(pair: &Qp, storage: &Building) -> c_int {
    let Some(mut guard) = pair.adapter.lock() else { return libc::ENODEV };
    let posted = guard.nic().post_sends(pair.qpn, storage.requests());
    guard.transmit_from(pair.qpn);
    posted.map_or_else(errno_of, |()| 0)
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, va: u64, compare: u64, swap: u64) {
    // SAFETY: the caller has started, as for all functions below.
    unsafe { push(qp, Ok(SendOp::CompareSwap { va, rkey, compare, swap })) }
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, va: u64, add: u64) {
    // SAFETY: as above.
    unsafe { push(qp, Ok(SendOp::FetchAdd { va, rkey, add })) }
}

unsafe extern "C" fn wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: as above; the window and the region are ours.
    unsafe { push(qp, binding_of((*mw).rkey, rkey, &*info).map(SendOp::Bind)) }
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, key: u32) {
    // SAFETY: as above.
    unsafe { push(qp, Ok(SendOp::LocalInvalidate(key))) }
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, va: u64) {
    // SAFETY: as above.
    unsafe { push(qp, Ok(SendOp::Read { va, rkey })) }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, va: u64) {
    // SAFETY: as above.
    unsafe { push(qp, Ok(SendOp::Write { va, rkey })) }
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, va: u64, imm: u32) {
    // SAFETY: as above.
    unsafe { push(qp, Ok(SendOp::WriteImm { va, rkey, imm: u32::from_be(imm) })) }
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: as above.
    unsafe { push(qp, Ok(SendOp::Send)) }
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: as above.
    unsafe { push(qp, Ok(SendOp::SendImm(u32::from_be(imm)))) }
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, key: u32) {
    // SAFETY: as above.
    unsafe { push(qp, Ok(SendOp::SendInvalidate(key))) }
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _header: *mut c_void, _len: u16, _mss: u16) {
    // SAFETY: as above.
    unsafe { push(qp, Err(libc::EOPNOTSUPP)) }
}

unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, _rkey: u32, _va: u64, _data: *const c_void) {
    // SAFETY: as above.
    unsafe { push(qp, Err(libc::EOPNOTSUPP)) }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, _number: u32) {
    // SAFETY: as above.
    unsafe { building(qp).fail(libc::EOPNOTSUPP) };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: as above; the address handle is ours.
    unsafe {
        let storage = building(qp);
        match (dest_of(&wr_ud { ah, remote_qpn, remote_qkey }), storage.last()) {
            (Ok(dest), Some(item)) => item.dest = Some(dest),
            _ => storage.fail(libc::EINVAL),
        }
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, len: usize) {
    // SAFETY: as above; the bytes are there.
    unsafe { building(qp).inline(std::iter::once((addr.cast_const().cast(), len))) }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: as above.
    unsafe {
        let list: &[ibv_data_buf] = if count == 0 { &[] } else { std::slice::from_raw_parts(list, count) };
        building(qp).inline(list.iter().map(|piece| (piece.addr.cast_const().cast(), piece.length)));
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, va: u64, len: u32) {
    // SAFETY: as above. An element without bytes may name any key.
    unsafe { building(qp).list(std::iter::once(Sge { va, len, lkey })) }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: as above.
    unsafe {
        let list: &[ibv_sge] = if count == 0 { &[] } else { std::slice::from_raw_parts(list, count) };
        building(qp).list(list.iter().map(|sge| Sge { va: sge.addr, len: sge.length, lkey: sge.lkey }));
    }
}
