/* main.c - the fault campaign: `build/tests/faults PART ... [options]` (--help), TAP on stdout, progress on stderr.
 *
 * Run from the root of the repository. Exit code 0: no violation, 1: some. Which fault of the plan (F1 ...) is where:
 *     points   F1 F2 F5-F9 F15 F49 F50     kills    F3 F29 F46  stops   F21 F23 F24     races  F16-F18 F31     space   F5
 *     flips    F8 F10-F14                  crashes  F4 F7       memory  F32 F50         pins   F52             ranks   F1-F3 F29
 *     strange  F13 F15 F16 F19 F33 F44 F45 F47 F48              growth  F36             threads  none: it tries the shim that brings them
 *
 * F54 is a part of the check that every trial ends with (lab.h). F53 is Slurm's matter (tests/slurm).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/build.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/str.h"
#include "tests/faults/faults.h"

static const struct part {
    const char *name;
    long (*run)(const struct faults_opts *o);
    long quick;  /* of `quick` every so many-th; 0: not at all */
    double cost; /* minutes on two cores, about */
    const char *what;
    int beside;  /* one process after the other, and long: begun at once, beside all that has jobs */
} parts[] = {
    {"threads", faults_threads, 20, 0.1, "the shim: a fault in one of two threads is met there", 0},
    {"points", faults_points, 400, 27, "every file operation of every stage fails, or is the last one", 0},
    {"ranks", faults_ranks, 400, 6, "the same in one rank of several", 0},
    {"kills", faults_kills, 25, 2.5, "SIGKILL at random moments of whole runs of 1, 2 and 4 ranks", 0},
    {"stops", faults_stops, 25, 2.5, "SIGTERM and SIGUSR1 at random moments of whole runs of 1, 2 and 4 ranks", 0},
    {"races", faults_races, 300, 4, "two and three attempts at once on one artefact", 0},
    {"space", faults_space, 40, 0.7, "file systems that are full, in bytes and in files", 0},
    {"flips", faults_flips, 20, 1.5, "flipped bits, cut, swapped and missing files", 0},
    {"crashes", faults_crashes, 200, 3, "what a disk may hold after the power went", 0},
    {"memory", faults_memory, 100, 1.5, "allocations that fail", 0},
    {"pins", faults_pins, 150, 1.5, "readers that pin against collectors", 0},
    {"strange", faults_strange, 1, 0.2, "strangers, other clocks, remains of the dead, other recipes", 0},
    {"growth", faults_growth, 0, 1.5, "memory, descriptors and files over 500 steps with a kill in every tenth", 1},
};
#define PARTS ((int)(sizeof parts / sizeof *parts))

/* ---- what is printed ------------------------------------------------------------------------------------------------------ */

static int lines, bad;
static const struct part *at_work;
static long points, violations;
static int stages;
static struct cairn_str summary;
static int to_parent = -1; /* in the process of a part beside the others: there its lines go */

static void tap_line(int held, const char *text)
{
    printf("%s %d - %s\n", held ? "ok" : "not ok", ++lines, text);
    bad += !held;
}

void tap(int held, const char *fmt, ...)
{
    char text[900];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (to_parent < 0)
        tap_line(held, text);
    else
        dprintf(to_parent, "tap %d %s\n", held, text);
    lab_journal_add("tap %s %d %s", at_work->name, held, text);
}

static void sum_line(const char *part, const char *text)
{
    cairn_str_printf(&summary, "#   %-8s %s\n", part, text);
}

void sum(const char *fmt, ...)
{
    char text[900];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (to_parent < 0)
        sum_line(at_work->name, text);
    else
        dprintf(to_parent, "sum %s\n", text);
    lab_journal_add("sum %s %s", at_work->name, text);
}

void sum_points(long n, int m)
{
    points += n;
    stages += m;
    if (to_parent >= 0)
        dprintf(to_parent, "points %ld %d\n", n, m);
    lab_journal_add("points %s %ld %d", at_work->name, n, m);
}

/* ---- a part that the journal knows whole ------------------------------------------------------------------------------------ */

static void again_tap(void *arg, const char *rest)
{
    (void)arg;
    if (rest[0] && rest[1] == ' ')
        tap_line(rest[0] == '1', rest + 2);
}

static void again_sum(void *arg, const char *rest)
{
    sum_line(arg, rest);
}

static void again_points(void *arg, const char *rest)
{
    long n;
    int m;

    (void)arg;
    if (sscanf(rest, "%ld %d", &n, &m) == 2) {
        points += n;
        stages += m;
    }
}

