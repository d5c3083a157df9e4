/* export.c - `cairn export DIR --out HF_DIR`: a base, a policy or a run's newest policy, as HuggingFace or PEFT have it.
 *
 * The adapter if there is one; --merged: whole weights (W + gamma B A where there is an adapter, bit for bit where not). What the base
 * lets pass through goes along. The output directory may exist, as long as no run has it; files of the same names are replaced, the index or
 * single file last, and the last line says which policy they are.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/attempt.h"
#include "ckpt/retention.h"
#include "model/hf_save.h"
#include "model/peft.h"
#include "model/policy.h"
#include "stages/common/run.h"
#include "tools/cli.h"
#include "tools/out.h"
#include "tools/verbs.h"

enum { OPT_OUT = 256, OPT_BASE, OPT_ADAPTER, OPT_MERGED, OPT_STEP, OPT_LAYOUT, OPT_FILE, OPT_TRAINED };

struct args {
    const char *dir, *out, *base;
    int adapter, merged, json, trained_only, has_step;
    int64_t step, file_bytes;
    enum cairn_peft_layout layout;
};

static const struct argp_option options[] = {
    {"out", OPT_OUT, "HF_DIR", 0, "where the files go (made if missing)", 0},
    {"adapter", OPT_ADAPTER, NULL, 0, "the adapter, as PEFT has it (default if there is one)", 0},
    {"merged", OPT_MERGED, NULL, 0, "whole weights, the adapter merged in", 0},
    {"step", OPT_STEP, "N", 0, "for a run: policy N instead of the newest", 0},
    {"base", OPT_BASE, "DIR", 0, "the base checkpoint, where it is not found by itself", 0},
    {"adapter-layout", OPT_LAYOUT, "NAME", 0,
     "experts' adapters: peft (fused, for peft itself) or expert (one by one, for serving engines); default: as it came in, else peft where it "
     "fits", 0},
    {"file-bytes", OPT_FILE, "N", 0, "most bytes of one safetensors file (default 5000000000)", 0},
    {"trained-only", OPT_TRAINED, NULL, 0, "leave out tensors that only pass through (MTP, vision)", 0},
    {"json", 'j', NULL, 0, "one JSON object", 0},
    {0}};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_TEXT_AT(OPT_OUT, struct args, out),
    CAIRN_CLI_TEXT_AT(OPT_BASE, struct args, base),
    CAIRN_CLI_FLAG_AT(OPT_ADAPTER, struct args, adapter),
    CAIRN_CLI_FLAG_AT(OPT_MERGED, struct args, merged),
    CAIRN_CLI_STEP_AT(OPT_STEP, struct args, step, "step"),
    CAIRN_CLI_BYTES_AT(OPT_FILE, struct args, file_bytes, "file-bytes"),
    CAIRN_CLI_FLAG_AT(OPT_TRAINED, struct args, trained_only),
    CAIRN_CLI_FLAG_AT('j', struct args, json),
    CAIRN_CLI_TEXT_AT(ARGP_KEY_ARG, struct args, dir),
    {0},
};

static error_t option(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;

    if (key == OPT_LAYOUT) {
        a->layout = strcmp(arg, "peft") == 0 ? CAIRN_PEFT_FUSED : strcmp(arg, "expert") == 0 ? CAIRN_PEFT_EXPERT : CAIRN_PEFT_AUTO;
        return a->layout != CAIRN_PEFT_AUTO || strcmp(arg, "auto") == 0 ? 0 : cairn_bad_value(state, "adapter-layout", arg, "peft, expert or auto");
    }
    a->has_step |= key == OPT_STEP;
    return cairn_cli_take(slots, key, arg, state);
}

static const struct argp argp = {options, option, "DIR",
                                 "Writes a checkpoint as HuggingFace has it (config.json, safetensors, tokenizer), or its adapter as PEFT has it. "
                                 "DIR: an imported checkpoint, a policy, or a run.\v"
                                 "Examples:\n  cairn export /tmp/glm52-tiny --out /tmp/glm52-again --merged\n"
                                 "  cairn export /tmp/tiny --step 3 --out /tmp/tiny-policy",
                                 NULL, NULL, NULL};

/* ---- which artefact ------------------------------------------------------------------------------------------------------------------------ */

