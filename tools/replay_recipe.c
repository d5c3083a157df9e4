/* replay_recipe.c - the recipe and the amendments of a run that trains again (replay_recipe.h). */
#include "tools/replay_recipe.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"
#include "stages/common/begin.h"
#include "tools/fit.h"

static enum cairn_status recipe_make(struct cairn_recipe **out, const struct cairn_replay_along *a, struct cairn_error *err)
{
    const struct cairn_run *old = a->old;
    enum cairn_status st = CAIRN_OK;
    char *origin = cairn_format("run %s%s", old->uuid, cairn_str_z(&a->o->only.text)), *extra[2] = {NULL, NULL};

    extra[0] = origin ? cairn_replay_override("run.origin", origin) : NULL;
    extra[1] = cairn_format("run.steps=%lld", (long long)a->stored);
    if (!extra[0] || !extra[1])
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_replay_recipe(out, old, a->o, 2, (const char *const *)extra, err));
    if (cairn_recipe_i64(*out, "run.steps") > a->stored)
        TRY(cairn_recipe_fail(*out, "run.steps", err, "%lld: %s has rollouts of %lld steps%s only", (long long)cairn_recipe_i64(*out, "run.steps"),
                              old->dir, (long long)a->stored, a->o->only.step.n ? " that --only names" : " without a hole"));
out:
    free(origin);
    free(extra[0]);
    free(extra[1]);
    return st;
}

/* ---- whose word holds -------------------------------------------------------------------------------------------------- */

/* 1: the key of the override `text` is that of the override `of`, or stands below it. */
static int at_or_below(const char *text, const char *of)
{
    size_t n = strcspn(text, "="), m = strcspn(of, "=");

    return n >= m && !strncmp(text, of, m) && (n == m || text[m] == '.');
}

/* 1: of this override of an amendment the command line speaks itself. */
static int left_out(const struct cairn_recipe_args *said, const char *set)
{
    for (int i = 0; i < said->overrides; i++)
        if (at_or_below(set, said->override[i]))
            return 1;
    return 0;
}

/* 1: the command line's word on this key has to be said again, behind the amendment `set`. */
static int said_again(const json_t *set, const char *said)
{
    for (size_t i = 0; i < json_array_size(set); i++) {
        const char *s = json_string_value(json_array_get(set, i));

        if (at_or_below(s, said) || at_or_below(said, s))
            return 1;
    }
    return 0;
}

/* What NEW's amendment sets, of what OLD's does. */
static json_t *words_make(const struct cairn_recipe_args *said, const json_t *set)
{
    json_t *words = json_array();
    int lost = !words;

    for (size_t i = 0; !lost && i < json_array_size(set); i++)
        if (!left_out(said, json_string_value(json_array_get(set, i))))
            lost = json_array_append(words, json_array_get(set, i));
    for (int i = 0; !lost && i < said->overrides; i++)
        if (said_again(set, said->override[i]))
            lost = json_array_append_new(words, json_string(said->override[i]));
    if (lost) {
        json_decref(words);
        return NULL;
    }
    return words;
}

/* ---- which, and from where on ------------------------------------------------------------------------------------------ */

/* The first step of NEW that sees what sets in at step `from` of OLD. */
static int64_t step_mapped(const struct cairn_replay_sources *s, int64_t from)
{
    int64_t k = 0;

    while (k < s->n && s->step[k] < from)
        k++;
    return k + 1;
}

/* NEW's recipe as its step `step` sees it with the first n of a laid over it. Caller frees. */
static enum cairn_status view_make(struct cairn_recipe **out, const struct cairn_replay_along *a, int n, int64_t step, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_recipe *recipe = NULL;
    const char **set = NULL;
    char *where = NULL;

    TRY(recipe_make(&recipe, a, err));
    for (int i = 0; i < n; i++) {
        const struct cairn_amendment *along = &a->amendment[i];
        size_t sets = json_array_size(along->set);

        if (along->from_step > step)
            continue;
        free(set);
        free(where);
        set = calloc(sets + 1, sizeof *set);
        where = cairn_format("%s/recipe.amend-%04d.json", a->old->dir, along->origin_number);
        if (!set || !where)
            TRY(CAIRN_NOMEM(err));
        for (size_t k = 0; k < sets; k++)
            set[k] = json_string_value(json_array_get(along->set, k));
        TRY(cairn_recipe_apply(recipe, (int)sets, set, where, err));
    }
    *out = recipe;
    recipe = NULL;
out:
    free(set);
    free(where);
    cairn_recipe_free(recipe);
    return st;
}

