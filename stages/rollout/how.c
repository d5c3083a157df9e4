/* how.c - how the responses of a link are drawn, from the recipe alone (rollout.h). */
#include <string.h>

#include "base/digest.h"
#include "stages/common/setup.h"
#include "stages/rollout/rollout.h"
#include "stages/rollout/units.h"

#define EVAL_STEP 0x80000000u

static const json_t *eval_set(const struct cairn_recipe *r, const char *name)
{
    const json_t *sets = cairn_recipe_get(r, "data.eval");

    for (size_t i = 0; i < json_array_size(sets); i++) {
        const json_t *v = json_array_get(sets, i);

        if (!strcmp(name, json_string_value(json_object_get(v, "name"))))
            return v;
    }
    return NULL;
}

/* Members of an evaluation set that are null leave what stands. */
static void eval_lay(struct cairn_rollout_how *h, const json_t *set)
{
    const json_t *limit = json_object_get(set, "limit"), *t = json_object_get(set, "temperature"),
                 *p = json_object_get(set, "top_p"), *cap = json_object_get(set, "max_new_tokens");

    h->samples = (int)json_integer_value(json_object_get(set, "k"));
    h->groups = -1;
    h->limit = json_is_integer(limit) ? json_integer_value(limit) : -1;
    if (json_is_number(t))
        h->temperature = (float)json_number_value(t);
    if (json_is_number(p))
        h->top_p = (float)json_number_value(p);
    if (json_is_integer(cap))
        h->max_new = json_integer_value(cap);
}

void cairn_rollout_eval_key(struct cairn_rollout_how *h, const char *set)
{
    h->step |= EVAL_STEP;
    h->seed ^= cairn_tile_seed(set);
}

enum cairn_status cairn_rollout_how(struct cairn_rollout_how *h, const struct cairn_recipe *r, const struct cairn_link *l,
                                    struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const json_t *set;

    *h = (struct cairn_rollout_how){.samples = (int)cairn_recipe_i64(r, "rollout.samples"),
                                    .groups = cairn_recipe_i64(r, "rollout.prompts"),
                                    .limit = -1,
                                    .max_new = cairn_recipe_i64(r, "rollout.max_new_tokens"),
                                    .temperature = (float)cairn_recipe_f64(r, "rollout.temperature"),
                                    .top_p = (float)cairn_recipe_f64(r, "rollout.top_p"),
                                    .min_p = (float)cairn_recipe_f64(r, "rollout.min_p"),
                                    .seed = (uint64_t)cairn_recipe_i64(r, "run.seed"),
                                    .step = (uint32_t)l->step};
    h->top_k = cairn_recipe_i64(r, "rollout.top_k") > INT32_MAX ? 0 : (int)cairn_recipe_i64(r, "rollout.top_k");
    if (l->eval) {
        set = eval_set(r, l->eval);
        if (!set)
            TRY(CAIRN_BUG(err, "an evaluation set that the recipe does not have"));
        eval_lay(h, set);
        cairn_rollout_eval_key(h, l->eval);
    }
    for (size_t i = 0; !l->eval && i < json_array_size(cairn_recipe_list(r, "rollout.store")); i++)
        h->experts |= !strcmp(json_string_value(json_array_get(cairn_recipe_list(r, "rollout.store"), i)), "experts");
    if (!(h->temperature > 0)) {
        h->greedy = 1;
        h->temperature = 1;
    }
    h->truncates = !h->greedy && (h->top_p < 1 || h->top_k > 0 || h->min_p > 0);
out:
    return st;
}

struct cairn_engine_opts cairn_rollout_engine(const struct cairn_rollout_how *h, const struct cairn_recipe *r,
                                              struct cairn_prompting *p)
{
    return (struct cairn_engine_opts){.batch = (int)cairn_recipe_i64(r, "rollout.batch"),
                                      .page = (int)cairn_recipe_i64(r, "rollout.page"),
                                      .seed = h->seed,
                                      .step = h->step,
                                      .temperature = h->temperature,
                                      .top_p = h->top_p,
                                      .min_p = h->min_p,
                                      .top_k = h->top_k,
                                      .greedy = h->greedy,
                                      .graphs = cairn_setup_graphs(r),
                                      .sampled = h->truncates,
                                      .experts = h->experts,
                                      .barred = p->barred,
                                      .stop = p->stop.p,
                                      .stops = (int)p->stop.n,
                                      .ended = p->texts ? cairn_prompting_ended : NULL,
                                      .ended_arg = p};
}

int64_t cairn_rollout_refill(int64_t want, int64_t groups, int64_t mixed)
{
    int64_t missing = want - mixed, n = want;

    if (missing <= 0)
        return 0;
    if (mixed > 0 && groups / mixed < want / missing) /* else it would be more than `want` anyway */
        n = (missing * groups + mixed - 1) / mixed;
    if (n > want)
        n = want;
    return n + (CAIRN_UNIT_GROUPS - (groups + n) % CAIRN_UNIT_GROUPS) % CAIRN_UNIT_GROUPS; /* whole units */
}
