/* points.c - every file operation of every stage fails once, and the program is killed at every one (F1, F5-F9, F15, F50); the same in one
 * rank of several (F2, F29: only some of the points, an mpirun takes its time).
 *
 * For each subject (a program in a prepared state of the run) a traced run without a fault counts its calls; then for n = 1, 2, 3 ... and
 * each kind of fault that call n can have, a trial. The states include those that a dead attempt leaves: finished shards without
 * a manifest (adoption), and a manifest whose attempt could neither make it durable nor tidy up.
 *
 * What must hold: a killed program left nothing that hinders the next; an I/O error ends with 74, a full disk with 73, one sentence that names
 * the place; interrupted or short transfers end with 0; a failed write, fsync or close of what is about to be published
 * is never success; and after all of them the run goes on to the same bits (lab.h).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/faults/faults.h"

enum form { FORM_INIT, FORM_LINK, FORM_RUN, FORM_VERIFY, FORM_DIGEST, FORM_GC };
/* DEAD: killed before its manifest got its name. UNSETTLED: right behind it. SHARE: another array task has made its half. */
enum wreck { WRECK_NONE, WRECK_DEAD, WRECK_UNSETTLED, WRECK_SHARE };

#define RANKS_EVERY 12 /* of the points in a rank */

struct subject {
    const char *name;
    enum form form;
    enum wreck wreck;   /* what an attempt before has left */
    enum cairn_stage stage;
    int64_t step;
    const char *eval;
    enum lab_kind kind;
    const char *under, *without; /* only calls on paths that hold (do not hold) this: of one thread of two */
    int rank;                    /* with several ranks: the one that is meant */
    /* found out: */
    const struct lab *lab;
    char *state;        /* NULL: nothing is there yet */
    int link;
    long calls;
    unsigned char *op;  /* (calls + 1) of call n */
};

static struct subject subjects[] = {
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
    {.name = "rollout-again", .form = FORM_LINK, .stage = CAIRN_STAGE_ROLLOUT, .step = 2, .kind = LAB_PLAIN, .wreck = WRECK_DEAD},
    {.name = "score-again", .form = FORM_LINK, .stage = CAIRN_STAGE_SCORE, .step = 2, .kind = LAB_PLAIN, .wreck = WRECK_DEAD},
    {.name = "train-again", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 2, .kind = LAB_PLAIN, .wreck = WRECK_DEAD},
    {.name = "sync-again", .form = FORM_LINK, .stage = CAIRN_STAGE_SYNC, .step = 2, .kind = LAB_PLAIN, .wreck = WRECK_DEAD},
    {.name = "rollout-settle", .form = FORM_LINK, .stage = CAIRN_STAGE_ROLLOUT, .step = 2, .kind = LAB_PLAIN, .wreck = WRECK_UNSETTLED},
    {.name = "sync-settle", .form = FORM_LINK, .stage = CAIRN_STAGE_SYNC, .step = 2, .kind = LAB_PLAIN, .wreck = WRECK_UNSETTLED},
    {.name = "rollout-task", .form = FORM_LINK, .stage = CAIRN_STAGE_ROLLOUT, .step = 2, .kind = LAB_PLAIN, .wreck = WRECK_SHARE},
    {.name = "score-task", .form = FORM_LINK, .stage = CAIRN_STAGE_SCORE, .step = 2, .kind = LAB_PLAIN, .wreck = WRECK_SHARE},
    {.name = "train-beside", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 1, .kind = LAB_UPDATES, .without = "/train/u"},
    {.name = "train-saves", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 1, .kind = LAB_UPDATES, .under = "/train/u"},
    {.name = "train-resumed", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 1, .kind = LAB_UPDATES, .wreck = WRECK_UNSETTLED, .under = "/train/u"},
};
#define SUBJECTS ((int)(sizeof subjects / sizeof *subjects))

