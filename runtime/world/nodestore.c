/* nodestore.c - objects, their locks, and what goes when (nodestore.h). */
#include "world/nodestore.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/signals.h"
#include "base/str.h"

#define MAGIC       "cairn node store 1\n"
#define PAGE        4096
#define BLOCK       CAIRN_NODE_BLOCK
#define MAKING      ".making"
#define PATIENCE_S  600.0
#define THREADS_MAX 8

struct cairn_nodestore {
    struct cairn_nodestore_opts o; /* path is ours */
    char *path, *dir;
};

struct header {
    char magic[32];
    struct cairn_digest key;
    uint64_t bytes, block, at;
    struct cairn_digest table, check; /* check: of all before it */
};

/* ---- the folder ------------------------------------------------------------------------------------------------------ */

static char *folder_of(const char *path)
{
    return cairn_format("%s/cairn-%ld", path, (long)geteuid());
}

/* Ours, and nobody else's to write or read. */
static enum cairn_status folder_check(const char *dir, struct cairn_error *err)
{
    struct stat sb;

    if (lstat(dir, &sb))
        return cairn_fail_errno(err, errno, "look at %s", dir);
    if (!S_ISDIR(sb.st_mode))
        return cairn_fail(err, CAIRN_EDATA, "%s is no folder", dir);
    if (sb.st_uid != geteuid())
        return cairn_fail(err, CAIRN_EDATA, "%s belongs to user %ld", dir, (long)sb.st_uid);
    if (sb.st_mode & 077)
        return cairn_fail(err, CAIRN_EDATA, "%s is open to others (mode %03o)", dir, (unsigned)(sb.st_mode & 0777));
    return CAIRN_OK;
}

enum cairn_status cairn_nodestore_open(struct cairn_nodestore **out, const struct cairn_nodestore_opts *o, struct cairn_error *err)
{
    struct cairn_nodestore *s = calloc(1, sizeof *s);
    enum cairn_status st = CAIRN_OK;

    if (!s)
        return CAIRN_NOMEM(err);
    s->o = *o;
    s->path = strdup(o->path);
    s->dir = folder_of(o->path);
    if (!s->path || !s->dir)
        TRY(CAIRN_NOMEM(err));
    s->o.path = s->path;
    TRY(cairn_dir_make(s->path, err));
    if (mkdir(s->dir, 0700) && errno != EEXIST)
        TRY(cairn_fail_errno(err, errno, "make %s", s->dir));
    TRY(folder_check(s->dir, err));
    *out = s;
    s = NULL;
out:
    cairn_nodestore_close(s);
    return st;
}

void cairn_nodestore_close(struct cairn_nodestore *s)
{
    if (!s)
        return;
    free(s->path);
    free(s->dir);
    free(s);
}

/* ---- digests --------------------------------------------------------------------------------------------------------- */

struct hashing {
    const char *p;
    size_t bytes, blocks, next;
    struct cairn_digest *d;
};

static void *hash_some(void *arg)
{
    struct hashing *h = arg;
    size_t i;

    while ((i = __atomic_fetch_add(&h->next, 1, __ATOMIC_RELAXED)) < h->blocks) {
        size_t n = h->bytes - i * BLOCK < BLOCK ? h->bytes - i * BLOCK : BLOCK;

        h->d[i] = cairn_digest_bytes(h->p + i * BLOCK, n);
    }
    return NULL;
}

/* The digest of each block into d. Threads that cannot be had are done without. */
static void hash_blocks(const char *p, size_t bytes, size_t blocks, struct cairn_digest *d)
{
    struct hashing h = {p, bytes, blocks, 0, d};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t thread[THREADS_MAX];
    int n = 0;

    while (n < THREADS_MAX && n + 1 < cores && (size_t)n + 1 < blocks && !pthread_create(&thread[n], NULL, hash_some, &h))
        n++;
    hash_some(&h);
    while (n)
        pthread_join(thread[--n], NULL);
}

static size_t blocks_of(size_t bytes)
{
    return bytes / BLOCK + (bytes % BLOCK != 0);
}

static size_t payload_at(size_t bytes)
{
    return PAGE + (blocks_of(bytes) * sizeof(struct cairn_digest) + PAGE - 1) / PAGE * PAGE;
}

static struct header header_make(struct cairn_digest key, size_t bytes, const struct cairn_digest *table)
{
    struct header h;

    memset(&h, 0, sizeof h);
    memcpy(h.magic, MAGIC, sizeof MAGIC - 1);
    h.key = key;
    h.bytes = bytes;
    h.block = BLOCK;
    h.at = payload_at(bytes);
    h.table = cairn_digest_bytes(table, blocks_of(bytes) * sizeof *table);
    h.check = cairn_digest_bytes(&h, offsetof(struct header, check));
    return h;
}

