/* run_test.c - run.c, begin.c: making a run, once and again, half made, from another recipe, with files that moved or changed. */
#include "tests/stages/lab.h"

#include "ckpt/attempt.h"
#include "ckpt/verify.h"
#include "model/policy.h"
#include "stages/common/begin.h"

static char *slurp(const char *dir, const char *name)
{
    char *path = cairn_path_join(dir, name), *text = NULL;
    size_t n;

    OK(cairn_file_read(path, 1 << 24, &text, &n, err));
    free(path);
    return text;
}

static int there(const char *dir, const char *name)
{
    char *path = cairn_path_join(dir, name);
    int yes = cairn_path_exists(path);

    free(path);
    return yes;
}

static void gone(const char *dir, const char *name)
{
    char *path = cairn_path_join(dir, name);

    OK(cairn_tree_remove(path, err));
    free(path);
}

static struct cairn_digest digest_of(const char *dir, const char *artefact)
{
    char *path = cairn_path_join(dir, artefact);
    struct cairn_manifest_head head;

    OK(cairn_manifest_head(&head, path, err));
    free(path);
    return head.digest;
}

/* Two calls give one run; two runs of one recipe have equal artefacts, and another seed has others. */
static void test_idempotent(void **state)
{
    struct cairn_run *run = NULL;
    struct cairn_digest base, policy;
    char *info, *again, other[300], uuid[33];
    struct lab l;

    (void)state;
    lab_open(&l);
    run = lab_init(&l, NULL);
    strcpy(uuid, run->uuid);
    assert_int_equal(strspn(uuid, "0123456789abcdef"), 32);
    info = slurp(l.run, "run.json");
    base = digest_of(l.run, "base");
    policy = digest_of(l.run, "policy/000000");
    cairn_run_close(run);
    run = lab_init(&l, NULL);
    again = slurp(l.run, "run.json");
    assert_string_equal(info, again);
    assert_string_equal(run->uuid, uuid);
    cairn_run_close(run);
    OK(cairn_run_open(&run, l.run, err));
    assert_string_equal(run->uuid, uuid);
    cairn_run_close(run);
    OK(cairn_verify_tree(l.run, &(struct cairn_verify_opts){.deep = 1}, &(struct cairn_verify_counts){0}, err));

    snprintf(other, sizeof other, "%s/other", l.dir);
    OK(lab_init_at(&run, &l, other, NULL, err));
    assert_string_not_equal(run->uuid, uuid);
    assert_true(cairn_digest_equal(base, digest_of(other, "base")));
    assert_true(cairn_digest_equal(policy, digest_of(other, "policy/000000")));
    cairn_run_close(run);
    snprintf(other, sizeof other, "%s/seed", l.dir);
    OK(lab_init_at(&run, &l, other, LAB_OVERRIDES("run.seed=8"), err));
    assert_false(cairn_digest_equal(policy, digest_of(other, "policy/000000")));
    cairn_run_close(run);
    free(info);
    free(again);
    lab_close(&l);
}

/* Killed anywhere while it is made: what is missing is made, with the same content. */
static void test_half_made(void **state)
{
    static const char *const row[][3] = {
        {"run.json", NULL},                                   /* before the last file of the directory itself */
        {"run.json", "recipe.yaml", NULL},                    /* hardly begun */
        {"base", "policy", NULL},                             /* before the model */
        {"policy", NULL},                                     /* before policy 0 */
        {"base/MANIFEST.json", "policy", NULL},               /* the base's shards are there, it was not committed */
        {"policy/000000/MANIFEST.json", NULL},
        {"files", "run.json", NULL},
    };
    struct cairn_digest base, policy;
    struct cairn_run *run;
    struct lab l;

    (void)state;
    lab_open(&l);
    run = lab_init(&l, NULL);
    cairn_run_close(run);
    base = digest_of(l.run, "base");
    policy = digest_of(l.run, "policy/000000");
    for (size_t i = 0; i < COUNT(row); i++) {
        for (int k = 0; k < 3 && row[i][k]; k++)
            gone(l.run, row[i][k]);
        run = lab_init(&l, NULL);
        assert_true(cairn_digest_equal(base, digest_of(l.run, "base")));
        assert_true(cairn_digest_equal(policy, digest_of(l.run, "policy/000000")));
        assert_true(there(l.run, "files/model.tokenizer") && there(l.run, "recipe.yaml"));
        OK(cairn_verify_tree(l.run, &(struct cairn_verify_opts){0}, &(struct cairn_verify_counts){0}, err));
        cairn_run_close(run);
    }
    lab_close(&l);
}

