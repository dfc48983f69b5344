/* A program that polls for nothing gives its core away for no more of the time than it keeps it. Its own sched_yield stands
   before the C library's, and takes as long as one does where others run. Says how many polls there were to each. */

#include <infiniband/verbs.h>
#include <stdio.h>
#include <time.h>

static int yields;

int sched_yield(void)
{
    struct timespec others_run = { 0, 2000000 };
    yields++;
    nanosleep(&others_run, NULL);
    return 0;
}

int main(void)
{
    struct ibv_context *context = ibv_open_device(ibv_get_device_list(NULL)[0]);
    struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    struct ibv_wc wc;
    long polls;

    for (polls = 0; yields < 50; polls++)
        ibv_poll_cq(cq, 1, &wc);
    printf("%ld\n", polls / yields);
    return 0;
}
