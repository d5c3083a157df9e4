/* emu_wgmma.h - the functions of wgmma.cuh on the emulated GPU. A descriptor is read as the PTX ISA says, not as the kernels fill
 * tiles: an operand that lies elsewhere than the descriptor tells gives wrong sums here as it does there. Products are made at
 * once: what only waits for them, or makes writes visible to them, does nothing. A GPU of another kind than 9.0 ends the program here, as there
 * is no such instruction: who launches these kernels has to ask first.
 */
#ifndef CAIRN_TESTS_EMU_WGMMA_H
#define CAIRN_TESTS_EMU_WGMMA_H

#include <cstdio>
#include <cstdlib>

#include "cuda_bf16.h"

extern "C" int emu_sm(void); /* devices.cc */
extern "C" void emu_wgmma_count(void); /* CAIRN_EMU_WGMMA=count: how many there were is told at the end */

static inline void wgmma_fence(void)
{
}
static inline void wgmma_commit(void)
{
}
template <int> static inline void wgmma_wait(void)
{
}
template <int N> static inline void wgmma_hold(float (&)[N])
{
}

/* Element (i, k) of an operand: i row or column, k of the reduced 16; 128-byte swizzle. */
static inline float emu_operand(uint64_t d, int mn_major, int i, int k)
{
    uint32_t start = (uint32_t)(d & 0x3fff) << 4, wide = (uint32_t)(d >> 16 & 0x3fff) << 4,
             step = (uint32_t)(d >> 32 & 0x3fff) << 4;
    uint32_t at =
        start + (mn_major ? (uint32_t)i / 64 * wide + (uint32_t)i % 64 * 2 + (uint32_t)k / 8 * step + (uint32_t)k % 8 * 128
                          : (uint32_t)i / 8 * step + (uint32_t)i % 8 * 128 + (uint32_t)k * 2);
    __nv_bfloat16 x;

    at ^= (at >> 7 & 7) << 4;
    memcpy(&x, emu_dynamic_shared + at, sizeof x);
    return __bfloat162float(x);
}

template <int AM, int BM, int HALF> static inline void wgmma(float (&d)[HALF], uint64_t a, uint64_t b)
{
    if (emu_sm() != 90) {
        fprintf(stderr, "wgmma on an emulated GPU of capability %d\n", emu_sm());
        abort();
    }
    emu_wgmma_count();
    int t = (int)threadIdx.x % 128, row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;

    for (int k = 0; k < 16; k++) {
        float x[2] = {emu_operand(a, AM, row, k), emu_operand(a, AM, row + 8, k)};

        for (int j = 0; j < HALF / 4; j++)
            for (int e = 0; e < 2; e++) {
                float y = emu_operand(b, BM, 8 * j + column + e, k);

                d[4 * j + e] = fmaf(x[0], y, d[4 * j + e]);
                d[4 * j + 2 + e] = fmaf(x[1], y, d[4 * j + 2 + e]);
            }
    }
}

static inline void fence_for_wgmma(void)
{
}
template <int> static inline void registers_more(void)
{
}
template <int> static inline void registers_less(void)
{
}

struct emu_barrier_word {
    uint16_t count, left, phase, unused;
};
static inline void barrier_init(uint32_t at, int count)
{
    char *b = emu_dynamic_shared + at;
    struct emu_barrier_word w = {(uint16_t)count, (uint16_t)count, 0, 0};

    memcpy(b, &w, sizeof w);
}
static inline void barrier_arrive(uint32_t at)
{
    char *b = emu_dynamic_shared + at;
    struct emu_barrier_word w;

    memcpy(&w, b, sizeof w);
    if (!--w.left)
        w.left = w.count, w.phase ^= 1;
    memcpy(b, &w, sizeof w);
}
static inline void barrier_wait(uint32_t at, uint32_t parity)
{
    const char *b = emu_dynamic_shared + at;

    for (int i = 0; i < 1000000; i++) {
        struct emu_barrier_word w;

        memcpy(&w, b, sizeof w);
        if (w.phase != parity)
            return;
        emu_exchange(1u << emu_lane(), {}); /* with itself: lets the others run */
    }
    fprintf(stderr, "an emulated kernel waits for ever at a barrier in shared memory\n");
    abort();
}

static inline float2 load_fresh(const float2 *p)
{
    return *p;
}

static inline float exp2_fast(float x)
{
    return exp2f(x);
}
static inline float max_nan(float a, float b)
{
    return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
}

#endif
