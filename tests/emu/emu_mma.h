/* emu_mma.h - the instructions of kernels/cuda/mma.cuh on the emulated GPU. Fragments lie as the PTX manual has them for m16n8k16;
 * the 16 terms of a step are summed in fp64 and added to the accumulator with one rounding.
 */
#ifndef CAIRN_TESTS_EMU_MMA_H
#define CAIRN_TESTS_EMU_MMA_H

static inline void ldmatrix4(uint32_t r[4], uint32_t from)
{
    const int lane = emu_lane();
    const struct emu_words *row = emu_exchange(0xffffffffu, {{from}});

    for (int i = 0; i < 4; i++)
        memcpy(&r[i], emu_dynamic_shared + row[8 * i + lane / 4].w[0] + lane % 4 * 4, 4);
}

static inline void ldmatrix4_trans(uint32_t r[4], uint32_t from)
{
    const int lane = emu_lane();
    const struct emu_words *row = emu_exchange(0xffffffffu, {{from}});

    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++)
            memcpy((char *)&r[i] + 2 * j, emu_dynamic_shared + row[8 * i + lane % 4 * 2 + j].w[0] + lane / 4 * 2, 2);
}

static inline float emu_half(uint64_t word, int i) /* bf16 number i of a word */
{
    return __uint_as_float((unsigned)(word >> (16 * i) & 0xffff) << 16);
}

static inline void mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    const int lane = emu_lane(), g = lane / 4, c = lane % 4 * 2;
    /* k 0-7 of rows g, g+8; k 8-15; b */
    const struct emu_words *all =
        emu_exchange(0xffffffffu, {{a[0] | (uint64_t)a[1] << 32, a[2] | (uint64_t)a[3] << 32, b0 | (uint64_t)b1 << 32}});

    for (int i = 0; i < 4; i++) {
        const int row = i / 2, col = c + i % 2; /* of the two rows; column */
        double sum = 0;

        for (int k = 0; k < 16; k++)
            sum += (double)emu_half(all[g * 4 + k % 8 / 2].w[k / 8], 2 * row + k % 2) *
                   emu_half(all[col * 4 + k % 8 / 2].w[2], k / 8 * 2 + k % 2);
        d[i] = (float)(d[i] + sum);
    }
}

#endif
