/* What programs do to connections amid calls on them: signals, jumps, threads that are ended, forks, numbers that come again, loops of
 * all kinds, little room. A line for each part that is as TCP has it; the parts to do are the arguments, or all. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", part, __LINE__, #what, errno); \
            _exit(1); \
        } \
    } while (0)

extern char **environ;
static const char *part = "start";

static void pair(int ends[2])
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    CHECK(listener >= 0 && !bind(listener, (void *)&at, len) && !listen(listener, 1));
    CHECK(!getsockname(listener, (void *)&at, &len));
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!connect(ends[0], (void *)&at, len));
    ends[1] = accept(listener, NULL, NULL);
    CHECK(ends[1] >= 0);
    close(listener);
}

static void whole(int fd, void *to, size_t len)
{
    for (size_t got = 0; got < len;) {
        ssize_t now = recv(fd, (char *)to + got, len - got, 0);
        if (now < 0 && errno == EINTR)
            continue;
        CHECK(now > 0);
        got += now;
    }
}

static void give(int fd, const void *from, size_t len)
{
    for (size_t sent = 0; sent < len;) {
        ssize_t now = send(fd, (const char *)from + sent, len - sent, 0);
        if (now < 0 && errno == EINTR)
            continue;
        CHECK(now > 0);
        sent += now;
    }
}

static void rounds(int a, int b, int count)
{
    for (int n = 0; n < count; n++) {
        int got = -1, other = ~n;
        give(a, &n, sizeof n);
        whole(b, &got, sizeof got);
        CHECK(got == n);
        give(b, &other, sizeof other);
        whole(a, &got, sizeof got);
        CHECK(got == other);
    }
}

/* One that goes by the rings, in a rack: after many that ended soon a connection changes over later. */
static void busy(int ends[2])
{
    pair(ends);
    rounds(ends[0], ends[1], 600);
}

static void nap(long microseconds)
{
    struct timespec time = { microseconds / 1000000, microseconds % 1000000 * 1000 };
    nanosleep(&time, NULL);
}

static void tick(long microseconds)
{
    struct itimerval time = { { 0, microseconds }, { 0, microseconds } };
    setitimer(ITIMER_REAL, &time, NULL);
}

static void handle(int number, void (*handler)(int), int flags)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
    CHECK(!sigaction(number, &action, NULL));
}

