/* extract.c - markers, boxes and lines. See extract.h. */
#include "grade/extract.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES_MAX 65536 /* of an answer that runs over several lines */

static const char default_marker[] = "Answer:";

static int is_alnum(char c)
{
    return isalnum((unsigned char)c) != 0 && (unsigned char)c < 0x80;
}

/* Length of the blank, invisible or control character at p (0: none). Line breaks are not blanks here. */
static size_t blank_at(const char *p, size_t n)
{
    const unsigned char *u = (const unsigned char *)p;

    if (n == 0)
        return 0;
    if (u[0] == '\n')
        return 0;
    if (u[0] <= ' ' || u[0] == 127)
        return 1;
    if (n >= 2 && u[0] == 0xC2 && u[1] == 0xA0) /* no-break space */
        return 2;
    if (n >= 3 && u[0] == 0xE2 && u[1] == 0x80 && (u[2] <= 0x8F || u[2] == 0xAF)) /* U+2000..200F, 202F */
        return u[2] >= 0x80 ? 3 : 0;
    if (n >= 3 && u[0] == 0xE2 && u[1] == 0x81 && (u[2] == 0x9F || u[2] == 0xA0)) /* U+205F, 2060 */
        return 3;
    if (n >= 3 && u[0] == 0xE3 && u[1] == 0x80 && u[2] == 0x80) /* ideographic space */
        return 3;
    if (n >= 3 && u[0] == 0xEF && u[1] == 0xBB && u[2] == 0xBF) /* byte order mark */
        return 3;
    return 0;
}

/* Length of the end-of-text marker at p (0: none). */
static size_t end_marker_at(const char *p, size_t n)
{
    static const char *const mark[] = {"<|endoftext|>", "<|user|>",   "<|observation|>", "<|assistant|>",
                                       "<|im_end|>",    "<|eot_id|>", "<|end|>",         "<|end_of_text|>",
                                       "</s>",          "<eos>",      "<end_of_turn>"};

    if (n == 0 || p[0] != '<')
        return 0;
    for (size_t i = 0; i < sizeof mark / sizeof *mark; i++) {
        size_t len = strlen(mark[i]);

        if (n >= len && memcmp(p, mark[i], len) == 0)
            return len;
    }
    return 0;
}

static int is_mark(char c) /* markdown emphasis, quote, heading */
{
    return c == '*' || c == '_' || c == '`' || c == '#' || c == '>';
}

static size_t skip_blanks(const char *p, size_t n, int marks, int breaks)
{
    size_t i = 0;

    while (i < n) {
        size_t b = blank_at(p + i, n - i);

        if (b)
            i += b;
        else if ((marks && is_mark(p[i])) || (breaks && p[i] == '\n'))
            i++;
        else
            break;
    }
    return i;
}

/* Ends the span at the first end-of-text marker, trims blanks and emphasis on both sides. */
static struct cairn_span trim(const char *p, size_t n)
{
    struct cairn_span s = {p, n, NULL};
    size_t lead;

    for (size_t i = 0; i < n; i++)
        if (end_marker_at(p + i, n - i)) {
            s.n = i;
            break;
        }
    lead = skip_blanks(s.p, s.n, 1, 1);
    s.p += lead;
    s.n -= lead;
    while (s.n > 0) {
        size_t cut = 0;

        if (s.p[s.n - 1] == '\n' || is_mark(s.p[s.n - 1]))
            cut = 1;
        for (size_t len = 1; !cut && len <= 3 && len <= s.n; len++)
            if (blank_at(s.p + s.n - len, len) == len)
                cut = len;
        if (!cut)
            break;
        s.n -= cut;
    }
    return s;
}

/* Length of "\boxed{" or "\fbox{" at p, blanks before the brace allowed (0: none). */
static size_t box_at(const char *p, size_t n)
{
    static const char *const name[] = {"\\boxed", "\\fbox"};

    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        size_t len = strlen(name[i]);

        if (n > len && memcmp(p, name[i], len) == 0) {
            while (len < n && p[len] == ' ')
                len++;
            if (len < n && p[len] == '{')
                return len + 1;
        }
    }
    return 0;
}

struct open_brace {
    size_t content; /* where a box's content begins; 0: not a box */
    size_t start;
    size_t chain; /* where the first of a row of boxes begins; start if it stands alone */
};

#define GAP_BYTES_MAX 48

