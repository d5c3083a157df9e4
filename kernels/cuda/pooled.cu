/* pooled.cu - keys of the indexer's pools, a channel a thread, and chosen pools as positions, a place a thread. Floor: 2 N*D read
 * and N*D / m written.
 */
#include "runs.cuh"

#define MOST 32

struct pooled {
    struct runs r;
    const int32_t *start, *pages;
    int64_t D, ks, gs, os, S, B, P;
    int m, page, a_bf16;
    struct fault *fault;
};

/* Row of pool p of sequence b; -1 and a fault if there is none. */
__device__ static inline int64_t pool_row(const struct pooled *k, int b, int64_t p)
{
    int64_t row = -1;

    if (b < k->B && k->pages && p / k->page < k->P)
        row = (int64_t)k->pages[b * k->P + p / k->page] * k->page + p % k->page;
    else if (b < k->B && !k->pages)
        row = k->start[b] + p;
    if (row < 0 || row >= k->S) {
        fault_set(k->fault, OP_pool_keys, FAULT_POSITION, p);
        return -1;
    }
    return row;
}

/* Row blockIdx.x, if it closes a pool. */
template <typename T>
__global__ void __launch_bounds__(128)
    pool_rows(struct pooled k, const T *key, const T *gate, const void *ape, const T *tail, T *out)
{
    const int64_t d = (int64_t)blockIdx.y * 128 + threadIdx.x, n = blockIdx.x;
    float most = -INFINITY, sum = 0.0f, y = 0.0f;
    int p, b;
    int64_t row;

    if (d >= k.D || !*k.r.count)
        return;
    p = k.r.pos[n], b = k.r.seq[n];
    if ((p + 1) % k.m)
        return;
    row = pool_row(&k, b, p / k.m);
    if (row < 0)
        return;
    for (int pass = 0; pass < 2; pass++)
        for (int r = 0; r < k.m; r++) {
            const int back = k.m - 1 - r;
            const T *kept = tail + ((int64_t)b * k.m + (p - back) % k.m) * 2 * k.D + d;
            const int here = runs_same(&k.r, n, back);
            const float x = ld(here ? gate + (n - back) * k.gs + d : kept + k.D) + ld_any(ape, k.a_bf16, r * k.D + d);

            if (!pass) {
                most = fmaxf(most, x);
            } else {
                const float e = expf(x - most);

                sum += e;
                y = fmaf(e, ld(here ? key + (n - back) * k.ks + d : kept), y);
            }
        }
    st(out + row * k.os + d, y / sum);
}

template <typename T> __global__ void __launch_bounds__(128) pool_tail(struct pooled k, const T *key, const T *gate, T *tail)
{
    const int64_t d = (int64_t)blockIdx.y * 128 + threadIdx.x, n = blockIdx.x;
    T *kept;

    if (d >= k.D || !*k.r.count || (n + k.m < k.r.N && k.r.seq[n + k.m] == k.r.seq[n]))
        return;
    kept = tail + ((int64_t)k.r.seq[n] * k.m + k.r.pos[n] % k.m) * 2 * k.D + d;
    kept[0] = key[n * k.ks + d];
    kept[k.D] = gate[n * k.gs + d];
}

