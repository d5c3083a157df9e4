/* handover.cu - transfer and tiles: weights on their way to the sampler, and what was sent as a sum.
 *
 * Both are tables of runs shared out evenly: a warp takes a stretch of elements (transfer) or of units (tiles), finds the run in which
 * it begins by bisection and goes on from run to run. transfer reads and writes 16 bytes a lane where both sides allow it; the other
 * memory may be a peer's. tiles leaves one sum a unit in scratch, and a block per run adds them: sums are of integers, so no order
 * matters. What a table says is checked before memory is touched: FAULT_INDEX with the run's number.
 */
#include <cuda_fp16.h>
#include <type_traits>

#include "kernel.cuh"
#include "transfer.cuh"
#include "xxh3.cuh"

#define WARPS 8 /* of a block */

/* ---- transfer ---------------------------------------------------------------------------------------------------------- */

struct move {
    const int64_t *run;
    int64_t R, X, Y, elements, each; /* each: elements a warp */
    int wide;                        /* both memories begin at 16 bytes */
    struct fault *fault;
};

/* Eight elements, 16-byte aligned on both sides. */
template <typename F, typename T> __device__ static inline void copy8(const F *x, T *y)
{
    if (sizeof(F) == sizeof(T) && std::is_same<F, T>::value) {
#pragma unroll
        for (int i = 0; i < (int)(sizeof(T) / 2); i++)
            ((uint4 *)y)[i] = ((const uint4 *)x)[i];
    } else {
        alignas(16) F a[8];
        alignas(16) T b[8];

#pragma unroll
        for (int i = 0; i < (int)(sizeof(F) / 2); i++)
            ((uint4 *)a)[i] = ((const uint4 *)x)[i];
#pragma unroll
        for (int i = 0; i < 8; i++)
            copy1(a + i, b + i);
#pragma unroll
        for (int i = 0; i < (int)(sizeof(T) / 2); i++)
            ((uint4 *)y)[i] = ((const uint4 *)b)[i];
    }
}

/* n elements by a warp: up to where both sides stand at 16 bytes, then eight at a time, then the rest. */
template <typename F, typename T>
__device__ static inline void copy_row(const F *x, T *y, int64_t n, int wide)
{
    const int lane = threadIdx.x % 32, off = (int)((uintptr_t)x / sizeof(F) % 8);
    int64_t head = wide && off == (int)((uintptr_t)y / sizeof(T) % 8) ? (8 - off) % 8 : n, body;

    head = head < n ? head : n;
    body = (n - head) / 8 * 8;
    for (int64_t i = lane; i < head; i += 32)
        copy1(x + i, y + i);
    for (int64_t i = head + lane * 8; i < head + body; i += 256)
        copy8(x + i, y + i);
    for (int64_t i = head + body + lane; i < n; i += 32)
        copy1(x + i, y + i);
}

template <typename F, typename T> __global__ void __launch_bounds__(WARPS * 32) transfer_runs(const struct move k, const F *x, T *y)
{
    int64_t begin = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * k.each, end = begin + k.each < k.elements ? begin + k.each : k.elements;

    if (begin >= end)
        return;
    for (int64_t r = run_of(k.run, k.R, CAIRN_TRANSFER_RUN, 6, begin); begin < end && r < k.R; r++) {
        const int64_t *q = k.run + r * CAIRN_TRANSFER_RUN;
        const int64_t x_at = q[0], x_step = q[1], y_at = q[2], y_step = q[3], blocks = q[4], n = q[5], before = q[6];
        int64_t last = before + blocks * n < end ? before + blocks * n : end;

        if (!inside(x_at, x_step, blocks, n, k.X) || !inside(y_at, y_step, blocks, n, k.Y) || before < 0 || before > begin) {
            fault_set(k.fault, OP_transfer, FAULT_INDEX, r);
            return;
        }
        while (begin < last) {
            const int64_t b = (begin - before) / n, i = (begin - before) % n, m = n - i < last - begin ? n - i : last - begin;

            copy_row(x + x_at + b * x_step + i, y + y_at + b * y_step + i, m, k.wide);
            begin += m;
        }
    }
    if (begin < end)
        fault_set(k.fault, OP_transfer, FAULT_INDEX, k.R);
}

