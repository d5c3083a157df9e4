/* identity_test.c - what two recipes have in common: hashes, differences, amendments. */
#include "recipelab.h"

static void hashes(struct cairn_recipe *r, struct cairn_digest *both, struct cairn_digest *science)
{
    assert_int_equal(cairn_recipe_hash(r, both, NULL), CAIRN_OK);
    assert_int_equal(cairn_recipe_science_hash(r, science, NULL), CAIRN_OK);
}

/* What a change does to (science and layout hash, science hash). */
static void hash_takes_in(void **state)
{
    static const struct {
        const char *override;
        int both, science;
        const char *why;
    } t[] = {
        {"run.seed=1", 0, 0, "the default, said"},
        {"train.learning_rate=1.0e-5", 0, 0, "the default, written otherwise"},
        {"train.weight_decay=0", 0, 0, "an integer where a float is meant"},
        {"run.steps=7", 0, 0, "ops"},
        {"slurm.partition=gpu", 0, 0, "ops"},
        {"checkpoint.keep=5", 0, 0, "ops"},
        {"kernels.threads=3", 0, 0, "ops: threads change no bits"},
        {"rollout.batch=4", 0, 0, "ops"},
        {"log.level=debug", 0, 0, "ops"},
        {"model.tokenizer=/elsewhere/tok", 0, 0, "only the folder"},
        {"data.prompts.0.path=/elsewhere/train.jsonl", 0, 0, "only the folder"},
        {"data.prompts.0.weight=1.0", 0, 0, "default inside a list"},
        {"model.adapter=null", 0, 0, "off as it was"},
        {"run.seed=2", 1, 1, "science"},
        {"train.learning_rate=1.0000000000000002e-5", 1, 1, "one ulp"},
        {"data.prompts.0.path=other.jsonl", 1, 1, "another file"},
        {"data.prompts.0.weight=2", 1, 1, "inside a list"},
        {"model.adapter={}", 1, 1, "a section with nothing but defaults is not null"},
        {"rollout.dynamic={}", 1, 1, "the same"},
        {"model.init.hidden_size=97", 1, 1, "inside a free map"},
        {"rollout.stop=[]", 1, 1, "an empty list is not null"},
        {"kernels.dsa=reference", 1, 0, "layout"},
        {"train.pack=100", 1, 0, "layout"},
        {"numerics.segments=4", 1, 0, "layout"},
    };
    struct cairn_digest both, science, b, s;
    struct cairn_recipe *r = good_text(WHOLE);

    (void)state;
    hashes(r, &both, &science);
    cairn_recipe_free(r);
    for (int i = 0; i < N(t); i++) {
        r = good("r.yaml", 1, &t[i].override);
        hashes(r, &b, &s);
        if (cairn_digest_equal(both, b) == t[i].both || cairn_digest_equal(science, s) == t[i].science)
            fail_msg("%s (%s)", t[i].override, t[i].why);
        cairn_recipe_free(r);
    }
}

/* The same recipe in two folders, one through inheritance and in another order, has one hash. */
static void hash_is_free_of_places(void **state)
{
    struct cairn_digest a, b, sa, sb;
    struct cairn_recipe *r;

    (void)state;
    r = good_text(WHOLE "run: {seed: 5, steps: 3}\nrollout: {samples: 3}\n");
    hashes(r, &a, &sa);
    cairn_recipe_free(r);
    put("sub/p.yaml", "rollout:\n  samples: 3 # comment\nrun:\n  seed: 4\n");
    put("sub/deep/r.yaml", "inherit: ../p.yaml\ndata: {prompts: [{weight: 1, path: train.jsonl}]}\nrun: {steps: 3, seed: 5}\n"
                           "model: {tokenizer: ../tok, init: {hidden_size: 96, model_type: glm_moe_dsa}}\n");
    r = good("sub/deep/r.yaml", 0, NULL);
    hashes(r, &b, &sb);
    assert_true(cairn_digest_equal(a, b) && cairn_digest_equal(sa, sb));
    cairn_recipe_free(r);
}

/* The hash is written into artefacts: what it is taken over must never change. The text is spelled out by hand
 * from identity.c. */
static void hash_is_as_documented(void **state)
{
    static const char text[] = "{\"cairn recipe\":1,\"keys\":{\"data.prompts\":[{\"data.prompts.*.path\":\"train.jsonl\"}],"
                               "\"model.init\":{\"hidden_size\":96,\"model_type\":\"glm_moe_dsa\"},\"model.tokenizer\":\"tok\","
                               "\"rollout.dynamic\":{},\"rollout.dynamic.max_rounds\":3,\"train.pack\":100}}";
    const char *const overrides[] = {"rollout.dynamic.max_rounds=3", "train.pack=100", "run.steps=1"};
    struct cairn_recipe *r;
    struct cairn_digest d;

    (void)state;
    put("r.yaml", WHOLE);
    r = good("r.yaml", 3, overrides);
    assert_int_equal(cairn_recipe_hash(r, &d, NULL), CAIRN_OK);
    assert_true(cairn_digest_equal(d, cairn_digest_bytes(text, strlen(text))));
    cairn_recipe_free(r);
}

