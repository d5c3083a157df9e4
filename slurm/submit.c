/* submit.c - the rolling window of jobs (submit.h). */
#include "slurm/submit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/retention.h"
#include "slurm/ledger.h"
#include "slurm/queue.h"
#include "slurm/sbatch.h"
#include "slurm/script.h"

#define SETTLE_S 120.0 /* a job that is being taken down: KillWait and a node that does not answer */

struct submit {
    const struct cairn_run *run;
    const struct cairn_submit_opts *o;
    struct cairn_plan plan;
    struct cairn_queue queue;
    json_t *events, *jobs;
    char *unfit;
    int64_t *id; /* (plan.n) the job's id in the queue; 0: none */
    char *fresh; /* (plan.n) queued by this call */
    int64_t first, last;
    int full;
};

/* --- one at a time --- */

static enum cairn_status lock_take(const struct cairn_run *run, double patience_s, int *fd, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *dir = cairn_run_path(run, "log"), *path = dir ? cairn_path_join(dir, ".slurm.lock") : NULL;
    double until = cairn_now_s() + patience_s;

    if (!path)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_dir_make(dir, err));
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*fd < 0)
        TRY(cairn_fail_errno(err, errno, "open %s", path));
    while (flock(*fd, LOCK_EX | LOCK_NB)) {
        if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP)
            break; /* singleton and the attempts protect what matters */
        if (errno != EWOULDBLOCK && errno != EINTR)
            TRY(cairn_fail_errno(err, errno, "lock %s", path));
        if (cairn_now_s() > until)
            TRY(cairn_fail(err, CAIRN_EAGAIN, "%s: somebody else is queueing jobs for this run; try again", run->dir));
        cairn_sleep_s(0.05);
    }
out:
    free(dir);
    free(path);
    return st;
}

/* --- the window --- */

static int in_window(const struct submit *s, const struct cairn_job *j)
{
    return !j->done && j->step <= s->last;
}

static void window_find(struct submit *s)
{
    s->first = -1;
    for (int k = 0; k < s->plan.n; k++) {
        const struct cairn_job *j = &s->plan.job[k];

        if (s->first < 0 && !j->done && j->which != CAIRN_JOB_EVAL) /* evaluations hold nobody up */
            s->first = j->step;
    }
    if (s->first < 0)
        s->first = s->plan.n ? s->plan.job[s->plan.n - 1].step : 0;
    s->last = s->first + cairn_recipe_i64(s->run->recipe, "slurm.window") - 1;
}

/* "afterany:5:7,singleton" for the parents that are queued. malloc'ed. */
static char *dependency_make(const struct submit *s, const struct cairn_job *j, json_t *after)
{
    struct cairn_str d = {0};

    for (int i = 0; i < j->parents; i++) {
        int64_t id = s->id[j->parent[i]];

        if (s->plan.job[j->parent[i]].done || !id)
            continue;
        cairn_str_printf(&d, "%s:%lld", d.len ? "" : "afterany", (long long)id);
        if (after)
            json_array_append_new(after, json_string(s->plan.job[j->parent[i]].name));
    }
    cairn_str_printf(&d, "%ssingleton", d.len ? "," : "");
    return cairn_str_take(&d);
}

static void report_add(struct submit *s, int k, const char *state, json_t *after, const char *why)
{
    const struct cairn_job *j = &s->plan.job[k];

    json_array_append_new(s->jobs, json_pack("{s:I, s:s, s:I, s:s, s:I, s:s, s:O*, s:s}", "job", (json_int_t)s->id[k], "name",
                                             j->name, "step", (json_int_t)j->step, "group", j->group, "tasks", (json_int_t)j->tasks,
                                             "state", state, "after", after, "why", why ? why : ""));
}

/* Why nobody but a user may queue it; "" if anybody may. anew: we have just cancelled it ourselves. */
static void blocked_why(const struct submit *s, const struct cairn_job *j, int anew, char *why, size_t n)
{
    int64_t attempts = cairn_recipe_i64(s->run->recipe, "slurm.attempts");
    struct cairn_job_state state;
    struct cairn_failures f;
    const char *was;

    why[0] = 0;
    if (!strcmp(s->o->by, "user"))
        return;
    cairn_ledger_failures(&f, s->events, j->step, j->group);
    was = anew ? NULL : cairn_ledger_job(s->events, j->step, j->group);
    if (was && cairn_job_state(&state, was, 0, NULL) == CAIRN_OK && !strcmp(state.state, "CANCELLED"))
        snprintf(why, n, "its job %s was cancelled", was);
    else if (f.for_good)
        snprintf(why, n, "it failed with %d: %s", f.code, f.text);
    else if (f.same >= attempts)
        snprintf(why, n, "it failed %d times with %d: %s", f.same, f.code, f.text);
}

