/* ship.cu - weights on their way to the sampler, converted, written and summed up in one pass (xxh3.cuh).
 *
 * A warp takes units of a table of runs, finds the run of its first one by bisection and goes on from run to run. A long tile is
 * hashed as it passes: lane by lane eight bytes of the result, 256 bytes in a row for the warp, fetched four deep before the first
 * is written, so that a destination behind the link (a peer's memory) is written in whole lines and nothing is read twice. Short
 * tiles, 32 a unit, go through shared memory: written in a row by all lanes, then each lane sums up one. Sums are of integers, so
 * that no order matters; a block leaves one, a second kernel adds them into `out`, which may be pinned host memory. What a table
 * says is checked before memory is touched: FAULT_INDEX with the run's number.
 */
#include <cuda_fp16.h>
#include <type_traits>

#include "kernel.cuh"
#include "transfer.cuh"
#include "xxh3.cuh"

#define WARPS      4          /* of a block */
#define SHORT_MOST (32 * 240) /* bytes of a unit of short tiles */

struct ship {
    const int64_t *run;
    struct u128 *block; /* one sum a block */
    int64_t R, X, Y, units, each;
    struct fault *fault;
};

struct ship_run {
    int64_t x_at, x_step, y_at, y_step, rows, n, tile, first, tile_step, before, a_row, tiles, unit;
    uint64_t seed;
};

/* Run r, checked; 0 with a fault if it reaches out. size: of an element of y. */
__device__ static inline int ship_run_load(const struct ship *k, int64_t r, int size, struct ship_run *t)
{
    const int64_t *q = k->run + r * CAIRN_SHIP_RUN;

    t->x_at = q[0], t->x_step = q[1], t->y_at = q[2], t->y_step = q[3], t->rows = q[4], t->n = q[5], t->tile = q[6];
    t->seed = (uint64_t)q[7], t->first = q[8], t->tile_step = q[9], t->before = q[10];
    if (!inside(t->x_at, t->x_step, t->rows, t->n, k->X) || !inside(t->y_at, t->y_step, t->rows, t->n, k->Y) || t->tile < 1 ||
        t->tile > 4096 / size) {
        fault_set(k->fault, OP_ship, FAULT_INDEX, r);
        return 0;
    }
    t->a_row = t->n ? (t->n - 1) / t->tile + 1 : 0;
    t->tiles = t->rows * t->a_row;
    t->unit = CAIRN_SHIP_UNIT(t->tile * size);
    return 1;
}

/* A tile of x on its way to y, as xxh_long_of asks for it: word `at` of the result is fetched from x, converted and written when it
 * is taken. */
template <typename F, typename T> struct passing {
    static const int count = 8 / sizeof(T); /* elements of a word */
    const F *x;
    T *y;
    struct alignas(sizeof(F) * count < 16 ? sizeof(F) * count : 16) raw {
        F v[count];
    };

    __device__ inline void fetch(struct raw *r, int at) const
    {
        const F *p = x + at / (int)sizeof(T);

        if ((uintptr_t)p % alignof(struct raw) == 0) {
            *r = *(const struct raw *)p;
        } else {
#pragma unroll
            for (int i = 0; i < count; i++)
                r->v[i] = p[i];
        }
    }
    __device__ inline uint64_t take(const struct raw *r, int at) const
    {
        T *q = y + at / (int)sizeof(T);
        alignas(8) T v[count];
        uint64_t word;

#pragma unroll
        for (int i = 0; i < count; i++)
            copy1(r->v + i, v + i);
        memcpy(&word, v, sizeof word);
        if ((uintptr_t)q % 8 == 0) {
            *(uint64_t *)q = word;
        } else {
#pragma unroll
            for (int i = 0; i < count; i++)
                q[i] = v[i];
        }
        return word;
    }
};

