/* queue.c - asks squeue, scontrol and sacct (queue.h). */
#include "slurm/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "slurm/command.h"

#define ASK_S   20.0 /* longest wait for one answer */
#define LOOK_S  8.0  /* of somebody who only looks */
#define PAUSE_S 0.5

/* Runs argv until it ends with 0, for patience_s seconds. The program missing: CAIRN_EDEVICE; other failures: CAIRN_EAGAIN. `gone`
 * (may be NULL): a word in its complaint that makes it an answer: *was_gone = 1. */
static enum cairn_status ask(struct cairn_command *c, const char *const *argv, double patience_s, const char *gone, int *was_gone,
                             struct cairn_error *err)
{
    double until = cairn_now_s() + patience_s;
    enum cairn_status st;

    if (was_gone)
        *was_gone = 0;
    for (;;) {
        if ((st = cairn_command_run(c, argv, NULL, patience_s > 0 ? ASK_S : LOOK_S, err)) != CAIRN_OK)
            return st;
        if (c->code == 0)
            return CAIRN_OK;
        if (gone && strstr(cairn_str_z(&c->err), gone)) {
            *was_gone = 1;
            return CAIRN_OK;
        }
        if (c->code == 127)
            st = cairn_fail(err, CAIRN_EDEVICE, "%s is not in the PATH: no Slurm on this machine (or its module is not loaded)",
                            argv[0]);
        else if (cairn_now_s() >= until)
            st = cairn_fail(err, CAIRN_EAGAIN, "Slurm does not answer (%s: %s)", argv[0],
                            c->late ? "no answer in time" : cairn_command_says(c));
        cairn_command_free(c);
        if (st != CAIRN_OK)
            return st;
        cairn_sleep_s(PAUSE_S);
    }
}

/* The field up to the next '|' (or the end) into text; returns what follows. */
static char *field(char *p, char *text, size_t n)
{
    char *end = strchr(p, '|');

    snprintf(text, n, "%.*s", end ? (int)(end - p) : (int)strlen(p), p);
    return end ? end + 1 : p + strlen(p);
}

static int queued_parse(struct cairn_queued *q, char *line, const char *prefix)
{
    char job[32], array[32], task[64], restarts[32], *p = line;

    memset(q, 0, sizeof *q);
    p = field(p, job, sizeof job);
    p = field(p, array, sizeof array);
    p = field(p, task, sizeof task);
    p = field(p, q->state, sizeof q->state);
    p = field(p, restarts, sizeof restarts);
    p = field(p, q->nodes, sizeof q->nodes);
    p = field(p, q->reason, sizeof q->reason);
    p = field(p, q->dependency, sizeof q->dependency);
    snprintf(q->name, sizeof q->name, "%s", p);
    if (!cairn_starts_with(q->name, prefix) || !cairn_parse_i64(job, &q->job))
        return 0;
    if (!cairn_parse_i64(array, &q->array))
        q->array = q->job;
    if (!cairn_parse_i64(restarts, &q->restarts))
        q->restarts = 0;
    if (!strcmp(task, "N/A") || !task[0])
        snprintf(q->id, sizeof q->id, "%lld", (long long)q->job);
    else
        snprintf(q->id, sizeof q->id, strpbrk(task, ",-") ? "%lld_[%.40s]" : "%lld_%.40s", (long long)q->array, task);
    return 1;
}

enum cairn_status cairn_queue_read(struct cairn_queue *out, const char *prefix, double patience_s, struct cairn_error *err)
{
    /* job id | array id | task | state | restarts | nodes | reason | dependency | name. squeue has no one-letter field for restarts
     * (they come from scontrol where they matter), so that field stays empty. */
    char user[32];
    const char *argv[] = {"squeue", "--noheader", "--user", user, "--format=%A|%F|%K|%T||%N|%r|%E|%j", NULL};
    enum cairn_status st = CAIRN_OK;
    struct cairn_command c = {0};
    struct cairn_queue q = {0};
    int cap = 0;
    char *save = NULL;

