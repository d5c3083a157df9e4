/* growth.c - does anything grow? 500 steps of the micro run, stage by stage, with a SIGKILL in every tenth step; then a stretch of steps under
 * one `cairn run`.
 *
 * Held: the peak of resident memory of each stage (wait4) and its open descriptors stay what they were in the first steps; each step adds the
 * same number of files; no temporary, no attempt but the published one, no .MANIFEST.N, nothing in TMPDIR, no memory of ours in
 * /dev/shm; `cairn run` itself neither grows nor opens more. --every K does 500 / K steps, at least 60.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/str.h"
#include "tests/faults/faults.h"
#include "world/shmname.h"

#define STEPS 500
#define KILL_EVERY 10
#define WINDOW 20          /* steps that are compared: the second such window with the last */
#define SLACK_KB 384       /* pages that come and go between equal processes */
#define STAGES 4
#define UNDER_ONE 60       /* steps under one `cairn run` */

struct growth {
    const struct lab *lab;
    char box[500], dir[560];
    long steps;
    long *rss[STAGES]; /* (steps) peak KiB of the stage's undisturbed process */
    int *fds[STAGES];  /* (steps) most descriptors seen */
    double took[STAGES];
    uint64_t r;
    long kills, bad;
};

static void nap_ms(double ms)
{
    nanosleep(&(struct timespec){(time_t)(ms / 1e3), (long)(ms * 1e6) % 1000000000L}, NULL);
}

static int entries(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;

    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

static int descriptors(pid_t pid)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%ld/fd", (long)pid);
    return entries(path);
}

static long resident_kb(pid_t pid)
{
    char path[64], line[256];
    long kb = -1;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%ld/status", (long)pid);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmRSS: %ld", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb;
}

/* ---- what lies about -------------------------------------------------------------------------------------------------------- */

struct litter {
    long files;      /* all of them */
    long leftovers;  /* of those, such as no finished artefact has */
    char first[400];
};

static void litter_look(const char *path, int in_epoch, struct litter *l)
{
    DIR *d = opendir(path);
    int attempts = 0;

    for (struct dirent *e; d && (e = readdir(d));) {
        char below[1200];
        struct stat sb;
        int digits, is_attempt, stray;

        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        snprintf(below, sizeof below, "%.900s/%.255s", path, e->d_name);
        if (lstat(below, &sb))
            continue;
        digits = e->d_name[0] == 'a' && e->d_name[1] && !e->d_name[1 + strspn(e->d_name + 1, "0123456789")];
        is_attempt = digits && S_ISDIR(sb.st_mode);
        attempts += is_attempt;
        stray = strstr(e->d_name, ".tmp.") || !strncmp(e->d_name, ".MANIFEST.", 10) || (is_attempt && attempts > 1) ||
                (in_epoch && strspn(e->d_name, "0123456789") != strlen(e->d_name));
        if (stray && !l->leftovers++)
            snprintf(l->first, sizeof l->first, "%.399s", below);
        if (S_ISDIR(sb.st_mode))
            litter_look(below, !strcmp(e->d_name, "epoch"), l);
        else
            l->files++;
    }
    if (d)
        closedir(d);
}

static void one_more(void *arg, const char *path, int64_t bytes)
{
    (void)path;
    (void)bytes;
    ++*(int *)arg;
}

/* Shared memory of processes that are gone. */
static int shm_files(void)
{
    struct cairn_error err = {0};
    int n = 0;

    if (cairn_shm_sweep(CAIRN_SHM_DIR, 1, one_more, &n, &err) != CAIRN_OK)
        lab_die("%s", err.text);
    return n;
}

/* ---- one stage of one step ------------------------------------------------------------------------------------------------------ */

static void exec_of(const struct growth *g, long step, int stage, struct lab_exec *x, char scratch[2][600])
{
    *x = (struct lab_exec){.box = g->box};
    snprintf(scratch[0], sizeof scratch[0], "%s/cairn-%s", g->lab->bin, cairn_stage_name((enum cairn_stage)stage));
    snprintf(scratch[1], sizeof scratch[1], "%ld", step);
    x->argv[0] = scratch[0];
    x->argv[1] = g->dir;
    x->argv[2] = "--step";
    x->argv[3] = scratch[1];
    x->argv[4] = "--quiet";
}

