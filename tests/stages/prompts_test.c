/* prompts_test.c - prompts.c: rows of prompt files, broken lines by number, ids. */
#include "tests/stages/lab.h"

#include "stages/common/prompts.h"

static void test_rows(void **state)
{
    struct cairn_prompts p;
    struct lab l;
    char path[300];

    (void)state;
    lab_open(&l);
    lab_put(&l, "p.jsonl",
            "{\"id\": \"a\", \"prompt\": \"1+1\", \"answer\": \"2\", \"level\": 3}\n"
            "{\"id\": 17, \"prompt\": \"\\u00e9\\n\", \"answer\": -5}\n"
            "{\"answer\": \"\", \"prompt\": \"x\"}"); /* no newline at the end */
    snprintf(path, sizeof path, "%s/p.jsonl", l.dir);
    OK(cairn_prompts_load(&p, path, NULL, err));
    assert_int_equal(p.n, 3);
    assert_string_equal(p.path, path);
    assert_string_equal(p.row[0].id, "a");
    assert_string_equal(p.row[0].answer, "2");
    assert_string_equal(p.row[1].id, "17");
    assert_string_equal(p.row[1].answer, "-5");
    assert_int_equal(p.row[1].answer_bytes, 2);
    assert_string_equal(p.row[1].prompt, "\xc3\xa9\n");
    assert_int_equal(p.row[1].prompt_bytes, 3);
    assert_string_equal(p.row[2].id, "2"); /* the row's number */
    assert_string_equal(p.row[2].answer, "");
    cairn_prompts_free(&p);
    lab_close(&l);
}

/* A chat instead of a text; members under other names, inside of other members, with dots in their names. */
static void test_chats_and_keys(void **state)
{
    static struct cairn_prompt_keys keys = {"meta.index", "q", "reward_model.ground_truth", "grader"};
    struct cairn_prompts p;
    json_t *entry;
    struct lab l;
    char path[300];

    (void)state;
    lab_open(&l);
    snprintf(path, sizeof path, "%s/p.jsonl", l.dir);
    lab_put(&l, "p.jsonl",
            "{\"q\": [{\"role\": \"system\", \"content\": \"s\"}, {\"content\": \"u\\u0000v\", \"role\": \"user\", \"x\": 1}], "
            "\"prompt\": 5,"
            " \"reward_model\": {\"ground_truth\": \"34\", \"style\": 1}, \"meta\": {\"index\": 7}}\n"
            "{\"q\": \"text\", \"reward_model.ground_truth\": 9}\n");
    OK(cairn_prompts_load(&p, path, &keys, err));
    assert_int_equal(p.n, 2);
    assert_string_equal(p.row[0].id, "7");
    assert_string_equal(p.row[0].answer, "34");
    assert_int_equal(p.row[0].messages, 2);
    assert_int_equal(p.row[0].message[0].role, CAIRN_ROLE_SYSTEM);
    assert_string_equal(p.row[0].message[0].text, "s");
    assert_int_equal(p.row[0].message[1].role, CAIRN_ROLE_USER);
    assert_int_equal(p.row[0].message[1].bytes, 3);
    assert_memory_equal(p.row[0].message[1].text, "u\0v", 3);
    assert_non_null(strstr(p.row[0].prompt, "\"role\":\"system\""));
    assert_string_equal(p.row[1].prompt, "text");
    assert_int_equal(p.row[1].messages, 0);
    assert_string_equal(p.row[1].answer, "9");
    assert_string_equal(p.row[1].id, "1");
    cairn_prompts_free(&p);
    FAILS(CAIRN_EDATA, "p.jsonl:1: key \"prompt\"", cairn_prompts_load(&p, path, NULL, err));
    lab_put(&l, "p.jsonl", "{\"q\": \"a\", \"reward_model\": {\"truth\": 1}}\n");
    FAILS(CAIRN_EDATA, "p.jsonl:1: key \"reward_model.ground_truth\"", cairn_prompts_load(&p, path, &keys, err));

    entry = json_pack("{s:{s:s, s:s, s:s, s:s}}", "keys", "id", "a", "prompt", "b", "answer", "c", "grader", "extra_info.judge");
    assert_string_equal(cairn_prompt_keys_of(entry).prompt, "b");
    keys = cairn_prompt_keys_of(entry);
    lab_put(&l, "p.jsonl",
            "{\"b\": \"q\", \"c\": 1, \"extra_info\": {\"judge\": \"exact\"}}\n{\"b\": \"q\", \"c\": 1, \"grader\": \"math\"}\n");
    OK(cairn_prompts_load(&p, path, &keys, err));
    assert_string_equal(p.row[0].grader, "exact");
    assert_null(p.row[1].grader); /* a member of another name is anybody's */
    cairn_prompts_free(&p);
    lab_put(&l, "p.jsonl", "{\"b\": \"q\", \"c\": 1, \"extra_info\": {\"judge\": 5}}\n");
    FAILS(CAIRN_EDATA, "p.jsonl:1: key \"extra_info.judge\": expected a string", cairn_prompts_load(&p, path, &keys, err));
    assert_string_equal(cairn_prompt_keys_of(NULL).prompt, "prompt");
    json_decref(entry);
    lab_close(&l);
}

