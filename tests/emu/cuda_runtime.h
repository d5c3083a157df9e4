/* cuda_runtime.h - in the place of CUDA's, for the emulated GPU: what kernels are written in. See emu.h. */
#ifndef CAIRN_TESTS_EMU_RUNTIME_H
#define CAIRN_TESTS_EMU_RUNTIME_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>

#include "cuda_runtime_api.h"
#include "emu.h"

using std::isfinite;
using std::isinf;
using std::isnan;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __align__(n) alignas(n)
#define __shared__   static __attribute__((section("emu_shared")))
#define __constant__ static

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};
#define EMU_VECTOR(name, type)                                                                                                     \
    struct alignas(2 * sizeof(type)) name##2                                                                                       \
    {                                                                                                                              \
        type x, y;                                                                                                                 \
    };                                                                                                                             \
    struct name##3                                                                                                                 \
    {                                                                                                                              \
        type x, y, z;                                                                                                              \
    };                                                                                                                             \
    struct alignas(4 * sizeof(type) > 16 ? 16 : 4 * sizeof(type)) name##4                                                          \
    {                                                                                                                              \
        type x, y, z, w;                                                                                                           \
    };                                                                                                                             \
    static inline name##2 make_##name##2(type a, type b)                                                                           \
    {                                                                                                                              \
        return name##2 {a, b};                                                                                                     \
    }                                                                                                                              \
    static inline name##4 make_##name##4(type a, type b, type c, type d)                                                           \
    {                                                                                                                              \
        return name##4 {a, b, c, d};                                                                                               \
    }
EMU_VECTOR(float, float)
EMU_VECTOR(int, int)
#define uint3 emu_uint3
EMU_VECTOR(uint, unsigned)
#undef uint3
EMU_VECTOR(double, double)

#define threadIdx (emu_thread())
#define blockIdx  (emu_grid.block)
#define blockDim  (emu_grid.block_dim)
#define gridDim   (emu_grid.grid_dim)

struct emu_place {
    uint3 block, block_dim, grid_dim;
};
extern struct emu_place emu_grid;
extern char *emu_dynamic_shared;
const uint3 &emu_thread(void);

/* Runs body once for every thread of the grid, blocks one after the other. */
void emu_launch(const char *name, dim3 grid, dim3 block, size_t shared, emu_body_fn *body, void *ctx);

/* A stream that is captured: work goes into the graph and runs when that is launched. */
int emu_recording(void);
void emu_record(std::function<void()> work);

/* As a launch does: arguments are evaluated and copied now, whenever the kernel runs. */
template <typename T> struct emu_given { /* converted to what the kernel takes, never asked what it is */
    typedef T type;
};
template <typename... P>
static void emu_run(const char *name, dim3 grid, dim3 block, size_t shared, void (*kernel)(P...), typename emu_given<P>::type... arguments)
{
    struct body {
        void (*kernel)(P...);
        std::tuple<P...> arguments;
    } body = {kernel, std::tuple<P...>(arguments...)};
    auto once = [](void *p) { std::apply(((struct body *)p)->kernel, ((struct body *)p)->arguments); };

    if (emu_recording())
        emu_record([=]() mutable { emu_launch(name, grid, block, shared, once, &body); });
    else
        emu_launch(name, grid, block, shared, once, &body);
}

