/* buffer.h - memory that names its device, and work that names its stream.
 *
 * The one rule of the house: model, loss and optimiser code never dereferences tensor memory. It passes
 * struct cairn_tensor (a view of a buffer) to ops (kernels/kernels.h), to transports (runtime/world) and to
 * shard I/O (ckpt). Those, and only those, turn a buffer into a pointer, between cairn_buffer_open and
 * cairn_buffer_close:
 *
 *     p = cairn_buffer_open(buf, CAIRN_READ);   ... use p ...   cairn_buffer_close(buf);
 *
 * On the CPU device that is the host pointer; on an accelerator the device pointer, to be used by work
 * enqueued on a stream. On the guard device (tests) the memory is PROT_NONE outside of such brackets, so a
 * stray access dies at once. Brackets nest and are counted. Not thread-safe: brackets belong to the host
 * thread that drives the stream; an op may use its own threads inside of them.
 *
 * A device is a table of functions filled in by a back-end; this file knows no back-end.
 */
#ifndef CAIRN_BASE_BUFFER_H
#define CAIRN_BASE_BUFFER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum cairn_dtype { CAIRN_F32 = 0, CAIRN_BF16, CAIRN_F16, CAIRN_F64, CAIRN_I32, CAIRN_I64, CAIRN_U8, CAIRN_F8E4M3, CAIRN_DTYPES };

size_t cairn_dtype_size(enum cairn_dtype t);      /* bytes of one element */
const char *cairn_dtype_name(enum cairn_dtype t); /* "f32", "bf16", "f16", "f64", "i32", "i64", "u8", "f8e4m3" */
/* Inverse of cairn_dtype_name; -1 if unknown. */
int cairn_dtype_parse(const char *name);

enum cairn_access { CAIRN_READ = 1, CAIRN_WRITE = 2 }; /* CAIRN_READ|CAIRN_WRITE for both */

struct cairn_device;

/* What a buffer is called in another process: plain bytes, to be sent there. */
struct cairn_share {
    uint64_t bytes;
    int32_t pid; /* of the owner */
    int32_t kind; /* the back-end's; equal: memory of one device */
    unsigned char name[64];
};

/* What a back-end supplies. `impl` is the back-end's own word for one allocation, stream or event. */
struct cairn_device_ops {
    enum cairn_status (*alloc)(struct cairn_device *dev, size_t bytes, void **impl, struct cairn_error *err);
    void (*release)(struct cairn_device *dev, void *impl, size_t bytes);
    void *(*open)(struct cairn_device *dev, void *impl, size_t bytes, int access); /* never NULL for bytes > 0 */
    void (*close)(struct cairn_device *dev, void *impl, size_t bytes);
    enum cairn_status (*stream_create)(struct cairn_device *dev, void **impl, struct cairn_error *err);
    void (*stream_destroy)(struct cairn_device *dev, void *impl);
    enum cairn_status (*stream_wait)(struct cairn_device *dev, void *impl, struct cairn_error *err); /* host waits */
    enum cairn_status (*event_create)(struct cairn_device *dev, void **impl, struct cairn_error *err);
    void (*event_destroy)(struct cairn_device *dev, void *impl);
    enum cairn_status (*event_record)(struct cairn_device *dev, void *event, void *stream, struct cairn_error *err);
    enum cairn_status (*event_wait)(struct cairn_device *dev, void *event, void *stream, struct cairn_error *err);
    /* Pointers as open() gives them; ordered on the stream. The host side of a copy may be reused when the
     * call returns. */
    enum cairn_status (*copy_in)(struct cairn_device *dev, void *stream, void *d_dst, const void *h_src, size_t bytes,
                                 struct cairn_error *err);
    enum cairn_status (*copy_out)(struct cairn_device *dev, void *stream, void *h_dst, const void *d_src, size_t bytes,
                                  struct cairn_error *err);
    enum cairn_status (*copy)(struct cairn_device *dev, void *stream, void *d_dst, const void *d_src, size_t bytes,
                              struct cairn_error *err);
    enum cairn_status (*fill)(struct cairn_device *dev, void *stream, void *d_dst, int byte, size_t bytes,
                              struct cairn_error *err);
    /* Graphs, all four or none (NULL): work that is recorded once and enqueued again as one thing. Between capture_begin and
     * capture_end what is enqueued on the stream is recorded, not run; nothing may wait for the stream or allocate meanwhile.
     * capture_end leaves that state whatever happened; graph NULL: what was recorded is dropped. */
    enum cairn_status (*capture_begin)(struct cairn_device *dev, void *stream, struct cairn_error *err);
    enum cairn_status (*capture_end)(struct cairn_device *dev, void *stream, void **graph, struct cairn_error *err);
    enum cairn_status (*graph_launch)(struct cairn_device *dev, void *graph, void *stream, struct cairn_error *err);
    void (*graph_destroy)(struct cairn_device *dev, void *graph);
    /* Host memory of somebody else as an allocation, on devices whose memory is host memory; NULL: cannot. `freed` is called in its release. */
    enum cairn_status (*adopt)(struct cairn_device *dev, void *p, size_t bytes, void (*freed)(void *arg), void *arg, void **impl,
                               struct cairn_error *err);
    /* Memory that processes of a node share. share: a name for an allocation, valid while that lives; attach: what another process
     * named, release lets go of it. Both or none (NULL). pin: host memory of the caller's as the device reaches it, pinned where it copies. */
    enum cairn_status (*share)(struct cairn_device *dev, void *impl, size_t bytes, struct cairn_share *out, struct cairn_error *err);
    enum cairn_status (*attach)(struct cairn_device *dev, const struct cairn_share *s, void **impl, struct cairn_error *err);
    enum cairn_status (*pin)(struct cairn_device *dev, void *h_p, size_t bytes, void **impl, struct cairn_error *err);
    /* Bytes of the device's memory that are free, and all of them; NULL where nobody counts. */
    enum cairn_status (*memory)(struct cairn_device *dev, size_t *left, size_t *total, struct cairn_error *err);
    /* For device libraries of transports, NULL where streams run at once: what the vendor's libraries call the stream, with the device made
     * the calling thread's; 1 if all that was enqueued is done (or failed). */
    void *(*stream_native)(struct cairn_device *dev, void *impl);
    int (*stream_idle)(struct cairn_device *dev, void *impl);
    /* Events that keep the time, and how long after a, which is done, b was: for measurements. Both or none (NULL). */
    enum cairn_status (*event_create_timed)(struct cairn_device *dev, void **impl, struct cairn_error *err);
    enum cairn_status (*event_ms)(struct cairn_device *dev, void *a, void *b, double *ms, struct cairn_error *err);
};

