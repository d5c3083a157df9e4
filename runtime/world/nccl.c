/* nccl.c - the transport for GPUs: NCCL, in a shared object of its own, which opens libnccl.so.2 when a channel is made.
 *
 * Communicators do not block (fault tolerance assumes that): a call that is not through yet is asked for until it is. settle waits for
 * the streams that were used and asks NCCL meanwhile for errors of the network or of peers; a dead peer of the same node is not told by
 * NCCL at all, so the world's watchdog holds the deadline and calls abort, from its own thread, for every channel there is. After abort
 * nothing of a channel may be called; the process leaves.
 *
 * Bytes only: no reduction of NCCL is used. Two ranks on one GPU are refused by NCCL. NVLink multicast (NVLS) is not asked for.
 */
#include <dlfcn.h>
#include <nccl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "world/group.h"
#include "world/transport.h"

#define LIBRARY "libnccl.so.2"
#define TICK_S  0.00002
#define EAGER_S 0.001

#define FUNCTIONS(X)                                                                                                               \
    X(ncclGetUniqueId)                                                                                                             \
    X(ncclCommInitRankConfig) X(ncclCommFinalize) X(ncclCommDestroy) X(ncclCommAbort) X(ncclCommGetAsyncError) X(ncclGetErrorString)   \
        X(ncclGetLastError) X(ncclBroadcast) X(ncclSend) X(ncclRecv) X(ncclGroupStart) X(ncclGroupEnd) X(ncclGetVersion)

static struct {
    void *object;
#define FIELD(f) __typeof__(f) *f;
    FUNCTIONS(FIELD)
#undef FIELD
} nccl;

struct state {
    struct cairn_group *g;
    struct cairn_device *dev;
    _Atomic(ncclComm_t) comm; /* NULL: aborted */
    struct cairn_stream *used[8]; /* since the last settle */
    int n_used;
};

static enum cairn_status load(struct cairn_error *err)
{
    if (nccl.object)
        return CAIRN_OK;
    if (!(nccl.object = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL)))
        return cairn_fail(err, CAIRN_EDEVICE, "NCCL cannot be opened: %s; install libnccl2, or hand over by files", dlerror());
