/* io_test.c - weights through artefacts and back: bases, policies, trainer states; equal bits, equal digests whatever the shards, and
 * refusals by name. */
#include "hfdir.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/log.h"
#include "model/base.h"
#include "model/hf.h"
#include "model/hf_save.h"
#include "model/io.h"
#include "model/passed.h"
#include "model/peft.h"
#include "model/policy.h"

static struct cairn_compute k;

static int setup(void **state)
{
    struct cairn_error e;

    cairn_log_quiet(1);
    if (cairn_compute_open(&k, &(struct cairn_compute_opts){.backend = "guard", .threads = 1}, &e) != CAIRN_OK)
        return -1;
    return hf_tmp_make(state);
}

static int teardown(void **state)
{
    cairn_compute_close(&k);
    return hf_tmp_remove(state);
}

static int import(const char *hf, const char *dir, int self_contained, int64_t shard_bytes)
{
    struct cairn_hf *h;
    int existed;

    OK(cairn_hf_open(&h, hf, err));
    OK(cairn_base_import(dir, h, &(struct cairn_base_opts){.self_contained = self_contained, .shard_bytes = shard_bytes}, &existed, err));
    cairn_hf_close(h);
    return existed;
}

static struct cairn_digest digest(const char *dir)
{
    struct cairn_manifest *m;
    struct cairn_digest d;

    OK(cairn_manifest_load(&m, dir, err));
    d = m->digest;
    cairn_manifest_destroy(m);
    return d;
}

static void export(const char *dir, const char *out, int64_t max_bytes)
{
    struct cairn_reader *r;
    struct cairn_model_config c;
    struct cairn_param_table t;
    struct cairn_hf_saved saved;

    OK(cairn_reader_open(&r, dir, NULL, err));
    OK(cairn_policy_config(&c, cairn_reader_manifest(r), NULL, dir, err));
    OK(cairn_param_table_create(&t, &c, err));
    OK(cairn_hf_save(out, &c, &t, &(struct cairn_hf_save_opts){.base_dir = dir, .base = r, .max_bytes = max_bytes}, &saved, err));
    cairn_param_table_free(&t);
    cairn_config_free(&c);
    cairn_reader_close(r);
}

static void stores_equal(const struct cairn_store *a, const struct cairn_store *b)
{
    assert_int_equal(a->table->count, b->table->count);
    for (int i = 0; i < a->table->count; i++) {
        float *x = tiny_get(&k, &a->tensor[i]), *y = tiny_get(&k, &b->tensor[i]);

        if (memcmp(x, y, cairn_tensor_bytes(&a->tensor[i])))
            fail_msg("%s differs", a->table->param[i].name);
        free(x);
        free(y);
    }
}

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

struct artefact { /* an open attempt and its manifest */
    struct cairn_manifest *m;
    struct cairn_attempt *a;
};

static struct artefact begin(const char *dir, const char *kind)
{
    struct artefact x = {.m = cairn_manifest_create(kind, 3, "run")};
    struct cairn_attempt_opts o = {.identity = cairn_manifest_identity(x.m)};

    OK(cairn_attempt_begin(&x.a, dir, &o, err));
    return x;
}

static void commit(struct artefact *x)
{
    OK(cairn_attempt_commit(x->a, x->m, err));
    cairn_attempt_end(x->a);
    cairn_manifest_destroy(x->m);
}

static float nearest_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    u += 0x7fff + (u >> 16 & 1);
    u &= 0xffff0000;
    memcpy(&x, &u, 4);
    return x;
}

