/* cursor.h - which prompt comes next: several files mixed by weight, each in an order of its own for every pass over it, and prompts that
 * came back in front of all.
 *
 * Pure: where it stands is the "cursor" member of the rollout artefact before, and nothing else.
 *   {"taken": [prompts ever taken from each file], "front": [prompt ids that came back, next one first]}
 * Prompt number k of a file with R rows is element k % R of permutation k / R, Philox by (seed, file, k / R); draw number t over all files
 * takes file f with probability weight f / sum, Philox by (seed, t). So each pass over a file has every row once. A prompt id is
 * file << 32 | row.
 *
 * Memory: one permutation for each file. No files are read here.
 */
#ifndef CAIRN_STAGES_ROLLOUT_CURSOR_H
#define CAIRN_STAGES_ROLLOUT_CURSOR_H

#include <stdint.h>

#include "base/json.h"
#include "base/status.h"

struct cairn_cursor;

struct cairn_cursor_file {
    int64_t rows;  /* 1 .. 2^32 - 1 */
    double weight; /* above 0 */
};

/* At the very beginning. shuffle 0: each pass in the order of the file. */
enum cairn_status cairn_cursor_create(struct cairn_cursor **out, const struct cairn_cursor_file *file, int n, uint64_t seed, int shuffle,
                                      struct cairn_error *err);
void cairn_cursor_destroy(struct cairn_cursor *c);
/* To where a manifest's content says; files that it does not know yet begin at 0. CAIRN_EDATA naming `where`: no cursor, or not of these
 * files. */
enum cairn_status cairn_cursor_set(struct cairn_cursor *c, const json_t *v, const char *where, struct cairn_error *err);
json_t *cairn_cursor_json(const struct cairn_cursor *c); /* new reference; NULL without memory */

enum cairn_status cairn_cursor_next(struct cairn_cursor *c, int64_t *prompt_id, struct cairn_error *err);
/* Puts n prompts in front of everything, id[0] to be the next. */
enum cairn_status cairn_cursor_return(struct cairn_cursor *c, const int64_t *id, int64_t n, struct cairn_error *err);

static inline int64_t cairn_prompt_id(int file, int64_t row)
{
    return (int64_t)file << 32 | row;
}

/* The word that stands for a prompt in the key of its draws: one to one inside a file. (Two prompts of two files that met would draw
 * with the same uniform numbers, which is no harm.) */
static inline int32_t cairn_prompt_key(int64_t prompt_id)
{
    return (int32_t)((uint32_t)prompt_id ^ (uint32_t)(prompt_id >> 32) * 0x9e3779b1u);
}

#endif
