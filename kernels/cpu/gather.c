/* gather.c - see gather.h. */
#include "gather.h"

size_t gather_bytes(int64_t T, int64_t W)
{
    return (size_t)(T * round_up(W, VL) + round_up(T, TILE_N) * W) * sizeof(float) + (size_t)round_up(T, VL) * sizeof(int32_t);
}

void gather_init(struct gather *g, int64_t T, int64_t W, void *room)
{
    *g = (struct gather){.W = W, .ldw = round_up(W, VL), .T = T, .seq = -1, .rows = room};
    g->panels = g->rows + T * g->ldw;
    g->idx = (int32_t *)(g->panels + round_up(T, TILE_N) * W);
}

void gather_keys(struct gather *g, const struct keys *k, int64_t seq, const int32_t *idx, int64_t count)
{
    int64_t from = 0;

    if (seq == g->seq)
        while (from < count && from < g->count && idx[from] == g->idx[from])
            from++;
    for (int64_t j = from; j < count; j++) {
        float *row = g->rows + j * g->ldw;

        memcpy(row, key_at(k, seq, idx[j]), (size_t)g->W * sizeof *row);
        for (int64_t c = g->W; c < g->ldw; c++)
            row[c] = 0.0f;
        g->idx[j] = idx[j];
    }
    for (int64_t j = from; j < count;) {
        int64_t base = j / VL * VL, end = base + VL < count ? base + VL : count;
        float *panel = g->panels + j / TILE_N * TILE_N * g->W;

        if (end - j < 3 && j > base) {
            for (; j < end; j++)
                for (int64_t c = 0; c < g->W; c++)
                    panel[c * TILE_N + j % TILE_N] = g->rows[j * g->ldw + c];
        } else {
            const float *rows[VL];

            for (int64_t i = base; i < end; i++)
                rows[i - base] = g->rows + i * g->ldw;
            gemm_transpose(rows, (int)(end - base), g->W, panel + base % TILE_N, TILE_N);
        }
        j = end;
    }
    g->seq = seq;
    g->count = count;
}

void gather_products(const struct gather *g, const float *q, int64_t q_h, int64_t heads, int64_t width, float *l, int64_t ldl)
{
    for (int64_t s = 0; s < g->count; s += TILE_N)
        for (int64_t h = 0; h < heads; h += TILE_M)
            gemm_tile((int)(heads - h < TILE_M ? heads - h : TILE_M), g->count - s > VL ? 2 : 1, width, q + h * q_h, q_h, 1,
                      g->panels + s * g->W, TILE_N, l + h * ldl + s, ldl, 0);
}

void gather_sums(const struct gather *g, const float *p, int64_t ldp, int64_t heads, int64_t width, float *o, int64_t ldo)
{
    for (int64_t c = 0; c < width; c += TILE_N)
        for (int64_t h = 0; h < heads; h += TILE_M)
            gemm_tile((int)(heads - h < TILE_M ? heads - h : TILE_M), width - c > VL ? 2 : 1, g->count, p + h * ldp, ldp, 1,
                      g->rows + c, g->ldw, o + h * ldo + c, ldo, 0);
}