/* Where tile i of the run lies, and its seed; how many elements it has. */
template <typename F, typename T>
__device__ static inline int ship_tile(const struct ship_run *t, int64_t i, const F *x, T *y, struct passing<F, T> *tile,
                                       uint64_t *seed)
{
    const int64_t row = t->a_row == 1 ? i : i / t->a_row, c = t->a_row == 1 ? 0 : i % t->a_row, at = c * t->tile;

    tile->x = x + t->x_at + row * t->x_step + at;
    tile->y = y + t->y_at + row * t->y_step + at;
    *seed = t->seed + (uint64_t)(t->first + row * t->tile_step + c) * 0x9E3779B97F4A7C15ull;
    return (int)(t->n - at < t->tile ? t->n - at : t->tile);
}

/* n tiles from i on, each of 240 bytes at most; the sum in every lane. room: SHORT_MOST bytes, this warp's. */
template <typename F, typename T>
__device__ static inline struct u128 ship_short(const struct ship_run *t, int64_t i, int n, const F *x, T *y, uint64_t *room)
{
    const int lane = threadIdx.x % 32, bytes = (int)(t->tile * (int64_t)sizeof(T)), words = bytes / 8, all = n * words;
    struct u128 sum = {0, 0};
    struct passing<F, T> tile;
    uint64_t seed;

    if (t->a_row == 1 && t->n == t->tile && bytes % 8 == 0) {
        for (int w = lane; w < all; w += 128) {
            typename passing<F, T>::raw raw[4];

#pragma unroll
            for (int j = 0; j < 4; j++)
                if (w + 32 * j < all) {
                    const int k = (w + 32 * j) / words;

                    ship_tile(t, i + k, x, y, &tile, &seed);
                    tile.fetch(&raw[j], (w + 32 * j - k * words) * 8);
                }
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (w + 32 * j < all) {
                    const int k = (w + 32 * j) / words;

                    ship_tile(t, i + k, x, y, &tile, &seed);
                    room[w + 32 * j] = tile.take(&raw[j], (w + 32 * j - k * words) * 8);
                }
        }
    } else {
        for (int k = 0; k < n; k++) {
            const int m = ship_tile(t, i + k, x, y, &tile, &seed);

            for (int e = lane; e < m; e += 32) {
                T v;

                copy1(tile.x + e, &v);
                tile.y[e] = v;
                ((T *)room)[k * (int)t->tile + e] = v;
            }
        }
    }
    __syncwarp();
    if (lane < n) {
        const int m = ship_tile(t, i + lane, x, y, &tile, &seed);

        sum = xxh_short((const unsigned char *)room + lane * bytes, m * (int)sizeof(T), seed);
    }
    __syncwarp(); /* the room is used again */
    return u128_warp_sum(sum);
}

/* The units of one warp; 0 with a fault. */
template <typename F, typename T>
__device__ static inline int ship_warp(const struct ship *k, int64_t u, int64_t end, const F *x, T *y, uint64_t *room,
                                       struct u128 *sum)
{
    int64_t r = run_of(k->run, k->R, CAIRN_SHIP_RUN, 10, u);
    struct ship_run t;

    if (!ship_run_load(k, r, sizeof(T), &t))
        return 0;
    for (; u < end; u++) {
        int64_t i;

        while ((u - t.before) * t.unit >= t.tiles) { /* all units of this run are done */
            if (++r >= k->R) {
                fault_set(k->fault, OP_ship, FAULT_INDEX, r);
                return 0;
            }
            if (!ship_run_load(k, r, sizeof(T), &t))
                return 0;
        }
        if (t.before > u) {
            fault_set(k->fault, OP_ship, FAULT_INDEX, r);
            return 0;
        }
        i = (u - t.before) * t.unit;
        if (t.unit > 1) {
            *sum = u128_add(*sum, ship_short(&t, i, (int)(t.tiles - i < t.unit ? t.tiles - i : t.unit), x, y, room));
        } else {
            struct passing<F, T> tile;
            uint64_t seed;
            const int n = ship_tile(&t, i, x, y, &tile, &seed), bytes = n * (int)sizeof(T);

            if (bytes > 240) {
                *sum = u128_add(*sum, xxh_long_of(tile, bytes, seed));
            } else { /* the last of a row */
                struct ship_run last = t;

                last.x_at = tile.x - x, last.y_at = tile.y - y, last.rows = 1, last.n = last.tile = n, last.a_row = last.tiles = 1;
                last.seed = seed, last.first = last.tile_step = 0;
                *sum = u128_add(*sum, ship_short(&last, 0, 1, x, y, room));
            }
        }
    }
    return 1;
}

