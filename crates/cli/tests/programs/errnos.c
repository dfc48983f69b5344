/* What each call of the verbs interface says to arguments that a driver refuses. Prints what differs; exits with 1 then. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <link.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

static void expect(const char *what, long found, long expected)
{
    if (found != expected) {
        printf("%s: %ld, not %ld\n", what, found, expected);
        failures++;
    }
}

/* A call that returns an object or null: its errno, 0 if there is one. */
#define OBJECT(call) ((call) ? 0 : errno)
#define CHECK(call, expected) expect(#call, (errno = 0, (call)), expected)

static struct ibv_context *context;
static struct ibv_pd *pd;

static struct ibv_qp *make_qp(struct ibv_cq *cq, enum ibv_qp_type type, int max_wr)
{
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = type,
                                     .cap = { max_wr, max_wr, 2, 2, 64 } };
    return ibv_create_qp(pd, &init);
}

static void memory(void)
{
    static char buffer[4096];
    char *constant = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *mr;

    CHECK(OBJECT(ibv_reg_mr(pd, NULL, 4096, 0)), EFAULT);
    CHECK(OBJECT(ibv_reg_mr(pd, (void *)8, 8, 0)), EFAULT);
    CHECK(OBJECT(ibv_reg_mr(pd, buffer, 0, 0)), EINVAL);
    CHECK(OBJECT(ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_REMOTE_WRITE)), EINVAL);
    CHECK(OBJECT(ibv_reg_mr(pd, constant, 4096, IBV_ACCESS_LOCAL_WRITE)), EFAULT);
    CHECK(OBJECT(ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_ON_DEMAND)), EOPNOTSUPP);
    CHECK(OBJECT(ibv_reg_mr(pd, buffer, 4096, 1 << 10)), EINVAL);
    CHECK(OBJECT(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, 0)), EOPNOTSUPP);
    CHECK(OBJECT(ibv_alloc_null_mr(pd)), EOPNOTSUPP);
    CHECK(OBJECT(ibv_alloc_mw(pd, 7)), EINVAL);
    mr = ibv_reg_mr(pd, constant, 4096, IBV_ACCESS_REMOTE_READ);
    expect("a region over constant memory", !mr, 0);
    CHECK(ibv_dealloc_pd(pd), EBUSY);
    expect("errno of a domain in use", errno, EBUSY);
    CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
          IBV_REREG_MR_ERR_INPUT);
    expect("errno of a right that memory does not give", errno, EFAULT);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, buffer, 4096, 0), 0);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE), 0);
    CHECK(ibv_dereg_mr(mr), 0);
}

static void queues(struct ibv_cq *cq)
{
    struct ibv_srq_init_attr none = { .attr = { 0, 1, 0 } }, some = { .attr = { 8, 1, 0 } };
    struct ibv_srq_attr over = { .max_wr = 2, .srq_limit = 100 }, less = { .max_wr = 4, .srq_limit = 2 }, found;
    struct ibv_srq_init_attr_ex xrc = { .comp_mask = IBV_SRQ_INIT_ATTR_TYPE, .srq_type = IBV_SRQT_XRC };
    struct ibv_srq *srq;

    CHECK(OBJECT(ibv_create_cq(context, 0, NULL, NULL, 0)), EINVAL);
    CHECK(OBJECT(ibv_create_cq(context, -1, NULL, NULL, 0)), EINVAL);
    CHECK(OBJECT(ibv_create_cq(context, 1 << 30, NULL, NULL, 0)), EINVAL);
    CHECK(OBJECT(ibv_create_cq(context, 8, NULL, NULL, 99)), EINVAL);
    CHECK(ibv_resize_cq(cq, 0), EINVAL);
    CHECK(ibv_resize_cq(cq, 100), 0);
    CHECK(OBJECT(ibv_create_srq(pd, &none)), EINVAL);
    CHECK(OBJECT(ibv_create_srq_ex(context, &xrc)), EOPNOTSUPP);
    srq = ibv_create_srq(pd, &some);
    CHECK(ibv_modify_srq(srq, &over, IBV_SRQ_LIMIT), EINVAL);
    CHECK(ibv_modify_srq(srq, &over, 1 << 7), EINVAL);
    over.max_wr = 16;
    CHECK(ibv_modify_srq(srq, &over, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), EINVAL);
    CHECK(ibv_query_srq(srq, &found), 0);
    expect("what is left as it was", found.max_wr, 8);
    over.srq_limit = 8;
    CHECK(ibv_modify_srq(srq, &over, IBV_SRQ_LIMIT), 0);
    CHECK(ibv_modify_srq(srq, &less, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), 0);
    CHECK(ibv_destroy_srq(srq), 0);
    CHECK(OBJECT(make_qp(cq, IBV_QPT_RAW_PACKET, 8)), EOPNOTSUPP);
    CHECK(OBJECT(make_qp(cq, IBV_QPT_XRC_SEND, 8)), EOPNOTSUPP);
    CHECK(OBJECT(make_qp(cq, 77, 8)), EINVAL);
    CHECK(OBJECT(make_qp(cq, IBV_QPT_RC, 1 << 24)), EINVAL);
}

