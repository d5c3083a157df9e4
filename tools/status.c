/* status.c - `cairn status DIR`: the trail of a run: per step and stage what is done, what runs, what blocks and what to do next.
 *
 * Done is what has a manifest; who runs and how far it is stands in the lock, in the last event of RUN/log/<stage>.jsonl and, for a run that
 * was given to Slurm, in its queue. Nothing is changed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/signals.h"
#include "base/str.h"
#include "slurm/trail.h"
#include "stages/common/amend.h"
#include "ckpt/verify.h"
#include "stages/common/gap.h"
#include "stages/common/lock.h"
#include "stages/common/run.h"
#include "tools/cli.h"
#include "tools/failure.h"
#include "tools/replay.h"
#include "tools/stored.h"
#include "tools/verbs.h"

struct args {
    const char *dir;
    int json, watch, all;
};

static const struct argp_option options[] = {
    {"json", 'j', NULL, 0, "print one JSON object", 0},
    {"watch", 'w', NULL, 0, "print again every two seconds until the run is done", 0},
    {"all", 'a', NULL, 0, "list every step, not only the last ones", 0},
    {0},
};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_FLAG_AT('j', struct args, json),
    CAIRN_CLI_FLAG_AT('w', struct args, watch),
    CAIRN_CLI_FLAG_AT('a', struct args, all),
    CAIRN_CLI_TEXT_AT(ARGP_KEY_ARG, struct args, dir),
    {0},
};

static const struct argp argp = {options, NULL, "DIR",
                                 "Shows the trail of a run: steps, stages, progress, what blocks and what to do next.\v"
                                 "Examples:\n  cairn status /tmp/tiny\n  cairn status /tmp/tiny --json",
                                 NULL, NULL, NULL};

/* ---- what is committed ---------------------------------------------------------------------------------------------- */

/* What --watch knows from its looks before: links that are committed and whose manifest was whole. Nothing changes a manifest, and of a step that has
 * its policy only a repair takes one away: after one nothing is taken for granted. That somebody removed or damaged one by hand is seen by the look
 * of every ANEW-th time. */
#define ANEW 150
struct known {
    json_t *whole;    /* {"step/000003/train": true, ...}; NULL: nothing is remembered */
    char repair[140]; /* the newest folder of RUN/quarantine when the watch began */
    int looks;
};

/* UNREAD: there, but it cannot be read now, which is not called damaged. PASSED, and SCARRED, which is damaged: nothing that is still to be made
 * reads it (gap.h). */
enum look { OPEN, WHOLE, DAMAGED, UNREAD, PASSED, SCARRED };

/* "" where there is none, or it cannot be told. */
static void newest_repair(const struct cairn_run *run, char *name, size_t n)
{
    char *path = cairn_run_path(run, CAIRN_QUARANTINE_NAME);
    struct cairn_names names = {0};
    int there;

    name[0] = 0;
    if (path && cairn_dir_names(&names, path, &there, NULL) == CAIRN_OK && names.n)
        snprintf(name, n, "%s", names.name[names.n - 1]);
    cairn_names_free(&names);
    free(path);
}

/* Before each look at the run. */
static void known_check(struct known *k, const struct cairn_run *run)
{
    char repair[sizeof k->repair];

    newest_repair(run, repair, sizeof repair);
    if (!k->looks)
        snprintf(k->repair, sizeof k->repair, "%s", repair);
    if (k->looks++ % ANEW == 0)
        json_object_clear(k->whole);
    if (strcmp(k->repair, repair)) {
        json_decref(k->whole);
        k->whole = NULL;
    }
}

/* Of what is open or damaged, what is passed by. */
static enum cairn_status pass_look(const struct cairn_run *run, const struct cairn_link *chain, int n, char *looks, struct cairn_error *err)
{
    char *done = calloc(3, (size_t)n + 1), *damaged = done + n + 1, *pass = damaged + n + 1;
    enum cairn_status st = CAIRN_OK;