static void again_end(void *arg, const char *rest)
{
    *(long *)arg = strtol(rest, NULL, 10);
}

/* Violations of a part that the journal knows to its end; -1: it does not. */
static long part_known(const struct part *p)
{
    long ended = -1;

    lab_journal_each("end", p->name, again_end, &ended);
    return ended;
}

/* Begins a part in a process of its own. What it has to say is read from the descriptor that is returned. */
static int part_beside(const struct part *p, const struct faults_opts *o, const char *build)
{
    int ends[2];
    pid_t pid;
    long ended;

    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC) || (pid = fork()) < 0)
        lab_die("%s: %s", p->name, strerror(errno));
    if (pid) {
        close(ends[1]);
        return ends[0];
    }
    close(ends[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    to_parent = ends[1];
    at_work = p;
    lab_begin(build);
    ended = p->run(o);
    lab_end_all();
    lab_journal_add("end %s %ld", p->name, ended);
    dprintf(to_parent, "end %ld\n", ended);
    _exit(0);
}

/* Waits for it, and prints it. */
static void part_join(const struct part *p, int fd)
{
    FILE *f = fdopen(fd, "r");
    char *line = NULL, name[40];
    long ended = -1;
    size_t cap = 0;

    snprintf(name, sizeof name, "%s", p->name);
    while (f && getline(&line, &cap, f) > 0) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "tap ", 4))
            again_tap(NULL, line + 4);
        else if (!strncmp(line, "sum ", 4))
            again_sum(name, line + 4);
        else if (!strncmp(line, "points ", 7))
            again_points(NULL, line + 7);
        else if (!strncmp(line, "end ", 4))
            again_end(&ended, line + 4);
    }
    if (f)
        fclose(f);
    free(line);
    if (ended < 0)
        lab_die("%s ended badly", p->name);
    violations += ended;
}

static void part_run(const struct part *p, const struct faults_opts *o)
{
    char name[40];
    long ended = part_known(p);

    snprintf(name, sizeof name, "%s", p->name);
    at_work = p;
    if (ended >= 0) {
        lab_journal_each("tap", name, again_tap, NULL);
        lab_journal_each("sum", name, again_sum, name);
        lab_journal_each("points", name, again_points, NULL);
    } else {
        ended = p->run(o);
        lab_journal_add("end %s %ld", p->name, ended);
    }
    violations += ended;
}

/* ---- the campaign -------------------------------------------------------------------------------------------------------------
 */

/* Programs and shared objects of the build, and all options. */
static void identity(const char *build, const struct faults_opts *o, const char *wanted, char hex[33])
{
    char *cmd = lab_text("cd '%s' && find bin lib tests/faults -type f ! -name '*.a' | LC_ALL=C sort && cd - >/dev/null && find "
                         "tests/faults -type f | LC_ALL=C sort",
                         build),
         *line = NULL, *text = lab_text("every %ld passes %ld seed %llu parts %s", o->every, o->passes, (unsigned long long)o->seed, wanted);
    struct cairn_digest all = cairn_digest_bytes(text, strlen(text)), d;
    struct cairn_error err = {0};
    FILE *f = popen(cmd, "r");
    size_t cap = 0;

    if (!f)
        lab_die("%s", cmd);
    while (getline(&line, &cap, f) > 0) {
        char *path;

        line[strcspn(line, "\n")] = 0;
        path = lab_text("%s/%s", build, line);
        if (!cairn_path_exists(path)) {
            free(path);
            path = lab_text("%s", line);
        }
        if (cairn_digest_file(path, &d, NULL, &err) != CAIRN_OK)
            lab_die("%s", err.text);
        all = cairn_digest_add(all, d);
        free(path);
    }
    pclose(f);
    cairn_digest_hex(all, hex);
    free(line);
    free(text);
    free(cmd);
}

static int usage(FILE *f)
{
    fprintf(
        f,
        "usage: faults PART ... [--jobs J] [--journal FILE] [--every K] [--passes P] [--seed S] [--build DIR] [--subject NAME [--point N]]\n");
    for (int i = 0; i < PARTS; i++)
        fprintf(f, "  %-9s %s\n", parts[i].name, parts[i].what);
    fprintf(
        f, "  all       all of them, within the hour on two cores\n"
           "  quick     a little of most, for `make test`\n"
           "--journal: what is done is written there, and a killed campaign goes on from it. --every: only every K-th point or "
           "sample. --passes: of ranks so many twelfths of the points (1).\n"
           "Examples:\n  build/tests/faults points --every 25\n  build/tests/faults all --jobs 4 --journal build/faults.journal\n");
    return f == stdout ? 0 : 64;
}

