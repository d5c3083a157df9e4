/* script.c - writes job scripts (script.h). */
#include "slurm/script.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/build.h"
#include "base/file.h"

/* What sbatch takes from a job's own section, in this order. */
static const struct {
    const char *key, *option;
} options[] = {
    {"partition", "partition"},
    {"account", "account"},
    {"qos", "qos"},
    {"constraint", "constraint"},
    {"gres", "gres"},
    {"time", "time"},
    {"memory", "mem"},
    {"nodes", "nodes"},
    {"tasks_per_node", "ntasks-per-node"},
    {"cpus_per_task", "cpus-per-task"},
};

char *cairn_script_log(const struct cairn_run *run, const struct cairn_job *job)
{
    return cairn_format("%s/log/%06lld.%s%s.out", run->dir, (long long)job->step, job->group, job->tasks > 1 ? ".%a" : "");
}

/* Seconds of a --time value: "minutes", "m:s", "h:m:s", "d-h", "d-h:m", "d-h:m:s"; 0: none of these (UNLIMITED). */
static double seconds_of(const char *text)
{
    const char *dash = strchr(text, '-');
    double days = 0, part[3] = {0};
    int n = 0;

    if (dash) {
        days = atof(text);
        text = dash + 1;
    }
    if (*text < '0' || *text > '9')
        return 0;
    for (const char *p = text; p && n < 3; n++) {
        part[n] = atof(p);
        p = strchr(p, ':');
        p = p ? p + 1 : NULL;
    }
    if (dash)
        return days * 86400 + part[0] * 3600 + part[1] * 60 + part[2];
    return n == 1 ? part[0] * 60 : n == 2 ? part[0] * 60 + part[1] : part[0] * 3600 + part[1] * 60 + part[2];
}

/* Slurm may send the signal up to a minute early: a short job would be told to stop before it has begun. There the job itself tells
 * its stages, by the end time that Slurm names. */
static int signal_fits(const struct cairn_run *run, const struct cairn_job *job, double lead)
{
    const json_t *time = cairn_job_value(run, job, "time");
    double limit = time ? seconds_of(json_string_value(time)) : 0;

    return lead > 0 && (limit == 0 || lead + 60 <= limit / 2);
}

/* "--option=value", in quotes where sbatch would cut it apart. */
static enum cairn_status option_put(struct cairn_str *s, const char *option, const char *value, struct cairn_error *err)
{
    if (strpbrk(value, "\n\r\""))
        return cairn_fail(err, CAIRN_ERECIPE, "slurm: --%s=%.100s: no quotes and line breaks, please", option, value);
    if (strpbrk(value, " \t'\\#"))
        cairn_str_printf(s, "#SBATCH --%s=\"%s\"\n", option, value);
    else
        cairn_str_printf(s, "#SBATCH --%s=%s\n", option, value);
    return CAIRN_OK;
}

/* A file name in which Slurm must not see patterns. */
static char *percent_escape(const char *path, int pattern)
{
    struct cairn_str s = {0};

    for (const char *p = path; *p; p++) {
        cairn_str_putc(&s, *p);
        if (*p == '%' && !(pattern && !strcmp(p, "%a.out")))
            cairn_str_putc(&s, '%');
    }
    return cairn_str_take(&s);
}

static enum cairn_status value_put(struct cairn_str *s, const char *option, const json_t *v, struct cairn_error *err)
{
    char number[32];

    if (json_is_string(v))
        return option_put(s, option, json_string_value(v), err);
    snprintf(number, sizeof number, "%lld", (long long)json_integer_value(v));
    return option_put(s, option, number, err);
}

static enum cairn_status lines_put(struct cairn_str *s, const json_t *list, const char *front, struct cairn_error *err)
{
    const json_t *v;
    size_t i;

    json_array_foreach(list, i, v)
    {
        if (strpbrk(json_string_value(v), "\n\r"))
            return cairn_fail(err, CAIRN_ERECIPE, "slurm: \"%.100s\": one line each, please", json_string_value(v));
        cairn_str_printf(s, "%s%s\n", front, json_string_value(v));
    }
    return CAIRN_OK;
}

/* The shell's word for s. */
static void word_put(struct cairn_str *out, const char *s)
{
    cairn_str_putc(out, '\'');
    for (; *s; s++) {
        if (*s == '\'')
            cairn_str_puts(out, "'\\''");
        else
            cairn_str_putc(out, *s);
    }
    cairn_str_putc(out, '\'');
}

