/* prompts.h - the problems of a prompt file: JSON lines {"id", "prompt", "answer", "grader"?, ...}; other members are kept by the
 * file alone.
 *
 * A broken line is CAIRN_EDATA "FILE:LINE: ...". `prompt` is a text, or a chat: a list of {"role": "system" | "user" | "assistant",
 * "content": text}. `answer` may be a string or an integer (its decimal form); `id` may be missing: then it is the row's number.
 * Members may have other names (struct cairn_prompt_keys); a name with dots, if no member is called so, goes into objects.
 * Everything lies in one arena, owned by the struct. `grader` names the grader of that row, before its file's and the recipe's. A
 * group is told from others by its prompt's row; that ids are one each is checked when prompts are to be sampled, so that whoever
 * looks one up finds one.
 */
#ifndef CAIRN_STAGES_COMMON_PROMPTS_H
#define CAIRN_STAGES_COMMON_PROMPTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "stages/common/run.h"
#include "text/template.h"

struct cairn_prompt {
    const char *id, *prompt, *answer; /* prompt: of a chat its JSON text */
    const char *grader;               /* or NULL */
    size_t prompt_bytes, answer_bytes;
    const struct cairn_message *message; /* (messages) */
    int messages;                        /* 0: prompt is a text */
};

/* Names of a row's members. */
struct cairn_prompt_keys {
    const char *id, *prompt, *answer, *grader;
};
#define CAIRN_PROMPT_KEYS ((struct cairn_prompt_keys){"id", "prompt", "answer", "grader"})
/* As an entry of data.prompts or data.eval has them; NULL: the usual ones. Borrowed from the entry. */
struct cairn_prompt_keys cairn_prompt_keys_of(const json_t *entry);

struct cairn_prompts {
    int64_t n;
    struct cairn_prompt *row; /* (n) row r stands in line r + 1 */
    char *path;
    struct cairn_arena *arena;
};

enum cairn_status cairn_prompts_load(struct cairn_prompts *p, const char *path, const struct cairn_prompt_keys *keys,
                                     struct cairn_error *err);
void cairn_prompts_free(struct cairn_prompts *p);
/* CAIRN_EDATA "FILE:LINE: ...", naming both lines, if two of the first n rows have one id (of a row without one it is its number).
 */
enum cairn_status cairn_prompts_unique(const struct cairn_prompts *p, int64_t n, struct cairn_error *err);

/* A chat, or a text as one user message, from a row's member v (called `key`): *m lives as long as the arena. */
enum cairn_status cairn_messages_read(const json_t *v, const char *key, struct cairn_arena *arena, const struct cairn_message **m,
                                      int *n, const char *where, struct cairn_error *err);

/* All files that link l reads: data.prompts, or the one evaluation set. *files (caller frees with cairn_prompts_list_free) has *n
 * elements; prompt_id >> 32 is an index into it. */
enum cairn_status cairn_prompts_of(const struct cairn_run *r, const struct cairn_link *l, struct cairn_prompts **files, int *n,
                                   struct cairn_error *err);
void cairn_prompts_list_free(struct cairn_prompts *files, int n);
/* The row of a prompt id, or NULL if there is none. */
const struct cairn_prompt *cairn_prompts_find(const struct cairn_prompts *files, int n, int64_t prompt_id);

#endif
