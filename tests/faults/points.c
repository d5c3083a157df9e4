/* points.c - every file operation of every stage fails once, and the program is killed at every one (F1, F5-F9, F15, F50); the same in one
 * rank of several (F2, F29: only some of the points, an mpirun takes its time).
 *
 * For each subject (a program in a prepared state of the run) a traced run without a fault counts its calls; then for n = 1, 2, 3 ... and
 * each kind of fault that call n can have, a trial.
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

#include "tests/faults/subjects.h"

/* ---- kinds ------------------------------------------------------------------------------------------------------------ */

#define ALL FAULT_ALL
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

/* A point is bound to a thread: call n of those that it makes, or the next one of it to which the fault can happen. What other threads do
 * before it, now more, now less, does not move it. */
struct point {
    long at; /* its number among all of the subject's */
    int sort, thread;
    long n;
};

struct campaign {
    const struct subject *subject;
    struct point *point;
    long n;
};

/* ---- one trial ---------------------------------------------------------------------------------------------------------- */

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

/* One sentence; before it verify tells how far it is, --repair for each of its looks that it came to. */
static int lines_right(const struct subject *s, int lines)
{
    return s->form == FORM_REPAIR ? lines >= 1 && lines <= 3 : lines == 1 + (s->form == FORM_VERIFY);
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
    if ((subject_reads_only(s) || s->form == FORM_REPAIR) && e->code == 65 &&
        (k->code[0] == 74 || k->code[1] == 74)) /* verify names what it cannot read as bad */
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
    else if (!e->code && subject_reads_only(s) && k->kind == KIND_ERRNO && k->errnum != EAGAIN && (e->op == OP_READ || e->op == OP_OPEN))
        snprintf(why, WHY_BYTES, "says all is well without having read: %s", e->where);
    else if (ranks && e->code > 0 && k->code[0] != -9 && (!e->lines || !strstr(e->last, box)))
        snprintf(why, WHY_BYTES, "the last of %d lines names no path: \"%.300s\" (%.200s)", e->lines, e->last, e->where);
    else if (!ranks && e->code > 0 && (!lines_right(s, e->lines) || (!strstr(e->last, box) && !strstr(e->last, "out of memory"))))
        snprintf(why, WHY_BYTES, "%d lines, the last names no path: \"%.300s\" (%.200s)", e->lines, e->last, e->where);
    else
        return 1;
    return 0;
}

/* 0 held, 1 violated, 2 the call did not come. */
static int once(const struct campaign *c, long i, const char *box, char *why)
{
    const struct point *p = &c->point[i];
    const struct subject *s = c->subject;
    const struct sort *k = &sorts[p->sort];
    char dir[600], plan[300], which[200], scratch[2][600];
    struct lab_exec x = {.box = box, .root = dir, .plan = plan};
    struct lab_end e;

    snprintf(dir, sizeof dir, "%s/run", box);
    subject_plan(s, which, sizeof which);
    snprintf(plan, sizeof plan, "n=%ld thread=%d ops=%u may=%u kind=%s errno=%d on=%d%s", p->n, p->thread, k->counted, k->ops,
             fault_kind_name[k->kind], k->errnum, k->on, which);
    if (s->state)
        lab_copy(s->state, dir);
    subject_argv(s, dir, &x, scratch);
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
    if (!subject_again(s, box, dir, why))
        return 1;
    if (subject_reads_only(s) ? !lab_finished(s->lab, dir, 0, why)
                              : !lab_go_on(s->lab, box, dir, k->kind == KIND_TORN || k->kind == KIND_SHORT, why)) {
        size_t n = strlen(why);

        snprintf(why + n, WHY_BYTES - n, " (after %.200s)", e.where);
        return 1;
    }
    return !lab_box_clean(box, why);
}

/* Of several threads a call comes in one run and not in the next (came_enough): it is waited for. */
static int trial(void *arg, long i, const char *box, char *why)
{
    const struct campaign *c = arg;
    int outcome = once(c, i, box, why);

    for (int again = 0; outcome == 2 && c->subject->threads > 1 && again < 4; again++) {
        lab_remove(box);
        if (mkdir(box, 0777))
            lab_die("mkdir %s: %s", box, strerror(errno));
        outcome = once(c, i, box, why);
    }
    return outcome;
}

