/* handover.c - who is there, which path, where everything lies, the plan; and the calls of handover.h, which go to the path.
 *
 * All ranks tell what they are and what they hold or want; from then on each computes the same by itself. A place's memory is laid out
 * as a store of published weights is where it wants all of every tensor (so that one run copies it), else part behind part.
 */
#include "model/handover.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "model/handover_impl.h"

#define ALIGN 64

static const char *const names[] = {"auto", "file", "shm", "cuda-ipc", "nccl"};

const char *cairn_handover_path_name(enum cairn_handover_path p)
{
    return names[p];
}

int cairn_handover_path_parse(const char *name)
{
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (!strcmp(name, names[i]))
            return i;
    return -1;
}

/* ---- what travels ---------------------------------------------------------------------------------------------------------- */

struct by_offset {
    size_t offset;
    int param;
};

static int offset_order(const void *a, const void *b)
{
    const struct by_offset *x = a, *y = b;

    return (x->offset > y->offset) - (x->offset < y->offset);
}

static enum cairn_status tensors_make(struct cairn_handover *h, struct cairn_digest *digest, struct cairn_error *err)
{
    const struct cairn_param_table *t = h->o.table;
    struct by_offset *order = malloc(((size_t)t->count + 1) * sizeof *order);
    struct cairn_hasher *sum = cairn_hasher_create();
    enum cairn_status st = CAIRN_OK;

    h->param = calloc((size_t)t->count + 1, sizeof *h->param);
    h->tensor = calloc((size_t)t->count + 1, sizeof *h->tensor);
    if (!order || !sum || !h->param || !h->tensor)
        TRY(CAIRN_NOMEM(err));
    for (int i = 0; i < t->count; i++)
        if (!t->param[i].frozen)
            order[h->tensors++] = (struct by_offset){t->param[i].offset, i};
    qsort(order, (size_t)h->tensors, sizeof *order, offset_order);
    for (int j = 0; j < h->tensors; j++) {
        const struct cairn_param *p = &t->param[order[j].param];
        struct cairn_transit_tensor *x = &h->tensor[j];

        *x = (struct cairn_transit_tensor){.name = p->name, .dtype = h->o.dtype, .ndim = p->ndim, .of = -1};
        memcpy(x->dim, p->dim, sizeof p->dim);
        h->param[j] = order[j].param;
        cairn_hasher_add(sum, p->name, strlen(p->name) + 1);
        cairn_hasher_add(sum, x->dim, sizeof x->dim);
        cairn_hasher_add(sum, &x->dtype, sizeof x->dtype);
    }
    *digest = cairn_hasher_result(sum);
out:
    free(order);
    cairn_hasher_destroy(sum);
    return st;
}

/* The same of published weights that are not there yet, as cairn_weights_create lays them out. */
static int weight_parts(const struct cairn_handover *h, struct cairn_transit_part *part)
{
    size_t size = cairn_dtype_size(h->o.compute->act);

    for (int j = 0; j < h->tensors; j++) {
        part[j] = (struct cairn_transit_part){.tensor = j, .at = h->o.table->param[h->param[j]].offset / 4 * size, .dtype = h->o.compute->act};
        memcpy(part[j].local, h->tensor[j].dim, sizeof part[j].local);
    }
    return h->tensors;
}

/* What a store has of each tensor; n parts. */
enum cairn_status cairn_hand_store_parts(const struct cairn_handover *h, const struct cairn_store *s, struct cairn_transit_part *part, int *n,
                                         struct cairn_error *err)
{
    *n = s ? 0 : weight_parts(h, part);
    for (int j = 0; s && j < h->tensors; j++) {
        const struct cairn_tensor *t = &s->tensor[h->param[j]];
        struct cairn_transit_part *p = &part[*n];

        if (!t->buf)
            continue;
        if (t->buf != s->buf || !cairn_tensor_dense(t))
            return CAIRN_BUG(err, "a store whose tensors lie elsewhere, or with gaps");
        *p = (struct cairn_transit_part){.tensor = j, .at = t->offset, .dtype = t->dtype};
        for (int d = 0; d < t->ndim; d++)
            p->local[d] = t->dim[d];
        p->offset[0] = s->row ? s->row[h->param[j]] : 0;
        ++*n;
    }
    return CAIRN_OK;
}

/* ---- everybody tells --------------------------------------------------------------------------------------------------------- */

