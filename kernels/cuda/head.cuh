/* head.cuh - the numbers of one row of logits, for logprob, its backward and sample alike: hence equal bits in all of them.
 *
 * x = logit * inv_temperature. ln sum exp x = m + ln(sum of e^(x - m)), m the largest x. The vocabulary is cut into equal
 * consecutive segments, a segment into tiles of 256. A tile, done by a warp, holds its largest x, and sums relative to it: column
 * 64 i + 2 lane + j is lane's (i ascending, j inside), lanes are added by xor 4, 8, 16, 1, 2. Tiles of a segment, brought to the
 * row's largest x: lane l takes tiles l, l+32, ..., lanes are added by warp_sum. Segments are added by a fixed binary tree. A NaN
 * is never the largest and makes sums NaN. Tiles whose largest is -inf count as 0 (or NaN).
 */
#ifndef CAIRN_KERNELS_CUDA_HEAD_CUH
#define CAIRN_KERNELS_CUDA_HEAD_CUH

#include "kernel.cuh"

#define HEAD_TILE   256
#define HEAD_NO_ID  0x7fffffff
#define HEAD_LEVELS 13

struct head_cut {
    int64_t segment; /* ids of one */
    int segments, per_segment, tiles;
};

static inline struct head_cut head_cut(int64_t V, int segments)
{
    struct head_cut c;

    c.segment = V / segments;
    c.segments = segments;
    c.per_segment = (int)((c.segment + HEAD_TILE - 1) / HEAD_TILE);
    c.tiles = c.per_segment * segments;
    return c;
}

/* First id of tile t, and its length */
__host__ __device__ static inline int64_t head_tile(const struct head_cut &c, int t, int *length)
{
    int64_t in = (int64_t)(t % c.per_segment) * HEAD_TILE, left = c.segment - in;

    *length = left < HEAD_TILE ? (int)left : HEAD_TILE;
    return t / c.per_segment * c.segment + in;
}

/* A tile's part of the row: 16 bytes. */
struct head_part {
    float most, sum, moment; /* moment: sum of e^(x-m) (x-m) */
    int32_t argmax;          /* an id; HEAD_NO_ID when all are NaN */
};

struct head_row {
    float most, lse, entropy;
    int32_t argmax;
};

__device__ static inline float head_sum(float x)
{
#pragma unroll
    for (int i = 0; i < 5; i++)
        x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, i < 3 ? 4 << i : 1 << (i - 3)));
    return x;
}

/* Lane's eight x of a tile: columns 64 i + 2 lane + j in x[2 i + j]; -inf beyond the tile. */
__device__ static inline void head_load(const float *logits, int length, float scale, float x[8])
{
    int lane = threadIdx.x % 32, pairs = (uintptr_t)logits % 8 == 0;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        int at = 64 * i + 2 * lane;

        if (pairs && at + 1 < length) {
            float2 v = *(const float2 *)(logits + at);

            x[2 * i] = __fmul_rn(v.x, scale), x[2 * i + 1] = __fmul_rn(v.y, scale);
        } else {
            x[2 * i] = at < length ? __fmul_rn(logits[at], scale) : -INFINITY;
            x[2 * i + 1] = at + 1 < length ? __fmul_rn(logits[at + 1], scale) : -INFINITY;
        }
    }
}

/* The largest of the lanes' most and its id, of equal ones the lowest. All lanes get it. */
__device__ static inline void head_most(float *most, int32_t *argmax)
{
#pragma unroll
    for (int h = 16; h; h >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, *most, h);
        int32_t id = __shfl_xor_sync(0xffffffffu, *argmax, h);

        if (other > *most || (other == *most && id < *argmax))
            *most = other, *argmax = id;
    }
}

/* The part of a tile that begins at id `first`, from lane's eight x. All lanes get it. */
__device__ static inline struct head_part head_part_of(const float x[8], int64_t first, int length, int want_moment)
{
    struct head_part p = {-INFINITY, 0.0f, 0.0f, HEAD_NO_ID};
    int lane = threadIdx.x % 32;
    float base;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        int at = 64 * (i / 2) + 2 * lane + i % 2;

        if (at < length && (x[i] > p.most || (x[i] == p.most && p.argmax == HEAD_NO_ID)))
            p.most = x[i], p.argmax = (int32_t)(first + at);
    }
    head_most(&p.most, &p.argmax);
    base = p.most == -INFINITY ? 0.0f : p.most;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float d = __fsub_rn(x[i], base), e = expf(d);

        p.sum = __fadd_rn(p.sum, e);
        if (want_moment)
            p.moment = fmaf(e, d < -104.0f ? -104.0f : d, p.moment); /* below it e^d is 0, and 0 * -inf no number */
    }
    p.sum = head_sum(p.sum);
    if (want_moment)
        p.moment = head_sum(p.moment);
    return p;
}

/* A row from its parts. One warp calls it, all lanes get it. */
__device__ static inline struct head_row head_row_of(const struct head_part *part, const struct head_cut &c, int want_entropy)
{
    struct head_row r = {-INFINITY, 0.0f, 0.0f, HEAD_NO_ID};
    float sums[HEAD_LEVELS], moments[HEAD_LEVELS];
    int lane = threadIdx.x % 32, level = 0;

    for (int t = lane; t < c.tiles; t += 32)
        if (part[t].most > r.most || (part[t].most == r.most && part[t].argmax < r.argmax))
            r.most = part[t].most, r.argmax = part[t].argmax;
    head_most(&r.most, &r.argmax);
    for (int s = 0; s < c.segments; s++) {
        float sum = 0.0f, moment = 0.0f;

        for (int t = lane; t < c.per_segment; t += 32) {
            struct head_part p = part[s * c.per_segment + t];
            float d = p.most == -INFINITY ? 0.0f : __fsub_rn(p.most, r.most), e = expf(d);

            sum = fmaf(p.sum, e, sum);
            if (want_entropy)
                moment = fmaf(fmaf(p.sum, d < -104.0f ? -104.0f : d, p.moment), e, moment);
        }
        sums[level] = warp_sum(sum);
        if (want_entropy)
            moments[level] = warp_sum(moment);
        level++;
        for (int done = s + 1; done % 2 == 0; done /= 2) {
            level--;
            sums[level - 1] = __fadd_rn(sums[level - 1], sums[level]);
            if (want_entropy)
                moments[level - 1] = __fadd_rn(moments[level - 1], moments[level]);
        }
    }
    r.lse = __fadd_rn(r.most == -INFINITY ? 0.0f : r.most, logf(sums[0]));
    if (want_entropy)
        r.entropy = __fsub_rn(logf(sums[0]), __fdiv_rn(moments[0], sums[0]));
    if (r.argmax == HEAD_NO_ID)
        r.argmax = 0;
    return r;
}

#endif