/* Is p[0, n) nothing but what stands between the members of a list: a comma, "or", "and", with blanks and delimiters? */
static int is_list_gap(const char *p, size_t n)
{
    static const char *const link[] = {",", ";", "\\text{or}", "\\text{ or }", "\\text{and}", "\\text{ and }", "or", "and"};
    static const char *const filler[] = {"$", "\\(", "\\)", "\\,", "\\;", "\\ ", "\\quad", "~", "*"};
    size_t i = 0;
    int links = 0;

    if (n > GAP_BYTES_MAX)
        return 0;
    while (i < n) {
        size_t len = blank_at(p + i, n - i);

        for (size_t k = 0; !len && k < sizeof filler / sizeof *filler; k++)
            if (n - i >= strlen(filler[k]) && memcmp(p + i, filler[k], strlen(filler[k])) == 0)
                len = strlen(filler[k]);
        for (size_t k = 0; !len && k < sizeof link / sizeof *link; k++)
            if (n - i >= strlen(link[k]) && memcmp(p + i, link[k], strlen(link[k])) == 0) {
                len = strlen(link[k]);
                links++;
            }
        if (!len)
            return 0;
        i += len;
    }
    return links > 0;
}

/* Last balanced box in text[from, n), one pass. out->p stays NULL if there is none; *opened says if any box began. Boxes
 * in a row ("\\boxed{2} or \\boxed{3}") are one answer, all of them: several candidates are not the last one. */
static enum cairn_status last_box(const char *text, size_t from, size_t n, struct cairn_span *out, int *opened,
                                  struct cairn_error *err)
{
    struct open_brace *stack = NULL;
    size_t depth = 0, cap = 0, best = 0, closed = 0, closed_chain = 0; /* end and chain of the box that closed last */
    int found = 0;
    enum cairn_status st = CAIRN_OK;

    out->p = NULL;
    *opened = 0;
    for (size_t i = from; i < n;) {
        size_t box = text[i] == '\\' ? box_at(text + i, n - i) : 0;

        if (box || text[i] == '{') {
            if (depth == cap) {
                size_t more = cap ? cap * 2 : 64;
                struct open_brace *grown = realloc(stack, more * sizeof *grown);

                if (!grown)
                    TRY(CAIRN_NOMEM(err));
                stack = grown;
                cap = more;
            }
            stack[depth].start = stack[depth].chain = i;
            if (box && closed && is_list_gap(text + closed, i - closed))
                stack[depth].chain = closed_chain;
            stack[depth++].content = box ? i + box : 0;
            *opened |= box != 0;
            i += box ? box : 1;
        } else if (text[i] == '\\') {
            i += 2; /* \{ and \} do not group */
        } else {
            if (text[i] == '}' && depth > 0) {
                depth--;
                if (stack[depth].content) {
                    const struct open_brace *b = &stack[depth];

                    closed = i + 1;
                    closed_chain = b->chain;
                    if (!found || b->start > best) {
                        found = 1;
                        best = b->start;
                        out->p = text + (b->chain < b->start ? b->chain : b->content);
                        out->n = (size_t)(text + i + (b->chain < b->start) - out->p);
                    }
                }
            }
            i++;
        }
    }
out:
    free(stack);
    return st;
}

static int same_letter(char a, char b, int exact)
{
    return a == b || (!exact && tolower((unsigned char)a) == tolower((unsigned char)b));
}

/* Length of the marker at p, 0 if it is not there. Before a ':' of the marker blanks and emphasis may stand. */
static size_t marker_at(const char *p, size_t n, const char *marker, int exact)
{
    size_t i = 0;

    for (; *marker; marker++) {
        if (*marker == ':') {
            i += skip_blanks(p + i, n - i, 1, 0);
            if (n - i >= 3 && memcmp(p + i, "\xEF\xBC\x9A", 3) == 0) { /* full-width colon */
                i += 3;
                continue;
            }
        }
        if (i >= n || !same_letter(p[i], *marker, exact))
            return 0;
        i++;
    }
    return i;
}

/* What the prompt itself says after its marker: $Answer, \boxed{$Answer}, or the end of a quotation. */
static int is_echo(const char *p, size_t n)
{
    static const char word[] = "answer";
    size_t i = 0, box, sigils = 0;

    if (n > 0 && (p[0] == '"' || p[0] == '\''))
        return n == 1 || !is_alnum(p[1]);
    if (n >= 3 && memcmp(p, "\xE2\x80\x9D", 3) == 0)
        return 1;
    i = skip_blanks(p, n, 1, 0);
    if ((box = box_at(p + i, n - i)) != 0) {
        i += box;
        sigils++;
    }
    while (i < n && (p[i] == '$' || p[i] == '<' || p[i] == '[')) {
        sigils++;
        i++;
    }
    if (!sigils || n - i < sizeof word - 1)
        return 0;
    for (size_t k = 0; k < sizeof word - 1; k++)
        if (!same_letter(p[i + k], word[k], 0))
            return 0;
    return i + sizeof word - 1 == n || !is_alnum(p[i + sizeof word - 1]);
}