extern "C" enum cairn_status cairn_pool_keys_cuda(struct cairn_stream *s, const struct cairn_pool_keys *a, struct cairn_error *err)
{
    struct call c = call_begin("pool_keys", s, err);
    int64_t N = -1, D = -1, m = -1, S = -1, B = -1, P = -1, tails = -1, two;
    struct arg key = call_arg(&c, "k", &a->k, STRIDED | T_ACT, 2, &N, &D),
               gate = call_arg(&c, "gate", &a->gate, STRIDED | T_ACT, 2, &N, &D),
               ape = call_arg(&c, "ape", &a->ape, T_WEIGHT, 2, &m, &D), tail, rows, pos, seq, start = {}, pages = {};
    struct pooled k = {};
    void *room;

    two = 2 * D;
    tail = call_arg(&c, "tail", &a->tail, OUT | ABSENT | T_ACT, 3, &tails, &m, &two);
    rows = call_arg(&c, "keys.rows", &a->keys.rows, OUT | STRIDED | T_ACT, 2, &S, &D);
    pos = call_arg(&c, "keys.pos", &a->keys.pos, T_I32, 1, &N);
    seq = call_arg(&c, "keys.seq", &a->keys.seq, T_I32, 1, &N);
    if (a->keys.pages.buf)
        pages = call_arg(&c, "keys.pages", &a->keys.pages, T_I32, 2, &B, &P);
    else
        start = call_arg(&c, "keys.start", &a->keys.start, T_I32, 1, &B);
    if (call_ok(&c) && (m < 1 || m > MOST || (pages.p && a->keys.page < 1)))
        call_fail(&c, "pools of %lld, %d a page", (long long)m, a->keys.page);
    if (!call_ok(&c) || !N || !D)
        return call_end(&c);
    room = call_scratch(&c, runs_room(N, tails));
    if (!room)
        return call_end(&c);
    k.r = runs_find(&c, OP_pool_keys, &pos, &seq, N, tails, room);
    k.start = i32(&start), k.pages = i32(&pages);
    k.D = D, k.ks = key.s[0], k.gs = gate.s[0], k.os = rows.s[0], k.S = S, k.B = B, k.P = P;
    k.m = (int)m, k.page = a->keys.page, k.a_bf16 = ape.type == CAIRN_BF16, k.fault = c.cuda->d_fault;
    {
        dim3 grid((unsigned)N, (unsigned)ceil_div(D, 128));

        ON_ACT(
            key.type, T,
            LAUNCH(&c, pool_rows<T>, grid, 128, 0, k, (const T *)key.p, (const T *)gate.p, ape.p, (const T *)tail.p, (T *)rows.p));
        if (tail.p)
            ON_ACT(key.type, T, LAUNCH(&c, pool_tail<T>, grid, 128, 0, k, (const T *)key.p, (const T *)gate.p, (T *)tail.p));
    }
    return call_end(&c);
}

/* Place j of row n: of its chosen pools' positions, its tail, or nothing. */
__global__ void __launch_bounds__(128)
    expand_places(const int32_t *choice, const int32_t *pos, int32_t *idx, int64_t places, int64_t P, int m)
{
    const int64_t W = P * m + m - 1, e = (int64_t)blockIdx.x * 128 + threadIdx.x, n = e / W, j = e % W;
    int64_t whole, chosen = 0;

    if (e >= places)
        return;
    whole = ((int64_t)pos[n] + 1) / m;
    chosen = whole < P ? whole : P; /* so many pools op index has given */
    if (j < chosen * m)
        idx[e] = (int32_t)(choice[n * P + j / m] * m + j % m);
    else
        idx[e] = j - chosen * m < pos[n] + 1 - whole * m ? (int32_t)(whole * m + j - chosen * m) : -1;
}

extern "C" enum cairn_status cairn_pool_expand_cuda(struct cairn_stream *s, const struct cairn_pool_expand *a,
                                                    struct cairn_error *err)
{
    struct call c = call_begin("pool_expand", s, err);
    int64_t N = -1, P = -1, W = -1;
    struct arg choice = call_arg(&c, "choice", &a->choice, T_I32, 2, &N, &P), pos = call_arg(&c, "pos", &a->pos, T_I32, 1, &N),
               idx = call_arg(&c, "idx", &a->idx, OUT | T_I32, 2, &N, &W);

    if (call_ok(&c) && (a->m < 1 || W != P * a->m + a->m - 1))
        call_fail(&c, "%lld pools of %d in %lld positions", (long long)P, a->m, (long long)W);
    if (call_ok(&c) && N && W)
        LAUNCH(&c, expand_places, (unsigned)ceil_div(N * W, 128), 128, 0, i32(&choice), i32(&pos), i32(&idx), N * W, P, a->m);
    return call_end(&c);
}
