/* shim.c - build/lib/faultshim.so, preloaded: makes the n-th file operation of a program fail, or kills the program there.
 *
 * Stands between the program and the C library for everything that touches files by name or descriptor; does the work itself with
 * raw system calls, so that nothing of it is counted twice. Only calls on paths below CAIRN_FAULT_ROOT count (a descriptor
 * belongs to the path it was opened by). What fired goes to CAIRN_FAULT_REPORT, so that a driver which counts n = 1, 2, 3 ... knows
 * when there is no such call any more. The environment is described in plan.h.
 *
 * Does not see: calls from within the C library (fopen, realpath), mmap, io_uring. Memory: static tables only; descriptors
 * above FDS are not followed. Idea: sqlite's test VFS, ALICE.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "tests/faults/journal.h"
#include "tests/faults/plan.h"

#define FDS 1024
#define PATH_BYTES 512
#define REPORT_FD 1000
#define JOURNAL_FD 1001

static char root[PATH_BYTES], spare[PATH_BYTES]; /* CAIRN_FAULT_ROOT, CAIRN_FAULT_FREE; empty: none */
static size_t root_n, spare_n;
static char fd_rel[FDS][PATH_BYTES];          /* path below root, "/" alone for root itself; "": not below root */
static char fd_abs[FDS][PATH_BYTES];          /* of directories that are not below root: openat starts there */
static int reporting, journaling, active, tracing, ranked; /* ranked: under mpirun */
static struct {
    long n, err, ms, then;
    unsigned ops, classes;
    int kind, on;
    char under[64], without[64];
} plan;
static atomic_long counted, allocs;
static long skew; /* seconds that are added to the wall clock */

/* ---- telling ------------------------------------------------------------------------------------------------------ */