/* May the last of the first n be made where it sets in, and where others do later on? */
static enum cairn_status last_check(const struct cairn_replay_along *a, int n, struct cairn_error *err)
{
    const struct cairn_amendment *last = &a->amendment[n - 1];
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < n && st == CAIRN_OK; i++) {
        int64_t step = a->amendment[i].from_step;
        struct cairn_recipe *before = NULL, *after = NULL;

        if (step < last->from_step)
            continue;
        if ((st = view_make(&before, a, n - 1, step, err)) == CAIRN_OK && (st = view_make(&after, a, n, step, err)) == CAIRN_OK)
            st = cairn_amendment_check(a->o->recipe.run, before, after, step, err);
        cairn_recipe_free(before);
        cairn_recipe_free(after);
    }
    if (st != CAIRN_OK)
        cairn_error_prefix(err, "amendment %d of %s, which is to be taken along", last->origin_number, a->old->dir);
    return st;
}

enum cairn_status cairn_replay_along_make(struct cairn_replay_along *a, struct cairn_recipe **recipe, const struct cairn_run *old,
                                          const struct cairn_replay_opts *o, const struct cairn_replay_sources *from, struct cairn_error *err)
{
    const struct cairn_amendments *has = old->amendments;
    enum cairn_status st = CAIRN_OK;
    struct cairn_recipe *made = NULL;

    *a = (struct cairn_replay_along){.old = old, .o = o, .stored = from->n};
    TRY(recipe_make(&made, a, err));
    a->steps = cairn_recipe_i64(made, "run.steps");
    a->amendment = calloc((size_t)(has ? has->n : 0) + 1, sizeof *a->amendment);
    if (!a->amendment)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; has && i < has->n; i++) {
        struct cairn_amendment *along = &a->amendment[a->n];

        along->from_step = step_mapped(from, has->amendment[i].from_step);
        if (along->from_step > a->steps)
            continue;
        along->set = words_make(&o->recipe, has->amendment[i].set);
        if (!along->set)
            TRY(CAIRN_NOMEM(err));
        memcpy(along->origin, old->uuid, sizeof along->origin);
        along->origin_number = has->amendment[i].number;
        a->n++;
        TRY(last_check(a, a->n, err));
    }
    *recipe = made;
    made = NULL;
out:
    cairn_recipe_free(made);
    if (st != CAIRN_OK)
        cairn_replay_along_free(a);
    return st;
}

void cairn_replay_along_free(struct cairn_replay_along *a)
{
    for (int i = 0; i < a->n; i++)
        json_decref(a->amendment[i].set);
    free(a->amendment);
    *a = (struct cairn_replay_along){0};
}

enum cairn_status cairn_replay_along_view(const struct cairn_replay_along *a, int64_t step, struct cairn_recipe **out, struct cairn_error *err)
{
    return view_make(out, a, a->n, step, err);
}

enum cairn_status cairn_replay_along_fit(const struct cairn_replay_along *a, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int i = -1; i < a->n && st == CAIRN_OK && !cairn_run_there(a->o->recipe.run); i++) { /* -1: before all of them */
        struct cairn_recipe *view = NULL;

        st = cairn_replay_along_view(a, i < 0 ? 0 : a->amendment[i].from_step, &view, err);
        if (st == CAIRN_OK)
            st = cairn_fit(view, err);
        if (st == CAIRN_OK && i >= 0) /* the first one cairn_run_init looks at itself */
            st = cairn_begin_check(view, err);
        cairn_recipe_free(view);
    }
    return st;
}

/* ---- other policies ----------------------------------------------------------------------------------------------------- */

/* 1: another value of this key yields other policies from the same rollouts. Those that only say what is done with rollouts of another policy, or
 * with a failed update, do not. */
static int makes_policies(const char *key)
{
    static const char *const section[] = {"train.", "sync.", "model.", "warm_start."},
                             *const besides[] = {"train.on_policy", "train.correction", "train.truncation", "train.skip_nonfinite"};
    int in = 0;

    for (size_t i = 0; i < sizeof section / sizeof *section; i++)
        in |= cairn_starts_with(key, section[i]);
    for (size_t i = 0; i < sizeof besides / sizeof *besides; i++)
        in &= !cairn_starts_with(key, besides[i]);
    return in;
}

