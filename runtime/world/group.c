/* group.c - collectives of group.h over the wire of the world; copies where a group has one rank. */
#include "world/group.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/signals.h"
#include "world/board.h"
#include "world/private.h"
#include "world/watchdog.h"
#include "world/wire.h"

static enum cairn_status settle_all(struct cairn_world *w, const char *what, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (struct cairn_channel *c = cairn_world_whole(w)->channels; c && st == CAIRN_OK; c = c->next) {
        struct cairn_wait wait = {.op = "settle", .what = what, .deadline_s = c->group->deadline_s};

        if (!c->busy)
            continue;
        if (w->dog)
            cairn_watchdog_begin(w->dog, &wait);
        st = c->transport->settle(c->state, err);
        if (w->dog)
            cairn_watchdog_end(w->dog);
        if (st == CAIRN_OK)
            c->busy = 0;
    }
    return st;
}

static void wait_begin(struct cairn_group *g, const struct cairn_wait *wait)
{
    struct cairn_world *w = g->world;

    cairn_board_enter(w->board, w->board_slot, g->name, wait->seq, wait->op, wait->what);
    if (w->dog)
        cairn_watchdog_begin(w->dog, wait);
}

static enum cairn_status wait_end(struct cairn_group *g, const struct cairn_wait *wait, enum cairn_status st, struct cairn_error *err)
{
    struct cairn_world *w = g->world;

    if (w->dog)
        cairn_watchdog_end(w->dog);
    cairn_board_leave(w->board, w->board_slot);
    if (st != CAIRN_OK && err)
        cairn_error_prefix(err, "rank %d: %s #%llu of %s (%s)", w->rank, wait->op, (unsigned long long)wait->seq, g->name, wait->what);
    return st;
}

static struct cairn_wait collective(const struct cairn_group *g, const char *op, const char *what)
{
    return (struct cairn_wait){.op = op, .what = what, .group = g, .seq = g->seq, .deadline_s = g->deadline_s};
}

enum cairn_status cairn_op_begin(struct cairn_group *g, const char *op, const char *what, int device, struct cairn_error *err)
{
    struct cairn_wait wait;

    if (!device) {
        enum cairn_status st = settle_all(g->world, what, err);

        if (st != CAIRN_OK)
            return st;
    }
    g->seq++;
    wait = collective(g, op, what);
    wait_begin(g, &wait);
    return CAIRN_OK;
}

enum cairn_status cairn_op_end(struct cairn_group *g, const char *op, const char *what, enum cairn_status st, struct cairn_error *err)
{
    struct cairn_wait wait = collective(g, op, what);

    return wait_end(g, &wait, st, err);
}

/* The operation `call`, whose value is a status, between begin and end. */
#define OP(g, op, what, call)                                              \
    do {                                                                   \
        enum cairn_status st_ = cairn_op_begin((g), (op), (what), 0, err); \
        if (st_ != CAIRN_OK)                                               \
            return st_;                                                    \
        return cairn_op_end((g), (op), (what), (call), err);               \
    } while (0)

static void copy(void *dst, const void *src, size_t n)
{
    if (n && dst != src)
        memmove(dst, src, n);
}

void cairn_group_destroy(struct cairn_group *g)
{
    if (!g)
        return;
    if (g->comm && g->comm != g->world->comm)
        g->world->wire->release(g->comm);
    free(g->members);
    free(g);
}

enum cairn_status cairn_group_barrier(struct cairn_group *g, const char *what, struct cairn_error *err)
{
    OP(g, "barrier", what, g->comm ? g->world->wire->barrier(g->comm, err) : CAIRN_OK);
}

enum cairn_status cairn_group_bcast(struct cairn_group *g, const char *what, int root, void *p, size_t n, struct cairn_error *err)
{
    if (root < 0 || root >= g->size)
        return CAIRN_BUG(err, "broadcast from a rank that is not in the group");
    OP(g, "bcast", what, g->comm ? g->world->wire->bcast(g->comm, root, p, n, err) : CAIRN_OK);
}

static enum cairn_status allgather(struct cairn_group *g, const void *src, size_t n, void *dst, struct cairn_error *err)
{
    if (g->comm)
        return g->world->wire->allgather(g->comm, src, n, dst, err);
    copy(dst, src, n);
    return CAIRN_OK;
}

enum cairn_status cairn_group_allgather(struct cairn_group *g, const char *what, const void *src, size_t n, void *dst,
                                        struct cairn_error *err)
{
    OP(g, "allgather", what, allgather(g, src, n, dst, err));
}

static enum cairn_status allgatherv(struct cairn_group *g, const void *src, const size_t *n, void *dst, struct cairn_error *err)
{
    if (g->comm)
        return g->world->wire->allgatherv(g->comm, src, n, dst, err);
    copy(dst, src, n[0]);
    return CAIRN_OK;
}

