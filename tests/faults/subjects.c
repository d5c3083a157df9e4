/* subjects.c - see subjects.h. */
#include "tests/faults/subjects.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct subject faults_subjects[] = {
    {.name = "init", .form = FORM_INIT, .kind = LAB_PLAIN},
    {.name = "warm-start", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 0, .kind = LAB_PLAIN},
    {.name = "rollout", .form = FORM_LINK, .stage = CAIRN_STAGE_ROLLOUT, .step = 2, .kind = LAB_PLAIN},
    {.name = "score", .form = FORM_LINK, .stage = CAIRN_STAGE_SCORE, .step = 2, .kind = LAB_PLAIN},
    {.name = "train", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 2, .kind = LAB_PLAIN},
    {.name = "sync", .form = FORM_LINK, .stage = CAIRN_STAGE_SYNC, .step = 2, .kind = LAB_PLAIN},
    {.name = "eval-rollout", .form = FORM_LINK, .stage = CAIRN_STAGE_ROLLOUT, .step = 2, .kind = LAB_WHOLE, .eval = "held"},
    {.name = "eval-score", .form = FORM_LINK, .stage = CAIRN_STAGE_SCORE, .step = 2, .kind = LAB_WHOLE, .eval = "held"},
    {.name = "run", .form = FORM_RUN, .kind = LAB_PLAIN},
    {.name = "verify", .form = FORM_VERIFY, .kind = LAB_PLAIN},
    {.name = "digest", .form = FORM_DIGEST, .kind = LAB_PLAIN},
    {.name = "gc", .form = FORM_GC, .kind = LAB_PLAIN},
    {.name = "amend", .form = FORM_AMEND, .kind = LAB_PLAIN},
    {.name = "repair", .form = FORM_REPAIR, .kind = LAB_PLAIN},
    {.name = "rescore", .form = FORM_RESCORE, .kind = LAB_PLAIN},
    {.name = "rescore-again", .form = FORM_RESCORE, .kind = LAB_PLAIN, .wreck = WRECK_DEAD, .under = "replay/"},
    {.name = "rescore-settle", .form = FORM_RESCORE, .kind = LAB_PLAIN, .wreck = WRECK_UNSETTLED, .under = "replay/"},
    {.name = "rollout-again", .form = FORM_LINK, .stage = CAIRN_STAGE_ROLLOUT, .step = 2, .kind = LAB_PLAIN, .wreck = WRECK_DEAD},
    {.name = "score-again", .form = FORM_LINK, .stage = CAIRN_STAGE_SCORE, .step = 2, .kind = LAB_PLAIN, .wreck = WRECK_DEAD},
    {.name = "train-again", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 2, .kind = LAB_PLAIN, .wreck = WRECK_DEAD},
    {.name = "sync-again", .form = FORM_LINK, .stage = CAIRN_STAGE_SYNC, .step = 2, .kind = LAB_PLAIN, .wreck = WRECK_DEAD},
    {.name = "rollout-settle",
     .form = FORM_LINK,
     .stage = CAIRN_STAGE_ROLLOUT,
     .step = 2,
     .kind = LAB_PLAIN,
     .wreck = WRECK_UNSETTLED},
    {.name = "sync-settle", .form = FORM_LINK, .stage = CAIRN_STAGE_SYNC, .step = 2, .kind = LAB_PLAIN, .wreck = WRECK_UNSETTLED},
    {.name = "rollout-task", .form = FORM_LINK, .stage = CAIRN_STAGE_ROLLOUT, .step = 2, .kind = LAB_PLAIN, .wreck = WRECK_SHARE},
    {.name = "score-task", .form = FORM_LINK, .stage = CAIRN_STAGE_SCORE, .step = 2, .kind = LAB_PLAIN, .wreck = WRECK_SHARE},
    {.name = "train-beside", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 1, .kind = LAB_UPDATES, .without = "/train/u"},
    {.name = "train-saves", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 1, .kind = LAB_UPDATES, .under = "/train/u"},
    {.name = "train-resumed",
     .form = FORM_LINK,
     .stage = CAIRN_STAGE_TRAIN,
     .step = 1,
     .kind = LAB_UPDATES,
     .wreck = WRECK_UNSETTLED,
     .under = "/train/u"},
    {.name = "rollout-carry", .form = FORM_LINK, .stage = CAIRN_STAGE_ROLLOUT, .step = 2, .kind = LAB_CARRY},
    {.name = "rollout-carry-again",
     .form = FORM_LINK,
     .stage = CAIRN_STAGE_ROLLOUT,
     .step = 2,
     .kind = LAB_CARRY,
     .wreck = WRECK_DEAD},
    {.name = "train-carry", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 2, .kind = LAB_CARRY},
};
const int faults_subject_count = (int)(sizeof faults_subjects / sizeof *faults_subjects);

