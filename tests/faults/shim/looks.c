/* looks.c - see shim.h: stat, access, opendir, readdir. */
#include "tests/faults/shim/shim.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sys/stat.h>

static int do_stat(int dirfd, const char *name, struct stat *sb, int flags)
{
    char b[PATH_MAX];
    const char *y = flags & AT_EMPTY_PATH && !name[0] ? shim_place_fd(dirfd) : shim_place(dirfd, name, b);

    if (shim_fails(shim_meet(OP_STAT, y, 0)))
        return -1;
    return (int)syscall(SYS_newfstatat, dirfd, name, sb, flags);
}

int stat(const char *restrict name, struct stat *restrict sb)
{
    return do_stat(AT_FDCWD, name, sb, 0);
}

int lstat(const char *restrict name, struct stat *restrict sb)
{
    return do_stat(AT_FDCWD, name, sb, AT_SYMLINK_NOFOLLOW);
}

int fstat(int fd, struct stat *sb)
{
    return do_stat(fd, "", sb, AT_EMPTY_PATH);
}

int fstatat(int dirfd, const char *restrict name, struct stat *restrict sb, int flags)
{
    return do_stat(dirfd, name, sb, flags);
}

int access(const char *name, int mode)
{
    char b[PATH_MAX];

    if (shim_fails(shim_meet(OP_STAT, shim_place(AT_FDCWD, name, b), 0)))
        return -1;
    return (int)syscall(SYS_faccessat, AT_FDCWD, name, mode);
}

DIR *opendir(const char *name)
{
    int fd = shim_open(AT_FDCWD, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0), e;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);

    if (fd >= 0 && !d) {
        e = errno;
        syscall(SYS_close, fd);
        errno = e;
    }
    return d;
}

struct dirent *readdir(DIR *d)
{
    static struct dirent *(*real)(DIR *);

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "readdir");
    if (shim_fails(shim_meet(OP_LIST, shim_place_fd(dirfd(d)), 0)))
        return NULL;
    return real(d);
}

int closedir(DIR *d)
{
    static int (*real)(DIR *);
    int fd = dirfd(d);

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "closedir");
    shim_fd_set(fd, NULL, NULL);
    return real(d);
}
