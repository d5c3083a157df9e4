/* job.c - the order of a job (job.h). */
#include "slurm/job.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

#include "base/build.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "slurm/command.h"
#include "slurm/ledger.h"
#include "slurm/preflight.h"
#include "slurm/queue.h"
#include "slurm/srun.h"
#include "slurm/submit.h"

#define PATIENCE_S 60.0 /* a controller that restarts */
#define TIDY_S     60.0 /* a stage that finds its work done */
#define TAIL_BYTES (64 << 10)
#define LAUNCHES   2 /* further tries of a step that did not come to life */

struct work {
    const struct cairn_run *run;
    struct cairn_plan plan;
    const struct cairn_job *job;
    char id[32];  /* SLURM_JOB_ID: this job, or this task of an array */
    int64_t self; /* the array's id, or the job's: what the queue is asked about */
    int64_t task, tasks;
    int64_t nodes, restart;
    double began_s, stop_at_s, notice_s; /* notice: from SIGTERM to SIGKILL */
    char sentence[500];                  /* what is said at the end */
    const char *action;
    int code; /* of what ended the work: a stage's */
};

static int64_t env_number(const char *name, int64_t otherwise)
{
    const char *s = getenv(name);
    int64_t v;

    return s && cairn_parse_i64(s, &v) ? v : otherwise;
}

