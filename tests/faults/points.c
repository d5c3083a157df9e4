/* points.c - every file operation of every stage fails once, and the program is killed at every one (F1, F5-F9, F15, F50).
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
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/str.h"
#include "tests/faults/faults.h"

enum form { FORM_INIT, FORM_LINK, FORM_RUN, FORM_VERIFY, FORM_DIGEST };
enum wreck { WRECK_NONE, WRECK_DEAD, WRECK_UNSETTLED };

struct subject {
    const char *name;
    enum form form;
    enum wreck wreck;   /* what an attempt before has left */
    enum cairn_stage stage;
    int64_t step;
    const char *eval;
    /* found out: */
    char *state;        /* NULL: nothing is there yet */
    int link;
    long calls;
    unsigned char *op;  /* (calls + 1) of call n */
};

static struct subject subjects[] = {
    {.name = "init", .form = FORM_INIT},
    {.name = "warm-start", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 0},
    {.name = "rollout", .form = FORM_LINK, .stage = CAIRN_STAGE_ROLLOUT, .step = 2},
    {.name = "score", .form = FORM_LINK, .stage = CAIRN_STAGE_SCORE, .step = 2},
    {.name = "train", .form = FORM_LINK, .stage = CAIRN_STAGE_TRAIN, .step = 2},
    {.name = "sync", .form = FORM_LINK, .stage = CAIRN_STAGE_SYNC, .step = 2},
    {.name = "eval-rollout", .form = FORM_LINK, .stage = CAIRN_STAGE_ROLLOUT, .step = 2, .eval = "held"},
    {.name = "eval-score", .form = FORM_LINK, .stage = CAIRN_STAGE_SCORE, .step = 2, .eval = "held"},
    {.name = "run", .form = FORM_RUN},
    {.name = "verify", .form = FORM_VERIFY},
    {.name = "digest", .form = FORM_DIGEST},
    {.name = "rollout-again", .form = FORM_LINK, .wreck = WRECK_DEAD, .stage = CAIRN_STAGE_ROLLOUT, .step = 2},
    {.name = "score-again", .form = FORM_LINK, .wreck = WRECK_DEAD, .stage = CAIRN_STAGE_SCORE, .step = 2},
    {.name = "train-again", .form = FORM_LINK, .wreck = WRECK_DEAD, .stage = CAIRN_STAGE_TRAIN, .step = 2},
    {.name = "sync-again", .form = FORM_LINK, .wreck = WRECK_DEAD, .stage = CAIRN_STAGE_SYNC, .step = 2},
    {.name = "rollout-settle", .form = FORM_LINK, .wreck = WRECK_UNSETTLED, .stage = CAIRN_STAGE_ROLLOUT, .step = 2},
    {.name = "sync-settle", .form = FORM_LINK, .wreck = WRECK_UNSETTLED, .stage = CAIRN_STAGE_SYNC, .step = 2},
};
#define SUBJECTS ((int)(sizeof subjects / sizeof *subjects))

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
    int subject, sort;
    long n;
};

struct campaign {
    const struct lab *lab;
    struct point *point;
    long n;
};

/* ---- one trial ---------------------------------------------------------------------------------------------------------- */

static void argv_of(const struct lab *lab, const struct subject *s, const char *dir, struct lab_exec *x, char scratch[2][600])
{
    static const char *const verbs[] = {"init", NULL, "run", "verify", "digest"};
    int n = 0;

    if (s->form == FORM_LINK) {
        lab_argv(lab, s->link, dir, x, scratch);
        x->program = strrchr(scratch[0], '/') + 1;
        return;
    }
    snprintf(scratch[0], sizeof scratch[0], "%s/cairn", lab->bin);
    x->argv[n++] = scratch[0];
    x->argv[n++] = verbs[s->form];
    if (s->form == FORM_VERIFY)
        x->argv[n++] = "--deep";
    if (s->form == FORM_INIT || s->form == FORM_RUN) {
        x->argv[n++] = lab->recipe;
        x->argv[n++] = "--run";
    }
    x->argv[n++] = dir;
    if (s->form == FORM_RUN)
        x->argv[n++] = "--quiet";
    x->argv[n] = NULL;
    x->program = "cairn";
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
    if (e->cls != CLASS_SHARD && e->cls != CLASS_ENTRY && e->cls != CLASS_MANIFEST)
        return 0;
    return e->op == OP_WRITE || e->op == OP_SYNC || e->op == OP_CREATE || e->op == OP_TRUNC;
}

static int ended_right(const struct subject *s, const struct sort *k, const struct lab_end *e, const char *box, char *why)
{
    int right = k->may_succeed && !e->code;

    for (int i = 0; i < 3 && k->code[i]; i++)
        right |= e->code == k->code[i];
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
    else if (!e->code && reads_only(s) && k->kind == KIND_ERRNO && k->errnum != EAGAIN && (e->op == OP_READ || e->op == OP_OPEN))
        snprintf(why, WHY_BYTES, "says all is well without having read: %s", e->where);
    else if (e->code > 0 && (e->lines != 1 + (s->form == FORM_VERIFY) /* its progress */ || (!strstr(e->last, box) && !strstr(e->last, "out of memory"))))
        snprintf(why, WHY_BYTES, "%d lines, the last names no path: \"%.300s\" (%.200s)", e->lines, e->last, e->where);
    else
        return 1;
    return 0;
}

