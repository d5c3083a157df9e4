/* attention_rows.cu - which rows of a call go how, made on the device: struct attention_rows of a backward call, the tiles of a forward
 * one (attention.cuh).
 *
 * Two kernels each: one looks at each row (a warp a row), one block of threads then makes the lists. What comes out for a row depends on
 * its sequence alone; the order in which integer atomics happen changes nothing.
 */
#include "attention_tile.cuh"
#include "scan.cuh"

#define LOOK_THREADS 256
#define SORT_THREADS 1024
#define SORT_WARPS   (SORT_THREADS / 32)
#define CHUNK_PAIRS  2048 /* (row, head) pairs of a chunk */

__global__ void __launch_bounds__(LOOK_THREADS) rows_look(struct attention_job k)
{
#if HAVE_WGMMA
    int64_t n = (int64_t)blockIdx.x * (LOOK_THREADS / 32) + threadIdx.x / 32;
    int is = 0;

    if (n >= k.N)
        return;
    if (by_position(&k, n)) {
        is = ROW_ALL;
        if (n && k.keys.seq[n] == k.keys.seq[n - 1] && k.keys.pos[n] == k.keys.pos[n - 1] + 1 && by_position(&k, n - 1))
            is |= ROW_CHAINED;
        if (is & ROW_CHAINED && k.keys.pos[n] % k.G && own_key_finite(&k, n))
            is |= ROW_JOINED;
    }
    if (threadIdx.x % 32 == 0)
        k.rows.is[n] = (uint8_t)is;
#endif
}

/* Sum of x over the threads before this one, and over all. Every thread of SORT_THREADS. room: SORT_WARPS. */
__device__ static int sum_before(int x, int *room, int *all)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, upto = lanes_upto(x), before = 0;

    __syncthreads();
    if (lane == 31)
        room[warp] = upto;
    __syncthreads();
    *all = 0;
    for (int i = 0; i < SORT_WARPS; i++) {
        before += i < warp ? room[i] : 0;
        *all += room[i];
    }
    return before + upto - x;
}

/* The largest x of the threads before this one (0 without one), and of all; x >= 0. */
__device__ static int most_before(int x, int *room, int *all)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, upto = x, before;

#pragma unroll
    for (int h = 1; h < 32; h <<= 1) {
        int y = __shfl_up_sync(0xffffffffu, upto, h);

        upto = lane >= h && y > upto ? y : upto;
    }
    before = __shfl_up_sync(0xffffffffu, upto, 1);
    before = lane ? before : 0;
    __syncthreads();
    if (lane == 31)
        room[warp] = upto;
    __syncthreads();
    *all = 0;
    for (int i = 0; i < SORT_WARPS; i++) {
        before = i < warp && room[i] > before ? room[i] : before;
        *all = room[i] > *all ? room[i] : *all;
    }
    return before;
}

/* What this block wrote or counted in memory, past its cache. */
__device__ static inline int fresh(const int32_t *p)
{
    return *(const volatile int32_t *)p;
}