static void ends_well(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static int descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static ssize_t full(int fd)
{
    static char block[1 << 16];
    ssize_t sent = 0, now;
    while ((now = send(fd, block, sizeof block, MSG_DONTWAIT)) > 0)
        sent += now;
    CHECK(errno == EAGAIN);
    return sent;
}

static void take(int fd, ssize_t count)
{
    static char block[1 << 16];
    while (count > 0) {
        ssize_t now = recv(fd, block, count < (ssize_t)sizeof block ? count : (ssize_t)sizeof block, 0);
        CHECK(now > 0);
        count -= now;
    }
}

/* ---- Signals ---- */

static int own[2], theirs[2], loop = -1;
static volatile sig_atomic_t ran, wrong;

/* All that a handler may do. */
static void works(int number)
{
    int before = errno, value = 0, copy;
    char byte;
    (void)number;
    struct pollfd fds[2] = { { own[1], POLLIN, 0 }, { theirs[1], POLLIN, 0 } };
    struct epoll_event event;
    int n = ran;

    if (send(own[0], &n, sizeof n, 0) != sizeof n || poll(fds, 2, -1) < 1)
        wrong = 1;
    /* The other one may have been there before: what was sent just now comes soon, at once it need not. */
    if (poll(fds, 1, -1) != 1 || !(fds[0].revents & POLLIN))
        wrong = 1;
    if (loop >= 0 && epoll_wait(loop, &event, 1, 0) < 0)
        wrong = 2;
    if (recv(own[1], &value, sizeof value, MSG_WAITALL) != sizeof value || value != n)
        wrong = 3;
    /* What the program is amid, too. */
    recv(theirs[1], &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    recv(theirs[0], &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    copy = dup(theirs[0]);
    if (copy < 0 || close(copy))
        wrong = 4;
    copy = socket(AF_INET, SOCK_STREAM, 0);
    if (copy < 0 || close(copy))
        wrong = 5;
    ran = n + 1;
    errno = before;
}

static void handlers_work(void)
{
    struct epoll_event event = { EPOLLIN, { 0 } };
    int other = epoll_create1(0);

    busy(own);
    busy(theirs);
    loop = epoll_create1(0);
    event.data.fd = own[1];
    CHECK(!epoll_ctl(loop, EPOLL_CTL_ADD, own[1], &event));
    event.data.fd = theirs[1];
    CHECK(!epoll_ctl(loop, EPOLL_CTL_ADD, theirs[1], &event));
    CHECK(!epoll_ctl(other, EPOLL_CTL_ADD, theirs[1], &event));
    handle(SIGALRM, works, SA_RESTART);
    tick(150);
    for (int n = 0; ran < 3000; n++) {
        struct pollfd fd = { theirs[1], POLLIN, 0 };
        char bytes[300], got[300];
        int more[2], is;
        void *block = malloc(100 + n % 5000);
        memset(bytes, n, sizeof bytes);
        give(theirs[0], bytes, sizeof bytes);
        do
            is = n % 2 ? poll(&fd, 1, -1) : epoll_wait(other, &event, 1, -1);
        while (is < 0 && errno == EINTR);
        CHECK(is == 1);
        whole(theirs[1], got, sizeof got);
        CHECK(!memcmp(bytes, got, sizeof got) && !wrong);
        if (n % 64 == 0) {
            pair(more);
            rounds(more[0], more[1], 12);
            close(more[0]), close(more[1]);
        }
        free(block);
    }
    tick(0);
    CHECK(!wrong);
    close(loop), loop = -1;
    rounds(own[0], own[1], 9);
    rounds(theirs[0], theirs[1], 9);
}

static sigjmp_buf back;

static void jumps(int number)
{
    (void)number;
    ran++;
    siglongjmp(back, 1);
}

static double used(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use.ru_utime.tv_sec + use.ru_stime.tv_sec + (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

static void handlers_jump(void)
{
    static int ends[2], epoll;
    static volatile int n;
    static char stack[1 << 16];
    char byte;
    stack_t other = { .ss_sp = stack, .ss_size = sizeof stack };
    struct epoll_event event = { EPOLLIN, { 0 } };

    CHECK(!sigaltstack(&other, NULL));
    for (int on_other = 0; on_other < 2; on_other++) {
        busy(ends);
        epoll = epoll_create1(0);
        CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, ends[1], &event));
        handle(SIGALRM, jumps, on_other ? SA_ONSTACK : 0);
        /* Out of calls that wait. */
        n = 0;
        /* One may come before the loop has said where to. */
        if (!sigsetjmp(back, 1))
            tick(3000);
        for (; n < 60; n++) {
            struct pollfd fd = { ends[1], POLLIN, 0 };
            fd_set set;
            if (sigsetjmp(back, 1))
                continue;
            FD_ZERO(&set);
            FD_SET(ends[1], &set);
            switch (n % 5) {
            case 0: recv(ends[1], &byte, 1, 0); break;
            case 1: poll(&fd, 1, -1); break;
            case 2: epoll_wait(epoll, &event, 1, -1); break;
            case 3: select(ends[1] + 1, &set, NULL, NULL, NULL); break;
            case 4: read(ends[1], &byte, 1); break;
            }
            CHECK(0);
        }
        tick(0);
        /* Out of those that do not: bytes may be on their way. */
        ran = 0;
        if (!sigsetjmp(back, 1))
            tick(200);
        while (ran < 500) {
            if (sigsetjmp(back, 1))
                continue;
            for (;;) {
                send(ends[0], "x", 1, 0);
                recv(ends[1], &byte, 1, MSG_DONTWAIT);
            }
        }
        tick(0);
        while (recv(ends[1], &byte, 1, MSG_DONTWAIT) == 1)
            ;
        CHECK(errno == EAGAIN);
        rounds(ends[0], ends[1], 100);
        /* Nobody counts as asleep who was taken out of it: nothing is to be done while nothing comes. */
        for (int wakes = 0; wakes < 2; wakes++) {
            struct pollfd fd = { ends[1], POLLIN, 0 };
            double before = used();
            CHECK(poll(&fd, 1, 400) == 0);
            CHECK(used() - before < 0.2);
            /* Leaves a bell, in a rack. */
            give(ends[0], "x", 1);
            CHECK(poll(&fd, 1, 10000) == 1);
            whole(ends[1], &byte, 1);
        }
        close(ends[1]);
        CHECK(recv(ends[0], &byte, 1, 0) == 0);
        close(ends[0]);
        close(epoll);
    }
}

static volatile sig_atomic_t value;

static void tells(int number, siginfo_t *info, void *context)
{
    (void)number;
    value = context ? info->si_value.sival_int : -1;
}

static void counts(int number)
{
    ran += number == SIGUSR1;
}

static void handlers_are_own(void)
{
    struct sigaction action = { .sa_sigaction = tells, .sa_flags = SA_SIGINFO | SA_RESTART }, old;
    union sigval with = { .sival_int = 42 };
    int ends[2];
    char byte;

    sigaddset(&action.sa_mask, SIGUSR2);
    CHECK(!sigaction(SIGUSR1, &action, NULL) && !sigaction(SIGUSR1, NULL, &old));
    CHECK(old.sa_sigaction == tells && (old.sa_flags & (SA_SIGINFO | SA_RESTART | SA_RESETHAND)) == (SA_SIGINFO | SA_RESTART));
    CHECK(sigismember(&old.sa_mask, SIGUSR2) == 1 && sigismember(&old.sa_mask, SIGINT) == 0);
    CHECK(!sigqueue(getpid(), SIGUSR1, with) && value == 42);
    CHECK(signal(SIGUSR1, counts) == (void *)tells);
    ran = 0;
    raise(SIGUSR1), raise(SIGUSR1);
    CHECK(ran == 2 && signal(SIGUSR1, SIG_IGN) == counts && signal(SIGUSR1, SIG_DFL) == SIG_IGN);
    action.sa_handler = counts, action.sa_flags = SA_RESETHAND;
    CHECK(!sigaction(SIGUSR1, &action, NULL) && !sigaction(SIGUSR1, NULL, &old));
    CHECK(old.sa_handler == counts && (old.sa_flags & (SA_RESETHAND | SA_SIGINFO)) == SA_RESETHAND);
    raise(SIGUSR1);
    CHECK(ran == 3 && !sigaction(SIGUSR1, NULL, &old) && old.sa_handler == SIG_DFL);
    CHECK(sigaction(SIGKILL, &action, NULL) == -1 && errno == EINVAL);
    CHECK(sigaction(999, &action, NULL) == -1 && errno == EINVAL);
    CHECK(signal(-1, counts) == SIG_ERR && errno == EINVAL);
    /* A call that waits ends, or goes on, as is said last. */
    busy(ends);
    handle(SIGALRM, counts, SA_RESTART);
    CHECK(!siginterrupt(SIGALRM, 1));
    tick(2000);
    CHECK(recv(ends[1], &byte, 1, 0) == -1 && errno == EINTR);
    tick(0);
    CHECK(!siginterrupt(SIGALRM, 0));
    tick(2000);
    pid_t child = fork();
    if (child == 0) {
        nap(50000);
        give(ends[0], "x", 1);
        _exit(0);
    }
    CHECK(recv(ends[1], &byte, 1, 0) == 1);
    tick(0);
    while (waitpid(child, NULL, 0) < 0)
        CHECK(errno == EINTR);
    close(ends[0]), close(ends[1]);
}

/* ---- Numbers that come again ---- */

static void moves(int in, int out)
{
    char got[8] = "";
    CHECK(write(in, "number", 6) == 6 && read(out, got, 8) == 6 && !memcmp(got, "number", 6));
}

static void numbers_come_again(void)
{
    char got[8], path[] = "/tmp/remora-hostile-XXXXXX";
    int file = mkstemp(path), unix_ends[2];

    CHECK(file >= 0 && !unlink(path) && pwrite(file, "file", 4, 0) == 4 && !socketpair(AF_UNIX, SOCK_STREAM, 0, unix_ends));
    for (int how = 0; how < 9; how++) {
        int ends[2], pipes[2] = { -1, -1 };
        busy(ends);
        /* The number of what listened is in use, so that this one is the next. */
        int fd = ends[1], other = open("/dev/null", O_RDONLY);
        /* Closed in every way there is, and then something else. */
        switch (how) {
        case 0: case 1: case 2: case 3: close(fd); break;
        case 4: CHECK(!close_range(fd, fd, 0)); break;
        case 5: CHECK(syscall(SYS_close, fd) == 0); break;
        case 6: CHECK(dup3(file, fd, 0) == fd); break;
        case 7: {
            FILE *stream = fdopen(fd, "r+");
            CHECK(stream && !fclose(stream));
            break;
        }
        case 8: CHECK(syscall(SYS_dup3, file, fd, 0) == fd); break;
        }
        CHECK(recv(ends[0], got, 1, 0) == 0);
        if (how == 1) {
            CHECK(eventfd(7, EFD_NONBLOCK) == fd);
            uint64_t count = 0;
            CHECK(read(fd, &count, 8) == 8 && count == 7 && read(fd, &count, 8) == -1 && errno == EAGAIN);
        } else if (how == 2) {
            CHECK(syscall(SYS_openat, AT_FDCWD, "/dev/zero", O_RDWR) == fd);
            CHECK(read(fd, got, 8) == 8 && !memcmp(got, "\0\0\0\0\0\0\0", 8) && write(fd, got, 8) == 8);
        } else if (how == 3) {
            union {
                struct cmsghdr head;
                char bytes[CMSG_SPACE(sizeof(int))];
            } control = { .head = { CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS } };
            struct iovec one = { got, 1 };
            struct msghdr message = { .msg_iov = &one, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
            memcpy(CMSG_DATA(&control.head), &file, sizeof file);
            CHECK(sendmsg(unix_ends[0], &message, 0) == 1 && recvmsg(unix_ends[1], &message, 0) == 1);
            int passed;
            memcpy(&passed, CMSG_DATA(&control.head), sizeof passed);
            CHECK(passed == fd && pread(fd, got, 4, 0) == 4 && !memcmp(got, "file", 4));
        } else if (how == 6 || how == 8) {
            CHECK(pread(fd, got, 4, 0) == 4 && !memcmp(got, "file", 4) && lseek(fd, 0, SEEK_SET) == 0);
            CHECK(read(fd, got, 4) == 4 && !memcmp(got, "file", 4) && recv(fd, got, 1, 0) == -1 && errno == ENOTSOCK);
        } else {
            CHECK(!pipe(pipes) && (pipes[0] == fd || pipes[1] == fd));
            moves(pipes[1], pipes[0]);
        }
        close(fd);
        if (pipes[0] >= 0)
            close(pipes[0] == fd ? pipes[1] : pipes[0]);
        close(ends[0]), close(other);
    }
    close(file), close(unix_ends[0]), close(unix_ends[1]);
}

static void *sleeps_in_loop(void *at)
{
    struct epoll_event event;
    int is;
    while ((is = epoll_wait(*(int *)at, &event, 1, -1)) < 0 && errno == EINTR)
        ;
    return (void *)(long)(is == 1 && event.events & EPOLLIN);
}

/* A program that closes, and uses, whatever numbers there are finds nothing there that it has not made. */
static void all_are_closed(void)
{
    pid_t child = fork();
    if (child == 0) {
        for (int n = 0; n < 3; n++) {
            int ends[2], more[2], pipes[2], epoll, copies[64];
            struct epoll_event event = { EPOLLIN, { 0 } };
            char got[64];
            void *heard;
            pthread_t thread;
            if (n == 1)
                CHECK(!close_range(3, ~0U, 0));
            else if (n == 2)
                closefrom(3);
            CHECK(!pipe(pipes));
            for (int i = 0; i < 64; i++)
                CHECK((copies[i] = n ? dup2(pipes[1], 890 + i) : dup(pipes[1])) >= 0);
            busy(ends), busy(more);
            /* One sleeps in a loop while another one makes it hear of more. */
            epoll = epoll_create1(0);
            CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, ends[1], &event));
            give(more[0], "x", 1);
            CHECK(!pthread_create(&thread, NULL, sleeps_in_loop, &epoll));
            nap(20000);
            CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, more[1], &event));
            CHECK(!pthread_join(thread, &heard) && heard);
            CHECK(!fcntl(pipes[0], F_SETFL, O_NONBLOCK) && read(pipes[0], got, sizeof got) == -1 && errno == EAGAIN);
            close(epoll);
            for (int i = 0; i < 64; i++)
                CHECK(write(copies[i], "y", 1) == 1);
            CHECK(read(pipes[0], got, sizeof got) == 64);
            rounds(ends[0], ends[1], 20);
        }
        _exit(0);
    }
    ends_well(child);
}