static void tell(const char *fmt, ...)
{
    char line[PATH_MAX + 128];
    va_list ap;
    int n;

    if (!reporting)
        return;
    va_start(ap, fmt);
    n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n > 0)
        syscall(SYS_write, REPORT_FD, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

static void record(enum journal_op op, const char *path, const char *path2, const void *data, size_t n, int64_t offset)
{
    struct journal_head h = {.magic = JOURNAL_MAGIC, .op = op, .path_n = (uint32_t)strlen(path), .path2_n = (uint32_t)strlen(path2),
                             .data_n = (uint32_t)n, .offset = offset};
    struct iovec v[4] = {{&h, sizeof h}, {(void *)(uintptr_t)path, h.path_n}, {(void *)(uintptr_t)path2, h.path2_n}, {(void *)(uintptr_t)data, n}};

    if (journaling)
        syscall(SYS_writev, JOURNAL_FD, v, 4);
}

/* ---- places ------------------------------------------------------------------------------------------------------- */

/* Path of `name` at dirfd, absolute, without "." and double slashes (".." stays: ours have none). 0: too long or unknown. */
static int absolute(int dirfd, const char *name, char *out)
{
    size_t n = 0;

    if (name[0] != '/') {
        if (dirfd == AT_FDCWD) {
            if (syscall(SYS_getcwd, out, PATH_MAX) <= 0)
                return 0;
        } else if (dirfd >= 0 && dirfd < FDS && fd_rel[dirfd][0]) {
            snprintf(out, PATH_MAX, "%s/%s", root, fd_rel[dirfd][0] == '/' ? "" : fd_rel[dirfd]);
        } else if (dirfd >= 0 && dirfd < FDS && fd_abs[dirfd][0]) {
            snprintf(out, PATH_MAX, "%s", fd_abs[dirfd]);
        } else {
            return 0;
        }
        n = strlen(out);
    }
    while (*name) {
        size_t k = strcspn(name, "/");

        if (k && !(k == 1 && name[0] == '.')) {
            if (n + k + 2 > PATH_MAX)
                return 0;
            if (!n || out[n - 1] != '/')
                out[n++] = '/';
            memcpy(out + n, name, k);
            n += k;
        }
        name += k + (name[k] == '/');
    }
    while (n > 1 && out[n - 1] == '/')
        n--;
    out[n] = 0;
    return n > 0;
}

/* The part below root of an absolute path, "/" for root itself; NULL: elsewhere. */
static const char *below(const char *abs)
{
    if (!root_n || strncmp(abs, root, root_n) || (abs[root_n] && abs[root_n] != '/'))
        return NULL;
    return abs[root_n] ? abs + root_n + 1 : "/";
}

/* Below root: its relative path in buf ("/" for root). NULL: not. */
static const char *place(int dirfd, const char *name, char buf[PATH_MAX])
{
    return name && absolute(dirfd, name, buf) ? below(buf) : NULL;
}

static const char *place_fd(int fd)
{
    return fd >= 0 && fd < FDS && fd_rel[fd][0] ? fd_rel[fd] : NULL;
}

/* The name of a manifest came to be. */
static void published(const char *rel)
{
    if (reporting && rel && fault_ends(rel, "/MANIFEST.json"))
        tell("publish %.*s\n", (int)(strlen(rel) - 14), rel);
}

/* Something beyond root changes: told, unless it may. */
static void beyond(const char *op, int dirfd, const char *name)
{
    char abs[PATH_MAX];

    if (!reporting || !root_n || !name || !absolute(dirfd, name, abs) || below(abs) || !strncmp(abs, "/proc/", 6) ||
        !strcmp(abs, "/dev/null") || 
        !strncmp(abs, "/dev/shm/cairn-", 15) || /* memory that is called after its process (world/shmname.h) */
        (ranked && !strncmp(abs, "/dev/shm/vader_segment.", 23)) || !strcmp(abs, "/dev/tty") || (spare_n && !strncmp(abs, spare, spare_n)))
        return;
    tell("outside %s %s\n", op, abs);
}

/* ---- the plan ------------------------------------------------------------------------------------------------------ */

/* Counts a call. What is to happen: KIND_NONE: go on. KIND_KILL does not return. */
static enum fault_kind meet(enum fault_op op, const char *rel, size_t bytes)
{
    enum fault_class c;
    long k;

    if (!active || !rel || !(plan.ops >> op & 1) || (plan.under[0] && !strstr(rel, plan.under)) || (plan.without[0] && strstr(rel, plan.without)))
        return KIND_NONE;
    c = fault_classify(rel[0] == '/' ? "" : rel);
    if (!(plan.classes >> c & 1))
        return KIND_NONE;
    k = atomic_fetch_add(&counted, 1) + 1;
    if (tracing)
        tell("call %ld %s %s %zu %s\n", k, fault_op_name[op], fault_class_name[c], bytes, rel);
    if (!plan.n || !(k == plan.n || (plan.on && k > plan.n)))
        return KIND_NONE;
    if (plan.kind == KIND_TORN && (op != OP_WRITE || bytes < 2))
        plan.kind = KIND_KILL;
    if (k == plan.n)
        tell("fire %ld %s %s %zu %s\n", k, fault_op_name[op], fault_class_name[c], bytes, rel);
    switch (plan.kind) {
    case KIND_KILL:
        syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
        for (;;)
            syscall(SYS_pause);
    case KIND_STOP:
        syscall(SYS_kill, syscall(SYS_getpid), SIGSTOP);
        if (plan.then) {
            plan.n += plan.then;
            plan.kind = KIND_KILL;
        }
        return KIND_NONE;
    case KIND_JUMP:
        skew += plan.ms / 1000;
        return KIND_NONE;
    case KIND_DELAY: {
        struct timespec t = {plan.ms / 1000, plan.ms % 1000 * 1000000};

        syscall(SYS_nanosleep, &t, NULL);
        return KIND_NONE;
    }
    case KIND_ERRNO:
        errno = (int)plan.err;
        break;
    case KIND_AGAIN:
        errno = EINTR;
        break;
    }
    return plan.kind;
}

/* The call is to fail with errno as set by meet. */
static int fails(enum fault_kind k)
{
    return k == KIND_ERRNO || k == KIND_AGAIN;
}

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
               *program = getenv("CAIRN_FAULT_PROGRAM"), *journal = getenv("CAIRN_FAULT_JOURNAL"), *s = getenv("CAIRN_FAULT_FREE"), *mpi = getenv("OMPI_COMM_WORLD_RANK");
    char exe[PATH_MAX];
    ssize_t n = syscall(SYS_readlink, "/proc/self/exe", exe, sizeof exe - 1);

    exe[n > 0 ? n : 0] = 0;
    if (number(text, "rank", -1) >= 0 && number(text, "rank", -1) != (mpi ? strtol(mpi, NULL, 10) : 0))
        return;
    if (program && *program && strcmp(strrchr(exe, '/') ? strrchr(exe, '/') + 1 : exe, program))
        return;
    snprintf(root, sizeof root, "%s", r ? r : "");
    root_n = strlen(root);
    snprintf(spare, sizeof spare, "%s", s ? s : "");
    spare_n = strlen(spare);
    if (report && *report) {
        keep_open(report, REPORT_FD);
        reporting = 1;
    }
    if (journal && *journal) {
        keep_open(journal, JOURNAL_FD);
        journaling = 1;
    }
    plan.n = number(text, "n", 0);
    plan.ops = (unsigned)number(text, "ops", (1 << OP_ALLOC) - 1);
    plan.classes = (unsigned)number(text, "classes", -1);
    plan.err = number(text, "errno", EIO);
    plan.on = (int)number(text, "on", 0);
    plan.ms = number(text, "ms", 100);
    plan.then = number(text, "then", 0);
    tracing = (int)number(text, "trace", 0);
    text_of(text, "under", plan.under, sizeof plan.under);
    text_of(text, "without", plan.without, sizeof plan.without);
    ranked = mpi != NULL;
    for (int k = 0; text && k < KINDS; k++) {
        char want[32];

        snprintf(want, sizeof want, "kind=%s", fault_kind_name[k]);
        if (strstr(text, want))
            plan.kind = k;
    }
    if (getenv("CAIRN_FAULT_SKEW"))
        skew = strtol(getenv("CAIRN_FAULT_SKEW"), NULL, 10);
    active = 1;
}

