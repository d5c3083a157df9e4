/* optimizer.h - AdamW over the trainable run of a parameter table, with fp32 masters, and the published weights that follow.
 *
 * Ranks may share it (data parallel): each holds masters and moments of its share of the run only (shares.h). An update then begins
 * with every rank's own gradients: parts travel to who has the share of them and are added there in rank order by op axpby; the
 * norm is summed over the same pieces in the same order whatever the number of ranks; published weights come back to all.
 * Transports move bytes only.
 *
 * masters -> published: W = cast(master, dtype), so every forward, the trainer's too, uses what the sampler will load. Moments
 * and masters are f32 stores (trainable only) and are what a trainer state is made of, with the update count.
 * Weight decay is decoupled and applies to parameters marked `decay`.
 */
#ifndef CAIRN_MODEL_OPTIMIZER_H
#define CAIRN_MODEL_OPTIMIZER_H

#include "model/params.h"
#include "model/shares.h"
#include "world/channel.h"

struct cairn_optimizer_opts {
    double learning_rate, beta1, beta2, eps, weight_decay, grad_clip; /* grad_clip 0: off */
    int64_t warmup_updates;                                           /* update u (from 1) uses lr * min(1, u / warmup) */
    enum cairn_dtype publish;                                         /* sync.dtype */
};

struct cairn_optimizer {
    struct cairn_compute *k;               /* borrowed */
    const struct cairn_param_table *table; /* borrowed */
    struct cairn_channel *channel;         /* of the ranks that share it, borrowed; NULL: alone */
    int rank, ranks;                       /* in it; 0 of 1 */
    struct cairn_shares shares;
    int64_t begin, end;              /* of the flat run: this rank's share */
    struct cairn_store master, m, v; /* trainable only, of the share; alone: whole */
    int64_t updates;                 /* done so far */
    struct cairn_buffer *sums;       /* f64, one per piece: squares of the gradients */
    struct cairn_buffer *pieces;     /* i64, two per piece of the share: begin and length in the flat run */
    struct cairn_buffer *mail;       /* with ranks: what is sent and received, a stretch at a time */
    int64_t stretch;                 /* elements for each rank at a time */
};

enum cairn_status cairn_optimizer_create(struct cairn_optimizer *o, const struct cairn_param_table *t, struct cairn_compute *k,
                                         struct cairn_error *err);
/* The same for all ranks of the channel, collectively, on equal tables. channel NULL: alone. */
enum cairn_status cairn_optimizer_create_shared(struct cairn_optimizer *o, const struct cairn_param_table *t,
                                                struct cairn_compute *k, struct cairn_channel *channel, struct cairn_error *err);
void cairn_optimizer_free(struct cairn_optimizer *o);
/* masters = weights (as they are; of a device that keeps them narrow, what was rounded stays so), moments 0, no updates done: the
 * start of a training, or after a warm start. */
enum cairn_status cairn_optimizer_start(struct cairn_optimizer *o, const struct cairn_store *weights, struct cairn_error *err);
/* One update from grads (already divided by the reduction's denominator). *norm: global gradient norm before clipping, summed
 * piece by piece in order. A norm that is not finite: CAIRN_ENUMERIC naming the first such tensor, on every rank, and no weight is
 * changed. Then writes the published weights of all trainable parameters into `weights`. Shared: collective; grads are this rank's
 * own and are left as scratch; any other failure leaves the ranks apart, and only cairn_world_abort makes sense. */
enum cairn_status cairn_optimizer_step(struct cairn_optimizer *o, const struct cairn_optimizer_opts *opts,
                                       struct cairn_store *grads, struct cairn_store *weights, double *norm, double *lr,
                                       struct cairn_error *err);
/* weights = cast(master) without an update (after loading a state). Frozen parameters are left alone. Shared: collective. */
enum cairn_status cairn_optimizer_publish(struct cairn_optimizer *o, enum cairn_dtype publish, struct cairn_store *weights,
                                          struct cairn_error *err);

#endif
