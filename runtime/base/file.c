/* file.c - system calls that either did all of it or say in one sentence what failed.
 *
 * Nothing here retries a failed fsync or close: after such a failure the kernel may have dropped the pages, and a
 * second fsync would report success for bytes that are gone.
 */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/str.h"

#define MODE_FILE 0644
#define MODE_DIR 0777
#define TRANSFER_MAX ((size_t)1 << 30) /* Linux moves at most 2 GiB - 4 KiB per call */
#define TREE_DEPTH 64
#define AGAIN_TRIES 1000 /* a millisecond each */

/* A failed transfer that is worth another try: interrupted at once; refused for the moment, as some network file systems do, within
 * a second or two. */
static int again(int *tries)
{
    if (errno == EINTR)
        return 1;
    if (errno != EAGAIN || *tries >= AGAIN_TRIES)
        return 0;
    ++*tries;
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    return 1;
}

static enum cairn_status open_input(const char *path, int flags, int *fd, struct cairn_error *err)
{
    *fd = open(path, flags | O_CLOEXEC);
    if (*fd >= 0)
        return CAIRN_OK;
    if (errno == ENOENT || errno == ENOTDIR)
        return cairn_fail(err, CAIRN_EDATA, "%s: no such file", path);
    return cairn_fail_errno(err, errno, "open %s", path);
}

ssize_t cairn_fd_read_some(int fd, void *p, size_t n)
{
    int tries = 0;
    ssize_t got;

    do
        got = read(fd, p, n < TRANSFER_MAX ? n : TRANSFER_MAX);
    while (got < 0 && again(&tries));
    return got;
}

enum cairn_status cairn_file_read(const char *path, size_t max, char **out, size_t *n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *p = NULL, *q;
    size_t cap = 0, len = 0;
    struct stat sb;
    int fd = -1;

    TRY(open_input(path, O_RDONLY, &fd, err));
    if (fstat(fd, &sb))
        TRY(cairn_fail_errno(err, errno, "stat %s", path));
    if (S_ISDIR(sb.st_mode) || S_ISBLK(sb.st_mode))
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: not a regular file or pipe", path));
    if (S_ISREG(sb.st_mode) && (uintmax_t)sb.st_size > max)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: %lld bytes, at most %zu are allowed", path, (long long)sb.st_size, max));
    cap = S_ISREG(sb.st_mode) ? (size_t)sb.st_size + 2 : 4096; /* one byte to see the end, one for the NUL */
    if (!(p = malloc(cap)))
        TRY(CAIRN_NOMEM(err));
    for (;;) {
        ssize_t got;

        if (len + 1 == cap) {
            cap *= 2;
            if (!(q = realloc(p, cap)))
                TRY(CAIRN_NOMEM(err));
            p = q;
        }
        got = cairn_fd_read_some(fd, p + len, cap - 1 - len);
        if (got < 0)
            TRY(cairn_fail_errno(err, errno, "read %s", path));
        if (!got)
            break;
        len += (size_t)got;
        if (len > max)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: more than the allowed %zu bytes", path, max));
    }
    p[len] = 0;
    *out = p;
    *n = len;
    p = NULL;
out:
    if (fd >= 0)
        close(fd);
    free(p);
    return st;
}

enum cairn_status cairn_fd_write_all(int fd, const void *p, size_t n, const char *path, struct cairn_error *err)
{
    int tries = 0;

    for (const char *c = p; n;) {
        ssize_t put = write(fd, c, n < TRANSFER_MAX ? n : TRANSFER_MAX);

        if (put < 0 && again(&tries))
            continue;
        if (put <= 0)
            return cairn_fail_errno(err, put < 0 ? errno : EIO, "write %s", path);
        c += put;
        n -= (size_t)put;
    }
    return CAIRN_OK;
}

enum cairn_status cairn_fd_pwrite_all(int fd, const void *p, size_t n, int64_t offset, const char *path, struct cairn_error *err)
{
    int tries = 0;

    for (const char *c = p; n;) {
        ssize_t put = pwrite(fd, c, n < TRANSFER_MAX ? n : TRANSFER_MAX, offset);

        if (put < 0 && again(&tries))
            continue;
        if (put <= 0)
            return cairn_fail_errno(err, put < 0 ? errno : EIO, "write %s at byte %lld", path, (long long)offset);
        c += put;
        n -= (size_t)put;
        offset += put;
    }
    return CAIRN_OK;
}

enum cairn_status cairn_fd_pread_all(int fd, void *p, size_t n, int64_t offset, const char *path, struct cairn_error *err)
{
    int tries = 0;

