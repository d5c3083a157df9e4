/* poly.c - numbers, atoms, monomials, sums. See poly.h. */
#include "grade/poly.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

struct cairn_algebra *cairn_algebra_create(struct cairn_arena *arena, long budget)
{
    struct cairn_algebra *alg = calloc(1, sizeof *alg);
    struct cairn_value *one;

    if (!alg)
        return NULL;
    alg->arena = arena;
    alg->budget = budget;
    one = cairn_value_int(alg, 1);
    if (!one) {
        cairn_algebra_destroy(alg);
        return NULL;
    }
    alg->one = one->num;
    return alg;
}

void cairn_algebra_destroy(struct cairn_algebra *alg)
{
    if (!alg)
        return;
    while (alg->chunks) {
        struct chunk *c = alg->chunks;

        alg->chunks = c->next;
        for (int i = 0; i < c->n; i++)
            mpq_clear(&c->q[i]);
        free(c);
    }
    free(alg);
}

enum cairn_value_fail cairn_algebra_fail(const struct cairn_algebra *alg)
{
    return alg->fail;
}

void cairn_algebra_clear_fail(struct cairn_algebra *alg)
{
    if (alg->fail != CAIRN_VALUE_BUDGET)
        alg->fail = CAIRN_VALUE_FINE;
}

struct cairn_value *cairn_value_none(struct cairn_algebra *alg, enum cairn_value_fail why)
{
    if (alg->fail == CAIRN_VALUE_FINE)
        alg->fail = why;
    return NULL;
}

int cairn_algebra_spend(struct cairn_algebra *alg, long work)
{
    if (alg->fail != CAIRN_VALUE_FINE)
        return 0;
    alg->budget -= work;
    if (alg->budget < 0) {
        alg->fail = CAIRN_VALUE_BUDGET;
        return 0;
    }
    return 1;
}

void *cairn_alg_get(struct cairn_algebra *alg, size_t bytes)
{
    void *p = cairn_arena_alloc(alg->arena, bytes ? bytes : 1);

    if (!p)
        cairn_value_none(alg, CAIRN_VALUE_NOMEM);
    return p;
}

mpq_ptr cairn_alg_number(struct cairn_algebra *alg)
{
    if (!alg->chunks || alg->chunks->n == NUMBERS_PER_CHUNK) {
        struct chunk *c = malloc(sizeof *c);

        if (!c) {
            cairn_value_none(alg, CAIRN_VALUE_NOMEM);
            return NULL;
        }
        c->n = 0;
        c->next = alg->chunks;
        alg->chunks = c;
    }
    mpq_init(&alg->chunks->q[alg->chunks->n]);
    return &alg->chunks->q[alg->chunks->n++];
}

size_t cairn_number_bits(mpq_srcptr q)
{
    return mpz_sizeinbase(mpq_numref(q), 2) + mpz_sizeinbase(mpq_denref(q), 2);
}

long cairn_number_limbs(mpq_srcptr q)
{
    return (long)(mpz_size(mpq_numref(q)) + mpz_size(mpq_denref(q)));
}

/* Index of the atom with this key, made if it is new; -1: failed. */
int cairn_atom(struct cairn_algebra *alg, enum atom_kind kind, const char *key)
{
    struct atom *a;

    if (!cairn_algebra_spend(alg, 1 + alg->atoms / 8))
        return -1;
    for (int i = 0; i < alg->atoms; i++)
        if (strcmp(alg->atom[i].key, key) == 0)
            return i;
    if (alg->atoms == ATOMS_MAX) {
        cairn_value_none(alg, CAIRN_VALUE_BUDGET);
        return -1;
    }
    a = &alg->atom[alg->atoms];
    memset(a, 0, sizeof *a);
    a->kind = kind;
    a->key = cairn_arena_strdup(alg->arena, key);
    if (!a->key) {
        cairn_value_none(alg, CAIRN_VALUE_NOMEM);
        return -1;
    }
    return alg->atoms++;
}