    if (!done)
        return CAIRN_NOMEM(err);
    for (int i = 0; i < n; i++) {
        damaged[i] = looks[i] == DAMAGED || looks[i] == SCARRED;
        done[i] = looks[i] != OPEN && looks[i] != PASSED;
    }
    TRY(cairn_links_pass(run, chain, n, done, damaged, pass, err));
    for (int i = 0; i < n; i++)
        if (pass[i])
            looks[i] = damaged[i] ? SCARRED : PASSED;
out:
    free(done);
    return st;
}

/* Looks at those of the n links of the chain that are open as far as looks says. A manifest that is known is not read again. */
static void chain_look(const struct cairn_run *run, const struct cairn_link *chain, int n, struct known *k, char *looks)
{
    const struct cairn_reach reach = cairn_run_reach(run);
    int64_t published = -1;

    for (int i = 0; i < n; i++) {
        char *name;
        int done;

        if (looks[i] != OPEN || cairn_link_beyond(&reach, &chain[i]))
            continue;
        name = k->whole ? cairn_link_relative(&chain[i]) : NULL;
        if (name && json_object_get(k->whole, name)) {
            looks[i] = WHOLE;
        } else {
            enum cairn_status st = cairn_link_whole(run, &chain[i], &done, NULL);

            looks[i] = !done ? OPEN : st == CAIRN_OK ? WHOLE : st == CAIRN_EDATA ? DAMAGED : UNREAD;
        }
        if (looks[i] == WHOLE && chain[i].stage == CAIRN_STAGE_SYNC)
            published = chain[i].step;
        free(name);
    }
    for (int i = 0; i < n && k->whole; i++) /* a state that was only told goes if its policy does not come (cairn_publish_settle) */
        if (looks[i] == WHOLE && chain[i].step <= published) {
            char *name = cairn_link_relative(&chain[i]);

            if (name)
                json_object_set_new(k->whole, name, json_true()); /* without memory it is read again */
            free(name);
        }
}

/* ---- rows --------------------------------------------------------------------------------------------------------------- */

/* What became of a link that nobody is at work on, from its last event (NULL: none): its state; why, in reason. */
static const char *ended(const struct cairn_run *run, const struct cairn_link *l, const json_t *event, char *reason, size_t n)
{
    const char *ev = json_string_value(json_object_get(event, "ev")), *text = json_string_value(json_object_get(event, "text"));
    char place[64];

    if (ev && !strcmp(ev, "committed")) { /* and is not there: somebody took it away */
        if (cairn_link_quarantined(run, l, place, sizeof place))
            snprintf(reason, n, "cairn verify --repair took it to %s; to be made again", place);
        else
            snprintf(reason, n, "was committed once and is not there any more; to be made again");
        return "waiting";
    }
    snprintf(reason, n, "%s", text ? text : ev ? "it was stopped or killed" : "nobody is at work");
    return !ev ? "waiting" : strcmp(ev, "failed") ? "stopped" : "failed";
}

/* One row: {step, stage, state, job, progress, reason, next}. `first`: the first link that is not done. *damaged counts the done ones whose
 * manifest is damaged. */
