/* cpu.c - the cpu back-end: its device, and the entry point through which kernels/backend.c finds it.
 *
 * Memory is host memory on 64-byte boundaries. In guard mode each buffer is its own mapping that ends at a page without
 * access, is filled with 0xff (NaN in every float type) when made, and is PROT_NONE whenever no bracket is open; an open for
 * reading only does not let anybody write. Streams run at once: when an op returns its work is done.
 * The idea of guard pages: Electric Fence (B. Perens).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cores.h"
#include "internal.h"
#include "pool.h"

#define ALIGN 64

/* One allocation. In guard mode `map` is what mmap gave. */
struct block {
    char *p, *map;
    size_t map_bytes, body_bytes; /* body: what is protected and unprotected, without the last page */
    int opened, access;
    void (*freed)(void *arg); /* adopted: told instead of free */
    void *arg;
};

static enum cairn_status block_alloc(struct cairn_device *dev, size_t bytes, void **impl, struct cairn_error *err)
{
    struct cpu *d = dev->state;
    struct block *b = calloc(1, sizeof *b);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (!b)
        return CAIRN_NOMEM(err);
    if (bytes > SIZE_MAX / 2)
        goto fail;
    if (d->guard) {
        b->body_bytes = (bytes + page - 1) / page * page;
        b->map_bytes = b->body_bytes + page;
        b->map = mmap(NULL, b->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (b->map == MAP_FAILED)
            goto fail;
        b->p = b->map + ((b->body_bytes - bytes) & ~(size_t)(ALIGN - 1));
        memset(b->map, 0xff, b->body_bytes);
        mprotect(b->map, b->map_bytes, PROT_NONE);
    } else {
        b->p = aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN);
        if (!b->p)
            goto fail;
    }
    *impl = b;
    return CAIRN_OK;
fail:
    free(b);
    return cairn_fail(err, CAIRN_ENOSPACE, "cpu: out of memory for a buffer of %zu bytes", bytes);
}

static void block_release(struct cairn_device *dev, void *impl, size_t bytes)
{
    struct block *b = impl;

    (void)dev;
    (void)bytes;
    if (b->freed)
        b->freed(b->arg);
    else if (b->map)
        munmap(b->map, b->map_bytes);
    else
        free(b->p);
    free(b);
}

static enum cairn_status block_adopt(struct cairn_device *dev, void *p, size_t bytes, void (*freed)(void *arg), void *arg, void **impl,
                                     struct cairn_error *err)
{
    struct block *b = calloc(1, sizeof *b);

    (void)dev;
    (void)bytes;
    if (!b)
        return CAIRN_NOMEM(err);
    *b = (struct block){.p = p, .freed = freed, .arg = arg};
    *impl = b;
    return CAIRN_OK;
}

static void *block_open(struct cairn_device *dev, void *impl, size_t bytes, int access)
{
    struct block *b = impl;

    (void)dev;
    (void)bytes;
    b->opened++;
    if (b->map && (b->access | access) != b->access) {
        b->access |= access;
        mprotect(b->map, b->body_bytes, PROT_READ | (b->access & CAIRN_WRITE ? PROT_WRITE : 0));
    }
    return b->p;
}

static void block_close(struct cairn_device *dev, void *impl, size_t bytes)
{
    struct block *b = impl;

    (void)dev;
    (void)bytes;
    if (--b->opened || !b->map)
        return;
    b->access = 0;
    mprotect(b->map, b->body_bytes, PROT_NONE);
}

/* Streams and events: everything is done when the call returns. */
static enum cairn_status at_once_create(struct cairn_device *dev, void **impl, struct cairn_error *err)
{
    (void)dev;
    (void)err;
    *impl = NULL;
    return CAIRN_OK;
}

static void at_once_destroy(struct cairn_device *dev, void *impl)
{
    (void)dev;
    (void)impl;
}

static enum cairn_status at_once_wait(struct cairn_device *dev, void *impl, struct cairn_error *err)
{
    (void)dev;
    (void)impl;
    (void)err;
    return CAIRN_OK;
}

static enum cairn_status at_once_event(struct cairn_device *dev, void *event, void *stream, struct cairn_error *err)
{
    (void)event;
    return at_once_wait(dev, stream, err);
}

static enum cairn_status copy_in(struct cairn_device *dev, void *stream, void *d_dst, const void *h_src, size_t bytes,
                                 struct cairn_error *err)
{
    memcpy(d_dst, h_src, bytes);
    return at_once_wait(dev, stream, err);
}

static enum cairn_status copy_within(struct cairn_device *dev, void *stream, void *d_dst, const void *d_src, size_t bytes,
                                     struct cairn_error *err)
{
    memmove(d_dst, d_src, bytes);
    return at_once_wait(dev, stream, err);
}

