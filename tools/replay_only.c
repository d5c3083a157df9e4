/* replay_only.c - reads conditions and holds rollouts against them (replay_only.h). */
#include "tools/replay_only.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grade/grade.h"

static enum cairn_status word_add(char ***list, int *n, const char *word, struct cairn_error *err)
{
    char **p = realloc(*list, ((size_t)*n + 1) * sizeof *p);

    if (!p)
        return CAIRN_NOMEM(err);
    *list = p;
    p[*n] = strdup(word);
    if (!p[*n])
        return CAIRN_NOMEM(err);
    ++*n;
    return CAIRN_OK;
}

/* "3" or "1-5" */
static enum cairn_status range_add(struct cairn_only_numbers *s, const char *key, char *part, struct cairn_error *err)
{
    char *dash = strchr(part, '-');
    int64_t low, high, (*p)[2];

    if (dash)
        *dash = 0;
    if (!cairn_parse_i64(part, &low) || low < 0 || (dash && !cairn_parse_i64(dash + 1, &high)))
        return cairn_fail(err, CAIRN_EUSAGE, "--only %s=%s%s%s: expected numbers and ranges, as in %s=0-3,7", key, part, dash ? "-" : "",
                          dash ? dash + 1 : "", key);
    if (!dash)
        high = low;
    if (high < low)
        return cairn_fail(err, CAIRN_EUSAGE, "--only %s=%lld-%lld: the range is empty", key, (long long)low, (long long)high);
    p = realloc(s->range, ((size_t)s->n + 1) * sizeof *p);
    if (!p)
        return CAIRN_NOMEM(err);
    s->range = p;
    p[s->n][0] = low;
    p[s->n][1] = high;
    s->n++;
    return CAIRN_OK;
}

static enum cairn_status finish_add(uint32_t *bits, const char *word, struct cairn_error *err)
{
    for (int f = CAIRN_FINISH_STOP; f <= CAIRN_FINISH_ABORTED; f++)
        if (!strcmp(word, cairn_finish_name(f))) {
            *bits |= 1u << f;
            return CAIRN_OK;
        }
    return cairn_fail(err, CAIRN_EUSAGE, "--only finish=%s: expected stop, length or aborted", word);
}

static enum cairn_status verdict_add(uint32_t *bits, const char *word, struct cairn_error *err)
{
    struct cairn_str names = {0};
    enum cairn_status st;

    if (!strcmp(word, "wrong") || !strcmp(word, "right")) {
        *bits |= *word == 'r' ? 2u : 1u;
        return CAIRN_OK;
    }
    for (int s = CAIRN_VERDICT_OK + 1; s < CAIRN_VERDICT_STATUSES; s++) {
        const char *name = cairn_verdict_status_name((enum cairn_verdict_status)s);

        if (!strcmp(word, name)) {
            *bits |= 4u << s;
            return CAIRN_OK;
        }
        cairn_str_printf(&names, ", %s", name);
    }
    st = cairn_fail(err, CAIRN_EUSAGE, "--only verdict=%s: expected right, wrong%s", word, cairn_str_z(&names));
    cairn_str_free(&names);
    return st;
}

/* One of the comma's parts. */
static enum cairn_status part_add(struct cairn_only *o, const char *key, char *part, struct cairn_error *err)
{
    if (!strcmp(key, "step"))
        return range_add(&o->step, key, part, err);
    if (!strcmp(key, "sample"))
        return range_add(&o->sample, key, part, err);
    if (!strcmp(key, "finish"))
        return finish_add(&o->finish, part, err);
    return verdict_add(&o->verdict, part, err);
}

enum cairn_status cairn_only_add(struct cairn_only *o, const char *text, struct cairn_error *err)
{
    static const char *const keys[] = {"step", "sample", "finish", "verdict", "prompt", "eval"};
    enum cairn_status st = CAIRN_OK;
    char *copy = strdup(text), *value = copy ? strchr(copy, '=') : NULL;
    int known = 0;

    if (!copy)
        TRY(CAIRN_NOMEM(err));
    if (value)
        *value++ = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        known |= !strcmp(copy, keys[i]);
    if (!known || !value || !*value)
        TRY(cairn_fail(err, CAIRN_EUSAGE, "--only %s: expected step=, prompt=, sample=, verdict=, finish= or eval=, and what", text));
    if (!strcmp(copy, "prompt"))
        st = word_add(&o->prompt, &o->prompts, value, err);
    else if (!strcmp(copy, "eval"))
        st = word_add(&o->eval, &o->evals, value, err);
    else
        for (char *part = value, *comma; st == CAIRN_OK && part; part = comma) {
            comma = strchr(part, ',');
            if (comma)
                *comma++ = 0;
            st = part_add(o, copy, part, err);
        }
    TRY(st);
    cairn_str_printf(&o->text, " %s", text);
    if (o->text.oom)
        TRY(CAIRN_NOMEM(err));
out:
    free(copy);
    return st;
}

void cairn_only_free(struct cairn_only *o)
{
    for (int i = 0; i < o->prompts; i++)
        free(o->prompt[i]);
    for (int i = 0; i < o->evals; i++)
        free(o->eval[i]);
    free(o->prompt);
    free(o->eval);
    free(o->step.range);
    free(o->sample.range);
    cairn_str_free(&o->text);
    memset(o, 0, sizeof *o);
}

/* ---- holding ------------------------------------------------------------------------------------------------------- */

static int number_in(const struct cairn_only_numbers *s, int64_t x)
{
    for (int i = 0; i < s->n; i++)
        if (x >= s->range[i][0] && x <= s->range[i][1])
            return 1;
    return !s->n;
}

static int word_in(char *const *list, int n, const char *word)
{
    for (int i = 0; i < n; i++)
        if (word && !strcmp(list[i], word))
            return 1;
    return !n;
}

int cairn_only_link(const struct cairn_only *o, const struct cairn_link *l)
{
    if (!number_in(&o->step, l->step))
        return 0;
    if (o->evals)
        return l->eval && word_in(o->eval, o->evals, l->eval);
    return !l->eval || !o->step.n; /* a step is one of training's, unless a set is named */
}

int cairn_only_takes(const struct cairn_only *o, const struct cairn_rollouts *r, int64_t i, const char *id, const struct cairn_scores_table *s)
{
    uint32_t verdict = 0;

    if (s)
        verdict = (s->verdict[i] ? 2u : 1u) | (s->status[i] > CAIRN_VERDICT_OK && s->status[i] < CAIRN_VERDICT_STATUSES ? 4u << s->status[i] : 0);
    return number_in(&o->sample, r->sample[i]) && word_in(o->prompt, o->prompts, id) && (!o->finish || (o->finish >> r->finish[i] & 1)) &&
           (!o->verdict || (o->verdict & verdict));
}

void cairn_only_numbers_put(const int64_t *number, int64_t n, struct cairn_str *out)
{
    for (int64_t i = 0, last; i < n; i = last + 1) {
        for (last = i; last + 1 < n && number[last + 1] == number[last] + 1; last++)
            ;
        cairn_str_printf(out, "%s%lld", i ? "," : "", (long long)number[i]);
        if (last > i)
            cairn_str_printf(out, "-%lld", (long long)number[last]);
    }
}

int cairn_only_all(const struct cairn_only *o)
{
    return !o->sample.n && !o->prompts && !o->finish && !o->verdict;
}
