/* split.c - pre-tokens by hand for the two known expressions, by pcre2 for the others, as split.h says. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/split.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

#define CODE_POINTS 0x110000
/* White_Space of Unicode, and all the rest, as ranges for a character class. */
#define SPACES "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NO_SPACES                                                                                                                  \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"             \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"

enum class { UNKNOWN = 0, LETTER, NUMBER, SPACE, OTHER }; /* LETTER to SPACE: groups of the expression in classes_make */

struct cairn_split {
    int digits; /* 3 or 1: the hand-written way, with so many digits at most in a pre-token; 0: pcre2 */
    pcre2_code *code;
};

struct cairn_split_work {
    pcre2_match_data *match; /* NULL for the hand-written way */
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* --- compiling --- */

static enum cairn_status refuse(const char *what, size_t n, struct cairn_error *err)
{
    return cairn_fail(err, CAIRN_EDATA, "regular expression: \"%.*s\" is read differently by the engines and not supported", (int)n,
                      what);
}

/* Flags of "(?flags:" or "(?flags)": i is the same everywhere, other letters are not. */
static enum cairn_status check_group(const char *p, size_t n, struct cairn_error *err)
{
    size_t i = 2;

    if (n >= 2 && p[1] == '*')
        return refuse(p, 2, err);
    if (n < 3 || p[1] != '?' || !(p[2] == '-' || (p[2] >= 'a' && p[2] <= 'z') || (p[2] >= 'A' && p[2] <= 'Z')))
        return CAIRN_OK;
    while (i < n && (p[i] == 'i' || p[i] == '-'))
        i++;
    return i < n && (p[i] == ':' || p[i] == ')') ? CAIRN_OK : refuse(p, i < n ? i + 1 : n, err);
}

/* One escape at p (p[0] is the backslash): appends pcre2's form, sets *used. */
static enum cairn_status translate_escape(const char *p, size_t n, int in_class, struct cairn_str *out, size_t *used,
                                          struct cairn_error *err)
{
    if (n < 2)
        return cairn_fail(err, CAIRN_EDATA, "regular expression: it ends in a backslash");
    *used = 2;
    if (p[1] == 's' || p[1] == 'S') {
        cairn_str_puts(out, in_class ? "" : "[");
        cairn_str_puts(out, p[1] == 's' ? SPACES : NO_SPACES);
        cairn_str_puts(out, in_class ? "" : "]");
    } else if (p[1] == 'u') {
        if (n < 6 || strspn(p + 2, "0123456789abcdefABCDEF") < 4)
            return refuse(p, 2, err);
        cairn_str_printf(out, "\\x{%.4s}", p + 2);
        *used = 6;
    } else if (((p[1] >= 'a' && p[1] <= 'z') || (p[1] >= 'A' && p[1] <= 'Z') || (p[1] >= '0' && p[1] <= '9')) &&
               !memchr("pPrntfdDx", p[1], 9)) {
        return refuse(p, 2, err);
    } else {
        const char *close = n > 2 && p[2] == '{' && memchr("pPx", p[1], 3) ? memchr(p, '}', n) : NULL;

        if (close)
            *used = (size_t)(close - p) + 1;
        cairn_str_add(out, p, *used);
    }
    return CAIRN_OK;
}

/* A repetition {...}: "{,n}" and "{n,m}+" mean different things to the two engines. p is NUL-terminated. */
static enum cairn_status check_repeat(const char *p, struct cairn_error *err)
{
    const char *close = strchr(p, '}');

