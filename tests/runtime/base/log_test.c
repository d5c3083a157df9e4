/* log_test.c - lines on a stderr that is no terminal, and event files as a reader finds them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

/* What fn writes to stderr; caller frees. */
static char *stderr_of(void (*fn)(void))
{
    char path[] = "/tmp/cairn-log-XXXXXX", *p = NULL;
    int fd = mkstemp(path), old = dup(STDERR_FILENO);
    size_t n;

    dup2(fd, STDERR_FILENO);
    fn();
    dup2(old, STDERR_FILENO);
    close(old);
    close(fd);
    assert_int_equal(cairn_file_read(path, 1 << 20, &p, &n, NULL), CAIRN_OK);
    unlink(path);
    return p;
}

static void say(void)
{
    cairn_info("loaded %d tensors", 3);
    cairn_warn("late");
}

static void quiet(void)
{
    cairn_log_quiet(1);
    say();
    assert_null(cairn_progress_begin("rollout", "tokens", 10, 1));
    cairn_progress_at(NULL, 1);
    cairn_progress_end(NULL);
    cairn_log_quiet(0);
}

static void progress_of_much(void)
{
    struct cairn_progress *p = cairn_progress_begin("load", "bytes", 0, 10);

    cairn_progress_at(p, INT64_MAX / 2);
    cairn_progress_end(p);
}

static void progress(void)
{
    struct cairn_progress *p = cairn_progress_begin("rollout", "tokens", 100, 0.02);

    cairn_progress_at(p, 10); /* not due */
    cairn_sleep_s(0.03);
    cairn_progress_at(p, 50);
    cairn_progress_at(p, 60); /* not due */
    cairn_progress_end(p);
}

static void messages(void **state)
{
    char *p;

    (void)state;
    cairn_log_init("cairn-train", 0);
    p = stderr_of(say);
    assert_string_equal(p, "cairn-train: loaded 3 tensors\ncairn-train: warning: late\n");
    free(p);
    p = stderr_of(quiet);
    assert_string_equal(p, "cairn-train: warning: late\n");
    free(p);
    cairn_log_init("cairn-train", 3);
    p = stderr_of(say);
    assert_string_equal(p, "cairn-train[3]: warning: late\n");
    free(p);
    cairn_log_init("cairn-train", 0);
    p = stderr_of(progress);
    assert_non_null(strstr(p, "cairn-train: rollout 50/100 tokens"));
    assert_non_null(strstr(p, "cairn-train: rollout 60/100 tokens"));
    assert_null(strstr(p, " 10/100"));
    assert_null(strchr(p, '\r'));
    assert_non_null(strstr(p, " tokens/s, 0:0")); /* a rate has a unit */
    free(p);
    p = stderr_of(progress_of_much);
    assert_non_null(strstr(p, "cairn-train: load 4611686018427387903 bytes, "));
    assert_non_null(strstr(p, " Mbytes/s, 0:0"));
    free(p);
}

static void events(void **state)
{
    char path[] = "/tmp/cairn-events-XXXXXX", *p;
    struct cairn_error err;
    struct cairn_events *e;
    struct cairn_jsonl *r;
    const json_t *v;
    int fd = mkstemp(path);
    size_t n;

    (void)state;
    assert_int_equal(write(fd, "{\"t\":1}\n{\"t\":", 13), 13); /* a process died within its last line */
    close(fd);
    assert_int_equal(cairn_events_open(&e, path, &err), CAIRN_OK);
    cairn_events_base(e, json_pack("{s:i,s:s}", "attempt", 2, "job", "77"));
    cairn_event(e, "update", "train", 4, json_pack("{s:f,s:s,s:i}", "loss", 0.5, "note", "a\nb", "step", 99));
    cairn_event(e, "end", "train", 4, NULL);
    cairn_events_close(e);
    assert_int_equal(cairn_file_read(path, 1 << 20, &p, &n, &err), CAIRN_OK);
    assert_non_null(
        strstr(p, ",\"attempt\":2,\"job\":\"77\",\"stage\":\"train\",\"rank\":0,\"step\":4,\"ev\":\"update\",\"loss\":0.5,\"note\":\"a\\nb\"}\n"));
    free(p);
    assert_int_equal(cairn_jsonl_open(&r, path, &err), CAIRN_OK);
    assert_int_equal(cairn_jsonl_next(r, &v, &err), CAIRN_OK);
    assert_int_equal(cairn_jsonl_next(r, &v, &err), CAIRN_EDATA); /* only the torn line is lost */
    assert_int_equal(cairn_jsonl_next(r, &v, &err), CAIRN_OK);
    assert_int_equal(json_integer_value(json_object_get(v, "step")), 4);
    assert_true(json_number_value(json_object_get(v, "t")) > 1.6e9);
    assert_int_equal(cairn_jsonl_next(r, &v, &err), CAIRN_OK);
    assert_string_equal(json_string_value(json_object_get(v, "ev")), "end");
    assert_int_equal(cairn_jsonl_next(r, &v, &err), CAIRN_OK);
    assert_null(v);
    cairn_jsonl_close(r);
    unlink(path);
    assert_int_equal(cairn_events_open(&e, "/nowhere/x.jsonl", &err), CAIRN_EIO);
    cairn_event(NULL, "x", "y", 0, json_object());
    cairn_events_base(NULL, json_object());
    cairn_events_close(NULL);
}

static void lose(void)
{
    struct cairn_events *e;

    assert_int_equal(cairn_events_open(&e, "/dev/full", NULL), CAIRN_OK);
    cairn_event(e, "a", "train", 1, NULL);
    cairn_event(e, "b", "train", 1, NULL);
    cairn_events_close(e);
}

static void lost_events_are_told_once(void **state)
{
    char *p = stderr_of(lose);

    (void)state;
    assert_string_equal(p, "cairn-train: warning: /dev/full: events are being lost: No space left on device\n");
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages),
        cmocka_unit_test(events),
        cmocka_unit_test(lost_events_are_told_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
