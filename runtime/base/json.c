/* json.c - jansson with sentences, one canonical text, and a reader of JSON lines.
 *
 * The canonical text is hashed into the identity of artefacts, so its number forms are part of the format:
 * integers in decimal; a real of integral value below 2^63 as that integer (so 1.0 and 1 are one value, one text),
 * -0.0 as "-0.0"; any other in the fewest of 15, 16 and 17 significant digits ("%.15g", ...) that read back to the
 * same bits, which makes the text a fixed point: parsed and written again it is equal. Object keys are sorted by bytes. Strings are UTF-8; only '"',
 * '\' and control characters are escaped.
 */
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

#define MAX_DEPTH 200
#define MAX_LINE ((size_t)64 << 20) /* bytes of one line of a JSON-lines file */

/* --- parsing --- */

/* Line in which nesting exceeds MAX_DEPTH, or 0. Before jansson sees the text, whose own limit is ten times that. */
static long too_deep(const char *p, size_t n)
{
    long line = 1;
    int depth = 0, quoted = 0;

    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\n')
            line++;
        if (quoted) {
            if (p[i] == '\\')
                i++;
            else if (p[i] == '"')
                quoted = 0;
        } else if (p[i] == '"') {
            quoted = 1;
        } else if (p[i] == '[' || p[i] == '{') {
            if (++depth > MAX_DEPTH)
                return line;
        } else if ((p[i] == ']' || p[i] == '}') && depth) {
            depth--;
        }
    }
    return 0;
}

/* The parser says "invalid token" where it had no memory for one, which would make good files look damaged: so its allocations are watched. */
static _Thread_local int starved;
static pthread_once_t watching = PTHREAD_ONCE_INIT;

static void *watched_malloc(size_t n)
{
    void *p = malloc(n);

    starved |= !p;
    return p;
}

static void watch(void)
{
    json_set_alloc_funcs(watched_malloc, free);
}

/* with_line 0: `where` names the line already. */
static enum cairn_status parse(json_t **out, const char *text, size_t n, const char *where, int with_line, struct cairn_error *err)
{
    json_error_t e;
    long deep = too_deep(text, n);
    const char *why = n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? "begins with a byte order mark; save it without one" : e.text;
    json_t *v;

    if (deep && with_line)
        return cairn_fail(err, CAIRN_EDATA, "%s:%ld: nesting deeper than %d", where, deep, MAX_DEPTH);
    if (deep)
        return cairn_fail(err, CAIRN_EDATA, "%s: nesting deeper than %d", where, MAX_DEPTH);
    pthread_once(&watching, watch);
    starved = 0;
    v = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (starved || (!v && json_error_code(&e) == json_error_out_of_memory)) {
        json_decref(v); /* there may be one: of an array that could not grow the parser leaves elements out */
        return CAIRN_NOMEM(err);
    }
    if (!v && with_line)
        return cairn_fail(err, CAIRN_EDATA, "%s:%d:%d: %s", where, e.line, e.column, why);
    if (!v)
        return cairn_fail(err, CAIRN_EDATA, "%s: column %d: %s", where, e.column, why);
    *out = v;
    return CAIRN_OK;
}

enum cairn_status cairn_json_parse(json_t **out, const char *text, size_t n, const char *where, struct cairn_error *err)
{
    return parse(out, text, n, where, 1, err);
}

enum cairn_status cairn_json_load(json_t **out, const char *path, size_t max_bytes, struct cairn_error *err)
{
    char *text = NULL;
    size_t n = 0;
    enum cairn_status st = cairn_file_read(path, max_bytes, &text, &n, err);

    if (st == CAIRN_OK)
        st = parse(out, text, n, path, 1, err);
    free(text);
    return st;
}

/* --- required members --- */

static enum cairn_status member(const json_t *obj, const char *key, const json_t **out, const char *where, struct cairn_error *err)
{
    if (!json_is_object(obj))
        return cairn_fail(err, CAIRN_EDATA, "%s: expected an object with key \"%s\"", where, key);
    *out = json_object_get(obj, key);
    if (!*out)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\" is missing", where, key);
    return CAIRN_OK;
}

static enum cairn_status expected(const char *what, const char *key, const char *where, struct cairn_error *err)
{
    return cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\": expected %s", where, key, what);
}

