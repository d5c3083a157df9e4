/* right_hold.c - what the run's op made against what the reference made. See right_impl.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/convert.h"
#include "tools/check/right_impl.h"

int cairn_right_is_float(enum cairn_dtype t)
{
    return t == CAIRN_F32 || t == CAIRN_BF16 || t == CAIRN_F64;
}

struct rows {
    const struct cairn_tensor *t;
    const char *mine, *theirs; /* from the tensor's first element */
};

/* Elements of dimension 0 .. ndim-2, flattened: where line `k` begins. */
static size_t line_at(const struct cairn_tensor *t, int64_t k)
{
    size_t at = 0;

    for (int d = t->ndim - 2; d >= 0; d--) {
        at += (size_t)(k % t->dim[d] * t->stride[d]);
        k /= t->dim[d];
    }
    return at;
}

/* The largest difference of a line over the line's largest value (or `least`, so that a line of near zeros is no line apart). */
static double line_apart(const struct rows *r, int64_t k, double least)
{
    size_t at = line_at(r->t, k);
    double size = least, apart = 0;

    for (int64_t i = 0; i < r->t->dim[r->t->ndim - 1]; i++) {
        double a = cairn_value(r->t->dtype, r->mine, (int64_t)at + i), b = cairn_value(r->t->dtype, r->theirs, (int64_t)at + i), d = fabs(a - b);

        if (isnan(a) && isnan(b))
            continue;
        if (a == b)
            d = 0;
        size = fmax(size, fabs(b));
        if (!(d <= apart))
            apart = isnan(d) ? INFINITY : d;
    }
    return size > 0 ? apart / size : apart > 0 ? INFINITY : 0;
}

static int64_t lines_of(const struct cairn_tensor *t)
{
    int64_t n = 1;

    for (int d = 0; d + 1 < t->ndim; d++)
        n *= t->dim[d];
    return n;
}

static double largest(const struct rows *r)
{
    double size = 0;

    for (int64_t k = 0; k < lines_of(r->t); k++)
        for (int64_t i = 0; i < r->t->dim[r->t->ndim - 1]; i++) {
            double b = fabs(cairn_value(r->t->dtype, r->theirs, (int64_t)line_at(r->t, k) + i));

            if (isfinite(b) && b > size)
                size = b;
        }
    return size;
}

/* The largest value of a member as the reference has it; 0 for what holds no floats. */
static double member_largest(struct right *r, const struct cairn_op_member *m)
{
    const struct cairn_tensor *t = cairn_op_tensor(r->args.bytes, m);
    size_t n = t->buf ? cairn_right_extent(t) : 0;
    struct rows rows = {.t = t};
    char *h = n && cairn_right_is_float(t->dtype) ? malloc(n) : NULL;
    double size = 0;

    if (h && cairn_right_bytes(&r->ref, t->buf, t->offset, n, h, NULL) == CAIRN_OK) {
        rows.theirs = h;
        size = largest(&rows);
    }
    free(h);
    return size;
}

/* How large the terms of a gradient's sums may be: the largest upstream gradient times the largest other input. */
static double terms_of(struct right *r, const struct cairn_trace_call *c)
{
    double upstream = 0, other = 1;

    for (const struct cairn_op_member *m = c->info->member; m->name; m++)
        if (m->role == CAIRN_OP_IN && m->name[0] == 'd')
            upstream = fmax(upstream, member_largest(r, m));
        else if (m->role != CAIRN_OP_OUT && m->role != CAIRN_OP_ADDED)
            other = fmax(other, member_largest(r, m));
    return upstream * other;
}

static int64_t lines_unequal(const struct rows *r)
{
    size_t e = cairn_dtype_size(r->t->dtype), n = (size_t)r->t->dim[r->t->ndim - 1] * e;
    int64_t apart = 0;

    for (int64_t k = 0; k < lines_of(r->t); k++)
        apart += memcmp(r->mine + line_at(r->t, k) * e, r->theirs + line_at(r->t, k) * e, n) != 0;
    return apart;
}

enum cairn_status cairn_right_finding(const struct cairn_trace_call *c, const char *member, struct cairn_error *err, const char *what)
{
    char block[64];

    cairn_trace_block(c->param, block, sizeof block);
    return cairn_fail(err, CAIRN_ENUMERIC, "right: %s at %s (%s): its %s %s", c->info->name, c->param, block, member, what);
}

int cairn_right_is_choice(enum cairn_op_number op)
{
    return op == CAIRN_OP_index || op == CAIRN_OP_router;
}

enum cairn_status cairn_right_hold(struct right *r, const struct cairn_trace_call *c, const struct cairn_op_member *m, int choices_may_differ,
                                        int *choices_differ, struct cairn_error *err)
{
    const struct cairn_tensor *mine = cairn_op_tensor(c->args, m), *theirs = cairn_op_tensor(r->args.bytes, m);
    size_t n = mine->buf ? cairn_right_extent(mine) : 0;
    char *a = NULL, *b = NULL, what[200];
    struct rows rows = {.t = mine};
    enum cairn_status st = CAIRN_OK;
    double bar, least, *terms = NULL;

    if (!n)
        return CAIRN_OK;
    a = malloc(n);
    b = malloc(n);
    if (!a || !b)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_right_bytes(&r->x->k, mine->buf, mine->offset, n, a, err));
    TRY(cairn_right_bytes(&r->ref, theirs->buf, theirs->offset, n, b, err));
    rows.mine = a;
    rows.theirs = b;
    if (!cairn_right_is_float(mine->dtype)) {
        int64_t apart = lines_unequal(&rows), lines = lines_of(mine);

        if (apart)
            *choices_differ = 1;
        if (apart > (choices_may_differ && cairn_right_is_choice(c->op) ? lines / 50 + 1 : 0)) {
            snprintf(what, sizeof what, "differs from the reference in %lld of %lld rows", (long long)apart, (long long)lines);
            TRY(cairn_right_finding(c, m->name, err, what));
        }
        goto out;
    }
    if (*choices_differ) /* gates of another choice are other gates */
        goto out;
    bar = c->info->backward || m->role == CAIRN_OP_ADDED ? r->tolerance_sums : r->tolerance;
    /* A gradient may be a small difference of large terms, even 0: its errors are measured by the tensor's largest and by what went in. */
    least = c->info->backward ? fmax(largest(&rows), 1e-2 * terms_of(r, c)) : 1e-2 * largest(&rows);
    TRY(cairn_right_terms(r, c, m, &terms, err));
    for (int64_t k = 0; k < lines_of(mine); k++) {
        double known = terms ? fmax(least, terms[k] * r->tolerance_wide / bar) : least, apart = line_apart(&rows, k, known);

        if (!(apart <= bar)) {
            double size;

            TRY(cairn_right_line_terms(r, c, k, &size, err));
            apart = line_apart(&rows, k, fmax(known, size * r->tolerance_wide / bar));
        }
        if (apart / bar > r->worst) {
            r->worst = apart / bar;
            snprintf(r->worst_at, sizeof r->worst_at, "%s of %.40s at %.120s", m->name, c->info->name, c->param);
        }
        if (!(apart <= bar)) {
            snprintf(what, sizeof what, "is off by %.3g of its size in row %lld, %.3g would do", apart, (long long)k, bar);
            TRY(cairn_right_finding(c, m->name, err, what));
        }
    }
    r->values += cairn_tensor_count(mine);
out:
    free(terms);
    free(a);
    free(b);
    return st;
}
