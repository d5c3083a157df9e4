/* rules.c - what no single key shows: combinations that cannot work, told before anything is queued.
 *
 * Rules that reach over sections hold for whole recipes only; a part may leave the other section to the recipe that it is laid on.
 */
#include <string.h>

#include "base/file.h"
#include "recipe/check.h"

static int is(const struct cairn_recipe *r, const char *path, const char *word)
{
    return strcmp(cairn_recipe_str(r, path), word) == 0;
}

static int power_of_two(int64_t x)
{
    return x > 0 && (x & (x - 1)) == 0;
}

static enum cairn_status model(const struct cairn_recipe *r, struct cairn_error *err)
{
    int from = cairn_recipe_has(r, "model.from"), init = cairn_recipe_has(r, "model.init");

    if (from && init)
        return cairn_recipe_fail(r, "model.init", err, "model.from is given too; set one of them to null");
    if (!r->whole)
        return CAIRN_OK;
    if (!from && !init)
        return cairn_recipe_fail(r, "model", err, "give model.from (an imported checkpoint) or model.init (keys of a config.json)");
    if (init && !cairn_recipe_has(r, "model.tokenizer"))
        return cairn_recipe_fail(r, "model.tokenizer", err, "missing, and model.init brings none");
    return CAIRN_OK;
}

static enum cairn_status data(const struct cairn_recipe *r, struct cairn_error *err)
{
    const json_t *eval = cairn_recipe_list(r, "data.eval");
    char path[64];

    if (r->whole && cairn_recipe_i64(r, "run.steps") > 0 && json_array_size(cairn_recipe_list(r, "data.prompts")) == 0)
        return cairn_recipe_fail(r, "data.prompts", err, "no prompt file; a run of run.steps > 0 needs one");
    for (size_t i = 0; i < json_array_size(eval); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(eval, i), "name"));

        snprintf(path, sizeof path, "data.eval.%zu.name", i);
        if (!cairn_name_ok(name))
            return cairn_recipe_fail(r, path, err, "\"%.60s\" is no name: letters, digits, '.', '_' and '-', at most 128", name);
        for (size_t j = 0; j < i; j++)
            if (strcmp(name, json_string_value(json_object_get(json_array_get(eval, j), "name"))) == 0)
                return cairn_recipe_fail(r, path, err, "\"%s\" is the name of data.eval.%zu too", name, j);
    }
    return CAIRN_OK;
}

static enum cairn_status rollout(const struct cairn_recipe *r, struct cairn_error *err)
{
    if (!power_of_two(cairn_recipe_i64(r, "rollout.page")))
        return cairn_recipe_fail(r, "rollout.page", err, "%lld is no power of two", (long long)cairn_recipe_i64(r, "rollout.page"));
    if (cairn_recipe_bool(r, "rollout.carry") && !cairn_recipe_has(r, "rollout.dynamic"))
        return cairn_recipe_fail(r, "rollout.carry", err, "only rollout.dynamic leaves surplus groups to carry");
    if (cairn_recipe_i64(r, "rollout.tasks") > 1 && cairn_recipe_has(r, "rollout.dynamic"))
        return cairn_recipe_fail(
            r, "rollout.tasks", err,
            "%lld: with rollout.dynamic the candidates depend on verdicts about earlier ones, which independent tasks cannot know; "
            "use replicas (rollout.parallel.dp)",
            (long long)cairn_recipe_i64(r, "rollout.tasks"));
    if (!r->whole)
        return CAIRN_OK;
    if (!cairn_recipe_has(r, "train.truncation")) {
        const char *by = cairn_recipe_f64(r, "rollout.top_p") < 1   ? "rollout.top_p"
                         : cairn_recipe_i64(r, "rollout.top_k") > 0 ? "rollout.top_k"
                         : cairn_recipe_f64(r, "rollout.min_p") > 0 ? "rollout.min_p"
                                                                    : NULL;

        if (by)
            return cairn_recipe_fail(r, by, err, "truncates sampling, so train.truncation must be said (ignore or correct)");
    }
    return CAIRN_OK;
}

static enum cairn_status score(const struct cairn_recipe *r, struct cairn_error *err)
{
    double right = cairn_recipe_f64(r, "score.reward.right");

    if (right == cairn_recipe_f64(r, "score.reward.wrong"))
        return cairn_recipe_fail(r, "score.reward.right", err, "%g is the reward of a wrong answer too: nothing could be learned",
                                 right);
    if (r->whole && cairn_recipe_has(r, "score.overlong")) {
        int64_t buffer = cairn_recipe_i64(r, "score.overlong.buffer"), cap = cairn_recipe_i64(r, "rollout.max_new_tokens");

        if (buffer > cap)
            return cairn_recipe_fail(r, "score.overlong.buffer", err, "%lld is more than rollout.max_new_tokens, %lld",
                                     (long long)buffer, (long long)cap);
    }
    return CAIRN_OK;
}