/* Each id once: of texts, of numbers, of numbers of rows that have none. */
static void test_unique(void **state)
{
    static const struct {
        const char *text, *word;
    } row[] = {
        {"{\"id\": \"a\", \"prompt\": \"q\", \"answer\": 1}\n{\"id\": \"b\", \"prompt\": \"q\", \"answer\": 1}\n", NULL},
        {"{\"prompt\": \"q\", \"answer\": 1}\n{\"prompt\": \"q\", \"answer\": 1}\n", NULL},
        {"{\"id\": \"b\", \"prompt\": \"q\", \"answer\": 1}\n{\"id\": \"a\", \"prompt\": \"q\", \"answer\": 1}\n"
         "{\"id\": \"a\", \"prompt\": \"r\", \"answer\": 1}\n{\"id\": \"b\", \"prompt\": \"q\", \"answer\": 1}\n",
         "p.jsonl:3: id \"a\" is that of line 2, too: give every row an id of its own"},
        {"{\"id\": 7, \"prompt\": \"q\", \"answer\": 1}\n{\"id\": \"7\", \"prompt\": \"q\", \"answer\": 1}\n",
         "p.jsonl:2: id \"7\""},
        {"{\"id\": 1, \"prompt\": \"q\", \"answer\": 1}\n{\"prompt\": \"q\", \"answer\": 1}\n",
         "p.jsonl:2: id \"1\" is that of line 1"},
    };
    struct cairn_prompts p;
    struct lab l;
    char path[300];

    (void)state;
    lab_open(&l);
    snprintf(path, sizeof path, "%s/p.jsonl", l.dir);
    for (size_t i = 0; i < COUNT(row); i++) {
        lab_put(&l, "p.jsonl", row[i].text);
        OK(cairn_prompts_load(&p, path, NULL, err));
        if (row[i].word)
            FAILS(CAIRN_EDATA, row[i].word, cairn_prompts_unique(&p, p.n, err));
        else
            OK(cairn_prompts_unique(&p, p.n, err));
        OK(cairn_prompts_unique(&p, 1, err));
        cairn_prompts_free(&p);
    }
    lab_close(&l);
}

