/* compare.c - the structure of answers. See compare.h. */
#include "grade/compare.h"

#include <ctype.h>
#include <string.h>

#include "grade/compare_impl.h"
#include "grade/eval.h"

#define ITEMS_MAX 128

static int same(struct cairn_compare *c, struct item a, struct item b);

const struct cairn_value *cairn_compare_value(struct cairn_compare *c, struct item a)
{
    return cairn_eval(c->alg, a.x, a.sign ? a.sign : 1);
}

int cairn_compare_same_value(struct cairn_compare *c, const struct cairn_value *x, const struct cairn_value *y)
{
    if (!x || !y) {
        c->why = cairn_algebra_fail(c->alg) == CAIRN_VALUE_UNDEFINED ? "the value is not defined" : "not of the same form";
        cairn_algebra_clear_fail(c->alg);
        return 0;
    }
    if (cairn_value_equal(c->alg, x, y) == 1)
        return 1;
    c->undecided |= !cairn_value_decided(c->alg, x, y);
    return differ(c, "another value");
}

/* --- names ------------------------------------------------------------------------------------------------------------ */

static const struct cairn_tok *tokens(const struct cairn_compare *c, struct item a)
{
    return (a.gold ? c->gold_toks : c->response_toks)->t + a.x->first;
}

/* x, x_1, AB, f(x), (p,q,r), Area: letters with subscripts and brackets, no arithmetic. */
static int is_name(const struct cairn_compare *c, struct item a)
{
    const struct cairn_tok *t = tokens(c, a);
    int n = a.x->last - a.x->first, letters = 0, inside = 0;

    for (int i = 0; i < n; i++) {
        if (t[i].kind == TOK_SYM || t[i].kind == TOK_TEXT || t[i].kind == TOK_OVERLINE) {
            if (t[i].kind == TOK_SYM && strcmp(t[i].s, "infty") == 0)
                return 0;
            letters++;
        } else if (t[i].kind == TOK_FUNC && n > 1) {
            letters++;
        } else if (t[i].kind != TOK_CHAR) {
            return 0;
        } else if (isalpha((unsigned char)t[i].ch)) {
            letters++;
        } else if (isdigit((unsigned char)t[i].ch)) {
            if (!inside && !(i > 0 && t[i - 1].kind == TOK_CHAR && t[i - 1].ch == '_'))
                return 0;
        } else if (t[i].ch == '(' || t[i].ch == '{') {
            inside++;
        } else if (t[i].ch == ')' || t[i].ch == '}') {
            inside--;
        } else if (!strchr(",'_|", t[i].ch)) {
            return 0;
        }
    }
    if (letters == 0)
        return 0;
    /* pi = ..., e = ..., i = ... are claims, no names */
    return !(a.x->kind == NODE_SYM && (strcmp(a.x->s, "pi") == 0 || strcmp(a.x->s, "e") == 0 || strcmp(a.x->s, "i") == 0));
}

static int same_tokens(const struct cairn_compare *c, struct item a, struct item b)
{
    const struct cairn_tok *x = tokens(c, a), *y = tokens(c, b);
    int n = a.x->last - a.x->first;

    if (n != b.x->last - b.x->first)
        return 0;
    for (int i = 0; i < n; i++)
        if (x[i].kind != y[i].kind || x[i].ch != y[i].ch || strcmp(x[i].s, y[i].s) != 0)
            return 0;
    return 1;
}

/* "name = something", "name in something", "something = name": the parts. For a chain "name = a = b" rest is "a = b". */
static int named(struct cairn_compare *c, struct item a, struct item *name, struct item *rest)
{
    struct cairn_node *x = a.x;

    if (x->kind != NODE_REL || (x->op[0] != '=' && x->op[0] != 'i'))
        return 0;
    if (is_name(c, kid_of(a, 0))) {
        *name = kid_of(a, 0);
        if (x->n == 2) {
            *rest = kid_of(a, 1);
            return 1;
        }
        {
            struct cairn_node *tail = cairn_arena_alloc(c->arena, sizeof *tail);

            if (!tail)
                return 0;
            *tail = *x;
            tail->n--;
            tail->kid++;
            tail->op++;
            tail->first = tail->kid[0]->first;
            *rest = item(tail, a.sign, a.gold);
        }
        return 1;
    }
    if (x->n == 2 && x->op[0] == '=' && x->kid[1]->kind == NODE_SYM && is_name(c, kid_of(a, 1))) {
        *name = kid_of(a, 1);
        *rest = kid_of(a, 0);
        return 1;
    }
    return 0;
}

