/* recipe_test.c - recipes from files: what is refused and with which words, inheritance, overrides, paths, the resolved form. */
#include "recipelab.h"

#include "recipe/check.h"

static void bad_files(void **state)
{
    static const struct {
        const char *text, *says;
    } t[] = {
        /* unknown keys */
        {"train:\n  lerning_rate: 1\n", "r.yaml:2:3: unknown key \"train.lerning_rate\"; nearest valid key: train.learning_rate"},
        {"trian: {}\n", "r.yaml:1:1: unknown key \"trian\"; nearest valid key: train"},
        {"learning_rate: 1\n", "r.yaml:1:1: unknown key \"learning_rate\"; nearest valid key: train.learning_rate"},
        {"train: {samples: 4}\n", "r.yaml:1:9: unknown key \"train.samples\"; nearest valid key: rollout.samples"},
        {"train.loss: sft\n", "r.yaml:1:1: unknown key \"train.loss\"; in a file keys nest: train: {loss: ...}"},
        {"train:\n  clip:\n    hihg: 1\n", "r.yaml:3:5: unknown key \"train.clip.hihg\"; nearest valid key: train.clip.high"},
        {"data: {prompts: [{path: x, wieght: 2}]}\n",
         "r.yaml:1:28: unknown key \"data.prompts.0.wieght\"; nearest valid key: data.prompts.0.weight"},
        {"sync: {zzzzzzzzzzzz: 1}\n", "r.yaml:1:8: unknown key \"sync.zzzzzzzzzzzz\"; valid here: path, dtype, node_store"},
        {"data: {'*': 1}\n",
         "r.yaml:1:8: unknown key \"data.*\"; valid here: prompts, template, thinking, effort, added_in_prompt, shuffle, eval"},
        /* wrong types */
        {"run:\n  seed: ten\n", "r.yaml:2:9: run.seed: expected an integer, found the string \"ten\""},
        {"run: {seed: \"10\"}\n", "r.yaml:1:13: run.seed: expected an integer, found the string \"10\""},
        {"run: {seed: 1.5}\n", "r.yaml:1:13: run.seed: expected an integer, found the number 1.5"},
        {"run: {seed: 010}\n",
         "r.yaml:1:13: run.seed: 010: a number with a leading zero is octal to some readers and decimal to others"},
        {"run: {seed: 99999999999999999999}\n", "r.yaml:1:13: run.seed: 99999999999999999999: the integer does not fit in 64 bits"},
        {"run: {seed: }\n", "r.yaml:1:13: run.seed: expected an integer, found null"},
        {"run: {seed: [1]}\n", "r.yaml:1:13: run.seed: expected an integer, found a list"},
        {"run:\n", "r.yaml:1:5: run: expected a map of keys, found null; remove the line or put keys below it"},
        {"run: 5\n", "r.yaml:1:6: run: expected a map of keys, found the integer 5"},
        {"train: {learning_rate: .inf}\n", "r.yaml:1:24: train.learning_rate: .inf: infinity and NaN are refused"},
        {"train: {learning_rate: 1e999}\n", "r.yaml:1:24: train.learning_rate: 1e999: the number does not fit in a double"},
        {"train: {learning_rate: true}\n", "r.yaml:1:24: train.learning_rate: expected a number, found the boolean true"},
        {"data: {shuffle: yes}\n", "r.yaml:1:17: data.shuffle: expected true or false, found the string \"yes\""},
        {"slurm: {partition: 7}\n",
         "r.yaml:1:20: slurm.partition: expected a string or null, found the integer 7; put it in quotes if it is meant as a text"},
        {"data: {template: {prompt: x}}\n",
         "r.yaml:1:18: data.template: expected a string, found a map; put it in quotes if it is a text with \": \" in it"},
        {"model: {init: 5}\n", "r.yaml:1:15: model.init: expected a map or null, found the integer 5"},
        {"model: {init: {x: yes}}\n",
         "r.yaml:1:19: model.init: \"yes\" is a boolean to some readers: write true or false, or put it in quotes"},
        {"model: {from: \"\"}\n", "r.yaml:1:15: model.from: expected a path or null, found the string \"\""},
        {"data: {prompts: {path: x}}\n", "r.yaml:1:17: data.prompts: expected a list of maps, found a map"},
        {"data: {prompts: [x]}\n", "r.yaml:1:18: data.prompts.0: expected a map of keys, found the string \"x\""},
        {"train: {loss: grop}\n", "r.yaml:1:15: train.loss: expected one of grpo, sft, found the string \"grop\"; nearest: grpo"},
        {"train: {betas: [0.9]}\n", "r.yaml:1:16: train.betas: expected a list of two numbers, found one of 1"},
        {"train: {betas: 0.9}\n", "r.yaml:1:16: train.betas: expected a list of two numbers, found the number 0.9"},
        {"train: {correction: tsi}\n",
         "r.yaml:1:21: train.correction.kind: expected one of none, tis, icepop, sequence, found the string \"tsi\"; nearest: tis"},
        {"mismatch: {max: atuo}\n", "r.yaml:1:17: mismatch.max: expected a number or auto, found the string \"atuo\""},
        {"rollout: {store: [text, text]}\n", "r.yaml:1:25: rollout.store: \"text\" is there twice"},
        {"rollout: {stop: [5, \"\"]}\n", "r.yaml:1:21: rollout.stop.1: an empty stop string would end every response at once"},
        {"slurm: {jobs: [rollout]}\n",
         "r.yaml:1:16: slurm.jobs.0: expected a list of some of rollout, score, train, sync, found the string \"rollout\""},
        /* out of range */
        {"rollout: {temperature: 0}\n", "r.yaml:1:24: rollout.temperature: 0 is out of range: above 0, at most 100"},
        {"rollout: {samples: 0}\n", "r.yaml:1:20: rollout.samples: 0 is out of range: 1 to 1000000"},
        {"train: {clip: {low: -0.1}}\n", "r.yaml:1:21: train.clip.low: -0.1 is out of range: at least 0, below 1"},
        {"train: {clip: {dual: 1}}\n", "r.yaml:1:22: train.clip.dual: 1 is out of range: above 1"},
        {"train: {betas: [0.9, 1]}\n", "r.yaml:1:22: train.betas.1: 1 is out of range: at least 0, below 1"},
        {"run: {seed: -1}\n", "r.yaml:1:13: run.seed: -1 is out of range: at least 0"},
        {"rollout: {stop: [-5]}\n", "r.yaml:1:18: rollout.stop.0: -5 is out of range: 0 to 2147483647"},
        /* missing */
        {"data: {prompts: [{weight: 2}]}\n", "r.yaml:1:18: data.prompts.0.path: missing, and it has no default"},
        {"warm_start: {updates: 5}\n", "r.yaml:1:13: warm_start.data: missing, and it has no default"},
        {"{}\n", "r.yaml: model: give model.from (an imported checkpoint) or model.init (keys of a config.json)"},
        {"model: {init: {a: 1}}\n", "r.yaml:1:1: model.tokenizer: missing, and model.init brings none"},
        {"model: {from: x}\n", "r.yaml: data.prompts: no prompt file; a run of run.steps > 0 needs one"},
        /* impossible together */
        {WHOLE "rollout: {top_p: 0.9}\n",
         "r.yaml:3:18: rollout.top_p: truncates sampling, so train.truncation must be said (ignore or correct)"},
        {WHOLE "rollout: {top_p: 0.9}\ntrain: {truncation: correct}\n",
         "r.yaml:4:21: train.truncation: correct needs a train.correction other than none: its weights do it"},
        {WHOLE "rollout: {min_p: 0.1}\ntrain: {lag: 1}\n", "r.yaml:4:9: unknown key \"train.lag\"; nearest valid key: run.lag"},
        {WHOLE "rollout: {prompts: 2}\n",
         "r.yaml:3:20: rollout.prompts: 2 is less than train.updates_per_step, 4: each update needs a group of its own"},
        {WHOLE "rollout: {prompts: 2}\ntrain: {updates_per_step: 3}\n",
         "r.yaml:4:27: train.updates_per_step: 3 is more than rollout.prompts, 2: each update needs a group of its own"},
        {WHOLE "rollout: {max_new_tokens: 32}\nscore:\n  overlong: {buffer: 33}\n",
         "r.yaml:5:22: score.overlong.buffer: 33 is more than rollout.max_new_tokens, 32"},
        {WHOLE "score: {reward: {right: 0}}\n",
         "r.yaml:3:25: score.reward.right: 0 is the reward of a wrong answer too: nothing could be learned"},
        {WHOLE "rollout: {carry: true}\n", "r.yaml:3:18: rollout.carry: only rollout.dynamic leaves surplus groups to carry"},
        {WHOLE "rollout: {carry: true, dynamic: {}}\n",
         "r.yaml:3:18: rollout.carry: carried groups are of an older policy and need a train.correction other than none"},
        {WHOLE "run: {lag: 1}\n", "r.yaml:3:12: run.lag: rollouts of an older policy need a train.correction other than none"},
        {WHOLE "train: {on_policy: correct}\n", "r.yaml:3:20: train.on_policy: correct needs a train.correction other than none"},
        {WHOLE "train: {correction: {kind: icepop, low: 3}}\n",
         "r.yaml:3:41: train.correction.low: 3 is not below train.correction.high, 2"},
        {WHOLE "train: {ratio: cispo, clip: {dual: 3}}\n", "r.yaml:3:36: train.clip.dual: has no meaning with train.ratio: cispo"},
        {WHOLE "rollout: {page: 48}\n", "r.yaml:3:17: rollout.page: 48 is no power of two"},
        {WHOLE "numerics: {segments: 3}\n", "r.yaml:3:22: numerics.segments: 3 is no power of two"},
        {"model: {from: x, init: {a: 1}}\n", "r.yaml:1:18: model.init: model.from is given too; set one of them to null"},
        {"data: {eval: [{name: a, path: x}, {name: a, path: y}]}\n"
         "model: {from: x}\nrun: {steps: 0}\n",
         "r.yaml:1:42: data.eval.1.name: \"a\" is the name of data.eval.0 too"},
        {"data: {eval: [{name: a/b, path: x}]}\nmodel: {from: x}\nrun: {steps: 0}\n",
         "r.yaml:1:22: data.eval.0.name: \"a/b\" is no name: letters, digits, '.', '_' and '-', at most 128"},
        {WHOLE "slurm:\n  jobs: [[rollout], [scor, train, sync]]\n",
         "r.yaml:4:22: slurm.jobs.1.0: expected a list of some of rollout, score, train, sync, found the string \"scor\"; nearest: "
         "score"},
        {WHOLE "slurm: {jobs: [[rollout], [train, score, sync]]}\n",
         "r.yaml:3:9: slurm.jobs: \"train\" where score: every stage once, in the order rollout, score, train, sync"},
        {WHOLE "slurm: {jobs: [[rollout, score, train, sync], [rollout]]}\n",
         "r.yaml:3:9: slurm.jobs: \"rollout\" where nothing is left to do: every stage once, in the order rollout, score, train, "
         "sync"},
        {WHOLE "slurm: {jobs: [[rollout], [score]]}\n", "r.yaml:3:9: slurm.jobs: \"train\" is in no job"},
        /* what this build cannot do */
        {WHOLE "train: {parallel: {tp: 2}}\n", "r.yaml:3:24: train.parallel.tp: 2: this build trains with tp 1 only"},
        {WHOLE "rollout: {parallel: {ep: 4}}\n", "r.yaml:3:26: rollout.parallel.ep: 4: this build samples with ep 1 only"},
        {WHOLE "sync: {path: shm}\n",
         "r.yaml:3:14: sync.path: shm: trainer and sampler are alive at once in run.mode: resident only; take auto or file"},
        {WHOLE "sync: {path: nccl}\n",
         "r.yaml:3:14: sync.path: nccl: trainer and sampler are alive at once in run.mode: resident only; take auto or file"},
        {"model: {from: x}\nrun: {steps: 0}\nrollout: {tasks: 2, dynamic: {max_rounds: 3}}\n",
         "r.yaml:3:18: rollout.tasks: 2: with rollout.dynamic the candidates depend on verdicts about earlier ones, which "
         "independent tasks "
         "cannot know; use replicas (rollout.parallel.dp)"},
        {"model: {from: x, adapter: {modules: {o_proj: {rnk: 4}}}}\nrun: {steps: 0}\n",
         "r.yaml:1:47: unknown key \"model.adapter.modules.o_proj.rnk\"; nearest valid key: model.adapter.modules.o_proj.rank"},
    };

    (void)state;
    for (int i = 0; i < N(t); i++) {
        struct cairn_recipe *r = NULL;
        struct cairn_error err = {0};

        put("r.yaml", t[i].text);
        assert_int_equal(cairn_recipe_load(&r, "r.yaml", 0, NULL, &err), CAIRN_ERECIPE);
        assert_string_equal(err.text, t[i].says);
        assert_null(r);
    }
}

