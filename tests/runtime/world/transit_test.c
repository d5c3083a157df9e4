/* transit_test.c - plans are carried out on bytes: what every place holds afterwards is what the whole tensors hold there; each byte once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "world/transit.h"

#define MOST 64

struct scene {
    struct cairn_transit_tensor tensor[MOST];
    struct cairn_transit_part held[MOST * 8], wanted[MOST * 8];
    int tensors, helds, wanteds, holders, places;
    size_t holder_end[8], place_end[8];
    uint32_t draws;
};

static uint32_t draw(struct scene *s, uint32_t n)
{
    const struct cairn_philox_key key = {7, CAIRN_PURPOSE_DATA, 3};
    uint32_t w[4];

    cairn_philox(&key, s->draws++, 0, 0, w);
    return w[0] % n;
}

static int tensor(struct scene *s, const char *name, int ndim, int64_t a, int64_t b, int64_t c)
{
    s->tensor[s->tensors] = (struct cairn_transit_tensor){.name = name, .dtype = CAIRN_BF16, .ndim = ndim, .dim = {a, b, c}, .of = -1};
    return s->tensors++;
}

static void part(struct scene *s, int held, int owner, int t, int axis, int64_t begin, int64_t n)
{
    struct cairn_transit_part *p = held ? &s->held[s->helds++] : &s->wanted[s->wanteds++];
    size_t *end = held ? &s->holder_end[owner] : &s->place_end[owner], bytes = 2;

    *p = (struct cairn_transit_part){.owner = owner, .tensor = t, .dtype = CAIRN_BF16};
    for (int d = 0; d < s->tensor[t].ndim; d++)
        p->local[d] = s->tensor[t].dim[d];
    if (axis >= 0) {
        p->offset[axis] = begin;
        p->local[axis] = n;
    }
    for (int d = 0; d < s->tensor[t].ndim; d++)
        bytes *= (size_t)p->local[d];
    p->at = *end;
    *end += (bytes + 63) / 64 * 64;
    *(held ? &s->holders : &s->places) = owner >= (held ? s->holders : s->places) ? owner + 1 : held ? s->holders : s->places;
}

static int64_t whole_index(const struct cairn_transit_tensor *t, const struct cairn_transit_part *p, int64_t i)
{
    int64_t index[CAIRN_MAX_DIMS] = {0}, g = 0;

    for (int d = t->ndim - 1; d >= 0; d--) {
        index[d] = i % p->local[d] + p->offset[d];
        i /= p->local[d];
    }
    for (int d = 0; d < t->ndim; d++)
        g = g * t->dim[d] + index[d];
    return g;
}

static int64_t part_count(const struct cairn_transit_tensor *t, const struct cairn_transit_part *p)
{
    int64_t n = 1;

    for (int d = 0; d < t->ndim; d++)
        n *= p->local[d];
    return n;
}

static uint16_t value(int tensor, int64_t i)
{
    return (uint16_t)(tensor * 40503 + i * 2654435761u + (i >> 16) * 97);
}

/* Chunks in the order given, through a wire; then every wanted part is looked at. */
static void carry_out(struct scene *s, const struct cairn_transit *p, int backwards)
{
    uint16_t *holder[8] = {0}, *place[8] = {0}, *wire = calloc(1, p->wire_bytes + 64);
    size_t sent = 0;

    assert_non_null(wire);
    memset(wire, 0xAB, p->wire_bytes + 64);
    for (int i = 0; i < s->holders; i++)
        assert_non_null(holder[i] = calloc(1, s->holder_end[i] + 1));
    for (int i = 0; i < s->places; i++)
        assert_non_null(place[i] = calloc(1, s->place_end[i] + 1));
    for (int i = 0; i < s->helds; i++)
        for (int64_t k = 0; k < part_count(&s->tensor[s->held[i].tensor], &s->held[i]); k++)
            holder[s->held[i].owner][s->held[i].at / 2 + (size_t)k] =
                value(s->held[i].tensor, whole_index(&s->tensor[s->held[i].tensor], &s->held[i], k));
    for (int n = 0; n < p->chunks; n++) {
        const struct cairn_transit_chunk *c = &p->chunk[backwards ? p->chunks - 1 - n : n];
        const struct cairn_transit_lane *l = &p->lane[c->lane];
        size_t at;

        sent += c->bytes;
        for (int i = c->piece; i < c->piece + c->pieces; i++) {
            const struct cairn_transit_piece *q = &p->piece[i];

            assert_true(q->wire >= c->wire && q->wire + (size_t)(q->blocks * q->n) * 2 <= c->wire + c->bytes);
            for (int64_t b = 0; b < q->blocks; b++)
                memcpy(wire + q->wire / 2 + b * q->n, holder[l->holder] + q->src / 2 + b * q->src_step, (size_t)q->n * 2);
            for (int k = 0; k < l->places; k++)
                for (int64_t b = 0; b < q->blocks && !cairn_transit_lands(p, c, k, &at); b++)
                    memcpy(place[l->place[k]] + q->drop[k].at / 2 + b * q->drop[k].step, wire + q->wire / 2 + b * q->n, (size_t)q->n * 2);
        }
        for (int k = 0; k < l->places; k++) /* what is said to land is put there as it is on the wire, with what is between the pieces */
            if (cairn_transit_lands(p, c, k, &at))
                memcpy((char *)place[l->place[k]] + at, (char *)wire + c->wire, c->bytes);
    }
    assert_true(sent <= p->wire_bytes && sent + 64 * (size_t)p->pieces >= p->wire_bytes);
    for (int i = 0; i < s->wanteds; i++) {
        int of = s->tensor[s->wanted[i].tensor].of, t = of >= 0 ? of : s->wanted[i].tensor, first = 1;

        for (int j = 0; j < i; j++) /* an alias is brought to where the place wants it first */
            first = first && !(s->wanted[j].owner == s->wanted[i].owner && (s->tensor[s->wanted[j].tensor].of == t || s->wanted[j].tensor == t) &&
                               s->wanted[j].tensor != s->wanted[i].tensor);
        for (int64_t k = 0; first && k < part_count(&s->tensor[t], &s->wanted[i]); k++)
            if (place[s->wanted[i].owner][s->wanted[i].at / 2 + (size_t)k] != value(t, whole_index(&s->tensor[t], &s->wanted[i], k)))
                fail_msg("place %d, %s: element %lld", s->wanted[i].owner, s->tensor[t].name, (long long)k);
    }
    for (int i = 0; i < 8; i++) {
        free(holder[i]);
        free(place[i]);
    }
    free(wire);
}

