/* replay_from.c - recorded responses of any system become the rollouts of step 1 of a new run (replay.h).
 *
 * FILE is the run's prompt file, too: its rows are {"id", "prompt", "answer", "responses": [...]}, kept whole by size and digest, so no other key
 * is lost. A response is {"text"}, tokenised, with the stop token behind it; or {"ids"} as the other system had them, with "logprobs" of each.
 * It was cut at a cap where "finish" says "length", or where its ids do not end with a stop token.
 * Log-probabilities: all responses bring them, or none: without them nobody claims to know what the sampler thought.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/retention.h"
#include "model/policy.h"
#include "stages/common/begin.h"
#include "stages/common/place.h"
#include "stages/common/rollouts.h"
#include "stages/common/stage.h"
#include "stages/common/prompting.h"
#include "stages/rollout/units.h"
#include "tools/cli.h"
#include "tools/fit.h"
#include "tools/replay.h"

#define SPOOL_MAX ((size_t)4 << 30)

/* Rollouts in the making. */
struct making {
    struct cairn_rollouts r;
    int64_t cap, tokens_cap, logprobs_cap, tokens, logprobs, groups;
    int brings; /* logprobs: -1 not known yet, 0, 1 */
    const struct cairn_only *only;
    struct cairn_prompting prompting;
    struct cairn_model_config config;
    struct cairn_ids prompt, response;
};

static int grow(void **p, size_t size, int64_t n)
{
    void *q = realloc(*p, size * (size_t)n);

    if (q)
        *p = q;
    return q != NULL;
}

static int making_room(struct making *k)
{
    struct cairn_rollouts *r = &k->r;
    int64_t cap = k->cap ? 2 * k->cap : 1024;

    if (r->n + 1 < k->cap)
        return 1;
    if (!grow((void **)&r->offsets, sizeof *r->offsets, cap + 1) || !grow((void **)&r->prompt_length, sizeof *r->prompt_length, cap) ||
        !grow((void **)&r->prompt_id, sizeof *r->prompt_id, cap) || !grow((void **)&r->group, sizeof *r->group, cap) ||
        !grow((void **)&r->sample, sizeof *r->sample, cap) || !grow((void **)&r->finish, 1, cap) || !grow((void **)&r->used, 1, cap) ||
        !grow((void **)&r->verdict, 1, cap))
        return 0;
    k->cap = cap;
    return 1;
}

static int tokens_add(struct making *k, const struct cairn_ids *ids)
{
    while (k->tokens + ids->n > k->tokens_cap) {
        k->tokens_cap = k->tokens_cap ? 2 * k->tokens_cap : 1 << 16;
        if (!grow((void **)&k->r.tokens, sizeof *k->r.tokens, k->tokens_cap))
            return 0;
    }
    if (ids->n)
        memcpy(k->r.tokens + k->tokens, ids->p, (size_t)ids->n * sizeof *ids->p);
    k->tokens += ids->n;
    return 1;
}

static int is_stop(const struct making *k, int32_t id)
{
    for (int64_t i = 0; i < k->prompting.stop.n; i++)
        if (k->prompting.stop.p[i] == id)
            return 1;
    return 0;
}

/* Is v a response, as far as can be said without the model? */
static enum cairn_status response_check(const json_t *v, const char *where, struct cairn_error *err)
{
    const json_t *ids = json_object_get(v, "ids"), *f = json_object_get(v, "finish");
    const char *word = json_string_value(f);

    if (f && (!word || (strcmp(word, "stop") && strcmp(word, "length"))))
        return cairn_fail(err, CAIRN_EDATA, "%s: \"finish\": expected \"stop\" or \"length\"", where);
    if (!ids && !json_is_string(json_object_get(v, "text")))
        return cairn_fail(err, CAIRN_EDATA, "%s: expected \"text\", a string, or \"ids\"", where);
    if (ids && (!json_is_array(ids) || !json_array_size(ids)))
        return cairn_fail(err, CAIRN_EDATA, "%s: \"ids\": expected a list of token ids", where);
    return CAIRN_OK;
}

