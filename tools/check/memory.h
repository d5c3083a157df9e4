/* memory.h - the way of a policy through memory, as a resident run has it (model/handover.h), with both ends in this process.
 *
 * The trainer's published weights go into the sampler's store by sync.path: shm in host memory, cuda-ipc on a GPU, auto as it decides. nccl
 * joins ranks and needs more than one: it is left out, by name. So are models whose trained parameters only files carry.
 */
#ifndef CAIRN_TOOLS_CHECK_MEMORY_H
#define CAIRN_TOOLS_CHECK_MEMORY_H

#include "tools/check/sides.h"

struct cairn_check_memory;

/* *out NULL: policies go through files alone; why (n bytes) says for which reason, "" if the recipe wants it so. x and its stores stay where
 * they are until close. */
enum cairn_status cairn_check_memory_open(struct cairn_check_memory **out, struct cairn_sides *x, char *why, size_t n, struct cairn_error *err);
void cairn_check_memory_close(struct cairn_check_memory *m);
const char *cairn_check_memory_path(const struct cairn_check_memory *m); /* "shm", "cuda-ipc" */
/* Gives what is published now, and takes it. CAIRN_ENUMERIC: another generation came, or its sums differ from the trainer's. */
enum cairn_status cairn_check_memory_sync(struct cairn_check_memory *m, struct cairn_error *err);

#endif
