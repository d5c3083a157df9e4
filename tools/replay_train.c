/* replay_train.c - trains again from another run's rollouts (replay.h).
 *
 * NEW has the old run's recipe and amendments with the overrides laid over them (replay_recipe.h). Its chain is walked as `cairn run` does, but for
 * the rollouts of training steps, which are copied: their inputs name the original by digest ("file:origin"), not a policy of NEW. Scores, training,
 * policies and evaluations are made anew, so with unchanged settings NEW's digest is the old run's. The warm start is copied where nothing that it
 * depends on has changed. A slice (--only) leaves the other rollouts in place, unused; steps that are not meant or have nothing that is are left out,
 * and those that remain are steps 1, 2, ... of NEW.
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/retention.h"
#include "stages/common/place.h"
#include "tools/artefact_copy.h"
#include "tools/failure.h"
#include "tools/launch.h"
#include "tools/replay.h"
#include "tools/replay_recipe.h"
#include "tools/replay_stored.h"
#include "tools/trail.h"

/* Keys (or their sections, with the dot) that a warm start and the policy it yields do not depend on. */
static const char *const behind_warm_start[] = {
    "run.steps", "run.eval_every", "run.origin", "run.lag", "data.prompts", "data.eval", "rollout.", "score.", "sync.path", "mismatch.",
    "train.loss:", "train.ratio:", "train.updates_per_step:", "train.learning_rate:", "train.warmup_updates:", "train.clip.", "train.reduction:",
    "train.correction", "train.kl.", "train.entropy:", "train.on_policy:", "train.truncation:", "train.skip_nonfinite:",
};

/* 1: every line of the difference ("train.learning_rate: a -> b (science)\n") is one of those. */
static int warm_start_same(const struct cairn_recipe *a, const struct cairn_recipe *b)
{
    struct cairn_str diff = {0};
    int same = 1;

    cairn_recipe_diff(a, b, CAIRN_SCIENCE | CAIRN_LAYOUT, &diff);
    for (const char *line = cairn_str_z(&diff); same && *line;) {
        const char *end = strchr(line, '\n');
        int known = 0;

        for (size_t i = 0; i < sizeof behind_warm_start / sizeof *behind_warm_start; i++)
            known |= cairn_starts_with(line, behind_warm_start[i]);
        same = known;
        line = end ? end + 1 : line + strlen(line);
    }
    same &= !diff.oom;
    cairn_str_free(&diff);
    return same;
}

/* The rollouts of the slice as an artefact of their own: the others stay, unused. */
static enum cairn_status slice_write(struct cairn_stored *w, const char *dir, struct cairn_manifest *m, const struct cairn_only *only,
                                     struct cairn_error *err)
{
    const struct cairn_manifest *src = cairn_reader_manifest(w->reader);
    const struct cairn_attempt_opts ao = {.identity = cairn_manifest_identity(m)};
    enum cairn_status st = CAIRN_OK;
    struct cairn_attempt *a = NULL;
    int64_t kept = 0, last = -1;

