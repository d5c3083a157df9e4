/* short_conv.c - the short convolution and its backward, sixteen channels at a time. Forward: rows are shared out. Backward:
 * channels, each one walk along all rows that keeps the last K rows' gradients.
 */
#include <string.h>

#include "base/planted.h"
#include "runs.h"
#include "vmath.h"

#define TAPS 8

struct conv {
    struct arg x, y, tail, dy, dx, dw;
    struct runs r;
    const float *w; /* (K, C) */
    int64_t N, C;
    int K;
};

/* Weights turned into (K, C) f32, behind the runs in the shared scratch. */
static const float *turned(const struct arg *w, float *room)
{
    int64_t C = w->d[0], K = w->d[1];

    for (int64_t c = 0; c < C; c++)
        for (int64_t j = 0; j < K; j++)
            room[j * C + c] = w->type == CAIRN_F32 ? f32(w)[c * K + j] : bf16_to_f32(((const uint16_t *)w->p)[c * K + j]);
    return room;
}

static int64_t conv_room(int64_t N, int64_t B, int64_t C, int64_t K)
{
    return (int64_t)round_up((int64_t)runs_room(N, B), 64) + C * K * (int64_t)sizeof(float);
}

static void check(struct call *c, int64_t K)
{
    if (call_ok(c) && (K < 1 || K > TAPS))
        call_fail(c, "%lld taps", (long long)K);
}

static void conv_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct conv *k = ctx;

    (void)scratch;
    for (int64_t n = begin; n < end; n++) {
        const float *row[TAPS];
        int32_t p = k->r.pos[n], b = k->r.seq[n];

        for (int j = 0; j < k->K; j++) {
            int64_t back = cairn_planted("conv-taps-reversed") ? j : k->K - 1 - j, m = n - back;

            row[j] = p < back                                                              ? NULL
                     : m >= 0 && k->r.seq[m] == b && m + p >= n && k->r.pos[m] == p - back ? at1(&k->x, m)
                                                                                           : at2(&k->tail, b, (p - back) % k->K);
        }
        for (int64_t c = 0; c < k->C; c += VL) {
            int64_t some = k->C - c < VL ? k->C - c : VL;
            v16 u = v16_set(0.0f);

            for (int j = 0; j < k->K; j++)
                if (row[j])
                    u = v16_fma(v16_loadn(k->w + j * k->C + c, some, 0.0f), v16_loadn(row[j] + c, some, 0.0f), u);
            v16_storen(at1(&k->y, n) + c, u * v16_sigmoid(u), some);
        }
    }
}

enum cairn_status cairn_short_conv_cpu(struct cairn_stream *s, const struct cairn_short_conv *a, struct cairn_error *err)
{
    struct call c = call_begin("short_conv", s, err);
    int64_t N = -1, C = -1, K = -1, B = -1;
    struct conv k = {.x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &C)};
    struct arg w = call_arg(&c, "w", &a->w, T_WEIGHT, 2, &C, &K), pos, seq;

    k.y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &C);
    pos = call_arg(&c, "pos", &a->pos, T_I32, 1, &N);
    seq = call_arg(&c, "seq", &a->seq, T_I32, 1, &N);
    k.tail = call_arg(&c, "tail", &a->tail, OUT | ABSENT | T_F32, 3, &B, &K, &C);
    check(&c, K);
    if (call_ok(&c))
        call_reserve(&c, 0, (size_t)conv_room(N, B, C, K));
    k.r = runs_find(&c, &pos, &seq, N, B, scratch_shared(&c));
    if (!call_ok(&c))
        return call_end(&c);
    k.w = turned(&w, (float *)((char *)scratch_shared(&c) + round_up((int64_t)runs_room(N, B), 64)));
    k.N = N, k.C = C, k.K = (int)K;
    call_share(&c, N, 1, N * C * (K + 4), conv_rows, &k);
    for (int64_t i = 0; k.tail.p && i < k.r.count; i++)
        for (int64_t n = k.r.begin[i + 1] - K > k.r.begin[i] ? k.r.begin[i + 1] - K : k.r.begin[i]; n < k.r.begin[i + 1]; n++)
            memcpy(at2(&k.tail, k.r.seq[n], (k.r.pos[n] + cairn_planted("conv-tail-off-by-one")) % K), at1(&k.x, n), (size_t)C * sizeof(float));
    return call_end(&c);
}

