/* chain.c - which links a run has, in which order, and what each one reads. Pure functions of the recipe; the truth about what
 * is done is the manifest of each link. */
#include "stages/common/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "ckpt/attempt.h"
#include "base/file.h"
#include "stages/common/gap.h"

const char *cairn_stage_name(enum cairn_stage s)
{
    static const char *const names[] = {"rollout", "score", "train", "sync", "check"};

    return names[s];
}

char *cairn_link_relative(const struct cairn_link *l)
{
    if (l->eval)
        return cairn_format("eval/%06lld/%s/%s", (long long)l->step, l->eval, cairn_stage_name(l->stage));
    if (l->stage == CAIRN_STAGE_CHECK)
        return strdup("check");
    if (l->stage == CAIRN_STAGE_SYNC)
        return cairn_format("policy/%06lld", (long long)l->step);
    return cairn_format("step/%06lld/%s", (long long)l->step, cairn_stage_name(l->stage));
}

char *cairn_link_path(const struct cairn_run *r, const struct cairn_link *l)
{
    char *relative = cairn_link_relative(l), *path = relative ? cairn_run_path(r, relative) : NULL;

    free(relative);
    return path;
}

int cairn_link_done(const struct cairn_run *r, const struct cairn_link *l)
{
    char *path = cairn_link_path(r, l);
    int done = path && cairn_artefact_committed(path);

    free(path);
    return done;
}

enum cairn_status cairn_link_whole(const struct cairn_run *r, const struct cairn_link *l, int *done, struct cairn_error *err)
{
    char *path = cairn_link_path(r, l);
    struct cairn_manifest_head head;
    enum cairn_status st;

    *done = 1;
    if (!path)
        return CAIRN_NOMEM(err);
    st = cairn_manifest_head(&head, path, err);
    if (st == CAIRN_ENOINPUT || (st == CAIRN_EDATA && !cairn_artefact_committed(path))) { /* a link that leads nowhere is no manifest either */
        *done = 0;
        st = CAIRN_OK;
    }
    free(path);
    return st;
}

static int warm(const struct cairn_run *r)
{
    return cairn_recipe_has(r->recipe, "warm_start");
}

static int gated(const struct cairn_run *r)
{
    return !strcmp(cairn_recipe_str(r->recipe, "run.check"), "first");
}

int cairn_link_gated(const struct cairn_run *r, const struct cairn_link *l)
{
    const struct cairn_link check = {0, CAIRN_STAGE_CHECK, NULL};

    return l->stage != CAIRN_STAGE_CHECK && gated(r) && !cairn_link_done(r, &check);
}

struct chain {
    struct cairn_link *link;
    int n, cap, oom;
};

static void chain_add(struct chain *c, int64_t step, enum cairn_stage stage, const char *eval)
{
    if (c->n == c->cap) {
        int cap = c->cap ? 2 * c->cap : 64;
        struct cairn_link *p = realloc(c->link, (size_t)cap * sizeof *p);

        if (!p) {
            c->oom = 1;
            return;
        }
        c->link = p;
        c->cap = cap;
    }
    c->link[c->n++] = (struct cairn_link){step, stage, eval};
}

static void chain_add_evals(struct chain *c, const struct cairn_run *r, int64_t step)
{
    const json_t *sets = cairn_recipe_get(r->recipe, "data.eval");

    for (size_t i = 0; i < json_array_size(sets); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(sets, i), "name"));

        chain_add(c, step, CAIRN_STAGE_ROLLOUT, name);
        chain_add(c, step, CAIRN_STAGE_SCORE, name);
    }
}

enum cairn_status cairn_run_chain(const struct cairn_run *r, struct cairn_link **out, int *n, struct cairn_error *err)
{
    int64_t steps = cairn_recipe_i64(r->recipe, "run.steps"), every = cairn_recipe_i64(r->frozen, "run.eval_every");
    struct chain c = {0};

