//! The port: its attributes, its GIDs and partition key.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::abi::*;
use crate::adapter::Adapter;
use crate::cancel::Whole;
use crate::context::adapter_of;
use crate::device::{self, GUID_MARK};
use crate::events::set_errno;
use crate::{files, tree};

/// Entries of the GID table: the link-local address, and the device's own.
pub const GIDS: usize = 2;
/// The one partition key.
const PKEY: u16 = 0xffff;

/// The GID table. Entry 0 is a link-local address made of the GUID, as RoCE has it; entry 1 the device's address.
pub fn gids(address: IpAddr) -> [ibv_gid; GIDS] {
    let mut link_local = [0; 16];
    link_local[..2].copy_from_slice(&[0xfe, 0x80]);
    link_local[8..].copy_from_slice(&device::guid(address));
    // The universal bit of an EUI-64 is inverted in an address (RFC 4291, appendix A).
    link_local[8] ^= 2;
    [gid(link_local), gid_of(address)]
}

fn gid(raw: [u8; 16]) -> ibv_gid {
    ibv_gid { raw, align: [] }
}

/// The GID of an address: IPv4 is mapped into IPv6.
pub fn gid_of(address: IpAddr) -> ibv_gid {
    gid(match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    })
}

/// The address that a GID stands for. Link-local ones of Remora's devices name the IPv4 address that they are made of.
pub fn address_of(gid: &ibv_gid) -> IpAddr {
    let g = &gid.raw;
    let remora = g[..10] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, GUID_MARK] && g[11..13] == [0xff, 0xfe];
    match remora {
        true => Ipv4Addr::new(g[10], g[13], g[14], g[15]).into(),
        false => IpAddr::V6(Ipv6Addr::from(*g)).to_canonical(),
    }
}

/// The MTU's code: 1 to 5 for 256 to 4096.
pub fn mtu_code(bytes: u32) -> c_int {
    (bytes / 256).trailing_zeros() as c_int + 1
}

fn attributes(adapter: &Adapter) -> ibv_port_attr {
    ibv_port_attr {
        state: IBV_PORT_ACTIVE,
        max_mtu: mtu_code(4096),
        active_mtu: mtu_code(adapter.limits.port_mtu),
        gid_tbl_len: GIDS as c_int,
        port_cap_flags: IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: adapter.limits.message,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        // A plausible width and speed, 1x EDR, as there is no wire: bench programs print it or look for a rate.
        active_width: 1,
        active_speed: 32,
        // LinkUp.
        phys_state: 5,
        link_layer: IBV_LINK_LAYER_ETHERNET,
        flags: IBV_QPF_GRH_REQUIRED,
        ..ibv_port_attr::default()
    }
}

/// `ibv_query_port` of today's programs, which say how long their attributes are.
pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller passes an open context and attributes of that size to fill in.
    unsafe {
        let full = attributes(adapter_of(context));
        std::ptr::write_bytes(attr.cast::<u8>(), 0, size);
        let known = size.min(size_of::<ibv_port_attr>());
        std::ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), attr.cast(), known);
    }
    0
}

/// `ibv_query_port` of programs from before the last two fields: they have 48 bytes.
pub unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: as above.
    unsafe { query_port(context, port, attr, 48) }
}

/// `ibv_query_gid`.
pub unsafe extern "C" fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int {
    // SAFETY: the caller passes an open context.
    let table = unsafe { gids(adapter_of(context).address) };
    match usize::try_from(index).ok().and_then(|index| table.get(index)) {
        Some(found) if port == 1 => {
            // SAFETY: the caller passes a GID to fill in.
            unsafe { *gid = *found };
            0
        }
        _ => {
            set_errno(libc::EINVAL);
            -1
        }
    }
}

/// `ibv_query_gid_ex`; the caller says how long its entry is.
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    if flags != 0 || port != 1 || size < size_of::<ibv_gid_entry>() {
        return libc::EINVAL;
    }
    // SAFETY: the caller passes an open context.
    let address = unsafe { adapter_of(context).address };
    match gids(address).get(index as usize) {
        // SAFETY: the caller passes an entry to fill in.
        Some(found) => unsafe { *entry = self::entry(index, *found, interface_index(address)) },
        None => return libc::EINVAL,
    }
    0
}