static void test_no_run(void **state)
{
    struct cairn_run *run = NULL;
    struct lab l;

    (void)state;
    lab_open(&l);
    FAILS(CAIRN_ENOINPUT, "no run here", cairn_run_open(&run, l.dir, err));
    FAILS(CAIRN_ENOINPUT, "nowhere", cairn_run_open(&run, "/nowhere", err));
    cairn_run_close(lab_init(&l, NULL));
    {
        char *text = slurp(l.run, "run.json"), *p = strstr(text, "uuid");
        char path[300];

        p[10] = p[10] == 'a' ? 'b' : 'a'; /* one letter of the uuid */
        snprintf(path, sizeof path, "%s/run.json", l.run);
        lab_write(path, text, strlen(text));
        FAILS(CAIRN_EDATA, "run.json", cairn_run_open(&run, l.run, err));
        lab_write(path, text, strlen(text) / 2);
        FAILS(CAIRN_EDATA, "run.json", cairn_run_open(&run, l.run, err));
        free(text);
    }
    lab_close(&l);
}

static void test_other_recipe(void **state)
{
    static const struct {
        const char *override, *word; /* NULL: taken */
    } row[] = {
        {"train.learning_rate=2.0e-2", "train.learning_rate: 0.01 -> 0.02 (science)"},
        {"run.seed=8", "run.seed: 7 -> 8 (science)"},
        {"rollout.page=8", "rollout.page: 4 -> 8 (layout)"},
        {LAB_WARM, "warm_start"},
        {"run.steps=9", NULL},
        {"log.interval=3", NULL},
        {"checkpoint.keep=5", NULL},
    };
    struct cairn_run *run;
    struct lab l;
    struct cairn_digest hash;

    (void)state;
    lab_open(&l);
    run = lab_init(&l, NULL);
    hash = run->hash;
    cairn_run_close(run);
    for (size_t i = 0; i < COUNT(row); i++) {
        const char *const *o = LAB_OVERRIDES(row[i].override);

        if (row[i].word) {
            FAILS(CAIRN_ERECIPE, row[i].word, lab_init_at(&run, &l, NULL, o, err));
            continue;
        }
        OK(lab_init_at(&run, &l, NULL, o, err));
        assert_true(cairn_digest_equal(hash, run->hash)); /* ops keys are no part of what a run is */
        cairn_run_close(run);
    }
    OK(cairn_run_open(&run, l.run, err)); /* ops keys stay changed: each call's recipe counts */
    assert_int_equal(cairn_recipe_i64(run->recipe, "checkpoint.keep"), 5);
    assert_int_equal(cairn_recipe_i64(run->recipe, "run.steps"), 2);
    cairn_run_close(run);
    lab_close(&l);
}

