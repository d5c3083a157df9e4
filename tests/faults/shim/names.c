/* names.c - see shim.h: link, rename, mkdir, unlink and their kin. */
#include "tests/faults/shim/shim.h"

#include <stdio.h>
#include <sys/stat.h>

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    char a[PATH_MAX], b[PATH_MAX];
    const char *x = shim_place(from_fd, from, a), *y = shim_place(to_fd, to, b);
    int r;

    shim_beyond("link", to_fd, to);
    if (shim_fails(shim_meet(OP_LINK, y, 0)))
        return -1;
    r = (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
    if (!r)
        shim_published(y);
    if (!r && x && y)
        shim_record(J_LINK, x, y, "", 0, 0);
    return r;
}

int link(const char *from, const char *to)
{
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int symlink(const char *target, const char *to)
{
    char b[PATH_MAX];
    const char *y = shim_place(AT_FDCWD, to, b);
    int r;

    shim_beyond("symlink", AT_FDCWD, to);
    if (shim_fails(shim_meet(OP_LINK, y, 0)))
        return -1;
    r = (int)syscall(SYS_symlinkat, target, AT_FDCWD, to);
    if (!r && y)
        shim_record(J_SYMLINK, target, y, "", 0, 0);
    return r;
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    char a[PATH_MAX], b[PATH_MAX];
    const char *x = shim_place(from_fd, from, a), *y = shim_place(to_fd, to, b);
    int r;

    shim_beyond("rename", from_fd, from);
    shim_beyond("rename", to_fd, to);
    if (shim_fails(shim_meet(OP_RENAME, y, 0)))
        return -1;
    r = (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
    if (!r)
        shim_published(y);
    if (!r && x && y)
        shim_record(J_RENAME, x, y, "", 0, 0);
    return r;
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return renameat2(from_fd, from, to_fd, to, 0);
}

int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int mkdirat(int dirfd, const char *name, mode_t mode)
{
    char b[PATH_MAX];
    const char *y = shim_place(dirfd, name, b);
    int r;

    if (shim_fails(shim_meet(OP_MKDIR, y, 0)))
        return -1;
    r = (int)syscall(SYS_mkdirat, dirfd, name, mode);
    if (!r)
        shim_beyond("mkdir", dirfd, name);
    if (!r && y)
        shim_record(J_MKDIR, y, "", "", 0, 0);
    return r;
}

int mkdir(const char *name, mode_t mode)
{
    return mkdirat(AT_FDCWD, name, mode);
}

int unlinkat(int dirfd, const char *name, int flags)
{
    char b[PATH_MAX];
    const char *y = shim_place(dirfd, name, b);
    int r;

    shim_beyond("unlink", dirfd, name);
    if (shim_fails(shim_meet(OP_UNLINK, y, 0)))
        return -1;
    r = (int)syscall(SYS_unlinkat, dirfd, name, flags);
    if (!r && y)
        shim_record(flags & AT_REMOVEDIR ? J_RMDIR : J_UNLINK, y, "", "", 0, 0);
    return r;
}

int unlink(const char *name)
{
    return unlinkat(AT_FDCWD, name, 0);
}

int rmdir(const char *name)
{
    return unlinkat(AT_FDCWD, name, AT_REMOVEDIR);
}
