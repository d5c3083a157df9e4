/* ranks.h - what the ranks of a stage do together: agree, tell each other, bring their shards to the one that commits.
 *
 * Nobody leaves alone: a rank that fails goes on to the next of these calls with its status and sentence, and all leave with the greatest
 * status. When the ranks cannot even talk (a peer is gone) there is nothing to agree upon: the sentence is told here and the world
 * aborted; what hangs is ended by the world's watchdog after run.deadline. Alone every call is a copy.
 *
 * Ranks also share what they know of their units by messages: nobody looks for a file that another rank has just made.
 */
#ifndef CAIRN_STAGES_COMMON_RANKS_H
#define CAIRN_STAGES_COMMON_RANKS_H

#include "stages/common/stage.h"

/* The greatest status of all ranks, with the sentence of the lowest rank that has it, on every rank. `st` and err: this rank's own. A stop
 * (CAIRN_EAGAIN) of one rank is one of all. What came out is remembered (ctx->agreed), so that it is not voted upon again. */
enum cairn_status cairn_ranks_agree(struct cairn_stage_ctx *ctx, const char *what, enum cairn_status st, struct cairn_error *err);
/* The same, and if all are well each gets what each one tells (n bytes, any on each rank): *all malloc'ed, block of rank r is (*at)[r] ..
 * (*at)[r+1], size + 1 of them, malloc'ed. On failure both are NULL. */
enum cairn_status cairn_ranks_exchange(struct cairn_stage_ctx *ctx, const char *what, enum cairn_status st, const void *p, size_t n, char **all,
                                       size_t **at, struct cairn_error *err);
/* Rank 0's p (n bytes, the same number on all) to all. */
enum cairn_status cairn_ranks_tell(struct cairn_stage_ctx *ctx, const char *what, enum cairn_status st, void *p, size_t n, struct cairn_error *err);
/* Holds all ranks to the same text; CAIRN_EUSAGE or what `code` says, naming `noun` and both texts, on all of them. */
enum cairn_status cairn_ranks_same(struct cairn_stage_ctx *ctx, const char *noun, const char *text, enum cairn_status code, struct cairn_error *err);
/* The vote about the artefact, on a communicator of its own: every rank's status; if all are well, the shards in each rank's manifest come
 * to rank 0's, which then has them all, in order of their names. */
enum cairn_status cairn_ranks_vote(struct cairn_stage_ctx *ctx, enum cairn_status st, struct cairn_error *err);

/* How long a rank works before it looks up: by what has gone by since `started_s`, so that short work is not waited for long. */
double cairn_ranks_period(double started_s);
/* For a rank that has nothing to do before the others look up: sleeps most of a period, so that waiting does not cost a core. */
void cairn_ranks_rest(double started_s);

#endif
