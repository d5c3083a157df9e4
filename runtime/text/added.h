/* added.h - finds added tokens (<|user|>, <think>, ...) in raw text: leftmost, then longest.
 *
 * Two sets, as in HuggingFace's tokenizers: tokens with normalized false are searched first, those with normalized
 * true in what is left between them. lstrip and rstrip let a token swallow the white space before and after it.
 *
 * Memory: struct cairn_added owns its tokens' names; constant after cairn_added_done, shared by threads.
 */
#ifndef CAIRN_TEXT_ADDED_H
#define CAIRN_TEXT_ADDED_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define CAIRN_ADDED_MAX_BYTES 1024 /* a longer name is refused at load: searching costs text times name */

struct cairn_added_token {
    char *name; /* n bytes and a NUL */
    size_t n;
    int32_t id;
    unsigned char special, lstrip, rstrip, normalized;
};

struct cairn_added {
    struct cairn_added_token *token; /* (n), sorted by name once done */
    size_t n, cap;
    uint32_t first[2][257]; /* [normalized][byte]: tokens that begin with it are pick[normalized][first[b]..first[b+1]) */
    uint32_t *pick[2];      /* places in token, in order of name */
};

struct cairn_added_match {
    size_t from, to; /* bytes, white space of lstrip and rstrip included */
    int32_t id;
};

void cairn_added_free(struct cairn_added *a);
/* Copies the name. */
enum cairn_status cairn_added_add(struct cairn_added *a, const struct cairn_added_token *t, struct cairn_error *err);
/* Sorts and indexes. CAIRN_EDATA if a name comes twice. */
enum cairn_status cairn_added_done(struct cairn_added *a, struct cairn_error *err);
/* Id of the token with exactly this name, or -1. */
int32_t cairn_added_find(const struct cairn_added *a, const char *name, size_t n);
/* Next match of the set `normalized` (0 or 1) in text[at..n). 1: *m is filled; 0: none. lstrip does not reach
 * before `at`. */
int cairn_added_next(const struct cairn_added *a, int normalized, const char *text, size_t n, size_t at,
                     struct cairn_added_match *m);

#endif
