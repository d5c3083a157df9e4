/* stage_test.c - the four executables from outside: what each needs, what it says when that is missing, how it stops, and what a whole chain
 * leaves behind. Killing, and full disks, have a program of their own (stage_fault_test.c).
 */
#include "tests/stages/lab.h"

#include "base/clock.h"
#include "base/json.h"
#include "ckpt/attempt.h"
#include "ckpt/verify.h"

static char *slurp(const char *dir, const char *name)
{
    char *path = cairn_path_join(dir, name), *text = NULL;
    size_t n;

    OK(cairn_file_read(path, 1 << 24, &text, &n, err));
    free(path);
    return text;
}

static void expect(const char *stage, const char *run, int step, const char *eval, int rc, const char *word)
{
    char said[2000];
    int got = lab_stage(stage, run, step, eval, said);

    if (got != rc || !strstr(said, word))
        fail_msg("cairn-%s --step %d: %d, expected %d with \"%s\": %s", stage, step, got, rc, word, said);
    if (rc && (strchr(said, '\n') != said + strlen(said) - 1 || strncmp(said, "cairn-", 6)))
        fail_msg("cairn-%s --step %d says more, or less, than one sentence: %s", stage, step, said);
}

/* In any order but the right one: 69, and what is missing by name. */
static void test_missing_inputs(void **state)
{
    struct lab l;

    (void)state;
    lab_open(&l);
    expect("train", l.run, 1, NULL, 69, l.run); /* no run at all */
    cairn_run_close(lab_init(&l, LAB_OVERRIDES(LAB_WARM, LAB_EVAL)));
    expect("rollout", l.run, 1, NULL, 69, "policy/000000");
    expect("score", l.run, 1, NULL, 69, "step/000001/rollout");
    expect("train", l.run, 1, NULL, 69, "policy/000000");
    expect("sync", l.run, 0, NULL, 69, "step/000000/train");
    expect("rollout", l.run, 0, "held", 69, "policy/000000");
    expect("score", l.run, 0, "held", 69, "eval/000000/held/rollout");
    lab_stage_ok("train", l.run, 0, NULL);
    lab_stage_ok("sync", l.run, 0, NULL);
    expect("train", l.run, 1, NULL, 69, "step/000001/rollout");
    lab_stage_ok("rollout", l.run, 1, NULL);
    expect("train", l.run, 1, NULL, 69, "step/000001/score");
    expect("rollout", l.run, 2, NULL, 69, "policy/000001");
    expect("rollout", l.run, 7, "held", 69, "policy/000007");
    lab_close(&l);
}

static void test_usage(void **state)
{
    struct lab l;

    (void)state;
    lab_open(&l);
    cairn_run_close(lab_init(&l, LAB_OVERRIDES(LAB_EVAL)));
    expect("rollout", l.run, 0, NULL, 64, "step 0 has no rollout");
    expect("train", l.run, 0, NULL, 64, "step 0 has no train");
    expect("rollout", l.run, 0, "other", 64, "no such evaluation set");
    expect("train", l.run, 1, "held", 64, "--eval is for rollout and score");
    lab_close(&l);
}

static void test_damaged_run(void **state)
{
    char path[300], *text;
    struct lab l;

    (void)state;
    lab_open(&l);
    cairn_run_close(lab_init(&l, NULL));
    snprintf(path, sizeof path, "%s/recipe.yaml", l.run);
    text = slurp(l.run, "recipe.yaml");
    lab_put(&l, "run/recipe.yaml", "train: {lerning_rate: 1}\n");
    expect("rollout", l.run, 1, NULL, 78, "train.learning_rate");
    lab_write(path, text, strlen(text));
    free(text);
    lab_stage_ok("rollout", l.run, 1, NULL);
    /* an outside file that changed: 65, by name */
    text = slurp(l.run, "files/data.prompts.0");
    text[20] ^= 1;
    lab_put(&l, "run/files/data.prompts.0", text);
    expect("score", l.run, 1, NULL, 65, "data.prompts.0");
    text[20] ^= 1;
    lab_put(&l, "run/files/data.prompts.0", text);
    lab_stage_ok("score", l.run, 1, NULL);
    free(text);
    lab_close(&l);
}