/* End of the last marker that is no echo; 0: none. */
static size_t last_marker(const struct cairn_grade_opts *opts, const char *text, size_t n)
{
    const char *fallback = default_marker;
    const char *const *marker = opts->markers ? opts->marker : &fallback;
    int count = opts->markers ? opts->markers : 1;
    size_t found = 0;

    for (int m = 0; m < count; m++) {
        int lower = 0, upper = 0;

        for (const char *c = marker[m]; *c; c++) {
            lower |= islower((unsigned char)*c) != 0;
            upper |= isupper((unsigned char)*c) != 0;
        }
        for (size_t i = 0; i < n; i++) {
            size_t len;

            if (!same_letter(text[i], marker[m][0], upper && !lower))
                continue;
            if (is_alnum(marker[m][0]) && i > 0 && is_alnum(text[i - 1]))
                continue;
            len = marker_at(text + i, n - i, marker[m], upper && !lower);
            if (len && i + len > found && !is_echo(text + i + len, n - i - len))
                found = i + len;
        }
    }
    return found;
}

/* 1 if the line holds something besides mathematics delimiters. */
static int has_content(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\\' && i + 1 < n && strchr("[]()", p[i + 1]) && p[i + 1])
            i++;
        else if (p[i] != '$' && p[i] != '}' && p[i] != '.')
            return 1;
    }
    return 0;
}

static struct cairn_span line_after(const char *text, size_t from, size_t n)
{
    struct cairn_span s = {NULL, 0, NULL};
    size_t end;

    while (from < n) {
        from += skip_blanks(text + from, n - from, 1, 1);
        for (end = from; end < n && text[end] != '\n';)
            end++;
        s = trim(text + from, end - from);
        if (has_content(s.p, s.n))
            break;
        if (end_marker_at(text + from, n - from))
            break;
        from = end;
    }
    if (from >= n || !has_content(s.p, s.n)) {
        s.p = NULL;
        return s;
    }
    /* "\textbf{Answer:} 42": a brace that closes something before the marker */
    while (s.n > 0 && s.p[0] == '}') {
        s.p++;
        s.n--;
    }
    /* A matrix over several lines: go on until its environment is closed, if it ever is. */
    for (size_t i = (size_t)(s.p - text), open = 0; i < n && i - from < LINE_BYTES_MAX; i++) {
        if (text[i] == '\n' && open == 0)
            break;
        if (text[i] != '\\')
            continue;
        if (n - i >= 7 && memcmp(text + i, "\\begin{", 7) == 0) {
            open++;
        } else if (n - i >= 5 && memcmp(text + i, "\\end{", 5) == 0 && open > 0 && --open == 0) {
            while (i < n && text[i] != '\n')
                i++;
            if (text + i > s.p + s.n)
                s.n = (size_t)(text + i - s.p);
            break;
        } else {
            i++;
        }
    }
    return trim(s.p, s.n);
}

enum cairn_status cairn_extract_answer(const struct cairn_grade_opts *opts, const char *text, size_t n, struct cairn_span *out,
                                       struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_span s = {NULL, 0, NULL};
    size_t marker = last_marker(opts, text, n);
    int opened;

    TRY(last_box(text, marker, n, &s, &opened, err));
    if (s.p) {
        s = trim(s.p, s.n);
        s.why = marker ? "box after the marker" : "last box";
        if (is_echo(s.p, s.n)) {
            s.p = NULL;
            s.why = "the box echoes the prompt";
        }
    } else if (opened) {
        s.why = "the box never closes";
    } else if (marker) {
        s = line_after(text, marker, n);
        s.why = s.p ? "line after the marker" : "nothing follows the marker";
    } else {
        s.why = "no marker and no box";
    }
    if (s.p && s.n == 0) {
        s.p = NULL;
        s.why = "the answer is empty";
    }
    *out = s;
out:
    return st;
}

enum cairn_status cairn_extract_gold(const char *text, size_t n, struct cairn_span *out, struct cairn_error *err)
{
    enum cairn_status st = CAIRN_OK;
    struct cairn_span s = {NULL, 0, NULL};
    int opened;

    TRY(last_box(text, 0, n, &s, &opened, err));
    if (!s.p) {
        s.p = text;
        s.n = n;
    }
    *out = trim(s.p, s.n);
out:
    return st;
}
