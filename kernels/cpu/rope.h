/* rope.h - cosines and sines of rotary positions, shared by the fast op and the reference: there is one rule for an angle.
 *
 * inv_freq[j] = 1 / theta^(2j/R) and angle = pos * inv_freq[j] are single precision, as the models' published code has them; then
 * cos and sin of that single-precision angle, correctly rounded but for near ties.
 */
#ifndef CAIRN_KERNELS_CPU_ROPE_H
#define CAIRN_KERNELS_CPU_ROPE_H

#pragma GCC visibility push(hidden)

/* 1 / theta^(2j/R) */
float rope_inv_freq(float theta, int R, int j);
/* For angle >= 0. Own reduction and polynomials: no libm version changes a bit. */
void rope_cos_sin(float angle, float *cosine, float *sine);

#pragma GCC visibility pop
#endif
