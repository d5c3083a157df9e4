/* pins.c - readers that pin a generation against collectors that remove it (F52), at every pair of moments.
 *
 * Two generations, keep = 1. A reader (pin, open, read everything, unpin) is stopped at its m-th file operation; a collector is stopped at its
 * n-th, goes on, or is killed some calls later and followed by another, or is overtaken by another; then all go on. The reader ends with 0 or 69
 * (collected): what it has pinned it can read to the end. At last, one more collection: the newest generation is whole, the others are collected and
 * gone, nothing else is left.
 *
 * The programs are this one, started as `faults child-reader DIR` and `faults child-collector DIR`, so that the shim can be preloaded.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/reader.h"
#include "ckpt/retention.h"
#include "ckpt/verify.h"
#include "tests/faults/faults.h"

#define GENERATIONS 2
#define PAIRS_EVERY 3 /* so many-th pair and what follows is tried */
#define MOMENTS (1u << CLASS_PIN | 1u << CLASS_MARKER | 1u << CLASS_SHARD | 1u << CLASS_MANIFEST) /* calls on these count */

enum second { GOES_ON, OVERTAKEN, KILLED, SECONDS = KILLED + 8 }; /* KILLED + k: k + 1 calls after its stop */

struct pins {
    const struct lab *lab;
    char *self, *generation; /* the artefact that is copied */
    long reader_calls, collector_calls, every;
    uint64_t seed;
};

/* ---- the children ----------------------------------------------------------------------------------------------------- */

int faults_child_reader(const char *dir)
{
    struct cairn_error err = {0};
    struct cairn_reader *r = NULL;
    char *gen = cairn_format("%s/0", dir), name[40];
    enum cairn_status st;

    snprintf(name, sizeof name, "reader-%d", (int)getpid());
    st = gen ? cairn_artefact_pin(gen, name, &err) : CAIRN_ENOSPACE;
    if (st == CAIRN_OK) {
        st = cairn_reader_open(&r, gen, NULL, &err);
        for (int i = 0; st == CAIRN_OK && i < cairn_reader_manifest(r)->ntensors; i++) {
            const struct cairn_tensor_entry *t = &cairn_reader_manifest(r)->tensors[i];
            void *p = NULL;

            st = cairn_reader_array(r, t->name, t->dtype, &p, NULL, &err);
            free(p);
        }
        cairn_reader_close(r);
        if (st != CAIRN_OK) /* what is pinned must be there */
            st = CAIRN_EBUG;
        if (cairn_artefact_unpin(gen, name, NULL) != CAIRN_OK && st == CAIRN_OK)
            st = CAIRN_EIO;
    }
    if (st != CAIRN_OK)
        fprintf(stderr, "child-reader: %s\n", err.text);
    free(gen);
    return st;
}

int faults_child_collector(const char *dir)
{
    struct cairn_retention keep = {.keep = 1, .reason = "keep = 1"};
    struct cairn_generation gen[GENERATIONS];
    struct cairn_error err = {0};
    enum cairn_status st;

    for (int i = 0; i < GENERATIONS; i++)
        gen[i] = (struct cairn_generation){i, cairn_format("%s/%d", dir, i)};
    st = cairn_retention_apply(&keep, gen, GENERATIONS, NULL, &err);
    if (st != CAIRN_OK)
        fprintf(stderr, "child-collector: %s\n", err.text);
    for (int i = 0; i < GENERATIONS; i++)
        free((char *)(uintptr_t)gen[i].dir);
    return st;
}

/* ---- trials ------------------------------------------------------------------------------------------------------------ */

struct child {
    char box[600], plan[100];
    struct lab_exec x;
    struct lab_end end;
    pid_t pid;
};

static void child_start(const struct pins *p, struct child *c, const char *box, const char *dir, const char *what, const char *name, long n,
                        long then)
{
    snprintf(c->box, sizeof c->box, "%s/%s", box, name);
    if (mkdir(c->box, 0777))
        lab_die("mkdir %s: %s", c->box, strerror(errno));
    snprintf(c->plan, sizeof c->plan, "n=%ld then=%ld kind=stop classes=%u", n, then, MOMENTS);
    c->x = (struct lab_exec){.argv = {p->self, what, dir, NULL}, .box = c->box, .root = dir, .plan = c->plan};
    c->pid = lab_start(p->lab, &c->x);
}

static void wait_stop(struct child *c)
{
    siginfo_t info;

    while (waitid(P_PID, (id_t)c->pid, &info, WSTOPPED | WEXITED | WNOWAIT))
        if (errno != EINTR)
            lab_die("waitid: %s", strerror(errno));
}

static void child_end(struct child *c)
{
    kill(c->pid, SIGCONT);
    lab_wait(&c->x, c->pid, &c->end);
}

static void generations_make(const struct pins *p, const char *dir)
{
    char path[700];

    if (mkdir(dir, 0777))
        lab_die("mkdir %s: %s", dir, strerror(errno));
    for (int i = 0; i < GENERATIONS; i++) {
        snprintf(path, sizeof path, "%s/%d", dir, i);
        lab_copy(p->generation, path);
    }
}

