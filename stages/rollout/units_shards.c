/* units_shards.c - units as shards: columns, writing, adopting what another attempt has finished (units.h). */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "stages/rollout/units_inside.h"

/* ---- writing -------------------------------------------------------------------------------------------------------- */

int64_t cairn_units_end(const struct cairn_units *u, int64_t unit)
{
    int64_t end = (unit + 1) * CAIRN_UNIT_GROUPS;

    return end < u->n ? end : u->n;
}

static char *unit_identity(const struct cairn_units *u, int64_t unit)
{
    return cairn_format("groups %lld to %lld%s, %s", (long long)unit * CAIRN_UNIT_GROUPS, (long long)cairn_units_end(u, unit),
                        u->o.dynamic ? ", judged" : "", u->identity); /* judged: with columns value and status */
}

static enum cairn_status columns_alloc(const struct cairn_units *u, struct cairn_rollouts *r, int64_t n, int64_t tokens,
                                       int64_t responses, struct cairn_error *err)
{
    size_t m = (size_t)n + 1, choices = (size_t)((tokens - n) * u->o.expert_row) * (size_t)u->o.expert_bytes;

    *r = (struct cairn_rollouts){.n = n,
                                 .offsets = calloc(m, sizeof *r->offsets),
                                 .tokens = calloc((size_t)tokens + 1, sizeof *r->tokens),
                                 .logprobs = calloc((size_t)responses + 1, sizeof *r->logprobs),
                                 .logprobs_sampled =
                                     u->o.sampled ? calloc((size_t)responses + 1, sizeof *r->logprobs_sampled) : NULL,
                                 .prompt_length = calloc(m, sizeof *r->prompt_length),
                                 .prompt_id = calloc(m, sizeof *r->prompt_id),
                                 .group = calloc(m, sizeof *r->group),
                                 .sample = calloc(m, sizeof *r->sample),
                                 .finish = calloc(m, 1),
                                 .used = calloc(m, 1),
                                 .verdict = calloc(m, 1),
                                 .value = u->o.dynamic ? calloc(m, sizeof *r->value) : NULL,
                                 .status = u->o.dynamic ? calloc(m, 1) : NULL,
                                 .carried = u->o.carry ? calloc(m, sizeof *r->carried) : NULL,
                                 .text_offsets = u->o.text ? calloc(m, sizeof *r->text_offsets) : NULL,
                                 .experts = u->o.expert_row ? malloc(choices + 1) : NULL,
                                 .expert_bytes = u->o.expert_bytes,
                                 .expert_row = u->o.expert_row};
    if (!r->offsets || !r->tokens || !r->logprobs || (u->o.sampled && !r->logprobs_sampled) ||
        (u->o.dynamic && (!r->value || !r->status)) || (u->o.carry && !r->carried) || (u->o.text && !r->text_offsets) ||
        (u->o.expert_row && !r->experts) || !r->prompt_length || !r->prompt_id || !r->group || !r->sample || !r->finish ||
        !r->used || !r->verdict)
        return CAIRN_NOMEM(err);
    return CAIRN_OK;
}

/* The texts of all rollouts of r, whose tokens are there. */
static enum cairn_status texts_make(const struct cairn_units *u, struct cairn_rollouts *r, struct cairn_error *err)
{
    struct cairn_str text = {0};
    enum cairn_status st = CAIRN_OK;

    for (int64_t i = 0; i < r->n; i++) {
        TRY(u->o.text(u->o.arg, r->tokens + r->offsets[i] + r->prompt_length[i], cairn_rollout_length(r, i), &text, err));
        r->text_offsets[i + 1] = (int64_t)text.len;
    }
    r->text = cairn_str_take(&text);
    if (!r->text)
        TRY(CAIRN_NOMEM(err));
out:
    cairn_str_free(&text);
    return st;
}

