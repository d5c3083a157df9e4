/* tell.c - see shim.h: what goes to the report and to the journal. */
#include "tests/faults/shim/shim.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/uio.h>

int shim_reporting, shim_journaling, shim_ranked;

void shim_tell(const char *fmt, ...)
{
    char line[PATH_MAX + 128];
    va_list ap;
    int n;

    if (!shim_reporting)
        return;
    va_start(ap, fmt);
    n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n > 0)
        syscall(SYS_write, REPORT_FD, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

void shim_record(enum journal_op op, const char *path, const char *path2, const void *data, size_t n, int64_t offset)
{
    struct journal_head h = {.magic = JOURNAL_MAGIC, .op = op, .path_n = (uint32_t)strlen(path), .path2_n = (uint32_t)strlen(path2),
                             .data_n = (uint32_t)n, .offset = offset};
    struct iovec v[4] = {{&h, sizeof h}, {(void *)(uintptr_t)path, h.path_n}, {(void *)(uintptr_t)path2, h.path2_n}, {(void *)(uintptr_t)data, n}};

    if (shim_journaling)
        syscall(SYS_writev, JOURNAL_FD, v, 4);
}

/* The name of a manifest came to be. */
void shim_published(const char *rel)
{
    if (shim_reporting && rel && fault_ends(rel, "/MANIFEST.json"))
        shim_tell("publish %.*s\n", (int)(strlen(rel) - 14), rel);
}

/* Something beyond root changes: told, unless it may. */
void shim_beyond(const char *op, int dirfd, const char *name)
{
    char abs[PATH_MAX];

    if (!shim_reporting || !shim_root[0] || !name || !shim_absolute(dirfd, name, abs) || shim_below(abs) || !strncmp(abs, "/proc/", 6) ||
        !strcmp(abs, "/dev/null") || !strncmp(abs, "/dev/shm/cairn-", 15) || /* memory that is called after its process (world/shmname.h) */
        (shim_ranked && !strncmp(abs, "/dev/shm/vader_segment.", 23)) || !strcmp(abs, "/dev/tty") ||
        (shim_spare[0] && !strncmp(abs, shim_spare, strlen(shim_spare))))
        return;
    shim_tell("outside %s %s\n", op, abs);
}
