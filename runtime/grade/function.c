/* function.c - functions of values: absolute value, rounding, factorial, binomial, logarithm, sine. See value.h. */
#include "grade/poly.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

/* A constant integer that fits a long. */
static int small_integer(const struct cairn_algebra *alg, const struct cairn_value *a, long *x)
{
    if (!cairn_value_is_constant(alg, a))
        return 0;
    *x = 0;
    if (a->num->n == 0)
        return 1;
    if (mpz_cmp_ui(mpq_denref(a->num->t[0].c), 1) != 0 || !mpz_fits_slong_p(mpq_numref(a->num->t[0].c)))
        return 0;
    *x = mpz_get_si(mpq_numref(a->num->t[0].c));
    return 1;
}

struct cairn_value *cairn_value_abs(struct cairn_algebra *alg, const struct cairn_value *a)
{
    int known = 1;

    if (!a || a->num->n == 0)
        return a ? cairn_value_int(alg, 0) : NULL;
    for (int i = 0; a->num->n == 1 && i < a->num->t[0].n; i++) {
        enum atom_kind kind = alg->atom[a->num->t[0].f[i].atom].kind;

        known &= kind == ATOM_INTEGER || kind == ATOM_POSITIVE;
    }
    if (a->den == alg->one && a->num->n == 1 && known)
        return mpq_sgn(a->num->t[0].c) < 0 ? cairn_value_neg(alg, a) : cairn_value_from_poly(alg, a->num);
    /* |-x| = |x| */
    return cairn_value_opaque(alg, ATOM_POSITIVE, "abs", mpq_sgn(a->num->t[a->num->n - 1].c) < 0 ? cairn_value_neg(alg, a) : a,
                              NULL);
}

struct cairn_value *cairn_value_round(struct cairn_algebra *alg, const struct cairn_value *a, int up)
{
    mpq_ptr q;

    if (!a)
        return NULL;
    if (!cairn_value_is_constant(alg, a))
        return cairn_value_opaque(alg, ATOM_OPAQUE, up ? "ceil" : "floor", a, NULL);
    if (a->num->n == 0)
        return cairn_value_int(alg, 0);
    if (!(q = cairn_alg_number(alg)))
        return NULL;
    if (up)
        mpz_cdiv_q(mpq_numref(q), mpq_numref(a->num->t[0].c), mpq_denref(a->num->t[0].c));
    else
        mpz_fdiv_q(mpq_numref(q), mpq_numref(a->num->t[0].c), mpq_denref(a->num->t[0].c));
    return cairn_value_from_number(alg, q);
}

struct cairn_value *cairn_value_factorial(struct cairn_algebra *alg, const struct cairn_value *a)
{
    long n;
    mpq_ptr q;

    if (!a)
        return NULL;
    if (cairn_value_is_constant(alg, a) && (a->num->n == 1 && mpq_sgn(a->num->t[0].c) < 0))
        return cairn_value_none(alg, CAIRN_VALUE_UNDEFINED);
    if (!small_integer(alg, a, &n) || n > FACTORIAL_MAX)
        return cairn_value_opaque(alg, ATOM_POSITIVE, "factorial", a, NULL);
    if (!(q = cairn_alg_number(alg)) || !cairn_algebra_spend(alg, n / 2 + 1))
        return NULL;
    mpz_fac_ui(mpq_numref(q), (unsigned long)n);
    return cairn_value_from_number(alg, q);
}

struct cairn_value *cairn_value_binomial(struct cairn_algebra *alg, const struct cairn_value *n, const struct cairn_value *k)
{
    long a, b;
    mpq_ptr q;

    if (!n || !k)
        return NULL;
    if (!small_integer(alg, n, &a) || !small_integer(alg, k, &b) || a < 0 || a > FACTORIAL_MAX || b < 0)
        return cairn_value_opaque(alg, ATOM_OPAQUE, "binomial", n, k);
    if (b > a)
        return cairn_value_int(alg, 0);
    if (!(q = cairn_alg_number(alg)) || !cairn_algebra_spend(alg, a / 2 + 1))
        return NULL;
    mpz_bin_uiui(mpq_numref(q), (unsigned long)a, (unsigned long)b);
    return cairn_value_from_number(alg, q);
}

struct cairn_value *cairn_value_ln(struct cairn_algebra *alg, const struct cairn_value *a)
{
    struct factor f[FACTORS_MAX];
    struct cairn_value *sum;
    const struct term *t;
    int n = 0;

