/* sample.c - draws one token a row. The numbers of a row are those of head.h, so that the log-probability written here is the one
 * that logprob gives, bit for bit.
 *
 * Masses are integers, floor(2^40 e^(x - max)): their sums do not depend on order, so the smallest set that reaches top_p is found
 * by a threshold (select.h) instead of sorting, and the draw is one pass over ids. A token of less than 2^-40 times the likeliest
 * one is never drawn; the uniform has 24 bits.
 */
#include <math.h>

#include "base/philox.h"
#include "head.h"
#include "internal.h"
#include "select.h"
#include "vmath.h"

#define UNIT 0x1p40f

struct room {
    float *x;      /* (V) scaled logits */
    int64_t *mass; /* (V), -1: dropped */
    int64_t *full; /* (V) before anything was dropped */
    int32_t *key;  /* (V) order of x */
};

/* Drops (mass -1) what stands behind the beginning of the order - by x, ties to the lower id - that ends with the threshold key t
 * and, of those that are equal to t, with as many as bring `have` to `need`; weights 1 each if by_count. */
static void drop_behind(const struct room *w, int64_t V, int32_t t, int by_count, int64_t need)
{
    int64_t have = 0;

    for (int64_t v = 0; v < V; v++)
        if (w->key[v] > t)
            have += by_count ? 1 : w->full[v];
    for (int64_t v = 0; v < V; v++) {
        if (w->key[v] > t)
            continue;
        if (w->key[v] < t || have >= need)
            w->mass[v] = -1;
        else
            have += by_count ? 1 : w->full[v];
    }
}

/* Each rule looks at the whole distribution; kept is what all of them keep. Dropped ids get mass -1. How many ids are kept. */
static int64_t truncate_row(const struct cairn_sample *a, const struct room *w, int64_t V, int64_t total)
{
    int64_t kept = 0;

    for (int64_t v = 0; v < V; v++) {
        w->key[v] = select_key(w->x[v]);
        w->full[v] = w->mass[v];
    }
    if (a->top_k > 0 && a->top_k < V)
        drop_behind(w, V, select_by_count(w->key, V, a->top_k), 1, a->top_k);
    if (a->top_p < 1.0f) {
        double share = ceil((double)a->top_p * (double)total);
        int64_t need = share < 1.0 ? 1 : share > (double)total ? total : (int64_t)share;

        drop_behind(w, V, select_by_weight(w->key, w->full, V, need), 0, need);
    }
    for (int64_t v = 0; v < V; v++) {
        if (a->min_p > 0.0f && (float)w->full[v] < a->min_p * UNIT)
            w->mass[v] = -1;
        kept += w->mass[v] >= 0;
    }
    return kept;
}

struct drawing {
    const struct cairn_sample *a;
    struct arg logits, prompt, sample, position, token, logprob, sampled, barred;
    int64_t V;
};

/* x of what may be drawn; barred ids are -inf. The likeliest of the others is the argmax, ties to the lower id: *most its x. */
static int32_t bar(const struct drawing *k, float *x, float *most)
{
    const uint8_t *barred = u8(&k->barred);
    int32_t best = 0;

    *most = -INFINITY;
    for (int64_t v = 0; v < k->V; v++) {
        if (barred[v])
            x[v] = -INFINITY;
        else if (x[v] > *most) {
            *most = x[v];
            best = (int32_t)v;
        }
    }
    return best;
}

/* The id whose interval the row's uniform falls into; masses below 0 are no part of the distribution. */
static int32_t draw(const struct drawing *k, int64_t n, const struct room *w, int32_t fallback)
{
    const struct cairn_philox_key key = {k->a->seed, CAIRN_PURPOSE_SAMPLE, k->a->step};
    int64_t total = 0, sum = 0, at;
    uint32_t word[4];

    for (int64_t v = 0; v < k->V; v++)
        total += w->mass[v] > 0 ? w->mass[v] : 0;
    cairn_philox(&key, (uint32_t)i32(&k->prompt)[n], (uint32_t)i32(&k->sample)[n], (uint32_t)i32(&k->position)[n], word);
    at = (int64_t)((double)cairn_uniform(word[0]) * (double)total);
    for (int64_t v = 0; v < k->V; v++) {
        sum += w->mass[v] > 0 ? w->mass[v] : 0;
        if (sum > at)
            return (int32_t)v;
    }
    return fallback;
}

