/* columns.c - units of flat arrays to shards and back (columns.h). */
#include "stages/common/columns.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"

void cairn_unit_name(int unit, char out[32])
{
    snprintf(out, 32, "unit-%06d", unit);
}

static void column_name(int unit, const char *column, char out[96])
{
    snprintf(out, 96, "%s.%06d", column, unit);
}

enum cairn_status cairn_units_write(struct cairn_attempt *a, const char *name, const char *identity, const struct cairn_column *c,
                                    const int *unit, int n, struct cairn_shard_entry **entry, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_slice *slice = calloc((size_t)n + 1, sizeof *slice);
    char(*names)[96] = calloc((size_t)n + 1, sizeof *names);
    const struct cairn_shard_opts opts = {.no_tiles = 1, .identity = identity};
    struct cairn_shard *w = NULL;

    if (!slice || !names)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < n; i++) {
        column_name(unit[i], c[i].name, names[i]);
        slice[i] = cairn_slice_whole(names[i], c[i].dtype, 1, &c[i].count);
    }
    TRY(cairn_attempt_shard(a, &w, name, slice, n, &opts, err));
    for (int i = 0; i < n; i++)
        if (c[i].count)
            TRY(cairn_shard_write(w, i, 0, c[i].p, (size_t)c[i].count * cairn_dtype_size(c[i].dtype), err));
    TRY(cairn_attempt_shard_done(a, &w, entry, err));
out:
    cairn_shard_destroy(w);
    free(slice);
    free(names);
    return st;
}

enum cairn_status cairn_unit_write(struct cairn_attempt *a, int unit, const char *identity, const struct cairn_column *c, int n,
                                   struct cairn_shard_entry **entry, struct cairn_error *err)
{
    int units[CAIRN_COLUMNS_MAX];
    char name[32];

    assert(n <= CAIRN_COLUMNS_MAX);
    for (int i = 0; i < n; i++)
        units[i] = unit;
    cairn_unit_name(unit, name);
    return cairn_units_write(a, name, identity, c, units, n, entry, err);
}

enum cairn_status cairn_unit_read(struct cairn_reader *r, int unit, const char *column, enum cairn_dtype dtype, void **out, int64_t *count,
                                  struct cairn_error *err)
{
    char name[96];

    column_name(unit, column, name);
    return cairn_reader_array(r, name, dtype, out, count, err);
}

enum cairn_status cairn_unit_column(const char *dir, const struct cairn_shard_entry *e, int unit, const char *column, enum cairn_dtype dtype,
                                    int64_t want, void *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_slice *s = NULL;
    char name[96], *path = cairn_path_join(dir, e->file);
    int fd = -1;

    if (!path)
        TRY(CAIRN_NOMEM(err));
    column_name(unit, column, name);
    for (int i = 0; i < e->nslices; i++)
        if (!strcmp(e->slices[i].name, name))
            s = &e->slices[i];
    if (!s || s->dtype != dtype || s->ndim != 1 || s->local[0] != want)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: no column %s of %lld elements", path, name, (long long)want));
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        TRY(cairn_fail_errno(err, errno, "open %s", path));
    TRY(cairn_fd_pread_all(fd, out, (size_t)want * cairn_dtype_size(dtype), s->at, path, err));
out:
    if (fd >= 0)
        close(fd);
    free(path);
    return st;
}

int cairn_unit_has(struct cairn_reader *r, int unit, const char *column)
{
    char name[96];

    column_name(unit, column, name);
    return cairn_manifest_find(cairn_reader_manifest(r), name) != NULL;
}

enum cairn_status cairn_unit_count(struct cairn_reader *r, int *units, struct cairn_error *err)
{
    int64_t n;
    enum cairn_status st = cairn_json_i64(cairn_reader_manifest(r)->content, "units", 0, 999999, &n, cairn_reader_path(r), err);

    *units = st == CAIRN_OK ? (int)n : 0;
    return st;
}
