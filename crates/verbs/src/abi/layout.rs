//! Compares the layouts with what a C compiler makes of the header, where both are installed.

use std::mem::{offset_of, size_of};
use std::process::Command;

use super::*;
use crate::kern::{KernAhAttr, KernPathRec, KernQpAttr};

/// A C expression, and the number that it must have.
type Expected = (String, usize);

macro_rules! layouts {
    ($($rust:ty = $c:literal { $($field:ident $(. $sub:ident)* = $c_field:literal),* $(,)? })*) => {{
        let mut expected: Vec<Expected> = Vec::new();
        $(
            expected.push((format!("sizeof({})", $c), size_of::<$rust>()));
            $(expected.push((
                format!("offsetof({}, {})", $c, $c_field),
                offset_of!($rust, $field $(. $sub)*),
            ));)*
        )*
        expected
    }};
}

fn objects() -> Vec<Expected> {
    layouts! {
        ibv_gid = "union ibv_gid" {}
        ibv_gid_entry = "struct ibv_gid_entry" { gid_index = "gid_index", gid_type = "gid_type", ndev_ifindex = "ndev_ifindex" }
        ibv_pd = "struct ibv_pd" { handle = "handle" }
        ibv_td = "struct ibv_td" {}
        ibv_parent_domain_init_attr = "struct ibv_parent_domain_init_attr" {
            td = "td", comp_mask = "comp_mask", pd_context = "pd_context",
        }
        ibv_mr = "struct ibv_mr" { addr = "addr", length = "length", handle = "handle", lkey = "lkey", rkey = "rkey" }
        ibv_mw = "struct ibv_mw" { rkey = "rkey", handle = "handle", kind = "type" }
        ibv_mw_bind_info = "struct ibv_mw_bind_info" {
            addr = "addr", length = "length", mw_access_flags = "mw_access_flags",
        }
        ibv_mw_bind = "struct ibv_mw_bind" { send_flags = "send_flags", bind_info = "bind_info" }
        ibv_ah = "struct ibv_ah" { handle = "handle" }
        ibv_global_route = "struct ibv_global_route" {
            flow_label = "flow_label", sgid_index = "sgid_index", traffic_class = "traffic_class",
        }
        ibv_grh = "struct ibv_grh" { paylen = "paylen", sgid = "sgid", dgid = "dgid" }
        ibv_ah_attr = "struct ibv_ah_attr" { dlid = "dlid", sl = "sl", is_global = "is_global", port_num = "port_num" }
        ibv_comp_channel = "struct ibv_comp_channel" { fd = "fd", refcnt = "refcnt" }
        ibv_cq = "struct ibv_cq" {
            channel = "channel", cq_context = "cq_context", handle = "handle", cqe = "cqe", mutex = "mutex",
            cond = "cond", async_events_completed = "async_events_completed",
        }
        ibv_cq_init_attr_ex = "struct ibv_cq_init_attr_ex" {
            channel = "channel", comp_vector = "comp_vector", wc_flags = "wc_flags", comp_mask = "comp_mask",
            flags = "flags", parent_domain = "parent_domain",
        }
        ibv_cq_ex = "struct ibv_cq_ex" {
            comp_mask = "comp_mask", status = "status", wr_id = "wr_id", start_poll = "start_poll",
            read_opcode = "read_opcode", read_completion_ts = "read_completion_ts",
            read_completion_wallclock_ns = "read_completion_wallclock_ns",
        }
        ibv_modify_cq_attr = "struct ibv_modify_cq_attr" { cq_count = "moderate.cq_count" }
        ibv_srq_attr = "struct ibv_srq_attr" { srq_limit = "srq_limit" }
        ibv_srq_init_attr = "struct ibv_srq_init_attr" { attr = "attr" }
        ibv_srq_init_attr_ex = "struct ibv_srq_init_attr_ex" {
            attr = "attr", comp_mask = "comp_mask", srq_type = "srq_type", pd = "pd", cq = "cq",
            max_num_tags = "tm_cap",
        }
        ibv_srq = "struct ibv_srq" { pd = "pd", handle = "handle", mutex = "mutex", events_completed = "events_completed" }
        ibv_qp_cap = "struct ibv_qp_cap" { max_inline_data = "max_inline_data" }
        ibv_qp_init_attr = "struct ibv_qp_init_attr" {
            srq = "srq", cap = "cap", qp_type = "qp_type", sq_sig_all = "sq_sig_all",
        }
        ibv_qp_init_attr_ex = "struct ibv_qp_init_attr_ex" {
            sq_sig_all = "sq_sig_all", comp_mask = "comp_mask", pd = "pd", create_flags = "create_flags",
            max_tso_header = "max_tso_header", rx_hash_function = "rx_hash_conf", source_qpn = "source_qpn",
            send_ops_flags = "send_ops_flags",
        }
        ibv_qp_attr = "struct ibv_qp_attr" {
            qp_access_flags = "qp_access_flags", cap = "cap", ah_attr = "ah_attr", alt_ah_attr = "alt_ah_attr",
            pkey_index = "pkey_index", sq_draining = "sq_draining", timeout = "timeout", rate_limit = "rate_limit",
        }
        ibv_qp = "struct ibv_qp" {
            srq = "srq", handle = "handle", qp_num = "qp_num", state = "state", qp_type = "qp_type", mutex = "mutex",
            events_completed = "events_completed",
        }
        ibv_qp_ex = "struct ibv_qp_ex" {
            comp_mask = "comp_mask", wr_id = "wr_id", wr_flags = "wr_flags", wr_atomic_cmp_swp = "wr_atomic_cmp_swp",
            wr_send = "wr_send", wr_set_ud_addr = "wr_set_ud_addr", wr_start = "wr_start",
            wr_atomic_write = "wr_atomic_write",
        }
        ibv_ece = "struct ibv_ece" { options = "options" }
    }
}

