/* bench_test.c - the benchmark runs, reads back what it wrote, and leaves nothing behind. */
#include "tests/ckpt/helpers.h"

#include <dirent.h>

#include "ckpt/bench.h"

static void runs_and_cleans_up(void **state)
{
    struct cairn_ckpt_bench b;
    struct dirent *e;
    DIR *d;

    (void)state;
    ok(cairn_ckpt_bench_run(&b, scratch, 6 << 20, 5, 2, err));
    assert_int_equal(b.bytes, (6 << 20) / 5 / 2048 * 2048 * 5);
    assert_true(b.save_s > 0 && b.raw_save_s > 0 && b.load_s > 0 && b.raw_load_s > 0);
    assert_true(b.save_ratio > 0 && b.load_ratio > 0);
    d = opendir(scratch);
    assert_non_null(d);
    while ((e = readdir(d)))
        assert_true(e->d_name[0] == '.');
    closedir(d);
    fails(CAIRN_EBUG, "size", cairn_ckpt_bench_run(&b, scratch, 1, 0, 1, err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(runs_and_cleans_up)};

    return cmocka_run_group_tests(tests, scratch_up, scratch_down);
}