static int committed(const char *run, int64_t step, char **path)
{
    free(*path);
    *path = cairn_format("%s/policy/%06lld", run, (long long)step);
    return *path && cairn_artefact_committed(*path);
}

/* The policy of a run: --step, else the newest that is committed and not collected. */
static enum cairn_status policy_of_run(const struct args *a, char **path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_run *run = NULL;
    struct cairn_link *chain = NULL;
    struct cairn_reach reach;
    int n = 0, found = 0;

    TRY(cairn_run_open(&run, a->dir, err));
    if (a->has_step) {
        if (!committed(run->dir, a->step, path))
            TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s: policy %lld is not committed", a->dir, (long long)a->step));
        goto out;
    }
    TRY(cairn_run_chain(run, &chain, &n, err));
    reach = cairn_run_reach(run);
    for (int i = n - 1; i >= 0 && !found; i--)
        found = chain[i].stage == CAIRN_STAGE_SYNC && !cairn_link_beyond(&reach, &chain[i]) && committed(run->dir, chain[i].step, path) &&
                !cairn_artefact_collected(*path);
    if (!found && !committed(run->dir, 0, path))
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s: no policy is committed yet", a->dir));
out:
    free(chain);
    cairn_run_close(run);
    return st;
}

/* ---- parts ------------------------------------------------------------------------------------------------------------------------------------ */

struct parts { /* what is exported */
    struct cairn_reader *r, *base; /* the artefact, and its base (r itself, or another that is to be closed) */
    char *base_dir;
    struct cairn_model_config config;
    struct cairn_param_table table;
    struct cairn_adapter adapter;
    int lora, own_base;
};

static void parts_close(struct parts *p)
{
    cairn_adapter_free(&p->adapter);
    cairn_param_table_free(&p->table);
    cairn_config_free(&p->config);
    if (p->own_base)
        cairn_reader_close(p->base);
    cairn_reader_close(p->r);
    free(p->base_dir);
}

/* The base of a policy with full weights: only its small files, names and passed tensors are needed. */
static enum cairn_status base_of_full(struct parts *p, const char *dir, const char *given, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_reader_expect expect = {.kind = "base"};
    char *path = given ? strdup(given) : cairn_format("%s/../../base", dir);

    if (!path)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_artefact_committed(path))
        TRY(cairn_fail(err, CAIRN_ENOINPUT, "%s: its base checkpoint is not at %s; give it with --base", dir, path));
    TRY(cairn_reader_open(&p->base, path, &expect, err));
    p->own_base = 1;
    for (int i = 0; i < cairn_reader_manifest(p->r)->ninputs; i++) {
        const struct cairn_input *in = &cairn_reader_manifest(p->r)->inputs[i];

        if (strcmp(in->path, "base") == 0 && !cairn_digest_equal(in->digest, cairn_reader_manifest(p->base)->digest))
            TRY(cairn_fail(err, CAIRN_EDATA, "%s was made from another base than %s", dir, path));
    }
out:
    free(path);
    return st;
}

static enum cairn_status parts_open(struct parts *p, const char *dir, const char *base, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_manifest *m;

    TRY(cairn_reader_open(&p->r, dir, NULL, err));
    m = cairn_reader_manifest(p->r);
    if (strcmp(m->kind, "base") == 0) {
        p->base = p->r;
    } else if (strcmp(m->kind, "policy") == 0) {
        TRY(cairn_policy_base(&p->base, p->r, dir, base, err));
        p->own_base = p->lora = p->base != NULL;
        if (!p->base)
            TRY(base_of_full(p, dir, base, err));
    }
    TRY(cairn_policy_config(&p->config, m, p->base ? cairn_reader_manifest(p->base) : NULL, dir, err));
    TRY(cairn_param_table_create(&p->table, &p->config, err));
    if (p->lora)
        TRY(cairn_adapter_from_json(&p->adapter, &p->table, json_object_get(m->content, "adapter"), dir, err));
    p->base_dir = strdup(cairn_reader_path(p->base));
    if (!p->base_dir)
        TRY(CAIRN_NOMEM(err));
out:
    return st;
}

