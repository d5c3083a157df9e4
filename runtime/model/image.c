/* image.c - takes weights from the node store or reads and leaves them there (image.h). */
#include "model/image.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "base/upload.h"
#include "model/io.h"

static enum cairn_status read_from(struct cairn_store *s, const struct cairn_param_table *t, struct cairn_reader *base, struct cairn_compute *k,
                                   const char *bar, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(cairn_weights_create(s, t, k, err));
    TRY(cairn_load(s, base, NULL, k, bar, err));
out:
    return st;
}

/* All that decides the bytes of an image. */
static enum cairn_status key_of(struct cairn_digest *key, const struct cairn_param_table *t, const struct cairn_reader *base,
                                const struct cairn_compute *k, size_t bytes, struct cairn_error *err)
{
    struct cairn_str text = {0};
    char hex[33];

    cairn_digest_hex(cairn_reader_manifest(base)->digest, hex);
    cairn_str_printf(&text, "weights 2\n%s\n%s %zu\n", hex, cairn_dtype_name(k->act), bytes);
    for (int i = 0; i < t->count; i++)
        cairn_str_printf(&text, "%s %zu %d %d %lld\n", t->param[i].name, t->param[i].offset, t->param[i].keep_f32, t->param[i].frozen,
                         (long long)cairn_param_count(&t->param[i]));
    *key = cairn_digest_bytes(cairn_str_z(&text), text.len);
    cairn_str_free(&text);
    return text.oom ? CAIRN_NOMEM(err) : CAIRN_OK;
}

static void let_go(void *arg)
{
    cairn_nodeobject_drop(arg);
}

/* The whole buffer as one tensor of bytes. */
static enum cairn_status flat(struct cairn_tensor *out, const struct cairn_store *s, struct cairn_error *err)
{
    const int64_t n = (int64_t)s->buf->bytes;

    return cairn_tensor_view(out, s->buf, 0, CAIRN_U8, 1, &n, err);
}

_Static_assert(CAIRN_UPLOAD_PIECE % CAIRN_NODE_BLOCK == 0, "pieces of an upload are rows of blocks");

static enum cairn_status piece(void *object, size_t at, size_t n, void *h_dst, struct cairn_error *err)
{
    if (cairn_stop_requested())
        return cairn_fail(err, CAIRN_EAGAIN, "stopped while loading the base from the node store");
    return cairn_nodeobject_read(object, at, n, h_dst, err);
}

/* *o NULL: it is the store's (mapped). Else it was copied, and is the caller's to drop. */
static enum cairn_status from_object(struct cairn_store *s, const struct cairn_param_table *t, struct cairn_nodeobject **o, struct cairn_compute *k,
                                     struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_nodeobject *held = *o;

    if (cairn_buffer_adopts(k->dev)) {
        *o = NULL;
        return cairn_weights_adopt(s, t, k, held->p, let_go, held, err);
    }
    TRY(cairn_weights_create(s, t, k, err));
    if (held->bytes != s->buf->bytes)
        TRY(CAIRN_BUG(err, "an object of the node that is no image of these weights"));
    st = cairn_upload(&k->stream, s->buf, held->bytes, piece, held, err);
    if (st == CAIRN_EDATA)
        cairn_nodeobject_refuse(held);
out:
    return st;
}

static void nothing(void *arg)
{
    (void)arg;
}

/* Reads the base and leaves it in the fresh object. Where memory is host memory it is read right there. */
static enum cairn_status into_object(struct cairn_store *s, const struct cairn_param_table *t, struct cairn_reader *base, struct cairn_nodeobject **o,
                                     struct cairn_compute *k, const char *bar, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_error why;
    struct cairn_tensor all;

    if (cairn_buffer_adopts(k->dev)) {
        TRY(cairn_weights_adopt(s, t, k, (*o)->p, nothing, NULL, err));
        TRY(cairn_load(s, base, NULL, k, bar, err));
        cairn_store_free(s);
        TRY(cairn_nodeobject_keep(*o, err));
        TRY(cairn_nodeobject_view(*o, err));
        return from_object(s, t, o, k, err);
    }
    TRY(read_from(s, t, base, k, bar, err));
    TRY(flat(&all, s, err));
    TRY(cairn_tensor_get(&k->stream, &all, (*o)->p, (*o)->bytes, err));
    if (cairn_nodeobject_keep(*o, &why) != CAIRN_OK) /* the weights are there all the same */
        cairn_warn("%s; the next job reads the base again", why.text);
out:
    return st;
}

enum cairn_status cairn_image_load(struct cairn_store *s, const struct cairn_param_table *t, struct cairn_reader *base,
                                   const struct cairn_nodestore_opts *store, struct cairn_compute *k, const char *bar, struct cairn_error *err)
{
    struct cairn_nodestore *ns = NULL;
    struct cairn_nodeobject *o = NULL;
    struct cairn_error why = {0};
    enum cairn_status st;
    double t0 = cairn_now_s();
    struct cairn_digest key;
    size_t bytes = 0;
    int fresh;

    if (!store)
        return read_from(s, t, base, k, bar, err);
    bytes = cairn_weights_bytes(t, k);
    st = key_of(&key, t, base, k, bytes, &why);
    if (st == CAIRN_OK)
        st = cairn_nodestore_open(&ns, store, &why);
    if (st == CAIRN_OK)
        st = (cairn_buffer_adopts(k->dev) ? cairn_nodestore_take : cairn_nodestore_take_unread)(ns, key, bytes, &o, &why);
    if (st == CAIRN_OK) {
        fresh = o->fresh;
        st = fresh ? into_object(s, t, base, &o, k, bar, &why) : from_object(s, t, &o, k, &why);
        if (st == CAIRN_OK)
            cairn_info("base weights, %.2f GiB, %s %s in %.2f s", (double)bytes * 0x1p-30, fresh ? "read and kept in" : "taken from", store->path,
                       cairn_now_s() - t0);
    }
    cairn_nodeobject_drop(o);
    cairn_nodestore_close(ns);
    if (st == CAIRN_OK)
        return CAIRN_OK;
    cairn_store_free(s);
    if (cairn_stop_requested())
        return cairn_fail(err, CAIRN_EAGAIN, "%s", why.text);
    cairn_warn("sync.node_store: %s; the base is read as without it", why.text);
    return read_from(s, t, base, k, bar, err);
}
