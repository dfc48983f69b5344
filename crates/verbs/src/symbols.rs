//! The exported symbols and their versions.
//!
//! Rust gives no versions to symbols. So each one is a jump to the function behind it, with the name and version that
//! the assembler's `.symver` gives it: `@@` for the version that programs are linked to today, `@` for one that only
//! old programs ask for. `ibverbs.map` orders the versions for the linker.

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {target}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {target}"
    };
}

macro_rules! symbols {
    ($($version:literal { $($name:literal $at:literal $($target:ident)::+,)* })*) => { $($(
        std::arch::global_asm!(
            concat!(".pushsection .text.", $name, ",\"ax\",%progbits"),
            concat!(".globl remora_", $name, "_", $version),
            concat!(".type remora_", $name, "_", $version, ",%function"),
            concat!("remora_", $name, "_", $version, ":"),
            jump!(),
            concat!(".size remora_", $name, "_", $version, ", . - remora_", $name, "_", $version),
            concat!(".symver remora_", $name, "_", $version, ", ", $name, $at, $version, ", remove"),
            ".popsection",
            target = sym crate::$($target)::+,
        );
    )*)* };
}

symbols! {
    "IBVERBS_1.0" {
        "ibv_copy_path_rec_from_kern" "@@" kern::ibv_copy_path_rec_from_kern,
        "ibv_copy_path_rec_to_kern" "@@" kern::ibv_copy_path_rec_to_kern,
        "ibv_copy_qp_attr_from_kern" "@@" kern::ibv_copy_qp_attr_from_kern,
        "ibv_create_comp_channel" "@@" events::ibv_create_comp_channel,
        "ibv_destroy_comp_channel" "@@" events::ibv_destroy_comp_channel,
        "ibv_get_sysfs_path" "@@" port::ibv_get_sysfs_path,
        "ibv_rate_to_mult" "@@" strings::ibv_rate_to_mult,
        "ibv_read_sysfs_file" "@@" port::ibv_read_sysfs_file,
        "mult_to_ibv_rate" "@@" strings::mult_to_ibv_rate,
        "ibv_ack_async_event" "@" refused::nothing,
        "ibv_ack_cq_events" "@" refused::nothing,
        "ibv_alloc_pd" "@" refused::old_object,
        "ibv_attach_mcast" "@" refused::old_number,
        "ibv_close_device" "@" refused::old_number,
        "ibv_create_ah" "@" refused::old_object,
        "ibv_create_cq" "@" refused::old_object,
        "ibv_create_qp" "@" refused::old_object,
        "ibv_create_srq" "@" refused::old_object,
        "ibv_dealloc_pd" "@" refused::old_number,
        "ibv_dereg_mr" "@" refused::old_number,
        "ibv_destroy_ah" "@" refused::old_number,
        "ibv_destroy_cq" "@" refused::old_number,
        "ibv_destroy_qp" "@" refused::old_number,
        "ibv_destroy_srq" "@" refused::old_number,
        "ibv_detach_mcast" "@" refused::old_number,
        "ibv_free_device_list" "@" refused::nothing,
        "ibv_get_async_event" "@" refused::old_number,
        "ibv_get_cq_event" "@" refused::old_number,
        "ibv_get_device_guid" "@" refused::old_object,
        "ibv_get_device_list" "@" refused::old_object,
        "ibv_get_device_name" "@" refused::old_object,
        "ibv_modify_qp" "@" refused::old_number,
        "ibv_modify_srq" "@" refused::old_number,
        "ibv_open_device" "@" refused::old_object,
        "ibv_query_device" "@" refused::old_number,
        "ibv_query_gid" "@" refused::old_number,
        "ibv_query_pkey" "@" refused::old_number,
        "ibv_query_port" "@" refused::old_number,
        "ibv_query_qp" "@" refused::old_number,
        "ibv_query_srq" "@" refused::old_number,
        "ibv_reg_mr" "@" refused::old_object,
        "ibv_resize_cq" "@" refused::old_number,
    }
    "IBVERBS_1.1" {
        "ibv_ack_async_event" "@@" events::ibv_ack_async_event,
        "ibv_ack_cq_events" "@@" events::ibv_ack_cq_events,
        "ibv_alloc_pd" "@@" context::ibv_alloc_pd,
        "ibv_attach_mcast" "@@" qp::ibv_attach_mcast,
        "ibv_close_device" "@@" context::ibv_close_device,
        "ibv_copy_ah_attr_from_kern" "@@" kern::ibv_copy_ah_attr_from_kern,
        "ibv_create_ah" "@@" ah::ibv_create_ah,
        "ibv_create_ah_from_wc" "@@" ah::ibv_create_ah_from_wc,
        "ibv_create_cq" "@@" cq::ibv_create_cq,
        "ibv_create_qp" "@@" qp::ibv_create_qp,
        "ibv_create_srq" "@@" srq::ibv_create_srq,
        "ibv_dealloc_pd" "@@" context::ibv_dealloc_pd,
        "ibv_dereg_mr" "@@" memory::ibv_dereg_mr,
        "ibv_destroy_ah" "@@" ah::ibv_destroy_ah,
        "ibv_destroy_cq" "@@" cq::ibv_destroy_cq,
        "ibv_destroy_qp" "@@" qp::ibv_destroy_qp,
        "ibv_destroy_srq" "@@" srq::ibv_destroy_srq,
        "ibv_detach_mcast" "@@" qp::ibv_detach_mcast,
        "ibv_dofork_range" "@@" refused::success,
        "ibv_dontfork_range" "@@" refused::success,
        "ibv_event_type_str" "@@" strings::ibv_event_type_str,
        "ibv_fork_init" "@@" refused::success,
        "ibv_free_device_list" "@@" device::ibv_free_device_list,
        "ibv_get_async_event" "@@" events::ibv_get_async_event,
        "ibv_get_cq_event" "@@" events::ibv_get_cq_event,
        "ibv_get_device_guid" "@@" device::ibv_get_device_guid,
        "ibv_get_device_list" "@@" device::ibv_get_device_list,
        "ibv_get_device_name" "@@" device::ibv_get_device_name,
        "ibv_init_ah_from_wc" "@@" ah::ibv_init_ah_from_wc,
        "ibv_modify_qp" "@@" qp::ibv_modify_qp,
        "ibv_modify_srq" "@@" srq::ibv_modify_srq,
        "ibv_node_type_str" "@@" strings::ibv_node_type_str,
        "ibv_open_device" "@@" context::ibv_open_device,
        "ibv_port_state_str" "@@" strings::ibv_port_state_str,
        "ibv_query_device" "@@" device::ibv_query_device,
        "ibv_query_gid" "@@" port::ibv_query_gid,
        "ibv_query_pkey" "@@" port::ibv_query_pkey,
        "ibv_query_port" "@@" port::ibv_query_port,
        "ibv_query_qp" "@@" qp::ibv_query_qp,
        "ibv_query_srq" "@@" srq::ibv_query_srq,
        "ibv_rate_to_mbps" "@@" strings::ibv_rate_to_mbps,
        "ibv_reg_mr" "@@" memory::ibv_reg_mr,
        "ibv_rereg_mr" "@@" memory::ibv_rereg_mr,
        "ibv_resize_cq" "@@" cq::ibv_resize_cq,
        "ibv_resolve_eth_l2_from_gid" "@@" ah::ibv_resolve_eth_l2_from_gid,
        "ibv_wc_status_str" "@@" strings::ibv_wc_status_str,
        "mbps_to_ibv_rate" "@@" strings::mbps_to_ibv_rate,
        "ibv_register_driver" "@" refused::nothing,
    }
    "IBVERBS_1.5" {
        "ibv_get_pkey_index" "@@" port::ibv_get_pkey_index,
    }
    "IBVERBS_1.6" {
        "ibv_qp_to_qp_ex" "@@" qp::ibv_qp_to_qp_ex,
    }
    "IBVERBS_1.7" {
        "ibv_reg_mr_iova" "@@" memory::ibv_reg_mr_iova,
    }
    "IBVERBS_1.8" {
        "ibv_reg_mr_iova2" "@@" memory::ibv_reg_mr_iova2,
    }
    "IBVERBS_1.9" {
        "ibv_get_device_index" "@@" device::ibv_get_device_index,
    }
    "IBVERBS_1.10" {
        "ibv_import_device" "@@" context::ibv_import_device,
        "ibv_import_mr" "@@" refused::object,
        "ibv_import_pd" "@@" refused::object,
        "ibv_query_ece" "@@" qp::ibv_query_ece,
        "ibv_set_ece" "@@" qp::ibv_set_ece,
        "ibv_unimport_mr" "@@" refused::nothing,
        "ibv_unimport_pd" "@@" refused::nothing,
    }
    "IBVERBS_1.11" {
        "_ibv_query_gid_ex" "@@" port::_ibv_query_gid_ex,
        "_ibv_query_gid_table" "@@" port::_ibv_query_gid_table,
    }
    "IBVERBS_1.12" {
        "ibv_reg_dmabuf_mr" "@@" memory::ibv_reg_dmabuf_mr,
    }
    "IBVERBS_1.13" {
        "ibv_import_dm" "@@" refused::object,
        "ibv_is_fork_initialized" "@@" refused::fork_status,
        "ibv_unimport_dm" "@@" refused::nothing,
    }
    "IBVERBS_1.14" {
        "ibv_query_qp_data_in_order" "@@" qp::ibv_query_qp_data_in_order,
    }
    "IBVERBS_1.15" {
        "ibv_alloc_dmah" "@@" refused::object,
        "ibv_dealloc_dmah" "@@" refused::command,
        "ibv_reg_mr_ex" "@@" buffers::ibv_reg_mr_ex,
    }
    "IBVERBS_1.16" {
        "ibv_dm_export_dmabuf_fd" "@@" refused::descriptor,
        "ibv_query_port_speed" "@@" refused::command,
    }
    "IBVERBS_1.17" {
        "ibv_alloc_buf" "@@" buffers::ibv_alloc_buf,
        "ibv_free_buf" "@@" buffers::ibv_free_buf,
        "ibv_reg_buf_mr" "@@" buffers::ibv_reg_buf_mr,
    }
    "IBVERBS_1.18" {
        "_ibv_query_comp_cntr_caps" "@@" refused::command,
        "ibv_create_comp_cntr" "@@" refused::object,
        "ibv_destroy_comp_cntr" "@@" refused::command,
        "ibv_export_buf_dmabuf_fd" "@@" refused::descriptor,
        "ibv_inc_comp_cntr" "@@" refused::command,
        "ibv_inc_err_comp_cntr" "@@" refused::command,
        "ibv_qp_attach_comp_cntr" "@@" refused::command,
        "ibv_read_comp_cntr" "@@" refused::command,
        "ibv_read_err_comp_cntr" "@@" refused::command,
        "ibv_set_comp_cntr" "@@" refused::command,
        "ibv_set_err_comp_cntr" "@@" refused::command,
    }
}