template <typename F> static void transfer_from(struct call *c, const struct move *k, unsigned grid, const struct arg *x, const struct arg *y)
{
    if (y->type == CAIRN_F32)
        LAUNCH(c, (transfer_runs<F, float>), grid, WARPS * 32, 0, *k, (const F *)x->p, (float *)y->p);
    else if (y->type == CAIRN_BF16)
        LAUNCH(c, (transfer_runs<F, bf16>), grid, WARPS * 32, 0, *k, (const F *)x->p, (bf16 *)y->p);
    else
        LAUNCH(c, (transfer_runs<F, __half>), grid, WARPS * 32, 0, *k, (const F *)x->p, (__half *)y->p);
}

/* What of n things each of `warps` warps takes: even shares, whole multiples of `unit`. */
static int64_t share(int64_t n, int64_t warps, int64_t unit)
{
    return round_up(ceil_div(n, warps), unit);
}

extern "C" enum cairn_status cairn_transfer_cuda(struct cairn_stream *s, const struct cairn_transfer *a, struct cairn_error *err)
{
    struct call c = call_begin("transfer", s, err);
    const int types = T_F32 | T_BF16 | T_F16;
    int64_t X = -1, Y = -1, R = -1, width = CAIRN_TRANSFER_RUN;
    struct arg x = call_arg(&c, "x", &a->x, types, 1, &X), y = call_arg(&c, "y", &a->y, OUT | types, 1, &Y),
               runs = call_arg(&c, "runs", &a->runs, T_I64, 2, &R, &width);
    struct move k = {(const int64_t *)runs.p, R, X, Y, a->elements, 0, 0, c.cuda->d_fault};
    unsigned grid;

    if (call_ok(&c) && (a->elements < 0 || (a->elements && !R)))
        call_fail(&c, "%lld elements in %lld runs", (long long)a->elements, (long long)R);
    if (!call_ok(&c) || !a->elements)
        return call_end(&c);
    k.wide = (uintptr_t)x.p % 16 == 0 && (uintptr_t)y.p % 16 == 0;
    k.each = share(a->elements, (int64_t)c.cuda->sms * 8 * WARPS, 1024);
    grid = (unsigned)ceil_div(a->elements, k.each * WARPS);
    if (x.type == CAIRN_F32)
        transfer_from<float>(&c, &k, grid, &x, &y);
    else if (x.type == CAIRN_BF16)
        transfer_from<bf16>(&c, &k, grid, &x, &y);
    else
        transfer_from<__half>(&c, &k, grid, &x, &y);
    return call_end(&c);
}

/* ---- tiles --------------------------------------------------------------------------------------------------------------- */

struct sums {
    const unsigned char *x;
    const int64_t *run;
    struct u128 *unit; /* one sum a unit */
    int64_t R, X, units, each;
    struct fault *fault;
};

struct tile_run {
    int64_t at, rows, step, row_bytes, tile_bytes, first, tile_step, before, a_row, tiles;
    uint64_t seed;
};

/* Run r, checked; 0 with a fault if it reaches out. */
__device__ static inline int tile_run_load(const struct sums *k, int64_t r, struct tile_run *t)
{
    const int64_t *q = k->run + r * CAIRN_TILES_RUN;

    t->at = q[0], t->rows = q[1], t->step = q[2], t->row_bytes = q[3], t->tile_bytes = q[4];
    t->seed = (uint64_t)q[5], t->first = q[6], t->tile_step = q[7], t->before = q[8];
    if (!inside(t->at, t->step, t->rows, t->row_bytes, k->X) || t->tile_bytes < 1 || t->tile_bytes > 4096) {
        fault_set(k->fault, OP_tiles, FAULT_INDEX, r);
        return 0;
    }
    t->a_row = t->row_bytes ? (t->row_bytes - 1) / t->tile_bytes + 1 : 0;
    t->tiles = t->rows * t->a_row;
    return 1;
}

/* Tile i of the run: where it lies, its length and seed. */
__device__ static inline const unsigned char *tile_find(const struct sums *k, const struct tile_run *t, int64_t i, int *n, uint64_t *seed)
{
    const int64_t row = t->a_row == 1 ? i : i / t->a_row, c = t->a_row == 1 ? 0 : i % t->a_row, at = c * t->tile_bytes;

    *n = (int)(t->row_bytes - at < t->tile_bytes ? t->row_bytes - at : t->tile_bytes);
    *seed = t->seed + (uint64_t)(t->first + row * t->tile_step + c) * 0x9E3779B97F4A7C15ull;
    return k->x + t->at + row * t->step + at;
}

