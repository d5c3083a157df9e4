/* main.c - cairn-sync: a trainer state becomes the next policy. */
#include "stages/common/publish.h"

int main(int argc, char **argv)
{
    static const struct cairn_stage_def def = {
        .stage = CAIRN_STAGE_SYNC,
        .doc = "Turns the trainer state of step N into policy N.\v"
               "Examples:\n  cairn-sync /tmp/tiny --step 1\n  srun cairn-sync RUN --step 7 --quiet",
        .work = cairn_publish_work,
        .after = cairn_publish_after,
    };

    return cairn_stage_main(argc, argv, &def);
}
