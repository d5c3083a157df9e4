/* keep.c - see keep.h. */
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
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
    char *path, *fresh, *name;
};

/* ---- what a payload holds for ------------------------------------------------------------------------------------------------ */

struct build {
    uintptr_t here; /* an address in the object that is looked for */
    char hex[2 * 64 + 1];
};

static int holds_address(const struct dl_phdr_info *o, uintptr_t p)
{
    for (int i = 0; i < o->dlpi_phnum; i++)
        if (o->dlpi_phdr[i].p_type == PT_LOAD && p - o->dlpi_addr - o->dlpi_phdr[i].p_vaddr < o->dlpi_phdr[i].p_memsz)
            return 1;
    return 0;
}

static int build_look(struct dl_phdr_info *o, size_t size, void *arg)
{
    struct build *b = arg;

    (void)size;
    if (!holds_address(o, b->here))
        return 0;
    for (int i = 0; i < o->dlpi_phnum; i++) {
        const unsigned char *p = (const unsigned char *)(o->dlpi_addr + o->dlpi_phdr[i].p_vaddr);
        size_t left = o->dlpi_phdr[i].p_type == PT_NOTE ? o->dlpi_phdr[i].p_memsz : 0;
        ElfW(Nhdr) n;

        while (left >= sizeof n) {
            size_t name, bytes;

            memcpy(&n, p, sizeof n);
            name = ((size_t)n.n_namesz + 3) & ~(size_t)3, bytes = ((size_t)n.n_descsz + 3) & ~(size_t)3;
            if (sizeof n + name + bytes > left)
                break;
            for (size_t k = 0; n.n_type == NT_GNU_BUILD_ID && k < n.n_descsz && 2 * k + 2 < sizeof b->hex; k++)
                snprintf(b->hex + 2 * k, 3, "%02x", p[sizeof n + name + k]);
            p += sizeof n + name + bytes;
            left -= sizeof n + name + bytes;
        }
    }
    return 1;
}

/* The build of the object that this code is in, as it is loaded; "" where its maker left it out: kernels that were built anew prove and measure
 * anew. */
static void build_id(struct build *b)
{
    static const char here;

    *b = (struct build){.here = (uintptr_t)&here};
    dl_iterate_phdr(build_look, b);
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
    char *v = k ? driver() : NULL, numerics[128];
    struct build b;

    build_id(&b);
    if (v && b.hex[0]) {
        cuda_numerics(d, numerics, sizeof numerics);
        k->path = cairn_format("%s/cuda-%s-%s-%s.kept", d->keep, what, d->id, cairn_dtype_name((enum cairn_dtype)d->act));
        k->fresh = k->path ? cairn_format("%s.new", k->path) : NULL;
        k->name = cairn_format("%s of %s; %s; driver %s; build %s", what, d->id, numerics, v, b.hex);
    }
    free(v);
    if (k && k->path && k->fresh && k->name)
        return k;
    keep_close(k);
    return NULL;
}

void keep_close(struct keep *k)
{
    if (!k)
        return;
    free(k->path);
    free(k->fresh);
    free(k->name);
    free(k);
}

/* ---- files ------------------------------------------------------------------------------------------------------------------------ */

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

/* In the place of what is there. Nothing is synced: what a power cut tears does not have its digest. Who is killed leaves the .new file for the next
 * one to write; who meets another at it leaves it to him. */
static void replace(const struct keep *k, const void *p, size_t n)
{
    int fd = open(k->fresh, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);

    if (fd < 0)
        return;
    if (!flock(fd, LOCK_EX | LOCK_NB) && !ftruncate(fd, 0) && cairn_fd_pwrite_all(fd, p, n, 0, k->fresh, NULL) == CAIRN_OK &&
        rename(k->fresh, k->path))
        unlink(k->fresh);
    close(fd);
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
    replace(k, p, n);
    free(p);
}