/* Trainer states come back to the bit; the policy made from one is cast(master), frozen parameters the base's. */
static void training(void **state)
{
    struct tiny t;
    struct cairn_optimizer o, p;
    struct cairn_reader *r, *base;
    struct cairn_store w;
    struct artefact x;
    struct cairn_digest d[2];

    (void)state;
    tiny_open(&t, "guard", 1, TINY_SPARSE, 0);
    OK(cairn_base_init(hf_path("init"), &(struct cairn_base_init_opts){.config = t.config.raw, .seed = 5, .dtype = CAIRN_BF16, .run = "run"}, &t.k, err));
    OK(cairn_base_init(hf_path("init"), &(struct cairn_base_init_opts){.config = t.config.raw, .seed = 5, .dtype = CAIRN_BF16, .run = "run"}, &t.k, err));
    OK(cairn_optimizer_create(&o, &t.table, &t.k, err));
    OK(cairn_optimizer_create(&p, &t.table, &t.k, err));
    for (int i = 0; i < t.table.count; i++)
        if (o.m.tensor[i].buf) {
            tiny_random(&t.k, &o.master.tensor[i], 1, (uint32_t)i, 0.1);
            tiny_random(&t.k, &o.m.tensor[i], 2, (uint32_t)i, 0.1);
            tiny_random(&t.k, &o.v.tensor[i], 3, (uint32_t)i, 0.1);
        }
    for (int i = 0; i < 2; i++) { /* entries into the manifest, or by adoption */
        x = begin(hf_path(i ? "state2" : "state"), "trainer");
        json_object_set_new(x.m->content, "updates", json_integer(77));
        OK(cairn_trainer_save(&o, x.a, i ? NULL : x.m, &(struct cairn_trainer_save_opts){.identity = "inputs"}, err));
        if (i) {
            static const char *const names[] = {"master-00000", "m-00000", "v-00000"};
            char identity[100];

            for (int j = 0; j < 3; j++) {
                struct cairn_shard_entry *e = NULL;

                snprintf(identity, sizeof identity, "inputs|%s%s|0-%d", j == 0 ? "master:" : j == 1 ? "m:" : "v:", j == 0 ? "master" : j == 1 ? "m" : "v",
                         t.table.count);
                OK(cairn_attempt_adopt(x.a, names[j], identity, &e, err));
                assert_non_null(e);
                OK(cairn_manifest_add_shard(x.m, e, err));
            }
        }
        commit(&x);
        d[i] = digest(hf_path(i ? "state2" : "state"));
    }
    assert_true(cairn_digest_equal(d[0], d[1]));
    x = begin(hf_path("state3"), "trainer"); /* told, by sums that the device makes, of the same state */
    json_object_set_new(x.m->content, "updates", json_integer(77));
    OK(cairn_trainer_save(&o, x.a, x.m, &(struct cairn_trainer_save_opts){.hollow = 1}, err));
    commit(&x);
    assert_true(cairn_digest_equal(d[0], digest(hf_path("state3"))));
    OK(cairn_reader_open(&r, hf_path("state"), NULL, err));
    OK(cairn_trainer_load(&p, r, err));
    assert_int_equal(p.updates, 77);
    for (int s = 0; s < 3; s++) {
        float *a = tiny_get(&t.k, s == 0 ? &o.master.flat : s == 1 ? &o.m.flat : &o.v.flat);
        float *b = tiny_get(&t.k, s == 0 ? &p.master.flat : s == 1 ? &p.m.flat : &p.v.flat);

        assert_memory_equal(a, b, t.table.trainable_bytes);
        free(a);
        free(b);
    }
    OK(cairn_reader_open(&base, hf_path("init"), NULL, err));
    x = begin(hf_path("pol"), "policy");
    json_object_set(x.m->content, "config", t.config.raw);
    OK(cairn_policy_save(&t.table, r, base, CAIRN_BF16, x.a, x.m, "id", err));
    commit(&x);
    cairn_reader_close(r);
    OK(cairn_store_create(&w, &t.table, t.k.dev, 0, err));
    OK(cairn_reader_open(&r, hf_path("pol"), NULL, err));
    OK(cairn_load(&w, r, NULL, &t.k, NULL, err));
    for (int i = 0; i < t.table.count; i++) {
        const struct cairn_param *q = &t.table.param[i];
        float *have = tiny_get(&t.k, &w.tensor[i]), *want = tiny_get(&t.k, q->frozen ? &t.weights.tensor[i] : &o.master.tensor[i]);
        const struct cairn_tensor_entry *e;

        OK(cairn_reader_find(r, q->name, &e, err));
        assert_int_equal(e->dtype, q->keep_f32 ? CAIRN_F32 : CAIRN_BF16);
        assert_int_equal(e->each != NULL, q->ndim == 3);
        for (int64_t j = 0; j < cairn_param_count(q); j++) /* tiny's random selection biases are not the base's zeros */
            assert_true(have[j] == (q->keep_f32 ? 0 : nearest_bf16(want[j])));
        free(have);
        free(want);
    }
    cairn_reader_close(r);
    cairn_reader_close(base);
    cairn_store_free(&w);
    cairn_optimizer_free(&o);
    cairn_optimizer_free(&p);
    tiny_close(&t);
}

