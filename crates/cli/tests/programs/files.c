/* What programs may expect of the device's files, beyond that they are there: as a kernel's. Says "as a kernel's", or each
 * thing that is not. Argument: a directory of its own. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <infiniband/verbs.h>

#define DEVICE "/sys/class/infiniband/remora0"
#define ADAPTER "/sys/devices/pci0052:00/0052:00:00.0"
#define CHANNEL "/dev/infiniband/rdma_cm"
#define COUNTERS DEVICE "/ports/1/counters/"

static int failures;
static const char *scratch;

static void expect(const char *what, int good)
{
    if (!good) {
        printf("%s (errno %d)\n", what, errno);
        failures++;
    }
    errno = 0;
}

static int is(const char *bytes, ssize_t len, const char *wanted)
{
    return len == (ssize_t)strlen(wanted) && !memcmp(bytes, wanted, len);
}

static void paths(void)
{
    static const char device[] = ADAPTER "/infiniband/remora0";
    char out[PATH_MAX], link[64];
    struct stat st;
    char *said;
    int fd;

    expect("lstat of link/", lstat(DEVICE "/", &st) == 0 && S_ISDIR(st.st_mode));
    expect("lstat of link/.", lstat(DEVICE "/.", &st) == 0 && S_ISDIR(st.st_mode));
    expect("readlink of link/", readlink(DEVICE "/", out, sizeof out) == -1 && errno == EINVAL);
    expect("stat of node/", stat("/dev/infiniband/uverbs0/", &st) == -1 && errno == ENOTDIR);
    expect("stat of node/..", stat("/dev/infiniband/uverbs0/..", &st) == -1 && errno == ENOTDIR);
    expect("stat up and out", stat("/sys/class/infiniband/../../kernel", &st) == 0);
    expect("realpath up and out", realpath(DEVICE "/../../../../../class/net", out) && !strcmp(out, "/sys/class/net"));
    expect("realpath up, out and in", realpath("/dev/infiniband/../infiniband/uverbs0", out) && !strcmp(out, "/dev/infiniband/uverbs0"));
    expect("realpath of nothing", !realpath(DEVICE "/nothing", out) && errno == ENOENT && !strncmp(out, ADAPTER, strlen(ADAPTER)));

    /* Buffers of all sizes: what is in front of the path elsewhere needs no room. */
    fd = open(DEVICE, O_RDONLY | O_DIRECTORY);
    sprintf(link, "/proc/self/fd/%d", fd);
    expect("readlink", is(out, readlink(link, out, sizeof out), device));
    expect("readlink, room for it", is(out, readlink(link, out, strlen(device)), device));
    expect("readlink, cut off", readlink(link, out, 20) == 20 && !memcmp(out, device, 20));
    expect("readlink, no room", readlink(link, out, 0) == -1 && errno == EINVAL);
    expect("fchdir", fchdir(fd) == 0);
    close(fd);
    expect("getcwd, room for it", getcwd(out, sizeof device) && !strcmp(out, device));
    expect("getcwd, too little", !getcwd(out, sizeof device - 1) && errno == ERANGE);
    expect("getcwd, none", !getcwd(out, 0) && errno == EINVAL);
    said = getcwd(NULL, 0);
    expect("getcwd, the library's", said && !strcmp(said, device));
    free(said);
    said = getcwd(NULL, sizeof device);
    expect("getcwd, the library's of this size", said && !strcmp(said, device));
    free(said);
    unsetenv("PWD");
    said = get_current_dir_name();
    expect("get_current_dir_name", said && !strcmp(said, device));
    free(said);
    expect("chdir", chdir("/") == 0);
    expect("fstat of what is no descriptor", fstat(AT_FDCWD, &st) == -1 && errno == EBADF);
}

static void opening(void)
{
    struct { unsigned long long flags, mode, resolve; } how = { O_RDONLY, 0, 0 };
    char out[64];
    struct stat st;
    FILE *file;
    int fd;

    expect("sysfs is not written", open(DEVICE "/node_type", O_WRONLY) == -1 && errno == EACCES);
    expect("nor truncated", open(DEVICE "/node_type", O_RDONLY | O_TRUNC) == -1 && errno == EACCES);
    expect("nor by a stream", !fopen(DEVICE "/node_type", "r+") && errno == EACCES);
    expect("nothing is made there", open(DEVICE "/new", O_RDWR | O_CREAT, 0600) == -1 && errno == EACCES);
    expect("rdma_cm is there", open(CHANNEL, O_RDWR | O_CREAT | O_EXCL, 0600) == -1 && errno == EEXIST);
    expect("rdma_cm is no directory", open(CHANNEL, O_RDONLY | O_DIRECTORY) == -1 && errno == ENOTDIR);
    fd = open(CHANNEL, O_PATH);
    expect("O_PATH", fd >= 0 && fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && write(fd, "x", 1) == -1 && errno == EBADF);
    close(fd);
    fd = open("/dev/infiniband/../infiniband/rdma_cm", O_RDWR);
    expect("rdma_cm by another path", write(fd, "x", 1) == -1 && errno == EINVAL);
    close(fd);
    fd = open("/dev/infiniband/uverbs0", O_RDWR | O_TRUNC);
    expect("a node has nothing to truncate", fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && st.st_size == 0);
    close(fd);
    file = freopen(DEVICE "/node_type", "r", stdin);
    expect("freopen", file && fgets(out, sizeof out, file) && !strcmp(out, "1: CA\n"));
    expect("freopen for writing", !freopen(DEVICE "/node_type", "w", stdin) && errno == EACCES);
    fd = syscall(SYS_openat2, AT_FDCWD, "/", &how, sizeof how);
    if (fd >= 0) {
        int (*call)(int, const char *, void *, size_t);
        close(fd);
        /* C libraries of today may not have it. */
        extern int openat2(int, const char *, void *, size_t) __attribute__((weak));
        call = (int (*)(int, const char *, void *, size_t))openat2;
        if (call) {
            fd = call(AT_FDCWD, DEVICE "/node_type", &how, sizeof how);
            expect("openat2", read(fd, out, sizeof out) == 6);
            close(fd);
        }
    }
}

