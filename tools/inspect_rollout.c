/* inspect_rollout.c - one rollout for people (inspect.h): prompt, response, why it ended, its log-probability, and what its score
 * says. */
#include "tools/inspect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/reader.h"
#include "grade/grade.h"
#include "stages/common/rollouts.h"
#include "stages/common/prompts.h"
#include "stages/common/scores.h"
#include "text/tokenizer.h"

struct view {
    struct cairn_rollouts r;
    struct cairn_scores_table s;
    int scored;
    int64_t failed; /* the rollout of the step that `why` is about */
    char *why;      /* how its grader failed, as rollout k's did, or NULL: k's did not, or it is not on the record */
    struct cairn_tokenizer *tokenizer;
    struct cairn_str prompt, response;
    struct cairn_prompts *files; /* in a run: for the gold answer */
    int nfiles;
    const struct cairn_prompt *row; /* or NULL */
};

/* How a grader failed, in the words that the score's manifest has of the first rollout that it failed at as at rollout k (scores.h). */
static enum cairn_status why_read(struct view *v, const struct cairn_manifest *m, int64_t k, struct cairn_error *err)
{
    int status = v->s.status[k];
    const char *key = status == CAIRN_VERDICT_CRASHED || status == CAIRN_VERDICT_TIMEOUT ? "grader_failure"
                      : status == CAIRN_VERDICT_INVALID                                  ? "grader_invalid"
                                                                                         : NULL;
    const json_t *first = key ? json_object_get(m->info, key) : NULL;
    const char *why = json_string_value(json_object_get(first, "why"));

    v->failed = json_integer_value(json_object_get(first, "rollout"));
    if (why && !(v->why = strdup(why)))
        return CAIRN_NOMEM(err);
    return CAIRN_OK;
}

/* The score beside a rollout artefact, where it is committed and of these very rollouts. */
static enum cairn_status score_read(struct view *v, const char *dir, struct cairn_reader *rollout, int64_t k, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *up = cairn_path_dirname(dir), *path = up ? cairn_path_join(up, "score") : NULL;
    const struct cairn_manifest *m;
    struct cairn_reader *r = NULL;
    int ours = 0;

    if (!path)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_artefact_committed(path))
        goto out;
    TRY(cairn_reader_open(&r, path, NULL, err));
    m = cairn_reader_manifest(r);
    for (int i = 0; i < m->ninputs; i++)
        ours |= cairn_digest_equal(m->inputs[i].digest, cairn_reader_manifest(rollout)->digest);
    if (!ours)
        goto out;
    TRY(cairn_scores_load(&v->s, r, 1, err));
    v->scored = v->s.n == v->r.n;
    if (v->scored)
        TRY(why_read(v, m, k, err));
out:
    cairn_reader_close(r);
    free(up);
    free(path);
    return st;
}

static enum cairn_status text_make(struct view *v, const char *root, int64_t k, struct cairn_error *err)
{
    const int32_t *tokens = v->r.tokens + v->r.offsets[k];
    enum cairn_status st = CAIRN_OK;
    struct cairn_run *run = NULL;
    char *path = NULL;

    if (!root)
        return CAIRN_OK; /* ids only */
    TRY(cairn_run_open(&run, root, err));
    TRY(cairn_run_outside(run, "model.tokenizer", &path, err));
    TRY(cairn_tokenizer_load_decoder(&v->tokenizer, path, err));
    TRY(cairn_tokenizer_decode(v->tokenizer, tokens, v->r.prompt_length[k], NULL, &v->prompt, err));
    TRY(cairn_tokenizer_decode(v->tokenizer, tokens + v->r.prompt_length[k], cairn_rollout_length(&v->r, k), NULL, &v->response,
                               err));
out:
    cairn_run_close(run);
    free(path);
    return st;
}

/* The link of a rollout artefact below the run: step/SSSSSS/rollout or eval/SSSSSS/NAME/rollout. 0: it is none of those. */
static int link_of(const char *dir, const char *root, char name[160], struct cairn_link *l)
{
    size_t n = strlen(root);
    const char *at = strncmp(dir, root, n) ? NULL : dir + n;
    long long step;

    while (at && *at == '/')
        at++;
    *l = (struct cairn_link){0, CAIRN_STAGE_ROLLOUT, NULL};
    if (at && sscanf(at, "step/%lld/rollout", &step) == 1) {
        l->step = step;
        return 1;
    }
    if (!at || sscanf(at, "eval/%lld/%159[^/]/rollout", &step, name) != 2)
        return 0;
    l->step = step;
    l->eval = name;
    return 1;
}

