/* beneath.c - component by component below dir, with O_NOFOLLOW; see beneath.h. */
#include "ckpt/beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/signals.h"

#define BLOCK ((size_t)1 << 20)
#define FILE_FLAGS (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)

/* Copies the first component of *rel and moves past it and its slash. 1: it is a name. */
static int component(const char **rel, char out[129])
{
    size_t n = strcspn(*rel, "/");

    if (n > 128)
        return 0;
    memcpy(out, *rel, n);
    out[n] = 0;
    *rel += n + ((*rel)[n] == '/');
    return cairn_name_ok(out);
}

int cairn_beneath_ok(const char *rel)
{
    size_t n = strlen(rel);
    char name[129];

    if (!n || rel[n - 1] == '/')
        return 0;
    return component(&rel, name) && (!*rel || (component(&rel, name) && !*rel));
}

static enum cairn_status cannot(const char *dir, const char *rel, int errnum, int *missing, struct cairn_error *err)
{
    if (errnum == ENOENT || errnum == ENOTDIR) {
        if (missing)
            *missing = 1;
        return cairn_fail(err, CAIRN_EDATA, "%s/%s: no such file", dir, rel);
    }
    if (errnum == ELOOP || errnum == ENXIO)
        return cairn_fail(err, CAIRN_EDATA, "%s/%s: not a regular file", dir, rel);
    return cairn_fail_errno(err, errnum, "open %s/%s", dir, rel);
}

enum cairn_status cairn_beneath_open(const char *dir, const char *rel, int *fd, int64_t *size, int *missing, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int at = -1, f = -1;
    char name[129], *path = NULL;
    const char *rest = rel;
    struct stat sb;

    if (missing)
        *missing = 0;
    if (!cairn_beneath_ok(rel))
        return cairn_fail(err, CAIRN_EDATA, "%s: \"%.200s\" is no file name within it", dir, rel);
    component(&rest, name);
    if (*rest) {
        int top = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), e;

        if (top < 0)
            TRY(cannot(dir, rel, errno, missing, err));
        at = openat(top, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        e = errno;
        close(top);
        if (at < 0) {
            /* a link to a directory says ENOTDIR: it is there, and refused */
            if (e == ENOTDIR)
                TRY(cairn_fail(err, CAIRN_EDATA, "%s/%s: \"%s\" is no directory of its own", dir, rel, name));
            TRY(cannot(dir, rel, e, missing, err));
        }
        component(&rest, name);
    } else if (!(path = cairn_path_join(dir, name))) {
        return CAIRN_NOMEM(err);
    }
    /* A file right in dir by its path, the last component of which is not followed either: one question to the file system. */
    f = path ? open(path, FILE_FLAGS) : openat(at, name, FILE_FLAGS);
    if (f < 0)
        TRY(cannot(dir, rel, errno, missing, err));
    if (fstat(f, &sb))
        TRY(cairn_fail_errno(err, errno, "stat %s/%s", dir, rel));
    if (!S_ISREG(sb.st_mode))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s/%s: not a regular file", dir, rel));
    *fd = f;
    *size = (int64_t)sb.st_size;
    f = -1;
out:
    if (f >= 0)
        close(f);
    if (at >= 0)
        close(at);
    free(path);
    return st;
}

enum cairn_status cairn_beneath_read(const char *dir, const char *rel, size_t max, char **out, size_t *n, int *missing,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t size;
    char *p = NULL, *path = cairn_path_join(dir, rel);
    int fd = -1;

    if (!path)
        return CAIRN_NOMEM(err);
    TRY(cairn_beneath_open(dir, rel, &fd, &size, missing, err));
    if ((uint64_t)size > max)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s/%s: %lld bytes, at most %zu are allowed", dir, rel, (long long)size, max));
    if (!(p = malloc((size_t)size + 1)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_fd_pread_all(fd, p, (size_t)size, 0, path, err));
    p[size] = 0;
    *out = p;
    *n = (size_t)size;
    p = NULL;
out:
    if (fd >= 0)
        close(fd);
    free(path);
    free(p);
    return st;
}

enum cairn_status cairn_fd_digest(int fd, int64_t size, const char *path, struct cairn_digest *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_hasher *h = cairn_hasher_create();
    char *p = malloc(BLOCK);

    if (!h || !p)
        TRY(CAIRN_NOMEM(err));
    for (int64_t at = 0; at < size;) {
        size_t n = size - at < (int64_t)BLOCK ? (size_t)(size - at) : BLOCK;

        if (cairn_stop_requested())
            TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped while reading %s", path));
        TRY(cairn_fd_pread_all(fd, p, n, at, path, err));
        cairn_hasher_add(h, p, n);
        at += (int64_t)n;
    }
    *out = cairn_hasher_result(h);
out:
    free(p);
    cairn_hasher_destroy(h);
    return st;
}

enum cairn_status cairn_beneath_digest(const char *dir, const char *rel, struct cairn_digest *out, int64_t *size, int *missing,
                                       struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_path_join(dir, rel);
    int fd = -1;

    if (!path)
        return CAIRN_NOMEM(err);
    TRY(cairn_beneath_open(dir, rel, &fd, size, missing, err));
    TRY(cairn_fd_digest(fd, *size, path, out, err));
out:
    if (fd >= 0)
        close(fd);
    free(path);
    return st;
}
