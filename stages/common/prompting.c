/* prompting.c - template, stop tokens, stop strings (prompting.h). */
#include "stages/common/prompting.h"

#include <stdlib.h>
#include <string.h>

#include "stages/common/setup.h"

void cairn_prompting_close(struct cairn_prompting *p)
{
    for (int i = 0; i < p->texts; i++)
        free(p->text[i]);
    free(p->text);
    free(p->barred);
    cairn_ids_free(&p->stop);
    cairn_template_destroy(p->template);
    cairn_tokenizer_free(p->tokenizer);
    memset(p, 0, sizeof *p);
}

static enum cairn_status stop_add(struct cairn_prompting *p, const struct cairn_recipe *r, const json_t *v, const struct cairn_model_config *c,
                                  struct cairn_error *err)
{
    const char *s = json_string_value(v);
    int64_t id = json_integer_value(v);

    if (s) {
        id = cairn_tokenizer_token_id(p->tokenizer, s);
        if (id < 0 || !cairn_tokenizer_is_added(p->tokenizer, (int32_t)id)) {
            if (!*s)
                return cairn_recipe_fail(r, "rollout.stop", err, "an empty string would end every response at once");
            p->text[p->texts] = strdup(s);
            return p->text[p->texts++] ? CAIRN_OK : CAIRN_NOMEM(err);
        }
    }
    if (id < 0 || id >= c->vocab)
        return cairn_recipe_fail(r, "rollout.stop", err, "id %lld is outside the model's vocabulary of %lld", (long long)id, (long long)c->vocab);
    if (p->barred && p->barred[id])
        return cairn_recipe_fail(r, "rollout.stop", err, "the tokenizer has no id %lld, so it is never sampled", (long long)id);
    return cairn_ids_push(&p->stop, (int32_t)id) ? CAIRN_OK : CAIRN_NOMEM(err);
}

static enum cairn_status stops_find(struct cairn_prompting *p, const struct cairn_recipe *r, const struct cairn_model_config *c,
                                    struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (cairn_recipe_has(r, "rollout.stop")) {
        const json_t *list = cairn_recipe_list(r, "rollout.stop");

        p->text = calloc(json_array_size(list) + 1, sizeof *p->text);
        if (!p->text)
            return CAIRN_NOMEM(err);
        for (size_t i = 0; st == CAIRN_OK && i < json_array_size(list); i++)
            st = stop_add(p, r, json_array_get(list, i), c, err);
    } else {
        st = cairn_template_stop_ids(p->template, p->tokenizer, &p->stop, err);
        for (int i = 0, none = !p->stop.n; st == CAIRN_OK && none && i < c->stops; i++)
            if (!(p->barred && p->barred[c->stop[i]]) && !cairn_ids_push(&p->stop, c->stop[i]))
                st = CAIRN_NOMEM(err);
    }
    if (st == CAIRN_OK && !p->stop.n && !p->texts)
        st = cairn_recipe_fail(r, "rollout.stop", err, "name what ends a response: template and model have no stop token");
    return st;
}

enum cairn_status cairn_prompting_bar(struct cairn_prompting *p, int64_t vocab, struct cairn_error *err)
{
    int64_t n = 0;
    size_t len;

    free(p->barred);
    p->barred = calloc((size_t)vocab + 1, 1);
    if (!p->barred)
        return CAIRN_NOMEM(err);
    for (int64_t id = 0; id < vocab; id++)
        n += p->barred[id] = id > INT32_MAX || !cairn_tokenizer_token_bytes(p->tokenizer, (int32_t)id, &len);
    if (n == vocab)
        return cairn_fail(err, CAIRN_EDATA, "the tokenizer has none of the model's %lld ids", (long long)vocab);
    if (!n) {
        free(p->barred);
        p->barred = NULL;
    }
    return CAIRN_OK;
}