/* The row that rollout k answers, of the run's own prompt files. */
static enum cairn_status row_find(struct view *v, const char *dir, const char *root, int64_t k, struct cairn_error *err)
{
    char name[160], *real = realpath(dir, NULL), *top = root ? realpath(root, NULL) : NULL;
    enum cairn_status st = CAIRN_OK;
    struct cairn_run *run = NULL;
    struct cairn_link l;

    if (!real || !top || !link_of(real, top, name, &l))
        goto out;
    TRY(cairn_run_open(&run, top, err));
    cairn_run_at(run, l.step);
    TRY(cairn_prompts_of(run, &l, &v->files, &v->nfiles, err));
    v->row = cairn_prompts_find(v->files, v->nfiles, v->r.prompt_id[k]);
out:
    cairn_run_close(run);
    free(real);
    free(top);
    return st;
}

static double logprob_sum(const struct view *v, int64_t k)
{
    double sum = 0;

    for (int64_t i = v->r.response[k]; v->r.logprobs && i < v->r.response[k + 1]; i++)
        sum += (double)v->r.logprobs[i];
    return sum;
}

static void page_put(struct cairn_str *out, const struct view *v, int64_t k)
{
    const struct cairn_rollouts *r = &v->r;
    int64_t n = cairn_rollout_length(r, k);

    cairn_str_printf(out, "rollout %lld of %lld: group %d, sample %d, prompt %lld of file %lld, %d + %lld tokens, ended by %s%s\n",
                     (long long)k, (long long)r->n, r->group[k], r->sample[k], (long long)(r->prompt_id[k] & 0xffffffff),
                     (long long)(r->prompt_id[k] >> 32), r->prompt_length[k], (long long)n, cairn_finish_name(r->finish[k]),
                     r->used[k] ? "" : ", unused");
    if (cairn_rollout_is_carried(r, k))
        cairn_str_printf(out, "carried: the step before sampled it, as group %d of its list, by its policy\n", r->carried[k]);
    if (r->status && r->status[k] != CAIRN_VERDICT_OK)
        cairn_str_printf(out, "when it was chosen: %s, no verdict (%s)\n", r->verdict[k] == 1 ? "right" : "wrong",
                         cairn_verdict_status_name((enum cairn_verdict_status)r->status[k]));
    if (v->row) {
        cairn_str_printf(out, "id %s, gold answer \"", v->row->id);
        cairn_str_add(out, v->row->answer, v->row->answer_bytes);
        cairn_str_puts(out, "\"\n");
    }
    if (r->logprobs && n > 0)
        cairn_str_printf(out, "log-probability %.6g in all, %.6g a token\n", logprob_sum(v, k), logprob_sum(v, k) / (double)n);
    if (v->scored)
        cairn_str_printf(out, "%s (%s), answer \"%s\": reward %g, penalty %g, advantage %g%s\n",
                         v->s.verdict[k] ? "right" : "wrong", cairn_verdict_status_name((enum cairn_verdict_status)v->s.status[k]),
                         v->s.extracted[k] ? v->s.extracted[k] : "", (double)v->s.reward[k], (double)v->s.penalty[k],
                         (double)v->s.advantage[k], v->s.mask[k] ? "" : ", not in the loss");
    if (v->why && v->failed == k)
        cairn_str_printf(out, "its grader: %s\n", v->why);
    else if (v->why)
        cairn_str_printf(out, "the first that a grader failed at is rollout %lld: %s\n", (long long)v->failed, v->why);
    if (!v->tokenizer && r->text) {
        cairn_str_puts(out, "--- response, as it was stored\n");
        cairn_str_add(out, r->text + r->text_offsets[k], (size_t)(r->text_offsets[k + 1] - r->text_offsets[k]));
        cairn_str_puts(out, "\n---\n");
    }
    if (v->tokenizer) {
        cairn_str_puts(out, "--- prompt\n");
        cairn_str_add(out, cairn_str_z(&v->prompt), v->prompt.len);
        cairn_str_puts(out, "\n--- response\n");
        cairn_str_add(out, cairn_str_z(&v->response), v->response.len);
        cairn_str_puts(out, "\n---\n");
        return;
    }
    cairn_str_puts(out, "it lies in no run, so there is no tokenizer; ids:");
    for (int64_t i = r->offsets[k]; i < r->offsets[k + 1]; i++)
        cairn_str_printf(out, "%s%d", i == r->offsets[k] + r->prompt_length[k] ? " | " : " ", r->tokens[i]);
    cairn_str_putc(out, '\n');
}

