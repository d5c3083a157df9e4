/* gap.h - links in the midst of a chain that are missing and cannot be made, or whose manifest is damaged, while nothing that is still to be
 * made reads them: whoever goes on with the run passes them by.
 */
#ifndef CAIRN_STAGES_COMMON_GAP_H
#define CAIRN_STAGES_COMMON_GAP_H

#include "stages/common/run.h"

/* Of the n links of a chain, or of a part of it that reaches to its end: pass[i] = 1 where link i is passed by, else 0. done: those whose manifest
 * is there; damaged (NULL: none is known to be): those of them whose manifest is damaged. Passed is what has a whole one of its kind behind it (an
 * evaluation: a newer policy) and
 *   is not done, and what it reads was collected, or is missing or damaged and cannot be made either,
 *   or is damaged,
 * unless a link that is not done and not passed reads it, or the next trainer, which trains again from the last state that was kept. Looks
 * at files only where there is a gap or damage. */
enum cairn_status cairn_links_pass(const struct cairn_run *r, const struct cairn_link *link, int n, const char *done, const char *damaged, char *pass,
                                   struct cairn_error *err);

#endif