    if (gated(r) && (steps > 0 || warm(r)))
        chain_add(&c, 0, CAIRN_STAGE_CHECK, NULL);
    if (warm(r)) {
        chain_add(&c, 0, CAIRN_STAGE_TRAIN, NULL);
        chain_add(&c, 0, CAIRN_STAGE_SYNC, NULL);
    }
    if (every > 0)
        chain_add_evals(&c, r, 0);
    for (int64_t s = 1; s <= steps && !c.oom; s++) {
        chain_add(&c, s, CAIRN_STAGE_ROLLOUT, NULL);
        chain_add(&c, s, CAIRN_STAGE_SCORE, NULL);
        chain_add(&c, s, CAIRN_STAGE_TRAIN, NULL);
        chain_add(&c, s, CAIRN_STAGE_SYNC, NULL);
        every = cairn_recipe_i64(cairn_run_recipe(r, s), "run.eval_every"); /* may have been amended */
        if (every > 0 && (s % every == 0 || s == steps))
            chain_add_evals(&c, r, s);
    }
    if (c.oom) {
        free(c.link);
        return CAIRN_NOMEM(err);
    }
    *out = c.link;
    *n = c.n;
    return CAIRN_OK;
}

/* The highest number that names something in RUN/folder. */
static int64_t folder_reach(const struct cairn_run *r, const char *folder)
{
    char *path = cairn_run_path(r, folder);
    struct cairn_names names = {0};
    int64_t last = -1, v;
    int there;

    if (!path || cairn_dir_names(&names, path, &there, NULL) != CAIRN_OK)
        last = INT64_MAX;
    for (size_t i = 0; i < names.n; i++) {
        const char *name = names.name[i];

        if (name[0] >= '0' && name[0] <= '9' && cairn_parse_i64(name, &v) && v > last && v <= 999999999)
            last = v;
    }
    cairn_names_free(&names);
    free(path);
    return last;
}

struct cairn_reach cairn_run_reach(const struct cairn_run *r)
{
    return (struct cairn_reach){.step = folder_reach(r, "step"), .policy = folder_reach(r, "policy"), .eval = folder_reach(r, "eval")};
}

int cairn_link_beyond(const struct cairn_reach *reach, const struct cairn_link *l)
{
    if (l->stage == CAIRN_STAGE_CHECK)
        return 0; /* not in a folder of steps */
    return l->step > (l->eval ? reach->eval : l->stage == CAIRN_STAGE_SYNC ? reach->policy : reach->step);
}

void cairn_links_done(const struct cairn_run *r, const struct cairn_link *link, int n, char *done)
{
    const struct cairn_reach reach = cairn_run_reach(r);
    char *pass = malloc((size_t)n + 1);

    for (int i = 0; i < n; i++)
        done[i] = (char)(!cairn_link_beyond(&reach, &link[i]) && cairn_link_done(r, &link[i]));
    if (pass && cairn_links_pass(r, link, n, done, NULL, pass, NULL) == CAIRN_OK) /* else whoever makes it says what is missing */
        for (int i = 0; i < n; i++)
            done[i] = (char)(done[i] || pass[i]);
    free(pass);
}

int64_t cairn_links_next_step(const struct cairn_link *link, const char *done, int n, enum cairn_stage stage)
{
    int64_t step = 1;

    for (int i = 0; i < n; i++) {
        if (link[i].stage != stage || link[i].eval || link[i].step < 1)
            continue;
        step = link[i].step;
        if (!done[i])
            break;
    }
    return step;
}

/* A list of malloc'ed strings in the making. */
struct names {
    char **p;
    int n, cap, oom;
};

/* Takes the name over; NULL (no memory) is remembered. */
static void names_add(struct names *s, char *name)
{
    if (name && s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 16;
        char **p = realloc(s->p, (size_t)cap * sizeof *p);

        if (!p) {
            free(name);
            name = NULL;
        } else {
            s->p = p;
            s->cap = cap;
        }
    }
    if (name)
        s->p[s->n++] = name;
    else
        s->oom = 1;
}

