/* model_args.c - finds and opens the model that a verb was asked for (model_args.h). */
#include "tools/model_args.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/retention.h"
#include "stages/common/setup.h"

int cairn_model_args_parse(const struct argp *argp, int argc, char **argv, void *input, struct cairn_model_args *a, const char *missing,
                           int *done)
{
    int rc;

    *a = (struct cairn_model_args){.step = -1};
    rc = cairn_cli_parse(argp, argc, argv, input, done);
    if (rc || *done)
        return rc;
    if (!a->model)
        return cairn_cli_usage(argv[0], "%s", missing);
    cairn_signals_install();
    signal(SIGPIPE, SIG_IGN); /* 74 and a sentence */
    return 0;
}

error_t cairn_model_args_take(struct cairn_model_args *a, int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case CAIRN_OPT_ADAPTER:
        a->adapter = arg;
        return 0;
    case CAIRN_OPT_BASE:
        a->base = arg;
        return 0;
    case CAIRN_OPT_BACKEND:
        a->backend = arg;
        return 0;
    case CAIRN_OPT_ACT:
        a->act = arg;
        return !strcmp(arg, "f32") || !strcmp(arg, "bf16") ? 0 : cairn_bad_value(state, "act", arg, "f32 or bf16");
    case CAIRN_OPT_THREADS:
        return cairn_parse_i64(arg, &a->threads) && a->threads >= 0 && a->threads <= 65536
                   ? 0
                   : cairn_bad_value(state, "threads", arg, "0 to 65536");
    case CAIRN_OPT_STEP:
        return cairn_parse_i64(arg, &a->step) && a->step >= 0 ? 0 : cairn_bad_value(state, "step", arg, "a step");
    case ARGP_KEY_ARG:
        if (a->model)
            return ARGP_ERR_UNKNOWN;
        a->model = arg;
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static int has(const char *dir, const char *name)
{
    char *path = cairn_path_join(dir, name);
    int there = path && cairn_path_exists(path);

    free(path);
    return there;
}

static char *policy_path(const struct cairn_run *r, int64_t step)
{
    return cairn_link_path(r, &(struct cairn_link){step, CAIRN_STAGE_SYNC, NULL});
}

/* The policy of a run that is meant: m->dir. */
static enum cairn_status run_policy(struct cairn_cli_model *m, const struct cairn_model_args *a, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_link *chain = NULL;
    int64_t step = a->step;
    int n = 0;

    if (step < 0) {
        const struct cairn_reach reach = cairn_run_reach(m->run);

        TRY(cairn_run_chain(m->run, &chain, &n, err));
        for (int i = n - 1; i >= 0 && step < 0; i--) {
            char *path = chain[i].stage == CAIRN_STAGE_SYNC && !cairn_link_beyond(&reach, &chain[i]) ? policy_path(m->run, chain[i].step) : NULL;

            if (path && cairn_artefact_committed(path) && !cairn_artefact_collected(path))
                step = chain[i].step;
            free(path);
        }
    }
    m->dir = policy_path(m->run, step < 0 ? 0 : step);
    if (!m->dir)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_artefact_committed(m->dir))
        TRY(step <= 0 && a->step < 0
                ? cairn_fail(err, CAIRN_ENOINPUT, "%s: no policy is committed yet", a->model)
                : cairn_fail(err, CAIRN_ENOINPUT, "%s: policy %lld is not committed", a->model, (long long)step));
    cairn_run_at(m->run, step < 0 ? 0 : step); /* what it was made for is what it is asked with */
out:
    free(chain);
    return st;
}

/* RUN of RUN/policy/SSSSSS, malloc'ed, or NULL. */
static char *run_around(const char *dir)
{
    char *real = realpath(dir, NULL), *up = real ? cairn_path_dirname(real) : NULL, *run = up ? cairn_path_dirname(up) : NULL;

    free(real);
    if (!run || strcmp(cairn_path_basename(up), "policy") || !cairn_run_there(run)) {
        free(run);
        run = NULL;
    }
    free(up);
    return run;
}