static void bad_overrides(void **state)
{
    static const struct {
        const char *text, *says;
    } t[] = {
        {"train.lerning_rate=1", "command line:2:1: unknown key \"train.lerning_rate\"; nearest valid key: train.learning_rate"},
        {"train.learning_rate=fast", "command line:2:21: train.learning_rate: expected a number, found the string \"fast\""},
        {"train.learning_rate",
         "command line:2:1: expected key=value (as in train.learning_rate=1e-5), found \"train.learning_rate\""},
        {"=5", "command line:2:1: expected key=value (as in train.learning_rate=1e-5), found \"=5\""},
        {"train..loss=sft", "command line:2:1: \"train..loss\": a key is missing between the dots"},
        {"run.seed.x=1", "command line:2:1: \"run.seed.x\": \"run.seed\" holds a value, not a section"},
        {"data.prompts.1.path=x",
         "command line:2:1: \"data.prompts.1.path\": \"data.prompts\" is a list of 1; its elements are named by number from 0"},
        {"data.prompts.x.path=x",
         "command line:2:1: \"data.prompts.x.path\": \"data.prompts\" is a list of 1; its elements are named by number from 0"},
        {"inherit=x.yaml", "command line:2:1: inherit belongs into a file"},
        {"run.seed=[1", "command line:2:13: did not find expected ',' or ']' (while parsing a flow sequence)"},
        {"run.seed=", "command line:2:10: run.seed: expected an integer, found null"},
        {"model.init.\xff=1",
         "command line:2:1: \"model.init.\xff\": a key has at most 64 names of 1 to 128 printable ASCII characters"},
        {"model.init.a b=1",
         "command line:2:1: \"model.init.a b\": a key has at most 64 names of 1 to 128 printable ASCII characters"},
        {"run.seed=-1", "command line:2:10: run.seed: -1 is out of range: at least 0"},
    };

    (void)state;
    put("r.yaml", WHOLE "run: {seed: 3}\n");
    for (int i = 0; i < N(t); i++) {
        const char *const overrides[] = {"run.steps=5", t[i].text};
        struct cairn_recipe *r = NULL;
        struct cairn_error err = {0};

        assert_int_equal(cairn_recipe_load(&r, "r.yaml", 2, overrides, &err), CAIRN_ERECIPE);
        /* where a value breaks off is libyaml's to say: line and sentence are compared, not that column */
        if (strstr(t[i].text, "[1"))
            assert_non_null(strstr(err.text, "did not find expected ',' or ']' (while parsing a flow sequence)"));
        else
            assert_string_equal(err.text, t[i].says);
        assert_null(r);
    }
}

