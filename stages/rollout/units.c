/* units.c - collecting responses, judging groups, writing and adopting units (units.h). */
#include "stages/rollout/units.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"

struct sample {
    int32_t *tokens;
    float *logprobs, *sampled; /* behind tokens, in one block */
    int64_t n;
    float value; /* dynamic */
    uint8_t finish, verdict, there;
};

#define TOLERANCE 1e-6 /* of raw rewards that are finer than verdicts */

struct group {
    int64_t prompt_id;
    struct cairn_ids ids;
    struct sample *sample; /* (samples); NULL: none came yet, or written */
    int missing;           /* samples */
    int repeat;
    double least, most;    /* dynamic: raw rewards */
    uint8_t right, fine;   /* dynamic: verdict of sample 0; some value is finer than a verdict */
    uint8_t judged, used;  /* used: known when everything before it is judged */
    uint8_t adopted, told; /* taken over from another attempt; came out in cairn_units_news, or from there */
    int64_t tokens, capped;
};

struct cairn_units {
    struct cairn_units_opts o;
    char *identity, *dir;
    struct group *group;
    int64_t n, room;
    uint8_t *written;      /* [units] */
    uint8_t *elsewhere;    /* [units] somebody else makes it */
    int64_t units_room;
    int64_t known;         /* groups at the beginning whose `used` is known */
    int64_t kept;          /* of those */
    int64_t adopted;
    int64_t *table;        /* prompt id -> its last group + 1, open addressing; 0: empty */
    int64_t slots;
};

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

static void samples_drop(struct cairn_units *u, struct group *g)
{
    for (int s = 0; g->sample && s < u->o.samples; s++)
        free(g->sample[s].tokens);
    free(g->sample);
    g->sample = NULL;
    cairn_ids_free(&g->ids);
}

void cairn_units_destroy(struct cairn_units *u)
{
    if (!u)
        return;
    for (int64_t i = 0; i < u->n; i++)
        samples_drop(u, &u->group[i]);
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

enum cairn_status cairn_units_add(struct cairn_units *u, int64_t prompt_id, struct cairn_ids *ids, struct cairn_error *err)
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
    u->group[u->n] = (struct group){.prompt_id = prompt_id, .ids = *ids, .missing = u->o.samples};
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

static int mixed(const struct group *g)
{
    return g->fine ? g->most - g->least > TOLERANCE : g->least != g->most;
}

/* Sample s of the group came out like this. */
static void result_add(const struct cairn_units *u, struct group *g, int s, int64_t tokens, uint8_t finish, float value)
{
    int verdict = value == 0 || value == 1;
    double raw = u->o.truncated_zero && finish == CAIRN_FINISH_LENGTH ? 0
                 : verdict                                            ? (value == 1 ? u->o.right : u->o.wrong)
                                                                      : u->o.wrong + (double)value * (u->o.right - u->o.wrong);

    g->tokens += tokens;
    g->capped += finish == CAIRN_FINISH_LENGTH;
    if (!s) {
        g->least = g->most = raw;
        g->right = value == 1;
    }
    g->fine |= !verdict;
    g->least = raw < g->least ? raw : g->least;
    g->most = raw > g->most ? raw : g->most;
}

/* Goes on over judged groups and says of each whether it is used. */
static void decide(struct cairn_units *u)
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
    uint8_t *verdict = malloc((size_t)n);
    float *value = calloc((size_t)n, sizeof *value);
    enum cairn_status st = CAIRN_OK;

    if (!verdict || !value)
        TRY(CAIRN_NOMEM(err));
    memset(verdict, CAIRN_VERDICT_UNASKED, (size_t)n);
    if (u->o.dynamic) {
        r = calloc((size_t)n, sizeof *r);
        if (!r)
            TRY(CAIRN_NOMEM(err));
        for (int s = 0; s < n; s++)
            r[s] = (struct cairn_response){.sample = s, .n = g->sample[s].n, .tokens = g->sample[s].tokens, .finish = g->sample[s].finish};
        TRY(u->o.grade(u->o.arg, g->prompt_id, r, n, verdict, value, err));
    }
    for (int s = 0; s < n; s++) {
        g->sample[s].verdict = verdict[s];
        g->sample[s].value = value[s];
        result_add(u, g, s, g->sample[s].n, g->sample[s].finish, value[s]);
    }
    g->judged = 1;
out:
    free(r);
    free(verdict);
    free(value);
    return st;
}

