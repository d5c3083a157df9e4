/* attempt_test.c - one artefact, many attempts: adopted, fenced, in lanes; exactly one publishes. */
#include "attempts.h"

#include <errno.h>
#include <time.h>

#include "ckpt/beneath.h"

static void plain(void **state)
{
    struct cairn_attempt_opts o = for_blank(NULL);
    struct cairn_attempt *a;
    int adopted;

    (void)state;
    assert_false(cairn_artefact_committed(at("plain")));
    ok(run_attempt(at("plain"), NULL, 7, &adopted, err));
    assert_int_equal(adopted, 0);
    assert_true(cairn_artefact_committed(at("plain")));
    check(at("plain"), 7);
    assert_int_equal(leftovers(at("plain"), "a1"), 0);
    fails(CAIRN_EFENCED, "committed already", cairn_attempt_begin(&a, at("plain"), &o, err));
    fails(CAIRN_EBUG, "lane", cairn_attempt_begin(&a, at("plain2"), &(struct cairn_attempt_opts){.lane = "../x"}, err));
    cairn_attempt_end(NULL);
}

static void committed_is_cheap(void **state)
{
    struct timespec b, e;

    (void)state;
    ok(commit_small(at("cheap"), 1, 1, err));
    clock_gettime(CLOCK_MONOTONIC, &b);
    for (int i = 0; i < 100; i++)
        assert_true(cairn_artefact_committed(at("cheap")));
    clock_gettime(CLOCK_MONOTONIC, &e);
    assert_true((double)(e.tv_sec - b.tv_sec) + 1e-9 * (double)(e.tv_nsec - b.tv_nsec) < 0.1); /* 1 ms each */
}

/* Attempt 1 has finished two shards and dies; attempt 2 takes them over, damaged ones excepted. */
static void adoption(void **state)
{
    struct cairn_attempt_opts o = for_blank(NULL);

    (void)state;
    for (int damage = 0; damage < 4; damage++) {
        struct cairn_attempt *a;
        struct cairn_shard_entry *e;
        char dir[32], file[600];
        int adopted;

        snprintf(dir, sizeof dir, "adopt%d", damage);
        ok(cairn_attempt_begin(&a, at(dir), &o, err));
        for (int i = 0; i < 2; i++) {
            ok(make_shard(a, i, 0, &e, err));
            cairn_shard_entry_free(e);
        }
        snprintf(file, sizeof file, "%s/rank0001.%s", cairn_attempt_dir(a), damage == 3 ? "json" : "h5");
        cairn_attempt_end(a);
        if (damage == 1)
            flip(file, 3000, 1);
        if (damage == 2)
            assert_int_equal(truncate(file, 3000), 0);
        if (damage == 3)
            flip(file, 100, 1);
        ok(run_attempt(at(dir), NULL, 0, &adopted, err));
        assert_int_equal(adopted, damage ? 1 : 2);
        check(at(dir), 0);
        assert_int_equal(leftovers(at(dir), "a2"), 0);
    }
}

static void other_identities_are_not_adopted(void **state)
{
    struct cairn_attempt_opts o = for_blank(NULL), other = {.identity = {9, 9}};
    struct cairn_attempt *a;
    struct cairn_shard_entry *e;
    struct cairn_manifest *m = blank();
    int adopted;

    (void)state;
    ok(cairn_attempt_begin(&a, at("foreign"), &other, err));
    ok(make_shard(a, 0, 50, &e, err));
    cairn_shard_entry_free(e);
    fails(CAIRN_EBUG, "another identity", cairn_attempt_commit(a, m, err));
    cairn_attempt_end(a);
    ok(cairn_attempt_begin(&a, at("foreign"), &o, err));
    ok(cairn_attempt_adopt(a, "rank0000", "rows of rank 1", &e, err));
    assert_null(e);
    cairn_attempt_end(a);
    ok(run_attempt(at("foreign"), NULL, 0, &adopted, err));
    assert_int_equal(adopted, 0);
    check(at("foreign"), 0);
    cairn_manifest_destroy(m);
}