/// What rdma-core's own drivers expect, under the name of each version of them: a program that is linked with one loads it,
/// and the loader wants all that it names.
macro_rules! private {
    ($($version:literal $at:literal $register:literal,)*) => {
        $(
            symbols! {
                $version {
                    "__ioctl_final_num_attrs" $at refused::ioctl_attrs,
                    "__verbs_log" $at refused::nothing,
                    "_verbs_init_and_alloc_context" $at refused::object,
                    "execute_ioctl" $at refused::command,
                    "ibv_cmd_advise_mr" $at refused::command,
                    "ibv_cmd_alloc_dm" $at refused::command,
                    "ibv_cmd_alloc_dmah" $at refused::command,
                    "ibv_cmd_alloc_mw" $at refused::command,
                    "ibv_cmd_alloc_pd" $at refused::command,
                    "ibv_cmd_attach_mcast" $at refused::command,
                    "ibv_cmd_close_xrcd" $at refused::command,
                    "ibv_cmd_create_ah" $at refused::command,
                    "ibv_cmd_create_comp_cntr" $at refused::command,
                    "ibv_cmd_create_counters" $at refused::command,
                    "ibv_cmd_create_cq" $at refused::command,
                    "ibv_cmd_create_cq_ex" $at refused::command,
                    "ibv_cmd_create_cq_ex2" $at refused::command,
                    "ibv_cmd_create_flow" $at refused::command,
                    "ibv_cmd_create_flow_action_esp" $at refused::command,
                    "ibv_cmd_create_qp" $at refused::command,
                    "ibv_cmd_create_qp_ex" $at refused::command,
                    "ibv_cmd_create_qp_ex2" $at refused::command,
                    "ibv_cmd_create_rwq_ind_table" $at refused::command,
                    "ibv_cmd_create_srq" $at refused::command,
                    "ibv_cmd_create_srq_ex" $at refused::command,
                    "ibv_cmd_create_wq" $at refused::command,
                    "ibv_cmd_dealloc_mw" $at refused::command,
                    "ibv_cmd_dealloc_pd" $at refused::command,
                    "ibv_cmd_dereg_mr" $at refused::command,
                    "ibv_cmd_destroy_ah" $at refused::command,
                    "ibv_cmd_destroy_comp_cntr" $at refused::command,
                    "ibv_cmd_destroy_counters" $at refused::command,
                    "ibv_cmd_destroy_cq" $at refused::command,
                    "ibv_cmd_destroy_flow" $at refused::command,
                    "ibv_cmd_destroy_flow_action" $at refused::command,
                    "ibv_cmd_destroy_qp" $at refused::command,
                    "ibv_cmd_destroy_rwq_ind_table" $at refused::command,
                    "ibv_cmd_destroy_srq" $at refused::command,
                    "ibv_cmd_destroy_wq" $at refused::command,
                    "ibv_cmd_detach_mcast" $at refused::command,
                    "ibv_cmd_export_dmabuf_fd" $at refused::command,
                    "ibv_cmd_free_dm" $at refused::command,
                    "ibv_cmd_free_dmah" $at refused::command,
                    "ibv_cmd_get_context" $at refused::command,
                    "ibv_cmd_inc_comp_cntr" $at refused::command,
                    "ibv_cmd_inc_err_comp_cntr" $at refused::command,
                    "ibv_cmd_modify_cq" $at refused::command,
                    "ibv_cmd_modify_flow_action_esp" $at refused::command,
                    "ibv_cmd_modify_qp" $at refused::command,
                    "ibv_cmd_modify_qp_ex" $at refused::command,
                    "ibv_cmd_modify_srq" $at refused::command,
                    "ibv_cmd_modify_wq" $at refused::command,
                    "ibv_cmd_open_qp" $at refused::command,
                    "ibv_cmd_open_xrcd" $at refused::command,
                    "ibv_cmd_poll_cq" $at refused::command,
                    "ibv_cmd_post_recv" $at refused::command,
                    "ibv_cmd_post_send" $at refused::command,
                    "ibv_cmd_post_srq_recv" $at refused::command,
                    "ibv_cmd_qp_attach_comp_cntr" $at refused::command,
                    "ibv_cmd_query_comp_cntr_caps" $at refused::command,
                    "ibv_cmd_query_context" $at refused::command,
                    "ibv_cmd_query_device_any" $at refused::command,
                    "ibv_cmd_query_mr" $at refused::command,
                    "ibv_cmd_query_port" $at refused::command,
                    "ibv_cmd_query_port_speed" $at refused::command,
                    "ibv_cmd_query_qp" $at refused::command,
                    "ibv_cmd_query_srq" $at refused::command,
                    "ibv_cmd_read_comp_cntr" $at refused::command,
                    "ibv_cmd_read_counters" $at refused::command,
                    "ibv_cmd_read_err_comp_cntr" $at refused::command,
                    "ibv_cmd_reg_dm_mr" $at refused::command,
                    "ibv_cmd_reg_dmabuf_mr" $at refused::command,
                    "ibv_cmd_reg_mr" $at refused::command,
                    "ibv_cmd_reg_mr_ex" $at refused::command,
                    "ibv_cmd_req_notify_cq" $at refused::command,
                    "ibv_cmd_rereg_mr" $at refused::command,
                    "ibv_cmd_resize_cq" $at refused::command,
                    "ibv_cmd_set_comp_cntr" $at refused::command,
                    "ibv_cmd_set_err_comp_cntr" $at refused::command,
                    "ibv_dmabuf_heap_alloc" $at refused::command,
                    "ibv_dmabuf_heap_cc_shared_init" $at refused::command,
                    "ibv_dmabuf_heap_destroy" $at refused::command,
                    "ibv_dmabuf_heap_free" $at refused::command,
                    "ibv_query_gid_type" $at port::ibv_query_gid_type,
                    "ibv_read_ibdev_sysfs_file" $at port::ibv_read_ibdev_sysfs_file,
                    "ibv_wr_opcode_str" $at strings::ibv_wr_opcode_str,
                    "verbs_init_cq" $at refused::nothing,
                    "verbs_open_device" $at refused::object,
                    "verbs_set_ops" $at refused::nothing,
                    "verbs_uninit_context" $at refused::nothing,
                    $register "@@" refused::nothing,
                }
            }
            // A variable of drivers, false: whether a device may vanish under its objects.
            std::arch::global_asm!(
                concat!(".pushsection .bss.verbs_allow_disassociate_destroy_", $version, ",\"aw\",%nobits"),
                concat!(".globl remora_verbs_allow_disassociate_destroy_", $version),
                concat!(".type remora_verbs_allow_disassociate_destroy_", $version, ",%object"),
                concat!("remora_verbs_allow_disassociate_destroy_", $version, ":"),
                ".zero 1",
                concat!(".size remora_verbs_allow_disassociate_destroy_", $version, ", 1"),
                concat!(
                    ".symver remora_verbs_allow_disassociate_destroy_", $version,
                    ", verbs_allow_disassociate_destroy", $at, $version, ", remove"
                ),
                ".popsection",
            );
        )*
    };
}

// Since its release 57 each has a number of its own.
private! {
    "IBVERBS_PRIVATE_34" "@@" "verbs_register_driver_34",
    "IBVERBS_PRIVATE_57" "@" "verbs_register_driver_57",
    "IBVERBS_PRIVATE_58" "@" "verbs_register_driver_58",
    "IBVERBS_PRIVATE_59" "@" "verbs_register_driver_59",
    "IBVERBS_PRIVATE_60" "@" "verbs_register_driver_60",
    "IBVERBS_PRIVATE_61" "@" "verbs_register_driver_61",
    "IBVERBS_PRIVATE_62" "@" "verbs_register_driver_62",
    "IBVERBS_PRIVATE_63" "@" "verbs_register_driver_63",
    "IBVERBS_PRIVATE_64" "@" "verbs_register_driver_64",
    "IBVERBS_PRIVATE_65" "@" "verbs_register_driver_65",
}
