/* main.c - cairn-rollout: from a policy and prompts to rollouts. */
#include "stages/rollout/rollout.h"

int main(int argc, char **argv)
{
    static const struct cairn_stage_def def = {
        .stage = CAIRN_STAGE_ROLLOUT,
        .doc = "Samples the rollouts of step N from policy N-1, or of an evaluation set from policy N.\v"
               "Examples:\n  cairn-rollout /tmp/tiny --step 1\n  cairn-rollout /tmp/tiny --step 20 --eval heldout\n"
               "  mpirun -np 4 cairn-rollout /tmp/tiny --step 1\n  cairn-rollout /tmp/tiny --step 1 --shard 2/5",
        .wants_device = 1,
        .splits = 1,
        .wants_graders = 1, /* dynamic sampling asks for verdicts */
        .work = cairn_rollout_work,
        .forget = cairn_rollout_forget,
    };

    return cairn_stage_main(argc, argv, &def);
}
