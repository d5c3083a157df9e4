/* right.c - see right.h. */
#include "tools/check/right.h"

#include <stdlib.h>
#include <string.h>

#include "tools/check/blocks.h"
#include "tools/check/right_impl.h"

#define ADAPTER_SCALE 0.5
#define BUDGET        1e10 /* weights times tokens that the plain reference is given: a minute or so of one core, where its loops miss the cache */
#define LATE          24   /* last rows of a long sequence whose keys are chosen and attended to once more, if not fewer do: */
#define LATE_BUDGET   2e10 /* products of them, and at least two rows */

/* Runs op number c->op of a table with these arguments. */
static enum cairn_status op_run(const struct cairn_ops *ops, struct cairn_stream *s, enum cairn_op_number op, const void *args,
                                struct cairn_error *err)
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

/* Of an op that looks at keys the last rows of its call, in the observer's copy of its arguments; 0: it is none of those, or there are no more. */
static int late_rows(const struct right *r, const struct cairn_trace_call *c)
{
    struct cairn_index *index = c->args;
    struct cairn_attention *attention = c->args;
    struct cairn_keys *keys = c->op == CAIRN_OP_index ? &index->keys : &attention->keys;
    struct cairn_tensor *const of_index[] = {&index->q, &index->w, &index->idx, &keys->pos, &keys->seq, NULL},
                               *const of_attention[] = {&attention->q, &attention->idx, &attention->o, &attention->lse, &keys->pos, &keys->seq, NULL};

    if (c->op != CAIRN_OP_index && c->op != CAIRN_OP_attention)
        return 0;
    for (struct cairn_tensor *const *t = c->op == CAIRN_OP_index ? of_index : of_attention; *t; t++)
        if ((*t)->buf && (*t)->dim[0] > r->late)
            **t = cairn_tensor_slice(*t, 0, (*t)->dim[0] - r->late, r->late);
    return 1;
}

static enum cairn_status before(void *arg, const struct cairn_trace_call *c, struct cairn_error *err)
{
    struct right *r = arg;

    if (r->late && !late_rows(r, c))
        return CAIRN_OK;
    return cairn_right_copy(r, c, err);
}

static enum cairn_status after(void *arg, const struct cairn_trace_call *c, struct cairn_error *err)
{
    struct right *r = arg;
    enum cairn_status st = CAIRN_OK;
    int choices_differ = 0;

    if (r->late && c->op != CAIRN_OP_index && c->op != CAIRN_OP_attention)
        return CAIRN_OK;
    TRY(op_run(&r->ref.ops, &r->ref.stream, c->op, r->args.bytes, err));
    for (int floats = 0; floats < 2; floats++) /* choices first */
        for (const struct cairn_op_member *m = c->info->member; m->name; m++)
            if ((m->role == CAIRN_OP_OUT || m->role == CAIRN_OP_ADDED) && cairn_right_is_float(cairn_op_tensor(c->args, m)->dtype) == floats)
                TRY(cairn_right_hold(r, c, m, 1, &choices_differ, err));
    r->calls++;
    if (cairn_right_is_choice(c->op))
        TRY(ties_compare(r, c, err));
out:
    return st;
}

/* Of equal scores the lowest are chosen: 0, 1, 2, ... in each row, up to what there is. Said apart from the reference, which shares the router's
 * choice. */
static enum cairn_status lowest_chosen(struct right *r, const struct cairn_trace_call *c, struct cairn_error *err)
{
    const struct cairn_tensor *idx =
        c->op == CAIRN_OP_index ? &((const struct cairn_index *)c->args)->idx : &((const struct cairn_router *)c->args)->idx;
    int64_t width = idx->dim[1];
    int32_t *h = malloc(cairn_tensor_bytes(idx) + 1);
    enum cairn_status st = CAIRN_OK;