static enum cairn_status train(const struct cairn_recipe *r, struct cairn_error *err)
{
    int corrected = !is(r, "train.correction.kind", "none");
    double low = cairn_recipe_f64(r, "train.correction.low"), high = cairn_recipe_f64(r, "train.correction.high");
    int64_t updates = cairn_recipe_i64(r, "train.updates_per_step"), prompts = cairn_recipe_i64(r, "rollout.prompts");
    struct cairn_yaml_place at;

    if (low >= high)
        return cairn_recipe_fail(r, "train.correction.low", err, "%g is not below train.correction.high, %g", low, high);
    if (cairn_recipe_has(r, "train.clip.dual") && is(r, "train.ratio", "cispo"))
        return cairn_recipe_fail(r, "train.clip.dual", err, "has no meaning with train.ratio: cispo");
    if (!r->whole)
        return CAIRN_OK;
    if (updates > prompts && !cairn_yaml_node_place(r->root, "train.updates_per_step", &at)) /* point at what was written */
        return cairn_recipe_fail(r, "rollout.prompts", err,
                                 "%lld is less than train.updates_per_step, %lld: each update needs a group of its own",
                                 (long long)prompts, (long long)updates);
    if (updates > prompts)
        return cairn_recipe_fail(r, "train.updates_per_step", err,
                                 "%lld is more than rollout.prompts, %lld: each update needs a group of its own",
                                 (long long)updates, (long long)prompts);
    if (is(r, "train.on_policy", "correct") && !corrected)
        return cairn_recipe_fail(r, "train.on_policy", err, "correct needs a train.correction other than none");
    if (cairn_recipe_has(r, "train.truncation") && is(r, "train.truncation", "correct") && !corrected)
        return cairn_recipe_fail(r, "train.truncation", err, "correct needs a train.correction other than none: its weights do it");
    if (cairn_recipe_bool(r, "rollout.carry") && !corrected)
        return cairn_recipe_fail(r, "rollout.carry", err,
                                 "carried groups are of an older policy and need a train.correction other than none");
    if (cairn_recipe_i64(r, "run.lag") > 0 && !corrected)
        return cairn_recipe_fail(r, "run.lag", err, "rollouts of an older policy need a train.correction other than none");
    return CAIRN_OK;
}

/* Every stage once, in the order of the chain. */
static enum cairn_status jobs(const struct cairn_recipe *r, struct cairn_error *err)
{
    static const char *const chain[] = {"rollout", "score", "train", "sync"};
    const json_t *list = cairn_recipe_list(r, "slurm.jobs");
    size_t at = 0, i, k;
    json_t *job, *stage;

    json_array_foreach(list, i, job)
    {
        if (json_array_size(job) == 0)
            return cairn_recipe_fail(r, "slurm.jobs", err, "job %zu has no stage", i);
        json_array_foreach(job, k, stage)
        {
            if (at == 4 || strcmp(json_string_value(stage), chain[at]) != 0)
                return cairn_recipe_fail(r, "slurm.jobs", err,
                                         "\"%s\" where %s: every stage once, in the order rollout, score, train, sync",
                                         json_string_value(stage), at == 4 ? "nothing is left to do" : chain[at]);
            at++;
        }
    }
    if (at < 4)
        return cairn_recipe_fail(r, "slurm.jobs", err, "\"%s\" is in no job", chain[at]);
    return CAIRN_OK;
}

/* Where trainer and sampler are never alive at once there is no memory to hand over in. */
static enum cairn_status sync(const struct cairn_recipe *r, struct cairn_error *err)
{
    const char *path = cairn_recipe_str(r, "sync.path");

    if (!strcmp(cairn_recipe_str(r, "run.mode"), "resident") || !strcmp(path, "auto") || !strcmp(path, "file"))
        return CAIRN_OK;
    return cairn_recipe_fail(r, "sync.path", err, "%s: trainer and sampler are alive at once in run.mode: resident only; take auto or file", path);
}

enum cairn_status cairn_recipe_rules(const struct cairn_recipe *r, struct cairn_error *err)
{
    enum cairn_status st;

    TRY(model(r, err));
    TRY(data(r, err));
    TRY(rollout(r, err));
    TRY(score(r, err));
    TRY(train(r, err));
    TRY(jobs(r, err));
    TRY(sync(r, err));
    if (!power_of_two(cairn_recipe_i64(r, "numerics.segments")))
        TRY(cairn_recipe_fail(r, "numerics.segments", err, "%lld is no power of two",
                              (long long)cairn_recipe_i64(r, "numerics.segments")));
out:
    return st;
}