static void bad_inheritance(void **state)
{
    static const struct {
        const char *a, *b, *says;
    } t[] = {
        {"inherit: sub/b.yaml\n", "inherit: ../r.yaml\n", "sub/b.yaml:1:10: inherit: sub/../r.yaml inherits itself"},
        {"inherit: r.yaml\n", "{}", "r.yaml:1:10: inherit: r.yaml inherits itself"},
        {"inherit: [sub/b.yaml, none.yaml]\n", "{}", "r.yaml:1:23: inherit: cannot read none.yaml: No such file or directory"},
        {"inherit: sub\n", "{}", "r.yaml:1:10: inherit: cannot read sub: it is a folder"},
        {"inherit: {a: b}\n", "{}", "r.yaml:1:10: inherit: expected a file name or a list of them"},
        {"inherit:\n", "{}", "r.yaml:1:9: inherit: expected a file name or a list of them"},
        {"inherit: sub/b.yaml\n", "run:\n  sed: 1\n", "sub/b.yaml:2:3: unknown key \"run.sed\"; nearest valid key: run.seed"},
        {"inherit: sub/b.yaml\nrun: {seed: x}\n", "run:\n  seed: 1\n",
         "r.yaml:2:13: run.seed: expected an integer, found the string \"x\""},
        {"inherit: sub/b.yaml\nrun: {steps: 1}\n", "run:\n  seed: x\n",
         "sub/b.yaml:2:9: run.seed: expected an integer, found the string \"x\""},
        {"inherit: sub/b.yaml\n", "- x\n", "sub/b.yaml:1:1: expected a map of keys (\"run:\", \"model:\", ...)"},
        {"run: {inherit: x}\n", "{}", NULL},
    };
    struct cairn_recipe *r = NULL;
    struct cairn_error err;

    (void)state;
    for (int i = 0; i < N(t); i++) {
        put("r.yaml", t[i].a);
        put("sub/b.yaml", t[i].b);
        assert_int_equal(cairn_recipe_load(&r, "r.yaml", 0, NULL, &err), CAIRN_ERECIPE);
        if (t[i].says)
            assert_string_equal(err.text, t[i].says);
    }
    assert_int_equal(cairn_recipe_load(&r, "nowhere.yaml", 0, NULL, &err), CAIRN_ERECIPE);
    assert_string_equal(err.text, "nowhere.yaml: cannot read this recipe: No such file or directory");
    assert_int_equal(cairn_recipe_load(&r, ".", 0, NULL, &err), CAIRN_ERECIPE);
    assert_string_equal(err.text, ".: cannot read this recipe: it is a folder");
    assert_null(r);
}

