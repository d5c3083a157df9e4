/* gemm.c - packing, register tiles and blocking of gemm.h. The blocking follows K. Goto and R. van de Geijn, "Anatomy of
 * high-performance matrix multiplication", ACM TOMS 34 (2008), but for one thing: k is never split between accumulators.
 */
#include "gemm.h"

#define KC 512 /* k's of one packed block */
#define NC 128 /* columns of one packed block: KC * NC floats stay in L2 */
#define MC 128 /* rows whose sums are kept aside when k takes more than one block */

/* ---- register tiles ------------------------------------------------------------------------------------------------ */

VINLINE void tile(const int m, const int nv, int64_t k, const float *a, int64_t a_m, int64_t a_k, const float *b, int64_t ldb,
                  float *out, int64_t ldo, int go_on)
{
    v16 acc[TILE_M][2];

#pragma GCC unroll 8
    for (int r = 0; r < m; r++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            acc[r][v] = go_on ? v16_load(out + r * ldo + v * VL) : v16_set(0.0f);
    for (int64_t i = 0; i < k; i++) {
        v16 bv[2];

#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            bv[v] = v16_load(b + v * VL);
#pragma GCC unroll 8
        for (int r = 0; r < m; r++) {
            v16 av = v16_set(a[r * a_m]);

#pragma GCC unroll 2
            for (int v = 0; v < nv; v++)
                acc[r][v] = v16_fma(av, bv[v], acc[r][v]);
        }
        a += a_k;
        b += ldb;
    }
#pragma GCC unroll 8
    for (int r = 0; r < m; r++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            v16_store(out + r * ldo + v * VL, acc[r][v]);
}

#define TILE_CASE(M)                                                                                                               \
    case M:                                                                                                                        \
        if (nv == 2 && TILE_PAIR)                                                                                                  \
            tile(M, 2, k, a, a_m, a_k, b, ldb, out, ldo, go_on);                                                                   \
        else                                                                                                                       \
            for (int v = 0; v < nv; v++)                                                                                           \
                tile(M, 1, k, a, a_m, a_k, b + v * VL, ldb, out + v * VL, ldo, go_on);                                             \
        break;

#ifdef __AVX512F__
#define TILE_PAIR 1 /* 32 registers of 16: 8 x 2 sums */
#else
#define TILE_PAIR 0 /* 16 registers of 8: 6 x 1 sums of two registers each */
#endif

void gemm_tile(int m, int nv, int64_t k, const float *a, int64_t a_m, int64_t a_k, const float *b, int64_t ldb, float *out,
               int64_t ldo, int go_on)
{
    switch (m) {
        TILE_CASE(1)
        TILE_CASE(2)
        TILE_CASE(3)
        TILE_CASE(4)
        TILE_CASE(5)
        TILE_CASE(6)
#if TILE_M == 8
        TILE_CASE(7)
        TILE_CASE(8)
#endif
    }
}

/* ---- packing --------------------------------------------------------------------------------------------------------- */

#ifdef __AVX512F__
/* 16 rows of 16 floats, transposed. */
VINLINE void transpose16(const float *const *rows, int64_t k, float *panel, int64_t ldp)
{
    __m512 r[16], t[16];

#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        r[i] = _mm512_loadu_ps(rows[i] + k);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[4 * i] = (__m512)_mm512_unpacklo_pd((__m512d)t[4 * i], (__m512d)t[4 * i + 2]);
        r[4 * i + 1] = (__m512)_mm512_unpackhi_pd((__m512d)t[4 * i], (__m512d)t[4 * i + 2]);
        r[4 * i + 2] = (__m512)_mm512_unpacklo_pd((__m512d)t[4 * i + 1], (__m512d)t[4 * i + 3]);
        r[4 * i + 3] = (__m512)_mm512_unpackhi_pd((__m512d)t[4 * i + 1], (__m512d)t[4 * i + 3]);
    }
    /* r[4g + c] holds column 4q + c of rows 4g .. 4g+3 in its 128-bit part q */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512 a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88), b = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
        __m512 d = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd), e = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);

        _mm512_storeu_ps(panel + (k + c) * ldp, _mm512_shuffle_f32x4(a, b, 0x88));
        _mm512_storeu_ps(panel + (k + 8 + c) * ldp, _mm512_shuffle_f32x4(a, b, 0xdd));
        _mm512_storeu_ps(panel + (k + 4 + c) * ldp, _mm512_shuffle_f32x4(d, e, 0x88));
        _mm512_storeu_ps(panel + (k + 12 + c) * ldp, _mm512_shuffle_f32x4(d, e, 0xdd));
    }
}
#endif

