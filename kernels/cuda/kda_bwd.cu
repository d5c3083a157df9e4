/* kda_bwd.cu - backward of Kimi delta attention: a block has a whole sequence of a head and walks it from its end, chunk by chunk
 * (kda.cuh).
 *
 * The formulas, and what is what, are those of kernels/cpu/kda_bwd.c. A thread has W registers for a matrix: a column of the
 * chunk's state S, then a column of R, the gradient of the state after the chunk, then a row of R, then a row of S. States come
 * again from the inputs: those at every 16th chunk first (`starts`), then the ones between them (`states`), segment by segment. R
 * lies in scratch, twice. Scratch: a block 18 W^2, and W^2 for every 256 rows and head.
 *
 * Floor: 11 rows of D^2 multiply-adds a row and head.
 */
#include "kda.cuh"

#define SEGMENT 16 /* chunks */

struct kda_grads {
    const void *d_o;
    void *dq, *dk, *dv;
    float *dg, *dbeta;
    int64_t on, oh, dqn, dqh, dkn, dkh, dvn, dvh;
    float *starts; /* [N / 256 + 1][H][W][W] */
    float *blocks; /* [grid][SEGMENT + 2][W][W] */
};

/* Shared memory of a block, in rows of W. */
template <int W> struct __align__(16) bwd_memory
{
    float from[2 * CHUNK * W]; /* k, q with decay; later what S says to do and dv, then dq and dk */
    float unit[2 * CHUNK * W], decay[CHUNK * W], keys[CHUNK * W], d[CHUNK * W];
    float gap[CHUNK * W];     /* v minus what was read; then e times that; then `kept` */
    float out[2 * CHUNK * W]; /* do, then dv */
    float part[CHUNK * W], m[CHUNK * CHUNK], qk[CHUNK * CHUNK], dqk[CHUNK * CHUNK], dm[CHUNK * CHUNK], rho[2 * CHUNK],
        dot[2 * CHUNK], last[W];
};

/* Column t, or row t, of a matrix. */
template <int W> __device__ static inline void column_load(const float *from, float (&x)[W])
{
#pragma unroll
    for (int c = 0; c < W; c++)
        x[c] = from ? from[c * W + threadIdx.x] : 0.0f;
}

template <int W> __device__ static inline void column_store(float *to, const float (&x)[W])
{
#pragma unroll
    for (int c = 0; c < W; c++)
        to[c * W + threadIdx.x] = x[c];
}

template <int W> __device__ static inline void row_load(const float *from, float (&x)[W])
{
#pragma unroll
    for (int c = 0; c < W; c += 4) {
        const float4 y = from ? *(const float4 *)(from + threadIdx.x * W + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);

        x[c] = y.x, x[c + 1] = y.y, x[c + 2] = y.z, x[c + 3] = y.w;
    }
}

/* to[r][t] = rows[r] . x, for rows 0 .. count */
template <int W> __device__ static inline void rows_through(const float *rows, const float (&x)[W], int count, float *to)
{
#pragma unroll 1
    for (int r0 = 0; r0 < count; r0 += 4) {
        float sum[4];

        rows_dot<W>(rows + r0 * W, x, sum);
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (r0 + e < count)
                to[(r0 + e) * W + threadIdx.x] = sum[e];
    }
}

/* What was written by the chunk's rows, and gap: x is the state's column. */
template <typename T, int W>
__device__ static inline void written(const struct kda_job *job, struct bwd_memory<W> *m, int64_t n, int64_t h, int rows,
                                      const float (&x)[W])
{
    rows_through<W>(m->from, x, rows, m->gap);
    rows_written<T, W>(job, m->m, n, h, 0, rows, m->gap, m->gap, m->d);
}

