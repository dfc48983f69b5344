/* A ring of the kernel's for calls of all kinds, set up as libuv does. Says whether there is one. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef WITH_LIBUV
/* By this name a program with libuv in it is known. */
int uv_loop_init(void *loop) {
    return loop == NULL;
}
#endif

int main(void) {
    char parameters[120];
    memset(parameters, 0, sizeof(parameters));
    long ring = syscall(SYS_io_uring_setup, 4, parameters);
    puts(ring >= 0 ? "a ring" : errno == ENOSYS ? "no such call" : errno == EPERM ? "not allowed" : strerror(errno));
    return 0;
}
