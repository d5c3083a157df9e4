/* trail.c - queue and ledger in words (trail.h). */
#include "slurm/trail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "slurm/ledger.h"
#include "slurm/queue.h"

struct cairn_trail {
    const struct cairn_run *run; /* borrowed */
    const char *done;            /* links of the plan that are committed or passed by; borrowed */
    struct cairn_plan plan;
    struct cairn_queue queue;
    json_t *events;
    int answers; /* Slurm does */
    char note[400];
};

/* Slurm's reasons in words; next: a command, in which %s is the job. */
static const struct {
    const char *reason, *words, *next;
} reasons[] = {
    {"Priority", "others are before it", NULL},
    {"Resources", "waits for free nodes", NULL},
    {"BeginTime", "was requeued; Slurm lets it start again after a pause", NULL},
    {"Dependency", "waits for the jobs before it", NULL},
    {"DependencyNeverSatisfied", "waits for a job that will never end well", "cairn submit DIR"},
    {"JobHeldUser", "held by you", "scontrol release %s"},
    {"JobHeldAdmin", "held by an administrator, or after too many failed starts",
     "scontrol release %s (if you may), or ask who runs the cluster"},
    {"launch", "its launch failed, so Slurm holds it", "cairn submit DIR"},
    {"PartitionDown", "its partition is down", "sinfo -s; another one: cairn stop DIR, then cairn submit DIR slurm.partition=..."},
    {"PartitionInactive", "its partition is inactive", "sinfo -s"},
    {"PartitionNodeLimit", "asks for more nodes than its partition gives",
     "fix slurm.*.nodes: cairn stop DIR, then cairn submit DIR slurm.train.nodes=..."},
    {"PartitionTimeLimit", "asks for more time than its partition gives", "cairn stop DIR, then cairn submit DIR slurm.time=..."},
    {"ReqNodeNotAvail", "a node that it needs is not available", "sinfo -R"},
    {"Reservation", "waits for a reservation", NULL},
    {"Licenses", "waits for a licence", NULL},
};

enum cairn_status cairn_trail_open(struct cairn_trail **out, const struct cairn_run *run, const char *done, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_trail *t = calloc(1, sizeof *t);
    struct cairn_error slurm = {0};
    char prefix[80];

    if (!t)
        return CAIRN_NOMEM(err);
    t->run = run;
    t->done = done;
    TRY(cairn_ledger_read(run, &t->events, err));
    cairn_job_prefix(run, prefix, sizeof prefix);
    if (cairn_trail_used(t)) { /* else nobody is asked: most machines have no Slurm */
        TRY(cairn_plan_make(&t->plan, run, done, err));
        t->answers = cairn_queue_read(&t->queue, prefix, 0, &slurm) == CAIRN_OK;
        if (!t->answers)
            snprintf(t->note, sizeof t->note, "%.390s", slurm.text);
    }
    *out = t;
    t = NULL;
out:
    cairn_trail_close(t);
    return st;
}

void cairn_trail_close(struct cairn_trail *t)
{
    if (!t)
        return;
    cairn_plan_free(&t->plan);
    cairn_queue_free(&t->queue);
    json_decref(t->events);
    free(t);
}

const char *cairn_trail_note(const struct cairn_trail *t)
{
    return t->note;
}

int cairn_trail_used(const struct cairn_trail *t)
{
    return json_array_size(t->events) > 0;
}

static void next_put(const struct cairn_trail *t, struct cairn_trail_row *row, const char *next)
{
    const char *p = next;
    size_t n = 0, size = sizeof row->next;

    while (*p && n + 1 < size) {
        if (cairn_starts_with(p, "DIR")) {
            n += (size_t)snprintf(row->next + n, size - n, "%s", t->run->dir);
            p += 3;
        } else if (cairn_starts_with(p, "%s")) {
            n += (size_t)snprintf(row->next + n, size - n, "%s", row->job);
            p += 2;
        } else {
            row->next[n++] = *p++;
            row->next[n] = 0;
        }
    }
}

/* Before it in the same job, and not done either. */
static const struct cairn_link *ahead(const struct cairn_trail *t, const struct cairn_job *j, const struct cairn_link *l)
{
    for (int i = 0; i < j->links; i++) {
        if (j->link[i].stage == l->stage && (j->link[i].eval ? l->eval && !strcmp(j->link[i].eval, l->eval) : !l->eval))
            return NULL;
        if (!t->done[&j->link[i] - t->plan.link])
            return &j->link[i];
    }
    return NULL;
}