static struct subject of_ranks[] = {
    {.name = "rollout-rank-0", .form = FORM_LINK, .stage = CAIRN_STAGE_ROLLOUT, .step = 1, .kind = LAB_RANKS_2, .rank = 0},
    {.name = "rollout-rank-1", .form = FORM_LINK, .stage = CAIRN_STAGE_ROLLOUT, .step = 1, .kind = LAB_RANKS_2, .rank = 1},
    {.name = "train-rank-0", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 1, .kind = LAB_RANKS_2, .rank = 0},
    {.name = "train-rank-1", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 1, .kind = LAB_RANKS_2, .rank = 1},
    {.name = "train-resumed-rank-0", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 1, .kind = LAB_RANKS_2, .wreck = WRECK_UNSETTLED, .under = "/train/u"},
};
#define OF_RANKS ((int)(sizeof of_ranks / sizeof *of_ranks))

/* ---- kinds ------------------------------------------------------------------------------------------------------------ */

#define ALL ((1u << OP_ALLOC) - 1)
#define CHANGES (1u << OP_CREATE | 1u << OP_WRITE | 1u << OP_SYNC | 1u << OP_LINK | 1u << OP_RENAME | 1u << OP_MKDIR | 1u << OP_TRUNC)

static const struct sort {
    const char *name;
    enum fault_kind kind;
    unsigned ops;       /* it can happen to these */
    unsigned counted;   /* and these are counted: call n of them */
    int errnum, on;
    int code[3];        /* exit codes that are right (0 ends the list, 0 as the first one: success is) */
    int may_succeed;
} sorts[] = {
    {"kill", KIND_KILL, ALL, ALL, 0, 0, {-9}, 0},
    {"torn write", KIND_TORN, 1u << OP_WRITE, ALL, 0, 0, {-9}, 0},
    {"EIO", KIND_ERRNO, ALL, ALL, EIO, 0, {74}, 1},
    {"ENOSPC from here on", KIND_ERRNO, CHANGES, CHANGES, ENOSPC, 1, {73}, 1},
    {"EDQUOT at close", KIND_ERRNO, 1u << OP_CLOSE, ALL, EDQUOT, 0, {73}, 1},
    {"short", KIND_SHORT, 1u << OP_READ | 1u << OP_WRITE, ALL, 0, 0, {0}, 1},
    {"EINTR", KIND_AGAIN, 1u << OP_READ | 1u << OP_WRITE | 1u << OP_SYNC, ALL, 0, 0, {0}, 1},
    {"EAGAIN", KIND_ERRNO, 1u << OP_READ | 1u << OP_WRITE, ALL, EAGAIN, 0, {0}, 1},
    {"ESTALE", KIND_ERRNO, 1u << OP_OPEN | 1u << OP_READ | 1u << OP_STAT | 1u << OP_LIST, ALL, ESTALE, 0, {74}, 1},
    {"EMFILE", KIND_ERRNO, 1u << OP_OPEN | 1u << OP_CREATE, ALL, EMFILE, 0, {74}, 1},
    {"ENOMEM", KIND_ERRNO, 1u << OP_OPEN | 1u << OP_CREATE | 1u << OP_STAT | 1u << OP_MKDIR | 1u << OP_LINK, ALL, ENOMEM, 0, {73, 74}, 1},
    {"ENOLCK", KIND_ERRNO, 1u << OP_LOCK, ALL, ENOLCK, 0, {74}, 1},
    {"EBUSY", KIND_ERRNO, 1u << OP_UNLINK | 1u << OP_RENAME, ALL, EBUSY, 0, {74}, 1},
    {"EACCES", KIND_ERRNO, 1u << OP_CREATE | 1u << OP_MKDIR | 1u << OP_LINK, ALL, EACCES, 0, {74}, 1},
    {"EPERM", KIND_ERRNO, 1u << OP_LINK, ALL, EPERM, 0, {74}, 1}, /* a file system without links: the other way is taken */
};
#define SORTS ((int)(sizeof sorts / sizeof *sorts))

struct point {
    long at; /* its number among all of the subject's */
    int sort;
    long n;
};

struct campaign {
    const struct subject *subject;
    struct point *point;
    long n;
};

/* ---- one trial ---------------------------------------------------------------------------------------------------------- */

static void argv_of(const struct subject *s, const char *dir, struct lab_exec *x, char scratch[2][600])
{
    static const char *const verbs[] = {"init", NULL, "run", "verify", "digest", "gc"};
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
    x->argv[n++] = dir;
    x->argv[n] = NULL;
    x->program = "cairn";
}

