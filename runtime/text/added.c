/* added.c - search for added tokens, as added.h says: a table of first bytes, then a narrowing range of sorted names. */
#include "text/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"

void cairn_added_free(struct cairn_added *a)
{
    for (size_t i = 0; i < a->n; i++)
        free(a->token[i].name);
    free(a->token);
    free(a->pick[0]);
    free(a->pick[1]);
    memset(a, 0, sizeof *a);
}

enum cairn_status cairn_added_add(struct cairn_added *a, const struct cairn_added_token *t, struct cairn_error *err)
{
    char *name;

    if (a->n == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 64;
        struct cairn_added_token *token = realloc(a->token, cap * sizeof *token);

        if (!token)
            return CAIRN_NOMEM(err);
        a->token = token;
        a->cap = cap;
    }
    if (!(name = malloc(t->n + 1)))
        return CAIRN_NOMEM(err);
    memcpy(name, t->name, t->n);
    name[t->n] = 0;
    a->token[a->n] = *t;
    a->token[a->n++].name = name;
    return CAIRN_OK;
}

static int compare(const char *p, size_t n, const char *q, size_t m)
{
    int c = memcmp(p, q, n < m ? n : m);

    return c ? c : (n > m) - (n < m);
}

static int by_name(const void *x, const void *y)
{
    const struct cairn_added_token *a = x, *b = y;

    return compare(a->name, a->n, b->name, b->n);
}

enum cairn_status cairn_added_done(struct cairn_added *a, struct cairn_error *err)
{
    if (a->n)
        qsort(a->token, a->n, sizeof *a->token, by_name);
    for (size_t i = 1; i < a->n; i++)
        if (!by_name(&a->token[i - 1], &a->token[i]))
            return cairn_fail(err, CAIRN_EDATA, "added token \"%s\" comes twice", a->token[i].name);
    for (int set = 0; set < 2; set++) {
        uint32_t k = 0;
        size_t i = 0;

        if (!(a->pick[set] = malloc((a->n + 1) * sizeof *a->pick[set])))
            return CAIRN_NOMEM(err);
        for (int byte = 0; byte < 256; byte++) {
            a->first[set][byte] = k;
            for (; i < a->n && (unsigned char)a->token[i].name[0] == byte; i++)
                if (a->token[i].normalized == set)
                    a->pick[set][k++] = (uint32_t)i;
        }
        a->first[set][256] = k;
    }
    return CAIRN_OK;
}

int32_t cairn_added_find(const struct cairn_added *a, const char *name, size_t n)
{
    size_t lo = 0, hi = a->n;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        int c = compare(name, n, a->token[mid].name, a->token[mid].n);

        if (!c)
            return a->token[mid].id;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return -1;
}

/* Longest token of the set that stands at text[at], or NULL. Names that begin with the same bytes are neighbours. */
static const struct cairn_added_token *longest(const struct cairn_added *a, int set, const char *text, size_t n, size_t at)
{
    const struct cairn_added_token *best = NULL;
    uint32_t lo = a->first[set][(unsigned char)text[at]], hi = a->first[set][(unsigned char)text[at] + 1];

    for (size_t depth = 1; lo < hi; depth++) {
        const struct cairn_added_token *t = &a->token[a->pick[set][lo]];

        if (t->n == depth) { /* the shortest of the range sorts first */
            best = t;
            lo++;
        }
        if (at + depth >= n)
            break;
        while (lo < hi && (unsigned char)a->token[a->pick[set][lo]].name[depth] < (unsigned char)text[at + depth])
            lo++;
        while (lo < hi && (unsigned char)a->token[a->pick[set][hi - 1]].name[depth] > (unsigned char)text[at + depth])
            hi--;
    }
    return best;
}

/* Unicode White_Space. */
static int is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

int cairn_added_next(const struct cairn_added *a, int normalized, const char *text, size_t n, size_t at,
                     struct cairn_added_match *m)
{
    const uint32_t *first = a->first[normalized];
    const struct cairn_added_token *t = NULL;
    size_t from = at, used;

    if (!first[256])
        return 0;
    for (; from < n; from++) {
        unsigned char c = (unsigned char)text[from];

        if (first[c] != first[c + 1] && (t = longest(a, normalized, text, n, from)))
            break;
    }
    if (!t)
        return 0;
    *m = (struct cairn_added_match){.from = from, .to = from + t->n, .id = t->id};
    while (t->lstrip && m->from > at) {
        size_t back = m->from - 1;

        while (back > at && ((unsigned char)text[back] & 0xc0) == 0x80)
            back--;
        if (!is_space(cairn_utf8_next((const unsigned char *)text + back, m->from - back, &used)) || used != m->from - back)
            break;
        m->from = back;
    }
    while (t->rstrip && m->to < n && is_space(cairn_utf8_next((const unsigned char *)text + m->to, n - m->to, &used)))
        m->to += used;
    return 1;
}
