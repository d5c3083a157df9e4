/* kda.c - Kimi delta attention: chunks of rows (kda.h), and the forward over runs, packed or with a state. A thread takes whole
 * runs of a head.
 */
#include "kda.h"

#include <math.h>
#include <string.h>

#include "base/planted.h"
#include "gemm.h"
#include "runs.h"
#include "vmath.h"

VINLINE float dot(const float *a, const float *b, int64_t W)
{
    v16 sum = v16_set(0.0f);

    for (int64_t j = 0; j < W; j += VL)
        sum = v16_fma(v16_load(a + j), v16_load(b + j), sum);
    return v16_sum(sum);
}

void chunk_carve(struct chunk *c, float *room, int64_t W)
{
    float **each[] = {&c->q, &c->k, &c->decay, &c->prefix, &c->keys, &c->d, &c->gap, &c->from, NULL, &c->sum, NULL};

    for (size_t i = 0; i < sizeof each / sizeof *each; i++, room += CHUNK * W)
        if (each[i])
            *each[i] = room;
}

/* out = x * rho * scale, rho = 1 / sqrt(sum x^2 + eps) */
static float normalise(float *out, const float *x, int64_t D, int64_t W, float eps, float scale)
{
    v16 sum = v16_set(0.0f);
    float rho;

    for (int64_t j = 0; j < W; j += VL) {
        v16 y = v16_loadn(x + j, D - j < VL ? D - j : VL, 0.0f);

        v16_store(out + j, y);
        sum = v16_fma(y, y, sum);
    }
    rho = 1.0f / sqrtf(v16_sum(sum) + eps);
    for (int64_t j = 0; j < W; j += VL)
        v16_store(out + j, v16_load(out + j) * v16_set(rho) * v16_set(cairn_planted("kda-query-unscaled") ? 1.0f : scale));
    return rho;
}

void chunk_enter(struct chunk *c, const struct kda_in *in, int64_t n, int64_t h, int i, int queries)
{
    int64_t D = in->D, W = in->W;
    float *k = c->k + i * W, *q = c->q + i * W, *decay = c->decay + i * W, *prefix = c->prefix + i * W;

    c->rho_k[i] = normalise(k, at2(&in->k, n, h), D, W, in->eps, 1.0f);
    if (queries)
        c->rho_q[i] = normalise(q, at2(&in->q, n, h), D, W, in->eps, in->scale);
    c->beta[i] = at1(&in->beta, n)[h];
    for (int64_t j = 0; j < W; j += VL) {
        v16 a = v16_exp(v16_loadn(at2(&in->g, n, h) + j, D - j < VL ? D - j : VL, 0.0f)), p = i ? v16_load(prefix - W + j) * a : a;

        v16_store(decay + j, a);
        v16_store(prefix + j, p);
        v16_store(c->from + i * W + j, v16_load(k + j) * p);
        if (queries)
            v16_store(c->from + (CHUNK + i) * W + j, v16_load(q + j) * p);
    }
    for (int s = 0; s < i; s++) {
        float *key = c->keys + s * W;
        v16 mk = v16_set(0.0f), mq = mk;

        for (int64_t j = 0; j < W; j += VL) {
            v16 x = v16_load(key + j) * v16_load(decay + j);

            v16_store(key + j, x);
            mk = v16_fma(v16_load(k + j), x, mk);
            if (queries)
                mq = v16_fma(v16_load(q + j), x, mq);
        }
        c->m[i][s] = cairn_planted("kda-correction-lost") && s + 1 < i ? 0.0f : v16_sum(mk);
        if (queries)
            c->qk[i][s] = v16_sum(mq);
    }
    memcpy(c->keys + i * W, k, (size_t)W * sizeof *k);
    if (queries)
        c->qk[i][i] = dot(q, k, W);
}