    for (int64_t i = 0; i < w->r.n; i++) {
        w->r.used[i] = w->r.used[i] && cairn_stored_takes(w, only, i);
        kept += w->r.used[i] && w->r.group[i] != last;
        last = w->r.used[i] ? w->r.group[i] : last;
    }
    TRY(cairn_manifest_set_fingerprint(m, src->numerics, src->layout, err));
    if (json_object_update(m->content, src->content) || json_object_set_new(m->content, "kept", json_integer(kept)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_attempt_begin(&a, dir, &ao, err));
    for (int u = 0; u < w->units; u++) {
        struct cairn_shard_entry *entry = NULL;

        TRY(cairn_rollouts_write(&w->r, w->unit[u], w->unit[u + 1], a, u, "", &entry, err));
        TRY(cairn_manifest_add_shard(m, entry, err));
    }
    TRY(cairn_attempt_commit(a, m, err));
out:
    cairn_attempt_end(a);
    return st;
}

/* The rollouts of step l->step of run, from step `from` of old: their inputs are the original alone. */
static enum cairn_status rollouts_copy(const struct cairn_run *old, const struct cairn_run *run, const struct cairn_link *l, int64_t from,
                                       const struct cairn_only *only, struct cairn_error *err)
{
    const struct cairn_link source = {from, CAIRN_STAGE_ROLLOUT, NULL};
    enum cairn_status st = CAIRN_OK;
    char *dst = cairn_link_path(run, l);
    struct cairn_manifest *m = NULL;
    struct cairn_stored w = {0};

    if (!dst)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_stored_open(&w, old, &source, 0, NULL, err));
    TRY(cairn_stored_fits(&w, only, err));
    m = cairn_manifest_create(cairn_reader_manifest(w.reader)->kind, l->step, run->uuid);
    if (!m)
        TRY(CAIRN_NOMEM(err));
    m->recipe = cairn_run_hash(run, l->step);
    TRY(cairn_manifest_add_input(m, "file:origin", cairn_reader_manifest(w.reader)->digest, err));
    if (json_object_set_new(m->info, "copied_from", json_pack("{s:s, s:s}", "run", old->uuid, "path", cairn_reader_path(w.reader))))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_only_all(only) ? cairn_artefact_copy(w.reader, dst, m, err) : slice_write(&w, dst, m, only, err));
out:
    cairn_stored_close(&w);
    cairn_manifest_destroy(m);
    free(dst);
    return st;
}

/* Copies the artefact of link l from old to run if it was made from the same things. *copied 0: not there to copy. */
static enum cairn_status link_copy(const struct cairn_run *old, const struct cairn_run *run, const struct cairn_link *l, int *copied,
                                   struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *src = cairn_link_path(old, l), *dst = cairn_link_path(run, l);
    struct cairn_reader *from = NULL;
    struct cairn_manifest *m = NULL;

    *copied = 0;
    if (!src || !dst)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_artefact_committed(src) || cairn_artefact_collected(src))
        goto out;
    TRY(cairn_reader_open(&from, src, NULL, err));
    TRY(cairn_link_manifest(run, l, &m, err));
    for (int i = 0; i < m->ninputs; i++) /* from the same things, or it is not the same artefact */
        if (i >= cairn_reader_manifest(from)->ninputs || !cairn_digest_equal(m->inputs[i].digest, cairn_reader_manifest(from)->inputs[i].digest))
            goto out;
    if (json_object_set_new(m->info, "copied_from", json_pack("{s:s, s:s}", "run", old->uuid, "path", src)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_artefact_copy(from, dst, m, err));
    *copied = 1;
out:
    cairn_reader_close(from);
    cairn_manifest_destroy(m);
    free(src);
    free(dst);
    return st;
}

/* Has the slice anything of this step that is trained on? */
static enum cairn_status step_meant(const struct cairn_run *old, const struct cairn_link *l, const struct cairn_only *only, int *meant,
                                    struct cairn_error *err)
{
    struct cairn_stored w = {0};
    enum cairn_status st = CAIRN_OK;

    *meant = cairn_only_all(only);
    if (*meant)
        return CAIRN_OK;
    TRY(cairn_stored_open(&w, old, l, 0, NULL, err));
    TRY(cairn_stored_fits(&w, only, err));
    for (int64_t i = 0; !*meant && i < w.r.n; i++)
        *meant = w.r.used[i] && cairn_stored_takes(&w, only, i);
out:
    cairn_stored_close(&w);
    return st;
}

/* The last step that the run should have rollouts of: what its recipe asks for, or what it was once asked for and began. */
static int64_t last_step(const struct cairn_run *old, const struct cairn_reach *reach)
{
    int64_t steps = cairn_recipe_i64(old->recipe, "run.steps");

    return reach->step < INT64_MAX && reach->step > steps ? reach->step : steps;
}

