/* Signals of a program that has a device open are for its own threads: one that keeps a signal from all of them, to take it when it
   likes, is not ended by it, and a handler runs in the thread that it was meant for. */

#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); return 1; } } while (0)

static volatile pid_t ran_in;
static volatile int over;

static void handler(int number)
{
    (void)number;
    ran_in = gettid();
}

static void *worker(void *at)
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR2);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    *(volatile pid_t *)at = gettid();
    while (!over)
        usleep(1000);
    return NULL;
}

int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
    struct sigaction action = { .sa_handler = handler };
    struct timespec most = { 10, 0 };
    volatile pid_t of_worker = 0;
    sigset_t both;
    pthread_t thread;

    CHECK(context && cq);
    sigemptyset(&both);
    sigaddset(&both, SIGUSR1);
    sigaddset(&both, SIGUSR2);
    CHECK(!sigprocmask(SIG_BLOCK, &both, NULL) && !sigaction(SIGUSR2, &action, NULL));
    for (int turn = 0; turn < 20; turn++) {
        usleep(1000);
        CHECK(!kill(getpid(), SIGUSR1));
        CHECK(sigtimedwait(&both, NULL, &most) == SIGUSR1);
    }
    CHECK(!pthread_create(&thread, NULL, worker, (void *)&of_worker));
    while (!of_worker)
        usleep(1000);
    for (int turn = 0; turn < 20; turn++) {
        ran_in = 0;
        CHECK(!kill(getpid(), SIGUSR2));
        while (!ran_in)
            usleep(1000);
        CHECK(ran_in == of_worker);
    }
    over = 1;
    CHECK(!pthread_join(thread, NULL) && !ibv_destroy_cq(cq) && !ibv_close_device(context));
    printf("its own\n");
    return 0;
}
