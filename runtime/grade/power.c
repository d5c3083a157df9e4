/* power.c - powers and roots of values, and atoms for what is not evaluated. See value.h. */
#include "grade/poly.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

/* --- what is not evaluated ---- */

static void put_poly(struct cairn_str *s, const struct poly *p, mpq_srcptr scale)
{
    mpq_t c;

    mpq_init(c);
    for (int i = 0; i < p->n; i++) {
        char *digits;

        mpq_mul(c, p->t[i].c, scale);
        digits = mpq_get_str(NULL, 62, c);
        cairn_str_printf(s, "%s%s", i ? "+" : "", digits ? digits : "");
        if (!digits)
            s->oom = 1;
        free(digits);
        for (int k = 0; k < p->t[i].n; k++)
            cairn_str_printf(s, "*%d^%lld/%lld", p->t[i].f[k].atom, (long long)p->t[i].f[k].p, (long long)p->t[i].f[k].q);
    }
    mpq_clear(c);
}

static void put_value(struct cairn_str *s, const struct cairn_value *a)
{
    mpq_t c;

    mpq_init(c);
    mpq_inv(c, a->den->t[a->den->n - 1].c);
    put_poly(s, a->num, c);
    cairn_str_putc(s, '|');
    put_poly(s, a->den, c);
    mpq_clear(c);
}

/* name(a, b) as an atom. b may be NULL. */
struct cairn_value *cairn_value_opaque(struct cairn_algebra *alg, enum atom_kind kind, const char *name,
                                       const struct cairn_value *a, const struct cairn_value *b)
{
    struct cairn_str s = {0};
    int made = -1;

    if (!a)
        return NULL;
    for (const struct poly *const *p = (const struct poly *const[]){a->num, a->den, b ? b->num : NULL, b ? b->den : NULL, NULL}; *p;
         p++)
        for (int i = 0; i < (*p)->n; i++)
            if (!cairn_algebra_spend(alg, 4 + cairn_number_limbs((*p)->t[i].c) * cairn_number_limbs((*p)->t[i].c) / 8))
                return NULL;
    cairn_str_printf(&s, "%s(", name);
    put_value(&s, a);
    if (b) {
        cairn_str_putc(&s, ';');
        put_value(&s, b);
    }
    cairn_str_putc(&s, ')');
    if (s.oom)
        cairn_value_none(alg, CAIRN_VALUE_NOMEM);
    else
        made = cairn_atom(alg, kind, s.p);
    cairn_str_free(&s);
    return cairn_value_from_atom(alg, made, 1, 1);
}

/* --- powers and roots ---- */

/* Appends the factors of z > 0 with exponent p/q each; *n of at most cap. 0: failed. */
int cairn_factor_integer(struct cairn_algebra *alg, mpz_srcptr z, int64_t p, int64_t q, struct factor *f, int *n, int cap)
{
    mpz_t rest;
    int ok = 1;

    mpz_init_set(rest, z);
    if (mpz_sizeinbase(rest, 2) <= FACTOR_BITS_MAX) {
        for (unsigned long d = 2; d < 65536 && mpz_cmp_ui(rest, 1) > 0; d += d == 2 ? 1 : 2) {
            int64_t k = 0;

            if (mpz_cmp_ui(rest, d) >= 0 && mpz_size(rest) == 1 && d * d > mpz_get_ui(rest))
                break; /* what is left is prime */
            if ((d & 255) == 1 && !cairn_algebra_spend(alg, (long)mpz_size(rest) * 16 + 1)) {
                ok = 0;
                break;
            }
            while (mpz_divisible_ui_p(rest, d)) {
                mpz_divexact_ui(rest, rest, d);
                k++;
            }
            if (k) {
                mpz_t prime;

                mpz_init_set_ui(prime, d);
                if (*n == cap || (f[*n].atom = cairn_atom_integer(alg, prime)) < 0 || !cairn_exponent_set(&f[*n], p * k, q))
                    ok = 0;
                else
                    ++*n;
                mpz_clear(prime);
                if (!ok)
                    break;
            }
        }
    }
    if (ok && mpz_cmp_ui(rest, 1) > 0) {
        int64_t k = 1;

        for (unsigned long e = 2; e <= 5; e++) { /* squares to fifth powers of what cannot be factored */
            mpz_t r;

            mpz_init(r);
            while (mpz_sizeinbase(rest, 2) <= BITS_MAX && mpz_root(r, rest, e)) {
                mpz_set(rest, r);
                k *= (int64_t)e;
            }
            mpz_clear(r);
        }
        if (!cairn_algebra_spend(alg, (long)mpz_size(rest) * (long)mpz_size(rest) + 1) || *n == cap ||
            (f[*n].atom = cairn_atom_integer(alg, rest)) < 0 || !cairn_exponent_set(&f[*n], p * k, q))
            ok = 0;
        else
            ++*n;
    }
    mpz_clear(rest);
    if (!ok)
        cairn_value_none(alg, CAIRN_VALUE_BUDGET);
    return ok;
}