/* A parent that can be had from nobody: then it makes no sense to wait. */
static int parent_blocked(const struct submit *s, const struct cairn_job *j)
{
    for (int i = 0; i < j->parents; i++)
        if (!s->plan.job[j->parent[i]].done && !s->id[j->parent[i]])
            return 1;
    return 0;
}

static enum cairn_status job_queue(struct submit *s, int k, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_job *j = &s->plan.job[k];
    struct cairn_str script = {0};
    json_t *after = json_array();
    char *dependency = dependency_make(s, j, after), id[32];
    struct cairn_sbatch_end end;

    if (!after || !dependency)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_script_write(s->run, j, s->unfit, &script, err));
    if (s->o->dry_run) {
        if (s->o->scripts)
            cairn_str_printf(s->o->scripts, "%s%s", s->o->scripts->len ? "\n" : "", cairn_str_z(&script));
        s->id[k] = -(int64_t)(k + 1); /* a name for those that depend on it */
        report_add(s, k, "planned", after, s->o->why);
        goto out;
    }
    TRY(cairn_sbatch(&end, s->run, j, cairn_str_z(&script), dependency, 0, s->o->patience_s, err));
    if (end.no_parent) /* it has ended and is forgotten: its manifest will tell */
        TRY(cairn_sbatch(&end, s->run, j, cairn_str_z(&script), "singleton", 0, s->o->patience_s, err));
    s->id[k] = end.id;
    s->full |= end.full;
    if (!s->id[k]) {
        report_add(s, k, "full", after, "Slurm takes no more jobs of yours just now");
        goto out;
    }
    s->fresh[k] = 1;
    snprintf(id, sizeof id, "%lld", (long long)s->id[k]);
    cairn_ledger_tell(s->run, "queued", j,
                      json_pack("{s:s, s:s, s:s?, s:s}", "job", id, "by", s->o->by, "why", s->o->why, "after", dependency));
    report_add(s, k, "queued", after, s->o->why);
out:
    cairn_str_free(&script);
    free(dependency);
    json_decref(after);
    return st;
}

static int never_starts(const struct cairn_queued *q)
{
    return !strcmp(q->state, "PENDING") &&
           (!strcmp(q->reason, "DependencyNeverSatisfied") || cairn_starts_with(q->reason, "launch failed"));
}

/* Cancels what is queued for job k and will never start, tasks of an array one by one: whatever waits for it would wait for ever,
 * even where its work is done. *left: the first of its entries that stays; NULL: none does. */
static enum cairn_status hopeless_cancel(struct submit *s, int k, const struct cairn_queued **left, struct cairn_error *err)
{
    const struct cairn_job *j = &s->plan.job[k];
    enum cairn_status st = CAIRN_OK;

    *left = NULL;
    for (int i = 0; i < s->queue.n; i++) {
        const struct cairn_queued *q = &s->queue.job[i];

        if (strcmp(q->name, j->name) || (s->o->self && (q->job == s->o->self || q->array == s->o->self)))
            continue;
        if (!never_starts(q) || s->o->dry_run) {
            *left = *left ? *left : q;
            continue;
        }
        cairn_warn("%s (%s) would wait for ever (%s): cancelled", q->name, q->id, q->reason);
        TRY(cairn_scancel(q->id, err));
    }
out:
    return st;
}

/* Whoever committed these links may have been killed right behind that, and no job comes back for them: their attempts' remains go.
 */
static void links_settle(const struct submit *s, const struct cairn_job *j)
{
    for (int i = 0; i < j->links; i++) {
        char *path = cairn_link_path(s->run, &j->link[i]);
        struct cairn_error err = {0};

        if (path && !cairn_artefact_collected(path) && cairn_artefact_settle(path, &err) != CAIRN_OK)
            cairn_warn("%s", err.text);
        free(path);
    }
}