    return p[1] == ',' || (close && close[1] == '+') ? refuse(p, close ? (size_t)(close - p) + 2 : 2, err) : CAIRN_OK;
}

/* Rewrites Oniguruma's reading into pcre2's. pattern is NUL-terminated beyond n. */
static enum cairn_status translate(const char *pattern, size_t n, struct cairn_str *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    int in_class = 0;
    size_t used;

    if (memchr(pattern, 0, n))
        return cairn_fail(err, CAIRN_EDATA, "regular expression: it holds a NUL");
    for (size_t i = 0; i < n; i += used) {
        const char *p = pattern + i;

        used = 1;
        if (*p == '\\') {
            TRY(translate_escape(p, n - i, in_class, out, &used, err));
            continue;
        }
        if (in_class) {
            if (*p == '[' || (*p == '&' && p[1] == '&'))
                TRY(refuse(p, 2, err));
            if (*p == ']')
                in_class = 0;
        } else if (*p == '[') {
            in_class = 1;
            if (p[1] == '^') { /* a ']' in first place is literal to one engine only */
                cairn_str_putc(out, '[');
                p++;
                used = 2;
            }
            if (p[1] == ']')
                TRY(refuse(p, 2, err));
        } else if (*p == '(') {
            TRY(check_group(p, n - i, err));
        } else if (*p == '{') {
            TRY(check_repeat(p, err));
        }
        cairn_str_putc(out, *p);
    }
    if (out->oom)
        TRY(CAIRN_NOMEM(err));
out:
    return st;
}

static enum cairn_status compile(pcre2_code **code, const char *pattern, size_t n, struct cairn_error *err)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    PCRE2_UCHAR text[160];
    PCRE2_SIZE offset = 0;
    int number = 0;

    if (!context)
        return CAIRN_NOMEM(err);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    *code = pcre2_compile((PCRE2_SPTR)pattern, n, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &number,
                          &offset, context);
    pcre2_compile_context_free(context);
    if (!*code && number == PCRE2_ERROR_HEAP_FAILED)
        return CAIRN_NOMEM(err);
    if (!*code) {
        if (pcre2_get_error_message(number, text, sizeof text) < 0)
            text[0] = 0;
        return cairn_fail(err, CAIRN_EDATA, "regular expression: %s at byte %zu of its translated form", (const char *)text,
                          (size_t)offset);
    }
    pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE); /* without JIT pcre2_match interprets: same matches, slower */
    return CAIRN_OK;
}

/* --- character classes, from pcre2: those of a block of code points when the first of them is met --- */

#define BLOCK 256

static struct {
    pthread_once_t once;
    enum cairn_status st;
    _Atomic(uint8_t) *of; /* (CODE_POINTS) enum class */
    pthread_mutex_t lock; /* of what follows */
    pcre2_code *code;
    pcre2_match_data *match;
} classes = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local enum cairn_status class_failed; /* within a call of cairn_split_next */

