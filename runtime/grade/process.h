/* process.h - the grader process: graders run outside of the program that asks.
 *
 * Three processes. The program (a stage, or `cairn grade`) calls cairn_grader_process_start first thing in main, before
 * MPI, CUDA, OpenMP and any thread, because a fork after those is not safe. That makes the *keeper*, which alone forks
 * from then on: it holds grading *children*, one for the graders that are ours and one for each that a recipe defines and
 * that runs foreign code (behind its sandbox), and passes frames (frame.h) to and fro. Whatever a grader does, be it a
 * crash, memory without end or a loop, costs its child only: the keeper answers with a verdict of status `crashed` or
 * `timeout` and starts another child. The program never sees a signal of it.
 *
 * A verdict never depends on time. Limits of memory (RLIMIT_AS) and CPU (RLIMIT_CPU, counted for each response alone) and a
 * wall-clock deadline are backstops for graders that are not ours; a hit is a status, not a 0. A response whose child died
 * is graded once more by a fresh child before it is called `crashed`, so that an outside kill -9 changes nothing.
 *
 * Lifetimes: the program's end closes the socket, at which the keeper ends its children with all that they started, and itself;
 * the keeper's end, by whatever signal, ends the children (PR_SET_PDEATHSIG). Keeper
 * and child ignore SIGTERM, SIGINT, SIGUSR1 and SIGUSR2, which go to whole process groups: the program decides when to stop.
 * If the keeper itself is killed, calls fail with CAIRN_EAGAIN (run me again). Not thread-safe: one caller at a time.
 */
#ifndef CAIRN_GRADE_PROCESS_H
#define CAIRN_GRADE_PROCESS_H

#include <stddef.h>
#include <stdint.h>

#include "grade/grade.h"

struct cairn_grader_process;

struct cairn_grader_limits { /* 0: default */
    int64_t memory_bytes;    /* address space of the child: 2 GiB (not set in sanitizer builds, which map terabytes) */
    int cpu_s;               /* for one response: 20 */
    int wall_s;              /* for one response: 300 */
};

enum cairn_status cairn_grader_process_start(struct cairn_grader_process **out, const struct cairn_grader_limits *limits,
                                             struct cairn_error *err);
void cairn_grader_process_stop(struct cairn_grader_process *p); /* waits for the keeper's end; NULL is fine */

/* One response. CAIRN_EUSAGE: no such grader; CAIRN_EDATA: too large to send; CAIRN_EAGAIN: the keeper is gone. */
enum cairn_status cairn_grader_process_grade(struct cairn_grader_process *p, const char *grader,
                                             const struct cairn_grade_opts *opts, const char *gold, size_t gold_bytes,
                                             const char *response, size_t response_bytes, struct cairn_verdict *out,
                                             struct cairn_error *err);

struct cairn_grade_job {
    const char *gold; /* borrowed */
    size_t gold_bytes;
    const char *response;
    size_t response_bytes;
    struct cairn_verdict verdict; /* out */
};

/* n responses, sent ahead while verdicts come back; verdict i belongs to job i. On failure err names the job ("job 3: ..."),
 * verdicts of jobs before it are there, and the process can be used again unless the code is CAIRN_EAGAIN. */
enum cairn_status cairn_grader_process_grade_many(struct cairn_grader_process *p, const char *grader,
                                                  const struct cairn_grade_opts *opts, struct cairn_grade_job *job, size_t n,
                                                  struct cairn_error *err);

#endif