/* A chain longer than the limit, and a file that is named more often than the limit: told, not tried. */
static void too_much_inheritance(void **state)
{
    struct cairn_recipe *r = NULL;
    struct cairn_error err;
    char name[32], text[64];

    (void)state;
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "chain%d.yaml", i);
        snprintf(text, sizeof text, "inherit: chain%d.yaml\n", i + 1);
        put(name, text);
    }
    assert_int_equal(cairn_recipe_load(&r, "chain0.yaml", 0, NULL, &err), CAIRN_ERECIPE);
    assert_string_equal(err.text, "chain15.yaml:1:10: inherit: more than 16 levels or 64 files");
    put("twice12.yaml", "{}");
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof name, "twice%d.yaml", i);
        snprintf(text, sizeof text, "inherit: [twice%d.yaml, twice%d.yaml]\n", i + 1, i + 1);
        put(name, text);
    }
    assert_int_equal(cairn_recipe_load(&r, "twice0.yaml", 0, NULL, &err), CAIRN_ERECIPE);
    assert_non_null(strstr(err.text, "inherit: more than 16 levels or 64 files"));
}

static void inheritance_order(void **state)
{
    struct cairn_recipe *r;

    (void)state;
    put("sub/deep/grand.yaml",
        "run: {seed: 1, steps: 1, eval_every: 1}\nrollout: {prompts: 11, samples: 11, stop: [1, 2]}\n"
        "model: {tokenizer: grand-tok, init: {a: 1, b: {c: 1, d: 1}}}\nscore: {overlong: {buffer: 5, factor: 2}}\n");
    put("sub/one.yaml", "inherit: deep/grand.yaml\nrun: {steps: 2}\nrollout: {prompts: 22}\nmodel: {init: {b: {c: 2}}}\n");
    put("two.yaml", "run: {eval_every: 3}\nrollout: {prompts: 33, stop: [3]}\n");
    put("r.yaml", "inherit: [sub/one.yaml, two.yaml]\nrollout: {samples: 44, max_new_tokens: 100}\n"
                  "data: {prompts: [{path: sub/../p.jsonl}, {path: ../q.jsonl, weight: 2}]}\nscore: {overlong: null}\ntrain: "
                  "{correction: tis}\n");
    r = good("r.yaml", 0, NULL);
    assert_int_equal(cairn_recipe_i64(r, "run.seed"), 1);       /* grandparent */
    assert_int_equal(cairn_recipe_i64(r, "run.steps"), 2);      /* parent over grandparent */
    assert_int_equal(cairn_recipe_i64(r, "run.eval_every"), 3); /* later parent over earlier */
    assert_int_equal(cairn_recipe_i64(r, "rollout.prompts"), 33);
    assert_int_equal(cairn_recipe_i64(r, "rollout.samples"), 44);                 /* the file over all */
    assert_int_equal(cairn_recipe_i64(r, "train.updates_per_step"), 4);           /* default */
    assert_int_equal(json_array_size(cairn_recipe_list(r, "rollout.stop")), 1);   /* lists replaced */
    assert_int_equal(json_integer_value(cairn_recipe_get(r, "model.init.a")), 1); /* free maps merge */
    assert_int_equal(json_integer_value(cairn_recipe_get(r, "model.init.b.c")), 2);
    assert_int_equal(json_integer_value(cairn_recipe_get(r, "model.init.b.d")), 1);
    assert_false(cairn_recipe_has(r, "score.overlong")); /* null switches off what a parent gave */
    assert_false(cairn_recipe_has(r, "score.overlong.buffer"));
    assert_string_equal(cairn_recipe_str(r, "train.correction.kind"), "tis"); /* a section's kind as its word */
    assert_true(cairn_recipe_f64(r, "train.correction.cap") == 2.0);
    cairn_recipe_free(r);
}