static void test_broken(void **state)
{
    static const struct {
        const char *text, *word;
    } row[] = {
        {"", "no prompt in it"},
        {"{\"prompt\": \"a\", \"answer\": \"b\"}\n{\"prompt\": \"a\", \"answer\"\n", "p.jsonl:2"},
        {"{\"prompt\": \"a\", \"answer\": \"b\"}\n\n", "p.jsonl:2"},
        {"{\"answer\": \"b\"}\n", "p.jsonl:1: key \"prompt\""},
        {"{\"prompt\": 5, \"answer\": \"b\"}\n", "p.jsonl:1: key \"prompt\""},
        {"{\"prompt\": \"a\"}\n", "p.jsonl:1: key \"answer\""},
        {"{\"prompt\": \"a\", \"answer\": 2.5}\n", "p.jsonl:1: key \"answer\""},
        {"{\"prompt\": \"a\", \"answer\": [\"b\"]}\n", "p.jsonl:1: key \"answer\""},
        {"[\"a\"]\n", "p.jsonl:1"},
        {"{\"prompt\": \"a\", \"prompt\": \"b\", \"answer\": \"b\"}\n", "p.jsonl:1"},
        {"{\"prompt\": \"\xff\", \"answer\": \"b\"}\n", "p.jsonl:1"},
        {"{\"prompt\": [], \"answer\": 1}\n", "p.jsonl:1: key \"prompt\""},
        {"{\"prompt\": [{\"role\": \"user\"}], \"answer\": 1}\n", "p.jsonl:1: message 0: key \"content\""},
        {"{\"prompt\": [{\"role\": \"tool\", \"content\": \"x\"}], \"answer\": 1}\n", "p.jsonl:1: message 0: role \"tool\""},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"x\"}, 5], \"answer\": 1}\n", "p.jsonl:1: message 1"},
        {"{\"prompt\": [{\"role\": \"assistant\", \"content\": \"x\"}], \"answer\": 1}\n", "not a user's"},
    };
    struct cairn_prompts p;
    struct lab l;
    char path[300];

    (void)state;
    lab_open(&l);
    snprintf(path, sizeof path, "%s/p.jsonl", l.dir);
    for (size_t i = 0; i < COUNT(row); i++) {
        lab_put(&l, "p.jsonl", row[i].text);
        FAILS(CAIRN_EDATA, row[i].word, cairn_prompts_load(&p, path, NULL, err));
        assert_null(p.row);
    }
    snprintf(path, sizeof path, "%s/none.jsonl", l.dir);
    FAILS(CAIRN_EDATA, "none.jsonl", cairn_prompts_load(&p, path, NULL, err));
    lab_close(&l);
}

/* The files of a link, and prompt ids into them. */
static void test_of_link(void **state)
{
    const struct cairn_link train = {1, CAIRN_STAGE_SCORE, NULL}, eval = {0, CAIRN_STAGE_ROLLOUT, "held"};
    struct cairn_prompts *files = NULL;
    struct cairn_run *run;
    struct lab l;
    int n = 0;

    (void)state;
    lab_open(&l);
    run = lab_init(&l, LAB_OVERRIDES("data.prompts=[{path: %s/prompts.jsonl}, {path: held.jsonl}]",
                                     "data.prompts.1.path=%s/held.jsonl", LAB_EVAL));
    OK(cairn_prompts_of(run, &train, &files, &n, err));
    assert_int_equal(n, 2);
    assert_int_equal(files[0].n, LAB_PROMPTS);
    assert_string_equal(cairn_prompts_find(files, n, 3)->answer, "10");
    assert_string_equal(cairn_prompts_find(files, n, (int64_t)1 << 32)->answer, "20");
    assert_null(cairn_prompts_find(files, n, LAB_PROMPTS));
    assert_null(cairn_prompts_find(files, n, ((int64_t)1 << 32) + 3));
    assert_null(cairn_prompts_find(files, n, (int64_t)2 << 32));
    assert_null(cairn_prompts_find(files, n, -1));
    assert_null(cairn_prompts_find(files, n, INT64_MIN));
    cairn_prompts_list_free(files, n);
    OK(cairn_prompts_of(run, &eval, &files, &n, err));
    assert_int_equal(n, 1);
    assert_int_equal(files[0].n, 3);
    cairn_prompts_list_free(files, n);
    cairn_run_close(run);
    lab_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_chats_and_keys),
                                       cmocka_unit_test(test_unique), cmocka_unit_test(test_broken),
                                       cmocka_unit_test(test_of_link)};

    return cmocka_run_group_tests_name("prompts", tests, NULL, NULL);
}
