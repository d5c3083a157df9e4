/* kda_ref.c - Kimi delta attention and its backward in their scalar form, position by position, in fp64: the recurrence of
 * kernels.h and its derivative, not the chunk algorithm (whose rows of `state` it only keeps up to date).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runs.h"

#define C CAIRN_KDA_CHUNK

/* One head of one row: normalised q and k, decay. rq, rk: 1 / the norms. */
struct row {
    double *q, *k, *decay, rq, rk;
};

static const float *head(const struct arg *a, int64_t n, int64_t h)
{
    return at2(a, n, h);
}

static void row_load(struct row *r, const struct arg *q, const struct arg *k, const struct arg *g, int64_t n, int64_t h, int64_t D,
                     double eps, double scale)
{
    double sq = 0, sk = 0;

    for (int64_t i = 0; i < D; i++) {
        sq += (double)head(q, n, h)[i] * head(q, n, h)[i];
        sk += (double)head(k, n, h)[i] * head(k, n, h)[i];
    }
    r->rq = 1 / sqrt(sq + eps);
    r->rk = 1 / sqrt(sk + eps);
    for (int64_t i = 0; i < D; i++) {
        r->q[i] = head(q, n, h)[i] * r->rq * scale;
        r->k[i] = head(k, n, h)[i] * r->rk;
        r->decay[i] = exp(head(g, n, h)[i]);
    }
}

/* S <- S after this row; d: what was written (D). */
static void advance(const struct row *r, const float *v, double beta, double *S, double *d, int64_t D)
{
    for (int64_t j = 0; j < D; j++) {
        double read = 0;

        for (int64_t i = 0; i < D; i++)
            read += S[i * D + j] * r->decay[i] * r->k[i];
        d[j] = beta * (v[j] - read);
    }
    for (int64_t i = 0; i < D; i++)
        for (int64_t j = 0; j < D; j++)
            S[i * D + j] = S[i * D + j] * r->decay[i] + r->k[i] * d[j];
}

/* S before position p, from the state of its chunk. */
static void state_read(double *S, const float *state, int64_t p, int64_t D)
{
    const float *keys = state + D * D, *written = keys + C * D, *decay = written + C * D;

    for (int64_t i = 0; i < D; i++)
        for (int64_t j = 0; j < D; j++) {
            double x = p >= C ? state[i * D + j] : 0;

            if (p % C)
                x *= decay[i];
            for (int64_t s = 0; s < p % C; s++)
                x += (double)keys[s * D + i] * written[s * D + j];
            S[i * D + j] = p ? x : 0;
        }
}

static void state_write(float *state, const struct row *r, const double *d, const double *S, int64_t p, int64_t D)
{
    float *keys = state + D * D, *written = keys + C * D, *decay = written + C * D;

    for (int64_t s = 0; s < p % C; s++)
        for (int64_t i = 0; i < D; i++)
            keys[s * D + i] = (float)(keys[s * D + i] * r->decay[i]);
    for (int64_t i = 0; i < D; i++) {
        keys[p % C * D + i] = (float)r->k[i];
        written[p % C * D + i] = (float)d[i];
        decay[i] = (float)(p % C ? decay[i] * r->decay[i] : r->decay[i]);
    }
    for (int64_t i = 0; p % C == C - 1 && i < D * D; i++)
        state[i] = (float)S[i];
}

static struct row carve(double **at, int64_t D)
{
    struct row r = {.q = *at, .k = *at + D, .decay = *at + 2 * D};

    *at += 3 * D;
    return r;
}

enum cairn_status cairn_kda_ref(struct cairn_stream *st, const struct cairn_kda *a, struct cairn_error *err)
{
    struct call c = call_begin("kda", st, err);
    int64_t N = -1, H = -1, D = -1, B = -1, rows = -1;
    struct arg q = call_arg(&c, "q", &a->q, STRIDED | T_F32, 3, &N, &H, &D),
               k = call_arg(&c, "k", &a->k, STRIDED | T_F32, 3, &N, &H, &D),
               v = call_arg(&c, "v", &a->v, STRIDED | T_F32, 3, &N, &H, &D), g = call_arg(&c, "g", &a->g, T_F32, 3, &N, &H, &D),
               beta = call_arg(&c, "beta", &a->beta, T_F32, 2, &N, &H),
               o = call_arg(&c, "o", &a->o, OUT | STRIDED | T_F32, 3, &N, &H, &D), pos = call_arg(&c, "pos", &a->pos, T_I32, 1, &N),
               seq = call_arg(&c, "seq", &a->seq, T_I32, 1, &N),
               state = call_arg(&c, "state", &a->state, OUT | ABSENT | T_F32, 4, &B, &H, &rows, &D);
    struct runs r;
    struct row row;
    double *at, *S, *d;

