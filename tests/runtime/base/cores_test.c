/* cores_test.c - cores are held against coreutils' nproc, whole and cut to one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <stdio.h>

#include "base/cores.h"

static int nproc(void)
{
    FILE *f = popen("env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc", "r");
    int n = 0;

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &n), 1);
    assert_int_equal(pclose(f), 0);
    return n;
}

static void whole(void **state)
{
    (void)state;
    assert_int_equal(cairn_cores(), nproc());
}

static void cut_to_one(void **state)
{
    cpu_set_t all, one;
    int first = 0, here = cairn_cores_here();

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(cairn_cores(), 1);
    assert_int_equal(nproc(), 1);
    assert_int_equal(cairn_cores_here(), here);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole), cmocka_unit_test(cut_to_one)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
