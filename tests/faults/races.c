/* races.c - two and three attempts at once on one artefact (F16-F18, F31), readers against a collector (F52).
 *
 * takeover: attempt 1 is stopped (SIGSTOP) at its n-th file operation, for n = 1, 2, 3 ...; attempt 2 runs: to its end, is killed at some
 * operation of its own, or is stopped, too, while attempt 3 runs; then all are let go on, the last stopped first.
 * together: two or three start at once, each delayed for a while at a random operation.
 * Exactly one publishes: every one ends with 0 or 71 and the run goes on to the same bits, with nothing of the losers left.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/faults/faults.h"

#define ATTEMPTS 3
#define TOGETHER 60 /* starts of two or three at once, of each subject */

enum second { SECOND_ENDS, SECOND_KILLED, SECOND_STOPPED, SECONDS };

struct races {
    const struct lab *lab;
    const struct faults_opts *o;
    int link;
    long calls;    /* of an undisturbed attempt */
    int together;  /* not stopped, delayed */
    int stopped;   /* how many were caught by their stop: shared */
};

static const struct {
    const char *name;
    enum cairn_stage stage;
    const char *eval;
} subjects[] = {
    {"rollout", CAIRN_STAGE_ROLLOUT, NULL}, {"score", CAIRN_STAGE_SCORE, NULL}, {"train", CAIRN_STAGE_TRAIN, NULL},
    {"sync", CAIRN_STAGE_SYNC, NULL},       {"eval-rollout", CAIRN_STAGE_ROLLOUT, "held"},
};
#define SUBJECTS ((int)(sizeof subjects / sizeof *subjects))

/* One attempt: a program with its own box (for stderr and report) in the same run. */
struct attempt {
    char box[600], plan[120], scratch[2][600];
    struct lab_exec x;
    struct lab_end end;
    pid_t pid;
};

static void attempt_start(const struct races *s, struct attempt *a, const char *box, const char *dir, int number)
{
    snprintf(a->box, sizeof a->box, "%s/attempt-%d", box, number);
    if (mkdir(a->box, 0777))
        lab_die("mkdir %s: %s", a->box, strerror(errno));
    a->x = (struct lab_exec){.box = a->box, .root = dir, .plan = a->plan};
    lab_argv(s->lab, s->link, dir, &a->x, a->scratch);
    a->pid = lab_start(s->lab, &a->x);
}

/* Until it has stopped or ended. 1: stopped. */
static int wait_stop(struct attempt *a)
{
    siginfo_t info;

    memset(&info, 0, sizeof info);
    while (waitid(P_PID, (id_t)a->pid, &info, WSTOPPED | WEXITED | WNOWAIT))
        if (errno != EINTR)
            lab_die("waitid: %s", strerror(errno));
    return info.si_code == CLD_STOPPED;
}

static int judge(struct attempt *a, int n, int killed, char *why)
{
    int published = 0, done = 0;

    for (int i = 0; i < n; i++) {
        const struct lab_end *e = &a[i].end;

        if (e->late || e->orphans || e->outside) {
            snprintf(why, WHY_BYTES, "attempt %d: %s (%s)", i + 1,
                     e->late      ? "did not end"
                     : e->orphans ? "left processes behind"
                                  : "changed something",
                     e->where);
            return 0;
        }
        if (e->code != 0 && e->code != 71 && !(i == killed && e->code == -SIGKILL)) {
            snprintf(why, WHY_BYTES, "attempt %d ended with %d (%.200s): %.380s", i + 1, e->code, e->where, e->last);
            return 0;
        }
        published += e->published;
        done += !e->code;
    }
    if (published > 1 || published < (done > 0)) {
        snprintf(why, WHY_BYTES, "%d of %d attempts published, %d ended with 0", published, n, done);
        return 0;
    }
    return 1;
}

static int after(const struct races *s, struct attempt *a, int n, const char *box, const char *dir, char *why)
{
    char text[WHY_BYTES];

    for (int i = 0; i < n; i++)
        lab_remove(a[i].box);
    if (lab_go_on(s->lab, box, dir, 0, why))
        return !lab_box_clean(box, why);
    snprintf(text, sizeof text, "%s", why);
    snprintf(why, WHY_BYTES, "%.480s (", text);
    for (int i = 0; i < n; i++)
        snprintf(why + strlen(why), WHY_BYTES - strlen(why), "%s%d at %.60s", i ? ", " : "", a[i].end.code, a[i].end.fired ? a[i].end.where : "-");
    snprintf(why + strlen(why), WHY_BYTES - strlen(why), ")");
    return 1;
}

