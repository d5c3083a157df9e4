/* vmath_test.c - exp, ln and sigmoid of the cpu back-end: accuracy against fp64 libm over every 977th float, special values, lanes.
 */
#include "../../kernels/cpu/vmath.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static double unit(double x) /* one unit in the last place of a float of this size */
{
    int e;

    frexp(x, &e);
    return x == 0 || e < -125 ? 0x1p-149 : ldexp(1, e - 24);
}

static void accuracy(void **state)
{
    double worst[3] = {0};

    (void)state;
    for (uint64_t u = 0; u < (uint64_t)1 << 32; u += 977 * VL) {
        v16 x, y[3];

        for (int i = 0; i < VL; i++) {
            uint32_t b = (uint32_t)(u + 977u * (unsigned)i);
            float f;

            memcpy(&f, &b, sizeof f);
            x[i] = f;
        }
        y[0] = v16_exp(x), y[1] = v16_log(x), y[2] = v16_sigmoid(x);
        for (int i = 0; i < VL; i++) {
            double f = x[i], want[3] = {exp(f), log(f), 1 / (1 + exp(-f))};

            for (int k = 0; k < 3; k++) {
                double d;

                if (isnan(want[k]) || isnan(f)) {
                    assert_true(isnan(y[k][i]));
                    continue;
                }
                if (isinf((float)want[k])) {
                    assert_true(y[k][i] == (float)want[k]);
                    continue;
                }
                d = fabs(y[k][i] - want[k]) / unit(want[k]);
                worst[k] = d > worst[k] ? d : worst[k];
            }
            /* one value alone has the bits of its lane */
            if (i == (int)(u % VL)) {
                float one[3] = {f32_exp(x[i]), f32_log(x[i]), f32_sigmoid(x[i])};

                for (int k = 0; k < 3; k++) {
                    float lane = y[k][i];

                    assert_true(memcmp(&one[k], &lane, sizeof lane) == 0 || (isnan(one[k]) && isnan(lane)));
                }
            }
        }
    }
    /* as the header promises */
    assert_true(worst[0] <= 1.01);
    assert_true(worst[1] <= 0.82);
    assert_true(worst[2] <= 2.31);
}

static void special(void **state)
{
    (void)state;
    assert_true(f32_exp(-INFINITY) == 0 && f32_exp(INFINITY) == INFINITY && f32_exp(0) == 1 && f32_exp(-0.0f) == 1);
    assert_true(f32_exp(88.7f) < INFINITY && f32_exp(88.73f) == INFINITY && f32_exp(-104.0f) == 0 && f32_exp(-103.0f) == 0x1p-149f);
    assert_true(f32_log(0) == -INFINITY && f32_log(-0.0f) == -INFINITY && f32_log(INFINITY) == INFINITY && isnan(f32_log(-1)) &&
                f32_log(1) == 0);
    assert_true(f32_sigmoid(0) == 0.5f && f32_sigmoid(INFINITY) == 1 && f32_sigmoid(-INFINITY) == 0 && isnan(f32_sigmoid(NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(accuracy), cmocka_unit_test(special)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
