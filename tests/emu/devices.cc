/* devices.cc - which GPUs there are in the emulation: CAIRN_EMU_GPUS of them (default 1), all alike but for their ids. As CUDA does,
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
    p->major = 8;
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
    *v = a == cudaDevAttrComputeCapabilityMajor         ? 8
         : a == cudaDevAttrComputeCapabilityMinor       ? 0
         : a == cudaDevAttrMultiProcessorCount          ? 3
         : a == cudaDevAttrL2CacheSize                  ? 1 << 20
         : a == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 163 << 10
                                                        : 0;
    return cudaSuccess;
}
}
