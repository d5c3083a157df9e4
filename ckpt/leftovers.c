/* leftovers.c - see leftovers.h. Looks at epoch files (attempt.h) for who is dead. */
#include "ckpt/leftovers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/beneath.h"
#include "ckpt/manifest.h"

#define EPOCH_BYTES 65536
#define DEPTH 32

static enum cairn_status count_at(int at, const char *name, const char *path, int depth, int64_t *files, int64_t *bytes, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct stat sb;
    struct dirent *e;
    DIR *d;
    int fd;

    if (fstatat(at, name, &sb, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT ? CAIRN_OK : cairn_fail_errno(err, errno, "stat %s", path);
    if (!S_ISDIR(sb.st_mode)) {
        ++*files;
        *bytes += sb.st_nlink == 1 ? (int64_t)sb.st_blocks * 512 : 0;
        return CAIRN_OK;
    }
    if (depth > DEPTH)
        return cairn_fail(err, CAIRN_EDATA, "%s: directories nested deeper than %d", path, DEPTH);
    fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || !(d = fdopendir(fd))) {
        int errnum = errno;

        if (fd >= 0)
            close(fd);
        return errnum == ENOENT ? CAIRN_OK : cairn_fail_errno(err, errnum, "list %s", path);
    }
    for (errno = 0; st == CAIRN_OK && (e = readdir(d)); errno = 0)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            st = count_at(dirfd(d), e->d_name, path, depth + 1, files, bytes, err);
    if (st == CAIRN_OK && errno)
        st = cairn_fail_errno(err, errno, "list %s", path);
    closedir(d);
    return st;
}

enum cairn_status cairn_tree_count(const char *path, int64_t *files, int64_t *bytes, struct cairn_error *err)
{
    return count_at(AT_FDCWD, path, path, 0, files, bytes, err);
}

/* The attempt's number of "a7" or ".MANIFEST.7"; -1: another name. */
static int64_t attempt_of(const char *name)
{
    const char *digits = cairn_starts_with(name, ".MANIFEST.") ? name + 10 : name[0] == 'a' ? name + 1 : "";
    int64_t v;

    return *digits && strspn(digits, "0123456789") == strlen(digits) && cairn_parse_i64(digits, &v) ? v : -1;
}

/* Who holds epoch/N, for what. 0: it cannot be read. */
static int epoch_known(const char *dir, int64_t n, struct cairn_holder *h, struct cairn_digest *identity)
{
    char rel[40], *text = NULL;
    const char *hex;
    json_t *o = NULL;
    size_t len;
    int ok;

    snprintf(rel, sizeof rel, "epoch/%lld", (long long)n);
    ok = cairn_beneath_read(dir, rel, EPOCH_BYTES, &text, &len, NULL, NULL) == CAIRN_OK &&
         cairn_checked_parse(&o, text, len, rel, NULL) == CAIRN_OK && cairn_holder_parse(h, o, rel, NULL) == CAIRN_OK &&
         cairn_json_string(o, "identity", &hex, rel, NULL) == CAIRN_OK && cairn_digest_parse(hex, identity);
    json_decref(o);
    free(text);
    return ok;
}

int cairn_artefact_at_work(const char *dir, struct cairn_holder *who)
{
    char *path = cairn_path_join(dir, "epoch");
    DIR *d = path && !cairn_artefact_committed(dir) ? opendir(path) : NULL;
    int64_t newest = -1, v;
    struct cairn_digest identity;

    if (d) {
        for (struct dirent *e; (e = readdir(d));)
            if (cairn_parse_i64(e->d_name, &v) && v > newest)
                newest = v;
        closedir(d);
    }
    free(path);
    return newest >= 0 && epoch_known(dir, newest, who, &identity) ? cairn_holder_alive(who) : 0;
}

static enum cairn_status take(const char *path, int dry, struct cairn_leftovers *out, struct cairn_error *err)
{
    enum cairn_status st = cairn_tree_count(path, &out->files, &out->bytes, err);

    return st != CAIRN_OK || dry ? st : cairn_tree_remove(path, err);
}

/* Shards of a dead attempt that were never finished; the finished ones are counted. */
static enum cairn_status unfinished(const char *attempt, int dry, struct cairn_leftovers *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_names names = {0};
    char *path = NULL, *entry = NULL;
    int there;

    TRY(cairn_dir_names(&names, attempt, &there, err));
    for (size_t i = 0; i < names.n; i++) {
        free(path);
        free(entry);
        entry = NULL;
        if (!(path = cairn_path_join(attempt, names.name[i])))
            TRY(CAIRN_NOMEM(err));
        if (cairn_ends_with(path, ".json"))
            continue;
        if (cairn_ends_with(path, ".h5")) {
            if (!(entry = cairn_format("%.*s.json", (int)strlen(path) - 3, path)))
                TRY(CAIRN_NOMEM(err));
            if (cairn_path_exists(entry)) {
                out->kept++;
                continue;
            }
        }
        TRY(take(path, dry, out, err));
    }
    if (there && !dry)
        rmdir(attempt); /* if nothing is left in it */
out:
    cairn_names_free(&names);
    free(path);
    free(entry);
    return st;
}

/* Names like "a7" and ".MANIFEST.7" in dir: fn for each. */
static enum cairn_status each(const char *dir, enum cairn_status (*fn)(void *arg, const char *name, int64_t epoch, struct cairn_error *err),
                              void *arg, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_names names = {0};
    int there;

    TRY(cairn_dir_names(&names, dir, &there, err));
    for (size_t i = 0; i < names.n; i++)
        if (attempt_of(names.name[i]) >= 0)
            TRY(fn(arg, names.name[i], attempt_of(names.name[i]), err));
out:
    cairn_names_free(&names);
    return st;
}

struct job {
    const char *dir;
    const struct cairn_digest *identity;
    int64_t won; /* of a committed artefact */
    int dry;
    struct cairn_leftovers *out;
};

static enum cairn_status open_one(void *arg, const char *name, int64_t epoch, struct cairn_error *err)
{
    const struct job *j = arg;
    struct cairn_holder h;
    struct cairn_digest identity;
    enum cairn_status st = CAIRN_OK;
    char *path;

    if (!epoch_known(j->dir, epoch, &h, &identity) || cairn_holder_alive(&h) != 0)
        return CAIRN_OK;
    if (!(path = cairn_path_join(j->dir, name)))
        return CAIRN_NOMEM(err);
    if (name[0] == '.' || (j->identity && !cairn_digest_equal(identity, *j->identity)))
        st = take(path, j->dry, j->out, err);
    else
        st = unfinished(path, j->dry, j->out, err);
    free(path);
    return st;
}

/* What settling takes away is what is gone afterwards. */
static enum cairn_status count_others(void *arg, const char *name, int64_t epoch, struct cairn_error *err)
{
    const struct job *j = arg;
    enum cairn_status st = CAIRN_OK;
    struct cairn_holder h;
    struct cairn_digest identity;
    char *path;

    if (epoch == j->won && name[0] == 'a')
        return CAIRN_OK;
    if (epoch > j->won && (!epoch_known(j->dir, epoch, &h, &identity) || cairn_holder_alive(&h) != 0))
        return CAIRN_OK;
    if (!(path = cairn_path_join(j->dir, name)))
        return CAIRN_NOMEM(err);
    st = cairn_tree_count(path, &j->out->files, &j->out->bytes, err);
    free(path);
    return st;
}

enum cairn_status cairn_artefact_leftovers(const char *dir, const struct cairn_digest *identity, int dry, struct cairn_leftovers *out,
                                           struct cairn_error *err)
{
    struct job j = {.dir = dir, .identity = identity, .dry = dry, .out = out};
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest_head head;

    if (!cairn_artefact_committed(dir))
        return each(dir, open_one, &j, err);
    TRY(cairn_manifest_head(&head, dir, err));
    j.won = head.epoch;
    TRY(each(dir, count_others, &j, err));
    if (!dry)
        TRY(cairn_artefact_settle(dir, err));
out:
    return st;
}
