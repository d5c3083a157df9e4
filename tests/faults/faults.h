/* faults.h - the parts of the fault campaign, each a function that prints TAP lines; main.c calls them. */
#ifndef CAIRN_TESTS_FAULTS_FAULTS_H
#define CAIRN_TESTS_FAULTS_FAULTS_H

#include "tests/faults/lab.h"
#include "tests/faults/pool.h"

#define FAULTS_PASSES 12 /* an mpirun takes its time: each pass over the ranks tries one of twelve points */

struct faults_opts {
    int jobs;
    long every;          /* only every so many-th point or sample; 1: all */
    uint64_t seed;
    const char *subject; /* only this one, or NULL */
    long point;          /* only this number of it (as printed), or 0 */
    long passes;         /* of ranks: so many twelfths of all points */
};

/* Every part: number of violations. */
long faults_threads(const struct faults_opts *o);
long faults_points(const struct faults_opts *o);
long faults_ranks(const struct faults_opts *o);
long faults_kills(const struct faults_opts *o);
long faults_stops(const struct faults_opts *o);
long faults_races(const struct faults_opts *o);
long faults_space(const struct faults_opts *o);
long faults_crashes(const struct faults_opts *o);
long faults_memory(const struct faults_opts *o);
long faults_pins(const struct faults_opts *o);
long faults_strange(const struct faults_opts *o);
long faults_flips(const struct faults_opts *o);
long faults_growth(const struct faults_opts *o);

/* The state in which a subject of points.c begins, borrowed: a run directory. */
const char *faults_state(const char *name, const struct lab **lab);

/* What pins.c and threads.c start of this program: exit codes. */
int faults_child_threads(const char *dir);
int faults_child_reader(const char *dir);
int faults_child_collector(const char *dir);

/* One TAP line. */
void tap(int held, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* One line of the summary, and what it adds to "N fault points x M stages". */
void sum(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void sum_points(long points, int stages);

#endif