/* ---- writing -------------------------------------------------------------------------------------------------------- */

static int64_t unit_end(const struct cairn_units *u, int64_t unit)
{
    int64_t end = (unit + 1) * CAIRN_UNIT_GROUPS;

    return end < u->n ? end : u->n;
}

static char *unit_identity(const struct cairn_units *u, int64_t unit)
{
    return cairn_format("groups %lld to %lld%s, %s", (long long)unit * CAIRN_UNIT_GROUPS, (long long)unit_end(u, unit), u->o.dynamic ? ", valued" : "",
                        u->identity);
}

static enum cairn_status rollouts_alloc(struct cairn_rollouts *r, int64_t n, int64_t tokens, int64_t responses, int sampled, int valued,
                                        struct cairn_error *err)
{
    size_t m = (size_t)n + 1;

    *r = (struct cairn_rollouts){.n = n,
                                 .offsets = calloc(m, sizeof *r->offsets),
                                 .tokens = calloc((size_t)tokens + 1, sizeof *r->tokens),
                                 .logprobs = calloc((size_t)responses + 1, sizeof *r->logprobs),
                                 .logprobs_sampled = sampled ? calloc((size_t)responses + 1, sizeof *r->logprobs_sampled) : NULL,
                                 .prompt_length = calloc(m, sizeof *r->prompt_length),
                                 .prompt_id = calloc(m, sizeof *r->prompt_id),
                                 .group = calloc(m, sizeof *r->group),
                                 .sample = calloc(m, sizeof *r->sample),
                                 .finish = calloc(m, 1),
                                 .used = calloc(m, 1),
                                 .verdict = calloc(m, 1),
                                 .value = valued ? calloc(m, sizeof *r->value) : NULL};
    if (!r->offsets || !r->tokens || !r->logprobs || (sampled && !r->logprobs_sampled) || (valued && !r->value) || !r->prompt_length || !r->prompt_id || !r->group ||
        !r->sample || !r->finish || !r->used || !r->verdict)
        return CAIRN_NOMEM(err);
    return CAIRN_OK;
}

/* Groups [begin, end) as columns. */
static enum cairn_status unit_columns(const struct cairn_units *u, int64_t begin, int64_t end, struct cairn_rollouts *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t tokens = 0, responses = 0, i = 0, at = 0;

    for (int64_t g = begin; g < end; g++) {
        responses += u->group[g].tokens;
        tokens += u->group[g].tokens + u->group[g].ids.n * u->o.samples;
    }
    TRY(rollouts_alloc(r, (end - begin) * u->o.samples, tokens, responses, u->o.sampled, u->o.dynamic, err));
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
            if (r->value)
                r->value[i] = x->value;
        }
    TRY(cairn_rollouts_finish(r, "rollouts", err));
out:
    return st;
}

static enum cairn_status unit_write(struct cairn_units *u, int64_t unit, struct cairn_error *err)
{
    int64_t begin = unit * CAIRN_UNIT_GROUPS, end = unit_end(u, unit);
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
        samples_drop(u, &u->group[g]);
out:
    cairn_rollouts_free(&r);
    free(identity);
    return st;
}