void gemm_transpose(const float *const *rows, int n, int64_t k, float *panel, int64_t ldp)
{
    int64_t i = 0;

#ifdef __AVX512F__
    if (n == 16)
        for (; i + 16 <= k; i += 16)
            transpose16(rows, i, panel, ldp);
#endif
    for (; i < k; i++) {
        for (int j = 0; j < n; j++)
            panel[i * ldp + j] = rows[j][i];
        for (int j = n; j < VL; j++)
            panel[i * ldp + j] = 0.0f;
    }
}

/* Columns n0 .. n0+n (n <= 32) of B, k's k0 .. k0+k, as panel[k][32], padded by zeros. */
static void pack_panel(const struct gemm *g, int64_t n0, int n, int64_t k0, int64_t k, float *panel)
{
    if (g->b_type == CAIRN_F32 && g->b_k == 1) {
        for (int h = 0; h < TILE_N; h += VL) {
            const float *rows[VL];
            int count = n - h < 0 ? 0 : n - h > VL ? VL : n - h;

            for (int j = 0; j < count; j++)
                rows[j] = (const float *)g->b + (n0 + h + j) * g->b_n + k0;
            gemm_transpose(rows, count, k, panel + h, TILE_N);
        }
        return;
    }
    for (int64_t i = 0; i < k; i++) {
        int64_t at = (k0 + i) * g->b_k + n0 * g->b_n;
        float *row = panel + i * TILE_N;

        if (g->b_type == CAIRN_F32)
            for (int j = 0; j < n; j++)
                row[j] = ((const float *)g->b)[at + j * g->b_n];
        else
            for (int j = 0; j < n; j++)
                row[j] = bf16_to_f32(((const uint16_t *)g->b)[at + j * g->b_n]);
        for (int j = n; j < TILE_N; j++)
            row[j] = 0.0f;
    }
}

/* Rows m0 .. m0+m of A as f32 in [TILE_M][KC]. */
static void convert_rows(const struct gemm *g, int64_t m0, int m, int64_t k0, int64_t k, float *out)
{
    for (int r = 0; r < m; r++) {
        const uint16_t *src = (const uint16_t *)g->a + (m0 + r) * g->a_m + k0 * g->a_k;

        for (int64_t i = 0; i < k; i++)
            out[r * KC + i] = bf16_to_f32(src[i * g->a_k]);
    }
}

/* ---- results ------------------------------------------------------------------------------------------------------------ */

/* Sums of a rows x cols piece at (m0, n0), row stride ld, go to C. */
static void store(const struct gemm *g, int64_t m0, int64_t m, int64_t n0, int64_t n, const float *sum, int64_t ld)
{
    for (int64_t r = 0; r < m; r++) {
        float *c = g->c + (m0 + r) * g->c_m + n0 * g->c_n;
        const float *s = sum + r * ld;

        if (g->c_n == 1) {
            int64_t j = 0;

            for (; j < n; j += VL) {
                int64_t w = n - j < VL ? n - j : VL;
                v16 x = w == VL ? v16_load(s + j) : v16_loadn(s + j, w, 0.0f);

                if (g->alpha != 1.0f)
                    x = x * v16_set(g->alpha);
                if (g->accumulate)
                    x = (w == VL ? v16_load(c + j) : v16_loadn(c + j, w, 0.0f)) + x;
                if (w == VL)
                    v16_store(c + j, x);
                else
                    v16_storen(c + j, x, w);
            }
        } else {
            for (int64_t j = 0; j < n; j++) {
                float x = g->alpha != 1.0f ? s[j] * g->alpha : s[j];

                c[j * g->c_n] = g->accumulate ? c[j * g->c_n] + x : x;
            }
        }
    }
}

