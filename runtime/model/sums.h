/* sums.h - the digests of a store's tensors, made on its device: what a shard writer would make of the same bytes (ckpt/tiles.h), without bringing
 * them here.
 */
#ifndef CAIRN_MODEL_SUMS_H
#define CAIRN_MODEL_SUMS_H

#include "base/digest.h"
#include "model/params.h"

/* sum[table->count]: of each tensor that the store has (its rows, of a share), under prefix (or NULL) and its name, a stack's elements under theirs;
 * the others' are zero. The store's type is what is digested. Waits for the stream of k. */
enum cairn_status cairn_store_sums(const struct cairn_store *s, const char *prefix, struct cairn_compute *k, struct cairn_digest *sum,
                                   struct cairn_error *err);

#endif
