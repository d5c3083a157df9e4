/* logprob.cu - log-probabilities of given tokens and their backward, without the logits: over chunks of wanted rows and of ids.
 *
 * Wanted rows are listed on the device, in order; a chunk of them is gathered, and its products are grouped ones of a single group
 * whose length the device knows: rows that are not wanted cost a launch that finds nothing to do. Memory beside the arguments:
 * LIMIT, or a little more where one row is that long.
 *
 * forward   logits of (rows, ids) f32 by the product that matmul uses; a warp a tile of 256 ids turns them into parts (head.cuh);
 *           after the last ids a warp a row makes the row of its parts.
 * backward  logits again; dl in act beside them; dz (f32) += dl . w, from one chunk of ids to the next inside of a segment,
 * segments by a binary tree; dw += dl^T z, a run of wanted rows at a time. Chunks of ids depend on V, D and segments alone. Floor:
 * 2 N V D / matrix rate forward, three times that backward (two for a frozen head).
 */
#include "head.cuh"
#include "product.h"

#define LIMIT  ((int64_t)62 << 20) /* with the lists below 64 MiB */
#define ROWS   1024                /* wanted rows of a chunk, forward */
#define IDS    8192                /* ids of one */
#define ROWS_B 2048                /* backward: three products that are about square, so that each fills a GPU in one round */
#define IDS_B  2048

struct head {
    struct arg z, w, target;
    int64_t N, D, V;
    float scale;
    struct head_cut cut;
    int64_t rows, ids; /* of a chunk */
    int64_t pitch;     /* elements from one row of logits or dl to the next */
    int32_t *list;     /* (N) wanted rows, ascending; then those that are not */
    int32_t *bounds;   /* (2) for each chunk of rows: 0, wanted rows in it */
    unsigned char *zc; /* (rows, D) gathered, act */
    float *logits;     /* (rows, pitch) */
};

/* ---- who is wanted ----------------------------------------------------------------------------------------------------------- */