static void differences(void **state)
{
    static const char *const overrides[] = {"train.learning_rate=2e-5",
                                            "run.steps=7",
                                            "train.pack=100",
                                            "rollout.dynamic={max_rounds: 2}",
                                            "model.init.hidden_size=97",
                                            "model.init.extra=true",
                                            "data.prompts.0.weight=2",
                                            "data.prompts.0.path=/new/train.jsonl",
                                            "data.eval=[{name: e, path: /e}]",
                                            "slurm.extra=[\"--nice\"]"};
    struct cairn_recipe *a, *b;
    struct cairn_str s = {0};
    char moved[256];

    (void)state;
    a = good_text(WHOLE);
    b = good("r.yaml", N(overrides), overrides);
    assert_int_equal(cairn_recipe_diff(a, a, 15, &s), 0);
    assert_int_equal(cairn_recipe_diff(a, b, CAIRN_SCIENCE, &s), 6);
    assert_string_equal(s.p, "model.init.hidden_size: 96 -> 97 (science)\n"
                             "model.init.extra: null -> true (science)\n"
                             "data.prompts.0.weight: 1.0 -> 2.0 (science)\n"
                             "data.eval: [] -> [{name: e, path: /e, k: 1, limit: null, temperature: null, top_p: null, "
                             "max_new_tokens: null, grader: null, keys: null}] (science)\n"
                             "rollout.dynamic: null -> {keep: mixed, max_rounds: 2} (science)\n"
                             "train.learning_rate: 1e-5 -> 2e-5 (science)\n");
    cairn_str_clear(&s);
    assert_int_equal(cairn_recipe_diff(a, b, CAIRN_LAYOUT, &s), 1);
    assert_string_equal(s.p, "train.pack: 16384 -> 100 (layout)\n");
    cairn_str_clear(&s);
    assert_int_equal(cairn_recipe_diff(b, a, CAIRN_OPS, &s), 2);
    assert_string_equal(s.p, "run.steps: 7 -> 20 (ops)\nslurm.extra: [\"--nice\"] -> [] (ops)\n");
    cairn_str_clear(&s);
    assert_int_equal(cairn_recipe_diff(a, b, 15, &s), 10);
    snprintf(moved, sizeof moved, "data.prompts.0.path: %s/train.jsonl -> /new/train.jsonl (moved)\n", home);
    assert_non_null(strstr(s.p, moved));
    cairn_str_free(&s);
    cairn_recipe_free(a);
    cairn_recipe_free(b);
}

static void amendments(void **state)
{
    static const char *const good_one[] = {"train.learning_rate=3e-6", "data.prompts.0.path=new.jsonl"};
    static const char *const bad_one[] = {"train.learning_rate=4e-6", "train.learning_rat=1"};
    static const char *const limited[] = {"run.seed=4", "train.parallel.pp=2"};
    struct cairn_str before = {0}, after = {0};
    struct cairn_recipe *r;
    struct cairn_error err;
    char want[256];

    (void)state;
    r = good_text(WHOLE);
    assert_int_equal(cairn_recipe_apply(r, 2, good_one, "sub/amendment-0001.yaml", &err), CAIRN_OK);
    assert_true(cairn_recipe_f64(r, "train.learning_rate") == 3e-6);
    snprintf(want, sizeof want, "%s/sub/new.jsonl", home);
    assert_string_equal(cairn_recipe_str(r, "data.prompts.0.path"), want);
    assert_int_equal(cairn_recipe_write(r, &before, &err), CAIRN_OK);
    assert_int_equal(cairn_recipe_apply(r, 2, bad_one, "sub/amendment-0002.yaml", &err), CAIRN_ERECIPE);
    assert_string_equal(err.text,
                        "sub/amendment-0002.yaml:2:1: unknown key \"train.learning_rat\"; nearest valid key: train.learning_rate");
    assert_int_equal(cairn_recipe_apply(r, 2, limited, NULL, &err), CAIRN_ERECIPE);
    assert_string_equal(err.text, "command line:2:19: train.parallel.pp: 2: this build trains with pp 1 only");
    assert_int_equal(cairn_recipe_write(r, &after, &err), CAIRN_OK);
    assert_string_equal(before.p, after.p); /* as it was */
    cairn_recipe_free(r);
    cairn_str_free(&before);
    cairn_str_free(&after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hash_takes_in),
        cmocka_unit_test(hash_is_free_of_places),
        cmocka_unit_test(hash_is_as_documented),
        cmocka_unit_test(differences),
        cmocka_unit_test(amendments),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