/* A job of that name is queued: it stays. Its edges are turned to parents that are queued anew. */
static enum cairn_status job_keep(struct submit *s, int k, const struct cairn_queued *q, int *keep, struct cairn_error *err)
{
    struct cairn_job *j = &s->plan.job[k];
    enum cairn_status st = CAIRN_OK;
    char *dependency = NULL, *set = NULL;
    int turn = 0;

    *keep = 1;
    if (s->o->dry_run || strcmp(q->state, "PENDING"))
        goto out;
    for (int i = 0; i < j->parents; i++)
        turn |= s->fresh[j->parent[i]];
    if (!turn)
        goto out;
    dependency = dependency_make(s, j, NULL);
    set = dependency ? cairn_format("Dependency=%s", dependency) : NULL;
    if (!set)
        TRY(CAIRN_NOMEM(err));
    {
        char *which = cairn_format("JobId=%lld", (long long)q->array);

        if (!which)
            TRY(CAIRN_NOMEM(err));
        if (cairn_scontrol("update", which, set, 2, NULL) != CAIRN_OK) { /* started meanwhile, or not allowed */
            *keep = 0;
            st = cairn_scancel(q->id, err);
        }
        free(which);
    }
out:
    free(dependency);
    free(set);
    return st;
}

static enum cairn_status window_fill(struct submit *s, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int k = 0; k < s->plan.n; k++) {
        struct cairn_job *j = &s->plan.job[k];
        const struct cairn_queued *q;
        char why[400];
        int keep = 0, hopeless;

        hopeless = cairn_queue_find(&s->queue, j->name, s->o->self) != NULL;
        TRY(hopeless_cancel(s, k, &q, err));
        hopeless = hopeless && !q;
        if (!in_window(s, j)) {
            if (j->step >= s->first - 1 && j->step <= s->last && j->done && !s->o->dry_run)
                links_settle(s, j);
            if (j->step >= s->first && j->step <= s->last)
                report_add(s, k, "done", NULL, NULL);
            continue;
        }
        if (q) {
            s->id[k] = q->array;
            TRY(job_keep(s, k, q, &keep, err));
            if (keep) {
                report_add(s, k, "kept", NULL, !strcmp(q->state, "PENDING") ? q->reason : q->state);
                continue;
            }
            s->id[k] = 0;
        }
        blocked_why(s, j, hopeless || q != NULL, why, sizeof why);
        if (!why[0] && parent_blocked(s, j))
            snprintf(why, sizeof why, "what it reads is neither there nor queued");
        if (why[0]) {
            report_add(s, k, "blocked", NULL, why);
            continue;
        }
        if (s->full) {
            report_add(s, k, "full", NULL, "Slurm takes no more jobs of yours just now");
            continue;
        }
        TRY(job_queue(s, k, err));
    }
out:
    return st;
}

/* Reads the queue. Slurm may still be taking a job down that is no longer what it was (cancelled, or being requeued): a user waits
 * and sees what becomes of it; a job does not, its children will see. */
static enum cairn_status settle(struct submit *s, int wait, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    double until = cairn_now_s() + SETTLE_S;
    char prefix[80];

    cairn_job_prefix(s->run, prefix, sizeof prefix);
    for (;;) {
        int leaving = 0;

        cairn_queue_free(&s->queue);
        TRY(cairn_queue_read(&s->queue, prefix, s->o->patience_s, err));
        for (int k = 0; k < s->plan.n; k++) {
            const struct cairn_queued *q =
                in_window(s, &s->plan.job[k]) ? cairn_queue_find(&s->queue, s->plan.job[k].name, s->o->self) : NULL;

            leaving += q && !strcmp(q->state, "COMPLETING");
        }
        if (!leaving || !wait || cairn_now_s() > until)
            break;
        cairn_sleep_s(0.3);
    }
out:
    return st;
}

/* What the recipe asks for is put to Slurm before anything is queued: a chain of which half cannot run helps nobody. */
static enum cairn_status test_groups(struct submit *s, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_str script = {0};
    struct cairn_sbatch_end end;

    for (int k = 0; k < s->plan.n; k++) {
        int seen = 0;

        if (!in_window(s, &s->plan.job[k]) || cairn_queue_find(&s->queue, s->plan.job[k].name, 0))
            continue;
        for (int i = 0; i < k; i++)
            seen |= in_window(s, &s->plan.job[i]) && !strcmp(s->plan.job[i].group, s->plan.job[k].group);
        if (seen)
            continue;
        cairn_str_clear(&script);
        TRY(cairn_script_write(s->run, &s->plan.job[k], s->unfit, &script, err));
        TRY(cairn_sbatch(&end, s->run, &s->plan.job[k], cairn_str_z(&script), NULL, 1, s->o->patience_s, err));
    }
out:
    cairn_str_free(&script);
    return st;
}

