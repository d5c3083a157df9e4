/* wgmma.cuh - sm_90a: matrix products of a warpgroup and barriers of shared memory, as inline assembly.
 *
 * Tiles in shared memory are made of lines of 128 bytes (64 bf16), eight lines an atom of 1024 bytes, 16-byte chunks of a line
 * exchanged by its number (chunk ^ line % 8): the 128-byte swizzle, which serves both ways of reading a tile:
 *   K-major    a line is a row (or column) of the product and holds 64 of the reduced dimension
 *   MN-major   a line is one of the reduced dimension and holds 64 rows (or columns)
 * A matrix wider than 64 is several such tiles behind each other. Tiles start at multiples of 1024 bytes.
 * Source: PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate", "Shared memory matrix layout".
 *
 * Kernels are empty code where the target has no wgmma; the host does not launch them there (wgmma_there). The emulated GPU of the
 * tests brings functions of its own for all that is assembly here.
 */
#ifndef CAIRN_KERNELS_CUDA_WGMMA_CUH
#define CAIRN_KERNELS_CUDA_WGMMA_CUH

#include <stdint.h>

#include "async.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(CAIRN_EMULATED)
#define HAVE_WGMMA 1
#else
#define HAVE_WGMMA 0
#endif

/* Where 16-byte chunk `chunk` of line `line` of a tile is, in bytes. */
__device__ static inline int swizzled(int line, int chunk)
{
    return line * 128 + ((chunk ^ (line & 7)) << 4);
}

/* Descriptor of an operand at `address`. K-major: step = bytes from one group of eight rows to the next; MN-major: step = bytes from
 * eight of the reduced dimension to the next eight, wide = bytes from 64 rows to the next 64. */
__device__ static inline uint64_t wgmma_operand(uint32_t address, int wide, int step)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(wide >> 4) << 16 | (uint64_t)(step >> 4) << 32 | (uint64_t)1 << 62;
}

template <int N> __device__ static inline void wgmma_zero(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        d[i] = 0.0f;
}

static inline int wgmma_there(const struct cuda *c)
{
    return c->sm == 90;
}

#ifdef CAIRN_EMULATED
#include "emu_wgmma.h"
#else

#if HAVE_WGMMA

__device__ static inline void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ static inline void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> __device__ static inline void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
/* Sums are not looked at (by the compiler) before this point. */
template <int N> __device__ static inline void wgmma_hold(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* d (64, N) += a (64, 16) . b (16, N), bf16 in, fp32 out, N twice the length of d. AM, BM: 1 = that operand is MN-major.
 * Thread t of the warpgroup holds, in d[i], row 16 (t / 32) + t % 32 / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (t % 4) + i % 2. */
#define D8(i)                                                                                                                      \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define D32(i) D8(i), D8(i + 8), D8(i + 16), D8(i + 24)
#define P8     "%0, %1, %2, %3, %4, %5, %6, %7"
#define P16    P8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define P32 P16 \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define P64 P32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define P96 P64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define P128 P96 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA(HALF, N, PLACES, A, B, AT, BT, ...)                                                                                  \
    template <int AM, int BM> __device__ static inline void wgmma(float (&d)[HALF], uint64_t a, uint64_t b)                        \
    {                                                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" PLACES "}, " A ", " B ", 1, 1, 1, " AT ", " BT ";" \
                     : __VA_ARGS__                                                                                                 \
                     : "l"(a), "l"(b), "n"(AM), "n"(BM));                                                                          \
    }
WGMMA(8, "16", P8, "%8", "%9", "%10", "%11", D8(0))
WGMMA(16, "32", P16, "%16", "%17", "%18", "%19", D8(0), D8(8))
WGMMA(32, "64", P32, "%32", "%33", "%34", "%35", D32(0))
WGMMA(64, "128", P64, "%64", "%65", "%66", "%67", D32(0), D32(32))
WGMMA(96, "192", P96, "%96", "%97", "%98", "%99", D32(0), D32(32), D32(64))
WGMMA(128, "256", P128, "%128", "%129", "%130", "%131", D32(0), D32(32), D32(64), D32(96))
#undef WGMMA
#undef P8
#undef P16
#undef P32
#undef P64
#undef P96
#undef P128
#undef D32
#undef D8

/* Makes what this thread wrote into shared memory visible to wgmma; before the barrier that tells of it. */
__device__ static inline void fence_for_wgmma(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int REGISTERS> __device__ static inline void registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ static inline void registers_less(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* ---- barriers: 8 bytes of shared memory; a phase ends when `count` have arrived ------------------------------------------------ */

__device__ static inline void barrier_init(uint32_t at, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ static inline void barrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
/* Waits until the phase of this parity (0, 1, 0, ... from the start) is over. */
__device__ static inline void barrier_wait(uint32_t at, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra over;\n"
                 "bra again;\n"
                 "over:\n}\n" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

#endif

/* What other blocks of threads of this kernel may have written: past the cache of a multiprocessor. */
__device__ static inline float2 load_fresh(const float2 *p)
{
    float2 x;

    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(__cvta_generic_to_global(p)) : "memory");
    return x;
}

/* 2^x, 2 ulp, and 0 below 2^-126 */
__device__ static inline float exp2_fast(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The larger; NaN if one is. */
__device__ static inline float max_nan(float a, float b)
{
    float y;

    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

#endif /* not emulated */

#if HAVE_WGMMA

/* By pointer. */
__device__ static inline void barrier_init(uint64_t *b, int count)
{
    barrier_init(shared_address(b), count);
}
__device__ static inline void barrier_arrive(uint64_t *b)
{
    barrier_arrive(shared_address(b));
}
__device__ static inline void barrier_wait(uint64_t *b, int parity)
{
    barrier_wait(shared_address(b), (uint32_t)parity);
}

/* d += the products of STEPS times 16 of the reduced dimension, in order; a_step and b_step are bytes from one 16 to the next. Waits for
 * them. */
template <int STEPS, int AM, int BM, int N>
__device__ static inline void wgmma_chain(float (&d)[N], uint64_t a, int a_step, uint64_t b, int b_step)
{
    wgmma_hold(d);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        wgmma<AM, BM>(d, a + i * a_step / 16, b + i * b_step / 16);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(d);
}

#endif

#endif
