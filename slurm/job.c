/* job.c - the order of a job (job.h): is the node fit, then each link, asked for before and after. */
#include "slurm/job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/build.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "slurm/command.h"
#include "slurm/preflight.h"
#include "slurm/queue.h"
#include "slurm/work.h"

#define TIDY_S     60.0 /* a stage that finds its work done */
#define TAIL_BYTES (64 << 10)
#define LAUNCHES   2 /* further tries of a step that did not come to life */

static int64_t env_number(const char *name, int64_t otherwise)
{
    const char *s = getenv(name);
    int64_t v;

    return s && cairn_parse_i64(s, &v) ? v : otherwise;
}

int cairn_work_sentence(const struct cairn_work *w, const struct cairn_link *l, double since_wall_s, char *text, size_t n)
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

int cairn_work_lived(const struct cairn_srun_end *end, int launch, int told)
{
    return launch == LAUNCHES || told || ours(end->code) || end->code == 128 + SIGTERM || end->terminated || cairn_stop_requested();
}

/* The first input of l that is not committed, the gate among them: malloc'ed, NULL if all are there. */
static enum cairn_status input_missing(const struct cairn_work *w, const struct cairn_link *l, char **missing,
                                       struct cairn_error *err)
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

static enum cairn_status stage_run(const struct cairn_work *w, const struct cairn_link *l, struct cairn_srun_end *end,
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

void cairn_work_settle(const struct cairn_work *w, const struct cairn_link *l)
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
static int preflight(struct cairn_work *w)
{
    const char *install = cairn_install_dir();
    char *program = install ? cairn_path_join(install, "bin/cairn") : NULL, nodes[32], ntasks[32];
    int silent = 0;

    if (w->nodes == 1) { /* devices tell by themselves, with 72 */
        json_t *o = cairn_preflight_node(w->run, 0);
        const char *text = json_string_value(json_object_get(o, "text"));

        if (text && text[0])
            cairn_work_unfit(w, json_string_value(json_object_get(o, "node")), text);
        json_decref(o);
    } else if (program) {
        const char *argv[] = {
            "srun",  nodes, ntasks,      "--ntasks-per-node=1", "--mpi=none", "--input=none", "--kill-on-bad-exit=0",
            program, "job", w->run->dir, "--preflight",         NULL};
        struct cairn_command c;

        snprintf(nodes, sizeof nodes, "--nodes=%lld", (long long)w->nodes);
        snprintf(ntasks, sizeof ntasks, "--ntasks=%lld", (long long)w->nodes);
        if (cairn_command_run(&c, argv, NULL, 120, NULL) == CAIRN_OK) {
            cairn_preflight_judge(cairn_str_z(&c.out), (int)w->nodes, cairn_work_unfit, w, &silent);
            if (silent > 0 && !w->code && !cairn_stop_requested())
                cairn_work_say(w, CAIRN_ENDED_RETRY, CAIRN_EDEVICE, "%d of %lld nodes did not answer the preflight: %.200s", silent,
                               (long long)w->nodes, cairn_command_says(&c));
            cairn_command_free(&c);
        }
    }
    free(program);
    return !w->code;
}

/* One link. 1: go on with the next; 0: leave with *code. */
static int link_do(struct cairn_work *w, const struct cairn_link *l, int *code)
{
    char *missing = NULL, *relative = cairn_link_relative(l), stage[64], said[300];
    struct cairn_srun_end end = {0};
    struct cairn_error err = {0};
    double since = cairn_wall_s();
    int more = 0, told;

    *code = 0;
    if (cairn_link_done(w->run, l)) {
        cairn_work_settle(w, l);
        more = 1;
        goto out;
    }
    if (relative && cairn_work_passed(w, l)) {
        cairn_warn("%s is missing and what it was made from was collected; nothing that is still to be made reads it", relative);
        more = 1;
        goto out;
    }
    if (!relative || input_missing(w, l, &missing, &err) != CAIRN_OK) {
        cairn_work_say(w, CAIRN_ENDED_RETRY, CAIRN_EBUG, "%s", err.text);
        *code = cairn_work_failed(w);
        goto out;
    }
    if (missing) {
        *code = cairn_work_repair(w, missing);
        goto out;
    }
    for (int launch = 0;; launch++) {
        if (stage_run(w, l, &end, &err) != CAIRN_OK) {
            cairn_work_say(w, CAIRN_ENDED_RETRY, (int)err.code, "%s: %s", relative, err.text);
            *code = cairn_work_failed(w);
            goto out;
        }
        told = cairn_work_sentence(w, l, since, said, sizeof said);
        /* Steps of a requeued job are counted from 0 again, and a node that lost its peers may keep PMIx's socket of that number
         * ("Address already in use"): the next number is free. */
        if (cairn_work_lived(&end, launch, told) || cairn_link_done(w->run, l))
            break;
        cairn_warn("%s: the step was not launched (srun ended with %d); another try", relative, end.code);
    }
    if (end.terminated) { /* what srun said means nothing */
        *code = cairn_work_killed(w, relative);
        goto out;
    }
    if (cairn_link_done(w->run, l) || (end.code == 0 && w->tasks > 1 && told)) {
        more = 1;
        goto out;
    }
    snprintf(stage, sizeof stage, "cairn-%s", cairn_stage_name(l->stage));
    *code = cairn_work_step_failed(w, relative, stage, &end, said);
out:
    free(missing);
    free(relative);
    return more;
}

/* When Slurm will end the job, and what time it gives it then; slurm.grace where it does not tell. */
static void times_ask(struct cairn_work *w)
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

static int work_do(struct cairn_work *w)
{
    int code = 0;

    if (!cairn_work_done(w))
        times_ask(w);
    cairn_ledger_tell(w->run, "start", w->job,
                      json_pack("{s:s, s:I, s:I, s:s?, s:s?, s:f}", "job", w->id, "restart", (json_int_t)w->restart, "task",
                                (json_int_t)w->task, "nodes", getenv("SLURM_JOB_NODELIST"), "partition",
                                getenv("SLURM_JOB_PARTITION"), "notice_s", w->notice_s));
    if (!cairn_work_done(w)) {
        if (!preflight(w))
            return cairn_stop_requested() == SIGTERM ? cairn_work_killed(w, "") : cairn_work_failed(w);
    }
    if (w->job->which == CAIRN_JOB_RESIDENT)
        return cairn_work_resident(w);
    for (int i = 0; i < w->job->links; i++) {
        if (cairn_stop_requested() == SIGTERM)
            return cairn_work_killed(w, "");
        if (!link_do(w, &w->job->link[i], &code))
            return code;
    }
    cairn_work_say(w, CAIRN_ENDED_DONE, 0, "%s", "");
    cairn_work_end_tell(w);
    return cairn_work_done(w) ? cairn_work_extend(w) : 0;
}

int cairn_job_main(const struct cairn_run *run, int64_t step, const char *group)
{
    struct cairn_work w = {.run = run, .began_s = cairn_now_s(), .tasks = 1};
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
    if (cairn_plan_make(&w.plan, run, NULL, &err) != CAIRN_OK) {
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
