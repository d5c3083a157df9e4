/* split.h - cuts text into pre-tokens: the regular expression of a tokenizer.json, behaviour "Isolated".
 *
 * Every match is a pre-token, and so is every gap between matches; together they are the whole text. The two
 * expressions that matter (CAIRN_SPLIT_GLM, which is cl100k's, and CAIRN_SPLIT_QWEN) are done by hand-written code,
 * ten times faster; any other goes through pcre2 (UTF, Unicode properties, JIT where there is one). Both ways
 * give the same cuts for the same expression: the hand-written one takes its character classes from pcre2, too, so
 * that they follow the installed Unicode version together.
 *
 * HuggingFace runs these expressions on Oniguruma. Where the two engines read the same letters differently, the
 * expression is rewritten (\s, \S: Unicode White_Space, which excludes U+180E; \uHHHH) or refused by name (\w \b \h
 * and other escapes, a class inside a class, &&, inline flags other than i, verbs): no silent difference.
 *
 * Text handed in is valid UTF-8 (the tokenizer sees to it); NULs are characters.
 * Memory: struct cairn_split is constant after creation and may be shared by threads; struct cairn_split_work belongs
 * to one thread at a time. The table of character classes (1.1 MB, filled as their characters are met) lives as long as the process.
 */
#ifndef CAIRN_TEXT_SPLIT_H
#define CAIRN_TEXT_SPLIT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define CAIRN_SPLIT_GLM                                                                                                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"                        \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CAIRN_SPLIT_QWEN                                                                                                           \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"                             \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

struct cairn_split;
struct cairn_split_work;

/* pattern: n bytes. by_regex != 0: pcre2 even for the two known expressions (tests compare). CAIRN_EDATA if the
 * expression does not compile or holds what the engines read differently. */
enum cairn_status cairn_split_create(struct cairn_split **out, const char *pattern, size_t n, int by_regex,
                                     struct cairn_error *err);
void cairn_split_destroy(struct cairn_split *s);
int cairn_split_is_fast(const struct cairn_split *s); /* 1: hand-written */

struct cairn_split_work *cairn_split_work_create(const struct cairn_split *s); /* NULL without memory */
void cairn_split_work_destroy(struct cairn_split_work *w);

/* End of the pre-token that starts at byte `at` (at < n; 0 or an end that was returned before). CAIRN_EDATA only if
 * pcre2 gives up (its own match limits, for expressions that backtrack without end); CAIRN_ENOSPACE without memory. */
enum cairn_status cairn_split_next(const struct cairn_split *s, struct cairn_split_work *w, const char *text, size_t n, size_t at,
                                   size_t *end, struct cairn_error *err);

#endif
