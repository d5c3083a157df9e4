/* retention_test.c - what stays, what goes, and what a kill in between leaves. */
#include "tests/ckpt/helpers.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "ckpt/retention.h"
#include "ckpt/verify.h"

static void plans(void **state)
{
    static const int64_t step[] = {1, 2, 3, 10, 4, 20, 21};
    static const struct {
        int64_t keep, every;
        int want[7];
    } t[] = {
        {2, 0, {0, 0, 0, 0, 0, 1, 1}},  {1, 0, {0, 0, 0, 0, 0, 0, 1}},   {0, 0, {0, 0, 0, 0, 0, 0, 1}},
        {-1, 0, {1, 1, 1, 1, 1, 1, 1}}, {1, 10, {0, 0, 0, 1, 0, 1, 1}},  {3, 2, {0, 1, 0, 1, 1, 1, 1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct cairn_retention r = {.keep = t[i].keep, .keep_every = t[i].every};
        int keep[7];

        cairn_retention_plan(&r, step, 7, keep);
        assert_memory_equal(keep, t[i].want, sizeof keep);
        r.spare = &step[1];
        cairn_retention_plan(&r, step, 7, keep);
        for (int k = 0; k < 7; k++)
            assert_int_equal(keep[k], t[i].want[k] || k == 1);
    }
}

static struct cairn_generation gen[6];
static char gen_dir[6][700]; /* of gen */

/* Generations 0..5 of a fresh run, committed. */
static void make(const char *name)
{
    for (int i = 0; i < 6; i++) {
        snprintf(gen_dir[i], sizeof gen_dir[i], "%s/%06d", at(name), i);
        gen[i] = (struct cairn_generation){i, gen_dir[i]};
        ok(commit_small(gen_dir[i], i, i, err));
    }
}

static int readable(int i)
{
    struct cairn_reader *r;
    float x[15];
    int good = cairn_reader_open(&r, gen_dir[i], NULL, NULL) == CAIRN_OK;

    if (!good)
        return 0;
    good = cairn_reader_box(r, "a.weight", NULL, NULL, x, sizeof x, NULL) == CAIRN_OK && x[0] == (float)i;
    cairn_reader_close(r);
    return good;
}

static void applies(void **state)
{
    struct cairn_retention r = {.keep = 2, .keep_every = 3, .reason = "keep 2"};
    char path[1200];
    int n;

    (void)state;
    make("apply");
    ok(cairn_retention_apply(&r, gen, 6, &n, err));
    assert_int_equal(n, 2); /* 1 and 2; 0 and 3 are divisible by 3 */
    for (int i = 0; i < 6; i++) {
        assert_int_equal(readable(i), i != 1 && i != 2);
        assert_true(cairn_artefact_committed(gen_dir[i]));
        assert_int_equal(cairn_artefact_collected(gen_dir[i]), i == 1 || i == 2);
    }
    snprintf(path, sizeof path, "%s/a1", gen_dir[1]);
    assert_false(cairn_path_exists(path));
    ok(cairn_retention_apply(&r, gen, 6, &n, err));
    assert_int_equal(n, 0);
    r.keep_every = 0;
    r.spare = &gen[0].step;
    ok(cairn_retention_apply(&r, gen, 6, &n, err));
    assert_true(n == 1 && readable(0) && !readable(3) && readable(4) && readable(5));
}

/* Behind so many in a row that need nothing nobody looks; what lies there waits for somebody who looks at all. */
static void calm_ends_the_look_back(void **state)
{
    struct cairn_retention r = {.keep = 1, .calm = 2, .reason = "keep 1"};
    int n;

    (void)state;
    make("calm");
    ok(cairn_retention_apply(&r, gen + 3, 3, &n, err));
    assert_int_equal(n, 2);
    ok(cairn_retention_apply(&r, gen, 6, &n, err));
    assert_int_equal(n, 0); /* 4 and 3 need nothing */
    r.calm = 3;
    ok(cairn_retention_apply(&r, gen + 1, 5, &n, err));
    assert_int_equal(n, 2); /* nor do they now, but 2 does, and 1 */
    assert_true(readable(0) && !readable(1) && !readable(2) && readable(5));
    r.calm = 4; /* one that was begun and not finished is no calm */
    assert_int_equal(mkdir(strcat(strcpy((char[800]){0}, gen_dir[3]), "/a1"), 0755), 0);
    ok(cairn_retention_apply(&r, gen, 6, &n, err));
    assert_int_equal(n, 1);
    make("calm2");
    r = (struct cairn_retention){.keep = 1, .calm = 1, .keep_every = 4};
    ok(cairn_retention_apply(&r, gen, 6, &n, err));
    assert_int_equal(n, 0); /* 4 stays, whatever its age */
    r.calm = 0;
    ok(cairn_retention_apply(&r, gen, 6, &n, err));
    assert_int_equal(n, 3);
}

/* A marker without a manifest is left of one that was dropped; what lies beside it may be an attempt at work. */
static void uncommitted_ones_are_left_alone(void **state)
{
    static const int dropped[] = {5, 1}; /* before the one that is kept, and behind it */
    const struct cairn_retention r = {.keep = 1, .reason = "keep 1"};
    char path[2][800];

    (void)state;
    make("dropped");
    ok(cairn_retention_apply(&r, gen, 5, NULL, err));
    ok(cairn_artefact_mark(gen_dir[5], "keep 1", err));
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/MANIFEST.json", gen_dir[dropped[i]]);
        assert_int_equal(unlink(path[i]), 0);
        snprintf(path[i], sizeof path[i], "%s/a2", gen_dir[dropped[i]]);
        ok(cairn_dir_make(path[i], err));
    }
    ok(cairn_retention_apply(&r, gen, 6, NULL, err));
    assert_true(readable(4) && cairn_path_exists(path[0]) && cairn_path_exists(path[1]));
}

static void damaged_ones_use_no_place(void **state)
{
    struct cairn_retention r = {.keep = 2, .reason = ""};
    char file[1200];
    int n;

    (void)state;
    make("damaged");
    snprintf(file, sizeof file, "%s/a1/rank0000.h5", gen_dir[5]);
    assert_int_equal(truncate(file, 10), 0);
    snprintf(file, sizeof file, "%s/MANIFEST.json", gen_dir[4]);
    flip(file, 30, 1);
    ok(cairn_retention_apply(&r, gen, 6, &n, err));
    assert_int_equal(n, 2); /* 5 and 4 are left as they are, 3 and 2 are the valid ones */
    assert_true(readable(3) && readable(2));
    assert_false(cairn_artefact_collected(gen_dir[5]) || cairn_artefact_collected(gen_dir[4]));
    /* a flipped bit shows only to who reads all bytes */
    make("damaged2");
    snprintf(file, sizeof file, "%s/a1/rank0000.h5", gen_dir[5]);
    flip(file, 40, 1);
    r.keep = 1;
    r.verify = 1;
    ok(cairn_retention_apply(&r, gen, 6, &n, err));
    assert_true(readable(4));
    assert_false(cairn_artefact_collected(gen_dir[4]));
    assert_int_equal(n, 4);
}

static void never_zero(void **state)
{
    struct cairn_retention r = {.keep = 1};
    char file[1200];
    int n;

    (void)state;
    make("zero");
    for (int i = 0; i < 6; i++) {
        snprintf(file, sizeof file, "%.690s/a1/rank0000.h5", gen_dir[i]);
        unlink(file);
    }
    fails(CAIRN_EDATA, "none of 6 generations is valid", cairn_retention_apply(&r, gen, 6, &n, err));
    for (int i = 0; i < 6; i++)
        assert_false(cairn_artefact_collected(gen_dir[i]));
    ok(cairn_retention_apply(&r, gen, 0, &n, err));
}

static int asked, answer;

static int ask(void *arg, const struct cairn_holder *h)
{
    (void)arg;
    (void)h;
    asked++;
    return answer;
}

static void pins(void **state)
{
    struct cairn_retention r = {.keep = 1, .reason = "pins", .alive = ask};
    char file[1200];
    size_t n;
    char *p;
    int pinned, status, k;
    pid_t pid;

    (void)state;
    make("pins");
    ok(cairn_artefact_pin(gen_dir[0], "eval-1", err));
    ok(cairn_artefact_collect(gen_dir[0], &r, &pinned, err));
    assert_int_equal(pinned, 1);
    assert_true(readable(0));
    ok(cairn_retention_apply(&r, gen, 6, &k, err));
    assert_int_equal(k, 4);
    assert_true(readable(0));
    ok(cairn_artefact_unpin(gen_dir[0], "eval-1", err));
    ok(cairn_artefact_unpin(gen_dir[0], "eval-1", err));
    ok(cairn_artefact_collect(gen_dir[0], &r, &pinned, err));
    assert_int_equal(pinned, 0);
    assert_false(readable(0));
    fails(CAIRN_ENOINPUT, "was collected", cairn_artefact_pin(gen_dir[0], "late", err));
    fails(CAIRN_ENOINPUT, "not committed", cairn_artefact_pin(at("absent"), "x", err));
    fails(CAIRN_EBUG, "pin", cairn_artefact_pin(gen_dir[5], "../x", err));
    fails(CAIRN_ENOINPUT, "nothing to collect", cairn_artefact_collect(at("absent"), &r, NULL, err));

    make("pins2"); /* a pin of the dead does not count */
    fflush(NULL);
    if (!(pid = fork()))
        _exit(cairn_artefact_pin(gen_dir[0], "dead", NULL) != CAIRN_OK);
    waitpid(pid, &status, 0);
    assert_int_equal(WEXITSTATUS(status), 0);
    ok(cairn_artefact_collect(gen_dir[0], &r, &pinned, err));
    assert_int_equal(pinned, 0);

    /* one of another host: the caller is asked, without an answer it counts */
    ok(cairn_artefact_pin(gen_dir[1], "far", err));
    snprintf(file, sizeof file, "%s/pin/far", gen_dir[1]);
    p = slurp(file, &n);
    {
        struct cairn_holder h;
        json_t *obj;
        char *t2;

        cairn_holder_self(&h);
        strcpy(h.host, "far-away");
        obj = cairn_holder_json(&h);
        ok(cairn_checked_text(obj, &t2, &n, err));
        spew(file, t2, n);
        json_decref(obj);
        free(t2);
    }
    free(p);
    answer = 1;
    ok(cairn_artefact_collect(gen_dir[1], &r, &pinned, err));
    assert_true(pinned == 1 && asked == 1);
    ok(cairn_artefact_collect(gen_dir[1], NULL, &pinned, err));
    assert_int_equal(pinned, 1);
    answer = 0;
    ok(cairn_artefact_collect(gen_dir[1], &r, &pinned, err));
    assert_int_equal(pinned, 0);
    ok(cairn_artefact_pin(gen_dir[2], "torn", err)); /* a damaged pin counts: the safe side */
    snprintf(file, sizeof file, "%s/pin/torn", gen_dir[2]);
    assert_int_equal(truncate(file, 5), 0);
    ok(cairn_artefact_collect(gen_dir[2], &r, &pinned, err));
    assert_int_equal(pinned, 1);
}

/* What a drop that was killed leaves beside no manifest is not the marker of what is made in its place. Whatever of the two is damaged: it counts. */
static void marker_of_another(void **state)
{
    char dir[700], marker[800], manifest[800];
    int64_t size;

    (void)state;
    snprintf(dir, sizeof dir, "%s", at("another"));
    snprintf(marker, sizeof marker, "%s/%s", dir, CAIRN_COLLECTED_NAME);
    snprintf(manifest, sizeof manifest, "%s/%s", dir, CAIRN_MANIFEST_NAME);
    fails(CAIRN_ENOINPUT, "not committed", cairn_artefact_mark(dir, "too early", err));
    ok(commit_small(dir, 1, 1, err));
    ok(cairn_artefact_collect(dir, &(struct cairn_retention){.reason = "gone"}, NULL, err));
    assert_true(cairn_artefact_collected(dir));
    assert_int_equal(unlink(manifest), 0);
    assert_true(cairn_artefact_collected(dir)); /* of a lost one, for all that anybody knows */
    ok(commit_small(dir, 1, 1, err)); /* the same again, made at another time */
    assert_true(cairn_path_exists(marker) && !cairn_artefact_collected(dir));
    ok(cairn_verify_tree(dir, NULL, NULL, err));
    ok(cairn_artefact_pin(dir, "reader", err));
    ok(cairn_artefact_unpin(dir, "reader", err));
    size = cairn_file_size(marker);
    for (int64_t i = 0; i < size; i++) { /* a damaged one is nobody's */
        flip(marker, i, 3);
        assert_true(cairn_artefact_collected(dir));
        flip(marker, i, 3);
    }
    assert_false(cairn_artefact_collected(dir));
    ok(cairn_artefact_collect(dir, &(struct cairn_retention){.reason = "gone again"}, NULL, err));
    assert_true(cairn_artefact_collected(dir));
    size = cairn_file_size(manifest);
    for (int64_t i = 0; i < size; i++) {
        flip(manifest, i, 3);
        assert_true(cairn_artefact_collected(dir));
        flip(manifest, i, 3);
    }
}

/* Killed anywhere during a collection: each generation is whole or collected, the kept ones are whole, and the next
 * collection ends the work. */
static void killed_in_between(void **state)
{
    struct cairn_retention r = {.keep = 2, .reason = "kill"};
    uint64_t seed = 21;

    (void)state;
    for (int round = 0; round < 30; round++) {
        struct cairn_verify_counts c = {0};
        char name[32], path[1200];
        int status;
        pid_t pid;

        snprintf(name, sizeof name, "gckill%d", round);
        make(name);
        fflush(NULL);
        if (!(pid = fork()))
            _exit(cairn_retention_apply(&r, gen, 6, NULL, NULL) != CAIRN_OK);
        {
            struct timespec t = {0, (long)(mix(&seed) % 4000000)};

            nanosleep(&t, NULL);
        }
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        assert_true(readable(4) && readable(5));
        for (int i = 0; i < 6; i++)
            assert_true(readable(i) || cairn_artefact_collected(gen_dir[i]));
        ok(cairn_verify_tree(at(name), NULL, &c, err));
        ok(cairn_retention_apply(&r, gen, 6, NULL, err));
        for (int i = 0; i < 4; i++) {
            snprintf(path, sizeof path, "%.690s/a1", gen_dir[i]);
            assert_false(cairn_path_exists(path));
        }
    }
}

static int count_in(const char *dir, const char *ending)
{
    struct cairn_names names = {0};
    int n = 0;

    ok(cairn_dir_names(&names, dir, NULL, err));
    for (size_t i = 0; i < names.n; i++)
        n += cairn_ends_with(names.name[i], ending);
    cairn_names_free(&names);
    return n;
}

/* Above 512 shards the manifest tells of them in index files: those are the record, too, and stay. What the attempt of another left goes. */
static void keeps_the_indexes(void **state)
{
    enum { N = 520 };
    const struct cairn_retention r = {.reason = "keep"};
    struct cairn_verify_counts c = {0};
    struct cairn_manifest_head before, after;
    struct cairn_names takes = {0};
    struct cairn_manifest *m;
    struct cairn_reader *reader;
    char dir[600], own[700], others[700], file[800];

    (void)state;
    snprintf(dir, sizeof dir, "%s", at("indexes"));
    snprintf(own, sizeof own, "%s/a1", dir);
    snprintf(others, sizeof others, "%s/a7", dir);
    snprintf(file, sizeof file, "%s/rank0000.json", others);
    ok(commit_rows(dir, N, err));
    ok(cairn_manifest_head(&before, dir, err));
    ok(cairn_dir_make(others, err));
    spew(file, "{}", 2);
    snprintf(file, sizeof file, "%s/stray", own);
    spew(file, "?", 1);
    ok(cairn_artefact_data(&takes, dir, err));
    assert_int_equal(takes.n, N + 2);
    assert_string_equal(takes.name[0], "a1/rank0000.h5");
    assert_string_equal(takes.name[N - 1], "a1/rank0519.h5");
    assert_string_equal(takes.name[N], "a1/stray");
    assert_string_equal(takes.name[N + 1], "a7");
    cairn_names_free(&takes);

    ok(cairn_artefact_collect(dir, &r, NULL, err));
    assert_false(cairn_path_exists(others));
    assert_true(count_in(own, "") == N && count_in(own, ".json") == N);
    ok(cairn_artefact_data(&takes, dir, err));
    assert_int_equal(takes.n, 0);
    ok(cairn_artefact_collect(dir, &r, NULL, err));
    ok(cairn_manifest_head(&after, dir, err));
    assert_true(cairn_digest_equal(before.digest, after.digest));
    ok(cairn_manifest_load(&m, dir, err));
    assert_int_equal(m->nshards, N);
    cairn_manifest_destroy(m);
    fails(CAIRN_ENOINPUT, "was collected: keep", cairn_reader_open(&reader, dir, NULL, err));
    ok(cairn_verify_tree(dir, NULL, &c, err));
    assert_true(c.artefacts == 1 && c.collected == 1 && c.bad == 0);
    snprintf(file, sizeof file, "%s/rank0317.json", own);
    flip(file, 100, 2);
    fails(CAIRN_EDATA, "rank0317.json", cairn_verify_tree(dir, NULL, NULL, err));
}

/* A manifest that holds all of its shards needs nothing beside it; nor does anybody know of a damaged one what it named. */
static void whole_folders(void **state)
{
    char dir[600], file[700];
    struct cairn_names takes = {0};

    (void)state;
    snprintf(dir, sizeof dir, "%s", at("inline"));
    snprintf(file, sizeof file, "%s/%s", dir, CAIRN_MANIFEST_NAME);
    ok(commit_rows(dir, 3, err));
    for (int damaged = 0; damaged < 2; damaged++) {
        ok(cairn_artefact_data(&takes, dir, err));
        assert_int_equal(takes.n, 1);
        assert_string_equal(takes.name[0], "a1");
        cairn_names_free(&takes);
        flip(file, 300, 1);
    }
    assert_int_equal(unlink(file), 0);
    ok(cairn_artefact_data(&takes, dir, err));
    assert_int_equal(takes.n, 1);
    cairn_names_free(&takes);
}

static void drops(void **state)
{
    (void)state;
    make("drop");
    ok(cairn_artefact_drop(gen_dir[3], err));
    assert_false(cairn_path_exists(gen_dir[3]));
    ok(cairn_artefact_drop(gen_dir[3], err));
    assert_true(readable(2) && readable(4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans),
        cmocka_unit_test(applies),
        cmocka_unit_test(calm_ends_the_look_back),
        cmocka_unit_test(uncommitted_ones_are_left_alone),
        cmocka_unit_test(damaged_ones_use_no_place),
        cmocka_unit_test(never_zero),
        cmocka_unit_test(pins),
        cmocka_unit_test(killed_in_between),
        cmocka_unit_test(marker_of_another),
        cmocka_unit_test(drops),
        cmocka_unit_test(keeps_the_indexes),
        cmocka_unit_test(whole_folders),
    };

    return cmocka_run_group_tests(tests, scratch_up, scratch_down);
}