static enum cairn_status export_adapter(const struct args *a, struct parts *p, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_peft_reader from = {&p->adapter, p->r};
    int dtype = cairn_dtype_parse(json_string_value(json_object_get(cairn_reader_manifest(p->r)->content, "dtype"))
                                      ? json_string_value(json_object_get(cairn_reader_manifest(p->r)->content, "dtype"))
                                      : "f32");
    struct cairn_peft_save_opts o = {.layout = a->layout, .dtype = dtype < 0 ? CAIRN_F32 : (enum cairn_dtype)dtype};

    TRY(cairn_peft_save(a->out, &p->adapter, &p->table, &p->config, cairn_peft_fetch_reader, &from, &o, err));
    if (a->json)
        TRY(cairn_cli_json(json_pack("{s:s, s:s, s:s, s:i, s:I}", "out", a->out, "from", cairn_reader_path(p->r), "kind", "adapter", "adapted_layers",
                                     p->adapter.loras, "elements", (json_int_t)p->adapter.table.elements),
                           err));
    else
        printf("%s: %s, LoRA on %d layers, %lld elements, %s\n", a->out, cairn_reader_path(p->r), p->adapter.loras,
               (long long)p->adapter.table.elements, cairn_dtype_name(o.dtype));
    TRY(cairn_cli_flush(err));
out:
    return st;
}

static enum cairn_status export_merged(const struct args *a, struct parts *p, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_hf_saved saved;
    const struct cairn_hf_save_opts o = {.base_dir = p->base_dir, .base = p->base, .weights = p->lora || p->base == p->r ? NULL : p->r,
                                         .adapter = p->lora ? &p->adapter : NULL, .adapter_weights = p->lora ? p->r : NULL,
                                         .max_bytes = a->file_bytes, .trained_only = a->trained_only};

    TRY(cairn_hf_save(a->out, &p->config, &p->table, &o, &saved, err));
    if (a->json)
        TRY(cairn_cli_json(json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I}", "out", a->out, "from", cairn_reader_path(p->r), "kind", "checkpoint",
                                     "tensors", (json_int_t)saved.tensors, "bytes", (json_int_t)saved.bytes, "merged", (json_int_t)saved.merged,
                                     "passed_through", (json_int_t)saved.passed),
                           err));
    else
        printf("%s: %s, %lld tensors, %lld bytes (%lld merged, %lld passed through)\n", a->out, cairn_reader_path(p->r),
               (long long)saved.tensors, (long long)saved.bytes, (long long)saved.merged, (long long)saved.passed);
    TRY(cairn_cli_flush(err));
out:
    return st;
}

int cairn_verb_export(int argc, char **argv)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {0};
    struct parts p = {0};
    char *path = NULL, pin[96];
    int done, usage = cairn_cli_parse(&argp, argc, argv, &a, &done), pinned = 0;

    if (usage || done)
        return usage;
    if (!a.dir || !a.out)
        return cairn_cli_usage("export", "%s is missing", a.dir ? "--out" : "DIR");
    if (a.adapter && a.merged)
        return cairn_cli_usage("export", "--adapter or --merged, not both");
    cairn_signals_install();
    if (a.json)
        cairn_log_quiet(1);
    TRY(cairn_out_check(a.out, &err));
    if (cairn_artefact_committed(a.out))
        TRY(cairn_fail(&err, CAIRN_EUSAGE, "--out %s is a checkpoint of cairn's own form; name a directory for HuggingFace's", a.out));
    if (cairn_run_there(a.dir)) {
        TRY(policy_of_run(&a, &path, &err));
        snprintf(pin, sizeof(pin), "export-%ld", (long)getpid());
        TRY(cairn_artefact_pin(path, pin, &err)); /* the run may collect meanwhile */
        pinned = 1;
    } else if (a.has_step) {
        TRY(cairn_fail(&err, CAIRN_EUSAGE, "--step is for runs, and %s is none", a.dir));
    }
    TRY(parts_open(&p, path ? path : a.dir, a.base, &err));
    if (a.adapter && !p.lora)
        TRY(cairn_fail(&err, CAIRN_EDATA, "%s has no adapter; without --adapter the whole weights are written", path ? path : a.dir));
    TRY(p.lora && !a.merged ? export_adapter(&a, &p, &err) : export_merged(&a, &p, &err));
out:
    parts_close(&p);
    if (pinned)
        cairn_artefact_unpin(path, pin, NULL);
    free(path);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("export", &err);
}