enum cairn_status cairn_group_allgatherv(struct cairn_group *g, const char *what, const void *src, const size_t *n, void *dst,
                                         struct cairn_error *err)
{
    OP(g, "allgatherv", what, allgatherv(g, src, n, dst, err));
}

static enum cairn_status alltoallv(struct cairn_group *g, const void *src, const size_t *sends, void *dst, const size_t *recvs,
                                   struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_wire_part *send = NULL, *recv;
    size_t from = 0, to = 0;
    int ns = 0, nr = 0;

    if (sends[g->rank] != recvs[g->rank])
        return CAIRN_BUG(err, "alltoallv: a rank receives from itself another number of bytes than it sends");
    if (!(send = calloc(2 * (size_t)g->size, sizeof *send)))
        return CAIRN_NOMEM(err);
    recv = send + g->size;
    for (int r = 0; r < g->size; from += sends[r], to += recvs[r], r++) {
        char *s = (char *)(uintptr_t)src + from, *d = (char *)dst + to;

        if (r == g->rank) {
            copy(d, s, sends[r]);
            continue;
        }
        if (sends[r])
            send[ns++] = (struct cairn_wire_part){.peer = r, .p = s, .n = sends[r]};
        if (recvs[r])
            recv[nr++] = (struct cairn_wire_part){.peer = r, .p = d, .n = recvs[r]};
    }
    if (g->comm)
        st = g->world->wire->exchange(g->comm, send, ns, recv, nr, err);
    free(send);
    return st;
}

enum cairn_status cairn_group_alltoallv(struct cairn_group *g, const char *what, const void *src, const size_t *sends, void *dst,
                                        const size_t *recvs, struct cairn_error *err)
{
    OP(g, "alltoallv", what, alltoallv(g, src, sends, dst, recvs, err));
}

/* n[r] bytes of rank r to root, which knows them all; elsewhere only n[rank] is looked at. */
static enum cairn_status gatherv(struct cairn_group *g, int root, const void *src, const size_t *n, void *dst, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_wire_part *recv = NULL, send = {.peer = root, .p = (void *)(uintptr_t)src, .n = n[g->rank]};
    size_t at = 0;
    int nr = 0;

    if (g->rank != root)
        return g->world->wire->exchange(g->comm, &send, send.n > 0, NULL, 0, err);
    if (!(recv = calloc((size_t)g->size, sizeof *recv)))
        return CAIRN_NOMEM(err);
    for (int r = 0; r < g->size; at += n[r++]) {
        if (r == root)
            copy((char *)dst + at, src, n[r]);
        else if (n[r])
            recv[nr++] = (struct cairn_wire_part){.peer = r, .p = (char *)dst + at, .n = n[r]};
    }
    if (g->comm)
        st = g->world->wire->exchange(g->comm, NULL, 0, recv, nr, err);
    free(recv);
    return st;
}

static enum cairn_status gather(struct cairn_group *g, int root, const void *src, size_t n, void *dst, struct cairn_error *err)
{
    enum cairn_status st;
    size_t *each = malloc((size_t)g->size * sizeof *each);

    if (!each)
        return CAIRN_NOMEM(err);
    for (int r = 0; r < g->size; r++)
        each[r] = n;
    st = gatherv(g, root, src, each, dst, err);
    free(each);
    return st;
}

enum cairn_status cairn_group_gather(struct cairn_group *g, const char *what, int root, const void *src, size_t n, void *dst,
                                     struct cairn_error *err)
{
    if (root < 0 || root >= g->size)
        return CAIRN_BUG(err, "gather to a rank that is not in the group");
    OP(g, "gather", what, gather(g, root, src, n, dst, err));
}

static enum cairn_status collect(struct cairn_group *g, int root, const void *src, size_t n, char **bytes, size_t **offset,
                                 struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    size_t *size = malloc((size_t)g->size * sizeof *size), *at = NULL;
    char *all = NULL;

    if (!size)
        TRY(CAIRN_NOMEM(err));
    TRY(allgather(g, &n, sizeof n, size, err));
    if (g->rank == root) {
        if (!(at = malloc(((size_t)g->size + 1) * sizeof *at)))
            TRY(CAIRN_NOMEM(err));
        at[0] = 0;
        for (int r = 0; r < g->size; r++)
            if (!cairn_add_size(at[r], size[r], &at[r + 1]))
                TRY(CAIRN_BUG(err, "collect: sizes overflow"));
        if (!(all = malloc(at[g->size] ? at[g->size] : 1)))
            TRY(CAIRN_NOMEM(err));
    }
    TRY(gatherv(g, root, src, size, all, err));
    *bytes = all;
    *offset = at;
    all = NULL;
    at = NULL;
out:
    free(all);
    free(at);
    free(size);
    return st;
}

