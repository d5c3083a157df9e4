/* build_test.c - the test lies in build/tests, so its install directory is build. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/build.h"
#include "base/file.h"
#include "base/str.h"

static void places(void **state)
{
    char *p, *bin;

    (void)state;
    unsetenv("CAIRN_LIB_DIR");
    assert_true(strlen(cairn_build_version()) > 0);
    assert_non_null(cairn_install_dir());
    bin = cairn_format("%s/tests/build_test", cairn_install_dir());
    assert_true(cairn_path_exists(bin));
    free(bin);
    p = cairn_lib_path("cairn-mpi.so");
    assert_true(p[0] == '/');
    assert_true(cairn_starts_with(p, cairn_install_dir()));
    assert_true(cairn_ends_with(p, "/lib/cairn-mpi.so"));
    free(p);
    setenv("CAIRN_LIB_DIR", "/opt/x", 1);
    p = cairn_lib_path("a.so");
    assert_string_equal(p, "/opt/x/a.so");
    free(p);
    setenv("CAIRN_LIB_DIR", "", 1);
    p = cairn_lib_path("a.so");
    assert_true(cairn_starts_with(p, cairn_install_dir()));
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(places)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
