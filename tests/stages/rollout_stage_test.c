/* rollout_stage_test.c - cairn-rollout as a program: what it samples depends on the recipe alone, survives kills, goes through the
 * prompts in order, keeps mixed groups, names what is wrong with prompts. */
#include "tests/stages/lab.h"

#include "ckpt/reader.h"

/* Many prompts, long responses that only the cap ends: something to kill. */
#define LONG(prompts) "data.prompts=[{path: %s/many.jsonl}]", "rollout.prompts=" #prompts, "rollout.samples=4", "rollout.max_new_tokens=60"

static struct cairn_digest digest_at(const char *run, const char *relative)
{
    struct cairn_manifest_head head;
    char path[600];

    snprintf(path, sizeof path, "%s/%s", run, relative);
    OK(cairn_manifest_head(&head, path, err));
    return head.digest;
}

static void load(struct cairn_rollouts *r, json_t **content, json_t **info, const char *run, const char *relative)
{
    struct cairn_reader *reader = NULL;
    char path[600];

    snprintf(path, sizeof path, "%s/%s", run, relative);
    OK(cairn_reader_open(&reader, path, NULL, err));
    OK(cairn_rollouts_load(r, reader, err));
    if (content)
        *content = json_deep_copy(cairn_reader_manifest(reader)->content);
    if (info)
        *info = json_deep_copy(cairn_reader_manifest(reader)->info);
    cairn_reader_close(reader);
}

static void run_make(const struct lab *l, const char *name, char path[300], const char *const *override)
{
    struct cairn_run *run = NULL;

    snprintf(path, 300, "%s/%s", l->dir, name);
    OK(lab_init_at(&run, l, path, override, err));
    cairn_run_close(run);
}

/* Slots, threads, memory guards: ops keys and back-ends that never change a bit. */
static void test_ops_keys(void **state)
{
    static const char *const ways[][3] = {
        {"rollout.batch=1", "kernels.threads=1", NULL},
        {"rollout.batch=3", "kernels.threads=2", NULL},
        {"rollout.batch=500", NULL, NULL},
    };
    struct cairn_digest first = {0, 0};
    struct lab l;

    (void)state;
    lab_open(&l);
    for (size_t i = 0; i < COUNT(ways); i++) {
        char path[300], name[20];

        snprintf(name, sizeof name, "run%zu", i);
        run_make(&l, name, path, ways[i]);
        lab_stage_ok("rollout", path, 1, NULL);
        if (!i)
            first = digest_at(path, "step/000001/rollout");
        else if (!cairn_digest_equal(first, digest_at(path, "step/000001/rollout")))
            fail_msg("%s changes the rollouts", ways[i][0]);
    }
    lab_close(&l);
}