static void name_of(void *arg, long i, char *out, size_t n)
{
    const struct campaign *c = arg;
    const struct point *p = &c->point[i];

    snprintf(out, n, "points --subject %s --point %ld: %s, call %ld of thread %d", c->subject->name, p->at, sorts[p->sort].name, p->n, p->thread);
}

/* Calls in `mask` up to call `upto`, of the thread that made that. */
static long count_in(const struct subject *s, unsigned mask, long upto)
{
    long n = 0;

    for (long i = 1; i <= upto; i++)
        n += s->thread[i] == s->thread[upto] && mask >> s->op[i] & 1;
    return n;
}

static void add(struct campaign *c, struct point p)
{
    if (!(c->n & (c->n + 1)) && !(c->point = realloc(c->point, (size_t)(2 * c->n + 2) * sizeof p)))
        lab_die("out of memory");
    c->point[c->n++] = p;
}

/* So many points may not come. One thread makes the same calls each time, but for a few that the clock brings. Of several the number depends on
 * which is ahead: a save beside the training that has not begun when the next one is due is passed over (traced_least of subjects.c). */
static int came_enough(const struct subject *s, long n, long idle)
{
    return s->threads > 1 ? idle <= 1 + n / 8 : idle <= n / 50;
}

/* All subjects; every: of the points, in pass `pass` of several other ones each. */
static long campaign(struct subject *subject, int n, const struct faults_opts *o, long every, long pass, int *stages, long *total)
{
    long violated = 0;

    for (int i = 0; i < n; i++) {
        struct subject *s = &subject[i];
        struct campaign c = {.subject = s};
        struct lab_counts r;
        long all, kept = 0;
        double t0 = lab_now();
        char key[60];

        if (o->subject && strcmp(o->subject, s->name))
            continue;
        subject_prepare(s);
        for (int k = 0; k < SORTS; k++)
            for (int t = 0; t < s->threads; t++) /* thread by thread: the same numbers, however they ran beside one another */
                for (long m = 1; m <= s->calls; m++)
                    if (s->thread[m] == t && sorts[k].ops >> s->op[m] & 1)
                        add(&c, (struct point){c.n + 1, k, t, count_in(s, sorts[k].counted, m)});
        all = c.n;
        if (o->point) {
            if (o->point > all)
                lab_die("%s has %ld points", s->name, all);
            c.point[0] = c.point[o->point - 1];
            c.n = 1;
        } else if (every > 1) { /* another offset in each subject, so that all kinds come */
            for (long m = (i * 7 + pass) % every; m < all; m += every)
                c.point[kept++] = c.point[m];
            c.n = kept;
        }
        snprintf(key, sizeof key, "points/%s/%ld", s->name, pass);
        r = lab_pool_run(s->lab, &(struct lab_pool){o->jobs, c.n, trial, name_of, &c}, key);
        tap(!r.violated && came_enough(s, c.n, r.idle), "%s: %ld calls, %ld of %ld fault points, %ld violations%s, %.0f s", s->name, s->calls,
            r.held + r.violated, all, r.violated, r.idle ? " (some calls did not come)" : "", lab_now() - t0);
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
    long total = 0, violated;

    lab_part_pools(faults_subject_count);
    violated = campaign(faults_subjects, faults_subject_count, o, o->every, 0, &stages, &total);
    sum("%ld fault points in %d stages and states of stages, %ld violations", total, stages, violated);
    sum_points(total, stages);
    return violated;
}

long faults_ranks(const struct faults_opts *o)
{
    int stages = 0;
    long total = 0, violated = 0;

    if (!lab_get(LAB_RANKS_2)) {
        tap(1, "ranks # SKIP there is no mpirun: NOTHING WAS TRIED WITH SEVERAL RANKS");
        sum("not tried: there is no mpirun");
        return 0;
    }
    lab_part_pools(faults_rank_subject_count * (int)o->passes);
    for (long pass = 0; pass < o->passes; pass++) {
        stages = 0;
        violated += campaign(faults_rank_subjects, faults_rank_subject_count, o, o->every * FAULTS_PASSES, pass, &stages, &total);
    }
    sum("%ld fault points in one rank of two, %d stages and ranks, %ld violations", total, stages, violated);
    sum_points(total, stages);
    return violated;
}
