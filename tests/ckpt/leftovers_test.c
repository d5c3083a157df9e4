/* leftovers_test.c - leftovers.c: attempts of the dead and of the living, finished and unfinished shards, other identities. */
#include "tests/ckpt/helpers.h"

#include "ckpt/leftovers.h"

static const int64_t shape[] = {4, 1024};
/* Writers that were left, in this process or in the one that it was forked from: known, as a kill leaves them. */
static struct cairn_shard *volatile left[8];
static int nleft;

/* In this process: an attempt of that identity with `finished` finished shards and one that is not. */
static void leave(const char *dir, struct cairn_digest identity, int finished)
{
    const struct cairn_attempt_opts o = {.identity = identity};
    struct cairn_slice t = cairn_slice_whole("w", CAIRN_F32, 2, shape);
    static float data[4 * 1024];
    struct cairn_attempt *a = NULL;

    if (cairn_attempt_begin(&a, dir, &o, NULL) != CAIRN_OK)
        abort();
    for (int i = 0; i <= finished; i++) {
        struct cairn_shard_entry *e = NULL;
        struct cairn_shard *w = NULL;
        char name[16];

        snprintf(name, sizeof name, "s%d", i);
        if (cairn_attempt_shard(a, &w, name, &t, 1, NULL, NULL) != CAIRN_OK || cairn_shard_write(w, 0, 0, data, sizeof data, NULL) != CAIRN_OK)
            abort();
        if (i < finished && cairn_attempt_shard_done(a, &w, &e, NULL) != CAIRN_OK)
            abort();
        cairn_shard_entry_free(e);
        if (i == finished) { /* its writer is not destroyed */
            if (nleft == (int)(sizeof left / sizeof *left))
                abort();
            left[nleft++] = w;
        }
    }
    cairn_attempt_end(a);
}

static void leave_dead(const char *dir, struct cairn_digest identity, int finished)
{
    pid_t pid = fork();
    int status;

    if (!pid) {
        leave(dir, identity, finished);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static int there(const char *dir, const char *name)
{
    char *path = cairn_path_join(dir, name);
    int yes = cairn_path_exists(path);

    free(path);
    return yes;
}

static void open_artefact(void **state)
{
    const struct cairn_digest mine = {1, 2}, other = {3, 4};
    const char *dir = at("open");
    struct cairn_holder who;

    (void)state;
    assert_int_equal(cairn_artefact_at_work(dir, &who), 0);
    leave_dead(dir, other, 1); /* 1: of another identity */
    leave_dead(dir, mine, 2);  /* 2 */
    assert_int_equal(cairn_artefact_at_work(dir, &who), 0);
    leave(dir, mine, 1);       /* 3: this process lives */
    assert_int_equal(cairn_artefact_at_work(dir, &who), 1);
    assert_int_equal(who.pid, getpid());

    for (int dry = 1; dry >= 0; dry--) {
        struct cairn_leftovers found = {0};

        ok(cairn_artefact_leftovers(dir, &mine, dry, &found, err));
        assert_int_equal(found.kept, 2);
        assert_true(found.files == 4 && found.bytes >= 16384); /* s0.h5, s0.json, s1.h5 of the first; s2.h5 of the second */
        assert_int_equal(there(dir, "a1"), dry);
        assert_int_equal(there(dir, "a2/s2.h5"), dry);
    }
    assert_true(there(dir, "a2/s0.h5") && there(dir, "a2/s0.json") && there(dir, "a2/s1.h5"));
    assert_true(there(dir, "a3/s0.h5") && there(dir, "a3/s1.h5"));
    assert_true(there(dir, "epoch/1") && there(dir, "epoch/2")); /* no number is given twice */

    struct cairn_leftovers again = {0};

    ok(cairn_artefact_leftovers(dir, &mine, 0, &again, err));
    assert_int_equal(again.files, 0);
}

/* Without an identity nobody's finished shards go; without an epoch nothing goes. */
static void unknown(void **state)
{
    const struct cairn_digest mine = {1, 2};
    const char *dir = at("unknown");
    struct cairn_leftovers found = {0};
    char *path;

    (void)state;
    leave_dead(dir, mine, 1);
    leave_dead(dir, mine, 1);
    path = cairn_path_join(dir, "epoch/2");
    assert_int_equal(unlink(path), 0);
    free(path);
    ok(cairn_artefact_leftovers(dir, NULL, 0, &found, err));
    assert_true(there(dir, "a1/s0.h5") && !there(dir, "a1/s1.h5"));
    assert_true(there(dir, "a2/s0.h5") && there(dir, "a2/s1.h5"));
    assert_int_equal(found.kept, 1);
    ok(cairn_artefact_leftovers(at("nothing"), NULL, 0, &found, err));
}

static void committed(void **state)
{
    const char *dir = at("committed");
    struct cairn_leftovers found = {0};

    (void)state;
    leave_dead(dir, (struct cairn_digest){1, 2}, 1);
    ok(commit_small(dir, 3, 1, err));
    ok(cairn_artefact_leftovers(dir, NULL, 1, &found, err));
    assert_int_equal(found.files, 0); /* the commit has tidied up */
    {
        char *path = cairn_path_join(dir, ".MANIFEST.1"), *sub = cairn_path_join(dir, "a1"), *file = cairn_path_join(dir, "a1/x.h5");

        spew(path, "x", 1);
        ok(cairn_dir_make(sub, err));
        spew(file, "x", 1);
        free(path);
        free(sub);
        free(file);
    }
    ok(cairn_artefact_leftovers(dir, NULL, 1, &found, err));
    assert_int_equal(found.files, 2);
    assert_true(there(dir, "a1/x.h5"));
    ok(cairn_artefact_leftovers(dir, NULL, 0, &found, err));
    assert_true(!there(dir, "a1") && !there(dir, ".MANIFEST.1") && there(dir, "a2") && there(dir, "MANIFEST.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(open_artefact, scratch_up, scratch_down),
        cmocka_unit_test_setup_teardown(unknown, scratch_up, scratch_down),
        cmocka_unit_test_setup_teardown(committed, scratch_up, scratch_down),
    };
    int failed = cmocka_run_group_tests_name("leftovers", tests, NULL, NULL);

    while (nleft)
        cairn_shard_destroy(left[--nleft]);
    return failed;
}