static int trial(void *arg, long i, const char *box, char *why)
{
    struct campaign *c = arg;
    const struct point *p = &c->point[i];
    const struct subject *s = &subjects[p->subject];
    const struct sort *k = &sorts[p->sort];
    char dir[600], plan[200], scratch[2][600];
    struct lab_exec x = {.box = box, .root = dir, .plan = plan, .limit_s = 20};
    struct lab_end e;

    snprintf(dir, sizeof dir, "%s/run", box);
    snprintf(plan, sizeof plan, "n=%ld ops=%u kind=%s errno=%d on=%d", p->n, k->counted, fault_kind_name[k->kind], k->errnum, k->on);
    if (s->state)
        lab_copy(s->state, dir);
    argv_of(c->lab, s, dir, &x, scratch);
    lab_run(c->lab, &x, &e);
    if (!e.fired) {
        if (e.code && !e.late) {
            snprintf(why, WHY_BYTES, "no such call, but it ended with %d: %.400s", e.code, e.last);
            return 1;
        }
        return 2;
    }
    if (!ended_right(s, k, &e, box, why))
        return 1;
    if (!e.code && s->form == FORM_LINK && !lab_committed(c->lab, s->link, dir)) {
        snprintf(why, WHY_BYTES, "says done, and nothing is committed (%.300s)", e.where);
        return 1;
    }
    if (reads_only(s) ? !lab_finished(c->lab, dir, 0, why) : !lab_go_on(c->lab, box, dir, k->kind == KIND_TORN || k->kind == KIND_SHORT, why)) {
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

    snprintf(out, n, "points --subject %s --point %ld: %s, call %ld", subjects[p->subject].name, i + 1, sorts[p->sort].name, p->n);
}

/* ---- preparation ---------------------------------------------------------------------------------------------------------- */

/* Runs the subject traced in a fresh copy; fills calls and op. stop > 0: killed there. Returns the directory (malloc'ed), which stays. */
static char *traced(const struct lab *lab, struct subject *s, long stop, const char *as, long *publish)
{
    char *box = cairn_format("%s/%s-%s", lab->work, as, s->name), *dir = cairn_format("%s/run", box), *report = cairn_format("%s/report", box);
    char plan[100], scratch[2][600], *line = NULL;
    struct lab_exec x = {.box = box, .root = dir, .plan = plan};
    struct lab_end e;
    size_t cap = 0;
    FILE *f;

    snprintf(plan, sizeof plan, "trace=1 n=%ld kind=kill ops=%u", stop, ALL);
    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    if (s->state)
        lab_copy(s->state, dir);
    argv_of(lab, s, dir, &x, scratch);
    lab_run(lab, &x, &e);
    if (e.code != (stop ? -9 : 0) || e.outside)
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
        if (k != s->calls + 1 || !(s->op = realloc(s->op, (size_t)k + 1)))
            lab_die("%s: %s: calls out of order", s->name, report);
        s->calls = k;
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

static void prepare(const struct lab *lab, struct subject *s)
{
    s->link = s->form == FORM_LINK ? lab_link(lab, s->stage, s->step, s->eval) : lab->nlinks;
    s->state = s->form == FORM_INIT ? NULL : lab->before[s->form == FORM_RUN ? s->link - 2 : s->link];
    if (reads_only(s)) { /* with the lock file that lab_finished expects */
        char *dir = cairn_format("%s/state-%s", lab->work, s->name), *lock = cairn_format("%s/.lock", dir);
        FILE *f;

        lab_copy(s->state, dir);
        if (!(f = fopen(lock, "we")))
            lab_die("%s: %s", lock, strerror(errno));
        fclose(f);
        free(lock);
        s->state = dir;
    }
    if (s->wreck) {
        long publish = 0;

        free(traced(lab, s, 0, "whole", &publish));
        if (!publish)
            lab_die("%s publishes nothing", s->name);
        s->state = traced(lab, s, publish + (s->wreck == WRECK_UNSETTLED), "wreck", NULL);
    }
    free(traced(lab, s, 0, "traced", NULL));
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

long faults_points(const struct lab *lab, const struct faults_opts *o)
{
    long violated = 0, total = 0;
    int stages = 0;

    for (int i = 0; i < SUBJECTS; i++) {
        struct campaign c = {.lab = lab};
        struct subject *s = &subjects[i];
        struct lab_counts r;
        long all, kept = 0;
        double t0 = lab_now();

        if (o->subject && strcmp(o->subject, s->name))
            continue;
        prepare(lab, s);
        for (int k = 0; k < SORTS; k++)
            for (long n = 1; n <= s->calls; n++)
                if (sorts[k].ops >> s->op[n] & 1)
                    add(&c, (struct point){i, k, sorts[k].counted == ALL ? n : count_in(s, sorts[k].counted, n)});
        all = c.n;
        if (o->point) {
            if (o->point > all)
                lab_die("%s has %ld points", s->name, all);
            c.point[0] = c.point[o->point - 1];
            c.n = 1;
        } else if (o->every > 1) { /* another offset in each subject, so that all kinds come */
            for (long n = (i * 7) % o->every; n < all; n += o->every)
                c.point[kept++] = c.point[n];
            c.n = kept;
        }
        r = lab_pool_run(lab, &(struct lab_pool){o->jobs, c.n, trial, name_of, &c}, s->name);
        tap(!r.violated && r.idle * 50 <= c.n, "%s: %ld calls, %ld of %ld fault points, %ld violations%s, %.0f s", s->name, s->calls, r.held + r.violated,
            all, r.violated, r.idle ? " (some calls did not come)" : "", lab_now() - t0);
        violated += r.violated;
        total += r.held + r.violated;
        stages++;
        free(c.point);
    }
    printf("# %ld fault points x %d stages, %ld violations\n", total, stages, violated);
    return violated;
}
