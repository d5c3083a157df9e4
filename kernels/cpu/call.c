/* call.c - the bracket around one op call: its tensors, wider copies of some, scratch, threads. See internal.h. */
#include "internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "convert.h"
#include "pool.h"

struct call call_begin(const char *op, struct cairn_stream *s, struct cairn_error *err)
{
    struct cpu *cpu = s->dev->state;

    return (struct call){.c = {.op = op, .dev = &cpu->dev, .err = err, .act = -1}, .cpu = cpu};
}

void call_fail(struct call *c, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    cairn_call_vfail(&c->c, fmt, ap);
    va_end(ap);
}

/* Rows of a strided bf16 tensor to (back = 0) or from a dense one in fp32. */
static void each_row(const struct arg *a, float *wide, uint16_t *narrow, int back)
{
    int64_t at[CAIRN_MAX_DIMS] = {0}, d = a->ndim ? a->d[a->ndim - 1] : 1, rows = 1;

    for (int i = 0; i + 1 < a->ndim; i++)
        rows *= a->d[i];
    for (int64_t r = 0; r < rows; r++, wide += d) {
        int64_t begin = 0;

        for (int i = 0; i + 1 < a->ndim; i++)
            begin += at[i] * a->s[i];
        if (back)
            from_f32(narrow, CAIRN_BF16, begin, wide, d);
        else
            to_f32(wide, narrow, CAIRN_BF16, begin, d);
        for (int i = a->ndim - 2; i >= 0 && ++at[i] == a->d[i]; i--)
            at[i] = 0;
    }
}

/* The fp32 copy of argument a. */
static struct arg widen_arg(struct call *c, const struct arg *a, int out)
{
    struct widened *w = &c->widened[c->nwidened];
    struct arg wide = *a;
    int64_t count = 1;

    for (int i = a->ndim - 1; i >= 0; i--) {
        wide.s[i] = count;
        count *= a->d[i];
    }
    wide.type = CAIRN_F32;
    wide.p = w->wide = malloc(((size_t)count + 1) * sizeof(float));
    if (!w->wide) {
        c->c.st = CAIRN_NOMEM(c->c.err);
        return *a;
    }
    w->narrow = out ? a->p : NULL;
    w->shape = *a;
    c->nwidened++;
    each_row(a, w->wide, a->p, 0);
    return wide;
}

struct arg call_arg(struct call *c, const char *name, const struct cairn_tensor *t, int what, int ndim, ...)
{
    int widen = c->cpu->bf16 && t->dtype == CAIRN_BF16 && (what & T_F32) && !(what & T_BF16);
    struct arg a;
    va_list ap;

    va_start(ap, ndim);
    a = cairn_call_arg(&c->c, name, t, what, widen ? T_BF16 : 0, ndim, ap);
    va_end(ap);
    return widen && t->buf && call_ok(c) ? widen_arg(c, &a, what & OUT) : a;
}

enum cairn_status call_end(struct call *c)
{
    while (c->nwidened) {
        struct widened *w = &c->widened[--c->nwidened];

        if (w->narrow && call_ok(c))
            each_row(&w->shape, w->wide, w->narrow, 1);
        free(w->wide);
    }
    return cairn_call_end(&c->c);
}

int call_pieces(const struct call *c, int64_t work, int64_t most)
{
    const int64_t worth = 1 << 15; /* less work than this in a piece, and sharing costs more than it brings */
    int64_t n = c->cpu->threads == 1 ? 1 : (int64_t)c->cpu->threads * 8;

    if (n > work / worth)
        n = work / worth;
    if (n > most)
        n = most;
    if (n > POOL_MAX_PIECES)
        n = POOL_MAX_PIECES;
    return n < 1 ? 1 : (int)n;
}

static void grow(struct call *c, int i, size_t bytes)
{
    struct cpu *d = c->cpu;

    if (d->scratch_bytes[i] >= bytes || !call_ok(c))
        return;
    bytes = (bytes + bytes / 4 + 4095) & ~(size_t)4095;
    free(d->scratch[i]);
    d->scratch[i] = aligned_alloc(64, bytes);
    d->scratch_bytes[i] = d->scratch[i] ? bytes : 0;
    if (!d->scratch[i])
        c->c.st = cairn_fail(c->c.err, CAIRN_ENOSPACE, "%s: out of memory for %zu bytes of scratch", c->c.op, bytes);
}

void call_reserve(struct call *c, size_t each, size_t shared)
{
    for (int i = 0; i < c->cpu->threads; i++)
        grow(c, i, each);
    grow(c, CPU_MAX_THREADS, shared);
}

struct share {
    struct cpu *cpu;
    part_fn *part;
    void *ctx;
    int64_t n, unit;
    int pieces;
};

static void share_piece(void *p, int i, int slot)
{
    const struct share *s = p;

    s->part(s->ctx, piece_begin(s->n, s->unit, i, s->pieces), piece_begin(s->n, s->unit, i + 1, s->pieces), s->cpu->scratch[slot]);
}

void call_share(struct call *c, int64_t n, int64_t unit, int64_t work, part_fn *part, void *ctx)
{
    struct share s = {c->cpu, part, ctx, n, unit, call_pieces(c, work, (n + unit - 1) / unit)};

    if (n <= 0)
        return;
    if (s.pieces > 1 && !c->cpu->pool)
        c->cpu->pool = pool_create(c->cpu->threads);
    if (s.pieces > 1 && c->cpu->pool)
        pool_run(c->cpu->pool, s.pieces, share_piece, &s);
    else
        part(ctx, 0, n, c->cpu->scratch[0]);
}