/* A stack's digest is the sum over the experts by their own names. */
static void stack_digests(void **state)
{
    struct cairn_manifest *m;
    struct cairn_hf *h;
    int checked = 0;

    (void)state;
    import("tests/fixtures/models/bf16-sharded-tiny", hf_path("stack"), 0, 0);
    OK(cairn_manifest_load(&m, hf_path("stack"), err));
    OK(cairn_hf_open(&h, "tests/fixtures/models/bf16-sharded-tiny", err));
    for (int i = 0; i < h->table.count; i++) {
        const struct cairn_param *p = &h->table.param[i];
        struct cairn_digest sum = {0, 0};

        if (p->ndim != 3)
            continue;
        for (int e = 0; e < p->dim[0]; e++) {
            char name[200];
            struct cairn_digest d;
            const struct cairn_st_tensor *t;
            struct cairn_slice s;
            void *x;

            cairn_expert_name(p->name, e, name, sizeof name);
            t = cairn_st_find(h->st, name);
            x = malloc((size_t)t->bytes);
            OK(cairn_st_read(h->st, t, 0, x, (size_t)t->bytes, err));
            s = cairn_slice_whole(name, CAIRN_BF16, 2, t->shape);
            OK(cairn_tensor_digest(&s, x, &d, err));
            sum = cairn_digest_add(sum, d);
            free(x);
        }
        assert_true(cairn_digest_equal(sum, cairn_manifest_find(m, p->name)->digest));
        checked++;
    }
    assert_int_equal(checked, 12);
    cairn_hf_close(h);
    cairn_manifest_destroy(m);
}

/* An adapter as a policy: in, out to equal bytes, on its base only; the next generation into the same memory. */
static void adapter_policies(void **state)
{
    const struct cairn_policy_opts quiet = {.quiet = 1};
    struct cairn_policy p, q;
    struct cairn_error e = {0};
    int existed;

    (void)state;
    import("tests/fixtures/models/glm52-tiny", hf_path("ab"), 0, 0);
    import("tests/fixtures/models/glm51-tiny", hf_path("other"), 0, 0);
    OK(cairn_policy_import(hf_path("ap"), "tests/fixtures/models/glm52-tiny/adapter", hf_path("ab"), &existed, err));
    assert_int_equal(existed, 0);
    OK(cairn_policy_import(hf_path("ap"), "tests/fixtures/models/glm52-tiny/adapter", hf_path("ab"), &existed, err));
    assert_int_equal(existed, 1);
    assert_int_equal(cairn_policy_import(hf_path("ap"), "tests/fixtures/models/glm52-tiny/adapter_mlp", hf_path("ab"), &existed, &e), CAIRN_EDATA);
    assert_int_equal(cairn_policy_import(hf_path("x"), "tests/fixtures/models/glm52-tiny/adapter", hf_path("other"), &existed, &e), CAIRN_EDATA);
    OK(cairn_policy_open(&p, hf_path("ap"), &quiet, &k, err)); /* finds its base by the recorded path */
    assert_int_equal(p.lora, 1);
    assert_true(cairn_digest_equal(p.base, digest(hf_path("ab"))));
    assert_true(cairn_digest_equal(p.digest, digest(hf_path("ap"))));
    OK(cairn_policy_open(&q, "tests/fixtures/models/glm52-tiny",
                         &(struct cairn_policy_opts){.quiet = 1, .adapter = "tests/fixtures/models/glm52-tiny/adapter"}, &k, err));
    stores_equal(&p.weights, &q.weights);
    stores_equal(&p.adapter_weights, &q.adapter_weights);
    cairn_policy_close(&q);
    assert_int_equal(cairn_policy_open(&q, hf_path("ap"), &(struct cairn_policy_opts){.base = hf_path("other")}, &k, &e), CAIRN_EDATA);
    assert_non_null(strstr(e.text, "stands on base"));
    assert_int_equal(cairn_policy_open(&q, hf_path("ap"), &(struct cairn_policy_opts){.base = hf_path("nowhere")}, &k, &e), CAIRN_ENOINPUT);
    assert_int_equal(cairn_policy_open(&q, hf_path("ap"), &(struct cairn_policy_opts){.adapter = "tests/fixtures/models/glm52-tiny/adapter"}, &k, &e),
                     CAIRN_EUSAGE);
    { /* the next generation */
        struct artefact x = begin(hf_path("ap1"), "policy");
        struct cairn_store_source from = {&p.adapter_weights, &k};
        struct cairn_source src = cairn_source_store(&from);
        char hex[33];

        cairn_digest_hex(p.base, hex);
        tiny_random(&k, &p.adapter_weights.tensor[4], 6, 6, 0.5);
        json_object_set_new(x.m->content, "base", json_string(hex));
        json_object_set_new(x.m->content, "adapter", cairn_adapter_to_json(&p.adapter, &p.table));
        OK(cairn_save(&src, x.a, x.m, &(struct cairn_save_opts){.stem = "weights", .dtype = CAIRN_F32}, err));
        commit(&x);
        OK(cairn_policy_open(&q, hf_path("ap1"), &(struct cairn_policy_opts){.quiet = 1, .base = hf_path("ab")}, &k, err));
        stores_equal(&p.adapter_weights, &q.adapter_weights);
        assert_int_equal(q.step, 3);
        OK(cairn_policy_next(&q, hf_path("ap"), &k, err));
        assert_true(cairn_digest_equal(q.digest, digest(hf_path("ap"))));
        OK(cairn_policy_next(&q, hf_path("ap1"), &k, err));
        stores_equal(&p.adapter_weights, &q.adapter_weights);
        assert_int_equal(cairn_policy_next(&q, hf_path("ab"), &k, &e), CAIRN_EDATA);
        cairn_policy_close(&q);
    }
    cairn_policy_close(&p);
}