/* The single term t to the power p/q. *done = 0: nothing simple is true of it (a sign or a branch is in the way). */
static struct cairn_value *term_power(struct cairn_algebra *alg, const struct term *t, int64_t p, int64_t q, int *done)
{
    struct factor f[FACTORS_MAX];
    int n = 0, negative = mpq_sgn(t->c) < 0, numeric = 1;
    mpq_ptr c = cairn_alg_number(alg);
    mpz_t z;

    *done = 0;
    if (!c)
        return NULL;
    for (int i = 0; i < t->n; i++) {
        numeric &= alg->atom[t->f[i].atom].kind == ATOM_INTEGER;
        if (alg->atom[t->f[i].atom].kind == ATOM_I && q != 1)
            return NULL;
    }
    mpq_set_si(c, 1, 1);
    if (negative && q % 2 == 1) {
        if (p & 1)
            mpq_neg(c, c);
    } else if (negative) {
        if (q != 2 || !numeric)
            return NULL;
        f[n].atom = cairn_atom(alg, ATOM_I, "i");
        if (f[n].atom < 0)
            return NULL;
        f[n].q = 1;
        f[n++].p = ((p % 4) + 4) % 4;
    }
    *done = 1;
    if (q == 1 && (uint64_t)(p < 0 ? -p : p) <= BITS_MAX && (uint64_t)(p < 0 ? -p : p) * cairn_number_bits(t->c) <= BITS_MAX) {
        unsigned long k = (unsigned long)(p < 0 ? -p : p);

        if (!cairn_algebra_spend(alg, (long)(k * cairn_number_bits(t->c)) / 256 + 1))
            return NULL;
        mpz_pow_ui(mpq_numref(c), mpq_numref(t->c), k);
        mpz_pow_ui(mpq_denref(c), mpq_denref(t->c), k);
        if (p < 0)
            mpq_inv(c, c);
    } else {
        mpz_init(z);
        mpz_abs(z, mpq_numref(t->c));
        if (!cairn_factor_integer(alg, z, p, q, f, &n, FACTORS_MAX) ||
            !cairn_factor_integer(alg, mpq_denref(t->c), -p, q, f, &n, FACTORS_MAX)) {
            mpz_clear(z);
            return NULL;
        }
        mpz_clear(z);
    }
    for (int i = 0; i < t->n; i++) {
        const struct atom *a = &alg->atom[t->f[i].atom];
        struct factor x = t->f[i];

        if (n == FACTORS_MAX)
            return cairn_value_none(alg, CAIRN_VALUE_BUDGET);
        if ((a->kind == ATOM_SYMBOL || a->kind == ATOM_OPAQUE) && q % 2 == 0 && x.q == 1 && x.p % 2 == 0) {
            /* sqrt(x^2) is |x| */
            if (!cairn_exponent_scale(&x, p, q))
                return cairn_value_none(alg, CAIRN_VALUE_BUDGET);
            if (!(x.q == 1 && x.p % 2 == 0)) {
                char *key = cairn_format("|%d|", t->f[i].atom);

                x.atom = key ? cairn_atom(alg, ATOM_POSITIVE, key) : -1;
                free(key);
                if (x.atom < 0)
                    return NULL;
            }
        } else if (!cairn_exponent_scale(&x, p, q)) {
            return cairn_value_none(alg, CAIRN_VALUE_BUDGET);
        }
        f[n++] = x;
    }
    /* a root in the denominator needs quotient's care */
    for (int i = 0; i < n; i++)
        if (alg->atom[f[i].atom].kind == ATOM_ROOT && f[i].p < 0) {
            int ok;

            return cairn_value_div(alg, cairn_value_int(alg, 1), term_power(alg, t, -p, q, &ok));
        }
    return cairn_value_from_poly(alg, cairn_poly_reduced(alg, c, f, n));
}

