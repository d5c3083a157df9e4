/* parse.c - the grammar. See parse.h.
 *
 *   list     = relation { ("," | ";" | and | or) relation }
 *   relation = union { ("=" | "<" | ...) union }
 *   union    = ratio { (cup | cap | setminus) ratio }
 *   ratio    = sum { ":" sum }
 *   sum      = [sign] product { sign product }
 *   product  = power { ["*" | "/"] power }
 *   power    = primary { "!" } [ "^" exponent ]            right-associative
 */
#include "grade/parse.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct parser {
    struct cairn_arena *arena;
    const struct cairn_tok *t;
    int n, at;
    int depth;    /* of recursion */
    int brackets; /* inside (), [] or a set: a comma separates, whatever follows it */
    int nodes;
    enum cairn_parse_result result;
};

static struct cairn_node *parse_list(struct parser *ps);
static struct cairn_node *parse_sum(struct parser *ps);
static struct cairn_node *parse_power(struct parser *ps);
static struct cairn_node *parse_brackets(struct parser *ps);

static struct cairn_node *fail(struct parser *ps, enum cairn_parse_result why)
{
    if (ps->result == CAIRN_PARSE_OK)
        ps->result = why;
    return NULL;
}

static int enter(struct parser *ps)
{
    if (++ps->depth > CAIRN_PARSE_DEPTH * 8) { /* eight levels of grammar for one of nesting */
        fail(ps, CAIRN_PARSE_TOO_DEEP);
        return 0;
    }
    return 1;
}

static const struct cairn_tok *peek(const struct parser *ps, int ahead)
{
    static const struct cairn_tok end = {TOK_OTHER, 1, 0, 0, "end"};

    return ps->at + ahead < ps->n ? &ps->t[ps->at + ahead] : &end;
}

static int is_ch(const struct cairn_tok *t, char c)
{
    return t->kind == TOK_CHAR && t->ch == c;
}

static int is_digit(const struct cairn_tok *t)
{
    return t->kind == TOK_CHAR && isdigit((unsigned char)t->ch);
}

static int is_letter(const struct cairn_tok *t)
{
    return t->kind == TOK_CHAR && isalpha((unsigned char)t->ch);
}

static int accept(struct parser *ps, char c)
{
    if (!is_ch(peek(ps, 0), c))
        return 0;
    ps->at++;
    return 1;
}

static int accept_kind(struct parser *ps, enum cairn_tok_kind kind)
{
    if (ps->at >= ps->n || ps->t[ps->at].kind != kind)
        return 0;
    ps->at++;
    return 1;
}

/* A node over kids (borrowed array of n), whose tokens begin at first. */
static struct cairn_node *node(struct parser *ps, enum cairn_node_kind kind, int first, struct cairn_node **kid, const char *op,
                               int n)
{
    struct cairn_node *x;

    if (ps->result != CAIRN_PARSE_OK)
        return NULL;
    if (++ps->nodes > CAIRN_PARSE_NODES)
        return fail(ps, CAIRN_PARSE_TOO_DEEP);
    x = cairn_arena_calloc(ps->arena, 1, sizeof *x);
    if (!x)
        return fail(ps, CAIRN_PARSE_NOMEM);
    x->kind = kind;
    x->n = n;
    x->s = "";
    x->first = first;
    x->last = ps->at;
    if (n > 0) {
        x->kid = cairn_arena_alloc(ps->arena, (size_t)n * sizeof *x->kid);
        x->op = cairn_arena_alloc(ps->arena, (size_t)n);
        if (!x->kid || !x->op)
            return fail(ps, CAIRN_PARSE_NOMEM);
        memcpy(x->kid, kid, (size_t)n * sizeof *kid);
        if (op)
            memcpy(x->op, op, (size_t)n);
        else
            memset(x->op, ' ', (size_t)n);
    }
    for (int i = 0; i < n; i++) {
        if (kid[i]->depth > x->depth)
            x->depth = kid[i]->depth;
        x->plus_minus |= kid[i]->plus_minus;
        if (op && (op[i] == 'p' || op[i] == 'm') && kind == NODE_ADD)
            x->plus_minus = 1;
    }
    if (++x->depth > CAIRN_PARSE_DEPTH)
        return fail(ps, CAIRN_PARSE_TOO_DEEP);
    return x;
}

static struct cairn_node *leaf(struct parser *ps, enum cairn_node_kind kind, int first, const char *s)
{
    struct cairn_node *x = node(ps, kind, first, NULL, NULL, 0);

    if (x)
        x->s = s;
    return x;
}

/* Growing list of kids and their operators, in malloc'ed memory until it becomes a node. */
struct kids {
    struct cairn_node **kid;
    char *op;
    int n, cap;
};

