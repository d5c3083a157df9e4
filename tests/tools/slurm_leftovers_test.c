/* slurm_leftovers_test.c - only what killed ranks of ours left is removed: made by hand, aged, mapped, of others. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "slurm/leftovers.h"

static const struct {
    const char *front, *host; /* host NULL: this one */
    int uid_off, old, mapped, stays;
    const char *why;
} cases[] = {
    {"vader_segment", NULL, 0, 1, 0, 0, "nobody maps it"},
    {"sm_segment", NULL, 0, 1, 0, 0, "Open MPI 5's name"},
    {"vader_segment", NULL, 0, 0, 0, 1, "made just now: its maker may be about to map it"},
    {"vader_segment", NULL, 0, 1, 1, 1, "somebody maps it"},
    {"vader_segment", "another-host", 0, 1, 0, 1, "of another host"},
    {"vader_segment", NULL, 1, 1, 0, 1, "of another user"},
    {"other_segment", NULL, 0, 1, 0, 1, "not Open MPI's"},
};
#define N (sizeof cases / sizeof *cases)

static void sweeps_what_nobody_maps(void **state)
{
    char dir[] = "/tmp/cairn-leftovers-XXXXXX", path[N][400], host[200] = "";
    const struct timespec old[2] = {{time(NULL) - 3600, 0}, {time(NULL) - 3600, 0}};
    void *map = MAP_FAILED;
    int gone = 0;

    (void)state;
    gethostname(host, sizeof host - 1);
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < N; i++) {
        int fd;

        snprintf(path[i], sizeof path[i], "%s/%s.%s.%ld.25985fb5.%zu", dir, cases[i].front, cases[i].host ? cases[i].host : host,
                 (long)getuid() + cases[i].uid_off, i);
        fd = open(path[i], O_RDWR | O_CREAT | O_EXCL, 0600);
        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, 4096), 0);
        if (cases[i].mapped) {
            map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
            assert_true(map != MAP_FAILED);
        }
        close(fd);
        if (cases[i].old)
            assert_int_equal(utimensat(AT_FDCWD, path[i], old, 0), 0);
        gone += !cases[i].stays;
    }
    assert_int_equal(cairn_leftovers_sweep(dir), gone);
    for (size_t i = 0; i < N; i++)
        if (cairn_path_exists(path[i]) != cases[i].stays)
            fail_msg("%s: %s", path[i], cases[i].why);
    assert_int_equal(munmap(map, 4096), 0);
    assert_int_equal(cairn_leftovers_sweep(dir), 1); /* now nobody maps that one either */
    assert_int_equal(cairn_leftovers_sweep("/nowhere"), 0);
    assert_int_equal(cairn_tree_remove(dir, NULL), CAIRN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sweeps_what_nobody_maps)};

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
