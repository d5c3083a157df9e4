/* handover_test.c - transfer: every element where its run says, converted or not, nothing else touched; tiles: the sums that
 * libxxhash gives tile by tile, for every length from 1 to 4096 bytes and any alignment; ship: both at once. */
#include "lab.h"

#include "base/digest.h"

#define RUNS 9

static const unsigned char *bytes_of(const struct thing *x, int64_t i)
{
    return x->h + (size_t)i * cairn_dtype_size(x->image);
}

static struct thing *table(struct lab *l, const int64_t *v, int rows, int width)
{
    struct thing *x = thing_new(l, CAIRN_I64, 0, 2, rows, width);

    memcpy(x->h, v, (size_t)rows * (size_t)width * sizeof *v);
    thing_up(l, x);
    return x;
}

/* ---- transfer ------------------------------------------------------------------------------------------------------------ */

static uint32_t converted(const struct thing *x, int64_t i, enum cairn_dtype to)
{
    uint32_t u = 0;
    float f;

    memcpy(&u, bytes_of(x, i), cairn_dtype_size(x->image));
    if (x->image == to)
        return u;
    if (x->image == CAIRN_F32) { /* to bf16 */
        memcpy(&f, &u, sizeof f);
        return lab_bf16(f);
    }
    return u << 16;
}

static void transfer(struct lab *l)
{
    /* x_at, x_step, y_at, y_step, blocks, n, elements before */
    static const int64_t run[RUNS][CAIRN_TRANSFER_RUN] = {
        {0, 0, 8, 0, 1, 1, 0},         {64, 0, 4096, 0, 1, 5000, 1},   {7, 100, 16, 37, 40, 37, 5001},
        {4200, 0, 2000, 0, 1, 0, 6481}, {4201, 0, 2003, 0, 1, 999, 6481}, {4200, 8, 3008, 8, 16, 8, 7480},
        {9000, 3, 10001, 2, 0, 5, 7608}, {5000, 0, 12000, 0, 1, 30011, 7608}, {0, 1, 3200, 1, 100, 1, 37619}};
    static const int64_t wrong[][CAIRN_TRANSFER_RUN] = {{49999, 0, 0, 0, 1, 2, 0},  {0, 0, 49999, 0, 1, 2, 0},
                                                        {-1, 0, 0, 0, 1, 2, 0},     {0, 50000, 0, 1, 2, 1, 0},
                                                        {0, 1, 0, INT64_MAX, 2, 1, 0}, {0, 0, 0, 0, 1, INT64_MAX, 0}};
    static const enum cairn_dtype type[][2] = {
        {CAIRN_F32, CAIRN_BF16}, {CAIRN_F32, CAIRN_F32}, {CAIRN_BF16, CAIRN_BF16}, {CAIRN_BF16, CAIRN_F32}};
    const int64_t N = 50000, elements = 37719;

    for (size_t i = 0; i < sizeof type / sizeof *type; i++)
        for (int shift = 0; shift < 2; shift++) {
            struct thing *x = thing_normal(l, thing_new(l, type[i][0], 0, 1, (int)N + shift), 1), *runs = table(l, run[0], RUNS, CAIRN_TRANSFER_RUN),
                         *y = thing_new(l, type[i][1], 0, 1, (int)N), *want, *bad;
            struct cairn_transfer a = {.x = cairn_tensor_slice(&x->t, 0, shift, N), .y = y->t, .runs = runs->t, .elements = elements};
            size_t size = cairn_dtype_size(type[i][1]);

            memset(x->h + 70 * cairn_dtype_size(type[i][0]), 0xff, 8); /* NaN */
            thing_up(l, x);
            want = thing_like(l, y, 0);
            for (int r = 0; r < RUNS; r++)
                for (int64_t b = 0; b < run[r][4]; b++)
                    for (int64_t k = 0; k < run[r][5]; k++) {
                        uint32_t u = converted(x, shift + run[r][0] + b * run[r][1] + k, type[i][1]);

                        memcpy(want->h + (size_t)(run[r][2] + b * run[r][3] + k) * size, &u, size);
                    }
            for (int reference = 0; reference < 2; reference++) {
                memset(y->h, 0xff, y->bytes);
                thing_up(l, y);
                LAB_OK(l, (reference ? l->ref : l->fast)->transfer(&l->c.stream, &a, &l->err));
                thing_down(l, y);
                for (int64_t k = 0; k < N; k++)
                    if (memcmp(bytes_of(y, k), bytes_of(want, k), size) && !isnan(thing_value(want, k)))
                        fail_msg("%s: %s to %s: element %lld is %.9g, should be %.9g", l->device, cairn_dtype_name(type[i][0]),
                                 cairn_dtype_name(type[i][1]), (long long)k, thing_value(y, k), thing_value(want, k));
            }
            bad = table(l, wrong[0], 1, CAIRN_TRANSFER_RUN);
            a.runs = bad->t;
            for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
                memcpy(bad->h, wrong[w], sizeof *wrong);
                thing_up(l, bad);
                a.elements = wrong[w][5] == INT64_MAX ? INT64_MAX / 4 : wrong[w][4] * wrong[w][5];
                if (l->ref != &lab_mirrored || a.elements < N) /* the device takes the count from the caller */
                    LAB_REFUSES(l, l->fast->transfer(&l->c.stream, &a, &l->err));
            }
            a.elements = 0;
            a.runs.dim[0] = 0;
            LAB_OK(l, l->fast->transfer(&l->c.stream, &a, &l->err));
            lab_clear(l);
        }
}

