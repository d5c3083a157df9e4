/* sft.h - supervised fine-tuning on worked examples: the warm start before step 1.
 *
 * Data: JSON lines {"prompt", "response"}. An example is the rendered prompt, the response's tokens, and the token that ends a
 * response for the sampler (the first one of rollout.stop, of the template, of the model; a stop string only where there is no
 * token); the loss is minus the mean log-probability (temperature 1) of the response tokens, stop token included, over the update's
 * batch. Order: a Philox permutation of the file per epoch (seed, epoch), examples one after the other, so an update's batch is a
 * pure function of its number.
 */
#ifndef CAIRN_STAGES_TRAIN_SFT_H
#define CAIRN_STAGES_TRAIN_SFT_H

#include "stages/common/stage.h"
#include "stages/train/trainer.h"

struct cairn_examples {
    int64_t n, longest;
    int32_t *tokens;
    struct cairn_sequence *sequence; /* (n) into tokens */
};

/* CAIRN_EDATA "FILE:LINE: ..." for a broken line, or an example longer than the model's positions. */
enum cairn_status cairn_examples_load(struct cairn_examples *e, const char *path, const struct cairn_recipe *recipe,
                                      const char *tokenizer, const struct cairn_model_config *config, struct cairn_error *err);
void cairn_examples_free(struct cairn_examples *e);

struct cairn_sft_stats {
    double loss;     /* mean over the last tenth of the updates */
    int64_t resumed; /* updates that an earlier attempt did */
    double stall_s;  /* time that saving updates has cost */
};

/* Runs warm_start.updates updates, from the last one on that an earlier attempt has committed (point.h). Collective over t's ranks;
 * what it returns is agreed. */
enum cairn_status cairn_sft_run(struct cairn_stage_ctx *ctx, struct cairn_trainer *t, const struct cairn_examples *e,
                                struct cairn_sft_stats *stats, struct cairn_error *err);

#endif
