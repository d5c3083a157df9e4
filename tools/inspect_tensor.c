/* inspect_tensor.c - one tensor of an artefact in figures (inspect.h): read row by row, every tile checked on the way. */
#include "tools/inspect.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "ckpt/convert.h"
#include "ckpt/reader.h"

#define FIRST 8                 /* values shown */
#define PIECE_BYTES (16 << 20)  /* read at once, but at least one row */

struct stats {
    int64_t n, nonfinite, zeros;
    double min, max, sum, squares;
    double first[FIRST];
    int firsts;
};

static void stats_add(struct stats *s, double v)
{
    if (s->firsts < FIRST)
        s->first[s->firsts++] = v;
    s->n++;
    if (!isfinite(v)) {
        s->nonfinite++;
        return;
    }
    s->zeros += v == 0;
    if (s->n - s->nonfinite == 1)
        s->min = s->max = v;
    if (v < s->min)
        s->min = v;
    if (v > s->max)
        s->max = v;
    s->sum += v;
    s->squares += v * v;
}

/* Dimension 0 in pieces; a scalar is one piece. */
static enum cairn_status stats_read(struct stats *s, struct cairn_reader *r, const struct cairn_tensor_entry *t, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t rows = t->ndim ? t->shape[0] : 1, row = 1, step;
    size_t esize = cairn_dtype_size(t->dtype);
    void *h = NULL;

    for (int i = 1; i < t->ndim; i++)
        row *= t->shape[i];
    if (!rows || !row)
        return CAIRN_OK;
    step = PIECE_BYTES / (row * (int64_t)esize);
    step = step < 1 ? 1 : step > rows ? rows : step;
    h = malloc((size_t)(step * row) * esize);
    if (!h)
        return CAIRN_NOMEM(err);
    for (int64_t at = 0; at < rows; at += step) {
        int64_t n = rows - at < step ? rows - at : step;

        if (t->ndim)
            TRY(cairn_reader_rows(r, t->name, at, n, h, (size_t)(n * row) * esize, err));
        else
            TRY(cairn_reader_box(r, t->name, NULL, NULL, h, esize, err));
        for (int64_t i = 0; i < n * row; i++)
            stats_add(s, cairn_value(t->dtype, h, i));
    }
out:
    free(h);
    return st;
}

static void parts_put(struct cairn_str *out, const struct cairn_manifest *m, const struct cairn_tensor_entry *t)
{
    for (int i = 0; i < t->nparts; i++) {
        const struct cairn_slice *p = t->parts[i].slice;

        cairn_str_printf(out, "  part %d      %s, byte %lld, from [", i, m->shards[t->parts[i].shard]->file, (long long)p->at);
        for (int d = 0; d < p->ndim; d++)
            cairn_str_printf(out, "%s%lld", d ? ", " : "", (long long)p->offset[d]);
        cairn_str_puts(out, "], shape [");
        for (int d = 0; d < p->ndim; d++)
            cairn_str_printf(out, "%s%lld", d ? ", " : "", (long long)p->local[d]);
        cairn_str_puts(out, "]\n");
    }
}

enum cairn_status cairn_inspect_tensor(const char *dir, const char *name, struct cairn_str *out, json_t **json, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_tensor_entry *t;
    struct cairn_reader *r = NULL;
    struct stats s = {0};
    json_t *shape = NULL, *first = NULL;
    double finite, mean, deviation;
    char hex[33];

    TRY(cairn_reader_open(&r, dir, NULL, err));
    if (!cairn_manifest_find(cairn_reader_manifest(r), name)) {
        const struct cairn_manifest *m = cairn_reader_manifest(r);
        const char **names = calloc((size_t)m->ntensors + 1, sizeof *names), *near;

        for (int i = 0; names && i < m->ntensors; i++)
            names[i] = m->tensors[i].name;
        near = names ? cairn_nearest(name, names, (size_t)m->ntensors) : NULL;
        free(names);
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: no tensor %s%s%s; cairn inspect lists them", dir, name, near ? "; the nearest one is " : "",
                       near ? near : ""));
    }
    TRY(cairn_reader_find(r, name, &t, err));
    TRY(stats_read(&s, r, t, err));
    finite = s.n > s.nonfinite ? (double)(s.n - s.nonfinite) : 1;
    mean = s.sum / finite;
    deviation = sqrt(fmax(0, s.squares / finite - mean * mean));
    cairn_digest_hex(t->digest, hex);
    if (json) {
        shape = json_array();
        first = json_array();
        for (int i = 0; i < t->ndim; i++)
            json_array_append_new(shape, json_integer(t->shape[i]));
        for (int i = 0; i < s.firsts; i++)
            json_array_append_new(first, isfinite(s.first[i]) ? json_real(s.first[i]) : json_null());
        *json = json_pack("{s:s, s:s, s:s, s:o, s:i, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:o}", "path", dir, "name", t->name, "dtype",
                          cairn_dtype_name(t->dtype), "shape", shape, "parts", t->nparts, "digest", hex, "elements", (json_int_t)s.n, "nonfinite",
                          (json_int_t)s.nonfinite, "min", s.min, "max", s.max, "mean", mean, "std", deviation, "first", first);
        goto out;
    }
    cairn_str_printf(out, "%s\n  dtype       %s\n  shape       [", t->name, cairn_dtype_name(t->dtype));
    for (int i = 0; i < t->ndim; i++)
        cairn_str_printf(out, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    cairn_str_printf(out, "]\n  digest      %s\n", hex);
    parts_put(out, cairn_reader_manifest(r), t);
    cairn_str_printf(out, "  elements    %lld, %lld of them zero, %lld not finite\n", (long long)s.n, (long long)s.zeros, (long long)s.nonfinite);
    cairn_str_printf(out, "  range       %.9g to %.9g, mean %.6g, standard deviation %.6g\n  first      ", s.min, s.max, mean, deviation);
    for (int i = 0; i < s.firsts; i++)
        cairn_str_printf(out, " %.9g", s.first[i]);
    cairn_str_putc(out, '\n');
out:
    cairn_reader_close(r);
    return st;
}
