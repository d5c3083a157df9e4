/* bench.c - `cairn bench`: what this machine can do, and what share of it the stages get out of it.
 *
 *   matrix rate   fused multiply-adds from registers on all cores: nothing can be faster
 *   ops           each op of the CPU back-end beside it (bench_kernels.h)
 *   rollout, train   tokens per second of real stages over some steps of a recipe from random weights, and their share of the matrix rate,
 *                 counting 2 operations a token and active parameter (training: 6), and nothing for attention
 *   shards        saving and loading tensors against bare system calls on the same bytes (ckpt/bench.h)
 *
 * Everything is made in a folder of its own, which is removed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/build.h"
#include "base/cores.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/bench.h"
#include "ckpt/reader.h"
#include "model/params.h"
#include "model/policy.h"
#include "stages/common/rollouts.h"
#include "tools/bench_kernels.h"
#include "tools/cli.h"
#include "tools/launch.h"
#include "tools/verbs.h"

#define STEPS 3 /* the last one counts */

struct args {
    const char *recipe, *dir;
    int json, quick, checkpoints;
};

static const struct argp_option options[] = {
    {"recipe", 'r', "FILE", 0, "the model and settings to measure; default: recipes/tiny.yaml", 0},
    {"dir", 'd', "DIR", 0, "where files are made; default: beside the programs", 0},
    {"quick", 'q', NULL, 0, "leave the single ops out", 0},
    {"checkpoints", 'c', NULL, 0, "only saving and loading, with as many tensors as a large model has (5 GB of disk)", 0},
    {"json", 'j', NULL, 0, "print one JSON object, without the single ops", 0},
    {0},
};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_TEXT_AT('r', struct args, recipe),
    CAIRN_CLI_TEXT_AT('d', struct args, dir),
    CAIRN_CLI_FLAG_AT('q', struct args, quick),
    CAIRN_CLI_FLAG_AT('c', struct args, checkpoints),
    CAIRN_CLI_FLAG_AT('j', struct args, json),
    {0},
};

static const struct argp argp = {options, NULL, NULL,
                                 "Measures this machine and this build: matrix rate, ops, rollout and training tokens per second, saving of "
                                 "shards against bare writes. Takes about a minute.\v"
                                 "Examples:\n  cairn bench\n  cairn bench --checkpoints --dir /scratch",
                                 NULL, NULL, NULL};

/* ---- the stages ---------------------------------------------------------------------------------------------------------- */

struct stages {
    int64_t parameters, active;      /* active: that a token meets, the embedding table not counted */
    double rollout_tokens, rollout_s; /* of the last step: sampled tokens, seconds of sampling */
    double rollout_rows;             /* rows of the model: those and the prompts' */
    double train_rows, train_s;
};

/* Parameters that a row of the model multiplies with. */
static int64_t active_count(const struct cairn_param_table *t, const struct cairn_model_config *c)
{
    int64_t n = 0;

    for (int i = 0; i < t->count; i++) {
        const struct cairn_param *p = &t->param[i];
        int64_t mine = cairn_param_count(p);

        if (strstr(p->name, "embed_tokens"))
            continue;
        if (strstr(p->name, ".experts."))
            mine = mine / c->experts * c->experts_per_token;
        n += mine;
    }
    return n;
}

static enum cairn_status model_count(struct stages *s, const struct cairn_run *run, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *base = cairn_run_path(run, "base");
    struct cairn_manifest *m = NULL;
    struct cairn_model_config c = {0};
    struct cairn_param_table t = {0};

    if (!base)
        return CAIRN_NOMEM(err);
    TRY(cairn_manifest_load(&m, base, err));
    TRY(cairn_policy_config(&c, m, NULL, base, err));
    TRY(cairn_param_table_create(&t, &c, err));
    s->parameters = t.elements;
    s->active = active_count(&t, &c);
out:
    cairn_param_table_free(&t);
    cairn_config_free(&c);
    cairn_manifest_destroy(m);
    free(base);
    return st;
}

static enum cairn_status metric_read(const struct cairn_run *run, const struct cairn_link *l, const char *key, double *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_link_path(run, l);
    struct cairn_manifest *m = NULL;

    if (!path)
        return CAIRN_NOMEM(err);
    TRY(cairn_manifest_load(&m, path, err));
    *out = json_number_value(json_object_get(json_object_get(m->info, "metrics"), key));
    if (!(*out > 0))
        TRY(cairn_fail(err, CAIRN_EBUG, "%s: metric %s is missing", path, key));
out:
    cairn_manifest_destroy(m);
    free(path);
    return st;
}