/* What the shim is told of which calls count. */
static void plan_of(const struct subject *s, char *out, size_t n)
{
    snprintf(out, n, "%s%s%s%s%s", s->under ? " under=" : "", s->under ? s->under : "", s->without ? " without=" : "", s->without ? s->without : "",
             s->lab->ranks > 1 ? s->rank ? " rank=1" : " rank=0" : "");
}

static int reads_only(const struct subject *s)
{
    return s->form == FORM_VERIFY || s->form == FORM_DIGEST;
}

/* What is about to be published was not written, or not to the disk: that can never be success. */
static int must_fail(const struct sort *k, const struct lab_end *e)
{
    if (k->kind != KIND_ERRNO || k->errnum == EAGAIN || k->errnum == EPERM)
        return 0;
    if (strstr(e->where, "/train/u")) /* a save beside the training: told, and the step goes on */
        return 0;
    if (e->cls != CLASS_SHARD && e->cls != CLASS_ENTRY && e->cls != CLASS_MANIFEST)
        return 0;
    return e->op == OP_WRITE || e->op == OP_SYNC || e->op == OP_CREATE || e->op == OP_TRUNC;
}

static int ended_right(const struct subject *s, const struct sort *k, const struct lab_end *e, const char *box, char *why)
{
    int right = k->may_succeed && !e->code, ranks = s->lab->ranks > 1;
    int beside = strstr(e->where, "/train/u") && (e->cls == CLASS_SHARD || e->cls == CLASS_ENTRY || e->cls == CLASS_MANIFEST) &&
                 (e->op == OP_WRITE || e->op == OP_SYNC || e->op == OP_CREATE) && k->kind == KIND_ERRNO && k->errnum != EAGAIN;

    for (int i = 0; i < 3 && k->code[i]; i++)
        right |= e->code == k->code[i];
    if (ranks && k->code[0] == -9 && e->code > 0) /* mpirun ends the others and says so */
        right = 1;
    if (reads_only(s) && e->code == 65 && (k->code[0] == 74 || k->code[1] == 74)) /* verify names what it cannot read as bad */
        right = 1;
    if (e->late)
        snprintf(why, WHY_BYTES, "did not end in time (%s)", e->where);
    else if (e->orphans)
        snprintf(why, WHY_BYTES, "left processes behind (%s)", e->where);
    else if (e->outside)
        snprintf(why, WHY_BYTES, "changed something %s", e->where);
    else if (!right)
        snprintf(why, WHY_BYTES, "ended with %d (%.250s): %.350s", e->code, e->where, e->last);
    else if (!e->code && must_fail(k, e))
        snprintf(why, WHY_BYTES, "success in spite of a failed call: %s", e->where);
    else if (!e->code && beside && !strstr(e->last, "not saved"))
        snprintf(why, WHY_BYTES, "a failed save is not told: %.300s; \"%.300s\"", e->where, e->last);
    else if (!e->code && reads_only(s) && k->kind == KIND_ERRNO && k->errnum != EAGAIN && (e->op == OP_READ || e->op == OP_OPEN))
        snprintf(why, WHY_BYTES, "says all is well without having read: %s", e->where);
    else if (ranks && e->code > 0 && k->code[0] != -9 && (!e->lines || !strstr(e->last, box)))
        snprintf(why, WHY_BYTES, "the last of %d lines names no path: \"%.300s\" (%.200s)", e->lines, e->last, e->where);
    else if (!ranks && e->code > 0 && (e->lines != 1 + (s->form == FORM_VERIFY) /* its progress */ || (!strstr(e->last, box) && !strstr(e->last, "out of memory"))))
        snprintf(why, WHY_BYTES, "%d lines, the last names no path: \"%.300s\" (%.200s)", e->lines, e->last, e->where);
    else
        return 1;
    return 0;
}