/* 1: the command line says itself how many steps there are to be, so those behind them are left out deliberately. */
static int steps_said(const struct cairn_recipe_args *said)
{
    for (int i = 0; i < said->overrides; i++)
        if (cairn_starts_with(said->override[i], "run.steps="))
            return 1;
    return 0;
}

/* Does the old run pass the rollouts of that step by? Then it does not make them again. */
static int passed_by(const struct cairn_run *old, const struct cairn_link *l)
{
    struct cairn_link *chain = NULL;
    char *done = NULL;
    int n = 0, passed = 0;

    if (cairn_run_chain(old, &chain, &n, NULL) == CAIRN_OK && (done = malloc((size_t)n + 1))) {
        cairn_links_done(old, chain, n, done);
        for (int i = 0; i < n; i++)
            passed |= chain[i].step == l->step && chain[i].stage == l->stage && !chain[i].eval && done[i];
    }
    free(chain);
    free(done);
    return passed;
}

/* Step `missing` has no rollouts: what makes them, and what goes without them. A chain with a hole in it is another chain. */
static enum cairn_status missing_fail(const struct cairn_run *old, int64_t missing, const struct cairn_replay_sources *s, struct cairn_error *err)
{
    const struct cairn_link l = {missing, CAIRN_STAGE_ROLLOUT, NULL};
    char *name = cairn_link_relative(&l);
    struct cairn_str there = {0};
    char make[420], command[4300];
    enum cairn_status st;

    cairn_only_numbers_put(s->step, s->n, &there);
    cairn_go_on(old, command, sizeof command);
    if (passed_by(old, &l))
        snprintf(make, sizeof make, "nothing makes it any more");
    else
        snprintf(make, sizeof make, "to make it: %.390s", command);
    st = name ? cairn_fail(err, CAIRN_ENOINPUT, "%s is not there, so step %lld cannot be trained again; %s; to leave it out: --only step=%.100s%s",
                           name, (long long)missing, make, cairn_str_z(&there),
                           s->step[s->n - 1] == s->n ? "" : cairn_replay_keys_to_take(old->recipe))
              : CAIRN_NOMEM(err);
    cairn_str_free(&there);
    free(name);
    return st;
}

/* Steps that are meant and whose rollouts are there. CAIRN_ENOINPUT: of one that --only names, or one before another, they are missing; a run that is
 * not at its end is trained again as far as it is. */
static enum cairn_status sources_find(const struct cairn_run *old, const struct cairn_replay_opts *o, struct cairn_replay_sources *s,
                                      struct cairn_error *err)
{
    const struct cairn_reach reach = cairn_run_reach(old);
    const int64_t last = last_step(old, &reach);
    const struct cairn_only *only = &o->only;
    enum cairn_status st = CAIRN_OK;
    int64_t missing = 0, stored = 0;
    char *dir = NULL;

    for (int64_t step = 1; step <= last; step++) {
        const struct cairn_link l = {step, CAIRN_STAGE_ROLLOUT, NULL};
        int64_t *p;
        int meant;

        if (!cairn_only_link(only, &l))
            continue;
        free(dir);
        dir = cairn_link_path(old, &l);
        if (!dir)
            TRY(CAIRN_NOMEM(err));
        if (cairn_link_beyond(&reach, &l) || !cairn_artefact_committed(dir)) {
            missing = missing ? missing : step;
            if (steps_said(&o->recipe))
                break;
            continue;
        }
        stored++;
        if (cairn_artefact_collected(dir))
            TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s was collected; its rollouts cannot be trained from again", dir));
        TRY(step_meant(old, &l, only, &meant, err));
        if (!meant)
            continue;
        p = realloc(s->step, ((size_t)s->n + 1) * sizeof *p);
        if (!p)
            TRY(CAIRN_NOMEM(err));
        s->step = p;
        p[s->n++] = l.step;
    }
    if (!s->n)
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s: no stored rollouts%s%s", old->dir, stored || only->step.n ? " that fit --only" : "",
                       cairn_str_z(&only->text)));
    if (missing && !steps_said(&o->recipe)) {
        if (only->step.n || s->step[s->n - 1] > missing)
            TRY(missing_fail(old, missing, s, err));
        cairn_warn("%s: the rollouts from step %lld on are not there; it is trained again up to there", old->dir, (long long)missing);
    }