__global__ void __launch_bounds__(SORT_THREADS) rows_sort(struct attention_job k)
{
    __shared__ int room[SORT_WARPS];
    struct attention_rows r = k.rows;
    int items = 0, end = 0, tiles = 0, rest = 0, all;

    for (int64_t b = threadIdx.x; b < k.keys.B; b += SORT_THREADS)
        r.first[b] = INT32_MAX, r.last[b] = INT32_MAX;
    __syncthreads();
    for (int64_t n = threadIdx.x; n < k.N; n += SORT_THREADS)
        if ((r.is[n] & (ROW_ALL | ROW_CHAINED)) == ROW_ALL)
            atomicMin(r.first + k.keys.seq[n], (int32_t)n);
    __syncthreads();
    for (int64_t n = threadIdx.x; n < k.N; n += SORT_THREADS)
        if (r.is[n] & ROW_ALL && !(n + 1 < k.N && r.is[n + 1] & ROW_CHAINED) && n >= fresh(r.first + k.keys.seq[n]))
            atomicMin(r.last + k.keys.seq[n], (int32_t)n);
    __syncthreads();
    /* sequences whose keys lie behind those of all before, so that no two pieces of work have a key in common */
    for (int64_t b0 = 0; b0 < k.keys.B; b0 += SORT_THREADS) {
        int64_t b = b0 + threadIdx.x;
        int first = b < k.keys.B ? fresh(r.first + b) : INT32_MAX, there = first < INT32_MAX, mine = 0, from = 0, to = 0, before;

        if (there) {
            int p0 = k.keys.pos[first], p1 = k.keys.pos[fresh(r.last + b)];

            from = k.keys.start[b];
            if (from < 0 || (int64_t)from + p1 >= k.keys.S)
                there = 0;
            else
                to = from + p1 + 1;
            for (int c = p0 / r.chunk; there && c <= p1 / r.chunk; c++)
                mine += chunk_keys(p1, r.chunk, c);
        }
        before = most_before(to, room, &all);
        before = before > end ? before : end;
        if (!there || from < before) {
            mine = 0;
            if (b < k.keys.B)
                r.first[b] = INT32_MAX, r.last[b] = -1;
        }
        end = all > end ? all : end;
        before = sum_before(mine, room, &all);
        if (b < k.keys.B)
            r.item[b] = items + before;
        items += all;
    }
    if (!threadIdx.x)
        r.item[k.keys.B] = items;
    __syncthreads();
    for (int64_t n0 = 0; n0 < k.N; n0 += SORT_THREADS) {
        int64_t n = n0 + threadIdx.x;
        int is = n < k.N ? r.is[n] : 0, tile = (is & (ROW_ALL | ROW_JOINED)) == ROW_ALL, out = n < k.N, before;

        if (is & ROW_ALL) {
            int b = k.keys.seq[n];

            out = n < fresh(r.first + b) || n > fresh(r.last + b);
        }
        before = sum_before(tile, room, &all);
        if (tile)
            r.tile[tiles + before] = (int32_t)n;
        tiles += all;
        before = sum_before(out, room, &all);
        if (out)
            r.rest[rest + before] = (int32_t)n;
        rest += all;
    }
    if (!threadIdx.x && k.all_seen && rest)
        fault_set(k.keys.fault, k.keys.op, FAULT_CHOICE, fresh(r.rest));
    if (!threadIdx.x)
        r.count[ROWS_TILES] = tiles, r.count[ROWS_REST] = rest, r.count[ROWS_TICKET] = 0;
}

size_t attention_rows_room(struct attention_job *k, char *room)
{
    struct attention_rows *r = &k->rows;
    size_t at = 0;

#define PIECE(pointer, number)                                                                                                     \
    do {                                                                                                                           \
        if (room)                                                                                                                  \
            *(void **)&r->pointer = room + at;                                                                                     \
        at += (size_t)round_up((int64_t)sizeof *r->pointer * (number), 256);                                                       \
    } while (0)
    PIECE(is, k->N);
    PIECE(first, k->keys.B);
    PIECE(last, k->keys.B);
    PIECE(item, k->keys.B + 1);
    PIECE(tile, k->N);
    PIECE(rest, k->N);
    PIECE(count, ROWS_COUNTS);
    PIECE(turn, k->keys.S);
    PIECE(D, k->N * k->H);
#undef PIECE
    if (room)
        k->mask = (uint64_t *)(room + at);
    at += (size_t)(k->N * k->words) * sizeof *k->mask;
    r->chunk = k->H > CHUNK_PAIRS ? 1 : CHUNK_PAIRS / k->H;
    return at;
}

void attention_rows_make(struct call *c, const struct attention_job *k)
{
    LAUNCH(c, rows_look, (unsigned)ceil_div(k->N, LOOK_THREADS / 32), LOOK_THREADS, 0, *k);
    LAUNCH(c, rows_sort, 1, SORT_THREADS, 0, *k);
    call_cuda(c, cudaMemsetAsync(k->rows.turn, 0, (size_t)k->keys.S * sizeof(int32_t), c->stream), "clearing turns");
}

/* ---- the forward's tiles ----------------------------------------------------------------------------------------------- */

#ifdef CAIRN_EMULATED
#define LISTED_LEAST 32 /* the tests have few */
#else
#define LISTED_LEAST 512 /* rows: fewer are looked for by the tiles themselves, which costs a block what the list costs the call */
#endif
#define EACH         16  /* rows of a thread */
#define MASK_WORDS   128 /* 32 positions each, of those that attention_wgmma_form has masks for */