static int settled(const struct pins *p, const char *box, const char *dir, char *why)
{
    struct cairn_verify_counts counts = {0};
    struct cairn_error err = {0};
    struct child last;
    char *listing, path[700];

    child_start(p, &last, box, dir, "child-collector", "last", 0, 0);
    child_end(&last);
    if (last.end.code) {
        snprintf(why, WHY_BYTES, "the last collection ended with %d: %.400s", last.end.code, last.end.last);
        return 0;
    }
    if (cairn_verify_tree(dir, &(struct cairn_verify_opts){0}, &counts, &err) != CAIRN_OK || counts.artefacts != GENERATIONS ||
        counts.collected != GENERATIONS - 1) {
        snprintf(why, WHY_BYTES, "%lld generations, %lld collected: %.400s", (long long)counts.artefacts, (long long)counts.collected, err.text);
        return 0;
    }
    for (int i = 0; i < GENERATIONS; i++) {
        snprintf(path, sizeof path, "%s/%d", dir, i);
        listing = lab_listing(path, 0);
        if ((i < GENERATIONS - 1 && strstr(listing, "a#")) || strstr(listing, ".tmp.") || strstr(listing, "pin/")) {
            snprintf(why, WHY_BYTES, "generation %d holds %.400s", i, listing);
            for (char *c = why; *c; c++)
                *c = *c == '\n' ? ' ' : *c;
            free(listing);
            return 0;
        }
        free(listing);
    }
    return 1;
}

static int trial(void *arg, long i, const char *box, char *why)
{
    const struct pins *p = arg;
    long k = i * p->every + (i * 7) % p->every; /* which pair and what follows */
    int variant = (int)(k % SECONDS);
    enum second what = variant < KILLED ? (enum second)variant : KILLED;
    long m = k / SECONDS % (p->reader_calls + 1) + 1, n = k / SECONDS / (p->reader_calls + 1) + 1;
    struct child reader, first, second;
    uint64_t r = p->seed + (uint64_t)i;
    int reader_first = lab_random(&r) % 4 == 0;
    long then = variant - KILLED + 1;
    char dir[600];

    snprintf(dir, sizeof dir, "%s/run", box);
    generations_make(p, dir);
    memset(&second, 0, sizeof second);
    if (reader_first) {
        child_start(p, &reader, box, dir, "child-reader", "reader", m, 0);
        wait_stop(&reader);
    }
    child_start(p, &first, box, dir, "child-collector", "first", n, what == KILLED ? then : 0);
    wait_stop(&first);
    if (!reader_first) {
        child_start(p, &reader, box, dir, "child-reader", "reader", m, 0);
        wait_stop(&reader);
    }
    if (what == KILLED)
        child_end(&first);
    if (what != GOES_ON) {
        child_start(p, &second, box, dir, "child-collector", "second", 0, 0);
        child_end(&second);
    }
    if (what != KILLED)
        child_end(&first);
    child_end(&reader);
    if (reader.end.code != 0 && reader.end.code != CAIRN_ENOINPUT)
        snprintf(why, WHY_BYTES, "the reader ended with %d: %.400s", reader.end.code, reader.end.last);
    else if (first.end.code != 0 && !(what == KILLED && first.end.code == -SIGKILL))
        snprintf(why, WHY_BYTES, "the collector ended with %d: %.400s", first.end.code, first.end.last);
    else if (second.end.code)
        snprintf(why, WHY_BYTES, "the second collector ended with %d: %.400s", second.end.code, second.end.last);
    else if (settled(p, box, dir, why))
        return 0;
    snprintf(why + strlen(why), WHY_BYTES - strlen(why), " (reader at %ld %.80s, collector %s at %ld %.80s)", m,
             reader.end.fired ? reader.end.where : "-", what == KILLED ? "killed" : what == OVERTAKEN ? "overtaken" : "stopped", n,
             first.end.fired ? first.end.where : "-");
    return 1;
}

static void name_of(void *arg, long i, char *out, size_t n)
{
    (void)arg;
    snprintf(out, n, "pins, trial %ld", i);
}

static long calls_of(const struct pins *p, const char *what)
{
    char *box = cairn_format("%s/pins", p->lab->work), *dir = cairn_format("%s/run", box);
    struct child c;

    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    generations_make(p, dir);
    child_start(p, &c, box, dir, what, "c", 0, 0);
    child_end(&c);
    if (c.end.code || !c.end.calls)
        lab_die("%s ended with %d: %s", what, c.end.code, c.end.last);
    lab_remove(box);
    free(box);
    free(dir);
    return c.end.calls;
}

long faults_pins(const struct faults_opts *o)
{
    const struct lab *lab = lab_get(LAB_WHOLE);
    struct pins p = {.lab = lab, .self = realpath("/proc/self/exe", NULL), .every = o->every * PAIRS_EVERY, .seed = o->seed};
    struct lab_counts c;
    double t0 = lab_now();
    long all;

    lab_part_pools(1);
    p.generation = lab_text("%s/eval/000000/held/rollout", lab->before[lab->nlinks]); /* small: what matters are the moments */
    p.reader_calls = calls_of(&p, "child-reader");
    p.collector_calls = calls_of(&p, "child-collector");
    all = (p.reader_calls + 1) * (p.collector_calls + 1) * SECONDS;
    c = lab_pool_run(lab, &(struct lab_pool){o->jobs, all / p.every, trial, name_of, &p}, "pins");
    tap(!c.violated, "pins: %ld of %ld pairs of moments (%ld of a reader, %ld of a collector), %ld violations, %.0f s", c.held + c.violated, all,
        p.reader_calls, p.collector_calls, c.violated, lab_now() - t0);
    sum("%ld pairs of moments of a reader and a collector, %ld violations", c.held + c.violated, c.violated);
    free(p.self);
    free(p.generation);
    return c.violated;
}
