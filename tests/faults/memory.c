/* memory.c - allocations fail (F32, F50): the n-th one, or all from the n-th on, for n spread over all of them, in every stage.
 *
 * What is missing is said in one sentence with 73 or 74, or 70 where a library does not tell what it lacked; good data are never called bad (65, 78),
 * nothing half-made is published, and the run goes on to the same bits. A library that does not survive it (HDF5 1.10, which verify --deep
 * asks, calls through NULL or exits with 255 or 127) is counted, and must be as harmless as a kill.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/faults/faults.h"

#define SAMPLES 300 /* of each subject */

static const struct subject {
    const char *name, *verb; /* verb of cairn, or NULL: a stage */
    enum cairn_stage stage;
    int64_t step;
} subjects[] = {
    {"init", "init", CAIRN_STAGE_SYNC, 0},        {"warm-start", NULL, CAIRN_STAGE_TRAIN, 0}, {"rollout", NULL, CAIRN_STAGE_ROLLOUT, 2},
    {"score", NULL, CAIRN_STAGE_SCORE, 2},        {"train", NULL, CAIRN_STAGE_TRAIN, 2},      {"sync", NULL, CAIRN_STAGE_SYNC, 2},
    {"verify", "verify", CAIRN_STAGE_SYNC, 0},    {"digest", "digest", CAIRN_STAGE_SYNC, 0},
};
#define SUBJECTS ((int)(sizeof subjects / sizeof *subjects))

struct memory {
    const struct lab *lab;
    const struct subject *s;
    long allocations, samples;
    uint64_t seed;
};

static void start(const struct memory *m, const char *box, const char *dir, const char *plan, struct lab_end *e)
{
    char scratch[2][600];
    struct lab_exec x = {.box = box, .root = dir, .plan = plan};

    if (m->s->verb && !strcmp(m->s->verb, "init")) {
        lab_argv_run(m->lab, "init", dir, &x, scratch);
    } else if (m->s->verb) {
        snprintf(scratch[0], sizeof scratch[0], "%s/cairn", m->lab->bin);
        lab_copy(m->lab->before[m->lab->nlinks], dir);
        x.argv[0] = scratch[0];
        x.argv[1] = m->s->verb;
        x.argv[2] = dir;
        x.program = "cairn";
    } else {
        int link = lab_link(m->lab, m->s->stage, m->s->step, NULL);

        lab_copy(m->lab->before[link], dir);
        lab_argv(m->lab, link, dir, &x, scratch);
    }
    lab_run(m->lab, &x, e);
}

static int trial(void *arg, long i, const char *box, char *why)
{
    const struct memory *m = arg;
    uint64_t r = m->seed + (uint64_t)i;
    long n = 1 + i * m->allocations / m->samples + (long)(lab_random(&r) % (uint64_t)(m->allocations / m->samples + 1));
    int crash, on = i % 4 == 3, init = m->s->verb && !strcmp(m->s->verb, "init");
    char dir[600], plan[100];
    struct lab_end e;

    snprintf(dir, sizeof dir, "%s/run", box);
    snprintf(plan, sizeof plan, "n=%ld ops=%u on=%d kind=errno errno=12", n, 1u << OP_ALLOC, on);
    start(m, box, dir, plan, &e);
    if (!e.fired)
        return 2;
    crash = e.code < 0 || e.code == 255 || e.code == 127; /* 127: the dynamic linker, or what a library does as it is opened (libcudart) */
    lab_tally[0] = crash;
    if (e.late || e.orphans || e.outside || (!crash && e.code && e.code != 73 && e.code != 74 && e.code != 70)) {
        snprintf(why, WHY_BYTES, "allocation %ld%s: ended with %d: %.500s", n, on ? " and all after it" : "", e.code, e.last);
        return 1;
    }
    if (e.code && !crash && !e.last[0]) {
        snprintf(why, WHY_BYTES, "allocation %ld: ended with %d and says nothing", n, e.code);
        return 1;
    }
    if (!e.code && !m->s->verb && !lab_committed(m->lab, lab_link(m->lab, m->s->stage, m->s->step, NULL), dir)) {
        snprintf(why, WHY_BYTES, "allocation %ld: says done, and nothing is committed", n);
        return 1;
    }
    return m->s->verb && !init ? 0 : !lab_go_on(m->lab, box, dir, 0, why);
}

static void name_of(void *arg, long i, char *out, size_t n)
{
    const struct memory *m = arg;

    snprintf(out, n, "memory --subject %s --seed %llu, sample %ld", m->s->name, (unsigned long long)m->seed, i);
}

long faults_memory(const struct faults_opts *o)
{
    const struct lab *lab = lab_get(LAB_PLAIN);
    long violated = 0, failed = 0, crashes = 0;

    lab_part_pools(SUBJECTS);
    for (int i = 0; i < SUBJECTS; i++) {
        struct memory m = {.lab = lab, .s = &subjects[i], .samples = SAMPLES / o->every > 2 ? SAMPLES / o->every : 2, .seed = o->seed};
        char *box, *dir, plan[60], key[60];
        struct lab_counts c;
        struct lab_end e;
        double t0 = lab_now();

        if (o->subject && strcmp(o->subject, subjects[i].name))
            continue;
        box = lab_text("%s/memory", lab->work);
        dir = lab_text("%s/run", box);
        if (mkdir(box, 0777))
            lab_die("mkdir %s: %s", box, strerror(errno));
        snprintf(plan, sizeof plan, "n=0 ops=%u", 1u << OP_ALLOC);
        start(&m, box, dir, plan, &e);
        lab_remove(box);
        m.allocations = e.calls;
        if (e.code || e.calls < m.samples)
            lab_die("%s: %ld allocations, ended with %d: %s", subjects[i].name, e.calls, e.code, e.last);
        snprintf(key, sizeof key, "memory/%s", subjects[i].name);
        c = lab_pool_run(lab, &(struct lab_pool){o->jobs, m.samples, trial, name_of, &m}, key);
        tap(!c.violated, "memory, %s: %ld allocations, %ld of them failed, %ld crashed in a library, %ld violations, %.0f s", subjects[i].name,
            m.allocations, c.held + c.violated, c.tally[0], c.violated, lab_now() - t0);
        violated += c.violated;
        failed += c.held + c.violated;
        crashes += c.tally[0];
        free(box);
        free(dir);
    }
    sum("%ld failing allocations in %d programs, %ld crashed in a library, %ld violations", failed, SUBJECTS, crashes, violated);
    return violated;
}
