/* sft_test.c - sft.c: what an example is, and that a few of them are learnt by heart. */
#include "tests/stages/trainlab.h"

#include "base/signals.h"
#include "stages/train/sft.h"

static void load(struct cairn_examples *e, struct rig *g, const char *name, const char *const *override)
{
    char *path = cairn_path_join(g->lab.dir, name), *tokenizer = cairn_path_join(g->lab.dir, "tokenizer.json");
    struct cairn_recipe *recipe = NULL;
    struct cairn_model_config c = {0};

    OK(lab_recipe_load(&recipe, &g->lab, override, err));
    OK(cairn_config_parse(&c, cairn_recipe_get(recipe, "model.init"), "lab", err));
    OK(cairn_examples_load(e, path, recipe, tokenizer, &c, err));
    cairn_config_free(&c);
    cairn_recipe_free(recipe);
    free(path);
    free(tokenizer);
}

/* Tokens of example i as text, ids above 255 as <id>, a bar where the response begins. */
static void show(struct cairn_str *s, const struct cairn_examples *e, int64_t i)
{
    const struct cairn_sequence *q = &e->sequence[i];

    cairn_str_clear(s);
    for (int64_t k = 0; k < q->length; k++) {
        if (k == q->prompt)
            cairn_str_putc(s, '|');
        if (q->tokens[k] < 256)
            cairn_str_putc(s, (char)q->tokens[k]);
        else
            cairn_str_printf(s, "<%d>", q->tokens[k]);
    }
}

static void test_examples(void **state)
{
    static const struct {
        const char *override[3], *want, *why;
    } row[] = {
        {{NULL}, "3+3=|Answer: 6<256>", "plain: <|endoftext|> ends it"},
        {{"data.template=\"Q: {prompt}\\n\""}, "Q: 3+3=\n|Answer: 6<256>", "words around"},
        {{"rollout.stop=[259, 256]"}, "3+3=|Answer: 6<259>", "what the sampler stops at first"},
        {{"rollout.stop=[\"<|user|>\"]"}, "3+3=|Answer: 6<259>", "an added token by name"},
        {{"rollout.stop=[\"\\n\\n\", 261]"}, "3+3=|Answer: 6<261>", "a token before a text"},
        {{"rollout.stop=[\"\\n\\n\"]"}, "3+3=|Answer: 6\n\n", "a text, where there is no token"},
    };
    struct cairn_str s = {0};
    struct rig g;

    (void)state;
    rig_open(&g, "cpu", NULL);
    for (size_t i = 0; i < COUNT(row); i++) {
        struct cairn_examples e;

        load(&e, &g, "worked.jsonl", row[i].override);
        assert_int_equal(e.n, 7);
        show(&s, &e, 3);
        if (strcmp(cairn_str_z(&s), row[i].want))
            fail_msg("%s: %s, expected %s", row[i].why, cairn_str_z(&s), row[i].want);
        for (int64_t k = 0; k < e.n; k++)
            assert_true(e.sequence[k].length <= e.longest && e.sequence[k].index == k);
        assert_true(e.longest == e.sequence[5].length); /* "Answer: 10" */
        cairn_examples_free(&e);
    }
    cairn_str_free(&s);
    rig_close(&g);
}

/* A tokenizer without <|endoftext|>: the model's own end. */
static void test_model_stop(void **state)
{
    struct cairn_examples e;
    struct cairn_str s = {0};
    char *path, *text, *p;
    struct rig g;
    size_t n;

    (void)state;
    rig_open(&g, "cpu", NULL);
    path = cairn_path_join(g.lab.dir, "tokenizer.json");
    OK(cairn_file_read(path, 1 << 20, &text, &n, err));
    p = strstr(text, "<|endoftext|>");
    memcpy(p, "<|endoftexx|>", 13);
    lab_write(path, text, n);
    load(&e, &g, "worked.jsonl", LAB_OVERRIDES("model.init.eos_token_id=[258, 256]"));
    show(&s, &e, 0);
    assert_string_equal(cairn_str_z(&s), "0+0=|Answer: 0<258>");
    cairn_examples_free(&e);
    cairn_str_free(&s);
    free(path);
    free(text);
    rig_close(&g);
}

