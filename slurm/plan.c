/* plan.c - cuts the chain into jobs (plan.h). */
#include "slurm/plan.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"

void cairn_job_prefix(const struct cairn_run *run, char *text, size_t n)
{
    char folder[64];
    size_t k = 0;

    /* A name must not upset squeue, file names or people: letters that are safe everywhere. */
    for (const char *s = cairn_path_basename(run->dir); *s && k + 1 < 40; s++)
        folder[k++] = isalnum((unsigned char)*s) || *s == '_' ? *s : '-';
    folder[k] = 0;
    snprintf(text, n, "%s-%.8s.", k ? folder : "run", run->uuid);
}

static int group_of(const struct cairn_run *run, const struct cairn_link *l)
{
    const json_t *jobs = cairn_recipe_list(run->recipe, "slurm.jobs"), *group, *stage;
    size_t i, k;

    if (l->eval)
        return CAIRN_JOB_EVAL;
    if (l->stage == CAIRN_STAGE_CHECK)
        return CAIRN_JOB_CHECK;
    json_array_foreach(jobs, i, group)
        json_array_foreach(group, k, stage) if (!strcmp(json_string_value(stage), cairn_stage_name(l->stage))) return (int)i;
    return 0;
}

static int64_t product(const struct cairn_recipe *recipe, const char *const *key)
{
    int64_t n = 1;

    for (; *key; key++)
        n *= cairn_recipe_i64(recipe, *key);
    return n;
}

static int is_array(const struct cairn_run *run, const struct cairn_link *l)
{
    if (l->eval)
        return 0;
    if (l->stage == CAIRN_STAGE_ROLLOUT)
        return cairn_recipe_bool(run->recipe, "slurm.rollout.array");
    return l->stage == CAIRN_STAGE_SCORE && cairn_recipe_bool(run->recipe, "slurm.score.array");
}

static int64_t tasks_of(const struct cairn_run *run, const struct cairn_link *l)
{
    const char *key = l->stage == CAIRN_STAGE_ROLLOUT ? "rollout.tasks" : l->stage == CAIRN_STAGE_SCORE ? "score.tasks" : NULL;

    return key ? cairn_recipe_i64(cairn_run_recipe(run, l->step), key) : 1;
}

int64_t cairn_job_ranks(const struct cairn_run *run, const struct cairn_job *job, const struct cairn_link *l)
{
    static const char *const sampler[] = {"rollout.parallel.tp", "rollout.parallel.ep", "rollout.parallel.dp", NULL};
    /* Expert parallel ranks of training are the same ranks as those of the others, cut another way. */
    static const char *const trainer[] = {"train.parallel.tp", "train.parallel.pp", "train.parallel.cp", "train.parallel.dp", NULL};
    const struct cairn_recipe *recipe = cairn_run_recipe(run, l->step);
    int64_t shared = job->tasks > 1 ? 1 : tasks_of(run, l); /* tasks without an array are ranks of one allocation */

    switch (l->stage) {
    case CAIRN_STAGE_ROLLOUT:
        return product(recipe, sampler) * shared;
    case CAIRN_STAGE_SCORE:
        return shared;
    case CAIRN_STAGE_TRAIN:
        return product(recipe, trainer);
    default:
        return 1;
    }
}

const json_t *cairn_job_value(const struct cairn_run *run, const struct cairn_job *job, const char *key)
{
    char path[96];

    for (int i = 0; i < job->links; i++) {
        const json_t *v;

        if (job->which == CAIRN_JOB_EVAL && job->link[i].stage != CAIRN_STAGE_ROLLOUT)
            continue;
        snprintf(path, sizeof path, "slurm.%s.%s", cairn_stage_name(job->which == CAIRN_JOB_CHECK ? CAIRN_STAGE_ROLLOUT : job->link[i].stage), key);
        if (job->which == CAIRN_JOB_CHECK && (!strcmp(key, "nodes") || !strcmp(key, "tasks_per_node")))
            continue;
        if ((v = cairn_recipe_get(run->recipe, path)))
            return v;
    }
    snprintf(path, sizeof path, "slurm.%s", key);
    /* What only stages have (nodes, tasks_per_node, cpus_per_task) has no value above them. */
    if (!strcmp(key, "nodes") || !strcmp(key, "tasks_per_node") || !strcmp(key, "cpus_per_task"))
        return NULL;
    return cairn_recipe_get(run->recipe, path);
}