struct subject faults_rank_subjects[] = {
    {.name = "rollout-rank-0", .form = FORM_LINK, .stage = CAIRN_STAGE_ROLLOUT, .step = 1, .kind = LAB_RANKS_2, .rank = 0},
    {.name = "rollout-rank-1", .form = FORM_LINK, .stage = CAIRN_STAGE_ROLLOUT, .step = 1, .kind = LAB_RANKS_2, .rank = 1},
    {.name = "train-rank-0", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 1, .kind = LAB_RANKS_2, .rank = 0},
    {.name = "train-rank-1", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 1, .kind = LAB_RANKS_2, .rank = 1},
    {.name = "train-resumed-rank-0",
     .form = FORM_LINK,
     .stage = CAIRN_STAGE_TRAIN,
     .step = 1,
     .kind = LAB_RANKS_2,
     .wreck = WRECK_UNSETTLED,
     .under = "/train/u"},
};
const int faults_rank_subject_count = (int)(sizeof faults_rank_subjects / sizeof *faults_rank_subjects);

/* ---- what is started ------------------------------------------------------------------------------------------------------- */

void subject_argv(const struct subject *s, const char *dir, struct lab_exec *x, char scratch[2][600])
{
    static const char *const verbs[] = {"init", NULL, "run", "verify", "digest", "gc", "amend", "verify", "replay"};
    int n = 0;

    if (s->form == FORM_LINK) {
        lab_argv(s->lab, s->link, dir, x, scratch);
        while (x->argv[n])
            n++;
        if (s->wreck == WRECK_SHARE) {
            x->argv[n++] = "--shard";
            x->argv[n++] = "0/2";
            x->argv[n] = NULL;
        }
        return;
    }
    if (s->form == FORM_INIT || s->form == FORM_RUN) {
        lab_argv_run(s->lab, verbs[s->form], dir, x, scratch);
        return;
    }
    snprintf(scratch[0], sizeof scratch[0], "%s/cairn", s->lab->bin);
    x->argv[n++] = scratch[0];
    x->argv[n++] = verbs[s->form];
    if (s->form == FORM_VERIFY)
        x->argv[n++] = "--deep";
    if (s->form == FORM_REPAIR)
        x->argv[n++] = "--repair";
    x->argv[n++] = dir;
    if (s->form == FORM_AMEND) { /* a step that the run does not reach: its artefacts stay the same */
        x->argv[n++] = "train.learning_rate=0.25";
        x->argv[n++] = "--from-step";
        x->argv[n++] = "3";
    }
    if (s->form == FORM_RESCORE) {
        x->argv[n++] = "--score";
        x->argv[n++] = s->lab->recipe;
        x->argv[n++] = "--name";
        x->argv[n++] = "other";
        x->argv[n++] = "score.reward.wrong=-1.0";
    }
    x->argv[n] = NULL;
    x->program = "cairn";
}

/* What the shim is told of which calls count. */
void subject_plan(const struct subject *s, char *out, size_t n)
{
    snprintf(out, n, "%s%s%s%s%s", s->under ? " under=" : "", s->under ? s->under : "", s->without ? " without=" : "",
             s->without ? s->without : "", s->lab->ranks > 1 ? s->rank ? " rank=1" : " rank=0" : "");
}

int subject_reads_only(const struct subject *s)
{
    return s->form == FORM_VERIFY || s->form == FORM_DIGEST;
}

/* ---- preparation ---------------------------------------------------------------------------------------------------------- */

/* Runs the subject traced in a fresh copy; fills calls and op. stop > 0: killed there. Returns the directory (malloc'ed), which
 * stays. */
