/* value.c - polynomials over atoms. See value.h. */
#include "grade/value.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

#define ATOMS_MAX         1024
#define BITS_MAX          65536 /* of a number that is written down */
#define EXPONENT_MAX      ((int64_t)1 << 50)
#define EXPONENT_DEN_MAX  4096
#define POWER_TERMS_MAX   64 /* power of a sum that is multiplied out */
#define FACTORIAL_MAX     4000
#define FACTOR_BITS_MAX   4096 /* of an integer that is searched for prime factors below 2^16 */
#define NUMBERS_PER_CHUNK 128

enum atom_kind { ATOM_INTEGER, ATOM_I, ATOM_SYMBOL, ATOM_POSITIVE, ATOM_ROOT, ATOM_OPAQUE };

struct factor {
    int atom;
    int64_t p, q; /* exponent p/q, q > 0, lowest terms */
};

struct term {
    mpq_ptr c;
    const struct factor *f; /* (n) by ascending atom */
    int n;
};

struct poly {
    struct term *t; /* (n) by ascending monomial, no zero coefficient, no monomial twice */
    int n;
};

struct atom {
    enum atom_kind kind;
    const char *key;
    mpz_ptr z;               /* ATOM_INTEGER */
    const struct poly *poly; /* ATOM_ROOT: the radicand */
};

struct cairn_value {
    const struct poly *num, *den; /* den is not zero; the shared constant 1 wherever that is possible */
};

struct chunk {
    struct chunk *next;
    int n;
    __mpq_struct q[NUMBERS_PER_CHUNK];
};

struct cairn_algebra {
    struct cairn_arena *arena;
    long budget;
    enum cairn_value_fail fail;
    struct atom atom[ATOMS_MAX];
    int atoms;
    struct chunk *chunks;
    const struct poly *one;
};

/* --- bookkeeping ---------------------------------------------------------------------------------------------------- */

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

static void *get(struct cairn_algebra *alg, size_t bytes)
{
    void *p = cairn_arena_alloc(alg->arena, bytes ? bytes : 1);

    if (!p)
        cairn_value_none(alg, CAIRN_VALUE_NOMEM);
    return p;
}

static mpq_ptr number(struct cairn_algebra *alg)
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

static size_t bits(mpq_srcptr q)
{
    return mpz_sizeinbase(mpq_numref(q), 2) + mpz_sizeinbase(mpq_denref(q), 2);
}

static long limbs(mpq_srcptr q)
{
    return (long)(mpz_size(mpq_numref(q)) + mpz_size(mpq_denref(q)));
}

/* Index of the atom with this key, made if it is new; -1: failed. */
static int atom(struct cairn_algebra *alg, enum atom_kind kind, const char *key)
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

