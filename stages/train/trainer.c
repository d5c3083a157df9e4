/* trainer.c - opens a model for training and runs its passes (trainer.h). */
#include "stages/train/trainer.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/planted.h"
#include "model/footprint.h"
#include "model/io.h"
#include "stages/common/ranks.h"
#include "stages/common/setup.h"
#include "world/group.h"
#include "stages/common/stage.h"

static enum cairn_status adapter_fresh(struct cairn_trainer *t, struct cairn_error *err)
{
    struct cairn_policy *p = &t->policy;
    enum cairn_status st = CAIRN_OK;
    int lora;

    TRY(cairn_setup_adapter(&p->adapter, &lora, &p->table, &p->config, t->recipe, err));
    p->lora = lora;
    TRY(cairn_weights_create(&p->adapter_weights, &p->adapter.table, t->k, err));
    TRY(cairn_adapter_init(&p->adapter_weights, &p->adapter, (uint64_t)cairn_recipe_i64(t->recipe, "run.seed"), t->k, err));
out:
    return st;
}

/* What is never trained is published, too: rounded once here, as sync writes it. A policy's is rounded already. */
static enum cairn_status frozen_publish(struct cairn_trainer *t, enum cairn_dtype publish, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (t->policy.lora || publish == CAIRN_F32 || t->k->act == publish)
        return CAIRN_OK;
    for (int i = 0; i < t->table->count; i++) {
        const struct cairn_tensor *x = &t->published->tensor[i];

        if (t->table->param[i].frozen && !t->table->param[i].keep_f32)
            TRY(t->k->ops.cast(&t->k->stream, &(struct cairn_cast){.src = *x, .dst = *x, .round_to = (int)publish}, err));
    }
out:
    return st;
}

/* Where published weights are narrow, masters begin from what they were rounded from: a new adapter's own values, or the files'. */
static enum cairn_status masters_unrounded(struct cairn_trainer *t, const struct cairn_trainer_start *start,
                                           struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_store wide = {0};
    struct cairn_reader *r = NULL;

    if (start->fresh_adapter) {
        TRY(cairn_store_create(&wide, t->table, t->k->dev, 0, err));
        TRY(cairn_adapter_init(&wide, &t->policy.adapter, (uint64_t)cairn_recipe_i64(t->recipe, "run.seed"), t->k, err));
        TRY(cairn_optimizer_start(&t->optimizer, &wide, err));
    } else {
        TRY(cairn_optimizer_start(&t->optimizer, t->published, err));
        TRY(cairn_reader_open(&r, start->dir, NULL, err));
        TRY(cairn_load(&t->optimizer.master, r, NULL, t->k, NULL, err));
    }
out:
    cairn_store_free(&wide);
    cairn_reader_close(r);
    return st;
}

static enum cairn_status moments_reset(struct cairn_trainer *t, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_tensor_zero(&t->k->stream, &t->optimizer.m.flat, err));
    TRY(cairn_tensor_zero(&t->k->stream, &t->optimizer.v.flat, err));
    t->optimizer.updates = 0;
out:
    return st;
}

static enum cairn_status state_load(struct cairn_trainer *t, const struct cairn_trainer_start *start, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_trainer_load(&t->optimizer, start->state, err));
    if (start->reset)
        TRY(moments_reset(t, err));
out:
    return st;
}

/* ---- ranks ----------------------------------------------------------------------------------------------------------- */

enum cairn_status cairn_trainer_agree(struct cairn_trainer *t, const char *what, enum cairn_status st, struct cairn_error *err)
{
    return t->ctx && t->ctx->world ? cairn_ranks_agree(t->ctx, what, st, err) : st;
}

/* What cannot be agreed upon: the ranks are no longer at the same place. */
static enum cairn_status apart(struct cairn_trainer *t, enum cairn_status st, const struct cairn_error *err)
{
    if (t->ranks > 1) {
        cairn_warn("%s", err ? err->text : "the ranks cannot go on together");
        cairn_world_abort(t->ctx->world, st);
    }
    return st;
}