/* One block: wanted rows to the front of list; bounds of the chunks. */
__global__ void __launch_bounds__(1024) list_wanted(const int32_t *target, int64_t N, int64_t V, int32_t *list, int32_t *bounds,
                                                    int64_t rows, int chunks, struct fault *fault, int op)
{
    __shared__ int warp_total[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t before = 0;

    for (int64_t n0 = 0; n0 < N; n0 += 1024) {
        int64_t n = n0 + threadIdx.x;
        int32_t t = n < N ? target[n] : -1;
        int wanted = t >= 0 && t < V, rank, total = 0, mine = 0;
        unsigned all = __ballot_sync(0xffffffffu, wanted);

        if (t < -1 || t >= V)
            fault_set(fault, (enum cuda_op)op, FAULT_TARGET, t);
        rank = __popc(all & ((1u << lane) - 1));
        if (lane == 0)
            warp_total[warp] = __popc(all);
        __syncthreads();
        for (int w = 0; w < 32; w++) {
            mine += w < warp ? warp_total[w] : 0;
            total += warp_total[w];
        }
        if (wanted)
            list[before + mine + rank] = (int32_t)n;
        before += total;
        __syncthreads();
    }
    for (int c = threadIdx.x; c < chunks; c += 1024) {
        int64_t left = before - c * rows;

        bounds[2 * c] = 0;
        bounds[2 * c + 1] = (int32_t)(left < 0 ? 0 : left < rows ? left : rows);
    }
}

/* to[r] = from[list[r]] for r below *count; block a row */
template <typename T>
__global__ void gather(const T *from, int64_t stride, int64_t D, const int32_t *list, const int32_t *count, T *to)
{
    if ((int)blockIdx.x < *count)
        for (int64_t d = threadIdx.x; d < D; d += blockDim.x)
            to[blockIdx.x * D + d] = from[list[blockIdx.x] * stride + d];
}

/* ---- forward ------------------------------------------------------------------------------------------------------------------
 */

struct forward_out {
    float *logprob, *lse, *entropy;
    int32_t *argmax;
};

/* Rows that are not wanted */
__global__ void set_unwanted(const int32_t *target, int64_t N, int64_t V, struct forward_out o)
{
    int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (n >= N || (target[n] >= 0 && target[n] < V))
        return;
    o.logprob[n] = o.lse[n] = 0.0f;
    if (o.entropy)
        o.entropy[n] = 0.0f;
    if (o.argmax)
        o.argmax[n] = -1;
}

/* Warp a tile, 8 tiles a block, grid (tiles / 8, rows). logits begin at id `id0`, tile t0. at[r]: x of the row's target. */
__global__ void __launch_bounds__(256)
    row_parts(const float *logits, int64_t pitch, int64_t id0, struct head_cut cut, int t0, int t1, float scale,
              const int32_t *list, const int32_t *count, const int32_t *target, struct head_part *part, float *at, int want_entropy)
{
    int t = t0 + (int)blockIdx.x * 8 + threadIdx.x / 32, r = blockIdx.y, lane = threadIdx.x % 32, length;
    int64_t first, wanted;
    struct head_part p;
    float x[8];

    if (r >= *count || t >= t1)
        return;
    first = head_tile(cut, t, &length);
    head_load(logits + r * pitch + (first - id0), length, scale, x);
    p = head_part_of(x, first, length, want_entropy);
    if (lane == 0)
        part[(int64_t)r * cut.tiles + t] = p;
    wanted = target[list[r]] - first;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (wanted == 64 * (i / 2) + 2 * lane + i % 2 && wanted < length)
            at[r] = x[i];
}

/* Warp a row */
__global__ void __launch_bounds__(128) rows_of_parts(const struct head_part *part, struct head_cut cut, const float *at,
                                                     const int32_t *list, const int32_t *count, struct forward_out o)
{
    int r = (int)blockIdx.x * 4 + threadIdx.x / 32;
    struct head_row row;
    int32_t n;

    if (r >= *count)
        return;
    row = head_row_of(part + (int64_t)r * cut.tiles, cut, o.entropy != NULL);
    n = list[r];
    if (threadIdx.x % 32)
        return;
    o.logprob[n] = __fsub_rn(at[r], row.lse);
    o.lse[n] = row.lse;
    if (o.entropy)
        o.entropy[n] = row.entropy;
    if (o.argmax)
        o.argmax[n] = row.argmax;
}

/* ---- both directions ------------------------------------------------------------------------------------------------------------
 */

static void head_args(struct call *c, struct head *h, const struct cairn_tensor *z, const struct cairn_tensor *w,
                      const struct cairn_tensor *target, int segments)
{
    h->N = h->D = h->V = -1;
    h->z = call_arg(c, "z", z, STRIDED | T_ACT, 2, &h->N, &h->D);
    h->w = call_arg(c, "w", w, STRIDED | T_WEIGHT, 2, &h->V, &h->D);
    h->target = call_arg(c, "target", target, T_I32, 1, &h->N);
    if (call_ok(c) && (segments < 1 || segments > 4096 || (segments & (segments - 1)) || h->V < 1 || h->V % segments))
        call_fail(c, "vocabulary of %lld in %d segments", (long long)h->V, segments);
    if (call_ok(c))
        h->cut = head_cut(h->V, segments);
}

static void *carve(unsigned char **room, int64_t bytes)
{
    void *p = *room;

    *room += round_up(bytes, 256);
    return p;
}

/* Lists the wanted rows; h->list and h->bounds are carved. */
static void head_list(struct call *c, struct head *h, enum cuda_op op)
{
    LAUNCH(c, list_wanted, 1, 1024, 0, i32(&h->target), h->N, h->V, h->list, h->bounds, h->rows, (int)ceil_div(h->N, h->rows),
           c->cuda->d_fault, (int)op);
}

static void head_gather(struct call *c, const struct head *h, int64_t chunk)
{
    const int32_t *list = h->list + chunk * h->rows, *count = h->bounds + 2 * chunk + 1;

    ON_ACT(h->z.type, T,
           LAUNCH(c, gather<T>, (unsigned)h->rows, 128, 0, (const T *)h->z.p, h->z.s[0], h->D, list, count, (T *)h->zc));
}

static const void *rows_of_w(const struct head *h, int64_t id)
{
    return (const char *)h->w.p + (size_t)(id * h->w.s[0]) * cairn_dtype_size(h->w.type);
}

/* A product over the wanted rows of a chunk. */
static struct product head_product(const struct call *c, const struct head *h, int64_t chunk, enum cairn_form form, enum cuda_op op)
{
    struct product p = {};

    p.form = form;
    p.offsets = h->bounds + 2 * chunk;
    p.open_end = 1;
    p.batch = 1;
    p.op = op;
    p.fault = c->cuda->d_fault;
    p.alpha = 1;
    p.b_bf16 = h->w.type == CAIRN_BF16;
    return p;
}

/* Logits of ids id0 .. id1 */
static void head_logits(struct call *c, const struct head *h, int64_t chunk, int64_t id0, int64_t id1, enum cuda_op op)
{
    struct product p = head_product(c, h, chunk, CAIRN_NT, op);

    p.a = h->zc, p.as = h->D, p.a_bf16 = h->z.type == CAIRN_BF16;
    p.b = rows_of_w(h, id0), p.bs = h->w.s[0];
    p.y = h->logits, p.ys = h->pitch;
    p.m = h->rows, p.n = id1 - id0, p.k = h->D;
    product_run(c, &p, 1, NULL);
}

extern "C" enum cairn_status cairn_logprob_cuda(struct cairn_stream *s, const struct cairn_logprob *a, struct cairn_error *err)
{
    struct call c = call_begin("logprob", s, err);
    struct head h = {};
    struct arg logprob, lse, entropy, argmax;

    head_args(&c, &h, &a->z, &a->w, &a->target, a->segments);
    logprob = call_arg(&c, "logprob", &a->logprob, OUT | T_F32, 1, &h.N);
    lse = call_arg(&c, "lse", &a->lse, OUT | T_F32, 1, &h.N);
    entropy = call_arg(&c, "entropy", &a->entropy, OUT | ABSENT | T_F32, 1, &h.N);
    argmax = call_arg(&c, "argmax", &a->argmax, OUT | ABSENT | T_I32, 1, &h.N);
    if (call_ok(&c) && h.N) {
        int64_t act = (int64_t)cairn_dtype_size(h.z.type), chunks, per_row;
        struct forward_out o = {f32(&logprob), f32(&lse), f32(&entropy), i32(&argmax)};
        struct head_part *part;
        unsigned char *room;
        float *at;
        int tiles;

        h.scale = a->inv_temperature;
        h.rows = h.N < ROWS ? h.N : ROWS;
        per_row = h.cut.tiles * (int64_t)sizeof *part + h.D * act;
        while (h.rows > 128 && h.rows * (per_row + 4 * HEAD_TILE) > LIMIT)
            h.rows /= 2;
        h.ids = (LIMIT - h.rows * per_row) / (4 * h.rows);
        h.ids = h.ids > IDS ? h.ids / IDS * IDS : h.ids / HEAD_TILE * HEAD_TILE;
        if (h.ids < HEAD_TILE)
            h.ids = HEAD_TILE;
        h.pitch = round_up(h.ids < h.V ? h.ids : h.V, 8);
        chunks = ceil_div(h.N, h.rows);
        room = (unsigned char *)call_scratch(&c, (size_t)(h.rows * (h.pitch * 4 + per_row + 4) + h.N * 4 + chunks * 8 + 6 * 256));
        if (room) {
            h.logits = (float *)carve(&room, h.rows * h.pitch * 4);
            part = (struct head_part *)carve(&room, h.rows * h.cut.tiles * (int64_t)sizeof *part);
            h.zc = (unsigned char *)carve(&room, h.rows * h.D * act);
            at = (float *)carve(&room, h.rows * 4);
            h.list = (int32_t *)carve(&room, h.N * 4);
            h.bounds = (int32_t *)carve(&room, chunks * 8);
            head_list(&c, &h, OP_logprob);
            LAUNCH(&c, set_unwanted, (unsigned)ceil_div(h.N, 256), 256, 0, i32(&h.target), h.N, h.V, o);
            for (int64_t i = 0; i < chunks; i++) {
                const int32_t *list = h.list + i * h.rows, *count = h.bounds + 2 * i + 1;

                head_gather(&c, &h, i);
                for (int t0 = 0; t0 < h.cut.tiles; t0 += tiles) {
                    int length;
                    int64_t id0 = head_tile(h.cut, t0, &length), id1 = id0 + length;

                    for (tiles = 1; t0 + tiles < h.cut.tiles; tiles++) {
                        int64_t first = head_tile(h.cut, t0 + tiles, &length);

                        if (first + length - id0 > h.pitch)
                            break;
                        id1 = first + length;
                    }
                    head_logits(&c, &h, i, id0, id1, OP_logprob);
                    LAUNCH(&c, row_parts, dim3((unsigned)ceil_div(tiles, 8), (unsigned)h.rows), 256, 0, h.logits, h.pitch, id0,
                           h.cut, t0, t0 + tiles, h.scale, list, count, i32(&h.target), part, at, o.entropy != NULL);
                }
                LAUNCH(&c, rows_of_parts, (unsigned)ceil_div(h.rows, 4), 128, 0, part, h.cut, at, list, count, o);
            }
        }
    }
    return call_end(&c);
}

/* ---- backward -------------------------------------------------------------------------------------------------------------------
 */

struct upstream {
    const float *lse, *entropy, *dlogprob, *dentropy;
    const int32_t *target;
};

/* dl of ids id0 .. id0 + width; thread four ids, grid (width / 1024, rows). pitch is a multiple of 8. */
template <typename T>
__global__ void __launch_bounds__(256) logit_gradient(const float *logits, T *dl, int64_t pitch, int64_t id0, int64_t width,
                                                      float scale, const int32_t *list, const int32_t *count, struct upstream u)
{
    int64_t v = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4, to;
    int r = blockIdx.y, n;
    float lse, g, ge = 0.0f, entropy = 0.0f, x[4];

    if (r >= *count || v >= width)
        return;
    to = r * pitch + v;
    if (v + 3 < width) {
        float4 l = *(const float4 *)(logits + to);

        x[0] = l.x, x[1] = l.y, x[2] = l.z, x[3] = l.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = v + i < width ? logits[to + i] : 0.0f;
    }
    n = list[r];
    lse = u.lse[n], g = u.dlogprob[n];
    if (u.dentropy)
        ge = u.dentropy[n], entropy = u.entropy[n];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float at = __fsub_rn(__fmul_rn(x[i], scale), lse), p = expf(at);
        float d = __fmul_rn(g, u.target[n] == id0 + v + i ? __fsub_rn(1.0f, p) : -p);

        if (u.dentropy) /* below -104 p is 0 */
            d = fmaf(-__fmul_rn(ge, p), __fadd_rn(at < -104.0f ? -104.0f : at, entropy), d);
        x[i] = __fmul_rn(d, scale);
    }
    if (v + 3 < width && sizeof(T) == 2) {
        *(uint2 *)(dl + to) = make_uint2(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]));
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (v + i < width)
                st(dl + to + i, x[i]);
    }
}

