/* shim.h - what the files of the shim (build/lib/faultshim.so, preloaded) know of each other: it makes the n-th file operation of a program
 * fail, or kills the program there.
 *
 *     places.c   paths below CAIRN_FAULT_ROOT, and which descriptor was opened by which      tell.c     the report, the journal
 *     meet.c     the plan: counts calls, and says what is to happen                           begin.c    the environment
 *     open.c, transfer.c, names.c, looks.c, clock.c, memory.c   what stands between the program and the C library
 *
 * They stand there for everything that touches files by name or descriptor, and do the work themselves with raw system calls, so that
 * nothing of it is counted twice. Only calls on paths below CAIRN_FAULT_ROOT count (a descriptor belongs to the path it was opened by).
 * What fired goes to CAIRN_FAULT_REPORT, so that a driver which counts n = 1, 2, 3 ... knows when there is no such call any more. The
 * environment is described in plan.h.
 *
 * Does not see: calls from within the C library (fopen, realpath), mmap, io_uring. Memory: static tables only; descriptors
 * above FDS are not followed. Idea: sqlite's test VFS, ALICE.
 */
#ifndef CAIRN_TESTS_FAULTS_SHIM_H
#define CAIRN_TESTS_FAULTS_SHIM_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "tests/faults/journal.h"
#include "tests/faults/plan.h"

#define FDS 1024
#define PATH_BYTES 512
#define REPORT_FD 1000
#define JOURNAL_FD 1001

#pragma GCC visibility push(hidden)

struct shim_plan {
    long n, err, ms, then, thread; /* thread: the one that n counts calls of, in the order of plan.h; -1: n counts all calls */
    unsigned ops, may, classes;    /* ops: counted; may: the fault can happen to these */
    int kind, on;
    char under[64], without[64];
};
extern struct shim_plan shim_plan;
extern int shim_active, shim_tracing, shim_reporting, shim_journaling, shim_ranked; /* ranked: under mpirun */
extern long shim_skew; /* seconds that are added to the wall clock */
extern char shim_root[PATH_BYTES], shim_spare[PATH_BYTES]; /* CAIRN_FAULT_ROOT, CAIRN_FAULT_FREE; empty: none */

/* tell.c */
void shim_tell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void shim_record(enum journal_op op, const char *path, const char *path2, const void *data, size_t n, int64_t offset);
void shim_published(const char *rel);                              /* told, if rel is the name of a manifest: it came to be */
void shim_beyond(const char *op, int dirfd, const char *name);     /* told: something beyond root changes, unless it may */

/* places.c */
int shim_absolute(int dirfd, const char *name, char *out);         /* 1: out (PATH_MAX) is the path, without "." and double slashes */
const char *shim_below(const char *abs);                           /* the part below root, "/" for root itself; NULL: elsewhere */
const char *shim_place(int dirfd, const char *name, char buf[PATH_MAX]); /* both of them */
const char *shim_place_fd(int fd);
void shim_fd_set(int fd, const char *rel, const char *abs);        /* what fd was opened by: rel below root, else abs; NULL: neither */

/* meet.c: counts a call. What is to happen: KIND_NONE: go on. KIND_KILL does not return. */
enum fault_kind shim_meet(enum fault_op op, const char *rel, size_t bytes);
int shim_fails(enum fault_kind k); /* the call is to fail with errno as set by shim_meet */
long shim_counted(void);

/* open.c: open, as all of its names do; for looks.c */
int shim_open(int dirfd, const char *name, int flags, mode_t mode);

/* memory.c: allocations so far */
long shim_allocated(void);

#pragma GCC visibility pop

#endif