/* Groups [begin, end) as columns. */
static enum cairn_status unit_columns(const struct cairn_units *u, int64_t begin, int64_t end, struct cairn_rollouts *r,
                                      struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t tokens = 0, responses = 0, i = 0, at = 0;
    size_t choices = (size_t)(u->o.expert_row * u->o.expert_bytes);

    for (int64_t g = begin; g < end; g++) {
        responses += u->group[g].tokens;
        tokens += u->group[g].tokens + u->group[g].ids.n * u->o.samples;
    }
    TRY(columns_alloc(u, r, (end - begin) * u->o.samples, tokens, responses, err));
    tokens = 0;
    for (int64_t k = begin; k < end; k++)
        for (int s = 0; s < u->o.samples; s++, i++) {
            const struct group *g = &u->group[k];
            const struct sample *x = &g->sample[s];
            size_t n = (size_t)x->n, bytes = n * sizeof(float);

            memcpy(r->tokens + tokens, g->ids.p, (size_t)g->ids.n * sizeof *r->tokens);
            memcpy(r->tokens + tokens + g->ids.n, x->tokens, bytes);
            memcpy(r->logprobs + at, x->logprobs, bytes);
            if (r->logprobs_sampled)
                memcpy(r->logprobs_sampled + at, x->sampled, bytes);
            if (r->experts)
                memcpy((char *)r->experts + (size_t)(tokens - i) * choices, x->experts, (size_t)(g->ids.n + x->n - 1) * choices);
            tokens += g->ids.n + x->n;
            at += x->n;
            r->offsets[i + 1] = tokens;
            r->prompt_length[i] = (int32_t)g->ids.n;
            r->prompt_id[i] = g->prompt_id;
            r->group[i] = (int32_t)k;
            r->sample[i] = s;
            r->finish[i] = x->finish;
            r->used[i] = g->used;
            r->verdict[i] = x->verdict;
            if (r->value) {
                r->value[i] = x->value;
                r->status[i] = x->status;
            }
            if (r->carried)
                r->carried[i] = g->carried;
        }
    TRY(cairn_rollouts_finish(r, "rollouts", err));
    if (u->o.text)
        TRY(texts_make(u, r, err));
out:
    return st;
}

static enum cairn_status unit_write(struct cairn_units *u, int64_t unit, struct cairn_error *err)
{
    int64_t begin = unit * CAIRN_UNIT_GROUPS, end = cairn_units_end(u, unit);
    struct cairn_shard_entry *entry = NULL;
    struct cairn_rollouts r = {0};
    char *identity = unit_identity(u, unit);
    enum cairn_status st = CAIRN_OK;

    if (!identity)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_attempt_check(u->o.attempt, err));
    TRY(unit_columns(u, begin, end, &r, err));
    TRY(cairn_rollouts_write(&r, 0, r.n, u->o.attempt, (int)unit, identity, &entry, err));
    TRY(cairn_manifest_add_shard(u->o.manifest, entry, err));
    u->written[unit] = 1;
    for (int64_t g = begin; g < end; g++)
        cairn_units_drop(u, &u->group[g]);
out:
    cairn_rollouts_free(&r);
    free(identity);
    return st;
}

enum cairn_status cairn_units_try(struct cairn_units *u, int64_t unit, struct cairn_error *err)
{
    int64_t end = cairn_units_end(u, unit);

    if (u->written[unit] || u->elsewhere[unit])
        return CAIRN_OK;
    for (int64_t g = unit * CAIRN_UNIT_GROUPS; g < end; g++)
        if (!u->group[g].judged)
            return CAIRN_OK;
    if (u->o.dynamic && u->known < end)
        return CAIRN_OK;
    if (!u->o.dynamic) /* all are used: nothing has to be waited for */
        for (int64_t g = unit * CAIRN_UNIT_GROUPS; g < end; g++)
            u->group[g].used = 1;
    return unit_write(u, unit, err);
}

/* ---- adopting ------------------------------------------------------------------------------------------------------- */

/* What later groups and the counts need to know of an adopted unit. */
static enum cairn_status unit_read(struct cairn_units *u, const struct cairn_shard_entry *e, int64_t unit, struct cairn_error *err)
{
    int64_t begin = unit * CAIRN_UNIT_GROUPS, end = cairn_units_end(u, unit), n = (end - begin) * u->o.samples;
    int64_t *offsets = malloc(((size_t)n + 1) * sizeof *offsets), *prompt = malloc((size_t)n * sizeof *prompt + 1);
    int32_t *length = malloc((size_t)n * sizeof *length + 1);
    uint8_t *finish = malloc((size_t)n + 1), *status = calloc((size_t)n + 1, 1);
    float *value = calloc((size_t)n + 1, sizeof *value);
    enum cairn_status st = CAIRN_OK;

