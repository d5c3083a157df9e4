/* attention.c - sparse attention over chosen keys, and its backward.
 *
 * Forward, one query at a time: gather, products, softmax (sums of exp in 16 lanes by place in the choice, added by a fixed
 * tree), weighted sum over keys in order, one division. Backward in two passes over runs of rows: the first, over queries,
 * makes dq and keeps P and dl; the second, over keys with an inverted list of who chose them (rows ascending), adds to dk.
 * Threads share queries in the first and keys in the second: no sum is ever split.
 */
#include <stdatomic.h>

#include "base/planted.h"
#include "gather.h"
#include "vmath.h"

#define PASS_BYTES ((int64_t)32 << 20) /* what a run of rows may keep between the passes */

struct shape {
    int64_t N, H, W, C, S, T, ldl, ldo;
};

static struct shape shape_new(void)
{
    return (struct shape){-1, -1, -1, -1, -1, -1, 0, 0};
}

static void shape_check(struct call *c, struct shape *z)
{
    if (call_ok(c) && (z->C > z->W || z->C < 1 || z->T < 1))
        call_fail(c, "C = %lld channels of W = %lld, T = %lld", (long long)z->C, (long long)z->W, (long long)z->T);
    z->ldl = round_up(z->T, TILE_N);
    z->ldo = round_up(z->W, TILE_N);
}

/* Largest of scale * l over n; l is scaled on the way, and -inf up to the next 16. */
static float scale_max(float *l, int64_t n, float scale)
{
    v16 most = v16_set(-__builtin_inff());

    for (int64_t i = 0; i < n; i += VL) {
        v16 x = v16_load(l + i) * v16_set(scale);

        if (n - i < VL)
            for (int64_t j = n - i; j < VL; j++)
                x[j] = -__builtin_inff();
        v16_store(l + i, x);
        most = v16_max(most, x);
    }
    return v16_maximum(most);
}

struct forward {
    struct arg q, idx, o, lse;
    struct keys keys;
    struct shape z;
    float scale;
    atomic_int bad;
};

static size_t forward_bytes(const struct shape *z)
{
    return gather_bytes(z->T, z->W) + sizeof(float) * (size_t)(z->H * (z->ldl + z->ldo) + 2 * round_up(z->H, VL));
}

static void forward_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    struct forward *k = ctx;
    const struct shape *z = &k->z;
    struct gather g;
    float *l = (float *)((char *)scratch + gather_bytes(z->T, z->W)), *out = l + z->H * z->ldl;
    float *most = out + z->H * z->ldo, *total = most + round_up(z->H, VL);

    gather_init(&g, z->T, z->W, scratch);
    for (int64_t h = 0; h < round_up(z->H, VL); h++)
        most[h] = 0.0f, total[h] = 1.0f;
    for (int64_t n = begin; n < end; n++) {
        const int32_t *choice = i32(&k->idx) + n * z->T;
        int64_t count = idx_count(choice, z->T, i32(&k->keys.pos)[n]);

        if (count < 1) {
            atomic_store(&k->bad, 1);
            continue;
        }
        if (cairn_planted("attention-last-key-lost") && count > 1)
            count--;
        gather_keys(&g, &k->keys, i32(&k->keys.seq)[n], choice, count);
        gather_products(&g, at1(&k->q, n), k->q.s[1], z->H, z->W, l, z->ldl);
        for (int64_t h = 0; h < z->H; h++) {
            float *p = l + h * z->ldl;
            v16 sum = v16_set(0.0f);

            most[h] = scale_max(p, count, k->scale);
            for (int64_t i = 0; i < count; i += VL) {
                v16 e = v16_exp(v16_load(p + i) - v16_set(most[h]));

                v16_store(p + i, e);
                sum = sum + e;
            }
            total[h] = v16_sum(sum);
        }
        gather_sums(&g, l, z->ldl, z->H, z->C, out, z->ldo);
        for (int64_t h = 0; h < z->H; h++)
            for (int64_t i = 0; i < z->C; i += VL)
                v16_storen(at2(&k->o, n, h) + i, v16_load(out + h * z->ldo + i) / v16_set(total[h]), z->C - i < VL ? z->C - i : VL);
        for (int64_t h = 0; h < z->H; h += VL)
            v16_storen(f32(&k->lse) + n * z->H + h, v16_load(most + h) + v16_log(v16_load(total + h)),
                       z->H - h < VL ? z->H - h : VL);
    }
}