/* e, and from it dv and dbeta, from the last row to the first; x is R's column. */
template <typename T, int W>
__device__ static inline void written_bwd(const struct kda_job *job, const struct kda_grads *to, struct bwd_memory<W> *m, int64_t n,
                                          int64_t h, int rows, const float (&x)[W])
{
    const int t = threadIdx.x;
    float *const dv = m->out + CHUNK * W;
    float v[32], d_o[CHUNK], mine[CHUNK];

    rows_through<W>(m->keys, x, rows, dv);
#pragma unroll
    for (int s = CHUNK - 1; s >= 0; s--) { /* in registers: a row waits for the one behind it and nothing else */
        float e;

        d_o[s] = mine[s] = 0.0f;
        if (s >= rows)
            continue;
        d_o[s] = m->out[s * W + t];
        e = dv[s * W + t];
#pragma unroll
        for (int i = s; i < CHUNK; i++)
            if (i < rows)
                e = fmaf(m->qk[i * CHUNK + s], d_o[i], e);
#pragma unroll
        for (int i = s + 1; i < CHUNK; i++)
            if (i < rows)
                e = fmaf(-m->m[i * CHUNK + s], mine[i], e);
        m->gap[s * W + t] *= e;
        mine[s] = job->beta[(n + s) * job->H + h] * e;
        dv[s * W + t] = mine[s];
        if (t < job->D)
            st((T *)to->dv + (n + s) * to->dvn + h * to->dvh + t, mine[s]);
    }
#pragma unroll
    for (int s = 0; s < 32; s++)
        v[s] = s < rows ? m->gap[s % CHUNK * W + t] : 0.0f;
    part_put<W>(m->part, 0, v);
    __syncthreads(); /* also: all of dv is there */
    if (t < rows)
        to->dbeta[(n + t) * job->H + h] = part_total<W>(m->part, 0, t);
}

/* x <- gradient of the state before the chunk, by columns. */
template <int W> __device__ static inline void state_bwd(const struct bwd_memory<W> *m, int rows, float (&x)[W])
{
    const int t = threadIdx.x;

    row_times<W>(m->last, x);
#pragma unroll 1
    for (int s = 0; s < rows; s++) {
        row_add<W>(m->from + (CHUNK + s) * W, m->out[s * W + t], x);
        row_add<W>(m->from + s * W, -m->out[(CHUNK + s) * W + t], x);
    }
}

/* dqk and dm: what do and dv say to what was written. */
template <int W> __device__ static inline void products_bwd(struct bwd_memory<W> *m, int rows)
{
    const int t = threadIdx.x;

    __syncthreads(); /* part is free */
    for (int i = 0; i < rows; i++) {
        const float d_o = m->out[i * W + t], dv = m->out[(CHUNK + i) * W + t];
        float v[32];

#pragma unroll
        for (int s = 0; s < CHUNK; s++) {
            v[s] = s <= i ? d_o * m->d[s * W + t] : 0.0f;
            v[CHUNK + s] = s < i ? dv * m->d[s * W + t] : 0.0f;
        }
        part_put<W>(m->part, i, v);
    }
    __syncthreads();
    for (int e = t; e < rows * 32; e += W) {
        const float sum = part_total<W>(m->part, e / 32, e % 32);

        if (e % 32 < CHUNK)
            m->dqk[e / 32 * CHUNK + e % CHUNK] = sum;
        else
            m->dm[e / 32 * CHUNK + e % CHUNK] = -sum;
    }
    __syncthreads();
}