/* Tokens of the step's rollouts: *rows: what training runs through the model; *prompts: prompt tokens, once a group. */
static enum cairn_status rows_count(const struct cairn_run *run, const struct cairn_link *l, double *rows, double *prompts, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_link_path(run, l);
    struct cairn_reader *reader = NULL;
    struct cairn_rollouts r = {0};

    if (!path)
        return CAIRN_NOMEM(err);
    TRY(cairn_reader_open(&reader, path, NULL, err));
    TRY(cairn_rollouts_load(&r, reader, err));
    *rows = (double)(r.offsets[r.n] - r.n);
    *prompts = 0;
    for (int64_t i = 0; i < r.n; i++)
        if (!r.sample[i])
            *prompts += r.prompt_length[i];
out:
    cairn_rollouts_free(&r);
    cairn_reader_close(reader);
    free(path);
    return st;
}

static enum cairn_status stages_measure(struct stages *s, const char *recipe_path, const char *dir, struct cairn_error *err)
{
    static const char *const overrides[] = {"warm_start=null", "run.steps=3",        "run.eval_every=0",
                                            "run.check=off",   "rollout.prompts=64", "checkpoint.keep=1"};
    const struct cairn_link rollout = {STEPS, CAIRN_STAGE_ROLLOUT, NULL}, train = {STEPS, CAIRN_STAGE_TRAIN, NULL};
    enum cairn_status st = CAIRN_OK;
    struct cairn_recipe *recipe = NULL;
    struct cairn_run *run = NULL;
    struct cairn_link *chain = NULL;
    double per_second, prompts = 0;
    int n = 0;

    TRY(cairn_recipe_load(&recipe, recipe_path, (int)(sizeof overrides / sizeof *overrides), overrides, err));
    TRY(cairn_run_init(&run, dir, recipe, err));
    recipe = NULL;
    TRY(model_count(s, run, err));
    TRY(cairn_run_chain(run, &chain, &n, err));
    for (int i = 0; i < n; i++)
        TRY(cairn_launch(run, &chain[i], 1, err));
    TRY(metric_read(run, &rollout, "tokens/per_second", &per_second, err));
    TRY(metric_read(run, &rollout, "tokens/total", &s->rollout_tokens, err));
    TRY(metric_read(run, &train, "time/updates", &s->train_s, err));
    TRY(rows_count(run, &rollout, &s->train_rows, &prompts, err));
    s->rollout_s = s->rollout_tokens / per_second;
    s->rollout_rows = s->rollout_tokens + prompts;
out:
    cairn_run_close(run);
    cairn_recipe_free(recipe);
    free(chain);
    return st;
}

/* ---- the verb --------------------------------------------------------------------------------------------------------------- */

/* recipes/tiny.yaml of this folder, or of the source tree that holds the build. */
static char *recipe_default(void)
{
    static const char name[] = "recipes/tiny.yaml";
    const char *install = cairn_install_dir();

    if (cairn_path_exists(name) || !install)
        return strdup(name);
    return cairn_format("%s/../%s", install, name);
}

static const struct {
    const char *name;
    int64_t each;             /* bytes of a tensor */
    int tensors, all, repeats; /* all: with --checkpoints */
} shards[] = {{"save_large", (int64_t)5 << 20, 50, 50, 5},
              {"save_middle", (int64_t)116 << 10, 2000, 18000, 3},
              {"save_small", (int64_t)4 << 10, 18000, 18000, 5}};
#define SHARDS (int)(sizeof shards / sizeof *shards)

struct result {
    double peak; /* GFLOP/s */
    int threads;
    struct stages stages;
    struct cairn_ckpt_bench shard[SHARDS];
    double load[2]; /* load average of a minute, before and after the shards; -1: not known */
};

static double load_average(void)
{
    double l;

    return getloadavg(&l, 1) == 1 ? l : -1;
}

static enum cairn_status shards_measure(struct result *r, const char *dir, int all, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    r->load[0] = load_average();
    for (int i = 0; i < SHARDS; i++) {
        int n = all ? shards[i].all : shards[i].tensors;

        if (cairn_stop_requested())
            TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped"));
        TRY(cairn_ckpt_bench_run(&r->shard[i], dir, shards[i].each * n, n, shards[i].repeats, err));
    }
    r->load[1] = load_average();
out:
    return st;
}

static double gflops(const struct result *r, int train)
{
    const struct stages *s = &r->stages;

    return train ? 6 * (double)s->active * s->train_rows / s->train_s / 1e9 : 2 * (double)s->active * s->rollout_rows / s->rollout_s / 1e9;
}

