/* bench_kernels.h - how fast the ops are on this machine, beside what the machine could do. */
#ifndef CAIRN_TOOLS_BENCH_KERNELS_H
#define CAIRN_TOOLS_BENCH_KERNELS_H

#include <stdio.h>

/* Measures the machine's fma rate (registers only, all cores) and copy bandwidth, then each op at sizes of the small models, and
 * prints a table to `out`: least of the repeats, GFLOP/s or GB/s, share of the measured limit. Takes a few seconds. An exit code
 * (status.h). */
int cairn_bench_kernels(FILE *out);
/* The machine's fma rate in GFLOP/s with `threads` threads (two operations an fma). */
double cairn_bench_fma_peak(int threads);

#endif
