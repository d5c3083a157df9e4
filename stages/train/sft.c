/* sft.c - examples and updates of the warm start (sft.h). */
#include "stages/train/sft.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/philox.h"
#include "stages/common/prompting.h"
#include "stages/common/setup.h"
#include "stages/train/point.h"

void cairn_examples_free(struct cairn_examples *e)
{
    free(e->tokens);
    free(e->sequence);
    memset(e, 0, sizeof *e);
}

struct loading {
    struct cairn_ids ids, end; /* end: what every response is taught to end with */
    struct cairn_prompting prompting;
    struct cairn_arena *arena; /* of the example at hand */
    int64_t *at, *prompt; /* (n + 1) first token, (n) prompt tokens */
    int64_t n, cap;
};

static enum cairn_status example_add(struct loading *l, const json_t *v, const char *where, int64_t max_length,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_message *m;
    const char *response;
    int64_t begin = l->ids.n;
    int n;

    cairn_arena_reset(l->arena);
    TRY(cairn_messages_read(json_object_get(v, "prompt"), "prompt", l->arena, &m, &n, where, err));
    TRY(cairn_json_string(v, "response", &response, where, err));
    if (l->n + 2 > l->cap) {
        int64_t cap = l->cap ? 2 * l->cap : 1024;
        int64_t *at = realloc(l->at, (size_t)cap * sizeof *at), *p = at ? realloc(l->prompt, (size_t)cap * sizeof *p) : NULL;

        if (at)
            l->at = at;
        if (p)
            l->prompt = p;
        if (!at || !p)
            TRY(CAIRN_NOMEM(err));
        l->cap = cap;
    }
    l->at[l->n] = begin;
    TRY(cairn_template_chat(l->prompting.template, l->prompting.tokenizer, m, n, &l->ids, err));
    l->prompt[l->n] = l->ids.n - begin;
    TRY(cairn_tokenizer_encode(l->prompting.tokenizer, response, json_string_length(json_object_get(v, "response")), NULL, &l->ids, err));
    for (int64_t i = 0; i < l->end.n; i++)
        if (!cairn_ids_push(&l->ids, l->end.p[i]))
            TRY(CAIRN_NOMEM(err));
    if (l->prompt[l->n] < 1)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: the prompt has no token", where));
    if (l->ids.n - begin > max_length)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %lld tokens, the model's positions end at %lld", where, (long long)(l->ids.n - begin),
                       (long long)max_length));
    l->at[++l->n] = l->ids.n;
out:
    return st;
}

enum cairn_status cairn_examples_load(struct cairn_examples *e, const char *path, const struct cairn_recipe *recipe,
                                      const char *tokenizer, const struct cairn_model_config *config, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_jsonl *file = NULL;
    struct loading l = {0};
    const json_t *v;

    memset(e, 0, sizeof *e);
    l.arena = cairn_arena_create();
    if (!l.arena)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_prompting_open(&l.prompting, recipe, tokenizer, config, err));
    TRY(cairn_prompting_end(&l.prompting, &l.end, err));
    TRY(cairn_jsonl_open(&file, path, err));
    while ((st = cairn_stage_stopping(err)) == CAIRN_OK && (st = cairn_jsonl_next(file, &v, err)) == CAIRN_OK && v)
        TRY(example_add(&l, v, cairn_jsonl_where(file), config->max_positions, err));
    TRY(st);
    if (!l.n)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: no example in it", path));
    e->sequence = calloc((size_t)l.n, sizeof *e->sequence);
    if (!e->sequence)
        TRY(CAIRN_NOMEM(err));
    e->n = l.n;
    e->tokens = l.ids.p;
    l.ids.p = NULL;
    for (int64_t i = 0; i < l.n; i++) {
        e->sequence[i] = (struct cairn_sequence){e->tokens + l.at[i], l.at[i + 1] - l.at[i], l.prompt[i], i};
        if (e->sequence[i].length > e->longest)
            e->longest = e->sequence[i].length;
    }
out:
    cairn_jsonl_close(file);
    cairn_ids_free(&l.ids);
    cairn_ids_free(&l.end);
    cairn_prompting_close(&l.prompting);
    cairn_arena_destroy(l.arena);
    free(l.at);
    free(l.prompt);
    return st;
}

/* The examples of updates, in order: position p of the endless list is element p mod n of epoch p / n's permutation. */
struct order {
    struct cairn_philox_key key;
    int64_t n, epoch, *permutation;
};

static const struct cairn_sequence *order_at(struct order *o, const struct cairn_examples *e, int64_t p)
{
    if (p / o->n != o->epoch) {
        o->epoch = p / o->n;
        o->key.step = (uint32_t)o->epoch;
        cairn_philox_permutation(&o->key, o->n, o->permutation);
    }
    return &e->sequence[o->permutation[p % o->n]];
}

