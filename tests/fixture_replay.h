/* fixture_replay.h - an fp32 run of the same model, and its selections replayed in a run of another precision. Included by fixture_check.c
 * alone.
 *
 * Which keys a row attends to and which experts it takes are decisions: in models as small as the references they lie so close
 * together that rounding to bf16 turns many of them, and numbers behind a turned decision say nothing. So the index sets and
 * experts of the cpu back-end in fp32 (which has the reference's) are recorded, and forced while bf16 numbers are compared.
 *
 * A forward calls `index` and `router` in a fixed order; a recording is the list of their answers for one forward, and every
 * further forward over the same rows goes through it from the start.
 */
#ifndef TESTS_FIXTURE_REPLAY_H
#define TESTS_FIXTURE_REPLAY_H

#include "model/peft.h"
#include "model/values.h"

#include "fixture_numbers.h"

#define MAX_CHOICES 256

static struct {
    struct cairn_ops real;  /* of the device at work */
    int recording, n, next; /* answers there are; the next one to be given */
    int32_t *h[MAX_CHOICES];
    int64_t count[MAX_CHOICES];
    struct value value[MAX_CHOICES]; /* on the device that replays */
} replay;

static enum cairn_status replay_keep(struct cairn_stream *s, const struct cairn_tensor *t, struct cairn_error *err)
{
    int i = replay.n;

    if (i == MAX_CHOICES)
        return CAIRN_BUG(err, "more selections than the test has room for");
    replay.count[i] = cairn_tensor_count(t);
    replay.h[i] = malloc((size_t)replay.count[i] * sizeof(int32_t) + 1);
    if (!replay.h[i])
        return CAIRN_NOMEM(err);
    replay.n++;
    return cairn_tensor_get(s, t, replay.h[i], (size_t)replay.count[i] * sizeof(int32_t), err);
}

static enum cairn_status replay_next(const struct cairn_tensor *like, struct cairn_tensor *out, struct cairn_error *err)
{
    int i = replay.next++;

    replay.next %= replay.n ? replay.n : 1;
    if (i >= replay.n || replay.count[i] != cairn_tensor_count(like))
        return CAIRN_BUG(err, "another selection was recorded here");
    *out = cairn_tensor_reshape(&replay.value[i].t, like->ndim, like->dim);
    return CAIRN_OK;
}

static enum cairn_status replay_index(struct cairn_stream *s, const struct cairn_index *a, struct cairn_error *err)
{
    struct cairn_tensor idx;
    enum cairn_status st = replay.real.index(s, a, err);

    if (st == CAIRN_OK && replay.recording)
        return replay_keep(s, &a->idx, err);
    if (st == CAIRN_OK)
        st = replay_next(&a->idx, &idx, err);
    return st == CAIRN_OK ? cairn_tensor_copy(s, &a->idx, &idx, err) : st;
}

static enum cairn_status replay_router(struct cairn_stream *s, const struct cairn_router *a, struct cairn_error *err)
{
    struct cairn_router forced = *a;
    enum cairn_status st;

    if (!replay.recording && (st = replay_next(&a->idx, &forced.forced, err)) != CAIRN_OK)
        return st;
    st = replay.real.router(s, &forced, err);
    return st == CAIRN_OK && replay.recording ? replay_keep(s, &a->idx, err) : st;
}

static void replay_begin(struct cairn_compute *k, int recording)
{
    replay.real = k->ops;
    replay.recording = recording;
    replay.next = 0;
    k->ops.index = replay_index;
    k->ops.router = replay_router;
}

static void replay_end(struct cairn_compute *k)
{
    k->ops.index = replay.real.index;
    k->ops.router = replay.real.router;
}

static void replay_free(void)
{
    for (int i = 0; i < replay.n; i++) {
        free(replay.h[i]);
        cairn_buffer_destroy(replay.value[i].buf);
        replay.value[i].buf = NULL;
    }
    replay.n = 0;
}

/* ---- the same model in fp32 on the cpu, whose weights can be disturbed ---------------------------------------------------- */

/* What stands in for exact numbers of disturbed copies: its numbers for the model as it is are held against transformers' in fp32. */
struct oracle {
    struct cairn_compute k;
    struct cairn_store weights, adapted, grads;
    struct cairn_model m;
    struct cairn_pass *pass;
    float **as_is[2]; /* weights and adapted, by parameter */
};