static int kids_add(struct parser *ps, struct kids *k, struct cairn_node *x, char op)
{
    if (!x)
        return 0;
    if (k->n == k->cap) {
        int cap = k->cap ? k->cap * 2 : 4;
        struct cairn_node **kid = cairn_arena_alloc(ps->arena, (size_t)cap * sizeof *kid);
        char *ops = cairn_arena_alloc(ps->arena, (size_t)cap);

        if (!kid || !ops) {
            fail(ps, CAIRN_PARSE_NOMEM);
            return 0;
        }
        if (k->n) {
            memcpy(kid, k->kid, (size_t)k->n * sizeof *kid);
            memcpy(ops, k->op, (size_t)k->n);
        }
        k->kid = kid;
        k->op = ops;
        k->cap = cap;
    }
    k->kid[k->n] = x;
    k->op[k->n++] = op;
    return 1;
}

/* --- numbers -------------------------------------------------------------------------------------------------------- */

static char *arena_digits(struct parser *ps, int bytes)
{
    char *s = cairn_arena_alloc(ps->arena, (size_t)bytes + 1);

    if (!s)
        fail(ps, CAIRN_PARSE_NOMEM);
    return s;
}

static int digits_from(const struct parser *ps, int at)
{
    int n = 0;

    while (at + n < ps->n && is_digit(&ps->t[at + n]) && (n == 0 || !ps->t[at + n].space))
        n++;
    return n;
}

/* Does a group of exactly three digits stand at `at`? */
static int three_digits(const struct parser *ps, int at)
{
    return at < ps->n && !ps->t[at].space && digits_from(ps, at) == 3;
}

