/* attempt.c - the commit protocol of attempt.h. Every step leaves the directory in a state from which the next attempt
 * goes on; what makes an artefact committed is one link(2).
 */
#include "ckpt/attempt.h"

#include <dirent.h>
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

struct cairn_attempt {
    char *root, *epochs, *dir; /* ARTEFACT, ARTEFACT/epoch, ARTEFACT/a<epoch> */
    int64_t epoch;
    char lane[129];
    struct cairn_digest identity;
};

/* What epoch/N says. */
struct epoch_info {
    struct cairn_holder holder;
    struct cairn_digest identity;
    char lane[129];
};

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

/* Numbers of all entries "prefixN" of a directory, ascending; a missing directory has none. */
static enum cairn_status list_numbers(const char *path, const char *prefix, int64_t **out, size_t *n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    DIR *d = opendir(path);
    struct dirent *e;
    int64_t *v = NULL, *p;
    size_t cap = 0;

    *out = NULL;
    *n = 0;
    if (!d)
        return errno == ENOENT ? CAIRN_OK : cairn_fail_errno(err, errno, "list %s", path);
    for (errno = 0; (e = readdir(d)); errno = 0) {
        int64_t k = numbered(e->d_name, prefix);

        if (k < 0)
            continue;
        if (*n == cap) {
            cap = cap ? 2 * cap : 16;
            if (!(p = realloc(v, cap * sizeof *v)))
                TRY(CAIRN_NOMEM(err));
            v = p;
        }
        v[(*n)++] = k;
    }
    if (errno)
        TRY(cairn_fail_errno(err, errno, "list %s", path));
    if (*n)
        qsort(v, *n, sizeof *v, by_number);
    *out = v;
    v = NULL;
out:
    closedir(d);
    free(v);
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

static enum cairn_status epoch_read(const char *epochs, int64_t n, struct epoch_info *out, struct cairn_error *err)
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

    TRY(list_numbers(a->epochs, "", &seen, &nseen, err));
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

    TRY(list_numbers(a->epochs, "", &seen, &n, err));
    for (size_t i = n; i-- > 0 && seen[i] > a->epoch;) {
        struct epoch_info info;
        int known = epoch_read(a->epochs, seen[i], &info, NULL) == CAIRN_OK;

        if (!known || !info.lane[0] || !strcmp(info.lane, a->lane)) /* what cannot be read outranks us: the safe side */
            TRY(cairn_fail(err, CAIRN_EFENCED, "%s: attempt %lld (pid %lld on %s%s%s) outranks attempt %lld", a->root,
                           (long long)seen[i], (long long)info.holder.pid, info.holder.host[0] ? info.holder.host : "?",
                           info.holder.job[0] ? ", job " : "", info.holder.job, (long long)a->epoch));
    }
out:
    free(seen);
    return st;
}

/* --- shards --- */

enum cairn_status cairn_attempt_shard(struct cairn_attempt *a, struct cairn_shard **out, const char *name,
                                      const struct cairn_slice *tensors, int n, const struct cairn_shard_opts *opts,
                                      struct cairn_error *err)
{
    return or_fenced(a, cairn_shard_create(out, a->dir, name, tensors, n, opts, err), err);
}

/* a<epoch>/NAME.json, durable; then the entry gets its directory. */
static enum cairn_status record(struct cairn_attempt *a, struct cairn_shard_entry *e, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *text = NULL, *path = NULL, *file = NULL;
    size_t n;

    TRY(cairn_shard_entry_text(e, &text, &n, err));
    path = cairn_format("%s/%.*s.json", a->dir, (int)(strlen(e->file) - 3), e->file);
    file = cairn_format("a%lld/%s", (long long)a->epoch, e->file);
    if (!path || !file)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_file_create(path, text, n, err));
    TRY(cairn_dir_sync(a->dir, err));
    free(e->file);
    e->file = file;
    file = NULL;
out:
    free(file);
    free(path);
    free(text);
    return st;
}

