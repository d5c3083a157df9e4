/* parser.h - what the parts of the parser share: parse.c (grammar), primary.c (numbers aside, what stands between
 * operators), number.c. For those only. Every cairn_parse_* that returns a node returns NULL once result is not OK.
 */
#ifndef CAIRN_GRADE_PARSER_H
#define CAIRN_GRADE_PARSER_H

#include <ctype.h>

#include "grade/parse.h"

struct parser {
    struct cairn_arena *arena;
    const struct cairn_tok *t;
    int n, at;
    int depth;    /* of recursion */
    int brackets; /* inside (), [] or a set: a comma separates, whatever follows it */
    int nodes;
    enum cairn_parse_result result;
};

/* Growing list of kids and their operators, in the arena, until it becomes a node. */
struct kids {
    struct cairn_node **kid;
    char *op;
    int n, cap;
};

static inline const struct cairn_tok *peek(const struct parser *ps, int ahead)
{
    static const struct cairn_tok end = {TOK_OTHER, 1, 0, 0, "end"};

    return ps->at + ahead < ps->n ? &ps->t[ps->at + ahead] : &end;
}

static inline int is_ch(const struct cairn_tok *t, char c)
{
    return t->kind == TOK_CHAR && t->ch == c;
}

static inline int is_digit(const struct cairn_tok *t)
{
    return t->kind == TOK_CHAR && isdigit((unsigned char)t->ch);
}

static inline int is_letter(const struct cairn_tok *t)
{
    return t->kind == TOK_CHAR && isalpha((unsigned char)t->ch);
}

static inline int accept(struct parser *ps, char c)
{
    if (!is_ch(peek(ps, 0), c))
        return 0;
    ps->at++;
    return 1;
}

static inline int accept_kind(struct parser *ps, enum cairn_tok_kind kind)
{
    if (ps->at >= ps->n || ps->t[ps->at].kind != kind)
        return 0;
    ps->at++;
    return 1;
}

struct cairn_node *cairn_parse_fail(struct parser *ps, enum cairn_parse_result why); /* NULL; keeps the first reason */
int cairn_parse_enter(struct parser *ps); /* one level down; the caller takes it back with ps->depth-- */
/* A node over kids and op (borrowed, n of each; op may be NULL), whose tokens begin at first and end here. */
struct cairn_node *cairn_parse_node(struct parser *ps, enum cairn_node_kind kind, int first, struct cairn_node **kid,
                                    const char *op, int n);
struct cairn_node *cairn_parse_leaf(struct parser *ps, enum cairn_node_kind kind, int first, const char *s);
int cairn_parse_kids_add(struct parser *ps, struct kids *k, struct cairn_node *x, char op); /* 0: failed, or x is NULL */
char *cairn_parse_bytes(struct parser *ps, int bytes);                                      /* bytes + 1 in the arena */

/* parse.c */
struct cairn_node *cairn_parse_list(struct parser *ps);
struct cairn_node *cairn_parse_sum(struct parser *ps);
struct cairn_node *cairn_parse_power(struct parser *ps);

/* primary.c */
struct cairn_node *cairn_parse_primary(struct parser *ps);
/* An exponent behind ^, signs and towers included. */
struct cairn_node *cairn_parse_exponent(struct parser *ps);
int cairn_parse_starts_factor(const struct parser *ps);

/* number.c */
struct cairn_node *cairn_parse_number(struct parser *ps);
int cairn_parse_digits_from(const struct parser *ps, int at); /* digits side by side at token `at` */
/* "{5}" or "5" (single: one digit only) at token `at`: the number of digits, which begin at *first and end before *after. */
int cairn_parse_plain_integer(const struct parser *ps, int at, int single, int *first, int *after);
struct cairn_node *cairn_parse_digits_node(struct parser *ps, int first, int n);

#endif
