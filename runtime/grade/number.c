/* number.c - numbers: grouping, decimals, repeating decimals, mixed numbers, exponents, other bases. See parser.h. */
#include "grade/parser.h"

#include <string.h>

#include "base/str.h"

int cairn_parse_digits_from(const struct parser *ps, int at)
{
    int n = 0;

    while (at + n < ps->n && is_digit(&ps->t[at + n]) && (n == 0 || !ps->t[at + n].space))
        n++;
    return n;
}

/* Does a group of exactly three digits stand at `at`? */
static int three_digits(const struct parser *ps, int at)
{
    return at < ps->n && !ps->t[at].space && cairn_parse_digits_from(ps, at) == 3;
}

/* "{5}" or "5" of an integer fraction part; its digits, or 0. *after behind it. */
int cairn_parse_plain_integer(const struct parser *ps, int at, int single, int *first, int *after)
{
    int n;

    if (at < ps->n && is_ch(&ps->t[at], '{')) {
        n = cairn_parse_digits_from(ps, at + 1);
        *first = at + 1;
        *after = at + 2 + n;
        return n && at + 1 + n < ps->n && is_ch(&ps->t[at + 1 + n], '}') ? n : 0;
    }
    n = cairn_parse_digits_from(ps, at);
    if (n > 1 && single)
        n = 1;
    *first = at;
    *after = at + n;
    return n;
}

/* Is the integer of na digits at a less than that of nb digits at b? */
static int less_digits(const struct parser *ps, int a, int na, int b, int nb)
{
    while (na > 0 && ps->t[a].ch == '0') {
        a++;
        na--;
    }
    while (nb > 0 && ps->t[b].ch == '0') {
        b++;
        nb--;
    }
    if (na != nb)
        return na < nb;
    for (int i = 0; i < na; i++)
        if (ps->t[a + i].ch != ps->t[b + i].ch)
            return ps->t[a + i].ch < ps->t[b + i].ch;
    return 0;
}

struct cairn_node *cairn_parse_digits_node(struct parser *ps, int first, int n)
{
    char *s = cairn_parse_bytes(ps, n);

    if (!s)
        return NULL;
    for (int i = 0; i < n; i++)
        s[i] = ps->t[first + i].ch;
    s[n] = 0;
    return cairn_parse_leaf(ps, NODE_NUM, first, s);
}

/* A proper fraction of plain integers behind an integer makes a mixed number. NULL with result OK: there is none. */
static struct cairn_node *mixed_part(struct parser *ps)
{
    int p, np, q, nq, after, begin = ps->at;
    struct cairn_node *kid[2];

    if (peek(ps, 0)->kind == TOK_FRAC) {
        if (!(np = cairn_parse_plain_integer(ps, begin + 1, 1, &p, &after)) ||
            !(nq = cairn_parse_plain_integer(ps, after, 1, &q, &after)))
            return NULL;
    } else {
        if (!is_digit(peek(ps, 0)) || !peek(ps, 0)->space)
            return NULL;
        if (!(np = cairn_parse_plain_integer(ps, begin, 0, &p, &after)) || after >= ps->n || !is_ch(&ps->t[after], '/'))
            return NULL;
        if (!(nq = cairn_parse_plain_integer(ps, after + 1, 0, &q, &after)))
            return NULL;
    }
    if (!less_digits(ps, p, np, q, nq) || (after < ps->n && (is_ch(&ps->t[after], '^') || is_ch(&ps->t[after], '!'))))
        return NULL;
    kid[0] = cairn_parse_digits_node(ps, p, np);
    kid[1] = cairn_parse_digits_node(ps, q, nq);
    if (!kid[0] || !kid[1])
        return NULL;
    ps->at = after;
    return cairn_parse_node(ps, NODE_MUL, begin, kid, "*/", 2);
}

/* Behind a number: "e5" of a decimal number in a computer's spelling. */
static void exponent_part(struct parser *ps, struct cairn_node *x)
{
    int sign = 0, at = 1, n;
    char *s;

    if (!(is_ch(peek(ps, 0), 'e') || is_ch(peek(ps, 0), 'E')) || peek(ps, 0)->space || peek(ps, 1)->space)
        return;
    if (is_ch(peek(ps, 1), '-') || is_ch(peek(ps, 1), '+')) {
        /* 2e-1 may be 2e - 1: only what looks like a computer's number is one */
        if (!strchr(x->s, '.') && cairn_parse_digits_from(ps, ps->at + 2) < 2)
            return;
        sign = is_ch(peek(ps, 1), '-');
        at = 2;
    }
    n = cairn_parse_digits_from(ps, ps->at + at);
    if (n == 0)
        return;
    if (n <= 15) {
        x->exp10 = 0;
        for (int i = 0; i < n; i++)
            x->exp10 = x->exp10 * 10 + (peek(ps, at + i)->ch - '0');
        if (sign)
            x->exp10 = -x->exp10;
    } else {
        if (!(s = cairn_parse_bytes(ps, n)))
            return;
        for (int i = 0; i < n; i++)
            s[i] = peek(ps, at + i)->ch;
        s[n] = 0;
        x->big_exp = s;
        x->exp10 = sign ? -1 : 1;
    }
    ps->at += at + n;
    x->last = ps->at;
}