static void transitions(struct ibv_cq *cq)
{
    struct ibv_qp *qp = make_qp(cq, IBV_QPT_RC, 8);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad = NULL;
    struct ibv_recv_wr recv = { .num_sge = 0 }, *bad_recv = NULL;
    struct ibv_sge many[64] = { { 0 } };

    CHECK(ibv_destroy_cq(cq), EBUSY);
    CHECK(ibv_post_send(qp, &wr, &bad), EINVAL);
    expect("the request that failed", bad != &wr, 0);
    CHECK(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
    CHECK(ibv_modify_qp(qp, &attr, init | IBV_QP_SQ_PSN), EINVAL);
    CHECK(ibv_modify_qp(qp, &attr, init | 1 << 30), EINVAL);
    attr.port_num = 2;
    CHECK(ibv_modify_qp(qp, &attr, init), EINVAL);
    attr.port_num = 1;
    attr.pkey_index = 9;
    CHECK(ibv_modify_qp(qp, &attr, init), EINVAL);
    attr.pkey_index = 0;
    CHECK(ibv_modify_qp(qp, &attr, init), 0);
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
    CHECK(ibv_post_recv(qp, &recv, &bad_recv), 0);
    recv.num_sge = 64;
    recv.sg_list = many;
    CHECK(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
    attr.qp_state = IBV_QPS_ERR;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    wr.num_sge = -1;
    CHECK(ibv_post_send(qp, &wr, &bad), EINVAL);
    wr.num_sge = 0;
    wr.opcode = 99;
    CHECK(ibv_post_send(qp, &wr, &bad), EINVAL);
    CHECK(ibv_destroy_qp(qp), 0);
}

/* Brings a queue pair up to RTR or RTS, with a peer of this device. */
static void bring_up(struct ibv_qp *qp, uint32_t peer, enum ibv_qp_state to)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
                                 .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1 } } };
    ibv_query_gid(context, 1, 1, &attr.ah_attr.grh.dgid);
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 1, .retry_cnt = 0 };
    if (to == IBV_QPS_RTS)
        CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                           IBV_QP_MAX_QP_RD_ATOMIC), 0);
}