static void test_content(void **state)
{
    struct cairn_rollouts r;
    struct cairn_digest policy;
    json_t *content, *info;
    struct lab l;
    char hex[33];

    (void)state;
    lab_open(&l);
    cairn_run_close(lab_init(
        &l, LAB_OVERRIDES("rollout.temperature=0.7", "rollout.prompts=12", "rollout.top_p=0.8", "train.truncation=ignore")));
    lab_stage_ok("rollout", l.run, 1, NULL);
    load(&r, &content, &info, l.run, "step/000001/rollout");
    policy = digest_at(l.run, "policy/000000");
    cairn_digest_hex(policy, hex);
    assert_string_equal(json_string_value(json_object_get(content, "policy")), hex);
    assert_int_equal(json_integer_value(json_object_get(content, "units")), 2); /* 8 and 4 groups */
    assert_int_equal(json_integer_value(json_object_get(content, "groups")), 12);
    assert_int_equal(json_integer_value(json_object_get(content, "kept")), 12);
    assert_int_equal(json_integer_value(json_object_get(content, "rollouts")), 36);
    assert_true((float)json_number_value(json_object_get(content, "temperature")) == 0.7f);
    assert_true(json_number_value(json_object_get(json_object_get(info, "metrics"), "tokens/per_second")) > 0);
    assert_true(json_number_value(json_object_get(json_object_get(info, "metrics"), "tokens/total")) == (double)r.response[r.n]);
    assert_int_equal(r.n, 36);
    assert_non_null(r.logprobs_sampled);
    for (int64_t i = 0; i < r.n; i++) {
        int64_t n = cairn_rollout_length(&r, i);

        assert_true(n >= 1 && n <= 10);
        assert_true(r.used[i] == 1 && r.verdict[i] == CAIRN_VERDICT_UNASKED);
        assert_int_equal(r.finish[i], r.tokens[r.offsets[i + 1] - 1] == LAB_STOP ? CAIRN_FINISH_STOP : CAIRN_FINISH_LENGTH);
        if (r.finish[i] == CAIRN_FINISH_LENGTH)
            assert_int_equal(n, 10);
        for (int64_t k = r.response[i]; k < r.response[i + 1]; k++)
            assert_true(r.logprobs[k] < 0 && r.logprobs_sampled[k] >= r.logprobs[k]);
    }
    for (int64_t i = 0; i < r.n; i += 3) { /* 12 groups of 8 prompts: the second time a prompt comes, its draws are others */
        for (int64_t j = i + 3; j < r.n; j += 3)
            if (r.prompt_id[i] == r.prompt_id[j])
                assert_true(
                    cairn_rollout_length(&r, i) != cairn_rollout_length(&r, j) ||
                    memcmp(r.tokens + r.offsets[i], r.tokens + r.offsets[j], (size_t)(r.offsets[i + 1] - r.offsets[i]) * 4));
    }
    json_decref(content);
    json_decref(info);
    cairn_rollouts_free(&r);
    lab_close(&l);
}

/* Two steps of 5 over 8 prompts: a whole pass, then the next begins; nothing twice in a pass. The trainer finds the sampler's
 * log-probabilities to the bit, or it would stop with 76. */
static void two_steps(const char *adapter)
{
    int seen[8] = {0};
    struct lab l;

    lab_open(&l);
    cairn_run_close(lab_init(&l, LAB_OVERRIDES("rollout.prompts=5", "mismatch={max: 0, sample: 1}", adapter)));
    for (int step = 1; step <= 2; step++) {
        struct cairn_rollouts r;
        char relative[40];

        for (int s = 0; s < 4; s++)
            lab_stage_ok(cairn_stage_name((enum cairn_stage)s), l.run, step, NULL);
        snprintf(relative, sizeof relative, "step/%06d/rollout", step);
        load(&r, NULL, NULL, l.run, relative);
        for (int64_t i = 0; i < r.n; i += 3) {
            assert_true(r.prompt_id[i] >= 0 && r.prompt_id[i] < 8);
            seen[r.prompt_id[i]]++;
            if (step == 1 || i < 9) /* 5 + 3 */
                assert_int_equal(seen[r.prompt_id[i]], 1);
        }
        cairn_rollouts_free(&r);
    }
    lab_close(&l);
}

static void test_two_steps(void **state)
{
    (void)state;
    two_steps(NULL);
    two_steps(LAB_ADAPTER);
}

