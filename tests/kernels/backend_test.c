/* backend_test.c - opening back-ends, the guard's promise, options and their sentences. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/backend.h"

static void opens(void **state)
{
    static const struct {
        struct cairn_compute_opts o;
        enum cairn_status st;
        const char *device, *numerics; /* or a part of the sentence */
    } cases[] = {
        {{.backend = "cpu"}, CAIRN_OK, "cpu", "cpu f32 fma ops1"},
        {{.backend = "guard"}, CAIRN_OK, "guard", "cpu f32 fma ops1"},
        {{.backend = "cpu", .act = "f32"}, CAIRN_OK, "cpu", "cpu f32 fma ops1"},
        {{.backend = "cpu", .act = "bf16"}, CAIRN_OK, "cpu", "cpu bf16 fma ops1"},
        {{.backend = "cpu", .reference = 1}, CAIRN_OK, "cpu", "cpu f32 fma ops1 reference"},
        {{.backend = "cpu", .dsa = "reference"}, CAIRN_OK, "cpu", "cpu f32 fma ops1 dsa=reference"},
        {{.backend = "cpu", .dsa = "fused"}, CAIRN_OK, "cpu", "cpu f32 fma ops1"},
        {{.backend = "cpu", .dsa = "fussed"}, CAIRN_ERECIPE, NULL, "fussed"},
        {{.backend = "tpu"}, CAIRN_EDEVICE, NULL, "auto, cpu, guard, cuda"},
        {{.backend = "cpu", .rank = 1}, CAIRN_OK, "cpu", "cpu f32 fma ops1"},
        {{.backend = "cpu", .act = "f32"}, CAIRN_OK, "cpu", "cpu f32 fma ops1"},
        {{.backend = "cpu", .act = "f8e4m3"}, CAIRN_EDEVICE, NULL, "f8e4m3"},
        {{.backend = "cpu", .act = "f64x"}, CAIRN_ERECIPE, NULL, "f64x"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cairn_compute c;
        struct cairn_error err;
        enum cairn_status st = cairn_compute_open(&c, &cases[i].o, &err);

        if (st != cases[i].st)
            fail_msg("case %zu: status %d: %s", i, st, err.text);
        if (st == CAIRN_OK) {
            assert_string_equal(c.dev->name, cases[i].device);
            assert_string_equal(c.numerics, cases[i].numerics);
            assert_int_equal(c.act, cases[i].o.act && !strcmp(cases[i].o.act, "bf16") ? CAIRN_BF16 : CAIRN_F32);
            assert_int_equal(c.ops.attention == c.backend->reference->attention,
                             cases[i].o.reference || (cases[i].o.dsa && cases[i].o.dsa[0] == 'r'));
            assert_int_equal(c.ops.matmul == c.backend->reference->matmul, cases[i].o.reference);
            cairn_compute_close(&c);
        } else {
            assert_non_null(strstr(err.text, cases[i].numerics));
            assert_null(c.dev);
        }
    }
}

static void automatic(void **state)
{
    struct cairn_compute c;
    struct cairn_error err;

    (void)state;
    assert_int_equal(cairn_compute_open(&c, NULL, &err), CAIRN_OK);
    assert_true(c.backend->threads(c.dev) >= 1);
    c.backend->set_threads(c.dev, 3);
    assert_int_equal(c.backend->threads(c.dev), 3);
    cairn_compute_close(&c);
    setenv("CAIRN_CPU_ISA", "x86-64-v9", 1);
    assert_int_equal(cairn_compute_open(&c, &(struct cairn_compute_opts){.backend = "cpu"}, &err), CAIRN_EDEVICE);
    assert_non_null(strstr(err.text, "x86-64-v9"));
    unsetenv("CAIRN_CPU_ISA");
}

/* Does a child that runs `body` die of a segmentation fault? */
static int dies(void (*body)(struct cairn_buffer *), struct cairn_buffer *b)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL); /* cmocka has its own */
        body(b);
        _exit(0);
    }
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

static void read_inside(struct cairn_buffer *b)
{
    volatile char *p = cairn_buffer_open(b, CAIRN_READ);

    (void)p[0];
    cairn_buffer_close(b);
}
static void write_inside(struct cairn_buffer *b)
{
    volatile char *p = cairn_buffer_open(b, CAIRN_WRITE);

    p[999] = 1;
    cairn_buffer_close(b);
}
static void write_in_nested(struct cairn_buffer *b)
{
    volatile char *p = cairn_buffer_open(b, CAIRN_READ);

    cairn_buffer_open(b, CAIRN_WRITE);
    cairn_buffer_close(b);
    p[0] = 1; /* the outer bracket is still open: counted, not forgotten */
    cairn_buffer_close(b);
}
static void read_outside(struct cairn_buffer *b)
{
    volatile char *p = cairn_buffer_open(b, CAIRN_READ);

    cairn_buffer_close(b);
    (void)p[0];
}
static void write_while_reading(struct cairn_buffer *b)
{
    volatile char *p = cairn_buffer_open(b, CAIRN_READ);

    p[0] = 1;
}
static void read_beyond(struct cairn_buffer *b)
{
    volatile char *p = cairn_buffer_open(b, CAIRN_READ);

    (void)p[1000 + 64];
}