static volatile int reader;

static void *reads_on(void *at)
{
    char byte;
    reader = gettid();
    return (void *)recv(*(int *)at, &byte, 1, 0);
}

/* Until a thread sleeps. */
static void sleeps(int thread)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    do {
        nap(200);
        int file = open(path, O_RDONLY);
        CHECK(file >= 0 && read(file, text, sizeof text - 1) > 0);
        close(file);
    } while (!strstr(text, ") S "));
}

/* One thread waits while another one closes, and opens another connection by the number. */
static void closed_by_another(void)
{
    for (int n = 0; n < 20; n++) {
        int ends[2], others[2];
        pthread_t thread;
        busy(ends);
        int fd = ends[1], listener_like;
        reader = 0;
        CHECK(!pthread_create(&thread, NULL, reads_on, &fd));
        while (!reader)
            nap(100);
        sleeps(reader);
        nap(n % 2 ? 0 : 12000);
        close(ends[1]);
        /* The number of what listens is the first one that is free. */
        pair(others);
        if (others[0] != fd && others[1] != fd) {
            listener_like = dup2(others[1], fd);
            CHECK(listener_like == fd);
            close(others[1]);
            others[1] = fd;
        }
        rounds(others[0], others[1], 100);
        close(ends[0]);
        CHECK(!pthread_join(thread, NULL));
        rounds(others[0], others[1], 20);
        close(others[0]), close(others[1]);
    }
}

