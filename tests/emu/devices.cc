/* devices.cc - which GPUs there are in the emulation: CAIRN_EMU_GPUS of them (default 1), all alike but for their ids, of compute capability
 * CAIRN_EMU_SM (default 90: with wgmma; without TMA and clusters, absent.cc). As CUDA does,
 * CUDA_VISIBLE_DEVICES says which of them a process sees, and in which order: numbers up to the first that is none.
 */
#include "cuda_runtime.h"

#include <cstdio>
#include <cstdlib>

#define MOST 64

/* Numbers of the visible ones. */
static int visible(int number[MOST])
{
    const char *all = getenv("CAIRN_EMU_GPUS"), *list = getenv("CUDA_VISIBLE_DEVICES");
    int there = all ? atoi(all) : 1, n = 0;

    if (there > MOST)
        there = MOST;
    for (int i = 0; !list && i < there; i++)
        number[n++] = i;
    while (list && *list && n < MOST) {
        char *end;
        long i = strtol(list, &end, 10);

        if (end == list || i < 0 || i >= there || (*end && *end != ','))
            break;
        number[n++] = (int)i;
        list = *end ? end + 1 : end;
    }
    return n;
}

extern "C" {

int emu_sm(void)
{
    static int sm;
    const char *v = getenv("CAIRN_EMU_SM");

    if (!sm)
        sm = v ? atoi(v) : 90;
    return sm;
}
static long long wgmmas;
static void wgmmas_tell(void)
{
    fprintf(stderr, "emulated GPU: %lld wgmma\n", wgmmas);
}
void emu_wgmma_count(void)
{
    if (!wgmmas++ && getenv("CAIRN_EMU_WGMMA"))
        atexit(wgmmas_tell);
}
cudaError_t cudaGetDeviceCount(int *n)
{
    int number[MOST];

    *n = visible(number);
    return *n ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int ordinal)
{
    int number[MOST];

    return ordinal >= 0 && ordinal < visible(number) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int ordinal)
{
    int number[MOST];

    if (ordinal < 0 || ordinal >= visible(number))
        return cudaErrorInvalidValue;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated GPU");
    memcpy(p->uuid.bytes, "emulated, no. ", 14);
    p->uuid.bytes[15] = (char)number[ordinal];
    p->totalGlobalMem = (size_t)1 << 30;
    p->major = emu_sm() / 10;
    p->minor = emu_sm() % 10;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 0;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int)
{
    *v = a == cudaDevAttrComputeCapabilityMajor         ? emu_sm() / 10
         : a == cudaDevAttrComputeCapabilityMinor       ? emu_sm() % 10
         : a == cudaDevAttrMultiProcessorCount          ? 3
         : a == cudaDevAttrL2CacheSize                  ? 1 << 20
         : a == cudaDevAttrMaxSharedMemoryPerBlockOptin ? (emu_sm() == 80 ? 163 : 227) << 10
                                                        : 0;
    return cudaSuccess;
}
}
