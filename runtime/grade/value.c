/* value.c - quotients of polynomials. See value.h; powers are in power.c, functions in function.c. */
#include "grade/poly.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

struct cairn_value *cairn_value_quotient(struct cairn_algebra *alg, const struct poly *num, const struct poly *den)
{
    struct cairn_value *v;

    if (!num || !den)
        return NULL;
    if (den->n == 0)
        return cairn_value_none(alg, CAIRN_VALUE_UNDEFINED);
    if (num->n == 0)
        den = alg->one;
    if (den != alg->one && den->n == 1) { /* a single term divides for good; a root stays, made rational */
        const struct term *t = &den->t[0];
        struct factor *f = cairn_alg_get(alg, (size_t)(t->n + 1) * sizeof *f);
        mpq_ptr c = cairn_alg_number(alg);
        const struct poly *rest = alg->one, *inverse;

        if (!f || !c)
            return NULL;
        mpq_inv(c, t->c);
        for (int i = 0; i < t->n; i++) {
            const struct atom *a = &alg->atom[t->f[i].atom];

            f[i] = t->f[i];
            f[i].p = -f[i].p;
            if (a->kind == ATOM_ROOT) { /* 1/P^(p/q) = P^(1 - p/q) / P */
                if (!cairn_exponent_add(&f[i], 1, 1))
                    return cairn_value_none(alg, CAIRN_VALUE_BUDGET);
                rest = cairn_poly_mul(alg, rest, a->poly);
            }
        }
        inverse = cairn_poly_reduced(alg, c, f, t->n);
        num = cairn_poly_mul(alg, num, inverse);
        den = rest;
        if (!num || !den)
            return NULL;
        if (den->n == 0)
            return cairn_value_none(alg, CAIRN_VALUE_UNDEFINED);
        if (den != alg->one && den->n == 1)
            return cairn_value_quotient(alg, num, den);
    }
    if (!(v = cairn_alg_get(alg, sizeof *v)))
        return NULL;
    v->num = num;
    v->den = den;
    return v;
}

struct cairn_value *cairn_value_from_poly(struct cairn_algebra *alg, const struct poly *p)
{
    struct cairn_value *v;

    if (!p || !(v = cairn_alg_get(alg, sizeof *v)))
        return NULL;
    v->num = p;
    v->den = alg->one ? alg->one : p; /* while the constant 1 itself is made */
    return v;
}

struct cairn_value *cairn_value_from_number(struct cairn_algebra *alg, mpq_srcptr q)
{
    return q ? cairn_value_from_poly(alg, cairn_poly_reduced(alg, q, NULL, 0)) : NULL;
}

struct cairn_value *cairn_value_from_atom(struct cairn_algebra *alg, int a, int64_t p, int64_t q)
{
    struct factor f = {a, 0, 1};
    mpq_ptr one = cairn_alg_number(alg);

    if (a < 0 || !one)
        return NULL;
    if (!cairn_exponent_set(&f, p, q))
        return cairn_value_none(alg, CAIRN_VALUE_BUDGET);
    mpq_set_si(one, 1, 1);
    return cairn_value_from_poly(alg, cairn_poly_reduced(alg, one, &f, 1));
}

struct cairn_value *cairn_value_int(struct cairn_algebra *alg, long x)
{
    mpq_ptr q = cairn_alg_number(alg);

    if (!q)
        return NULL;
    mpq_set_si(q, x, 1);
    return cairn_value_from_number(alg, q);
}

struct cairn_value *cairn_value_decimal(struct cairn_algebra *alg, const char *digits, int repeat)
{
    struct cairn_str s = {0};
    const char *point = strchr(digits, '.');
    size_t decimals = point ? strlen(point + 1) : 0;
    mpq_ptr q = cairn_alg_number(alg);
    mpz_t ten;

    if (!q || !cairn_algebra_spend(alg, (long)strlen(digits) / 4 + 1))
        return NULL;
    if ((size_t)repeat > decimals || strlen(digits) > BITS_MAX / 4)
        return cairn_value_none(alg, CAIRN_VALUE_BUDGET);
    for (const char *d = digits; *d; d++)
        if (*d != '.')
            cairn_str_putc(&s, *d);
    if (s.oom || s.len == 0 || mpz_set_str(mpq_numref(q), s.p, 10) != 0) {
        cairn_str_free(&s);
        return cairn_value_none(alg, CAIRN_VALUE_NONE);
    }
    mpz_init(ten);
    if (repeat) { /* (all digits - digits that do not repeat) / (10^decimals - 10^(decimals - repeat)) */
        mpz_t head;

        s.p[s.len - (size_t)repeat] = 0;
        mpz_init(head);
        if (s.p[0])
            mpz_set_str(head, s.p, 10);
        mpz_sub(mpq_numref(q), mpq_numref(q), head);
        mpz_ui_pow_ui(ten, 10, decimals - (size_t)repeat);
        mpz_ui_pow_ui(mpq_denref(q), 10, decimals);
        mpz_sub(mpq_denref(q), mpq_denref(q), ten);
        mpz_clear(head);
    } else {
        mpz_ui_pow_ui(mpq_denref(q), 10, decimals);
    }
    mpz_clear(ten);
    cairn_str_free(&s);
    mpq_canonicalize(q);
    return cairn_value_from_number(alg, q);
}

