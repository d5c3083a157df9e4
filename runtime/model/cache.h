/* cache.h - the sampler's memory of earlier positions: latent rows [c | k_rope] for every layer that attends and indexer keys for full
 * layers, in pages of fixed size, shared between the samples of one prompt; and what layers keep of a sequence whatever its length.
 *
 * A slot is one sequence. Slots that were forked share whole pages (reference counts); a page that is shared and about to be
 * written is copied first (copy on write). Indexer keys of pools lie in the same pages, one a pool. KDA's state and convolution rows,
 * and the rows of the indexer's open pool, are one entry a slot; a fork copies its origin's when either of the two goes on. Pages are numbered alike
 * in all layers, so a slot has one page table. Everything is allocated at creation. A full cache is not an error: cairn_cache_extend says so and the
 * scheduler waits.
 */
#ifndef CAIRN_MODEL_CACHE_H
#define CAIRN_MODEL_CACHE_H

#include <stdint.h>

#include "kernels/backend.h"
#include "model/config.h"

struct cairn_cache;

struct cairn_cache_opts {
    int slots;          /* sequences at once */
    int pages;          /* pages in all */
    int page;           /* positions a page; a multiple of the model's index_pool, else CAIRN_ERECIPE */
    int64_t max_length; /* positions a sequence may reach */
};

enum cairn_status cairn_cache_create(struct cairn_cache **out, const struct cairn_model_config *c, struct cairn_compute *k,
                                     const struct cairn_cache_opts *o, struct cairn_error *err);
void cairn_cache_destroy(struct cairn_cache *c);
/* What cairn_cache_create would take on the device, with activations of that type. */
enum cairn_status cairn_cache_measure(const struct cairn_model_config *c, enum cairn_dtype act, const struct cairn_cache_opts *o,
                                      size_t *bytes, struct cairn_error *err);

int cairn_cache_slot(struct cairn_cache *c);                 /* a free slot of length 0, or -1 */
int cairn_cache_fork(struct cairn_cache *c, int slot);       /* a new slot that shares all of slot's positions, or -1 */
void cairn_cache_free(struct cairn_cache *c, int slot);      /* drops its references */
void cairn_cache_reset(struct cairn_cache *c);
/* Room for n more positions of slot: takes pages, lowest number first, copies a shared last page and a fork's state. *fits = 0 (and
 * nothing changed) when pages are short. All positions of a slot must have been run (their keys written) before it, or a fork of it,
 * is extended, if they share pages or state: the copy is made here. Beyond max_length: CAIRN_EBUG. */
enum cairn_status cairn_cache_extend(struct cairn_cache *c, int slot, int64_t n, int *fits, struct cairn_error *err);
int64_t cairn_cache_length(const struct cairn_cache *c, int slot); /* positions reserved so far */
int cairn_cache_free_pages(const struct cairn_cache *c);
int cairn_cache_pages_for(const struct cairn_cache *c, int64_t length);

/* For the forward (model.c and the blocks). Key rows of a layer: act (pages * page, C + R); act (pages * page / index_pool, Di), full
 * layers. */
struct cairn_tensor cairn_cache_latent_rows(const struct cairn_cache *c, int layer);
struct cairn_tensor cairn_cache_index_rows(const struct cairn_cache *c, int layer);
/* Rows of each slot's open pool, as op pool_keys has them: act (slots, m, 2 * Di). */
struct cairn_tensor cairn_cache_pool_tail(const struct cairn_cache *c, int layer);
/* What a KDA layer keeps of each slot, as ops short_conv (for q, k, v) and kda have it. */
struct cairn_cache_kda {
    struct cairn_tensor tail[3]; /* act (slots, K, P) */
    struct cairn_tensor state;   /* f32 (slots, H, CAIRN_KDA_ROWS(d), d) */
};
struct cairn_cache_kda cairn_cache_kda(const struct cairn_cache *c, int layer);
/* Page tables of all slots on the device, i32 (slots, P), brought up to date; *page: positions a page. */
enum cairn_status cairn_cache_tables(struct cairn_cache *c, struct cairn_tensor *pages, int *page, struct cairn_error *err);
/* Row that holds a position of a slot; -1 if the slot is not in use or the position is not reserved. */
int64_t cairn_cache_row(const struct cairn_cache *c, int slot, int64_t pos);
size_t cairn_cache_bytes(const struct cairn_cache *c);

#endif