static int seen, nodes, strange;

static int visit_at(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)kind;
    seen++;
    nodes += S_ISCHR(st->st_mode);
    strange += strncmp(path, "/dev/infiniband", 15) != 0 || strchr(path + at->base, '/') != NULL;
    return 0;
}

static int visit(const char *path, const struct stat *st, int kind)
{
    (void)st;
    (void)kind;
    seen++;
    strange += strncmp(path, DEVICE, strlen(DEVICE)) != 0;
    /* A walk within a walk. */
    if (seen == 2)
        nftw("/dev/infiniband", visit_at, 4, FTW_PHYS);
    return 0;
}

static void walking(void)
{
    struct dirent *entry;
    struct statvfs vfs;
    struct statfs fs;
    struct stat st;
    int fd, count = 0;
    DIR *dir;

    expect("nftw", nftw("/dev/infiniband", visit_at, 4, FTW_PHYS) == 0 && seen == 3 && nodes == 2 && !strange);
    seen = strange = 0;
    expect("ftw", ftw(DEVICE "/ports", visit, 4) == 0 && seen > 20 && !strange);
    fd = open("/dev/infiniband", O_RDONLY | O_DIRECTORY);
    dir = fdopendir(fd);
    while (dir && (entry = readdir(dir)))
        count += entry->d_type == DT_CHR;
    expect("readdir shows nodes", count == 2);
    expect("a node by a name below an open directory", fstatat(fd, "uverbs0", &st, 0) == 0 && S_ISCHR(st.st_mode));
    expect("rdma_cm so", write(openat(fd, "rdma_cm", O_RDWR), "x", 1) == -1 && errno == EINVAL);
    closedir(dir);
    expect("statfs", statfs(DEVICE, &fs) == 0 && statvfs(DEVICE, &vfs) == 0);
    fd = inotify_init();
    expect("inotify", inotify_add_watch(fd, "/dev/infiniband", IN_CREATE) >= 0);
    close(fd);
    expect("chdir to nodes", chdir("/dev/infiniband") == 0);
    /* Of another process's tree. */
    expect("a child's view", system("test -c uverbs0 && test $(stat -c %t uverbs0) = e7 && test \"$(pwd -P)\" = /dev/infiniband") == 0);
    expect("chdir back", chdir("/") == 0);
}

static int channel(void)
{
    int fd = open(CHANNEL, O_RDWR);

    expect("a channel", fd >= 0 && write(fd, "x", 1) == -1 && errno == EINVAL);
    return fd;
}

/* A descriptor that was a channel's is another's later. */
static void descriptors(void)
{
    char name[PATH_MAX];
    int file, fd, status;
    pid_t child;

    snprintf(name, sizeof name, "%s/file", scratch);
    file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    fd = channel();
    expect("dup2 over a channel", dup2(file, fd) == fd && write(fd, "x", 1) == 1);
    close(fd);
    fd = channel();
    expect("dup2 that fails", dup2(-1, fd) == -1 && errno == EBADF && write(fd, "x", 1) == -1 && errno == EINVAL);
    expect("close_range", close_range(fd, fd, 0) == 0 && dup(file) == fd && write(fd, "x", 1) == 1);
    close(fd);
    fd = channel();
    child = vfork();
    if (child == 0) {
        close(fd);
        _exit(0);
    }
    expect("what a vfork's child closes", waitpid(child, &status, 0) == child && write(fd, "x", 1) == -1 && errno == EINVAL);
    child = fork();
    if (child == 0) {
        close(fd);
        _exit(!(dup(file) == fd && write(fd, "x", 1) == 1));
    }
    expect("what a fork's child closes", waitpid(child, &status, 0) == child && status == 0);
    close(fd);
    close(file);
}

static volatile int over;

