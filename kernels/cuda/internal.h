/* internal.h - what the ops of the cuda back-end share on the host side: the device, streams with their scratch, and the bracket
 * around one call. The device side (loads, sums, faults) is in kernel.cuh.
 *
 * A call opens its tensors through call_arg (kernels/call.h says what is checked). An op of a .cu file:
 *
 *     extern "C" enum cairn_status cairn_swiglu_cuda(struct cairn_stream *s, const struct cairn_swiglu *args, struct cairn_error *err)
 *     {
 *         struct call c = call_begin("swiglu", s, err);
 *         int64_t N = -1, F = -1;
 *         struct arg a = call_arg(&c, "a", &args->a, STRIDED | T_ACT, 2, &N, &F), h = ...;
 *
 *         if (call_ok(&c) && N)
 *             ON_ACT(a.type, T, LAUNCH(&c, swiglu_rows<T>, grid, block, shared_bytes, (const T *)a.p, ...));
 *         return call_end(&c);                     closes every buffer, gives the first error
 *     }
 *
 * Types. The ops take f32 and bf16 activations alike, by the type of their tensors; all T_ACT tensors of one call have the same.
 * Which of the two the model uses is the device's act.
 *
 * What the host cannot see (indexes, positions, offsets in device memory) the kernels check on the way: they never touch memory
 * outside of a tensor, and leave a fault (kernel.cuh) that the next wait on a stream of the device returns as CAIRN_EBUG.
 *
 * Scratch. One block a stream; a call's use of it ends, in stream order, with the call. It grows by doubling; blocks that it
 * outgrew stay until the stream goes, since a captured graph may hold their addresses.
 *
 * Targets. Code of its own for sm_90a, and sm_80 PTX for the rest: what needs wgmma or TMA stands under
 * `#if __CUDA_ARCH_FEAT_SM90_ALL` beside a generic kernel, and the host chooses by cuda.sm. Libraries (cuBLASLt) are opened with
 * dlopen on first use: they are slow to map, and every program of the house opens this object to see whether there is a GPU.
 *
 * Numbers. Compiled with --fmad=false: a*b+c rounds twice; write fmaf where one rounding is meant. No float atomics; sums in
 * an order that the shapes alone fix: never a grid, an alignment, a number of multiprocessors or of rows.
 */
#ifndef CAIRN_KERNELS_CUDA_INTERNAL_H
#define CAIRN_KERNELS_CUDA_INTERNAL_H

#ifdef __cplusplus
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#else
#include <cuda_runtime_api.h>
#endif
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/call.h"

#pragma GCC visibility push(hidden)

/* What a kernel says about an input it cannot use; the sentences are in device.c. */
enum fault_what {
    FAULT_NONE,
    FAULT_INDEX,    /* a row number outside of its table */
    FAULT_EXPERT,   /* an expert id outside of E, or not ascending */
    FAULT_POSITION, /* a negative position, or one without a key row */
    FAULT_PAGE,     /* a page outside of the cache */
    FAULT_CHOICE,   /* idx: not ascending visible positions, or none */
    FAULT_OFFSETS,  /* group offsets that do not ascend from 0 to N */
    FAULT_TARGET,   /* a target or token outside of the vocabulary */
    FAULT_RUN,      /* rows of a sequence that are no run */
    FAULT_WHATS
};

/* In host memory that kernels write; 16 bytes in one store. `op` is an index into CAIRN_OPS' order (OP_<name>). */
struct fault {
    int32_t op, what;
    int64_t value;
};

#define CUDA_OP_NUMBER(op) OP_##op,
enum cuda_op { CAIRN_OPS(CUDA_OP_NUMBER) OP_COUNT };
#undef CUDA_OP_NUMBER

/* State that an op family keeps with the device: made on first use, freed with the device. */
enum cuda_slot { SLOT_MATMUL, SLOT_GROUPED, SLOT_HEAD, SLOT_INDEX, SLOT_ATTENTION, SLOT_SHIP, SLOT_COUNT };

struct cuda_foreign; /* share.c */