/* Paths count from the folder of the file that holds them; links in that folder are resolved, so ".." means what it says. */
static void paths(void **state)
{
    const char *const overrides[] = {"data.eval=[{name: e, path: ./e.jsonl}]", "model.tokenizer=/abs//tok/./x/"};
    struct cairn_recipe *r;
    char want[256];

    (void)state;
    put("sub/deep/base.yaml",
        "data: {prompts: [{path: p.jsonl}, {path: ../q.jsonl}, {path: ../../../../../../x}, {path: a/../b}]}\n");
    unlink("link");
    assert_int_equal(symlink("sub/deep", "link"), 0);
    put("r.yaml", "inherit: link/base.yaml\nmodel: {from: sub}\n");
    r = good("r.yaml", 2, overrides);
    snprintf(want, sizeof want, "%s/sub/deep/p.jsonl", home);
    assert_string_equal(cairn_recipe_str(r, "data.prompts.0.path"), want);
    snprintf(want, sizeof want, "%s/sub/q.jsonl", home);
    assert_string_equal(cairn_recipe_str(r, "data.prompts.1.path"), want);
    assert_string_equal(cairn_recipe_str(r, "data.prompts.2.path"), "/x");
    snprintf(want, sizeof want, "%s/sub/deep/a/../b", home); /* a may be a link: left alone */
    assert_string_equal(cairn_recipe_str(r, "data.prompts.3.path"), want);
    snprintf(want, sizeof want, "%s/sub", home);
    assert_string_equal(cairn_recipe_str(r, "model.from"), want);
    snprintf(want, sizeof want, "%s/e.jsonl", home); /* the command line: from the current folder */
    assert_string_equal(cairn_recipe_str(r, "data.eval.0.path"), want);
    assert_string_equal(cairn_recipe_str(r, "model.tokenizer"), "/abs/tok/x");
    cairn_recipe_free(r);

    /* from another folder */
    assert_int_equal(chdir("sub"), 0);
    r = good("../r.yaml", 1, overrides);
    snprintf(want, sizeof want, "%s/sub/e.jsonl", home);
    assert_string_equal(cairn_recipe_str(r, "data.eval.0.path"), want);
    snprintf(want, sizeof want, "%s/sub", home);
    assert_string_equal(cairn_recipe_str(r, "model.from"), want);
    cairn_recipe_free(r);
    assert_int_equal(chdir(".."), 0);
}

