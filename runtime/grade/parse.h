/* parse.h - tokens to a tree: numbers, expressions, tuples, sets, lists, intervals, matrices, relations.
 *
 * Recursive descent over the tokens of latex.h. Nesting is limited to CAIRN_PARSE_DEPTH (result TOO_DEEP), nodes to
 * CAIRN_PARSE_NODES. What it cannot read is NOT_MATH, never a guess.
 * Memory: nodes live in the arena; numbers stay digits (s, n) until eval.h reads them.
 */
#ifndef CAIRN_GRADE_PARSE_H
#define CAIRN_GRADE_PARSE_H

#include <stdint.h>

#include "base/arena.h"
#include "grade/latex.h"

#define CAIRN_PARSE_DEPTH 100
#define CAIRN_PARSE_NODES 20000

enum cairn_node_kind {
    NODE_NUM,  /* s: digits with at most one '.'; a: how many of the last decimals repeat */
    NODE_SYM,  /* s */
    NODE_TEXT, /* s */
    NODE_ADD,  /* kids; sign of kid i in op[i]: '+', '-', 'p' (plus-minus), 'm' (minus-plus) */
    NODE_MUL,  /* kids; op[i]: '*' or '/' */
    NODE_POW,  /* 2 kids */
    NODE_NEG,
    NODE_ROOT, /* radicand, index */
    NODE_FUNC, /* s; argument; with a second kid: the base of a logarithm */
    NODE_FACT,
    NODE_BINOM,
    NODE_ABS,
    NODE_FLOOR,
    NODE_CEIL,
    NODE_BASED, /* s: digits; a: base */
    NODE_TUPLE, /* a, b: brackets */
    NODE_SET,
    NODE_LIST,  /* a: ',' '&' (and) or '|' (or) */
    NODE_REL,   /* kids; op[i] between kid i and i+1: '=' '<' '>' 'l' (<=) 'g' (>=) 'n' (not equal) 'i' (in) */
    NODE_UNION, /* kids; op[i] in front of kid i: 'u', 'n' or '\\' */
    NODE_RATIO,
    NODE_MATRIX /* kids row by row; a: rows; b: columns; s: "m" or "v" (determinant bars) */
};

struct cairn_node {
    enum cairn_node_kind kind;
    int n, depth, a, b;
    int first, last; /* tokens [first, last) */
    struct cairn_node **kid;
    char *op;
    const char *s;
    int64_t exp10;       /* NODE_NUM: times 10^exp10 */
    const char *big_exp; /* NODE_NUM: digits of an exponent beyond 15 digits (then exp10 is its sign) */
    int plus_minus;      /* holds a \pm or \mp */
    void *value;         /* eval.h's cache, for plus and minus */
    void *value_minus;
};

enum cairn_parse_result { CAIRN_PARSE_OK = 0, CAIRN_PARSE_NOT_MATH, CAIRN_PARSE_TOO_DEEP, CAIRN_PARSE_NOMEM };

enum cairn_parse_result cairn_parse(struct cairn_arena *arena, const struct cairn_toks *toks, struct cairn_node **out);

#endif