/* The response's ids into k->response; *finish. */
static enum cairn_status ids_read(struct making *k, const json_t *v, const char *where, int *finish, struct cairn_error *err)
{
    const json_t *ids = json_object_get(v, "ids"), *text = json_object_get(v, "text"), *f = json_object_get(v, "finish");
    const char *word = json_string_value(f);
    enum cairn_status st = CAIRN_OK;
    size_t i;
    json_t *id;

    k->response.n = 0;
    TRY(response_check(v, where, err));
    *finish = word && !strcmp(word, "length") ? CAIRN_FINISH_LENGTH : CAIRN_FINISH_STOP;
    if (!ids) {
        TRY(cairn_tokenizer_encode(k->prompting.tokenizer, json_string_value(text), json_string_length(text), NULL, &k->response, err));
        if (*finish == CAIRN_FINISH_STOP && k->prompting.stop.n && !cairn_ids_push(&k->response, k->prompting.stop.p[0]))
            TRY(CAIRN_NOMEM(err));
        goto out;
    }
    json_array_foreach(ids, i, id)
    {
        int64_t x = json_is_integer(id) ? json_integer_value(id) : -1;

        if (x < 0 || x >= k->config.vocab)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: \"ids\": element %zu is no id of a vocabulary of %lld", where, i, (long long)k->config.vocab));
        if (!cairn_ids_push(&k->response, (int32_t)x))
            TRY(CAIRN_NOMEM(err));
    }
    if (!f && k->prompting.stop.n && !is_stop(k, k->response.p[k->response.n - 1]))
        *finish = CAIRN_FINISH_LENGTH;
out:
    return st;
}

static enum cairn_status logprobs_read(struct making *k, const json_t *v, const char *where, struct cairn_error *err)
{
    const json_t *list = json_object_get(v, "logprobs");
    int brings = list != NULL;
    size_t i;
    json_t *x;

    if (k->brings < 0)
        k->brings = brings;
    if (brings != k->brings)
        return cairn_fail(err, CAIRN_EDATA, "%s: %s \"logprobs\", those before it %s; all bring them, or none", where, brings ? "brings" : "has no",
                          brings ? "do not" : "do");
    if (!brings)
        return CAIRN_OK;
    if (!json_object_get(v, "ids"))
        return cairn_fail(err, CAIRN_EDATA, "%s: \"logprobs\" without the \"ids\" that they belong to", where);
    if (!json_is_array(list) || (int64_t)json_array_size(list) != k->response.n)
        return cairn_fail(err, CAIRN_EDATA, "%s: \"logprobs\": %zu of them for %lld ids", where, json_array_size(list), (long long)k->response.n);
    while (k->logprobs + k->response.n > k->logprobs_cap) {
        k->logprobs_cap = k->logprobs_cap ? 2 * k->logprobs_cap : 1 << 16;
        if (!grow((void **)&k->r.logprobs, sizeof *k->r.logprobs, k->logprobs_cap))
            return CAIRN_NOMEM(err);
    }
    json_array_foreach(list, i, x)
    {
        double p = json_is_number(x) ? json_number_value(x) : NAN;

        if (!(p <= 0) || !isfinite(p))
            return cairn_fail(err, CAIRN_EDATA, "%s: \"logprobs\": element %zu is no log-probability", where, i);
        k->r.logprobs[k->logprobs++] = (float)p;
    }
    return CAIRN_OK;
}

