/* sequences.h - the token sequences that both sides score: fixed by the seed and the model's sizes, made for what usually goes wrong.
 *
 *   long     longer than index_topk, so that keys are chosen, and than a page and a chunk of any kind
 *   short    a few tokens            one      one token behind one
 *   group    three that share a prompt (which ends inside a page) and go on differently
 *   edge     as long as a page       twin     the same tokens as `short`: equal sequences must get equal numbers
 * They are packed by the trainer as they come, so short ones stand between long ones.
 */
#ifndef CAIRN_TOOLS_CHECK_SEQUENCES_H
#define CAIRN_TOOLS_CHECK_SEQUENCES_H

#include "model/config.h"
#include "stages/train/pack.h"

#define CAIRN_CHECK_SEQUENCES 9

struct cairn_check_sequences {
    struct cairn_sequence s[CAIRN_CHECK_SEQUENCES];
    const char *name[CAIRN_CHECK_SEQUENCES];
    int group[CAIRN_CHECK_SEQUENCES]; /* of those with a number above 0: the same prompt; else 0 */
    int n;
    int64_t at[CAIRN_CHECK_SEQUENCES + 1]; /* where the numbers of a sequence begin among all of them: those of its tokens from `prompt` on */
    int64_t longest, tokens;
    int32_t *memory;
};

/* longest: none longer than this (0: what the model needs). */
enum cairn_status cairn_check_sequences_make(struct cairn_check_sequences *q, const struct cairn_model_config *c, int page, int64_t longest,
                                             uint64_t seed, struct cairn_error *err);
void cairn_check_sequences_free(struct cairn_check_sequences *q);

#endif