/* The value that C holds, as the start of a sum. */
static void fetch(const struct gemm *g, int64_t m0, int64_t m, int64_t n0, int64_t n, float *sum, int64_t ld)
{
    for (int64_t r = 0; r < m; r++)
        for (int64_t j = 0; j < n; j++)
            sum[r * ld + j] = g->c[(m0 + r) * g->c_m + (n0 + j) * g->c_n];
}

/* ---- blocking ------------------------------------------------------------------------------------------------------------- */

struct room {
    float *panels; /* KC x NC */
    float *rows;   /* TILE_M x KC */
    float *tile;   /* TILE_M x TILE_N */
    float *sums;   /* levels of MC x NC */
};

static int levels_of(int segments)
{
    int n = 1;

    while (segments > 1) {
        segments /= 2;
        n++;
    }
    return n;
}

size_t gemm_scratch_bytes(int segments)
{
    return sizeof(float) * (KC * NC + TILE_M * KC + TILE_M * TILE_N + (size_t)levels_of(segments) * MC * NC);
}

/* One block of k for the rectangle m0..m1, n0..n1 (at most NC columns). To `sums` (leading dimension NC) if given, else the sums
 * are complete and go to C. */
static void block(const struct gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, int64_t k0, int64_t k, float *sums,
                  int go_on, const struct room *w)
{
    int direct = g->b_n == 1 && g->b_type == CAIRN_F32;
    int64_t packed = 0; /* panels packed: those in use are either direct or packed, told apart by width */

    for (int64_t n = n0; n < n1; n += TILE_N, packed++) {
        int cols = n1 - n < TILE_N ? (int)(n1 - n) : TILE_N;

        if (!(direct && cols == TILE_N && m1 - m0 <= 64))
            pack_panel(g, n, cols, k0, k, w->panels + packed * KC * TILE_N);
    }
    for (int64_t m = m0; m < m1; m += TILE_M) {
        int rows = m1 - m < TILE_M ? (int)(m1 - m) : TILE_M;
        const float *a;
        int64_t a_m = g->a_m, a_k = g->a_k;

        if (g->a_type == CAIRN_F32) {
            a = (const float *)g->a + m * a_m + k0 * a_k;
        } else {
            convert_rows(g, m, rows, k0, k, w->rows);
            a = w->rows;
            a_m = KC;
            a_k = 1;
        }
        packed = 0;
        for (int64_t n = n0; n < n1; n += TILE_N, packed++) {
            int cols = n1 - n < TILE_N ? (int)(n1 - n) : TILE_N, nv = cols > VL ? 2 : 1;
            int in_place = direct && cols == TILE_N && m1 - m0 <= 64;
            const float *b = in_place ? (const float *)g->b + k0 * g->b_k + n : w->panels + packed * KC * TILE_N;
            int64_t ldb = in_place ? g->b_k : TILE_N;

            if (sums) {
                gemm_tile(rows, nv, k, a, a_m, a_k, b, ldb, sums + (m - m0) * NC + (n - n0), NC, go_on);
            } else if (cols == TILE_N && g->c_n == 1 && !g->accumulate && g->alpha == 1.0f) {
                gemm_tile(rows, nv, k, a, a_m, a_k, b, ldb, g->c + m * g->c_m + n, g->c_m, go_on);
            } else {
                if (go_on)
                    fetch(g, m, rows, n, cols, w->tile, TILE_N);
                gemm_tile(rows, nv, k, a, a_m, a_k, b, ldb, w->tile, TILE_N, go_on);
                store(g, m, rows, n, cols, w->tile, TILE_N);
            }
        }
    }
}

/* A rectangle of at most MC x NC whose k takes several blocks or segments. */
static void long_sum(const struct gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const struct room *w)
{
    int64_t len = g->k / g->segments;
    int level = 0;

    for (int s = 0; s < g->segments; s++) {
        float *sums = w->sums + (int64_t)level * MC * NC;

        if (g->chain)
            fetch(g, m0, m1 - m0, n0, n1 - n0, sums, NC);
        for (int64_t k = 0; k < len; k += KC)
            block(g, m0, m1, n0, n1, s * len + k, len - k < KC ? len - k : KC, sums, g->chain || k > 0, w);
        level++;
        /* the tree: segment s closes as many pairs as s + 1 has trailing zero bits */
        for (int done = s + 1; done % 2 == 0; done /= 2) {
            float *left = w->sums + (int64_t)(level - 2) * MC * NC, *right = left + MC * NC;

            for (int64_t i = 0; i < (m1 - m0) * NC; i += VL)
                v16_store(left + i, v16_load(left + i) + v16_load(right + i));
            level--;
        }
    }
    store(g, m0, m1 - m0, n0, n1 - n0, w->sums, NC);
}

