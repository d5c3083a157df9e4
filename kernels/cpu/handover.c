/* handover.c - transfer, tiles and ship by several threads: elements and units are shared out, sums are of integers. The reference
 * is in handover_ref.c. */
#include "handover.h"

#include <string.h>

#include "base/checked.h"
#include "base/digest.h"
#include "convert.h"

#define RUN 2048 /* elements converted at a time */

/* Does a row of n from `at` on, repeated `blocks` times a step apart, stay within N? */
static int inside(int64_t at, int64_t step, int64_t blocks, int64_t n, int64_t N)
{
    int64_t end;

    if (at < 0 || step < 0 || blocks < 0 || n < 0)
        return 0;
    if (!blocks || !n)
        return 1;
    return cairn_mul_i64(blocks - 1, step, &end) && cairn_add_i64(end, at, &end) && cairn_add_i64(end, n, &end) && end <= N;
}

void transfer_check(struct call *c, const struct arg *runs, int64_t X, int64_t Y, int64_t elements)
{
    int64_t sum = 0, n;

    for (int64_t r = 0; call_ok(c) && r < runs->d[0]; r++) {
        const int64_t *k = (const int64_t *)runs->p + r * CAIRN_TRANSFER_RUN;

        if (!inside(k[0], k[1], k[4], k[5], X) || !inside(k[2], k[3], k[4], k[5], Y))
            call_fail(c, "run %lld reaches outside of x (%lld elements) or y (%lld)", (long long)r, (long long)X, (long long)Y);
        else if (k[6] != sum || !cairn_mul_i64(k[4], k[5], &n) || !cairn_add_i64(sum, n, &sum))
            call_fail(c, "run %lld says that %lld elements stand before it", (long long)r, (long long)k[6]);
    }
    if (call_ok(c) && sum != elements)
        call_fail(c, "the runs have %lld elements, not %lld", (long long)sum, (long long)elements);
}

/* Tiles in a row of the run; 0: there are none. */
static int64_t tiles_a_row(const int64_t *k)
{
    return k[3] > 0 ? (k[3] - 1) / k[4] + 1 : 0;
}

static int64_t units_of(const int64_t *k)
{
    int64_t tiles = k[1] * tiles_a_row(k), unit = CAIRN_TILES_UNIT(k[4]);

    return (tiles + unit - 1) / unit;
}

void tiles_check(struct call *c, const struct arg *runs, int64_t X, int64_t units)
{
    int64_t sum = 0;

    for (int64_t r = 0; call_ok(c) && r < runs->d[0]; r++) {
        const int64_t *k = (const int64_t *)runs->p + r * CAIRN_TILES_RUN;

        if (!inside(k[0], k[2], k[1], k[3], X))
            call_fail(c, "run %lld reaches outside of x (%lld bytes)", (long long)r, (long long)X);
        else if (k[4] < 1 || k[4] > 4096)
            call_fail(c, "run %lld has tiles of %lld bytes", (long long)r, (long long)k[4]);
        else if (k[8] != sum)
            call_fail(c, "run %lld says that %lld units stand before it", (long long)r, (long long)k[8]);
        else
            sum += units_of(k);
    }
    if (call_ok(c) && sum != units)
        call_fail(c, "the runs have %lld units, not %lld", (long long)sum, (long long)units);
}