/* --- collections -------------------------------------------------------------------------------------------------------- */

static int is_collection(struct item a)
{
    return a.x->kind == NODE_LIST || a.x->kind == NODE_SET || (a.x->plus_minus && a.sign == 0 && a.x->kind != NODE_REL);
}

/* The members, \pm written out; -1: too many. */
static int members(struct item a, struct item *out)
{
    int n = 0;

    if (a.x->kind != NODE_LIST && a.x->kind != NODE_SET) {
        out[0] = item(a.x, 1, a.gold);
        out[1] = item(a.x, -1, a.gold);
        return 2;
    }
    for (int i = 0; i < a.x->n; i++) {
        struct cairn_node *x = a.x->kid[i];

        if (n + 2 > ITEMS_MAX)
            return -1;
        if (x->plus_minus && a.sign == 0) {
            out[n++] = item(x, 1, a.gold);
            out[n++] = item(x, -1, a.gold);
        } else {
            out[n++] = item(x, a.sign, a.gold);
        }
    }
    return n;
}

static int without_doubles(struct cairn_compare *c, struct item *m, int n)
{
    int out = 0;

    for (int i = 0; i < n; i++) {
        int seen = 0;

        for (int k = 0; k < out && !seen; k++)
            seen = same(c, m[k], m[i]);
        if (!seen)
            m[out++] = m[i];
    }
    return out;
}

/* Members all named, with at least two names among them. */
static int distinct_names(struct cairn_compare *c, const struct item *m, int n)
{
    struct item first = {0}, name, rest;
    int distinct = 0;

    for (int i = 0; i < n; i++) {
        if (!named(c, m[i], &name, &rest))
            return 0;
        if (i == 0)
            first = name;
        else
            distinct |= !same_tokens(c, first, name);
    }
    return distinct;
}

static int any_named(struct cairn_compare *c, const struct item *m, int n)
{
    struct item name, rest;

    for (int i = 0; i < n; i++)
        if (named(c, m[i], &name, &rest))
            return 1;
    return 0;
}

/* A one-to-one pairing; equality is transitive, so the first partner found is as good as any. */
static int paired(struct cairn_compare *c, const struct item *a, int na, const struct item *b, int nb)
{
    char used[ITEMS_MAX] = {0};

    if (na != nb)
        return differ(c, "another number of members");
    for (int i = 0; i < na; i++) {
        int k = 0;

        while (k < nb && (used[k] || !same(c, a[i], b[k])))
            k++;
        if (k == nb)
            return differ(c, "a member differs");
        used[k] = 1;
    }
    return 1;
}

static int same_collection(struct cairn_compare *c, struct item a, struct item b)
{
    struct item ma[ITEMS_MAX], mb[ITEMS_MAX];
    int na, nb, na_names, nb_names;

    if (!is_collection(a) || !is_collection(b))
        return differ(c, is_collection(b) ? "several candidates for one answer" : "one answer where several are asked for");
    na = members(a, ma);
    nb = members(b, mb);
    if (na < 0 || nb < 0)
        return differ(c, "too many members");
    if (a.x->kind == NODE_LIST && b.x->kind == NODE_LIST && a.x->a != ',' && b.x->a != ',' && a.x->a != b.x->a)
        for (int i = 0; i < na; i++)
            if (ma[i].x->kind == NODE_REL)
                return differ(c, "\"and\" for \"or\"");
    if (a.x->kind == NODE_SET && b.x->kind == NODE_SET) {
        na = without_doubles(c, ma, na);
        nb = without_doubles(c, mb, nb);
    }
    na_names = distinct_names(c, ma, na);
    nb_names = distinct_names(c, mb, nb);
    if ((na_names && !any_named(c, mb, nb)) || (nb_names && !any_named(c, ma, na))) {
        /* "x = 1, y = 2" for "1, 2": in this order */
        if (na != nb)
            return differ(c, "another number of members");
        for (int i = 0; i < na; i++)
            if (!same(c, ma[i], mb[i]))
                return 0;
        return 1;
    }
    return paired(c, ma, na, mb, nb);
}

