/* kills.c - whole runs that are killed, or asked to stop, at random moments, with 1, 2 and 4 ranks (F3, F21, F23, F24, F29, F46).
 *
 * kills: `cairn run` is started again and again; each time SIGKILL hits, at a moment drawn anew, all its processes, only `cairn
 * run` itself, or one of them; or one rank in the middle of a save beside the training, or everybody while that rank stands still
 * there. stops: the same with SIGTERM or SIGUSR1, sometimes a second and third time while it commits; it must end with 75 within
 * the grace time (or 0 when it was just done). What was committed before stays committed. At last the run is let go on and must be
 * the undisturbed one.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/faults/faults.h"
#include "world/shmname.h"

#define GRACE_S    30.0 /* Slurm's KillWait, where a site has not chosen another */
#define ROUNDS     4    /* disturbances of one run */
#define SAVE_CALLS 100  /* file operations of the saves beside a training, about: in the rank that commits */

enum whom { EVERYBODY, LEADER, ONE, ONE_IN_A_SAVE, EVERYBODY_IN_A_SAVE };
enum tally { SIGNALS, TO_EVERYBODY, TO_LEADER, TO_ONE, IN_A_SAVE };

static const struct layout {
    enum lab_kind kind;
    const char *name;
    long runs;
} layouts[] = {
    {LAB_PLAIN, "1 rank", 30},
    {LAB_UPDATES, "1 rank with saves beside the training", 30},
    {LAB_RANKS_2, "2 ranks with saves beside the training", 25},
    {LAB_RANKS_4, "4 ranks with saves beside the training", 25},
};
#define LAYOUTS  ((int)(sizeof layouts / sizeof *layouts))
#define FEW 20       /* with every so many-th run at most: without the slowest layout */
#define AT_LEAST 200 /* signals of all layouts, when everything is tried */

struct kills {
    const struct lab *lab;
    uint64_t seed;
    int stop;  /* stops instead of kills */
    int saves; /* there are saves beside the training */
};

static void sleep_s(double s)
{
    if (s > 0)
        nanosleep(&(struct timespec){(time_t)s, (long)((s - (double)(time_t)s) * 1e9)}, NULL);
}

static double uniform(uint64_t *r)
{
    return (double)(lab_random(r) >> 11) / 9007199254740992.0;
}

static int mpirun_hit; /* in the trial at hand an mpirun may have got a signal that was not meant for it */

/* Whoever there is of the run, in the order of /proc. */
static void signal_all(pid_t session, int signo)
{
    pid_t p[64];
    int n = lab_members(session, p, 64);

    mpirun_hit = 1;
    for (int i = 0; i < n; i++)
        kill(p[i], signo);
}

/* One of them, drawn; the leader if there is none to be seen. */
static pid_t member(pid_t session, uint64_t *r)
{
    pid_t p[64];
    int n = lab_members(session, p, 64);

    mpirun_hit = 1;
    return n ? p[lab_random(r) % (uint64_t)n] : session;
}

/* Until the shim has told that it fired (1), or the program has ended (0). */
static int wait_fire(const char *box, pid_t pid)
{
    char path[700];
    siginfo_t info;

    snprintf(path, sizeof path, "%s/report", box);
    for (;;) {
        struct cairn_error err = {0};
        char *text = NULL;
        size_t n;
        int fired;

        memset(&info, 0, sizeof info);
        if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid)
            return 0;
        fired =
            cairn_path_exists(path) && cairn_file_read(path, 1 << 24, &text, &n, &err) == CAIRN_OK && text && strstr(text, "fire ");
        free(text);
        if (fired)
            return 1;
        sleep_s(0.001);
    }
}

/* Every line of `before` that is no part of a step under way is a line of `now`. */
static int kept(const char *before, const char *now, char *why)
{
    for (const char *p = before; p && *p; p += strcspn(p, "\n") + 1) {
        char line[400];

        snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
        if (!strstr(line, "/train/") && !strstr(now, line)) {
            snprintf(why, WHY_BYTES, "was committed and is gone: %s", line);
            return 0;
        }
    }
    return 1;
}

/* A kill: whom and when is drawn. *hit: it was sent. */
static void kill_some(const char *box, pid_t pid, enum whom whom, uint64_t *r, double after, int *hit)
{
    *hit = 1;
    mpirun_hit = 1; /* of a leader that is gone it hears by SIGTERM */
    if (whom == ONE_IN_A_SAVE || whom == EVERYBODY_IN_A_SAVE) {
        *hit = wait_fire(box, pid);
        if (*hit && whom == EVERYBODY_IN_A_SAVE)
            signal_all(pid, SIGKILL);
    } else {
        sleep_s(after);
        if (whom == EVERYBODY)
            signal_all(pid, SIGKILL);
        else
            kill(whom == LEADER ? pid : member(pid, r), SIGKILL);
    }
}