    for (char *c = p; n;) {
        ssize_t got = pread(fd, c, n < TRANSFER_MAX ? n : TRANSFER_MAX, offset);

        if (got < 0 && again(&tries))
            continue;
        if (got < 0)
            return cairn_fail_errno(err, errno, "read %s at byte %lld", path, (long long)offset);
        if (!got)
            return cairn_fail(err, CAIRN_EDATA, "%s: ends at byte %lld, %zu more are needed", path, (long long)offset, n);
        c += got;
        n -= (size_t)got;
        offset += got;
    }
    return CAIRN_OK;
}

enum cairn_status cairn_fd_sync_close(int *fd, const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int r;

    do
        r = fsync(*fd);
    while (r && errno == EINTR); /* interrupted is not failed */
    if (r)
        st = cairn_fail_errno(err, errno, "fsync %s", path);
    /* After EINTR the descriptor is closed all the same, and fsync has already told about the bytes. */
    if (close(*fd) && errno != EINTR && st == CAIRN_OK)
        st = cairn_fail_errno(err, errno, "close %s", path);
    *fd = -1;
    return st;
}

enum cairn_status cairn_dir_sync(const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int fd, r;

    TRY(open_input(path, O_RDONLY | O_DIRECTORY, &fd, err));
    do
        r = fsync(fd);
    while (r && errno == EINTR);
    /* EINVAL: a file system on which directories need (and know) no fsync. */
    if (r && errno != EINVAL)
        st = cairn_fail_errno(err, errno, "fsync directory %s", path);
    close(fd);
out:
    return st;
}

/* Creates (O_EXCL) and syncs path; errno stays EEXIST if it is there. Removes what it made on failure. */
static enum cairn_status create_synced(const char *path, const void *p, size_t n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, MODE_FILE);

    if (fd < 0) {
        int e = errno;

        st = cairn_fail_errno(err, e, "create %s", path);
        errno = e;
        return st;
    }
    st = cairn_fd_write_all(fd, p, n, path, err);
    if (st == CAIRN_OK)
        st = cairn_fd_sync_close(&fd, path, err);
    if (fd >= 0)
        close(fd);
    if (st != CAIRN_OK) {
        unlink(path);
        errno = 0;
    }
    return st;
}

enum cairn_status cairn_file_create(const char *path, const void *p, size_t n, struct cairn_error *err)
{
    return create_synced(path, p, n, err);
}

enum cairn_status cairn_file_replace(const char *path, const void *p, size_t n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *tmp = NULL, *dir = cairn_path_dirname(path);
    uint64_t nonce;
    int made = 0;

    if (!dir)
        TRY(CAIRN_NOMEM(err));
    /* 64 random bits: no other process, node or earlier attempt has this name */
    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
        TRY(cairn_fail_errno(err, errno, "getrandom"));
    if (!(tmp = cairn_format("%s.tmp.%016llx", path, (unsigned long long)nonce)))
        TRY(CAIRN_NOMEM(err));
    TRY(create_synced(tmp, p, n, err));
    made = 1;
    if (rename(tmp, path))
        TRY(cairn_fail_errno(err, errno, "rename %s to %s", tmp, path));
    made = 0;
    TRY(cairn_dir_sync(dir, err));
out:
    if (made)
        unlink(tmp);
    free(tmp);
    free(dir);
    return st;
}

/* "NAME.tmp.<16 hex digits>" */
static int is_temporary(const char *name)
{
    size_t n = strlen(name);

    return n > 21 && !strncmp(name + n - 21, ".tmp.", 5) && strspn(name + n - 16, "0123456789abcdef") == 16;
}

void cairn_dir_sweep(const char *path)
{
    DIR *d = opendir(path);

    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));)
        if (is_temporary(e->d_name))
            unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
}

enum cairn_status cairn_dir_make(const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *parent = NULL;

    if (cairn_path_is_dir(path))
        return CAIRN_OK;
    if (!(parent = cairn_path_dirname(path)))
        TRY(CAIRN_NOMEM(err));
    if (strcmp(parent, path) && strcmp(parent, "."))
        TRY(cairn_dir_make(parent, err));
    if (mkdir(path, MODE_DIR)) {
        int e = errno;

        if (e == EEXIST && cairn_file_size(path) >= 0)
            TRY(cairn_fail(err, CAIRN_EIO, "mkdir %s: there is a file of that name", path));
        if (e != EEXIST || !cairn_path_is_dir(path)) /* somebody else may have made it meanwhile */
            TRY(cairn_fail_errno(err, e, "mkdir %s", path));
    }
    TRY(cairn_dir_sync(parent, err));
out:
    free(parent);
    return st;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum cairn_status cairn_names_add(struct cairn_names *names, char *name, struct cairn_error *err)
{
    const size_t n = names->n;
    char **p = names->name;

    if (name && !(n & (n - 1))) /* doubled at powers of two */
        p = realloc(p, (n ? 2 * n : 1) * sizeof *p);
    if (!name || !p) {
        free(name);
        return CAIRN_NOMEM(err);
    }
    names->name = p;
    p[names->n++] = name;
    return CAIRN_OK;
}

enum cairn_status cairn_dir_names(struct cairn_names *out, const char *path, int *there, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_names names = {0};
    DIR *dir = opendir(path);
    struct dirent *e;

    if (there)
        *there = dir || errno != ENOENT;
    if (!dir && there && !*there)
        goto out;
    if (!dir)
        TRY(cairn_fail_errno(err, errno, "list %s", path));
    for (errno = 0; (e = readdir(dir)); errno = 0) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        TRY(cairn_names_add(&names, strdup(e->d_name), err));
    }
    if (errno)
        TRY(cairn_fail_errno(err, errno, "list %s", path));
    if (names.n)
        qsort(names.name, names.n, sizeof *names.name, by_bytes);
out:
    if (dir)
        closedir(dir);
    if (st == CAIRN_OK)
        *out = names;
    else
        cairn_names_free(&names);
    return st;
}

