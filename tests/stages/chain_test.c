/* chain_test.c - chain.c: which links a run has, in which order, what each reads, and what goes into its identity. */
#include "tests/stages/lab.h"

#include "ckpt/attempt.h"

/* A run that has only a recipe: chain and inputs are functions of it alone. */
static void run_of(struct cairn_run *r, const struct lab *l, const char *const *override)
{
    *r = (struct cairn_run){.dir = (char *)l->dir};
    OK(lab_recipe_load(&r->frozen, l, override, err));
    r->recipe = r->frozen;
}

static void chain_text(const struct cairn_run *r, struct cairn_str *s)
{
    struct cairn_link *link = NULL;
    int n = 0;

    OK(cairn_run_chain(r, &link, &n, err));
    for (int i = 0; i < n; i++) {
        char *name = cairn_link_relative(&link[i]);

        cairn_str_printf(s, "%s%s", i ? " " : "", name);
        free(name);
    }
    free(link);
}

#define STEP(n) "step/00000" #n "/rollout step/00000" #n "/score step/00000" #n "/train policy/00000" #n
#define EVAL(n, set) "eval/00000" #n "/" set "/rollout eval/00000" #n "/" set "/score"
#define SETS "data.eval=[{name: a, path: %s/held.jsonl}, {name: b, path: more.jsonl}]"

static void test_order(void **state)
{
    static const struct {
        const char *override[5], *chain, *why;
    } row[] = {
        {{"run.steps=2"}, STEP(1) " " STEP(2), "plain"},
        {{"run.steps=1", LAB_WARM}, "step/000000/train policy/000000 " STEP(1), "warm start: step 0 trains and syncs"},
        {{"run.steps=0", LAB_WARM}, "step/000000/train policy/000000", "no further than the warm start"},
        {{"run.steps=0"}, "", "nothing to do"},
        {{"run.steps=0", "run.check=first"}, "", "nothing to do, nothing to check"},
        {{"run.steps=1", "run.check=first"}, "check " STEP(1), "the gate stands first"},
        {{"run.steps=1", "run.check=first", LAB_WARM}, "check step/000000/train policy/000000 " STEP(1), "the gate before the warm start"},
        {{"run.steps=3", "run.eval_every=2", LAB_EVAL},
         EVAL(0, "held") " " STEP(1) " " STEP(2) " " EVAL(2, "held") " " STEP(3) " " EVAL(3, "held"),
         "before step 1, every second, after the last"},
        {{"run.steps=2", "run.eval_every=2", LAB_EVAL}, EVAL(0, "held") " " STEP(1) " " STEP(2) " " EVAL(2, "held"), "the last only once"},
        {{"run.steps=2", "run.eval_every=0", LAB_EVAL}, STEP(1) " " STEP(2), "eval_every 0: never"},
        {{"run.steps=1", "run.eval_every=5", LAB_WARM, LAB_EVAL},
         "step/000000/train policy/000000 " EVAL(0, "held") " " STEP(1) " " EVAL(1, "held"), "policy 0 is evaluated behind its sync"},
        {{"run.steps=1", "run.eval_every=1", SETS}, EVAL(0, "a") " " EVAL(0, "b") " " STEP(1) " " EVAL(1, "a") " " EVAL(1, "b"), "two sets"},
    };
    struct lab l;

    (void)state;
    lab_open(&l);
    for (size_t i = 0; i < COUNT(row); i++) {
        struct cairn_str s = {0};
        struct cairn_run r;

        run_of(&r, &l, row[i].override);
        chain_text(&r, &s);
        if (strcmp(cairn_str_z(&s), row[i].chain))
            fail_msg("%s: %s\nexpected %s", row[i].why, cairn_str_z(&s), row[i].chain);
        cairn_str_free(&s);
        cairn_recipe_free(r.recipe);
    }
    lab_close(&l);
}

