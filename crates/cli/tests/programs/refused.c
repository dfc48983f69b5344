/* What a device says to calls that it has no use for: a line for each call with its errno, "ok" where it works. The same
   program runs on Remora's device and on others. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *name(int code)
{
    return code == 0 ? "ok" : strerrorname_np(code < 0 ? -code : code);
}

/* Calls that return an object, those that return an errno, and those that return -1 and leave it in errno. */
#define OBJECT(what, call) (errno = 0, printf("%s: %s\n", what, (call) ? "ok" : name(errno)))
#define NUMBER(what, call) (errno = 0, printf("%s: %s\n", what, name((call))))

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static struct ibv_qp *queue_pair(enum ibv_qp_type type, uint32_t more, struct ibv_xrcd *xrcd)
{
    struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = type, .pd = pd, .xrcd = xrcd,
                                        .comp_mask = IBV_QP_INIT_ATTR_PD | more, .cap = { 4, 4, 1, 1, 0 },
                                        .max_tso_header = 64 };
    return ibv_create_qp_ex(context, &init);
}

static void xrc(void)
{
    struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1 };
    struct ibv_qp_open_attr open = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_TYPE, .qp_num = 99,
                                     .qp_type = IBV_QPT_XRC_RECV };
    OBJECT("open_xrcd", ibv_open_xrcd(context, &domain));
    OBJECT("create_qp XRC_SEND", queue_pair(IBV_QPT_XRC_SEND, 0, NULL));
    OBJECT("open_qp", ibv_open_qp(context, &open));
}

static void memory(void)
{
    static char bytes[4096];
    struct ibv_alloc_dm_attr on_device = { .length = 64 };
    struct ibv_sge sge = { (uintptr_t)bytes, 64, 0 };
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
    OBJECT("alloc_dm", ibv_alloc_dm(context, &on_device));
    OBJECT("alloc_null_mr", ibv_alloc_null_mr(pd));
    OBJECT("reg_dmabuf_mr", ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE));
    if (mr)
        sge.lkey = mr->lkey;
    NUMBER("advise_mr", ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1));
}

static void queues(void)
{
    struct ibv_srq_init_attr_ex tags = { .attr = { 8, 1, 0 }, .srq_type = IBV_SRQT_TM, .pd = pd, .cq = cq,
                                         .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ |
                                                      IBV_SRQ_INIT_ATTR_TM, .tm_cap = { 8, 8 } };
    struct ibv_srq_init_attr basic = { .attr = { 8, 1, 0 } };
    struct ibv_wq_init_attr wq = { .wq_type = IBV_WQT_RQ, .max_wr = 8, .max_sge = 1, .pd = pd, .cq = cq };
    struct ibv_rwq_ind_table_init_attr table = { .log_ind_tbl_size = 0 };
    struct ibv_counters_init_attr counters = { 0 };
    struct ibv_ece ece = { 0 };
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    uint32_t number;
    struct { struct ibv_flow_attr attr; struct ibv_flow_spec_eth eth; } flow = {
        .attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof flow, .num_of_specs = 1, .port = 1 },
        .eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof flow.eth },
    };
    OBJECT("create_srq", srq = ibv_create_srq(pd, &basic));
    NUMBER("get_srq_num", ibv_get_srq_num(srq, &number));
    OBJECT("create_srq_ex TM", ibv_create_srq_ex(context, &tags));
    OBJECT("create_qp RAW_PACKET", queue_pair(IBV_QPT_RAW_PACKET, 0, NULL));
    OBJECT("create_qp TSO", queue_pair(IBV_QPT_UD, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, NULL));
    OBJECT("create_qp DRIVER", queue_pair(IBV_QPT_DRIVER, 0, NULL));
    OBJECT("create_wq", ibv_create_wq(context, &wq));
    OBJECT("create_rwq_ind_table", ibv_create_rwq_ind_table(context, &table));
    OBJECT("create_counters", ibv_create_counters(context, &counters));
    OBJECT("create_qp RC", qp = queue_pair(IBV_QPT_RC, 0, NULL));
    OBJECT("create_flow", ibv_create_flow(qp, &flow.attr));
    NUMBER("query_ece", ibv_query_ece(qp, &ece));
    NUMBER("query_qp_data_in_order", ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0));
}

/* What only devices of one maker have. */
static void mlx5(void)
{
    void *library = dlopen("libmlx5.so.1", RTLD_NOW);
    unsigned char room[4096] = { 0 };
    bool (*is_supported)(struct ibv_device *);
    int (*query)(struct ibv_context *, void *);
    void *(*create)(struct ibv_context *, void *, void *);
    void *(*object)(struct ibv_context *, void *);
    if (!library)
        return;
    is_supported = dlsym(library, "mlx5dv_is_supported");
    query = dlsym(library, "mlx5dv_query_device");
    printf("mlx5dv_is_supported: %d\n", is_supported(context->device));
    NUMBER("mlx5dv_query_device", query(context, room));
    create = dlsym(library, "mlx5dv_create_cq");
    OBJECT("mlx5dv_create_cq", create(context, &(struct ibv_cq_init_attr_ex){ .cqe = 8 }, NULL));
    object = dlsym(library, "mlx5dv_open_device");
    OBJECT("mlx5dv_open_device", object((struct ibv_context *)context->device, room));
}

int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
    context = ibv_open_device(list[0]);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    xrc();
    memory();
    queues();
    NUMBER("query_rt_values_ex", ibv_query_rt_values_ex(context, &values));
    fflush(stdout);
    mlx5();
    return 0;
}
