/* product_few.cu - NT products of bf16 operands by mma.sync for few rows: decoding, where what counts is how soon weights arrive.
 *
 * Like product_mma.cu in what it computes, and in bits: a sum is one chain of mma over k ascending, 16 terms a step. Unlike it in what
 * a step costs besides: a stage has 128 terms, a thread copies the same place of each of its lines in every stage, so that its
 * addresses are found once and advance by a constant, and where k ends is one comparison. Rows of y are padded by 16 bytes in
 * shared memory, as there. Two blocks or more share a multiprocessor: one has its stages under way while another one starts or ends.
 * Floor: bytes of B / memory bandwidth, or k/16 dependent mma of 33 clocks.
 */
#include "mma.cuh"
#include "product.cuh"
#include "product_few.h"

#define BK    128
#define PITCH (BK * 2 + 16)
#define AT    16 /* copies of 16 bytes that make a line of a stage */

const int product_few_high[PRODUCT_FEW_TILES] = {16, 16, 16, 32, 64, 64, 64}, product_few_wide[PRODUCT_FEW_TILES] = {16, 32, 64, 32, 16, 32, 64};

template <int BM, int BN, int WM, int WN, int STAGES> __global__ void __launch_bounds__(WM *WN * 32) few_tile(const struct product p)
{
    constexpr int THREADS = WM * WN * 32, TM = BM / WM, TN = BN / WN, LINES = BM + BN, COPIES = LINES * AT / THREADS, STAGE = LINES * PITCH;
    static_assert(BM * AT % THREADS == 0 && BN * AT % THREADS == 0 && TM % 16 == 0 && TN % 16 == 0, "each copy is of one operand");
    extern __shared__ __align__(16) unsigned char shared[];
    struct tile t = tile_of_block(p, BM, BN);
    const int line0 = threadIdx.x / AT, at = threadIdx.x % AT * 8, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m0 = warp / WN * TM, n0 = warp % WN * TN, k = (int)(t.k1 - t.k0), steps = (k + BK - 1) / BK;
    const uint32_t ring = shared_address(shared), to = ring + line0 * PITCH + at * 2;
    const bf16 *from[COPIES];
    uint32_t there = 0; /* a bit for each line that exists */
    float sum[TM / 16][TN / 8][4] = {};

    if (!t.live)
        return;
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        int line = line0 + i * (THREADS / AT);

        if (i < BM * AT / THREADS) {
            int64_t row = t.row0 + line;

            there |= (uint32_t)(row < t.row1) << i;
            from[i] = (const bf16 *)p.a + t.a + (row < t.row1 ? row : t.row0) * p.as + t.k0 + at;
        } else {
            int64_t col = t.col0 + line - BM;

            there |= (uint32_t)(col < p.n) << i;
            from[i] = (const bf16 *)p.b + t.b + (col < p.n ? col : t.col0) * p.bs + t.k0 + at;
        }
    }
/* Stage `step` into its place of the ring; from[] goes to the next stage. Nothing is read behind k. */
#define FETCH(step)                                                                                                                \
    do {                                                                                                                           \
        if ((step) < steps) {                                                                                                      \
            const int inside = (step)*BK + at < k;                                                                                 \
            uint32_t place = to + (step) % STAGES * STAGE;                                                                         \
                                                                                                                                   \
            _Pragma("unroll") for (int i = 0; i < COPIES; i++)                                                                     \
            {                                                                                                                      \
                copy16(place + i * (THREADS / AT) * PITCH, from[i], inside && there >> i & 1);                                     \
                from[i] += BK;                                                                                                     \
            }                                                                                                                      \
        }                                                                                                                          \
        copy_commit();                                                                                                             \
    } while (0)
    for (int i = 0; i < STAGES - 1; i++)
        FETCH(i);
    for (int i = 0; i < steps; i++) {
        const uint32_t sa = ring + i % STAGES * STAGE, sb = sa + BM * PITCH;
        const int mat = lane / 8, r = lane % 8;

        copy_wait<STAGES - 2>();
        __syncthreads();
        FETCH(i + STAGES - 1);
#pragma unroll
        for (int l = 0; l < BK; l += 16) {
            uint32_t fa[TM / 16][4], fb[TN / 16][4];

#pragma unroll
            for (int x = 0; x < TM / 16; x++)
                ldmatrix4(fa[x], sa + (m0 + x * 16 + mat % 2 * 8 + r) * PITCH + (l + mat / 2 * 8) * 2);
#pragma unroll
            for (int x = 0; x < TN / 16; x++)
                ldmatrix4(fb[x], sb + (n0 + x * 16 + mat / 2 * 8 + r) * PITCH + (l + mat % 2 * 8) * 2);
#pragma unroll
            for (int x = 0; x < TM / 16; x++)
#pragma unroll
                for (int y = 0; y < TN / 8; y++)
                    mma(sum[x][y], fa[x], fb[y / 2][y % 2 * 2], fb[y / 2][y % 2 * 2 + 1]);
        }
    }
#undef FETCH
#pragma unroll
    for (int x = 0; x < TM / 16; x++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int64_t row = t.row0 + m0 + x * 16 + half * 8 + lane / 4, col = t.col0 + n0;

            put_row<TN / 8>(p, t.y + row * p.ys + col, row < t.row1, p.n - col, &sum[x][0][half * 2]);
        }
}

#define BYTES(BM, BN, STAGES) ((BM + BN) * PITCH * STAGES)
#define RUN(BM, BN, WM, WN, STAGES) PRODUCT_TILES(c, p, (few_tile<BM, BN, WM, WN, STAGES>), BM, BN, WM *WN * 32, BYTES(BM, BN, STAGES))

extern "C" int product_few_can(const struct call *c, const struct product *p)
{
    return p->form == CAIRN_NT && p->a_bf16 && p->b_bf16 && p->wide && p->k > 0 && p->part_k % 8 == 0 && p->k % 8 == 0 && p->k < 1 << 30 &&
           c->cuda->shared_max >= BYTES(64, 64, 3) + 1024;
}

extern "C" void product_few(struct call *c, const struct product *p, int tile)
{
    switch (tile) {
    case 0:
        RUN(16, 16, 1, 1, 8);
        break;
    case 1:
        RUN(16, 32, 1, 2, 6);
        break;
    case 2:
        RUN(16, 64, 1, 4, 4);
        break;
    case 3:
        RUN(32, 32, 2, 2, 5);
        break;
    case 4:
        RUN(64, 16, 4, 1, 4);
        break;
    case 5:
        RUN(64, 32, 4, 2, 4);
        break;
    default:
        RUN(64, 64, 4, 2, 3);
    }
}
