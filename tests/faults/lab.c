/* lab.c - see lab.h: the states of the run. Everything lives below one scratch directory: in $TMPDIR, else
 * on /dev/shm where there is one (fsync costs nothing there), else in /tmp. */
#include "tests/faults/lab.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"

static pid_t main_pid; /* that of the process which owns the scratch directories, not of its workers */

void lab_die(const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "faults: ");
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\n");
    exit(70);
}

double lab_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint64_t lab_random(uint64_t *s) /* splitmix64 */
{
    uint64_t z = *s += 0x9E3779B97F4A7C15ull;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

char *lab_text(const char *fmt, ...)
{
    char *p = NULL;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&p, fmt, ap);
    va_end(ap);
    if (n < 0)
        lab_die("out of memory");
    return p;
}

/* ---- the lab itself --------------------------------------------------------------------------------------------------- */

static char *absolute(const char *path)
{
    char *p = realpath(path, NULL);

    if (!p)
        lab_die("%s: %s", path, strerror(errno));
    return p;
}

static void links_read(struct lab *lab, const char *dir)
{
    struct cairn_error err = {0};
    struct cairn_run *run;
    struct cairn_link *chain;
    int n;

    if (cairn_run_open(&run, dir, &err) != CAIRN_OK || cairn_run_chain(run, &chain, &n, &err) != CAIRN_OK)
        lab_die("%s", err.text);
    if (n > LAB_LINKS)
        lab_die("%s: more than %d links", dir, LAB_LINKS);
    for (int i = 0; i < n; i++) {
        lab->link[i] = chain[i];
        if (chain[i].eval)
            lab->link[i].eval = lab_text("%s", chain[i].eval);
    }
    lab->nlinks = n;
    free(chain);
    cairn_run_close(run);
}

/* What killed labs left: cairn-faults-PID-* of processes that are gone. */
static void sweep(const char *tmp)
{
    DIR *d = opendir(tmp);
    struct dirent *e;
    char path[PATH_MAX];
    int pid;

    while (d && (e = readdir(d)))
        if (sscanf(e->d_name, "cairn-faults-%d-", &pid) == 1 && kill(pid, 0) && errno == ESRCH) {
            snprintf(path, sizeof path, "%s/%s", tmp, e->d_name);
            cairn_tree_remove(path, NULL);
        }
    if (d)
        closedir(d);
}

/* ---- the shapes ---------------------------------------------------------------------------------------------------------- */

#define UPDATES "run.eval_every=0", "run.steps=1", "train.updates_per_step=3", "checkpoint.updates=1", "train.kl.coef=0.1"

/* Dynamic sampling whose surplus the second step takes over; about half of the responses are right. */
#define CARRY                                                                                                                      \
    "run.eval_every=0", "rollout.dynamic={max_rounds: 8}", "rollout.carry=true", "train.correction=tis",                           \
        "rollout.store=[text, experts]", "score.graders={some: {kind: regex, pattern: '(?s)\\A[ -_]'}}", "score.grader=some"

static const struct shape {
    const char *override[LAB_OVERRIDES];
    int ranks;
} shapes[LAB_KINDS] = {
    [LAB_WHOLE] = {{NULL}, 1},
    [LAB_PLAIN] = {{"run.eval_every=0"}, 1},
    [LAB_UPDATES] = {{UPDATES}, 1},
    [LAB_CARRY] = {{CARRY}, 1},
    [LAB_RANKS_2] = {{UPDATES, "rollout.parallel.dp=2", "train.parallel.dp=2", "score.tasks=2"}, 2},
    [LAB_RANKS_4] = {{UPDATES, "rollout.parallel.dp=4", "train.parallel.dp=4", "score.tasks=3"}, 4},
};
static struct lab shape_lab[LAB_KINDS];
static char *build_dir;

int lab_has_mpirun(void)
{
    const char *path = getenv("PATH");

    while (path && *path) {
        size_t n = strcspn(path, ":");
        char *full = lab_text("%.*s/mpirun", (int)n, path);
        int there = !access(full, X_OK);

        free(full);
        if (there)
            return 1;
        path += n + (path[n] == ':');
    }
    return 0;
}

