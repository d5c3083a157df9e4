/* verify_test.c - every bad file is named, everything else is left in peace. */
#include "tests/ckpt/helpers.h"

#include "base/signals.h"
#include "ckpt/metadata.h"
#include "ckpt/retention.h"
#include "ckpt/verify.h"

static struct cairn_str told; /* "path: text;" of each bad thing */
static int told_n;

static void tell(void *arg, const char *path, const char *text)
{
    (void)arg;
    assert_non_null(strstr(text, strrchr(path, '/') ? strrchr(path, '/') + 1 : path)); /* the sentence names the file */
    cairn_str_printf(&told, "%s: %s;", path, text);
    told_n++;
}

static enum cairn_status verify(const char *dir, int deep, struct cairn_verify_counts *c, struct cairn_error *err)
{
    struct cairn_verify_opts o = {.deep = deep, .bad = tell};
    struct cairn_verify_counts own;

    cairn_str_clear(&told);
    told_n = 0;
    memset(c ? c : &own, 0, sizeof own);
    return cairn_verify_tree(dir, &o, c ? c : &own, err);
}

/* A small run: policies 0..2, each made from the one before, a sub-artefact, unrelated files. */
static void make_run(const char *name)
{
    char dir[700];

    for (int i = 0; i < 3; i++) {
        snprintf(dir, sizeof dir, "%s/policy/%06d", at(name), i);
        ok(commit_small(dir, i, i, err));
    }
    snprintf(dir, sizeof dir, "%s/policy/000002/u0001", at(name));
    ok(commit_small(dir, 2, 9, err));
    snprintf(dir, sizeof dir, "%s/policy/000003/epoch", at(name)); /* begun, not committed */
    ok(cairn_dir_make(dir, err));
    snprintf(dir, sizeof dir, "%s/policy/000003/a1", at(name));
    ok(cairn_dir_make(dir, err));
    snprintf(dir, sizeof dir, "%s/log", at(name));
    ok(cairn_dir_make(dir, err));
    snprintf(dir, sizeof dir, "%s/log/train.jsonl", at(name));
    spew(dir, "{}\n", 3);
}

static enum cairn_status list(void *arg, const char *path, const struct cairn_manifest_head *head, struct cairn_error *err)
{
    (void)err;
    cairn_str_printf(arg, "%s %lld;", path, (long long)head->step);
    return CAIRN_OK;
}

static void sound(void **state)
{
    struct cairn_verify_counts c;
    struct cairn_str s = {0};

    (void)state;
    make_run("sound");
    ok(verify(at("sound"), 0, &c, err));
    assert_int_equal(c.artefacts, 4);
    assert_int_equal(c.shards, 4);
    assert_int_equal(c.tensors, 8);
    assert_int_equal(c.bad, 0);
    assert_true(c.bytes > 4000);
    ok(verify(at("sound"), 1, &c, err));
    ok(cairn_digest_walk(at("sound"), list, &s, err));
    assert_string_equal(cairn_str_z(&s), "policy/000000 0;policy/000001 1;policy/000002 2;policy/000002/u0001 2;");
    cairn_str_free(&s);
    fails(CAIRN_EDATA, "no such directory", verify(at("nowhere"), 0, NULL, err));
}