void cairn_names_free(struct cairn_names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->name[i]);
    free(names->name);
    *names = (struct cairn_names){0};
}

/* Removes name in directory at; a directory with what is in it. `path` is for the sentence: the whole tree's. */
static enum cairn_status remove_at(int at, const char *name, const char *path, int depth, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct dirent *e;
    DIR *dir = NULL;
    int fd = -1;

    if (!unlinkat(at, name, 0) || errno == ENOENT)
        return CAIRN_OK;
    if (errno != EISDIR && errno != EPERM) /* EPERM is what POSIX wants for a directory */
        return cairn_fail_errno(err, errno, "remove %s (at %s)", path, name);
    if (depth > TREE_DEPTH)
        return cairn_fail(err, CAIRN_EIO, "remove %s: directories nested deeper than %d", path, TREE_DEPTH);
    fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return CAIRN_OK;
    if (fd < 0 || !(dir = fdopendir(fd)))
        TRY(cairn_fail_errno(err, errno, "remove %s (at %s)", path, name));
    for (errno = 0; (e = readdir(dir)); errno = 0)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            TRY(remove_at(dirfd(dir), e->d_name, path, depth + 1, err));
    if (errno)
        TRY(cairn_fail_errno(err, errno, "list %s (at %s)", path, name));
    if (unlinkat(at, name, AT_REMOVEDIR) && errno != ENOENT)
        TRY(cairn_fail_errno(err, errno, "remove %s (at %s)", path, name));
out:
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
    return st;
}

enum cairn_status cairn_tree_remove(const char *path, struct cairn_error *err)
{
    return remove_at(AT_FDCWD, path, path, 0, err);
}

/* stat(2), twice where the answer is in doubt: a stale handle is fresh the second time. 1: there; 0: certainly not; -1: cannot be told. */
static int look(const char *path, struct stat *sb)
{
    for (int i = 0; i < 2; i++) {
        if (!stat(path, sb))
            return 1;
        if (errno == ENOENT || errno == ENOTDIR)
            return 0;
    }
    return -1;
}

int cairn_path_exists(const char *path)
{
    struct stat sb;

    return look(path, &sb) != 0; /* who could not look must not make anew what may be there */
}

int cairn_path_is_dir(const char *path)
{
    struct stat sb;

    return look(path, &sb) == 1 && S_ISDIR(sb.st_mode);
}

enum cairn_status cairn_dir_expect(const char *path, struct cairn_error *err)
{
    if (cairn_path_is_dir(path))
        return CAIRN_OK;
    return cairn_path_exists(path) ? cairn_fail(err, CAIRN_EDATA, "%s: not a directory", path)
                                   : cairn_fail(err, CAIRN_ENOINPUT, "%s: no such directory", path);
}

int64_t cairn_file_size(const char *path)
{
    struct stat sb;

    return !stat(path, &sb) && S_ISREG(sb.st_mode) ? (int64_t)sb.st_size : -1;
}

char *cairn_path_join(const char *a, const char *b)
{
    if (b[0] == '/' || !a[0])
        return cairn_format("%s", b);
    return cairn_format(cairn_ends_with(a, "/") ? "%s%s" : "%s/%s", a, b);
}

/* "a/b" and "a/b/" -> "a"; "a" -> "."; "/a" and "/" -> "/". */
char *cairn_path_dirname(const char *path)
{
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n && path[n - 1] != '/')
        n--;
    if (!n)
        return cairn_format(".");
    while (n > 1 && path[n - 1] == '/')
        n--;
    return cairn_format("%.*s", (int)n, path);
}

const char *cairn_path_basename(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash && slash[1] ? slash + 1 : path;
}

int cairn_name_ok(const char *name)
{
    size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");

    return n >= 1 && n <= 128 && !name[n] && strcmp(name, ".") && strcmp(name, "..");
}
