/* skim.h - looks into a large JSON text without making a tree of it: where the value of a key lies, and the members of an object of
 * numbers.
 *
 * For texts that were or will be parsed strictly elsewhere: what it does not understand it says, and the caller takes the long way.
 * It never reads beyond the text and allocates nothing but the names it hands out.
 */
#ifndef CAIRN_TEXT_SKIM_H
#define CAIRN_TEXT_SKIM_H

#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct cairn_skim_span {
    size_t at, end;
};

/* The value of `key` in the object that begins at text[at]: 1, and its span; 0: there is none, or the text is not understood. */
int cairn_skim_member(const char *text, size_t n, size_t at, const char *key, struct cairn_skim_span *value);

/* Calls fn for each member of the object {"name": number, ...} that is the span; name holds the unescaped bytes until the next
 * call. 1: all of them; 0: it is no such object, or fn returned 0. */
int cairn_skim_numbers(const char *text, struct cairn_skim_span object,
                       int (*fn)(void *arg, const struct cairn_str *name, int64_t number), void *arg);

#endif