/// `ndev_ifindex` is the number of the network interface below the device.
fn entry(gid_index: u32, gid: ibv_gid, ndev_ifindex: u32) -> ibv_gid_entry {
    ibv_gid_entry { gid, gid_index, port_num: 1, gid_type: IBV_GID_TYPE_ROCE_V2, ndev_ifindex }
}

fn interface_index(address: IpAddr) -> u32 {
    let _whole = Whole::new();
    let name = CString::new(tree::interface(address)).unwrap_or_default();
    // SAFETY: a string.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// `ibv_query_gid_table`; returns how many, or a negative errno.
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    if flags != 0 || size < size_of::<ibv_gid_entry>() || max < GIDS {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: the caller passes an open context and that many entries, `size` apart.
    unsafe {
        let address = adapter_of(context).address;
        let interface = interface_index(address);
        for (index, gid) in gids(address).into_iter().enumerate() {
            *entries.byte_add(index * size) = entry(index as u32, gid, interface);
        }
    }
    GIDS as isize
}

/// `ibv_query_gid_type`.
pub unsafe extern "C" fn ibv_query_gid_type(
    _context: *mut ibv_context,
    port: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    if port != 1 || index as usize >= GIDS {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller passes a place for the type.
    unsafe { *kind = IBV_GID_TYPE_SYSFS_ROCE_V2 };
    0
}

/// `ibv_query_pkey`, in network byte order.
pub unsafe extern "C" fn ibv_query_pkey(_context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int {
    if port != 1 || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller passes a place for the key.
    unsafe { *pkey = PKEY.to_be() };
    0
}

/// `ibv_get_pkey_index`.
pub unsafe extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    // Full and limited membership are one partition.
    match port == 1 && u16::from_be(pkey) | 0x8000 == PKEY {
        true => 0,
        false => {
            set_errno(libc::EINVAL);
            -1
        }
    }
}

/// `ibv_get_sysfs_path`.
pub unsafe extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: what the kernel would say of the device, and the kernel's own word on everything else.
/// Returns how many bytes, without the line's end, or -1.
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    out: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the caller passes two strings.
    let (dir, file) = unsafe { (CStr::from_ptr(dir).to_string_lossy(), CStr::from_ptr(file).to_string_lossy()) };
    let path = CString::new(format!("{dir}/{file}")).unwrap_or_default();
    let Some(content) = files::read(&path) else {
        set_errno(libc::ENOENT);
        return -1;
    };
    let bytes = content.trim_end_matches('\n').as_bytes();
    if bytes.len() >= size {
        set_errno(libc::EOVERFLOW);
        return -1;
    }
    // SAFETY: the caller passes `size` bytes to write to, of which there are enough.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), bytes.len());
        *out.add(bytes.len()) = 0;
    }
    bytes.len() as c_int
}

/// `ibv_read_ibdev_sysfs_file` takes a format, of which only those without a conversion are known here; drivers of
/// other devices are its only callers.
pub unsafe extern "C" fn ibv_read_ibdev_sysfs_file(
    out: *mut c_char,
    size: usize,
    _device: *mut ibv_device,
    format: *const c_char,
) -> c_int {
    let dir = CString::new(device::SYSFS).unwrap_or_default();
    // SAFETY: as above.
    unsafe { ibv_read_sysfs_file(dir.as_ptr(), format, out, size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_name_the_address_that_they_are_made_of() {
        for address in ["127.0.0.2", "10.1.200.255"].map(|a| a.parse::<IpAddr>().unwrap()) {
            assert!(gids(address).iter().all(|gid| address_of(gid) == address), "{address}");
        }
        let v6: IpAddr = "fd00::17".parse().unwrap();
        let [link_local, own] = gids(v6);
        assert_eq!(address_of(&own), v6);
        assert_eq!(link_local.raw[..2], [0xfe, 0x80]);
    }

    #[test]
    fn mtu_codes() {
        assert_eq!([256, 512, 1024, 2048, 4096].map(mtu_code), [1, 2, 3, 4, 5]);
    }
}