/* To its end; its peak and descriptors are kept. */
static void stage_run(struct growth *g, long step, int stage)
{
    struct lab_exec x;
    char scratch[2][600];
    struct rusage u;
    double t0 = lab_now();
    int status, most = 0;
    pid_t pid, got;

    exec_of(g, step, stage, &x, scratch);
    pid = lab_start(g->lab, &x);
    while (!(got = wait4(pid, &status, WNOHANG, &u))) {
        int n = descriptors(pid);

        most = n > most ? n : most;
        if (lab_now() - t0 > 60)
            lab_die("step %ld %s hangs", step, scratch[0]);
        nap_ms(1);
    }
    if (got != pid || !WIFEXITED(status) || WEXITSTATUS(status))
        lab_die("step %ld %s ended with status %d", step, scratch[0], got == pid ? status : -1);
    while (waitpid(-pid, NULL, WNOHANG) > 0) /* its children come to us */
        ;
    g->rss[stage][step - 1] = u.ru_maxrss;
    g->fds[stage][step - 1] = most;
    g->took[stage] = lab_now() - t0;
}

/* Begun, and killed at some moment before it could end. 1: it was. */
static int stage_kill(struct growth *g, long step, int stage)
{
    struct lab_exec x;
    char scratch[2][600];
    struct lab_end end;
    pid_t pid;

    exec_of(g, step, stage, &x, scratch);
    pid = lab_start(g->lab, &x);
    nap_ms(1e3 * g->took[stage] * (double)(lab_random(&g->r) % 1000) / 1000);
    kill(-pid, SIGKILL);
    lab_wait(&x, pid, &end);
    g->kills += end.code == -SIGKILL;
    return end.code == -SIGKILL;
}

static int by_size(const void *a, const void *b)
{
    long x = *(const long *)a, y = *(const long *)b;

    return x < y ? -1 : x > y;
}

static long median(const long *v, int n)
{
    long copy[WINDOW];

    memcpy(copy, v, (size_t)n * sizeof *copy);
    qsort(copy, (size_t)n, sizeof *copy, by_size);
    return copy[n / 2];
}

static int most(const int *v, int n)
{
    int m = 0;

    for (int i = 0; i < n; i++)
        m = v[i] > m ? v[i] : m;
    return m;
}

static void held(struct growth *g, int ok, const char *what)
{
    g->bad += !ok;
    tap(ok, "%s", what);
}

/* ---- the parts --------------------------------------------------------------------------------------------------------------------- */

/* `cairn VERB` with another number of steps. */
static void driver_argv(const struct growth *g, const char *verb, const char *steps, struct lab_exec *x, char scratch[2][600])
{
    int n = 0;

    lab_argv_run(g->lab, verb, g->dir, x, scratch);
    x->box = g->box;
    while (x->argv[n])
        n++;
    x->argv[n++] = steps; /* the last word counts */
    x->argv[n] = NULL;
}

static void init(struct growth *g)
{
    char steps[40], scratch[2][600];
    struct lab_exec x = {0};
    struct lab_end end;

    snprintf(g->box, sizeof g->box, "%s/growth", g->lab->work);
    snprintf(g->dir, sizeof g->dir, "%s/run", g->box);
    snprintf(steps, sizeof steps, "run.steps=%ld", g->steps);
    if (mkdir(g->box, 0777))
        lab_die("mkdir %s: %s", g->box, strerror(errno));
    driver_argv(g, "init", steps, &x, scratch);
    lab_run(g->lab, &x, &end);
    if (end.code)
        lab_die("init ended with %d: %s", end.code, end.last);
    for (int s = 0; s < 2; s++) { /* the warm start and policy 0 */
        exec_of(g, 0, s ? CAIRN_STAGE_SYNC : CAIRN_STAGE_TRAIN, &x, scratch);
        lab_run(g->lab, &x, &end);
        if (end.code)
            lab_die("step 0 ended with %d: %s", end.code, end.last);
    }
}

/* Steps one by one; after each window: nothing left over, and as many new files as in the window before. */
static void steps_run(struct growth *g)
{
    struct litter before = {0}, now;
    long added = -1, uneven = 0, leftovers = 0, dirty = 0, owed = 0;
    char what[900], where[400] = "", tmp[600];

    snprintf(tmp, sizeof tmp, "%s/tmp", g->box);
    for (long step = 1; step <= g->steps; step++) {
        int victim = step % KILL_EVERY == 0 ? (int)(lab_random(&g->r) % STAGES) : STAGES;

        for (int s = 0; s < STAGES; s++) {
            owed += s == victim;
            if (owed && stage_kill(g, step, s)) /* one that had ended before is owed to the next stage */
                owed--;
            stage_run(g, step, s);
        }
        if (step % WINDOW)
            continue;
        now = (struct litter){0};
        litter_look(g->dir, 0, &now);
        if (step == 2 * WINDOW) /* the first window holds what a run begins with */
            added = now.files - before.files;
        else if (step > 2 * WINDOW)
            uneven += now.files - before.files != added;
        if (now.leftovers && !leftovers)
            snprintf(where, sizeof where, "%s", now.first);
        leftovers += now.leftovers;
        dirty += entries(tmp) != 0;
        before = now;
    }
    snprintf(what, sizeof what, "growth: %ld files more every %d steps, in every window (%ld windows differ)", added, WINDOW, uneven);
    held(g, added > 0 && !uneven, what);
    snprintf(what, sizeof what, "growth: no leftovers of %ld kills in %ld steps (%ld found%s%s)", g->kills, g->steps, leftovers,
             leftovers ? ", first " : "", where);
    held(g, !leftovers, what);
    snprintf(what, sizeof what, "growth: TMPDIR is empty after every window");
    held(g, !dirty, what);
}

