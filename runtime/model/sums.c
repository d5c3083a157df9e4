/* sums.c - one table of tiles for a whole store, one call (sums.h). */
#include "model/sums.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/tiles.h"
#include "model/handover_runs.h"

/* The rows of one tensor, of the store's part of it. */
static enum cairn_status add(struct cairn_runs *r, struct cairn_runs_call *c, const struct cairn_store *s, int i, const char *prefix,
                             struct cairn_error *err)
{
    const struct cairn_param *p = &s->table->param[i];
    const struct cairn_tensor *x = &s->tensor[i];
    char name[CAIRN_TENSOR_NAME_MAX + 1];
    struct cairn_transit_tensor t = {.name = name, .dtype = x->dtype, .ndim = p->ndim, .of = -1};
    struct cairn_transit_piece q = {.blocks = 1, .n = cairn_tensor_count(x)};
    int64_t step[CAIRN_MAX_DIMS];

    if (snprintf(name, sizeof name, "%s%s", prefix ? prefix : "", p->name) >= (int)sizeof name)
        return cairn_fail(err, CAIRN_EBUG, "%s%s: too long a name", prefix ? prefix : "", p->name);
    if (!cairn_tensor_dense(x) || x->buf != s->buf)
        return cairn_fail(err, CAIRN_EBUG, "%s: a tensor with gaps, or of another memory", name);
    for (int d = 0; d < p->ndim; d++) {
        t.dim[d] = p->dim[d];
        q.local[d] = x->dim[d];
    }
    q.offset[0] = s->row ? s->row[i] : 0;
    cairn_runs_steps(&t, q.local, step);
    return cairn_runs_add_tiles(r, c, &t, &q, x->offset, step, err);
}

enum cairn_status cairn_store_sums(const struct cairn_store *s, const char *prefix, struct cairn_compute *k, struct cairn_digest *sum,
                                   struct cairn_error *err)
{
    struct cairn_runs r = {.width = CAIRN_TILES_RUN};
    struct cairn_runs_call c = cairn_runs_begin(&r), one;
    struct cairn_runs_sums out = {0};
    int64_t *first = calloc((size_t)s->table->count + 1, sizeof *first);
    enum cairn_status st = CAIRN_OK;

    memset(sum, 0, (size_t)s->table->count * sizeof *sum);
    if (!first)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < s->table->count; i++) {
        if (s->tensor[i].buf)
            TRY(add(&r, &c, s, i, prefix, err));
        first[i + 1] = r.rows;
    }
    cairn_runs_end(&r, &c);
    TRY(cairn_runs_upload(&r, k, err));
    TRY(cairn_runs_sums_create(&out, c.rows, k->dev, err));
    TRY(cairn_runs_tiles(&r, &c, k, &k->stream, s->buf, out.buf, 0, err));
    TRY(cairn_stream_wait(&k->stream, err));
    for (int i = 0; i < s->table->count; i++) {
        one = (struct cairn_runs_call){.first = first[i], .rows = first[i + 1] - first[i]};
        sum[i] = cairn_runs_sum(&one, out.h);
    }
out:
    cairn_runs_free(&r);
    cairn_runs_sums_free(&out);
    free(first);
    return st;
}
