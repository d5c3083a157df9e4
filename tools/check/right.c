/* right.c - see right.h. */
#include "tools/check/right.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tools/check/blocks.h"
#include "tools/check/reference.h"
#include "tools/check/trace.h"

#define REGIONS       20
#define ADAPTER_SCALE 0.5
#define BUDGET        1e10 /* weights times tokens that the plain reference is given: a minute or so of one core, where its loops miss the cache */

/* What one op call touches: regions of memory, one copy of each on the reference's device. */
struct region {
    struct cairn_buffer *buf;
    size_t begin, end;        /* bytes in buf */
    struct cairn_buffer *own; /* the copy */
};

struct right {
    struct cairn_sides *x;
    struct cairn_compute ref;
    struct cairn_ops own; /* the run's, behind the trace */
    struct region region[REGIONS];
    int regions;
    union {
        max_align_t align;
        char bytes[sizeof(struct cairn_tensor) * CAIRN_OP_MEMBERS + 256];
    } args; /* the call's, over the copies */
    double tolerance, tolerance_sums;
    int64_t calls, values;
    double worst; /* share of the tolerance that was used up at most */
    char worst_at[200];
    struct cairn_error *err;
};

/* ---- copies -------------------------------------------------------------------------------------------------------------- */

static size_t extent(const struct cairn_tensor *t)
{
    int64_t last = 1;

    for (int d = 0; d < t->ndim; d++) {
        if (t->dim[d] == 0)
            return 0;
        last += (t->dim[d] - 1) * t->stride[d];
    }
    return (size_t)last * cairn_dtype_size(t->dtype);
}

/* Adds [begin, end) of buf; regions that touch become one. */
static void region_add(struct right *r, struct cairn_buffer *buf, size_t begin, size_t end)
{
    for (int i = 0; i < r->regions;) {
        struct region *g = &r->region[i];

        if (g->buf != buf || end < g->begin || begin > g->end) {
            i++;
            continue;
        }
        begin = begin < g->begin ? begin : g->begin;
        end = end > g->end ? end : g->end;
        *g = r->region[--r->regions];
        i = 0;
    }
    begin &= ~(size_t)63; /* as the back-end's own memory is aligned */
    r->region[r->regions++] = (struct region){.buf = buf, .begin = begin, .end = end};
}

static enum cairn_status bytes_get(struct cairn_compute *k, struct cairn_buffer *buf, size_t at, size_t n, void *h, struct cairn_error *err)
{
    int64_t dim = (int64_t)n;
    struct cairn_tensor t;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_tensor_view(&t, buf, at, CAIRN_U8, 1, &dim, err));
    TRY(cairn_tensor_get(&k->stream, &t, h, n, err));
out:
    return st;
}

static void regions_free(struct right *r)
{
    for (int i = 0; i < r->regions; i++)
        cairn_buffer_destroy(r->region[i].own);
    r->regions = 0;
}

/* Before the op runs: everything it may read, as it is now, and its arguments over the copies. */
static enum cairn_status copies_make(struct right *r, const struct cairn_trace_call *c, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *h = NULL;

    regions_free(r);
    for (const struct cairn_op_member *m = c->info->member; m->name; m++) {
        const struct cairn_tensor *t = cairn_op_tensor(c->args, m);

        if (t->buf && extent(t))
            region_add(r, t->buf, t->offset, t->offset + extent(t));
    }
    for (int i = 0; i < r->regions; i++) {
        struct region *g = &r->region[i];
        size_t n = g->end - g->begin;
        int64_t dim = (int64_t)n;
        struct cairn_tensor all;
        char *p = realloc(h, n);

        if (!p)
            TRY(CAIRN_NOMEM(err));
        h = p;
        TRY(bytes_get(&r->x->k, g->buf, g->begin, n, h, err));
        TRY(cairn_buffer_create(r->ref.dev, n, &g->own, err));
        TRY(cairn_tensor_view(&all, g->own, 0, CAIRN_U8, 1, &dim, err));
        TRY(cairn_tensor_set(&r->ref.stream, &all, h, n, err));
    }
    if (c->info->bytes > sizeof r->args)
        TRY(CAIRN_BUG(err, "an op with more arguments than there is room for"));
    memcpy(r->args.bytes, c->args, c->info->bytes);
    for (const struct cairn_op_member *m = c->info->member; m->name; m++) {
        struct cairn_tensor *t = cairn_op_tensor(r->args.bytes, m);

        for (int i = 0; t->buf && i < r->regions; i++)
            if (r->region[i].buf == t->buf && t->offset >= r->region[i].begin && t->offset <= r->region[i].end) {
                t->buf = r->region[i].own;
                t->offset -= r->region[i].begin;
                break;
            }
    }
out:
    free(h);
    return st;
}