#define FIND(f)                                                                                                                    \
    if (!(nccl.f = (__typeof__(f) *)dlsym(nccl.object, #f)))                                                                       \
        return cairn_fail(err, CAIRN_EDEVICE, "%s has no %s: a newer NCCL is needed", LIBRARY, #f);
    FUNCTIONS(FIND)
#undef FIND
    return CAIRN_OK;
}

static enum cairn_status failed(const struct state *s, ncclResult_t r, const char *what, struct cairn_error *err)
{
    ncclComm_t comm = atomic_load(&s->comm);
    const char *more = comm ? nccl.ncclGetLastError(comm) : "";
    enum cairn_status code = r == ncclInvalidArgument ? CAIRN_EBUG : r == ncclInvalidUsage ? CAIRN_EDEVICE : CAIRN_EAGAIN;

    return cairn_fail(err, code, "NCCL %s: %s%s%.200s%s", what, nccl.ncclGetErrorString(r), more && *more ? ": " : "", more ? more : "",
                      r == ncclInvalidUsage ? " (two ranks on one GPU?)" : "");
}

/* Until what was asked of the communicator is through. */
static enum cairn_status ready(struct state *s, ncclResult_t r, const char *what, struct cairn_error *err)
{
    const double eager = cairn_now_s() + EAGER_S;

    while (r == ncclInProgress || r == ncclSuccess) {
        ncclComm_t comm = atomic_load(&s->comm);
        ncclResult_t now = ncclInternalError;

        if (!comm)
            return cairn_fail(err, CAIRN_EAGAIN, "NCCL %s: broken off", what);
        r = nccl.ncclCommGetAsyncError(comm, &now);
        if (r == ncclSuccess && now == ncclSuccess)
            return CAIRN_OK;
        if (r == ncclSuccess)
            r = now;
        if (r == ncclInProgress && cairn_now_s() < eager)
            sched_yield(); /* enqueuing is through sooner than a sleep ends */
        else if (r == ncclInProgress)
            cairn_sleep_s(TICK_S);
    }
    return failed(s, r, what, err);
}

static int nccl_takes(const struct cairn_device *dev)
{
    return cairn_starts_with(dev->name, "cuda:");
}

static enum cairn_status nccl_open(struct cairn_group *g, struct cairn_device *dev, void **out, struct cairn_error *err)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    struct state *s = calloc(1, sizeof *s);
    struct cairn_stream stream = {0};
    ncclComm_t comm = NULL;
    ncclUniqueId id;
    enum cairn_status st = s ? load(err) : CAIRN_NOMEM(err);
    ncclResult_t r;

    memset(&id, 0, sizeof id);
    if (st == CAIRN_OK && g->rank == 0 && (r = nccl.ncclGetUniqueId(&id)) != ncclSuccess)
        st = failed(s, r, "unique id", err);
    TRY(cairn_group_agree(g, "NCCL", st, err));
    TRY(cairn_group_bcast(g, "NCCL: unique id", 0, &id, sizeof id, err));
    s->g = g;
    s->dev = dev;
    TRY(cairn_stream_create(dev, &stream, err)); /* makes the device the thread's */
    cairn_stream_native(&stream);
    config.blocking = 0;
    r = nccl.ncclCommInitRankConfig(&comm, g->size, id, g->rank, &config);
    atomic_store(&s->comm, comm);
    if (!comm)
        TRY(failed(s, r, "communicator", err));
    TRY(ready(s, r, "communicator", err));
    *out = s;
    s = NULL;
out:
    cairn_stream_destroy(&stream);
    if (s && atomic_load(&s->comm))
        nccl.ncclCommAbort(atomic_load(&s->comm));
    free(s);
    return st;
}

static enum cairn_status nccl_settle(void *state, struct cairn_error *err)
{
    struct state *s = state;
    enum cairn_status st = CAIRN_OK;

    for (int i = 0; i < s->n_used; i++)
        while (!cairn_stream_idle(s->used[i])) {
            TRY(ready(s, ncclSuccess, "communication", err));
            cairn_sleep_s(TICK_S);
        }
    for (int i = 0; i < s->n_used; i++)
        TRY(cairn_stream_wait(s->used[i], err));
    TRY(ready(s, ncclSuccess, "communication", err));
    s->n_used = 0;
out:
    return st;
}

static void nccl_close(void *state)
{
    struct state *s = state;
    ncclComm_t comm = atomic_load(&s->comm);

    if (comm && ready(s, nccl.ncclCommFinalize(comm), "end", NULL) == CAIRN_OK)
        nccl.ncclCommDestroy(comm);
    free(s);
}

/* The watchdog's thread, while the driving one may be in any call. */
static void nccl_abort(void *state)
{
    struct state *s = state;
    ncclComm_t comm = atomic_exchange(&s->comm, NULL);

    if (comm)
        nccl.ncclCommAbort(comm);
}

/* ---- moves -------------------------------------------------------------------------------------------------------------------- */

static void *address(const struct cairn_tensor *t, int access)
{
    return (char *)cairn_buffer_open(t->buf, access) + t->offset;
}

static enum cairn_status begin(struct state *s, struct cairn_stream *stream, cudaStream_t *native, struct cairn_error *err)
{
    int known = 0;

    if (!atomic_load(&s->comm))
        return cairn_fail(err, CAIRN_EAGAIN, "NCCL: broken off");
    *native = cairn_stream_native(stream);
    for (int i = 0; i < s->n_used; i++)
        known = known || s->used[i] == stream;
    if (!known && s->n_used == (int)(sizeof s->used / sizeof *s->used)) {
        enum cairn_status st = nccl_settle(s, err);

        if (st != CAIRN_OK)
            return st;
    }
    if (!known)
        s->used[s->n_used++] = stream;
    return CAIRN_OK;
}

/* The first that is no success; calls inside a group go on after one, since a group that was begun must be ended. */
static void note(ncclResult_t *first, ncclResult_t r)
{
    if (*first == ncclSuccess && r != ncclSuccess && r != ncclInProgress)
        *first = r;
}

/* Ends the group, whatever its calls said; first: what was wrong with one of them. */
static enum cairn_status group_end(struct state *s, ncclResult_t first, const char *what, struct cairn_error *err)
{
    ncclResult_t r = nccl.ncclGroupEnd();

    return first == ncclSuccess ? ready(s, r, what, err) : failed(s, first, what, err);
}

static enum cairn_status nccl_bcast(void *state, struct cairn_stream *stream, const char *what, int root, const struct cairn_tensor *t,
                                    struct cairn_error *err)
{
    struct state *s = state;
    enum cairn_status st = CAIRN_OK;
    cudaStream_t native;
    void *p;

    TRY(begin(s, stream, &native, err));
    p = address(t, CAIRN_READ | CAIRN_WRITE);
    cairn_buffer_close(t->buf);
    TRY(ready(s, nccl.ncclBroadcast(p, p, cairn_tensor_bytes(t), ncclUint8, root, s->comm, native), what, err));
out:
    return st;
}

static enum cairn_status nccl_allgatherv(void *state, struct cairn_stream *stream, const char *what, const struct cairn_tensor *dst,
                                         const struct cairn_tensor *src, const size_t *bytes, struct cairn_error *err)
{
    struct state *s = state;
    enum cairn_status st = CAIRN_OK;
    ncclResult_t bad = ncclSuccess;
    cudaStream_t native;
    char *from, *to;
    size_t at = 0;

    TRY(begin(s, stream, &native, err));
    from = address(src, CAIRN_READ);
    to = address(dst, CAIRN_READ | CAIRN_WRITE);
    cairn_buffer_close(src->buf);
    cairn_buffer_close(dst->buf);
    note(&bad, nccl.ncclGroupStart());
    for (int r = 0; r < s->g->size; at += bytes[r++])
        if (bytes[r] && bad == ncclSuccess)
            note(&bad, nccl.ncclBroadcast(r == s->g->rank ? from : to + at, to + at, bytes[r], ncclUint8, r, s->comm, native));
    TRY(group_end(s, bad, what, err));
out:
    return st;
}

static enum cairn_status nccl_alltoallv(void *state, struct cairn_stream *stream, const char *what, const struct cairn_tensor *dst,
                                        const size_t *recvs, const struct cairn_tensor *src, const size_t *sends, struct cairn_error *err)
{
    struct state *s = state;
    enum cairn_status st = CAIRN_OK;
    ncclResult_t bad = ncclSuccess;
    cudaStream_t native;
    char *from, *to;
    size_t sent = 0, got = 0;

    TRY(begin(s, stream, &native, err));
    from = address(src, CAIRN_READ);
    to = address(dst, CAIRN_READ | CAIRN_WRITE);
    cairn_buffer_close(src->buf);
    cairn_buffer_close(dst->buf);
    note(&bad, nccl.ncclGroupStart());
    for (int r = 0; r < s->g->size; sent += sends[r], got += recvs[r], r++) {
        if (sends[r] && bad == ncclSuccess)
            note(&bad, nccl.ncclSend(from + sent, sends[r], ncclUint8, r, s->comm, native));
        if (recvs[r] && bad == ncclSuccess)
            note(&bad, nccl.ncclRecv(to + got, recvs[r], ncclUint8, r, s->comm, native));
    }
    TRY(group_end(s, bad, what, err));
out:
    return st;
}

static enum cairn_status nccl_exchange(void *state, struct cairn_stream *stream, const char *what, int to, const struct cairn_tensor *src, int from,
                                       const struct cairn_tensor *dst, struct cairn_error *err)
{
    struct state *s = state;
    enum cairn_status st = CAIRN_OK;
    ncclResult_t bad = ncclSuccess;
    cudaStream_t native;
    void *p = NULL, *d = NULL;

    TRY(begin(s, stream, &native, err));
    if (src) {
        p = address(src, CAIRN_READ);
        cairn_buffer_close(src->buf);
    }
    if (dst) {
        d = address(dst, CAIRN_READ | CAIRN_WRITE);
        cairn_buffer_close(dst->buf);
    }
    note(&bad, nccl.ncclGroupStart());
    if (to >= 0 && bad == ncclSuccess)
        note(&bad, nccl.ncclSend(p, cairn_tensor_bytes(src), ncclUint8, to, s->comm, native));
    if (from >= 0 && bad == ncclSuccess)
        note(&bad, nccl.ncclRecv(d, cairn_tensor_bytes(dst), ncclUint8, from, s->comm, native));
    TRY(group_end(s, bad, what, err));
out:
    return st;
}

extern const struct cairn_transport cairn_transport;
const struct cairn_transport cairn_transport = {
    .abi = CAIRN_TRANSPORT_ABI,
    .name = "nccl",
    .takes = nccl_takes,
    .open = nccl_open,
    .close = nccl_close,
    .abort = nccl_abort,
    .settle = nccl_settle,
    .bcast = nccl_bcast,
    .allgatherv = nccl_allgatherv,
    .alltoallv = nccl_alltoallv,
    .exchange = nccl_exchange,
};