/* ---- tiles ----------------------------------------------------------------------------------------------------------------- */

static int64_t units_of(const int64_t *k)
{
    int64_t tiles = k[1] * (k[3] ? (k[3] - 1) / k[4] + 1 : 0);

    return (tiles + CAIRN_TILES_UNIT(k[4]) - 1) / CAIRN_TILES_UNIT(k[4]);
}

/* Fills in the counts and compares with the library's sums. */
static void sums_are_right(struct lab *l, struct thing *x, int64_t (*run)[CAIRN_TILES_RUN], int R)
{
    struct thing *runs, *out = thing_new(l, CAIRN_I64, 0, 2, R, 2);
    struct cairn_tiles a = {.x = x->t, .out = out->t};

    for (int r = 0; r < R; r++) {
        run[r][8] = a.units;
        a.units += units_of(run[r]);
    }
    runs = table(l, run[0], R, CAIRN_TILES_RUN);
    a.runs = runs->t;
    for (int reference = 0; reference < 2; reference++) {
        memset(out->h, 0xff, out->bytes);
        thing_up(l, out);
        LAB_OK(l, (reference ? l->ref : l->fast)->tiles(&l->c.stream, &a, &l->err));
        thing_down(l, out);
        for (int r = 0; r < R; r++) {
            const int64_t *k = run[r];
            struct cairn_digest sum = {0, 0};
            const uint64_t *got = (const uint64_t *)out->h + 2 * r;

            for (int64_t b = 0; b < k[1]; b++)
                for (int64_t c = 0; c * k[4] < k[3]; c++)
                    sum = cairn_digest_add(sum, cairn_tile_digest((uint64_t)k[5], (uint64_t)(k[6] + b * k[7] + c), x->h + k[0] + b * k[2] + c * k[4],
                                                                  (size_t)(k[3] - c * k[4] < k[4] ? k[3] - c * k[4] : k[4])));
            if (got[0] != sum.lo || got[1] != sum.hi)
                fail_msg("%s: run %d (%lld rows of %lld bytes in tiles of %lld, at %lld): %016llx%016llx, should be %016llx%016llx", l->device, r,
                         (long long)k[1], (long long)k[3], (long long)k[4], (long long)k[0], (unsigned long long)got[1], (unsigned long long)got[0],
                         (unsigned long long)sum.hi, (unsigned long long)sum.lo);
        }
    }
}

static struct thing *noise(struct lab *l, int n)
{
    struct thing *x = thing_new(l, CAIRN_U8, 0, 1, n);

    for (int i = 0; i < n; i++)
        x->h[i] = (unsigned char)lab_u32(l);
    thing_up(l, x);
    return x;
}

static int64_t seed_of(struct lab *l)
{
    return (int64_t)((uint64_t)lab_u32(l) << 32 | lab_u32(l));
}

/* One tile of every length: all short ones, then steps that meet each border of the algorithm. */
static void every_length(struct lab *l)
{
    enum { MOST = 1200 };
    static int64_t run[MOST][CAIRN_TILES_RUN];
    struct thing *x = noise(l, 4096 + 64);
    int R = 0;

    for (int n = 1; n <= 4096; n += n < 260 || n > 4090 || n % 1024 < 2 || n % 1024 > 1020 ? 1 : 13) {
        const int64_t k[CAIRN_TILES_RUN] = {lab_int(l, 0, 63), 1, 0, n, n, seed_of(l), lab_int(l, 0, 1 << 30), 0, 0};

        assert_true(R < MOST);
        memcpy(run[R++], k, sizeof k);
    }
    sums_are_right(l, x, run, R);
    lab_clear(l);
}