static enum cairn_status names_done(struct names *s, char ***out, int *n, struct cairn_error *err)
{
    if (s->oom) {
        cairn_strings_free(s->p, s->n);
        return CAIRN_NOMEM(err);
    }
    *out = s->p;
    *n = s->n;
    return CAIRN_OK;
}

void cairn_strings_free(char **s, int n)
{
    for (int i = 0; s && i < n; i++)
        free(s[i]);
    free(s);
}

static void names_link(struct names *s, int64_t step, enum cairn_stage stage, const char *eval)
{
    names_add(s, cairn_link_relative(&(struct cairn_link){step, stage, eval}));
}

struct cairn_link cairn_link_sampled(const struct cairn_run *r, const struct cairn_link *l)
{
    int64_t step = l->eval ? l->step : l->step - 1 - cairn_recipe_i64(r->frozen, "run.lag");

    return (struct cairn_link){step > 0 ? step : 0, CAIRN_STAGE_SYNC, NULL};
}

/* A run that replays another's rollouts: they were copied. */
static int copied(const struct cairn_run *r)
{
    return cairn_recipe_has(r->recipe, "run.origin") && cairn_starts_with(cairn_recipe_str(r->recipe, "run.origin"), "run ");
}

enum cairn_status cairn_link_inputs(const struct cairn_run *r, const struct cairn_link *l, char ***out, int *n, struct cairn_error *err)
{
    struct names s = {0};

    switch (l->stage) {
    case CAIRN_STAGE_ROLLOUT:
        if (!l->eval && copied(r))
            break;
        names_link(&s, cairn_link_sampled(r, l).step, CAIRN_STAGE_SYNC, NULL);
        if (!l->eval && l->step > 1)
            names_link(&s, l->step - 1, CAIRN_STAGE_ROLLOUT, NULL);
        break;
    case CAIRN_STAGE_SCORE:
        names_link(&s, l->step, CAIRN_STAGE_ROLLOUT, l->eval);
        break;
    case CAIRN_STAGE_TRAIN:
        if (l->step == 0) {
            names_add(&s, cairn_format("base"));
        } else {
            names_link(&s, l->step - 1, CAIRN_STAGE_SYNC, NULL);
            names_link(&s, l->step, CAIRN_STAGE_ROLLOUT, NULL);
            names_link(&s, l->step, CAIRN_STAGE_SCORE, NULL);
            if (l->step > 1 || warm(r))
                names_link(&s, l->step - 1, CAIRN_STAGE_TRAIN, NULL);
        }
        break;
    case CAIRN_STAGE_SYNC:
        if (l->step > 0 || warm(r))
            names_link(&s, l->step, CAIRN_STAGE_TRAIN, NULL);
        else
            names_add(&s, cairn_format("base"));
        break;
    case CAIRN_STAGE_CHECK: /* what the first rollout would sample from, or the warm start begin with */
        if (warm(r))
            names_add(&s, cairn_format("base"));
        else
            names_link(&s, 0, CAIRN_STAGE_SYNC, NULL);
        break;
    }
    return names_done(&s, out, n, err);
}

/* The programs that grade: for scores, and for rollouts whose groups are chosen by verdict. */
static void names_add_graders(struct names *s, const struct cairn_run *r)
{
    json_t *graders = (json_t *)cairn_recipe_get(r->recipe, "score.graders"); /* jansson's loop wants it so */
    const char *name;
    json_t *v;

    json_object_foreach(graders, name, v)
        if (json_is_string(json_object_get(v, "program")))
            names_add(s, cairn_format("score.graders.%s.program", name));
}

enum cairn_status cairn_link_outside(const struct cairn_run *r, const struct cairn_link *l, char ***out, int *n, struct cairn_error *err)
{
    struct names s = {0};
    const json_t *list;