static json_t *page_json(const struct view *v, int64_t k)
{
    const struct cairn_rollouts *r = &v->r;
    json_t *ids = json_array(), *o;

    for (int64_t i = r->offsets[k]; ids && i < r->offsets[k + 1]; i++)
        json_array_append_new(ids, json_integer(r->tokens[i]));
    o = json_pack("{s:I, s:i, s:i, s:I, s:i, s:I, s:s, s:b, s:o}", "rollout", (json_int_t)k, "group", r->group[k], "sample",
                  r->sample[k], "prompt_id", (json_int_t)r->prompt_id[k], "prompt_tokens", r->prompt_length[k], "response_tokens",
                  (json_int_t)cairn_rollout_length(r, k), "finish", cairn_finish_name(r->finish[k]), "used", (int)r->used[k], "ids",
                  ids);
    if (o && v->row) {
        json_object_set_new(o, "id", cairn_json_text(v->row->id, strlen(v->row->id)));
        json_object_set_new(o, "gold", cairn_json_text(v->row->answer, v->row->answer_bytes));
    }
    if (o && cairn_rollout_is_carried(r, k))
        json_object_set_new(o, "carried_from_group", json_integer(r->carried[k]));
    if (o && r->status)
        json_object_set_new(o, "chosen_by",
                            json_pack("{s:i, s:s}", "verdict", (int)r->verdict[k], "status",
                                      cairn_verdict_status_name((enum cairn_verdict_status)r->status[k])));
    if (o && r->experts)
        json_object_set_new(o, "experts_per_token", json_integer(r->expert_row));
    if (o && r->logprobs) {
        json_t *list = json_array();

        for (int64_t i = r->response[k]; list && i < r->response[k + 1]; i++)
            json_array_append_new(list, json_real((double)r->logprobs[i]));
        json_object_set_new(o, "logprobs", list);
    }
    if (o && v->scored)
        json_object_set_new(o, "score",
                            json_pack("{s:b, s:s, s:s, s:f, s:f, s:f, s:b}", "verdict", (int)v->s.verdict[k], "status",
                                      cairn_verdict_status_name((enum cairn_verdict_status)v->s.status[k]), "extracted",
                                      v->s.extracted[k] ? v->s.extracted[k] : "", "reward", (double)v->s.reward[k], "penalty",
                                      (double)v->s.penalty[k], "advantage", (double)v->s.advantage[k], "mask", (int)v->s.mask[k]));
    if (o && v->why)
        json_object_set_new(o, "grader_failed",
                            json_pack("{s:I, s:o}", "rollout", (json_int_t)v->failed, "why", cairn_json_text(v->why, strlen(v->why))));
    if (o && v->tokenizer) {
        json_object_set_new(o, "prompt", cairn_json_text(cairn_str_z(&v->prompt), v->prompt.len));
        json_object_set_new(o, "response", cairn_json_text(cairn_str_z(&v->response), v->response.len));
    }
    return o;
}

enum cairn_status cairn_inspect_rollout(const char *dir, const char *root, int64_t k, struct cairn_str *out, json_t **json,
                                        struct cairn_error *err)
{
    const struct cairn_reader_expect expect = {.kind = "rollout"};
    enum cairn_status st = CAIRN_OK;
    struct cairn_reader *reader = NULL;
    struct view v = {0};

    TRY(cairn_reader_open(&reader, dir, &expect, err));
    TRY(cairn_rollouts_load(&v.r, reader, err));
    if (k >= v.r.n)
        TRY(cairn_fail(err, CAIRN_EUSAGE, "%s has %lld rollouts, so their numbers end at %lld", dir, (long long)v.r.n,
                       (long long)(v.r.n - 1)));
    TRY(score_read(&v, dir, reader, k, err));
    TRY(text_make(&v, root, k, err));
    TRY(row_find(&v, dir, root, k, err));
    if (out)
        page_put(out, &v, k);
    else
        *json = page_json(&v, k);
out:
    cairn_reader_close(reader);
    cairn_rollouts_free(&v.r);
    cairn_scores_free(&v.s);
    free(v.why);
    cairn_tokenizer_free(v.tokenizer);
    cairn_prompts_list_free(v.files, v.nfiles);
    cairn_str_free(&v.prompt);
    cairn_str_free(&v.response);
    return st;
}