static json_t *row_make(const struct cairn_run *run, struct cairn_trail *trail, const struct cairn_link *l, enum look look,
                        const struct cairn_link *first, int locked, const char *holder, int *damaged)
{
    const char *state = "waiting";
    char stage[300], reason[500] = "", next[4300] = "";
    struct cairn_trail_row job = {0};
    struct cairn_error why = {0};
    double progress = 0;
    json_t *event = NULL, *o;
    int done;

    if (look == OPEN && !locked)
        cairn_trail_row(trail, l, &job);
    if (l->eval)
        snprintf(stage, sizeof stage, "eval/%s/%s", l->eval, cairn_stage_name(l->stage));
    else
        snprintf(stage, sizeof stage, "%s", cairn_stage_name(l->stage));
    if (look == DAMAGED && cairn_link_whole(run, l, &done, &why) == CAIRN_EDATA) {
        state = "failed";
        snprintf(reason, sizeof reason, "%.490s", why.text);
        ++*damaged;
        cairn_failure_next(CAIRN_FAILURE_ARTEFACT, run, next, sizeof next);
    } else if (look != OPEN) {
        state = "done";
        progress = 1;
        if (look == PASSED)
            snprintf(reason, sizeof reason, "is missing and what it was made from was collected; nothing that is still to be made reads it");
        else if (look == SCARRED && cairn_link_whole(run, l, &done, &why) == CAIRN_EDATA)
            snprintf(reason, sizeof reason, "%.400s; nothing that is still to be made reads it", why.text);
    } else if (l == first || (job.state && strcmp(job.state, "queued"))) {
        event = cairn_link_event(run, l);
        if (json_is_number(json_object_get(event, "total")) && json_number_value(json_object_get(event, "total")) > 0)
            progress = json_number_value(json_object_get(event, "done")) / json_number_value(json_object_get(event, "total"));
        if (job.state) {
            state = job.state;
            snprintf(reason, sizeof reason, "%s", job.reason);
            snprintf(next, sizeof next, "%s", job.next);
        } else if (locked) {
            state = "running";
            snprintf(reason, sizeof reason, "%s", holder);
        } else {
            state = ended(run, l, event, reason, sizeof reason);
            if (*damaged) {
                snprintf(reason, sizeof reason, "waits for the repair of what is damaged");
                cairn_failure_next(CAIRN_FAILURE_ARTEFACT, run, next, sizeof next);
            } else if (!strcmp(state, "failed") && cairn_replay_origin(run->recipe, "run")) { /* what failed says more than what it is */
                cairn_go_on(run, next, sizeof next);
            } else if (!cairn_failure_ahead(run, l, reason, sizeof reason, next, sizeof next)) {
                snprintf(next, sizeof next, "cairn %s %s", cairn_trail_used(trail) ? "submit" : "run", run->dir);
            }
        }
        if (!strcmp(state, "failed")) /* the same call again would end the same way */
            cairn_failure_next(cairn_failure_of(run, l, event), run, next, sizeof next);
    } else if (job.state) {
        state = job.state;
        snprintf(reason, sizeof reason, "%s", job.reason);
        snprintf(next, sizeof next, "%s", job.next);
    } else {
        char *relative = cairn_link_relative(first);

        snprintf(reason, sizeof reason, "waits for %s", relative ? relative : "an earlier link");
        free(relative);
    }
    o = json_pack("{s:I, s:s, s:s, s:s?, s:f, s:s, s:s}", "step", (json_int_t)l->step, "stage", stage, "state", state, "job",
                  job.job[0] ? job.job : NULL, "progress", progress, "reason", reason, "next", next);
    json_decref(event);
    return o;
}

static enum cairn_status status_make(const struct cairn_run *run, struct known *known, json_t **out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_link *chain = NULL, *first = NULL;
    json_t *rows = json_array(), *o = NULL, *stored;
    struct cairn_trail *trail = NULL;
    char holder[400] = "", *looks = NULL;
    int64_t steps_done = 0;
    int n = 0, locked, damaged = 0;

    TRY(cairn_run_chain(run, &chain, &n, err));
    if (!(looks = calloc((size_t)n + 1, 1)))
        TRY(CAIRN_NOMEM(err));
    known_check(known, run);
    locked = cairn_lock_held(run->dir, holder, sizeof holder);
    chain_look(run, chain, n, known, looks);
    TRY(pass_look(run, chain, n, looks, err));
    TRY(cairn_trail_open(&trail, run, looks, err)); /* one that is damaged counts as done, too: a job that starts finds it committed */
    chain_look(run, chain, n, known, looks);        /* who has left lock and queue by now has committed before */
    TRY(pass_look(run, chain, n, looks, err));
    for (int i = 0; i < n; i++) {
        if (looks[i] == OPEN && !first)
            first = &chain[i];
        if (looks[i] != OPEN && chain[i].stage == CAIRN_STAGE_SYNC && chain[i].step > steps_done)
            steps_done = chain[i].step;
        if (json_array_append_new(rows, row_make(run, trail, &chain[i], (enum look)looks[i], first, locked, holder, &damaged)))
            TRY(CAIRN_NOMEM(err));
    }
    o = json_pack("{s:s, s:I, s:I, s:o, s:O}", "run", run->dir, "steps_done", (json_int_t)steps_done, "steps_total",
                  (json_int_t)cairn_recipe_i64(run->recipe, "run.steps"), "amendments", cairn_amendments_json(run), "stages", rows);
    if (!o)
        TRY(CAIRN_NOMEM(err));
    if ((stored = cairn_stored_json(run->recipe)))
        json_object_set_new(o, "node_store", stored);
    if (cairn_trail_note(trail)[0])
        json_object_set_new(o, "slurm", json_string(cairn_trail_note(trail)));
    *out = o;
out:
    cairn_trail_close(trail);
    json_decref(rows);
    free(looks);
    free(chain);
    return st;
}

