/* crashes.c - what a disk may hold after the power went (F4, F7): images from a journal of every change that a stage made.
 *
 * The shim records creations, writes, truncations, links, renames, removals and fsyncs below the run. For prefixes of that journal images are
 * built (image.h). In every image verify --deep finds nothing bad, everything that was committed before is there, `cairn run` goes on to the same
 * bits; and in images of the whole journal what the stage has told to be committed is there. At last the check checks itself: with a
 * disk that lies about fsync it must find violations.
 *
 * Idea: ALICE (OSDI'14), CrashMonkey (OSDI'18).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/str.h"
#include "ckpt/verify.h"
#include "tests/faults/faults.h"
#include "tests/faults/image.h"

struct crash {
    const struct lab *lab;
    const char *what;
    struct record record;
    char *digest_before, *digest_after;
    long every, prefixes;   /* prefix i * every ... */
    uint64_t seed;
};

/* ---- trials ---------------------------------------------------------------------------------------------------------------------- */

/* 1: every line of a is a line of b. */
static int lines_within(const char *a, const char *b, char *why)
{
    for (const char *p = a; *p;) {
        size_t n = strcspn(p, "\n");
        int found = 0;

        for (const char *q = b; *q && !found; q += strcspn(q, "\n"), q += *q == '\n')
            found = strcspn(q, "\n") == n && !strncmp(p, q, n);
        if (!found) {
            snprintf(why, WHY_BYTES, "lost: %.*s", (int)n, p);
            return 0;
        }
        p += n + (p[n] == '\n');
    }
    return 1;
}

static void bad(void *arg, const char *path, const char *text)
{
    char *why = arg;

    (void)path;
    if (!*why)
        snprintf(why, WHY_BYTES, "verify: %.500s", text);
}

/* Image i is of this prefix: one in each stretch of `every` changes, drawn; beyond the last: the whole journal. */
static long prefix_of(const struct crash *c, long i)
{
    uint64_t r = c->seed * 977u + (uint64_t)i;
    long p = i / VARIANTS * c->every + (long)(lab_random(&r) % (uint64_t)c->every);

    return p < c->record.n ? p + 1 : c->record.n;
}

static int look(const struct crash *c, const char *dir, long prefix, char *why)
{
    struct cairn_verify_counts counts = {0};
    struct cairn_verify_opts o = {.deep = 1, .bad = bad, .arg = why};
    struct cairn_error err = {0};
    char *digest;
    int ok;

    *why = 0;
    if (cairn_verify_tree(dir, &o, &counts, &err) != CAIRN_OK) {
        if (!*why)
            snprintf(why, WHY_BYTES, "verify: %.500s", err.text);
        return 0;
    }
    if (!(digest = lab_digest(dir, why)))
        return 0;
    ok = lines_within(prefix == c->record.n ? c->digest_after : c->digest_before, digest, why);
    free(digest);
    return ok;
}

static int trial(void *arg, long i, const char *box, char *why)
{
    const struct crash *c = arg;
    long prefix = prefix_of(c, i);
    enum variant v = (enum variant)(i % VARIANTS);
    char dir[600];

    snprintf(dir, sizeof dir, "%s/run", box);
    image_make(&c->record, prefix, v, c->seed * 131u + (uint64_t)i, dir);
    if (look(c, dir, prefix, why) && lab_go_on(c->lab, box, dir, -1, why) && lab_box_clean(box, why))
        return 0;
    {
        size_t n = strlen(why);
        const struct change *x = &c->record.change[prefix - 1];

        snprintf(why + n, WHY_BYTES - n, " (after %ld of %ld changes, the last %d %.150s %.150s)", prefix, c->record.n, (int)x->op, x->path,
                 x->path2);
    }
    return 1;
}

/* Only what can be seen at once: for the disk that lies. */
static int glance(void *arg, long i, const char *box, char *why)
{
    const struct crash *c = arg;
    char dir[600];

    snprintf(dir, sizeof dir, "%s/run", box);
    image_make(&c->record, c->record.n, (enum variant)(i % VARIANTS), c->seed + (uint64_t)i, dir);
    return look(c, dir, c->record.n, why) ? 0 : 2; /* not told as a violation: it is what is expected */
}

static void name_of(void *arg, long i, char *out, size_t n)
{
    const struct crash *c = arg;

    snprintf(out, n, "crashes --subject %s --seed %llu, image %ld: %s", c->what, (unsigned long long)c->seed, i, variant_name[i % VARIANTS]);
}

/* ---- recording --------------------------------------------------------------------------------------------------------------------- */

static const struct subject {
    const char *name;
    int init;
    enum cairn_stage stage;
    int64_t step;
    enum lab_kind kind;
    const char *killed; /* a first attempt is killed right after this operation on this class ("link manifest"), then a second one runs */
} subjects[] = {
    {"init", 1, CAIRN_STAGE_SYNC, 0, LAB_PLAIN, NULL},
    {"warm-start", 0, CAIRN_STAGE_TRAIN, 0, LAB_PLAIN, NULL},
    {"rollout", 0, CAIRN_STAGE_ROLLOUT, 2, LAB_PLAIN, NULL},
    {"score", 0, CAIRN_STAGE_SCORE, 2, LAB_PLAIN, NULL},
    {"train", 0, CAIRN_STAGE_TRAIN, 2, LAB_PLAIN, NULL},
    {"sync", 0, CAIRN_STAGE_SYNC, 2, LAB_PLAIN, NULL},
    {"train-settle", 0, CAIRN_STAGE_TRAIN, 2, LAB_PLAIN, "link manifest"},
    {"sync-settle", 0, CAIRN_STAGE_SYNC, 2, LAB_PLAIN, "link manifest"},
    {"sync-marker", 0, CAIRN_STAGE_SYNC, 2, LAB_PLAIN, "rename marker"},
    {"rollout-adopt", 0, CAIRN_STAGE_ROLLOUT, 2, LAB_PLAIN, "create manifest"},
    {"train-updates", 0, CAIRN_STAGE_TRAIN, 1, LAB_UPDATES, NULL},
};
#define SUBJECTS ((int)(sizeof subjects / sizeof *subjects))

