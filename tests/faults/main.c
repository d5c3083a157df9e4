/* main.c - the fault campaign: `build/tests/faults PART ... [--every K] [--jobs J] [--seed S] [--build DIR]`, TAP on stdout.
 *
 * Run from the root of the repository. Exit code 0: no violation, 1: some.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"
#include "tests/faults/faults.h"

static int lines, bad;

void tap(int held, const char *fmt, ...)
{
    va_list ap;

    printf("%s %d - ", held ? "ok" : "not ok", ++lines);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    fflush(stdout);
    bad += !held;
}

int tap_plan(void)
{
    printf("1..%d\n", lines);
    return bad;
}

static const struct part {
    const char *name;
    long (*run)(const struct lab *lab, const struct faults_opts *o);
    long all, quick; /* of `all` and `quick` every so many-th; 0: not at all */
    const char *what;
} parts[] = {
    {"points", faults_points, 3, 200, "every file operation of every stage fails, or is the last one"},
    {"kills", faults_kills, 1, 20, "SIGKILL at random moments of whole runs"},
    {"stops", faults_stops, 1, 20, "SIGTERM and SIGUSR1 at random moments of whole runs"},
    {"races", faults_races, 8, 250, "two and three attempts at once on one artefact"},
    {"space", faults_space, 1, 30, "file systems that are full, in bytes and in files"},
    {"flips", faults_flips, 1, 20, "flipped bits, cut, swapped and missing files"},
    {"crashes", faults_crashes, 5, 100, "what a disk may hold after the power went"},
    {"memory", faults_memory, 3, 60, "allocations that fail"},
    {"pins", faults_pins, 5, 40, "readers that pin against collectors"},
    {"strange", faults_strange, 1, 1, "strangers, other clocks, remains of the dead, other recipes"},
    {"growth", faults_growth, 1, 0, "memory, descriptors and files over 500 steps with a kill in every tenth"},
};
#define PARTS ((int)(sizeof parts / sizeof *parts))

static int usage(void)
{
    fprintf(stderr, "usage: faults PART ... [--every K] [--jobs J] [--seed S] [--build DIR] [--subject NAME [--point N]]\n");
    for (int i = 0; i < PARTS; i++)
        fprintf(stderr, "  %-9s %s\n", parts[i].name, parts[i].what);
    fprintf(stderr, "  all       much of each, some tens of minutes (a part by its name: all of it)\n"
                    "  quick     a little of most, for `make test`\n"
                    "Examples:\n  build/tests/faults points --every 25\n  build/tests/faults all --jobs 4\n");
    return 64;
}

int main(int argc, char **argv)
{
    struct faults_opts o = {.jobs = 2, .every = 1, .seed = 1};
    const char *build = getenv("CAIRN_BUILD");
    int wanted[PARTS] = {0}, any = 0, all = 0, quick = 0;
    struct lab lab;

    if (argc == 3 && !strcmp(argv[1], "child-reader"))
        return faults_child_reader(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "child-collector"))
        return faults_child_collector(argv[2]);
    for (int i = 1; i < argc; i++) {
        int64_t v = 0;
        int known = 0, takes = i + 1 < argc;

        for (int k = 0; k < PARTS; k++)
            if (!strcmp(argv[i], "all") || !strcmp(argv[i], parts[k].name) || (!strcmp(argv[i], "quick") && parts[k].quick))
                wanted[k] = known = any = 1;
        all |= !strcmp(argv[i], "all");
        quick |= !strcmp(argv[i], "quick");
        if (known)
            continue;
        if (takes && !strcmp(argv[i], "--build"))
            build = argv[++i];
        else if (takes && !strcmp(argv[i], "--subject"))
            o.subject = argv[++i];
        else if (takes && !strcmp(argv[i], "--every") && cairn_parse_i64(argv[++i], &v) && v > 0)
            o.every = (long)v;
        else if (takes && !strcmp(argv[i], "--jobs") && cairn_parse_i64(argv[++i], &v) && v > 0 && v < 1000)
            o.jobs = (int)v;
        else if (takes && !strcmp(argv[i], "--point") && cairn_parse_i64(argv[++i], &v) && v > 0)
            o.point = (long)v;
        else if (takes && !strcmp(argv[i], "--seed") && cairn_parse_i64(argv[++i], &v))
            o.seed = (uint64_t)v;
        else
            return usage();
    }
    if (!any)
        return usage();
    setvbuf(stdout, NULL, _IOLBF, 0);
    lab_open(&lab, build ? build : "build", 1);
    for (int k = 0; k < PARTS; k++)
        if (wanted[k]) {
            struct faults_opts mine = o;

            mine.every *= all ? parts[k].all : quick ? parts[k].quick : 1;
            parts[k].run(&lab, &mine);
        }
    lab_close(&lab);
    return tap_plan() ? 1 : 0;
}
