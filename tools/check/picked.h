/* picked.h - what the run's own forward did with one micro-batch, at the ends of its blocks: picked up under a trace (trace.h), for the plain
 * model to be fed with (blocks.h).
 *
 * One residual stream: what a layer's two norms read is what its blocks are given. Hyper-connections: the ops at a block's ends have the streams,
 * the weights, the block's input and its output.
 */
#ifndef CAIRN_TOOLS_CHECK_PICKED_H
#define CAIRN_TOOLS_CHECK_PICKED_H

#include "tools/check/sides.h"

struct cairn_picked {
    struct cairn_sides *x;
    int64_t rows, width, mixes; /* of the micro-batch; of the residual: D, or J*D; J*(J+2), or 0 */
    float *in[2];               /* (layers, rows, width): the residual before attention, before the MLP */
    float *last;                /* (rows, width) behind the last layer */
    float *head;                /* (rows, D): what the final norm reads */
    float *given[2], *made[2];  /* with streams (layers, rows, D): a block's input and its output */
    float *mix[2];              /* with streams (layers, rows, mixes) */
    int32_t **keys;             /* [layers] (rows, key_width) of layers with an indexer, or NULL */
    int64_t *key_width;         /* [layers] */
    int32_t **experts;          /* [layers] (rows, k), or NULL */
    float *logprob;             /* (rows) */
    int layer, site;            /* private: whose hyper-connection was entered last */
};

/* Forward of the trainer's micro-batch as it is filled. Frees what p held; `x` must be set the first time, all else 0. */
enum cairn_status cairn_picked_forward(struct cairn_picked *p, struct cairn_error *err);
void cairn_picked_free(struct cairn_picked *p);

#endif
