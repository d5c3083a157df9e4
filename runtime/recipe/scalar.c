/* scalar.c - reading and printing of the values of scalar.h. */
#include "recipe/scalar.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int digits(const char **p)
{
    const char *s = *p;

    while (**p >= '0' && **p <= '9')
        (*p)++;
    return (int)(*p - s);
}

static int among(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(text, *words) == 0)
            return 1;
    return 0;
}

static void bad(struct cairn_scalar *out, const char *why)
{
    out->kind = CAIRN_SCALAR_BAD;
    out->bad = why;
}

/* 1: text has the form of a decimal number; *is_float tells which. */
static int numeric(const char *text, int *is_float)
{
    const char *p = text;
    int before, after = 0;

    *is_float = 0;
    if (*p == '-' || *p == '+')
        p++;
    before = digits(&p);
    if (*p == '.') {
        p++;
        *is_float = 1;
        after = digits(&p);
    }
    if (before + after == 0)
        return 0;
    if (*p == 'e' || *p == 'E') {
        p++;
        *is_float = 1;
        if (*p == '-' || *p == '+')
            p++;
        if (digits(&p) == 0)
            return 0;
    }
    return *p == 0;
}

void cairn_scalar_resolve(const char *text, struct cairn_scalar *out)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const trues[] = {"true", "True", "TRUE", NULL};
    static const char *const falses[] = {"false", "False", "FALSE", NULL};
    static const char *const infs[] = {".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN", NULL};
    const char *magnitude = text + (*text == '-' || *text == '+');
    int is_float;
    char *end;

    memset(out, 0, sizeof *out);
    out->kind = CAIRN_SCALAR_STRING;
    if (among(text, nulls)) {
        out->kind = CAIRN_SCALAR_NULL;
    } else if (among(text, trues) || among(text, falses)) {
        out->kind = CAIRN_SCALAR_BOOL;
        out->b = among(text, trues);
    } else if (among(magnitude, infs)) {
        bad(out, "infinity and NaN are refused");
    } else if (magnitude[0] == '0' && (magnitude[1] == 'o' || (magnitude[1] >= '0' && magnitude[1] <= '9')) &&
               strspn(magnitude + 2, "0123456789") == strlen(magnitude + 2)) {
        bad(out, "a number with a leading zero is octal to some readers and decimal to others");
    } else if (magnitude[0] == '0' && magnitude[1] == 'x' && magnitude[2] &&
               strspn(magnitude + 2, "0123456789abcdefABCDEF") == strlen(magnitude + 2)) {
        errno = 0;
        out->i = strtoll(text, &end, 16);
        out->f = (double)out->i;
        out->kind = CAIRN_SCALAR_INT;
        if (errno)
            bad(out, "the integer does not fit in 64 bits");
    } else if (numeric(text, &is_float)) {
        errno = 0;
        if (is_float) {
            out->kind = CAIRN_SCALAR_FLOAT;
            out->f = strtod(text, &end);
            if (!isfinite(out->f))
                bad(out, "the number does not fit in a double");
        } else {
            out->kind = CAIRN_SCALAR_INT;
            out->i = strtoll(text, &end, 10);
            out->f = (double)out->i;
            if (errno)
                bad(out, "the integer does not fit in 64 bits");
        }
    }
}

int cairn_scalar_is_old_bool(const char *text)
{
    static const char *const words[] = {"yes", "no", "on", "off", "y", "n"};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(text, words[i]) == 0)
            return 1;
    return 0;
}

void cairn_scalar_put_float(struct cairn_str *out, double x)
{
    char text[40], *e;
    int precision = 1;

    for (; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*g", precision, x);
        if (strtod(text, NULL) == x)
            break;
    }
    if (fabs(x) >= 1 && fabs(x) < 1e15) { /* 600.0, not 6e2: more digits than needed read back to the same bits too */
        int whole = (int)floor(log10(fabs(x))) + 2;

        snprintf(text, sizeof text, "%.*g", precision > whole ? precision : whole, x);
    }
    e = strchr(text, 'e');
    if (!e) {
        cairn_str_puts(out, text);
        if (!strchr(text, '.'))
            cairn_str_puts(out, ".0");
        return;
    }
    /* 1e-05 -> 1e-5; 1e+30 -> 1e30 */
    cairn_str_add(out, text, (size_t)(e + 1 - text));
    e++;
    if (*e == '-')
        cairn_str_putc(out, '-');
    e++;
    while (*e == '0' && e[1])
        e++;
    cairn_str_puts(out, e);
}

static int is_plain(const char *text)
{
    struct cairn_scalar s;

    if (!((text[0] >= 'a' && text[0] <= 'z') || (text[0] >= 'A' && text[0] <= 'Z') || text[0] == '_' || text[0] == '/'))
        return 0;
    if (strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-") != strlen(text) || strlen(text) > 1000 ||
        cairn_scalar_is_old_bool(text))
        return 0;
    cairn_scalar_resolve(text, &s);
    return s.kind == CAIRN_SCALAR_STRING;
}

void cairn_scalar_put_string(struct cairn_str *out, const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t n = strlen(text), used;

    if (is_plain(text)) {
        cairn_str_puts(out, text);
        return;
    }
    cairn_str_putc(out, '"');
    for (; n > 0; p += used, n -= used) {
        int32_t c = cairn_utf8_next(p, n, &used);

        if (c == '"' || c == '\\') {
            cairn_str_putc(out, '\\');
            cairn_str_putc(out, (char)c);
        } else if (c == '\n') {
            cairn_str_puts(out, "\\n");
        } else if (c == '\t') {
            cairn_str_puts(out, "\\t");
        } else if (c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || c == 0xfeff || c == 0xfffe || c == 0xffff) {
            /* controls, YAML's extra line breaks, the byte order mark: escaped, or they would be folded or refused */
            cairn_str_printf(out, "\\u%04x", c < 0 ? 0xfffdu : (unsigned)c);
        } else {
            cairn_str_add(out, p, used);
        }
    }
    cairn_str_putc(out, '"');
}

void cairn_scalar_put_flow(struct cairn_str *out, const json_t *v)
{
    const char *key;
    json_t *item;
    size_t i;
    int first = 1;

    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_NULL:
        cairn_str_puts(out, "null");
        break;
    case JSON_TRUE:
        cairn_str_puts(out, "true");
        break;
    case JSON_FALSE:
        cairn_str_puts(out, "false");
        break;
    case JSON_INTEGER:
        cairn_str_printf(out, "%lld", (long long)json_integer_value(v));
        break;
    case JSON_REAL:
        cairn_scalar_put_float(out, json_real_value(v));
        break;
    case JSON_STRING:
        cairn_scalar_put_string(out, json_string_value(v));
        break;
    case JSON_ARRAY:
        cairn_str_putc(out, '[');
        json_array_foreach(v, i, item)
        {
            if (i)
                cairn_str_puts(out, ", ");
            cairn_scalar_put_flow(out, item);
        }
        cairn_str_putc(out, ']');
        break;
    case JSON_OBJECT:
        cairn_str_putc(out, '{');
        json_object_foreach((json_t *)v, key, item)
        {
            if (!first)
                cairn_str_puts(out, ", ");
            first = 0;
            cairn_scalar_put_string(out, key);
            cairn_str_puts(out, ": ");
            cairn_scalar_put_flow(out, item);
        }
        cairn_str_putc(out, '}');
        break;
    }
}