static void test_eval(void **state)
{
    struct cairn_rollouts r, t;
    json_t *content;
    char sets[900];
    struct lab l;

    (void)state;
    lab_open(&l);
    snprintf(
        sets, sizeof sets,
        "data.eval=[{name: held, path: %s/held.jsonl, k: 2}, {name: cold, path: %s/held.jsonl, k: 2, temperature: 0, limit: 2, "
        "max_new_tokens: 4}, {name: again, path: %s/prompts.jsonl, k: 3}]",
        l.dir, l.dir, l.dir);
    cairn_run_close(lab_init(&l, LAB_OVERRIDES(sets)));
    lab_stage_ok("rollout", l.run, 0, "held");
    load(&r, &content, NULL, l.run, "eval/000000/held/rollout");
    assert_int_equal(r.n, 6);
    for (int64_t i = 0; i < 6; i++) {
        assert_int_equal(r.prompt_id[i], i / 2);
        assert_int_equal(r.group[i], i / 2);
    }
    assert_null(json_object_get(content, "cursor"));
    json_decref(content);
    cairn_rollouts_free(&r);
    lab_stage_ok("rollout", l.run, 0, "cold");
    load(&r, &content, NULL, l.run, "eval/000000/cold/rollout");
    assert_int_equal(r.n, 4);
    assert_true(json_number_value(json_object_get(content, "temperature")) == 0);
    for (int64_t i = 0; i < 4; i += 2) /* greedy: both samples are one */
        assert_memory_equal(r.tokens + r.offsets[i], r.tokens + r.offsets[i + 1], (size_t)(r.offsets[i + 1] - r.offsets[i]) * 4);
    assert_true(cairn_rollout_length(&r, 0) <= 4);
    json_decref(content);
    cairn_rollouts_free(&r);
    /* the training prompts as an evaluation set: same policy, same rows, other draws */
    lab_stage_ok("rollout", l.run, 0, "again");
    lab_stage_ok("rollout", l.run, 1, NULL);
    load(&r, NULL, NULL, l.run, "eval/000000/again/rollout");
    load(&t, NULL, NULL, l.run, "step/000001/rollout");
    for (int64_t i = 0; i < t.n; i++) {
        int64_t j = t.prompt_id[i] * 3 + t.sample[i];

        assert_int_equal(t.prompt_id[i], r.prompt_id[j]);
        assert_true(cairn_rollout_length(&t, i) != cairn_rollout_length(&r, j) ||
                    memcmp(t.tokens + t.offsets[i], r.tokens + r.offsets[j], (size_t)(t.offsets[i + 1] - t.offsets[i]) * 4));
    }
    cairn_rollouts_free(&r);
    cairn_rollouts_free(&t);
    lab_close(&l);
}

/* Killed at random moments, later and later; started again until it is done. Whole units are not sampled twice. Under a sanitizer two runs, one for
 * each signal, of two units have to do. */
static void test_killed(void **state)
{
    const int slow = getenv("CAIRN_SANITIZE") && *getenv("CAIRN_SANITIZE"), runs = slow ? 2 : 4;
    const char *const *const recipe = slow ? LAB_OVERRIDES(LONG(16)) : LAB_OVERRIDES(LONG(40));
    struct cairn_digest undisturbed;
    char path[300];
    struct lab l;
    double whole_s;
    int kills = 0, adopted = 0;

    (void)state;
    lab_open(&l);
    lab_prompts(&l, "many.jsonl", 50, 100);
    run_make(&l, "whole", path, recipe);
    whole_s = lab_stage_s("rollout", path, 1);
    undisturbed = digest_at(path, "step/000001/rollout");
    for (int k = 0; k < runs; k++) {
        const int sig = k == runs - 1 ? SIGTERM : SIGKILL;
        struct cairn_rollouts r;
        json_t *info;
        char name[20];
        int rc = -1;

        snprintf(name, sizeof name, "killed%d", k);
        run_make(&l, name, path, recipe);
        for (int i = 0; rc && i < 40; i++) {
            struct lab_program p;

            lab_start(&p, "rollout", path, 1, NULL, NULL, NULL);
            lab_sleep(whole_s * (0.1 + 0.3 * lab_share((uint32_t)k, (uint32_t)i) * (1 + i / 2)));
            kill(-p.pid, sig);
            rc = lab_wait(&p);
            if (rc && rc != 128 + sig && !(sig == SIGTERM && rc == 75)) /* SIGTERM: before main, too */
                fail_msg("%d: %s", rc, p.said);
            kills += rc != 0;
        }
        if (rc)
            lab_stage_ok("rollout", path, 1, NULL);
        if (!cairn_digest_equal(undisturbed, digest_at(path, "step/000001/rollout")))
            fail_msg("killed run %d has other rollouts", k);
        load(&r, NULL, &info, path, "step/000001/rollout");
        assert_int_equal(r.n, slow ? 64 : 160);
        adopted += json_integer_value(json_object_get(info, "adopted")) > 0;
        json_decref(info);
        cairn_rollouts_free(&r);
    }
    print_message("%d kills, %d runs of %d went on with units of dead attempts\n", kills, adopted, runs);
    assert_true(kills > runs);
    lab_close(&l);
}

