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
    int json, quick;
};

static const struct argp_option options[] = {
    {"recipe", 'r', "FILE", 0, "the model and settings to measure; default: recipes/tiny.yaml", 0},
    {"dir", 'd', "DIR", 0, "where files are made; default: beside the programs", 0},
    {"quick", 'q', NULL, 0, "leave the single ops out", 0},
    {"json", 'j', NULL, 0, "print one JSON object, without the single ops", 0},
    {0},
};

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;

    switch (key) {
    case 'r':
        a->recipe = arg;
        return 0;
    case 'd':
        a->dir = arg;
        return 0;
    case 'q':
        a->quick = 1;
        return 0;
    case 'j':
        a->json = 1;
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp argp = {options, option, NULL,
                                 "Measures this machine and this build: matrix rate, ops, rollout and training tokens per second, saving of "
                                 "shards against bare writes. Takes about a minute.\v"
                                 "Examples:\n  cairn bench\n  cairn bench --quick --recipe recipes/gsm8k.yaml",
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
    static const char *const overrides[] = {"warm_start=null", "run.steps=3", "run.eval_every=0", "rollout.prompts=64", "checkpoint.keep=1"};
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

static json_t *result_json(double peak, int threads, const struct stages *s, const struct cairn_ckpt_bench *few, const struct cairn_ckpt_bench *many)
{
    double rollout = 2 * (double)s->active * s->rollout_rows / s->rollout_s / 1e9, train = 6 * (double)s->active * s->train_rows / s->train_s / 1e9;

    return json_pack("{s:i, s:f, s:I, s:I, s:{s:f, s:f, s:f}, s:{s:f, s:f, s:f}, s:{s:I, s:f, s:f, s:f, s:f}, s:{s:I, s:f, s:f, s:f, s:f}}", "threads",
                     threads, "matrix_gflops", peak, "parameters", (json_int_t)s->parameters, "active_parameters", (json_int_t)s->active, "rollout",
                     "tokens_per_s", s->rollout_tokens / s->rollout_s, "gflops", rollout, "share", rollout / peak, "train", "tokens_per_s",
                     s->train_rows / s->train_s, "gflops", train, "share", train / peak, "save_large", "bytes", (json_int_t)few->bytes, "save_s",
                     few->save_s, "raw_s", few->raw_save_s, "save_ratio", few->save_ratio, "load_ratio", few->load_ratio, "save_small", "bytes",
                     (json_int_t)many->bytes, "save_s", many->save_s, "raw_s", many->raw_save_s, "save_ratio", many->save_ratio, "load_ratio",
                     many->load_ratio);
}

static void save_print(const struct cairn_ckpt_bench *b)
{
    printf("save %4.0f MB in %5d tensors  %6.2f GB/s  %.2f of raw pwrite + fsync (%.2f GB/s); load %.2f of raw pread\n", (double)b->bytes / 1e6,
           b->tensors, (double)b->bytes / b->save_s / 1e9, b->save_ratio, (double)b->bytes / b->raw_save_s / 1e9, b->load_ratio);
}

static void result_print(double peak, int threads, const struct stages *s, const struct cairn_ckpt_bench *few, const struct cairn_ckpt_bench *many)
{
    double rollout = 2 * (double)s->active * s->rollout_rows / s->rollout_s / 1e9, train = 6 * (double)s->active * s->train_rows / s->train_s / 1e9;

    printf("matrix rate of this machine  %.1f GFLOP/s (fma from registers, %d threads)\n", peak, threads);
    printf("model                        %lld parameters, %lld active a token\n", (long long)s->parameters, (long long)s->active);
    printf("rollout                      %.0f tokens/s, %.2f GFLOP/s: %.1f %% of the matrix rate\n", s->rollout_tokens / s->rollout_s, rollout,
           100 * rollout / peak);
    printf("train                        %.0f tokens/s, %.2f GFLOP/s: %.1f %% of the matrix rate\n", s->train_rows / s->train_s, train,
           100 * train / peak);
    save_print(few);
    save_print(many);
}

int cairn_verb_bench(int argc, char **argv)
{
    struct cairn_error err = {0}, swept = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {0};
    struct stages s = {0};
    struct cairn_ckpt_bench few = {0}, many = {0};
    char *recipe = NULL, *dir = NULL, *run = NULL;
    int done, usage = cairn_cli_parse(&argp, argc, argv, &a, &done), threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    double peak;

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
    peak = cairn_bench_fma_peak(threads);
    TRY(stages_measure(&s, recipe, run, &err));
    TRY(cairn_ckpt_bench_run(&few, dir, 256 << 20, 50, 5, &err));
    TRY(cairn_ckpt_bench_run(&many, dir, 64 << 20, 18000, 3, &err));
    if (a.json)
        TRY(cairn_cli_json(result_json(peak, threads, &s, &few, &many), &err));
    else
        result_print(peak, threads, &s, &few, &many);
    TRY(cairn_cli_flush(&err));
    if (!a.json && !a.quick) {
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