enum cairn_status cairn_attention_cpu(struct cairn_stream *s, const struct cairn_attention *a, struct cairn_error *err)
{
    struct call c = call_begin("attention", s, err);
    struct forward k = {.z = shape_new(), .scale = a->scale};
    struct shape *z = &k.z;

    k.q = call_arg(&c, "q", &a->q, STRIDED | T_F32, 3, &z->N, &z->H, &z->W);
    k.idx = call_arg(&c, "idx", &a->idx, T_I32, 2, &z->N, &z->T);
    k.o = call_arg(&c, "o", &a->o, OUT | STRIDED | T_F32, 3, &z->N, &z->H, &z->C);
    k.lse = call_arg(&c, "lse", &a->lse, OUT | T_F32, 2, &z->N, &z->H);
    k.keys = keys_arg(&c, &a->keys, &z->N, &z->S, &z->W);
    shape_check(&c, z);
    if (call_ok(&c))
        call_reserve(&c, forward_bytes(z), 0);
    if (call_ok(&c))
        call_share(&c, z->N, 1, z->N * z->H * z->T * z->W / 4, forward_rows, &k);
    if (atomic_load(&k.bad))
        call_fail(&c, "a row's idx are not ascending positions that it sees");
    return call_end(&c);
}

/* ---- backward ---------------------------------------------------------------------------------------------------------- */

struct backward {
    struct arg q, idx, o, lse, d_o, dq, dk;
    struct keys keys;
    struct shape z;
    float scale;
    int64_t n0, n1; /* the run of rows */
    float *kept;    /* (rows of the run, T, H, 2): scale * dl, P */
    int32_t *begin; /* (S + 1): where the list of key row s starts */
    int32_t *list;  /* places (n - n0) * T + j in kept, n ascending */
};

/* First pass for row n: dq, and what the second pass needs. room: two of H x ldl, one of H x ldo. */
static void query_pass(const struct backward *b, struct gather *g, int64_t n, float *room)
{
    const struct shape *z = &b->z;
    const int32_t *choice = i32(&b->idx) + n * z->T;
    int64_t count = idx_count(choice, z->T, i32(&b->keys.pos)[n]);
    float *l = room, *dp = l + z->H * z->ldl, *out = dp + z->H * z->ldl, *kept = b->kept + (n - b->n0) * z->T * z->H * 2;

    gather_keys(g, &b->keys, i32(&b->keys.seq)[n], choice, count);
    gather_products(g, at1(&b->q, n), b->q.s[1], z->H, z->W, l, z->ldl);
    gather_products(g, at1(&b->d_o, n), b->d_o.s[1], z->H, z->C, dp, z->ldl);
    for (int64_t h = 0; h < z->H; h++) {
        const float *d_o = at2(&b->d_o, n, h), *o = at2(&b->o, n, h);
        v16 sum = v16_set(0.0f), D, lse = v16_set(f32(&b->lse)[n * z->H + h]), scale = v16_set(b->scale);

        for (int64_t i = 0; i < z->C; i += VL) {
            int64_t m = z->C - i < VL ? z->C - i : VL;

            sum = v16_fma(v16_loadn(d_o + i, m, 0.0f), v16_loadn(o + i, m, 0.0f), sum);
        }
        D = v16_set(cairn_planted("attention-bwd-no-d") ? 0.0f : v16_sum(sum));
        for (int64_t i = 0; i < count; i += VL) {
            v16 p = v16_exp(v16_load(l + h * z->ldl + i) * scale - lse);
            v16 dl = p * (v16_load(dp + h * z->ldl + i) - D) * scale;

            v16_store(dp + h * z->ldl + i, dl);
            for (int64_t j = i; j < count && j < i + VL; j++) {
                kept[(j * z->H + h) * 2] = dl[j - i];
                kept[(j * z->H + h) * 2 + 1] = p[j - i];
            }
        }
    }
    gather_sums(g, dp, z->ldl, z->H, z->W, out, z->ldo);
    for (int64_t h = 0; h < z->H; h++)
        memcpy(at2(&b->dq, n, h), out + h * z->ldo, (size_t)z->W * sizeof(float));
}