/* wrong = -1 and truncated = zero make groups mixed that stop here and hit the cap there: a micro model gets nothing right. */
#define MIXED                                                                                                                      \
    "score.reward={right: 1, wrong: -1, truncated: zero}", "rollout.dynamic={max_rounds: 6}",                                      \
        "rollout.stop=[256, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110]"

static void test_dynamic(void **state)
{
    struct cairn_rollouts r;
    json_t *content;
    struct lab l;
    char path[300], other[300];
    int64_t used = 0, mixed_groups = 0;
    double whole_s;

    (void)state;
    lab_open(&l);
    run_make(&l, "dynamic", path, LAB_OVERRIDES(MIXED, "rollout.prompts=7"));
    whole_s = lab_stage_s("rollout", path, 1);
    load(&r, &content, NULL, path, "step/000001/rollout");
    for (int64_t i = 0; i < r.n; i += 3) {
        int capped = 0, mixed;

        for (int64_t j = i; j < i + 3; j++) {
            assert_int_equal(r.verdict[j], 0);
            assert_int_equal(r.used[j], r.used[i]);
            capped += r.finish[j] == CAIRN_FINISH_LENGTH;
        }
        mixed = capped > 0 && capped < 3;
        mixed_groups += mixed;
        assert_int_equal(r.used[i], mixed && mixed_groups <= 7); /* the first in list order */
        used += r.used[i];
    }
    assert_int_equal(used, mixed_groups < 7 ? mixed_groups : 7);
    assert_true(mixed_groups >= 7 && r.n > 21); /* or the test shows nothing */
    assert_int_equal(json_integer_value(json_object_get(content, "kept")), used);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(content, "dynamic"), "surplus")), mixed_groups - used);
    assert_int_equal(json_array_size(json_object_get(json_object_get(content, "cursor"), "front")), mixed_groups - used);
    json_decref(content);
    cairn_rollouts_free(&r);
    lab_stage_ok("score", path, 1, NULL); /* the later stages take it */
    lab_stage_ok("train", path, 1, NULL);
    lab_stage_ok("sync", path, 1, NULL);
    lab_stage_ok("rollout", path, 2, NULL);

    run_make(&l, "killed", other, LAB_OVERRIDES(MIXED, "rollout.prompts=7", "rollout.batch=2"));
    for (int i = 0; i < 6; i++) {
        struct lab_program p;

        lab_start(&p, "rollout", other, 1, NULL, NULL, NULL);
        lab_sleep(whole_s * (0.1 + 0.8 * lab_share(5, (uint32_t)i)));
        kill(-p.pid, SIGKILL);
        lab_wait(&p);
    }
    lab_stage_ok("rollout", other, 1, NULL);
    assert_true(cairn_digest_equal(digest_at(path, "step/000001/rollout"), digest_at(other, "step/000001/rollout")));
    lab_close(&l);
}

