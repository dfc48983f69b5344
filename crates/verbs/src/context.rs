//! An open device: the table of operations that programs call through, protection and thread domains.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use remora_memory::Pd;

use crate::abi::*;
use crate::adapter::{self, Adapter};
use crate::events::{Async, EventQueue, fail, refuse};
use crate::{cq, cq_ex, device, memory, port, post, qp, srq};

/// What stands for a pointer where a context has the newer table in front.
const EXTENDED: *mut c_void = usize::MAX as *mut c_void;
/// Completion vectors: one, as one thread drives.
pub const COMP_VECTORS: c_int = 1;

/// An open device.
#[repr(C)]
pub struct Context {
    verbs: verbs_context,
    pub adapter: &'static Adapter,
    /// Events of `ibv_get_async_event`.
    pub asynchronous: EventQueue<Async>,
    /// What programs take for the descriptor of the kernel's device: it can be duplicated, and says nothing.
    command: EventQueue<()>,
    handles: AtomicU32,
    /// Its protection domains and completion queues, and one while it is open: what a program leaves behind when it closes a
    /// device goes on to look here, and the engine with it.
    users: AtomicU32,
}

impl Context {
    /// The context that a program's pointer is into.
    pub fn of(context: *mut ibv_context) -> *mut Self {
        context.wrapping_byte_sub(offset_of!(Context, verbs) + offset_of!(verbs_context, context)).cast()
    }

    /// There is one more object.
    pub fn add_user(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// An object is gone, or the device is closed. With the last of them goes the context.
    ///
    /// # Safety
    ///
    /// Nobody uses the context by that object again.
    pub unsafe fn remove_user(context: *mut ibv_context) {
        let context = Self::of(context);
        // SAFETY: as the caller promises; it lives as long as it has users.
        unsafe {
            if (*context).users.fetch_sub(1, Ordering::AcqRel) == 1 {
                drop(Box::from_raw(context));
            }
        }
    }

    /// A number for an object, unique among those of this context.
    pub fn handle(&self) -> u32 {
        self.handles.fetch_add(1, Ordering::Relaxed)
    }
}

/// The adapter behind a context.
///
/// # Safety
///
/// The context is one of ours and open.
pub unsafe fn adapter_of(context: *mut ibv_context) -> &'static Adapter {
    // SAFETY: as the caller promises.
    unsafe { (*Context::of(context)).adapter }
}

/// `ibv_open_device`.
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let opened = adapter::open().and_then(|adapter| Ok((adapter, EventQueue::new()?, EventQueue::new()?)));
    let (adapter, asynchronous, command) = match opened {
        Ok(opened) => opened,
        Err(code) => return fail(code),
    };
    let verbs = table(device, command.fd(), asynchronous.fd());
    let (handles, users) = (AtomicU32::new(0), AtomicU32::new(1));
    let context = Box::into_raw(Box::new(Context { verbs, adapter, asynchronous, command, handles, users }));
    // SAFETY: just made.
    unsafe { &raw mut (*context).verbs.context }
}

/// `ibv_close_device`. What was made with it stays until it is destroyed.
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller passes a context of ours and never uses it again.
    unsafe { Context::remove_user(context) };
    0
}

/// `ibv_import_device`: other processes' contexts are out of reach.
pub unsafe extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut ibv_context {
    fail(libc::EOPNOTSUPP)
}

