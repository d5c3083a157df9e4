/* runs.cu - finding runs, and sums over rows; see runs.cuh. */
#include "runs.cuh"

#define THREADS 1024

__global__ void __launch_bounds__(THREADS) runs_scan(const int32_t *pos, const int32_t *seq, int64_t N, int64_t B, int32_t *count,
                                                     int32_t *begin, int32_t *seen, enum cuda_op op, struct fault *fault)
{
    __shared__ int warps[THREADS / 32], bad;
    int total = 0, lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    if (threadIdx.x == 0)
        bad = 0;
    for (int64_t b = threadIdx.x; b < B; b += THREADS)
        seen[b] = 0;
    __syncthreads();
    for (int64_t base = 0; base < N; base += THREADS) {
        int64_t n = base + threadIdx.x;
        int first = n < N && !(n && seq[n] == seq[n - 1] && pos[n] == pos[n - 1] + 1), wrong = 0, before = 0;
        unsigned ballot = __ballot_sync(0xffffffffu, first);

        if (n < N) {
            wrong = pos[n] < 0 || seq[n] < 0 || (B >= 0 && seq[n] >= B) || (first && B < 0 && pos[n]);
            if (!wrong && first && B >= 0)
                wrong = atomicExch(&seen[seq[n]], 1);
            if (wrong) {
                fault_set(fault, op, FAULT_RUN, n);
                atomicExch(&bad, 1);
            }
        }
        if (!lane)
            warps[warp] = __popc(ballot);
        __syncthreads();
        for (int w = 0; w < THREADS / 32; w++) {
            before += w < warp ? warps[w] : 0;
        }
        if (first)
            begin[total + before + __popc(ballot & ((1u << lane) - 1))] = (int32_t)n;
        for (int w = 0; w < THREADS / 32; w++)
            total += warps[w];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        begin[total] = (int32_t)N;
        *count = bad ? 0 : total;
    }
}

size_t runs_room(int64_t N, int64_t B)
{
    return (size_t)round_up((N + 2 + (B > 0 ? B : 0)) * (int64_t)sizeof(int32_t), 256);
}

struct runs runs_find(struct call *c, enum cuda_op op, const struct arg *pos, const struct arg *seq, int64_t N, int64_t B,
                      void *room)
{
    int32_t *at = (int32_t *)room;
    struct runs r = {i32(pos), i32(seq), N, at, at + 1};

    LAUNCH(c, runs_scan, 1, THREADS, 0, r.pos, r.seq, N, B, at, at + 1, at + N + 2, op, c->cuda->d_fault);
    return r;
}

/* to[p][i] = sum of part[64 p .. 64 p + 63][i] */
__global__ void __launch_bounds__(128) parts_level(const float *part, int64_t parts, int64_t width, float *to, int last)
{
    int64_t i = (int64_t)blockIdx.x * 128 + threadIdx.x, p = (int64_t)blockIdx.y * 64, end = p + 64 < parts ? p + 64 : parts;
    float sum = 0.0f;

    if (i >= width)
        return;
#pragma unroll 8
    for (; p < end; p++)
        sum += part[p * width + i];
    if (last)
        to[i] += sum;
    else
        to[(int64_t)blockIdx.y * width + i] = sum;
}

void parts_sum(struct call *c, float *part, int64_t parts, int64_t width, float *out)
{
    for (;; parts = ceil_div(parts, 64)) {
        int last = parts <= 64;
        float *to = last ? out : part + parts * width;

        LAUNCH(c, parts_level, dim3((unsigned)ceil_div(width, 128), (unsigned)ceil_div(parts, 64)), 128, 0, part, parts, width, to,
               last);
        if (last)
            return;
        part = to;
    }
}
