/* product_mma.cu - products of bf16 operands by mma.sync.m16n8k16, for any strides, alignments and sizes.
 *
 * Block of WM x WN warps, tile BM x BN, 64 terms a stage, STAGES stages of cp.async in shared memory; rows of shared memory are
 * padded by 16 bytes, so that ldmatrix meets no bank twice. A sum is one chain of mma over k ascending, 16 terms a step; what is
 * missing of the last 16 is 0. Neither tile nor stage has a say in its bits. The 16 x 16 tile is for few rows and few columns: one
 * warp streams 16 rows of weights; 16 x 64: so do four that share the rows. Floor: bytes of B / memory bandwidth, or k/16 dependent
 * mma.
 */
#include "mma.cuh"
#include "product.cuh"

#define BK 64

/* A stage of one operand. ALONG_K: shared [ROWS][BK], rows are rows of y or columns of it; else shared [BK][ROWS]. Bytes a row: */
template <int ROWS, bool ALONG_K> struct stage {
    static constexpr int wide = ALONG_K ? BK : ROWS, high = ALONG_K ? ROWS : BK, pitch = wide * 2 + 16, bytes = pitch * high;
};

/* Fetches terms k .. k+BK of rows row0 .. row0+ROWS; what lies beyond `rows` or `k1` is 0. */
template <int ROWS, bool ALONG_K, int THREADS>
__device__ static inline void fetch(unsigned char *to, const bf16 *from, int64_t stride, int64_t row0, int64_t rows, int64_t k,
                                    int64_t k1, int wide)
{
    typedef stage<ROWS, ALONG_K> S;
    constexpr int chunks = S::wide / 8;

#pragma unroll
    for (int i = 0; i < (S::high * chunks + THREADS - 1) / THREADS; i++) {
        int t = threadIdx.x + i * THREADS, line = t / chunks, at = t % chunks * 8;
        int64_t row = (ALONG_K ? row0 : k) + line, col = (ALONG_K ? k : row0) + at, lines = ALONG_K ? rows : k1,
                end = ALONG_K ? k1 : rows;
        int n = 0;

        if (S::high * chunks % THREADS && t >= S::high * chunks)
            break;
        if (row < lines && col < end)
            n = end - col < 8 ? (int)(end - col) : 8;
        if (wide && n % 8 == 0) {
            copy16(shared_address(to + line * S::pitch + at * 2), n ? from + row * stride + col : from, n);
        } else {
            bf16 *s = (bf16 *)(to + line * S::pitch) + at;
            const bf16 *g = from + row * stride + col;

#pragma unroll
            for (int j = 0; j < 8; j++)
                s[j] = j < n ? g[j] : __float2bfloat16_rn(0.0f);
        }
    }
}