static struct cairn_transit make(struct scene *s, size_t chunk)
{
    struct cairn_transit p;
    struct cairn_error err;

    if (cairn_transit_create(&p, s->tensor, s->tensors, s->held, s->helds, s->wanted, s->wanteds, chunk, &err) != CAIRN_OK)
        fail_msg("%s", err.text);
    return p;
}

static void model(struct scene *s)
{
    memset(s, 0, sizeof *s);
    tensor(s, "embed", 2, 50, 16, 0);
    tensor(s, "norm", 1, 16, 0, 0);
    tensor(s, "q", 2, 24, 16, 0);
    tensor(s, "experts.gate", 3, 8, 6, 16);
    tensor(s, "experts.down", 3, 8, 16, 6);
    tensor(s, "head", 2, 50, 16, 0);
}

/* One to one: one lane, everything lands, wire and unique bytes are the same. */
static void one_to_one(void **state)
{
    struct scene s;
    struct cairn_transit p;

    (void)state;
    model(&s);
    for (int t = 0; t < s.tensors; t++) {
        part(&s, 1, 0, t, -1, 0, 0);
        part(&s, 0, 0, t, -1, 0, 0);
    }
    for (size_t chunk = 64; chunk < 1 << 20; chunk *= 8) {
        p = make(&s, chunk);
        assert_int_equal(p.lanes, 1);
        assert_true(p.wire_bytes >= p.unique_bytes && p.wire_bytes < p.unique_bytes + 64 * (size_t)s.tensors);
        assert_true(p.named_bytes == p.unique_bytes);
        for (int c = 0; c < p.chunks; c++) {
            size_t at;

            assert_true(cairn_transit_lands(&p, &p.chunk[c], 0, &at));
            assert_true(p.chunk[c].bytes <= chunk || p.chunk[c].pieces == 1);
            if (c == 0 || c == p.chunks - 1) /* the first and the last are small */
                assert_true(p.chunk[c].bytes <= chunk / 8 || p.chunk[c].pieces == 1);
        }
        carry_out(&s, &p, 0);
        carry_out(&s, &p, 1);
        cairn_transit_free(&p);
    }
}

