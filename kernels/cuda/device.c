/* device.c - the cuda device of runtime/base/buffer.h: memory, streams, events, copies; and what a wait has to tell.
 *
 * Memory is cudaMalloc's. Streams do not wait for the default stream. Copies from and to pageable host memory: CUDA has read (or
 * written) the host side when the call returns; for pinned memory the call waits for it, as buffer.h promises.
 */
#include "device.h"

#include <stdlib.h>

enum cairn_status cuda_status(cudaError_t e, const char *what, struct cairn_error *err)
{
    if (e == cudaSuccess)
        return CAIRN_OK;
    cudaGetLastError();
    return cairn_fail(err, e == cudaErrorMemoryAllocation ? CAIRN_ENOSPACE : CAIRN_EDEVICE, "cuda: %s: %s", what,
                      cudaGetErrorString(e));
}

static enum cairn_status mine(struct cairn_device *dev, struct cairn_error *err)
{
    const struct cuda *d = dev->state;

    return cuda_status(cudaSetDevice(d->ordinal), "cudaSetDevice", err);
}

static enum cairn_status block_alloc(struct cairn_device *dev, size_t bytes, void **impl, struct cairn_error *err)
{
    enum cairn_status st = mine(dev, err);
    size_t free_bytes = 0, total = 0;
    cudaError_t e;

    if (st != CAIRN_OK)
        return st;
    e = cudaMalloc(impl, bytes);
    if (e != cudaErrorMemoryAllocation)
        return cuda_status(e, "cudaMalloc", err);
    cudaGetLastError();
    cudaMemGetInfo(&free_bytes, &total);
    return cairn_fail(err, CAIRN_ENOSPACE, "%s: out of memory for a buffer of %.3f GiB: %.3f of %.3f GiB are free", dev->name,
                      (double)bytes * 0x1p-30, (double)free_bytes * 0x1p-30, (double)total * 0x1p-30);
}

static enum cairn_status memory(struct cairn_device *dev, size_t *left, size_t *total, struct cairn_error *err)
{
    enum cairn_status st = mine(dev, err);

    return st == CAIRN_OK ? cuda_status(cudaMemGetInfo(left, total), "cudaMemGetInfo", err) : st;
}

static void block_release(struct cairn_device *dev, void *impl, size_t bytes)
{
    (void)bytes;
    if (mine(dev, NULL) == CAIRN_OK && !cuda_share_release(dev->state, impl))
        cudaFree(impl);
}

static void *block_open(struct cairn_device *dev, void *impl, size_t bytes, int access)
{
    (void)dev;
    (void)bytes;
    (void)access;
    return impl;
}

static void block_close(struct cairn_device *dev, void *impl, size_t bytes)
{
    (void)dev;
    (void)impl;
    (void)bytes;
}

static enum cairn_status stream_create(struct cairn_device *dev, void **impl, struct cairn_error *err)
{
    enum cairn_status st = mine(dev, err);
    struct cuda_stream *s;

    if (st != CAIRN_OK)
        return st;
    s = calloc(1, sizeof *s);
    if (!s)
        return CAIRN_NOMEM(err);
    st = cuda_status(cudaStreamCreateWithFlags(&s->s, cudaStreamNonBlocking), "cudaStreamCreate", err);
    if (st != CAIRN_OK) {
        free(s);
        return st;
    }
    *impl = s;
    return CAIRN_OK;
}

static void stream_destroy(struct cairn_device *dev, void *impl)
{
    struct cuda_stream *s = impl;

    if (!s || mine(dev, NULL) != CAIRN_OK)
        return;
    cudaStreamSynchronize(s->s);
    cudaStreamDestroy(s->s);
    cudaFree(s->scratch);
    for (int i = 0; i < s->n_outgrown; i++)
        cudaFree(s->outgrown[i]);
    free(s);
}

