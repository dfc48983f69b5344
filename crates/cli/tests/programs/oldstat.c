/* The functions by which programs of old and of hardened C libraries look at files. Says "all found", or which did not. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVICE "/sys/class/infiniband/remora0"
#define NODE "/dev/infiniband/uverbs0"

static int failures;

static void expect(const char *what, int good)
{
    if (!good) {
        printf("%s\n", what);
        failures++;
    }
}

static void *function(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    if (!found) {
        printf("there is no %s\n", name);
        exit(1);
    }
    return found;
}

int main(void)
{
    static const char *by_path[] = { "__xstat", "__xstat64", "__lxstat", "__lxstat64" };
    static const char *by_fd[] = { "__fxstat", "__fxstat64" };
    static const char *at[] = { "__fxstatat", "__fxstatat64" };
    static const char *opening[] = { "__open_2", "__open64_2", "open", "open64" };
    static const char *opening_at[] = { "__openat_2", "__openat64_2", "openat", "openat64" };
    static const char *resolving[] = { "realpath", "__realpath_chk" };
    char out[PATH_MAX];
    struct stat st;
    struct statx stx;
    glob_t found;
    FILE *file;
    size_t i;
    int fd, dir;

    for (i = 0; i < 4; i++) {
        int (*call)(int, const char *, struct stat *) = function(by_path[i]);
        expect(by_path[i], call(1, NODE, &st) == 0 && S_ISCHR(st.st_mode));
        expect(by_path[i], call(1, DEVICE "/node_type", &st) == 0 && S_ISREG(st.st_mode));
        expect(by_path[i], call(1, "/sys/class/infiniband/other", &st) == -1);
        expect(by_path[i], call(1, "/proc/self/status", &st) == 0);
    }
    for (i = 0; i < 4; i++) {
        int (*call)(const char *, int, ...) = function(opening[i]);
        int (*call_at)(int, const char *, int, ...) = function(opening_at[i]);
        fd = call(DEVICE "/node_guid", O_RDONLY);
        expect(opening[i], read(fd, out, 19) == 19 && out[4] == ':');
        close(fd);
        dir = call_at(AT_FDCWD, DEVICE, O_RDONLY | O_DIRECTORY);
        fd = call_at(dir, "ports/1/gids/1", O_RDONLY);
        expect(opening_at[i], read(fd, out, 39) == 39 && out[4] == ':');
        close(fd);
        close(dir);
    }
    fd = open(NODE, O_RDWR);
    for (i = 0; i < 2; i++) {
        int (*call)(int, int, struct stat *) = function(by_fd[i]);
        int (*call_at)(int, int, const char *, struct stat *, int) = function(at[i]);
        char *(*resolve)(const char *, char *, size_t) = function(resolving[i]);
        expect(by_fd[i], call(1, fd, &st) == 0 && S_ISCHR(st.st_mode));
        expect(at[i], call_at(1, AT_FDCWD, DEVICE, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode));
        expect(resolving[i], resolve(DEVICE "/device", out, sizeof out) && !strcmp(out, "/sys/devices/pci0052:00/0052:00:00.0"));
    }
    expect("statx", statx(AT_FDCWD, NODE, 0, STATX_BASIC_STATS, &stx) == 0 && S_ISCHR(stx.stx_mode));
    file = fopen(DEVICE "/ports/1/gid_attrs/ndevs/0", "r");
    expect("fopen", file && fgets(out, sizeof out, file) && strlen(out) > 1);
    expect("faccessat", faccessat(AT_FDCWD, NODE, R_OK | W_OK, 0) == 0);
    expect("glob", glob("/sys/class/infiniband/*/ports/*", 0, NULL, &found) == 0 && found.gl_pathc == 1 &&
                       !strcmp(found.gl_pathv[0], DEVICE "/ports/1"));
    puts(failures ? "not all found" : "all found");
    return failures != 0;
}
