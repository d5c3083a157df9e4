/* plan.h - what the shim and the drivers of tests/faults say to each other: operations, classes of paths, the environment.
 *
 *   CAIRN_FAULT_ROOT     the run directory (absolute, real path): only calls on paths below it are counted
 *   CAIRN_FAULT_PROGRAM  base name of the program that is meant (others only pass the variables on); empty: all
 *   CAIRN_FAULT_REPORT   a file to which every process appends lines:
 *                            call N OP CLASS BYTES THREAD PATH   (only with trace=1) the N-th counted call, made by that thread
 *                            fire N OP CLASS BYTES PATH   the fault happened there
 *                            outside OP PATH              something beyond root and $CAIRN_FAULT_FREE was created, changed or removed
 *                            publish PATH                 PATH/MANIFEST.json came to be (a link or rename that succeeded)
 *                            end N PID                    the process ended by itself, N calls were counted
 *   CAIRN_FAULT          blank-separated key=value:
 *                            n=17          fire at the 17th counted call; 0: never
 *                            thread=T      n counts calls of that thread alone (0: the first one, 1, 2 ...: the others as they make their first
 *                                          counted calls): what another thread does meanwhile moves nothing; fire at the first of them,
 *                                          from the n-th on, that `may` holds
 *                            may=MASK      see thread
 *                            ops=MASK      which operations count (decimal mask of 1 << enum fault_op)
 *                            classes=MASK  which classes count
 *                            kind=K        none, kill, torn, errno, short, again, delay, lie, stop, jump
 *                            errno=E       for errno
 *                            on=1          from the n-th call on, not only there
 *                            ms=M          for delay, and for jump
 *                            then=K        after a stop: killed K calls later
 *                            trace=1       write call lines
 *                            under=TEXT    only calls on paths that hold it
 *                            without=TEXT  only calls on paths that do not
 *                            rank=R        only in that rank (OMPI_COMM_WORLD_RANK; alone: 0)
 *   CAIRN_FAULT_FREE     a directory that may be written to like root (its own scratch), "" for none
 *   CAIRN_FAULT_JOURNAL  a file to which every change of the file system below root is appended (journal.h)
 *   CAIRN_FAULT_SKEW     seconds that are added to the wall clock
 *
 * kill: SIGKILL before the call. stop: SIGSTOP before it, until somebody sends SIGCONT. torn: half of a write, then SIGKILL. short: half of a read or
 * write. again: EINTR once.
 * jump: from then on the wall clock is M ms further (back, if M is below 0).
 * lie: the call does nothing and says it succeeded (fsync and fdatasync of a disk that lies).
 */
#ifndef CAIRN_TESTS_FAULTS_PLAN_H
#define CAIRN_TESTS_FAULTS_PLAN_H

#include <string.h>

enum fault_op {
    OP_OPEN, OP_CREATE, OP_WRITE, OP_READ, OP_SYNC, OP_LINK, OP_RENAME, OP_CLOSE, OP_MKDIR, OP_TRUNC, OP_UNLINK, OP_STAT, OP_LIST,
    OP_LOCK, OP_ALLOC, OPS
};

enum fault_class {
    CLASS_SHARD, CLASS_ENTRY, CLASS_MANIFEST, CLASS_EPOCH, CLASS_MARKER, CLASS_PIN, CLASS_RUN, CLASS_RECIPE, CLASS_FILES, CLASS_LOG, CLASS_LOCK,
    CLASS_BASE, CLASS_DIR, CLASSES
};

enum fault_kind { KIND_NONE, KIND_KILL, KIND_TORN, KIND_ERRNO, KIND_SHORT, KIND_AGAIN, KIND_DELAY, KIND_LIE, KIND_STOP, KIND_JUMP, KINDS };

static const char *const fault_op_name[OPS] = {"open", "create", "write", "read",  "sync", "link", "rename", "close",
                                               "mkdir", "trunc", "unlink", "stat", "list", "lock", "alloc"};
static const char *const fault_class_name[CLASSES] = {"shard", "entry", "manifest", "epoch", "marker", "pin", "run",
                                                      "recipe", "files", "log", "lock", "base", "dir"};
static const char *const fault_kind_name[KINDS] = {"none", "kill", "torn", "errno", "short", "again", "delay", "lie", "stop", "jump"};

static inline int fault_digits(const char *p, const char *end)
{
    if (p == end)
        return 0;
    for (; p < end; p++)
        if (*p < '0' || *p > '9')
            return 0;
    return 1;
}

static inline int fault_ends(const char *p, const char *tail)
{
    size_t n = strlen(p), k = strlen(tail);

    return n >= k && !strcmp(p + n - k, tail);
}

/* Class of a path below root ("" is root itself). Temporaries belong to the class of what they will become. */
static inline enum fault_class fault_classify(const char *rel)
{
    const char *slash = strrchr(rel, '/'), *name = slash ? slash + 1 : rel, *dir = slash; /* dir: name of the directory that holds it */

    while (dir && dir > rel && dir[-1] != '/')
        dir--;
    if (strstr(name, "MANIFEST"))
        return CLASS_MANIFEST;
    if (!strncmp(name, "COLLECTED", 9))
        return CLASS_MARKER;
    if (!strcmp(name, "epoch") || (slash && slash - dir == 5 && !strncmp(dir, "epoch", 5)))
        return CLASS_EPOCH;
    if (!strcmp(name, "pin") || (slash && slash - dir == 3 && !strncmp(dir, "pin", 3)))
        return CLASS_PIN;
    if (slash && slash > dir + 1 && dir[0] == 'a' && fault_digits(dir + 1, slash))
        return fault_ends(name, ".json") ? CLASS_ENTRY : CLASS_SHARD;
    if (name[0] == 'a' && fault_digits(name + 1, name + strlen(name)))
        return CLASS_SHARD;
    if (!strncmp(rel, "run.json", 8))
        return CLASS_RUN;
    if (!strncmp(rel, "recipe.yaml", 11))
        return CLASS_RECIPE;
    if (!strncmp(rel, "files", 5))
        return CLASS_FILES;
    if (!strncmp(rel, "log", 3))
        return CLASS_LOG;
    if (!strcmp(rel, ".lock"))
        return CLASS_LOCK;
    if (!strncmp(rel, "base/", 5))
        return CLASS_BASE;
    return CLASS_DIR;
}

#endif
