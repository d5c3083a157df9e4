/* bits.h - a record of what ops answer, for tests/emu/conformance.t: which bits belong to which inputs.
 *
 * With LAB_BITS=FILE the device's ops are called through lab_bits, which appends to FILE a line "numerics ..." for each device opened, and
 * for each call that succeeds
 *     op type size key result
 * key: digest of all tensors of the call (type, shape, contents) before it; result: after it; size: number of binary digits of their
 * bytes. Scalars are not in the key: calls that differ in these alone have the same key and other results.
 */
#ifndef CAIRN_TESTS_BITS_H
#define CAIRN_TESTS_BITS_H

#include "base/digest.h"
#include "lab.h"

static const struct cairn_ops *lab_bits_of; /* the ops under test */
static FILE *lab_bits_file;

/* The digest of all tensors in args (size bytes), which are views of the lab's things. */
static inline struct cairn_digest lab_bits_digest(const void *args, size_t size, size_t *bytes)
{
    struct lab *l = lab_open_now;
    struct cairn_digest sum = {0};

    *bytes = 0;
    for (size_t at = 0; at + sizeof(struct cairn_tensor) <= size; at += sizeof(void *)) {
        const struct cairn_tensor *t = (const struct cairn_tensor *)((const char *)args + at);
        struct {
            int64_t place, type, dim[CAIRN_MAX_DIMS], stride[CAIRN_MAX_DIMS], offset;
            struct cairn_digest of;
        } told = {(int64_t)at, (int64_t)t->dtype, {0}, {0}, (int64_t)t->offset, {0}};

        for (int i = 0; i < l->n; i++) {
            struct thing *x = l->things[i];
            size_t n = thing_room(x) * cairn_dtype_size(x->t.dtype);
            unsigned char *d;

            if (t->buf != x->buf)
                continue;
            d = malloc(n + 1);
            assert_non_null(d);
            thing_move(l, x, d, 0);
            told.of = cairn_digest_bytes(d, n);
            free(d);
            for (int k = 0; k < t->ndim; k++)
                told.dim[k] = t->dim[k], told.stride[k] = t->stride[k];
            sum = cairn_digest_add(sum, cairn_digest_bytes(&told, sizeof told));
            *bytes += n;
            break;
        }
    }
    return sum;
}

static inline void lab_bits_tell(const char *op, struct cairn_digest key, struct cairn_digest result, size_t bytes)
{
    char a[33], b[33];
    int size = 0;

    while (bytes >> size)
        size++;
    cairn_digest_hex(key, a);
    cairn_digest_hex(result, b);
    fprintf(lab_bits_file, "%s %s %d %.16s %.16s\n", op, cairn_dtype_name(lab_open_now->act), size, a, b);
    fflush(lab_bits_file);
}

#define LAB_BITS_OP(op)                                                                                                            \
    static inline enum cairn_status lab_bits_##op(struct cairn_stream *s, const struct cairn_##op *a, struct cairn_error *err)     \
    {                                                                                                                              \
        size_t bytes;                                                                                                              \
        struct cairn_digest key = lab_bits_digest(a, sizeof *a, &bytes);                                                           \
        enum cairn_status st = lab_bits_of->op(s, a, err);                                                                         \
                                                                                                                                   \
        if (st == CAIRN_OK && (st = cairn_stream_wait(s, err)) == CAIRN_OK)                                                        \
            lab_bits_tell(#op, key, lab_bits_digest(a, sizeof *a, &bytes), bytes);                                                 \
        return st;                                                                                                                 \
    }
CAIRN_OPS(LAB_BITS_OP)
#define LAB_BITS_ENTRY(op) .op = lab_bits_##op,
static const struct cairn_ops lab_bits = {CAIRN_OPS(LAB_BITS_ENTRY)};

/* The ops by which l is to call its device. */
static inline const struct cairn_ops *lab_bits_ops(const struct lab *l)
{
    const char *path = getenv("LAB_BITS");

    lab_bits_of = l->c.backend->ops;
    if (!path || !*path)
        return lab_bits_of;
    if (!lab_bits_file)
        lab_bits_file = fopen(path, "a");
    assert_non_null(lab_bits_file);
    fprintf(lab_bits_file, "numerics %s\n", l->c.numerics);
    return &lab_bits;
}

#endif