/* ---- objects --------------------------------------------------------------------------------------------------------- */

void cairn_nodeobject_drop(struct cairn_nodeobject *o)
{
    if (!o)
        return;
    if (o->map)
        munmap(o->map, o->at + o->bytes);
    if (o->fresh && o->path)
        unlink(o->path); /* the lock is still ours */
    if (o->fd >= 0)
        close(o->fd);
    free(o->path);
    free(o->final);
    free(o->table);
    free(o);
}

/* Of an open file: regular, ours, of that size. */
static enum cairn_status file_check(int fd, const char *path, size_t size, struct cairn_error *err)
{
    struct stat sb;

    if (fstat(fd, &sb))
        return cairn_fail_errno(err, errno, "look at %s", path);
    if (!S_ISREG(sb.st_mode) || sb.st_uid != geteuid() || sb.st_nlink > 2)
        return cairn_fail(err, CAIRN_EDATA, "%s is no file of ours", path);
    if ((uint64_t)sb.st_size != size)
        return cairn_fail(err, CAIRN_EDATA, "%s has %lld bytes, expected %zu", path, (long long)sb.st_size, size);
    return CAIRN_OK;
}

/* 1: `path` still names the open file. */
static int names(const char *path, int fd)
{
    struct stat a, b;

    return !lstat(path, &a) && !fstat(fd, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static enum cairn_status object_map(struct cairn_nodeobject *o, int fresh, struct cairn_error *err)
{
    o->map = mmap(NULL, o->at + o->bytes, PROT_READ | PROT_WRITE, fresh ? MAP_SHARED : MAP_PRIVATE, o->fd, 0);
    if (o->map == MAP_FAILED) {
        o->map = NULL;
        return cairn_fail_errno(err, errno, "map %s", o->final);
    }
    o->p = o->map + o->at;
    return CAIRN_OK;
}

/* All of it: header, table, every block. */
static enum cairn_status object_check(const struct cairn_nodeobject *o, struct cairn_error *err)
{
    const size_t blocks = blocks_of(o->bytes);
    struct cairn_digest *have = malloc(blocks * sizeof *have + 1);
    struct header want;
    enum cairn_status st = CAIRN_OK;

    if (!have)
        return CAIRN_NOMEM(err);
    hash_blocks(o->p, o->bytes, blocks, have);
    want = header_make(o->key, o->bytes, have);
    if (memcmp(o->map, &want, sizeof want) || memcmp(o->map + PAGE, have, blocks * sizeof *have))
        st = cairn_fail(err, CAIRN_EDATA, "%s is damaged", o->final);
    free(have);
    return st;
}

/* Header and table, which say what each block must be. */
static enum cairn_status table_read(struct cairn_nodeobject *o, struct cairn_error *err)
{
    const size_t n = blocks_of(o->bytes) * sizeof *o->table;
    struct header have, want;
    enum cairn_status st = CAIRN_OK;

    if (!(o->table = malloc(n + 1)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_fd_pread_all(o->fd, &have, sizeof have, 0, o->final, err));
    TRY(cairn_fd_pread_all(o->fd, o->table, n, PAGE, o->final, err));
    want = header_make(o->key, o->bytes, o->table);
    if (memcmp(&have, &want, sizeof want))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s is damaged", o->final));
out:
    return st;
}

enum cairn_status cairn_nodeobject_read(const struct cairn_nodeobject *o, size_t at, size_t n, void *h_dst, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if (!o->table || at % BLOCK || n > o->bytes || at > o->bytes - n || (n % BLOCK && at + n != o->bytes))
        return CAIRN_BUG(err, "a part of an object that is no row of blocks");
    TRY(cairn_fd_pread_all(o->fd, h_dst, n, (int64_t)(o->at + at), o->final, err));
    for (size_t b = 0; b < n; b += BLOCK)
        if (!cairn_digest_equal(cairn_digest_bytes((const char *)h_dst + b, n - b < BLOCK ? n - b : BLOCK), o->table[(at + b) / BLOCK]))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s is damaged", o->final));
out:
    return st;
}

void cairn_nodeobject_refuse(struct cairn_nodeobject *o)
{
    if (!o->fresh && !flock(o->fd, LOCK_EX | LOCK_NB) && names(o->final, o->fd))
        unlink(o->final);
}

/* The object if it is there and whole (unread: as far as header and table say); else *out NULL. One that is not whole is removed. */
static enum cairn_status object_get(struct cairn_digest key, size_t bytes, const char *final, int unread, struct cairn_nodeobject **out,
                                    struct cairn_error *err)
{
    struct cairn_nodeobject *o = calloc(1, sizeof *o);
    struct timespec now[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
    enum cairn_status st = CAIRN_OK;

    *out = NULL;
    if (!o)
        return CAIRN_NOMEM(err);
    *o = (struct cairn_nodeobject){.bytes = bytes, .at = payload_at(bytes), .key = key, .final = strdup(final)};
    o->fd = open(final, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (o->fd < 0 && errno == ENOENT)
        goto out;
    if (o->fd < 0)
        TRY(cairn_fail_errno(err, errno, "open %s", final));
    if (!o->final)
        TRY(CAIRN_NOMEM(err));
    if (flock(o->fd, LOCK_SH | LOCK_NB)) {
        if (errno != EWOULDBLOCK)
            TRY(cairn_fail_errno(err, errno, "lock %s", final));
        goto out; /* it is being removed, or has just been made */
    }
    if (!names(final, o->fd))
        goto out; /* removed meanwhile */
    st = file_check(o->fd, final, o->at + o->bytes, err);
    if (st == CAIRN_OK && unread)
        st = table_read(o, err);
    if (st == CAIRN_OK && !unread)
        st = object_map(o, 0, err);
    if (st == CAIRN_OK && !unread)
        st = object_check(o, err);
    if (st == CAIRN_EDATA)
        cairn_nodeobject_refuse(o);
    TRY(st);
    futimens(o->fd, now);
    *out = o;
    o = NULL;
out:
    cairn_nodeobject_drop(o);
    return st;
}

/* We hold `making`, which is empty: room for the object. */
static enum cairn_status object_room(struct cairn_nodestore *s, struct cairn_nodeobject *o, struct cairn_error *err)
{
    struct cairn_nodestore_opts left = s->o;
    enum cairn_status st = CAIRN_OK;
    size_t all = o->at + o->bytes;
    int e;

    if (s->o.max_bytes > 0 && (double)all > s->o.max_bytes)
        TRY(cairn_fail(err, CAIRN_ENOSPACE, "%.3f GiB do not fit into %s (at most %.3f)", (double)all * 0x1p-30, s->dir, s->o.max_bytes * 0x1p-30));
    if (s->o.max_bytes > 0)
        left.max_bytes = s->o.max_bytes - (double)all + 1e-9; /* above 0, which would mean any number */
    TRY(cairn_nodestore_sweep(&left, 0, NULL, NULL, err));
    e = posix_fallocate(o->fd, 0, (off_t)all);
    if (e == ENOSPC || e == EFBIG || e == EDQUOT)
        TRY(cairn_fail(err, CAIRN_ENOSPACE, "%s: no space for %.3f GiB", s->dir, (double)all * 0x1p-30));
    if (e)
        TRY(cairn_fail_errno(err, e, "reserve %zu bytes in %s", all, s->dir));
out:
    return st;
}

/* 1: what stood at a maker's name could only be read, by nobody's hand any more (killed between making it read-only and naming it, or between
 * linking and unlinking), and is gone. */
static int remnant_remove(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), gone = 0;

    if (fd < 0)
        return 0;
    if (!flock(fd, LOCK_EX | LOCK_NB) && names(path, fd))
        gone = !unlink(path);
    close(fd);
    return gone;
}

/* *out NULL: another makes it. */
static enum cairn_status object_begin(struct cairn_nodestore *s, struct cairn_digest key, size_t bytes, const char *final,
                                      struct cairn_nodeobject **out, struct cairn_error *err)
{
    struct cairn_nodeobject *o = calloc(1, sizeof *o);
    char *path = cairn_format("%s%s", final, MAKING);
    enum cairn_status st = CAIRN_OK;

    *out = NULL;
    if (!o) {
        free(path);
        return CAIRN_NOMEM(err);
    }
    *o = (struct cairn_nodeobject){.bytes = bytes, .at = payload_at(bytes), .key = key, .fd = -1, .final = strdup(final)};
    if (!o->final || !path)
        TRY(CAIRN_NOMEM(err));
    o->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (o->fd < 0 && errno == EACCES && remnant_remove(path))
        goto out; /* once more */
    if (o->fd < 0)
        TRY(cairn_fail_errno(err, errno, "make %s", path));
    if (flock(o->fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK)
            TRY(cairn_fail_errno(err, errno, "lock %s", path));
        goto out;
    }
    if (!names(path, o->fd) || cairn_path_exists(final))
        goto out; /* just finished or removed */
    o->path = path;
    o->fresh = 1;
    path = NULL;
    TRY(file_check(o->fd, o->path, (size_t)lseek(o->fd, 0, SEEK_END), err));
    if (ftruncate(o->fd, 0)) /* of a killed maker */
        TRY(cairn_fail_errno(err, errno, "empty %s", o->path));
    TRY(object_room(s, o, err));
    TRY(object_map(o, 1, err));
    *out = o;
    o = NULL;
out:
    free(path);
    cairn_nodeobject_drop(o);
    return st;
}

static enum cairn_status take(struct cairn_nodestore *s, struct cairn_digest key, size_t bytes, int unread, struct cairn_nodeobject **out,
                              struct cairn_error *err)
{
    double until = cairn_now_s() + (s->o.patience_s > 0 ? s->o.patience_s : PATIENCE_S);
    enum cairn_status st = CAIRN_OK;
    struct cairn_nodeobject *o = NULL;
    char hex[33], *final;

    cairn_digest_hex(key, hex);
    final = cairn_path_join(s->dir, hex);
    if (!final)
        return CAIRN_NOMEM(err);
    TRY(folder_check(s->dir, err));
    for (;;) {
        TRY(object_get(key, bytes, final, unread, &o, err));
        if (!o)
            TRY(object_begin(s, key, bytes, final, &o, err));
        if (o)
            break;
        if (cairn_stop_requested())
            TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped while another process made %s", final));
        if (cairn_now_s() > until)
            TRY(cairn_fail(err, CAIRN_EAGAIN, "%s is not made by the one who began it", final));
        cairn_sleep_s(0.02);
    }
    *out = o;
out:
    free(final);
    return st;
}

enum cairn_status cairn_nodestore_take(struct cairn_nodestore *s, struct cairn_digest key, size_t bytes, struct cairn_nodeobject **out,
                                       struct cairn_error *err)
{
    return take(s, key, bytes, 0, out, err);
}

enum cairn_status cairn_nodestore_take_unread(struct cairn_nodestore *s, struct cairn_digest key, size_t bytes, struct cairn_nodeobject **out,
                                              struct cairn_error *err)
{
    return take(s, key, bytes, 1, out, err);
}

/* From the maker's name to its own, in one step where the file system can; never over another. */
static enum cairn_status name_finally(const struct cairn_nodeobject *o, struct cairn_error *err)
{
    if (!renameat2(AT_FDCWD, o->path, AT_FDCWD, o->final, RENAME_NOREPLACE))
        return CAIRN_OK;
    if (errno != EINVAL && errno != ENOSYS)
        return cairn_fail_errno(err, errno, "name %s", o->final);
    if (link(o->path, o->final))
        return cairn_fail_errno(err, errno, "name %s", o->final);
    unlink(o->path);
    return CAIRN_OK;
}

enum cairn_status cairn_nodeobject_keep(struct cairn_nodeobject *o, struct cairn_error *err)
{
    const size_t blocks = blocks_of(o->bytes);
    struct header h;
    enum cairn_status st = CAIRN_OK;

    if (!o->fresh)
        return CAIRN_BUG(err, "an object is kept twice");
    hash_blocks(o->p, o->bytes, blocks, (struct cairn_digest *)(void *)(o->map + PAGE));
    h = header_make(o->key, o->bytes, (const struct cairn_digest *)(const void *)(o->map + PAGE));
    memcpy(o->map, &h, sizeof h);
    TRY(name_finally(o, err));
    o->fresh = 0;
    if (fchmod(o->fd, 0400)) /* behind the name: a kill in between leaves nothing that the next maker cannot open */
        TRY(cairn_fail_errno(err, errno, "make %s read-only", o->final));
    flock(o->fd, LOCK_SH | LOCK_NB); /* others may come in */
out:
    return st;
}

enum cairn_status cairn_nodeobject_view(struct cairn_nodeobject *o, struct cairn_error *err)
{
    if (o->fresh)
        return CAIRN_BUG(err, "a view of an object that was not kept");
    if (mmap(o->map, o->at + o->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, o->fd, 0) == MAP_FAILED)
        return cairn_fail_errno(err, errno, "map %s", o->final);
    return CAIRN_OK;
}

/* ---- what is there, what goes ------------------------------------------------------------------------------------------ */

struct entry {
    char *path;
    int64_t bytes;
    double age_s;
    int in_use, made;
};

struct entries {
    struct entry *e;
    size_t n, cap;
};

static void entries_free(struct entries *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->e[i].path);
    free(l->e);
}

static int oldest_first(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    return x->age_s != y->age_s ? (x->age_s < y->age_s) - (x->age_s > y->age_s) : strcmp(x->path, y->path);
}

/* 1: the name is one that this file gives; *made as in the list. */
static int name_known(const char *name, int *made)
{
    size_t hex = strspn(name, "0123456789abcdef");

    *made = name[hex] == 0;
    return hex == 32 && (*made || !strcmp(name + hex, MAKING));
}

/* 1: nobody holds it; then the lock is ours and *fd open. */
static int lock_alone(const char *path, int *fd)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (*fd >= 0 && !flock(*fd, LOCK_EX | LOCK_NB) && names(path, *fd))
        return 1;
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return 0;
}

static enum cairn_status entries_read(struct entries *l, const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    DIR *d = opendir(dir);
    struct dirent *e;
    double now = cairn_wall_s();

    if (!d)
        return errno == ENOENT ? CAIRN_OK : cairn_fail_errno(err, errno, "list %s", dir);
    TRY(folder_check(dir, err));
    while ((e = readdir(d))) {
        struct stat sb;
        int made, fd;

        if (!name_known(e->d_name, &made) || fstatat(dirfd(d), e->d_name, &sb, AT_SYMLINK_NOFOLLOW) || !S_ISREG(sb.st_mode) || sb.st_uid != geteuid())
            continue;
        if (l->n == l->cap) {
            size_t cap = l->cap ? 2 * l->cap : 16;
            struct entry *p = realloc(l->e, cap * sizeof *p);

            if (!p)
                TRY(CAIRN_NOMEM(err));
            l->e = p;
            l->cap = cap;
        }
        l->e[l->n] = (struct entry){.path = cairn_path_join(dir, e->d_name),
                                    .bytes = !made && sb.st_nlink > 1 ? 0 : (int64_t)sb.st_blocks * 512, /* those of KEY */
                                    .age_s = now - ((double)sb.st_mtim.tv_sec + 1e-9 * (double)sb.st_mtim.tv_nsec),
                                    .made = made};
        if (!l->e[l->n].path)
            TRY(CAIRN_NOMEM(err));
        l->e[l->n].in_use = !lock_alone(l->e[l->n].path, &fd);
        if (fd >= 0)
            close(fd);
        l->n++;
    }
    if (l->n)
        qsort(l->e, l->n, sizeof *l->e, oldest_first);
out:
    closedir(d);
    return st;
}

static struct cairn_nodestore_entry told(const struct entry *e, const struct cairn_nodestore_opts *o)
{
    return (struct cairn_nodestore_entry){e->path, e->bytes, e->age_s, e->in_use, e->made, o->ttl_s > 0 && e->age_s > o->ttl_s};
}

enum cairn_status cairn_nodestore_list(const struct cairn_nodestore_opts *o,
                                       enum cairn_status (*fn)(void *arg, const struct cairn_nodestore_entry *e, struct cairn_error *err), void *arg,
                                       struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct entries l = {0};
    char *dir = folder_of(o->path);

    if (!dir)
        TRY(CAIRN_NOMEM(err));
    TRY(entries_read(&l, dir, err));
    for (size_t i = 0; i < l.n; i++) {
        const struct cairn_nodestore_entry e = told(&l.e[i], o);

        TRY(fn(arg, &e, err));
    }
out:
    entries_free(&l);
    free(dir);
    return st;
}

enum cairn_status cairn_nodestore_sweep(const struct cairn_nodestore_opts *o, int dry,
                                        enum cairn_status (*fn)(void *arg, const struct cairn_nodestore_entry *e, struct cairn_error *err), void *arg,
                                        struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct entries l = {0};
    char *dir = folder_of(o->path);
    double total = 0;

    if (!dir)
        TRY(CAIRN_NOMEM(err));
    TRY(entries_read(&l, dir, err));
    for (size_t i = 0; i < l.n; i++)
        total += (double)l.e[i].bytes;
    for (size_t i = 0; i < l.n; i++) {
        const struct cairn_nodestore_entry e = told(&l.e[i], o);
        int over = o->max_bytes > 0 && total > o->max_bytes, fd = -1;

        if (e.in_use || (e.made && !e.expired && !over) || !lock_alone(e.path, &fd))
            continue;
        if (!dry && unlink(e.path) && errno != ENOENT)
            st = cairn_fail_errno(err, errno, "remove %s", e.path);
        close(fd);
        TRY(st);
        total -= (double)e.bytes;
        if (fn)
            TRY(fn(arg, &e, err));
    }
out:
    entries_free(&l);
    free(dir);
    return st;
}
