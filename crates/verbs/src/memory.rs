//! Memory regions and windows.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;

use remora_memory::{Access, Binding, Buffer, RegisterError, Translation, WindowType};
use remora_nic::{Data, SendOp, SendWr};

use crate::abi::*;
use crate::context::{Context, Domain, adapter_of};
use crate::events::{fail, refuse, set_errno};
use crate::maps;
use crate::post::{errno_of, flags_of};
use crate::qp::Qp;

const KNOWN_ACCESS: c_uint = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_MW_BIND
    | IBV_ACCESS_ZERO_BASED
    | IBV_ACCESS_HUGETLB
    | IBV_ACCESS_OPTIONAL_RANGE;

/// The rights among access flags, or the errno of a driver that finds more than rights there.
pub fn access_of(flags: c_uint) -> Result<Access, c_int> {
    if flags & IBV_ACCESS_ON_DEMAND != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if flags & !KNOWN_ACCESS != 0 {
        return Err(libc::EINVAL);
    }
    let rights = [
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (IBV_ACCESS_MW_BIND, Access::MW_BIND),
    ];
    Ok(rights.into_iter().filter(|(flag, _)| flags & flag != 0).map(|(_, right)| right).collect())
}

/// The flags that stand for rights.
pub fn flags_of_access(access: Access) -> c_uint {
    access.bits() & 0x1f
}

fn errno_of_registration(error: RegisterError) -> c_int {
    match error {
        RegisterError::Full => libc::ENOMEM,
        RegisterError::Bound(_) => libc::EBUSY,
        _ => libc::EINVAL,
    }
}

/// The program's memory as a buffer, if it is there and may be used so.
fn buffer_at(addr: *mut c_void, length: usize, access: Access) -> Result<Buffer, c_int> {
    let start = NonNull::new(addr.cast::<u8>()).ok_or(libc::EFAULT)?;
    if length == 0 || addr.addr().checked_add(length).is_none() {
        return Err(libc::EINVAL);
    }
    if !maps::allow(addr.addr(), length, access.contains(Access::LOCAL_WRITE)) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the range is mapped, whole pages of it. Its owner keeps it so while it is registered, as the verbs
    // interface demands, and knows that peers access it.
    Ok(unsafe { Buffer::from_raw(start, length, Box::new(())) })
}

/// Registers memory of the program.
///
/// # Safety
///
/// A domain of ours.
pub unsafe fn register(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, flags: c_uint) -> *mut ibv_mr {
    // SAFETY: the caller passes a domain of ours.
    let domain = unsafe { Domain::of(pd) };
    let registered = access_of(flags).and_then(|access| {
        let buffer = buffer_at(addr, length, access)?;
        let iova = if flags & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { iova };
        let region = domain.adapter.registry.register(domain.pd, &buffer, 0, length, Some(iova), access);
        region.map_err(errno_of_registration)
    });
    match registered {
        Ok(region) => {
            let (context, key) = (domain.base.context, region.key());
            // SAFETY: the domain's context is open.
            let handle = unsafe { (*Context::of(context)).handle() };
            Box::into_raw(Box::new(ibv_mr { context, pd, addr, length, handle, lkey: key, rkey: key }))
        }
        Err(code) => fail(code),
    }
}

/// `ibv_reg_mr`.
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    // SAFETY: the caller passes a domain of ours.
    unsafe { register(pd, addr, length, addr.addr() as u64, access as c_uint) }
}

/// `ibv_reg_mr_iova`.
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller passes a domain of ours.
    unsafe { register(pd, addr, length, iova, access as c_uint) }
}

/// `ibv_reg_mr_iova2`.
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller passes a domain of ours.
    unsafe { register(pd, addr, length, iova, access) }
}

/// `ibv_reg_dmabuf_mr`: no device memory can be reached.
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    fail(libc::EOPNOTSUPP)
}

