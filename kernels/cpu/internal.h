/* internal.h - what the ops of the cpu back-end share: the device, its scratch, and the bracket around one call.
 *
 * A call opens its tensors through call_arg (kernels/call.h says what is checked):
 *
 *     struct call c = call_begin("rmsnorm", s, err);
 *     int64_t N = -1, D = -1;
 *     struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &D), y = ...;
 *     if (call_ok(&c)) ... work ...
 *     return call_end(&c);                         closes every buffer, gives the first error
 *
 * Scratch is one growing block for each thread and one shared one; it lives as long as the device, and a call's use of it
 * ends with the call. Threads only ever share out outputs; no sum is split between them, so no bit depends on them.
 */
#ifndef CAIRN_KERNELS_CPU_INTERNAL_H
#define CAIRN_KERNELS_CPU_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/call.h"

#pragma GCC visibility push(hidden)

#define CPU_MAX_THREADS 256

struct pool;       /* pool.h */
struct rope_table; /* rope.c */

struct cpu {
    struct cairn_device dev;
    int guard, threads;
    int bf16;                           /* act tensors are bf16: see struct widened */
    struct pool *pool;                  /* made when first needed */
    void *scratch[CPU_MAX_THREADS + 1]; /* the last one is shared */
    size_t scratch_bytes[CPU_MAX_THREADS + 1];
    struct rope_table *rope; /* list of cached tables */
};

void rope_tables_free(struct rope_table *t);

/* ---- one call ---------------------------------------------------------------------------------------------------- */

/* An act tensor in bf16, where the op knows f32: a dense copy in fp32 takes its place for the call, and what was written is rounded
 * when the call ends. So every op has its fp32 arithmetic and one rounding for each output. */
struct widened {
    float *wide;
    uint16_t *narrow; /* where it belongs; NULL for an input */
    struct arg shape; /* of the narrow one */
};

struct call {
    struct cairn_op_call c; /* kernels/call.h */
    struct cpu *cpu;
    struct widened widened[CALL_MAX_ARGS];
    int nwidened;
};

struct call call_begin(const char *op, struct cairn_stream *s, struct cairn_error *err);
/* ndim letters (int64_t *) follow. */
struct arg call_arg(struct call *c, const char *name, const struct cairn_tensor *t, int what, int ndim, ...);
/* Notes CAIRN_EBUG "op: sentence" unless something is wrong already. */
void call_fail(struct call *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline int call_ok(const struct call *c)
{
    return c->c.st == CAIRN_OK;
}
enum cairn_status call_end(struct call *c);

static inline float *f32(const struct arg *a)
{
    return a->p;
}
static inline int32_t *i32(const struct arg *a)
{
    return a->p;
}
static inline const uint8_t *u8(const struct arg *a)
{
    return a->p;
}

/* ---- threads and scratch ------------------------------------------------------------------------------------------- */

/* Gives every thread at least `each` bytes, and the shared block `shared`. */
void call_reserve(struct call *c, size_t each, size_t shared);
/* Into how many pieces (at most `most`, at least 1) a job of `work` multiply-adds, or as much, is best cut. */
int call_pieces(const struct call *c, int64_t work, int64_t most);
/* Calls part(ctx, begin, end, scratch) for parts of 0 .. n that together are all of it; begins are multiples of `unit`. Parts run
 * on any thread, in any order, each with its thread's scratch. */
typedef void part_fn(void *ctx, int64_t begin, int64_t end, void *scratch);
void call_share(struct call *c, int64_t n, int64_t unit, int64_t work, part_fn *part, void *ctx);
static inline void *scratch_shared(const struct call *c)
{
    return c->cpu->scratch[CPU_MAX_THREADS];
}
/* Where piece i of n things in `pieces` begins (i = pieces: n). Multiples of `unit`. */
static inline int64_t piece_begin(int64_t n, int64_t unit, int i, int pieces)
{
    int64_t units = (n + unit - 1) / unit, b = (units * i / pieces) * unit;

    return b < n ? b : n;
}
static inline int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Element (i...) of a strided f32 tensor */
static inline float *at1(const struct arg *a, int64_t i)
{
    return (float *)a->p + i * a->s[0];
}
static inline float *at2(const struct arg *a, int64_t i, int64_t j)
{
    return (float *)a->p + i * a->s[0] + j * a->s[1];
}

/* ---- the two tables -------------------------------------------------------------------------------------------------- */

#define CPU_DECLARE(op)                                                                                                            \
    enum cairn_status cairn_##op##_cpu(struct cairn_stream *s, const struct cairn_##op *a, struct cairn_error *err);               \
    enum cairn_status cairn_##op##_ref(struct cairn_stream *s, const struct cairn_##op *a, struct cairn_error *err);
CAIRN_OPS(CPU_DECLARE)
#undef CPU_DECLARE

#pragma GCC visibility pop
#endif
