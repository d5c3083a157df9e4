/* base_test.c - HuggingFace checkpoints in and out: equal bits and equal digests whatever the shards, twice, and killed in between. */
#include "iolab.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "model/passed.h"

/* In and out again: every tensor bit for bit, whatever its form, type, place and the shards' size; config.json byte for byte. */
static void round_trip(void **state)
{
    static const struct {
        const char *dir; /* fixture, or NULL: made */
        enum cairn_dtype dtype;
        int flags, self_contained;
        int64_t shard_bytes, file_bytes;
    } t[] = {
        {"tests/fixtures/models/glm51-tiny", 0, 0, 0, 0, 0},
        {"tests/fixtures/models/glm52-tiny", 0, 0, 1, 100000, 0},
        {"tests/fixtures/models/bf16-sharded-tiny", 0, 0, 0, 50000, 300000},
        {NULL, CAIRN_F32, 0, 0, 0, 0},
        {NULL, CAIRN_BF16, HF_MTP, 0, 20000, 60000},
        {NULL, CAIRN_BF16, HF_MTP, 1, 20000, 60000},
        {NULL, CAIRN_F16, HF_FUSED | HF_MTP, 1, 0, 0},
        {NULL, CAIRN_F64, HF_FUSED, 1, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const char *hf = t[i].dir;
        char dir[300], out[300], a[400], b[400], *p, *q;
        struct cairn_policy x, y;
        size_t n, m;

        snprintf(dir, sizeof dir, "%s/base%zu", hf_tmp, i);
        snprintf(out, sizeof out, "%s/out%zu", hf_tmp, i);
        if (!hf) {
            struct hfdir *d = hf_make("{}", t[i].dtype, t[i].flags);

            hf = hf_path("made");
            OK(cairn_tree_remove(hf, err));
            if (t[i].flags & HF_MTP) {
                hf_add(d, "visual.patch_embed.weight", CAIRN_U8, 4, 3, 4, 5);
                d->t[d->n - 1].shape[3] = 6;
                hf_add(d, "visual/odd name", CAIRN_I64, 1, 7, 0, 0); /* a name that no dataset can have */
                hf_add(d, "visual.scalar", CAIRN_F32, 0, 0, 0, 0);
                hf_add(d, "visual.empty", CAIRN_F32, 2, 0, 3, 0);
            }
            hf_write(d, hf, t[i].file_bytes);
            hf_write_file(hf, "tokenizer.json", "{\"not\": \"looked at\"}");
            hf_write_file(hf, "chat_template.jinja", "{{ x }}");
            hf_free(d);
        }
        assert_int_equal(import(hf, dir, t[i].self_contained, t[i].shard_bytes), 0);
        export(dir, out, t[i].file_bytes);
        hf_same(hf, out);
        snprintf(a, sizeof a, "%s/config.json", hf);
        snprintf(b, sizeof b, "%s/config.json", out);
        OK(cairn_file_read(a, 1 << 20, &p, &n, err));
        OK(cairn_file_read(b, 1 << 20, &q, &m, err));
        assert_int_equal(n, m);
        assert_memory_equal(p, q, n);
        free(p);
        free(q);
        if (!t[i].dir) {
            snprintf(b, sizeof b, "%s/chat_template.jinja", out);
            assert_int_equal(cairn_file_size(b), 7);
        }
        /* the sampler sees the same numbers in both */
        OK(cairn_policy_open(&x, hf, &(struct cairn_policy_opts){.quiet = 1}, &k, err));
        OK(cairn_policy_open(&y, dir, &(struct cairn_policy_opts){.quiet = 1}, &k, err));
        stores_equal(&x.weights, &y.weights);
        cairn_policy_close(&x);
        cairn_policy_close(&y);
    }
}

/* FP8: BF16 from import on, scales gone, configuration without quantization_config; the export is the import's own twin. */
static void fp8(void **state)
{
    struct hfdir *d = hf_make("{\"hidden_size\": 144}", CAIRN_BF16, HF_FP8 | HF_MTP);
    struct cairn_policy x, y;
    struct cairn_st *st;
    json_t *o;

    (void)state;
    hf_write(d, hf_path("f8"), 0);
    import(hf_path("f8"), hf_path("f8base"), 0, 0);
    export(hf_path("f8base"), hf_path("f8out"), 0);
    OK(cairn_json_load(&o, hf_path("f8out/config.json"), 1 << 20, err));
    assert_null(json_object_get(o, "quantization_config"));
    json_decref(o);
    OK(cairn_st_open(&st, hf_path("f8out"), err));
    for (int i = 0; i < cairn_st_count(st); i++) {
        const struct cairn_st_tensor *t = cairn_st_at(st, i);

        if (strstr(t->name, "scale_inv") || (t->dtype != CAIRN_BF16 && !strstr(t->name, "e_score")))
            fail_msg("%s is %s", t->name, t->word);
    }
    cairn_st_close(st);
    OK(cairn_policy_open(&x, hf_path("f8"), &(struct cairn_policy_opts){.quiet = 1}, &k, err));
    OK(cairn_policy_open(&y, hf_path("f8out"), &(struct cairn_policy_opts){.quiet = 1}, &k, err));
    stores_equal(&x.weights, &y.weights);
    cairn_policy_close(&x);
    cairn_policy_close(&y);
    import(hf_path("f8out"), hf_path("f8again"), 0, 0);
    export(hf_path("f8again"), hf_path("f8out2"), 0);
    hf_same(hf_path("f8out"), hf_path("f8out2"));
    hf_free(d);
}

static void touch(const char *path)
{
    const struct timespec t[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};

    assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
}

static void twice(void **state)
{
    struct hfdir *d = hf_make("{}", CAIRN_BF16, HF_MTP);
    struct cairn_hf *h;
    struct cairn_error e = {0};
    struct cairn_digest first;
    int existed;

    (void)state;
    hf_write(d, hf_path("src"), 0);
    assert_int_equal(import(hf_path("src"), hf_path("two"), 0, 0), 0);
    first = digest(hf_path("two"));
    assert_int_equal(import(hf_path("src"), hf_path("two"), 0, 0), 1);
    touch(hf_path("src/model.safetensors")); /* other time, same bytes: compared by digests */
    assert_int_equal(import(hf_path("src"), hf_path("two"), 0, 0), 1);
    assert_true(cairn_digest_equal(first, digest(hf_path("two"))));
    /* a copy, imported elsewhere in shards of another size: the same logical content */
    hf_write(d, hf_path("copy"), 0);
    import(hf_path("copy"), hf_path("three"), 0, 9000);
    assert_true(cairn_digest_equal(first, digest(hf_path("three"))));
    /* self-contained was asked for, but is not */
    OK(cairn_hf_open(&h, hf_path("src"), err));
    assert_int_equal(cairn_base_import(hf_path("two"), h, &(struct cairn_base_opts){.self_contained = 1}, &existed, &e), CAIRN_EDATA);
    assert_non_null(strstr(e.text, "self-contained"));
    /* a tokenizer larger than the embedding */
    assert_int_equal(cairn_base_import(hf_path("no"), h, &(struct cairn_base_opts){.tokenizer_ids = 121}, &existed, &e), CAIRN_EDATA);
    assert_non_null(strstr(e.text, "121 ids"));
    cairn_hf_close(h);
    { /* one flipped bit in a weight, then in what passes through */
        static const char *const names[] = {"model.layers.3.mlp.experts.4.up_proj.weight", "model.layers.5.eh_proj.weight"};

        for (int i = 0; i < 2; i++) {
            struct cairn_st *st;
            int64_t at;
            int fd = open(hf_path("src/model.safetensors"), O_RDWR);
            unsigned char c;

            OK(cairn_st_open(&st, hf_path("src"), err));
            at = cairn_st_find(st, names[i])->at + 5;
            cairn_st_close(st);
            assert_int_equal(pread(fd, &c, 1, at), 1);
            c ^= 4;
            assert_int_equal(pwrite(fd, &c, 1, at), 1);
            OK(cairn_hf_open(&h, hf_path("src"), err));
            assert_int_equal(cairn_base_import(hf_path("two"), h, &(struct cairn_base_opts){0}, &existed, &e), CAIRN_EDATA);
            assert_non_null(strstr(e.text, i ? "eh_proj" : "layers.3.mlp.experts.up_proj"));
            cairn_hf_close(h);
            c ^= 4;
            assert_int_equal(pwrite(fd, &c, 1, at), 1);
            close(fd);
        }
    }
    hf_free(d);
}

/* Where what passes through lies: gone, changed, or inside. */
static void passed_source(void **state)
{
    struct hfdir *d = hf_make("{}", CAIRN_BF16, HF_MTP);
    struct cairn_reader *r;
    struct cairn_model_config c;
    struct cairn_param_table t;
    struct cairn_hf_saved saved;
    struct cairn_error e = {0};

    (void)state;
    hf_write(d, hf_path("ps"), 0);
    import(hf_path("ps"), hf_path("refer"), 0, 0);
    import(hf_path("ps"), hf_path("inside"), 1, 100);
    OK(cairn_reader_open(&r, hf_path("refer"), NULL, err));
    OK(cairn_policy_config(&c, cairn_reader_manifest(r), NULL, "x", err));
    OK(cairn_param_table_create(&t, &c, err));
    { /* changed */
        const struct cairn_hf_save_opts o = {.base_dir = hf_path("refer"), .base = r};
        struct hfdir *other = hf_make("{}", CAIRN_BF16, HF_MTP);

        hf_find(other, "model.layers.5.eh_proj.weight")->shape[0] = 47;
        hf_write(other, hf_path("ps"), 0);
        assert_int_equal(cairn_hf_save(hf_path("po"), &c, &t, &o, &saved, &e), CAIRN_EDATA);
        assert_non_null(strstr(e.text, "eh_proj"));
        assert_int_equal(cairn_file_size(hf_path("po/model.safetensors")), -1); /* nothing half done under its name */
        hf_free(other);
        /* gone */
        OK(cairn_tree_remove(hf_path("ps"), err));
        assert_int_equal(cairn_hf_save(hf_path("po"), &c, &t, &o, &saved, &e), CAIRN_ENOINPUT);
        assert_non_null(strstr(e.text, "self-contained"));
    }
    { /* left out */
        const struct cairn_hf_save_opts o = {.base_dir = hf_path("refer"), .base = r, .trained_only = 1};

        OK(cairn_hf_save(hf_path("po"), &c, &t, &o, &saved, err));
        assert_int_equal(saved.passed, 0);
    }
    cairn_reader_close(r);
    cairn_param_table_free(&t);
    cairn_config_free(&c);
    export(hf_path("inside"), hf_path("pi"), 0);
    hf_write(d, hf_path("ps"), 0);
    hf_same(hf_path("ps"), hf_path("pi"));
    hf_free(d);
}

/* kill -9 at random moments of an import in small shards; the next goes on; the end is the same. */
static void killed(void **state)
{
    struct hfdir *d = hf_make("{}", CAIRN_F32, HF_MTP);
    struct cairn_digest want;
    uint64_t counter = 0;
    int adopted = 0;

    (void)state;
    hf_write(d, hf_path("ks"), 0);
    import(hf_path("ks"), hf_path("whole"), 1, 24000);
    want = digest(hf_path("whole"));
    for (int round = 0; round < 4; round++) {
        char dir[300];
        int tries = 0, wait_status;

        snprintf(dir, sizeof dir, "%s/k%d", hf_tmp, round);
        while (!cairn_artefact_committed(dir)) {
            pid_t child = fork();

            assert_true(child >= 0);
            if (child == 0) {
                import(hf_path("ks"), dir, 1, 24000);
                _exit(0);
            }
            usleep(tiny_draw(&counter, 30000) + 15000 * (uint32_t)tries);
            kill(child, SIGKILL);
            assert_int_equal(waitpid(child, &wait_status, 0), child);
            if (++tries == 15)
                import(hf_path("ks"), dir, 1, 24000);
        }
        adopted += tries > 1;
        assert_true(cairn_digest_equal(digest(dir), want));
        assert_int_equal(import(hf_path("ks"), dir, 1, 24000), 1);
        export(dir, hf_path("ko"), 0);
        hf_same(hf_path("ks"), hf_path("ko"));
    }
    assert_true(adopted > 0);
    hf_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(fp8),
        cmocka_unit_test(twice),
        cmocka_unit_test(passed_source),
        cmocka_unit_test(killed),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