/* Broken inputs: code, place and reason. */
static void test_refused(void **state)
{
    static const struct {
        const char *prompts, *override;
        int rc;
        const char *says, *why;
    } row[] = {
        {"{\"prompt\": \"1+1=\", \"answer\": 2}\n{\"prompt\": \"2+2=\"\n", NULL, 65, ":2: ", "broken JSON in line 2"},
        {"{\"prompt\": \"1+1=\", \"answer\": 2}\n\n", NULL, 65, ":2: ", "blank line"},
        {"{\"prompt\": 7, \"answer\": 2}\n", NULL, 65, ":1: ", "prompt is no text"},
        {"{\"prompt\": \"x\", \"answer\": []}\n", NULL, 65, ":1: ", "answer is no text"},
        {"{\"prompt\": \"\", \"answer\": 1}\n", NULL, 65, ":1: the prompt has no tokens", "empty prompt"},
        {"{\"prompt\": \"1\", \"answer\": 1}\n{\"prompt\": \"2\", \"answer\": \" \"}\n", NULL, 65, ":2: the gold answer is empty, and grader math",
         "an empty gold answer"},
        {"{\"prompt\": \"1\", \"answer\": \"\", \"grader\": \"exact\"}\n", "score.grader=any", 78, "score.grader", "nobody of that name"},
        {"{\"prompt\": \"1\", \"answer\": \"\", \"grader\": \"exact\"}\n", NULL, 65,
         "grader exact compares with it: nothing would be right; take the row out", "an empty one of a row's grader"},
        {"{\"prompt\": \"1\", \"answer\": \"\"}\n", "score={grader: form, graders: {form: {kind: regex, pattern: '(x)'}}}", 65,
         ":1: the gold answer is empty", "its group is compared"},
        {"{\"prompt\": \"1\", \"answer\": \"\"}\n", "score={grader: form, graders: {form: {kind: regex, pattern: x}}}", 0, "",
         "an expression without a group wants no gold answer"},
        {"{\"id\": \"a\", \"prompt\": \"1\", \"answer\": 1}\n{\"id\": \"a\", \"prompt\": \"2\", \"answer\": 1}\n", NULL, 65,
         ":2: id \"a\" is that of line 1, too", "an id twice"},
        {"{\"prompt\": \"12345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\", \"answer\": "
         "1}\n",
         NULL, 65, ":1: a prompt of 89 tokens", "89 and 10 tokens exceed 96 positions"},
        {"{\"prompt\": \"1\", \"answer\": 1}\n", "rollout.dynamic={max_rounds: 2}", 65, "16 all wrong", "nothing to learn from"},
        {"{\"prompt\": \"1\", \"answer\": 1}\n", "rollout.stop=[262]", 78, "rollout.stop", "stop id outside the vocabulary"},
        {"{\"prompt\": \"1\", \"answer\": 1}\n", "data.template=glm5.2", 78, "data.template", "role token that the tokenizer lacks"},
    };
    struct lab l;

    (void)state;
    lab_open(&l);
    for (size_t i = 0; i < COUNT(row); i++) {
        const char *override[] = {"data.prompts=[{path: %s/odd.jsonl}]", row[i].override, NULL};
        struct cairn_run *run = NULL;
        struct cairn_error err = {0};
        char path[300], said[2000] = "";
        int rc;

        lab_put(&l, "odd.jsonl", row[i].prompts);
        snprintf(path, sizeof path, "%s/odd%zu", l.dir, i);
        rc = (int)lab_init_at(&run, &l, path, override, &err); /* may find it already */
        if (!rc) {
            cairn_run_close(run);
            rc = lab_stage("rollout", path, 1, NULL, said);
        } else {
            snprintf(said, sizeof said, "%s", err.text);
        }
        if (rc != row[i].rc || !strstr(said, row[i].says))
            fail_msg("%s: %d %s", row[i].why, rc, said);
    }
    lab_close(&l);
}

/* A model with more ids than its tokenizer: no response holds one that could not be read, and the trainer's log-probabilities,
 * which know of no bar, are the sampler's to the bit (or it would stop with 76). */
static void test_barred(void **state)
{
    static const char *const ways[] = {"rollout.top_p=1", "rollout.top_p=0.9"};
    struct lab l;

    (void)state;
    lab_open(&l);
    for (size_t w = 0; w < COUNT(ways); w++) {
        struct cairn_rollouts r;
        char path[300], name[20];

        snprintf(name, sizeof name, "barred%zu", w);
        run_make(&l, name, path,
                 LAB_OVERRIDES("model.init.vocab_size=700", "rollout.prompts=8", "train.truncation=ignore", ways[w]));
        lab_stage_ok("rollout", path, 1, NULL);
        load(&r, NULL, NULL, path, "step/000001/rollout");
        assert_true(r.response[r.n] > 150); /* 0.63 of the random model's mass is behind the tokenizer's ids */
        for (int64_t i = 0; i < r.offsets[r.n]; i++)
            assert_true(r.tokens[i] >= 0 && r.tokens[i] < LAB_VOCAB);
        cairn_rollouts_free(&r);
        lab_stage_ok("score", path, 1, NULL);
        lab_stage_ok("train", path, 1, NULL);
    }
    FAILS(
        CAIRN_ERECIPE, "the tokenizer has no id 262",
        lab_init_at(&(struct cairn_run *){NULL}, &l, l.run, LAB_OVERRIDES("model.init.vocab_size=700", "rollout.stop=[262]"), err));
    lab_close(&l);
}

