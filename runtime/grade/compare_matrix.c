/* compare_matrix.c - matrices among answers. See compare.h. */
#include <string.h>

#include "grade/compare_impl.h"
#include "grade/eval.h"

/* The matrix in "scalar * matrix", "-matrix" or "matrix"; *scalar NULL for 1. */
static struct cairn_node *matrix_in(struct cairn_compare *c, struct item a, const struct cairn_value **scalar)
{
    struct cairn_node *x = a.x, *found = NULL;
    struct cairn_value *s = NULL;

    *scalar = NULL;
    if (x->kind == NODE_MATRIX)
        return x;
    if ((x->kind == NODE_ADD && x->n == 1 && x->op[0] == '-') || x->kind == NODE_NEG) {
        const struct cairn_value *inner;

        found = matrix_in(c, kid_of(a, 0), &inner);
        if (found)
            *scalar = cairn_value_neg(c->alg, inner ? inner : cairn_value_int(c->alg, 1));
        return *scalar ? found : NULL;
    }
    if (x->kind != NODE_MUL)
        return NULL;
    for (int i = 0; i < x->n; i++)
        if (x->kid[i]->kind == NODE_MATRIX) {
            if (found || x->op[i] == '/')
                return NULL;
            found = x->kid[i];
        }
    if (!found)
        return NULL;
    s = cairn_value_int(c->alg, 1);
    for (int i = 0; i < x->n; i++)
        if (x->kid[i] != found)
            s = x->op[i] == '/' ? cairn_value_div(c->alg, s, cairn_compare_value(c, kid_of(a, i)))
                                : cairn_value_mul(c->alg, s, cairn_compare_value(c, kid_of(a, i)));
    *scalar = s;
    return s ? found : NULL;
}

int cairn_compare_matrix(struct cairn_compare *c, struct item a, struct item b)
{
    const struct cairn_value *sa, *sb;
    struct cairn_node *x = matrix_in(c, a, &sa), *y = matrix_in(c, b, &sb);

    if (!x || !y || x->a != y->a || x->b != y->b || strcmp(x->s, y->s) != 0) {
        cairn_algebra_clear_fail(c->alg);
        return differ(c, "another shape");
    }
    if (x->s[0] == 'v' && (sa || sb))
        return differ(c, "another shape");
    for (int i = 0; i < x->n; i++) {
        const struct cairn_value *u = cairn_compare_value(c, item(x->kid[i], a.sign, a.gold)),
                                 *v = cairn_compare_value(c, item(y->kid[i], b.sign, b.gold));

        if (sa && u)
            u = cairn_value_mul(c->alg, sa, u);
        if (sb && v)
            v = cairn_value_mul(c->alg, sb, v);
        if (!cairn_compare_same_value(c, u, v))
            return differ(c, "an entry differs");
    }
    return 1;
}

int cairn_compare_holds_matrix(const struct cairn_node *x)
{
    if (x->kind == NODE_MATRIX)
        return 1;
    if (x->kind != NODE_MUL && x->kind != NODE_NEG && x->kind != NODE_ADD)
        return 0;
    for (int i = 0; i < x->n; i++)
        if (cairn_compare_holds_matrix(x->kid[i]))
            return 1;
    return 0;
}
