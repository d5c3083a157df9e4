/* primary.c - what stands between operators: brackets, fractions, roots, functions, names, matrices. See parser.h. */
#include "grade/parser.h"

#include <string.h>

#include "base/str.h"

static struct cairn_node *parse_brackets(struct parser *ps);

/* The argument of \frac, \sqrt, ^: a group, one digit (or all digits at hand), or one symbol. */
static struct cairn_node *parse_argument(struct parser *ps, int all_digits)
{
    const struct cairn_tok *t = peek(ps, 0);
    struct cairn_node *x = NULL;
    int first = ps->at;

    if (!cairn_parse_enter(ps))
        return NULL;
    if (is_digit(t)) {
        int n = all_digits ? cairn_parse_digits_from(ps, ps->at) : 1;

        ps->at += n;
        x = cairn_parse_digits_node(ps, first, n);
        if (x)
            x->last = ps->at;
    } else if (is_letter(t)) {
        char *s = cairn_parse_bytes(ps, 1);

        if (s) {
            s[0] = t->ch;
            s[1] = 0;
            ps->at++;
            x = cairn_parse_leaf(ps, NODE_SYM, first, s);
        }
    } else if (is_ch(t, '{')) {
        int brackets = ps->brackets;

        ps->at++;
        ps->brackets = 1;
        x = cairn_parse_list(ps);
        ps->brackets = brackets;
        if (x && !accept(ps, '}'))
            x = cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
    } else {
        x = cairn_parse_power(ps);
    }
    ps->depth--;
    return x;
}

struct cairn_node *cairn_parse_exponent(struct parser *ps)
{
    int first = ps->at, negative = 0;
    struct cairn_node *x;

    while (is_ch(peek(ps, 0), '-') || is_ch(peek(ps, 0), '+'))
        negative ^= ps->t[ps->at++].ch == '-';
    x = parse_argument(ps, 1);
    if (x && is_ch(peek(ps, 0), '!')) { /* 2^3! */
        ps->at++;
        x = cairn_parse_node(ps, NODE_FACT, first, &x, NULL, 1);
    }
    if (x && accept(ps, '^')) { /* 9^9^9 */
        struct cairn_node *kid[2] = {x, NULL};

        if (!cairn_parse_enter(ps))
            return NULL;
        kid[1] = cairn_parse_exponent(ps);
        ps->depth--;
        x = kid[1] ? cairn_parse_node(ps, NODE_POW, first, kid, NULL, 2) : NULL;
    }
    return x && negative ? cairn_parse_node(ps, NODE_NEG, first, &x, NULL, 1) : x;
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
                cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
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
                cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
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
        cairn_parse_fail(ps, CAIRN_PARSE_NOMEM);
    return kept ? kept : "";
}

int cairn_parse_starts_factor(const struct parser *ps)
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
        if (!cairn_parse_kids_add(ps, &k, cairn_parse_power(ps), '*'))
            return NULL;
        if (is_ch(peek(ps, 0), '/') && k.n == 1) {
            ps->at++;
            if (!cairn_parse_kids_add(ps, &k, cairn_parse_power(ps), '/'))
                return NULL;
        }
    } while (cairn_parse_starts_factor(ps) && peek(ps, 0)->kind != TOK_FUNC && !is_ch(peek(ps, 0), '('));
    return k.n == 1 ? k.kid[0] : cairn_parse_node(ps, NODE_MUL, first, k.kid, k.op, k.n);
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
    if (accept(ps, '^') && !(power = cairn_parse_exponent(ps)))
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
            return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
        power = NULL;
    }
    if (is_ch(peek(ps, 0), '(') || is_ch(peek(ps, 0), '['))
        kid[0] = parse_brackets(ps); /* sin(x)^2 is the square of sin(x) */
    else if (is_ch(peek(ps, 0), '{'))
        kid[0] = parse_argument(ps, 1);
    else if (is_ch(peek(ps, 0), '-'))
        return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
    else
        kid[0] = parse_bare_argument(ps);
    if (!kid[0])
        return NULL;
    x = cairn_parse_node(ps, NODE_FUNC, first, kid, NULL, n);
    if (!x)
        return NULL;
    x->s = name;
    if (power) {
        struct cairn_node *pow_kid[2] = {x, power};

        x = cairn_parse_node(ps, NODE_POW, first, pow_kid, NULL, 2);
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
        return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
    ps->brackets = 1;
    while (ps->at < ps->n && !closes_matrix(peek(ps, 0))) {
        if (!cairn_parse_kids_add(ps, &k, cairn_parse_sum(ps), ' '))
            return NULL;
        column++;
        if (accept(ps, '&'))
            continue;
        if (columns >= 0 && column != columns)
            return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
        columns = column;
        column = 0;
        rows++;
        if (!accept_kind(ps, TOK_ROW))
            break;
    }
    ps->brackets = brackets;
    if (!accept_kind(ps, TOK_END) || strcmp(ps->t[ps->at - 1].s, name) != 0 || rows == 0 || column != 0)
        return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
    if (!(x = cairn_parse_node(ps, NODE_MATRIX, first, k.kid, k.op, k.n)))
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
        return cairn_parse_leaf(ps, NODE_SYM, first, "emptyset");
    ps->brackets = 1;
    x = cairn_parse_list(ps);
    ps->brackets = brackets;
    if (!x)
        return NULL;
    close = peek(ps, 0);
    if (ps->at >= ps->n)
        return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
    ps->at++;
    if (set || open->kind == TOK_LANGLE) {
        if (close->kind != (set ? TOK_RSET : TOK_RANGLE))
            return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
        made = x->kind == NODE_LIST ? cairn_parse_node(ps, set ? NODE_SET : NODE_TUPLE, first, x->kid, NULL, x->n)
                                    : cairn_parse_node(ps, set ? NODE_SET : NODE_TUPLE, first, &x, NULL, 1);
        if (made)
            made->a = made->b = '<';
        return made;
    }
    if (!is_ch(close, ')') && !is_ch(close, ']'))
        return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
    if (x->kind != NODE_LIST) {
        if ((open->ch == '(') != (close->ch == ')'))
            return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
        return x;
    }
    if (x->a != ',')
        return open->ch == '(' && close->ch == ')' ? x : cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
    made = cairn_parse_node(ps, NODE_TUPLE, first, x->kid, NULL, x->n);
    if (made) {
        made->a = open->ch;
        made->b = close->ch;
    }
    return made;
}