/* 1: the command line speaks of `key`, of its section or of a key below it. */
static int spoken_of(const struct cairn_recipe_args *said, const char *key)
{
    for (int i = 0; i < said->overrides; i++)
        if (at_or_below(key, said->override[i]) || at_or_below(said->override[i], key))
            return 1;
    return 0;
}

/* The first key of the command line that makes the policy of NEW's step `step` another one than the old run's was. Caller frees; NULL: none. */
static enum cairn_status changed_key(const struct cairn_replay_along *a, const struct cairn_replay_sources *from, int64_t step, char **out,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_recipe *view = NULL;
    struct cairn_str diff = {0};

    *out = NULL;
    TRY(cairn_replay_along_view(a, step, &view, err));
    cairn_recipe_diff(cairn_run_recipe(a->old, from->step[step - 1]), view, CAIRN_SCIENCE, &diff);
    for (char *line = diff.oom ? NULL : diff.p, *end; line && *line && !*out; line = end) { /* "train.learning_rate: a -> b (science)\n" */
        size_t key = strcspn(line, ":");
        char *name = strndup(line, key);

        end = line + strcspn(line, "\n");
        end += *end == '\n';
        if (!name)
            TRY(CAIRN_NOMEM(err));
        if (makes_policies(name) && spoken_of(&a->o->recipe, name))
            *out = name;
        else
            free(name);
    }
    if (diff.oom)
        TRY(CAIRN_NOMEM(err));
out:
    cairn_recipe_free(view);
    cairn_str_free(&diff);
    return st;
}

const char *cairn_replay_keys_to_take(const struct cairn_recipe *view)
{
    if (strcmp(cairn_recipe_str(view, "train.on_policy"), "require") || !strcmp(cairn_recipe_str(view, "train.loss"), "sft"))
        return "";
    return strcmp(cairn_recipe_str(view, "train.correction.kind"), "none") ? " train.on_policy=correct"
                                                                           : " train.on_policy=correct train.correction=tis";
}

/* Steps that are left out: a rollout behind them was sampled from a policy that NEW does not make. */
static enum cairn_status holes_check(const struct cairn_replay_along *a, const struct cairn_replay_sources *from, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_recipe *view = NULL;
    int64_t hole = 0; /* the first step that is not what it was */

    for (int64_t s = 1; s <= a->steps; s++) {
        int64_t lag, made, was;

        hole = hole || from->step[s - 1] == s ? hole : s;
        if (!hole)
            continue;
        cairn_recipe_free(view);
        view = NULL;
        TRY(cairn_replay_along_view(a, s, &view, err));
        lag = cairn_recipe_i64(view, "run.lag");
        made = s - 1 - lag;
        was = from->step[s - 1] - 1 - lag;
        if (((made < 0 ? 0 : made) == (was < 0 ? 0 : was) && made < hole) || !*cairn_replay_keys_to_take(view))
            continue;
        TRY(cairn_fail(err, CAIRN_ERECIPE,
                       "without the steps that are left out, the rollouts of step %lld of %s are another policy's, which train.on_policy: require "
                       "refuses; add%s",
                       (long long)from->step[s - 1], a->old->dir, cairn_replay_keys_to_take(view)));
    }
out:
    cairn_recipe_free(view);
    return st;
}

/* NEW trains another policy at `step`: the first rollouts behind it that are not of a policy of its own, are they taken? */
static enum cairn_status behind_check(const struct cairn_replay_along *a, int64_t step, const char *key, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_recipe *view = NULL;
    int64_t next;

    TRY(cairn_replay_along_view(a, step, &view, err));
    next = step + 1 + cairn_recipe_i64(view, "run.lag");
    if (next > a->steps)
        goto out;
    cairn_recipe_free(view);
    view = NULL;
    TRY(cairn_replay_along_view(a, next, &view, err));
    if (!*cairn_replay_keys_to_take(view))
        goto out;
    st = cairn_fail(err, CAIRN_ERECIPE,
                    "with another %s than %s had, the rollouts of step %lld on are another policy's, which train.on_policy: require refuses; add%s",
                    key, a->old->dir, (long long)next, cairn_replay_keys_to_take(view));
out:
    cairn_recipe_free(view);
    return st;
}