/* ---- comparing ------------------------------------------------------------------------------------------------------------ */

static double value_at(const char *p, enum cairn_dtype t, size_t i)
{
    uint32_t bits;
    uint16_t half;
    float f;
    double d;

    switch (t) {
    case CAIRN_F32:
        memcpy(&f, p + 4 * i, 4);
        return (double)f;
    case CAIRN_BF16:
        memcpy(&half, p + 2 * i, 2);
        bits = (uint32_t)half << 16;
        memcpy(&f, &bits, 4);
        return (double)f;
    case CAIRN_F64:
        memcpy(&d, p + 8 * i, 8);
        return d;
    default:
        return 0;
    }
}

static int is_float(enum cairn_dtype t)
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
        double a = value_at(r->mine, r->t->dtype, at + (size_t)i), b = value_at(r->theirs, r->t->dtype, at + (size_t)i), d = fabs(a - b);

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
            double b = fabs(value_at(r->theirs, r->t->dtype, line_at(r->t, k) + (size_t)i));

            if (isfinite(b) && b > size)
                size = b;
        }
    return size;
}

/* The largest value of a member as the reference has it; 0 for what holds no floats. */
static double member_largest(struct right *r, const struct cairn_op_member *m)
{
    const struct cairn_tensor *t = cairn_op_tensor(r->args.bytes, m);
    size_t n = t->buf ? extent(t) : 0;
    struct rows rows = {.t = t};
    char *h = n && is_float(t->dtype) ? malloc(n) : NULL;
    double size = 0;

    if (h && bytes_get(&r->ref, t->buf, t->offset, n, h, NULL) == CAIRN_OK) {
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

static enum cairn_status finding(const struct cairn_trace_call *c, const char *member, struct cairn_error *err, const char *what)
{
    char block[64];

    cairn_trace_block(c->param, block, sizeof block);
    return cairn_fail(err, CAIRN_ENUMERIC, "right: %s at %s (%s): its %s %s", c->info->name, c->param, block, member, what);
}

/* Choices of experts and keys: may differ where two scores all but tie. */
static int is_choice(enum cairn_op_number op)
{
    return op == CAIRN_OP_index || op == CAIRN_OP_router;
}

static enum cairn_status member_compare(struct right *r, const struct cairn_trace_call *c, const struct cairn_op_member *m, int choices_may_differ,
                                        int *choices_differ, struct cairn_error *err)
{
    const struct cairn_tensor *mine = cairn_op_tensor(c->args, m), *theirs = cairn_op_tensor(r->args.bytes, m);
    size_t n = mine->buf ? extent(mine) : 0;
    char *a = NULL, *b = NULL, what[200];
    struct rows rows = {.t = mine};
    enum cairn_status st = CAIRN_OK;
    double bar, least;

    if (!n)
        return CAIRN_OK;
    a = malloc(n);
    b = malloc(n);
    if (!a || !b)
        TRY(CAIRN_NOMEM(err));
    TRY(bytes_get(&r->x->k, mine->buf, mine->offset, n, a, err));
    TRY(bytes_get(&r->ref, theirs->buf, theirs->offset, n, b, err));
    rows.mine = a;
    rows.theirs = b;
    if (!is_float(mine->dtype)) {
        int64_t apart = lines_unequal(&rows), lines = lines_of(mine);

        if (apart)
            *choices_differ = 1;
        if (apart > (choices_may_differ && is_choice(c->op) ? lines / 50 + 1 : 0)) {
            snprintf(what, sizeof what, "differs from the reference in %lld of %lld rows", (long long)apart, (long long)lines);
            TRY(finding(c, m->name, err, what));
        }
        goto out;
    }
    if (*choices_differ) /* gates of another choice are other gates */
        goto out;
    bar = c->info->backward || m->role == CAIRN_OP_ADDED ? r->tolerance_sums : r->tolerance;
    /* A gradient may be a small difference of large terms, even 0: its errors are measured by the tensor's largest and by what went in. */
    least = c->info->backward ? fmax(largest(&rows), 1e-2 * terms_of(r, c)) : 1e-2 * largest(&rows);
    for (int64_t k = 0; k < lines_of(mine); k++) {
        double apart = line_apart(&rows, k, least);

        if (apart / bar > r->worst) {
            r->worst = apart / bar;
            snprintf(r->worst_at, sizeof r->worst_at, "%s of %.40s at %.120s", m->name, c->info->name, c->param);
        }
        if (!(apart <= bar)) {
            snprintf(what, sizeof what, "is off by %.3g of its size in row %lld, %.3g would do", apart, (long long)k, bar);
            TRY(finding(c, m->name, err, what));
        }
    }
    r->values += cairn_tensor_count(mine);
out:
    free(a);
    free(b);
    return st;
}

/* Runs op number c->op of a table with these arguments. */
static enum cairn_status op_run(const struct cairn_ops *ops, struct cairn_stream *s, enum cairn_op_number op, const void *args, struct cairn_error *err)
{
    switch (op) {
#define CASE(name)           \
    case CAIRN_OP_##name:    \
        return ops->name(s, args, err);
        CAIRN_OPS(CASE)
#undef CASE
    default:
        return CAIRN_BUG(err, "an op that there is none of");
    }
}

/* ---- the observer ---------------------------------------------------------------------------------------------------------- */

static enum cairn_status ties_compare(struct right *r, const struct cairn_trace_call *c, struct cairn_error *err);

static enum cairn_status before(void *arg, const struct cairn_trace_call *c, struct cairn_error *err)
{
    return copies_make(arg, c, err);
}

static enum cairn_status after(void *arg, const struct cairn_trace_call *c, struct cairn_error *err)
{
    struct right *r = arg;
    enum cairn_status st = CAIRN_OK;
    int choices_differ = 0;

    TRY(op_run(&r->ref.ops, &r->ref.stream, c->op, r->args.bytes, err));
    for (int floats = 0; floats < 2; floats++) /* choices first */
        for (const struct cairn_op_member *m = c->info->member; m->name; m++)
            if ((m->role == CAIRN_OP_OUT || m->role == CAIRN_OP_ADDED) && is_float(cairn_op_tensor(c->args, m)->dtype) == floats)
                TRY(member_compare(r, c, m, 1, &choices_differ, err));
    r->calls++;
    if (is_choice(c->op))
        TRY(ties_compare(r, c, err));
out:
    return st;
}

/* Of equal scores the lowest are chosen: 0, 1, 2, ... in each row, up to what there is. Said apart from the reference, which shares the router's choice. */
static enum cairn_status lowest_chosen(struct right *r, const struct cairn_trace_call *c, struct cairn_error *err)
{
    const struct cairn_tensor *idx = c->op == CAIRN_OP_index ? &((const struct cairn_index *)c->args)->idx : &((const struct cairn_router *)c->args)->idx;
    int64_t width = idx->dim[1];
    int32_t *h = malloc(cairn_tensor_bytes(idx) + 1);
    enum cairn_status st = CAIRN_OK;

    if (!h)
        return CAIRN_NOMEM(err);
    TRY(cairn_tensor_get(&r->x->k.stream, idx, h, cairn_tensor_bytes(idx), err));
    for (int64_t i = 0; i < cairn_tensor_count(idx); i++)
        if (h[i] >= 0 && h[i] != i % width)
            TRY(finding(c, "idx", err, "does not take the lowest of equal scores"));
out:
    free(h);
    return st;
}

/* Choices where everything ties: the run's op and the reference once more, with scores that are all one. Rows that see too little to choose say
 * nothing. */
static enum cairn_status ties_compare(struct right *r, const struct cairn_trace_call *c, struct cairn_error *err)
{
    const char *level = c->op == CAIRN_OP_index ? "w" : "r"; /* what makes all scores zero, or equal */
    struct cairn_trace_call again = *c;
    struct cairn_buffer *own = NULL;
    enum cairn_status st = CAIRN_OK;
    int choices_differ = 0;
    union {
        max_align_t align;
        char bytes[sizeof r->args];
    } args;

    memcpy(args.bytes, c->args, c->info->bytes);
    again.args = args.bytes;
    for (const struct cairn_op_member *m = c->info->member; m->name; m++) {
        struct cairn_tensor *mine = cairn_op_tensor(args.bytes, m), *theirs = cairn_op_tensor(r->args.bytes, m);
        int64_t n = (int64_t)extent(theirs);
        struct cairn_tensor all;

        if (strcmp(m->name, level) != 0 || !n)
            continue;
        TRY(cairn_buffer_create(r->x->k.dev, (size_t)n, &own, err));
        mine->buf = own;
        mine->offset = 0;
        TRY(cairn_tensor_view(&all, own, 0, CAIRN_U8, 1, &n, err));
        TRY(cairn_tensor_zero(&r->x->k.stream, &all, err));
        TRY(cairn_tensor_view(&all, theirs->buf, theirs->offset, CAIRN_U8, 1, &n, err));
        TRY(cairn_tensor_zero(&r->ref.stream, &all, err));
    }
    if (c->op == CAIRN_OP_router) {
        struct cairn_router *a = (struct cairn_router *)(void *)args.bytes, *b = (struct cairn_router *)(void *)r->args.bytes;

        a->bias.buf = b->bias.buf = NULL;
    }
    TRY(op_run(&r->own, &r->x->k.stream, c->op, args.bytes, err));
    TRY(op_run(&r->ref.ops, &r->ref.stream, c->op, r->args.bytes, err));
    for (const struct cairn_op_member *m = c->info->member; m->name; m++)
        if (m->role == CAIRN_OP_OUT && !is_float(cairn_op_tensor(args.bytes, m)->dtype))
            TRY(member_compare(r, &again, m, 0, &choices_differ, err));
    TRY(lowest_chosen(r, &again, err));
    TRY(op_run(&r->own, &r->x->k.stream, c->op, c->args, err)); /* what the run goes on with */
out:
    cairn_buffer_destroy(own);
    return st;
}

/* ---- the leg ----------------------------------------------------------------------------------------------------------------- */

/* Weights that a token meets. */
static double weights_met(const struct cairn_policy *p)
{
    const struct cairn_model_config *c = &p->config;
    double n = 0;

    for (int i = 0; i < p->table.count; i++) {
        const struct cairn_param *q = &p->table.param[i];
        double size = 1;

        for (int d = 0; d < q->ndim; d++)
            size *= (double)q->dim[d];
        n += q->ndim == 3 && q->dim[0] == c->experts ? size * c->experts_per_token / c->experts : size;
    }
    return n;
}

/* The reference is slow: of a large model it gets the shorter sequences, in their order. How many; one at the least. */
static int sequences_afford(const struct cairn_sides *x, struct cairn_sequence *out)
{
    double each = weights_met(&x->trainer.policy);
    int64_t longest = 0, best = INT64_MAX;
    int n = 0;

    for (int i = 0; i < x->q.n; i++) { /* the largest length that all up to it can be afforded with */
        int64_t length = x->q.s[i].length, all = 0;

        for (int k = 0; k < x->q.n; k++)
            all += x->q.s[k].length <= length ? x->q.s[k].length : 0;
        if ((double)all * each <= BUDGET && length > longest)
            longest = length;
        best = length < best ? length : best;
    }
    longest = longest ? longest : best;
    for (int i = 0; i < x->q.n; i++)
        if (x->q.s[i].length <= longest)
            out[n++] = x->q.s[i];
    return n;
}

/* One forward and backward of sequences, the gradient of their mean log-probability. */
static enum cairn_status pass_run(struct cairn_sides *x, const struct cairn_sequence *s, int n, struct cairn_error *err)
{
    struct cairn_trainer *t = &x->trainer;
    int64_t next = 0, number = 0;
    enum cairn_status st = CAIRN_OK;
    float *ones = NULL;

    cairn_trainer_renew(t);
    while (cairn_trainer_fill(t, s, n, &next, &number)) {
        struct cairn_scores scores;
        float *p = realloc(ones, (size_t)t->micro.rows * sizeof *ones);

        if (!p)
            TRY(CAIRN_NOMEM(err));
        ones = p;
        for (int64_t i = 0; i < t->micro.rows; i++)
            ones[i] = 1.0f / (float)x->q.tokens;
        TRY(cairn_trainer_forward(t, x->temperature, &scores, err));
        TRY(cairn_trainer_rows_set(t, &t->dcur, ones, err));
        TRY(cairn_trainer_backward(t, 0, err));
    }
out:
    free(ones);
    return st;
}

enum cairn_status cairn_leg_right(struct cairn_sides *x, const struct cairn_check_opts *o, json_t *report, struct cairn_error *err)
{
    int narrow = x->k.act == CAIRN_BF16;
    struct right *r = calloc(1, sizeof *r);
    struct cairn_sequence afforded[CAIRN_CHECK_SEQUENCES];
    int n = sequences_afford(x, afforded);
    const struct cairn_policy *p = &x->trainer.policy;
    struct cairn_trace t = {.k = &x->k, .stores = {&p->weights, p->lora ? &p->adapter_weights : NULL}, .before = before, .after = after, .arg = r};
    enum cairn_status st = CAIRN_OK;

    if (!r)
        return CAIRN_NOMEM(err);
    r->x = x;
    r->tolerance = narrow ? 2e-2 : 2e-5;
    r->tolerance_sums = narrow ? 4e-2 : 1e-4;
    TRY(cairn_compute_open(&r->ref, &(struct cairn_compute_opts){.backend = "cpu", .act = narrow ? "bf16" : "f32", .reference = 1, .threads = o->threads},
                           err));
    if (p->lora) /* a new adapter's B is zero and would hide what is wrong with it */
        TRY(cairn_sides_perturb(x, ADAPTER_SCALE, 9, err));
    r->own = x->k.ops;
    cairn_trace_begin(&t);
    st = pass_run(x, afforded, n, err);
    cairn_trace_end(&t);
    TRY(st);
    if (json_object_set_new(report, "right", json_pack("{s:i, s:I, s:I, s:f, s:s}", "sequences", n, "calls", (json_int_t)r->calls, "values", (json_int_t)r->values, "worst",
                                                       r->worst, "at", r->worst_at)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_blocks_check(x, afforded, n, report, err));
    if (o->reference)
        TRY(cairn_reference_check(x, o->against, o->reference, report, err));
    if (p->lora)
        TRY(cairn_sides_masters_load(x, err)); /* as cairn_legs_open has kept them */
out:
    regions_free(r);
    cairn_compute_close(&r->ref);
    free(r);
    return st;
}