__global__ void add_rows(float *to, const float *from, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        to[i] = __fadd_rn(to[i], from[i]);
}

/* Block a row */
template <typename T>
__global__ void scatter(const float *from, int64_t D, const int32_t *list, const int32_t *count, T *to, int64_t stride)
{
    if ((int)blockIdx.x < *count)
        for (int64_t d = threadIdx.x; d < D; d += blockDim.x)
            st(to + list[blockIdx.x] * stride + d, from[blockIdx.x * D + d]);
}

template <typename T> __global__ void zero_unwanted(const int32_t *target, int64_t V, T *to, int64_t stride, int64_t D)
{
    int32_t t = target[blockIdx.x];

    if (t < 0 || t >= V)
        for (int64_t d = threadIdx.x; d < D; d += blockDim.x)
            st(to + blockIdx.x * stride + d, 0.0f);
}

struct backward {
    struct head h;
    struct upstream u;
    struct arg dz, dw;
    unsigned char *dl;       /* (rows, pitch) act */
    float *sum[HEAD_LEVELS]; /* (rows, D) dz of a segment, and of the subtrees before it */
};

/* Ids id0 .. id1 of a chunk of rows: dl, into sum (begin: its first ids), into dw. */
static void backward_ids(struct call *c, const struct backward *k, int64_t chunk, int64_t id0, int64_t id1, float *sum, int begin)
{
    const struct head *h = &k->h;
    const int32_t *list = h->list + chunk * h->rows, *count = h->bounds + 2 * chunk + 1;
    struct product p;

    head_logits(c, h, chunk, id0, id1, OP_logprob_bwd);
    ON_ACT(h->z.type, T,
           LAUNCH(c, logit_gradient<T>, dim3((unsigned)ceil_div(id1 - id0, 1024), (unsigned)h->rows), 256, 0, h->logits, (T *)k->dl,
                  h->pitch, id0, id1 - id0, h->scale, list, count, k->u));
    p = head_product(c, h, chunk, CAIRN_NN, OP_logprob_bwd);
    p.a = k->dl, p.as = h->pitch, p.a_bf16 = h->z.type == CAIRN_BF16;
    p.b = rows_of_w(h, id0), p.bs = h->w.s[0];
    p.y = sum, p.ys = h->D;
    p.m = h->rows, p.n = h->D, p.k = id1 - id0;
    p.accumulate = !begin;
    product_run(c, &p, 1, NULL);
    if (k->dw.p) {
        p = head_product(c, h, chunk, CAIRN_TN, OP_logprob_bwd);
        p.a = k->dl, p.as = h->pitch, p.a_bf16 = p.b_bf16 = h->z.type == CAIRN_BF16;
        p.b = h->zc, p.bs = h->D;
        p.y = f32(&k->dw) + id0 * k->dw.s[0], p.ys = k->dw.s[0];
        p.m = id1 - id0, p.n = h->D, p.k = h->rows;
        p.accumulate = 1;
        product_run(c, &p, 1, NULL);
    }
}

