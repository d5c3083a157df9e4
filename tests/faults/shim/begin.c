/* begin.c - see shim.h: the environment, when the program begins, and the last line of the report, when it ends. */
#include "tests/faults/shim/shim.h"

#include <stdio.h>
#include <stdlib.h>

int shim_active;

static long number(const char *text, const char *key, long or)
{
    size_t n = strlen(key);

    for (const char *p = text; p && *p; p += strcspn(p, " "), p += strspn(p, " "))
        if (!strncmp(p, key, n) && p[n] == '=')
            return strtol(p + n + 1, NULL, 10);
    return or;
}

static void text_of(const char *text, const char *key, char *out, size_t room)
{
    size_t n = strlen(key);

    for (const char *p = text; p && *p; p += strcspn(p, " "), p += strspn(p, " "))
        if (!strncmp(p, key, n) && p[n] == '=')
            snprintf(out, room, "%.*s", (int)strcspn(p + n + 1, " "), p + n + 1);
}

static void keep_open(const char *path, int as)
{
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);

    if (fd < 0)
        return;
    syscall(SYS_dup3, fd, as, O_CLOEXEC);
    syscall(SYS_close, fd);
}

__attribute__((constructor)) static void begin(void)
{
    const char *r = getenv("CAIRN_FAULT_ROOT"), *report = getenv("CAIRN_FAULT_REPORT"), *text = getenv("CAIRN_FAULT"),
               *program = getenv("CAIRN_FAULT_PROGRAM"), *journal = getenv("CAIRN_FAULT_JOURNAL"), *s = getenv("CAIRN_FAULT_FREE"),
               *mpi = getenv("OMPI_COMM_WORLD_RANK");
    char exe[PATH_MAX];
    ssize_t n = syscall(SYS_readlink, "/proc/self/exe", exe, sizeof exe - 1);

    exe[n > 0 ? n : 0] = 0;
    if (number(text, "rank", -1) >= 0 && number(text, "rank", -1) != (mpi ? strtol(mpi, NULL, 10) : 0))
        return;
    if (program && *program && strcmp(strrchr(exe, '/') ? strrchr(exe, '/') + 1 : exe, program))
        return;
    snprintf(shim_root, sizeof shim_root, "%s", r ? r : "");
    snprintf(shim_spare, sizeof shim_spare, "%s", s ? s : "");
    if (report && *report) {
        keep_open(report, REPORT_FD);
        shim_reporting = 1;
    }
    if (journal && *journal) {
        keep_open(journal, JOURNAL_FD);
        shim_journaling = 1;
    }
    shim_plan.n = number(text, "n", 0);
    shim_plan.ops = (unsigned)number(text, "ops", (1 << OP_ALLOC) - 1);
    shim_plan.may = (unsigned)number(text, "may", -1);
    shim_plan.thread = number(text, "thread", -1);
    shim_plan.classes = (unsigned)number(text, "classes", -1);
    shim_plan.err = number(text, "errno", EIO);
    shim_plan.on = (int)number(text, "on", 0);
    shim_plan.ms = number(text, "ms", 100);
    shim_plan.then = number(text, "then", 0);
    shim_tracing = (int)number(text, "trace", 0);
    text_of(text, "under", shim_plan.under, sizeof shim_plan.under);
    text_of(text, "without", shim_plan.without, sizeof shim_plan.without);
    shim_ranked = mpi != NULL;
    for (int k = 0; text && k < KINDS; k++) {
        char want[32];

        snprintf(want, sizeof want, "kind=%s", fault_kind_name[k]);
        if (strstr(text, want))
            shim_plan.kind = k;
    }
    if (getenv("CAIRN_FAULT_SKEW"))
        shim_skew = strtol(getenv("CAIRN_FAULT_SKEW"), NULL, 10);
    shim_active = 1;
}

__attribute__((destructor)) static void end(void)
{
    if (!shim_active)
        return;
    shim_active = 0;
    shim_tell("end %ld %ld\n", shim_plan.ops >> OP_ALLOC & 1 ? shim_allocated() : shim_counted(), syscall(SYS_getpid));
    shim_record(J_END, "", "", "", 0, syscall(SYS_getpid));
}
