/* units_inside.h - what units.c (the list, judging, ranks) and units_shards.c (writing, adopting) share. */
#ifndef CAIRN_STAGES_ROLLOUT_UNITS_INSIDE_H
#define CAIRN_STAGES_ROLLOUT_UNITS_INSIDE_H

#include "stages/rollout/units.h"

struct sample {
    int32_t *tokens;
    float *logprobs, *sampled; /* behind tokens, in one block */
    int64_t n;
    float value;   /* dynamic */
    void *experts; /* (prompt + n - 1, choices a token) as they are stored, or NULL */
    uint8_t finish, verdict, there;
    uint8_t status; /* dynamic */
};

struct group {
    int64_t prompt_id;
    struct cairn_ids ids;
    struct sample *sample; /* (samples); NULL: none came yet, or written */
    int missing;           /* samples */
    int repeat;
    int32_t carried;               /* its place in the list of the step before, whose surplus it was; -1: it is sampled here */
    struct cairn_spread raw, sure; /* dynamic: rewards of all responses; of those that have a verdict */
    uint8_t right;                 /* dynamic: verdict of sample 0 */
    int32_t status[CAIRN_VERDICT_STATUSES]; /* dynamic: rollouts of each */
    uint8_t judged, used;                   /* used: known when everything before it is judged */
    uint8_t adopted, told;                  /* taken over from another attempt; came out in cairn_units_news, or from there */
    int64_t tokens, capped;
};

struct cairn_units {
    struct cairn_units_opts o;
    char *identity, *dir;
    struct group *group;
    int64_t n, room;
    uint8_t *written;   /* [units] */
    uint8_t *elsewhere; /* [units] somebody else makes it */
    int64_t units_room;
    int64_t known; /* groups at the beginning whose `used` is known */
    int64_t kept;  /* of those */
    int64_t adopted;
    int64_t *table; /* prompt id -> its last group + 1, open addressing; 0: empty */
    int64_t slots;
};

/* Sample s of the group came out like this. */
void cairn_units_result(const struct cairn_units *u, struct group *g, int s, int64_t tokens, uint8_t finish, float value,
                        uint8_t status);
/* Goes on over judged groups and says of each whether it is used. */
void cairn_units_decide(struct cairn_units *u);
void cairn_units_drop(struct cairn_units *u, struct group *g); /* its samples and prompt */
/* Writes the unit if it is not written, all its groups are whole and known. */
enum cairn_status cairn_units_try(struct cairn_units *u, int64_t unit, struct cairn_error *err);
int64_t cairn_units_end(const struct cairn_units *u, int64_t unit); /* the group behind its last */

#endif
