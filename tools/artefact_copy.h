/* artefact_copy.h - the same tensors and content as another artefact, committed in another place under another identity.
 *
 * Everything is read through its digests and written anew, so the copy's logical digest is the source's. For replays.
 */
#ifndef CAIRN_TOOLS_ARTEFACT_COPY_H
#define CAIRN_TOOLS_ARTEFACT_COPY_H

#include "ckpt/manifest.h"
#include "ckpt/reader.h"

/* m: the empty manifest of what is to be committed in `dir` (kind, step, run, recipe, inputs; info may be filled in): gets shards, content,
 * aliases and fingerprint of `from`. CAIRN_EAGAIN when a stop was requested. Already committed: CAIRN_EFENCED. */
enum cairn_status cairn_artefact_copy(struct cairn_reader *from, const char *dir, struct cairn_manifest *m, struct cairn_error *err);

#endif