/* id: of its prompt. A response that is not meant is looked at, and left out. */
static enum cairn_status response_add(struct making *k, const json_t *v, int64_t row, const char *id, int sample, const char *line,
                                      struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_rollouts *r = &k->r;
    char where[4400];
    int finish;

    snprintf(where, sizeof where, "%s: response %d", line, sample);
    if (!making_room(k))
        TRY(CAIRN_NOMEM(err));
    TRY(ids_read(k, v, where, &finish, err));
    r->prompt_id[r->n] = row;
    r->group[r->n] = (int32_t)row;
    r->sample[r->n] = sample;
    r->finish[r->n] = (uint8_t)finish;
    r->used[r->n] = 1;
    r->verdict[r->n] = CAIRN_VERDICT_UNASKED;
    if (!cairn_only_takes(k->only, r, r->n, id, NULL))
        goto out;
    TRY(logprobs_read(k, v, where, err));
    if (k->prompt.n + k->response.n > k->config.max_positions)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %lld prompt and %lld response tokens, the model's positions end at %lld", where, (long long)k->prompt.n,
                       (long long)k->response.n, (long long)k->config.max_positions));
    if (!tokens_add(k, &k->prompt) || !tokens_add(k, &k->response))
        TRY(CAIRN_NOMEM(err));
    r->prompt_length[r->n] = (int32_t)k->prompt.n;
    r->offsets[++r->n] = k->tokens;
out:
    return st;
}

static enum cairn_status file_read(struct making *k, const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_prompts prompts = {0};
    struct cairn_jsonl *file = NULL;
    const json_t *v;
    json_t *responses;
    int64_t row = 0, before;

    TRY(cairn_prompts_load(&prompts, path, NULL, err));
    if (prompts.n > INT32_MAX)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: more rows than a step has groups", path));
    TRY(cairn_jsonl_open(&file, path, err));
    if (!making_room(k))
        TRY(CAIRN_NOMEM(err));
    k->r.offsets[0] = 0;
    while ((st = cairn_jsonl_next(file, &v, err)) == CAIRN_OK && v) {
        const char *where = cairn_jsonl_where(file);

        TRY(cairn_stage_stopping(err));
        TRY(cairn_json_array(v, "responses", &responses, where, err));
        k->prompt.n = 0;
        TRY(cairn_prompting_ids(&k->prompting, &prompts, row, 1, &k->config, &k->prompt, err));
        before = k->r.n;
        for (size_t i = 0; i < json_array_size(responses); i++)
            TRY(response_add(k, json_array_get(responses, i), row, prompts.row[row].id, (int)i, where, err));
        k->groups += k->r.n > before;
        row++;
    }
    TRY(st);
    if (!k->r.n)
        TRY(k->only->text.len ? cairn_fail(err, CAIRN_EDATA, "%s: no response in it that fits --only%s", path, cairn_str_z(&k->only->text))
                              : cairn_fail(err, CAIRN_EDATA, "%s: no response in it: \"responses\" is empty in all of its %lld rows", path,
                                           (long long)row));
    TRY(cairn_rollouts_finish(&k->r, path, err));
out:
    cairn_jsonl_close(file);
    cairn_prompts_free(&prompts);
    return st;
}

static void making_free(struct making *k)
{
    cairn_rollouts_free(&k->r);
    cairn_prompting_close(&k->prompting);
    cairn_config_free(&k->config);
    cairn_ids_free(&k->prompt);
    cairn_ids_free(&k->response);
}

/* ---- the artefact --------------------------------------------------------------------------------------------------- */

/* Units of CAIRN_UNIT_GROUPS rows of the file, as the sampler's are of the list of candidates. */
static enum cairn_status units_write(const struct making *k, struct cairn_attempt *a, struct cairn_manifest *m, struct cairn_error *err)
{
    const struct cairn_rollouts *r = &k->r;
    enum cairn_status st = CAIRN_OK;
    int units = 0;

    for (int64_t begin = 0, end; begin < r->n; begin = end) {
        struct cairn_shard_entry *entry = NULL;

        for (end = begin; end < r->n && r->group[end] / CAIRN_UNIT_GROUPS == r->group[begin] / CAIRN_UNIT_GROUPS; end++)
            ;
        TRY(cairn_stage_stopping(err));
        TRY(cairn_rollouts_write(r, begin, end, a, units++, "", &entry, err));
        TRY(cairn_manifest_add_shard(m, entry, err));
    }
    if (json_object_set_new(m->content, "units", json_integer(units)))
        TRY(CAIRN_NOMEM(err));
out:
    return st;
}