/* This channel: dq and dk (read) into `from`, dk (written) added to `kept` in gap. Keys decay again. */
template <int W> __device__ static inline void keys_bwd(struct bwd_memory<W> *m, int rows)
{
    const int t = threadIdx.x;
    float key[CHUNK], w[CHUNK], u[CHUNK], prefix = 0.0f;

#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        key[i] = 0.0f;
        if (i < rows) {
            const float a = m->decay[i * W + t], k = m->unit[i * W + t];
            float dq, dk;

            weights_load(m->dqk + i * CHUNK, w);
            weights_load(m->dm + i * CHUNK, u);
            prefix = i ? prefix * a : a;
            dq = prefix * m->from[i * W + t];
            dk = -prefix * m->from[(CHUNK + i) * W + t];
#pragma unroll
            for (int s = 0; s < i; s++) {
                key[s] *= a;
                dq = fmaf(w[s], key[s], dq);
                dk = fmaf(u[s], key[s], dk);
            }
            key[i] = k;
            m->from[i * W + t] = fmaf(w[i], k, dq);
            m->from[(CHUNK + i) * W + t] = dk;
        }
    }
#pragma unroll
    for (int s = 0; s < CHUNK; s++)
        key[s] = s < rows ? m->gap[s * W + t] : 0.0f; /* from here on: kept */
#pragma unroll
    for (int i = CHUNK - 1; i >= 0; i--)
        if (i < rows) {
            const float a = i + 1 < rows ? m->decay[(i + 1 < CHUNK ? i + 1 : i) * W + t] : 1.0f, k = m->unit[i * W + t],
                        q = m->unit[(CHUNK + i) * W + t];

            weights_load(m->dqk + i * CHUNK, w);
            weights_load(m->dm + i * CHUNK, u);
#pragma unroll
            for (int s = 0; s <= i; s++) {
                key[s] = fmaf(w[s], q, key[s] * a);
                if (s < i)
                    key[s] = fmaf(u[s], k, key[s]);
            }
        }
#pragma unroll
    for (int s = 0; s < CHUNK; s++)
        if (s < rows)
            m->gap[s * W + t] = key[s];
}

/* dg, dq and dk of the chunk's rows; end: what ln of the last decay gets from the state after. */
template <typename T, int W>
__device__ static inline void rows_out(const struct kda_job *job, const struct kda_grads *to, struct bwd_memory<W> *m, int64_t n,
                                       int64_t h, int rows, float end)
{
    const int t = threadIdx.x, there = t < job->D;
    float v[32];

#pragma unroll 1
    for (int i = rows - 1; i >= 0; i--) {
        const float dq = m->from[i * W + t], read = m->from[(CHUNK + i) * W + t], kept = m->gap[i * W + t], k = m->unit[i * W + t],
                    q = m->unit[(CHUNK + i) * W + t];

        end += fmaf(q, dq, k * (read - kept));
        m->gap[i * W + t] = read + kept;
        if (there)
            to->dg[((n + i) * job->H + h) * job->D + t] = end;
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        v[i] = i < rows ? m->gap[i * W + t] * m->unit[i * W + t] : 0.0f;
        v[CHUNK + i] = i < rows ? m->from[i * W + t] * m->unit[(CHUNK + i) * W + t] : 0.0f;
    }
    part_put<W>(m->part, 0, v);
    __syncthreads();
    if (t < 32)
        m->dot[t] = part_total<W>(m->part, 0, t);
    __syncthreads();
    for (int i = 0; there && i < rows; i++) {
        const float k = ld((const T *)job->k + (n + i) * job->kn + h * job->kh + t) * m->rho[i],
                    q = ld((const T *)job->q + (n + i) * job->qn + h * job->qh + t) * m->rho[CHUNK + i];

        st((T *)to->dk + (n + i) * to->dkn + h * to->dkh + t, m->rho[i] * (m->gap[i * W + t] - k * m->dot[i]));
        st((T *)to->dq + (n + i) * to->dqn + h * to->dqh + t,
           m->rho[CHUNK + i] * (job->scale * m->from[i * W + t] - q * m->dot[CHUNK + i]));
    }
}

/* One chunk. S: state before it, R: gradient of the state after it, NULL where they are zero; before: where the gradient of S goes.
 */