struct cairn_node *cairn_parse_primary(struct parser *ps)
{
    const struct cairn_tok *t = peek(ps, 0);
    struct cairn_node *x = NULL, *kid[2];
    int first = ps->at, brackets = ps->brackets;

    if (ps->at >= ps->n || ps->result != CAIRN_PARSE_OK)
        return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
    switch (t->kind) {
    case TOK_CHAR:
        if (is_digit(t) || (t->ch == '.' && is_digit(peek(ps, 1))) || (t->ch == '.' && peek(ps, 1)->kind == TOK_OVERLINE))
            return cairn_parse_number(ps);
        if (is_letter(t)) {
            char name[2] = {t->ch, 0};
            const char *s;

            ps->at++;
            s = parse_name(ps, name);
            return cairn_parse_leaf(ps, NODE_SYM, first, s);
        }
        if (t->ch == '(' || t->ch == '[')
            return parse_brackets(ps);
        if (t->ch == '{') {
            ps->at++;
            ps->brackets = 1;
            x = cairn_parse_list(ps);
            ps->brackets = brackets;
            if (x && !accept(ps, '}'))
                return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
            if (x && x->kind == NODE_LIST && x->a == ',')
                x = cairn_parse_node(ps, NODE_SET, first, x->kid, NULL, x->n);
            return x;
        }
        if (t->ch == '|') {
            ps->at++;
            kid[0] = cairn_parse_sum(ps);
            if (!kid[0] || !accept(ps, '|'))
                return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
            return cairn_parse_node(ps, NODE_ABS, first, kid, NULL, 1);
        }
        return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
    case TOK_LSET:
    case TOK_LANGLE:
        return parse_brackets(ps);
    case TOK_SYM: {
        const char *s;

        ps->at++;
        s = parse_name(ps, t->s);
        return cairn_parse_leaf(ps, NODE_SYM, first, s);
    }
    case TOK_TEXT:
        ps->at++;
        return cairn_parse_leaf(ps, NODE_TEXT, first, t->s);
    case TOK_FUNC:
        return parse_function(ps);
    case TOK_FRAC:
    case TOK_BINOM:
        ps->at++;
        if (!(kid[0] = parse_argument(ps, 0)) || !(kid[1] = parse_argument(ps, 0)))
            return NULL;
        return cairn_parse_node(ps, t->kind == TOK_FRAC ? NODE_MUL : NODE_BINOM, first, kid, t->kind == TOK_FRAC ? "*/" : NULL, 2);
    case TOK_SQRT: {
        char *two = cairn_parse_bytes(ps, 1);

        ps->at++;
        if (!two)
            return NULL;
        strcpy(two, "2");
        if (accept(ps, '[')) {
            kid[1] = cairn_parse_sum(ps);
            if (!kid[1] || !accept(ps, ']'))
                return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
        } else {
            kid[1] = cairn_parse_leaf(ps, NODE_NUM, first, two);
        }
        if (is_ch(peek(ps, 0), '(')) /* sqrt(3)^2: the root ends with its bracket */
            kid[0] = parse_brackets(ps);
        else
            kid[0] = parse_argument(ps, 1);
        if (!kid[0] || !kid[1])
            return NULL;
        return cairn_parse_node(ps, NODE_ROOT, first, kid, NULL, 2);
    }
    case TOK_FLOOR_L:
    case TOK_CEIL_L:
        ps->at++;
        kid[0] = cairn_parse_sum(ps);
        if (!kid[0] || !accept_kind(ps, t->kind == TOK_FLOOR_L ? TOK_FLOOR_R : TOK_CEIL_R))
            return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
        return cairn_parse_node(ps, t->kind == TOK_FLOOR_L ? NODE_FLOOR : NODE_CEIL, first, kid, NULL, 1);
    case TOK_SCALE:
        ps->at++;
        if (!(x = cairn_parse_leaf(ps, NODE_NUM, first, "1")))
            return NULL;
        x->exp10 = t->ch;
        return x;
    case TOK_OVERLINE: { /* \overline{AB}: a name */
        struct cairn_str s = {0};
        int at = ps->at + 1;
        char *kept;

        if (!(at < ps->n && is_ch(&ps->t[at], '{')))
            return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
        cairn_str_puts(&s, "overline:");
        for (at++; at < ps->n && is_letter(&ps->t[at]); at++)
            cairn_str_putc(&s, ps->t[at].ch);
        kept = s.oom ? NULL : cairn_arena_strdup(ps->arena, cairn_str_z(&s));
        cairn_str_free(&s);
        if (!kept)
            return cairn_parse_fail(ps, CAIRN_PARSE_NOMEM);
        if (at >= ps->n || !is_ch(&ps->t[at], '}'))
            return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
        ps->at = at + 1;
        return cairn_parse_leaf(ps, NODE_SYM, first, kept);
    }
    case TOK_BEGIN:
        return parse_matrix(ps);
    default:
        return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
    }
}