__attribute__((destructor)) static void end(void)
{
    if (!active)
        return;
    active = 0;
    tell("end %ld %ld\n", plan.ops >> OP_ALLOC & 1 ? atomic_load(&allocs) : atomic_load(&counted), syscall(SYS_getpid));
    record(J_END, "", "", "", 0, syscall(SYS_getpid));
}

/* ---- opening and closing ------------------------------------------------------------------------------------------- */

static int changes(int flags)
{
    return (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC);
}

static int do_open(int dirfd, const char *name, int flags, mode_t mode)
{
    char buf[PATH_MAX], abs[PATH_MAX];
    const char *rel = active ? place(dirfd, name, buf) : NULL;
    enum fault_kind k;
    struct stat sb;
    int absent, fd;

    if (active && !rel && changes(flags))
        beyond("open", dirfd, name);
    k = meet(flags & O_CREAT ? OP_CREATE : OP_OPEN, rel, 0);
    if (fails(k))
        return -1;
    absent = rel && journaling && flags & O_CREAT && syscall(SYS_newfstatat, dirfd, name, &sb, 0);
    fd = (int)syscall(SYS_openat, dirfd, name, flags, mode);
    if (fd >= 0 && fd < FDS) {
        fd_rel[fd][0] = fd_abs[fd][0] = 0;
        if (rel)
            snprintf(fd_rel[fd], PATH_BYTES, "%s", rel);
        else if (active && absolute(dirfd, name, abs))
            snprintf(fd_abs[fd], PATH_BYTES, "%.*s", PATH_BYTES - 1, abs);
        if (absent)
            record(J_CREATE, rel, "", "", 0, 0);
        else if (rel && flags & O_TRUNC)
            record(J_TRUNC, rel, "", "", 0, 0);
    }
    return fd;
}

#define MODE(flags, last)                       \
    mode_t mode = 0;                            \
    if ((flags) & (O_CREAT | O_TMPFILE)) {      \
        va_list ap;                             \
        va_start(ap, last);                     \
        mode = (mode_t)va_arg(ap, int);         \
        va_end(ap);                             \
    }

