/* verdict.c - what follows from how a job's work ended: again under the same id, again as a new job, behind whoever makes what is
 * missing, or never (job.h has the table). Each verdict is told to people and to the ledger, then acted upon through Slurm.
 */
#include "slurm/work.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "slurm/command.h"
#include "slurm/queue.h"
#include "slurm/submit.h"

void cairn_work_say(struct cairn_work *w, const char *action, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(w->sentence, sizeof w->sentence, fmt, ap);
    va_end(ap);
    w->action = action;
    w->code = code;
}

static int64_t links_done(const struct cairn_work *w)
{
    const struct cairn_reach reach = cairn_run_reach(w->run);
    int64_t n = 0;

    for (int i = 0; i < w->job->links; i++)
        n += !cairn_link_beyond(&reach, &w->job->link[i]) && cairn_link_done(w->run, &w->job->link[i]);
    return n;
}

void cairn_work_end_tell(struct cairn_work *w)
{
    if (w->sentence[0])
        cairn_info("%s", w->sentence);
    cairn_ledger_tell(w->run, "end", w->job,
                      json_pack("{s:s, s:I, s:I, s:s, s:i, s:s, s:f, s:I}", "job", w->id, "restart", (json_int_t)w->restart, "task",
                                (json_int_t)w->task, "action", w->action, "code", w->code, "text", w->sentence, "seconds",
                                cairn_now_s() - w->began_s, "links_done", (json_int_t)links_done(w)));
}

/* n links of the plan, from `link` on: 1, all are committed or passed by. What has nothing newer of its kind behind it is not passed by; for what
 * has, the whole chain is looked at, once. */
static int all_done(const struct cairn_work *w, const struct cairn_link *link, int n)
{
    const struct cairn_reach reach = cairn_run_reach(w->run);
    char *chain = NULL;
    int all = 1;

    for (int i = 0; i < n && all; i++) {
        const struct cairn_link *l = &link[i];

        if (!cairn_link_beyond(&reach, l) && cairn_link_done(w->run, l))
            continue;
        if (!chain && l->step < (l->eval || l->stage == CAIRN_STAGE_SYNC ? reach.policy : reach.step) &&
            (chain = malloc((size_t)w->plan.nlinks + 1)))
            cairn_links_done(w->run, w->plan.link, w->plan.nlinks, chain);
        all = chain && chain[l - w->plan.link];
    }
    free(chain);
    return all;
}

int cairn_work_done(const struct cairn_work *w)
{
    return all_done(w, w->job->link, w->job->links);
}

int cairn_work_passed(const struct cairn_work *w, const struct cairn_link *l)
{
    return !cairn_link_done(w->run, l) && all_done(w, l, 1);
}

/* --- leaving ----------------------------------------------------------------------------------------------------------- */

/* Are steps of this job still at work on some node? In doubt: yes. */
static int steps_alive(const struct cairn_work *w)
{
    const char *argv[] = {"squeue", "--noheader", "--steps", "--job", w->id, "--format=%i", NULL};
    struct cairn_command c;
    int alive = 0;

    if (cairn_command_run(&c, argv, NULL, 5, NULL) != CAIRN_OK)
        return 1;
    for (const char *p = cairn_str_z(&c.out); (p = strchr(p, '.')); p++)
        alive |= p[1] >= '0' && p[1] <= '9'; /* "12.0", not "12.batch" or "12.extern" */
    alive |= c.code != 0;
    cairn_command_free(&c);
    return alive;
}

/* Slurm is ending this job: tasks get the time that it gives them. */
static void wait_for_tasks(const struct cairn_work *w)
{
    for (int i = 0; i < 1200 && steps_alive(w); i++)
        cairn_sleep_s(0.5);
}

static int requeue(const struct cairn_work *w, char *why, size_t n)
{
    const char *argv[] = {"scontrol", "requeue", w->id, NULL};
    double until = cairn_now_s() + CAIRN_WORK_PATIENCE_S;
    int done = 0;

    why[0] = 0;
    while (!done) {
        struct cairn_command c;
        const char *says;

        if (cairn_command_run(&c, argv, NULL, 20, NULL) != CAIRN_OK)
            break;
        done = c.code == 0;
        says = cairn_command_says(&c);
        snprintf(why, n, "%.200s", says);
        /* Only a controller that does not answer is asked again. */
        if (!done && (!(strcasestr(says, "contact") || strcasestr(says, "timed out") || strcasestr(says, "socket")) ||
                      cairn_now_s() > until)) {
            cairn_command_free(&c);
            break;
        }
        cairn_command_free(&c);
        if (!done)
            cairn_sleep_s(0.5);
    }
    return done;
}

