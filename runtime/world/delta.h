/* delta.h - from one generation of weights to the next in few bytes: positions and values of the elements that changed.
 *
 * Most bf16 weights keep their bits from step to step (an update below a 512th of a weight is rounded away), so a step is a percent or
 * so of the elements. A delta is exact: applied to its base it gives the next generation bit for bit, and to anything else it is refused,
 * before a byte is written.
 *
 *     head      magic, element width, bytes, elements changed, XXH3-128 of base and of next, sizes of the streams, XXH3-128 of the rest
 *     gaps      zstd of one byte an element: unchanged elements before it; 255: a 32-bit count follows in `far`
 *     far       zstd of those counts, little-endian
 *     planes    zstd of base XOR next, all lowest bytes, then the next ones, ... (width of them)
 *
 * Where it pays: random bf16 weights of N(0, 0.02) after a step of 1e-6 (full weights) come to 0.015 of their bytes; of adapters 0.09 (A, 1e-5) to
 * 0.45 (B, still small), since one learning rate is more of an ulp there. It is made at 0.02 to 0.4 GB/s a core, far below every path of a
 * handover in memory (model/handover.h), which therefore sends all bytes: a difference is for full weights over a slow network.
 * It does not pay where much has changed: then it holds the next generation whole, in as many bytes and a head (cairn_delta_whole).
 * Host memory; the idea (XOR and zstd) is that of PULSE, arXiv:2602.03839.
 */
#ifndef CAIRN_WORLD_DELTA_H
#define CAIRN_WORLD_DELTA_H

#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/status.h"

/* bytes: of base and of next, a multiple of width (2 or 4). *delta is malloc'ed, n bytes. */
enum cairn_status cairn_delta_make(const void *base, const void *next, size_t bytes, int width, void **delta, size_t *n, struct cairn_error *err);
/* 1: it is no difference but everything. */
int cairn_delta_whole(const void *delta, size_t n);
/* What it stands on and what it leads to: XXH3-128 of all bytes. CAIRN_EDATA: it is damaged, or no delta. */
enum cairn_status cairn_delta_ends(const void *delta, size_t n, struct cairn_digest *base, struct cairn_digest *next, struct cairn_error *err);
/* In place. CAIRN_EDATA: another base (both digests in the sentence), another size, damage; p is as it was. */
enum cairn_status cairn_delta_apply(void *p, size_t bytes, const void *delta, size_t n, struct cairn_error *err);

#endif