out:
    free(dir);
    return st;
}

/* Recorded rollouts are those of a run's first step. What can never be trained on is refused before anything is made: the trainer would find out
 * behind the warm start. */
static enum cairn_status recorded_check(const struct cairn_run *old, const struct cairn_replay_along *along,
                                        const struct cairn_replay_sources *from, struct cairn_error *err)
{
    const struct cairn_link source = {from->step[0], CAIRN_STAGE_ROLLOUT, NULL};
    enum cairn_status st = CAIRN_OK;
    struct cairn_recipe *view = NULL;

    if (!along->steps)
        return CAIRN_OK;
    TRY(cairn_replay_along_view(along, 1, &view, err));
    TRY(cairn_replay_trains(old, &source, view, NULL, err));
out:
    cairn_recipe_free(view);
    return st;
}

static enum cairn_status chain_walk(const struct cairn_run *old, const struct cairn_run *run, const struct cairn_replay_sources *from,
                                    const struct cairn_replay_opts *o, struct cairn_error *err)
{
    int quiet = o->quiet || o->json, warm_same = warm_start_same(old->recipe, run->recipe), n = 0;
    enum cairn_status st = CAIRN_OK;
    struct cairn_link *chain = NULL;

    TRY(cairn_run_chain(run, &chain, &n, err));
    for (int i = 0; i < n; i++) {
        const struct cairn_link *l = &chain[i];
        int rollout = l->stage == CAIRN_STAGE_ROLLOUT && !l->eval, done = 0;

        if (cairn_link_done(run, l))
            continue;
        if (cairn_stop_requested())
            TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped; run again to go on"));
        if (rollout)
            TRY(rollouts_copy(old, run, l, from->step[l->step - 1], &o->only, err));
        else if (l->step == 0 && !l->eval && l->stage != CAIRN_STAGE_CHECK && warm_same)
            TRY(link_copy(old, run, l, &done, err));
        if (!rollout && !done)
            TRY(cairn_launch(run, l, quiet, err));
        if (o->json || !o->quiet)
            TRY(cairn_trail_tell(run, l, o->json, err));
    }
out:
    free(chain);
    return st;
}

enum cairn_status cairn_replay_train(const struct cairn_replay_opts *o, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_run *old = NULL, *run = NULL;
    struct cairn_recipe *recipe = NULL;
    struct cairn_place place = {0};
    struct cairn_replay_sources from = {0};
    struct cairn_replay_along along = {0};
    char *there = NULL;

    TRY(cairn_run_open(&old, o->recipe.recipe, err));
    there = realpath(o->recipe.run, NULL);
    if (there && !strcmp(there, old->dir))
        TRY(cairn_fail(err, CAIRN_EUSAGE, "--run %s is the run whose rollouts are to be used; name a new one", o->recipe.run));
    TRY(sources_find(old, o, &from, err));
    TRY(cairn_replay_along_make(&along, &recipe, old, o, &from, err));
    TRY(recorded_check(old, &along, &from, err));
    TRY(cairn_replay_along_policies(&along, &from, err));
    TRY(cairn_place_take(&place, o->recipe.run, 1, err));
    TRY(cairn_replay_along_fit(&along, err));
    TRY(cairn_run_init(&run, o->recipe.run, recipe, err));
    recipe = NULL;
    TRY(cairn_replay_along_write(&along, &run, err));
    TRY(chain_walk(old, run, &from, o, err));
    cairn_info("%s: trained again from %lld steps of %s", run->dir, (long long)along.steps, old->dir);
out:
    cairn_run_close(run);
    cairn_run_close(old);
    cairn_place_leave(&place);
    cairn_recipe_free(recipe);
    cairn_replay_along_free(&along);
    free(from.step);
    free(there);
    return st;
}