static void a_stopped_attempt_is_fenced(void **state)
{
    struct cairn_attempt_opts o = for_blank(NULL);
    struct cairn_attempt *old;
    struct cairn_shard_entry *e;
    struct cairn_manifest *m = blank();
    struct cairn_shard *w = NULL;
    static const int64_t dim[] = {2};
    struct cairn_slice s = cairn_slice_whole("x", CAIRN_F32, 1, dim);
    int adopted;

    (void)state;
    ok(cairn_attempt_begin(&old, at("stopped"), &o, err));
    for (int i = 0; i < SHARDS; i++) {
        ok(make_shard(old, i, 0, &e, err));
        ok(cairn_manifest_add_shard(m, e, err));
    }
    ok(cairn_attempt_check(old, err));
    {
        struct cairn_attempt *young; /* takes over and has not committed yet */

        ok(cairn_attempt_begin(&young, at("stopped"), &o, err));
        fails(CAIRN_EFENCED, "attempt 2", cairn_attempt_check(old, err));
        fails(CAIRN_EFENCED, "outranks attempt 1", cairn_attempt_commit(old, m, err));
        assert_false(cairn_artefact_committed(at("stopped")));
        cairn_attempt_end(young);
    }
    ok(run_attempt(at("stopped"), NULL, 0, &adopted, err));
    assert_int_equal(adopted, SHARDS);
    check(at("stopped"), 0);
    /* its directory is gone by now: fenced, not an I/O error */
    fails(CAIRN_EFENCED, "committed it", cairn_attempt_shard(old, &w, "late", &s, 1, NULL, err));
    fails(CAIRN_EFENCED, "", cairn_attempt_commit(old, m, err));
    check(at("stopped"), 0);
    cairn_attempt_end(old);
    cairn_manifest_destroy(m);
}

/* Between the fence and the link another one publishes: simulated by a manifest that is there already. */
static void the_loser(void **state)
{
    struct cairn_attempt_opts o = for_blank(NULL);

    (void)state;
    for (int equal = 0; equal < 2; equal++) {
        struct cairn_attempt *a;
        struct cairn_manifest *m = blank();
        struct cairn_shard_entry *e;
        char dir[32], other[32], from[600], to[600];

        snprintf(dir, sizeof dir, "loser%d", equal);
        snprintf(other, sizeof other, "winner%d", equal);
        ok(run_attempt(at(other), NULL, equal ? 0 : 1, NULL, err));
        ok(cairn_attempt_begin(&a, at(dir), &o, err));
        for (int i = 0; i < SHARDS; i++) {
            ok(make_shard(a, i, 0, &e, err));
            ok(cairn_manifest_add_shard(m, e, err));
        }
        snprintf(from, sizeof from, "%s/%s", at(other), CAIRN_MANIFEST_NAME);
        snprintf(to, sizeof to, "%s/%s", at(dir), CAIRN_MANIFEST_NAME);
        assert_int_equal(link(from, to), 0);
        if (equal) {
            ok(cairn_attempt_commit(a, m, err));
            assert_false(cairn_path_exists(cairn_attempt_dir(a)));
        } else {
            fails(CAIRN_EFENCED, "published", cairn_attempt_commit(a, m, err));
            assert_true(cairn_path_exists(cairn_attempt_dir(a)));
        }
        cairn_attempt_end(a);
        cairn_manifest_destroy(m);
    }
}

static void nothing_incomplete_is_published(void **state)
{
    struct cairn_attempt_opts o = for_blank(NULL);
    struct cairn_attempt *a;
    struct cairn_shard_entry *e[SHARDS];
    struct cairn_manifest *m = blank();
    char file[600];

    (void)state;
    ok(cairn_attempt_begin(&a, at("incomplete"), &o, err));
    for (int i = 0; i < SHARDS; i++)
        ok(make_shard(a, i, 0, &e[i], err));
    ok(cairn_manifest_add_shard(m, e[0], err));
    ok(cairn_manifest_add_shard(m, e[2], err));
    fails(CAIRN_EDATA, "5000 of 15000 elements are in no shard", cairn_attempt_commit(a, m, err));
    ok(cairn_manifest_add_shard(m, e[1], err));
    snprintf(file, sizeof file, "%s/rank0001.h5", cairn_attempt_dir(a));
    assert_int_equal(truncate(file, 100), 0);
    fails(CAIRN_EDATA, "rank0001.h5: 100 bytes", cairn_attempt_commit(a, m, err));
    assert_false(cairn_artefact_committed(at("incomplete")));
    cairn_attempt_end(a);
    cairn_manifest_destroy(m);
}