/* A stop of the leader, or of everybody, as a terminal and Slurm do; perhaps again while it stops. */
static void stop_some(pid_t pid, enum whom whom, uint64_t *r, double after)
{
    int signo = lab_random(r) % 4 == 0 ? SIGUSR1 : SIGTERM, again = (int)(lab_random(r) % 3);

    sleep_s(after);
    if (whom == EVERYBODY)
        signal_all(pid, signo);
    else
        kill(pid, signo);
    for (int j = 0; j < again; j++) {
        sleep_s(uniform(r) * 0.05);
        signo = lab_random(r) % 2 ? SIGTERM : SIGUSR1;
        if (lab_random(r) % 2)
            signal_all(pid, signo);
        else
            kill(pid, signo);
    }
}

/* How it ended: 1 right. */
static int ended_right(const struct kills *k, const struct lab_end *e, double took, char *why)
{
    if (e->late || e->orphans)
        snprintf(why, WHY_BYTES, "%s", e->late ? "did not end" : "left processes behind");
    else if (k->stop && (e->code != 75 || e->lines < 1))
        snprintf(why, WHY_BYTES, "ended with %d, %d lines: %.400s", e->code, e->lines, e->last);
    else if (k->stop && took > GRACE_S)
        snprintf(why, WHY_BYTES, "took %.1f s to stop", took);
    else if (!k->stop && e->code != -SIGKILL && e->code != 75) /* a stage was killed: `cairn run` says so */
        snprintf(why, WHY_BYTES, "ended with %d: %.400s", e->code, e->last);
    else
        return 1;
    return 0;
}

/* 0: disturbed; 1: violated; 2: it was done before. */
static int disturb_once(const struct kills *k, const char *box, const char *dir, int round, uint64_t *r, char *why)
{
    enum whom whom = (enum whom)(lab_random(r) % (k->stop ? 2 : k->saves ? 5 : 3));
    double after = uniform(r) * k->lab->whole_s / (1 + round), sent; /* what is done stays done */
    int rank = (int)(lab_random(r) % (uint64_t)k->lab->ranks), hit = 1, held;
    long save_call = 1 + (long)(lab_random(r) % (rank ? SAVE_CALLS / 4 : SAVE_CALLS));
    char scratch[2][600], plan[200], none[WHY_BYTES], *before, *now;
    struct lab_exec x = {.box = box};
    struct lab_end e;
    pid_t pid;

    lab_argv_run(k->lab, "run", dir, &x, scratch);
    if (whom >= ONE_IN_A_SAVE) {
        snprintf(plan, sizeof plan, "n=%ld kind=%s under=/train/u rank=%d", save_call, whom == ONE_IN_A_SAVE ? "kill" : "stop",
                 rank);
        x.root = dir;
        x.plan = plan;
        x.program = "cairn-train";
    }
    before = round && cairn_path_exists(dir) ? lab_digest(dir, none) : NULL;
    pid = lab_start(k->lab, &x);
    if (k->stop)
        stop_some(pid, whom, r, after);
    else
        kill_some(box, pid, whom, r, after, &hit);
    sent = lab_now();
    lab_wait(&x, pid, &e);
    if (!e.code) {
        free(before);
        return 2;
    }
    lab_tally[SIGNALS] += hit;
    lab_tally[TO_EVERYBODY] += hit && (whom == EVERYBODY || whom == EVERYBODY_IN_A_SAVE);
    lab_tally[TO_LEADER] += hit && whom == LEADER;
    lab_tally[TO_ONE] += hit && (whom == ONE || whom == ONE_IN_A_SAVE);
    lab_tally[IN_A_SAVE] += hit && whom >= ONE_IN_A_SAVE;
    if (k->stop && (long)((lab_now() - sent) * 1000) > lab_tally[LAB_MOST])
        lab_tally[LAB_MOST] = (long)((lab_now() - sent) * 1000);
    held = ended_right(k, &e, lab_now() - sent, why);
    if (held && before && !(now = lab_digest(dir, why))) {
        held = 0;
    } else if (held && before) {
        held = kept(before, now, why);
        free(now);
    }
    if (!held)
        snprintf(why + strlen(why), WHY_BYTES - strlen(why), " (round %d, after %.3f s of about %.3f, to %d %s)", round, after,
                 k->lab->whole_s, (int)whom, e.where);
    free(before);
    return !held;
}