/* Digits at hand, grouping and decimals; appends to s. Returns 0 if there is no number. */
static int number_text(struct parser *ps, struct cairn_str *s, int *integer, int *groups)
{
    int n = cairn_parse_digits_from(ps, ps->at);
    const struct cairn_tok *dot;

    for (int i = 0; i < n; i++)
        cairn_str_putc(s, ps->t[ps->at + i].ch);
    ps->at += n;
    while (n >= 1 && n <= 3 && ps->at < ps->n) { /* grouping */
        const struct cairn_tok *t = &ps->t[ps->at];
        int from;

        if (t->kind == TOK_GROUP && (three_digits(ps, ps->at + 1) || (ps->at + 1 < ps->n && ps->t[ps->at + 1].thin &&
                                                                      cairn_parse_digits_from(ps, ps->at + 1) == 3)))
            from = ps->at + 1;
        else if (is_ch(t, ',') && !t->space && !ps->brackets && s->p[0] != '0' && three_digits(ps, ps->at + 1))
            from = ps->at + 1;
        else if (is_digit(t) && t->thin && s->p[0] != '0' && cairn_parse_digits_from(ps, ps->at) == 3)
            from = ps->at;
        else
            break;
        for (int i = 0; i < 3; i++)
            cairn_str_putc(s, ps->t[from + i].ch);
        ps->at = from + 3;
        ++*groups;
    }
    dot = peek(ps, 0);
    if (is_ch(dot, '.') && !(dot->space && s->len)) {
        const struct cairn_tok *next = peek(ps, 1);
        int decimals = is_digit(next) && !next->space;

        if (decimals || next->kind == TOK_OVERLINE || s->len) {
            ps->at++;
            *integer = 0;
            cairn_str_putc(s, '.');
            for (; decimals && is_digit(peek(ps, 0)) && !peek(ps, 0)->space; ps->at++)
                cairn_str_putc(s, ps->t[ps->at].ch);
        }
    }
    return s->len > 0;
}

struct cairn_node *cairn_parse_number(struct parser *ps)
{
    int first = ps->at, integer = 1, groups = 0, repeat = 0;
    struct cairn_node *x = NULL, *part;
    struct cairn_str s = {0};
    char *kept;

    if (!number_text(ps, &s, &integer, &groups)) {
        cairn_str_free(&s);
        return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
    }
    if (!integer && peek(ps, 0)->kind == TOK_OVERLINE) { /* 0.1\overline{6} */
        int from, after;

        repeat = cairn_parse_plain_integer(ps, ps->at + 1, 1, &from, &after);
        if (!repeat)
            cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
        for (int i = 0; i < repeat; i++)
            cairn_str_putc(&s, ps->t[from + i].ch);
        ps->at = after;
    }
    kept = s.oom ? NULL : cairn_arena_strdup(ps->arena, cairn_str_z(&s));
    cairn_str_free(&s);
    if (!kept)
        return cairn_parse_fail(ps, CAIRN_PARSE_NOMEM);
    if (!(x = cairn_parse_leaf(ps, NODE_NUM, first, kept)))
        return NULL;
    x->a = repeat;
    if (repeat)
        return x;
    exponent_part(ps, x);
    if (integer && !groups && !x->exp10 && is_ch(peek(ps, 0), '_')) { /* 4210_5 */
        int from, after, k = cairn_parse_plain_integer(ps, ps->at + 1, 0, &from, &after);

        if (k < 1 || k > 3)
            return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
        x->kind = NODE_BASED;
        x->a = 0;
        for (int i = 0; i < k; i++)
            x->a = x->a * 10 + (ps->t[from + i].ch - '0');
        ps->at = after;
        x->last = ps->at;
        return x;
    }
    if (integer && !x->exp10 && (part = mixed_part(ps)) != NULL) {
        struct cairn_node *kid[2] = {x, part};

        return cairn_parse_node(ps, NODE_ADD, first, kid, "++", 2);
    }
    if (ps->result != CAIRN_PARSE_OK)
        return NULL;
    if (is_digit(peek(ps, 0)) || (is_ch(peek(ps, 0), '.') && is_digit(peek(ps, 1))))
        return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH); /* two numbers side by side are no product */
    return x;
}