template <typename T, int W>
__device__ static inline void chunk_bwd(const struct kda_job *job, const struct kda_grads *to, struct bwd_memory<W> *m,
                                        const struct kda_room *room, int64_t n, int64_t h, int rows, const float *S, const float *R,
                                        float *before)
{
    const int t = threadIdx.x;
    float x[W], prefix = 0.0f, end = 0.0f;

    for (int r = 0; r < rows; r++)
        m->out[r * W + t] = t < job->D ? ld((const T *)to->d_o + (n + r) * to->on + h * to->oh + t) : 0.0f;
    chunk_enter<T, W>(job, room, n, h, 0, rows, &prefix);
    column_load<W>(S, x);
    written<T, W>(job, m, n, h, rows, x);
    column_load<W>(R, x);
    written_bwd<T, W>(job, to, m, n, h, rows, x);
    if (S) {
        state_bwd<W>(m, rows, x);
        column_store<W>(before, x);
    }
    products_bwd<W>(m, rows); /* its barriers: from and gap may be written over */
    row_load<W>(R, x);
    rows_through<W>(m->d, x, rows, m->gap);
    if (S && R) {
#pragma unroll
        for (int c = 0; c < W; c += 4) {
            const float4 y = *(const float4 *)(S + t * W + c);

            end = fmaf(y.x, x[c], end);
            end = fmaf(y.y, x[c + 1], end);
            end = fmaf(y.z, x[c + 2], end);
            end = fmaf(y.w, x[c + 3], end);
        }
        end *= prefix;
    }
    for (int s = 0; s < rows; s++)
        end = fmaf(m->keys[s * W + t], m->gap[s * W + t], end);
    row_load<W>(S, x);
    rows_through<W>(m->out, x, rows, m->from);
    rows_through<W>(m->out + CHUNK * W, x, rows, m->from + CHUNK * W);
    keys_bwd<W>(m, rows);
    rows_out<T, W>(job, to, m, n, h, rows, end);
    __syncthreads();
}

/* S after the full chunk at row n, S a column. */
template <typename T, int W>
__device__ static inline void chunk_forward(const struct kda_job *job, struct bwd_memory<W> *m, const struct kda_room *room,
                                            int64_t n, int64_t h, float (&S)[W])
{
    float prefix = 0.0f;

    chunk_enter<T, W>(job, room, n, h, 0, CHUNK, &prefix);
    written<T, W>(job, m, n, h, CHUNK, S);
    chunk_close<W>(room, m->d, S);
    __syncthreads();
}

/* Sequences and heads blockIdx.x, + gridDim.x, ... */
template <typename T, int W>
__global__ void __launch_bounds__(W, W == 128 ? 2 : 4) kda_bwd_walk(struct kda_job job, struct kda_grads to)
{
    extern __shared__ __align__(16) uint8_t memory[];
    struct bwd_memory<W> *const m = (struct bwd_memory<W> *)memory;
    const struct kda_room room = {m->from, m->unit, m->decay, m->keys, m->part, m->m, m->qk, m->rho, m->last};
    float *const states = to.blocks + (int64_t)blockIdx.x * (SEGMENT + 2) * W * W, *const R = states + SEGMENT * W * W;

    for (int64_t item = blockIdx.x; item < *job.r.count * job.H; item += gridDim.x) {
        const int64_t run = item / job.H, h = item % job.H, begin = job.r.begin[run], end = job.r.begin[run + 1],
                      chunks = (end - begin + CHUNK - 1) / CHUNK, segments = (chunks + SEGMENT - 1) / SEGMENT;
        float S[W];
        int flip = 0;

#pragma unroll
        for (int c = 0; c < W; c++)
            S[c] = 0.0f;
        for (int64_t i = 0; i < (segments - 1) * SEGMENT; i++) {
            chunk_forward<T, W>(&job, m, &room, begin + i * CHUNK, h, S);
            if ((i + 1) % SEGMENT == 0)
                column_store<W>(to.starts + ((begin + (i + 1) * CHUNK) / (SEGMENT * CHUNK) * job.H + h) * W * W, S);
        }
        for (int64_t segment = segments - 1; segment >= 0; segment--) {
            const int64_t first = segment * SEGMENT, last = first + SEGMENT < chunks ? first + SEGMENT : chunks;

            if (segment)
                column_load<W>(to.starts + ((begin + first * CHUNK) / (SEGMENT * CHUNK) * job.H + h) * W * W, S);
            else
#pragma unroll
                for (int c = 0; c < W; c++)
                    S[c] = 0.0f;
            for (int64_t i = first; i < last; i++) {
                column_store<W>(states + (i - first) * W * W, S);
                if (i + 1 < last)
                    chunk_forward<T, W>(&job, m, &room, begin + i * CHUNK, h, S);
            }
            __syncthreads(); /* states are there, for rows too */
            for (int64_t i = last - 1; i >= first; i--, flip ^= 1) {
                const int64_t n = begin + i * CHUNK;

                chunk_bwd<T, W>(&job, &to, m, &room, n, h, end - n < CHUNK ? (int)(end - n) : CHUNK,
                                i ? states + (i - first) * W * W : NULL, i + 1 < chunks ? R + (flip ^ 1) * W * W : NULL,
                                R + flip * W * W);
            }
        }
    }
}