/* Writes the unit if it is not written, all its groups are whole and known. */
static enum cairn_status unit_try(struct cairn_units *u, int64_t unit, struct cairn_error *err)
{
    int64_t end = unit_end(u, unit);

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
        TRY(unit_try(u, unit, err));
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
    decide(u);
    if (u->o.dynamic)
        TRY(units_advance(u, known, err));
    else if ((unit + 1) * CAIRN_UNIT_GROUPS <= u->n)
        TRY(unit_try(u, unit, err));
out:
    return st;
}

enum cairn_status cairn_units_finish(struct cairn_units *u, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    decide(u);
    for (int64_t unit = 0; unit < cairn_units_count(u); unit++) {
        TRY(unit_try(u, unit, err));
        if (!u->written[unit] && !u->elsewhere[unit])
            TRY(CAIRN_BUG(err, "a unit with missing rollouts at the end of the list"));
    }
out:
    return st;
}

/* ---- adopting ------------------------------------------------------------------------------------------------------- */

/* What later groups and the counts need to know of an adopted unit. */
static enum cairn_status unit_read(struct cairn_units *u, const struct cairn_shard_entry *e, int64_t unit, struct cairn_error *err)
{
    int64_t begin = unit * CAIRN_UNIT_GROUPS, end = unit_end(u, unit), n = (end - begin) * u->o.samples;
    int64_t *offsets = malloc(((size_t)n + 1) * sizeof *offsets), *prompt = malloc((size_t)n * sizeof *prompt + 1);
    int32_t *length = malloc((size_t)n * sizeof *length + 1);
    uint8_t *finish = malloc((size_t)n + 1);
    float *value = calloc((size_t)n + 1, sizeof *value);
    enum cairn_status st = CAIRN_OK;

    if (!offsets || !prompt || !length || !finish || !value)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_unit_column(u->dir, e, (int)unit, "offsets", CAIRN_I64, n + 1, offsets, err));
    TRY(cairn_unit_column(u->dir, e, (int)unit, "prompt_id", CAIRN_I64, n, prompt, err));
    TRY(cairn_unit_column(u->dir, e, (int)unit, "prompt_length", CAIRN_I32, n, length, err));
    TRY(cairn_unit_column(u->dir, e, (int)unit, "finish", CAIRN_U8, n, finish, err));
    if (u->o.dynamic)
        TRY(cairn_unit_column(u->dir, e, (int)unit, "value", CAIRN_F32, n, value, err));
    for (int64_t i = 0; i < n; i++) {
        struct group *g = &u->group[begin + i / u->o.samples];

        if (prompt[i] != g->prompt_id || offsets[i + 1] - offsets[i] < length[i] || length[i] != g->ids.n)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: rollout %lld is of another prompt", e->file, (long long)i));
        result_add(u, g, (int)(i % u->o.samples), offsets[i + 1] - offsets[i] - length[i], finish[i], value[i]);
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
    decide(u);
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
    if (!cairn_starts_with(name, "unit-") || !cairn_parse_i64(name + 5, &unit) || unit < 0 || unit >= cairn_units_count(s->u) || s->there[unit])
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

/* ---- ranks ---------------------------------------------------------------------------------------------------------- */

/* A judged group, as ranks tell it. */
struct news {
    int64_t group, tokens, capped;
    double least, most;
    int32_t right, adopted, fine, nothing;
};

enum cairn_status cairn_units_news(struct cairn_units *u, struct cairn_str *out, struct cairn_error *err)
{
    for (int64_t i = 0; i < u->n; i++) {
        struct group *g = &u->group[i];
        const struct news n = {i, g->tokens, g->capped, g->least, g->most, g->right, g->adopted, g->fine, 0};

        if (!g->judged || g->told)
            continue;
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
        g->least = n.least;
        g->most = n.most;
        g->right = n.right != 0;
        g->fine = n.fine != 0;
        g->adopted = n.adopted != 0;
        g->judged = g->told = 1;
        g->missing = 0;
        cairn_ids_free(&g->ids);
        u->adopted += g->adopted ? u->o.samples : 0;
    }
    decide(u);
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
