/* trainer.h - a model in training: published weights, masters, moments, gradients, activation memory.
 *
 * With ranks (data parallel) each has the whole model and its share of the optimiser's state. Micro-batches are cut by their list
 * of sequences alone; rank r takes number r, r + ranks, ... of them.
 *
 * Full weights, or an adapter on frozen ones; what is trained is one parameter table either way. Forward passes use the published
 * weights only; masters are touched by the optimiser alone (design, section 4 "train").
 */
#ifndef CAIRN_STAGES_TRAIN_TRAINER_H
#define CAIRN_STAGES_TRAIN_TRAINER_H

#include "ckpt/reader.h"
#include "model/model.h"
#include "model/optimizer.h"
#include "model/policy.h"
#include "recipe/recipe.h"
#include "stages/common/stage.h"
#include "stages/train/pack.h"

struct cairn_trainer {
    struct cairn_compute *k;
    struct cairn_stage_ctx *ctx; /* of the ranks; NULL: alone */
    struct cairn_group *group;   /* of them; NULL: alone */
    struct cairn_channel *channel;
    int rank, ranks; /* 0 of 1 */
    const struct cairn_recipe *recipe;
    struct cairn_policy policy;            /* configuration, table and published weights (of the adapter too, where there is one) */
    const struct cairn_param_table *table; /* of what is trained */
    struct cairn_store *published;         /* its published weights */
    struct cairn_optimizer optimizer;
    struct cairn_store grads;
    struct cairn_model model;
    struct cairn_pass *pass;
    struct cairn_micro micro;
    int entropy;  /* the pass gives it */
    int64_t pack; /* rows a micro-batch */
    /* per-row inputs and outputs of the loss, on the device: (capacity) each */
    struct cairn_buffer *rows_buffer;
    struct cairn_tensor old, smp, ref, adv, weight, dcur, dentropy, mask, seq;
    struct cairn_tensor stats; /* f64 (CAIRN_LS_COUNT) */
};

/* dir: the policy (or base) whose weights it starts from. state: reader of the trainer state those weights were published from, or
 * NULL: masters are the published weights, moments zero. reset: masters from the state, moments and update count zero. */
struct cairn_trainer_start {
    const char *dir, *base;
    struct cairn_reader *state;
    int reset;
    int fresh_adapter;           /* dir is a base and the recipe trains an adapter: make one (seed run.seed) */
    struct cairn_stage_ctx *ctx; /* or NULL: alone; trains with all ranks of its world. Then open and all below is collective */
};
enum cairn_status cairn_trainer_open(struct cairn_trainer *t, struct cairn_compute *k, const struct cairn_recipe *recipe,
                                     const struct cairn_trainer_start *start, struct cairn_error *err);
/* A trainer that has saved its state begins another step, under a recipe that differs in nothing that matters; reset: as above. Equal bits to one
 * that is opened from the saved state. */
enum cairn_status cairn_trainer_go_on(struct cairn_trainer *t, const struct cairn_recipe *recipe, int reset, struct cairn_error *err);
/* Activation memory for micro-batches of train.pack rows, but no more than all sequences have (total tokens), and no less than the
 * longest one (tokens). Before the first forward; again for other sequences: what is large enough stays. */
enum cairn_status cairn_trainer_reserve(struct cairn_trainer *t, int64_t longest, int64_t total, int entropy,
                                        struct cairn_error *err);
void cairn_trainer_close(struct cairn_trainer *t);

/* What all do next depends on all: the greatest status of the ranks (ranks.h). Alone: st. */
enum cairn_status cairn_trainer_agree(struct cairn_trainer *t, const char *what, enum cairn_status st, struct cairn_error *err);
/* Everybody's n doubles, rank r's at all + r * n (ranks * n, the caller's), after an agreement on st. */
enum cairn_status cairn_trainer_gather(struct cairn_trainer *t, const char *what, enum cairn_status st, const double *own, int n,
                                       double *all, struct cairn_error *err);
/* One optimiser update from the ranks' gradients, after an agreement on st. CAIRN_ENUMERIC: on all ranks alike. */
enum cairn_status cairn_trainer_update(struct cairn_trainer *t, const struct cairn_optimizer_opts *o, double *norm, double *lr,
                                       struct cairn_error *err);
/* Published weights from the masters as they are now. */
enum cairn_status cairn_trainer_publish(struct cairn_trainer *t, struct cairn_error *err);
/* cairn_micro_fill for the next micro-batch of this rank: *number counts all that the list is cut into, from 0. */
int cairn_trainer_fill(struct cairn_trainer *t, const struct cairn_sequence *s, int64_t n, int64_t *next, int64_t *number);

/* One forward of t->micro at `temperature`; out borrowed until the next. */
enum cairn_status cairn_trainer_forward(struct cairn_trainer *t, float temperature, struct cairn_scores *out,
                                        struct cairn_error *err);
enum cairn_status cairn_trainer_backward(struct cairn_trainer *t, int entropy,
                                         struct cairn_error *err);                      /* from t->dcur, t->dentropy */
void cairn_trainer_renew(struct cairn_trainer *t); /* gradients: what is in them counts no more */
/* Puts n host floats into a row tensor of the current micro-batch. */
enum cairn_status cairn_trainer_rows_set(struct cairn_trainer *t, const struct cairn_tensor *dst, const void *h,
                                         struct cairn_error *err);
struct cairn_tensor cairn_trainer_rows(const struct cairn_trainer *t,
                                       const struct cairn_tensor *full); /* its first micro.rows rows */

/* Log-probabilities of the response tokens of n sequences under the current published weights, or under another model of the same
 * configuration (`of`: a reference; a pass of its own is made for it): out[at[i] + j] is that of response token j of sequence i.
 * Ranks share the work, and all have all of it in the end. */
enum cairn_status cairn_trainer_logprobs(struct cairn_trainer *t, const struct cairn_model *of, const struct cairn_sequence *s,
                                         int64_t n, const int64_t *at, float temperature, float *out, struct cairn_error *err);

#endif