enum cairn_status cairn_replay_along_policies(const struct cairn_replay_along *a, const struct cairn_replay_sources *from, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t first = 0;
    char *key = NULL;

    TRY(holes_check(a, from, err));
    for (int i = -1; i < a->n && a->o->recipe.overrides; i++) { /* -1: what step 1 sees; between amendments nothing changes */
        int64_t step = i < 0 ? 1 : a->amendment[i].from_step;
        char *other = NULL;

        if (step < 1 || step > a->steps || (first && step >= first))
            continue;
        TRY(changed_key(a, from, step, &other, err));
        if (!other)
            continue;
        free(key);
        key = other;
        first = step;
    }
    if (key)
        TRY(behind_check(a, first, key, err));
out:
    free(key);
    return st;
}

/* ---- on the record ------------------------------------------------------------------------------------------------------ */

static void words_put(const json_t *set, struct cairn_str *out)
{
    for (size_t i = 0; i < json_array_size(set); i++)
        cairn_str_printf(out, " %s", json_string_value(json_array_get(set, i)));
}

static void tell(const struct cairn_run *run, const struct cairn_replay_along *a, const struct cairn_amendment *along, int number)
{
    const json_t *set = a->old->amendments->amendment[along->origin_number - 1].set;
    struct cairn_str theirs = {0}, ours = {0};

    words_put(set, &theirs);
    words_put(along->set, &ours);
    if (json_equal((json_t *)set, along->set))
        cairn_info("%s: amendment %d, from step %lld on, as %s has it:%s", run->dir, number, (long long)along->from_step, a->old->dir,
                   cairn_str_z(&ours));
    else
        cairn_info("%s: amendment %d, from step %lld on:%s; %s has%s there, and the command line goes before it", run->dir, number,
                   (long long)along->from_step, cairn_str_z(&ours), a->old->dir, cairn_str_z(&theirs));
    cairn_str_free(&theirs);
    cairn_str_free(&ours);
}

/* What run has taken along of amendment `along` of the old run, or NULL. *later: it has one of a higher number there. */
static const struct cairn_amendment *taken(const struct cairn_run *run, const struct cairn_amendment *along, int *later)
{
    const struct cairn_amendment *found = NULL;

    *later = 0;
    for (int i = 0; run->amendments && i < run->amendments->n; i++) {
        const struct cairn_amendment *x = &run->amendments->amendment[i];

        if (strcmp(x->origin, along->origin))
            continue;
        *later |= x->origin_number > along->origin_number;
        found = x->origin_number == along->origin_number ? x : found;
    }
    return found;
}

/* This call would make another run of it. has: what it took along of that amendment, or NULL where it only has later ones. */
static enum cairn_status otherwise(const struct cairn_run *run, const struct cairn_replay_along *a, const struct cairn_amendment *along,
                                   const struct cairn_amendment *has, struct cairn_error *err)
{
    struct cairn_str words = {0};

    if (has)
        cairn_str_printf(&words, "%s took amendment %d of %s along as, from step %lld on:", run->dir, along->origin_number, a->old->dir,
                         (long long)has->from_step);
    else
        cairn_str_printf(&words, "%s took later amendments of %s along, but not number %d, from step %lld on:", run->dir, a->old->dir,
                         along->origin_number, (long long)along->from_step);
    words_put(has ? has->set : along->set, &words);
    cairn_fail(err, CAIRN_ERECIPE, "%.400s; call with the same key=value and --only as then, or name a new run (--run)", cairn_str_z(&words));
    cairn_str_free(&words);
    return CAIRN_ERECIPE;
}

enum cairn_status cairn_replay_along_write(const struct cairn_replay_along *a, struct cairn_run **run, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *dir = strdup((*run)->dir);

    if (!dir)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < a->n; i++) {
        const struct cairn_amendment *along = &a->amendment[i], *has;
        int later, number;

        has = taken(*run, along, &later);
        if (has && has->from_step == along->from_step && json_equal(has->set, along->set))
            continue;
        if (has || later)
            TRY(otherwise(*run, a, along, has, err));
        st = cairn_run_amend_copy(*run, along, &number, err);
        if (st != CAIRN_OK)
            cairn_error_prefix(err, "%s: amendment %d of %s", dir, along->origin_number, a->old->dir);
        TRY(st);
        tell(*run, a, along, number);
        cairn_run_close(*run);
        *run = NULL;
        TRY(cairn_run_open(run, dir, err));
    }
out:
    free(dir);
    return st;
}
