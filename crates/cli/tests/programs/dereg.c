/* Takes a region away while a peer writes to it at full speed, and its memory at once after. What still copies then
 * faults. Prints how often; exits with 1 if the peer has never written. */

#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { BYTES = 256 << 10, ROUNDS = 1000 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *writer, *reader;
static _Atomic(uint64_t) target;
static _Atomic(uint32_t) rkey;
static atomic_int stop;

static void must(int good, const char *what)
{
    if (!good) {
        perror(what);
        exit(1);
    }
}

/* An unreliable connection: writes that find no region are dropped, and it goes on. */
static struct ibv_qp *make_qp(void)
{
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UC, .cap = { 16, 1, 1, 1, 0 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
    must(qp != NULL, "ibv_create_qp");
    must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
    return qp;
}

static void lead(struct ibv_qp *qp, struct ibv_qp *to, union ibv_gid gid)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qp_num };
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = gid;
    attr.ah_attr.grh.sgid_index = 0;
    attr.ah_attr.grh.hop_limit = 1;
    must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN), "RTR");
    attr.qp_state = IBV_QPS_RTS;
    must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
}

static void *write_on(void *unused)
{
    static char source[BYTES];
    struct ibv_mr *mr = ibv_reg_mr(pd, source, BYTES, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_sge sge = { (uintptr_t)source, BYTES, 0 };
    (void)unused;
    must(mr != NULL, "ibv_reg_mr");
    sge.lkey = mr->lkey;
    memset(source, 7, BYTES);
    while (!stop) {
        struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                                  .send_flags = IBV_SEND_SIGNALED };
        struct ibv_send_wr *bad;
        struct ibv_wc wc;
        int polled;
        wr.wr.rdma.remote_addr = target;
        wr.wr.rdma.rkey = rkey;
        must(!ibv_post_send(writer, &wr, &bad), "ibv_post_send");
        while ((polled = ibv_poll_cq(cq, 1, &wc)) == 0)
            ;
        must(polled == 1 && wc.status == IBV_WC_SUCCESS, "ibv_poll_cq");
    }
    return NULL;
}

/* Whether the peer has written here, before long. */
static int written(volatile char *memory)
{
    time_t end = time(NULL) + 30;
    while (memory[0] != 7) {
        if (time(NULL) > end)
            return 0;
        sched_yield();
    }
    return 1;
}

int main(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    union ibv_gid gid;
    pthread_t thread;
    int reregistered = 0;

    must(devices && devices[0], "ibv_get_device_list");
    must((context = ibv_open_device(devices[0])) != NULL, "ibv_open_device");
    must((pd = ibv_alloc_pd(context)) != NULL, "ibv_alloc_pd");
    must((cq = ibv_create_cq(context, 64, NULL, NULL, 0)) != NULL, "ibv_create_cq");
    must(!ibv_query_gid(context, 1, 0, &gid), "ibv_query_gid");
    writer = make_qp();
    reader = make_qp();
    lead(writer, reader, gid);
    lead(reader, writer, gid);
    for (int round = 0; round < ROUNDS; round++) {
        int flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct ibv_mr *mr = ibv_reg_mr(pd, memory, BYTES, flags);
        must(mr != NULL, "ibv_reg_mr");
        target = (uintptr_t)memory;
        rkey = mr->rkey;
        if (round == 0)
            must(!pthread_create(&thread, NULL, write_on, NULL), "pthread_create");
        if (!written(memory)) {
            printf("nothing was written in round %d\n", round);
            return 1;
        }
        if (round % 4 == 3) {
            /* Over other memory, of which nothing is written: the old is the program's again. */
            static char other[BYTES];
            must(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, pd, other, BYTES, flags), "ibv_rereg_mr");
            reregistered++;
        } else {
            must(!ibv_dereg_mr(mr), "ibv_dereg_mr");
            mr = NULL;
        }
        must(!mprotect(memory, BYTES, PROT_NONE), "mprotect");
        must(!munmap(memory, BYTES), "munmap");
        must(!mr || !ibv_dereg_mr(mr), "ibv_dereg_mr");
    }
    stop = 1;
    pthread_join(thread, NULL);
    printf("%d regions taken away, %d of them for other memory\n", ROUNDS, reregistered);
    return 0;
}