fn table(device: *mut ibv_device, cmd_fd: c_int, async_fd: c_int) -> verbs_context {
    // SAFETY: all fields may be zero: numbers, null pointers, no functions.
    let mut verbs: verbs_context = unsafe { std::mem::zeroed() };
    verbs.query_port = Some(port::query_port);
    verbs.alloc_parent_domain = Some(alloc_parent_domain);
    verbs.alloc_td = Some(alloc_td);
    verbs.dealloc_td = Some(dealloc_td);
    verbs.modify_cq = Some(cq::modify_cq);
    verbs.query_rt_values = Some(device::query_rt_values);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.query_device_ex = Some(device::query_device_ex);
    verbs.create_qp_ex = Some(qp::create_qp_ex);
    verbs.get_srq_num = Some(srq::get_srq_num);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
    verbs.sz = size_of::<verbs_context>();
    let context = &mut verbs.context;
    context.device = device;
    context.cmd_fd = cmd_fd;
    context.async_fd = async_fd;
    context.num_comp_vectors = COMP_VECTORS;
    context.abi_compat = EXTENDED;
    context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    let ops = &mut context.ops;
    ops.alloc_mw = Some(memory::alloc_mw);
    ops.bind_mw = Some(memory::bind_mw);
    ops.dealloc_mw = Some(memory::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(srq::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    verbs
}

/// A thread domain.
#[repr(C)]
struct ThreadDomain {
    base: ibv_td,
    /// Parent domains that it is in.
    users: AtomicU32,
}

/// A protection domain, or a parent domain over one.
#[repr(C)]
pub struct Domain {
    pub base: ibv_pd,
    pub pd: Pd,
    pub adapter: &'static Adapter,
    /// The domain that a parent domain stands for, and its thread domain, if it has one.
    parent_of: *mut Domain,
    thread: *mut ThreadDomain,
    /// Objects that need it, besides what the registry counts.
    pub users: AtomicU32,
}

impl Domain {
    /// # Safety
    ///
    /// A protection domain of ours that lives.
    pub unsafe fn of<'a>(pd: *mut ibv_pd) -> &'a Self {
        // SAFETY: as the caller promises.
        unsafe { &*pd.cast::<Self>() }
    }

    pub fn add_user(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    pub fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::Release);
    }
}

/// `ibv_alloc_pd`.
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller passes an open context.
    let context_of = unsafe { &*Context::of(context) };
    let base = ibv_pd { context, handle: context_of.handle() };
    let (adapter, pd) = (context_of.adapter, context_of.adapter.registry.alloc_pd());
    context_of.add_user();
    let domain = Domain { base, pd, adapter, parent_of: null_mut(), thread: null_mut(), users: AtomicU32::new(0) };
    Box::into_raw(Box::new(domain)).cast()
}

/// `ibv_dealloc_pd`.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller passes a domain of ours and never uses it again if this succeeds.
    unsafe {
        let domain = Domain::of(pd);
        if domain.users.load(Ordering::Acquire) > 0 {
            return refuse(libc::EBUSY);
        }
        if domain.parent_of.is_null() {
            // Regions and windows are counted there.
            if domain.adapter.registry.dealloc_pd(domain.pd).is_err() {
                return refuse(libc::EBUSY);
            }
        } else {
            (*domain.parent_of).remove_user();
            if let Some(thread) = domain.thread.as_ref() {
                thread.users.fetch_sub(1, Ordering::Release);
            }
        }
        let context = domain.base.context;
        drop(Box::from_raw(pd.cast::<Domain>()));
        Context::remove_user(context);
    }
    0
}

unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const ALLOCATORS: u32 = 1;
    const PD_CONTEXT: u32 = 2;
    // SAFETY: the caller passes an open context and filled attributes, the domains in them ours or null.
    unsafe {
        let attr = &*attr;
        if attr.comp_mask & !(ALLOCATORS | PD_CONTEXT) != 0 || attr.pd.is_null() {
            return fail(libc::EINVAL);
        }
        // Allocators are for queues in memory of the program's, of which there are none here.
        let parent = Domain::of(attr.pd);
        parent.add_user();
        let thread = attr.td.cast::<ThreadDomain>();
        if let Some(thread) = thread.as_ref() {
            thread.users.fetch_add(1, Ordering::Relaxed);
        }
        (*Context::of(context)).add_user();
        let base = ibv_pd { context, handle: parent.base.handle };
        let domain = Domain {
            base,
            pd: parent.pd,
            adapter: parent.adapter,
            parent_of: attr.pd.cast(),
            thread,
            users: AtomicU32::new(0),
        };
        Box::into_raw(Box::new(domain)).cast()
    }
}

unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    // SAFETY: the caller passes filled attributes.
    if unsafe { (*attr).comp_mask } != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    Box::into_raw(Box::new(ThreadDomain { base: ibv_td { context }, users: AtomicU32::new(0) })).cast()
}

unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    let td = td.cast::<ThreadDomain>();
    // SAFETY: the caller passes a thread domain of ours and never uses it again if this succeeds.
    unsafe {
        if (*td).users.load(Ordering::Acquire) > 0 {
            return refuse(libc::EBUSY);
        }
        drop(Box::from_raw(td));
    }
    0
}