/* sqrt(a + b sqrt(c)) = sqrt((a+d)/2) +- sqrt((a-d)/2), d = sqrt(a^2 - b^2 c), where d is rational and a > 0. */
static struct cairn_value *denest(struct cairn_algebra *alg, const struct poly *p)
{
    const struct term *t = p->t;
    int ra = t[0].n == 0 ? 0 : 1;
    mpq_t d2, x;
    struct cairn_value *result = NULL, *parts[2] = {NULL, NULL};

    if (p->n != 2 || t[ra].n != 0 || mpq_sgn(t[ra].c) <= 0)
        return NULL;
    for (int i = 0; i < t[1 - ra].n; i++)
        if (alg->atom[t[1 - ra].f[i].atom].kind != ATOM_INTEGER || t[1 - ra].f[i].q != 2 || t[1 - ra].f[i].p != 1)
            return NULL;
    if (!cairn_algebra_spend(alg, 64 + cairn_number_limbs(t[0].c) * cairn_number_limbs(t[0].c) +
                                      cairn_number_limbs(t[1].c) * cairn_number_limbs(t[1].c)))
        return NULL;
    mpq_init(d2);
    mpq_init(x);
    mpq_mul(d2, t[1 - ra].c, t[1 - ra].c);
    for (int i = 0; i < t[1 - ra].n; i++) {
        mpz_mul(mpq_numref(d2), mpq_numref(d2), alg->atom[t[1 - ra].f[i].atom].z);
        mpq_canonicalize(d2);
    }
    mpq_mul(x, t[ra].c, t[ra].c);
    mpq_sub(d2, x, d2);
    if (mpq_sgn(d2) > 0 && mpz_perfect_square_p(mpq_numref(d2)) && mpz_perfect_square_p(mpq_denref(d2))) {
        mpz_sqrt(mpq_numref(d2), mpq_numref(d2));
        mpz_sqrt(mpq_denref(d2), mpq_denref(d2));
        for (int k = 0; k < 2; k++) {
            if (k == 0)
                mpq_add(x, t[ra].c, d2);
            else
                mpq_sub(x, t[ra].c, d2);
            mpq_div_2exp(x, x, 1);
            {
                mpq_ptr kept = cairn_alg_number(alg);

                if (kept) {
                    mpq_set(kept, x);
                    parts[k] = cairn_value_root(alg, cairn_value_from_number(alg, kept), 2);
                }
            }
        }
        result = cairn_value_add(alg, parts[0], mpq_sgn(t[1 - ra].c) > 0 ? parts[1] : cairn_value_neg(alg, parts[1]));
    }
    mpq_clear(d2);
    mpq_clear(x);
    return result;
}

/* P^(1/q) of a sum: a rational content in front, an atom behind. */
static struct cairn_value *poly_root(struct cairn_algebra *alg, const struct poly *p, long q)
{
    mpz_t g, l;
    mpq_ptr content = cairn_alg_number(alg);
    const struct poly *primitive;
    struct cairn_value *v, *front;
    struct cairn_str s = {0};
    int done, a = -1, negate;