/* --- the plan --- */

static void group_name(const struct cairn_run *run, struct cairn_job *j)
{
    size_t n = 0;

    if (j->which == CAIRN_JOB_EVAL || j->which == CAIRN_JOB_CHECK) {
        snprintf(j->group, sizeof j->group, "%s", j->which == CAIRN_JOB_EVAL ? "eval" : "check");
        return;
    }
    const json_t *group = json_array_get(cairn_recipe_list(run->recipe, "slurm.jobs"), (size_t)j->which), *stage;
    size_t k;

    json_array_foreach(group, k, stage) if (n < sizeof j->group) n +=
        (size_t)snprintf(j->group + n, sizeof j->group - n, "%s%s", k ? "-" : "", json_string_value(stage));
}

/* The chain's first `links`. */
static void jobs_cut(struct cairn_plan *p, const char *done, int links)
{
    char prefix[80];

    cairn_job_prefix(p->run, prefix, sizeof prefix);
    for (int i = 0; i < links; i++) {
        const struct cairn_link *l = &p->link[i];
        struct cairn_job *j = p->n ? &p->job[p->n - 1] : NULL;
        int which = group_of(p->run, l);

        if (!j || j->step != l->step || j->which != which) {
            j = &p->job[p->n++];
            j->step = l->step;
            j->which = which;
            j->link = l;
            j->done = 1;
            group_name(p->run, j);
            snprintf(j->name, sizeof j->name, "%s%lld.%s", prefix, (long long)j->step, j->group);
        }
        j->links++;
        j->done = j->done && done[i];
    }
}

/* From link `first` on all of it is one job. */
static void job_resident(struct cairn_plan *p, const char *done, int first)
{
    static const enum cairn_stage roles[] = {CAIRN_STAGE_ROLLOUT, CAIRN_STAGE_SCORE, CAIRN_STAGE_TRAIN};
    struct cairn_job *j = &p->job[p->n++];
    char prefix[80];

    *j = (struct cairn_job){.which = CAIRN_JOB_RESIDENT, .link = p->link + first, .links = p->nlinks - first, .tasks = 1, .done = 1};
    for (int i = 0; i < j->links && j->done; i++)
        j->done = done[first + i] != 0;
    for (size_t k = 0; k < sizeof roles / sizeof *roles; k++)
        j->ranks += cairn_job_ranks(
            p->run, j, &(struct cairn_link){cairn_links_next_step(j->link, done + first, j->links, roles[k]), roles[k], NULL});
    cairn_job_prefix(p->run, prefix, sizeof prefix);
    snprintf(j->group, sizeof j->group, "resident");
    snprintf(j->name, sizeof j->name, "%s0.%s", prefix, j->group);
}

static void jobs_measure(struct cairn_plan *p)
{
    for (int k = 0; k < p->n; k++) {
        struct cairn_job *j = &p->job[k];

        j->tasks = j->links == 1 && is_array(p->run, j->link) ? tasks_of(p->run, j->link) : 1;
        for (int i = 0; i < j->links; i++) {
            int64_t ranks = cairn_job_ranks(p->run, j, &j->link[i]);

            j->ranks = ranks > j->ranks ? ranks : j->ranks;
        }
    }
}

static int makes(const struct cairn_job *j, const char *relative)
{
    int found = 0;

    for (int i = 0; i < j->links && !found; i++) {
        char *own = cairn_link_relative(&j->link[i]);

        found = own && !strcmp(own, relative);
        free(own);
    }
    return found;
}

