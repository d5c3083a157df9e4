/* inspect.h - the pages of `cairn inspect`: a run, an artefact, one tensor of it, one rollout of it.
 *
 * Each appends people's text to `out`, or makes a JSON object (new reference); exactly one of out and json is given, the other is NULL.
 */
#ifndef CAIRN_TOOLS_INSPECT_H
#define CAIRN_TOOLS_INSPECT_H

#include "base/json.h"
#include "ckpt/manifest.h"
#include "stages/common/run.h"

/* Several runs of one recipe: their pages are short, then the means of their evaluations. json only for one. */
enum cairn_status cairn_inspect_runs(struct cairn_run *const *runs, int n, struct cairn_str *out, json_t **json, struct cairn_error *err);
/* root: the run that the artefact lies in, or NULL; then its inputs are looked up. */
enum cairn_status cairn_inspect_artefact(const char *dir, const char *root, struct cairn_str *out, json_t **json, struct cairn_error *err);
/* Type, shape, parts, range, mean, standard deviation, values that are no numbers, the first values. */
enum cairn_status cairn_inspect_tensor(const char *dir, const char *name, struct cairn_str *out, json_t **json, struct cairn_error *err);
/* Rollout k (from 0) with prompt and response as text, and its score where that is committed. root: its run, which has the tokenizer. */
enum cairn_status cairn_inspect_rollout(const char *dir, const char *root, int64_t k, struct cairn_str *out, json_t **json,
                                        struct cairn_error *err);

/* malloc'ed path of the nearest directory at or above `path` (absolute) that holds a run.json; NULL if there is none. */
char *cairn_inspect_root(const char *path);

#endif
