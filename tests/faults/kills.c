/* kills.c - whole runs that are killed, or asked to stop, at random moments (F3, F21, F23, F24).
 *
 * kills: `cairn run` is started again and again; each time SIGKILL hits, at a moment drawn anew, all its processes, only `cairn run` itself, or
 * one of them. stops: the same with SIGTERM or SIGUSR1, sometimes a second and third time while it commits;
 * it must end with 75 within the grace time (or 0 when it was just done). At last the run is let go on and must be the undisturbed one.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/faults/faults.h"

#define GRACE_S 10.0
#define ROUNDS 4 /* disturbances of one run */

struct kills {
    const struct lab *lab;
    uint64_t seed;
    int stop;                 /* stops instead of kills */
    double whole_s;           /* what an undisturbed run takes */
    atomic_long *signals;     /* sent while the run was at work */
    atomic_long *worst_ms;    /* of the time to end after a stop */
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

/* Whoever there is of the run, in the order of /proc. */
static void signal_all(pid_t session, int signo)
{
    pid_t p[64];
    int n = lab_members(session, p, 64);

    for (int i = 0; i < n; i++)
        kill(p[i], signo);
}

/* One of them, drawn; the leader if there is none to be seen. */
static pid_t member(pid_t session, uint64_t *r)
{
    pid_t p[64];
    int n = lab_members(session, p, 64);

    return n ? p[lab_random(r) % (uint64_t)n] : session;
}

static int trial(void *arg, long i, const char *box, char *why)
{
    struct kills *k = arg;
    uint64_t r = k->seed * 1000003u + (uint64_t)i * 7919u + (uint64_t)k->stop;
    char dir[600], cairn[600];
    struct lab_exec x = {.argv = {cairn, "run", k->lab->recipe, "--run", dir, "--quiet", NULL}, .box = box, .limit_s = 60};
    struct lab_end e;

    snprintf(dir, sizeof dir, "%s/run", box);
    snprintf(cairn, sizeof cairn, "%s/cairn", k->lab->bin);
    for (int round = 0; round < ROUNDS; round++) {
        int whom = (int)(lab_random(&r) % 3), again = (int)(lab_random(&r) % 3), signo = k->stop && lab_random(&r) % 4 == 0 ? SIGUSR1 : SIGTERM;
        double after = uniform(&r) * k->whole_s / (1 + round), sent, took; /* what is done stays done */
        pid_t pid = lab_start(k->lab, &x);

        if (!k->stop)
            signo = SIGKILL;
        sleep_s(after);
        sent = lab_now();
        if (whom == 0)
            signal_all(pid, signo);
        else if (whom == 1 || k->stop) /* who stops asks `cairn run`, or everybody as a terminal and Slurm do */
            kill(pid, signo);
        else
            kill(member(pid, &r), signo);
        for (int j = 0; k->stop && j < again; j++) {
            sleep_s(uniform(&r) * 0.05);
            if (lab_random(&r) % 2)
                signal_all(pid, lab_random(&r) % 2 ? SIGTERM : SIGUSR1);
            else
                kill(pid, lab_random(&r) % 2 ? SIGTERM : SIGUSR1);
        }
        lab_wait(&x, pid, &e);
        took = lab_now() - sent;
        if (e.late || e.orphans) {
            snprintf(why, WHY_BYTES, "after signal %d to %d: %s", signo, whom, e.late ? "did not end" : "left processes behind");
            return 1;
        }
        if (!e.code)
            break;
        atomic_fetch_add(k->signals, 1);
        if (k->stop) {
            long ms = (long)(took * 1000);

            if (e.code == -SIGTERM || e.code == -SIGUSR1) { /* came before main: nothing can be done about that */
                if (after > 0.25 * k->whole_s) {
                    snprintf(why, WHY_BYTES, "died of signal %d after %.3f s", -e.code, after);
                    return 1;
                }
                continue;
            }
            if (e.code != 75 || e.lines < 1) {
                snprintf(why, WHY_BYTES, "signal %d after %.3f s of about %.3f: ended with %d: %.400s", signo, after, k->whole_s, e.code, e.last);
                return 1;
            }
            for (long w = atomic_load(k->worst_ms); ms > w && !atomic_compare_exchange_weak(k->worst_ms, &w, ms);)
                ;
            if (took > GRACE_S) {
                snprintf(why, WHY_BYTES, "took %.1f s to stop", took);
                return 1;
            }
        } else if (e.code != -SIGKILL && e.code != 75) { /* a stage was killed: `cairn run` says so */
            snprintf(why, WHY_BYTES, "ended with %d: %.400s", e.code, e.last);
            return 1;
        }
    }
    return !lab_go_on(k->lab, box, dir, 0, why) || !lab_box_clean(box, why);
}

static void name_of(void *arg, long i, char *out, size_t n)
{
    const struct kills *k = arg;

    snprintf(out, n, "%s --seed %llu, run %ld", k->stop ? "stops" : "kills", (unsigned long long)k->seed, i);
}

static long disturb(const struct lab *lab, const struct faults_opts *o, int stop)
{
    atomic_long *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct kills k = {.lab = lab, .seed = o->seed, .stop = stop, .signals = shared, .worst_ms = shared + 1};
    long runs = 100 / o->every > 2 ? 100 / o->every : 2;
    struct lab_counts c;
    double t0 = lab_now();

    if (shared == MAP_FAILED)
        lab_die("mmap");
    k.whole_s = lab->whole_s;
    c = lab_pool_run(lab, &(struct lab_pool){o->jobs, runs, trial, name_of, &k}, stop ? "stops" : "kills");
    if (stop)
        tap(!c.violated, "stops: %ld SIGTERM or SIGUSR1 at random moments of %ld runs, %ld violations, the slowest ended after %ld ms, %.0f s",
            atomic_load(k.signals), runs, c.violated, atomic_load(k.worst_ms), lab_now() - t0);
    else
        tap(!c.violated, "kills: %ld kills at random moments of %ld runs, %ld violations, %.0f s", atomic_load(k.signals), runs, c.violated,
            lab_now() - t0);
    munmap(shared, 4096);
    return c.violated;
}

long faults_kills(const struct lab *lab, const struct faults_opts *o)
{
    return disturb(lab, o, 0);
}

long faults_stops(const struct lab *lab, const struct faults_opts *o)
{
    return disturb(lab, o, 1);
}
