/* shares.h - a table's trainable run cut into pieces, and the pieces dealt out to the ranks that share an optimiser.
 *
 * A piece is some whole rows of dimension 0 of one parameter. The list of pieces follows from the table alone, so what is summed
 * piece by piece (the gradient's norm) does not depend on how many ranks there are. A rank's share is a run of consecutive pieces,
 * as even as whole rows allow; so of every parameter it has consecutive rows, which is what a shard of an artefact can hold. Pure
 * functions. Idea: optimiser state sharded over data parallel ranks, ZeRO stage 1 (arXiv:1910.02054).
 */
#ifndef CAIRN_MODEL_SHARES_H
#define CAIRN_MODEL_SHARES_H

#include "model/params.h"

struct cairn_piece {
    int param;
    int64_t row, rows; /* of its dimension 0 */
    int64_t at, n;     /* first element in the flat run, elements (padding is nobody's) */
};

struct cairn_shares {
    int64_t pieces, total;     /* total: elements of the flat run */
    struct cairn_piece *piece; /* (pieces) in order of the flat run; owned */
};

enum cairn_status cairn_shares_create(struct cairn_shares *s, const struct cairn_param_table *t, struct cairn_error *err);
void cairn_shares_free(struct cairn_shares *s);
/* First piece of rank r of `ranks` (r = ranks: the end), and the element of the flat run where its share begins: shares follow one
 * another without gaps, padding goes with what stands before it. A share may be empty. */
int64_t cairn_shares_first(const struct cairn_shares *s, int ranks, int r);
int64_t cairn_shares_begin(const struct cairn_shares *s, int ranks, int r);

/* A store of the share of rank r: flat is that part of the run, tensor[i] the rows that it has of parameter i (absent: none),
 * row[i] the first of them. Memory starts zeroed. */
enum cairn_status cairn_store_create_share(struct cairn_store *s, const struct cairn_param_table *t,
                                           const struct cairn_shares *shares, int ranks, int r, struct cairn_device *dev,
                                           struct cairn_error *err);

#endif
