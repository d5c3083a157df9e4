/* logprob.c - log-probabilities of given tokens and their backward, over chunks of rows, so that logits are never held whole.
 *
 * Only rows whose target is wanted are computed: they are brought together first. In the backward the rows of dl^T z are added to
 * dw in order, one chain over all wanted rows whatever the chunks.
 */
#include "base/planted.h"
#include "gemm.h"
#include "head.h"
#include "vmath.h"

#define CHUNK_BYTES ((int64_t)8 << 20) /* of logits */
#define CHUNK_ROWS  256

struct head {
    struct arg z, w, target;
    int64_t N, D, V;
    float scale;
    int segments;
    int64_t chunk;   /* rows at a time */
    int32_t *wanted; /* (count) rows, ascending */
    int64_t count;
    float *rows;   /* (chunk, D) their z */
    float *logits; /* (chunk, V) */
    float *dz;     /* (chunk, D), backward */
};

static void head_args(struct call *c, struct head *h, const struct cairn_tensor *z, const struct cairn_tensor *w,
                      const struct cairn_tensor *target)
{
    h->N = h->D = h->V = -1;
    h->z = call_arg(c, "z", z, STRIDED | T_F32, 2, &h->N, &h->D);
    h->w = call_arg(c, "w", w, STRIDED | T_WEIGHT, 2, &h->V, &h->D);
    h->target = call_arg(c, "target", target, T_I32, 1, &h->N);
    if (call_ok(c) &&
        (h->segments < 1 || h->segments > 4096 || (h->segments & (h->segments - 1)) || h->V < 1 || h->V % h->segments))
        call_fail(c, "vocabulary of %lld in %d segments", (long long)h->V, h->segments);
    for (int64_t n = 0; call_ok(c) && n < h->N; n++)
        if (i32(&h->target)[n] < -1 || i32(&h->target)[n] >= h->V)
            call_fail(c, "target %d of row %lld is not below %lld", i32(&h->target)[n], (long long)n, (long long)h->V);
}

/* Shared scratch: logits, rows, dz, wanted. */
static void head_reserve(struct call *c, struct head *h)
{
    char *p;

    if (!call_ok(c))
        return;
    h->chunk = CHUNK_BYTES / (h->V * (int64_t)sizeof(float));
    h->chunk = h->chunk < 8 ? 8 : h->chunk > CHUNK_ROWS ? CHUNK_ROWS : h->chunk;
    if (h->chunk > h->N)
        h->chunk = h->N;
    call_reserve(c, gemm_scratch_bytes(h->segments),
                 (size_t)(h->chunk * (h->V + 2 * h->D)) * sizeof(float) + (size_t)h->N * sizeof(int32_t));
    if (!call_ok(c))
        return;
    p = scratch_shared(c);
    h->logits = (float *)p;
    h->rows = h->logits + h->chunk * h->V;
    h->dz = h->rows + h->chunk * h->D;
    h->wanted = (int32_t *)(h->dz + h->chunk * h->D);
    h->count = 0;
    for (int64_t n = 0; n < h->N; n++)
        if (i32(&h->target)[n] >= 0)
            h->wanted[h->count++] = (int32_t)n;
}

struct product {
    struct gemm g;
    int pieces;
};

static void product_part(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct product *p = ctx;

    for (int64_t t = begin; t < end; t++)
        gemm_piece(&p->g, (int)t, p->pieces, scratch);
}

static void product_run(struct call *c, const struct gemm *g)
{
    int64_t work = g->m * g->n * g->k / 4;
    struct product p = {*g, call_pieces(c, work, 2 * (int64_t)c->cpu->threads)};

    call_share(c, p.pieces, 1, work, product_part, &p);
}

/* Logits of wanted rows i0 .. i0+m */
static void chunk_logits(struct call *c, const struct head *h, int64_t i0, int64_t m)
{
    struct gemm g = gemm_product(CAIRN_NT, h->rows, h->D, h->w.p, h->w.type, h->w.s[0], h->logits, h->V, m, h->D, h->V);

    for (int64_t i = 0; i < m; i++)
        memcpy(h->rows + i * h->D, at1(&h->z, h->wanted[i0 + i]), (size_t)h->D * sizeof(float));
    product_run(c, &g);
}

struct forward {
    struct head h;
    struct arg logprob, lse, entropy, argmax;
    int64_t i0; /* the chunk */
};

static void forward_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct forward *k = ctx;

    (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        const float *l = k->h.logits + i * k->h.V;
        struct head_row r = head_row(l, k->h.V, k->h.scale, k->h.segments, k->entropy.p != NULL);
        int64_t n = k->h.wanted[k->i0 + i];

        f32(&k->logprob)[n] = head_logprob(l, i32(&k->h.target)[n], cairn_planted("logprob-target-untempered") ? 1.0f : k->h.scale, &r);
        f32(&k->lse)[n] = r.lse;
        if (k->entropy.p)
            f32(&k->entropy)[n] = r.entropy;
        if (k->argmax.p)
            i32(&k->argmax)[n] = r.argmax;
    }
}

enum cairn_status cairn_logprob_cpu(struct cairn_stream *s, const struct cairn_logprob *a, struct cairn_error *err)
{
    struct call c = call_begin("logprob", s, err);
    struct forward k = {.h = {.scale = a->inv_temperature, .segments = a->segments}};
    struct head *h = &k.h;

