/* recorded.c - which recipes train on recorded responses (recorded.h). */
#include "stages/common/recorded.h"

#include <string.h>

#include "stages/common/columns.h"

static int is(const struct cairn_recipe *recipe, const char *key, const char *word)
{
    return !strcmp(cairn_recipe_str(recipe, key), word);
}

/* train.truncation: correct of a recipe whose sampler truncates: it holds the weights against numbers that only our sampler writes. */
static int asks_sampled(const struct cairn_recipe *recipe)
{
    return cairn_recipe_has(recipe, "train.truncation") && is(recipe, "train.truncation", "correct") &&
           (cairn_recipe_f64(recipe, "rollout.top_p") < 1 || cairn_recipe_i64(recipe, "rollout.top_k") > 0 ||
            cairn_recipe_f64(recipe, "rollout.min_p") > 0);
}

enum cairn_status cairn_recorded_look(struct cairn_reader *rollouts, int *recorded, int *logprobs, struct cairn_error *err)
{
    int units;
    enum cairn_status st = cairn_unit_count(rollouts, &units, err);

    if (st != CAIRN_OK)
        return st;
    *recorded = !json_object_get(cairn_reader_manifest(rollouts)->content, "policy");
    *logprobs = units > 0 && cairn_unit_has(rollouts, 0, "logprobs");
    return CAIRN_OK;
}

enum cairn_status cairn_recorded_refusal(const struct cairn_recipe *recipe)
{
    return cairn_recipe_has(recipe, "run.origin") ? CAIRN_ERECIPE : CAIRN_EDATA;
}

enum cairn_status cairn_recorded_check(const struct cairn_recipe *recipe, int logprobs, const char *where, struct cairn_error *err)
{
    if (is(recipe, "train.loss", "sft"))
        return CAIRN_OK;
    if (!logprobs && !is(recipe, "train.correction.kind", "none"))
        return cairn_fail(err, CAIRN_ERECIPE,
                          "%s: these rollouts came without the sampler's log-probabilities, which train.correction: %s needs; use none or loss: sft",
                          where, cairn_recipe_str(recipe, "train.correction.kind"));
    if (logprobs && is(recipe, "train.on_policy", "require"))
        return cairn_fail(err, cairn_recorded_refusal(recipe),
                          "%s was sampled by a policy that is not known here, and train.on_policy: require refuses that; correct, with a "
                          "train.correction, takes such rollouts",
                          where);
    if (asks_sampled(recipe))
        return cairn_fail(err, cairn_recorded_refusal(recipe),
                          "%s came without the log-probabilities over what was drawn from, which train.truncation: correct needs; use ignore", where);
    return CAIRN_OK;
}

void cairn_recorded_keys(const struct cairn_recipe *recipe, int logprobs, struct cairn_str *out)
{
    if (logprobs) {
        cairn_str_puts(out, " train.on_policy=correct");
        if (is(recipe, "train.correction.kind", "none"))
            cairn_str_puts(out, " train.correction=tis");
        if (asks_sampled(recipe))
            cairn_str_puts(out, " train.truncation=ignore");
        return;
    }
    cairn_str_puts(out, " train.correction=none"); /* and what needs one */
    if (is(recipe, "train.on_policy", "correct"))
        cairn_str_puts(out, " train.on_policy=require");
    if (cairn_recipe_has(recipe, "train.truncation") && is(recipe, "train.truncation", "correct"))
        cairn_str_puts(out, " train.truncation=ignore");
    if (cairn_recipe_bool(recipe, "rollout.carry"))
        cairn_str_puts(out, " rollout.carry=false");
    if (cairn_recipe_i64(recipe, "run.lag") > 0)
        cairn_str_puts(out, " run.lag=0");
}