template <typename F, typename T> __global__ void __launch_bounds__(WARPS * 32) ship_units(const struct ship k, const F *x, T *y)
{
    __shared__ uint64_t room[WARPS][SHORT_MOST / 8];
    __shared__ struct u128 part[WARPS];
    const int warp = threadIdx.x / 32;
    const int64_t u = ((int64_t)blockIdx.x * WARPS + warp) * k.each, end = u + k.each < k.units ? u + k.each : k.units;
    struct u128 sum = {0, 0};

    if (u < end)
        ship_warp(&k, u, end, x, y, room[warp], &sum);
    __threadfence_system(); /* y may be another device's */
    if (threadIdx.x % 32 == 0)
        part[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < WARPS; i++)
            sum = u128_add(sum, part[i]);
        k.block[blockIdx.x] = sum;
    }
}

__global__ void __launch_bounds__(256) ship_sum(const struct u128 *block, int64_t n, int64_t *out)
{
    __shared__ struct u128 part[8];
    struct u128 sum = {0, 0};

    for (int64_t i = threadIdx.x; i < n; i += 256)
        sum = u128_add(sum, block[i]);
    sum = u128_warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < 8; i++)
            sum = u128_add(sum, part[i]);
        out[0] = (int64_t)sum.lo;
        out[1] = (int64_t)sum.hi;
    }
}

template <typename F>
static void ship_from(struct call *c, const struct ship *k, unsigned grid, const struct arg *x, const struct arg *y)
{
    if (y->type == CAIRN_F32)
        LAUNCH(c, (ship_units<F, float>), grid, WARPS * 32, 0, *k, (const F *)x->p, (float *)y->p);
    else if (y->type == CAIRN_BF16)
        LAUNCH(c, (ship_units<F, bf16>), grid, WARPS * 32, 0, *k, (const F *)x->p, (bf16 *)y->p);
    else
        LAUNCH(c, (ship_units<F, __half>), grid, WARPS * 32, 0, *k, (const F *)x->p, (__half *)y->p);
}

extern "C" enum cairn_status cairn_ship_cuda(struct cairn_stream *s, const struct cairn_ship *a, struct cairn_error *err)
{
    struct call c = call_begin("ship", s, err);
    const int types = T_F32 | T_BF16 | T_F16;
    int64_t X = -1, Y = -1, R = -1, width = CAIRN_SHIP_RUN, two = 2;
    struct arg x = call_arg(&c, "x", &a->x, types, 1, &X), y = call_arg(&c, "y", &a->y, OUT | types, 1, &Y),
               runs = call_arg(&c, "runs", &a->runs, T_I64, 2, &R, &width),
               out = call_arg(&c, "out", &a->out, OUT | T_I64, 1, &two);
    struct ship k = {(const int64_t *)runs.p, NULL, R, X, Y, a->units, 0, c.cuda->d_fault};
    unsigned grid;

    if (call_ok(&c) && (a->units < 0 || (a->units && !R)))
        call_fail(&c, "%lld units in %lld runs", (long long)a->units, (long long)R);
    if (!call_ok(&c))
        return call_end(&c);
    k.each = a->units / ((int64_t)c.cuda->sms * 64);
    k.each = k.each < 1 ? 1 : k.each > 8 ? 8 : k.each;
    grid = (unsigned)ceil_div(a->units, k.each * WARPS);
    k.block = (struct u128 *)call_scratch(&c, ((size_t)grid + 1) * sizeof *k.block);
    if (grid && x.type == CAIRN_F32)
        ship_from<float>(&c, &k, grid, &x, &y);
    else if (grid && x.type == CAIRN_BF16)
        ship_from<bf16>(&c, &k, grid, &x, &y);
    else if (grid)
        ship_from<__half>(&c, &k, grid, &x, &y);
    LAUNCH(&c, ship_sum, 1u, 256, 0, k.block, (int64_t)grid, (int64_t *)out.p);
    return call_end(&c);
}
