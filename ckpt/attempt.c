/* attempt.c - the commit protocol of attempt.h: epochs. Every step leaves the directory in a state from which the next attempt
 * goes on; what makes an artefact committed is one link(2) (publish.c).
 */
#include "ckpt/attempt_inner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/build.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "ckpt/beneath.h"

#define EPOCH_BYTES 65536
#define EPOCH_TRIES 10000

/* "prefix" + decimal number without leading zeros; -1 if the name is something else. */
static int64_t numbered(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);
    int64_t v;

    if (strncmp(name, prefix, n) || !name[n] || name[n] < '0' || name[n] > '9' || (name[n] == '0' && name[n + 1]) ||
        !cairn_parse_i64(name + n, &v))
        return -1;
    return v;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

enum cairn_status cairn_attempt_numbers(const char *path, const char *prefix, int64_t **out, size_t *n, struct cairn_error *err)
{
    struct cairn_names names = {0};
    enum cairn_status st = CAIRN_OK;
    int there;

    *out = NULL;
    *n = 0;
    TRY(cairn_dir_names(&names, path, &there, err));
    if (names.n && !(*out = calloc(names.n, sizeof **out)))
        TRY(CAIRN_NOMEM(err));
    for (size_t i = 0; i < names.n; i++)
        if (numbered(names.name[i], prefix) >= 0)
            (*out)[(*n)++] = numbered(names.name[i], prefix);
    if (*n)
        qsort(*out, *n, sizeof **out, by_number);
out:
    cairn_names_free(&names);
    return st;
}

int cairn_artefact_committed(const char *dir)
{
    char path[4096];

    if (snprintf(path, sizeof path, "%s/%s", dir, CAIRN_MANIFEST_NAME) >= (int)sizeof path)
        return 0;
    for (int i = 0; i < 2; i++) { /* a stale handle is fresh the second time */
        if (!access(path, F_OK))
            return 1;
        if (errno == ENOENT || errno == ENOTDIR)
            return 0;
    }
    return 1; /* in doubt it is: whoever goes on then opens it and tells what is wrong */
}

/* --- epochs --- */

static enum cairn_status epoch_text(const struct cairn_attempt *a, char **text, size_t *n, struct cairn_error *err)
{
    struct cairn_holder self;
    char hex[33];
    json_t *obj;
    enum cairn_status st;

    cairn_holder_self(&self);
    cairn_digest_hex(a->identity, hex);
    obj = cairn_holder_json(&self);
    if (!obj || json_object_set_new(obj, "lane", json_string(a->lane)) || json_object_set_new(obj, "identity", json_string(hex)))
        st = CAIRN_NOMEM(err);
    else
        st = cairn_checked_text(obj, text, n, err);
    json_decref(obj);
    return st;
}

enum cairn_status cairn_epoch_read(const char *epochs, int64_t n, struct epoch_info *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char name[32], *text = NULL;
    const char *lane, *hex;
    json_t *obj = NULL;
    size_t len;

    memset(out, 0, sizeof *out);
    snprintf(name, sizeof name, "%lld", (long long)n);
    TRY(cairn_beneath_read(epochs, name, EPOCH_BYTES, &text, &len, NULL, err));
    TRY(cairn_checked_parse(&obj, text, len, name, err));
    TRY(cairn_holder_parse(&out->holder, obj, name, err));
    TRY(cairn_json_string(obj, "lane", &lane, name, err));
    TRY(cairn_json_string(obj, "identity", &hex, name, err));
    if (!cairn_digest_parse(hex, &out->identity) || strlen(lane) >= sizeof out->lane)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s/%s: malformed", epochs, name));
    strcpy(out->lane, lane);
out:
    json_decref(obj);
    free(text);
    return st;
}

/* Makes `to` with the bytes: through a temporary and link(2), so that the name never shows half of them; where links
 * are refused, with O_EXCL. *taken: the name exists already. */
static enum cairn_status create_whole(const char *dir, const char *to, const char *text, size_t n, int *taken, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *tmp = NULL;
    uint64_t nonce;
    int made = 0, e;

    *taken = 0;
    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
        return cairn_fail_errno(err, errno, "getrandom");
    if (!(tmp = cairn_format("%s/.tmp.%016llx", dir, (unsigned long long)nonce)))
        return CAIRN_NOMEM(err);
    TRY(cairn_file_create(tmp, text, n, err));
    made = 1;
    if (!link(tmp, to))
        goto out;
    e = errno;
    if (e == EEXIST) {
        struct stat x, y;

        /* a repeated answer of a network file system may tell of our own success */
        *taken = stat(tmp, &x) || stat(to, &y) || x.st_dev != y.st_dev || x.st_ino != y.st_ino;
    } else if (e == EPERM || e == EOPNOTSUPP || e == ENOSYS || e == EMLINK) {
        st = cairn_file_create(to, text, n, err);
        *taken = st != CAIRN_OK && !access(to, F_OK);
    } else {
        st = cairn_fail_errno(err, e, "create %s", to);
    }
out:
    if (made)
        unlink(tmp);
    free(tmp);
    return *taken ? CAIRN_OK : st;
}

