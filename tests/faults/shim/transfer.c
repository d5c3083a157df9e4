/* transfer.c - see shim.h: read, write, fsync, ftruncate, flock. */
#include "tests/faults/shim/shim.h"

#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>

static size_t cut(enum fault_kind k, size_t n)
{
    return (k == KIND_SHORT || k == KIND_TORN) && n > 1 ? n / 2 : n;
}

static ssize_t do_read(int fd, void *p, size_t n, off_t at, int positioned)
{
    enum fault_kind k = shim_meet(OP_READ, shim_place_fd(fd), n);

    if (shim_fails(k))
        return -1;
    n = cut(k, n);
    return positioned ? syscall(SYS_pread64, fd, p, n, at) : syscall(SYS_read, fd, p, n);
}

static ssize_t do_write(int fd, const void *p, size_t n, off_t at, int positioned)
{
    const char *rel = shim_place_fd(fd);
    enum fault_kind k = shim_meet(OP_WRITE, rel, n);
    ssize_t put;

    if (shim_fails(k))
        return -1;
    if (k == KIND_LIE)
        return (ssize_t)n;
    put = positioned ? syscall(SYS_pwrite64, fd, p, cut(k, n), at) : syscall(SYS_write, fd, p, cut(k, n));
    if (k == KIND_TORN)
        syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    if (put > 0 && rel && shim_journaling) {
        if (!positioned)
            at = (off_t)syscall(SYS_lseek, fd, 0, SEEK_CUR) - put;
        shim_record(J_WRITE, rel, "", p, (size_t)put, at);
    }
    return put;
}

ssize_t read(int fd, void *p, size_t n)
{
    return do_read(fd, p, n, 0, 0);
}

ssize_t __read_chk(int fd, void *p, size_t n, size_t room);
ssize_t __read_chk(int fd, void *p, size_t n, size_t room)
{
    (void)room;
    return do_read(fd, p, n, 0, 0);
}

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    return do_read(fd, p, n, at, 1);
}

ssize_t pread64(int fd, void *p, size_t n, off64_t at)
{
    return do_read(fd, p, n, at, 1);
}

ssize_t __pread_chk(int fd, void *p, size_t n, off_t at, size_t room);
ssize_t __pread_chk(int fd, void *p, size_t n, off_t at, size_t room)
{
    (void)room;
    return do_read(fd, p, n, at, 1);
}

ssize_t __pread64_chk(int fd, void *p, size_t n, off64_t at, size_t room);
ssize_t __pread64_chk(int fd, void *p, size_t n, off64_t at, size_t room)
{
    (void)room;
    return do_read(fd, p, n, at, 1);
}

ssize_t write(int fd, const void *p, size_t n)
{
    return do_write(fd, p, n, 0, 0);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    return do_write(fd, p, n, at, 1);
}

ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at)
{
    return do_write(fd, p, n, at, 1);
}

static int do_sync(int fd, long nr)
{
    const char *rel = shim_place_fd(fd);
    enum fault_kind k = shim_meet(OP_SYNC, rel, 0);
    struct stat sb;
    int r;

    if (shim_fails(k))
        return -1;
    if (k == KIND_LIE)
        return 0;
    r = (int)syscall(nr, fd);
    if (!r && rel && shim_journaling && !syscall(SYS_newfstatat, fd, "", &sb, AT_EMPTY_PATH))
        shim_record(S_ISDIR(sb.st_mode) ? J_SYNC_DIR : J_SYNC, rel[0] == '/' ? "" : rel, "", "", 0, 0);
    return r;
}

int fsync(int fd)
{
    return do_sync(fd, SYS_fsync);
}

int fdatasync(int fd)
{
    return do_sync(fd, SYS_fdatasync);
}

static int do_truncate(int fd, off_t size)
{
    const char *rel = shim_place_fd(fd);
    int r;

    if (shim_fails(shim_meet(OP_TRUNC, rel, 0)))
        return -1;
    r = (int)syscall(SYS_ftruncate, fd, size);
    if (!r && rel)
        shim_record(J_TRUNC, rel, "", "", 0, size);
    return r;
}

int ftruncate(int fd, off_t size)
{
    return do_truncate(fd, size);
}

int ftruncate64(int fd, off64_t size)
{
    return do_truncate(fd, size);
}

int flock(int fd, int how)
{
    if (shim_fails(shim_meet(OP_LOCK, shim_place_fd(fd), 0)))
        return -1;
    return (int)syscall(SYS_flock, fd, how);
}