/* Makes identifiers and loses them with their channel. */
static void *churns(void *nothing)
{
    struct { uint32_t number; uint16_t in, out; uint64_t uid, answer; uint16_t ps; uint8_t rest[6]; } create = {
        .in = 24, .out = 4, .uid = 1, .ps = 0x0106 };
    uint32_t id;

    create.answer = (uintptr_t)&id;
    while (!over) {
        int fd = open(CHANNEL, O_RDWR);

        if (fd < 0 || write(fd, &create, sizeof create) != sizeof create || close(fd))
            return (void *)1;
    }
    return nothing;
}

/* Whatever other threads are amid: a child opens a channel at once, and one of its device. */
static void channels_of_children(void)
{
    pthread_t threads[3];
    void *failed;

    for (int n = 0; n < 3; n++)
        pthread_create(&threads[n], NULL, churns, NULL);
    for (int n = 0; n < 40; n++) {
        int status;
        pid_t child = fork();

        if (child == 0) {
            alarm(30);
            _exit(close(channel()) || failures);
        }
        expect("a channel of a child", waitpid(child, &status, 0) == child && status == 0);
    }
    over = 1;
    for (int n = 0; n < 3; n++)
        expect("channels in threads", pthread_join(threads[n], &failed) == 0 && !failed);
}

/* What a program may do once its first thread has ended. */
static void *registers(void *first)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    static char bytes[64];
    int directory = open("/sys/class", O_RDONLY | O_DIRECTORY);

    pthread_join(*(pthread_t *)first, NULL);
    usleep(20000);
    expect("a region without the first thread", ibv_reg_mr(pd, bytes, sizeof bytes, 0) != NULL);
    expect("a relative name without it", faccessat(directory, "infiniband/remora0/node_type", R_OK, 0) == 0);
    expect("memory that is not there", ibv_reg_mr(pd, (void *)8, 8, 0) == NULL && errno == EFAULT);
    exit(failures);
}

static void without_first_thread(void)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        static pthread_t first;
        pthread_t other;

        first = pthread_self();
        pthread_create(&other, NULL, registers, &first);
        pthread_exit(NULL);
    }
    expect("a program without its first thread", waitpid(child, &status, 0) == child && status == 0);
}

static void *waits(void *path)
{
    return (void *)(long)open(path, O_RDONLY);
}

static long look(void)
{
    struct stat st;
    char out[8];
    int fd = open("/proc/self/maps", O_RDONLY);
    long good = read(fd, out, sizeof out) == sizeof out && stat("/proc", &st) == 0 && readlink("/proc/self/exe", out, 8) == 8;

    close(fd);
    return good && access("/proc", R_OK) == 0;
}

static void *looks(void *nothing)
{
    (void)nothing;
    return (void *)look();
}

static volatile long looked;

static void handler(int number)
{
    (void)number;
    looked = look();
}

static void threads_and_signals(void)
{
    long frame = sysconf(_SC_MINSIGSTKSZ);
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
    stack_t stack = { .ss_sp = malloc(frame + 6144), .ss_size = frame + 6144 };
    char fifo[PATH_MAX];
    pthread_attr_t attributes;
    pthread_t thread;
    void *result;

    snprintf(fifo, sizeof fifo, "%s/fifo", scratch);
    expect("mkfifo", mkfifo(fifo, 0600) == 0);
    pthread_create(&thread, NULL, waits, fifo);
    expect("a thread is cancelled in open", pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, (PTHREAD_STACK_MIN + frame + 4095) / 4096 * 4096);
    expect("a small stack", pthread_create(&thread, &attributes, looks, NULL) == 0 && pthread_join(thread, &result) == 0 && result);
    sigaltstack(&stack, NULL);
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    expect("a signal's stack", looked);
}

static volatile int done;

static void *count(void *nothing)
{
    char out[32];
    long bad = 0;

    while (!done) {
        int fd = open(COUNTERS "port_xmit_data", O_RDONLY);
        bad += read(fd, out, sizeof out) < 2;
        close(fd);
    }
    return (void *)(bad + (nothing != NULL));
}

/* Counters that several threads read are whole, and nothing else is listed beside them. */
static void counters(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
    pthread_t threads[3];
    struct dirent *entry;
    int i, others = 0;
    void *bad;

    expect("a device", context != NULL);
    for (i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, count, NULL);
    for (i = 0; i < 100; i++) {
        DIR *dir = opendir(COUNTERS);
        while (dir && (entry = readdir(dir)))
            others += strchr(entry->d_name, '.') != NULL && entry->d_name[0] != '.';
        closedir(dir);
    }
    done = 1;
    for (i = 0; i < 3; i++) {
        pthread_join(threads[i], &bad);
        expect("counters are whole", bad == NULL);
    }
    expect("counters alone are listed", others == 0);
    ibv_close_device(context);
}

int main(int count, char **words)
{
    scratch = count > 1 ? words[1] : "/tmp";
    paths();
    opening();
    walking();
    descriptors();
    channels_of_children();
    without_first_thread();
    threads_and_signals();
    counters();
    puts(failures ? "not as a kernel's" : "as a kernel's");
    return failures != 0;
}