/* Three array tasks, each with one shard and a lane of its own; whoever comes last commits. */
static void lanes(void **state)
{
    static const int order[][3] = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}};

    (void)state;
    for (int round = 0; round < 3; round++) {
        char dir[32];

        snprintf(dir, sizeof dir, "lanes%d", round);
        for (int k = 0; k < 3; k++) {
            struct cairn_manifest *m = blank();
            struct cairn_attempt_opts o;
            struct cairn_attempt *a;
            struct cairn_shard_entry *e;
            char lane[32];
            int whole = 1;

            snprintf(lane, sizeof lane, "task-%d", order[round][k]);
            o = for_blank(lane);
            ok(cairn_attempt_begin(&a, at(dir), &o, err));
            ok(make_shard(a, order[round][k], 0, &e, err));
            cairn_shard_entry_free(e);
            for (int i = 0; i < SHARDS && whole; i++) {
                char name[32], id[32];

                snprintf(name, sizeof name, "rank%04d", i);
                snprintf(id, sizeof id, "rows of rank %d", i);
                ok(cairn_attempt_adopt(a, name, id, &e, err));
                whole = e != NULL;
                if (e)
                    ok(cairn_manifest_add_shard(m, e, err));
            }
            assert_int_equal(whole, k == 2);
            if (k < 2)
                ok(cairn_attempt_check(a, err));
            else
                ok(cairn_attempt_commit(a, m, err));
            cairn_attempt_end(a);
            cairn_manifest_destroy(m);
        }
        check(at(dir), 0);
        assert_int_equal(leftovers(at(dir), "a3"), 0);
    }
}

/* A later attempt in the same lane outranks, one of another lane does not. */
static void fences_by_lane(void **state)
{
    static const struct {
        const char *ours, *later;
        int fenced;
    } t[] = {{"", "", 1}, {"x", "x", 1}, {"x", "y", 0}, {"x", "", 1}, {"", "x", 0}};

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_attempt_opts o = for_blank(t[i].ours), p = for_blank(t[i].later);
        struct cairn_attempt *a, *b;
        char dir[32];

        snprintf(dir, sizeof dir, "fence%zu", i);
        ok(cairn_attempt_begin(&a, at(dir), &o, err));
        ok(cairn_attempt_begin(&b, at(dir), &p, err));
        assert_int_equal(cairn_attempt_epoch(b), 2);
        if (t[i].fenced)
            fails(CAIRN_EFENCED, "outranks", cairn_attempt_check(a, err));
        else
            ok(cairn_attempt_check(a, err));
        ok(cairn_attempt_check(b, err));
        cairn_attempt_end(a);
        cairn_attempt_end(b);
    }
}

static int collect_names(void *arg, const char *name, const char *identity, int64_t epoch)
{
    struct cairn_str *s = arg;

    cairn_str_printf(s, "%s=%s@%lld;", name, identity, (long long)epoch);
    return 0;
}

