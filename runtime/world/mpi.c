/* mpi.c - the wire over MPI: a shared object of its own, opened only under mpirun or srun, so that cairn starts on a
 * machine without MPI.
 *
 * MPI_THREAD_SERIALIZED: one thread at a time calls MPI; the exception is abort, which the watchdog calls as its last
 * act before _exit. All communicators return errors. MPI moves bytes; it adds nothing.
 *
 * Big transfers: bcast and allgather know their sizes on all ranks, so they cut or change the algorithm alike
 * everywhere; in exchange sender and receiver of a pair know its size, so both cut it into the same messages, and
 * MPI's order of messages between two ranks puts them together.
 */
#include "world/wire.h"

#include <limits.h>
#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern struct cairn_wire cairn_wire;

#define TAG 1
#define NOTICE 2
static MPI_Comm first = MPI_COMM_NULL; /* ours: a duplicate of MPI_COMM_WORLD */

static enum cairn_status failed(int rc, const char *what, struct cairn_error *err)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int class = MPI_ERR_UNKNOWN, n = 0;

    MPI_Error_class(rc, &class);
    MPI_Error_string(rc, text, &n);
    return cairn_fail(err, class == MPI_ERR_TRUNCATE || class == MPI_ERR_COUNT || class == MPI_ERR_ROOT ? CAIRN_EBUG : CAIRN_EAGAIN,
                      "MPI %s: %.300s", what, text);
}

#define MPI(call, what)                        \
    do {                                       \
        int rc_ = (call);                      \
        if (rc_ != MPI_SUCCESS)                \
            TRY(failed(rc_, (what), err));     \
    } while (0)

/* A communicator lives on the heap, because a handle need not fit in a pointer. */
static MPI_Comm of(void *comm)
{
    return *(MPI_Comm *)comm;
}

static size_t message(void)
{
    size_t m = cairn_wire.max_message;

    return m && m < (size_t)1 << 30 ? m : (size_t)1 << 30;
}

static enum cairn_status mpi_start(void **world, int *rank, int *size, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int provided, done = 0;

    MPI_Initialized(&done);
    if (done)
        return CAIRN_BUG(err, "MPI was initialised before");
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
        return cairn_fail(err, CAIRN_EDEVICE, "MPI_Init failed");
    if (provided < MPI_THREAD_SERIALIZED)
        return cairn_fail(err, CAIRN_EDEVICE, "this MPI library has no MPI_THREAD_SERIALIZED");
    MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "set_errhandler");
    MPI(MPI_Comm_dup(MPI_COMM_WORLD, &first), "dup");
    MPI(MPI_Comm_set_errhandler(first, MPI_ERRORS_RETURN), "set_errhandler");
    MPI(MPI_Comm_rank(first, rank), "rank");
    MPI(MPI_Comm_size(first, size), "size");
    *world = &first;
out:
    return st;
}

static enum cairn_status posted_clear(int wait, struct cairn_error *err);

static enum cairn_status mpi_finish(struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    TRY(posted_clear(1, err));
    MPI(MPI_Comm_free(&first), "free");
    MPI(MPI_Finalize(), "finalize");
out:
    return st;
}

static void mpi_abort(int code)
{
    int up = 0, down = 0;

    MPI_Initialized(&up);
    MPI_Finalized(&down);
    if (up && !down)
        MPI_Abort(MPI_COMM_WORLD, code);
}

static const char *mpi_library(void)
{
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int n;

    if (!text[0]) {
        MPI_Get_library_version(text, &n);
        text[strcspn(text, "\n,")] = 0; /* "Open MPI v4.1.4"; the rest tells who built it */
    }
    return text;
}

static enum cairn_status mpi_split(void *comm, int color, int key, void **out, int *rank, int *size, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    MPI_Comm *c = malloc(sizeof *c);

    if (!c)
        return CAIRN_NOMEM(err);
    MPI(MPI_Comm_split(of(comm), color < 0 ? MPI_UNDEFINED : color, key, c), "split");
    if (*c != MPI_COMM_NULL) {
        MPI(MPI_Comm_set_errhandler(*c, MPI_ERRORS_RETURN), "set_errhandler");
        MPI(MPI_Comm_rank(*c, rank), "rank");
        MPI(MPI_Comm_size(*c, size), "size");
        *out = c;
        c = NULL;
    } else {
        *out = NULL;
    }
out:
    free(c);
    return st;
}