fn work() -> Vec<Expected> {
    layouts! {
        ibv_sge = "struct ibv_sge" { length = "length", lkey = "lkey" }
        ibv_data_buf = "struct ibv_data_buf" { length = "length" }
        ibv_send_wr = "struct ibv_send_wr" {
            next = "next", sg_list = "sg_list", num_sge = "num_sge", opcode = "opcode", send_flags = "send_flags",
            imm_data = "imm_data", wr = "wr", remote_srqn = "qp_type.xrc.remote_srqn", bind_mw = "bind_mw",
            bind_mw.rkey = "bind_mw.rkey", bind_mw.bind_info = "bind_mw.bind_info",
        }
        wr_rdma = "((struct ibv_send_wr *)0)->wr.rdma" {}
        wr_atomic = "((struct ibv_send_wr *)0)->wr.atomic" {}
        wr_ud = "((struct ibv_send_wr *)0)->wr.ud" {}
        ibv_recv_wr = "struct ibv_recv_wr" { next = "next", sg_list = "sg_list", num_sge = "num_sge" }
        ibv_wc = "struct ibv_wc" {
            status = "status", opcode = "opcode", vendor_err = "vendor_err", imm_data = "imm_data", qp_num = "qp_num",
            wc_flags = "wc_flags", slid = "slid", dlid_path_bits = "dlid_path_bits",
        }
        ibv_async_event = "struct ibv_async_event" { event_type = "event_type" }
    }
}

