/* rope_test.c - rotary positions: angles as the models' fp32 code has them, rotation against fp64, inverse, far positions, rows
 * alone. */
#include "lab.h"

static struct cairn_rope make(struct lab *l, int n, int h, int r, int pad, int far, struct thing **x, struct thing **y,
                              struct thing **pos)
{
    *x = thing_normal(l, thing_new(l, LAB_ACT, pad, 3, n, h, r), 1);
    *y = thing_new(l, LAB_ACT, pad ? pad + 1 : 0, 3, n, h, r);
    *pos = thing_new(l, CAIRN_I32, 0, 1, n);
    for (int i = 0; i < n; i++)
        *thing_i(*pos, i) = i == 0 ? 0 : i == 1 ? far : lab_int(l, 0, far);
    thing_up(l, *pos);
    return (struct cairn_rope){(*x)->t, (*y)->t, (*pos)->t, 10000.0f, 0};
}

static void turns(struct lab *l)
{
    static const int shapes[][5] = {{1, 1, 2, 0, 5},           {30, 3, 8, 2, 100}, {40, 1, 64, 0, 5000}, {5, 2, 64, 1, 300000},
                                    {9, 2, 16, 0, 2147483647}, {0, 2, 8, 0, 9},    {60, 40, 32, 0, 900}, {2115, 33, 32, 0, 5000}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int inverse = 0; inverse < 2; inverse++) {
            int N = lab_small() && shapes[i][0] > 200 ? 200 : shapes[i][0], H = shapes[i][1], R = shapes[i][2];
            struct thing *x, *y, *pos, *z;
            struct cairn_rope a = make(l, N, H, R, shapes[i][3], shapes[i][4], &x, &y, &pos);

            a.inverse = inverse;
            a.theta = i % 2 ? 1e6f : 10000.0f;
            LAB_OK(l, l->fast->rope(&l->c.stream, &a, &l->err));
            thing_down(l, y);
            for (int n = 0; n < N; n++)
                for (int h = 0; h < H; h++)
                    for (int j = 0; j < R / 2; j++) {
                        /* fp32 exactly as published code computes it, then fp64 */
                        float freq = 1.0f / powf(a.theta, (float)(2 * j) / (float)R), angle = (float)*thing_i(pos, n) * freq;
                        int64_t at = ((int64_t)n * H + h) * R + 2 * j;
                        double c = cos(angle), s = inverse ? -sin(angle) : sin(angle), p = *thing_f(x, at), q = *thing_f(x, at + 1);

                        double low = p * c - q * s, high = p * s + q * c, rounding = lab_rounds(l) ? 0x1p-8 : 0;

                        if (!(fabs(*thing_f(y, at) - low) < 1e-6 + rounding * fabs(low) &&
                              fabs(*thing_f(y, at + 1) - high) < 1e-6 + rounding * fabs(high)))
                            fail_msg("%s: position %d, pair %d: (%.8g, %.8g)", l->device, *thing_i(pos, n), j, *thing_f(y, at),
                                     *thing_f(y, at + 1));
                    }
            z = thing_like(l, y, 1);
            for (int n = 0; n < N; n++) { /* rows alone */
                struct cairn_rope one = a;

                one.x = cairn_tensor_slice(&a.x, 0, n, 1), one.y = cairn_tensor_slice(&z->t, 0, n, 1),
                one.pos = cairn_tensor_slice(&a.pos, 0, n, 1);
                LAB_OK(l, l->fast->rope(&l->c.stream, &one, &l->err));
            }
            thing_down(l, z);
            lab_equal_bits(l, "row alone", z, y);
            a.y = z->t;
            LAB_OK(l, l->ref->rope(&l->c.stream, &a, &l->err));
            thing_down(l, z);
            lab_near(l, "reference", y, z, 0x1p-22, 0x1p-23 * 4);
            a.y = a.x; /* in place */
            LAB_OK(l, l->fast->rope(&l->c.stream, &a, &l->err));
            thing_down(l, x);
            lab_equal_bits(l, "in place", x, y);
            lab_clear(l);
        }
}

/* (1, 0) turned is (cos, sin): each correctly rounded from fp64, or next to a tie, at any position. */
static void to_the_last_bit(struct lab *l)
{
    enum { N = 4000 };
    struct thing *x, *y, *pos;
    struct cairn_rope a;

    l->act = CAIRN_F32; /* bits that bf16 has not */
    a = make(l, N, 1, 2, 0, 2147483647, &x, &y, &pos);

    for (int n = 0; n < N; n++)
        *thing_f(x, 2 * n) = 1, *thing_f(x, 2 * n + 1) = 0;
    thing_up(l, x);
    LAB_OK(l, l->fast->rope(&l->c.stream, &a, &l->err));
    thing_down(l, y);
    for (int n = 0; n < N; n++) {
        double angle = (float)*thing_i(pos, n), c = cos(angle), s = sin(angle);

        if (!(fabs(*thing_f(y, 2 * n) - c) <= 0x1.0001p-25 && fabs(*thing_f(y, 2 * n + 1) - s) <= 0x1.0001p-25))
            fail_msg("%s: position %d: (%.9g, %.9g)", l->device, *thing_i(pos, n), *thing_f(y, 2 * n), *thing_f(y, 2 * n + 1));
    }
}

static void refusals(struct lab *l)
{
    struct thing *x, *y, *pos;
    struct cairn_rope a = make(l, 3, 1, 6, 0, 9, &x, &y, &pos);

    *thing_i(pos, 2) = -1;
    thing_up(l, pos);
    LAB_REFUSES(l, l->fast->rope(&l->c.stream, &a, &l->err));
    *thing_i(pos, 2) = 1;
    thing_up(l, pos);
    a.x.dim[2] = a.y.dim[2] = 5;
    LAB_REFUSES(l, l->fast->rope(&l->c.stream, &a, &l->err));
}

ON_EACH_DEVICE(turns)
ON_EACH_DEVICE(to_the_last_bit)
ON_EACH_DEVICE(refusals)

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(turns_test), cmocka_unit_test(to_the_last_bit_test),
                                       cmocka_unit_test(refusals_test)};

    return LAB_RUN(tests);
}