static void test_inputs(void **state)
{
    static const struct {
        int64_t step;
        enum cairn_stage stage;
        const char *eval;
        int warm;
        const char *inputs, *outside;
    } row[] = {
        {1, CAIRN_STAGE_ROLLOUT, NULL, 0, "policy/000000", "model.tokenizer data.prompts.0 data.prompts.1"},
        {2, CAIRN_STAGE_ROLLOUT, NULL, 0, "policy/000001 step/000001/rollout", "model.tokenizer data.prompts.0 data.prompts.1"},
        {3, CAIRN_STAGE_SCORE, NULL, 0, "step/000003/rollout", "model.tokenizer data.prompts.0 data.prompts.1"},
        {1, CAIRN_STAGE_TRAIN, NULL, 0, "policy/000000 step/000001/rollout step/000001/score", "model.tokenizer"},
        {1, CAIRN_STAGE_TRAIN, NULL, 1, "policy/000000 step/000001/rollout step/000001/score step/000000/train", "model.tokenizer"},
        {2, CAIRN_STAGE_TRAIN, NULL, 0, "policy/000001 step/000002/rollout step/000002/score step/000001/train", "model.tokenizer"},
        {0, CAIRN_STAGE_TRAIN, NULL, 1, "base", "model.tokenizer warm_start.data"},
        {0, CAIRN_STAGE_SYNC, NULL, 0, "base", ""},
        {0, CAIRN_STAGE_SYNC, NULL, 1, "step/000000/train", ""},
        {5, CAIRN_STAGE_SYNC, NULL, 0, "step/000005/train", ""},
        {0, CAIRN_STAGE_CHECK, NULL, 0, "policy/000000", ""},
        {0, CAIRN_STAGE_CHECK, NULL, 1, "base", ""},
        {4, CAIRN_STAGE_ROLLOUT, "b", 0, "policy/000004", "model.tokenizer data.eval.1"},
        {4, CAIRN_STAGE_SCORE, "a", 0, "eval/000004/a/rollout", "model.tokenizer data.eval.0"},
    };
    struct lab l;

    (void)state;
    lab_open(&l);
    for (size_t i = 0; i < COUNT(row); i++) {
        const struct cairn_link link = {row[i].step, row[i].stage, row[i].eval};
        const char *what[] = {row[i].inputs, row[i].outside};
        struct cairn_run r;

        run_of(&r, &l, LAB_OVERRIDES(SETS, "data.prompts=[{path: %s/prompts.jsonl}, {path: more.jsonl}]", row[i].warm ? LAB_WARM : NULL));
        for (int k = 0; k < 2; k++) {
            struct cairn_str s = {0};
            char **names = NULL;
            int n = 0;

            if (k)
                OK(cairn_link_outside(&r, &link, &names, &n, err));
            else
                OK(cairn_link_inputs(&r, &link, &names, &n, err));
            for (int j = 0; j < n; j++)
                cairn_str_printf(&s, "%s%s", j ? " " : "", names[j]);
            if (strcmp(cairn_str_z(&s), what[k]))
                fail_msg("row %zu: %s\nexpected %s", i, cairn_str_z(&s), what[k]);
            cairn_strings_free(names, n);
            cairn_str_free(&s);
        }
        cairn_recipe_free(r.recipe);
    }
    lab_close(&l);
}

/* No number of files is too large. */
static void test_many_files(void **state)
{
    const struct cairn_link link = {1, CAIRN_STAGE_SCORE, NULL};
    struct cairn_str s = {0};
    struct cairn_run r;
    struct lab l;
    char **names = NULL;
    int n = 0;

    (void)state;
    lab_open(&l);
    lab_put(&l, "last.yaml", "inherit: [recipe.yaml, many.yaml]\n");
    cairn_str_puts(&s, "data: {prompts: [");
    for (int i = 0; i < 200; i++)
        cairn_str_printf(&s, "%s{path: p%d.jsonl}", i ? ", " : "", i);
    cairn_str_puts(&s, "]}\n");
    lab_put(&l, "many.yaml", cairn_str_z(&s));
    cairn_str_free(&s);
    r = (struct cairn_run){.dir = l.dir};
    {
        char path[300];

        snprintf(path, sizeof path, "%s/last.yaml", l.dir);
        OK(cairn_recipe_load(&r.recipe, path, 0, NULL, err));
    }
    OK(cairn_link_outside(&r, &link, &names, &n, err));
    assert_int_equal(n, 201);
    assert_string_equal(names[200], "data.prompts.199");
    cairn_strings_free(names, n);
    cairn_recipe_free(r.recipe);
    lab_close(&l);
}

/* The identity of a link holds the recipe, its inputs and its outside files; an input that is not committed is named. */
static void test_manifest(void **state)
{
    const struct cairn_link rollout = {1, CAIRN_STAGE_ROLLOUT, NULL}, score = {1, CAIRN_STAGE_SCORE, NULL};
    struct cairn_manifest *m = NULL, *again = NULL;
    struct cairn_manifest_head head;
    struct cairn_run *run;
    struct lab l;
    char *path;

    (void)state;
    lab_open(&l);
    run = lab_init(&l, NULL);
    OK(cairn_link_manifest(run, &rollout, &m, err));
    assert_string_equal(m->kind, "rollout");
    assert_string_equal(m->run, run->uuid);
    assert_int_equal(m->step, 1);
    assert_true(cairn_digest_equal(m->recipe, run->hash));
    assert_int_equal(m->ninputs, 3);
    assert_string_equal(m->inputs[0].path, "policy/000000");
    assert_string_equal(m->inputs[1].path, "file:model.tokenizer");
    assert_string_equal(m->inputs[2].path, "file:data.prompts.0");
    path = cairn_run_path(run, "policy/000000");
    OK(cairn_manifest_head(&head, path, err));
    assert_true(cairn_digest_equal(head.digest, m->inputs[0].digest));
    OK(cairn_link_manifest(run, &rollout, &again, err));
    assert_true(cairn_digest_equal(cairn_manifest_identity(m), cairn_manifest_identity(again)));
    again->inputs[2].digest.lo ^= 1; /* another prompt file: another artefact */
    assert_false(cairn_digest_equal(cairn_manifest_identity(m), cairn_manifest_identity(again)));
    FAILS(CAIRN_ENOINPUT, "step/000001/rollout", cairn_link_manifest(run, &score, &again, err));
    assert_true(cairn_link_done(run, &(struct cairn_link){0, CAIRN_STAGE_SYNC, NULL}));
    assert_false(cairn_link_done(run, &rollout));
    free(path);
    cairn_manifest_destroy(m);
    cairn_manifest_destroy(again);
    cairn_run_close(run);
    lab_close(&l);
}

