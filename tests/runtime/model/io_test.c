/* io_test.c - weights through artefacts and back: policies, adapters, trainer states; and refusals by name. */
#include "iolab.h"

#include <fcntl.h>

#include "model/peft.h"

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

/* Trainer states come back to the bit; the policy made from one is cast(master), frozen parameters the base's. */
static void training(void **state)
{
    struct tiny t;
    struct cairn_optimizer o, p;
    struct cairn_reader *r, *base;
    struct cairn_store w;
    struct artefact x;
    struct cairn_manifest *m;
    struct cairn_digest d[2];
    char other[200];

    (void)state;
    tiny_open(&t, "guard", 1, TINY_SPARSE, 0);
    OK(cairn_base_init(hf_path("init"), &(struct cairn_base_init_opts){.config = t.config.raw, .seed = 5, .dtype = CAIRN_BF16, .run = "run"}, &t.k,
                       err));
    OK(cairn_base_init(hf_path("init"), &(struct cairn_base_init_opts){.config = t.config.raw, .seed = 5, .dtype = CAIRN_BF16, .run = "run"}, &t.k,
                       err));
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

                snprintf(identity, sizeof identity, "inputs|%s%s|0-%d",
                         j == 0   ? "master:"
                         : j == 1 ? "m:"
                                  : "v:",
                         j == 0   ? "master"
                         : j == 1 ? "m"
                                  : "v",
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
    OK(cairn_manifest_set_hollow(x.m, "told", err));
    commit(&x);
    assert_true(cairn_digest_equal(d[0], digest(hf_path("state3"))));
    OK(cairn_manifest_load(&m, hf_path("state3"), err)); /* and held against that state, without its data */
    OK(cairn_trainer_compare(&o, m, other, sizeof other, err));
    assert_string_equal(other, "");
    for (int s = 0; s < 3; s++) { /* one bit of one tensor of each set */
        const struct cairn_store *store = s == 0 ? &o.master : s == 1 ? &o.m : &o.v;
        int last = t.table.count - 1;
        char want[200];
        float *h;

        while (!store->tensor[last].buf)
            last--;
        h = tiny_get(&t.k, &store->tensor[last]);
        ((uint32_t *)(void *)h)[0] ^= 1;
        OK(cairn_tensor_set(&t.k.stream, &store->tensor[last], h, cairn_tensor_bytes(&store->tensor[last]), err));
        OK(cairn_trainer_compare(&o, m, other, sizeof other, err));
        snprintf(want, sizeof want, "%s%s", s == 0 ? "master:" : s == 1 ? "m:" : "v:", t.table.param[last].name);
        assert_string_equal(other, want);
        ((uint32_t *)(void *)h)[0] ^= 1;
        OK(cairn_tensor_set(&t.k.stream, &store->tensor[last], h, cairn_tensor_bytes(&store->tensor[last]), err));
        free(h);
    }
    OK(cairn_trainer_compare(&o, m, other, sizeof other, err));
    assert_string_equal(other, "");
    cairn_manifest_destroy(m);
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
    OK(cairn_policy_import(hf_path("policy/ap"), "tests/fixtures/models/glm52-tiny/adapter", hf_path("ab"), &existed, err));
    assert_int_equal(existed, 0);
    OK(cairn_policy_import(hf_path("policy/ap"), "tests/fixtures/models/glm52-tiny/adapter", hf_path("ab"), &existed, err));
    assert_int_equal(existed, 1);
    assert_int_equal(cairn_policy_import(hf_path("policy/ap"), "tests/fixtures/models/glm52-tiny/adapter_mlp", hf_path("ab"), &existed, &e),
                     CAIRN_EDATA);
    assert_int_equal(cairn_policy_import(hf_path("x"), "tests/fixtures/models/glm52-tiny/adapter", hf_path("other"), &existed, &e), CAIRN_EDATA);
    OK(cairn_policy_open(&p, hf_path("policy/ap"), &quiet, &k, err)); /* finds its base by the recorded path */
    assert_int_equal(p.lora, 1);
    assert_true(cairn_digest_equal(p.base, digest(hf_path("ab"))));
    assert_true(cairn_digest_equal(p.digest, digest(hf_path("policy/ap"))));
    OK(cairn_policy_open(&q, "tests/fixtures/models/glm52-tiny",
                         &(struct cairn_policy_opts){.quiet = 1, .adapter = "tests/fixtures/models/glm52-tiny/adapter"}, &k, err));
    stores_equal(&p.weights, &q.weights);
    stores_equal(&p.adapter_weights, &q.adapter_weights);
    cairn_policy_close(&q);
    assert_int_equal(cairn_policy_open(&q, hf_path("policy/ap"), &(struct cairn_policy_opts){.base = hf_path("other")}, &k, &e), CAIRN_EDATA);
    assert_non_null(strstr(e.text, "stands on base"));
    assert_int_equal(cairn_policy_open(&q, hf_path("policy/ap"), &(struct cairn_policy_opts){.base = hf_path("nowhere")}, &k, &e), CAIRN_ENOINPUT);
    assert_int_equal(
        cairn_policy_open(&q, hf_path("policy/ap"), &(struct cairn_policy_opts){.adapter = "tests/fixtures/models/glm52-tiny/adapter"}, &k, &e),
        CAIRN_EUSAGE);
    { /* the next generation */
        struct artefact x = begin(hf_path("policy/ap1"), "policy");
        struct cairn_store_source from = {&p.adapter_weights, &k};
        struct cairn_source src = cairn_source_store(&from);
        char hex[33];

        cairn_digest_hex(p.base, hex);
        tiny_random(&k, &p.adapter_weights.tensor[4], 6, 6, 0.5);
        json_object_set_new(x.m->content, "base", json_string(hex));
        json_object_set_new(x.m->content, "adapter", cairn_adapter_to_json(&p.adapter, &p.table));
        OK(cairn_save(&src, x.a, x.m, &(struct cairn_save_opts){.stem = "weights", .dtype = CAIRN_F32}, err));
        commit(&x);
        OK(cairn_policy_open(&q, hf_path("policy/ap1"), &(struct cairn_policy_opts){.quiet = 1, .base = hf_path("ab")}, &k, err));
        stores_equal(&p.adapter_weights, &q.adapter_weights);
        assert_int_equal(q.step, 3);
        OK(cairn_policy_next(&q, hf_path("policy/ap"), &k, err));
        assert_true(cairn_digest_equal(q.digest, digest(hf_path("policy/ap"))));
        OK(cairn_policy_next(&q, hf_path("policy/ap1"), &k, err));
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
        cmocka_unit_test(training),
        cmocka_unit_test(stack_digests),
        cmocka_unit_test(adapter_policies),
        cmocka_unit_test(refused),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