enum cairn_status cairn_attempt_shard_done(struct cairn_attempt *a, struct cairn_shard **shard, struct cairn_shard_entry **entry,
                                           struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_shard_entry *e = NULL;

    TRY(cairn_shard_finish(*shard, &e, err));
    TRY(record(a, e, err));
    *entry = e;
    e = NULL;
out:
    cairn_shard_entry_free(e);
    cairn_shard_destroy(*shard);
    *shard = NULL;
    return or_fenced(a, st, err);
}

/* The entry a<epoch>/NAME.json of whatever attempt, if it is whole and says what it should; NULL otherwise. */
static struct cairn_shard_entry *entry_read(const char *root, int64_t epoch, const char *name, enum cairn_status *st, struct cairn_error *err)
{
    struct cairn_shard_entry *e = NULL;
    char rel[200], want[160], *text = NULL;
    size_t n;

    *st = CAIRN_EDATA;
    if (snprintf(rel, sizeof rel, "a%lld/%s.json", (long long)epoch, name) >= (int)sizeof rel ||
        snprintf(want, sizeof want, "%s.h5", name) >= (int)sizeof want)
        return NULL;
    if ((*st = cairn_beneath_read(root, rel, CAIRN_MANIFEST_MAX_BYTES, &text, &n, NULL, err)) == CAIRN_OK &&
        (*st = cairn_shard_entry_parse(&e, text, n, rel, err)) == CAIRN_OK && strcmp(e->file, want)) {
        cairn_shard_entry_free(e);
        e = NULL;
        *st = CAIRN_EDATA;
    }
    free(text);
    return e;
}

static enum cairn_status copy_file(const char *from, const char *to, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *block = malloc(1 << 20);
    int in = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW), out = -1, made = 0;
    ssize_t n;

    if (!block)
        TRY(CAIRN_NOMEM(err));
    if (in < 0)
        TRY(cairn_fail_errno(err, errno, "open %s", from));
    out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (out < 0)
        TRY(cairn_fail_errno(err, errno, "create %s", to));
    made = 1;
    while ((n = cairn_fd_read_some(in, block, 1 << 20)) != 0) {
        if (n < 0)
            TRY(cairn_fail_errno(err, errno, "read %s", from));
        TRY(cairn_fd_write_all(out, block, (size_t)n, to, err));
    }
    TRY(cairn_fd_sync_close(&out, to, err));
    made = 0;
out:
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    if (made)
        unlink(to);
    free(block);
    return st;
}

/* Brings a checked shard of attempt `from` into ours: a second name for the same finished, never again written file; a copy
 * where links are refused (never a rename: its own attempt may yet publish it). */
static enum cairn_status bring(struct cairn_attempt *a, int64_t from, struct cairn_shard_entry *e, int *gone, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *src = cairn_format("%s/a%lld/%s", a->root, (long long)from, e->file), *dst = cairn_format("%s/%s", a->dir, e->file);

    *gone = 0;
    if (!src || !dst)
        TRY(CAIRN_NOMEM(err));
    if (link(src, dst)) {
        *gone = errno == ENOENT && !cairn_path_exists(src);
        if (*gone)
            goto out;
        if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS && errno != EMLINK && errno != EXDEV)
            TRY(cairn_fail_errno(err, errno, "link %s to %s", src, dst));
        TRY(copy_file(src, dst, err));
    }
    TRY(record(a, e, err));
out:
    free(src);
    free(dst);
    return st;
}