/* Every bit of the tree's checked files, one at a time. */
static void every_byte(void **state)
{
    static const char *const files[] = {"MANIFEST.json", "a1/small.h5", "a1/small.json", "epoch/1"};
    static const int64_t dim[] = {5};
    float x[5] = {1, 2, 3, 4, 5};
    const void *p[1] = {x};
    struct cairn_slice s = cairn_slice_whole("t", CAIRN_F32, 1, dim);
    struct cairn_manifest *m = cairn_manifest_create("policy", 1, "r");
    struct cairn_attempt_opts o = {.identity = cairn_manifest_identity(m)};
    struct cairn_attempt *a;
    struct cairn_shard_entry *e;
    struct cairn_shard *w;
    char dir[600], file[700];

    (void)state;
    snprintf(dir, sizeof dir, "%s/policy/000001", at("bytes"));
    ok(cairn_attempt_begin(&a, dir, &o, err));
    ok(cairn_attempt_shard(a, &w, "small", &s, 1, NULL, err));
    ok(cairn_shard_write(w, 0, 0, p[0], sizeof x, err));
    ok(cairn_attempt_shard_done(a, &w, &e, err));
    ok(cairn_manifest_add_shard(m, e, err));
    ok(cairn_attempt_commit(a, m, err));
    cairn_attempt_end(a);
    cairn_manifest_destroy(m);
    ok(verify(at("bytes"), 1, NULL, err));
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        int64_t size;

        snprintf(file, sizeof file, "%s/%s", dir, files[f]);
        size = cairn_file_size(file);
        assert_true(size > 0);
        for (int64_t b = 0; b < size; b++) {
            flip(file, b, (int)(b * 5 % 8));
            if (verify(at("bytes"), 0, NULL, NULL) != CAIRN_EDATA || told_n != 1 || !strstr(cairn_str_z(&told), files[f]))
                fail_msg("%s: byte %lld flipped: told \"%s\"", files[f], (long long)b, cairn_str_z(&told));
            flip(file, b, (int)(b * 5 % 8));
        }
        for (int cut = 0; cut < 4; cut++) { /* 0, 1, half, all but one; and one more */
            int64_t len = cut == 0 ? 0 : cut == 1 ? 1 : cut == 2 ? size / 2 : size - 1;
            size_t n;
            char *whole = slurp(file, &n);

            assert_int_equal(truncate(file, len), 0);
            assert_int_equal(verify(at("bytes"), 0, NULL, NULL), CAIRN_EDATA);
            assert_non_null(strstr(cairn_str_z(&told), files[f]));
            spew(file, whole, n);
            free(whole);
        }
        assert_int_equal(truncate(file, size + 1), 0);
        assert_int_equal(verify(at("bytes"), 0, NULL, NULL), CAIRN_EDATA);
        assert_int_equal(truncate(file, size), 0);
    }
    ok(verify(at("bytes"), 1, NULL, err));
}

static void names_each_bad_file(void **state)
{
    char a[700], b[700];
    struct cairn_verify_counts c;

    (void)state;
    make_run("bad");
    snprintf(a, sizeof a, "%s/policy/000000/a1/rank0000.h5", at("bad"));
    snprintf(b, sizeof b, "%s/policy/000001/a1/rank0000.h5", at("bad"));
    flip(a, 100, 0);
    unlink(b);
    fails(CAIRN_EDATA, "policy/000000/a1/rank0000.h5", verify(at("bad"), 1, &c, err));
    assert_int_equal(c.bad, 2);
    assert_non_null(strstr(cairn_str_z(&told), "policy/000001/a1/rank0000.h5: no such file"));
    flip(a, 100, 0);
    /* a shard of an older generation under the new name: same size, other content */
    assert_int_equal(link(a, b), 0);
    fails(CAIRN_EDATA, "policy/000001/a1/rank0000.h5", verify(at("bad"), 0, &c, err));
    assert_int_equal(c.bad, 1);
}

/* What digests cannot see, because the writer itself was wrong: deep looks at content. */
static void deep_sees_more(void **state)
{
    struct cairn_manifest *m;
    struct cairn_error e;
    char *text, path[700];
    struct cairn_digest keep;
    size_t n;

    (void)state;
    ok(commit_small(at("deep/policy/000001"), 1, 1, err));
    snprintf(path, sizeof path, "%s/%s", at("deep/policy/000001"), CAIRN_MANIFEST_NAME);
    for (int what = 0; what < 5; what++) {
        ok(cairn_manifest_load(&m, at("deep/policy/000001"), err));
        keep = m->shards[0]->slices[0].sum;
        switch (what) {
        case 0: m->shards[0]->slices[0].sum.lo++; break;                 /* another logical digest */
        case 1: m->shards[0]->table_digest.hi++; break;
        case 2: m->shards[0]->slices[1].at += 4; break;                  /* shifted data */
        case 3: m->shards[0]->slices[0].dtype = CAIRN_I32; m->shards[0]->slices[0].sum = keep; break; /* another type of the same size */
        default: ok(cairn_manifest_add_input(m, "policy/000000", (struct cairn_digest){1, 1}, err)); /* missing lineage */
        }
        ok(cairn_manifest_seal(m, "test", err));
        ok(cairn_manifest_text(m, &text, &n, err));
        {
            size_t old_n;
            char *old = slurp(path, &old_n);

            spew(path, text, n);
            ok(verify(at("deep"), 0, NULL, err));
            assert_int_equal(verify(at("deep"), 1, NULL, &e), CAIRN_EDATA);
            spew(path, old, old_n);
            free(old);
        }
        free(text);
        cairn_manifest_destroy(m);
    }
    ok(verify(at("deep"), 1, NULL, err));
}

