/* io.c - streams a table's tensors between stores, artefacts and other sources, a piece of at most PIECE bytes (or one row) at a time. While a
 * piece is written the next is read, widened or narrowed, and digested.
 *
 * Which tensors go into which shard follows from table and options alone (plan), so writers and committers agree without talking.
 * Tensor memory is touched by cairn_tensor_get and cairn_tensor_set only; narrowing and widening happen in host staging.
 */
#include "model/io.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/planted.h"
#include "base/signals.h"
#include "base/str.h"
#include "ckpt/convert.h"
#include "model/hf.h"
#include "model/sums.h"
#include "model/values.h"

#define PIECE       ((int64_t)8 << 20) /* stays in a cache from the read to the write */
#define PINNED      ((size_t)1 << 20) /* bytes; pinning less costs more than it saves */
#define ALIGNED     ((size_t)4096) /* whole pages are pinned */
#define SHARD_BYTES ((int64_t)4 << 30)
#define NAME_BYTES  288

/* ---- which tensor where -------------------------------------------------------------------------------------------------------
 */

static int wanted(const struct cairn_param_table *t, const struct cairn_save_opts *o, int i)
{
    return !(o->trainable_only && t->param[i].frozen) && !(o->share && !o->share->tensor[i].buf);
}

/* Rows of dimension 0 that are written of parameter i. */
static int64_t rows_of(const struct cairn_param_table *t, const struct cairn_save_opts *o, int i)
{
    return o->share ? o->share->tensor[i].dim[0] : t->param[i].dim[0];
}

static int64_t elements_of(const struct cairn_param_table *t, const struct cairn_save_opts *o, int i)
{
    return cairn_param_count(&t->param[i]) / t->param[i].dim[0] * rows_of(t, o, i);
}

static enum cairn_dtype dtype_of(const struct cairn_param_table *t, const struct cairn_save_opts *o, int i)
{
    return o->each ? o->each[i] : t->param[i].keep_f32 ? CAIRN_F32 : o->dtype;
}

/* First parameter behind the shard that begins at parameter `begin`. */
static int shard_end(const struct cairn_param_table *t, const struct cairn_save_opts *o, int begin)
{
    int64_t most = o->max_bytes > 0 ? o->max_bytes : SHARD_BYTES, bytes = 0;
    int i, any = 0;

    for (i = begin; i < t->count; i++) {
        int64_t n;

        if (!wanted(t, o, i))
            continue;
        n = elements_of(t, o, i) * (int64_t)cairn_dtype_size(dtype_of(t, o, i));
        if (any && bytes + n > most)
            break;
        bytes += n;
        any = 1;
    }
    return i;
}

/* Bytes of the parameters begin .. end - 1. */
static int64_t bytes_of(const struct cairn_param_table *t, const struct cairn_save_opts *o, int begin, int end)
{
    int64_t n = 0;

    for (int i = begin; i < end; i++)
        if (wanted(t, o, i))
            n += elements_of(t, o, i) * (int64_t)cairn_dtype_size(dtype_of(t, o, i));
    return n;
}

int cairn_save_shards(const struct cairn_param_table *t, const struct cairn_save_opts *o)
{
    int n = 0;

    for (int i = 0; i < t->count; i = shard_end(t, o, i))
        n++;
    return n;
}

void cairn_save_shard_name(const struct cairn_save_opts *o, int i, char *out, size_t n)
{
    snprintf(out, n, "%s-%05d", o->stem, i);
}

static void tensor_name(const char *prefix, const char *name, char *out, size_t n)
{
    snprintf(out, n, "%s%s", prefix ? prefix : "", name);
}

/* ---- save ----------------------------------------------------------------------------------------------------------------------
 */

/* Host memory for a piece, as the device copies it fastest: pinned where it can be. */
struct staging {
    struct cairn_device *dev; /* or NULL: no device copies from it or to it */
    void *p;
    size_t bytes;
    struct cairn_buffer *pinned; /* or NULL */
};

static void staging_free(struct staging *g)
{
    cairn_buffer_destroy(g->pinned);
    free(g->p);
    g->pinned = NULL;
    g->p = NULL;
    g->bytes = 0;
}