/* rollout.store text: what the tokens say, byte for byte, of training and evaluation; nothing else is another for it. */
static void test_store_text(void **state)
{
    static const char *const added[] = {"<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>"};
    static const char *const places[] = {"step/000001/rollout", "eval/000000/held/rollout"};
    struct cairn_rollouts r, plain;
    struct lab l;
    char path[300], other[300];

    (void)state;
    lab_open(&l);
    run_make(&l, "text", path, LAB_OVERRIDES("rollout.store=[text]", "rollout.prompts=9", "run.eval_every=2", LAB_EVAL));
    run_make(&l, "plain", other, LAB_OVERRIDES("rollout.prompts=9", "run.eval_every=2", LAB_EVAL));
    for (int k = 0; k < 2; k++) {
        lab_stage_ok("rollout", path, !k, k ? "held" : NULL);
        lab_stage_ok("rollout", other, !k, k ? "held" : NULL);
        load(&r, NULL, NULL, path, places[k]);
        load(&plain, NULL, NULL, other, places[k]);
        assert_true(r.text && !plain.text);
        for (int64_t i = 0; i < r.n; i++) {
            const int32_t *t = r.tokens + r.offsets[i] + r.prompt_length[i];
            struct cairn_str want = {0};

            for (int64_t j = 0; j < cairn_rollout_length(&r, i); j++)
                if (t[j] < 256)
                    cairn_str_putc(&want, (char)t[j]);
                else
                    cairn_str_puts(&want, added[t[j] - 256]);
            assert_int_equal(r.text_offsets[i + 1] - r.text_offsets[i], want.len);
            assert_memory_equal(r.text + r.text_offsets[i], cairn_str_z(&want), want.len);
            cairn_str_free(&want);
        }
        assert_true(r.n == plain.n && r.offsets[r.n] == plain.offsets[plain.n]);
        assert_memory_equal(r.tokens, plain.tokens, (size_t)r.offsets[r.n] * sizeof *r.tokens);
        assert_memory_equal(r.logprobs, plain.logprobs, (size_t)r.response[r.n] * sizeof *r.logprobs);
        cairn_rollouts_free(&r);
        cairn_rollouts_free(&plain);
    }
    lab_close(&l);
}

/* rollout.store experts: choices of two layers of each token that was run; not of evaluations; killed, the same; a model of one
 * kind of layer has none to keep. That they are the right ones: rollout_engine_test. */
