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
#include "grade/parser.h"

#include <string.h>

struct cairn_node *cairn_parse_fail(struct parser *ps, enum cairn_parse_result why)
{
    if (ps->result == CAIRN_PARSE_OK)
        ps->result = why;
    return NULL;
}

int cairn_parse_enter(struct parser *ps)
{
    if (++ps->depth > CAIRN_PARSE_DEPTH * 8) { /* eight levels of grammar for one of nesting */
        cairn_parse_fail(ps, CAIRN_PARSE_TOO_DEEP);
        return 0;
    }
    return 1;
}

/* A node over kids (borrowed array of n), whose tokens begin at first. */
struct cairn_node *cairn_parse_node(struct parser *ps, enum cairn_node_kind kind, int first, struct cairn_node **kid,
                                    const char *op, int n)
{
    struct cairn_node *x;

    if (ps->result != CAIRN_PARSE_OK)
        return NULL;
    if (++ps->nodes > CAIRN_PARSE_NODES)
        return cairn_parse_fail(ps, CAIRN_PARSE_TOO_DEEP);
    x = cairn_arena_calloc(ps->arena, 1, sizeof *x);
    if (!x)
        return cairn_parse_fail(ps, CAIRN_PARSE_NOMEM);
    x->kind = kind;
    x->n = n;
    x->s = "";
    x->first = first;
    x->last = ps->at;
    if (n > 0) {
        x->kid = cairn_arena_alloc(ps->arena, (size_t)n * sizeof *x->kid);
        x->op = cairn_arena_alloc(ps->arena, (size_t)n);
        if (!x->kid || !x->op)
            return cairn_parse_fail(ps, CAIRN_PARSE_NOMEM);
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
        return cairn_parse_fail(ps, CAIRN_PARSE_TOO_DEEP);
    return x;
}

struct cairn_node *cairn_parse_leaf(struct parser *ps, enum cairn_node_kind kind, int first, const char *s)
{
    struct cairn_node *x = cairn_parse_node(ps, kind, first, NULL, NULL, 0);

    if (x)
        x->s = s;
    return x;
}

int cairn_parse_kids_add(struct parser *ps, struct kids *k, struct cairn_node *x, char op)
{
    if (!x)
        return 0;
    if (k->n == k->cap) {
        int cap = k->cap ? k->cap * 2 : 4;
        struct cairn_node **kid = cairn_arena_alloc(ps->arena, (size_t)cap * sizeof *kid);
        char *ops = cairn_arena_alloc(ps->arena, (size_t)cap);

        if (!kid || !ops) {
            cairn_parse_fail(ps, CAIRN_PARSE_NOMEM);
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

char *cairn_parse_bytes(struct parser *ps, int bytes)
{
    char *s = cairn_arena_alloc(ps->arena, (size_t)bytes + 1);

    if (!s)
        cairn_parse_fail(ps, CAIRN_PARSE_NOMEM);
    return s;
}

/* --- the grammar ---- */

struct cairn_node *cairn_parse_power(struct parser *ps)
{
    struct cairn_node *x, *kid[2];
    int first = ps->at;

    if (!cairn_parse_enter(ps))
        return NULL;
    x = cairn_parse_primary(ps);
    while (x && is_ch(peek(ps, 0), '!')) {
        ps->at++;
        x = cairn_parse_node(ps, NODE_FACT, first, &x, NULL, 1);
    }
    if (x && accept(ps, '^')) {
        kid[0] = x;
        kid[1] = cairn_parse_exponent(ps);
        x = kid[1] ? cairn_parse_node(ps, NODE_POW, first, kid, NULL, 2) : NULL;
    }
    ps->depth--;
    return x;
}

static struct cairn_node *parse_product(struct parser *ps)
{
    struct kids k = {0};
    int first = ps->at;

    if (!cairn_parse_kids_add(ps, &k, cairn_parse_power(ps), '*'))
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
            x = cairn_parse_power(ps);
            if (x && negative)
                x = cairn_parse_node(ps, NODE_NEG, begin, &x, NULL, 1);
            if (!cairn_parse_kids_add(ps, &k, x, op))
                return NULL;
        } else if (cairn_parse_starts_factor(ps)) {
            /* a bracket that closes an interval from the left is no factor: [0,1) [ */
            if (!cairn_parse_kids_add(ps, &k, cairn_parse_power(ps), op))
                return NULL;
        } else {
            break;
        }
    }
    return k.n == 1 ? k.kid[0] : cairn_parse_node(ps, NODE_MUL, first, k.kid, k.op, k.n);
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

struct cairn_node *cairn_parse_sum(struct parser *ps)
{
    struct kids k = {0};
    int first = ps->at;
    char sign = '+';

    if (!cairn_parse_enter(ps))
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
        if (!cairn_parse_kids_add(ps, &k, parse_product(ps), sign))
            return NULL;
        if (!sign_at(peek(ps, 0), &more))
            break;
        sign = more;
        ps->at++;
    }
    ps->depth--;
    return k.n == 1 && k.op[0] == '+' ? k.kid[0] : cairn_parse_node(ps, NODE_ADD, first, k.kid, k.op, k.n);
}

static struct cairn_node *parse_ratio(struct parser *ps)
{
    struct kids k = {0};
    int first = ps->at;

    do {
        if (!cairn_parse_kids_add(ps, &k, cairn_parse_sum(ps), ':'))
            return NULL;
    } while (accept(ps, ':'));
    return k.n == 1 ? k.kid[0] : cairn_parse_node(ps, NODE_RATIO, first, k.kid, k.op, k.n);
}

static struct cairn_node *parse_union(struct parser *ps)
{
    struct kids k = {0};
    int first = ps->at;
    char op = 'u';

    for (;;) {
        const struct cairn_tok *t;

        if (!cairn_parse_kids_add(ps, &k, parse_ratio(ps), op))
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
    return k.n == 1 ? k.kid[0] : cairn_parse_node(ps, NODE_UNION, first, k.kid, k.op, k.n);
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

    if (!cairn_parse_enter(ps))
        return NULL;
    for (;;) {
        if (!cairn_parse_kids_add(ps, &k, parse_union(ps), ' '))
            return NULL;
        if (ps->at >= ps->n || !(op = relation_at(peek(ps, 0))))
            break;
        k.op[k.n - 1] = (char)op;
        ps->at++;
    }
    ps->depth--;
    return k.n == 1 ? k.kid[0] : cairn_parse_node(ps, NODE_REL, first, k.kid, k.op, k.n);
}

struct cairn_node *cairn_parse_list(struct parser *ps)
{
    struct kids k = {0};
    int first = ps->at, word = 0;
    struct cairn_node *x;

    if (!cairn_parse_enter(ps))
        return NULL;
    for (;;) {
        int more = 0;

        if (!cairn_parse_kids_add(ps, &k, parse_relation(ps), ' '))
            return NULL;
        while (is_ch(peek(ps, 0), ',') || is_ch(peek(ps, 0), ';')) {
            if (more)
                return cairn_parse_fail(ps, CAIRN_PARSE_NOT_MATH);
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
    x = cairn_parse_node(ps, NODE_LIST, first, k.kid, k.op, k.n);
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
    if (len == 0 || cairn_parse_digits_from(ps, 0) == len || len >= ps->n || !is_ch(&ps->t[len], '_'))
        return NULL;
    k = cairn_parse_plain_integer(ps, len + 1, 0, &from, &after);
    if (k != 2 || after != ps->n || (!digit && len < 2))
        return NULL;
    for (int i = 0; i < k; i++)
        base = base * 10 + (ps->t[from + i].ch - '0');
    for (int i = 0; i < len; i++) {
        int c = toupper((unsigned char)ps->t[i].ch), value = isdigit(c) ? c - '0' : c - 'A' + 10;

        if (value >= base)
            return NULL;
    }
    x = cairn_parse_digits_node(ps, 0, len);
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
        x = cairn_parse_list(&ps);
    if (x && ps.at != ps.n)
        x = cairn_parse_fail(&ps, CAIRN_PARSE_NOT_MATH);
    if (!x)
        return ps.result != CAIRN_PARSE_OK ? ps.result : CAIRN_PARSE_NOT_MATH;
    *out = x;
    return CAIRN_PARSE_OK;
}