/* A queue pair that breaks says so to who asks for its state: what a program sees in `state` is what it has set or asked for. */
static void broken(struct ibv_cq *cq)
{
    struct ibv_qp *qp = make_qp(cq, IBV_QPT_RC, 8);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
    struct ibv_wc wc;

    bring_up(qp, 0x777777, IBV_QPS_RTS);
    CHECK(ibv_post_send(qp, &wr, &bad), 0);
    while (ibv_poll_cq(cq, 1, &wc) == 0 || wc.qp_num != qp->qp_num)
        ;
    expect("a message to nobody", wc.status, IBV_WC_RETRY_EXC_ERR);
    CHECK(ibv_query_qp(qp, &attr, IBV_QP_AV | IBV_QP_DEST_QPN, &init), 0);
    expect("the state of who has not asked for it", qp->state, IBV_QPS_RTS);
    CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
    expect("the state that is told", attr.qp_state, IBV_QPS_ERR);
    expect("the state of who has asked for it", qp->state, IBV_QPS_ERR);
    CHECK(ibv_destroy_qp(qp), 0);
}

/* That the peer is there is news for who waits for it in RTR, and for nobody in RTS. */
static void established(struct ibv_cq *cq)
{
    fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
    for (enum ibv_qp_state state = IBV_QPS_RTR; state <= IBV_QPS_RTS; state++) {
        struct ibv_qp *here = make_qp(cq, IBV_QPT_RC, 8), *there = make_qp(cq, IBV_QPT_RC, 8);
        struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED }, *bad;
        struct ibv_async_event event;
        struct ibv_wc wc;

        bring_up(there, here->qp_num, state);
        bring_up(here, there->qp_num, IBV_QPS_RTS);
        CHECK(ibv_post_send(here, &wr, &bad), 0);
        while (ibv_poll_cq(cq, 1, &wc) == 0)
            ;
        expect("a WRITE of nothing", wc.status, IBV_WC_SUCCESS);
        expect("whether there is news", ibv_get_async_event(context, &event), state == IBV_QPS_RTR ? 0 : -1);
        if (state == IBV_QPS_RTR) {
            expect("the news", event.event_type, IBV_EVENT_COMM_EST);
            expect("of whom", event.element.qp == there, 1);
            ibv_ack_async_event(&event);
        }
        CHECK(ibv_destroy_qp(here), 0);
        CHECK(ibv_destroy_qp(there), 0);
    }
}

/* Who arms a queue that has something is told at once, and who has taken all is told of nothing. */
static void armed(void)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, channel, 0), *told;
    struct ibv_qp *qp = make_qp(cq, IBV_QPT_RC, 8);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    struct ibv_recv_wr recv = { .num_sge = 0 }, *bad;
    struct pollfd poll_fd = { .fd = channel->fd, .events = POLLIN };
    struct ibv_wc wc;
    void *about;

    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    CHECK(ibv_post_recv(qp, &recv, &bad), 0);
    attr.qp_state = IBV_QPS_ERR;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    /* A receive that failed is solicited by its nature. */
    for (int solicited_only = 0; solicited_only < 2; solicited_only++) {
        CHECK(ibv_req_notify_cq(cq, solicited_only), 0);
        expect("a full queue's event", poll(&poll_fd, 1, 5000), 1);
        CHECK(ibv_get_cq_event(channel, &told, &about), 0);
        expect("the queue of the event", told == cq, 1);
        ibv_ack_cq_events(cq, 1);
    }
    expect("the completion", ibv_poll_cq(cq, 1, &wc), 1);
    CHECK(ibv_req_notify_cq(cq, 0), 0);
    expect("an empty queue's event", poll(&poll_fd, 1, 50), 0);
    CHECK(ibv_destroy_qp(qp), 0);
    CHECK(ibv_destroy_cq(cq), 0);
    CHECK(ibv_destroy_comp_channel(channel), 0);
}

