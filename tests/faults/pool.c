/* pool.c - see pool.h. Workers are processes: a trial may change the directory, the mount space, the environment. */
#include "tests/faults/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"

#define TELL_EVERY_S 30.0

long lab_tally[LAB_TALLIES];

/* ---- the journal -------------------------------------------------------------------------------------------------------- */

static struct {
    int fd;
    char *path;
    char *known; /* what it held when it was opened; lines end with NUL */
    size_t n;
} journal = {.fd = -1};

void lab_journal_add(const char *fmt, ...)
{
    char line[2400];
    va_list ap;
    int n;

    if (journal.fd < 0)
        return;
    va_start(ap, fmt);
    n = vsnprintf(line, sizeof line - 1, fmt, ap);
    va_end(ap);
    n = n > (int)sizeof line - 2 ? (int)sizeof line - 2 : n;
    line[n++] = '\n';
    if (write(journal.fd, line, (size_t)n) != n)
        lab_die("write %s: %s", journal.path, strerror(errno));
}

/* The line at *at, which is moved behind it; NULL: no more. */
static const char *line_next(size_t *at)
{
    const char *line = journal.known + *at;

    if (*at >= journal.n)
        return NULL;
    *at += strlen(line) + 1;
    return line;
}

/* "WORD " at the beginning of *line, which is moved behind it. */
static int word_is(const char **line, const char *word)
{
    size_t n = strlen(word);

    if (strncmp(*line, word, n) || ((*line)[n] != ' ' && (*line)[n]))
        return 0;
    *line += n + ((*line)[n] == ' ');
    return 1;
}

long lab_journal_open(const char *path, const char *digest)
{
    struct cairn_error err = {0};
    const char *line;
    long lines = 0;
    size_t at = 0;

    if (!path)
        return 0;
    journal.path = lab_text("%s", path);
    if (cairn_path_exists(path) && cairn_file_read(path, (size_t)1 << 30, &journal.known, &journal.n, &err) != CAIRN_OK)
        lab_die("%s", err.text);
    while (journal.n && journal.known[journal.n - 1] != '\n') /* a line that a kill has cut */
        journal.n--;
    for (size_t i = 0; i < journal.n; i++)
        if (journal.known[i] == '\n')
            journal.known[i] = 0;
    line = line_next(&at);
    if (!line || !word_is(&line, "faults-journal") || !word_is(&line, "1") || strcmp(line, digest))
        journal.n = 0;
    while (line_next(&at))
        lines++;
    journal.fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | (journal.n ? 0 : O_TRUNC), 0666);
    if (journal.fd < 0 || (journal.n && ftruncate(journal.fd, (off_t)journal.n)))
        lab_die("%s: %s", path, strerror(errno));
    if (!journal.n)
        lab_journal_add("faults-journal 1 %s", digest);
    return lines;
}

void lab_journal_close(int finished)
{
    char *done;

    if (journal.fd < 0)
        return;
    close(journal.fd);
    done = lab_text("%s.done", journal.path);
    if (finished && rename(journal.path, done))
        lab_die("rename %s: %s", journal.path, strerror(errno));
    free(done);
    free(journal.path);
    free(journal.known);
    journal.fd = -1;
}

void lab_journal_each(const char *word, const char *part, void (*fn)(void *arg, const char *rest), void *arg)
{
    const char *line;
    size_t at = 0;

    while ((line = line_next(&at)))
        if (word_is(&line, word) && word_is(&line, part))
            fn(arg, line);
}

/* ---- how far ---------------------------------------------------------------------------------------------------------------- */

static struct {
    char name[40];
    double before, cost, total; /* of the part at hand */
    int pools, pool;            /* in all, done */
    double started_s, known;    /* when the campaign began, and how much the journal knew then and since */
} far;

void lab_part_begin(const char *name, double before, double cost, double total)
{
    if (!far.started_s)
        far.started_s = lab_now();
    snprintf(far.name, sizeof far.name, "%s", name);
    far.before = before;
    far.cost = cost;
    far.total = total;
    far.pools = far.pool = 0;
}

void lab_part_pools(int pools)
{
    far.pools = pools;
}

static void tell(const char *key, long done, long n, long bad)
{
    double part = far.pools ? (far.pool + (double)done / (double)(n ? n : 1)) / far.pools : 0;
    double all = far.total > 0 ? (far.before + far.cost * part) / far.total : 0, gone = lab_now() - far.started_s;

    fprintf(stderr, "# %s: %ld of %ld, %ld violations; %.1f min gone", key, done, n, bad, gone / 60);
    if (all - far.known > 0.005)
        fprintf(stderr, ", %.0f %% of all, about %.0f min left", 100 * all, gone / 60 * (1 - all) / (all - far.known));
    fprintf(stderr, "\n");
}

/* ---- trials ---------------------------------------------------------------------------------------------------------------------
 */

struct shared {
    atomic_long next;
    atomic_long held, violated, idle;
    atomic_long tally[LAB_TALLIES];
    unsigned char known[]; /* (n) 1: the journal has it */
};