static void start(const struct lab *lab, const struct subject *s, const char *box, const char *dir, const char *plan, const char *journal,
                  struct lab_end *e)
{
    char scratch[2][600];
    struct lab_exec x = {.box = box, .root = dir, .plan = plan, .journal = journal};

    if (s->init) {
        lab_argv_run(lab, "init", dir, &x, scratch);
    } else {
        lab_argv(lab, lab_link(lab, s->stage, s->step, NULL), dir, &x, scratch);
    }
    lab_run(lab, &x, e);
}

/* Number of the call after the first "op class" of a traced run. */
static long call_after(const struct lab *lab, const struct subject *s, const char *base)
{
    char *box = cairn_format("%s/crash-trace", lab->work), *dir = cairn_format("%s/run", box), *report = cairn_format("%s/report", box), *line = NULL;
    char want[40], op[16], cls[16];
    size_t cap = 0;
    long k, found = 0;
    struct lab_end e;
    FILE *f;

    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    lab_copy(base, dir);
    start(lab, s, box, dir, "trace=1", NULL, &e);
    if (!(f = fopen(report, "re")))
        lab_die("%s: %s", report, strerror(errno));
    while (getline(&line, &cap, f) > 0)
        if (sscanf(line, "call %ld %15s %15s", &k, op, cls) == 3) {
            snprintf(want, sizeof want, "%s %s", op, cls);
            if (!found && !strcmp(want, s->killed))
                found = k + 1;
        }
    fclose(f);
    free(line);
    lab_remove(box);
    free(box);
    free(dir);
    free(report);
    if (!found)
        lab_die("%s: no call \"%s\"", s->name, s->killed);
    return found;
}

static void crash_record(struct crash *c, const struct lab *lab, const struct subject *s, const char *plan)
{
    char *box = cairn_format("%s/crash-%s", lab->work, s->name), *dir = cairn_format("%s/run", box), *journal = cairn_format("%s/journal", box),
         *base = NULL, why[WHY_BYTES];
    struct lab_end e;

    *c = (struct crash){.lab = lab, .what = s->name};
    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    if (!s->init) {
        base = lab->before[lab_link(lab, s->stage, s->step, NULL)];
        lab_copy(base, dir);
    }
    if (s->killed) {
        char *kill = cairn_format("n=%ld kind=kill", call_after(lab, s, base));

        start(lab, s, box, dir, kill, journal, &e);
        if (e.code != -9)
            lab_die("%s: was to be killed, ended with %d", s->name, e.code);
        free(kill);
    }
    start(lab, s, box, dir, plan, journal, &e);
    if (e.code)
        lab_die("%s ended with %d: %s", s->name, e.code, e.last);
    c->digest_before = base ? lab_digest(base, why) : strdup("");
    c->digest_after = lab_digest(dir, why);
    if (!c->digest_before || !c->digest_after)
        lab_die("%s: %s", s->name, why);
    record_read(&c->record, base, journal);
    lab_remove(dir);
    free(journal);
    free(dir);
    free(box);
}

static void crash_free(struct crash *c)
{
    record_free(&c->record);
    free(c->digest_before);
    free(c->digest_after);
}

long faults_crashes(const struct faults_opts *o)
{
    long violated = 0, images = 0, changes = 0, seen = 0;

    lab_part_pools(SUBJECTS + 1);
    for (int i = 0; i < SUBJECTS; i++) {
        const struct subject *s = &subjects[i];
        const struct lab *lab = lab_get(s->kind);
        struct crash c;
        struct lab_counts r;
        double t0 = lab_now();
        char key[60];

        if (o->subject && strcmp(o->subject, s->name))
            continue;
        snprintf(key, sizeof key, "crashes/%s", s->name);
        crash_record(&c, lab, s, "");
        c.every = o->every;
        c.seed = o->seed;
        r = lab_pool_run(lab, &(struct lab_pool){o->jobs, (c.record.n / c.every + 1) * VARIANTS, trial, name_of, &c}, key);
        tap(!r.violated, "crashes, %s: %ld changes, %ld images of a disk, %ld violations, %.0f s", s->name, c.record.n, r.held + r.violated,
            r.violated, lab_now() - t0);
        violated += r.violated;
        images += r.held + r.violated;
        changes += c.record.n;
        crash_free(&c);
    }
    if (!o->subject) {
        const struct subject *s = &subjects[4];
        const struct lab *lab = lab_get(s->kind);
        char plan[60];
        struct crash c;
        struct lab_counts r;

        snprintf(plan, sizeof plan, "n=1 on=1 ops=%u kind=lie", 1u << OP_SYNC);
        crash_record(&c, lab, &(struct subject){"liar", 0, s->stage, s->step, s->kind, NULL}, plan);
        c.seed = o->seed;
        r = lab_pool_run(lab, &(struct lab_pool){o->jobs, 20, glance, name_of, &c}, "crashes/liar");
        seen = r.idle;
        tap(seen > 0, "crashes: with a disk that lies about fsync, %ld of 20 images show it", seen);
        violated += !seen;
        crash_free(&c);
    }
    sum("%ld images of a disk after a power cut, of %ld changes by %d stages, %ld violations (a disk that lies is seen in %ld of 20)", images,
        changes, SUBJECTS, violated, seen);
    return violated;
}
