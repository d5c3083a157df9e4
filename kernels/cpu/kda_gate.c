/* kda_gate.c - decay and beta of KDA and their backward. Forward: rows are shared out; backward: heads, whose sums over rows are
 * chains in sixteen lanes.
 */
#include "base/planted.h"
#include "internal.h"
#include "vmath.h"

struct gate {
    struct arg f, b, a_log, bias, g, beta, dg, dbeta, df, db, da_log, dbias;
    int64_t N, H, D;
    float bound;
};

static int64_t per_head(struct call *c, int64_t P, int64_t H)
{
    if (call_ok(c) && (H < 1 || P % H))
        call_fail(c, "%lld channels in %lld heads", (long long)P, (long long)H);
    return H > 0 ? P / H : 1;
}

/* ln(1 + e^x), exact to fp32 in both tails */
VINLINE v16 softplus(v16 x)
{
    const v16 one = v16_set(1.0f);
    v16 e = v16_exp(x), u = one + e, less = u - one;
    v16 y = v16_select(u == one, e, v16_log(u) * (e / v16_select(u == one, one, less)));

    return v16_select(x > v16_set(20.0f), x, y);
}

/* sigmoid(x) * (1 - sigmoid(x)), without the difference */
VINLINE v16 slope(v16 x)
{
    const v16 one = v16_set(1.0f);
    v16 e = v16_exp((v16)((v16i)x | (int32_t)0x80000000u));

    return e / ((one + e) * (one + e));
}

static void gate_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct gate *k = ctx;
    v16 bound = v16_set(k->bound);

    (void)scratch;
    for (int64_t n = begin; n < end; n++) {
        for (int64_t h = 0; h < k->H; h++) {
            v16 A = v16_exp(v16_set(f32(&k->a_log)[h]));

            for (int64_t j = 0; j < k->D; j += VL) {
                int64_t some = k->D - j < VL ? k->D - j : VL, i = h * k->D + j;
                v16 x = v16_loadn(at1(&k->f, n) + i, some, 0.0f) + v16_loadn(f32(&k->bias) + i, some, 0.0f);

                v16_storen(at1(&k->g, n) + i,
                           k->bound < 0.0f ? bound * v16_sigmoid(cairn_planted("kda-gate-without-a") ? x : A * x) : -A * softplus(x), some);
            }
        }
        for (int64_t h = 0; h < k->H; h += VL) {
            int64_t some = k->H - h < VL ? k->H - h : VL;

            v16_storen(at1(&k->beta, n) + h, v16_sigmoid(v16_loadn(at1(&k->b, n) + h, some, 0.0f)), some);
        }
    }
}

enum cairn_status cairn_kda_gate_cpu(struct cairn_stream *s, const struct cairn_kda_gate *a, struct cairn_error *err)
{
    struct call c = call_begin("kda_gate", s, err);
    int64_t N = -1, P = -1, H = -1;
    struct gate k = {.f = call_arg(&c, "f", &a->f, STRIDED | T_F32, 2, &N, &P), .bound = a->bound};

    k.b = call_arg(&c, "b", &a->b, STRIDED | T_F32, 2, &N, &H);
    k.a_log = call_arg(&c, "a_log", &a->a_log, T_F32, 1, &H);
    k.bias = call_arg(&c, "dt_bias", &a->dt_bias, T_F32, 1, &P);
    k.g = call_arg(&c, "g", &a->g, OUT | T_F32, 2, &N, &P);
    k.beta = call_arg(&c, "beta", &a->beta, OUT | T_F32, 2, &N, &H);
    k.N = N, k.H = H, k.D = per_head(&c, P, H);
    if (call_ok(&c))
        call_share(&c, N, 1, N * P * 3, gate_rows, &k);
    return call_end(&c);
}

static void gate_heads(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct gate *k = ctx;
    v16 bound = v16_set(k->bound);

    (void)scratch;
    for (int64_t h = begin; h < end; h++) {
        v16 A = v16_exp(v16_set(f32(&k->a_log)[h]));
        float heads = 0.0f;

        for (int64_t j = 0; j < k->D; j += VL) {
            int64_t some = k->D - j < VL ? k->D - j : VL, i = h * k->D + j;
            v16 bias = v16_loadn(f32(&k->bias) + i, some, 0.0f), sum = v16_set(0.0f), logs = sum;

            for (int64_t n = 0; n < k->N; n++) {
                v16 x = v16_loadn(at1(&k->f, n) + i, some, 0.0f) + bias, d = v16_loadn(at1(&k->dg, n) + i, some, 0.0f), da;

                if (k->bound < 0.0f) {
                    da = A * (d * bound * slope(A * x));
                    logs = v16_fma(da, x, logs);
                } else {
                    da = -d * A * v16_sigmoid(x);
                    logs = v16_fma(d, -A * softplus(x), logs);
                }
                sum = sum + da;
                v16_storen(at1(&k->df, n) + i, da, some);
            }
            if (k->dbias.p)
                v16_storen(f32(&k->dbias) + i, v16_loadn(f32(&k->dbias) + i, some, 0.0f) + sum, some);
            for (int64_t l = 0; l < some; l++)
                heads += logs[l];
        }
        if (k->da_log.p)
            f32(&k->da_log)[h] += heads;
    }
}

static void beta_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct gate *k = ctx;

    (void)scratch;
    for (int64_t n = begin; n < end; n++)
        for (int64_t h = 0; h < k->H; h += VL) {
            int64_t some = k->H - h < VL ? k->H - h : VL;

            v16_storen(at1(&k->db, n) + h,
                       v16_loadn(at1(&k->dbeta, n) + h, some, 0.0f) * slope(v16_loadn(at1(&k->b, n) + h, some, 0.0f)), some);
        }
}

enum cairn_status cairn_kda_gate_bwd_cpu(struct cairn_stream *s, const struct cairn_kda_gate_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("kda_gate_bwd", s, err);
    int64_t N = -1, P = -1, H = -1;
    struct gate k = {.f = call_arg(&c, "f", &a->f, STRIDED | T_F32, 2, &N, &P), .bound = a->bound};

    k.b = call_arg(&c, "b", &a->b, STRIDED | T_F32, 2, &N, &H);
    k.a_log = call_arg(&c, "a_log", &a->a_log, T_F32, 1, &H);
    k.bias = call_arg(&c, "dt_bias", &a->dt_bias, T_F32, 1, &P);
    k.dg = call_arg(&c, "dg", &a->dg, T_F32, 2, &N, &P);
    k.dbeta = call_arg(&c, "dbeta", &a->dbeta, T_F32, 2, &N, &H);
    k.df = call_arg(&c, "df", &a->df, OUT | STRIDED | T_F32, 2, &N, &P);
    k.db = call_arg(&c, "db", &a->db, OUT | STRIDED | T_F32, 2, &N, &H);
    k.da_log = call_arg(&c, "da_log", &a->da_log, OUT | ABSENT | T_F32, 1, &H);
    k.dbias = call_arg(&c, "ddt_bias", &a->ddt_bias, OUT | ABSENT | T_F32, 1, &P);
    k.N = N, k.H = H, k.D = per_head(&c, P, H);
    if (call_ok(&c)) {
        call_share(&c, H, 1, N * P * 4, gate_heads, &k);
        call_share(&c, N, 1, N * H * 3, beta_rows, &k);
    }
    return call_end(&c);
}