struct cairn_device {
    const char *name; /* "cpu", "guard", "cuda:0" */
    const struct cairn_device_ops *ops;
    void *state; /* the back-end's */
};

struct cairn_stream {
    struct cairn_device *dev; /* borrowed */
    void *impl;
};

struct cairn_event {
    struct cairn_device *dev;
    void *impl;
};

struct cairn_graph { /* holds the addresses of its tensors: they must stay where they are */
    struct cairn_device *dev;
    void *impl;
};

struct cairn_buffer {
    struct cairn_device *dev; /* borrowed */
    void *impl;
    size_t bytes;
    int opened; /* nesting of open brackets */
};

/* A view: dense in the last dimension, `stride` elements from one index of dimension i to the next.
 * Plain data; copying it copies the view. */
#define CAIRN_MAX_DIMS 4
struct cairn_tensor {
    struct cairn_buffer *buf; /* borrowed; NULL: absent tensor */
    size_t offset;            /* bytes from the start of buf to element (0, 0, ...) */
    enum cairn_dtype dtype;
    int ndim;
    int64_t dim[CAIRN_MAX_DIMS];
    int64_t stride[CAIRN_MAX_DIMS]; /* in elements; the last one is 1 */
};

/* Both 0 where the device does not say (host memory belongs to all). */
enum cairn_status cairn_device_memory(struct cairn_device *dev, size_t *left, size_t *total, struct cairn_error *err);

enum cairn_status cairn_buffer_create(struct cairn_device *dev, size_t bytes, struct cairn_buffer **out, struct cairn_error *err);
/* A buffer over p (64-byte aligned), which stays the caller's until freed(arg) is called at the buffer's end; not called on failure. */
enum cairn_status cairn_buffer_adopt(struct cairn_device *dev, void *p, size_t bytes, void (*freed)(void *arg), void *arg,
                                     struct cairn_buffer **out, struct cairn_error *err);
int cairn_buffer_adopts(const struct cairn_device *dev); /* 0: cairn_buffer_adopt is a bug */
void cairn_buffer_destroy(struct cairn_buffer *buf);
/* Shared memory. The owner exports and keeps its buffer until nobody uses it any more; others import it by that name (any device of the
 * same back-end that reaches it). CAIRN_EDEVICE where device or system cannot. */
