/* head_row.c - see head.h. */
#include "head.h"

#include "vmath.h"

#define LEVELS       13

/* Sums e^(x-m), and e^(x-m) (x-m), over one segment. */
static void segment(const float *l, int64_t n, v16 scale, v16 most, int want_entropy, float *sum, float *moment)
{
    v16 s = v16_set(0.0f), w = v16_set(0.0f), low = v16_set(-104.0f); /* below it e^x is 0, and 0 * -inf no number */
    int64_t i = 0;

    if (!want_entropy)
        for (; i + VL <= n; i += VL)
            s = s + v16_exp(v16_load(l + i) * scale - most);
    for (; i < n; i += VL) {
        int64_t m = n - i < VL ? n - i : VL;
        v16 d = v16_loadn(l + i, m, 0.0f) * scale - most, e;

        for (int64_t j = m; j < VL; j++)
            d[j] = -__builtin_inff();
        e = v16_exp(d);
        s = s + e;
        w = v16_fma(e, v16_max(d, low), w);
    }
    *sum = v16_sum(s);
    *moment = v16_sum(w);
}

struct head_row head_row(const float *logits, int64_t V, float inv_temperature, int segments, int want_entropy)
{
    struct head_row r = {.argmax = 0};
    float sum[LEVELS], moment[LEVELS];
    v16 scale = v16_set(inv_temperature), most = v16_set(-__builtin_inff());
    int64_t len = V / segments, i;
    int level = 0;

    for (i = 0; i < V; i += VL) {
        int64_t m = V - i < VL ? V - i : VL;
        v16 x = v16_loadn(logits + i, m, -__builtin_inff());

        if (m == VL)
            x = x * scale;
        else
            for (int64_t j = 0; j < m; j++)
                x[j] = x[j] * inv_temperature;
        most = v16_select(x > most, x, most); /* a NaN is never the largest */
    }
    r.most = v16_maximum(most);
    for (i = 0; i < V; i++)
        if (logits[i] * inv_temperature == r.most) {
            r.argmax = (int32_t)i;
            break;
        }
    most = v16_set(r.most);
    for (int s = 0; s < segments; s++) {
        segment(logits + s * len, len, scale, most, want_entropy, &sum[level], &moment[level]);
        level++;
        for (int done = s + 1; done % 2 == 0; done /= 2) {
            level--;
            sum[level - 1] += sum[level];
            moment[level - 1] += moment[level];
        }
    }
    r.lse = r.most + f32_log(sum[0]);
    r.entropy = want_entropy ? f32_log(sum[0]) - moment[0] / sum[0] : 0.0f;
    return r;
}
