/* faults.h - the parts of the fault campaign, each a function that prints TAP lines; main.c calls them. */
#ifndef CAIRN_TESTS_FAULTS_FAULTS_H
#define CAIRN_TESTS_FAULTS_FAULTS_H

#include "tests/faults/lab.h"

struct faults_opts {
    int jobs;
    long every;          /* only every so many-th point or sample; 1: all */
    uint64_t seed;
    const char *subject; /* only this one, or NULL */
    long point;          /* only this number of it (as printed), or 0 */
};

/* Every part: number of violations. */
long faults_points(const struct lab *lab, const struct faults_opts *o);
long faults_kills(const struct lab *lab, const struct faults_opts *o);
long faults_stops(const struct lab *lab, const struct faults_opts *o);
long faults_races(const struct lab *lab, const struct faults_opts *o);
long faults_space(const struct lab *lab, const struct faults_opts *o);
long faults_crashes(const struct lab *lab, const struct faults_opts *o);
long faults_memory(const struct lab *lab, const struct faults_opts *o);
long faults_pins(const struct lab *lab, const struct faults_opts *o);
long faults_strange(const struct lab *lab, const struct faults_opts *o);
long faults_flips(const struct lab *lab, const struct faults_opts *o);
long faults_growth(const struct lab *lab, const struct faults_opts *o);

/* What pins.c starts of this program: exit codes. */
int faults_child_reader(const char *dir);
int faults_child_collector(const char *dir);

/* One TAP line. */
void tap(int held, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int tap_plan(void); /* prints "1..N"; returns the number of lines that did not hold */

#endif
