/* product_ahead_test.c - what was chosen is launched ahead by the next process, smaller: within its own memory, and without changing a bit of a
 * result, whatever the form, type, end and size; also while another shape is tried, with a cuBLASLt of another version, and without one.
 */
#include "lab.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct shape {
    enum cairn_form form;
    int batch, m, n, k, bf16;
    float alpha;
    int accumulate;
} shapes[] = {
    {CAIRN_NT, 1, 33, 523, 136, 0, 0.5f, 0}, {CAIRN_NT, 1, 257, 2056, 32, 0, 1, 0},  {CAIRN_NN, 1, 16, 520, 136, 1, 1, 1},
    {CAIRN_NT, 1, 16, 40, 2056, 0, 1, 1},    {CAIRN_NN, 3, 9, 136, 264, 0, 0.5f, 1}, {CAIRN_NT, 3, 7, 264, 136, 1, 1, 0},
};

enum { SHAPES = sizeof shapes / sizeof *shapes };

static uint16_t *noise(int64_t n, uint32_t r)
{
    uint16_t *x = malloc(sizeof *x * (size_t)n);

    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = lab_bf16((float)(int)((r = r * 1664525u + 1013904223u) >> 16) * 0x1p-15f - 1);
    return x;
}

static struct cairn_tensor on_device(struct cairn_compute *k, const struct shape *s, enum cairn_dtype type, int64_t rows, int64_t cols, const void *h)
{
    const int64_t dim[] = {s->batch, rows, cols};
    struct cairn_buffer *b;
    struct cairn_tensor t;
    struct cairn_error err;
    size_t bytes = (size_t)(s->batch * rows * cols) * cairn_dtype_size(type);

    assert_int_equal(cairn_buffer_create(k->dev, bytes, &b, &err), CAIRN_OK);
    assert_int_equal(cairn_tensor_view(&t, b, 0, type, s->batch > 1 ? 3 : 2, s->batch > 1 ? dim : dim + 1, &err), CAIRN_OK);
    assert_int_equal(cairn_tensor_set(&k->stream, &t, h, bytes, &err), CAIRN_OK);
    return t;
}

/* The shape's product; its result, malloc'ed. */
static void *product(struct cairn_compute *k, const struct shape *s, size_t *bytes)
{
    const enum cairn_dtype type = s->bf16 ? CAIRN_BF16 : CAIRN_F32;
    int64_t y = (int64_t)s->batch * s->m * s->n, most = (int64_t)s->batch * ((int64_t)s->m * s->k + (int64_t)s->n * s->k);
    uint16_t *a = noise(most, 5), *there = calloc((size_t)y, 4);
    struct cairn_matmul op = {.form = s->form, .alpha = s->alpha, .accumulate = s->accumulate, .segments = 1};
    struct cairn_error err;

    assert_non_null(there);
    op.x = on_device(k, s, CAIRN_BF16, s->m, s->k, a);
    op.w = on_device(k, s, CAIRN_BF16, s->form == CAIRN_NT ? s->n : s->k, s->form == CAIRN_NT ? s->k : s->n, a + (int64_t)s->batch * s->m * s->k);
    op.y = on_device(k, s, type, s->m, s->n, there);
    *bytes = (size_t)y * cairn_dtype_size(type);
    if (k->ops.matmul(&k->stream, &op, &err) != CAIRN_OK || cairn_tensor_get(&k->stream, &op.y, there, *bytes, &err) != CAIRN_OK)
        fail_msg("%s", err.text);
    cairn_buffer_destroy(op.x.buf);
    cairn_buffer_destroy(op.w.buf);
    cairn_buffer_destroy(op.y.buf);
    free(a);
    return there;
}

static void device_open(struct cairn_compute *k, const char *keep)
{
    const struct cairn_compute_opts o = {.backend = getenv("CAIRN_TEST_BACKEND"), .act = "bf16", .keep = keep};
    struct cairn_error err;

    if (cairn_compute_open(k, &o, &err) != CAIRN_OK)
        fail_msg("%s", err.text);
}

/* Shapes [first, SHAPES) on a device that keeps in `dir`, `wait_ms` after it was opened. */
static void all(const char *dir, int first, int wait_ms, void *const *want)
{
    struct cairn_compute k;

    device_open(&k, dir);
    usleep((useconds_t)wait_ms * 1000);
    for (int i = first; i < SHAPES; i++) {
        size_t bytes;
        void *y = product(&k, &shapes[i], &bytes);

        assert_memory_equal(y, want[i], bytes);
        free(y);
    }
    cairn_compute_close(&k);
}

static void empty(const char *dir)
{
    DIR *d = opendir(dir);
    char path[600];

    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
            assert_int_equal(unlink(path), 0);
        }
    closedir(d);
}

static void ahead(void **state)
{
    char dir[] = "/tmp/cairn-ahead.XXXXXX";
    void *want[SHAPES];
    struct cairn_compute k;

    (void)state;
    assert_non_null(mkdtemp(dir));
    device_open(&k, NULL);
    for (int i = 0; i < SHAPES; i++) {
        size_t bytes;

        want[i] = product(&k, &shapes[i], &bytes);
    }
    cairn_compute_close(&k);
    setenv("CAIRN_EMU_LT", "7", 1);
    all(dir, SHAPES / 2, 0, want); /* chooses half of them */
    all(dir, 0, 0, want);          /* and the others, with those under way */
    all(dir, 0, 500, want);        /* all are launched ahead */
    setenv("CAIRN_EMU_LT", "8", 1);
    all(dir, SHAPES / 2, 100, want); /* what was its is chosen anew */
    unsetenv("CAIRN_EMU_LT");
    all(dir, 0, 0, want); /* and there is none */
    empty(dir);
    rmdir(dir);
    for (int i = 0; i < SHAPES; i++)
        free(want[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ahead)};

    return LAB_RUN(tests);
}