/* One flipped bit in an input: found before it is used, the file named. */
static void test_flipped_bit(void **state)
{
    static const struct {
        const char *artefact, *stage;
        int step;
    } row[] = {{"step/000001/rollout", "score", 1}, {"step/000001/rollout", "train", 1}, {"step/000001/score", "train", 1},
               {"policy/000000", "train", 1},       {"step/000001/train", "sync", 1}};
    struct cairn_run *run;
    struct lab l;

    (void)state;
    lab_open(&l);
    run = lab_init(&l, NULL);
    lab_stage_ok("rollout", l.run, 1, NULL);
    for (size_t i = 0; i < COUNT(row); i++) {
        struct cairn_manifest *m = NULL;
        char path[400], shard[100];
        int64_t size;
        unsigned char byte;
        int fd;

        if (i == 1)
            lab_stage_ok("score", l.run, 1, NULL);
        if (i == 4)
            lab_stage_ok("train", l.run, 1, NULL);
        snprintf(path, sizeof path, "%s/%s", l.run, row[i].artefact);
        OK(cairn_manifest_load(&m, path, err));
        for (int k = 0; k < m->nshards; k++) /* sync reads the masters alone */
            if (i < 4 || strstr(m->shards[k]->file, "master"))
                snprintf(shard, sizeof shard, "%s", m->shards[k]->file);
        cairn_manifest_destroy(m);
        snprintf(path, sizeof path, "%s/%s/%s", l.run, row[i].artefact, shard);
        size = cairn_file_size(path);
        assert_true(size > 0);
        fd = open(path, O_RDWR);
        assert_true(fd >= 0);
        assert_int_equal(pread(fd, &byte, 1, size * 3 / 5), 1);
        byte ^= 8;
        assert_int_equal(pwrite(fd, &byte, 1, size * 3 / 5), 1);
        expect(row[i].stage, l.run, row[i].step, NULL, 65, shard);
        byte ^= 8;
        assert_int_equal(pwrite(fd, &byte, 1, size * 3 / 5), 1);
        close(fd);
    }
    lab_stage_ok("sync", l.run, 1, NULL);
    cairn_run_close(run);
    lab_close(&l);
}

/* ---- a whole chain -------------------------------------------------------------------------------------------------------- */

/* Lines "path digest" of every artefact below dir. */
static enum cairn_status digest_line(void *arg, const char *path, const struct cairn_manifest_head *head, struct cairn_error *err)
{
    char hex[33];

    (void)err;
    cairn_digest_hex(head->digest, hex);
    cairn_str_printf(arg, "%s %s\n", path, hex);
    return CAIRN_OK;
}

static void digests(struct cairn_str *s, const char *dir)
{
    cairn_str_clear(s);
    OK(cairn_digest_walk(dir, digest_line, s, err));
}

static void chain(struct cairn_run *run)
{
    struct cairn_link *link = NULL;
    int n = 0;

    OK(cairn_run_chain(run, &link, &n, err));
    for (int i = 0; i < n; i++)
        lab_stage_ok(cairn_stage_name(link[i].stage), run->dir, (int)link[i].step, link[i].eval);
    free(link);
}

static void test_chain(void **state)
{
    const char *const *const how[] = {LAB_OVERRIDES(LAB_WARM, LAB_EVAL, "run.eval_every=2"),
                                      LAB_OVERRIDES(LAB_ADAPTER, LAB_EVAL, "run.eval_every=2", "mismatch.sample=1"),
                                      LAB_OVERRIDES(LAB_ADAPTER, "kernels.backend=guard", "train.kl={coef: 0.1}", "train.entropy=0.01")};

    (void)state;
    for (size_t i = 0; i < COUNT(how); i++) {
        struct cairn_str first = {0}, second = {0};
        struct cairn_run *run, *other = NULL;
        struct cairn_verify_counts c;
        char path[300], *text, *line;
        struct lab l;
        int lines = 0;

        lab_open(&l);
        run = lab_init(&l, how[i]);
        chain(run);
        OK(cairn_verify_tree(run->dir, &(struct cairn_verify_opts){.deep = 1}, &c, err));
        digests(&first, run->dir);
        chain(run); /* everything is done: 0 at once, nothing changes */
        digests(&second, run->dir);
        assert_string_equal(cairn_str_z(&first), cairn_str_z(&second));
        if (i == 0) { /* the same recipe elsewhere: the same run; two threads: the same bits */
            snprintf(path, sizeof path, "%s/again", l.dir);
            OK(lab_init_at(&other, &l, path, LAB_OVERRIDES(LAB_WARM, LAB_EVAL, "run.eval_every=2", "kernels.threads=2"), err));
            chain(other);
            digests(&second, path);
            assert_string_equal(cairn_str_z(&first), cairn_str_z(&second));
            cairn_run_close(other);
        }
        text = slurp(run->dir, "log/metrics.jsonl"); /* a line for every step and every evaluation, once */
        for (char *save = NULL, *p = text; (line = strtok_r(p, "\n", &save)); p = NULL) {
            json_t *v = json_loads(line, 0, NULL);
            const char *eval = json_string_value(json_object_get(v, "eval"));
            int64_t step = json_integer_value(json_object_get(v, "step"));

            assert_non_null(v);
            if (eval) {
                assert_true(json_is_number(json_object_get(v, "eval/held/accuracy")) && json_is_number(json_object_get(v, "eval/held/capped_share")));
            } else if (step) {
                static const char *const keys[] = {"reward/raw_mean", "capped_share",
                                                   "loss/policy",     "entropy",
                                                   "ratio/mean",      "clip_fraction/low",
                                                   "grad_norm",       "lr",
                                                   "tokens/loss",     "mismatch/max",
                                                   "tokens/total",    "tokens/per_second",
                                                   "mismatch/mean",   "length/mean",
                                                   "time/rollout",    "time/train",
                                                   "time/score",      "time/sync",
                                                   "pass_at_k",       "groups/kept",
                                                   "finish/stop",     "mismatch/bitwise_equal_share"};

                for (size_t k = 0; k < COUNT(keys); k++)
                    if (!json_is_number(json_object_get(v, keys[k])))
                        fail_msg("step %lld: no %s", (long long)step, keys[k]);
                assert_true(json_number_value(json_object_get(v, "mismatch/max")) == 0);
                assert_true(json_number_value(json_object_get(v, "mismatch/bitwise_equal_share")) == 1);
            }
            json_decref(v);
            lines++;
        }
        assert_int_equal(lines, i == 0 ? 3 + 2 : i == 1 ? 2 + 2 : 2);
        free(text);
        cairn_str_free(&first);
        cairn_str_free(&second);
        cairn_run_close(run);
        lab_close(&l);
    }
}