static void *opens_and_closes(void *seed)
{
    for (int n = 0; n < 60; n++) {
        int ends[2], pipes[2];
        pair(ends);
        rounds(ends[0], ends[1], 5 + (n + (int)(long)seed) % 20);
        close(ends[n % 2]);
        CHECK(!pipe(pipes));
        moves(pipes[1], pipes[0]);
        close(ends[!(n % 2)]);
        moves(pipes[1], pipes[0]);
        close(pipes[0]), close(pipes[1]);
    }
    return NULL;
}

static void threads_open_and_close(void)
{
    pthread_t threads[4];
    for (long n = 0; n < 4; n++)
        CHECK(!pthread_create(&threads[n], NULL, opens_and_closes, (void *)n));
    for (int n = 0; n < 4; n++)
        CHECK(!pthread_join(threads[n], NULL));
}

/* ---- Forks ---- */

static volatile int over;

static void *goes_on(void *at)
{
    int *ends = at;
    char byte;
    struct pollfd fd = { ends[1], POLLIN, 0 };
    struct epoll_event event = { EPOLLIN, { 0 } };
    int epoll = epoll_create1(0);
    CHECK(!epoll_ctl(epoll, EPOLL_CTL_ADD, ends[1], &event));
    for (int n = 0; !over; n++) {
        give(ends[0], "x", 1);
        if (n % 3 == 0)
            CHECK(poll(&fd, 1, -1) == 1);
        if (n % 3 == 1)
            CHECK(epoll_wait(epoll, &event, 1, -1) == 1);
        whole(ends[1], &byte, 1);
    }
    close(epoll);
    return NULL;
}

/* The child does at once what the parent's other threads are amid. */
static void forks_amid_calls(void)
{
    int ends[4][2];
    pthread_t threads[3];
    over = 0;
    for (int n = 0; n < 4; n++)
        busy(ends[n]);
    for (int n = 0; n < 3; n++)
        CHECK(!pthread_create(&threads[n], NULL, goes_on, ends[n]));
    for (int n = 0; n < 150; n++) {
        pid_t child = fork();
        if (child == 0) {
            char byte;
            struct pollfd fd = { ends[n % 3][1], POLLIN, 0 };
            struct sigaction action = { .sa_handler = counts };
            alarm(20);
            recv(ends[n % 3][1], &byte, 0, MSG_DONTWAIT | MSG_PEEK);
            recv(ends[n % 3][1], &byte, 1, MSG_DONTWAIT | MSG_PEEK);
            poll(&fd, 1, 0);
            CHECK(!sigaction(SIGUSR1, &action, NULL));
            rounds(ends[3][0], ends[3][1], 3);
            for (int i = 0; i < 4; i++)
                close(ends[i][0]), close(ends[i][1]);
            _exit(0);
        }
        ends_well(child);
    }
    over = 1;
    for (int n = 0; n < 3; n++)
        CHECK(!pthread_join(threads[n], NULL));
    for (int n = 0; n < 4; n++) {
        rounds(ends[n][0], ends[n][1], 9);
        close(ends[n][0]), close(ends[n][1]);
    }
}

static int is_quiet(int fd)
{
    struct pollfd fds = { fd, POLLIN | POLLRDHUP, 0 };
    return poll(&fds, 1, 50) == 0;
}

/* The last close alone is one for the peer. */
static void last_close(void)
{
    char byte;
    for (volatile int how = 0; how < 6; how++) {
        int ends[2], go[2];
        busy(ends);
        CHECK(!pipe(go));
        pid_t child;
        if (how == 3) {
            child = vfork();
            if (child == 0) {
                close(ends[1]);
                _exit(0);
            }
        } else if (how == 4) {
            char *words[] = { "true", NULL };
            CHECK(!posix_spawn(&child, "/bin/true", NULL, NULL, words, environ));
        } else if (how == 5)
            child = _Fork();
        else
            child = fork();
        if (child == 0) {
            close(go[1]), close(ends[0]);
            if (how == 2) {
                char *words[] = { "true", NULL };
                execve("/bin/true", words, environ);
            }
            read(go[0], &byte, 1);
            give(ends[1], "y", 1);
            if (how != 1)
                close(ends[1]);
            _exit(0);
        }
        close(go[0]);
        if (how >= 2 && how != 5) {
            ends_well(child);
            rounds(ends[0], ends[1], 30);
            CHECK(is_quiet(ends[0]));
            close(ends[1]);
        } else {
            close(ends[1]);
            CHECK(is_quiet(ends[0]));
            close(go[1]);
            whole(ends[0], &byte, 1);
            ends_well(child);
            go[1] = -1;
        }
        CHECK(recv(ends[0], &byte, 1, 0) == 0);
        close(ends[0]);
        if (go[1] >= 0)
            close(go[1]);
    }
    /* Who has had it, and is no more, does not count: what was rung for nobody is no reset. */
    for (int n = 0; n < 3; n++) {
        int ends[2];
        busy(ends);
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        if (n)
            ends_well(child);
        else
            nap(50000);
        rounds(ends[0], ends[1], 30);
        double before = used();
        CHECK(is_quiet(ends[1]));
        /* Leaves a bell, in a rack. */
        struct pollfd fd = { ends[1], POLLIN, 0 };
        give(ends[0], "x", 1);
        CHECK(poll(&fd, 1, 10000) == 1);
        whole(ends[1], &byte, 1);
        CHECK(used() - before < 0.2);
        close(ends[1]);
        CHECK(recv(ends[0], &byte, 1, 0) == 0);
        close(ends[0]);
        if (!n)
            ends_well(child);
    }
}

