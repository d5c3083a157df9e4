/* emu.h - a GPU emulated on the host, so that the CUDA kernels run through conformance where there is no GPU.
 *
 * The back-end's own sources are compiled by the C++ compiler against the headers of this folder into lib/cairn-emu.so, a back-end
 * like cairn-cuda.so (CAIRN_CUDA_OBJECT=cairn-emu.so takes it in that one's place). Kernels run as they are written: every thread
 * of a block is a fibre, and a fibre runs until it meets others at a barrier or in a warp. It shows wrong indexes (memory ends at
 * a page without access), barriers that not everybody reaches (the launch dies and names the kernel), and missing ones: the order
 * in which fibres run turns round with every launch, and shared memory starts as NaN.
 *
 * GPUs (devices.cc) have compute capability 8.0: kernels for sm_90a are left out, as on such a card; but those that are written on wgmma.cuh run:
 * emu_wgmma.h does what its functions do on sm_90a, at once (no asynchrony). It shows nothing about speed, about memory
 * ordering between blocks, or about the accuracy of CUDA's own functions (exp, sincos are the host's).
 */
#ifndef CAIRN_TESTS_EMU_H
#define CAIRN_TESTS_EMU_H

#include <stddef.h>

#define CAIRN_EMULATED 1

typedef void emu_body_fn(void *ctx);

/* Barrier of the block that also counts for how many of its threads x holds. */
int emu_count(int x);
/* The program dies, naming the kernel, unless one allocation of the device holds all these bytes, and they are aligned to 16. Ordinary
 * loads beyond an allocation die by themselves, but for what its last 16 bytes are rounded up to. */
void emu_check_read(const void *p, size_t bytes);

#endif