enum cairn_status cairn_trainer_gather(struct cairn_trainer *t, const char *what, enum cairn_status st, const double *own, int n,
                                       double *all, struct cairn_error *err)
{
    TRY(cairn_trainer_agree(t, what, st, err));
    if (t->ranks == 1)
        memcpy(all, own, (size_t)n * sizeof *own);
    else if ((st = cairn_group_allgather(t->group, what, own, (size_t)n * sizeof *own, all, err)) != CAIRN_OK)
        st = apart(t, st, err);
out:
    return st;
}

enum cairn_status cairn_trainer_update(struct cairn_trainer *t, const struct cairn_optimizer_opts *o, double *norm, double *lr,
                                       struct cairn_error *err)
{
    enum cairn_status st = cairn_store_settle(&t->grads, 1, &t->k->stream, err); /* a rank may have had no sequences */

    if (st == CAIRN_OK)
        st = cairn_optimizer_step(&t->optimizer, o, &t->grads, t->published, norm, lr, err);
    return st == CAIRN_OK || st == CAIRN_ENUMERIC ? st : apart(t, st, err);
}

enum cairn_status cairn_trainer_publish(struct cairn_trainer *t, struct cairn_error *err)
{
    enum cairn_status st = cairn_planted("publish-forgotten") && t->model.k
                               ? CAIRN_OK
                               : cairn_optimizer_publish(&t->optimizer, cairn_setup_dtype(t->recipe), t->published, err);

    return st == CAIRN_OK ? st : apart(t, st, err);
}

int cairn_trainer_fill(struct cairn_trainer *t, const struct cairn_sequence *s, int64_t n, int64_t *next, int64_t *number)
{
    while (cairn_micro_fill(&t->micro, s, n, next, t->pack))
        if ((*number)++ % t->ranks == t->rank)
            return 1;
    return 0;
}

/* The group and channel of the ranks. All of them are here. */
static enum cairn_status ranks_open(struct cairn_trainer *t, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_world_split(t->ctx->world, NULL, 0, t->ctx->world->rank, "dp", &t->group, err));
    t->rank = t->group->rank;
    t->ranks = t->group->size;
    TRY(cairn_channel_open(&t->channel, t->group, t->k->dev, NULL, err));
out:
    return st == CAIRN_OK ? st : apart(t, st, err);
}

/* ---- open and close ---------------------------------------------------------------------------------------------------- */

static enum cairn_status weights_open(struct cairn_trainer *t, const struct cairn_trainer_start *start, struct cairn_error *err)
{
    struct cairn_nodestore_opts store;
    /* With full weights every value is written. */
    int frozen = cairn_recipe_has(t->recipe, "model.adapter") && cairn_setup_node_store(&store, t->recipe);
    const struct cairn_policy_opts po = {.base = start->base, .store = frozen ? &store : NULL, .quiet = 1};
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_policy_open(&t->policy, start->dir, &po, t->k, err));
    if (start->fresh_adapter)
        TRY(adapter_fresh(t, err));
    t->table = t->policy.lora ? &t->policy.adapter.table : &t->policy.table;
    t->published = t->policy.lora ? &t->policy.adapter_weights : &t->policy.weights;
out:
    return st;
}