void gemm_part(const struct gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, void *scratch)
{
    struct room w = {.panels = scratch};

    w.rows = w.panels + KC * NC;
    w.tile = w.rows + TILE_M * KC;
    w.sums = w.tile + TILE_M * TILE_N;
    if (g->k == 0) { /* the empty sum */
        static const float zero[NC];

        if (!g->chain)
            for (int64_t m = m0; m < m1; m++)
                for (int64_t n = n0; n < n1; n += NC)
                    store(g, m, 1, n, n1 - n < NC ? n1 - n : NC, zero, NC);
        return;
    }
    for (int64_t n = n0; n < n1; n += NC) {
        int64_t n_end = n1 - n < NC ? n1 : n + NC;

        if (g->k <= KC && g->segments == 1)
            block(g, m0, m1, n, n_end, 0, g->k, NULL, g->chain, &w);
        else
            for (int64_t m = m0; m < m1; m += MC)
                long_sum(g, m, m1 - m < MC ? m1 : m + MC, n, n_end, &w);
    }
}

void gemm_piece(const struct gemm *g, int t, int pieces, void *scratch)
{
    int64_t panels = (g->n + TILE_N - 1) / TILE_N, tiles = (g->m + TILE_M - 1) / TILE_M, best = INT64_MAX;
    int across = 1, down, i, j; /* pieces of columns and of rows */

    /* the grid whose largest rectangle costs least; packing a column costs about what 16 rows of it do */
    for (int k = 1; k <= pieces; k++)
        if (pieces % k == 0) {
            int64_t cols = (panels + k - 1) / k * TILE_N, rows = (tiles + pieces / k - 1) / (pieces / k) * TILE_M;

            if (cols * (rows + 16) < best) {
                best = cols * (rows + 16);
                across = k;
            }
        }
    down = pieces / across;
    i = t / across;
    j = t % across;
    gemm_part(g, piece_begin(g->m, TILE_M, i, down), piece_begin(g->m, TILE_M, i + 1, down), piece_begin(g->n, TILE_N, j, across),
              piece_begin(g->n, TILE_N, j + 1, across), scratch);
}

struct gemm gemm_product(enum cairn_form form, const float *x, int64_t xs, const void *w, enum cairn_dtype w_type, int64_t ws,
                         float *y, int64_t ys, int64_t n, int64_t k, int64_t o)
{
    struct gemm g = {.a_type = CAIRN_F32, .b_type = w_type, .c = y, .alpha = 1.0f, .segments = 1};

    switch (form) {
    case CAIRN_NT: /* n rows, k reduced, o outputs */
        /* turned round, what is packed is x and not w, but results are scattered: about 32 / k of the work, against 13 / n */
        if (n < o && n * 5 < k * 2) {
            g.m = o, g.n = n, g.k = k;
            g.a = w, g.a_type = w_type, g.a_m = ws, g.a_k = 1;
            g.b = x, g.b_type = CAIRN_F32, g.b_k = 1, g.b_n = xs;
            g.c_m = 1, g.c_n = ys;
            return g;
        }
        g.m = n, g.n = o, g.k = k;
        g.a = x, g.a_m = xs, g.a_k = 1;
        g.b = w, g.b_k = 1, g.b_n = ws;
        break;
    case CAIRN_NN:
        g.m = n, g.n = o, g.k = k;
        g.a = x, g.a_m = xs, g.a_k = 1;
        g.b = w, g.b_k = ws, g.b_n = 1;
        break;
    case CAIRN_TN: /* k = outputs o of x, o = inputs; n reduced */
        g.m = k, g.n = o, g.k = n;
        g.a = x, g.a_m = 1, g.a_k = xs;
        g.b = w, g.b_k = ws, g.b_n = 1;
        break;
    }
    g.c_m = ys, g.c_n = 1;
    return g;
}