enum cairn_status cairn_group_collect(struct cairn_group *g, const char *what, int root, const void *src, size_t n, char **bytes,
                                      size_t **offset, struct cairn_error *err)
{
    if (root < 0 || root >= g->size)
        return CAIRN_BUG(err, "collect to a rank that is not in the group");
    OP(g, "collect", what, collect(g, root, src, n, bytes, offset, err));
}

static enum cairn_status exchange(struct cairn_group *g, int to, const void *src, size_t n, int from, void *dst, size_t m,
                                  struct cairn_error *err)
{
    struct cairn_wire_part send = {.peer = to, .p = (void *)(uintptr_t)src, .n = n}, recv = {.peer = from, .p = dst, .n = m};

    if (to < -1 || to >= g->size || from < -1 || from >= g->size || (to == g->rank) != (from == g->rank))
        return CAIRN_BUG(err, "exchange with a rank that is not in the group, or only half with itself");
    if (to == g->rank) {
        if (n != m)
            return CAIRN_BUG(err, "exchange: a rank receives from itself another number of bytes than it sends");
        copy(dst, src, n);
        return CAIRN_OK;
    }
    if (to < 0 && from < 0)
        return CAIRN_OK;
    return g->world->wire->exchange(g->comm, &send, to >= 0 && n, &recv, from >= 0 && m, err);
}

enum cairn_status cairn_group_exchange(struct cairn_group *g, const char *what, int to, const void *src, size_t n, int from, void *dst,
                                       size_t m, struct cairn_error *err)
{
    struct cairn_wait wait = {.op = "exchange", .what = what, .group = g, .exchange = 1, .to = to, .from = from, .deadline_s = g->deadline_s};
    enum cairn_status st = settle_all(g->world, what, err);

    if (st != CAIRN_OK)
        return st;
    wait.seq = ++g->exchanges;
    wait_begin(g, &wait);
    return wait_end(g, &wait, exchange(g, to, src, n, from, dst, m, err), err);
}

/* What each rank says in agree and any_stop. */
struct vote {
    uint64_t seq;
    int32_t value, pad;
};

/* *winner: lowest rank with the greatest value. All ranks see the same votes, so they fail alike. */
static enum cairn_status poll_all(struct cairn_group *g, int value, int *winner, int *max, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct vote own = {.seq = g->seq, .value = value}, *votes = malloc((size_t)g->size * sizeof *votes);

    if (!votes)
        TRY(CAIRN_NOMEM(err));
    TRY(allgather(g, &own, sizeof own, votes, err));
    *winner = 0;
    for (int r = 0; r < g->size; r++) {
        if (votes[r].seq != votes[0].seq)
            TRY(cairn_fail(err, CAIRN_EBUG, "rank %d is at operation #%llu, rank %d at #%llu", g->members[0],
                           (unsigned long long)votes[0].seq, g->members[r], (unsigned long long)votes[r].seq));
        if (votes[r].value > votes[*winner].value)
            *winner = r;
    }
    *max = votes[*winner].value;
out:
    free(votes);
    return st;
}

static enum cairn_status bring_sentence(struct cairn_group *g, int root, struct cairn_error *own, struct cairn_error *err)
{
    if (g->comm)
        return g->world->wire->bcast(g->comm, root, own, sizeof *own, err);
    return CAIRN_OK;
}

enum cairn_status cairn_group_agree(struct cairn_group *g, const char *what, enum cairn_status st, struct cairn_error *err)
{
    struct cairn_error said = {.code = st};
    enum cairn_status mine = st;
    int winner = 0, max = 0;

    if (st != CAIRN_OK && err)
        said = *err;
    else if (st != CAIRN_OK)
        cairn_fail(&said, st, "%s", cairn_status_name(st));
    if ((st = cairn_op_begin(g, "agree", what, 0, err)) != CAIRN_OK)
        return st;
    st = poll_all(g, (int)mine, &winner, &max, err);
    if (st == CAIRN_OK && max != CAIRN_OK)
        st = bring_sentence(g, winner, &said, err);
    st = cairn_op_end(g, "agree", what, st, err);
    if (st != CAIRN_OK || max == CAIRN_OK)
        return st;
    said.text[sizeof said.text - 1] = 0;
    if (g->size == 1)
        return cairn_fail(err, (enum cairn_status)max, "%s", said.text);
    return cairn_fail(err, (enum cairn_status)max, "rank %d: %s", g->members[winner], said.text);
}

enum cairn_status cairn_group_any_stop(struct cairn_group *g, const char *what, int *stop, struct cairn_error *err)
{
    enum cairn_status st = cairn_op_begin(g, "any_stop", what, 0, err);
    int winner, max = 0;

    if (st != CAIRN_OK)
        return st;
    st = cairn_op_end(g, "any_stop", what, poll_all(g, cairn_stop_requested(), &winner, &max, err), err);
    if (st != CAIRN_OK)
        return st;
    if (max)
        cairn_stop_request(max); /* keeps what this rank was asked first */
    *stop = max;
    return CAIRN_OK;
}