static char *traced(struct subject *s, long stop, const char *as, long *publish)
{
    char *box = lab_text("%s/%s-%s", s->lab->work, as, s->name), *dir = lab_text("%s/run", box),
         *report = lab_text("%s/report", box);
    char plan[300], which[200], scratch[2][600], *line = NULL;
    struct lab_exec x = {.box = box, .root = dir, .plan = plan};
    struct lab_end e;
    size_t cap = 0;
    FILE *f;

    subject_plan(s, which, sizeof which);
    snprintf(plan, sizeof plan, "trace=1 n=%ld kind=kill ops=%u%s", stop, FAULT_ALL, which);
    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    if (s->state)
        lab_copy(s->state, dir);
    subject_argv(s, dir, &x, scratch);
    lab_run(s->lab, &x, &e);
    if ((stop && s->lab->ranks > 1 ? e.code <= 0 : e.code != (stop ? -9 : 0)) || e.outside)
        lab_die("%s without a fault ended with %d: %s %s", s->name, e.code, e.last, e.where);
    free(s->op);
    free(s->thread);
    s->calls = s->threads = 0;
    s->op = s->thread = NULL;
    if (!(f = fopen(report, "re")))
        lab_die("%s: %s", report, strerror(errno));
    while (getline(&line, &cap, f) > 0) {
        char op[16], cls[16];
        long k, thread;

        if (sscanf(line, "call %ld %15s %15s %*d %ld", &k, op, cls, &thread) != 4)
            continue;
        if (k > s->calls) { /* two threads may tell out of order */
            if (!(s->op = realloc(s->op, (size_t)k + 1)) || !(s->thread = realloc(s->thread, (size_t)k + 1)))
                lab_die("out of memory");
            s->calls = k;
        }
        s->thread[k] = (unsigned char)thread;
        s->threads = thread >= s->threads ? (int)thread + 1 : s->threads;
        for (int i = 0; i < OPS; i++)
            if (!strcmp(op, fault_op_name[i]))
                s->op[k] = (unsigned char)i;
        if (publish && !*publish && !strcmp(op, "link") && !strcmp(cls, "manifest"))
            *publish = k;
    }
    fclose(f);
    free(line);
    free(box);
    free(report);
    return dir;
}

/* The state that reads_only programs and gc are given: finished, with the lock file that lab_finished expects; for gc with
 * generations that are to go: what retention keeps was widened before they came, and is narrow again. */
static char *finished_state(struct subject *s)
{
    char *box = lab_text("%s/state-%s", s->lab->work, s->name), *dir = lab_text("%s/run", box), scratch[2][600];
    struct lab_exec x = {.box = box};
    struct lab_end e;

    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    if (s->form != FORM_GC)
        lab_copy(s->lab->before[s->lab->nlinks], dir);
    for (int narrow = s->form != FORM_GC; narrow < 2; narrow++) {
        int n = 0;

        lab_argv_run(s->lab, narrow && s->form == FORM_GC ? "init" : "run", dir, &x, scratch);
        while (x.argv[n])
            n++;
        if (!narrow) {
            x.argv[n++] = "checkpoint.keep=9";
            x.argv[n++] = "checkpoint.keep_policies=all";
            x.argv[n] = NULL;
        }
        lab_run(s->lab, &x, &e);
        if (e.code)
            lab_die("%s: preparing ended with %d: %s", s->name, e.code, e.last);
    }
    free(box);
    return dir;
}

/* What `verify --repair` is for: a byte in the middle of the newest trainer state is another one. */
static void damage(const char *dir)
{
    char *path = lab_text("%s/step/000002/train/a1/master-00000.h5", dir);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat sb;
    char byte;

    if (fd < 0 || fstat(fd, &sb) || pread(fd, &byte, 1, sb.st_size / 2) != 1)
        lab_die("%s: %s", path, strerror(errno));
    byte ^= 1;
    if (pwrite(fd, &byte, 1, sb.st_size / 2) != 1 || close(fd))
        lab_die("%s: %s", path, strerror(errno));
    free(path);
}

/* What repair put aside stays for people to look at; how often it was begun is seen there. */
static void quarantine_drop(const char *dir)
{
    char *path = lab_text("%s/quarantine", dir);

    if (!access(path, F_OK))
        lab_remove(path);
    free(path);
}

/* What it does to a finished run, `cairn run` does not do; called again, it goes on. */
static int acts_on_finished(const struct subject *s)
{
    return s->form == FORM_AMEND || s->form == FORM_REPAIR || s->form == FORM_RESCORE;
}

int subject_again(const struct subject *s, const char *box, const char *dir, char *why)
{
    struct lab_exec x = {.box = box};
    char scratch[2][600];
    struct lab_end e;

    if (!acts_on_finished(s))
        return 1;
    subject_argv(s, dir, &x, scratch);
    lab_run(s->lab, &x, &e);
    quarantine_drop(dir);
    if (e.code)
        snprintf(why, WHY_BYTES, "the same call again ended with %d: %.500s", e.code, e.last);
    return !e.code;
}

/* 1: have, sorted lines, is want with lines more that all begin with `prefix`, at least one of them. */
static int only_more(const char *want, const char *have, const char *prefix)
{
    int more = 0;

    while (*have) {
        size_t n = strcspn(have, "\n") + 1;

        if (!strncmp(have, want, n))
            want += n;
        else if (strncmp(have, prefix, strlen(prefix)))
            return 0;
        else
            more++;
        have += n;
    }
    return !*want && more;
}