static enum cairn_status fill(struct cairn_device *dev, void *stream, void *d_dst, int byte, size_t bytes, struct cairn_error *err)
{
    memset(d_dst, byte, bytes);
    return at_once_wait(dev, stream, err);
}

static void leave_alone(void *arg)
{
    (void)arg;
}

/* Never guarded: others use it, too. */
static enum cairn_status block_pin(struct cairn_device *dev, void *h_p, size_t bytes, void **impl, struct cairn_error *err)
{
    return block_adopt(dev, h_p, bytes, leave_alone, NULL, impl, err);
}

#define MEMORY_AND_STREAMS \
    .alloc = block_alloc, \
    .release = block_release, \
    .open = block_open, \
    .close = block_close, \
    .stream_create = at_once_create, \
    .stream_destroy = at_once_destroy, \
    .stream_wait = at_once_wait, \
    .event_create = at_once_create, \
    .event_destroy = at_once_destroy, \
    .event_record = at_once_event, \
    .event_wait = at_once_event, \
    .copy_in = copy_in, \
    .copy_out = copy_in, \
    .copy = copy_within, \
    .fill = fill, \
    .pin = block_pin

static const struct cairn_device_ops device_ops = {MEMORY_AND_STREAMS, .adopt = block_adopt};
static const struct cairn_device_ops guard_ops = {MEMORY_AND_STREAMS}; /* what is adopted could not be protected */

static void set_threads(struct cairn_device *dev, int threads)
{
    struct cpu *d = dev->state;
    if (threads <= 0)
        threads = cairn_cores();
    pool_destroy(d->pool);
    d->pool = NULL;
    d->threads = threads < 1 ? 1 : threads > CPU_MAX_THREADS ? CPU_MAX_THREADS : threads;
}

static int get_threads(struct cairn_device *dev)
{
    return ((struct cpu *)dev->state)->threads;
}

static int devices(void)
{
    return 1;
}

static enum cairn_status info(int ordinal, struct cairn_device_info *out, struct cairn_error *err)
{
    (void)ordinal;
    (void)err;
    *out = (struct cairn_device_info){.name = "cpu"};
    return CAIRN_OK;
}

static enum cairn_status cpu_open(int ordinal, const struct cairn_backend_opts *o, struct cairn_device **out,
                                  struct cairn_error *err)
{
    struct cpu *d;

    if (ordinal != 0)
        return cairn_fail(err, CAIRN_EDEVICE, "cpu: there is one cpu device, number 0; asked for %d", ordinal);
    if (o && o->act && strcmp(o->act, "f32") && strcmp(o->act, "bf16"))
        return cairn_fail(err, CAIRN_EDEVICE, "cpu: activations are f32 or bf16; asked for %s", o->act);
    d = calloc(1, sizeof *d);
    if (!d)
        return CAIRN_NOMEM(err);
    d->guard = o && o->guard;
    d->bf16 = o && o->act && !strcmp(o->act, "bf16");
    d->dev = (struct cairn_device){.name = d->guard ? "guard" : "cpu", .ops = d->guard ? &guard_ops : &device_ops, .state = d};
    set_threads(&d->dev, o ? o->threads : 0);
    *out = &d->dev;
    return CAIRN_OK;
}

static void cpu_close(struct cairn_device *dev)
{
    struct cpu *d = dev ? dev->state : NULL;

    if (!d)
        return;
    for (int i = 0; i <= CPU_MAX_THREADS; i++)
        free(d->scratch[i]);
    pool_destroy(d->pool);
    rope_tables_free(d->rope);
    free(d);
}

/* No instruction set in it: every build gives the same bits (tests/conformance/isa_test.c). */
static void numerics(struct cairn_device *dev, char *out, int n)
{
    snprintf(out, (size_t)n, "cpu %s fma ops1", ((struct cpu *)dev->state)->bf16 ? "bf16" : "f32");
}

#define FAST(op) .op = cairn_##op##_cpu,
#define REF(op)  .op = cairn_##op##_ref,
static const struct cairn_ops fast = {CAIRN_OPS(FAST)};
static const struct cairn_ops reference = {CAIRN_OPS(REF)};

static const struct cairn_backend backend = {
    .abi = CAIRN_BACKEND_ABI,
    .name = "cpu",
    .act = CAIRN_F32,
    .devices = devices,
    .info = info,
    .open = cpu_open,
    .close = cpu_close,
    .ops = &fast,
    .reference = &reference,
    .numerics = numerics,
    .set_threads = set_threads,
    .threads = get_threads,
};

__attribute__((visibility("default"))) const struct cairn_backend *cairn_backend_entry(void);

const struct cairn_backend *cairn_backend_entry(void)
{
    return &backend;
}