static enum cairn_status outside_input(const struct cairn_run *run, const char *key, struct cairn_manifest *m, struct cairn_error *err)
{
    const char *hex = json_string_value(json_object_get(json_object_get(json_object_get(run->info, "outside"), key), "digest"));
    struct cairn_digest d;
    char name[160];

    if (!hex || !cairn_digest_parse(hex, &d))
        return cairn_fail(err, CAIRN_EDATA, "%s/run.json: no digest for %s", run->dir, key);
    snprintf(name, sizeof name, "file:%s", key);
    return cairn_manifest_add_input(m, name, d, err);
}

static enum cairn_status artefact_write(const struct making *k, const struct cairn_run *run, const struct cairn_link *l, int64_t rows,
                                        struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest *m = cairn_manifest_create("rollout", l->step, run->uuid);
    char *dir = cairn_link_path(run, l);
    struct cairn_attempt_opts ao = {0};
    struct cairn_attempt *a = NULL;
    json_t *content;

    if (!m || !dir)
        TRY(CAIRN_NOMEM(err));
    m->recipe = run->hash;
    TRY(outside_input(run, "model.tokenizer", m, err));
    TRY(outside_input(run, "data.prompts.0", m, err));
    ao.identity = cairn_manifest_identity(m);
    content = json_pack("{s:I, s:I, s:I, s:f, s:{s:[I], s:[]}}", "rollouts", (json_int_t)k->r.n, "groups", (json_int_t)k->groups, "kept",
                        (json_int_t)k->groups, "temperature", cairn_recipe_f64(run->recipe, "rollout.temperature"), "cursor", "taken",
                        (json_int_t)rows, "front");
    if (!content || json_object_update(m->content, content) ||
        json_object_set_new(m->info, "metrics", json_pack("{s:I}", "tokens/total", (json_int_t)k->r.response[k->r.n]))) {
        json_decref(content);
        TRY(CAIRN_NOMEM(err));
    }
    json_decref(content);
    TRY(cairn_attempt_begin(&a, dir, &ao, err));
    TRY(units_write(k, a, m, err));
    TRY(cairn_attempt_commit(a, m, err));
out:
    cairn_attempt_end(a);
    cairn_manifest_destroy(m);
    free(dir);
    return st;
}

/* Before there is a run: what is said of a row names the user's file, and nothing is left behind. */
static enum cairn_status rows_of_file(struct making *k, const struct cairn_recipe *recipe, const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *tokenizer = NULL;

    TRY(cairn_begin_config(&k->config, recipe, err));
    TRY(cairn_begin_tokenizer(recipe, &tokenizer, err));
    TRY(cairn_prompting_open(&k->prompting, recipe, tokenizer, &k->config, err));
    TRY(file_read(k, path, err));
out:
    free(tokenizer);
    return st;
}

/* The rows were read after the digest that the run's origin names was taken, and before the run took its copy: if both are of the same bytes, so
 * are the rows. */
static enum cairn_status rows_same(const struct cairn_run *run, const char *path, struct cairn_error *err)
{
    const char *hex = json_string_value(json_object_get(json_object_get(json_object_get(run->info, "outside"), "data.prompts.0"), "digest"));

    if (hex && strstr(cairn_recipe_str(run->recipe, "run.origin"), hex))
        return CAIRN_OK;
    return cairn_fail(err, CAIRN_EDATA, "%s changed while it was read; remove %s and call again", path, run->dir);
}

/* Of a run that is there without its rollouts, a call having been killed: its own files count. */
static enum cairn_status rows_of_run(struct making *k, const struct cairn_run *run, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *tokenizer = NULL, *file = NULL, *base = cairn_run_path(run, "base");
    struct cairn_manifest *bm = NULL;

    if (!base)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_manifest_load(&bm, base, err));
    TRY(cairn_policy_config(&k->config, bm, NULL, base, err));
    TRY(cairn_run_outside(run, "model.tokenizer", &tokenizer, err));
    TRY(cairn_run_outside(run, "data.prompts.0", &file, err));
    TRY(cairn_prompting_open(&k->prompting, run->recipe, tokenizer, &k->config, err));
    TRY(file_read(k, file, err));
