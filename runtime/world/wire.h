/* wire.h - what a host transport must do: who am I, and bytes between ranks. Filled in by a shared object in build/lib
 * (cairn-mpi.so exports `struct cairn_wire cairn_wire`), which is the only code that includes the library's header.
 *
 * A wire moves bytes and never looks at them: no reductions, no datatypes. All calls of one process come from one
 * thread at a time (MPI_THREAD_SERIALIZED), except abort. Counts are bytes, of any size: a wire cuts what its library
 * cannot take at once (MPI 3 counts in int) into messages of max_message bytes, by a rule that both sides can know.
 * Errors are statuses: CAIRN_EBUG where ranks disagree about sizes, CAIRN_EAGAIN where a peer or the network failed
 * (run again: nothing of ours is wrong with the data). After a failure the wire is only good for abort.
 */
#ifndef CAIRN_WORLD_WIRE_H
#define CAIRN_WORLD_WIRE_H

#include <stddef.h>

#include "base/status.h"

#define CAIRN_WIRE_ABI 2
#define CAIRN_WIRE_SYMBOL "cairn_wire"

/* One side of an exchange: n bytes at p, to or from rank `peer` of the communicator. n = 0: no message. */
struct cairn_wire_part {
    int peer;
    void *p;
    size_t n;
};

struct cairn_wire {
    int abi;            /* CAIRN_WIRE_ABI */
    const char *name;   /* "mpi" */
    size_t max_message; /* bytes; may be set before start (tests make it small), at most 1 GiB */

    /* Collective over everybody whom the launcher started. *world is the first communicator, borrowed. */
    enum cairn_status (*start)(void **world, int *rank, int *size, struct cairn_error *err);
    enum cairn_status (*finish)(struct cairn_error *err); /* collective; nothing may be called after it */
    /* Ends all ranks with this exit code, from any thread, at any time. May hang or return: the caller _exits. */
    void (*abort)(int code);
    const char *(*library)(void); /* one line: name and version of the library, for fingerprints and doctor */

    /* Collective over comm. color < 0: not a member (*out = NULL). Ranks in order of (key, old rank). */
    enum cairn_status (*split)(void *comm, int color, int key, void **out, int *rank, int *size, struct cairn_error *err);
    void (*release)(void *comm); /* collective over its members */

    enum cairn_status (*barrier)(void *comm, struct cairn_error *err);
    enum cairn_status (*bcast)(void *comm, int root, void *p, size_t n, struct cairn_error *err);
    /* n bytes of each rank, in rank order, to all; src may lie at its own place in dst. */
    enum cairn_status (*allgather)(void *comm, const void *src, size_t n, void *dst, struct cairn_error *err);
    /* n[r] bytes of rank r, the same array on all ranks. */
    enum cairn_status (*allgatherv)(void *comm, const void *src, const size_t *n, void *dst, struct cairn_error *err);
    /* Point to point among the members: all sends and all receives of this rank, done when the call returns. At most
     * one part per peer and direction; a part sent must meet one of equal size at the peer, in a call of the same
     * collective step. Never to oneself. */
    enum cairn_status (*exchange)(void *comm, const struct cairn_wire_part *send, int sends, const struct cairn_wire_part *recv, int recvs,
                                  struct cairn_error *err);

    /* Notices (role.h), beside all others: post copies and does not wait; poll takes what is there, *from -1: nothing. */
    enum cairn_status (*post)(void *comm, int to, const void *p, size_t n, struct cairn_error *err);
    enum cairn_status (*poll)(void *comm, void *p, size_t n, int *from, struct cairn_error *err);
};

#endif
