/* kda.cu - Kimi delta attention forward: kda_chunks walks along runs of rows, chunk by chunk, with the state in registers; kda_row
 * answers runs of one row (decoding) from the state where it lies. Both are rows of the same algorithm, with the same bits
 * (kda.cuh).
 *
 * Floor of the walk: 3 D^2 + about 70 D multiply-adds a row and head. Of a decoded row: the state read once, its open rows read and
 * the keys among them written; every 16th row the state read again and written.
 */
#include "kda.cuh"

struct kda_out {
    void *o;
    int64_t on, oh;
    float *state;
};

/* Parts of a head's state. */
struct kda_state {
    float *S, *keys, *d, *last;
};

__device__ static inline struct kda_state state_at(const struct kda_job *job, const struct kda_out *out, int64_t seq, int64_t h)
{
    struct kda_state s;

    s.S = out->state + (seq * job->H + h) * CAIRN_KDA_ROWS(job->D) * job->D;
    s.keys = s.S + job->D * job->D;
    s.d = s.keys + CHUNK * job->D;
    s.last = s.d + CHUNK * job->D;
    return s;
}

template <int W> struct __align__(16) chunk_memory
{
    float from[2 * CHUNK * W], decay[CHUNK * W], keys[CHUNK * W], part[CHUNK * W], m[CHUNK * CHUNK], qk[CHUNK * CHUNK],
        rho[2 * CHUNK], last[W];
    float sums[2 * CHUNK * W]; /* what the state says to k and q */
};

/* o of rows i .. i + rows: sum_r + sum over s <= r of qk_rs d_s, s ascending. */
template <typename T, int W>
__device__ static inline void rows_answered(const struct kda_job *job, const struct kda_out *out, const float *qk, int64_t n,
                                            int64_t h, int i, int rows, const float *sum, const float *d)
{
    const int t = threadIdx.x;
    float w[CHUNK], mine[CHUNK];

#pragma unroll
    for (int r = 0; r < CHUNK; r++)
        mine[r] = r < i + rows ? d[r * W + t] : 0.0f;
#pragma unroll
    for (int r = 0; r < CHUNK; r++)
        if (r >= i && r < i + rows) {
            float x = sum[r * W + t];

            weights_load(qk + r * CHUNK, w);
#pragma unroll
            for (int s = 0; s <= r; s++)
                x = fmaf(w[s], mine[s], x);
            if (t < job->D)
                st((T *)out->o + (n + r - i) * out->on + h * out->oh + t, x);
        }
}