enum cairn_status cairn_submit(const struct cairn_run *run, const struct cairn_submit_opts *opts, json_t **report,
                               struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct submit s = {.run = run, .o = opts, .jobs = json_array()};
    int user = !strcmp(opts->by, "user"), lock = -1, some = 0;
    size_t i;
    json_t *row;

    *report = NULL;
    if (!s.jobs)
        TRY(CAIRN_NOMEM(err));
    if (!opts->dry_run)
        TRY(lock_take(run, opts->patience_s > 30 ? opts->patience_s : 30, &lock, err));
    if (user && !opts->dry_run)
        cairn_ledger_tell(run, "go", NULL, NULL);
    TRY(cairn_plan_make(&s.plan, run, NULL, err)); /* behind the lock: what is done may have changed */
    TRY(cairn_ledger_read(run, &s.events, err));
    s.unfit = cairn_ledger_unfit(s.events, cairn_wall_s());
    s.id = calloc((size_t)s.plan.n + 1, sizeof *s.id);
    s.fresh = calloc((size_t)s.plan.n + 1, 1);
    if (!s.unfit || !s.id || !s.fresh)
        TRY(CAIRN_NOMEM(err));
    window_find(&s);
    if (!opts->dry_run)
        TRY(settle(&s, user, err));
    if (user && !opts->dry_run)
        TRY(test_groups(&s, err));
    st = window_fill(&s, err);
    *report = json_pack("{s:s, s:[I, I], s:O}", "run", run->dir, "window", (json_int_t)s.first, (json_int_t)s.last, "jobs", s.jobs);
    TRY(st);
    json_array_foreach(s.jobs, i, row)
    {
        const char *state = json_string_value(json_object_get(row, "state"));

        some |= !strcmp(state, "queued") || !strcmp(state, "kept");
    }
    if (s.full && !some)
        TRY(cairn_fail(
            err, CAIRN_EAGAIN,
            "Slurm takes no more jobs of yours just now (a limit on submitted jobs; squeue --me lists them); submit again later"));
    if (!*report)
        TRY(CAIRN_NOMEM(err));
out:
    if (lock >= 0)
        close(lock);
    cairn_plan_free(&s.plan);
    cairn_queue_free(&s.queue);
    json_decref(s.events);
    json_decref(s.jobs);
    free(s.unfit);
    free(s.id);
    free(s.fresh);
    return st;
}

/* --- cancel --- */

/* Place in the chain of the job called name; -1: not this run's, or from another shape of it. */
static int place(const struct cairn_plan *p, const char *name)
{
    for (int k = 0; k < p->n; k++)
        if (!strcmp(p->job[k].name, name))
            return k;
    return -1;
}

enum cairn_status cairn_submit_cancel(const struct cairn_run *run, const struct cairn_job *from, double patience_s, int *n,
                                      struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_plan plan = {0};
    struct cairn_queue queue = {0};
    char prefix[80];
    int lock = -1, at = -1;

    *n = 0;
    TRY(lock_take(run, patience_s, &lock, err));
    TRY(cairn_plan_make(&plan, run, NULL, err));
    cairn_job_prefix(run, prefix, sizeof prefix);
    TRY(cairn_queue_read(&queue, prefix, patience_s, err));
    if (from)
        at = place(&plan, from->name);
    for (int i = queue.n; i-- > 0;) { /* from the end of the chain: nobody starts because his parent went */
        int k = place(&plan, queue.job[i].name);

        if (from && (strcmp(queue.job[i].state, "PENDING") || k <= at || plan.job[k].which == CAIRN_JOB_EVAL))
            continue;
        if (!strcmp(queue.job[i].state, "COMPLETING"))
            continue;
        TRY(cairn_scancel(queue.job[i].id, err));
        ++*n;
    }
out:
    if (lock >= 0)
        close(lock);
    cairn_plan_free(&plan);
    cairn_queue_free(&queue);
    return st;
}
