/* model_verbs_test.c - `cairn logprobs`, `cairn generate`, `cairn eval`: both paths print one text, the sampler's choices are the trainer's
 * likeliest, lines do not depend on their neighbours, bad lines are named, an evaluation by hand is the chain's. */
#include "tests/stages/lab.h"
#include "verb.h"

#define MODEL "tests/fixtures/models/glm52-tiny"
#define VOCAB 320

static struct lab lab;

static int setup(void **state)
{
    (void)state;
    lab_open(&lab);
    snprintf(in_path, sizeof in_path, "%s/in.jsonl", lab.dir);
    snprintf(out_path, sizeof out_path, "%s/out", lab.dir);
    snprintf(err_path, sizeof err_path, "%s/err", lab.dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    lab_close(&lab);
    return 0;
}

/* *out malloc'ed. */
static int run_out(int (*verb)(int, char **), const char *const *args, char **out)
{
    int rc = run(verb, args, out_path);

    if (out)
        *out = get(out_path);
    return rc;
}

static void expect_ok(int rc)
{
    if (rc)
        fail_msg("exit code %d: %s", rc, get(err_path));
}

/* n sequences of random ids, lengths 1 .. most, as lines. */
static void ids_write(int n, int most, uint32_t salt)
{
    struct cairn_str s = {0};

    for (int i = 0; i < n; i++) {
        int length = 1 + (int)lab_draw(salt, (uint32_t)i, (uint32_t)most);

        cairn_str_puts(&s, "{\"ids\":[");
        for (int k = 0; k < length; k++)
            cairn_str_printf(&s, k ? ",%u" : "%u", lab_draw(salt + 1 + (uint32_t)i, (uint32_t)k, VOCAB));
        cairn_str_puts(&s, "]}\n");
    }
    lab_write(in_path, s.p, s.len);
    cairn_str_free(&s);
}

static json_t *line_of(char **text)
{
    char *end = strchr(*text, '\n');
    json_t *v;

    if (!end)
        return NULL;
    v = json_loadb(*text, (size_t)(end - *text), 0, NULL);
    assert_non_null(v);
    *text = end + 1;
    return v;
}

static void test_paths_agree(void **state)
{
    static const char *const more[][6] = {
        {"--path", "decode", NULL},
        {"--path", "decode", "--prompt", "5", NULL},
        {"--path", "decode", "--prompt", "100000", NULL},
        {"--path", "decode", "--threads", "1", NULL},
        {"--path", "train", "--threads", "1", NULL},
    };
    static const char *const adapter[] = {NULL, MODEL "/adapter"};

    (void)state;
    ids_write(150, 90, 5); /* several lots, one of them cut by the number of tokens */
    for (int a = 0; a < 2; a++) {
        char *want, *text, *at;
        int lines = 0;

        expect_ok(run_out(cairn_verb_logprobs,
                          ARGS("logprobs", MODEL, "--tokens", in_path, "--temperature", "0.8", a ? "--adapter" : NULL, adapter[a]), &want));
        at = want;
        for (json_t *v; (v = line_of(&at)); lines++) {
            const json_t *lp = json_object_get(v, "logprobs"), *bits = json_object_get(v, "bits");

            assert_int_equal(json_array_size(bits), json_array_size(lp));
            assert_int_equal(json_array_size(json_object_get(v, "argmax")), json_array_size(lp) + 1);
            for (size_t i = 0; i < json_array_size(lp); i++) {
                float x = (float)json_number_value(json_array_get(lp, i));
                uint32_t b;

                memcpy(&b, &x, 4);
                assert_true(x < 0 && b == (uint32_t)json_integer_value(json_array_get(bits, i)));
            }
            json_decref(v);
        }
        assert_int_equal(lines, 150);
        for (size_t i = 0; i < COUNT(more); i++) {
            expect_ok(run_out(cairn_verb_logprobs,
                              ARGS("logprobs", MODEL, "--tokens", in_path, "--temperature", "0.8", more[i][0], more[i][1],
                                   more[i][2] ? more[i][2] : "--json", more[i][3] ? more[i][3] : "--json", a ? "--adapter" : NULL, adapter[a]),
                              &text));
            if (strcmp(want, text))
                fail_msg("%s %s %s %s prints other numbers", more[i][0], more[i][1], more[i][2] ? more[i][2] : "", more[i][3] ? more[i][3] : "");
            free(text);
        }
        free(want);
    }
}

/* With memory guarded outside of operations: few lines, it is slow. */
static void test_guard(void **state)
{
    char *want, *text;

    (void)state;
    ids_write(6, 12, 50);
    expect_ok(run_out(cairn_verb_logprobs, ARGS("logprobs", MODEL, "--tokens", in_path), &want));
    expect_ok(
        run_out(cairn_verb_logprobs, ARGS("logprobs", MODEL, "--tokens", in_path, "--path", "decode", "--prompt", "3", "--backend", "guard"), &text));
    assert_string_equal(want, text);
    free(text);
    expect_ok(run_out(cairn_verb_logprobs, ARGS("logprobs", MODEL, "--tokens", in_path, "--backend", "guard"), &text));
    assert_string_equal(want, text);
    free(text);
    free(want);
}

/* What generate takes greedily is the argmax that logprobs prints for the same sequence. */
static void test_greedy(void **state)
{
    char *text, *at, *scored;
    struct cairn_str s = {0};
    json_t *in = NULL, *prompt[20], *new[20];

    (void)state;
    ids_write(20, 40, 9);
    text = get(in_path);
    at = text;
    for (int i = 0; i < 20; i++)
        prompt[i] = line_of(&at);
    free(text);
    expect_ok(run_out(cairn_verb_generate, ARGS("generate", MODEL, "--ids", in_path, "--greedy", "--max-new", "9", "--ignore-stop"), &text));
    at = text;
    for (int i = 0; i < 20; i++) {
        new[i] = line_of(&at);
        assert_int_equal(json_array_size(json_object_get(new[i], "ids")), 9);
        assert_string_equal(json_string_value(json_object_get(new[i], "finish")), "length");
        assert_null(json_object_get(new[i], "text"));
        json_array_extend(json_object_get(prompt[i], "ids"), json_object_get(new[i], "ids"));
        cairn_json_canonical(&s, prompt[i]);
        cairn_str_putc(&s, '\n');
    }
    assert_int_equal(*at, 0);
    free(text);
    lab_write(in_path, s.p, s.len);
    expect_ok(run_out(cairn_verb_logprobs, ARGS("logprobs", MODEL, "--tokens", in_path), &scored));
    at = scored;
    for (int i = 0; i < 20; i++) {
        size_t n = json_array_size(json_object_get(prompt[i], "ids"));

        in = line_of(&at);
        for (size_t k = 0; k < 9; k++)
            assert_int_equal(json_integer_value(json_array_get(json_object_get(in, "argmax"), n - 10 + k)),
                             json_integer_value(json_array_get(json_object_get(new[i], "ids"), k)));
        json_decref(in);
        json_decref(prompt[i]);
        json_decref(new[i]);
    }
    free(scored);
    cairn_str_free(&s);
}

/* A line's response depends on its ids, its number and the seed. */
static void test_lines_alone(void **state)
{
    char *all, *other, *seeded, *a, *b, *c;
    struct cairn_str s = {0};
    int differ = 0;

    (void)state;
    ids_write(70, 12, 30);
    expect_ok(run_out(cairn_verb_generate, ARGS("generate", MODEL, "--ids", in_path, "--max-new", "6", "--seed", "3"), &all));
    expect_ok(run_out(cairn_verb_generate, ARGS("generate", MODEL, "--ids", in_path, "--max-new", "6", "--seed", "4", "--threads", "1"), &seeded));
    a = get(in_path); /* the even lines are others now, the odd ones stay */
    b = a;
    for (int i = 0; i < 70; i++) {
        char *end = strchr(b, '\n');

        if (i % 2)
            cairn_str_add(&s, b, (size_t)(end - b));
        else
            cairn_str_printf(&s, "{\"ids\":[%d,%d]}", i, i + 1);
        cairn_str_putc(&s, '\n');
        b = end + 1;
    }
    free(a);
    lab_write(in_path, s.p, s.len);
    cairn_str_free(&s);
    expect_ok(run_out(cairn_verb_generate, ARGS("generate", MODEL, "--ids", in_path, "--max-new", "6", "--seed", "3"), &other));
    a = all;
    b = other;
    c = seeded;
    for (int i = 0; i < 70; i++) {
        json_t *x = line_of(&a), *y = line_of(&b), *z = line_of(&c);

        if (i % 2 && !json_equal(x, y))
            fail_msg("line %d depends on its neighbours", i + 1);
        differ += !json_equal(x, z);
        json_decref(x);
        json_decref(y);
        json_decref(z);
    }
    assert_true(differ > 60);
    free(all);
    free(other);
    free(seeded);
}

static void test_refused(void **state)
{
    static const struct {
        const char *in, *args[8];
        int code;
        const char *says, *why;
    } row[] = {
        {"{\"ids\":[1,2]}\n{\"ids\":[]}\n", {MODEL}, 65, "in.jsonl:2: no ids", "empty line of ids"},
        {"{\"ids\":[1,2]}\n{\"ids\":[3,320]}\n", {MODEL}, 65, "in.jsonl:2: ids[1]: 320 is outside the vocabulary of 320", "id outside"},
        {"{\"ids\":[1,2]}\n{\"ids\":[-1]}\n", {MODEL}, 65, "in.jsonl:2: ids[0]", "negative id"},
        {"{\"ids\":[1,2]}\n{\"ids\":[1,\n", {MODEL}, 65, "in.jsonl:2: ", "broken JSON"},
        {"{\"ids\":[1,2]}\n{\"id\":[1]}\n", {MODEL}, 65, "in.jsonl:2: expected", "no ids"},
        {"{\"ids\":[1,2]}\n{\"ids\":[1.5]}\n", {MODEL}, 65, "in.jsonl:2: ids[0]", "no integer"},
        {"{\"ids\":[1,2]}\n\n", {MODEL}, 65, "in.jsonl:2: ", "blank line"},
        {"", {MODEL, "--path", "sideways"}, 64, "train or decode", "no such path"},
        {"", {MODEL, "--prompt", "0"}, 64, "at least 1", "prompt of no token"},
        {"", {MODEL, "--temperature", "0"}, 64, "above 0", "temperature 0"},
        {"", {MODEL, "--step", "1"}, 64, "no run", "step of no run"},
        {"", {"/nowhere"}, 69, "/nowhere", "no such model"},
        {"", {MODEL, "--adapter", "/nowhere"}, 69, "/nowhere", "no such adapter"},
        {"", {MODEL, "--backend", "abacus"}, 72, "abacus", "no such back-end"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(row); i++) {
        char *out, *said;
        int rc;

        lab_write(in_path, row[i].in, strlen(row[i].in));
        rc = run_out(cairn_verb_logprobs, ARGS("logprobs", "--tokens", in_path, row[i].args[0], row[i].args[1], row[i].args[2]), &out);
        said = get(err_path);
        if (rc != row[i].code || !strstr(said, row[i].says))
            fail_msg("%s: %d %s", row[i].why, rc, said);
        assert_int_equal(*out != 0, row[i].code == 65 && *row[i].in); /* what came before the bad line is there */
        free(out);
        free(said);
    }
    lab_write(in_path, "{\"ids\":[1,2]}\n", 14);
    assert_int_equal(run_out(cairn_verb_generate, ARGS("generate", MODEL), NULL), 64);
    assert_int_equal(run_out(cairn_verb_generate, ARGS("generate", MODEL, "--ids", in_path, "--prompt", "x"), NULL), 64);
    assert_int_equal(run_out(cairn_verb_generate, ARGS("generate", MODEL, "--prompt", "x"), NULL), 65); /* has no tokenizer */
    assert_int_equal(run_out(cairn_verb_generate, ARGS("generate", MODEL, "--ids", in_path, "--max-new", "999999999"), NULL), 65);
    assert_int_equal(run_out(cairn_verb_eval, ARGS("eval", MODEL, "--set", in_path), NULL), 64); /* belongs to no run */
    assert_int_equal(run_out(cairn_verb_eval, ARGS("eval", MODEL), NULL), 64);
}

/* A run: its newest policy, its template and tokenizer; an evaluation by hand gives what the chain's has. */
static void test_run(void **state)
{
    const struct cairn_link score = {0, CAIRN_STAGE_SCORE, "held"};
    struct cairn_run *run_ = lab_init(&lab, LAB_OVERRIDES("data.eval=[{name: held, path: %s/held.jsonl, k: 5}]", "score.marker=[\"\\x61\"]"));
    struct cairn_manifest *m = NULL;
    char *dir = cairn_link_path(run_, &score), *text, *again, *policy = cairn_run_path(run_, "policy/000000"), set[300];
    const json_t *metrics;
    json_t *v;

    (void)state;
    snprintf(set, sizeof set, "%s/held.jsonl", lab.dir);
    lab_stage_ok("rollout", lab.run, 0, "held");
    lab_stage_ok("score", lab.run, 0, "held");
    OK(cairn_manifest_load(&m, dir, err));
    metrics = json_object_get(m->content, "metrics");
    expect_ok(run_out(cairn_verb_eval, ARGS("eval", lab.run, "--set", set, "--json"), &text));
    v = json_loads(text, 0, NULL);
    assert_non_null(v);
    assert_int_equal(json_integer_value(json_object_get(v, "k")), 5);
    assert_int_equal(json_integer_value(json_object_get(v, "problems")), 3);
    assert_true(json_number_value(json_object_get(v, "length_mean")) == json_number_value(json_object_get(metrics, "length/mean")));
    assert_true(json_number_value(json_object_get(v, "capped_share")) == json_number_value(json_object_get(metrics, "capped_share")));
    assert_true(json_number_value(json_object_get(v, "accuracy")) == json_number_value(json_object_get(metrics, "accuracy")));
    json_decref(v);
    free(text);
    expect_ok(run_out(cairn_verb_eval, ARGS("eval", policy, "--set", set, "--set", set, "-k", "2", "--limit", "2", "--temperature", "0"), &text));
    assert_non_null(strstr(text, "held"));
    free(text);
    expect_ok(run_out(cairn_verb_generate, ARGS("generate", lab.run, "--prompt", "1+2=", "--max-new", "8"), &text));
    expect_ok(run_out(cairn_verb_generate, ARGS("generate", policy, "--prompt", "1+2=", "--max-new", "8", "--json"), &again));
    v = json_loads(again, 0, NULL);
    assert_non_null(v); /* the text of --json is the text without it */
    assert_true(json_array_size(json_object_get(v, "ids")) <= 8);
    assert_int_equal(strlen(text) > 0 && text[strlen(text) - 1] == '\n', 1);
    json_decref(v);
    free(text);
    free(again);
    assert_int_equal(run_out(cairn_verb_generate, ARGS("generate", lab.run, "--step", "4", "--prompt", "x"), NULL), 69);
    cairn_manifest_destroy(m);
    cairn_run_close(run_);
    free(dir);
    free(policy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths_agree), cmocka_unit_test(test_guard), cmocka_unit_test(test_greedy), cmocka_unit_test(test_lines_alone),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_run),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