/* Trainer: optimiser state sharded by rows over two ranks; sampler: two replicas whose experts are split over two places each. */
static void shards_to_experts(void **state)
{
    struct scene s;
    struct cairn_transit p;
    size_t wanted = 0;

    (void)state;
    model(&s);
    for (int t = 0; t < s.tensors; t++) {
        int64_t half = s.tensor[t].dim[0] / 2 + 1;

        part(&s, 1, 0, t, 0, 0, half);
        part(&s, 1, 1, t, 0, half, s.tensor[t].dim[0] - half);
        for (int place = 0; place < 4; place++)
            if (s.tensor[t].ndim == 3)
                part(&s, 0, place, t, 0, place % 2 * 4, 4);
            else
                part(&s, 0, place, t, -1, 0, 0);
    }
    for (int t = 0; t < s.tensors; t++)
        wanted +=
            (size_t)(s.tensor[t].dim[0] * (s.tensor[t].ndim > 1 ? s.tensor[t].dim[1] : 1) * (s.tensor[t].ndim > 2 ? s.tensor[t].dim[2] : 1)) * 2;
    p = make(&s, 256);
    assert_true(p.unique_bytes == wanted); /* each byte once, for however many places */
    assert_true(p.wire_bytes < wanted + 64 * (size_t)p.pieces);
    for (int l = 0; l < p.lanes; l++)
        assert_true(p.lane[l].places == 4 || p.lane[l].places == 2);
    carry_out(&s, &p, 0);
    carry_out(&s, &p, 1);
    cairn_transit_free(&p);
}

/* Rows of tables only: tensor parallel slices of either dimension, a pipeline stage's tensors, from any layout to any. */
static void slices(void **state)
{
    struct scene s;

    (void)state;
    for (int from = 1; from <= 4; from *= 2)
        for (int to = 1; to <= 4; to *= 2)
            for (int axis = 0; axis < 3; axis++) {
                struct cairn_transit p;

                model(&s);
                for (int t = 0; t < s.tensors; t++) {
                    int a = axis < s.tensor[t].ndim ? axis : 0;
                    int64_t n = s.tensor[t].dim[a];

                    for (int r = 0; r < from; r++)
                        if (t != 1 || r == from - 1) /* the norm lives on the last stage */
                            part(&s, 1, r, t, t == 1 ? -1 : a, n * r / from, n * (r + 1) / from - n * r / from);
                    for (int r = 0; r < to; r++)
                        part(&s, 0, r, t, t == 1 ? -1 : (a + 1) % s.tensor[t].ndim,
                             s.tensor[t].dim[(a + 1) % s.tensor[t].ndim] * r / to,
                             s.tensor[t].dim[(a + 1) % s.tensor[t].ndim] * (r + 1) / to - s.tensor[t].dim[(a + 1) % s.tensor[t].ndim] * r / to);
                }
                p = make(&s, 200);
                assert_true(p.wire_bytes >= p.unique_bytes);
                carry_out(&s, &p, from == 2);
                cairn_transit_free(&p);
            }
}

/* Replicas share the work: the most burdened sends at most one tensor more than its share. */
static void load_is_shared(void **state)
{
    struct scene s = {0};
    struct cairn_transit p;
    size_t of[4] = {0};

    (void)state;
    for (int t = 0; t < 40; t++) {
        tensor(&s, "t", 2, 10 + t, 8, 0);
        for (int r = 0; r < 4; r++)
            part(&s, 1, r, t, -1, 0, 0);
        part(&s, 0, 0, t, -1, 0, 0);
    }
    p = make(&s, 0);
    for (int l = 0; l < p.lanes; l++)
        of[p.lane[l].holder] += p.lane[l].bytes;
    for (int r = 0; r < 4; r++)
        assert_true(of[r] + 50 * 16 >= p.wire_bytes / 4 && of[r] <= p.wire_bytes / 4 + 50 * 16);
    carry_out(&s, &p, 0);
    cairn_transit_free(&p);
}