/* As tensors have them: rows of many tiles with a short one at the end, rows of one tile, columns of a wider tensor, nothing. */
static void tensors(struct lab *l)
{
    static int64_t run[][CAIRN_TILES_RUN] = {
        {0, 700, 64, 64, 64, 5, 0, 1, 0},          {64, 33, 8192, 8192, 4096, -7, 0, 2, 0}, {2, 5, 10000, 10000, 4096, 1, 1000, 3, 0},
        {4096, 0, 64, 64, 64, 9, 0, 1, 0},         {128, 9, 8192, 4096, 4096, 3, 2, 4, 0},  {0, 200, 1500, 1500, 1500, 77, 0, 1, 0},
        {64, 1, 0, 0, 4096, 3, 0, 1, 0},           {10, 77, 6, 6, 6, 11, 5, 1, 0},          {4, 300, 192, 192, 192, 13, 0, 1, 0},
        {0, 1, 0, 270336, 4096, 15, 7, 66, 0}, /* one row, many units */
    };
    struct thing *x = noise(l, 300000);

    sums_are_right(l, x, run, (int)(sizeof run / sizeof *run));
    lab_clear(l);
}

static void refusals(struct lab *l)
{
    static const int64_t wrong[][CAIRN_TILES_RUN] = {{0, 2, 64, 64, 64, 0, 0, 0, 0},        {-1, 1, 0, 64, 64, 0, 0, 0, 0},
                                                     {0, 1, 0, 64, 0, 0, 0, 0, 0},          {0, 1, 0, 64, 4097, 0, 0, 0, 0},
                                                     {0, 2, INT64_MAX, 8, 64, 0, 0, 0, 0},  {0, 1, 0, -64, 64, 0, 0, 0, 0}};
    struct thing *x = noise(l, 100), *bad = table(l, wrong[0], 1, CAIRN_TILES_RUN), *out = thing_new(l, CAIRN_I64, 0, 2, 1, 2);
    struct cairn_tiles a = {.x = x->t, .runs = bad->t, .out = out->t, .units = 1};

    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        memcpy(bad->h, wrong[w], sizeof *wrong);
        thing_up(l, bad);
        LAB_REFUSES(l, l->fast->tiles(&l->c.stream, &a, &l->err));
    }
    lab_clear(l);
}

/* ---- ship ------------------------------------------------------------------------------------------------------------------ */

/* x_at, x_step, y_at, y_step, rows, n, tile (elements), seed, first, tile_step; units are filled in. Rows of y have gaps of their
 * own. */
static const int64_t ship_run[][CAIRN_SHIP_RUN] = {
    {0, 2048, 0, 2048, 9, 2048, 2048, -5, 0, 2,
     0}, /* A of an adapter: a tile a row of two bytes an element, two where it has four */
    {18432, 32, 18432, 32, 75, 32, 32, 77, 0, 1, 0},    /* B: short tiles, dense */
    {1, 3000, 20840, 2600, 5, 2600, 1024, 3, 10, 3, 0}, /* rows of several tiles, the last one shorter; nothing aligned */
    {3, 40, 33843, 37, 70, 37, 37, 9, 5, 1, 0},         /* odd widths */
    {7, 0, 36500, 0, 1, 1, 1, 1, 0, 1, 0},              /* one element */
    {11, 50, 36504, 50, 33, 50, 20, 11, 0, 3, 0},       /* short tiles, several a row, the last of them shorter */
    {13, 700, 38200, 512, 3, 509, 300, 2, 7, 2, 0},     /* the last tile of a row is a short one, where an element has two bytes */
    {0, 0, 0, 0, 0, 64, 64, 4, 0, 1, 0},                /* nothing */
    {100, 128, 40000, 200, 40, 121, 121, 8, 0, 1, 0},   /* 242 bytes, or 484 */
    {5, 64, 48001, 64, 21, 60, 60, 6, 0, 1, 0},         /* 120 bytes at odd addresses */
};