/* A fault that a kernel left, as an error; forgotten by that. */
static enum cairn_status faults(struct cuda *d, struct cairn_error *err)
{
#define NAME(op) #op,
    static const char *const ops[] = {CAIRN_OPS(NAME)};
#undef NAME
    static const char *const what[] = {[FAULT_NONE] = "nothing",
                                       [FAULT_INDEX] = "an index is outside of its rows",
                                       [FAULT_EXPERT] = "an expert id is outside of the experts, or not ascending",
                                       [FAULT_POSITION] = "a position is negative or has no key row",
                                       [FAULT_PAGE] = "a page is outside of the cache",
                                       [FAULT_CHOICE] = "idx does not hold ascending positions that its row sees",
                                       [FAULT_OFFSETS] = "offsets do not ascend from 0 to the number of rows",
                                       [FAULT_TARGET] = "a token is outside of the vocabulary",
                                       [FAULT_RUN] = "the rows of a sequence are no run; row"};
    struct fault f = *(volatile struct fault *)d->h_fault;

    if (f.what == FAULT_NONE)
        return CAIRN_OK;
    *(volatile struct fault *)d->h_fault = (struct fault){0};
    if (f.op < 0 || f.op >= OP_COUNT || f.what < 0 || f.what >= FAULT_WHATS)
        return cairn_fail(err, CAIRN_EBUG, "%s: a kernel left fault %d of op %d", d->dev.name, f.what, f.op);
    return cairn_fail(err, CAIRN_EBUG, "%s: %s: %lld", ops[f.op], what[f.what], (long long)f.value);
}

static enum cairn_status stream_wait(struct cairn_device *dev, void *impl, struct cairn_error *err)
{
    struct cuda_stream *s = impl;
    enum cairn_status st = mine(dev, err);

    if (st == CAIRN_OK)
        st = cuda_status(cudaStreamSynchronize(s->s), "waiting for a stream", err);
    return st == CAIRN_OK ? faults(dev->state, err) : st;
}

static void *stream_native(struct cairn_device *dev, void *impl)
{
    mine(dev, NULL);
    return ((struct cuda_stream *)impl)->s;
}

static int stream_idle(struct cairn_device *dev, void *impl)
{
    return mine(dev, NULL) != CAIRN_OK || cudaStreamQuery(((struct cuda_stream *)impl)->s) != cudaErrorNotReady;
}

static enum cairn_status event_make(struct cairn_device *dev, unsigned flags, void **impl, struct cairn_error *err)
{
    enum cairn_status st = mine(dev, err);
    cudaEvent_t e;

    if (st == CAIRN_OK)
        st = cuda_status(cudaEventCreateWithFlags(&e, flags), "cudaEventCreate", err);
    if (st == CAIRN_OK)
        *impl = e;
    return st;
}

static enum cairn_status event_create(struct cairn_device *dev, void **impl, struct cairn_error *err)
{
    return event_make(dev, cudaEventDisableTiming, impl, err);
}

static enum cairn_status event_create_timed(struct cairn_device *dev, void **impl, struct cairn_error *err)
{
    return event_make(dev, 0, impl, err);
}

static enum cairn_status event_ms(struct cairn_device *dev, void *a, void *b, double *ms, struct cairn_error *err)
{
    enum cairn_status st = mine(dev, err);
    float f = 0;

    if (st == CAIRN_OK)
        st = cuda_status(cudaEventElapsedTime(&f, a, b), "cudaEventElapsedTime", err);
    *ms = f;
    return st;
}

static void event_destroy(struct cairn_device *dev, void *impl)
{
    if (mine(dev, NULL) == CAIRN_OK)
        cudaEventDestroy(impl);
}

static enum cairn_status event_record(struct cairn_device *dev, void *event, void *stream, struct cairn_error *err)
{
    enum cairn_status st = mine(dev, err);

    return st == CAIRN_OK ? cuda_status(cudaEventRecord(event, ((struct cuda_stream *)stream)->s), "cudaEventRecord", err) : st;
}

static enum cairn_status event_wait(struct cairn_device *dev, void *event, void *stream, struct cairn_error *err)
{
    enum cairn_status st = mine(dev, err);

    return st == CAIRN_OK
               ? cuda_status(cudaStreamWaitEvent(((struct cuda_stream *)stream)->s, event, 0), "cudaStreamWaitEvent", err)
               : st;
}

/* host: the side whose memory the caller may use again; NULL for copies inside the device. */
static enum cairn_status copy(struct cairn_device *dev, void *stream, void *dst, const void *src, size_t bytes,
                              enum cudaMemcpyKind kind, const void *host, struct cairn_error *err)
{
    struct cuda_stream *s = stream;
    enum cairn_status st = mine(dev, err);
    struct cudaPointerAttributes at;