static void stages_compare(struct growth *g)
{
    for (int s = 0; s < STAGES; s++) {
        long early = median(g->rss[s] + WINDOW, WINDOW), late = median(g->rss[s] + g->steps - WINDOW, WINDOW);
        int early_fd = most(g->fds[s] + WINDOW, WINDOW), late_fd = most(g->fds[s] + g->steps - WINDOW, WINDOW);
        const char *name = cairn_stage_name((enum cairn_stage)s);
        char what[200];

        snprintf(what, sizeof what, "growth: %s peaks at %ld KiB in steps %d to %d, at %ld KiB in the last %d", name, early, WINDOW + 1, 2 * WINDOW,
                 late, WINDOW);
        held(g, late <= early + SLACK_KB, what);
        snprintf(what, sizeof what, "growth: %s has at most %d descriptors, then %d", name, early_fd, late_fd);
        held(g, late_fd <= early_fd + 2, what); /* what is seen depends on when it is looked at */
    }
}

static int policies(const struct growth *g)
{
    char path[640];

    snprintf(path, sizeof path, "%s/policy", g->dir);
    return entries(path);
}

/* One process for many steps. */
static void driver_run(struct growth *g)
{
    char steps[40], what[300], scratch[2][600];
    struct lab_exec x = {0};
    long early = 0, late = 0;
    int early_fd = 0, late_fd = 0, status, from = policies(g);
    double t0 = lab_now();
    pid_t pid, got;

    snprintf(steps, sizeof steps, "run.steps=%ld", g->steps + UNDER_ONE);
    driver_argv(g, "run", steps, &x, scratch);
    pid = lab_start(g->lab, &x);
    while (!(got = waitpid(pid, &status, WNOHANG))) {
        long kb = resident_kb(pid);
        int n = descriptors(pid), done = policies(g) - from;

        if (done >= 5 && done < 15) {
            early = kb > early ? kb : early;
            early_fd = n > early_fd ? n : early_fd;
        } else if (done >= UNDER_ONE - 10) {
            late = kb > late ? kb : late;
            late_fd = n > late_fd ? n : late_fd;
        }
        if (lab_now() - t0 > 300)
            lab_die("cairn run hangs");
        nap_ms(2);
    }
    if (got != pid || !WIFEXITED(status) || WEXITSTATUS(status))
        lab_die("cairn run ended with status %d", got == pid ? status : -1);
    snprintf(what, sizeof what, "growth: cairn run has %ld KiB and %d descriptors in its steps 5 to 14, %ld KiB and %d in its steps %d to %d", early,
             early_fd, late, late_fd, UNDER_ONE - 10, UNDER_ONE);
    held(g, early && late && late <= early + SLACK_KB && late_fd <= early_fd + 1, what);
}

long faults_growth(const struct faults_opts *o)
{
    struct growth g = {.lab = lab_get(LAB_UPDATES), .steps = STEPS / o->every, .r = o->seed * 2654435761u + 17};
    int shm = shm_files(), after = 0;
    char what[200];

    g.steps = g.steps < 3 * WINDOW ? 3 * WINDOW : g.steps - g.steps % WINDOW;
    for (int s = 0; s < STAGES; s++) {
        g.rss[s] = calloc((size_t)g.steps, sizeof *g.rss[s]);
        g.fds[s] = calloc((size_t)g.steps, sizeof *g.fds[s]);
        if (!g.rss[s] || !g.fds[s])
            lab_die("out of memory");
    }
    init(&g);
    steps_run(&g);
    stages_compare(&g);
    driver_run(&g);
    for (int i = 0; i < 600 && (after = shm_files()) > shm; i++) /* what is killed by another part just now goes */
        usleep(100000);
    snprintf(what, sizeof what, "growth: %d files in /dev/shm are nobody's, %d before", after, shm);
    held(&g, after <= shm, what);
    sum("%ld steps with %ld kills, then %d under one cairn run: %ld of memory, descriptors, files or shared memory grew", g.steps, g.kills, UNDER_ONE,
        g.bad);
    for (int s = 0; s < STAGES; s++) {
        free(g.rss[s]);
        free(g.fds[s]);
    }
    lab_remove(g.box);
    return g.bad;
}
