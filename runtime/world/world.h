/* world.h - who am I, who else is there, and how a program with many ranks begins and ends.
 *
 *     struct cairn_world *w;
 *     TRY(cairn_world_open(&w, &(struct cairn_world_opts){.deadline_s = 600}, err));
 *     ... cairn_group_* on w->all ...
 *     st = cairn_group_agree(w->all, "rollout", st, err);      nobody leaves alone
 *     cairn_world_close(w)            when all come here, or        cairn_world_abort(w, st)    when this rank cannot agree
 *
 * Alone (no launcher) nothing is opened: rank 0 of 1, every collective is a copy, no MPI, no thread. Under mpirun or
 * srun build/lib/cairn-mpi.so is opened. A launcher that started several tasks which MPI cannot see (srun without
 * --mpi=pmix) is refused: each would think that it is alone and do all of the work.
 *
 * Order of communicators (MPI and NCCL want the same one on all ranks): all, commit, node here; then those of a
 * stage's layout, always tp, ep, cp, pp, dp (several programs in one world: before them those of the roles, role.h); then channels (channel.h) in the
 * same order. Whoever adds one, adds it to this list.
 *
 * One thread at a time calls anything of world.h, group.h and channel.h.
 */
#ifndef CAIRN_WORLD_WORLD_H
#define CAIRN_WORLD_WORLD_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct cairn_group;
struct cairn_channel;
struct cairn_wire;
struct cairn_watchdog;
struct cairn_board;

struct cairn_world_opts {
    double deadline_s;  /* longest wait in one operation (recipe: run.deadline); 0: 600; below 0: for ever */
    int alone;          /* 1: do not ask the launcher (a verb inside of a job, the question before srun) */
    size_t max_message; /* bytes per message; 0: the wire's (1 GiB). For tests of what is larger. */
};

struct cairn_world {
    int rank, size;
    int local_rank, local_size; /* among the ranks of this node */
    int node, nodes;            /* nodes are numbered in order of their lowest rank */
    char host[256];
    const char *launcher; /* "alone", "mpirun", "srun", "pmix" */
    const char *wire_name; /* "none", or "mpi: Open MPI v4.1.4": belongs into fingerprints and doctor's list */
    double deadline_s;

    struct cairn_group *all;    /* every rank */
    struct cairn_group *commit; /* the same ranks on a communicator of their own: votes about artefacts, nothing else */
    struct cairn_group *node_group; /* ranks that share this node's memory; group rank = local_rank */

    /* private */
    struct cairn_wire *wire; /* NULL: alone */
    void *comm;
    int *node_of, *local_of; /* [size] */
    struct cairn_watchdog *dog;
    struct cairn_board *board;
    struct cairn_channel *channels; /* open ones, newest first; of a role: its world's */
    struct cairn_world *whole;      /* of a role (role.h): the world it is a face of; else NULL */
    int board_slot;                 /* this rank's on the board */
};

/* Collective. opts NULL: defaults. The environment variable CAIRN_WORLD=alone is opts->alone. On failure the caller
 * leaves with the status and does not try to agree. */
enum cairn_status cairn_world_open(struct cairn_world **out, const struct cairn_world_opts *opts, struct cairn_error *err);
/* Collective; NULL is fine. Groups and channels of the caller must be gone. */
enum cairn_status cairn_world_close(struct cairn_world *w, struct cairn_error *err);
/* Ends this rank, and by that all others, with the code; for a failure that cannot be agreed upon. Does not return:
 * the one function (with the watchdog) that may end a process, because a rank that returns leaves the others hanging.
 * The caller has told the sentence. */
void cairn_world_abort(struct cairn_world *w, enum cairn_status code) __attribute__((noreturn));

/* 1: a launcher started this process (the wire would be opened). */
int cairn_world_launched(void);

/* A new group of those ranks of parent (NULL: all) that give the same color >= 0, in order of (key, rank). color < 0:
 * not a member, *out = NULL. Collective over parent. name (at most 23 bytes): for people. Its deadline is the parent's. */
enum cairn_status cairn_world_split(struct cairn_world *w, struct cairn_group *parent, int color, int key, const char *name,
                                    struct cairn_group **out, struct cairn_error *err);

/* Brackets any other wait of the host with a deadline (a hung disc, a stream): if end does not come in time, the
 * watchdog ends the process as for a collective. Brackets nest. deadline_s 0: the world's. */
enum cairn_status cairn_world_watch_begin(struct cairn_world *w, const char *what, double deadline_s, struct cairn_error *err);
void cairn_world_watch_end(struct cairn_world *w);

#endif
