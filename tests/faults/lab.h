/* lab.h - what the drivers of tests/faults share: a scratch directory, programs started under the shim and a time limit, prepared
 * states of one small run, and the check that every trial ends with.
 *
 * A trial copies a prepared run directory into a sandbox, starts one stage there with a fault, looks at how it ended, lets
 * `cairn run` go on without a fault, and holds the result against the undisturbed run: `cairn digest`'s lines, the list of
 * files (numbers of attempts aside), verify --deep, one metrics line a step, nothing outside of the run directory.
 * Anything else is a violation. Trouble of the lab itself (no memory, no disk) ends the program with 70.
 */
#ifndef CAIRN_TESTS_FAULTS_LAB_H
#define CAIRN_TESTS_FAULTS_LAB_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "stages/common/run.h"
#include "tests/faults/plan.h"

#define LAB_LINKS 32
#define WHY_BYTES 700

#define LAB_OVERRIDES 10

struct lab {
    char *bin;                               /* where cairn and the stages are */
    char *shim;                              /* faultshim.so */
    char *recipe;                            /* least.yaml, absolute */
    const char *override[LAB_OVERRIDES + 1]; /* key=value words that go with it */
    int ranks;                               /* of rollout and train: under mpirun where above 1 */
    char *work;                              /* scratch, removed by lab_close */
    int nlinks;
    struct cairn_link link[LAB_LINKS]; /* the chain of the run */
    char *before[LAB_LINKS + 1];       /* the run directory before link i; [nlinks]: the finished run */
    char *digest, *listing;            /* of the finished run */
    int steps;                         /* metrics lines of it */
    double whole_s;                    /* what `cairn run` takes from nothing to the end */
};

void lab_die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
char *lab_text(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* malloc'ed; dies without memory */

/* The run in several shapes: each is a recipe with overrides, run once, link by link, with a copy kept before each link. */
enum lab_kind {
    LAB_WHOLE,   /* warm start, two steps, an evaluation before and after */
    LAB_PLAIN,   /* without evaluations */
    LAB_CARRY,   /* with dynamic sampling, whose surplus step 1 leaves and step 2 trains; texts and choices of experts stored */
    LAB_UPDATES, /* one step of three updates, each saved beside the training; reference log-probabilities */
    LAB_RANKS_2, /* that, with rollout and train on two ranks and two score tasks */
    LAB_RANKS_4,
    LAB_KINDS
};
void lab_begin(const char *build);             /* the directory with bin and lib */
const struct lab *lab_get(enum lab_kind kind); /* made when it is first asked for; NULL: ranks, and there is no mpirun */
void lab_end_all(void);
int lab_has_mpirun(void);
/* Number of the link with this stage, step and eval (NULL: none); dies if there is none. */
int lab_link(const struct lab *lab, enum cairn_stage stage, int64_t step, const char *eval);

/* One program, to its end. */
#define LAB_ARGS 32

struct lab_exec {
    const char *argv[LAB_ARGS];
    const char *box;     /* working directory, TMPDIR and HOME: BOX/tmp; stderr goes to BOX/err */
    const char *root;    /* NULL: without the shim */
    const char *plan;    /* CAIRN_FAULT */
    const char *program; /* CAIRN_FAULT_PROGRAM, or NULL */
    const char *journal; /* or NULL */
    double limit_s;      /* 0: 120 */
};
struct lab_end {
    int code;         /* exit code, or -signal */
    int late;         /* 1: killed by us at the limit */
    int orphans;      /* 1: processes of its session were there a minute later */
    int fired;        /* the fault happened */
    enum fault_op op; /* where, if it did */
    enum fault_class cls;
    long calls;                 /* counted, if it ended by itself */
    int outside;                /* changes beyond the run directory */
    int published;              /* manifests that it put in place */
    char where[400];            /* the fire line, or the first outside line */
    char first[600], last[600]; /* lines of stderr */
    int goes_on;             /* warnings that an evaluation has ended with a code, and training goes on */
    int lines;                  /* lines of stderr that are neither progress nor warnings */
};
/* Processes of a session that live, at most room of them: stages that `cairn run` starts have groups of their own. */
int lab_members(pid_t session, pid_t *out, int room);
pid_t lab_start(const struct lab *lab, const struct lab_exec *x);
void lab_wait(const struct lab_exec *x, pid_t pid, struct lab_end *end);
void lab_run(const struct lab *lab, const struct lab_exec *x, struct lab_end *end);
/* argv of link i in the run directory dir; program is set too. */
void lab_argv(const struct lab *lab, int i, const char *dir, struct lab_exec *x, char scratch[2][600]);
/* argv of `cairn VERB RECIPE --run DIR [--quiet] key=value ...` for init and run. */
void lab_argv_run(const struct lab *lab, const char *verb, const char *dir, struct lab_exec *x, char scratch[2][600]);

void lab_copy(const char *from, const char *to); /* a tree; `to` must not exist */
void lab_remove(const char *path);
/* Sorted paths, a<N> and epoch/<N> without their numbers; malloc'ed. tasks: each once, since how many attempts several array tasks
 * need to see that all is done depends on who comes when. */
char *lab_listing(const char *dir, int tasks);
char *lab_digest(const char *dir, char *why); /* "path hash" lines of all artefacts, NULL with why */
/* 1: dir is the finished run, as if nothing had happened; 0: not, and why (WHY_BYTES) says so. torn: so many lines of a log may
 * have been cut by a kill; -1: logs may have lost anything (they are not fsynced). */
int lab_finished(const struct lab *lab, const char *dir, int torn, char *why);
/* Metrics lines, -1: a log is bad (why); torn as above. */
int lab_logs_check(const char *dir, int torn, char *why);
/* 1: link i is committed in dir. */
int lab_committed(const struct lab *lab, int i, const char *dir);
/* `cairn run` in dir to the end, then lab_finished. */
int lab_go_on(const struct lab *lab, const char *box, const char *dir, int torn, char *why);
/* 1: nothing but run, tmp (empty) and err in the box. */
int lab_box_clean(const char *box, char *why);

double lab_now(void);
uint64_t lab_random(uint64_t *state);

#endif
