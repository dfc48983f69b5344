/* Threads that are cancelled. One that waits for an event ends there, and the next one waits as if it had not been. One that is to
   end, and has not come to where it would, makes its calls whole first: they wait for nothing, and are no such place in rdma-core. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); fflush(stdout); _exit(1); } } while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char memory[65536];

/* ---- Who waits ---- */

static void *waits_for_completion(void *unused)
{
    struct ibv_cq *about;
    ibv_get_cq_event(channel, &about, &unused);
    return NULL;
}

static void *waits_for_event(void *unused)
{
    struct ibv_async_event event;
    ibv_get_async_event(context, &event);
    return unused;
}

static void *connections;
static int (*get_cm_event)(void *, void **);

static void *waits_for_connection(void *unused)
{
    get_cm_event(connections, &unused);
    return NULL;
}

static void *waits_for_acknowledgement(void *of)
{
    ibv_destroy_cq(of);
    return NULL;
}

static void ends(void *(*waits)(void *), void *of)
{
    pthread_t thread;
    void *result;

    for (int turn = 0; turn < 3; turn++) {
        CHECK(!pthread_create(&thread, NULL, waits, of));
        usleep(20000);
        CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED);
    }
}

/* ---- Who calls ---- */

static void posts(void)
{
    struct ibv_sge from = { (uintptr_t)memory, 60000, mr->lkey };
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &from, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
    CHECK(!ibv_post_send(qp, &wr, &bad));
}

static void takes(void)
{
    struct ibv_wc wc;
    int found = 0;
    while (found == 0)
        found = ibv_poll_cq(cq, 1, &wc);
    CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
}

static void tells(void)
{
    struct ibv_cq *own = ibv_create_cq(context, 8, NULL, channel, 0), *about;
    struct ibv_qp_init_attr init = { .send_cq = own, .recv_cq = own, .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 } };
    struct ibv_qp *other = ibv_create_qp(pd, &init);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    struct ibv_recv_wr wr = { .num_sge = 0 }, *bad;
    void *unused;

    CHECK(!ibv_modify_qp(other, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    CHECK(!ibv_post_recv(other, &wr, &bad) && !ibv_req_notify_cq(own, 0));
    attr.qp_state = IBV_QPS_ERR;
    CHECK(!ibv_modify_qp(other, &attr, IBV_QP_STATE) && !ibv_req_notify_cq(own, 0));
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    CHECK(!ibv_get_cq_event(channel, &about, &unused) && about == own);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    ibv_ack_cq_events(own, 1);
    CHECK(!ibv_destroy_qp(other) && !ibv_destroy_cq(own));
}

static void registers(void)
{
    struct ibv_mr *other = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    CHECK(other);
    CHECK(!ibv_rereg_mr(other, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 4096, 0) && !ibv_dereg_mr(other));
}

static void asks(void)
{
    struct ibv_port_attr port;
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    union ibv_gid gid;
    CHECK(!ibv_query_port(context, 1, &port) && !ibv_query_gid(context, 1, 1, &gid));
    CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_RTS);
}

static sem_t ready, to_end;
static volatile int whole;

static void *calls(void *call)
{
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    sem_post(&ready);
    sem_wait(&to_end);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    ((void (*)(void))call)();
    whole = 1;
    pthread_testcancel();
    return NULL;
}

static void is_whole(void (*call)(void))
{
    pthread_t thread;
    void *result;

    whole = 0;
    CHECK(!pthread_create(&thread, NULL, calls, (void *)call));
    sem_wait(&ready);
    CHECK(!pthread_cancel(thread));
    sem_post(&to_end);
    CHECK(!pthread_join(thread, &result) && result == PTHREAD_CANCELED && whole);
}

/* ---- Two processes, of which one sends to the other ---- */

static void opens(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 64, 64, 1, 1, 0 } };
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

    CHECK((context = ibv_open_device(list[0])) && (pd = ibv_alloc_pd(context)));
    CHECK((channel = ibv_create_comp_channel(context)) && (cq = ibv_create_cq(context, 128, NULL, channel, 0)));
    CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)));
    init.send_cq = init.recv_cq = cq;
    CHECK((qp = ibv_create_qp(pd, &init)));
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static void meets(int peer)
{
    struct { union ibv_gid gid; uint32_t number; } own, other;
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 1 };

    ibv_query_gid(context, 1, 1, &own.gid);
    own.number = qp->qp_num;
    CHECK(write(peer, &own, sizeof own) == sizeof own && read(peer, &other, sizeof other) == sizeof other);
    attr.dest_qp_num = other.number;
    attr.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .dgid = other.gid, .sgid_index = 1 } };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                       IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Takes so many messages. */
static void receiver(int peer, int count)
{
    struct ibv_sge to = { (uintptr_t)memory, sizeof memory, 0 };
    struct ibv_recv_wr wr = { .sg_list = &to, .num_sge = 1 }, *bad;

    opens();
    to.lkey = mr->lkey;
    for (int n = 0; n < count; n++)
        CHECK(!ibv_post_recv(qp, &wr, &bad));
    meets(peer);
    while (count-- > 0)
        takes();
    CHECK(read(peer, memory, 1) == 0);
}

int main(void)
{
    enum { TURNS = 20 };
    void (*const all[])(void) = { tells, registers, asks };
    void *(*create_channel)(void), *library = dlopen("librdmacm.so.1", RTLD_NOW);
    struct ibv_cq *about;
    int ends_of[2], status;
    void *unused;
    pid_t child;

    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends_of));
    if ((child = fork()) == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends_of[0]);
        receiver(ends_of[1], TURNS);
        _exit(0);
    }
    close(ends_of[1]);
    opens();
    meets(ends_of[0]);
    sem_init(&ready, 0, 0);
    sem_init(&to_end, 0, 0);

    ends(waits_for_completion, NULL);
    ends(waits_for_event, NULL);
    if (library && (create_channel = dlsym(library, "rdma_create_event_channel")) &&
        (get_cm_event = dlsym(library, "rdma_get_cm_event")) && (connections = create_channel()))
        ends(waits_for_connection, NULL);
    else
        printf("no librdmacm\n");
    for (int turn = 0; turn < TURNS; turn++) {
        is_whole(posts);
        is_whole(takes);
    }
    for (unsigned n = 0; n < sizeof all / sizeof *all; n++)
        is_whole(all[n]);

    /* A thread that waits for an acknowledgement, to destroy what it is about: the queue is gone by then. */
    struct ibv_cq *unacknowledged = ibv_create_cq(context, 8, NULL, channel, 0);
    struct ibv_qp_init_attr init = { .send_cq = unacknowledged, .recv_cq = unacknowledged, .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 } };
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    struct ibv_recv_wr wr = { .num_sge = 0 }, *bad;
    struct ibv_qp *other = ibv_create_qp(pd, &init);
    pthread_t thread;
    CHECK(!ibv_modify_qp(other, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    CHECK(!ibv_post_recv(other, &wr, &bad) && !ibv_req_notify_cq(unacknowledged, 0));
    attr.qp_state = IBV_QPS_ERR;
    CHECK(!ibv_modify_qp(other, &attr, IBV_QP_STATE));
    CHECK(!ibv_get_cq_event(channel, &about, &unused) && about == unacknowledged && !ibv_destroy_qp(other));
    CHECK(!pthread_create(&thread, NULL, waits_for_acknowledgement, unacknowledged));
    usleep(20000);
    CHECK(!pthread_cancel(thread) && !pthread_join(thread, &unused) && unused == PTHREAD_CANCELED);

    close(ends_of[0]);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    printf("all whole\n");
    return 0;
}
