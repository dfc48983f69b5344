//! Posting work requests.

use std::ffi::{c_int, c_uint};

use remora_nic::{Data, Nic, NicError, SendOp, SendWr, Sge, UdDest};
use remora_real::DeviceGuard;

use crate::abi::*;
use crate::adapter::Engine;
use crate::ah::Ah;
use crate::memory::binding_of;
use crate::qp::Qp;

/// Elements that a list may have: the engine's limit.
pub const MAX_SGE: usize = 32;

/// What a driver says where the engine refuses.
pub fn errno_of(error: NicError) -> c_int {
    match error {
        NicError::Full | NicError::Exhausted(_) => libc::ENOMEM,
        NicError::InUse(_) => libc::EBUSY,
        _ => libc::EINVAL,
    }
}

/// `ibv_post_send`. The packets leave at once.
pub unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller passes a queue pair of ours, a list of work requests and a place for the one that fails.
    unsafe {
        let qp = Qp::of(qp);
        let Some(mut guard) = qp.adapter.lock() else {
            *bad = wr;
            return libc::ENODEV;
        };
        let mut next = wr;
        let mut result = 0;
        while let Some(wr) = next.as_ref() {
            if let Err(code) = post_one(qp, &mut guard, wr) {
                *bad = next;
                result = code;
                break;
            }
            next = wr.next;
        }
        guard.transmit_from(qp.qpn);
        result
    }
}

/// # Safety
///
/// What the work request points to is there.
#[inline]
unsafe fn post_one(qp: &Qp, guard: &mut DeviceGuard<'_>, wr: &ibv_send_wr) -> Result<(), c_int> {
    // SAFETY: as the caller promises; of the unions the part is read that the op-code names.
    unsafe {
        let op = op_of(wr)?;
        let count = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
        if count > MAX_SGE {
            return Err(libc::EINVAL);
        }
        let list: &[ibv_sge] = if count == 0 { &[] } else { std::slice::from_raw_parts(wr.sg_list, count) };
        let dest = if qp.is_datagram() { Some(dest_of(&wr.wr.ud)?) } else { None };
        let mut sges = [Sge::default(); MAX_SGE];
        let data = if wr.send_flags & IBV_SEND_INLINE != 0 {
            let pieces = list.iter().map(|sge| (sge.addr as *const u8, sge.length as usize));
            Data::Inline(gather(&mut *qp.inline.get(), pieces)?)
        } else if matches!(op, SendOp::LocalInvalidate(_) | SendOp::Bind(_)) {
            Data::Inline(&[])
        } else {
            Data::List(copy_list(list, &mut sges))
        };
        let mut send = flags_of(SendWr::new(wr.wr_id, op, data), wr.send_flags);
        send.dest = dest;
        guard.nic().post_send(qp.qpn, &send).map_err(errno_of)
    }
}

/// # Safety
///
/// What the work request points to is there.
#[inline]
unsafe fn op_of(wr: &ibv_send_wr) -> Result<SendOp, c_int> {
    // SAFETY: as the caller promises; of the unions the part is read that the op-code names.
    unsafe {
        let (rdma, atomic) = (wr.wr.rdma, wr.wr.atomic);
        let imm = u32::from_be(wr.imm_data);
        Ok(match wr.opcode {
            IBV_WR_SEND => SendOp::Send,
            IBV_WR_SEND_WITH_IMM => SendOp::SendImm(imm),
            IBV_WR_SEND_WITH_INV => SendOp::SendInvalidate(wr.imm_data),
            IBV_WR_RDMA_WRITE => SendOp::Write { va: rdma.remote_addr, rkey: rdma.rkey },
            IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm { va: rdma.remote_addr, rkey: rdma.rkey, imm },
            IBV_WR_RDMA_READ => SendOp::Read { va: rdma.remote_addr, rkey: rdma.rkey },
            IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
                va: atomic.remote_addr,
                rkey: atomic.rkey,
                compare: atomic.compare_add,
                swap: atomic.swap,
            },
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                SendOp::FetchAdd { va: atomic.remote_addr, rkey: atomic.rkey, add: atomic.compare_add }
            }
            IBV_WR_LOCAL_INV => SendOp::LocalInvalidate(wr.imm_data),
            IBV_WR_BIND_MW => {
                let window = wr.bind_mw.mw.as_ref().ok_or(libc::EINVAL)?;
                SendOp::Bind(binding_of(window.rkey, wr.bind_mw.rkey, &wr.bind_mw.bind_info)?)
            }
            _ => return Err(libc::EINVAL),
        })
    }
}