__global__ void __launch_bounds__(WARPS * 32) tile_units(const struct sums k)
{
    const int lane = threadIdx.x % 32;
    int64_t u = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * k.each, end = u + k.each < k.units ? u + k.each : k.units, r;
    struct tile_run t;

    if (u >= end)
        return;
    r = run_of(k.run, k.R, CAIRN_TILES_RUN, 8, u);
    if (!tile_run_load(&k, r, &t))
        return;
    for (; u < end; u++) {
        const struct u128 none = {0, 0};
        struct u128 sum = none;
        int64_t i, n, unit = CAIRN_TILES_UNIT(t.tile_bytes);

        while ((u - t.before) * unit >= t.tiles) { /* all units of this run are done */
            if (++r >= k.R) {
                fault_set(k.fault, OP_tiles, FAULT_INDEX, r);
                return;
            }
            if (!tile_run_load(&k, r, &t))
                return;
            unit = CAIRN_TILES_UNIT(t.tile_bytes);
        }
        if (t.before > u) {
            fault_set(k.fault, OP_tiles, FAULT_INDEX, r);
            return;
        }
        i = (u - t.before) * unit;
        n = t.tiles - i < unit ? t.tiles : i + unit;
        if (t.tile_bytes <= 240) {
            int length;
            uint64_t seed;
            const unsigned char *p;

            if (i + lane < n) {
                p = tile_find(&k, &t, i + lane, &length, &seed);
                sum = xxh_short(p, length, seed);
            }
            sum = u128_warp_sum(sum);
        } else {
            for (; i < n; i++) { /* the last tile of a row may be short: every lane makes the same of it */
                int length;
                uint64_t seed;
                const unsigned char *p = tile_find(&k, &t, i, &length, &seed);

                sum = u128_add(sum, length > 240 ? xxh_long(p, length, seed) : xxh_short(p, length, seed));
            }
        }
        if (lane == 0)
            k.unit[u] = sum;
    }
}

/* A block a run: its units, which lie one after the other. */
__global__ void __launch_bounds__(WARPS * 32) tile_sums(const struct sums k, int64_t *out)
{
    __shared__ struct u128 room[WARPS];
    const int64_t r = blockIdx.x;
    struct tile_run t;
    struct u128 sum = {0, 0};

    if (tile_run_load(&k, r, &t)) {
        const int64_t unit = CAIRN_TILES_UNIT(t.tile_bytes), n = t.tiles / unit + (t.tiles % unit != 0);

        for (int64_t u = threadIdx.x; u < n && t.before >= 0 && t.before + u < k.units; u += WARPS * 32)
            sum = u128_add(sum, k.unit[t.before + u]);
    }
    sum = u128_warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < WARPS; i++)
            sum = u128_add(sum, room[i]);
        out[2 * r] = (int64_t)sum.lo;
        out[2 * r + 1] = (int64_t)sum.hi;
    }
}

extern "C" enum cairn_status cairn_tiles_cuda(struct cairn_stream *s, const struct cairn_tiles *a, struct cairn_error *err)
{
    struct call c = call_begin("tiles", s, err);
    int64_t X = -1, R = -1, width = CAIRN_TILES_RUN, two = 2;
    struct arg x = call_arg(&c, "x", &a->x, T_U8, 1, &X), runs = call_arg(&c, "runs", &a->runs, T_I64, 2, &R, &width),
               out = call_arg(&c, "out", &a->out, OUT | T_I64, 2, &R, &two);
    struct sums k;

    if (call_ok(&c) && a->units < 0)
        call_fail(&c, "%lld units", (long long)a->units);
    if (!call_ok(&c) || !R)
        return call_end(&c);
    k.x = (const unsigned char *)x.p;
    k.run = (const int64_t *)runs.p;
    k.unit = (struct u128 *)call_scratch(&c, (size_t)(a->units + 1) * sizeof *k.unit);
    k.R = R;
    k.X = X;
    k.units = a->units;
    k.each = share(a->units, (int64_t)c.cuda->sms * 8 * WARPS, 1);
    k.fault = c.cuda->d_fault;
    if (a->units)
        LAUNCH(&c, tile_units, (unsigned)ceil_div(a->units, k.each * WARPS), WARPS * 32, 0, k);
    LAUNCH(&c, tile_sums, (unsigned)R, WARPS * 32, 0, k, (int64_t *)out.p);
    return call_end(&c);
}