/* Second pass for key row s, channels from w on: nq vectors of them, of which the first nv are value channels too. The two sums,
 * over dl q and over P d_o, are chains of their own (latency), both added to dk at the end. mq, mv: channels in the last vector. */
VINLINE void key_block(const int nq, const int nv, const struct backward *b, int64_t s, int64_t w, int64_t mq, int64_t mv)
{
    const struct shape *z = &b->z;
    const int32_t *place = b->list + b->begin[s], *end = b->list + b->begin[s + 1];
    float *dk = f32(&b->dk) + s * z->W + w;
    v16 by_q[4], by_o[4];

#pragma GCC unroll 4
    for (int v = 0; v < 4; v++)
        by_q[v] = by_o[v] = v16_set(0.0f);
    for (; place < end; place++) {
        int64_t n = b->n0 + *place / z->T;
        const float *kept = b->kept + (int64_t)*place * z->H * 2, *q = at1(&b->q, n) + w, *d_o = at1(&b->d_o, n) + w;

        for (int64_t h = 0; h < z->H; h++) {
            v16 dl = v16_set(kept[2 * h]), p = v16_set(kept[2 * h + 1]);

#pragma GCC unroll 4
            for (int v = 0; v < nq; v++)
                by_q[v] = v16_fma(dl, v < nq - 1 ? v16_load(q + v * VL) : v16_loadn(q + v * VL, mq, 0.0f), by_q[v]);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                by_o[v] = v16_fma(p, v < nv - 1 ? v16_load(d_o + v * VL) : v16_loadn(d_o + v * VL, mv, 0.0f), by_o[v]);
            q += b->q.s[1];
            d_o += b->d_o.s[1];
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < nq; v++) {
        int64_t m = v < nq - 1 ? VL : mq;

        v16_storen(dk + v * VL, v16_loadn(dk + v * VL, m, 0.0f) + (by_q[v] + by_o[v]), m);
    }
}

/* Channels in blocks of up to four vectors, so that sums stay in registers. */
static void key_pass(const struct backward *b, int64_t s)
{
    for (int64_t w = 0; w < b->z.W; w += 4 * VL) {
        int64_t q = b->z.W - w < 4 * VL ? b->z.W - w : 4 * VL, o = b->z.C - w < 0 ? 0 : b->z.C - w < q ? b->z.C - w : q;
        int nq = (int)((q + VL - 1) / VL), nv = (int)((o + VL - 1) / VL);
        int64_t mq = q - (nq - 1) * VL, mv = o - (nv - 1) * VL;

#define BLOCK(Q, V)                                                                                                                \
    case Q * 8 + V:                                                                                                                \
        key_block(Q, V, b, s, w, mq, mv);                                                                                          \
        break;
        switch (nq * 8 + nv) {
            BLOCK(1, 0)
            BLOCK(1, 1) BLOCK(2, 0) BLOCK(2, 1) BLOCK(2, 2) BLOCK(3, 0) BLOCK(3, 1) BLOCK(3, 2) BLOCK(3, 3) BLOCK(4, 0) BLOCK(4, 1)
                BLOCK(4, 2) BLOCK(4, 3) BLOCK(4, 4)
        }
#undef BLOCK
    }
}

/* Who chose key row s, in the run of rows: a counting sort. */
static void invert(struct backward *b)
{
    const struct shape *z = &b->z;

    memset(b->begin, 0, (size_t)(z->S + 2) * sizeof *b->begin);
    b->begin++; /* while counting, entry s + 1 is where list s is filled to */
    for (int64_t n = b->n0; n < b->n1; n++) {
        const int32_t *choice = i32(&b->idx) + n * z->T;
        int64_t start = i32(&b->keys.start)[i32(&b->keys.seq)[n]];

        for (int64_t j = 0; j < z->T && choice[j] >= 0; j++)
            b->begin[start + choice[j] + 1]++;
    }
    for (int64_t s = 0; s < z->S; s++)
        b->begin[s + 1] += b->begin[s];
    for (int64_t n = b->n0; n < b->n1; n++) {
        const int32_t *choice = i32(&b->idx) + n * z->T;
        int64_t start = i32(&b->keys.start)[i32(&b->keys.seq)[n]];

        for (int64_t j = 0; j < z->T && choice[j] >= 0; j++)
            b->list[b->begin[start + choice[j]]++] = (int32_t)((n - b->n0) * z->T + j);
    }
    b->begin--; /* now entry s is the end of list s - 1, the start of list s */
}

static void query_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct backward *b = ctx;
    struct gather g;

    gather_init(&g, b->z.T, b->z.W, scratch);
    for (int64_t n = b->n0 + begin; n < b->n0 + end; n++)
        query_pass(b, &g, n, (float *)((char *)scratch + gather_bytes(b->z.T, b->z.W)));
}

