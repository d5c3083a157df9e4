/* kda.cuh - one chunk of Kimi delta attention for one head, as the kernels of forward and backward share it.
 *
 * A block of W threads (32, 64 or 128, the head's D channels and zeros) has one head. Thread t is key channel t where rows are
 * entered and value channel t where they are answered; there it holds column t of the state in W registers, and a row that all
 * threads read comes from shared memory, four channels a load. Every sum over channels is one chain of fma, or the tree of
 * lanes_sum with warps ascending, whatever rows are there: a row has the same bits alone (kda_row in kda.cu) and in its chunk.
 *
 * Shared memory is carved by each kernel: rows of W floats. What has the length of a thread's registers is unrolled; rows are not,
 * so that code stays small.
 */
#ifndef CAIRN_KERNELS_CUDA_KDA_CUH
#define CAIRN_KERNELS_CUDA_KDA_CUH

#include "runs.cuh"

#define CHUNK CAIRN_KDA_CHUNK

struct kda_job {
    struct runs r;
    const void *q, *k, *v;
    const float *g, *beta;
    int64_t qn, qh, kn, kh, vn, vh; /* strides of rows and heads */
    int64_t D, H;
    float scale, eps;
};

/* What forward and backward (A: struct cairn_kda, struct cairn_kda_bwd) have in common: takes the inputs of *a, binds N, H, D. */
struct kda_inputs {
    struct arg q, k, v, g, beta, pos, seq;
};

template <typename A> static inline struct kda_inputs kda_take(struct call *c, const A *a, int64_t *N, int64_t *H, int64_t *D)
{
    struct kda_inputs in = {};

    in.q = call_arg(c, "q", &a->q, STRIDED | T_ACT, 3, N, H, D);
    in.k = call_arg(c, "k", &a->k, STRIDED | T_ACT, 3, N, H, D);
    in.v = call_arg(c, "v", &a->v, STRIDED | T_ACT, 3, N, H, D);
    in.g = call_arg(c, "g", &a->g, T_F32, 3, N, H, D);
    in.beta = call_arg(c, "beta", &a->beta, T_F32, 2, N, H);
    in.pos = call_arg(c, "pos", &a->pos, T_I32, 1, N);
    in.seq = call_arg(c, "seq", &a->seq, T_I32, 1, N);
    if (call_ok(c) && (*D % 4 || *D > 128))
        call_fail(c, "D = %lld is no multiple of 4 up to 128", (long long)*D);
    return in;
}

/* slots, room: of runs_find. */
template <typename A>
static inline struct kda_job kda_job_of(struct call *c, const A *a, const struct kda_inputs *in, enum cuda_op op, int64_t N, int64_t H,
                                        int64_t D, int64_t slots, void *room)
{
    struct kda_job job = {};

    job.r = runs_find(c, op, &in->pos, &in->seq, N, slots, room);
    job.q = in->q.p, job.k = in->k.p, job.v = in->v.p;
    job.g = f32(&in->g), job.beta = f32(&in->beta);
    job.qn = in->q.s[0], job.qh = in->q.s[1], job.kn = in->k.s[0], job.kh = in->k.s[1], job.vn = in->v.s[0], job.vh = in->v.s[1];
    job.D = D, job.H = H;
    job.scale = a->scale, job.eps = a->eps;
    return job;
}

/* Rows in shared memory. */
struct kda_room {
    float *from;  /* [2][16][W] k, then q; in the end times the decay since the chunk's begin */
    float *unit;  /* [2][16][W] the same without decay; NULL: not kept */
    float *decay; /* [16][W] */
    float *keys;  /* [16][W] decayed until the latest row */
    float *part;  /* [16][WARPS][32] */
    float *m;     /* [16][16] k_i . key_s */
    float *qk;    /* [16][16] q_i . key_s */
    float *rho;   /* [2][16] of k, of q */
    float *last;  /* [W] decay since the chunk's begin, after the latest row */
};

