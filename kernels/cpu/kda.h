/* kda.h - one chunk of Kimi delta attention for one head, as the forward and the backward of the cpu back-end share it.
 *
 * A chunk holds up to 16 rows in scratch, each padded with zeros to W channels (a multiple of 16; decay padded with 1), and the
 * head's state S (W x W, by key) lies beside it. Rows are entered one after the other (chunk_enter: norms, decayed keys, their
 * products), then answered together (chunk_answer: what state and earlier rows say), and a full chunk is folded into S
 * (chunk_close). Every element is one chain of fma in an order that only the row's place in the chunk fixes, so how rows come in
 * calls changes no bit. S NULL: the state before position 16, which is zero and never read.
 */
#ifndef CAIRN_KERNELS_CPU_KDA_H
#define CAIRN_KERNELS_CPU_KDA_H

#include "internal.h"

#pragma GCC visibility push(hidden)

#define CHUNK CAIRN_KDA_CHUNK

struct kda_in {
    struct arg q, k, v, g, beta;
    int64_t D, W;
    float scale, eps;
};

struct chunk {
    float *q, *k;     /* [16][W] normalised; q times scale */
    float *decay;     /* [16][W] exp(g) */
    float *prefix;    /* [16][W] decay since the chunk's begin */
    float *keys;      /* [16][W] keys decayed until the latest row */
    float *d;         /* [16][W] what was written */
    float *gap;       /* [16][W] v minus what was read */
    float *from;      /* [2][16][W] k, q times prefix */
    float *sum;       /* [2][16][W] their products with S */
    float m[16][16];  /* [i][s] k_i . key s, s < i */
    float qk[16][16]; /* [i][s] q_i . key s, s <= i */
    float rho_q[16], rho_k[16], beta[16];
};

/* Floats of a chunk's arrays. */
static inline int64_t chunk_floats(int64_t W)
{
    return 11 * CHUNK * W;
}
void chunk_carve(struct chunk *c, float *room, int64_t W);
/* Row n, head h becomes row i. Without `queries` the parts of q are left out. */
void chunk_enter(struct chunk *c, const struct kda_in *in, int64_t n, int64_t h, int i, int queries);
/* Rows i0 .. i1 (exclusive) against S and earlier rows: d and gap; o (row i at o + (i - i0) * os, D floats) if queries. v: row n0 +
 * i - i0 of the input. */
void chunk_answer(struct chunk *c, const struct kda_in *in, int64_t n0, int64_t h, int i0, int i1, const float *S, float *o,
                  int64_t os);
/* S <- diag(decay) S + sum of keys d^T, from `was` (NULL: zero); may be S. */
void chunk_close(const struct chunk *c, const float *was, float *S, int64_t W);

#pragma GCC visibility pop
#endif