struct told {
    struct cairn_transit_part *held, *wanted; /* of all ranks, rank by rank; owner: the rank */
    int helds, wanteds;
};

static enum cairn_status gather_parts(struct cairn_handover *h, struct cairn_transit_part *own, int n, int held, struct cairn_transit_part **all,
                                      int *total, struct cairn_error *err)
{
    size_t *bytes = calloc((size_t)h->ranks, sizeof *bytes), sum = 0;
    enum cairn_status st = CAIRN_OK;

    if (!bytes)
        return CAIRN_NOMEM(err);
    for (int i = 0; i < n; i++)
        own[i].owner = h->group->rank;
    for (int r = 0; r < h->ranks; r++) {
        bytes[r] = (size_t)(held ? h->side[r].held : h->side[r].wanted) * sizeof *own;
        sum += bytes[r];
    }
    *total = (int)(sum / sizeof *own);
    if (!(*all = malloc(sum + 1)))
        TRY(CAIRN_NOMEM(err));
    TRY(cairn_group_allgatherv(h->group, "handover: parts", own, bytes, *all, err));
out:
    free(bytes);
    return st;
}

static int in_host_memory(const struct cairn_device *dev)
{
    return !strcmp(dev->name, "cpu") || !strcmp(dev->name, "guard");
}

static enum cairn_status tell(struct cairn_handover *h, struct told *t, struct cairn_error *err)
{
    struct cairn_hand_side own = {.trainer = h->trainer,
                                  .sampler = h->sampler,
                                  .node = h->group->world->node,
                                  .host = in_host_memory(h->o.compute->dev),
                                  .holder = -1,
                                  .place = -1};
    struct cairn_transit_part *held = NULL, *wanted = NULL;
    int n_held = 0, n_wanted = 0;
    enum cairn_status st = tensors_make(h, &own.tables, err);

    held = malloc(((size_t)h->tensors + 1) * sizeof *held);
    wanted = malloc(((size_t)h->tensors + 1) * sizeof *wanted);
    if (st == CAIRN_OK && (!held || !wanted))
        st = CAIRN_NOMEM(err);
    for (int j = 0; st == CAIRN_OK && j < h->o.table->count; j++)
        if (h->o.table->param[j].keep_f32 && !h->o.table->param[j].frozen && (h->o.dtype != CAIRN_F32 || h->o.compute->act != CAIRN_F32))
            st = cairn_fail(err, CAIRN_EDEVICE, "%s is trained and stays f32 beside weights of %s; such policies go through files",
                            h->o.table->param[j].name, cairn_dtype_name(h->o.dtype != CAIRN_F32 ? h->o.dtype : h->o.compute->act));
    if (st == CAIRN_OK && h->trainer)
        st = cairn_hand_store_parts(h, h->o.give, held, &n_held, err);
    if (st == CAIRN_OK && h->sampler)
        st = cairn_hand_store_parts(h, h->o.take, wanted, &n_wanted, err);
    TRY(cairn_group_agree(h->group, "handover: tables", st, err));
    own.held = n_held;
    own.wanted = n_wanted;
    own.give_dtype = n_held ? (int32_t)held[0].dtype : -1;
    TRY(cairn_group_allgather(h->group, "handover: who is there", &own, sizeof own, h->side, err));
    for (int r = 1; r < h->ranks; r++)
        if (!cairn_digest_equal(h->side[r].tables, h->side[0].tables))
            TRY(cairn_fail(err, CAIRN_EDATA, "ranks %d and %d hand over different tensors: their models or adapters differ", h->group->members[0],
                           h->group->members[r]));
    TRY(gather_parts(h, held, n_held, 1, &t->held, &t->helds, err));
    TRY(gather_parts(h, wanted, n_wanted, 0, &t->wanted, &t->wanteds, err));
out:
    free(held);
    free(wanted);
    return st;
}

/* ---- path ---------------------------------------------------------------------------------------------------------------------- */

static enum cairn_status choose(struct cairn_handover *h, struct cairn_error *err)
{
    int nodes = 1, hosts = 0, trainers = 0, samplers = 0;

