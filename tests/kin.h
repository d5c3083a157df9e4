/* kin.h - a world of processes that are forked by the test itself, without a launcher: the wire is memory that they share.
 *
 *     static int body(struct cairn_world *w, void *arg) { ... w->all ... return 0; }
 *     kin_run(2, body, arg)          0: every process returned 0; else the first other status, or 128 + signal
 *
 * Collectives are copies between two barriers; exchange goes through a mailbox for each pair. A process that is gone is noticed by the
 * parent's wait, not by its kin: they give up after KIN_WAIT_S with CAIRN_EAGAIN, as of a lost peer.
 */
#ifndef CAIRN_TESTS_KIN_H
#define CAIRN_TESTS_KIN_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "world/board.h"
#include "world/group.h"
#include "world/wire.h"
#include "world/world.h"

#define KIN_MOST   4
#define KIN_ROOM   ((size_t)256 << 20) /* of a collective, touched as needed */
#define KIN_LETTER ((size_t)1 << 20)
#define KIN_WAIT_S 60.0

struct kin_box { /* from one rank to another: full = bytes of a letter, 0: empty */
    _Atomic size_t full;
    char letter[KIN_LETTER];
};

struct kin {
    atomic_int come[2], turn;
    struct kin_box box[KIN_MOST][KIN_MOST];
    char room[];
};

static struct kin *kin;
static int kin_rank, kin_size;

static enum cairn_status kin_barrier(void *comm, struct cairn_error *err)
{
    double end = cairn_now_s() + KIN_WAIT_S;
    int turn = atomic_load(&kin->turn);

    (void)comm;
    if (atomic_fetch_add(&kin->come[turn & 1], 1) == kin_size - 1) {
        atomic_store(&kin->come[turn & 1], 0);
        atomic_store(&kin->turn, turn + 1);
        return CAIRN_OK;
    }
    while (atomic_load(&kin->turn) == turn) {
        if (cairn_now_s() > end)
            return cairn_fail(err, CAIRN_EAGAIN, "a peer did not come");
        cairn_sleep_s(0.00001);
    }
    return CAIRN_OK;
}

static enum cairn_status kin_allgatherv(void *comm, const void *src, const size_t *n, void *dst, struct cairn_error *err)
{
    size_t at = 0, sum = 0;
    enum cairn_status st;

    for (int r = 0; r < kin_size; r++) {
        at = r == kin_rank ? sum : at;
        sum += n[r];
    }
    if (sum > KIN_ROOM)
        return CAIRN_BUG(err, "more than the kin's room");
    memcpy(kin->room + at, src, n[kin_rank]);
    TRY(kin_barrier(comm, err));
    memcpy(dst, kin->room, sum);
    TRY(kin_barrier(comm, err));
out:
    return st;
}

static enum cairn_status kin_allgather(void *comm, const void *src, size_t n, void *dst, struct cairn_error *err)
{
    const size_t each[KIN_MOST] = {n, n, n, n};

    return kin_allgatherv(comm, src, each, dst, err);
}

static enum cairn_status kin_bcast(void *comm, int root, void *p, size_t n, struct cairn_error *err)
{
    size_t each[KIN_MOST] = {0};

    each[root] = n;
    return kin_allgatherv(comm, p, each, p, err);
}

static enum cairn_status kin_exchange(void *comm, const struct cairn_wire_part *send, int sends,
                                      const struct cairn_wire_part *recv, int recvs, struct cairn_error *err)
{
    size_t sent[KIN_MOST] = {0}, got[KIN_MOST] = {0};
    double end = cairn_now_s() + KIN_WAIT_S;

    (void)comm;
    for (int left = 1; left;) {
        left = 0;
        for (int i = 0; i < sends; i++) {
            struct kin_box *b = &kin->box[kin_rank][send[i].peer];
            size_t n = send[i].n - sent[i] < KIN_LETTER ? send[i].n - sent[i] : KIN_LETTER;

            if (n && !atomic_load(&b->full)) {
                memcpy(b->letter, (char *)send[i].p + sent[i], n);
                sent[i] += n;
                atomic_store(&b->full, n);
            }
            left |= sent[i] < send[i].n;
        }
        for (int i = 0; i < recvs; i++) {
            struct kin_box *b = &kin->box[recv[i].peer][kin_rank];
            size_t n = got[i] < recv[i].n ? atomic_load(&b->full) : 0;

            if (n) {
                memcpy((char *)recv[i].p + got[i], b->letter, n);
                got[i] += n;
                atomic_store(&b->full, 0);
            }
            left |= got[i] < recv[i].n;
        }
        if (left && cairn_now_s() > end)
            return cairn_fail(err, CAIRN_EAGAIN, "a peer did not come");
        if (left)
            cairn_sleep_s(0.00001);
    }
    return CAIRN_OK;
}

static void kin_abort(int code)
{
    _exit(code);
}

static struct cairn_wire kin_wire = {.abi = CAIRN_WIRE_ABI,
                                     .name = "kin",
                                     .abort = kin_abort,
                                     .barrier = kin_barrier,
                                     .bcast = kin_bcast,
                                     .allgather = kin_allgather,
                                     .allgatherv = kin_allgatherv,
                                     .exchange = kin_exchange};

static inline int kin_child(int rank, int n, int (*body)(struct cairn_world *w, void *arg), void *arg)
{
    static int members[KIN_MOST] = {0, 1, 2, 3}, node_of[KIN_MOST], local_of[KIN_MOST] = {0, 1, 2, 3};
    struct cairn_world w = {.rank = rank, .size = n, .local_rank = rank, .local_size = n, .nodes = 1, .launcher = "kin", .wire_name = "kin",
                            .deadline_s = KIN_WAIT_S, .wire = &kin_wire, .node_of = node_of, .local_of = local_of};
    struct cairn_group g = {.world = &w, .name = "all", .rank = rank, .size = n, .members = members, .deadline_s = KIN_WAIT_S,
                            .comm = n > 1 ? &kin_wire : NULL};

    w.all = w.commit = w.node_group = &g;
    kin_rank = rank;
    kin_size = n;
    return body(&w, arg);
}

static inline int kin_run(int n, int (*body)(struct cairn_world *w, void *arg), void *arg)
{
    pid_t pid[KIN_MOST];
    int worst = 0, status;

    kin = mmap(NULL, sizeof *kin + KIN_ROOM, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (kin == MAP_FAILED)
        return 73;
    fflush(NULL);
    for (int r = 0; r < n; r++)
        if (!(pid[r] = fork())) {
            status = kin_child(r, n, body, arg);
            fflush(NULL);
            _exit(status);
        }
    for (int r = 0; r < n; r++) {
        waitpid(pid[r], &status, 0);
        status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        worst = worst ? worst : status;
    }
    munmap(kin, sizeof *kin + KIN_ROOM);
    return worst;
}

#endif