    head_args(&c, h, &a->z, &a->w, &a->target);
    k.logprob = call_arg(&c, "logprob", &a->logprob, OUT | T_F32, 1, &h->N);
    k.lse = call_arg(&c, "lse", &a->lse, OUT | T_F32, 1, &h->N);
    k.entropy = call_arg(&c, "entropy", &a->entropy, OUT | ABSENT | T_F32, 1, &h->N);
    k.argmax = call_arg(&c, "argmax", &a->argmax, OUT | ABSENT | T_I32, 1, &h->N);
    head_reserve(&c, h);
    if (call_ok(&c)) {
        for (int64_t n = 0; n < h->N; n++) {
            f32(&k.logprob)[n] = 0.0f;
            f32(&k.lse)[n] = 0.0f;
            if (k.entropy.p)
                f32(&k.entropy)[n] = 0.0f;
            if (k.argmax.p)
                i32(&k.argmax)[n] = -1;
        }
        for (k.i0 = 0; k.i0 < h->count; k.i0 += h->chunk) {
            int64_t m = h->count - k.i0 < h->chunk ? h->count - k.i0 : h->chunk;

            chunk_logits(&c, h, k.i0, m);
            call_share(&c, m, 1, m * h->V * 4, forward_rows, &k);
        }
    }
    return call_end(&c);
}

/* l becomes dl. dlp, dh: upstream of the log-probability and of the entropy. */
static void row_gradient(float *l, int64_t V, float scale, int64_t target, float lse, float entropy, float dlp, float dh)
{
    v16 k = v16_set(scale), z = v16_set(lse), low = v16_set(-104.0f), g = v16_set(dlp), e = v16_set(dh), H = v16_set(entropy);
    float at = l[target] * scale - lse, p = f32_exp(at);

    for (int64_t i = 0; i < V; i += VL) {
        int64_t m = V - i < VL ? V - i : VL;
        v16 lp = v16_loadn(l + i, m, 0.0f) * k - z, q = v16_exp(lp), d = -(g * q);

        if (dh != 0.0f)
            d = d - e * q * (v16_max(lp, low) + H);
        v16_storen(l + i, d * k, m);
    }
    l[target] =
        (dlp * (1.0f - (cairn_planted("logprob-bwd-target") ? 0.0f : p)) - (dh != 0.0f ? dh * p * ((at < -104.0f ? -104.0f : at) + entropy) : 0.0f)) *
        scale;
}

struct backward {
    struct head h;
    struct arg lse, entropy, dlogprob, dentropy, dz, dw;
    int64_t i0;
};

static void gradient_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct backward *k = ctx;

    (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        int64_t n = k->h.wanted[k->i0 + i];

        row_gradient(k->h.logits + i * k->h.V, k->h.V, k->h.scale, i32(&k->h.target)[n], f32(&k->lse)[n],
                     k->entropy.p ? f32(&k->entropy)[n] : 0.0f, f32(&k->dlogprob)[n], k->dentropy.p ? f32(&k->dentropy)[n] : 0.0f);
    }
}

enum cairn_status cairn_logprob_bwd_cpu(struct cairn_stream *s, const struct cairn_logprob_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("logprob_bwd", s, err);
    struct backward k = {.h = {.scale = a->inv_temperature, .segments = a->segments}};
    struct head *h = &k.h;

    head_args(&c, h, &a->z, &a->w, &a->target);
    k.lse = call_arg(&c, "lse", &a->lse, T_F32, 1, &h->N);
    k.dentropy = call_arg(&c, "dentropy", &a->dentropy, ABSENT | T_F32, 1, &h->N);
    k.entropy = call_arg(&c, "entropy", &a->entropy, (a->dentropy.buf ? 0 : ABSENT) | T_F32, 1, &h->N);
    k.dlogprob = call_arg(&c, "dlogprob", &a->dlogprob, T_F32, 1, &h->N);
    k.dz = call_arg(&c, "dz", &a->dz, OUT | STRIDED | T_F32, 2, &h->N, &h->D);
    k.dw = call_arg(&c, "dw", &a->dw, OUT | ABSENT | STRIDED | T_F32, 2, &h->V, &h->D);
    head_reserve(&c, h);
    if (call_ok(&c)) {
        for (int64_t n = 0; n < h->N; n++)
            if (i32(&h->target)[n] < 0)
                memset(at1(&k.dz, n), 0, (size_t)h->D * sizeof(float));
        for (k.i0 = 0; k.i0 < h->count; k.i0 += h->chunk) {
            int64_t m = h->count - k.i0 < h->chunk ? h->count - k.i0 : h->chunk;
            struct gemm to_z = gemm_product(CAIRN_NN, h->logits, h->V, h->w.p, h->w.type, h->w.s[0], h->dz, h->D, m, h->V, h->D);
            struct gemm to_w =
                gemm_product(CAIRN_TN, h->logits, h->V, h->rows, CAIRN_F32, h->D, f32(&k.dw), k.dw.s[0], m, h->V, h->D);

            chunk_logits(&c, h, k.i0, m);
            call_share(&c, m, 1, m * h->V * 4, gradient_rows, &k);
            to_z.segments = h->segments;
            product_run(&c, &to_z);
            to_w.chain = 1;
            if (k.dw.p)
                product_run(&c, &to_w);
            for (int64_t i = 0; i < m; i++)
                memcpy(at1(&k.dz, h->wanted[k.i0 + i]), h->dz + i * h->D, (size_t)h->D * sizeof(float));
        }
    }
    return call_end(&c);
}
