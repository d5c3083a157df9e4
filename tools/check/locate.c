/* locate.c - see locate.h. */
#include "tools/check/locate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "tools/check/trace.h"

/* One row of one op's output. */
struct seen {
    uint64_t key;     /* of op, place and member */
    int32_t which;    /* sequence */
    int32_t pos;
    uint64_t digest;  /* of the row's bytes */
    int64_t serial;   /* order in which the model runs it */
    const char *param;
    enum cairn_op_number op;
};

struct side {
    struct cairn_sides *x;
    int trainer;
    struct seen *seen;
    size_t n, cap;
    uint64_t met[4096]; /* keys of this forward, to count how often */
    int mets;
    int64_t serial;
    char *bytes;
    size_t room;
};

static uint64_t mix(const void *p, size_t n)
{
    return cairn_digest_bytes(p, n).lo;
}

static uint64_t place_key(struct side *s, const struct cairn_trace_call *c, const char *member)
{
    char text[400];
    uint64_t plain;
    int times = 0, n = snprintf(text, sizeof text, "%s %s %s", c->param, c->info->name, member);

    plain = mix(text, (size_t)n);
    for (int i = 0; i < s->mets; i++)
        times += s->met[i] == plain;
    if (s->mets < (int)(sizeof s->met / sizeof *s->met))
        s->met[s->mets++] = plain;
    n += snprintf(text + n, sizeof text - (size_t)n, " %d", times);
    return mix(text, (size_t)n);
}

/* Rows of the call at hand: how many, and whose. */
static int64_t rows_now(const struct side *s)
{
    return s->trainer ? s->x->trainer.micro.rows : s->x->now.n;
}

static void row_whose(const struct side *s, int64_t row, int32_t *which, int32_t *pos)
{
    const struct cairn_micro *m = &s->x->trainer.micro;

    *which = s->trainer ? (int32_t)m->member[m->seq[row]]->index : s->x->now.which[row];
    *pos = s->trainer ? m->pos[row] : s->x->now.pos[row];
}

/* The bytes of row r of t lie in s->bytes from its own first one on; inner dimensions may have gaps. */
static uint64_t row_digest(const struct side *s, const struct cairn_tensor *t, int64_t r)
{
    size_t e = cairn_dtype_size(t->dtype);
    int64_t outer = t->ndim > 2 ? t->dim[1] : 1, inner = t->ndim == 1 ? 1 : t->dim[t->ndim - 1];
    uint64_t all = 0;

    for (int64_t i = 0; i < outer; i++) {
        const char *p = s->bytes + (size_t)(r * t->stride[0] + (t->ndim > 2 ? i * t->stride[1] : 0)) * e;

        all = all * 0x9E3779B97F4A7C15u + mix(p, (size_t)inner * e);
    }
    return all;
}

static enum cairn_status fetch(struct side *s, const struct cairn_tensor *t, struct cairn_error *err)
{
    int64_t last = 1, bytes;
    struct cairn_tensor flat;
    enum cairn_status st = CAIRN_OK;

    for (int d = 0; d < t->ndim; d++)
        last += (t->dim[d] - 1) * t->stride[d];
    bytes = last * (int64_t)cairn_dtype_size(t->dtype);
    if ((size_t)bytes > s->room) {
        char *p = realloc(s->bytes, (size_t)bytes);

        if (!p)
            TRY(CAIRN_NOMEM(err));
        s->bytes = p;
        s->room = (size_t)bytes;
    }
    TRY(cairn_tensor_view(&flat, t->buf, t->offset, CAIRN_U8, 1, &bytes, err));
    TRY(cairn_tensor_get(&s->x->k.stream, &flat, s->bytes, (size_t)bytes, err));
out:
    return st;
}

static enum cairn_status member_keep(struct side *s, const struct cairn_trace_call *c, const struct cairn_op_member *m, struct cairn_error *err)
{
    const struct cairn_tensor *t = cairn_op_tensor(c->args, m);
    int64_t rows = rows_now(s);
    enum cairn_status st = CAIRN_OK;
    uint64_t key;

