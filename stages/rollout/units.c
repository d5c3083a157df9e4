/* units.c - the list of candidates: responses, judging, what ranks tell each other, counts (units.h). Shards: units_shards.c. */
#include "stages/rollout/units.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "stages/rollout/units_inside.h"

#define TOLERANCE 1e-6 /* of raw rewards that are finer than verdicts */

enum cairn_status cairn_units_create(struct cairn_units **out, const struct cairn_units_opts *o, struct cairn_error *err)
{
    struct cairn_units *u = calloc(1, sizeof *u);

    if (!u)
        return CAIRN_NOMEM(err);
    u->o = *o;
    u->identity = strdup(o->identity);
    u->dir = strdup(o->dir);
    if (!u->identity || !u->dir) {
        cairn_units_destroy(u);
        return CAIRN_NOMEM(err);
    }
    *out = u;
    return CAIRN_OK;
}

void cairn_units_drop(struct cairn_units *u, struct group *g)
{
    for (int s = 0; g->sample && s < u->o.samples; s++) {
        free(g->sample[s].tokens);
        free(g->sample[s].experts);
    }
    free(g->sample);
    g->sample = NULL;
    cairn_ids_free(&g->ids);
}

void cairn_units_destroy(struct cairn_units *u)
{
    if (!u)
        return;
    for (int64_t i = 0; i < u->n; i++)
        cairn_units_drop(u, &u->group[i]);
    free(u->group);
    free(u->written);
    free(u->elsewhere);
    free(u->table);
    free(u->identity);
    free(u->dir);
    free(u);
}

/* ---- the list ------------------------------------------------------------------------------------------------------- */

/* The place of a prompt id in the table. */
static int64_t *place_of(struct cairn_units *u, int64_t prompt_id)
{
    uint64_t i = (uint64_t)prompt_id * 0x9e3779b97f4a7c15u;

    for (i >>= 20;; i++) {
        int64_t *p = &u->table[i & (uint64_t)(u->slots - 1)];

        if (!*p || u->group[*p - 1].prompt_id == prompt_id)
            return p;
    }
}

static enum cairn_status table_grow(struct cairn_units *u, struct cairn_error *err)
{
    int64_t slots = u->slots ? 2 * u->slots : 64, *table = calloc((size_t)slots, sizeof *table);

    if (!table)
        return CAIRN_NOMEM(err);
    free(u->table);
    u->table = table;
    u->slots = slots;
    for (int64_t i = 0; i < u->n; i++)
        *place_of(u, u->group[i].prompt_id) = i + 1;
    return CAIRN_OK;
}

static enum cairn_status flags_grow(uint8_t **flags, int64_t n, int64_t room, struct cairn_error *err)
{
    uint8_t *p = realloc(*flags, (size_t)room);

    if (!p)
        return CAIRN_NOMEM(err);
    memset(p + n, 0, (size_t)(room - n));
    *flags = p;
    return CAIRN_OK;
}

enum cairn_status cairn_units_add(struct cairn_units *u, int64_t prompt_id, struct cairn_ids *ids, int carried,
                                  struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t *place;

    if (u->n == u->room) {
        int64_t room = u->room ? 2 * u->room : 64;
        struct group *p = realloc(u->group, (size_t)room * sizeof *p);

        if (!p)
            TRY(CAIRN_NOMEM(err));
        u->group = p;
        u->room = room;
    }
    if (u->n / CAIRN_UNIT_GROUPS >= u->units_room) {
        int64_t room = u->units_room ? 2 * u->units_room : 64;

        TRY(flags_grow(&u->written, u->units_room, room, err));
        TRY(flags_grow(&u->elsewhere, u->units_room, room, err));
        u->units_room = room;
    }
    if (2 * (u->n + 1) > u->slots)
        TRY(table_grow(u, err));
    u->group[u->n] = (struct group){.prompt_id = prompt_id, .ids = *ids, .missing = u->o.samples, .carried = carried};
    memset(ids, 0, sizeof *ids);
    place = place_of(u, prompt_id);
    if (*place)
        u->group[u->n].repeat = u->group[*place - 1].repeat + 1;
    *place = ++u->n;
out:
    cairn_ids_free(ids);
    return st;
}

