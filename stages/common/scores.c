/* scores.c - columns of scores.h to shards and back. */
#include "stages/common/scores.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"

enum cairn_status cairn_scores_create(struct cairn_scores_table *s, int64_t n, struct cairn_error *err)
{
    size_t k = (size_t)n + 1;

    *s = (struct cairn_scores_table){.n = n};
    s->reward = calloc(k, sizeof *s->reward);
    s->penalty = calloc(k, sizeof *s->penalty);
    s->advantage = calloc(k, sizeof *s->advantage);
    s->value = calloc(k, sizeof *s->value);
    s->mask = calloc(k, 1);
    s->verdict = calloc(k, 1);
    s->status = calloc(k, 1);
    s->group = calloc(k, sizeof *s->group);
    s->extracted = calloc(k, sizeof *s->extracted);
    if (s->reward && s->penalty && s->advantage && s->value && s->mask && s->verdict && s->status && s->group && s->extracted)
        return CAIRN_OK;
    cairn_scores_free(s);
    return CAIRN_NOMEM(err);
}

void cairn_scores_free(struct cairn_scores_table *s)
{
    for (int64_t i = 0; s->extracted && i < s->n; i++)
        free(s->extracted[i]);
    free(s->reward);
    free(s->penalty);
    free(s->advantage);
    free(s->value);
    free(s->mask);
    free(s->verdict);
    free(s->status);
    free(s->group);
    free(s->extracted);
    memset(s, 0, sizeof *s);
}

#define COLUMNS 10

/* Rows [begin, end) as COLUMNS columns. Their answers are appended to text, whose offsets go to (end - begin + 1) at offsets; the
 * column of the text has no address yet, as it may move. */
static void unit_columns(const struct cairn_scores_table *s, int64_t begin, int64_t end, struct cairn_str *text, int64_t *offsets,
                         struct cairn_column c[COLUMNS])
{
    int64_t n = end - begin;
    size_t first = text->len;

    for (int64_t i = 0; i < n; i++) {
        offsets[i] = (int64_t)(text->len - first);
        if (s->extracted[begin + i])
            cairn_str_puts(text, s->extracted[begin + i]);
    }
    offsets[n] = (int64_t)(text->len - first);
    memcpy(c,
           (const struct cairn_column[COLUMNS]){{"reward", CAIRN_F32, s->reward + begin, n},
                                                {"penalty", CAIRN_F32, s->penalty + begin, n},
                                                {"advantage", CAIRN_F32, s->advantage + begin, n},
                                                {"mask", CAIRN_U8, s->mask + begin, n},
                                                {"value", CAIRN_F32, s->value + begin, n},
                                                {"verdict", CAIRN_U8, s->verdict + begin, n},
                                                {"status", CAIRN_U8, s->status + begin, n},
                                                {"group", CAIRN_I32, s->group + begin, n},
                                                {"extracted", CAIRN_U8, NULL, offsets[n]},
                                                {"extracted_offsets", CAIRN_I64, offsets, n + 1}},
           COLUMNS * sizeof *c);
}

enum cairn_status cairn_scores_write_parts(const struct cairn_scores_part *part, int first, int parts, struct cairn_attempt *a,
                                           const char *name, const char *identity, struct cairn_shard_entry **entry,
                                           struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t rows = parts, at = 0, *offsets;
    struct cairn_column *c = calloc((size_t)parts * COLUMNS + 1, sizeof *c);
    int *unit = calloc((size_t)parts * COLUMNS + 1, sizeof *unit);
    struct cairn_str text = {0};
    size_t from = 0;

    for (int u = 0; u < parts; u++)
        rows += part[u].end - part[u].begin;
    offsets = malloc((size_t)(rows + 1) * sizeof *offsets);
    if (!offsets || !c || !unit)
        TRY(CAIRN_NOMEM(err));
    for (int u = 0; u < parts; u++) {
        unit_columns(part[u].s, part[u].begin, part[u].end, &text, offsets + at, c + u * COLUMNS);
        for (int k = 0; k < COLUMNS; k++)
            unit[u * COLUMNS + k] = first + u;
        at += part[u].end - part[u].begin + 1;
    }
    if (text.oom)
        TRY(CAIRN_NOMEM(err));
    for (int u = 0; u < parts; u++) {
        struct cairn_column *x = &c[u * COLUMNS + COLUMNS - 2];

        x->p = cairn_str_z(&text) + from;
        from += (size_t)x->count;
    }
    TRY(cairn_units_write(a, name, identity, c, unit, parts * COLUMNS, entry, err));
out:
    cairn_str_free(&text);
    free(offsets);
    free(c);
    free(unit);
    return st;
}