static void overrides_and_getters(void **state)
{
    static const char *const overrides[] = {
        "run.seed=9",
        "train.learning_rate=1e-4",
        "rollout.dynamic.max_rounds=3", /* makes the section */
        "score.overlong={buffer: 7}",
        "rollout.max_new_tokens=64",
        "data.prompts.0.weight=3",
        "data.template=\"Q: {prompt}\\nA:\"",
        "score.marker=A:x", /* one string for a list of them */
        "model.init.hidden_size=128",
        "model.init.rope_theta=1e4",
        "checkpoint.keep_policies=4",
        "mismatch.max=0.5",
        "run.seed=10", /* the last one counts */
        "train.clip.dual=3",
        "train.clip.dual=null",
    };
    struct cairn_recipe *r;

    (void)state;
    put("r.yaml", WHOLE "train: {correction: {kind: tis, cap: 5}}\n");
    r = good("r.yaml", N(overrides), overrides);
    assert_int_equal(cairn_recipe_i64(r, "run.seed"), 10);
    assert_true(cairn_recipe_f64(r, "train.learning_rate") == 1e-4);
    assert_int_equal(cairn_recipe_i64(r, "rollout.dynamic.max_rounds"), 3);
    assert_string_equal(cairn_recipe_str(r, "rollout.dynamic.keep"), "mixed");
    assert_int_equal(cairn_recipe_i64(r, "score.overlong.buffer"), 7);
    assert_true(cairn_recipe_f64(r, "score.overlong.factor") == 1);
    assert_true(cairn_recipe_f64(r, "data.prompts.0.weight") == 3);
    assert_string_equal(cairn_recipe_str(r, "data.template"), "Q: {prompt}\nA:");
    assert_string_equal(cairn_recipe_str(r, "score.marker.0"), "A:x");
    assert_int_equal(json_integer_value(cairn_recipe_get(r, "model.init.hidden_size")), 128);
    assert_true(json_is_real(cairn_recipe_get(r, "model.init.rope_theta")));
    assert_string_equal(json_string_value(cairn_recipe_get(r, "model.init.model_type")), "glm_moe_dsa");
    assert_int_equal(cairn_recipe_i64(r, "checkpoint.keep_policies"), 4);
    assert_true(cairn_recipe_f64(r, "mismatch.max") == 0.5);
    assert_true(cairn_recipe_f64(r, "train.correction.cap") == 5);
    assert_false(cairn_recipe_has(r, "train.clip.dual"));
    assert_false(cairn_recipe_has(r, "model.adapter"));
    assert_false(cairn_recipe_has(r, "model.adapter.rank"));
    assert_true(cairn_recipe_bool(r, "data.shuffle"));
    assert_null(cairn_recipe_get(r, "data.prompts.0.grader"));
    assert_null(cairn_recipe_get(r, "data.prompts.1.path"));
    cairn_recipe_free(r);
}