/* Nodes and tasks that the widest stage needs must be what is asked for. */
static enum cairn_status shape_put(const struct cairn_run *run, const struct cairn_job *job, struct cairn_str *s,
                                   struct cairn_error *err)
{
    const json_t *nodes = cairn_job_value(run, job, "nodes"), *per = cairn_job_value(run, job, "tasks_per_node");
    int64_t n = nodes ? json_integer_value(nodes) : 0, p = per ? json_integer_value(per) : 0;
    char number[32];

    if (n && p && n * p < job->ranks)
        return cairn_fail(err, CAIRN_ERECIPE, "slurm: %s needs %lld ranks, but %lld nodes with %lld tasks each are asked for",
                          job->group, (long long)job->ranks, (long long)n, (long long)p);
    if (!n && p)
        n = (job->ranks + p - 1) / p;
    if (!nodes && n) {
        snprintf(number, sizeof number, "%lld", (long long)n);
        option_put(s, "nodes", number, NULL);
    }
    snprintf(number, sizeof number, "%lld", (long long)(n > job->ranks ? n : job->ranks));
    return option_put(s, "ntasks", number, err);
}

static enum cairn_status exclude_put(const struct cairn_run *run, const char *exclude, struct cairn_str *s, struct cairn_error *err)
{
    const char *own = cairn_recipe_has(run->recipe, "slurm.exclude") ? cairn_recipe_str(run->recipe, "slurm.exclude") : "";
    char *both = cairn_format("%s%s%s", own, own[0] && exclude && exclude[0] ? "," : "", exclude ? exclude : "");
    enum cairn_status st = both ? CAIRN_OK : CAIRN_NOMEM(err);

    if (both && both[0])
        st = option_put(s, "exclude", both, err);
    free(both);
    return st;
}

enum cairn_status cairn_script_write(const struct cairn_run *run, const struct cairn_job *job, const char *exclude,
                                     struct cairn_str *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const char *install = cairn_install_dir();
    char *bin = install ? cairn_path_join(install, "bin/cairn") : NULL, *log = cairn_script_log(run, job), *pattern = NULL,
         number[64];
    double lead = cairn_recipe_f64(run->recipe, "slurm.signal_lead");

    if (!bin || !log || !(pattern = percent_escape(log, job->tasks > 1)))
        TRY(CAIRN_NOMEM(err));
    cairn_str_printf(out, "#!/bin/bash\n# cairn: step %lld, %s of %s\n", (long long)job->step, job->group, run->dir);
    TRY(option_put(out, "job-name", job->name, err));
    TRY(option_put(out, "chdir", run->dir, err));
    TRY(option_put(out, "output", pattern, err));
    cairn_str_puts(out, "#SBATCH --open-mode=append\n#SBATCH --requeue\n");
    if (signal_fits(run, job, lead)) { /* the steps, not the shell */
        snprintf(number, sizeof number, "USR1@%.0f", lead);
        TRY(option_put(out, "signal", number, err));
    }
    if (job->tasks > 1) {
        snprintf(number, sizeof number, "0-%lld", (long long)(job->tasks - 1));
        TRY(option_put(out, "array", number, err));
    }
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const json_t *v = cairn_job_value(run, job, options[i].key);

        if (v)
            TRY(value_put(out, options[i].option, v, err));
    }
    TRY(shape_put(run, job, out, err));
    TRY(exclude_put(run, exclude, out, err));
    TRY(lines_put(out, cairn_recipe_list(run->recipe, "slurm.extra"), "#SBATCH ", err));
    for (int i = 0; i < job->links; i++) {
        char path[64];

        if (job->which == CAIRN_JOB_EVAL && i) /* as a rollout */
            continue;
        snprintf(path, sizeof path, "slurm.%s.extra", cairn_stage_name(job->which == CAIRN_JOB_CHECK ? CAIRN_STAGE_ROLLOUT : job->link[i].stage));
        TRY(lines_put(out, cairn_recipe_list(run->recipe, path), "#SBATCH ", err));
    }
    cairn_str_putc(out, '\n');
    TRY(lines_put(out, cairn_recipe_list(run->recipe, "slurm.setup"), "", err));
    cairn_str_puts(out, "exec ");
    word_put(out, bin);
    cairn_str_puts(out, " job ");
    word_put(out, run->dir);
    cairn_str_printf(out, " --step %lld --group %s\n", (long long)job->step, job->group);
    if (out->oom)
        TRY(CAIRN_NOMEM(err));
out:
    free(bin);
    free(log);
    free(pattern);
    return st;
}
