/* footprint.h - what a model takes of its device's memory, by arithmetic from its configuration: nothing is allocated, no device is
 * asked. Who plans and who starts a stage add up with this one function; what is allocated then is the same to the byte, but for
 * what ops keep as scratch (kernels: bounded by their shapes, 64 MiB for the head, about as much for attention) and what the driver
 * and its libraries take for themselves.
 */
#ifndef CAIRN_MODEL_FOOTPRINT_H
#define CAIRN_MODEL_FOOTPRINT_H

#include "model/cache.h"
#include "model/model.h"

struct cairn_footprint_opts {
    const struct cairn_model_config *config;
    const struct cairn_param_table *table;
    const struct cairn_adapter *adapter; /* NULL: none, all weights are trained */
    enum cairn_dtype act;
    int segments;
    struct cairn_pass_opts pass;   /* max_rows 0: none. train: with masters, moments and gradients */
    int ranks;                     /* that share masters and moments; 0: 1 */
    struct cairn_cache_opts cache; /* pages 0: none */
    int64_t logits;                /* rows of logits at once */
};

struct cairn_footprint { /* bytes */
    size_t weights, adapter;             /* published, what forwards read */
    size_t masters, moments, gradients;  /* f32, of what is trained */
    size_t activations, logits, cache;
    size_t total;
};

enum cairn_status cairn_footprint(const struct cairn_footprint_opts *o, struct cairn_footprint *f, struct cairn_error *err);
/* "12.41 GiB: weights 3.78, masters 7.57, ..." */
void cairn_footprint_text(const struct cairn_footprint *f, char *out, size_t n);
/* CAIRN_ENOSPACE naming `what`, both numbers and the largest part, if the device has fewer bytes free than the parts of f that are not
 * there yet: `there` bytes of it are. A device that does not say what it has takes everything. */
enum cairn_status cairn_footprint_fits(const struct cairn_footprint *f, size_t there, struct cairn_device *dev, const char *what,
                                       struct cairn_error *err);

#endif