    for (int r = 0; r < h->ranks; r++) {
        nodes = h->side[r].node != h->side[0].node ? 2 : nodes;
        hosts += h->side[r].host;
        trainers += h->side[r].trainer;
        samplers += h->side[r].sampler;
    }
    if (!trainers || !samplers)
        return CAIRN_BUG(err, "a handover without a trainer or without a sampler");
    h->path = h->o.path;
    if (h->path == CAIRN_HANDOVER_AUTO) {
        h->path = nodes > 1 ? (hosts ? CAIRN_HANDOVER_FILE : CAIRN_HANDOVER_NCCL)
                  : hosts   ? CAIRN_HANDOVER_SHM
                            : CAIRN_HANDOVER_IPC;
        h->why = nodes > 1 ? (hosts ? "ranks in host memory of several nodes" : "GPUs of several nodes")
                 : hosts   ? "ranks in host memory of one node"
                           : "GPUs of one node";
    }
    if (h->path == CAIRN_HANDOVER_SHM && nodes > 1)
        return cairn_fail(err, CAIRN_EDEVICE, "sync.path shm: trainer and sampler are on different nodes; take auto, file or nccl");
    if (h->path == CAIRN_HANDOVER_IPC && (nodes > 1 || hosts))
        return cairn_fail(err, CAIRN_EDEVICE, "sync.path cuda-ipc: %s; take auto, file or %s",
                          hosts ? "some ranks compute on the CPU" : "trainer and sampler are on different nodes", hosts ? "shm" : "nccl");
    if (h->path == CAIRN_HANDOVER_NCCL && hosts && !h->o.transport)
        return cairn_fail(err, CAIRN_EDEVICE, "sync.path nccl: some ranks compute on the CPU; take auto, file or shm");
    return CAIRN_OK;
}

/* ---- places ---------------------------------------------------------------------------------------------------------------------- */

const struct cairn_transit_part *cairn_hand_part(const struct cairn_handover *h, int place, int tensor)
{
    const struct cairn_transit_part *p = &h->place_part[(size_t)place * (size_t)h->tensors + (size_t)tensor];

    return p->owner < 0 ? NULL : p;
}

/* Numbers: holders are the trainer's ranks in order; on shm a place is a node, else each sampler's rank is one. */
static enum cairn_status number(struct cairn_handover *h, struct cairn_error *err)
{
    int holders = 0;

    if (!(h->place_rank = calloc((size_t)h->ranks + 1, sizeof *h->place_rank)))
        return CAIRN_NOMEM(err);
    for (int r = 0; r < h->ranks; r++) {
        struct cairn_hand_side *s = &h->side[r];

        if (s->trainer)
            s->holder = holders++;
        if (!s->sampler)
            continue;
        for (int q = 0; q < r && h->path == CAIRN_HANDOVER_SHM && s->place < 0; q++)
            if (h->side[q].sampler && h->side[q].node == s->node)
                s->place = h->side[q].place;
        if (s->place < 0) {
            h->place_rank[h->places] = r;
            s->place = h->places++;
        }
    }
    return CAIRN_OK;
}

static void widen(struct cairn_transit_part *p, const struct cairn_transit_part *q, int ndim)
{
    for (int d = 0; d < ndim; d++) {
        int64_t a = p->offset[d] < q->offset[d] ? p->offset[d] : q->offset[d], e = p->offset[d] + p->local[d], f = q->offset[d] + q->local[d];

        p->offset[d] = a;
        p->local[d] = (e > f ? e : f) - a;
    }
}

/* Where the parts of a place lie. */
static size_t lay_out(struct cairn_handover *h, int place)
{
    size_t size = cairn_dtype_size(h->o.dtype), at = 0;
    int whole = 1;

    for (int j = 0; j < h->tensors; j++) {
        const struct cairn_transit_part *p = cairn_hand_part(h, place, j);

        for (int d = 0; d < h->tensor[j].ndim; d++)
            whole = whole && p && p->local[d] == h->tensor[j].dim[d];
    }
    for (int j = 0; j < h->tensors; j++) {
        struct cairn_transit_part *p = &h->place_part[(size_t)place * (size_t)h->tensors + (size_t)j];
        size_t bytes = size;

        if (p->owner < 0)
            continue;
        for (int d = 0; d < h->tensor[j].ndim; d++)
            bytes *= (size_t)p->local[d];
        p->at = whole ? (h->o.table->param[h->param[j]].offset - h->o.table->trainable_begin) / 4 * size : (at + ALIGN - 1) / ALIGN * ALIGN;
        at = p->at + bytes;
    }
    return (at + ALIGN - 1) / ALIGN * ALIGN;
}