    if (!content)
        return NULL;
    if (q == 2 && (v = denest(alg, p)) != NULL)
        return v;
    mpz_init(g);
    mpz_init_set_ui(l, 1);
    for (int i = 0; i < p->n; i++) {
        if (!cairn_algebra_spend(alg, 2 + cairn_number_limbs(p->t[i].c) * cairn_number_limbs(p->t[i].c) / 8) ||
            mpz_sizeinbase(l, 2) > BITS_MAX)
            break;
        mpz_gcd(g, g, mpq_numref(p->t[i].c));
        mpz_lcm(l, l, mpq_denref(p->t[i].c));
    }
    mpz_set(mpq_numref(content), g);
    mpz_set(mpq_denref(content), l);
    mpq_canonicalize(content);
    mpz_clear(g);
    mpz_clear(l);
    if (alg->fail != CAIRN_VALUE_FINE || mpq_sgn(content) == 0)
        return cairn_value_none(alg, CAIRN_VALUE_BUDGET);
    negate = q % 2 == 1 && mpq_sgn(p->t[p->n - 1].c) < 0;
    {
        struct term t = {content, NULL, 0};
        mpq_ptr inverse = cairn_alg_number(alg);

        if (!inverse)
            return NULL;
        front = term_power(alg, &t, 1, q, &done);
        mpq_inv(inverse, content);
        if (negate)
            mpq_neg(inverse, inverse);
        primitive = cairn_poly_scale(alg, p, inverse);
    }
    if (!front || !primitive)
        return NULL;
    {
        mpq_t one;

        mpq_init(one);
        mpq_set_si(one, 1, 1);
        cairn_str_puts(&s, "root:");
        put_poly(&s, primitive, one);
        mpq_clear(one);
    }
    if (s.oom)
        cairn_value_none(alg, CAIRN_VALUE_NOMEM);
    else
        a = cairn_atom(alg, ATOM_ROOT, s.p);
    cairn_str_free(&s);
    if (a < 0)
        return NULL;
    alg->atom[a].poly = primitive;
    v = cairn_value_mul(alg, front, cairn_value_from_atom(alg, a, 1, q));
    return negate ? cairn_value_neg(alg, v) : v;
}

/* a^(p/q), q > 0, lowest terms. */
static struct cairn_value *rational_power(struct cairn_algebra *alg, const struct cairn_value *a, int64_t p, int64_t q)
{
    struct cairn_value *v;
    int done;

    if (a->num->n == 0) {
        if (p > 0)
            return cairn_value_int(alg, 0);
        return cairn_value_none(alg, CAIRN_VALUE_UNDEFINED);
    }
    if (p == 0)
        return cairn_value_int(alg, 1);
    if (a->den == alg->one && a->num->n == 1) {
        v = term_power(alg, &a->num->t[0], p, q, &done);
        if (done || alg->fail != CAIRN_VALUE_FINE)
            return v;
    } else if (q == 1 && p <= POWER_TERMS_MAX && p >= -POWER_TERMS_MAX) {
        int64_t k = p < 0 ? -p : p;
        const struct poly *num = cairn_poly_power(alg, a->num, k),
                          *den = a->den == alg->one ? alg->one : cairn_poly_power(alg, a->den, k);

        return p < 0 ? cairn_value_quotient(alg, den, num) : cairn_value_quotient(alg, num, den);
    } else if (q > 1 && a->den == alg->one && (p == 1 || p == -1)) {
        v = poly_root(alg, a->num, (long)q);
        return p < 0 ? cairn_value_div(alg, cairn_value_int(alg, 1), v) : v;
    } else if (q > 1 && p != 1) {
        return rational_power(alg, rational_power(alg, a, 1, q), p, 1);
    }
    {
        mpq_ptr e = cairn_alg_number(alg);

        if (!e)
            return NULL;
        mpz_set_si(mpq_numref(e), (long)p);
        mpz_set_si(mpq_denref(e), (long)q);
        return cairn_value_opaque(alg, ATOM_OPAQUE, "pow", a, cairn_value_from_number(alg, e));
    }
}