/* Parent and child read the same connection: every byte comes once, and nobody sleeps through what is there for him. */
static void both_read(void)
{
    for (int how = 0; how < 3; how++) {
        int ends[2], said[2], count = 0;
        char byte;
        busy(ends);
        CHECK(!pipe(said));
        pid_t child = fork();
        if (child == 0) {
            close(ends[0]);
            for (;;) {
                struct pollfd fd = { ends[1], POLLIN, 0 };
                if (how == 1)
                    CHECK(poll(&fd, 1, -1) == 1);
                ssize_t now = recv(ends[1], &byte, 1, how == 1 ? MSG_DONTWAIT : 0);
                if (now == 0 || (now == 1 && byte == 'q'))
                    _exit(0);
                if (now == 1)
                    CHECK(write(said[1], "c", 1) == 1);
                else
                    CHECK(errno == EAGAIN);
            }
        }
        pid_t writer = fork();
        if (writer == 0) {
            for (int n = 0; n < 600; n++) {
                give(ends[0], "x", 1);
                if (n % 50 == 0)
                    nap(2000);
            }
            _exit(0);
        }
        fcntl(said[0], F_SETFL, O_NONBLOCK);
        while (count < 600) {
            struct pollfd fd = { ends[1], POLLIN, 0 };
            int is = how == 2 ? 1 : poll(&fd, 1, 5);
            CHECK(is >= 0);
            if (is && recv(ends[1], &byte, 1, MSG_DONTWAIT) == 1)
                count++;
            while (read(said[0], &byte, 1) == 1)
                count++;
        }
        CHECK(count == 600);
        ends_well(writer);
        give(ends[0], "q", 1);
        ends_well(child);
        /* One of them has gone; what it was rung for the other one hears of. */
        child = fork();
        if (child == 0) {
            nap(30000);
            give(ends[0], "z", 1);
            _exit(0);
        }
        struct pollfd fd = { ends[1], POLLIN, 0 };
        CHECK(poll(&fd, 1, 10000) == 1);
        whole(ends[1], &byte, 1);
        ends_well(child);
        close(ends[0]), close(ends[1]), close(said[0]), close(said[1]);
    }
}

/* ---- Loops ---- */

static int add(int epoll, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = { events, { .u64 = data } };
    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static int change(int epoll, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = { events, { .u64 = data } };
    return epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
}

static void *changes(void *at)
{
    int *both = at;
    nap(3000);
    CHECK(!change(both[0], both[1], EPOLLIN | EPOLLOUT, 5));
    return NULL;
}

/* Loops come and go; what they watched stays. */
static void loops_leak_nothing(void)
{
    int ends[2], before = 0;
    struct epoll_event event;
    pthread_t thread;
    busy(ends);
    for (int n = 0; n < 300; n++) {
        int epoll = epoll_create1(0), both[2] = { epoll, ends[1] };
        if (n == 100)
            before = descriptors() - 1;
        CHECK(!add(epoll, ends[1], EPOLLIN, 1) && epoll_wait(epoll, &event, 1, 0) == 0);
        if (n % 10 == 0) {
            /* Woken past the kernel, in a rack. */
            CHECK(!pthread_create(&thread, NULL, changes, both));
            CHECK(epoll_wait(epoll, &event, 1, -1) == 1 && event.data.u64 == 5);
            CHECK(!pthread_join(thread, NULL));
        }
        int copy = dup(ends[1]);
        CHECK(!add(epoll, copy, EPOLLOUT, 2) && epoll_wait(epoll, &event, 1, 0) == 1);
        close(copy);
        close(epoll);
    }
    CHECK(descriptors() == before);
    rounds(ends[0], ends[1], 9);
    close(ends[0]), close(ends[1]);
}

/* A registration is one of the connection, not of the number. */
static void loops_and_copies(void)
{
    for (int edge = 0; edge < 2; edge++) {
        int ends[2], others[2], epoll = epoll_create1(0);
        struct epoll_event events[4];
        char byte;
        busy(ends), busy(others);
        CHECK(!add(epoll, ends[1], EPOLLIN | (edge ? EPOLLET : 0), 11));
        int copy = dup(ends[1]), number = ends[1];
        close(number);
        for (int n = 0; n < 3; n++) {
            if (n == 2)
                nap(5000);
            give(ends[0], "x", 1);
            CHECK(epoll_wait(epoll, events, 4, 10000) == 1 && events[0].data.u64 == 11 && events[0].events == EPOLLIN);
            whole(copy, &byte, 1);
            CHECK(epoll_wait(epoll, events, 4, 10) == 0);
        }
        CHECK(change(epoll, copy, EPOLLIN, 1) == -1 && errno == ENOENT);
        CHECK(change(epoll, number, EPOLLIN, 1) == -1 && errno == EBADF);
        /* The number is another connection's. */
        CHECK(dup2(others[1], number) == number);
        CHECK(change(epoll, number, EPOLLIN, 1) == -1 && errno == ENOENT);
        CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, number, NULL) == -1 && errno == ENOENT);
        CHECK(!add(epoll, number, EPOLLIN, 22));
        give(ends[0], "x", 1), give(others[0], "y", 1);
        nap(1000);
        int seen = 0;
        for (int n = 0; n < 40 && seen != 3; n++)
            for (int i = epoll_wait(epoll, events, 4, 10000); i-- > 0;)
                seen |= events[i].data.u64 == 11 ? 1 : events[i].data.u64 == 22 ? 2 : 4;
        CHECK(seen == 3);
        whole(copy, &byte, 1), whole(number, &byte, 1);
        CHECK(epoll_wait(epoll, events, 4, 10) == 0);
        /* It ends with the last of them. */
        close(copy);
        CHECK(recv(ends[0], &byte, 1, 0) == 0);
        CHECK(epoll_wait(epoll, events, 4, 10) == 0);
        close(number), close(others[0]), close(others[1]), close(ends[0]), close(epoll);
    }
}

/* What is always ready keeps nothing else waiting, however little room there is. */
static void loops_are_fair(void)
{
    for (int room = 1; room < 4; room += 2) {
        int ends[3][2], pipes[2], epoll = epoll_create1(0), told[4] = { 0 };
        struct epoll_event events[4];
        CHECK(!pipe(pipes) && write(pipes[1], "x", 1) == 1);
        for (int n = 0; n < 3; n++) {
            busy(ends[n]);
            give(ends[n][0], "x", 1);
            CHECK(!add(epoll, ends[n][1], EPOLLIN, n));
        }
        CHECK(!add(epoll, pipes[0], EPOLLIN, 3));
        for (int n = 0; n < 400; n++) {
            int count = epoll_wait(epoll, events, room, -1);
            CHECK(count > 0 && count <= room);
            while (count-- > 0)
                told[events[count].data.u64]++;
        }
        for (int n = 0; n < 4; n++)
            CHECK(told[n] >= 10);
        for (int n = 0; n < 3; n++)
            close(ends[n][0]), close(ends[n][1]);
        close(pipes[0]), close(pipes[1]), close(epoll);
    }
}

