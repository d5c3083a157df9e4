/* skim.c - see skim.h. */
#include "text/skim.h"

#include <string.h>

static size_t blanks(const char *s, size_t n, size_t i)
{
    while (i < n && (s[i] == ' ' || s[i] == '\n' || s[i] == '\r' || s[i] == '\t'))
        i++;
    return i;
}

/* s[i] is a quote: the index behind the one that closes; 0: there is none. */
static size_t string_end(const char *s, size_t n, size_t i)
{
    for (i++; i < n; i++) {
        const char *q = memchr(s + i, '"', n - i);
        size_t slashes = 0;

        if (!q)
            return 0;
        i = (size_t)(q - s);
        while (s[i - 1 - slashes] == '\\') /* ends at the quote that opens */
            slashes++;
        if (slashes % 2 == 0)
            return i + 1;
    }
    return 0;
}

/* The index behind the value that begins at s[i]; 0: it has no end. */
static size_t value_end(const char *s, size_t n, size_t i)
{
    size_t depth = 0;

    while (i < n) {
        char c = s[i];

        if (c == '"') {
            i = string_end(s, n, i);
            if (!i)
                return 0;
        } else {
            if (c == '{' || c == '[')
                depth++;
            else if ((c == '}' || c == ']') && !depth)
                return i; /* a number or a word ended before */
            else if (c == '}' || c == ']')
                depth--;
            else if (!depth && (c == ',' || c == ' ' || c == '\n' || c == '\r' || c == '\t'))
                return i;
            i++;
            if (depth || (c != '}' && c != ']'))
                continue;
        }
        if (!depth)
            return i;
    }
    return 0;
}

int cairn_skim_member(const char *text, size_t n, size_t at, const char *key, struct cairn_skim_span *value)
{
    size_t want = strlen(key), i = blanks(text, n, at);

    if (i >= n || text[i] != '{')
        return 0;
    for (i = blanks(text, n, i + 1); i < n && text[i] == '"';) {
        size_t name = i + 1, end = string_end(text, n, i);

        if (!end)
            return 0;
        i = blanks(text, n, end);
        if (i >= n || text[i] != ':')
            return 0;
        value->at = blanks(text, n, i + 1);
        value->end = value_end(text, n, value->at);
        if (value->end <= value->at)
            return 0;
        if (end - 1 - name == want && !memcmp(text + name, key, want))
            return 1;
        i = blanks(text, n, value->end);
        if (i >= n || text[i] != ',')
            return 0;
        i = blanks(text, n, i + 1);
    }
    return 0;
}

static int hex4(const char *p, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                            : 16;

        if (d > 15)
            return 0;
        *out = *out << 4 | d;
    }
    return 1;
}

/* The bytes of a string's inside, n of them; 0: an escape that is none. */
static int unescape(const char *p, size_t n, struct cairn_str *out)
{
    static const char plain[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";

    cairn_str_clear(out);
    for (size_t i = 0; i < n;) {
        const char *slash = memchr(p + i, '\\', n - i), *known;
        size_t run = slash ? (size_t)(slash - p) - i : n - i;
        uint32_t a, b;

        cairn_str_add(out, p + i, run);
        i += run;
        if (!slash)
            break;
        if (i + 1 >= n)
            return 0;
        if (p[i + 1] != 'u') {
            if (!(known = strchr(plain, p[i + 1])) || !*known)
                return 0;
            cairn_str_putc(out, means[known - plain]);
            i += 2;
            continue;
        }
        if (i + 6 > n || !hex4(p + i + 2, &a))
            return 0;
        i += 6;
        if (a >= 0xd800 && a < 0xdc00) {
            if (i + 6 > n || p[i] != '\\' || p[i + 1] != 'u' || !hex4(p + i + 2, &b) || b < 0xdc00 || b > 0xdfff)
                return 0;
            a = 0x10000 + ((a - 0xd800) << 10) + (b - 0xdc00);
            i += 6;
        } else if (a >= 0xdc00 && a < 0xe000) {
            return 0;
        }
        cairn_str_put_utf8(out, a);
    }
    return !out->oom;
}

int cairn_skim_numbers(const char *text, struct cairn_skim_span object,
                       int (*fn)(void *arg, const struct cairn_str *name, int64_t number), void *arg)
{
    struct cairn_str name = {0};
    size_t n = object.end, i = blanks(text, n, object.at);
    int ok = i < n && text[i] == '{';

    i = ok ? blanks(text, n, i + 1) : n;
    while (ok && i < n && text[i] != '}') {
        size_t from = i + 1, digits;
        int64_t v = 0;

        ok = text[i] == '"' && (i = string_end(text, n, i)) != 0 && unescape(text + from, i - 1 - from, &name);
        i = ok ? blanks(text, n, i) : i;
        ok = ok && i < n && text[i] == ':';
        i = ok ? blanks(text, n, i + 1) : i;
        for (digits = 0; ok && i < n && text[i] >= '0' && text[i] <= '9' && digits < 18; digits++, i++)
            v = 10 * v + (text[i] - '0');
        ok = ok && digits && i < n && fn(arg, &name, v);
        i = ok ? blanks(text, n, i) : i;
        if (ok && i < n && text[i] == ',') {
            i = blanks(text, n, i + 1);
            ok = i < n && text[i] == '"';
        } else {
            ok = ok && i < n && text[i] == '}';
            break;
        }
    }
    cairn_str_free(&name);
    return ok && i < n && text[i] == '}';
}
