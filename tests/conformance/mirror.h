/* mirror.h - the end of lab.h: the cpu's reference ops for a device that has none of its own. */
#ifndef CAIRN_TESTS_MIRROR_H
#define CAIRN_TESTS_MIRROR_H

#include "lab.h"

typedef enum cairn_status lab_op_fn(struct cairn_stream *s, const void *args, struct cairn_error *err);

/* Runs a reference op of the cpu on args (a copy, `size` bytes), whose tensors are views of the lab's things: each buffer that
 * occurs in args is fetched as its image, stands in for the device's, and is sent back. */
static inline enum cairn_status lab_mirror(void *args, size_t size, lab_op_fn *op, struct cairn_error *err)
{
    struct lab *l = lab_open_now;
    struct cairn_buffer *host[LAB_THINGS] = {0};
    enum cairn_status st = cairn_stream_wait(&l->c.stream, err);

    for (int i = 0; st == CAIRN_OK && i < l->n; i++) {
        struct thing *x = l->things[i];

        for (size_t at = 0; at + sizeof(struct cairn_tensor) <= size; at += sizeof(void *)) {
            struct cairn_tensor *t = (struct cairn_tensor *)((char *)args + at);
            unsigned char *d;

            if (t->buf != x->buf)
                continue;
            if (!host[i]) {
                LAB_OK(l, cairn_buffer_create(l->host.dev, x->bytes, &host[i], &l->err));
                d = malloc(x->bytes + 1);
                assert_non_null(d);
                thing_move(l, x, d, 0);
                thing_unpack(x, cairn_buffer_open(host[i], CAIRN_WRITE), d, thing_room(x));
                cairn_buffer_close(host[i]);
                free(d);
            }
            t->buf = host[i];
            t->offset = t->offset / cairn_dtype_size(t->dtype) * cairn_dtype_size(x->image);
            t->dtype = x->image;
        }
    }
    if (st == CAIRN_OK)
        st = op(&l->host.stream, args, err);
    for (int i = 0; i < l->n; i++) {
        struct thing *x = l->things[i];

        if (!host[i])
            continue;
        if (st == CAIRN_OK) {
            unsigned char *d = malloc(x->bytes + 1);

            assert_non_null(d);
            thing_pack(x, d, cairn_buffer_open(host[i], CAIRN_READ), thing_room(x));
            cairn_buffer_close(host[i]);
            thing_move(l, x, d, 1);
            free(d);
        }
        cairn_buffer_destroy(host[i]);
    }
    return st;
}

#define LAB_MIRROR(op)                                                                                                             \
    static inline enum cairn_status lab_host_##op(struct cairn_stream *s, const void *a, struct cairn_error *err)                  \
    {                                                                                                                              \
        return lab_open_now->host.backend->reference->op(s, a, err);                                                               \
    }                                                                                                                              \
    static inline enum cairn_status lab_##op(struct cairn_stream *s, const struct cairn_##op *a, struct cairn_error *err)          \
    {                                                                                                                              \
        struct cairn_##op copy = *a;                                                                                               \
                                                                                                                                   \
        (void)s;                                                                                                                   \
        return lab_mirror(&copy, sizeof copy, lab_host_##op, err);                                                                 \
    }
CAIRN_OPS(LAB_MIRROR)
#define LAB_ENTRY(op) .op = lab_##op,
static const struct cairn_ops lab_mirrored = {CAIRN_OPS(LAB_ENTRY)};

#endif
