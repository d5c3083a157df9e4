/* threads.c - the shim itself: a fault that is bound to a call of one thread is met there, whatever another thread does meanwhile.
 *
 * The program is this one (child-threads): its first thread opens, reads, writes and closes DIR/a, the other one lists DIR and opens and closes
 * DIR/b, both with pauses that differ from run to run. An EAGAIN that is meant for a read must never be a close's; and each fault must fire.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/faults/faults.h"

#define ROUNDS 6  /* of each thread */
#define REPEATS 20 /* of each fault */
#define CALLS 200

/* ---- the program -------------------------------------------------------------------------------------------------------------- */

static void dawdle(uint64_t *random)
{
    nanosleep(&(struct timespec){0, (long)(lab_random(random) % 60000)}, NULL);
}

static void *second(void *arg)
{
    const char *dir = arg;
    char *path = lab_text("%s/b", dir);
    uint64_t random = (uint64_t)getpid() * 2 + 1;

    for (int i = 0; i < ROUNDS; i++) {
        DIR *d = opendir(dir);
        int fd;

        dawdle(&random);
        while (d && readdir(d))
            ;
        if (d)
            closedir(d);
        dawdle(&random);
        if ((fd = open(path, O_RDONLY | O_CLOEXEC)) >= 0)
            close(fd);
    }
    free(path);
    return NULL;
}

int faults_child_threads(const char *dir)
{
    char *path = lab_text("%s/a", dir), byte[4];
    uint64_t random = (uint64_t)getpid() * 2;
    pthread_t other;

    if (pthread_create(&other, NULL, second, (void *)(uintptr_t)dir))
        return 70;
    for (int i = 0; i < ROUNDS; i++) {
        int fd = open(path, O_RDWR | O_CLOEXEC);

        dawdle(&random);
        if (fd < 0)
            continue;
        if (read(fd, byte, sizeof byte) < 0)
            dawdle(&random);
        if (write(fd, "more", 4) < 0)
            dawdle(&random);
        dawdle(&random);
        close(fd);
    }
    pthread_join(other, NULL);
    free(path);
    return 0;
}

/* ---- what is tried ----------------------------------------------------------------------------------------------------------- */

struct call {
    enum fault_op op;
    int thread;
    long n;      /* its number in its thread */
    char path[16];
};

struct threads {
    const struct lab *lab;
    char *self;
    struct call call[CALLS];
    long calls;
};

/* The program in a fresh box/dir under a plan. */
static void start(const struct threads *t, const char *box, const char *plan, struct lab_end *e)
{
    char *dir = lab_text("%s/run", box), *a = lab_text("%s/a", dir), *b = lab_text("%s/b", dir);
    struct lab_exec x = {.argv = {t->self, "child-threads", dir}, .box = box, .root = dir, .plan = plan};
    int fd[2];

    if (mkdir(dir, 0777) || (fd[0] = open(a, O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) < 0 ||
        (fd[1] = open(b, O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) < 0)
        lab_die("%s: %s", dir, strerror(errno));
    if (write(fd[0], "here is something to read", 25) != 25 || close(fd[0]) || close(fd[1]))
        lab_die("%s: %s", a, strerror(errno));
    lab_run(t->lab, &x, e);
    free(dir);
    free(a);
    free(b);
}

static int trial(void *arg, long i, const char *box, char *why)
{
    const struct threads *t = arg;
    const struct call *c = &t->call[i % t->calls];
    const int transfer = c->op == OP_READ || c->op == OP_WRITE;
    char plan[200], want[60];
    struct lab_end e;

    snprintf(plan, sizeof plan, "n=%ld thread=%d may=%u kind=errno errno=%d", c->n, c->thread,
             transfer ? 1u << OP_READ | 1u << OP_WRITE : 1u << c->op, transfer ? EAGAIN : EIO);
    start(t, box, plan, &e);
    snprintf(want, sizeof want, " %s", c->path);
    if (e.code || e.late || e.orphans)
        snprintf(why, WHY_BYTES, "ended with %d: %.300s", e.code, e.last);
    else if (!e.fired)
        snprintf(why, WHY_BYTES, "%s of %s, call %ld of thread %d: nothing happened", fault_op_name[c->op], c->path, c->n, c->thread);
    else if (e.op != c->op || !fault_ends(e.where, want))
        snprintf(why, WHY_BYTES, "meant for %s of %s, met %.300s", fault_op_name[c->op], c->path, e.where);
    else
        return 0;
    return 1;
}

static void name_of(void *arg, long i, char *out, size_t n)
{
    const struct threads *t = arg;
    const struct call *c = &t->call[i % t->calls];

    snprintf(out, n, "threads, trial %ld: call %ld of thread %d", i, c->n, c->thread);
}

/* Its calls, of a run to which nothing happens. */
static void calls_read(struct threads *t)
{
    char *box = lab_text("%s/threads", t->lab->work), *report = lab_text("%s/report", box), *line = NULL;
    long made[2] = {0, 0};
    struct lab_end e;
    size_t cap = 0;
    FILE *f;

    if (mkdir(box, 0777))
        lab_die("mkdir %s: %s", box, strerror(errno));
    start(t, box, "trace=1", &e);
    if (e.code || !(f = fopen(report, "re")))
        lab_die("%s: ended with %d: %s", t->self, e.code, e.last);
    while (getline(&line, &cap, f) > 0) {
        struct call c = {0};
        char op[16];

        if (sscanf(line, "call %*d %15s %*s %*d %d %15s", op, &c.thread, c.path) != 3)
            continue;
        if (c.thread < 0 || c.thread > 1 || t->calls == CALLS)
            lab_die("a call of thread %d, after %ld calls", c.thread, t->calls);
        while (c.op < OPS && strcmp(fault_op_name[c.op], op))
            c.op++;
        c.n = ++made[c.thread];
        t->call[t->calls++] = c;
    }
    fclose(f);
    free(line);
    lab_remove(box);
    free(box);
    free(report);
    if (made[0] < 4 * ROUNDS || made[1] < 4 * ROUNDS)
        lab_die("child-threads: %ld and %ld calls", made[0], made[1]);
}

long faults_threads(const struct faults_opts *o)
{
    struct threads t = {.lab = lab_get(LAB_PLAIN), .self = realpath("/proc/self/exe", NULL)};
    long repeats = REPEATS / o->every > 1 ? REPEATS / o->every : 1;
    struct lab_counts c;

    if (!t.self)
        lab_die("/proc/self/exe: %s", strerror(errno));
    lab_part_pools(1);
    calls_read(&t);
    c = lab_pool_run(t.lab, &(struct lab_pool){o->jobs, repeats * t.calls, trial, name_of, &t}, "threads");
    tap(!c.violated, "threads: %ld faults bound to one of %ld calls of two threads, %ld elsewhere or nowhere", c.held + c.violated, t.calls,
        c.violated);
    sum("%ld faults in one of two threads, %ld elsewhere or nowhere", c.held + c.violated, c.violated);
    free(t.self);
    return c.violated;
}