struct cairn_value *cairn_value_symbol(struct cairn_algebra *alg, const char *name, int positive)
{
    char *key = cairn_format("$%s", name);
    int a = key ? cairn_atom(alg, positive ? ATOM_POSITIVE : ATOM_SYMBOL, key) : -1;

    free(key);
    return cairn_value_from_atom(alg, a, 1, 1);
}

struct cairn_value *cairn_value_i(struct cairn_algebra *alg)
{
    return cairn_value_from_atom(alg, cairn_atom(alg, ATOM_I, "i"), 1, 1);
}

struct cairn_value *cairn_value_neg(struct cairn_algebra *alg, const struct cairn_value *a)
{
    return a ? cairn_value_quotient(alg, cairn_poly_neg(alg, a->num), a->den) : NULL;
}

struct cairn_value *cairn_value_add(struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b)
{
    if (!a || !b)
        return NULL;
    if (cairn_poly_equal(a->den, b->den))
        return cairn_value_quotient(alg, cairn_poly_add(alg, a->num, b->num), a->den);
    return cairn_value_quotient(alg, cairn_poly_add(alg, cairn_poly_mul(alg, a->num, b->den), cairn_poly_mul(alg, b->num, a->den)),
                                cairn_poly_mul(alg, a->den, b->den));
}

struct cairn_value *cairn_value_mul(struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b)
{
    if (!a || !b)
        return NULL;
    return cairn_value_quotient(alg, cairn_poly_mul(alg, a->num, b->num),
                                a->den == alg->one   ? b->den
                                : b->den == alg->one ? a->den
                                                     : cairn_poly_mul(alg, a->den, b->den));
}

struct cairn_value *cairn_value_div(struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b)
{
    if (!a || !b)
        return NULL;
    return cairn_value_quotient(alg, b->den == alg->one ? a->num : cairn_poly_mul(alg, a->num, b->den),
                                a->den == alg->one ? b->num : cairn_poly_mul(alg, a->den, b->num));
}

int cairn_value_is_zero(const struct cairn_value *a)
{
    return a && a->num->n == 0;
}

int cairn_value_equal(struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b)
{
    const struct poly *x, *y;

    if (!a || !b)
        return -1;
    if (cairn_poly_equal(a->den, b->den))
        return cairn_poly_equal(a->num, b->num);
    x = cairn_poly_mul(alg, a->num, b->den);
    y = cairn_poly_mul(alg, b->num, a->den);
    return x && y ? cairn_poly_equal(x, y) : -1;
}

static int poly_decided(const struct cairn_algebra *alg, const struct poly *p)
{
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->t[i].n; k++) {
            const struct atom *a = &alg->atom[p->t[i].f[k].atom];

            if (a->kind == ATOM_ROOT || a->kind == ATOM_OPAQUE || (a->kind == ATOM_POSITIVE && a->key[0] != '$'))
                return 0;
        }
    return 1;
}

int cairn_value_decided(const struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b)
{
    return poly_decided(alg, a->num) && poly_decided(alg, a->den) && poly_decided(alg, b->num) && poly_decided(alg, b->den);
}

int cairn_value_is_constant(const struct cairn_algebra *alg, const struct cairn_value *a)
{
    return a->den == alg->one && (a->num->n == 0 || (a->num->n == 1 && a->num->t[0].n == 0));
}

int cairn_value_rational(const struct cairn_value *a, mpq_srcptr *q)
{
    static const mp_limb_t limb[1] = {1};
    static const __mpq_struct zero = {{0, 0, (mp_limb_t *)limb}, {0, 1, (mp_limb_t *)limb}};

    if (!a || a->num->n > 1 || (a->num->n == 1 && a->num->t[0].n) || a->den->n != 1 || a->den->t[0].n ||
        mpq_cmp_ui(a->den->t[0].c, 1, 1) != 0)
        return 0;
    *q = a->num->n ? a->num->t[0].c : &zero;
    return 1;
}

struct cairn_value *cairn_value_numerator(struct cairn_algebra *alg, const struct cairn_value *a)
{
    return a ? cairn_value_from_poly(alg, a->num) : NULL;
}

struct cairn_value *cairn_value_normalise(struct cairn_algebra *alg, const struct cairn_value *a, int with_sign)
{
    mpq_ptr c;

    if (!a)
        return NULL;
    if (a->num->n == 0)
        return cairn_value_from_poly(alg, a->num);
    if (!(c = cairn_alg_number(alg)))
        return NULL;
    mpq_inv(c, a->num->t[a->num->n - 1].c);
    if (!with_sign)
        mpq_abs(c, c);
    return cairn_value_quotient(alg, cairn_poly_scale(alg, a->num, c), a->den);
}