#define LAUNCH(c, kernel, grid, block, shared, ...)                                                                                \
    do {                                                                                                                           \
        if (call_ok(c))                                                                                                            \
            emu_run(#kernel, dim3(grid), dim3(block), (shared), kernel, ##__VA_ARGS__);                                            \
    } while (0)

template <typename F> static inline cudaError_t cudaFuncSetAttribute(F, enum cudaFuncAttribute, int)
{
    return cudaSuccess;
}

/* ---- what the threads of a warp or a block do together ---------------------------------------------------------------------- */

/* Each lane of mask gives words and gets those of all 32; they are there until the lane meets others again. */
struct emu_words {
    uint64_t w[3];
};
const struct emu_words *emu_exchange(unsigned mask, struct emu_words mine);
void emu_barrier(void);

static inline int emu_lane(void)
{
    const uint3 &t = emu_thread();

    return (int)((t.x + emu_grid.block_dim.x * (t.y + emu_grid.block_dim.y * t.z)) % 32);
}
static inline void __syncthreads(void)
{
    emu_barrier();
}
static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emu_exchange(mask, {});
}
template <typename T> static inline T emu_take(unsigned mask, T x, int from)
{
    struct emu_words w = {};
    T y;

    memcpy(&w, &x, sizeof x);
    memcpy(&y, &emu_exchange(mask, w)[from], sizeof y);
    return y;
}
template <typename T> static inline T __shfl_sync(unsigned mask, T x, int lane, int width = 32)
{
    return emu_take(mask, x, (emu_lane() / width * width + lane % width) & 31);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32)
{
    int to = emu_lane() ^ bits;

    return emu_take(mask, x, to / width > emu_lane() / width ? emu_lane() : to);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T x, unsigned d, int width = 32)
{
    int at = emu_lane();

    return emu_take(mask, x, at % width + (int)d < width ? at + (int)d : at);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned d, int width = 32)
{
    int at = emu_lane();

    return emu_take(mask, x, at % width >= (int)d ? at - (int)d : at);
}
static inline unsigned __ballot_sync(unsigned mask, int x)
{
    const struct emu_words *all = emu_exchange(mask, {{x != 0}});
    unsigned b = 0;

    for (int i = 0; i < 32; i++)
        b |= (unsigned)((mask >> i & 1) && all[i].w[0]) << i;
    return b;
}
static inline int __any_sync(unsigned mask, int x)
{
    return __ballot_sync(mask, x) != 0;
}
static inline int __all_sync(unsigned mask, int x)
{
    return __ballot_sync(mask, x) == mask;
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned x)
{
    const struct emu_words *all = emu_exchange(mask, {{x}});
    unsigned most = 0;

    for (int i = 0; i < 32; i++)
        if (mask >> i & 1 && (unsigned)all[i].w[0] > most)
            most = (unsigned)all[i].w[0];
    return most;
}
static inline unsigned __reduce_min_sync(unsigned mask, unsigned x)
{
    return ~__reduce_max_sync(mask, ~x);
}
template <typename T> static inline unsigned __match_any_sync(unsigned mask, T x)
{
    struct emu_words w = {};
    const struct emu_words *all;
    unsigned b = 0;

    memcpy(&w, &x, sizeof x);
    all = emu_exchange(mask, w);
    for (int i = 0; i < 32; i++)
        b |= (unsigned)((mask >> i & 1) && all[i].w[0] == w.w[0]) << i;
    return b;
}
static inline int __syncthreads_count(int x)
{
    return emu_count(x);
}
static inline int __syncthreads_or(int x)
{
    return emu_count(x) != 0;
}
static inline int __syncthreads_and(int x)
{
    return emu_count(!x) == 0;
}
static inline unsigned __activemask(void)
{
    return 0xffffffffu;
}
#define __threadfence()       ((void)0)
#define __threadfence_block() ((void)0)
#define __threadfence_system() ((void)0)

/* ---- one thread alone ----------------------------------------------------------------------------------------------------------
 */

template <typename T, typename U> static inline T atomicAdd(T *p, U x)
{
    T was = *p;

    *p = (T)(was + (T)x);
    return was;
}
template <typename T, typename U> static inline T atomicMax(T *p, U x)
{
    T was = *p;

    *p = (T)x > was ? (T)x : was;
    return was;
}
template <typename T, typename U> static inline T atomicMin(T *p, U x)
{
    T was = *p;

    *p = (T)x < was ? (T)x : was;
    return was;
}
template <typename T, typename U> static inline T atomicOr(T *p, U x)
{
    T was = *p;

    *p |= (T)x;
    return was;
}
template <typename T, typename U> static inline T atomicExch(T *p, U x)
{
    T was = *p;

    *p = (T)x;
    return was;
}
template <typename T, typename U, typename V> static inline T atomicCAS(T *p, U x, V y)
{
    T was = *p;

    if (was == (T)x)
        *p = (T)y;
    return was;
}
template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <typename T> static inline void __stcs(T *p, T x)
{
    *p = x;
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline unsigned __brev(unsigned x)
{
    unsigned y = 0;

    for (int i = 0; i < 32; i++)
        y |= (x >> i & 1) << (31 - i);
    return y;
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline float __uint_as_float(unsigned x)
{
    float f;

    memcpy(&f, &x, sizeof f);
    return f;
}
static inline unsigned __float_as_uint(float f)
{
    unsigned x;

    memcpy(&x, &f, sizeof x);
    return x;
}
static inline float __int_as_float(int x)
{
    return __uint_as_float((unsigned)x);
}
static inline int __float_as_int(float f)
{
    return (int)__float_as_uint(f);
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline double __dadd_rn(double a, double b)
{
    return a + b;
}
static inline double __dsub_rn(double a, double b)
{
    return a - b;
}
static inline double __dmul_rn(double a, double b)
{
    return a * b;
}
static inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
static inline float rsqrtf(float x)
{
    return (float)(1.0 / sqrt((double)x));
}
template <typename T> static inline T min(T a, T b)
{
    return b < a ? b : a;
}
template <typename T> static inline T max(T a, T b)
{
    return a < b ? b : a;
}

#endif
