/* quarantine.h - RUN/quarantine/NNNN: what was taken out of a run, each thing under the path that it had, and WHY.json.
 *
 *   {"format": "cairn quarantine", "version": 1, "wall": <seconds since 1970>, "dropped": [{"path": "step/000003/train", "why": "..."}, ...]}
 * Things are moved by rename and can be moved back by hand as long as nothing new stands in their place. The walks of ckpt/verify.h
 * pass it over. `cairn gc` removes a number when it is old enough, WHY.json last.
 */
#ifndef CAIRN_TOOLS_QUARANTINE_H
#define CAIRN_TOOLS_QUARANTINE_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"
#include "ckpt/verify.h" /* CAIRN_QUARANTINE_NAME */

/* Makes RUN/quarantine/NNNN with the next number and its WHY.json, durable. dropped: array as above, borrowed. *dir malloc'ed. */
enum cairn_status cairn_quarantine_open(char **dir, const char *run, const json_t *dropped, struct cairn_error *err);
/* RUN/path -> dir/path, durable; a missing one is fine. Of an artefact's directory the newest epoch stays behind, so that its attempts go on
 * counting and one that wakes up is fenced. */
enum cairn_status cairn_quarantine_move(const char *dir, const char *run, const char *path, struct cairn_error *err);
/* Every number that is at least `age_s` old: fn, then it is removed (unless dry). */
enum cairn_status cairn_quarantine_expire(const char *run, double age_s, int dry, void (*fn)(void *arg, const char *dir, int64_t bytes), void *arg,
                                          struct cairn_error *err);

#endif