static enum cairn_status places_make(struct cairn_handover *h, const struct told *t, struct cairn_error *err)
{
    size_t n;
    enum cairn_status st = number(h, err);

    if (st != CAIRN_OK)
        return st;
    n = (size_t)h->places * (size_t)h->tensors;
    h->place_part = calloc(n + 1, sizeof *h->place_part);
    h->place_bytes = calloc((size_t)h->places + 1, sizeof *h->place_bytes);
    if (!h->place_part || !h->place_bytes)
        return CAIRN_NOMEM(err);
    for (size_t i = 0; i < n; i++)
        h->place_part[i].owner = -1;
    for (int i = 0; i < t->wanteds; i++) {
        const struct cairn_transit_part *w = &t->wanted[i];
        int place = h->side[w->owner].place;
        struct cairn_transit_part *p = &h->place_part[(size_t)place * (size_t)h->tensors + (size_t)w->tensor];

        if (p->owner < 0) {
            *p = *w;
            p->owner = place;
            p->dtype = h->o.dtype;
        } else {
            widen(p, w, h->tensor[w->tensor].ndim);
        }
    }
    for (int i = 0; i < h->places; i++)
        h->place_bytes[i] = lay_out(h, i);
    return CAIRN_OK;
}

static enum cairn_status plan_make(struct cairn_handover *h, struct told *t, struct cairn_error *err)
{
    struct cairn_transit_part *wanted = malloc(((size_t)h->places * (size_t)h->tensors + 1) * sizeof *wanted);
    enum cairn_status st = CAIRN_OK;
    int n = 0;

    if (!wanted)
        return CAIRN_NOMEM(err);
    for (size_t i = 0; i < (size_t)h->places * (size_t)h->tensors; i++)
        if (h->place_part[i].owner >= 0)
            wanted[n++] = h->place_part[i];
    for (int i = 0; i < t->helds; i++)
        t->held[i].owner = h->side[t->held[i].owner].holder;
    TRY(cairn_transit_create(&h->plan, h->tensor, h->tensors, t->held, t->helds, wanted, n, h->o.chunk_bytes, err));
out:
    free(wanted);
    return st;
}

/* ---- open and close ---------------------------------------------------------------------------------------------------------------- */

static enum cairn_status open_path(struct cairn_handover *h, struct told *t, struct cairn_error *err)
{
    enum cairn_status st = places_make(h, t, err);

    if (st == CAIRN_OK)
        st = plan_make(h, t, err);
    if (st == CAIRN_OK)
        st = cairn_hand_marks_open(h, err);
    TRY(cairn_group_agree(h->group, "handover: plan", st, err));
    TRY(h->path == CAIRN_HANDOVER_NCCL ? cairn_hand_wire_open(h, err) : cairn_hand_ring_open(h, err));
out:
    return st;
}

static void let_go(struct cairn_handover *h)
{
    cairn_hand_work_close(h);
    cairn_hand_marks_close(h);
    if (h->path == CAIRN_HANDOVER_NCCL)
        cairn_hand_wire_close(h);
    else
        cairn_hand_ring_close(h);
    cairn_transit_free(&h->plan);
    free(h->place_part);
    free(h->place_bytes);
    free(h->place_rank);
}

enum cairn_status cairn_handover_open(struct cairn_handover **out, struct cairn_group *g, const struct cairn_handover_opts *o,
                                      struct cairn_error *err)
{
    struct cairn_handover *h = calloc(1, sizeof *h);
    struct told t = {0};
    enum cairn_status st = CAIRN_OK;

    if (!h || !(h->side = calloc((size_t)g->size, sizeof *h->side)))
        TRY(CAIRN_NOMEM(err));
    h->o = *o;
    h->group = g;
    h->ranks = g->size;
    h->pinned = -1;
    h->trainer = o->give || o->trainer;
    h->sampler = o->take || o->sampler;
    h->deadline_s = o->deadline_s > 0 ? o->deadline_s : g->deadline_s > 0 ? g->deadline_s : 1e9;
    st = tell(h, &t, err);
    if (st == CAIRN_OK)
        st = choose(h, err);
    if (st == CAIRN_OK && h->path != CAIRN_HANDOVER_FILE)
        st = open_path(h, &t, err);
    if (st != CAIRN_OK && o->path == CAIRN_HANDOVER_AUTO && (st == CAIRN_ENOSPACE || st == CAIRN_EDEVICE)) { /* agreed: all or none */
        if (g->rank == 0)
            cairn_warn("handover through files: %s", err ? err->text : cairn_status_name(st));
        let_go(h);
        h->plan = (struct cairn_transit){0};
        h->place_part = NULL;
        h->place_bytes = NULL;
        h->place_rank = NULL;
        h->path = CAIRN_HANDOVER_FILE;
        st = CAIRN_OK;
    }
    TRY(st);
    *out = h;
    h = NULL;
out:
    free(t.held);
    free(t.wanted);
    cairn_handover_close(h);
    return st;
}