enum cairn_status cairn_prompting_open(struct cairn_prompting *p, const struct cairn_recipe *recipe, const char *tokenizer,
                                       const struct cairn_model_config *c, struct cairn_error *err)
{
    const struct cairn_template_opts o = cairn_setup_template(recipe);
    enum cairn_status st = CAIRN_OK;

    memset(p, 0, sizeof *p);
    TRY(cairn_tokenizer_load(&p->tokenizer, tokenizer, err));
    TRY(cairn_prompting_bar(p, c->vocab, err));
    st = cairn_template_parse(&p->template, cairn_recipe_str(recipe, "data.template"), &o, err);
    if (st == CAIRN_OK)
        st = cairn_template_check(p->template, p->tokenizer, err);
    if (st == CAIRN_ERECIPE || st == CAIRN_EDATA) {
        struct cairn_error why = *err;

        TRY(cairn_recipe_fail(recipe, "data.template", err, "%s", why.text));
    }
    TRY(st);
    TRY(stops_find(p, recipe, c, err));
out:
    if (st != CAIRN_OK)
        cairn_prompting_close(p);
    return st;
}

enum cairn_status cairn_prompting_ids(struct cairn_prompting *p, const struct cairn_prompts *file, int64_t row, int64_t max_new,
                                      const struct cairn_model_config *c, struct cairn_ids *ids, struct cairn_error *err)
{
    const struct cairn_prompt *q = &file->row[row];
    long long line = (long long)row + 1;
    int64_t before = ids->n, n;
    enum cairn_status st = q->messages ? cairn_template_chat(p->template, p->tokenizer, q->message, q->messages, ids, err)
                                       : cairn_template_render(p->template, p->tokenizer, q->prompt, q->prompt_bytes, ids, err);

    if (st != CAIRN_OK) {
        if (err)
            cairn_error_prefix(err, "%s:%lld", file->path, line);
        return st;
    }
    n = ids->n - before;
    if (!n)
        st = cairn_fail(err, CAIRN_EDATA, "%s:%lld: the prompt has no tokens", file->path, line);
    else if (n > c->max_positions || max_new > c->max_positions - n + 1)
        st = cairn_fail(err, CAIRN_EDATA, "%s:%lld: a prompt of %lld tokens and %lld new ones (max_new_tokens) do not fit the model's %lld positions",
                        file->path, line, (long long)n, (long long)max_new, (long long)c->max_positions);
    for (int64_t i = before; st == CAIRN_OK && i < ids->n; i++)
        if (ids->p[i] >= c->vocab)
            st = cairn_fail(err, CAIRN_EDATA, "%s:%lld: token %d is outside the model's vocabulary of %lld", file->path, line, ids->p[i],
                            (long long)c->vocab);
        else if (cairn_config_placeholder(c, ids->p[i]))
            st = cairn_fail(err, CAIRN_EDATA, "%s:%lld: token %d stands for an image or a video; prompts are text only", file->path, line,
                            ids->p[i]);
    if (st != CAIRN_OK)
        ids->n = before;
    return st;
}

enum cairn_status cairn_prompting_end(const struct cairn_prompting *p, struct cairn_ids *ids, struct cairn_error *err)
{
    if (p->stop.n)
        return cairn_ids_push(ids, p->stop.p[0]) ? CAIRN_OK : CAIRN_NOMEM(err);
    return cairn_tokenizer_encode(p->tokenizer, p->text[0], strlen(p->text[0]), NULL, ids, err);
}

/* 1: z ends with the first `end` bytes of the last token (and begins somewhere before). */
static int ends_here(const struct cairn_prompting *p, const char *z, size_t want, const int32_t *response, int64_t last, size_t end)
{
    size_t len;
    const char *bytes = cairn_tokenizer_token_bytes(p->tokenizer, response[last], &len);

    while (want) {
        while (!bytes || !end) {
            if (!last)
                return 0;
            bytes = cairn_tokenizer_token_bytes(p->tokenizer, response[--last], &end);
        }
        if (z[--want] != bytes[--end])
            return 0;
    }
    return 1;
}

/* 1: the last token of the response completes z. */
static int completes(const struct cairn_prompting *p, const char *z, const int32_t *response, int64_t n)
{
    size_t len;

    if (!cairn_tokenizer_token_bytes(p->tokenizer, response[n - 1], &len))
        return 0;
    for (size_t end = 1; end <= len; end++)
        if (ends_here(p, z, strlen(z), response, n - 1, end))
            return 1;
    return 0;
}

int cairn_prompting_ended(void *arg, const int32_t *response, int64_t n)
{
    const struct cairn_prompting *p = arg;

    for (int i = 0; i < p->texts; i++)
        if (completes(p, p->text[i], response, n))
            return 1;
    return 0;
}