static void test_store_experts(void **state)
{
    struct cairn_rollouts r;
    struct lab l;
    char path[300], other[300], said[2000];
    json_t *content, *layers;

    (void)state;
    lab_open(&l);
    run_make(&l, "experts", path,
             LAB_OVERRIDES("rollout.store=[experts, text]", "rollout.prompts=9", "run.eval_every=2", LAB_EVAL));
    lab_stage_ok("rollout", path, 1, NULL);
    load(&r, &content, NULL, path, "step/000001/rollout");
    assert_true(r.text && r.experts && r.expert_bytes == 1 && r.expert_row == 4); /* 2 of 4 experts in 2 sparse layers */
    for (int64_t k = 0; k < (r.offsets[r.n] - r.n) * r.expert_row; k += 2) {
        const uint8_t *e = r.experts;

        assert_true(e[k] < 4 && e[k + 1] < 4 && e[k] != e[k + 1]);
    }
    for (int s = 1; s < 3; s++) { /* a prompt has one set of choices, its samples share it */
        const uint8_t *e = r.experts;

        assert_memory_equal(e, e + (r.offsets[s] - s) * r.expert_row, (size_t)((r.prompt_length[0] - 1) * r.expert_row));
    }
    layers = json_object_get(json_object_get(content, "experts"), "layers");
    assert_true(json_array_size(layers) == 2 && json_integer_value(json_array_get(layers, 0)) == 1);
    cairn_rollouts_free(&r);
    json_decref(content);
    lab_stage_ok("rollout", path, 0, "held");
    load(&r, NULL, NULL, path, "eval/000000/held/rollout");
    assert_true(r.text && !r.experts);
    cairn_rollouts_free(&r);
    lab_stage_ok("score", path, 1, NULL); /* those that read rollouts take them as they are */
    lab_stage_ok("train", path, 1, NULL);

    run_make(&l, "experts-killed", other,
             LAB_OVERRIDES("rollout.store=[experts, text]", "rollout.prompts=9", "run.eval_every=2", "rollout.batch=2", LAB_EVAL));
    for (int i = 0; i < 3; i++) {
        struct lab_program p;

        lab_start(&p, "rollout", other, 1, NULL, NULL, NULL);
        usleep(15000 + (useconds_t)lab_draw(8, (uint32_t)i, 40000));
        kill(-p.pid, SIGKILL);
        lab_wait(&p);
    }
    lab_stage_ok("rollout", other, 1, NULL);
    assert_true(cairn_digest_equal(digest_at(path, "step/000001/rollout"), digest_at(other, "step/000001/rollout")));

    run_make(&l, "dense", path,
             LAB_OVERRIDES("rollout.store=[experts]", "model.init.mlp_layer_types=[dense, dense, dense]",
                           "model.init.first_k_dense_replace=3"));
    assert_int_equal(lab_stage("rollout", path, 1, NULL, said), 78);
    assert_non_null(strstr(said, "rollout.store: experts: this model has no layer that routes"));
    lab_close(&l);
}

/* A stop string ends a response with the token that completes it. */
static void test_stop_strings(void **state)
{
    struct cairn_rollouts r;
    struct lab l;
    int stopped = 0;

    (void)state;
    lab_open(&l);
    cairn_run_close(lab_init(&l, LAB_OVERRIDES("rollout.stop=[\"<|endoftext|>\", a, \"bc\", \"7\"]", "rollout.samples=40",
                                               "rollout.max_new_tokens=60")));
    lab_stage_ok("rollout", l.run, 1, NULL);
    load(&r, NULL, NULL, l.run, "step/000001/rollout");
    for (int64_t i = 0; i < r.n; i++) {
        const int32_t *t = r.tokens + r.offsets[i] + r.prompt_length[i];
        int64_t n = cairn_rollout_length(&r, i);

        for (int64_t k = 0; k < n; k++) {
            int ends = t[k] == LAB_STOP || t[k] == 'a' || t[k] == '7' || (k && t[k - 1] == 'b' && t[k] == 'c') ||
                       t[k] >= LAB_STOP + 4; /* <|assistant|> and <|observation|> have an a in their names */

            if (ends && k < n - 1)
                fail_msg("rollout %lld goes on behind token %d", (long long)i, t[k]);
            if (k == n - 1)
                assert_int_equal(ends, r.finish[i] == CAIRN_FINISH_STOP);
        }
        stopped += r.finish[i] == CAIRN_FINISH_STOP && t[n - 1] != LAB_STOP;
    }
    assert_true(stopped > 5);
    cairn_rollouts_free(&r);
    lab_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ops_keys),     cmocka_unit_test(test_content),    cmocka_unit_test(test_two_steps),
        cmocka_unit_test(test_eval),         cmocka_unit_test(test_killed),     cmocka_unit_test(test_dynamic),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_store_text), cmocka_unit_test(test_store_experts),
        cmocka_unit_test(test_stop_strings), cmocka_unit_test(test_barred),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