/* --- intervals ------------------------------------------------------------------------------------------------------------ */

/* +1: \infty, -1: -\infty, 0: anything else. Infinities are compared as they stand and never computed with. */
static int infinity_sign(struct item a)
{
    struct cairn_node *x = a.x;
    int minus;

    if (x->kind == NODE_SYM)
        return strcmp(x->s, "infty") == 0;
    if (x->kind == NODE_NEG)
        return -infinity_sign(kid_of(a, 0));
    if (x->kind != NODE_ADD || x->n != 1)
        return 0;
    minus = x->op[0] == '-' || (x->op[0] == 'p' && a.sign < 0) || (x->op[0] == 'm' && a.sign > 0);
    return minus ? -infinity_sign(kid_of(a, 0)) : infinity_sign(kid_of(a, 0));
}

static int is_infinity(struct cairn_node *x, int negative)
{
    return infinity_sign(item(x, 1, 0)) == (negative ? -1 : 1);
}

/* \mathbb{R}, (-\infty, \infty) */
static int is_reals(struct cairn_node *x)
{
    if (x->kind == NODE_SYM)
        return strcmp(x->s, "BR") == 0;
    return x->kind == NODE_TUPLE && x->n == 2 && x->a == '(' && x->b == ')' && is_infinity(x->kid[0], 1) &&
           is_infinity(x->kid[1], 0);
}

struct bounds {
    struct cairn_node *low, *high; /* NULL: none */
    int low_closed, high_closed;
};

/* a < x <= b, x >= a, a > x, ... with a bare symbol in the middle. */
static int bounds_of(const struct cairn_node *x, struct bounds *out)
{
    int middle = -1;

    memset(out, 0, sizeof *out);
    if (x->kind != NODE_REL || x->n > 3)
        return 0;
    for (int i = 0; i < x->n; i++)
        if (x->kid[i]->kind == NODE_SYM && !is_infinity(x->kid[i], 0) && (x->n == 2 || i == 1))
            middle = i;
    if (middle < 0)
        return 0;
    for (int i = 0; i + 1 < x->n; i++) {
        int op = x->op[i], left = i + 1 == middle, up = op == '<' || op == 'l', closed = op == 'l' || op == 'g';
        struct cairn_node *other = x->kid[left ? i : i + 1];

        if (!strchr("<>lg", op))
            return 0;
        if (left == up) { /* other < x, x > other */
            if (out->low)
                return 0;
            out->low = other;
            out->low_closed = closed;
        } else {
            if (out->high)
                return 0;
            out->high = other;
            out->high_closed = closed;
        }
    }
    return 1;
}

static int same_bounds(struct cairn_compare *c, struct item relation, struct item interval)
{
    struct bounds b;
    struct cairn_node *t = interval.x;

    if (t->kind != NODE_TUPLE || t->n != 2 || !bounds_of(relation.x, &b))
        return differ(c, "a relation for something else");
    if (!strchr("([", t->a) || !strchr(")]", t->b))
        return differ(c, "a relation for something else");
    if (b.low ? (t->a == '[') != b.low_closed || is_infinity(t->kid[0], 1) : !is_infinity(t->kid[0], 1))
        return differ(c, "another lower bound");
    if (b.high ? (t->b == ']') != b.high_closed || is_infinity(t->kid[1], 0) : !is_infinity(t->kid[1], 0))
        return differ(c, "another upper bound");
    if (b.low && !same(c, item(b.low, relation.sign, relation.gold), kid_of(interval, 0)))
        return 0;
    return !b.high || same(c, item(b.high, relation.sign, relation.gold), kid_of(interval, 1));
}