static void oracle_close(struct oracle *o)
{
    const struct cairn_store *const store[2] = {&o->weights, &o->adapted};

    for (int s = 0; s < 2; s++) {
        for (int i = 0; o->as_is[s] && i < store[s]->table->count; i++)
            free(o->as_is[s][i]);
        free(o->as_is[s]);
    }
    cairn_pass_destroy(o->pass);
    cairn_store_free(&o->weights);
    cairn_store_free(&o->adapted);
    cairn_store_free(&o->grads);
    if (o->k.dev)
        cairn_compute_close(&o->k);
    memset(o, 0, sizeof *o);
}

static enum cairn_status oracle_keep(struct oracle *o, int which, const struct cairn_store *s, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    o->as_is[which] = calloc((size_t)s->table->count + 1, sizeof *o->as_is[which]);
    if (!o->as_is[which])
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < s->table->count; i++)
        TRY(fetch(&o->as_is[which][i], &o->k, &s->tensor[i], err));
out:
    return st;
}

/* The model in r->dir, with an adapter (NULL: without). To be closed in any case. */
static enum cairn_status oracle_open(struct oracle *o, struct reference *r, struct cairn_peft *peft, const struct cairn_adapter *adapter,
                                     struct cairn_error *err)
{
    struct cairn_pass_opts pass = {.max_rows = r->rows + GREEDY, .max_seqs = r->nseq, .train = 1};
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_compute_open(&o->k, &(struct cairn_compute_opts){.backend = "cpu", .act = "f32"}, err));
    o->m = (struct cairn_model){.k = &o->k, .config = &r->hf->config, .weights = &o->weights, .segments = 1};
    TRY(cairn_weights_create(&o->weights, &r->hf->table, &o->k, err));
    TRY(cairn_hf_load(r->hf, &o->weights, &o->k, NULL, err));
    TRY(oracle_keep(o, 0, &o->weights, err));
    if (adapter) {
        TRY(cairn_weights_create(&o->adapted, &adapter->table, &o->k, err));
        TRY(cairn_peft_load(peft, adapter, &o->adapted, &o->k, err));
        TRY(oracle_keep(o, 1, &o->adapted, err));
        o->m.adapter = adapter;
        o->m.adapter_weights = &o->adapted;
    }
    TRY(cairn_store_create(&o->grads, adapter ? &adapter->table : &r->hf->table, o->k.dev, 1, err));
    TRY(cairn_pass_create(&o->pass, &o->m, &pass, err));
out:
    return st;
}

/* Weight w in copy `draw` (0: as it is), by a hash of draw and of the bits of w, so that neither names nor layouts matter: times 1 + 0.001 u, u of a
 * uniform distribution of variance 1; of a bf16 number itself or one of its neighbours in bf16. As in bf16_errors.py. */
static float disturbed(float w, int draw)
{
    uint64_t x;
    uint32_t bits;
    float y;

    if (!draw || w == 0)
        return w;
    memcpy(&bits, &w, sizeof bits);
    x = bits + ((uint64_t)draw << 32) + 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    if (bits & 0xffff)
        return (float)((double)w * (1 + 1e-3 * (((double)(x >> 11) * 0x1p-52 - 1) * sqrt(3))));
    bits += (uint32_t)(x % 3 - 1) << 16;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* Copy `draw` of the weights into the oracle and into the model under test. */
static enum cairn_status oracle_draw(struct oracle *o, const struct cairn_model *tested, int draw, struct cairn_error *err)
{
    const struct cairn_store *const own[2] = {&o->weights, &o->adapted}, *const theirs[2] = {tested->weights, tested->adapter_weights};
    float *h = NULL;
    enum cairn_status st = CAIRN_OK;

    for (int s = 0; s < 2; s++)
        for (int i = 0; o->as_is[s] && i < own[s]->table->count; i++) {
            int64_t n = cairn_tensor_count(&own[s]->tensor[i]);

            free(h);
            h = malloc((size_t)n * sizeof *h + 1);
            if (!h)
                TRY(CAIRN_NOMEM(err));
            for (int64_t e = 0; e < n; e++)
                h[e] = disturbed(o->as_is[s][i][e], draw);
            TRY(cairn_values_set(&o->k, &own[s]->tensor[i], h, n, err));
            TRY(cairn_values_set(tested->k, &theirs[s]->tensor[i], h, n, err));
        }
out:
    free(h);
    return st;
}

/* Records what the oracle chooses for the whole batch while it makes the logits, which go to *out. */
static enum cairn_status replay_record(struct numbers *out, struct reference *r, struct oracle *o, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    replay_free();
    replay_begin(&o->k, 1);
    TRY(numbers_logits(out, r, &o->m, o->pass, err));
    for (int i = 0; i < replay.n; i++)
        TRY(value_make(&replay.value[i], &r->k, CAIRN_I32, replay.count[i], replay.h[i], err));
out:
    replay_end(&o->k);
    return st;
}

#endif
