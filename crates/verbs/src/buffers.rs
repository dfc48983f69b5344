//! Buffers that the library allocates (`ibv_alloc_buf`, since rdma-core 64), and regions made from attributes. Here a buffer
//! is memory like any other.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use crate::abi::*;
use crate::events::fail;
use crate::memory::register;

/// A buffer.
pub struct Buf {
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
}

/// `struct ibv_mr_init_attr`; fields count whose bit is set.
#[repr(C)]
pub struct MrInitAttr {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
    fd: c_int,
    fd_offset: u64,
    dmah: *mut c_void,
    buf: *mut Buf,
}

const MASK_IOVA: u64 = 1;
const MASK_ADDR: u64 = 2;
const MASK_FD: u64 = 4;
const MASK_FD_OFFSET: u64 = 8;
const MASK_DMAH: u64 = 16;
const MASK_BUF: u64 = 32;

/// `ibv_alloc_buf`.
pub unsafe extern "C" fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut Buf) -> *mut c_void {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a mapping of its own.
    let addr = unsafe { libc::mmap(null_mut(), size, rights, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    if addr == libc::MAP_FAILED {
        return null_mut(); // errno says why
    }
    // SAFETY: the caller passes a place for the handle.
    unsafe { *buf = Box::into_raw(Box::new(Buf { pd, addr, length: size })) };
    addr
}

/// `ibv_free_buf`.
pub unsafe extern "C" fn ibv_free_buf(buf: *mut Buf) {
    if !buf.is_null() {
        // SAFETY: the caller passes a handle of ours and never uses it or the memory again.
        unsafe {
            let buf = Box::from_raw(buf);
            libc::munmap(buf.addr, buf.length);
        }
    }
}

/// `ibv_reg_buf_mr`: `EINVAL` for another domain than the buffer's, and for what lies outside it.
pub unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut Buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller passes a domain and a handle of ours.
    unsafe {
        let Some(buf) = buf.as_ref() else { return fail(libc::EINVAL) };
        let inside = addr
            .addr()
            .checked_sub(buf.addr.addr())
            .is_some_and(|skip| skip.checked_add(length).is_some_and(|end| end <= buf.length));
        if buf.pd != pd || !inside {
            return fail(libc::EINVAL);
        }
        register(pd, addr, length, addr.addr() as u64, access as u32)
    }
}

/// `ibv_reg_mr_ex`: of memory or a buffer; there are no descriptors of memory and no DMA handles.
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut MrInitAttr) -> *mut ibv_mr {
    // SAFETY: the caller passes a domain of ours and filled attributes: of its buffer where the bit says so.
    unsafe {
        let attr = &*attr;
        if attr.comp_mask & (MASK_FD | MASK_FD_OFFSET | MASK_DMAH) != 0 || attr.comp_mask >= 2 * MASK_BUF {
            return fail(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & MASK_ADDR == 0 {
            return fail(libc::EINVAL);
        }
        match attr.comp_mask & (MASK_BUF | MASK_IOVA) {
            MASK_BUF => ibv_reg_buf_mr(pd, attr.buf, attr.addr, attr.length, attr.access),
            0 => register(pd, attr.addr, attr.length, attr.addr.addr() as u64, attr.access as u32),
            MASK_IOVA => register(pd, attr.addr, attr.length, attr.iova, attr.access as u32),
            _ => fail(libc::EINVAL),
        }
    }
}