static void draw_row(const struct drawing *k, int64_t n, const struct room *w)
{
    const struct cairn_sample *a = k->a;
    const float *l = at1(&k->logits, n);
    int64_t V = k->V, kept = V;
    struct head_row r = head_row(l, V, a->inv_temperature, a->segments, 0);
    int32_t chosen = r.argmax;

    if (isfinite(r.lse)) { /* else the log-probability says that something is wrong: NaN or infinite */
        float most = r.most;

        for (int64_t v = 0; v < V; v += VL)
            v16_store(w->x + v, v16_loadn(l + v, V - v < VL ? V - v : VL, 0.0f) * v16_set(a->inv_temperature));
        if (k->barred.p)
            chosen = bar(k, w->x, &most);
        for (int64_t v = 0; v < V; v += VL) {
            v16 e = v16_exp(v16_load(w->x + v) - v16_set(most)) * v16_set(UNIT);

            for (int64_t j = 0; j < VL; j++)
                w->mass[v + j] = (int64_t)e[j];
        }
        if ((a->top_k > 0 && a->top_k < V) || a->top_p < 1.0f || a->min_p > 0.0f) {
            int64_t total = 0;

            for (int64_t v = 0; v < V; v++)
                total += w->mass[v];
            kept = truncate_row(a, w, V, total);
        }
        for (int64_t v = 0; k->barred.p && v < V; v++)
            if (u8(&k->barred)[v] && w->mass[v] >= 0) {
                w->mass[v] = -1;
                kept--;
            }
        if (!a->greedy)
            chosen = draw(k, n, w, chosen);
    }
    i32(&k->token)[n] = chosen;
    f32(&k->logprob)[n] = head_logprob(l, chosen, a->inv_temperature, &r);
    if (k->sampled.p) {
        f32(&k->sampled)[n] = f32(&k->logprob)[n];
        if (kept < V) {
            float x = w->x[chosen];

            for (int64_t v = 0; v < V; v++)
                if (w->mass[v] < 0)
                    w->x[v] = -INFINITY;
            f32(&k->sampled)[n] = x - head_row(w->x, V, 1.0f, a->segments, 0).lse;
        }
    }
}

static void draw_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct drawing *k = ctx;
    int64_t padded = round_up(k->V, VL);
    struct room w = {.mass = scratch};

    w.full = w.mass + padded;
    w.x = (float *)(w.full + padded);
    w.key = (int32_t *)(w.x + padded);
    for (int64_t n = begin; n < end; n++)
        draw_row(k, n, &w);
}

enum cairn_status cairn_sample_cpu(struct cairn_stream *s, const struct cairn_sample *a, struct cairn_error *err)
{
    struct call c = call_begin("sample", s, err);
    int64_t N = -1, V = -1;
    struct drawing k = {.a = a, .logits = call_arg(&c, "logits", &a->logits, STRIDED | T_F32, 2, &N, &V)};

    k.prompt = call_arg(&c, "prompt", &a->prompt, T_I32, 1, &N);
    k.sample = call_arg(&c, "sample", &a->sample, T_I32, 1, &N);
    k.position = call_arg(&c, "position", &a->position, T_I32, 1, &N);
    k.token = call_arg(&c, "token", &a->token, OUT | T_I32, 1, &N);
    k.logprob = call_arg(&c, "logprob", &a->logprob, OUT | T_F32, 1, &N);
    k.sampled = call_arg(&c, "logprob_sampled", &a->logprob_sampled, OUT | ABSENT | T_F32, 1, &N);
    k.barred = call_arg(&c, "barred", &a->barred, ABSENT | T_U8, 1, &V);
    k.V = V;
    if (call_ok(&c) && (a->segments < 1 || a->segments > 4096 || (a->segments & (a->segments - 1)) || V < 1 || V % a->segments))
        call_fail(&c, "vocabulary of %lld in %d segments", (long long)V, a->segments);
    if (call_ok(&c))
        call_reserve(&c, (size_t)round_up(V, VL) * (sizeof(float) + 2 * sizeof(int64_t) + sizeof(int32_t)), 0);
    if (call_ok(&c))
        call_share(&c, N, 1, N * V * 4, draw_rows, &k);
    return call_end(&c);
}