static enum cairn_status grow(struct staging *g, size_t need, struct cairn_error *err)
{
    if (need <= g->bytes)
        return CAIRN_OK;
    staging_free(g);
    if (posix_memalign(&g->p, ALIGNED, need)) {
        g->p = NULL;
        return CAIRN_NOMEM(err);
    }
    g->bytes = need;
    if (need >= PINNED && g->dev && g->dev->ops->pin && cairn_buffer_pin(g->dev, g->p, need, &g->pinned, NULL) != CAIRN_OK)
        g->pinned = NULL; /* a driver need not: the copies are slower */
    return CAIRN_OK;
}

/* What a save works in: a piece as it is read, where that is another type than it is written in, and two as they are written, in turn. */
struct lanes {
    struct staging raw, out[2];
    int turn;
};

static void lanes_free(struct lanes *l)
{
    staging_free(&l->raw);
    staging_free(&l->out[0]);
    staging_free(&l->out[1]);
}

static int64_t rows_per_piece(const struct cairn_param *p)
{
    int64_t row = cairn_param_count(p) / p->dim[0] * 4, rows = PIECE / row ? PIECE / row : 1;

    return rows < p->dim[0] ? rows : p->dim[0];
}

static enum cairn_status save_tensor(const struct cairn_source *src, const struct cairn_save_opts *o, int i, struct cairn_shard *w,
                                     int index, struct lanes *l, struct cairn_progress *bar, int64_t *done, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_param *p = &src->table->param[i];
    enum cairn_dtype to = dtype_of(src->table, o, i), from = o->each || (src->holds && src->holds(src->arg, i, to)) ? to : CAIRN_F32;
    int64_t row = cairn_param_count(p) / p->dim[0], rows = rows_per_piece(p), all = rows_of(src->table, o, i);
    int64_t at_bytes = 0;

    for (int64_t at = 0; at < all; at += rows) {
        int64_t n = all - at < rows ? all - at : rows;
        size_t count = (size_t)(n * row), bytes = count * cairn_dtype_size(to);
        struct staging *out = &l->out[l->turn], *in = from == to ? out : &l->raw;

        l->turn = !l->turn;
        TRY(grow(in, count * cairn_dtype_size(from), err));
        TRY(grow(out, bytes, err));
        TRY(src->read(src->arg, i, at, n, from, in->p, err));
        if (from != to && !cairn_convert(to, out->p, from, in->p, count))
            TRY(CAIRN_BUG(err, "no such conversion"));
        TRY(cairn_shard_lend(w, index, at_bytes, out->p, bytes, err));
        at_bytes += (int64_t)bytes;
        *done += (int64_t)bytes;
        cairn_progress_at(bar, *done);
    }
out:
    return st;
}

struct names { /* of one tensor in a shard */
    char name[NAME_BYTES], each[NAME_BYTES];
};

/* Parameter i as the artefact has it; names are its memory. */
static struct cairn_slice slice_of(const struct cairn_param_table *t, const struct cairn_save_opts *o, int i, struct names *names)
{
    const struct cairn_param *p = &t->param[i];
    struct cairn_slice s;

    tensor_name(o->prefix, p->name, names->name, NAME_BYTES);
    s = cairn_slice_whole(names->name, dtype_of(t, o, i), p->ndim, p->dim);
    if (p->experts && cairn_expert_name(names->name, -1, names->each, NAME_BYTES))
        s.each = names->each;
    if (o->share)
        s = cairn_slice_part(&s, 0, o->share->row ? o->share->row[i] : 0, rows_of(t, o, i));
    return s;
}

static enum cairn_status save_shard(const struct cairn_source *src, struct cairn_attempt *a, const struct cairn_save_opts *o,
                                    int begin, int end, const char *name, const char *identity, struct cairn_shard_entry **entry,
                                    struct lanes *l, struct cairn_progress *bar, int64_t *done, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_slice *slice = calloc((size_t)(end - begin) + 1, sizeof(*slice));
    struct names *names = calloc((size_t)(end - begin) + 1, sizeof(*names));
    const struct cairn_shard_opts so = {.identity = identity, .hollow = o->told != NULL};
    struct cairn_shard *w = NULL;
    int n = 0;

    if (!slice || !names)
        TRY(CAIRN_NOMEM(err));
    for (int i = begin; i < end; i++)
        if (wanted(src->table, o, i)) {
            slice[n] = slice_of(src->table, o, i, &names[n]);
            n++;
        }
    TRY(cairn_attempt_shard(a, &w, name, slice, n, &so, err));
    n = 0;
    for (int i = begin; i < end; i++)
        if (wanted(src->table, o, i) && o->told)
            TRY(cairn_shard_tell(w, n++, o->told[i], err));
        else if (wanted(src->table, o, i))
            TRY(save_tensor(src, o, i, w, n++, l, bar, done, err));
    TRY(cairn_attempt_shard_done(a, &w, entry, err));
out:
    cairn_shard_destroy(w);
    free(slice);
    free(names);
    return st;
}

