/* begin.h - where a run's model comes from: the tokenizer, RUN/base and policy 0. All idempotent. */
#ifndef CAIRN_STAGES_COMMON_BEGIN_H
#define CAIRN_STAGES_COMMON_BEGIN_H

#include "model/config.h"
#include "stages/common/run.h"

/* malloc'ed path of the tokenizer.json that the recipe means: model.tokenizer (a file, or a directory that holds one), else the one
 * that came with model.from. */
enum cairn_status cairn_begin_tokenizer(const struct cairn_recipe *recipe, char **path, struct cairn_error *err);

/* The configuration that the recipe means: of its checkpoint, or its own. The caller frees it. */
enum cairn_status cairn_begin_config(struct cairn_model_config *c, const struct cairn_recipe *recipe, struct cairn_error *err);

/* Everything about a recipe that can be known before a run is made of it and that the schema cannot tell: CAIRN_ERECIPE for a checkpoint that
 * is none, a configuration that makes no model, an adapter that does not fit it, a tokenizer with more ids than the vocabulary, a template
 * whose tokens it lacks, an unknown grader, a prompt file that is not there; CAIRN_EDATA "FILE:LINE: ..." for one with a broken line. */
enum cairn_status cairn_begin_check(const struct cairn_recipe *recipe, struct cairn_error *err);

/* The same for a recipe that amends run r, whose files and model stay as they are: a template must fit the run's tokenizer,
 * graders that it names must be there. */
enum cairn_status cairn_begin_amended(const struct cairn_run *r, const struct cairn_recipe *recipe, struct cairn_error *err);

/* RUN/base: model.from, a checkpoint that `cairn import` made, linked; or model.init, random weights from run.seed, committed
 * there as a base artefact. */
enum cairn_status cairn_begin_base(struct cairn_run *r, struct cairn_error *err);

/* policy/000000 for a run without a warm start: the base as the sampler loads it (LoRA: with a fresh adapter, whose B is zero). */
enum cairn_status cairn_begin_policy(struct cairn_run *r, struct cairn_error *err);

#endif