static void addresses(struct ibv_cq *cq)
{
    struct ibv_ah_attr attr = { .port_num = 1 };
    struct ibv_qp *ud = make_qp(cq, IBV_QPT_UD, 8), *rc = make_qp(cq, IBV_QPT_RC, 8);
    union ibv_gid group = { { 0 } };
    struct ibv_gid_entry entry;
    uint16_t pkey;

    CHECK(OBJECT(ibv_create_ah(pd, &attr)), EINVAL);
    attr.is_global = 1;
    CHECK(OBJECT(ibv_create_ah(pd, &attr)), EINVAL);
    CHECK(ibv_query_gid(context, 1, 99, &group), -1);
    CHECK(ibv_query_gid(context, 2, 0, &group), -1);
    CHECK(ibv_query_gid_ex(context, 1, 1, &entry, 0), 0);
    expect("the interface of a GID", entry.ndev_ifindex, if_nametoindex("lo"));
    CHECK(ibv_query_gid_ex(context, 1, 99, &entry, 0), EINVAL);
    CHECK(ibv_query_pkey(context, 1, 5, &pkey), -1);
    ibv_query_gid(context, 1, 1, &group);
    CHECK(ibv_attach_mcast(ud, &group, 0), EINVAL);
    group.raw[12] = 224;
    CHECK(ibv_attach_mcast(rc, &group, 0), EINVAL);
    CHECK(ibv_attach_mcast(ud, &group, 0), 0);
    CHECK(ibv_detach_mcast(ud, &group, 0), 0);
    CHECK(ibv_detach_mcast(ud, &group, 0), EINVAL);
    CHECK(ibv_destroy_qp(ud), 0);
    CHECK(ibv_destroy_qp(rc), 0);
}

static void channels(void)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, channel, 0), *found;
    struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
    struct ibv_async_event event;
    void *about;

    fcntl(channel->fd, F_SETFL, O_NONBLOCK);
    expect("an event where there is none", ibv_get_cq_event(channel, &found, &about), -1);
    expect("its errno", errno, EAGAIN);
    expect("a channel that can be read", poll(&readable, 1, 0), 0);
    CHECK(ibv_destroy_comp_channel(channel), EBUSY);
    CHECK(ibv_destroy_cq(cq), 0);
    CHECK(ibv_destroy_comp_channel(channel), 0);
    fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
    expect("an asynchronous event where there is none", ibv_get_async_event(context, &event), -1);
}

/* Work requests that are built one by one are posted all or none, and the first thing that is wrong is told. */
static void batches(struct ibv_cq *cq)
{
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 8, 8, 2, 2, 64 }, .pd = pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD };
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    struct ibv_wc wc;
    char bytes[64] = { 0 };

    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    attr.qp_state = IBV_QPS_ERR;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_set_inline_data(ex, bytes, 8);
    ibv_wr_atomic_fetch_add(ex, 0, 0, 1);
    ibv_wr_set_sge(ex, 0, 0, 4);
    CHECK(ibv_wr_complete(ex), EINVAL);
    ibv_wr_start(ex);
    for (int n = 0; n < 9; n++) {
        ibv_wr_send(ex);
        ibv_wr_set_inline_data(ex, bytes, 64);
    }
    CHECK(ibv_wr_complete(ex), ENOMEM);
    ibv_wr_start(ex);
    ibv_wr_send_tso(ex, bytes, 8, 8);
    ibv_wr_set_sge(ex, 0, 0, 0);
    CHECK(ibv_wr_complete(ex), EOPNOTSUPP);
    expect("completions of what was refused", ibv_poll_cq(cq, 1, &wc), 0);
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_set_inline_data(ex, bytes, 64);
    CHECK(ibv_wr_complete(ex), 0);
    expect("completions of what was posted", ibv_poll_cq(cq, 1, &wc), 1);
    expect("how it ended", wc.status, IBV_WC_WR_FLUSH_ERR);
    CHECK(ibv_destroy_qp(qp), 0);
}