/* Forward and backward of one micro-batch; adds minus its log-probabilities to *sum. row: host scratch (micro.capacity). */
static enum cairn_status micro_run(struct cairn_trainer *t, double tokens, float *row, double *sum, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_micro *m = &t->micro;
    struct cairn_scores scores;

    TRY(cairn_trainer_forward(t, 1.0f, &scores, err));
    for (int64_t i = 0; i < m->rows; i++)
        row[i] = m->target[i] >= 0 ? (float)(-1.0 / tokens) : 0.0f;
    TRY(cairn_trainer_rows_set(t, &t->dcur, row, err));
    TRY(cairn_tensor_get(&t->k->stream, &scores.logprob, row, (size_t)m->rows * sizeof *row, err));
    for (int64_t i = 0; i < m->rows; i++)
        if (m->target[i] >= 0)
            *sum -= (double)row[i];
    TRY(cairn_trainer_backward(t, 0, err));
out:
    return st;
}

/* Gradients of this rank's micro-batches; *sum: minus their log-probabilities. */
static enum cairn_status micros_run(struct cairn_trainer *t, const struct cairn_sequence *batch, int64_t n, double tokens,
                                    float *row, double *sum, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t next = 0, number = 0;

    TRY(cairn_stage_stopping(err));
    cairn_trainer_renew(t);
    while (cairn_trainer_fill(t, batch, n, &next, &number)) {
        TRY(cairn_stage_stopping(err));
        TRY(micro_run(t, tokens, row, sum, err));
    }
out:
    return st;
}

struct scratch {
    struct cairn_sequence *s; /* (batch) */
    float *row;               /* (micro.capacity) */
    double *sums;             /* (ranks) */
};

static enum cairn_status update_run(struct cairn_trainer *t, struct scratch *x, int64_t n, const struct cairn_optimizer_opts *o,
                                    double *loss, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    double tokens = 0, sum = 0, norm, lr;

    for (int64_t i = 0; i < n; i++)
        tokens += (double)(x->s[i].length - x->s[i].prompt);
    st = micros_run(t, x->s, n, tokens, x->row, &sum, err);
    TRY(cairn_trainer_gather(t, "an update's gradients", st, &sum, 1, x->sums, err));
    sum = 0;
    for (int r = 0; r < t->ranks; r++)
        sum += x->sums[r];
    *loss = tokens > 0 ? sum / tokens : 0;
    TRY(cairn_trainer_update(t, o, &norm, &lr, err));
out:
    return st;
}

enum cairn_status cairn_sft_run(struct cairn_stage_ctx *ctx, struct cairn_trainer *t, const struct cairn_examples *e,
                                struct cairn_sft_stats *stats, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_recipe *r = t->recipe;
    const json_t *betas = cairn_recipe_list(r, "train.betas");
    const struct cairn_optimizer_opts o = {.learning_rate = cairn_recipe_f64(r, "warm_start.learning_rate"),
                                           .beta1 = json_number_value(json_array_get(betas, 0)),
                                           .beta2 = json_number_value(json_array_get(betas, 1)),
                                           .eps = cairn_recipe_f64(r, "train.eps"),
                                           .weight_decay = cairn_recipe_f64(r, "train.weight_decay"),
                                           .grad_clip = cairn_recipe_f64(r, "train.grad_clip"),
                                           .warmup_updates = cairn_recipe_i64(r, "warm_start.warmup_updates"),
                                           .publish = cairn_setup_dtype(r)};
    int64_t updates = cairn_recipe_i64(r, "warm_start.updates"), batch = cairn_recipe_i64(r, "warm_start.batch"), u = 0;
    int64_t tail = updates / 10 > 0 ? updates / 10 : 1;
    struct order order = {
        .key = {.seed = (uint64_t)cairn_recipe_i64(r, "run.seed"), .purpose = CAIRN_PURPOSE_SHUFFLE}, .n = e->n, .epoch = -1};
    struct scratch x = {calloc((size_t)batch, sizeof *x.s), malloc((size_t)t->micro.capacity * sizeof *x.row),
                        calloc((size_t)t->ranks, sizeof *x.sums)};
    struct cairn_points *points = NULL;
    double sum = 0; /* of the tail's losses: all that goes from update to update beside the trainer's state */

    memset(stats, 0, sizeof *stats);
    order.permutation = malloc((size_t)e->n * sizeof *order.permutation);
    TRY(cairn_trainer_agree(t, "the examples", x.s && x.row && x.sums && order.permutation ? CAIRN_OK : CAIRN_NOMEM(err), err));
    TRY(cairn_points_open(&points, ctx, t, 1, err));
    TRY(cairn_points_resume(points, &u, &sum, err));
    stats->resumed = u;
    cairn_stage_progress_from(ctx, "updates", u, updates);
    for (; u < updates; u++) {
        double mine;

        for (int64_t i = 0; i < batch; i++)
            x.s[i] = *order_at(&order, e, u * batch + i);
        st = update_run(t, &x, batch, &o, &mine, err);
        if (st == CAIRN_EAGAIN)
            cairn_points_stop(points, u, &sum);
        TRY(st);
        if (u >= updates - tail)
            sum += mine;
        cairn_stage_progress(ctx, "updates", u + 1, updates);
        TRY(cairn_points_reached(points, u + 1, updates, &sum, err));
    }
    stats->loss = sum / (double)tail;
out:
    stats->stall_s = cairn_points_times(points).stall_s;
    cairn_points_close(points);
    free(x.s);
    free(x.row);
    free(x.sums);
    free(order.permutation);
    return st;
}
