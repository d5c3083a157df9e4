/* pass_impl.h - the inside of a pass: pass.c makes it and places its tensors for a number of rows, model.c runs it. Nobody else
 * includes it.
 */
#ifndef CAIRN_MODEL_PASS_IMPL_H
#define CAIRN_MODEL_PASS_IMPL_H

#include "model/layer.h"
#include "model/model.h"
#include "model/replay.h"

/* What is known of each row of a call: id, pos, seq, the last whole pool it sees; of cached ones also the row of its key, and (a
 * list of its own) whose logits are wanted. */
enum { CAIRN_ROW_ID, CAIRN_ROW_POS, CAIRN_ROW_SEQ, CAIRN_ROW_POOL, CAIRN_ROW_KEY, CAIRN_ROW_WANT, CAIRN_ROW_LISTS };

struct cairn_pass {
    struct cairn_model m;
    struct cairn_pass_opts o;
    struct cairn_layer *layer; /* [layers] */
    int embed, norm, head;     /* parameter indexes */
    int lowest;                /* first layer with an adapted matrix (layers: none) */
    int *index_of;             /* [layers] which index set a layer uses */
    int sets;                  /* index sets */
    int64_t topk;              /* width of an index set */

    struct cairn_buffer *buf;
    struct cairn_buffer *logits_buf; /* NULL until wanted */
    int64_t carved;                  /* rows of the present views, -1 none */
    struct cairn_tensor rows;        /* i32 (CAIRN_ROW_LISTS, n or more): the next six, sent as one */
    struct cairn_tensor id, pos, seq, pool, key_row, want, start, target; /* i32 */
    struct cairn_tensor *x;      /* [layers + 1] act (N, J*D): residual before each layer and after the last */
    struct cairn_tensor one;     /* act (N, D): with streams, what they begin as and end in; else absent */
    struct cairn_tensor *idx;    /* [sets] i32 (N, T) */
    struct cairn_tensor z, rstd; /* act (N, D), f32 (N): final norm */
    struct cairn_tensor dz, dx;  /* act (N, D), (N, J*D) */
    struct cairn_tensor dt;      /* act, flat */
    struct cairn_scores scores;
    struct cairn_tensor choices;   /* i32 (layers that route, N, K), if wanted */
    struct cairn_layer_save *save; /* [layers] */
    struct cairn_layer_work *work; /* [layers] */

    struct cairn_call call; /* of the forward just run */
    int ready;              /* 1: a training forward was run, its backward was not */
    float inv_temperature;
    int32_t *h_start; /* [max_seqs] first row of each sequence of a packed call */
    int32_t *h_rows; /* [CAIRN_ROW_LISTS][cairn_row_pitch(max_rows)] host side of `rows` */

    struct cairn_replay *replay; /* of cached forwards; NULL: not wanted, or the device has none */
    struct cairn_branch *branch; /* for what is recorded; NULL: no replay */
};

/* Elements from one list of `rows` to the next, of a call of n rows. */
static inline int64_t cairn_row_pitch(int64_t n)
{
    return (n + 15) & ~(int64_t)15;
}

/* Carves all views for n rows, if they are not of as many. */
enum cairn_status cairn_pass_place(struct cairn_pass *p, int64_t n, struct cairn_error *err);
/* f32 (rows, V) in the buffer of logits, which grows by doubling. */
enum cairn_status cairn_pass_logits(struct cairn_pass *p, int64_t rows, struct cairn_tensor *out, struct cairn_error *err);

#endif