static void queued_row(const struct cairn_trail *t, const struct cairn_job *j, const struct cairn_link *l,
                       struct cairn_trail_row *row)
{
    int n = 0, running = 0, leaving = 0;
    const struct cairn_queued *q = cairn_queue_find(&t->queue, j->name, 0), *held = NULL;
    const struct cairn_link *first = ahead(t, j, l);
    struct cairn_job_state s = {0};

    for (int i = 0; i < t->queue.n; i++) {
        const struct cairn_queued *one = &t->queue.job[i];

        if (strcmp(one->name, j->name))
            continue;
        n++;
        running += !strcmp(one->state, "RUNNING");
        leaving += !strcmp(one->state, "COMPLETING");
        if (!strcmp(one->state, "PENDING"))
            held = one;
    }
    snprintf(row->job, sizeof row->job, "%s", j->tasks > 1 ? "" : q->id);
    if (j->tasks > 1)
        snprintf(row->job, sizeof row->job, "%lld", (long long)q->array);
    if (running || leaving) {
        row->state = first ? "waiting" : "running";
        if (first)
            snprintf(row->reason, sizeof row->reason, "after %s in the same job", cairn_stage_name(first->stage));
        else if (!running)
            snprintf(row->reason, sizeof row->reason, "is being taken down");
        else if (j->tasks > 1)
            snprintf(row->reason, sizeof row->reason, "%d of %lld tasks at work, %d queued", running, (long long)j->tasks,
                     n - running - leaving);
        else if (cairn_job_state(&s, q->id, 0, NULL) == CAIRN_OK && s.restarts)
            snprintf(row->reason, sizeof row->reason, "on %s, requeued %lld times so far", q->nodes, (long long)s.restarts);
        else
            snprintf(row->reason, sizeof row->reason, "on %s", q->nodes);
        return;
    }
    row->state = "queued";
    q = held ? held : q;
    snprintf(row->reason, sizeof row->reason, "%s", strcmp(q->reason, "None") ? q->reason : "Slurm has not looked at it yet");
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (!strcmp(q->reason, reasons[i].reason) ||
            (!strcmp(reasons[i].reason, "launch") && cairn_starts_with(q->reason, "launch"))) {
            snprintf(row->reason, sizeof row->reason, "%s (%s)", reasons[i].words, q->reason);
            if (reasons[i].next)
                next_put(t, row, reasons[i].next);
        }
}

/* No job of its name is queued: what became of the last one. */
static void ended_row(const struct cairn_trail *t, const struct cairn_job *j, struct cairn_trail_row *row)
{
    const char *was = cairn_ledger_job(t->events, j->step, j->group);
    struct cairn_job_state s = {0};
    struct cairn_failures f;

    cairn_ledger_failures(&f, t->events, j->step, j->group);
    if (!was)
        return; /* not come into the window yet */
    if (f.code) {
        row->state = "failed";
        snprintf(row->reason, sizeof row->reason, "%s", f.text);
    } else {
        row->state = "stopped";
        if (t->answers && cairn_job_state(&s, was, 0, NULL) == CAIRN_OK && s.state[0])
            snprintf(row->reason, sizeof row->reason, "job %s ended as %s%s%s%s", was, s.state,
                     s.nodes[0] && strcmp(s.nodes, "(null)") ? " on " : "", s.nodes[0] && strcmp(s.nodes, "(null)") ? s.nodes : "",
                     !strcmp(s.state, "OUT_OF_MEMORY") ? ": give it more with slurm.memory" : "");
        else
            snprintf(row->reason, sizeof row->reason, "job %s is not in the queue any more", was);
    }
    next_put(t, row, "cairn submit DIR");
}

void cairn_trail_row(struct cairn_trail *t, const struct cairn_link *l, struct cairn_trail_row *row)
{
    const struct cairn_job *j = cairn_trail_used(t) ? cairn_plan_maker(&t->plan, l) : NULL;

    memset(row, 0, sizeof *row);
    if (!j)
        return;
    if (t->answers && cairn_queue_find(&t->queue, j->name, 0))
        queued_row(t, j, l, row);
    else if (t->answers)
        ended_row(t, j, row);
}