static void guard(void **state)
{
    struct cairn_compute c;
    struct cairn_error err;
    struct cairn_buffer *b = NULL;
    unsigned char *p;

    (void)state;
    assert_int_equal(cairn_compute_open(&c, &(struct cairn_compute_opts){.backend = "guard"}, &err), CAIRN_OK);
    assert_int_equal(cairn_buffer_create(c.dev, 1000, &b, &err), CAIRN_OK);
    p = cairn_buffer_open(b, CAIRN_READ);
    assert_int_equal((uintptr_t)p % 64, 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(p[i], 0xff);
    cairn_buffer_close(b);
    assert_false(dies(read_inside, b));
    assert_false(dies(write_inside, b));
    assert_false(dies(write_in_nested, b));
    assert_true(dies(read_outside, b));
    assert_true(dies(write_while_reading, b));
    assert_true(dies(read_beyond, b));
    cairn_buffer_destroy(b);
    assert_int_equal(cairn_buffer_create(c.dev, (size_t)1 << 62, &b, &err), CAIRN_ENOSPACE);
    cairn_compute_close(&c);
}

static void another_device(void **state)
{
    struct cairn_compute a, b;
    struct cairn_error err;
    struct cairn_buffer *x, *y;
    struct cairn_axpby op = {.a = 1, .b = 0};
    const int64_t n = 4;

    (void)state;
    assert_int_equal(cairn_compute_open(&a, &(struct cairn_compute_opts){.backend = "cpu"}, &err), CAIRN_OK);
    assert_int_equal(cairn_compute_open(&b, &(struct cairn_compute_opts){.backend = "guard"}, &err), CAIRN_OK);
    assert_int_equal(cairn_buffer_create(a.dev, 16, &x, &err), CAIRN_OK);
    assert_int_equal(cairn_buffer_create(b.dev, 16, &y, &err), CAIRN_OK);
    assert_int_equal(cairn_tensor_view(&op.x, x, 0, CAIRN_F32, 1, &n, &err), CAIRN_OK);
    assert_int_equal(cairn_tensor_view(&op.y, y, 0, CAIRN_F32, 1, &n, &err), CAIRN_OK);
    assert_int_equal(a.ops.axpby(&a.stream, &op, &err), CAIRN_EBUG);
    assert_string_equal(err.text, "axpby: y lives on another device");
    cairn_buffer_destroy(x);
    cairn_buffer_destroy(y);
    cairn_compute_close(&a);
    cairn_compute_close(&b);
}

/* An op on bf16 is the op on f32 with its output rounded; a device of f32 refuses. x (3, 2, 4) strided, y in place. */
static void bf16(void **state)
{
    struct cairn_compute c, wide;
    struct cairn_error err;
    struct cairn_buffer *b, *w;
    struct cairn_axpby op = {.a = 0.3f, .b = 0};
    const struct cairn_compute_opts o = {.backend = "guard", .act = "bf16"};
    uint16_t *h, before[64];
    float *f;

    (void)state;
    assert_int_equal(cairn_compute_open(&c, &o, &err), CAIRN_OK);
    assert_int_equal(cairn_compute_open(&wide, &(struct cairn_compute_opts){.backend = "cpu"}, &err), CAIRN_OK);
    assert_int_equal(cairn_buffer_create(c.dev, sizeof before, &b, &err), CAIRN_OK);
    assert_int_equal(cairn_buffer_create(wide.dev, 4, &w, &err), CAIRN_OK);
    h = cairn_buffer_open(b, CAIRN_WRITE);
    for (int i = 0; i < 64; i++)
        h[i] = before[i] = (uint16_t)(0x3f80 + 37 * i); /* 1 and above */
    cairn_buffer_close(b);
    op.x = (struct cairn_tensor){b, 4, CAIRN_BF16, 3, {3, 2, 4}, {20, 8, 1}};
    op.y = op.x;
    assert_int_equal(c.ops.axpby(&c.stream, &op, &err), CAIRN_OK);
    h = cairn_buffer_open(b, CAIRN_READ);
    for (int i = 0; i < 64; i++) {
        int at = i - 2, inside = at >= 0 && at / 20 < 3 && at % 20 / 8 < 2 && at % 20 % 8 < 4;
        uint32_t bits = (uint32_t)before[i] << 16;
        float x;

        memcpy(&x, &bits, 4);
        x *= 0.3f;
        memcpy(&bits, &x, 4);
        bits += 0x7fff + (bits >> 16 & 1);
        assert_int_equal(h[i], inside ? bits >> 16 : before[i]);
    }
    cairn_buffer_close(b);
    op.x = op.y = (struct cairn_tensor){w, 0, CAIRN_BF16, 1, {2}, {1}};
    f = cairn_buffer_open(w, CAIRN_WRITE);
    *f = 0;
    cairn_buffer_close(w);
    assert_int_equal(wide.ops.axpby(&wide.stream, &op, &err), CAIRN_EBUG);
    assert_string_equal(err.text, "axpby: x has type bf16");
    cairn_buffer_destroy(b);
    cairn_buffer_destroy(w);
    cairn_compute_close(&c);
    cairn_compute_close(&wide);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens), cmocka_unit_test(automatic),      cmocka_unit_test(guard),
        cmocka_unit_test(bf16),  cmocka_unit_test(another_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
