/* str.c - growing strings, strict number parsing, edit distance and UTF-8, as str.h says. */
#include "base/str.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

void cairn_str_free(struct cairn_str *s)
{
    free(s->p);
    memset(s, 0, sizeof *s);
}

void cairn_str_clear(struct cairn_str *s)
{
    s->len = 0;
    s->oom = 0;
    if (s->p)
        s->p[0] = 0;
}

/* Room for n more bytes and the NUL. */
static int reserve(struct cairn_str *s, size_t n)
{
    size_t need, cap = s->cap ? s->cap : 32;
    char *p;

    if (s->oom)
        return 0;
    if (!cairn_add_size(s->len, n, &need) || !cairn_add_size(need, 1, &need)) {
        s->oom = 1;
        return 0;
    }
    if (need <= s->cap)
        return 1;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    if (!(p = realloc(s->p, cap))) {
        s->oom = 1;
        return 0;
    }
    s->p = p;
    s->cap = cap;
    return 1;
}

void cairn_str_add(struct cairn_str *s, const void *p, size_t n)
{
    if (!reserve(s, n))
        return;
    if (n)
        memcpy(s->p + s->len, p, n);
    s->len += n;
    s->p[s->len] = 0;
}

void cairn_str_puts(struct cairn_str *s, const char *z)
{
    cairn_str_add(s, z, strlen(z));
}

void cairn_str_putc(struct cairn_str *s, char c)
{
    cairn_str_add(s, &c, 1);
}

void cairn_str_printf(struct cairn_str *s, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) {
        s->oom = 1;
        return;
    }
    if (!reserve(s, (size_t)n))
        return;
    va_start(ap, fmt);
    vsnprintf(s->p + s->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    s->len += (size_t)n;
}

const char *cairn_str_z(const struct cairn_str *s)
{
    return s->p ? s->p : "";
}

char *cairn_str_take(struct cairn_str *s)
{
    char *p = NULL;

    if (reserve(s, 0)) {
        p = s->p;
        p[s->len] = 0;
        s->p = NULL;
    }
    cairn_str_free(s);
    return p;
}

char *cairn_format(const char *fmt, ...)
{
    va_list ap;
    char *p;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !(p = malloc((size_t)n + 1)))
        return NULL;
    va_start(ap, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return p;
}

int cairn_starts_with(const char *s, const char *prefix)
{
    return !strncmp(s, prefix, strlen(prefix));
}

int cairn_ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);

    return n >= m && !memcmp(s + n - m, suffix, m);
}

/* Words longer than this are cut: the function serves spelling hints, and must not need memory. */
#define WORD_MAX     127
#define DISTANCE_MAX 2 /* further away is another word */

static size_t cut_length(const char *word)
{
    size_t n = strlen(word);

    return n > WORD_MAX ? WORD_MAX : n;
}

int cairn_edit_distance(const char *a, const char *b)
{
    size_t n = cut_length(a), m = cut_length(b);
    int rows[3][WORD_MAX + 1], *row = rows[0], *above = rows[1], *above2 = rows[2], *spare;

    for (size_t j = 0; j <= m; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        spare = above2;
        above2 = above;
        above = row;
        row = spare;
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int best = above[j - 1] + (a[i - 1] != b[j - 1]);

            if (above[j] + 1 < best)
                best = above[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && above2[j - 2] + 1 < best)
                best = above2[j - 2] + 1;
            row[j] = best;
        }
    }
    return row[m];
}

const char *cairn_nearest(const char *word, const char *const *names, size_t n)
{
    const char *found = NULL;
    int nearest = DISTANCE_MAX + 1;

    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(word) > strlen(names[i]) ? strlen(word) : strlen(names[i]);
        int d = cairn_edit_distance(word, names[i]);

        if (d < nearest && (size_t)d <= length / 3) {
            nearest = d;
            found = names[i];
        }
    }
    return found;
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

int cairn_parse_u64(const char *s, uint64_t *out)
{
    uint64_t v = 0;

    if (!*s)
        return 0;
    for (; *s; s++)
        if (!is_digit(*s) || __builtin_mul_overflow(v, (uint64_t)10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))
            return 0;
    *out = v;
    return 1;
}

size_t cairn_put_i64(char *out, int64_t v)
{
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    char digits[CAIRN_I64_CHARS];
    size_t n = 0, at = 0;

    do
        digits[n++] = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0)
        out[at++] = '-';
    while (n)
        out[at++] = digits[--n];
    return at;
}

int cairn_parse_i64(const char *s, int64_t *out)
{
    int negative = *s == '-';
    uint64_t v;

    if (*s == '-' || *s == '+')
        s++;
    if (!cairn_parse_u64(s, &v) || v > (uint64_t)INT64_MAX + (uint64_t)negative)
        return 0;
    *out = negative ? (int64_t)(0 - v) : (int64_t)v;
    return 1;
}

/* [+-] digits [. digits] [e [+-] digits], a digit before or after the point: no hex, no inf, no blanks. */
static int decimal_form(const char *s)
{
    int digits = 0;

    if (*s == '-' || *s == '+')
        s++;
    for (; is_digit(*s); s++)
        digits++;
    if (*s == '.')
        for (s++; is_digit(*s); s++)
            digits++;
    if (!digits)
        return 0;
    if (*s == 'e' || *s == 'E') {
        s++;
        if (*s == '-' || *s == '+')
            s++;
        if (!is_digit(*s))
            return 0;
        while (is_digit(*s))
            s++;
    }
    return !*s;
}

int cairn_parse_double(const char *s, double *out)
{
    double v;

    if (!decimal_form(s))
        return 0;
    v = strtod(s, NULL);
    if (!isfinite(v))
        return 0;
    *out = v;
    return 1;
}

int32_t cairn_utf8_next(const unsigned char *p, size_t n, size_t *used)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t cp;
    size_t len;

    *used = 1;
    if (!n)
        return -1;
    if (p[0] < 0x80)
        return p[0];
    len = p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
    if (p[0] < 0xC2 || p[0] > 0xF4 || n < len)
        return -1;
    cp = p[0] & (0x7Fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return -1;
        cp = cp << 6 | (p[i] & 0x3Fu);
    }
    if (cp < least[len] || cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
        return -1; /* overlong, beyond Unicode, or half a surrogate pair */
    *used = len;
    return (int32_t)cp;
}

void cairn_str_put_utf8(struct cairn_str *s, uint32_t cp)
{
    char b[4];
    size_t n;

    if (cp < 0x80) {
        b[0] = (char)cp;
        n = 1;
    } else if (cp < 0x800) {
        b[0] = (char)(0xC0 | cp >> 6);
        b[1] = (char)(0x80 | (cp & 0x3F));
        n = 2;
    } else if (cp < 0x10000) {
        b[0] = (char)(0xE0 | cp >> 12);
        b[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        b[2] = (char)(0x80 | (cp & 0x3F));
        n = 3;
    } else {
        b[0] = (char)(0xF0 | cp >> 18);
        b[1] = (char)(0x80 | (cp >> 12 & 0x3F));
        b[2] = (char)(0x80 | (cp >> 6 & 0x3F));
        b[3] = (char)(0x80 | (cp & 0x3F));
        n = 4;
    }
    cairn_str_add(s, b, n);
}