/* What a program leaves behind when it closes a device is its own to destroy, now or never. */
static void closed(struct ibv_device *device)
{
    static char buffer[4096];
    struct ibv_context *other = ibv_open_device(device);
    struct ibv_pd *domain = ibv_alloc_pd(other);
    struct ibv_mr *mr = ibv_reg_mr(domain, buffer, 4096, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_cq *cq = ibv_create_cq(other, 8, NULL, NULL, 0);
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 8, 8, 2, 2, 64 } };
    struct ibv_qp *qp = ibv_create_qp(domain, &init);

    CHECK(ibv_close_device(other), 0);
    CHECK(ibv_destroy_qp(qp), 0);
    CHECK(ibv_destroy_cq(cq), 0);
    CHECK(ibv_dereg_mr(mr), 0);
    CHECK(ibv_dealloc_pd(domain), 0);
}

static void domains(void)
{
    struct ibv_td_init_attr none = { 0 };
    struct ibv_td *thread = ibv_alloc_td(context, &none);
    struct ibv_pd *base = ibv_alloc_pd(context), *parent;
    struct ibv_parent_domain_init_attr init = { .pd = base, .td = thread };
    struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1 } };
    struct ibv_ah *ah;

    parent = ibv_alloc_parent_domain(context, &init);
    CHECK(ibv_dealloc_td(thread), EBUSY);
    CHECK(ibv_dealloc_pd(base), EBUSY);
    ibv_query_gid(context, 1, 1, &attr.grh.dgid);
    ah = ibv_create_ah(parent, &attr);
    CHECK(ibv_dealloc_pd(parent), EBUSY);
    CHECK(ibv_destroy_ah(ah), 0);
    CHECK(ibv_dealloc_pd(parent), 0);
    CHECK(ibv_dealloc_td(thread), 0);
    CHECK(ibv_dealloc_pd(base), 0);
}

/* What libibverbs has had since rdma-core 56, which this header may not know. */
static void newer(void)
{
    void *(*alloc)(struct ibv_pd *, size_t, void **) = dlsym(RTLD_DEFAULT, "ibv_alloc_buf");
    struct ibv_mr *(*reg)(struct ibv_pd *, void *, void *, size_t, int) = dlsym(RTLD_DEFAULT, "ibv_reg_buf_mr");
    void (*free_buf)(void *) = dlsym(RTLD_DEFAULT, "ibv_free_buf");
    struct ibv_mr *(*reg_ex)(struct ibv_pd *, void *) = dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex");
    struct ibv_pd *other = ibv_alloc_pd(context);
    void *buf = NULL;
    char *bytes = alloc(pd, 8192, &buf);
    struct { size_t length; int access; uint64_t mask, iova; void *addr; int fd; uint64_t offset; void *dmah, *buf; } attr = {
        .length = 8192, .mask = 2, .addr = bytes };
    struct ibv_mr *mr = reg(pd, buf, bytes + 4096, 4096, IBV_ACCESS_LOCAL_WRITE);

    expect("a region in a buffer", !mr, 0);
    bytes[8191] = 1;
    CHECK(OBJECT(reg(pd, buf, bytes + 4096, 4097, 0)), EINVAL);
    CHECK(OBJECT(reg(other, buf, bytes, 8192, 0)), EINVAL);
    CHECK(ibv_dereg_mr(mr), 0);
    expect("a region from attributes", !(mr = reg_ex(pd, &attr)), 0);
    CHECK(ibv_dereg_mr(mr), 0);
    attr.mask = 4;
    CHECK(OBJECT(reg_ex(pd, &attr)), EOPNOTSUPP);
    free_buf(buf);
    CHECK(ibv_dealloc_pd(other), 0);
}

/* The library has a thread and handlers of forks: a program that loads it late and closes it again does not take them away. */
static void stays(void)
{
    struct link_map *map = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
    unsigned long flags = 0;

    for (ElfW(Dyn) *entry = map ? map->l_ld : NULL; entry && entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_FLAGS_1)
            flags = entry->d_un.d_val;
    expect("a library that is never unloaded", flags & DF_1_NODELETE, DF_1_NODELETE);
}

