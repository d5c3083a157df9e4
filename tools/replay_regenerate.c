/* replay_regenerate.c - makes stored rollouts again from the policy that made them, and compares bits (replay.h).
 *
 * A response depends on the policy, the prompt and its key alone, not on what else was sampled: so any share of the rollouts can be
 * made again by itself. What is compared: the prompt's tokens with the prompt file's, the response's tokens, why it ended, and the
 * bits of each log-probability. The share is exact and the choice is Philox's: the same call looks at the same rollouts. Rollouts
 * that were carried from the step before (rollout.carry) are made again there; here all of them are held against what that step
 * has. Writes nothing.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/philox.h"
#include "ckpt/attempt.h"
#include "ckpt/retention.h"
#include "model/policy.h"
#include "stages/common/prompting.h"
#include "stages/common/setup.h"
#include "stages/rollout/cursor.h"
#include "stages/rollout/rollout.h"
#include "tools/cli.h"
#include "tools/replay.h"
#include "tools/replay_stored.h"

struct job {
    const struct cairn_replay_opts *o;
    struct cairn_run *run;
    struct cairn_compute k;
    char *tokenizer;
    int64_t made, different;  /* over all links */
    struct cairn_error first; /* the first difference */
};

/* One link at work. */
struct work {
    struct job *job;
    struct cairn_stored in;
    struct cairn_rollout_how how;
    struct cairn_policy policy;
    struct cairn_model model;
    struct cairn_prompting prompting;
    uint8_t *chosen; /* (rollouts) */
    int64_t n;       /* chosen ones */
    int64_t tokens, different;
    int64_t carried; /* held against the step before */
    struct cairn_ids ids;
};

static void work_close(struct work *w)
{
    cairn_prompting_close(&w->prompting);
    cairn_policy_close(&w->policy);
    cairn_stored_close(&w->in);
    cairn_ids_free(&w->ids);
    free(w->chosen);
}

/* ---- which ---------------------------------------------------------------------------------------------------------- */

struct ticket {
    uint32_t draw;
    int64_t rollout;
};

static int by_draw(const void *a, const void *b)
{
    const struct ticket *x = a, *y = b;

    if (x->draw != y->draw)
        return x->draw < y->draw ? -1 : 1;
    return (x->rollout > y->rollout) - (x->rollout < y->rollout);
}

/* The share of the rollouts that the slice means: those with the smallest draws. */
static enum cairn_status choose(struct work *w, struct cairn_error *err)
{
    const struct cairn_philox_key key = {w->how.seed, CAIRN_PURPOSE_PROBE, w->how.step};
    struct ticket *t = calloc((size_t)w->in.r.n + 1, sizeof *t);
    enum cairn_status st = CAIRN_OK;
    int64_t m = 0, want;

    w->chosen = calloc((size_t)w->in.r.n + 1, 1);
    if (!t || !w->chosen)
        TRY(CAIRN_NOMEM(err));
    for (int64_t i = 0; i < w->in.r.n; i++) {
        uint32_t word[4];

        if (!cairn_stored_takes(&w->in, &w->job->o->only, i) || w->in.r.finish[i] == CAIRN_FINISH_ABORTED ||
            cairn_rollout_is_carried(&w->in.r, i))
            continue;
        cairn_philox(&key, (uint32_t)i, 0, 1, word);
        t[m++] = (struct ticket){word[0], i};
    }
    qsort(t, (size_t)m, sizeof *t, by_draw);
    want = (int64_t)((double)m * w->job->o->share);
    want += (double)want < (double)m * w->job->o->share; /* rounded up: of few at least one */
    for (int64_t k = 0; k < want; k++)
        w->chosen[t[k].rollout] = 1;
    w->n = want;
out:
    free(t);
    return st;
}

/* ---- from what ------------------------------------------------------------------------------------------------------ */

/* *there 0: the policy was collected, which was told. */
static enum cairn_status policy_open(struct work *w, int *there, struct cairn_error *err)
{
    const struct cairn_run *run = w->job->run;
    const struct cairn_link from = cairn_link_sampled(run, &w->in.link);
    const char *made_by = json_string_value(json_object_get(cairn_reader_manifest(w->in.reader)->content, "policy"));
    char *dir = cairn_link_path(run, &from), *base = cairn_run_path(run, "base"), hex[33];
    enum cairn_status st = CAIRN_OK;