enum cairn_status cairn_attempt_adopt(struct cairn_attempt *a, const char *name, const char *identity,
                                      struct cairn_shard_entry **entry, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_shard_entry *e = NULL;
    int64_t *epochs = NULL;
    size_t n;

    *entry = NULL;
    TRY(list_numbers(a->root, "a", &epochs, &n, err));
    for (size_t i = n; i-- > 0 && !*entry;) {
        struct epoch_info info;
        struct cairn_digest digest;
        enum cairn_status unread; /* whatever it is: then the shard is made anew */
        int64_t size;
        int gone;

        cairn_shard_entry_free(e);
        e = NULL;
        if (epoch_read(a->epochs, epochs[i], &info, NULL) != CAIRN_OK || !cairn_digest_equal(info.identity, a->identity) ||
            !(e = entry_read(a->root, epochs[i], name, &unread, NULL)) || strcmp(e->identity, identity))
            continue;
        if (epochs[i] == a->epoch) {
            char *file = cairn_format("a%lld/%s", (long long)a->epoch, e->file);

            if (!file)
                TRY(CAIRN_NOMEM(err));
            free(e->file);
            e->file = file;
        } else {
            char rel[200];

            snprintf(rel, sizeof rel, "a%lld/%s", (long long)epochs[i], e->file);
            st = cairn_beneath_digest(a->root, rel, &digest, &size, NULL, err);
            if (st == CAIRN_EAGAIN)
                goto out;
            if (st != CAIRN_OK || size != e->size || !cairn_digest_equal(digest, e->digest)) {
                st = CAIRN_OK;
                continue; /* damaged or on its way out: it is made anew */
            }
            TRY(bring(a, epochs[i], e, &gone, err));
            if (gone)
                continue;
        }
        *entry = e;
        e = NULL;
    }
out:
    cairn_shard_entry_free(e);
    free(epochs);
    return or_fenced(a, st, err);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names of the *.json files of a directory without that ending, sorted; *out has *n strings to free. */
static enum cairn_status list_entries(const char *path, char ***out, size_t *n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    DIR *d = opendir(path);
    struct dirent *e;
    char **v = NULL, **p;

    *out = NULL;
    *n = 0;
    if (!d)
        return errno == ENOENT ? CAIRN_OK : cairn_fail_errno(err, errno, "list %s", path);
    for (errno = 0; (e = readdir(d)); errno = 0) {
        size_t len = strlen(e->d_name);

        if (!cairn_name_ok(e->d_name) || len < 6 || strcmp(e->d_name + len - 5, ".json"))
            continue;
        if (!(p = realloc(v, (*n + 1) * sizeof *v)))
            TRY(CAIRN_NOMEM(err));
        v = p;
        if (!(v[*n] = strndup(e->d_name, len - 5)))
            TRY(CAIRN_NOMEM(err));
        ++*n;
    }
    if (errno)
        TRY(cairn_fail_errno(err, errno, "list %s", path));
    if (*n)
        qsort(v, *n, sizeof *v, by_text);
    *out = v;
    v = NULL;
out:
    if (v) {
        for (size_t i = 0; i < *n; i++)
            free(v[i]);
        *n = 0;
    }
    free(v);
    closedir(d);
    return st;
}

enum cairn_status cairn_attempt_each(struct cairn_attempt *a, int (*fn)(void *arg, const char *name, const char *identity, int64_t epoch),
                                     void *arg, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t *epochs = NULL;
    size_t n;
    int stop = 0;

    TRY(list_numbers(a->root, "a", &epochs, &n, err));
    for (size_t i = 0; i < n && !stop && st == CAIRN_OK; i++) {
        struct epoch_info info;
        char *path, **names = NULL;
        size_t count = 0;

        st = epoch_read(a->epochs, epochs[i], &info, err);
        if (st == CAIRN_EDATA || (st == CAIRN_OK && !cairn_digest_equal(info.identity, a->identity))) {
            st = CAIRN_OK;
            continue;
        }
        TRY(st);
        if (!(path = cairn_format("%s/a%lld", a->root, (long long)epochs[i])))
            TRY(CAIRN_NOMEM(err));
        st = list_entries(path, &names, &count, err);
        for (size_t k = 0; k < count; k++) {
            enum cairn_status read = CAIRN_OK;
            struct cairn_shard_entry *e = stop || st != CAIRN_OK ? NULL : entry_read(a->root, epochs[i], names[k], &read, err);

            if (read != CAIRN_OK && read != CAIRN_EDATA) /* torn or gone is no shard; what cannot be read may be one */
                st = read;
            if (e)
                stop = fn(arg, names[k], e->identity, epochs[i]);
            cairn_shard_entry_free(e);
            free(names[k]);
        }
        free(names);
        free(path);
    }
out:
    free(epochs);
    return st;
}

/* --- publication --- */

/* Removes what is left of attempts that the published one (epoch `won`) outranks, that ran in another lane, or whose holder
 * is certainly dead: a<M> and .MANIFEST.<M>; then the epoch files of the outranked and the dead. Errors are left for the next one to meet. */
static void tidy(const char *root, int64_t won)
{
    static const char *const prefix[] = {"a", ".MANIFEST."};
    char *epochs = cairn_path_join(root, "epoch"), path[4096];
    char own_lane[129] = "";
    struct epoch_info info;
    int64_t *v;
    size_t n;
    DIR *d;

    if (!epochs)
        return;
    if (epoch_read(epochs, won, &info, NULL) == CAIRN_OK)
        strcpy(own_lane, info.lane);
    for (int k = 0; k < 2; k++) {
        if (list_numbers(root, prefix[k], &v, &n, NULL) != CAIRN_OK)
            continue;
        for (size_t i = 0; i < n; i++) {
            int over = v[i] < won || (v[i] == won && k == 1);

            if (!over && v[i] != won)
                over = epoch_read(epochs, v[i], &info, NULL) == CAIRN_OK &&
                       (strcmp(info.lane, own_lane) || cairn_holder_alive(&info.holder) == 0);
            if (over && snprintf(path, sizeof path, "%s/%s%lld", root, prefix[k], (long long)v[i]) < (int)sizeof path)
                cairn_tree_remove(path, NULL);
        }
        free(v);
    }
    if (list_numbers(epochs, "", &v, &n, NULL) == CAIRN_OK) {
        for (size_t i = 0; i < n; i++) {
            int over = v[i] < won || (v[i] > won && epoch_read(epochs, v[i], &info, NULL) == CAIRN_OK && cairn_holder_alive(&info.holder) == 0);

            if (over && snprintf(path, sizeof path, "%s/%lld", epochs, (long long)v[i]) < (int)sizeof path)
                unlink(path);
        }
        free(v);
    }
    if ((d = opendir(epochs))) {
        for (struct dirent *e; (e = readdir(d));)
            if (!strncmp(e->d_name, ".tmp.", 5))
                unlinkat(dirfd(d), e->d_name, 0);
        closedir(d);
    }
    free(epochs);
}

/* The directory that holds the name, and the one that holds that. */
enum cairn_status cairn_artefact_durable(const char *root, struct cairn_error *err)
{
    char *parent = cairn_path_dirname(root);
    enum cairn_status st = CAIRN_OK;

    if (!parent)
        return CAIRN_NOMEM(err);
    TRY(cairn_dir_sync(root, err));
    TRY(cairn_dir_sync(parent, err));
out:
    free(parent);
    return st;
}

enum cairn_status cairn_artefact_settle(const char *dir, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest_head head;

    TRY(cairn_manifest_head(&head, dir, err));
    TRY(cairn_artefact_durable(dir, err));
    tidy(dir, head.epoch);
out:
    return st;
}

/* Nothing is published whose shards are not all ours, there, and as long as they should be. */
static enum cairn_status shards_there(const struct cairn_attempt *a, const struct cairn_manifest *m, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char prefix[32];

    snprintf(prefix, sizeof prefix, "a%lld/", (long long)a->epoch);
    for (int i = 0; i < m->nshards; i++) {
        const struct cairn_shard_entry *e = m->shards[i];
        int64_t size;
        int fd;

        if (!cairn_starts_with(e->file, prefix))
            TRY(cairn_fail(err, CAIRN_EBUG, "%s: shard %s is not of attempt %lld", a->root, e->file, (long long)a->epoch));
        for (int j = 0; j < i && m->nshards <= CAIRN_MANIFEST_MAX_INLINE; j++)
            if (!strcmp(m->shards[j]->file, e->file))
                TRY(cairn_fail(err, CAIRN_EBUG, "%s: shard %s is listed twice", a->root, e->file));
        TRY(cairn_beneath_open(a->root, e->file, &fd, &size, NULL, err));
        close(fd);
        if (size != e->size)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s/%s: %lld bytes, %lld were written", a->root, e->file, (long long)size, (long long)e->size));
    }
out:
    return st;
}

/* The commit: one name that did not exist before. *lost: it did. */
static enum cairn_status publish(const char *from, const char *to, int *lost, struct cairn_error *err)
{
    struct stat x, y;
    int e;

    *lost = 0;
    if (!link(from, to))
        return CAIRN_OK;
    e = errno;
    if (e == EPERM || e == EOPNOTSUPP || e == ENOSYS || e == EMLINK) {
        if (!renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE))
            return CAIRN_OK;
        e = errno;
    } else if (e == EEXIST && !stat(from, &x) && !stat(to, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino) {
        return CAIRN_OK; /* a repeated answer of a network file system: the first one was ours */
    }
    if (e == EEXIST) {
        *lost = 1;
        return CAIRN_OK;
    }
    return cairn_fail_errno(err, e, "publish %s", to);
}

/* Somebody else was first: equal content is success. */
static enum cairn_status yield_to(struct cairn_attempt *a, const struct cairn_manifest *m, const char *mine, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest_head head;
    char theirs[33], ours[33], *epoch;

    TRY(cairn_manifest_head(&head, a->root, err));
    if (!cairn_digest_equal(head.digest, m->digest)) {
        cairn_digest_hex(head.digest, theirs);
        cairn_digest_hex(m->digest, ours);
        TRY(cairn_fail(err, CAIRN_EFENCED, "%s: attempt %lld published %s, attempt %lld has %s", a->root, (long long)head.epoch, theirs,
                       (long long)a->epoch, ours));
    }
    TRY(cairn_artefact_durable(a->root, err));
    unlink(mine);
    cairn_tree_remove(a->dir, NULL);
    if ((epoch = cairn_format("%s/%lld", a->epochs, (long long)a->epoch))) /* nobody can be fenced any more */
        unlink(epoch);
    free(epoch);
out:
    return st;
}

enum cairn_status cairn_attempt_commit(struct cairn_attempt *a, struct cairn_manifest *m, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *text = NULL, *mine = NULL, *final = NULL;
    size_t n;
    int lost = 0;

    if (!cairn_digest_equal(cairn_manifest_identity(m), a->identity))
        return cairn_fail(err, CAIRN_EBUG, "%s: the manifest has another identity than its attempt", a->root);
    m->epoch = a->epoch;
    mine = cairn_format("%s/.MANIFEST.%lld", a->root, (long long)a->epoch);
    final = cairn_path_join(a->root, CAIRN_MANIFEST_NAME);
    if (!mine || !final)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_manifest_seal(m, a->root, err));
    TRY(cairn_manifest_text(m, &text, &n, err));
    TRY(cairn_attempt_check(a, err));
    TRY(shards_there(a, m, err));
    TRY(cairn_dir_sync(a->dir, err));
    if (unlink(mine) && errno != ENOENT) /* an earlier commit of this attempt that failed */
        TRY(cairn_fail_errno(err, errno, "remove %s", mine));
    TRY(cairn_file_create(mine, text, n, err));
    TRY(cairn_attempt_check(a, err));
    TRY(publish(mine, final, &lost, err));
    if (lost)
        TRY(yield_to(a, m, mine, err));
    else
        TRY(cairn_artefact_durable(a->root, err));
    if (!lost) {
        unlink(mine);
        tidy(a->root, a->epoch);
    }
out:
    free(text);
    free(mine);
    free(final);
    return or_fenced(a, st, err);
}