int cairn_atom_integer(struct cairn_algebra *alg, mpz_srcptr z)
{
    char *digits = mpz_get_str(NULL, 62, z), *key = digits ? cairn_format("#%s", digits) : NULL;
    int a = -1;

    if (key) {
        a = cairn_atom(alg, ATOM_INTEGER, key);
        if (a >= 0 && !alg->atom[a].z) {
            mpq_ptr q = cairn_alg_number(alg);

            if (q) {
                mpz_set(mpq_numref(q), z);
                alg->atom[a].z = mpq_numref(q);
            } else {
                a = -1;
            }
        }
    } else {
        cairn_value_none(alg, CAIRN_VALUE_NOMEM);
    }
    free(key);
    free(digits);
    return a;
}

/* --- exponents ---- */

static int64_t gcd64(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;

        a = b;
        b = r;
    }
    return a < 0 ? -a : a;
}

/* f->p/f->q from p/q; 0 if that is out of range. */
int cairn_exponent_set(struct factor *f, int64_t p, int64_t q)
{
    int64_t g = gcd64(p, q);

    if (g > 1) {
        p /= g;
        q /= g;
    }
    f->p = p;
    f->q = p ? q : 1;
    return p <= EXPONENT_MAX && p >= -EXPONENT_MAX && q <= EXPONENT_DEN_MAX;
}

int cairn_exponent_add(struct factor *f, int64_t p, int64_t q)
{
    int64_t a, b, c;

    if (__builtin_mul_overflow(f->p, q, &a) || __builtin_mul_overflow(p, f->q, &b) || __builtin_add_overflow(a, b, &c))
        return 0;
    return cairn_exponent_set(f, c, f->q * q);
}

int cairn_exponent_scale(struct factor *f, int64_t p, int64_t q)
{
    int64_t a, b;

    if (__builtin_mul_overflow(f->p, p, &a) || __builtin_mul_overflow(f->q, q, &b))
        return 0;
    return cairn_exponent_set(f, a, b);
}

static int64_t floor_div(int64_t p, int64_t q)
{
    return p / q - (p % q < 0);
}

/* --- terms and polynomials ---- */

static int compare_monomials(const struct term *a, const struct term *b)
{
    int n = a->n < b->n ? a->n : b->n;

    for (int i = 0; i < n; i++) {
        const struct factor *x = &a->f[i], *y = &b->f[i];

        if (x->atom != y->atom)
            return x->atom < y->atom ? -1 : 1;
        if (x->p != y->p)
            return x->p < y->p ? -1 : 1;
        if (x->q != y->q)
            return x->q < y->q ? -1 : 1;
    }
    return (a->n > b->n) - (a->n < b->n);
}

static int compare_terms(const void *a, const void *b)
{
    return compare_monomials(a, b);
}

/* Sorts the n terms (taken over), adds up equal monomials, drops zeros. */
static const struct poly *collect(struct cairn_algebra *alg, struct term *t, int n)
{
    struct poly *p = cairn_alg_get(alg, sizeof *p);
    int out = 0;

    if (!p || !cairn_algebra_spend(alg, n))
        return NULL;
    if (n > 1)
        qsort(t, (size_t)n, sizeof *t, compare_terms);
    for (int i = 0; i < n;) {
        int j = i + 1;

        if (j < n && compare_monomials(&t[i], &t[j]) == 0) {
            mpq_ptr sum = cairn_alg_number(alg);

            if (!sum)
                return NULL;
            mpq_set(sum, t[i].c);
            for (; j < n && compare_monomials(&t[i], &t[j]) == 0; j++) {
                if (!cairn_algebra_spend(alg, cairn_number_limbs(sum) * cairn_number_limbs(t[j].c) / 16 + 1) ||
                    cairn_number_bits(sum) > 4 * BITS_MAX) {
                    cairn_value_none(alg, CAIRN_VALUE_BUDGET);
                    return NULL;
                }
                mpq_add(sum, sum, t[j].c);
            }
            t[i].c = sum;
        }
        if (mpq_sgn(t[i].c) != 0)
            t[out++] = t[i];
        i = j;
    }
    p->t = t;
    p->n = out;
    return p;
}