static int trial(void *arg, long i, const char *box, char *why)
{
    struct campaign *c = arg;
    const struct point *p = &c->point[i];
    const struct subject *s = c->subject;
    const struct sort *k = &sorts[p->sort];
    char dir[600], plan[300], which[200], scratch[2][600];
    struct lab_exec x = {.box = box, .root = dir, .plan = plan};
    struct lab_end e;

    snprintf(dir, sizeof dir, "%s/run", box);
    plan_of(s, which, sizeof which);
    snprintf(plan, sizeof plan, "n=%ld ops=%u kind=%s errno=%d on=%d%s", p->n, k->counted, fault_kind_name[k->kind], k->errnum, k->on, which);
    if (s->state)
        lab_copy(s->state, dir);
    argv_of(s, dir, &x, scratch);
    lab_run(s->lab, &x, &e);
    if (!e.fired) {
        if (e.code && !e.late) {
            snprintf(why, WHY_BYTES, "no such call, but it ended with %d: %.400s", e.code, e.last);
            return 1;
        }
        return 2;
    }
    if (!ended_right(s, k, &e, box, why))
        return 1;
    if (!e.code && s->form == FORM_LINK && !lab_committed(s->lab, s->link, dir)) {
        snprintf(why, WHY_BYTES, "says done, and nothing is committed (%.300s)", e.where);
        return 1;
    }
    if (reads_only(s) ? !lab_finished(s->lab, dir, 0, why) : !lab_go_on(s->lab, box, dir, k->kind == KIND_TORN || k->kind == KIND_SHORT, why)) {
        size_t n = strlen(why);

        snprintf(why + n, WHY_BYTES - n, " (after %.200s)", e.where);
        return 1;
    }
    return !lab_box_clean(box, why);
}

static void name_of(void *arg, long i, char *out, size_t n)
{
    const struct campaign *c = arg;
    const struct point *p = &c->point[i];

    snprintf(out, n, "points --subject %s --point %ld: %s, call %ld", c->subject->name, p->at, sorts[p->sort].name, p->n);
}

/* ---- preparation ---------------------------------------------------------------------------------------------------------- */