char *cairn_cli_run_of(const char *model)
{
    return cairn_run_there(model) ? strdup(model) : run_around(model);
}

static enum cairn_status place_find(struct cairn_cli_model *m, const struct cairn_model_args *a, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *run = NULL;

    if (cairn_run_there(a->model)) {
        TRY(cairn_run_open(&m->run, a->model, err));
        TRY(run_policy(m, a, err));
        goto out;
    }
    if (a->step >= 0)
        TRY(cairn_fail(err, CAIRN_EUSAGE, "--step: %s is no run", a->model));
    m->dir = strdup(a->model);
    if (!m->dir)
        TRY(CAIRN_NOMEM(err));
    run = run_around(a->model);
    if (run)
        TRY(cairn_run_open(&m->run, run, err));
out:
    free(run);
    return st;
}

/* The tokenizer that came with the model, if any. */
static enum cairn_status tokenizer_find(struct cairn_cli_model *m, const struct cairn_model_args *a, struct cairn_error *err)
{
    const char *beside[] = {m->dir, a->base};

    if (m->run)
        return cairn_run_outside(m->run, "model.tokenizer", &m->tokenizer, err);
    for (size_t i = 0; i < 2 && !m->tokenizer; i++)
        if (beside[i] && has(beside[i], "tokenizer.json") && !(m->tokenizer = cairn_path_join(beside[i], "tokenizer.json")))
            return CAIRN_NOMEM(err);
    if (!m->tokenizer && has(m->dir, CAIRN_MANIFEST_NAME)) { /* an imported adapter records where its base lies */
        struct cairn_manifest *manifest = NULL;
        enum cairn_status st = cairn_manifest_load(&manifest, m->dir, err);
        const char *base = st == CAIRN_OK ? json_string_value(json_object_get(manifest->info, "base")) : NULL;

        if (base && has(base, "tokenizer.json"))
            m->tokenizer = cairn_path_join(base, "tokenizer.json");
        cairn_manifest_destroy(manifest);
        return st;
    }
    return CAIRN_OK;
}

enum cairn_status cairn_cli_model_open(struct cairn_cli_model *m, const struct cairn_model_args *a, struct cairn_error *err)
{
    const struct cairn_policy_opts po = {.base = a->base, .adapter = a->adapter, .quiet = !isatty(STDERR_FILENO)};
    struct cairn_compute_opts co = {.backend = a->backend, .act = a->act, .threads = (int)a->threads};
    enum cairn_status st = CAIRN_OK;
    const char *precision;

    memset(m, 0, sizeof *m);
    TRY(place_find(m, a, err));
    precision = m->run ? cairn_recipe_str(m->run->recipe, "kernels.precision") : "auto";
    if (!co.act && strcmp(precision, "auto"))
        co.act = precision;
    TRY(tokenizer_find(m, a, err));
    TRY(cairn_compute_open(&m->k, &co, err));
    TRY(cairn_policy_open(&m->policy, m->dir, &po, &m->k, err));
    m->model = (struct cairn_model){.k = &m->k,
                                    .config = &m->policy.config,
                                    .weights = &m->policy.weights,
                                    .adapter = m->policy.lora ? &m->policy.adapter : NULL,
                                    .adapter_weights = m->policy.lora ? &m->policy.adapter_weights : NULL,
                                    .segments = m->run ? (int)cairn_recipe_i64(m->run->recipe, "numerics.segments") : 1};
out:
    if (st != CAIRN_OK)
        cairn_cli_model_close(m);
    return st;
}

void cairn_cli_model_close(struct cairn_cli_model *m)
{
    cairn_policy_close(&m->policy);
    if (m->k.backend)
        cairn_compute_close(&m->k);
    cairn_run_close(m->run);
    free(m->dir);
    free(m->tokenizer);
    memset(m, 0, sizeof *m);
}