enum cairn_status cairn_save(const struct cairn_source *src, struct cairn_attempt *a, struct cairn_manifest *manifest,
                             const struct cairn_save_opts *o, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct lanes l = {.raw.dev = src->dev, .out[0].dev = src->dev, .out[1].dev = src->dev};
    struct cairn_progress *bar = NULL;
    struct cairn_shard_entry *entry = NULL;
    char *identity = NULL;
    int64_t done = 0;

    bar = o->what ? cairn_progress_begin(o->what, "bytes", bytes_of(src->table, o, 0, src->table->count), 10) : NULL;
    for (int begin = 0, shard = 0; begin < src->table->count; shard++) {
        int end = shard_end(src->table, o, begin);
        char name[160];

        if (!o->through && cairn_stop_requested())
            TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped between two shards"));
        if (o->share && !bytes_of(src->table, o, begin, end)) { /* a rank without a share */
            begin = end;
            continue;
        }
        cairn_save_shard_name(o, shard, name, sizeof(name));
        if (o->identity) { /* bounds go in, so that another plan adopts nothing */
            free(identity);
            identity = cairn_format("%s|%s%s|%d-%d", o->identity, o->prefix ? o->prefix : "", o->stem, begin, end);
            if (!identity)
                TRY(CAIRN_NOMEM(err));
            TRY(cairn_attempt_adopt(a, name, identity, &entry, err));
            if (entry)
                done += bytes_of(src->table, o, begin, end);
        }
        if (!entry)
            TRY(save_shard(src, a, o, begin, end, name, identity, &entry, &l, bar, &done, err));
        if (manifest)
            st = cairn_manifest_add_shard(manifest, entry, err);
        else
            cairn_shard_entry_free(entry);
        entry = NULL;
        TRY(st);
        begin = end;
    }
out:
    cairn_shard_entry_free(entry);
    cairn_progress_end(bar);
    free(identity);
    lanes_free(&l);
    return st;
}

/* ---- sources --------------------------------------------------------------------------------------------------------------------
 */

static enum cairn_status read_store(void *arg, int i, int64_t begin, int64_t n, enum cairn_dtype as, void *h_dst,
                                    struct cairn_error *err)
{
    const struct cairn_store_source *s = arg;
    struct cairn_tensor t;

    if (!s->store->tensor[i].buf || (as != CAIRN_F32 && as != s->store->tensor[i].dtype))
        return CAIRN_BUG(err, "a store gives f32 or its own type, and only what it holds");
    t = cairn_tensor_slice(&s->store->tensor[i], 0, begin, n);
    if (as == t.dtype && cairn_tensor_dense(&t))
        return cairn_tensor_get(&s->k->stream, &t, h_dst, cairn_tensor_bytes(&t), err);
    return cairn_values_get(s->k, &t, h_dst, cairn_tensor_count(&t), err);
}

/* Bits where they lie, instead of widened and rounded back. */
static int store_holds(void *arg, int i, enum cairn_dtype as)
{
    const struct cairn_store_source *s = arg;

    return s->store->tensor[i].buf && s->store->tensor[i].dtype == as && cairn_tensor_dense(&s->store->tensor[i]);
}

struct cairn_source cairn_source_store(struct cairn_store_source *s)
{
    return (struct cairn_source){s->store->table, read_store, s, store_holds, s->k->dev};
}