out:
    cairn_manifest_destroy(bm);
    free(tokenizer);
    free(file);
    free(base);
    return st;
}

/* ---- the run ----------------------------------------------------------------------------------------------------------- */

/* A pipe is kept as NEW/recorded.jsonl, which a run that is there has for good. One that lies there without a run (a call that was killed left it,
 * or it is somebody's own) is taken if it says the same, and never touched. *made: it was written here. */
static enum cairn_status pipe_keep(const char *from, const char *dir, const char *path, int *made, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int there = cairn_run_there(dir);
    char *text = NULL, *kept = NULL;
    size_t n, had;

    TRY(cairn_file_read(from, SPOOL_MAX, &text, &n, err));
    if (cairn_path_exists(path))
        TRY(cairn_file_read(path, SPOOL_MAX, &kept, &had, err));
    if (!kept && !there) {
        TRY(cairn_file_replace(path, text, n, err));
        *made = 1;
        goto out;
    }
    if (kept && had == n && !memcmp(kept, text, n))
        goto out;
    if (there)
        TRY(cairn_fail(err, CAIRN_ERECIPE, "%s was made of other responses than %s brings; name a new run (--run)", dir, from));
    TRY(cairn_fail(err, CAIRN_ERECIPE, "%s lies there and is not what %s brings; remove it, or name a new run (--run)", path, from));
out:
    free(text);
    free(kept);
    return st;
}

/* The file to read, malloc'ed, absolute; *made: it was written here, of what a pipe brought. */
static enum cairn_status file_find(const char *from, const char *dir, char **path, int *made, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct stat s;
    char *at = NULL;
    int piped;

    if (stat(from, &s))
        return cairn_fail(err, CAIRN_EDATA, "%s: %s", from, strerror(errno));
    piped = !S_ISREG(s.st_mode);
    at = piped ? cairn_path_join(dir, "recorded.jsonl") : strdup(from);
    if (!at)
        TRY(CAIRN_NOMEM(err));
    if (piped)
        TRY(pipe_keep(from, dir, at, made, err));
    *path = realpath(at, NULL);
    if (!*path)
        TRY(CAIRN_NOMEM(err));
out:
    free(at);
    return st;
}

/* RECIPE, or the recipe of the run DIR, with the prompts from the file. */
static enum cairn_status recipe_make(struct cairn_recipe **out, const struct cairn_replay_opts *o, const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const char *list[CAIRN_MAX_OVERRIDES + 3];
    struct cairn_str prompts = {0}, origin = {0};
    struct cairn_run *old = NULL;
    struct cairn_digest d;
    char hex[33], *named = NULL;
    int n = 0;

    TRY(cairn_digest_file(path, &d, NULL, err));
    cairn_digest_hex(d, hex);
    cairn_str_puts(&prompts, "data.prompts=[{path: ");
    cairn_json_put_string(&prompts, path, strlen(path));
    cairn_str_puts(&prompts, "}]");
    cairn_str_printf(&origin, "file %s %s%s", cairn_path_basename(path), hex, cairn_str_z(&o->only.text));
    named = cairn_replay_override("run.origin", cairn_str_z(&origin));
    if (prompts.oom || origin.oom || !named)
        TRY(CAIRN_NOMEM(err));
    list[n++] = prompts.p;
    list[n++] = named;
    list[n++] = "run.steps=1";
    if (cairn_path_is_dir(o->recipe.recipe)) {
        TRY(cairn_run_open(&old, o->recipe.recipe, err));
        if (old->amendments)
            cairn_info("%s: its recipe is taken as recipe.yaml has it, without its amendments", old->dir);
        TRY(cairn_replay_recipe(out, old, o, n, list, err));
        goto out;
    }
    for (int i = 0; i < o->recipe.overrides; i++)
        list[n++] = o->recipe.override[i];
    TRY(cairn_recipe_load(out, o->recipe.recipe, n, list, err));
out:
    cairn_run_close(old);
    cairn_str_free(&prompts);
    cairn_str_free(&origin);
    free(named);
    return st;
}

