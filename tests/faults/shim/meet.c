/* meet.c - see shim.h: counts calls, and does or says what the plan has for them. */
#include "tests/faults/shim/shim.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

struct shim_plan shim_plan;
int shim_tracing;

static atomic_long counted;       /* calls of all threads */
static atomic_long others;        /* threads but the first that have made one */
static atomic_int fired;          /* the call that a thread is bound to was met */
static __thread long number_of_mine; /* 0: this thread has made none yet; else its number + 1 */
static __thread long mine;        /* calls of this thread */

long shim_counted(void)
{
    return atomic_load(&counted);
}

/* The first thread is 0, the others as they make their first counted calls. */
static long thread_number(void)
{
    if (!number_of_mine)
        number_of_mine = syscall(SYS_gettid) == syscall(SYS_getpid) ? 1 : 2 + atomic_fetch_add(&others, 1);
    return number_of_mine - 1;
}

/* Call k of all, call `mine` of this thread: 0: nothing happens to it; 1: it is the first one that something happens to; 2: a later one. */
static int due(enum fault_op op, long k)
{
    if (!shim_plan.n)
        return 0;
    if (shim_plan.thread < 0)
        return k == shim_plan.n ? 1 : shim_plan.on && k > shim_plan.n ? 2 : 0;
    if (atomic_load(&fired))
        return shim_plan.on ? 2 : 0;
    if (thread_number() != shim_plan.thread || mine < shim_plan.n || !(shim_plan.may >> op & 1) || atomic_exchange(&fired, 1))
        return 0;
    return 1;
}

enum fault_kind shim_meet(enum fault_op op, const char *rel, size_t bytes)
{
    enum fault_class c;
    int which;
    long k;

    if (!shim_active || !rel || !(shim_plan.ops >> op & 1) || (shim_plan.under[0] && !strstr(rel, shim_plan.under)) ||
        (shim_plan.without[0] && strstr(rel, shim_plan.without)))
        return KIND_NONE;
    c = fault_classify(rel[0] == '/' ? "" : rel);
    if (!(shim_plan.classes >> c & 1))
        return KIND_NONE;
    k = atomic_fetch_add(&counted, 1) + 1;
    mine++;
    if (shim_tracing)
        shim_tell("call %ld %s %s %zu %ld %s\n", k, fault_op_name[op], fault_class_name[c], bytes, thread_number(), rel);
    if (!(which = due(op, k)))
        return KIND_NONE;
    if (shim_plan.kind == KIND_TORN && (op != OP_WRITE || bytes < 2))
        shim_plan.kind = KIND_KILL;
    if (which == 1)
        shim_tell("fire %ld %s %s %zu %s\n", k, fault_op_name[op], fault_class_name[c], bytes, rel);
    switch (shim_plan.kind) {
    case KIND_KILL:
        syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
        for (;;)
            syscall(SYS_pause);
    case KIND_STOP:
        syscall(SYS_kill, syscall(SYS_getpid), SIGSTOP);
        if (shim_plan.then) {
            shim_plan.n += shim_plan.then;
            shim_plan.kind = KIND_KILL;
        }
        return KIND_NONE;
    case KIND_JUMP:
        shim_skew += shim_plan.ms / 1000;
        return KIND_NONE;
    case KIND_DELAY: {
        struct timespec t = {shim_plan.ms / 1000, shim_plan.ms % 1000 * 1000000};

        syscall(SYS_nanosleep, &t, NULL);
        return KIND_NONE;
    }
    case KIND_ERRNO:
        errno = (int)shim_plan.err;
        break;
    case KIND_AGAIN:
        errno = EINTR;
        break;
    }
    return shim_plan.kind;
}

int shim_fails(enum fault_kind k)
{
    return k == KIND_ERRNO || k == KIND_AGAIN;
}