extern "C" enum cairn_status cairn_kda_bwd_cuda(struct cairn_stream *st, const struct cairn_kda_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("kda_bwd", st, err);
    int64_t N = -1, H = -1, D = -1, blocks, runs, starts;
    struct kda_inputs in = kda_take(&c, a, &N, &H, &D);
    struct arg d_o = call_arg(&c, "d_o", &a->d_o, STRIDED | T_ACT, 3, &N, &H, &D),
               dq = call_arg(&c, "dq", &a->dq, OUT | STRIDED | T_ACT, 3, &N, &H, &D),
               dk = call_arg(&c, "dk", &a->dk, OUT | STRIDED | T_ACT, 3, &N, &H, &D),
               dv = call_arg(&c, "dv", &a->dv, OUT | STRIDED | T_ACT, 3, &N, &H, &D),
               dg = call_arg(&c, "dg", &a->dg, OUT | T_F32, 3, &N, &H, &D),
               dbeta = call_arg(&c, "dbeta", &a->dbeta, OUT | T_F32, 2, &N, &H);
    char *room;

    if (!call_ok(&c) || !N || !H || !D)
        return call_end(&c);
    blocks = 2 * c.cuda->sms;
    if (blocks > N * H)
        blocks = N * H;
    ON_WIDTH(D, {
        size_t shared = sizeof(struct bwd_memory<W>);

        runs = (int64_t)runs_room(N, -1);
        starts = (N / (SEGMENT * CHUNK) + 1) * H * W * W;
        room = (char *)call_scratch(&c, (size_t)runs + (size_t)(starts + blocks * (SEGMENT + 2) * W * W) * sizeof(float));
        if (room) {
            struct kda_job job = kda_job_of(&c, a, &in, OP_kda_bwd, N, H, D, -1, room);
            struct kda_grads to = {d_o.p,
                                   dq.p,
                                   dk.p,
                                   dv.p,
                                   f32(&dg),
                                   f32(&dbeta),
                                   d_o.s[0],
                                   d_o.s[1],
                                   dq.s[0],
                                   dq.s[1],
                                   dk.s[0],
                                   dk.s[1],
                                   dv.s[0],
                                   dv.s[1],
                                   (float *)(room + runs),
                                   (float *)(room + runs) + starts};

            ON_ACT(in.q.type, T, {
                call_cuda(&c, cudaFuncSetAttribute(kda_bwd_walk<T, W>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                          "kda_bwd_walk");
                LAUNCH(&c, (kda_bwd_walk<T, W>), (unsigned)blocks, W, shared, job, to);
            });
        }
    });
    return call_end(&c);
}
