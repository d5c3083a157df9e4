/* replay_train.c - trains again from another run's rollouts (replay.h).
 *
 * NEW has the old run's recipe with the overrides laid over it. Its chain is walked as `cairn run` does, but for the rollouts of training steps,
 * which are copied: their inputs name the original by digest ("file:origin"), not a policy of NEW. Scores, training, policies and evaluations are
 * made anew, so with unchanged settings NEW's digest is the old run's. The warm start is copied where nothing that it depends on has changed.
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
#include "tools/launch.h"
#include "tools/replay.h"
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

/* Copies the artefact of link l from old to run; `origin`: its inputs become the original alone. *copied 0: not there to copy. */
static enum cairn_status link_copy(const struct cairn_run *old, const struct cairn_run *run, const struct cairn_link *l, int origin, int *copied,
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
    if (origin) {
        m = cairn_manifest_create(cairn_reader_manifest(from)->kind, l->step, run->uuid);
        if (!m)
            TRY(CAIRN_NOMEM(err));
        m->recipe = run->hash;
        TRY(cairn_manifest_add_input(m, "file:origin", cairn_reader_manifest(from)->digest, err));
    } else {
        TRY(cairn_link_manifest(run, l, &m, err));
        for (int i = 0; i < m->ninputs; i++) /* from the same things, or it is not the same artefact */
            if (i >= cairn_reader_manifest(from)->ninputs ||
                !cairn_digest_equal(m->inputs[i].digest, cairn_reader_manifest(from)->inputs[i].digest))
                goto out;
    }
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

/* Steps whose rollouts are there, from 1 on without a gap. */
static enum cairn_status steps_count(const struct cairn_run *old, int64_t *steps, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *dir = NULL;

    for (*steps = 0;; (*steps)++) {
        const struct cairn_link l = {*steps + 1, CAIRN_STAGE_ROLLOUT, NULL};

        free(dir);
        dir = cairn_link_path(old, &l);
        if (!dir)
            TRY(CAIRN_NOMEM(err));
        if (!cairn_artefact_committed(dir))
            break;
        if (cairn_artefact_collected(dir))
            TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s was collected; its rollouts cannot be trained from again", dir));
    }
    if (!*steps)
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s: no stored rollouts", old->dir));
out:
    free(dir);
    return st;
}

static enum cairn_status recipe_make(struct cairn_recipe **out, const struct cairn_run *old, const struct cairn_replay_opts *o, int64_t steps,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *origin = cairn_format("run %s", old->uuid), *extra[2] = {NULL, NULL};

    extra[0] = origin ? cairn_replay_override("run.origin", origin) : NULL;
    extra[1] = cairn_format("run.steps=%lld", (long long)steps);
    if (!extra[0] || !extra[1])
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_replay_recipe(out, old, o, 2, (const char *const *)extra, err));
    if (cairn_recipe_i64(*out, "run.steps") > steps)
        TRY(cairn_recipe_fail(*out, "run.steps", err, "%lld: %s has rollouts of %lld steps only", (long long)cairn_recipe_i64(*out, "run.steps"),
                              old->dir, (long long)steps));
out:
    free(origin);
    free(extra[0]);
    free(extra[1]);
    return st;
}

static enum cairn_status chain_walk(const struct cairn_run *old, const struct cairn_run *run, const struct cairn_replay_opts *o,
                                    struct cairn_error *err)
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
        if (rollout || (l->step == 0 && !l->eval && warm_same))
            TRY(link_copy(old, run, l, rollout, &done, err));
        if (!done && rollout)
            TRY(cairn_fail(err, CAIRN_ENOINPUT, "the rollouts of step %lld are gone from %s", (long long)l->step, old->dir));
        if (!done)
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
    char *there = NULL;
    int64_t steps;

    TRY(cairn_run_open(&old, o->recipe.recipe, err));
    there = realpath(o->recipe.run, NULL);
    if (there && !strcmp(there, old->dir))
        TRY(cairn_fail(err, CAIRN_EUSAGE, "--run %s is the run whose rollouts are to be used; name a new one", o->recipe.run));
    TRY(steps_count(old, &steps, err));
    TRY(recipe_make(&recipe, old, o, steps, err));
    TRY(cairn_place_take(&place, o->recipe.run, 1, err));
    TRY(cairn_run_init(&run, o->recipe.run, recipe, err));
    recipe = NULL;
    TRY(chain_walk(old, run, o, err));
    cairn_info("%s: trained again from %lld steps of %s", run->dir, (long long)steps, old->dir);
out:
    cairn_run_close(run);
    cairn_run_close(old);
    cairn_place_leave(&place);
    cairn_recipe_free(recipe);
    free(there);
    return st;
}