/* No other program that this one becomes, or starts, has the device's descriptors. */
static void descriptors(const char *before, int count)
{
    for (int fd = 0; fd < count; fd++)
        if (!before[fd] && fcntl(fd, F_GETFD) >= 0)
            expect("a descriptor that ends with the program", fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

/* A child neither drives its parent's device nor hangs on it, and may open one of its own. */
static void forked(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int status = 1;

    CHECK(ibv_fork_init(), 0);
    while (ibv_poll_cq(cq, 1, &wc) > 0)
        ;
    if (fork() == 0) {
        struct ibv_device **list = ibv_get_device_list(NULL);
        int wrong = ibv_poll_cq(cq, 1, &wc) >= 0 || !ibv_open_device(list[0]);
        _exit(wrong);
    }
    wait(&status);
    expect("the child's end", status, 0);
    /* One whose device cannot be, and whose complaint nobody hears, is told by an errno alone. */
    for (int n = 0; n < 2; n++) {
        if (fork() == 0) {
            struct ibv_device **list = ibv_get_device_list(NULL);
            int unheard[2];

            signal(SIGPIPE, SIG_IGN);
            if (setenv("REMORA_DEVICE_ADDRESS", n ? "127.0.0.2\xff" : "nowhere", 1) || pipe(unheard) ||
                dup2(unheard[1], 2) < 0 || close(unheard[0]))
                _exit(1);
            _exit(ibv_open_device(list[0]) || errno != EINVAL);
        }
        wait(&status);
        expect("the end of a child without a device", status, 0);
    }
    expect("the parent's poll", ibv_poll_cq(cq, 1, &wc), 0);
}

/* Nor does it hang on what its parent's device was amid when it was forked: one that is new settles for some milliseconds. */
static void forked_at_once(struct ibv_device *device)
{
    for (int n = 0; n < 4; n++) {
        int status = 1;

        usleep(1000);
        if (fork() == 0) {
            struct ibv_context *own;
            struct ibv_cq *cq;
            struct ibv_wc wc;

            alarm(30);
            own = ibv_open_device(device);
            cq = own ? ibv_create_cq(own, 8, NULL, NULL, 0) : NULL;
            /* Its device sleeps meanwhile, and wakes. */
            usleep(2000);
            _exit(!cq || ibv_poll_cq(cq, 1, &wc) || ibv_destroy_cq(cq) || ibv_close_device(own));
        }
        wait(&status);
        expect("the end of a child that was forked at once", status, 0);
    }
}

int main(void)
{
    char before[64];
    struct ibv_device **list;
    struct ibv_xrcd_init_attr xrcd = { 0 };
    struct ibv_alloc_dm_attr dm = { .length = 64 };
    struct ibv_cq *cq;

    for (int fd = 0; fd < 64; fd++)
        before[fd] = fcntl(fd, F_GETFD) >= 0;
    list = ibv_get_device_list(NULL);
    context = ibv_open_device(list[0]);
    forked_at_once(list[0]);
    if (!context || !(pd = ibv_alloc_pd(context)) || !(cq = ibv_create_cq(context, 64, NULL, NULL, 0))) {
        printf("no device\n");
        return 1;
    }
    CHECK(OBJECT(ibv_open_xrcd(context, &xrcd)), EOPNOTSUPP);
    CHECK(OBJECT(ibv_alloc_dm(context, &dm)), EOPNOTSUPP);
    CHECK(OBJECT(ibv_import_device(0)), EOPNOTSUPP);
    descriptors(before, sizeof before);
    stays();
    memory();
    domains();
    queues(cq);
    transitions(cq);
    broken(cq);
    established(cq);
    armed();
    addresses(cq);
    channels();
    newer();
    batches(cq);
    closed(list[0]);
    forked(cq);
    CHECK(ibv_destroy_cq(cq), 0);
    CHECK(ibv_dealloc_pd(pd), 0);
    CHECK(ibv_close_device(context), 0);
    ibv_free_device_list(list);
    return failures != 0;
}
