/* image.h - the weights of a base as they lie in a sampler's or trainer's memory, kept on the node (world/nodestore.h) for the next
 * one.
 *
 * What is kept is the store of params.h, byte for byte: values in the device's type at the table's offsets. Its key names all of
 * that: the logical digest of the base, type, size and place of every tensor. So another base, precision or build with other
 * offsets is another object. Where memory is host memory the object is mapped and used as it lies there, copy-on-write, one copy
 * for all processes of the node; an accelerator gets a copy of it, each block of which is checked on its way. A store that cannot
 * be used (full, foreign, damaged, slow) costs one line, and the base is read as ever.
 */
#ifndef CAIRN_MODEL_IMAGE_H
#define CAIRN_MODEL_IMAGE_H

#include "ckpt/reader.h"
#include "model/params.h"
#include "world/nodestore.h"

/* Published weights of `base` (an artefact of kind "base") in a new store s. store NULL: read from base, without any node store.
 * bar: name of a progress bar, or NULL. CAIRN_EAGAIN: a stop was requested meanwhile. */
enum cairn_status cairn_image_load(struct cairn_store *s, const struct cairn_param_table *t, struct cairn_reader *base,
                                   const struct cairn_nodestore_opts *store, struct cairn_compute *k, const char *bar, struct cairn_error *err);

#endif