    if (call_ok(&c) && state.p && rows != CAIRN_KDA_ROWS(D))
        call_fail(&c, "state has %lld rows, expected %lld", (long long)rows, (long long)CAIRN_KDA_ROWS(D));
    if (call_ok(&c))
        call_reserve(&c, (size_t)(D * D + 4 * D) * sizeof(double), runs_room(N, B));
    r = runs_find(&c, &pos, &seq, N, B, scratch_shared(&c));
    if (!call_ok(&c))
        return call_end(&c);
    at = c.cpu->scratch[0];
    row = carve(&at, D);
    d = at, S = at + D;
    for (int64_t i = 0; i < r.count; i++)
        for (int64_t h = 0; h < H; h++) {
            float *mine = state.p ? at2(&state, r.seq[r.begin[i]], h) : NULL;

            memset(S, 0, (size_t)(D * D) * sizeof *S);
            if (mine)
                state_read(S, mine, r.pos[r.begin[i]], D);
            for (int64_t n = r.begin[i]; n < r.begin[i + 1]; n++) {
                row_load(&row, &q, &k, &g, n, h, D, a->eps, a->scale);
                advance(&row, head(&v, n, h), at1(&beta, n)[h], S, d, D);
                if (mine)
                    state_write(mine, &row, d, S, r.pos[n], D);
                for (int64_t j = 0; j < D; j++) {
                    double sum = 0;

                    for (int64_t e = 0; e < D; e++)
                        sum += row.q[e] * S[e * D + j];
                    at2(&o, n, h)[j] = (float)sum;
                }
            }
        }
    return call_end(&c);
}

/* dx of xh = x * rho * scale, rho = (sum x^2 + eps)^-1/2, from the gradient d of xh */
static void normal_bwd(float *dx, const float *x, const double *d, double rho, double scale, int64_t D)
{
    double dot = 0;

    for (int64_t i = 0; i < D; i++)
        dot += d[i] * x[i] * rho;
    for (int64_t i = 0; i < D; i++)
        dx[i] = (float)(scale * rho * (d[i] - x[i] * rho * dot));
}

struct bwd {
    struct arg q, k, v, g, beta, d_o, dq, dk, dv, dg, dbeta;
    int64_t D;
    double eps, scale;
};

/* Rows begin .. end, one sequence, one head, backwards. states: S before each row and after the last. R: gradient of S after the
 * row. */
static void sequence_bwd(const struct bwd *b, struct row row, int64_t begin, int64_t end, int64_t h, double *states, double *R,
                         double *d, double *room)
{
    int64_t D = b->D;
    double *dq = room, *dk = dq + D, *dv = dk + D, *dg = dv + D;

    memset(states, 0, (size_t)(D * D) * sizeof *states);
    for (int64_t n = begin; n < end; n++) {
        double *S = states + (n - begin) * D * D;

        memcpy(S + D * D, S, (size_t)(D * D) * sizeof *S);
        row_load(&row, &b->q, &b->k, &b->g, n, h, D, b->eps, b->scale);
        advance(&row, head(&b->v, n, h), at1(&b->beta, n)[h], S + D * D, d, D);
    }
    memset(R, 0, (size_t)(D * D) * sizeof *R);
    for (int64_t n = end - 1; n >= begin; n--) {
        const double *S0 = states + (n - begin) * D * D, *S1 = S0 + D * D;
        const float *v = head(&b->v, n, h), *d_o = head(&b->d_o, n, h);
        double beta = at1(&b->beta, n)[h], dbeta = 0;

        row_load(&row, &b->q, &b->k, &b->g, n, h, D, b->eps, b->scale);
        for (int64_t j = 0; j < D; j++) {
            double dd = 0, read = 0;

            for (int64_t i = 0; i < D; i++) {
                R[i * D + j] += row.q[i] * d_o[j];
                dd += R[i * D + j] * row.k[i];
                read += S0[i * D + j] * row.decay[i] * row.k[i];
            }
            d[j] = beta * (v[j] - read);
            dbeta += dd * (v[j] - read);
            dv[j] = beta * dd;
        }
        for (int64_t i = 0; i < D; i++) {
            dq[i] = dk[i] = dg[i] = 0;
            for (int64_t j = 0; j < D; j++) {
                double held = S0[i * D + j] * row.decay[i];

                dq[i] += S1[i * D + j] * d_o[j];
                dk[i] += R[i * D + j] * d[j] - held * dv[j];
                R[i * D + j] -= row.k[i] * dv[j];
                dg[i] += R[i * D + j] * held;
                R[i * D + j] *= row.decay[i];
            }
        }
        normal_bwd(at2(&b->dq, n, h), head(&b->q, n, h), dq, row.rq, b->scale, D);
        normal_bwd(at2(&b->dk, n, h), head(&b->k, n, h), dk, row.rk, 1, D);
        for (int64_t i = 0; i < D; i++) {
            at2(&b->dv, n, h)[i] = (float)dv[i];
            at2(&b->dg, n, h)[i] = (float)dg[i];
        }
        at1(&b->dbeta, n)[h] = (float)dbeta;
    }
}