static void aliases_travel_once(void **state)
{
    struct scene s = {0};
    struct cairn_transit p;
    int a, b, c;

    (void)state;
    a = tensor(&s, "gate_up.lora_A", 2, 32, 64, 0);
    b = tensor(&s, "up.lora_A", 2, 32, 64, 0);
    c = tensor(&s, "up.lora_B", 2, 8, 32, 0);
    s.tensor[b].of = a;
    part(&s, 1, 0, a, -1, 0, 0);
    part(&s, 1, 0, c, -1, 0, 0);
    for (int place = 0; place < 2; place++) {
        part(&s, 0, place, a, -1, 0, 0);
        part(&s, 0, place, b, -1, 0, 0);
        part(&s, 0, place, c, -1, 0, 0);
    }
    p = make(&s, 0);
    assert_int_equal(p.unique_bytes, (32 * 64 + 8 * 32) * 2);
    assert_int_equal(p.named_bytes, (2 * 32 * 64 + 8 * 32) * 2);
    assert_int_equal(p.wire_bytes, p.unique_bytes);
    carry_out(&s, &p, 0);
    cairn_transit_free(&p);
}

static void random_layouts(void **state)
{
    struct scene s;
    uint32_t draws = 0;

    (void)state;
    for (int round = 0; round < 60; round++) {
        struct cairn_transit p, again;

        model(&s);
        s.draws = draws;
        for (int t = 0; t < s.tensors; t++) {
            int axis = (int)draw(&s, (uint32_t)s.tensor[t].ndim), copies = 1 + (int)draw(&s, 2);
            int64_t n = s.tensor[t].dim[axis], cut = draw(&s, (uint32_t)n + 1);

            for (int k = 0; k < copies; k++) {
                part(&s, 1, 2 * k, t, axis, 0, cut);
                part(&s, 1, 2 * k + 1, t, axis, cut, n - cut);
            }
            axis = (int)draw(&s, (uint32_t)s.tensor[t].ndim);
            for (int place = 0; place < 3; place++) {
                int64_t begin = draw(&s, (uint32_t)s.tensor[t].dim[axis]);

                part(&s, 0, place, t, axis, begin, s.tensor[t].dim[axis] - begin);
            }
        }
        draws = s.draws;
        p = make(&s, 16 + draw(&s, 600));
        carry_out(&s, &p, round % 2);
        again = make(&s, 1 << 20);
        carry_out(&s, &again, 0);
        assert_true(again.unique_bytes == p.unique_bytes);
        cairn_transit_free(&p);
        cairn_transit_free(&again);
    }
}

static void refused(void **state)
{
    struct scene s = {0};
    struct cairn_transit p;
    struct cairn_error err;

    (void)state;
    tensor(&s, "x", 2, 10, 4, 0);
    part(&s, 1, 0, 0, 0, 0, 6);
    part(&s, 0, 0, 0, -1, 0, 0);
    assert_int_equal(cairn_transit_create(&p, s.tensor, 1, s.held, 1, s.wanted, 1, 0, &err), CAIRN_EDATA);
    assert_string_equal(err.text, "x: nobody holds the part from row 6 on (4 rows) that place 0 wants");
    s.held[0].local[0] = 11;
    assert_int_equal(cairn_transit_create(&p, s.tensor, 1, s.held, 1, s.wanted, 1, 0, &err), CAIRN_EBUG);
    s.held[0].local[0] = 10;
    s.wanted[0].dtype = CAIRN_F32;
    assert_int_equal(cairn_transit_create(&p, s.tensor, 1, s.held, 1, s.wanted, 1, 0, &err), CAIRN_EBUG);
}

static void digests_tell_plans_apart(void **state)
{
    struct scene s;
    struct cairn_transit a, b;

    (void)state;
    model(&s);
    for (int t = 0; t < s.tensors; t++) {
        part(&s, 1, 0, t, -1, 0, 0);
        part(&s, 0, 0, t, -1, 0, 0);
    }
    a = make(&s, 0);
    b = make(&s, 0);
    assert_true(cairn_digest_equal(a.digest, b.digest));
    cairn_transit_free(&b);
    s.wanted[3].at += 64;
    b = make(&s, 0);
    assert_false(cairn_digest_equal(a.digest, b.digest));
    cairn_transit_free(&a);
    cairn_transit_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_to_one),          cmocka_unit_test(shards_to_experts), cmocka_unit_test(slices),
        cmocka_unit_test(load_is_shared),      cmocka_unit_test(aliases_travel_once), cmocka_unit_test(random_layouts),
        cmocka_unit_test(refused),             cmocka_unit_test(digests_tell_plans_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