/* This job once more, as a new one: behind its parents, jobs that wait for it turned to the new id. 1: it is queued (or
 * done meanwhile). */
static int queue_anew(struct cairn_work *w, const char *why, char *blocked, size_t n)
{
    struct cairn_submit_opts o = {.by = "repair", .why = why, .self = w->self, .patience_s = CAIRN_WORK_PATIENCE_S};
    struct cairn_error err = {0};
    json_t *report = NULL, *row;
    int queued = 0;
    size_t i;

    blocked[0] = 0;
    if (cairn_submit(w->run, &o, &report, &err) != CAIRN_OK)
        snprintf(blocked, n, "%.300s", err.text);
    json_array_foreach(json_object_get(report, "jobs"), i, row)
    {
        const char *state = json_string_value(json_object_get(row, "state")),
                   *name = json_string_value(json_object_get(row, "name"));
        int own = !strcmp(name, w->job->name);

        if (own && (!strcmp(state, "queued") || !strcmp(state, "kept") || !strcmp(state, "done")))
            queued = 1;
        if (!blocked[0] && !strcmp(state, "blocked") && json_integer_value(json_object_get(row, "step")) <= w->job->step)
            snprintf(blocked, n, "%s: %s", name, json_string_value(json_object_get(row, "why")));
    }
    json_decref(report);
    return queued;
}

/* Nobody goes on from here without a user: those that wait are cancelled, so that they do not each find out by themselves. */
static int stop_chain(struct cairn_work *w)
{
    struct cairn_error err = {0};
    int n = 0;

    cairn_work_end_tell(w);
    if (cairn_submit_cancel(w->run, w->job, CAIRN_WORK_PATIENCE_S, &n, &err) != CAIRN_OK)
        cairn_warn("jobs that wait for this one could not be cancelled: %s", err.text);
    else if (n)
        cairn_info("%d jobs that wait for this one were cancelled", n);
    cairn_info("when it is mended: cairn submit %s", w->run->dir);
    return w->code ? w->code : CAIRN_EBUG;
}

/* Slurm ends it because its time is over; it does not start it again. */
static int time_over(const struct cairn_job_state *s)
{
    return !strcmp(s->state, "TIMEOUT") || !strcmp(s->reason, "TimeLimit");
}

/* Once more, this job: by requeueing, so that its id and its children stay. tell: the ledger does not know yet. */
static int go_again(struct cairn_work *w, int tell)
{
    struct cairn_job_state s = {0};
    char why[256], blocked[400];

    if (cairn_job_state(&s, w->id, CAIRN_WORK_PATIENCE_S, NULL) == CAIRN_OK && s.state[0] && strcmp(s.state, "RUNNING") &&
        !time_over(&s)) {
        w->action = CAIRN_ENDED_KILLED; /* somebody cancelled it, or Slurm requeues it by itself: not ours to revive */
        if (tell)
            cairn_work_end_tell(w);
        return 0;
    }
    if (tell)
        cairn_work_end_tell(w);
    if (!time_over(&s) && requeue(w, why, sizeof why)) {
        for (int i = 0; i < 60 && !cairn_stop_requested();
             i++) /* SIGTERM follows at once; the script must not end before Slurm is through */
            cairn_sleep_s(0.1);
        return 0;
    }
    if (time_over(&s))
        snprintf(why, sizeof why, "its time is over");
    else
        cairn_warn("scontrol requeue: %s; queued anew instead", why);
    if (!queue_anew(w, time_over(&s) ? why : "it could not be requeued", blocked, sizeof blocked)) {
        cairn_work_say(w, CAIRN_ENDED_STOP, w->code, "it could neither be requeued nor queued anew: %s",
                       blocked[0] ? blocked : why);
        return stop_chain(w);
    }
    for (int i = 0; s.preempt_wall_s && i < 1200 && cairn_stop_requested() != SIGTERM; i++) /* in its grace: Slurm ends it */
        cairn_sleep_s(0.5);
    return 0;
}

