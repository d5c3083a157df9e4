/* replay_export.c - stored rollouts as JSON lines that `--from` of any run takes (replay.h).
 *
 *   {"id", "prompt", "answer", "step", "group", "policy", "responses": [{"sample", "text", "ids", "logprobs", "finish", "used",
 *    "right", "status", "extracted", "reward", "penalty", "advantage"}, ...]}
 * One line a group, in the order of the chain; "set" beside "step" for evaluations; "carried": {"step", "group"} where the step
 * before sampled it. Log-probabilities where they are known
 * ("logprobs_sampled" where truncation made others), scores where the run has made them; numbers read back to the same bits.
 * Bytes of a text that are no UTF-8 become U+FFFD there; "ids" are exact.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "grade/grade.h"
#include "stages/common/stage.h"
#include "text/tokenizer.h"
#include "tools/cli.h"
#include "tools/replay.h"
#include "tools/replay_stored.h"

struct job {
    const struct cairn_replay_opts *o;
    struct cairn_run *run;
    struct cairn_tokenizer *tokenizer;
    FILE *out;
    char *temporary; /* NULL: written in place, a pipe or a device */
    struct cairn_stored_prompts prompts;
    struct cairn_str line, text;
    int64_t groups, rollouts;
};

/* A regular file appears whole or not at all. */
static enum cairn_status out_open(struct job *j, struct cairn_error *err)
{
    const char *path = j->o->export;
    struct stat s;

    if (stat(path, &s) || S_ISREG(s.st_mode)) {
        j->temporary = cairn_format("%s.tmp.%ld", path, (long)getpid());
        if (!j->temporary)
            return CAIRN_NOMEM(err);
        path = j->temporary;
    }
    j->out = fopen(path, "we");
    return j->out ? CAIRN_OK : cairn_fail_errno(err, errno, "create %s", path);
}

static enum cairn_status out_close(struct job *j, struct cairn_error *err)
{
    const char *path = j->o->export;
    enum cairn_status st = CAIRN_OK;
    FILE *f = j->out;

    j->out = NULL;
    if (fflush(f) || (j->temporary && fsync(fileno(f))))
        st = cairn_fail_errno(err, errno, "write %s", path);
    if (fclose(f) && st == CAIRN_OK)
        st = cairn_fail_errno(err, errno, "close %s", path);
    if (st == CAIRN_OK && j->temporary && rename(j->temporary, path))
        st = cairn_fail_errno(err, errno, "rename %s to %s", j->temporary, path);
    return st;
}

static void floats_put(struct cairn_str *s, const char *key, const float *x, int64_t n)
{
    cairn_str_printf(s, ",\"%s\":[", key);
    for (int64_t k = 0; k < n; k++) {
        if (k)
            cairn_str_putc(s, ',');
        cairn_json_put_float(s, x[k]);
    }
    cairn_str_putc(s, ']');
}

static void float_put(struct cairn_str *s, const char *key, float x)
{
    cairn_str_printf(s, ",\"%s\":", key);
    cairn_json_put_float(s, x);
}

static void score_put(struct cairn_str *s, const struct cairn_scores_table *t, int64_t i)
{
    const char *extracted = t->extracted[i] ? t->extracted[i] : "";

    cairn_str_printf(s, ",\"right\":%s,\"status\":\"%s\",\"extracted\":", t->verdict[i] ? "true" : "false",
                     cairn_verdict_status_name((enum cairn_verdict_status)t->status[i]));
    cairn_json_put_string(s, extracted, strlen(extracted));
    float_put(s, "reward", t->reward[i]);
    float_put(s, "penalty", t->penalty[i]);
    float_put(s, "advantage", t->advantage[i]);
}

static enum cairn_status response_put(struct job *j, const struct cairn_stored *w, int64_t i, struct cairn_error *err)
{
    const struct cairn_rollouts *r = &w->r;
    const int32_t *ids = r->tokens + r->offsets[i] + r->prompt_length[i];
    int64_t n = cairn_rollout_length(r, i);
    struct cairn_str *s = &j->line;
    enum cairn_status st;

    cairn_str_clear(&j->text);
    st = cairn_tokenizer_decode(j->tokenizer, ids, n, NULL, &j->text, err);
    if (st != CAIRN_OK) {
        if (err)
            cairn_error_prefix(err, "%s: rollout %lld", w->name, (long long)i);
        return st;
    }
    cairn_str_printf(s, "{\"sample\":%d,\"text\":", r->sample[i]);
    cairn_json_put_string(s, cairn_str_z(&j->text), j->text.len);
    cairn_str_puts(s, ",\"ids\":[");
    for (int64_t k = 0; k < n; k++)
        cairn_str_printf(s, "%s%d", k ? "," : "", ids[k]);
    cairn_str_putc(s, ']');
    if (r->logprobs)
        floats_put(s, "logprobs", r->logprobs + r->response[i], n);
    if (r->logprobs_sampled)
        floats_put(s, "logprobs_sampled", r->logprobs_sampled + r->response[i], n);
    cairn_str_printf(s, ",\"finish\":\"%s\",\"used\":%s", cairn_finish_name(r->finish[i]), r->used[i] ? "true" : "false");
    if (w->scored)
        score_put(s, &w->s, i);
    cairn_str_putc(s, '}');
    return CAIRN_OK;
}