/* Runs blockIdx.x, + gridDim.x, ... of head blockIdx.y; runs of one row are left to kda_row where there are states. */
template <typename T, int W>
__global__ void __launch_bounds__(W, W == 128 ? 2 : 4) kda_chunks(struct kda_job job, struct kda_out out)
{
    extern __shared__ __align__(16) uint8_t bytes[];
    struct chunk_memory<W> &memory = *(struct chunk_memory<W> *)bytes;
    const struct kda_room m = {memory.from, NULL,      memory.decay, memory.keys, memory.part,
                               memory.m,    memory.qk, memory.rho,   memory.last};
    float *const d = memory.decay; /* row r: its decay until it is answered, then what it wrote */
    const int64_t h = blockIdx.y;
    const int t = threadIdx.x, there = t < job.D;

    for (int run = blockIdx.x; run < *job.r.count; run += gridDim.x) {
        int64_t n = job.r.begin[run];
        const int64_t end = job.r.begin[run + 1];
        const int p = job.r.pos[n];
        int i = p % CHUNK, closed = 0;
        struct kda_state state = {};
        float S[W], prefix = 0.0f;

        if (out.state) {
            if (end - n == 1)
                continue;
            state = state_at(&job, &out, job.r.seq[n], h);
        }
#pragma unroll
        for (int c = 0; c < W; c++)
            S[c] = out.state && p >= CHUNK && there && c < job.D ? state.S[c * job.D + t] : 0.0f;
        __syncthreads(); /* the last run's rows are done with */
        for (int s = 0; s < i; s++) {
            memory.keys[s * W + t] = there ? state.keys[s * job.D + t] : 0.0f;
            d[s * W + t] = there ? state.d[s * job.D + t] : 0.0f;
        }
        if (i)
            prefix = there ? state.last[t] : 1.0f;
        while (n < end) {
            const int rows = end - n < CHUNK - i ? (int)(end - n) : CHUNK - i;

            chunk_enter<T, W>(&job, &m, n, h, i, rows, &prefix);
#pragma unroll 1
            for (int r0 = i / 4 * 4; r0 < i + rows; r0 += 4) {
                float x[4];

#pragma unroll 1
                for (int q = 0; q < 2; q++) {
                    rows_dot<W>(memory.from + (q * CHUNK + r0) * W, S, x);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        memory.sums[(q * CHUNK + r0 + e) * W + t] = x[e];
                }
            }
            rows_written<T, W>(&job, memory.m, n, h, i, rows, memory.sums, NULL, d);
            rows_answered<T, W>(&job, &out, memory.qk, n, h, i, rows, memory.sums + CHUNK * W, d);
            n += rows;
            i += rows;
            if (i == CHUNK) {
                chunk_close<W>(&m, d, S);
                i = 0, closed = 1;
            }
            __syncthreads();
        }
        if (!out.state || !there)
            continue;
        if (closed)
#pragma unroll
            for (int c = 0; c < W; c++)
                if (c < job.D)
                    state.S[c * job.D + t] = S[c];
        for (int s = 0; s < i; s++) {
            state.keys[s * job.D + t] = memory.keys[s * W + t];
            state.d[s * job.D + t] = d[s * W + t];
        }
        if (i)
            state.last[t] = prefix;
    }
}

/* A run of one row: run blockIdx.x of head blockIdx.y. */
template <typename T, int W> __global__ void __launch_bounds__(W) kda_row(struct kda_job job, struct kda_out out)
{
    __shared__ float part[W], from[2][W], m[2 * CHUNK], keys[CHUNK][W], last[W];
    const int64_t h = blockIdx.y, D = job.D;
    const int t = threadIdx.x, there = t < D;

    for (int run = blockIdx.x; run < *job.r.count; run += gridDim.x) {
        const int64_t n = job.r.begin[run];
        const int p = job.r.pos[n], i = p % CHUNK;
        struct kda_state state;
        float v[32], d[CHUNK], q, k, a, prefix, read = 0.0f, answer = 0.0f;

        if (job.r.begin[run + 1] - n != 1)
            continue;
        state = state_at(&job, &out, job.r.seq[n], h);
        q = there ? ld((const T *)job.q + n * job.qn + h * job.qh + t) : 0.0f;
        k = there ? ld((const T *)job.k + n * job.kn + h * job.kh + t) : 0.0f;
        a = there ? expf(job.g[(n * job.H + h) * D + t]) : 1.0f;
        {
            const float kk = warp_sum(k * k), qq = warp_sum(q * q);

            __syncthreads(); /* the last run's rows are done with */
            if (t % 32 == 0)
                part[t / 32] = kk, part[W / 32 + t / 32] = qq;
            __syncthreads();
            if (t < 2) {
                float s = part[t * (W / 32)];

                for (int w = 1; w < W / 32; w++)
                    s += part[t * (W / 32) + w];
                m[t] = 1.0f / sqrtf(s + job.eps);
            }
            __syncthreads();
        }
        k = k * m[0];
        q = q * m[1] * job.scale;
#pragma unroll
        for (int s = 0; s < CHUNK; s++) {
            v[s] = 0.0f;
            v[CHUNK + s] = s == i ? q * k : 0.0f;
            d[s] = 0.0f;
            if (s < i) {
                float key = there ? state.keys[s * D + t] : 0.0f;

                d[s] = there ? state.d[s * D + t] : 0.0f;
                key_decay(&key, a, q, k, &v[s], &v[CHUNK + s]);
                keys[s][t] = key;
                if (there)
                    state.keys[s * D + t] = key;
            }
        }
        keys[i][t] = k;
        prefix = i ? (there ? state.last[t] : 1.0f) * a : a;
        last[t] = prefix;
        from[0][t] = k * prefix;
        from[1][t] = q * prefix;
        __syncthreads(); /* m and part are read */
        part_put<W>(part, 0, v);
        __syncthreads();
        if (t < 32)
            m[t] = part_total<W>(part, 0, t);
        __syncthreads();
        if (p >= CHUNK && there) {
#pragma unroll 16
            for (int c = 0; c < D; c++) {
                const float S = state.S[c * D + t];

                read = fmaf(from[0][c], S, read);
                answer = fmaf(from[1][c], S, answer);
            }
        }
#pragma unroll
        for (int s = 0; s < CHUNK; s++)
            if (s < i)
                read = fmaf(m[s], d[s], read);
        {
            const float now =
                job.beta[n * job.H + h] * ((there ? ld((const T *)job.v + n * job.vn + h * job.vh + t) : 0.0f) - read);

#pragma unroll
            for (int s = 0; s < CHUNK; s++) {
                d[s] = s == i ? now : d[s];
                if (s <= i)
                    answer = fmaf(m[CHUNK + s], d[s], answer);
            }
            if (there) {
                st((T *)out.o + n * out.on + h * out.oh + t, answer);
                state.keys[i * D + t] = k;
                state.d[i * D + t] = now;
                state.last[t] = prefix;
            }
        }
        if (i == CHUNK - 1 && there)
#pragma unroll 4
            for (int c = 0; c < D; c++) {
                float S = p >= CHUNK ? last[c] * state.S[c * D + t] : 0.0f;

#pragma unroll
                for (int s = 0; s < CHUNK; s++)
                    S = fmaf(keys[s][c], d[s], S);
                state.S[c * D + t] = S;
            }
    }
}

