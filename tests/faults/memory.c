/* memory.c - allocations fail (F32, F50): the n-th one, or all from the n-th on, for n spread over all of them, in every stage.
 *
 * What is missing is said in one sentence with 73 or 74, or 70 where a library does not tell what it lacked; good data are never called bad (65, 78),
 * nothing half-made is published, and the run goes on to the same bits. A library that does not survive it (HDF5 1.10, which verify --deep
 * asks, calls through NULL or exits with 255) is counted, and must be as harmless as a kill.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/str.h"
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
    atomic_long *crashes; /* shared */
};

static void start(const struct memory *m, const char *box, const char *dir, const char *plan, struct lab_end *e)
{
    char scratch[2][600];
    struct lab_exec x = {.box = box, .root = dir, .plan = plan};
    int n = 0, init = m->s->verb && !strcmp(m->s->verb, "init");

    if (m->s->verb) {
        snprintf(scratch[0], sizeof scratch[0], "%s/cairn", m->lab->bin);
        x.argv[n++] = scratch[0];
        x.argv[n++] = m->s->verb;
        if (init) {
            x.argv[n++] = m->lab->recipe;
            x.argv[n++] = "--run";
        } else {
            lab_copy(m->lab->before[m->lab->nlinks], dir);
        }
        x.argv[n++] = dir;
        x.argv[n] = NULL;
    } else {
        int link = lab_link(m->lab, m->s->stage, m->s->step, NULL);

        lab_copy(m->lab->before[link], dir);
        lab_argv(m->lab, link, dir, &x, scratch);
    }
    x.program = strrchr(scratch[0], '/') + 1;
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
    crash = e.code < 0 || e.code == 255;
    atomic_fetch_add(m->crashes, crash);
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

long faults_memory(const struct lab *lab, const struct faults_opts *o)
{
    atomic_long *crashes = mmap(NULL, sizeof *crashes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    long violated = 0;

    if (crashes == MAP_FAILED)
        lab_die("mmap: %s", strerror(errno));
    for (int i = 0; i < SUBJECTS; i++) {
        struct memory m = {.crashes = crashes, .lab = lab, .s = &subjects[i], .samples = SAMPLES / o->every > 2 ? SAMPLES / o->every : 2, .seed = o->seed};
        char *box = cairn_format("%s/memory", lab->work), *dir = cairn_format("%s/run", box), plan[60];
        struct lab_counts c;
        struct lab_end e;
        double t0 = lab_now();

        if (!o->subject || !strcmp(o->subject, subjects[i].name)) {
            if (mkdir(box, 0777))
                lab_die("mkdir %s: %s", box, strerror(errno));
            snprintf(plan, sizeof plan, "n=0 ops=%u", 1u << OP_ALLOC);
            start(&m, box, dir, plan, &e);
            lab_remove(box);
            m.allocations = e.calls;
            atomic_store(m.crashes, 0);
            if (e.code || e.calls < m.samples)
                lab_die("%s: %ld allocations, ended with %d: %s", subjects[i].name, e.calls, e.code, e.last);
            c = lab_pool_run(lab, &(struct lab_pool){o->jobs, m.samples, trial, name_of, &m}, subjects[i].name);
            tap(!c.violated, "memory, %s: %ld allocations, %ld of them failed, %ld crashed in a library, %ld violations, %.0f s", subjects[i].name,
                m.allocations, c.held + c.violated, atomic_load(m.crashes), c.violated, lab_now() - t0);
            violated += c.violated;
        }
        free(box);
        free(dir);
    }
    munmap(crashes, sizeof *crashes);
    return violated;
}