static void test_moved_file(void **state)
{
    struct cairn_run *run;
    char *dir, *text;
    struct lab l;

    (void)state;
    lab_open(&l);
    cairn_run_close(lab_init(&l, NULL));
    dir = cairn_path_join(l.dir, "moved");
    OK(cairn_dir_make(dir, err));
    text = slurp(l.dir, "prompts.jsonl");
    lab_put(&l, "moved/prompts.jsonl", text);
    /* the same content at another place */
    OK(lab_init_at(&run, &l, NULL, LAB_OVERRIDES("data.prompts.0.path=%s/moved/prompts.jsonl"), err));
    cairn_run_close(run);
    OK(cairn_run_open(&run, l.run, err)); /* and the run knows */
    assert_non_null(strstr(cairn_recipe_str(run->recipe, "data.prompts.0.path"), "/moved/"));
    assert_non_null(strstr(json_string_value(json_object_get(json_object_get(json_object_get(run->info, "outside"), "data.prompts.0"), "path")),
                           "/moved/"));
    cairn_run_close(run);
    /* other content */
    text[strlen(text) - 3] ^= 1;
    lab_put(&l, "moved/prompts.jsonl", text);
    FAILS(CAIRN_ERECIPE, "data.prompts.0", lab_init_at(&run, &l, NULL, LAB_OVERRIDES("data.prompts.0.path=%s/moved/prompts.jsonl"), err));
    /* the original has changed: the run would no longer mean what its recipe says */
    lab_put(&l, "prompts.jsonl", text);
    FAILS(CAIRN_ERECIPE, "data.prompts.0", lab_init_at(&run, &l, NULL, NULL, err));
    /* the original is gone: the run has its copy */
    gone(l.dir, "prompts.jsonl");
    OK(lab_init_at(&run, &l, NULL, NULL, err));
    cairn_run_close(run);
    free(text);
    free(dir);
    lab_close(&l);
}

static void test_outside(void **state)
{
    struct cairn_run *run;
    char *path = NULL, *text, copy[300];
    struct lab l;

    (void)state;
    lab_open(&l);
    run = lab_init(&l, NULL);
    OK(cairn_run_outside(run, "data.prompts.0", &path, err));
    assert_non_null(strstr(path, "/run/files/data.prompts.0"));
    free(path);
    lab_put(&l, "prompts.jsonl", "elsewhere now"); /* the copy is what counts */
    OK(cairn_run_outside(run, "data.prompts.0", &path, err));
    free(path);
    path = NULL;
    text = slurp(l.run, "files/data.prompts.0");
    text[5] ^= 1;
    snprintf(copy, sizeof copy, "%s/files/data.prompts.0", l.run);
    lab_write(copy, text, strlen(text));
    FAILS(CAIRN_EDATA, "data.prompts.0", cairn_run_outside(run, "data.prompts.0", &path, err));
    lab_write(copy, text, strlen(text) - 1);
    FAILS(CAIRN_EDATA, "data.prompts.0", cairn_run_outside(run, "data.prompts.0", &path, err));
    unlink(copy);
    FAILS(CAIRN_EDATA, "data.prompts.0", cairn_run_outside(run, "data.prompts.0", &path, err));
    FAILS(CAIRN_EDATA, "no outside file data.prompts.1", cairn_run_outside(run, "data.prompts.1", &path, err));
    assert_null(path);
    free(text);
    cairn_run_close(run);
    lab_close(&l);
}

