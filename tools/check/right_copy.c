/* right_copy.c - what an op is given, once more on the reference's device. See right_impl.h. */
#include <stdlib.h>
#include <string.h>

#include "tools/check/right_impl.h"

size_t cairn_right_extent(const struct cairn_tensor *t)
{
    int64_t last = 1;

    for (int d = 0; d < t->ndim; d++) {
        if (t->dim[d] == 0)
            return 0;
        last += (t->dim[d] - 1) * t->stride[d];
    }
    return (size_t)last * cairn_dtype_size(t->dtype);
}

/* Adds [begin, end) of buf; regions that touch become one. */
static void region_add(struct right *r, struct cairn_buffer *buf, size_t begin, size_t end)
{
    for (int i = 0; i < r->regions;) {
        struct region *g = &r->region[i];

        if (g->buf != buf || end < g->begin || begin > g->end) {
            i++;
            continue;
        }
        begin = begin < g->begin ? begin : g->begin;
        end = end > g->end ? end : g->end;
        *g = r->region[--r->regions];
        i = 0;
    }
    begin &= ~(size_t)63; /* as the back-end's own memory is aligned */
    r->region[r->regions++] = (struct region){.buf = buf, .begin = begin, .end = end};
}

enum cairn_status cairn_right_bytes(struct cairn_compute *k, struct cairn_buffer *buf, size_t at, size_t n, void *h, struct cairn_error *err)
{
    int64_t dim = (int64_t)n;
    struct cairn_tensor t;
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_tensor_view(&t, buf, at, CAIRN_U8, 1, &dim, err));
    TRY(cairn_tensor_get(&k->stream, &t, h, n, err));
out:
    return st;
}

void cairn_right_copies_free(struct right *r)
{
    for (int i = 0; i < r->regions; i++)
        cairn_buffer_destroy(r->region[i].own);
    r->regions = 0;
}

enum cairn_status cairn_right_copy(struct right *r, const struct cairn_trace_call *c, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *h = NULL;

    cairn_right_copies_free(r);
    for (const struct cairn_op_member *m = c->info->member; m->name; m++) {
        const struct cairn_tensor *t = cairn_op_tensor(c->args, m);

        if (t->buf && cairn_right_extent(t))
            region_add(r, t->buf, t->offset, t->offset + cairn_right_extent(t));
    }
    for (int i = 0; i < r->regions; i++) {
        struct region *g = &r->region[i];
        size_t n = g->end - g->begin;
        int64_t dim = (int64_t)n;
        struct cairn_tensor all;
        char *p = realloc(h, n);

        if (!p)
            TRY(CAIRN_NOMEM(err));
        h = p;
        TRY(cairn_right_bytes(&r->x->k, g->buf, g->begin, n, h, err));
        TRY(cairn_buffer_create(r->ref.dev, n, &g->own, err));
        TRY(cairn_tensor_view(&all, g->own, 0, CAIRN_U8, 1, &dim, err));
        TRY(cairn_tensor_set(&r->ref.stream, &all, h, n, err));
    }
    if (c->info->bytes > sizeof r->args)
        TRY(CAIRN_BUG(err, "an op with more arguments than there is room for"));
    memcpy(r->args.bytes, c->args, c->info->bytes);
    for (const struct cairn_op_member *m = c->info->member; m->name; m++) {
        struct cairn_tensor *t = cairn_op_tensor(r->args.bytes, m);

        for (int i = 0; t->buf && i < r->regions; i++)
            if (r->region[i].buf == t->buf && t->offset >= r->region[i].begin && t->offset <= r->region[i].end) {
                t->buf = r->region[i].own;
                t->offset -= r->region[i].begin;
                break;
            }
    }
out:
    free(h);
    return st;
}
