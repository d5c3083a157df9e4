/* rollout_inside.h - one link's sampling, as open.c prepares it and rollout.c does it. */
#ifndef CAIRN_STAGES_ROLLOUT_INSIDE_H
#define CAIRN_STAGES_ROLLOUT_INSIDE_H

#include "base/str.h"
#include "model/policy.h"
#include "stages/common/graders.h"
#include "stages/rollout/carry.h"
#include "stages/rollout/cursor.h"
#include "stages/rollout/rollout.h"
#include "stages/rollout/units.h"

/* What a process that goes on to further links keeps: only the policy's values, the prompts and the draws are others then. */
struct cairn_rollout_kept {
    struct cairn_policy policy;
    struct cairn_model model;
    struct cairn_prompting prompting;
    struct cairn_engine *engine;
};

struct rollout {
    struct cairn_stage_ctx *ctx;
    const struct cairn_recipe *recipe;
    struct cairn_rollout_how how;
    struct cairn_rollout_kept *kept;
    struct cairn_prompts *files;
    int nfiles;
    struct cairn_cursor *cursor; /* NULL: an evaluation */
    int64_t rows;                /* evaluation: rows taken so far */
    struct cairn_units *units;
    struct cairn_engine *engine; /* the kept one, once it has this link's options */
    int64_t longest;             /* positions that it was made for */
    int dynamic, rounds;
    struct cairn_carry carry;     /* of the step before */
    struct cairn_str text;        /* of the responses being graded */
    int64_t sampled, sampled_all; /* response tokens drawn by this rank; by all ranks of the attempt, as last told */
    int64_t done, done_all;       /* rollouts, for the bar */
    int64_t divided;              /* units that have somebody who makes them */
    int whole;                    /* array task: its own share is finished, everything else is taken over */
    double sampling_s;
    struct cairn_grade_failure failure; /* dynamic: of what this rank has graded; its number is the prompt's */
};

/* What a rank needs to know before the list of candidates can be made. *identity: malloc'ed, the fingerprint that shards must agree
 * in. */
enum cairn_status cairn_rollout_open(struct rollout *x, char **identity, struct cairn_error *err);
void cairn_rollout_close(struct rollout *x);

#endif