static void ship(struct lab *l)
{
    enum { R = sizeof ship_run / sizeof *ship_run };
    static const enum cairn_dtype type[][2] = {
        {CAIRN_F32, CAIRN_BF16}, {CAIRN_F32, CAIRN_F32}, {CAIRN_BF16, CAIRN_BF16}, {CAIRN_BF16, CAIRN_F32}};
    const int64_t N = 50000;

    for (size_t i = 0; i < sizeof type / sizeof *type; i++) {
        const int64_t size = (int64_t)cairn_dtype_size(type[i][1]);
        struct thing *x = thing_normal(l, thing_new(l, type[i][0], 0, 1, (int)N), 1), *y = thing_new(l, type[i][1], 0, 1, (int)N),
                     *out = thing_new(l, CAIRN_I64, 0, 1, 2), *runs, *want;
        struct cairn_ship a = {.x = x->t, .y = y->t, .out = out->t};
        struct cairn_digest sum = {0, 0};
        int64_t run[R][CAIRN_SHIP_RUN];

        thing_up(l, x);
        want = thing_like(l, y, 0);
        memset(want->h, 0xff, want->bytes);
        for (int r = 0; r < R; r++) {
            int64_t *k = run[r], a_row;

            memcpy(k, ship_run[r], sizeof run[r]);
            k[6] = k[6] > 4096 / size ? 4096 / size : k[6];
            a_row = (k[5] - 1) / k[6] + 1;
            k[10] = a.units;
            a.units += (k[4] * a_row + CAIRN_SHIP_UNIT(k[6] * size) - 1) / CAIRN_SHIP_UNIT(k[6] * size);
            for (int64_t b = 0; b < k[4]; b++)
                for (int64_t e = 0; e < k[5]; e++) {
                    uint32_t u = converted(x, k[0] + b * k[1] + e, type[i][1]);

                    memcpy(want->h + (k[2] + b * k[3] + e) * size, &u, (size_t)size);
                }
            for (int64_t b = 0; b < k[4]; b++)
                for (int64_t c = 0; c < a_row; c++)
                    sum = cairn_digest_add(sum,
                                           cairn_tile_digest((uint64_t)k[7], (uint64_t)(k[8] + b * k[9] + c),
                                                             want->h + (k[2] + b * k[3] + c * k[6]) * size,
                                                             (size_t)((k[5] - c * k[6] < k[6] ? k[5] - c * k[6] : k[6]) * size)));
        }
        runs = table(l, run[0], R, CAIRN_SHIP_RUN);
        a.runs = runs->t;
        for (int reference = 0; reference < 2; reference++) {
            const uint64_t *got = (const uint64_t *)out->h;

            memset(y->h, 0xff, y->bytes);
            thing_up(l, y);
            memset(out->h, 0xff, out->bytes);
            thing_up(l, out);
            LAB_OK(l, (reference ? l->ref : l->fast)->ship(&l->c.stream, &a, &l->err));
            thing_down(l, y);
            thing_down(l, out);
            for (int64_t k = 0; k < N; k++)
                if (memcmp(bytes_of(y, k), bytes_of(want, k), (size_t)size))
                    fail_msg("%s: %s to %s: element %lld is %.9g, should be %.9g", l->device, cairn_dtype_name(type[i][0]),
                             cairn_dtype_name(type[i][1]), (long long)k, thing_value(y, k), thing_value(want, k));
            if (got[0] != sum.lo || got[1] != sum.hi)
                fail_msg("%s: %s to %s: sum %016llx%016llx, should be %016llx%016llx", l->device, cairn_dtype_name(type[i][0]),
                         cairn_dtype_name(type[i][1]), (unsigned long long)got[1], (unsigned long long)got[0],
                         (unsigned long long)sum.hi, (unsigned long long)sum.lo);
        }
        a.units = 0;
        a.runs.dim[0] = 0;
        LAB_OK(l, l->fast->ship(&l->c.stream, &a, &l->err));
        thing_down(l, out);
        assert_true(!((const uint64_t *)out->h)[0] && !((const uint64_t *)out->h)[1]);
        lab_clear(l);
    }
}

static void ship_refusals(struct lab *l)
{
    static const int64_t wrong[][CAIRN_SHIP_RUN] = {
        {0, 0, 0, 0, 1, 101, 101, 0, 0, 1, 0}, {-1, 0, 0, 0, 1, 8, 8, 0, 0, 1, 0},   {0, 0, 97, 0, 1, 8, 8, 0, 0, 1, 0},
        {0, 0, 0, 0, 1, 8, 0, 0, 0, 1, 0},     {0, 0, 0, 0, 1, 8, 1025, 0, 0, 1, 0}, {0, INT64_MAX, 0, 1, 2, 8, 8, 0, 0, 1, 0}};
    struct thing *x = thing_normal(l, thing_new(l, CAIRN_F32, 0, 1, 100), 1), *y = thing_new(l, CAIRN_F32, 0, 1, 100),
                 *out = thing_new(l, CAIRN_I64, 0, 1, 2), *bad = table(l, wrong[0], 1, CAIRN_SHIP_RUN);
    struct cairn_ship a = {.x = x->t, .y = y->t, .runs = bad->t, .out = out->t, .units = 1};

    thing_up(l, x);
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        memcpy(bad->h, wrong[w], sizeof *wrong);
        thing_up(l, bad);
        LAB_REFUSES(l, l->fast->ship(&l->c.stream, &a, &l->err));
    }
    lab_clear(l);
}

ON_EACH_DEVICE(transfer)
ON_EACH_DEVICE(every_length)
ON_EACH_DEVICE(tensors)
ON_EACH_DEVICE(refusals)
ON_EACH_DEVICE(ship)
ON_EACH_DEVICE(ship_refusals)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfer_test), cmocka_unit_test(every_length_test), cmocka_unit_test(tensors_test),
        cmocka_unit_test(refusals_test), cmocka_unit_test(ship_test),         cmocka_unit_test(ship_refusals_test),
    };

    return LAB_RUN(tests);
}