/* Is what a store has what was told of it? */
static enum cairn_status bind_one(const struct cairn_handover *h, const struct cairn_store *s, struct cairn_error *err)
{
    struct cairn_transit_part *told = calloc((size_t)h->tensors + 1, sizeof *told), *has = calloc((size_t)h->tensors + 1, sizeof *has);
    enum cairn_status st = told && has ? CAIRN_OK : CAIRN_NOMEM(err);
    int n = 0;

    if (st == CAIRN_OK)
        st = cairn_hand_store_parts(h, s, has, &n, err);
    if (st == CAIRN_OK && (n != weight_parts(h, told) || memcmp(told, has, (size_t)n * sizeof *told)))
        st = CAIRN_BUG(err, "a store that is not laid out as published weights");
    free(told);
    free(has);
    return st;
}

enum cairn_status cairn_handover_bind(struct cairn_handover *h, struct cairn_store *give, struct cairn_store *take, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    if ((give && !h->trainer) || (take && !h->sampler))
        return CAIRN_BUG(err, "a store of a rank without the role");
    if (give)
        TRY(bind_one(h, give, err));
    if (take)
        TRY(bind_one(h, take, err));
    h->o.give = give ? give : h->o.give;
    h->o.take = take ? take : h->o.take;
out:
    return st;
}

void cairn_handover_close(struct cairn_handover *h)
{
    if (!h)
        return;
    if (h->own) /* switched in place */
        memcpy(h->o.take->tensor, h->own, (size_t)h->o.table->count * sizeof *h->own);
    free(h->own);
    free(h->serving);
    let_go(h);
    free(h->side);
    free(h->param);
    free(h->tensor);
    free(h);
}

enum cairn_handover_path cairn_handover_path(const struct cairn_handover *h)
{
    return h->path;
}

const struct cairn_transit *cairn_handover_plan(const struct cairn_handover *h)
{
    return h->path == CAIRN_HANDOVER_FILE ? NULL : &h->plan;
}

int cairn_handover_left(const struct cairn_handover *h)
{
    for (int i = 0; i < h->ends; i++)
        if (cairn_ring_left(h->end[i].ring))
            return 1;
    return 0;
}

uint64_t cairn_handover_generation(const struct cairn_handover *h)
{
    return h->read.ring ? cairn_ring_generation(h->read.ring) : h->generation;
}

enum cairn_status cairn_handover_give(struct cairn_handover *h, uint64_t generation, const struct cairn_ring_tag *tag, struct cairn_error *err)
{
    enum cairn_status st;

    if (!h->o.give || h->path == CAIRN_HANDOVER_FILE || generation <= h->generation)
        return CAIRN_BUG(err, "a rank gives that has nothing, a path of memory, or this generation already");
    st = h->path == CAIRN_HANDOVER_NCCL ? cairn_hand_wire_give(h, generation, tag, err) : cairn_hand_ring_give(h, generation, tag, err);
    if (st == CAIRN_OK)
        h->generation = generation;
    return st;
}

enum cairn_status cairn_handover_take(struct cairn_handover *h, uint64_t generation, uint64_t *got, struct cairn_ring_tag *tag,
                                      struct cairn_error *err)
{
    struct cairn_ring_tag unused;
    uint64_t g = 0;
    enum cairn_status st;

    if (!h->o.take || h->path == CAIRN_HANDOVER_FILE)
        return CAIRN_BUG(err, "a rank takes that is no sampler, or whose path is files");
    st = h->path == CAIRN_HANDOVER_NCCL ? cairn_hand_wire_take(h, generation, &g, tag ? tag : &unused, err)
                                        : cairn_hand_ring_take(h, generation, &g, tag ? tag : &unused, err);
    if (st == CAIRN_OK)
        h->generation = g;
    if (st == CAIRN_OK && got)
        *got = g;
    return st;
}
