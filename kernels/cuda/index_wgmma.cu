/* index_wgmma.cu - scores of the indexer with wgmma: bf16, heads of 128 channels, 16, 32 or 64 of them.
 *
 * A block of threads has COLUMNS (row, head) pairs, that is COLUMNS / H rows, against STRETCH tiles of 128 keys; two warpgroups
 * with 64 keys each (m64nCOLUMNSk16, channels ascending), keys two tiles deep by cp.async. Rows of other sequences in the same tile
 * get a pass of their own. Each key's sum over heads: thread t % 4 has heads 2 (t % 4) + 8 j, + 1, in order; then four threads are
 * added. That order is the same with COLUMNS = H (few rows: sampling) and COLUMNS = 128.
 *
 * Floor: 2 H 128 flops a score.
 */
#include "index.cuh"
#include "wgmma.cuh"

#define THREADS    256
#define WIDTH      128 /* channels: two tiles of 64 */
#define STRETCH    8
#define HALF_KEYS  (INDEX_KEYS * 128) /* bytes: 128 keys, 64 channels */
#define ROWS_MOST  8

#if HAVE_WGMMA

template <int COLUMNS> struct room {
    unsigned char key[2][2][HALF_KEYS], q[2][COLUMNS * 128];
    float w[COLUMNS];
    int seq[ROWS_MOST], pos[ROWS_MOST]; /* pos -1: no scores are wanted */
};

/* Keys p0 .. p0 + 127 of sequence b, positions up to last. Thread t: chunk t % 16 of keys t / 16 + 16 i. */
__device__ static inline void gather(const struct index_job *k, int b, int p0, int last, unsigned char *to)
{
    int half = threadIdx.x % 16 / 8, chunk = threadIdx.x % 8;
    uint32_t at = shared_address(to) + half * HALF_KEYS;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        int r = threadIdx.x / 16 + i * 16;
        int64_t row = p0 + r <= last ? key_row(&k->keys, b, p0 + r) : -1;

        copy16(at + swizzled(r, chunk),
               (const bf16 *)k->keys.rows.p + (row < 0 ? 0 : row) * k->keys.rows.s[0] + half * 64 + chunk * 8, row >= 0);
    }
    copy_commit();
}

__device__ static inline float relu(float x)
{
    return max_nan(x, 0.0f);
}

#endif