/* How to train on them: in this run, if its recipe can ever do so, else in one of its own. Appends the command. */
static enum cairn_status command_put(const struct cairn_run *run, const struct cairn_link *l, struct cairn_str *out, struct cairn_error *err)
{
    struct cairn_str keys = {0};
    struct cairn_error why;
    enum cairn_status st = cairn_replay_trains(run, l, run->recipe, &keys, &why);

    if (st == CAIRN_OK)
        cairn_str_printf(out, "cairn run %s", run->dir);
    else if (keys.len) {
        cairn_str_printf(out, "cairn replay %s --train --run %s-train%s", run->dir, run->dir, cairn_str_z(&keys));
        cairn_info("%s", why.text);
        st = CAIRN_OK;
    } else if (err)
        *err = why;
    cairn_str_free(&keys);
    return st;
}

static enum cairn_status tell(const struct cairn_run *run, const struct cairn_link *l, int json, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *dir = cairn_link_path(run, l), hex[33];
    struct cairn_manifest *m = NULL;
    struct cairn_str command = {0};
    int64_t groups, rollouts, tokens;

    if (!dir)
        return CAIRN_NOMEM(err);
    TRY(cairn_manifest_load(&m, dir, err));
    TRY(command_put(run, l, &command, err));
    cairn_digest_hex(m->digest, hex);
    groups = json_integer_value(json_object_get(m->content, "groups"));
    rollouts = json_integer_value(json_object_get(m->content, "rollouts"));
    tokens = json_integer_value(json_object_get(json_object_get(m->info, "metrics"), "tokens/total"));
    if (json)
        TRY(cairn_cli_json(json_pack("{s:s, s:I, s:I, s:I, s:s, s:s}", "run", run->dir, "groups", (json_int_t)groups, "rollouts",
                                     (json_int_t)rollouts, "tokens", (json_int_t)tokens, "digest", hex, "train", cairn_str_z(&command)),
                           err));
    else
        printf("%s: %lld responses to %lld problems, %lld tokens, as the rollouts of step 1\n"
               "to score them:      cairn replay %s --score RECIPE\nto train on them:   %s\n",
               run->dir, (long long)rollouts, (long long)groups, (long long)tokens, run->dir, cairn_str_z(&command));
out:
    cairn_str_free(&command);
    cairn_manifest_destroy(m);
    free(dir);
    return st;
}

enum cairn_status cairn_replay_from(const struct cairn_replay_opts *o, struct cairn_error *err)
{
    const struct cairn_link l = {1, CAIRN_STAGE_ROLLOUT, NULL};
    enum cairn_status st = CAIRN_OK;
    struct cairn_recipe *recipe = NULL;
    struct cairn_place place = {0};
    struct cairn_run *run = NULL;
    struct making k = {.only = &o->only, .brings = -1};
    char *path = NULL;
    int made = 0;

    TRY(cairn_place_take(&place, o->recipe.run, 1, err));
    TRY(file_find(o->from, o->recipe.run, &path, &made, err));
    TRY(recipe_make(&recipe, o, path, err));
    TRY(cairn_fit_build(recipe, err)); /* nothing is computed here */
    if (!cairn_run_there(o->recipe.run))
        TRY(rows_of_file(&k, recipe, path, err));
    TRY(cairn_run_init(&run, o->recipe.run, recipe, err));
    recipe = NULL;
    if (!cairn_link_done(run, &l)) {
        TRY(k.r.n ? rows_same(run, path, err) : rows_of_run(&k, run, err));
        TRY(artefact_write(&k, run, &l, k.r.group[k.r.n - 1] + 1, err));
    }
    TRY(tell(run, &l, o->json, err));
out:
    making_free(&k);
    cairn_run_close(run);
    if (made && path && !cairn_run_there(o->recipe.run))
        unlink(path);
    cairn_place_leave(&place);
    cairn_recipe_free(recipe);
    free(path);
    return st;
}