enum cairn_status cairn_json_i64(const json_t *obj, const char *key, int64_t min, int64_t max, int64_t *out, const char *where,
                                 struct cairn_error *err)
{
    const json_t *v;
    enum cairn_status st = member(obj, key, &v, where, err);
    int64_t i;

    if (st != CAIRN_OK)
        return st;
    if (!json_is_integer(v))
        return expected("an integer", key, where, err);
    i = json_integer_value(v);
    if (i < min || i > max)
        return cairn_fail(err, CAIRN_EDATA, "%s: key \"%s\": %lld is not in %lld..%lld", where, key, (long long)i, (long long)min,
                          (long long)max);
    *out = i;
    return CAIRN_OK;
}

enum cairn_status cairn_json_f64(const json_t *obj, const char *key, double *out, const char *where, struct cairn_error *err)
{
    const json_t *v;
    enum cairn_status st = member(obj, key, &v, where, err);

    if (st != CAIRN_OK)
        return st;
    if (!json_is_number(v))
        return expected("a number", key, where, err);
    *out = json_number_value(v);
    return CAIRN_OK;
}

enum cairn_status cairn_json_bool(const json_t *obj, const char *key, int *out, const char *where, struct cairn_error *err)
{
    const json_t *v;
    enum cairn_status st = member(obj, key, &v, where, err);

    if (st != CAIRN_OK)
        return st;
    if (!json_is_boolean(v))
        return expected("true or false", key, where, err);
    *out = json_is_true(v);
    return CAIRN_OK;
}

/* A string with a NUL inside is valid JSON, but no C string: whoever wants its bytes takes jansson's length. */
enum cairn_status cairn_json_string(const json_t *obj, const char *key, const char **out, const char *where,
                                    struct cairn_error *err)
{
    const json_t *v;
    enum cairn_status st = member(obj, key, &v, where, err);

    if (st != CAIRN_OK)
        return st;
    if (!json_is_string(v))
        return expected("a string", key, where, err);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return expected("a string without NUL characters", key, where, err);
    *out = json_string_value(v);
    return CAIRN_OK;
}

enum cairn_status cairn_json_object(const json_t *obj, const char *key, json_t **out, const char *where, struct cairn_error *err)
{
    const json_t *v;
    enum cairn_status st = member(obj, key, &v, where, err);

    if (st != CAIRN_OK)
        return st;
    if (!json_is_object(v))
        return expected("an object", key, where, err);
    *out = json_object_get(obj, key);
    return CAIRN_OK;
}

enum cairn_status cairn_json_array(const json_t *obj, const char *key, json_t **out, const char *where, struct cairn_error *err)
{
    const json_t *v;
    enum cairn_status st = member(obj, key, &v, where, err);

    if (st != CAIRN_OK)
        return st;
    if (!json_is_array(v))
        return expected("an array", key, where, err);
    *out = json_object_get(obj, key);
    return CAIRN_OK;
}

/* --- writing --- */

void cairn_json_put_string(struct cairn_str *s, const char *p, size_t n)
{
    cairn_str_putc(s, '"');
    for (size_t i = 0, used; i < n; i += used) {
        int32_t cp = cairn_utf8_next((const unsigned char *)p + i, n - i, &used);

        switch (cp) {
        case '"': cairn_str_puts(s, "\\\""); break;
        case '\\': cairn_str_puts(s, "\\\\"); break;
        case '\n': cairn_str_puts(s, "\\n"); break;
        case '\r': cairn_str_puts(s, "\\r"); break;
        case '\t': cairn_str_puts(s, "\\t"); break;
        case -1: cairn_str_puts(s, "\xEF\xBF\xBD"); break;
        default:
            if (cp < 0x20 || cp == 0x7F)
                cairn_str_printf(s, "\\u%04x", (unsigned)cp);
            else
                cairn_str_add(s, p + i, used);
        }
    }
    cairn_str_putc(s, '"');
}

static void put_shortest(struct cairn_str *s, double x)
{
    char text[40];

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    cairn_str_puts(s, text);
}

