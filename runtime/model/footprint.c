/* footprint.c - sizes from the same tables and carvings that allocation goes by (params.c, model.c, cache.c); see footprint.h. */
#include "model/footprint.h"

#include <stdio.h>

/* Of n bytes, the widest share that one of `ranks` holds: whole pieces aside, an equal part. */
static size_t share(size_t n, int ranks)
{
    return ranks > 1 ? (n + (size_t)ranks - 1) / (size_t)ranks : n;
}

enum cairn_status cairn_footprint(const struct cairn_footprint_opts *o, struct cairn_footprint *f, struct cairn_error *err)
{
    const struct cairn_param_table *trained = o->adapter ? &o->adapter->table : o->table;
    struct cairn_compute k = {.act = o->act};
    struct cairn_store weights = {0}, adapter = {0};
    struct cairn_model m = {.k = &k, .config = o->config, .weights = &weights, .segments = o->segments};
    enum cairn_status st = CAIRN_OK;

    *f = (struct cairn_footprint){.weights = cairn_store_bytes(o->table, 0, o->act)};
    TRY(cairn_weights_shapes(&weights, o->table, o->act, err));
    if (o->adapter) {
        f->adapter = cairn_store_bytes(&o->adapter->table, 0, o->act);
        TRY(cairn_weights_shapes(&adapter, &o->adapter->table, o->act, err));
        m.adapter = o->adapter;
        m.adapter_weights = &adapter;
    }
    if (o->pass.train) {
        f->gradients = cairn_store_bytes(trained, 1, CAIRN_F32);
        f->masters = share(f->gradients, o->ranks);
        f->moments = 2 * f->masters;
    }
    if (o->pass.max_rows)
        TRY(cairn_pass_measure(&m, &o->pass, o->logits, &f->activations, &f->logits, err));
    if (o->cache.pages)
        TRY(cairn_cache_measure(o->config, o->act, &o->cache, &f->cache, err));
    f->total = f->weights + f->adapter + f->masters + f->moments + f->gradients + f->activations + f->logits + f->cache;
out:
    cairn_store_free(&weights);
    cairn_store_free(&adapter);
    return st;
}

#define PARTS(X) X(weights) X(adapter) X(masters) X(moments) X(gradients) X(activations) X(logits) X(cache)
#define GIB      0x1p-30

void cairn_footprint_text(const struct cairn_footprint *f, char *out, size_t n)
{
    size_t at = (size_t)snprintf(out, n, "%.2f GiB:", (double)f->total * GIB);

#define PUT(part)                                                                                                                  \
    if (f->part && at < n)                                                                                                         \
        at += (size_t)snprintf(out + at, n - at, "%s %s %.2f", at && out[at - 1] == ':' ? "" : ",", #part, (double)f->part * GIB);
    PARTS(PUT)
#undef PUT
}

enum cairn_status cairn_footprint_fits(const struct cairn_footprint *f, size_t there, struct cairn_device *dev, const char *what,
                                       struct cairn_error *err)
{
    size_t left, total, most = 0, needs = f->total > there ? f->total - there : 0;
    const char *largest = "";
    enum cairn_status st = cairn_device_memory(dev, &left, &total, err);

    if (st != CAIRN_OK || !total || needs <= left)
        return st;
#define LOOK(part)                                                                                                                 \
    if (f->part > most)                                                                                                            \
        most = f->part, largest = #part;
    PARTS(LOOK)
#undef LOOK
    return cairn_fail(err, CAIRN_ENOSPACE, "%s: %.2f GiB more are needed on %s and %.2f of %.2f are free; the largest part is %s, %.2f", what,
                      (double)needs * GIB, dev->name, (double)left * GIB, (double)total * GIB, largest, (double)most * GIB);
}
