/* cuda.c - the cuda back-end: opens a GPU, and the entry point through which kernels/backend.c finds it.
 *
 * A GPU is usable when its driver is there and the object holds code for it: machine code of its own, or PTX of an older kind
 * that the driver compiles. An op that needs more (sm_90a) says so by itself.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "product_choose.h"

/* Goes up, by one, in the commit that changes a bit of what any op gives for any input it took before, whichever kernel, type or card it
 * is, or makes the model take another op in a place: manifests carry it (numerics), and equal numerics are a promise of equal bits. New ops,
 * and inputs that were refused, do not count.
 * tests/emu/conformance.t holds digests of the ops on an emulated GPU against tests/emu/bits.pins and fails when they change without this
 * number; what the emulation lacks (TMA, cuBLASLt, the card's own exp) is for who changes it to know. */
#define OPS_VERSION 3

static int attribute(int ordinal, enum cudaDeviceAttr a)
{
    int v = 0;

    return cudaDeviceGetAttribute(&v, a, ordinal) == cudaSuccess ? v : 0;
}

static int devices(void)
{
    int count = 0;

    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return count;
}

static enum cairn_status info(int ordinal, struct cairn_device_info *out, struct cairn_error *err)
{
    struct cudaDeviceProp p;
    int driver = 0, runtime = 0;
    enum cairn_status st = CAIRN_OK;
    int n = 0;

    TRY(cuda_status(cudaGetDeviceProperties(&p, ordinal), "properties of a GPU", err));
    TRY(cuda_status(cudaDriverGetVersion(&driver), "version of the driver", err));
    TRY(cuda_status(cudaRuntimeGetVersion(&runtime), "version of the runtime", err));
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%.63s", p.name);
    for (size_t i = 0; i < sizeof p.uuid.bytes; i++)
        n += snprintf(out->id + n, sizeof out->id - (size_t)n, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                      (unsigned char)p.uuid.bytes[i]);
    snprintf(out->detail, sizeof out->detail, "%.1f GiB, compute capability %d.%d, driver for CUDA %d.%d, runtime %d.%d",
             (double)p.totalGlobalMem * 0x1p-30, p.major, p.minor, driver / 1000, driver % 1000 / 10, runtime / 1000,
             runtime % 1000 / 10);
out:
    return st;
}

static enum cairn_status cuda_open(int ordinal, const struct cairn_backend_opts *o, struct cairn_device **out,
                                   struct cairn_error *err)
{
    const char *act = o && o->act ? o->act : "bf16";
    enum cairn_status st = CAIRN_OK;
    struct cairn_device_info known;
    struct cuda *d = NULL;
    int count = 0;
    cudaError_t e = cudaGetDeviceCount(&count);

    if (e != cudaSuccess || count == 0) {
        cudaGetLastError();
        return cairn_fail(err, CAIRN_EDEVICE, "cuda: no GPU here: %s", e == cudaSuccess ? "none found" : cudaGetErrorString(e));
    }
    if (ordinal < 0 || ordinal >= count)
        return cairn_fail(err, CAIRN_EDEVICE, "cuda: there are %d GPUs, numbered from 0; asked for %d", count, ordinal);
    if (strcmp(act, "bf16") && strcmp(act, "f32"))
        return cairn_fail(err, CAIRN_EDEVICE, "cuda: activations are bf16 or f32; asked for %s", act);
    d = calloc(1, sizeof *d);
    if (!d)
        return CAIRN_NOMEM(err);
    d->ordinal = ordinal;
    d->threads = 1;
    d->act = strcmp(act, "f32") ? CAIRN_BF16 : CAIRN_F32;
    snprintf(d->name, sizeof d->name, "cuda:%d", ordinal);
    d->dev = (struct cairn_device){.name = d->name, .ops = &cuda_device_ops, .state = d};
    d->sm = attribute(ordinal, cudaDevAttrComputeCapabilityMajor) * 10 + attribute(ordinal, cudaDevAttrComputeCapabilityMinor);
    d->sms = attribute(ordinal, cudaDevAttrMultiProcessorCount);
    d->shared_max = attribute(ordinal, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    if (d->sm < 80)
        TRY(cairn_fail(err, CAIRN_EDEVICE, "%s: compute capability %d.%d, the kernels need 8.0 or newer", d->name, d->sm / 10,
                       d->sm % 10));
    TRY(info(ordinal, &known, err));
    snprintf(d->id, sizeof d->id, "%s", known.id);
    if (o && o->keep && !(d->keep = strdup(o->keep)))
        TRY(CAIRN_NOMEM(err));
    TRY(cuda_status(cudaSetDevice(ordinal), "cudaSetDevice", err));
    TRY(cuda_status(cudaHostAlloc((void **)&d->h_fault, sizeof *d->h_fault, cudaHostAllocMapped), "host memory for faults", err));
    memset(d->h_fault, 0, sizeof *d->h_fault);
    TRY(cuda_status(cudaHostGetDevicePointer((void **)&d->d_fault, d->h_fault, 0), "device address of faults", err));
    product_choose_begin(d);
    *out = &d->dev;
out:
    if (st != CAIRN_OK && d) {
        cudaFreeHost(d->h_fault);
        free(d->keep);
        free(d);
    }
    return st;
}

static void cuda_close(struct cairn_device *dev)
{
    struct cuda *d = dev ? dev->state : NULL;

    if (!d)
        return;
    cudaSetDevice(d->ordinal);
    cudaDeviceSynchronize();
    for (int i = 0; i < SLOT_COUNT; i++)
        if (d->slot_free[i])
            d->slot_free[i](d->slot[i]);
    cudaFreeHost(d->h_fault);
    free(d->keep);
    free(d);
}

void cuda_numerics(const struct cuda *d, char *out, int n)
{
    /* the toolkit's: exp, log, sincos and the compiler's choices are its own */
    snprintf(out, (size_t)n, "cuda %d.%d sm_%d %s ops%d", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, d->sm,
             d->act == CAIRN_F32 ? "f32" : "bf16", OPS_VERSION);
}

static void numerics(struct cairn_device *dev, char *out, int n)
{
    cuda_numerics(dev->state, out, n);
}

/* Host threads: the ops use none, so the number is only kept. */
static void set_threads(struct cairn_device *dev, int threads)
{
    ((struct cuda *)dev->state)->threads = threads < 1 ? 1 : threads;
}

static int get_threads(struct cairn_device *dev)
{
    return ((struct cuda *)dev->state)->threads;
}

#define OP(op) .op = cairn_##op##_cuda,
static const struct cairn_ops ops = {CAIRN_OPS(OP)};

static const struct cairn_backend backend = {
    .abi = CAIRN_BACKEND_ABI,
    .name = "cuda",
    .act = CAIRN_BF16,
    .devices = devices,
    .info = info,
    .open = cuda_open,
    .close = cuda_close,
    .ops = &ops,
    .attention_heads_fits = cairn_attention_heads_fits_cuda,
    .numerics = numerics,
    .set_threads = set_threads,
    .threads = get_threads,
};

__attribute__((visibility("default"))) const struct cairn_backend *cairn_backend_entry(void);

const struct cairn_backend *cairn_backend_entry(void)
{
    return &backend;
}
