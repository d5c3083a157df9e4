/* import.c - `cairn import HF_DIR --out DIR`: a HuggingFace checkpoint becomes a base artefact, a PEFT adapter a policy on one.
 *
 * Looks at headers, configuration and tokenizer first, so that what cannot work fails before anything is written. Work that was cut
 * off is taken up again; what is there already from the same source is left alone (exit 0 and a sentence).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "model/base.h"
#include "model/peft.h"
#include "model/policy.h"
#include "text/tokenizer.h"
#include "tools/cli.h"
#include "tools/out.h"
#include "tools/verbs.h"

enum { OPT_OUT = 256, OPT_BASE, OPT_DRY, OPT_SELF, OPT_SHARD };

struct args {
    const char *dir, *out, *base;
    int dry, self_contained, json;
    int64_t shard_bytes;
};

static const struct argp_option options[] = {
    {"out", OPT_OUT, "DIR", 0, "where the checkpoint goes (made if missing)", 0},
    {"base", OPT_BASE, "DIR", 0, "for an adapter: the imported checkpoint it stands on", 0},
    {"dry-run", OPT_DRY, NULL, 0, "look at the headers, say what is there, write nothing", 0},
    {"self-contained", OPT_SELF, NULL, 0, "copy tensors that only pass through (MTP, vision), too; else they stay in HF_DIR", 0},
    {"shard-bytes", OPT_SHARD, "N", 0, "size of one shard (default 4 GiB)", 0},
    {"json", 'j', NULL, 0, "one JSON object", 0},
    {0}};

static const struct cairn_cli_slot slots[] = {
    CAIRN_CLI_TEXT_AT(OPT_OUT, struct args, out),
    CAIRN_CLI_TEXT_AT(OPT_BASE, struct args, base),
    CAIRN_CLI_FLAG_AT(OPT_DRY, struct args, dry),
    CAIRN_CLI_FLAG_AT(OPT_SELF, struct args, self_contained),
    CAIRN_CLI_BYTES_AT(OPT_SHARD, struct args, shard_bytes, "shard-bytes"),
    CAIRN_CLI_FLAG_AT('j', struct args, json),
    CAIRN_CLI_TEXT_AT(ARGP_KEY_ARG, struct args, dir),
    {0},
};

static const struct argp argp = {options, NULL, "HF_DIR",
                                 "Turns a HuggingFace checkpoint (config.json, safetensors, tokenizer.json) into a checkpoint that runs start from, "
                                 "or a PEFT adapter into a policy. Block-FP8 weights become BF16. Goes on where it stopped; done twice, it "
                                 "changes nothing.\v"
                                 "Examples:\n  cairn import tests/fixtures/models/glm52-tiny --dry-run\n"
                                 "  cairn import tests/fixtures/models/glm52-tiny --out /tmp/glm52-tiny",
                                 NULL, NULL, NULL};

/* Ids of the directory's tokenizer; 0 if it has none. */
static enum cairn_status tokenizer_ids(const char *dir, int64_t *ids, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    char *path = cairn_path_join(dir, "tokenizer.json");
    struct cairn_tokenizer *t = NULL;

    *ids = 0;
    if (!path)
        TRY(CAIRN_NOMEM(err));
    if (!cairn_path_exists(path))
        goto out;
    TRY(cairn_tokenizer_load(&t, path, err));
    *ids = cairn_tokenizer_vocab_size(t);
out:
    cairn_tokenizer_free(t);
    free(path);
    return st;
}

static const char *arch_name(const struct cairn_model_config *c)
{
    return c->arch == CAIRN_ARCH_GLM5_NEXT ? "glm5_next" : "glm_moe_dsa";
}

static enum cairn_status tell_model(const struct args *a, const struct cairn_hf *h, int64_t ids, const char *status, struct cairn_error *err)
{
    const struct cairn_model_config *c = &h->config;
    int64_t own = h->table.elements, biases = 0;

    for (int i = 0; i < h->table.count; i++)
        if (h->table.param[i].keep_f32 && h->table.param[i].frozen)
            biases += cairn_param_count(&h->table.param[i]);
    if (a->json)
        return cairn_cli_json(json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:s?, s:s}", "model",
                                        a->dir, "architecture", arch_name(c), "kind", "base", "layers", c->layers, "tensors", (json_int_t)h->tensors,
                                        "elements", (json_int_t)h->elements, "bytes", (json_int_t)h->bytes, "parameters", (json_int_t)(own - biases),
                                        "selection_biases", (json_int_t)biases, "mtp_tensors", (json_int_t)h->mtp_tensors, "mtp_elements",
                                        (json_int_t)h->mtp_elements, "vision_tensors", (json_int_t)h->vision_tensors, "vision_elements",
                                        (json_int_t)h->vision_elements, "passed_through", (json_int_t)h->npassed, "fp8_tensors",
                                        (json_int_t)h->fp8_tensors, "tokenizer_ids", (json_int_t)ids, "vocab_size", (int)c->vocab, "out", a->out,
                                        "status", status),
                              err);
    printf("%s: %s, %d layers, %lld parameters and %lld selection biases\n", a->dir, arch_name(c), c->layers, (long long)(own - biases),
           (long long)biases);
    printf("  %lld tensors, %lld elements, %lld bytes in %d file%s\n", (long long)h->tensors, (long long)h->elements, (long long)h->bytes,
           cairn_st_files(h->st), cairn_st_files(h->st) == 1 ? "" : "s");
    if (h->fp8_tensors)
        printf("  %lld block-FP8 tensors, kept as BF16\n", (long long)h->fp8_tensors);
    if (h->npassed)
        printf("  %d tensors pass through%s (%lld of them MTP, %lld elements; %lld vision, %lld elements)\n", h->npassed,
               a->self_contained ? ", copied" : " and stay where they are", (long long)h->mtp_tensors, (long long)h->mtp_elements,
               (long long)h->vision_tensors, (long long)h->vision_elements);
    if (ids)
        printf("  tokenizer with %lld ids for %lld embedding rows\n", (long long)ids, (long long)c->vocab);
    else
        printf("  no tokenizer.json\n");
    if (a->out && strcmp(status, "dry run") != 0)
        printf("%s: %s\n", a->out, status);
    return cairn_cli_flush(err);
}