    *there = 0;
    if (!dir || !base)
        TRY(CAIRN_NOMEM(err));
    if (!made_by)
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s holds recorded responses: no policy here made them", w->in.name));
    if (cairn_artefact_collected(dir)) {
        cairn_warn("%s was collected: %s cannot be made again", dir, w->in.name);
        goto out;
    }
    TRY(cairn_policy_open(&w->policy, dir, &(struct cairn_policy_opts){.base = base, .quiet = 1}, &w->job->k, err));
    cairn_digest_hex(w->policy.digest, hex);
    if (strcmp(hex, made_by))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s was sampled from policy %.32s, %s is %s", w->in.name, made_by, dir, hex));
    w->model = (struct cairn_model){.k = &w->job->k,
                                    .config = &w->policy.config,
                                    .weights = &w->policy.weights,
                                    .adapter = w->policy.lora ? &w->policy.adapter : NULL,
                                    .adapter_weights = w->policy.lora ? &w->policy.adapter_weights : NULL,
                                    .segments = (int)cairn_recipe_i64(run->recipe, "numerics.segments")};
    *there = 1;
out:
    free(dir);
    free(base);
    return st;
}

/* ---- comparing ------------------------------------------------------------------------------------------------------ */

static void differs(struct work *w, int64_t i, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void differs(struct work *w, int64_t i, const char *fmt, ...)
{
    const struct cairn_rollouts *r = &w->in.r;
    char what[300];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    w->different++;
    if (!w->job->different++)
        cairn_fail(&w->job->first, CAIRN_ENUMERIC, "%s: rollout %lld (group %d, sample %d) %s", w->in.name, (long long)i,
                   r->group[i], r->sample[i], what);
}

/* Are the stored prompts of the group [begin, end) what the prompt file and the template say? A rollout whose is not is told, and
 * not made. */
static enum cairn_status prompts_check(struct work *w, int64_t begin, int64_t end, struct cairn_error *err)
{
    const struct cairn_rollouts *r = &w->in.r;
    int64_t file = r->prompt_id[begin] >> 32, row = r->prompt_id[begin] & 0xffffffff;
    int there = cairn_stored_prompt(&w->in, begin) != NULL;
    enum cairn_status st = CAIRN_OK;

    w->ids.n = 0;
    if (there)
        TRY(cairn_prompting_ids(&w->prompting, &w->in.files[file], row, w->how.max_new, &w->policy.config, &w->ids, err));
    for (int64_t i = begin; i < end; i++) {
        const int32_t *stored = r->tokens + r->offsets[i];
        int64_t n = r->prompt_length[i], k = 0;

        if (!w->chosen[i])
            continue;
        while (k < w->ids.n && k < n && stored[k] == w->ids.p[k])
            k++;
        if (there && r->prompt_id[i] == r->prompt_id[begin] && w->ids.n == n && k == n)
            continue;
        w->chosen[i] = 0;
        if (!there)
            differs(w, i, "is of prompt %lld of file %lld, which does not exist", (long long)row, (long long)file);
        else
            differs(w, i, "has another prompt than the prompt file: prompt token %lld is %d, not %d", (long long)k,
                    k < n ? stored[k] : -1, k < w->ids.n ? w->ids.p[k] : -1);
    }
out:
    return st;
}

/* 1: all of them have equal bits; else *at is the first that has not. */
static int floats_equal(const float *a, const float *b, int64_t n, int64_t *at)
{
    for (*at = 0; *at < n; ++*at)
        if (memcmp(&a[*at], &b[*at], sizeof *a))
            return 0;
    return 1;
}

static const char *experts_of(const struct cairn_rollouts *r, int64_t i)
{
    return (const char *)r->experts + (size_t)((r->offsets[i] - i) * r->expert_row) * (size_t)r->expert_bytes;
}

/* The routers' choices for rollout i against those made again: 1 equal, else *at is the token. */
static int experts_equal(const struct cairn_rollouts *r, int64_t i, const struct cairn_response *p, int64_t *at)
{
    int64_t rows = r->offsets[i + 1] - r->offsets[i] - 1, row = r->expert_row, prompt = r->prompt_length[i] - 1;
    const char *stored = experts_of(r, i);

    for (*at = 0; *at < rows; ++*at) {
        const int32_t *made = *at < prompt ? p->experts_prompt + *at * row : p->experts + (*at - prompt) * row;

        for (int64_t k = *at * row; k < (*at + 1) * row; k++)
            if (made[k - *at * row] !=
                (r->expert_bytes == 1 ? ((const uint8_t *)stored)[k] : ((const int32_t *)(const void *)stored)[k]))
                return 0;
    }
    return 1;
}

static enum cairn_status compare(void *arg, const struct cairn_response *p, struct cairn_error *err)
{
    struct work *w = arg;
    const struct cairn_rollouts *r = &w->in.r;
    int64_t i = p->tag + p->sample, n = cairn_rollout_length(r, i), least = n < p->n ? n : p->n, k = 0;
    const int32_t *stored = r->tokens + r->offsets[i] + r->prompt_length[i];

    (void)err;
    w->tokens += p->n;
    while (k < least && stored[k] == p->tokens[k])
        k++;
    if (k < least)
        differs(w, i, "has response token %lld = %d (log-probability %.9g); made again it is %d (%.9g)", (long long)k, stored[k],
                r->logprobs ? (double)r->logprobs[r->response[i] + k] : 0.0, p->tokens[k], (double)p->logprobs[k]);
    else if (n != p->n || r->finish[i] != p->finish)
        differs(w, i, "has %lld response tokens and ended by %s; made again it has %lld and ends by %s", (long long)n,
                cairn_finish_name(r->finish[i]), (long long)p->n, cairn_finish_name(p->finish));
    else if (r->logprobs && !floats_equal(r->logprobs + r->response[i], p->logprobs, n, &k))
        differs(w, i, "has log-probability %.9g of response token %lld; made again it is %.9g",
                (double)r->logprobs[r->response[i] + k], (long long)k, (double)p->logprobs[k]);
    else if (r->logprobs_sampled && p->logprobs_sampled &&
             !floats_equal(r->logprobs_sampled + r->response[i], p->logprobs_sampled, n, &k))
        differs(w, i, "has log-probability %.9g of response token %lld over what it was drawn from; made again it is %.9g",
                (double)r->logprobs_sampled[r->response[i] + k], (long long)k, (double)p->logprobs_sampled[k]);
    else if (r->experts && p->experts && !experts_equal(r, i, p, &k))
        differs(w, i, "has other choices of experts for token %lld than made again", (long long)k);
    return CAIRN_OK;
}

/* ---- carried -------------------------------------------------------------------------------------------------------- */

/* Rollout j of the step before that is rollout i here, looked for from *at on, as lists ascend; -1: there is none. */
static int64_t origin_of(const struct cairn_rollouts *r, int64_t i, const struct cairn_rollouts *before, int64_t *at)
{
    for (; *at < before->n && before->group[*at] <= r->carried[i]; ++*at)
        if (before->group[*at] == r->carried[i] && before->sample[*at] == r->sample[i])
            return *at;
    return -1;
}

/* Rollout i, which was carried, against rollout j of the step before. */
static void carried_compare(struct work *w, int64_t i, const struct cairn_rollouts *b, int64_t j)
{
    const struct cairn_rollouts *r = &w->in.r;
    int64_t n = r->offsets[i + 1] - r->offsets[i], m = cairn_rollout_length(r, i), at;

    if (j < 0)
        differs(w, i, "was carried from group %d of the step before, which has no such sample", r->carried[i]);
    else if (b->prompt_id[j] != r->prompt_id[i] || b->offsets[j + 1] - b->offsets[j] != n ||
             b->prompt_length[j] != r->prompt_length[i] || b->finish[j] != r->finish[i] ||
             memcmp(b->tokens + b->offsets[j], r->tokens + r->offsets[i], (size_t)n * sizeof *r->tokens))
        differs(w, i, "was carried from the step before and has other tokens there");
    else if (r->logprobs && b->logprobs && !floats_equal(r->logprobs + r->response[i], b->logprobs + b->response[j], m, &at))
        differs(w, i, "was carried from the step before, where response token %lld has log-probability %.9g, not %.9g",
                (long long)at, (double)b->logprobs[b->response[j] + at], (double)r->logprobs[r->response[i] + at]);
    else if (r->experts && b->experts && r->expert_bytes == b->expert_bytes && r->expert_row == b->expert_row &&
             memcmp(experts_of(r, i), experts_of(b, j), (size_t)((n - 1) * r->expert_row) * (size_t)r->expert_bytes))
        differs(w, i, "was carried from the step before and has other choices of experts there");
}

static enum cairn_status carried_check(struct work *w, struct cairn_error *err)
{
    const json_t *from = json_object_get(cairn_reader_manifest(w->in.reader)->content, "carried");
    const struct cairn_link l = {w->in.link.step - 1, CAIRN_STAGE_ROLLOUT, NULL};
    char *dir = cairn_link_path(w->job->run, &l);
    struct cairn_rollouts before = {0};
    struct cairn_reader *reader = NULL;
    enum cairn_status st = CAIRN_OK;
    int64_t at = 0;

    if (!dir)
        TRY(CAIRN_NOMEM(err));
    if (!from)
        goto out;
    if (json_integer_value(json_object_get(from, "step")) != l.step || !cairn_artefact_committed(dir) ||
        cairn_artefact_collected(dir)) {
        cairn_warn("%s: what was carried from step %lld is not looked at: that step's rollouts are not in this run", w->in.name,
                   (long long)json_integer_value(json_object_get(from, "step")));
        goto out;
    }
    TRY(cairn_reader_open(&reader, dir, NULL, err));
    TRY(cairn_rollouts_load(&before, reader, err));
    for (int64_t i = 0; i < w->in.r.n; i++) {
        if (!cairn_rollout_is_carried(&w->in.r, i) || !cairn_stored_takes(&w->in, &w->job->o->only, i))
            continue;
        carried_compare(w, i, &before, origin_of(&w->in.r, i, &before, &at));
        w->carried++;
    }
out:
    cairn_reader_close(reader);
    cairn_rollouts_free(&before);
    free(dir);
    return st;
}

/* ---- making --------------------------------------------------------------------------------------------------------- */

/* How many groups before the one that begins with rollout `begin` have its prompt, too: its samples were numbered behind theirs. */
static int repeats(const struct cairn_rollouts *r, int64_t begin)
{
    int n = 0;

    for (int64_t i = 0; i < begin; i++)
        n += r->prompt_id[i] == r->prompt_id[begin] && (!i || r->group[i] != r->group[i - 1]);
    return n;
}

/* Neighbours that were both chosen are one request and share their prompt. */
static enum cairn_status group_submit(struct work *w, struct cairn_engine *e, int64_t begin, int64_t end, struct cairn_error *err)
{
    const struct cairn_rollouts *r = &w->in.r;
    enum cairn_status st = CAIRN_OK;

    for (int64_t i = begin, m; i < end; i += m ? m : 1) {
        for (m = 0; i + m < end && w->chosen[i + m] && r->sample[i + m] == r->sample[i] + m; m++)
            ;
        if (!m)
            continue;
        TRY(cairn_engine_submit(e,
                                &(struct cairn_request){.prompt = r->tokens + r->offsets[i],
                                                        .length = r->prompt_length[i],
                                                        .max_new = w->how.max_new,
                                                        .samples = (int)m,
                                                        .key = cairn_prompt_key(r->prompt_id[i]),
                                                        .first_sample = repeats(r, begin) * w->how.samples + r->sample[i],
                                                        .tag = i},
                                err));
    }
out:
    return st;
}

static enum cairn_status all_make(struct work *w, struct cairn_error *err)
{
    const struct cairn_rollouts *r = &w->in.r;
    struct cairn_engine_opts o = cairn_rollout_engine(&w->how, w->job->run->recipe, &w->prompting);
    struct cairn_engine *e = NULL;
    enum cairn_status st = CAIRN_OK;

    o.max_length = 1;
    for (int64_t i = 0; i < r->n; i++)
        if (w->chosen[i] && cairn_engine_positions(r->prompt_length[i], w->how.max_new) > o.max_length)
            o.max_length = cairn_engine_positions(r->prompt_length[i], w->how.max_new);
    if (o.batch > w->n)
        o.batch = (int)w->n;
    TRY(cairn_engine_create(&e, &w->model, &o, err));
    for (int64_t begin = 0, end; begin < r->n; begin = end) {
        for (end = begin; end < r->n && r->group[end] == r->group[begin]; end++)
            ;
        if (!memchr(w->chosen + begin, 1, (size_t)(end - begin)))
            continue;
        TRY(prompts_check(w, begin, end, err));
        TRY(group_submit(w, e, begin, end, err));
    }
    TRY(cairn_engine_run(e, compare, w, err));
out:
    cairn_engine_destroy(e);
    return st;
}

static enum cairn_status tell(const struct work *w, struct cairn_error *err)
{
    if (w->job->o->json)
        return cairn_cli_json(json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "rollouts", w->in.name, "stored", (json_int_t)w->in.r.n,
                                        "regenerated", (json_int_t)w->n, "carried", (json_int_t)w->carried, "tokens",
                                        (json_int_t)w->tokens, "different", (json_int_t)w->different),
                              err);
    printf("%-34s %lld of %lld rollouts made again, %lld tokens: ", w->in.name, (long long)w->n, (long long)w->in.r.n,
           (long long)w->tokens);
    if (w->carried)
        printf("%lld carried ones held against the step before: ", (long long)w->carried);
    if (w->different)
        printf("%lld differ\n", (long long)w->different);
    else
        printf("equal bits\n");
    return cairn_cli_flush(err);
}