static void test_bad_recipes(void **state)
{
    static const struct {
        const char *override;
        enum cairn_status status;
        const char *word;
    } row[] = {
        {"model.tokenizer=%s/none.json", CAIRN_ERECIPE, "none.json does not exist"},
        {"data.prompts.0.path=%s/none.jsonl", CAIRN_ERECIPE, "none.jsonl does not exist"},
        {"data.prompts.0.path=%s", CAIRN_ERECIPE, "is a directory"},
        {"model.init.vocab_size=261", CAIRN_ERECIPE, "has 262 ids, the model's embedding 261 rows"},
        {"model.init.model_type=llama", CAIRN_ERECIPE, "llama"},
        {"model.init.hidden_size=0", CAIRN_ERECIPE, "hidden_size"},
        {"model.adapter={rank: 4, targets: [nothing]}", CAIRN_ERECIPE, "nothing"},
        {"model.init=null", CAIRN_ERECIPE, "model"},
        {"train.lerning_rate=1", CAIRN_ERECIPE, "train.learning_rate"},
        {"data.template=glm5", CAIRN_ERECIPE, "<think>"},
        {"score.grader=maths", CAIRN_ERECIPE, "maths"},
        {"data.prompts.0.grader=guess", CAIRN_ERECIPE, "data.prompts.0.grader"},
        {"score.marker=[a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q]", CAIRN_ERECIPE, "score.marker"},
        {"data.template=glm6", CAIRN_ERECIPE, "glm6"},
        {"data.eval=[{name: a, path: %s/broken.jsonl}]", CAIRN_EDATA, "broken.jsonl:2"},
        {"data.prompts=[{path: %s/broken.jsonl}]", CAIRN_EDATA, "broken.jsonl:2"},
        {"data.prompts=[{path: %s/long.jsonl}]", CAIRN_EDATA, "long.jsonl:3: a prompt of 90 tokens"},
        {"data.eval=[{name: a, path: %s/long.jsonl}]", CAIRN_EDATA, "long.jsonl:3"},
        {"data.prompts=[{path: %s/empty.jsonl}]", CAIRN_EDATA, "empty.jsonl:2: the prompt has no tokens"},
        {"data.prompts=[{path: %s/chat.jsonl}]", CAIRN_EDATA, "chat.jsonl:2"}, /* the template has no roles */
        {"data.prompts=[{path: %s/long.jsonl, keys: {answer: gold}}]", CAIRN_EDATA, "long.jsonl:1: key \"gold\""},
        {"data.prompts=[{path: %s/long.jsonl, keys: {anwser: gold}}]", CAIRN_ERECIPE, "answer"},
        {"warm_start={data: %s/examples.jsonl}", CAIRN_EDATA, "examples.jsonl:2: key \"response\""},
        {"warm_start={data: %s/none.jsonl}", CAIRN_ERECIPE, "none.jsonl does not exist"},
        {"model.tokenizer=%s/broken.jsonl", CAIRN_EDATA, "broken.jsonl"},
    };
    struct cairn_run *run;
    struct lab l;

    (void)state;
    lab_open(&l);
    lab_put(&l, "broken.jsonl", "{\"prompt\": \"1+1=\", \"answer\": 2}\n{\"prompt\": \"1+1=\", \"answer\n");
    lab_put(&l, "long.jsonl",
            "{\"prompt\": \"a\", \"answer\": 1}\n{\"prompt\": \"b\", \"answer\": 1}\n{\"answer\": 2, \"prompt\": \""
            "123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890\"}\n");
    lab_put(&l, "empty.jsonl", "{\"prompt\": \"a\", \"answer\": 1}\n{\"prompt\": \"\", \"answer\": 1}\n");
    lab_put(&l, "chat.jsonl",
            "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"answer\": 1}\n"
            "{\"prompt\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"a\"}], \"answer\": 1}\n");
    lab_put(&l, "examples.jsonl", "{\"prompt\": \"a\", \"response\": \"b\"}\n{\"prompt\": \"a\"}\n");
    for (size_t i = 0; i < COUNT(row); i++) {
        FAILS(row[i].status, row[i].word, lab_init_at(&run, &l, NULL, LAB_OVERRIDES(row[i].override), err));
        assert_false(there(l.run, "run.json")); /* nothing is frozen: the mended recipe is taken */
    }
    /* What no stage will read is not looked at. */
    cairn_run_close(lab_init(&l, LAB_OVERRIDES("data.eval=[{name: a, path: %s/long.jsonl, limit: 2}]")));
    lab_close(&l);
}

