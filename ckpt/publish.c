/* publish.c - the commit protocol of attempt.h: publication by one link(2), and what is tidied up behind it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/attempt_inner.h"
#include "ckpt/beneath.h"

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
    if (cairn_epoch_read(epochs, won, &info, NULL) == CAIRN_OK)
        strcpy(own_lane, info.lane);
    for (int k = 0; k < 2; k++) {
        if (cairn_attempt_numbers(root, prefix[k], &v, &n, NULL) != CAIRN_OK)
            continue;
        for (size_t i = 0; i < n; i++) {
            int over = v[i] < won || (v[i] == won && k == 1);

            if (!over && v[i] != won)
                over = cairn_epoch_read(epochs, v[i], &info, NULL) == CAIRN_OK &&
                       (strcmp(info.lane, own_lane) || cairn_holder_alive(&info.holder) == 0);
            if (over && snprintf(path, sizeof path, "%s/%s%lld", root, prefix[k], (long long)v[i]) < (int)sizeof path)
                cairn_tree_remove(path, NULL);
        }
        free(v);
    }
    if (cairn_attempt_numbers(epochs, "", &v, &n, NULL) == CAIRN_OK) {
        for (size_t i = 0; i < n; i++) {
            int over = v[i] < won || (v[i] > won && cairn_epoch_read(epochs, v[i], &info, NULL) == CAIRN_OK && cairn_holder_alive(&info.holder) == 0);

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

        if (e->hollow && !m->hollow[0])
            TRY(cairn_fail(err, CAIRN_EBUG, "%s: shard %s is hollow, and its manifest does not say so", a->root, e->file));
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
    return cairn_attempt_failed(a, st, err);
}