/* "{5}" or "5" of an integer fraction part; its digits, or 0. *after behind it. */
static int plain_integer(const struct parser *ps, int at, int single, int *first, int *after)
{
    int n;

    if (at < ps->n && is_ch(&ps->t[at], '{')) {
        n = digits_from(ps, at + 1);
        *first = at + 1;
        *after = at + 2 + n;
        return n && at + 1 + n < ps->n && is_ch(&ps->t[at + 1 + n], '}') ? n : 0;
    }
    n = digits_from(ps, at);
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

static struct cairn_node *digits_node(struct parser *ps, int first, int n)
{
    char *s = arena_digits(ps, n);

    if (!s)
        return NULL;
    for (int i = 0; i < n; i++)
        s[i] = ps->t[first + i].ch;
    s[n] = 0;
    return leaf(ps, NODE_NUM, first, s);
}

/* A proper fraction of plain integers behind an integer makes a mixed number. NULL with result OK: there is none. */
static struct cairn_node *mixed_part(struct parser *ps)
{
    int p, np, q, nq, after, begin = ps->at;
    struct cairn_node *kid[2];

    if (peek(ps, 0)->kind == TOK_FRAC) {
        if (!(np = plain_integer(ps, begin + 1, 1, &p, &after)) || !(nq = plain_integer(ps, after, 1, &q, &after)))
            return NULL;
    } else {
        if (!is_digit(peek(ps, 0)) || !peek(ps, 0)->space)
            return NULL;
        if (!(np = plain_integer(ps, begin, 0, &p, &after)) || after >= ps->n || !is_ch(&ps->t[after], '/'))
            return NULL;
        if (!(nq = plain_integer(ps, after + 1, 0, &q, &after)))
            return NULL;
    }
    if (!less_digits(ps, p, np, q, nq) || (after < ps->n && (is_ch(&ps->t[after], '^') || is_ch(&ps->t[after], '!'))))
        return NULL;
    kid[0] = digits_node(ps, p, np);
    kid[1] = digits_node(ps, q, nq);
    if (!kid[0] || !kid[1])
        return NULL;
    ps->at = after;
    return node(ps, NODE_MUL, begin, kid, "*/", 2);
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
        if (!strchr(x->s, '.') && digits_from(ps, ps->at + 2) < 2)
            return;
        sign = is_ch(peek(ps, 1), '-');
        at = 2;
    }
    n = digits_from(ps, ps->at + at);
    if (n == 0)
        return;
    if (n <= 15) {
        x->exp10 = 0;
        for (int i = 0; i < n; i++)
            x->exp10 = x->exp10 * 10 + (peek(ps, at + i)->ch - '0');
        if (sign)
            x->exp10 = -x->exp10;
    } else {
        if (!(s = arena_digits(ps, n)))
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
    int n = digits_from(ps, ps->at);
    const struct cairn_tok *dot;

    for (int i = 0; i < n; i++)
        cairn_str_putc(s, ps->t[ps->at + i].ch);
    ps->at += n;
    while (n >= 1 && n <= 3 && ps->at < ps->n) { /* grouping */
        const struct cairn_tok *t = &ps->t[ps->at];
        int from;

        if (t->kind == TOK_GROUP &&
            (three_digits(ps, ps->at + 1) || (ps->at + 1 < ps->n && ps->t[ps->at + 1].thin && digits_from(ps, ps->at + 1) == 3)))
            from = ps->at + 1;
        else if (is_ch(t, ',') && !t->space && !ps->brackets && s->p[0] != '0' && three_digits(ps, ps->at + 1))
            from = ps->at + 1;
        else if (is_digit(t) && t->thin && s->p[0] != '0' && digits_from(ps, ps->at) == 3)
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

static struct cairn_node *parse_number(struct parser *ps)
{
    int first = ps->at, integer = 1, groups = 0, repeat = 0;
    struct cairn_node *x = NULL, *part;
    struct cairn_str s = {0};
    char *kept;

    if (!number_text(ps, &s, &integer, &groups)) {
        cairn_str_free(&s);
        return fail(ps, CAIRN_PARSE_NOT_MATH);
    }
    if (!integer && peek(ps, 0)->kind == TOK_OVERLINE) { /* 0.1\overline{6} */
        int from, after;

        repeat = plain_integer(ps, ps->at + 1, 1, &from, &after);
        if (!repeat)
            fail(ps, CAIRN_PARSE_NOT_MATH);
        for (int i = 0; i < repeat; i++)
            cairn_str_putc(&s, ps->t[from + i].ch);
        ps->at = after;
    }
    kept = s.oom ? NULL : cairn_arena_strdup(ps->arena, cairn_str_z(&s));
    cairn_str_free(&s);
    if (!kept)
        return fail(ps, CAIRN_PARSE_NOMEM);
    if (!(x = leaf(ps, NODE_NUM, first, kept)))
        return NULL;
    x->a = repeat;
    if (repeat)
        return x;
    exponent_part(ps, x);
    if (integer && !groups && !x->exp10 && is_ch(peek(ps, 0), '_')) { /* 4210_5 */
        int from, after, k = plain_integer(ps, ps->at + 1, 0, &from, &after);

        if (k < 1 || k > 3)
            return fail(ps, CAIRN_PARSE_NOT_MATH);
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

        return node(ps, NODE_ADD, first, kid, "++", 2);
    }
    if (ps->result != CAIRN_PARSE_OK)
        return NULL;
    if (is_digit(peek(ps, 0)) || (is_ch(peek(ps, 0), '.') && is_digit(peek(ps, 1))))
        return fail(ps, CAIRN_PARSE_NOT_MATH); /* two numbers side by side are no product */
    return x;
}

/* --- primaries ------------------------------------------------------------------------------------------------------ */

/* The argument of \frac, \sqrt, ^: a group, one digit (or all digits at hand), or one symbol. */
static struct cairn_node *parse_argument(struct parser *ps, int all_digits)
{
    const struct cairn_tok *t = peek(ps, 0);
    struct cairn_node *x = NULL;
    int first = ps->at;

    if (!enter(ps))
        return NULL;
    if (is_digit(t)) {
        int n = all_digits ? digits_from(ps, ps->at) : 1;

        ps->at += n;
        x = digits_node(ps, first, n);
        if (x)
            x->last = ps->at;
    } else if (is_letter(t)) {
        char *s = arena_digits(ps, 1);

        if (s) {
            s[0] = t->ch;
            s[1] = 0;
            ps->at++;
            x = leaf(ps, NODE_SYM, first, s);
        }
    } else if (is_ch(t, '{')) {
        int brackets = ps->brackets;

        ps->at++;
        ps->brackets = 1;
        x = parse_list(ps);
        ps->brackets = brackets;
        if (x && !accept(ps, '}'))
            x = fail(ps, CAIRN_PARSE_NOT_MATH);
    } else {
        x = parse_power(ps);
    }
    ps->depth--;
    return x;
}

static struct cairn_node *parse_exponent(struct parser *ps)
{
    int first = ps->at, negative = 0;
    struct cairn_node *x;

    while (is_ch(peek(ps, 0), '-') || is_ch(peek(ps, 0), '+'))
        negative ^= ps->t[ps->at++].ch == '-';
    x = parse_argument(ps, 1);
    if (x && is_ch(peek(ps, 0), '!')) { /* 2^3! */
        ps->at++;
        x = node(ps, NODE_FACT, first, &x, NULL, 1);
    }
    if (x && accept(ps, '^')) { /* 9^9^9 */
        struct cairn_node *kid[2] = {x, NULL};

        if (!enter(ps))
            return NULL;
        kid[1] = parse_exponent(ps);
        ps->depth--;
        x = kid[1] ? node(ps, NODE_POW, first, kid, NULL, 2) : NULL;
    }
    return x && negative ? node(ps, NODE_NEG, first, &x, NULL, 1) : x;
}

/* Subscript and primes behind a name: part of the name. */
static const char *parse_name(struct parser *ps, const char *base)
{
    struct cairn_str s = {0};
    char *kept;

    cairn_str_puts(&s, base);
    if (is_ch(peek(ps, 0), '_')) {
        int depth = 0, begin = ps->at++;

        cairn_str_putc(&s, '_');
        do {
            const struct cairn_tok *t = peek(ps, 0);

            if (ps->at >= ps->n || ps->at - begin > 40) {
                cairn_str_free(&s);
                fail(ps, CAIRN_PARSE_NOT_MATH);
                return "";
            }
            ps->at++;
            if (is_ch(t, '{'))
                depth++;
            else if (is_ch(t, '}'))
                depth--;
            else if (t->kind == TOK_CHAR && (isalnum((unsigned char)t->ch) || strchr(",+-", t->ch)))
                cairn_str_putc(&s, t->ch);
            else if (t->kind == TOK_SYM || t->kind == TOK_TEXT)
                cairn_str_printf(&s, "<%s>", t->s);
            else {
                cairn_str_free(&s);
                fail(ps, CAIRN_PARSE_NOT_MATH);
                return "";
            }
        } while (depth > 0);
    }
    while (is_ch(peek(ps, 0), '\'')) {
        cairn_str_putc(&s, '\'');
        ps->at++;
    }
    kept = s.oom ? NULL : cairn_arena_strdup(ps->arena, cairn_str_z(&s));
    cairn_str_free(&s);
    if (!kept)
        fail(ps, CAIRN_PARSE_NOMEM);
    return kept ? kept : "";
}

static int starts_factor(const struct parser *ps)
{
    const struct cairn_tok *t = peek(ps, 0);

    if (ps->at >= ps->n)
        return 0;
    switch (t->kind) {
    case TOK_CHAR:
        return isalnum((unsigned char)t->ch) || t->ch == '(' || t->ch == '{' || t->ch == '[' ||
               (t->ch == '.' && is_digit(peek(ps, 1)));
    case TOK_SYM:
    case TOK_FUNC:
    case TOK_FRAC:
    case TOK_BINOM:
    case TOK_SQRT:
    case TOK_BEGIN:
    case TOK_SCALE:
    case TOK_FLOOR_L:
    case TOK_CEIL_L:
    case TOK_TEXT:
    case TOK_OVERLINE:
    case TOK_LSET:
    case TOK_LANGLE:
        return 1;
    default:
        return 0;
    }
}

/* The argument of a function without brackets: factors up to a sign or another function. */
static struct cairn_node *parse_bare_argument(struct parser *ps)
{
    struct kids k = {0};
    int first = ps->at;

    do {
        if (!kids_add(ps, &k, parse_power(ps), '*'))
            return NULL;
        if (is_ch(peek(ps, 0), '/') && k.n == 1) {
            ps->at++;
            if (!kids_add(ps, &k, parse_power(ps), '/'))
                return NULL;
        }
    } while (starts_factor(ps) && peek(ps, 0)->kind != TOK_FUNC && !is_ch(peek(ps, 0), '('));
    return k.n == 1 ? k.kid[0] : node(ps, NODE_MUL, first, k.kid, k.op, k.n);
}

static int is_minus_one(const struct cairn_node *x)
{
    const struct cairn_node *one = x->n == 1 ? x->kid[0] : NULL;

    return one && one->kind == NODE_NUM && strcmp(one->s, "1") == 0 && !one->exp10 && !one->big_exp &&
           (x->kind == NODE_NEG || (x->kind == NODE_ADD && x->op[0] == '-'));
}

static struct cairn_node *parse_function(struct parser *ps)
{
    int first = ps->at;
    const char *name = ps->t[ps->at++].s;
    struct cairn_node *kid[2] = {NULL, NULL}, *power = NULL, *x;
    int n = 1;

    if (is_ch(peek(ps, 0), '_')) {
        ps->at++;
        if (!(kid[1] = parse_argument(ps, 1)))
            return NULL;
        n = 2;
    }
    if (accept(ps, '^') && !(power = parse_exponent(ps)))
        return NULL;
    if (power && power->kind != NODE_NUM && power->kind != NODE_SYM) { /* sin^{-1} is the inverse function */
        static const char *const inverse[][2] = {{"sin", "arcsin"}, {"cos", "arccos"}, {"tan", "arctan"}};
        int known = 0;

        for (size_t i = 0; i < sizeof inverse / sizeof *inverse && !known; i++)
            if (strcmp(name, inverse[i][0]) == 0 && is_minus_one(power)) {
                name = inverse[i][1];
                known = 1;
            }
        if (!known)
            return fail(ps, CAIRN_PARSE_NOT_MATH);
        power = NULL;
    }
    if (is_ch(peek(ps, 0), '(') || is_ch(peek(ps, 0), '['))
        kid[0] = parse_brackets(ps); /* sin(x)^2 is the square of sin(x) */
    else if (is_ch(peek(ps, 0), '{'))
        kid[0] = parse_argument(ps, 1);
    else if (is_ch(peek(ps, 0), '-'))
        return fail(ps, CAIRN_PARSE_NOT_MATH);
    else
        kid[0] = parse_bare_argument(ps);
    if (!kid[0])
        return NULL;
    x = node(ps, NODE_FUNC, first, kid, NULL, n);
    if (!x)
        return NULL;
    x->s = name;
    if (power) {
        struct cairn_node *pow_kid[2] = {x, power};

        x = node(ps, NODE_POW, first, pow_kid, NULL, 2);
    }
    return x;
}

static int closes_matrix(const struct cairn_tok *t)
{
    return t->kind == TOK_END;
}

static struct cairn_node *parse_matrix(struct parser *ps)
{
    static const char *const plain[] = {"pmatrix", "bmatrix", "Bmatrix", "matrix", "smallmatrix", "array"};
    int first = ps->at, rows = 0, columns = -1, column = 0, known = 0, brackets = ps->brackets;
    const char *name = ps->t[ps->at++].s;
    struct kids k = {0};
    struct cairn_node *x;
    int bars = strcmp(name, "vmatrix") == 0;

    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        known |= strcmp(name, plain[i]) == 0;
    if (!known && !bars)
        return fail(ps, CAIRN_PARSE_NOT_MATH);
    ps->brackets = 1;
    while (ps->at < ps->n && !closes_matrix(peek(ps, 0))) {
        if (!kids_add(ps, &k, parse_sum(ps), ' '))
            return NULL;
        column++;
        if (accept(ps, '&'))
            continue;
        if (columns >= 0 && column != columns)
            return fail(ps, CAIRN_PARSE_NOT_MATH);
        columns = column;
        column = 0;
        rows++;
        if (!accept_kind(ps, TOK_ROW))
            break;
    }
    ps->brackets = brackets;
    if (!accept_kind(ps, TOK_END) || strcmp(ps->t[ps->at - 1].s, name) != 0 || rows == 0 || column != 0)
        return fail(ps, CAIRN_PARSE_NOT_MATH);
    if (!(x = node(ps, NODE_MATRIX, first, k.kid, k.op, k.n)))
        return NULL;
    x->a = rows;
    x->b = columns;
    x->s = bars ? "v" : "m";
    return x;
}

/* ( list ), [ list ], \{ list \}, \langle list \rangle; one item in round or square brackets is that item. */
static struct cairn_node *parse_brackets(struct parser *ps)
{
    int first = ps->at, brackets = ps->brackets;
    const struct cairn_tok *open = &ps->t[ps->at++], *close;
    struct cairn_node *x, *made;
    int set = open->kind == TOK_LSET;

    if (set && accept_kind(ps, TOK_RSET))
        return leaf(ps, NODE_SYM, first, "emptyset");
    ps->brackets = 1;
    x = parse_list(ps);
    ps->brackets = brackets;
    if (!x)
        return NULL;
    close = peek(ps, 0);
    if (ps->at >= ps->n)
        return fail(ps, CAIRN_PARSE_NOT_MATH);
    ps->at++;
    if (set || open->kind == TOK_LANGLE) {
        if (close->kind != (set ? TOK_RSET : TOK_RANGLE))
            return fail(ps, CAIRN_PARSE_NOT_MATH);
        made = x->kind == NODE_LIST ? node(ps, set ? NODE_SET : NODE_TUPLE, first, x->kid, NULL, x->n)
                                    : node(ps, set ? NODE_SET : NODE_TUPLE, first, &x, NULL, 1);
        if (made)
            made->a = made->b = '<';
        return made;
    }
    if (!is_ch(close, ')') && !is_ch(close, ']'))
        return fail(ps, CAIRN_PARSE_NOT_MATH);
    if (x->kind != NODE_LIST) {
        if ((open->ch == '(') != (close->ch == ')'))
            return fail(ps, CAIRN_PARSE_NOT_MATH);
        return x;
    }
    if (x->a != ',')
        return open->ch == '(' && close->ch == ')' ? x : fail(ps, CAIRN_PARSE_NOT_MATH);
    made = node(ps, NODE_TUPLE, first, x->kid, NULL, x->n);
    if (made) {
        made->a = open->ch;
        made->b = close->ch;
    }
    return made;
}

static struct cairn_node *parse_primary(struct parser *ps)
{
    const struct cairn_tok *t = peek(ps, 0);
    struct cairn_node *x = NULL, *kid[2];
    int first = ps->at, brackets = ps->brackets;

    if (ps->at >= ps->n || ps->result != CAIRN_PARSE_OK)
        return fail(ps, CAIRN_PARSE_NOT_MATH);
    switch (t->kind) {
    case TOK_CHAR:
        if (is_digit(t) || (t->ch == '.' && is_digit(peek(ps, 1))) || (t->ch == '.' && peek(ps, 1)->kind == TOK_OVERLINE))
            return parse_number(ps);
        if (is_letter(t)) {
            char name[2] = {t->ch, 0};
            const char *s;

            ps->at++;
            s = parse_name(ps, name);
            return leaf(ps, NODE_SYM, first, s);
        }
        if (t->ch == '(' || t->ch == '[')
            return parse_brackets(ps);
        if (t->ch == '{') {
            ps->at++;
            ps->brackets = 1;
            x = parse_list(ps);
            ps->brackets = brackets;
            if (x && !accept(ps, '}'))
                return fail(ps, CAIRN_PARSE_NOT_MATH);
            if (x && x->kind == NODE_LIST && x->a == ',')
                x = node(ps, NODE_SET, first, x->kid, NULL, x->n);
            return x;
        }
        if (t->ch == '|') {
            ps->at++;
            kid[0] = parse_sum(ps);
            if (!kid[0] || !accept(ps, '|'))
                return fail(ps, CAIRN_PARSE_NOT_MATH);
            return node(ps, NODE_ABS, first, kid, NULL, 1);
        }
        return fail(ps, CAIRN_PARSE_NOT_MATH);
    case TOK_LSET:
    case TOK_LANGLE:
        return parse_brackets(ps);
    case TOK_SYM: {
        const char *s;

        ps->at++;
        s = parse_name(ps, t->s);
        return leaf(ps, NODE_SYM, first, s);
    }
    case TOK_TEXT:
        ps->at++;
        return leaf(ps, NODE_TEXT, first, t->s);
    case TOK_FUNC:
        return parse_function(ps);
    case TOK_FRAC:
    case TOK_BINOM:
        ps->at++;
        if (!(kid[0] = parse_argument(ps, 0)) || !(kid[1] = parse_argument(ps, 0)))
            return NULL;
        return node(ps, t->kind == TOK_FRAC ? NODE_MUL : NODE_BINOM, first, kid, t->kind == TOK_FRAC ? "*/" : NULL, 2);
    case TOK_SQRT: {
        char *two = arena_digits(ps, 1);

        ps->at++;
        if (!two)
            return NULL;
        strcpy(two, "2");
        if (accept(ps, '[')) {
            kid[1] = parse_sum(ps);
            if (!kid[1] || !accept(ps, ']'))
                return fail(ps, CAIRN_PARSE_NOT_MATH);
        } else {
            kid[1] = leaf(ps, NODE_NUM, first, two);
        }
        if (is_ch(peek(ps, 0), '(')) /* sqrt(3)^2: the root ends with its bracket */
            kid[0] = parse_brackets(ps);
        else
            kid[0] = parse_argument(ps, 1);
        if (!kid[0] || !kid[1])
            return NULL;
        return node(ps, NODE_ROOT, first, kid, NULL, 2);
    }
    case TOK_FLOOR_L:
    case TOK_CEIL_L:
        ps->at++;
        kid[0] = parse_sum(ps);
        if (!kid[0] || !accept_kind(ps, t->kind == TOK_FLOOR_L ? TOK_FLOOR_R : TOK_CEIL_R))
            return fail(ps, CAIRN_PARSE_NOT_MATH);
        return node(ps, t->kind == TOK_FLOOR_L ? NODE_FLOOR : NODE_CEIL, first, kid, NULL, 1);
    case TOK_SCALE:
        ps->at++;
        if (!(x = leaf(ps, NODE_NUM, first, "1")))
            return NULL;
        x->exp10 = t->ch;
        return x;
    case TOK_OVERLINE: { /* \overline{AB}: a name */
        struct cairn_str s = {0};
        int at = ps->at + 1;
        char *kept;

        if (!(at < ps->n && is_ch(&ps->t[at], '{')))
            return fail(ps, CAIRN_PARSE_NOT_MATH);
        cairn_str_puts(&s, "overline:");
        for (at++; at < ps->n && is_letter(&ps->t[at]); at++)
            cairn_str_putc(&s, ps->t[at].ch);
        kept = s.oom ? NULL : cairn_arena_strdup(ps->arena, cairn_str_z(&s));
        cairn_str_free(&s);
        if (!kept)
            return fail(ps, CAIRN_PARSE_NOMEM);
        if (at >= ps->n || !is_ch(&ps->t[at], '}'))
            return fail(ps, CAIRN_PARSE_NOT_MATH);
        ps->at = at + 1;
        return leaf(ps, NODE_SYM, first, kept);
    }
    case TOK_BEGIN:
        return parse_matrix(ps);
    default:
        return fail(ps, CAIRN_PARSE_NOT_MATH);
    }
}

static struct cairn_node *parse_power(struct parser *ps)
{
    struct cairn_node *x, *kid[2];
    int first = ps->at;

    if (!enter(ps))
        return NULL;
    x = parse_primary(ps);
    while (x && is_ch(peek(ps, 0), '!')) {
        ps->at++;
        x = node(ps, NODE_FACT, first, &x, NULL, 1);
    }
    if (x && accept(ps, '^')) {
        kid[0] = x;
        kid[1] = parse_exponent(ps);
        x = kid[1] ? node(ps, NODE_POW, first, kid, NULL, 2) : NULL;
    }
    ps->depth--;
    return x;
}

static struct cairn_node *parse_product(struct parser *ps)
{
    struct kids k = {0};
    int first = ps->at;

    if (!kids_add(ps, &k, parse_power(ps), '*'))
        return NULL;
    for (;;) {
        const struct cairn_tok *t = peek(ps, 0);
        char op = '*';

        if (is_ch(t, '*') || is_ch(t, '/')) {
            int negative = 0, begin;
            struct cairn_node *x;

            op = t->ch;
            begin = ++ps->at;
            while (is_ch(peek(ps, 0), '-')) { /* 3 * -2 */
                negative ^= 1;
                ps->at++;
            }
            x = parse_power(ps);
            if (x && negative)
                x = node(ps, NODE_NEG, begin, &x, NULL, 1);
            if (!kids_add(ps, &k, x, op))
                return NULL;
        } else if (starts_factor(ps)) {
            /* a bracket that closes an interval from the left is no factor: [0,1) [ */
            if (!kids_add(ps, &k, parse_power(ps), op))
                return NULL;
        } else {
            break;
        }
    }
    return k.n == 1 ? k.kid[0] : node(ps, NODE_MUL, first, k.kid, k.op, k.n);
}

static int sign_at(const struct cairn_tok *t, char *sign)
{
    if (is_ch(t, '+') || is_ch(t, '-'))
        *sign = t->ch;
    else if (t->kind == TOK_PM)
        *sign = 'p';
    else if (t->kind == TOK_MP)
        *sign = 'm';
    else
        return 0;
    return 1;
}

static struct cairn_node *parse_sum(struct parser *ps)
{
    struct kids k = {0};
    int first = ps->at;
    char sign = '+';

    if (!enter(ps))
        return NULL;
    if (sign_at(peek(ps, 0), &sign))
        ps->at++;
    for (;;) {
        char more;

        while (is_ch(peek(ps, 0), '-') || is_ch(peek(ps, 0), '+')) { /* 1 + -2 */
            if (is_ch(peek(ps, 0), '-'))
                sign = sign == '+' ? '-' : sign == '-' ? '+' : sign == 'p' ? 'm' : 'p';
            ps->at++;
        }
        if (!kids_add(ps, &k, parse_product(ps), sign))
            return NULL;
        if (!sign_at(peek(ps, 0), &more))
            break;
        sign = more;
        ps->at++;
    }
    ps->depth--;
    return k.n == 1 && k.op[0] == '+' ? k.kid[0] : node(ps, NODE_ADD, first, k.kid, k.op, k.n);
}

static struct cairn_node *parse_ratio(struct parser *ps)
{
    struct kids k = {0};
    int first = ps->at;

    do {
        if (!kids_add(ps, &k, parse_sum(ps), ':'))
            return NULL;
    } while (accept(ps, ':'));
    return k.n == 1 ? k.kid[0] : node(ps, NODE_RATIO, first, k.kid, k.op, k.n);
}

static struct cairn_node *parse_union(struct parser *ps)
{
    struct kids k = {0};
    int first = ps->at;
    char op = 'u';

    for (;;) {
        const struct cairn_tok *t;

        if (!kids_add(ps, &k, parse_ratio(ps), op))
            return NULL;
        t = peek(ps, 0);
        if (ps->at < ps->n && t->kind == TOK_CUP)
            op = 'u';
        else if (ps->at < ps->n && t->kind == TOK_CAP)
            op = 'n';
        else if (ps->at < ps->n && t->kind == TOK_MINUS_SET)
            op = '\\';
        else
            break;
        ps->at++;
    }
    return k.n == 1 ? k.kid[0] : node(ps, NODE_UNION, first, k.kid, k.op, k.n);
}

static int relation_at(const struct cairn_tok *t)
{
    if (is_ch(t, '=') || is_ch(t, '<') || is_ch(t, '>'))
        return t->ch;
    switch (t->kind) {
    case TOK_LE:
        return 'l';
    case TOK_GE:
        return 'g';
    case TOK_NE:
        return 'n';
    case TOK_IN:
        return 'i';
    default:
        return 0;
    }
}

static struct cairn_node *parse_relation(struct parser *ps)
{
    struct kids k = {0};
    int first = ps->at, op = ' ';

    if (!enter(ps))
        return NULL;
    for (;;) {
        if (!kids_add(ps, &k, parse_union(ps), ' '))
            return NULL;
        if (ps->at >= ps->n || !(op = relation_at(peek(ps, 0))))
            break;
        k.op[k.n - 1] = (char)op;
        ps->at++;
    }
    ps->depth--;
    return k.n == 1 ? k.kid[0] : node(ps, NODE_REL, first, k.kid, k.op, k.n);
}

static struct cairn_node *parse_list(struct parser *ps)
{
    struct kids k = {0};
    int first = ps->at, word = 0;
    struct cairn_node *x;

    if (!enter(ps))
        return NULL;
    for (;;) {
        int more = 0;

        if (!kids_add(ps, &k, parse_relation(ps), ' '))
            return NULL;
        while (is_ch(peek(ps, 0), ',') || is_ch(peek(ps, 0), ';')) {
            if (more)
                return fail(ps, CAIRN_PARSE_NOT_MATH);
            ps->at++;
            more = 1;
        }
        if (ps->at < ps->n && (peek(ps, 0)->kind == TOK_AND || peek(ps, 0)->kind == TOK_OR)) {
            word = peek(ps, 0)->kind == TOK_AND ? '&' : '|';
            ps->at++;
            more = 1;
        }
        if (!more)
            break;
    }
    ps->depth--;
    if (k.n == 1)
        return k.kid[0];
    x = node(ps, NODE_LIST, first, k.kid, k.op, k.n);
    if (x)
        x->a = word ? word : ',';
    return x;
}

/* "A5_{11}", "FF_{16}": digits of a large base. */
static struct cairn_node *parse_based_word(struct parser *ps)
{
    int len = 0, digit = 0, from, after, k, base = 0;
    struct cairn_node *x;

    while (len < ps->n && (is_digit(&ps->t[len]) || is_letter(&ps->t[len])) && !(len && ps->t[len].space)) {
        digit |= is_digit(&ps->t[len]);
        len++;
    }
    if (len == 0 || digits_from(ps, 0) == len || len >= ps->n || !is_ch(&ps->t[len], '_'))
        return NULL;
    k = plain_integer(ps, len + 1, 0, &from, &after);
    if (k != 2 || after != ps->n || (!digit && len < 2))
        return NULL;
    for (int i = 0; i < k; i++)
        base = base * 10 + (ps->t[from + i].ch - '0');
    for (int i = 0; i < len; i++) {
        int c = toupper((unsigned char)ps->t[i].ch), value = isdigit(c) ? c - '0' : c - 'A' + 10;

        if (value >= base)
            return NULL;
    }
    x = digits_node(ps, 0, len);
    if (x) {
        x->kind = NODE_BASED;
        x->a = base;
        x->last = ps->at = ps->n;
    }
    return x;
}

enum cairn_parse_result cairn_parse(struct cairn_arena *arena, const struct cairn_toks *toks, struct cairn_node **out)
{
    struct parser ps = {.arena = arena, .t = toks->t, .n = toks->n};
    struct cairn_node *x;

    *out = NULL;
    if (toks->n == 0)
        return CAIRN_PARSE_NOT_MATH;
    x = parse_based_word(&ps);
    if (!x && ps.result == CAIRN_PARSE_OK)
        x = parse_list(&ps);
    if (x && ps.at != ps.n)
        x = fail(&ps, CAIRN_PARSE_NOT_MATH);
    if (!x)
        return ps.result != CAIRN_PARSE_OK ? ps.result : CAIRN_PARSE_NOT_MATH;
    *out = x;
    return CAIRN_PARSE_OK;
}
