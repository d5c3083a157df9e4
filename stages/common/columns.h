/* columns.h - flat arrays in shards, unit by unit: the common form of rollout and score artefacts.
 *
 * A unit is a piece of work that one process does whole (some groups of a step). Unit u is one shard, "unit-00000u.h5", with a
 * dataset "NAME.00000u" for each column. Units do not depend on how many ranks or tasks there are, so neither does the artefact's
 * digest. The artefact's content records "units".
 */
#ifndef CAIRN_STAGES_COMMON_COLUMNS_H
#define CAIRN_STAGES_COMMON_COLUMNS_H

#include "ckpt/attempt.h"
#include "ckpt/manifest.h"
#include "ckpt/reader.h"

#define CAIRN_COLUMNS_MAX 24

struct cairn_column {
    const char *name;
    enum cairn_dtype dtype;
    const void *p;   /* (count), borrowed */
    int64_t count;
};

void cairn_unit_name(int unit, char out[32]); /* "unit-000003": the shard's name, for adoption */
/* Writes one unit into the attempt; *entry (caller's: cairn_manifest_add_shard) describes it. identity: cairn_attempt_adopt compares it. */
enum cairn_status cairn_unit_write(struct cairn_attempt *a, int unit, const char *identity, const struct cairn_column *c, int n,
                                   struct cairn_shard_entry **entry, struct cairn_error *err);
/* The same with columns of several units, column k of unit[k], as one shard "NAME.h5": for whoever makes a whole artefact at once. */
enum cairn_status cairn_units_write(struct cairn_attempt *a, const char *name, const char *identity, const struct cairn_column *c,
                                    const int *unit, int n, struct cairn_shard_entry **entry, struct cairn_error *err);
/* Reads a column of one unit; malloc'ed, at least 1 byte. */
enum cairn_status cairn_unit_read(struct cairn_reader *r, int unit, const char *column, enum cairn_dtype dtype, void **out, int64_t *count,
                                  struct cairn_error *err);
/* Reads a column of `want` elements into out from a shard that lies in artefact `dir` and is not committed yet; its file was checked as a
 * whole when it was adopted. CAIRN_EDATA if the shard has no such column. */
enum cairn_status cairn_unit_column(const char *dir, const struct cairn_shard_entry *e, int unit, const char *column, enum cairn_dtype dtype,
                                    int64_t want, void *out, struct cairn_error *err);
int cairn_unit_has(struct cairn_reader *r, int unit, const char *column);
/* "units" of the content, checked. */
enum cairn_status cairn_unit_count(struct cairn_reader *r, int *units, struct cairn_error *err);

#endif
