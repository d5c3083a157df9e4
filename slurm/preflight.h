/* preflight.h - is this node fit for the work? Asked on every node of a job before anything is loaded, so that the bad one is
 * named.
 *
 * Free memory and shared memory, the run's file system (room, and whether a file can be written durably), the program's version,
 * the device and the numerics it computes with, the clock. A node is compared with the others: another version or other numerics
 * than most have would cost the bits. A clock that is off is only told: nothing of ours rests on it.
 */
#ifndef CAIRN_SLURM_PREFLIGHT_H
#define CAIRN_SLURM_PREFLIGHT_H

#include <jansson.h>

#include "base/str.h"
#include "stages/common/run.h"

/* {"node", "wall", "version", "numerics", "text"}: text is what is wrong, "" if it is fit. device: open the recipe's back-end too.
 * New reference; NULL without memory. */
json_t *cairn_preflight_node(const struct cairn_run *run, int device);

/* Holds the nodes' reports (JSON lines of cairn_preflight_node) against each other; fn(arg, node, text) for each unfit one.
 * expected: nodes that should have reported; the missing ones cannot be named: *silent says how many. */
void cairn_preflight_judge(const char *lines, int expected, void (*fn)(void *arg, const char *node, const char *text), void *arg,
                           int *silent);

#endif
