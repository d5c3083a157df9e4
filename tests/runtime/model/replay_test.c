/* replay_test.c - when work is run, recorded and replayed, on a device that counts and fails when it is told to. That a real one's
 * graphs give the same bits is decode_test's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "model/replay.h"

static struct {
    int capturing, alive, begun, launched, refuse_begin, refuse_end;
    int ran; /* work that ran: outside of a capture, and by a launch */
} dev;

static enum cairn_status begin(struct cairn_device *d, void *s, struct cairn_error *err)
{
    (void)d, (void)s;
    assert_false(dev.capturing);
    if (dev.refuse_begin)
        return cairn_fail(err, CAIRN_EDEVICE, "no captures today");
    dev.capturing = 1;
    dev.begun++;
    return CAIRN_OK;
}

static enum cairn_status end(struct cairn_device *d, void *s, void **graph, struct cairn_error *err)
{
    (void)d, (void)s;
    assert_true(dev.capturing);
    dev.capturing = 0;
    if (dev.refuse_end)
        return cairn_fail(err, CAIRN_EDEVICE, "the capture was spoiled");
    if (graph) {
        *graph = malloc(1);
        dev.alive++;
    }
    return CAIRN_OK;
}

static enum cairn_status launch(struct cairn_device *d, void *graph, void *s, struct cairn_error *err)
{
    (void)d, (void)s, (void)err;
    assert_non_null(graph);
    assert_false(dev.capturing);
    dev.launched++;
    dev.ran++;
    return CAIRN_OK;
}

static void drop(struct cairn_device *d, void *graph)
{
    (void)d;
    free(graph);
    dev.alive--;
}

static const struct cairn_device_ops with = {.capture_begin = begin, .capture_end = end, .graph_launch = launch, .graph_destroy = drop},
                                     without = {0};
static struct cairn_device device = {.name = "counting"};
static struct cairn_stream stream = {.dev = &device};
static struct cairn_error err;

static enum cairn_status work(void *arg, struct cairn_error *e)
{
    int *left = arg; /* times until it fails; negative: never */

    if (!dev.capturing)
        dev.ran++;
    if (left && !(*left)--)
        return cairn_fail(e, CAIRN_EBUG, "enough");
    return CAIRN_OK;
}

static struct cairn_replay *fresh(const struct cairn_device_ops *ops)
{
    struct cairn_replay *r;

    dev = (__typeof__(dev)){0};
    device.ops = ops;
    assert_int_equal(cairn_replay_create(&r, &stream, &err), CAIRN_OK);
    return r;
}

static void run(struct cairn_replay *r, int64_t n)
{
    const struct cairn_replay_key key = {{n, 7}};
    int before = dev.ran;

    assert_int_equal(cairn_replay_run(r, &key, work, NULL, &err), CAIRN_OK);
    assert_int_equal(dev.ran, before + 1); /* once, however */
}

static void often(void **state)
{
    struct cairn_replay *r = fresh(&with);

    (void)state;
    run(r, 4);
    run(r, 4);
    assert_int_equal(dev.begun, 0);
    run(r, 4);
    assert_int_equal(dev.begun, 1);
    assert_int_equal(dev.launched, 1);
    run(r, 5); /* another key begins anew */
    run(r, 4);
    assert_int_equal(dev.begun, 1);
    assert_int_equal(dev.launched, 2);
    assert_int_equal(cairn_replay_stats(r).run, 3);
    assert_int_equal(cairn_replay_stats(r).recorded, 1);
    assert_int_equal(cairn_replay_stats(r).launched, 2);
    cairn_replay_forget(r);
    assert_int_equal(dev.alive, 0);
    run(r, 4);
    assert_int_equal(dev.launched, 2);
    cairn_replay_destroy(r);
}

static void full(void **state)
{
    struct cairn_replay *r = fresh(&with);
    int most;

    (void)state;
    for (int64_t n = 0; n < 1000; n++)
        for (int i = 0; i < 3; i++) {
            run(r, n);
            run(r, -1); /* used all the time: stays */
        }
    most = dev.alive;
    assert_in_range(most, 16, 512);
    assert_int_equal(dev.begun, 1001);
    for (int64_t n = 999; n > 999 - most + 1; n--) /* the latest are there */
        run(r, n);
    assert_int_equal(dev.begun, 1001);
    run(r, 0); /* gone */
    assert_int_equal(dev.alive, most - 1);
    cairn_replay_destroy(r);
    assert_int_equal(dev.alive, 0);
}

/* A device that cannot: told, and everything runs as it is. */
static void refused(void **state)
{
    (void)state;
    for (int where = 0; where < 2; where++) {
        struct cairn_replay *r = fresh(&with);

        for (int i = 0; i < 3; i++)
            run(r, 1);
        assert_int_equal(dev.alive, 1);
        dev.refuse_begin = !where;
        dev.refuse_end = where;
        for (int i = 0; i < 5; i++)
            run(r, 2);
        assert_int_equal(dev.alive, 0);
        dev.refuse_begin = dev.refuse_end = 0;
        for (int i = 0; i < 5; i++)
            run(r, 1);
        assert_int_equal(dev.launched, 1);
        cairn_replay_destroy(r);
    }
}

/* Work that fails fails, also while it is recorded. */
static void failing(void **state)
{
    struct cairn_replay *r = fresh(&with);
    const struct cairn_replay_key key = {{3}};
    int left = 2;

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(cairn_replay_run(r, &key, work, &left, &err), CAIRN_OK);
    left = 0;
    dev.ran = 0;
    assert_int_equal(cairn_replay_run(r, &key, work, &left, &err), CAIRN_OK); /* failed when recorded, then ran by itself */
    assert_int_equal(dev.ran, 1);
    assert_false(dev.capturing);
    left = 0;
    assert_int_equal(cairn_replay_run(r, &key, work, &left, &err), CAIRN_EBUG);
    cairn_replay_destroy(r);
}

static void none(void **state)
{
    struct cairn_replay *r = fresh(&without);

    (void)state;
    assert_null(r);
    for (int i = 0; i < 5; i++)
        run(r, 1);
    assert_int_equal(cairn_replay_stats(r).launched, 0);
    assert_int_equal(cairn_capture_begin(&stream, &err), CAIRN_EBUG);
    cairn_replay_forget(r);
    cairn_replay_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(often), cmocka_unit_test(full), cmocka_unit_test(refused), cmocka_unit_test(failing),
                                       cmocka_unit_test(none)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