static enum cairn_status take_epoch(struct cairn_attempt *a, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *text = NULL, *path = NULL;
    int64_t *seen = NULL;
    size_t n, nseen;
    int taken = 1;

    TRY(cairn_attempt_numbers(a->epochs, "", &seen, &nseen, err));
    a->epoch = nseen ? seen[nseen - 1] : 0;
    TRY(epoch_text(a, &text, &n, err));
    for (int i = 0; taken; i++) {
        if (i == EPOCH_TRIES || a->epoch >= INT64_MAX / 2)
            TRY(cairn_fail(err, CAIRN_EIO, "%s: no free epoch after %lld", a->epochs, (long long)a->epoch));
        a->epoch++;
        free(path);
        if (!(path = cairn_format("%s/%lld", a->epochs, (long long)a->epoch)))
            TRY(CAIRN_NOMEM(err));
        TRY(create_whole(a->epochs, path, text, n, &taken, err));
    }
    TRY(cairn_dir_sync(a->epochs, err));
out:
    free(seen);
    free(path);
    free(text);
    return st;
}

/* CAIRN_EFENCED if the failure `st` came about because somebody else committed and cleaned up. */
static enum cairn_status or_fenced(const struct cairn_attempt *a, enum cairn_status st, struct cairn_error *err)
{
    if (st == CAIRN_OK || st == CAIRN_EFENCED || st == CAIRN_EBUG)
        return st;
    if (cairn_artefact_committed(a->root) && (!a->dir || !cairn_path_is_dir(a->dir)))
        return cairn_fail(err, CAIRN_EFENCED, "%s: another attempt committed it and removed attempt %lld", a->root, (long long)a->epoch);
    return st;
}

enum cairn_status cairn_attempt_failed(const struct cairn_attempt *a, enum cairn_status st, struct cairn_error *err)
{
    return or_fenced(a, st, err);
}

static enum cairn_status attempt_new(struct cairn_attempt **out, const char *dir, const struct cairn_attempt_opts *opts, struct cairn_error *err)
{
    const char *lane = opts && opts->lane ? opts->lane : "";
    struct cairn_attempt *a;

    if (lane[0] && !cairn_name_ok(lane))
        return cairn_fail(err, CAIRN_EBUG, "%s: \"%.64s\" is no name for a lane", dir, lane);
    if (!(a = calloc(1, sizeof *a)))
        return CAIRN_NOMEM(err);
    if (opts)
        a->identity = opts->identity;
    strcpy(a->lane, lane);
    a->scratch = opts && opts->scratch;
    a->root = strdup(dir);
    a->epochs = cairn_path_join(dir, "epoch");
    if (!a->root || !a->epochs) {
        cairn_attempt_end(a);
        return CAIRN_NOMEM(err);
    }
    *out = a;
    return CAIRN_OK;
}

enum cairn_status cairn_attempt_begin(struct cairn_attempt **out, const char *dir, const struct cairn_attempt_opts *opts,
                                      struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_attempt *a = NULL;

    if (cairn_artefact_committed(dir)) {
        TRY(cairn_artefact_settle(dir, err));
        TRY(cairn_fail(err, CAIRN_EFENCED, "%s: committed already", dir));
    }
    TRY(attempt_new(&a, dir, opts, err));
    TRY(cairn_dir_make(a->epochs, err));
    TRY(take_epoch(a, err));
    if (!(a->dir = cairn_format("%s/a%lld", dir, (long long)a->epoch)))
        TRY(CAIRN_NOMEM(err));
    if (mkdir(a->dir, 0777) && errno != EEXIST)
        TRY(cairn_fail_errno(err, errno, "mkdir %s", a->dir));
    TRY(cairn_dir_sync(dir, err));
    *out = a;
    a = NULL;
out:
    if (st != CAIRN_OK && a)
        st = or_fenced(a, st, err);
    cairn_attempt_end(a);
    return st;
}

enum cairn_status cairn_attempt_join(struct cairn_attempt **out, const char *dir, int64_t epoch, const struct cairn_attempt_opts *opts,
                                     struct cairn_error *err)
{
    struct cairn_attempt *a = NULL;
    enum cairn_status st = attempt_new(&a, dir, opts, err);

    if (st != CAIRN_OK)
        return st;
    a->epoch = epoch;
    if (!(a->dir = cairn_format("%s/a%lld", dir, (long long)epoch))) {
        cairn_attempt_end(a);
        return CAIRN_NOMEM(err);
    }
    *out = a;
    return CAIRN_OK;
}

void cairn_attempt_end(struct cairn_attempt *a)
{
    if (!a)
        return;
    free(a->root);
    free(a->epochs);
    free(a->dir);
    free(a);
}

int64_t cairn_attempt_epoch(const struct cairn_attempt *a)
{
    return a->epoch;
}

const char *cairn_attempt_dir(const struct cairn_attempt *a)
{
    return a->dir;
}

enum cairn_status cairn_attempt_check(struct cairn_attempt *a, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t *seen = NULL;
    size_t n;

    TRY(cairn_attempt_numbers(a->epochs, "", &seen, &n, err));
    for (size_t i = n; i-- > 0 && seen[i] > a->epoch;) {
        struct epoch_info info;
        int known = cairn_epoch_read(a->epochs, seen[i], &info, NULL) == CAIRN_OK;

        if (!known || !info.lane[0] || !strcmp(info.lane, a->lane)) /* what cannot be read outranks us: the safe side */
            TRY(cairn_fail(err, CAIRN_EFENCED, "%s: attempt %lld (pid %lld on %s%s%s) outranks attempt %lld", a->root,
                           (long long)seen[i], (long long)info.holder.pid, info.holder.host[0] ? info.holder.host : "?",
                           info.holder.job[0] ? ", job " : "", info.holder.job, (long long)a->epoch));
    }
out:
    free(seen);
    return st;
}