static json_t *result_json(const struct result *r, int stages)
{
    const struct stages *s = &r->stages;
    json_t *o = json_pack("{s:i, s:[f, f]}", "threads", r->threads, "load_average", r->load[0], r->load[1]);

    if (o && stages)
        json_object_update_new(o, json_pack("{s:f, s:I, s:I, s:{s:f, s:f, s:f}, s:{s:f, s:f, s:f}}", "matrix_gflops", r->peak, "parameters",
                                            (json_int_t)s->parameters, "active_parameters", (json_int_t)s->active, "rollout", "tokens_per_s",
                                            s->rollout_tokens / s->rollout_s, "gflops", gflops(r, 0), "share", gflops(r, 0) / r->peak, "train",
                                            "tokens_per_s", s->train_rows / s->train_s, "gflops", gflops(r, 1), "share",
                                            gflops(r, 1) / r->peak));
    for (int i = 0; o && i < SHARDS; i++) {
        const struct cairn_ckpt_bench *b = &r->shard[i];

        json_object_set_new(o, shards[i].name,
                            json_pack("{s:I, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "bytes", (json_int_t)b->bytes, "tensors", b->tensors,
                                      "repeats", b->repeats, "save_s", b->save_s, "raw_s", b->raw_save_s, "save_ratio", b->save_ratio, "load_s",
                                      b->load_s, "raw_load_s", b->raw_load_s, "load_ratio", b->load_ratio));
    }
    return o;
}

static void result_print(const struct result *r, int stages)
{
    const struct stages *s = &r->stages;

    if (stages) {
        printf("matrix rate of this machine  %.1f GFLOP/s (fma from registers, %d threads)\n", r->peak, r->threads);
        printf("model                        %lld parameters, %lld active a token\n", (long long)s->parameters, (long long)s->active);
        printf("rollout                      %.0f tokens/s, %.2f GFLOP/s: %.1f %% of the matrix rate\n", s->rollout_tokens / s->rollout_s,
               gflops(r, 0), 100 * gflops(r, 0) / r->peak);
        printf("train                        %.0f tokens/s, %.2f GFLOP/s: %.1f %% of the matrix rate\n", s->train_rows / s->train_s,
               gflops(r, 1), 100 * gflops(r, 1) / r->peak);
    }
    for (int i = 0; i < SHARDS; i++) {
        const struct cairn_ckpt_bench *b = &r->shard[i];

        printf("save %4.0f MB in %5d tensors  %6.2f GB/s  %.2f of raw pwrite + fsync (%.2f GB/s); load %.2f of raw pread (%.2f GB/s)\n",
               (double)b->bytes / 1e6, b->tensors, (double)b->bytes / b->save_s / 1e9, b->save_ratio, (double)b->bytes / b->raw_save_s / 1e9,
               b->load_ratio, (double)b->bytes / b->raw_load_s / 1e9);
    }
    printf("medians of interleaved pairs; load average %.2f before, %.2f after, %d processors\n", r->load[0], r->load[1], r->threads);
}

int cairn_verb_bench(int argc, char **argv)
{
    struct cairn_error err = {0}, swept = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {0};
    struct result r = {.threads = cairn_cores()};
    char *recipe = NULL, *dir = NULL, *run = NULL;
    int done, usage = cairn_cli_read(&argp, slots, argc, argv, &a, &done);

    if (usage || done)
        return usage;
    cairn_signals_install();
    cairn_log_quiet(1);
    recipe = a.recipe ? strdup(a.recipe) : recipe_default();
    dir = cairn_format("%s/cairn-bench.XXXXXX", a.dir ? a.dir : cairn_install_dir() ? cairn_install_dir() : ".");
    if (!recipe || !dir)
        TRY(CAIRN_NOMEM(&err));
    if (!mkdtemp(dir))
        TRY(cairn_fail_errno(&err, errno, "%s: cannot make it", dir));
    run = cairn_path_join(dir, "run");
    if (!run)
        TRY(CAIRN_NOMEM(&err));
    if (!a.checkpoints) {
        r.peak = cairn_bench_fma_peak(r.threads);
        TRY(stages_measure(&r.stages, recipe, run, &err));
    }
    TRY(shards_measure(&r, dir, a.checkpoints, &err));
    if (a.json)
        TRY(cairn_cli_json(result_json(&r, !a.checkpoints), &err));
    else
        result_print(&r, !a.checkpoints);
    TRY(cairn_cli_flush(&err));
    if (!a.json && !a.quick && !a.checkpoints) {
        int code = cairn_bench_kernels(stdout);

        if (code)
            TRY(cairn_fail(&err, (enum cairn_status)code, "the ops could not be measured"));
        TRY(cairn_cli_flush(&err));
    }
out:
    if (run && cairn_tree_remove(dir, &swept) != CAIRN_OK && st == CAIRN_OK) {
        err = swept;
        st = swept.code;
    }
    free(recipe);
    free(dir);
    free(run);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("bench", &err);
}