/* v[e] of all threads of the block, e < 32, for row `row` of part: to be added by part_total after a barrier. */
template <int W> __device__ static inline void part_put(float *part, int row, float v[32])
{
    lanes_sum(v);
    part[(row * (W / 32) + threadIdx.x / 32) * 32 + threadIdx.x % 32] = v[0];
}

template <int W> __device__ static inline float part_total(const float *part, int row, int e)
{
    float s = part[row * (W / 32) * 32 + e];

#pragma unroll
    for (int w = 1; w < W / 32; w++)
        s += part[(row * (W / 32) + w) * 32 + e];
    return s;
}

/* Key row s by the decay of the new row, and its products with the new q and k. */
__device__ static inline void key_decay(float *key, float a, float q, float k, float *with_k, float *with_q)
{
    const float x = *key * a;

    *key = x;
    *with_k = k * x;
    *with_q = q * x;
}

/* Rows n .. n + rows of the input become rows i .. i + rows. prefix: this channel's decay since the chunk's begin, in and out. */
template <typename T, int W>
__device__ static inline void chunk_enter(const struct kda_job *job, const struct kda_room *m, int64_t n, int64_t h, int i,
                                          int rows, float *prefix)
{
    const int t = threadIdx.x, there = t < job->D;
    float v[32];

#pragma unroll 4
    for (int r = 0; r < rows; r++) {
        const int e = (i + r) * W + t;

        m->from[e] = there ? ld((const T *)job->k + (n + r) * job->kn + h * job->kh + t) : 0.0f;
        m->from[CHUNK * W + e] = there ? ld((const T *)job->q + (n + r) * job->qn + h * job->qh + t) : 0.0f;
        m->decay[e] = there ? expf(job->g[((n + r) * job->H + h) * job->D + t]) : 1.0f;
    }
#pragma unroll
    for (int e = 0; e < 32; e++) {
        const float x = e % CHUNK >= i && e % CHUNK < i + rows ? m->from[e * W + t] : 0.0f;

        v[e] = x * x;
    }
    part_put<W>(m->part, 0, v);
    __syncthreads();
    if (t < 32)
        m->rho[t] = 1.0f / sqrtf(part_total<W>(m->part, 0, t) + job->eps);
    __syncthreads();
    for (int r = i; r < i + rows; r++) {
        const float k = m->from[r * W + t] * m->rho[r], q = m->from[(CHUNK + r) * W + t] * m->rho[CHUNK + r] * job->scale,
                    a = m->decay[r * W + t];

#pragma unroll
        for (int s = 0; s < CHUNK; s++) {
            v[s] = 0.0f;
            v[CHUNK + s] = s == r ? q * k : 0.0f;
            if (s < r)
                key_decay(m->keys + s * W + t, a, q, k, &v[s], &v[CHUNK + s]);
        }
        m->keys[r * W + t] = k;
        *prefix = r ? *prefix * a : a;
        if (m->unit) {
            m->unit[r * W + t] = k;
            m->unit[(CHUNK + r) * W + t] = q;
        }
        m->from[r * W + t] = k * *prefix;
        m->from[(CHUNK + r) * W + t] = q * *prefix;
        part_put<W>(m->part, r, v);
    }
    m->last[t] = *prefix;
    __syncthreads();
    for (int e = t; e < rows * 32; e += W) {
        const int r = i + e / 32, s = e % 32;

        (s < CHUNK ? m->m : m->qk)[r * CHUNK + s % CHUNK] = part_total<W>(m->part, r, s);
    }
    __syncthreads();
}

/* acc[e] = row e . x, for four rows of W floats in shared memory; x in registers. */
template <int W> __device__ static inline void rows_dot(const float *rows, const float (&x)[W], float acc[4])
{
#pragma unroll
    for (int e = 0; e < 4; e++)
        acc[e] = 0.0f;
#pragma unroll
    for (int c = 0; c < W; c += 4)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float4 y = *(const float4 *)(rows + e * W + c);

            acc[e] = fmaf(y.x, x[c], acc[e]);
            acc[e] = fmaf(y.y, x[c + 1], acc[e]);
            acc[e] = fmaf(y.z, x[c + 2], acc[e]);
            acc[e] = fmaf(y.w, x[c + 3], acc[e]);
        }
}

