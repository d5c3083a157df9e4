/* open.c - see shim.h: open and close, by all their names. */
#include "tests/faults/shim/shim.h"

#include <stdarg.h>
#include <sys/stat.h>

static int changes(int flags)
{
    return (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC);
}

int shim_open(int dirfd, const char *name, int flags, mode_t mode)
{
    char buf[PATH_MAX], abs[PATH_MAX];
    const char *rel = shim_active ? shim_place(dirfd, name, buf) : NULL;
    enum fault_kind k;
    struct stat sb;
    int absent, fd;

    if (shim_active && !rel && changes(flags))
        shim_beyond("open", dirfd, name);
    k = shim_meet(flags & O_CREAT ? OP_CREATE : OP_OPEN, rel, 0);
    if (shim_fails(k))
        return -1;
    absent = rel && shim_journaling && flags & O_CREAT && syscall(SYS_newfstatat, dirfd, name, &sb, 0);
    fd = (int)syscall(SYS_openat, dirfd, name, flags, mode);
    if (fd >= 0 && fd < FDS) {
        shim_fd_set(fd, rel, !rel && shim_active && shim_absolute(dirfd, name, abs) ? abs : NULL);
        if (absent)
            shim_record(J_CREATE, rel, "", "", 0, 0);
        else if (rel && flags & O_TRUNC)
            shim_record(J_TRUNC, rel, "", "", 0, 0);
    }
    return fd;
}

#define MODE(flags, last)                       \
    mode_t mode = 0;                            \
    if ((flags) & (O_CREAT | O_TMPFILE)) {      \
        va_list ap;                             \
        va_start(ap, last);                     \
        mode = (mode_t)va_arg(ap, int);         \
        va_end(ap);                             \
    }

int open(const char *name, int flags, ...)
{
    MODE(flags, flags)
    return shim_open(AT_FDCWD, name, flags, mode);
}

int open64(const char *name, int flags, ...)
{
    MODE(flags, flags)
    return shim_open(AT_FDCWD, name, flags, mode);
}

int openat(int dirfd, const char *name, int flags, ...)
{
    MODE(flags, flags)
    return shim_open(dirfd, name, flags, mode);
}

int openat64(int dirfd, const char *name, int flags, ...)
{
    MODE(flags, flags)
    return shim_open(dirfd, name, flags, mode);
}

/* What a build with _FORTIFY_SOURCE calls instead. */
int __open_2(const char *name, int flags);
int __open_2(const char *name, int flags)
{
    return shim_open(AT_FDCWD, name, flags, 0);
}

int __openat_2(int dirfd, const char *name, int flags);
int __openat_2(int dirfd, const char *name, int flags)
{
    return shim_open(dirfd, name, flags, 0);
}

int creat(const char *name, mode_t mode)
{
    return shim_open(AT_FDCWD, name, O_WRONLY | O_CREAT | O_TRUNC, mode);
}

int close(int fd)
{
    const char *rel = shim_place_fd(fd);
    enum fault_kind k;
    int r;

    if (fd == REPORT_FD || fd == JOURNAL_FD) {
        errno = EBADF;
        return -1;
    }
    k = shim_meet(OP_CLOSE, rel, 0);
    shim_fd_set(fd, NULL, NULL);
    r = (int)syscall(SYS_close, fd); /* a failed close closes all the same */
    if (shim_fails(k)) {
        errno = k == KIND_AGAIN ? EINTR : (int)shim_plan.err;
        return -1;
    }
    return r;
}