/* Runs the subject traced in a fresh copy; fills calls and op. stop > 0: killed there. Returns the directory (malloc'ed), which stays. */
static char *traced(struct subject *s, long stop, const char *as, long *publish)
{
    char *box = lab_text("%s/%s-%s", s->lab->work, as, s->name), *dir = lab_text("%s/run", box), *report = lab_text("%s/report", box);
    char plan[300], which[200], scratch[2][600], *line = NULL;
    struct lab_exec x = {.box = box, .root = dir, .plan = plan};
    struct lab_end e;
    size_t cap = 0;
    FILE *f;

    plan_of(s, which, sizeof which);
    snprintf(plan, sizeof plan, "trace=1 n=%ld kind=kill ops=%u%s", stop, ALL, which);
    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    if (s->state)
        lab_copy(s->state, dir);
    argv_of(s, dir, &x, scratch);
    lab_run(s->lab, &x, &e);
    if ((stop && s->lab->ranks > 1 ? e.code <= 0 : e.code != (stop ? -9 : 0)) || e.outside)
        lab_die("%s without a fault ended with %d: %s %s", s->name, e.code, e.last, e.where);
    free(s->op);
    s->calls = 0;
    s->op = NULL;
    if (!(f = fopen(report, "re")))
        lab_die("%s: %s", report, strerror(errno));
    while (getline(&line, &cap, f) > 0) {
        char op[16], cls[16];
        long k;

        if (sscanf(line, "call %ld %15s %15s", &k, op, cls) != 3)
            continue;
        if (k > s->calls) { /* two threads may tell out of order */
            if (!(s->op = realloc(s->op, (size_t)k + 1)))
                lab_die("out of memory");
            s->calls = k;
        }
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

/* The state that reads_only programs and gc are given: finished, with the lock file that lab_finished expects; for gc with generations that are
 * to go: what retention keeps was widened before they came, and is narrow again. */
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

static void prepare(struct subject *s)
{
    if (s->lab)
        return;
    s->lab = lab_get(s->kind);
    s->link = s->form == FORM_LINK ? lab_link(s->lab, s->stage, s->step, s->eval) : s->lab->nlinks;
    s->state = s->form == FORM_INIT ? NULL : s->lab->before[s->form == FORM_RUN ? s->link - 2 : s->link];
    if (reads_only(s) || s->form == FORM_GC)
        s->state = finished_state(s);
    if (s->wreck == WRECK_SHARE) {
        s->state = share_state(s);
    } else if (s->wreck) {
        long publish = 0;

        free(traced(s, 0, "whole", &publish));
        if (!publish)
            lab_die("%s publishes nothing", s->name);
        s->state = traced(s, publish + (s->wreck == WRECK_UNSETTLED), "wreck", NULL);
    }
    free(traced(s, 0, "traced", NULL));
}

/* Call n of those in `mask`, as a number among all; 0: none. */
static long count_in(const struct subject *s, unsigned mask, long upto)
{
    long n = 0;

    for (long i = 1; i <= upto; i++)
        n += mask >> s->op[i] & 1;
    return n;
}

static void add(struct campaign *c, struct point p)
{
    if (!(c->n & (c->n + 1)) && !(c->point = realloc(c->point, (size_t)(2 * c->n + 2) * sizeof p)))
        lab_die("out of memory");
    c->point[c->n++] = p;
}

const char *faults_state(const char *name, const struct lab **lab)
{
    for (int i = 0; i < SUBJECTS; i++)
        if (!strcmp(subjects[i].name, name)) {
            prepare(&subjects[i]);
            *lab = subjects[i].lab;
            return subjects[i].state;
        }
    lab_die("there is no subject %s", name);
}

/* All subjects; every: of the points. */
static long campaign(struct subject *subject, int n, const struct faults_opts *o, long every, int *stages, long *total)
{
    long violated = 0;

    lab_part_pools(n);
    for (int i = 0; i < n; i++) {
        struct subject *s = &subject[i];
        struct campaign c = {.subject = s};
        struct lab_counts r;
        long all, kept = 0;
        double t0 = lab_now();
        char key[60];

        if (o->subject && strcmp(o->subject, s->name))
            continue;
        prepare(s);
        for (int k = 0; k < SORTS; k++)
            for (long m = 1; m <= s->calls; m++)
                if (sorts[k].ops >> s->op[m] & 1)
                    add(&c, (struct point){c.n + 1, k, sorts[k].counted == ALL ? m : count_in(s, sorts[k].counted, m)});
        all = c.n;
        if (o->point) {
            if (o->point > all)
                lab_die("%s has %ld points", s->name, all);
            c.point[0] = c.point[o->point - 1];
            c.n = 1;
        } else if (every > 1) { /* another offset in each subject, so that all kinds come */
            for (long m = (i * 7) % every; m < all; m += every)
                c.point[kept++] = c.point[m];
            c.n = kept;
        }
        snprintf(key, sizeof key, "points/%s", s->name);
        r = lab_pool_run(s->lab, &(struct lab_pool){o->jobs, c.n, trial, name_of, &c}, key);
        tap(!r.violated && r.idle * 50 <= c.n, "%s: %ld calls, %ld of %ld fault points, %ld violations%s, %.0f s", s->name, s->calls, r.held + r.violated,
            all, r.violated, r.idle ? " (some calls did not come)" : "", lab_now() - t0);
        violated += r.violated;
        *total += r.held + r.violated;
        ++*stages;
        free(c.point);
    }
    return violated;
}

long faults_points(const struct faults_opts *o)
{
    int stages = 0;
    long total = 0, violated = campaign(subjects, SUBJECTS, o, o->every, &stages, &total);

    sum("%ld fault points in %d stages and states of stages, %ld violations", total, stages, violated);
    sum_points(total, stages);
    return violated;
}

long faults_ranks(const struct faults_opts *o)
{
    int stages = 0;
    long total = 0, violated;

    if (!lab_get(LAB_RANKS_2)) {
        tap(1, "ranks # SKIP there is no mpirun: NOTHING WAS TRIED WITH SEVERAL RANKS");
        sum("not tried: there is no mpirun");
        return 0;
    }
    violated = campaign(of_ranks, OF_RANKS, o, o->every * RANKS_EVERY, &stages, &total);
    sum("%ld fault points in one rank of two, %d stages and ranks, %ld violations", total, stages, violated);
    sum_points(total, stages);
    return violated;
}