void cairn_json_put_double(struct cairn_str *s, double x)
{
    if (!isfinite(x))
        cairn_str_puts(s, "null");
    else if (x == 0 && signbit(x))
        cairn_str_puts(s, "-0.0"); /* "-0" would be read as the integer 0 */
    else if (x >= -0x1p63 && x < 0x1p63 && x == (double)(int64_t)x)
        cairn_str_printf(s, "%lld", (long long)x);
    else
        put_shortest(s, x);
}

json_t *cairn_json_text(const char *p, size_t n)
{
    struct cairn_str quoted = {0};
    json_t *v;

    cairn_json_put_string(&quoted, p, n);
    v = quoted.oom ? NULL : json_loadb(cairn_str_z(&quoted), quoted.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    cairn_str_free(&quoted);
    return v;
}

void cairn_json_put_float(struct cairn_str *s, float x)
{
    if (!isfinite(x) || x == 0)
        cairn_json_put_double(s, (double)x);
    else
        cairn_str_printf(s, "%.9g", (double)x);
}

struct writer {
    struct cairn_str *s;
    int sorted;
    int indent; /* -1: compact */
};

static void newline(const struct writer *w, int depth)
{
    if (w->indent < 0)
        return;
    cairn_str_putc(w->s, '\n');
    for (int i = 0; i < depth * w->indent; i++)
        cairn_str_putc(w->s, ' ');
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void write_value(const struct writer *w, const json_t *v, int depth);

static void write_object(const struct writer *w, json_t *v, int depth)
{
    size_t n = json_object_size(v), i = 0;
    const char **keys, *key;
    json_t *item;

    if (!n) {
        cairn_str_puts(w->s, "{}");
        return;
    }
    if (!(keys = malloc(n * sizeof *keys))) {
        w->s->oom = 1;
        return;
    }
    json_object_foreach(v, key, item)
        keys[i++] = key;
    if (w->sorted)
        qsort(keys, n, sizeof *keys, by_bytes);
    cairn_str_putc(w->s, '{');
    for (i = 0; i < n; i++) {
        if (i)
            cairn_str_putc(w->s, ',');
        newline(w, depth + 1);
        cairn_json_put_string(w->s, keys[i], strlen(keys[i]));
        cairn_str_puts(w->s, w->indent < 0 ? ":" : ": ");
        write_value(w, json_object_get(v, keys[i]), depth + 1);
    }
    newline(w, depth);
    cairn_str_putc(w->s, '}');
    free(keys);
}

static int all_scalars(const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (json_is_object(json_array_get(v, i)) || json_is_array(json_array_get(v, i)))
            return 0;
    return 1;
}

static void write_array(const struct writer *w, const json_t *v, int depth)
{
    size_t n = json_array_size(v);
    int flat = all_scalars(v); /* a shape or a list of names stays on one line */

    cairn_str_putc(w->s, '[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            cairn_str_puts(w->s, flat && w->indent >= 0 ? ", " : ",");
        if (!flat)
            newline(w, depth + 1);
        write_value(w, json_array_get(v, i), depth + 1);
    }
    if (!flat)
        newline(w, depth);
    cairn_str_putc(w->s, ']');
}

static void write_value(const struct writer *w, const json_t *v, int depth)
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT: write_object(w, (json_t *)(uintptr_t)v, depth); break;
    case JSON_ARRAY: write_array(w, v, depth); break;
    case JSON_STRING: cairn_json_put_string(w->s, json_string_value(v), json_string_length(v)); break;
    case JSON_INTEGER: cairn_str_printf(w->s, "%lld", (long long)json_integer_value(v)); break;
    case JSON_REAL: cairn_json_put_double(w->s, json_real_value(v)); break;
    case JSON_TRUE: cairn_str_puts(w->s, "true"); break;
    case JSON_FALSE: cairn_str_puts(w->s, "false"); break;
    case JSON_NULL: cairn_str_puts(w->s, "null"); break;
    }
}

void cairn_json_canonical(struct cairn_str *s, const json_t *v)
{
    struct writer w = {.s = s, .sorted = 1, .indent = -1};

    write_value(&w, v, 0);
}

void cairn_json_pretty(struct cairn_str *s, const json_t *v)
{
    struct writer w = {.s = s, .indent = 2};

    write_value(&w, v, 0);
    cairn_str_putc(s, '\n');
}

/* --- JSON lines --- */