    if (!h)
        return CAIRN_NOMEM(err);
    TRY(cairn_tensor_get(&r->x->k.stream, idx, h, cairn_tensor_bytes(idx), err));
    for (int64_t i = 0; i < cairn_tensor_count(idx); i++)
        if (h[i] >= 0 && h[i] != i % width)
            TRY(cairn_right_finding(c, "idx", err, "does not take the lowest of equal scores"));
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
        int64_t n = (int64_t)cairn_right_extent(theirs);
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
        if (m->role == CAIRN_OP_OUT && !cairn_right_is_float(cairn_op_tensor(args.bytes, m)->dtype))
            TRY(cairn_right_hold(r, &again, m, 0, &choices_differ, err));
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

/* The longest sequence, where it was not afforded but has keys to choose: one forward, and of that the ops that look at keys, in its last rows. */
static enum cairn_status late_run(struct right *r, const struct cairn_sequence *have, int n, json_t *report, struct cairn_error *err)
{
    struct cairn_sides *x = r->x;
    const struct cairn_model_config *c = &x->trainer.policy.config;
    const struct cairn_sequence *s = x->q.s;
    double row =
        ((double)c->heads * (double)(c->kv_rank + c->rope) * c->index_topk + (double)c->index_heads * (double)c->index_dim * (double)x->q.longest) *
        2 * c->layers;
    int64_t next = 0, number = 0, calls = r->calls;
    enum cairn_status st = CAIRN_OK;
    struct cairn_scores scores;

    for (int i = 1; i < x->q.n; i++)
        s = x->q.s[i].length > s->length ? &x->q.s[i] : s;
    for (int i = 0; i < n; i++)
        if (have[i].index == s->index)
            return CAIRN_OK;
    if (s->length <= c->index_topk)
        return CAIRN_OK;
    r->late = row * LATE <= LATE_BUDGET ? LATE : row * 2 >= LATE_BUDGET ? 2 : (int64_t)(LATE_BUDGET / row);
    while (cairn_trainer_fill(&x->trainer, s, 1, &next, &number))
        TRY(cairn_trainer_forward(&x->trainer, x->temperature, &scores, err));
    if (json_object_set_new(report, "late",
                            json_pack("{s:s, s:I, s:I, s:I}", "sequence", x->q.name[s->index], "tokens", (json_int_t)s->length, "rows",
                                      (json_int_t)r->late, "calls", (json_int_t)(r->calls - calls))))
        TRY(CAIRN_NOMEM(err));
out:
    r->late = 0;
    return st;
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

enum cairn_status cairn_leg_right(struct cairn_sides *x, int threads, json_t *report, struct cairn_error *err)
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
    r->tolerance_wide = 2e-5;
    r->tolerance = narrow ? 2e-2 : r->tolerance_wide;
    r->tolerance_sums = narrow ? 4e-2 : 1e-4;
    TRY(cairn_compute_open(&r->ref,
                           &(struct cairn_compute_opts){.backend = "cpu", .act = narrow ? "bf16" : "f32", .reference = 1, .threads = threads}, err));
    if (p->lora) /* a new adapter's B is zero and would hide what is wrong with it */
        TRY(cairn_sides_perturb(x, ADAPTER_SCALE, 9, err));
    r->own = x->k.ops;
    cairn_trace_begin(&t);
    st = pass_run(x, afforded, n, err);
    if (st == CAIRN_OK)
        st = late_run(r, afforded, n, report, err);
    cairn_trace_end(&t);
    TRY(st);
    if (json_object_set_new(report, "right",
                            json_pack("{s:i, s:I, s:I, s:f, s:s}", "sequences", n, "calls", (json_int_t)r->calls, "values", (json_int_t)r->values,
                                      "worst", r->worst, "at", r->worst_at)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_blocks_check(x, afforded, n, report, err));
    if (p->lora)
        TRY(cairn_sides_masters_load(x, err)); /* as cairn_legs_open has kept them */
out:
    cairn_right_copies_free(r);
    cairn_compute_close(&r->ref);
    free(r);
    return st;
}
