/* kda_bwd.c - backward of Kimi delta attention, chunk by chunk from the end of a sequence; a thread takes a whole sequence of a
 * head.
 *
 * With a chunk's state S and rows (kda.h), R the gradient of the state after it, e = R-gradient of what is written (d):
 *     e_s            = R^T key_s + sum_{i>=s} qk_is do_i - sum_{i>s} m_is dv_i    (s descending)
 *     dv_s           = beta_s e_s,      dbeta_s = e_s . gap_s
 *     dqk_is         = do_i . d_s,      dm_is = -dv_i . d_s
 *     dq_i           = prefix_i (S do_i) + sum_{s<=i} dqk_is key_s^i
 *     dk_i (read)    = -prefix_i (S dv_i) + sum_{s<i} dm_is key_s^i
 *     dk_s (written) = sum_{i>=s} (dqk_is q_i + dm_is k_i [i>s]) decayed from s to i, and R d_s decayed to the end
 *     dg_i           = sum_{t>=i} (q_t dq_t + k_t dk_t read - k_t dk_t written) + rows of (state after . R)
 *     R             <- diag(prefix_end) R + sum_i from_q,i do_i^T - from_k,i dv_i^T
 *
 * where key_s^i is key s decayed until row i. States of chunks come again from the inputs: those at every 64th chunk first, then
 * those in between, segment by segment.
 */
#include <string.h>

#include "base/planted.h"
#include "gemm.h"
#include "kda.h"
#include "runs.h"
#include "vec.h"

#define SEGMENT 64 /* chunks */

struct bwd {
    struct kda_in in;
    struct arg d_o, dq, dk, dv, dg, dbeta;
    struct runs r;
    int64_t H, segments; /* of the longest sequence */
};

/* What one chunk's backward works with, all [16][W] but `back` and `end`. */
struct room {
    struct chunk c;
    float *d_o, *dv; /* adjacent: one matrix of 32 rows */
    float *e, *through, *kept, *read, *dq, *running;
    float *end;             /* [W] what ln of the last decay gets from the state after */
    float *panel;           /* [W][32] */
    float *R;               /* [W][W] */
    float *states, *starts; /* [SEGMENT][W][W], [segments][W][W] */
    float dqk[16][16], dm[16][16];
};

static int64_t room_floats(int64_t W, int64_t segments)
{
    return chunk_floats(W) + 9 * CHUNK * W + W + W * TILE_N + W * W * (1 + SEGMENT + segments) + TILE_N;
}

static void room_carve(struct room *m, float *at, int64_t W)
{
    float **rows[] = {&m->d_o, &m->dv, &m->e, &m->through, NULL, &m->kept, &m->read, &m->dq, &m->running};

    chunk_carve(&m->c, at, W);
    at += chunk_floats(W);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++, at += CHUNK * W)
        if (rows[i])
            *rows[i] = at;
    m->end = at, at += W;
    m->panel = at, at += W * TILE_N;
    m->R = at, at += W * W;
    m->states = at, at += SEGMENT * W * W;
    m->starts = at;
}

VINLINE float dot(const float *a, const float *b, int64_t W)
{
    v16 sum = v16_set(0.0f);

    for (int64_t j = 0; j < W; j += VL)
        sum = v16_fma(v16_load(a + j), v16_load(b + j), sum);
    return v16_sum(sum);
}