    if (!a)
        return NULL;
    if (a->num->n == 0)
        return cairn_value_none(alg, CAIRN_VALUE_UNDEFINED);
    t = &a->num->t[0];
    if (a->den != alg->one || a->num->n != 1 || mpq_sgn(t->c) < 0)
        return cairn_value_opaque(alg, ATOM_OPAQUE, "ln", a, NULL);
    for (int i = 0; i < t->n; i++)
        if (alg->atom[t->f[i].atom].kind != ATOM_INTEGER && alg->atom[t->f[i].atom].kind != ATOM_POSITIVE)
            return cairn_value_opaque(alg, ATOM_OPAQUE, "ln", a, NULL);
    if (!cairn_factor_integer(alg, mpq_numref(t->c), 1, 1, f, &n, FACTORS_MAX) ||
        !cairn_factor_integer(alg, mpq_denref(t->c), -1, 1, f, &n, FACTORS_MAX))
        return NULL;
    for (int i = 0; i < t->n && n < FACTORS_MAX; i++)
        f[n++] = t->f[i];
    sum = cairn_value_int(alg, 0);
    for (int i = 0; i < n; i++) {
        mpq_ptr c = cairn_alg_number(alg);
        struct cairn_value *part;

        if (!c)
            return NULL;
        mpz_set_si(mpq_numref(c), (long)f[i].p);
        mpz_set_si(mpq_denref(c), (long)f[i].q);
        part = cairn_value_from_number(alg, c);
        if (strcmp(alg->atom[f[i].atom].key, "$e") != 0) {
            char *key = cairn_format("ln:%d", f[i].atom);

            part = cairn_value_mul(alg, part, cairn_value_from_atom(alg, key ? cairn_atom(alg, ATOM_OPAQUE, key) : -1, 1, 1));
            free(key);
        }
        sum = cairn_value_add(alg, sum, part);
    }
    return sum;
}

/* sin(k pi/12) for k of 0..6 where it is a simple radical: value sqrt(r)/2. */
static struct cairn_value *sine_of(struct cairn_algebra *alg, long k)
{
    long sign = 1;
    int r;

    k = ((k % 24) + 24) % 24;
    if (k >= 12) {
        sign = -1;
        k -= 12;
    }
    if (k > 6)
        k = 12 - k;
    r = k == 0 ? 0 : k == 2 ? 1 : k == 3 ? 2 : k == 4 ? 3 : k == 6 ? 4 : -1;
    if (r < 0)
        return NULL;
    return cairn_value_div(alg, cairn_value_mul(alg, cairn_value_int(alg, sign), cairn_value_root(alg, cairn_value_int(alg, r), 2)),
                           cairn_value_int(alg, 2));
}

/* a = k pi/12: k. */
static int twelfths_of_pi(const struct cairn_algebra *alg, const struct cairn_value *a, long *k)
{
    const struct term *t;
    mpz_t z;

    if (a->num->n == 0) {
        *k = 0;
        return 1;
    }
    t = &a->num->t[0];
    if (a->den != alg->one || a->num->n != 1 || t->n != 1 || t->f[0].p != 1 || t->f[0].q != 1 ||
        strcmp(alg->atom[t->f[0].atom].key, "$pi") != 0 || !mpz_fits_slong_p(mpq_denref(t->c)) ||
        12 % mpz_get_si(mpq_denref(t->c)) != 0)
        return 0;
    mpz_init(z);
    mpz_mul_si(z, mpq_numref(t->c), 12 / mpz_get_si(mpq_denref(t->c)));
    *k = (long)mpz_fdiv_ui(z, 24);
    mpz_clear(z);
    return 1;
}

struct cairn_value *cairn_value_function(struct cairn_algebra *alg, const char *name, const struct cairn_value *a)
{
    long k;

    if (!a)
        return NULL;
    if (strcmp(name, "tan") == 0)
        return cairn_value_div(alg, cairn_value_function(alg, "sin", a), cairn_value_function(alg, "cos", a));
    if (strcmp(name, "cot") == 0)
        return cairn_value_div(alg, cairn_value_function(alg, "cos", a), cairn_value_function(alg, "sin", a));
    if (strcmp(name, "sec") == 0)
        return cairn_value_div(alg, cairn_value_int(alg, 1), cairn_value_function(alg, "cos", a));
    if (strcmp(name, "csc") == 0)
        return cairn_value_div(alg, cairn_value_int(alg, 1), cairn_value_function(alg, "sin", a));
    if ((strcmp(name, "sin") == 0 || strcmp(name, "cos") == 0) && twelfths_of_pi(alg, a, &k)) {
        struct cairn_value *v = sine_of(alg, name[0] == 'c' ? k + 6 : k);

        if (v || alg->fail != CAIRN_VALUE_FINE)
            return v;
    }
    if (strcmp(name, "sin") == 0 && a->num->n && mpq_sgn(a->num->t[a->num->n - 1].c) < 0)
        return cairn_value_neg(alg, cairn_value_function(alg, name, cairn_value_neg(alg, a)));
    if (strcmp(name, "cos") == 0 && a->num->n && mpq_sgn(a->num->t[a->num->n - 1].c) < 0)
        return cairn_value_function(alg, name, cairn_value_neg(alg, a));
    return cairn_value_opaque(alg, ATOM_OPAQUE, name, a, NULL);
}