template <int BM, int BN, int WM, int WN, int STAGES, int FORM>
__global__ void __launch_bounds__(WM *WN * 32) mma_tile(const struct product p)
{
    constexpr bool A_ALONG_K = FORM != CAIRN_TN, B_ALONG_K = FORM == CAIRN_NT;
    constexpr int THREADS = WM * WN * 32, TM = BM / WM, TN = BN / WN;
    typedef stage<BM, A_ALONG_K> SA;
    typedef stage<BN, B_ALONG_K> SB;
    extern __shared__ __align__(16) unsigned char shared[];
    struct tile t = tile_of_block(p, BM, BN);
    const bf16 *a = (const bf16 *)p.a + t.a, *b = (const bf16 *)p.b + t.b;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, m0 = warp / WN * TM, n0 = warp % WN * TN;
    int64_t steps = t.k1 > t.k0 ? (t.k1 - t.k0 + BK - 1) / BK : 0;
    float sum[TM / 16][TN / 8][4] = {};

    if (!t.live || (p.accumulate && !steps))
        return;
#define FETCH(step)                                                                                                                \
    do {                                                                                                                           \
        if ((step) < steps) {                                                                                                      \
            unsigned char *s = shared + (step) % STAGES * (SA::bytes + SB::bytes);                                                 \
            int64_t k = t.k0 + (int64_t)(step)*BK;                                                                                 \
            fetch<BM, A_ALONG_K, THREADS>(s, a, p.as, t.row0, t.row1, k, t.k1, p.wide);                                            \
            fetch<BN, B_ALONG_K, THREADS>(s + SA::bytes, b, p.bs, t.col0, p.n, k, t.k1, p.wide);                                   \
        }                                                                                                                          \
        copy_commit();                                                                                                             \
    } while (0)
    for (int64_t i = 0; i < STAGES - 1; i++)
        FETCH(i);
    for (int64_t i = 0; i < steps; i++) {
        const unsigned char *s = shared + i % STAGES * (SA::bytes + SB::bytes);
        uint32_t sa = shared_address(s), sb = shared_address(s + SA::bytes);

        copy_wait<STAGES - 2>();
        __syncthreads();
        FETCH(i + STAGES - 1);
#pragma unroll
        for (int k = 0; k < BK; k += 16) {
            uint32_t fa[TM / 16][4], fb[TN / 16][4];
            int mat = lane / 8, r = lane % 8;

#pragma unroll
            for (int x = 0; x < TM / 16; x++)
                if (A_ALONG_K)
                    ldmatrix4(fa[x], sa + (m0 + x * 16 + mat % 2 * 8 + r) * SA::pitch + (k + mat / 2 * 8) * 2);
                else
                    ldmatrix4_trans(fa[x], sa + (k + mat / 2 * 8 + r) * SA::pitch + (m0 + x * 16 + mat % 2 * 8) * 2);
#pragma unroll
            for (int x = 0; x < TN / 16; x++)
                if (B_ALONG_K)
                    ldmatrix4(fb[x], sb + (n0 + x * 16 + mat / 2 * 8 + r) * SB::pitch + (k + mat % 2 * 8) * 2);
                else
                    ldmatrix4_trans(fb[x], sb + (k + mat % 2 * 8 + r) * SB::pitch + (n0 + x * 16 + mat / 2 * 8) * 2);
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
            int64_t r = t.row0 + m0 + x * 16 + half * 8 + lane / 4, col = t.col0 + n0;

            put_row<TN / 8>(p, t.y + r * p.ys + col, r < t.row1, p.n - col, &sum[x][0][half * 2]);
        }
}

#define RUN(BM, BN, WM, WN, STAGES, FORM)                                                                                          \
    PRODUCT_TILES(c, p, (mma_tile<BM, BN, WM, WN, STAGES, FORM>), BM, BN, WM *WN * 32,                                             \
                  (STAGES * (stage<BM, FORM != CAIRN_TN>::bytes + stage<BN, FORM == CAIRN_NT>::bytes)))

#define RUN_FORM(BM, BN, WM, WN, STAGES)                                                                                           \
    do {                                                                                                                           \
        if (p->form == CAIRN_NT)                                                                                                   \
            RUN(BM, BN, WM, WN, STAGES, CAIRN_NT);                                                                                 \
        else if (p->form == CAIRN_NN)                                                                                              \
            RUN(BM, BN, WM, WN, STAGES, CAIRN_NN);                                                                                 \
        else                                                                                                                       \
            RUN(BM, BN, WM, WN, STAGES, CAIRN_TN);                                                                                 \
    } while (0)

void product_mma(struct call *c, const struct product *p, int tile)
{
    switch (tile) {
    case 0:
        RUN_FORM(16, 16, 1, 1, 8);
        break;
    case 1:
        RUN_FORM(16, 64, 1, 4, 6);
        break;
    case 2:
        RUN_FORM(32, 32, 2, 2, 6);
        break;
    case 3:
        RUN_FORM(64, 64, 2, 2, 4);
        break;
    default:
        RUN_FORM(128, 128, 2, 4, 3);
    }
}
