/* attempt_race_test.c - attempts as processes: killed anywhere, racing, stopped and woken; exactly one publishes. */
#include "attempts.h"

#include <signal.h>
#include <time.h>

#include "base/clock.h"

static pid_t spawn(const char *dir, const char *lane, int salt)
{
    pid_t pid;

    fflush(NULL);
    if (!(pid = fork())) {
        struct cairn_error err;

        _exit((int)run_attempt(dir, lane, salt, NULL, &err));
    }
    return pid;
}

static void pause_us(long us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000};

    nanosleep(&t, NULL);
}

/* Microseconds that an attempt takes when nobody kills it; under a sanitizer many times more than without. */
static long undisturbed_us(void)
{
    double t0 = cairn_now_s();
    pid_t pid = spawn(at("undisturbed"), NULL, 3);
    int status;

    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return (long)((cairn_now_s() - t0) * 1e6) + 1;
}

/* kill -9 at random moments; after each, the artefact is either committed and right, or another attempt goes on. */
static void killed_anywhere(void **state)
{
    uint64_t seed = 42;
    int kills = 0, dirs = 0, mid = 0;
    long whole = undisturbed_us();

    (void)state;
    for (; kills < 100; dirs++) {
        char dir[32];
        int status;

        snprintf(dir, sizeof dir, "kill%d", dirs);
        for (int attempt = 0; !cairn_artefact_committed(at(dir)); attempt++) {
            pid_t pid = spawn(at(dir), NULL, 3);

            if (attempt < 3) {
                pause_us((long)(mix(&seed) % (uint64_t)whole));
                kill(pid, SIGKILL);
            }
            waitpid(pid, &status, 0);
            if (WIFSIGNALED(status))
                kills++, mid += cairn_path_exists(at(dir));
            else
                assert_int_equal(WEXITSTATUS(status), 0);
            if (attempt == 3)
                assert_true(cairn_artefact_committed(at(dir)));
        }
        check(at(dir), 3);
        ok(cairn_artefact_settle(at(dir), err)); /* as the next process that finds it committed does */
        {
            struct cairn_manifest_head head;
            char keep[32];

            ok(cairn_manifest_head(&head, at(dir), err));
            snprintf(keep, sizeof keep, "a%lld", (long long)head.epoch);
            assert_int_equal(leftovers(at(dir), keep), 0);
        }
    }
    assert_true(mid > 20); /* the kills did hit work in progress */
}

/* Three at once: one or more say done, the others are fenced, what is there is whole. Attempts of one identity make the same
 * bits; where they do not (odd rounds out), rows may come from either by adoption, but none is torn. */
static void races(void **state)
{
    (void)state;
    for (int round = 0; round < 40; round++) {
        int same = round % 2, status, done = 0, fenced = 0, salt_of[3];
        pid_t pid[3];
        char dir[32];
        struct cairn_reader *r;
        int32_t first;
        int64_t zero[2] = {0, 0}, one[2] = {1, 1};

        snprintf(dir, sizeof dir, "race%d", round);
        for (int i = 0; i < 3; i++) {
            salt_of[i] = same ? 0 : 1000 * (i + 1);
            pid[i] = spawn(at(dir), NULL, salt_of[i]);
        }
        for (int i = 0; i < 3; i++) {
            waitpid(pid[i], &status, 0);
            assert_true(WIFEXITED(status));
            if (WEXITSTATUS(status) == 0)
                done++;
            else if (WEXITSTATUS(status) == CAIRN_EFENCED)
                fenced++;
            else
                fail_msg("round %d: exit %d", round, WEXITSTATUS(status));
        }
        assert_int_equal(done + fenced, 3);
        assert_true(done >= 1);
        /* whatever was published is whole: shards of one identity may be adopted from each other, but no row is torn */
        ok(cairn_reader_open(&r, at(dir), NULL, err));
        ok(cairn_reader_box(r, "w", zero, one, &first, 4, err));
        if (same)
            assert_int_equal(first, 0);
        cairn_reader_close(r);
        if (same)
            check(at(dir), 0);
        ok(cairn_artefact_settle(at(dir), err));
    }
}

/* One is stopped with SIGSTOP through the takeover, then continued. */
static void stopped_and_continued(void **state)
{
    int fenced = 0;
    uint64_t seed = 8;

    (void)state;
    for (int round = 0; round < 15; round++) {
        char dir[32];
        int status;
        pid_t pid;

        snprintf(dir, sizeof dir, "stop%d", round);
        pid = spawn(at(dir), NULL, 0);
        pause_us((long)(mix(&seed) % 6000));
        kill(pid, SIGSTOP);
        if (!cairn_artefact_committed(at(dir))) {
            struct cairn_error e = {0};
            enum cairn_status st = run_attempt(at(dir), NULL, 0, NULL, &e);

            if (st != CAIRN_OK)
                fail_msg("%s", e.text);
        }
        kill(pid, SIGCONT);
        waitpid(pid, &status, 0);
        assert_true(WIFEXITED(status));
        assert_true(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == CAIRN_EFENCED);
        fenced += WEXITSTATUS(status) == CAIRN_EFENCED;
        check(at(dir), 0);
    }
    assert_true(fenced > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_anywhere),
        cmocka_unit_test(races),
        cmocka_unit_test(stopped_and_continued),
    };

    return cmocka_run_group_tests(tests, scratch_up, scratch_down);
}