static void mpi_release(void *comm)
{
    MPI_Comm_free(comm);
    free(comm);
}

static enum cairn_status mpi_barrier(void *comm, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    MPI(MPI_Barrier(of(comm)), "barrier");
out:
    return st;
}

static enum cairn_status mpi_bcast(void *comm, int root, void *p, size_t n, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (size_t at = 0, step; at < n; at += step) {
        step = n - at < message() ? n - at : message();
        MPI(MPI_Bcast((char *)p + at, (int)step, MPI_BYTE, root, of(comm)), "bcast");
    }
out:
    return st;
}

static enum cairn_status mpi_allgather(void *comm, const void *src, size_t n, void *dst, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int rank, size;
    char *own;

    MPI(MPI_Comm_rank(of(comm), &rank), "rank");
    MPI(MPI_Comm_size(of(comm), &size), "size");
    own = (char *)dst + (size_t)rank * n;
    if (n && own != src)
        memmove(own, src, n);
    if (n <= message()) {
        MPI(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, dst, (int)n, MPI_BYTE, of(comm)), "allgather");
        goto out;
    }
    for (int r = 0; r < size; r++)
        TRY(mpi_bcast(comm, r, (char *)dst + (size_t)r * n, n, err));
out:
    return st;
}

static enum cairn_status mpi_allgatherv(void *comm, const void *src, const size_t *n, void *dst, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int rank, size, *count = NULL, *at = NULL;
    size_t total = 0, own = 0;

    MPI(MPI_Comm_rank(of(comm), &rank), "rank");
    MPI(MPI_Comm_size(of(comm), &size), "size");
    for (int r = 0; r < size; r++) {
        if (r == rank)
            own = total;
        if (n[r] > SIZE_MAX - total)
            TRY(cairn_fail(err, CAIRN_EBUG, "allgatherv: sizes overflow"));
        total += n[r];
    }
    if (n[rank] && (char *)dst + own != src)
        memmove((char *)dst + own, src, n[rank]);
    if (total <= message()) {
        if (!(count = malloc(2 * (size_t)size * sizeof *count)))
            TRY(CAIRN_NOMEM(err));
        at = count + size;
        for (int r = 0, sum = 0; r < size; sum += count[r++]) {
            count[r] = (int)n[r];
            at[r] = sum;
        }
        MPI(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, dst, count, at, MPI_BYTE, of(comm)), "allgatherv");
        goto out;
    }
    for (int r = 0; r < size; dst = (char *)dst + n[r++])
        TRY(mpi_bcast(comm, r, dst, n[r], err));
out:
    free(count);
    return st;
}

static size_t messages(const struct cairn_wire_part *part, int n)
{
    size_t count = 0;

    for (int i = 0; i < n; i++)
        count += part[i].n / message() + (part[i].n % message() != 0);
    return count;
}