static void finished_shards_are_listed(void **state)
{
    struct cairn_attempt_opts o = for_blank(NULL);
    struct cairn_attempt *a, *b;
    struct cairn_shard_entry *e;
    struct cairn_str s = {0};
    char junk[600];

    (void)state;
    ok(cairn_attempt_begin(&a, at("list"), &o, err));
    ok(make_shard(a, 1, 0, &e, err));
    cairn_shard_entry_free(e);
    ok(make_shard(a, 0, 0, &e, err));
    cairn_shard_entry_free(e);
    snprintf(junk, sizeof junk, "%s/torn.json", cairn_attempt_dir(a));
    spew(junk, "{", 1);
    ok(cairn_attempt_begin(&b, at("list"), &o, err));
    ok(make_shard(b, 2, 0, &e, err));
    cairn_shard_entry_free(e);
    ok(cairn_attempt_each(b, collect_names, &s, err));
    assert_string_equal(cairn_str_z(&s), "rank0000=rows of rank 0@1;rank0001=rows of rank 1@1;rank0002=rows of rank 2@2;");
    cairn_str_free(&s);
    cairn_attempt_end(a);
    cairn_attempt_end(b);
}

/* Damaged epoch files fence (the safe side) and block nobody; odd names are passed over; joined ranks write into the same
 * attempt. */
static void odd_epochs(void **state)
{
    struct cairn_attempt_opts o = for_blank(NULL);
    struct cairn_attempt *a, *j;
    struct cairn_shard_entry *e;
    char text[700];

    (void)state;
    ok(cairn_attempt_begin(&a, at("odd"), &o, err));
    snprintf(text, sizeof text, "%s/epoch/007", at("odd"));
    spew(text, "x", 1);
    snprintf(text, sizeof text, "%s/epoch/99999999999999999999", at("odd"));
    spew(text, "x", 1);
    ok(cairn_attempt_check(a, err));
    ok(cairn_attempt_join(&j, at("odd"), cairn_attempt_epoch(a), &o, err));
    ok(make_shard(j, 0, 0, &e, err));
    assert_string_equal(e->file, "a1/rank0000.h5");
    cairn_shard_entry_free(e);
    cairn_attempt_end(j);
    snprintf(text, sizeof text, "%s/epoch/5", at("odd"));
    spew(text, "half", 4);
    fails(CAIRN_EFENCED, "attempt 5", cairn_attempt_check(a, err));
    cairn_attempt_end(a);
    ok(run_attempt(at("odd"), NULL, 0, NULL, err));
    check(at("odd"), 0);
    snprintf(text, sizeof text, "%s/epoch/9223372036854775807", at("odd2"));
    ok(cairn_dir_make(at("odd2/epoch"), err));
    spew(text, "x", 1);
    fails(CAIRN_EIO, "no free epoch", run_attempt(at("odd2"), NULL, 0, NULL, err));
}

static void holders(void **state)
{
    struct cairn_holder h, back;
    json_t *obj;
    int status;
    pid_t pid;

    (void)state;
    cairn_holder_self(&h);
    assert_int_equal(cairn_holder_alive(&h), 1);
    obj = cairn_holder_json(&h);
    ok(cairn_holder_parse(&back, obj, "test", err));
    json_decref(obj);
    assert_string_equal(back.host, h.host);
    assert_int_equal(back.started, h.started);
    back.started++; /* the same number, another process */
    assert_int_equal(cairn_holder_alive(&back), 0);
    back = h;
    strcpy(back.boot, "another boot");
    assert_int_equal(cairn_holder_alive(&back), 0);
    back = h;
    strcpy(back.host, "another host");
    assert_int_equal(cairn_holder_alive(&back), -1);
    fflush(NULL);
    if (!(pid = fork()))
        _exit(0);
    waitpid(pid, &status, 0);
    back = h;
    back.pid = pid;
    assert_int_equal(cairn_holder_alive(&back), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),
        cmocka_unit_test(committed_is_cheap),
        cmocka_unit_test(adoption),
        cmocka_unit_test(other_identities_are_not_adopted),
        cmocka_unit_test(a_stopped_attempt_is_fenced),
        cmocka_unit_test(the_loser),
        cmocka_unit_test(nothing_incomplete_is_published),
        cmocka_unit_test(lanes),
        cmocka_unit_test(fences_by_lane),
        cmocka_unit_test(finished_shards_are_listed),
        cmocka_unit_test(odd_epochs),
        cmocka_unit_test(holders),
    };

    return cmocka_run_group_tests(tests, scratch_up, scratch_down);
}