template <int H, int COLUMNS> __global__ void __launch_bounds__(THREADS, 2) scores_tiles(const __grid_constant__ struct index_job k,
                                                                                        int64_t n0, int rows)
{
#if HAVE_WGMMA
    extern __shared__ __align__(1024) uint8_t memory[];
    struct room<COLUMNS> *s = (struct room<COLUMNS> *)memory;
    const int R = COLUMNS / H;
    int lane = threadIdx.x % 32, group = threadIdx.x / 128, r = group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
    int first = blockIdx.y * R, begin = blockIdx.x * STRETCH * INDEX_KEYS, wanted = 0;
    uint64_t q = wgmma_operand(shared_address(s->q), 0, 1024);

    if (threadIdx.x < R) {
        int64_t n = n0 + first + threadIdx.x;
        int ok = first + (int)threadIdx.x < rows && k.keys.pos[n] >= k.T && keys_see(&k.keys, n);

        s->seq[threadIdx.x] = ok ? k.keys.seq[n] : -1;
        s->pos[threadIdx.x] = ok ? k.keys.pos[n] : -1;
    }
    __syncthreads();
    for (int i = 0; i < R; i++)
        wanted |= s->pos[i] >= begin;
    if (!wanted)
        return;
    for (int i = threadIdx.x; i < COLUMNS * 16; i += THREADS) {
        int c = i / 16, half = i % 16 / 8, chunk = i % 8, there = s->pos[c / H] >= 0;
        int64_t n = n0 + first + (there ? c / H : 0);

        copy16(shared_address(s->q[half]) + swizzled(c, chunk),
               (const bf16 *)k.q.p + n * k.q.s[0] + c % H * k.q.s[1] + half * 64 + chunk * 8, there);
    }
    copy_commit();
    for (int c = threadIdx.x; c < COLUMNS; c += THREADS)
        s->w[c] = s->pos[c / H] >= 0 ? ((const float *)k.w.p)[(n0 + first + c / H) * k.w.s[0] + c % H] : 0.0f;

    for (int a = 0, z; a < R; a = z) { /* rows a .. z - 1 are of one sequence */
        int last = s->pos[a], end;

        for (z = a + 1; z < R && s->seq[z] == s->seq[a]; z++)
            last = s->pos[z] > last ? s->pos[z] : last;
        if (last < begin)
            continue;
        end = begin + STRETCH * INDEX_KEYS <= last ? begin + STRETCH * INDEX_KEYS : last + 1;
        __syncthreads();
        gather(&k, s->seq[a], begin, last, s->key[0][0]);
        for (int p0 = begin, t = 0; p0 < end; p0 += INDEX_KEYS, t ^= 1) {
            uint64_t key = wgmma_operand(shared_address(s->key[t]) + group * 64 * 128, 0, 1024);
            float d[COLUMNS / 2];

            if (p0 + INDEX_KEYS < end) {
                gather(&k, s->seq[a], p0 + INDEX_KEYS, last, s->key[t ^ 1][0]);
                copy_wait<1>();
            } else {
                copy_wait<0>();
            }
            fence_for_wgmma();
            __syncthreads();
            wgmma_zero(d);
            wgmma_hold(d);
            wgmma_fence();
#pragma unroll
            for (int c = 0; c < 2; c++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    wgmma<0, 0>(d, key + (c * HALF_KEYS + i * 32) / 16, q + (c * COLUMNS * 128 + i * 32) / 16);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_hold(d);
#pragma unroll
            for (int i = 0; i < R; i++) {
                float sum[2] = {0.0f, 0.0f};
                float *to = k.score + (first + i) * k.ld + p0 + r;

#pragma unroll
                for (int j = 0; j < H / 8; j++) {
                    float2 w = *(const float2 *)(s->w + i * H + j * 8 + lane % 4 * 2);
                    const float *x = d + (i * H / 8 + j) * 4;

                    sum[0] = fmaf(w.x, relu(x[0] * k.scale), sum[0]);
                    sum[0] = fmaf(w.y, relu(x[1] * k.scale), sum[0]);
                    sum[1] = fmaf(w.x, relu(x[2] * k.scale), sum[1]);
                    sum[1] = fmaf(w.y, relu(x[3] * k.scale), sum[1]);
                }
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
                    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
                    if (lane % 4 == i % 4 && i >= a && i < z && p0 + r + 8 * half <= s->pos[i])
                        to[8 * half] = sum[half];
                }
            }
            __syncthreads(); /* this tile's keys are read: the next but one may come */
        }
    }
#endif
}

int index_wgmma_takes(const struct call *c, const struct index_job *k)
{
    return wgmma_there(c->cuda) && k->q.type == CAIRN_BF16 && k->D == WIDTH && (k->H == 16 || k->H == 32 || k->H == 64) &&
           k->keys.S <= INT32_MAX && arg_align(&k->q) == 16 && arg_align(&k->keys.rows) == 16;
}

#define ROOM_BYTES(COLUMNS) (4 * HALF_KEYS + 2 * (COLUMNS)*128 + 4 * (COLUMNS) + 8 * ROWS_MOST)

void index_wgmma(struct call *c, const struct index_job *k, int64_t n, int64_t rows)
{
    int few = rows <= 2 * c->cuda->sms; /* not worth sharing keys: only time depends on it */
    int per = few ? 1 : 128 / k->H;
    dim3 grid((unsigned)ceil_div(keys_longest(&k->keys), STRETCH * INDEX_KEYS), (unsigned)ceil_div(rows, per));

#define TILES(HEADS, COLUMNS)                                                                                                      \
    do {                                                                                                                           \
        call_cuda(c, cudaFuncSetAttribute(scores_tiles<HEADS, COLUMNS>, cudaFuncAttributeMaxDynamicSharedMemorySize,               \
                                          ROOM_BYTES(COLUMNS)), "shared memory");                                                  \
        LAUNCH(c, (scores_tiles<HEADS, COLUMNS>), grid, THREADS, ROOM_BYTES(COLUMNS), *k, n, (int)rows);                           \
    } while (0)
    if (k->H == 16 && few)
        TILES(16, 16);
    else if (k->H == 16)
        TILES(16, 128);
    else if (k->H == 32 && few)
        TILES(32, 32);
    else if (k->H == 32)
        TILES(32, 128);
    else if (few)
        TILES(64, 64);
    else
        TILES(64, 128);
#undef TILES
}