static enum cairn_status masters_open(struct cairn_trainer *t, const struct cairn_trainer_start *start, struct cairn_error *err)
{
    struct cairn_footprint f;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_footprint(&(struct cairn_footprint_opts){.config = &t->policy.config,
                                                        .table = &t->policy.table,
                                                        .adapter = t->policy.lora ? &t->policy.adapter : NULL,
                                                        .act = t->k->act,
                                                        .pass = {.train = 1},
                                                        .ranks = t->ranks},
                        &f, err));
    TRY(cairn_footprint_fits(&f, f.weights + f.adapter, t->k->dev, "masters, moments and gradients", err));
    TRY(cairn_optimizer_create_shared(&t->optimizer, t->table, t->k, t->channel, err));
    TRY(cairn_store_create(&t->grads, t->table, t->k->dev, 1, err));
    if (start->state)
        TRY(state_load(t, start, err));
    else if (t->k->act != CAIRN_F32)
        TRY(masters_unrounded(t, start, err));
    else
        TRY(cairn_optimizer_start(&t->optimizer, t->published, err));
out:
    return st;
}

enum cairn_status cairn_trainer_open(struct cairn_trainer *t, struct cairn_compute *k, const struct cairn_recipe *recipe,
                                     const struct cairn_trainer_start *start, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    *t = (struct cairn_trainer){.k = k, .recipe = recipe, .ctx = start->ctx, .ranks = 1};
    TRY(cairn_trainer_agree(t, "the model", weights_open(t, start, err), err));
    if (t->ctx && t->ctx->world && t->ctx->world->size > 1)
        TRY(ranks_open(t, err));
    TRY(cairn_trainer_agree(t, "the trainer's state", masters_open(t, start, err), err));
    TRY(cairn_trainer_publish(t, err));
    TRY(frozen_publish(t, cairn_setup_dtype(recipe), err));
    t->model = (struct cairn_model){.k = k,
                                    .config = &t->policy.config,
                                    .weights = &t->policy.weights,
                                    .adapter = t->policy.lora ? &t->policy.adapter : NULL,
                                    .adapter_weights = t->policy.lora ? &t->policy.adapter_weights : NULL,
                                    .segments = (int)cairn_recipe_i64(recipe, "numerics.segments")};
    t->pack = cairn_recipe_i64(recipe, "train.pack");
out:
    if (st != CAIRN_OK)
        cairn_trainer_close(t);
    return st;
}

enum cairn_status cairn_trainer_go_on(struct cairn_trainer *t, const struct cairn_recipe *recipe, int reset, struct cairn_error *err)
{
    t->recipe = recipe;
    return reset ? moments_reset(t, err) : CAIRN_OK;
}

/* Carves the row tensors from one buffer. */
static enum cairn_status rows_create(struct cairn_trainer *t, int64_t rows, struct cairn_error *err)
{
    struct cairn_tensor *const f32[] = {&t->old, &t->smp, &t->ref, &t->adv, &t->weight, &t->dcur, &t->dentropy};
    const int64_t stats = CAIRN_LS_COUNT;
    enum cairn_status st = CAIRN_OK;
    size_t at = 0, line = ((size_t)rows * 4 + 63) & ~(size_t)63;

    TRY(cairn_buffer_create(t->k->dev, line * 9 + 64 + CAIRN_LS_COUNT * 8, &t->rows_buffer, err));
    TRY(cairn_tensor_view(&t->stats, t->rows_buffer, at, CAIRN_F64, 1, &stats, err));
    at += (CAIRN_LS_COUNT * 8 + 63) & ~(size_t)63;
    for (size_t i = 0; i < sizeof f32 / sizeof *f32; i++, at += line)
        TRY(cairn_tensor_view(f32[i], t->rows_buffer, at, CAIRN_F32, 1, &rows, err));
    TRY(cairn_tensor_view(&t->seq, t->rows_buffer, at, CAIRN_I32, 1, &rows, err));
    at += line;
    TRY(cairn_tensor_view(&t->mask, t->rows_buffer, at, CAIRN_U8, 1, &rows, err));
out:
    return st;
}

