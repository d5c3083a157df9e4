/* main.c - cairn-score: from rollouts to rewards and advantages. */
#include "stages/score/score.h"

int main(int argc, char **argv)
{
    static const struct cairn_stage_def def = {
        .stage = CAIRN_STAGE_SCORE,
        .doc = "Grades the rollouts of step N and makes advantages.\v"
               "Examples:\n  cairn-score /tmp/tiny --step 1\n  cairn-score /tmp/tiny --step 20 --eval heldout\n"
               "  mpirun -np 4 cairn-score /tmp/tiny --step 1\n  cairn-score /tmp/tiny --step 1 --shard 2/5",
        .splits = 1,
        .wants_graders = 1,
        .work = cairn_score_work,
        .after = cairn_score_after,
    };

    return cairn_stage_main(argc, argv, &def);
}