const struct poly *cairn_poly_add(struct cairn_algebra *alg, const struct poly *a, const struct poly *b)
{
    struct term *t;

    if (!a || !b)
        return NULL;
    if (!(t = cairn_alg_get(alg, (size_t)(a->n + b->n) * sizeof *t)))
        return NULL;
    if (a->n)
        memcpy(t, a->t, (size_t)a->n * sizeof *t);
    if (b->n)
        memcpy(t + a->n, b->t, (size_t)b->n * sizeof *t);
    return collect(alg, t, a->n + b->n);
}

const struct poly *cairn_poly_scale(struct cairn_algebra *alg, const struct poly *a, mpq_srcptr c)
{
    struct poly *p;

    if (!a || !(p = cairn_alg_get(alg, sizeof *p)) || !(p->t = cairn_alg_get(alg, (size_t)a->n * sizeof *p->t)))
        return NULL;
    p->n = a->n;
    for (int i = 0; i < a->n; i++) {
        p->t[i] = a->t[i];
        if (!(p->t[i].c = cairn_alg_number(alg)) ||
            !cairn_algebra_spend(alg, cairn_number_limbs(a->t[i].c) * cairn_number_limbs(c) / 16 + 1))
            return NULL;
        mpq_mul(p->t[i].c, a->t[i].c, c);
        if (cairn_number_bits(p->t[i].c) > 4 * BITS_MAX) {
            cairn_value_none(alg, CAIRN_VALUE_BUDGET);
            return NULL;
        }
    }
    return p;
}

const struct poly *cairn_poly_neg(struct cairn_algebra *alg, const struct poly *a)
{
    mpq_ptr minus = cairn_alg_number(alg);

    if (!minus)
        return NULL;
    mpq_set_si(minus, -1, 1);
    return cairn_poly_scale(alg, a, minus);
}

/* c times the n raw factors (any order, atoms may repeat), with everything used that is known about the atoms. */
const struct poly *cairn_poly_reduced(struct cairn_algebra *alg, mpq_srcptr c, const struct factor *raw, int n)
{
    struct factor *f;
    struct poly *p;
    const struct poly *result;
    int m = 0;
    mpq_ptr coef;

    if (!cairn_algebra_spend(alg, 1 + n + cairn_number_limbs(c)) || !(f = cairn_alg_get(alg, (size_t)n * sizeof *f)) ||
        !(coef = cairn_alg_number(alg)) || !(p = cairn_alg_get(alg, sizeof *p)) || !(p->t = cairn_alg_get(alg, sizeof *p->t)))
        return NULL;
    for (int i = 0; i < n; i++) { /* insertion by atom */
        int at = 0;

        while (at < m && f[at].atom < raw[i].atom)
            at++;
        if (at < m && f[at].atom == raw[i].atom) {
            if (!cairn_exponent_add(&f[at], raw[i].p, raw[i].q)) {
                cairn_value_none(alg, CAIRN_VALUE_BUDGET);
                return NULL;
            }
        } else {
            memmove(&f[at + 1], &f[at], (size_t)(m - at) * sizeof *f);
            f[at] = raw[i];
            m++;
        }
    }
    mpq_set(coef, c);
    p->n = 1;
    result = p;
    for (int i = 0; i < m; i++) {
        const struct atom *a = &alg->atom[f[i].atom];
        int64_t whole = floor_div(f[i].p, f[i].q);

        if (a->kind == ATOM_INTEGER && whole != 0) {
            size_t z = mpz_sizeinbase(a->z, 2);
            uint64_t k = (uint64_t)(whole < 0 ? -whole : whole);

            if (k <= BITS_MAX && k * z <= BITS_MAX) {
                mpz_t power;

                if (!cairn_algebra_spend(alg, (long)(k * z / 64 + 1) * (cairn_number_limbs(coef) + 1) / 8 + 1))
                    return NULL;
                mpz_init(power);
                mpz_pow_ui(power, a->z, (unsigned long)k);
                if (whole > 0)
                    mpz_mul(mpq_numref(coef), mpq_numref(coef), power);
                else
                    mpz_mul(mpq_denref(coef), mpq_denref(coef), power);
                mpq_canonicalize(coef);
                mpz_clear(power);
                f[i].p -= whole * f[i].q;
                if (f[i].p == 0)
                    f[i].q = 1;
            }
        } else if (a->kind == ATOM_I && f[i].q == 1) {
            int64_t r = ((f[i].p % 4) + 4) % 4;

            if (r >= 2)
                mpq_neg(coef, coef);
            f[i].p = r & 1;
        }
    }
    if (cairn_number_bits(coef) > 4 * BITS_MAX) {
        cairn_value_none(alg, CAIRN_VALUE_BUDGET);
        return NULL;
    }
    for (int i = 0; i < m; i++) { /* roots: the whole part of the exponent is multiplied out */
        const struct atom *a = &alg->atom[f[i].atom];
        int64_t whole = floor_div(f[i].p, f[i].q);

        if (a->kind == ATOM_ROOT && whole > 0 && whole <= POWER_TERMS_MAX) {
            f[i].p -= whole * f[i].q;
            if (f[i].p == 0)
                f[i].q = 1;
            result = result == p ? cairn_poly_power(alg, a->poly, whole)
                                 : cairn_poly_mul(alg, result, cairn_poly_power(alg, a->poly, whole));
            if (!result)
                return NULL;
        }
    }
    p->t[0].c = coef;
    p->t[0].f = f;
    p->t[0].n = 0;
    for (int i = 0; i < m; i++)
        if (f[i].p != 0)
            f[p->t[0].n++] = f[i];
    if (mpq_sgn(coef) == 0)
        p->n = 0;
    return result == p ? p : cairn_poly_mul(alg, p, result);
}