static void key_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct backward *b = ctx;

    (void)scratch;
    for (int64_t s = begin; s < end; s++)
        if (b->begin[s] < b->begin[s + 1])
            key_pass(b, s);
}

enum cairn_status cairn_attention_bwd_cpu(struct cairn_stream *s, const struct cairn_attention_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("attention_bwd", s, err);
    struct backward b = {.z = shape_new(), .scale = a->scale};
    struct shape *z = &b.z;
    int64_t run = 0, each;

    b.q = call_arg(&c, "q", &a->q, STRIDED | T_F32, 3, &z->N, &z->H, &z->W);
    b.idx = call_arg(&c, "idx", &a->idx, T_I32, 2, &z->N, &z->T);
    b.o = call_arg(&c, "o", &a->o, STRIDED | T_F32, 3, &z->N, &z->H, &z->C);
    b.lse = call_arg(&c, "lse", &a->lse, T_F32, 2, &z->N, &z->H);
    b.d_o = call_arg(&c, "d_o", &a->d_o, STRIDED | T_F32, 3, &z->N, &z->H, &z->C);
    b.dq = call_arg(&c, "dq", &a->dq, OUT | STRIDED | T_F32, 3, &z->N, &z->H, &z->W);
    b.dk = call_arg(&c, "dk", &a->dk, OUT | T_F32, 2, &z->S, &z->W);
    b.keys = keys_arg(&c, &a->keys, &z->N, &z->S, &z->W);
    if (call_ok(&c) && b.keys.pages.p)
        call_fail(&c, "keys are paged");
    shape_check(&c, z);
    for (int64_t n = 0; call_ok(&c) && n < z->N; n++)
        if (idx_count(i32(&b.idx) + n * z->T, z->T, i32(&b.keys.pos)[n]) < 1)
            call_fail(&c, "the idx of row %lld are not ascending positions that it sees", (long long)n);
    if (call_ok(&c)) {
        each = z->T * (z->H * 2 * (int64_t)sizeof(float) + (int64_t)sizeof(int32_t));
        run = PASS_BYTES / each < 1 ? 1 : PASS_BYTES / each;
        if (run > z->N)
            run = z->N;
        call_reserve(&c, gather_bytes(z->T, z->W) + sizeof(float) * (size_t)(z->H * (2 * z->ldl + z->ldo)),
                     (size_t)(run * each) + (size_t)(z->S + 2) * sizeof(int32_t));
    }
    if (call_ok(&c)) {
        b.kept = scratch_shared(&c);
        b.list = (int32_t *)(b.kept + run * z->T * z->H * 2);
        b.begin = b.list + run * z->T;
        for (b.n0 = 0; b.n0 < z->N; b.n0 = b.n1) {
            int64_t work;

            b.n1 = z->N - b.n0 < run ? z->N : b.n0 + run;
            work = (b.n1 - b.n0) * z->H * z->T * z->W / 4;
            invert(&b);
            call_share(&c, b.n1 - b.n0, 1, 3 * work, query_rows, &b);
            call_share(&c, z->S, 1, 2 * work, key_rows, &b);
        }
    }
    return call_end(&c);
}
