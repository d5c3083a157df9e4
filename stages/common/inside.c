/* inside.c - paths, identity and end of sub-artefacts of training (inside.h). */
#include "stages/common/inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/retention.h"

char *cairn_inside_path(const struct cairn_run *r, int64_t step, const char *name)
{
    const struct cairn_link train = {step, CAIRN_STAGE_TRAIN, NULL};
    char *dir = cairn_link_path(r, &train), *path = dir ? cairn_path_join(dir, name) : NULL;

    free(dir);
    return path;
}

char *cairn_inside_update_path(const struct cairn_run *r, int64_t step, int64_t update)
{
    char name[32];

    snprintf(name, sizeof name, "u%04lld", (long long)update);
    return cairn_inside_path(r, step, name);
}

/* "u0002" -> 2; -1 for anything else. */
static int64_t update_of(const char *name)
{
    char again[32];
    int64_t u;

    if (name[0] != 'u' || name[1] < '0' || name[1] > '9' || !cairn_parse_i64(name + 1, &u) || u < 0)
        return -1;
    snprintf(again, sizeof again, "u%04lld", (long long)u);
    return strcmp(name, again) ? -1 : u;
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

enum cairn_status cairn_inside_updates(const struct cairn_run *r, int64_t step, int64_t **out, int *n, struct cairn_error *err)
{
    const struct cairn_link train = {step, CAIRN_STAGE_TRAIN, NULL};
    char *dir = cairn_link_path(r, &train);
    struct cairn_names names = {0};
    enum cairn_status st = CAIRN_OK;
    int64_t *list = NULL;
    int there;

    *out = NULL;
    *n = 0;
    if (!dir)
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_dir_names(&names, dir, &there, err));
    if (!(list = calloc(names.n + 1, sizeof *list)))
        TRY(CAIRN_NOMEM(err));
    for (size_t i = 0; i < names.n; i++)
        if (update_of(names.name[i]) >= 0)
            list[(*n)++] = update_of(names.name[i]);
    if (*n)
        qsort(list, (size_t)*n, sizeof *list, by_number);
    *out = list;
    list = NULL;
out:
    cairn_names_free(&names);
    free(list);
    free(dir);
    return st;
}

enum cairn_status cairn_inside_manifest(struct cairn_manifest **out, const struct cairn_manifest *whole, const char *kind,
                                        struct cairn_error *err)
{
    struct cairn_manifest *m = cairn_manifest_create(kind, whole->step, whole->run);
    enum cairn_status st = CAIRN_OK;

    if (!m)
        return CAIRN_NOMEM(err);
    m->recipe = whole->recipe;
    for (int i = 0; i < whole->ninputs; i++)
        TRY(cairn_manifest_add_input(m, whole->inputs[i].path, whole->inputs[i].digest, err));
    TRY(cairn_manifest_set_fingerprint(m, whole->numerics, whole->layout, err));
    *out = m;
    m = NULL;
out:
    cairn_manifest_destroy(m);
    return st;
}

enum cairn_status cairn_inside_open(struct cairn_reader **out, const char *dir, const struct cairn_manifest *whole,
                                    const char *kind, struct cairn_error *err)
{
    struct cairn_reader_expect expect = {.kind = kind, .run = whole->run};
    struct cairn_manifest *m = NULL;
    struct cairn_digest identity;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_inside_manifest(&m, whole, kind, err));
    identity = cairn_manifest_identity(m);
    expect.identity = &identity;
    TRY(cairn_reader_open(out, dir, &expect, err));
out:
    cairn_manifest_destroy(m);
    return st;
}

static enum cairn_status drop(char *dir, struct cairn_error *err)
{
    enum cairn_status st = dir ? cairn_artefact_drop(dir, err) : CAIRN_NOMEM(err);

    free(dir);
    return st;
}

enum cairn_status cairn_inside_drop_updates(const struct cairn_run *r, int64_t step, int64_t below, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t *update = NULL;
    int n = 0;

    TRY(cairn_inside_updates(r, step, &update, &n, err));
    for (int i = 0; i < n && update[i] < below; i++)
        TRY(drop(cairn_inside_update_path(r, step, update[i]), err));
out:
    free(update);
    return st;
}

/* What stays: whoever committed it may have been killed, or the power gone, before it was tidy. A damaged one is verify's to name.
 */
static enum cairn_status settle(char *dir, struct cairn_error *err)
{
    enum cairn_status st = !dir ? CAIRN_NOMEM(err) : cairn_artefact_committed(dir) ? cairn_artefact_settle(dir, err) : CAIRN_OK;

    free(dir);
    return st == CAIRN_EDATA ? CAIRN_OK : st;
}

enum cairn_status cairn_inside_drop(const struct cairn_run *r, int64_t step, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_inside_drop_updates(r, step, INT64_MAX, err));
    TRY(drop(cairn_inside_path(r, step, "old"), err));
    TRY(settle(cairn_inside_path(r, step, "ref"), err));
out:
    return st;
}