const struct poly *cairn_poly_mul(struct cairn_algebra *alg, const struct poly *a, const struct poly *b)
{
    struct term *t = NULL;
    int n = 0, cap = 0;

    if (!a || !b)
        return NULL;
    for (int i = 0; i < a->n; i++) {
        for (int j = 0; j < b->n; j++) {
            struct factor *raw;
            const struct poly *product;
            mpq_ptr c;
            int na = a->t[i].n, nb = b->t[j].n;

            if (!cairn_algebra_spend(alg, 2 + cairn_number_limbs(a->t[i].c) * cairn_number_limbs(b->t[j].c) / 16) ||
                !(c = cairn_alg_number(alg)) || !(raw = cairn_alg_get(alg, (size_t)(na + nb) * sizeof *raw)))
                return NULL;
            mpq_mul(c, a->t[i].c, b->t[j].c);
            if (na)
                memcpy(raw, a->t[i].f, (size_t)na * sizeof *raw);
            if (nb)
                memcpy(raw + na, b->t[j].f, (size_t)nb * sizeof *raw);
            if (!(product = cairn_poly_reduced(alg, c, raw, na + nb)))
                return NULL;
            if (n + product->n > cap) {
                int more = (n + product->n) * 2;
                struct term *grown = cairn_alg_get(alg, (size_t)more * sizeof *grown);

                if (!grown)
                    return NULL;
                if (n)
                    memcpy(grown, t, (size_t)n * sizeof *grown);
                t = grown;
                cap = more;
            }
            if (product->n)
                memcpy(t + n, product->t, (size_t)product->n * sizeof *t);
            n += product->n;
        }
    }
    return collect(alg, t, n);
}

const struct poly *cairn_poly_power(struct cairn_algebra *alg, const struct poly *a, int64_t k)
{
    const struct poly *result = alg->one;

    while (result && a && k > 0) {
        if (k & 1)
            result = cairn_poly_mul(alg, result, a);
        k >>= 1;
        if (k)
            a = cairn_poly_mul(alg, a, a);
    }
    return a ? result : NULL;
}

int cairn_poly_equal(const struct poly *a, const struct poly *b)
{
    if (a == b)
        return 1;
    if (a->n != b->n)
        return 0;
    for (int i = 0; i < a->n; i++)
        if (compare_monomials(&a->t[i], &b->t[i]) != 0 || !mpq_equal(a->t[i].c, b->t[i].c))
            return 0;
    return 1;
}