#if HAVE_WGMMA

/* Mask of a row by position (plan_masks), whose list is checked on the way. A warp; room: 2 words. */
__device__ static inline void row_mask(const struct attention_job *k, int64_t n, uint32_t *room)
{
    int each = k->keys.pos[n] + 1, lane = threadIdx.x % 32;
    const int32_t *idx = k->idx + n * k->T;

    for (int i = lane; i < 2 * k->words; i += 32) {
        int left = each <= k->T ? each - i * 32 : 0;

        room[i] = left >= 32 ? 0xffffffffu : left > 0 ? (1u << left) - 1 : 0;
    }
    __syncwarp();
    if (each > k->T)
#pragma unroll 4
        for (int j = lane; j < k->T; j += 32) {
            int at = idx[j], before = idx[j ? j - 1 : 0];

            if (choice_fits(&k->keys, at, j, before, each - 1))
                atomicOr(room + at / 32, 1u << at % 32);
        }
    __syncwarp();
    for (int i = lane; i < k->words; i += 32)
        k->mask[n * k->words + i] = (uint64_t)room[2 * i + 1] << 32 | room[2 * i];
}

#endif

__global__ void __launch_bounds__(LOOK_THREADS) tiles_look(struct attention_job k)
{
#if HAVE_WGMMA
    __shared__ uint32_t room[LOOK_THREADS / 32][MASK_WORDS];
    int64_t n = (int64_t)blockIdx.x * (LOOK_THREADS / 32) + threadIdx.x / 32;

    /* rows whose tile may reach behind T; a tile has positions of one group */
    if (n < k.N && k.words && by_position(&k, n) && k.keys.pos[n] / k.G * k.G + k.G > k.T)
        row_mask(&k, n, room[threadIdx.x / 32]);
    if (n < k.N && follows(&k, n)) { /* the whole warp */
        int good = own_key_finite(&k, n);

        if (threadIdx.x % 32 == 0)
            k.joined[n] = (uint8_t)good;
    } else if (n < k.N && threadIdx.x % 32 == 0) {
        k.joined[n] = 0;
    }
#endif
}

__global__ void __launch_bounds__(SORT_THREADS) tiles_list(struct attention_job k)
{
    __shared__ int room[SORT_WARPS];
    int64_t found = 0;
    int all;

    for (int64_t behind = 0; behind < k.N; behind += SORT_THREADS * EACH) {
        int64_t last = k.N - 1 - behind - threadIdx.x * EACH, at;
        unsigned starts = 0;

#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (last - i >= 0 && !k.joined[last - i])
                starts |= 1u << i;
        at = found + sum_before(__popc(starts), room, &all);
        found += all;
        for (; starts; starts &= starts - 1) {
            int64_t n = last - (__ffs((int)starts) - 1);
            int rows = 1;

            while (n + rows < k.N && k.joined[n + rows])
                rows++;
            k.tiles[at++] = {(int32_t)n, rows};
        }
    }
    if (!threadIdx.x)
        *k.ticket = 0;
    for (int64_t i = found + threadIdx.x; i < k.N; i += SORT_THREADS)
        k.tiles[i] = {-1, 0};
}

size_t attention_tiles_room(struct attention_job *k, char *room)
{
    size_t masks = (size_t)round_up(k->N * k->words * (int64_t)sizeof *k->mask, 256);
    size_t tiles = k->G > 1 && k->N >= LISTED_LEAST ? (size_t)round_up(k->N * (int64_t)sizeof *k->tiles, 256) : 0;

    if (room && masks)
        k->mask = (uint64_t *)room;
    if (room && tiles)
        k->tiles = (struct attention_tile *)(room + masks), k->ticket = (int32_t *)(room + masks + tiles), k->joined = (uint8_t *)(k->ticket + 1);
    return masks + tiles + (tiles ? sizeof *k->ticket + (size_t)k->N : 0);
}

void attention_tiles_make(struct call *c, const struct attention_job *k)
{
    if (!k->tiles)
        return;
    LAUNCH(c, tiles_look, (unsigned)ceil_div(k->N, LOOK_THREADS / 32), LOOK_THREADS, 0, *k);
    LAUNCH(c, tiles_list, 1, SORT_THREADS, 0, *k);
}