/* Rollouts [begin, end) of one group, as far as they are meant. */
static enum cairn_status group_put(struct job *j, const struct cairn_stored *w, int64_t begin, int64_t end, struct cairn_error *err)
{
    const json_t *content = cairn_reader_manifest(w->reader)->content, *carried = json_object_get(content, "carried");
    int old = cairn_rollout_is_carried(&w->r, begin);
    const char *policy = json_string_value(json_object_get(old ? carried : content, "policy"));
    const struct cairn_prompt *p = cairn_stored_prompt(w, begin);
    struct cairn_str *s = &j->line;
    enum cairn_status st = CAIRN_OK;
    int64_t n = 0;

    if (!p)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: rollout %lld is of a prompt that does not exist", w->name, (long long)begin));
    cairn_str_clear(s);
    cairn_str_puts(s, "{\"id\":");
    cairn_json_put_string(s, p->id, strlen(p->id));
    cairn_str_puts(s, ",\"prompt\":");
    if (p->messages)
        cairn_str_add(s, p->prompt, p->prompt_bytes); /* it is JSON */
    else
        cairn_json_put_string(s, p->prompt, p->prompt_bytes);
    cairn_str_puts(s, ",\"answer\":");
    cairn_json_put_string(s, p->answer, p->answer_bytes);
    cairn_str_printf(s, ",\"step\":%lld", (long long)w->link.step);
    if (w->link.eval)
        cairn_str_printf(s, ",\"set\":\"%s\"", w->link.eval);
    cairn_str_printf(s, ",\"group\":%d", w->r.group[begin]);
    if (policy)
        cairn_str_printf(s, ",\"policy\":\"%s\"", policy);
    if (old)
        cairn_str_printf(s, ",\"carried\":{\"step\":%lld,\"group\":%d}",
                         (long long)json_integer_value(json_object_get(carried, "step")), w->r.carried[begin]);
    cairn_str_puts(s, ",\"responses\":[");
    for (int64_t i = begin; i < end; i++) {
        if (!cairn_stored_takes(w, &j->o->only, i))
            continue;
        if (n++)
            cairn_str_putc(s, ',');
        TRY(response_put(j, w, i, err));
    }
    if (!n)
        goto out;
    cairn_str_puts(s, "]}\n");
    if (s->oom)
        TRY(CAIRN_NOMEM(err));
    if (fwrite(s->p, 1, s->len, j->out) != s->len)
        TRY(cairn_fail_errno(err, errno, "write %s", j->o->export));
    j->groups++;
    j->rollouts += n;
out:
    return st;
}

static enum cairn_status link_export(struct job *j, const struct cairn_link *l, struct cairn_error *err)
{
    struct cairn_stored w = {0};
    enum cairn_status st = CAIRN_OK;

    cairn_run_at(j->run, l->step);
    TRY(cairn_stored_open(&w, j->run, l, 1, &j->prompts, err));
    TRY(cairn_stored_fits(&w, &j->o->only, err));
    for (int64_t begin = 0, end; begin < w.r.n; begin = end) {
        for (end = begin; end < w.r.n && w.r.group[end] == w.r.group[begin]; end++)
            ;
        TRY(cairn_stage_stopping(err));
        TRY(group_put(j, &w, begin, end, err));
    }
out:
    cairn_stored_close(&w);
    return st;
}

enum cairn_status cairn_replay_export(const struct cairn_replay_opts *o, struct cairn_error *err)
{
    struct job j = {.o = o};
    enum cairn_status st = CAIRN_OK;
    struct cairn_link *link = NULL;
    char *tokenizer = NULL;
    int n = 0;

    TRY(cairn_run_open(&j.run, o->recipe.recipe, err));
    TRY(cairn_run_outside(j.run, "model.tokenizer", &tokenizer, err));
    TRY(cairn_tokenizer_load_decoder(&j.tokenizer, tokenizer, err));
    TRY(cairn_stored_links(j.run, &o->only, 0, &link, &n, err)); /* evaluations are no training data, unless they are asked for */
    TRY(out_open(&j, err));
    for (int i = 0; i < n; i++)
        TRY(link_export(&j, &link[i], err));
    TRY(out_close(&j, err));
    if (!j.temporary) /* its lines are the result */
        goto out;
    if (o->json)
        TRY(cairn_cli_json(
            json_pack("{s:s, s:I, s:I}", "file", o->export, "groups", (json_int_t)j.groups, "rollouts", (json_int_t)j.rollouts),
            err));
    else
        printf("%s: %lld rollouts of %lld groups\n", o->export, (long long)j.rollouts, (long long)j.groups);
out:
    if (j.out)
        fclose(j.out);
    if (st != CAIRN_OK && j.temporary)
        unlink(j.temporary);
    cairn_stored_prompts_free(&j.prompts);
    cairn_str_free(&j.line);
    cairn_str_free(&j.text);
    free(j.temporary);
    free(link);
    free(tokenizer);
    cairn_tokenizer_free(j.tokenizer);
    cairn_run_close(j.run);
    return st;
}
