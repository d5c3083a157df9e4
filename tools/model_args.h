/* model_args.h - the words "MODEL [--adapter DIR] [--step N] [--base DIR] [--backend NAME] [--act TYPE] [--threads N]" that logprobs, generate
 * and eval share, and the model that they mean.
 *
 * MODEL is an imported checkpoint, a policy, a HuggingFace directory, or a run (its newest policy, or --step N).
 */
#ifndef CAIRN_TOOLS_MODEL_ARGS_H
#define CAIRN_TOOLS_MODEL_ARGS_H

#include <argp.h>

#include "model/model.h"
#include "model/policy.h"
#include "stages/common/run.h"
#include "tools/cli.h"

struct cairn_model_args {
    const char *model, *adapter, *base, *backend, *act;
    int64_t step;    /* -1: newest */
    int64_t threads; /* 0: all */
};

enum { CAIRN_OPT_ADAPTER = 512, CAIRN_OPT_BASE, CAIRN_OPT_BACKEND, CAIRN_OPT_ACT, CAIRN_OPT_THREADS, CAIRN_OPT_STEP };
/* Elements of a verb's option table. */
#define CAIRN_MODEL_OPTIONS                                                                                             \
    {"adapter", CAIRN_OPT_ADAPTER, "DIR", 0, "a PEFT adapter to put on the model", 1},                                  \
        {"step", CAIRN_OPT_STEP, "N", 0, "of a run: policy N instead of the newest", 1},                                \
        {"base", CAIRN_OPT_BASE, "DIR", 0, "of a policy with an adapter: the checkpoint it stands on, if not found", 1}, \
        {"backend", CAIRN_OPT_BACKEND, "NAME", 0, "auto, cpu, cuda or guard (default: auto)", 1},                       \
        {"act", CAIRN_OPT_ACT, "TYPE", 0, "f32 or bf16: of weights and activations (default: the run's, else bf16 on a GPU)", 1}, \
        {"threads", CAIRN_OPT_THREADS, "N", 0, "CPU threads (default: all); never changes a bit", 1}

/* Parses a verb's command line (cli.h) into `input`, which a is a member of. Told, 64: `missing`, if there is no MODEL. Then signals are
 * polled, and a reader of stdout that left is a failed write. */
int cairn_model_args_parse(const struct argp *argp, int argc, char **argv, void *input, struct cairn_model_args *a, const char *missing,
                           int *done);
/* Takes one option or the word MODEL; ARGP_ERR_UNKNOWN if it is none of these. A value that is wrong is told, EINVAL. */
error_t cairn_model_args_take(struct cairn_model_args *a, int key, char *arg, struct argp_state *state);

struct cairn_cli_model {
    struct cairn_compute k;
    struct cairn_policy policy;
    struct cairn_model model; /* of policy */
    struct cairn_run *run;    /* that it belongs to, or NULL */
    char *dir;                /* of the artefact or HuggingFace directory */
    char *tokenizer;          /* path of its tokenizer.json, or NULL if it has none */
};

/* The run that MODEL is, or is a policy of, malloc'ed; NULL: none. */
char *cairn_cli_run_of(const char *model);
enum cairn_status cairn_cli_model_open(struct cairn_cli_model *m, const struct cairn_model_args *a, struct cairn_error *err);
void cairn_cli_model_close(struct cairn_cli_model *m);

#endif
