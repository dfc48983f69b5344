//! The device `remora0`: its name, its GUID and its attributes.

use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::abi::*;
use crate::adapter::{self, Adapter};
use crate::context::{Context, adapter_of};
use crate::events::Object;

/// Name of the one device.
pub const NAME: &str = "remora0";
/// Where the kernel would show it.
pub const SYSFS: &str = "/sys/class/infiniband/remora0";
pub const VERBS_SYSFS: &str = "/sys/class/infiniband_verbs/uverbs0";
/// Firmware: the version of Remora.
pub const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// The device, and what drivers of rdma-core look for behind it: the address of their own table of operations.
#[repr(C)]
struct RemoraDevice {
    base: ibv_device,
    driver_ops: *mut c_void,
    reserved: [*mut c_void; 8],
}

fn device() -> *mut ibv_device {
    static DEVICE: OnceLock<Object<RemoraDevice>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        let base = ibv_device {
            ops: [null_mut(); 2],
            node_type: IBV_NODE_CA,
            transport_type: IBV_TRANSPORT_IB,
            name: text(NAME),
            dev_name: text("uverbs0"),
            dev_path: text(VERBS_SYSFS),
            ibdev_path: text(SYSFS),
        };
        let device = RemoraDevice { base, driver_ops: null_mut(), reserved: [null_mut(); 8] };
        Object(Box::into_raw(Box::new(device)))
    });
    device.0.cast()
}

/// A string in a field of fixed size; what does not fit is cut off.
pub fn text<const N: usize>(from: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (out, byte) in out[..N - 1].iter_mut().zip(from.bytes()) {
        *out = byte as c_char;
    }
    out
}

/// `ibv_get_device_list`.
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    if !count.is_null() {
        // SAFETY: the caller passes a place for the number or null.
        unsafe { *count = 1 };
    }
    Box::into_raw(Box::new([device(), null_mut()])).cast()
}

/// `ibv_free_device_list`.
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        // SAFETY: the caller passes a list of `ibv_get_device_list`.
        unsafe { drop(Box::from_raw(list.cast::<[*mut ibv_device; 2]>())) };
    }
}

/// `ibv_get_device_name`.
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller passes a device of ours.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_index`: the kernel knows of no such device.
pub unsafe extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

/// `ibv_get_device_guid`, in network byte order. It follows from the address, so that the device is opened for it.
pub unsafe extern "C" fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    adapter::open().map_or(0, |adapter| u64::from_ne_bytes(guid(adapter.address)))
}

/// A locally administered EUI-64 that holds an IPv4 address, or what distinguishes an IPv6 address.
pub fn guid(address: IpAddr) -> [u8; 8] {
    let [a, b, c, d] = match address {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(v6) => v6.octets().chunks(4).fold([0; 4], |sum, part| [0, 1, 2, 3].map(|i| sum[i] ^ part[i])),
    };
    [0x00, GUID_MARK, a, 0xff, 0xfe, b, c, d]
}

/// Second byte of the GUIDs: with the first, which with the bit for local administration is 02, an `R` before the
/// address.
pub const GUID_MARK: u8 = b'R';

/// `ibv_query_device`.
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller passes an open context and attributes to fill in.
    unsafe { *attr = attributes(adapter_of(context)) };
    0
}

fn attributes(adapter: &Adapter) -> ibv_device_attr {
    let limits = adapter.limits;
    let int = |n: u32| c_int::try_from(n).unwrap_or(c_int::MAX);
    let guid = u64::from_ne_bytes(guid(adapter.address));
    // SAFETY: numbers, which may be zero.
    let zero: ibv_device_attr = unsafe { std::mem::zeroed() };
    ibv_device_attr {
        fw_ver: text(FIRMWARE),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX >> 16,
        page_size_cap: 0xffff_f000,
        // No vendor: what the kernel's software NIC says too.
        vendor_id: 0xff_ffff,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: int(limits.qp),
        max_qp_wr: int(limits.qp_wr),
        device_cap_flags: IBV_DEVICE_CURR_QP_STATE_MOD
            | IBV_DEVICE_RC_RNR_NAK_GEN
            | IBV_DEVICE_SRQ_RESIZE
            | IBV_DEVICE_MEM_WINDOW
            | IBV_DEVICE_MEM_WINDOW_TYPE_2B
            | IBV_DEVICE_MEM_MGT_EXTENSIONS,
        max_sge: int(limits.sge),
        max_sge_rd: int(limits.sge),
        max_cq: int(limits.cq),
        max_cqe: int(limits.cqe),
        max_mr: int(limits.regions),
        max_pd: 1 << 20,
        max_qp_rd_atom: limits.rd_atomic.into(),
        max_res_rd_atom: int(u32::from(limits.rd_atomic) * limits.qp),
        max_qp_init_rd_atom: limits.rd_atomic.into(),
        atomic_cap: IBV_ATOMIC_HCA,
        max_mw: int(limits.regions),
        max_mcast_grp: int(limits.groups),
        max_mcast_qp_attach: int(limits.group_members),
        max_total_mcast_qp_attach: int(limits.groups.saturating_mul(limits.group_members)),
        max_ah: 1 << 20,
        max_srq: int(limits.srq),
        max_srq_wr: int(limits.qp_wr),
        max_srq_sge: int(limits.sge),
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
        ..zero
    }
}

/// `ibv_query_device_ex`. A program of another version has shorter or longer attributes: it says how long.
pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // SAFETY: numbers, which may be zero.
    let mut full: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
    if size < size_of::<ibv_device_attr>() {
        return libc::EINVAL;
    }
    // SAFETY: the caller passes an open context, and attributes of that size to fill in.
    unsafe {
        full.orig_attr = attributes(adapter_of(context));
        full.completion_timestamp_mask = u64::MAX;
        // Kilohertz: timestamps are nanoseconds.
        full.hca_core_clock = 1_000_000;
        full.device_cap_flags_ex = full.orig_attr.device_cap_flags.into();
        full.max_cq_count = u16::MAX;
        full.max_cq_period = u16::MAX;
        full.phys_port_cnt_ex = 1;
        let known = size.min(size_of::<ibv_device_attr_ex>());
        std::ptr::write_bytes(attr.cast::<u8>(), 0, size);
        std::ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), attr.cast(), known);
    }
    0
}

/// `ibv_query_rt_values_ex`: the clock that completions are stamped with.
pub unsafe extern "C" fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    const RAW_CLOCK: u32 = 1;
    // SAFETY: the caller passes an open context and values to fill in.
    unsafe {
        let asked = (*values).comp_mask;
        (*values).comp_mask = 0;
        if asked & RAW_CLOCK != 0 {
            let now = (*Context::of(context)).adapter.device.now();
            (*values).raw_clock.tv_sec = 0;
            (*values).raw_clock.tv_nsec = now as _;
            (*values).comp_mask = RAW_CLOCK;
        }
        if asked & !RAW_CLOCK != 0 {
            return libc::EINVAL;
        }
    }
    0
}
