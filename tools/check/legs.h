/* legs.h - legs 1 to 5 of the gate (check.h). Each adds what it saw to the report; the first finding ends them: CAIRN_ENUMERIC. */
#ifndef CAIRN_TOOLS_CHECK_LEGS_H
#define CAIRN_TOOLS_CHECK_LEGS_H

#include "tools/check/memory.h"
#include "tools/check/sides.h"

struct cairn_legs {
    struct cairn_sides *x;
    json_t *report; /* borrowed: an object that gets a member for each leg */
    double band;    /* largest difference that counts as agreement; 0: equal bits */
    int locate;
    float *trainer, *sampler, *first; /* (numbers) the latest of each side; the sampler's at the start */
    int64_t n;                        /* numbers */
    struct cairn_check_memory *memory; /* leg 3 opens it; NULL: no way but files */
    double scale;                     /* of the change that leg 2 settled on */
};

enum cairn_status cairn_legs_open(struct cairn_legs *g, struct cairn_sides *x, json_t *report, int locate, struct cairn_error *err);
void cairn_legs_close(struct cairn_legs *g);

enum cairn_status cairn_leg_agree(struct cairn_legs *g, struct cairn_error *err);    /* 1 */
enum cairn_status cairn_leg_disagree(struct cairn_legs *g, struct cairn_error *err); /* 2 */
enum cairn_status cairn_leg_sync(struct cairn_legs *g, struct cairn_error *err);     /* 3 */
enum cairn_status cairn_leg_repeat(struct cairn_legs *g, struct cairn_error *err);   /* 4 */
enum cairn_status cairn_leg_whole(struct cairn_legs *g, struct cairn_error *err);    /* 5 */

#endif