int open(const char *name, int flags, ...)
{
    MODE(flags, flags)
    return do_open(AT_FDCWD, name, flags, mode);
}

int open64(const char *name, int flags, ...)
{
    MODE(flags, flags)
    return do_open(AT_FDCWD, name, flags, mode);
}

int openat(int dirfd, const char *name, int flags, ...)
{
    MODE(flags, flags)
    return do_open(dirfd, name, flags, mode);
}

int openat64(int dirfd, const char *name, int flags, ...)
{
    MODE(flags, flags)
    return do_open(dirfd, name, flags, mode);
}

/* What a build with _FORTIFY_SOURCE calls instead. */
int __open_2(const char *name, int flags);
int __open_2(const char *name, int flags)
{
    return do_open(AT_FDCWD, name, flags, 0);
}

int __openat_2(int dirfd, const char *name, int flags);
int __openat_2(int dirfd, const char *name, int flags)
{
    return do_open(dirfd, name, flags, 0);
}

int creat(const char *name, mode_t mode)
{
    return do_open(AT_FDCWD, name, O_WRONLY | O_CREAT | O_TRUNC, mode);
}

int close(int fd)
{
    const char *rel = place_fd(fd);
    enum fault_kind k;
    int r;

    if (fd == REPORT_FD || fd == JOURNAL_FD) {
        errno = EBADF;
        return -1;
    }
    k = meet(OP_CLOSE, rel, 0);
    if (fd >= 0 && fd < FDS)
        fd_rel[fd][0] = fd_abs[fd][0] = 0;
    r = (int)syscall(SYS_close, fd); /* a failed close closes all the same */
    if (fails(k)) {
        errno = k == KIND_AGAIN ? EINTR : (int)plan.err;
        return -1;
    }
    return r;
}

/* ---- reading and writing ------------------------------------------------------------------------------------------- */

static size_t cut(enum fault_kind k, size_t n)
{
    return (k == KIND_SHORT || k == KIND_TORN) && n > 1 ? n / 2 : n;
}

static ssize_t do_read(int fd, void *p, size_t n, off_t at, int positioned)
{
    enum fault_kind k = meet(OP_READ, place_fd(fd), n);

    if (fails(k))
        return -1;
    n = cut(k, n);
    return positioned ? syscall(SYS_pread64, fd, p, n, at) : syscall(SYS_read, fd, p, n);
}

static ssize_t do_write(int fd, const void *p, size_t n, off_t at, int positioned)
{
    const char *rel = place_fd(fd);
    enum fault_kind k = meet(OP_WRITE, rel, n);
    ssize_t put;

    if (fails(k))
        return -1;
    if (k == KIND_LIE)
        return (ssize_t)n;
    put = positioned ? syscall(SYS_pwrite64, fd, p, cut(k, n), at) : syscall(SYS_write, fd, p, cut(k, n));
    if (k == KIND_TORN)
        syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    if (put > 0 && rel && journaling) {
        if (!positioned)
            at = (off_t)syscall(SYS_lseek, fd, 0, SEEK_CUR) - put;
        record(J_WRITE, rel, "", p, (size_t)put, at);
    }
    return put;
}

ssize_t read(int fd, void *p, size_t n)
{
    return do_read(fd, p, n, 0, 0);
}

ssize_t __read_chk(int fd, void *p, size_t n, size_t room);
ssize_t __read_chk(int fd, void *p, size_t n, size_t room)
{
    (void)room;
    return do_read(fd, p, n, 0, 0);
}

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    return do_read(fd, p, n, at, 1);
}

ssize_t pread64(int fd, void *p, size_t n, off64_t at)
{
    return do_read(fd, p, n, at, 1);
}

ssize_t __pread_chk(int fd, void *p, size_t n, off_t at, size_t room);
ssize_t __pread_chk(int fd, void *p, size_t n, off_t at, size_t room)
{
    (void)room;
    return do_read(fd, p, n, at, 1);
}