extern "C" enum cairn_status cairn_kda_cuda(struct cairn_stream *s, const struct cairn_kda *a, struct cairn_error *err)
{
    struct call c = call_begin("kda", s, err);
    int64_t N = -1, H = -1, D = -1, B = -1, rows = -1;
    struct kda_inputs in = kda_take(&c, a, &N, &H, &D);
    struct arg o = call_arg(&c, "o", &a->o, OUT | STRIDED | T_ACT, 3, &N, &H, &D),
               state = call_arg(&c, "state", &a->state, OUT | ABSENT | T_F32, 4, &B, &H, &rows, &D);
    struct kda_job job = {};
    struct kda_out out = {o.p, o.s[0], o.s[1], f32(&state)};
    void *room;

    if (call_ok(&c) && state.p && rows != CAIRN_KDA_ROWS(D))
        call_fail(&c, "state has %lld rows, expected %lld", (long long)rows, (long long)CAIRN_KDA_ROWS(D));
    if (!call_ok(&c) || !N || !H || !D)
        return call_end(&c);
    room = call_scratch(&c, runs_room(N, B));
    if (!room)
        return call_end(&c);
    job = kda_job_of(&c, a, &in, OP_kda, N, H, D, B, room);
    {
        dim3 walk((unsigned)(N < 64 ? N : 64), (unsigned)H), single((unsigned)(N < 32768 ? N : 32768), (unsigned)H);

        ON_WIDTH(D, {
            ON_ACT(in.q.type, T, {
                call_cuda(&c,
                          cudaFuncSetAttribute(kda_chunks<T, W>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               (int)sizeof(struct chunk_memory<W>)),
                          "kda_chunks");
                LAUNCH(&c, (kda_chunks<T, W>), walk, W, sizeof(struct chunk_memory<W>), job, out);
            });
            if (state.p)
                ON_ACT(in.q.type, T, LAUNCH(&c, (kda_row<T, W>), single, W, 0, job, out));
        });
    }
    return call_end(&c);
}