/// Whom a datagram is for.
///
/// # Safety
///
/// The address handle is null or one of ours that lives.
#[inline]
pub unsafe fn dest_of(ud: &wr_ud) -> Result<UdDest, c_int> {
    // SAFETY: as the caller promises.
    let handle = unsafe { ud.ah.cast::<Ah>().as_ref() }.ok_or(libc::EINVAL)?;
    Ok(UdDest { route: handle.route, qpn: ud.remote_qpn & 0xff_ffff, qkey: ud.remote_qkey })
}

/// The flags of a send work request.
#[inline]
pub fn flags_of(mut wr: SendWr<'_>, flags: c_uint) -> SendWr<'_> {
    wr.signaled = flags & IBV_SEND_SIGNALED != 0;
    wr.fence = flags & IBV_SEND_FENCE != 0;
    wr.solicited = flags & IBV_SEND_SOLICITED != 0;
    wr
}

/// The list in the engine's words.
#[inline]
pub fn copy_list<'a>(list: &[ibv_sge], out: &'a mut [Sge; MAX_SGE]) -> &'a [Sge] {
    for (out, sge) in out.iter_mut().zip(list) {
        *out = Sge { va: sge.addr, len: sge.length, lkey: sge.lkey };
    }
    &out[..list.len().min(MAX_SGE)]
}

/// Puts pieces of the program's memory one behind the other.
///
/// # Safety
///
/// The pieces are there, and `out` is this thread's for as long as it holds the engine.
#[inline]
pub unsafe fn gather(out: &mut [u8], pieces: impl Iterator<Item = (*const u8, usize)>) -> Result<&[u8], c_int> {
    let mut at = 0usize;
    for (from, len) in pieces {
        let room = out.get_mut(at..).and_then(|rest| rest.get_mut(..len)).ok_or(libc::EINVAL)?;
        if len > 0 {
            // SAFETY: as the caller promises; there is room.
            unsafe { std::ptr::copy_nonoverlapping(from, room.as_mut_ptr(), len) };
        }
        at += len;
    }
    Ok(&out[..at])
}

/// `ibv_post_recv`.
pub unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the caller passes a queue pair of ours, a list of work requests and a place for the one that fails.
    unsafe {
        let qp = Qp::of(qp);
        let guard = qp.adapter.lock();
        recv_list(guard, wr, bad, |nic, wr_id, sges| nic.post_recv(qp.qpn, wr_id, sges))
    }
}

/// Posts a list of receives one by one.
///
/// # Safety
///
/// The list is there, and `bad` a place for the one that fails.
#[inline]
pub unsafe fn recv_list(
    guard: Option<Engine<'_>>,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    post: impl Fn(&mut Nic, u64, &[Sge]) -> Result<(), NicError>,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let Some(mut guard) = guard else {
            *bad = wr;
            return libc::ENODEV;
        };
        let mut sges = [Sge::default(); MAX_SGE];
        let mut next = wr;
        while let Some(wr) = next.as_ref() {
            let result = match usize::try_from(wr.num_sge) {
                Ok(0) => post(guard.nic(), wr.wr_id, &[]).map_err(errno_of),
                Ok(count @ 1..=MAX_SGE) => {
                    let list = copy_list(std::slice::from_raw_parts(wr.sg_list, count), &mut sges);
                    post(guard.nic(), wr.wr_id, list).map_err(errno_of)
                }
                _ => Err(libc::EINVAL),
            };
            if let Err(code) = result {
                *bad = next;
                return code;
            }
            next = wr.next;
        }
    }
    0
}