ssize_t __pread64_chk(int fd, void *p, size_t n, off64_t at, size_t room);
ssize_t __pread64_chk(int fd, void *p, size_t n, off64_t at, size_t room)
{
    (void)room;
    return do_read(fd, p, n, at, 1);
}

ssize_t write(int fd, const void *p, size_t n)
{
    return do_write(fd, p, n, 0, 0);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    return do_write(fd, p, n, at, 1);
}

ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at)
{
    return do_write(fd, p, n, at, 1);
}

static int do_sync(int fd, long nr)
{
    const char *rel = place_fd(fd);
    enum fault_kind k = meet(OP_SYNC, rel, 0);
    struct stat sb;
    int r;

    if (fails(k))
        return -1;
    if (k == KIND_LIE)
        return 0;
    r = (int)syscall(nr, fd);
    if (!r && rel && journaling && !syscall(SYS_newfstatat, fd, "", &sb, AT_EMPTY_PATH))
        record(S_ISDIR(sb.st_mode) ? J_SYNC_DIR : J_SYNC, rel[0] == '/' ? "" : rel, "", "", 0, 0);
    return r;
}

int fsync(int fd)
{
    return do_sync(fd, SYS_fsync);
}

int fdatasync(int fd)
{
    return do_sync(fd, SYS_fdatasync);
}

static int do_truncate(int fd, off_t size)
{
    const char *rel = place_fd(fd);
    int r;

    if (fails(meet(OP_TRUNC, rel, 0)))
        return -1;
    r = (int)syscall(SYS_ftruncate, fd, size);
    if (!r && rel)
        record(J_TRUNC, rel, "", "", 0, size);
    return r;
}

int ftruncate(int fd, off_t size)
{
    return do_truncate(fd, size);
}

int ftruncate64(int fd, off64_t size)
{
    return do_truncate(fd, size);
}

int flock(int fd, int how)
{
    if (fails(meet(OP_LOCK, place_fd(fd), 0)))
        return -1;
    return (int)syscall(SYS_flock, fd, how);
}

/* ---- names ---------------------------------------------------------------------------------------------------------- */

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    char a[PATH_MAX], b[PATH_MAX];
    const char *x = place(from_fd, from, a), *y = place(to_fd, to, b);
    int r;

    beyond("link", to_fd, to);
    if (fails(meet(OP_LINK, y, 0)))
        return -1;
    r = (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
    if (!r)
        published(y);
    if (!r && x && y)
        record(J_LINK, x, y, "", 0, 0);
    return r;
}