/* Says what the trainer takes on its device, and refuses before activations are allocated where that is more than there is. */
static enum cairn_status footprint_tell(struct cairn_trainer *t, const struct cairn_pass_opts *o, struct cairn_error *err)
{
    const struct cairn_footprint_opts want = {.config = &t->policy.config,
                                              .table = &t->policy.table,
                                              .adapter = t->model.adapter,
                                              .act = t->k->act,
                                              .segments = t->model.segments,
                                              .pass = *o,
                                              .ranks = t->ranks};
    struct cairn_footprint f;
    char text[256];
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_footprint(&want, &f, err));
    cairn_footprint_text(&f, text, sizeof text);
    cairn_info("training takes %s (packs of %lld tokens)", text, (long long)o->max_rows);
    TRY(cairn_footprint_fits(&f, f.total - f.activations, t->k->dev, "train.pack", err));
out:
    return st;
}

enum cairn_status cairn_trainer_reserve(struct cairn_trainer *t, int64_t longest, int64_t total, int entropy,
                                        struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t most = total < t->pack ? total : t->pack, rows = longest > most ? longest : most;
    int seqs = (int)(rows < 65536 ? rows : 65536);
    const struct cairn_pass_opts o = {.max_rows = rows,
                                      .max_seqs = seqs,
                                      .train = 1,
                                      .recompute = cairn_recipe_bool(t->recipe, "train.recompute"),
                                      .entropy = entropy};

    if (t->pass && t->micro.capacity >= rows && t->entropy == entropy)
        goto out;
    cairn_pass_destroy(t->pass);
    t->pass = NULL;
    cairn_micro_free(&t->micro);
    cairn_buffer_destroy(t->rows_buffer);
    t->rows_buffer = NULL;
    t->entropy = entropy;
    TRY(footprint_tell(t, &o, err));
    TRY(cairn_pass_create(&t->pass, &t->model, &o, err));
    TRY(cairn_micro_create(&t->micro, rows, seqs, err));
    TRY(rows_create(t, rows, err));
out:
    return cairn_trainer_agree(t, "activation memory", st, err);
}

void cairn_trainer_close(struct cairn_trainer *t)
{
    cairn_pass_destroy(t->pass);
    cairn_micro_free(&t->micro);
    cairn_buffer_destroy(t->rows_buffer);
    cairn_store_free(&t->grads);
    cairn_optimizer_free(&t->optimizer);
    cairn_policy_close(&t->policy);
    cairn_channel_close(t->channel);
    cairn_group_destroy(t->group);
    memset(t, 0, sizeof *t);
}

static enum cairn_status micro_forward(struct cairn_pass *pass, const struct cairn_micro *m, float temperature,
                                       struct cairn_scores *out, struct cairn_error *err)
{
    const struct cairn_batch b = {.n = m->rows, .id = m->id, .pos = m->pos, .seq = m->seq, .nseq = m->nseq, .start = m->start};

    return cairn_forward(pass, &b, m->target, cairn_planted("temperature-trainer-only") ? temperature * 1.01f : temperature, out, err);
}

enum cairn_status cairn_trainer_forward(struct cairn_trainer *t, float temperature, struct cairn_scores *out,
                                        struct cairn_error *err)
{
    return micro_forward(t->pass, &t->micro, temperature, out, err);
}

struct cairn_tensor cairn_trainer_rows(const struct cairn_trainer *t, const struct cairn_tensor *full)
{
    return cairn_tensor_slice(full, 0, 0, t->micro.rows);
}

enum cairn_status cairn_trainer_rows_set(struct cairn_trainer *t, const struct cairn_tensor *dst, const void *h,
                                         struct cairn_error *err)
{
    const struct cairn_tensor rows = cairn_trainer_rows(t, dst);

    return cairn_tensor_set(&t->k->stream, &rows, h, cairn_tensor_bytes(&rows), err);
}

enum cairn_status cairn_trainer_backward(struct cairn_trainer *t, int entropy, struct cairn_error *err)
{
    const struct cairn_tensor dcur = cairn_trainer_rows(t, &t->dcur), dentropy = cairn_trainer_rows(t, &t->dentropy);