/* The entry, which must have the parameter's shape and a float type. */
static enum cairn_status find_entry(struct cairn_reader *r, const char *name, const struct cairn_param *p,
                                    const struct cairn_tensor_entry **out, struct cairn_error *err)
{
    enum cairn_status st = cairn_reader_find(r, name, out, err);
    const struct cairn_tensor_entry *e = *out;
    int same;

    if (st != CAIRN_OK)
        return st;
    same = e->ndim == p->ndim;
    for (int i = 0; same && i < p->ndim; i++)
        same = e->shape[i] == p->dim[i];
    if (!same)
        return cairn_fail(err, CAIRN_EDATA, "%s: tensor %s has %d dimensions (%lld, ...), the model says %d (%lld, ...)",
                          cairn_reader_path(r), name, e->ndim, e->ndim ? (long long)e->shape[0] : 1, p->ndim, (long long)p->dim[0]);
    if (e->dtype != CAIRN_F32 && e->dtype != CAIRN_BF16 && e->dtype != CAIRN_F16 && e->dtype != CAIRN_F64)
        return cairn_fail(err, CAIRN_EDATA, "%s: tensor %s is %s, not a weight", cairn_reader_path(r), name,
                          cairn_dtype_name(e->dtype));
    return CAIRN_OK;
}

/* Rows of one tensor of an artefact, as they are or widened. */
static enum cairn_status read_rows(struct cairn_reader *r, const char *name, const struct cairn_param *p, int64_t begin, int64_t n,
                                   enum cairn_dtype as, void *h_dst, struct staging *g, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    const struct cairn_tensor_entry *e = NULL;
    size_t count = (size_t)(n * (cairn_param_count(p) / p->dim[0])), bytes;

    TRY(find_entry(r, name, p, &e, err));
    bytes = count * cairn_dtype_size(e->dtype);
    if (e->dtype == as) {
        TRY(cairn_reader_rows(r, name, begin, n, h_dst, bytes, err));
        goto out;
    }
    TRY(grow(g, bytes, err));
    TRY(cairn_reader_rows(r, name, begin, n, g->p, bytes, err));
    if (!cairn_convert(as, h_dst, e->dtype, g->p, count))
        TRY(CAIRN_BUG(err, "no such conversion"));
out:
    return st;
}

/* Mistakes of a sync, planted: nothing in other builds. */
static void spoil(const struct cairn_param *p, int64_t begin, int64_t n, enum cairn_dtype as, void *h)
{
    size_t e = cairn_dtype_size(as), row = (size_t)(cairn_param_count(p) / p->dim[0]) * e;
    char *b = h;

    if (cairn_planted("sync-expert-twice") && p->experts && begin == 0 && n > 1)
        memcpy(b + row, b, row);
    if (cairn_planted("sync-rows-swapped") && strstr(p->name, "q_b_proj") && n > 1)
        for (size_t i = 0; i < row; i++) {
            char x = b[i];

            b[i] = b[row + i];
            b[row + i] = x;
        }
    if (cairn_planted("sync-last-row-zero") && strstr(p->name, "o_proj") && begin + n == p->dim[0])
        memset(b + (size_t)(n - 1) * row, 0, row);
    if (cairn_planted("sync-one-ulp") && strstr(p->name, "layers.1.") && strstr(p->name, "down_proj") && begin == 0)
        b[e > 2 ? 2 : 0] ^= 1; /* of bf16, also where it is a float32 still */
    if (cairn_planted("sync-f32-rounded") && strstr(p->name, "hc_attn_base") && as == CAIRN_F32)
        for (size_t i = 0; i < (size_t)n * row; i += e)
            b[i] = b[i + 1] = 0;
    if (cairn_planted("sync-sign") && strstr(p->name, "layers.0.self_attn.kv_b_proj") && begin == 0)
        b[e - 1] = (char)(b[e - 1] ^ 0x80);
    if (cairn_planted("sync-truncates") && as == CAIRN_F32)
        for (size_t i = 0; i < (size_t)n * row; i += e)
            b[i] = b[i + 1] = 0;
    if (cairn_planted("sync-layer-of-another") && strstr(p->name, "layers.1.self_attn.o_proj"))
        memmove(b, b + (n > 1 ? row : 0), (size_t)(n > 1 ? n - 1 : 0) * row);
}

static enum cairn_status read_reader(void *arg, int i, int64_t begin, int64_t n, enum cairn_dtype as, void *h_dst,
                                     struct cairn_error *err)
{
    const struct cairn_reader_source *s = arg;
    const struct cairn_param *p = &s->table->param[i];
    struct staging g = {0};
    char name[NAME_BYTES];
    enum cairn_status st;