static const char *text_of(const json_t *row, const char *key)
{
    const char *s = json_string_value(json_object_get(row, key));

    return s ? s : "";
}

/* Done, and there is nothing to say of it. */
static int row_folds(const json_t *row)
{
    return !strcmp(text_of(row, "state"), "done") && !text_of(row, "reason")[0];
}

/* A table: done links are folded into one line unless `all`. */
static void status_print(const json_t *o, int all)
{
    const json_t *rows = json_object_get(o, "stages");
    int64_t done = 0;
    size_t i;
    json_t *row;

    printf("%s: %lld of %lld steps\n", text_of(o, "run"), (long long)json_integer_value(json_object_get(o, "steps_done")),
           (long long)json_integer_value(json_object_get(o, "steps_total")));
    if (text_of(o, "slurm")[0])
        printf("  Slurm: %s\n", text_of(o, "slurm"));
    json_array_foreach(json_object_get(o, "amendments"), i, row)
    {
        size_t k;
        json_t *set;

        printf("  amended from step %lld on:", (long long)json_integer_value(json_object_get(row, "from_step")));
        json_array_foreach(json_object_get(row, "set"), k, set) printf(" %s", json_string_value(set));
        putchar('\n');
    }
    json_array_foreach(rows, i, row) done += !strcmp(text_of(row, "state"), "done");
    if (!all && done)
        printf("  %lld of %zu links are done\n", (long long)done, json_array_size(rows));
    int shown = 0;
    json_array_foreach(rows, i, row)
    {
        if (!all && (row_folds(row) || shown++ >= 8))
            continue;
        printf("  %6lld  %-24s %-8s %3.0f%%  %s%s%s%s\n", (long long)json_integer_value(json_object_get(row, "step")), text_of(row, "stage"),
               text_of(row, "state"), 100 * json_number_value(json_object_get(row, "progress")), text_of(row, "job")[0] ? "job " : "",
               text_of(row, "job"), text_of(row, "job")[0] && text_of(row, "reason")[0] ? ": " : "", text_of(row, "reason"));
        if (text_of(row, "next")[0])
            printf("          to go on: %s\n", text_of(row, "next"));
    }
    cairn_stored_print(json_object_get(o, "node_store"));
}

int cairn_verb_status(int argc, char **argv)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {0};
    struct cairn_run *run = NULL;
    struct known known = {0};
    json_t *o = NULL;
    int done, usage = cairn_cli_read(&argp, slots, argc, argv, &a, &done);

    if (usage || done)
        return usage;
    if (!a.dir)
        return cairn_cli_usage("status", "DIR is missing");
    cairn_signals_install();
    if (a.watch)
        known.whole = json_object();
    for (;;) {
        TRY(cairn_run_open(&run, a.dir, &err));
        TRY(status_make(run, &known, &o, &err));
        done = json_integer_value(json_object_get(o, "steps_done")) >= json_integer_value(json_object_get(o, "steps_total"));
        if (a.json)
            TRY(cairn_cli_json(json_incref(o), &err));
        else
            status_print(o, a.all);
        TRY(cairn_cli_flush(&err));
        if (!a.watch || done || cairn_stop_requested())
            break;
        json_decref(o);
        o = NULL;
        cairn_run_close(run);
        run = NULL;
        cairn_sleep_s(2);
    }
out:
    json_decref(o);
    json_decref(known.whole);
    cairn_run_close(run);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("status", &err);
}
