/* attempt_inner.h - what the three files of the commit protocol share (attempt.h): attempt.c (epochs: who may write), adopt.c (its shards, and whole
 * ones of dead attempts), publish.c (the one link that commits, and tidying). For nobody else.
 */
#ifndef CAIRN_CKPT_ATTEMPT_INNER_H
#define CAIRN_CKPT_ATTEMPT_INNER_H

#include "ckpt/attempt.h"
#include "ckpt/holder.h"

struct cairn_attempt {
    char *root, *epochs, *dir; /* ARTEFACT, ARTEFACT/epoch, ARTEFACT/a<epoch> */
    int64_t epoch;
    char lane[129];
    struct cairn_digest identity;
    int scratch;
};

/* What epoch/N says. */
struct epoch_info {
    struct cairn_holder holder;
    struct cairn_digest identity;
    char lane[129];
};

enum cairn_status cairn_epoch_read(const char *epochs, int64_t n, struct epoch_info *out, struct cairn_error *err);

#endif
