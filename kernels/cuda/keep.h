/* keep.h - what was found out about a card, kept in a file for the next process that opens it.
 *
 *     KEEP/cuda-WHAT-ID-TYPE.kept    WHAT: what it holds; ID: the card's; TYPE: its activations; with .new behind it while it is written
 *
 *     0    digest (XXH3-128) of all behind it      16  bytes of the name u64      24  bytes of the payload u64
 *     32   the name: what the payload holds for: WHAT, card, numerics, driver, and the build of the object that these functions are in
 *     then the payload
 *
 * A file that holds for something else, is damaged, a link, or not the user's own is as if it were not there, and replaced: nothing but time
 * depends on it. For the same reason nobody is told when it cannot be written.
 */
#ifndef CAIRN_KERNELS_CUDA_KEEP_H
#define CAIRN_KERNELS_CUDA_KEEP_H

#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(hidden)

struct keep; /* NULL: nothing is kept */

/* For payloads of kind `what` (a word), in the folder that the device was opened with. */
struct keep *keep_open(const struct cuda *d, const char *what);
void keep_close(struct keep *k);                             /* NULL is fine */
void *keep_read(const struct keep *k, size_t *bytes);        /* malloc'ed; NULL: there is none */
void keep_write(const struct keep *k, const void *p, size_t bytes);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
