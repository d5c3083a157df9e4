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

/* What glibc's dlerror() says: an object that is missing or broken is unfit, one that there was no memory for is not. */
static void objects(void **state)
{
    static const struct {
        const char *why;
        enum cairn_status code;
    } cases[] = {
        {"x.so: cannot open shared object file: No such file or directory", CAIRN_EDEVICE},
        {"x.so: undefined symbol: cairn_x", CAIRN_EDEVICE},
        {"x.so: cannot allocate memory in static TLS block", CAIRN_EDEVICE},
        {"out of memory", CAIRN_ENOSPACE},
        {"x.so: cannot create shared object descriptor: Cannot allocate memory", CAIRN_ENOSPACE},
        {"x.so: failed to map segment from shared object: Cannot allocate memory", CAIRN_ENOSPACE},
        {NULL, CAIRN_ENOSPACE},
    };
    struct cairn_error err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(cairn_fail_dl(&err, CAIRN_EDEVICE, cases[i].why, "cannot open %s", "it"), cases[i].code);
        assert_int_equal(err.code, cases[i].code);
        assert_ptr_equal(strstr(err.text, "cannot open it: "), err.text);
        assert_non_null(strstr(err.text, cases[i].why ? cases[i].why : "out of memory"));
    }
    assert_int_equal(cairn_fail_dl(NULL, CAIRN_ERECIPE, "x.so: not an ELF file", "x"), CAIRN_ERECIPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sentences), cmocka_unit_test(objects)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
