/* flips.h - what the files of part flips know of each other: the files of a run, how one is damaged, and who must notice.
 *
 *     flips.c     samples of damage, and the part itself      victims.c   which files there are
 *     damage.c    flips a bit, cuts, lengthens, restores      notices.c   verify, the reader, the loaders: each of its files
 *     swaps.c     whole files that are somebody else's        underway.c  files of a step under way
 */
#ifndef CAIRN_TESTS_FAULTS_FLIPS_H
#define CAIRN_TESTS_FAULTS_FLIPS_H

#include "tests/faults/faults.h"

enum kind { FILE_ARTEFACT, FILE_BASE, FILE_RUN, FILE_RECIPE, FILE_AMENDMENT, FILE_OUTSIDE, FILE_IDLE, FILE_KINDS };

struct victim {
    char *rel;       /* path below the run */
    char *artefact;  /* the artefact it belongs to ("policy/000002"), or NULL */
    enum kind kind;
    int type;        /* index of a group of like files: every group gets as many samples */
};

enum outcome { NAMED_BY_VERIFY, NAMED_BY_LOADER, EQUAL_RECIPE, OPS_KEY, READ_BY_NOBODY, OUTCOMES };

struct flips {
    const struct lab *lab;
    const struct faults_opts *o;
    char *run;                /* the undamaged run */
    struct victim *victim;
    int n, types;
    const char *type[64];
    long samples;
};

void victims_find(struct flips *f); /* fills in victim, n, types, type of the run */

/* Damages the file; what was done goes to `did`. */
void damage_file(const char *path, uint64_t *r, char *did, size_t room);
void damage_undo(const char *from, const char *to); /* the bytes of `from` into the file `to` */

struct told {
    const char *path; /* of the damaged file */
    int named, other;
    char first[300];
};
/* For cairn_verify_opts.bad; arg: struct told. */
void told_bad(void *arg, const char *path, const char *text);

/* 1: who uses this file notices, and *how; 0: not, and why says so. collected: its data are gone, and only verify is asked. */
int artefact_notices(const struct flips *f, const struct victim *v, const char *run, const char *path, int collected, enum outcome *how, char *why);
int base_notices(const struct victim *v, const char *run, char *why);
int run_notices(const struct flips *f, const struct victim *v, const char *run, enum outcome *how, char *why);

/* Parts of it, each with a TAP line; violations. */
long flips_swaps(const struct flips *f, int *ways);
long flips_underway(const struct faults_opts *o);

#endif