/* out (rows, W) = x (rows, W) . S^T; out 0 for no S. */
static void times_transposed(const float *x, int rows, const float *S, float *out, int64_t W, float *panel)
{
    if (!S) {
        memset(out, 0, (size_t)(rows * W) * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < W; i += TILE_N) {
        int halves = W - i < TILE_N ? 1 : 2;

        for (int half = 0; half < halves; half++) {
            const float *row[VL];

            for (int r = 0; r < VL; r++)
                row[r] = S + (i + half * VL + r) * W;
            gemm_transpose(row, VL, W, panel + half * VL, TILE_N);
        }
        for (int r = 0; r < rows; r += TILE_M)
            gemm_tile(rows - r < TILE_M ? rows - r : TILE_M, halves, W, x + r * W, W, 1, panel, TILE_N, out + r * W + i, W, 0);
    }
}

/* e, dv and dbeta, from the last row to the first. */
static void written_bwd(const struct bwd *b, struct room *m, int64_t n, int64_t h, int rows, const float *R)
{
    int64_t W = b->in.W;
    struct chunk *c = &m->c;

    memset(m->e, 0, (size_t)(rows * W) * sizeof(float));
    for (int64_t j = 0; R && j < W; j += TILE_N)
        for (int r = 0; r < rows; r += TILE_M)
            gemm_tile(rows - r < TILE_M ? rows - r : TILE_M, W - j < TILE_N ? 1 : 2, W, c->keys + r * W, W, 1, R + j, W,
                      m->e + r * W + j, W, 0);
    for (int s = rows - 1; s >= 0; s--) {
        for (int64_t j = 0; j < W; j += VL) {
            v16 e = v16_load(m->e + s * W + j);

            for (int i = s; i < rows; i++)
                e = v16_fma(v16_set(c->qk[i][s]), v16_load(m->d_o + i * W + j), e);
            for (int i = s + 1; i < rows; i++)
                e = v16_fma(v16_set(-c->m[i][s]), v16_load(m->dv + i * W + j), e);
            v16_store(m->e + s * W + j, e);
            v16_store(m->dv + s * W + j, v16_set(c->beta[s]) * e);
        }
        at1(&b->dbeta, n + s)[h] = dot(m->e + s * W, c->gap + s * W, W);
    }
}

/* m->dq and m->read: gradients of q and of k as it reads, with the keys decaying again; m->kept: of k as it writes. */
static void keys_bwd(struct room *m, int rows, int64_t W)
{
    struct chunk *c = &m->c;

    for (int i = 0; i < rows; i++) {
        memcpy(m->running + i * W, c->k + i * W, (size_t)W * sizeof(float));
        for (int64_t j = 0; j < W; j += VL) {
            v16 p = v16_load(c->prefix + i * W + j), a = v16_load(c->decay + i * W + j);
            v16 dq = p * v16_load(m->through + i * W + j), dk = -p * v16_load(m->through + (CHUNK + i) * W + j);

            for (int s = 0; s < i; s++) {
                v16 key = v16_load(m->running + s * W + j) * a;

                v16_store(m->running + s * W + j, key);
                dq = v16_fma(v16_set(m->dqk[i][s]), key, dq);
                dk = v16_fma(v16_set(m->dm[i][s]), key, dk);
            }
            v16_store(m->dq + i * W + j, v16_fma(v16_set(m->dqk[i][i]), v16_load(c->k + i * W + j), dq));
            v16_store(m->read + i * W + j, dk);
        }
    }
    for (int s = 0; s < rows; s++)
        for (int64_t j = 0; j < W; j += VL) {
            v16 x = v16_load(m->kept + s * W + j);

            for (int i = rows - 1; i >= s; i--) {
                if (i + 1 < rows)
                    x = x * v16_load(c->decay + (i + 1) * W + j);
                x = v16_fma(v16_set(m->dqk[i][s]), v16_load(c->q + i * W + j), x);
                if (i > s)
                    x = v16_fma(v16_set(m->dm[i][s]), v16_load(c->k + i * W + j), x);
            }
            v16_store(m->kept + s * W + j, x);
        }
}

/* dx of x * rho * scale, from d; t: d . (x * rho * scale) */
static void normal_bwd(float *dx, const float *x, const float *d, float rho, float scale, float t, int64_t D)
{
    for (int64_t j = 0; j < D; j += VL) {
        int64_t some = D - j < VL ? D - j : VL;
        v16 u = v16_loadn(x + j, some, 0.0f) * v16_set(rho);

        v16_storen(dx + j, v16_set(rho) * (v16_set(scale) * v16_load(d + j) - u * v16_set(t)), some);
    }
}

/* Everything of the chunk that goes out, from its last row to its first. */
static void rows_out(const struct bwd *b, struct room *m, int64_t n, int64_t h, int rows)
{
    int64_t D = b->in.D, W = b->in.W;
    struct chunk *c = &m->c;

    for (int i = rows - 1; i >= 0; i--) {
        float *dq = m->dq + i * W, *read = m->read + i * W, *kept = m->kept + i * W;
        const float *q = c->q + i * W, *k = c->k + i * W;

        for (int64_t j = 0; j < W; j += VL) {
            int64_t some = D - j < VL ? D - j : VL;
            v16 x = v16_load(k + j), y = v16_load(read + j), z = v16_load(kept + j), end = v16_load(m->end + j);

            end = end + v16_fma(v16_load(q + j), v16_load(dq + j), cairn_planted("kda-bwd-decay-sign") ? x * (y + z) : x * (y - z));
            v16_store(m->end + j, end);
            v16_store(kept + j, y + z);
            if (some > 0) {
                v16_storen(at2(&b->dg, n + i, h) + j, end, some);
                v16_storen(at2(&b->dv, n + i, h) + j, v16_load(m->dv + i * W + j), some);
            }
        }
        normal_bwd(at2(&b->dq, n + i, h), at2(&b->in.q, n + i, h), dq, c->rho_q[i], b->in.scale, dot(dq, q, W), D);
        normal_bwd(at2(&b->dk, n + i, h), at2(&b->in.k, n + i, h), kept, c->rho_k[i], 1.0f, dot(kept, k, W), D);
    }
}

/* R <- gradient of the state before the chunk; R absent before (last chunk): zero. */
static void state_bwd(struct room *m, int rows, int some, int64_t W)
{
    const struct chunk *c = &m->c;
    const float *decay = c->prefix + (rows - 1) * W;

    for (int64_t i = 0; i < W; i++)
        for (int64_t j = 0; j < W; j += VL) {
            v16 x = some ? v16_set(decay[i]) * v16_load(m->R + i * W + j) : v16_set(0.0f);

            for (int s = 0; s < rows; s++) {
                x = v16_fma(v16_set(c->from[(CHUNK + s) * W + i]), v16_load(m->d_o + s * W + j), x);
                x = v16_fma(v16_set(-c->from[s * W + i]), v16_load(m->dv + s * W + j), x);
            }
            v16_store(m->R + i * W + j, x);
        }
}

/* One chunk: rows n .. n + rows. S: state before it or NULL. some: m->R is there. */
static void chunk_bwd(const struct bwd *b, struct room *m, int64_t n, int64_t h, int rows, const float *S, int some)
{
    int64_t D = b->in.D, W = b->in.W;
    struct chunk *c = &m->c;

    for (int i = 0; i < rows; i++) {
        chunk_enter(c, &b->in, n + i, h, i, 1);
        for (int64_t j = 0; j < W; j += VL)
            v16_store(m->d_o + i * W + j, v16_loadn(at2(&b->d_o, n + i, h) + j, D - j < VL ? D - j : VL, 0.0f));
    }
    chunk_answer(c, &b->in, n, h, 0, rows, S, NULL, 0);
    written_bwd(b, m, n, h, rows, some ? m->R : NULL);
    for (int i = 0; i < rows; i++)
        for (int s = 0; s <= i; s++) {
            m->dqk[i][s] = dot(m->d_o + i * W, c->d + s * W, W);
            m->dm[i][s] = -dot(m->dv + i * W, c->d + s * W, W);
        }
    times_transposed(m->d_o, rows, S, m->through, W, m->panel);
    times_transposed(m->dv, rows, S, m->through + CHUNK * W, W, m->panel);
    times_transposed(c->d, rows, some ? m->R : NULL, m->kept, W, m->panel);
    for (int64_t j = 0; j < W; j++)
        m->end[j] = S && some ? c->prefix[(rows - 1) * W + j] * dot(S + j * W, m->R + j * W, W) : 0.0f;
    for (int s = 0; s < rows; s++)
        for (int64_t j = 0; j < W; j += VL)
            v16_store(m->end + j, v16_fma(v16_load(c->keys + s * W + j), v16_load(m->kept + s * W + j), v16_load(m->end + j)));
    keys_bwd(m, rows, W);
    rows_out(b, m, n, h, rows);
    if (S)
        state_bwd(m, rows, some, W);
}

/* The state after the full chunk at row n. */
static void chunk_forward(const struct bwd *b, struct room *m, int64_t n, int64_t h, const float *S, float *after)
{
    for (int i = 0; i < CHUNK; i++)
        chunk_enter(&m->c, &b->in, n + i, h, i, 0);
    chunk_answer(&m->c, &b->in, n, h, 0, CHUNK, S, NULL, 0);
    chunk_close(&m->c, S, after, b->in.W);
}

static void sequence_bwd(const struct bwd *b, int64_t run, int64_t h, float *scratch)
{
    int64_t begin = b->r.begin[run], end = b->r.begin[run + 1], chunks = (end - begin + CHUNK - 1) / CHUNK, W = b->in.W,
            size = W * W;
    int64_t segments = (chunks + SEGMENT - 1) / SEGMENT;
    struct room m;

    room_carve(&m, scratch, W);
    for (int64_t i = 0; i < (segments - 1) * SEGMENT; i++) {
        float *now = m.starts + (i + SEGMENT) / SEGMENT * size, *before = i % SEGMENT ? now : i ? now - size : NULL;

        chunk_forward(b, &m, begin + i * CHUNK, h, before, now);
    }
    for (int64_t seg = segments - 1; seg >= 0; seg--) {
        int64_t first = seg * SEGMENT, last = first + SEGMENT < chunks ? first + SEGMENT : chunks;

        if (seg)
            memcpy(m.states, m.starts + seg * size, (size_t)size * sizeof(float));
        for (int64_t i = first; i + 1 < last; i++)
            chunk_forward(b, &m, begin + i * CHUNK, h, i ? m.states + (i - first) * size : NULL, m.states + (i + 1 - first) * size);
        for (int64_t i = last - 1; i >= first; i--) {
            int64_t n = begin + i * CHUNK;

            chunk_bwd(b, &m, n, h, end - n < CHUNK ? (int)(end - n) : CHUNK, i ? m.states + (i - first) * size : NULL,
                      i + 1 < chunks);
        }
    }
}

static void sequences_bwd(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct bwd *b = ctx;

    for (int64_t t = begin; t < end; t++)
        sequence_bwd(b, t / b->H, t % b->H, scratch);
}

enum cairn_status cairn_kda_bwd_cpu(struct cairn_stream *st, const struct cairn_kda_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("kda_bwd", st, err);
    int64_t N = -1, H = -1, D = -1;
    struct bwd b = {.in = {.eps = a->eps, .scale = a->scale}};
    struct arg pos, seq;

    b.in.q = call_arg(&c, "q", &a->q, STRIDED | T_F32, 3, &N, &H, &D);
    b.in.k = call_arg(&c, "k", &a->k, STRIDED | T_F32, 3, &N, &H, &D);
    b.in.v = call_arg(&c, "v", &a->v, STRIDED | T_F32, 3, &N, &H, &D);
    b.in.g = call_arg(&c, "g", &a->g, T_F32, 3, &N, &H, &D);
    b.in.beta = call_arg(&c, "beta", &a->beta, T_F32, 2, &N, &H);
    b.d_o = call_arg(&c, "d_o", &a->d_o, STRIDED | T_F32, 3, &N, &H, &D);
    b.dq = call_arg(&c, "dq", &a->dq, OUT | STRIDED | T_F32, 3, &N, &H, &D);
    b.dk = call_arg(&c, "dk", &a->dk, OUT | STRIDED | T_F32, 3, &N, &H, &D);
    b.dv = call_arg(&c, "dv", &a->dv, OUT | STRIDED | T_F32, 3, &N, &H, &D);
    b.dg = call_arg(&c, "dg", &a->dg, OUT | T_F32, 3, &N, &H, &D);
    b.dbeta = call_arg(&c, "dbeta", &a->dbeta, OUT | T_F32, 2, &N, &H);
    pos = call_arg(&c, "pos", &a->pos, T_I32, 1, &N);
    seq = call_arg(&c, "seq", &a->seq, T_I32, 1, &N);
    if (call_ok(&c) && D % 4)
        call_fail(&c, "D = %lld is no multiple of 4", (long long)D);
    b.H = H, b.in.D = D, b.in.W = round_up(D, VL);
    if (call_ok(&c))
        call_reserve(&c, 0, runs_room(N, -1));
    b.r = runs_find(&c, &pos, &seq, N, -1, scratch_shared(&c));
    for (int64_t i = 0; call_ok(&c) && i < b.r.count; i++) {
        int64_t rows = b.r.begin[i + 1] - b.r.begin[i], segments = (rows + SEGMENT * CHUNK - 1) / (SEGMENT * CHUNK);

        b.segments = segments > b.segments ? segments : b.segments;
    }
    if (call_ok(&c))
        call_reserve(&c, (size_t)room_floats(b.in.W, b.segments) * sizeof(float), runs_room(N, -1));
    if (call_ok(&c))
        call_share(&c, b.r.count * H, 1, N * H * D * (9 * D + 200), sequences_bwd, &b);
    return call_end(&c);
}