enum cairn_status cairn_scores_write(const struct cairn_scores_table *s, int64_t begin, int64_t end, struct cairn_attempt *a,
                                     int unit, const char *identity, struct cairn_shard_entry **entry, struct cairn_error *err)
{
    const struct cairn_scores_part part = {s, begin, end};
    char name[32];

    cairn_unit_name(unit, name);
    return cairn_scores_write_parts(&part, unit, 1, a, name, identity, entry, err);
}

/* Reads a column of a unit and puts its n elements at dst. */
static enum cairn_status column_into(struct cairn_reader *from, int unit, const char *name, enum cairn_dtype t, void *dst,
                                     int64_t n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    void *h = NULL;
    int64_t got;

    TRY(cairn_unit_read(from, unit, name, t, &h, &got, err));
    if (got != n)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: unit %d: %s has %lld elements, expected %lld", cairn_reader_path(from), unit, name,
                       (long long)got, (long long)n));
    memcpy(dst, h, (size_t)n * cairn_dtype_size(t));
out:
    free(h);
    return st;
}

static enum cairn_status extracted_into(struct cairn_reader *from, int unit, char **dst, int64_t n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t *offsets = NULL, k, bytes;
    char *text = NULL;

    TRY(cairn_unit_read(from, unit, "extracted_offsets", CAIRN_I64, (void **)&offsets, &k, err));
    TRY(cairn_unit_read(from, unit, "extracted", CAIRN_U8, (void **)&text, &bytes, err));
    for (int64_t i = 0; i < n; i++) {
        if (k != n + 1 || offsets[i] < 0 || offsets[i + 1] < offsets[i] || offsets[i + 1] > bytes)
            TRY(cairn_fail(err, CAIRN_EDATA, "%s: unit %d: extracted answers have impossible offsets", cairn_reader_path(from),
                           unit));
        dst[i] = calloc(1, (size_t)(offsets[i + 1] - offsets[i]) + 1);
        if (!dst[i])
            TRY(CAIRN_NOMEM(err));
        memcpy(dst[i], text + offsets[i], (size_t)(offsets[i + 1] - offsets[i]));
    }
out:
    free(offsets);
    free(text);
    return st;
}

enum cairn_status cairn_scores_load(struct cairn_scores_table *s, struct cairn_reader *from, int extracted, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t total = 0, at = 0, *counts = NULL;
    int units;

    memset(s, 0, sizeof *s);
    TRY(cairn_unit_count(from, &units, err));
    counts = calloc((size_t)units + 1, sizeof *counts);
    if (!counts)
        TRY(CAIRN_NOMEM(err));
    for (int u = 0; u < units; u++) {
        void *h = NULL;

        TRY(cairn_unit_read(from, u, "reward", CAIRN_F32, &h, &counts[u], err));
        free(h);
        total += counts[u];
    }
    TRY(cairn_scores_create(s, total, err));
    for (int u = 0; u < units; at += counts[u++]) {
        int64_t n = counts[u];

        TRY(column_into(from, u, "reward", CAIRN_F32, s->reward + at, n, err));
        TRY(column_into(from, u, "penalty", CAIRN_F32, s->penalty + at, n, err));
        TRY(column_into(from, u, "advantage", CAIRN_F32, s->advantage + at, n, err));
        TRY(column_into(from, u, "mask", CAIRN_U8, s->mask + at, n, err));
        TRY(column_into(from, u, "verdict", CAIRN_U8, s->verdict + at, n, err));
        TRY(column_into(from, u, "status", CAIRN_U8, s->status + at, n, err));
        for (int64_t i = at; i < at + n; i++)
            s->value[i] = s->verdict[i]; /* of scores that were made before there was another */
        if (cairn_unit_has(from, u, "value"))
            TRY(column_into(from, u, "value", CAIRN_F32, s->value + at, n, err));
        TRY(column_into(from, u, "group", CAIRN_I32, s->group + at, n, err));
        if (extracted)
            TRY(extracted_into(from, u, s->extracted + at, n, err));
    }
out:
    free(counts);
    if (st != CAIRN_OK)
        cairn_scores_free(s);
    return st;
}
