/* pool_test.c - the cpu back-end's threads: every piece once, in any number, job after job, with sleeping workers, in a forked
 * child. The pool is not visible outside of its shared object, so its source is part of this program.
 */
#include "../../kernels/cpu/pool.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

struct count {
    atomic_int times[POOL_MAX_PIECES];
    atomic_int slots[64];
    int threads;
    atomic_int stray;
};

static void piece(void *ctx, int i, int slot)
{
    struct count *c = ctx;

    atomic_fetch_add(&c->times[i], 1);
    if (slot < 0 || slot >= c->threads)
        atomic_store(&c->stray, 1);
    else
        atomic_fetch_add(&c->slots[slot], 1);
}

static void each_piece_once(void **state)
{
    static const int threads[] = {1, 2, 3, 8}, pieces[] = {1, 2, 3, 7, 64, 1000, POOL_MAX_PIECES};
    static struct count c;

    (void)state;
    for (int t = 0; t < 4; t++) {
        struct pool *p = pool_create(threads[t]);

        assert_non_null(p);
        for (int k = 0; k < 7; k++) {
            memset(&c, 0, sizeof c);
            c.threads = threads[t];
            pool_run(p, pieces[k], piece, &c);
            for (int i = 0; i < POOL_MAX_PIECES; i++)
                assert_int_equal(atomic_load(&c.times[i]), i < pieces[k]);
            assert_int_equal(atomic_load(&c.stray), 0);
        }
        pool_destroy(p);
    }
    pool_destroy(NULL);
}

/* A slot is one thread: pieces that add to their slot's plain counter lose nothing. Jobs follow one another at once, or after the
 * workers went to sleep; each job has its own context on the stack, which a late worker would spoil. */
static void add(void *ctx, int i, int slot)
{
    long(*sum)[8] = ctx;

    sum[slot][0] += i;
}

static void many_jobs(void **state)
{
    struct pool *p = pool_create(4);

    (void)state;
    assert_non_null(p);
    for (int job = 0; job < 20000; job++) {
        long sum[4][8] = {{0}};
        int n = 1 + job % 37;

        pool_run(p, n, add, sum);
        assert_true(sum[0][0] + sum[1][0] + sum[2][0] + sum[3][0] == (long)n * (n - 1) / 2);
        if (job % 1000 == 0)
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    pool_destroy(p);
}

static void in_a_child(void **state)
{
    struct pool *p = pool_create(3);
    int status;
    pid_t pid;

    (void)state;
    assert_non_null(p);
    pid = fork();
    if (pid == 0) {
        long sum[3][8] = {{0}};

        alarm(10);
        pool_run(p, 100, add, sum);
        pool_destroy(p);
        _exit(sum[0][0] == 4950 ? 0 : 1);
    }
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    pool_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_piece_once), cmocka_unit_test(many_jobs),
                                       cmocka_unit_test(in_a_child)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
