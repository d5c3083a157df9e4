/* hold.c - build/lib/hold.so, preloaded: keeps a stage where a test wants it until it has been told to stop.
 *
 *     CAIRN_HOLD       a directory. CAIRN_HOLD/<stage>.<step> says where and for how long: "PHASE N"
 *     .../<stage>.<step>.at      made when it is there, with its pid; nobody is held twice
 *     .../<stage>.<step>.told    a line for each signal that came meanwhile
 *     .../<stage>.<step>.late    nobody came for LATE_S seconds
 *
 * N: it goes on after that many signals; 0: never. Phases, by what the process is about to do:
 *     exec       the program's first instruction: nobody listens to signals yet
 *     start-up   run.json is opened: no world, no device
 *     load       the first tensor or rollout of an input is opened
 *     work       a shard of its own is created: the first one (train: in the middle of its updates), of several units the second
 *     commit     the manifest is linked into place
 *     shutdown   everything is done, the process ends
 * Rank 0 only. Signals are counted by standing before the program's handler.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LATE_S 180

static struct {
    char base[PATH_MAX]; /* CAIRN_HOLD/<stage>.<step>; "": this process is not meant */
    char own[PATH_MAX];  /* its artefact, without the run directory: "/step/000003/train/" */
    char phase[32];
    int signals, shards, train;
} hold;
static atomic_int told; /* SIGTERMs whose handler has run */
static void (*handler)(int);

static void mark(const char *suffix, const char *text, int flags)
{
    char path[PATH_MAX + 16];
    int fd;

    snprintf(path, sizeof path, "%s%s", hold.base, suffix);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644);
    if (fd >= 0) {
        if (write(fd, text, strlen(text)) < 0)
            _exit(99);
        close(fd);
    }
}

static void reach(const char *phase)
{
    struct timespec nap = {0, 20000000};
    int keep = errno, seen = 0, from = told, fd;
    char path[PATH_MAX + 16], pid[32];

    if (!hold.base[0] || strcmp(hold.phase, phase))
        return;
    hold.phase[0] = 0; /* before anything that comes back here */
    snprintf(path, sizeof path, "%s.at.new", hold.base);
    snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) { /* held once before */
        errno = keep;
        return;
    }
    close(fd);
    mark(".at", pid, O_EXCL);
    for (int i = 0; !hold.signals || seen < hold.signals; i++) {
        nanosleep(&nap, NULL);
        if (told - from > seen) {
            seen++;
            mark(".told", "signal\n", O_APPEND);
        } else if (i > LATE_S * 50) {
            mark(".late", "", 0);
            break;
        }
    }
    errno = keep;
}

__attribute__((constructor)) static void begin(int argc, char **argv)
{
    const char *dir = getenv("CAIRN_HOLD"), *rank = getenv("SLURM_PROCID"), *name = argc ? strrchr(argv[0], '/') : NULL;
    const char *stage = name && !strncmp(name, "/cairn-", 7) ? name + 7 : NULL;
    long step = -1;
    FILE *f;

    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--step"))
            step = atol(argv[i + 1]);
        else if (!strcmp(argv[i], "--eval"))
            return;
    if (!dir || !stage || step < 0 || (rank && strcmp(rank, "0")))
        return;
    snprintf(hold.base, sizeof hold.base, "%s/%s.%ld", dir, stage, step);
    if (!strcmp(stage, "sync"))
        snprintf(hold.own, sizeof hold.own, "/policy/%06ld/", step);
    else
        snprintf(hold.own, sizeof hold.own, "/step/%06ld/%s/", step, stage);
    hold.train = !strcmp(stage, "train");
    if (!(f = fopen(hold.base, "re")) || fscanf(f, "%31s %d", hold.phase, &hold.signals) != 2)
        hold.base[0] = 0;
    if (f)
        fclose(f);
    reach("exec");
}

__attribute__((destructor)) static void end(void)
{
    reach("shutdown");
}

/* The whole path of name, as seen from the directory `at`. */
static void path_of(int at, const char *name, char *out, size_t n)
{
    char link[64], dir[PATH_MAX / 2] = "";
    ssize_t got = -1;

    if (name[0] != '/' && at != AT_FDCWD) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        got = readlink(link, dir, sizeof dir - 1);
        dir[got > 0 ? got : 0] = 0;
    }
    snprintf(out, n, "%s%s%s", dir, got > 0 ? "/" : "", name);
}

static int ends(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);

    return n >= k && !strcmp(s + n - k, tail);
}

static void opening(int at, const char *name, int flags)
{
    char path[PATH_MAX];

    if (!hold.base[0] || !hold.phase[0])
        return;
    path_of(at, name, path, sizeof path);
    if (ends(path, "/run.json"))
        reach("start-up");
    if (!ends(path, ".h5"))
        return;
    if (!(flags & O_CREAT) && !strstr(path, hold.own))
        reach("load");
    /* Of a step's training the first shard is that of a point between its updates. Of one shard in all there is no second. */
    if ((flags & O_CREAT) && strstr(path, hold.own) && (hold.train || !strstr(path, "/unit-") || ++hold.shards == 2))
        reach("work");
}

/* The next definition of a function. */
static void *next(const char *name)
{
    void *f = dlsym(RTLD_NEXT, name);

    if (!f)
        _exit(99);
    return f;
}

#define MODE(flags) (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE)
#define OPEN(name)                                               \
    int name(const char *path, int flags, ...)                   \
    {                                                            \
        int (*f)(const char *, int, ...) = NULL;                 \
        mode_t mode = 0;                                         \
        va_list ap;                                              \
        void *p = next(#name);                                   \
        va_start(ap, flags);                                     \
        if (MODE(flags))                                         \
            mode = va_arg(ap, mode_t);                           \
        va_end(ap);                                              \
        memcpy(&f, &p, sizeof f);                                \
        opening(AT_FDCWD, path, flags);                          \
        return f(path, flags, mode);                             \
    }
#define OPENAT(name)                                             \
    int name(int at, const char *path, int flags, ...)           \
    {                                                            \
        int (*f)(int, const char *, int, ...) = NULL;            \
        mode_t mode = 0;                                         \
        va_list ap;                                              \
        void *p = next(#name);                                   \
        va_start(ap, flags);                                     \
        if (MODE(flags))                                         \
            mode = va_arg(ap, mode_t);                           \
        va_end(ap);                                              \
        memcpy(&f, &p, sizeof f);                                \
        opening(at, path, flags);                                \
        return f(at, path, flags, mode);                         \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

static void on_term(int signo)
{
    told++;
    handler(signo);
}

int sigaction(int signo, const struct sigaction *new, struct sigaction *old)
{
    int (*f)(int, const struct sigaction *, struct sigaction *) = NULL;
    void *p = next("sigaction");
    struct sigaction ours;

    memcpy(&f, &p, sizeof f);
    if (!hold.base[0] || signo != SIGTERM || !new || (new->sa_flags & SA_SIGINFO) || new->sa_handler == SIG_DFL || new->sa_handler == SIG_IGN)
        return f(signo, new, old);
    ours = *new;
    handler = new->sa_handler;
    ours.sa_handler = on_term;
    return f(signo, &ours, old);
}

int link(const char *from, const char *to)
{
    int (*f)(const char *, const char *) = NULL;
    void *p = next("link");

    memcpy(&f, &p, sizeof f);
    if (hold.base[0] && ends(to, "/MANIFEST.json")) {
        const char *at = strstr(to, hold.own);

        if (at && !strcmp(at + strlen(hold.own), "MANIFEST.json"))
            reach("commit");
    }
    return f(from, to);
}
