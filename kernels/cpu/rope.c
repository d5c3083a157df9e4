/* rope.c - the rotary op with cached tables: cosines and sines of the positions seen so far, for each (theta, R). Tables grow by
 * doubling up to TABLE_MAX positions; beyond, a position's angles are computed where they are needed, to the same bits.
 */
#include <stdlib.h>

#include "base/planted.h"
#include "internal.h"
#include "rope.h"
#include "vec.h"

#define TABLE_MAX (1 << 18)

struct rope_table {
    struct rope_table *next;
    float theta;
    int R;
    int64_t positions;
    float *inv_freq; /* (R/2) */
    float *cs;       /* (positions, R/2, 2): cos, sin */
};

void rope_tables_free(struct rope_table *t)
{
    while (t) {
        struct rope_table *next = t->next;

        free(t->inv_freq);
        free(t->cs);
        free(t);
        t = next;
    }
}

static void angles(const struct rope_table *t, int64_t pos, float *cs)
{
    for (int j = 0; j < t->R / 2; j++)
        rope_cos_sin((float)pos * t->inv_freq[j], cs + 2 * j, cs + 2 * j + 1);
}

/* A table that holds positions 0 .. min(last, TABLE_MAX - 1). NULL without memory. */
static struct rope_table *table_of(struct cpu *d, float theta, int R, int64_t last)
{
    struct rope_table *t = d->rope;
    int64_t want = last + 1 > TABLE_MAX ? TABLE_MAX : last + 1, size;
    float *cs;

    while (t && !(t->theta == theta && t->R == R))
        t = t->next;
    if (!t) {
        t = calloc(1, sizeof *t);
        if (!t)
            return NULL;
        t->theta = theta;
        t->R = R;
        t->inv_freq = malloc((size_t)(R / 2) * sizeof(float));
        if (!t->inv_freq) {
            free(t);
            return NULL;
        }
        for (int j = 0; j < R / 2; j++)
            t->inv_freq[j] = rope_inv_freq(theta, R, j);
        t->next = d->rope;
        d->rope = t;
    }
    if (t->positions >= want)
        return t;
    for (size = t->positions ? t->positions : 64; size < want;)
        size *= 2;
    if (size > TABLE_MAX)
        size = TABLE_MAX;
    cs = realloc(t->cs, (size_t)size * (size_t)R * sizeof(float));
    if (!cs)
        return NULL;
    t->cs = cs;
    for (int64_t p = t->positions; p < size; p++)
        angles(t, p, cs + p * R);
    t->positions = size;
    return t;
}

struct turn {
    struct arg x, y, pos;
    const struct rope_table *t;
    int64_t H, R;
    int inverse;
};

static void turn_rows(void *ctx, int64_t begin, int64_t end, void *scratch)
{
    const struct turn *k = ctx;
    int halves = cairn_planted("rope-halves"), late = cairn_planted("rope-offset");
    float *own = scratch;

    for (int64_t n = begin; n < end; n++) {
        int64_t pos = i32(&k->pos)[n] + late;
        const float *cs = k->t->cs + pos * k->R;

        if (pos >= k->t->positions) {
            angles(k->t, pos, own);
            cs = own;
        }
        for (int64_t h = 0; h < k->H; h++) {
            const float *u = at2(&k->x, n, h);
            float *v = at2(&k->y, n, h);

            for (int64_t j = 0; j < k->R; j += 2) {
                float p = u[halves ? j / 2 : j], q = u[halves ? j / 2 + k->R / 2 : j + 1], si = k->inverse ? -cs[j + 1] : cs[j + 1];

                v[j] = p * cs[j] - q * si;
                v[j + 1] = p * si + q * cs[j];
            }
        }
    }
}

enum cairn_status cairn_rope_cpu(struct cairn_stream *s, const struct cairn_rope *a, struct cairn_error *err)
{
    struct call c = call_begin("rope", s, err);
    int64_t N = -1, H = -1, R = -1, last = -1;
    struct arg x = call_arg(&c, "x", &a->x, STRIDED | T_F32, 3, &N, &H, &R),
               y = call_arg(&c, "y", &a->y, OUT | STRIDED | T_F32, 3, &N, &H, &R), pos = call_arg(&c, "pos", &a->pos, T_I32, 1, &N);
    struct turn k;

    if (call_ok(&c) && R % 2)
        call_fail(&c, "R = %lld is odd", (long long)R);
    for (int64_t n = 0; call_ok(&c) && n < N; n++) {
        if (i32(&pos)[n] < 0)
            call_fail(&c, "position %d of row %lld", i32(&pos)[n], (long long)n);
        if (i32(&pos)[n] > last)
            last = i32(&pos)[n];
    }
    if (!call_ok(&c) || !N || !R)
        return call_end(&c);
    k = (struct turn){x, y, pos, table_of(c.cpu, a->theta, (int)R, last), H, R, a->inverse};
    if (!k.t)
        c.c.st = CAIRN_NOMEM(err);
    call_reserve(&c, (size_t)R * sizeof(float), 0);
    if (call_ok(&c))
        call_share(&c, N, 1, N * H * R, turn_rows, &k);
    return call_end(&c);
}
