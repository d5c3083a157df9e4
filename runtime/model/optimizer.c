/* optimizer.c - one update: norm, clip, AdamW over two flat runs, publication.
 *
 * The norm is taken tensor by tensor in table order (one sum of squares each, added ascending on the host in double), so that it does
 * not depend on how parameters lie in memory. Clipping multiplies by grad_clip / norm where norm > grad_clip; it goes into the
 * update as grad_scale and the gradients stay as they are. Two calls of AdamW: with weight decay and without (params.c lays them out so).
 *
 * Touches no tensor memory: ops and host copies of the sums only.
 */
#include "model/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum cairn_status cairn_optimizer_create(struct cairn_optimizer *out, const struct cairn_param_table *t, struct cairn_compute *k,
                                         struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_optimizer o;

    memset(&o, 0, sizeof(o));
    o.k = k;
    o.table = t;
    TRY(cairn_store_create(&o.master, t, k->dev, 1, err));
    TRY(cairn_store_create(&o.m, t, k->dev, 1, err));
    TRY(cairn_store_create(&o.v, t, k->dev, 1, err));
    TRY(cairn_buffer_create(k->dev, ((size_t)t->count + 1) * sizeof(double), &o.sums, err));
    *out = o;
    memset(&o, 0, sizeof(o));
out:
    cairn_optimizer_free(&o);
    return st;
}

void cairn_optimizer_free(struct cairn_optimizer *o)
{
    if (!o)
        return;
    cairn_store_free(&o->master);
    cairn_store_free(&o->m);
    cairn_store_free(&o->v);
    cairn_buffer_destroy(o->sums);
    memset(o, 0, sizeof(*o));
}

enum cairn_status cairn_optimizer_start(struct cairn_optimizer *o, const struct cairn_store *weights, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_stream *s = &o->k->stream;

    if (o->master.flat.buf) {
        TRY(cairn_tensor_copy(s, &o->master.flat, &weights->flat, err));
        TRY(cairn_tensor_zero(s, &o->m.flat, err));
        TRY(cairn_tensor_zero(s, &o->v.flat, err));
        TRY(cairn_stream_wait(s, err));
    }
    o->updates = 0;
out:
    return st;
}

/* Elements of the flat run up to the first parameter that `after` accepts. */
static int64_t run_until(const struct cairn_param_table *t, int (*after)(const struct cairn_param *))
{
    size_t end = t->trainable_bytes;

    for (int i = 0; i < t->count; i++) {
        const struct cairn_param *p = &t->param[i];

        if (!p->frozen && after(p) && p->offset - t->trainable_begin < end)
            end = p->offset - t->trainable_begin;
    }
    return (int64_t)(end / 4);
}

static int is_f32(const struct cairn_param *p)
{
    return p->keep_f32;
}

static int no_decay(const struct cairn_param *p)
{
    return !p->decay || p->keep_f32;
}

static enum cairn_status gradient_norm(struct cairn_optimizer *o, const struct cairn_store *grads, double *norm, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_param_table *t = o->table;
    const int64_t count = t->count, one = 1;
    struct cairn_tensor all;
    double *h = malloc(((size_t)count + 1) * sizeof(*h)), sum = 0;

    if (!h)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_tensor_view(&all, o->sums, 0, CAIRN_F64, 1, &count, err));
    TRY(cairn_tensor_zero(&o->k->stream, &all, err));
    for (int i = 0; i < t->count; i++) {
        struct cairn_sumsq a;
        const int64_t n = cairn_param_count(&t->param[i]);

        if (!grads->tensor[i].buf)
            continue;
        a.x = cairn_tensor_reshape(&grads->tensor[i], 1, &n);
        TRY(cairn_tensor_view(&a.out, o->sums, (size_t)i * sizeof(double), CAIRN_F64, 1, &one, err));
        TRY(o->k->ops.sumsq(&o->k->stream, &a, err));
    }
    TRY(cairn_tensor_get(&o->k->stream, &all, h, (size_t)count * sizeof(*h), err));
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(h[i]))
            TRY(cairn_fail(err, CAIRN_ENUMERIC, "the gradient of %s is not finite", t->param[i].name));
        sum += h[i];
    }
    *norm = sqrt(sum);
out:
    free(h);
    return st;
}

static enum cairn_status adamw(struct cairn_optimizer *o, struct cairn_store *grads, int64_t begin, int64_t end, struct cairn_adamw a,
                               struct cairn_error *err)
{
    int64_t n = end - begin;

    if (n <= 0)
        return CAIRN_OK;
    a.p = cairn_tensor_slice(&o->master.flat, 0, begin, n);
    a.g = cairn_tensor_slice(&grads->flat, 0, begin, n);
    a.m = cairn_tensor_slice(&o->m.flat, 0, begin, n);
    a.v = cairn_tensor_slice(&o->v.flat, 0, begin, n);
    return o->k->ops.adamw(&o->k->stream, &a, err);
}

enum cairn_status cairn_optimizer_step(struct cairn_optimizer *o, const struct cairn_optimizer_opts *opts, struct cairn_store *grads,
                                       struct cairn_store *weights, double *norm, double *lr, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t t = o->updates + 1, all = (int64_t)(o->table->trainable_bytes / 4), mid = run_until(o->table, no_decay);
    double rate = opts->learning_rate, length = 0, scale = 1;
    struct cairn_adamw a;

    if (grads->table != o->table || weights->table != o->table)
        TRY(CAIRN_BUG(err, "stores of another table"));
    TRY(gradient_norm(o, grads, &length, err));
    if (opts->warmup_updates > 0 && t < opts->warmup_updates)
        rate *= (double)t / (double)opts->warmup_updates;
    if (opts->grad_clip > 0 && length > opts->grad_clip)
        scale = opts->grad_clip / length;
    a = (struct cairn_adamw){.lr = (float)rate, .beta1 = (float)opts->beta1, .beta2 = (float)opts->beta2, .eps = (float)opts->eps,
                             .weight_decay = (float)opts->weight_decay, .grad_scale = (float)scale, .t = t};
    TRY(adamw(o, grads, 0, mid, a, err));
    a.weight_decay = 0;
    TRY(adamw(o, grads, mid, all, a, err));
    TRY(cairn_optimizer_publish(o, opts->publish, weights, err));
    o->updates = t;
    if (norm)
        *norm = length;
    if (lr)
        *lr = rate;
out:
    return st;
}

enum cairn_status cairn_optimizer_publish(struct cairn_optimizer *o, enum cairn_dtype publish, struct cairn_store *weights,
                                          struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t all = (int64_t)(o->table->trainable_bytes / 4), mid = run_until(o->table, is_f32);

    if (weights->table != o->table)
        TRY(CAIRN_BUG(err, "weights of another table"));
    if (publish != CAIRN_F32 && publish != CAIRN_BF16 && publish != CAIRN_F16)
        TRY(CAIRN_BUG(err, "weights are published as f32, bf16 or f16"));
    for (int part = 0; part < 2; part++) {
        int64_t begin = part ? mid : 0, n = part ? all - mid : mid;
        struct cairn_cast a = {.round_to = part || publish == CAIRN_F32 ? -1 : (int)publish};

        if (n <= 0)
            continue;
        a.src = cairn_tensor_slice(&o->master.flat, 0, begin, n);
        a.dst = cairn_tensor_slice(&weights->flat, 0, begin, n);
        TRY(o->k->ops.cast(&o->k->stream, &a, err));
    }
out:
    return st;
}
