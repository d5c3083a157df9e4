/* digest.c - xxHash behind digest.h; the formats are documented there and fixed. */
#include "base/digest.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/str.h"

#define BLOCK ((size_t)1 << 20)
#define TILE_STEP 0x9E3779B97F4A7C15ull

#if defined(__x86_64__) && defined(__ELF__)
/* The library's own choice of SSE2, AVX2 or AVX-512 at run time (xxh_x86dispatch.h), which some builds of it leave out: the
 * plain entry points are SSE2 only. Same digests. */
#pragma weak XXH3_128bits_dispatch
#pragma weak XXH3_128bits_withSeed_dispatch
#pragma weak XXH3_128bits_update_dispatch
XXH128_hash_t XXH3_128bits_dispatch(const void *p, size_t n);
XXH128_hash_t XXH3_128bits_withSeed_dispatch(const void *p, size_t n, XXH64_hash_t seed);
XXH_errorcode XXH3_128bits_update_dispatch(XXH3_state_t *state, const void *p, size_t n);

static XXH128_hash_t xxh_bytes(const void *p, size_t n)
{
    return XXH3_128bits_dispatch ? XXH3_128bits_dispatch(p, n) : XXH3_128bits(p, n);
}

static XXH128_hash_t xxh_seeded(const void *p, size_t n, uint64_t seed)
{
    return XXH3_128bits_withSeed_dispatch ? XXH3_128bits_withSeed_dispatch(p, n, seed) : XXH3_128bits_withSeed(p, n, seed);
}

static void xxh_add(XXH3_state_t *state, const void *p, size_t n)
{
    if (XXH3_128bits_update_dispatch)
        XXH3_128bits_update_dispatch(state, p, n);
    else
        XXH3_128bits_update(state, p, n);
}
#else
#define xxh_bytes XXH3_128bits
#define xxh_seeded XXH3_128bits_withSeed
#define xxh_add XXH3_128bits_update
#endif

static struct cairn_digest from_xxh(XXH128_hash_t h)
{
    return (struct cairn_digest){.lo = h.low64, .hi = h.high64};
}

struct cairn_digest cairn_digest_bytes(const void *p, size_t n)
{
    return from_xxh(xxh_bytes(p, n));
}

void cairn_digest_hex(struct cairn_digest d, char out[33])
{
    static const char hex[] = "0123456789abcdef";

    for (int i = 0; i < 16; i++) {
        out[i] = hex[d.hi >> (60 - 4 * i) & 15];
        out[16 + i] = hex[d.lo >> (60 - 4 * i) & 15];
    }
    out[32] = 0;
}

int cairn_digest_parse(const char *hex, struct cairn_digest *out)
{
    uint64_t w[2] = {0, 0};

    for (int i = 0; i < 32; i++) {
        char c = hex[i];
        int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;

        if (v < 0) /* the terminating NUL too */
            return 0;
        w[i / 16] = w[i / 16] << 4 | (uint64_t)v;
    }
    if (hex[32])
        return 0;
    out->hi = w[0];
    out->lo = w[1];
    return 1;
}

struct cairn_hasher {
    XXH3_state_t *state; /* xxHash wants 64-byte alignment, so it allocates its own */
};

struct cairn_hasher *cairn_hasher_create(void)
{
    struct cairn_hasher *h = malloc(sizeof *h);

    if (!h)
        return NULL;
    if (!(h->state = XXH3_createState())) {
        free(h);
        return NULL;
    }
    XXH3_128bits_reset(h->state);
    return h;
}

void cairn_hasher_destroy(struct cairn_hasher *h)
{
    if (!h)
        return;
    XXH3_freeState(h->state);
    free(h);
}

void cairn_hasher_add(struct cairn_hasher *h, const void *p, size_t n)
{
    if (n)
        xxh_add(h->state, p, n);
}

struct cairn_digest cairn_hasher_result(const struct cairn_hasher *h)
{
    return from_xxh(XXH3_128bits_digest(h->state));
}

enum cairn_status cairn_digest_file(const char *path, struct cairn_digest *out, int64_t *size, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_hasher *h = cairn_hasher_create();
    char *buf = malloc(BLOCK);
    int64_t total = 0;
    int fd = -1;

    if (!h || !buf)
        TRY(CAIRN_NOMEM(err));
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        TRY(errno == ENOENT || errno == ENOTDIR ? cairn_fail(err, CAIRN_EDATA, "%s: no such file", path)
                                                : cairn_fail_errno(err, errno, "open %s", path));
    for (;;) {
        ssize_t got = cairn_fd_read_some(fd, buf, BLOCK);

        if (got < 0)
            TRY(cairn_fail_errno(err, errno, "read %s at byte %lld", path, (long long)total));
        if (!got)
            break;
        cairn_hasher_add(h, buf, (size_t)got);
        total += got;
    }
    *out = cairn_hasher_result(h);
    if (size)
        *size = total;
out:
    if (fd >= 0)
        close(fd);
    free(buf);
    cairn_hasher_destroy(h);
    return st;
}

uint64_t cairn_tile_seed(const char *name)
{
    return XXH3_64bits(name, strlen(name));
}

struct cairn_digest cairn_tile_digest(uint64_t seed, uint64_t tile, const void *p, size_t n)
{
    return from_xxh(xxh_seeded(p, n, seed + tile * TILE_STEP));
}

struct cairn_digest cairn_tile_header(uint64_t seed, const char *dtype, int ndim, const int64_t *dim, int64_t tile_bytes)
{
    char text[16 + 17 * (CAIRN_I64_CHARS + 1)]; /* room for 16 dimensions; HDF5 shards have at most 8 */
    size_t n = strnlen(dtype, 8);

    assert(ndim >= 0 && ndim <= 16);
    memcpy(text, dtype, n);
    text[n++] = ':';
    for (int i = 0; i < ndim; i++) { /* by hand: a manifest has one for each expert of each tensor */
        if (i)
            text[n++] = ',';
        n += cairn_put_i64(text + n, dim[i]);
    }
    text[n++] = ':';
    n += cairn_put_i64(text + n, tile_bytes);
    return cairn_tile_digest(seed, (uint64_t)1 << 63, text, n);
}
