/* upload_test.c - bytes to a device by several cores: every byte, at sizes around those of pieces; what does not fit is refused; a piece that cannot
 * be had ends it. */
#include "lab.h"

#include <stdlib.h>
#include <string.h>

#include "base/upload.h"

struct from {
    const unsigned char *h_p;
    size_t bad; /* the piece with this byte cannot be had */
};

static enum cairn_status fill(void *arg, size_t at, size_t n, void *h_dst, struct cairn_error *err)
{
    const struct from *f = arg;

    if (at % CAIRN_UPLOAD_PIECE)
        return cairn_fail(err, CAIRN_EBUG, "a piece begins at %zu", at);
    if (f->bad - at < n)
        return cairn_fail(err, CAIRN_EDATA, "byte %zu is not to be had", f->bad);
    memcpy(h_dst, f->h_p + at, n);
    return CAIRN_OK;
}

static void there(struct lab *l)
{
    static const size_t sizes[] = {0, 1, 4095, (4 << 20) + 1, (40 << 20) + 12345, 36 << 20};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i], room = n + 100;
        const int64_t all = (int64_t)room;
        unsigned char *h = malloc(room), *got = malloc(room);
        struct cairn_buffer *buf;
        struct cairn_tensor t;
        struct cairn_error err;

        for (size_t k = 0; k < room; k++)
            h[k] = (unsigned char)(k * 2654435761u >> 24 ^ k);
        assert_int_equal(cairn_buffer_create(l->c.stream.dev, room, &buf, &err), CAIRN_OK);
        assert_int_equal(cairn_tensor_view(&t, buf, 0, CAIRN_U8, 1, &all, &err), CAIRN_OK);
        memset(got, 0x55, room);
        assert_int_equal(cairn_tensor_set(&l->c.stream, &t, got, room, &err), CAIRN_OK);
        assert_int_equal(cairn_upload(&l->c.stream, buf, n, fill, &(struct from){h, SIZE_MAX}, &err), CAIRN_OK);
        assert_int_equal(cairn_tensor_get(&l->c.stream, &t, got, room, &err), CAIRN_OK);
        assert_memory_equal(got, h, n);
        for (size_t k = n; k < room; k++) /* and nothing behind it */
            assert_int_equal(got[k], 0x55);
        assert_int_equal(cairn_upload(&l->c.stream, buf, room + 1, fill, &(struct from){h, SIZE_MAX}, &err), CAIRN_EBUG);
        if (n) {
            assert_int_equal(cairn_upload(&l->c.stream, buf, n, fill, &(struct from){h, n - 1}, &err), CAIRN_EDATA);
            assert_non_null(strstr(err.text, "not to be had"));
        }
        cairn_buffer_destroy(buf);
        free(h);
        free(got);
    }
}

ON_EACH_DEVICE(there)

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(there_test)};

    return LAB_RUN(tests);
}
