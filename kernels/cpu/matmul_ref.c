/* matmul_ref.c - matmul and matmul_grouped as their formula reads, sums in fp64. */
#include "internal.h"
#include "vec.h"

static double element(const struct arg *t, int64_t i)
{
    return t->type == CAIRN_BF16 ? (double)bf16_to_f32(((const uint16_t *)t->p)[i]) : (double)((const float *)t->p)[i];
}

/* y[i][j] (+)= alpha * sum_k x[i,k] w[k,j], with the strides of each. Segments make no difference to a sum in fp64. */
static void product(const struct arg *x, int64_t x0, int64_t xi, int64_t xk, const struct arg *w, int64_t w0, int64_t wk,
                    int64_t wj, float *y, int64_t yi, int64_t I, int64_t J, int64_t K, float alpha, int accumulate)
{
    for (int64_t i = 0; i < I; i++)
        for (int64_t j = 0; j < J; j++) {
            double sum = 0;

            for (int64_t k = 0; k < K; k++)
                sum += element(x, x0 + i * xi + k * xk) * element(w, w0 + k * wk + j * wj);
            y[i * yi + j] = (float)((accumulate ? (double)y[i * yi + j] : 0) + (double)alpha * sum);
        }
}

/* One product of form f on rows n of x, from element offsets x0, w0 and y0. a, b: the two other dimensions in the order of the
 * form. */
static void form(enum cairn_form f, const struct arg *x, int64_t x0, int64_t xs, const struct arg *w, int64_t w0, int64_t ws,
                 float *y, int64_t ys, int64_t n, int64_t a, int64_t b, float alpha, int accumulate)
{
    if (f == CAIRN_NT)
        product(x, x0, xs, 1, w, w0, 1, ws, y, ys, n, b, a, alpha, accumulate);
    else if (f == CAIRN_NN)
        product(x, x0, xs, 1, w, w0, ws, 1, y, ys, n, b, a, alpha, accumulate);
    else
        product(x, x0, 1, xs, w, w0, ws, 1, y, ys, a, b, n, alpha, accumulate);
}

enum cairn_status cairn_matmul_ref(struct cairn_stream *s, const struct cairn_matmul *a, struct cairn_error *err)
{
    struct call c = call_begin("matmul", s, err);
    int64_t H = 1, N = -1, K = -1, O = -1, *first[2] = {&N, &K}, *second[2] = {&O, &K}, *third[2] = {&N, &O};
    int heads = a->x.ndim == 3, d = heads ? 3 : 2;
    struct arg x, w, y;

    if (a->form == CAIRN_NN)
        second[0] = &K, second[1] = &O;
    if (a->form == CAIRN_TN)
        second[0] = &N, second[1] = &O, third[0] = &K;
    if (heads) {
        H = -1;
        x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 3, &H, first[0], first[1]);
        w = call_arg(&c, "w", &a->w, STRIDED | T_WEIGHT, 3, &H, second[0], second[1]);
        y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 3, &H, third[0], third[1]);
    } else {
        x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, first[0], first[1]);
        w = call_arg(&c, "w", &a->w, STRIDED | T_WEIGHT, 2, second[0], second[1]);
        y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, third[0], third[1]);
    }
    if (call_ok(&c))
        for (int64_t h = 0; h < H; h++)
            form(a->form, &x, heads ? h * x.s[0] : 0, x.s[d - 2], &w, heads ? h * w.s[0] : 0, w.s[d - 2],
                 f32(&y) + (heads ? h * y.s[0] : 0), y.s[d - 2], N, K, O, a->alpha, a->accumulate);
    return call_end(&c);
}

enum cairn_status cairn_matmul_grouped_ref(struct cairn_stream *s, const struct cairn_matmul_grouped *a, struct cairn_error *err)
{
    struct call c = call_begin("matmul_grouped", s, err);
    int64_t E = -1, E1, N = -1, K = -1, O = -1;
    int tn = a->form == CAIRN_TN;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 2, &N, &K), w, y, offsets;

    if (tn) {
        w = call_arg(&c, "w", &a->w, STRIDED | T_F32, 2, &N, &O);
        y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 3, &E, &K, &O);
    } else {
        w = a->form == CAIRN_NT ? call_arg(&c, "w", &a->w, STRIDED | T_WEIGHT, 3, &E, &O, &K)
                                : call_arg(&c, "w", &a->w, STRIDED | T_WEIGHT, 3, &E, &K, &O);
        y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 2, &N, &O);
    }
    E1 = E + 1;
    offsets = call_arg(&c, "offsets", &a->offsets, T_I32, 1, &E1);
    if (call_ok(&c))
        for (int64_t e = 0; e < E; e++) {
            int64_t b = i32(&offsets)[e], n = i32(&offsets)[e + 1] - b;

            if (tn)
                form(a->form, &x, b * x.s[0], x.s[0], &w, b * w.s[0], w.s[0], at1(&y, e), y.s[1], n, K, O, a->alpha, a->accumulate);
            else
                form(a->form, &x, b * x.s[0], x.s[0], &w, e * w.s[0], w.s[1], at1(&y, b), y.s[0], n, K, O, a->alpha, a->accumulate);
        }
    return call_end(&c);
}