    if (!offsets || !prompt || !length || !finish || !status || !value)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_unit_column(u->dir, e, (int)unit, "offsets", CAIRN_I64, n + 1, offsets, err));
    TRY(cairn_unit_column(u->dir, e, (int)unit, "prompt_id", CAIRN_I64, n, prompt, err));
    TRY(cairn_unit_column(u->dir, e, (int)unit, "prompt_length", CAIRN_I32, n, length, err));
    TRY(cairn_unit_column(u->dir, e, (int)unit, "finish", CAIRN_U8, n, finish, err));
    if (u->o.dynamic)
        TRY(cairn_unit_column(u->dir, e, (int)unit, "value", CAIRN_F32, n, value, err));
    if (u->o.dynamic)
        TRY(cairn_unit_column(u->dir, e, (int)unit, "status", CAIRN_U8, n, status, err));
    for (int64_t i = 0; i < n; i++) {
        struct group *g = &u->group[begin + i / u->o.samples];

        if (prompt[i] != g->prompt_id || offsets[i + 1] - offsets[i] < length[i] || length[i] != g->ids.n)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: rollout %lld is of another prompt", e->file, (long long)i));
        cairn_units_result(u, g, (int)(i % u->o.samples), offsets[i + 1] - offsets[i] - length[i], finish[i], value[i], status[i]);
    }
    for (int64_t g = begin; g < end; g++) {
        u->group[g].judged = u->group[g].used = u->group[g].adopted = 1; /* used, dynamic: decide() says */
        u->group[g].missing = 0;
        cairn_ids_free(&u->group[g].ids);
    }
    u->adopted += n;
out:
    free(offsets);
    free(prompt);
    free(length);
    free(finish);
    free(status);
    free(value);
    return st;
}

enum cairn_status cairn_units_adopt(struct cairn_units *u, int64_t begin, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int64_t unit = begin / CAIRN_UNIT_GROUPS; unit < cairn_units_count(u); unit++) {
        struct cairn_shard_entry *entry = NULL;
        char name[32], *identity;

        if (u->elsewhere[unit] || u->written[unit] || u->group[unit * CAIRN_UNIT_GROUPS].judged)
            continue; /* its first groups were sampled by us, so nobody has written it */
        cairn_unit_name((int)unit, name);
        identity = unit_identity(u, unit);
        st = identity ? cairn_attempt_adopt(u->o.attempt, name, identity, &entry, err) : CAIRN_NOMEM(err);
        free(identity);
        TRY(st);
        if (!entry)
            continue;
        st = unit_read(u, entry, unit, err);
        if (st == CAIRN_OK)
            st = cairn_manifest_add_shard(u->o.manifest, entry, err);
        else
            cairn_shard_entry_free(entry);
        TRY(st);
        u->written[unit] = 1;
    }
    cairn_units_decide(u);
out:
    return st;
}

struct search {
    const struct cairn_units *u;
    uint8_t *there; /* [units] */
};

static int search_one(void *arg, const char *name, const char *identity, int64_t epoch)
{
    struct search *s = arg;
    int64_t unit;
    char *want;

    (void)epoch;
    if (!cairn_starts_with(name, "unit-") || !cairn_parse_i64(name + 5, &unit) || unit < 0 || unit >= cairn_units_count(s->u) ||
        s->there[unit])
        return 0;
    want = unit_identity(s->u, unit);
    s->there[unit] = want && !strcmp(want, identity);
    free(want);
    return 0;
}

enum cairn_status cairn_units_missing(const struct cairn_units *u, int64_t *missing, struct cairn_error *err)
{
    struct search s = {u, calloc((size_t)cairn_units_count(u) + 1, 1)};
    enum cairn_status st = CAIRN_OK;

    if (!s.there)
        return CAIRN_NOMEM(err);
    TRY(cairn_attempt_each(u->o.attempt, search_one, &s, err));
    *missing = 0;
    for (int64_t unit = 0; unit < cairn_units_count(u); unit++)
        *missing += !s.there[unit] && !u->group[unit * CAIRN_UNIT_GROUPS].judged;
out:
    free(s.there);
    return st;
}