/* How the run looks when amend, repair or rescore has done its work and it has gone on: the same digests, perhaps other files; of rescore
 * there are the scores that it was called for beside them. */
static const struct lab *lab_after(const struct subject *s)
{
    struct lab *own = malloc(sizeof *own);
    char *box = lab_text("%s/after-%s", s->lab->work, s->name), *dir = lab_text("%s/run", box), why[WHY_BYTES] = "",
         scratch[2][600];
    struct lab_exec x = {.box = box};
    struct lab_end e;

    if (!own || mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    lab_copy(s->state, dir);
    if (!subject_again(s, box, dir, why))
        lab_die("%s: %s", s->name, why);
    lab_argv_run(s->lab, "run", dir, &x, scratch);
    lab_run(s->lab, &x, &e);
    if (e.code)
        lab_die("%s: going on ended with %d: %s", s->name, e.code, e.last);
    *own = *s->lab;
    own->listing = lab_listing(dir, 0);
    if (s->form == FORM_RESCORE) {
        own->digest = lab_digest(dir, why);
        if (!own->digest || !only_more(s->lab->digest, own->digest, "replay/other/"))
            lab_die("%s: digest: %s%s", s->name, why, own->digest ? own->digest : "");
    }
    if (!lab_finished(own, dir, 0, why))
        lab_die("%s: %s", s->name, why);
    lab_remove(box);
    free(box);
    free(dir);
    return own;
}

/* The other task's half. */
static char *share_state(struct subject *s)
{
    char *box = lab_text("%s/share-%s", s->lab->work, s->name), *dir = lab_text("%s/run", box), scratch[2][600];
    struct lab_exec x = {.box = box};
    struct lab_end e;
    int n = 0;

    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    lab_copy(s->state, dir);
    lab_argv(s->lab, s->link, dir, &x, scratch);
    while (x.argv[n])
        n++;
    x.argv[n++] = "--shard";
    x.argv[n++] = "1/2";
    x.argv[n] = NULL;
    lab_run(s->lab, &x, &e);
    if (e.code || lab_committed(s->lab, s->link, dir))
        lab_die("%s: the other task ended with %d: %s", s->name, e.code, e.last);
    free(box);
    return dir;
}

/* Of several threads the number of calls depends on which is ahead: a save beside the training may be passed over. The least of three traces names
 * those that come each time. */
static void traced_least(struct subject *s)
{
    static const char *const as[] = {"traced", "traced-2", "traced-3"};
    struct subject least = {0};

    for (int i = 0; i < 3 && (!i || least.threads > 1); i++) {
        free(traced(s, 0, as[i], NULL));
        if (i && s->calls >= least.calls)
            continue;
        free(least.op);
        free(least.thread);
        least = *s;
        s->op = s->thread = NULL;
    }
    free(s->op);
    free(s->thread);
    s->op = least.op;
    s->thread = least.thread;
    s->calls = least.calls;
    s->threads = least.threads;
}

void subject_prepare(struct subject *s)
{
    if (s->lab)
        return;
    s->lab = lab_get(s->kind);
    s->link = s->form == FORM_LINK ? lab_link(s->lab, s->stage, s->step, s->eval) : s->lab->nlinks;
    s->state = s->form == FORM_INIT ? NULL : s->lab->before[s->form == FORM_RUN ? s->link - 2 : s->link];
    if (subject_reads_only(s) || s->form == FORM_GC)
        s->state = finished_state(s);
    if (acts_on_finished(s)) {
        s->state = finished_state(s);
        if (s->form == FORM_REPAIR)
            damage(s->state);
        s->lab = lab_after(s);
    }
    if (s->wreck == WRECK_SHARE) {
        s->state = share_state(s);
    } else if (s->wreck) {
        long publish = 0;

        free(traced(s, 0, "whole", &publish));
        if (!publish)
            lab_die("%s publishes nothing", s->name);
        s->state = traced(s, publish + (s->wreck == WRECK_UNSETTLED), "wreck", NULL);
    }
    traced_least(s);
}

const char *faults_state(const char *name, const struct lab **lab)
{
    for (int i = 0; i < faults_subject_count; i++)
        if (!strcmp(faults_subjects[i].name, name)) {
            subject_prepare(&faults_subjects[i]);
            *lab = faults_subjects[i].lab;
            return faults_subjects[i].state;
        }
    lab_die("there is no subject %s", name);
}
