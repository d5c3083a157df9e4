/* status_test.c - sentences: formatted from themselves, prefixed, errno mapped, NULL allowed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "base/status.h"

static void sentences(void **state)
{
    struct cairn_error err;
    char big[2000];

    (void)state;
    assert_int_equal(cairn_fail(&err, CAIRN_EDATA, "shard %d: %s", 3, "torn"), CAIRN_EDATA);
    assert_int_equal(err.code, CAIRN_EDATA);
    assert_int_equal(cairn_fail(&err, CAIRN_EIO, "again: %s", err.text), CAIRN_EIO);
    assert_string_equal(err.text, "again: shard 3: torn");
    assert_int_equal(cairn_error_prefix(&err, "rank %d", 2), CAIRN_EIO);
    assert_string_equal(err.text, "rank 2: again: shard 3: torn");
    assert_int_equal(cairn_fail_errno(&err, ENOSPC, "write %s", "x"), CAIRN_ENOSPACE);
    assert_string_equal(err.text, "write x: No space left on device");
    assert_int_equal(cairn_fail_errno(&err, EDQUOT, "x"), CAIRN_ENOSPACE);
    assert_int_equal(cairn_fail_errno(&err, EFBIG, "x"), CAIRN_ENOSPACE);
    assert_int_equal(cairn_fail_errno(&err, EACCES, "x"), CAIRN_EIO);
    assert_int_equal(cairn_fail(NULL, CAIRN_EBUG, "x"), CAIRN_EBUG);
    assert_int_equal(cairn_fail_errno(NULL, ENOSPC, "x"), CAIRN_ENOSPACE);
    memset(big, 'b', sizeof big);
    big[sizeof big - 1] = 0;
    cairn_fail(&err, CAIRN_EDATA, "%s", big);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_string_equal(cairn_status_name(CAIRN_ERECIPE), "ERECIPE");
    assert_string_equal(cairn_status_name((enum cairn_status)3), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sentences)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
