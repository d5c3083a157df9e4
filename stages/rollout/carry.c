/* carry.c - see carry.h. */
#include "stages/rollout/carry.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "stages/rollout/units.h"

void cairn_carry_close(struct cairn_carry *c)
{
    cairn_rollouts_free(&c->r);
    free(c->first);
    free(c->experts);
    memset(c, 0, sizeof *c);
}

/* Were the verdicts of rollouts [begin, end), one group, mixed when the step before looked at them? */
static int group_mixed(const struct cairn_rollouts *r, int64_t begin, int64_t end, const struct cairn_recipe *was)
{
    double right = cairn_recipe_f64(was, "score.reward.right"), wrong = cairn_recipe_f64(was, "score.reward.wrong");
    int zero = !strcmp(cairn_recipe_str(was, "score.reward.truncated"), "zero");
    struct cairn_spread s = {0};

    for (int64_t i = begin; i < end; i++)
        cairn_spread_add(&s, cairn_units_raw(right, wrong, zero, r->value[i], r->finish[i]), r->value[i]);
    return cairn_spread_mixed(&s);
}

/* What a response hangs on besides the policy: with another value of one of these it would be another's. */
static const struct {
    const char *key, *why;
} alike[] = {
    {"data.prompts", "data.prompts was another"},
    {"data.template", "data.template was another"},
    {"data.thinking", "data.thinking was another"},
    {"data.effort", "data.effort was another"},
    {"data.added_in_prompt", "data.added_in_prompt was another"},
    {"rollout.max_new_tokens", "rollout.max_new_tokens was another"},
    {"rollout.top_p", "rollout.top_p was another"},
    {"rollout.top_k", "rollout.top_k was another"},
    {"rollout.min_p", "rollout.min_p was another"},
    {"rollout.stop", "rollout.stop was another"},
};

/* What keeps all of them from being carried; NULL: nothing. */
static const char *hindrance(const struct cairn_carry *c, const struct cairn_manifest *m, const struct cairn_recipe *was,
                             const struct cairn_recipe *now, const struct cairn_rollout_how *how)
{
    const json_t *t = json_object_get(m->content, "temperature");

    if (!c->r.logprobs || !json_is_string(json_object_get(m->content, "policy")))
        return "they came from outside";
    if ((c->r.logprobs_sampled != NULL) != how->truncates)
        return "they were drawn with another truncation";
    if ((c->r.experts != NULL) != how->experts)
        return "their choices of experts were kept, or not, as rollout.store then said";
    if ((float)json_number_value(t) != (how->greedy ? 0 : how->temperature))
        return "they were drawn at another temperature";
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++) {
        const json_t *a = cairn_recipe_get(was, alike[i].key), *b = cairn_recipe_get(now, alike[i].key);

        if (a != b && !json_equal(a, b))
            return alike[i].why;
    }
    return NULL;
}

enum cairn_status cairn_carry_open(struct cairn_carry *c, struct cairn_reader *before, const struct cairn_recipe *was,
                                   const struct cairn_recipe *now, const struct cairn_rollout_how *how, struct cairn_error *err)
{
    const struct cairn_manifest *m = cairn_reader_manifest(before);
    const json_t *dynamic = json_object_get(m->content, "dynamic");
    int64_t surplus = json_integer_value(json_object_get(dynamic, "surplus")), longest = 0;
    enum cairn_status st = CAIRN_OK;
    const char *why;

    if (surplus < 1)
        return CAIRN_OK; /* the shards need not be read */
    TRY(cairn_rollouts_load(&c->r, before, err));
    c->first = calloc((size_t)surplus, sizeof *c->first);
    if (!c->first)
        TRY(CAIRN_NOMEM(err));
    for (int64_t begin = 0, end; begin < c->r.n; begin = end) {
        int mixed;

        for (end = begin; end < c->r.n && c->r.group[end] == c->r.group[begin]; end++)
            longest = c->r.offsets[end + 1] - c->r.offsets[end] > longest ? c->r.offsets[end + 1] - c->r.offsets[end] : longest;
        if (c->r.used[begin] || !c->r.value)
            continue;
        mixed = group_mixed(&c->r, begin, end, was);
        if (mixed && c->n == surplus)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: more than the %lld surplus groups that it says", cairn_reader_path(before),
                           (long long)surplus));
        if (mixed)
            c->first[c->n++] = begin;
    }
    if (c->n != surplus)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %lld surplus groups, it says %lld", cairn_reader_path(before), (long long)c->n,
                       (long long)surplus));
    c->step = m->step;
    why = hindrance(c, m, was, now, how);
    for (int64_t k = 0; !why && k < c->n; k++)
        if (c->first[k] + how->samples > c->r.n || c->r.group[c->first[k] + how->samples - 1] != c->r.group[c->first[k]] ||
            (c->first[k] + how->samples < c->r.n && c->r.group[c->first[k] + how->samples] == c->r.group[c->first[k]]))
            why = "groups had another size";
    if (why) {
        cairn_warn("%lld surplus groups of step %lld are sampled again: %s", (long long)c->n, (long long)c->step, why);
        cairn_carry_close(c);
        goto out;
    }
    memcpy(c->policy, json_string_value(json_object_get(m->content, "policy")),
           strnlen(json_string_value(json_object_get(m->content, "policy")), 32));
    if (c->r.experts && !(c->experts = calloc((size_t)(longest * c->r.expert_row) + 1, sizeof *c->experts)))
        TRY(CAIRN_NOMEM(err));
