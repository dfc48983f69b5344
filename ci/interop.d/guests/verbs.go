// Two queue pairs of a Go program that calls libibverbs through cgo: a WRITE from one to the other, checked.
package main

/*
#cgo LDFLAGS: -libverbs
#include <infiniband/verbs.h>
#include <stdlib.h>

static int up(struct ibv_qp *qp, struct ibv_qp *peer, union ibv_gid gid) {
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return 1;
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 64 } } };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return 2;
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			IBV_QP_MAX_QP_RD_ATOMIC) ? 3 : 0;
}

static int write_to(struct ibv_qp *qp, struct ibv_mr *mr, int half) {
	struct ibv_sge sge = { (uintptr_t)mr->addr, half, mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1 };
	struct ibv_send_wr *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)mr->addr + half;
	wr.wr.rdma.rkey = mr->rkey;
	return ibv_post_send(qp, &wr, &bad);
}
*/
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

const half = 100000

func must(good bool, what string) {
	if !good {
		fmt.Println("no", what)
		os.Exit(1)
	}
}

func main() {
	list := C.ibv_get_device_list(nil)
	must(list != nil && *list != nil, "device")
	context := C.ibv_open_device(*list)
	must(context != nil, "context")
	domain := C.ibv_alloc_pd(context)
	queue := C.ibv_create_cq(context, 16, nil, nil, 0)
	memory := C.calloc(1, 2*half)
	bytes := unsafe.Slice((*byte)(memory), 2*half)
	for i := range bytes[:half] {
		bytes[i] = byte(i)
	}
	region := C.ibv_reg_mr(domain, memory, 2*half, C.IBV_ACCESS_LOCAL_WRITE|C.IBV_ACCESS_REMOTE_WRITE)
	must(region != nil, "region")
	var gid C.union_ibv_gid
	must(C.ibv_query_gid(context, 1, 1, &gid) == 0, "GID")
	init := C.struct_ibv_qp_init_attr{send_cq: queue, recv_cq: queue, qp_type: C.IBV_QPT_RC}
	init.cap = C.struct_ibv_qp_cap{max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1}
	one, other := C.ibv_create_qp(domain, &init), C.ibv_create_qp(domain, &init)
	must(one != nil && other != nil, "queue pairs")
	must(C.up(one, other, gid) == 0 && C.up(other, one, gid) == 0, "connection")
	must(C.write_to(one, region, half) == 0, "post")
	var done C.struct_ibv_wc
	for C.ibv_poll_cq(queue, 1, &done) == 0 {
	}
	must(done.status == C.IBV_WC_SUCCESS, "success")
	must(string(bytes[:half]) == string(bytes[half:]), "data")
	fmt.Println("checked")
}
