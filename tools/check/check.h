/* check.h - the gate: what is proved before a run spends its hours, and how (design, section 1.3).
 *
 * The run's own model is opened twice on the run's back-end, once as the trainer has it (masters, published weights, the packed forward)
 * and once as the sampler has it (a policy directory, the paged cache). Both score the same fixed sequences, and:
 *
 *   leg 0  right      every op of a forward and backward against the plain reference, on the run's own numbers; every block against an
 *                     independent double-precision model made from the weights alone (plain.h); given log-probabilities, if there are any.
 *                     A run that computes in bf16 is held to f32's bounds in f32 first, then to bf16's
 *   leg 1  agree      trainer and sampler give equal bits; otherwise the first layer, module and token that differ are named (trace.h)
 *   leg 2  disagree   the trainer's weights are changed; the stale sampler must be seen to disagree. The size of the change is taken from a
 *                     measured sensitivity; a change that cannot be seen makes the gate blind, which is a finding
 *   leg 3  sync       by each path that the recipe may use: the sampler has changed, its weights are the trainer's byte for byte, they agree
 *   leg 4  repeat     the sampler scores again, cut and mixed otherwise: equal bits; a second version; back to the first: the first's bits
 *   leg 5  whole      logits of the whole vocabulary; tokens that the sampling engine draws, scored again by the trainer; what experts and
 *                     keys were chosen on both sides
 *
 * A finding is one sentence: leg, what, where. Exit code 76 with it; 0 without any. Files: sequences.c what is scored; sides.c trainer and
 * sampler (sides*.c); memory.c the sync without files; trace.c one op after another; right*.c, blocks.c with picked.c and plain*.c,
 * reference.c leg 0; legs.c, whole.c legs 1 to 5; run.c their order;
 * main.c the chain's first link; cut.c a model's first layers; tools/check.c the verb and what it tells.
 */
#ifndef CAIRN_TOOLS_CHECK_CHECK_H
#define CAIRN_TOOLS_CHECK_CHECK_H

#include <jansson.h>

#include "stages/common/run.h"

struct cairn_check_opts {
    const char *dir;       /* run */
    int first, last;       /* legs */
    int locate;            /* 1: also where all agrees, say what was compared */
    const char *against;   /* HuggingFace directory that `reference` was made from; NULL: the run's base */
    const char *reference; /* JSON lines {"ids", "logprobs"}; NULL: none */
    int threads;
};

/* Runs the legs. *report: new reference, also where something was found (then CAIRN_ENUMERIC with the finding) or failed. */
enum cairn_status cairn_check_run(const struct cairn_check_opts *o, json_t **report, struct cairn_error *err);

#endif