/* Policy 0: the base as published, or an adapter that changes nothing yet; none with a warm start. */
static void test_policy0(void **state)
{
    static const char *const backends[] = {"kernels.backend=cpu", "kernels.backend=guard"};

    (void)state;
    for (int b = 0; b < 2; b++) {
        struct cairn_compute k = {0};
        struct cairn_policy p = {0};
        struct cairn_run *run;
        struct lab l;
        char *dir;

        lab_open(&l);
        run = lab_init(&l, LAB_OVERRIDES(backends[b], LAB_ADAPTER));
        dir = cairn_run_path(run, "policy/000000");
        OK(cairn_compute_open(&k, &(struct cairn_compute_opts){.backend = "cpu", .threads = 1}, err));
        OK(cairn_policy_open(&p, dir, &(struct cairn_policy_opts){.quiet = 1}, &k, err));
        assert_int_equal(p.lora, 1);
        assert_true(p.adapter.loras > 5);
        for (int i = 0; i < p.adapter.loras; i++) { /* A is random, B is zero */
            const struct cairn_lora *x = &p.adapter.lora[i];

            assert_true(x->gamma == 2);
            for (int m = 0; m < 2; m++) {
                const struct cairn_tensor *t = &p.adapter_weights.tensor[m ? x->b : x->a];
                int64_t n = cairn_tensor_count(t), nonzero = 0;
                float *h = malloc((size_t)n * sizeof *h);

                OK(cairn_tensor_get(&k.stream, t, h, (size_t)n * sizeof *h, err));
                for (int64_t e = 0; e < n; e++)
                    nonzero += h[e] != 0;
                assert_true(m ? nonzero == 0 : nonzero > n / 2);
                free(h);
            }
        }
        cairn_policy_close(&p);
        cairn_compute_close(&k);
        free(dir);
        cairn_run_close(run);
        gone(l.dir, "run");
        run = lab_init(&l, LAB_OVERRIDES(backends[b], LAB_WARM));
        assert_false(there(l.run, "policy/000000"));
        assert_true(there(l.run, "base/MANIFEST.json") && there(l.run, "files/warm_start.data"));
        cairn_run_close(run);
        lab_close(&l);
    }
}

/* model.from: an imported checkpoint, linked. */
static void test_from(void **state)
{
    struct cairn_run *run = NULL;
    char path[400], *real;
    struct lab l;

    (void)state;
    lab_open(&l);
    cairn_run_close(lab_init(&l, NULL)); /* its base serves as a checkpoint */
    snprintf(path, sizeof path, "%s/second", l.dir);
    FAILS(CAIRN_ERECIPE, "no imported checkpoint", lab_init_at(&run, &l, path, LAB_OVERRIDES("model.init=null", "model.from=%s"), err));
    gone(l.dir, "second");
    OK(lab_init_at(&run, &l, path, LAB_OVERRIDES("model.init=null", "model.from=%s/run/base"), err));
    cairn_run_close(run);
    OK(lab_init_at(&run, &l, path, LAB_OVERRIDES("model.init=null", "model.from=%s/run/base"), err)); /* again */
    assert_true(cairn_digest_equal(digest_of(path, "policy/000000"), digest_of(l.run, "policy/000000")));
    cairn_run_close(run);
    snprintf(path, sizeof path, "%s/second/base", l.dir);
    real = realpath(path, NULL);
    assert_non_null(strstr(real, "/run/base"));
    free(real);
    /* without model.tokenizer: the one that came with it */
    snprintf(path, sizeof path, "%s/third", l.dir);
    OK(lab_init_at(&run, &l, path, LAB_OVERRIDES("model.init=null", "model.tokenizer=null", "model.from=%s/run/base"), err));
    cairn_run_close(run);
    /* the checkpoint was moved: the link follows, if it is the same one */
    snprintf(path, sizeof path, "%s/second", l.dir);
    {
        char from[300], to[300];

        snprintf(from, sizeof from, "%s/run", l.dir);
        snprintf(to, sizeof to, "%s/away", l.dir);
        assert_int_equal(rename(from, to), 0);
    }
    FAILS(CAIRN_ERECIPE, "No such file", lab_init_at(&run, &l, path, LAB_OVERRIDES("model.init=null", "model.from=%s/run/base"), err));
    OK(lab_init_at(&run, &l, path, LAB_OVERRIDES("model.init=null", "model.from=%s/away/base"), err));
    cairn_run_close(run);
    cairn_run_close(lab_init(&l, LAB_OVERRIDES("run.seed=9")));
    FAILS(CAIRN_ERECIPE, "is not the checkpoint", lab_init_at(&run, &l, path, LAB_OVERRIDES("model.init=null", "model.from=%s/run/base"), err));
    lab_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idempotent),  cmocka_unit_test(test_half_made), cmocka_unit_test(test_no_run),  cmocka_unit_test(test_other_recipe),
        cmocka_unit_test(test_moved_file),  cmocka_unit_test(test_outside),   cmocka_unit_test(test_bad_recipes), cmocka_unit_test(test_policy0),
        cmocka_unit_test(test_from),
    };

    return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}