/* Which job makes the artefact called `relative`; -1: none (base, policy 0 without a warm start). */
static int maker(const struct cairn_plan *p, const char *relative)
{
    for (int k = 0; k < p->n; k++)
        if (makes(&p->job[k], relative))
            return k;
    return -1;
}

const struct cairn_job *cairn_plan_maker(const struct cairn_plan *p, const struct cairn_link *l)
{
    char *relative = cairn_link_relative(l);
    int k = relative ? maker(p, relative) : -1;

    free(relative);
    return k < 0 ? NULL : &p->job[k];
}

static void parent_add(struct cairn_job *j, int k)
{
    for (int i = 0; i < j->parents; i++)
        if (j->parent[i] == k)
            return;
    if (j->parents < CAIRN_JOB_PARENTS)
        j->parent[j->parents++] = k;
}

/* Inputs are made at most two steps before (a policy with run.lag): looked for backwards, so that long runs do not cost a square. */
static int maker_near(const struct cairn_plan *p, int from, const char *relative)
{
    for (int k = from; k >= 0 && p->job[k].step + 2 >= p->job[from].step; k--)
        if (makes(&p->job[k], relative))
            return k;
    return -1;
}

static int parents_done(const struct cairn_plan *p, const struct cairn_job *j)
{
    for (int i = 0; i < j->parents; i++)
        if (!p->job[j->parent[i]].done)
            return 0;
    return 1;
}

static enum cairn_status parents_find(struct cairn_plan *p, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (int k = 0; k < p->n; k++) {
        struct cairn_job *j = &p->job[k];

        if (j->done)
            continue; /* nobody asks */
        for (int i = 0; i < j->links; i++) {
            char **inputs = NULL;
            int n = 0;

            TRY(cairn_link_inputs(p->run, &j->link[i], &inputs, &n, err));
            for (int q = 0; q < n; q++) {
                int m = maker_near(p, k, inputs[q]);

                if (m >= 0 && m != k)
                    parent_add(j, m);
            }
            cairn_strings_free(inputs, n);
        }
        if (k && p->job[0].which == CAIRN_JOB_CHECK && parents_done(p, j)) /* the others wait for it with their parents */
            parent_add(j, 0);
    }
out:
    return st;
}

enum cairn_status cairn_plan_make(struct cairn_plan *out, const struct cairn_run *run, const char *done, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_plan p = {.run = run};
    char *looked = NULL;

    TRY(cairn_run_chain(run, &p.link, &p.nlinks, err));
    p.job = calloc((size_t)p.nlinks + 1, sizeof *p.job);
    if (!p.job || (!done && !(looked = malloc((size_t)p.nlinks + 1))))
        TRY(CAIRN_NOMEM(err));
    if (!done)
        cairn_links_done(run, p.link, p.nlinks, looked);
    done = done ? done : looked;
    if (cairn_run_resident(run)) {
        int gate = p.nlinks && p.link[0].stage == CAIRN_STAGE_CHECK;

        jobs_cut(&p, done, gate);
        jobs_measure(&p);
        if (p.nlinks > gate)
            job_resident(&p, done, gate);
    } else {
        jobs_cut(&p, done, p.nlinks);
        jobs_measure(&p);
    }
    TRY(parents_find(&p, err));
    *out = p;
    p = (struct cairn_plan){0};
out:
    free(looked);
    cairn_plan_free(&p);
    return st;
}

void cairn_plan_free(struct cairn_plan *p)
{
    free(p->link);
    free(p->job);
    memset(p, 0, sizeof *p);
}

const struct cairn_job *cairn_plan_find(const struct cairn_plan *p, int64_t step, const char *group)
{
    for (int k = 0; k < p->n; k++)
        if (p->job[k].step == step && !strcmp(p->job[k].group, group))
            return &p->job[k];
    return NULL;
}
