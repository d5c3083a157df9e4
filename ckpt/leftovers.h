/* leftovers.h - what dead attempts left in an artefact and nobody can use any more.
 *
 *   committed      a<M>, .MANIFEST.<M> of every attempt but the published one, if it is outranked, of another lane, or certainly dead
 *                  (what cairn_artefact_settle removes)
 *   not committed  of attempts that are certainly dead: .MANIFEST.<M>, shards without their entry (never finished), and all of a<M> if the
 *                  artefact's identity is another by now. Finished shards of the same identity stay: the next attempt adopts them.
 * Epoch files stay: a number is never given twice. Refuses to touch anything of an attempt of which it is not certain that it is dead.
 */
#ifndef CAIRN_CKPT_LEFTOVERS_H
#define CAIRN_CKPT_LEFTOVERS_H

#include <stdint.h>

#include "base/digest.h"
#include "base/status.h"
#include "ckpt/holder.h"

struct cairn_leftovers {
    int64_t files, bytes; /* removed, or with dry: to be removed; bytes of names that are the last one of their file */
    int64_t kept;         /* finished shards that wait for the next attempt */
};

/* Adds to *out. identity: what an attempt on this artefact would have today, NULL where that is not known. */
enum cairn_status cairn_artefact_leftovers(const char *dir, const struct cairn_digest *identity, int dry, struct cairn_leftovers *out,
                                           struct cairn_error *err);

/* Who is making an artefact that is not committed: 1 the newest attempt's holder lives, -1 it cannot be told (another host), 0 nobody.
 * *who is that holder. */
int cairn_artefact_at_work(const char *dir, struct cairn_holder *who);

/* Bytes and number of the regular files below path, as above. Missing is nothing. */
enum cairn_status cairn_tree_count(const char *path, int64_t *files, int64_t *bytes, struct cairn_error *err);

#endif
