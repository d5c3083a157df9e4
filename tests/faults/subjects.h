/* subjects.h - the programs whose every file operation fails (points.c), each with the state of the run in which it begins.
 *
 * The states include those that a dead attempt leaves: finished shards without a manifest (adoption), a manifest whose attempt could neither
 * make it durable nor tidy up, another array task's half; and a damaged artefact for `verify --repair`.
 */
#ifndef CAIRN_TESTS_FAULTS_SUBJECTS_H
#define CAIRN_TESTS_FAULTS_SUBJECTS_H

#include "tests/faults/faults.h"

enum form { FORM_INIT, FORM_LINK, FORM_RUN, FORM_VERIFY, FORM_DIGEST, FORM_GC, FORM_AMEND, FORM_REPAIR, FORM_RESCORE };
/* DEAD: killed before its manifest got its name. UNSETTLED: right behind it. SHARE: another array task has made its half. */
enum wreck { WRECK_NONE, WRECK_DEAD, WRECK_UNSETTLED, WRECK_SHARE };

/* Every file operation. */
#define FAULT_ALL ((1u << OP_ALLOC) - 1)

struct subject {
    const char *name;
    enum form form;
    enum wreck wreck;   /* what an attempt before has left */
    enum cairn_stage stage;
    int64_t step;
    const char *eval;
    enum lab_kind kind;
    const char *under, *without; /* only calls on paths that hold (do not hold) this: of one thread of two */
    int rank;                    /* with several ranks: the one that is meant */
    /* found out: */
    const struct lab *lab; /* (amend, repair: with another listing; rescore: with another digest, too) */
    char *state;        /* NULL: nothing is there yet */
    int link;
    long calls;
    int threads;
    unsigned char *op, *thread; /* (calls + 1) of call n */
};

/* Those of one process, and those of one rank of two. */
extern struct subject faults_subjects[], faults_rank_subjects[];
extern const int faults_subject_count, faults_rank_subject_count;

/* What it is called with in dir, and what the shim is told of which calls count. */
void subject_argv(const struct subject *s, const char *dir, struct lab_exec *x, char scratch[2][600]);
void subject_plan(const struct subject *s, char *out, size_t n);
int subject_reads_only(const struct subject *s);
/* Behind a fault the same program again, without one, where it must end before `cairn run` goes on (amend, repair, rescore). 1: it did; else why. */
int subject_again(const struct subject *s, const char *box, const char *dir, char *why);
/* Fills in what is found out; once. */
void subject_prepare(struct subject *s);

#endif