/* sum[r] = from[r] S, for rows r0 .. r1. */
static void through_state(const struct chunk *c, int r0, int r1, const float *S, int64_t W)
{
    if (!S) {
        memset(c->sum + r0 * W, 0, (size_t)((r1 - r0) * W) * sizeof(float));
        return;
    }
    for (int64_t j = 0; j < W; j += TILE_N)
        for (int r = r0; r < r1; r += TILE_M)
            gemm_tile(r1 - r < TILE_M ? r1 - r : TILE_M, W - j < TILE_N ? 1 : 2, W, c->from + r * W, W, 1, S + j, W,
                      c->sum + r * W + j, W, 0);
}

void chunk_answer(struct chunk *c, const struct kda_in *in, int64_t n0, int64_t h, int i0, int i1, const float *S, float *o,
                  int64_t os)
{
    int64_t D = in->D, W = in->W;

    through_state(c, i0, i1, S, W);
    if (o)
        through_state(c, CHUNK + i0, CHUNK + i1, S, W);
    for (int i = i0; i < i1; i++)
        for (int64_t j = 0; j < W; j += VL) {
            int64_t some = D - j < VL ? D - j : VL;
            v16 read = v16_load(c->sum + i * W + j), gap, d, out;

            for (int s = 0; s < i; s++)
                read = v16_fma(v16_set(c->m[i][s]), v16_load(c->d + s * W + j), read);
            gap = v16_loadn(at2(&in->v, n0 + i - i0, h) + j, some, 0.0f) - read;
            d = v16_set(c->beta[i]) * gap;
            v16_store(c->gap + i * W + j, gap);
            v16_store(c->d + i * W + j, d);
            if (!o)
                continue;
            out = v16_load(c->sum + (CHUNK + i) * W + j);
            for (int s = 0; s <= i; s++)
                out = v16_fma(v16_set(c->qk[i][s]), v16_load(c->d + s * W + j), out);
            v16_storen(o + (i - i0) * os + j, out, some);
        }
}

void chunk_close(const struct chunk *c, const float *was, float *S, int64_t W)
{
    const float *decay = c->prefix + (CHUNK - 1) * W;

    for (int64_t i = 0; i < W; i++)
        for (int64_t j = 0; j < W; j += VL) {
            v16 x = was && !cairn_planted("kda-state-of-one-chunk") ? v16_set(decay[i]) * v16_load(was + i * W + j) : v16_set(0.0f);

            for (int s = 0; s < CHUNK; s++)
                x = v16_fma(v16_set(c->keys[s * W + i]), v16_load(c->d + s * W + j), x);
            v16_store(S + i * W + j, x);
        }
}

/* ---- the op -------------------------------------------------------------------------------------------------------------- */

struct attend {
    struct kda_in in;
    struct arg o, state;
    struct runs r;
    int64_t H;
};

/* `n` rows of D floats to (back: from) rows of W. */
static void rows_pad(float *wide, float *narrow, int64_t n, int64_t D, int64_t W, int back)
{
    for (int64_t r = 0; r < n; r++)
        if (back) {
            memcpy(narrow + r * D, wide + r * W, (size_t)D * sizeof *wide);
        } else {
            memcpy(wide + r * W, narrow + r * D, (size_t)D * sizeof *wide);
            memset(wide + r * W + D, 0, (size_t)(W - D) * sizeof *wide);
        }
}

/* The open chunk's `rows` rows, from (back: to) the end of a state. */
static void open_rows(const struct chunk *c, float *state, int rows, int64_t D, int64_t W, int back)
{
    float *keys = state + D * D, *d = keys + CHUNK * D, *decay = d + CHUNK * D;

    rows_pad(c->keys, keys, rows, D, W, back);
    rows_pad(c->d, d, rows, D, W, back);
    if (rows)
        rows_pad(c->prefix + (rows - 1) * W, decay, 1, D, W, back);
}

