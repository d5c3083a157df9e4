/* underway.c - see flips.h: damaged files of a step under way are made again. */
#include "tests/faults/flips.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/verify.h"

#define UNDERWAY 600

/* States that a kill left (points.c): finished shards without a manifest; a save beside the training, and reference log-probabilities. */
static const struct underway {
    const char *subject;
    const char *below; /* what is damaged lies there */
} underways[] = {
    {"rollout-again", "step/000002/rollout"},
    {"score-again", "step/000002/score"},
    {"train-resumed", "step/000001/train"},
};
#define UNDERWAYS ((int)(sizeof underways / sizeof *underways))

struct wrecks {
    const struct faults_opts *o;
    const struct lab *lab[UNDERWAYS];
    const char *state[UNDERWAYS];
    char **file[UNDERWAYS]; /* relative to it */
    int n[UNDERWAYS];
};

static void wreck_look(struct wrecks *w, int k)
{
    char *line = NULL, *cmd;
    size_t cap = 0;
    FILE *p;

    w->state[k] = faults_state(underways[k].subject, &w->lab[k]);
    cmd = lab_text("cd '%s' && find %s -type f -size +0 | LC_ALL=C sort", w->state[k], underways[k].below);
    if (!(p = popen(cmd, "r")))
        lab_die("%s: %s", cmd, strerror(errno));
    while (getline(&line, &cap, p) > 0) {
        line[strcspn(line, "\n")] = 0;
        w->file[k] = realloc(w->file[k], (size_t)(w->n[k] + 1) * sizeof *w->file[k]);
        if (!w->file[k])
            lab_die("out of memory");
        w->file[k][w->n[k]++] = lab_text("%s", line);
    }
    if (pclose(p) || !w->n[k])
        lab_die("%s failed, or found nothing", cmd);
    free(cmd);
    free(line);
}

/* The run goes on to the same bits. What is damaged was made again; or, where none of its bytes that count were hit, it stays and verify names it,
 * and nothing else. */
static int underway_trial(void *arg, long i, const char *box, char *why)
{
    const struct wrecks *w = arg;
    uint64_t r = w->o->seed * 0x2545f491u + (uint64_t)i;
    int k = (int)(i % UNDERWAYS), at = (int)(lab_random(&r) % (uint64_t)w->n[k]), held = 0;
    const struct lab *lab = w->lab[k];
    char run[600], path[900], did[100], scratch[2][600], *digest = NULL;
    struct told t = {.path = path};
    struct cairn_verify_opts o = {.deep = 1, .bad = told_bad, .arg = &t};
    struct cairn_verify_counts c = {0};
    struct cairn_error err = {0};
    struct lab_exec x = {.box = box};
    struct lab_end e;

    snprintf(run, sizeof run, "%s/run", box);
    snprintf(path, sizeof path, "%s/%s", run, w->file[k][at]);
    lab_copy(w->state[k], run);
    damage_file(path, &r, did, sizeof did);
    lab_argv_run(lab, "run", run, &x, scratch);
    lab_run(lab, &x, &e);
    if (e.code) {
        snprintf(why, WHY_BYTES, "going on ended with %d: %.400s", e.code, e.last);
    } else if (cairn_verify_tree(run, &o, &c, &err) == CAIRN_OK) {
        held = lab_finished(lab, run, 0, why) && lab_box_clean(box, why);
    } else if (!t.named || t.other) {
        snprintf(why, WHY_BYTES, "verify names another: %s %.300s", t.first, err.text);
    } else if ((digest = lab_digest(run, why))) {
        held = !strcmp(digest, lab->digest);
        lab_tally[0] += held;
        if (!held)
            snprintf(why, WHY_BYTES, "the digests differ");
    }
    free(digest);
    if (held)
        return 0;
    snprintf(why + strlen(why), WHY_BYTES - strlen(why), " (%s: %s)", w->file[k][at], did);
    return 1;
}

static void underway_name(void *arg, long i, char *out, size_t n)
{
    const struct wrecks *w = arg;

    snprintf(out, n, "flips --seed %llu, of a step under way, trial %ld", (unsigned long long)w->o->seed, i);
}

long flips_underway(const struct faults_opts *o)
{
    struct wrecks w = {.o = o};
    struct lab_counts c;
    long n = UNDERWAY / o->every > UNDERWAYS ? UNDERWAY / o->every : UNDERWAYS;
    double t0 = lab_now();

    for (int k = 0; k < UNDERWAYS; k++)
        wreck_look(&w, k);
    c = lab_pool_run(lab_get(LAB_PLAIN), &(struct lab_pool){o->jobs, n, underway_trial, underway_name, &w}, "flips/underway");
    tap(!c.violated, "flips: %ld damaged files of steps under way (%ld stay and are named by verify), %ld violations, %.0f s", n, c.tally[0],
        c.violated, lab_now() - t0);
    for (int k = 0; k < UNDERWAYS; k++) {
        for (int j = 0; j < w.n[k]; j++)
            free(w.file[k][j]);
        free(w.file[k]);
    }
    return c.violated;
}