static void say(struct work *w, const char *action, int code, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static void say(struct work *w, const char *action, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(w->sentence, sizeof w->sentence, fmt, ap);
    va_end(ap);
    w->action = action;
    w->code = code;
}

static int64_t links_done(const struct work *w)
{
    int64_t n = 0;

    for (int i = 0; i < w->job->links; i++)
        n += cairn_link_done(w->run, &w->job->link[i]);
    return n;
}

static void end_tell(struct work *w)
{
    if (w->sentence[0])
        cairn_info("%s", w->sentence);
    cairn_ledger_tell(w->run, "end", w->job,
                      json_pack("{s:s, s:I, s:I, s:s, s:i, s:s, s:f, s:I}", "job", w->id, "restart", (json_int_t)w->restart, "task",
                                (json_int_t)w->task, "action", w->action, "code", w->code, "text", w->sentence, "seconds",
                                cairn_now_s() - w->began_s, "links_done", (json_int_t)links_done(w)));
}

/* --- leaving ----------------------------------------------------------------------------------------------------------- */

/* Are steps of this job still at work on some node? In doubt: yes. */
static int steps_alive(const struct work *w)
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
static void wait_for_tasks(const struct work *w)
{
    for (int i = 0; i < 1200 && steps_alive(w); i++)
        cairn_sleep_s(0.5);
}

static int requeue(const struct work *w, char *why, size_t n)
{
    const char *argv[] = {"scontrol", "requeue", w->id, NULL};
    double until = cairn_now_s() + PATIENCE_S;
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
static int queue_anew(struct work *w, const char *why, char *blocked, size_t n)
{
    struct cairn_submit_opts o = {.by = "repair", .why = why, .self = w->self, .patience_s = PATIENCE_S};
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
static int stop_chain(struct work *w)
{
    struct cairn_error err = {0};
    int n = 0;

    end_tell(w);
    if (cairn_submit_cancel(w->run, w->job, PATIENCE_S, &n, &err) != CAIRN_OK)
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
static int go_again(struct work *w, int tell)
{
    struct cairn_job_state s = {0};
    char why[256], blocked[400];

    if (cairn_job_state(&s, w->id, PATIENCE_S, NULL) == CAIRN_OK && s.state[0] && strcmp(s.state, "RUNNING") && !time_over(&s)) {
        w->action = CAIRN_ENDED_KILLED; /* somebody cancelled it, or Slurm requeues it by itself: not ours to revive */
        if (tell)
            end_tell(w);
        return 0;
    }
    if (tell)
        end_tell(w);
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
        say(w, CAIRN_ENDED_STOP, w->code, "it could neither be requeued nor queued anew: %s", blocked[0] ? blocked : why);
        return stop_chain(w);
    }
    for (int i = 0; s.preempt_wall_s && i < 1200 && cairn_stop_requested() != SIGTERM; i++) /* in its grace: Slurm ends it */
        cairn_sleep_s(0.5);
    return 0;
}

/* --- what happened ------------------------------------------------------------------------------------------------------ */

/* The sentence of the last failure in RUN/log/<stage>.jsonl since then. 1: the stage has told something, so it was at work. */
static int stage_sentence(const struct work *w, const struct cairn_link *l, double since_wall_s, char *text, size_t n)
{
    int told = 0;
    char *relative = cairn_format("log/%s.jsonl", cairn_stage_name(l->stage)),
         *path = relative ? cairn_run_path(w->run, relative) : NULL;
    char *tail = NULL, *save = NULL;
    size_t got = 0;

    text[0] = 0;
    if (path && cairn_path_exists(path) && cairn_file_read(path, 256 << 20, &tail, &got, NULL) == CAIRN_OK) {
        char *from = got > TAIL_BYTES ? tail + got - TAIL_BYTES : tail;

        for (char *line = strtok_r(from, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
            json_t *v = json_loads(line, 0, NULL);
            const char *ev = json_string_value(json_object_get(v, "ev")), *said = json_string_value(json_object_get(v, "text"));

            if (ev && json_integer_value(json_object_get(v, "step")) == l->step &&
                json_number_value(json_object_get(v, "t")) >= since_wall_s) {
                told = 1;
                if (said && !strcmp(ev, "failed"))
                    snprintf(text, n, "%s", said);
            }
            json_decref(v);
        }
    }
    free(tail);
    free(relative);
    free(path);
    return told;
}

/* One of our exit codes: the stage itself has spoken. */
static int ours(int code)
{
    return code == CAIRN_EUSAGE || code == CAIRN_EDATA || (code >= CAIRN_ENOINPUT && code <= CAIRN_ENUMERIC) ||
           code == CAIRN_ERECIPE;
}

/* Not 64: the command line is ours, and a step whose ranks did not find each other (a node in trouble) ends so, too. */
static int for_good(int code)
{
    return code == CAIRN_EDATA || code == CAIRN_ENUMERIC || code == CAIRN_ERECIPE;
}

static void unfit(void *arg, const char *node, const char *text)
{
    struct work *w = arg;

    cairn_warn("node %s is unfit: %s (--exclude=%s)", node, text, node);
    cairn_ledger_tell(w->run, "unfit", w->job, json_pack("{s:s, s:s, s:s}", "job", w->id, "node", node, "text", text));
    if (!w->code)
        say(w, CAIRN_ENDED_RETRY, CAIRN_EDEVICE, "node %s is unfit: %.300s", node, text);
}

/* 1: it has ended with this code so often in a row that nobody should go on by himself; the sentence says so. */
static int too_often(struct work *w)
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

/* After a failure: again, or never. Again means a job of a new id: at once (a requeued one waits for two minutes), and free of what
 * a node keeps under the old id. */
static int failed(struct work *w)
{
    struct cairn_job_state s = {0};
    char blocked[400];

    if (for_good(w->code)) {
        w->action = CAIRN_ENDED_STOP;
        return stop_chain(w);
    }
    if (too_often(w))
        return stop_chain(w);
    if (cairn_job_state(&s, w->id, PATIENCE_S, NULL) == CAIRN_OK && s.state[0] && strcmp(s.state, "RUNNING") && !time_over(&s)) {
        w->action = CAIRN_ENDED_KILLED; /* what failed was that Slurm ends the job */
        end_tell(w);
        return 0;
    }
    end_tell(w);
    if (queue_anew(w, w->sentence, blocked, sizeof blocked))
        return 0;
    return go_again(w, 0);
}

static int window_extend(struct work *w)
{
    struct cairn_submit_opts o = {.by = "extend", .patience_s = PATIENCE_S};
    struct cairn_error err = {0};
    json_t *report = NULL;

    if (!cairn_recipe_bool(w->run->recipe, "slurm.extend"))
        cairn_info("slurm.extend is false: further steps are queued by cairn submit %s", w->run->dir);
    else if (cairn_submit(w->run, &o, &report, &err) != CAIRN_OK)
        cairn_warn("the window could not be extended: %s; do it by hand: cairn submit %s", err.text, w->run->dir);
    json_decref(report);
    return 0;
}

static int all_done(const struct work *w)
{
    for (int i = 0; i < w->job->links; i++)
        if (!cairn_link_done(w->run, &w->job->link[i]))
            return 0;
    return 1;
}

/* Slurm ends this job (SIGTERM). It starts it again by itself, or somebody wanted it so; only a job whose time is over does not
 * come back: it is queued anew at once, since nobody knows how long we live (its name keeps it from starting beside us). */
static int ended_by_slurm(struct work *w, const char *what)
{
    struct cairn_job_state s = {0};
    char blocked[400];

    if (cairn_job_state(&s, w->id, 2, NULL) != CAIRN_OK || !time_over(&s)) {
        say(w, CAIRN_ENDED_KILLED, 0, "%s%sSlurm ended the job", what, what[0] ? ": " : "");
        end_tell(w); /* while we can */
        wait_for_tasks(w);
        return 0;
    }
    if (all_done(w)) { /* its time was enough */
        say(w, CAIRN_ENDED_DONE, 0, "%s", "");
        end_tell(w);
        return window_extend(w);
    }
    say(w, CAIRN_ENDED_RETRY, CAIRN_EAGAIN, "%s%sthe job's time was over before it had stopped (slurm.time, slurm.signal_lead)",
        what, what[0] ? ": " : "");
    if (too_often(w)) {
        int code = stop_chain(w);

        wait_for_tasks(w);
        return code;
    }
    end_tell(w);
    if (!queue_anew(w, "its time was over", blocked, sizeof blocked))
        cairn_warn("it could not be queued anew: %s", blocked);
    wait_for_tasks(w);
    return 0;
}

/* Whoever makes the input is asked for once more; this job comes behind. */
static int repair(struct work *w, const char *missing)
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
        say(w, CAIRN_ENDED_STOP, CAIRN_ENOINPUT, "%s, and queueing what makes it did not help %d times", why, before);
        return stop_chain(w);
    }
    if (queue_anew(w, why, blocked, sizeof blocked) && !blocked[0]) {
        say(w, CAIRN_ENDED_REPAIR, CAIRN_ENOINPUT, "%s: what makes it is queued again, and this job behind it", why);
        end_tell(w);
        return 0;
    }
    say(w, CAIRN_ENDED_STOP, CAIRN_ENOINPUT, "%s, and nobody makes it: %s", why, blocked);
    return stop_chain(w);
}

/* --- the work ------------------------------------------------------------------------------------------------------------ */

/* The first input of l that is not committed, the gate among them: malloc'ed, NULL if all are there. */
static enum cairn_status input_missing(const struct work *w, const struct cairn_link *l, char **missing, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char **inputs = NULL;
    int n = 0;

    *missing = NULL;
    if (cairn_link_gated(w->run, l) && !(*missing = strdup(cairn_stage_name(CAIRN_STAGE_CHECK))))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_link_inputs(w->run, l, &inputs, &n, err));
    for (int i = 0; i < n && !*missing; i++) {
        char *path = cairn_run_path(w->run, inputs[i]);

        if (!path)
            TRY(CAIRN_NOMEM(err));
        if (!cairn_artefact_committed(path))
            *missing = strdup(inputs[i]);
        free(path);
    }
out:
    cairn_strings_free(inputs, n);
    return st;
}

static enum cairn_status stage_run(const struct work *w, const struct cairn_link *l, struct cairn_srun_end *end,
                                   struct cairn_error *err)
{
    const char *install = cairn_install_dir(), *argv[12];
    char *program = install ? cairn_format("%s/bin/cairn-%s", install, cairn_stage_name(l->stage)) : NULL, step[32], shard[64];
    struct cairn_srun s = {.argv = argv, .ranks = cairn_job_ranks(w->run, w->job, l), .nodes = w->nodes, .stop_at_s = w->stop_at_s};
    enum cairn_status st;
    int n = 0;

    if (!program)
        return CAIRN_NOMEM(err);
    snprintf(step, sizeof step, "%lld", (long long)l->step);
    argv[n++] = program;
    argv[n++] = w->run->dir;
    argv[n++] = "--step";
    argv[n++] = step;
    if (l->eval) {
        argv[n++] = "--eval";
        argv[n++] = l->eval;
    }
    if (w->tasks > 1) {
        snprintf(shard, sizeof shard, "%lld/%lld", (long long)w->task, (long long)w->tasks);
        argv[n++] = "--shard";
        argv[n++] = shard;
    }
    argv[n] = NULL;
    st = cairn_srun(end, &s, err);
    free(program);
    return st;
}

/* A link that was done before: whoever committed it may have been killed right behind that. The stage sees that it is done and
 * tidies up. */
static void stage_settle(const struct work *w, const struct cairn_link *l)
{
    const char *install = cairn_install_dir();
    char *program = install ? cairn_format("%s/bin/cairn-%s", install, cairn_stage_name(l->stage)) : NULL, step[32];
    const char *argv[] = {program, w->run->dir, "--step", step, "--quiet", l->eval ? "--eval" : NULL, l->eval, NULL};
    struct cairn_error err = {0};
    struct cairn_command c;

    snprintf(step, sizeof step, "%lld", (long long)l->step);
    if (!program || w->task) /* one task of an array does */
        goto out;
    if (cairn_command_run(&c, argv, NULL, TIDY_S, &err) != CAIRN_OK) {
        cairn_warn("step %s %s: tidying up: %s", step, cairn_stage_name(l->stage), err.text);
        goto out;
    }
    if (c.code)
        cairn_warn("step %s %s: tidying up: %s", step, cairn_stage_name(l->stage), cairn_command_says(&c));
    cairn_command_free(&c);
out:
    free(program);
}

/* All nodes, by one task each; here, if there is only this one. 1: all are fit. */
static int preflight(struct work *w)
{
    const char *install = cairn_install_dir();
    char *program = install ? cairn_path_join(install, "bin/cairn") : NULL, nodes[32], ntasks[32];
    int silent = 0;

    if (w->nodes == 1) { /* devices tell by themselves, with 72 */
        json_t *o = cairn_preflight_node(w->run, 0);
        const char *text = json_string_value(json_object_get(o, "text"));

        if (text && text[0])
            unfit(w, json_string_value(json_object_get(o, "node")), text);
        json_decref(o);
    } else if (program) {
        const char *argv[] = {
            "srun",  nodes, ntasks,      "--ntasks-per-node=1", "--mpi=none", "--input=none", "--kill-on-bad-exit=0",
            program, "job", w->run->dir, "--preflight",         NULL};
        struct cairn_command c;

        snprintf(nodes, sizeof nodes, "--nodes=%lld", (long long)w->nodes);
        snprintf(ntasks, sizeof ntasks, "--ntasks=%lld", (long long)w->nodes);
        if (cairn_command_run(&c, argv, NULL, 120, NULL) == CAIRN_OK) {
            cairn_preflight_judge(cairn_str_z(&c.out), (int)w->nodes, unfit, w, &silent);
            if (silent > 0 && !w->code && !cairn_stop_requested())
                say(w, CAIRN_ENDED_RETRY, CAIRN_EDEVICE, "%d of %lld nodes did not answer the preflight: %.200s", silent,
                    (long long)w->nodes, cairn_command_says(&c));
            cairn_command_free(&c);
        }
    }
    free(program);
    return !w->code;
}

/* How a step ended that should have committed something, and has not. Leaves with *code. `what` and `stage` are for people. */
static void step_failed(struct work *w, const char *what, const char *stage, const struct cairn_srun_end *end, const char *said, int *code)
{
    char host[256] = "";

    if (end->code == CAIRN_EAGAIN || end->code == 128 + SIGTERM || ((end->told || cairn_stop_requested()) && end->code == 0)) {
        say(w, CAIRN_ENDED_REQUEUE, CAIRN_EAGAIN, "%s: stopped early%s; goes on when it is started again", what,
            end->told ? ", its time is nearly over" : "");
        *code = go_again(w, 1);
    } else if (end->code == CAIRN_ENOINPUT) {
        *code = repair(w, said[0] ? said : "an input");
    } else if (end->code == CAIRN_EFENCED) {
        say(w, CAIRN_ENDED_KILLED, CAIRN_EFENCED, "%s: another attempt is at work: %s", what, said);
        end_tell(w);
    } else if (end->code == 0) {
        say(w, CAIRN_ENDED_RETRY, CAIRN_EBUG, "%s: srun said 0, but nothing is committed", what);
        *code = failed(w);
    } else {
        say(w, CAIRN_ENDED_RETRY, end->code, "%s: %s ended with %d%s%s", what, stage, end->code, said[0] ? ": " : "", said);
        if (end->code == CAIRN_EDEVICE && w->nodes == 1) {
            gethostname(host, sizeof host - 1);
            cairn_ledger_tell(w->run, "unfit", w->job, json_pack("{s:s, s:s, s:s}", "job", w->id, "node", host, "text", said));
        }
        *code = failed(w);
    }
}

/* One link. 1: go on with the next; 0: leave with *code. */
static int link_do(struct work *w, const struct cairn_link *l, int *code)
{
    char *missing = NULL, *relative = cairn_link_relative(l), stage[64], said[300];
    struct cairn_srun_end end = {0};
    struct cairn_error err = {0};
    double since = cairn_wall_s();
    int more = 0, told;

    *code = 0;
    if (cairn_link_done(w->run, l)) {
        stage_settle(w, l);
        more = 1;
        goto out;
    }
    if (!relative || input_missing(w, l, &missing, &err) != CAIRN_OK) {
        say(w, CAIRN_ENDED_RETRY, CAIRN_EBUG, "%s", err.text);
        *code = failed(w);
        goto out;
    }
    if (missing) {
        *code = repair(w, missing);
        goto out;
    }
    for (int launch = 0;; launch++) {
        if (stage_run(w, l, &end, &err) != CAIRN_OK) {
            say(w, CAIRN_ENDED_RETRY, (int)err.code, "%s: %s", relative, err.text);
            *code = failed(w);
            goto out;
        }
        told = stage_sentence(w, l, since, said, sizeof said);
        /* Steps of a requeued job are counted from 0 again, and a node that lost its peers may keep PMIx's socket of that number
         * ("Address already in use"): the next number is free. */
        if (launch == LAUNCHES || told || ours(end.code) || end.code == 128 + SIGTERM || end.terminated || cairn_stop_requested() ||
            cairn_link_done(w->run, l))
            break;
        cairn_warn("%s: the step was not launched (srun ended with %d); another try", relative, end.code);
    }
    if (end.terminated) { /* what srun said means nothing */
        *code = ended_by_slurm(w, relative);
        goto out;
    }
    if (cairn_link_done(w->run, l) || (end.code == 0 && w->tasks > 1 && told)) {
        more = 1;
        goto out;
    }
    snprintf(stage, sizeof stage, "cairn-%s", cairn_stage_name(l->stage));
    step_failed(w, relative, stage, &end, said, code);
out:
    free(missing);
    free(relative);
    return more;
}

/* --- resident ---------------------------------------------------------------------------------------------------------------- */

/* srun's --multi-prog file: which ranks run what. In the run's log folder, made anew by each start; *path malloc'ed. */
static enum cairn_status programs_write(const struct work *w, char **path, struct cairn_error *err)
{
    static const enum cairn_stage roles[] = {CAIRN_STAGE_ROLLOUT, CAIRN_STAGE_SCORE, CAIRN_STAGE_TRAIN};
    const char *install = cairn_install_dir();
    struct cairn_str text = {0};
    enum cairn_status st = CAIRN_OK;
    int64_t rank = 0;

    *path = cairn_format("%s/log/resident.%s.conf", w->run->dir, w->id);
    if (!*path || !install)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < 2; i++) { /* srun has no quoting that all its versions know */
        const char *dir = i ? install : w->run->dir;

        if (strpbrk(dir, " \t\"'\\%"))
            TRY(cairn_fail(err, CAIRN_EUSAGE, "%s: srun --multi-prog takes no blanks, quotes, backslashes and percent signs in a path", dir));
    }
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++) {
        int64_t n = cairn_job_ranks(w->run, w->job, &(struct cairn_link){1, roles[k], NULL});

        cairn_str_printf(&text, "%lld-%lld %s/bin/cairn-%s %s --resident\n", (long long)rank, (long long)(rank + n - 1), install,
                         cairn_stage_name(roles[k]), w->run->dir);
        rank += n;
    }
    if (text.oom)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_file_replace(*path, text.p, text.len, err));