/* --- relations ------------------------------------------------------------------------------------------------------------ */

/* One link of a chain in a form that is the same for equivalent ones: difference (op) 0. */
static const struct cairn_value *link_value(struct cairn_compare *c, struct item a, int i, int *op)
{
    const struct cairn_value *x = cairn_compare_value(c, kid_of(a, i)), *y = cairn_compare_value(c, kid_of(a, i + 1));
    struct cairn_value *d;

    *op = a.x->op[i];
    if (*op == '>' || *op == 'g') {
        const struct cairn_value *swap = x;

        x = y;
        y = swap;
        *op = *op == '>' ? '<' : 'l';
    }
    d = cairn_value_add(c->alg, x, y ? cairn_value_neg(c->alg, y) : NULL);
    if (*op == '=' || *op == 'n')
        return cairn_value_normalise(c->alg, cairn_value_numerator(c->alg, d), 1);
    return cairn_value_normalise(c->alg, d, 0);
}

static int same_links(struct cairn_compare *c, struct item a, struct item b)
{
    char used[ITEMS_MAX] = {0};

    if (a.x->n != b.x->n || a.x->n > ITEMS_MAX)
        return differ(c, "another number of relations");
    for (int i = 0; i + 1 < a.x->n; i++) {
        int op, found = 0;
        const struct cairn_value *x;

        if (a.x->op[i] == 'i') { /* member of: side by side */
            if (b.x->op[i] != 'i' || !same(c, kid_of(a, i), kid_of(b, i)) || !same(c, kid_of(a, i + 1), kid_of(b, i + 1)))
                return differ(c, "another set");
            continue;
        }
        x = link_value(c, a, i, &op);
        if (!x || cairn_value_is_zero(x)) {
            cairn_algebra_clear_fail(c->alg);
            return differ(c, "the relation cannot be compared");
        }
        for (int k = 0; k + 1 < b.x->n && !found; k++) {
            int other;
            const struct cairn_value *y;

            if (used[k] || b.x->op[k] == 'i')
                continue;
            y = link_value(c, b, k, &other);
            if (!y)
                cairn_algebra_clear_fail(c->alg);
            else if (other == op && cairn_value_equal(c->alg, x, y) == 1)
                found = used[k] = 1;
        }
        if (!found)
            return differ(c, "another relation");
    }
    return 1;
}

/* A chain of equal signs between constants: "0.56 = 56%". Gold: any of them will do; response: all must. */
static int same_chain(struct cairn_compare *c, struct item a, struct item b)
{
    struct item chain = a.x->kind == NODE_REL ? a : b, other = a.x->kind == NODE_REL ? b : a;
    int hits = 0;

    for (int i = 0; i + 1 < chain.x->n; i++)
        if (chain.x->op[i] != '=')
            return differ(c, "a relation for something else");
    for (int i = 0; i < chain.x->n; i++)
        hits += chain.gold ? same(c, kid_of(chain, i), other) : same(c, other, kid_of(chain, i));
    if (chain.gold ? hits > 0 : hits == chain.x->n)
        return 1;
    return differ(c, "an equation for something else");
}

static int same_relation(struct cairn_compare *c, struct item a, struct item b)
{
    struct item name_a, rest_a, name_b, rest_b;
    int has_a = named(c, a, &name_a, &rest_a), has_b = named(c, b, &name_b, &rest_b);

    if (has_a && has_b) {
        if (same_tokens(c, name_a, name_b) && same(c, rest_a, rest_b))
            return 1;
    } else if (has_a || has_b) {
        if (same(c, has_a ? rest_a : a, has_b ? rest_b : b))
            return 1;
    }
    if (a.x->kind == NODE_REL && b.x->kind == NODE_REL)
        return same_links(c, a, b);
    if (has_a || has_b)
        return 0;
    if (a.x->kind == NODE_REL ? b.x->kind == NODE_TUPLE : a.x->kind == NODE_TUPLE)
        return a.x->kind == NODE_REL ? same_bounds(c, a, b) : same_bounds(c, b, a);
    return same_chain(c, a, b);
}