/* --- what happened ------------------------------------------------------------------------------------------------------ */

/* Not 64: the command line is ours, and a step whose ranks did not find each other (a node in trouble) ends so, too. */
static int for_good(int code)
{
    return code == CAIRN_EDATA || code == CAIRN_ENUMERIC || code == CAIRN_ERECIPE;
}

void cairn_work_unfit(void *arg, const char *node, const char *text)
{
    struct cairn_work *w = arg;

    cairn_warn("node %s is unfit: %s (--exclude=%s)", node, text, node);
    cairn_ledger_tell(w->run, "unfit", w->job, json_pack("{s:s, s:s, s:s}", "job", w->id, "node", node, "text", text));
    if (!w->code)
        cairn_work_say(w, CAIRN_ENDED_RETRY, CAIRN_EDEVICE, "node %s is unfit: %.300s", node, text);
}

/* 1: it has ended with this code so often in a row that nobody should go on by himself; the sentence says so. */
static int too_often(struct cairn_work *w)
{
    int64_t attempts = cairn_recipe_i64(w->run->recipe, "slurm.attempts");
    struct cairn_failures f = {0};
    json_t *events = NULL;
    int stop;

    if (cairn_ledger_read(w->run, &events, NULL) == CAIRN_OK)
        cairn_ledger_failures(&f, events, w->job->step, w->job->group);
    stop = (f.code == w->code && links_done(w) <= f.done ? f.same : 0) + 1 >= attempts;
    json_decref(events);
    if (stop) {
        size_t n = strlen(w->sentence);

        snprintf(w->sentence + n, sizeof w->sentence - n, " (the same %lld times in a row: stopped)", (long long)attempts);
        w->action = CAIRN_ENDED_STOP;
    }
    return stop;
}

int cairn_work_failed(struct cairn_work *w)
{
    struct cairn_job_state s = {0};
    char blocked[400];

    if (for_good(w->code)) {
        w->action = CAIRN_ENDED_STOP;
        return stop_chain(w);
    }
    if (too_often(w))
        return stop_chain(w);
    if (cairn_job_state(&s, w->id, CAIRN_WORK_PATIENCE_S, NULL) == CAIRN_OK && s.state[0] && strcmp(s.state, "RUNNING") &&
        !time_over(&s)) {
        w->action = CAIRN_ENDED_KILLED; /* what failed was that Slurm ends the job */
        cairn_work_end_tell(w);
        return 0;
    }
    cairn_work_end_tell(w);
    if (queue_anew(w, w->sentence, blocked, sizeof blocked))
        return 0;
    return go_again(w, 0);
}

int cairn_work_extend(struct cairn_work *w)
{
    struct cairn_submit_opts o = {.by = "extend", .patience_s = CAIRN_WORK_PATIENCE_S};
    struct cairn_error err = {0};
    json_t *report = NULL;

    if (!cairn_recipe_bool(w->run->recipe, "slurm.extend"))
        cairn_info("slurm.extend is false: further steps are queued by cairn submit %s", w->run->dir);
    else if (cairn_submit(w->run, &o, &report, &err) != CAIRN_OK)
        cairn_warn("the window could not be extended: %s; do it by hand: cairn submit %s", err.text, w->run->dir);
    json_decref(report);
    return 0;
}

/* Slurm ends this job (SIGTERM). It starts it again by itself, or somebody wanted it so; only a job whose time is over does not
 * come back: it is queued anew at once, since nobody knows how long we live (its name keeps it from starting beside us). */