int64_t cairn_units_groups(const struct cairn_units *u)
{
    return u->n;
}

int64_t cairn_units_prompt(const struct cairn_units *u, int64_t group)
{
    return u->group[group].prompt_id;
}

const struct cairn_ids *cairn_units_ids(const struct cairn_units *u, int64_t group)
{
    return &u->group[group].ids;
}

int cairn_units_repeat(const struct cairn_units *u, int64_t group)
{
    return u->group[group].repeat;
}

int cairn_units_carried(const struct cairn_units *u, int64_t group)
{
    return u->group[group].carried;
}

int cairn_units_whole(const struct cairn_units *u, int64_t group)
{
    return u->group[group].judged;
}

void cairn_units_leave(struct cairn_units *u, int64_t unit, int elsewhere)
{
    u->elsewhere[unit] = elsewhere != 0;
}

int cairn_units_ours(const struct cairn_units *u, int64_t group)
{
    return !u->elsewhere[group / CAIRN_UNIT_GROUPS];
}

int cairn_units_count(const struct cairn_units *u)
{
    return (int)((u->n + CAIRN_UNIT_GROUPS - 1) / CAIRN_UNIT_GROUPS);
}

/* ---- judging -------------------------------------------------------------------------------------------------------- */

void cairn_spread_add(struct cairn_spread *s, double raw, float value)
{
    s->least = s->n && s->least < raw ? s->least : raw;
    s->most = s->n && s->most > raw ? s->most : raw;
    s->fine |= value != 0 && value != 1;
    s->n++;
}

int cairn_spread_mixed(const struct cairn_spread *s)
{
    return s->n && (s->fine ? s->most - s->least > TOLERANCE : s->least != s->most);
}

double cairn_units_raw(double right, double wrong, int truncated_zero, float value, uint8_t finish)
{
    if (truncated_zero && finish == CAIRN_FINISH_LENGTH)
        return 0;
    return value == 1 ? right : value == 0 ? wrong : wrong + (double)value * (right - wrong);
}

static int mixed(const struct group *g)
{
    return cairn_spread_mixed(&g->raw);
}

/* A response without a verdict counts as wrong; the group hangs on it if the others are all alike. */
static int undecided(const struct group *g)
{
    return g->sure.n < g->raw.n && !cairn_spread_mixed(&g->sure);
}

void cairn_units_result(const struct cairn_units *u, struct group *g, int s, int64_t tokens, uint8_t finish, float value,
                        uint8_t status)
{
    double raw = cairn_units_raw(u->o.right, u->o.wrong, u->o.truncated_zero, value, finish);

    g->tokens += tokens;
    g->capped += finish == CAIRN_FINISH_LENGTH;
    g->right = s ? g->right : value == 1;
    cairn_spread_add(&g->raw, raw, value);
    if (status == CAIRN_VERDICT_OK || status == CAIRN_VERDICT_NO_ANSWER)
        cairn_spread_add(&g->sure, raw, value);
    g->status[status < CAIRN_VERDICT_STATUSES ? status : CAIRN_VERDICT_INVALID]++;
}

void cairn_units_decide(struct cairn_units *u)
{
    for (; u->known < u->n && u->group[u->known].judged; u->known++) {
        struct group *g = &u->group[u->known];

        g->used = !u->o.dynamic || (mixed(g) && u->kept < u->o.want);
        u->kept += g->used;
    }
}

static enum cairn_status judge(struct cairn_units *u, struct group *g, struct cairn_error *err)
{
    int n = u->o.samples;
    struct cairn_response *r = NULL;
    uint8_t *verdict = malloc((size_t)n), *status = calloc((size_t)n, 1);
    float *value = calloc((size_t)n, sizeof *value);
    enum cairn_status st = CAIRN_OK;