out:
    cairn_str_free(&text);
    return st;
}

/* The first failure that a role has told since then; 1: one has told something, so it was at work. */
static int roles_sentence(const struct work *w, double since_wall_s, char *text, size_t n)
{
    static const enum cairn_stage stages[] = {CAIRN_STAGE_TRAIN, CAIRN_STAGE_ROLLOUT, CAIRN_STAGE_SCORE, CAIRN_STAGE_SYNC};
    int told = 0;

    text[0] = 0;
    for (size_t k = 0; k < sizeof stages / sizeof *stages && !text[0]; k++)
        for (int i = 0; i < w->job->links && !text[0]; i++)
            if (w->job->link[i].stage == stages[k] && !cairn_link_done(w->run, &w->job->link[i])) {
                told |= stage_sentence(w, &w->job->link[i], since_wall_s, text, n);
                break; /* a role stands at its first open link */
            }
    return told;
}

/* All roles, to the end of the run. Returns the job's exit code. */
static int resident_do(struct work *w)
{
    struct cairn_srun_end end = {0};
    struct cairn_error err = {0};
    double since = cairn_wall_s();
    char *conf = NULL, said[300];
    int code = 0, told, last = -1;

    for (int i = 0; i < w->job->links; i++)
        if (cairn_link_done(w->run, &w->job->link[i]))
            last = i;
    if (last >= 0)
        stage_settle(w, &w->job->link[last]);
    if (!all_done(w) && cairn_link_gated(w->run, w->job->link)) {
        code = repair(w, cairn_stage_name(CAIRN_STAGE_CHECK));
        goto out;
    }
    for (int launch = 0; !all_done(w); launch++) {
        const char *argv[] = {"--multi-prog", NULL, NULL};
        struct cairn_srun s = {.argv = argv, .ranks = w->job->ranks, .nodes = w->nodes, .stop_at_s = w->stop_at_s};
        enum cairn_status st = conf ? CAIRN_OK : programs_write(w, &conf, &err);

        argv[1] = conf;
        if (st == CAIRN_OK)
            st = cairn_srun(&end, &s, &err);
        if (st != CAIRN_OK) {
            say(w, CAIRN_ENDED_RETRY, (int)err.code, "resident run: %s", err.text);
            code = failed(w);
            goto out;
        }
        told = roles_sentence(w, since, said, sizeof said);
        if (launch == LAUNCHES || told || ours(end.code) || end.code == 128 + SIGTERM || end.terminated || cairn_stop_requested())
            break;
        cairn_warn("the step was not launched (srun ended with %d); another try", end.code);
    }
    if (all_done(w)) {
        say(w, CAIRN_ENDED_DONE, 0, "%s", "");
        end_tell(w);
    } else if (end.terminated) {
        code = ended_by_slurm(w, "resident run");
    } else {
        step_failed(w, "resident run", "a role", &end, said, &code);
    }
out:
    if (conf)
        unlink(conf);
    free(conf);
    return code;
}