struct cuda {
    struct cairn_device dev;
    char name[16]; /* "cuda:0" */
    int ordinal;
    int threads;
    int sm;                /* 90 */
    int sms;               /* multiprocessors: for grids, never for an order of sums */
    int shared_max;        /* bytes of shared memory a block may have */
    int act;               /* enum cairn_dtype: bf16, or f32 */
    struct fault *h_fault; /* pinned and mapped */
    struct fault *d_fault; /* the same, as kernels see it */
    void *slot[SLOT_COUNT];
    void (*slot_free[SLOT_COUNT])(void *);
    char id[40];                  /* of the card, wherever it is seen from */
    char *keep;                   /* folder of keep.h; NULL: nothing is kept */
    struct cuda_foreign *foreign; /* list of memory that is mapped here and not the device's own */
};

struct cuda_stream {
    cudaStream_t s;
    void *scratch;
    size_t scratch_bytes;
    void *outgrown[64];
    int n_outgrown;
};

/* ---- one call ---------------------------------------------------------------------------------------------------- */

struct call {
    struct cairn_op_call c; /* kernels/call.h */
    struct cuda *cuda;
    struct cuda_stream *str;
    cudaStream_t stream;
};

struct call call_begin(const char *op, struct cairn_stream *s, struct cairn_error *err);
/* ndim letters (int64_t *) follow. */
struct arg call_arg(struct call *c, const char *name, const struct cairn_tensor *t, int what, int ndim, ...);
/* Notes CAIRN_EBUG "op: sentence" unless something is wrong already. */
void call_fail(struct call *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline int call_ok(const struct call *c)
{
    return c->c.st == CAIRN_OK;
}
enum cairn_status call_end(struct call *c);

/* `bytes` of scratch (256-byte aligned; carve it yourself: one block a call), NULL with the error noted. */
void *call_scratch(struct call *c, size_t bytes);
/* Notes what went wrong with a CUDA call, by name; clears the runtime's last error. */
void call_cuda(struct call *c, cudaError_t e, const char *what);

/* Bytes (16, 8, 4, 2 or 1) that every row of the tensor is a multiple of and aligned to: how wide loads may be. */
int arg_align(const struct arg *a);

static inline float *f32(const struct arg *a)
{
    return (float *)a->p;
}
static inline int32_t *i32(const struct arg *a)
{
    return (int32_t *)a->p;
}
static inline const uint8_t *u8(const struct arg *a)
{
    return (const uint8_t *)a->p;
}
static inline int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}
static inline int64_t ceil_div(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit;
}

/* What the numbers of this device depend on besides the inputs (cairn_backend.numerics). */
void cuda_numerics(const struct cuda *d, char *out, int n);
/* Status of a CUDA call outside of an op: CAIRN_EDEVICE with CUDA's sentence (CAIRN_ENOSPACE without memory). */
enum cairn_status cuda_status(cudaError_t e, const char *what, struct cairn_error *err);

/* ---- the table ----------------------------------------------------------------------------------------------------- */

#define CUDA_DECLARE(op)                                                                                                           \
    enum cairn_status cairn_##op##_cuda(struct cairn_stream *s, const struct cairn_##op *a, struct cairn_error *err);
CAIRN_OPS(CUDA_DECLARE)
#undef CUDA_DECLARE
int cairn_attention_heads_fits_cuda(const struct cairn_device *dev, enum cairn_dtype act, int nope, int rope, int v);

#pragma GCC visibility pop

#ifdef __cplusplus
}

/* Enqueues kernel<<<grid, block, shared>>>(arguments...) on the call's stream and notes a launch that failed. Dynamic shared
 * memory beyond 48 KiB needs cudaFuncSetAttribute before. Every launch goes through this: the emulated GPU of the tests brings
 * another. */
#ifndef LAUNCH
#define LAUNCH(c, kernel, grid, block, shared, ...)                                                                                \
    do {                                                                                                                           \
        if (call_ok(c)) {                                                                                                          \
            kernel<<<(grid), (block), (shared), (c)->stream>>>(__VA_ARGS__);                                                       \
            call_cuda((c), cudaGetLastError(), #kernel);                                                                           \
        }                                                                                                                          \
    } while (0)
#endif

/* The statement with T as float or __nv_bfloat16. */
#define ON_ACT(type, T, ...)                                                                                                       \
    do {                                                                                                                           \
        if ((type) == CAIRN_F32) {                                                                                                 \
            typedef float T;                                                                                                       \
            __VA_ARGS__;                                                                                                           \
        } else {                                                                                                                   \
            typedef __nv_bfloat16 T;                                                                                               \
            __VA_ARGS__;                                                                                                           \
        }                                                                                                                          \
    } while (0)
#endif

#endif