static void loops_refuse(void)
{
    int ends[2], pipes[2], epoll = epoll_create1(0);
    struct epoll_event event, *none = NULL;
    struct timespec no_time = { 0, 1000000000 }, negative = { -1, 0 }, little = { 0, 200000 };
    struct timeval wrong_time = { -1, 0 }, time = { 2, 500000 };
    struct pollfd fd;
    fd_set set;
    char byte;
    volatile int none_at_all = -1;
    CHECK(!pipe(pipes));
    for (int ringed = 0; ringed < 2; ringed++) {
        if (ringed)
            busy(ends);
        else
            pair(ends);
        int s = ends[1];
        CHECK(!add(epoll, s, EPOLLIN, 1) && add(epoll, s, EPOLLIN, 1) == -1 && errno == EEXIST);
        CHECK(!epoll_ctl(epoll, EPOLL_CTL_DEL, s, NULL));
        CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, s, NULL) == -1 && errno == ENOENT);
        CHECK(change(epoll, s, EPOLLIN, 1) == -1 && errno == ENOENT);
        CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, s, none) == -1 && errno == EFAULT);
        CHECK(epoll_ctl(epoll, 99, s, &event) == -1 && errno == EINVAL);
        CHECK(add(999, s, EPOLLIN, 1) == -1 && errno == EBADF);
        CHECK(add(pipes[0], s, EPOLLIN, 1) == -1 && errno == EINVAL);
        CHECK(add(epoll, 999, EPOLLIN, 1) == -1 && errno == EBADF);
        CHECK(add(epoll, epoll, EPOLLIN, 1) == -1 && errno == EINVAL);
        CHECK(add(epoll, s, EPOLLIN | EPOLLONESHOT | EPOLLEXCLUSIVE, 1) == -1 && errno == EINVAL);
        CHECK(!add(epoll, s, EPOLLIN | EPOLLOUT | EPOLLEXCLUSIVE, 7));
        CHECK(change(epoll, s, EPOLLIN, 1) == -1 && errno == EINVAL);
        CHECK(epoll_wait(epoll, &event, 1, 10000) == 1 && event.events == EPOLLOUT && event.data.u64 == 7);
        CHECK(!epoll_ctl(epoll, EPOLL_CTL_DEL, s, NULL) && !add(epoll, s, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET, 8));
        rounds(ends[0], s, 40);
        while (epoll_wait(epoll, &event, 1, 0) == 1)
            ;
        give(ends[0], "x", 1);
        CHECK(epoll_wait(epoll, &event, 1, 10000) == 1 && event.events == EPOLLIN && event.data.u64 == 8);
        whole(s, &byte, 1);
        CHECK(epoll_wait(epoll, &event, 1, 10) == 0);
        CHECK(!epoll_ctl(epoll, EPOLL_CTL_DEL, s, NULL) && !add(epoll, s, EPOLLIN | EPOLLONESHOT, 9));
        CHECK(change(epoll, s, EPOLLIN | EPOLLEXCLUSIVE, 1) == -1 && errno == EINVAL);
        /* Told once, until it is asked for again. */
        for (int n = 0; n < 5; n++) {
            give(ends[0], "x", 1);
            CHECK(epoll_wait(epoll, &event, 1, 10000) == 1 && event.events == EPOLLIN);
            CHECK(epoll_wait(epoll, &event, 1, 5) == 0);
            if (n % 2)
                whole(s, &byte, 1);
            give(ends[0], "y", 1);
            CHECK(epoll_wait(epoll, &event, 1, 5) == 0);
            CHECK(!change(epoll, s, EPOLLIN | EPOLLONESHOT | (n == 3 ? EPOLLET : 0), 9));
            CHECK(epoll_wait(epoll, &event, 1, 10000) == 1);
            while (recv(s, &byte, 1, MSG_DONTWAIT) == 1)
                ;
            CHECK(!change(epoll, s, EPOLLIN | EPOLLONESHOT, 9));
        }
        CHECK(epoll_wait(epoll, &event, 0, 0) == -1 && errno == EINVAL);
        CHECK(epoll_wait(epoll, &event, none_at_all, 0) == -1 && errno == EINVAL);
        CHECK(epoll_wait(pipes[0], &event, 1, 0) == -1 && errno == EINVAL);
        CHECK(epoll_wait(999, &event, 1, 0) == -1 && errno == EBADF);
        CHECK(epoll_pwait2(epoll, &event, 1, &little, NULL) == 0);
        CHECK(epoll_pwait2(epoll, &event, 1, &no_time, NULL) == -1 && errno == EINVAL);
        CHECK(epoll_pwait2(epoll, &event, 1, &negative, NULL) == -1 && errno == EINVAL);
        fd.fd = s, fd.events = POLLIN;
        CHECK(ppoll(&fd, 1, &no_time, NULL) == -1 && errno == EINVAL);
        CHECK(ppoll(&fd, 1, &negative, NULL) == -1 && errno == EINVAL);
        FD_ZERO(&set);
        FD_SET(s, &set);
        CHECK(select(s + 1, &set, NULL, NULL, &wrong_time) == -1 && errno == EINVAL);
        FD_ZERO(&set);
        FD_SET(s, &set);
        give(ends[0], "x", 1);
        time.tv_sec = 2, time.tv_usec = 500000;
        /* What is left of the time; a very long one is one. */
        CHECK(select(s + 1, &set, NULL, NULL, &time) == 1 && (time.tv_sec < 2 || time.tv_usec < 500000) && time.tv_sec >= 0);
        time.tv_sec = 0x7fffffffffffff;
        CHECK(select(s + 1, &set, NULL, NULL, &time) == 1);
        whole(s, &byte, 1);
        close(ends[0]), close(ends[1]);
    }
    close(epoll), close(pipes[0]), close(pipes[1]);
}

/* ---- Pipes ---- */

