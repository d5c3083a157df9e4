/* branch_test.c - a branch waits for what was enqueued before its fork, the call waits for it at the join, on a device that counts; and
 * where there is no branch, both are one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "model/call.h"

static char trace[256]; /* what the device was asked for, in order: S stream, E event, r<event><stream> recorded, w<event><stream> waited */
static uintptr_t given;

static void note(char what, const void *event, const void *stream)
{
    size_t n = strlen(trace);

    if (n + 4 >= sizeof trace)
        fail_msg("too much is asked for");
    trace[n++] = what;
    if (event)
        trace[n++] = (char)('0' + (uintptr_t)event);
    if (stream)
        trace[n++] = (char)('0' + (uintptr_t)stream);
    trace[n] = 0;
}

static enum cairn_status make_stream(struct cairn_device *dev, void **impl, struct cairn_error *err)
{
    (void)dev, (void)err;
    *impl = (void *)++given;
    note('S', NULL, NULL);
    return CAIRN_OK;
}

static int events_left;

static enum cairn_status make_event(struct cairn_device *dev, void **impl, struct cairn_error *err)
{
    (void)dev;
    if (!events_left--)
        return cairn_fail(err, CAIRN_EDEVICE, "no more events");
    *impl = (void *)++given;
    note('E', NULL, NULL);
    return CAIRN_OK;
}

static void drop(struct cairn_device *dev, void *impl)
{
    (void)dev, (void)impl;
    note('-', NULL, NULL);
}

static enum cairn_status record(struct cairn_device *dev, void *event, void *stream, struct cairn_error *err)
{
    (void)dev, (void)err;
    note('r', event, stream);
    return CAIRN_OK;
}

static enum cairn_status wait_for(struct cairn_device *dev, void *event, void *stream, struct cairn_error *err)
{
    (void)dev, (void)err;
    note('w', event, stream);
    return CAIRN_OK;
}

static const struct cairn_device_ops ops = {.stream_create = make_stream,
                                            .stream_destroy = drop,
                                            .event_create = make_event,
                                            .event_destroy = drop,
                                            .event_record = record,
                                            .event_wait = wait_for};

static void test_fork_and_join(void **state)
{
    struct cairn_device dev = {.name = "counted", .ops = &ops};
    struct cairn_compute k = {.dev = &dev, .stream = {&dev, (void *)9}};
    struct cairn_call c = {.k = &k, .n = 5}, side;
    struct cairn_branch *b = NULL;
    struct cairn_error err;

    (void)state;
    trace[0] = 0, given = 0, events_left = 2;
    assert_int_equal(cairn_branch_fork(&c, &side, &err), CAIRN_OK); /* none: the call itself */
    assert_ptr_equal(side.k, &k);
    assert_int_equal(cairn_branch_join(&c, &side, &err), CAIRN_OK);
    assert_string_equal(trace, "");
    assert_int_equal(cairn_branch_create(&b, &k, &err), CAIRN_OK); /* stream 1, events 2 and 3 */
    c.branch = b;
    assert_int_equal(cairn_branch_fork(&c, &side, &err), CAIRN_OK);
    assert_ptr_equal(side.k->stream.impl, (void *)1);
    assert_int_equal(side.n, 5);
    assert_null(side.branch);
    assert_int_equal(cairn_branch_join(&c, &side, &err), CAIRN_OK);
    cairn_branch_destroy(b);
    assert_string_equal(trace, "SEEr29w21r31w39---");
}

static void test_fails_whole(void **state)
{
    struct cairn_device dev = {.name = "counted", .ops = &ops};
    struct cairn_compute k = {.dev = &dev, .stream = {&dev, (void *)9}};
    struct cairn_branch *b = (void *)1;
    struct cairn_error err;

    (void)state;
    trace[0] = 0, given = 0, events_left = 1;
    assert_int_equal(cairn_branch_create(&b, &k, &err), CAIRN_EDEVICE);
    assert_null(b);
    assert_string_equal(trace, "SE--");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fork_and_join), cmocka_unit_test(test_fails_whole)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