/* b^c for an exponent that is a sum of terms: b's factors to each of them. *done = 0: not of that kind. */
static struct cairn_value *symbolic_power(struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b,
                                          int *done)
{
    struct factor base[FACTORS_MAX];
    int n = 0;
    struct cairn_value *result;

    *done = 0;
    if (a->den != alg->one || b->den != alg->one || a->num->n != 1 || mpq_sgn(a->num->t[0].c) <= 0)
        return NULL;
    for (int i = 0; i < a->num->t[0].n; i++) {
        enum atom_kind kind = alg->atom[a->num->t[0].f[i].atom].kind;

        if (kind == ATOM_I || kind == ATOM_ROOT)
            return NULL;
    }
    for (int i = 0; i < b->num->n; i++) {
        mpq_srcptr c = b->num->t[i].c;

        if (!mpz_fits_slong_p(mpq_numref(c)) || mpz_cmpabs_ui(mpq_denref(c), EXPONENT_DEN_MAX) > 0)
            return NULL;
    }
    *done = 1;
    if (!cairn_factor_integer(alg, mpq_numref(a->num->t[0].c), 1, 1, base, &n, FACTORS_MAX) ||
        !cairn_factor_integer(alg, mpq_denref(a->num->t[0].c), -1, 1, base, &n, FACTORS_MAX))
        return NULL;
    for (int i = 0; i < a->num->t[0].n; i++) {
        if (n == FACTORS_MAX)
            return cairn_value_none(alg, CAIRN_VALUE_BUDGET);
        base[n++] = a->num->t[0].f[i];
    }
    result = cairn_value_int(alg, 1);
    for (int i = 0; i < b->num->n && result; i++) {
        const struct term *t = &b->num->t[i];
        int64_t p = mpz_get_si(mpq_numref(t->c)), q = mpz_get_si(mpq_denref(t->c));

        for (int k = 0; k < n && result; k++) {
            struct factor f = base[k];
            mpq_ptr one = cairn_alg_number(alg);

            if (!one)
                return NULL;
            mpq_set_si(one, 1, 1);
            if (!cairn_exponent_scale(&f, p, q))
                return cairn_value_none(alg, CAIRN_VALUE_BUDGET);
            if (t->n) {
                struct cairn_str s = {0};
                enum atom_kind kind = alg->atom[f.atom].kind;

                cairn_str_printf(&s, "exp:%d", f.atom);
                for (int m = 0; m < t->n; m++)
                    cairn_str_printf(&s, "*%d^%lld/%lld", t->f[m].atom, (long long)t->f[m].p, (long long)t->f[m].q);
                if (s.oom)
                    cairn_value_none(alg, CAIRN_VALUE_NOMEM);
                f.atom =
                    s.oom ? -1 : cairn_atom(alg, kind == ATOM_INTEGER || kind == ATOM_POSITIVE ? ATOM_POSITIVE : ATOM_OPAQUE, s.p);
                cairn_str_free(&s);
                if (f.atom < 0)
                    return NULL;
            }
            result = cairn_value_mul(alg, result, cairn_value_from_poly(alg, cairn_poly_reduced(alg, one, &f, 1)));
        }
    }
    return result;
}

struct cairn_value *cairn_value_pow(struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b)
{
    struct cairn_value *v;
    int done;

    if (!a || !b)
        return NULL;
    if (cairn_value_is_constant(alg, b)) {
        if (b->num->n == 0)
            return rational_power(alg, a, 0, 1);
        if (mpz_fits_slong_p(mpq_numref(b->num->t[0].c)) &&
            mpz_cmpabs_ui(mpq_numref(b->num->t[0].c), (unsigned long)EXPONENT_MAX) < 0 &&
            mpz_cmpabs_ui(mpq_denref(b->num->t[0].c), EXPONENT_DEN_MAX) <= 0)
            return rational_power(alg, a, mpz_get_si(mpq_numref(b->num->t[0].c)), mpz_get_si(mpq_denref(b->num->t[0].c)));
        return cairn_value_opaque(alg, ATOM_OPAQUE, "pow", a, b);
    }
    if (a->den == alg->one && a->num->n == 1 && a->num->t[0].n == 0 && mpq_cmp_ui(a->num->t[0].c, 1, 1) == 0)
        return cairn_value_from_poly(alg, a->num);
    v = symbolic_power(alg, a, b, &done);
    if (done || alg->fail != CAIRN_VALUE_FINE)
        return v;
    return cairn_value_opaque(alg, ATOM_OPAQUE, "pow", a, b);
}

struct cairn_value *cairn_value_root(struct cairn_algebra *alg, const struct cairn_value *a, long index)
{
    if (!a)
        return NULL;
    if (index < 1 || index > EXPONENT_DEN_MAX)
        return cairn_value_none(alg, CAIRN_VALUE_BUDGET);
    return rational_power(alg, a, 1, index);
}
