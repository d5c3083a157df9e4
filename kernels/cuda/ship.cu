/* ship.cu - weights on their way to the sampler, converted, written and summed up in one pass (xxh3.cuh).
 *
 * A warp takes units of a table of runs, finds the run of its first one by bisection and goes on from run to run. A long tile is
 * hashed as it passes: lane by lane eight bytes of the result, 256 bytes in a row for the warp, fetched four deep before the first
 * is written, so that a destination behind the link (a peer's memory) is written in whole lines and nothing is read twice. Short
 * tiles, 32 a unit, go through shared memory: written in a row by all lanes, then each lane sums up one. Sums are of integers, so
 * that no order matters: blocks add theirs to one number in device memory; the last one to come writes that to `out`, which may be
 * pinned host memory, and leaves zeros for the next call. (A second kernel for it would wait behind all blocks that are enqueued on
 * other streams: a call would seem to end with them.) What a table says is checked before memory is touched: FAULT_INDEX with the
 * run's number.
 */
#include <cuda_fp16.h>
#include <stdlib.h>
#include <type_traits>

#include "kernel.cuh"
#include "transfer.cuh"
#include "xxh3.cuh"

#define WARPS      4          /* of a block */
#define SHORT_MOST (32 * 240) /* bytes of a unit of short tiles */

/* Where the blocks of a call meet; all zero between calls. */
struct meeting {
    unsigned long long lo, hi;
    unsigned come;
};

struct ship {
    const int64_t *run;
    struct meeting *meeting;
    int64_t *out;
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

/* By one thread of each block. A carry out of the low word goes to whoever's addition made it, whatever the order. */
__device__ static inline void meet(struct meeting *m, struct u128 sum, int64_t *out)
{
    const unsigned long long was = atomicAdd(&m->lo, (unsigned long long)sum.lo);

    atomicAdd(&m->hi, (unsigned long long)(sum.hi + (was + sum.lo < was)));
    __threadfence();
    if (atomicAdd(&m->come, 1u) != gridDim.x - 1)
        return;
    __threadfence();
    out[0] = (int64_t)*(volatile unsigned long long *)&m->lo;
    out[1] = (int64_t)*(volatile unsigned long long *)&m->hi;
    m->lo = m->hi = 0;
    m->come = 0;
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
        meet(k.meeting, sum, k.out);
    }
}

/* No units: the sum of nothing. */
__global__ void ship_nothing(int64_t *out)
{
    out[0] = out[1] = 0;
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

/* Meetings of a device: calls under way on several streams have one each. */
#define MEETINGS 256

struct meetings {
    struct meeting *d;
    unsigned next;
};

static void meetings_free(void *p)
{
    cudaFree(((struct meetings *)p)->d);
    free(p);
}

static struct meeting *meeting_take(struct call *c)
{
    struct meetings *m = (struct meetings *)c->cuda->slot[SLOT_SHIP];

    if (!m && call_ok(c)) {
        if (!(m = (struct meetings *)calloc(1, sizeof *m))) {
            c->c.st = CAIRN_NOMEM(c->c.err);
            return NULL;
        }
        call_cuda(c, cudaMalloc((void **)&m->d, MEETINGS * sizeof *m->d), "room for sums");
        if (call_ok(c))
            call_cuda(c, cudaMemsetAsync(m->d, 0, MEETINGS * sizeof *m->d, c->stream), "room for sums");
        if (call_ok(c))
            call_cuda(c, cudaStreamSynchronize(c->stream), "room for sums");
        if (!call_ok(c)) {
            meetings_free(m);
            return NULL;
        }
        c->cuda->slot[SLOT_SHIP] = m;
        c->cuda->slot_free[SLOT_SHIP] = meetings_free;
    }
    return call_ok(c) ? &m->d[m->next++ % MEETINGS] : NULL;
}

extern "C" enum cairn_status cairn_ship_cuda(struct cairn_stream *s, const struct cairn_ship *a, struct cairn_error *err)
{
    struct call c = call_begin("ship", s, err);
    const int types = T_F32 | T_BF16 | T_F16;
    int64_t X = -1, Y = -1, R = -1, width = CAIRN_SHIP_RUN, two = 2;
    struct arg x = call_arg(&c, "x", &a->x, types, 1, &X), y = call_arg(&c, "y", &a->y, OUT | types, 1, &Y),
               runs = call_arg(&c, "runs", &a->runs, T_I64, 2, &R, &width),
               out = call_arg(&c, "out", &a->out, OUT | T_I64, 1, &two);
    struct ship k = {(const int64_t *)runs.p, NULL, (int64_t *)out.p, R, X, Y, a->units, 0, c.cuda->d_fault};
    unsigned grid;

    if (call_ok(&c) && (a->units < 0 || (a->units && !R)))
        call_fail(&c, "%lld units in %lld runs", (long long)a->units, (long long)R);
    if (!call_ok(&c))
        return call_end(&c);
    k.each = a->units / ((int64_t)c.cuda->sms * 64);
    k.each = k.each > 8                             ? 8
             : k.each > 1                           ? k.each
             : a->units > (int64_t)c.cuda->sms * 16 ? 2
                                                    : 1; /* a search for the first run costs as much as a tile */
    grid = (unsigned)ceil_div(a->units, k.each * WARPS);
    k.meeting = grid ? meeting_take(&c) : NULL;
    if (!grid)
        LAUNCH(&c, ship_nothing, 1u, 1, 0, k.out);
    else if (x.type == CAIRN_F32)
        ship_from<float>(&c, &k, grid, &x, &y);
    else if (x.type == CAIRN_BF16)
        ship_from<bf16>(&c, &k, grid, &x, &y);
    else
        ship_from<__half>(&c, &k, grid, &x, &y);
    return call_end(&c);
}
