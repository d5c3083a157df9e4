/* begin.h - where a run's model comes from: the tokenizer, RUN/base and policy 0. All idempotent. */
#ifndef CAIRN_STAGES_COMMON_BEGIN_H
#define CAIRN_STAGES_COMMON_BEGIN_H

#include "stages/common/run.h"

/* malloc'ed path of the tokenizer.json that the recipe means: model.tokenizer (a file, or a directory that holds one), else the one
 * that came with model.from. */
enum cairn_status cairn_begin_tokenizer(const struct cairn_recipe *recipe, char **path, struct cairn_error *err);

/* RUN/base: model.from, a checkpoint that `cairn import` made, linked; or model.init, random weights from run.seed, committed
 * there as a base artefact. CAIRN_ERECIPE: no such checkpoint, a configuration that makes no model, or a tokenizer with more
 * ids than the vocabulary. */
enum cairn_status cairn_begin_base(struct cairn_run *r, struct cairn_error *err);

/* policy/000000 for a run without a warm start: the base as the sampler loads it (LoRA: with a fresh adapter, whose B is zero). */
enum cairn_status cairn_begin_policy(struct cairn_run *r, struct cairn_error *err);

#endif