static void test_broken(void **state)
{
    static const struct {
        const char *text, *word;
    } row[] = {
        {"{\"prompt\": \"a\", \"response\": \"b\"}\n{\"prompt\": \"a\"}\n", "bad.jsonl:2"},
        {"{\"prompt\": \"a\", \"response\": 5}\n", "bad.jsonl:1"},
        {"{\"prompt\": \"a\", \"response\": \"b\"}\n\n{\"prompt\": \"a\", \"response\": \"b\"}\n", "bad.jsonl:2"},
        {"{\"prompt\": \"\", \"response\": \"b\"}\n", "the prompt has no token"},
        {"", "no example"},
        {"{\"prompt\": \"0123456789012345678901234567890123456789012345678\", \"response\": "
         "\"0123456789012345678901234567890123456789012345678\"}\n",
         "bad.jsonl:1: 99 tokens, the model's positions end at 96"},
    };
    struct rig g;

    (void)state;
    rig_open(&g, "cpu", NULL);
    rig_trainer(&g, NULL);
    for (size_t i = 0; i < COUNT(row); i++) {
        char *path = cairn_path_join(g.lab.dir, "bad.jsonl"), *tokenizer = cairn_path_join(g.lab.dir, "tokenizer.json");
        struct cairn_examples e;

        lab_put(&g.lab, "bad.jsonl", row[i].text);
        FAILS(CAIRN_EDATA, row[i].word, cairn_examples_load(&e, path, g.recipe, tokenizer, &g.t.policy.config, err));
        free(path);
        free(tokenizer);
    }
    rig_trainer_close(&g);
    rig_close(&g);
}

static double train(struct rig *g, const char *const *override)
{
    struct cairn_examples e;
    struct cairn_sft_stats stats;

    rig_trainer(g, override);
    load(&e, g, "worked.jsonl", override);
    OK(cairn_sft_run(&g->ctx, &g->t, &e, &stats, err));
    cairn_examples_free(&e);
    return stats.loss;
}

#define SFT(updates) "warm_start={data: %s/worked.jsonl, updates: " #updates ", batch: 7, learning_rate: 1.0e-2, warmup_updates: 3}"

static void test_overfit(void **state)
{
    struct rig g;
    double first, last;

    rig_open(&g, *state, NULL);
    first = train(&g, LAB_OVERRIDES(SFT(1)));
    rig_trainer_close(&g);
    assert_true(first > 3); /* near ln 262 = 5.6 */
    last = train(&g, LAB_OVERRIDES(SFT(90)));
    if (!(last < 0.1))
        fail_msg("the loss is %.3f after 90 updates on seven examples", last);
    assert_int_equal(g.t.optimizer.updates, 90);
    rig_trainer_close(&g);
    rig_close(&g);
}

/* The loss of the first update is the token mean over its batch, however it is packed; stop token included, prompt not. */
static void test_loss(void **state)
{
    static const char *const pack[] = {"train.pack=4096", "train.pack=20", "train.pack=1"};
    struct cairn_examples e;
    double want = 0, tokens = 0;
    struct rig g;

    rig_open(&g, *state, NULL);
    rig_trainer(&g, NULL);
    load(&e, &g, "worked.jsonl", NULL);
    for (int64_t i = 0; i < e.n; i++) {
        float out[96];
        int64_t at = 0, n = e.sequence[i].length - e.sequence[i].prompt;

        OK(cairn_trainer_logprobs(&g.t, NULL, &e.sequence[i], 1, &at, 1.0f, out, err));
        for (int64_t k = 0; k < n; k++)
            want -= (double)out[k];
        tokens += (double)n;
    }
    assert_int_equal(tokens, 7 * 10 + 2); /* "Answer: d" and the stop token; two answers have two digits */
    cairn_examples_free(&e);
    rig_trainer_close(&g);
    for (size_t i = 0; i < COUNT(pack); i++) {
        double got = train(&g, LAB_OVERRIDES(SFT(1), pack[i]));

        if (!(fabs(got - want / tokens) < 1e-6))
            fail_msg("%s: loss %.9g, expected %.9g", pack[i], got, want / tokens);
        rig_trainer_close(&g);
    }
    rig_close(&g);
}

static void test_stop(void **state)
{
    struct cairn_examples e;
    struct rig g;
    struct cairn_sft_stats stats;

    rig_open(&g, *state, NULL);
    rig_trainer(&g, LAB_OVERRIDES(SFT(90)));
    load(&e, &g, "worked.jsonl", NULL);
    cairn_stop_request(SIGTERM);
    FAILS(CAIRN_EAGAIN, "stopped on request", cairn_sft_run(&g.ctx, &g.t, &e, &stats, err));
    cairn_signals_reset();
    cairn_examples_free(&e);
    rig_trainer_close(&g);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_examples), cmocka_unit_test(test_model_stop), cmocka_unit_test(test_broken),
                                       ON("cpu", test_overfit),         ON("cpu", test_loss),              ON("guard", test_loss),
                                       ON("cpu", test_stop)};

    return cmocka_run_group_tests_name("sft", tests, NULL, NULL);
}