static int atom_integer(struct cairn_algebra *alg, mpz_srcptr z)
{
    char *digits = mpz_get_str(NULL, 62, z), *key = digits ? cairn_format("#%s", digits) : NULL;
    int a = -1;

    if (key) {
        a = atom(alg, ATOM_INTEGER, key);
        if (a >= 0 && !alg->atom[a].z) {
            mpq_ptr q = number(alg);

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

/* --- exponents -------------------------------------------------------------------------------------------------------- */

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
static int set_exponent(struct factor *f, int64_t p, int64_t q)
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

static int add_exponent(struct factor *f, int64_t p, int64_t q)
{
    int64_t a, b, c;

    if (__builtin_mul_overflow(f->p, q, &a) || __builtin_mul_overflow(p, f->q, &b) || __builtin_add_overflow(a, b, &c))
        return 0;
    return set_exponent(f, c, f->q * q);
}

static int scale_exponent(struct factor *f, int64_t p, int64_t q)
{
    int64_t a, b;

    if (__builtin_mul_overflow(f->p, p, &a) || __builtin_mul_overflow(f->q, q, &b))
        return 0;
    return set_exponent(f, a, b);
}

static int64_t floor_div(int64_t p, int64_t q)
{
    return p / q - (p % q < 0);
}

/* --- terms and polynomials ---------------------------------------------------------------------------------------------- */

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
    struct poly *p = get(alg, sizeof *p);
    int out = 0;

    if (!p || !cairn_algebra_spend(alg, n))
        return NULL;
    if (n > 1)
        qsort(t, (size_t)n, sizeof *t, compare_terms);
    for (int i = 0; i < n;) {
        int j = i + 1;

        if (j < n && compare_monomials(&t[i], &t[j]) == 0) {
            mpq_ptr sum = number(alg);

            if (!sum)
                return NULL;
            mpq_set(sum, t[i].c);
            for (; j < n && compare_monomials(&t[i], &t[j]) == 0; j++) {
                if (!cairn_algebra_spend(alg, limbs(sum) * limbs(t[j].c) / 16 + 1) || bits(sum) > 4 * BITS_MAX) {
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

static const struct poly *poly_add(struct cairn_algebra *alg, const struct poly *a, const struct poly *b)
{
    struct term *t;

    if (!a || !b)
        return NULL;
    if (!(t = get(alg, (size_t)(a->n + b->n) * sizeof *t)))
        return NULL;
    if (a->n)
        memcpy(t, a->t, (size_t)a->n * sizeof *t);
    if (b->n)
        memcpy(t + a->n, b->t, (size_t)b->n * sizeof *t);
    return collect(alg, t, a->n + b->n);
}

static const struct poly *poly_scale(struct cairn_algebra *alg, const struct poly *a, mpq_srcptr c)
{
    struct poly *p;

    if (!a || !(p = get(alg, sizeof *p)) || !(p->t = get(alg, (size_t)a->n * sizeof *p->t)))
        return NULL;
    p->n = a->n;
    for (int i = 0; i < a->n; i++) {
        p->t[i] = a->t[i];
        if (!(p->t[i].c = number(alg)) || !cairn_algebra_spend(alg, limbs(a->t[i].c) * limbs(c) / 16 + 1))
            return NULL;
        mpq_mul(p->t[i].c, a->t[i].c, c);
        if (bits(p->t[i].c) > 4 * BITS_MAX) {
            cairn_value_none(alg, CAIRN_VALUE_BUDGET);
            return NULL;
        }
    }
    return p;
}

static const struct poly *poly_neg(struct cairn_algebra *alg, const struct poly *a)
{
    mpq_ptr minus = number(alg);

    if (!minus)
        return NULL;
    mpq_set_si(minus, -1, 1);
    return poly_scale(alg, a, minus);
}

static const struct poly *poly_mul(struct cairn_algebra *alg, const struct poly *a, const struct poly *b);
static const struct poly *poly_power(struct cairn_algebra *alg, const struct poly *a, int64_t k);

/* c times the n raw factors (any order, atoms may repeat), with everything used that is known about the atoms. */
static const struct poly *reduced(struct cairn_algebra *alg, mpq_srcptr c, const struct factor *raw, int n)
{
    struct factor *f;
    struct poly *p;
    const struct poly *result;
    int m = 0;
    mpq_ptr coef;

    if (!cairn_algebra_spend(alg, 1 + n + limbs(c)) || !(f = get(alg, (size_t)n * sizeof *f)) || !(coef = number(alg)) ||
        !(p = get(alg, sizeof *p)) || !(p->t = get(alg, sizeof *p->t)))
        return NULL;
    for (int i = 0; i < n; i++) { /* insertion by atom */
        int at = 0;

        while (at < m && f[at].atom < raw[i].atom)
            at++;
        if (at < m && f[at].atom == raw[i].atom) {
            if (!add_exponent(&f[at], raw[i].p, raw[i].q)) {
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

                if (!cairn_algebra_spend(alg, (long)(k * z / 64 + 1) * (limbs(coef) + 1) / 8 + 1))
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
    if (bits(coef) > 4 * BITS_MAX) {
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
            result = result == p ? poly_power(alg, a->poly, whole) : poly_mul(alg, result, poly_power(alg, a->poly, whole));
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
    return result == p ? p : poly_mul(alg, p, result);
}

static const struct poly *poly_mul(struct cairn_algebra *alg, const struct poly *a, const struct poly *b)
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

            if (!cairn_algebra_spend(alg, 2 + limbs(a->t[i].c) * limbs(b->t[j].c) / 16) || !(c = number(alg)) ||
                !(raw = get(alg, (size_t)(na + nb) * sizeof *raw)))
                return NULL;
            mpq_mul(c, a->t[i].c, b->t[j].c);
            if (na)
                memcpy(raw, a->t[i].f, (size_t)na * sizeof *raw);
            if (nb)
                memcpy(raw + na, b->t[j].f, (size_t)nb * sizeof *raw);
            if (!(product = reduced(alg, c, raw, na + nb)))
                return NULL;
            if (n + product->n > cap) {
                int more = (n + product->n) * 2;
                struct term *grown = get(alg, (size_t)more * sizeof *grown);

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

static const struct poly *poly_power(struct cairn_algebra *alg, const struct poly *a, int64_t k)
{
    const struct poly *result = alg->one;

    while (result && a && k > 0) {
        if (k & 1)
            result = poly_mul(alg, result, a);
        k >>= 1;
        if (k)
            a = poly_mul(alg, a, a);
    }
    return a ? result : NULL;
}

static int poly_equal(const struct poly *a, const struct poly *b)
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

/* --- quotients ------------------------------------------------------------------------------------------------------------ */

static struct cairn_value *quotient(struct cairn_algebra *alg, const struct poly *num, const struct poly *den)
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
        struct factor *f = get(alg, (size_t)(t->n + 1) * sizeof *f);
        mpq_ptr c = number(alg);
        const struct poly *rest = alg->one, *inverse;

        if (!f || !c)
            return NULL;
        mpq_inv(c, t->c);
        for (int i = 0; i < t->n; i++) {
            const struct atom *a = &alg->atom[t->f[i].atom];

            f[i] = t->f[i];
            f[i].p = -f[i].p;
            if (a->kind == ATOM_ROOT) { /* 1/P^(p/q) = P^(1 - p/q) / P */
                if (!add_exponent(&f[i], 1, 1))
                    return cairn_value_none(alg, CAIRN_VALUE_BUDGET);
                rest = poly_mul(alg, rest, a->poly);
            }
        }
        inverse = reduced(alg, c, f, t->n);
        num = poly_mul(alg, num, inverse);
        den = rest;
        if (!num || !den)
            return NULL;
        if (den->n == 0)
            return cairn_value_none(alg, CAIRN_VALUE_UNDEFINED);
        if (den != alg->one && den->n == 1)
            return quotient(alg, num, den);
    }
    if (!(v = get(alg, sizeof *v)))
        return NULL;
    v->num = num;
    v->den = den;
    return v;
}

static struct cairn_value *from_poly(struct cairn_algebra *alg, const struct poly *p)
{
    struct cairn_value *v;

    if (!p || !(v = get(alg, sizeof *v)))
        return NULL;
    v->num = p;
    v->den = alg->one ? alg->one : p; /* while the constant 1 itself is made */
    return v;
}

static struct cairn_value *from_number(struct cairn_algebra *alg, mpq_srcptr q)
{
    return q ? from_poly(alg, reduced(alg, q, NULL, 0)) : NULL;
}

static struct cairn_value *from_atom(struct cairn_algebra *alg, int a, int64_t p, int64_t q)
{
    struct factor f = {a, 0, 1};
    mpq_ptr one = number(alg);

    if (a < 0 || !one)
        return NULL;
    if (!set_exponent(&f, p, q))
        return cairn_value_none(alg, CAIRN_VALUE_BUDGET);
    mpq_set_si(one, 1, 1);
    return from_poly(alg, reduced(alg, one, &f, 1));
}

struct cairn_value *cairn_value_int(struct cairn_algebra *alg, long x)
{
    mpq_ptr q = number(alg);

    if (!q)
        return NULL;
    mpq_set_si(q, x, 1);
    return from_number(alg, q);
}

struct cairn_value *cairn_value_decimal(struct cairn_algebra *alg, const char *digits, int repeat)
{
    struct cairn_str s = {0};
    const char *point = strchr(digits, '.');
    size_t decimals = point ? strlen(point + 1) : 0;
    mpq_ptr q = number(alg);
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
    return from_number(alg, q);
}

struct cairn_value *cairn_value_symbol(struct cairn_algebra *alg, const char *name, int positive)
{
    char *key = cairn_format("$%s", name);
    int a = key ? atom(alg, positive ? ATOM_POSITIVE : ATOM_SYMBOL, key) : -1;

    free(key);
    return from_atom(alg, a, 1, 1);
}

struct cairn_value *cairn_value_i(struct cairn_algebra *alg)
{
    return from_atom(alg, atom(alg, ATOM_I, "i"), 1, 1);
}

struct cairn_value *cairn_value_neg(struct cairn_algebra *alg, const struct cairn_value *a)
{
    return a ? quotient(alg, poly_neg(alg, a->num), a->den) : NULL;
}

struct cairn_value *cairn_value_add(struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b)
{
    if (!a || !b)
        return NULL;
    if (poly_equal(a->den, b->den))
        return quotient(alg, poly_add(alg, a->num, b->num), a->den);
    return quotient(alg, poly_add(alg, poly_mul(alg, a->num, b->den), poly_mul(alg, b->num, a->den)),
                    poly_mul(alg, a->den, b->den));
}

struct cairn_value *cairn_value_mul(struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b)
{
    if (!a || !b)
        return NULL;
    return quotient(alg, poly_mul(alg, a->num, b->num),
                    a->den == alg->one   ? b->den
                    : b->den == alg->one ? a->den
                                         : poly_mul(alg, a->den, b->den));
}

struct cairn_value *cairn_value_div(struct cairn_algebra *alg, const struct cairn_value *a, const struct cairn_value *b)
{
    if (!a || !b)
        return NULL;
    return quotient(alg, b->den == alg->one ? a->num : poly_mul(alg, a->num, b->den),
                    a->den == alg->one ? b->num : poly_mul(alg, a->den, b->num));
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
    if (poly_equal(a->den, b->den))
        return poly_equal(a->num, b->num);
    x = poly_mul(alg, a->num, b->den);
    y = poly_mul(alg, b->num, a->den);
    return x && y ? poly_equal(x, y) : -1;
}

static int is_constant(const struct cairn_algebra *alg, const struct cairn_value *a)
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
    return a ? from_poly(alg, a->num) : NULL;
}

struct cairn_value *cairn_value_normalise(struct cairn_algebra *alg, const struct cairn_value *a, int with_sign)
{
    mpq_ptr c;

    if (!a)
        return NULL;
    if (a->num->n == 0)
        return from_poly(alg, a->num);
    if (!(c = number(alg)))
        return NULL;
    mpq_inv(c, a->num->t[a->num->n - 1].c);
    if (!with_sign)
        mpq_abs(c, c);
    return quotient(alg, poly_scale(alg, a->num, c), a->den);
}

/* --- what is not evaluated --------------------------------------------------------------------------------------------- */

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
static struct cairn_value *opaque(struct cairn_algebra *alg, enum atom_kind kind, const char *name, const struct cairn_value *a,
                                  const struct cairn_value *b)
{
    struct cairn_str s = {0};
    int made = -1;

    if (!a)
        return NULL;
    for (const struct poly *const *p = (const struct poly *const[]){a->num, a->den, b ? b->num : NULL, b ? b->den : NULL, NULL}; *p;
         p++)
        for (int i = 0; i < (*p)->n; i++)
            if (!cairn_algebra_spend(alg, 4 + limbs((*p)->t[i].c) * limbs((*p)->t[i].c) / 8))
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
        made = atom(alg, kind, s.p);
    cairn_str_free(&s);
    return from_atom(alg, made, 1, 1);
}

/* --- powers and roots -------------------------------------------------------------------------------------------------- */

/* Appends the factors of z > 0 with exponent p/q each; *n of at most cap. 0: failed. */
static int factor_integer(struct cairn_algebra *alg, mpz_srcptr z, int64_t p, int64_t q, struct factor *f, int *n, int cap)
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
                if (*n == cap || (f[*n].atom = atom_integer(alg, prime)) < 0 || !set_exponent(&f[*n], p * k, q))
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
            (f[*n].atom = atom_integer(alg, rest)) < 0 || !set_exponent(&f[*n], p * k, q))
            ok = 0;
        else
            ++*n;
    }
    mpz_clear(rest);
    if (!ok)
        cairn_value_none(alg, CAIRN_VALUE_BUDGET);
    return ok;
}

#define FACTORS_MAX 256

/* The single term t to the power p/q. *done = 0: nothing simple is true of it (a sign or a branch is in the way). */
static struct cairn_value *term_power(struct cairn_algebra *alg, const struct term *t, int64_t p, int64_t q, int *done)
{
    struct factor f[FACTORS_MAX];
    int n = 0, negative = mpq_sgn(t->c) < 0, numeric = 1;
    mpq_ptr c = number(alg);
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
        f[n].atom = atom(alg, ATOM_I, "i");
        if (f[n].atom < 0)
            return NULL;
        f[n].q = 1;
        f[n++].p = ((p % 4) + 4) % 4;
    }
    *done = 1;
    if (q == 1 && (uint64_t)(p < 0 ? -p : p) <= BITS_MAX && (uint64_t)(p < 0 ? -p : p) * bits(t->c) <= BITS_MAX) {
        unsigned long k = (unsigned long)(p < 0 ? -p : p);

        if (!cairn_algebra_spend(alg, (long)(k * bits(t->c)) / 256 + 1))
            return NULL;
        mpz_pow_ui(mpq_numref(c), mpq_numref(t->c), k);
        mpz_pow_ui(mpq_denref(c), mpq_denref(t->c), k);
        if (p < 0)
            mpq_inv(c, c);
    } else {
        mpz_init(z);
        mpz_abs(z, mpq_numref(t->c));
        if (!factor_integer(alg, z, p, q, f, &n, FACTORS_MAX) ||
            !factor_integer(alg, mpq_denref(t->c), -p, q, f, &n, FACTORS_MAX)) {
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
            if (!scale_exponent(&x, p, q))
                return cairn_value_none(alg, CAIRN_VALUE_BUDGET);
            if (!(x.q == 1 && x.p % 2 == 0)) {
                char *key = cairn_format("|%d|", t->f[i].atom);

                x.atom = key ? atom(alg, ATOM_POSITIVE, key) : -1;
                free(key);
                if (x.atom < 0)
                    return NULL;
            }
        } else if (!scale_exponent(&x, p, q)) {
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
    return from_poly(alg, reduced(alg, c, f, n));
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
    if (!cairn_algebra_spend(alg, 64 + limbs(t[0].c) * limbs(t[0].c) + limbs(t[1].c) * limbs(t[1].c)))
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
                mpq_ptr kept = number(alg);

                if (kept) {
                    mpq_set(kept, x);
                    parts[k] = cairn_value_root(alg, from_number(alg, kept), 2);
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
    mpq_ptr content = number(alg);
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
        if (!cairn_algebra_spend(alg, 2 + limbs(p->t[i].c) * limbs(p->t[i].c) / 8) || mpz_sizeinbase(l, 2) > BITS_MAX)
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
        mpq_ptr inverse = number(alg);

        if (!inverse)
            return NULL;
        front = term_power(alg, &t, 1, q, &done);
        mpq_inv(inverse, content);
        if (negate)
            mpq_neg(inverse, inverse);
        primitive = poly_scale(alg, p, inverse);
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
        a = atom(alg, ATOM_ROOT, s.p);
    cairn_str_free(&s);
    if (a < 0)
        return NULL;
    alg->atom[a].poly = primitive;
    v = cairn_value_mul(alg, front, from_atom(alg, a, 1, q));
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
        const struct poly *num = poly_power(alg, a->num, k), *den = a->den == alg->one ? alg->one : poly_power(alg, a->den, k);

        return p < 0 ? quotient(alg, den, num) : quotient(alg, num, den);
    } else if (q > 1 && a->den == alg->one && (p == 1 || p == -1)) {
        v = poly_root(alg, a->num, (long)q);
        return p < 0 ? cairn_value_div(alg, cairn_value_int(alg, 1), v) : v;
    } else if (q > 1 && p != 1) {
        return rational_power(alg, rational_power(alg, a, 1, q), p, 1);
    }
    {
        mpq_ptr e = number(alg);

        if (!e)
            return NULL;
        mpz_set_si(mpq_numref(e), (long)p);
        mpz_set_si(mpq_denref(e), (long)q);
        return opaque(alg, ATOM_OPAQUE, "pow", a, from_number(alg, e));
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
    if (!factor_integer(alg, mpq_numref(a->num->t[0].c), 1, 1, base, &n, FACTORS_MAX) ||
        !factor_integer(alg, mpq_denref(a->num->t[0].c), -1, 1, base, &n, FACTORS_MAX))
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
            mpq_ptr one = number(alg);

            if (!one)
                return NULL;
            mpq_set_si(one, 1, 1);
            if (!scale_exponent(&f, p, q))
                return cairn_value_none(alg, CAIRN_VALUE_BUDGET);
            if (t->n) {
                struct cairn_str s = {0};
                enum atom_kind kind = alg->atom[f.atom].kind;

                cairn_str_printf(&s, "exp:%d", f.atom);
                for (int m = 0; m < t->n; m++)
                    cairn_str_printf(&s, "*%d^%lld/%lld", t->f[m].atom, (long long)t->f[m].p, (long long)t->f[m].q);
                if (s.oom)
                    cairn_value_none(alg, CAIRN_VALUE_NOMEM);
                f.atom = s.oom ? -1 : atom(alg, kind == ATOM_INTEGER || kind == ATOM_POSITIVE ? ATOM_POSITIVE : ATOM_OPAQUE, s.p);
                cairn_str_free(&s);
                if (f.atom < 0)
                    return NULL;
            }
            result = cairn_value_mul(alg, result, from_poly(alg, reduced(alg, one, &f, 1)));
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
    if (is_constant(alg, b)) {
        if (b->num->n == 0)
            return rational_power(alg, a, 0, 1);
        if (mpz_fits_slong_p(mpq_numref(b->num->t[0].c)) &&
            mpz_cmpabs_ui(mpq_numref(b->num->t[0].c), (unsigned long)EXPONENT_MAX) < 0 &&
            mpz_cmpabs_ui(mpq_denref(b->num->t[0].c), EXPONENT_DEN_MAX) <= 0)
            return rational_power(alg, a, mpz_get_si(mpq_numref(b->num->t[0].c)), mpz_get_si(mpq_denref(b->num->t[0].c)));
        return opaque(alg, ATOM_OPAQUE, "pow", a, b);
    }
    if (a->den == alg->one && a->num->n == 1 && a->num->t[0].n == 0 && mpq_cmp_ui(a->num->t[0].c, 1, 1) == 0)
        return from_poly(alg, a->num);
    v = symbolic_power(alg, a, b, &done);
    if (done || alg->fail != CAIRN_VALUE_FINE)
        return v;
    return opaque(alg, ATOM_OPAQUE, "pow", a, b);
}

struct cairn_value *cairn_value_root(struct cairn_algebra *alg, const struct cairn_value *a, long index)
{
    if (!a)
        return NULL;
    if (index < 1 || index > EXPONENT_DEN_MAX)
        return cairn_value_none(alg, CAIRN_VALUE_BUDGET);
    return rational_power(alg, a, 1, index);
}

/* --- functions ------------------------------------------------------------------------------------------------------------ */

/* A constant integer that fits a long. */
static int small_integer(const struct cairn_algebra *alg, const struct cairn_value *a, long *x)
{
    if (!is_constant(alg, a))
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
        return mpq_sgn(a->num->t[0].c) < 0 ? cairn_value_neg(alg, a) : from_poly(alg, a->num);
    /* |-x| = |x| */
    return opaque(alg, ATOM_POSITIVE, "abs", mpq_sgn(a->num->t[a->num->n - 1].c) < 0 ? cairn_value_neg(alg, a) : a, NULL);
}

struct cairn_value *cairn_value_round(struct cairn_algebra *alg, const struct cairn_value *a, int up)
{
    mpq_ptr q;

    if (!a)
        return NULL;
    if (!is_constant(alg, a))
        return opaque(alg, ATOM_OPAQUE, up ? "ceil" : "floor", a, NULL);
    if (a->num->n == 0)
        return cairn_value_int(alg, 0);
    if (!(q = number(alg)))
        return NULL;
    if (up)
        mpz_cdiv_q(mpq_numref(q), mpq_numref(a->num->t[0].c), mpq_denref(a->num->t[0].c));
    else
        mpz_fdiv_q(mpq_numref(q), mpq_numref(a->num->t[0].c), mpq_denref(a->num->t[0].c));
    return from_number(alg, q);
}

struct cairn_value *cairn_value_factorial(struct cairn_algebra *alg, const struct cairn_value *a)
{
    long n;
    mpq_ptr q;

    if (!a)
        return NULL;
    if (is_constant(alg, a) && (a->num->n == 1 && mpq_sgn(a->num->t[0].c) < 0))
        return cairn_value_none(alg, CAIRN_VALUE_UNDEFINED);
    if (!small_integer(alg, a, &n) || n > FACTORIAL_MAX)
        return opaque(alg, ATOM_POSITIVE, "factorial", a, NULL);
    if (!(q = number(alg)) || !cairn_algebra_spend(alg, n / 2 + 1))
        return NULL;
    mpz_fac_ui(mpq_numref(q), (unsigned long)n);
    return from_number(alg, q);
}

struct cairn_value *cairn_value_binomial(struct cairn_algebra *alg, const struct cairn_value *n, const struct cairn_value *k)
{
    long a, b;
    mpq_ptr q;

    if (!n || !k)
        return NULL;
    if (!small_integer(alg, n, &a) || !small_integer(alg, k, &b) || a < 0 || a > FACTORIAL_MAX || b < 0)
        return opaque(alg, ATOM_OPAQUE, "binomial", n, k);
    if (b > a)
        return cairn_value_int(alg, 0);
    if (!(q = number(alg)) || !cairn_algebra_spend(alg, a / 2 + 1))
        return NULL;
    mpz_bin_uiui(mpq_numref(q), (unsigned long)a, (unsigned long)b);
    return from_number(alg, q);
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
        return opaque(alg, ATOM_OPAQUE, "ln", a, NULL);
    for (int i = 0; i < t->n; i++)
        if (alg->atom[t->f[i].atom].kind != ATOM_INTEGER && alg->atom[t->f[i].atom].kind != ATOM_POSITIVE)
            return opaque(alg, ATOM_OPAQUE, "ln", a, NULL);
    if (!factor_integer(alg, mpq_numref(t->c), 1, 1, f, &n, FACTORS_MAX) ||
        !factor_integer(alg, mpq_denref(t->c), -1, 1, f, &n, FACTORS_MAX))
        return NULL;
    for (int i = 0; i < t->n && n < FACTORS_MAX; i++)
        f[n++] = t->f[i];
    sum = cairn_value_int(alg, 0);
    for (int i = 0; i < n; i++) {
        mpq_ptr c = number(alg);
        struct cairn_value *part;

        if (!c)
            return NULL;
        mpz_set_si(mpq_numref(c), (long)f[i].p);
        mpz_set_si(mpq_denref(c), (long)f[i].q);
        part = from_number(alg, c);
        if (strcmp(alg->atom[f[i].atom].key, "$e") != 0) {
            char *key = cairn_format("ln:%d", f[i].atom);

            part = cairn_value_mul(alg, part, from_atom(alg, key ? atom(alg, ATOM_OPAQUE, key) : -1, 1, 1));
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
    return opaque(alg, ATOM_OPAQUE, name, a, NULL);
}
