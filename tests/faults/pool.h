/* pool.h - many trials on some processes, and the journal that lets a killed campaign go on.
 *
 * A pool has a key and n trials, numbered from 0; every trial depends on its number alone. With a journal (`--journal FILE`) each
 * outcome is a line of it as soon as it is known, and trials that it knows are not made again. The journal belongs to one build and
 * one set of options: of another one it is begun anew. Lines, blank-separated:
 *
 *     faults-journal 1 DIGEST            of the programs under test and all options
 *     trial KEY I h|v|i [K:V ...]        held, violated, idle; what it counted
 *     violated KEY I TEXT                why
 *     tap PART 0|1 TEXT   sum PART TEXT   what a part has printed; used when it has ended:
 *     points PART N M V                  (of the whole) fault points, stages, violations
 *     end PART
 */
#ifndef CAIRN_TESTS_FAULTS_POOL_H
#define CAIRN_TESTS_FAULTS_POOL_H

#include "tests/faults/lab.h"

#define LAB_TALLIES 160

/* What the trial at hand counts; set to 0 before each. The last one is not added up: the greatest of all trials counts. */
extern long lab_tally[LAB_TALLIES];
#define LAB_MOST (LAB_TALLIES - 1)

struct lab_pool {
    int jobs;
    long n;
    /* Trial i in the fresh, empty directory box; returns 0: held, 1: violated (why), 2: did not apply. */
    int (*trial)(void *arg, long i, const char *box, char *why);
    /* What trial i was, for the report. */
    void (*name)(void *arg, long i, char *out, size_t n);
    void *arg;
};
struct lab_counts {
    long held, violated, idle;
    long tally[LAB_TALLIES];
};
/* Prints every violation (on stderr, "# ..."), and from time to time how far it is. name: no blanks, one of its own for each
 * call; with the number of trials it is the key.
 */
struct lab_counts lab_pool_run(const struct lab *lab, const struct lab_pool *pool, const char *name);

/* ---- the campaign ------------------------------------------------------------------------------------------------------ */

/* Opens the journal (NULL: none), for this digest of programs and options. Returns the number of lines that can be used. */
long lab_journal_open(const char *path, const char *digest);
void lab_journal_close(int finished); /* finished: the next campaign begins anew */
__attribute__((format(printf, 1, 2))) void lab_journal_add(const char *fmt, ...);
/* Calls fn for each line "WORD PART REST" of the journal as it was opened. */
void lab_journal_each(const char *word, const char *part, void (*fn)(void *arg, const char *rest), void *arg);

/* A part of the campaign begins: it has so many pools and is `cost` of `total`; `before` of it is behind us. For the estimate of
 * what is left. */
void lab_part_begin(const char *name, double before, double cost, double total);
void lab_part_pools(int pools);

#endif
