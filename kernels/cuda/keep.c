/* keep.c - see keep.h. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/str.h"
#include "keep.h"

#define MOST ((off_t)1 << 20) /* bytes of a file */

struct head {
    struct cairn_digest digest; /* of all behind it */
    uint64_t name, payload;     /* bytes */
};

struct keep {
    char *path, *name;
};

/* The object that this code is in, as it is now: kernels that were built anew prove and measure anew. */
static char *object(void)
{
    static const char here;
    struct stat s;
    Dl_info i;

    if (!dladdr(&here, &i) || !i.dli_fname || stat(i.dli_fname, &s))
        return NULL;
    return cairn_format("%lld bytes of %lld.%09ld", (long long)s.st_size, (long long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
}

/* The driver's build, where it says so, behind the version of CUDA that it is for. */
static char *driver(void)
{
    char line[160] = "";
    int version = 0, fd = open("/proc/driver/nvidia/version", O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        ssize_t n = cairn_fd_read_some(fd, line, sizeof line - 1);

        line[n > 0 ? n : 0] = 0;
        line[strcspn(line, "\n")] = 0;
        close(fd);
    }
    return cudaDriverGetVersion(&version) == cudaSuccess ? cairn_format("%d %s", version, line) : NULL;
}

struct keep *keep_open(const struct cuda *d, const char *what)
{
    struct keep *k = d->keep ? calloc(1, sizeof *k) : NULL;
    char *o = k ? object() : NULL, *v = k ? driver() : NULL, numerics[128];

    if (o && v) {
        cuda_numerics(d, numerics, sizeof numerics);
        k->path = cairn_format("%s/cuda-%s-%s.kept", d->keep, d->id, cairn_dtype_name((enum cairn_dtype)d->act));
        k->name = cairn_format("%s of %s; %s; driver %s; %s", what, d->id, numerics, v, o);
    }
    free(o);
    free(v);
    if (k && k->path && k->name)
        return k;
    keep_close(k);
    return NULL;
}

void keep_close(struct keep *k)
{
    if (!k)
        return;
    free(k->path);
    free(k->name);
    free(k);
}

static int holds(const struct keep *k, const unsigned char *p, size_t n)
{
    struct head h;
    size_t name = strlen(k->name);

    if (n < sizeof h)
        return 0;
    memcpy(&h, p, sizeof h);
    return h.name == name && h.payload == n - sizeof h - name && n - sizeof h >= name && !memcmp(p + sizeof h, k->name, name) &&
           cairn_digest_equal(cairn_digest_bytes(p + sizeof h.digest, n - sizeof h.digest), h.digest);
}

void *keep_read(const struct keep *k, size_t *bytes)
{
    int fd = k ? open(k->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    unsigned char *p = NULL;
    struct stat s;
    size_t at;

    if (fd < 0)
        return NULL;
    if (!fstat(fd, &s) && S_ISREG(s.st_mode) && s.st_uid == geteuid() && s.st_size <= MOST && (p = malloc((size_t)s.st_size + 1)) &&
        (cairn_fd_pread_all(fd, p, (size_t)s.st_size, 0, k->path, NULL) != CAIRN_OK || !holds(k, p, (size_t)s.st_size))) {
        free(p);
        p = NULL;
    }
    close(fd);
    if (!p)
        return NULL;
    at = sizeof(struct head) + strlen(k->name);
    *bytes = (size_t)s.st_size - at;
    memmove(p, p + at, *bytes);
    return p;
}

void keep_write(const struct keep *k, const void *payload, size_t bytes)
{
    struct head h = {.payload = bytes};
    unsigned char *p;
    size_t n;

    if (!k)
        return;
    h.name = strlen(k->name);
    n = sizeof h + h.name + bytes;
    if (n > (size_t)MOST || !(p = malloc(n)))
        return;
    memcpy(p + sizeof h, k->name, h.name);
    memcpy(p + sizeof h + h.name, payload, bytes);
    memcpy(p, &h, sizeof h);
    h.digest = cairn_digest_bytes(p + sizeof h.digest, n - sizeof h.digest);
    memcpy(p, &h, sizeof h);
    cairn_file_replace(k->path, p, n, NULL);
    free(p);
}