static void parts(void **state)
{
    struct cairn_recipe *r;
    struct cairn_error err;

    (void)state;
    put("s.yaml", "score: {reward: {wrong: -1}, overlong: {buffer: 100000}}\n");
    assert_int_equal(cairn_recipe_load_part(&r, "s.yaml", 0, NULL, &err), CAIRN_OK);
    assert_true(cairn_recipe_f64(r, "score.reward.wrong") == -1);
    cairn_recipe_free(r);
    r = NULL;
    assert_int_equal(cairn_recipe_load(&r, "s.yaml", 0, NULL, &err), CAIRN_ERECIPE);
    assert_null(r);
}

static void hostile_overrides(void **state)
{
    struct cairn_recipe *r = NULL;
    struct cairn_str deep = {0}, value = {0};
    struct cairn_error err;
    const char *override;

    (void)state;
    put("r.yaml", WHOLE);
    for (int i = 0; i < 50000; i++) /* a name for each level: no stack is deep enough to follow */
        cairn_str_puts(&deep, "a.");
    cairn_str_puts(&deep, "a=1");
    override = deep.p;
    assert_int_equal(cairn_recipe_load(&r, "r.yaml", 1, &override, &err), CAIRN_ERECIPE);
    assert_non_null(strstr(err.text, "a key has at most 64 names"));
    cairn_str_puts(&value, "model.init");
    for (int i = 0; i < 40; i++)
        cairn_str_puts(&value, ".a");
    cairn_str_putc(&value, '=');
    for (int i = 0; i < 30; i++)
        cairn_str_putc(&value, '[');
    for (int i = 0; i < 30; i++)
        cairn_str_putc(&value, ']');
    override = value.p;
    assert_int_equal(cairn_recipe_load(&r, "r.yaml", 1, &override, &err), CAIRN_ERECIPE);
    assert_string_equal(err.text, "command line:1:92: more than 64 levels");
    assert_null(r);
    cairn_str_free(&deep);
    cairn_str_free(&value);
}

/* Names and values that YAML could take for something else. */
static void odd_names_read_back(void **state)
{
    static const char text[] =
        "model:\n  init: {\"a b\": 1, \"12\": xx, \"null\": y1, \"\\u2028k\": 2, \"no\": 'y', m: {\"x: y\": [1.0, -0.0, 1e300, "
        "\"no\", \"\", 1, \"1\", \"~\", \"# x\", \"a\\n b\"]}}\n  tokenizer: \"t # \\\"\"\nrun: {steps: 0}\n";
    struct cairn_recipe *r = good_text(text), *again;
    struct cairn_str s = {0};
    struct cairn_error err;

    (void)state;
    assert_int_equal(cairn_recipe_write(r, &s, &err), CAIRN_OK);
    put("again.yaml", s.p);
    if (cairn_recipe_from_resolved(&again, "again.yaml", &err) != CAIRN_OK)
        fail_msg("%s", err.text);
    assert_true(json_equal((json_t *)cairn_recipe_json(r), (json_t *)cairn_recipe_json(again)));
    assert_true(json_is_real(cairn_recipe_get(again, "model.init.m.x: y.0")));
    cairn_recipe_free(r);
    cairn_recipe_free(again);
    cairn_str_free(&s);
}

/* Files that are each within the limits and together are not: said when the recipe is to be written down. */
static void too_large_together(void **state)
{
    struct cairn_str text = {0}, out = {0};
    struct cairn_recipe *r;
    struct cairn_error err;
    char name[32];

    (void)state;
    for (int i = 0; i < 5; i++) {
        cairn_str_clear(&text);
        cairn_str_printf(&text, "model: {init: {list%d: [", i);
        for (int k = 0; k < 5000; k++)
            cairn_str_puts(&text, "1, ");
        cairn_str_puts(&text, "]}}\n");
        snprintf(name, sizeof name, "big%d.yaml", i);
        put(name, text.p);
    }
    r = good_text("inherit: [big0.yaml, big1.yaml, big2.yaml, big3.yaml, big4.yaml]\nmodel: {tokenizer: t}\nrun: {steps: 0}\n");
    assert_int_equal(cairn_recipe_write(r, &out, &err), CAIRN_ERECIPE);
    assert_non_null(strstr(err.text, "more than 20000 values"));
    assert_int_equal(out.len, 0);
    cairn_recipe_free(r);
    cairn_str_free(&text);
}