static void pipes_and_rings(void)
{
    int ends[2], pipes[2], zero = open("/dev/zero", O_RDWR);
    static char block[1 << 17], got[1 << 17];
    off_t offset = 0;
    for (unsigned n = 0; n < sizeof block; n++)
        block[n] = n * 7 + n / 251;
    busy(ends);
    CHECK(!pipe(pipes) && fcntl(pipes[1], F_SETPIPE_SZ, 1 << 16) == 1 << 16);
    int s = ends[1];
    /* Nothing there, and no waiting: of a connection the connection itself says so. */
    CHECK(!fcntl(s, F_SETFL, O_NONBLOCK));
    CHECK(splice(s, NULL, pipes[1], NULL, 100, 0) == -1 && errno == EAGAIN);
    CHECK(!fcntl(s, F_SETFL, 0));
    CHECK(splice(pipes[0], NULL, s, NULL, 100, SPLICE_F_NONBLOCK) == -1 && errno == EAGAIN);
    /* What cannot be. */
    CHECK(splice(s, &offset, pipes[1], NULL, 100, SPLICE_F_NONBLOCK) == -1 && errno == EINVAL);
    CHECK(splice(s, NULL, pipes[1], &offset, 100, SPLICE_F_NONBLOCK) == -1 && errno == ESPIPE);
    CHECK(splice(pipes[0], NULL, s, &offset, 100, SPLICE_F_NONBLOCK) == -1 && errno == EINVAL);
    CHECK(splice(s, NULL, zero, NULL, 100, 0) == -1 && errno == EINVAL);
    CHECK(splice(s, NULL, pipes[1], NULL, 100, 1 << 10) == -1 && errno == EINVAL);
    CHECK(splice(s, NULL, pipes[1], NULL, 0, 0) == 0);
    CHECK(sendfile(s, 999, NULL, 100) == -1 && errno == EBADF);
    CHECK(sendfile(s, pipes[0], NULL, 100) == -1 && errno == EINVAL);
    offset = -5;
    CHECK(sendfile(s, zero, &offset, 100) == -1 && errno == EINVAL);
    /* A pipe that is full, or has room for a part. */
    give(ends[0], block, 100000);
    nap(1000);
    CHECK(write(pipes[1], block, 1 << 16) == 1 << 16);
    CHECK(splice(s, NULL, pipes[1], NULL, 100, SPLICE_F_NONBLOCK) == -1 && errno == EAGAIN);
    CHECK(!fcntl(pipes[1], F_SETFL, O_NONBLOCK));
    CHECK(splice(s, NULL, pipes[1], NULL, 100, 0) == -1 && errno == EAGAIN);
    CHECK(!fcntl(pipes[1], F_SETFL, 0));
    CHECK(read(pipes[0], got, 20000) == 20000);
    ssize_t n = splice(s, NULL, pipes[1], NULL, 100000, 0), count;
    CHECK(n > 0 && n <= 20000 + 4096);
    CHECK((count = read(pipes[0], got, (1 << 16) - 20000)) == (1 << 16) - 20000);
    for (ssize_t at = 0; at < 100000;) {
        if (at >= n) {
            ssize_t more = splice(s, NULL, pipes[1], NULL, 100000 - n, SPLICE_F_NONBLOCK);
            CHECK(more > 0);
            n += more;
        }
        count = read(pipes[0], got, sizeof got);
        CHECK(count > 0 && !memcmp(got, block + at, count));
        at += count;
    }
    CHECK(n == 100000);
    /* A connection that is full. */
    CHECK(!fcntl(s, F_SETFL, O_NONBLOCK));
    ssize_t sent = full(s);
    CHECK(write(pipes[1], block, 5000) == 5000);
    CHECK(splice(pipes[0], NULL, s, NULL, 5000, 0) == -1 && errno == EAGAIN);
    take(ends[0], sent);
    for (int tries = 0; (n = splice(pipes[0], NULL, s, NULL, 9000, 0)) < 0 && tries < 1000; tries++) {
        CHECK(errno == EAGAIN);
        nap(1000);
    }
    CHECK(n == 5000);
    whole(ends[0], got, 5000);
    CHECK(!memcmp(got, block, 5000) && !fcntl(s, F_SETFL, 0));
    /* The pipe goes round: tee leaves what splice takes. */
    int more[2];
    CHECK(!pipe(more) && write(pipes[1], block, 3000) == 3000 && tee(pipes[0], more[1], 3000, SPLICE_F_NONBLOCK) == 3000);
    CHECK(splice(pipes[0], NULL, s, NULL, 3000, SPLICE_F_MORE) == 3000 && splice(more[0], NULL, s, NULL, 3000, 0) == 3000);
    whole(ends[0], got, 6000);
    CHECK(!memcmp(got, block, 3000) && !memcmp(got + 3000, block, 3000));
    /* Ends. */
    close(more[1]);
    CHECK(splice(more[0], NULL, s, NULL, 100, 0) == 0);
    shutdown(ends[0], SHUT_WR);
    CHECK(splice(s, NULL, pipes[1], NULL, 100, 0) == 0);
    signal(SIGPIPE, SIG_IGN);
    close(pipes[0]);
    close(ends[0]), close(ends[1]);
    busy(ends);
    give(ends[0], "x", 1);
    CHECK(splice(ends[1], NULL, pipes[1], NULL, 100, 0) == -1 && errno == EPIPE);
    signal(SIGPIPE, SIG_DFL);
    close(ends[0]), close(ends[1]), close(pipes[1]), close(more[0]), close(zero);
}

/* ---- Threads that are ended ---- */

static int cleaned;

static void cleans(void *at)
{
    (void)at;
    __atomic_add_fetch(&cleaned, 1, __ATOMIC_SEQ_CST);
}

struct work {
    int kind, fd, epoll, listener, other;
};

static void *works_until_ended(void *at)
{
    struct work *work = at;
    struct pollfd fd = { work->fd, POLLIN, 0 };
    struct epoll_event event;
    static char block[1 << 20];
    fd_set set;
    char byte = 'w';
    pthread_cleanup_push(cleans, NULL);
    for (;;) {
        FD_ZERO(&set);
        FD_SET(work->fd, &set);
        switch (work->kind) {
        case 0: recv(work->fd, &byte, 1, 0); break;
        case 1: read(work->fd, &byte, 1); break;
        case 2: poll(&fd, 1, -1); break;
        case 3: select(work->fd + 1, &set, NULL, NULL, NULL); break;
        case 4: epoll_wait(work->epoll, &event, 1, -1); break;
        case 5: accept(work->listener, NULL, NULL); break;
        case 6: send(work->fd, block, sizeof block, 0); break;
        case 7:
            /* Never waits. */
            send(work->fd, &byte, 1, 0);
            recv(work->other, &byte, 1, 0);
            break;
        case 8: {
            struct timespec time = { 100, 0 };
            ppoll(&fd, 1, &time, NULL);
            break;
        }
        }
    }
    pthread_cleanup_pop(0);
}