    return cairn_backward(t->pass, &dcur, entropy ? &dentropy : NULL, t->policy.lora ? NULL : &t->grads,
                          t->policy.lora ? &t->grads : NULL, err);
}

void cairn_trainer_renew(struct cairn_trainer *t)
{
    cairn_store_renew(&t->grads);
}

/* This rank's micro-batches of the list, one behind the other into mine (room for all); *count floats. */
static enum cairn_status logprobs_own(struct cairn_trainer *t, struct cairn_pass *pass, const struct cairn_sequence *s, int64_t n,
                                      float temperature, float *mine, int64_t *count, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    float *row = malloc((size_t)t->micro.capacity * sizeof *row);
    int64_t next = 0, number = 0;

    *count = 0;
    if (!row)
        return CAIRN_NOMEM(err);
    while (cairn_trainer_fill(t, s, n, &next, &number)) {
        struct cairn_scores scores;

        TRY(cairn_stage_stopping(err));
        TRY(micro_forward(pass, &t->micro, temperature, &scores, err));
        TRY(cairn_tensor_get(&t->k->stream, &scores.logprob, row, (size_t)t->micro.rows * sizeof *row, err));
        for (int i = 0; i < t->micro.nseq; i++) {
            const struct cairn_sequence *m = t->micro.member[i];

            memcpy(mine + *count, row + t->micro.row_of[i], (size_t)(m->length - m->prompt) * sizeof *row);
            *count += m->length - m->prompt;
        }
    }
out:
    free(row);
    return st;
}

/* Puts rank r's numbers, as logprobs_own left them, where they belong. */
static void logprobs_place(struct cairn_trainer *t, int r, const struct cairn_sequence *s, int64_t n, const int64_t *at,
                           const float *theirs, float *out)
{
    int64_t next = 0, number = 0;

    while (cairn_micro_fill(&t->micro, s, n, &next, t->pack)) {
        if (number++ % t->ranks != r)
            continue;
        for (int i = 0; i < t->micro.nseq; i++) {
            const struct cairn_sequence *m = t->micro.member[i];

            memcpy(out + at[m - s], theirs, (size_t)(m->length - m->prompt) * sizeof *out);
            theirs += m->length - m->prompt;
        }
    }
}

enum cairn_status cairn_trainer_logprobs(struct cairn_trainer *t, const struct cairn_model *of, const struct cairn_sequence *s,
                                         int64_t n, const int64_t *at, float temperature, float *out, struct cairn_error *err)
{
    const struct cairn_pass_opts o = {.max_rows = t->micro.capacity, .max_seqs = t->micro.max_seqs};
    enum cairn_status st = CAIRN_OK;
    struct cairn_pass *own = NULL;
    int64_t total = 0, count = 0;
    size_t *offset = NULL;
    char *all = NULL;
    float *mine;

    for (int64_t i = 0; i < n; i++)
        total += s[i].length - s[i].prompt;
    mine = malloc(((size_t)total + 1) * sizeof *mine);
    if (!mine)
        st = CAIRN_NOMEM(err);
    if (st == CAIRN_OK && of) /* a pass is bound to its model for life */
        st = cairn_pass_create(&own, of, &o, err);
    if (st == CAIRN_OK)
        st = logprobs_own(t, own ? own : t->pass, s, n, temperature, mine, &count, err);
    if (t->ranks > 1) {
        TRY(cairn_ranks_exchange(t->ctx, "log-probabilities", st, mine, (size_t)count * sizeof *mine, &all, &offset, err));
        for (int r = 0; r < t->ranks; r++)
            logprobs_place(t, r, s, n, at, (const float *)(void *)(all + offset[r]), out);
    } else {
        TRY(st);
        logprobs_place(t, 0, s, n, at, mine, out);
    }
out:
    cairn_pass_destroy(own);
    free(mine);
    free(all);
    free(offset);
    return st;
}
