/* artefact_copy.c - shard by shard, a piece in memory at a time (artefact_copy.h). */
#include "tools/artefact_copy.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/attempt.h"

#define PIECE_BYTES (32 << 20) /* at least one row of dimension 0 */

/* Part p of the source as tensor `index` of w. */
static enum cairn_status part_copy(struct cairn_reader *from, const struct cairn_slice *p, struct cairn_shard *w, int index, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t begin[CAIRN_MAX_DIMS], count[CAIRN_MAX_DIMS], row = (int64_t)cairn_dtype_size(p->dtype), rows = p->ndim ? p->local[0] : 1, step;
    int64_t done = 0;
    void *h = NULL;

    for (int d = 0; d < p->ndim; d++) {
        begin[d] = p->offset[d];
        count[d] = p->local[d];
        if (d)
            row *= p->local[d]; /* within the file's size: checked when the manifest was loaded */
    }
    if (!rows || !row)
        return CAIRN_OK;
    step = PIECE_BYTES / row;
    step = step < 1 ? 1 : step > rows ? rows : step;
    h = malloc((size_t)(step * row));
    if (!h)
        return CAIRN_NOMEM(err);
    for (; done < rows; done += step) {
        int64_t n = rows - done < step ? rows - done : step;

        if (cairn_stop_requested())
            TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped; run again to go on"));
        if (p->ndim) {
            begin[0] = p->offset[0] + done;
            count[0] = n;
        }
        TRY(cairn_reader_box(from, p->name, p->ndim ? begin : NULL, p->ndim ? count : NULL, h, (size_t)(n * row), err));
        TRY(cairn_shard_write(w, index, done * row, h, (size_t)(n * row), err));
    }
out:
    free(h);
    return st;
}

static enum cairn_status shard_copy(struct cairn_reader *from, const struct cairn_shard_entry *e, struct cairn_attempt *a, struct cairn_manifest *m,
                                    struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_slice *s = calloc((size_t)e->nslices + 1, sizeof *s);
    char *name = strdup(cairn_path_basename(e->file));
    const struct cairn_shard_opts o = {.no_tiles = !e->tiles && !e->table_at, .identity = e->identity};
    struct cairn_shard_entry *entry = NULL;
    struct cairn_shard *w = NULL;

    if (!s || !name)
        TRY(CAIRN_NOMEM(err));
    if (cairn_ends_with(name, ".h5"))
        name[strlen(name) - 3] = 0;
    TRY(cairn_attempt_adopt(a, name, e->identity, &entry, err));
    if (!entry) {
        for (int i = 0; i < e->nslices; i++) {
            s[i] = e->slices[i];
            s[i].at = 0;
            s[i].first = 0;
            s[i].sum = (struct cairn_digest){0, 0};
        }
        TRY(cairn_attempt_shard(a, &w, name, s, e->nslices, &o, err));
        for (int i = 0; i < e->nslices; i++)
            TRY(part_copy(from, &e->slices[i], w, i, err));
        TRY(cairn_attempt_shard_done(a, &w, &entry, err));
    }
    TRY(cairn_manifest_add_shard(m, entry, err));
out:
    cairn_shard_destroy(w);
    free(s);
    free(name);
    return st;
}

enum cairn_status cairn_artefact_copy(struct cairn_reader *from, const char *dir, struct cairn_manifest *m, struct cairn_error *err)
{
    const struct cairn_manifest *src = cairn_reader_manifest(from);
    const struct cairn_attempt_opts o = {.identity = cairn_manifest_identity(m)};
    enum cairn_status st = CAIRN_OK;
    struct cairn_attempt *a = NULL;
    const char *alias;
    json_t *target;

    TRY(cairn_manifest_set_fingerprint(m, src->numerics, src->layout, err));
    if (json_object_update(m->content, src->content))
        TRY(CAIRN_NOMEM(err));
    json_object_foreach(src->aliases, alias, target) TRY(cairn_manifest_add_alias(m, alias, json_string_value(target), err));
    TRY(cairn_attempt_begin(&a, dir, &o, err));
    for (int i = 0; i < src->nshards; i++)
        TRY(shard_copy(from, src->shards[i], a, m, err));
    TRY(cairn_attempt_commit(a, m, err));
out:
    cairn_attempt_end(a);
    return st;
}