    if (l->stage == CAIRN_STAGE_SYNC || l->stage == CAIRN_STAGE_CHECK)
        return names_done(&s, out, n, err);
    names_add(&s, cairn_format("model.tokenizer"));
    if (l->stage == CAIRN_STAGE_SCORE || (l->stage == CAIRN_STAGE_ROLLOUT && !l->eval && cairn_recipe_has(r->recipe, "rollout.dynamic")))
        names_add_graders(&s, r);
    if (l->stage == CAIRN_STAGE_TRAIN) {
        if (l->step == 0)
            names_add(&s, cairn_format("warm_start.data"));
    } else if (l->eval) {
        list = cairn_recipe_get(r->recipe, "data.eval");
        for (size_t i = 0; i < json_array_size(list); i++)
            if (!strcmp(json_string_value(json_object_get(json_array_get(list, i), "name")), l->eval))
                names_add(&s, cairn_format("data.eval.%zu", i));
    } else {
        list = cairn_recipe_get(r->recipe, "data.prompts");
        for (size_t i = 0; i < json_array_size(list); i++)
            names_add(&s, cairn_format("data.prompts.%zu", i));
    }
    return names_done(&s, out, n, err);
}

static const char *const kinds[] = {"rollout", "score", "trainer", "policy", "check"};

/* What lies at a link's place is what that link makes, for this run and for that step: a generation that was copied there is refused. The
 * base is shared between runs and of none. */
static enum cairn_status input_check(const struct cairn_run *r, const char *relative, const struct cairn_manifest_head *head,
                                     struct cairn_error *err)
{
    const char *kind = cairn_starts_with(relative, "policy/") ? kinds[CAIRN_STAGE_SYNC] : NULL, *slash = strchr(relative, '/');
    long long step;

    if (!slash || sscanf(slash + 1, "%lld", &step) != 1)
        return CAIRN_OK;
    for (int s = CAIRN_STAGE_ROLLOUT; !kind && s <= CAIRN_STAGE_TRAIN; s++)
        if (!strcmp(strrchr(relative, '/') + 1, cairn_stage_name((enum cairn_stage)s)))
            kind = kinds[s];
    if (strcmp(head->run, r->uuid))
        return cairn_fail(err, CAIRN_EDATA, "%s/%s was made for run %s, this is run %s", r->dir, relative, head->run[0] ? head->run : "of nobody",
                          r->uuid);
    if (!kind || strcmp(head->kind, kind) || head->step != step)
        return cairn_fail(err, CAIRN_EDATA, "%s/%s holds a %s of step %lld", r->dir, relative, head->kind, (long long)head->step);
    return CAIRN_OK;
}

enum cairn_status cairn_link_manifest(const struct cairn_run *r, const struct cairn_link *l, struct cairn_manifest **out,
                                      struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest *m = cairn_manifest_create(kinds[l->stage], l->step, r->uuid);
    char **inputs = NULL, **outside = NULL;
    int ni = 0, no = 0;

    if (!m)
        TRY(CAIRN_NOMEM(err));
    m->recipe = cairn_run_hash(r, l->step);
    TRY(cairn_link_inputs(r, l, &inputs, &ni, err));
    for (int i = 0; i < ni; i++) {
        struct cairn_manifest_head head;
        char *path = cairn_run_path(r, inputs[i]);

        st = path ? cairn_manifest_head(&head, path, err) : CAIRN_NOMEM(err);
        free(path);
        TRY(st);
        TRY(input_check(r, inputs[i], &head, err));
        TRY(cairn_manifest_add_input(m, inputs[i], head.digest, err));
    }
    TRY(cairn_link_outside(r, l, &outside, &no, err));
    for (int i = 0; i < no; i++) {
        const json_t *o = json_object_get(json_object_get(r->info, "outside"), outside[i]);
        struct cairn_digest d;
        char name[400];

        if (!cairn_digest_parse(json_string_value(json_object_get(o, "digest")) ? json_string_value(json_object_get(o, "digest")) : "", &d))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s/run.json: no digest for %s", r->dir, outside[i]));
        snprintf(name, sizeof name, "file:%s", outside[i]);
        TRY(cairn_manifest_add_input(m, name, d, err));
    }
    *out = m;
    m = NULL;
out:
    cairn_manifest_destroy(m);
    cairn_strings_free(inputs, ni);
    cairn_strings_free(outside, no);
    return st;
}