/* RUN/relative, with a manifest or without. */
static void put(const struct lab *l, const char *relative, int committed)
{
    char *dir = cairn_format("%s/%s", l->dir, relative), *path = cairn_format("%s/" CAIRN_MANIFEST_NAME, dir);

    OK(cairn_dir_make(dir, err));
    if (committed)
        OK(cairn_file_replace(path, "{}", 2, err));
    free(path);
    free(dir);
}

static void test_done(void **state)
{
    static const char *const committed[] = {
        "check", "policy/000000", "eval/000000/held/rollout", "eval/000000/held/score", "step/000001/rollout", "step/000001/score",
        "step/000001/train", "policy/000001", "step/000002/score", "step/000002/train", "policy/000002", "step/000003/rollout", /* a hole */
    };
    static const struct {
        enum cairn_stage stage;
        int64_t next;
    } row[] = {{CAIRN_STAGE_ROLLOUT, 2}, {CAIRN_STAGE_SCORE, 3}, {CAIRN_STAGE_TRAIN, 3}, {CAIRN_STAGE_SYNC, 3}};
    const char *const override[] = {"run.steps=100000", "run.eval_every=2", "run.check=first", LAB_EVAL, NULL};
    struct cairn_link *link = NULL;
    struct cairn_reach reach;
    struct cairn_run r;
    struct lab l;
    char *done;
    int n = 0, found = 0, whole;

    (void)state;
    lab_open(&l);
    run_of(&r, &l, override);
    reach = cairn_run_reach(&r);
    assert_true(reach.step == -1 && reach.policy == -1 && reach.eval == -1);
    for (size_t i = 0; i < COUNT(committed); i++)
        put(&l, committed[i], 1);
    put(&l, "step/000003/score", 0); /* begun */
    put(&l, "policy/000003", 0);
    put(&l, "policy/000004.old", 1); /* no number */
    reach = cairn_run_reach(&r);
    assert_int_equal(reach.step, 3);
    assert_int_equal(reach.policy, 3);
    assert_int_equal(reach.eval, 0);
    assert_false(cairn_link_beyond(&reach, &(struct cairn_link){3, CAIRN_STAGE_TRAIN, NULL}));
    assert_true(cairn_link_beyond(&reach, &(struct cairn_link){4, CAIRN_STAGE_TRAIN, NULL}));
    assert_true(cairn_link_beyond(&reach, &(struct cairn_link){2, CAIRN_STAGE_SCORE, "held"}));
    assert_false(cairn_link_beyond(&reach, &(struct cairn_link){0, CAIRN_STAGE_CHECK, NULL}));
    OK(cairn_run_chain(&r, &link, &n, err));
    assert_non_null(done = malloc((size_t)n));
    memset(done, 2, (size_t)n);
    cairn_links_done(&r, link, n, done);
    for (int i = 0; i < n; i++) {
        found += done[i];
        if (link[i].step < 6 && done[i] != cairn_link_done(&r, &link[i]))
            fail_msg("step %d %s: %d", (int)link[i].step, cairn_stage_name(link[i].stage), done[i]);
    }
    assert_int_equal(found, COUNT(committed) - 1); /* without a warm start the chain does not make policy 0 */
    for (size_t i = 0; i < COUNT(row); i++)
        assert_int_equal(cairn_links_next_step(link, done, n, row[i].stage), row[i].next);
    FAILS(CAIRN_EDATA, "step/000003/rollout", /* "{}" is none */
          cairn_link_whole(&r, &(struct cairn_link){3, CAIRN_STAGE_ROLLOUT, NULL}, &whole, err));
    assert_int_equal(whole, 1);
    OK(cairn_link_whole(&r, &(struct cairn_link){3, CAIRN_STAGE_SCORE, NULL}, &whole, err));
    assert_int_equal(whole, 0);
    memset(done, 1, (size_t)n);
    assert_int_equal(cairn_links_next_step(link, done, n, CAIRN_STAGE_TRAIN), 100000);
    assert_int_equal(cairn_links_next_step(link, done, 1, CAIRN_STAGE_TRAIN), 1);
    free(done);
    free(link);
    cairn_recipe_free(r.recipe);
    lab_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_inputs), cmocka_unit_test(test_many_files),
                                       cmocka_unit_test(test_manifest), cmocka_unit_test(test_done)};

    return cmocka_run_group_tests_name("chain", tests, NULL, NULL);
}