    if (!t->buf || t->ndim < 1 || t->ndim > 3 || t->dim[0] != rows || !rows)
        return CAIRN_OK;
    key = place_key(s, c, m->name);
    TRY(fetch(s, t, err));
    if (s->n + (size_t)rows > s->cap) {
        size_t cap = 2 * (s->cap + (size_t)rows);
        struct seen *p = realloc(s->seen, cap * sizeof *p);

        if (!p)
            TRY(CAIRN_NOMEM(err));
        s->seen = p;
        s->cap = cap;
    }
    for (int64_t r = 0; r < rows; r++) {
        struct seen *e = &s->seen[s->n];
        int32_t which, pos;

        row_whose(s, r, &which, &pos);
        if (c->op == CAIRN_OP_logprob && pos + 1 < s->x->q.s[which].prompt)
            continue; /* the trainer asks for no number there */
        s->n++;
        *e = (struct seen){.key = key, .digest = row_digest(s, t, r), .serial = s->serial, .param = c->param, .op = c->op,
                            .which = which, .pos = pos};
    }
out:
    return st;
}

static enum cairn_status after(void *arg, const struct cairn_trace_call *c, struct cairn_error *err)
{
    struct side *s = arg;
    enum cairn_status st = CAIRN_OK;

    if (c->op == CAIRN_OP_rows && c->exact && strstr(c->param, "embed")) { /* a forward begins */
        s->mets = 0;
        s->serial = 0;
    }
    s->serial++;
    if (c->op == CAIRN_OP_dispatch) /* its rows are choices sorted over the whole call */
        return CAIRN_OK;
    for (const struct cairn_op_member *m = c->info->member; m->name; m++)
        if (m->role == CAIRN_OP_OUT || m->role == CAIRN_OP_ADDED)
            TRY(member_keep(s, c, m, err));
out:
    return st;
}

static int by_key(const void *a, const void *b)
{
    const struct seen *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    if (x->which != y->which)
        return x->which < y->which ? -1 : 1;
    return x->pos < y->pos ? -1 : x->pos > y->pos;
}

static int by_order(const void *a, const void *b)
{
    const struct seen *x = a, *y = b;

    if (x->serial != y->serial)
        return x->serial < y->serial ? -1 : 1;
    if (x->which != y->which)
        return x->which < y->which ? -1 : 1;
    return x->pos < y->pos ? -1 : x->pos > y->pos;
}

/* The first of the trainer's, in the model's order, that the sampler has with other bits; NULL: none. */
static const struct seen *first_apart(struct side *t, struct side *s)
{
    qsort(s->seen, s->n, sizeof *s->seen, by_key);
    qsort(t->seen, t->n, sizeof *t->seen, by_order);
    for (size_t i = 0; i < t->n; i++) {
        const struct seen *other = bsearch(&t->seen[i], s->seen, s->n, sizeof *s->seen, by_key);

        if (other && other->digest != t->seen[i].digest)
            return &t->seen[i];
    }
    return NULL;
}

static enum cairn_status side_run(struct side *s, const struct cairn_sides_cut *cut, float *scores, struct cairn_error *err)
{
    struct cairn_sides *x = s->x;
    const struct cairn_policy *p = s->trainer ? &x->trainer.policy : &x->policy;
    struct cairn_trace t = {.k = &x->k, .stores = {&p->weights, p->lora ? &p->adapter_weights : NULL}, .after = after, .arg = s};
    enum cairn_status st;

    cairn_trace_begin(&t);
    st = s->trainer ? cairn_sides_trainer_scores(x, scores, err) : cairn_sides_sampler_scores(x, cut, scores, err);
    cairn_trace_end(&t);
    return st;
}

enum cairn_status cairn_locate(struct cairn_sides *x, const struct cairn_sides_cut *cut, json_t *report, char *why, size_t n, struct cairn_error *err)
{
    struct side t = {.x = x, .trainer = 1}, s = {.x = x};
    float *scores = malloc((size_t)x->q.at[x->q.n] * sizeof *scores);
    const struct seen *e;
    enum cairn_status st = CAIRN_OK;
    char block[64];

    if (!scores)
        return CAIRN_NOMEM(err);
    TRY(side_run(&t, cut, scores, err));
    TRY(side_run(&s, cut, scores, err));
    e = first_apart(&t, &s);
    if (!e) {
        snprintf(why, n, "every op that both sides run gives equal rows: what differs lies between them and the scores");
        goto out;
    }
    cairn_trace_block(e->param, block, sizeof block);
    snprintf(why, n, "first in %s (%s at %s), token %d of sequence %s", block, cairn_op_info(e->op)->name, e->param, e->pos, x->q.name[e->which]);
    if (json_object_set_new(report, "located", json_pack("{s:s, s:s, s:s, s:i, s:s}", "block", block, "op", cairn_op_info(e->op)->name, "parameter",
                                                         e->param, "token", (int)e->pos, "sequence", x->q.name[e->which])))
        TRY(CAIRN_NOMEM(err));
out:
    free(scores);
    free(t.seen);
    free(t.bytes);
    free(s.seen);
    free(s.bytes);
    return st;
}
