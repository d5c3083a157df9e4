/* rope_angle.c - the angle of a rotary position, and its cosine and sine in fp64. See rope.h. Polynomials: fdlibm's k_sin.c and
 * k_cos.c (Sun Microsystems); reduction by pi/2 in three parts with exact products (fma), good for any angle below 2^31.
 */
#include <math.h>

#include "internal.h"
#include "rope.h"

#pragma GCC visibility push(hidden)

float rope_inv_freq(float theta, int R, int j)
{
    float exponent = (float)(2 * j) / (float)R;

    return 1.0f / (float)pow((double)theta, (double)exponent);
}

void rope_cos_sin(float angle, float *cosine, float *sine)
{
    double x = (double)angle, n = nearbyint(x * 0x1.45f306dc9c883p-1), r, z, s, c;
    long long q = (long long)n & 3;

    r = fma(-n, 0x1.921fb54442d18p+0, x);
    r = fma(-n, 0x1.1a62633145c07p-54, r);
    r = fma(-n, -0x1.f1976b7ed8fbcp-110, r);
    z = r * r;
    s = 1.58969099521155010221e-10;
    s = fma(s, z, -2.50507602534068634195e-08);
    s = fma(s, z, 2.75573137070700676789e-06);
    s = fma(s, z, -1.98412698298579493134e-04);
    s = fma(s, z, 8.33333333332248946124e-03);
    s = fma(s, z, -1.66666666666666324348e-01);
    s = fma(s * z, r, r);
    c = -1.13596475577881948265e-11;
    c = fma(c, z, 2.08757232129817482790e-09);
    c = fma(c, z, -2.75573143513906633035e-07);
    c = fma(c, z, 2.48015872894767294178e-05);
    c = fma(c, z, -1.38888888888741095749e-03);
    c = fma(c, z, 4.16666666666666019037e-02);
    c = fma(c * z, z, fma(-0.5, z, 1.0));
    *cosine = (float)(q == 0 ? c : q == 1 ? -s : q == 2 ? -c : s);
    *sine = (float)(q == 0 ? s : q == 1 ? c : q == 2 ? -s : -c);
}

#pragma GCC visibility pop
