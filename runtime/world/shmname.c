/* shmname.c - names with their owner in them (shmname.h). /proc is asked; where it does not answer, nobody is called dead. */
#include "world/shmname.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"

#define PREFIX "cairn-"

/* The inode of our own pid namespace; -1 if it cannot be told. */
static int64_t pid_namespace(void)
{
    char link[64];
    ssize_t n = readlink("/proc/self/ns/pid", link, sizeof link - 1);
    long long inode = -1;

    if (n <= 0)
        return -1;
    link[n] = 0;
    return sscanf(link, "pid:[%lld]", &inode) == 1 ? inode : -1;
}

/* Field 22 of /proc/PID/stat. */
int64_t cairn_shm_start_time(pid_t pid)
{
    char path[64], text[1024], *p;
    ssize_t n = -1;
    long long t = -1;
    int fd;

    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, text, sizeof text - 1);
        close(fd);
    }
    if (n <= 0)
        return -1;
    text[n] = 0;
    if (!(p = strrchr(text, ')')))
        return -1;
    for (int field = 2; field < 22 && p; field++)
        p = strchr(p + 1, ' ');
    return p && sscanf(p, " %lld", &t) == 1 ? t : -1;
}

int cairn_shm_name(char *out, size_t n, pid_t pid, const char *tail)
{
    int64_t ns = pid_namespace(), started = cairn_shm_start_time(pid);
    int len;

    if (ns < 0 || started < 0 || !cairn_name_ok(tail))
        return 0;
    len = snprintf(out, n, PREFIX "%lld-%ld-%lld-%s", (long long)ns, (long)pid, (long long)started, tail);
    return len > 0 && (size_t)len < n;
}

/* The number in front of the next '-'; -1: none. */
static int64_t number_take(const char **p)
{
    char digits[24];
    size_t n = strcspn(*p, "-");
    int64_t v;

    if (n == 0 || n >= sizeof digits || (*p)[n] != '-')
        return -1;
    memcpy(digits, *p, n);
    digits[n] = 0;
    *p += n + 1;
    return cairn_parse_i64(digits, &v) && v >= 0 ? v : -1;
}

int cairn_shm_owner_alive(const char *name)
{
    const char *p = name + strlen(PREFIX);
    int64_t ns, pid, started, now;

    if (!cairn_starts_with(name, PREFIX))
        return -1;
    ns = number_take(&p);
    pid = ns < 0 ? -1 : number_take(&p);
    started = pid < 0 ? -1 : number_take(&p);
    if (started < 0 || pid < 1 || pid > INT32_MAX || ns != pid_namespace())
        return -1;
    if (kill((pid_t)pid, 0) && errno == ESRCH)
        return 0;
    now = cairn_shm_start_time((pid_t)pid);
    return now < 0 ? -1 : now == started;
}

/* Bytes of what lies directly in the directory NAME of d. */
static int64_t bytes_in(int d, const char *name)
{
    int fd = openat(d, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *in = fd < 0 ? NULL : fdopendir(fd);
    int64_t bytes = 0;
    struct stat sb;

    for (struct dirent *e; in && (e = readdir(in));)
        if (!fstatat(fd, e->d_name, &sb, AT_SYMLINK_NOFOLLOW) && S_ISREG(sb.st_mode))
            bytes += (int64_t)sb.st_blocks * 512;
    if (in)
        closedir(in);
    else if (fd >= 0)
        close(fd);
    return bytes;
}

enum cairn_status cairn_shm_sweep(const char *dir, int dry, void (*fn)(void *arg, const char *path, int64_t bytes), void *arg,
                                  struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    DIR *d = opendir(dir);
    struct dirent *e;

    if (!d)
        return errno == ENOENT ? CAIRN_OK : cairn_fail_errno(err, errno, "list %s", dir);
    for (errno = 0; (e = readdir(d)); errno = 0) {
        struct stat sb;
        int64_t bytes;
        char *path;

        if (cairn_shm_owner_alive(e->d_name) != 0 || fstatat(dirfd(d), e->d_name, &sb, AT_SYMLINK_NOFOLLOW) ||
            (!S_ISREG(sb.st_mode) && !S_ISDIR(sb.st_mode)) || sb.st_uid != geteuid())
            continue;
        if (!(path = cairn_path_join(dir, e->d_name)))
            TRY(CAIRN_NOMEM(err));
        bytes = S_ISDIR(sb.st_mode) ? bytes_in(dirfd(d), e->d_name) : (int64_t)sb.st_blocks * 512;
        if (!dry)
            st = cairn_tree_remove(path, err);
        if (st == CAIRN_OK && fn)
            fn(arg, path, bytes);
        free(path);
        TRY(st);
    }
    if (errno)
        TRY(cairn_fail_errno(err, errno, "list %s", dir));
out:
    closedir(d);
    return st;
}
