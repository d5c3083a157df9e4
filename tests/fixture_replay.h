/* fixture_replay.h - selections of an fp32 run, replayed in a run of another precision. Included by fixture_check.c alone.
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

#include "fixture_reference.h"

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

/* Records what the model in r->dir, with an adapter (NULL: without), chooses for the whole batch in fp32 on the cpu. */
static enum cairn_status replay_record(struct reference *r, struct cairn_peft *peft, const struct cairn_adapter *adapter,
                                       struct cairn_error *err)
{
    struct cairn_pass_opts o = {.max_rows = r->rows + GREEDY, .max_seqs = r->nseq, .train = 1};
    struct cairn_compute k = {0};
    struct cairn_store weights = {0}, adapted = {0};
    struct cairn_model m = {.k = &k, .config = &r->hf->config, .weights = &weights, .segments = 1};
    struct cairn_batch b = whole_batch(r);
    struct cairn_pass *pass = NULL;
    struct cairn_tensor logits;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_compute_open(&k, &(struct cairn_compute_opts){.backend = "cpu", .act = "f32"}, err));
    TRY(cairn_weights_create(&weights, &r->hf->table, &k, err));
    TRY(cairn_hf_load(r->hf, &weights, &k, NULL, err));
    if (adapter) {
        TRY(cairn_weights_create(&adapted, &adapter->table, &k, err));
        TRY(cairn_peft_load(peft, adapter, &adapted, &k, err));
        m.adapter = adapter;
        m.adapter_weights = &adapted;
    }
    TRY(cairn_pass_create(&pass, &m, &o, err));
    replay_begin(&k, 1);
    TRY(cairn_forward_logits(pass, &b, &logits, err));
    for (int i = 0; i < replay.n; i++)
        TRY(value_make(&replay.value[i], &r->k, CAIRN_I32, replay.count[i], replay.h[i], err));
out:
    cairn_pass_destroy(pass);
    cairn_store_free(&weights);
    cairn_store_free(&adapted);
    if (k.dev)
        cairn_compute_close(&k);
    return st;
}

#endif