static void backward_rows(struct call *c, const struct backward *k, int64_t chunk)
{
    const struct head *h = &k->h;
    const int32_t *list = h->list + chunk * h->rows, *count = h->bounds + 2 * chunk + 1;
    int level = 0;

    head_gather(c, h, chunk);
    for (int s = 0; s < h->cut.segments; s++) {
        int64_t first = s * h->cut.segment, end = first + h->cut.segment;

        for (int64_t id0 = first; id0 < end; id0 += h->ids)
            backward_ids(c, k, chunk, id0, id0 + h->ids < end ? id0 + h->ids : end, k->sum[level], id0 == first);
        level++;
        for (int done = s + 1; done % 2 == 0; done /= 2) {
            level--;
            LAUNCH(c, add_rows, (unsigned)ceil_div(h->rows * h->D, 256), 256, 0, k->sum[level - 1], k->sum[level], h->rows * h->D);
        }
    }
    ON_ACT(k->dz.type, T, LAUNCH(c, scatter<T>, (unsigned)h->rows, 128, 0, k->sum[0], h->D, list, count, (T *)k->dz.p, k->dz.s[0]));
}

extern "C" enum cairn_status cairn_logprob_bwd_cuda(struct cairn_stream *s, const struct cairn_logprob_bwd *a,
                                                    struct cairn_error *err)
{
    struct call c = call_begin("logprob_bwd", s, err);
    struct backward k = {};
    struct head *h = &k.h;
    struct arg lse, entropy, dlogprob, dentropy;