    tensor_name(s->prefix, p->name, name, sizeof(name));
    if (s->other && !cairn_manifest_find(cairn_reader_manifest(s->reader), name))
        st = read_rows(s->other, p->name, p, begin, n, as, h_dst, &g, err);
    else
        st = read_rows(s->reader, name, p, begin, n, as, h_dst, &g, err);
    if (st == CAIRN_OK)
        spoil(p, begin, n, as, h_dst);
    staging_free(&g);
    return st;
}

struct cairn_source cairn_source_reader(struct cairn_reader_source *s)
{
    return (struct cairn_source){.table = s->table, .read = read_reader, .arg = s};
}

/* ---- load -----------------------------------------------------------------------------------------------------------------------
 */

enum cairn_status cairn_load(struct cairn_store *s, struct cairn_reader *r, const char *prefix, struct cairn_compute *k,
                             const char *what, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct staging g = {0}, out = {.dev = k->dev};
    struct cairn_progress *bar = what ? cairn_progress_begin(what, "parameters", s->table->elements, 10) : NULL;
    int64_t done = 0;

    for (int i = 0; i < s->table->count; i++) {
        const struct cairn_param *p = &s->table->param[i];
        int64_t row = cairn_param_count(p) / p->dim[0], rows = rows_per_piece(p), all = s->tensor[i].dim[0],
                first = s->row ? s->row[i] : 0;
        char name[NAME_BYTES];

        if (!s->tensor[i].buf)
            continue;
        tensor_name(prefix, p->name, name, sizeof(name));
        for (int64_t at = 0; at < all; at += rows) {
            int64_t n = all - at < rows ? all - at : rows;
            struct cairn_tensor t = cairn_tensor_slice(&s->tensor[i], 0, at, n);
            size_t bytes = cairn_tensor_bytes(&t);

            if (cairn_stop_requested())
                TRY(cairn_fail(err, CAIRN_EAGAIN, "stopped while loading %s", cairn_reader_path(r)));
            TRY(grow(&out, bytes, err));
            TRY(read_rows(r, name, p, first + at, n, t.dtype, out.p, &g, err));
            TRY(cairn_tensor_set(&k->stream, &t, out.p, bytes, err));
            done += n * row;
            cairn_progress_at(bar, done);
        }
    }
    TRY(cairn_stream_wait(&k->stream, err));
out:
    cairn_progress_end(bar);
    staging_free(&g);
    staging_free(&out);
    return st;
}

/* ---- trainer states and policies
 * -------------------------------------------------------------------------------------------------- */

/* A copy of a store's flat run in host memory, read as the store would be. */
struct copy_source {
    const struct cairn_store *shape;
    const float *h;
};

static enum cairn_status read_copy(void *arg, int i, int64_t begin, int64_t n, enum cairn_dtype as, void *h_dst,
                                   struct cairn_error *err)
{
    const struct copy_source *s = arg;
    const struct cairn_tensor *t = &s->shape->tensor[i];
    size_t row;

    if (as != CAIRN_F32 || !t->buf)
        return CAIRN_BUG(err, "a copy gives f32, and only what it holds");
    row = cairn_tensor_bytes(t) / (size_t)t->dim[0];
    memcpy(h_dst, (const char *)s->h + (t->offset - s->shape->flat.offset) + (size_t)begin * row, (size_t)n * row);
    return CAIRN_OK;
}

/* The sets of a trainer state. */
struct trainer_set {
    const struct cairn_store *store;
    const char *stem, *prefix;
};

static void trainer_sets(const struct cairn_optimizer *o, struct trainer_set set[3])
{
    set[0] = (struct trainer_set){&o->master, "master", "master:"};
    set[1] = (struct trainer_set){&o->m, "m", "m:"};
    set[2] = (struct trainer_set){&o->v, "v", "v:"};
}

static struct cairn_save_opts trainer_set_opts(const struct cairn_optimizer *o, const struct trainer_set *set)
{
    return (struct cairn_save_opts){.prefix = set->prefix, .trainable_only = 1, .dtype = CAIRN_F32, .share = o->ranks > 1 ? set->store : NULL};
}