/* When Slurm will end the job, and what time it gives it then; slurm.grace where it does not tell. */
static void times_ask(struct work *w)
{
    double lead = cairn_recipe_f64(w->run->recipe, "slurm.signal_lead"), left;
    struct cairn_grace g = {-1, -1};
    struct cairn_job_state s = {0};

    w->notice_s = cairn_recipe_f64(w->run->recipe, "slurm.grace");
    if (cairn_job_state(&s, w->id, 5, NULL) != CAIRN_OK)
        return;
    cairn_grace_ask(&g, s.partition);
    if (g.grace_s >= 0 && g.kill_wait_s >= 0)
        w->notice_s = g.grace_s + (g.kill_wait_s > 5 ? g.kill_wait_s : 5); /* Slurm waits 5 s at least */
    if (!s.end_wall_s)
        return;
    left = (double)s.end_wall_s - cairn_wall_s();
    if (lead < w->notice_s - 5)
        lead = w->notice_s - 5; /* what it would have been given by a preemption */
    if (left > 300 * 86400.0)   /* no limit */
        return;
    if (lead > left / 4) /* a short job must not stop before it has begun */
        lead = left / 4;
    w->stop_at_s = cairn_now_s() + left - lead;
}

static int work_do(struct work *w)
{
    int code = 0;

    if (!all_done(w))
        times_ask(w);
    cairn_ledger_tell(w->run, "start", w->job,
                      json_pack("{s:s, s:I, s:I, s:s?, s:s?, s:f}", "job", w->id, "restart", (json_int_t)w->restart, "task",
                                (json_int_t)w->task, "nodes", getenv("SLURM_JOB_NODELIST"), "partition",
                                getenv("SLURM_JOB_PARTITION"), "notice_s", w->notice_s));
    if (!all_done(w)) {
        if (!preflight(w))
            return cairn_stop_requested() == SIGTERM ? ended_by_slurm(w, "") : failed(w);
    }
    if (w->job->which == CAIRN_JOB_RESIDENT)
        return resident_do(w);
    for (int i = 0; i < w->job->links; i++) {
        if (cairn_stop_requested() == SIGTERM)
            return ended_by_slurm(w, "");
        if (!link_do(w, &w->job->link[i], &code))
            return code;
    }
    say(w, CAIRN_ENDED_DONE, 0, "%s", "");
    end_tell(w);
    return all_done(w) ? window_extend(w) : 0;
}