static void lineage(void **state)
{
    struct cairn_manifest *m;
    struct cairn_digest d;
    char *text, path[700];
    size_t n;

    (void)state;
    ok(commit_small(at("line/policy/000000"), 0, 1, err));
    ok(commit_small(at("line/policy/000001"), 1, 2, err));
    ok(cairn_manifest_load(&m, at("line/policy/000000"), err));
    d = m->digest;
    cairn_manifest_destroy(m);
    snprintf(path, sizeof path, "%s/%s", at("line/policy/000001"), CAIRN_MANIFEST_NAME);
    for (int what = 0; what < 4; what++) {
        static const char *const input[] = {"policy/000000", "policy/000000", "../x", "file:prompts"};

        ok(cairn_manifest_load(&m, at("line/policy/000001"), err));
        while (m->ninputs)
            free(m->inputs[--m->ninputs].path);
        if (what == 1)
            d.lo++;
        ok(cairn_manifest_add_input(m, input[what], d, err));
        ok(cairn_manifest_text(m, &text, &n, err));
        spew(path, text, n);
        free(text);
        cairn_manifest_destroy(m);
        if (what == 0 || what == 3)
            ok(verify(at("line"), 1, NULL, err));
        else
            fails(CAIRN_EDATA, what == 1 ? "another policy/000000" : "no place below", verify(at("line"), 1, NULL, err));
    }
}

static void collected_is_sound(void **state)
{
    struct cairn_verify_counts c;
    struct cairn_str before = {0}, after = {0};
    char path[700];

    (void)state;
    make_run("gc");
    ok(cairn_digest_walk(at("gc"), list, &before, err));
    ok(cairn_artefact_collect(at("gc/policy/000001"), &(struct cairn_retention){.reason = "test"}, NULL, err));
    ok(cairn_digest_walk(at("gc"), list, &after, err));
    assert_string_equal(cairn_str_z(&before), cairn_str_z(&after));
    ok(verify(at("gc"), 1, &c, err));
    assert_int_equal(c.collected, 1);
    snprintf(path, sizeof path, "%s/policy/000001/COLLECTED", at("gc"));
    flip(path, 5, 1);
    fails(CAIRN_EDATA, "COLLECTED", verify(at("gc"), 0, &c, err));
    cairn_str_free(&before);
    cairn_str_free(&after);
}

static void links_are_not_followed(void **state)
{
    struct cairn_verify_counts c;

    (void)state;
    make_run("links");
    assert_int_equal(symlink("policy", at("links/loop")), 0);
    assert_int_equal(symlink(".", at("links/policy/self")), 0);
    ok(verify(at("links"), 0, &c, err));
    assert_int_equal(c.artefacts, 4);
    assert_int_equal(symlink("links", at("door")), 0); /* but the root itself may be one */
    ok(verify(at("door"), 0, &c, err));
    assert_int_equal(c.artefacts, 4);
}

static void stops_when_asked(void **state)
{
    (void)state;
    make_run("stop");
    cairn_stop_request(15);
    fails(CAIRN_EAGAIN, "stopped", verify(at("stop"), 0, NULL, err));
    cairn_signals_reset();
    ok(verify(at("stop"), 0, NULL, err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound),   cmocka_unit_test(every_byte),         cmocka_unit_test(names_each_bad_file), cmocka_unit_test(deep_sees_more),
        cmocka_unit_test(lineage), cmocka_unit_test(collected_is_sound), cmocka_unit_test(links_are_not_followed), cmocka_unit_test(stops_when_asked),
    };
    int rc = cmocka_run_group_tests(tests, scratch_up, scratch_down);

    cairn_str_free(&told);
    return rc;
}