out:
    if (st != CAIRN_OK)
        cairn_carry_close(c);
    return st;
}

enum cairn_status cairn_carry_next(struct cairn_carry *c, int64_t prompt_id, int64_t *from, struct cairn_ids *ids,
                                   struct cairn_error *err)
{
    int64_t i;

    *from = -1;
    if (c->next == c->n)
        return CAIRN_OK;
    i = c->first[c->next++];
    if (c->r.prompt_id[i] != prompt_id)
        return cairn_fail(err, CAIRN_EDATA, "step %lld: the cursor does not begin with its surplus groups", (long long)c->step);
    if (cairn_rollout_is_carried(&c->r, i))
        return CAIRN_OK; /* once is enough */
    if (!cairn_ids_reserve(ids, c->r.prompt_length[i]))
        return CAIRN_NOMEM(err);
    memcpy(ids->p + ids->n, c->r.tokens + c->r.offsets[i], (size_t)c->r.prompt_length[i] * sizeof *ids->p);
    ids->n += c->r.prompt_length[i];
    *from = c->r.group[i];
    return CAIRN_OK;
}

/* -1: there is none. */
static int64_t rollout_of(const struct cairn_carry *c, int64_t from, int s)
{
    for (int64_t k = 0; k < c->n; k++)
        if (c->r.group[c->first[k]] == from)
            return s >= 0 && c->first[k] + s < c->r.n && c->r.group[c->first[k] + s] == from ? c->first[k] + s : -1;
    return -1;
}

enum cairn_status cairn_carry_response(struct cairn_carry *c, int64_t from, int s, int64_t tag, struct cairn_response *r,
                                       struct cairn_error *err)
{
    int64_t i = rollout_of(c, from, s), n, rows;

    if (i < 0)
        return CAIRN_BUG(err, "a response that the step before has not");
    n = cairn_rollout_length(&c->r, i);
    rows = c->r.prompt_length[i] + n - 1;
    *r = (struct cairn_response){.tag = tag,
                                 .sample = s,
                                 .n = n,
                                 .tokens = c->r.tokens + c->r.offsets[i] + c->r.prompt_length[i],
                                 .logprobs = c->r.logprobs + c->r.response[i],
                                 .logprobs_sampled = c->r.logprobs_sampled ? c->r.logprobs_sampled + c->r.response[i] : NULL,
                                 .finish = (enum cairn_finish)c->r.finish[i]};
    if (c->r.experts) {
        const char *h = (const char *)c->r.experts + (size_t)((c->r.offsets[i] - i) * c->r.expert_row) * (size_t)c->r.expert_bytes;

        for (int64_t k = 0; k < rows * c->r.expert_row; k++)
            c->experts[k] = c->r.expert_bytes == 1 ? ((const uint8_t *)h)[k] : ((const int32_t *)(const void *)h)[k];
        r->experts_prompt = c->experts;
        r->experts = c->experts + (c->r.prompt_length[i] - 1) * c->r.expert_row;
    }
    return CAIRN_OK;
}