int link(const char *from, const char *to)
{
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int symlink(const char *target, const char *to)
{
    char b[PATH_MAX];
    const char *y = place(AT_FDCWD, to, b);
    int r;

    beyond("symlink", AT_FDCWD, to);
    if (fails(meet(OP_LINK, y, 0)))
        return -1;
    r = (int)syscall(SYS_symlinkat, target, AT_FDCWD, to);
    if (!r && y)
        record(J_SYMLINK, target, y, "", 0, 0);
    return r;
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    char a[PATH_MAX], b[PATH_MAX];
    const char *x = place(from_fd, from, a), *y = place(to_fd, to, b);
    int r;

    beyond("rename", from_fd, from);
    beyond("rename", to_fd, to);
    if (fails(meet(OP_RENAME, y, 0)))
        return -1;
    r = (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
    if (!r)
        published(y);
    if (!r && x && y)
        record(J_RENAME, x, y, "", 0, 0);
    return r;
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return renameat2(from_fd, from, to_fd, to, 0);
}

int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int mkdirat(int dirfd, const char *name, mode_t mode)
{
    char b[PATH_MAX];
    const char *y = place(dirfd, name, b);
    int r;

    if (fails(meet(OP_MKDIR, y, 0)))
        return -1;
    r = (int)syscall(SYS_mkdirat, dirfd, name, mode);
    if (!r)
        beyond("mkdir", dirfd, name);
    if (!r && y)
        record(J_MKDIR, y, "", "", 0, 0);
    return r;
}

int mkdir(const char *name, mode_t mode)
{
    return mkdirat(AT_FDCWD, name, mode);
}

int unlinkat(int dirfd, const char *name, int flags)
{
    char b[PATH_MAX];
    const char *y = place(dirfd, name, b);
    int r;

    beyond("unlink", dirfd, name);
    if (fails(meet(OP_UNLINK, y, 0)))
        return -1;
    r = (int)syscall(SYS_unlinkat, dirfd, name, flags);
    if (!r && y)
        record(flags & AT_REMOVEDIR ? J_RMDIR : J_UNLINK, y, "", "", 0, 0);
    return r;
}

int unlink(const char *name)
{
    return unlinkat(AT_FDCWD, name, 0);
}

int rmdir(const char *name)
{
    return unlinkat(AT_FDCWD, name, AT_REMOVEDIR);
}

/* ---- looking --------------------------------------------------------------------------------------------------------- */

static int do_stat(int dirfd, const char *name, struct stat *sb, int flags)
{
    char b[PATH_MAX];
    const char *y = flags & AT_EMPTY_PATH && !name[0] ? place_fd(dirfd) : place(dirfd, name, b);

    if (fails(meet(OP_STAT, y, 0)))
        return -1;
    return (int)syscall(SYS_newfstatat, dirfd, name, sb, flags);
}

int stat(const char *restrict name, struct stat *restrict sb)
{
    return do_stat(AT_FDCWD, name, sb, 0);
}

int lstat(const char *restrict name, struct stat *restrict sb)
{
    return do_stat(AT_FDCWD, name, sb, AT_SYMLINK_NOFOLLOW);
}

int fstat(int fd, struct stat *sb)
{
    return do_stat(fd, "", sb, AT_EMPTY_PATH);
}

int fstatat(int dirfd, const char *restrict name, struct stat *restrict sb, int flags)
{
    return do_stat(dirfd, name, sb, flags);
}

int access(const char *name, int mode)
{
    char b[PATH_MAX];

    if (fails(meet(OP_STAT, place(AT_FDCWD, name, b), 0)))
        return -1;
    return (int)syscall(SYS_faccessat, AT_FDCWD, name, mode);
}

DIR *opendir(const char *name)
{
    int fd = do_open(AT_FDCWD, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0), e;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);

    if (fd >= 0 && !d) {
        e = errno;
        syscall(SYS_close, fd);
        errno = e;
    }
    return d;
}

struct dirent *readdir(DIR *d)
{
    static struct dirent *(*real)(DIR *);

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "readdir");
    if (fails(meet(OP_LIST, place_fd(dirfd(d)), 0)))
        return NULL;
    return real(d);
}

int closedir(DIR *d)
{
    static int (*real)(DIR *);
    int fd = dirfd(d);

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "closedir");
    if (fd >= 0 && fd < FDS)
        fd_rel[fd][0] = fd_abs[fd][0] = 0;
    return real(d);
}

/* ---- the wall clock --------------------------------------------------------------------------------------------------- */

int clock_gettime(clockid_t id, struct timespec *t)
{
    int r = (int)syscall(SYS_clock_gettime, id, t);

    if (!r && id == CLOCK_REALTIME)
        t->tv_sec += skew;
    return r;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    int r = (int)syscall(SYS_gettimeofday, t, zone);

    if (!r)
        t->tv_sec += skew;
    return r;
}

time_t time(time_t *out)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t m, size_t n);
void *__libc_realloc(void *p, size_t n);

/* 1: this allocation is to fail. */
static int starve(void)
{
    long k;

    if (!active || !(plan.ops >> OP_ALLOC & 1))
        return 0;
    k = atomic_fetch_add(&allocs, 1) + 1;
    if (!plan.n || !(k == plan.n || (plan.on && k > plan.n)))
        return 0;
    if (k == plan.n)
        tell("fire %ld alloc dir 0 /\n", k);
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n)
{
    return starve() ? NULL : __libc_malloc(n);
}

void *calloc(size_t m, size_t n)
{
    return starve() ? NULL : __libc_calloc(m, n);
}

void *realloc(void *p, size_t n)
{
    return starve() ? NULL : __libc_realloc(p, n);
}
