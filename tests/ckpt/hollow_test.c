/* hollow_test.c - artefacts that are collected from the first, and collection, while another attempt begins: whatever comes before one of the file
 * operations below, readers find the data or are told that they were collected.
 *
 * These (access, mkdir, link, unlink, fsync) stand before libc's; what may come between others is tests/model's. At the n-th of them another
 * process acts, as a function called there; for n = 1, 2, ... until there is no n-th.
 */
#include "tests/ckpt/helpers.h"

#include <errno.h>
#include <sys/syscall.h>

#include "ckpt/retention.h"
#include "ckpt/verify.h"

/* --- moments --- */

static long moments, acts_at;
static void (*act)(void);

/* The thread sanitizer's start calls some of what stands here before it can watch anything. */
#define UNWATCHED __attribute__((no_sanitize("thread")))

UNWATCHED static void moment(void)
{
    void (*now)(void) = act;

    if (!now || ++moments != acts_at)
        return;
    act = NULL;
    now();
}

UNWATCHED int access(const char *path, int mode)
{
    moment();
    return (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}

UNWATCHED int mkdir(const char *path, mode_t mode)
{
    moment();
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

UNWATCHED int link(const char *from, const char *to)
{
    moment();
    return (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
}

UNWATCHED int unlink(const char *path)
{
    moment();
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

UNWATCHED int fsync(int fd)
{
    moment();
    return (int)syscall(SYS_fsync, fd);
}

/* --- attempts --- */

static char dir[600];

/* Up to its commit, with data or hollow. */
struct tried {
    struct cairn_attempt *a;
    struct cairn_manifest *m;
};

static enum cairn_status try_begin(struct tried *t, struct cairn_error *err)
{
    struct cairn_attempt_opts o;

    *t = (struct tried){.m = cairn_manifest_create("trainer", 5, "run-1")};
    o = (struct cairn_attempt_opts){.identity = cairn_manifest_identity(t->m)};
    return cairn_attempt_begin(&t->a, dir, &o, err);
}

static enum cairn_status try_shard(struct tried *t, int hollow, struct cairn_error *err)
{
    static const int64_t n = 1000;
    const struct cairn_slice s = cairn_slice_whole("w", CAIRN_I32, 1, &n);
    struct cairn_shard_entry *e;
    struct cairn_shard *w = NULL;
    enum cairn_status st = CAIRN_OK;
    int32_t x[1000];

    for (int i = 0; i < n; i++)
        x[i] = i;
    TRY(cairn_attempt_shard(t->a, &w, "rank0000", &s, 1, &(struct cairn_shard_opts){.hollow = hollow}, err));
    TRY(cairn_shard_write(w, 0, 0, x, sizeof x, err));
    TRY(cairn_attempt_shard_done(t->a, &w, &e, err));
    TRY(cairn_manifest_add_shard(t->m, e, err));
out:
    cairn_shard_destroy(w);
    return st;
}

static void try_end(struct tried *t)
{
    cairn_attempt_end(t->a);
    cairn_manifest_destroy(t->m);
    *t = (struct tried){0};
}

/* The other process: it had begun before, and acts now. */
static struct tried other;
static enum cairn_status others; /* how its commit ended */

static void commits(void)
{
    others = cairn_attempt_commit(other.a, other.m, NULL);
}

static void commits_and_is_collected(void)
{
    commits();
    if (others == CAIRN_OK)
        ok(cairn_artefact_collect(dir, &(struct cairn_retention){.reason = "keep"}, NULL, err));
}

/* Readers find the data, or are told that they were collected; nothing is damaged, before and after a collector looked in. */
static void holds(long n)
{
    struct cairn_verify_counts c = {0};

    for (int finished = 0; finished < 2; finished++) {
        struct cairn_error e = {0};
        struct cairn_reader *r = NULL;
        enum cairn_status st = cairn_reader_open(&r, dir, NULL, &e);
        int32_t x[1000];

        if (st == CAIRN_OK)
            st = cairn_reader_box(r, "w", NULL, NULL, x, sizeof x, &e);
        if (st == CAIRN_OK ? x[999] != 999 : st != CAIRN_ENOINPUT || !strstr(e.text, "was collected"))
            fail_msg("at moment %ld, %s a collector: a reader gets %d: %s", n, finished ? "behind" : "before", st, e.text);
        assert_int_equal(cairn_artefact_collected(dir), st != CAIRN_OK);
        cairn_reader_close(r);
        if (cairn_verify_tree(dir, NULL, &c, &e) != CAIRN_OK)
            fail_msg("at moment %ld, %s a collector: %s", n, finished ? "behind" : "before", e.text);
        if (st != CAIRN_OK)
            ok(cairn_artefact_collect(dir, NULL, NULL, err));
    }
}

/* An attempt begins, makes its shard and commits; at its n-th file operation the other one acts, and is killed before it does more.
 * goes_on 0: ours is killed, too, as soon as it has begun. Returns 0 if there was no n-th. */
static int between(const char *name, long n, int hollow, void (*acts)(void), int goes_on)
{
    struct tried t = {0};
    enum cairn_status st;

    snprintf(dir, sizeof dir, "%s-%ld-%d", at(name), n, goes_on);
    ok(try_begin(&other, err));
    ok(try_shard(&other, hollow, err));
    if (hollow)
        ok(cairn_manifest_set_hollow(other.m, "every so often", err));
    moments = 0;
    acts_at = n;
    act = acts;
    st = try_begin(&t, NULL);
    if (goes_on && st == CAIRN_OK && (st = try_shard(&t, 0, NULL)) == CAIRN_OK)
        st = cairn_attempt_commit(t.a, t.m, NULL);
    assert_true(st == CAIRN_OK || st == CAIRN_EFENCED);
    if (cairn_artefact_committed(dir))
        holds(n);
    else
        assert_true(!goes_on && (act || others == CAIRN_EFENCED));
    try_end(&t);
    try_end(&other);
    return !act;
}

static void all_moments(const char *name, int hollow, void (*acts)(void))
{
    for (int goes_on = 0; goes_on < 2; goes_on++) {
        long n = 1;

        while (between(name, n, hollow, acts, goes_on))
            n++;
        act = NULL;
        assert_true(n > 5);
    }
}

static void hollow_while_another_begins(void **state)
{
    (void)state;
    all_moments("hollow", 1, commits);
}

static void collected_while_another_begins(void **state)
{
    (void)state;
    all_moments("collected", 0, commits_and_is_collected);
}

/* What is published of a hollow shard says so; a pin opens nothing; the next collector removes what is left of it. */
static void says_so_itself(void **state)
{
    struct cairn_manifest_head head;
    struct cairn_manifest *m;
    char path[700], *why;
    struct tried t;

    (void)state;
    snprintf(dir, sizeof dir, "%s", at("itself"));
    ok(try_begin(&t, err));
    ok(try_shard(&t, 1, err));
    fails(CAIRN_EBUG, "hollow, and its manifest does not say so", cairn_attempt_commit(t.a, t.m, err));
    assert_false(cairn_artefact_collected(dir));
    ok(cairn_manifest_set_hollow(t.m, "every so often", err));
    ok(cairn_attempt_commit(t.a, t.m, err));
    try_end(&t);
    assert_true(cairn_artefact_collected(dir));
    why = cairn_artefact_collected_why(dir);
    assert_string_equal(why, "every so often");
    free(why);
    ok(cairn_manifest_head(&head, dir, err));
    assert_string_equal(head.hollow, "every so often");
    ok(cairn_manifest_load(&m, dir, err));
    assert_string_equal(m->hollow, "every so often");
    assert_int_equal(m->shards[0]->hollow, 1);
    cairn_manifest_destroy(m);
    fails(CAIRN_ENOINPUT, "was collected", cairn_artefact_pin(dir, "reader", err));
    assert_int_equal(mkdir(at("itself/pin"), 0777) && errno != EEXIST, 0);
    spew(at("itself/pin/far"), "?", 1); /* a pin that nobody can read counts */
    holds(0);
    assert_int_equal(unlink(at("itself/pin/far")), 0);
    holds(0);
    snprintf(path, sizeof path, "%s/a1", dir);
    assert_false(cairn_path_exists(path));
    snprintf(path, sizeof path, "%s/%s", dir, CAIRN_COLLECTED_NAME);
    assert_false(cairn_path_exists(path));
}

/* Above 512 shards, too, all that its manifest tells is in the manifest. */
static void many_shards(void **state)
{
    enum { N = 600 };
    static const int64_t dim[] = {N, 4};
    const struct cairn_slice whole = cairn_slice_whole("w", CAIRN_F32, 2, dim);
    struct cairn_manifest *m;
    struct tried t;

    (void)state;
    snprintf(dir, sizeof dir, "%s", at("many"));
    ok(try_begin(&t, err));
    for (int i = 0; i < N; i++) {
        struct cairn_slice s = cairn_slice_part(&whole, 0, i, 1);
        struct cairn_shard_entry *e;
        struct cairn_shard *w;
        char name[32];

        snprintf(name, sizeof name, "rank%04d", i);
        ok(cairn_attempt_shard(t.a, &w, name, &s, 1, &(struct cairn_shard_opts){.hollow = 1}, err));
        ok(cairn_shard_tell(w, 0, (struct cairn_digest){(uint64_t)i, 1}, err));
        ok(cairn_attempt_shard_done(t.a, &w, &e, err));
        ok(cairn_manifest_add_shard(t.m, e, err));
    }
    ok(cairn_manifest_set_hollow(t.m, "every so often", err));
    ok(cairn_attempt_commit(t.a, t.m, err));
    ok(cairn_artefact_collect(dir, NULL, NULL, err));
    ok(cairn_manifest_load(&m, dir, err));
    assert_true(m->nshards == N && cairn_digest_equal(m->digest, t.m->digest));
    for (int i = 0; i < N; i++) {
        struct cairn_slice s = cairn_slice_part(&whole, 0, i, 1);

        s.sum = (struct cairn_digest){(uint64_t)i, 1};
        assert_true(cairn_manifest_tells(m, &s));
        s.sum.lo++;
        assert_false(cairn_manifest_tells(m, &s));
    }
    cairn_manifest_destroy(m);
    try_end(&t);
    ok(cairn_verify_tree(dir, NULL, NULL, err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hollow_while_another_begins),
        cmocka_unit_test(collected_while_another_begins),
        cmocka_unit_test(says_so_itself),
        cmocka_unit_test(many_shards),
    };

    return cmocka_run_group_tests(tests, scratch_up, scratch_down);
}