static int trial(void *arg, long i, const char *box, char *why)
{
    struct kills *k = arg;
    uint64_t r = k->seed * 1000003u + (uint64_t)i * 7919u + (uint64_t)k->stop;
    char dir[600], *left;
    int outcome = 0;

    mpirun_hit = 0;
    snprintf(dir, sizeof dir, "%s/run", box);
    for (int round = 0, early = 0; round < ROUNDS && outcome != 1; round++) {
        outcome = disturb_once(k, box, dir, round + early, &r, why);
        if (outcome == 2 && round + 1 < ROUNDS) { /* done: another run, sooner */
            lab_remove(dir);
            early += 2;
        }
    }
    if (outcome == 1)
        return 1;
    if (mpirun_hit) { /* killed, or signalled while it starts, it cannot remove its own directory; one that ends as `cairn run` wants it does */
        left = lab_text("rm -rf '%s'/tmp/ompi.*", box);
        if (system(left))
            lab_die("%s failed", left);
        free(left);
    }
    return !lab_go_on(k->lab, box, dir, 0, why) || !lab_box_clean(box, why);
}

static void name_of(void *arg, long i, char *out, size_t n)
{
    const struct kills *k = arg;

    snprintf(out, n, "%s --seed %llu, %d ranks, run %ld", k->stop ? "stops" : "kills", (unsigned long long)k->seed, k->lab->ranks,
             i);
}

static void one_more(void *arg, const char *path, int64_t bytes)
{
    (void)path;
    (void)bytes;
    ++*(long *)arg;
}

/* Shared memory of processes that are gone, and what an MPI has left outside of ours. */
static long shm_left(void)
{
    struct cairn_error err = {0};
    DIR *d = opendir(CAIRN_SHM_DIR);
    long n = 0;

    if (cairn_shm_sweep(CAIRN_SHM_DIR, 1, one_more, &n, &err) != CAIRN_OK)
        lab_die("%s", err.text);
    for (struct dirent *e; d && (e = readdir(d));)
        n += !strncmp(e->d_name, "vader_segment.", 14);
    if (d)
        closedir(d);
    return n;
}

static long disturb(const struct faults_opts *o, int stop)
{
    const char *part = stop ? "stops" : "kills";
    long violated = 0, all[5] = {0}, runs_all = 0, worst = 0, shm = shm_left();

    lab_part_pools(LAYOUTS);
    for (int i = 0; i < LAYOUTS; i++) {
        struct kills k = {.lab = lab_get(layouts[i].kind),
                          .seed = o->seed + (uint64_t)i * 31u,
                          .stop = stop,
                          .saves = layouts[i].kind != LAB_PLAIN};
        long runs = layouts[i].runs / o->every > 1 ? layouts[i].runs / o->every : 1;
        struct lab_counts c;
        double t0 = lab_now();
        char key[60];

        if (o->every >= FEW && layouts[i].kind == LAB_RANKS_4)
            continue;
        k.lab = lab_get(layouts[i].kind);
        if (!k.lab) {
            tap(1, "%s, %s # SKIP there is no mpirun", part, layouts[i].name);
            continue;
        }
        snprintf(key, sizeof key, "%s/%d", part, i);
        c = lab_pool_run(k.lab, &(struct lab_pool){o->jobs, runs, trial, name_of, &k}, key);
        if (stop)
            tap(!c.violated,
                "stops, %s: %ld SIGTERM or SIGUSR1 at random moments of %ld runs, %ld violations, the slowest ended after %ld ms, "
                "%.0f s",
                layouts[i].name, c.tally[SIGNALS], runs, c.violated, c.tally[LAB_MOST], lab_now() - t0);
        else
            tap(!c.violated, "kills, %s: %ld kills at random moments of %ld runs, %ld violations, %.0f s", layouts[i].name,
                c.tally[SIGNALS], runs, c.violated, lab_now() - t0);
        violated += c.violated;
        runs_all += runs;
        worst = c.tally[LAB_MOST] > worst ? c.tally[LAB_MOST] : worst;
        for (int t = 0; t < 5; t++)
            all[t] += c.tally[t];
    }
    if (o->every == 1) { /* the whole campaign has the machine for itself; a test may not */
        tap(shm_left() <= shm, "%s: %ld pieces of shared memory are nobody's, %ld before", part, shm_left(), shm);
        violated += shm_left() > shm;
        tap(all[SIGNALS] >= AT_LEAST, "%s: %ld, at least %d", part, all[SIGNALS], AT_LEAST);
    }
    if (stop)
        sum("%ld SIGTERM or SIGUSR1 at random moments of %ld runs of 1, 2 and 4 ranks (%ld to all processes), the slowest ended "
            "after %ld ms, %ld violations",
            all[SIGNALS], runs_all, all[TO_EVERYBODY], worst, violated);
    else
        sum("%ld kill -9 at random moments of %ld runs of 1, 2 and 4 ranks (%ld of all processes, %ld of cairn run, %ld of one "
            "process; %ld during a save "
            "beside the training), %ld violations",
            all[SIGNALS], runs_all, all[TO_EVERYBODY], all[TO_LEADER], all[TO_ONE], all[IN_A_SAVE], violated);
    return violated;
}

long faults_kills(const struct faults_opts *o)
{
    return disturb(o, 0);
}

long faults_stops(const struct faults_opts *o)
{
    return disturb(o, 1);
}