/* Channels begin .. end */
static void conv_channels(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct conv *k = ctx;
    int K = k->K;

    (void)scratch;
    for (int64_t c = begin; c < end; c += VL) {
        int64_t some = end - c < VL ? end - c : VL;
        v16 w[TAPS], sum[TAPS], x[TAPS], du[TAPS], zero = v16_set(0.0f), one = v16_set(1.0f);

        for (int j = 0; j < K; j++) {
            w[j] = v16_loadn(k->w + j * k->C + c, some, 0.0f);
            sum[j] = zero;
        }
        for (int64_t i = 0; i < k->r.count; i++) {
            int64_t first = k->r.begin[i], last = k->r.begin[i + 1];

            for (int j = 0; j < K; j++)
                x[j] = du[j] = zero; /* of row n - K + 1 + j */
            for (int64_t n = first; n < last + K - 1; n++) {
                v16 u = zero, sg, dx = zero;

                for (int j = 0; j + 1 < K; j++) {
                    x[j] = x[j + 1];
                    du[j] = du[j + 1];
                }
                x[K - 1] = n < last ? v16_loadn(at1(&k->x, n) + c, some, 0.0f) : zero;
                du[K - 1] = zero;
                if (n < last) {
                    for (int j = 0; j < K; j++)
                        u = n - K + 1 + j < first ? u : v16_fma(w[j], x[j], u);
                    sg = v16_sigmoid(u);
                    du[K - 1] = v16_loadn(at1(&k->dy, n) + c, some, 0.0f) * (sg * v16_fma(u, one - sg, one));
                    for (int j = 0; j < K; j++)
                        sum[j] = n - K + 1 + j < first ? sum[j] : v16_fma(du[K - 1], x[j], sum[j]);
                }
                if (n - K + 1 < first)
                    continue;
                for (int j = 0; j < K; j++) /* du[0] is of the row whose dx this is */
                    dx = n - j < last ? v16_fma(w[j], du[K - 1 - j], dx) : dx;
                v16_storen(at1(&k->dx, n - K + 1) + c, dx, some);
            }
        }
        for (int j = 0; k->dw.p && j < K; j++)
            for (int64_t l = 0; l < some; l++)
                f32(&k->dw)[(c + l) * K + j] += sum[j][l];
    }
}

enum cairn_status cairn_short_conv_bwd_cpu(struct cairn_stream *s, const struct cairn_short_conv_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("short_conv_bwd", s, err);
    int64_t N = -1, C = -1, K = -1;
    struct conv k = {.x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &C)};
    struct arg w = call_arg(&c, "w", &a->w, T_WEIGHT, 2, &C, &K), pos, seq;

    k.dy = call_arg(&c, "dy", &a->dy, STRIDED | T_F32, 2, &N, &C);
    k.dx = call_arg(&c, "dx", &a->dx, OUT | STRIDED | T_F32, 2, &N, &C);
    k.dw = call_arg(&c, "dw", &a->dw, OUT | ABSENT | T_F32, 2, &C, &K);
    pos = call_arg(&c, "pos", &a->pos, T_I32, 1, &N);
    seq = call_arg(&c, "seq", &a->seq, T_I32, 1, &N);
    check(&c, K);
    if (call_ok(&c))
        call_reserve(&c, 0, (size_t)conv_room(N, -1, C, K));
    k.r = runs_find(&c, &pos, &seq, N, -1, scratch_shared(&c));
    if (!call_ok(&c))
        return call_end(&c);
    k.w = turned(&w, (float *)((char *)scratch_shared(&c) + round_up((int64_t)runs_room(N, -1), 64)));
    k.N = N, k.C = C, k.K = (int)K;
    call_share(&c, C, VL, N * C * (3 * K + 4), conv_channels, &k);
    return call_end(&c);
}
