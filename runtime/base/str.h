/* str.h - growing byte strings, and the few string helpers that everybody needs.
 *
 * struct cairn_str owns its bytes, is always NUL-terminated (bytes may hold NULs of their own: use len), and is
 * zero-initialised: struct cairn_str s = {0}; ... cairn_str_free(&s). A failed allocation sets s.oom and drops
 * what follows; check once at the end.
 */
#ifndef CAIRN_BASE_STR_H
#define CAIRN_BASE_STR_H

#include <stddef.h>
#include <stdint.h>

struct cairn_str {
    char *p; /* NULL while empty */
    size_t len, cap;
    int oom;
};

void cairn_str_free(struct cairn_str *s);
void cairn_str_clear(struct cairn_str *s); /* len = 0, keeps memory */
void cairn_str_add(struct cairn_str *s, const void *p, size_t n);
void cairn_str_puts(struct cairn_str *s, const char *z);
void cairn_str_putc(struct cairn_str *s, char c);
void cairn_str_printf(struct cairn_str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *cairn_str_z(const struct cairn_str *s); /* "" when empty */
char *cairn_str_take(struct cairn_str *s);          /* hands the bytes over; caller frees; never NULL unless oom */

/* malloc'ed printf; NULL without memory. */
char *cairn_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int cairn_starts_with(const char *s, const char *prefix);
int cairn_ends_with(const char *s, const char *suffix);
/* Letters to put in, leave out, exchange, or swap with their neighbour, to make b of a (Damerau; no letter twice). */
int cairn_edit_distance(const char *a, const char *b);
/* What was meant by a misspelt word: the nearest of the n names, by two edits at most and by no more than a third of the longer word;
 * NULL if none is so near. */
const char *cairn_nearest(const char *word, const char *const *names, size_t n);
/* Decimal digits of v, with a sign if it has one and no NUL, where printf would take too long; returns their number. */
#define CAIRN_I64_CHARS 20
size_t cairn_put_i64(char *out, int64_t v);
/* Strict decimal: the whole of s, no sign for u64, range-checked. 1: ok. */
int cairn_parse_i64(const char *s, int64_t *out);
int cairn_parse_u64(const char *s, uint64_t *out);
int cairn_parse_double(const char *s, double *out); /* finite only */
/* Next UTF-8 code point of p[0..n); sets *used >= 1; returns -1 (and used 1) on malformed input. */
int32_t cairn_utf8_next(const unsigned char *p, size_t n, size_t *used);
/* Appends the UTF-8 form of cp. */
void cairn_str_put_utf8(struct cairn_str *s, uint32_t cp);

#endif