/* One head of one run. room: chunk, then S. */
static void run_head(const struct attend *k, int64_t run, int64_t h, float *room)
{
    int64_t D = k->in.D, W = k->in.W, begin = k->r.begin[run], end = k->r.begin[run + 1], p = k->r.pos[begin];
    float *state = k->state.p ? at2(&k->state, k->r.seq[begin], h) : NULL, *S = room + chunk_floats(W);
    int i = (int)(p % CHUNK), some = p >= CHUNK || (state && cairn_planted("kda-state-not-reset")), in_place = state && D == W;
    struct chunk c;

    chunk_carve(&c, room, W);
    if (in_place)
        S = state;
    else if (state && some) {
        memset(S, 0, (size_t)(W * W) * sizeof *S);
        rows_pad(S, state, D, D, W, 0);
    } else
        memset(S, 0, (size_t)(W * W) * sizeof *S);
    if (state)
        open_rows(&c, state, cairn_planted("kda-open-chunk-lost") ? 0 : i, D, W, 0);
    for (int64_t n = begin; n < end;) {
        int rows = end - n < CHUNK - i ? (int)(end - n) : CHUNK - i;

        for (int r = 0; r < rows; r++)
            chunk_enter(&c, &k->in, n + r, h, i + r, 1);
        chunk_answer(&c, &k->in, n, h, i, i + rows, some ? S : NULL, at2(&k->o, n, h), k->o.s[0]);
        n += rows;
        i += rows;
        if (i == CHUNK) {
            chunk_close(&c, some ? S : NULL, S, W);
            some = 1, i = 0;
        }
    }
    if (state)
        open_rows(&c, state, i, D, W, 1);
    if (state && !in_place && some)
        rows_pad(S, state, D, D, W, 1);
}

static void run_heads(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct attend *k = ctx;

    for (int64_t t = begin; t < end; t++)
        run_head(k, t / k->H, t % k->H, scratch);
}

enum cairn_status cairn_kda_cpu(struct cairn_stream *s, const struct cairn_kda *a, struct cairn_error *err)
{
    struct call c = call_begin("kda", s, err);
    int64_t N = -1, H = -1, D = -1, B = -1, rows = -1, W;
    struct attend k = {.in = {.scale = a->scale, .eps = a->eps}};
    struct arg pos, seq;

    k.in.q = call_arg(&c, "q", &a->q, STRIDED | T_F32, 3, &N, &H, &D);
    k.in.k = call_arg(&c, "k", &a->k, STRIDED | T_F32, 3, &N, &H, &D);
    k.in.v = call_arg(&c, "v", &a->v, STRIDED | T_F32, 3, &N, &H, &D);
    k.in.g = call_arg(&c, "g", &a->g, T_F32, 3, &N, &H, &D);
    k.in.beta = call_arg(&c, "beta", &a->beta, T_F32, 2, &N, &H);
    k.o = call_arg(&c, "o", &a->o, OUT | STRIDED | T_F32, 3, &N, &H, &D);
    pos = call_arg(&c, "pos", &a->pos, T_I32, 1, &N);
    seq = call_arg(&c, "seq", &a->seq, T_I32, 1, &N);
    k.state = call_arg(&c, "state", &a->state, OUT | ABSENT | T_F32, 4, &B, &H, &rows, &D);
    if (call_ok(&c) && D % 4)
        call_fail(&c, "D = %lld is no multiple of 4", (long long)D);
    if (call_ok(&c) && k.state.p && rows != CAIRN_KDA_ROWS(D))
        call_fail(&c, "state has %lld rows, expected %lld", (long long)rows, (long long)CAIRN_KDA_ROWS(D));
    k.H = H, k.in.D = D, k.in.W = W = round_up(D, VL);
    if (call_ok(&c))
        call_reserve(&c, (size_t)(chunk_floats(W) + W * W + TILE_N) * sizeof(float), runs_room(N, B));
    k.r = runs_find(&c, &pos, &seq, N, B, scratch_shared(&c));
    if (call_ok(&c))
        call_share(&c, k.r.count * H, 1, N * H * D * (3 * D + 60), run_heads, &k);
    return call_end(&c);
}
