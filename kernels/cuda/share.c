/* share.c - memory of the cuda device that several processes use, and host memory that it uses.
 *
 * Export and import are CUDA's inter-process handles (cudaMalloc's memory; of this GPU or of one that this one reaches as a peer).
 * Host memory of the caller is pinned and mapped; what the driver will not pin is CAIRN_EDEVICE. Everything foreign stands in a list of the
 * device, so that release knows how to let go of it. An import is mapped once for a process: CUDA counts, so does the list.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device.h"

struct cuda_foreign {
    struct cuda_foreign *next;
    void *p, *h_p; /* as kernels see it; h_p: the host's address, if it is host memory */
};

static enum cairn_status note(struct cuda *d, void *p, void *h_p, struct cairn_error *err)
{
    struct cuda_foreign *f = malloc(sizeof *f);

    if (!f)
        return CAIRN_NOMEM(err);
    *f = (struct cuda_foreign){d->foreign, p, h_p};
    d->foreign = f;
    return CAIRN_OK;
}

static int attribute(const struct cuda *d, enum cudaDeviceAttr a)
{
    int v = 0;

    return cudaDeviceGetAttribute(&v, a, d->ordinal) == cudaSuccess ? v : 0;
}

/* Which GPU of the machine: its place on the bus, whatever number it has here. */
static int32_t place_of(const struct cuda *d)
{
    return (int32_t)(attribute(d, cudaDevAttrPciDomainId) << 16 | attribute(d, cudaDevAttrPciBusId) << 8 | attribute(d, cudaDevAttrPciDeviceId));
}

static void let_go(const struct cuda_foreign *f)
{
    if (f->h_p)
        cudaHostUnregister(f->h_p);
    else
        cudaIpcCloseMemHandle(f->p);
    cudaGetLastError(); /* it may be gone with its owner */
}

enum cairn_status cuda_share_export(struct cairn_device *dev, void *impl, size_t bytes, struct cairn_share *out, struct cairn_error *err)
{
    const struct cuda *d = dev->state;
    enum cairn_status st = cuda_status(cudaSetDevice(d->ordinal), "cudaSetDevice", err);
    cudaIpcMemHandle_t h;

    _Static_assert(sizeof h <= sizeof out->name, "the name holds CUDA's handle");
    if (st == CAIRN_OK)
        st = cuda_status(cudaIpcGetMemHandle(&h, impl), "cudaIpcGetMemHandle", err);
    if (st != CAIRN_OK)
        return st;
    *out = (struct cairn_share){.bytes = bytes, .pid = (int32_t)getpid(), .kind = place_of(d)};
    memcpy(out->name, &h, sizeof h);
    return CAIRN_OK;
}

enum cairn_status cuda_share_import(struct cairn_device *dev, const struct cairn_share *s, void **impl, struct cairn_error *err)
{
    struct cuda *d = dev->state;
    enum cairn_status st = cuda_status(cudaSetDevice(d->ordinal), "cudaSetDevice", err);
    cudaIpcMemHandle_t h;
    void *p = NULL;

    if (st != CAIRN_OK)
        return st;
    memcpy(&h, s->name, sizeof h);
    TRY(cuda_status(cudaIpcOpenMemHandle(&p, h, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle", err));
    TRY(note(d, p, NULL, err));
    *impl = p;
    p = NULL;
out:
    if (p)
        cudaIpcCloseMemHandle(p);
    return st;
}

enum cairn_status cuda_share_pin(struct cairn_device *dev, void *h_p, size_t bytes, void **impl, struct cairn_error *err)
{
    struct cuda *d = dev->state;
    enum cairn_status st = cuda_status(cudaSetDevice(d->ordinal), "cudaSetDevice", err);
    void *p = NULL;
    int registered = 0;

    if (st != CAIRN_OK)
        return st;
    TRY(cuda_status(cudaHostRegister(h_p, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable), "cudaHostRegister", err));
    registered = 1;
    TRY(cuda_status(cudaHostGetDevicePointer(&p, h_p, 0), "device address of host memory", err));
    TRY(note(d, p, h_p, err));
    *impl = p;
    registered = 0;
out:
    if (registered)
        cudaHostUnregister(h_p);
    return st;
}

int cuda_share_release(struct cuda *d, void *impl)
{
    for (struct cuda_foreign **f = &d->foreign; *f; f = &(*f)->next)
        if ((*f)->p == impl) {
            struct cuda_foreign *gone = *f;

            *f = gone->next;
            let_go(gone);
            free(gone);
            return 1;
        }
    return 0;
}
