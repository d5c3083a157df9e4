/* async.cuh - copies of 16 bytes from global into shared memory that go on by themselves (sm_80 on). The emulated GPU of the tests
 * has its own.
 *
 * A copy is whole or nothing. The instruction can also take a part of the 16 bytes and fill up with zeros, but a source of fewer
 * bytes then ends inside of what is read as one piece (compute-sanitizer tells of it): who has only a part of a piece brings it by
 * ordinary loads and stores, which are visible at the same barrier.
 */
#ifndef CAIRN_KERNELS_CUDA_ASYNC_CUH
#define CAIRN_KERNELS_CUDA_ASYNC_CUH

#include <stdint.h>

#include "internal.h"

#ifdef CAIRN_EMULATED
#include "emu_async.h"
#else

__device__ static inline uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes, both sides aligned to that. there = 0: 16 zeros; p is not read. */
__device__ static inline void copy16(uint32_t to, const void *p, int there)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(p)), "r"(there ? 16 : 0)
                 : "memory");
}
__device__ static inline void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Until at most LEFT groups are under way. */
template <int LEFT> __device__ static inline void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

#endif
#endif