/* An artefact that is there: 0 within a second, without a look at its inputs. */
static void test_done_at_once(void **state)
{
    struct cairn_run *run;
    char path[300];
    struct lab l;
    double t0;

    (void)state;
    lab_open(&l);
    run = lab_init(&l, NULL);
    lab_stage_ok("rollout", l.run, 1, NULL);
    lab_stage_ok("score", l.run, 1, NULL);
    lab_stage_ok("train", l.run, 1, NULL);
    snprintf(path, sizeof path, "%s/step/000001/rollout", l.run);
    OK(cairn_tree_remove(path, err));
    t0 = cairn_now_s();
    lab_stage_ok("train", l.run, 1, NULL);
    assert_true(cairn_now_s() - t0 < 1);
    cairn_run_close(run);
    lab_close(&l);
}

/* Two at once: one publishes, the other finds it done or is fenced; the bits are one's. */
static void test_two_at_once(void **state)
{
    static const char *const stages[] = {"rollout", "score", "train", "sync"};
    struct cairn_run *run;
    struct lab l;

    (void)state;
    lab_open(&l);
    run = lab_init(&l, NULL);
    for (size_t i = 0; i < COUNT(stages); i++) {
        struct lab_program p[2];
        int rc[2];

        for (int k = 0; k < 2; k++)
            lab_start(&p[k], stages[i], l.run, 1, NULL, NULL, NULL);
        for (int k = 0; k < 2; k++)
            rc[k] = lab_wait(&p[k]);
        if ((rc[0] && rc[0] != 71) || (rc[1] && rc[1] != 71) || (rc[0] && rc[1]))
            fail_msg("cairn-%s twice: %d (%s) and %d (%s)", stages[i], rc[0], p[0].said, rc[1], p[1].said);
        lab_stage_ok(stages[i], l.run, 1, NULL);
    }
    OK(cairn_verify_tree(l.run, &(struct cairn_verify_opts){.deep = 1}, &(struct cairn_verify_counts){0}, err));
    cairn_run_close(run);
    lab_close(&l);
}

/* SIGTERM, SIGUSR1: 75 inside a moment, one sentence, nothing half-written in sight; the next call ends it. */
static void test_stopped(void **state)
{
    static const struct {
        int signo;
        double after_s;
    } row[] = {{SIGTERM, 0.3}, {SIGUSR1, 0.6}, {SIGINT, 0.05}};
    static const char *const slow[] = {"warm_start={data: %s/worked.jsonl, updates: 100000, batch: 40, learning_rate: 1.0e-4}", NULL};
    struct cairn_run *run;
    struct lab l;

    (void)state;
    lab_open(&l);
    run = lab_init(&l, slow);
    for (size_t i = 0; i < COUNT(row); i++) {
        struct lab_program p;
        char path[300];
        double t0;
        int rc;

        lab_start(&p, "train", l.run, 0, NULL, NULL, NULL);
        cairn_sleep_s(row[i].after_s);
        kill(p.pid, row[i].signo);
        t0 = cairn_now_s();
        rc = lab_wait(&p);
        if (row[i].after_s < 0.2 && rc == 128 + row[i].signo)
            continue; /* before main() had said that it wants to know */
        if (rc != 75 || !strstr(p.said, "stopped"))
            fail_msg("signal %d: %d: %s", row[i].signo, rc, p.said);
        assert_true(cairn_now_s() - t0 < 3);
        snprintf(path, sizeof path, "%s/step/000000/train/MANIFEST.json", l.run);
        assert_false(cairn_path_exists(path));
        OK(cairn_verify_tree(l.run, &(struct cairn_verify_opts){0}, &(struct cairn_verify_counts){0}, err));
    }
    cairn_run_close(run);
    lab_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_inputs), cmocka_unit_test(test_usage),   cmocka_unit_test(test_damaged_run),
        cmocka_unit_test(test_flipped_bit),    cmocka_unit_test(test_chain),   cmocka_unit_test(test_done_at_once),
        cmocka_unit_test(test_two_at_once),    cmocka_unit_test(test_stopped),
    };

    return cmocka_run_group_tests_name("stage", tests, NULL, NULL);
}