static void count(struct shared *s, int outcome, const long *tally)
{
    atomic_fetch_add(outcome == 0 ? &s->held : outcome == 1 ? &s->violated : &s->idle, 1);
    for (int k = 0; k < LAB_TALLIES; k++) {
        if (k != LAB_MOST)
            atomic_fetch_add(&s->tally[k], tally[k]);
        else
            for (long w = atomic_load(&s->tally[k]); tally[k] > w && !atomic_compare_exchange_weak(&s->tally[k], &w, tally[k]);)
                ;
    }
}

static void remember(const char *key, long i, int outcome, const char *why)
{
    char tallies[1200] = "";
    size_t n = 0;

    for (int k = 0; k < LAB_TALLIES; k++)
        if (lab_tally[k] && n + 40 < sizeof tallies)
            n += (size_t)snprintf(tallies + n, sizeof tallies - n, " %d:%ld", k, lab_tally[k]);
    if (outcome == 1)
        lab_journal_add("violated %s %ld %s", key, i, why);
    lab_journal_add("trial %s %ld %c%s", key, i, "hvi"[outcome], tallies);
}

struct recall {
    struct shared *s;
    const struct lab_pool *pool;
};

static void recall(void *arg, const char *rest)
{
    struct recall *r = arg;
    long tally[LAB_TALLIES] = {0}, i, v;
    const char *outcomes = "hvi", *o;
    char *end;
    int k, used;

    i = strtol(rest, &end, 10);
    if (*end != ' ' || i < 0 || i >= r->pool->n || r->s->known[i] || !(o = end[1] ? strchr(outcomes, end[1]) : NULL))
        return;
    for (end += 2; sscanf(end, " %d:%ld%n", &k, &v, &used) == 2 && k >= 0 && k < LAB_TALLIES; end += used)
        tally[k] = v;
    r->s->known[i] = 1;
    count(r->s, (int)(o - outcomes), tally);
}

static void recall_why(void *arg, const char *rest)
{
    struct recall *r = arg;
    char name[300], *end;
    long i = strtol(rest, &end, 10);

    if (i < 0 || i >= r->pool->n || !r->s->known[i])
        return;
    r->pool->name(r->pool->arg, i, name, sizeof name);
    fprintf(stderr, "# violated (as the journal has it): %s:%s\n", name, end);
}

static void worker(const struct lab *lab, const struct lab_pool *pool, struct shared *s, const char *key, int w)
{
    char *box = lab_text("%s/box-%d", lab->work, w), why[WHY_BYTES], name[300];

    for (long i; (i = atomic_fetch_add(&s->next, 1)) < pool->n;) {
        int outcome;

        if (s->known[i])
            continue;
        if (mkdir(box, 0777))
            lab_die("mkdir %s: %s", box, strerror(errno));
        *why = 0;
        memset(lab_tally, 0, sizeof lab_tally);
        outcome = pool->trial(pool->arg, i, box, why);
        for (char *c = why; *c; c++)
            *c = *c == '\n' ? ' ' : *c;
        if (outcome == 1) {
            pool->name(pool->arg, i, name, sizeof name);
            fprintf(stderr, "# violated: %s: %s\n", name, why);
        }
        remember(key, i, outcome, why);
        count(s, outcome, lab_tally);
        lab_remove(box);
    }
    free(box);
}

struct lab_counts lab_pool_run(const struct lab *lab, const struct lab_pool *pool, const char *name)
{
    size_t bytes = sizeof(struct shared) + (size_t)pool->n;
    struct shared *s = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct recall r = {s, pool};
    struct lab_counts c;
    char key[100];
    double told = lab_now();
    int failed = 0, status, left = pool->jobs;
    pid_t *pids = calloc((size_t)pool->jobs, sizeof *pids);

    snprintf(key, sizeof key, "%s:%ld", name, pool->n); /* another number of trials: other trials */
    if (s == MAP_FAILED || !pids)
        lab_die("mmap: %s", strerror(errno));
    lab_journal_each("trial", key, recall, &r);
    lab_journal_each("violated", key, recall_why, &r);
    if (far.pools && far.total > 0 && pool->n)
        far.known += far.cost / far.total / far.pools * (double)(s->held + s->violated + s->idle) / (double)pool->n;
    fflush(NULL);
    for (int w = 0; w < pool->jobs; w++) {
        pid_t pid = fork();

        if (pid < 0)
            lab_die("fork: %s", strerror(errno));
        if (!pid) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            prctl(PR_SET_CHILD_SUBREAPER, 1);
            worker(lab, pool, s, key, w);
            fflush(NULL);
            _exit(0);
        }
        pids[w] = pid;
    }
    while (left) {
        pid_t pid = waitpid(-1, &status, WNOHANG);

        if (pid < 0)
            lab_die("%s: wait: %s", key, strerror(errno));
        for (int w = 0; w < pool->jobs; w++)
            if (pid && pid == pids[w]) { /* others are orphans */
                left--;
                failed |= status != 0;
            }
        if (pid)
            continue;
        if (lab_now() - told >= TELL_EVERY_S) {
            told = lab_now();
            tell(key, s->held + s->violated + s->idle, pool->n, s->violated);
        }
        usleep(5000);
    }
    if (failed)
        lab_die("%s: a worker ended badly", key);
    far.pool++;
    c = (struct lab_counts){.held = s->held, .violated = s->violated, .idle = s->idle};
    for (int k = 0; k < LAB_TALLIES; k++)
        c.tally[k] = s->tally[k];
    munmap(s, bytes);
    free(pids);
    return c;
}