/* The last run that begins at or before i, by the counts in column `column` of rows of `width`. */
static int64_t run_of(const struct arg *runs, int64_t width, int64_t column, int64_t i)
{
    const int64_t *k = runs->p;
    int64_t lo = 0, hi = runs->d[0];

    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;

        if (k[mid * width + column] <= i)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* Tiles in a row of a run of ship, and its units. */
static int64_t ship_row(const int64_t *k)
{
    return k[5] > 0 ? (k[5] - 1) / k[6] + 1 : 0;
}

static int64_t ship_units(const int64_t *k, int64_t size)
{
    int64_t tiles = k[4] * ship_row(k), unit = CAIRN_SHIP_UNIT(k[6] * size);

    return (tiles + unit - 1) / unit;
}

void ship_check(struct call *c, const struct arg *runs, int64_t X, int64_t Y, int64_t size, int64_t units)
{
    int64_t sum = 0;

    for (int64_t r = 0; call_ok(c) && r < runs->d[0]; r++) {
        const int64_t *k = (const int64_t *)runs->p + r * CAIRN_SHIP_RUN;

        if (!inside(k[0], k[1], k[4], k[5], X) || !inside(k[2], k[3], k[4], k[5], Y))
            call_fail(c, "run %lld reaches outside of x (%lld elements) or y (%lld)", (long long)r, (long long)X, (long long)Y);
        else if (k[6] < 1 || k[6] > 4096 / size)
            call_fail(c, "run %lld has tiles of %lld elements", (long long)r, (long long)k[6]);
        else if (k[10] != sum)
            call_fail(c, "run %lld says that %lld units stand before it", (long long)r, (long long)k[10]);
        else
            sum += ship_units(k, size);
    }
    if (call_ok(c) && sum != units)
        call_fail(c, "the runs have %lld units, not %lld", (long long)sum, (long long)units);
}

/* ---- transfer -------------------------------------------------------------------------------------------------------- */

struct move {
    struct arg x, y, runs;
};

static void move_elements(const struct move *m, int64_t from, int64_t to, int64_t n, float *room)
{
    if (m->x.type == m->y.type) {
        size_t size = cairn_dtype_size(m->x.type);

        memcpy((char *)m->y.p + (size_t)to * size, (const char *)m->x.p + (size_t)from * size, (size_t)n * size);
        return;
    }
    for (int64_t i = 0, k; i < n; i += k) {
        k = n - i < RUN ? n - i : RUN;
        to_f32(room, m->x.p, m->x.type, from + i, k);
        from_f32(m->y.p, m->y.type, to + i, room, k);
    }
}

/* Elements begin .. end, counted over all runs */
static void move_part(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct move *m = ctx;

    for (int64_t r = run_of(&m->runs, CAIRN_TRANSFER_RUN, 6, begin); begin < end; r++) {
        const int64_t *k = (const int64_t *)m->runs.p + r * CAIRN_TRANSFER_RUN;
        int64_t last = k[6] + k[4] * k[5] < end ? k[6] + k[4] * k[5] : end;

        while (begin < last) {
            int64_t b = (begin - k[6]) / k[5], i = (begin - k[6]) % k[5], n = k[5] - i < last - begin ? k[5] - i : last - begin;

            move_elements(m, k[0] + b * k[1] + i, k[2] + b * k[3] + i, n, scratch);
            begin += n;
        }
    }
}

enum cairn_status cairn_transfer_cpu(struct cairn_stream *s, const struct cairn_transfer *a, struct cairn_error *err)
{
    struct call c = call_begin("transfer", s, err);
    const int types = T_F32 | T_BF16 | T_F16;
    int64_t X = -1, Y = -1, R = -1, width = CAIRN_TRANSFER_RUN;
    struct move m;

    m.x = call_arg(&c, "x", &a->x, types, 1, &X);
    m.y = call_arg(&c, "y", &a->y, OUT | types, 1, &Y);
    m.runs = call_arg(&c, "runs", &a->runs, T_I64, 2, &R, &width);
    transfer_check(&c, &m.runs, X, Y, a->elements);
    call_reserve(&c, RUN * sizeof(float), 0);
    if (call_ok(&c))
        call_share(&c, a->elements, RUN, a->elements / 2, move_part, &m);
    return call_end(&c);
}

/* ---- tiles ------------------------------------------------------------------------------------------------------------- */

struct sums {
    struct arg x, runs;
    struct cairn_digest *unit; /* one sum a unit */
};

/* Units begin .. end, counted over all runs */
static void sum_part(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct sums *m = ctx;

    (void)scratch;
    for (int64_t r = run_of(&m->runs, CAIRN_TILES_RUN, 8, begin); begin < end; r++) {
        const int64_t *k = (const int64_t *)m->runs.p + r * CAIRN_TILES_RUN;
        int64_t row = tiles_a_row(k), unit = CAIRN_TILES_UNIT(k[4]), last = k[8] + units_of(k) < end ? k[8] + units_of(k) : end;

        for (; begin < last; begin++) {
            struct cairn_digest sum = {0, 0};
            int64_t t = (begin - k[8]) * unit, n = k[1] * row - t < unit ? k[1] * row : t + unit;

            for (; t < n; t++) {
                int64_t b = t / row, at = t % row * k[4];

                sum = cairn_digest_add(sum, cairn_tile_digest((uint64_t)k[5], (uint64_t)(k[6] + b * k[7] + t % row),
                                                              (const char *)m->x.p + k[0] + b * k[2] + at,
                                                              (size_t)(k[3] - at < k[4] ? k[3] - at : k[4])));
            }
            m->unit[begin] = sum;
        }
    }
}

enum cairn_status cairn_tiles_cpu(struct cairn_stream *s, const struct cairn_tiles *a, struct cairn_error *err)
{
    struct call c = call_begin("tiles", s, err);
    int64_t X = -1, R = -1, width = CAIRN_TILES_RUN, two = 2, work = 0;
    struct sums m;
    struct arg out;

    m.x = call_arg(&c, "x", &a->x, T_U8, 1, &X);
    m.runs = call_arg(&c, "runs", &a->runs, T_I64, 2, &R, &width);
    out = call_arg(&c, "out", &a->out, OUT | T_I64, 2, &R, &two);
    tiles_check(&c, &m.runs, X, a->units);
    call_reserve(&c, 0, (size_t)(a->units > 0 ? a->units : 0) * sizeof *m.unit);
    if (!call_ok(&c))
        return call_end(&c);
    m.unit = scratch_shared(&c);
    for (int64_t r = 0; r < R; r++)
        work += ((const int64_t *)m.runs.p)[r * width + 1] * ((const int64_t *)m.runs.p)[r * width + 3];
    call_share(&c, a->units, 1, work / 4, sum_part, &m);
    for (int64_t r = 0; r < R; r++) {
        const int64_t *k = (const int64_t *)m.runs.p + r * width;
        struct cairn_digest sum = {0, 0};

        for (int64_t u = k[8]; u < k[8] + units_of(k); u++)
            sum = cairn_digest_add(sum, m.unit[u]);
        ((int64_t *)out.p)[2 * r] = (int64_t)sum.lo;
        ((int64_t *)out.p)[2 * r + 1] = (int64_t)sum.hi;
    }
    return call_end(&c);
}

/* ---- ship -------------------------------------------------------------------------------------------------------------- */

struct shipping {
    struct move m;
    struct cairn_digest *unit; /* one sum a unit */
};

/* Units begin .. end, counted over all runs */
static void ship_part(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct shipping *p = ctx;
    const int64_t size = (int64_t)cairn_dtype_size(p->m.y.type);

    for (int64_t r = run_of(&p->m.runs, CAIRN_SHIP_RUN, 10, begin); begin < end; r++) {
        const int64_t *k = (const int64_t *)p->m.runs.p + r * CAIRN_SHIP_RUN;
        int64_t row = ship_row(k), unit = CAIRN_SHIP_UNIT(k[6] * size), last = k[10] + ship_units(k, size);

        last = last < end ? last : end;
        for (; begin < last; begin++) {
            struct cairn_digest sum = {0, 0};
            int64_t t = (begin - k[10]) * unit, n = k[4] * row - t < unit ? k[4] * row : t + unit;

            for (; t < n; t++) {
                int64_t b = t / row, c = t % row, at = c * k[6], m = k[5] - at < k[6] ? k[5] - at : k[6], to = k[2] + b * k[3] + at;

                move_elements(&p->m, k[0] + b * k[1] + at, to, m, scratch);
                sum = cairn_digest_add(sum, cairn_tile_digest((uint64_t)k[7], (uint64_t)(k[8] + b * k[9] + c),
                                                              (const char *)p->m.y.p + to * size, (size_t)(m * size)));
            }
            p->unit[begin] = sum;
        }
    }
}

enum cairn_status cairn_ship_cpu(struct cairn_stream *s, const struct cairn_ship *a, struct cairn_error *err)
{
    struct call c = call_begin("ship", s, err);
    const int types = T_F32 | T_BF16 | T_F16;
    int64_t X = -1, Y = -1, R = -1, width = CAIRN_SHIP_RUN, two = 2, work = 0;
    struct cairn_digest sum = {0, 0};
    struct shipping p;
    struct arg out;

    p.m.x = call_arg(&c, "x", &a->x, types, 1, &X);
    p.m.y = call_arg(&c, "y", &a->y, OUT | types, 1, &Y);
    p.m.runs = call_arg(&c, "runs", &a->runs, T_I64, 2, &R, &width);
    out = call_arg(&c, "out", &a->out, OUT | T_I64, 1, &two);
    ship_check(&c, &p.m.runs, X, Y, call_ok(&c) ? (int64_t)cairn_dtype_size(p.m.y.type) : 1, a->units);
    call_reserve(&c, RUN * sizeof(float), (size_t)(a->units > 0 ? a->units : 0) * sizeof *p.unit);
    if (!call_ok(&c))
        return call_end(&c);
    p.unit = scratch_shared(&c);
    for (int64_t r = 0; r < R; r++)
        work += ((const int64_t *)p.m.runs.p)[r * width + 4] * ((const int64_t *)p.m.runs.p)[r * width + 5];
    call_share(&c, a->units, 1, work, ship_part, &p);
    for (int64_t u = 0; u < a->units; u++)
        sum = cairn_digest_add(sum, p.unit[u]);
    ((int64_t *)out.p)[0] = (int64_t)sum.lo;
    ((int64_t *)out.p)[1] = (int64_t)sum.hi;
    return call_end(&c);
}