/* What is no model, and what is damaged. */
static void refused(void **state)
{
    static const struct {
        const char *dir;
        enum cairn_status st;
        const char *says;
    } t[] = {
        {"tests/fixtures/models/none", CAIRN_ENOINPUT, "no such directory"},
        {"tests/fixtures/README.md", CAIRN_EDATA, "not a directory"},
        {"tests/fixtures/models", CAIRN_EDATA, "is no model"},
        {"tests/fixtures/models/glm51-tiny/adapter", CAIRN_EDATA, "--adapter"},
    };
    struct cairn_policy p;
    struct cairn_error e = {0};
    char path[300], *bytes;
    size_t n;
    struct cairn_reader *r;
    struct cairn_manifest *m;
    char *file;

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        assert_int_equal(cairn_policy_open(&p, t[i].dir, NULL, &k, &e), t[i].st);
        if (!strstr(e.text, t[i].says))
            fail_msg("%s: %s", t[i].dir, e.text);
    }
    import("tests/fixtures/models/glm51-tiny", hf_path("hurt"), 0, 0);
    /* a bit in the middle of a shard: the tensor is named, nothing is loaded */
    snprintf(path, sizeof path, "%s/a1/weights-00000.h5", hf_path("hurt"));
    OK(cairn_file_read(path, 1 << 26, &bytes, &n, err));
    bytes[n / 2] ^= 1;
    assert_int_equal(unlink(path), 0);
    OK(cairn_file_create(path, bytes, n, err));
    free(bytes);
    assert_int_equal(cairn_policy_open(&p, hf_path("hurt"), &(struct cairn_policy_opts){.quiet = 1}, &k, &e), CAIRN_EDATA);
    assert_non_null(strstr(e.text, "weights-00000.h5"));
    assert_non_null(strstr(e.text, "model.layers."));
    assert_int_equal(unlink(path), 0); /* a missing shard */
    assert_int_not_equal(cairn_policy_open(&p, hf_path("hurt"), &(struct cairn_policy_opts){.quiet = 1}, &k, &e), CAIRN_OK);
    assert_non_null(strstr(e.text, "weights-00000.h5"));
    /* small files are checked before use */
    OK(cairn_reader_open(&r, hf_path("hurt"), NULL, err));
    m = (struct cairn_manifest *)(uintptr_t)cairn_reader_manifest(r);
    OK(cairn_base_file(hf_path("hurt"), m, "config.json", &file, err));
    hf_write_file(hf_path("hurt"), "config.json", "{}");
    free(file);
    assert_int_equal(cairn_base_file(hf_path("hurt"), m, "config.json", &file, &e), CAIRN_EDATA);
    assert_non_null(strstr(e.text, "config.json has changed"));
    assert_int_equal(cairn_base_file(hf_path("hurt"), m, "tokenizer.json", &file, &e), CAIRN_ENOINPUT);
    assert_int_equal(cairn_base_file(hf_path("hurt"), m, "../config.json", &file, &e), CAIRN_ENOINPUT);
    cairn_reader_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),    cmocka_unit_test(fp8),           cmocka_unit_test(twice),
        cmocka_unit_test(passed_source), cmocka_unit_test(killed),        cmocka_unit_test(training),
        cmocka_unit_test(stack_digests), cmocka_unit_test(adapter_policies), cmocka_unit_test(refused),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