static int32_t decode(const char *text, size_t *at)
{
    const unsigned char *p = (const unsigned char *)text + *at;

    if (p[0] < 0x80) {
        *at += 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *at += 2;
        return (p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    }
    if (p[0] < 0xf0) {
        *at += 3;
        return (p[0] & 0x0f) << 12 | (p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    }
    *at += 4;
    return (p[0] & 0x07) << 18 | (p[1] & 0x3f) << 12 | (p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}

/* Under the lock. */
static enum cairn_status block_classify(int32_t begin)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_str text = {0};
    uint8_t of[BLOCK];
    size_t at = 0;
    int rc;

    memset(of, OTHER, sizeof of);
    for (int32_t c = begin; c < begin + BLOCK; c++)
        if (c < 0xd800 || c > 0xdfff)
            cairn_str_put_utf8(&text, (uint32_t)c);
    if (text.oom)
        TRY(CAIRN_ENOSPACE);
    while ((rc = pcre2_match(classes.code, (PCRE2_SPTR)cairn_str_z(&text), text.len, at, PCRE2_NO_UTF_CHECK, classes.match, NULL)) > 1) {
        const PCRE2_SIZE *o = pcre2_get_ovector_pointer(classes.match);

        for (at = o[0]; at < o[1];)
            of[decode(text.p, &at) - begin] = (uint8_t)(rc - 1); /* the group that matched is the last one set */
    }
    if (rc != PCRE2_ERROR_NOMATCH)
        TRY(rc == PCRE2_ERROR_NOMEMORY ? CAIRN_ENOSPACE : CAIRN_EBUG);
    for (int i = 0; i < BLOCK; i++)
        atomic_store_explicit(&classes.of[begin + i], of[i], memory_order_relaxed); /* each stands for itself */
out:
    cairn_str_free(&text);
    return st;
}

/* Of a code point that nobody has met. What fails is told by whoever called cairn_split_next. */
static enum class class_find(int32_t c)
{
    enum cairn_status st = CAIRN_OK;
    enum class k;

    pthread_mutex_lock(&classes.lock);
    k = atomic_load_explicit(&classes.of[c], memory_order_relaxed);
    if (k == UNKNOWN)
        st = block_classify(c - c % BLOCK);
    pthread_mutex_unlock(&classes.lock);
    if (st != CAIRN_OK) {
        class_failed = st;
        return OTHER;
    }
    return k == UNKNOWN ? atomic_load_explicit(&classes.of[c], memory_order_relaxed) : k;
}

static void classes_make(void)
{
    static const char pattern[] = "(\\p{L}+)|(\\p{N}+)|([" SPACES "]+)";

    classes.of = calloc(CODE_POINTS, 1);
    classes.st = classes.of ? compile(&classes.code, pattern, sizeof pattern - 1, NULL) : CAIRN_ENOSPACE;
    classes.match = classes.st == CAIRN_OK ? pcre2_match_data_create_from_pattern(classes.code, NULL) : NULL;
    if (classes.st == CAIRN_OK && !classes.match)
        classes.st = CAIRN_ENOSPACE;
}

/* --- create, destroy --- */

enum cairn_status cairn_split_create(struct cairn_split **out, const char *pattern, size_t n, int by_regex, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_str translated = {0};
    struct cairn_split *s = calloc(1, sizeof *s);

    if (!s)
        return CAIRN_NOMEM(err);
    if (!by_regex && n == sizeof CAIRN_SPLIT_GLM - 1 && !memcmp(pattern, CAIRN_SPLIT_GLM, n))
        s->digits = 3;
    else if (!by_regex && n == sizeof CAIRN_SPLIT_QWEN - 1 && !memcmp(pattern, CAIRN_SPLIT_QWEN, n))
        s->digits = 1;
    if (s->digits) {
        pthread_once(&classes.once, classes_make);
        if (classes.st != CAIRN_OK)
            TRY(cairn_fail(err, classes.st, "character classes: pcre2 failed or there is no memory"));
    } else {
        TRY(translate(pattern, n, &translated, err));
        TRY(compile(&s->code, cairn_str_z(&translated), translated.len, err));
    }
    *out = s;
    s = NULL;
out:
    cairn_split_destroy(s);
    cairn_str_free(&translated);
    return st;
}

void cairn_split_destroy(struct cairn_split *s)
{
    if (!s)
        return;
    pcre2_code_free(s->code);
    free(s);
}

int cairn_split_is_fast(const struct cairn_split *s)
{
    return s->digits != 0;
}

struct cairn_split_work *cairn_split_work_create(const struct cairn_split *s)
{
    struct cairn_split_work *w = calloc(1, sizeof *w);

    if (!w || s->digits)
        return w;
    w->match = pcre2_match_data_create_from_pattern(s->code, NULL);
    w->context = pcre2_match_context_create(NULL);
    if (!w->match || !w->context) {
        cairn_split_work_destroy(w);
        return NULL;
    }
    w->stack = pcre2_jit_stack_create(32 * 1024, 1024 * 1024, NULL); /* NULL without JIT */
    if (w->stack)
        pcre2_jit_stack_assign(w->context, NULL, w->stack);
    return w;
}

void cairn_split_work_destroy(struct cairn_split_work *w)
{
    if (!w)
        return;
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    pcre2_jit_stack_free(w->stack);
    free(w);
}

/* --- by hand --- */

static enum class next_class(const char *text, size_t *at)
{
    int32_t c = decode(text, at);
    enum class k = atomic_load_explicit(&classes.of[c], memory_order_relaxed);

    return k == UNKNOWN ? class_find(c) : k;
}

/* Past the run of class k at `at`. */
static size_t run(const char *text, size_t n, size_t at, enum class k)
{
    while (at < n) {
        size_t next = at;

        if (next_class(text, &next) != k)
            break;
        at = next;
    }
    return at;
}

/* Length of 's 't 're 've 'm 'll 'd in any case behind the apostrophe at `at`, or 0. U+017F is a form of s. */
static size_t contraction(const char *text, size_t n, size_t at)
{
    size_t left = n - at - 1;
    char a, b;

    if (!left)
        return 0;
    a = (char)(text[at + 1] | 0x20); /* lower case; no other byte becomes one of these letters */
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (left < 2)
        return 0;
    if (!memcmp(text + at + 1, "\xc5\xbf", 2))
        return 3;
    b = (char)(text[at + 2] | 0x20);
    return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

static size_t next_by_hand(const struct cairn_split *s, const char *text, size_t n, size_t at)
{
    size_t after = at, end, more;
    enum class k = next_class(text, &after), second;
    char c = text[at];

    if (c == '\'' && (more = contraction(text, n, at)))
        return at + more;
    if (k == LETTER)
        return run(text, n, after, LETTER);
    if (k == NUMBER) {
        end = after;
        for (int i = 1; i < s->digits && end < n; i++) {
            size_t next = end;

            if (next_class(text, &next) != NUMBER)
                break;
            end = next;
        }
        return end;
    }
    end = after;
    second = end < n ? next_class(text, &end) : SPACE; /* the end of the text is neither letter nor OTHER */
    if (second == LETTER && c != '\r' && c != '\n')
        return run(text, n, end, LETTER);
    if (k == OTHER || (c == ' ' && second == OTHER)) {
        end = run(text, n, after, OTHER);
        while (end < n && (text[end] == '\r' || text[end] == '\n'))
            end++;
        return end;
    }
    /* White space: up to its last line break; else all of it at the end of the text; else all but the last one. */
    more = 0;
    for (end = at; end < n;) {
        size_t next = end;

        if (next_class(text, &next) != SPACE)
            break;
        if (text[end] == '\r' || text[end] == '\n')
            more = next;
        after = end; /* start of the last one */
        end = next;
    }
    if (more)
        return more;
    return end == n || after == at ? end : after;
}

/* --- by pcre2 --- */

static enum cairn_status next_by_regex(const struct cairn_split *s, struct cairn_split_work *w, const char *text, size_t n,
                                       size_t at, size_t *end, struct cairn_error *err)
{
    for (size_t from = at;;) {
        int rc = pcre2_match(s->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, w->match, w->context);
        const PCRE2_SIZE *o = pcre2_get_ovector_pointer(w->match);

        if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter keeps its stack on the heap */
            rc = pcre2_match(s->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->match, w->context);
        if (rc == PCRE2_ERROR_NOMATCH) {
            *end = n;
            return CAIRN_OK;
        }
        if (rc == PCRE2_ERROR_NOMEMORY)
            return CAIRN_NOMEM(err);
        if (rc < 0 || o[0] < from || o[1] < o[0] || o[1] > n)
            return cairn_fail(err, CAIRN_EDATA, "regular expression: pcre2 gave up at byte %zu of %zu (error %d)", from, n, rc);
        if (o[0] > at || o[1] > at) { /* a gap up to the match, or the match itself */
            *end = o[0] > at ? o[0] : o[1];
            return CAIRN_OK;
        }
        decode(text, &from); /* matched nothing, right here: a cut that is there already. Look further. */
        if (from >= n) {
            *end = n;
            return CAIRN_OK;
        }
    }
}

enum cairn_status cairn_split_next(const struct cairn_split *s, struct cairn_split_work *w, const char *text, size_t n, size_t at,
                                   size_t *end, struct cairn_error *err)
{
    if (!s->digits)
        return next_by_regex(s, w, text, n, at, end, err);
    class_failed = CAIRN_OK;
    *end = next_by_hand(s, text, n, at);
    return class_failed == CAIRN_OK ? CAIRN_OK : cairn_fail(err, class_failed, "character classes: pcre2 failed or there is no memory");
}