struct asked {
    struct faults_opts o;
    const char *build, *journal;
    int wanted[PARTS], any, quick;
};

/* 0, or the exit code with which main ends. */
static int parse(struct asked *a, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        int64_t v = 0;
        int known = 0, takes = i + 1 < argc;

        for (int k = 0; k < PARTS; k++)
            if (!strcmp(argv[i], "all") || !strcmp(argv[i], parts[k].name) || (!strcmp(argv[i], "quick") && parts[k].quick))
                a->wanted[k] = known = a->any = 1;
        a->quick |= !strcmp(argv[i], "quick");
        if (known)
            continue;
        if (!strcmp(argv[i], "--help"))
            return usage(stdout), -1;
        if (takes && !strcmp(argv[i], "--build"))
            a->build = argv[++i];
        else if (takes && !strcmp(argv[i], "--journal"))
            a->journal = argv[++i];
        else if (takes && !strcmp(argv[i], "--subject"))
            a->o.subject = argv[++i];
        else if (takes && !strcmp(argv[i], "--every") && cairn_parse_i64(argv[++i], &v) && v > 0)
            a->o.every = (long)v;
        else if (takes && !strcmp(argv[i], "--passes") && cairn_parse_i64(argv[++i], &v) && v > 0 && v <= FAULTS_PASSES)
            a->o.passes = (long)v;
        else if (takes && !strcmp(argv[i], "--jobs") && cairn_parse_i64(argv[++i], &v) && v > 0 && v < 1000)
            a->o.jobs = (int)v;
        else if (takes && !strcmp(argv[i], "--point") && cairn_parse_i64(argv[++i], &v) && v > 0)
            a->o.point = (long)v;
        else if (takes && !strcmp(argv[i], "--seed") && cairn_parse_i64(argv[++i], &v))
            a->o.seed = (uint64_t)v;
        else
            return usage(stderr);
    }
    if (!a->any || (a->journal && (a->o.subject || a->quick)))
        return usage(stderr);
    return 0;
}

int main(int argc, char **argv)
{
    struct asked a = {.o = {.jobs = 2, .every = 1, .seed = 1, .passes = 1}, .build = getenv("CAIRN_BUILD")};
    double total = 0, before = 0, t0 = lab_now();
    char hex[33], wanted[400] = "";
    long known;
    int rc, beside[PARTS], n = 0;

    if (argc == 3 && !strcmp(argv[1], "child-reader"))
        return faults_child_reader(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "child-threads"))
        return faults_child_threads(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "child-collector"))
        return faults_child_collector(argv[2]);
    if ((rc = parse(&a, argc, argv)))
        return rc < 0 ? 0 : rc;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!a.build)
        a.build = "build";
    for (int k = 0; k < PARTS; k++)
        if (a.wanted[k]) {
            total += parts[k].cost;
            snprintf(wanted + strlen(wanted), sizeof wanted - strlen(wanted), " %s", parts[k].name);
        }
    if (a.journal) {
        identity(a.build, &a.o, wanted, hex);
        known = lab_journal_open(a.journal, hex);
        if (known)
            fprintf(stderr, "# going on: %s has %ld lines of this build\n", a.journal, known);
    }
    for (int k = 0; k < PARTS; k++)
        n += a.wanted[k];
    for (int k = 0; k < PARTS; k++) /* before there is a lab: it makes its own */
        beside[k] = parts[k].beside && a.wanted[k] && n > 1 && a.o.jobs > 1 && part_known(&parts[k]) < 0 ? part_beside(&parts[k], &a.o, a.build) : -1;
    lab_begin(a.build);
    for (int k = 0; k < PARTS; k++)
        if (a.wanted[k] && beside[k] >= 0) {
            part_join(&parts[k], beside[k]);
            before += parts[k].cost;
        } else if (a.wanted[k]) {
            struct faults_opts mine = a.o;

            mine.every *= a.quick ? parts[k].quick : 1;
            lab_part_begin(parts[k].name, before, parts[k].cost, a.quick ? 0 : total);
            part_run(&parts[k], &mine);
            before += parts[k].cost;
        }
    lab_end_all();
    lab_journal_close(1);
    printf("1..%d\n", lines);
    if (summary.p)
        printf("# %ld fault points x %d stages, %ld violations (cairn %s, %.0f min)\n%s", points, stages, violations,
               cairn_build_version(), (lab_now() - t0) / 60, summary.p);
    cairn_str_free(&summary);
    return bad ? 1 : 0;
}