static enum cairn_status link_regenerate(struct job *j, const struct cairn_link *l, struct cairn_error *err)
{
    struct work w = {.job = j};
    enum cairn_status st = CAIRN_OK;
    const char *numerics;
    int there;

    cairn_run_at(j->run, l->step);
    TRY(cairn_stored_open(&w.in, j->run, l, 0, NULL, err));
    TRY(cairn_stored_fits(&w.in, &j->o->only, err));
    TRY(cairn_rollout_how(&w.how, j->run->recipe, l, err));
    TRY(choose(&w, err));
    TRY(carried_check(&w, err));
    if (!w.n) {
        if (w.carried)
            TRY(tell(&w, err));
        j->made += w.carried;
        goto out;
    }
    TRY(policy_open(&w, &there, err));
    if (!there)
        goto out;
    numerics = cairn_reader_manifest(w.in.reader)->numerics;
    if (strcmp(numerics, j->k.numerics))
        cairn_warn("%s was computed as \"%s\", this process computes as \"%s\": bits may differ and nothing be wrong", w.in.name,
                   numerics, j->k.numerics);
    TRY(cairn_prompting_open(&w.prompting, j->run->recipe, j->tokenizer, &w.policy.config, err));
    TRY(all_make(&w, err));
    TRY(tell(&w, err));
    j->made += w.n + w.carried;
out:
    work_close(&w);
    return st;
}

enum cairn_status cairn_replay_regenerate(const struct cairn_replay_opts *o, struct cairn_error *err)
{
    struct job j = {.o = o};
    enum cairn_status st = CAIRN_OK;
    struct cairn_link *link = NULL;
    int n = 0;

    TRY(cairn_run_open(&j.run, o->recipe.recipe, err));
    TRY(cairn_run_outside(j.run, "model.tokenizer", &j.tokenizer, err));
    TRY(cairn_stored_links(j.run, &o->only, 1, &link, &n, err));
    TRY(cairn_setup_compute(&j.k, j.run, 0, 0, err));
    for (int i = 0; i < n; i++)
        TRY(link_regenerate(&j, &link[i], err));
    if (!j.made)
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s: no rollout that could be made again", j.run->dir));
    if (j.different) {
        st = j.first.code;
        if (err)
            *err = j.first;
        if (j.different > 1 && err)
            cairn_error_prefix(err, "%lld of %lld rollouts differ; the first: ", (long long)j.different, (long long)j.made);
    }
out:
    free(link);
    free(j.tokenizer);
    if (j.k.backend)
        cairn_compute_close(&j.k);
    cairn_run_close(j.run);
    return st;
}