/* x[c] = fma(row[c], y, x[c]) */
template <int W> __device__ static inline void row_add(const float *row, float y, float (&x)[W])
{
#pragma unroll
    for (int c = 0; c < W; c += 4) {
        const float4 k = *(const float4 *)(row + c);

        x[c] = fmaf(k.x, y, x[c]);
        x[c + 1] = fmaf(k.y, y, x[c + 1]);
        x[c + 2] = fmaf(k.z, y, x[c + 2]);
        x[c + 3] = fmaf(k.w, y, x[c + 3]);
    }
}

template <int W> __device__ static inline void row_times(const float *row, float (&x)[W])
{
#pragma unroll
    for (int c = 0; c < W; c += 4) {
        const float4 k = *(const float4 *)(row + c);

        x[c] *= k.x;
        x[c + 1] *= k.y;
        x[c + 2] *= k.z;
        x[c + 3] *= k.w;
    }
}

/* Four weights, and the next ones. */
__device__ static inline void weights_load(const float *from, float w[CHUNK])
{
#pragma unroll
    for (int s = 0; s < CHUNK; s += 4) {
        const float4 y = *(const float4 *)(from + s);

        w[s] = y.x, w[s + 1] = y.y, w[s + 2] = y.z, w[s + 3] = y.w;
    }
}

/* What rows i .. i + rows wrote, into d: d_r = beta (v - read - sum over s < r of m_rs d_s), s ascending; read: [16][W], v: row
 * i's. gap (NULL: not wanted): without beta. d's earlier rows are there. In registers, so that a row waits for the one before and
 * nothing else. */
template <typename T, int W>
__device__ static inline void rows_written(const struct kda_job *job, const float *m, int64_t n, int64_t h, int i, int rows,
                                           const float *read, float *gap, float *d)
{
    const int t = threadIdx.x;
    float w[CHUNK], v[CHUNK], mine[CHUNK];

#pragma unroll
    for (int r = 0; r < CHUNK; r++)
        v[r] = r >= i && r < i + rows && t < job->D ? ld((const T *)job->v + (n + r - i) * job->vn + h * job->vh + t) : 0.0f;
#pragma unroll
    for (int r = 0; r < CHUNK; r++) {
        float x;

        mine[r] = 0.0f;
        if (r < i) {
            mine[r] = d[r * W + t];
        } else if (r < i + rows) {
            weights_load(m + r * CHUNK, w);
            x = read[r * W + t];
#pragma unroll
            for (int s = 0; s < r; s++)
                x = fmaf(w[s], mine[s], x);
            x = v[r] - x;
            if (gap)
                gap[r * W + t] = x;
            mine[r] = job->beta[(n + r - i) * job->H + h] * x;
            d[r * W + t] = mine[r];
        }
    }
}

/* S <- diag(last) S + sum of keys d^T, thread t its column. */
template <int W> __device__ static inline void chunk_close(const struct kda_room *m, const float *d, float (&S)[W])
{
    row_times<W>(m->last, S);
#pragma unroll 1
    for (int s = 0; s < CHUNK; s++)
        row_add<W>(m->keys + s * W, d[s * W + threadIdx.x], S);
}

/* The statement with T and the width W. */
#define ON_WIDTH(D, ...)                                                                                                           \
    do {                                                                                                                           \
        if ((D) <= 32) {                                                                                                           \
            enum { W = 32 };                                                                                                       \
            __VA_ARGS__;                                                                                                           \
        } else if ((D) <= 64) {                                                                                                    \
            enum { W = 64 };                                                                                                       \
            __VA_ARGS__;                                                                                                           \
        } else {                                                                                                                   \
            enum { W = 128 };                                                                                                      \
            __VA_ARGS__;                                                                                                           \
        }                                                                                                                          \
    } while (0)

#endif
