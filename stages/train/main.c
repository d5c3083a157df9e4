/* main.c - cairn-train: from scored rollouts to the next trainer state. */
#include "stages/common/publish.h"
#include "stages/train/train.h"

int main(int argc, char **argv)
{
    static const struct cairn_stage_def policies = {
        .stage = CAIRN_STAGE_SYNC,
        .ranks = 1,
        .work = cairn_train_publish,
        .after = cairn_publish_after,
        .forget = cairn_train_forget,
    };
    static const struct cairn_stage_def def = {
        .stage = CAIRN_STAGE_TRAIN,
        .doc = "Trains on the scored rollouts of step N (step 0: the warm start).\v"
               "Examples:\n  cairn-train /tmp/tiny --step 1\n  mpirun -np 4 cairn-train RUN --step 7 --quiet",
        .wants_device = 1,
        .ranks = 1,
        .work = cairn_train_work,
        .after = cairn_train_after,
        .forget = cairn_train_forget,
        .also = &policies,
    };

    return cairn_stage_main(argc, argv, &def);
}