    if (!verdict || !status || !value)
        TRY(CAIRN_NOMEM(err));
    memset(verdict, CAIRN_VERDICT_UNASKED, (size_t)n);
    if (u->o.dynamic) {
        r = calloc((size_t)n, sizeof *r);
        if (!r)
            TRY(CAIRN_NOMEM(err));
        for (int s = 0; s < n; s++)
            r[s] = (struct cairn_response){
                .sample = s, .n = g->sample[s].n, .tokens = g->sample[s].tokens, .finish = g->sample[s].finish};
        TRY(u->o.grade(u->o.arg, g->prompt_id, r, n, verdict, value, status, err));
    }
    for (int s = 0; s < n; s++) {
        g->sample[s].verdict = verdict[s];
        g->sample[s].value = value[s];
        g->sample[s].status = status[s];
        cairn_units_result(u, g, s, g->sample[s].n, g->sample[s].finish, value[s], status[s]);
    }
    g->judged = 1;
out:
    free(r);
    free(verdict);
    free(status);
    free(value);
    return st;
}

/* The routers' choices of a response and of its prompt, as they are stored. */
static void *experts_copy(const struct cairn_units *u, const struct group *g, const struct cairn_response *r)
{
    size_t prompt = (size_t)((g->ids.n - 1) * u->o.expert_row), own = (size_t)(r->n * u->o.expert_row);
    uint8_t *small = malloc((prompt + own) * (size_t)u->o.expert_bytes + 1);
    int32_t *large = (int32_t *)small;

    for (size_t i = 0; small && i < prompt + own; i++) {
        int32_t e = i < prompt ? r->experts_prompt[i] : r->experts[i - prompt];

        if (u->o.expert_bytes == 1)
            small[i] = (uint8_t)e;
        else
            large[i] = e;
    }
    return small;
}

static enum cairn_status sample_put(struct cairn_units *u, struct group *g, const struct cairn_response *r, struct cairn_error *err)
{
    struct sample *x;
    size_t n = (size_t)r->n;

    if (!g->sample && !(g->sample = calloc((size_t)u->o.samples, sizeof *g->sample)))
        return CAIRN_NOMEM(err);
    x = &g->sample[r->sample];
    if (x->there)
        return CAIRN_BUG(err, "a sample was told twice");
    x->tokens = malloc(n * 12);
    if (!x->tokens)
        return CAIRN_NOMEM(err);
    x->logprobs = (float *)(x->tokens + n);
    x->sampled = x->logprobs + n;
    memcpy(x->tokens, r->tokens, n * 4);
    memcpy(x->logprobs, r->logprobs, n * 4);
    if (u->o.sampled)
        memcpy(x->sampled, r->logprobs_sampled, n * 4);
    if (u->o.expert_row && !(x->experts = experts_copy(u, g, r)))
        return CAIRN_NOMEM(err);
    x->n = r->n;
    x->finish = (uint8_t)r->finish;
    x->there = 1;
    g->missing--;
    return CAIRN_OK;
}

/* Dynamic: writes what became whole since the groups from `known` on are known. */
static enum cairn_status units_advance(struct cairn_units *u, int64_t known, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int64_t unit = known / CAIRN_UNIT_GROUPS; unit < cairn_units_count(u); unit++) {
        if ((unit + 1) * CAIRN_UNIT_GROUPS > u->n || unit * CAIRN_UNIT_GROUPS >= u->known)
            break;
        TRY(cairn_units_try(u, unit, err));
    }
out:
    return st;
}

enum cairn_status cairn_units_put(struct cairn_units *u, const struct cairn_response *r, struct cairn_error *err)
{
    struct group *g = &u->group[r->tag];
    int64_t unit = r->tag / CAIRN_UNIT_GROUPS, known = u->known;
    enum cairn_status st = CAIRN_OK;

    TRY(sample_put(u, g, r, err));
    if (g->missing)
        goto out;
    TRY(judge(u, g, err));
    cairn_units_decide(u);
    if (u->o.dynamic)
        TRY(units_advance(u, known, err));
    else if ((unit + 1) * CAIRN_UNIT_GROUPS <= u->n)
        TRY(cairn_units_try(u, unit, err));
out:
    return st;
}

