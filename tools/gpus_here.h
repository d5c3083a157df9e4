/* gpus_here.h - which GPUs of NVIDIA this machine has, by what the kernel tells: also where there is no CUDA, or no driver. */
#ifndef CAIRN_TOOLS_GPUS_HERE_H
#define CAIRN_TOOLS_GPUS_HERE_H

#include <stddef.h>

/* How many there are; text: "NVIDIA H200, NVIDIA H200", or "2 (no driver is loaded)". root: "" for this machine. */
int cairn_gpus_here(const char *root, char *text, size_t n);

#endif
