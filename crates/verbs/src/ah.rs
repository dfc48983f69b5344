//! Address handles: where a datagram goes.

use std::ffi::c_int;
use std::net::IpAddr;

use remora_nic::{AddressVector, Route};

use crate::abi::*;
use crate::adapter::Adapter;
use crate::context::{Context, Domain, adapter_of};
use crate::events::{fail, set_errno};
use crate::port::{GIDS, address_of, gid_of, gids};

/// An address handle.
#[repr(C)]
pub struct Ah {
    base: ibv_ah,
    pub route: Route,
}

/// The address vector that address attributes name; a driver says EINVAL to what RoCE cannot have.
pub fn vector_of(adapter: &Adapter, attr: &ibv_ah_attr) -> Result<AddressVector, c_int> {
    let grh = &attr.grh;
    if attr.is_global == 0 || attr.port_num != 1 || usize::from(grh.sgid_index) >= GIDS {
        return Err(libc::EINVAL);
    }
    let remote = address_of(&grh.dgid);
    if remote.is_unspecified() || remote.is_ipv4() != adapter.address.is_ipv4() {
        return Err(libc::EINVAL);
    }
    let mut guard = adapter.lock().ok_or(libc::ENODEV)?;
    let route = adapter.route(&mut guard, remote).ok_or(libc::ENETUNREACH)?;
    Ok(AddressVector {
        route,
        sgid_index: grh.sgid_index,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
        flow_label: grh.flow_label & 0xf_ffff,
        sl: attr.sl,
    })
}

/// The attributes that name an address vector.
pub fn attr_of(vector: &AddressVector) -> ibv_ah_attr {
    let grh = ibv_global_route {
        dgid: gid_of(vector.route.remote),
        flow_label: vector.flow_label,
        sgid_index: vector.sgid_index,
        hop_limit: vector.hop_limit,
        traffic_class: vector.traffic_class,
    };
    ibv_ah_attr { grh, sl: vector.sl, is_global: 1, port_num: 1, ..ibv_ah_attr::default() }
}

/// `ibv_create_ah`.
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller passes a domain of ours and filled attributes.
    unsafe {
        let domain = Domain::of(pd);
        match vector_of(domain.adapter, &*attr) {
            Ok(vector) => {
                domain.add_user();
                let context = domain.base.context;
                let base = ibv_ah { context, pd, handle: (*Context::of(context)).handle() };
                Box::into_raw(Box::new(Ah { base, route: vector.route })).cast()
            }
            Err(code) => fail(code),
        }
    }
}

/// `ibv_destroy_ah`.
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the caller passes an address handle of ours and never uses it again.
    unsafe {
        Domain::of((*ah).pd).remove_user();
        drop(Box::from_raw(ah.cast::<Ah>()));
    }
    0
}

/// `ibv_init_ah_from_wc`: the way back to the sender of a datagram, from the 40 bytes in front of it.
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller passes an open context, a completion, its GRH and attributes to fill in.
    unsafe {
        let adapter = adapter_of(context);
        let (wc, out) = (&*wc, &mut *attr);
        *out = ibv_ah_attr { port_num: port, ..ibv_ah_attr::default() };
        if wc.wc_flags & IBV_WC_GRH == 0 {
            return 0;
        }
        let header = &*grh.cast::<[u8; 40]>();
        let (sender, receiver, hop_limit) = addresses(header);
        out.is_global = 1;
        out.grh.dgid = gid_of(sender);
        let own = gid_of(receiver);
        // A multicast datagram is for no entry: then the way back begins at the device's address.
        let index = gids(adapter.address).iter().position(|gid| *gid == own).unwrap_or(GIDS - 1);
        out.grh.sgid_index = index as u8;
        out.grh.hop_limit = hop_limit;
        0
    }
}

/// Sender, receiver and the hop limit back of the header in front of a datagram: IPv6, or IPv4 in the last 20 bytes.
fn addresses(header: &[u8; 40]) -> (IpAddr, IpAddr, u8) {
    let v4 = &header[20..];
    let sum = v4.chunks(2).fold(0u32, |sum, word| sum + u32::from(u16::from_be_bytes([word[0], word[1]])));
    if v4[0] == 0x45 && (sum & 0xffff) + (sum >> 16) == 0xffff {
        let part = |at: usize| IpAddr::from([v4[at], v4[at + 1], v4[at + 2], v4[at + 3]]);
        return (part(12), part(16), v4[8]);
    }
    let part = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&header[at..at + 16]).unwrap_or_default());
    (part(8), part(24), 0xff)
}

/// `ibv_create_ah_from_wc`.
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr::default();
    // SAFETY: the caller passes a domain of ours, a completion and its GRH.
    unsafe {
        match ibv_init_ah_from_wc((*pd).context, port, wc, grh, &raw mut attr) {
            0 => ibv_create_ah(pd, &raw mut attr),
            code => fail(code),
        }
    }
}

/// `ibv_resolve_eth_l2_from_gid`: there is no Ethernet here, but a made-up address tells that the way is there.
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut [u8; 6],
    vid: *mut u16,
) -> c_int {
    // SAFETY: the caller passes an open context, filled attributes and two places to fill in.
    unsafe {
        if let Err(code) = vector_of(adapter_of(context), &*attr) {
            set_errno(code);
            return -code;
        }
        let guid = crate::device::guid(address_of(&(*attr).grh.dgid));
        *mac = [guid[0] ^ 2, guid[1], guid[2], guid[5], guid[6], guid[7]];
        // No VLAN.
        if !vid.is_null() {
            *vid = 0xffff;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_is_read_from_either_header() {
        let mut v4 = [0; 40];
        v4[20..].copy_from_slice(&[0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, 127, 0, 0, 2, 127, 0, 0, 3]);
        let sum: u32 = v4[20..].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        let check = !((sum & 0xffff) + (sum >> 16)) as u16;
        v4[30..32].copy_from_slice(&check.to_be_bytes());
        assert_eq!(addresses(&v4), ([127, 0, 0, 2].into(), [127, 0, 0, 3].into(), 64));
        let mut v6 = [0; 40];
        v6[0] = 0x60;
        (v6[23], v6[39]) = (1, 2);
        let ip = |last| IpAddr::from([0u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        assert_eq!(addresses(&v6), (ip(1), ip(2), 255));
    }
}
