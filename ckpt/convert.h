/* convert.h - exact conversions between the small floating-point formats and fp32, in software.
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even; overflow goes to infinity (e4m3, which has none, to NaN);
 * a NaN stays a NaN, made quiet, with its sign. No memory, no state, no dependence on the rounding mode.
 * Sources: IEEE 754-2019 for f16; bf16 is the upper half of fp32; e4m3fn as in arXiv:2209.05433 (bias 7, no infinity,
 * S.1111.111 is NaN, largest 448).
 */
#ifndef CAIRN_CKPT_CONVERT_H
#define CAIRN_CKPT_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"

float cairn_bf16_to_f32(uint16_t x);
uint16_t cairn_f32_to_bf16(float x);
float cairn_f16_to_f32(uint16_t x);
uint16_t cairn_f32_to_f16(float x);
float cairn_e4m3_to_f32(uint8_t x);
uint8_t cairn_f32_to_e4m3(float x);

/* n elements; any of F32, BF16, F16, F64, F8E4M3 to F32, BF16 or F16; equal dtypes copy. src and dst do not overlap and
 * need no alignment. F64 is rounded once, straight to the target. 1: done; 0: no such conversion. */
int cairn_convert(enum cairn_dtype to, void *dst, enum cairn_dtype from, const void *src, size_t n);

/* Element i of p, which holds elements of type t one after the other and needs no alignment. Exact, but that I64 beyond 2^53 is rounded. */
double cairn_value(enum cairn_dtype t, const void *p, int64_t i);

#endif