static enum cairn_status mpi_exchange(void *comm, const struct cairn_wire_part *send, int sends,
                                      const struct cairn_wire_part *recv, int recvs, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    size_t count = messages(send, sends) + messages(recv, recvs);
    MPI_Request *request = NULL;
    MPI_Status *status = NULL;
    int pending = 0, rc;

    if (!count)
        return CAIRN_OK;
    if (count > INT_MAX)
        return cairn_fail(err, CAIRN_EBUG, "exchange of %zu messages", count);
    request = malloc(count * sizeof *request);
    status = malloc(count * sizeof *status);
    if (!request || !status)
        TRY(CAIRN_NOMEM(err));
    /* Receives first: a message that finds its place needs no copy. */
    for (int i = 0; i < recvs; i++)
        for (size_t at = 0, step; at < recv[i].n; at += step, pending++) {
            step = recv[i].n - at < message() ? recv[i].n - at : message();
            MPI(MPI_Irecv((char *)recv[i].p + at, (int)step, MPI_BYTE, recv[i].peer, TAG, of(comm), &request[pending]), "irecv");
        }
    for (int i = 0; i < sends; i++)
        for (size_t at = 0, step; at < send[i].n; at += step, pending++) {
            step = send[i].n - at < message() ? send[i].n - at : message();
            MPI(MPI_Isend((const char *)send[i].p + at, (int)step, MPI_BYTE, send[i].peer, TAG, of(comm), &request[pending]), "isend");
        }
    rc = MPI_Waitall(pending, request, status);
    if (rc != MPI_SUCCESS) {
        for (int i = 0; i < pending && rc == MPI_ERR_IN_STATUS; i++)
            if (status[i].MPI_ERROR != MPI_SUCCESS && status[i].MPI_ERROR != MPI_ERR_PENDING)
                rc = status[i].MPI_ERROR;
        TRY(failed(rc, "exchange", err));
    }
    /* A message shorter than its place is no error to MPI. It is one to us. */
    for (int i = 0, k = 0; i < recvs; i++)
        for (size_t at = 0, step; at < recv[i].n; at += step, k++) {
            int got = -1;

            step = recv[i].n - at < message() ? recv[i].n - at : message();
            MPI(MPI_Get_count(&status[k], MPI_BYTE, &got), "get_count");
            if (got != (int)step)
                TRY(cairn_fail(err, CAIRN_EBUG, "rank %d of the group sent %d bytes where %zu were expected", recv[i].peer, got, step));
        }
out:
    free(request);
    free(status);
    return st;
}

/* --- notices: messages of a tag of their own on the first communicator --- */

/* Sent and not known to be taken. Its bytes follow. */
struct posted {
    struct posted *next;
    MPI_Request request;
    max_align_t bytes[];
};
static struct posted *posted;

/* Forgets those that have gone; wait: all of them. */
static enum cairn_status posted_clear(int wait, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;

    for (struct posted **p = &posted; *p;) {
        struct posted *q = *p;
        int done = 1;

        if (wait)
            MPI(MPI_Wait(&q->request, MPI_STATUS_IGNORE), "wait");
        else
            MPI(MPI_Test(&q->request, &done, MPI_STATUS_IGNORE), "test");
        if (done) {
            *p = q->next;
            free(q);
        } else {
            p = &q->next;
        }
    }
out:
    return st;
}

static enum cairn_status mpi_post(void *comm, int to, const void *p, size_t n, struct cairn_error *err)
{
    struct posted *q = malloc(sizeof *q + n);
    enum cairn_status st = CAIRN_OK;

    if (!q)
        TRY(CAIRN_NOMEM(err));
    TRY(posted_clear(0, err));
    memcpy(q->bytes, p, n);
    MPI(MPI_Isend(q->bytes, (int)n, MPI_BYTE, to, NOTICE, of(comm), &q->request), "isend");
    q->next = posted;
    posted = q;
    q = NULL;
out:
    free(q);
    return st;
}

static enum cairn_status mpi_poll(void *comm, void *p, size_t n, int *from, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    MPI_Status status;
    int there = 0, got = -1;

    *from = -1;
    MPI(MPI_Iprobe(MPI_ANY_SOURCE, NOTICE, of(comm), &there, &status), "iprobe");
    if (!there)
        goto out;
    MPI(MPI_Get_count(&status, MPI_BYTE, &got), "get_count");
    if ((size_t)got != n)
        TRY(cairn_fail(err, CAIRN_EBUG, "rank %d sent a notice of %d bytes, %zu were expected", status.MPI_SOURCE, got, n));
    MPI(MPI_Recv(p, (int)n, MPI_BYTE, status.MPI_SOURCE, NOTICE, of(comm), MPI_STATUS_IGNORE), "recv");
    *from = status.MPI_SOURCE;
out:
    return st;
}

struct cairn_wire cairn_wire = {
    .abi = CAIRN_WIRE_ABI,
    .name = "mpi",
    .max_message = (size_t)1 << 30,
    .start = mpi_start,
    .finish = mpi_finish,
    .abort = mpi_abort,
    .library = mpi_library,
    .split = mpi_split,
    .release = mpi_release,
    .barrier = mpi_barrier,
    .bcast = mpi_bcast,
    .allgather = mpi_allgather,
    .allgatherv = mpi_allgatherv,
    .exchange = mpi_exchange,
    .post = mpi_post,
    .poll = mpi_poll,
};