/// `ibv_rereg_mr`. It fails with one of its own codes and sets errno.
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let has = |flag| flags & flag != 0;
    let all = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    let wrong = |code| {
        set_errno(code);
        IBV_REREG_MR_ERR_INPUT
    };
    let translate = has(IBV_REREG_MR_CHANGE_TRANSLATION);
    if flags & !all != 0 || flags == 0 || has(IBV_REREG_MR_CHANGE_PD) && pd.is_null() {
        return wrong(libc::EINVAL);
    }
    if translate && (addr.is_null() || length == 0) {
        return wrong(libc::EINVAL);
    }
    // SAFETY: the caller passes a region of ours, and a domain of ours where it says so.
    unsafe {
        let region = &mut *mr;
        let domain = Domain::of(if has(IBV_REREG_MR_CHANGE_PD) { pd } else { region.pd });
        let registry = &domain.adapter.registry;
        let new_access = match has(IBV_REREG_MR_CHANGE_ACCESS).then(|| access_of(access as c_uint)).transpose() {
            Ok(access) => access,
            Err(code) => return wrong(code),
        };
        let rights = new_access.or_else(|| registry.lookup(region.lkey).map(|r| r.access())).unwrap_or_default();
        let buffer = match translate.then(|| buffer_at(addr, length, rights)).transpose() {
            Ok(buffer) => buffer,
            Err(code) => return wrong(code),
        };
        let writes = new_access.is_some_and(|access| access.contains(Access::LOCAL_WRITE));
        if !translate && writes && !maps::allow(region.addr.addr(), region.length, true) {
            return wrong(libc::EFAULT);
        }
        let memory = buffer.as_ref().map(|buffer| Translation { buffer, offset: 0, len: length, va: None });
        let new_pd = has(IBV_REREG_MR_CHANGE_PD).then_some(domain.pd);
        if let Err(error) = domain.adapter.reregister(region.lkey, new_pd, memory, new_access) {
            return wrong(errno_of_registration(error));
        }
        if has(IBV_REREG_MR_CHANGE_PD) {
            region.pd = pd;
            region.context = (*pd).context;
        }
        if translate {
            (region.addr, region.length) = (addr, length);
        }
    }
    0
}

/// `ibv_dereg_mr`.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller passes a region of ours and never uses it again if this succeeds.
    unsafe {
        // A key that is unknown was invalidated by a work request.
        if let Err(remora_memory::DeregisterError::Bound(_)) = adapter_of((*mr).context).deregister((*mr).lkey) {
            return refuse(libc::EBUSY);
        }
        drop(Box::from_raw(mr));
    }
    0
}

/// `ibv_alloc_mw`.
pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    let window = match kind {
        IBV_MW_TYPE_1 => WindowType::One,
        IBV_MW_TYPE_2 => WindowType::Two,
        _ => return fail(libc::EINVAL),
    };
    // SAFETY: the caller passes a domain of ours, whose context is open.
    unsafe {
        let domain = Domain::of(pd);
        match domain.adapter.registry.alloc_window(domain.pd, window) {
            Ok(rkey) => {
                let context = domain.base.context;
                let handle = (*Context::of(context)).handle();
                Box::into_raw(Box::new(ibv_mw { context, pd, rkey, handle, kind }))
            }
            Err(error) => fail(errno_of_registration(error)),
        }
    }
}

/// `ibv_dealloc_mw`.
pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller passes a window of ours and never uses it again if this succeeds.
    unsafe {
        if adapter_of((*mw).context).registry.dealloc_window((*mw).rkey).is_err() {
            return refuse(libc::EINVAL);
        }
        drop(Box::from_raw(mw));
    }
    0
}

/// `ibv_bind_mw`, for windows of type 1: a work request whose key is the window's next.
pub unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller passes a queue pair and a window of ours, and what to bind.
    unsafe {
        let (qp, bind) = (Qp::of(qp), &*bind);
        let new_key = (*mw).rkey & !0xff | (*mw).rkey.wrapping_add(1) & 0xff;
        let binding = match binding_of((*mw).rkey, new_key, &bind.bind_info) {
            Ok(binding) => binding,
            Err(code) => return code,
        };
        let wr = flags_of(SendWr::new(bind.wr_id, SendOp::Bind(binding), Data::Inline(&[])), bind.send_flags);
        let Some(mut guard) = qp.adapter.lock() else { return libc::EINVAL };
        if let Err(error) = guard.nic().post_send(qp.qpn, &wr) {
            return errno_of(error);
        }
        guard.transmit();
        (*mw).rkey = new_key;
    }
    0
}

/// What a work request binds a window to.
///
/// # Safety
///
/// The region, if any, is one of ours.
pub unsafe fn binding_of(key: u32, new_key: u32, info: &ibv_mw_bind_info) -> Result<Binding, c_int> {
    let access = access_of(info.mw_access_flags)?;
    let zero_based = info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0;
    // SAFETY: as the caller promises.
    let region = if info.mr.is_null() { 0 } else { unsafe { (*info.mr).lkey } };
    let len = if info.mr.is_null() { 0 } else { info.length };
    Ok(Binding { key, new_key, region, va: info.addr, len, access, zero_based })
}
