/* setup.h - from a recipe's keys to what the rooms below want: a compute handle, an adapter, a published dtype, a template. */
#ifndef CAIRN_STAGES_COMMON_SETUP_H
#define CAIRN_STAGES_COMMON_SETUP_H

#include "kernels/backend.h"
#include "model/adapter.h"
#include "recipe/recipe.h"
#include "stages/common/run.h"
#include "text/template.h"
#include "world/nodestore.h"

/* What two fp32 or bf16 implementations of one model may differ by in the log-probability of a single token without anything being wrong:
 * mismatch.max: auto, where trainer and sampler carry different numerics, and another system's numbers beside ours. */
#define CAIRN_NUMERICS_BAND 0.05

/* kernels.backend, kernels.precision, kernels.dsa, kernels.threads (threads > 0 overrides) of the run's recipe. rank: among those of this node,
 * which says whose device it takes; 0 alone. What is found out about a GPU is kept in RUN/log. */
enum cairn_status cairn_setup_compute(struct cairn_compute *k, const struct cairn_run *run, int threads, int rank, struct cairn_error *err);
/* The same in f32, whatever kernels.precision says. *narrow: 1 where the recipe itself would take another type. */
enum cairn_status cairn_setup_compute_wide(struct cairn_compute *k, const struct cairn_run *run, int threads, int *narrow, struct cairn_error *err);
/* Host memory, whatever the recipe computes on: for first weights, which have the same bits everywhere, so that a run can be made where
 * it will not be run. */
enum cairn_status cairn_setup_host(struct cairn_compute *k, const struct cairn_recipe *r, struct cairn_error *err);
/* kernels.graphs: 1 for auto. */
int cairn_setup_graphs(const struct cairn_recipe *r);
/* sync.dtype */
enum cairn_dtype cairn_setup_dtype(const struct cairn_recipe *r);
/* model.adapter: *lora = 0 and nothing made when the recipe trains full weights. */
enum cairn_status cairn_setup_adapter(struct cairn_adapter *a, int *lora, const struct cairn_param_table *base,
                                      const struct cairn_model_config *c, const struct cairn_recipe *r, struct cairn_error *err);
/* sync.node_store: 0 where there is none. The path is borrowed from the recipe. */
int cairn_setup_node_store(struct cairn_nodestore_opts *o, const struct cairn_recipe *r);
/* data.thinking, data.effort, data.added_in_prompt; strings are borrowed from the recipe. */
struct cairn_template_opts cairn_setup_template(const struct cairn_recipe *r);
/* The content of a policy (model/policy.h) published in dtype: with an adapter (NULL: full weights) standing on `base`. NULL without
 * memory. */
json_t *cairn_setup_policy_content(const struct cairn_model_config *c, const struct cairn_param_table *table, const struct cairn_adapter *a,
                                   struct cairn_digest base, enum cairn_dtype dtype);

#endif