int cairn_job_main(const struct cairn_run *run, int64_t step, const char *group)
{
    struct work w = {.run = run, .began_s = cairn_now_s(), .tasks = 1};
    const char *id = getenv("SLURM_JOB_ID");
    struct cairn_error err = {0};
    int code;

    if (!id || !id[0]) {
        cairn_warn("there is no SLURM_JOB_ID: this runs inside of a Slurm job; cairn submit queues one");
        return CAIRN_EUSAGE;
    }
    snprintf(w.id, sizeof w.id, "%s", id);
    w.self = env_number("SLURM_ARRAY_JOB_ID", env_number("SLURM_JOB_ID", 0));
    w.nodes = env_number("SLURM_JOB_NUM_NODES", 1);
    w.restart = env_number("SLURM_RESTART_COUNT", 0);
    if (getenv("SLURM_ARRAY_JOB_ID")) {
        w.task = env_number("SLURM_ARRAY_TASK_ID", 0);
        w.tasks = env_number("SLURM_ARRAY_TASK_MAX", 0) + 1; /* as it was submitted, whatever the recipe says now */
    }
    if (cairn_plan_make(&w.plan, run, &err) != CAIRN_OK) {
        cairn_warn("%s", err.text);
        return (int)err.code;
    }
    w.job = cairn_plan_find(&w.plan, step, group);
    if (!w.job) { /* slurm.jobs or run.steps have changed since it was queued: somebody else does its links */
        cairn_info("step %lld has no job %s any more", (long long)step, group);
        code = 0;
    } else {
        code = work_do(&w);
    }
    cairn_plan_free(&w.plan);
    return code;
}