static void threads_are_ended(void)
{
    for (int ringed = 0; ringed < 2; ringed++)
        for (int kind = 0; kind < 9; kind++)
            for (int n = 0; n < 3; n++) {
                struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
                struct work work = { kind, -1, epoll_create1(0), socket(AF_INET, SOCK_STREAM, 0), -1 };
                int ends[2], before = cleaned;
                pthread_t thread;
                void *result;
                char byte;
                CHECK(!bind(work.listener, (void *)&at, sizeof at) && !listen(work.listener, 1));
                if (ringed)
                    busy(ends);
                else
                    pair(ends);
                work.fd = ends[1], work.other = ends[0];
                CHECK(!add(work.epoll, ends[1], EPOLLIN, 1));
                CHECK(!pthread_create(&thread, NULL, works_until_ended, &work));
                /* While it looks, soon after, and once it sleeps. */
                nap((int[]){ 0, 300, 15000 }[n]);
                CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED);
                CHECK(cleaned == before + 1);
                /* Nothing of it is left. */
                if (kind == 7) {
                    give(ends[1], "E", 1);
                    do
                        whole(ends[0], &byte, 1);
                    while (byte != 'E');
                }
                if (kind == 6) {
                    close(ends[1]);
                    static char block[1 << 16];
                    while (recv(ends[0], block, sizeof block, 0) > 0)
                        ;
                } else {
                    rounds(ends[0], ends[1], 60);
                    close(ends[1]);
                    CHECK(recv(ends[0], &byte, 1, 0) == 0);
                }
                close(ends[0]), close(work.epoll), close(work.listener);
            }
}

/* ---- Little room ---- */

static void without_descriptors(void)
{
    pid_t child = fork();
    if (child == 0) {
        int ends[2][2], ringed[2], epoll = epoll_create1(0);
        struct rlimit limit, tight;
        struct epoll_event event;
        pthread_t thread;
        void *heard;
        pair(ends[0]), pair(ends[1]);
        busy(ringed);
        CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
        tight = limit;
        tight.rlim_cur = dup(0);
        close(tight.rlim_cur);
        CHECK(!setrlimit(RLIMIT_NOFILE, &tight));
        CHECK(socket(AF_INET, SOCK_STREAM, 0) == -1 && errno == EMFILE && dup(0) == -1 && errno == EMFILE);
        /* Connections become busy all the same. */
        rounds(ends[0][0], ends[0][1], 100);
        rounds(ends[1][0], ends[1][1], 100);
        rounds(ringed[0], ringed[1], 100);
        CHECK(!add(epoll, ringed[1], EPOLLIN, 1) && epoll_wait(epoll, &event, 1, 0) == 0);
        CHECK(!pthread_create(&thread, NULL, sleeps_in_loop, &epoll));
        nap(20000);
        /* Another thread changes what one hears of that sleeps. */
        give(ends[0][0], "x", 1);
        CHECK(!add(epoll, ends[0][1], EPOLLIN, 2));
        CHECK(!pthread_join(thread, &heard) && heard);
        CHECK(!change(epoll, ringed[1], EPOLLOUT, 3) && epoll_wait(epoll, &event, 1, 10000) == 1);
        CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
        busy(ends[0]);
        _exit(0);
    }
    ends_well(child);
}

/* ---- Limits of time ---- */

static void *takes_late(void *at)
{
    nap(300000);
    take(*(int *)at, 8 << 20);
    return NULL;
}

static void *gives_late(void *at)
{
    nap(300000);
    give(*(int *)at, "late", 4);
    return NULL;
}

static void limits_are_apart(void)
{
    struct timeval limit = { 0, 30000 };
    char *block = calloc(1, 8 << 20), got[4];
    int flags[] = { 0, SA_RESTART };
    for (int how = 0; how < 2; how++) {
        int ends[2];
        pthread_t thread;
        busy(ends);
        handle(SIGUSR2, counts, flags[how]);
        CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
        CHECK(!pthread_create(&thread, NULL, takes_late, &ends[1]));
        CHECK(send(ends[0], block, 8 << 20, 0) == 8 << 20);
        CHECK(!pthread_join(thread, NULL));
        CHECK(recv(ends[0], got, 1, 0) == -1 && errno == EAGAIN);
        close(ends[0]), close(ends[1]);
        busy(ends);
        CHECK(!setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
        CHECK(!pthread_create(&thread, NULL, gives_late, &ends[1]));
        CHECK(recv(ends[0], got, 4, MSG_WAITALL) == 4);
        CHECK(!pthread_join(thread, NULL));
        ssize_t sent = send(ends[0], block, 8 << 20, 0), now;
        CHECK(sent > 0 && sent < 8 << 20);
        /* Some room may be found later. */
        while ((now = send(ends[0], block, 8 << 20, 0)) > 0)
            sent += now;
        CHECK(errno == EAGAIN);
        take(ends[1], sent);
        close(ends[0]), close(ends[1]);
    }
    free(block);
}

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {
    { "handlers_work", handlers_work },
    { "handlers_jump", handlers_jump },
    { "handlers_are_own", handlers_are_own },
    { "numbers_come_again", numbers_come_again },
    { "all_are_closed", all_are_closed },
    { "closed_by_another", closed_by_another },
    { "threads_open_and_close", threads_open_and_close },
    { "forks_amid_calls", forks_amid_calls },
    { "last_close", last_close },
    { "both_read", both_read },
    { "loops_leak_nothing", loops_leak_nothing },
    { "loops_and_copies", loops_and_copies },
    { "loops_are_fair", loops_are_fair },
    { "loops_refuse", loops_refuse },
    { "pipes_and_rings", pipes_and_rings },
    { "threads_are_ended", threads_are_ended },
    { "without_descriptors", without_descriptors },
    { "limits_are_apart", limits_are_apart },
};

int main(int count, char **words)
{
    for (size_t n = 0; n < sizeof parts / sizeof *parts; n++) {
        int is = count < 2;
        for (int word = 1; word < count; word++)
            is |= !strcmp(words[word], parts[n].name);
        if (!is)
            continue;
        part = parts[n].name;
        parts[n].run();
        puts(part);
        fflush(stdout);
    }
    return 0;
}