fn device() -> Vec<Expected> {
    layouts! {
        ibv_device = "struct ibv_device" {
            node_type = "node_type", name = "name", dev_name = "dev_name", dev_path = "dev_path",
            ibdev_path = "ibdev_path",
        }
        ibv_device_attr = "struct ibv_device_attr" {
            node_guid = "node_guid", vendor_id = "vendor_id", max_sge = "max_sge", atomic_cap = "atomic_cap",
            max_ah = "max_ah", max_srq_sge = "max_srq_sge", max_pkeys = "max_pkeys", phys_port_cnt = "phys_port_cnt",
        }
        ibv_device_attr_ex = "struct ibv_device_attr_ex" {
            comp_mask = "comp_mask", odp_general_caps = "odp_caps", completion_timestamp_mask = "completion_timestamp_mask",
            device_cap_flags_ex = "device_cap_flags_ex", tso_caps = "tso_caps", rss_caps = "rss_caps",
            rx_hash_fields_mask = "rss_caps.rx_hash_fields_mask", max_wq_type_rq = "max_wq_type_rq",
            packet_pacing_caps = "packet_pacing_caps", raw_packet_caps = "raw_packet_caps", tm_caps = "tm_caps",
            max_cq_count = "cq_mod_caps", max_dm_size = "max_dm_size", pci_atomic_caps = "pci_atomic_caps",
            phys_port_cnt_ex = "phys_port_cnt_ex",
        }
        ibv_port_attr = "struct ibv_port_attr" {
            gid_tbl_len = "gid_tbl_len", max_msg_sz = "max_msg_sz", pkey_tbl_len = "pkey_tbl_len", lmc = "lmc",
            active_width = "active_width", link_layer = "link_layer", flags = "flags",
            port_cap_flags2 = "port_cap_flags2",
        }
        ibv_values_ex = "struct ibv_values_ex" { raw_clock = "raw_clock" }
        ibv_context_ops = "struct ibv_context_ops" {
            alloc_mw = "alloc_mw", poll_cq = "poll_cq", post_srq_recv = "post_srq_recv", post_send = "post_send",
            post_recv = "post_recv",
        }
        ibv_context = "struct ibv_context" {
            ops = "ops", cmd_fd = "cmd_fd", async_fd = "async_fd", num_comp_vectors = "num_comp_vectors",
            mutex = "mutex", abi_compat = "abi_compat",
        }
        verbs_context = "struct verbs_context" {
            query_port = "query_port", alloc_parent_domain = "alloc_parent_domain", dealloc_td = "dealloc_td",
            alloc_td = "alloc_td", modify_cq = "modify_cq", query_rt_values = "query_rt_values",
            create_cq_ex = "create_cq_ex", private = "priv", query_device_ex = "query_device_ex",
            create_qp_ex = "create_qp_ex", get_srq_num = "get_srq_num", create_srq_ex = "create_srq_ex",
            close_xrcd = "close_xrcd", sz = "sz", context = "context",
        }
        KernAhAttr = "struct ib_uverbs_ah_attr" { dlid = "dlid", port_num = "port_num" }
        KernQpAttr = "struct ib_uverbs_qp_attr" {
            ah_attr = "ah_attr", max_send_wr = "max_send_wr", pkey_index = "pkey_index", timeout = "timeout",
        }
        KernPathRec = "struct ib_user_path_rec" { dlid = "dlid", pkey = "pkey", preference = "preference" }
    }
}

#[test]
fn layouts_are_those_of_the_header() {
    let dir = std::env::temp_dir().join(format!("remora-layout-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let expected: Vec<Expected> = [objects(), work(), device()].concat();
    let mut source = String::from(
        "#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <rdma/ib_user_verbs.h>\n\
         #include <rdma/ib_user_sa.h>\nint main(void) {\n",
    );
    for (expression, _) in &expected {
        source += &format!("printf(\"%zu\\n\", (size_t){expression});\n");
    }
    source += "return 0; }\n";
    let (c, exe) = (dir.join("layout.c"), dir.join("layout"));
    std::fs::write(&c, source).unwrap();
    let compiled = Command::new("cc").arg(&c).arg("-o").arg(&exe).output();
    if !compiled.is_ok_and(|out| out.status.success()) {
        std::fs::remove_dir_all(&dir).unwrap();
        return remora_testing::skip("the verbs library's headers do not compile", "Install gcc and libibverbs-dev");
    }
    let output = Command::new(&exe).output().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let found: Vec<usize> = String::from_utf8(output.stdout).unwrap().lines().map(|n| n.parse().unwrap()).collect();
    assert_eq!(found.len(), expected.len());
    for ((expression, ours), theirs) in expected.iter().zip(found) {
        assert_eq!(*ours, theirs, "{expression}");
    }
}