    snprintf(user, sizeof user, "%ld", (long)getuid());
    TRY(ask(&c, argv, patience_s, NULL, NULL, err));
    for (char *line = c.out.len ? strtok_r(c.out.p, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        if (q.n == cap) {
            int more = cap ? 2 * cap : 64;
            struct cairn_queued *p = realloc(q.job, (size_t)more * sizeof *p);

            if (!p)
                TRY(CAIRN_NOMEM(err));
            q.job = p;
            cap = more;
        }
        q.n += queued_parse(&q.job[q.n], line, prefix);
    }
    *out = q;
    q.job = NULL;
out:
    free(q.job);
    cairn_command_free(&c);
    return st;
}

void cairn_queue_free(struct cairn_queue *q)
{
    free(q->job);
    memset(q, 0, sizeof *q);
}

const struct cairn_queued *cairn_queue_find(const struct cairn_queue *q, const char *name, int64_t but)
{
    for (int i = 0; i < q->n; i++)
        if (!strcmp(q->job[i].name, name) && !(but && (q->job[i].job == but || q->job[i].array == but)))
            return &q->job[i];
    return NULL;
}

/* --- one job --- */

/* " Key=value " of scontrol's one line. */
static int value(const char *line, const char *key, char *text, size_t n)
{
    size_t k = strlen(key);

    for (const char *p = line; (p = strstr(p, key)); p += k)
        if ((p == line || p[-1] == ' ' || p[-1] == '\n') && p[k] == '=') {
            p += k + 1;
            snprintf(text, n, "%.*s", (int)strcspn(p, " \n"), p);
            return 1;
        }
    text[0] = 0;
    return 0;
}

/* "2026-11-29T18:35:55", as Slurm prints local times. */
static int64_t when(const char *text)
{
    struct tm tm = {.tm_isdst = -1};

    return strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) ? (int64_t)mktime(&tm) : 0;
}

static void scontrol_parse(struct cairn_job_state *s, const char *line)
{
    char text[128];

    value(line, "JobState", s->state, sizeof s->state);
    value(line, "Reason", s->reason, sizeof s->reason);
    value(line, "NodeList", s->nodes, sizeof s->nodes);
    value(line, "Partition", s->partition, sizeof s->partition);
    if (value(line, "ExitCode", text, sizeof text))
        sscanf(text, "%d:%d", &s->exit_code, &s->exit_signal);
    if (value(line, "Restarts", text, sizeof text))
        cairn_parse_i64(text, &s->restarts);
    s->requeue = value(line, "Requeue", text, sizeof text) && !strcmp(text, "1");
    if (value(line, "EndTime", text, sizeof text))
        s->end_wall_s = when(text);
    if (value(line, "PreemptTime", text, sizeof text))
        s->preempt_wall_s = when(text);
}

/* What scontrol has forgotten. No accounting: nothing. */
static void sacct_parse(struct cairn_job_state *s, const char *id)
{
    const char *argv[] = {"sacct",  "--noheader", "--parsable2", "--allocations", "--format=State,ExitCode,NodeList,Partition",
                          "--jobs", id,           NULL};
    struct cairn_command c = {0};

    if (cairn_command_run(&c, argv, NULL, ASK_S, NULL) != CAIRN_OK)
        return;
    if (c.code == 0 && c.out.len) {
        char code[32], *line = c.out.p, *end = strchr(line, '\n');

        while (end && end[1]) { /* the last line is the last of its lives */
            line = end + 1;
            end = strchr(line, '\n');
        }
        line[strcspn(line, "\n")] = 0;
        line = field(line, s->state, sizeof s->state);
        s->state[strcspn(s->state, " +")] = 0; /* "CANCELLED by 1000" */
        line = field(line, code, sizeof code);
        sscanf(code, "%d:%d", &s->exit_code, &s->exit_signal);
        line = field(line, s->nodes, sizeof s->nodes);
        field(line, s->partition, sizeof s->partition);
    }
    cairn_command_free(&c);
}

enum cairn_status cairn_job_state(struct cairn_job_state *out, const char *id, double patience_s, struct cairn_error *err)
{
    const char *argv[] = {"scontrol", "show", "job", "--oneliner", id, NULL};
    struct cairn_command c = {0};
    enum cairn_status st = CAIRN_OK;
    int gone;

    memset(out, 0, sizeof *out);
    TRY(ask(&c, argv, patience_s, "Invalid job id", &gone, err));
    if (gone)
        sacct_parse(out, id);
    else
        scontrol_parse(out, cairn_str_z(&c.out));
out:
    cairn_command_free(&c);
    return st;
}

void cairn_grace_ask(struct cairn_grace *out, const char *partition)
{
    const char *config[] = {"scontrol", "show", "config", NULL};
    const char *part[] = {"scontrol", "show", "partition", "--oneliner", partition, NULL};
    struct cairn_command c = {0};
    char text[64];

    out->grace_s = out->kill_wait_s = -1;
    if (cairn_command_run(&c, config, NULL, ASK_S, NULL) == CAIRN_OK) {
        const char *p = c.code == 0 ? strstr(cairn_str_z(&c.out), "\nKillWait") : NULL;

        if (p && (p = strchr(p, '=')))
            out->kill_wait_s = atof(p + 1);
        cairn_command_free(&c);
    }
    if (partition && partition[0] && cairn_command_run(&c, part, NULL, ASK_S, NULL) == CAIRN_OK) {
        if (c.code == 0 && value(cairn_str_z(&c.out), "GraceTime", text, sizeof text))
            out->grace_s = atof(text);
        cairn_command_free(&c);
    }
}
