/* adopt.c - the commit protocol of attempt.h: the shards of an attempt, and whole ones of dead attempts, which it may adopt. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/attempt_inner.h"
#include "ckpt/beneath.h"

enum cairn_status cairn_attempt_shard(struct cairn_attempt *a, struct cairn_shard **out, const char *name,
                                      const struct cairn_slice *tensors, int n, const struct cairn_shard_opts *opts,
                                      struct cairn_error *err)
{
    struct cairn_shard_opts o = opts ? *opts : (struct cairn_shard_opts){0};

    o.scratch |= a->scratch;
    return cairn_attempt_failed(a, cairn_shard_create(out, a->dir, name, tensors, n, &o, err), err);
}

/* a<epoch>/NAME.json, durable; then the entry gets its directory. Of a hollow or scratch shard (alone) nothing is left for others to adopt. */
static enum cairn_status record(struct cairn_attempt *a, struct cairn_shard_entry *e, int alone, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *text = NULL, *path = NULL, *file = NULL;
    size_t n;

    TRY(cairn_shard_entry_text(e, &text, &n, err));
    path = cairn_format("%s/%.*s.json", a->dir, (int)(strlen(e->file) - 3), e->file);
    file = cairn_format("a%lld/%s", (long long)a->epoch, e->file);
    if (!path || !file)
        TRY(CAIRN_NOMEM(err));
    if (!alone) {
        TRY(cairn_file_create(path, text, n, err));
        TRY(cairn_dir_sync(a->dir, err));
    }
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
    const int hollow = cairn_shard_hollow(*shard);

    TRY(cairn_shard_finish(*shard, &e, err));
    TRY(record(a, e, hollow || a->scratch, err));
    *entry = e;
    e = NULL;
out:
    cairn_shard_entry_free(e);
    cairn_shard_destroy(*shard);
    *shard = NULL;
    return cairn_attempt_failed(a, st, err);
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
    TRY(record(a, e, 0, err));
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
    TRY(cairn_attempt_numbers(a->root, "a", &epochs, &n, err));
    for (size_t i = n; i-- > 0 && !*entry;) {
        struct epoch_info info;
        struct cairn_digest digest;
        enum cairn_status unread; /* whatever it is: then the shard is made anew */
        int64_t size;
        int gone;

        cairn_shard_entry_free(e);
        e = NULL;
        if (cairn_epoch_read(a->epochs, epochs[i], &info, NULL) != CAIRN_OK || !cairn_digest_equal(info.identity, a->identity) ||
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
    return cairn_attempt_failed(a, st, err);
}

/* 1: the name of a *.json file; its ending is cut off. */
static int entry_name(char *name)
{
    size_t n = strlen(name);

    if (!cairn_name_ok(name) || n < 6 || strcmp(name + n - 5, ".json"))
        return 0;
    name[n - 5] = 0;
    return 1;
}

enum cairn_status cairn_attempt_each(struct cairn_attempt *a, int (*fn)(void *arg, const char *name, const char *identity, int64_t epoch),
                                     void *arg, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t *epochs = NULL;
    size_t n;
    int stop = 0;

    TRY(cairn_attempt_numbers(a->root, "a", &epochs, &n, err));
    for (size_t i = 0; i < n && !stop && st == CAIRN_OK; i++) {
        struct epoch_info info;
        struct cairn_names names = {0};
        char *path;
        int there;

        st = cairn_epoch_read(a->epochs, epochs[i], &info, err);
        if (st == CAIRN_EDATA || (st == CAIRN_OK && !cairn_digest_equal(info.identity, a->identity))) {
            st = CAIRN_OK;
            continue;
        }
        TRY(st);
        if (!(path = cairn_format("%s/a%lld", a->root, (long long)epochs[i])))
            TRY(CAIRN_NOMEM(err));
        st = cairn_dir_names(&names, path, &there, err);
        for (size_t k = 0; k < names.n; k++) {
            char *name = names.name[k];
            enum cairn_status read = CAIRN_OK;
            struct cairn_shard_entry *e = NULL;

            if (!entry_name(name)) /* and cuts it */
                continue;
            if (!stop && st == CAIRN_OK)
                e = entry_read(a->root, epochs[i], name, &read, err);
            if (read != CAIRN_OK && read != CAIRN_EDATA) /* torn or gone is no shard; what cannot be read may be one */
                st = read;
            if (e)
                stop = fn(arg, name, e->identity, epochs[i]);
            cairn_shard_entry_free(e);
        }
        cairn_names_free(&names);
        free(path);
    }
out:
    free(epochs);
    return st;
}