enum cairn_status cairn_kda_bwd_ref(struct cairn_stream *st, const struct cairn_kda_bwd *a, struct cairn_error *err)
{
    struct call c = call_begin("kda_bwd", st, err);
    int64_t N = -1, H = -1, D = -1, longest = 0;
    struct bwd b = {.eps = a->eps, .scale = a->scale};
    struct arg pos, seq;
    struct runs r;
    struct row row;
    double *all, *at;

    b.q = call_arg(&c, "q", &a->q, STRIDED | T_F32, 3, &N, &H, &D);
    b.k = call_arg(&c, "k", &a->k, STRIDED | T_F32, 3, &N, &H, &D);
    b.v = call_arg(&c, "v", &a->v, STRIDED | T_F32, 3, &N, &H, &D);
    b.g = call_arg(&c, "g", &a->g, T_F32, 3, &N, &H, &D);
    b.beta = call_arg(&c, "beta", &a->beta, T_F32, 2, &N, &H);
    b.d_o = call_arg(&c, "d_o", &a->d_o, STRIDED | T_F32, 3, &N, &H, &D);
    b.dq = call_arg(&c, "dq", &a->dq, OUT | STRIDED | T_F32, 3, &N, &H, &D);
    b.dk = call_arg(&c, "dk", &a->dk, OUT | STRIDED | T_F32, 3, &N, &H, &D);
    b.dv = call_arg(&c, "dv", &a->dv, OUT | STRIDED | T_F32, 3, &N, &H, &D);
    b.dg = call_arg(&c, "dg", &a->dg, OUT | T_F32, 3, &N, &H, &D);
    b.dbeta = call_arg(&c, "dbeta", &a->dbeta, OUT | T_F32, 2, &N, &H);
    pos = call_arg(&c, "pos", &a->pos, T_I32, 1, &N);
    seq = call_arg(&c, "seq", &a->seq, T_I32, 1, &N);
    b.D = D;
    if (call_ok(&c))
        call_reserve(&c, 0, runs_room(N, -1));
    r = runs_find(&c, &pos, &seq, N, -1, scratch_shared(&c));
    for (int64_t i = 0; call_ok(&c) && i < r.count; i++)
        if (r.begin[i + 1] - r.begin[i] > longest)
            longest = r.begin[i + 1] - r.begin[i];
    if (!call_ok(&c))
        return call_end(&c);
    all = malloc((size_t)((longest + 2) * D * D + 8 * D) * sizeof *all);
    if (!all) {
        c.c.st = CAIRN_NOMEM(err);
        return call_end(&c);
    }
    at = all;
    row = carve(&at, D);
    for (int64_t i = 0; i < r.count; i++)
        for (int64_t h = 0; h < H; h++)
            sequence_bwd(&b, row, r.begin[i], r.begin[i + 1], h, at + 5 * D + D * D, at + 5 * D, at, at + D);
    free(all);
    return call_end(&c);
}