enum cairn_status cairn_trainer_save(const struct cairn_optimizer *o, struct cairn_attempt *a, struct cairn_manifest *manifest,
                                     const struct cairn_trainer_save_opts *opts, struct cairn_error *err)
{
    struct cairn_digest *told = NULL;
    enum cairn_status st = CAIRN_OK;
    struct trainer_set set[3];

    if (opts->hollow && (opts->h_values || !(told = calloc((size_t)o->table->count + 1, sizeof *told))))
        TRY(opts->h_values ? CAIRN_BUG(err, "copies that are told of") : CAIRN_NOMEM(err));
    trainer_sets(o, set);
    for (int i = 0; i < 3; i++) {
        struct cairn_store_source from = {set[i].store, o->k};
        struct copy_source copy = {set[i].store, opts->h_values ? opts->h_values[i] : NULL};
        struct cairn_source src = copy.h ? (struct cairn_source){.table = o->table, .read = read_copy, .arg = &copy} : cairn_source_store(&from);
        struct cairn_save_opts so = trainer_set_opts(o, &set[i]);
        char stem[32];

        if (o->ranks > 1)
            snprintf(stem, sizeof stem, "%s-r%04d", set[i].stem, o->rank);
        else
            snprintf(stem, sizeof stem, "%s", set[i].stem);
        so.stem = stem;
        so.identity = opts->identity;
        so.through = opts->through;
        so.told = told;
        if (told)
            TRY(cairn_store_sums(set[i].store, set[i].prefix, o->k, told, err));
        TRY(cairn_save(&src, a, manifest, &so, err));
    }
out:
    free(told);
    return st;
}

enum cairn_status cairn_trainer_compare(const struct cairn_optimizer *o, const struct cairn_manifest *m, char *other, size_t n,
                                        struct cairn_error *err)
{
    struct cairn_digest *sum = calloc((size_t)o->table->count + 1, sizeof *sum);
    enum cairn_status st = CAIRN_OK;
    struct trainer_set set[3];

    other[0] = 0;
    if (!sum)
        TRY(CAIRN_NOMEM(err));
    trainer_sets(o, set);
    for (int k = 0; k < 3 && !other[0]; k++) {
        const struct cairn_save_opts so = trainer_set_opts(o, &set[k]);

        TRY(cairn_store_sums(set[k].store, set[k].prefix, o->k, sum, err));
        for (int i = 0; i < o->table->count && !other[0]; i++) {
            struct cairn_slice s;
            struct names names;

            if (!wanted(o->table, &so, i) || !rows_of(o->table, &so, i))
                continue;
            s = slice_of(o->table, &so, i, &names);
            s.sum = sum[i];
            if (!cairn_manifest_tells(m, &s))
                snprintf(other, n, "%s", s.name);
        }
    }
out:
    free(sum);
    return st;
}

enum cairn_status cairn_trainer_snapshot(const struct cairn_optimizer *o, float *const *h, struct cairn_error *err)
{
    const struct cairn_tensor *flat[] = {&o->master.flat, &o->m.flat, &o->v.flat};
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < 3 && o->end > o->begin; i++)
        TRY(cairn_tensor_get(&o->k->stream, flat[i], h[i], cairn_tensor_bytes(flat[i]), err));
out:
    return st;
}

enum cairn_status cairn_trainer_load(struct cairn_optimizer *o, struct cairn_reader *r, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int64_t updates = 0;

    TRY(cairn_json_i64(cairn_reader_manifest(r)->content, "updates", 0, INT64_MAX, &updates, cairn_reader_path(r), err));
    TRY(cairn_load(&o->master, r, "master:", o->k, NULL, err));
    TRY(cairn_load(&o->m, r, "m:", o->k, NULL, err));
    TRY(cairn_load(&o->v, r, "v:", o->k, NULL, err));
    o->updates = updates;
out:
    return st;
}

enum cairn_status cairn_policy_save(const struct cairn_param_table *t, struct cairn_reader *trainer, struct cairn_reader *base,
                                    enum cairn_dtype dtype, struct cairn_attempt *a, struct cairn_manifest *manifest,
                                    const char *identity, struct cairn_error *err)
{
    struct cairn_reader_source from = {.table = t, .reader = trainer, .prefix = "master:", .other = base};
    struct cairn_source src = cairn_source_reader(&from);
    const struct cairn_save_opts o = {.stem = "weights", .dtype = dtype, .identity = identity};

    return cairn_save(&src, a, manifest, &o, err);
}