enum cairn_status cairn_units_finish(struct cairn_units *u, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    cairn_units_decide(u);
    for (int64_t unit = 0; unit < cairn_units_count(u); unit++) {
        TRY(cairn_units_try(u, unit, err));
        if (!u->written[unit] && !u->elsewhere[unit])
            TRY(CAIRN_BUG(err, "a unit with missing rollouts at the end of the list"));
    }
out:
    return st;
}

/* ---- ranks ---------------------------------------------------------------------------------------------------------- */

/* A judged group, as ranks tell it; zeroed first, so that it has no bytes that nobody wrote. */
struct news {
    int64_t group, tokens, capped;
    struct cairn_spread raw, sure;
    int32_t status[CAIRN_VERDICT_STATUSES], right, adopted;
};

enum cairn_status cairn_units_news(struct cairn_units *u, struct cairn_str *out, struct cairn_error *err)
{
    for (int64_t i = 0; i < u->n; i++) {
        struct group *g = &u->group[i];
        struct news n;

        if (!g->judged || g->told)
            continue;
        memset(&n, 0, sizeof n);
        n.group = i;
        n.tokens = g->tokens;
        n.capped = g->capped;
        n.raw = g->raw;
        n.sure = g->sure;
        memcpy(n.status, g->status, sizeof n.status);
        n.right = g->right;
        n.adopted = g->adopted;
        g->told = 1;
        cairn_str_add(out, &n, sizeof n);
    }
    return out->oom ? CAIRN_NOMEM(err) : CAIRN_OK;
}

enum cairn_status cairn_units_learn(struct cairn_units *u, const char *p, size_t bytes, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t known = u->known;

    if (bytes % sizeof(struct news))
        TRY(CAIRN_BUG(err, "news of another kind"));
    for (size_t at = 0; at < bytes; at += sizeof(struct news)) {
        struct group *g;
        struct news n;

        memcpy(&n, p + at, sizeof n);
        if (n.group < 0 || n.group >= u->n || u->group[n.group].judged || u->group[n.group].sample)
            TRY(CAIRN_BUG(err, "news of a group that is known or ours"));
        g = &u->group[n.group];
        g->tokens = n.tokens;
        g->capped = n.capped;
        g->raw = n.raw;
        g->sure = n.sure;
        memcpy(g->status, n.status, sizeof g->status);
        g->right = n.right != 0;
        g->adopted = n.adopted != 0;
        g->judged = g->told = 1;
        g->missing = 0;
        cairn_ids_free(&g->ids);
        u->adopted += g->adopted ? u->o.samples : 0;
    }
    cairn_units_decide(u);
    if (u->o.dynamic)
        TRY(units_advance(u, known, err));
out:
    return st;
}

/* ---- the end -------------------------------------------------------------------------------------------------------- */

struct cairn_units_counts cairn_units_counts(const struct cairn_units *u)
{
    struct cairn_units_counts c = {.kept = u->kept, .adopted = u->adopted};

    for (int64_t i = 0; i < u->n; i++) {
        const struct group *g = &u->group[i];

        if (!g->judged)
            continue;
        c.groups++;
        c.rollouts += u->o.samples;
        c.tokens += g->tokens;
        c.capped += g->capped;
        if (!u->o.dynamic)
            continue;
        c.surplus += mixed(g) && !g->used;
        c.all_right += !mixed(g) && g->right;
        c.all_wrong += !mixed(g) && !g->right;
        c.carried += g->carried >= 0;
        c.undecided += undecided(g);
        for (int k = 0; k < CAIRN_VERDICT_STATUSES; k++)
            c.status[k] += g->status[k];
    }
    return c;
}

enum cairn_status cairn_units_surplus(const struct cairn_units *u, int64_t **id, int64_t *n, struct cairn_error *err)
{
    *n = 0;
    *id = malloc(((size_t)u->n + 1) * sizeof **id);
    if (!*id)
        return CAIRN_NOMEM(err);
    for (int64_t i = 0; u->o.dynamic && i < u->n; i++)
        if (mixed(&u->group[i]) && !u->group[i].used)
            (*id)[(*n)++] = u->group[i].prompt_id;
    return CAIRN_OK;
}