/* --- everything --------------------------------------------------------------------------------------------------------------- */

static int same_in_order(struct cairn_compare *c, struct item a, struct item b)
{
    if (a.x->n != b.x->n)
        return differ(c, "another number of components");
    for (int i = 0; i < a.x->n; i++)
        if (!same(c, kid_of(a, i), kid_of(b, i)))
            return differ(c, "a component differs");
    return 1;
}

static int same_union(struct cairn_compare *c, struct item a, struct item b)
{
    struct item ma[ITEMS_MAX], mb[ITEMS_MAX];

    if (a.x->kind != NODE_UNION || b.x->kind != NODE_UNION)
        return differ(c, "one set for a union");
    if (a.x->n != b.x->n || a.x->n > ITEMS_MAX)
        return differ(c, "another number of sets");
    for (int i = 0; i < a.x->n; i++) {
        if (a.x->op[i] != b.x->op[i])
            return differ(c, "another operation on sets");
        if (i > 0 && a.x->op[i] != a.x->op[a.x->n - 1])
            return same_in_order(c, a, b);
        ma[i] = kid_of(a, i);
        mb[i] = kid_of(b, i);
    }
    return a.x->op[a.x->n - 1] == '\\' ? same_in_order(c, a, b) : paired(c, ma, a.x->n, mb, b.x->n);
}

static int same_words(const char *a, const char *b)
{
    while (*a && *b && tolower((unsigned char)*a) == tolower((unsigned char)*b)) {
        a++;
        b++;
    }
    return !*a && !*b;
}

static int same_digits(const char *a, const char *b)
{
    while (*a == '0' && a[1])
        a++;
    while (*b == '0' && b[1])
        b++;
    return same_words(a, b);
}

static int same(struct cairn_compare *c, struct item a, struct item b)
{
    enum cairn_node_kind x = a.x->kind, y = b.x->kind;

    if (!cairn_algebra_spend(c->alg,
                             8 + (x == NODE_REL ? a.x->last - a.x->first : 0) + (y == NODE_REL ? b.x->last - b.x->first : 0)))
        return differ(c, "the budget is spent");
    if (is_collection(a) && is_collection(b))
        return same_collection(c, a, b);
    if (x == NODE_REL || y == NODE_REL)
        return same_relation(c, a, b);
    if (is_collection(a) || is_collection(b))
        return same_collection(c, a, b);
    if (x == NODE_UNION || y == NODE_UNION)
        return same_union(c, a, b);
    if (is_reals(a.x) && is_reals(b.x))
        return 1;
    if (x == NODE_TUPLE || y == NODE_TUPLE) {
        if (x != y || a.x->a != b.x->a || a.x->b != b.x->b)
            return differ(c, x != y ? "not of the same form" : "other brackets");
        return same_in_order(c, a, b);
    }
    if (x == NODE_RATIO || y == NODE_RATIO)
        return x == y ? same_in_order(c, a, b) : differ(c, "not of the same form");
    if ((x == NODE_BASED && a.x->a != 10) || (y == NODE_BASED && b.x->a != 10)) {
        if (x != y || a.x->a != b.x->a)
            return differ(c, "another base");
        return same_digits(a.x->s, b.x->s) ? 1 : differ(c, "other digits");
    }
    if (x == NODE_TEXT || y == NODE_TEXT)
        return x == y && same_words(a.x->s, b.x->s) ? 1 : differ(c, "other words");
    if (cairn_compare_holds_matrix(a.x) || cairn_compare_holds_matrix(b.x))
        return cairn_compare_matrix(c, a, b);
    if (infinity_sign(a) || infinity_sign(b))
        return infinity_sign(a) == infinity_sign(b) ? 1 : differ(c, "another value");
    return cairn_compare_same_value(c, cairn_compare_value(c, a), cairn_compare_value(c, b));
}

int cairn_compare(struct cairn_compare *c, struct cairn_node *gold, struct cairn_node *response)
{
    c->why = "equal";
    return same(c, item(gold, 0, 1), item(response, 0, 0));
}