    head_args(&c, h, &a->z, &a->w, &a->target, a->segments);
    lse = call_arg(&c, "lse", &a->lse, T_F32, 1, &h->N);
    dentropy = call_arg(&c, "dentropy", &a->dentropy, ABSENT | T_F32, 1, &h->N);
    entropy = call_arg(&c, "entropy", &a->entropy, (a->dentropy.buf ? 0 : ABSENT) | T_F32, 1, &h->N);
    dlogprob = call_arg(&c, "dlogprob", &a->dlogprob, T_F32, 1, &h->N);
    k.dz = call_arg(&c, "dz", &a->dz, OUT | STRIDED | T_ACT, 2, &h->N, &h->D);
    k.dw = call_arg(&c, "dw", &a->dw, OUT | ABSENT | STRIDED | T_F32, 2, &h->V, &h->D);
    if (call_ok(&c) && h->N) {
        int64_t act = (int64_t)cairn_dtype_size(h->z.type), chunks, per_row;
        unsigned char *room;
        int levels = 1;

        for (int n = h->cut.segments; n > 1; n /= 2)
            levels++;
        k.u = (struct upstream){f32(&lse), f32(&entropy), f32(&dlogprob), f32(&dentropy), i32(&h->target)};
        h->scale = a->inv_temperature;
        h->ids = h->cut.segment < IDS_B ? h->cut.segment : IDS_B;
        h->pitch = round_up(h->ids, 8);
        per_row = h->pitch * (4 + act) + h->D * (act + 4 * levels);
        h->rows = ROWS_B;
        while (h->rows > 128 && h->rows * per_row > LIMIT)
            h->rows /= 2;
        if (h->rows > h->N)
            h->rows = h->N;
        chunks = ceil_div(h->N, h->rows);
        room = (unsigned char *)call_scratch(&c, (size_t)(h->rows * per_row + h->N * 4 + chunks * 8 + (levels + 6) * 256));
        if (room) {
            h->logits = (float *)carve(&room, h->rows * h->pitch * 4);
            k.dl = (unsigned char *)carve(&room, h->rows * h->pitch * act);
            h->zc = (unsigned char *)carve(&room, h->rows * h->D * act);
            for (int i = 0; i < levels; i++)
                k.sum[i] = (float *)carve(&room, h->rows * h->D * 4);
            h->list = (int32_t *)carve(&room, h->N * 4);
            h->bounds = (int32_t *)carve(&room, chunks * 8);
            head_list(&c, h, OP_logprob_bwd);
            ON_ACT(k.dz.type, T,
                   LAUNCH(&c, zero_unwanted<T>, (unsigned)h->N, 128, 0, i32(&h->target), h->V, (T *)k.dz.p, k.dz.s[0], h->D));
            for (int64_t i = 0; i < chunks; i++)
                backward_rows(&c, &k, i);
        }
    }
    return call_end(&c);
}
