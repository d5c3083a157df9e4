/* places.c - see shim.h: which path is below root, and which descriptor belongs to which. */
#include "tests/faults/shim/shim.h"

#include <stdio.h>

char shim_root[PATH_BYTES], shim_spare[PATH_BYTES];
static char fd_rel[FDS][PATH_BYTES]; /* path below root, "/" alone for root itself; "": not below root */
static char fd_abs[FDS][PATH_BYTES]; /* of directories that are not below root: openat starts there */

/* Path of `name` at dirfd, absolute, without "." and double slashes (".." stays: ours have none). 0: too long or unknown. */
int shim_absolute(int dirfd, const char *name, char *out)
{
    size_t n = 0;

    if (name[0] != '/') {
        if (dirfd == AT_FDCWD) {
            if (syscall(SYS_getcwd, out, PATH_MAX) <= 0)
                return 0;
        } else if (dirfd >= 0 && dirfd < FDS && fd_rel[dirfd][0]) {
            snprintf(out, PATH_MAX, "%s/%s", shim_root, fd_rel[dirfd][0] == '/' ? "" : fd_rel[dirfd]);
        } else if (dirfd >= 0 && dirfd < FDS && fd_abs[dirfd][0]) {
            snprintf(out, PATH_MAX, "%s", fd_abs[dirfd]);
        } else {
            return 0;
        }
        n = strlen(out);
    }
    while (*name) {
        size_t k = strcspn(name, "/");

        if (k && !(k == 1 && name[0] == '.')) {
            if (n + k + 2 > PATH_MAX)
                return 0;
            if (!n || out[n - 1] != '/')
                out[n++] = '/';
            memcpy(out + n, name, k);
            n += k;
        }
        name += k + (name[k] == '/');
    }
    while (n > 1 && out[n - 1] == '/')
        n--;
    out[n] = 0;
    return n > 0;
}

/* The part below root of an absolute path, "/" for root itself; NULL: elsewhere. */
const char *shim_below(const char *abs)
{
    size_t n = strlen(shim_root);

    if (!n || strncmp(abs, shim_root, n) || (abs[n] && abs[n] != '/'))
        return NULL;
    return abs[n] ? abs + n + 1 : "/";
}

/* Below root: its relative path in buf ("/" for root). NULL: not. */
const char *shim_place(int dirfd, const char *name, char buf[PATH_MAX])
{
    return name && shim_absolute(dirfd, name, buf) ? shim_below(buf) : NULL;
}

const char *shim_place_fd(int fd)
{
    return fd >= 0 && fd < FDS && fd_rel[fd][0] ? fd_rel[fd] : NULL;
}

void shim_fd_set(int fd, const char *rel, const char *abs)
{
    if (fd < 0 || fd >= FDS)
        return;
    snprintf(fd_rel[fd], PATH_BYTES, "%s", rel ? rel : "");
    snprintf(fd_abs[fd], PATH_BYTES, "%.*s", PATH_BYTES - 1, rel || !abs ? "" : abs);
}