static int takeover(void *arg, long i, const char *box, char *why)
{
    struct races *s = arg;
    uint64_t r = s->o->seed * 77u + (uint64_t)i;
    enum second what = (enum second)(i % SECONDS);
    long n = i / SECONDS + 1, m = 1 + (long)(lab_random(&r) % (uint64_t)s->calls);
    struct attempt a[ATTEMPTS];
    char dir[600];
    int count = what == SECOND_STOPPED ? 3 : 2;

    memset(a, 0, sizeof a);
    snprintf(dir, sizeof dir, "%s/run", box);
    lab_copy(s->lab->before[s->link], dir);
    snprintf(a[0].plan, sizeof a[0].plan, "n=%ld kind=stop", n);
    attempt_start(s, &a[0], box, dir, 1);
    if (!wait_stop(&a[0])) {
        lab_wait(&a[0].x, a[0].pid, &a[0].end);
        return 2;
    }
    snprintf(a[1].plan, sizeof a[1].plan, "n=%ld kind=%s", what == SECOND_ENDS ? 0 : m, what == SECOND_STOPPED ? "stop" : "kill");
    attempt_start(s, &a[1], box, dir, 2);
    if (what == SECOND_STOPPED) {
        wait_stop(&a[1]);
        attempt_start(s, &a[2], box, dir, 3);
        lab_wait(&a[2].x, a[2].pid, &a[2].end);
        kill(a[1].pid, SIGCONT);
    }
    lab_wait(&a[1].x, a[1].pid, &a[1].end);
    kill(a[0].pid, SIGCONT);
    lab_wait(&a[0].x, a[0].pid, &a[0].end);
    return !judge(a, count, what == SECOND_KILLED ? 1 : -1, why) || after(s, a, count, box, dir, why);
}

static int together(void *arg, long i, const char *box, char *why)
{
    struct races *s = arg;
    uint64_t r = s->o->seed * 7777u + (uint64_t)i;
    int count = 2 + (int)(lab_random(&r) % 2);
    struct attempt a[ATTEMPTS];
    char dir[600];

    memset(a, 0, sizeof a);
    snprintf(dir, sizeof dir, "%s/run", box);
    lab_copy(s->lab->before[s->link], dir);
    for (int k = 0; k < count; k++) {
        snprintf(a[k].plan, sizeof a[k].plan, "n=%ld kind=delay ms=%d", 1 + (long)(lab_random(&r) % (uint64_t)s->calls),
                 (int)(lab_random(&r) % 60));
        attempt_start(s, &a[k], box, dir, k + 1);
    }
    for (int k = 0; k < count; k++)
        lab_wait(&a[k].x, a[k].pid, &a[k].end);
    return !judge(a, count, -1, why) || after(s, a, count, box, dir, why);
}

static void name_of(void *arg, long i, char *out, size_t n)
{
    const struct races *s = arg;
    static const char *const seconds[] = {"the second ends", "the second is killed", "the second is stopped for a third"};

    if (s->together)
        snprintf(out, n, "races, together, trial %ld", i);
    else
        snprintf(out, n, "races, takeover at call %ld, %s, trial %ld", i / SECONDS + 1, seconds[i % SECONDS], i);
}

struct every_of {
    struct races *s;
    long every;
};

static int takeover_some(void *arg, long i, const char *box, char *why)
{
    const struct every_of *e = arg;

    return takeover(e->s, i * e->every + i % e->every % SECONDS, box, why);
}

static void name_some(void *arg, long i, char *out, size_t n)
{
    const struct every_of *e = arg;

    name_of(e->s, i * e->every + i % e->every % SECONDS, out, n);
}

static long calls_of(const struct races *s)
{
    char box[600], dir[620];
    struct attempt a;

    memset(&a, 0, sizeof a);
    snprintf(box, sizeof box, "%s/races", s->lab->work);
    snprintf(dir, sizeof dir, "%s/run", box);
    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    lab_copy(s->lab->before[s->link], dir);
    attempt_start(s, &a, box, dir, 1);
    lab_wait(&a.x, a.pid, &a.end);
    if (a.end.code || !a.end.calls)
        lab_die("races: %s ended with %d: %s", a.scratch[0], a.end.code, a.end.last);
    lab_remove(box);
    return a.end.calls;
}

long faults_races(const struct faults_opts *o)
{
    long violated = 0, takeovers = 0, starts = 0;

    lab_part_pools(2 * SUBJECTS);
    for (int i = 0; i < SUBJECTS; i++) {
        const struct lab *lab = lab_get(subjects[i].eval ? LAB_WHOLE : LAB_PLAIN);
        struct races s = {.lab = lab, .o = o};
        struct every_of e = {&s, o->every};
        struct lab_counts c, d;
        double t0 = lab_now();
        long pairs = TOGETHER / o->every > 1 ? TOGETHER / o->every : 1;
        char key[2][60];

        if (o->subject && strcmp(o->subject, subjects[i].name))
            continue;
        snprintf(key[0], sizeof key[0], "takeover/%s", subjects[i].name);
        snprintf(key[1], sizeof key[1], "together/%s", subjects[i].name);
        s.link = lab_link(lab, subjects[i].stage, 2, subjects[i].eval);
        s.calls = calls_of(&s);
        c = lab_pool_run(lab, &(struct lab_pool){o->jobs, s.calls * SECONDS / o->every, takeover_some, name_some, &e}, key[0]);
        s.together = 1;
        d = lab_pool_run(lab, &(struct lab_pool){o->jobs, pairs, together, name_of, &s}, key[1]);
        tap(!c.violated && !d.violated, "races, %s: %ld takeovers, %ld starts together, %ld violations, %.0f s", subjects[i].name,
            c.held + c.violated, d.held + d.violated, c.violated + d.violated, lab_now() - t0);
        violated += c.violated + d.violated;
        takeovers += c.held + c.violated;
        starts += d.held + d.violated;
    }
    sum("%ld takeovers of a stopped attempt, %ld starts together of two or three, %ld violations", takeovers, starts, violated);
    return violated;
}