static enum cairn_status import_model(const struct args *a, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_hf *h = NULL;
    struct cairn_base_opts o = {.self_contained = a->self_contained, .shard_bytes = a->shard_bytes};
    int existed = 0;

    TRY(cairn_hf_open(&h, a->dir, err));
    TRY(tokenizer_ids(a->dir, &o.tokenizer_ids, err));
    if (o.tokenizer_ids > h->config.vocab)
        TRY(cairn_fail(err, CAIRN_EDATA, "%s: tokenizer.json has %lld ids, but the embedding has %lld rows (\"vocab_size\" in config.json)", a->dir,
                       (long long)o.tokenizer_ids, (long long)h->config.vocab));
    if (h->bias_not_f32)
        cairn_warn("%s: %d tensors that the model keeps in fp32 (selection biases, ...) are narrower: routing may differ from the model's own",
                   a->dir, h->bias_not_f32);
    if (!a->dry)
        TRY(cairn_base_import(a->out, h, &o, &existed, err));
    TRY(tell_model(a, h, o.tokenizer_ids, a->dry ? "dry run" : existed ? "it is there already, from the same source" : "imported", err));
out:
    cairn_hf_close(h);
    return st;
}

/* Dry run of an adapter: against the base. */
static enum cairn_status look_at_adapter(const struct args *a, int *layers, int64_t *elements, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_manifest *m = NULL;
    struct cairn_model_config c = {0};
    struct cairn_param_table t = {0};
    struct cairn_peft *p = NULL;
    struct cairn_adapter adapter = {0};

    TRY(cairn_manifest_load(&m, a->base, err));
    TRY(cairn_policy_config(&c, m, NULL, a->base, err));
    TRY(cairn_param_table_create(&t, &c, err));
    TRY(cairn_peft_open(&p, a->dir, &t, &c, err));
    cairn_peft_take(p, &adapter);
    *layers = adapter.loras;
    *elements = adapter.table.elements;
out:
    cairn_peft_close(p);
    cairn_adapter_free(&adapter);
    cairn_param_table_free(&t);
    cairn_config_free(&c);
    cairn_manifest_destroy(m);
    return st;
}

static enum cairn_status import_adapter(const struct args *a, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const char *status = "dry run";
    int existed = 0, layers = 0;
    int64_t elements = 0;

    TRY(look_at_adapter(a, &layers, &elements, err));
    if (!a->dry) {
        TRY(cairn_policy_import(a->out, a->dir, a->base, &existed, err));
        status = existed ? "it is there already, from the same source" : "imported";
    }
    if (a->json) {
        TRY(cairn_cli_json(json_pack("{s:s, s:s, s:i, s:I, s:s, s:s?, s:s}", "model", a->dir, "kind", "policy", "adapted_layers", layers, "elements",
                                     (json_int_t)elements, "base", a->base, "out", a->out, "status", status), err));
    } else {
        printf("%s: LoRA on %d layers, %lld elements\n", a->dir, layers, (long long)elements);
        if (!a->dry)
            printf("%s: %s\n", a->out, status);
        TRY(cairn_cli_flush(err));
    }
out:
    return st;
}

int cairn_verb_import(int argc, char **argv)
{
    struct cairn_error err = {0};
    enum cairn_status st = CAIRN_OK;
    struct args a = {0};
    char *adapter = NULL, *config = NULL;
    int done, usage = cairn_cli_read(&argp, slots, argc, argv, &a, &done), is_adapter;

    if (usage || done)
        return usage;
    if (!a.dir)
        return cairn_cli_usage("import", "HF_DIR is missing");
    if (!a.out && !a.dry)
        return cairn_cli_usage("import", "--out is missing (or --dry-run)");
    cairn_signals_install();
    if (a.json)
        cairn_log_quiet(1);
    if (a.out)
        TRY(cairn_out_check(a.out, &err));
    adapter = cairn_path_join(a.dir, "adapter_config.json");
    config = cairn_path_join(a.dir, "config.json");
    if (!adapter || !config)
        TRY(CAIRN_NOMEM(&err));
    TRY(cairn_dir_expect(a.dir, &err));
    is_adapter = cairn_path_exists(adapter) && !cairn_path_exists(config);
    if (is_adapter && !a.base)
        TRY(cairn_fail(&err, CAIRN_EUSAGE, "%s is an adapter: name the imported checkpoint it stands on with --base", a.dir));
    if (!is_adapter && a.base)
        TRY(cairn_fail(&err, CAIRN_EUSAGE, "--base is for adapters, and %s holds no adapter_config.json alone", a.dir));
    TRY(is_adapter ? import_adapter(&a, &err) : import_model(&a, &err));
out:
    free(adapter);
    free(config);
    return st == CAIRN_OK ? 0 : cairn_cli_fail("import", &err);
}
