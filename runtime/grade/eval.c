/* eval.c - nodes to values. See eval.h. Recursion is bounded by CAIRN_PARSE_DEPTH. */
#include "grade/eval.h"

#include <string.h>

static struct cairn_value *eval(struct cairn_algebra *alg, struct cairn_node *x, int sign);

static struct cairn_value *kid(struct cairn_algebra *alg, struct cairn_node *x, int i, int sign)
{
    return (struct cairn_value *)cairn_eval(alg, x->kid[i], sign);
}

static struct cairn_value *number(struct cairn_algebra *alg, const struct cairn_node *x)
{
    struct cairn_value *v = cairn_value_decimal(alg, x->s, x->a), *e;

    if (!v || (!x->exp10 && !x->big_exp))
        return v;
    e = x->big_exp ? cairn_value_decimal(alg, x->big_exp, 0) : cairn_value_int(alg, (long)x->exp10);
    if (x->big_exp && x->exp10 < 0)
        e = cairn_value_neg(alg, e);
    return cairn_value_mul(alg, v, cairn_value_pow(alg, cairn_value_int(alg, 10), e));
}

static struct cairn_value *function(struct cairn_algebra *alg, struct cairn_node *x, int sign)
{
    struct cairn_value *v = kid(alg, x, 0, sign);

    if (strcmp(x->s, "exp") == 0)
        return cairn_value_pow(alg, cairn_value_symbol(alg, "e", 1), v);
    if (strcmp(x->s, "log") == 0 && x->n == 2)
        return cairn_value_div(alg, cairn_value_ln(alg, v), cairn_value_ln(alg, kid(alg, x, 1, sign)));
    if (x->n != 1)
        return cairn_value_none(alg, CAIRN_VALUE_NONE);
    if (strcmp(x->s, "ln") == 0)
        return cairn_value_ln(alg, v);
    return cairn_value_function(alg, x->s, v);
}

static struct cairn_value *symbol(struct cairn_algebra *alg, const char *name)
{
    if (strcmp(name, "i") == 0)
        return cairn_value_i(alg);
    if (strcmp(name, "infty") == 0) /* compared as it stands (compare.c), never computed with */
        return cairn_value_none(alg, CAIRN_VALUE_UNDEFINED);
    return cairn_value_symbol(alg, name, strcmp(name, "pi") == 0 || strcmp(name, "e") == 0);
}

static struct cairn_value *eval(struct cairn_algebra *alg, struct cairn_node *x, int sign)
{
    struct cairn_value *v, *w;
    mpq_srcptr q;

    switch (x->kind) {
    case NODE_NUM:
        return number(alg, x);
    case NODE_BASED:
        return x->a == 10 ? cairn_value_decimal(alg, x->s, 0) : cairn_value_none(alg, CAIRN_VALUE_NONE);
    case NODE_SYM:
        return symbol(alg, x->s);
    case NODE_ADD:
        v = NULL;
        for (int i = 0; i < x->n; i++) {
            int minus = x->op[i] == '-' || (x->op[i] == 'p' && sign < 0) || (x->op[i] == 'm' && sign > 0);

            w = kid(alg, x, i, sign);
            if (minus)
                w = cairn_value_neg(alg, w);
            v = i ? cairn_value_add(alg, v, w) : w;
            if (!v)
                return NULL;
        }
        return v;
    case NODE_MUL:
        v = NULL;
        for (int i = 0; i < x->n; i++) {
            w = kid(alg, x, i, sign);
            v = i == 0 ? w : x->op[i] == '/' ? cairn_value_div(alg, v, w) : cairn_value_mul(alg, v, w);
            if (!v)
                return NULL;
        }
        return v;
    case NODE_POW:
        v = kid(alg, x, 0, sign);
        return cairn_value_pow(alg, v, kid(alg, x, 1, sign));
    case NODE_NEG:
        return cairn_value_neg(alg, kid(alg, x, 0, sign));
    case NODE_ROOT:
        v = kid(alg, x, 0, sign);
        w = kid(alg, x, 1, sign);
        if (!v || !w)
            return NULL;
        if (cairn_value_rational(w, &q)) {
            if (mpz_cmp_ui(mpq_denref(q), 1) != 0 || mpz_cmp_ui(mpq_numref(q), 1) < 0 || mpz_cmp_ui(mpq_numref(q), 1000) > 0)
                return cairn_value_none(alg, CAIRN_VALUE_UNDEFINED);
            return cairn_value_root(alg, v, mpz_get_si(mpq_numref(q)));
        }
        return cairn_value_pow(alg, v, cairn_value_div(alg, cairn_value_int(alg, 1), w));
    case NODE_FUNC:
        return function(alg, x, sign);
    case NODE_FACT:
        return cairn_value_factorial(alg, kid(alg, x, 0, sign));
    case NODE_BINOM:
        v = kid(alg, x, 0, sign);
        return cairn_value_binomial(alg, v, kid(alg, x, 1, sign));
    case NODE_ABS:
        return cairn_value_abs(alg, kid(alg, x, 0, sign));
    case NODE_FLOOR:
    case NODE_CEIL:
        return cairn_value_round(alg, kid(alg, x, 0, sign), x->kind == NODE_CEIL);
    default:
        return cairn_value_none(alg, CAIRN_VALUE_NONE);
    }
}

const struct cairn_value *cairn_eval(struct cairn_algebra *alg, struct cairn_node *x, int sign)
{
    void **cache = x->plus_minus && sign < 0 ? &x->value_minus : &x->value;

    if (!*cache)
        *cache = eval(alg, x, sign);
    return *cache;
}