enum cairn_status cairn_buffer_export(struct cairn_buffer *buf, struct cairn_share *out, struct cairn_error *err);
enum cairn_status cairn_buffer_import(struct cairn_device *dev, const struct cairn_share *s, struct cairn_buffer **out, struct cairn_error *err);
/* Host memory that the caller keeps and shares with others (a mapping, page-aligned) as a buffer of any device: pinned and mapped where
 * the device has memory of its own, never guarded. */
enum cairn_status cairn_buffer_pin(struct cairn_device *dev, void *h_p, size_t bytes, struct cairn_buffer **out, struct cairn_error *err);
void *cairn_buffer_open(struct cairn_buffer *buf, int access); /* for ops, transports and shard I/O only */
void cairn_buffer_close(struct cairn_buffer *buf);

enum cairn_status cairn_stream_create(struct cairn_device *dev, struct cairn_stream *out, struct cairn_error *err);
void cairn_stream_destroy(struct cairn_stream *s);
enum cairn_status cairn_stream_wait(struct cairn_stream *s, struct cairn_error *err);
void *cairn_stream_native(struct cairn_stream *s); /* for transports only; NULL: the device has none */
int cairn_stream_idle(struct cairn_stream *s);
enum cairn_status cairn_event_create(struct cairn_device *dev, struct cairn_event *out, struct cairn_error *err);
void cairn_event_destroy(struct cairn_event *e);
int cairn_event_times(
    const struct cairn_device *dev); /* 1: it has events that keep the time; 0: work is done when it is enqueued */
enum cairn_status cairn_event_create_timed(struct cairn_device *dev, struct cairn_event *out, struct cairn_error *err);
enum cairn_status cairn_event_ms(const struct cairn_event *a, const struct cairn_event *b, double *ms,
                                 struct cairn_error *err); /* both are done */
enum cairn_status cairn_event_record(struct cairn_event *e, struct cairn_stream *s, struct cairn_error *err);
enum cairn_status cairn_event_wait(struct cairn_event *e, struct cairn_stream *s, struct cairn_error *err);

int cairn_graphs_there(const struct cairn_device *dev); /* 0: the device records nothing, the functions below are a bug */
enum cairn_status cairn_capture_begin(struct cairn_stream *s, struct cairn_error *err);
enum cairn_status cairn_capture_end(struct cairn_stream *s, struct cairn_graph *out /* NULL: dropped */, struct cairn_error *err);
enum cairn_status cairn_graph_launch(struct cairn_graph *g, struct cairn_stream *s, struct cairn_error *err);
void cairn_graph_destroy(struct cairn_graph *g); /* what of it is under way runs to its end */

/* Dense view of ndim dimensions at byte offset `offset` of buf. CAIRN_EBUG if it does not fit. */
enum cairn_status cairn_tensor_view(struct cairn_tensor *out, struct cairn_buffer *buf, size_t offset, enum cairn_dtype dtype,
                                    int ndim, const int64_t *dim, struct cairn_error *err);
int64_t cairn_tensor_count(const struct cairn_tensor *t); /* elements; 0 for an absent tensor */
size_t cairn_tensor_bytes(const struct cairn_tensor *t);  /* of a dense tensor */
int cairn_tensor_dense(const struct cairn_tensor *t);     /* 1: no gaps between rows */
/* Rows begin..begin+n of dimension 0 (or of any dimension `axis`). */
struct cairn_tensor cairn_tensor_slice(const struct cairn_tensor *t, int axis, int64_t begin, int64_t n);
/* Index i of dimension 0, which goes away. */
struct cairn_tensor cairn_tensor_at(const struct cairn_tensor *t, int64_t i);
/* Another shape for the same elements of a dense tensor (asserted). */
struct cairn_tensor cairn_tensor_reshape(const struct cairn_tensor *t, int ndim, const int64_t *dim);

/* Host <-> device, dense tensors only; n bytes must equal the tensor's. cairn_tensor_get waits for the stream. */
enum cairn_status cairn_tensor_set(struct cairn_stream *s, const struct cairn_tensor *t, const void *h_src, size_t bytes,
                                   struct cairn_error *err);
enum cairn_status cairn_tensor_get(struct cairn_stream *s, const struct cairn_tensor *t, void *h_dst, size_t bytes,
                                   struct cairn_error *err);
enum cairn_status cairn_tensor_zero(struct cairn_stream *s, const struct cairn_tensor *t, struct cairn_error *err);
/* Same device, same count and dtype, both dense. */
enum cairn_status cairn_tensor_copy(struct cairn_stream *s, const struct cairn_tensor *dst, const struct cairn_tensor *src,
                                    struct cairn_error *err);

#endif