struct cairn_jsonl {
    char *path, *where; /* where: "FILE:LINE", rewritten per line */
    size_t where_size;
    int fd, eof;
    char *buf; /* bytes begin..end are read and not yet used; scanned of them hold no newline */
    size_t cap, begin, end, scanned;
    int64_t line;
    json_t *v;
};

enum cairn_status cairn_jsonl_open(struct cairn_jsonl **out, const char *path, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_jsonl *r = calloc(1, sizeof *r);

    if (!r)
        return CAIRN_NOMEM(err);
    r->where_size = strlen(path) + 24;
    r->path = cairn_format("%s", path);
    r->where = calloc(1, r->where_size);
    r->cap = 64 * 1024;
    r->buf = malloc(r->cap);
    r->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (r->fd < 0)
        TRY(errno == ENOENT || errno == ENOTDIR ? cairn_fail(err, CAIRN_EDATA, "%s: no such file", path)
                                                : cairn_fail_errno(err, errno, "open %s", path));
    if (!r->path || !r->where || !r->buf)
        TRY(CAIRN_NOMEM(err));
    snprintf(r->where, r->where_size, "%s:0", path);
    *out = r;
    r = NULL;
out:
    cairn_jsonl_close(r);
    return st;
}

void cairn_jsonl_close(struct cairn_jsonl *r)
{
    if (!r)
        return;
    if (r->fd >= 0)
        close(r->fd);
    json_decref(r->v);
    free(r->path);
    free(r->where);
    free(r->buf);
    free(r);
}

/* More bytes behind end; sets eof when there are none. */
static enum cairn_status fill(struct cairn_jsonl *r, struct cairn_error *err)
{
    ssize_t got;

    if (r->begin) {
        memmove(r->buf, r->buf + r->begin, r->end - r->begin);
        r->end -= r->begin;
        r->begin = 0;
    }
    if (r->end == r->cap) {
        size_t cap = r->cap * 2;
        char *p;

        if (r->cap > MAX_LINE)
            return cairn_fail(err, CAIRN_EDATA, "%s:%lld: line longer than %zu MiB", r->path, (long long)r->line + 1,
                              MAX_LINE >> 20);
        if (!(p = realloc(r->buf, cap)))
            return CAIRN_NOMEM(err);
        r->buf = p;
        r->cap = cap;
    }
    got = cairn_fd_read_some(r->fd, r->buf + r->end, r->cap - r->end);
    if (got < 0)
        return cairn_fail_errno(err, errno, "read %s", r->path);
    r->end += (size_t)got;
    r->eof = got == 0;
    return CAIRN_OK;
}

static int blank(const char *p, size_t n)
{
    while (n && (*p == ' ' || *p == '\t' || *p == '\r'))
        p++, n--;
    return !n;
}

enum cairn_status cairn_jsonl_next(struct cairn_jsonl *r, const json_t **v, struct cairn_error *err)
{
    enum cairn_status st;
    char *line, *stop;
    size_t n;

    json_decref(r->v);
    r->v = NULL;
    for (;;) {
        stop = memchr(r->buf + r->begin + r->scanned, '\n', r->end - r->begin - r->scanned);
        if (stop || r->eof)
            break;
        r->scanned = r->end - r->begin;
        if ((st = fill(r, err)) != CAIRN_OK)
            return st;
    }
    r->scanned = 0;
    if (!stop && r->begin == r->end) {
        *v = NULL;
        return CAIRN_OK;
    }
    line = r->buf + r->begin;
    n = stop ? (size_t)(stop - line) : r->end - r->begin;
    r->begin += n + (stop != NULL); /* whatever the line is worth, the next call is about the next one */
    snprintf(r->where, r->where_size, "%s:%lld", r->path, (long long)++r->line);
    if (n > MAX_LINE)
        return cairn_fail(err, CAIRN_EDATA, "%s: line longer than %zu MiB", r->where, MAX_LINE >> 20);
    if (blank(line, n))
        return cairn_fail(err, CAIRN_EDATA, "%s: blank line", r->where);
    st = parse(&r->v, line, n, r->where, 0, err);
    if (st == CAIRN_OK)
        *v = r->v;
    return st;
}

int64_t cairn_jsonl_line(const struct cairn_jsonl *r)
{
    return r->line;
}

const char *cairn_jsonl_where(const struct cairn_jsonl *r)
{
    return r->where;
}
