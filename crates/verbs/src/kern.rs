//! Attributes as the kernel's interface has them, turned into the library's: librdmacm gets its answers in that form.

use std::ffi::c_int;

use crate::abi::*;

/// `struct ib_uverbs_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernAhAttr {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub grh_reserved: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
    pub reserved: u8,
}

/// `struct ib_uverbs_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernQpAttr {
    pub qp_attr_mask: u32,
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub ah_attr: KernAhAttr,
    pub alt_ah_attr: KernAhAttr,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub reserved: [u8; 5],
}

/// `struct ib_user_path_rec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernPathRec {
    pub dgid: [u8; 16],
    pub sgid: [u8; 16],
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: u32,
    pub flow_label: u32,
    pub reversible: u32,
    pub mtu: u32,
    pub pkey: u16,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub numb_path: u8,
    pub sl: u8,
    pub mtu_selector: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}

/// `struct ibv_sa_path_rec` of the library.
#[repr(C)]
pub struct ibv_sa_path_rec {
    dgid: ibv_gid,
    sgid: ibv_gid,
    dlid: u16,
    slid: u16,
    raw_traffic: c_int,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: c_int,
    numb_path: u8,
    pkey: u16,
    sl: u8,
    mtu_selector: u8,
    mtu: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

fn gid(raw: [u8; 16]) -> ibv_gid {
    ibv_gid { raw, align: [] }
}

fn ah_attr(from: &KernAhAttr) -> ibv_ah_attr {
    let grh = ibv_global_route {
        dgid: gid(from.dgid),
        flow_label: from.flow_label,
        sgid_index: from.sgid_index,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
    };
    ibv_ah_attr {
        grh,
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// `ibv_copy_ah_attr_from_kern`.
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const KernAhAttr) {
    // SAFETY: the caller passes attributes of both kinds, as in the functions below.
    unsafe { *to = ah_attr(&*from) };
}

/// `ibv_copy_qp_attr_from_kern`.
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *const KernQpAttr) {
    // SAFETY: as above.
    unsafe {
        let from = &*from;
        *to = ibv_qp_attr {
            qp_state: from.qp_state as c_int,
            cur_qp_state: from.cur_qp_state as c_int,
            path_mtu: from.path_mtu as c_int,
            path_mig_state: from.path_mig_state as c_int,
            qkey: from.qkey,
            rq_psn: from.rq_psn,
            sq_psn: from.sq_psn,
            dest_qp_num: from.dest_qp_num,
            qp_access_flags: from.qp_access_flags,
            cap: ibv_qp_cap {
                max_send_wr: from.max_send_wr,
                max_recv_wr: from.max_recv_wr,
                max_send_sge: from.max_send_sge,
                max_recv_sge: from.max_recv_sge,
                max_inline_data: from.max_inline_data,
            },
            ah_attr: ah_attr(&from.ah_attr),
            alt_ah_attr: ah_attr(&from.alt_ah_attr),
            pkey_index: from.pkey_index,
            alt_pkey_index: from.alt_pkey_index,
            en_sqd_async_notify: from.en_sqd_async_notify,
            sq_draining: from.sq_draining,
            max_rd_atomic: from.max_rd_atomic,
            max_dest_rd_atomic: from.max_dest_rd_atomic,
            min_rnr_timer: from.min_rnr_timer,
            port_num: from.port_num,
            timeout: from.timeout,
            retry_cnt: from.retry_cnt,
            rnr_retry: from.rnr_retry,
            alt_port_num: from.alt_port_num,
            alt_timeout: from.alt_timeout,
            rate_limit: 0,
        };
    }
}

/// `ibv_copy_path_rec_from_kern`.
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(to: *mut ibv_sa_path_rec, from: *const KernPathRec) {
    // SAFETY: as above.
    unsafe {
        let from = &*from;
        *to = ibv_sa_path_rec {
            dgid: gid(from.dgid),
            sgid: gid(from.sgid),
            dlid: from.dlid,
            slid: from.slid,
            raw_traffic: from.raw_traffic as c_int,
            flow_label: from.flow_label,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            reversible: from.reversible as c_int,
            numb_path: from.numb_path,
            pkey: from.pkey,
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            mtu: from.mtu as u8,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
    }
}

/// `ibv_copy_path_rec_to_kern`.
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut KernPathRec, from: *const ibv_sa_path_rec) {
    // SAFETY: as above.
    unsafe {
        let from = &*from;
        *to = KernPathRec {
            dgid: from.dgid.raw,
            sgid: from.sgid.raw,
            dlid: from.dlid,
            slid: from.slid,
            raw_traffic: from.raw_traffic as u32,
            flow_label: from.flow_label,
            reversible: from.reversible as u32,
            mtu: from.mtu.into(),
            pkey: from.pkey,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            numb_path: from.numb_path,
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
    }
}