int cairn_work_killed(struct cairn_work *w, const char *what)
{
    struct cairn_job_state s = {0};
    char blocked[400];

    if (cairn_job_state(&s, w->id, 2, NULL) != CAIRN_OK || !time_over(&s)) {
        cairn_work_say(w, CAIRN_ENDED_KILLED, 0, "%s%sSlurm ended the job", what, what[0] ? ": " : "");
        cairn_work_end_tell(w); /* while we can */
        wait_for_tasks(w);
        return 0;
    }
    if (cairn_work_done(w)) { /* its time was enough */
        cairn_work_say(w, CAIRN_ENDED_DONE, 0, "%s", "");
        cairn_work_end_tell(w);
        return cairn_work_extend(w);
    }
    cairn_work_say(w, CAIRN_ENDED_RETRY, CAIRN_EAGAIN,
                   "%s%sthe job's time was over before it had stopped (slurm.time, slurm.signal_lead)", what, what[0] ? ": " : "");
    if (too_often(w)) {
        int code = stop_chain(w);

        wait_for_tasks(w);
        return code;
    }
    cairn_work_end_tell(w);
    if (!queue_anew(w, "its time was over", blocked, sizeof blocked))
        cairn_warn("it could not be queued anew: %s", blocked);
    wait_for_tasks(w);
    return 0;
}

int cairn_work_repair(struct cairn_work *w, const char *missing)
{
    char why[300], blocked[400];
    json_t *events = NULL, *e;
    int before = 0;
    size_t i;

    snprintf(why, sizeof why, "%s is not committed", missing);
    if (cairn_ledger_read(w->run, &events, NULL) == CAIRN_OK)
        json_array_foreach(events, i, e)
        {
            const char *ev = json_string_value(json_object_get(e, "ev")), *action = json_string_value(json_object_get(e, "action"));
            const char *group = json_string_value(json_object_get(e, "stage"));

            if (ev && !strcmp(ev, "go"))
                before = 0;
            else if (ev && action && group && !strcmp(ev, "end") && !strcmp(action, CAIRN_ENDED_REPAIR) &&
                     !strcmp(group, w->job->group) && json_integer_value(json_object_get(e, "step")) == w->job->step)
                before++;
        }
    json_decref(events);
    if (before >= 3 * cairn_recipe_i64(w->run->recipe, "slurm.attempts")) {
        cairn_work_say(w, CAIRN_ENDED_STOP, CAIRN_ENOINPUT, "%s, and queueing what makes it did not help %d times", why, before);
        return stop_chain(w);
    }
    if (queue_anew(w, why, blocked, sizeof blocked) && !blocked[0]) {
        cairn_work_say(w, CAIRN_ENDED_REPAIR, CAIRN_ENOINPUT, "%s: what makes it is queued again, and this job behind it", why);
        cairn_work_end_tell(w);
        return 0;
    }
    cairn_work_say(w, CAIRN_ENDED_STOP, CAIRN_ENOINPUT, "%s, and nobody makes it: %s", why, blocked);
    return stop_chain(w);
}

int cairn_work_step_failed(struct cairn_work *w, const char *what, const char *stage, const struct cairn_srun_end *end,
                           const char *said)
{
    char host[256] = "", located[700];

    if (end->code == CAIRN_EAGAIN || end->code == 128 + SIGTERM || ((end->told || cairn_stop_requested()) && end->code == 0)) {
        cairn_work_say(w, CAIRN_ENDED_REQUEUE, CAIRN_EAGAIN, "%s: stopped early%s; goes on when it is started again", what,
                       end->told ? ", its time is nearly over" : "");
        return go_again(w, 1);
    }
    if (end->code == CAIRN_ENOINPUT)
        return cairn_work_repair(w, said[0] ? said : "an input");
    if (end->code == CAIRN_EFENCED) {
        cairn_work_say(w, CAIRN_ENDED_KILLED, CAIRN_EFENCED, "%s: another attempt is at work: %s", what, said);
        cairn_work_end_tell(w);
        return 0;
    }
    if (end->code == CAIRN_ENUMERIC && strcmp(stage, "cairn-check") != 0)
        said = cairn_work_locate(w, said, located, sizeof located);
    if (end->code == 0) {
        cairn_work_say(w, CAIRN_ENDED_RETRY, CAIRN_EBUG, "%s: srun said 0, but nothing is committed", what);
    } else {
        cairn_work_say(w, CAIRN_ENDED_RETRY, end->code, "%s: %s ended with %d%s%s", what, stage, end->code, said[0] ? ": " : "",
                       said);
        if (end->code == CAIRN_EDEVICE && w->nodes == 1) {
            gethostname(host, sizeof host - 1);
            cairn_ledger_tell(w->run, "unfit", w->job, json_pack("{s:s, s:s, s:s}", "job", w->id, "node", host, "text", said));
        }
    }
    return cairn_work_failed(w);
}