#define RICH                                                                                                                       \
    WHOLE "run: {seed: 9223372036854775000}\n"                                                                                     \
          "rollout: {stop: [5, \"\\u2028end: \\u0001\"], dynamic: {}, prompts: 8, temperature: 0.30000000000000004, "              \
          "max_new_tokens: 64}\n"                                                                                                  \
          "score: {overlong: {buffer: 10}, marker: [\"Answer:\", 'A:', \"yes\", \"1\"]}\n"                                         \
          "train: {learning_rate: 1.2345678901234567e-7, correction: icepop, betas: [0, 0.98]}\n"                                  \
          "slurm: {extra: [\"--nice=100\"], time: \"01:30:00\", jobs: [[rollout, score, train, sync]]}\n"                          \
          "warm_start: {data: w.jsonl}\nsync: {dtype: f32}\nmismatch: {max: 1e-3}\n"

static void resolved_form_reads_back(void **state)
{
    static const char *const overrides[] = {"data.eval=[{name: a, path: /x/a, k: 2}, {name: b, path: b b.jsonl, temperature: 0}]",
                                            "model.init.list=[1, 2.0, \"3\", null, {x: true}, []]", "model.adapter={rank: 4}"};
    struct cairn_str first = {0}, second = {0}, lines = {0};
    struct cairn_digest a, b;
    struct cairn_recipe *r, *again;
    struct cairn_error err;
    char id[33];

    (void)state;
    put("r.yaml", RICH);
    r = good("r.yaml", 3, overrides);
    assert_int_equal(cairn_recipe_write(r, &first, &err), CAIRN_OK);
    mkdir("run", 0755);
    put("run/recipe.yaml", first.p);
    if (cairn_recipe_from_resolved(&again, "run/recipe.yaml", &err) != CAIRN_OK)
        fail_msg("%s", err.text);
    assert_true(json_equal((json_t *)cairn_recipe_json(r), (json_t *)cairn_recipe_json(again)));
    assert_int_equal(cairn_recipe_write(again, &second, &err), CAIRN_OK);
    assert_string_equal(first.p, second.p);
    assert_int_equal(cairn_recipe_diff(r, again, 15, &lines), 0);
    assert_int_equal(cairn_recipe_hash(r, &a, &err), CAIRN_OK);
    assert_int_equal(cairn_recipe_hash(again, &b, &err), CAIRN_OK);
    cairn_digest_hex(a, id);
    assert_true(cairn_digest_equal(a, b));
    cairn_recipe_free(again);

    /* a file of an older build lacks younger keys; what it says is as strict as ever; it inherits nothing */
    put("run/recipe.yaml", WHOLE);
    assert_int_equal(cairn_recipe_from_resolved(&again, "run/recipe.yaml", &err), CAIRN_OK);
    cairn_recipe_free(again);
    put("run/recipe.yaml", "inherit: ../r.yaml\n");
    assert_int_equal(cairn_recipe_from_resolved(&again, "run/recipe.yaml", &err), CAIRN_ERECIPE);
    assert_string_equal(err.text, "run/recipe.yaml:1:10: inherit: a resolved recipe holds everything itself");
    cairn_recipe_free(r);
    cairn_str_free(&first);
    cairn_str_free(&second);
    cairn_str_free(&lines);
}

static void others_name_the_place(void **state)
{
    struct cairn_recipe *r = good_text("model:\n  init:\n    hidden_size: 7\n    list: [1, x]\n  tokenizer: t\nrun: {steps: 0}\n");
    struct cairn_error err;

    (void)state;
    assert_int_equal(cairn_recipe_fail(r, "model.init.hidden_size", &err, "%d is odd", 7), CAIRN_ERECIPE);
    assert_string_equal(err.text, "r.yaml:3:18: model.init.hidden_size: 7 is odd");
    cairn_recipe_fail(r, "model.init.list.1", &err, "bad");
    assert_string_equal(err.text, "r.yaml:4:15: model.init.list.1: bad");
    cairn_recipe_fail(r, "model.init.vocab_size", &err, "missing");
    assert_string_equal(err.text, "r.yaml:2:3: model.init.vocab_size: missing");
    cairn_recipe_fail(r, "train.pack", &err, "bad");
    assert_string_equal(err.text, "r.yaml: train.pack: bad");
    cairn_recipe_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files),
        cmocka_unit_test(bad_overrides),
        cmocka_unit_test(bad_inheritance),
        cmocka_unit_test(too_much_inheritance),
        cmocka_unit_test(inheritance_order),
        cmocka_unit_test(paths),
        cmocka_unit_test(overrides_and_getters),
        cmocka_unit_test(parts),
        cmocka_unit_test(resolved_form_reads_back),
        cmocka_unit_test(hostile_overrides),
        cmocka_unit_test(odd_names_read_back),
        cmocka_unit_test(too_large_together),
        cmocka_unit_test(others_name_the_place),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