/* The undisturbed run, `cairn run` from nothing to the end: what it looks like, how long it takes. */
static void whole_run(struct lab *lab, const char *box, const char *dir)
{
    struct lab_exec x = {.box = box, .limit_s = 300};
    char scratch[2][600], why[WHY_BYTES] = "";
    struct lab_end end;

    lab_argv_run(lab, "run", dir, &x, scratch);
    lab->whole_s = lab_now();
    lab_run(lab, &x, &end);
    lab->whole_s = lab_now() - lab->whole_s;
    if (end.code)
        lab_die("run ended with %d: %s", end.code, end.last);
    if (!lab->digest && !(lab->digest = lab_digest(dir, why)))
        lab_die("%s", why);
    if (!lab->listing)
        lab->listing = lab_listing(dir, lab->ranks > 1);
    if (!lab->steps)
        lab->steps = lab_logs_check(dir, 0, why);
    if (!lab_finished(lab, dir, 0, why))
        lab_die("the undisturbed run: %s", why);
}

static void lab_open(struct lab *lab, enum lab_kind kind)
{
    const char *tmp = getenv("TMPDIR");
    char *top = absolute(build_dir), *box, *dir, scratch[2][600];
    struct lab_exec x = {.limit_s = 300};
    struct lab_end end;
    struct stat sb;

    memset(lab, 0, sizeof *lab);
    lab->bin = lab_text("%s/bin", top);
    lab->shim = lab_text("%s/lib/faultshim.so", top);
    lab->recipe = absolute("tests/faults/least.yaml");
    memcpy(lab->override, shapes[kind].override, sizeof shapes[kind].override);
    lab->ranks = shapes[kind].ranks;
    if (access(lab->shim, R_OK))
        lab_die("%s: %s", lab->shim, strerror(errno));
    if (!tmp && !stat("/dev/shm", &sb) && !access("/dev/shm", W_OK))
        tmp = "/dev/shm";
    sweep(tmp ? tmp : "/tmp");
    lab->work = lab_text("%s/cairn-faults-%d-XXXXXX", tmp ? tmp : "/tmp", (int)getpid());
    if (!mkdtemp(lab->work))
        lab_die("mkdtemp %s: %s", lab->work, strerror(errno));
    box = lab_text("%s/box", lab->work);
    dir = lab_text("%s/run", box);
    x.box = box;
    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    lab_argv_run(lab, "init", dir, &x, scratch);
    lab_run(lab, &x, &end);
    if (end.code)
        lab_die("init ended with %d: %s", end.code, end.last);
    links_read(lab, dir);
    for (int i = 0; i <= lab->nlinks; i++) {
        lab->before[i] = lab_text("%s/before-%02d", lab->work, i);
        lab_copy(dir, lab->before[i]);
        if (i == lab->nlinks)
            break;
        lab_argv(lab, i, dir, &x, scratch);
        lab_run(lab, &x, &end);
        if (end.code)
            lab_die("%s --step %s ended with %d: %s", scratch[0], scratch[1], end.code, end.last);
    }
    whole_run(lab, box, dir); /* nothing is left to do but what `cairn run` adds: its lock file */
    lab_remove(dir);
    whole_run(lab, box, dir); /* in one go it is the same */
    lab_remove(box);
    free(box);
    free(dir);
    free(top);
}

static void lab_close(struct lab *lab)
{
    if (!lab->work)
        return;
    lab_remove(lab->work);
    for (int i = 0; i < lab->nlinks; i++)
        free((char *)(uintptr_t)lab->link[i].eval);
    for (int i = 0; i <= lab->nlinks; i++)
        free(lab->before[i]);
    free(lab->bin);
    free(lab->shim);
    free(lab->recipe);
    free(lab->work);
    free(lab->digest);
    free(lab->listing);
    memset(lab, 0, sizeof *lab);
}

static void clean_up(void)
{
    for (int k = 0; getpid() == main_pid && k < LAB_KINDS; k++)
        if (shape_lab[k].work)
            cairn_tree_remove(shape_lab[k].work, NULL);
}

void lab_begin(const char *build)
{
    build_dir = lab_text("%s", build);
    main_pid = getpid();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    atexit(clean_up);
}

const struct lab *lab_get(enum lab_kind kind)
{
    if (shapes[kind].ranks > 1 && !lab_has_mpirun())
        return NULL;
    if (!shape_lab[kind].work)
        lab_open(&shape_lab[kind], kind);
    return &shape_lab[kind];
}

void lab_end_all(void)
{
    for (int k = 0; k < LAB_KINDS; k++)
        lab_close(&shape_lab[k]);
    free(build_dir);
}

int lab_link(const struct lab *lab, enum cairn_stage stage, int64_t step, const char *eval)
{
    for (int i = 0; i < lab->nlinks; i++)
        if (lab->link[i].stage == stage && lab->link[i].step == step &&
            !strcmp(lab->link[i].eval ? lab->link[i].eval : "", eval ? eval : ""))
            return i;
    lab_die("the run has no %s of step %lld", cairn_stage_name(stage), (long long)step);
}