    if (st != CAIRN_OK || !bytes)
        return st;
    st = cuda_status(cudaMemcpyAsync(dst, src, bytes, kind, s->s), "copying", err);
    if (st != CAIRN_OK || !host)
        return st;
    st = cuda_status(cudaPointerGetAttributes(&at, host), "looking at a host pointer", err);
    if (st == CAIRN_OK && at.type != cudaMemoryTypeUnregistered)
        st = cuda_status(cudaStreamSynchronize(s->s), "waiting for a copy", err);
    return st;
}

static enum cairn_status copy_in(struct cairn_device *dev, void *stream, void *d_dst, const void *h_src, size_t bytes,
                                 struct cairn_error *err)
{
    return copy(dev, stream, d_dst, h_src, bytes, cudaMemcpyHostToDevice, h_src, err);
}

static enum cairn_status copy_out(struct cairn_device *dev, void *stream, void *h_dst, const void *d_src, size_t bytes,
                                  struct cairn_error *err)
{
    return copy(dev, stream, h_dst, d_src, bytes, cudaMemcpyDeviceToHost, h_dst, err);
}

static enum cairn_status copy_within(struct cairn_device *dev, void *stream, void *d_dst, const void *d_src, size_t bytes,
                                     struct cairn_error *err)
{
    return copy(dev, stream, d_dst, d_src, bytes, cudaMemcpyDefault, NULL, err); /* either may be a peer's, or pinned host memory */
}

static enum cairn_status fill(struct cairn_device *dev, void *stream, void *d_dst, int byte, size_t bytes, struct cairn_error *err)
{
    enum cairn_status st = mine(dev, err);

    if (st != CAIRN_OK || !bytes)
        return st;
    return cuda_status(cudaMemsetAsync(d_dst, byte, bytes, ((struct cuda_stream *)stream)->s), "filling", err);
}

/* ---- graphs --------------------------------------------------------------------------------------------------------- */

static enum cairn_status capture_begin(struct cairn_device *dev, void *impl, struct cairn_error *err)
{
    struct cuda_stream *s = impl;
    enum cairn_status st = mine(dev, err);

    /* Only this thread is held to what a capture allows. */
    return st == CAIRN_OK ? cuda_status(cudaStreamBeginCapture(s->s, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture", err)
                          : st;
}

static enum cairn_status capture_end(struct cairn_device *dev, void *impl, void **graph, struct cairn_error *err)
{
    struct cuda_stream *s = impl;
    enum cairn_status st = mine(dev, err);
    cudaGraph_t g = NULL;
    cudaGraphExec_t exec = NULL;

    if (st == CAIRN_OK)
        st = cuda_status(cudaStreamEndCapture(s->s, &g), "cudaStreamEndCapture", err);
    if (st == CAIRN_OK && graph)
        st = cuda_status(cudaGraphInstantiate(&exec, g, 0), "cudaGraphInstantiate", err);
    if (g)
        cudaGraphDestroy(g);
    if (st == CAIRN_OK && graph)
        *graph = exec;
    return st;
}

static enum cairn_status graph_launch(struct cairn_device *dev, void *graph, void *stream, struct cairn_error *err)
{
    enum cairn_status st = mine(dev, err);

    return st == CAIRN_OK ? cuda_status(cudaGraphLaunch(graph, ((struct cuda_stream *)stream)->s), "cudaGraphLaunch", err) : st;
}

static void graph_destroy(struct cairn_device *dev, void *graph)
{
    if (mine(dev, NULL) == CAIRN_OK)
        cudaGraphExecDestroy(graph);
}

const struct cairn_device_ops cuda_device_ops = {
    .memory = memory,
    .alloc = block_alloc,
    .release = block_release,
    .open = block_open,
    .close = block_close,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_wait = stream_wait,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copy = copy_within,
    .fill = fill,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
    .share = cuda_share_export,
    .attach = cuda_share_import,
    .pin = cuda_share_pin,
    .stream_native = stream_native,
    .stream_idle = stream_idle,
    .event_create_timed = event_create_timed,
    .event_ms = event_ms,
};
